"""Faults provoked on purpose: `make faults`, or `python -m faults [NAME…] --share 0.1` for a tenth of it."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TEXT = "the cat sat on the mat and the dog lay on the log\n" * 200
SIZES: dict[str, Any] = {"width": 8, "hidden": 8, "vocabulary": 280, "batch": 4, "sequence_length": 8}
STEPS: dict[str, Any] = {"steps": 24, "evaluate_every": 6}


@dataclass
class Row:
    """A line of the table: what was done to what, how often, and what went wrong."""

    campaign: str
    what: str
    tried: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, failure: str | None) -> None:
        """Count one trial, which failed if there is something to say."""
        self.tried += 1
        if failure:
            self.failures.append(failure)


def forked(work: Callable[[], Any], kill_after: float | None = None, quiet: bool = True) -> int:
    """Do some work in a child process, killed after a while if asked; return its status, −9 if it was killed.

    The child is a copy of this process, so that torch need not be imported again.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
                work()
            status = 0
        except BaseException as error:
            status = 2 if type(error).__module__ == "lemma.errors" else 3
            if not quiet:
                raise
        finally:
            os._exit(status)
    if kill_after is not None:
        until = time.monotonic() + kill_after
        while time.monotonic() < until:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.001)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def home(folder: Path) -> Iterator[Path]:
    """A data home of its own for a while."""
    before = os.environ.get("LEMMA_HOME")
    os.environ["LEMMA_HOME"] = str(folder)
    try:
        yield folder
    finally:
        if before is None:
            del os.environ["LEMMA_HOME"]
        else:
            os.environ["LEMMA_HOME"] = before


def small_run(folder: Path, name: str = "run", **settings: Any) -> Path:
    """Train a small LSTM on a small text."""
    import lemma

    (folder / "book.txt").write_text(TEXT, encoding="utf-8")
    words: dict[str, Any] = {**SIZES, **STEPS, **settings}
    lemma.train("lstm", text=folder / "book.txt", out=folder / name, progress=False, **words)
    return folder / name
