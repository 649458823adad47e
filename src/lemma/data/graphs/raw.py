"""A graph as it was read or made, before it is divided: names, labels, features, and each edge once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float32, Int64

from lemma.data.graphs.compressed import Features

Pairs = Int64[np.ndarray, "two edges"]
Weights = Float32[np.ndarray, "edges"]


@dataclass(frozen=True)
class RawGraph:
    """Nodes with labels and features, and the edges between them."""

    names: Sequence[str]
    """What each node is called in its file."""
    labels: Sequence[str]
    """The class of each node; an empty one is not known."""
    features: Features
    edges: Pairs
    weights: Weights | None
    hash: str
    about: str
    said: tuple[str, ...] = ()
    """How it was read, in words."""

    def tidied(self) -> "RawGraph":
        """The same with each edge once, in whatever direction it came, and without loops, which say nothing new."""
        edges, weights, said = each_once(self.edges, self.weights, len(self.names))
        if not edges.shape[1]:
            said.append("there are no edges: each node stands alone")
        return replace(self, edges=edges, weights=weights, said=(*self.said, *said))


def each_once(edges: Pairs, weights: Weights | None, nodes: int) -> tuple[Pairs, Weights | None, list[str]]:
    """Edges between two nodes, the lower number first, each once and in order; of weights the largest counts.

    >>> each_once(np.array([[1, 0, 2, 0], [0, 1, 2, 2]]), None, 3)[0].tolist()
    [[0, 0], [1, 2]]
    """
    apart = edges[0] != edges[1]
    low, high = np.minimum(*edges[:, apart]), np.maximum(*edges[:, apart])
    keys, owner = np.unique(low * nodes + high, return_inverse=True)
    said = [f"{edges.shape[1] - len(keys):,} edges were loops or came twice: each counts once"]
    if weights is not None:
        largest = np.zeros(len(keys), dtype=np.float32)
        np.maximum.at(largest, owner, weights[apart])
        weights = largest
    return np.stack([keys // nodes, keys % nodes]), weights, said if len(keys) < edges.shape[1] else []
