"""Pairs of texts: read, split, tokenized."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from lemma.data.batches import SPLITS, Indices, Rows, divide_groups, in_drawn_order, plain
from lemma.data.corpora import PAIRED, corpus_files
from lemma.data.files import Progress, counting, files_sum
from lemma.data.store import encode_texts, learned_tokenizer, utf8_size
from lemma.data.tables import Column, Table, read_table
from lemma.data.text import exists
from lemma.data.tokenizers import Tokenizer
from lemma.errors import DataError, unknown
from lemma.spec.data import PairsSpec
from lemma.spec.models import MARKS

# Pairs of texts as they stand in a file, and how they are divided: one of those known by name, or one's own.


SOURCES = frozenset({"sources", "src", "input", "question", "from"})
TARGETS = frozenset({"targets", "tgt", "trg", "output", "translation", "answer", "to"})
# fmt: off
LANGUAGES = {
    "en": "english", "de": "german", "fr": "french", "es": "spanish", "it": "italian",
    "pt": "portuguese", "nl": "dutch", "uk": "ukrainian", "ru": "russian", "pl": "polish",
    "zh": "chinese", "ja": "japanese", "ar": "arabic", "tr": "turkish",
}
"""Names that the columns of two languages often have."""
# fmt: on
FEWEST = 4
"""Different sources that pairs must have: two to learn, one to validate, one to test."""


class Pair(NamedTuple):
    """A text and what it is to become."""

    source: str
    target: str


PairTuple = tuple[Pair, ...]


@dataclass(frozen=True)
class PairTable:
    """Pairs in the order of their file."""

    pairs: PairTuple
    hash: str
    about: str
    said: tuple[str, ...]


def read_pair_table(
    name: str, source: str | None = None, target: str | None = None, progress: Progress | None = None
) -> PairTable:
    """Read pairs; a pair that stands in the file twice counts once."""
    files = corpus_files(PAIRED[name], progress) if name in PAIRED else [_own(name)]
    columns = [Column("source", source, SOURCES), Column("target", target, TARGETS)]
    table = read_table(files[0], columns, any_width=True, is_header=_looks)
    pairs = tuple(dict.fromkeys(map(Pair, table.cells["source"], table.cells["target"])))
    return PairTable(pairs, files_sum(files), name, tuple(_said(name, table, len(pairs))))


def divide_pairs(read: PairTable, held_out: float) -> dict[str, PairTuple]:
    """Divide pairs so that all pairs of a source are in one split."""
    groups: dict[str, list[Pair]] = {}
    for pair in read.pairs:
        groups.setdefault(plain(pair.source), []).append(pair)
    if len(groups) < FEWEST:
        raise DataError(
            f"{read.about}: {len(groups)} different sources are too few to learn from some and hold others out. "
            f"Give at least {FEWEST}."
        )
    split = divide_groups(dict.fromkeys(groups, 1), dict.fromkeys(groups, ""), held_out)
    splits: dict[str, list[Pair]] = {name: [] for name in SPLITS}
    for key in in_drawn_order(groups, "order"):
        splits[split[key]] += sorted(groups[key])
    return {name: tuple(pairs) for name, pairs in splits.items()}


def _said(name: str, table: Table, kept: int) -> list[str]:
    said = [] if name in PAIRED else [table.said]
    twice = len(table) - kept
    return [*said, *([f"{twice:,} pairs stand in the file more than once and count once"] if twice else [])]


def _looks(first: Sequence[str]) -> bool:
    """Whether a first row bears the names that such columns have, or those of two languages."""
    plainly = [cell.strip().casefold() for cell in first]
    named = {"source", "target"} & set(plainly)
    both = len(plainly) > 1 and plainly[0] in SOURCES and plainly[1] in TARGETS
    languages = len(set(plainly[:2])) == 2 and set(plainly[:2]) <= {*LANGUAGES, *LANGUAGES.values()}
    return bool(named) or both or languages


def _own(name: str) -> Path:
    path = Path(name)
    if not exists(path) and path.name == name and not path.suffix:
        raise DataError(unknown("pairs", name, PAIRED) + " Or give the path of a TSV, CSV or JSONL file.")
    return path


# Pairs of texts as data: `prepare_pairs` for training, `read_pairs` for judging other pairs.


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
