"""The runner on an experiment without training: storing, retrying, locking and reporting."""

import json
import os
import platform
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from lemma.errors import InputError
from lemma.report.progress import Observer, SilentObserver
from lemma.studies import experiment as experiment_runner
from lemma.studies.cells import CellOutcome, StudyCell, group_rows
from lemma.studies.experiment import Experiment, run_experiment
from lemma.studies.result import StudyResult, StudyTable


@dataclass(frozen=True)
class Square:
    value: float


class Phases(SilentObserver):
    """Observer that records phases and messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        self.messages.append(phase)

    def log(self, message: str) -> None:
        self.messages.append(message)


class Squares(Experiment[Square]):
    """Experiment that squares two numbers with two seeds; `broken` cells fail, `stop` is interrupted."""

    measures_type = Square
    spec = None

    def __init__(self, out: Path, broken: str = "", stop: str = "", factor: int = 1) -> None:
        self.out, self.observer = out, Phases()
        self.broken, self.stop, self.factor, self.done = broken, stop, factor, []

    def cells(self) -> list[StudyCell]:
        return [StudyCell(f"n{number}", {"number": number}, seed) for number in (2, 3) for seed in (1, 2)]

    def identity(self, cell: StudyCell) -> dict[str, Any]:
        return {"cell": cell.name, "factor": self.factor}

    def run(self, cell: StudyCell, observer: Observer) -> Square:
        observer.start("training", 1, "steps")
        if cell.name == self.stop:
            raise KeyboardInterrupt
        if cell.condition == self.broken:
            raise InputError("it broke.")
        self.done.append(cell.name)
        return Square(self.factor * cell.point["number"] ** 2 + (cell.seed or 0))

    def report(self, outcomes: tuple[CellOutcome[Square], ...], interrupted: bool) -> StudyResult:
        rows = group_rows(outcomes)
        cells = [[row.title, str(row.estimate("value"))] for row in rows]
        notes = [note for row in rows for note in row.notes]
        table = StudyTable(["n", "square"], cells, [{"n": row.title} for row in rows], "Squares.", notes)
        return StudyResult("squares", self.out, table, ("Done.",), {}, runs=outcomes, interrupted=interrupted)


NAMES = ["n2-number-2-seed-1", "n2-number-2-seed-2", "n3-number-3-seed-1", "n3-number-3-seed-2"]


def values(result: StudyResult) -> list[float | None]:
    return [run.measures and run.measures.value for run in result.runs]


def test_cells_run_in_order_and_are_stored(tmp_path: Path) -> None:
    experiment = Squares(tmp_path)
    assert values(run_experiment(experiment)) == [5, 6, 10, 11]
    assert experiment.done == NAMES
    assert experiment.observer.messages[0] == "run 1 of 4: n2, number=2, seed 1"
    saved = json.loads((tmp_path / "runs" / f"{NAMES[0]}.json").read_text())
    assert saved.pop("sha256") and saved == {"of": {"cell": NAMES[0], "factor": 1}, "measures": {"value": 5}}
    again = Squares(tmp_path)
    assert values(run_experiment(again)) == [5, 6, 10, 11] and not again.done


def test_damaged_or_foreign_results_are_measured_again(tmp_path: Path) -> None:
    run_experiment(Squares(tmp_path))
    (tmp_path / "runs" / f"{NAMES[1]}.json").write_text('{"of": ')
    (tmp_path / "runs" / f"{NAMES[2]}.json").write_text(json.dumps({"of": {"cell": NAMES[2], "factor": 1}}))
    again = Squares(tmp_path)
    assert values(run_experiment(again)) == [5, 6, 10, 11] and again.done == NAMES[1:3]
    assert values(run_experiment(Squares(tmp_path, factor=2))) == [9, 10, 19, 20]


def test_failed_cell_becomes_a_row_and_is_retried(tmp_path: Path) -> None:
    failed = run_experiment(Squares(tmp_path, broken="n2"))
    assert values(failed) == [None, None, 10, 11] and [run.reason for run in failed.failed] == ["it broke."] * 2
    assert "n2, number=2, seed 1 failed: it broke." in str(failed)
    stored = Squares(tmp_path)
    reasons = [stored.load_outcome(cell).reason for cell in stored.cells()]
    assert reasons == ["it broke.", "it broke.", None, None]
    assert values(run_experiment(Squares(tmp_path))) == [5, 6, 10, 11]


def test_interrupted_study_keeps_finished_runs_and_resumes(tmp_path: Path) -> None:
    stopped = run_experiment(Squares(tmp_path, stop=NAMES[2]))
    assert stopped.interrupted and values(stopped) == [5, 6, None, None]
    assert "Interrupted: the same command goes on where it stopped." in str(stopped)
    assert "n3, number=3, seed 1 not run yet" in (tmp_path / "report.html").read_text()
    again = Squares(tmp_path)
    assert values(run_experiment(again)) == [5, 6, 10, 11] and again.done == NAMES[2:]


def test_cell_held_by_another_process_is_not_run_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment_runner, "LOCK_POLL_SECONDS", 0.01)
    (tmp_path / "runs").mkdir()
    saved = {name: FileLock(tmp_path / "runs" / f".{name}.cell.lock", thread_local=False) for name in NAMES[1:3]}
    for lock in saved.values():
        lock.acquire()

    def finish() -> None:
        results = {"of": {"cell": NAMES[1], "factor": 1}, "measures": {"value": 77}}
        experiment_runner.write_json(tmp_path / "runs" / f"{NAMES[1]}.json", results)
        experiment_runner.write_json(tmp_path / "runs" / f"{NAMES[2]}.json", {"failed": "it broke there."})
        for lock in saved.values():
            lock.release(force=True)

    threading.Timer(0.3, finish).start()
    experiment = Squares(tmp_path)
    result = run_experiment(experiment)
    assert values(result) == [5, 77, None, 11] and experiment.done == [NAMES[0], NAMES[3]]
    assert [run.reason for run in result.failed] == ["it broke there."], "not tried again by a call that saw it fail"
    [waiting] = [message for message in experiment.observer.messages if message.startswith("waiting")]
    assert "n2, number=2, seed 2, n3, number=3, seed 1" in waiting
    assert values(run_experiment(Squares(tmp_path))) == [5, 77, 10, 11], "but by the next"


def test_waiting_call_reports_the_process_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment_runner, "LOCK_POLL_SECONDS", 0.01)
    (tmp_path / "runs").mkdir()
    experiment, lock = Squares(tmp_path), tmp_path / "runs" / ".prepare.lock"
    with experiment_runner.hold_lock(lock, SilentObserver()):
        second = threading.Thread(target=run_experiment, args=(experiment,))
        second.start()
        while not experiment.observer.messages:
            time.sleep(0.01)
        message = experiment.observer.messages[0]
        assert f"process {os.getpid()} on {platform.node()}" in message and str(lock) in message
        assert not experiment.done
    second.join(30)
    assert experiment.done == NAMES and not list((tmp_path / "runs").glob("*.holder"))


def test_interruption_before_the_first_cell_propagates(tmp_path: Path) -> None:
    class Search(Squares):
        def cells(self) -> list[StudyCell]:
            return []

        def prepare(self, cells: object) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(Search(tmp_path))


def test_result_reports_whether_all_runs_failed(tmp_path: Path) -> None:
    class Broken(Squares):
        def run(self, cell: StudyCell, observer: Observer) -> Square:
            raise InputError("it broke.")

    assert run_experiment(Broken(tmp_path / "a")).all_failed
    assert not run_experiment(Squares(tmp_path / "b", broken="n2")).all_failed


def test_unsaved_results_are_measured_by_every_call(tmp_path: Path) -> None:
    for _ in range(2):
        experiment = Squares(tmp_path)
        experiment.stores_measures = False  # pyright: ignore[reportAttributeAccessIssue]
        run_experiment(experiment)
        assert experiment.done == NAMES
    assert not (tmp_path / "runs").exists()
