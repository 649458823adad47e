"""Files written atomically, their checksums, progress, and the folder where Lemma caches data."""

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
from typing import Any

from lemma.errors import DataError, RunError, StorageError

# Files and folders that exist whole or not at all. What is written goes to a hidden sibling first
# (`.NAME.NUMBER.MACHINE-PID.partial`), is synced to the disk and then renamed: a reader, or a machine that loses power,
# never meets half of it. A folder that holds something is replaced by exchanging two names in one system call. Where
# the system cannot do that, the old folder is renamed first (`….aside`), and whoever looks at its path next puts it
# back if the writer was killed before the new one was there. What else a killed process left behind is removed by the
# next writer on the same machine: a process of another host or container that shares the folder cannot be asked whether
# it is alive.

PARTIAL_SUFFIX, ASIDE_SUFFIX = ".partial", ".aside"
TEMPORARY_NAME = re.compile(
    r"\.(?P<name>.+?)(?P<number>\.\d+)?\.(?P<machine>[^.]+)-(?P<process>\d+)(?P<suffix>\.[a-z]+)", re.DOTALL
)
SEQUENCE_NUMBERS = count()
NEXT_STEPS = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT), "Make room there, or choose another place, and give the same command again."
    ),
    errno.EFBIG: "Files there may not be larger (ulimit -f): choose another place.",
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "Choose a place that you may write to."),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "Raise the limit, as with: ulimit -n 4096"),
    errno.EIO: "The disk itself fails: save what is on it.",
}
"""What to do about the errors of a disk that a person can do something about."""


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file so that `path` holds the old content or the new, never a part of it.

    A character that UTF-8 lacks, as in names of files that are not UTF-8, is written as JSON escapes it: `\\udcff`.
    """
    with atomic_replace(path) as temporary:
        temporary.write_bytes(content.encode(errors="backslashreplace") if isinstance(content, str) else content)


@contextmanager
def atomic_replace(path: Path) -> Iterator[Path]:
    """Yield a temporary name next to `path` for a file or folder, which becomes `path` unless something fails."""
    path = real_path(path)  # a link stays, and what it leads to is replaced
    remove_stale_temp_files(path.parent)
    check_replaceable(path)
    temporary = _temporary_path(path)
    aside = temporary.with_suffix(ASIDE_SUFFIX)
    try:
        with explain_storage_errors(path, temporary):
            yield temporary
            _sync_tree(temporary)
            _move_into_place(temporary, path, aside)
            _sync_path(path.parent)
        with suppress(OSError):  # the new one is in place: what was moved aside becomes what may be removed
            aside.rename(temporary)
    finally:
        restore_moved_folder(path)
        with suppress(OSError):
            _remove(temporary)


def _move_into_place(temporary: Path, path: Path, aside: Path) -> None:
    """Rename `temporary` to `path`; a folder that is there is exchanged with it, or moved aside first."""
    while True:
        try:
            temporary.replace(path)
            return
        except OSError as error:
            in_the_way = error.errno in (errno.ENOTEMPTY, errno.EEXIST) or (os.name == "nt" and path.is_dir())
            if not in_the_way or not temporary.is_dir():
                raise
        with suppress(FileNotFoundError):  # removed or moved aside by another process just now
            if _exchange_names(temporary, path):
                return
            _remove(aside)  # in an earlier round; another writer was faster, and a whole folder is at `path`
            path.rename(aside)


def _exchange_names(first: Path, second: Path) -> bool:
    """Exchange the names of two files or folders in one step; return False where the system cannot."""
    rename = _renameat2()
    if rename is None:
        return False
    sys.audit("os.rename", os.fspath(first), os.fspath(second), -1, -1)  # as every other change of a name
    if rename(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(second))


AT_FDCWD, RENAME_EXCHANGE = -100, 2  # from Linux's fcntl.h and fs.h


@cache
def _renameat2() -> Any:
    """Return the C library's renameat2, or None where it has none."""
    if not sys.platform.startswith("linux"):
        return None
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is not None:
        rename.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return rename


