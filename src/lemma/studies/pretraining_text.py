"""The text that is learned without labels: all texts but those held out, one a line."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lemma.data import LABELLED, LabelsData, Progress
from lemma.data.grouping import in_drawn_order, plain
from lemma.data.label_table import TEXTS, read_label_table
from lemma.data.reading import decode, exists, open_text
from lemma.data.records import SUFFIXES
from lemma.data.tables import Column, read_table
from lemma.errors import DataError, unknown
from lemma.runs import write_atomically

SHARED = 10
"""A text that has so many words in a row in common with one that is held out is not learned either."""
HELD_OUT = ("validation", "test")


@dataclass(frozen=True)
class PlainTexts:
    """What was written, and what was left out of it."""

    path: Path
    texts: int
    left_out: int
    """Texts that are, or share ten words in a row with, a text of validation or test."""
    repeated: int

    def __str__(self) -> str:
        return (
            f"{self.texts:,} texts, labels unread; {self.left_out:,} were left out, being one of the validation or "
            f"test texts or sharing {SHARED} words in a row with one, and {self.repeated:,} since they were there twice"
        )


def write_texts(names: Sequence[str], labelled: LabelsData, path: Path, progress: Progress | None = None) -> PlainTexts:
    """Write the training texts of `labelled`, what came with them, and the texts of `names`, without what is held out.

    Texts that are equal but for case and white space stand there once. Their order is drawn, so that the end of the
    file, on which a pretrained model is validated, is of the same kind as the rest.
    """
    own = [*(text for text, _ in labelled.texts("train")), *labelled.unlabelled]
    texts = [
        *(own if labelled.about not in names else ()),
        *(text for name in names for text in read_texts(name, progress)),
    ]
    held_out = [text for split in HELD_OUT for text, _ in labelled.texts(split)]
    kept = [text for text in texts if text.strip()]
    apart = list(without(kept, held_out))
    unique = {plain(text): " ".join(text.split()) for text in reversed(apart)}  # the first of equal texts stays
    if len(unique) < 2:
        raise DataError("there are no texts to learn without labels: all are held out. Name others with unlabelled=.")
    write_atomically(path, "".join(f"{unique[key]}\n" for key in in_drawn_order(unique, "order")))
    return PlainTexts(path, len(unique), len(kept) - len(apart), len(apart) - len(unique))


def read_texts(name: str, progress: Progress | None = None) -> list[str]:
    """The texts of a set known by name, of a table, or of a text file of one text a line; labels are not used."""
    if name in LABELLED:
        read = read_label_table(name, progress=progress)
        return [*read.texts, *read.unlabelled]
    path = Path(name)
    if not exists(path) and not path.suffix:
        raise DataError(unknown("unlabelled", name, LABELLED) + " Or give the path of a table or a text file.")
    if path.suffix.lower() in SUFFIXES:
        wanted = [Column("text", called=TEXTS)]
        return read_table(path, wanted, any_width=True, is_header=_looks).cells["text"]
    return "".join(decode(open_text(path))).splitlines()


def _looks(first: Sequence[str]) -> bool:
    return bool({cell.strip().casefold() for cell in first} & {"text", *TEXTS})


def without(texts: Iterable[str], held_out: Iterable[str]) -> Iterator[str]:
    """Yield the texts that are none of those held out and share no ten words in a row with one.

    >>> list(without(["So  it is", "so it was"], ["so it IS"]))
    ['so it was']
    """
    keys = {plain(text) for text in held_out}
    stretches = {stretch for key in keys for stretch in _stretches(key)}
    for text in texts:
        key = plain(text)
        if key not in keys and stretches.isdisjoint(_stretches(key)):
            yield text


def _stretches(key: str) -> Iterator[tuple[str, ...]]:
    words = key.split()
    return (tuple(words[start : start + SHARED]) for start in range(len(words) - SHARED + 1))
