"""Images with captions: listed, decoded once, split, batched."""

import io
import json
import os
import unicodedata
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from hashlib import blake2b
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Int64, UInt8

from lemma.data.batches import Indices, Rows, drawn
from lemma.data.corpora import CAPTIONS as CAPTION_COLUMNS
from lemma.data.corpora import PICTURES, characters, corpus_files
from lemma.data.files import Progress, counting, file_sum, files_sum, home_folder, joint_sum, new_folder, text_sum
from lemma.data.store import encode_marked, learned_tokenizer
from lemma.data.tables import SUFFIXES as TABLES
from lemma.data.tables import Column, Table, read_table
from lemma.data.text import exists
from lemma.data.tokenizers import Tokenizer
from lemma.errors import DataError, unknown
from lemma.spec.data import ImagesSpec
from lemma.spec.models import MARKS

if TYPE_CHECKING:
    from PIL.Image import Image


# What is done to a picture before it is pixels: its colours on white, its frame, its square.


MARGIN = 1 / 16
"""What is left free on each side of a drawing that is framed, as a share of its longer side."""
WHITE = (255, 255, 255, 255)


def pillow() -> Any:
    """Pillow's module of images, or an error that says how to get it."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError(
            "pictures are read by Pillow, which is not installed. Install it: pip install 'lemma[images]'"
        ) from None
    return Image


def on_white(picture: "Image") -> "Image":
    """A picture in red, green and blue; what is transparent is white."""
    if picture.mode.startswith(("I", "F")):
        picture = _eight_bits(picture)
    if not _transparent(picture):
        return picture.convert("RGB")
    over = picture.convert("RGBA")
    return pillow().alpha_composite(pillow().new("RGBA", over.size, WHITE), over).convert("RGB")


def _transparent(picture: "Image") -> bool:
    return picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info


def _eight_bits(picture: "Image") -> "Image":
    """A picture of one deep channel: 16 bits from 0 to 65,535, fractions from 0 to 1, others from least to most."""
    values = np.nan_to_num(np.asarray(picture, dtype=np.float64))
    least, most = float(values.min()), float(values.max())
    white = 1.0 if picture.mode == "F" else 65_535.0
    if least < 0 or most > white:
        values, white = values - least, most - least
    return pillow().fromarray(np.rint(values * (255 / white)).astype(np.uint8))


def frame(picture: "Image") -> "Image":
    """A drawing cut to what is not transparent, in the middle of a square with a small margin."""
    whole = picture.convert("RGBA")
    box = whole.getchannel("A").getbbox()
    if box is None:
        raise DataError("nothing is drawn in it")
    left, top, right, bottom = box
    longest = max(right - left, bottom - top)
    side = longest + 2 * round(MARGIN * longest)
    left, top = left - (side - (right - left)) // 2, top - (side - (bottom - top)) // 2
    return whole.crop((left, top, left + side, top + side))


def square(picture: "Image", side: int) -> "Image":
    """A picture as large as fits into a square, in its middle, on white."""
    Image = pillow()
    scale = side / max(picture.size)
    width, height = (max(1, round(scale * length)) for length in picture.size)
    resized = picture.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)
    if width == height == side:
        return resized
    padded = Image.new("RGB", (side, side), WHITE[:3])
    padded.paste(resized, ((side - width) // 2, (side - height) // 2))
    return padded


# Pictures that a font draws, kept as files in the data home.


VERSION = 1
SIZE = 128
"""Pixels of the font's em."""
SUM = "sum.txt"


def drawn_pictures(font: Path, names: Sequence[str], progress: Progress | None = None) -> dict[str, Path]:
    """Draw each emoji, called by its code points, as a PNG; those that the font has no picture of are left out.

    What a font draws depends on what reads it, so that the files are kept by the versions of these too.
    """
    folder = home_folder("drawn") / _key(font, names)
    if folder.is_dir() and not _intact(folder):
        rmtree(folder)
    if not folder.is_dir():
        _draw_all(font, names, folder, progress)
    return {path.name: path for path in sorted(folder.glob("*.png"))}


