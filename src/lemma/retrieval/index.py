"""The index of a folder of images: a vector for each, stored on disk and memory-mapped.

    index.json         which run made the vectors, their width, the generation, how much of the two files counts and
                       the CRC-32 of that part; and its own SHA-256
    vectors-G.bin      float32, a row for each image, each of length 1
    entries-G.jsonl    a line for each image in the same order, and one for each that cannot be read

Both files only ever grow: new rows and lines are appended and synced, then index.json is replaced atomically. A process
that is killed leaves at most a tail that does not count, which the next writer cuts off. If images were removed or
changed, the remaining rows are copied to files of the next generation, and index.json then points to them. A reader
therefore always sees a complete index, even if it is an older one.
"""

import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from jaxtyping import Float32, UInt8
from pydantic import ConfigDict, NonNegativeInt, PositiveInt, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from lemma.data.corpora import IMAGES
from lemma.data.images import ImageFile, decode_images, find_images, list_images
from lemma.errors import DataError, RunError, StorageError, describe_unknown
from lemma.files import (
    Progress,
    explain_storage_errors,
    file_hash,
    matches_checksum,
    progress_counter,
    read_checked_json,
    read_json,
    write_checked_json,
)
from lemma.retrieval.embedding import Embedder
from lemma.retrieval.result import IndexCounts
from lemma.runs.folder import write_lock
from lemma.runs.verify import Verification, check_files, make_verification
from lemma.spec.base import exists

HEADER_FILE = "index.json"
INDEX_FORMAT = 2
FLOAT_BYTES = 4
READABLE_END = b', ""]'  # how the line of an image ends that can be read
COPY_ROWS = 1 << 14  # vectors that are copied at once
BLOCK = 256  # images that are read, embedded and written at once: no more work than this is ever lost

Matrix = Float32[np.ndarray, "images width"]


# The files of an index


class IndexEntry(NamedTuple):
    """Record of an image file when it was last read: name, size, time, checksum, and the error if it had one."""

    name: str  # its path within the folder, with / between folders
    size: int
    mtime_ns: int
    sha256: str = ""  # of the file; empty before it is read
    error: str = ""  # why it could not be read; such an image has no vector


