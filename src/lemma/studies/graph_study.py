"""The study of graph models (problem D4): every contender with every seed, each run kept, then put side by side."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lemma.data import GRAPHS, GraphData
from lemma.errors import RunError, SpecError
from lemma.evaluation import classify_nodes, score_classes
from lemma.models import count_parameters
from lemma.runs import Run, RunFolder
from lemma.runs.folder import is_begun
from lemma.spec import Contender, Graph, GraphSpec, GraphStudy, choose
from lemma.studies.asking import rooted
from lemma.studies.graph_shown import describe_graph, show_graph_study
from lemma.studies.graphs import GraphLesson, prepared_graph
from lemma.studies.grid import Cell
from lemma.studies.hardware import describe_hardware
from lemma.studies.label_outcome import LabelMeasures
from lemma.studies.label_result import LabelResult
from lemma.studies.label_runs import TEST, Task, finish_all, measures_of
from lemma.studies.measuring import device_of
from lemma.studies.plan import Plan, refuse_other_run
from lemma.training import Observer, Silent

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
    lesson: GraphLesson  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def model(self) -> Graph:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The model with the sizes of its graph."""
        assert isinstance(self.cell.model, Graph)
        return self.cell.model.sized(self.lesson.dataset.sizes())

    @property
    def identity(self) -> dict[str, Any]:
        """What makes two runs the same: the model, the recipe, the graph and its split."""
        given = {"data": self.lesson.dataset.hash, "graph": _split(self.data)}
        return {"model": self.model.to_dict(), "recipe": self.cell.recipe.to_dict(), **given}

    def refuse_other(self) -> None:
        """Refuse a folder in which another run stands."""
        refuse_other_run(Plan(self.cell, self.model, self.cell.recipe, self.path, self.lesson.dataset.hash))
        if is_begun(self.path) and _split(RunFolder.open(self.path).data) != _split(self.data):
            raise RunError(
                f"{self.path} holds a run of another split than this study asks for. Choose another --out, or remove "
                "that folder."
            )

    def measure(self, run: Run) -> LabelMeasures:
        """Classify the test nodes, and read off what the run was and took."""
        chosen = self.lesson.dataset.tokens(TEST)
        found = classify_nodes(run.graph, self.lesson.dataset)[chosen.nodes]
        score = score_classes(chosen.classes, found, self.lesson.dataset.labels, unit="node")
        return measures_of(run, score, found.argmax(-1) == chosen.classes, count_parameters(run.graph))


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


def task_of(spec: GraphStudy, contender: Contender, seed: int, graph: GraphData, out: Path) -> GraphTask:
    """The run of a contender and a seed."""
    words = {**spec.words, **contender.words}
    for word in NOT_TO_SET.keys() & words.keys():
        raise SpecError(f"study: '{word}' is no word for single runs. {NOT_TO_SET[word]}")
    chosen = choose(contender.model, words)
    if not isinstance(chosen.model, Graph):
        raise SpecError(f"study: the contender '{contender.title}' is a model of the family {chosen.model.family}.")
    cell = Cell(contender.title, {}, seed, chosen.model, chosen.recipe.replace(seed=seed))
    return GraphTask(cell, _data(spec, seed), GraphLesson(graph), out / "runs" / cell.name)


def _graph(spec: GraphStudy, seed: int, watcher: Observer) -> GraphData:
    return prepared_graph(_data(spec, seed), choose("graph").recipe, watcher)


def _data(spec: GraphStudy, seed: int) -> GraphSpec:
    data = spec.data(seed)
    table = None if data.nodes_file is None else rooted(data.nodes_file, ())
    return data.replace(graph=rooted(data.graph, GRAPHS), nodes_file=table)