def _key(font: Path, names: Sequence[str]) -> str:
    from PIL import features

    readers = [pillow().__version__, features.version("freetype2"), features.version("raqm")]
    return text_sum(json.dumps([VERSION, SIZE, file_sum(font), list(names), readers]))[:32]


def _intact(folder: Path) -> bool:
    said = folder / SUM
    return said.is_file() and said.read_text(encoding="utf-8") == files_sum(sorted(folder.glob("*.png")))


def _draw_all(path: Path, names: Sequence[str], folder: Path, progress: Progress | None) -> None:
    pillow()
    from PIL import ImageFont

    font = ImageFont.truetype(path, SIZE)
    advance = counting(progress, "drawing pictures", len(names))
    with new_folder(folder) as files:
        for name in names:
            picture = _draw(font, characters(Path(name).stem))
            if picture is not None:
                picture.save(files / name)
            advance(1)
        (files / SUM).write_text(files_sum(sorted(files.glob("*.png"))), encoding="utf-8")


def _draw(font: Any, text: str) -> Any | None:
    """The one picture of a text; None if it is none, or several side by side.

    All pictures of the font are equally wide; the sign for what it lacks is narrower, and two pictures are wider.
    """
    from PIL import ImageDraw

    if abs(font.getlength(text) - font.getlength("\N{GRINNING FACE}")) > 0.5:
        return None
    picture = pillow().new("RGBA", (3 * SIZE, 3 * SIZE))
    ImageDraw.Draw(picture).text((SIZE, SIZE), text, font=font, embedded_color=True, anchor="lt")
    box = picture.getchannel("A").getbbox()
    return picture.crop(box) if box else None


# Pictures and their captions as numbers, batch by batch.


@dataclass(frozen=True)
class Captioned:
    """Pictures as pixels, each with the tokens of one caption or several."""

    pixels: UInt8[np.ndarray, "pictures 3 side side"]
    rows: Rows
    """The tokens of all captions."""
    first: Int64[np.ndarray, "pictures_and_one"]
    """Picture i owns the captions first[i] to first[i + 1]."""
    names: Int64[np.ndarray, "captions"]
    """A number of each caption, the same wherever the same is said, known to the tokenizer or not."""

    @property
    def lengths(self) -> Int64[np.ndarray, "pictures"]:
        """The tokens of each picture's longest caption, marks included."""
        return np.maximum.reduceat(self.rows.lengths, self.first[:-1])

    def __len__(self) -> int:
        """The tokens of all captions together."""
        return len(self.rows)

    def batch(
        self, indices: Indices, choice: int | Int64[np.ndarray, "batch"] = 0
    ) -> tuple[UInt8[np.ndarray, "batch 3 side side"], Int64[np.ndarray, "batch longest"]]:
        """Some pictures, and of each the caption of that number, counted round, filled up with −1."""
        return np.asarray(self.pixels[np.asarray(indices, dtype=np.int64)]), self.captions(indices, choice)

    def captions(
        self, indices: Indices, choice: int | Int64[np.ndarray, "batch"] = 0
    ) -> Int64[np.ndarray, "batch longest"]:
        """The captions of that number of some pictures, counted round, filled up with −1."""
        places = np.asarray(indices, dtype=np.int64)
        return self.rows.beside(self.first[places] + choice % np.diff(self.first)[places])


# One picture: from a file of any common format to pixels, upright, on white, in a square.


FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "DIB", "TIFF", "PPM", "ICO", "AVIF", "JPEG2000")
"""What is read, told by a file's first bytes; formats that Pillow would hand to another program are not among them."""
# fmt: off
SUFFIXES = frozenset({
    ".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".webp", ".bmp", ".dib", ".tif", ".tiff", ".ppm",
    ".pgm", ".pbm", ".pnm", ".ico", ".avif", ".jp2",
})
# fmt: on
LARGEST = 100_000_000
"""Pixels of a picture that is still decoded: a few kilobytes can be made to unpack to any number of them."""
TOGETHER = 64
"""Pictures that are decoded at a time."""

