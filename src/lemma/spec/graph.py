"""Graphs: the model that classifies their nodes (problem D4), and where they come from."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field

from lemma.spec.base import Letter, Spec
from lemma.spec.family import Size


class Graph(Spec):
    """Layers of graph convolution: H ← σ(Â H W + b), the last one to the classes (Kipf & Welling 2017)."""

    family: Literal["graph"] = "graph"
    features: Annotated[Size, Letter("F")] = 16
    """Features of a node; training takes it from the graph."""
    hidden: Annotated[Size, Letter("D")] = 64
    """Units of the layers between."""
    classes: Annotated[int, Field(ge=2), Letter("K")] = 2
    """Number of classes; training takes it from the graph."""
    depth: Annotated[Size, Letter("L")] = 2
    """Number of layers: how many edges away a node still sees."""
    normalise: Literal["symmetric", "rows", "none", "alone"] = "symmetric"
    """What stands for Â: D̃^{-1/2} Ã D̃^{-1/2}, of norm 1; D̃^{-1} Ã, whose rows sum to 1; Ã; or I, no edges."""
    bias: bool = True
    """Whether the layers have biases."""

    def sizes(self) -> dict[str, int]:
        """The sizes by their letters."""
        return {letter: getattr(self, name) for letter, name in type(self).letters().items()}

    def at(self, sizes: Mapping[str, int]) -> Self:
        """Return a copy with other sizes, given by their letters."""
        return self.replace(**sizes)


class GraphSpec(Spec):
    """A graph whose nodes are to be classified: where it comes from, and which nodes are learned."""

    graph: str
    """A graph by name (cora, karate, blocks), a folder with nodes and edges, a table of edges, or a node-link JSON."""
    nodes_file: str | None = None
    """The table of nodes (id, label, features) that belongs to a table of edges."""
    labelled: int | None = Field(default=None, ge=1)
    """Nodes of each class that are learned from; 20 if unset, fewer where the graph is small."""
    validation: int = Field(default=500, ge=1)
    """Nodes to validate on; fewer where the graph is small."""
    test: int = Field(default=1000, ge=1)
    """Nodes to judge by at the end; fewer where the graph is small."""
    split: int | None = Field(default=None, ge=0)
    """The seed of the random split; the recipe's seed if unset, and then it stays when the run goes on with another."""
    nodes: int | None = Field(default=None, ge=2)
    """Of the generated graph `blocks`: how many nodes."""
    edges: int | None = Field(default=None, ge=1)
    """Of the generated graph `blocks`: how many edges."""
