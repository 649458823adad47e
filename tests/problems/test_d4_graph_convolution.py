"""Problem D4: Ã = A + I and Â = D̃^{-1/2} Ã D̃^{-1/2}, the claim that its rows are normalised, and what holds instead."""

import math

import numpy as np
import pytest
import torch

from lemma.checking.worked.graph import GraphSteps, work_graph
from lemma.layers.graph import build_adjacency


def star(leaves: int) -> list[list[int]]:
    return [[0, leaf] for leaf in range(1, leaves + 1)]


def cycle(size: int) -> list[list[int]]:
    return [[node, (node + 1) % size] for node in range(size)]


def by_hand(edges: list[list[int]]) -> GraphSteps:
    return work_graph({"edges": edges}).steps


def by_part(edges: list[list[int]], kind: str = "symmetric") -> np.ndarray:
    ends = torch.tensor(edges).T
    return build_adjacency(ends, int(ends.max()) + 1, kind).to_dense().double().numpy()  # pyright: ignore


@pytest.mark.parametrize("leaves", [1, 2, 5, 40])
def test_the_rows_of_a_star_sum_to_their_closed_form_and_to_one_for_a_single_leaf_only(leaves: int) -> None:
    """The hub has degree n + 1, a leaf 2: 1/(n+1) + n/√(2(n+1)) and 1/2 + 1/√(2(n+1))."""
    corner = 1 / math.sqrt(2 * (leaves + 1))
    expected = [1 / (leaves + 1) + leaves * corner, *[0.5 + corner] * leaves]
    for matrix, nearby in ((by_hand(star(leaves)).matrices["symmetric"], 1e-12), (by_part(star(leaves)), 1e-6)):
        np.testing.assert_allclose(matrix.sum(axis=1), expected, atol=nearby)
    assert by_hand(star(leaves)).rows_sum_to_one == (leaves == 1)


@pytest.mark.parametrize("size", [3, 4, 7])
def test_the_rows_of_a_cycle_sum_to_one_since_all_degrees_are_the_same(size: int) -> None:
    steps = by_hand(cycle(size))
    np.testing.assert_allclose(steps.matrices["symmetric"].sum(axis=1), 1, atol=1e-14)
    np.testing.assert_allclose(by_part(cycle(size)).sum(axis=1), 1, atol=1e-6)
    assert steps.rows_sum_to_one and steps.is_regular


@pytest.mark.parametrize("edges", [star(5), cycle(6), [*star(3), [3, 4], [4, 5]]])
def test_rows_divided_by_their_degree_sum_to_one_on_every_graph_but_are_not_symmetric(edges: list[list[int]]) -> None:
    for matrix in (by_hand(edges).matrices["rows"], by_part(edges, "rows")):
        np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-6)
    assert by_hand(edges).properties["rows"].symmetric == (edges == cycle(6))


@pytest.mark.parametrize("edges", [star(5), cycle(6), [*star(3), [3, 4], [4, 5]]])
def test_the_spectral_norm_of_the_symmetric_one_is_one_on_every_graph(edges: list[list[int]]) -> None:
    traits = by_hand(edges).properties["symmetric"]
    assert traits.symmetric and traits.spectral_norm == pytest.approx(1, abs=1e-12)
    assert np.linalg.norm(by_part(edges), 2) == pytest.approx(1, abs=1e-6)


def test_the_spectral_norms_of_a_star_are_known() -> None:
    """A has ±√n, so Ã has 1 + √n; a cycle's A has 2, its Ã 3."""
    assert by_hand(star(9)).properties["adjacency"].spectral_norm == pytest.approx(3)
    assert by_hand(star(9)).properties["loops"].spectral_norm == pytest.approx(4)
    assert by_hand(cycle(5)).properties["loops"].spectral_norm == pytest.approx(3)


def test_powers_without_normalisation_blow_features_up_like_powers_of_the_largest_eigenvalue() -> None:
    steps = work_graph({"edges": star(9), "powers": 40}).steps
    norms = steps.power_norms["loops"][:, 0]
    assert norms[-1] / norms[-2] == pytest.approx(4, rel=1e-6)
    assert norms[-1] > 1e20 * norms[0]
    assert steps.power_norms["symmetric"][:, 0].max() <= norms[0] * (1 + 1e-12)
    assert (np.diff(steps.power_norms["symmetric"][:, 0]) < 1e-12).all()


def test_powers_of_the_part_leave_features_no_larger_than_they_were() -> None:
    ends = torch.tensor(star(9)).T
    features = torch.randn(10, 4, generator=torch.Generator().manual_seed(1))
    base, built = features, features
    for _ in range(8):
        built = build_adjacency(ends, 10) @ built
        base = build_adjacency(ends, 10, "none") @ base
    assert built.norm() <= features.norm() < 100 * features.norm() < base.norm()


def test_what_is_left_in_the_end_is_the_root_of_the_degrees() -> None:
    """The eigenvector of Â with eigenvalue 1 is √d̃, and that of D̃⁻¹Ã is the same number everywhere."""
    steps = by_hand([*star(3), [3, 4], [4, 5]])
    roots = np.sqrt(steps.degrees)
    np.testing.assert_allclose(steps.matrices["symmetric"] @ roots, roots, atol=1e-14)
    np.testing.assert_allclose(steps.matrices["rows"] @ np.ones(6), 1, atol=1e-14)
