"""Studies of classifiers: settings, verdicts on fake outcomes, statistics, and small studies that run."""

import csv
import json
import math
import os
import signal
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import accuracy_score, precision_recall_fscore_support
from torch import nn

from labelled_tables import label_row, random_texts, write_table
from lemma.data.labels import prepare_labels
from lemma.errors import LemmaError, RunError, SpecError
from lemma.models.base import count_parameters
from lemma.models.build import build
from lemma.report import result as report
from lemma.report.curves import can_draw
from lemma.report.progress import SilentObserver
from lemma.report.statistics import Estimate
from lemma.report.text import format_table
from lemma.runs.load import load
from lemma.spec.base import to_toml
from lemma.spec.models import Classifier, Gru, Lstm
from lemma.spec.studies import STUDIES, ClassifiersStudy, LabelStudy, read_study
from lemma.studies import classifiers, experiment
from lemma.studies.cells import compare_rows
from lemma.studies.claims import CheaperClaim, CostRatio, judge_equivalence
from lemma.studies.classifiers import (
    compare_with_first,
    count_layer_parameters,
    estimate_difference_over_texts,
    make_table,
)
from lemma.studies.experiment import run_study
from lemma.studies.result import StudyResult

Make = Callable[..., ClassifiersStudy]
TINY = {"width": 6, "hidden": 8, "steps": 12, "batch": 8, "device": "cpu", "learning_rate": 0.02}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(report, "can_draw", lambda: False)  # drawing takes longer than these studies
    table = write_table(tmp_path / "texts.csv", random_texts(60))

    def make(**changes: Any) -> ClassifiersStudy:
        words = {"name": "small", "labels": str(table), "tokenizer": "words", "settings": TINY, "seeds": (1, 2)}
        return ClassifiersStudy(**{**words, "validations": 2, "repetitions": 2, **changes})

    return make


def timeless_measures(result: StudyResult) -> list[Any]:
    """Return the measures of a run without its times."""
    timeless = []
    for run in result.runs:
        assert run.measures, run.reason
        base = asdict(run.measures)
        timeless.append({**base, "seconds": 0, "curve": [[step, loss, hit] for step, _, loss, hit in base["curve"]]})
    return timeless


def test_run_scores_are_computed_on_test_texts(small: Make, tmp_path: Path) -> None:
    result = run_study(small(models=["gru"], seeds=1), tmp_path / "out")
    [run] = result.runs
    assert run.measures, run.reason
    trained = load(tmp_path / "out" / "runs" / run.cell.name)
    data = held_out_of(trained)
    tokens = [torch.from_numpy(trained.tokenizer.encode(text).astype("int64"))[None] for text, _ in data]
    with torch.no_grad():
        guesses = [trained.labels[int(trained.module(row).argmax())] for row in tokens]
    truths = [label for _, label in data]
    precision, recall, f1, _ = precision_recall_fscore_support(truths, guesses, average="macro", zero_division=0)  # pyright: ignore[reportArgumentType]
    assert run.measures.accuracy == pytest.approx(accuracy_score(truths, guesses))
    assert [run.measures.precision, run.measures.recall, run.measures.f1] == pytest.approx([precision, recall, f1])
    assert run.measures.right == "".join(str(int(a == b)) for a, b in zip(truths, guesses, strict=True))
    assert set(data) <= set(random_texts(60))
    assert run.measures.parameters == sum(parameter.numel() for parameter in trained.module.parameters())


def held_out_of(run: Any) -> list[tuple[str, str]]:
    dataset = prepare_labels(run.data, length=256, special_tokens=False, tokenizer=run.tokenizer)
    return [(text, label) for text, label in dataset.item("test").texts]


