"""Trees that were drawn once, kept in the data home: one file for each parser, by the hash of each text."""

import hashlib
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from lemma.data import DrawnText
from lemma.data.atomic import replacing
from lemma.data.home import home_folder

FORMAT = 1
FEW = 100
"""So few texts are sooner parsed again than kept."""
DIGEST = 16  # bytes

OFTEN = 2048
"""Texts after which what was drawn is written down, so that an interruption costs little."""

Draw = Callable[[Sequence[str]], Iterable[DrawnText]]


def kept_trees(texts: Sequence[str], parser: str, draw: Draw) -> list[DrawnText]:
    """The trees of texts by the parser of that hash; those that were not kept before are drawn now, and kept."""
    if len(texts) < FEW:
        return list(draw(texts))
    path = home_folder("trees") / f"{parser[:32]}-{FORMAT}.npz"
    kept, digests = _read(path), [_digest(text) for text in texts]
    missing = {digest: text for digest, text in zip(digests, texts, strict=True) if digest not in kept}
    drawn = draw(list(missing.values())) if missing else ()
    for number, (digest, one) in enumerate(zip(missing, drawn, strict=True), start=1):
        kept[digest] = one
        if number % OFTEN == 0 or number == len(missing):
            _write(path, kept)
    return [kept[digest] for digest in digests]


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=DIGEST).digest()


def _write(path: Path, kept: Mapping[bytes, DrawnText]) -> None:
    words = "\n".join(one.text for one in kept.values())  # no word holds white space
    governors = [place for one in kept.values() for place in one.governors]
    columns = {
        "texts": np.frombuffer(b"".join(kept), np.uint8),
        "words": np.frombuffer(words.encode(), np.uint8),
        "governors": np.array(governors, np.int32),
    }
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **columns)


def _read(path: Path) -> dict[bytes, DrawnText]:
    """What was kept; nothing if it is damaged, so that all is drawn again."""
    try:
        with np.load(path, allow_pickle=False) as held:
            texts, words = held["texts"].tobytes(), held["words"].tobytes().decode().split("\n")
            governors = held["governors"].tolist()
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return {}
    digests = [texts[start : start + DIGEST] for start in range(0, len(texts), DIGEST)]
    bounds = np.cumsum([0, *(len(line.split()) for line in words)]).tolist()
    if len(digests) != len(words) or bounds[-1] != len(governors):
        return {}
    drawn = (
        DrawnText(tuple(line.split()), tuple(governors[start:end]))
        for line, (start, end) in zip(words, pairwise(bounds), strict=True)
    )
    return dict(zip(digests, drawn, strict=True))
