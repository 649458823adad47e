"""Labelled texts: read, split, tokenized."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from sys import intern
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from lemma.data.batches import NOTHING, SPLITS, Indices, Rows, divide_groups, in_drawn_order, nested, plain
from lemma.data.conllu import Sentence, numbered_sentences
from lemma.data.corpora import CLEAR, LABELLED, corpus_files
from lemma.data.files import Progress, files_sum, text_sum
from lemma.data.store import encode_marked, learned_tokenizer
from lemma.data.tables import Column, Table, read_table
from lemma.data.text import exists
from lemma.data.tokenizers import Tokenizer
from lemma.errors import DataError, unknown
from lemma.spec.data import LabelsSpec
from lemma.spec.models import MARKS

# Trees with labels in a CoNLL-U file: each sentence has its label in a comment, `# label = positive`.


SUFFIXES = (".conllu", ".conll")


def holds_trees(name: str) -> bool:
    """Whether labelled texts of that name come with trees of their own."""
    return Path(name).suffix.lower() in SUFFIXES


def read_labelled_conllu(path: Path) -> Table:
    """The sentences of a file as texts, their words between blanks, with their labels."""
    lines: list[int] = []
    cells: dict[str, list[str]] = {"text": [], "label": []}
    for line, sentence in numbered_sentences(path):
        if not sentence.label:
            raise DataError(f"{path}, line {line}: the sentence has no label. Give it one in a comment: # label = NAME")
        lines.append(line)
        cells["text"].append(sentence.text)
        cells["label"].append(sentence.label)
    return Table(path, lines, cells, None, f"{path.name}: trees with the label of each from its comment")


# Texts with labels as they stand in a file: one of those known by name, or a table of one's own.


TEXTS = frozenset({"texts", "sentence", "review", "tweet", "comment", "message", "content", "document", "utterance"})
CALLED = frozenset({"labels", "class", "category", "sentiment", "polarity", "topic", "intent", "stars"})


class LabelledText(NamedTuple):
    """A text and its label."""

    text: str
    label: str


@dataclass(frozen=True)
class LabelTable:
    """Texts with labels, in the order of their file."""

    table: Table
    hash: str
    about: str
    said: tuple[str, ...]
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


def read_label_table(
    name: str,
    text: str | None = None,
    label: str | None = None,
    known: Collection[str] | None = None,
    progress: Progress | None = None,
) -> LabelTable:
    """Read labelled texts; a label that is none of those known is an error that names its line."""
    if name in LABELLED:
        read = _named(name, text, label, progress)
    else:
        path = _own(name)
        table = read_labelled_conllu(path) if holds_trees(name) else _table(path, text, label, known or ())
        read = LabelTable(table, files_sum([path]), str(path), (table.said,))
    if known is not None:
        _refuse_unknown(read, known)
    return read


def _named(name: str, text: str | None, label: str | None, progress: Progress | None) -> LabelTable:
    files = {path.stem: path for path in corpus_files(LABELLED[name], progress)}
    table, said = _table(files["labelled"], text, label, ()), ()
    unlabelled: tuple[str, ...] = ()
    if "unlabelled" in files:
        columns = [Column("text")]
        unlabelled = tuple(read_table(files["unlabelled"], columns, any_width=True, is_header=_looks).cells["text"])
        said = (f"{name}: {len(unlabelled):,} texts rated between −{CLEAR} and {CLEAR} have no label",)
    return LabelTable(table, files_sum(sorted(files.values())), name, said, unlabelled)


def _table(path: Path, text: str | None, label: str | None, known: Collection[str]) -> Table:
    columns = [Column("text", text, TEXTS), Column("label", label, CALLED)]
    table = read_table(path, columns, any_width=False, is_header=_looks, values=known)
    table.cells["label"][:] = map(intern, table.cells["label"])  # few labels, many texts
    return table


def _looks(first: Sequence[str]) -> bool:
    """Whether a first row bears the names that such columns have."""
    return bool({cell.strip().casefold() for cell in first} & {"text", "label", *TEXTS, *CALLED})


def _own(name: str) -> Path:
    path = Path(name)
    if not exists(path) and path.name == name and not path.suffix:
        raise DataError(unknown("labels", name, LABELLED) + " Or give the path of a CSV, TSV, JSONL or CoNLL-U file.")
    return path


def _refuse_unknown(read: LabelTable, known: Collection[str]) -> None:
    for row, label in enumerate(read.labels):
        if label not in known:
            raise DataError(f"{read.table.where(row)}: {unknown('the label', label, known)}")


# Texts as tokens with the numbers of their classes.


@dataclass(frozen=True)
class Labelled:
    """Texts as tokens, each with the number of its class."""

    rows: Rows
    classes: Int64[np.ndarray, "texts"]

    @property
    def lengths(self) -> Int64[np.ndarray, "texts"]:
        """The tokens of each text, marks included."""
        return self.rows.lengths

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: Indices) -> tuple[Int64[np.ndarray, "batch ..."], Int64[np.ndarray, "batch one"]]:
        """Some texts side by side, filled up with −1, and the class of each."""
        return self.rows.beside(indices), self.classes[np.asarray(indices, dtype=np.int64)][:, None]


# Texts with labels divided into training, validation and test, no text in two of them.


Texts = tuple[LabelledText, ...]
Groups = dict[str, list[LabelledText]]
"""Texts that are the same but for case and white space, by what they have in common."""
LEAST = 2
"""Texts of each label that training needs."""


def divide_labelled(read: LabelTable, held_out: float, limit: int | None) -> tuple[dict[str, Texts], list[str]]:
    """Divide texts by label, with what was left out said; `limit` takes only some of the training texts."""
    _refuse_one_label(read)
    groups, said = _groups(read)
    labels = {key: texts[0].label for key, texts in groups.items()}
    split = divide_groups({key: len(texts) for key, texts in groups.items()}, labels, held_out)
    splits: dict[str, list[LabelledText]] = {name: [] for name in SPLITS}
    for key in in_drawn_order(groups, "order"):
        splits[split[key]] += groups[key]
    _refuse_few(read, splits)
    if limit is not None:
        splits["train"] = _limited(read, splits["train"], limit, said)
    return {name: tuple(texts) for name, texts in splits.items()}, said


def _groups(read: LabelTable) -> tuple[Groups, list[str]]:
    groups: Groups = defaultdict(list)
    for text, label in zip(read.texts, read.labels, strict=True):
        groups[plain(text)].append(LabelledText(text, label))
    settled = {key: _agreed(texts) for key, texts in groups.items()}
    dropped = len(read.texts) - sum(map(len, settled.values()))
    said = (
        [f"{dropped:,} texts were left out: the same text bears another label as often or oftener"] if dropped else []
    )
    return {key: sorted(texts) for key, texts in settled.items() if texts}, said


def _agreed(texts: list[LabelledText]) -> list[LabelledText]:
    """Of equal texts those of the label that most of them have; none if no label has most."""
    ranked = Counter(text.label for text in texts).most_common(2)
    if len(ranked) == 1:
        return texts
    (first, most), (_, second) = ranked
    return [text for text in texts if text.label == first] if most > second else []


def _limited(read: LabelTable, texts: Sequence[LabelledText], limit: int, said: list[str]) -> list[LabelledText]:
    labels = {text.label for text in texts}
    if limit < len(labels):
        raise DataError(f"limit={limit} leaves no text for some of the {len(labels)} labels. Set limit={len(labels)}.")
    if limit > len(texts):
        said.append(f"limit={limit:,} is more than the {len(texts):,} training texts of {read.about}: all are taken")
    return [texts[place] for place in nested([text.label for text in texts])[:limit]]


def _refuse_one_label(read: LabelTable) -> None:
    if len(set(read.labels)) == 1:
        raise DataError(
            f"{read.about}: all {len(read.labels):,} texts bear one label, {read.labels[0][:40]!r}; at least two are "
            "needed. Name another column with --label-column, or give texts of other labels too."
        )


def _refuse_few(read: LabelTable, splits: Mapping[str, Sequence[LabelledText]]) -> None:
    learned = Counter(text.label for text in splits["train"])
    few = sorted({label for label in read.labels if learned[label] < LEAST})
    if few and len(few) > len(learned) / 2:
        raise DataError(
            f"{read.about}: {len(few):,} of {len(set(read.labels)):,} labels have fewer than {LEAST} texts to learn "
            f"from, such as {few[0][:40]!r}. Give more texts of each, or name another column with --label-column."
        )
    if few:
        line = read.table.where(list(read.labels).index(few[0]))
        raise DataError(
            f"{line}: the label {few[0][:40]!r} has {learned[few[0]]} text to learn from; each needs {LEAST}. "
            f"Give more texts of it, or take its texts out. Such labels: {len(few)}."
        )
    if empty := [name for name, texts in splits.items() if not texts]:
        raise DataError(
            f"{read.about}: {len(read.texts):,} texts, {len(set(map(plain, read.texts))):,} of them different, "
            f"leave none for {' and '.join(empty)}. Give at least four different texts of a label."
        )


# Texts with labels whose words are joined by trees: what a body reads that goes along arcs.


Governors = Sequence[tuple[int, ...]]
"""Of each text, for each word the place of its governor."""


class DrawnText(NamedTuple):
    """The words of a text, and for each the place of its governor, counted from 0; −1 for a root."""

    words: tuple[str, ...]
    governors: tuple[int, ...]

    @property
    def text(self) -> str:
        """The words with blanks between them, so that a tokenizer of words has a token for each."""
        return " ".join(self.words)


@dataclass(frozen=True)
class Drawer:
    """What draws the trees of texts, a parser or a file that holds them, and the hash that tells it from others."""

    hash: str
    draw: Callable[[Sequence[str]], Sequence[DrawnText]]


@dataclass(frozen=True)
class LabelledTrees(Labelled):
    """Texts as tokens and arcs, each with the number of its class."""

    governors: Rows
    """For each token the place of its governor in its row, −1 for none."""

    def batch(self, indices: Indices) -> tuple[Int64[np.ndarray, "batch longest two"], Int64[np.ndarray, "batch one"]]:
        """Some texts side by side, each word a token and the place of its governor, filled up with −1."""
        tokens, classes = super().batch(indices)
        return np.stack([tokens, self.governors.beside(indices)], axis=2), classes


def drawn_text(sentences: Sequence[Sentence]) -> DrawnText:
    """The trees of a text's sentences one after the other; white space within a word is closed up.

    >>> drawn_text([Sentence(("I", "sleep"), (2, 0), ("nsubj", "root")), Sentence(("Hush",), (0,), ("root",))])
    DrawnText(words=('I', 'sleep', 'Hush'), governors=(1, -1, -1))
    """
    starts = accumulate((len(sentence.words) for sentence in sentences), initial=0)
    words = tuple(word for sentence in sentences for word in sentence.text.split(" "))
    governors = tuple(
        start + head - 1 if head else NOTHING
        for start, sentence in zip(starts, sentences, strict=False)
        for head in sentence.heads
    )
    return DrawnText(words, governors)


def trees_in(path: Path) -> Drawer:
    """The trees that a CoNLL-U file holds, by their texts; of a sentence that stands there twice the first tree."""
    trees: dict[str, DrawnText] = {}
    for _, sentence in numbered_sentences(path):
        trees.setdefault(sentence.text, drawn_text([sentence]))
    return Drawer("", lambda texts: [trees[text] for text in texts])


def draw_splits(splits: Mapping[str, Texts], drawer: Drawer) -> tuple[dict[str, Texts], dict[str, Governors]]:
    """The splits with the parser's words in the place of the texts, and the governors of these words."""
    drawn = drawer.draw([text for texts in splits.values() for text, _ in texts])
    spoken: dict[str, Texts] = {}
    governors: dict[str, Governors] = {}
    start = 0
    for split, texts in splits.items():
        own = drawn[start : start + len(texts)]
        start += len(texts)
        spoken[split] = tuple(LabelledText(one.text, label) for one, (_, label) in zip(own, texts, strict=True))
        governors[split] = [one.governors for one in own]
    return spoken, governors


