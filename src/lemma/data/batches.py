"""Rows of tokens, and which of them make up each batch: pure functions of the seed and the step.

Being pure, an order needs no state to be saved: a resumed run asks for the next step and gets what it would have got.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from jaxtyping import Bool, Int64, Integer

from lemma.errors import DataError
from lemma.spec.models import SPECIAL_TOKENS

PAD = -1
"""Padding, always at the right end of a row; among targets, what is not to be predicted."""
POOL_BATCHES = 50
"""Batches' worth of examples that are sorted by length together: alike enough to pad little, mixed enough to learn."""

Indices = Sequence[int] | Int64[np.ndarray, " examples"]
Offsets = Int64[np.ndarray, " batch"]


class ExampleSet(Protocol):
    """Data that comes as separate examples: trees, pairs of texts, texts with labels."""

    @property
    def lengths(self) -> Int64[np.ndarray, " examples"]:
        """The tokens of each example."""
        ...

    def __len__(self) -> int:
        """The tokens of all examples together."""
        ...

    def batch(self, indices: Any, /) -> tuple[Int64[np.ndarray, "batch ..."], Int64[np.ndarray, "batch ..."]]:
        """Some examples as a batch: inputs and targets."""
        ...


@dataclass(frozen=True)
class TokenRows:
    """Rows of tokens of any length, one after the other: row i owns the tokens bounds[i] to bounds[i + 1]."""

    tokens: Integer[np.ndarray, " tokens"]
    bounds: Int64[np.ndarray, " rows_and_one"]

    @cached_property
    def lengths(self) -> Int64[np.ndarray, " rows"]:
        """The tokens of each row."""
        return np.diff(self.bounds)

    def __len__(self) -> int:
        return len(self.tokens)

    def pad(self, indices: Indices) -> Int64[np.ndarray, "rows longest"]:
        """Some rows as a matrix, the shorter ones padded with −1.

        >>> TokenRows(np.array([5, 6, 7]), np.array([0, 1, 3])).padded([1, 0])
        array([[ 6,  7],
               [ 5, -1]])
        """
        lengths = self.lengths[np.asarray(indices, dtype=np.int64)]
        padded = np.full((len(lengths), int(lengths.max(initial=0))), PAD, dtype=np.int64)
        padded[np.arange(padded.shape[1]) < lengths[:, None]] = self.select(indices).tokens
        return padded

    def select(self, indices: Indices) -> "TokenRows":
        """Some rows in this order."""
        rows = np.asarray(indices, dtype=np.int64)
        bounds = np.concatenate([[0], np.cumsum(self.lengths[rows])])
        return TokenRows(gather(self.tokens, self.bounds, rows), bounds)

    def truncate(self, length: int) -> "TokenRows":
        """The first tokens of each row, at most `length`.

        >>> TokenRows(np.array([5, 6, 7]), np.array([0, 1, 3])).truncate(1).tokens
        array([5, 6])
        """
        kept = np.minimum(self.lengths, length)
        bounds = np.concatenate([[0], np.cumsum(kept)])
        places = np.arange(bounds[-1]) + np.repeat(self.bounds[:-1] - bounds[:-1], kept)
        return TokenRows(self.tokens[places], bounds)

    def fill_empty(self, token: int) -> "TokenRows":
        """The rows, with one token in each that had none.

        >>> TokenRows(np.array([5, 6]), np.array([0, 0, 2])).fill_empty(3).tokens
        array([3, 5, 6])
        """
        empty = self.lengths == 0
        tokens = np.insert(self.tokens, self.bounds[:-1][empty], token)
        return TokenRows(tokens, self.bounds + np.concatenate([[0], np.cumsum(empty)]))

    def add_affixes(self, prefix: Sequence[int], suffix: Sequence[int]) -> "TokenRows":
        """The rows with some tokens put before and after each of them.

        >>> TokenRows(np.array([5, 6, 7]), np.array([0, 1, 3])).surround([1], [2]).padded([0, 1])
        array([[ 1,  5,  2, -1],
               [ 1,  6,  7,  2]])
        """
        count, more = len(self.lengths), len(prefix) + len(suffix)
        bounds = self.bounds + more * np.arange(count + 1)
        tokens = np.empty(bounds[-1], dtype=self.tokens.dtype)
        inner = np.ones(len(tokens), dtype=bool)
        for place, token in enumerate(prefix):
            tokens[bounds[:-1] + place], inner[bounds[:-1] + place] = token, False
        for place, token in enumerate(reversed(suffix), start=1):
            tokens[bounds[1:] - place], inner[bounds[1:] - place] = token, False
        tokens[inner] = self.tokens
        return TokenRows(tokens, bounds)