Pixels = UInt8[np.ndarray, "3 side side"]


def read_picture(path: Path, side: int) -> Pixels:
    """Read a picture, turned as its camera says, on white, padded with white to a square of so many pixels a side."""
    with quietly():
        return decode(path, side)


def read_pictures(paths: Sequence[Path], side: int, *, framed: bool = False) -> Iterator[Pixels | DataError]:
    """Read many pictures in threads, in order; in the place of one that cannot be read comes the error."""

    pillow()

    def attempt(path: Path) -> Pixels | DataError:
        try:
            return decode(path, side, framed=framed)
        except DataError as error:
            return error

    with ThreadPoolExecutor(os.cpu_count()) as threads:  # no more: each may hold a large picture
        for start in range(0, len(paths), TOGETHER):
            with quietly():
                read = list(threads.map(attempt, paths[start : start + TOGETHER]))
            yield from read


def thumbnail(path: Path, side: int) -> bytes:
    """A picture as a small PNG, no side longer than so many pixels, for a page."""
    with quietly(), opened(path, side) as picture:
        small, written = on_white(picture), io.BytesIO()
        small.thumbnail((side, side))
        small.save(written, format="PNG")
    return written.getvalue()


def decode(path: Path, side: int, *, framed: bool = False) -> Pixels:
    """Read a picture; `framed` cuts off what is transparent around a drawing first."""
    with opened(path, side) as picture:
        whole = on_white(frame(picture) if framed else picture)
        pixels = np.asarray(square(whole, side))
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


