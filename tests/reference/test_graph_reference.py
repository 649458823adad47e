"""The normalised adjacency and the graph layer against networkx and, where it is installed, torch_geometric."""

import networkx as nx
import numpy as np
import pytest
import torch

from lemma.data.graphs import build_karate_graph, prepare_graph
from lemma.layers.graph import GraphConvolution, build_adjacency
from lemma.spec.data import GraphSpec


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_symmetric_adjacency_matches_networkx_with_self_loops(seed: int, weighted: bool):
    graph = nx.gnp_random_graph(30, 0.2, seed=seed)
    random = np.random.default_rng(seed)
    for item, other in graph.edges:
        graph.edges[item, other]["weight"] = float(random.random() + 0.1) if weighted else 1.0
    edges = torch.tensor(list(graph.edges)).T
    weights = torch.tensor([graph.edges[edge]["weight"] for edge in graph.edges], dtype=torch.double)
    ours = build_adjacency(edges, len(graph), weights=weights).to_dense().numpy()
    graph.add_edges_from([(node, node, {"weight": 1.0}) for node in graph])
    degrees = nx.to_numpy_array(graph).sum(axis=1)  # networkx counts a loop twice in a degree, D̃ once
    expected = nx.to_numpy_array(graph) / np.sqrt(np.outer(degrees, degrees))
    np.testing.assert_allclose(ours, expected, atol=1e-12)


def test_adjacency_is_identity_minus_networkx_laplacian() -> None:
    graph = nx.karate_club_graph()
    graph.add_edges_from([(node, node) for node in graph])
    matrix = (nx.to_numpy_array(graph) > 0).astype(float)
    laplacian = nx.normalized_laplacian_matrix(nx.from_numpy_array(matrix)).toarray()
    ends = torch.tensor([edge for edge in graph.edges if edge[0] != edge[1]]).T
    ones = torch.ones(ends.shape[1], dtype=torch.double)
    np.testing.assert_allclose(
        np.eye(34) - build_adjacency(ends, 34, weights=ones).to_dense().numpy(), laplacian, atol=1e-12
    )


def test_karate_club_matches_zachary_and_its_recorded_hash() -> None:
    club = build_karate_graph()
    degrees = np.bincount(club.edges.ravel(), minlength=34)
    assert club.edges.shape == (2, 78) and (degrees[0], degrees[32], degrees[33]) == (
        16,
        12,
        17,
    )  # Zachary 1977, fig. 1
    assert [member for member, label in zip(club.node_names, club.labels, strict=True) if label == "Mr. Hi"] == [
        str(member) for member in (*range(1, 10), 11, 12, 13, 14, 17, 18, 20, 22)
    ]
    assert club.hash == "083d60c06cce1b98c139c6e7dd7e600a10d81d6f4c89def9ede918c5c95362eb"


def test_networkx_node_link_file_round_trips(tmp_path) -> None:
    import json

    graph = nx.karate_club_graph()
    (tmp_path / "club.json").write_text(json.dumps(nx.node_link_data(graph, edges="links")))
    read = prepare_graph(GraphSpec(graph=str(tmp_path / "club.json")), seed=1)
    full = read.item("train").graph
    assert read.labels == ("Mr. Hi", "Officer") and full.features.shape == (34, 34)
    assert {tuple(edge) for edge in full.edges.T.tolist()} == {tuple(sorted(edge)) for edge in graph.edges}
    settings = {tuple(sorted(edge)): graph.edges[edge]["weight"] for edge in graph.edges}
    assert full.weights is not None
    assert {tuple(e): w for e, w in zip(full.edges.T.tolist(), full.weights.tolist(), strict=True)} == settings


def test_graph_convolution_equals_torch_geometric() -> None:
    geometric = pytest.importorskip("torch_geometric.nn")
    graph = nx.gnp_random_graph(20, 0.3, seed=1)
    edges = torch.tensor(list(graph.edges)).T
    layer, other = GraphConvolution(5, 3), geometric.GCNConv(5, 3)
    other.load_state_dict({"bias": layer.bias, "lin.weight": layer.map.weight})
    features = torch.randn(20, 5)
    expected = other(features, torch.cat([edges, edges.flip(0)], dim=1))
    torch.testing.assert_close(layer(features, build_adjacency(edges, 20)), expected)
