"""Experiments and their runner: cells that are run once whatever happens in between, failures as rows, a report.

A study is an `Experiment`: it lists its cells (a model or condition, a place in the grid, a seed), runs one of them,
and makes a report of all. The runner keeps what was measured of a cell as JSON next to the cell's run folder, so that
a study that was stopped is finished by the same call.
"""

import json
import os
import platform
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from lemma.errors import LemmaError, RunError, SpecError, StorageError, describe_unknown
from lemma.files import (
    explain_storage_errors,
    read_checked_json,
    remove_atomically,
    with_checksum,
    write_atomically,
)
from lemma.report.progress import Observer, SilentObserver
from lemma.report.statistics import MIN_SEEDS, Estimate, PairedTest, estimate, paired_test
from lemma.runs.checkpoint import MANIFEST
from lemma.runs.folder import SPEC, RunFolder, check_utf8_path, is_started, remove_unstarted
from lemma.runs.load import Run, load
from lemma.runs.verify import STUDY_FILE
from lemma.spec.base import to_toml
from lemma.spec.data import AnyDataSpec, DataSpec, LabelsSpec
from lemma.spec.models import ModelSpec
from lemma.spec.recipe import AdaptationSpec, Recipe
from lemma.spec.studies import (
    ClassifiersStudy,
    GraphStudy,
    GridStudy,
    HeadsStudy,
    LengthStudy,
    PretrainingStudy,
    StudySpec,
    TuneStudy,
)
from lemma.studies.budget import device_of
from lemma.studies.result import StudyResult
from lemma.training.loop import resume, train


@dataclass(frozen=True)
class StudyCell:
    """One run of a study: which model or condition, where in the grid, with which seed."""

    condition: str
    """The model or condition that is compared, by its name in the table."""
    point: Mapping[str, Any]
    """The grid settings of this cell and their values, as the study writes them."""
    seed: int | None
    model: ModelSpec | None = None
    recipe: Recipe = field(default_factory=Recipe)
    fixed_sizes: frozenset[str] = frozenset()
    """Settings of the model that the study sets itself, so that no budget may change them."""
    recipe_settings: frozenset[str] = frozenset()
    """Settings of the recipe that the study sets itself."""
    is_trial: bool = False
    """Whether it is a short run by which a setting of others is chosen, and is not in the table."""

    @property
    def row_name(self) -> str:
        """The name of its row, which all its seeds share: `lstm-depth-2`."""
        parts = [self.condition, *(f"{word}-{format_value(value)}" for word, value in self.point.items())]
        return "-".join(re.sub(r"[^\w.]+", "-", part).strip("-.") for part in parts)

    @property
    def name(self) -> str:
        """A stable, readable name for the run's folder: `lstm-depth-2-seed-1`."""
        return self.row_name if self.seed is None else f"{self.row_name}-seed-{self.seed}"

    @property
    def point_text(self) -> str:
        """Its place in the grid: `depth=2, context=5`."""
        return format_settings(self.point)

    def __str__(self) -> str:
        seed = "" if self.seed is None else f"seed {self.seed}"
        return ", ".join(filter(None, (self.condition, self.point_text, seed)))


def format_value(value: Any) -> str:
    """Write a grid value as a person would.

    >>> format_value(True), format_value(0.001)
    ('true', '0.001')
    """
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def format_settings(point: Mapping[str, Any]) -> str:
    """Settings with their values.

    >>> format_settings({"depth": 2, "tied": True})
    'depth=2, tied=true'
    """
    return ", ".join(f"{word}={format_value(value)}" for word, value in point.items())


@cache
def measures_adapter(measures_type: Any) -> TypeAdapter[Any]:
    """What reads measures of a class; it takes longer to make than to use."""
    return TypeAdapter(measures_type)


M = TypeVar("M")
"""What is measured of a cell: a dataclass with a `to_dict()`."""


@dataclass(frozen=True)
class CellOutcome(Generic[M]):
    """What a cell came to: measures, or the reason why there are none, or neither if it was not run yet."""

    cell: StudyCell
    measures: M | None = None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "run": self.cell.name,
            "model": self.cell.condition,
            "point": dict(self.cell.point),
            "seed": self.cell.seed,
            "measures": getattr(self.measures, "to_dict", lambda: None)(),
            "reason": self.reason,
        }