def with_trees(examples: Labelled, governors: Governors) -> LabelledTrees:
    """Join tokens with their arcs; an arc to a word that was cut off is lost.

    A text without words has one token that stands for nothing, and no arc.
    """
    rows = [
        [place if place < length else NOTHING for place in own[:length]] + [NOTHING] * (length - len(own))
        for own, length in zip(governors, examples.lengths.tolist(), strict=True)
    ]
    arcs = np.array([place for row in rows for place in row], dtype=np.int32)
    return LabelledTrees(examples.rows, examples.classes, Rows(arcs, examples.rows.bounds))


# Labelled texts as data: `prepare_labels` for training, `read_labels` for judging other texts.


WHOLE = "text"
"""The one split of a file that is judged."""


@dataclass(frozen=True)
class LabelsData:
    """Labelled texts ready for training or judging."""

    tokenizer: Tokenizer
    labels: tuple[str, ...]
    """The names of the classes, in the order of their numbers."""
    hash: str
    """The SHA-256 of the files."""
    about: str
    """What they are, in words."""
    skipped: tuple[str, ...]
    """What was taken, left out or cut, in words."""
    by_split: Mapping[str, Texts] = field(repr=False)
    tokens_by_split: Mapping[str, Labelled] = field(repr=False)
    marked: bool
    """Whether each text stands between `<start>` and `<end>`."""
    unlabelled: tuple[str, ...] = field(default=(), repr=False)
    """Texts of the same kind that have no label, where such came with them."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self.by_split)

    def texts(self, split: str) -> Texts:
        """The texts of a split with their labels."""
        return self.by_split[self._known(split)]

    def tokens(self, split: str) -> Labelled:
        """The texts of a split as tokens, in the same order."""
        return self.tokens_by_split[self._known(split)]

    def sizes(self) -> dict[str, int]:
        """What a model has to know of the data's size."""
        marks = len(MARKS) if self.marked else 0
        return {"classes": len(self.labels), "vocabulary": self.tokenizer.vocabulary + marks}

    def _known(self, split: str) -> str:
        if split not in self.by_split:
            raise DataError(f"there is no split '{split}' in {self.about}. It has: {', '.join(self.splits)}.")
        return split


