"""The study of graph models (problem D4): every model on every random split, and what the edges add."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lemma.data.corpora import GRAPHS
from lemma.errors import SpecError
from lemma.models.base import count_parameters
from lemma.models.graph import GraphModel
from lemma.report.curves import Curve, Plot
from lemma.report.progress import Observer, SilentObserver
from lemma.report.statistics import holm_correct, item_standard_error
from lemma.runs.load import Run
from lemma.spec.choose import choose
from lemma.spec.data import GraphSpec
from lemma.spec.models import Graph
from lemma.spec.studies import GraphStudy
from lemma.studies.budget import describe_hardware, device_of
from lemma.studies.classifiers import (
    TEST,
    ClassifierMeasures,
    LabelOutcome,
    LabelRow,
    describe_models,
    format_percent,
    learning_curve,
    make_measures,
    percent_curve,
    row_record,
)
from lemma.studies.experiment import RunPlan, StudyCell, TrainingExperiment, compare_rows, describe_seeds, group_rows
from lemma.studies.grid import check_reserved
from lemma.studies.result import NO_VALUE, StudyResult, StudyTable
from lemma.tasks.base import LoadContext, absolute_path
from lemma.tasks.classification import score_classes
from lemma.tasks.nodes import NodesTask, classify_nodes

RESERVED_GRAPH_SETTINGS = {
    "seed": "Give the study `seeds`, as in seeds=10.",
    "features": "They come from the graph.",
    "F": "They come from the graph.",
    "classes": "They come from the graph.",
    "K": "They come from the graph.",
}
PROTOCOL = {
    "splits": "each seed draws the training, validation and test nodes, and the initial weights; all models of a seed "
    "have the same split",
    "scores": "on the test nodes, which neither trained nor chose the weights; F1 is the mean over the classes",
    "intervals": "mean ± half the 95 % interval over the seeds (Student's t)",
    "tests": "differences are taken seed by seed, with a t-test whose standard error is never below that of the test "
    "nodes (paired by node); p-values are corrected for the number of comparisons (Holm); d is Cohen's, of pairs",
    "training seconds": "of the training steps alone; models take turns, seed by seed",
}


class GraphExperiment(TrainingExperiment[ClassifierMeasures]):
    """Train every model with every seed, which draws the split and the initial weights."""

    spec: GraphStudy
    measures_type = ClassifierMeasures

    def __init__(self, spec: GraphStudy, out: Path, observer: Observer) -> None:
        self.spec, self.out, self.observer = spec, out, observer
        chosen, load = choose("graph"), NodesTask().load
        self.graphs = {
            seed: load(
                self._data(seed), LoadContext(chosen.model, chosen.recipe, observer if not index else SilentObserver())
            )
            for index, seed in enumerate(spec.seeds)
        }

    def _data(self, seed: int) -> GraphSpec:
        """The graph with the split of a seed, files by their absolute paths."""
        data = self.spec.data(seed)
        files = {name: getattr(data, name) for name in ("nodes_file", "labelled", "validation", "test")}
        files = {name: absolute_path(file) for name, file in files.items() if isinstance(file, str)}
        return data.replace(graph=absolute_path(data.graph, GRAPHS), **files)

    def cells(self) -> list[StudyCell]:
        """Seeds × models."""
        models = []
        for model in self.spec.models:
            words = {**self.spec.settings, **model.settings}
            check_reserved(list(words), RESERVED_GRAPH_SETTINGS)
            chosen = choose(model.model, words)
            if not isinstance(chosen.model, Graph):
                raise SpecError(
                    f"study: '{model.title}' is a model of the family {chosen.model.family}. Take one of the family "
                    "graph."
                )
            models.append((model.title, chosen))
        return [
            StudyCell(title, {}, seed, chosen.model, chosen.recipe.replace(seed=seed))
            for seed in self.spec.seeds
            for title, chosen in models
        ]

    def plan(self, cell: StudyCell) -> RunPlan:
        """The run of a model and a seed."""
        assert isinstance(cell.model, Graph) and cell.seed is not None
        graph = self.graphs[cell.seed]
        model = cell.model.with_data_sizes(graph.sizes())
        return RunPlan(self.path(cell), model, cell.recipe, self._data(cell.seed), graph)

    def measure(self, run: Run, plan: RunPlan) -> ClassifierMeasures:
        """Classify the test nodes."""
        chosen = plan.dataset.tokens(TEST)
        found = classify_nodes(run.require(GraphModel, "a graph model"), chosen.graph)[chosen.nodes]
        score = score_classes(chosen.classes, found, plan.dataset.labels, unit="node")
        return make_measures(run, score, found.argmax(-1) == chosen.classes, count_parameters(run.module))

    def report(self, outcomes: tuple[LabelOutcome, ...], interrupted: bool) -> StudyResult:
        """What the first model reached, and how each other differs from it."""
        rows, graph = group_rows(outcomes), self.graphs[self.spec.seeds[0]]
        whole, tested = graph.item("train").graph, graph.item(TEST).classes
        labelled, learned = int((whole.classes >= 0).sum()), len(graph.item("train").classes)
        tested_nodes = np.concatenate([graph.item(TEST).nodes for graph in self.graphs.values()])
        frequent = np.bincount(tested, minlength=len(graph.labels)).max() / len(tested)
        recipe, sizes = ("steps", "learning_rate", "weight_decay", "dropout"), ("depth", "hidden", "normalise")
        return StudyResult(
            title=self.spec.name,
            question=self.spec.question,
            spec=self.spec,
            out=self.out,
            data={
                "graph": f"{graph.description}: {len(whole.classes):,} nodes, {whole.edges.shape[1]:,} edges, "
                f"{whole.width:,} features",
                "classes": f"{', '.join(graph.labels)}; {labelled:,} nodes have a label, {learned:,} of them are "
                "learned",
                "nodes": ", ".join(f"{len(nodes):,} for {split}" for split, nodes in graph.items.items()),
                "always the most frequent class": f"accuracy {100 * frequent:.1f} % on the first seed's test nodes",
                "SHA-256": graph.hash,
                **({"overlap": "; ".join(graph.overlaps)} if graph.overlaps else {}),
                "seeds": ", ".join(map(str, self.spec.seeds)),
            },
            hardware=describe_hardware(device_of(outcomes[0].cell.recipe)),
            protocol={**PROTOCOL, "models": describe_models(rows, recipe, sizes)},
            table=make_table(rows),
            conclusion=tuple(conclude(rows, len(np.unique(tested_nodes)))),
            plots=tuple(plot_graph_models([row for row in rows if row.measures])),
            runs=outcomes,
            rows=tuple(rows),
            interrupted=interrupted,
        )


def conclude(rows: Sequence[LabelRow], nodes: int) -> Iterator[str]:
    """What the first model reached, and what each other makes of the same splits, which test that many nodes in all."""
    first = rows[0]
    if not first.measures:
        yield "No run of the first model came to its end, so that there is nothing to compare."
        return
    several = f"{len(first.measures)} random splits" if len(first.measures) > 1 else "one split"
    yield f"{first.title}: accuracy {format_percent(first.estimate('accuracy'))} % over {several}."
    tests = {}
    for row in rows[1:]:
        both = sorted(row.measures.keys() & first.measures.keys())
        gaps = [
            int(one) - int(other)
            for seed in both
            for one, other in zip(row.measures[seed].right, first.measures[seed].right, strict=True)
        ]
        if test := compare_rows(row, first, "accuracy", False, item_standard_error(gaps, min(nodes, len(gaps)))):
            tests[row.title] = test
    for title, test in zip(tests, holm_correct(list(tests.values())), strict=True):
        yield f"{title} against {first.title}: {test}: {test.verdict}."


def make_table(rows: Sequence[LabelRow]) -> StudyTable:
    """One row per model: scores in per cent, then costs."""
    cells = []
    for row in rows:
        parameters, trained = row.count("parameters"), row.estimate("seconds")
        scores = (format_percent(row.estimate(name)) for name in ("accuracy", "f1"))
        cells.append(
            (row.title, *scores, NO_VALUE if parameters is None else f"{parameters:,}", str(trained or NO_VALUE))
        )
    return StudyTable(
        header=("model", "accuracy %", "F1 %", "parameters", "train s"),
        rows=cells,
        records=tuple(map(row_record, rows)),
        caption=f"On the test nodes; F1 is the mean over the classes.{describe_seeds(rows)}",
        notes=tuple(note for row in rows for note in row.notes),
    )


def plot_graph_models(rows: Sequence[LabelRow]) -> Iterator[Plot]:
    """The accuracies next to each other, and accuracy against steps; intervals are cut where a share ends."""

    def cut(curve: Curve) -> Curve:
        low, high = tuple(max(0.0, low) for low in curve.low), tuple(min(100.0, high) for high in curve.high)
        return replace(curve, low=low, high=high)

    if not rows:
        return
    found = [(tick, row, row.estimate("accuracy")) for tick, row in enumerate(rows)]
    bars = tuple(cut(percent_curve(row.title, [tick], [one])) for tick, row, one in found if one)
    caption = (
        "Accuracy on the test nodes: means over the seeds (dots) with their 95 % intervals (bars), cut at 0 and 100 %."
    )
    ticks = tuple(row.title for row in rows)
    yield Plot("", "accuracy, per cent", bars, caption=caption, bars=True, ticks=ticks)
    if learning := tuple(cut(curve) for row in rows if (curve := learning_curve(row, "step"))):
        caption = (
            "Accuracy on the validation nodes against steps: means over the seeds with their 95 % intervals, cut at 0 "
            "and 100 %."
        )
        yield Plot("steps", "validation accuracy, per cent", learning, caption=caption)
