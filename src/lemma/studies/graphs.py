"""Graphs in training and in judgement: the nodes held out, and what a run says of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from lemma.data import GraphData, prepare_graph
from lemma.errors import RunError, SpecError, unknown
from lemma.evaluation import ClassificationScore, classify_nodes, score_classes
from lemma.models import GraphInputs, GraphModel, graph_inputs
from lemma.runs import Run
from lemma.spec import GraphSpec, Recipe
from lemma.studies.asking import Asked
from lemma.training import Observer, watched_reading


@dataclass(frozen=True)
class GraphLesson:
    """Of a graph model: its accuracy and F1 on the nodes held out."""

    dataset: GraphData
    inputs: dict[tuple[torch.device, str], GraphInputs] = field(default_factory=dict, repr=False)
    """The graph as it was laid out for a device before, so that a large one is sorted once."""

    def evaluate(self, model: GraphModel) -> ClassificationScore:
        """Classify the validation nodes; intervals are for the end."""
        place = next(model.parameters()).device, model.spec.normalise
        if place not in self.inputs:
            self.inputs[place] = graph_inputs(self.dataset, model.spec.normalise, place[0])
        return classified_nodes(model, self.dataset, "validation", samples=0, inputs=self.inputs[place])

    def sample(self, model: GraphModel) -> list[str]:
        """A graph model writes no text."""
        return []


def prepared_graph(
    data: GraphSpec, recipe: Recipe, watcher: Observer, labels: tuple[str, ...] = (), tell: bool = True
) -> GraphData:
    """The graph of a run, its nodes divided by the recipe's seed unless the data say another; what was cut is told."""
    graph = prepare_graph(data, seed=recipe.seed, labels=labels or None, progress=watched_reading(watcher))
    for said in graph.skipped if tell else ():
        watcher.say(said)
    return graph


def classified_nodes(
    model: GraphModel,
    graph: GraphData,
    split: str,
    protocol: Mapping[str, Any] | None = None,
    samples: int = 1000,
    inputs: GraphInputs | None = None,
) -> ClassificationScore:
    """Classify the nodes of a split, and compare with their labels."""
    chosen = graph.tokens(split)
    chances = classify_nodes(model, graph, inputs)[chosen.nodes]
    return score_classes(chosen.classes, chances, graph.labels, protocol, samples=samples, unit="node")


def judge_graph(run: Run, asked: Asked, split: str | None, watcher: Observer) -> ClassificationScore:
    """Classify the test nodes of a run, or those of another of its splits, and compare with their labels."""
    assert isinstance(run.data, GraphSpec)
    if asked.graph is not None:
        raise SpecError(
            "evaluate: a graph model is judged on the nodes held out of the graph that it learned. Leave --graph out; "
            "--split names the part (train, validation, test)."
        )
    graph = prepared_graph(run.data, run.recipe, watcher, run.labels, tell=False)
    if graph.hash != run.data_hash:
        raise RunError(
            f"{run.path} was trained on a graph with SHA-256 {run.data_hash}, but {run.data.graph} now has "
            f"{graph.hash}: the nodes held out may have been learned. Train a new run."
        )
    part = split or "test"
    if part not in graph.splits:
        raise SpecError(unknown("split", part, graph.splits))
    seed = run.recipe.seed if run.data.split is None else run.data.split
    protocol = {"data": graph.about, "split": f"{part}, drawn by the seed {seed}", "data hash": graph.hash}
    return classified_nodes(run.graph, graph, part, protocol)