@dataclass(frozen=True)
class StudyRow(Generic[M]):
    """What the seeds of one model or condition at one place of the grid came to."""

    condition: str
    point: Mapping[str, Any]
    title: str
    """What distinguishes it from the other rows: the condition, its place in the grid, or both."""
    measures: Mapping[int, M]
    """By their seeds."""
    failures: Mapping[int, str]
    """Why seeds failed."""
    pending: tuple[int, ...] = ()
    """The seeds that were not run yet."""

    @property
    def first(self) -> M | None:
        """What the first seed came to."""
        return next(iter(self.measures.values()), None)

    @property
    def missing_seeds(self) -> tuple[str, ...]:
        """Why seeds are missing, in words."""
        failed = (f"seed {seed} failed: {reason}" for seed, reason in self.failures.items())
        return (*failed, *(f"seed {seed} not run yet" for seed in self.pending))

    @property
    def notes(self) -> tuple[str, ...]:
        """The same, each with the row's title."""
        return tuple(f"{self.title}, {note}" for note in self.missing_seeds)

    def values(self, name: str) -> dict[int, float]:
        """Something measured, by the seeds that have it."""
        found = {seed: getattr(one, name) for seed, one in self.measures.items()}
        return {seed: float(value) for seed, value in found.items() if value is not None}

    def estimate(self, name: str) -> Estimate | None:
        """The mean of something measured with its interval over the seeds; None if no seed has it."""
        values = list(self.values(name).values())
        return estimate(values) if values else None

    def count(self, name: str) -> int | None:
        """Something that is the same for every seed."""
        return None if self.first is None else int(getattr(self.first, name))


def group_rows(outcomes: Iterable[CellOutcome[M]]) -> list[StudyRow[M]]:
    """Put the seeds of each condition at each place together, in the order in which they first come."""
    groups: dict[tuple[str, str], list[CellOutcome[M]]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.cell.condition, outcome.cell.point_text), []).append(outcome)
    several = len({condition for condition, _ in groups}) > 1
    rows = []
    for group in groups.values():
        cell = group[0].cell
        named = [cell.condition] if several or not cell.point else []
        by_seed = {outcome.cell.seed or 0: outcome for outcome in group}
        rows.append(
            StudyRow(
                condition=cell.condition,
                point=cell.point,
                title=", ".join(filter(None, [*named, cell.point_text])),
                measures={seed: one.measures for seed, one in by_seed.items() if one.measures},
                failures={seed: one.reason for seed, one in by_seed.items() if one.reason and not one.measures},
                pending=tuple(seed for seed, one in by_seed.items() if not one.reason and not one.measures),
            )
        )
    return rows


def compare_rows(
    row: StudyRow[Any], baseline: StudyRow[Any], name: str, log: bool = True, min_error: float = 0.0
) -> PairedTest | None:
    """One row's figure against another's, over the seeds that both have; None if there are none.

    A seed fixes the order of the batches and the numbers that initial weights are drawn from, for both alike; what it
    does to both cancels in the difference.
    """
    mine, theirs = row.values(name), baseline.values(name)
    both = sorted(mine.keys() & theirs.keys())
    figures = [[values[seed] for seed in both] for values in (mine, theirs)]
    return paired_test(figures[0], figures[1], log, min_error) if both else None


def describe_seeds(rows: Sequence[StudyRow[Any]]) -> str:
    """What ± means in a table of these rows; empty if no seed came to its end."""
    counts = {len(row.measures) for row in rows if row.measures}
    words = ""
    if counts and max(counts) >= MIN_SEEDS:
        seeds = f"{max(counts)} seeds" if len(counts) == 1 else f"up to {max(counts)} seeds"
        words = f" Mean ± half the 95 % interval over {seeds} (Student's t)."
    if 2 in counts:
        words += " Two seeds are shown as they are, a / b: too few for an interval or a test."
    single = " A figure without ± comes from one seed, which has no interval."
    return words + (single if counts and min(counts) == 1 else "")


