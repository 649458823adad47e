"""The maximum spanning tree with one root against enumeration and networkx."""

from itertools import product

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lemma.data.treebanks import iter_depth_first
from lemma.errors import InputError
from lemma.models.spanning_tree import best_tree


def is_tree(heads: tuple[int, ...]) -> bool:
    """Return whether exactly one word depends on the root and every path leads to it."""
    if sum(head == 0 for head in heads) != 1:
        return False
    for word in range(1, len(heads) + 1):
        node, steps = word, 0
        while node and steps <= len(heads):
            node, steps = heads[node - 1], steps + 1
        if node:
            return False
    return True


def total(scores: np.ndarray, heads) -> float:
    return sum(scores[head, index] for index, head in enumerate(heads, start=1))


def brute_force_score(scores: np.ndarray) -> float:
    size = len(scores) - 1
    return max(total(scores, heads) for heads in product(range(size + 1), repeat=size) if is_tree(heads))


def networkx_score(scores: np.ndarray) -> float:
    """Return the best score over all root words, each by a networkx arborescence."""
    size, result = len(scores) - 1, -np.inf
    for root in range(1, size + 1):
        graph = networkx.DiGraph()
        graph.add_edge(0, root, weight=float(scores[0, root]))
        for head, dependent in product(range(1, size + 1), repeat=2):
            if head != dependent and dependent != root:
                graph.add_edge(head, dependent, weight=float(scores[head, dependent]))
        tree = networkx.maximum_spanning_arborescence(graph)
        result = max(result, sum(data["weight"] for _, _, data in tree.edges(data=True)))
    return result


@given(st.integers(1, 5), st.integers(0, 10_000), st.sampled_from([1.0, 30.0, 1000.0]), st.booleans())
@settings(max_examples=150, deadline=None)
def test_best_tree_matches_brute_force(size: int, seed: int, spread: float, keen_root: bool) -> None:
    random = np.random.default_rng(seed)
    scores = random.normal(size=(size + 1, size + 1)) * spread
    scores[0] += 5 * spread * keen_root  # favours every word as the root
    heads = best_tree(scores)
    assert is_tree(tuple(heads.tolist()))
    assert total(scores, heads) == pytest.approx(brute_force_score(scores), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("size", [2, 6, 9, 14])
def test_best_tree_weight_matches_networkx(size: int) -> None:
    random = np.random.default_rng(size)
    for _ in range(6):
        scores = np.round(random.normal(size=(size + 1, size + 1)) * 3, 1)  # with ties
        heads = best_tree(scores)
        assert is_tree(tuple(heads.tolist()))
        assert total(scores, heads) == pytest.approx(networkx_score(scores))


def test_forbidden_arcs_are_avoided_if_possible() -> None:
    scores = np.full((4, 4), -np.inf)
    scores[0, 2], scores[2, 1], scores[1, 3] = -5.0, -100.0, -0.1
    assert best_tree(scores).tolist() == [2, 0, 1]


def test_invalid_score_matrices_are_rejected() -> None:
    with pytest.raises(InputError, match="square"):
        best_tree(np.zeros((3, 4)))
    with pytest.raises(InputError, match="contain NaN"):
        best_tree(np.full((3, 3), np.nan))


@pytest.mark.parametrize("symmetric", [False, True])
def test_best_tree_handles_long_sentences(symmetric: bool) -> None:
    scores = np.random.default_rng(1).random((1201, 1201))
    heads = best_tree(scores + scores.T if symmetric else scores)
    assert (heads == 0).sum() == 1 and len(set(iter_depth_first(heads.tolist()))) == 1200
