"""The best tree over a table of scores: the maximum spanning arborescence with exactly one root.

Chu & Liu (1965), Edmonds (1967): every word takes its best governor; a cycle among them is contracted to one node, the
rest is solved, and the cycle is opened where the solution enters it. Governor 0 stands above the root.
"""

import numpy as np
from jaxtyping import Float, Int64

from lemma.errors import InputError

Scores = Float[np.ndarray, "governors dependents"]
"""scores[g, d]: the score of g governing d, both from 0 to n; column 0 and the diagonal do not count."""


def best_tree(scores: Scores) -> Int64[np.ndarray, "words"]:
    """Return the governors of words 1 to n in the tree of the largest sum, of which exactly one is 0.

    >>> best_tree(np.array([[0.0, 9, 8], [0, 0, 7], [0, 6, 0]]))
    array([0, 1])
    """
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1] or len(scores) < 2:
        raise InputError(f"a tree needs a square table of scores over the root and at least one word: {scores.shape}.")
    if np.isnan(scores).any():
        raise InputError("the scores of a tree hold what is no number.")
    table = _finite(scores)
    table[0] -= 1 + len(table) * (table.max() - table.min())  # dear enough that a second root never pays
    np.fill_diagonal(table, -np.inf)
    table[:, 0] = -np.inf
    return _arborescence(table)[1:]


def _finite(scores: Scores) -> Scores:
    """A copy in which what is forbidden (−∞) is merely far worse than all else."""
    finite = scores[np.isfinite(scores)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    far = 1 + len(scores) * (high - low + 1)
    return np.nan_to_num(scores.astype(np.float64), nan=low, posinf=high + far, neginf=low - far)


def _arborescence(table: Scores) -> Int64[np.ndarray, "nodes"]:
    """Return each node's governor; that of node 0 means nothing."""
    governors = table.argmax(axis=0)
    governors[0] = 0
    cycle = _cycle(governors)
    if cycle is None:
        return governors
    return _opened(table, governors, cycle)


def _opened(table: Scores, governors: np.ndarray, cycle: np.ndarray) -> np.ndarray:
    """Contract a cycle to one node at the end, solve what is left, and open the cycle where it is entered."""
    outside = np.setdiff1d(np.arange(len(table)), cycle)
    leaving = table[np.ix_(cycle, outside)]
    entering = table[np.ix_(outside, cycle)] - table[governors[cycle], cycle]
    small = np.full((len(outside) + 1,) * 2, -np.inf)
    small[:-1, :-1] = table[np.ix_(outside, outside)]
    small[-1, :-1] = leaving.max(axis=0)
    small[:-1, -1] = entering.max(axis=1)
    small[:, 0] = -np.inf
    solved = _arborescence(small)
    return _expanded(governors, cycle, outside, solved, leaving.argmax(axis=0), entering.argmax(axis=1))


def _expanded(
    governors: np.ndarray,
    cycle: np.ndarray,
    outside: np.ndarray,
    solved: np.ndarray,
    leaves: np.ndarray,
    enters: np.ndarray,
) -> np.ndarray:
    whole = governors.copy()
    last = len(outside)
    for place, node in enumerate(outside):
        above = solved[place]
        whole[node] = cycle[leaves[place]] if above == last else outside[above]
    entrance = solved[last]
    whole[cycle[enters[entrance]]] = outside[entrance]
    return whole


def _cycle(governors: np.ndarray) -> np.ndarray | None:
    """Return the nodes of a cycle, or None; node 0 ends every way up."""
    colour = [0] * len(governors)
    colour[0] = 1
    up = governors.tolist()
    for start in range(1, len(up)):
        node, way = start, start + 1
        while not colour[node]:
            colour[node] = way
            node = up[node]
        if colour[node] == way and node:
            return _around(up, node)
    return None


def _around(up: list[int], node: int) -> np.ndarray:
    found = [node]
    while (node := up[node]) != found[0]:
        found.append(node)
    return np.array(found)
