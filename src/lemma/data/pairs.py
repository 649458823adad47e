"""Pairs of texts: read, split, tokenized."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from lemma.data.batches import Indices, TokenRows
from lemma.data.corpora import PAIR_CORPORA, fetch_corpus, user_path
from lemma.data.splits import (
    Splits,
    assign_splits,
    combine_split_hashes,
    count_overlaps,
    normalise_text,
    select_split,
    split_files,
    split_groups,
)
from lemma.data.store import encode_texts, load_or_train_tokenizer, utf8_size
from lemma.data.tables import Column, read_table
from lemma.data.tokenizers import Tokenizer
from lemma.errors import DataError
from lemma.files import Progress, files_hash, progress_counter
from lemma.spec.data import PairsSpec
from lemma.spec.models import SPECIAL_TOKENS

SOURCE_ALIASES = frozenset({"sources", "src", "input", "question", "from"})
TARGET_ALIASES = frozenset({"targets", "tgt", "trg", "output", "translation", "answer", "to"})
# fmt: off
LANGUAGES = {
    "en": "english", "de": "german", "fr": "french", "es": "spanish", "it": "italian",
    "pt": "portuguese", "nl": "dutch", "uk": "ukrainian", "ru": "russian", "pl": "polish",
    "zh": "chinese", "ja": "japanese", "ar": "arabic", "tr": "turkish",
}
"""Names that the columns of two languages often have."""
# fmt: on
MIN_SOURCES = 4
"""Different sources that pairs must have: two to train, one to validate, one to test."""


class Pair(NamedTuple):
    """A text and what it is to become."""

    source: str
    target: str


@dataclass(frozen=True)
class TokenPairs:
    """Pairs as tokens: sources that end with `<end>`, targets between `<start>` and `<end>`."""

    sources: TokenRows
    targets: TokenRows
    pairs: tuple[Pair, ...] = field(default=(), repr=False)
    """All pairs as texts, also those that are too long for the model."""

    @property
    def lengths(self) -> Int64[np.ndarray, " pairs"]:
        """The tokens of each pair, both sides together, special tokens included."""
        return self.sources.lengths + self.targets.lengths

    def __len__(self) -> int:
        return len(self.sources) + len(self.targets)

    def batch(
        self, indices: Indices
    ) -> tuple[Int64[np.ndarray, "batch longest"], Int64[np.ndarray, "batch longest_target"]]:
        """Some pairs as two matrices, padded with −1."""
        return self.sources.pad(indices), self.targets.pad(indices)

    def references(self) -> dict[str, tuple[str, ...]]:
        """Each source once, with all its targets: what a translation of it may be compared with."""
        found: dict[str, list[str]] = {}
        for source, target in self.pairs:
            found.setdefault(source, []).append(target)
        return {source: tuple(targets) for source, targets in found.items()}


Pairs = tuple[Pair, ...]


@dataclass(frozen=True)
class PairFile:
    """Pairs in the order of their file."""

    pairs: Pairs
    hash: str
    description: str
    notes: tuple[str, ...]


def read_pair_file(
    name: str,
    source_column: str | None = None,
    target_column: str | None = None,
    progress: Progress | None = None,
    deduplicate: bool = True,
) -> PairFile:
    """Read pairs; with `once`, a pair that is in the file twice counts once."""
    named = name in PAIR_CORPORA
    files = (
        fetch_corpus(PAIR_CORPORA[name], progress) if named else [user_path("pairs", name, "a TSV, CSV or JSONL file")]
    )
    columns = [Column("source", source_column, SOURCE_ALIASES), Column("target", target_column, TARGET_ALIASES)]
    table = read_table(files[0], columns, any_width=True, is_header=_is_header)
    pairs = tuple(map(Pair, table.cells["source"], table.cells["target"]))
    pairs = tuple(dict.fromkeys(pairs)) if deduplicate else pairs
    notes = [] if named else [table.note]
    if twice := len(table) - len(pairs):
        notes.append(f"{twice:,} pairs are in the file more than once and count once")
    return PairFile(pairs, files_hash(files), name, tuple(notes))


def _is_header(first: Sequence[str]) -> bool:
    """Whether a first row holds the names that such columns have, or those of two languages."""
    cells = [cell.strip().casefold() for cell in first]
    both = len(cells) > 1 and cells[0] in SOURCE_ALIASES and cells[1] in TARGET_ALIASES
    languages = len(set(cells[:2])) == 2 and set(cells[:2]) <= {*LANGUAGES, *LANGUAGES.values()}
    return bool({"source", "target"} & set(cells)) or both or languages


def split_pairs(
    pair_file: PairFile, held_out: float, provided: Mapping[str, PairFile] | None = None
) -> dict[str, Pairs]:
    """Split pairs so that all pairs of a source are in one split; splits that are given are taken as they are."""
    groups: dict[str, list[Pair]] = {}
    for pair in pair_file.pairs:
        groups.setdefault(normalise_text(pair.source), []).append(pair)
    drawn = [split for split in ("test", "validation") if split not in (provided or {})]
    if drawn and len(groups) < MIN_SOURCES:
        raise DataError(
            f"{pair_file.description}: {len(groups)} different sources are too few to train on some and hold others out. "
            f"Give at least {MIN_SOURCES}."
        )
    assigned = assign_splits(dict.fromkeys(groups, 1), dict.fromkeys(groups, ""), held_out, drawn)
    splits = {split: tuple(pairs) for split, pairs in split_groups(groups, assigned).items()}
    return splits | {split: own.pairs for split, own in (provided or {}).items()}


def prepare_pairs(
    spec: PairsSpec,
    *,
    length: int,
    tokenizer: Tokenizer | None = None,
    evaluation: bool = False,
    split: str | None = None,
    progress: Progress | None = None,
) -> Splits[TokenPairs]:
    """Read pairs; those of more than `length` tokens on a side, its special token included, are not trained on.

    For `evaluation` as one split: of pairs known by name or with splits of their own `split` or else `test`, of a file
    all. One tokenizer is trained on both sides of the training pairs unless one is given. Pairs that are in a file
    twice count once, unless validation and test are given: then all files are taken as they are.
    """
    files = split_files(spec)
    read = read_pair_file(spec.pairs, spec.source, spec.target, progress, deduplicate=len(files) < 2)
    given = {
        part: read_pair_file(file, spec.source, spec.target, progress, deduplicate=False)
        for part, file in files.items()
    }
    data_hash, hashes = combine_split_hashes(read.hash, {part: own.hash for part, own in given.items()})
    splits, about, overlaps = {"pairs": read.pairs}, read.description, ()
    if not evaluation or split is not None or spec.pairs in PAIR_CORPORA or given:
        splits = split_pairs(read, spec.held_out, given)
        if given:
            same = {part: [tuple(map(normalise_text, pair)) for pair in pairs] for part, pairs in splits.items()}
            overlaps = count_overlaps(same, "pairs")
        if evaluation:
            splits, about = select_split(splits, split, about, given)
    texts = {part: [text for pair in pairs for text in pair] for part, pairs in splits.items()}
    tokenizer = tokenizer or load_or_train_tokenizer(spec.tokenizer, texts["train"], progress)
    advance = progress_counter(progress, "tokenising", sum(utf8_size(text) for some in texts.values() for text in some))
    start, end = tokenizer.vocabulary, tokenizer.vocabulary + 1
    items: dict[str, TokenPairs] = {}
    notes = [note for own in given.values() for note in own.notes]
    missing = 0
    for part, pairs in splits.items():
        sources, missing_sources = encode_texts(tokenizer, [pair.source for pair in pairs], advance)
        targets, missing_targets = encode_texts(tokenizer, [pair.target for pair in pairs], advance)
        fits = np.flatnonzero(np.maximum(sources.lengths, targets.lengths) + 1 <= length)
        items[part] = TokenPairs(
            sources.select(fits).add_affixes([], [end]), targets.select(fits).add_affixes([start], [end]), pairs
        )
        missing += missing_sources + missing_targets
        if long := len(pairs) - len(fits):
            notes.append(f"{part}: {long:,} of {len(pairs):,} pairs are longer than {length} tokens on a side")
    if missing:
        notes.append(f"{missing:,} characters that the tokenizer does not know were left out")
    if not evaluation and not len(items["train"]):
        raise DataError(
            f"{about}: none of the {len(splits['train']):,} training pairs fits into {length} tokens per side. "
            "Set a larger context."
        )
    sizes = {"vocabulary": tokenizer.vocabulary + len(SPECIAL_TOKENS)}
    said = (*read.notes, *notes)
    return Splits("pairs", items, tokenizer, data_hash, about, sizes, said, (), hashes, overlaps)
