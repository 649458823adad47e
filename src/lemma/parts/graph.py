"""Graph convolution (problem D4; Kipf & Welling 2017): Â, and the layer that multiplies by it.

Ã = A + I; Â = D̃^{-1/2} Ã D̃^{-1/2} with D̃ the degrees of Ã. All of its rows sum to one exactly if every connected
part of the graph is regular, but its spectral norm is always 1, so that repeated layers do not blow features up;
D̃^{-1} Ã is the one whose rows always sum to one.
"""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.parts.sparse import Sparse

Normalisation = Literal["symmetric", "rows", "none", "alone"]


class Adjacency(Sparse):
    """A sparse matrix of nodes × nodes, of which only the edges are stored."""


def adjacency_of(
    edges: Int[Tensor, "two edges"],
    nodes: int,
    kind: Normalisation = "symmetric",
    weights: Float[Tensor, "edges"] | None = None,
) -> Adjacency:
    """Normalise a graph given by its edges: each between two nodes, in either direction, once or twice.

    Edges count for both ends; doubles count once (of weighted ones the largest), loops as the one that every node gets.

    >>> adjacency_of(torch.tensor([[0], [1]]), 2).to_dense().tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    if kind == "alone":
        edges, weights = edges[:, :0], None if weights is None else weights[:0]
    places, values = with_loops(edges, nodes, weights)
    values = scaled(places, values, nodes, kind)
    return Adjacency.of(places, values, (nodes, nodes), symmetric=kind != "rows")


def with_loops(
    edges: Int[Tensor, "two edges"], nodes: int, weights: Float[Tensor, "edges"] | None = None
) -> tuple[Int[Tensor, "two entries"], Float[Tensor, "entries"]]:
    """Ã = A + I by the places of its entries, in the order of rows, and their values."""
    values = torch.ones(edges.shape[1], device=edges.device) if weights is None else weights
    apart = edges[0] != edges[1]
    edges, values = edges[:, apart], values[apart]
    own = torch.arange(nodes, device=edges.device)
    both = torch.cat([edges[0] * nodes + edges[1], edges[1] * nodes + edges[0], own * nodes + own])
    values = torch.cat([values, values, torch.ones_like(own, dtype=values.dtype)])
    entries, owner = both.unique(return_inverse=True)
    largest = torch.zeros(len(entries), dtype=values.dtype, device=edges.device)
    largest = largest.scatter_reduce(0, owner, values, "amax")
    return torch.stack([entries // nodes, entries % nodes]), largest


def scaled(
    places: Int[Tensor, "two entries"], values: Float[Tensor, "entries"], nodes: int, kind: Normalisation
) -> Float[Tensor, "entries"]:
    """The entries of Ã divided by degrees: by the root of both ends' (symmetric), by the row's, or not at all."""
    if kind not in ("symmetric", "rows"):
        return values
    wide = values.double()  # in 32 bits the product of two degrees past 10¹⁹ would be infinite
    degrees = torch.zeros(nodes, dtype=wide.dtype, device=wide.device).index_add(0, places[0], wide)
    first, second = degrees[places[0]], degrees[places[1]]
    return (wide / ((first * second).sqrt() if kind == "symmetric" else first)).to(values.dtype)


class GraphConvolution(nn.Module):
    """Â X W + b: every node becomes the weighted sum of its neighbours and itself, mapped."""

    def __init__(self, into: int, out: int, bias: bool = True) -> None:
        super().__init__()
        self.map = nn.Linear(into, out, bias=False)
        self.bias = nn.Parameter(torch.zeros(out)) if bias else None

    def forward(self, features: Tensor | Sparse, adjacency: Adjacency | Tensor) -> Tensor:
        """Map the features and mix them along the edges; `adjacency` is sparse, or dense matrices."""
        mixed = self._mixed(features, adjacency)
        return mixed if self.bias is None else mixed + self.bias

    def _mixed(self, features: Tensor | Sparse, adjacency: Adjacency | Tensor) -> Tensor:
        """(Â X) W = Â (X W): edges that are stored one by one carry whichever is narrower."""
        if isinstance(features, Sparse):
            return adjacency @ (features @ self.map.weight.T)
        if isinstance(adjacency, Sparse) and self.map.in_features < self.map.out_features:
            return self.map(adjacency @ features)
        return adjacency @ self.map(features)
