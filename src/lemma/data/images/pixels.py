"""The pixels of a list of pictures: decoded once, kept in one memory-mapped file."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree

import numpy as np
from jaxtyping import UInt8

from lemma.data.atomic import new_folder
from lemma.data.hashing import text_sum
from lemma.data.home import home_folder
from lemma.data.images.canvas import pillow
from lemma.data.images.decoding import read_pictures
from lemma.data.images.listing import Listing
from lemma.data.images.summing import size_of
from lemma.data.progress import Progress, counting
from lemma.errors import DataError

VERSION = 1
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
