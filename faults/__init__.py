"""Faults provoked on purpose: `make faults`, or `python -m faults [NAME…] --fraction 0.1` for a tenth of it."""

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

TEXT = "the cat sat on the mat and the dog lay on the log\n" * 200
SIZES: dict[str, Any] = {"width": 8, "hidden": 8, "vocabulary": 280, "batch": 4, "sequence_length": 8}
STEPS: dict[str, Any] = {"steps": 24, "evaluate_every": 6}
STUDY = """
name = "faults"
models = ["rnn"]
seeds = {seeds}
tune = [0.002, 0.01]
sample_tokens = 10
settings = {{ width = 8, hidden = 8, batch = 4, sequence_length = 8, steps = 12, evaluate_every = 4, warm_up = 2 }}
data = {{ text = ["{text}"], tokenizer = {{ kind = "byte-pairs", vocabulary = 280 }} }}
"""
CHANGES = {f"os.{name}" for name in ("rename", "remove", "mkdir", "rmdir", "chmod", "link", "symlink", "truncate")}
"""Python's audit events of changes on the disk, besides files that are opened to be written."""
MAX_SECONDS, MAX_BYTES = 2.0, 1 << 30  # of processor time and bytes: the limits for reading one input
FunctionName = tuple[Any, str]
"""A function: the module or class it is in, and its name."""


@dataclass
class Row:
    """A line of the table: what was done to what, how often, and what went wrong."""

    campaign: str
    description: str
    trials: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, failure: str | None) -> None:
        """Count one trial, which failed if there is something to say."""
        self.trials += 1
        if failure:
            self.failures.append(failure)


def forked(
    work: Callable[[], Any],
    kill_after: float | None = None,
    kill_at: int | None = None,
    within: Sequence[FunctionName] = (),
) -> int:
    """Do some work in a child process; return its status, −9 if it was killed.

    It is killed after some seconds, or just before its N-th change on the disk, counted inside some functions only. The
    child is a copy of this process, so that torch need not be imported again.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
                if kill_at is not None:
                    count_changes(lambda count: count == kill_at and os.kill(os.getpid(), signal.SIGKILL), within)
                work()
            status = 0
        except BaseException as error:
            status = 2 if type(error).__module__ == "lemma.errors" else 3
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


def count_changes(on_change: Callable[[int], Any], within: Sequence[FunctionName] = ()) -> None:
    """Call `tell` with 1, 2, … before each change on the disk from now on, inside these functions if there are any."""
    count, depth = 0, 0 if within else 1

    def hook(event: str, details: tuple[Any, ...]) -> None:
        nonlocal count
        is_write = event == "open" and isinstance(details[2], int) and details[2] & (os.O_WRONLY | os.O_RDWR)
        if depth and (is_write or event in CHANGES):
            count += 1
            on_change(count)

    for owner, name in within:
        function = getattr(owner, name)

        def counted(*args: Any, function: Any = function, **kwargs: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                return function(*args, **kwargs)
            finally:
                depth -= 1

        setattr(owner, name, counted)
    sys.addaudithook(hook)


def changes_of(work: Callable[[], Any], within: Sequence[FunctionName] = ()) -> int:
    """Count the changes on the disk of some work, done in a child process."""
    reader, writer = os.pipe()
    forked(lambda: (count_changes(lambda count: os.write(writer, b"."), within), work()))
    os.close(writer)
    with os.fdopen(reader, "rb") as counted:
        return len(counted.read())


def failure_of(work: Callable[[], Any], description: str) -> str | None:
    """Do some work; return what was wrong with how it ended: another exception, much time or much memory."""
    from lemma.errors import LemmaError

    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    failure = None
    try:
        work()
    except LemmaError as error:
        failure = None if len(str(error)) < 20_000 else f"a message of {len(str(error)):,} characters"
    except BaseException as error:  # a panic of a library in Rust is not an Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        failure = f"{type(error).__name__}: {str(error)[:80]!r}"
    seconds = time.process_time() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    if seconds > MAX_SECONDS or grown > MAX_BYTES:
        failure = f"{seconds:.1f} s and {grown >> 20} MB"
    return failure and f"{failure} for {description}"


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


def small_study(folder: Path, out: Path, seeds: Sequence[int] = (1, 2)) -> Any:
    """Two learning rates tried, then one model trained for each seed; the same call goes on with it.

    Steps are not timed, for times are never the same; and nothing is drawn, for that leaves threads behind.
    """
    import lemma

    (folder / "book.txt").write_text(TEXT, encoding="utf-8")
    study = folder / "study.toml"
    study.write_text(STUDY.format(seeds=list(seeds), text=folder / "book.txt"), encoding="utf-8")
    times = patch("lemma.studies.grid.race_steps", lambda models, tokens: {name: [1e-5] * 5 for name in models})
    with (
        times,
        patch("lemma.studies.grid.can_draw", lambda: False),
        patch("lemma.report.result.can_draw", lambda: False),
    ):
        return lemma.study(study, out=out, progress=False)


def board(result: Any) -> Any:
    """Return the measures of a study without its timings; raise the reason of a cell that failed."""
    from lemma.errors import LemmaError

    if result.failed:
        raise LemmaError(" ".join(run.reason for run in result.failed))
    times = ("seconds", "tokens_per_second")
    runs = [run.to_dict() for run in result.runs]
    for run in runs:
        measures = {name: value for name, value in run["measures"].items() if name not in times}
        run["measures"] = {**measures, "curve": [[tokens, loss] for tokens, _, loss in measures["curve"]]}
    return runs, result.table.to_markdown(), result.conclusion
