"""The index of a folder of images: a vector for each, kept on disk and memory-mapped.

    index.json         which run the vectors are of, their width, the generation, how much of the files counts, and
                       the CRC-32 of that, which goes on as they grow; and its own SHA-256
    vectors-G.bin      float32, a row for each image, each of length 1
    entries-G.jsonl    a line for each image in the same order, and one for each that is broken

Both files only ever grow: new rows and lines are written and synced behind those that count, then index.json is
replaced atomically. A process that is killed leaves at most a tail that does not count, which the next writer cuts off.
Where images are gone or changed, what stays is copied to files of the next generation, and index.json turns to them. A
reader therefore always sees a whole index, even if it is an older one.
"""

import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from jaxtyping import Float32, UInt8

from lemma.data.corpora import IMAGES
from lemma.data.images import ImageFile, decode_images, find_images, list_images
from lemma.errors import DataError, RunError, StorageError, describe_unknown
from lemma.files import (
    BLOCK_BYTES,
    Progress,
    explain_storage_errors,
    file_hash,
    matches_checksum,
    progress_counter,
    read_checked_json,
    read_json,
    with_checksum,
    write_atomically,
)
from lemma.retrieval.embedding import Embedder
from lemma.runs.folder import write_lock
from lemma.runs.verify import Verification, check_files
from lemma.spec.base import exists

HEADER_FILE = "index.json"
INDEX_FORMAT = 2
FLOAT_BYTES = 4
GOOD = b', ""]'  # how the line of an image ends that is not broken
COPY_ROWS = 1 << 14  # vectors that are copied at once
BLOCK = 256  # images that are read, embedded and written at once: no more work than this is ever lost

Matrix = Float32[np.ndarray, "images width"]


# What an index knows


class IndexEntry(NamedTuple):
    """An image by its name, as it was when it was read: enough to see that it has changed, moved or is broken."""

    name: str
    """Its path within the folder, with / between folders."""
    size: int
    time: int
    """When it was last changed, in nanoseconds."""
    sum: str = ""
    """The SHA-256 of the file; empty before it is read."""
    broken: str = ""
    """Why it could not be read; a broken image has no vector."""

    def to_json_line(self) -> str:
        """The entry as a line of JSON.

        >>> Entry("a.png", 3, 5, "ab").line()
        '["a.png", 3, 5, "ab", ""]\\n'
        """
        return json.dumps(list(self)) + "\n"


