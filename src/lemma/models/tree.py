"""A body that reads a sentence along its dependency tree: a graph layer for every step along an arc (problem D4)."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.models.body import Body
from lemma.parts import GraphConvolution
from lemma.spec import Tree


class TreeModel(Body):
    """Word vectors, mixed along the arcs of the tree, layer after layer; it gives vectors and has no output layer."""

    outward: ClassVar[tuple[str, ...]] = ()

    def __init__(self, spec: Tree, dropout: float = 0.0) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = nn.Embedding(spec.vocabulary, spec.width)
        self.layers = nn.ModuleList(GraphConvolution(spec.width, spec.width) for _ in range(spec.depth))
        self.dropout = nn.Dropout(dropout)

    @property
    def vector_width(self) -> int:
        """The width of the word vectors."""
        return self.spec.width

    def vectors(self, tokens: Int[Tensor, "batch time two"]) -> Float[Tensor, "batch time width"]:
        """Read words with their trees: each a token and the place of its governor, −1 for none."""
        adjacency = tree_adjacency(tokens[..., 1], tokens[..., 0] >= 0)
        stream = self.dropout(self.embedding(tokens[..., 0].clamp(min=0)))
        for layer in self.layers:
            stream = stream + self.dropout(torch.relu(layer(stream, adjacency)))
        return stream


def tree_adjacency(governors: Int[Tensor, "batch time"], there: Tensor) -> Float[Tensor, "batch time time"]:
    """Â of each tree of a batch, dense since sentences are short; what is not there has no arcs, and only itself.

    >>> tree_adjacency(torch.tensor([[1, -1]]), torch.tensor([[True, True]]))[0].tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    time = governors.shape[1]
    arcs = torch.zeros(*governors.shape, time, device=governors.device)
    held = (governors >= 0) & there
    arcs.scatter_(2, governors.clamp(min=0)[..., None], held[..., None].to(arcs.dtype))
    whole = ((arcs + arcs.transpose(1, 2)) > 0).to(arcs.dtype)
    whole = torch.maximum(whole, torch.eye(time, device=arcs.device))
    roots = whole.sum(-1).rsqrt()
    return whole * roots[:, :, None] * roots[:, None, :]
