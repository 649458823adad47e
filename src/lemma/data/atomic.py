"""Files and folders that are there whole or not at all.

What is written goes to a hidden sibling first (`.name.PID.partial`), is synced to the disk and then renamed: a reader,
or a machine that loses power, never meets half of it. What a killed process left behind is swept by the next writer.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

SUFFIX = ".partial"
NUMBERS = count()


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file so that `path` holds the old content or the new, never a part of it."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a name beside `path` to fill with a file or a folder, which then, unless something fails, becomes `path`."""
    path = path.absolute()
    sweep(path.parent)
    temporary = _hidden(path, "")
    _remove(temporary)
    try:
        yield temporary
        _sync(temporary)
        _put(temporary, path)
    finally:
        _remove(temporary)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Fill a folder that becomes `path` at the end, unless another process was first: then theirs stays."""
    path = path.absolute()
    sweep(path.parent)
    temporary = _hidden(path, f".{next(NUMBERS)}")  # two writers of one process are two, too
    temporary.mkdir()
    try:
        yield temporary
        _sync(temporary)
        _settle(temporary, path)
    finally:
        _remove(temporary)


def sweep(folder: Path) -> None:
    """Remove what killed processes left half-written in a folder."""
    for left in folder.glob(f".*{SUFFIX}"):
        writer = left.name.removesuffix(SUFFIX).rpartition(".")[2]
        if writer.isdigit() and not _alive(int(writer)):
            _remove(left)


def _hidden(path: Path, mark: str) -> Path:
    return path.with_name(f".{path.name}{mark}.{os.getpid()}{SUFFIX}")


def _put(temporary: Path, path: Path) -> None:
    old = _hidden(path, ".old")
    if path.is_dir():  # nothing can be renamed onto a folder that holds something: it steps aside first
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


def _settle(temporary: Path, path: Path) -> None:
    try:
        temporary.rename(path)
    except OSError:
        if not path.is_dir():
            raise


def _sync(path: Path) -> None:
    for inner in path.rglob("*"):
        _sync_one(inner)
    _sync_one(path)


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
    if os.name == "nt":  # signal 0 is no question there, but a Ctrl-C
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
