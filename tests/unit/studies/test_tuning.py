"""Learning rates chosen by short runs, and cells shared between processes."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lemma.data.store import prepare_text
from lemma.errors import InputError, RunError, SpecError
from lemma.report import result as results
from lemma.report.progress import SilentObserver
from lemma.runs.load import load
from lemma.runs.verify import verify_folder
from lemma.spec.base import to_toml
from lemma.spec.studies import ComparedModel, GridStudy, StudyTuning, read_study
from lemma.studies import experiment, grid, workers
from lemma.studies.experiment import run_study
from lemma.studies.result import StudyResult
from lemma.tasks.language import perplexity

MakeStudy = Callable[..., GridStudy]
RATES = (1e-6, 3e-3)


def tuned_study(tiny_study: MakeStudy, **changes: object) -> GridStudy:
    words = {**tiny_study().settings, "steps": 20, "evaluate_every": 10}
    return tiny_study(settings=words, tune=StudyTuning(learning_rate=RATES, share=0.5), **changes)


def scores(result: StudyResult) -> dict[str, float]:
    return {run.cell.name: run.measures.perplexity for run in result.runs if run.measures}


def test_failed_trial_is_not_chosen(tiny_study: MakeStudy, tmp_path: Path) -> None:
    model = ComparedModel(model="rnn", settings={"clip": 0, "activation": "relu"})
    spec = tuned_study(tiny_study, models=(model,), seeds=(1,))
    invalid = spec.replace(tune={"learning_rate": (1e30, 1e-3), "share": 0.5})
    [run] = run_study(invalid, tmp_path / "some").runs
    assert run.measures and run.measures.recipe["learning_rate"] == 1e-3
    [run] = run_study(spec.replace(tune={"learning_rate": (1e30, 1e31)}), tmp_path / "none").runs
    assert run.reason and run.reason.startswith("no learning rate of tune finished: ")


def test_damaged_files_are_listed_and_damaged_trials_repeated(
    tiny_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "time_steps", lambda models, tokens: {name: [1e-5] * 5 for name in models})
    monkeypatch.setattr(results, "can_draw", lambda: False)
    out = tmp_path / "out"
    spec = tuned_study(tiny_study, models=(ComparedModel(model="rnn"),), seeds=(1,))
    full = scores(run_study(spec, out))
    assert verify_folder(out).right
    trial = out / "trials" / "rnn-learning_rate-0.003-seed-2"
    upper = ["study.toml", "table.md", "table.csv", "results.json", "report.html", "manifest.json", "speed.json"]
    for file in [*(out / name for name in upper), trial.with_name(f"{trial.name}.json"), trial / "spec.toml"]:
        good = file.read_bytes()
        file.write_bytes(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
        wrong = [result for result in verify_folder(out).files if result.state == "damaged"]
        assert [str(out / result.path) for result in wrong] == [str(file)] and str(file) in wrong[0].why
        file.write_bytes(good)
    (trial / "recipe.toml").write_text("steps = 1\n")
    with pytest.raises(RunError, match=r"recipe\.toml"):
        run_study(spec, out)
    assert not (out / "manifest.json").exists(), "what is not finished has no manifest"
    shutil.rmtree(trial)  # the trial is repeated
    assert scores(run_study(spec, out)) == full and verify_folder(out).right


def test_trials_validate_on_first_tokens_and_scores_on_all(
    tiny_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "VALIDATION_TOKENS", 20)
    result = run_study(tuned_study(tiny_study, seeds=(1,)), tmp_path / "out")
    text = prepare_text(result.spec.data).item("validation")
    for run in result.runs:
        model, results = load(tmp_path / "out" / "runs" / run.cell.name, "cpu").model, run.measures
        assert results and results.loss == perplexity(model, text).loss
        assert results.bits_per_byte == perplexity(model, text, bytes=text.bytes).bits_per_byte
        assert min(point.loss for point in results.curve) == perplexity(model, text[:20]).loss != results.loss
    for file in (tmp_path / "out" / "trials").glob("*.json"):
        saved, model = json.loads(file.read_text(encoding="utf-8")), load(file.with_suffix(""), "cpu").model
        assert saved["measures"]["loss"] == perplexity(model, text[:20]).loss
    first_result = run_study(
        tiny_study(validations=1, seeds=(1,), settings={"steps": 4, "batch": 4}), tmp_path / "once"
    )
    for run in first_result.runs:  # validated only at its end, once, on the entire text
        assert run.measures and [point.loss for point in run.measures.curve] == [run.measures.loss]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"tune": [1e-3]}, "at least two rates"),
        ({"tune": [1e-3, 1e-3]}, "at least two rates"),
        ({"tune": [1e-3, 2e-3], "settings.learning_rate": 0.1}, "tune chooses learning_rate"),
        ({"share": 2}, "share"),
    ],
)
def test_invalid_tuning_is_refused(words: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=message):
        run_study(read_study("families", words), tmp_path)


def test_tune_accepts_a_list_of_rates_or_true() -> None:
    settings = {word: read_study("families", {"tune": word}) for word in (True, (1e-3, 2e-3), False)}
    assert [item.tune and item.tune.learning_rate for item in settings.values() if isinstance(item, GridStudy)] == [
        (1e-3, 2e-3, 4e-3),
        (1e-3, 2e-3),
        None,
    ]


# Workers


class RecordingObserver(SilentObserver):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def log(self, message: str) -> None:
        self.messages.append(message)

    def advance(self, done: int) -> None:
        self.done = done


@pytest.fixture(scope="module")
def fast_polling() -> pytest.MonkeyPatch:
    """Poll more often than in a study of hours."""
    patch = pytest.MonkeyPatch()
    patch.setattr(workers, "POLL_SECONDS", 0.05)
    yield patch
    patch.undo()


@pytest.mark.usefixtures("fast_polling")
def test_best_learning_rate_does_not_depend_on_process_count(tiny_study: MakeStudy, tmp_path: Path) -> None:
    spec, observer = tuned_study(tiny_study), RecordingObserver()
    result = run_study(spec, tmp_path / "two", observer, jobs=2)
    trials = {path.stem: json.loads(path.read_text())["measures"] for path in (tmp_path / "two/trials").glob("*.json")}
    assert len(trials) == 4 and all(name.endswith("-seed-3") for name in trials), "a seed that no run has"
    assert {trial["recipe"]["steps"] for trial in trials.values()} == {10}
    for row in result.rows:
        losses = {rate: trials[f"{row.title}-learning_rate-{rate}-seed-3"]["loss"] for rate in RATES}
        assert row.first.recipe["learning_rate"] == min(losses, key=losses.__getitem__) == 3e-3
    output = str(result)
    assert "Learning rates tried" in output and "These tokens come on top of the budget." in " ".join(output.split())
    choice = result.to_dict()["learning_rates"]["rnn"]
    assert choice["rate"] == 3e-3 and choice["tokens"] == 2 * 10 * 4 * 8
    assert "Learning rates tried" in (tmp_path / "two" / "report.html").read_text()
    assert scores(result) == scores(run_study(spec, tmp_path / "one")) and len(scores(result)) == 4
    assert observer.done == 8
    assert any(trial.startswith("trial of rnn, learning_rate=0.003, seed 3") for trial in observer.messages)
    assert not list((tmp_path / "two").glob(".workers*"))


@pytest.mark.usefixtures("fast_polling")
def test_stopped_worker_saves_a_checkpoint_and_study_resumes(
    tiny_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {**tiny_study().settings, "steps": 200, "evaluate_every": 40}
    spec = tiny_study(settings=words, models=(ComparedModel(model="gru"),), seeds=(1,))
    full = scores(run_study(spec, tmp_path / "whole"))
    out = tmp_path / "out"
    (out / "runs").mkdir(parents=True)
    (out / "study.toml").write_text(to_toml(spec.to_dict()))
    order, metrics = out / "order.json", out / "runs" / "gru-seed-1" / "metrics.jsonl"
    messages = {"failed": {}, "folder": str(Path.cwd()), "threads": 1, "parent": None}
    experiment.write_json(order, messages)

    def stop_after_progress(stop: Callable[[], object], known: int) -> None:
        while not metrics.exists() or metrics.stat().st_size == known:
            time.sleep(0.01)
        stop()

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR2)}
    monkeypatch.setattr(os, "kill", lambda process, number: None)  # Ray's workers block SIGINT, which would not arrive
    saved = 0
    try:
        for stop in (lambda: signal.raise_signal(signal.SIGUSR2), order.unlink):
            known = metrics.stat().st_size if metrics.exists() else 0
            threading.Thread(target=stop_after_progress, args=(stop, known), daemon=True).start()
            workers.run_worker(str(order))
            step = max(int(path.name.removeprefix("step-")) for path in (metrics.parent / "checkpoints").iterdir())
            assert saved < step < 200
            saved = step
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert scores(run_study(spec, out)) == full
    workers.run_worker(str(order))  # the order no longer exists: nothing to do


@pytest.mark.usefixtures("fast_polling")
def test_interruption_cancels_workers_and_shows_finished_runs(
    tiny_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class IdleWorkers(workers.LocalWorkers):
        def start(self, order: Path, count: int, threads: int) -> None:
            self.order, self.processes = order, []
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()

        def count_running(self) -> int:
            return int(self.order.exists())

    monkeypatch.setattr(workers, "WORKERS", {None: IdleWorkers})
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore SIGINT
    try:
        stopped = run_study(tiny_study(), tmp_path / "out", jobs=2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert stopped.interrupted and not scores(stopped) and not stopped.failed


@pytest.mark.usefixtures("fast_polling")
def test_worker_failures_are_reported_as_run_failures(
    tiny_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho out of memory >&2\nexit 137\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    observer = RecordingObserver()
    result = run_study(tiny_study(seeds=(1,)), tmp_path / "out", observer, jobs=2)
    assert f"{result.runs[0].cell}: failed: a worker ended with status 137: out of memory" in observer.messages
    assert {run.reason for run in result.runs} == {"a worker ended with status 137: out of memory"}
    monkeypatch.undo()
    assert not run_study(tiny_study(seeds=(1,)), tmp_path / "out").failed


def test_inapplicable_parallel_options_are_refused(tiny_study: MakeStudy, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="Did you mean 'slurm'"):
        run_study(tiny_study(), tmp_path / "a", on="slurmm")
    with pytest.raises(SpecError, match="its times would disturb each other"):
        run_study(read_study("heads", {"d": 8, "T": 4, "heads": [1, 2]}), tmp_path / "b", jobs=2)


@pytest.mark.usefixtures("fast_polling")
def test_slurm_jobs_run_the_cells_through_submitit(
    tiny_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'lemma-lm[slurm]'")
    monkeypatch.setattr(workers.SlurmWorkers, "cluster", "local")
    spec = tiny_study(seeds=(1,))
    assert scores(run_study(spec, tmp_path / "slurm", jobs=1, on="slurm")) == scores(run_study(spec, tmp_path / "one"))


def test_slurm_jobs_have_the_time_limit_of_their_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'lemma-lm[slurm]'")
    for name in ("sbatch", "srun"):
        (tmp_path / name).write_text("#!/bin/sh\necho Submitted batch job 7\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    workers.SlurmWorkers().start(tmp_path / "order.json", 1, 2)
    script = (tmp_path / "slurm" / "7_submission.sh").read_text()
    assert "--cpus-per-task=2" in script and "--time" not in script


def test_missing_sbatch_is_explained(tiny_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'lemma-lm[slurm]'")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="no sbatch on this machine"):
        run_study(tiny_study(), tmp_path / "out", on="slurm")


@pytest.mark.usefixtures("fast_polling")
def test_ray_tasks_run_the_cells(tiny_study: MakeStudy, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'lemma-lm[ray]'")
    spec = tiny_study(seeds=(1,))
    try:
        result = scores(run_study(spec, tmp_path / "ray", jobs=2, on="ray"))
    finally:
        ray.shutdown()
    assert result == scores(run_study(spec, tmp_path / "one"))


def test_threads_are_divided_between_processes(
    tiny_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = []

    class RecordingWorkers(workers.LocalWorkers):
        def start(self, order: Path, count: int, threads: int) -> None:
            orders.append((count, threads, json.loads(order.read_text())["threads"]))
            super().start(order, 0, threads)

    monkeypatch.setattr(workers.torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(workers, "WORKERS", {None: RecordingWorkers})
    run_study(tiny_study(), tmp_path / "out", jobs=3)
    run_study(tiny_study(), tmp_path / "out", jobs=16)
    assert orders == [(3, 2, 2), (4, 2, 2)]


def test_each_process_gets_one_visible_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str | None] = []

    class Process:
        returncode = 0

        def __init__(self, command: list[str], env: dict[str, str], **options: object) -> None:
            started.append(env.get("CUDA_VISIBLE_DEVICES"))

    monkeypatch.setattr(workers.subprocess, "Popen", Process)
    for visible, count, expected in (
        (None, 0, [None] * 3),
        (None, 2, ["0", "1", "0"]),
        ("3, GPU-8932f937", 2, ["3", "GPU-8932f937", "3"]),
        ("5", 1, ["5"] * 3),
        ("", 0, [""] * 3),
        ("1,9", 1, ["1"] * 3),  # CUDA ignores the GPUs after one that does not exist
    ):
        started.clear()
        monkeypatch.setattr(workers.torch.cuda, "device_count", lambda count=count: count)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        workers.LocalWorkers().start(tmp_path / "order.json", 3, 1)
        assert started == expected


def test_cluster_tasks_use_their_allocated_cores(
    tiny_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = []

    class RecordingWorkers(workers.LocalWorkers):
        def start(self, order: Path, count: int, threads: int) -> None:
            orders.append((count, json.loads(order.read_text())["threads"]))
            super().start(order, 0, threads)

    monkeypatch.setattr(workers.torch, "get_num_threads", lambda: 1)  # threads of the submitting machine
    monkeypatch.setattr(workers, "WORKERS", {"slurm": RecordingWorkers})
    run_study(tiny_study(), tmp_path / "out", on="slurm")
    assert orders == [(4, None)]
    monkeypatch.setattr(workers.os, "sched_getaffinity", lambda process: set(range(16)))
    for name in ("SLURM_CPUS_PER_TASK", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert workers.allocated_threads() == 16
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert workers.allocated_threads() == 3
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "8")
    assert workers.allocated_threads() == 8
