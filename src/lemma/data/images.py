"""Images with captions: listed, decoded once, split, tokenized."""

import io
import json
import os
import unicodedata
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Int64, UInt8

from lemma.data.batches import Indices, TokenRows
from lemma.data.corpora import CAPTIONS, IMAGES, emoji_text, fetch_corpus
from lemma.data.splits import (
    SPLITS,
    Splits,
    combine_split_hashes,
    count_overlaps,
    hash_to_int,
    select_split,
    split_files,
)
from lemma.data.store import encode_splits, load_or_train_tokenizer
from lemma.data.tables import TABLE_SUFFIXES as TABLES
from lemma.data.tables import Column, DataTable, read_table
from lemma.data.tokenizers import PRETRAINED, Tokenizer
from lemma.errors import DataError, describe_unknown
from lemma.files import (
    Progress,
    atomic_new_folder,
    combine_hashes,
    file_checksum,
    file_hash,
    files_hash,
    home_folder,
    progress_counter,
    read_checked_json,
    real_path,
    text_hash,
    verify_file,
    with_checksum,
)
from lemma.spec.base import exists
from lemma.spec.data import ImagesSpec
from lemma.spec.models import SPECIAL_TOKENS

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "DIB", "TIFF", "PPM", "ICO", "AVIF", "JPEG2000")
"""What is read, told by a file's first bytes; formats that Pillow would hand to another program are not among them."""
# fmt: off
IMAGE_SUFFIXES = frozenset({
    ".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".webp", ".bmp", ".dib", ".tif", ".tiff", ".ppm",
    ".pgm", ".pbm", ".pnm", ".ico", ".avif", ".jp2",
})
IMAGE_COLUMNS = frozenset({
    "images", "file", "files", "filename", "file_name", "filepath", "path", "picture", "photo", "img", "image_path",
    "image_file", "image_name",
})
CAPTION_COLUMNS = frozenset({"captions", "text", "name", "title", "description", "sentence", "label", "alt"})
"""Names that columns of images and of captions often have."""
# fmt: on
MAX_PIXELS = 100_000_000
"""Pixels of an image that is still decoded: a few kilobytes can be made to unpack to any number of them."""
DECODE_BATCH = 64
"""Images that are decoded at a time."""
WHITE = (255, 255, 255, 255)
DECODING_VERSION = 1
"""Of what is done to an image on its way to pixels."""
FONT_SIZE = 128
"""Pixels of the font's em."""
MAX_NAMED = 3
"""How many of those that are left out are named."""
MIN_IMAGES = 4
"""Different images that there must be: two to train, one to validate, one to test."""

Pixels = UInt8[np.ndarray, "3 side side"]

# One image: from a file of any common format to pixels, upright, on white, in a square.


