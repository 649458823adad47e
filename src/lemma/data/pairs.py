"""Pairs of texts: read, split and tokenized."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from lemma.data.batches import Indices, TokenRows
from lemma.data.corpora import PAIR_CORPORA, fetch_corpus
from lemma.data.splits import (
    ExampleFile,
    Splits,
    assign_splits,
    normalise_text,
    prepare_examples,
    resolve_user_path,
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

# Names that columns of sources, of targets, and of two languages often have
SOURCE_ALIASES = frozenset({"sources", "src", "input", "question", "from"})
TARGET_ALIASES = frozenset({"targets", "tgt", "trg", "output", "translation", "answer", "to"})
# fmt: off
LANGUAGES = {
    "en": "english", "de": "german", "fr": "french", "es": "spanish", "it": "italian",
    "pt": "portuguese", "nl": "dutch", "uk": "ukrainian", "ru": "russian", "pl": "polish",
    "zh": "chinese", "ja": "japanese", "ar": "arabic", "tr": "turkish",
}
# fmt: on
MIN_SOURCES = 4  # different ones: two to train, one to validate, one to test


class Pair(NamedTuple):
    """A source text and its target."""

    source: str
    target: str


@dataclass(frozen=True)
class TokenPairs:
    """Tokenized pairs: sources that end with `<end>`, targets between `<start>` and `<end>`."""

    sources: TokenRows
    targets: TokenRows
    pairs: tuple[Pair, ...] = field(default=(), repr=False)  # as texts, also those too long for the model

    @property
    def lengths(self) -> Int64[np.ndarray, " pairs"]:
        """Number of tokens of each pair, source and target together."""
        return self.sources.lengths + self.targets.lengths

    def __len__(self) -> int:
        """Return the number of tokens of all sources and targets together."""
        return len(self.sources) + len(self.targets)

    def batch(
        self, indices: Indices
    ) -> tuple[Int64[np.ndarray, "batch longest"], Int64[np.ndarray, "batch longest_target"]]:
        """Return the token ids of the sources and of the targets with these indices, each padded with −1."""
        return self.sources.pad(indices), self.targets.pad(indices)

    def references(self) -> dict[str, tuple[str, ...]]:
        """Return the target texts of each source text, to compare translations of it with."""
        targets: dict[str, list[str]] = {}
        for source, target in self.pairs:
            targets.setdefault(source, []).append(target)
        return {source: tuple(translations) for source, translations in targets.items()}


Pairs = tuple[Pair, ...]


def read_pair_file(
    name: str,
    source_column: str | None = None,
    target_column: str | None = None,
    progress: Progress | None = None,
    deduplicate: bool = True,
) -> ExampleFile[Pair]:
    """Read pairs of texts from a built-in data set, or from a TSV, CSV or JSONL file.

    Columns are given by name or number; by default those with usual names are read. `deduplicate` drops repeated pairs.
    """
    is_builtin = name in PAIR_CORPORA
    if is_builtin:
        files = fetch_corpus(PAIR_CORPORA[name], progress)
    else:
        files = [resolve_user_path("pairs", name, PAIR_CORPORA, "a TSV, CSV or JSONL file")]
    columns = [Column("source", source_column, SOURCE_ALIASES), Column("target", target_column, TARGET_ALIASES)]
    table = read_table(files[0], columns, any_width=True, is_header=_is_header)
    pairs = tuple(map(Pair, table.cells["source"], table.cells["target"]))
    pairs = tuple(dict.fromkeys(pairs)) if deduplicate else pairs
    notes = [] if is_builtin else [table.note]
    if repeated := len(table) - len(pairs):
        notes.append(f"{repeated:,} pairs are in the file more than once and count once")
    return ExampleFile(pairs, files_hash(files), name, tuple(notes))


def _is_header(first_row: Sequence[str]) -> bool:
    """Return whether a table's first row is a header: usual names of the two columns, or names of two languages."""
    cells = [cell.strip().casefold() for cell in first_row]
    has_aliases = len(cells) > 1 and cells[0] in SOURCE_ALIASES and cells[1] in TARGET_ALIASES
    has_languages = len(set(cells[:2])) == 2 and set(cells[:2]) <= {*LANGUAGES, *LANGUAGES.values()}
    return bool({"source", "target"} & set(cells)) or has_aliases or has_languages


