"""Experiments and their runner: every cell is run once, failures become rows, and a report is made of all.

A study is an `Experiment`: it lists its cells (a condition, a point of the grid, a seed), runs one of them, and makes a
report of all. The runner keeps the measures of a cell as JSON next to the cell's run folder, so that a study that was
stopped is finished by the same call.
"""

import os
import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Generic

from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from lemma.errors import LemmaError, RunError, SpecError, StorageError
from lemma.files import (
    explain_storage_errors,
    read_checked_json,
    remove_atomically,
    write_atomically,
    write_checked_json,
)
from lemma.report.progress import Observer, SilentObserver
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
from lemma.studies.cells import CellOutcome, M, StudyCell
from lemma.studies.result import StudyResult
from lemma.studies.timing import describe_hardware, device_of
from lemma.training.loop import resume, train


class Experiment(ABC, Generic[M]):
    """Base class of studies that can be run: their cells, how one of them is run, and the report on all."""

    measures_type: ClassVar[Any]  # the dataclass of what is measured of a cell
    stores_measures: ClassVar[bool] = True  # on disk; times are measured again by every call
    trial_title: ClassVar[str] = "trial"  # of the runs before its cells, in messages
    serial_reason: ClassVar[str] = ""  # why its cells cannot run next to each other, if so

    spec: Any  # None if it has none
    out: Path
    observer: Observer
    failed_before: Mapping[str, int] = {}  # the `failure_time` of cells when the call began, by name

    @abstractmethod
    def cells(self) -> Sequence[StudyCell]:
        """Return all cells, in the order in which they are run."""

    @abstractmethod
    def run(self, cell: StudyCell, observer: Observer) -> M:
        """Run a cell, or continue it where it was stopped, and return its measures."""

    @abstractmethod
    def report(self, outcomes: tuple[CellOutcome[M], ...], interrupted: bool) -> StudyResult:
        """Build the report on the outcomes of all cells; if the study was interrupted, some have no measures."""

    def prepare(self, cells: Sequence[StudyCell]) -> None:
        """Do the work that all these cells share, such as measuring a speed, before the first of them is run."""

    def trials(self, cells: Sequence[StudyCell]) -> Sequence[StudyCell]:
        """Return cells to run before these, which need their results: trials of learning rates, pretrained bases."""
        return ()

    def check(self, cell: StudyCell) -> None:
        """Raise an error if the cell's folder holds a run of another model, recipe or data."""

    def identity(self, cell: StudyCell) -> Mapping[str, Any] | None:
        """Return values, such as model and recipe, with which stored measures must agree to be used again.

        None means that they are not known yet.
        """
        return None

    def is_finished(self, cell: StudyCell) -> bool:
        """Return whether the cell's run is finished and still on disk."""
        return True

    def is_complete(self, cell: StudyCell, measures: M) -> bool:
        """Return whether stored measures hold everything that the study asks for now."""
        return True

    def path(self, cell: StudyCell) -> Path:
        """Return the folder of the cell's run."""
        return self.out / ("trials" if cell.is_trial else "runs") / cell.name

    def measures_path(self, cell: StudyCell) -> Path:
        """Return the path of the JSON file with the cell's measures, or with the reason of its failure."""
        path = self.path(cell)
        return path.with_name(f"{path.name}.json")

    def load_outcome(self, cell: StudyCell) -> CellOutcome[M]:
        """Return the outcome of a cell from disk: its measures if valid and complete, why it failed, or neither."""
        if not self.stores_measures:
            return CellOutcome(cell)
        stored, identity = read_json(self.measures_path(cell)) or {}, self.identity(cell)
        if identity is not None and stored.get("of") == identity:
            with suppress(KeyError, ValidationError):  # written by another version of Lemma: measured again
                measures = measures_adapter(self.measures_type).validate_python(stored["measures"])
                if self.is_complete(cell, measures):
                    return CellOutcome(cell, measures)
        return CellOutcome(cell, reason=stored.get("failed"))

    def run_cell(self, cell: StudyCell, observer: Observer) -> CellOutcome[M]:
        """Run a cell and store its measures; if it fails, store the reason instead of raising."""
        try:
            measures: Any = self.run(cell, observer)
            if self.stores_measures:
                write_json(self.measures_path(cell), {"of": self.identity(cell), "measures": asdict(measures)})
            return CellOutcome(cell, measures)
        except Exception as error:
            return self.record_failure(cell, describe_error(error), observer)

    def record_failure(self, cell: StudyCell, reason: str, observer: Observer) -> CellOutcome[M]:
        """Store why a cell failed and return that outcome; the next call tries the cell again."""
        if self.stores_measures:
            write_json(self.measures_path(cell), {"failed": reason})
        observer.log(f"failed: {reason}")
        return CellOutcome(cell, reason=reason)

    def final_outcome(self, cell: StudyCell) -> CellOutcome[M] | None:
        """Return the outcome of a cell that was measured, or failed during this call; None if it is still to be run."""
        failed_now = self.failure_time(cell) not in (0, self.failed_before.get(cell.name, 0))
        with suppress(LemmaError):  # a damaged run: running it says what is wrong with it
            outcome = self.load_outcome(cell)
            return outcome if failed_now or (outcome.measures and self.is_finished(cell)) else None
        return None

    def failure_time(self, cell: StudyCell) -> int:
        """Return the modification time in ns of the file that records the cell's failure; 0 if it did not fail."""
        path = self.measures_path(cell)
        return modified_ns(path) if "failed" in (read_json(path) or {}) else 0

    def make_result(
        self, outcomes: tuple[CellOutcome[M], ...], interrupted: bool, device: str, **findings: Any
    ) -> StudyResult:
        """Return a study's result from its spec, the outcomes and `findings`, further fields of `StudyResult`."""
        return StudyResult(
            title=self.spec.name,
            question=self.spec.question,
            spec=self.spec,
            out=self.out,
            hardware=describe_hardware(device),
            runs=outcomes,
            interrupted=interrupted,
            **findings,
        )


