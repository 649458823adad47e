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
    """Return the head of each word 1 … n in the tree with the largest sum of scores; exactly one word has head 0.

    Args:
        scores: score of each (head, dependent), where 0 is the root; −∞ forbids an arc.

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
    contraction = CycleContraction(table)
    while (cycle := _find_cycle(contraction.heads, contraction.alive)) is not None:
        contraction.contract(cycle)
    return contraction.expand()[1:]


def _replace_infinities(scores: Scores) -> Scores:
    """Return a copy of arc scores in which −∞ (a forbidden arc) is a finite score far below all others."""
    finite = scores[np.isfinite(scores)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    margin = 1 + len(scores) * (high - low + 1)
    return np.nan_to_num(scores.astype(np.float64), nan=low, posinf=high + margin, neginf=low - margin)


class CycleContraction:
    """Score table of Chu–Liu/Edmonds: each cycle of best heads is contracted to a node in the slot of a member.

    Attributes:
        table: scores by slot; a slot holds a node: a word or a contracted cycle.
        alive: slots in use.
        arcs: the (head word, dependent word) that each entry of the table stands for.
        nodes: the node in each slot.
        parents: by node, the contracted cycle it is in; itself if none.
        heads: best head slot of each slot.
        contracted: each contracted node with the arcs of its members, in order.
    """

    def __init__(self, table: Scores) -> None:
        size = len(table)
        self.table, self.alive = table, np.ones(size, dtype=bool)
        self.arcs = np.stack(np.meshgrid(np.arange(size), np.arange(size), indexing="ij"), axis=-1)
        self.nodes, self.parents = list(range(size)), list(range(size))
        self.heads = table.argmax(axis=0)
        self.heads[0] = 0
        self.contracted: list[tuple[int, dict[int, np.ndarray]]] = []

    def contract(self, cycle: np.ndarray) -> None:
        """Replace the nodes of a cycle by a single node, in the score table's slot of one of them.

        The new score of an arc into the cycle is its gain over the cycle's own arc to the same member.

        Args:
            cycle: slots of the cycle's nodes.
        """
        members = {self.nodes[slot]: self.arcs[self.heads[slot], slot].copy() for slot in cycle}
        new = len(self.parents)
        self.parents.append(new)
        for node in members:
            self.parents[node] = new
        self.nodes[cycle[0]] = new
        self.contracted.append((new, members))
        slot, others = cycle[0], cycle[1:]
        gains = self.table[:, cycle] - self.table[self.heads[cycle], cycle]
        best_in, best_out = gains.argmax(axis=1), self.table[cycle].argmax(axis=0)
        every = np.arange(len(self.table))
        arcs_in, arcs_out = self.arcs[every, cycle[best_in]], self.arcs[cycle[best_out], every]
        self.table[:, slot], self.table[slot] = gains[every, best_in], self.table[cycle[best_out], every]
        self.arcs[:, slot], self.arcs[slot] = arcs_in, arcs_out
        self.alive[others] = False
        self.table[others], self.table[:, others] = -np.inf, -np.inf
        self.table[slot, slot] = self.table[slot, 0] = -np.inf
        self.heads[np.isin(self.heads, cycle)] = slot
        self.heads[slot] = self.table[:, slot].argmax()

    def expand(self) -> Int64[np.ndarray, " nodes"]:
        """Return the head of every word, 0 for the root, after undoing all contractions.

        Each cycle keeps its arcs except that to the member by which the tree enters it.
        """
        slots = np.flatnonzero(self.alive)[1:]
        chosen = {self.nodes[slot]: self.arcs[self.heads[slot], slot] for slot in slots}
        for node, members in reversed(self.contracted):
            arc = chosen.pop(node)
            entered = int(arc[1])
            while self.parents[entered] != node:
                entered = self.parents[entered]
            chosen |= {**members, entered: arc}
        heads = np.zeros(len(self.table), dtype=np.int64)
        for word, arc in chosen.items():
            heads[word] = arc[0]
        return heads


def _find_cycle(heads: np.ndarray, alive: np.ndarray) -> np.ndarray | None:
    """Return the slots of a cycle of heads, or None if there is none; slot 0 is the root, which has no head.

    Args:
        heads: slot of each slot's head.
        alive: True for slots that are still in use, after contractions.
    """
    colour = [0] * len(heads)
    colour[0] = 1
    head_of = heads.tolist()
    for start in np.flatnonzero(alive)[1:].tolist():
        slot, path = start, start + 1
        while not colour[slot]:
            colour[slot] = path
            slot = head_of[slot]
        if colour[slot] == path and slot:
            cycle = [slot]
            while (slot := head_of[slot]) != cycle[0]:
                cycle.append(slot)
            return np.array(cycle)
    return None
