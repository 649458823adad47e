"""The graph model: layers of graph convolution that classify every node (problem D4; Kipf & Welling 2017)."""

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from lemma.data.graphs import NodeGraph
from lemma.layers.graph import Adjacency, GraphConvolution, Normalisation, SparseMatrix, build_adjacency
from lemma.models.base import Model
from lemma.spec.models import Graph


class GraphModel(Model):
    """Graph convolutional network: H ← relu(Â H W + b) in each layer; the last gives class logits, without relu."""

    def __init__(self, spec: Graph, dropout: float = 0.0) -> None:
        super().__init__()
        self.spec = spec
        width = spec.hidden if spec.depth > 1 else spec.features  # a single layer goes straight to the classes
        self.first = GraphConvolution(spec.features, width, spec.bias) if spec.depth > 1 else None
        self.layers = nn.ModuleList(GraphConvolution(width, width, spec.bias) for _ in range(spec.depth - 2))
        self.last = GraphConvolution(width, spec.classes, spec.bias)
        self.dropout = nn.Dropout(dropout)

    def init_weights(self) -> None:
        """Draw initial matrices that preserve the scale (Glorot & Bengio 2010), and zero biases."""
        for parameter in self.parameters():
            (nn.init.xavier_uniform_ if parameter.dim() == 2 else nn.init.zeros_)(parameter)

    def forward(
        self, features: Float[Tensor, "nodes features"] | SparseMatrix, adjacency: Adjacency | Tensor
    ) -> Float[Tensor, "nodes classes"]:
        """Return the class logits of every node from its features, over the normalised adjacency matrix Â."""
        if self.first is None:
            return self.last(self._apply_dropout(features), adjacency)
        hidden = self.dropout(torch.relu(self.first(self._apply_dropout(features), adjacency)))
        for layer in self.layers:
            hidden = self.dropout(torch.relu(layer(hidden, adjacency)))
        return self.last(hidden, adjacency)

    def _apply_dropout(self, features: Tensor | SparseMatrix) -> Tensor | SparseMatrix:
        """Return features with dropout; of a sparse matrix only the stored entries are dropped."""
        if isinstance(features, SparseMatrix):
            return replace(features, values=self.dropout(features.values)) if self.training else features
        return self.dropout(features)


GraphInputs = tuple[Float[Tensor, "nodes features"] | SparseMatrix, Adjacency]
"""Features and adjacency."""


def build_graph_inputs(
    graph: NodeGraph, normalisation: Normalisation, device: torch.device | str = "cpu"
) -> GraphInputs:
    """Return the feature matrix and the normalised adjacency matrix of a graph as tensors on a device."""
    weights = None if graph.weights is None else torch.from_numpy(graph.weights)
    adjacency = build_adjacency(torch.from_numpy(graph.edges), len(graph.classes), normalisation, weights)
    features = graph.features
    if isinstance(features, np.ndarray):
        return torch.from_numpy(features).to(device), adjacency.to(device)
    entries = features.tocoo()
    indices = torch.from_numpy(np.stack([entries.row, entries.col]).astype(np.int64))
    shape = len(graph.classes), graph.width
    return SparseMatrix.from_entries(indices, torch.from_numpy(entries.data), shape).to(device), adjacency.to(device)