class Experiment(ABC, Generic[M]):
    """A study that can be run: its cells, how one of them is run, and the report on all."""

    measures_type: ClassVar[Any]
    """The class of what is measured of a cell."""
    stores_measures: ClassVar[bool] = True
    """Whether measures are kept on disk; times are measured again by every call."""
    tolerates_failures: ClassVar[bool] = True
    """Whether a cell that fails becomes a row with its reason; otherwise the error goes to the caller."""
    serial_reason: ClassVar[str] = ""
    """Why its cells cannot run next to each other, if so."""

    spec: Any
    """The study's spec; None if it has none."""
    out: Path
    observer: Observer

    @abstractmethod
    def cells(self) -> Sequence[StudyCell]:
        """All cells, in the order in which they are run."""

    @abstractmethod
    def run(self, cell: StudyCell, observer: Observer) -> M:
        """Run one cell to its end, or go on where it was stopped, and measure it."""

    @abstractmethod
    def report(self, outcomes: tuple[CellOutcome[M], ...], interrupted: bool) -> StudyResult:
        """What all outcomes show; some are missing if the study was interrupted."""

    def prepare(self, cells: Sequence[StudyCell]) -> None:
        """Do the work that these cells need, before the first of them is run."""

    def trials(self, cells: Sequence[StudyCell]) -> Sequence[StudyCell]:
        """Short runs that come before these cells, by which settings of theirs are chosen."""
        return ()

    def check(self, cell: StudyCell) -> None:
        """Refuse a folder that holds something else than this cell."""

    def identity(self, cell: StudyCell) -> Mapping[str, Any] | None:
        """What makes two runs of a cell the same; None if that is not known yet."""
        return None

    def is_finished(self, cell: StudyCell) -> bool:
        """Whether what measures were taken of is still there."""
        return True

    def is_complete(self, cell: StudyCell, measures: M) -> bool:
        """Whether measures that were kept hold all that the study asks for by now."""
        return True

    def path(self, cell: StudyCell) -> Path:
        """The cell's run folder; its measures are kept in a JSON file next to it."""
        return self.out / ("trials" if cell.is_trial else "runs") / cell.name

    def load_measures(self, cell: StudyCell) -> M | None:
        """What an earlier call measured of the same cell, if it is readable and complete."""
        identity = self.identity(cell) if self.stores_measures else None
        kept = read_json(self.measures_path(cell)) if identity is not None else None
        if not kept or kept.get("of") != identity:
            return None
        try:
            measures = measures_adapter(self.measures_type).validate_python(kept["measures"])
        except (KeyError, ValidationError):  # written by another version of Lemma: measured again
            return None
        return measures if self.is_complete(cell, measures) else None

    def load_outcome(self, cell: StudyCell) -> CellOutcome[M]:
        """What there is of a cell that is not run now."""
        measures = self.load_measures(cell)
        failed = (
            (read_json(self.measures_path(cell)) or {}).get("failed")
            if self.stores_measures and measures is None
            else None
        )
        return CellOutcome(cell, measures, failed)

    def run_cell(self, cell: StudyCell, observer: Observer) -> CellOutcome[M]:
        """Bring a cell to its end; if it fails, keep the reason, and let the study go on."""
        try:
            measures: Any = self.run(cell, observer)
            if self.stores_measures:
                write_json(self.measures_path(cell), {"of": self.identity(cell), "measures": measures.to_dict()})
            return CellOutcome(cell, measures)
        except Exception as error:
            if not self.tolerates_failures:
                raise
            reason = str(error) if isinstance(error, LemmaError) else f"{type(error).__name__}: {error}"
            return self.record_failure(cell, reason, observer)

    def record_failure(self, cell: StudyCell, reason: str, observer: Observer) -> CellOutcome[M]:
        """Keep why a cell failed; the next call tries it again."""
        if self.stores_measures:
            write_json(self.measures_path(cell), {"failed": reason})
        observer.log(f"failed: {reason}")
        return CellOutcome(cell, reason=reason)

    def measures_path(self, cell: StudyCell) -> Path:
        """Where its measures are kept, or the reason why it has none."""
        path = self.path(cell)
        return path.with_name(f"{path.name}.json")

    def final_outcome(self, cell: StudyCell, failed_before: Mapping[str, int]) -> CellOutcome[M] | None:
        """What became of a cell if it is over: it was measured, or failed at another time than `failed` says."""
        again = self.failure_time(cell) not in (0, failed_before.get(cell.name, 0))
        with suppress(LemmaError):  # a damaged run: to try it is to say what is wrong with it
            found = self.load_outcome(cell)
            return found if again or (found.measures and self.is_finished(cell)) else None
        return None

    def failure_time(self, cell: StudyCell) -> int:
        """When the cell failed, in nanoseconds of its file's clock; 0 if it did not."""
        return modified_ns(self.measures_path(cell)) if "failed" in (read_json(self.measures_path(cell)) or {}) else 0


