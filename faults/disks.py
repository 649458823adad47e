"""Disks that refuse: full, read-only, no permission, too many open files, a clock set back, two writers, one cache."""

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from unittest.mock import patch

import lemma
from faults import SIZES, STEPS, Row, forked, home, small_run, small_study
from lemma.data.store import prepare_text
from lemma.errors import LemmaError
from lemma.files import file_hash
from lemma.runs.folder import is_started, remove_unstarted
from lemma.spec.data import BytePairs, DataSpec

NOBODY = 65534  # the user and group without rights


def disks(folder: Path, fraction: float, seed: int = 1) -> Iterator[Row]:
    """Every fault, met in training; afterwards the same command, or resuming, gives the same weights."""
    chance = random.Random(seed)
    book = folder / "book.txt"
    expected = file_hash(small_run(folder, "whole") / "model.safetensors")

    def trained(run: Path) -> str:
        with home(run.parent / f"{run.name}-home"):
            if is_started(run):
                lemma.resume(run, progress=False)
            else:
                remove_unstarted(run)
                lemma.train("lstm", text=book, out=run, progress=False, **SIZES, **STEPS)
            return file_hash(run / "model.safetensors")

    def full(run: Path, size: int) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        trained(run)

    def few_files(run: Path, count: int) -> None:
        num_open = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        resource.setrlimit(resource.RLIMIT_NOFILE, (num_open + count, num_open + count))
        trained(run)

    faults = {
        "files of at most N bytes, as on a full disk": (full, lambda: chance.randrange(100, 60_000), 28),
        "at most N more open files": (few_files, lambda: chance.randrange(0, 6), 12),
    }
    for description, (fault, size, times) in faults.items():
        row = Row("disks", description)
        for number in range(max(1, round(times * fraction))):
            run, limit = folder / f"{fault.__name__}-{number}", size()
            status = forked(partial(fault, run, limit))
            failure = None if status in (0, 2) else f"{limit}: ends with status {status}, not with an error of Lemma's"
            try:
                row.add(failure or (None if trained(run) == expected else f"{limit}: other weights afterwards"))
            except LemmaError as error:
                row.add(f"{limit}: {str(error)[:160]}")
            shutil.rmtree(run, ignore_errors=True)
        yield row
    yield _reject_syncs(folder, chance, max(1, round(20 * fraction)))
    row = Row("disks", "the clock set back")
    for number in range(max(1, round(3 * fraction))):
        with patch("time.time", lambda: 1.0):
            row.add(None if trained(folder / f"clock-{number}") == expected else "other weights")
    yield row
    yield _two_writers(folder, book, max(1, round(10 * fraction)))
    yield _fill_cache_together(folder, book, max(1, round(10 * fraction)))
    yield _no_permission(folder, book)
    yield _small_disk(
        folder, trained, expected, [chance.randrange(8, 400) for _ in range(max(1, round(12 * fraction)))]
    )


def _small_disk(folder: Path, trained: Callable[[Path], str], expected: str, sizes: list[int]) -> Row:
    """A disk of N kB, which only root may mount; once it is larger, training goes on."""
    row = Row("disks", "a disk of N kB, filled by a training (root only)")
    disk = folder / "small"
    disk.mkdir()
    for size in sizes:
        mounted = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(disk)]
        if os.getuid() or subprocess.run(mounted, capture_output=True, check=False).returncode:
            return row
        try:
            status = forked(partial(trained, disk / "run"))
            subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
            good = trained(disk / "run") == expected
            failure = f"{size} kB: ends with status {status}, afterwards the same weights: {good}"
            row.add(None if status in (0, 2) and good else failure)
        except LemmaError as error:
            row.add(f"{size} kB: {str(error)[:160]}")
        finally:
            subprocess.run(["umount", str(disk)], check=True)
    return row


