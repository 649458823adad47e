"""Labelled texts: read, split, tokenized; with their trees for a model that reads these."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from sys import intern
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from lemma.data.batches import PAD, Indices, TokenRows
from lemma.data.conllu import CONLLU_SUFFIXES, Sentence, iter_sentences
from lemma.data.corpora import CLEAR_RATING, LABELLED_CORPORA, fetch_corpus, user_path
from lemma.data.splits import (
    Splits,
    assign_splits,
    combine_split_hashes,
    count_overlaps,
    normalise_text,
    select_split,
    split_files,
    split_groups,
    stratified_order,
)
from lemma.data.store import encode_splits, load_or_train_tokenizer
from lemma.data.tables import Column, DataTable, read_table
from lemma.data.tokenizers import PRETRAINED, Tokenizer
from lemma.errors import DataError, describe_unknown
from lemma.files import Progress, files_hash, text_hash
from lemma.spec.data import LabelsSpec
from lemma.spec.models import SPECIAL_TOKENS

TEXT_ALIASES = frozenset(
    {"texts", "sentence", "review", "tweet", "comment", "message", "content", "document", "utterance"}
)
LABEL_ALIASES = frozenset({"labels", "class", "category", "sentiment", "polarity", "topic", "intent", "stars"})
"""Names that columns of texts and of labels often have."""
MIN_TEXTS_PER_LABEL = 2
"""Texts of each label that training needs."""


class LabelledText(NamedTuple):
    """A text and its label."""

    text: str
    label: str


Texts = tuple[LabelledText, ...]


@dataclass(frozen=True)
class LabelledExamples:
    """Texts as tokens, each with the number of its class."""

    rows: TokenRows
    classes: Int64[np.ndarray, " texts"]
    heads: TokenRows | None = None
    """For each token the place of its head in its row, −1 for none, where the texts come with trees."""
    texts: Texts = field(default=(), repr=False)
    unlabelled: tuple[str, ...] = field(default=(), repr=False)
    """Texts of the same kind without a label, where the data has some; they belong to no split."""

    @property
    def lengths(self) -> Int64[np.ndarray, " texts"]:
        """The tokens of each text, special tokens included."""
        return self.rows.lengths

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: Indices) -> tuple[Int64[np.ndarray, "batch ..."], Int64[np.ndarray, "batch one"]]:
        """Some texts as a matrix, padded with −1, and the class of each; with trees each token and its head."""
        tokens, classes = self.rows.pad(indices), self.classes[np.asarray(indices, dtype=np.int64)][:, None]
        return tokens if self.heads is None else np.stack([tokens, self.heads.pad(indices)], axis=2), classes


# Reading: a data set known by name, a table, or a CoNLL-U file with the label of each sentence in a comment.


@dataclass(frozen=True)
class LabelFile:
    """Texts with labels, in the order of their file."""

    table: DataTable
    hash: str
    description: str
    notes: tuple[str, ...]
    unlabelled: tuple[str, ...] = ()
    """Texts of the same kind that have no clear label."""

    @property
    def texts(self) -> Sequence[str]:
        """The texts."""
        return self.table.cells["text"]

    @property
    def labels(self) -> Sequence[str]:
        """Their labels."""
        return self.table.cells["label"]


def has_trees(name: str) -> bool:
    """Whether labelled texts of that name come with trees of their own."""
    return Path(name).suffix.lower() in CONLLU_SUFFIXES


def read_label_file(
    name: str,
    text_column: str | None = None,
    label_column: str | None = None,
    allowed_labels: Collection[str] | None = None,
    progress: Progress | None = None,
) -> LabelFile:
    """Read labelled texts; a label that is not one of those known is an error that names its line."""
    notes: list[str] = []
    unlabelled: list[str] = []
    if name in LABELLED_CORPORA:
        files = {path.stem: path for path in fetch_corpus(LABELLED_CORPORA[name], progress)}
        table = _read_labels(files["labelled"], text_column, label_column, ())
        if "unlabelled" in files:
            columns = [Column("text")]
            others = read_table(files["unlabelled"], columns, any_width=True)
            unlabelled = others.cells["text"]
            notes = [
                f"{name}: {len(unlabelled):,} texts rated between −{CLEAR_RATING} and {CLEAR_RATING} have no label"
            ]
        paths = sorted(files.values())
    else:
        paths = [user_path("labels", name, "a CSV, TSV, JSONL or CoNLL-U file")]
        table = (
            _read_conllu(paths[0])
            if has_trees(name)
            else _read_labels(paths[0], text_column, label_column, allowed_labels or ())
        )
        notes = [table.note]
    read = LabelFile(table, files_hash(paths), str(Path(name)), tuple(notes), tuple(unlabelled))
    for row, found in enumerate(read.labels if allowed_labels is not None else ()):
        if found not in (allowed_labels or ()):
            raise DataError(f"{read.table.location(row)}: {describe_unknown('the label', found, allowed_labels or ())}")
    return read


def _read_labels(path: Path, text: str | None, label: str | None, known: Collection[str]) -> DataTable:
    columns = [Column("text", text, TEXT_ALIASES), Column("label", label, LABEL_ALIASES)]
    table = read_table(path, columns, any_width=False, known_labels=known)
    table.cells["label"][:] = map(intern, table.cells["label"])  # few labels, many texts
    return table


def _read_conllu(path: Path) -> DataTable:
    lines: list[int] = []
    cells: dict[str, list[str]] = {"text": [], "label": []}
    for line, sentence in iter_sentences(path):
        if not sentence.label:
            raise DataError(f"{path}, line {line}: the sentence has no label. Give it one in a comment: # label = NAME")
        lines.append(line)
        cells["text"].append(sentence.text)
        cells["label"].append(sentence.label)
    return DataTable(path, lines, cells, None, f"{path.name}: trees with the label of each from its comment")


# Splitting: by label, with equal texts in one split.


def split_label_file(
    label_file: LabelFile, held_out: float, limit: int | None, provided: Mapping[str, LabelFile]
) -> tuple[dict[str, Texts], list[str]]:
    """Split texts by label, and say what was left out; `limit` takes only some of the training texts.

    Splits that are given are taken as they are. Where all are, so are the training texts.
    """
    if len(set(label_file.labels)) == 1:
        raise DataError(
            f"{label_file.description}: all {len(label_file.labels):,} texts have one label, {label_file.labels[0][:40]!r}; at least two are "
            "needed. Name another column with --label-column, or give texts of other labels too."
        )
    equal: dict[str, list[LabelledText]] = defaultdict(list)
    for text, label in zip(label_file.texts, label_file.labels, strict=True):
        equal[normalise_text(text)].append(LabelledText(text, label))
    drawn = [split for split in ("test", "validation") if split not in provided]
    groups: dict[str, list[LabelledText]] = {} if drawn else equal
    for key, texts in equal.items() if drawn else ():  # of equal texts those of the label that most of them have
        (first, most), *others = Counter(text.label for text in texts).most_common(2)
        if not others or most > others[0][1]:
            groups[key] = [text for text in texts if text.label == first]
    dropped = len(label_file.texts) - sum(map(len, groups.values()))
    notes = [f"{dropped:,} texts were left out: the same text has another label as often or more often"] * bool(dropped)
    labels, sizes = {key: texts[0].label for key, texts in groups.items()}, {key: len(groups[key]) for key in groups}
    splits = split_groups(groups, assign_splits(sizes, labels, held_out, drawn))
    splits |= {split: list(map(LabelledText, own.texts, own.labels)) for split, own in provided.items()}
    learned = Counter(text.label for text in splits["train"])
    few = sorted({label for label in label_file.labels if learned[label] < MIN_TEXTS_PER_LABEL}) if drawn else []
    if few and len(few) > len(learned) / 2:
        raise DataError(
            f"{label_file.description}: {len(few):,} of {len(set(label_file.labels)):,} labels have fewer than {MIN_TEXTS_PER_LABEL} texts to train "
            f"on, such as {few[0][:40]!r}. Give more texts of each, or name another column with --label-column."
        )
    if few:
        line = label_file.table.location(list(label_file.labels).index(few[0]))
        raise DataError(
            f"{line}: the label {few[0][:40]!r} has {learned[few[0]]} text to train on; each needs {MIN_TEXTS_PER_LABEL}. "
            f"Give more texts of it, or take its texts out. Such labels: {len(few)}."
        )
    if empty := [name for name, texts in splits.items() if not texts]:
        raise DataError(
            f"{label_file.description}: {len(label_file.texts):,} texts, {len(set(map(normalise_text, label_file.texts))):,} of them different, "
            f"leave none for {' and '.join(empty)}. Give at least four different texts of a label."
        )
    if limit is not None:
        train = splits["train"]
        count = len({text.label for text in train})
        if limit < count:
            raise DataError(f"limit={limit} leaves no text for some of the {count} labels. Set limit={count}.")
        if limit > len(train):
            notes.append(
                f"limit={limit:,} is more than the {len(train):,} training texts of {label_file.description}: all are taken"
            )
        splits["train"] = [train[place] for place in stratified_order([text.label for text in train])[:limit]]
    return {name: tuple(texts) for name, texts in splits.items()}, notes


# Trees: what a body reads that passes messages along arcs.

Heads = Sequence[tuple[int, ...]]
"""Of each text, for each word the place of its head."""


class ParsedWords(NamedTuple):
    """The words of a text, and for each the place of its head, counted from 0; −1 for a root."""

    words: tuple[str, ...]
    heads: tuple[int, ...]

    @property
    def text(self) -> str:
        """The words with spaces between them, so that a tokenizer of words has a token for each."""
        return " ".join(self.words)


@dataclass(frozen=True)
class TreeSource:
    """What gives the trees of texts, a parser or a file that holds them, and the hash that tells it from others."""

    hash: str
    parse: Callable[[Sequence[str]], Sequence[ParsedWords]]


def join_parses(sentences: Sequence[Sentence]) -> ParsedWords:
    """The trees of a text's sentences one after the other; white space within a word becomes an underscore.

    >>> parsed_words([Sentence(("I", "sleep"), (2, 0), ("nsubj", "root")), Sentence(("Hush",), (0,), ("root",))])
    ParsedWords(words=('I', 'sleep', 'Hush'), heads=(1, -1, -1))
    """
    starts = accumulate((len(sentence.words) for sentence in sentences), initial=0)
    words = tuple(word for sentence in sentences for word in sentence.text.split(" "))
    heads = tuple(
        start + head - 1 if head else PAD
        for start, sentence in zip(starts, sentences, strict=False)
        for head in sentence.heads
    )
    return ParsedWords(words, heads)


def read_tree_source(*paths: Path) -> TreeSource:
    """The trees that CoNLL-U files hold, by their texts; of a sentence that occurs twice the first tree."""
    trees: dict[str, ParsedWords] = {}
    for path in paths:
        for _, sentence in iter_sentences(path):
            trees.setdefault(sentence.text, join_parses([sentence]))
    return TreeSource("", lambda texts: [trees[text] for text in texts])


def attach_heads(examples: LabelledExamples, heads: Heads) -> LabelledExamples:
    """Join tokens with their arcs; an arc to a word that was cut off is lost.

    A text without words has one token that means nothing, and no arc.
    """
    rows = [
        [place if place < length else PAD for place in own[:length]] + [PAD] * (length - len(own))
        for own, length in zip(heads, examples.lengths.tolist(), strict=True)
    ]
    places = np.array([place for row in rows for place in row], dtype=np.int32)
    return replace(examples, heads=TokenRows(places, examples.rows.bounds))


# Labelled texts as data.


def prepare_labels(
    spec: LabelsSpec,
    *,
    length: int,
    special_tokens: bool,
    tokenizer: Tokenizer | None = None,
    labels: Sequence[str] | None = None,
    trees: TreeSource | None = None,
    evaluation: bool = False,
    split: str | None = None,
    progress: Progress | None = None,
) -> Splits[LabelledExamples]:
    """Read labelled texts, each cut to its first `length` tokens.

    For `evaluation` as one split: of data known by name or with splits of their own `split` or else `test`, of a file
    all. With `special_tokens` a
    text is put between `<start>` and `<end>`, which count. The tokenizer is trained on the training texts unless one is
    given; the labels are theirs, or those of the model that is trained further. With `trees` the tokens are the words
    of trees, and come with their heads.
    """
    read = read_label_file(spec.labels, spec.text, spec.label, labels, progress)
    known = labels if labels is not None else sorted(set(read.labels))
    given = {
        part: read_label_file(file, spec.text, spec.label, known, progress) for part, file in split_files(spec).items()
    }
    data_hash, hashes = combine_split_hashes(read.hash, {part: own.hash for part, own in given.items()})
    about, notes, overlaps = read.description, [note for own in given.values() for note in own.notes], ()
    if evaluation and split is None and spec.labels not in LABELLED_CORPORA and not given:
        splits: dict[str, Texts] = {"text": tuple(map(LabelledText, read.texts, read.labels))}
    else:
        splits, left_out = split_label_file(read, spec.held_out, spec.limit, given)
        notes += left_out
        if given:
            overlaps = count_overlaps(
                {part: [normalise_text(text) for text, _ in some] for part, some in splits.items()}, "texts"
            )
        if evaluation:
            splits, about = select_split(splits, split, about, given)
    texts = {part: [text for text, _ in some] for part, some in splits.items()}
    parsed: dict[str, list[ParsedWords]] = {}
    if trees is not None:
        parses = iter(trees.parse([text for some in texts.values() for text in some]))
        parsed = {part: [next(parses) for _ in some] for part, some in texts.items()}
        texts = {part: [one.text for one in some] for part, some in parsed.items()}
        if trees.hash:  # another parser makes other data
            data_hash = text_hash(f"{data_hash} {trees.hash}")
    tokenizer = tokenizer or load_or_train_tokenizer(spec.tokenizer, texts["train"], progress)
    names = tuple(labels) if labels is not None else tuple(sorted({label for _, label in splits["train"]}))
    number = {label: place for place, label in enumerate(names)}
    rows, cut = encode_splits(texts, tokenizer, length, special_tokens, "texts", progress)
    items: dict[str, LabelledExamples] = {}
    for part, some in splits.items():
        classes = np.array([number[label] for _, label in some], np.int64)
        items[part] = LabelledExamples(rows[part], classes, None, some, read.unlabelled)
        if part in parsed:
            items[part] = attach_heads(items[part], [one.heads for one in parsed[part]])
    more = len(SPECIAL_TOKENS) if special_tokens and tokenizer.kind != PRETRAINED else 0
    sizes = {"classes": len(names), "vocabulary": tokenizer.vocabulary + more}
    said = (*read.notes, *notes, *cut)
    return Splits("labels", items, tokenizer, data_hash, about, sizes, said, names, hashes, overlaps)