@cache
def measures_adapter(measures_type: Any) -> TypeAdapter[Any]:
    """Return the pydantic validator that turns stored values into this class; cached, since it is slow to make."""
    return TypeAdapter(measures_type)


def describe_error(error: Exception) -> str:
    """Return the message of an error, after the name of its class if it is not Lemma's own."""
    return str(error) if isinstance(error, LemmaError) else f"{type(error).__name__}: {error}"


def run_experiment(experiment: Experiment[Any], jobs: int | None = None, on: str | None = None) -> StudyResult:
    """Run all cells of an experiment, save its report in its folder, and return it.

    A finished cell is not repeated and an interrupted one is continued. After Ctrl-C the report shows what there is.
    Several calls on one folder share its cells.

    With `jobs`, cells are run in that many processes, `on` "ray" or "slurm" if not on this machine.
    """
    reason = experiment.serial_reason or ("" if experiment.stores_measures else "its times would disturb each other")
    if reason and (jobs or on):
        raise SpecError(f"study: this study runs in one process, since {reason}. Leave --jobs and --on out.")
    cells = experiment.cells()
    for cell in cells:
        experiment.check(cell)
    open_study_folder(experiment.out)
    if experiment.spec is not None:
        write_atomically(experiment.out / STUDY_FILE, to_toml(experiment.spec.to_dict()))
    runs = experiment.out / "runs"
    if experiment.stores_measures:
        runs.mkdir(exist_ok=True)
    outcomes: dict[str, CellOutcome[Any]] = {}
    interrupted = False
    try:
        with hold_lock(runs / ".prepare.lock", experiment.observer) if experiment.stores_measures else nullcontext():
            experiment.prepare(cells)  # a second process that waited for the lock finds it done
        trials = experiment.trials(cells)
        for cell in trials:
            experiment.check(cell)
        experiment.failed_before = {cell.name: experiment.failure_time(cell) for cell in (*trials, *cells)}
        if jobs is None and on is None:
            run_cells(experiment, trials, outcomes, experiment.trial_title)
            run_cells(experiment, cells, outcomes)
        else:
            from lemma.studies.workers import run_workers  # only where it is asked for

            interrupted = run_workers(experiment, [trials, cells], jobs, on)
    except KeyboardInterrupt:
        interrupted = True
    cells = experiment.cells()  # a search finds its cells on the way
    if interrupted and not cells:
        raise KeyboardInterrupt  # there is nothing to report yet
    result = experiment.report(
        tuple(outcomes.get(cell.name) or experiment.load_outcome(cell) for cell in cells), interrupted
    )
    result.save()
    return result


def open_study_folder(path: Path) -> None:
    """Make the folder of a study, and remove its manifest, since the report will be written again."""
    check_utf8_path(path)
    with explain_storage_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        (path / MANIFEST).unlink(missing_ok=True)


LOCK_POLL_SECONDS = 0.5  # between two looks at whether another process has finished a cell


@contextmanager
def hold_lock(lock_file: Path, observer: Observer) -> Iterator[None]:
    """Hold a study's lock inside the context; if another process holds it, report which one and wait.

    The holder writes its name next to the lock file, which filelock empties whenever a process tries it. A file system
    without locks counts as held.
    """
    lock, holder_file = FileLock(lock_file), lock_file.with_suffix(".holder")
    with suppress(OSError):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            holder = {"process": "?", "host": "another machine", **(read_json(holder_file) or {})}
            observer.log(
                f"waiting for process {holder['process']} on {holder['host']}, which works on this study and holds "
                f"{lock_file} (Ctrl-C to stop waiting)"
            )
            lock.acquire(poll_interval=LOCK_POLL_SECONDS)
    try:
        with suppress(OSError, LemmaError):
            write_json(holder_file, {"process": os.getpid(), "host": platform.node()})
        yield
    finally:
        with suppress(OSError):
            holder_file.unlink(missing_ok=True)
        lock.release()


