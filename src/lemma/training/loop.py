"""Training: one loop, from a new model or a checkpoint to a finished run."""

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, redirect_stdout, suppress
from dataclasses import asdict, dataclass, field, replace
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
from lemma.report.result import Block, Result, Text
from lemma.report.text import label_line
from lemma.runs.checkpoint import load_weights, named_weights
from lemma.runs.folder import RunFolder, check_run_target, write_lock
from lemma.runs.load import build_initial_model
from lemma.spec.data import AnyDataSpec
from lemma.spec.models import ModelSpec
from lemma.spec.recipe import AdaptationSpec, Recipe
from lemma.tasks.base import Task
from lemma.tasks.registry import TASKS_BY_OPTION, task_for, task_of_family
from lemma.training.distributed import Distributed, join_processes
from lemma.training.optimizer import should_log, should_save, should_validate
from lemma.training.precision import fork_random, matmul_precision
from lemma.training.session import Session, TrainingHooks, check_resumable, restore_latest, save_session
from lemma.training.trackers import import_tracker, open_tracker

Evaluate = Callable[[Any], Any]
"""What validates a model: its result has a `loss`, a `perplexity` and, if it wants, `figures`."""
Sample = Callable[[Any], list[str]]
StopReason = Literal["done", "early", "asked", "interrupted"]
STATE_FIELDS = ("tokens", "seconds", "training_loss", "validation_loss", "perplexity", "figures")
STATE_FIELDS += ("best_loss", "best_perplexity", "best_step", "best_figures", "tokenizer_sample")
"""What the result of a run takes from its state."""
STOP_CHECK_INTERVAL = 10  # steps after which several processes ask whether one of them was told to stop


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
    hooks: TrainingHooks | None = None,
) -> "TrainingResult":
    """Train a new model into the folder `out`; its sizes are those of its data.

    With an `adaptation` it starts from the weights of a base, and keeps only what it changed. The model's task
    validates it and writes samples, unless `evaluate` and `sample` are given. `own` are a person's own functions.
    """
    task, observer = task_for(model_spec), observer or SilentObserver()
    if not isinstance(data_spec, task.data_spec):
        other = next(other.learns for other in TASKS_BY_OPTION.values() if isinstance(data_spec, other.data_spec))
        raise SpecError(f"a model of the family {model_spec.family} learns {task.learns}, not {other}.")
    folder = RunFolder(out, model_spec.with_data_sizes(data.sizes()), recipe, data_spec, data.hash, adaptation)
    return _run(folder, data, evaluate, sample, observer, overwrite, hooks)


def resume(
    path: Path,
    data: Splits[Any],
    *,
    evaluate: Evaluate | None = None,
    sample: Sample | None = None,
    observer: Observer | None = None,
    changes: Mapping[str, Any] | None = None,
    hooks: TrainingHooks | None = None,
) -> "TrainingResult":
    """Resume a run from its last good checkpoint, or from the start if it had none; `changes` are recipe settings."""
    observer = observer or SilentObserver()
    folder = RunFolder.open(path, overrides=changes or ())
    check_resumable(folder, data)
    folder = replace(folder, recipe=folder.recipe.replace(**(changes or {})))
    return _run(folder, data, evaluate, sample, observer, None, hooks)