def run_experiment(
    experiment: Experiment[Any], only: Collection[str] | None = None, jobs: int | None = None, on: str | None = None
) -> StudyResult:
    """Run all cells of an experiment, save its report in its folder, and return it.

    A finished cell is not repeated and an interrupted one goes on. After Ctrl-C the report shows what there is. `only`
    names the conditions or runs to train now; of the others what is there is shown. With `jobs` cells run in that many
    processes, `on` this machine, a Ray cluster or Slurm. Several calls on one folder share its cells.
    """
    alone = experiment.serial_reason or ("" if experiment.stores_measures else "its times would disturb each other")
    if alone and (jobs or on):
        raise SpecError(f"study: this study runs in one process, since {alone}. Leave --jobs and --on out.")
    cells = experiment.cells()
    names = {name: None for cell in cells for name in (cell.condition, cell.name)}
    for name in only or ():
        if name not in names:
            raise SpecError(describe_unknown("only", name, names))
    chosen = [cell for cell in cells if only is None or {cell.condition, cell.name} & set(only)]
    for cell in cells:
        experiment.check(cell)
    check_utf8_path(experiment.out)
    with explain_storage_errors(experiment.out):
        experiment.out.mkdir(parents=True, exist_ok=True)
        (experiment.out / MANIFEST).unlink(missing_ok=True)  # the report that it has checksums of is written again
    if experiment.spec is not None:
        write_atomically(experiment.out / STUDY_FILE, to_toml(experiment.spec.to_dict()))
    runs = experiment.out / "runs"
    if experiment.stores_measures:
        runs.mkdir(exist_ok=True)
    done: dict[str, CellOutcome[Any]] = {}
    interrupted = False
    try:
        with hold_lock(runs / ".prepare.lock", experiment.observer) if experiment.stores_measures else nullcontext():
            experiment.prepare(chosen)  # who comes second finds it done
        stages = [list(experiment.trials(chosen)), chosen]
        for cell in stages[0]:
            experiment.check(cell)
        failed = {cell.name: experiment.failure_time(cell) for stage in stages for cell in stage}
        if jobs is None and on is None:
            for title, stage in zip(("trial", "run"), stages, strict=True):
                run_cells(experiment, stage, failed, done, title)
        else:
            from lemma.studies.workers import run_workers  # only where it is asked for

            interrupted = run_workers(experiment, stages, failed, jobs, on)
    except KeyboardInterrupt:
        interrupted = True
    cells = experiment.cells()  # a search finds its cells on the way
    if interrupted and not cells:
        raise KeyboardInterrupt  # there is nothing to report yet
    outcomes = tuple(done.get(cell.name) or experiment.load_outcome(cell) for cell in cells)
    result = experiment.report(outcomes, interrupted)
    result.save()
    return result


LOCK_POLL_SECONDS = 0.5  # seconds until it is asked again whether another process has finished a cell


@contextmanager
def hold_lock(lock_file: Path, observer: Observer) -> Iterator[None]:
    """Hold a lock of a study; if another process holds it, say which and wait for it.

    The holder writes its name next to the lock file, which filelock empties whenever a process tries it. A file system
    without locks counts as held.
    """
    lock, holder = FileLock(lock_file), lock_file.with_suffix(".holder")
    with suppress(OSError):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            other = {"process": "?", "host": "another machine", **(read_json(holder) or {})}
            name = f"process {other['process']} on {other['host']}"
            observer.log(
                f"waiting for {name}, which works on this study and holds {lock_file} (Ctrl-C to stop waiting)"
            )
            lock.acquire(poll_interval=LOCK_POLL_SECONDS)
    try:
        with suppress(OSError, LemmaError):
            write_json(holder, {"process": os.getpid(), "host": platform.node()})
        yield
    finally:
        with suppress(OSError):
            holder.unlink(missing_ok=True)
        lock.release()


def run_cells(
    experiment: Experiment[Any],
    cells: Sequence[StudyCell],
    failed_before: Mapping[str, int],
    outcomes: dict[str, CellOutcome[Any]],
    title: str = "run",
) -> None:
    """Run each cell that no other process is running, until all are `done`, here or elsewhere.

    A lock per cell says who runs it; the system releases it even if that process is killed. A cell that failed after
    the call began, at another time than `failed` says, is not tried again by it.
    """
    waiting = dict(enumerate(cells, start=1))
    reported = False
    while waiting:
        for number, cell in list(waiting.items()):
            lock = FileLock(experiment.path(cell).with_name(f".{cell.name}.cell.lock"), blocking=False)
            if experiment.stores_measures:
                Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
                try:
                    lock.acquire()
                except Timeout:
                    continue
                except OSError:  # a file system without locks: other calls are not seen
                    pass
            try:
                over = experiment.final_outcome(cell, failed_before) if experiment.stores_measures else None
                observer = TitledObserver(experiment.observer, f"{title} {number} of {len(cells)}: {cell}")
                outcomes[cell.name] = over or experiment.run_cell(cell, observer)
                del waiting[number]
            finally:
                lock.release()
        if waiting:
            if not reported:
                names = ", ".join(str(cell) for cell in waiting.values())
                experiment.observer.log(f"waiting for other processes, which train {names} (Ctrl-C to stop waiting)")
                reported = True
            time.sleep(LOCK_POLL_SECONDS)


