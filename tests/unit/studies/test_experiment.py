import json
import math
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from lemma.data.store import prepare_text
from lemma.data.tokenizers import train_tokenizer
from lemma.errors import DataError, RunError, SpecError
from lemma.generation.sequences import Generation
from lemma.generation.sequences import TextLoop as FoundLoop
from lemma.report.progress import SilentObserver
from lemma.runs.load import load
from lemma.spec.data import BytePairs, Words
from lemma.spec.studies import ComparedModel, GridStudy, StudyBudget
from lemma.studies import experiment, grid
from lemma.studies.cells import CellOutcome
from lemma.studies.experiment import run_study
from lemma.studies.measures import LanguageMeasures, locate_loop
from lemma.studies.result import StudyResult

MakeStudy = Callable[..., GridStudy]


def timeless_measures(result: StudyResult) -> list[dict[str, Any]]:
    """Return the measures of all runs without their times, which differ between runs."""
    timeless = {"seconds": 0.0, "tokens_per_second": 0.0}
    base = [asdict(replace(run.measures, **timeless)) for run in result.runs if run.measures]
    return [{**item, "curve": [[tokens, loss] for tokens, _, loss in item["curve"]]} for item in base]


def never(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("this was not to be called")


def test_study_trains_measures_and_writes_all_files(tiny_study: MakeStudy, tmp_path: Path) -> None:
    spec = tiny_study()
    result = run_study(spec, tmp_path / "out")
    assert not result.failed
    assert not result.interrupted
    assert [row.title for row in result.rows] == ["feed-forward", "rnn"]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    reports = {"study.toml", "report.html", "table.md", "table.csv", "results.json", "manifest.json"}
    assert names == {"runs", "speed.json", *reports}
    saved = json.loads((tmp_path / "out" / "results.json").read_text())
    assert saved["table"]["rows"][0]["perplexity"] == result.records()[0]["perplexity"]
    assert all(len(run.measures.curve) == 3 for run in result.runs if run.measures)


def test_score_is_computed_from_the_saved_weights(tiny_study: MakeStudy, tmp_path: Path) -> None:
    spec = tiny_study(models=(ComparedModel(model="feed-forward", settings={"width": 4, "hidden": 8}),), seeds=(3,))
    (run,) = run_study(spec, tmp_path / "out").runs
    assert run.measures
    trained = load(tmp_path / "out" / "runs" / "feed-forward-seed-3")
    tokens = torch.from_numpy(prepare_text(spec.data).item("validation").astype("int64"))
    with torch.no_grad():
        logits = trained.model(tokens[None, :-1])[0][0]
    loss = torch.nn.functional.cross_entropy(logits, tokens[1:])
    assert run.measures.perplexity == pytest.approx(math.exp(loss), rel=1e-5)
    assert run.measures.parameters == sum(parameter.numel() for parameter in trained.model.parameters())


def test_finished_study_is_not_trained_again(
    tiny_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_study(tiny_study(), tmp_path / "out")
    for module, name in ((experiment, "train"), (experiment, "resume"), (grid, "measure_run")):
        monkeypatch.setattr(module, name, never)
    again = run_study(tiny_study(), tmp_path / "out")
    assert [run.measures for run in again.runs] == [run.measures for run in first.runs]


def test_lost_or_damaged_measures_are_recomputed_without_training(
    tiny_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_study(tiny_study(), tmp_path / "out")
    (tmp_path / "out" / "runs" / "rnn-seed-1.json").write_text('{"of": ')
    (tmp_path / "out" / "runs" / "rnn-seed-2.json").unlink()
    for name in ("train", "resume"):
        monkeypatch.setattr(experiment, name, never)
    assert timeless_measures(run_study(tiny_study(), tmp_path / "out")) == timeless_measures(first)


def test_failed_run_becomes_a_row_and_study_continues(tiny_study: MakeStudy, tmp_path: Path) -> None:
    invalid = ComparedModel(
        model="rnn", name="broken", settings={"learning_rate": 1e30, "clip": 0, "activation": "relu"}
    )
    result = run_study(tiny_study(models=(invalid, ComparedModel(model="gru"))), tmp_path / "out")
    assert [run.cell.condition for run in result.failed] == ["broken", "broken"]
    assert all("step" in (run.reason or "") for run in result.failed)
    assert [row.estimate("perplexity") is None for row in result.rows] == [True, False]
    assert "broken, seed 1 failed" in str(result)


def test_failed_runs_record_the_error_and_are_retried(
    tiny_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(grid, "measure_run", lambda *args: (_ for _ in ()).throw(MemoryError("no room")))
        failed = run_study(tiny_study(), tmp_path / "out")
    assert {run.reason for run in failed.runs} == {"MemoryError: no room"}
    stored = stored_outcomes(tiny_study(), tmp_path / "out")
    assert {outcome.reason for outcome in stored} == {"MemoryError: no room"}
    assert not run_study(tiny_study(), tmp_path / "out").failed


def stored_outcomes(spec: GridStudy, out: Path) -> list[CellOutcome[Any]]:
    """Return the outcomes of each cell that an earlier call stored."""
    study = experiment.open_experiment(spec, out, SilentObserver())
    return [study.load_outcome(cell) for cell in study.cells()]


class Interrupting(SilentObserver):
    """Observer that sends SIGINT after the fourth step of the second run."""

    def __init__(self) -> None:
        self.phases: list[str] = []

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        self.phases.append(f"{phase}, from {done}" if done else phase)

    def advance(self, done: int) -> None:
        if self.phases[-1].startswith("run 2") and done == 4:
            os.kill(os.getpid(), signal.SIGINT)


def test_interrupted_study_resumes_bit_for_bit(tiny_study: MakeStudy, tmp_path: Path) -> None:
    watcher = Interrupting()
    stopped = run_study(tiny_study(), tmp_path / "out", observer=watcher)
    assert stopped.interrupted
    assert [bool(run.measures) for run in stopped.runs] == [True, False, False, False]
    assert "3 of 4 runs are still to be run" in stopped.report.read_text()
    assert [phase for phase in watcher.phases if phase.startswith("run")] == [
        "run 1 of 4: feed-forward, seed 1",
        "run 2 of 4: feed-forward, seed 2",
    ]
    watcher = Interrupting()
    watcher.advance = lambda done: None  # type: ignore[method-assign]
    result = run_study(tiny_study(), tmp_path / "out", observer=watcher)
    assert "run 2 of 4: feed-forward, seed 2, from 4" in watcher.phases
    assert not result.interrupted
    assert timeless_measures(result) == timeless_measures(run_study(tiny_study(), tmp_path / "straight"))


def test_folder_of_another_study_is_refused_before_training(
    tiny_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_study(tiny_study(), tmp_path / "out")
    monkeypatch.setattr(experiment, "train", never)
    other = tiny_study(settings={**tiny_study().settings, "steps": 7}, seeds=(9, 1))
    with pytest.raises(RunError, match=r"feed-forward-seed-1 holds a run with recipe steps 6, this study asks for 7"):
        run_study(other, tmp_path / "out")


def test_every_model_gets_equal_parameters_and_tokens(tiny_study: MakeStudy, tmp_path: Path) -> None:
    models = tuple(ComparedModel(model=name) for name in ("attentive", "gru"))
    words = {"batch": 4, "sequence_length": 8, "device": "cpu"}
    budget = StudyBudget(parameters=3_000, tokens=230)
    result = run_study(tiny_study(models=models, settings=words, budget=budget, seeds=(1,)), tmp_path / "out")
    assert [run.measures.tokens for run in result.runs if run.measures] == [224, 224]
    assert all(abs(run.measures.parameters / 3_000 - 1) < 0.03 for run in result.runs if run.measures)


def test_time_budget_measures_the_speed_once(
    tiny_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"batch": 2, "sequence_length": 4, "device": "cpu"}
    spec = tiny_study(models=(ComparedModel(model="rnn"),), settings=words, budget=StudyBudget(seconds=0.05))
    first = run_study(spec, tmp_path / "out")
    item, other = (run.measures for run in first.runs)
    assert item
    assert other
    assert item.trial_speed == other.trial_speed
    assert item.recipe["steps"] == max(1, math.floor(0.05 * (item.trial_speed or 0) / 8))
    monkeypatch.setattr("lemma.studies.grid.measure_speed", never)
    assert [run.measures for run in run_study(spec, tmp_path / "out").runs] == [item, other]


def test_invalid_studies_are_refused_before_training(tiny_study: MakeStudy, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'Ω'"):
        run_study(tiny_study(prompt="Ω"), tmp_path / "out")
    with pytest.raises(SpecError, match="too little"):
        run_study(tiny_study(models=(ComparedModel(model="rnn"),), budget=StudyBudget(parameters=10)), tmp_path / "out")
    with pytest.raises(SpecError, match="less than one step"):
        run_study(tiny_study(budget=StudyBudget(tokens=3)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_measures_round_trip_through_json(tiny_study: MakeStudy, tmp_path: Path) -> None:
    (run, *_) = run_study(tiny_study(seeds=(1,)), tmp_path / "out").runs
    assert run.measures
    text = json.loads(json.dumps(asdict(run.measures)))
    assert TypeAdapter(LanguageMeasures).validate_python(text) == run.measures


@pytest.mark.parametrize("prompt", ["", "so be"])
def test_loop_is_located_at_word_boundaries(prompt: str) -> None:
    tokenizer = train_tokenizer(Words(), ["so be it or not\n"])
    tokens = tuple(tokenizer.encode("so be it or not it or not it").tolist())
    text = " so be it or not it or not it" if prompt else "so be it or not it or not it"
    output = Generation(prompt, text, tokens, FoundLoop(2, 3, True, "the last token"), "length", 1.0)
    loop = locate_loop(output, tokenizer)
    assert loop
    assert text[: loop.begin].split() == ["so", "be"]
    assert text[loop.begin : loop.end].split() == ["it", "or", "not"]


def test_loop_is_located_at_character_boundaries() -> None:
    tokenizer = train_tokenizer(BytePairs(vocabulary=258), ["ab"])
    tokens = tuple(tokenizer.encode("aé€é€").tolist())
    assert len(tokens) == 1 + 5 + 5, "one token a byte"
    output = Generation("", "aé€é€", tokens, FoundLoop(2, 5, True, "the last token"), "length", 1.0)
    loop = locate_loop(output, tokenizer)
    assert loop
    assert (loop.begin, loop.end) == (1, 3), "the second byte of é belongs to the character before it is whole"


@pytest.mark.parametrize("keep", ["best", "last"])
def test_final_training_score_matches_a_new_evaluation(
    keep: str, tiny_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {**tiny_study().settings, "keep": keep, "learning_rate": 0.3, "steps": 12}
    spec = tiny_study(models=(ComparedModel(model="gru"),), settings=words)
    reused = run_study(spec, tmp_path / "out")
    for file in (tmp_path / "out" / "runs").glob("*.json"):
        file.unlink()
    repeated = run_study(spec, tmp_path / "out")
    assert timeless_measures(repeated) == timeless_measures(reused)
    losses = [[point.loss for point in run.measures.curve] for run in repeated.runs if run.measures]
    assert any(min(curve) < curve[-1] for curve in losses), "else best and last would be the same"


def test_measures_of_another_study_are_ignored(tiny_study: MakeStudy, tmp_path: Path) -> None:
    run_study(tiny_study(models=(ComparedModel(model="rnn"),), seeds=(1,)), tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "runs" / "rnn-seed-1")
    other = tiny_study(settings={**tiny_study().settings, "steps": 7})
    assert not any(outcome.measures for outcome in stored_outcomes(other, tmp_path / "out"))
