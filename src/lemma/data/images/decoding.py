"""One picture: from a file of any common format to pixels, upright, on white, in a square."""

import io
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8

from lemma.data.images.canvas import frame, on_white, pillow, square
from lemma.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

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