@dataclass(frozen=True)
class IndexHeader:
    """What index.json says."""

    run: str
    """The hash of what made the vectors."""
    width: int
    images: str
    """The folder, or the name, of the images."""
    generation: int = 0
    rows: int = 0
    lines: int = 0
    size: int = 0
    """Bytes of the entries that count."""
    vectors_sum: int = 0
    entries_sum: int = 0
    """The CRC-32 of what counts of the two files."""
    format: int = INDEX_FORMAT

    @property
    def vectors(self) -> str:
        """The name of the file of vectors."""
        return f"vectors-{self.generation}.bin"

    @property
    def entries(self) -> str:
        """The name of the file of entries."""
        return f"entries-{self.generation}.jsonl"

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read index.json; one that is missing, damaged or of another format is a RunError."""
        path = folder / HEADER_FILE
        if not path.is_file():
            raise RunError(
                f"{folder} holds no index ({HEADER_FILE} is missing). "
                f"To make one: lemma search RUN --images FOLDER --index {folder}"
            )
        if (found := read_json(path).get("format")) != INDEX_FORMAT:
            raise RunError(f"{path}: format {found!r}, expected {INDEX_FORMAT}. Remove {folder}.")
        fields: dict[str, Any] = read_checked_json(path)
        try:
            header = cls(**{"images" if name == "pictures" else name: value for name, value in fields.items()})
        except TypeError:
            raise RunError(f"{path} is damaged: it has unexpected fields. Remove {folder}.") from None
        sizes = (header.width, header.generation, header.rows, header.lines, header.size)
        numbers = (*sizes, header.vectors_sum, header.entries_sum)
        if not all(type(number) is int and number >= 0 for number in numbers) or header.width < 1:
            raise RunError(f"{path} is damaged: a size is not a whole number. Remove {folder}.")
        return header

    def write(self, folder: Path) -> None:
        """Replace index.json atomically."""
        fields = {"pictures" if name == "images" else name: value for name, value in asdict(self).items()}
        write_atomically(folder / HEADER_FILE, json.dumps(with_checksum(fields), indent=1, ensure_ascii=False) + "\n")


@dataclass(frozen=True, eq=False)
class Index:
    """An index as it is: its images in the order of their vectors, and those that are broken."""

    folder: Path
    header: IndexHeader
    lines: Sequence[bytes] = field(repr=False)
    """The entries as they are in their file, those of images in the order of their vectors."""
    unreadable_lines: Sequence[bytes] = field(repr=False)
    vectors: Matrix = field(repr=False)
    """Memory-mapped: only what is used is read."""

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open an index; while another process turns to a new generation, the header is read once more."""
        try:
            return cls._open(folder)
        except FileNotFoundError:
            pass
        try:
            return cls._open(folder)
        except FileNotFoundError as error:
            raise RunError(f"{folder} is damaged: {Path(str(error.filename)).name} is missing. Remove it.") from None

    @classmethod
    def _open(cls, place: Path) -> Self:
        header = IndexHeader.read(place)
        entries, vectors = place / header.entries, place / header.vectors
        with entries.open("rb") as file:
            content = file.read(header.size)
        if zlib.crc32(content) != header.entries_sum:
            raise RunError(f"{entries} is damaged: it does not have the checksum in {HEADER_FILE}. Remove {place}.")
        lines = content.splitlines()
        good = [line for line in lines if line.endswith(GOOD)]
        if len(lines) != header.lines or len(good) != header.rows:
            raise RunError(
                f"{entries} is damaged: it does not have the entries that {HEADER_FILE} counts. Remove {place}."
            )
        broken = [line for line in lines if not line.endswith(GOOD)] if len(good) < len(lines) else []
        size = header.rows * header.width * FLOAT_BYTES
        if vectors.stat().st_size < size:
            raise RunError(f"{vectors} is damaged: shorter than {HEADER_FILE} says. Remove {place}.")
        if not matches_checksum(vectors, f"{size} {header.vectors_sum}", lambda: f"{size} {_crc(vectors, size)}"):
            raise RunError(f"{vectors} is damaged: it does not have the checksum in {HEADER_FILE}. Remove {place}.")
        shape = (header.rows, header.width)
        mapped = np.memmap(vectors, "<f4", "r", shape=shape) if header.rows else np.zeros(shape, dtype=np.float32)
        return cls(place, header, good, broken, mapped)

    def __len__(self) -> int:
        return self.header.rows

    @cached_property
    def entries(self) -> tuple[IndexEntry, ...]:
        """The images in the order of their vectors."""
        return self._read(self.lines)

    @cached_property
    def unreadable(self) -> tuple[IndexEntry, ...]:
        """The images that could not be read."""
        return self._read(self.unreadable_lines)

    def read(self) -> Self:
        """Read all entries now, so that damage is found."""
        assert len(self.entries) + len(self.unreadable) == self.header.lines
        return self

    def entry(self, row: int) -> IndexEntry:
        """The image of one vector; the others are not read."""
        return self._read(self.lines[row : row + 1])[0]

    def _read(self, lines: Sequence[bytes]) -> tuple[IndexEntry, ...]:
        where = self.folder / self.header.entries
        try:
            found = tuple(IndexEntry(*fields) for fields in json.loads(b"[" + b",".join(lines) + b"]"))
        except (ValueError, TypeError):
            raise RunError(f"{where} is damaged. Remove its folder, and the index is made again.") from None
        if len(found) != len(lines) or any(type(one.name) is not str or type(one.size) is not int for one in found):
            raise RunError(
                f"{where} is damaged: it has an invalid entry. Remove its folder, and the index is made again."
            )
        return found


# Where images come from


@dataclass(frozen=True)
class ImageSource:
    """The images of a folder and of the folders within, or of a set known by name."""

    name: str
    """The folder, or the name of the set."""
    folder: Path | None = None
    images: Mapping[str, ImageFile] = field(default_factory=dict, repr=False)
    """Those of a set."""

    @property
    def crop_margins(self) -> bool:
        """Whether transparent margins are cut off first, as of a set's drawings."""
        return self.folder is None

    def entries(self) -> list[IndexEntry]:
        """All images as they are now, none of them read yet; files of a set never change, so they have no time."""
        if self.folder is None:
            return [IndexEntry(name, image.path.stat().st_size, 0) for name, image in self.images.items()]
        found = []
        for path in find_images(self.folder):
            try:
                about = path.stat()
            except OSError:  # gone since it was listed, or a broken link
                continue
            found.append(IndexEntry(path.relative_to(self.folder).as_posix(), about.st_size, about.st_mtime_ns))
        return found

    def path(self, name: str) -> Path:
        """The file of an image."""
        if self.folder is not None:
            return self.folder / name
        return self.images[name].path if name in self.images else Path(name)

    def caption(self, name: str) -> str:
        """What a set says of an image; nothing for a folder."""
        return self.images[name].captions[0] if name in self.images else ""

    def checksum(self, name: str) -> str | None:
        """The checksum of an image's file; None if it cannot be read."""
        try:
            return file_hash(self.path(name))
        except OSError:
            return None


