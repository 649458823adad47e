"""The exact ranking against numpy's full sort, whatever the blocks, and against faiss."""

from pathlib import Path

import numpy as np
import pytest

from lemma.retrieval.index import Entry, Index, append, start
from lemma.retrieval.search import find, find_clustered


def unit(rows: int, width: int = 8, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("block", [1, 7, 100, 1000])
@pytest.mark.parametrize("k", [1, 5, 100, 300])
def test_it_is_numpys_stable_sort_of_all_scores_whatever_the_blocks(block: int, k: int) -> None:
    rows, queries = unit(200), unit(3, seed=1)
    found = find(rows, queries, k, block)
    scores = queries @ rows.T
    wanted = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    assert found.rows.tolist() == wanted.tolist()
    np.testing.assert_allclose(found.scores, np.take_along_axis(scores, wanted, 1), atol=1e-6)


@pytest.mark.parametrize("block", [3, 64])
def test_equal_scores_come_in_the_order_of_their_rows(block: int) -> None:
    rows = np.zeros((50, 2), dtype=np.float32)
    rows[:, 0], rows[20:25, 0] = 0.5, 1.0
    found = find(rows, np.array([[1, 0]], dtype=np.float32), 9, block)
    assert found.rows.tolist() == [[20, 21, 22, 23, 24, 0, 1, 2, 3]]


def test_no_rows_and_no_queries_give_nothing() -> None:
    assert find(np.zeros((0, 4), dtype=np.float32), unit(2, 4), 3).rows.shape == (2, 0)
    assert find(unit(5, 4), np.zeros((0, 4), dtype=np.float32), 3).rows.shape == (0, 3)


def made_index(place: Path, vectors: np.ndarray) -> Index:
    place.mkdir()
    head = start(place, "run", vectors.shape[1], "pictures").header
    append(place, head, [Entry(str(row), 1, 1, str(row)) for row in range(len(vectors))], vectors)
    return Index.open(place)


def test_faiss_with_all_cells_looked_at_finds_what_the_exact_ranking_finds(tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="faiss-cpu is an extra")
    vectors, queries = unit(900, 16), unit(4, 16, seed=2)
    index = made_index(tmp_path / "index", vectors)
    all_cells, exact = find_clustered(index, queries, 10, looked=1000), find(vectors, queries, 10)
    assert all_cells.rows.tolist() == exact.rows.tolist()
    np.testing.assert_allclose(all_cells.scores, exact.scores, atol=1e-6)
    few = find_clustered(index, queries, 10, looked=1)
    assert (few.scores[:, 0] <= exact.scores[:, 0] + 1e-6).all()
    assert [file.name for file in index.place.glob("cells-*")] == ["cells-0-900.faiss"]