@checked_dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class IndexHeader:
    """Content of index.json in an index folder; the fields are its keys."""

    run: str  # hash of what made the vectors
    width: PositiveInt
    images: str  # the folder, or the name, of the images
    generation: NonNegativeInt = 0
    rows: NonNegativeInt = 0
    lines: NonNegativeInt = 0
    size: NonNegativeInt = 0  # bytes of the entries that count
    vectors_sum: NonNegativeInt = 0  # CRC-32 of what counts of the vectors
    entries_sum: NonNegativeInt = 0  # CRC-32 of what counts of the entries
    format: int = INDEX_FORMAT

    @property
    def vectors(self) -> str:
        """Name of the file with the vectors."""
        return f"vectors-{self.generation}.bin"

    @property
    def entries(self) -> str:
        """Name of the file with the entries."""
        return f"entries-{self.generation}.jsonl"

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read index.json from an index folder; raise RunError if it is missing, damaged or of another format."""
        path = folder / HEADER_FILE
        if not path.is_file():
            raise RunError(
                f"{folder} holds no index ({HEADER_FILE} is missing). "
                f"To make one: lemma search RUN --images FOLDER --index {folder}"
            )
        if (version := read_json(path).get("format")) != INDEX_FORMAT:
            raise RunError(f"{path}: format {version!r}, expected {INDEX_FORMAT}. Remove {folder}.")
        try:
            return cls(**read_checked_json(path))
        except ValidationError:
            raise RunError(f"{path} is damaged: it has unexpected fields or values. Remove {folder}.") from None

    def write(self, folder: Path) -> None:
        """Write index.json, with a checksum, into an index folder."""
        write_checked_json(folder / HEADER_FILE, asdict(self))


@dataclass(frozen=True, eq=False)
class Index:
    """An opened index: its images in the order of their vectors, and those that cannot be read."""

    folder: Path
    header: IndexHeader
    lines: Sequence[bytes] = field(repr=False)  # entries in the order of their vectors, as they are in the file
    unreadable_lines: Sequence[bytes] = field(repr=False)
    vectors: Matrix = field(repr=False)  # memory-mapped, so that only what is used is read

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open the index in a folder; if another process replaces its files at the same moment, try once more."""
        with suppress(FileNotFoundError):
            return cls._open(folder)
        try:
            return cls._open(folder)
        except FileNotFoundError as error:
            raise RunError(f"{folder} is damaged: {Path(str(error.filename)).name} is missing. Remove it.") from None

    @classmethod
    def _open(cls, folder: Path) -> Self:
        """Read header and entries, map the vectors into memory, and check all checksums; raise RunError on damage."""
        header = IndexHeader.read(folder)
        entries, vectors = folder / header.entries, folder / header.vectors
        with entries.open("rb") as file:
            content = file.read(header.size)
        lines: dict[bool, list[bytes]] = {True: [], False: []}
        for line in content.splitlines():
            lines[line.endswith(READABLE_END)].append(line)
        if zlib.crc32(content) != header.entries_sum or len(lines[True]) != header.rows:
            raise RunError(f"{entries} is damaged: it does not have the checksum in {HEADER_FILE}. Remove {folder}.")
        size = header.rows * header.width * FLOAT_BYTES
        if vectors.stat().st_size < size:
            raise RunError(f"{vectors} is damaged: shorter than {HEADER_FILE} says. Remove {folder}.")

        def compute_checksum() -> str:
            counted = np.memmap(vectors, np.uint8, "r", shape=size).data if size else b""
            return f"{size} {zlib.crc32(counted)}"

        if not matches_checksum(vectors, f"{size} {header.vectors_sum}", compute_checksum):
            raise RunError(f"{vectors} is damaged: it does not have the checksum in {HEADER_FILE}. Remove {folder}.")
        shape = (header.rows, header.width)
        mapped = np.memmap(vectors, "<f4", "r", shape=shape) if header.rows else np.zeros(shape, dtype=np.float32)
        return cls(folder, header, lines[True], lines[False], mapped)

    def __len__(self) -> int:
        return self.header.rows

    @cached_property
    def entries(self) -> tuple[IndexEntry, ...]:
        """Entries of images that have a vector, in the order of the vectors."""
        return self._parse(self.lines)

    @cached_property
    def unreadable(self) -> tuple[IndexEntry, ...]:
        """Entries of images that could not be read."""
        return self._parse(self.unreadable_lines)

    def entry(self, row: int) -> IndexEntry:
        """Return the entry of the image whose vector has index `row`."""
        return self._parse(self.lines[row : row + 1])[0]

    def _parse(self, lines: Sequence[bytes]) -> tuple[IndexEntry, ...]:
        """Parse lines of JSON to entries, one each; raise RunError if a line is damaged."""
        try:
            return tuple(IndexEntry(*fields) for fields in json.loads(b"[" + b",".join(lines) + b"]"))
        except (ValueError, TypeError):
            raise RunError(f"{self.folder / self.header.entries} is damaged: it has an invalid entry.") from None


def verify_index(folder: Path) -> Verification:
    """Compare the files of the index in a folder with their checksums; return the result of the check."""
    paths = [folder / HEADER_FILE, *_data_files(folder)]
    return make_verification(folder, check_files(paths, lambda: Index.open(folder)))


# Sources of images


