"""Training: one loop, from a new model or a checkpoint to a finished run, and its result."""

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from shlex import quote
from types import FrameType
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from lemma.data.splits import Splits
from lemma.errors import SpecError
from lemma.files import remove_atomically
from lemma.models.base import count_parameters
from lemma.report.progress import Observer, SilentObserver
from lemma.report.result import Block, Result, Text, to_plain
from lemma.report.text import label_line
from lemma.runs.checkpoint import load_weights, named_weights
from lemma.runs.folder import RunFolder, check_run_target, write_lock
from lemma.runs.load import build_initial_model
from lemma.spec.data import AnyDataSpec
from lemma.spec.models import ModelSpec, find_family
from lemma.spec.recipe import AdaptationSpec, Recipe, fit_warm_up, warm_up_message
from lemma.tasks.base import Task
from lemma.tasks.registry import LANGUAGE, TASKS_BY_OPTION, TaskInfo, task_for, task_info
from lemma.training.devices import Distributed, join_processes, training_environment
from lemma.training.optimizer import should_log, should_save, should_validate
from lemma.training.session import Session, TrainingHooks, check_resumable, restore_latest, save_session
from lemma.training.trackers import import_tracker, open_tracker

Evaluate = Callable[[Any], Any]
"""Validates a model: its result has a `loss`, a `perplexity` and optionally `figures`."""
Sample = Callable[[Any], list[str]]
"""Writes samples with a trained model."""
STOP_CHECK_INTERVAL = 10  # steps after which several processes ask each other whether one got a signal
StopReason = Literal["done", "early", "asked", "interrupted"]
STOP_MESSAGES = {
    "done": "done",
    "early": "stopped early, since validation no longer improved",
    "asked": "stopped by on_step",
    "interrupted": "interrupted",
}


# Results


