"""Texts with labels as they stand in a file: one of those known by name, or a table of one's own."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from sys import intern
from typing import NamedTuple

from lemma.data.hashing import files_sum
from lemma.data.labelled import CLEAR, LABELLED
from lemma.data.labelled_conllu import holds_trees, read_labelled_conllu
from lemma.data.library import corpus_files
from lemma.data.progress import Progress
from lemma.data.reading import exists
from lemma.data.tables import Column, Table, read_table
from lemma.errors import DataError, unknown

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
