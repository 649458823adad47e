"""The index of a folder of images."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from jaxtyping import Bool, Float32, UInt8

from lemma.data.batches import TokenRows
from lemma.data.corpora import IMAGES
from lemma.data.files import Progress, counting, exists, file_hash, write_atomically
from lemma.data.images import ImageFile, decode_images, image_files, list_images, lowercase, thumbnail
from lemma.data.store import encode_texts, fit_rows, unknown_tokens
from lemma.data.tables import SEPARATED, Column, read_table
from lemma.data.tokenizers import Tokenizer
from lemma.errors import DataError, InputError, RunError, unknown
from lemma.models.dual_encoder import DualEncoderModel, embed_images, embed_texts
from lemma.runs.checkpoint import read_json
from lemma.runs.folder import only_writer
from lemma.runs.load import Run
from lemma.spec.models import BodySpec, Transformer, longest

# Texts to search by or among: read from a file, and turned into the tokens that a text tower reads.


CALLED = frozenset({"texts", "caption", "captions", "sentence", "title", "description", "name", "query"})


@dataclass(frozen=True)
class Tokenised:
    """Texts as rows of tokens, what each leaves unread, and whether anything of it is known."""

    rows: TokenRows
    known: Bool[np.ndarray, "texts"]
    remarks: tuple[str, ...]


def tokenise(texts: Sequence[str], tokenizer: Tokenizer, body: BodySpec) -> Tokenised:
    """Turn texts into tokens as in training: cut to what the body reads, between marks for a Transformer."""
    texts, marked = [lowercase(text) for text in texts], isinstance(body, Transformer)
    room = longest(body) - 2 * marked
    rows, _ = encode_texts(tokenizer, texts, lambda size: None)
    told = [_remark(text, tokenizer, int(length), room) for text, length in zip(texts, rows.lengths, strict=True)]
    known = ~unknown_tokens(rows, tokenizer)[1]
    return Tokenised(fit_rows(rows, tokenizer, longest(body), marked), known, tuple(told))


def _remark(text: str, tokenizer: Tokenizer, length: int, room: int) -> str:
    ids, left_out = tokenizer.encode_known(text)
    strange = int((ids == tokenizer.unk).sum()) if tokenizer.unk is not None else 0
    remarks = [
        f"{_counted(left_out, 'character')} left out: the tokenizer does not know them" if left_out else "",
        f"{_counted(strange, 'word')} of {length} not known" if strange else "",
        f"only the first {room} of {length} tokens were read" if length > room else "",
    ]
    return "; ".join(filter(None, remarks))


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def checked_texts(texts: Sequence[object], what: str = "query") -> list[str]:
    """The texts, each with something in it."""
    for place, text in enumerate(texts, start=1):
        which = what if len(texts) == 1 else f"{what} {place}"
        if not isinstance(text, str):
            raise InputError(f"{which} is {text!r} ({type(text).__name__}), and no text. Put it in quotes.")
        if not text.strip():
            raise InputError(f"{which} is empty: there is nothing to look for. As in: --query 'a red heart'")
    return [str(text) for text in texts]


def read_texts(path: Path, column: str | None = None) -> list[str]:
    """Read texts from a file: one a line, or a column of a CSV, TSV or JSONL table."""
    if path.suffix.lower() in {*SEPARATED, ".jsonl"} or column is not None:
        wanted = [Column("text", column, CALLED)]
        return list(read_table(path, wanted, any_width=False, is_header=_looks).cells["text"])
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file. Give one with a text a line, or a CSV table.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a text in UTF-8 ({error}).") from None
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise DataError(f"{path}: the file is empty. Give one with a text a line.")
    return found


def _looks(first: Sequence[str]) -> bool:
    return bool({cell.strip().casefold() for cell in first} & {"text", *CALLED})


# Pictures and texts as vectors of the space that both towers of a run share.


READING = 1
"""The number of the way in which pictures become pixels: another one makes other vectors."""
OF_TEXTS = {"body", "pool", "temperature"}
"""Words of the spec on which no picture's vector depends."""

Vectors = Float32[np.ndarray, "batch shared"]


