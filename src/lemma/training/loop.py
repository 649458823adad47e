"""Training: one loop, from a new model or a checkpoint to a finished run."""

import ctypes
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch

from lemma.data.splits import Splits
from lemma.errors import SpecError
from lemma.models.base import count_parameters
from lemma.report.progress import Observer, Silent
from lemma.runs.checkpoint import put_weights, weights_of
from lemma.runs.folder import RunFolder, only_writer, refuse_occupied
from lemma.runs.load import first_model
from lemma.spec.data import AnyDataSpec
from lemma.spec.models import ModelSpec
from lemma.spec.recipe import AdaptationSpec, Recipe
from lemma.tasks.base import sized
from lemma.tasks.registry import OPTIONS, task_for
from lemma.training.distributed import Distributed, joined
from lemma.training.optimizer import logs, saves, validates
from lemma.training.precision import fork_random, matrix_products, product_precision
from lemma.training.progress import MetricsLog, tensorboard_writer
from lemma.training.result import TrainingResult
from lemma.training.session import Session, refuse_finished, refuse_other_data, restore_latest, save_session

Evaluate = Callable[[Any], Any]
"""What validates a model: its result has a `loss`, a `perplexity` and, if it wants, `figures`."""
Sample = Callable[[Any], list[str]]
Stopped = Literal["done", "early", "interrupted"]
AGREE_EVERY = 10  # steps after which several processes ask whether one of them was told to stop


def train(
    model_spec: ModelSpec,
    recipe: Recipe,
    data_spec: AnyDataSpec,
    data: Splits[Any],
    out: Path,
    *,
    evaluate: Evaluate | None = None,
    sample: Sample | None = None,
    observer: Observer | None = None,
    overwrite: bool = False,
    adaptation: AdaptationSpec | None = None,
) -> TrainingResult:
    """Train a new model into the folder `out`; its sizes are those of its data.

    With an `adaptation` it starts from the weights of a base, and keeps only what it changed. The model's task
    validates it and writes samples, unless `evaluate` and `sample` are given.
    """
    task, observer = task_for(model_spec), observer or Silent()
    if not isinstance(data_spec, task.data_spec):
        other = next(other.learns for other in OPTIONS.values() if isinstance(data_spec, other.data_spec))
        raise SpecError(f"a model of the family {model_spec.family} learns {task.learns}, not {other}.")
    with _environment(recipe) as processes:
        if processes.leads:
            refuse_occupied(out, overwrite)
        folder = RunFolder(out, sized(model_spec, data), recipe, data_spec, data.hash, adaptation)
        begin = time.perf_counter()
        session = _session(folder, data, processes, observer)
        if processes.leads:
            folder.create(data.tokenizer, overwrite, data.labels)
        setup_seconds = time.perf_counter() - begin
        return _complete(session, folder, data, evaluate, sample, observer, setup_seconds)


def resume(
    path: Path,
    data: Splits[Any],
    *,
    evaluate: Evaluate | None = None,
    sample: Sample | None = None,
    observer: Observer | None = None,
    changes: Mapping[str, Any] | None = None,
) -> TrainingResult:
    """Resume a run from its last good checkpoint, or from the start if it had none; `changes` are recipe settings."""
    observer = observer or Silent()
    folder = RunFolder.open(path)
    refuse_finished(folder)
    refuse_other_data(folder, data)
    folder = replace(folder, recipe=folder.recipe.replace(**(changes or {})))
    with _environment(folder.recipe) as processes:
        begin = time.perf_counter()
        session = _session(folder, data, processes, observer)
        restore_latest(session, folder)
        setup_seconds = time.perf_counter() - begin
        return _complete(session, folder, data, evaluate, sample, observer, setup_seconds)


def run_steps(session: Session, folder: RunFolder, log: MetricsLog, evaluate: Evaluate, stop: "Stop") -> Stopped:
    """The loop: step after step until all are taken, validation stops improving, or someone asks to stop."""
    recipe, state = session.recipe, session.state
    while not (stopped := reason_to_stop(session, stop)):
        session.step()
        log.observer.advance(state.step)
        if logs(recipe, state.step):
            row = session.measure()
            if validates(recipe, state.step):
                row |= session.validate(evaluate)
            log.write(row)
        if saves(recipe, state.step):
            save_session(session, folder)
    return stopped


