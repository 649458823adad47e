"""Search compared with the model itself, re-ranking, results and refused requests."""

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lemma
from lemma.data.images import decode_image, normalise_caption
from lemma.errors import DataError, InputError, LemmaError, RunError, SpecError
from lemma.models.dual_encoder import CrossAttentionModel, DualEncoderModel
from lemma.retrieval.embedding import Embedder
from lemma.retrieval.index import Index, IndexEntry, append_entries, create_index
from lemma.retrieval.result import IndexCounts, SearchResult
from lemma.retrieval.search import find_nearest, find_nearest_faiss
from lemma.runs.load import Run, load
from lemma.spec.models import Lstm
from search_runs import LSTM, SPEC, WORDS, image_folder, untrained_reranker, untrained_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load(untrained_run(tmp_path_factory.mktemp("runs") / "run"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("data") / "pictures")


@pytest.fixture(autouse=True)
def isolated_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "home"))


def search(run: Run | Path, **words: Any) -> SearchResult:
    result = lemma.search(run, progress=False, **words)
    assert isinstance(result, SearchResult)
    return result


def cosines(run: Run, folder: Path, text: str) -> dict[str, float]:
    """Return the model's cosines of a text and every image, computed one at a time."""
    inner = run.tokenizer.encode(normalise_caption(text))[:6]  # the context holds eight tokens, special tokens included
    tokens = torch.tensor([[run.tokenizer.vocabulary, *inner, run.tokenizer.vocabulary + 1]])
    with torch.no_grad():
        sought = run.require(DualEncoderModel, "a dual encoder").text_vectors(tokens)
        return {
            path.relative_to(folder).as_posix(): float(
                run.require(DualEncoderModel, "a dual encoder").image_vectors(
                    torch.from_numpy(decode_image(path, SPEC.image_side))[None]
                )
                @ sought[0]
            )
            for path in folder.rglob("*.png")
        }


def test_text_query_ranks_images_as_the_model_does(run: Run, folder: Path) -> None:
    result = search(run, images=folder, query=["a red", "blue"], k=5)
    for answer, text in zip(result.answers, ["a red", "blue"], strict=True):
        expected = sorted(cosines(run, folder, text).items(), key=lambda item: -item[1])[:5]
        assert [hit.name for hit in answer.hits] == [name for name, _ in expected]
        assert [hit.score for hit in answer.hits] == pytest.approx([score for _, score in expected], abs=1e-5)
        assert [hit.rank for hit in answer.hits] == [1, 2, 3, 4, 5]
    assert (result.counts.indexed, result.counts.new, result.method) == (12, 12, "exact")
    assert search(run, images=folder, query="blue").counts.new == 0


def test_image_query_excludes_itself(run: Run, folder: Path) -> None:
    path = folder / "00-red-circle.png"
    (answer,) = search(run, images=folder, image=path, k=20).answers
    assert len(answer.hits) == 11 and path.name not in [hit.name for hit in answer.hits]
    copy = folder.parent / "elsewhere.png"
    shutil.copy(path, copy)
    (answer,) = search(run, images=folder, image=copy, k=3).answers
    assert answer.hits[0].name == path.name and answer.hits[0].score == pytest.approx(1, abs=1e-5)