def split_pairs(
    pair_file: ExampleFile[Pair], held_out: float, provided: Mapping[str, ExampleFile[Pair]] | None = None
) -> dict[str, Pairs]:
    """Split pairs into train, validation and test, so that all pairs with the same source are in one split.

    `held_out` is the fraction of the sources for each of validation and test that is not provided.
    """
    provided = provided or {}
    groups: dict[str, list[Pair]] = {}
    for pair in pair_file.examples:
        groups.setdefault(normalise_text(pair.source), []).append(pair)
    missing = [split for split in ("test", "validation") if split not in provided]
    if missing and len(groups) < MIN_SOURCES:
        raise DataError(
            f"{pair_file.description}: {len(groups)} different sources are too few to train on some and hold others "
            f"out. Give at least {MIN_SOURCES}."
        )
    assigned = assign_splits(dict.fromkeys(groups, 1), dict.fromkeys(groups, ""), held_out, missing)
    splits = {split: tuple(pairs) for split, pairs in split_groups(groups, assigned).items()}
    return splits | {split: tuple(file.examples) for split, file in provided.items()}


def prepare_pairs(
    spec: PairsSpec,
    *,
    length: int,
    tokenizer: Tokenizer | None = None,
    evaluation: bool = False,
    split: str | None = None,
    progress: Progress | None = None,
) -> Splits[TokenPairs]:
    """Read, split and tokenize pairs of texts; drop those with more than `length` tokens on a side.

    The length of a source includes its `<end>`, that of a target one of its two special tokens. Repeated pairs count
    once, unless both validation and test are provided: then all files are taken as they are. Without the tokenizer of a
    trained model one is trained on both sides of the training pairs. With `evaluation` the result has a single split:
    `split`, by default `test` of a built-in set or of provided splits, and of other files all pairs as a split called
    `pairs`.
    """
    files = split_files(spec)
    source = read_pair_file(spec.pairs, spec.source, spec.target, progress, deduplicate=len(files) < 2)
    provided = {
        part: read_pair_file(file, spec.source, spec.target, progress, deduplicate=False)
        for part, file in files.items()
    }
    read = prepare_examples(
        "pairs",
        source,
        provided,
        lambda: (split_pairs(source, spec.held_out, provided), ()),
        key=lambda pair: tuple(map(normalise_text, pair)),
        noun="pairs",
        is_builtin=spec.pairs in PAIR_CORPORA,
        evaluation=evaluation,
        split=split,
        name="pairs",
    )
    texts = {part: [text for pair in pairs for text in pair] for part, pairs in read.items.items()}
    tokenizer = tokenizer or load_or_train_tokenizer(spec.tokenizer, texts["train"], progress)
    advance = progress_counter(progress, "tokenising", sum(map(utf8_size, chain.from_iterable(texts.values()))))
    start, end = tokenizer.vocabulary, tokenizer.vocabulary + 1
    items: dict[str, TokenPairs] = {}
    notes: list[str] = []
    dropped = 0
    for part, pairs in read.items.items():
        sources, dropped_sources = encode_texts(tokenizer, [pair.source for pair in pairs], advance)
        targets, dropped_targets = encode_texts(tokenizer, [pair.target for pair in pairs], advance)
        dropped += dropped_sources + dropped_targets
        fitting = np.flatnonzero(np.maximum(sources.lengths, targets.lengths) + 1 <= length)
        items[part] = TokenPairs(
            sources=sources.select(fitting).add_affixes([], [end]),
            targets=targets.select(fitting).add_affixes([start], [end]),
            pairs=tuple(pairs),
        )
        if too_long := len(pairs) - len(fitting):
            notes.append(f"{part}: {too_long:,} of {len(pairs):,} pairs are longer than {length} tokens on a side")
    if dropped:
        notes.append(f"{dropped:,} characters that the tokenizer does not know were left out")
    if not evaluation and not len(items["train"]):
        raise DataError(
            f"{read.description}: none of the {len(read.items['train']):,} training pairs fits into {length} tokens "
            "per side. Set a larger context."
        )
    sizes = {"vocabulary": tokenizer.vocabulary + len(SPECIAL_TOKENS)}
    return read.with_items(items, tokenizer, sizes, notes)