def open_images(name: str | Path, progress: Progress | None = None) -> ImageSource:
    """The images of a set known by name, or of a folder."""
    if str(name) in IMAGES:
        listing = list_images(str(name), progress=progress)
        return ImageSource(str(name), images={image.name: image for image in sorted(listing.images)})
    folder = Path(name)
    if not exists(folder) and folder.name == str(name):
        raise DataError(describe_unknown("images", str(name), IMAGES) + " Or give the path of a folder of images.")
    if not folder.exists():
        raise DataError(f"{folder}: there is no such folder. Give one with images in it.")
    if not folder.is_dir():
        raise DataError(f"{folder} is a file. Give the folder that it is in; or an image to search for with --image.")
    return ImageSource(str(folder.resolve()), folder.resolve())


def read_entries(
    images: ImageSource, entries: Sequence[IndexEntry], side: int
) -> tuple[list[IndexEntry], UInt8[np.ndarray, "read 3 side side"], list[IndexEntry]]:
    """Read some images: those that could be read, their pixels, and those that are broken, with the reason.

    One that is gone or not readable now is in neither list: it is tried again the next time.
    """
    there = [entry._replace(sum=known) for entry in entries if (known := images.checksum(entry.name)) is not None]
    paths = [images.path(entry.name) for entry in there]
    good, broken, pixels = [], [], []
    for entry, path, read in zip(
        there, paths, decode_images(paths, side, crop_margins=images.crop_margins), strict=True
    ):
        if isinstance(read, DataError):
            broken.append(entry._replace(broken=str(read).removeprefix(f"{path}: ") or "it cannot be read"))
        else:
            good.append(entry)
            pixels.append(read)
    return good, np.stack(pixels) if pixels else np.zeros((0, 3, side, side), dtype=np.uint8), broken


# Writing, so that a reader, or a machine that loses power, never sees half of an index


def create_index(folder: Path, run: str, width: int, images: str) -> Index:
    """Begin an empty index; the files of an earlier one go once the new header is there."""
    generation = 1 + max((int(file.stem.rpartition("-")[2]) for file in _files(folder)), default=-1)
    header = IndexHeader(run, width, images, generation)
    (folder / header.vectors).touch()
    (folder / header.entries).touch()
    return _turn_to(folder, header)


def append_entries(folder: Path, header: IndexHeader, entries: Sequence[IndexEntry], vectors: Matrix) -> IndexHeader:
    """Write images, broken ones too, behind what counts; then let them count."""
    lines = "".join(entry.to_json_line() for entry in entries).encode()
    end = header.rows * header.width * FLOAT_BYTES
    content = [np.ascontiguousarray(vectors, dtype="<f4").tobytes()]
    sums = {
        "vectors_sum": _write_at(folder / header.vectors, end, content, header.vectors_sum),
        "entries_sum": _write_at(folder / header.entries, header.size, [lines], header.entries_sum),
    }
    rows, count, size = header.rows + len(vectors), header.lines + len(entries), header.size + len(lines)
    grown = replace(header, rows=rows, lines=count, size=size, **sums)
    grown.write(folder)
    return grown


def rewrite_index(
    index: Index, kept: Sequence[tuple[int, IndexEntry]], broken: Sequence[IndexEntry], images: str
) -> Index:
    """Go on with some rows of an index, under the entries given, and with these broken ones."""
    old, place = index.header, index.folder
    entries = [entry for _, entry in kept] + list(broken)
    lines = "".join(entry.to_json_line() for entry in entries).encode()
    header = IndexHeader(old.run, old.width, images, old.generation + 1, len(kept), len(entries), len(lines))
    rows = np.array([row for row, _ in kept], dtype=np.int64)
    blocks = (rows[first : first + COPY_ROWS] for first in range(0, len(rows), COPY_ROWS))
    content = (np.ascontiguousarray(index.vectors[block]).tobytes() for block in blocks)
    sums = {
        "vectors_sum": _write_at(place / header.vectors, 0, content),
        "entries_sum": _write_at(place / header.entries, 0, [lines]),
    }
    return _turn_to(place, replace(header, **sums))


def _turn_to(place: Path, header: IndexHeader) -> Index:
    """Let a header count, and remove the files of all other generations."""
    header.write(place)
    for file in _files(place):
        if file.name not in (header.vectors, header.entries):
            file.unlink(missing_ok=True)
    return Index.open(place)


def _files(place: Path) -> list[Path]:
    """The files of all generations."""
    found = [*place.glob("vectors-*.bin"), *place.glob("entries-*.jsonl")]
    return [file for file in found if file.stem.rpartition("-")[2].isdigit()]


