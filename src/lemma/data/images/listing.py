"""Which pictures there are and what is said of them, before any is decoded: a set by name, or one's own folder."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lemma.data.grouping import drawn
from lemma.data.hashing import file_sum, joint_sum
from lemma.data.images.drawing import drawn_pictures
from lemma.data.images.emoji import CAPTIONS, PICTURES
from lemma.data.images.folder import Folder, captions_table
from lemma.data.images.summing import picture_sums
from lemma.data.library import corpus_files
from lemma.data.progress import Progress
from lemma.data.reading import exists
from lemma.data.tables import Table
from lemma.errors import DataError, unknown

NAMED = 3
"""How many of those that are left out are named."""


class Picture(NamedTuple):
    """A picture's file, its name in the table's folder, and what is said of it."""

    name: str
    path: Path
    captions: tuple[str, ...]


@dataclass(frozen=True)
class Listing:
    """Pictures in the order in which they are dealt out to the splits."""

    pictures: tuple[Picture, ...] = field(repr=False)
    keys: tuple[str, ...] = field(repr=False)
    """What decides on each picture's split: its name in a set known by name, else the SHA-256 of its file."""
    sums: tuple[str, ...] = field(repr=False)
    """The SHA-256 of each file."""
    hash: str
    about: str
    said: tuple[str, ...]
    named: bool
    """Whether the set is known by name: drawings that are framed, and divided by their names."""


def list_pictures(
    name: str,
    captions: str | None = None,
    image: str | None = None,
    caption: str | None = None,
    progress: Progress | None = None,
) -> Listing:
    """List the pictures of a set known by name, or those of a folder that its table of captions names."""
    if name in PICTURES:
        _refuse_columns(name, captions=captions, image=image, caption=caption)
        return _list_named(name, progress)
    return _list_folder(_own(name), captions, image, caption, progress)


def _list_named(name: str, progress: Progress | None) -> Listing:
    files = {path.name: path for path in corpus_files(PICTURES[name], progress)}
    table = captions_table(files[CAPTIONS].parent, None, None, None)
    listed = dict(zip(table.cells["image"], table.cells["caption"], strict=True))
    fonts = [path for path in files.values() if path.suffix == ".ttf"]
    found = drawn_pictures(fonts[0], list(listed), progress) if fonts else files
    pictures = [Picture(file, found[file], (said,)) for file, said in listed.items() if file in found]
    lacking = [said for file, said in listed.items() if file not in found]
    said = told(lacking, "names have no picture in the font", "name has no picture in the font")
    names = [picture.captions[0] for picture in pictures]
    return _dealt(
        pictures,
        names,
        picture_sums([picture.path for picture in pictures], progress),
        PICTURES[name].kept_hash,
        name,
        said,
        named=True,
    )


def _list_folder(
    root: Path, captions: str | None, image: str | None, caption: str | None, progress: Progress | None
) -> Listing:
    folder, table = Folder(root), captions_table(root, captions, image, caption)
    pictures, said = _matched(folder, table)
    if not pictures:
        raise DataError(f"{table.path}: none of its {len(table):,} rows names a picture in {root}: {'; '.join(said)}.")
    sums = picture_sums([picture.path for picture in pictures], progress)
    said += told(_twins(pictures, sums), "pictures are the same file as another", "picture is the same file as another")
    in_order = [total for _, total in sorted(zip([picture.name for picture in pictures], sums, strict=True))]
    hash_of_all = joint_sum([file_sum(table.path), *in_order])
    return _dealt(pictures, sums, sums, hash_of_all, str(root), [table.said, *said], named=False)


def _matched(folder: Folder, table: Table) -> tuple[list[Picture], list[str]]:
    """The pictures that the table names, each with its captions; and what does not go together, in words."""
    captions: dict[Path, dict[str, None]] = {}
    outside: dict[str, None] = {}
    missing: dict[str, None] = {}
    for name, caption in zip(table.cells["image"], table.cells["caption"], strict=True):
        place = folder.place(name)
        path = None if place is None else folder.find(place)
        if path is not None:
            captions.setdefault(path, {})[caption] = None
        else:
            (outside if place is None else missing)[name] = None
    silent = [_name(path, folder.root) for path in folder.files if path not in captions]
    said = [
        *told((f"line {line}" for line in table.left_out), "captions are empty", "caption is empty"),
        *told(outside, "paths lead out of the folder, and were not read", "path leads out of the folder"),
        *told(missing, "pictures of the table are not in the folder", "picture of the table is not in the folder"),
        *told(silent, "pictures have no caption", "picture has no caption"),
    ]
    return [Picture(_name(path, folder.root), path, tuple(texts)) for path, texts in captions.items()], said


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _dealt(
    pictures: Sequence[Picture],
    keys: Sequence[str],
    sums: Sequence[str],
    hash_of_all: str,
    about: str,
    said: Iterable[str],
    *,
    named: bool,
) -> Listing:
    """Order pictures by a number drawn from their keys, so that every split is one stretch, however long it is."""
    order = sorted(range(len(pictures)), key=lambda place: (drawn(keys[place], "split"), pictures[place].name))

    def dealt(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(values[place] for place in order)

    return Listing(dealt(pictures), dealt(keys), dealt(sums), hash_of_all, about, tuple(said), named)


def _twins(pictures: Sequence[Picture], sums: Sequence[str]) -> list[str]:
    """The names of pictures whose file is equal to one that came before."""
    first: dict[str, str] = {}
    return [
        picture.name
        for picture, total in zip(pictures, sums, strict=True)
        if first.setdefault(total, picture.name) != picture.name
    ]


def _refuse_columns(name: str, **given: str | None) -> None:
    for word, value in given.items():
        if value is not None:
            raise DataError(f"{word} = '{value}': {name} has captions of its own. Leave the word out.")


def _own(name: str) -> Path:
    path = Path(name)
    if not exists(path) and path.name == name:
        raise DataError(unknown("images", name, PICTURES) + " Or give the path of a folder of pictures.")
    if not path.is_dir():
        what = "this is no folder" if exists(path) else "there is no such folder"
        raise DataError(f"{path}: {what}. Give a folder of pictures with a table of captions in it.")
    return path


def told(names: Iterable[str], many: str, one: str) -> list[str]:
    """Say how many there are of something, and name the first few; say nothing of none.

    >>> told(["a.png", "b.png", "c.png", "d.png"], "pictures have no caption", "picture has no caption")
    ['4 pictures have no caption: a.png, b.png, c.png and 1 more']
    """
    listed = list(names)
    if not listed:
        return []
    more = f" and {len(listed) - NAMED:,} more" if len(listed) > NAMED else ""
    return [
        f"{len(listed):,} {many if len(listed) > 1 else one}: {', '.join(name[:60] for name in listed[:NAMED])}{more}"
    ]
