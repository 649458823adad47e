"""Classification of the nodes of a graph: the graph, the loss of a few labelled nodes, accuracy and F1."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lemma.data.corpora import GRAPHS
from lemma.data.graphs import GraphNodes, NodeGraph, prepare_graph
from lemma.data.splits import Splits
from lemma.errors import RunError, SpecError
from lemma.models.base import measuring
from lemma.models.graph import GraphInputs, GraphModel, build_graph_inputs
from lemma.report.progress import Observer, reading_progress
from lemma.runs.load import Run
from lemma.spec.data import GraphSpec
from lemma.spec.recipe import Recipe
from lemma.tasks.base import (
    Batches,
    DataArgs,
    SmoothedLoss,
    Task,
    Worker,
    choose_split,
    describe_files,
    report_skipped,
    split_protocol,
)
from lemma.tasks.classification import ClassificationScore, score_classes


class NodesTask(Task):
    """A graph model says which class each node belongs to."""

    name, option, example, learns = "nodes", "graph", "cora", "a graph"
    unit, has_perplexity, counts = "nats/node", False, "nodes"
    text_checks = False  # the same few nodes are read at every step, as they should be
    data_spec = GraphSpec
    names, settings, files = GRAPHS, ("nodes", "labelled"), ("nodes", "labelled")
    no_penalties = "a graph model has fixed weights in its place"

    def __init__(self) -> None:
        self._inputs_cache: tuple[NodeGraph, tuple[torch.device, str], GraphInputs] | None = None

    def load(
        self,
        data: GraphSpec,
        model: Any,
        recipe: Recipe,
        observer: Observer,
        vocabulary: Any = None,
        labels: tuple[str, ...] = (),
    ) -> Splits[GraphNodes]:
        """Read a graph; its nodes are divided by the recipe's seed unless the data say another."""
        progress = reading_progress(observer)
        return report_skipped(prepare_graph(data, seed=recipe.seed, labels=labels or None, progress=progress), observer)

    def steps_per_epoch(self, model: Any, examples: Any, recipe: Recipe) -> float:
        """Return 1: every step reads the whole graph."""
        return 1.0

    def batches(self, model: GraphModel, examples: GraphNodes, recipe: Recipe, worker: Worker) -> "GraphBatches":
        """The whole graph at every step."""
        return GraphBatches(model, examples, recipe, worker)

    def loss(self, model: GraphModel, recipe: Recipe, batches: Any = None) -> SmoothedLoss:
        """The cross-entropy of the labelled nodes' classes, computed through the whole graph, with label smoothing."""

        def predict(model: Any, nodes: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
            return model(batches.features, batches.adjacency)[nodes], classes

        return SmoothedLoss(model, recipe.label_smoothing, predict)

    def validate(self, model: GraphModel, data: Splits[GraphNodes], recipe: Recipe) -> ClassificationScore:
        """Classify the validation nodes, without intervals; the graph is laid out for the device only once."""
        graph, place = data.item("validation").graph, (next(model.parameters()).device, model.spec.normalise)
        if self._inputs_cache is None or self._inputs_cache[0] is not graph or self._inputs_cache[1] != place:
            self._inputs_cache = graph, place, build_graph_inputs(graph, model.spec.normalise, place[0])
        return score_nodes(model, data, "validation", samples=0, inputs=self._inputs_cache[2])

    def evaluate(
        self, run: Run, given: DataArgs, split: str | None, settings: Mapping[str, Any], observer: Observer
    ) -> ClassificationScore:
        """Classify the test nodes of a run, or those of another of its splits, and compare with their labels."""
        assert isinstance(run.data, GraphSpec)
        if given.name is not None:
            raise SpecError(
                "evaluate: a graph model is evaluated on the validation or test nodes of the graph it was trained on. "
                "Leave --graph out; --split names the split (train, validation, test)."
            )
        progress = reading_progress(observer)
        graph = prepare_graph(run.data, seed=run.recipe.seed, labels=run.labels or None, progress=progress)
        if graph.hash != run.data_hash:
            name = describe_files(run.data.graph, run)
            raise RunError(
                f"{run.path} was trained on a graph with SHA-256 {run.data_hash}, but {name} now has {graph.hash}: its "
                "validation and test nodes may have been trained on. Train a new run."
            )
        part = choose_split(graph, split)
        seed = run.recipe.seed if run.data.split is None else run.data.split
        told = part if part in graph.split_hashes else f"{part}, drawn by the seed {seed}"
        protocol = {"data": graph.description, "split": told, "data hash": graph.hash, **split_protocol(graph, part)}
        return score_nodes(run.require(GraphModel, "a graph model"), graph, part, protocol)


class GraphBatches(Batches):
    """The graph on the device, and the nodes whose classes are learned: all of them at every step."""

    fixed_shape = False  # compiling does not pay: sparse products are compiled already

    def __init__(self, model: GraphModel, chosen: GraphNodes, recipe: Recipe, worker: Worker) -> None:
        if worker.size > 1 or recipe.accumulate > 1:
            raise SpecError(
                "a graph is learned as a whole: it is neither shared by several processes nor cut into parts. "
                "Train it in one process, with accumulate=1."
            )
        super().__init__(recipe, worker, 1, len(chosen))
        self.features, self.adjacency = build_graph_inputs(chosen.graph, model.spec.normalise, worker.device)
        self.nodes = torch.from_numpy(chosen.nodes).to(worker.device)
        self.classes = torch.from_numpy(chosen.classes).to(worker.device)

    def batch(self, step: int) -> tuple[Int[Tensor, " nodes"], Int[Tensor, " nodes"]]:
        """Return the labelled nodes, and the class of each."""
        return self.nodes, self.classes


def classify_nodes(
    model: GraphModel, graph: NodeGraph, inputs: GraphInputs | None = None
) -> Float[np.ndarray, "nodes classes"]:
    """The probability of each class for each node; `inputs` is the graph if it is laid out on the device already."""
    with measuring(model) as device:
        features, adjacency = inputs or build_graph_inputs(graph, model.spec.normalise, device)
        return model(features, adjacency).double().softmax(-1).cpu().numpy()


def score_nodes(
    model: GraphModel,
    graph: Splits[GraphNodes],
    split: str,
    protocol: Mapping[str, Any] | None = None,
    samples: int = 1000,
    inputs: GraphInputs | None = None,
) -> ClassificationScore:
    """Classify the nodes of a split, and compare with their labels."""
    chosen = graph.item(split)
    chances = classify_nodes(model, chosen.graph, inputs)[chosen.nodes]
    return score_classes(chosen.classes, chances, graph.labels, protocol, samples=samples, unit="node")
