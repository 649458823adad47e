"""A folder of one's own: the pictures below it, and the table that says what they show."""

import os
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lemma.data.images.decoding import SUFFIXES
from lemma.data.reading import exists
from lemma.data.records import SUFFIXES as TABLES
from lemma.data.tables import Column, Table, read_table
from lemma.errors import DataError

# fmt: off
IMAGES = frozenset({
    "images", "file", "files", "filename", "file_name", "filepath", "path", "picture", "photo", "img", "image_path",
    "image_file", "image_name",
})
CAPTIONS = frozenset({"captions", "text", "name", "title", "description", "sentence", "label", "alt"})
# fmt: on
EXAMPLE = (
    "a table captions.csv beside the pictures, with a line for each of them:\n"
    "  image,caption\n  dogs/rex.jpg,a brown dog in the snow"
)


@dataclass(frozen=True)
class Folder:
    """The files of picture formats below a folder, found by the names that a table gives them."""

    root: Path

    @cached_property
    def files(self) -> list[Path]:
        """All of them, in the order of their paths."""
        return picture_files(self.root)

    @cached_property
    def _by_path(self) -> dict[str, Path]:
        return {_spelled(path.relative_to(self.root).as_posix()): path for path in self.files}

    @cached_property
    def _by_name(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for path in self.files:
            found.setdefault(_spelled(path.name), []).append(path)
        return found

    def place(self, name: str) -> str | None:
        """The path from the folder that a name means; None if it leads out of the folder."""
        path = os.path.normpath(name.replace("\\", "/"))  # as tables of Windows write it, too
        path = os.path.relpath(path, self.root) if Path(path).is_absolute() else path
        path = path.replace(os.sep, "/")
        return None if path == ".." or path.startswith("../") else _spelled(path)

    def find(self, place: str) -> Path | None:
        """The file of that path from the folder, or the only one of that name anywhere in it."""
        if place in self._by_path:
            return self._by_path[place]
        alone = self._by_name.get(place, [])
        if len(alone) == 1:
            return alone[0]
        other = self.root / place  # a picture whose name does not tell its format
        return other if exists(other) and other.is_file() else None


def picture_files(folder: Path) -> list[Path]:
    """All files of picture formats in a folder and in those below it, in the order of their paths; hidden ones not."""
    return sorted(path for path in _below(folder, SUFFIXES) if path.is_file())


def captions_table(folder: Path, captions: str | None, image: str | None, caption: str | None) -> Table:
    """Read the table of captions: the one that is named, else the only one in the folder."""
    path = _named(folder, captions) if captions is not None else _only(folder)
    columns = [Column("image", image, IMAGES), Column("caption", caption, CAPTIONS, needed=False)]
    return read_table(path, columns, any_width=True, is_header=_looks)


def _below(folder: Path, suffixes: Collection[str]) -> Iterator[Path]:
    """The files of some kinds in a folder and in those below it."""
    for place, inner, names in os.walk(folder, followlinks=False):
        inner[:] = [name for name in inner if not name.startswith(".")]
        meant = (name for name in names if name.lower().endswith(tuple(suffixes)))
        yield from (Path(place, name) for name in meant if not name.startswith("."))


def _named(folder: Path, captions: str) -> Path:
    inside = folder / captions
    return inside if exists(inside) and not exists(Path(captions)) else Path(captions)


def _only(folder: Path) -> Path:
    tables = sorted(_below(folder, TABLES))
    tables = [path for path in tables if path.parent == folder] or tables
    if not tables:
        raise DataError(f"{folder}: no table says what the pictures show. Put there {EXAMPLE}")
    if len(tables) > 1:
        some = ", ".join(str(path.relative_to(folder)) for path in tables[:4])
        raise DataError(f"{folder}: {len(tables)} tables ({some}). Say which holds the captions: captions=FILE.")
    return tables[0]


def _looks(first: Sequence[str]) -> bool:
    """Whether a first row bears the names that such columns have, and no picture."""
    plainly = {cell.strip().casefold() for cell in first}
    pictures = any(cell.endswith(tuple(SUFFIXES)) for cell in plainly)
    return bool(plainly & {"image", "caption", *IMAGES, *CAPTIONS}) and not pictures


def _spelled(name: str) -> str:
    """One spelling of letters with accents: some systems write them as two characters."""
    return unicodedata.normalize("NFC", name)