def test_interrupted_study_resumes_to_equal_results(small: Make, tmp_path: Path) -> None:
    class Interrupting(SilentObserver):
        """Observer that sends SIGINT in the middle of the third run."""

        def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
            self.third = phase.startswith("run 3")

        def advance(self, done: int) -> None:
            if self.third and done == 7:
                os.kill(os.getpid(), signal.SIGINT)

    full = run_study(small(), tmp_path / "whole")
    stopped = run_study(small(), tmp_path / "parts", Interrupting())
    assert stopped.interrupted
    assert [bool(run.measures) for run in stopped.runs] == [True, True, False, False]
    assert "not run yet" in str(stopped) and "goes on where it stopped" in str(stopped)
    again = run_study(small(), tmp_path / "parts")
    assert not again.interrupted
    assert timeless_measures(again) == timeless_measures(full)


def test_finished_study_is_not_trained_or_timed_again(
    small: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_study(small(), tmp_path / "out")
    for module, name in (
        (experiment, "train"),
        (experiment, "resume"),
        (classifiers, "classify"),
        (classifiers, "time_in_turns"),
    ):
        monkeypatch.setattr(module, name, never)
    again = run_study(small(), tmp_path / "out")
    assert again.to_dict() == first.to_dict()
    assert not list((tmp_path / "out" / "runs").glob("*/checkpoints")), "a finished run keeps no checkpoints"


def never(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("this was done before")


def test_lost_measures_are_recomputed_without_training(
    small: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_study(small(), tmp_path / "out")
    (tmp_path / "out" / "runs" / "gru-seed-1.json").unlink()
    (tmp_path / "out" / "runs" / "lstm-seed-2.json").write_text('{"of": ')
    for name in ("train", "resume"):
        monkeypatch.setattr(experiment, name, never)
    assert timeless_measures(run_study(small(), tmp_path / "out")) == timeless_measures(first)


def test_failed_run_becomes_a_row_and_study_continues(small: Make, tmp_path: Path) -> None:
    wild = {"learning_rate": 1e30, "clip": 0}
    result = run_study(small(models=["lstm", {"model": "rnn", "name": "wild", "settings": wild}]), tmp_path / "out")
    failed = {run.cell.condition for run in result.failed}
    assert failed == {"wild"}
    assert "wild, seed 1 failed" in str(result) and "was not measured" in str(result)
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("Missing runs") == 1 and "wild, seed 1 failed" in page


def test_failed_runs_record_the_error_and_are_retried(
    small: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(classifiers, "classify", lambda *args: (_ for _ in ()).throw(MemoryError("no room")))
        invalid = run_study(small(), tmp_path / "out")
    assert {run.reason for run in invalid.runs} == {"MemoryError: no room"}
    assert "nothing to compare" in str(invalid) or "was not measured" in str(invalid)
    assert not run_study(small(), tmp_path / "out").failed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {**TINY, "hidden": 9}}, "holds a run with body"),
        ({"settings": {**TINY, "dropout": 0.5}}, "holds a run with recipe dropout 0.0"),
        ({"held_out": 0.2}, "holds a run of other labelled texts"),
        ({"limit": 40}, "holds a run of other labelled texts"),
    ],
)
def test_folder_of_another_study_is_refused(change: dict[str, Any], message: str, small: Make, tmp_path: Path) -> None:
    words: dict[str, Any] = {"models": ["gru"], "seeds": 1, "tokenizer": "characters"}
    run_study(small(**words), tmp_path / "out")
    with pytest.raises(RunError) as caught:
        run_study(small(**words, **change), tmp_path / "out")
    assert message in str(caught.value)


def test_every_body_is_trained_with_the_same_recipe(small: Make, tmp_path: Path) -> None:
    words = {"steps": 3, "batch": 4, "device": "cpu", "width": 8, "heads": 2, "depth": 1, "hidden": 8}
    bodies = ["rnn", "lstm", "gru", "decoder", "encoder", "feed-forward"]
    result = run_study(small(models=bodies, seeds=1, settings=words), tmp_path / "out")
    assert not result.failed, [run.reason for run in result.failed]
    recipes = [run.measures.recipe for run in result.runs if run.measures]
    assert len(recipes) == 6
    assert all(recipe == recipes[0] for recipe in recipes)
    assert all(len(line) <= 80 for line in str(result.table).splitlines())