def _no_permission(folder: Path, book: Path) -> Row:
    """Folders and files that another user may not write or read; root may do everything, and becomes nobody."""
    row = Row("disks", "read-only folders and unreadable files, as another user")
    closed, run, writable = folder / "closed", small_run(folder, "theirs"), Path(mkdtemp(prefix="lemma-nobody-"))
    closed.mkdir()
    folder.chmod(0o755)
    works = {
        "training into a read-only folder": lambda: lemma.train("lstm", text=book, out=closed / "run", **SIZES),
        "a study in a read-only folder": lambda: small_study(writable, closed / "study"),
        "adapting into a read-only folder": lambda: lemma.adapt(run, text=book, out=closed / "adapted", steps=1),
        "resuming a read-only run": lambda: lemma.resume(run, steps=40, progress=False),
        "exporting into a read-only folder": lambda: lemma.export(run, to="huggingface", out=closed / "folder"),
        "caches that cannot be written": lambda: prepare_text(DataSpec(text=(str(book),), tokenizer=BytePairs())),
        **{
            f"unreadable {name}": lambda: lemma.load(run)
            for name in ("model.safetensors", "tokenizer.json", "spec.toml")
        },
        "an unreadable folder": lambda: lemma.load(run),
    }
    for path in (closed, run):
        path.chmod(0o555)
    for description, work in works.items():
        hidden = run if description == "an unreadable folder" else run / description.removeprefix("unreadable ")
        before = hidden.stat().st_mode if hidden.exists() else None
        if before is not None:
            hidden.chmod(0)

        home_folder = closed / "home" if "caches" in description else writable / "home"

        def as_nobody(work: Callable[[], object] = work, home_folder: Path = home_folder) -> None:
            if os.getuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            os.environ["LEMMA_HOME"] = str(home_folder)
            work()

        writable.chmod(0o777)
        status = forked(as_nobody)
        row.add(None if status == 2 else f"{description}: ends with status {status}, not with an error of Lemma's")
        if before is not None:
            hidden.chmod(before)
    for path in (closed, run):
        path.chmod(0o755)
    shutil.rmtree(writable, ignore_errors=True)
    return row


def _reject_syncs(folder: Path, chance: random.Random, times: int) -> Row:
    """Writing is refused at some file: a StorageError that names it, and the finished run is as it was."""
    row = Row("disks", "ENOSPC, EROFS, EACCES or EIO at the N-th file, resuming a finished run")
    run = small_run(folder, "refused")
    before = file_hash(run / "model.safetensors")
    sync = os.fsync
    for _ in range(times):
        number, kind = chance.randrange(1, 12), chance.choice([errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
        left = [number]

        def raise_error(handle: int, left: list[int] = left, kind: int = kind) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise OSError(kind, os.strerror(kind))
            sync(handle)

        try:
            with patch("os.fsync", raise_error):
                lemma.resume(run, progress=False)
            row.add(None)
        except LemmaError as error:
            good = lemma.load(run, device="cpu").note is None and file_hash(run / "model.safetensors") == before
            row.add(None if good and str(run) in str(error) else f"{number}: {str(error)[:120]}, weights kept: {good}")
        except Exception as error:
            row.add(f"{number}: {type(error).__name__}: {error}")
    return row


def _two_writers(folder: Path, book: Path, times: int) -> Row:
    row = Row("disks", "two writers on one folder")
    for number in range(times):
        run = folder / f"writers-{number}"

        def write(run: Path = run) -> None:
            lemma.train("lstm", text=book, out=run, overwrite=True, progress=False, **SIZES, **STEPS)

        children = [_started(write) for _ in range(2)]
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        good = 0 in statuses and set(statuses) <= {0, 2} and lemma.verify(run).right
        row.add(None if good else f"they end with {statuses}")
    return row


def _fill_cache_together(folder: Path, book: Path, times: int) -> Row:
    row = Row("disks", "one cache filled by four processes")
    spec = DataSpec(text=(str(book),), tokenizer=BytePairs(vocabulary=280))
    for number in range(times):
        with home(folder / f"cache-{number}"):
            children = [_started(lambda: prepare_text(spec)) for _ in range(4)]
            statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            good = statuses == [0] * 4 and lemma.verify().right
            row.add(None if good else f"they end with {statuses}")
    return row


def _started(work: object) -> int:
    child = os.fork()
    if child == 0:
        os._exit(forked(work) & 0xFF)  # pyright: ignore[reportArgumentType]
    return child
