"""Atomic writes, locks, checksums, JSON files, and the folder of cached data.

A file or folder is written under a hidden temporary name next to its path (`.NAME.NUMBER.MACHINE-PID.partial`), synced
and renamed, so that a reader, even after a power failure, finds the old content or the new, never a part. A folder that
is not empty is replaced by exchanging two names in one system call. Where the system cannot do that, the old folder is
renamed first (`….aside`); if the writer is killed in between, the next reader or writer puts it back. What else a
killed process left is removed by the next writer on the same machine, the only one that can tell whether it is alive.
"""

import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import socket
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from lemma.errors import DataError, RunError, StorageError

Value = TypeVar("Value")
PARTIAL_SUFFIX, ASIDE_SUFFIX = ".partial", ".aside"
TEMPORARY_NAME = re.compile(r"\.(?P<name>.+?)\.\d+\.(?P<machine>[^.]+)-(?P<process>\d+)(?P<suffix>\.[a-z]+)", re.DOTALL)
SEQUENCE_NUMBERS = count()  # make temporary names unique within this process
NEXT_STEPS = {  # errors of a disk that the user can do something about
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "Make room there, or choose another place, and try again."),
    errno.EFBIG: "Files there may not be larger (ulimit -f): choose another place.",
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "Choose a place that you may write to."),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "Raise the limit, as with: ulimit -n 4096"),
    errno.EIO: "The disk itself fails: save what is on it.",
}


# Atomic writes


def write_atomically(path: Path, content: bytes | str) -> None:
    r"""Write a file so that `path` holds the old content or the new, never a part of it.

    A character that UTF-8 lacks, as in file names that are not UTF-8, is escaped as in JSON: `\udcff`.
    """
    with atomic_replace(path) as temporary:
        temporary.write_bytes(content.encode(errors="backslashreplace") if isinstance(content, str) else content)


@contextmanager
def atomic_replace(path: Path, keeps_existing: bool = False) -> Iterator[Path]:
    """Yield a temporary path to write a file or folder to; on success it replaces `path`.

    With `keeps_existing` it does not replace a folder that another process has created at `path` meanwhile.
    """
    path = real_path(path)  # a link stays, and its target is replaced
    remove_stale_temp_files(path.parent)
    if not keeps_existing:
        check_replaceable(path)
    temporary = _temporary_path(path)
    aside = temporary.with_suffix(ASIDE_SUFFIX)
    try:
        with explain_storage_errors(path, temporary):
            yield temporary
            _sync_tree(temporary)
            _move_into_place(temporary, path, None if keeps_existing else aside)
            _sync_path(path.parent)
        with suppress(OSError):  # the new folder is in place: the old one may be removed
            aside.rename(temporary)
    finally:
        restore_moved_folder(path)
        with suppress(OSError):
            _remove(temporary)


@contextmanager
def atomic_rewrite(path: Path, allowed_names: Collection[str]) -> Iterator[Path]:
    """Yield a temporary folder that replaces the folder `path`, which may hold only files with allowed names."""
    others = [inner.name for inner in path.iterdir() if inner.name not in allowed_names] if path.is_dir() else []
    if others or path.is_file():
        raise RunError(f"{path} already exists and holds {others[0] if others else 'a file'}. Name a new folder.")
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    with atomic_replace(path) as temporary:
        temporary.mkdir()
        yield temporary


