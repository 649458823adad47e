"""The metrics of a run, TensorBoard, and the sanity checks that save a day."""

import math
from collections.abc import Mapping
from typing import Any

from lemma.errors import SpecError, TrainingError
from lemma.report.progress import Observer, Silent
from lemma.runs.folder import TENSORBOARD, RunFolder
from lemma.spec.recipe import Recipe
from lemma.tasks.registry import task_for
from lemma.training.distributed import Distributed


class MetricsLog:
    """Writes the rows of a run to metrics.jsonl, TensorBoard if asked, and an observer; only the first process does."""

    def __init__(self, folder: RunFolder, observer: Observer, processes: Distributed, step: int) -> None:
        self.metrics, self.leads = folder.metrics, processes.leads
        self.observer = observer if self.leads else Silent()
        # a graph's steps read all of it, so that its few labelled nodes per second say nothing
        self.hidden = {"tokens_per_second"} if task_for(folder.spec).counts != "tokens" else set()
        boards = self.leads and folder.recipe.tensorboard
        self.board = tensorboard_writer()(str(folder.path / TENSORBOARD), purge_step=step + 1) if boards else None
        self.observer.begin("training", folder.recipe.steps, "steps", step)

    def write(self, row: Mapping[str, float]) -> None:
        """Write a row of metrics; what is infinite or NaN has no place in JSON and is left out."""
        if not self.leads:
            return
        finite = {name: value for name, value in row.items() if math.isfinite(value)}
        self.metrics.append(finite)
        self.observer.report({name: value for name, value in finite.items() if name not in self.hidden})
        if self.board:
            for name, value in finite.items():
                self.board.add_scalar(name, value, finite["step"])

    def close(self) -> None:
        """End the observer's phase and the TensorBoard file."""
        self.observer.end()
        if self.board:
            self.board.close()


def tensorboard_writer() -> type[Any]:
    """Return TensorBoard's writer, or say how to get it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise SpecError(
            "recipe.tensorboard = true: TensorBoard is not installed. "
            "pip install 'lemma[tensorboard]', or leave it out: metrics.jsonl is always written."
        ) from None
    return SummaryWriter


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


def read_too_often(recipe: Recipe, tokens: int, sequence_length: int) -> str | None:
    """Warn of a text so short that the run reads it hundreds of times."""
    times = recipe.steps * recipe.batch * sequence_length / tokens
    if times < READINGS:
        return None
    return f"The training text has only {tokens:,} tokens: this run reads them {times:,.0f} times over."


def refuse_no_number(loss: float, norm: float, steps: range, rate: float, saved: int) -> None:
    """Stop with a TrainingError where the loss or the gradient is infinite or NaN."""
    if math.isfinite(loss) and math.isfinite(norm):
        return
    what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient's norm is {norm}"
    where = f"At step {steps[-1]}" if len(steps) == 1 else f"Between steps {steps[0]} and {steps[-1]}"
    kept = f"The checkpoint of step {saved} is good" if saved else "No checkpoint had been saved before"
    raise TrainingError(f"{where} {what} (learning rate {rate:.3g}). {kept}. Try a lower learning_rate.")
