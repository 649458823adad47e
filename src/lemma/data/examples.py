"""Data that come as examples of their own, and which of them make up each batch: a pure function of seed and step."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from jaxtyping import Int64, Integer

from lemma.data.encoders import gather

NOTHING = -1
"""What stands where no token is, always at the right end of a row; among targets, what is not to be predicted."""
POOL = 50
"""Batches' worth of examples that are sorted by length together: alike enough to pad little, mixed enough to learn."""

Indices = Sequence[int] | Int64[np.ndarray, "examples"]


class Examples(Protocol):
    """What is learned example by example: trees, pairs of texts, texts with labels."""

    @property
    def lengths(self) -> Int64[np.ndarray, "examples"]:
        """The tokens of each example."""
        ...

    def __len__(self) -> int:
        """The tokens of all examples together."""
        ...

    def batch(self, indices: Any, /) -> tuple[Int64[np.ndarray, "batch ..."], Int64[np.ndarray, "batch ..."]]:
        """Some examples side by side: what is read, and what is to be said of it."""
        ...


@dataclass(frozen=True)
class Rows:
    """Rows of tokens of any length, one after the other: row i owns the tokens bounds[i] to bounds[i + 1]."""

    tokens: Integer[np.ndarray, "tokens"]
    bounds: Int64[np.ndarray, "rows_and_one"]

    @cached_property
    def lengths(self) -> Int64[np.ndarray, "rows"]:
        """The tokens of each row."""
        return np.diff(self.bounds)

    def __len__(self) -> int:
        return len(self.tokens)

    def beside(self, indices: Indices) -> Int64[np.ndarray, "rows longest"]:
        """Some rows side by side, the shorter ones filled up with −1.

        >>> Rows(np.array([5, 6, 7]), np.array([0, 1, 3])).beside([1, 0])
        array([[ 6,  7],
               [ 5, -1]])
        """
        lengths = self.lengths[np.asarray(indices, dtype=np.int64)]
        padded = np.full((len(lengths), int(lengths.max(initial=0))), NOTHING, dtype=np.int64)
        padded[np.arange(padded.shape[1]) < lengths[:, None]] = self.chosen(indices).tokens
        return padded

    def chosen(self, indices: Indices) -> "Rows":
        """Some rows in this order."""
        rows = np.asarray(indices, dtype=np.int64)
        bounds = np.concatenate([[0], np.cumsum(self.lengths[rows])])
        return Rows(gather(self.tokens, self.bounds, rows), bounds)

    def cut(self, length: int) -> "Rows":
        """The first tokens of each row, at most so many.

        >>> Rows(np.array([5, 6, 7]), np.array([0, 1, 3])).cut(1).tokens
        array([5, 6])
        """
        kept = np.minimum(self.lengths, length)
        bounds = np.concatenate([[0], np.cumsum(kept)])
        places = np.arange(bounds[-1]) + np.repeat(self.bounds[:-1] - bounds[:-1], kept)
        return Rows(self.tokens[places], bounds)

    def filled(self, token: int) -> "Rows":
        """The rows, with one token in each that had none.

        >>> Rows(np.array([5, 6]), np.array([0, 0, 2])).filled(3).tokens
        array([3, 5, 6])
        """
        empty = self.lengths == 0
        tokens = np.insert(self.tokens, self.bounds[:-1][empty], token)
        return Rows(tokens, self.bounds + np.concatenate([[0], np.cumsum(empty)]))

    def marked(self, before: Sequence[int], after: Sequence[int]) -> "Rows":
        """The rows with some tokens put before and after each of them.

        >>> Rows(np.array([5, 6, 7]), np.array([0, 1, 3])).marked([1], [2]).beside([0, 1])
        array([[ 1,  5,  2, -1],
               [ 1,  6,  7,  2]])
        """
        count, more = len(self.lengths), len(before) + len(after)
        bounds = self.bounds + more * np.arange(count + 1)
        tokens = np.empty(bounds[-1], dtype=self.tokens.dtype)
        inner = np.ones(len(tokens), dtype=bool)
        for place, token in enumerate(before):
            tokens[bounds[:-1] + place], inner[bounds[:-1] + place] = token, False
        for place, token in enumerate(reversed(after), start=1):
            tokens[bounds[1:] - place], inner[bounds[1:] - place] = token, False
        tokens[inner] = self.tokens
        return Rows(tokens, bounds)


@dataclass(frozen=True)
class BucketedExamples:
    """Every epoch all examples in a new order, cut into batches of about equal length.

    What an epoch leaves over, less than a batch, is others every time. Examples fewer than a batch are read anew
    until the batch is full.
    """

    lengths: Int64[np.ndarray, "examples"]
    batch: int
    seed: int

    @property
    def steps(self) -> int:
        """Steps an epoch."""
        return max(1, len(self.lengths) // self.batch)

    def examples(self, step: int) -> Int64[np.ndarray, "batch"]:
        """The examples of a step.

        >>> sorted(BucketedExamples(np.array([3, 9, 4, 8]), batch=4, seed=1).examples(0).tolist())
        [0, 1, 2, 3]
        """
        epoch, place = divmod(step, self.steps)
        return self._epoch(epoch)[place]

    def _epoch(self, epoch: int) -> Int64[np.ndarray, "steps batch"]:
        if epoch not in self._orders:
            self._orders.clear()
            self._orders[epoch] = self._order(epoch)
        return self._orders[epoch]

    @cached_property
    def _orders(self) -> dict[int, np.ndarray]:
        return {}

    def _order(self, epoch: int) -> Int64[np.ndarray, "steps batch"]:
        random = np.random.default_rng([self.seed, epoch])
        wanted = self.steps * self.batch
        shuffled = np.resize(random.permutation(len(self.lengths)), wanted)
        pools = [shuffled[start : start + POOL * self.batch] for start in range(0, wanted, POOL * self.batch)]
        ordered = np.concatenate([pool[np.argsort(self.lengths[pool], kind="stable")] for pool in pools])
        return random.permutation(ordered.reshape(self.steps, self.batch))
