"""Images with captions: listed, decoded once, split and tokenized."""

import io
import json
import os
import unicodedata
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Int64, UInt8

from lemma.data.batches import Indices, TokenRows
from lemma.data.corpora import CAPTIONS, IMAGES, fetch_corpus
from lemma.data.splits import SPLITS, ExampleFile, Splits, hash_to_int, prepare_examples, split_files
from lemma.data.store import encode_splits, load_or_train_tokenizer
from lemma.data.tables import TABLE_SUFFIXES, Column, DataTable, read_table
from lemma.data.tokenizers import Tokenizer
from lemma.errors import DataError, describe_unknown
from lemma.files import (
    Progress,
    atomic_new_folder,
    cached,
    combine_hashes,
    file_checksum,
    file_hash,
    home_folder,
    progress_counter,
    read_checked_json,
    real_path,
    remove_atomically,
    text_hash,
    verify_file,
    write_checked_json,
)
from lemma.optional import import_optional
from lemma.spec.base import exists
from lemma.spec.data import ImagesSpec

if TYPE_CHECKING:
    from PIL.Image import Image

# Read by a file's first bytes; formats that Pillow would hand to another program are not among them
IMAGE_FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "DIB", "TIFF", "PPM", "ICO", "AVIF", "JPEG2000")
# fmt: off
IMAGE_SUFFIXES = frozenset({
    ".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".webp", ".bmp", ".dib", ".tif", ".tiff", ".ppm",
    ".pgm", ".pbm", ".pnm", ".ico", ".avif", ".jp2",
})
# Names that columns of images and of captions often have
IMAGE_COLUMNS = frozenset({
    "images", "file", "files", "filename", "file_name", "filepath", "path", "picture", "photo", "img", "image_path",
    "image_file", "image_name",
})
CAPTION_COLUMNS = frozenset({"captions", "text", "name", "title", "description", "sentence", "label", "alt"})
# fmt: on
MAX_PIXELS = 100_000_000  # of an image that is decoded: a few kilobytes can unpack to any number of them
DECODE_BATCH = 64  # images that are decoded at a time
WHITE = (255, 255, 255, 255)
DECODING_VERSION = 1  # another version of decoding makes other pixels
FONT_SIZE = 128  # pixels of the font's em
MAX_LISTED = 3  # images that a note names
MIN_IMAGES = 4  # different ones: two to train, one to validate, one to test

Pixels = UInt8[np.ndarray, "3 side side"]

# One image: from a file of any common format to pixels, upright, on white, in a square


def import_pillow() -> Any:
    """Return the module `PIL.Image`; without Pillow, raise an error that says how to install it."""
    return import_optional("PIL.Image", "Pillow", "reading images", "'lemma-lm[images]'")


def decode_image(path: Path, side: int, *, crop_margins: bool = False) -> Pixels:
    """Read an image file as RGB pixels: turned upright, on white, padded to a square of `side` × `side` pixels.

    `crop_margins` first removes the transparent margins of a drawing.
    """
    with warnings.catch_warnings(action="ignore"):  # of odd files: what can be read is read, the rest is a DataError
        return _decode(path, side, crop_margins)


def decode_images(paths: Sequence[Path], side: int, *, crop_margins: bool = False) -> Iterator[Pixels | DataError]:
    """Read image files in threads; yield the pixels of each in order, or its DataError if it cannot be read.

    `side` and `crop_margins` are those of `decode_image`.
    """
    import_pillow()

    def try_decode(path: Path) -> Pixels | DataError:
        try:
            return _decode(path, side, crop_margins)
        except DataError as error:
            return error

    with ThreadPoolExecutor(os.cpu_count()) as threads:  # no more: each may hold a large image
        for start in range(0, len(paths), DECODE_BATCH):
            with warnings.catch_warnings(action="ignore"):  # for the complete process, so around the threads
                batch = list(threads.map(try_decode, paths[start : start + DECODE_BATCH]))
            yield from batch


def make_thumbnail(path: Path, side: int) -> bytes:
    """Return an image file as the bytes of a PNG whose longer side has at most `side` pixels."""
    with warnings.catch_warnings(action="ignore"), _open_image(path, side) as image:
        small, png = _convert_to_rgb(image), io.BytesIO()
        small.thumbnail((side, side))
        small.save(png, format="PNG")
    return png.getvalue()


