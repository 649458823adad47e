"""Pairs of texts as they stand in a file, and how they are divided: one of those known by name, or one's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lemma.data.grouping import SPLITS, divide_groups, in_drawn_order, plain
from lemma.data.hashing import files_sum
from lemma.data.library import corpus_files
from lemma.data.paired import PAIRED
from lemma.data.progress import Progress
from lemma.data.reading import exists
from lemma.data.tables import Column, Table, read_table
from lemma.errors import DataError, unknown

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
