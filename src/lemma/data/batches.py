"""Rows of tokens, and which of them make up each batch: pure functions of the seed and the step.

Since they are pure, no state of the order is saved: a resumed run asks for the next step and gets the same batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from jaxtyping import Bool, Int64, Integer

from lemma.errors import DataError
from lemma.spec.models import SPECIAL_TOKENS

PAD = -1  # padding at the right end of a row; among targets, what is not to be predicted
POOL_BATCHES = 50  # batches' worth of examples sorted by length together: similar enough to pad little, mixed enough

Indices = Sequence[int] | Int64[np.ndarray, " examples"]
Offsets = Int64[np.ndarray, " batch"]


class ExampleSet(Protocol):
    """Data that comes as separate examples: trees, pairs of texts, texts with labels."""

    @property
    def lengths(self) -> Int64[np.ndarray, " examples"]:
        """Number of tokens of each example, by its index."""
        ...

    def __len__(self) -> int:
        """Return the number of tokens of all examples together."""
        ...

    def batch(self, indices: Any, /) -> tuple[Int64[np.ndarray, "batch ..."], Int64[np.ndarray, "batch ..."]]:
        """Return the inputs and the targets of the examples with these indices, padded to equal length."""
        ...


@dataclass(frozen=True)
class TokenRows:
    """Rows of tokens of any length, one after the other: row i owns the tokens bounds[i] to bounds[i + 1]."""

    tokens: Integer[np.ndarray, " tokens"]
    bounds: Int64[np.ndarray, " rows_and_one"]

    @cached_property
    def lengths(self) -> Int64[np.ndarray, " rows"]:
        """Number of tokens of each row."""
        return np.diff(self.bounds)

    def __len__(self) -> int:
        """Return the number of tokens of all rows together."""
        return len(self.tokens)

    def pad(self, indices: Indices) -> Int64[np.ndarray, "rows longest"]:
        """Return the rows with these indices as a matrix of token ids; shorter rows end with −1.

        >>> TokenRows(np.array([5, 6, 7]), np.array([0, 1, 3])).pad([1, 0])
        array([[ 6,  7],
               [ 5, -1]])
        """
        lengths = self.lengths[np.asarray(indices, dtype=np.int64)]
        matrix = np.full((len(lengths), int(lengths.max(initial=0))), PAD, dtype=np.int64)
        matrix[np.arange(matrix.shape[1]) < lengths[:, None]] = self.select(indices).tokens
        return matrix

    def select(self, indices: Indices) -> "TokenRows":
        """Return a copy of the rows with these indices, in the order of the indices."""
        rows = np.asarray(indices, dtype=np.int64)
        bounds = np.concatenate([[0], np.cumsum(self.lengths[rows])])
        return TokenRows(gather(self.tokens, self.bounds, rows), bounds)

    def truncate(self, length: int) -> "TokenRows":
        """Return a copy of all rows that ends each row after its first `length` tokens.

        >>> TokenRows(np.array([5, 6, 7]), np.array([0, 1, 3])).truncate(1).tokens
        array([5, 6])
        """
        lengths = np.minimum(self.lengths, length)
        bounds = np.concatenate([[0], np.cumsum(lengths)])
        indices = np.arange(bounds[-1]) + np.repeat(self.bounds[:-1] - bounds[:-1], lengths)
        return TokenRows(self.tokens[indices], bounds)

    def fill_empty(self, token: int) -> "TokenRows":
        """Return a copy of all rows in which each row without tokens holds the single id `token`.

        >>> TokenRows(np.array([5, 6]), np.array([0, 0, 2])).fill_empty(3).tokens
        array([3, 5, 6])
        """
        is_empty = self.lengths == 0
        tokens = np.insert(self.tokens, self.bounds[:-1][is_empty], token)
        return TokenRows(tokens, self.bounds + np.concatenate([[0], np.cumsum(is_empty)]))

    def add_affixes(self, prefix: Sequence[int], suffix: Sequence[int]) -> "TokenRows":
        """Return a copy of all rows with the token ids `prefix` before and `suffix` after each row.

        >>> TokenRows(np.array([5, 6, 7]), np.array([0, 1, 3])).add_affixes([1], [2]).pad([0, 1])
        array([[ 1,  5,  2, -1],
               [ 1,  6,  7,  2]])
        """
        bounds = self.bounds + (len(prefix) + len(suffix)) * np.arange(len(self.lengths) + 1)
        tokens = np.empty(bounds[-1], dtype=self.tokens.dtype)
        is_inner = np.ones(len(tokens), dtype=bool)
        for shift, token in enumerate(prefix):
            tokens[bounds[:-1] + shift], is_inner[bounds[:-1] + shift] = token, False
        for shift, token in enumerate(reversed(suffix), start=1):
            tokens[bounds[1:] - shift], is_inner[bounds[1:] - shift] = token, False
        tokens[is_inner] = self.tokens
        return TokenRows(tokens, bounds)


def gather(values: Integer[np.ndarray, " tokens"], bounds: Int64[np.ndarray, " rows_and_one"], rows: Any) -> np.ndarray:
    """Concatenate the slices values[bounds[row]:bounds[row + 1]], one for each row number in `rows`, in that order.

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
    """Assignment of examples to batches of similar length, shuffled again for every epoch.

    What an epoch leaves over, less than a batch, differs every time. Fewer examples than a batch are repeated until the
    batch is full.
    """

    lengths: Int64[np.ndarray, " examples"]
    batch: int
    seed: int
    _orders: dict[int, np.ndarray] = field(default_factory=dict, init=False, repr=False, compare=False)  # latest epoch

    @property
    def steps(self) -> int:
        """Number of training steps per epoch, at least one."""
        return max(1, len(self.lengths) // self.batch)

    def examples(self, step: int) -> Int64[np.ndarray, " batch"]:
        """Return the indices of the examples in the batch of training step `step`, counted from 0.

        >>> sorted(BucketedExamples(np.array([3, 9, 4, 8]), batch=4, seed=1).examples(0).tolist())
        [0, 1, 2, 3]
        """
        epoch, index = divmod(step, self.steps)
        if epoch not in self._orders:
            rng = np.random.default_rng([self.seed, epoch])
            total, pool_size = self.steps * self.batch, POOL_BATCHES * self.batch
            shuffled = np.resize(rng.permutation(len(self.lengths)), total)
            pools = [shuffled[start : start + pool_size] for start in range(0, total, pool_size)]
            ordered = np.concatenate([pool[np.argsort(self.lengths[pool], kind="stable")] for pool in pools])
            self._orders.clear()
            self._orders[epoch] = rng.permutation(ordered.reshape(self.steps, self.batch))
        return self._orders[epoch][index]


# Windows of a running text: `sequence_length` tokens to read and, shifted by one, as many to predict:
# tokens[offset : offset + sequence_length + 1].


@dataclass(frozen=True)
class RandomWindows:
    """Training windows of a text, drawn uniformly for every step; for models that carry no state between steps."""

    length: int  # tokens of the text
    sequence_length: int
    batch: int
    seed: int

    def __post_init__(self) -> None:
        _check_length(self.length, self.sequence_length, 1)

    def offsets(self, step: int) -> Offsets:
        """Return the offset in the text, in tokens, of each window in the batch of a training step.

        >>> RandomWindows(length=1000, sequence_length=64, batch=3, seed=1).offsets(0).shape
        (3,)
        """
        return np.random.default_rng([self.seed, step]).integers(0, self.length - self.sequence_length, size=self.batch)


@dataclass(frozen=True)
class ContiguousStreams:
    """Training windows of which each batch row continues its last one, for models that carry state between steps.

    In an epoch each row reads its own part of the text from start to end. Each epoch shifts all parts by a random
    phase, so that the text is not always cut at the same positions; the tokens this leaves out differ every time.
    """

    length: int  # tokens of the text
    sequence_length: int
    batch: int
    seed: int

    def __post_init__(self) -> None:
        _check_length(self.length, self.sequence_length, self.batch)

    @property
    def steps(self) -> int:
        """Number of training steps per epoch, at least one; at least a window is left over for the random phase."""
        return max((self.length - self.sequence_length) // (self.sequence_length * self.batch), 1)

    def offsets(self, step: int) -> Offsets:
        """Return each row's offset in tokens at a training step; within an epoch it is where the last window ended.

        >>> streams = ContiguousStreams(length=1000, sequence_length=10, batch=2, seed=1)
        >>> streams.offsets(1) - streams.offsets(0)
        array([10, 10])
        """
        epoch, index = divmod(step, self.steps)
        part = self.steps * self.sequence_length
        phase = np.random.default_rng([self.seed, epoch]).integers(0, self.length - part * self.batch)
        return phase + np.arange(self.batch) * part + index * self.sequence_length

    def starts_epoch(self, step: int) -> bool:
        """Return whether an epoch begins at training step `step`, so that the recurrent state must be reset."""
        return step % self.steps == 0


def _check_length(length: int, sequence_length: int, rows: int) -> None:
    """Raise a DataError if a text of `length` tokens is too short for `rows` windows and one more token."""
    if length > sequence_length * rows:
        return
    batch = f" with batch {rows}" if rows > 1 else ""
    smaller = max((length - 1) // rows, 0)
    step = f" or set sequence_length={smaller}" if smaller else ""
    step += f" or batch={(length - 1) // sequence_length}" if rows > 1 and length > sequence_length else ""
    raise DataError(
        f"the training text has {length:,} tokens; sequence_length {sequence_length}{batch} needs at least "
        f"{sequence_length * rows + 1:,}. Give more text{step}."
    )


# Windows of text in which some tokens are masked (problem E3). Of the tokens to predict 80 % are masked, 10 % replaced
# by others and 10 % left as they are (Devlin et al. 2019). A row is `<start>` A `<end>`, or, if the model predicts
# whether B follows A, `<start>` A `<end>` B `<end>`; the first target is then 1 if it does, else 0. Where nothing is
# to be predicted, the target is −1.

Objective = Literal["masked", "next-sentence", "both"]
Tokens = Integer[np.ndarray, " tokens"]
Batch = tuple[Int64[np.ndarray, "batch context"], Int64[np.ndarray, "batch context"]]
MASK_FRACTION, REPLACE_FRACTION = 0.8, 0.1
EVALUATION_ROWS = 64  # fixed, since the masks of rows that are evaluated together are drawn together


@dataclass(frozen=True)
class MaskedWindows:
    """Batches for masked-token and next-sentence prediction: windows of running text with random tokens masked."""

    length: int  # tokens of the text
    context: int  # positions of a row, special tokens included
    batch_size: int
    seed: int
    rate: float  # fraction of each row's tokens to predict; the same number in every row, at least one
    objective: Objective
    vocabulary: int  # tokens and special tokens, which come last unless `custom_special_ids` are set
    custom_special_ids: tuple[int, int, int] | None = None  # of <start>, <end> and <mask>

    def __post_init__(self) -> None:
        least = 5 if self.is_paired else 3
        if self.context < least:
            raise DataError(
                f"context = {self.context} leaves no token next to the special tokens. Set context={least} or more."
            )
        if self.length < self.num_text_tokens:
            raise DataError(
                f"the text has {self.length:,} tokens; context {self.context} needs at least {self.num_text_tokens:,}. "
                "Give more text or a smaller context."
            )

    @property
    def special_ids(self) -> tuple[int, int, int]:
        """The ids of <start>, <end> and <mask>."""
        return self.custom_special_ids or (self.vocabulary - 3, self.vocabulary - 2, self.vocabulary - 1)

    @property
    def is_paired(self) -> bool:
        """True if each row holds two segments of text, of which the second may follow the first in the text."""
        return self.objective != "masked"

    @property
    def num_text_tokens(self) -> int:
        """Number of tokens per row, special tokens excluded."""
        return self.context - (3 if self.is_paired else 2)

    @property
    def first_segment_length(self) -> int:
        """Number of tokens in the first segment of a row; the second one, if any, has as many or one less."""
        return (self.num_text_tokens + 1) // 2 if self.is_paired else self.num_text_tokens

    @property
    def num_predicted(self) -> int:
        """Number of tokens to predict in every row."""
        return 0 if self.objective == "next-sentence" else max(1, round(self.rate * self.num_text_tokens))

    def batch(self, tokens: Tokens, step: int) -> Batch:
        """Return the inputs and targets (−1: not predicted) of a training step, drawn from the text's token ids."""
        rng = np.random.default_rng([self.seed, step])
        offsets = rng.integers(0, self.length - self.num_text_tokens + 1, size=self.batch_size)
        is_next = rng.permutation(np.arange(self.batch_size) % 2 == rng.integers(2))
        return self.build_rows(tokens, offsets, is_next, rng)

    def evaluation_batches(self, tokens: Tokens) -> Iterator[Batch]:
        """Yield (inputs, targets) that cover a text from start to end; the same tokens are masked each time."""
        starts = np.arange(0, self.length - self.num_text_tokens + 1, self.num_text_tokens)
        for number, row in enumerate(range(0, len(starts), EVALUATION_ROWS)):
            offsets = starts[row : row + EVALUATION_ROWS]
            rng = np.random.default_rng([self.seed, number])
            yield self.build_rows(tokens, offsets, np.arange(len(offsets)) % 2 == 0, rng)

    def build_rows(
        self, tokens: Tokens, offsets: Offsets, is_next: Bool[np.ndarray, " batch"], rng: np.random.Generator
    ) -> Batch:
        """Build the inputs and the targets of one batch, with masks drawn from `rng`.

        Segment A of a row begins at its offset in `tokens`. In paired rows segment B is the text that follows A if
        `is_next`, else text from elsewhere.
        """
        start, end = (np.full((len(offsets), 1), token) for token in self.special_ids[:2])
        parts = [start, tokens[offsets[:, None] + np.arange(self.first_segment_length)].astype(np.int64), end]
        if self.is_paired:
            length = self.num_text_tokens - self.first_segment_length
            following = offsets + self.first_segment_length
            random = rng.integers(0, self.length - length, size=len(following))
            random += random >= following
            second = np.where(is_next, following, random)[:, None] + np.arange(length)
            parts += [tokens[second].astype(np.int64), end]
        inputs = np.concatenate(parts, axis=1)
        targets = np.full_like(inputs, PAD)
        if self.num_predicted:
            self._mask_tokens(inputs, targets, rng)
        if self.is_paired:
            targets[:, 0] = is_next
        return inputs, targets

    def _mask_tokens(self, inputs: np.ndarray, targets: np.ndarray, rng: np.random.Generator) -> None:
        """Draw the tokens to predict, mask or replace them in `inputs` and write the originals to `targets`, in place.

        In every row equally many are drawn, and special tokens are expected at the same positions.
        """
        text_vocabulary = self.vocabulary - (0 if self.custom_special_ids else len(SPECIAL_TOKENS))
        inner = np.arange(1, inputs.shape[1] - 1)
        positions = inner[inner != self.first_segment_length + 1]
        masked = positions[rng.random((len(inputs), len(positions))).argsort(axis=1)[:, : self.num_predicted]]
        original = np.take_along_axis(inputs, masked, axis=1)
        np.put_along_axis(targets, masked, original, axis=1)
        draw = rng.random(masked.shape)
        other = (original + rng.integers(1, max(2, text_vocabulary), size=masked.shape)) % text_vocabulary
        unmasked = np.where(draw < MASK_FRACTION + REPLACE_FRACTION, other, original)
        np.put_along_axis(inputs, masked, np.where(draw < MASK_FRACTION, self.special_ids[2], unmasked), axis=1)


def batch_by_length(lengths: Int64[np.ndarray, " examples"], max_tokens: int) -> Iterator[Int64[np.ndarray, " batch"]]:
    """Yield the indices of examples in batches of similar length, of about `max_tokens` tokens each, padding included.

    >>> [batch.tolist() for batch in batch_by_length(np.array([5, 1, 9, 2]), max_tokens=10)]
    [[1, 3], [0], [2]]
    """
    order = np.argsort(lengths, kind="stable")
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end + 1 - start) * lengths[order[end]] > max(max_tokens, lengths[order[end]]):
            yield order[start:end]
            start = end
