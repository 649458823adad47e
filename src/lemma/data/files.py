"""Files written atomically, their hashes, progress, and the folder where Lemma caches data."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from lemma.errors import DataError

# Files and folders that exist whole or not at all. What is written goes to a hidden sibling first
# (`.name.PID.partial`), is synced to the disk and then renamed: a reader, or a machine that loses power, never meets
# half of it. What a killed process left behind is removed by the next writer.

SUFFIX = ".partial"
NUMBERS = count()


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file so that `path` holds the old content or the new, never a part of it."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a name next to `path` to fill with a file or a folder, which becomes `path` unless something fails."""
    path = path.absolute()
    sweep(path.parent)
    temporary, old = _hidden(path, ""), _hidden(path, ".old")
    _remove(temporary)
    try:
        yield temporary
        _sync(temporary)
        if path.is_dir():  # nothing can be renamed onto a folder that is not empty: it steps aside first
            _remove(old)
            path.rename(old)
        try:
            temporary.replace(path)
        except OSError:
            if old.exists():
                old.rename(path)
            raise
        _sync_one(path.parent)
        _remove(old)
    finally:
        _remove(temporary)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Fill a folder that becomes `path` at the end, unless another process was first: then theirs stays."""
    path = path.absolute()
    sweep(path.parent)
    temporary = _hidden(path, f".{next(NUMBERS)}")  # so that two writers in one process do not meet
    temporary.mkdir()
    try:
        yield temporary
        _sync(temporary)
        try:
            temporary.rename(path)
        except OSError:
            if not path.is_dir():
                raise
    finally:
        _remove(temporary)


def sweep(folder: Path) -> None:
    """Remove what killed processes left half-written in a folder."""
    for left in folder.glob(f".*{SUFFIX}"):
        writer = left.name.removesuffix(SUFFIX).rpartition(".")[2]
        if writer.isdigit() and not _alive(int(writer)):
            _remove(left)


def _hidden(path: Path, infix: str) -> Path:
    return path.with_name(f".{path.name}{infix}.{os.getpid()}{SUFFIX}")


def _sync(path: Path) -> None:
    for inner in (*path.rglob("*"), path):
        _sync_one(inner)


def _sync_one(path: Path) -> None:
    if path.is_dir() and os.name == "nt":  # Windows syncs files only
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    if os.name == "nt":  # signal 0 is Ctrl-C there
        return True
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


Progress = Callable[[str, int, int], None]
"""Called as progress(what, done, total), in bytes."""
Advance = Callable[[int], None]
"""Called with the number of bytes done since the last call."""


def counting(progress: Progress | None, what: str, total: int) -> Advance:
    """Return a function that adds up bytes and reports their sum.

    >>> advance = counting(lambda what, done, total: print(f"{what} {done}/{total}"), "reading", 10)
    reading 0/10
    >>> advance(4)
    reading 4/10
    >>> advance(6)
    reading 10/10
    """
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress(what, done, total)

    advance(0)
    return advance


BLOCK = 1 << 20


def file_hash(path: Path, advance: Advance | None = None) -> str:
    """The SHA-256 of one file, as `sha256sum` prints it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            if advance:
                advance(len(block))
    return digest.hexdigest()


def joint_hash(hashes: Sequence[str]) -> str:
    """One hash for several files: that of a single file itself, else the SHA-256 over the joined hashes.

    >>> joint_hash(["ab"])
    'ab'
    >>> joint_hash(["ab", "cd"]) == text_hash("abcd")
    True
    """
    return hashes[0] if len(hashes) == 1 else text_hash("".join(hashes))


def text_hash(text: str) -> str:
    """The SHA-256 of a string's UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()


def files_hash(paths: Iterable[Path], advance: Advance | None = None) -> str:
    """The joint hash of some files, in this order."""
    return joint_hash([file_hash(path, advance) for path in paths])


def exists(path: Path) -> bool:
    """Whether there is anything of that name; a name that no file can have is not an error."""
    with suppress(OSError):
        return path.exists()
    return False


def data_home() -> Path:
    """The folder of all cached data: $LEMMA_HOME, else $XDG_CACHE_HOME/lemma, else ~/.cache/lemma."""
    if chosen := os.environ.get("LEMMA_HOME"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "lemma"


def home_folder(name: str) -> Path:
    """The folder of that name in the data home, created if it does not exist yet."""
    folder = data_home() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be created ({error.strerror}). Set LEMMA_HOME to a folder that can be written."
        ) from None
    return folder
