"""The study of graph models: running, resuming and reporting."""

import os
import signal
from pathlib import Path

import pytest

from labelled_tables import label_row
from lemma.errors import DataError, RunError, SpecError
from lemma.report.progress import SilentObserver
from lemma.report.statistics import estimate
from lemma.spec.studies import GraphStudy, read_study
from lemma.studies.classifiers import compare_graph_models, plot_graph_models
from lemma.studies.experiment import run_study

WORDS = {"steps": 15, "device": "cpu"}


def small(**words) -> GraphStudy:
    study = read_study("graph", {"graph": "karate", "seeds": 2, "settings": WORDS, **words})
    assert isinstance(study, GraphStudy)
    return study


class Interrupting(SilentObserver):
    """Observer that sends SIGINT in the middle of the third run."""

    third = False

    def start(self, phase: str, total: int, unit: str, done: int = 0) -> None:
        self.third = phase.startswith("run 3")

    def advance(self, done: int) -> None:
        if self.third and done == 7:
            os.kill(os.getpid(), signal.SIGINT)


def test_study_means_and_intervals_match_hand_calculation(tmp_path: Path) -> None:
    result = run_study(small(), tmp_path / "out")
    assert len(result.runs) == 8 and not result.failed
    custom = [run.measures.accuracy for run in result.runs if run.cell.condition == "two layers" and run.measures]
    row = result.table.records[0]
    assert row["accuracy"] == estimate(custom).mean and row["accuracy_margin"] == estimate(custom).margin
    assert (tmp_path / "out" / "report.html").exists() and "two layers" in str(result)
    assert all(len(line) <= 80 for line in str(result).splitlines() if str(tmp_path) not in line)
    parameters = {row["model"]: row["parameters"] for row in result.table.records}
    assert parameters["two layers"] == 34 * 64 + 64 + 64 * 2 + 2 and parameters["one layer"] == 34 * 2 + 2
    assert read_study(tmp_path / "out" / "study.toml") == result.spec


def test_interrupted_study_resumes_to_equal_results(tmp_path: Path) -> None:
    full = run_study(small(), tmp_path / "whole")
    stopped = run_study(small(), tmp_path / "parts", Interrupting())
    assert stopped.interrupted and sum(run.measures is not None for run in stopped.runs) == 2
    again = run_study(small(), tmp_path / "parts")
    figures = [[run.measures.right if run.measures else None for run in result.runs] for result in (full, again)]
    assert figures[0] == figures[1] and not again.interrupted


def test_folder_of_another_study_is_refused(tmp_path: Path) -> None:
    study = small(seeds=1, models=[{"model": "graph", "name": "two layers"}])
    run_study(study, tmp_path / "out")
    with pytest.raises(RunError, match="another split"):
        run_study(study.replace(labelled=3), tmp_path / "out")


def test_edge_table_without_nodes_suggests_nodes_file(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("source,target\na,b\n")
    with pytest.raises(DataError, match="nodes_file=FILE"):
        run_study(small(graph=str(tmp_path / "edges.csv")), tmp_path / "out")


def test_intervals_are_clipped_to_0_and_100_percent() -> None:
    row = label_row("two layers", [0.8, 0.9, 1.0])
    uncut = row.estimate("accuracy")
    assert uncut and uncut.high > 1, "the interval itself goes beyond"
    plots = list(plot_graph_models([row]))
    assert len(plots) == 2
    for curve in (curve for plot in plots for curve in plot.curves):
        assert min(curve.low) >= 0 and max(curve.high) == 100


def test_significance_depends_on_the_number_of_nodes() -> None:
    for nodes, seeds, verdict in ((20, 2, "too few seeds"), (20, 10, "not significant"), (2000, 10, "significant")):
        right = {
            fraction: "1" * round(fraction * nodes) + "0" * round(nodes - fraction * nodes) for fraction in (0.9, 0.8)
        }
        rows = [label_row(f"{fraction}", [fraction] * seeds, right=subset) for fraction, subset in right.items()]
        output = list(compare_graph_models(rows, nodes))[1]
        assert output.startswith("0.8 against 0.9: −10.0") and f": {verdict}" in output and "± 0.0" not in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"settings": {"seed": 1}}, "Give the study `seeds`"),
        ({"settings": {"K": 3}}, "come from the graph"),
        ({"models": [{"model": "lstm"}]}, "family lstm"),
        ({"models": [{"model": "graph"}, {"model": "graph"}]}, "is there twice"),
        ({"seedz": 3}, "Did you mean 'seeds'"),
        ({"seeds": 0}, "study.seeds = 0: at least one seed is needed, as in seeds=3"),
        ({"seeds": []}, "at least one seed is needed"),
        ({"steps": 3}, r"'steps' is a setting of the runs. Type settings.steps=3"),
        ({"hidden": 3}, r"Type settings.hidden=3"),
    ],
)
def test_invalid_settings_are_refused_before_training(tmp_path: Path, words, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        run_study(small(**words), tmp_path / "out")
    assert not (tmp_path / "out" / "runs").exists()