def import_pillow() -> Any:
    """Pillow's module of images, or an error that says how to get it."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError(
            "images are read by Pillow, which is not installed. Install it: pip install 'lemma-lm[images]'"
        ) from None
    return Image


def decode_image(path: Path, side: int, *, crop_margins: bool = False) -> Pixels:
    """Read an image, rotated as its camera says, on white, padded with white to a square of `side` × `side` pixels.

    `framed` cuts off what is transparent around a drawing first.
    """
    with _without_warnings():
        return _decode(path, side, crop_margins)


def decode_images(paths: Sequence[Path], side: int, *, crop_margins: bool = False) -> Iterator[Pixels | DataError]:
    """Read many images in threads, in order; for one that cannot be read the error comes instead."""
    import_pillow()

    def attempt(path: Path) -> Pixels | DataError:
        try:
            return _decode(path, side, crop_margins)
        except DataError as error:
            return error

    with ThreadPoolExecutor(os.cpu_count()) as threads:  # no more: each may hold a large image
        for start in range(0, len(paths), DECODE_BATCH):
            with _without_warnings():
                read = list(threads.map(attempt, paths[start : start + DECODE_BATCH]))
            yield from read


def make_thumbnail(path: Path, side: int) -> bytes:
    """An image as a small PNG, no side longer than `side` pixels, for a page."""
    with _without_warnings(), _opened(path, side) as image:
        small, written = _on_white(image), io.BytesIO()
        small.thumbnail((side, side))
        small.save(written, format="PNG")
    return written.getvalue()


def _decode(path: Path, side: int, framed: bool) -> Pixels:
    Image = import_pillow()
    with _opened(path, side) as image:
        image = _on_white(_frame(image) if framed else image)
        scale = side / max(image.size)
        width, height = (max(1, round(scale * length)) for length in image.size)
        square = image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)
        if width != side or height != side:
            resized, square = square, Image.new("RGB", (side, side), WHITE[:3])
            square.paste(resized, ((side - width) // 2, (side - height) // 2))
    return np.ascontiguousarray(np.asarray(square).transpose(2, 0, 1))


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Without Pillow's warnings about odd files: what can be read is read, the rest is an error of ours.

    Warnings are filtered for the whole process, so that this is used around threads, not within them.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _opened(path: Path, side: int) -> Iterator["Image"]:
    """An image, turned upright; whatever is wrong with its file is a DataError with the reason."""
    Image = import_pillow()
    from PIL.ImageOps import exif_transpose

    try:
        Image.init()
        with Image.open(path, formats=[known for known in IMAGE_FORMATS if known in Image.OPEN]) as image:
            image.draft(None, (2 * side, 2 * side))  # JPEG alone: decoded at a size near the one that is needed
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise DataError(f"{width:,} × {height:,} pixels are more than the {MAX_PIXELS:,} that are decoded")
            exif_transpose(image, in_place=True)
            yield image
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except Exception as error:  # Pillow's readers raise a dozen kinds of errors on damaged files
        raise DataError(f"{path}: {_reason(path, error)}") from None


def _reason(path: Path, error: Exception) -> str:
    if not path.is_file():
        return "there is no such file"
    if not path.stat().st_size:
        return "the file is empty"
    if type(error).__name__ == "UnidentifiedImageError":
        return "not an image of a known format"
    if type(error).__name__ == "DecompressionBombError":
        return f"more than the {MAX_PIXELS:,} pixels that are decoded"
    return " ".join(str(error).split())[:80] or type(error).__name__


def _on_white(image: "Image") -> "Image":
    """An image in red, green and blue; what is transparent is white."""
    if image.mode.startswith(("I", "F")):  # one deep channel: 16 bits, fractions from 0 to 1, or from least to most
        values = np.nan_to_num(np.asarray(image, dtype=np.float64))
        least, most = float(values.min()), float(values.max())
        white = 1.0 if image.mode == "F" else 65_535.0
        if least < 0 or most > white:
            values, white = values - least, most - least
        image = import_pillow().fromarray(np.rint(values * (255 / white)).astype(np.uint8))
    if image.mode not in ("RGBA", "LA", "PA", "La", "RGBa") and "transparency" not in image.info:
        return image.convert("RGB")
    over = image.convert("RGBA")
    return import_pillow().alpha_composite(import_pillow().new("RGBA", over.size, WHITE), over).convert("RGB")


def _frame(image: "Image") -> "Image":
    """A drawing cut to what is not transparent, in the middle of a square with a small margin."""
    whole = image.convert("RGBA")
    box = whole.getchannel("A").getbbox()
    if box is None:
        raise DataError("nothing is drawn in it")
    left, top, right, bottom = box
    longest = max(right - left, bottom - top)
    side = longest + 2 * round(longest / 16)  # what is left free on each side
    left, top = left - (side - (right - left)) // 2, top - (side - (bottom - top)) // 2
    return whole.crop((left, top, left + side, top + side))


# Images that a font draws, kept as files in the data home.


def draw_emoji(font: Path, names: Sequence[str], progress: Progress | None = None) -> dict[str, Path]:
    """Draw each emoji, named by its code points, as a PNG; those that the font has no image of are left out.

    All images of the font are equally wide; the sign for what it lacks is narrower, and two images are wider. What a
    font draws depends on what reads it, so that the files are kept by the versions of these too.
    """
    Image = import_pillow()
    from PIL import ImageDraw, ImageFont, features

    readers = [Image.__version__, features.version("freetype2"), features.version("raqm")]
    key = text_hash(json.dumps([DECODING_VERSION, FONT_SIZE, file_hash(font), list(names), readers]))[:32]
    folder = home_folder("drawn") / key
    hash_file = folder / "sum.txt"
    if folder.is_dir() and not (hash_file.is_file() and hash_file.read_text(encoding="utf-8") == _hash_of_pngs(folder)):
        rmtree(folder)
    if not folder.is_dir():
        loaded = ImageFont.truetype(font, FONT_SIZE)
        advance = progress_counter(progress, "drawing images", len(names))
        with atomic_new_folder(folder) as files:
            for name in names:
                text = emoji_text(Path(name).stem)
                image = Image.new("RGBA", (3 * FONT_SIZE, 3 * FONT_SIZE))
                if abs(loaded.getlength(text) - loaded.getlength("\N{GRINNING FACE}")) <= 0.5:
                    place = (FONT_SIZE, FONT_SIZE)
                    ImageDraw.Draw(image).text(place, text, font=loaded, embedded_color=True, anchor="lt")
                if box := image.getchannel("A").getbbox():
                    image.crop(box).save(files / name)
                advance(1)
            (files / hash_file.name).write_text(_hash_of_pngs(files), encoding="utf-8")
    return {path.name: path for path in sorted(folder.glob("*.png"))}


def _hash_of_pngs(folder: Path) -> str:
    return files_hash(sorted(folder.glob("*.png")))


# Which images there are and what is said of them, before any is decoded: a set known by name, or a person's folder.


class ImageFile(NamedTuple):
    """An image's file, its name in the table's folder, and its captions."""

    name: str
    path: Path
    captions: tuple[str, ...]


@dataclass(frozen=True)
class ImageList:
    """Images in a shuffled order, so that every split is one slice of it; then those of the splits that are given."""

    images: tuple[ImageFile, ...] = field(repr=False)
    keys: tuple[str, ...] = field(repr=False)
    """What decides on each image's split: its name in a set known by name, else the SHA-256 of its file."""
    hashes: tuple[str, ...] = field(repr=False)
    """The SHA-256 of each file."""
    hash: str
    description: str
    notes: tuple[str, ...]
    is_builtin: bool
    """Whether the set is known by name: drawings that are framed, and split by their names."""
    provided_splits: tuple[str, ...] = field(default=(), repr=False)
    """The split that each image is given for; "" for one whose split is to be drawn."""
    split_hashes: Mapping[str, str] = field(default_factory=dict)
    """The SHA-256 of each split, where some are given."""