def restore_moved_folder(path: Path) -> None:
    """Put back a folder that a killed writer had moved aside, if nothing is at its path.

    A writer that is alive and between its two renames moves it aside again, so nothing is lost either way.
    """
    with suppress(OSError, ValueError):
        if path.exists():
            return
        path = real_path(path)
        for aside in _find_moved_aside(path.parent, path.name):
            aside.rename(path)
            return


def _find_moved_aside(folder: Path, name: str) -> list[Path]:
    """List the folders that were moved aside from `folder/name`, the latest first."""
    matches = [aside for aside in folder.glob(f".*{ASIDE_SUFFIX}") if _original_name(aside) == name]
    return sorted(matches, key=lambda aside: aside.stat().st_ctime_ns, reverse=True)


def _original_name(temporary: Path) -> str | None:
    """Return the name that a temporary file or folder is for; None if the name is not one of ours."""
    parts = TEMPORARY_NAME.fullmatch(temporary.name)
    return parts["name"] if parts else None


def check_replaceable(path: Path) -> None:
    """Refuse to replace a folder of which this user could not remove every file, before anything is changed."""
    if not path.is_dir() or path.is_symlink():
        return
    parent, own = path.parent.stat(), getattr(os, "geteuid", lambda: 0)()
    sticky = parent.st_mode & stat.S_ISVTX and own not in (0, parent.st_uid, path.stat().st_uid)
    folders = [Path(folder) for folder, _, _ in os.walk(path)]
    effective = os.access in os.supports_effective_ids
    for folder in [path.parent, *folders]:
        if sticky or not os.access(folder, os.R_OK | os.W_OK | os.X_OK, effective_ids=effective):
            raise StorageError(
                f"{path} cannot be replaced: you may not remove the files in {path if sticky else folder}. "
                "Nothing was changed. Choose another folder, or ask its owner."
            )


@contextmanager
def explain_storage_errors(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Turn what a disk refuses into a StorageError that says which file, how much of it, and what to do.

    `temporary` is where it is being written, if not at `path`.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError) or error.errno not in NEXT_STEPS:
            raise
        said = f"{path} cannot be written: {os.strerror(error.errno)}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            place = temporary or path
            files = [place, *place.rglob("*")] if place.is_dir() else [place]
            written = sum(file.stat().st_size for file in files if file.is_file())
            with suppress(OSError):
                free = shutil.disk_usage(path.parent).free
                said += f" ({written:,} bytes of it were written, {free:,} bytes are free)"
        raise StorageError(f"{said}. {NEXT_STEPS[error.errno]}") from None


def unreadable_error(path: Path, error: OSError) -> StorageError:
    """The error for a file that is there but cannot be read now; that it is damaged is not known."""
    refused = error.errno in (errno.EACCES, errno.EPERM)
    step = "Check its permissions." if refused else NEXT_STEPS.get(error.errno or 0, "")
    return StorageError(f"{path} cannot be read: {error.strerror or error}. {step}".rstrip())


@contextmanager
def atomic_rewrite(path: Path, allowed_names: Collection[str]) -> Iterator[Path]:
    """Fill a folder that becomes `path`, and replaces what is there only if that holds no other files than its own."""
    others = [inner.name for inner in path.iterdir() if inner.name not in allowed_names] if path.is_dir() else []
    if others or path.is_file():
        raise RunError(f"{path} already exists and holds {others[0] if others else 'a file'}. Name a new folder.")
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    with atomic_replace(path) as temporary:
        temporary.mkdir()
        yield temporary


@contextmanager
def atomic_new_folder(path: Path) -> Iterator[Path]:
    """Fill a folder that becomes `path` at the end, unless another process was first: then theirs stays."""
    path = real_path(path)
    remove_stale_temp_files(path.parent)
    temporary = _temporary_path(path)
    try:
        with explain_storage_errors(path, temporary):
            temporary.mkdir()
            yield temporary
            _sync_tree(temporary)
            try:
                temporary.rename(path)
            except OSError:
                if not path.is_dir():
                    raise
    finally:
        with suppress(OSError):
            _remove(temporary)


