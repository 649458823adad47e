"""Worked graphs match the adjacency of the graph layer; invalid cases are explained."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lemma
from lemma.checking.worked.graph import WorkedGraph, work_graph
from lemma.cli.main import main
from lemma.errors import InputError, SpecError
from lemma.layers.graph import build_adjacency
from lemma.report.text import display_width

KINDS = {"loops": "none", "symmetric": "symmetric", "rows": "rows"}


def random_edges(seed: int, nodes: int) -> list[list[str]]:
    draw = np.random.default_rng(seed)
    first, second = draw.integers(nodes, size=(2, 2 * nodes))
    return [[f"n{a}", f"n{b}"] for a, b in zip(first, second, strict=True)]


def random_graph(seed: int, nodes: int, **words: Any) -> WorkedGraph:
    return work_graph({"nodes": [f"n{index}" for index in range(nodes)], "edges": random_edges(seed, nodes), **words})


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.integers(2, 9))
def test_matrices_match_the_sparse_adjacency(seed: int, nodes: int) -> None:
    ends = torch.tensor([[int(name[1:]) for name in edge] for edge in random_edges(seed, nodes)]).T
    for name, kind in KINDS.items():
        part = build_adjacency(ends, nodes, kind).to_dense()  # pyright: ignore[reportArgumentType]
        np.testing.assert_allclose(random_graph(seed, nodes).steps.matrices[name], part.numpy(), atol=1e-6)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.integers(2, 9))
def test_norms_match_numpy_and_claim_requires_equal_neighbor_degrees(seed: int, nodes: int) -> None:
    steps = random_graph(seed, nodes).steps
    for name, matrix in steps.matrices.items():
        assert steps.properties[name].spectral_norm == pytest.approx(np.linalg.norm(matrix, 2), abs=1e-9)
        assert steps.properties[name].largest_eigenvalue == pytest.approx(
            np.abs(np.linalg.eigvals(matrix)).max(), abs=1e-9
        )
    first, second = np.nonzero(steps.adjacency)
    assert steps.rows_sum_to_one == bool((steps.degrees[first] == steps.degrees[second]).all())


@pytest.mark.parametrize("start", ["ones", "units"])
def test_power_norms_match_matrix_powers_times_features(start: str) -> None:
    steps = random_graph(3, 6, start=start, powers=5).steps
    for name, matrix in steps.matrices.items():
        powers = [np.linalg.matrix_power(matrix, k) @ steps.features for k in range(6)]
        expected = [(np.linalg.norm(power), np.abs(power).max()) for power in powers]
        np.testing.assert_allclose(steps.power_norms[name], expected, rtol=1e-12)


def test_layer_is_the_product_of_three_matrices() -> None:
    worked = work_graph("d4")
    case = worked.case.to_dict()
    expected = worked.steps.matrices["symmetric"] @ np.array(case["X"]) @ np.array(case["W"])
    np.testing.assert_allclose(worked.to_dict()["layer"], expected, rtol=1e-14)
    assert "0.25·1 + 0.3536·1.5 + 0.3536·0.5 + 0.2887·2.5 = 1.6788" in str(worked)


def test_claim_fails_on_star_with_path_and_holds_on_cycle() -> None:
    star, cycle = work_graph("d4"), work_graph("cycle")
    assert not star.to_dict()["claim"]["right"] and "Wrong: the rows of Â sum to 0.8536 up to 1.2458" in str(star)
    assert cycle.to_dict()["claim"]["right"] and "Right on this graph" in str(cycle)
    assert "Â[hub, a] = 1/√(4·2) = 0.3536" in str(star)


def test_disjoint_regular_components_have_normalized_rows() -> None:
    worked = work_graph({"edges": [["a", "b"], ["c", "d"], ["d", "e"], ["e", "c"]]})
    assert worked.steps.rows_sum_to_one and not worked.steps.is_regular
    assert "every connected part has one degree only" in str(worked) and "not all rows sum to one" in worked.verdict
    assert "exactly if every connected part is regular" in work_graph({"edges": [["a", "b"], ["b", "c"]]}).verdict


def test_large_graph_is_summarized_unless_full() -> None:
    short, full = (str(work_graph("karate", full=full)) for full in (False, True))
    assert "34 nodes, 78 edges" in short and "--full prints the matrices" in short
    assert len(short.splitlines()) < 60 < 300 < len(full.splitlines())


@pytest.mark.parametrize("example", ["d4", "cycle", "karate"])
@pytest.mark.parametrize("decimals", [0, 12])
def test_lines_fit_80_columns(example: str, decimals: int) -> None:
    text = str(work_graph(example, decimals=decimals, powers=50, full=True))
    assert max(map(display_width, text.splitlines())) <= 80


def test_saved_copy_reproduces_the_result(tmp_path: Path) -> None:
    worked = lemma.look("graph", "d4")
    for end in (".html", ".svg", ".md", ".txt", ".json", ".toml"):
        worked.save(tmp_path / f"d4{end}")
    assert work_graph(tmp_path / "d4.toml").to_dict() == worked.to_dict()
    assert json.loads((tmp_path / "d4.json").read_text()) == worked.to_dict()
    assert "<script" not in (tmp_path / "d4.html").read_text()


def test_node_names_are_escaped_in_html() -> None:
    page = work_graph({"edges": [["<b>", "x"]]})._repr_html_()
    assert "<b>" not in page and "&lt;b&gt;" in page


def test_edge_table_is_read_with_numeric_node_names(tmp_path: Path) -> None:
    table = tmp_path / "edges.csv"
    table.write_text("from,to\n1,2\n2,3\n")
    read, text = work_graph(table), work_graph({"edges": [[1, 2], [2, 3]]})
    assert read.steps.names == ("1", "2", "3")
    np.testing.assert_array_equal(read.steps.adjacency, text.steps.adjacency)


def test_ignored_weight_column_is_noted(tmp_path: Path) -> None:
    table = tmp_path / "edges.csv"
    table.write_text("source,target, Weight\n1,2,5\n2,3,1\n")
    worked = work_graph(table)
    assert worked.notes == ("The column 'Weight' is left out: here every edge counts 1.",)
    assert "'Weight' is left out" in str(worked)


def test_self_loops_and_duplicate_edges_are_noted() -> None:
    worked = work_graph({"edges": [["a", "a"], ["a", "b"], ["b", "a"]]})
    assert worked.steps.edges == 1 and "1 edge given twice" in str(worked) and "from a node to itself" in str(worked)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"nodes": ["anna", "ben"], "edges": [["anna", "bem"]]}, r"edge 1: .*Did you mean 'ben'"),
        ({"nodes": ["a", "a"], "edges": []}, "'a' is listed twice"),
        ({"nodes": [], "edges": []}, "the graph has no nodes"),
        ({"edges": [["a", "b", "c"]]}, "edge 1 has 3 ends"),
        ({"edges": "ab"}, "expected pairs of nodes"),
        ({"nodes": ["a"]}, "edges is missing"),
        ({"edges": [["a", "b"]], "X": [[1, 2]]}, "X has 1 row, expected 2.*transposed"),
        ({"edges": [["a", "b"]], "X": [[1, 2], [3]]}, "row 2 has 1 number"),
        ({"edges": [["a", "b"]], "X": [[1], ["one"]]}, "X: row 2, number 1"),
        ({"edges": [["a", "b"]], "X": [[1], [2]], "W": [[1, 2], [3, 4]]}, "W has 2 rows, expected 1"),
        ({"edges": [["a", "b"]], "focus": ["c"]}, "unknown focus 'c'"),
        ({"edges": [["a", "b"]], "powers": 0}, "powers = 0"),
        ({"edges": [[str(n), str(n + 1)] for n in range(500)]}, "501 nodes are too many"),
        ({"edges": [["a", "b"]], "weight": 1}, "unknown setting 'weight'"),
        ("e9", "lemma look lstm e9"),
        ("d5", "Did you mean 'd4'"),
    ],
)
def test_invalid_cases_are_explained(words: Any, message: str) -> None:
    with pytest.raises((InputError, SpecError), match=message):
        work_graph(words)


def test_command_prints_lists_examples_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    def look(*words: str) -> str:
        with pytest.raises(SystemExit) as exit_info:
            main(["look", "graph", *words])
        assert not exit_info.value.code
        return capsys.readouterr().out

    assert "lemma look graph cycle" in look("--list")
    assert json.loads(look("d4", "--json", "--powers", "2"))["norms"]["loops"][2] == pytest.approx(504**0.5)
    assert "row b: 0.3536 + 0.5 = 0.8536" in look("d4", "--node", "b")