def list_images(
    name: str,
    captions: str | None = None,
    image: str | None = None,
    caption: str | None = None,
    progress: Progress | None = None,
    splits: Mapping[str, str] | None = None,
) -> ImageList:
    """List the images of a set known by name, or those of a folder that its table of captions names.

    `splits` are the tables of captions whose images are the validation and the test split.
    """
    splits, tables = splits or {}, {}
    if name in IMAGES:
        for word, value in {"captions": captions, "image": image, "caption": caption, **splits}.items():
            if value is not None:
                raise DataError(f"{word} = '{value}': {name} has captions of its own. Leave {word} out.")
        files = {path.name: path for path in fetch_corpus(IMAGES[name], progress)}
        table = _captions_table(files[CAPTIONS].parent, None, None, None)
        listed = dict(zip(table.cells["image"], table.cells["caption"], strict=True))
        fonts = [path for path in files.values() if path.suffix == ".ttf"]
        found = draw_emoji(fonts[0], list(listed), progress) if fonts else files
        images = [("", ImageFile(file, found[file], (words,))) for file, words in listed.items() if file in found]
        missing = [words for file, words in listed.items() if file not in found]
        notes = _counted(missing, "names have no image in the font", "name has no image in the font")
    else:
        root = Path(name)
        if not exists(root) and root.name == name:
            raise DataError(describe_unknown("images", name, IMAGES) + " Or give the path of a folder of images.")
        if not root.is_dir():
            what = "this is not a folder" if exists(root) else "there is no such folder"
            raise DataError(f"{root}: {what}. Give a folder of images with a table of captions in it.")
        others = {split: _captions_table(root, file, image, caption) for split, file in splits.items()}
        tables = {"": _captions_table(root, captions, image, caption, others.values()), **others}
        images, notes = _match(root, tables)

    def hash_one(path: Path) -> str:
        try:
            return file_hash(path)
        except OSError:  # which is said when it is decoded
            return text_hash(f"{path} cannot be read")

    sizes = [_size_of(one.path) for _, one in images]
    advance = progress_counter(progress, "reading images", sum(sizes))
    hashes: list[str] = []
    with ThreadPoolExecutor() as threads:
        for size, own in zip(sizes, threads.map(hash_one, [one.path for _, one in images]), strict=True):
            hashes.append(own)
            advance(size)
    if named := name in IMAGES:
        keys, hash_of_all, split_hashes = [one.captions[0] for _, one in images], IMAGES[name].stored_hash, {}
    else:
        keys, first, of_tables = hashes, dict[str, str](), dict[str, str]()
        own_names = [one.name for _, one in images]
        twins = [one for one, own in zip(own_names, hashes, strict=True) if first.setdefault(own, one) != one]
        notes += _counted(twins, "images are the same file as another", "image is the same file as another")
        for split, table in tables.items():
            by_name = sorted((one.name, own) for (part, one), own in zip(images, hashes, strict=True) if part == split)
            of_tables[split] = combine_hashes([file_hash(table.path), *(own for _, own in by_name)])
        hash_of_all, split_hashes = combine_split_hashes(of_tables.pop(""), of_tables)
        notes = [*(table.note for table in tables.values()), *notes]
    parts = ["", *splits]
    order = sorted(
        range(len(images)),
        key=lambda place: (parts.index(images[place][0]), hash_to_int(keys[place], "split"), images[place][1].name),
    )
    return ImageList(
        images=tuple(images[place][1] for place in order),
        keys=tuple(keys[place] for place in order),
        hashes=tuple(hashes[place] for place in order),
        hash=hash_of_all,
        description=str(Path(name)),
        notes=tuple(notes),
        is_builtin=named,
        provided_splits=tuple(images[place][0] for place in order),
        split_hashes=split_hashes,
    )


