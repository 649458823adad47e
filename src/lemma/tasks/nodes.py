"""Classification of the nodes of a graph: the graph, the loss of a few labelled nodes, accuracy and F1."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lemma.data.graphs import GraphNodes, NodeGraph, prepare_graph
from lemma.data.splits import Splits
from lemma.errors import SpecError
from lemma.models.base import measuring
from lemma.models.graph import GraphInputs, GraphModel, build_graph_inputs
from lemma.report.progress import Observer
from lemma.runs.load import Run
from lemma.spec.data import GraphSpec
from lemma.spec.recipe import Recipe
from lemma.tasks.base import Batches, LoadContext, SmoothedLoss, Task, Worker, split_protocol
from lemma.tasks.classification import ClassificationScore, score_classes
from lemma.tasks.registry import NODES


class NodesTask(Task):
    """Classification of the nodes of a graph."""

    info = NODES
    trained_on = "a graph"
    if_changed = "its validation and test nodes may have been trained on. Train a new run."

    def __init__(self) -> None:
        self._inputs_cache: tuple[NodeGraph, tuple[torch.device, str], GraphInputs] | None = None

    def _read(self, data: GraphSpec, context: LoadContext) -> Splits[GraphNodes]:
        """Return a graph with its nodes in splits, drawn by the data spec's seed or, without one, by the recipe's."""
        seed, labels = context.recipe.seed, context.labels or None
        return prepare_graph(data, seed=seed, labels=labels, progress=context.progress)

    def steps_per_epoch(self, model: Any, examples: Any, recipe: Recipe) -> float:
        """Return 1: every step reads the whole graph."""
        return 1.0  # every step reads the graph

    def batches(self, model: GraphModel, examples: GraphNodes, recipe: Recipe, worker: Worker) -> "GraphBatches":
        """Return batches that are the whole graph at every step."""
        return GraphBatches(model, examples, recipe, worker)

    def loss(self, model: GraphModel, recipe: Recipe, batches: Any = None) -> SmoothedLoss:
        """Return the model with the cross-entropy of the labelled nodes' classes, computed over the whole graph."""

        def predict(model: Any, nodes: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
            return model(batches.features, batches.adjacency)[nodes], classes

        return SmoothedLoss(model, recipe.label_smoothing, predict)

    def validate(self, model: GraphModel, data: Splits[GraphNodes], recipe: Recipe) -> ClassificationScore:
        """Return the score on the validation nodes; the graph's tensors on the device are built once and reused."""
        graph, key = data.item("validation").graph, (next(model.parameters()).device, model.spec.normalise)
        if self._inputs_cache is None or self._inputs_cache[0] is not graph or self._inputs_cache[1] != key:
            self._inputs_cache = graph, key, build_graph_inputs(graph, model.spec.normalise, key[0])
        return score_nodes(model, data, "validation", samples=0, inputs=self._inputs_cache[2])

    def score(
        self, run: Run, data: Splits[GraphNodes], split: str, settings: Mapping[str, Any], observer: Observer
    ) -> ClassificationScore:
        """Return a run's score on the nodes of a split, with bootstrap intervals."""
        assert isinstance(run.data, GraphSpec)
        seed = run.recipe.seed if run.data.split is None else run.data.split
        split_text = split if split in data.split_hashes else f"{split}, drawn by the seed {seed}"
        protocol = {"data": data.description, "split": split_text, "data hash": data.hash}
        model = run.require(GraphModel, "a graph model")
        return score_nodes(model, data, split, {**protocol, **split_protocol(data, split)})


class GraphBatches(Batches):
    """The graph's tensors on the device, and its labelled nodes: the same batch at every step."""

    fixed_shape = False  # compiling does not pay: sparse products are compiled already

    def __init__(self, model: GraphModel, labelled: GraphNodes, recipe: Recipe, worker: Worker) -> None:
        if worker.size > 1 or recipe.accumulate > 1:
            raise SpecError(
                "a graph is learned as a whole: it is neither shared by several processes nor cut into parts. "
                "Train it in one process, with accumulate=1."
            )
        super().__init__(recipe, worker, 1, len(labelled))
        self.features, self.adjacency = build_graph_inputs(labelled.graph, model.spec.normalise, worker.device)
        self.nodes = torch.from_numpy(labelled.nodes).to(worker.device)
        self.classes = torch.from_numpy(labelled.classes).to(worker.device)

    def batch(self, step: int) -> tuple[Int[Tensor, " nodes"], Int[Tensor, " nodes"]]:
        """Return the indices of all labelled nodes, and their classes."""
        return self.nodes, self.classes


def classify_nodes(
    model: GraphModel, graph: NodeGraph, inputs: GraphInputs | None = None
) -> Float[np.ndarray, "nodes classes"]:
    """Return the class probabilities of each node; `inputs` are the graph's tensors, built here if None."""
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
    """Return the score of the predicted classes of a split's nodes; `inputs` are as in `classify_nodes`."""
    nodes = graph.item(split)
    probabilities = classify_nodes(model, nodes.graph, inputs)[nodes.nodes]
    return score_classes(nodes.classes, probabilities, graph.labels, protocol, samples=samples, unit="node")