def run_cells(
    experiment: Experiment[Any],
    cells: Sequence[StudyCell],
    outcomes: dict[str, CellOutcome[Any]],
    title: str = "run",
) -> None:
    """Run every cell that no other process is running, and wait until all cells have an outcome.

    A lock per cell marks who runs it; the system releases it even if that process is killed. A cell that fails during
    the call is not tried again by it.

    Outcomes are added to `outcomes` by the names of cells.
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
                outcome = experiment.final_outcome(cell) if experiment.stores_measures else None
                observer = TitledObserver(experiment.observer, f"{title} {number} of {len(cells)}: {cell}")
                outcomes[cell.name] = outcome or experiment.run_cell(cell, observer)
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
    """Observer that passes everything on, with a title before phases and messages: "run 3 of 12: lstm, seed 1"."""

    def __init__(self, observer: Observer, title: str) -> None:
        self.observer, self.title = observer, title
        self.advance, self.report, self.finish = observer.advance, observer.report, observer.finish

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        """Start a phase whose label begins with the title."""
        self.observer.start(self.title if phase == "training" else f"{self.title}, {phase}", total, unit, done)

    def log(self, message: str) -> None:
        """Log a message that begins with the title."""
        self.observer.log(f"{self.title}: {message}")


def modified_ns(path: Path) -> int:
    """Return the modification time of a file in ns; 0 if it is missing."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object that `write_json` wrote; None if missing or damaged, since it can be made again.

    A file that has not changed since the last read is not read again.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return _read_json(path, status.st_mtime_ns, status.st_size, status.st_ino)


@lru_cache(maxsize=4096)
def _read_json(path: Path, *version: int) -> dict[str, Any] | None:
    """Read a JSON object with a checksum; None if missing or damaged. `version` only extends the cache key."""
    try:
        return read_checked_json(path)
    except (RunError, StorageError):
        return None


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON object with a checksum atomically: readers see the old or the new file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_checked_json(path, values, allow_nan=False)


# Experiments whose cells are training runs.


@dataclass(frozen=True)
class RunPlan:
    """A training run that is ready to start: its folder, model, recipe and data."""

    path: Path
    model: ModelSpec
    recipe: Recipe
    data: AnyDataSpec
    dataset: Any
    evaluate: Callable[[Any], Any] | None = None  # validates the model, if its task does not
    adaptation: AdaptationSpec | None = None
    trial_speed: float | None = None  # tokens/s from which a budget of seconds was turned into steps

    @property
    def identity(self) -> dict[str, Any]:
        """Return model, recipe, data and base of the run; two runs count as the same if these are equal."""
        identity: dict[str, Any] = {
            "model": self.model.to_dict(),
            "recipe": self.recipe.to_dict(),
            "data": self.dataset.hash,
        }
        if not isinstance(self.data, DataSpec):
            identity["labels" if isinstance(self.data, LabelsSpec) else "graph"] = split_settings(self.data)
        if isinstance(self.data, LabelsSpec):
            identity["tokenizer"] = self.dataset.tokenizer.hash
        if self.adaptation:
            identity |= {"method": self.adaptation.method.to_dict(), "base": self.adaptation.base_hash}
        return identity


def split_settings(data: AnyDataSpec) -> dict[str, Any]:
    """Return the settings of a data spec without the name of the data, which a hash identifies: how they are split."""
    return {name: value for name, value in data.to_dict().items() if name not in ("labels", "graph", "nodes_file")}


def check_same_run(plan: RunPlan) -> None:
    """Raise a RunError if the plan's folder holds a run of another model, recipe, data or base, or files of no run."""
    if not is_started(plan.path):
        return
    if plan.path.is_dir() and not (plan.path / SPEC).exists():
        entries = ", ".join(sorted(entry.name for entry in plan.path.iterdir()))
        raise RunError(
            f"{plan.path} is not a run, and this study needs that folder for one: {SPEC} is missing, but it holds "
            f"{entries}. Move that away, or choose another --out."
        )
    folder = RunFolder.open(plan.path)
    for prefix, actual, expected in (
        ("", folder.spec.to_dict(), plan.model.to_dict()),
        ("recipe ", folder.recipe.to_dict(), plan.recipe.to_dict()),
        ("text ", {"hash": folder.data_hash}, {"hash": plan.dataset.hash}),
    ):
        for setting in {**actual, **expected}:
            if actual.get(setting) != expected.get(setting):
                raise RunError(
                    f"{plan.path} holds a run with {prefix}{setting} {actual.get(setting)}, this study asks for "
                    f"{expected.get(setting)}. Choose another --out, or remove that folder."
                )
    difference = ""
    if not isinstance(plan.data, DataSpec) and split_settings(folder.data) != split_settings(plan.data):
        difference = "other labelled texts" if isinstance(plan.data, LabelsSpec) else "another split"
    origins = [origin and (origin.method, origin.base_hash) for origin in (folder.adaptation, plan.adaptation)]
    if not difference and origins[0] != origins[1]:
        difference = "another base or method"
    if difference:
        raise RunError(
            f"{plan.path} holds a run of {difference} than this study asks for. Choose another --out, or remove that "
            "folder."
        )


