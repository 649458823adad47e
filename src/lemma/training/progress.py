"""Progress, metrics.jsonl, TensorBoard, and warnings."""

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TextIO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from lemma.errors import SpecError, TrainingError
from lemma.report.text import fit, width_of
from lemma.runs.folder import TENSORBOARD, RunFolder
from lemma.spec.recipe import Recipe
from lemma.training.distributed import Team

# What a person sees while they wait: a bar on a terminal, a few plain lines in a log.


REFRESH = 0.2  # seconds between two drawings of the bar


class Observer(Protocol):
    """Someone who watches: phases with a known amount of work, rows of metrics, messages."""

    def begin(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        """A phase begins: "training" of `total` "steps", "tokenising" of `total` "bytes"."""
        ...

    def advance(self, done: int) -> None:
        """So much of the phase is done by now; called very often."""
        ...

    def report(self, row: Mapping[str, float]) -> None:
        """A row of metrics has been written."""
        ...

    def say(self, message: str) -> None:
        """Something worth reading has happened."""
        ...

    def end(self) -> None:
        """The phase is over, well or not."""
        ...


class Silent:
    """An observer who keeps quiet."""

    def begin(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        """Keep quiet."""

    def advance(self, done: int) -> None:
        """Keep quiet."""

    def report(self, row: Mapping[str, float]) -> None:
        """Keep quiet."""

    def say(self, message: str) -> None:
        """Keep quiet."""

    def end(self) -> None:
        """Keep quiet."""


class Lines(Silent):
    """One plain line at each validation and for each message: fit for a log file."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.total = 0

    def begin(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        """Say what begins."""
        self.total = total
        named = unit.removesuffix("s") if total == 1 else unit
        self.say(f"{phase}: {total:,} {named}" + (f", from {done:,} on" if done else ""))

    def report(self, row: Mapping[str, float]) -> None:
        """Say how far it is, if a validation has come in."""
        if "perplexity" in row:
            self.say(f"step {row['step']:,.0f} of {self.total:,}: {describe(row)}")

    def say(self, message: str) -> None:
        """Write one line."""
        print(fit(message, width_of(self.stream)), file=self.stream, flush=True)


class BarAndFigures(Progress):
    """A bar, and below it the figures, so that both have room in a narrow terminal."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bar's line, and one for the figures if there are any."""
        yield self.make_tasks_table(self.tasks)
        yield from (Text(words) for task in self.tasks if (words := task.fields["words"]))


class Bar(Silent):
    """A bar that is drawn a few times a second, however often it is told to move on."""

    def __init__(self, stream: TextIO) -> None:
        self.console = Console(file=stream)
        self.progress: Progress | None = None
        self.task = TaskID(0)
        self.shown: dict[str, float] = {}
        self.drawn, self.done = 0.0, 0.0

    def begin(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        """Draw a new bar."""
        self.end()
        count = TextColumn("{task.completed:,.0f}/{task.total:,.0f} " + unit)
        columns = (TextColumn(phase), BarColumn(), count, TimeRemainingColumn())
        self.progress = BarAndFigures(*columns, console=self.console, auto_refresh=False)
        self.task = self.progress.add_task(phase, total=total, completed=done, words="")
        self.done = done
        self.progress.start()

    def advance(self, done: int) -> None:
        """Move the bar, if it is time to draw it again."""
        self.done, now = done, time.monotonic()
        if self.progress and now - self.drawn > REFRESH:
            self.drawn = now
            self.progress.update(self.task, completed=done, refresh=True)

    def report(self, row: Mapping[str, float]) -> None:
        """Show the latest figures beside the bar."""
        self.shown |= row
        self.done = row["step"]
        if self.progress:
            self.progress.update(self.task, completed=row["step"], words=describe(self.shown))

    def say(self, message: str) -> None:
        """Write a line above the bar."""
        self.console.print(message, markup=False, highlight=False)

    def end(self) -> None:
        """Leave the bar where the work ended, also if it was not time to draw that."""
        if self.progress:
            self.progress.update(self.task, completed=self.done, refresh=True)
            self.progress.stop()
            self.progress = None


def describe(row: Mapping[str, float]) -> str:
    """Tell the figures of a row in words.

    >>> describe({"loss": 1.5, "perplexity": 4.25, "tokens_per_second": 21000.0})
    'loss 1.500 · validation perplexity 4.25 · 21,000 tokens/s'
    """
    words = {
        "loss": "loss {:.3f}",
        "objective": "objective {:.3f}",
        "focus": "focus {:.3f}",
        "near": "near {:.2f}",
        "next_sentence": "next sentence {:.3f}",
        "perplexity": "validation perplexity {:,.2f}",
        "uas": "UAS {:.2f}",
        "las": "LAS {:.2f}",
        "accuracy": "validation accuracy {:.3f}",
        "f1": "F1 {:.3f}",
        "recall_at_1": "recall@1 {:.3f}",
        "recall_at_10": "recall@10 {:.3f}",
        "tokens_per_second": "{:,.0f} tokens/s",
    }
    if "uas" in row:  # trees: the loss is of arcs, nats a word
        words |= {"loss": "loss {:.3f} nats a word"}
    if "uas" in row or "f1" in row or "recall_at_10" in row:
        del words["perplexity"]
    return " · ".join(template.format(row[name]) for name, template in words.items() if name in row)


def observer(stream: TextIO | None = None) -> Observer:
    """Choose the bar for a terminal and plain lines for anything else."""
    stream = stream or sys.stderr
    if stream is None:  # a program without a console
        return Silent()
    return Bar(stream) if stream.isatty() else Lines(stream)


def watched_reading(watcher: Observer, units: Mapping[str, str] | None = None) -> Callable[[str, int, int], None]:
    """Let an observer follow a reading, which reports (what, done, in all), in bytes or in the unit told for what."""
    phase = ""

    def progress(what: str, done: int, total: int) -> None:
        nonlocal phase
        if what != phase:
            phase = what
            watcher.begin(what, total, (units or {}).get(what, "bytes"))
        watcher.advance(done)
        if done >= total:
            watcher.end()

    return progress


# Everything a run tells the world: metrics.jsonl, TensorBoard if asked, and the observer. Only the leader tells.


class Journal:
    """The rows of one run."""

    def __init__(self, folder: RunFolder, observer: Observer, team: Team, step: int) -> None:
        self.metrics, self.leads = folder.metrics, team.leads
        self.observer = observer if team.leads else Silent()
        # a graph's steps read all of it, so that its few labelled nodes a second say nothing
        self.untold = {"tokens_per_second"} if folder.spec.family == "graph" else set()
        self.board = board_kind()(str(folder.path / TENSORBOARD), purge_step=step + 1) if self._boards(folder) else None
        self.observer.begin("training", folder.recipe.steps, "steps", step)

    def _boards(self, folder: RunFolder) -> bool:
        return self.leads and folder.recipe.tensorboard

    def write(self, row: Mapping[str, float]) -> None:
        """Write a row of metrics; what is no number has no place in JSON and is left out."""
        if not self.leads:
            return
        finite = {name: value for name, value in row.items() if math.isfinite(value)}
        self.metrics.append(finite)
        self.observer.report({name: value for name, value in finite.items() if name not in self.untold})
        if self.board:
            for name, value in finite.items():
                self.board.add_scalar(name, value, finite["step"])

    def close(self) -> None:
        """End the observer's phase and the TensorBoard file."""
        self.observer.end()
        if self.board:
            self.board.close()


def board_kind() -> type[Any]:
    """Return TensorBoard's writer, or say how to get it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise SpecError(
            "recipe.tensorboard = true: TensorBoard is not installed. "
            "pip install 'lemma[tensorboard]', or leave the word out: metrics.jsonl is always written."
        ) from None
    return SummaryWriter


# Warnings that save a day.


GUESSING = 0.98  # a loss above this share of the logarithm of all choices is no better than guessing
FAR_BELOW = 0.8  # validation below this share of the training loss, and by this many nats, is too good to be true
NATS = 0.2
READINGS = 200  # more passes through the same text than this are absurd


def nothing_learned(
    recipe: Recipe, step: int, loss: float, choices: int, what: str = "tokens", letter: str = "V"
) -> str | None:
    """Warn of a loss that still stands at chance after a fifth of the steps, the warm-up twice over and fifty steps.

    Chance is the logarithm of the choices: ln V among V tokens, ln B among the B captions of a batch.
    """
    guess = math.log(choices)
    if step < max(recipe.steps / 5, 2 * recipe.warm_up, 50) or loss < GUESSING * guess:
        return None
    return (
        f"Nothing is learned: at step {step} the loss is {loss:.3f}, guessing among {choices} {what} gives "
        f"ln {letter} = {guess:.3f}. Try another learning_rate (now {recipe.learning_rate:g}), and look at the "
        f"{'text' if what == 'tokens' else what}."
    )


def too_good(recipe: Recipe, step: int, validation: float, training: float) -> str | None:
    """Warn of a validation loss far below the training loss, once the first third is over and both move slowly."""
    if step <= recipe.steps / 3 or validation >= min(FAR_BELOW * training, training - NATS):
        return None
    cause = f"; dropout = {recipe.dropout:g} may be too much" if recipe.dropout >= 0.3 else ""
    return (
        f"Validation is much better than training: loss {validation:.3f} against {training:.3f} at step {step}. "
        f"Is the held-out text easier, or of another kind{cause}?"
    )


def read_too_often(recipe: Recipe, tokens: int, stretch: int) -> str | None:
    """Warn of a text so short that the run reads it hundreds of times."""
    times = recipe.steps * recipe.batch * stretch / tokens
    if times < READINGS:
        return None
    return f"The training text has only {tokens:,} tokens: this run reads them {times:,.0f} times over."


def refuse_no_number(loss: float, norm: float, steps: range, rate: float, saved: int) -> None:
    """Stop with a TrainingError where the loss or the gradient is no number any more."""
    if math.isfinite(loss) and math.isfinite(norm):
        return
    what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient's norm is {norm}"
    where = f"At step {steps[-1]}" if len(steps) == 1 else f"Between steps {steps[0]} and {steps[-1]}"
    kept = f"The checkpoint of step {saved} is good" if saved else "No checkpoint had been saved before"
    raise TrainingError(f"{where} {what} (learning rate {rate:.3g}). {kept}. Try a lower learning_rate.")