def remove_atomically(path: Path) -> None:
    """Remove a folder so that it is there whole or not at all: it is renamed first, and what is left is swept."""
    remove_stale_temp_files(path.parent)
    temporary = _temporary_path(path)
    with suppress(FileNotFoundError):  # never there, or another process was first
        path.rename(temporary)
    with suppress(OSError):
        _remove(temporary)


def remove_stale_temp_files(folder: Path) -> None:
    """Restore what killed processes had moved aside in a folder, and remove what they left half-written.

    Only processes of this machine are known to be dead.
    """
    leftovers: list[Path] = []
    with suppress(OSError):  # a folder that cannot be listed is swept by a later writer
        leftovers = [*folder.glob(f".*{ASIDE_SUFFIX}"), *folder.glob(f".*{PARTIAL_SUFFIX}")]
    for left in leftovers:
        parts = TEMPORARY_NAME.fullmatch(left.name)
        if parts is None or parts["machine"] != machine_id() or _is_alive(int(parts["process"])):
            continue
        with suppress(OSError):  # a folder that cannot be written, or another process was first
            if left.suffix == ASIDE_SUFFIX:
                original, unfinished = left.with_name(parts["name"]), left.with_suffix(PARTIAL_SUFFIX)
                if unfinished.exists() and original.is_dir() and not original.is_symlink():
                    original.rmdir()  # an empty folder that somebody made meanwhile; any other stays, and so does this
                restore_moved_folder(original)
                if left.exists() and original.exists() and not unfinished.exists():  # the new one was in place
                    _remove(left.rename(unfinished))
            elif left.with_suffix(ASIDE_SUFFIX).exists():
                continue  # it was to replace a folder that could not be restored
            elif parts["number"] is not None or not parts["name"].endswith(".old"):  # .old is of an earlier version
                _remove(left)


@cache
def machine_id() -> str:
    """A short name of where process numbers mean the same: one host since it was started, one container of it."""
    about = [socket.gethostname()]
    with suppress(OSError):
        about.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8"))
        about.append(os.readlink("/proc/self/ns/pid"))  # noqa: PTH115
    return text_hash(" ".join(about))[:12]


def real_path(path: Path) -> Path:
    """Return the absolute path where links lead; a loop of links is an OSError when it is opened, not here."""
    return Path(os.path.realpath(path))


def _temporary_path(path: Path) -> Path:
    """Return a temporary name next to a path, another one in every call, thread and process."""
    return path.with_name(f".{path.name}.{next(SEQUENCE_NUMBERS)}.{machine_id()}-{os.getpid()}{PARTIAL_SUFFIX}")


@contextmanager
def file_lock(path: Path, timeout: float) -> Iterator[bool]:
    """Hold a file or folder against other processes, after at most `wait` seconds; give whether it is held.

    The lock is a hidden file next to it. The system releases it even if the process is killed. A file system without
    locks, or a parent folder that cannot be written, counts as held.
    """
    from filelock import FileLock, Timeout  # not needed where nothing is written

    place = real_path(path)
    lock = FileLock(place.with_name(f".{place.name}.lock"), timeout=timeout)
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
        Path(lock.lock_file).unlink(missing_ok=True)  # while it is held; who waits for it sees that, and starts again
        lock.release()


def _sync_tree(path: Path) -> None:
    for inner in (*path.rglob("*"), path):
        _sync_path(inner)


def _sync_path(path: Path) -> None:
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


def _is_alive(pid: int) -> bool:
    if os.name == "nt":  # signal 0 is Ctrl-C there
        return True
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


Progress = Callable[[str, int, int], None]
"""Called as progress(what, done, total), in bytes."""
Advance = Callable[[int], None]
"""Called with the number of bytes done since the last call."""


def progress_counter(progress: Progress | None, label: str, total: int) -> Advance:
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
            progress(label, done, total)

    advance(0)
    return advance


BLOCK_BYTES = 1 << 20