def _decode(path: Path, side: int, crop_margins: bool) -> Pixels:
    """Return the pixels of an image as `decode_image` does, which also silences Pillow's warnings."""
    Image = import_pillow()
    with _open_image(path, side) as image:
        image = _convert_to_rgb(_crop_margins(image) if crop_margins else image)
        scale = side / max(image.size)
        width, height = (max(1, round(scale * length)) for length in image.size)
        square = image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)
        if width != side or height != side:
            resized, square = square, Image.new("RGB", (side, side), WHITE[:3])
            square.paste(resized, ((side - width) // 2, (side - height) // 2))
    return np.ascontiguousarray(np.asarray(square).transpose(2, 0, 1))


@contextmanager
def _open_image(path: Path, side: int) -> Iterator["Image"]:
    """Open an image file with Pillow, turned upright; raise a DataError with the reason if that fails.

    A JPEG may be decoded at a smaller size, but of at least `side` pixels.
    """
    Image = import_pillow()
    from PIL.ImageOps import exif_transpose

    try:
        Image.init()
        with Image.open(path, formats=[name for name in IMAGE_FORMATS if name in Image.OPEN]) as image:
            image.draft(None, (2 * side, 2 * side))  # JPEG alone: decoded at a size near the one that is needed
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise DataError(f"{width:,} × {height:,} pixels are more than the {MAX_PIXELS:,} that are decoded")
            exif_transpose(image, in_place=True)
            yield image
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except Exception as error:  # Pillow's readers raise a dozen kinds of errors on damaged files
        reasons = {
            "UnidentifiedImageError": "not an image of a known format",
            "DecompressionBombError": f"more than the {MAX_PIXELS:,} pixels that are decoded",
        }
        kind = type(error).__name__
        reason = reasons.get(kind) or " ".join(str(error).split())[:80] or kind
        if not path.is_file() or not path.stat().st_size:
            reason = "the file is empty" if path.is_file() else "there is no such file"
        raise DataError(f"{path}: {reason}") from None


def _convert_to_rgb(image: "Image") -> "Image":
    """Convert an image of any mode to RGB on a white background; deep channels are scaled to 8 bits."""
    if image.mode.startswith(("I", "F")):  # one deep channel: 16 bits, fractions from 0 to 1, or any range
        values = np.nan_to_num(np.asarray(image, dtype=np.float64))
        low, high = float(values.min()), float(values.max())
        white = 1.0 if image.mode == "F" else 65_535.0
        if low < 0 or high > white:
            values, white = values - low, high - low
        image = import_pillow().fromarray(np.rint(values * (255 / white)).astype(np.uint8))
    if image.mode not in ("RGBA", "LA", "PA", "La", "RGBa") and "transparency" not in image.info:
        return image.convert("RGB")
    with_alpha = image.convert("RGBA")
    background = import_pillow().new("RGBA", with_alpha.size, WHITE)
    return import_pillow().alpha_composite(background, with_alpha).convert("RGB")


def _crop_margins(image: "Image") -> "Image":
    """Return a drawing without its transparent margins, in the middle of a square with a small margin."""
    image = image.convert("RGBA")
    box = image.getchannel("A").getbbox()
    if box is None:
        raise DataError("nothing is drawn in it")
    left, top, right, bottom = box
    longest = max(right - left, bottom - top)
    side = longest + 2 * round(longest / 16)  # with a margin on each side
    left, top = left - (side - (right - left)) // 2, top - (side - (bottom - top)) // 2
    return image.crop((left, top, left + side, top + side))


def draw_emoji(font: Path, names: Sequence[str], progress: Progress | None = None) -> dict[str, Path]:
    """Draw emoji with a font as PNG files in a cache; return the paths by file name.

    `names` are file names, each an emoji's code points in hexadecimal. Emoji that the font lacks are left out: what it
    draws for them has another width. The cache's key includes the versions of the libraries that draw.
    """
    Image = import_pillow()
    from PIL import ImageDraw, ImageFont, features

    versions = [Image.__version__, features.version("freetype2"), features.version("raqm")]
    key = text_hash(json.dumps([DECODING_VERSION, FONT_SIZE, file_hash(font), list(names), versions]))[:32]

    def draw(folder: Path) -> dict[str, Any]:
        loaded = ImageFont.truetype(font, FONT_SIZE)
        advance = progress_counter(progress, "drawing images", len(names))
        for name in names:
            text = "".join(chr(int(point, 16)) for point in Path(name).stem.split("-"))
            image = Image.new("RGBA", (3 * FONT_SIZE, 3 * FONT_SIZE))
            if abs(loaded.getlength(text) - loaded.getlength("\N{GRINNING FACE}")) <= 0.5:
                position = (FONT_SIZE, FONT_SIZE)
                ImageDraw.Draw(image).text(position, text, font=loaded, embedded_color=True, anchor="lt")
            if box := image.getchannel("A").getbbox():
                image.crop(box).save(folder / name)
            advance(1)
        return {}

    folder = home_folder("drawn") / key
    return {name: folder / name for name in _load_or_fill_folder(folder, draw)["files"]}


def _load_or_fill_folder(folder: Path, fill: Callable[[Path], Mapping[str, Any]]) -> dict[str, Any]:
    """Return the manifest (JSON) of a cached folder; if the folder is missing or damaged, make it with `fill` first.

    `fill` writes files into a temporary folder and returns further values of the manifest, besides their checksums.
    """
    manifest = folder / "manifest.json"

    def read() -> dict[str, Any]:
        values = read_checked_json(manifest)
        for name, checksum in values["files"].items():
            verify_file(folder / name, checksum, manifest.name)
        return values

    def write() -> None:
        remove_atomically(folder)  # a damaged one
        with atomic_new_folder(folder) as temporary:
            values = fill(temporary)
            files = {path.name: file_checksum(path) for path in sorted(temporary.iterdir())}
            write_checked_json(temporary / manifest.name, {**values, "files": files})

    return cached(folder, read, write)


# Which images there are and what their captions are, before any is decoded: a built-in set, or a user's folder


class ImageFile(NamedTuple):
    """The file of an image, with its captions, its split if that is provided, and its hash."""

    name: str  # path in the table's folder
    path: Path
    captions: tuple[str, ...]
    split: str = ""  # that it is provided for; "" if its split is to be drawn
    hash: str = ""  # SHA-256 of the file


@dataclass(frozen=True)
class ImageList(ExampleFile[ImageFile]):
    """Images in a shuffled order, so that every split is one slice of it; those of provided splits come last.

    The hash is that of the table of captions and its images, without those of provided splits.
    """

    provided_hashes: Mapping[str, str] = field(default_factory=dict)  # the same of each provided split
    is_builtin: bool = False  # built-in sets are drawings whose margins are cropped


def list_images(
    name: str,
    captions: str | None = None,
    image: str | None = None,
    caption: str | None = None,
    progress: Progress | None = None,
    splits: Mapping[str, str] | None = None,
) -> ImageList:
    """List the images and captions of a built-in set or of a user's folder; none is decoded.

    `captions` is the path of the table of captions, by default the only one in the folder; `image` and `caption` name
    or number its columns. `splits` are further tables, whose images are the validation or test split.
    """
    splits = splits or {}
    if name in IMAGES:
        for setting, value in {"captions": captions, "image": image, "caption": caption, **splits}.items():
            if value is not None:
                raise DataError(f"{setting} = '{value}': {name} has captions of its own. Leave {setting} out.")
        files, notes = _list_builtin(name, progress)
        images = sorted(_hash_images(files, progress), key=lambda file: (_split_hash(file, True), file.name))
        return ImageList(images, IMAGES[name].stored_hash, name, tuple(notes), is_builtin=True)
    root = Path(name)
    if not exists(root) and root.name == name:
        raise DataError(describe_unknown("set of images", name, IMAGES) + " Or give the path of a folder of images.")
    if not root.is_dir():
        problem = "this is not a folder" if exists(root) else "there is no such folder"
        raise DataError(f"{root}: {problem}. Give a folder of images with a table of captions in it.")
    provided = {split: _read_captions(root, file, image, caption) for split, file in splits.items()}
    tables = {"": _read_captions(root, captions, image, caption, provided.values()), **provided}
    files, notes = _match_captions(root, tables)
    images = _hash_images(files, progress)
    first_names: dict[str, str] = {}
    copies = [file.name for file in images if first_names.setdefault(file.hash, file.name) != file.name]
    notes += _describe_names(copies, "images are the same file as another", "image is the same file as another")
    by_name = sorted(images, key=lambda file: file.name)
    table_hashes = {
        split: combine_hashes([file_hash(table.path), *(file.hash for file in by_name if file.split == split)])
        for split, table in tables.items()
    }
    order = list(tables)
    images.sort(key=lambda file: (order.index(file.split), _split_hash(file, False), file.name))
    own_hash = table_hashes.pop("")
    notes = (*(table.note for table in tables.values()), *notes)
    return ImageList(images, own_hash, str(root), notes, table_hashes)


def _split_hash(file: ImageFile, is_builtin: bool) -> int:
    """Return the 64-bit hash by which images are shuffled and split.

    It is that of the first caption in a built-in set, and that of the file's content in a user's folder.
    """
    return hash_to_int(file.captions[0] if is_builtin else file.hash, "split")


def _list_builtin(name: str, progress: Progress | None) -> tuple[list[ImageFile], list[str]]:
    """Return the image files of a built-in set, fetched or drawn if needed, and notes on names without an image."""
    files = {path.name: path for path in fetch_corpus(IMAGES[name], progress)}
    table = _read_captions(files[CAPTIONS].parent, None, None, None)
    captions = dict(zip(table.cells["image"], table.cells["caption"], strict=True))
    fonts = [path for path in files.values() if path.suffix == ".ttf"]
    paths = draw_emoji(fonts[0], list(captions), progress) if fonts else files
    images = [ImageFile(file, paths[file], (caption,)) for file, caption in captions.items() if file in paths]
    missing = [caption for file, caption in captions.items() if file not in paths]
    return images, _describe_names(missing, "names have no image in the font", "name has no image in the font")


def _hash_images(files: Sequence[ImageFile], progress: Progress | None) -> list[ImageFile]:
    """Return the images with the SHA-256 of their files; for a file that cannot be read, a hash of its path."""

    def hash_image(image: ImageFile) -> str:
        try:
            return file_hash(image.path)
        except OSError:  # which is reported when it is decoded
            return text_hash(f"{image.path} cannot be read")

    sizes = [_file_size(image.path) for image in files]
    advance = progress_counter(progress, "reading images", sum(sizes))
    hashed: list[ImageFile] = []
    with ThreadPoolExecutor() as threads:
        for image, size, image_hash in zip(files, sizes, threads.map(hash_image, files), strict=True):
            hashed.append(image._replace(hash=image_hash))
            advance(size)
    return hashed


def _match_captions(root: Path, tables: Mapping[str, DataTable]) -> tuple[list[ImageFile], list[str]]:
    """Find the images that tables of captions name; return them with their captions, and notes.

    The key of a table is the split that it provides, or "". A table names an image by its path below the folder
    `root`, or by a file name that is unique there. Notes count images without captions and the reverse.
    """
    names = {path: path.relative_to(root).as_posix() for path in find_images(root)}
    by_path = {unicodedata.normalize("NFC", name): path for path, name in names.items()}  # one spelling of accents
    by_name: dict[str, list[Path]] = {}
    for path in names:
        by_name.setdefault(unicodedata.normalize("NFC", path.name), []).append(path)
    images: list[ImageFile] = []
    notes: list[str] = []
    for split, table in tables.items():
        captions: dict[Path, dict[str, None]] = {}
        outside: dict[str, None] = {}
        missing: dict[str, None] = {}
        for name, caption in zip(table.cells["image"], table.cells["caption"], strict=True):
            relative = os.path.normpath(name.replace("\\", "/"))  # tables of Windows have backslashes
            relative = os.path.relpath(relative, root) if Path(relative).is_absolute() else relative
            relative = unicodedata.normalize("NFC", relative.replace(os.sep, "/"))
            if relative == ".." or relative.startswith("../"):
                outside[name] = None
                continue
            same_name = by_name.get(relative, ())
            path = by_path.get(relative) or (same_name[0] if len(same_name) == 1 else root / relative)
            if exists(path) and path.is_file():  # whose name may not tell its format
                captions.setdefault(path, {})[caption] = None
            else:
                missing[name] = None
        for rows, plural, singular in (
            ([f"line {line}" for line in table.skipped_lines], "captions are empty", "caption is empty"),
            (outside, "paths lead out of the folder, and were not read", "path leads out of the folder"),
            (missing, "images of the table are not in the folder", "image of the table is not in the folder"),
        ):
            notes += _describe_names(rows, plural, singular)
        if not captions:
            rows = f"none of its {len(table):,} rows names an image in {root}"
            raise DataError(f"{table.path}: {rows}: {'; '.join(notes)}.")
        images += [
            ImageFile(path.relative_to(root).as_posix(), path, tuple(texts), split) for path, texts in captions.items()
        ]
    captioned = {image.path for image in images}
    uncaptioned = [name for path, name in names.items() if path not in captioned]
    return images, [*notes, *_describe_names(uncaptioned, "images have no caption", "image has no caption")]


def _describe_names(names: Iterable[str], plural: str, singular: str) -> list[str]:
    """Return one note as a list: the number of names, `plural` or `singular`, and the first names; [] without names.

    >>> _describe_names(["a.png", "b.png", "c.png", "d.png"], "images have no caption", "image has no caption")
    ['4 images have no caption: a.png, b.png, c.png and 1 more']
    """
    names = list(names)
    if not names:
        return []
    more = f" and {len(names) - MAX_LISTED:,} more" if len(names) > MAX_LISTED else ""
    first = ", ".join(name[:60] for name in names[:MAX_LISTED])
    return [f"{len(names):,} {plural if len(names) > 1 else singular}: {first}{more}"]


def find_images(folder: Path) -> list[Path]:
    """Return all image files in and below a folder, sorted by path, without hidden ones."""
    return sorted(path for path in _walk_files(folder, IMAGE_SUFFIXES) if path.is_file())


def _walk_files(folder: Path, suffixes: Collection[str]) -> Iterator[Path]:
    """Yield the files in and below a folder that end in one of the suffixes, without hidden files and folders."""
    for parent, subfolders, names in os.walk(folder, followlinks=False):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for name in names:
            if name.lower().endswith(tuple(suffixes)) and not name.startswith("."):
                yield Path(parent, name)


def _read_captions(
    folder: Path, captions: str | None, image: str | None, caption: str | None, exclude: Iterable[DataTable] = ()
) -> DataTable:
    """Read a table of captions: the file `captions`, or else the only table in the folder.

    `image` and `caption` name or number its columns; tables in `exclude` are not considered.
    """
    if captions is not None:
        inner = folder / captions
        path = inner if exists(inner) and not exists(Path(captions)) else Path(captions)
    else:
        excluded = {real_path(table.path) for table in exclude}
        tables = sorted(path for path in _walk_files(folder, TABLE_SUFFIXES) if real_path(path) not in excluded)
        tables = [path for path in tables if path.parent == folder] or tables
        if not tables:
            raise DataError(
                f"{folder}: no table says what the images show. Put there a table captions.csv next to the images, "
                "with a line for each of them:\n  image,caption\n  dogs/rex.jpg,a brown dog in the snow"
            )
        if len(tables) > 1:
            names = ", ".join(str(path.relative_to(folder)) for path in tables[:4])
            raise DataError(
                f"{folder}: {len(tables)} tables ({names}). Choose the table of the captions: captions=FILE."
            )
        path = tables[0]
    columns = [Column("image", image, IMAGE_COLUMNS), Column("caption", caption, CAPTION_COLUMNS, required=False)]

    def is_header(first_row: Sequence[str]) -> bool:
        cells = {cell.strip().casefold() for cell in first_row}
        has_alias = bool(cells & {"image", "caption", *IMAGE_COLUMNS, *CAPTION_COLUMNS})
        return has_alias and not any(cell.endswith(tuple(IMAGE_SUFFIXES)) for cell in cells)

    return read_table(path, columns, any_width=True, is_header=is_header)


def _file_size(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist."""
    return path.stat().st_size if exists(path) else 0


# Images and their captions as numbers


@dataclass(frozen=True)
class CaptionedImages:
    """Pixels of images, and the tokens of one or more captions of each."""

    pixels: UInt8[np.ndarray, "images 3 side side"]
    rows: TokenRows  # the tokens of all captions
    caption_bounds: Int64[np.ndarray, " images_and_one"]  # image i owns the captions bounds[i] to bounds[i + 1]
    caption_ids: Int64[np.ndarray, " captions"]  # equal for equal captions, also of words the tokenizer does not know
    images: tuple[ImageFile, ...] = field(default=(), repr=False)

    @property
    def lengths(self) -> Int64[np.ndarray, " images"]:
        """Number of tokens in each image's longest caption, special tokens included."""
        return np.maximum.reduceat(self.rows.lengths, self.caption_bounds[:-1])

    @property
    def image_indices(self) -> Int64[np.ndarray, " captions"]:
        """Index of the image that each caption belongs to."""
        counts = np.diff(self.caption_bounds)
        return np.repeat(np.arange(len(counts)), counts)

    def __len__(self) -> int:
        """Return the number of tokens in all captions."""
        return len(self.rows)

    def batch(
        self, indices: Indices, choice: int | Int64[np.ndarray, " batch"] = 0
    ) -> tuple[UInt8[np.ndarray, "batch 3 side side"], Int64[np.ndarray, "batch longest"]]:
        """Return the pixels of the images with these indices, and the tokens of one caption of each.

        `choice` is the index of the caption, one for all images or one each, modulo the number of an image's captions.
        """
        return np.asarray(self.pixels[np.asarray(indices, dtype=np.int64)]), self.pad_captions(indices, choice)

    def pad_captions(
        self, indices: Indices, choice: int | Int64[np.ndarray, " batch"] = 0
    ) -> Int64[np.ndarray, "batch longest"]:
        """Return the tokens of one caption of each image, padded with −1; `choice` is as in `batch`."""
        rows = np.asarray(indices, dtype=np.int64)
        return self.rows.pad(self.caption_bounds[rows] + choice % np.diff(self.caption_bounds)[rows])


def normalise_caption(text: str) -> str:
    """Return a caption in lower case with one space before every word, so that equal words have equal tokens.

    >>> normalise_caption("A  Red heart")
    ' a red heart'
    """
    return "".join(f" {word}" for word in text.lower().split())


def hash_captions(texts: Iterable[str]) -> Int64[np.ndarray, " texts"]:
    """Return a 64-bit hash of each caption; equal for captions that differ only in case and white space.

    >>> first, second, third = hash_captions(["A  Red heart", "a red heart", "a blue heart"]).tolist()
    >>> first == second, first == third
    (True, False)
    """
    encoded = (normalise_caption(text).encode("utf-8", "surrogatepass") for text in texts)
    digests = (blake2b(content, digest_size=8).digest() for content in encoded)
    return np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64)


def split_images(listing: ImageList, held_out: float) -> dict[str, range]:
    """Split images into train, validation and test; return the range of indices of each split.

    `held_out` is the fraction for each of validation and test that is not provided, which come last. Images of a
    built-in set are split by a hash of the caption, so that another style of the set is split the same way; those of
    a folder by count, and equal files stay together.
    """
    images = listing.examples
    numbers = [_split_hash(image, listing.is_builtin) for image in images if not image.split]
    missing = [split for split in ("test", "validation") if split not in listing.provided_hashes]
    num_different = len(set(numbers))
    if missing and num_different < MIN_IMAGES:
        raise DataError(
            f"{listing.description}: {num_different} different images are too few to train on some and hold others "
            f"out. Give at least {MIN_IMAGES}."
        )
    stops = [0]
    for count in range(1, len(missing) + 1):
        if listing.is_builtin:
            stops.append(sum(number < count * held_out * 2**64 for number in numbers))
        else:
            stop = stops[-1] + max(1, round(held_out * len(numbers)))
            while stop < len(numbers) and numbers[stop] == numbers[stop - 1]:  # equal files stay together
                stop += 1
            stops.append(stop)
    bounds = {**dict(zip(missing, pairwise(stops), strict=True)), "train": (stops[-1], len(numbers))}
    start = len(numbers)
    for split in listing.provided_hashes:
        bounds[split] = (start, start + sum(image.split == split for image in images))
        start = bounds[split][1]
    if empty := [split for split in SPLITS if bounds[split][0] >= min(bounds[split][1], len(images))]:
        raise DataError(
            f"{listing.description}: {num_different:,} different images leave none for {' and '.join(empty)}."
        )
    return {split: range(*bounds[split]) for split in SPLITS}


# The pixels of a list of images: decoded once, stored in one memory-mapped file


def _decode_cached(
    listing: ImageList, side: int, progress: Progress | None
) -> tuple[UInt8[np.ndarray, "images 3 side side"], dict[int, str]]:
    """Decode images to squares of `side` pixels; return the pixels of readable ones, and errors of others by index.

    The pixels are cached in a memory-mapped file.
    """
    paths = [image.path for image in listing.examples]
    hashes = [image.hash for image in listing.examples]
    key = [DECODING_VERSION, side, listing.is_builtin, import_pillow().__version__, *hashes]
    folder = home_folder("pictures") / text_hash(json.dumps(key))[:32]

    def decode(folder: Path) -> dict[str, Any]:
        sizes = list(map(_file_size, paths))
        advance = progress_counter(progress, "decoding images", sum(sizes))
        errors: dict[int, str] = {}
        with (folder / "pixels.bin").open("wb") as file:
            for index, pixels in enumerate(decode_images(paths, side, crop_margins=listing.is_builtin)):
                if isinstance(pixels, DataError):
                    errors[index] = str(pixels).removeprefix(f"{paths[index]}: ")
                else:
                    file.write(pixels.tobytes())  # not through a map: its touched pages would count as memory
                advance(sizes[index])
        return {"broken": errors}

    errors = {int(index): reason for index, reason in _load_or_fill_folder(folder, decode)["broken"].items()}
    shape = (len(paths) - len(errors), 3, side, side)
    return np.memmap(folder / "pixels.bin", np.uint8, "r", shape=shape) if shape[0] else np.zeros(
        shape, np.uint8
    ), errors


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
    """Read, split and tokenize images of `side` × `side` pixels, with captions that are cut to `length` tokens.

    `special_tokens` puts captions between `<start>` and `<end>`, within `length`. Without the tokenizer of a trained
    model one is trained on the training captions. With `evaluation` the result has a single split: `split`, by default
    `test` of a built-in set or of provided splits, and of other folders all images as a split called `images`.
    """
    listing = list_images(spec.images, spec.captions, spec.image, spec.caption, progress, split_files(spec))
    pixels, errors = _decode_cached(listing, side, progress)
    unreadable = sorted(f"{listing.examples[index].name} ({reason})" for index, reason in errors.items())
    notes = _describe_names(unreadable, "images cannot be read", "image cannot be read")
    readable = [image for index, image in enumerate(listing.examples) if index not in errors]
    if not readable:
        raise DataError(f"{listing.description}: no image could be read: {'; '.join(notes)}.")
    listing = replace(listing, examples=readable, notes=(*listing.notes, *notes))
    read = prepare_examples(
        "images",
        ExampleFile(range(len(readable)), listing.hash, listing.description, listing.notes),
        {part: ExampleFile((), part_hash, "") for part, part_hash in listing.provided_hashes.items()},
        lambda: (split_images(listing, spec.held_out), ()),
        key=lambda row: readable[row].hash,
        noun="images",
        is_builtin=listing.is_builtin,
        evaluation=evaluation,
        split=split,
        name="images",
    )
    images = {part: tuple(readable[row] for row in rows) for part, rows in read.items.items()}
    captions = {part: [caption for image in files for caption in image.captions] for part, files in images.items()}
    texts = {part: list(map(normalise_caption, part_captions)) for part, part_captions in captions.items()}
    tokenizer = tokenizer or load_or_train_tokenizer(spec.tokenizer, texts["train"], progress)
    token_rows, notes = encode_splits(texts, tokenizer, length, special_tokens, "captions", progress)
    items: dict[str, CaptionedImages] = {}
    for part, rows in read.items.items():
        counts = np.cumsum([len(image.captions) for image in images[part]], dtype=np.int64)
        items[part] = CaptionedImages(
            pixels=pixels[rows[0] : rows[-1] + 1],
            rows=token_rows[part],
            caption_bounds=np.concatenate([[0], counts]),
            caption_ids=hash_captions(captions[part]),
            images=images[part],
        )
    sizes = {"vocabulary": tokenizer.model_vocabulary(special_tokens)}
    return read.with_items(items, tokenizer, sizes, notes)