def prepare_labels(
    spec: LabelsSpec,
    *,
    length: int,
    marked: bool,
    tokenizer: Tokenizer | None = None,
    labels: Sequence[str] | None = None,
    drawer: Drawer | None = None,
    progress: Progress | None = None,
) -> LabelsData:
    """Read labelled texts for training, each cut to its first `length` tokens.

    With `marked` a text stands between `<start>` and `<end>`, which count. The tokenizer is learned from the training
    texts unless one is given; so are the labels, which are else those of the model that is trained further. With a
    `drawer` the tokens are the words of trees, and come with their arcs.
    """
    read = read_label_table(spec.labels, spec.text, spec.label, labels, progress)
    splits, said = divide_labelled(read, spec.held_out, spec.limit)
    spoken, governors = draw_splits(splits, drawer) if drawer else (splits, {})
    tokenizer = tokenizer or learned_tokenizer(spec.tokenizer, [text for text, _ in spoken["train"]], progress)
    names = tuple(labels) if labels is not None else tuple(sorted({label for _, label in splits["train"]}))
    encoded, cut = _encoded(spoken, governors, tokenizer, names, length, marked, progress)
    told, joint = (*read.said, *said, *cut), _joint_hash(read, drawer)
    return LabelsData(tokenizer, names, joint, read.about, told, splits, encoded, marked, read.unlabelled)


