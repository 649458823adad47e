"""Which examples make up each batch: pure functions of the seed and the step."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal, Protocol

import numpy as np
from jaxtyping import Bool, Int64, Integer

from lemma.data.tokenizers import gather
from lemma.errors import DataError
from lemma.spec.models import MARKS

# Which stretches of the training text make up each batch: pure functions of the seed and the step.
#
# A stretch is `stretch` tokens to read and, one further on, as many to predict: tokens[offset : offset + stretch +
# 1].
# Being pure, the order needs no state to be saved: a resumed run asks for the next step and gets what it would have
# got.


Offsets = Int64[np.ndarray, "batch"]


@dataclass(frozen=True)
class RandomWindows:
    """Stretches drawn anew for every step, uniformly and independently; for models without a memory."""

    length: int
    stretch: int
    batch: int
    seed: int

    def __post_init__(self) -> None:
        _check_length(self.length, self.stretch, 1)

    def offsets(self, step: int) -> Offsets:
        """Where the stretches of a step start.

        >>> RandomWindows(length=1000, stretch=64, batch=3, seed=1).offsets(0).shape
        (3,)
        """
        return _random(self.seed, step).integers(0, self.length - self.stretch, size=self.batch)


@dataclass(frozen=True)
class Streams:
    """As many contiguous streams as the batch has rows, for models that carry their state from step to step.

    In an epoch each row reads its own share of the text from start to end. Each epoch moves all shares by a random
    phase, so that the text is not always cut at the same places; the tokens this leaves out are others every time.
    """

    length: int
    stretch: int
    batch: int
    seed: int

    def __post_init__(self) -> None:
        _check_length(self.length, self.stretch, self.batch)

    @property
    def steps(self) -> int:
        """Steps an epoch: as many as fit with room for a phase of one stretch, but at least one."""
        return max((self.length - self.stretch) // (self.stretch * self.batch), 1)

    def offsets(self, step: int) -> Offsets:
        """Where the stretches of a step start: within an epoch, each where that of the step before ended.

        >>> streams = Streams(length=1000, stretch=10, batch=2, seed=1)
        >>> streams.offsets(1) - streams.offsets(0)
        array([10, 10])
        """
        epoch, place = divmod(step, self.steps)
        share = self.steps * self.stretch
        phase = _random(self.seed, epoch).integers(0, self.length - share * self.batch)
        return phase + np.arange(self.batch) * share + place * self.stretch

    def fresh(self, step: int) -> bool:
        """Whether the streams start anew at this step, so that the state must be reset."""
        return step % self.steps == 0


def _random(seed: int, number: int) -> np.random.Generator:
    return np.random.default_rng([seed, number])


def _check_length(length: int, stretch: int, rows: int) -> None:
    if length > stretch * rows:
        return
    together = f" with batch {rows}" if rows > 1 else ""
    smaller = max((length - 1) // rows, 0)
    step = f" or set stretch={smaller}" if smaller else ""
    step += f" or batch={(length - 1) // stretch}" if rows > 1 and length > stretch else ""
    raise DataError(
        f"the training text has {length:,} tokens; stretch {stretch}{together} needs at least {stretch * rows + 1:,}. "
        f"Give more text{step}."
    )


# Data that come as examples of their own, and which of them make up each batch: a pure function of seed and step.


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


# Windows of text of which some tokens are hidden, and pairs of stretches that follow each other or do not (E3).
#
# Of the tokens to predict 80 % are hidden, 10 % exchanged for others and 10 % left as they are (Devlin et al. 2019).
# All
# is a pure function of the seed and the step. A row is `<start>` A `<end>`, or, where the model is to say whether B
# follows A, `<start>` A `<end>` B `<end>`; the first target is then 1 if it does, else 0. Where nothing is asked, the
# target is −1.


Objective = Literal["masked", "next-sentence", "both"]
Tokens = Integer[np.ndarray, "tokens"]
Batch = tuple[Int64[np.ndarray, "batch context"], Int64[np.ndarray, "batch context"]]
HIDDEN, EXCHANGED = 0.8, 0.1
CHUNK = 64
"""Rows that are judged together: fixed, since what is hidden in them is drawn together."""


@dataclass(frozen=True)
class MaskedWindows:
    """The batches of an encoder on plain text: windows at random places, anew for every step."""

    length: int
    """Tokens of the text."""
    context: int
    """Places of a row, marks included."""
    batch_size: int
    seed: int
    rate: float
    """The share of each row's tokens that is to be predicted, at least one: as many in every row."""
    objective: Objective
    vocabulary: int
    """Tokens and marks; the marks are the last."""

    def __post_init__(self) -> None:
        least = 5 if self.paired else 3
        if self.context < least:
            raise DataError(f"context = {self.context} leaves no token beside the marks. Set context={least} or more.")
        if self.length < self.taken:
            raise DataError(
                f"the text has {self.length:,} tokens; context {self.context} needs at least {self.taken:,}. "
                "Give more text or a smaller context."
            )

    @property
    def paired(self) -> bool:
        """Whether rows are of two stretches."""
        return self.objective != "masked"

    @property
    def taken(self) -> int:
        """Tokens of the text in a row."""
        return self.context - (3 if self.paired else 2)

    @property
    def first(self) -> int:
        """Tokens of the stretch A; where there is a B, it is as long or one shorter."""
        return (self.taken + 1) // 2 if self.paired else self.taken

    @property
    def hidden(self) -> int:
        """Tokens to predict, as many in every row."""
        return 0 if self.objective == "next-sentence" else max(1, round(self.rate * self.taken))

    def batch(self, tokens: Tokens, step: int) -> Batch:
        """What the model reads at a step, and what it is to say of it."""
        random = np.random.default_rng([self.seed, step])
        offsets = random.integers(0, self.length - self.taken + 1, size=self.batch_size)
        follows = random.permutation(np.arange(self.batch_size) % 2 == random.integers(2))
        return self.rows(tokens, offsets, follows, random)

    def rows(
        self, tokens: Tokens, offsets: Offsets, follows: Bool[np.ndarray, "batch"], random: np.random.Generator
    ) -> Batch:
        """The rows whose stretches A begin at `offsets`; of those that are not followed, B is drawn elsewhere."""
        inputs = self._stretches(tokens, offsets, follows, random)
        targets = np.full_like(inputs, NOTHING)
        if self.hidden:
            _hide(inputs, targets, self.hidden, self.vocabulary, random)
        if self.paired:
            targets[:, 0] = follows
        return inputs, targets

    def passes(self, tokens: Tokens) -> Iterator[Batch]:
        """Go through a text once, window after window, some rows at a time; always with the same tokens hidden."""
        starts = np.arange(0, self.length - self.taken + 1, self.taken)
        for number, begin in enumerate(range(0, len(starts), CHUNK)):
            offsets = starts[begin : begin + CHUNK]
            random = np.random.default_rng([self.seed, number])
            yield self.rows(tokens, offsets, np.arange(len(offsets)) % 2 == 0, random)

    def _stretches(
        self, tokens: Tokens, offsets: Offsets, follows: Bool[np.ndarray, "batch"], random: np.random.Generator
    ) -> Int64[np.ndarray, "batch context"]:
        start, end = self.vocabulary - len(MARKS), self.vocabulary - len(MARKS) + 1
        first = tokens[offsets[:, None] + np.arange(self.first)].astype(np.int64)
        mark = np.full((len(offsets), 1), end)
        parts = [np.full_like(mark, start), first, mark]
        if self.paired:
            following = offsets + self.first
            others = self._elsewhere(following, random)
            second = np.where(follows, following, others)[:, None] + np.arange(self.taken - self.first)
            parts += [tokens[second].astype(np.int64), mark]
        return np.concatenate(parts, axis=1)

    def _elsewhere(self, following: Offsets, random: np.random.Generator) -> Offsets:
        """A place for each B anywhere in the text but where it would follow."""
        last = self.length - (self.taken - self.first)
        places = random.integers(0, last, size=len(following))
        return places + (places >= following)


