"""Pictures that a font draws, kept as files in the data home."""

import json
from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any

from lemma.data.atomic import new_folder
from lemma.data.hashing import file_sum, files_sum, text_sum
from lemma.data.home import home_folder
from lemma.data.images.canvas import pillow
from lemma.data.images.emoji import characters
from lemma.data.progress import Progress, counting

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