def _match(root: Path, tables: Mapping[str, DataTable]) -> tuple[list[tuple[str, ImageFile]], list[str]]:
    """The images below a folder that each table names, with their captions; and in words what does not go together.

    A name is a path from the folder, or that of the only such file anywhere in it.
    """
    names = {path: path.relative_to(root).as_posix() for path in find_images(root)}
    by_path = {unicodedata.normalize("NFC", name): path for path, name in names.items()}  # one spelling of accents
    by_name: dict[str, list[Path]] = {}
    for path in names:
        by_name.setdefault(unicodedata.normalize("NFC", path.name), []).append(path)
    images: list[tuple[str, ImageFile]] = []
    notes: list[str] = []
    for split, table in tables.items():
        captions: dict[Path, dict[str, None]] = {}
        outside: dict[str, None] = {}
        missing: dict[str, None] = {}
        for name, caption in zip(table.cells["image"], table.cells["caption"], strict=True):
            place = os.path.normpath(name.replace("\\", "/"))  # as tables of Windows write it, too
            place = os.path.relpath(place, root) if Path(place).is_absolute() else place
            place = unicodedata.normalize("NFC", place.replace(os.sep, "/"))
            if place == ".." or place.startswith("../"):
                outside[name] = None
                continue
            alone = by_name.get(place, ())
            path = by_path.get(place) or (alone[0] if len(alone) == 1 else root / place)
            if exists(path) and path.is_file():  # which may have a name that does not tell its format
                captions.setdefault(path, {})[caption] = None
            else:
                missing[name] = None
        notes += [
            *_counted((f"line {line}" for line in table.skipped_lines), "captions are empty", "caption is empty"),
            *_counted(outside, "paths lead out of the folder, and were not read", "path leads out of the folder"),
            *_counted(missing, "images of the table are not in the folder", "image of the table is not in the folder"),
        ]
        if not captions:
            rows = f"none of its {len(table):,} rows names an image in {root}"
            raise DataError(f"{table.path}: {rows}: {'; '.join(notes)}.")
        images += [
            (split, ImageFile(path.relative_to(root).as_posix(), path, tuple(some))) for path, some in captions.items()
        ]
    seen = {image.path for _, image in images}
    silent = [name for path, name in names.items() if path not in seen]
    return images, [*notes, *_counted(silent, "images have no caption", "image has no caption")]


