"""Writing an index so that a reader, or a machine that loses power, never meets half of it."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from lemma.errors import RunError
from lemma.retrieval.entries import Entry
from lemma.retrieval.index import FLOAT, HEAD, Head, Index, Matrix
from lemma.runs import only_writer

ROWS = 1 << 14
"""Vectors that are copied at once."""


def start(place: Path, run: str, width: int, pictures: str) -> Index:
    """Begin an empty index; where one stands, its files go once the new head is there."""
    generation = 1 + max((int(file.stem.rpartition("-")[2]) for file in _files(place)), default=-1)
    head = Head(run, width, pictures, generation)
    (place / head.vectors).touch()
    (place / head.entries).touch()
    return _turned(place, head)


def append(place: Path, head: Head, entries: Sequence[Entry], vectors: Matrix) -> Head:
    """Add pictures, and such as are broken, behind what counts; then let them count."""
    lines = "".join(entry.line() for entry in entries).encode()
    _put(place / head.vectors, head.rows * head.width * FLOAT, np.ascontiguousarray(vectors, dtype="<f4").tobytes())
    _put(place / head.entries, head.size, lines)
    grown = head.grown(len(vectors), len(entries), len(lines))
    grown.write(place)
    return grown


def keep(index: Index, kept: Sequence[tuple[int, Entry]], broken: Sequence[Entry], pictures: str) -> Index:
    """Go on with some rows of an index, under the entries given, and with these broken ones."""
    old, place = index.head, index.place
    head = Head(old.run, old.width, pictures, old.generation + 1)
    rows = np.array([row for row, _ in kept], dtype=np.int64)
    with (place / head.vectors).open("wb") as file:
        for first in range(0, len(rows), ROWS):
            file.write(np.ascontiguousarray(index.vectors[rows[first : first + ROWS]]).tobytes())
        _sync(file.fileno())
    entries = [entry for _, entry in kept] + list(broken)
    lines = "".join(entry.line() for entry in entries).encode()
    _put(place / head.entries, 0, lines)
    return _turned(place, head.grown(len(rows), len(entries), len(lines)))


def renamed(index: Index, pictures: str) -> Index:
    """The same index, of pictures that are now found elsewhere."""
    return _turned(index.place, replace(index.head, pictures=pictures))


@contextmanager
def only_updater(place: Path) -> Iterator[None]:
    """Hold an index while it is brought up to date."""
    with ExitStack() as held:
        try:
            held.enter_context(only_writer(place))
        except RunError:
            raise RunError(
                f"{place} is being brought up to date by another process. Wait for it; or search it as it stands, "
                f"without --images: lemma search RUN --index {place} --query …"
            ) from None
        yield


def _turned(place: Path, head: Head) -> Index:
    """Let a head count, and remove the files of all other generations."""
    head.write(place)
    for file in _files(place):
        if file.name not in (head.vectors, head.entries):
            file.unlink(missing_ok=True)
    return Index.open(place)


def _files(place: Path) -> list[Path]:
    """The files of all generations."""
    found = [*place.glob("vectors-*.bin"), *place.glob("entries-*.jsonl")]
    return [file for file in found if file.stem.rpartition("-")[2].isdigit()]


def _put(path: Path, offset: int, content: bytes) -> None:
    """Write at an offset; what stood there and behind does not count."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.truncate(offset)
        file.seek(offset)
        file.write(content)
        file.flush()
        _sync(file.fileno())


def _sync(handle: int) -> None:
    os.fsync(handle)


def refuse_foreign(place: Path) -> None:
    """Refuse to write into a folder that holds something else than an index."""
    if place.exists() and not place.is_dir():
        raise RunError(f"{place} is a file; an index is a folder. Choose another place.")
    inside = [file.name for file in place.iterdir()] if place.is_dir() else []
    if inside and HEAD not in inside and any(not name.startswith((".", "vectors-", "entries-")) for name in inside):
        raise RunError(f"{place} is not empty and no index ({HEAD} is missing). Choose another place.")