def train_or_resume(plan: RunPlan, observer: Observer) -> None:
    """Train a run, resume one that was stopped, or do nothing if it is finished."""
    options: dict[str, Any] = {"evaluate": plan.evaluate, "sample": lambda model: [], "observer": observer}
    if not is_started(plan.path):
        remove_unstarted(plan.path)
        options["adaptation"] = plan.adaptation
        result = train(plan.model, plan.recipe, plan.data, plan.dataset, plan.path, **options)
    elif RunFolder.open(plan.path).is_finished:
        return
    else:
        result = resume(plan.path, plan.dataset, **options)
    if result.stopped == "interrupted":
        raise KeyboardInterrupt


class TrainingExperiment(Experiment[M]):
    """Base class of experiments of which every cell is a training run."""

    keeps_checkpoints: ClassVar[bool] = False  # a study of many runs should be small

    @abstractmethod
    def make_plan(self, cell: StudyCell, *inputs: Any) -> RunPlan:
        """Return the plan to train a cell; `inputs` are the values that `plan_inputs` returns for it."""

    @abstractmethod
    def measure(self, run: Run, plan: RunPlan) -> M:
        """Return the measures of a finished run."""

    def plan_inputs(self, cell: StudyCell) -> tuple[Hashable, ...] | None:
        """Return values that a plan depends on besides the cell, such as a measured speed; None if not known yet."""
        return ()

    @cached_property
    def _plans(self) -> dict[Any, RunPlan]:
        """Return the cache of plans, by cell name, is_trial and inputs."""
        return {}

    def plan(self, cell: StudyCell) -> RunPlan | None:
        """Return the plan to train a cell, cached; None while it depends on unfinished work."""
        inputs = self.plan_inputs(cell)
        if inputs is None:
            return None
        key = (cell.name, cell.is_trial, inputs)
        if key not in self._plans:
            self._plans[key] = self.make_plan(cell, *inputs)
        return self._plans[key]

    def run(self, cell: StudyCell, observer: Observer) -> M:
        """Train or resume a cell's run and measure it; checkpoints are removed unless the study keeps them."""
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
        """Raise an error if the cell's folder holds a run of another model, recipe or data."""
        if plan := self.plan(cell):
            check_same_run(plan)

    def identity(self, cell: StudyCell) -> Mapping[str, Any] | None:
        """Return model, recipe, data and base of the cell's run; None if it cannot be planned yet."""
        plan = self.plan(cell)
        return plan and plan.identity

    def is_finished(self, cell: StudyCell) -> bool:
        """Return whether the cell's run is on disk and finished."""
        path = self.path(cell)
        return is_started(path) and RunFolder.open(path).is_finished


def validation_rows(run: Run) -> list[dict[str, Any]]:
    """Return the rows of a run's metrics, values by name, that contain a validation: its learning curve."""
    return [row for row in RunFolder.open(run.path).metrics.rows() if "validation_loss" in row]


def run_study(
    spec: StudySpec, out: Path, observer: Observer | None = None, jobs: int | None = None, on: str | None = None
) -> StudyResult:
    """Run a study in the folder `out`, save its table and report there, and return the result.

    A finished run is not repeated and an interrupted one is continued, so that a study that was stopped is finished by
    the same call. A run that fails becomes a row with its reason, and is tried again by the next call. With `jobs`,
    runs are trained in that many processes, `on` "ray" or "slurm" if not on this machine.
    """
    return run_experiment(open_experiment(spec, out, observer or SilentObserver()), jobs, on)


def open_experiment(spec: StudySpec, out: Path, observer: Observer) -> Experiment[Any]:
    """Build the experiment of a study, whose results go to the folder `out`, and load its data."""
    study: Any = spec
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
            from lemma.studies.classifiers import GraphExperiment as kind
        case HeadsStudy():
            from lemma.studies.costs import HeadsExperiment as kind
        case LengthStudy():
            from lemma.studies.costs import LengthExperiment as kind
        case _:
            raise SpecError(f"study: there is no experiment for a {type(spec).__name__}.")
    return kind(study, out, observer)