def test_study_files_are_consistent_and_self_contained(
    small: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "can_draw", can_draw)
    result = run_study(small(), tmp_path / "out")
    saved = json.loads((tmp_path / "out" / "results.json").read_text())
    assert saved == json.loads(json.dumps(result.to_dict()))
    rows = list(csv.DictReader((tmp_path / "out" / "table.csv").read_text().splitlines()))
    assert [float(row["accuracy"]) for row in rows] == [row["accuracy"] for row in saved["table"]["rows"]]
    assert (tmp_path / "out" / "table.md").read_text().startswith("| body | accuracy % |")
    page = result.report.read_text()
    assert page.count("<svg") == 3
    assert "http" not in page.replace("http://www.w3.org/", "") and "<script" not in page
    assert all(len(line) <= 80 for line in str(result).splitlines() if "report.html" not in line)
    assert read_study(tmp_path / "out" / "study.toml") == result.spec, "the study survives its own file"


def test_layer_parameters_match_torch_nn() -> None:
    sizes: dict[str, Any] = {"vocabulary": 30, "width": 6, "hidden": 8, "depth": 2, "biases": 2}
    for family, kind, gates in ((Lstm, nn.LSTM, 4), (Gru, nn.GRU, 3)):
        model: Any = build(Classifier(body=family(**sizes), classes=3))
        custom = kind(6, 8, 2)
        assert count_layer_parameters(model) == count_parameters(custom) == gates * 8 * (6 + 8 + 2 + 8 + 8 + 2)
        assert count_parameters(model) == count_layer_parameters(model) + 30 * 6 + 3 * (8 + 1)


# Verdicts on fake outcomes


@pytest.mark.parametrize(
    ("mean", "margin", "verdict"),
    [
        (0.0, 0.01, "held"),
        (0.015, 0.004, "held"),
        (0.015, 0.01, "not decided"),
        (0.03, 0.02, "not decided"),
        (0.05, 0.02, "not held"),
        (-0.05, 0.02, "not held"),
        (0.0, None, "too few seeds"),
    ],
)
def test_equivalence_is_judged_by_the_entire_interval(mean: float, margin: float | None, verdict: str) -> None:
    assert judge_equivalence(Estimate(mean, margin, 3), 0.02) == verdict


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (CostRatio("training time", 0.8, 0.7, 0.9), "held"),
        (CostRatio("training time", 0.9, 0.7, 1.1), "not decided"),
        (CostRatio("training time", 1.5, 1.2, 1.9), "not held"),
        (CostRatio("training time", 0.5, None, None), "too few seeds"),
        (CostRatio("parameters", 0.75, 0.75, 0.75, exact=True), "held"),
        (CostRatio("parameters", 1.0, 1.0, 1.0, exact=True), "not held"),
    ],
)
def test_cost_is_judged_by_the_ratio_interval(ratio: CostRatio, verdict: str) -> None:
    assert ratio.verdict == verdict


def compared(
    first: list[Any], second: list[Any], seconds: tuple[float, float], inference: tuple[float, float]
) -> CheaperClaim:
    lstm = label_row("lstm", first, seconds=seconds[0], parameters=1000, layers=400)
    gru = label_row("gru", second, seconds=seconds[1], parameters=900, layers=300)
    used = {"lstm": [inference[0]] * 4, "gru": [inference[1]] * 4}
    [claim] = compare_with_first([lstm, gru], 0.02, used)
    return claim


def test_claim_holds_for_every_cost_measure() -> None:
    item = compared([0.80, 0.82, 0.81], [0.80, 0.82, 0.81], (2.0, 1.0), (0.3, 0.2))
    output = " ".join(item.sentences())
    assert item.accuracy_verdict == "held"
    assert "holds if cost means parameters, parameters of the layers, training time or inference time" in output
    assert "not cheaper" not in output


