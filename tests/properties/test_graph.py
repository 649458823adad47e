"""Properties of Â = D̃^{-1/2} (A + I) D̃^{-1/2} and of the graph layer, over random graphs (problem D4)."""

from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from lemma.layers import graph as sparse_part
from lemma.layers.graph import GraphConvolution, build_adjacency
from lemma.models.build import build
from lemma.spec.models import Graph as GraphModelSpec

NEAR = 1e-12


def disconnected(size: int, seed: int) -> nx.Graph:
    return nx.disjoint_union(nx.star_graph(size // 2 + 1), nx.gnp_random_graph(size // 2 + 1, 0.4, seed=seed))


KINDS = {
    "random": lambda size, seed: nx.gnp_random_graph(size, 0.3, seed=seed),
    "star": lambda size, seed: nx.star_graph(size - 1),
    "path": lambda size, seed: nx.path_graph(size),
    "regular": lambda size, seed: nx.random_regular_graph(2 + 2 * (seed % 2), max(size, 6), seed=seed),
    "disconnected": disconnected,
    "cliques": lambda size, seed: nx.disjoint_union(nx.complete_graph(size), nx.complete_graph(3)),
    "no edges": lambda size, seed: nx.empty_graph(size),
}
graphs = st.builds(
    lambda kind, size, seed: KINDS[kind](size, seed),
    st.sampled_from(sorted(KINDS)),
    st.integers(3, 14),
    st.integers(0, 10_000),
)
many = settings(max_examples=40, deadline=None)


def edges_of(graph: nx.Graph) -> Tensor:
    return torch.tensor(list(graph.edges), dtype=torch.long).reshape(-1, 2).T


def matrix_of(graph: nx.Graph, kind: str) -> np.ndarray:
    edges = edges_of(graph)
    ones = torch.ones(edges.shape[1], dtype=torch.double)
    return build_adjacency(edges, len(graph), kind, ones).to_dense().numpy()  # pyright: ignore[reportArgumentType]


@many
@given(graphs)
def test_symmetric_normalization_has_spectral_norm_one(graph: nx.Graph) -> None:
    """D̃^{1/2} 1 is an eigenvector of Â of eigenvalue 1, and xᵀ(I − Â)x = ½ Σ ã_ij (x_i/√d_i − x_j/√d_j)² ≥ 0, as is
    xᵀ(I + Â)x with a plus between: all eigenvalues lie in [−1, 1]."""
    matrix = matrix_of(graph, "symmetric")
    assert np.array_equal(matrix, matrix.T)
    assert np.abs(np.linalg.eigvalsh(matrix)).max() == pytest.approx(1, abs=NEAR)


@many
@given(graphs, st.integers(0, 1000))
def test_spectral_norm_is_one_for_all_edge_weights(graph: nx.Graph, seed: int) -> None:
    edges = edges_of(graph)
    powers = np.random.default_rng(seed).uniform(-40, 38, edges.shape[1])
    weights = torch.from_numpy(10**powers).float()
    matrix = build_adjacency(edges, len(graph), weights=weights).to_dense().numpy()
    assert np.array_equal(matrix, matrix.T)
    assert np.linalg.norm(matrix.astype(np.float64), 2) == pytest.approx(1, abs=1e-5)
    rows = build_adjacency(edges, len(graph), "rows", weights).to_dense().numpy()
    np.testing.assert_allclose(rows.sum(axis=1), 1, atol=1e-5)


@many
@given(graphs)
def test_row_normalized_adjacency_sums_to_one(graph: nx.Graph) -> None:
    np.testing.assert_allclose(matrix_of(graph, "rows").sum(axis=1), 1, atol=NEAR)


@many
@given(graphs)
def test_symmetric_rows_sum_to_one_iff_components_are_regular(graph: nx.Graph) -> None:
    """Row i sums to Σ_j ã_ij / √(d_i d_j). If all nodes of a component have one degree d, that is d/d = 1.

    Conversely let all rows sum to 1: Â1 = 1. The eigenvalue 1 of Â has multiplicity one on each connected component
    (Perron–Frobenius: Ã there is irreducible), with the eigenvector D̃^{1/2}1; so 1 is a multiple of (√d_i) on it, that
    is, d_i is constant on the component.
    """
    even = all(len({graph.degree(node) for node in part}) == 1 for part in nx.connected_components(graph))
    sums = matrix_of(graph, "symmetric").sum(axis=1)
    assert bool(np.allclose(sums, 1, atol=1e-9)) == even


@many
@given(graphs)
def test_symmetric_layers_never_enlarge_features(graph: nx.Graph) -> None:
    features = np.random.default_rng(1).standard_normal((len(graph), 3))
    moved = np.linalg.matrix_power(matrix_of(graph, "symmetric"), 20) @ features
    assert np.linalg.norm(moved) <= np.linalg.norm(features) * (1 + NEAR)


def layer_and_inputs(graph: nx.Graph, kind: str, into: int = 5, out: int = 4) -> Any:
    torch.manual_seed(len(graph))
    edges = edges_of(graph)
    ones = torch.ones(edges.shape[1], dtype=torch.double)
    sparse = build_adjacency(edges, len(graph), kind, ones)  # pyright: ignore[reportArgumentType]
    return GraphConvolution(into, out).double(), torch.randn(len(graph), into, dtype=torch.double), sparse


@many
@given(graphs)
def test_row_normalized_layer_is_attention_over_neighbors(graph: nx.Graph) -> None:
    """softmax(log w) = w where w sums to one: attention with scores 0 and log w as its mask has just these weights."""
    layer, features, rows = layer_and_inputs(graph, "rows")
    values, nothing = layer.map(features)[None], torch.zeros(1, len(graph), 2, dtype=torch.double)
    attended = functional.scaled_dot_product_attention(nothing, nothing, values, attn_mask=rows.to_dense().log())
    torch.testing.assert_close(layer(features, rows), attended[0] + layer.bias)


@many
@given(graphs)
def test_symmetric_layer_is_unnormalized_attention_over_neighbors(graph: nx.Graph) -> None:
    layer, features, sparse = layer_and_inputs(graph, "symmetric")
    values: Any = layer.map(features)
    neighbours = [[*graph[node], node] for node in graph]
    degree = [len(neighbour) for neighbour in neighbours]
    by_hand: Any = [
        sum(values[j] / (degree[i] * degree[j]) ** 0.5 for j in neighbour) for i, neighbour in enumerate(neighbours)
    ]
    torch.testing.assert_close(layer(features, sparse), torch.stack(by_hand) + layer.bias)


@many
@given(graphs, st.sampled_from(["symmetric", "rows", "none", "alone"]), st.sampled_from([(5, 3), (3, 5)]))
def test_sparse_and_dense_adjacency_give_the_same_outputs_and_gradients(graph, kind, widths) -> None:
    layer, features, sparse = layer_and_inputs(graph, kind, *widths)
    results = []
    for adjacency in (sparse, sparse.to_dense()):
        custom = features.clone().requires_grad_()
        result = layer(custom, adjacency)
        results.append((result, *torch.autograd.grad(result.square().sum(), [custom, *layer.parameters()])))
    for item, other in zip(*results, strict=True):
        torch.testing.assert_close(item, other)


@pytest.mark.parametrize("kind", ["symmetric", "rows"])
def test_sparse_product_gradient_matches_finite_differences(kind: str) -> None:
    layer, features, sparse = layer_and_inputs(nx.star_graph(4), kind)
    assert torch.autograd.gradcheck(lambda x: layer(x, sparse), features.requires_grad_())


def test_index_width_does_not_change_products_or_gradients(monkeypatch) -> None:
    for kind in ("symmetric", "rows"):
        layer, features, narrow = layer_and_inputs(nx.star_graph(4), kind)
        with monkeypatch.context() as patch:
            patch.setattr(sparse_part, "INT32_LIMIT", 4)
            _, _, width = layer_and_inputs(nx.star_graph(4), kind)
        assert (narrow.columns.dtype, width.columns.dtype, width.row_offsets.dtype) == (
            torch.int32,
            torch.int64,
            torch.int64,
        )
        assert torch.equal(layer(features, narrow), layer(features, width))
        assert torch.autograd.gradcheck(
            lambda x, adjacency=width, custom=layer: custom(x, adjacency), features.requires_grad_()
        )


@many
@given(graphs, st.integers(0, 1000))
def test_graph_model_is_permutation_equivariant(graph: nx.Graph, seed: int) -> None:
    torch.manual_seed(seed)
    model = build(GraphModelSpec(features=4, hidden=6, classes=3, depth=3)).double()
    features, edges = torch.randn(len(graph), 4, dtype=torch.double), edges_of(graph)
    order = torch.randperm(len(graph))
    ones = torch.ones(edges.shape[1], dtype=torch.double)
    base = model(features, build_adjacency(edges, len(graph), weights=ones))
    moved = torch.empty_like(features)
    moved[order] = features
    torch.testing.assert_close(model(moved, build_adjacency(order[edges], len(graph), weights=ones))[order], base)


@many
@given(graphs, st.integers(0, 1000))
def test_edge_direction_duplicates_and_loops_are_ignored(graph: nx.Graph, seed: int) -> None:
    edges = edges_of(graph)
    rotated = torch.rand(edges.shape[1], generator=torch.Generator().manual_seed(seed)) < 0.5
    other = torch.where(rotated, edges.flip(0), edges)
    loops = torch.zeros(2, 1, dtype=torch.long)
    crowded = torch.cat([other, edges, loops], dim=1)
    assert torch.equal(build_adjacency(crowded, len(graph)).to_dense(), build_adjacency(edges, len(graph)).to_dense())