def gather(values: Integer[np.ndarray, " tokens"], bounds: Int64[np.ndarray, " rows_and_one"], rows: Any) -> np.ndarray:
    """Join the slices values[bounds[row]:bounds[row + 1]] of all rows.

    >>> gather(np.array([10, 20, 21, 30]), np.array([0, 1, 3, 4]), np.array([1, 0, 1]))
    array([20, 21, 10, 20, 21])
    """
    starts = bounds[rows]
    lengths = bounds[rows + 1] - starts
    ends = np.cumsum(lengths)
    shifts = np.repeat(starts - (ends - lengths), lengths)
    return values[np.arange(len(shifts)) + shifts]


@dataclass(frozen=True)
class BucketedExamples:
    """Every epoch all examples in a new order, cut into batches of about equal length.

    What an epoch leaves over, less than a batch, differs every time. Fewer examples than a batch are repeated until the
    batch is full.
    """

    lengths: Int64[np.ndarray, " examples"]
    batch: int
    seed: int
    _orders: dict[int, np.ndarray] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The order of the latest epoch that was asked for."""

    @property
    def steps(self) -> int:
        """Steps per epoch."""
        return max(1, len(self.lengths) // self.batch)

    def examples(self, step: int) -> Int64[np.ndarray, " batch"]:
        """The examples of a step.

        >>> sorted(BucketedExamples(np.array([3, 9, 4, 8]), batch=4, seed=1).examples(0).tolist())
        [0, 1, 2, 3]
        """
        epoch, place = divmod(step, self.steps)
        if epoch not in self._orders:
            self._orders.clear()
            self._orders[epoch] = self._order(epoch)
        return self._orders[epoch][place]

    def _order(self, epoch: int) -> Int64[np.ndarray, "steps batch"]:
        random = np.random.default_rng([self.seed, epoch])
        wanted = self.steps * self.batch
        shuffled = np.resize(random.permutation(len(self.lengths)), wanted)
        pools = [
            shuffled[start : start + POOL_BATCHES * self.batch] for start in range(0, wanted, POOL_BATCHES * self.batch)
        ]
        ordered = np.concatenate([pool[np.argsort(self.lengths[pool], kind="stable")] for pool in pools])
        return random.permutation(ordered.reshape(self.steps, self.batch))


# Windows of a running text: `sequence_length` tokens to read and, one further on, as many to predict:
# tokens[offset : offset + sequence_length + 1].


@dataclass(frozen=True)
class RandomWindows:
    """Windows drawn again for every step, uniformly and independently; for models without a carried state."""

    length: int
    sequence_length: int
    batch: int
    seed: int

    def __post_init__(self) -> None:
        _check_length(self.length, self.sequence_length, 1)

    def offsets(self, step: int) -> Offsets:
        """Where the windows of a step start.

        >>> RandomWindows(length=1000, sequence_length=64, batch=3, seed=1).offsets(0).shape
        (3,)
        """
        return np.random.default_rng([self.seed, step]).integers(0, self.length - self.sequence_length, size=self.batch)


@dataclass(frozen=True)
class ContiguousStreams:
    """As many contiguous streams as the batch has rows, for models that carry their state from step to step.

    In an epoch each row reads its own share of the text from start to end. Each epoch shifts all shares by a random
    phase, so that the text is not always cut at the same places; the tokens this leaves out differ every time.
    """

    length: int
    sequence_length: int
    batch: int
    seed: int

    def __post_init__(self) -> None:
        _check_length(self.length, self.sequence_length, self.batch)

    @property
    def steps(self) -> int:
        """Steps per epoch: as many as fit with room for a phase of one window, but at least one."""
        return max((self.length - self.sequence_length) // (self.sequence_length * self.batch), 1)

    def offsets(self, step: int) -> Offsets:
        """Where the windows of a step start: within an epoch, each where that of the step before ended.

        >>> streams = Streams(length=1000, sequence_length=10, batch=2, seed=1)
        >>> streams.offsets(1) - streams.offsets(0)
        array([10, 10])
        """
        epoch, place = divmod(step, self.steps)
        share = self.steps * self.sequence_length
        phase = np.random.default_rng([self.seed, epoch]).integers(0, self.length - share * self.batch)
        return phase + np.arange(self.batch) * share + place * self.sequence_length

    def starts_epoch(self, step: int) -> bool:
        """Whether the streams start again at this step, so that the state must be reset."""
        return step % self.steps == 0


def _check_length(length: int, sequence_length: int, rows: int) -> None:
    if length > sequence_length * rows:
        return
    together = f" with batch {rows}" if rows > 1 else ""
    smaller = max((length - 1) // rows, 0)
    step = f" or set sequence_length={smaller}" if smaller else ""
    step += f" or batch={(length - 1) // sequence_length}" if rows > 1 and length > sequence_length else ""
    raise DataError(
        f"the training text has {length:,} tokens; sequence_length {sequence_length}{together} needs at least "
        f"{sequence_length * rows + 1:,}. "
        f"Give more text{step}."
    )


# Windows of text in which some tokens are masked (problem E3). Of the tokens to predict 80 % are masked, 10 % replaced
# by others and 10 % left as they are (Devlin et al. 2019). A row is `<start>` A `<end>`, or, where the model is to say
# whether B follows A, `<start>` A `<end>` B `<end>`; the first target is then 1 if it does, else 0. Where nothing is
# to be predicted, the target is −1.

Objective = Literal["masked", "next-sentence", "both"]
Tokens = Integer[np.ndarray, " tokens"]
Batch = tuple[Int64[np.ndarray, "batch context"], Int64[np.ndarray, "batch context"]]
MASK_FRACTION, REPLACE_FRACTION = 0.8, 0.1
EVALUATION_ROWS = 64
"""Rows that are evaluated together: fixed, since what is masked in them is drawn together."""


@dataclass(frozen=True)
class MaskedWindows:
    """The batches of an encoder on plain text: windows at random places, drawn again for every step."""

    length: int
    """Tokens of the text."""
    context: int
    """Places of a row, special tokens included."""
    batch_size: int
    seed: int
    rate: float
    """The share of each row's tokens that is to be predicted, at least one: as many in every row."""
    objective: Objective
    vocabulary: int
    """Tokens and special tokens; the special tokens are the last, unless they are given."""
    custom_special_ids: tuple[int, int, int] | None = None
    """The ids of <start>, <end> and <mask> in a vocabulary made elsewhere."""

    def __post_init__(self) -> None:
        least = 5 if self.is_paired else 3
        if self.context < least:
            raise DataError(
                f"context = {self.context} leaves no token next to the special tokens. Set context={least} or more."
            )
        if self.length < self.text_tokens:
            raise DataError(
                f"the text has {self.length:,} tokens; context {self.context} needs at least {self.text_tokens:,}. "
                "Give more text or a smaller context."
            )

    @property
    def special_ids(self) -> tuple[int, int, int]:
        """The ids of <start>, <end> and <mask>."""
        return self.custom_special_ids or (self.vocabulary - 3, self.vocabulary - 2, self.vocabulary - 1)

    @property
    def is_paired(self) -> bool:
        """Whether rows consist of two segments."""
        return self.objective != "masked"

    @property
    def text_tokens(self) -> int:
        """Tokens of the text in a row."""
        return self.context - (3 if self.is_paired else 2)

    @property
    def first_segment(self) -> int:
        """Tokens of the segment A; where there is a B, it is as long or one shorter."""
        return (self.text_tokens + 1) // 2 if self.is_paired else self.text_tokens

    @property
    def num_predicted(self) -> int:
        """Tokens to predict, as many in every row."""
        return 0 if self.objective == "next-sentence" else max(1, round(self.rate * self.text_tokens))

    def batch(self, tokens: Tokens, step: int) -> Batch:
        """The inputs and the targets of a step."""
        random = np.random.default_rng([self.seed, step])
        offsets = random.integers(0, self.length - self.text_tokens + 1, size=self.batch_size)
        follows = random.permutation(np.arange(self.batch_size) % 2 == random.integers(2))
        return self.build_rows(tokens, offsets, follows, random)

    def evaluation_batches(self, tokens: Tokens) -> Iterator[Batch]:
        """Go through a text once, window after window, some rows at a time; always with the same tokens masked."""
        starts = np.arange(0, self.length - self.text_tokens + 1, self.text_tokens)
        for number, begin in enumerate(range(0, len(starts), EVALUATION_ROWS)):
            offsets = starts[begin : begin + EVALUATION_ROWS]
            random = np.random.default_rng([self.seed, number])
            yield self.build_rows(tokens, offsets, np.arange(len(offsets)) % 2 == 0, random)

    def build_rows(
        self, tokens: Tokens, offsets: Offsets, is_next: Bool[np.ndarray, " batch"], rng: np.random.Generator
    ) -> Batch:
        """The rows whose segments A begin at `offsets`; of those that are not followed, B is drawn elsewhere."""
        start, end = (np.full((len(offsets), 1), mark) for mark in self.special_ids[:2])
        parts = [start, tokens[offsets[:, None] + np.arange(self.first_segment)].astype(np.int64), end]
        if self.is_paired:
            following = offsets + self.first_segment
            elsewhere = rng.integers(0, self.length - (self.text_tokens - self.first_segment), size=len(following))
            elsewhere += elsewhere >= following
            second = np.where(is_next, following, elsewhere)[:, None] + np.arange(self.text_tokens - self.first_segment)
            parts += [tokens[second].astype(np.int64), end]
        inputs = np.concatenate(parts, axis=1)
        targets = np.full_like(inputs, PAD)
        if self.num_predicted:  # in every row as many, never special tokens, which are at the same places in all rows
            texts = self.vocabulary - (0 if self.custom_special_ids else len(SPECIAL_TOKENS))
            inside = np.arange(1, inputs.shape[1] - 1)
            places = inside[inside != self.first_segment + 1]
            chosen = places[rng.random((len(inputs), len(places))).argsort(axis=1)[:, : self.num_predicted]]
            original = np.take_along_axis(inputs, chosen, axis=1)
            np.put_along_axis(targets, chosen, original, axis=1)
            chance = rng.random(chosen.shape)
            others = (original + rng.integers(1, max(2, texts), size=chosen.shape)) % texts
            kept = np.where(chance < MASK_FRACTION + REPLACE_FRACTION, others, original)
            np.put_along_axis(inputs, chosen, np.where(chance < MASK_FRACTION, self.special_ids[2], kept), axis=1)
        if self.is_paired:
            targets[:, 0] = is_next
        return inputs, targets


def batch_by_length(lengths: Int64[np.ndarray, " examples"], max_tokens: int) -> Iterator[Int64[np.ndarray, " batch"]]:
    """Yield the indices of examples in batches of similar length, each of about `max_tokens` tokens with its padding.

    >>> [batch.tolist() for batch in batch_by_length(np.array([5, 1, 9, 2]), max_tokens=10)]
    [[1, 3], [0], [2]]
    """
    order = np.argsort(lengths, kind="stable")
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end + 1 - start) * lengths[order[end]] > max(max_tokens, lengths[order[end]]):
            yield order[start:end]
            start = end
