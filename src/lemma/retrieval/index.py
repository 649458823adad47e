"""The index of a folder of pictures: a vector for each, kept on the disk and read from there.

    index.json         which run the vectors are of, their width, the generation, and how much of the files counts
    vectors-G.bin      float32, a row for each picture, each of length 1; memory-mapped
    entries-G.jsonl    a line for each picture in the same order, and one for each that is broken

Both files only ever grow: new rows and lines are written and synced behind those that count, and then index.json is
replaced in one go. A process that is killed leaves at most a tail that does not count, which the next writer cuts off.
Where pictures are gone or changed, what stays is copied to files of the next generation, and index.json turns to them.
A reader therefore always meets a whole index, be it an older one.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from jaxtyping import Float32

from lemma.data.atomic import write_atomically
from lemma.errors import RunError
from lemma.retrieval.entries import GOOD, Entry, read_entries_of
from lemma.runs.plain import read_json

HEAD = "index.json"
FORMAT = 1
FLOAT = 4

Matrix = Float32[np.ndarray, "pictures width"]


@dataclass(frozen=True)
class Head:
    """What index.json says."""

    run: str
    """The hash of what made the vectors."""
    width: int
    pictures: str
    """The folder, or the name, of the pictures."""
    generation: int = 0
    rows: int = 0
    lines: int = 0
    size: int = 0
    """Bytes of the entries that count."""
    format: int = FORMAT

    @property
    def vectors(self) -> str:
        """The name of the file of vectors."""
        return f"vectors-{self.generation}.bin"

    @property
    def entries(self) -> str:
        """The name of the file of entries."""
        return f"entries-{self.generation}.jsonl"

    def grown(self, rows: int, lines: int, size: int) -> "Head":
        """The same with so much more."""
        return replace(self, rows=self.rows + rows, lines=self.lines + lines, size=self.size + size)

    def write(self, place: Path) -> None:
        """Replace the head of an index in one go."""
        write_atomically(place / HEAD, json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")


@dataclass(frozen=True, eq=False)
class Index:
    """An index as it stands: its pictures in the order of their vectors, and those that are broken."""

    place: Path
    head: Head
    lines: Sequence[bytes] = field(repr=False)
    """The entries as they stand in their file, those of pictures in the order of their vectors."""
    broken_lines: Sequence[bytes] = field(repr=False)
    vectors: Matrix = field(repr=False)
    """Memory-mapped: only what is looked at is read."""

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The pictures in the order of their vectors."""
        return self._read(self.lines)

    @cached_property
    def broken(self) -> tuple[Entry, ...]:
        """The pictures that could not be read."""
        return self._read(self.broken_lines)

    def read(self) -> Self:
        """Read all entries now, so that damage shows."""
        assert len(self.entries) + len(self.broken) == self.head.lines
        return self

    def entry(self, row: int) -> Entry:
        """The picture of one vector; the others are not read."""
        return self._read(self.lines[row : row + 1])[0]

    def _read(self, lines: Sequence[bytes]) -> tuple[Entry, ...]:
        return read_entries_of(lines, str(self.place / self.head.entries))

    @classmethod
    def open(cls, place: Path) -> Self:
        """Open an index; while another process turns to a new generation, the head is read once more."""
        try:
            return cls._open(place)
        except FileNotFoundError:
            pass
        try:
            return cls._open(place)
        except FileNotFoundError as error:
            raise RunError(f"{place} is damaged: {Path(str(error.filename)).name} is missing. Remove it.") from None

    @classmethod
    def _open(cls, place: Path) -> Self:
        head = read_head(place)
        lines = _lines(place / head.entries, head)
        good = [line for line in lines if line.endswith(GOOD)]
        if len(lines) != head.lines or len(good) != head.rows:
            raise RunError(f"{place / head.entries} is damaged: other entries than {HEAD} says. Remove {place}.")
        broken = [line for line in lines if not line.endswith(GOOD)] if len(good) < len(lines) else []
        return cls(place, head, good, broken, _mapped(place / head.vectors, head))

    def __len__(self) -> int:
        return self.head.rows


def is_index(place: Path) -> bool:
    """Whether an index stands there."""
    return (place / HEAD).is_file()


def read_head(place: Path) -> Head:
    """Read index.json; one that is missing, damaged or of another format is a RunError."""
    if not is_index(place):
        raise RunError(
            f"{place} holds no index ({HEAD} is missing). To make one: lemma search RUN --images FOLDER --index {place}"
        )
    words: dict[str, Any] = read_json(place / HEAD)
    if words.get("format") != FORMAT:
        raise RunError(f"{place / HEAD}: format {words.get('format')!r}, expected {FORMAT}. Remove {place}.")
    try:
        head = Head(**words)
    except TypeError:
        raise RunError(f"{place / HEAD} is damaged: other words than expected. Remove {place}.") from None
    numbers = (head.width, head.generation, head.rows, head.lines, head.size)
    if not all(type(number) is int and number >= 0 for number in numbers) or head.width < 1:
        raise RunError(f"{place / HEAD} is damaged: a size is no whole number. Remove {place}.")
    return head


def _lines(path: Path, head: Head) -> Sequence[bytes]:
    with path.open("rb") as file:
        return file.read(head.size).splitlines()


def _mapped(path: Path, head: Head) -> Matrix:
    if path.stat().st_size < head.rows * head.width * FLOAT:
        raise RunError(f"{path} is damaged: shorter than {HEAD} says. Remove {path.parent}.")
    if not head.rows:
        return np.zeros((0, head.width), dtype=np.float32)
    return np.memmap(path, dtype="<f4", mode="r", shape=(head.rows, head.width))