def read_labels(
    name: str,
    *,
    tokenizer: Tokenizer,
    labels: Sequence[str],
    length: int,
    marked: bool,
    text: str | None = None,
    label: str | None = None,
    held_out: float = LabelsSpec.model_fields["held_out"].default,
    split: str | None = None,
    drawer: Drawer | None = None,
    progress: Progress | None = None,
) -> LabelsData:
    """Read labelled texts to judge, as one split: of those known by name `split` or else their test, of a file all."""
    read = read_label_table(name, text, label, labels, progress)
    said: list[str] = []
    if name in LABELLED or split is not None:
        splits, said = divide_labelled(read, held_out, None)
        chosen = split or "test"
        if chosen not in splits:
            raise DataError(unknown("split", chosen, splits))
        splits, about = {chosen: splits[chosen]}, f"{read.about} ({chosen})"
    else:
        splits, about = {WHOLE: tuple(map(LabelledText, read.texts, read.labels))}, read.about
    spoken, governors = draw_splits(splits, drawer) if drawer else (splits, {})
    encoded, cut = _encoded(spoken, governors, tokenizer, tuple(labels), length, marked, progress)
    told, joint = (*read.said, *said, *cut), _joint_hash(read, drawer)
    return LabelsData(tokenizer, tuple(labels), joint, about, told, splits, encoded, marked, read.unlabelled)


def _joint_hash(read: LabelTable, drawer: Drawer | None) -> str:
    """The hash of the files; of trees that a parser drew, its own too: another parser makes other data."""
    return text_sum(f"{read.hash} {drawer.hash}") if drawer and drawer.hash else read.hash


def _encoded(
    splits: Mapping[str, Texts],
    governors: Mapping[str, Governors],
    tokenizer: Tokenizer,
    labels: Sequence[str],
    length: int,
    marked: bool,
    progress: Progress | None,
) -> tuple[dict[str, Labelled], list[str]]:
    """The splits as tokens, and arcs where there are some, with what had to be cut or left out said."""
    texts = {split: [text for text, _ in some] for split, some in splits.items()}
    rows, told = encode_marked(texts, tokenizer, length, marked, "texts", progress)
    number = {label: place for place, label in enumerate(labels)}
    classes = {split: np.array([number[label] for _, label in some], np.int64) for split, some in splits.items()}
    examples = {split: Labelled(rows[split], classes[split]) for split in splits}
    return examples | {split: with_trees(examples[split], arcs) for split, arcs in governors.items()}, told
