"""Progress: a bar on a terminal or in a notebook, plain lines in a log file."""

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from html import escape
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from lemma.report.text import stream_width, wrap_lines

REFRESH_SECONDS = 0.2  # seconds between two drawings of the bar


class Observer:
    """Receiver of progress: phases with a known amount of work, rows of metrics, messages. This base shows nothing."""

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        """Start a phase of `total` units of work, such as "training" of "steps"; `done` of them are done already."""

    def advance(self, done: int) -> None:
        """Report that `done` units of the phase are done in total, not since the last call; called very often."""

    def report(self, row: Mapping[str, float]) -> None:
        """Report a row of metrics: values by name, such as "loss"; "step" is the number of steps done."""

    def log(self, message: str) -> None:
        """Show a message to the user."""

    def finish(self) -> None:
        """End the phase, successful or not."""


class SilentObserver(Observer):
    """An observer that shows nothing."""


class LineObserver(Observer):
    """An observer that prints a line at each phase, validation and message: fit for a log file."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.total = 0

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        """Print a line with the name of the phase, its `total` units of work and how many of them are done already."""
        self.total = total
        noun = unit.removesuffix("s") if total == 1 else unit
        self.log(f"{phase}: {total:,} {noun}" + (f", from {done:,} on" if done else ""))

    def report(self, row: Mapping[str, float]) -> None:
        """Print the metrics of a row that has a validation loss."""
        if "validation_loss" in row:
            self.log(f"step {row['step']:,.0f} of {self.total:,}: {describe_metrics(row)}")

    def log(self, message: str) -> None:
        """Print a message, wrapped to the width of the stream."""
        print(wrap_lines(message, stream_width(self.stream)), file=self.stream, flush=True)


class NotebookObserver(LineObserver):
    """An observer for a notebook: a bar in the cell's output, redrawn in place, and lines for messages."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.phase, self.unit, self.last_redraw, self.figures = "", "", 0.0, ""
        self.handle: Any = None

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        """Draw the bar of a new phase with `total` units of work, `done` of them done already."""
        self.phase, self.total, self.unit, self.figures = phase, total, unit, ""
        self._draw(done)

    def advance(self, done: int) -> None:
        """Redraw the bar with `done` units in total, at most every REFRESH_SECONDS."""
        if time.monotonic() - self.last_redraw > REFRESH_SECONDS or done >= self.total:
            self._draw(done)

    def report(self, row: Mapping[str, float]) -> None:
        """Show the metrics of a row next to the bar."""
        self.figures = describe_metrics(row) or self.figures
        self._draw(int(row["step"]))

    def finish(self) -> None:
        """Forget the bar, so that the next phase draws a new one."""
        self.handle = None

    def _draw(self, done: int) -> None:
        """Draw the bar with `done` units in the cell's output."""
        from IPython.display import HTML, display  # pyright: ignore[reportMissingImports]

        self.last_redraw = time.monotonic()
        words = [f"{self.phase}: {done:,} of {self.total:,} {self.unit}", *filter(None, [self.figures])]
        html = HTML(f"<progress value={done} max={max(1, self.total)}></progress> {escape(' · '.join(words))}")
        if self.handle is None:
            self.handle = display(html, display_id=True)
        else:
            self.handle.update(html)


class DelayedObserver(Observer):
    """An observer of phases that may be short: each is shown only once it has taken some seconds."""

    def __init__(self, observer: Observer, seconds: float) -> None:
        self.observer, self.seconds = observer, seconds
        self.phase: tuple[str, int, str] | None = None  # while it is not shown
        self.started, self.is_visible = 0.0, False

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        """Remember the phase, which the first `advance` after the delay shows."""
        self.finish()
        self.phase, self.started = (phase, total, unit), time.monotonic()

    def advance(self, done: int) -> None:
        """Show the phase if it has taken long enough, and what is done of it."""
        if self.phase and time.monotonic() - self.started > self.seconds:
            self.observer.start(*self.phase, done)
            self.phase, self.is_visible = None, True
        if self.is_visible:
            self.observer.advance(done)

    def log(self, message: str) -> None:
        """Show a message at once."""
        self.observer.log(message)

    def finish(self) -> None:
        """End the phase if it was shown."""
        if self.is_visible:
            self.observer.finish()
        self.phase, self.is_visible = None, False


class BarAndFigures(Progress):
    """A rich progress bar with the metrics on a line below it, so that both fit a narrow terminal."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the line of the bar and, if there are any, the lines of the metrics."""
        yield self.make_tasks_table(self.tasks)
        yield from (Text(words) for task in self.tasks if (words := task.fields["words"]))