@dataclass(frozen=True)
class TrainingResult(Result):
    """Figures of a run that is finished, stopped early or interrupted."""

    title = "Training run"

    path: Path
    family: str
    steps: int
    planned_steps: int
    stopped: StopReason
    parameters: int  # all parameters of the model
    learned: int  # trained parameters; fewer than all where a base is adapted
    tokens: int
    training_loss: float | None  # mean loss of the steps since the last row of metrics
    validation_loss: float | None  # loss of the last validation; `perplexity` and `figures` belong to it
    perplexity: float | None
    best_loss: float | None
    best_perplexity: float | None
    best_step: int | None
    seconds: float  # duration of the training steps, over all sessions of the run
    setup_seconds: float  # duration until the first step of this session: building, copying the text, compiling
    tokens_per_second: float | None
    data_hash: str
    split_hashes: dict[str, str] = field(default_factory=dict)  # hash of each split, where some are files of their own
    overlaps: tuple[str, ...] = ()  # sentences on what the splits share
    warnings: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    figures: dict[str, float] = field(default_factory=dict)  # of the last validation, such as UAS
    best_figures: dict[str, float] = field(default_factory=dict)
    tokenizer_sample: str = ""  # sentence on the part of the text that the tokenizer was trained on, if not all of it

    @property
    def info(self) -> TaskInfo:
        """Names, unit and wording of the model's task; those of language models for an unknown family."""
        spec = find_family(self.family)
        return LANGUAGE if spec is None else task_info(spec)

    @classmethod
    def from_session(
        cls, session: Session, folder: RunFolder, data: Splits[Any], stopped: StopReason, setup_seconds: float
    ) -> Self:
        """Return the figures of a session that has stopped for the reason `stopped`."""
        state, model = session.state, session.model
        shared: dict[str, Any] = {
            item.name: getattr(state, item.name) for item in fields(cls) if hasattr(state, item.name)
        }
        own = {
            "path": folder.path,
            "family": folder.spec.family,
            "steps": state.step,
            "planned_steps": folder.recipe.steps,
            "stopped": stopped,
            "parameters": count_parameters(model),
            "learned": sum(tensor.numel() for tensor in model.parameters() if tensor.requires_grad),
            "setup_seconds": setup_seconds,
            "tokens_per_second": state.tokens / state.seconds if state.seconds else None,
            "data_hash": folder.data_hash,
            "split_hashes": dict(data.split_hashes),
            "overlaps": data.overlaps,
            "warnings": tuple(state.warnings.values()),
        }
        return cls(**shared | own)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the result with the values that `to_dict` wrote to the summary of a run."""
        names = {item.name for item in fields(cls)} - {"figures"}
        arguments: dict[str, Any] = {name: values.get(name) for name in names}
        arguments |= {"path": Path(str(arguments["path"])), "tokenizer_sample": arguments["tokenizer_sample"] or ""}
        arguments |= {name: dict(arguments[name] or {}) for name in ("best_figures", "split_hashes")}
        arguments |= {name: tuple(arguments[name] or ()) for name in ("warnings", "samples", "overlaps")}
        figures = {name: value for name, value in values.items() if name not in names and isinstance(value, float)}
        return cls(**arguments, figures=figures)

    @property
    def interrupted(self) -> bool:
        """True if a signal stopped the run, which can be resumed."""
        return self.stopped == "interrupted"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values: the fields, with `figures` as entries; infinite values and NaN become None."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values |= values.pop("figures")
        splits = {"split_hashes": values.pop("split_hashes"), "overlaps": values.pop("overlaps")}
        values |= splits if self.split_hashes else {}
        if not self.tokenizer_sample:
            del values["tokenizer_sample"]
        if not self.info.has_perplexity:
            del values["perplexity"], values["best_perplexity"]
        return to_plain(values)

    def blocks(self) -> Iterator[Block]:
        """Yield a text with the figures and the command that evaluates or resumes the run."""
        info = self.info
        learned = f", of which {self.learned:,} are trained" if self.learned < self.parameters else ""
        steps = f"{self.steps:,} of {self.planned_steps:,} steps, {STOP_MESSAGES[self.stopped]}"
        has_speed = self.tokens_per_second and info.counts == "tokens"  # a step reads a whole graph, not a few nodes
        speed = f" ({self.tokens_per_second:,.0f} tokens/s)" if has_speed else ""
        lines = [
            f"{self.family}, {self.parameters:,} parameters{learned}: {steps}",
            f"time        {self.seconds:.1f} s for {self.tokens:,} {info.counts}{speed}, {self.setup_seconds:.1f} s of "
            "set-up",
        ]
        if self.training_loss is not None:
            lines.append(f"training    loss {self.training_loss:.4f} {info.unit}")
        if self.validation_loss is not None:
            lines.append(f"validation  {self._format_loss(self.validation_loss, self.perplexity)}")
        if self.figures:
            lines.append(f"validation  {', '.join(_format_figure(*figure) for figure in self.figures.items())}")
        if self.best_loss is not None:
            best = self._format_loss(self.best_loss, self.best_perplexity)
            figures = "".join(f", {_format_figure(*figure)}" for figure in self.best_figures.items())
            lines.append(f"best        {best}{figures}, at step {self.best_step:,}")
        lines.append(f"data        {self.data_hash}")
        lines += [f"  {split:<10} {split_hash}" for split, split_hash in self.split_hashes.items()]
        lines += [label_line("tokenizer", self.tokenizer_sample, 11)] if self.tokenizer_sample else []
        lines += [label_line("overlap", overlap, 11) for overlap in self.overlaps]
        lines += [label_line("warning", warning, 11) for warning in self.warnings]
        lines += [label_line("sample", repr(sample), 11, break_anywhere=True) for sample in self.samples]
        path = quote(str(self.path))
        if self.interrupted:
            lines.append(f"To resume: lemma train --resume {path}")
        else:
            lines.append(f"The run is in {self.path}. To evaluate it: lemma evaluate {path}")
        yield Text("\n".join(lines))

    def _format_loss(self, loss: float, perplexity: float | None) -> str:
        """Return a loss as text, with its perplexity or its unit."""
        if self.info.has_perplexity:
            return f"loss {loss:.4f}, perplexity {perplexity:,.2f}"
        return f"loss {loss:.4f} {self.info.unit}"


def _format_figure(name: str, value: float) -> str:
    """Return the text `name value` of a figure: attachment scores with two decimals, fractions with three."""
    if name in ("uas", "las"):
        return f"{name.upper()} {value:.2f}"
    return f"{name.replace('_at_', '@').replace('_', ' ')} {value:.3f}"


# The loop


def train(
    model_spec: ModelSpec,
    recipe: Recipe,
    data_spec: AnyDataSpec,
    data: Splits[Any],
    out: Path,
    *,
    task: Task | None = None,
    evaluate: Evaluate | None = None,
    sample: Sample | None = None,
    observer: Observer | None = None,
    overwrite: bool = False,
    adaptation: AdaptationSpec | None = None,
    hooks: TrainingHooks | None = None,
) -> TrainingResult:
    """Train a new model into the folder `out`; its vocabulary and other sizes come from the data.

    Args:
        task: The task, by default that of the model.
        evaluate: Validates the model instead of the task; returns a score.
        sample: Writes sample texts instead of the task.
        adaptation: Start from the weights of a base, and store only what changed.
        hooks: User-supplied functions.
    """
    task = task or task_for(model_spec)
    if not isinstance(data_spec, task.info.data_spec):
        kind = next(info.trains_on for info in TASKS_BY_OPTION.values() if isinstance(data_spec, info.data_spec))
        raise SpecError(f"a model of the family {model_spec.family} learns {task.info.trains_on}, not {kind}.")
    folder = RunFolder(out, model_spec.with_data_sizes(data.sizes()), recipe, data_spec, data.hash, adaptation)
    return _train_folder(folder, task, data, evaluate, sample, observer or SilentObserver(), overwrite, hooks)


def resume(
    path: Path,
    data: Splits[Any],
    *,
    task: Task | None = None,
    evaluate: Evaluate | None = None,
    sample: Sample | None = None,
    observer: Observer | None = None,
    changes: Mapping[str, Any] | None = None,
    hooks: TrainingHooks | None = None,
) -> TrainingResult:
    """Resume a run from its last good checkpoint, or from the start; `changes` are recipe settings (name → value)."""
    folder = RunFolder.open(path, overrides=changes or ())
    check_resumable(folder, data)
    folder = replace(folder, recipe=folder.recipe.replace(**(changes or {})))
    task = task or task_for(folder.spec)
    return _train_folder(folder, task, data, evaluate, sample, observer or SilentObserver(), None, hooks)


def fit_recipe(
    recipe: Recipe, observer: Observer, reference: Recipe | None = None, max_steps: int | None = None
) -> Recipe:
    """Return the recipe with its warm-up shortened by `fit_warm_up` if it is too long for its steps; log the change."""
    result = fit_warm_up(recipe, reference, max_steps)
    if result.warm_up != recipe.warm_up:
        observer.log(warm_up_message(result, recipe.warm_up))
    return result


def run_steps(
    session: Session, folder: RunFolder, metrics_log: "MetricsLog", evaluate: Evaluate, stop: "StopFlag"
) -> StopReason:
    """Train until the last step, no better validation, a signal or a request of `on_step`; return which it was.

    Every process ends at the same step, for the same reason.
    """
    recipe, state, processes, on_step = session.recipe, session.state, session.processes, session.hooks.on_step
    while state.step < recipe.steps:
        if recipe.patience and state.without_better >= recipe.patience:
            return "early"
        if (processes.size == 1 or state.step % STOP_CHECK_INTERVAL == 0) and processes.any(stop.is_set):
            return "interrupted"
        session.step()
        answer = on_step(session) if on_step is not None else None
        if isinstance(answer, np.bool_) or (
            isinstance(answer, Tensor) and answer.dtype == torch.bool and answer.numel() == 1
        ):
            answer = bool(answer)  # such as `session.latest < 1`
        is_last = on_step is not None and processes.any(answer is True)
        metrics_log.observer.advance(state.step)
        if is_last or should_log(recipe, state.step):
            row = session.metrics_row()
            if is_last or should_validate(recipe, state.step):
                row |= session.validate(evaluate)
            metrics_log.write(row)
        if is_last:
            return "asked"
        if should_save(recipe, state.step):
            save_session(session, folder)
    return "done"


def _train_folder(
    folder: RunFolder,
    task: Task,
    data: Splits[Any],
    evaluate: Evaluate | None,
    sample: Sample | None,
    observer: Observer,
    overwrite: bool | None,
    hooks: TrainingHooks | None,
) -> TrainingResult:
    """Train the run in `folder` and return its figures: a new one, or resumed if `overwrite` is None.

    After the last step it is saved, evaluated and finished, or only saved if a signal interrupts it. The random state
    and the precision of the program are as before.
    """
    recipe = folder.recipe
    with ExitStack() as stack:
        processes = stack.enter_context(join_processes(recipe))
        stack.enter_context(training_environment(recipe, processes.device))
        if overwrite is not None and processes.is_main:
            check_run_target(folder.path, overwrite)
        if recipe.tracker and processes.is_main:
            import_tracker(recipe.tracker)  # to report a missing package before the work
        start = time.perf_counter()
        log_message = observer.log if processes.is_main else SilentObserver().log
        make_model = partial(build_initial_model, folder) if folder.adaptation else None
        session = Session(folder.spec, recipe, data.item("train"), processes, log_message, make_model, hooks, task)
        if processes.is_main:
            folder.path.absolute().parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(write_lock(folder.path))
        if overwrite is None:
            restore_latest(session, folder)
        elif processes.is_main:
            folder.create(data.tokenizer, overwrite, data.labels, has_lock=True)
        session.state.tokenizer_sample = session.state.tokenizer_sample or data.tokenizer_note
        setup_seconds = time.perf_counter() - start
        stack.enter_context(closing(session.batches))
        stop = stack.enter_context(catch_signals(processes.size > 1))
        metrics_log = stack.enter_context(closing(MetricsLog(folder, task, observer, processes, session.state.step)))
        session.restart_clock()
        validate = evaluate or (lambda model: task.validate(model, data, session.recipe))
        stopped = run_steps(session, folder, metrics_log, validate, stop)
        if stopped != "interrupted":
            session.revalidate_in_float32(validate)
        if session.saved_step != session.state.step:
            save_session(session, folder)
        result = TrainingResult.from_session(session, folder, data, stopped, setup_seconds)
        if stopped == "interrupted":
            return result
        with session.evaluating() as model:
            if not processes.is_main:
                return result
            best = session.best_weights if folder.recipe.keep == "best" else None
            weights = best or named_weights(model)
            load_weights(model, weights, folder.path)
            samples = sample(model) if sample else task.samples(model, data)
        result = replace(result, samples=tuple(samples))
        folder.finish(weights, result.to_dict())
        if folder.adaptation:  # an adapted run is to be small on the disk
            with suppress(OSError):
                remove_atomically(folder.checkpoints)
        return result


# Signals

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ECHO_SECONDS = 2.0  # within which torchrun may pass on a Ctrl-C that the terminal has sent already


class StopFlag:
    """A request to stop training after the current step, set by Ctrl-C or SIGTERM."""

    def __init__(self, echo: float) -> None:
        self.is_set = False
        self._echo, self._time = echo, 0.0

    def handle_signal(self, number: int, frame: FrameType | None) -> None:
        """Set the flag at the first signal; raise KeyboardInterrupt at a second Ctrl-C."""
        if self.is_set and number == signal.SIGINT and time.monotonic() - self._time >= self._echo:
            raise KeyboardInterrupt
        if not self.is_set:
            self.is_set, self._time = True, time.monotonic()


@contextmanager
def catch_signals(is_distributed: bool = False) -> Iterator[StopFlag]:
    """Yield a flag that Ctrl-C and SIGTERM set during the block; outside the main thread it stays unset."""
    stop = StopFlag(ECHO_SECONDS if is_distributed else 0.0)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    old_handlers = {number: signal.signal(number, stop.handle_signal) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)


# Metrics


class MetricsLog:
    """Writer of rows of metrics to metrics.jsonl, a tracker and an observer; only the main process writes."""

    def __init__(self, folder: RunFolder, task: Task, observer: Observer, processes: Distributed, step: int) -> None:
        self.metrics, self.is_main = folder.metrics, processes.is_main
        self.observer = observer if self.is_main else SilentObserver()
        # a step reads the whole graph, so its few labelled nodes per second are misleading
        self.hidden = {"tokens_per_second"} if task.info.counts != "tokens" else set()
        self.hidden |= set() if task.info.has_perplexity else {"perplexity"}
        with redirect_stdout(sys.stderr):  # the tracker's messages are not part of the result
            self.tracker = open_tracker(folder, step) if self.is_main and folder.recipe.tracker else None
        self.observer.start("training", folder.recipe.steps, "steps", step)

    def write(self, row: Mapping[str, float]) -> None:
        """Write a row of metrics (name → value); infinite values and NaN, which JSON cannot hold, are left out."""
        if not self.is_main:
            return
        finite = {name: value for name, value in row.items() if math.isfinite(value)}
        self.metrics.append(finite)
        self.observer.report({name: value for name, value in finite.items() if name not in self.hidden})
        if self.tracker:
            self.tracker[0](finite)

    def close(self) -> None:
        """End the observer's progress and the tracker's run."""
        self.observer.finish()
        if self.tracker:
            with redirect_stdout(sys.stderr):
                self.tracker[1]()
