"""Where the right one stands among all candidates, with ties counted exactly."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

BLOCK = 1 << 22
"""Scores that are looked at at once."""

Right = Bool[np.ndarray, "queries candidates"] | Int[np.ndarray, "queries"]
"""Which candidates are right for each query: a mask, or the place of the only one."""


@dataclass(frozen=True)
class Places:
    """Of each query: how many wrong candidates score higher than its best right one, and how many the same."""

    before: Int[np.ndarray, "queries"]
    tied: Int[np.ndarray, "queries"]
    right: Int[np.ndarray, "queries"]
    """How many right ones share that score, itself among them."""

    def ranks(self) -> Float[np.ndarray, "queries"]:
        """The mean rank of the first right one, over all orders of those that are tied; 1 is the best."""
        return self.before + 1 + self.tied / (self.right + 1)

    def hits(self, first: int) -> Float[np.ndarray, "queries"]:
        """The chance that a right one is among the first so many, over all orders of those that are tied.

        Where nothing is tied it is 0 or 1. Else, of j places left, all are wrong with C(e, j) / C(e + r, j).

        >>> Places(np.array([0]), np.array([9]), np.array([1])).hits(1)
        array([0.1])
        """
        left = np.maximum(0, first - self.before)
        missed = np.ones(len(left))
        for place in range(int(left.max(initial=0))):
            there = np.maximum(self.tied - place, 0) / np.maximum(self.tied + self.right - place, 1)
            missed *= np.where(place < left, there, 1.0)
        return 1 - missed

    @classmethod
    def joined(cls, parts: list["Places"]) -> "Places":
        """The places of several blocks of queries, one after the other."""
        columns = ([part.before for part in parts], [part.tied for part in parts], [part.right for part in parts])
        return cls(*(np.concatenate(column) for column in columns))


def places_of(scores: Float[np.ndarray, "queries candidates"], right: Right) -> Places:
    """Find the best right candidate of every query; what is no number scores lower than all else."""
    mask = right if right.ndim == 2 else np.arange(scores.shape[1]) == right[:, None]
    known = np.where(np.isnan(scores), -np.inf, scores)
    best = np.where(mask, known, -np.inf).max(1, keepdims=True)
    same = known == best
    return Places((known > best).sum(1), (same & ~mask).sum(1), (same & mask).sum(1))


def ranks_of(scores: Float[np.ndarray, "queries candidates"], right: Right) -> Float[np.ndarray, "queries"]:
    """The rank of each query's best right candidate: 1 is the best, and a tie counts half a place.

    >>> ranks_of(np.array([[0.1, 0.9, 0.5], [2.0, 2.0, 1.0]]), np.array([2, 0]))
    array([2. , 1.5])
    """
    blocks = (rows for rows in blocks_of(len(scores), scores.shape[1]))
    return Places.joined([places_of(scores[rows], right[rows]) for rows in blocks]).ranks()


def blocks_of(rows: int, columns: int) -> Iterator[slice]:
    """Rows in blocks of about so many numbers as are looked at at once."""
    size = max(1, BLOCK // max(1, columns))
    return (slice(start, min(rows, start + size)) for start in range(0, max(rows, 1), size))