@contextmanager
def quietly() -> Iterator[None]:
    """Without Pillow's warnings of odd files: what can be read is read, the rest is an error of ours.

    Warnings are filtered for the whole process, so that this stands around threads, not within them.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def opened(path: Path, side: int) -> Iterator["Image"]:
    """A picture, turned upright; whatever its file does wrong is a DataError with the reason."""
    Image = pillow()
    from PIL.ImageOps import exif_transpose

    try:
        with Image.open(path, formats=_formats()) as picture:
            picture.draft(None, (2 * side, 2 * side))  # JPEG alone: decoded at a size near the one that is needed
            _refuse_huge(picture)
            exif_transpose(picture, in_place=True)
            yield picture
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except Exception as error:  # Pillow's readers raise a dozen kinds of errors on files that are damaged
        raise DataError(f"{path}: {_reason(path, error)}") from None


@cache
def _formats() -> list[str]:
    Image = pillow()
    Image.init()
    return [known for known in FORMATS if known in Image.OPEN]


def _refuse_huge(picture: "Image") -> None:
    width, height = picture.size
    if width * height > LARGEST:
        raise DataError(f"{width:,} × {height:,} pixels are more than the {LARGEST:,} that are decoded")


def _reason(path: Path, error: Exception) -> str:
    if not path.is_file():
        return "there is no such file"
    if not path.stat().st_size:
        return "the file is empty"
    if type(error).__name__ == "UnidentifiedImageError":
        return "no picture of a format that is known"
    if type(error).__name__ == "DecompressionBombError":
        return f"more than the {LARGEST:,} pixels that are decoded"
    return " ".join(str(error).split())[:80] or type(error).__name__


# A folder of one's own: the pictures below it, and the table that says what they show.


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
    return sorted(path for path in _folder_below(folder, SUFFIXES) if path.is_file())


def captions_table(folder: Path, captions: str | None, image: str | None, caption: str | None) -> Table:
    """Read the table of captions: the one that is named, else the only one in the folder."""
    path = _named(folder, captions) if captions is not None else _only(folder)
    columns = [Column("image", image, IMAGES), Column("caption", caption, CAPTIONS, needed=False)]
    return read_table(path, columns, any_width=True, is_header=_looks)


def _folder_below(folder: Path, suffixes: Collection[str]) -> Iterator[Path]:
    """The files of some kinds in a folder and in those below it."""
    for place, inner, names in os.walk(folder, followlinks=False):
        inner[:] = [name for name in inner if not name.startswith(".")]
        meant = (name for name in names if name.lower().endswith(tuple(suffixes)))
        yield from (Path(place, name) for name in meant if not name.startswith("."))


def _named(folder: Path, captions: str) -> Path:
    inside = folder / captions
    return inside if exists(inside) and not exists(Path(captions)) else Path(captions)


def _only(folder: Path) -> Path:
    tables = sorted(_folder_below(folder, TABLES))
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


# The SHA-256 sums of many files, read in threads.


def picture_sums(paths: Sequence[Path], progress: Progress | None = None) -> list[str]:
    """The sum of each file; of one that cannot be read, which is said when it is decoded, the sum of its path."""
    sizes = [size_of(path) for path in paths]
    advance = counting(progress, "reading pictures", sum(sizes))
    sums: list[str] = []
    with ThreadPoolExecutor() as threads:
        for size, total in zip(sizes, threads.map(_sum, paths), strict=True):
            sums.append(total)
            advance(size)
    return sums


def size_of(path: Path) -> int:
    """The bytes of a file; none if it is gone."""
    return path.stat().st_size if exists(path) else 0


def _sum(path: Path) -> str:
    try:
        return file_sum(path)
    except OSError:
        return text_sum(f"{path} cannot be read")


# Which pictures there are and what is said of them, before any is decoded: a set by name, or one's own folder.


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
    table = captions_table(files[CAPTION_COLUMNS].parent, None, None, None)
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


# Pictures into training, validation and test: each split is one stretch of the list, which has a drawn order.


Stretches = dict[str, slice]
FEWEST = 4
"""Different pictures that there must be: two to learn, one to validate, one to test."""


def divide(listing: Listing, kept: Sequence[int], held_out: float) -> Stretches:
    """Divide the pictures that are kept: a set known by name by each name alone, so that another style of it is divided
    the same way whatever it lacks; a folder by number, equal files together.
    """
    keys = [listing.keys[place] for place in kept]
    if (different := len(set(keys))) < FEWEST:
        raise DataError(
            f"{listing.about}: {different} different pictures are too few to learn from some and hold others out. "
            f"Give at least {FEWEST}."
        )
    if listing.named:
        test, validation = (_below(keys, share) for share in (held_out, 2 * held_out))
    else:
        test = _whole_groups(keys, max(1, round(held_out * len(keys))))
        validation = _whole_groups(keys, test + max(1, round(held_out * len(keys))))
    bounds = {"train": (validation, len(keys)), "validation": (test, validation), "test": (0, test)}
    if empty := [split for split, (start, stop) in bounds.items() if start == stop]:
        raise DataError(f"{listing.about}: {different:,} different pictures leave none for {' and '.join(empty)}.")
    return {split: slice(*both) for split, both in bounds.items()}


def _below(keys: Sequence[str], share: float) -> int:
    """How many keys, which come in this order, draw a number in the lowest share of all."""
    return sum(drawn(key, "split") < share * 2**64 for key in keys)


def _whole_groups(keys: Sequence[str], count: int) -> int:
    """The first place from `count` on where another picture begins."""
    while 0 < count < len(keys) and keys[count] == keys[count - 1]:
        count += 1
    return count


# Captions and queries as a text tower reads them: what is written in two ways is read in one.


def levelled(text: str) -> str:
    """Small letters, and one blank before every word, the first one too: a word has the same tokens wherever it stands.

    >>> levelled("A  Red heart")
    ' a red heart'
    """
    return "".join(f" {word}" for word in text.lower().split())


def numbered(texts: Iterable[str]) -> Int64[np.ndarray, "texts"]:
    """A number of each text, the same for texts that are read as one, in whichever set they stand: 64 bits of a hash.

    >>> one, other, different = numbered(["A  Red heart", "a red heart", "a blue heart"]).tolist()
    >>> one == other, one == different
    (True, False)
    """
    sums = (blake2b(levelled(text).encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(sums), dtype="<i8").astype(np.int64)


# The pixels of a list of pictures: decoded once, kept in one memory-mapped file.


"""Of what is done to a picture on its way to pixels."""
HEADER = "pixels.json"
PIXELS = "pixels.bin"


@dataclass(frozen=True)
class Decoded:
    """The pixels of those pictures that could be read, in the order of their list."""

    pixels: UInt8[np.ndarray, "pictures 3 side side"] = field(repr=False)
    broken: dict[int, str]
    """The places in the list of those that could not be read, with the reason."""


def decoded(listing: Listing, side: int, progress: Progress | None = None) -> Decoded:
    """Decode pictures, or take what was decoded of the same files before."""
    key = [VERSION, side, listing.named, pillow().__version__, *listing.sums]
    folder = home_folder("pictures") / text_sum(json.dumps(key))[:32]
    try:
        return _load(folder, side, len(listing.pictures))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # not there yet, or damaged
        if folder.is_dir():
            rmtree(folder)
    _write(folder, listing, side, progress)
    return _load(folder, side, len(listing.pictures))


def _load(folder: Path, side: int, count: int) -> Decoded:
    broken = {int(place): str(why) for place, why in json.loads((folder / HEADER).read_text(encoding="utf-8")).items()}
    shape = (count - len(broken), 3, side, side)
    if (folder / PIXELS).stat().st_size != np.prod(shape, dtype=np.int64):
        raise ValueError("the file of pixels is not as long as its header says")
    pixels = np.memmap(folder / PIXELS, np.uint8, "r", shape=shape) if shape[0] else np.zeros(shape, np.uint8)
    return Decoded(pixels, broken)


def _write(folder: Path, listing: Listing, side: int, progress: Progress | None) -> None:
    paths = [picture.path for picture in listing.pictures]
    sizes = [size_of(path) for path in paths]
    advance = counting(progress, "decoding pictures", sum(sizes))
    broken: dict[int, str] = {}
    with new_folder(folder) as temporary:
        with (temporary / PIXELS).open("wb") as file:
            for place, read in enumerate(read_pictures(paths, side, framed=listing.named)):
                if isinstance(read, DataError):
                    broken[place] = str(read).removeprefix(f"{paths[place]}: ")
                else:
                    file.write(read.tobytes())  # not through a map: its touched pages would count as memory
                advance(sizes[place])
        (temporary / HEADER).write_text(json.dumps(broken), encoding="utf-8")


# Pictures with captions as data: `prepare_images` for training, `read_images` for judging others.


WHOLE = "images"
"""The one split of a folder that is judged."""


@dataclass(frozen=True)
class ImagesData:
    """Pictures with captions, ready for training or judging."""

    tokenizer: Tokenizer
    hash: str
    """The SHA-256 of the table and the files."""
    about: str
    """What they are, in words."""
    skipped: tuple[str, ...]
    """What was taken, left out or cut, in words."""
    by_split: Mapping[str, tuple[Picture, ...]] = field(repr=False)
    tokens_by_split: Mapping[str, Captioned] = field(repr=False)
    marked: bool
    """Whether each caption stands between `<start>` and `<end>`."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self.by_split)

    def pictures(self, split: str) -> tuple[Picture, ...]:
        """The pictures of a split with their captions."""
        return self.by_split[self._known(split)]

    def tokens(self, split: str) -> Captioned:
        """The pictures of a split as pixels and tokens, in the same order."""
        return self.tokens_by_split[self._known(split)]

    def sizes(self) -> dict[str, int]:
        """What a model has to know of the data's size."""
        return {"vocabulary": self.tokenizer.vocabulary + (len(MARKS) if self.marked else 0)}

    def _known(self, split: str) -> str:
        if split not in self.by_split:
            raise DataError(f"there is no split '{split}' in {self.about}. It has: {', '.join(self.splits)}.")
        return split