def test_claim_lists_the_cost_measures_it_holds_for() -> None:
    output = " ".join(compared([0.80, 0.82, 0.81], [0.80, 0.82, 0.81], (2.0, 3.0), (0.2, 0.3)).sentences())
    assert "holds if cost means parameters or parameters of the layers" in output
    assert "not cheaper by training time and inference time" in output
    assert "training time 1.50 × (1.50 to 1.50)" in output


def test_claim_fails_when_accuracies_differ() -> None:
    item = compared([0.60, 0.61, 0.60], [0.80, 0.82, 0.81], (2.0, 1.0), (0.3, 0.2))
    assert "does not hold, since the accuracies are not about the same" in item.sentences()[0]


def test_claim_is_undecided_when_seeds_disagree() -> None:
    item = compared([0.60, 0.90, 0.75], [0.90, 0.60, 0.70], (2.0, 1.0), (0.3, 0.2))
    assert "is not decided, since the noise leaves open" in item.sentences()[0]


def test_claim_needs_more_than_one_seed() -> None:
    assert "is not decided" in compared([0.8], [0.8], (2.0, 1.0), (0.3, 0.2)).sentences()[0]
    assert "was not measured" in compared(["no room"], [0.8], (2.0, 1.0), (0.3, 0.2)).sentences()[0]


# Statistics compared with SciPy and closed forms


def test_differences_use_a_t_test_paired_by_seed() -> None:
    ones, remaining = [0.81, 0.84, 0.79, 0.83], [0.80, 0.80, 0.78, 0.84]
    test = compare_rows(label_row("a", ones), label_row("b", remaining), "accuracy", log=False)
    assert test
    expected = stats.ttest_rel(ones, remaining)
    low, high = expected.confidence_interval(0.95)
    assert (test.difference.low, test.difference.high) == pytest.approx((low, high), rel=1e-6)
    assert test.p == pytest.approx(expected.pvalue)


def test_only_common_seeds_are_paired() -> None:
    test = compare_rows(label_row("a", [0.9, "failed", 0.5]), label_row("b", [0.8, 0.1, None]), "accuracy", log=False)
    assert test
    assert (test.mean, test.p, len(test.differences)) == (pytest.approx(0.1), None, 1)
    assert compare_rows(label_row("a", ["failed"]), label_row("b", [0.8]), "accuracy") is None


def test_interval_over_texts_averages_seeds_first() -> None:
    rng = np.random.default_rng(0)
    ones, remaining = rng.integers(0, 2, (2, 3, 50))
    rows = []
    for name, hits in (("a", ones), ("b", remaining)):
        row = label_row(name, [0.5] * 3)
        saved = {
            seed: type(item)(**{**item.__dict__, "right": "".join(map(str, hits[seed - 1]))})
            for seed, item in row.measures.items()
        }
        rows.append(replace(row, measures=saved))
    gap = estimate_difference_over_texts(*rows)
    assert gap and gap.margin
    low, high = stats.ttest_1samp((ones - remaining).mean(0), 0).confidence_interval(0.95)
    assert (gap.low, gap.high) == pytest.approx((low, high), rel=1e-6)


def test_training_time_ratio_is_a_geometric_mean() -> None:
    lstm, gru = (label_row(name, [0.8, 0.8, 0.8]) for name in ("lstm", "gru"))
    seconds = {"lstm": [1.0, 2.0, 4.0], "gru": [2.0, 3.0, 5.0]}
    for row in (lstm, gru):
        for item, used in zip(row.measures.values(), seconds[row.title], strict=True):
            object.__setattr__(item, "seconds", used)
    [ratio] = [cost for cost in compare_with_first([lstm, gru], 0.02, {})[0].costs if cost.meaning == "training time"]
    low, high = stats.ttest_rel(np.log(seconds["gru"]), np.log(seconds["lstm"])).confidence_interval(0.95)
    assert ratio.value == pytest.approx(math.exp(np.log([2.0, 1.5, 1.25]).mean()))
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-6)


# Settings and tables


