"""A generated graph: communities that are denser within than between, with features that only hint at them.

The stochastic block model (Holland, Laskey & Leinhardt 1983), drawn edge by edge, so that time and memory grow with the
edges and not with the pairs of nodes.
"""

import numpy as np
from jaxtyping import Float32, Int64

from lemma.data.graphs.raw import Pairs, RawGraph, each_once
from lemma.data.hashing import text_sum
from lemma.errors import SpecError

NODES, DEGREE = 1000, 10
CLASSES, FEATURES = 4, 16
WITHIN = 0.7
"""The share of the edges that are drawn within a community."""
HINT = 0.5
"""How far the means of two communities lie apart in a feature, in standard deviations of its noise, about."""
SPARSE = 16
"""At most nodes²/16 edges, so that few draws hit an edge that is there already."""


def blocks(nodes: int | None = None, edges: int | None = None, seed: int = 0) -> RawGraph:
    """Draw communities, edges and features; the same sizes and seed give the same graph.

    >>> blocks(100, 300).edges.shape
    (2, 300)
    """
    nodes = nodes or NODES
    edges = edges or nodes * DEGREE // 2
    _refuse_dense(nodes, edges)
    random = np.random.default_rng(seed)
    classes = random.permutation(np.arange(nodes) % CLASSES)
    said = f"blocks nodes={nodes} edges={edges} seed={seed} classes={CLASSES} features={FEATURES} {WITHIN} {HINT}"
    return RawGraph(
        names=list(map(str, range(nodes))),
        labels=[f"community {number + 1}" for number in classes.tolist()],
        features=_features(random, classes),
        edges=_edges(random, classes, edges),
        weights=None,
        hash=text_sum(said),
        about=f"blocks of {nodes:,} nodes and {edges:,} edges",
    )


def _edges(random: np.random.Generator, classes: Int64[np.ndarray, "nodes"], wanted: int) -> Pairs:
    """Draw edges until so many different ones are there, and keep so many of them by lot."""
    drawn = np.zeros((2, 0), dtype=np.int64)
    while drawn.shape[1] < wanted:
        more = _draw(random, classes, (wanted - drawn.shape[1]) * 5 // 4 + 16)
        drawn, _, _ = each_once(np.concatenate([drawn, more], axis=1), None, len(classes))
    kept = np.sort(random.permutation(drawn.shape[1])[:wanted])
    return drawn[:, kept]


def _draw(random: np.random.Generator, classes: Int64[np.ndarray, "nodes"], count: int) -> Pairs:
    """Edges from anywhere, to anywhere or to a node of the same community; loops among them."""
    order = np.argsort(classes, kind="stable")
    starts = np.searchsorted(classes[order], np.arange(CLASSES + 1))
    source, target = random.integers(len(classes), size=(2, count))
    home = classes[source]
    near = order[starts[home] + (random.random(count) * (starts[home + 1] - starts[home])).astype(np.int64)]
    return np.stack([source, np.where(random.random(count) < WITHIN, near, target)])


def _features(
    random: np.random.Generator, classes: Int64[np.ndarray, "nodes"]
) -> Float32[np.ndarray, "nodes features"]:
    means = HINT * random.standard_normal((CLASSES, FEATURES), dtype=np.float32)
    return means[classes] + random.standard_normal((len(classes), FEATURES), dtype=np.float32)


def _refuse_dense(nodes: int, edges: int) -> None:
    if nodes < 8 * CLASSES:
        raise SpecError(f"data.nodes = {nodes}: a graph of {CLASSES} blocks needs at least {8 * CLASSES} nodes.")
    if edges > nodes**2 // SPARSE:
        raise SpecError(
            f"data.edges = {edges:,} is too dense for {nodes:,} nodes: at most {nodes**2 // SPARSE:,} edges are drawn."
        )