def prepare_images(
    spec: ImagesSpec,
    *,
    side: int,
    length: int,
    marked: bool,
    tokenizer: Tokenizer | None = None,
    progress: Progress | None = None,
) -> ImagesData:
    """Read pictures for training, each of `side` × `side` pixels, and the first `length` tokens of their captions.

    With `marked` a caption stands between `<start>` and `<end>`, which count. Captions are read in small letters. The
    tokenizer is learned from the training captions unless one is given.
    """
    listing = list_pictures(spec.images, spec.captions, spec.image, spec.caption, progress)
    read, kept = _readable(listing, side, progress)
    stretches = divide(listing, kept, spec.held_out)
    if tokenizer is None:
        training = [listing.pictures[place] for place in kept[stretches["train"]]]
        texts = [levelled(caption) for picture in training for caption in picture.captions]
        tokenizer = learned_tokenizer(spec.tokenizer, texts, progress)
    return _joined(listing, read, kept, stretches, listing.about, tokenizer, length, marked, progress)


def read_images(
    name: str,
    *,
    side: int,
    length: int,
    marked: bool,
    tokenizer: Tokenizer,
    captions: str | None = None,
    image: str | None = None,
    caption: str | None = None,
    held_out: float = ImagesSpec.model_fields["held_out"].default,
    split: str | None = None,
    progress: Progress | None = None,
) -> ImagesData:
    """Read pictures to judge, as one split: of a set known by name `split` or else its test, of a folder all."""
    listing = list_pictures(name, captions, image, caption, progress)
    read, kept = _readable(listing, side, progress)
    stretches, about = {WHOLE: slice(0, len(kept))}, listing.about
    if listing.named or split is not None:
        chosen, divided = split or "test", divide(listing, kept, held_out)
        if chosen not in divided:
            raise DataError(unknown("split", chosen, divided))
        stretches, about = {chosen: divided[chosen]}, f"{listing.about} ({chosen})"
    return _joined(listing, read, kept, stretches, about, tokenizer, length, marked, progress)