def _write_at(path: Path, offset: int, content: Iterator[bytes] | Sequence[bytes], before: int = 0) -> int:
    """Write from an offset on and sync; what was there and behind does not count. Return the CRC-32 up to the end.

    `before` is that of what is before the offset.
    """
    with explain_storage_errors(path), path.open("r+b" if path.exists() else "wb") as file:
        file.truncate(offset)
        file.seek(offset)
        for part in content:
            file.write(part)
            before = zlib.crc32(part, before)
        file.flush()
        _sync(file.fileno())
    return before


def _crc(path: Path, size: int) -> int:
    """The CRC-32 of the first bytes of a file."""
    found = 0
    with path.open("rb") as file:
        while size and (block := file.read(min(size, BLOCK_BYTES))):
            found, size = zlib.crc32(block, found), size - len(block)
    return found


def _sync(handle: int) -> None:
    os.fsync(handle)


@contextmanager
def lock_index(folder: Path) -> Iterator[None]:
    """Hold an index while it is updated."""
    with ExitStack() as held:
        try:
            held.enter_context(write_lock(folder))
        except RunError:
            raise RunError(
                f"{folder} is being updated by another process. Wait for it; or search it as it is, "
                f"without --images: lemma search RUN --index {folder} --query …"
            ) from None
        yield


def verify_index(folder: Path) -> Verification:
    """Compare the files of an index with their checksums."""
    files = [folder / HEADER_FILE, *_files(folder)]
    return Verification(folder, tuple(check_files(files, folder, lambda: Index.open(folder).read())))


# Updating: only images that are new or changed are read


@dataclass(frozen=True)
class UpdatedIndex:
    """An index that is up to date, and what was done for it."""

    index: Index
    new: int
    removed: int
    note: str = ""
    """Why it was made again, if it was."""


def update_index(
    folder: Path, embedder: Embedder, images: ImageSource, progress: Progress | None = None
) -> UpdatedIndex:
    """Make an index hold the vectors of exactly these images, as they are now; one of another run is made again."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; an index is a folder. Choose another place.")
    inside = [file.name for file in folder.iterdir()] if folder.is_dir() else []
    if (
        inside
        and HEADER_FILE not in inside
        and any(not name.startswith((".", "vectors-", "entries-")) for name in inside)
    ):
        raise RunError(f"{folder} is not empty and not an index ({HEADER_FILE} is missing). Choose another place.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock_index(folder):
            return _update(folder, embedder, images, progress)
    except StorageError:
        raise
    except OSError as error:
        raise RunError(f"{folder}: the index cannot be written: {error}. Choose another place with --index.") from None


def _update(place: Path, embedder: Embedder, images: ImageSource, progress: Progress | None) -> UpdatedIndex:
    made_by, note, index = embedder.fingerprint(images.crop_margins), "", None
    if (place / HEADER_FILE).is_file():
        try:
            index = Index.open(place).read()
            if (index.header.run, index.header.width) != (made_by, embedder.width):
                index, note = None, "the index was made again: it was another run's"
        except RunError as error:
            note = f"the index was made again: {error}"
    if index is None:
        index = create_index(place, made_by, embedder.width, images.name)
    # Unchanged images stay where they are, moved and touched ones keep their vectors; a broken one has no row.
    now = {entry.name: entry for entry in images.entries()}
    stay: list[tuple[int | None, IndexEntry]] = []
    fresh: list[IndexEntry] = []
    gone: dict[tuple[int, str | None], tuple[int | None, IndexEntry]] = {}
    for row, entry in [*enumerate(index.entries), *((None, entry) for entry in index.unreadable)]:
        there = now.get(entry.name)
        if there is None or (entry.size, entry.time) != (there.size, there.time):
            gone[entry.size, entry.sum] = (row, entry)
        else:
            stay.append((row, entry))
            del now[entry.name]
    sizes = {size for size, _ in gone}
    for entry in now.values():
        found = gone.pop((entry.size, images.checksum(entry.name)), None) if entry.size in sizes else None
        if found is None:
            fresh.append(entry)
        else:
            stay.append((found[0], found[1]._replace(name=entry.name, time=entry.time)))
    kept = sorted((row, entry) for row, entry in stay if row is not None)
    broken = [entry for row, entry in stay if row is None]
    removed = len(index) - len(kept)
    if [entry for _, entry in kept] != list(index.entries) or set(broken) != set(index.unreadable):
        index = rewrite_index(index, kept, broken, images.name)
    elif index.header.images != images.name:  # the folder was moved
        index = _turn_to(place, replace(index.header, images=images.name))
    before, header = len(index), index.header
    advance = progress_counter(progress, "embedding images", len(fresh)) if fresh else None
    for first in range(0, len(fresh), BLOCK):
        block = fresh[first : first + BLOCK]
        good, pixels, broken = read_entries(images, block, embedder.side)
        header = append_entries(place, header, [*good, *broken], embedder.image_vectors(pixels))
        if advance:
            advance(len(block))
    index = Index.open(place)
    return UpdatedIndex(index, len(index) - before, removed, note)