class TitledObserver(Observer):
    """Passes everything on to an observer, with the run's name before each phase: "run 3 of 12: lstm, seed 1"."""

    def __init__(self, observer: Observer, title: str) -> None:
        self.observer, self.title = observer, title
        self.advance, self.report, self.finish = observer.advance, observer.report, observer.finish

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        """A phase of the run begins."""
        self.observer.start(self.title if phase == "training" else f"{self.title}, {phase}", total, unit, done)

    def log(self, message: str) -> None:
        """Something worth reading has happened in this run."""
        self.observer.log(f"{self.title}: {message}")


def modified_ns(path: Path) -> int:
    """When a file was written last, in nanoseconds of its own clock; 0 if it is missing."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if the file is missing or damaged, for all that is kept can be made again."""
    try:
        return read_checked_json(path)
    except (RunError, StorageError):
        return None


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON object atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(with_checksum(values), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


# Experiments whose cells are training runs.


@dataclass(frozen=True)
class RunPlan:
    """A training run that is ready to start: the model, the recipe, the data and the folder."""

    path: Path
    model: ModelSpec
    recipe: Recipe
    data: AnyDataSpec
    dataset: Any
    evaluate: Callable[[Any], Any] | None = None
    """What validates it, if that is not its task."""
    adaptation: AdaptationSpec | None = None
    trial_speed: float | None = None
    """Tokens/s in the trial from which a budget of seconds was turned into steps."""

    @property
    def identity(self) -> dict[str, Any]:
        """What makes two runs the same: the model, the recipe, the data and what it was adapted from."""
        same: dict[str, Any] = {"model": self.model.to_dict(), "recipe": self.recipe.to_dict()}
        same["data"] = self.dataset.hash
        if not isinstance(self.data, DataSpec):
            same["labels" if isinstance(self.data, LabelsSpec) else "graph"] = split_settings(self.data)
        if isinstance(self.data, LabelsSpec):
            same["tokenizer"] = self.dataset.tokenizer.hash
        if self.adaptation:
            same |= {"method": self.adaptation.method.to_dict(), "base": self.adaptation.base_hash}
        return same


def split_settings(data: AnyDataSpec) -> dict[str, Any]:
    """How the data are divided; which data they are, their hash says."""
    return {name: value for name, value in data.to_dict().items() if name not in ("labels", "graph", "nodes_file")}


def check_same_run(plan: RunPlan) -> None:
    """Refuse a folder that holds a run of another model, recipe, data or base, or that is not a run."""
    if not is_started(plan.path):
        return
    if plan.path.is_dir() and not (plan.path / SPEC).exists():
        found = ", ".join(sorted(entry.name for entry in plan.path.iterdir()))
        raise RunError(
            f"{plan.path} is not a run, and this study needs that folder for one: {SPEC} is missing, but it holds "
            f"{found}. Move that away, or choose another --out."
        )
    held = RunFolder.open(plan.path)
    for where, got, asked in (
        ("", held.spec.to_dict(), plan.model.to_dict()),
        ("recipe ", held.recipe.to_dict(), plan.recipe.to_dict()),
        ("text ", {"hash": held.data_hash}, {"hash": plan.dataset.hash}),
    ):
        if word := next((word for word in {**got, **asked} if got.get(word) != asked.get(word)), None):
            raise RunError(
                f"{plan.path} holds a run with {where}{word} {got.get(word)}, this study asks for {asked.get(word)}. "
                "Choose another --out, or remove that folder."
            )
    other = ""
    if not isinstance(plan.data, DataSpec) and split_settings(held.data) != split_settings(plan.data):
        other = "other labelled texts" if isinstance(plan.data, LabelsSpec) else "another split"
    origins = [one and (one.method, one.base_hash) for one in (held.adaptation, plan.adaptation)]
    if not other and origins[0] != origins[1]:
        other = "another base or method"
    if other:
        raise RunError(
            f"{plan.path} holds a run of {other} than this study asks for. Choose another --out, or remove that folder."
        )


def train_or_resume(plan: RunPlan, observer: Observer) -> None:
    """Train a run, go on with one that was stopped, or leave a finished one as it is."""
    given: dict[str, Any] = {"evaluate": plan.evaluate, "sample": lambda model: [], "observer": observer}
    if not is_started(plan.path):
        remove_unstarted(plan.path)
        given["adaptation"] = plan.adaptation
        result = train(plan.model, plan.recipe, plan.data, plan.dataset, plan.path, **given)
    elif RunFolder.open(plan.path).is_finished:
        return
    else:
        result = resume(plan.path, plan.dataset, **given)
    if result.stopped == "interrupted":
        raise KeyboardInterrupt


class TrainingExperiment(Experiment[M]):
    """An experiment of which every cell is a training run."""

    keeps_checkpoints: ClassVar[bool] = False
    """Whether finished runs keep their checkpoints; a study of many runs should be small."""

    @abstractmethod
    def plan(self, cell: StudyCell) -> RunPlan | None:
        """The run of a cell; None if it depends on work that is not done yet."""

    @abstractmethod
    def measure(self, run: Run, plan: RunPlan) -> M:
        """Measure a finished run."""

    def run(self, cell: StudyCell, observer: Observer) -> M:
        """Train the cell's run to its end, and measure it."""
        plan = self.plan(cell)
        assert plan is not None
        check_same_run(plan)
        train_or_resume(plan, observer)
        run = load(plan.path, device_of(plan.recipe))
        if run.note:  # the weights are not those that the run ended with
            raise RunError(run.note)
        measures = self.measure(run, plan)
        if not self.keeps_checkpoints:
            with suppress(OSError):
                remove_atomically(RunFolder.open(plan.path).checkpoints)
        return measures

    def check(self, cell: StudyCell) -> None:
        """Refuse a folder that holds another run."""
        if plan := self.plan(cell):
            check_same_run(plan)

    def identity(self, cell: StudyCell) -> Mapping[str, Any] | None:
        """The model, the recipe, the data and the base of its run."""
        plan = self.plan(cell)
        return plan and plan.identity

    def is_finished(self, cell: StudyCell) -> bool:
        """Whether its run is there and finished."""
        path = self.path(cell)
        return is_started(path) and RunFolder.open(path).is_finished


def validation_rows(run: Run) -> list[dict[str, Any]]:
    """The rows of a run's metrics that hold a validation: the points of its learning curve."""
    return [row for row in RunFolder.open(run.path).metrics.rows() if "validation_loss" in row]


def run_study(
    spec: StudySpec,
    out: Path,
    observer: Observer | None = None,
    only: Collection[str] | None = None,
    jobs: int | None = None,
    on: str | None = None,
) -> StudyResult:
    """Run a study in the folder `out`, save its table and report there, and return what it came to.

    A finished run is not repeated and an interrupted one goes on, so that a study that was stopped is finished by the
    same call. A run that fails becomes a row with its reason, and is tried again by the next call. `only` names the
    models or runs to train now; of the others what is there is shown. With `jobs`, runs are trained in that many
    processes, `on` "ray" or "slurm" if not on this machine.
    """
    return run_experiment(open_experiment(spec, out, observer or SilentObserver()), only, jobs, on)


def open_experiment(spec: StudySpec, out: Path, observer: Observer) -> Experiment[Any]:
    """The experiment of a study in the folder `out`, its data loaded."""
    given: Any = spec
    match spec:  # each is imported when it is used
        case TuneStudy():
            from lemma.studies.grid import TuneExperiment as kind
        case GridStudy():
            from lemma.studies.grid import GridExperiment as kind
        case ClassifiersStudy():
            from lemma.studies.classifiers import ClassifiersExperiment as kind
        case PretrainingStudy():
            from lemma.studies.pretraining import PretrainingExperiment as kind
        case GraphStudy():
            from lemma.studies.graph import GraphExperiment as kind
        case HeadsStudy():
            from lemma.studies.costs import HeadsExperiment as kind
        case LengthStudy():
            from lemma.studies.costs import LengthExperiment as kind
        case _:
            raise SpecError(f"study: there is no experiment for a {type(spec).__name__}.")
    return kind(given, out, observer)