def _readable(listing: Listing, side: int, progress: Progress | None) -> tuple[Decoded, list[int]]:
    """The pixels, and the places in the list of the pictures that they are of."""
    read = decoded(listing, side, progress)
    kept = [place for place in range(len(listing.pictures)) if place not in read.broken]
    if not kept:
        raise DataError(f"{listing.about}: no picture could be read: {'; '.join(_broken(listing, read))}.")
    return read, kept


def _broken(listing: Listing, read: Decoded) -> list[str]:
    names = sorted(f"{listing.pictures[place].name} ({why})" for place, why in read.broken.items())
    return told(names, "pictures cannot be read", "picture cannot be read")


def _joined(
    listing: Listing,
    read: Decoded,
    kept: Sequence[int],
    stretches: Stretches,
    about: str,
    tokenizer: Tokenizer,
    length: int,
    marked: bool,
    progress: Progress | None,
) -> ImagesData:
    pictures = {
        split: tuple(listing.pictures[place] for place in kept[stretch]) for split, stretch in stretches.items()
    }
    texts = {split: [levelled(text) for one in some for text in one.captions] for split, some in pictures.items()}
    rows, cut = encode_marked(texts, tokenizer, length, marked, "captions", progress)
    tokens = {split: _captioned(read, stretch, pictures[split], rows[split]) for split, stretch in stretches.items()}
    said = (*listing.said, *_broken(listing, read), *cut)
    return ImagesData(tokenizer, listing.hash, about, said, pictures, tokens, marked)


def _captioned(read: Decoded, stretch: slice, pictures: Sequence[Picture], rows: Rows) -> Captioned:
    counts = [len(picture.captions) for picture in pictures]
    names = numbered(caption for picture in pictures for caption in picture.captions)
    return Captioned(read.pixels[stretch], rows, np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]), names)
