"""Which nodes are learned, validated and tested: drawn by a seed, as many of each class to learn from."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from lemma.errors import DataError
from lemma.spec import GraphSpec

Nodes = Int64[np.ndarray, "chosen"]
USUAL = 20
"""Nodes of each class to learn from, where the graph has enough."""
PART = 8
"""Where it has not: this part of the smallest class."""


def divide_nodes(classes: Int64[np.ndarray, "nodes"], spec: GraphSpec, seed: int) -> tuple[dict[str, Nodes], list[str]]:
    """Draw the splits among the nodes whose class is known (−1 is not), with what had to be cut said.

    >>> splits, said = divide_nodes(np.array([0, 1] * 17), GraphSpec(graph="karate"), seed=1)
    >>> {name: len(nodes) for name, nodes in splits.items()}
    {'train': 4, 'validation': 10, 'test': 20}
    """
    order = np.random.default_rng(seed).permutation(np.flatnonzero(classes >= 0))
    counts = np.bincount(classes[order])
    labelled = spec.labelled or min(USUAL, max(1, int(counts.min()) // PART))
    learned = np.concatenate([order[classes[order] == number][:labelled] for number in range(len(counts))])
    rest = order[~np.isin(order, learned)]
    validation, test = _shares(len(rest), spec.validation, spec.test)
    splits = {
        "train": np.sort(learned),
        "validation": np.sort(rest[:validation]),
        "test": np.sort(rest[validation : validation + test]),
    }
    return splits, _said(spec, labelled, counts, splits)


def _shares(left: int, validation: int, test: int) -> tuple[int, int]:
    """As many as asked for, or else what is left in their proportion."""
    if left < 2:
        raise DataError(
            f"{left} labelled nodes are left to validate and test on, besides those that are learned. "
            "Lower labelled=, or give more labels."
        )
    if left >= validation + test:
        return validation, test
    fewer = min(left - 1, max(1, left * validation // (validation + test)))
    return fewer, left - fewer


def _said(spec: GraphSpec, labelled: int, counts: Sequence[int] | np.ndarray, splits: dict[str, Nodes]) -> list[str]:
    said = []
    if spec.labelled is None and labelled < USUAL:
        said.append(f"the graph is small: {labelled} nodes of each class are learned, not {USUAL}")
    if few := int((np.asarray(counts) < labelled).sum()):
        said.append(f"{few:,} classes have fewer than {labelled} nodes: all of theirs are learned")
    held = {"validation": spec.validation, "test": spec.test}
    if any(len(splits[name]) < wanted for name, wanted in held.items()):
        said.append(f"{len(splits['validation']):,} nodes are left to validate and {len(splits['test']):,} to test")
    return said
