"""The best tree over a table of scores: the maximum spanning arborescence with exactly one root.

Chu & Liu (1965), Edmonds (1967): every word takes its best head; a cycle among them is contracted to one node, the rest
is solved, and the cycle is expanded where the solution enters it. Head 0 is the artificial root.
"""

import numpy as np
from jaxtyping import Float, Int64

from lemma.errors import InputError

Scores = Float[np.ndarray, "heads dependents"]
"""scores[h, d]: the score of h as head of d, both from 0 to n; column 0 and the diagonal are ignored."""


def best_tree(scores: Scores) -> Int64[np.ndarray, " words"]:
    """Return the heads of words 1 to n in the tree of the largest sum, of which exactly one is 0.

    >>> best_tree(np.array([[0.0, 9, 8], [0, 0, 7], [0, 6, 0]]))
    array([0, 1])
    """
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1] or len(scores) < 2:
        raise InputError(f"a tree needs a square table of scores over the root and at least one word: {scores.shape}.")
    if np.isnan(scores).any():
        raise InputError("the scores of a tree contain NaN.")
    table = _replace_infinities(scores)
    table[0] -= 1 + len(table) * (table.max() - table.min())  # so low that a second root never pays
    np.fill_diagonal(table, -np.inf)
    table[:, 0] = -np.inf
    heads = table.argmax(axis=0)
    heads[0] = 0
    levels: list[tuple[np.ndarray, ...]] = []
    while (cycle := _find_cycle(heads)) is not None:
        # The first node of the cycle stands for all of it. Entering at a member gives up the cycle's arc to it.
        first, members = cycle[0], table[cycle]
        gains = table[:, cycle] - table[heads[cycle], cycle]
        entered, left = cycle[gains.argmax(axis=1)], cycle[members.argmax(axis=0)]
        kept = np.setdiff1d(np.arange(len(table)), cycle[1:])
        levels.append((heads, cycle, kept, entered, left))
        table[:, first], table[first] = gains.max(axis=1), members.max(axis=0)
        table[first, first] = table[first, 0] = -np.inf
        heads = np.searchsorted(kept, np.where(np.isin(heads, cycle), first, heads)[kept])
        table, slot = table[np.ix_(kept, kept)], np.searchsorted(kept, first)
        heads[slot] = table[:, slot].argmax()
    for earlier_heads, cycle, kept, entered, left in reversed(levels):
        first, outer = cycle[0], kept[heads]
        head_of_cycle = outer[np.searchsorted(kept, first)]
        heads = earlier_heads.copy()
        heads[kept] = np.where(outer == first, left[kept], outer)
        heads[cycle] = earlier_heads[cycle]
        heads[entered[head_of_cycle]] = head_of_cycle
    return heads[1:]


def _replace_infinities(scores: Scores) -> Scores:
    """Return a copy of arc scores in which −∞ (a forbidden arc) is a finite score far below all others."""
    finite = scores[np.isfinite(scores)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    margin = 1 + len(scores) * (high - low + 1)
    return np.nan_to_num(scores.astype(np.float64), nan=low, posinf=high + margin, neginf=low - margin)


def _find_cycle(heads: np.ndarray) -> np.ndarray | None:
    """Return the nodes of a cycle, given the head of each node, or None without one; node 0 is the root."""
    colour = [0] * len(heads)
    colour[0] = 1
    head_of = heads.tolist()
    for start in range(1, len(heads)):
        node, path = start, start + 1
        while not colour[node]:
            colour[node] = path
            node = head_of[node]
        if colour[node] == path and node:
            cycle = [node]
            while (node := head_of[node]) != cycle[0]:
                cycle.append(node)
            return np.array(cycle)
    return None
