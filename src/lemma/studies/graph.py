"""What a study of graph models came to, shown: the table, what the edges add, the plots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lemma.data.corpora import GRAPHS
from lemma.data.graphs import GraphNodes
from lemma.data.splits import Splits
from lemma.errors import RunError, SpecError
from lemma.models.base import count_parameters
from lemma.models.graph import GraphModel
from lemma.report.curves import Curve, Plot
from lemma.report.progress import Observer, Silent
from lemma.runs.folder import RunFolder, is_begun
from lemma.runs.load import Run
from lemma.spec.choose import choose
from lemma.spec.data import GraphSpec
from lemma.spec.models import Graph
from lemma.spec.studies import Contender, GraphStudy
from lemma.studies.cells import Cell, Plan, describe_hardware, refuse_other_run
from lemma.studies.classifiers import (
    TEST,
    LabelMeasures,
    LabelOutcome,
    LabelResult,
    LabelRow,
    LabelTable,
    Task,
    curve_of,
    finish_all,
    gather,
    learning_curve,
    measures_of,
    paired,
    percent,
    points,
)
from lemma.studies.result import NONE
from lemma.studies.run import device_of
from lemma.tasks.base import rooted
from lemma.tasks.classification import score_classes
from lemma.tasks.nodes import NodesTask, classify_nodes

PROTOCOL = {
    "splits": "each seed draws the nodes that are learned, validated and tested, and the first weights; all contenders "
    "of a seed have the same split",
    "scores": "on the test nodes, which neither trained nor chose the weights; F1 is the mean over the classes",
    "intervals": "mean ± half the 95 % interval over the seeds (Student's t); differences are taken seed by seed",
    "training seconds": "of the training steps alone; contenders take turns, seed by seed",
}


def describe_graph(graph: Splits[GraphNodes]) -> dict[str, str]:
    """What the graph is."""
    sizes = ", ".join(f"{len(nodes):,} for {split}" for split, nodes in graph.items.items())
    whole = graph.tokens("train").graph
    learned, tested = graph.tokens("train").classes, graph.tokens("test").classes
    commonest = np.bincount(tested, minlength=len(graph.labels)).max() / len(tested)
    known = int((whole.classes >= 0).sum())
    return {
        "graph": f"{graph.about}: {len(whole.classes):,} nodes, {whole.edges.shape[1]:,} edges, "
        f"{whole.features.shape[1]:,} features",
        "classes": f"{', '.join(graph.labels)}; {known:,} nodes have a label, {len(learned):,} of them are learned",
        "nodes": sizes,
        "always the commonest class": f"accuracy {100 * commonest:.1f} % on the first seed's test nodes",
        "SHA-256": graph.hash,
    }


def show_graph_study(
    spec: GraphStudy,
    outcomes: tuple[LabelOutcome, ...],
    data: Mapping[str, str],
    hardware: Mapping[str, str],
    out: Path,
    interrupted: bool,
) -> LabelResult:
    """Put the findings together."""
    rows = gather(outcomes)
    return LabelResult(
        spec=spec,
        data={**data, "seeds": ", ".join(map(str, spec.seeds))},
        hardware=hardware,
        protocol={**PROTOCOL, "models": "; ".join(_in_words(row) for row in rows if row.measured)},
        table=make_table(rows),
        conclusion=conclude(rows),
        plots=tuple(plots_of(rows)),
        runs=outcomes,
        out=out,
        interrupted=interrupted,
    )


def conclude(rows: Sequence[LabelRow]) -> tuple[str, ...]:
    """What the first contender reached, and what each other makes of the same splits."""
    first = rows[0]
    if not first.measured:
        return ("No run of the first contender came to its end, so that there is nothing to compare.",)
    several = f"{len(first.measured)} random splits" if len(first.measured) > 1 else "one split"
    said = [f"{first.title}: accuracy {percent(first.estimate('accuracy'))} % over {several}."]
    for row in rows[1:]:
        gap = paired(row, first, "accuracy")
        if gap is not None:
            known = gap.margin is not None
            sure = "" if not known else "; beyond the noise" if not gap.low <= 0 <= gap.high else "; within the noise"
            said.append(f"{row.title} against {first.title}: {points(gap)}, split by split{sure}.")
    return tuple(said)


def make_table(rows: Sequence[LabelRow]) -> LabelTable:
    """One row a contender: scores in per cent, then costs."""
    header = ("model", "accuracy %", "F1 %", "parameters", "train s")
    notes = tuple(f"{row.title}, {note}" for row in rows for note in row.missing)
    seeds = max(len(row.measured) for row in rows)
    caption = (
        f"On the test nodes; F1 is the mean over the classes. Mean ± half the 95 % interval over {seeds} seeds "
        "(Student's t)."
        if seeds > 1
        else "On the test nodes; F1 is the mean over the classes. One seed has no interval."
    )
    return LabelTable(header, tuple(map(_cells, rows)), tuple(row.to_dict() for row in rows), caption, notes)


def _cells(row: LabelRow) -> tuple[str, ...]:
    parameters, trained = row.count("parameters"), row.estimate("seconds")
    scores = (percent(row.estimate(name)) for name in ("accuracy", "f1"))
    count = NONE if parameters is None else f"{parameters:,}"
    return (row.title, *scores, count, str(trained) if trained else NONE)


def plots_of(rows: Sequence[LabelRow]) -> list[Plot]:
    """The accuracies side by side, and accuracy as training goes on."""
    measured = [row for row in rows if row.measured]
    if not measured:
        return []
    found = [(tick, row, row.estimate("accuracy")) for tick, row in enumerate(measured)]
    bars = tuple(_within(curve_of(row.title, [tick], [one])) for tick, row, one in found if one)
    caption = (
        "Accuracy on the test nodes: means over the seeds (dots) with their 95 % intervals (bars), cut at 0 and 100 %."
    )
    ticks = tuple(row.title for row in measured)
    learning = tuple(_within(curve) for row in measured if (curve := learning_curve(row, "step")))
    way = (
        "Accuracy on the validation nodes against steps: means over the seeds with their 95 % intervals, cut at 0 and "
        "100 %."
    )
    plots = [Plot("", "accuracy, per cent", bars, caption=caption, bars=True, ticks=ticks)]
    return [*plots, Plot("steps", "validation accuracy, per cent", learning, caption=way)] if learning else plots


def _within(curve: Curve) -> Curve:
    """Intervals no further than a share can go: Student's t knows no bounds."""
    return replace(
        curve, low=tuple(max(0.0, low) for low in curve.low), high=tuple(min(100.0, high) for high in curve.high)
    )


