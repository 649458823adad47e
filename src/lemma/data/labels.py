"""Labelled texts: read, split and tokenized; with dependency trees for models that read them."""

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
from lemma.data.corpora import CLEAR_RATING, LABELLED_CORPORA, fetch_corpus
from lemma.data.splits import (
    ExampleFile,
    Splits,
    assign_splits,
    normalise_text,
    prepare_examples,
    resolve_user_path,
    split_files,
    split_groups,
    stratified_order,
)
from lemma.data.store import encode_splits, load_or_train_tokenizer
from lemma.data.tables import Column, DataTable, read_table
from lemma.data.tokenizers import Tokenizer
from lemma.data.treebanks import CONLLU_SUFFIXES, Sentence, iter_sentences
from lemma.errors import DataError, describe_unknown
from lemma.files import Progress, files_hash, text_hash
from lemma.spec.data import LabelsSpec

# Names that columns of texts and of labels often have
TEXT_ALIASES = frozenset(
    {"texts", "sentence", "review", "tweet", "comment", "message", "content", "document", "utterance"}
)
LABEL_ALIASES = frozenset({"labels", "class", "category", "sentiment", "polarity", "topic", "intent", "stars"})
MIN_TEXTS_PER_LABEL = 2  # training texts


class LabelledText(NamedTuple):
    """A text and its label."""

    text: str
    label: str


Texts = tuple[LabelledText, ...]


@dataclass(frozen=True)
class LabelledExamples:
    """Tokenized texts, each with the number of its class."""

    rows: TokenRows
    classes: Int64[np.ndarray, " texts"]
    heads: TokenRows | None = None  # for each token the index of its head in the row, −1 for none
    texts: Texts = field(default=(), repr=False)
    unlabelled: tuple[str, ...] = field(default=(), repr=False)  # of the data set; they belong to no split

    @property
    def lengths(self) -> Int64[np.ndarray, " texts"]:
        """Number of tokens of each text."""
        return self.rows.lengths

    def __len__(self) -> int:
        """Return the number of tokens of all texts together."""
        return len(self.rows)

    def batch(self, indices: Indices) -> tuple[Int64[np.ndarray, "batch ..."], Int64[np.ndarray, "batch one"]]:
        """Return the token ids of the texts with these indices, padded with −1, and their class numbers.

        With trees, the last axis of the first array holds each token's id and the index of its head.
        """
        tokens, classes = self.rows.pad(indices), self.classes[np.asarray(indices, dtype=np.int64)][:, None]
        return tokens if self.heads is None else np.stack([tokens, self.heads.pad(indices)], axis=2), classes


# Reading: a built-in data set, a table, or a CoNLL-U file with the label of each sentence in a comment


@dataclass(frozen=True)
class LabelFile(ExampleFile[LabelledText]):
    """Labelled texts in the order of their file."""

    lines: Sequence[int] = field(default=(), repr=False)  # of each text
    path: Path = Path()
    unlabelled: tuple[str, ...] = ()

    @property
    def texts(self) -> list[str]:
        """The texts without their labels."""
        return [example.text for example in self.examples]


def has_trees(name: str) -> bool:
    """Return whether the file name of labelled texts has a suffix of CoNLL-U, so that it holds dependency trees."""
    return Path(name).suffix.lower() in CONLLU_SUFFIXES


def read_label_file(
    name: str,
    text_column: str | None = None,
    label_column: str | None = None,
    allowed_labels: Collection[str] | None = None,
    progress: Progress | None = None,
) -> LabelFile:
    """Read labelled texts from a built-in data set, or from a CSV, TSV, JSONL or CoNLL-U file.

    Columns are given by name or number; by default those with usual names are read. Labels other than `allowed_labels`
    are an error that names their line.
    """
    notes: list[str] = []
    unlabelled: list[str] = []
    if name in LABELLED_CORPORA:
        files = {path.stem: path for path in fetch_corpus(LABELLED_CORPORA[name], progress)}
        paths = sorted(files.values())
        path = files["labelled"]
        if "unlabelled" in files:
            unlabelled = read_table(files["unlabelled"], [Column("text")], any_width=True).cells["text"]
            rated = f"rated between −{CLEAR_RATING} and {CLEAR_RATING}"
            notes.append(f"{name}: {len(unlabelled):,} texts {rated} have no label")
    else:
        path = resolve_user_path("labels", name, LABELLED_CORPORA, "a CSV, TSV, JSONL or CoNLL-U file")
        paths = [path]
    if has_trees(name):
        table = _read_conllu(path)
    else:
        columns = [Column("text", text_column, TEXT_ALIASES), Column("label", label_column, LABEL_ALIASES)]
        is_builtin = name in LABELLED_CORPORA
        table = read_table(path, columns, any_width=False, allowed_labels=() if is_builtin else allowed_labels or ())
        table.cells["label"][:] = map(intern, table.cells["label"])  # few labels, many texts
    if name not in LABELLED_CORPORA:
        notes.append(table.note)
    for row, label in enumerate(table.cells["label"] if allowed_labels is not None else ()):
        if label not in (allowed_labels or ()):
            raise DataError(f"{table.location(row)}: {describe_unknown('label', label, allowed_labels or ())}")
    return LabelFile(
        examples=tuple(map(LabelledText, table.cells["text"], table.cells["label"])),
        hash=files_hash(paths),
        description=str(Path(name)),
        notes=tuple(notes),
        lines=table.lines,
        path=table.path,
        unlabelled=tuple(unlabelled),
    )


