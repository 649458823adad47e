"""A graph is read as a whole: one batch, the same at every step."""

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from lemma.data import GraphNodes
from lemma.errors import SpecError
from lemma.models import graph_inputs
from lemma.spec import Recipe
from lemma.training.parallel import Team


class GraphFeed:
    """The graph on the device, and the nodes whose classes are learned: all of them at every step."""

    even = False
    """Whether compiling is worth it: sparse products are compiled already."""

    apart = True
    """The same few nodes are read at every step, which is as it should be."""

    def __init__(self, model: Any, chosen: GraphNodes, recipe: Recipe, team: Team) -> None:
        if team.size > 1 or recipe.accumulate > 1:
            raise SpecError(
                "a graph is learned as a whole: it is neither shared by several processes nor cut into parts. "
                "Train it in one process, with accumulate=1."
            )
        self.features, self.adjacency = graph_inputs(chosen.graph, model.spec.normalise, team.device)
        self.nodes = torch.from_numpy(chosen.nodes).to(team.device)
        self.classes = torch.from_numpy(chosen.classes).to(team.device)
        self.stretch, self.tokens_a_step = 1, len(chosen)

    def batch(self, step: int) -> tuple[Int[Tensor, "nodes"], Int[Tensor, "nodes"]]:
        """Return the nodes that are learned, and the class of each."""
        return self.nodes, self.classes

    def share(self, targets: Int[Tensor, "nodes"], parts: int) -> float:
        """How much a part of the batch counts: it is the whole."""
        return 1.0

    def fresh(self, step: int) -> bool:
        """Whether a carried state is to be forgotten: there is none."""
        return True

    def close(self) -> None:
        """Let go of what was taken."""