@dataclass(frozen=True)
class Embedder:
    """The two towers of a run, whatever stands around them."""

    run: Run

    @cached_property
    def towers(self) -> DualEncoderModel:
        """The dual encoder: the run's own, or that of its re-ranker."""
        return self.run.dual_encoder

    @property
    def side(self) -> int:
        """Pixels on a side of a picture as it is read."""
        return self.towers.spec.side

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return self.towers.spec.shared

    @cached_property
    def hash(self) -> str:
        """What tells these picture vectors from all others: the image tower, its map, and how pictures are read."""
        words = {word: value for word, value in self.towers.spec.to_dict().items() if word not in OF_TEXTS}
        digest = hashlib.sha256(json.dumps([READING, words], sort_keys=True).encode())
        for part in (self.towers.image, self.towers.image_projection):
            for name, tensor in part.state_dict().items():
                digest.update(f"{name} {tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def made_by(self, framed: bool) -> str:
        """What an index says its vectors were made by."""
        return f"{self.hash} framed" if framed else self.hash

    def pictures(self, pixels: UInt8[np.ndarray, "batch 3 side side"]) -> Vectors:
        """The vectors of some pictures."""
        return self._checked(embed_images(self.towers, pixels))

    def texts(self, texts: Sequence[str]) -> tuple[Vectors, Tokenised]:
        """The vectors of some texts, and what was read of each."""
        tokenised = tokenise(texts, self.run.tokenizer, self.towers.spec.body)
        return self._checked(embed_texts(self.towers, tokenised.rows)), tokenised

    def _checked(self, vectors: Vectors) -> Vectors:
        if not np.isfinite(vectors).all():
            raise RunError(f"{self.run.path} gives vectors that are no finite numbers: its training went wrong.")
        return vectors


# What an index knows of one picture: enough to see that it has changed, moved or could not be read.


GOOD = b', ""]'
"""How the line of a picture ends that is not broken."""


class Entry(NamedTuple):
    """A picture by its name, as it was when it was read."""

    name: str
    """Its path within the folder, with / between folders."""
    size: int
    time: int
    """When it was last changed, in nanoseconds."""
    sum: str = ""
    """The SHA-256 of the file; empty before it is read."""
    broken: str = ""
    """Why it could not be read; a broken picture owns no vector."""

    def same_file(self, other: "Entry") -> bool:
        """Whether size and time say that nothing has changed."""
        return (self.size, self.time) == (other.size, other.time)

    def found_as(self, listed: "Entry") -> "Entry":
        """The same picture under the name and time that it has now."""
        return self._replace(name=listed.name, time=listed.time)

    def line(self) -> str:
        """The entry as a line of JSON.

        >>> Entry("a.png", 3, 5, "ab").line()
        '["a.png", 3, 5, "ab", ""]\\n'
        """
        return json.dumps(list(self)) + "\n"


def read_entries_of(lines: Sequence[bytes], where: str) -> tuple[Entry, ...]:
    """Read such lines; damage is a RunError."""
    try:
        found = tuple(Entry(*words) for words in json.loads(b"[" + b",".join(lines) + b"]"))
    except (ValueError, TypeError):
        raise RunError(f"{where} is damaged. Remove its folder: the index is made again.") from None
    if len(found) != len(lines) or any(type(entry.name) is not str or type(entry.size) is not int for entry in found):
        raise RunError(f"{where} is damaged: an entry is none. Remove its folder: the index is made again.")
    return found


# Where the pictures of an index come from, and what became of each since it was last read.


class Pictures(Protocol):
    """Pictures that can be listed, read and shown."""

    @property
    def name(self) -> str:
        """Where they are."""
        ...

    def listed(self) -> list[Entry]:
        """All pictures as they are now, none of them read yet."""
        ...

    def path(self, name: str) -> Path:
        """The file of a picture."""
        ...

    def caption(self, name: str) -> str:
        """What a picture is called beside its name; nothing where nobody said."""
        ...

    @property
    def framed(self) -> bool:
        """Whether what is transparent around a drawing is cut off first."""
        ...


@dataclass(frozen=True)
class FolderPictures:
    """All picture files in a folder and in the folders within."""

    folder: Path
    framed: bool = False

    @property
    def name(self) -> str:
        """The folder."""
        return str(self.folder)

    def listed(self) -> list[Entry]:
        """All picture files as they are now."""
        return [entry for path in image_files(self.folder) if (entry := self._entry(path))]

    def path(self, name: str) -> Path:
        """The file of a picture."""
        return self.folder / name

    def caption(self, name: str) -> str:
        """Nobody said."""
        return ""

    def _entry(self, path: Path) -> Entry | None:
        try:
            about = path.stat()
        except OSError:  # gone since it was listed, or a link that leads nowhere
            return None
        return Entry(path.relative_to(self.folder).as_posix(), about.st_size, about.st_mtime_ns)


def open_folder(folder: Path) -> FolderPictures:
    """The pictures of a folder that is there."""
    if not folder.exists():
        raise DataError(f"{folder}: there is no such folder. Give one with pictures in it.")
    if not folder.is_dir():
        raise DataError(f"{folder} is a file. Give the folder that it is in; or a picture to compare with by --image.")
    return FolderPictures(folder.resolve())


def read_entries(
    pictures: Pictures, entries: Sequence[Entry], side: int
) -> tuple[list[Entry], UInt8[np.ndarray, "read 3 side side"], list[Entry]]:
    """Read some pictures: those that could be, their pixels, and those that are broken, with the reason.

    One that is gone, or that nobody may read now, is in neither list: it is tried again the next time.
    """
    there = [summed for entry in entries if (summed := _summed(pictures, entry))]
    read = list(decode_images([pictures.path(entry.name) for entry in there], side, framed=pictures.framed))
    good = [(entry, pixels) for entry, pixels in zip(there, read, strict=True) if not isinstance(pixels, DataError)]
    broken = [
        entry._replace(broken=_reason(error, pictures.path(entry.name)))
        for entry, error in zip(there, read, strict=True)
        if isinstance(error, DataError)
    ]
    stacked = np.stack([pixels for _, pixels in good]) if good else np.zeros((0, 3, side, side), dtype=np.uint8)
    return [entry for entry, _ in good], stacked, broken


def _summed(pictures: Pictures, entry: Entry) -> Entry | None:
    try:
        return entry._replace(sum=file_hash(pictures.path(entry.name)))
    except OSError:
        return None


def _reason(error: DataError, path: Path) -> str:
    return str(error).removeprefix(f"{path}: ") or "it cannot be read"


def small_picture(path: Path, side: int) -> bytes | None:
    """A thumbnail as PNG; None where the picture is gone or broken."""
    try:
        return thumbnail(path, side)
    except (DataError, OSError):
        return None


@dataclass(frozen=True)
class NamedPictures:
    """The pictures of a set that is known by name."""

    name: str
    pictures: Mapping[str, ImageFile] = field(repr=False)
    framed: bool = True

    def listed(self) -> list[Entry]:
        """All of them; their files never change, so that they bear no time."""
        return [Entry(name, picture.path.stat().st_size, 0) for name, picture in self.pictures.items()]

    def path(self, name: str) -> Path:
        """The file of a picture."""
        return self.pictures[name].path if name in self.pictures else Path(name)

    def caption(self, name: str) -> str:
        """What the set says of a picture."""
        return self.pictures[name].captions[0] if name in self.pictures else ""


def open_pictures(name: str | Path, progress: Progress | None = None) -> Pictures:
    """The pictures of a set known by name, or of a folder."""
    if str(name) in IMAGES:
        listing = list_images(str(name), progress=progress)
        return NamedPictures(str(name), {picture.name: picture for picture in sorted(listing.images)})
    path = Path(name)
    if not exists(path) and path.name == str(name):
        raise DataError(unknown("images", str(name), IMAGES) + " Or give the path of a folder of pictures.")
    return open_folder(path)


# The index of a folder of pictures: a vector for each, kept on the disk and read from there.
#
#     index.json         which run the vectors are of, their width, the generation, and how much of the files counts
#     vectors-G.bin      float32, a row for each picture, each of length 1; memory-mapped
#     entries-G.jsonl    a line for each picture in the same order, and one for each that is broken
#
# Both files only ever grow: new rows and lines are written and synced behind those that count, and then index.json is
# replaced in one go. A process that is killed leaves at most a tail that does not count, which the next writer cuts
# off.
# Where pictures are gone or changed, what stays is copied to files of the next generation, and index.json turns to
# them.
# A reader therefore always meets a whole index, be it an older one.


HEAD = "index.json"
FORMAT = 1
FLOAT = 4

Matrix = Float32[np.ndarray, "pictures width"]


@dataclass(frozen=True)
class Head:
    """What index.json says."""

    run: str
    """The hash of what made the vectors."""
    width: int
    pictures: str
    """The folder, or the name, of the pictures."""
    generation: int = 0
    rows: int = 0
    lines: int = 0
    size: int = 0
    """Bytes of the entries that count."""
    format: int = FORMAT

    @property
    def vectors(self) -> str:
        """The name of the file of vectors."""
        return f"vectors-{self.generation}.bin"

    @property
    def entries(self) -> str:
        """The name of the file of entries."""
        return f"entries-{self.generation}.jsonl"

    def grown(self, rows: int, lines: int, size: int) -> "Head":
        """The same with so much more."""
        return replace(self, rows=self.rows + rows, lines=self.lines + lines, size=self.size + size)

    def write(self, place: Path) -> None:
        """Replace the head of an index in one go."""
        write_atomically(place / HEAD, json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")


@dataclass(frozen=True, eq=False)
class Index:
    """An index as it stands: its pictures in the order of their vectors, and those that are broken."""

    place: Path
    head: Head
    lines: Sequence[bytes] = field(repr=False)
    """The entries as they stand in their file, those of pictures in the order of their vectors."""
    broken_lines: Sequence[bytes] = field(repr=False)
    vectors: Matrix = field(repr=False)
    """Memory-mapped: only what is looked at is read."""

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The pictures in the order of their vectors."""
        return self._read(self.lines)

    @cached_property
    def broken(self) -> tuple[Entry, ...]:
        """The pictures that could not be read."""
        return self._read(self.broken_lines)

    def read(self) -> Self:
        """Read all entries now, so that damage shows."""
        assert len(self.entries) + len(self.broken) == self.head.lines
        return self

    def entry(self, row: int) -> Entry:
        """The picture of one vector; the others are not read."""
        return self._read(self.lines[row : row + 1])[0]

    def _read(self, lines: Sequence[bytes]) -> tuple[Entry, ...]:
        return read_entries_of(lines, str(self.place / self.head.entries))

    @classmethod
    def open(cls, place: Path) -> Self:
        """Open an index; while another process turns to a new generation, the head is read once more."""
        try:
            return cls._open(place)
        except FileNotFoundError:
            pass
        try:
            return cls._open(place)
        except FileNotFoundError as error:
            raise RunError(f"{place} is damaged: {Path(str(error.filename)).name} is missing. Remove it.") from None

    @classmethod
    def _open(cls, place: Path) -> Self:
        head = read_head(place)
        lines = _lines(place / head.entries, head)
        good = [line for line in lines if line.endswith(GOOD)]
        if len(lines) != head.lines or len(good) != head.rows:
            raise RunError(f"{place / head.entries} is damaged: other entries than {HEAD} says. Remove {place}.")
        broken = [line for line in lines if not line.endswith(GOOD)] if len(good) < len(lines) else []
        return cls(place, head, good, broken, _mapped(place / head.vectors, head))

    def __len__(self) -> int:
        return self.head.rows


def is_index(place: Path) -> bool:
    """Whether an index stands there."""
    return (place / HEAD).is_file()


def read_head(place: Path) -> Head:
    """Read index.json; one that is missing, damaged or of another format is a RunError."""
    if not is_index(place):
        raise RunError(
            f"{place} holds no index ({HEAD} is missing). To make one: lemma search RUN --images FOLDER --index {place}"
        )
    words: dict[str, Any] = read_json(place / HEAD)
    if words.get("format") != FORMAT:
        raise RunError(f"{place / HEAD}: format {words.get('format')!r}, expected {FORMAT}. Remove {place}.")
    try:
        head = Head(**words)
    except TypeError:
        raise RunError(f"{place / HEAD} is damaged: other words than expected. Remove {place}.") from None
    numbers = (head.width, head.generation, head.rows, head.lines, head.size)
    if not all(type(number) is int and number >= 0 for number in numbers) or head.width < 1:
        raise RunError(f"{place / HEAD} is damaged: a size is no whole number. Remove {place}.")
    return head


def _lines(path: Path, head: Head) -> Sequence[bytes]:
    with path.open("rb") as file:
        return file.read(head.size).splitlines()


def _mapped(path: Path, head: Head) -> Matrix:
    if path.stat().st_size < head.rows * head.width * FLOAT:
        raise RunError(f"{path} is damaged: shorter than {HEAD} says. Remove {path.parent}.")
    if not head.rows:
        return np.zeros((0, head.width), dtype=np.float32)
    return np.memmap(path, dtype="<f4", mode="r", shape=(head.rows, head.width))


# Writing an index so that a reader, or a machine that loses power, never meets half of it.


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


# Bringing an index up to date: only pictures that are new or changed are read.


BLOCK = 256
"""Pictures that are read, embedded and written at once: at most so much work is lost."""


@dataclass(frozen=True)
class Updated:
    """An index that is up to date, and what was done for it."""

    index: Index
    new: int
    removed: int
    note: str = ""
    """Why it was made anew, if it was."""


@dataclass
class Plan:
    """What stays of an index, and what is to be read."""

    kept: list[tuple[int, Entry]] = field(default_factory=list)
    """TokenRows that stay, each under the entry that it has now."""
    broken: list[Entry] = field(default_factory=list)
    """Broken pictures that have not changed since."""
    fresh: list[Entry] = field(default_factory=list)


def update_index(place: Path, embedder: Embedder, pictures: Pictures, progress: Progress | None = None) -> Updated:
    """Let an index hold the vectors of just these pictures, as they are now; one of another run is made anew."""
    refuse_foreign(place)
    try:
        place.mkdir(parents=True, exist_ok=True)
        with only_updater(place):
            return _update(place, embedder, pictures, progress)
    except OSError as error:
        raise RunError(f"{place}: the index cannot be written: {error}. Choose another place by --index.") from None


def _update(place: Path, embedder: Embedder, pictures: Pictures, progress: Progress | None) -> Updated:
    index, note = _opened(place, embedder, pictures)
    listed = pictures.listed()
    plan = _plan(index, listed, pictures)
    removed = len(index) - len(plan.kept)
    if _differs(index, plan):
        index = keep(index, plan.kept, plan.broken, pictures.name)
    elif index.head.pictures != pictures.name:
        index = renamed(index, pictures.name)
    before = len(index)
    _read_fresh(place, index.head, embedder, pictures, plan.fresh, progress)
    index = Index.open(place)
    return Updated(index, len(index) - before, removed, note)


def _opened(place: Path, embedder: Embedder, pictures: Pictures) -> tuple[Index, str]:
    """The index that stands there, or a new one where it is missing, damaged or another run's."""
    made_by, note = embedder.made_by(pictures.framed), ""
    if is_index(place):
        try:
            index = Index.open(place).read()
            if (index.head.run, index.head.width) == (made_by, embedder.width):
                return index, ""
            note = "the index was another run's, and was made anew"
        except RunError as error:
            note = f"the index was made anew: {error}"
    return start(place, made_by, embedder.width, pictures.name), note


def _plan(index: Index, listed: Sequence[Entry], pictures: Pictures) -> Plan:
    """Sort the pictures: unchanged ones stay where they are, moved and touched ones keep their vectors."""
    now, plan = {entry.name: entry for entry in listed}, Plan()
    gone: dict[tuple[int, str], tuple[int | None, Entry]] = {}
    for row, entry in [*enumerate(index.entries), *((None, entry) for entry in index.broken)]:
        there = now.get(entry.name)
        if there is None or not entry.same_file(there):
            gone[entry.size, entry.sum] = (row, entry)
        else:
            _stay(plan, row, entry)
            del now[entry.name]
    sizes = {size for size, _ in gone}
    for entry in now.values():
        found = gone.pop((entry.size, _sum(pictures, entry)), None) if entry.size in sizes else None
        if found is None:
            plan.fresh.append(entry)
        else:
            _stay(plan, found[0], found[1].found_as(entry))
    plan.kept.sort(key=lambda pair: pair[0])
    return plan


def _stay(plan: Plan, row: int | None, entry: Entry) -> None:
    if row is None:
        plan.broken.append(entry)
    else:
        plan.kept.append((row, entry))


def _sum(pictures: Pictures, entry: Entry) -> str:
    try:
        return file_hash(pictures.path(entry.name))
    except OSError:
        return ""


def _differs(index: Index, plan: Plan) -> bool:
    """Whether what stays is other than what stands."""
    return [entry for _, entry in plan.kept] != list(index.entries) or set(plan.broken) != set(index.broken)


def _read_fresh(
    place: Path,
    head: Head,
    embedder: Embedder,
    pictures: Pictures,
    fresh: Sequence[Entry],
    progress: Progress | None,
) -> None:
    if not fresh:
        return
    advance = counting(progress, "embedding pictures", len(fresh))
    for first in range(0, len(fresh), BLOCK):
        block = fresh[first : first + BLOCK]
        good, pixels, broken = read_entries(pictures, block, embedder.side)
        head = append(place, head, [*good, *broken], embedder.pictures(pixels))
        advance(len(block))
