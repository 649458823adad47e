"""What a graph model says of the nodes of a graph."""

import numpy as np
from jaxtyping import Float

from lemma.data.graphs import NodeGraph
from lemma.models.base import measuring
from lemma.models.graph import GraphInputs, GraphModel, graph_inputs


def classify_nodes(
    model: GraphModel, graph: NodeGraph, inputs: GraphInputs | None = None
) -> Float[np.ndarray, "nodes classes"]:
    """The probability of each class for each node; `inputs` is the graph where it was laid out before."""
    with measuring(model) as device:
        features, adjacency = inputs or graph_inputs(graph, model.spec.normalise, device)
        return model(features, adjacency).double().softmax(-1).cpu().numpy()
