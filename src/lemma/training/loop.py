"""Training: one loop, from a fresh model or a checkpoint to a finished run."""

import ctypes
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch

from lemma.models.base import count_parameters
from lemma.runs.checkpoint import put_weights, weights_of
from lemma.runs.folder import RunFolder, only_writer, refuse_occupied
from lemma.runs.load import first_model
from lemma.spec.data import AnyDataSpec
from lemma.spec.models import ModelSpec
from lemma.spec.recipe import AdaptationSpec, Recipe
from lemma.training.checkpointing import refuse_finished, refuse_other_text, restore_latest, save_session
from lemma.training.distributed import Team, teamwork
from lemma.training.losses import AnyData, Evaluate, refuse_other_kind
from lemma.training.optimizer import clip, learning_rate, logs, saves, set_rate, validates
from lemma.training.precision import fork_random, matrix_products, product_precision
from lemma.training.progress import Journal, Observer, Silent, board_kind
from lemma.training.result import TrainingResult
from lemma.training.session import Session

# The end of a run: its result, its weights, its samples.


Sample = Callable[[Any], list[str]]
Stopped = Literal["done", "early", "interrupted"]


def finish(
    session: Session, folder: RunFolder, sample: Sample, stopped: Stopped, setup_seconds: float
) -> TrainingResult:
    """Sum a run up; if it came to its end, have the leader write the weights that the recipe keeps, and samples."""
    result = sum_up(session, folder, stopped, setup_seconds)
    if stopped == "interrupted" or not session.team.leads:
        return result
    weights = session.best if session.best and folder.recipe.keep == "best" else weights_of(session.model)
    put_weights(session.model, weights, folder.path)
    with session.aside():
        result = replace(result, samples=tuple(sample(session.model)))
    folder.finish(weights, result.to_dict())
    if folder.adaptation:  # many tasks on one base are to be small on the disk
        shutil.rmtree(folder.checkpoints, ignore_errors=True)
    return result


def sum_up(session: Session, folder: RunFolder, stopped: Stopped, setup_seconds: float) -> TrainingResult:
    """Gather the figures of a run."""
    standing = session.standing
    return TrainingResult(
        path=folder.path,
        family=folder.spec.family,
        steps=standing.step,
        planned_steps=folder.recipe.steps,
        stopped=stopped,
        parameters=count_parameters(session.model),
        learned=sum(tensor.numel() for tensor in session.model.parameters() if tensor.requires_grad),
        tokens=standing.tokens,
        training_loss=standing.training_loss,
        validation_loss=standing.validation_loss,
        perplexity=standing.perplexity,
        best_loss=standing.best_loss,
        best_perplexity=standing.best_perplexity,
        best_step=standing.best_step,
        seconds=standing.seconds,
        setup_seconds=setup_seconds,
        tokens_per_second=standing.tokens / standing.seconds if standing.seconds else None,
        data_hash=folder.data_hash,
        warnings=tuple(standing.warnings.values()),
        figures=dict(standing.figures),
        best_figures=dict(standing.best_figures),
    )


# Memory that is freed and asked for again at every step stays with the process while a model is trained on a CPU.
#
# The C library else gives it back to the system after each step and takes it anew, page by page, at the next: of a
# small
# Transformer's step that was a seventh.


TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # mallopt's names for the two settings, in glibc's malloc.h
KEPT = {TRIM_THRESHOLD: 1 << 30, MMAP_THRESHOLD: 32 << 20}  # bytes; more than 32 MB a block glibc refuses
USUAL = {TRIM_THRESHOLD: 128 << 10, MMAP_THRESHOLD: 128 << 10}


@contextmanager
def steady_heap(device: torch.device) -> Iterator[None]:
    """Keep up to a gigabyte of freed memory; where the C library is not glibc, do nothing."""
    if device.type != "cpu" or not sys.platform.startswith("linux"):
        yield
        return
    _set(KEPT)
    try:
        yield
    finally:
        _set(USUAL)


def _set(options: dict[int, int]) -> None:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return
    for name, value in options.items():
        mallopt(name, value)


# Ctrl-C and SIGTERM: ask training to stop after the step at hand.


SIGNALS = (signal.SIGINT, signal.SIGTERM)
ECHO = 2.0  # seconds in which torchrun may pass on to a team a Ctrl-C that the terminal has sent already


class Stop:
    """Whether someone has asked to stop."""

    def __init__(self, echo: float) -> None:
        self.asked = False
        self._echo, self._when = echo, 0.0

    def ask(self, number: int, frame: FrameType | None) -> None:
        """Note the first signal; a second Ctrl-C ends the program at once."""
        if self.asked and number == signal.SIGINT and time.monotonic() - self._when >= self._echo:
            raise KeyboardInterrupt
        if not self.asked:
            self.asked, self._when = True, time.monotonic()


@contextmanager
def stoppable(team: bool = False) -> Iterator[Stop]:
    """Listen to Ctrl-C and SIGTERM for a while; signals can only be heard in the main thread."""
    stop = Stop(ECHO if team else 0.0)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop.ask) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# Training: one loop, from a fresh model or from a checkpoint to a finished run.


AGREE_EVERY = 10  # steps after which a team asks whether one of its processes was told to stop