@dataclass(frozen=True)
class ImageSource:
    """The images of a folder and of the folders within, or of a built-in set."""

    name: str  # the folder, or the name of the set
    folder: Path | None = None
    images: Mapping[str, ImageFile] = field(default_factory=dict, repr=False)  # of a set

    @property
    def crop_margins(self) -> bool:
        """True if transparent margins are cropped before embedding: of built-in sets, which are drawings."""
        return self.folder is None

    def entries(self) -> list[IndexEntry]:
        """List all images with name, size and modification time, without reading them; built-in images have time 0."""
        if self.folder is None:
            return [IndexEntry(name, image.path.stat().st_size, 0) for name, image in self.images.items()]
        entries = []
        for path in find_images(self.folder):
            try:
                status = path.stat()
            except OSError:  # removed since it was listed, or a broken link
                continue
            entries.append(IndexEntry(path.relative_to(self.folder).as_posix(), status.st_size, status.st_mtime_ns))
        return entries

    def path(self, name: str) -> Path:
        """Return the path of the image called `name`."""
        if self.folder is not None:
            return self.folder / name
        return self.images[name].path if name in self.images else Path(name)

    def caption(self, name: str) -> str:
        """Return the caption of the built-in image `name`; "" for images of a folder."""
        return self.images[name].captions[0] if name in self.images else ""

    def checksum(self, name: str) -> str | None:
        """Return the SHA-256 of the file of the image called `name`; None if it cannot be read."""
        with suppress(OSError):
            return file_hash(self.path(name))
        return None


def open_images(name: str | Path, progress: Progress | None = None) -> ImageSource:
    """Open the images of a folder, or of a built-in set by name."""
    if str(name) in IMAGES:
        listing = list_images(str(name), progress=progress)
        return ImageSource(str(name), images={file.name: file for file in sorted(listing.examples)})
    folder = Path(name)
    if not exists(folder) and folder.name == str(name):
        raise DataError(
            describe_unknown("set of images", str(name), IMAGES) + " Or give the path of a folder of images."
        )
    if not folder.exists():
        raise DataError(f"{folder}: there is no such folder. Give one with images in it.")
    if not folder.is_dir():
        raise DataError(f"{folder} is a file. Give the folder that it is in; or an image to search for with --image.")
    return ImageSource(str(folder.resolve()), folder.resolve())


def read_entries(
    images: ImageSource, entries: Sequence[IndexEntry], side: int
) -> tuple[list[IndexEntry], UInt8[np.ndarray, "read 3 side side"], list[IndexEntry]]:
    """Decode images to `side` × `side` pixels; return entries of readable images, their pixels, unreadable entries.

    A file that is missing or cannot be opened is in neither list: the next update tries it again.
    """
    checksums = ((entry, images.checksum(entry.name)) for entry in entries)
    existing = [entry._replace(sha256=checksum) for entry, checksum in checksums if checksum is not None]
    paths = [images.path(entry.name) for entry in existing]
    readable, unreadable, pixels = [], [], []
    decoded = decode_images(paths, side, crop_margins=images.crop_margins)
    for entry, path, image in zip(existing, paths, decoded, strict=True):
        if isinstance(image, DataError):
            unreadable.append(entry._replace(error=str(image).removeprefix(f"{path}: ") or "it cannot be read"))
        else:
            readable.append(entry)
            pixels.append(image)
    return readable, np.stack(pixels) if pixels else np.zeros((0, 3, side, side), dtype=np.uint8), unreadable


# Writing, so that a reader, even after a power failure, never sees half of an index


def create_index(folder: Path, fingerprint: str, width: int, images: str) -> Index:
    """Create an empty index in a folder and remove the files of an earlier index there.

    `fingerprint` identifies the model that makes the vectors, of `width` numbers; `images` names their folder or set.
    """
    generation = 1 + max((int(file.stem.rpartition("-")[2]) for file in _data_files(folder)), default=-1)
    header = IndexHeader(fingerprint, width, images, generation)
    (folder / header.vectors).touch()
    (folder / header.entries).touch()
    header.write(folder)
    return _remove_unused_files(folder, header)