def file_hash(path: Path, advance: Advance | None = None) -> str:
    """The SHA-256 of one file, as `sha256sum` prints it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            if advance:
                advance(len(block))
    return digest.hexdigest()


def combine_hashes(hashes: Sequence[str]) -> str:
    """One hash for several files: that of a single file itself, else the SHA-256 over the joined hashes.

    >>> joint_hash(["ab"])
    'ab'
    >>> joint_hash(["ab", "cd"]) == text_hash("abcd")
    True
    """
    return hashes[0] if len(hashes) == 1 else text_hash("".join(hashes))


def text_hash(text: str) -> str:
    """The SHA-256 of a string's UTF-8 bytes; file names that are not UTF-8 hold surrogates, which are hashed too."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def files_hash(paths: Iterable[Path], advance: Advance | None = None) -> str:
    """The joint hash of some files, in this order."""
    return combine_hashes([file_hash(path, advance) for path in paths])


MAX_JSON_BYTES = 256 << 20
"""Bytes of the largest JSON file that is read; the tokenizers of pretrained models take some tens of megabytes."""


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
    """Read JSON in UTF-8; whatever is wrong with it is a ValueError in a few words.

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
    except ValueError:  # Python's limit on the digits of a whole number
        raise ValueError("it holds a number of thousands of digits") from None


# Checksums: what was written is compared with what is read, so that a flipped bit is an error and not another result.

VERIFIED: set[str] = set()
"""Files that this process has compared with their checksums, each with its size and times."""
LARGE_FILE = 64 << 20
"""A file of this many bytes or more is read once per change of its size or time, by whichever process is first."""


def with_checksum(values: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values with their own SHA-256, ready to be written as JSON; `read_sealed` takes it off again."""
    plain = json.loads(json.dumps(values))  # as it will be read: keys are text then
    return {**plain, "sha256": _values_checksum(plain)}


def read_checked_json(path: Path) -> dict[str, Any]:
    """Read what `seal` was written with; a change of any value is a RunError that names the file."""
    values = read_json(path)
    if values.pop("sha256", None) != _values_checksum(values):
        raise RunError(f"{path} is damaged: its values do not have the SHA-256 written in it.")
    return values


def _values_checksum(values: Mapping[str, Any]) -> str:
    return text_hash(json.dumps(values, sort_keys=True))


def file_checksum(path: Path) -> dict[str, Any]:
    """The SHA-256 and the size of a file, as manifests have them."""
    with path.open("rb") as stream:
        return {"sha256": hashlib.file_digest(stream, "sha256").hexdigest(), "bytes": path.stat().st_size}


def verify_file(path: Path, expected: Any, manifest_name: str) -> None:
    """Compare a file with its checksum in `listed_in`; what is missing or changed is a RunError that names it."""
    try:
        size = path.stat().st_size
        good = isinstance(expected, dict) and size == expected.get("bytes")
        good = good and matches_checksum(path, str(expected["sha256"]), lambda: str(file_checksum(path)["sha256"]))
    except FileNotFoundError:
        raise RunError(f"{path} is missing.") from None
    except OSError as error:
        raise unreadable_error(path, error) from None
    if not good:
        raise RunError(f"{path} is damaged: its size or SHA-256 is not the one in {manifest_name}.")


def matches_checksum(path: Path, expected: str, compute: Callable[[], str]) -> bool:
    """Whether a file has the expected checksum, which is measured once per change of the file's size or time."""
    about = path.stat()
    times = f"{about.st_size} {about.st_mtime_ns} {about.st_ctime_ns} {about.st_ino}"
    mark = text_hash(f"{real_path(path)} {times} {expected}")
    known = data_home() / "checked" / mark
    if mark in VERIFIED or (about.st_size >= LARGE_FILE and known.exists()):
        return True
    if compute() != expected:
        return False
    if time.time() - about.st_ctime > 1:  # a file changed just now may change again without another time
        VERIFIED.add(mark)
        if about.st_size >= LARGE_FILE:
            with suppress(OSError, DataError):
                (home_folder("checked") / mark).touch()
    return True


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
