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
"""Where it has not: this part of the class in the middle, so that one rare class does not starve all."""

NAMED = 5
"""Of small classes so many are named in a message."""


def divide_nodes(
    classes: Int64[np.ndarray, "nodes"], spec: GraphSpec, seed: int, names: Sequence[str] = ()
) -> tuple[dict[str, Nodes], list[str]]:
    """Draw the splits among the nodes whose class is known (−1 is not), with what had to be cut said.

    >>> splits, said = divide_nodes(np.array([0, 1] * 17), GraphSpec(graph="karate"), seed=1)
    >>> {name: len(nodes) for name, nodes in splits.items()}
    {'train': 4, 'validation': 10, 'test': 20}
    """
    order = np.random.default_rng(seed).permutation(np.flatnonzero(classes >= 0))
    counts = np.bincount(classes[order])
    labelled = spec.labelled or min(USUAL, max(1, int(np.median(counts[counts > 0])) // PART))
    learned = np.concatenate([order[classes[order] == number][:labelled] for number in range(len(counts))])
    rest = order[~np.isin(order, learned)]
    validation, test = _shares(len(rest), spec.validation, spec.test)
    splits = {
        "train": np.sort(learned),
        "validation": np.sort(rest[:validation]),
        "test": np.sort(rest[validation : validation + test]),
    }
    small = np.flatnonzero((counts > 0) & (counts < labelled)).tolist()
    few = [names[number] if names else str(number) for number in small]
    return splits, _said(spec, labelled, few, splits)


def _shares(left: int, validation: int, test: int) -> tuple[int, int]:
    """As many as asked for, or else what is left in their proportion."""
    if left < 2:
        raise DataError(
            f"{left} labelled node{' is' if left == 1 else 's are'} left to validate and test on, besides those that "
            "are learned. Lower labelled=, or give more labels."
        )
    if left >= validation + test:
        return validation, test
    fewer = min(left - 1, max(1, left * validation // (validation + test)))
    return fewer, left - fewer


def _said(spec: GraphSpec, labelled: int, few: Sequence[str], splits: dict[str, Nodes]) -> list[str]:
    said = []
    if spec.labelled is None and labelled < USUAL:
        said.append(f"the graph is small: {_nodes(labelled)} of each class {_are(labelled)} learned, not {USUAL}")
    if few:
        some = ", ".join(name[:40] for name in few[:NAMED]) + (", …" if len(few) > NAMED else "")
        classes = f"{len(few):,} class{' has' if len(few) == 1 else 'es have'}"
        said.append(f"{classes} fewer than {_nodes(labelled)}: all of theirs are learned ({some})")
    held = {"validation": spec.validation, "test": spec.test}
    if any(len(splits[name]) < wanted for name, wanted in held.items()):
        kept = len(splits["validation"])
        said.append(f"{_nodes(kept)} {_are(kept)} left to validate and {len(splits['test']):,} to test")
    return said


def _nodes(count: int) -> str:
    return f"{count:,} node{'' if count == 1 else 's'}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
