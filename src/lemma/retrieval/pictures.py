"""Where the pictures of an index come from, and what became of each since it was last read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from jaxtyping import UInt8

from lemma.data import PICTURES, Picture, Progress, picture_files, read_pictures, thumbnail
from lemma.data.hashing import file_sum
from lemma.data.images.listing import list_pictures
from lemma.data.reading import exists
from lemma.errors import DataError, unknown
from lemma.retrieval.entries import Entry


class Pictures(Protocol):
    """Pictures that can be listed, read and shown."""

    @property
    def name(self) -> str:
        """Where they are."""
        ...

    def listed(self) -> list[Entry]:
        """All pictures as they are now, none of them read yet."""
        ...

    def path(self, name: str) -> Path:
        """The file of a picture."""
        ...

    def caption(self, name: str) -> str:
        """What a picture is called beside its name; nothing where nobody said."""
        ...

    @property
    def framed(self) -> bool:
        """Whether what is transparent around a drawing is cut off first."""
        ...


@dataclass(frozen=True)
class FolderPictures:
    """All picture files in a folder and in the folders within."""

    folder: Path
    framed: bool = False

    @property
    def name(self) -> str:
        """The folder."""
        return str(self.folder)

    def listed(self) -> list[Entry]:
        """All picture files as they are now."""
        return [entry for path in picture_files(self.folder) if (entry := self._entry(path))]

    def path(self, name: str) -> Path:
        """The file of a picture."""
        return self.folder / name

    def caption(self, name: str) -> str:
        """Nobody said."""
        return ""

    def _entry(self, path: Path) -> Entry | None:
        try:
            about = path.stat()
        except OSError:  # gone since it was listed, or a link that leads nowhere
            return None
        return Entry(path.relative_to(self.folder).as_posix(), about.st_size, about.st_mtime_ns)


def open_folder(folder: Path) -> FolderPictures:
    """The pictures of a folder that is there."""
    if not folder.exists():
        raise DataError(f"{folder}: there is no such folder. Give one with pictures in it.")
    if not folder.is_dir():
        raise DataError(f"{folder} is a file. Give the folder that it is in; or a picture to compare with by --image.")
    return FolderPictures(folder.resolve())


def read_entries(
    pictures: Pictures, entries: Sequence[Entry], side: int
) -> tuple[list[Entry], UInt8[np.ndarray, "read 3 side side"], list[Entry]]:
    """Read some pictures: those that could be, their pixels, and those that are broken, with the reason.

    One that is gone, or that nobody may read now, is in neither list: it is tried again the next time.
    """
    there = [summed for entry in entries if (summed := _summed(pictures, entry))]
    read = list(read_pictures([pictures.path(entry.name) for entry in there], side, framed=pictures.framed))
    good = [(entry, pixels) for entry, pixels in zip(there, read, strict=True) if not isinstance(pixels, DataError)]
    broken = [
        entry._replace(broken=_reason(error, pictures.path(entry.name)))
        for entry, error in zip(there, read, strict=True)
        if isinstance(error, DataError)
    ]
    stacked = np.stack([pixels for _, pixels in good]) if good else np.zeros((0, 3, side, side), dtype=np.uint8)
    return [entry for entry, _ in good], stacked, broken


def _summed(pictures: Pictures, entry: Entry) -> Entry | None:
    try:
        return entry._replace(sum=file_sum(pictures.path(entry.name)))
    except OSError:
        return None


def _reason(error: DataError, path: Path) -> str:
    return str(error).removeprefix(f"{path}: ") or "it cannot be read"


def small_picture(path: Path, side: int) -> bytes | None:
    """A thumbnail as PNG; None where the picture is gone or broken."""
    try:
        return thumbnail(path, side)
    except (DataError, OSError):
        return None


@dataclass(frozen=True)
class NamedPictures:
    """The pictures of a set that is known by name."""

    name: str
    pictures: Mapping[str, Picture] = field(repr=False)
    framed: bool = True

    def listed(self) -> list[Entry]:
        """All of them; their files never change, so that they bear no time."""
        return [Entry(name, picture.path.stat().st_size, 0) for name, picture in self.pictures.items()]

    def path(self, name: str) -> Path:
        """The file of a picture."""
        return self.pictures[name].path if name in self.pictures else Path(name)

    def caption(self, name: str) -> str:
        """What the set says of a picture."""
        return self.pictures[name].captions[0] if name in self.pictures else ""


def open_pictures(name: str | Path, progress: Progress | None = None) -> Pictures:
    """The pictures of a set known by name, or of a folder."""
    if str(name) in PICTURES:
        listing = list_pictures(str(name), progress=progress)
        return NamedPictures(str(name), {picture.name: picture for picture in sorted(listing.pictures)})
    path = Path(name)
    if not exists(path) and path.name == str(name):
        raise DataError(unknown("images", str(name), PICTURES) + " Or give the path of a folder of pictures.")
    return open_folder(path)
