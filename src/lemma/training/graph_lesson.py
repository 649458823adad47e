"""What a graph model learns: the classes of a few nodes, through the whole graph."""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.models import GraphModel
from lemma.objectives import cross_entropy
from lemma.training.graph_feed import GraphFeed

Learned = tuple[Float[Tensor, ""], tuple[Float[Tensor, ""], ...], None]
"""What is minimised, the terms that are reported, and no state."""


class GraphLesson(nn.Module):
    """A graph model that says which class each of the nodes belongs to."""

    terms = ("loss",)

    def __init__(self, model: GraphModel, feed: GraphFeed, smoothing: float) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing
        self.features, self.adjacency = feed.features, feed.adjacency

    def forward(self, nodes: Int[Tensor, "chosen"], classes: Int[Tensor, "chosen"], state: Any = None) -> Learned:
        """Return the smoothed mean loss, to be minimised, and the true one, to be reported."""
        logits = self.model(self.features, self.adjacency)[nodes]
        objective, loss = cross_entropy(logits, classes, self.smoothing)
        return objective, (loss,), None