@pytest.mark.parametrize("name", ["lstm-gru", "pretraining"])
def test_built_in_study_round_trips_and_accepts_settings(name: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(to_toml(STUDIES[name].to_dict()))
    assert read_study(tmp_path / "own.toml") == STUDIES[name]
    words = {"seeds": [7], "settings.steps": 5, "tokenizer.vocabulary": 300, "labels": "film"}
    spec = read_study(tmp_path / "own.toml", words)
    assert isinstance(spec, LabelStudy) and (
        spec.seeds,
        spec.settings["steps"],
        spec.settings["batch"],
        spec.labels,
    ) == (
        (7,),
        5,
        32,
        "film",
    )
    assert spec.tokenizer.to_dict() == {"kind": "byte-pairs", "vocabulary": 300}


def test_changing_the_method_resets_its_settings() -> None:
    spec: Any = read_study("pretraining", {"method": "lora", "method.rank": 3})
    assert (spec.method.kind, spec.method.rank, spec.method.alpha) == ("lora", 3, 16.0)
    assert read_study("pretraining", {"method": "frozen"}).method.to_dict() == {"kind": "frozen"}  # pyright: ignore


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("lstm-gru", {"modelz": ["rnn"]}, "Did you mean 'models'"),
        ("lstm-gru", {"models": ["rnn", "rnn"]}, "'rnn' is there twice"),
        ("lstm-gru", {"models": []}, "at least 1"),
        ("lstm-gru", {"tolerance": 0}, "greater than 0"),
        ("pretraining", {"method": "lorra"}, "Did you mean 'lora'"),
        ("pretraining", {"counts": [1]}, "greater than or equal to 2"),
        ("pretraining", {"tokenizer": "wordz"}, "Did you mean 'words'"),
    ],
)
def test_invalid_study_settings_are_explained(name: str, words: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as mistake:
        read_study(name, words)
    assert message in str(mistake.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": ["lsmt"]}, "Did you mean 'lstm'"),
        ({"models": ["parser"]}, "cannot be the body of a classifier"),
        ({"settings": {"hiden": 3}}, "Did you mean 'hidden'"),
        ({"settings": {"seed": 3}}, "Give the study `seeds`"),
        ({"settings": {"vocabulary": 3}}, "set tokenizer.vocabulary"),
        ({"settings": {"classes": 3}}, "They come from the labels"),
        ({"settings": {"batch": 0}}, "study.settings.batch = 0"),
        ({"labels": "nowhere.csv"}, "there is no such file"),
    ],
)
def test_invalid_models_are_refused_before_training(
    change: dict[str, Any], message: str, small: Make, tmp_path: Path
) -> None:
    with pytest.raises(LemmaError) as mistake:
        run_study(small(**change), tmp_path / "out")
    assert message in str(mistake.value)
    assert not (tmp_path / "out" / "runs").exists()


def test_unknown_study_suggests_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="Did you mean 'lstm-gru'"):
        read_study("lstm-gro")
    (tmp_path / "broken.toml").write_text("kind = ")
    with pytest.raises(SpecError, match="not valid TOML"):
        read_study(tmp_path / "broken.toml")
    (tmp_path / "other.toml").write_text('kind = "classifier"')
    with pytest.raises(SpecError, match="Did you mean 'classifiers'"):
        read_study(tmp_path / "other.toml")


def test_wide_table_wraps_and_repeats_its_first_column() -> None:
    lines = [["name", *(f"column {index}" for index in range(12))], ["a", *("1" * index for index in range(1, 13))]]
    blocks = "\n".join(format_table(lines, has_header=False, width=40)).split("\n\n")
    assert all(len(line) <= 40 for block in blocks for line in block.splitlines())
    assert len(blocks) > 1 and all(block.startswith("name") for block in blocks)
    assert " ".join(blocks).count("column") == 12


def test_missing_runs_are_dashes_with_notes() -> None:
    table = make_table([label_row("lstm", ["no room", None]), label_row("gru", [0.8, 0.9])], {})
    assert table.rows[0][1:5] == ("–",) * 4
    assert table.notes == ("lstm, seed 1 failed: no room", "lstm, seed 2 not run yet")
