"""Pairs of texts as data: `prepare_pairs` for training, `read_pairs` for judging other pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Int64

from lemma.data.encoding import encode_texts, utf8_size
from lemma.data.examples import Indices, Rows
from lemma.data.learned import learned_tokenizer
from lemma.data.pair_table import Pair, PairTuple, divide_pairs, read_pair_table
from lemma.data.paired import PAIRED
from lemma.data.progress import Progress, counting
from lemma.data.tokenizer import Tokenizer
from lemma.errors import DataError, unknown
from lemma.spec import MARKS, PairsSpec

WHOLE = "pairs"
"""The one split of a file that is judged."""


@dataclass(frozen=True)
class Pairs:
    """Pairs as tokens: sources that end with `<end>`, targets between `<start>` and `<end>`."""

    sources: Rows
    targets: Rows

    @cached_property
    def lengths(self) -> Int64[np.ndarray, "pairs"]:
        """The tokens of each pair, both sides together, marks included."""
        return self.sources.lengths + self.targets.lengths

    def __len__(self) -> int:
        return len(self.sources) + len(self.targets)

    def batch(
        self, indices: Indices
    ) -> tuple[Int64[np.ndarray, "batch longest"], Int64[np.ndarray, "batch longest_target"]]:
        """Some pairs side by side, filled up with −1."""
        return self.sources.beside(indices), self.targets.beside(indices)


@dataclass(frozen=True)
class PairsData:
    """Pairs of texts ready for training or judging."""

    tokenizer: Tokenizer
    hash: str
    """The SHA-256 of the files."""
    about: str
    """What they are, in words."""
    skipped: tuple[str, ...]
    """What was taken and what left out, in words."""
    by_split: Mapping[str, PairTuple] = field(repr=False)
    tokens_by_split: Mapping[str, Pairs] = field(repr=False)

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self.by_split)

    def pairs(self, split: str) -> PairTuple:
        """All pairs of a split, long ones too."""
        return self.by_split[self._known(split)]

    def references(self, split: str) -> dict[str, tuple[str, ...]]:
        """Each source of a split once, with all its targets: what a translation of it may be compared with."""
        found: dict[str, list[str]] = {}
        for source, target in self.pairs(split):
            found.setdefault(source, []).append(target)
        return {source: tuple(targets) for source, targets in found.items()}

    def tokens(self, split: str) -> Pairs:
        """The pairs of a split as tokens, without those that are too long for the model."""
        return self.tokens_by_split[self._known(split)]

    def sizes(self) -> dict[str, int]:
        """What a model has to know of the data's size."""
        return {"vocabulary": self.tokenizer.vocabulary + len(MARKS)}

    def _known(self, split: str) -> str:
        if split not in self.by_split:
            raise DataError(f"there is no split '{split}' in {self.about}. It has: {', '.join(self.splits)}.")
        return split


def prepare_pairs(
    spec: PairsSpec, *, length: int, tokenizer: Tokenizer | None = None, progress: Progress | None = None
) -> PairsData:
    """Read pairs for training; those of more than `length` tokens on a side, its mark included, are not learned.

    One tokenizer is learned from both sides of the training pairs unless one is given.
    """
    read = read_pair_table(spec.pairs, spec.source, spec.target, progress)
    splits = divide_pairs(read, spec.held_out)
    tokenizer = tokenizer or learned_tokenizer(spec.tokenizer, _both_sides(splits["train"]), progress)
    encoded, told = _encoded(splits, tokenizer, length, progress)
    if not len(encoded["train"]):
        raise DataError(
            f"{read.about}: none of the {len(splits['train']):,} training pairs fits into {length} tokens a side. "
            "Set a larger context."
        )
    return PairsData(tokenizer, read.hash, read.about, (*read.said, *told), splits, encoded)


def read_pairs(
    name: str,
    *,
    tokenizer: Tokenizer,
    length: int,
    source: str | None = None,
    target: str | None = None,
    held_out: float = PairsSpec.model_fields["held_out"].default,
    split: str | None = None,
    progress: Progress | None = None,
) -> PairsData:
    """Read pairs to judge, as one split: of those known by name `split` or else their test, of a file all."""
    read = read_pair_table(name, source, target, progress)
    splits, about = {WHOLE: read.pairs}, read.about
    if name in PAIRED or split is not None:
        chosen, divided = split or "test", divide_pairs(read, held_out)
        if chosen not in divided:
            raise DataError(unknown("split", chosen, divided))
        splits, about = {chosen: divided[chosen]}, f"{read.about} ({chosen})"
    encoded, told = _encoded(splits, tokenizer, length, progress)
    return PairsData(tokenizer, read.hash, about, (*read.said, *told), splits, encoded)


def _both_sides(pairs: Sequence[Pair]) -> list[str]:
    return [text for pair in pairs for text in pair]


def _encoded(
    splits: Mapping[str, PairTuple], tokenizer: Tokenizer, length: int, progress: Progress | None
) -> tuple[dict[str, Pairs], list[str]]:
    """The splits as tokens, without pairs that are too long, and how many these are."""
    total = sum(utf8_size(text) for pairs in splits.values() for text in _both_sides(pairs))
    advance = counting(progress, "tokenising", total)
    start, end = tokenizer.vocabulary, tokenizer.vocabulary + 1
    encoded: dict[str, Pairs] = {}
    told: list[str] = []
    missing = 0
    for split, pairs in splits.items():
        sources, lacking = encode_texts(tokenizer, [pair.source for pair in pairs], advance)
        targets, lacked = encode_texts(tokenizer, [pair.target for pair in pairs], advance)
        fits = np.flatnonzero(np.maximum(sources.lengths, targets.lengths) + 1 <= length)
        encoded[split] = Pairs(sources.chosen(fits).marked([], [end]), targets.chosen(fits).marked([start], [end]))
        missing += lacking + lacked
        if long := len(pairs) - len(fits):
            told.append(f"{split}: {long:,} of {len(pairs):,} pairs are longer than {length} tokens on a side")
    return encoded, [
        *told,
        *([f"{missing:,} characters that the tokenizer does not know were left out"] * bool(missing)),
    ]