def _in_words(row: LabelRow) -> str:
    one = next(iter(row.measured.values()))
    sizes = ", ".join(f"{word} {one.model[word]}" for word in ("depth", "hidden", "normalise"))
    recipe = ", ".join(
        f"{word.replace('_', ' ')} {one.recipe[word]:,}"
        for word in ("steps", "learning_rate", "weight_decay", "dropout")
    )
    return f"{row.title} ({sizes}; {recipe})"


# The study of graph models (problem D4): every contender with every seed, each run kept, then put side by side.


NOT_TO_SET = {
    "seed": "Give the study `seeds`, as in seeds=10.",
    "features": "They come from the graph.",
    "F": "They come from the graph.",
    "classes": "They come from the graph.",
    "K": "They come from the graph.",
}


@dataclass(frozen=True)
class GraphTask(Task):
    """A graph model that is to be trained on one split."""

    data: GraphSpec  # pyright: ignore[reportIncompatibleVariableOverride]
    dataset: Splits[GraphNodes]  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def model(self) -> Graph:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The model with the sizes of its graph."""
        assert isinstance(self.cell.model, Graph)
        return self.cell.model.sized(self.dataset.sizes())

    @property
    def identity(self) -> dict[str, Any]:
        """What makes two runs the same: the model, the recipe, the graph and its split."""
        given = {"data": self.dataset.hash, "graph": _split(self.data)}
        return {"model": self.model.to_dict(), "recipe": self.cell.recipe.to_dict(), **given}

    def refuse_other(self) -> None:
        """Refuse a folder in which another run stands."""
        refuse_other_run(Plan(self.cell, self.model, self.cell.recipe, self.path, self.dataset.hash))
        if is_begun(self.path) and _split(RunFolder.open(self.path).data) != _split(self.data):
            raise RunError(
                f"{self.path} holds a run of another split than this study asks for. Choose another --out, or remove "
                "that folder."
            )

    def measure(self, run: Run) -> LabelMeasures:
        """Classify the test nodes, and read off what the run was and took."""
        chosen = self.dataset.tokens(TEST)
        found = classify_nodes(run.require(GraphModel, "a graph model"), chosen.graph)[chosen.nodes]
        score = score_classes(chosen.classes, found, self.dataset.labels, unit="node")
        return measures_of(run, score, found.argmax(-1) == chosen.classes, count_parameters(run.module))


def _split(data: Any) -> dict[str, Any]:
    """How nodes are divided; which graph it is the hash tells."""
    return {name: value for name, value in data.to_dict().items() if name not in ("graph", "nodes_file")}


def run_graph_study(spec: GraphStudy, out: Path, observer: Observer | None = None) -> LabelResult:
    """Train what the spec asks for, save table and report in the folder `out`, and return all of it.

    A finished run is not repeated and an interrupted one goes on, so that a study that was stopped is finished by the
    same call.
    """
    watcher = observer or Silent()
    graphs = {seed: _graph(spec, seed, watcher if seed == spec.seeds[0] else Silent()) for seed in spec.seeds}
    tasks = [task_of(spec, contender, seed, graphs[seed], out) for seed in spec.seeds for contender in spec.contenders]
    for task in tasks:
        task.refuse_other()
    out.mkdir(parents=True, exist_ok=True)
    outcomes, interrupted = finish_all(tasks, watcher)
    hardware = describe_hardware(device_of(tasks[0].cell.recipe))
    data = describe_graph(graphs[spec.seeds[0]])
    result = show_graph_study(spec, outcomes, data, hardware, out, interrupted)
    result.save()
    return result


def task_of(spec: GraphStudy, contender: Contender, seed: int, graph: Splits[GraphNodes], out: Path) -> GraphTask:
    """The run of a contender and a seed."""
    words = {**spec.words, **contender.words}
    for word in NOT_TO_SET.keys() & words.keys():
        raise SpecError(f"study: '{word}' is no word for single runs. {NOT_TO_SET[word]}")
    chosen = choose(contender.model, words)
    if not isinstance(chosen.model, Graph):
        raise SpecError(f"study: the contender '{contender.title}' is a model of the family {chosen.model.family}.")
    cell = Cell(contender.title, {}, seed, chosen.model, chosen.recipe.replace(seed=seed))
    return GraphTask(cell, _data(spec, seed), graph, out / "runs" / cell.name)


def _graph(spec: GraphStudy, seed: int, watcher: Observer) -> Splits[GraphNodes]:
    chosen = choose("graph")
    return NodesTask().load(_data(spec, seed), chosen.model, chosen.recipe, watcher)


def _data(spec: GraphStudy, seed: int) -> GraphSpec:
    data = spec.data(seed)
    table = None if data.nodes_file is None else rooted(data.nodes_file, ())
    return data.replace(graph=rooted(data.graph, GRAPHS), nodes_file=table)