def append_entries(
    folder: Path, header: IndexHeader, entries: Sequence[IndexEntry], vectors: Matrix, rows: Any = None
) -> IndexHeader:
    """Append entries and vectors to the files of the index in `folder`; write and return the new header.

    `entries` are first those of the vectors to append, then those of unreadable images. `rows` are the indices of the
    vectors to append, by default all.
    """
    lines = "".join(json.dumps(list(entry)) + "\n" for entry in entries).encode()
    rows = np.arange(len(vectors)) if rows is None else np.asarray(rows, dtype=np.int64)
    blocks = (vectors[rows[first : first + COPY_ROWS]] for first in range(0, len(rows), COPY_ROWS))
    content = (np.ascontiguousarray(block, dtype="<f4").tobytes() for block in blocks)
    end = header.rows * header.width * FLOAT_BYTES
    grown = replace(
        header,
        rows=header.rows + len(rows),
        lines=header.lines + len(entries),
        size=header.size + len(lines),
        vectors_sum=_write_at(folder / header.vectors, end, content, header.vectors_sum),
        entries_sum=_write_at(folder / header.entries, header.size, [lines], header.entries_sum),
    )
    grown.write(folder)
    return grown


def rewrite_index(
    index: Index, rows: Sequence[tuple[int, IndexEntry]], unreadable: Sequence[IndexEntry], images: str
) -> Index:
    """Write a new version of an index with a subset of its vectors, and return it.

    `rows` has the index of each vector that stays and its new entry, `unreadable` the entries of images without one.
    """
    old = index.header
    entries = [entry for _, entry in rows] + list(unreadable)
    header = IndexHeader(old.run, old.width, images, old.generation + 1)
    header = append_entries(index.folder, header, entries, index.vectors, [row for row, _ in rows])
    return _remove_unused_files(index.folder, header)


def _remove_unused_files(folder: Path, header: IndexHeader) -> Index:
    """Remove the data files in `folder` that `header` does not name; return the opened index."""
    for file in _data_files(folder):
        if file.name not in (header.vectors, header.entries):
            file.unlink(missing_ok=True)
    return Index.open(folder)


def _data_files(folder: Path) -> list[Path]:
    """Return the paths of all vector and entry files in an index folder."""
    files = [*folder.glob("vectors-*.bin"), *folder.glob("entries-*.jsonl")]
    return [file for file in files if file.stem.rpartition("-")[2].isdigit()]


def _write_at(path: Path, offset: int, content: Iterable[bytes], checksum: int = 0) -> int:
    """Overwrite a file from byte `offset` on with `content` and flush it to disk; return the CRC-32 of the file.

    `checksum` is the CRC-32 of the bytes before the offset.
    """
    with explain_storage_errors(path), path.open("r+b" if path.exists() else "wb") as file:
        file.truncate(offset)
        file.seek(offset)
        for part in content:
            file.write(part)
            checksum = zlib.crc32(part, checksum)
        file.flush()
        _sync(file.fileno())
    return checksum


def _sync(descriptor: int) -> None:
    """Flush the open file with this descriptor to disk."""
    os.fsync(descriptor)


# Updating: only images that are new or changed are read


@dataclass(frozen=True)
class OpenedIndex:
    """An index with its images, if they still exist, and what was changed to update it."""

    index: Index
    images: ImageSource | None
    counts: IndexCounts
    note: str = ""  # why it was made again, if it was


def count_index(index: Index, new: int = 0, removed: int = 0) -> IndexCounts:
    """Count the images and unreadable files of an index; `new` and `removed` are counts of its last update."""
    return IndexCounts(len(index), new, removed, tuple((entry.name, entry.error) for entry in index.unreadable))