def run_steps(
    session: Session, folder: RunFolder, log: "MetricsLog", evaluate: Evaluate, stop: "StopFlag"
) -> StopReason:
    """The loop: step after step until all are taken, validation stops improving, or someone asks to stop.

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
            answer = bool(answer)  # as of `session.latest < 1`
        ends = on_step is not None and processes.any(answer is True)
        log.observer.advance(state.step)
        if ends or should_log(recipe, state.step):
            row = session.metrics_row()
            if ends or should_validate(recipe, state.step):
                row |= session.validate(evaluate)
            log.write(row)
        if ends:
            return "asked"
        if should_save(recipe, state.step):
            save_session(session, folder)
    return "done"


def _run(
    folder: RunFolder,
    data: Splits[Any],
    evaluate: Evaluate | None,
    sample: Sample | None,
    observer: Observer,
    overwrite: bool | None,
    hooks: TrainingHooks | None,
) -> "TrainingResult":
    """Begin a run, or go on with it if `overwrite` is None; take all steps, save, and finish unless it was interrupted.

    The program's random state and arithmetic are left as they were.
    """
    recipe = folder.recipe
    with ExitStack() as stack:
        processes = stack.enter_context(join_processes(recipe))
        stack.enter_context(fork_random(processes.device))
        if recipe.threads is not None:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(recipe.threads)
        on_gpu = processes.device.type == "cuda"
        stack.enter_context(matmul_precision("high" if on_gpu else "highest"))  # TF32 on a GPU
        if overwrite is not None and processes.is_main:
            check_run_target(folder.path, overwrite)
        if recipe.tracker and processes.is_main:
            import_tracker(recipe.tracker)  # an early word if it is missing
        begin = time.perf_counter()
        tell = observer.log if processes.is_main else SilentObserver().log
        first = partial(build_initial_model, folder)
        session = Session(folder.spec, recipe, data.item("train"), processes, tell, first, hooks)
        if processes.is_main:
            folder.path.absolute().parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(write_lock(folder.path))
        if overwrite is None:
            restore_latest(session, folder)
        elif processes.is_main:
            folder.create(data.tokenizer, overwrite, data.labels, has_lock=True)
        session.state.tokenizer_sample = session.state.tokenizer_sample or data.tokenizer_note
        setup_seconds = time.perf_counter() - begin
        stack.enter_context(closing(session.batches))
        stop = stack.enter_context(catch_signals(processes.size > 1))
        log = stack.enter_context(closing(MetricsLog(folder, observer, processes, session.state.step)))
        session.restart_clock()
        task = session.task
        validation = evaluate or (lambda model: task.validate(model, data, session.recipe))
        stopped = run_steps(session, folder, log, validation, stop)
        if stopped != "interrupted":
            session.revalidate_in_float32(validation)
        if session.saved_step != session.state.step:
            save_session(session, folder)
        state = session.state
        result = TrainingResult(
            path=folder.path,
            family=folder.spec.family,
            steps=state.step,
            planned_steps=folder.recipe.steps,
            stopped=stopped,
            parameters=count_parameters(session.model),
            learned=sum(tensor.numel() for tensor in session.model.parameters() if tensor.requires_grad),
            setup_seconds=setup_seconds,
            tokens_per_second=state.tokens / state.seconds if state.seconds else None,
            data_hash=folder.data_hash,
            split_hashes=dict(data.split_hashes),
            overlaps=data.overlaps,
            warnings=tuple(state.warnings.values()),
            **{name: getattr(state, name) for name in STATE_FIELDS},
        )
        if stopped == "interrupted":
            return result
        with session.evaluating() as model:
            if not processes.is_main:
                return result
            weights = (
                session.best_weights if session.best_weights and folder.recipe.keep == "best" else named_weights(model)
            )
            load_weights(model, weights, folder.path)
            written = sample(model) if sample else task.samples(model, data)
        result = replace(result, samples=tuple(written))
        folder.finish(weights, result.to_dict())
        if folder.adaptation:  # many tasks on one base are to be small on the disk
            with suppress(OSError):
                remove_atomically(folder.checkpoints)
        return result


# Ctrl-C and SIGTERM: ask training to stop after the current step.


SIGNALS = (signal.SIGINT, signal.SIGTERM)
ECHO_SECONDS = 2.0  # seconds in which torchrun may pass on a Ctrl-C that the terminal has sent already


class StopFlag:
    """Whether someone has asked to stop."""

    def __init__(self, echo: float) -> None:
        self.is_set = False
        self._echo, self._when = echo, 0.0

    def handle_signal(self, number: int, frame: FrameType | None) -> None:
        """Note the first signal; a second Ctrl-C ends the program at once."""
        if self.is_set and number == signal.SIGINT and time.monotonic() - self._when >= self._echo:
            raise KeyboardInterrupt
        if not self.is_set:
            self.is_set, self._when = True, time.monotonic()


@contextmanager
def catch_signals(is_distributed: bool = False) -> Iterator[StopFlag]:
    """Listen to Ctrl-C and SIGTERM for a while; signals reach only the main thread."""
    stop = StopFlag(ECHO_SECONDS if is_distributed else 0.0)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop.handle_signal) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# What is written while a model is trained: metrics.jsonl, a tracker, the observer.


class MetricsLog:
    """Writes the rows of a run to metrics.jsonl, a tracker if asked, and an observer; only the first process does."""

    def __init__(self, folder: RunFolder, observer: Observer, processes: Distributed, step: int) -> None:
        self.metrics, self.leads = folder.metrics, processes.is_main
        self.observer = observer if self.leads else SilentObserver()
        # a graph's steps read all of it, so that its few labelled nodes per second say nothing
        task = task_for(folder.spec)
        self.hidden = {"tokens_per_second"} if task.counts != "tokens" else set()
        self.hidden |= set() if task.has_perplexity else {"perplexity"}
        with redirect_stdout(sys.stderr):  # what a tracker has to say is not the result
            self.tracker = open_tracker(folder, step) if self.leads and folder.recipe.tracker else None
        self.observer.start("training", folder.recipe.steps, "steps", step)

    def write(self, row: Mapping[str, float]) -> None:
        """Write a row of metrics; what is infinite or NaN has no place in JSON and is left out."""
        if not self.leads:
            return
        finite = {name: value for name, value in row.items() if math.isfinite(value)}
        self.metrics.append(finite)
        self.observer.report({name: value for name, value in finite.items() if name not in self.hidden})
        if self.tracker:
            self.tracker[0](finite)

    def close(self) -> None:
        """End the observer's phase and the tracker's run."""
        self.observer.finish()
        if self.tracker:
            with redirect_stdout(sys.stderr):
                self.tracker[1]()


# What a run came to.


@dataclass(frozen=True)
class TrainingResult(Result):
    """The figures of a run that is done, stopped early or was interrupted."""

    title = "Training run"

    path: Path
    family: str
    steps: int
    planned_steps: int
    stopped: StopReason
    parameters: int
    """All of the model, trained or not."""
    learned: int
    """Those that are trained; fewer where a base is adapted."""
    tokens: int
    training_loss: float | None
    """Mean loss of the steps since the last row of metrics."""
    validation_loss: float | None
    perplexity: float | None
    """Of the last validation, as the line above."""
    best_loss: float | None
    best_perplexity: float | None
    best_step: int | None
    seconds: float
    """Of the training steps alone, over all sessions of the run."""
    setup_seconds: float
    """Until the first step of this session: building, moving the text, compiling."""
    tokens_per_second: float | None
    data_hash: str
    split_hashes: dict[str, str] = field(default_factory=dict)
    """The hash of each split, where some were given as files of their own."""
    overlaps: tuple[str, ...] = ()
    """How much of a split that was given is in another one too, in words."""
    warnings: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    figures: dict[str, float] = field(default_factory=dict)
    """What else the last validation came to, such as UAS and LAS."""
    best_figures: dict[str, float] = field(default_factory=dict)
    """The same of the best validation."""
    tokenizer_sample: str = ""
    """On how much of the training text the tokenizer was trained, in words, where that is not all of it."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote into a summary."""
        own = {name: values.get(name) for name in cls.__dataclass_fields__ if name != "figures"}
        own |= {"path": Path(str(own["path"])), "best_figures": dict(own["best_figures"] or {})}
        own |= {name: tuple(own[name] or ()) for name in ("warnings", "samples", "overlaps")}
        own |= {"split_hashes": dict(own["split_hashes"] or {}), "tokenizer_sample": own["tokenizer_sample"] or ""}
        figures = {name: value for name, value in values.items() if name not in own and isinstance(value, float)}
        return cls(**own, figures=figures)  # pyright: ignore[reportArgumentType]

    @property
    def task(self) -> Task:
        """The task of its family."""
        return task_of_family(self.family)

    @property
    def interrupted(self) -> bool:
        """Whether it was stopped from outside, and can go on."""
        return self.stopped == "interrupted"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that are good JSON: None for what is infinite or NaN."""
        plain = {**asdict(self), "path": str(self.path), "warnings": list(self.warnings), "samples": list(self.samples)}
        plain |= plain.pop("figures")
        given = {"split_hashes": plain.pop("split_hashes"), "overlaps": list(plain.pop("overlaps"))}
        plain |= given if self.split_hashes else {}
        if not self.tokenizer_sample:
            del plain["tokenizer_sample"]
        if not self.task.has_perplexity:
            del plain["perplexity"], plain["best_perplexity"]
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in plain.items()
        }

    def blocks(self) -> Iterator[Block]:
        """All figures, a line each, and what to type next."""
        task = self.task
        ways = {
            "done": "done",
            "early": "stopped early, since validation no longer improved",
            "asked": "stopped by on_step",
        }
        learned = f", of which {self.learned:,} are trained" if self.learned < self.parameters else ""
        steps = f"{self.steps:,} of {self.planned_steps:,} steps, {ways.get(self.stopped, 'interrupted')}"
        shown = self.tokens_per_second and task.counts == "tokens"  # a graph's steps read all of it, not its few nodes
        speed = f" ({self.tokens_per_second:,.0f} tokens/s)" if shown else ""
        lines = [
            f"{self.family}, {self.parameters:,} parameters{learned}: {steps}",
            f"time        {self.seconds:.1f} s for {self.tokens:,} {task.counts}{speed}, {self.setup_seconds:.1f} s of "
            "set-up",
        ]
        if self.training_loss is not None:
            lines.append(f"training    loss {self.training_loss:.4f} {task.unit}")
        if self.validation_loss is not None:
            lines.append(f"validation  {self._loss(self.validation_loss, self.perplexity)}")
        if self.figures:
            lines.append(f"validation  {', '.join(_figure(name, value) for name, value in self.figures.items())}")
        if self.best_loss is not None:
            best = self._loss(self.best_loss, self.best_perplexity)
            figures = "".join(f", {_figure(name, value)}" for name, value in self.best_figures.items())
            lines.append(f"best        {best}{figures}, at step {self.best_step:,}")
        lines.append(f"data        {self.data_hash}")
        lines += [f"  {split:<10} {own}" for split, own in self.split_hashes.items()]
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

    def _loss(self, loss: float, perplexity: float | None) -> str:
        if self.task.has_perplexity:
            return f"loss {loss:.4f}, perplexity {perplexity:,.2f}"
        return f"loss {loss:.4f} {self.task.unit}"


def _figure(name: str, value: float) -> str:
    """A figure of a validation: shares to three places, percentages to two."""
    shown = name.replace("_at_", "@").replace("_", " ")
    return f"{name.upper()} {value:.2f}" if name in ("uas", "las") else f"{shown} {value:.3f}"