def test_image_query_ranks_texts_as_the_model_does(run: Run, folder: Path, tmp_path: Path) -> None:
    path = folder / "00-red-circle.png"
    (tmp_path / "texts.txt").write_text("\n".join(WORDS))
    (answer,) = search(run, image=path, texts=tmp_path / "texts.txt", k=4).answers
    scores = {text: cosines(run, folder, text)[path.name] for text in WORDS}
    expected = sorted(scores, key=lambda text: -scores[text])[:4]
    # texts are cut to six characters, so that some are equal: then the earlier one comes first
    assert [hit.score for hit in answer.hits] == pytest.approx([scores[text] for text in expected], abs=1e-5)
    assert [hit.name for hit in answer.hits] == expected


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", "id,caption\n1,a red\n2,a blue\n"),
        ("t.tsv", "text\na red\na blue\n"),
        ("t.jsonl", '{"id": "1", "text": "a red"}\n{"id": "2", "text": "a blue"}\n'),
        ("t.txt", "\ufeffa red\n\n a blue \n"),
    ],
)
def test_texts_are_read_from_lines_and_columns(run: Run, folder: Path, tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    (answer,) = search(run, image=folder / "00-red-circle.png", texts=tmp_path / name).answers
    assert sorted(hit.name for hit in answer.hits) == ["a blue", "a red"]


def test_texts_without_known_tokens_are_skipped_and_counted(run: Run, folder: Path) -> None:
    result = search(run, image=folder / "00-red-circle.png", texts=["a red", "ЖЖ"])
    assert result.counts.indexed == 1 and "1 text left out" in result.notes[0]


def test_index_is_searchable_without_its_images(run: Run, folder: Path, tmp_path: Path) -> None:
    ours = Path(shutil.copytree(folder, tmp_path / "mine"))
    first = search(run, images=ours, query="a red", index=tmp_path / "index")
    shutil.rmtree(ours)
    second = search(run, query="a red", index=tmp_path / "index")
    assert [hit.name for hit in second.answers[0].hits] == [hit.name for hit in first.answers[0].hits]
    assert "the image is not here" in second._repr_html_() and "<img" not in second._repr_html_()
    with pytest.raises(RunError, match="another run"):
        search(untrained_run(tmp_path / "other", seed=2), query="a red", index=tmp_path / "index")


def test_reranker_orders_first_hits_by_its_logits(folder: Path, tmp_path: Path) -> None:
    loaded = load(untrained_reranker(tmp_path / "reranker", candidates=4))
    model = loaded.module
    assert isinstance(model, CrossAttentionModel)
    torch.nn.init.normal_(model.score.weight, std=3)
    result = search(loaded, images=folder, query="a red", k=6)
    (answer,) = result.answers
    rows = list(csv.DictReader(result.save(tmp_path / "found.csv").open()))
    assert [row["reranked_score"] for row in rows] == [str(hit.reranked_score) for hit in answer.hits[:4]] + ["", ""]
    assert all(f"re-ranked {hit.reranked_score:.3f}</h3>" in result._repr_html_() for hit in answer.hits[:4])
    base = sorted(cosines(loaded, folder, "a red").items(), key=lambda item: -item[1])
    assert {hit.name for hit in answer.hits[:4]} == {name for name, _ in base[:4]}
    assert [hit.name for hit in answer.hits[4:]] == [name for name, _ in base[4:6]]
    assert [hit.reranked_score is None for hit in answer.hits] == [False] * 4 + [True] * 2
    tokenizer = loaded.tokenizer
    tokens = torch.tensor(
        [[tokenizer.vocabulary, *tokenizer.encode(normalise_caption("a red")), tokenizer.vocabulary + 1]]
    )
    logits = []
    for hit in answer.hits[:4]:
        pixels = torch.from_numpy(decode_image(folder / hit.name, SPEC.image_side))[None]
        with torch.no_grad():
            parts = model.towers.patches(pixels), model.towers.words(tokens), tokens >= 0
            logits.append(float(model.logits(*parts)))
    assert logits == sorted(logits, reverse=True)
    assert [hit.reranked_score for hit in answer.hits[:4]] == pytest.approx(logits, abs=1e-4)
    (texts,) = search(loaded, image=folder / answer.hits[0].name, texts=WORDS, k=12).answers
    again = [hit.reranked_score for hit in texts.hits if hit.reranked_score is not None]
    assert len(again) == 4 and again == sorted(again, reverse=True)


def test_text_body_without_special_tokens_gets_none(folder: Path, tmp_path: Path) -> None:
    run = load(untrained_run(tmp_path / "lstm", spec=LSTM))
    vectors, _ = Embedder(run).text_vectors(["a red", "a blue square"])
    with torch.no_grad():
        single = run.require(DualEncoderModel, "a dual encoder").text_vectors(
            torch.from_numpy(run.tokenizer.encode(normalise_caption("a red")))[None]
        )
    np.testing.assert_allclose(vectors[0], single[0].numpy(), atol=1e-5)


def test_note_lists_ignored_query_tokens(folder: Path, tmp_path: Path) -> None:
    run = load(untrained_run(tmp_path / "words", words=True))
    result = search(run, images=folder, query=["a red zebra", "a a a a a a a red"])
    assert result.answers[0].note == "1 word of 3 unknown"
    assert result.answers[1].note == "only the first 6 of 8 tokens were read"
    with pytest.raises(InputError, match="has no token that the run's tokenizer knows"):
        search(run, images=folder, query="zebra")


def test_conflicting_settings_are_refused_before_reading(run: Run, folder: Path) -> None:
    image = folder / "00-red-circle.png"
    wrong: list[tuple[dict[str, Any], type[LemmaError], str]] = [
        ({"images": folder}, InputError, "query or image: give exactly one of them to search for, got neither"),
        ({"images": folder, "query": "a", "image": image}, InputError, "got both"),
        ({"query": "a"}, InputError, "images (or index) or texts: give exactly one of them to search in, got neither"),
        ({"image": image, "images": folder, "texts": ["a"]}, InputError, "got both"),
        ({"query": "a", "texts": ["a"]}, InputError, "texts are ranked for an image"),
        ({"images": folder, "query": " "}, InputError, "query is empty"),
        ({"images": folder, "query": []}, InputError, "query is an empty list"),
        ({"images": folder, "query": ["a", 3]}, InputError, "query 2 is 3 (int), not a text"),
        ({"images": folder, "query": "a", "k": 0}, SpecError, "k = 0"),
        ({"images": folder, "query": "ЖЖ"}, InputError, "knows"),
        ({"images": folder, "query": "a", "text_column": "x"}, InputError, "no texts are given"),
        ({"images": folder / "nowhere" / "x", "query": "a"}, DataError, "there is no such folder"),
        ({"images": "emojy", "query": "a"}, DataError, "Did you mean 'emoji'"),
        ({"images": image, "query": "a"}, DataError, "is a file"),
        ({"images": folder, "image": folder / "no.png"}, InputError, "there is no such image"),
        ({"images": folder, "image": folder}, InputError, "is a folder"),
        ({"image": image, "texts": folder / "no.txt"}, DataError, "there is no such file"),
        ({"index": folder, "query": "a"}, RunError, "holds no index"),
        ({"images": folder, "query": "a", "top": 3}, SpecError, "unknown setting"),
    ]
    for words, kind, message in wrong:
        with pytest.raises(kind, match=re.escape(message)):
            search(run, **words)


def test_folder_without_readable_images_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no image that can be searched"):
        search(run, images=tmp_path / "empty", query="a")
    (tmp_path / "empty" / "bad.png").write_bytes(b"x")
    with pytest.raises(DataError, match=r"1 broken: bad\.png: not an image of a known format"):
        search(run, images=tmp_path / "empty", query="a")


def test_run_without_image_tower_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a dual encoder"):
        search(untrained_run(tmp_path / "lstm", spec=Lstm(width=4, hidden=4)), images=folder, query="a")


def test_control_characters_and_html_in_names_are_escaped_everywhere(run: Run, tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "pictures", 3)
    evil = "<img src=x onerror=alert(1)>\x1b[2J.png"
    (folder / "00-red-circle.png").rename(folder / evil)
    (folder / "bad.png").write_bytes(b"x")
    result = search(run, images=folder, query="a <b>&", k=3)
    page = result.save(tmp_path / "found.html").read_text()
    assert "<img src=x" not in page and "&lt;img src=x" in page and "a &lt;b&gt;&amp;" in page
    assert page.count('src="data:image/png;base64,') == 3 and "http" not in page and "<script" not in page
    assert "bad.png: not an image of a known format" in page
    printed = str(result)
    assert (
        "\x1b" not in printed and max(len(line) for line in printed.splitlines() if "/" not in line) <= 80
    )  # a path may be longer


def test_search_result_is_saved_as_json_and_table(run: Run, folder: Path, tmp_path: Path) -> None:
    result = search(run, images=folder, query=["a red", "blue"], k=2)
    base = json.loads(result.save(tmp_path / "found.json").read_text())
    assert base["answers"][0]["hits"][0]["name"] == result.answers[0].hits[0].name and base["indexed"] == 12
    rows = list(csv.DictReader(result.save(tmp_path / "found.csv").open()))
    assert [(row["query"], row["rank"]) for row in rows] == [
        ("a red", "1"),
        ("a red", "2"),
        ("blue", "1"),
        ("blue", "2"),
    ]
    with pytest.raises(InputError, match=r"unknown ending of the name '\.pdf'"):
        result.save(tmp_path / "found.pdf")


def test_search_method_is_never_truncated() -> None:
    mode = "not exact: faiss looked at 8 of 256 cells"
    result = SearchResult("run", "pictures", "a/very/long/path/" * 9, (), IndexCounts(5), mode)
    assert mode in str(result).splitlines()


# The ranking against numpy's full sort, and faiss against the ranking


def unit(rows: int, width: int = 8, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("block", [1, 7, 100, 1000])
@pytest.mark.parametrize("k", [1, 5, 100, 300])
def test_nearest_rows_match_a_stable_sort(block: int, k: int) -> None:
    rows, queries = unit(200), unit(3, seed=1)
    result = find_nearest(rows, queries, k, block)
    scores = queries @ rows.T
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    assert result.rows.tolist() == expected.tolist()
    np.testing.assert_allclose(result.scores, np.take_along_axis(scores, expected, 1), atol=1e-6)


@pytest.mark.parametrize("block", [3, 64])
def test_equal_scores_are_ordered_by_row(block: int) -> None:
    rows = np.zeros((50, 2), dtype=np.float32)
    rows[:, 0], rows[20:25, 0] = 0.5, 1.0
    result = find_nearest(rows, np.array([[1, 0]], dtype=np.float32), 9, block)
    assert result.rows.tolist() == [[20, 21, 22, 23, 24, 0, 1, 2, 3]]


def test_empty_rows_or_queries_return_nothing() -> None:
    assert find_nearest(np.zeros((0, 4), dtype=np.float32), unit(2, 4), 3).rows.shape == (2, 0)
    assert find_nearest(unit(5, 4), np.zeros((0, 4), dtype=np.float32), 3).rows.shape == (0, 3)


def write_index(index_folder: Path, vectors: np.ndarray) -> Index:
    index_folder.mkdir()
    head = create_index(index_folder, "run", vectors.shape[1], "pictures").header
    append_entries(index_folder, head, [IndexEntry(str(row), 1, 1, str(row)) for row in range(len(vectors))], vectors)
    return Index.open(index_folder)


def test_faiss_searching_all_cells_matches_exact_ranking(tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="faiss-cpu is an extra")
    vectors, queries = unit(900, 16), unit(4, 16, seed=2)
    index = write_index(tmp_path / "index", vectors)
    all_cells, exact = find_nearest_faiss(index, queries, 10, num_probes=1000), find_nearest(vectors, queries, 10)
    assert all_cells.rows.tolist() == exact.rows.tolist()
    np.testing.assert_allclose(all_cells.scores, exact.scores, atol=1e-6)
    few = find_nearest_faiss(index, queries, 10, num_probes=1)
    assert (few.scores[:, 0] <= exact.scores[:, 0] + 1e-6).all()
    assert [file.name for file in index.folder.glob("cells-*")] == ["cells-0-900.faiss"]