def update_index(
    folder: Path, embedder: Embedder, images: ImageSource, progress: Progress | None = None
) -> OpenedIndex:
    """Update the index in a folder to hold the vectors of exactly these images, and return it with the changes.

    An index of another model or a damaged one is rebuilt.
    """
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; an index is a folder. Choose another place.")
    names = [file.name for file in folder.iterdir()] if folder.is_dir() else []
    if names and HEADER_FILE not in names and any(not name.startswith((".", "vectors-", "entries-")) for name in names):
        raise RunError(f"{folder} is not empty and not an index ({HEADER_FILE} is missing). Choose another place.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(write_lock(folder))
            except RunError:
                raise RunError(
                    f"{folder} is being updated by another process. Wait for it; or search it as it is, "
                    f"without --images: lemma search RUN --index {folder} --query …"
                ) from None
            return _update(folder, embedder, images, progress)
    except StorageError:
        raise
    except OSError as error:
        raise RunError(f"{folder}: the index cannot be written: {error}. Choose another place with --index.") from None


def _update(folder: Path, embedder: Embedder, images: ImageSource, progress: Progress | None) -> OpenedIndex:
    """Remove, move and add entries of the index in `folder` to match `images`; the caller holds the lock."""
    index, note = _open_or_create(folder, embedder, images)
    rows, unreadable_now, new = _find_changes(index, images)
    removed = len(index) - len(rows)
    same_rows = [entry for _, entry in rows] == list(index.entries)
    if not same_rows or set(unreadable_now) != set(index.unreadable):
        index = rewrite_index(index, rows, unreadable_now, images.name)
    elif index.header.images != images.name:  # the folder was moved
        index = replace(index, header=replace(index.header, images=images.name))
        index.header.write(folder)
    before, header = len(index), index.header
    advance = progress_counter(progress if new else None, "embedding images", len(new))
    for first in range(0, len(new), BLOCK):
        block = new[first : first + BLOCK]
        readable, pixels, unreadable = read_entries(images, block, embedder.image_side)
        header = append_entries(folder, header, [*readable, *unreadable], embedder.image_vectors(pixels))
        advance(len(block))
    index = Index.open(folder)
    return OpenedIndex(index, images, count_index(index, len(index) - before, removed), note)


def _open_or_create(folder: Path, embedder: Embedder, images: ImageSource) -> tuple[Index, str]:
    """Open the index in a folder, or create an empty one if it is missing, damaged or of another model.

    The second value is a note on why it was replaced, or "".
    """
    fingerprint, note = embedder.fingerprint(images.crop_margins), ""
    if (folder / HEADER_FILE).is_file():
        try:
            index = Index.open(folder)
            if (index.header.run, index.header.width) == (fingerprint, embedder.width):
                return index, ""
            note = "the index was made again: it was another run's"
        except RunError as error:
            note = f"the index was made again: {error}"
    return create_index(folder, fingerprint, embedder.width, images.name), note


def _find_changes(
    index: Index, images: ImageSource
) -> tuple[list[tuple[int, IndexEntry]], list[IndexEntry], list[IndexEntry]]:
    """Compare an index with the current images; unchanged, moved and touched images keep their vectors.

    Returns the indices of valid vectors with their current entries, entries of unreadable images, and those to read.
    """
    current = {entry.name: entry for entry in images.entries()}
    valid: list[tuple[int | None, IndexEntry]] = []  # an unreadable image has no row
    outdated: dict[tuple[int, str | None], tuple[int | None, IndexEntry]] = {}
    for row, entry in [*enumerate(index.entries), *((None, entry) for entry in index.unreadable)]:
        now = current.get(entry.name)
        if now is None or (entry.size, entry.mtime_ns) != (now.size, now.mtime_ns):
            outdated[entry.size, entry.sha256] = (row, entry)
        else:
            valid.append((row, entry))
            del current[entry.name]
    sizes = {size for size, _ in outdated}
    new: list[IndexEntry] = []
    for entry in current.values():
        match = outdated.pop((entry.size, images.checksum(entry.name)), None) if entry.size in sizes else None
        if match is None:
            new.append(entry)
        else:
            valid.append((match[0], match[1]._replace(name=entry.name, mtime_ns=entry.mtime_ns)))
    rows = sorted((row, entry) for row, entry in valid if row is not None)
    return rows, [entry for row, entry in valid if row is None], new