def _hide(inputs: np.ndarray, targets: np.ndarray, count: int, vocabulary: int, random: np.random.Generator) -> None:
    """Choose tokens to predict in every row, never marks, and hide, exchange or leave them."""
    texts = vocabulary - len(MARKS)
    places = np.flatnonzero(inputs[0] < texts)  # marks stand at the same places in all rows
    chosen = places[random.random((len(inputs), len(places))).argsort(axis=1)[:, :count]]
    original = np.take_along_axis(inputs, chosen, axis=1)
    np.put_along_axis(targets, chosen, original, axis=1)
    chance = random.random(chosen.shape)
    others = (original + random.integers(1, max(2, texts), size=chosen.shape)) % texts
    read = np.where(chance < HIDDEN, vocabulary - 1, np.where(chance < HIDDEN + EXCHANGED, others, original))
    np.put_along_axis(inputs, chosen, read, axis=1)


# Dividing examples so that no text stands in two splits: by a number drawn from each text itself, not from its place.
#
# The same texts are therefore divided the same way whatever the order of the file, and most keep their split when
# others
# are added.


SPLITS = ("train", "validation", "test")
FEWEST = 4
"""A class of fewer texts is learned from only: two to learn, one to validate and one to test come first."""


def plain(text: str) -> str:
    """What texts that are the same but for case and white space have in common.

    >>> plain(" So  IT is")
    'so it is'
    """
    return " ".join(text.split()).casefold()