def _read_conllu(path: Path) -> DataTable:
    """Read the sentences of a CoNLL-U file as a table of texts and labels; each needs a comment `# label = NAME`."""
    lines: list[int] = []
    cells: dict[str, list[str]] = {"text": [], "label": []}
    for line, sentence in iter_sentences(path):
        if not sentence.label:
            raise DataError(f"{path}, line {line}: the sentence has no label. Give it one in a comment: # label = NAME")
        lines.append(line)
        cells["text"].append(sentence.text)
        cells["label"].append(sentence.label)
    return DataTable(path, lines, cells, None, f"{path.name}: trees with the label of each from its comment")


# Splitting: by label, with equal texts in one split


def split_label_file(
    label_file: LabelFile, held_out: float, limit: int | None, provided: Mapping[str, LabelFile]
) -> tuple[dict[str, Texts], list[str]]:
    """Split labelled texts into train, validation and test by label; return them by split, and notes.

    `held_out` is the fraction of each label's texts for each split that is not provided; if both are, the training
    texts are taken as they are. `limit` is the number of training texts.
    """
    examples, description = label_file.examples, label_file.description
    labels = {label for _, label in examples}
    if len(labels) == 1:
        raise DataError(
            f"{description}: all {len(examples):,} texts have one label, {examples[0].label[:40]!r}; at least two are "
            "needed. Name another column with --label-column, or give texts of other labels too."
        )
    missing = [split for split in ("test", "validation") if split not in provided]
    groups: dict[str, list[LabelledText]] = defaultdict(list)
    for example in examples:
        groups[normalise_text(example.text)].append(example)
    num_different = len(groups)
    if missing:
        groups = _keep_majority_labels(groups)
    dropped = len(examples) - sum(map(len, groups.values()))
    notes = [f"{dropped:,} texts were left out: the same text has another label as often or more often"] * bool(dropped)
    sizes, strata = {key: len(group) for key, group in groups.items()}, {key: g[0].label for key, g in groups.items()}
    splits = split_groups(groups, assign_splits(sizes, strata, held_out, missing))
    splits |= {split: list(file.examples) for split, file in provided.items()}
    counts = Counter(label for _, label in splits["train"])
    rare = sorted(label for label in labels if counts[label] < MIN_TEXTS_PER_LABEL) if missing else []
    if rare and len(rare) > len(counts) / 2:
        raise DataError(
            f"{description}: {len(rare):,} of {len(labels):,} labels have fewer than {MIN_TEXTS_PER_LABEL} texts to "
            f"train on, such as {rare[0][:40]!r}. Give more texts of each, or name another column with --label-column."
        )
    if rare:
        first = next(index for index, (_, label) in enumerate(examples) if label == rare[0])
        raise DataError(
            f"{label_file.path}, line {label_file.lines[first]}: the label {rare[0][:40]!r} has {counts[rare[0]]} text "
            f"to train on; each needs {MIN_TEXTS_PER_LABEL}. Give more texts of it, or take its texts out. "
            f"Such labels: {len(rare)}."
        )
    if empty := [name for name, texts in splits.items() if not texts]:
        raise DataError(
            f"{description}: {len(examples):,} texts, {num_different:,} of them different, leave none for "
            f"{' and '.join(empty)}. Give at least four different texts of a label."
        )
    if limit is not None:
        texts = splits["train"]
        if limit < len(counts):
            raise DataError(
                f"limit={limit} leaves no text for some of the {len(counts)} labels. Set limit={len(counts)}."
            )
        if limit > len(texts):
            notes.append(
                f"limit={limit:,} is more than the {len(texts):,} training texts of {description}: all are taken"
            )
        splits["train"] = [texts[index] for index in stratified_order([text.label for text in texts])[:limit]]
    return {name: tuple(texts) for name, texts in splits.items()}, notes


def _keep_majority_labels(groups: Mapping[str, list[LabelledText]]) -> dict[str, list[LabelledText]]:
    """Keep of each group of equal texts those with the most frequent label; drop groups with a tie."""
    majority: dict[str, list[LabelledText]] = {}
    for key, texts in groups.items():
        (label, count), *second = Counter(text.label for text in texts).most_common(2)
        if not second or count > second[0][1]:
            majority[key] = [text for text in texts if text.label == label]
    return majority


