"""Steps to the same loss, perplexity against a swept setting, and settings searched by Optuna."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from study_outcomes import make_outcomes

from lemma.errors import SpecError
from lemma.report.progress import SilentObserver
from lemma.spec.studies import ComparedModel, GridStudy, TuneStudy, read_study
from lemma.studies.cells import group_rows
from lemma.studies.experiment import run_study
from lemma.studies.grid import TuneExperiment, expand_grid
from lemma.studies.grid_report import plot_sweeps
from lemma.studies.measures import interpolate_steps, view_steps


def lengths(name: str, losses: dict[int, list[float]]) -> list:
    """Return fake runs of several lengths with given losses per seed."""
    return [
        outcome
        for steps, subset in losses.items()
        for seed, loss in enumerate(subset, start=1)
        for outcome in make_outcomes(
            name, [math.exp(loss)] * seed, {"steps": steps}, loss=loss, recipe={"steps": steps}
        )[-1:]
    ]


def test_steps_to_loss_interpolate_over_log_steps() -> None:
    curve = [(round(100 * 2**k), 3.0 - 0.5 * k) for k in range(4)]
    for target in (2.9, 2.2, 1.6):
        assert interpolate_steps(curve, target)[0] == pytest.approx(100 * 2 ** ((3.0 - target) / 0.5))


def test_muon_step_fraction_is_tested_on_log_scale() -> None:
    adamw = {100: [2.4, 2.5, 2.45], 200: [2.0, 2.1, 2.06]}
    muon = {100: [2.2, 2.25, 2.2], 200: [1.8, 1.9, 1.86]}
    view = view_steps(group_rows([*lengths("adamw", adamw), *lengths("muon", muon)]))
    fractions = [
        math.exp(math.log(100) + math.log(2) * (item - target) / (item - two)) / 200
        for item, two, target in zip(muon[100], muon[200], adamw[200], strict=True)
    ]
    result = view.values["muon"]
    assert result["share"] == pytest.approx(stats.gmean(fractions))
    assert result["p"] == pytest.approx(stats.ttest_1samp(np.log(fractions), 0).pvalue)
    assert view.sentences[0].startswith(f"muon needs {100 * stats.gmean(fractions):.0f} % of the steps of adamw")


@pytest.mark.parametrize(("losses", "bound"), [([1.0, 1.1, 1.2], "at most "), ([3.0, 3.1, 3.2], "more than ")])
def test_unbracketed_loss_is_reported_as_a_bound(losses: list[float], bound: str) -> None:
    view = view_steps(group_rows([*lengths("adamw", {200: [2.0, 2.1, 2.06]}), *lengths("muon", {100: losses})]))
    assert view.rows[0][1] == f"{bound}100" and f"muon needs {bound}50 %" in view.sentences[0]
    # all three fractions are 50 % by construction, so a t-test would have p = 0
    assert view.rows[0][3] == "no test" and view.values["muon"]["p"] is None
    assert "p <" not in view.sentences[0] and "in 3 of 3 seeds" in view.sentences[0]


def test_swept_setting_is_the_plot_axis() -> None:
    outcomes = [
        outcome
        for name in ("lstm", "gru")
        for rate in (0.004, 0.001, 0.016)
        for outcome in make_outcomes(name, [1 / rate, 2 / rate, 3 / rate], {"learning_rate": rate, "tied": True})
    ]
    [plot] = plot_sweeps(group_rows(outcomes))
    assert (plot.x, plot.log_x) == ("learning rate", True) and len(plot.curves) == 2
    assert plot.curves[0].x == (0.001, 0.004, 0.016) and plot.curves[0].y == pytest.approx((2000, 500, 125))
    assert plot.curves[0].low != plot.curves[0].high
    assert plot_sweeps(group_rows(make_outcomes("a", [3.0], {"depth": 2}))) == []


def test_optimizers_study_compares_adamw_and_muon_at_every_length() -> None:
    study = read_study("optimizers")
    assert isinstance(study, GridStudy)
    cells = expand_grid(study)
    assert len(cells) == 2 * len(study.grid["steps"]) * len(study.seeds)
    assert {cell.recipe.optimizer.kind for cell in cells if cell.condition == "muon"} == {"muon"}
    assert {cell.recipe.steps for cell in cells} == set(study.grid["steps"])


# Optuna


@pytest.fixture
def search(tiny_study: Callable[..., GridStudy]) -> TuneStudy:
    pytest.importorskip("optuna", reason="optuna is not installed: pip install 'lemma-lm[tune]'")
    base = tiny_study(models=(ComparedModel(model="rnn"),), seeds=(1, 2))
    space = {"learning_rate": (1e-6, 1e-1), "hidden": (2, 3, 4)}
    return TuneStudy(**{name: getattr(base, name) for name in GridStudy.model_fields}, space=space, trials=4)


def test_search_prunes_losing_trials_and_resumes(
    search: TuneStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run_study(search, tmp_path / "out")
    losses = {tuple(row.point.values()): row.values("loss") for row in result.rows}
    assert len(losses) == 4 and {len(seeds) for seeds in losses.values()} <= {1, 2}
    best = min((seeds for seeds in losses.values() if len(seeds) == 2), key=lambda seeds: sum(seeds.values()))
    for seeds in losses.values():
        if len(seeds) == 1:
            assert seeds[1] > best[1] + search.prune, "given up, being worse in the seed that both have"
    assert [plot for plot in plot_sweeps(result.rows) if plot.x == "learning rate"]
    monkeypatch.setattr(TuneExperiment, "run", lambda *args: pytest.fail("all of it is kept"))
    again = run_study(search, tmp_path / "out")
    assert {tuple(row.point.values()): row.values("loss") for row in again.rows} == losses


def test_search_without_space_or_with_processes_is_refused(search: TuneStudy, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="each trial depends on those before it"):
        run_study(search, tmp_path / "out", jobs=2)
    with pytest.raises(SpecError, match="two values or more"):
        read_study("tune", {"space": {"learning_rate": [1e-3]}})
    with pytest.raises(SpecError, match="Did you mean 'hidden'"):
        run_study(search.replace(space={"hiden": (2, 3)}), tmp_path / "out")


def test_built_in_search_accepts_the_documented_space(search: TuneStudy, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "study.md").read_text()
    words = dict(re.findall(r"'(space\.\w+)=(\[[^]]*\])'", page))
    study = read_study("tune", {word: json.loads(values) for word, values in words.items()} | {"data": search.data})
    assert isinstance(study, TuneStudy) and set(study.space) == {"learning_rate", "hidden"}
    TuneExperiment(study, tmp_path / "out", SilentObserver())  # raises if the budget cannot hold it