def _counted(names: Iterable[str], many: str, one: str) -> list[str]:
    """Say how many there are of something, and name the first few; say nothing if there are none.

    >>> _counted(["a.png", "b.png", "c.png", "d.png"], "images have no caption", "image has no caption")
    ['4 images have no caption: a.png, b.png, c.png and 1 more']
    """
    listed = list(names)
    if not listed:
        return []
    more = f" and {len(listed) - MAX_NAMED:,} more" if len(listed) > MAX_NAMED else ""
    shown = ", ".join(name[:60] for name in listed[:MAX_NAMED])
    return [f"{len(listed):,} {many if len(listed) > 1 else one}: {shown}{more}"]


def find_images(folder: Path) -> list[Path]:
    """All image files in a folder and in those below it, in the order of their paths; hidden ones not."""
    return sorted(path for path in _files_below(folder, IMAGE_SUFFIXES) if path.is_file())


def _files_below(folder: Path, suffixes: Collection[str]) -> Iterator[Path]:
    for place, inner, names in os.walk(folder, followlinks=False):
        inner[:] = [name for name in inner if not name.startswith(".")]
        for name in names:
            if name.lower().endswith(tuple(suffixes)) and not name.startswith("."):
                yield Path(place, name)


def _captions_table(
    folder: Path, captions: str | None, image: str | None, caption: str | None, others: Iterable[DataTable] = ()
) -> DataTable:
    """Read the table of captions: the one that is named, else the only one in the folder besides the others."""
    if captions is not None:
        inside = folder / captions
        path = inside if exists(inside) and not exists(Path(captions)) else Path(captions)
    else:
        known = {real_path(other.path) for other in others}
        tables = sorted(path for path in _files_below(folder, TABLES) if real_path(path) not in known)
        tables = [path for path in tables if path.parent == folder] or tables
        if not tables:
            raise DataError(
                f"{folder}: no table says what the images show. Put there a table captions.csv next to the images, "
                "with a line for each of them:\n  image,caption\n  dogs/rex.jpg,a brown dog in the snow"
            )
        if len(tables) > 1:
            some = ", ".join(str(path.relative_to(folder)) for path in tables[:4])
            raise DataError(f"{folder}: {len(tables)} tables ({some}). Say which holds the captions: captions=FILE.")
        path = tables[0]
    columns = [Column("image", image, IMAGE_COLUMNS), Column("caption", caption, CAPTION_COLUMNS, required=False)]

    def is_header(first: Sequence[str]) -> bool:
        cells = {cell.strip().casefold() for cell in first}
        usual = cells & {"image", "caption", *IMAGE_COLUMNS, *CAPTION_COLUMNS}
        return bool(usual) and not any(cell.endswith(tuple(IMAGE_SUFFIXES)) for cell in cells)

    return read_table(path, columns, any_width=True, is_header=is_header)


def _size_of(path: Path) -> int:
    return path.stat().st_size if exists(path) else 0


# Images and their captions as numbers.


@dataclass(frozen=True)
class CaptionedImages:
    """Images as pixels, each with the tokens of one caption or several."""

    pixels: UInt8[np.ndarray, "images 3 side side"]
    rows: TokenRows
    """The tokens of all captions."""
    caption_bounds: Int64[np.ndarray, " images_and_one"]
    """Image i owns the captions first[i] to first[i + 1]."""
    caption_ids: Int64[np.ndarray, " pad_captions"]
    """A number for each caption, the same for equal captions, whether the tokenizer knows their words or not."""
    images: tuple[ImageFile, ...] = field(default=(), repr=False)

    @property
    def lengths(self) -> Int64[np.ndarray, " images"]:
        """The tokens of each image's longest caption, special tokens included."""
        return np.maximum.reduceat(self.rows.lengths, self.caption_bounds[:-1])

    @property
    def image_indices(self) -> Int64[np.ndarray, " pad_captions"]:
        """The image that each caption belongs to."""
        counts = np.diff(self.caption_bounds)
        return np.repeat(np.arange(len(counts)), counts)

    def __len__(self) -> int:
        """The tokens of all captions together."""
        return len(self.rows)

    def batch(
        self, indices: Indices, choice: int | Int64[np.ndarray, " batch"] = 0
    ) -> tuple[UInt8[np.ndarray, "batch 3 side side"], Int64[np.ndarray, "batch longest"]]:
        """Some images, and of each its caption of that number (modulo how many it has), padded with −1."""
        return np.asarray(self.pixels[np.asarray(indices, dtype=np.int64)]), self.pad_captions(indices, choice)

    def pad_captions(
        self, indices: Indices, choice: int | Int64[np.ndarray, " batch"] = 0
    ) -> Int64[np.ndarray, "batch longest"]:
        """The captions of that number of some images, modulo how many each has, padded with −1."""
        places = np.asarray(indices, dtype=np.int64)
        return self.rows.pad(self.caption_bounds[places] + choice % np.diff(self.caption_bounds)[places])


