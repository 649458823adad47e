"""Windows of text of which some tokens are hidden, and pairs of stretches that follow each other or do not (E3).

Of the tokens to predict 80 % are hidden, 10 % exchanged for others and 10 % left as they are (Devlin et al. 2019). All
is a pure function of the seed and the step. A row is `<start>` A `<end>`, or, where the model is to say whether B
follows A, `<start>` A `<end>` B `<end>`; the first target is then 1 if it does, else 0. Where nothing is asked, the
target is −1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int64, Integer

from lemma.data.batches import Offsets
from lemma.data.examples import NOTHING
from lemma.errors import DataError
from lemma.spec import MARKS

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