class BarObserver(Observer):
    """An observer for a terminal: a bar that is drawn a few times a second, however often it advances."""

    def __init__(self, stream: TextIO) -> None:
        self.console = Console(file=stream)
        self.progress: Progress | None = None
        self.task = TaskID(0)
        self.metrics: dict[str, float] = {}
        self.last_redraw, self.done = 0.0, 0.0

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        """Draw the bar of a new phase with `total` units of work, `done` of them done already."""
        self.finish()
        count = TextColumn("{task.completed:,.0f}/{task.total:,.0f} " + unit)
        columns = (TextColumn(phase), BarColumn(), count, TimeRemainingColumn())
        self.progress = BarAndFigures(*columns, console=self.console, auto_refresh=False)
        self.task = self.progress.add_task(phase, total=total, completed=done, words="")
        self.done = done
        self.progress.start()

    def advance(self, done: int) -> None:
        """Redraw the bar with `done` units in total, at most every REFRESH_SECONDS."""
        self.done, now = done, time.monotonic()
        if self.progress and now - self.last_redraw > REFRESH_SECONDS:
            self.last_redraw = now
            self.progress.update(self.task, completed=done, refresh=True)

    def report(self, row: Mapping[str, float]) -> None:
        """Show the metrics of a row below the bar."""
        self.metrics |= row
        self.done = row["step"]
        if self.progress:
            self.progress.update(self.task, completed=row["step"], words=describe_metrics(self.metrics))

    def log(self, message: str) -> None:
        """Print a message above the bar."""
        self.console.print(message, markup=False, highlight=False)

    def finish(self) -> None:
        """Draw the bar a last time, leave it in the terminal and stop updating it."""
        if self.progress:
            self.progress.update(self.task, completed=self.done, refresh=True)
            self.progress.stop()
            self.progress = None


def describe_metrics(row: Mapping[str, float]) -> str:
    """Return a row of metrics as a line of text; metrics with unknown names are left out.

    >>> describe_metrics({"loss": 1.5, "perplexity": 4.25, "tokens_per_second": 21000.0})
    'loss 1.500 · validation perplexity 4.25 · 21,000 tokens/s'
    """
    words = {
        "loss": "loss {:.3f}",
        "objective": "objective {:.3f}",
        "entropy": "attention entropy {:.3f}",
        "distance": "attention distance {:.2f}",
        "attention": "attention loss {:.3f}",
        "temperature": "temperature {:.4f}",
        "next_sentence": "next sentence {:.3f}",
        "validation_loss": "validation loss {:.3f}",
        "perplexity": "validation perplexity {:,.2f}",
        "uas": "UAS {:.2f}",
        "las": "LAS {:.2f}",
        "accuracy": "validation accuracy {:.3f}",
        "f1": "F1 {:.3f}",
        "recall_at_1": "recall@1 {:.3f}",
        "recall_at_10": "recall@10 {:.3f}",
        "tokens_per_second": "{:,.0f} tokens/s",
    }
    if "uas" in row:  # trees: the loss is of arcs, in nats/word
        words |= {"loss": "loss {:.3f} nats/word"}
    if "uas" in row or "f1" in row or "recall_at_10" in row:
        del words["perplexity"], words["validation_loss"]
    elif "perplexity" in row:
        del words["validation_loss"]
    return " · ".join(template.format(row[name]) for name, template in words.items() if name in row)


def make_observer(stream: TextIO | None = None) -> Observer:
    """Return the observer for an output stream: a bar for a terminal, an HTML bar for a notebook, otherwise lines.

    By default the stream is stderr.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if stream is None and getattr(shell, "kernel", None) is not None:
        return NotebookObserver()
    stream = stream or sys.stderr
    if stream is None:  # a program without a console
        return SilentObserver()
    return BarObserver(stream) if stream.isatty() else LineObserver(stream)


def reading_progress(observer: Observer, units: Mapping[str, str] | None = None) -> Callable[[str, int, int], None]:
    """Return a callback (label, done, total) that shows reading to an observer: `done` of `total` bytes.

    `units` maps labels to units other than "bytes".
    """
    phase = ""

    def progress(label: str, done: int, total: int) -> None:
        """Start the phase `label` if it is new, and report that `done` of `total` units are done."""
        nonlocal phase
        if label != phase:
            phase = label
            observer.start(label, total, (units or {}).get(label, "bytes"))
        observer.advance(done)
        if done >= total:
            observer.finish()

    return progress