# Trees, for bodies that pass messages along arcs

Heads = Sequence[tuple[int, ...]]  # of each text, for each word the index of its head


class ParsedWords(NamedTuple):
    """The words of a text, and for each the index (from 0) of its head in the dependency tree; −1 for a root."""

    words: tuple[str, ...]
    heads: tuple[int, ...]

    @property
    def text(self) -> str:
        """Words joined by spaces, so that a tokenizer of words has one token for each."""
        return " ".join(self.words)


@dataclass(frozen=True)
class TreeSource:
    """Source of the dependency trees of texts: a parser, or CoNLL-U files in which texts are looked up."""

    hash: str  # identifies the parser; "" for a file
    parse: Callable[[Sequence[str]], Sequence[ParsedWords]]


def join_parses(sentences: Sequence[Sentence]) -> ParsedWords:
    """Join the dependency trees of a text's sentences into one list of words and of heads (indices from 0).

    White space within a word becomes an underscore.

    >>> join_parses([Sentence(("I", "sleep"), (2, 0), ("nsubj", "root")), Sentence(("Hush",), (0,), ("root",))])
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
    """Read the trees of CoNLL-U files, to be looked up by text. If a sentence occurs twice, its first tree is used."""
    trees: dict[str, ParsedWords] = {}
    for path in paths:
        for _, sentence in iter_sentences(path):
            trees.setdefault(sentence.text, join_parses([sentence]))
    return TreeSource("", lambda texts: [trees[text] for text in texts])


def attach_heads(examples: LabelledExamples, heads: Heads) -> LabelledExamples:
    """Return a copy of tokenized texts, one token per word, with the index of each token's head added.

    `heads` has the index for each word of each text; −1 is a root, a head that was cut off, or the filler token of a
    text without words.
    """
    flat = [
        head if head < length else PAD
        for text_heads, length in zip(heads, examples.lengths.tolist(), strict=True)
        for head in (*text_heads[:length], *[PAD] * (length - len(text_heads)))
    ]
    return replace(examples, heads=TokenRows(np.array(flat, dtype=np.int32), examples.rows.bounds))


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
    """Read, split and tokenize labelled texts, which are cut to `length` tokens.

    `special_tokens` puts texts between `<start>` and `<end>`, within `length`. A trained model passes its tokenizer and
    its class names in order; otherwise a tokenizer is trained on the training texts. With `trees` the tokens are the
    words of the trees, and come with their heads. With `evaluation` the result has a single split: `split`, by default
    `test` of a built-in set or of provided splits, and of other files all texts as a split called `text`.
    """
    source = read_label_file(spec.labels, spec.text, spec.label, labels, progress)
    allowed = labels if labels is not None else sorted({label for _, label in source.examples})
    provided = {
        part: read_label_file(file, spec.text, spec.label, allowed, progress)
        for part, file in split_files(spec).items()
    }
    read = prepare_examples(
        "labels",
        source,
        provided,
        lambda: split_label_file(source, spec.held_out, spec.limit, provided),
        key=lambda example: normalise_text(example.text),
        noun="texts",
        is_builtin=spec.labels in LABELLED_CORPORA,
        evaluation=evaluation,
        split=split,
        name="text",
    )
    texts = {part: [example.text for example in examples] for part, examples in read.items.items()}
    parses: dict[str, list[ParsedWords]] = {}
    if trees is not None:
        parsed = iter(trees.parse([text for part in texts.values() for text in part]))
        parses = {part: [next(parsed) for _ in examples] for part, examples in texts.items()}
        texts = {part: [words.text for words in parse] for part, parse in parses.items()}
        if trees.hash:  # another parser makes other data
            read = replace(read, hash=text_hash(f"{read.hash} {trees.hash}"))
    tokenizer = tokenizer or load_or_train_tokenizer(spec.tokenizer, texts["train"], progress)
    names = tuple(labels) if labels is not None else tuple(sorted({label for _, label in read.items["train"]}))
    numbers = {label: number for number, label in enumerate(names)}
    rows, notes = encode_splits(texts, tokenizer, length, special_tokens, "texts", progress)
    items: dict[str, LabelledExamples] = {}
    for part, examples in read.items.items():
        classes = np.array([numbers[label] for _, label in examples], np.int64)
        items[part] = LabelledExamples(rows[part], classes, None, tuple(examples), source.unlabelled)
        if part in parses:
            items[part] = attach_heads(items[part], [words.heads for words in parses[part]])
    sizes = {"classes": len(names), "vocabulary": tokenizer.model_vocabulary(special_tokens)}
    return read.with_items(items, tokenizer, sizes, notes, names)