@contextmanager
def atomic_new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path`; if another process creates `path` first, that folder stays."""
    with atomic_replace(path, keeps_existing=True) as temporary:
        temporary.mkdir()
        yield temporary


def remove_atomically(path: Path) -> None:
    """Remove a folder completely or not at all: it is renamed first, and a killed removal is finished later."""
    remove_stale_temp_files(path.parent)
    temporary = _temporary_path(path)
    with suppress(FileNotFoundError):  # it never existed, or another process was first
        path.rename(temporary)
    with suppress(OSError):
        _remove(temporary)


def restore_moved_folder(path: Path) -> None:
    """Put back a folder that a killed writer had moved aside, if nothing is at its path.

    A living writer that is between its two renames moves it aside again, so nothing is lost.
    """
    with suppress(OSError, ValueError):
        if path.exists():
            return
        path = real_path(path)
        moved = [
            aside
            for aside in path.parent.glob(f".*{ASIDE_SUFFIX}")
            if (match := TEMPORARY_NAME.fullmatch(aside.name)) and match["name"] == path.name
        ]
        if moved:
            max(moved, key=lambda aside: aside.stat().st_ctime_ns).rename(path)


def remove_stale_temp_files(folder: Path) -> None:
    """Restore folders that killed processes had moved aside, and remove their partial files.

    Files of other machines are left alone: their processes may be alive.
    """
    leftovers: list[Path] = []
    with suppress(OSError):  # a folder that cannot be listed is left to a later writer
        leftovers = [*folder.glob(f".*{ASIDE_SUFFIX}"), *folder.glob(f".*{PARTIAL_SUFFIX}")]
    for leftover in leftovers:
        match = TEMPORARY_NAME.fullmatch(leftover.name)
        if match is None or match["machine"] != machine_id() or _is_alive(int(match["process"])):
            continue
        with suppress(OSError):  # a folder that cannot be written, or another process was first
            if leftover.suffix == ASIDE_SUFFIX:
                _finish_replacement(leftover, leftover.with_name(match["name"]))
            elif not leftover.with_suffix(ASIDE_SUFFIX).exists():  # else it was to replace a folder not yet restored
                _remove(leftover)


def _finish_replacement(aside: Path, original: Path) -> None:
    """Rename the folder `aside` back to its `original` path, or remove it if a new folder is there."""
    partial = aside.with_suffix(PARTIAL_SUFFIX)
    if partial.exists() and original.is_dir() and not original.is_symlink():
        original.rmdir()  # an empty folder that somebody made meanwhile; any other stays, and so does `aside`
    restore_moved_folder(original)
    if aside.exists() and original.exists() and not partial.exists():
        _remove(aside.rename(partial))


def check_replaceable(path: Path) -> None:
    """Raise a StorageError if this user could not remove every file of a folder that is to be replaced."""
    if not path.is_dir() or path.is_symlink():
        return
    parent, user = path.parent.stat(), getattr(os, "geteuid", lambda: 0)()
    try:
        owner = path.stat().st_uid
    except FileNotFoundError:  # another process is replacing it at this moment
        return
    sticky = parent.st_mode & stat.S_ISVTX and user not in (0, parent.st_uid, owner)
    folders = [path.parent, *(Path(folder) for folder, _, _ in os.walk(path))]
    for folder in folders:
        if sticky or not _is_writable_folder(folder):
            raise StorageError(
                f"{path} cannot be replaced: you may not remove the files in {path if sticky else folder}. "
                "Nothing was changed. Choose another folder, or ask its owner."
            )


def _is_writable_folder(folder: Path) -> bool:
    """Return whether this user may list and change a folder; True if it no longer exists."""
    mode = os.R_OK | os.W_OK | os.X_OK
    if os.access not in os.supports_dir_fd:  # Windows
        return os.access(folder, mode) or not folder.exists()
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except PermissionError:
        return False
    try:  # the opened folder is checked, even if its path meanwhile leads to another one
        return os.access(".", mode, dir_fd=descriptor, effective_ids=os.access in os.supports_effective_ids)
    finally:
        os.close(descriptor)


@contextmanager
def explain_storage_errors(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Turn errors of the disk into a StorageError that names the file, its size so far and the next step.

    `temporary` is the file or folder that is being filled, if it is not `path` itself.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError) or error.errno not in NEXT_STEPS:
            raise
        message = f"{path} cannot be written: {os.strerror(error.errno)}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            partial = temporary or path
            files = [partial, *partial.rglob("*")] if partial.is_dir() else [partial]
            written = sum(file.stat().st_size for file in files if file.is_file())
            with suppress(OSError):
                free = shutil.disk_usage(path.parent).free
                message += f" ({written:,} bytes of it were written, {free:,} bytes are free)"
        raise StorageError(f"{message}. {NEXT_STEPS[error.errno]}") from None


def unreadable_error(path: Path, error: OSError) -> StorageError:
    """Return a StorageError that says why an existing file cannot be read; it need not be damaged."""
    refused = error.errno in (errno.EACCES, errno.EPERM)
    step = "Check its permissions." if refused else NEXT_STEPS.get(error.errno or 0, "")
    return StorageError(f"{path} cannot be read: {error.strerror or error}. {step}".rstrip())


def real_path(path: Path) -> Path:
    """Return the absolute path with links resolved; a loop of links is an OSError when it is opened, not here."""
    return Path(os.path.realpath(path))


@cache
def machine_id() -> str:
    """Return a short id of this host since it was started, or of this container: process numbers are unique in it."""
    facts = [socket.gethostname()]
    with suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8"))
        facts.append(os.readlink("/proc/self/ns/pid"))  # noqa: PTH115
    return text_hash(" ".join(facts))[:12]


def _temporary_path(path: Path) -> Path:
    """Return a hidden path next to `path` that no other process uses."""
    return path.with_name(f".{path.name}.{next(SEQUENCE_NUMBERS)}.{machine_id()}-{os.getpid()}{PARTIAL_SUFFIX}")


def _move_into_place(temporary: Path, path: Path, aside: Path | None) -> None:
    """Rename `temporary` to `path`.

    A folder that exists there is exchanged with it or moved to `aside`; if `aside` is None, it stays.
    """
    while True:
        try:
            temporary.replace(path)
            return
        except OSError as error:
            is_occupied = error.errno in (errno.ENOTEMPTY, errno.EEXIST) or (os.name == "nt" and path.is_dir())
            if not is_occupied or not temporary.is_dir():
                raise
        if aside is None:
            return
        with suppress(FileNotFoundError):  # another process has just removed it or moved it aside
            if _exchange_names(temporary, path):
                return
            _remove(aside)  # of an earlier round: another writer was faster, and a complete folder is at `path`
            path.rename(aside)


def _exchange_names(first: Path, second: Path) -> bool:
    """Exchange two files or folders in one system call; return False if the system has no such call."""
    rename = _renameat2()
    if rename is None:
        return False
    at_fdcwd, rename_exchange = -100, 2  # from Linux's fcntl.h and fs.h
    sys.audit("os.rename", os.fspath(first), os.fspath(second), -1, -1)  # as Python does for every other rename
    if rename(at_fdcwd, os.fsencode(first), at_fdcwd, os.fsencode(second), rename_exchange) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(second))


@cache
def _renameat2() -> Any:
    """Return the function renameat2 of the C library; None if it has none."""
    if not sys.platform.startswith("linux"):
        return None
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is not None:
        rename.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return rename


def _sync_tree(path: Path) -> None:
    """Flush a file, or a folder with all its files, to the disk."""
    for inner in (*path.rglob("*"), path):
        _sync_path(inner)


def _sync_path(path: Path) -> None:
    """Flush one file or folder entry to the disk."""
    if path.is_dir() and os.name == "nt":  # Windows syncs files only
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """Remove a file, or a folder with all its files; a file that does not exist is ignored."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    """Return whether the process with this number runs on this machine; True if unknown."""
    if os.name == "nt":  # signal 0 is Ctrl-C there
        return True
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


# Locks and caches


@contextmanager
def file_lock(path: Path, timeout: float) -> Iterator[bool]:
    """Lock a file or folder against other processes for at most `timeout` seconds; yield whether it is locked.

    The lock is a hidden file next to it, which the system releases even if the process is killed. A negative timeout
    waits indefinitely. A file system without locks, or a parent folder that cannot be written, counts as locked.
    """
    from filelock import FileLock, Timeout  # not needed where nothing is written

    path = real_path(path)
    lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=timeout)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    except OSError:
        yield True
        return
    try:
        yield True
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)  # while it is locked; those that wait for it notice, and try again
        lock.release()


def cached(path: Path, read: Callable[[], Value], write: Callable[[], object]) -> Value:
    """Return `read()`; if it fails with a DataError or RunError, lock `path`, call `write()` and return `read()`.

    So only one process computes and writes a cached file or folder that is missing or damaged; others wait for it.
    """
    with suppress(DataError, RunError):
        return read()
    with file_lock(path, timeout=-1):
        with suppress(DataError, RunError):  # another process has written it in the meantime
            return read()
        write()
        return read()


def cached_json(path: Path, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Return the values of a cached JSON file; if it is missing or damaged, write those that `make` returns."""
    return cached(path, lambda: read_checked_json(path), lambda: write_checked_json(path, make()))


def data_home() -> Path:
    """Return the folder of all cached data: $LEMMA_HOME, else $XDG_CACHE_HOME/lemma, else ~/.cache/lemma."""
    if chosen := os.environ.get("LEMMA_HOME"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "lemma"


def home_folder(name: str) -> Path:
    """Create the subfolder of that name in the data home if needed, and return its path."""
    folder = data_home() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be created ({error.strerror}). Set LEMMA_HOME to a folder that can be written."
        ) from None
    return folder


# Progress

Progress = Callable[[str, int, int], None]  # called as progress(label, done, total), in bytes
Advance = Callable[[int], None]  # called with the number of bytes done since the last call


def progress_counter(progress: Progress | None, label: str, total: int) -> Advance:
    """Return a function to call with each size that was done; it calls `progress` with (label, sum of sizes, total).

    >>> advance = progress_counter(lambda label, done, total: print(f"{label} {done}/{total}"), "reading", 10)
    reading 0/10
    >>> advance(4)
    reading 4/10
    >>> advance(6)
    reading 10/10
    """
    done = 0

    def advance(size: int) -> None:
        nonlocal done
        done += size
        if progress:
            progress(label, done, total)

    advance(0)
    return advance


# Hashes

BLOCK_BYTES = 1 << 20


def file_hash(path: Path, advance: Advance | None = None) -> str:
    """Return the SHA-256 of a file in hexadecimal; `advance` is called with the size of each block read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            if advance:
                advance(len(block))
    return digest.hexdigest()


def files_hash(paths: Iterable[Path]) -> str:
    """Return the combined SHA-256 of files, in this order."""
    return combine_hashes(list(map(file_hash, paths)))


def text_hash(text: str) -> str:
    """Return the SHA-256 of a string's UTF-8 bytes, with the surrogates of file names that are not UTF-8."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def combine_hashes(hashes: Sequence[str]) -> str:
    """Combine the hashes of files: a single one stays, several become the SHA-256 of their concatenation.

    >>> combine_hashes(["ab"])
    'ab'
    >>> combine_hashes(["ab", "cd"]) == text_hash("abcd")
    True
    """
    return hashes[0] if len(hashes) == 1 else text_hash("".join(hashes))


# JSON files

MAX_JSON_BYTES = 256 << 20  # the tokenizers of pretrained models take some tens of megabytes


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object; a missing or damaged one is a RunError that names it."""
    try:
        if (size := path.stat().st_size) > MAX_JSON_BYTES:
            raise RunError(f"{path} has {size:,} bytes; a file of this kind has at most {MAX_JSON_BYTES:,}.")
        content = path.read_bytes()
    except FileNotFoundError:
        raise RunError(f"{path} is missing.") from None
    except OSError as error:
        raise unreadable_error(path, error) from None
    try:
        values = parse_json(content)
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}.") from None
    if not isinstance(values, dict):
        raise RunError(f"{path} is damaged: it does not hold a JSON object.")
    return values


def parse_json(content: bytes | str) -> Any:
    """Parse JSON in UTF-8; whatever is wrong with it is a ValueError with a short reason.

    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: it is nested too deeply
    """
    try:
        return json.loads(content if isinstance(content, str) else content.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(str(error)) from None
    except ValueError:  # Python's limit on the digits of an integer
        raise ValueError("it holds a number of thousands of digits") from None


# Checksums: a file is compared with what was written, so that a flipped bit is an error and not another result

VERIFIED: set[str] = set()  # marks of files that this process has compared with their checksums
LARGE_FILE = 64 << 20  # bytes from which on a verified file is remembered on disk, for all processes


def write_checked_json(
    path: Path, values: Mapping[str, Any], *, indent: int | None = 1, allow_nan: bool = True
) -> None:
    """Write values and their SHA-256 atomically as a JSON file for `read_checked_json`; options as of `json.dumps`."""
    plain = json.loads(json.dumps(values, allow_nan=allow_nan))  # as it will be read: keys are strings then
    content = {**plain, "sha256": _values_checksum(plain)}
    write_atomically(path, json.dumps(content, indent=indent, ensure_ascii=False))  # any cut of which is no JSON


def write_checksums(folder: Path, manifest_name: str, names: Iterable[str] | None = None) -> None:
    """Write a JSON manifest into a folder with the checksums of its files `names`, by default of all."""
    files = sorted(folder.iterdir()) if names is None else [folder / name for name in names]
    write_checked_json(folder / manifest_name, {"files": {file.name: file_checksum(file) for file in files}})


def read_checked_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that `write_checked_json` wrote; a changed value is a RunError that names the file."""
    values = read_json(path)
    if values.pop("sha256", None) != _values_checksum(values):
        raise RunError(f"{path} is damaged: its values do not have the SHA-256 written in it.")
    return values


def _values_checksum(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of JSON values, whatever the order of their keys."""
    return text_hash(json.dumps(values, sort_keys=True))


def file_checksum(path: Path) -> dict[str, Any]:
    """Return the entry of a file in a manifest: its "sha256" and its size in "bytes"."""
    return {"sha256": file_hash(path), "bytes": path.stat().st_size}


def verify_file(path: Path, expected: Any, manifest_name: str) -> None:
    """Raise a RunError if a file is missing or does not have the size and SHA-256 in `expected`.

    `manifest_name` is the file that `expected` is from, for the error.
    """
    try:
        size = path.stat().st_size
        is_valid = isinstance(expected, dict) and size == expected.get("bytes")
        is_valid = is_valid and matches_checksum(
            path, str(expected["sha256"]), lambda: str(file_checksum(path)["sha256"])
        )
    except FileNotFoundError:
        raise RunError(f"{path} is missing.") from None
    except OSError as error:
        raise unreadable_error(path, error) from None
    if not is_valid:
        raise RunError(f"{path} is damaged: its size or SHA-256 is not the one in {manifest_name}.")


def matches_checksum(path: Path, expected: str, compute: Callable[[], str]) -> bool:
    """Return whether `compute()`, the checksum of a file, is `expected`; cached until its size or time changes."""
    status = path.stat()
    times = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"
    mark = text_hash(f"{real_path(path)} {times} {expected}")
    if mark in VERIFIED or (status.st_size >= LARGE_FILE and (data_home() / "checked" / mark).exists()):
        return True
    if compute() != expected:
        return False
    if time.time() - status.st_ctime > 1:  # a file changed just now may change again without another time
        VERIFIED.add(mark)
        if status.st_size >= LARGE_FILE:
            with suppress(OSError, DataError):
                (home_folder("checked") / mark).touch()
    return True