def advance(session: Session, folder: RunFolder, journal: Journal, evaluate: Evaluate, stop: Stop) -> Stopped:
    """The loop: step after step until all are taken, validation stops improving, or someone asks to stop."""
    recipe, standing = session.recipe, session.standing
    while not (stopped := reason_to_stop(session, stop)):
        take_step(session)
        journal.observer.advance(standing.step)
        if logs(recipe, standing.step):
            row = session.measure()
            if validates(recipe, standing.step):
                row |= session.validate(evaluate)
            journal.write(row)
        if saves(recipe, standing.step):
            save_session(session, folder)
    return stopped


def take_step(session: Session) -> None:
    """One step: the batch's gradients, clipped, move the weights."""
    session.standing.step += 1
    set_rate(session.optimizer, learning_rate(session.recipe, session.standing.step))
    terms = session.gradients()
    norm = clip(session.model, session.recipe.clip)
    session.count(terms, norm)
    session.optimizer.step()
    session.optimizer.zero_grad(set_to_none=True)


def reason_to_stop(session: Session, stop: Stop) -> Stopped | None:
    """Say why the loop ends here, or None if it goes on; every process of a team says the same."""
    recipe, standing, team = session.recipe, session.standing, session.team
    if standing.step >= recipe.steps:
        return "done"
    if recipe.patience and standing.without_better >= recipe.patience:
        return "early"
    if team.size > 1 and standing.step % AGREE_EVERY:
        return None
    return "interrupted" if team.agree(stop.asked) else None


@dataclass(frozen=True)
class Surroundings:
    """What training is handed from outside: how to validate, how to sample, whom to tell."""

    evaluate: Evaluate
    sample: Sample
    observer: Observer = field(default_factory=Silent)


def train(
    model_spec: ModelSpec,
    recipe: Recipe,
    data_spec: AnyDataSpec,
    dataset: AnyData,
    out: Path,
    *,
    evaluate: Evaluate,
    sample: Sample,
    observer: Observer | None = None,
    overwrite: bool = False,
    adaptation: AdaptationSpec | None = None,
) -> TrainingResult:
    """Train a new model into the folder `out`; its vocabulary is the tokenizer's, or the treebank's.

    With an `adaptation` it starts from the weights of a base, of which it keeps only what it changed.
    """
    given = Surroundings(evaluate, sample, observer or Silent())
    refuse_other_kind(model_spec, dataset)
    with _at_work(recipe) as team:
        if team.leads:
            refuse_occupied(out, overwrite)
        spec = model_spec.sized(dataset.sizes())
        folder = RunFolder(out, spec, recipe, data_spec, dataset.hash, adaptation)
        begin = time.perf_counter()
        session = _session(folder, dataset, team, given)
        if team.leads:
            folder.create(dataset.tokenizer, overwrite, getattr(dataset, "labels", ()))
        return _complete(session, folder, given, time.perf_counter() - begin)


def resume(
    path: Path,
    dataset: AnyData,
    *,
    evaluate: Evaluate,
    sample: Sample,
    observer: Observer | None = None,
    changes: Mapping[str, Any] | None = None,
) -> TrainingResult:
    """Go on with a run from its last good checkpoint, or from the start if it had none; `changes` are recipe words."""
    given = Surroundings(evaluate, sample, observer or Silent())
    folder = RunFolder.open(path)
    refuse_finished(folder)
    refuse_other_text(folder, dataset)
    folder = replace(folder, recipe=folder.recipe.replace(**(changes or {})))
    with _at_work(folder.recipe) as team:
        begin = time.perf_counter()
        session = _session(folder, dataset, team, given)
        restore_latest(session, folder)
        return _complete(session, folder, given, time.perf_counter() - begin)


@contextmanager
def _at_work(recipe: Recipe) -> Iterator[Team]:
    """Join the team, and leave the program's random state and arithmetic as they were."""
    with (
        teamwork(recipe) as team,
        fork_random(team.device),
        steady_heap(team.device),
        matrix_products(product_precision(team.device)),
    ):
        yield team


def _session(folder: RunFolder, dataset: AnyData, team: Team, given: Surroundings) -> Session:
    if folder.recipe.tensorboard:
        board_kind()  # an early word if it is missing
    tell = given.observer.say if team.leads else Silent().say
    tokens: Any = dataset.tokens("train")
    return Session(folder.spec, folder.recipe, tokens, team, tell, partial(first_model, folder))


def _complete(session: Session, folder: RunFolder, given: Surroundings, setup_seconds: float) -> TrainingResult:
    """Run the loop to its end, save where it stands, and finish the run unless it was interrupted."""
    with ExitStack() as stack:
        if session.team.leads:
            stack.enter_context(only_writer(folder.path))
        stack.enter_context(closing(session.feed))
        stop = stack.enter_context(stoppable(session.team.size > 1))
        journal = stack.enter_context(closing(Journal(folder, given.observer, session.team, session.standing.step)))
        session.restart_clock()
        stopped = advance(session, folder, journal, given.evaluate, stop)
        if session.unsaved():
            save_session(session, folder)
        return finish(session, folder, given.sample, stopped, setup_seconds)