def drawn(key: str, purpose: str) -> int:
    """A number drawn from a text, another one for each purpose."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8, person=purpose.encode()).digest())


def in_drawn_order(keys: Iterable[str], purpose: str) -> list[str]:
    """Keys in an order that has nothing to do with the one in which they came."""
    return sorted(keys, key=lambda key: (drawn(key, purpose), key))


def divide_groups(sizes: Mapping[str, int], strata: Mapping[str, str], share: float) -> dict[str, str]:
    """Say of each group of equal texts which split it belongs to: `share` of each stratum's texts is held out, twice.

    A group that is larger than what is still wanted is learned from.

    >>> split = divide_groups({"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}, dict.fromkeys("abcde", "x"), 0.2)
    >>> sorted(split.values())
    ['test', 'train', 'train', 'train', 'validation']
    """
    wanted = _wanted(sizes, strata, share)
    room = {split: dict(wanted) for split in ("test", "validation")}
    return {key: _split(key, strata[key], sizes[key], room) for key in in_drawn_order(sizes, "split")}


def _wanted(sizes: Mapping[str, int], strata: Mapping[str, str], share: float) -> dict[str, int]:
    totals: dict[str, int] = defaultdict(int)
    for key, size in sizes.items():
        totals[strata[key]] += size
    return {stratum: max(1, round(share * total)) if total >= FEWEST else 0 for stratum, total in totals.items()}


def _split(key: str, stratum: str, size: int, room: Mapping[str, dict[str, int]]) -> str:
    for split, left in room.items():
        if size <= left[stratum]:
            left[stratum] -= size
            return split
    return "train"


def nested(labels: Sequence[str]) -> list[int]:
    """Order examples so that the first of them are few of each label, in its share: the first 100 are of the first 300.

    >>> nested(["a", "a", "a", "a", "b", "b"])
    [0, 4, 1, 2, 5, 3]
    """
    counts: dict[str, int] = defaultdict(int)
    ranks: list[int] = []
    for label in labels:
        ranks.append(counts[label])
        counts[label] += 1
    due = [rank and (rank + 0.5) / counts[label] for rank, label in zip(ranks, labels, strict=True)]
    return sorted(range(len(labels)), key=lambda place: (due[place], labels[place], place))