def reason_to_stop(session: Session, stop: "Stop") -> Stopped | None:
    """Say why the loop ends here, or None if it continues; every process says the same."""
    recipe, state, processes = session.recipe, session.state, session.processes
    if state.step >= recipe.steps:
        return "done"
    if recipe.patience and state.without_better >= recipe.patience:
        return "early"
    if processes.size > 1 and state.step % AGREE_EVERY:
        return None
    return "interrupted" if processes.any(stop.asked) else None


@contextmanager
def _environment(recipe: Recipe) -> Iterator[Distributed]:
    """Join the other processes, and leave the program's random state and arithmetic as they were."""
    with (
        joined(recipe) as processes,
        fork_random(processes.device),
        steady_heap(processes.device),
        matrix_products(product_precision(processes.device)),
    ):
        yield processes


def _session(folder: RunFolder, data: Splits[Any], processes: Distributed, observer: Observer) -> Session:
    if folder.recipe.tensorboard:
        tensorboard_writer()  # an early word if it is missing
    tell = observer.say if processes.leads else Silent().say
    return Session(folder.spec, folder.recipe, data.tokens("train"), processes, tell, partial(first_model, folder))


def _complete(
    session: Session,
    folder: RunFolder,
    data: Splits[Any],
    evaluate: Evaluate | None,
    sample: Sample | None,
    observer: Observer,
    setup_seconds: float,
) -> TrainingResult:
    """Run the loop to its end, save a checkpoint, and finish the run unless it was interrupted."""
    task, processes = session.task, session.processes
    with ExitStack() as stack:
        if processes.leads:
            stack.enter_context(only_writer(folder.path))
        stack.enter_context(closing(session.batches))
        stop = stack.enter_context(stoppable(processes.size > 1))
        log = stack.enter_context(closing(MetricsLog(folder, observer, processes, session.state.step)))
        session.restart_clock()
        validation = evaluate or (lambda model: task.validate(model, data, session.recipe))
        stopped = run_steps(session, folder, log, validation, stop)
        if session.saved != session.state.step:
            save_session(session, folder)
        result = _result(session, folder, stopped, setup_seconds)
        result = replace(result, split_hashes=dict(data.split_hashes), overlaps=data.overlaps)
        if stopped == "interrupted" or not processes.leads:
            return result
        weights = session.best if session.best and folder.recipe.keep == "best" else weights_of(session.model)
        put_weights(session.model, weights, folder.path)
        with session.evaluating():
            written = sample(session.model) if sample else task.samples(session.model, data)
        result = replace(result, samples=tuple(written))
        folder.finish(weights, result.to_dict())
        if folder.adaptation:  # many tasks on one base are to be small on the disk
            shutil.rmtree(folder.checkpoints, ignore_errors=True)
        return result


def _result(session: Session, folder: RunFolder, stopped: Stopped, setup_seconds: float) -> TrainingResult:
    state = session.state
    return TrainingResult(
        path=folder.path,
        family=folder.spec.family,
        steps=state.step,
        planned_steps=folder.recipe.steps,
        stopped=stopped,
        parameters=count_parameters(session.model),
        learned=sum(tensor.numel() for tensor in session.model.parameters() if tensor.requires_grad),
        tokens=state.tokens,
        training_loss=state.training_loss,
        validation_loss=state.validation_loss,
        perplexity=state.perplexity,
        best_loss=state.best_loss,
        best_perplexity=state.best_perplexity,
        best_step=state.best_step,
        seconds=state.seconds,
        setup_seconds=setup_seconds,
        tokens_per_second=state.tokens / state.seconds if state.seconds else None,
        data_hash=folder.data_hash,
        warnings=tuple(state.warnings.values()),
        figures=dict(state.figures),
        best_figures=dict(state.best_figures),
    )


# Memory that is freed and allocated at every step stays with the process while a model is trained on a CPU. Otherwise
# the C library gives it back to the system after each step and takes it again, page by page, at the next: of a small
# Transformer's step that was a seventh.


TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # mallopt's names for the two settings, in glibc's malloc.h
KEPT = {TRIM_THRESHOLD: 1 << 30, MMAP_THRESHOLD: 32 << 20}  # bytes; glibc refuses more than 32 MB per block
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


# Ctrl-C and SIGTERM: ask training to stop after the current step.


SIGNALS = (signal.SIGINT, signal.SIGTERM)
ECHO = 2.0  # seconds in which torchrun may pass on a Ctrl-C that the terminal has sent already


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
def stoppable(several: bool = False) -> Iterator[Stop]:
    """Listen to Ctrl-C and SIGTERM for a while; signals reach only the main thread."""
    stop = Stop(ECHO if several else 0.0)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop.ask) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
