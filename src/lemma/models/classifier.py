"""A classifier: a backbone that reads a text, pooling, and one linear layer to the classes; the tree backbone."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.layers.graph import GraphConvolution
from lemma.models.base import Backbone, Model, init_embedding
from lemma.models.build import build_body
from lemma.spec.models import Classifier, Tree


class ClassifierModel(Model):
    """A linear layer on the pooled vectors of a backbone, whose output modules are removed."""

    def __init__(self, spec: Classifier, dropout: float = 0.0) -> None:
        super().__init__()
        self.spec, self.body = spec, build_body(spec.body, dropout)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(self.body.vector_width, spec.classes, bias=spec.head_bias)

    def init_weights(self) -> None:
        """Draw a small initial output layer, so that all classes are about equally likely; leave the backbone."""
        nn.init.normal_(self.head.weight, std=0.02)
        if self.spec.head_bias:
            nn.init.zeros_(self.head.bias)

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch classes"]:
        """Return the class logits of each text; a token of −1 is padding."""
        mask = (tokens if tokens.dim() == 2 else tokens[..., 0]) >= 0  # words of a tree come with their arcs
        pooled = pool(self.body.vectors(tokens), mask, self.spec.pooling)
        return self.head(self.dropout(pooled))


def pool(vectors: Float[Tensor, "batch time width"], mask: Tensor, pooling: str) -> Float[Tensor, "batch width"]:
    """Return one vector per row: the first, the last unmasked, or the mean of the unmasked ones.

    Args:
        mask: (batch, time), True at tokens and False at padding.
        pooling: "first", "last" or "mean".

    >>> vectors, mask = torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]])
    >>> [pool(vectors, mask, name).item() for name in ("first", "last", "mean")]
    [1.0, 3.0, 2.0]
    """
    if pooling == "first":
        return vectors[:, 0]
    lengths = mask.sum(1).clamp(min=1)
    if pooling == "last":
        return vectors[torch.arange(len(vectors), device=vectors.device), lengths - 1]
    return vectors.masked_fill(~mask[..., None], 0.0).sum(1) / lengths[:, None]


class TreeModel(Backbone):
    """Graph convolution over a sentence's dependency tree (problem D4): vectors, without an output layer."""

    output_modules: ClassVar[tuple[str, ...]] = ()

    def __init__(self, spec: Tree, dropout: float = 0.0) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = nn.Embedding(spec.vocabulary, spec.width)
        self.layers = nn.ModuleList(GraphConvolution(spec.width, spec.width) for _ in range(spec.depth))
        self.dropout = nn.Dropout(dropout)

    def init_weights(self) -> None:
        """Draw the initial embedding; the layers keep PyTorch's initial weights."""
        init_embedding(self.embedding)

    @property
    def vector_width(self) -> int:
        """Width of the vectors of the last layer."""
        return self.spec.width

    def vectors(self, tokens: Int[Tensor, "batch time two"]) -> Float[Tensor, "batch time width"]:
        """Return a vector for each word.

        Args:
            tokens: for each word its token id and the position of its head in the row, −1 without a head.
        """
        adjacency = tree_adjacency(tokens[..., 1], tokens[..., 0] >= 0)
        hidden = self.dropout(self.embedding(tokens[..., 0].clamp(min=0)))
        for layer in self.layers:
            hidden = hidden + self.dropout(torch.relu(layer(hidden, adjacency)))
        return hidden


def tree_adjacency(heads: Int[Tensor, "batch time"], mask: Tensor) -> Float[Tensor, "batch time time"]:
    """Return the normalised adjacency matrix Â of each tree, with self-loops; dense, since sentences are short.

    Args:
        heads: position of each word's head, −1 without a head.
        mask: (batch, time), True at words; padding is connected only to itself.

    >>> tree_adjacency(torch.tensor([[1, -1]]), torch.tensor([[True, True]]))[0].round(decimals=5).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    time = heads.shape[1]
    arcs = torch.zeros(*heads.shape, time, device=heads.device)
    has_head = (heads >= 0) & mask
    arcs.scatter_(2, heads.clamp(min=0)[..., None], has_head[..., None].to(arcs.dtype))
    symmetric = ((arcs + arcs.transpose(1, 2)) > 0).to(arcs.dtype)
    adjacency = torch.maximum(symmetric, torch.eye(time, device=arcs.device))
    inverse_roots = adjacency.sum(-1).rsqrt()
    return adjacency * inverse_roots[:, :, None] * inverse_roots[:, None, :]
