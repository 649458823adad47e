"""The study of graph models (problem D4): every model on every random split, and what the edges add."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lemma.data.corpora import GRAPHS
from lemma.errors import SpecError
from lemma.models.base import count_parameters
from lemma.models.graph import GraphModel
from lemma.report.curves import Plot
from lemma.report.progress import Observer, SilentObserver
from lemma.report.statistics import holm_correct, item_standard_error
from lemma.runs.load import Run
from lemma.spec.choose import choose
from lemma.spec.data import GraphSpec
from lemma.spec.models import Graph
from lemma.spec.studies import GraphStudy
from lemma.studies.cells import StudyCell, check_reserved, compare_rows, group_rows
from lemma.studies.claims import format_percent
from lemma.studies.classifier_runs import (
    TEST,
    ClassifierMeasures,
    LabelOutcome,
    LabelRow,
    describe_models,
    make_measures,
    percent_curve,
    plot_learning,
    score_table,
    table_caption,
)
from lemma.studies.experiment import RunPlan, TrainingExperiment
from lemma.studies.result import StudyResult
from lemma.studies.timing import device_of
from lemma.tasks.base import LoadContext
from lemma.tasks.classification import score_classes
from lemma.tasks.nodes import NodesTask, classify_nodes
from lemma.tasks.registry import absolute_path

FROM_GRAPH = "They come from the graph."
RESERVED_GRAPH_SETTINGS = {
    "seed": "Give the study `seeds`, as in seeds=10.",
    **dict.fromkeys(("features", "F", "classes", "K"), FROM_GRAPH),
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
        choice, load = choose("graph"), NodesTask().load
        self.graphs = {
            seed: load(
                self._data(seed), LoadContext(choice.model, choice.recipe, SilentObserver() if index else observer)
            )
            for index, seed in enumerate(spec.seeds)
        }

    def _data(self, seed: int) -> GraphSpec:
        """Return the graph with the split of a seed, files by their absolute paths."""
        data = self.spec.data(seed)
        files = {name: getattr(data, name) for name in ("nodes_file", "labelled", "validation", "test")}
        files = {name: absolute_path(file) for name, file in files.items() if isinstance(file, str)}
        return data.replace(graph=absolute_path(data.graph, GRAPHS), **files)

    def cells(self) -> list[StudyCell]:
        choices = []
        for model in self.spec.models:
            settings = {**self.spec.settings, **model.settings}
            check_reserved(settings, RESERVED_GRAPH_SETTINGS)
            choice = choose(model.model, settings)
            if not isinstance(choice.model, Graph):
                raise SpecError(
                    f"study: '{model.title}' is a model of the family {choice.model.family}. Take one of the family "
                    "graph."
                )
            choices.append((model.title, choice))
        return [
            StudyCell(title, {}, seed, choice.model, choice.recipe.replace(seed=seed))
            for seed in self.spec.seeds
            for title, choice in choices
        ]

    def make_plan(self, cell: StudyCell, *inputs: Any) -> RunPlan:
        assert isinstance(cell.model, Graph) and cell.seed is not None
        graph = self.graphs[cell.seed]
        model = cell.model.with_data_sizes(graph.sizes())
        return RunPlan(self.path(cell), model, cell.recipe, self._data(cell.seed), graph)

    def measure(self, run: Run, plan: RunPlan) -> ClassifierMeasures:
        """Classify the test nodes."""
        test = plan.dataset.item(TEST)
        probabilities = classify_nodes(run.require(GraphModel, "a graph model"), test.graph)[test.nodes]
        score = score_classes(test.classes, probabilities, plan.dataset.labels, unit="node")
        is_right = probabilities.argmax(-1) == test.classes
        return make_measures(run, score, is_right, count_parameters(run.module))

    def report(self, outcomes: tuple[LabelOutcome, ...], interrupted: bool) -> StudyResult:
        rows, splits = group_rows(outcomes), self.graphs[self.spec.seeds[0]]
        graph, test_classes = splits.item("train").graph, splits.item(TEST).classes
        num_labelled, num_trained = int((graph.classes >= 0).sum()), len(splits.item("train").classes)
        guessing = 100 * np.bincount(test_classes, minlength=len(splits.labels)).max() / len(test_classes)
        test_nodes = np.unique(np.concatenate([split.item(TEST).nodes for split in self.graphs.values()]))
        sizes = f"{len(graph.classes):,} nodes, {graph.edges.shape[1]:,} edges, {graph.width:,} features"
        labels = f"{num_labelled:,} nodes have a label, {num_trained:,} of them are learned"
        recipe, model = ("steps", "learning_rate", "weight_decay", "dropout"), ("depth", "hidden", "normalise")
        columns = {
            "parameters": lambda row: row.count("parameters"),
            "train s": lambda row: row.estimate("seconds"),
        }
        caption = table_caption(rows, "F1 is the mean", "nodes")
        return self.make_result(
            outcomes,
            interrupted,
            device_of(outcomes[0].cell.recipe),
            data={
                "graph": f"{splits.description}: {sizes}",
                "classes": f"{', '.join(splits.labels)}; {labels}",
                "nodes": ", ".join(f"{len(nodes):,} for {split}" for split, nodes in splits.items.items()),
                "always the most frequent class": f"accuracy {guessing:.1f} % on the first seed's test nodes",
                "SHA-256": splits.hash,
                **({"overlap": "; ".join(splits.overlaps)} if splits.overlaps else {}),
                "seeds": ", ".join(map(str, self.spec.seeds)),
            },
            protocol={**PROTOCOL, "models": describe_models(rows, recipe, model)},
            table=score_table(rows, "model", ("accuracy", "f1"), columns, caption),
            conclusion=tuple(conclude(rows, len(test_nodes))),
            plots=tuple(plot_graph_models([row for row in rows if row.measures])),
            rows=tuple(rows),
        )


def conclude(rows: Sequence[LabelRow], nodes: int) -> Iterator[str]:
    """Describe what the first model reached, and how the others differ on the same splits of `nodes` test nodes."""
    first = rows[0]
    if not first.measures:
        yield "No run of the first model finished, so that there is nothing to compare."
        return
    splits = f"{len(first.measures)} random splits" if len(first.measures) > 1 else "one split"
    yield f"{first.title}: accuracy {format_percent(first.estimate('accuracy'))} % over {splits}."
    tests = {}
    for row in rows[1:]:
        differences = [
            int(digit) - int(base)
            for seed in sorted(row.measures.keys() & first.measures.keys())
            for digit, base in zip(row.measures[seed].right, first.measures[seed].right, strict=True)
        ]
        min_error = item_standard_error(differences, min(nodes, len(differences)))
        if test := compare_rows(row, first, "accuracy", log=False, min_error=min_error):
            tests[row.title] = test
    for title, test in zip(tests, holm_correct(list(tests.values())), strict=True):
        yield f"{title} against {first.title}: {test}: {test.verdict}."


def plot_graph_models(rows: Sequence[LabelRow]) -> Iterator[Plot]:
    """Plot the accuracies next to each other, and accuracy against steps; intervals are cut at 0 and 100 %."""
    if not rows:
        return
    scores = [(index, row.title, row.estimate("accuracy")) for index, row in enumerate(rows)]
    bars = tuple(percent_curve(title, [index], [score], cut=True) for index, title, score in scores if score)
    caption = (
        "Accuracy on the test nodes: means over the seeds (dots) with their 95 % intervals (bars), cut at 0 and 100 %."
    )
    yield Plot("", "accuracy, per cent", bars, caption=caption, bars=True, ticks=tuple(title for _, title, _ in scores))
    yield from plot_learning(rows, {"step": "steps"}, "nodes", cut=True)