def normalise_caption(text: str) -> str:
    """Lower case, and one space before every word, the first one too: a word has the same tokens wherever it occurs.

    >>> lowercase("A  Red heart")
    ' a red heart'
    """
    return "".join(f" {word}" for word in text.lower().split())


def hash_captions(texts: Iterable[str]) -> Int64[np.ndarray, " texts"]:
    """A number for each text, the same for texts that are read alike, in whichever set they are: 64 bits of a hash.

    >>> one, other, different = number_captions(["A  Red heart", "a red heart", "a blue heart"]).tolist()
    >>> one == other, one == different
    (True, False)
    """
    hashes = (
        blake2b(normalise_caption(text).encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts
    )
    return np.frombuffer(b"".join(hashes), dtype="<i8").astype(np.int64)


def split_images(listing: ImageList, readable: Sequence[int], held_out: float) -> dict[str, slice]:
    """Split the images that are kept: a set known by name by each name alone, so that another style of it is split the
    same way whatever it lacks; a folder by number, with equal files together. Splits that are given come last.
    """
    keys = [listing.keys[place] for place in readable if not listing.provided_splits[place]]
    drawn, different = (
        [split for split in ("test", "validation") if split not in listing.provided_splits],
        len(set(keys)),
    )
    if drawn and different < MIN_IMAGES:
        raise DataError(
            f"{listing.description}: {different} different images are too few to train on some and hold others out. "
            f"Give at least {MIN_IMAGES}."
        )
    numbers = [hash_to_int(key, "split") for key in keys] if listing.is_builtin else []
    stops = [0]
    for place in range(1, len(drawn) + 1):
        if listing.is_builtin:
            stops.append(sum(number < place * held_out * 2**64 for number in numbers))
        else:
            stop = stops[-1] + max(1, round(held_out * len(keys)))
            while stop < len(keys) and keys[stop] == keys[stop - 1]:  # as far as another image begins
                stop += 1
            stops.append(stop)
    bounds = {**dict(zip(drawn, pairwise(stops), strict=True)), "train": (stops[-1], len(keys))}
    start = len(keys)
    for split in dict.fromkeys(filter(None, listing.provided_splits)):
        bounds[split] = (start, start + sum(listing.provided_splits[place] == split for place in readable))
        start = bounds[split][1]
    if empty := [split for split in SPLITS if bounds[split][0] >= min(bounds[split][1], len(readable))]:
        raise DataError(f"{listing.description}: {different:,} different images leave none for {' and '.join(empty)}.")
    return {split: slice(*bounds[split]) for split in SPLITS}


# The pixels of a list of images: decoded once, kept in one memory-mapped file.


def _decode_once(
    listing: ImageList, side: int, progress: Progress | None
) -> tuple[UInt8[np.ndarray, "images 3 side side"], dict[int, str]]:
    """The pixels of the images that can be read, and the places in the list of the others, with the reason."""
    key = [DECODING_VERSION, side, listing.is_builtin, import_pillow().__version__, *listing.hashes]
    folder = home_folder("pictures") / text_hash(json.dumps(key))[:32]
    try:
        return _load_pixels(folder, side, len(listing.images))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # not there yet, or damaged: a RunError too
        if folder.is_dir():
            rmtree(folder)
    paths = [image.path for image in listing.images]
    sizes = list(map(_size_of, paths))
    advance = progress_counter(progress, "decoding images", sum(sizes))
    broken: dict[int, str] = {}
    with atomic_new_folder(folder) as temporary:
        with (temporary / "pixels.bin").open("wb") as file:
            for place, read in enumerate(decode_images(paths, side, crop_margins=listing.is_builtin)):
                if isinstance(read, DataError):
                    broken[place] = str(read).removeprefix(f"{paths[place]}: ")
                else:
                    file.write(read.tobytes())  # not through a map: its touched pages would count as memory
                advance(sizes[place])
        header = with_checksum({"broken": broken, "file": file_checksum(temporary / "pixels.bin")})
        (temporary / "pixels.json").write_text(json.dumps(header), encoding="utf-8")
    return _load_pixels(folder, side, len(listing.images))


def _load_pixels(folder: Path, side: int, count: int) -> tuple[np.ndarray, dict[int, str]]:
    header = read_checked_json(folder / "pixels.json")
    verify_file(folder / "pixels.bin", header["file"], "pixels.json")
    broken = {int(place): str(reason) for place, reason in header["broken"].items()}
    shape = (count - len(broken), 3, side, side)
    if (folder / "pixels.bin").stat().st_size != np.prod(shape, dtype=np.int64):
        raise ValueError("the file of pixels is not as long as its header says")
    return np.memmap(folder / "pixels.bin", np.uint8, "r", shape=shape) if shape[0] else np.zeros(
        shape, np.uint8
    ), broken


def prepare_images(
    spec: ImagesSpec,
    *,
    side: int,
    length: int,
    special_tokens: bool,
    tokenizer: Tokenizer | None = None,
    evaluation: bool = False,
    split: str | None = None,
    progress: Progress | None = None,
) -> Splits[CaptionedImages]:
    """Read images of `side` × `side` pixels, and the first `length` tokens of their captions.

    For `evaluation` as one split: of a set known by name or with splits of its own `split` or else `test`, of a folder
    all. With `special_tokens` a caption is put between `<start>` and `<end>`, which count. Captions are read in lower
    case. The tokenizer is trained on the training captions unless one is given.
    """
    listing = list_images(spec.images, spec.captions, spec.image, spec.caption, progress, split_files(spec))
    pixels, broken = _decode_once(listing, side, progress)
    kept = [place for place in range(len(listing.images)) if place not in broken]
    unread = _counted(
        sorted(f"{listing.images[place].name} ({reason})" for place, reason in broken.items()),
        "images cannot be read",
        "image cannot be read",
    )
    if not kept:
        raise DataError(f"{listing.description}: no image could be read: {'; '.join(unread)}.")
    slices, about, overlaps = {"images": slice(0, len(kept))}, listing.description, ()
    if not evaluation or split is not None or listing.is_builtin or any(listing.provided_splits):
        slices = split_images(listing, kept, spec.held_out)
        if any(listing.provided_splits):
            hashes = {part: [listing.hashes[place] for place in kept[own]] for part, own in slices.items()}
            overlaps = count_overlaps(hashes, "images")
        if evaluation:
            slices, about = select_split(slices, split, about, listing.split_hashes.keys() - {"train"})
    images = {part: tuple(listing.images[place] for place in kept[own]) for part, own in slices.items()}
    captions = {part: [caption for image in some for caption in image.captions] for part, some in images.items()}
    texts = {part: list(map(normalise_caption, some)) for part, some in captions.items()}
    tokenizer = tokenizer or load_or_train_tokenizer(spec.tokenizer, texts["train"], progress)
    rows, cut = encode_splits(texts, tokenizer, length, special_tokens, "captions", progress)
    items: dict[str, CaptionedImages] = {}
    for part, own in slices.items():
        counts = np.cumsum([len(image.captions) for image in images[part]], dtype=np.int64)
        first, names = np.concatenate([[0], counts]), hash_captions(captions[part])
        items[part] = CaptionedImages(pixels[own], rows[part], first, names, images[part])
    more = len(SPECIAL_TOKENS) if special_tokens and tokenizer.kind != PRETRAINED else 0
    sizes = {"vocabulary": tokenizer.vocabulary + more}
    return Splits(
        kind="images",
        items=items,
        tokenizer=tokenizer,
        hash=listing.hash,
        description=about,
        model_sizes=sizes,
        notes=(*listing.notes, *unread, *cut),
        split_hashes=listing.split_hashes,
        overlaps=overlaps,
    )
