"""Re-ranking of the top candidates against sorting; the gain against its definition."""

import numpy as np
import pytest
import torch

from lemma.data.batches import TokenRows
from lemma.models.build import build
from lemma.models.dual_encoder import ImageTextPairs
from lemma.spec.models import CrossAttention, DualEncoder, Encoder
from lemma.tasks.reranking import PairLogits, TopK, reranking_loss, score_reranking, select_candidates, top_candidates
from lemma.tasks.retrieval_score import PairScores, Relevance, vector_scores

RANDOM = np.random.default_rng(5)


def table_scores(table: np.ndarray) -> PairScores:
    return PairScores(lambda rows: table[rows], lambda rows: table.T[rows])


def one_each(number: int) -> Relevance:
    return Relevance(np.arange(number), np.arange(number))


def ordered_by_hand(first: np.ndarray, second: np.ndarray, number: int) -> list[list[int]]:
    """Sort every row by the first scores, then its first few by the second ones."""
    rows = []
    for row, other in zip(first, second, strict=True):
        order = sorted(range(len(row)), key=lambda index: -row[index])
        few = sorted(order[:number], key=lambda index: -other[index])
        rows.append([*few, *order[number:]])
    return rows


@pytest.mark.parametrize("number", [2, 3, 7, 30])
def test_rescoring_sorts_only_the_candidates(number: int) -> None:
    first, second = RANDOM.normal(size=(5, 7)), RANDOM.normal(size=(5, 7))
    few = top_candidates(lambda rows: first[rows], 5, 7, number)
    put = TopK(few, np.take_along_axis(second, few, axis=1)).rescore(first, slice(0, 5))
    assert np.argsort(-put, axis=1).tolist() == ordered_by_hand(first, second, number)


def test_reranking_gain_ceiling_and_recall_match_reference() -> None:
    scores, remaining = RANDOM.normal(size=(40, 40)), RANDOM.normal(size=(40, 40)) + 3 * np.eye(40)
    result = score_reranking(table_scores(scores), one_each(40), 5, lambda i, t: remaining[i, t])
    after = np.array([row[0] for row in ordered_by_hand(scores, remaining, 5)]) == np.arange(40)
    before = scores.argmax(1) == np.arange(40)
    way = result.image_to_text
    assert (way.better, way.worse) == ((after & ~before).sum(), (before & ~after).sum())
    assert way.recall.value == pytest.approx(after.mean() - before.mean())
    assert result.scores.image_to_text.recall[1].value == pytest.approx(after.mean())
    assert result.baselines["dual encoder"].image_to_text.recall[1].value == pytest.approx(before.mean())
    among = np.array([i in row[:5] for i, row in enumerate(ordered_by_hand(scores, remaining, 5))])
    assert way.ceiling == pytest.approx(among.mean()) and after.mean() <= way.ceiling
    assert result.scores.image_to_text.recall[5].value == pytest.approx(among.mean())
    columns = np.array([row[0] for row in ordered_by_hand(scores.T, remaining.T, 5)]) == np.arange(40)
    assert result.scores.text_to_image.recall[1].value == pytest.approx(columns.mean())


def test_reranking_interval_matches_paired_bootstrap() -> None:
    scores, remaining = RANDOM.normal(size=(60, 60)) + np.eye(60), RANDOM.normal(size=(60, 60)) + 2 * np.eye(60)
    gain = score_reranking(
        table_scores(scores), one_each(60), 10, lambda i, t: remaining[i, t], samples=4000
    ).image_to_text
    after = np.array([row[0] for row in ordered_by_hand(scores, remaining, 10)]) == np.arange(60)
    gained = after.astype(float) - (scores.argmax(1) == np.arange(60))
    samples = gained[np.random.default_rng(1).integers(0, 60, (4000, 60))].mean(1)
    assert gain.recall.interval == pytest.approx(np.percentile(samples, [2.5, 97.5]), abs=0.02)


def test_reranking_with_equal_logits_gains_nothing() -> None:
    images, texts = RANDOM.normal(size=(30, 4)), RANDOM.normal(size=(30, 4))
    products = images @ texts.T
    result = score_reranking(vector_scores(images, texts), one_each(30), 6, lambda i, t: 7 * products[i, t] + 2)
    assert result.scores.to_dict() == result.baselines["dual encoder"].to_dict()
    for gain in (result.image_to_text, result.text_to_image):
        assert (gain.recall.value, gain.better, gain.worse, gain.recall.interval) == (0, 0, 0, [0, 0])


def test_evaluation_loss_equals_training_loss_for_single_captions() -> None:
    scores, remaining = RANDOM.normal(size=(12, 12)), RANDOM.normal(size=(12, 12))
    np.fill_diagonal(scores, 5.0)  # in training the correct item is always a candidate
    result = score_reranking(table_scores(scores), one_each(12), 4, lambda i, t: remaining[i, t], samples=0)
    expected = reranking_loss(torch.from_numpy(remaining), select_candidates(torch.from_numpy(scores), 4))
    assert result.loss == pytest.approx(expected.item())


def test_additional_and_equal_captions_are_not_errors() -> None:
    scores = np.array([[9.0, 8.0, 7.0, 0.0], [0.0, 0.0, 9.0, 8.0]])
    belonging = Relevance(np.array([0, 0, 1, 1]), np.array([0, 1, 2, 0]))  # the fourth text equals the first
    result = score_reranking(table_scores(scores), belonging, 2, lambda i, t: scores[i, t], samples=0)
    assert result.scores.image_to_text.recall[1].value == 1
    custom = scores[belonging.owners, np.arange(4)]
    assert result.loss < np.log(2) and np.isfinite(custom).all()


def test_only_candidate_pairs_are_scored_once_each() -> None:
    request: list[tuple[int, int]] = []

    def scorer(images: np.ndarray, texts: np.ndarray) -> np.ndarray:
        request.extend(zip(images.tolist(), texts.tolist(), strict=True))
        return np.zeros(len(images))

    table = RANDOM.normal(size=(20, 20))
    score_reranking(table_scores(table), one_each(20), 3, scorer, samples=0)
    few = {(i, int(t)) for i in range(20) for t in np.argsort(-table[i])[:3]}
    few |= {(int(i), t) for t in range(20) for i in np.argsort(-table[:, t])[:3]}
    assert len(request) == len(set(request)) and set(request) == few | {(index, index) for index in range(20)}


def test_reranking_result_fits_80_columns_with_gain_and_ceiling() -> None:
    scores = RANDOM.normal(size=(50, 50))
    result = score_reranking(table_scores(scores), one_each(50), 10, lambda i, t: scores[i, t] + 3.0 * (i == t))
    assert max(map(len, str(result).splitlines())) <= 80
    assert "gain, image → text" in str(result) and "are among the 10" in str(result)
    assert result.to_dict()["gain"]["image_to_text"]["recall_at_1"] > 0
    assert "<table" in result._repr_html_()


def test_pair_logits_do_not_depend_on_pair_order() -> None:
    towers = DualEncoder(
        body=Encoder(vocabulary=11, width=8, depth=1, heads=2, context=9),
        grid=2, patch=2, image_width=4, image_depth=1, image_heads=2, shared=3,
    )  # fmt: skip
    model = build(CrossAttention(towers=towers)).eval()
    torch.nn.init.normal_(model.score.weight)
    pixels = RANDOM.integers(0, 256, (70, 3, 4, 4)).astype(np.uint8)
    rows = TokenRows(RANDOM.integers(0, 8, 210), np.arange(0, 211, 3))
    images, texts = RANDOM.integers(0, 70, 300), RANDOM.integers(0, 70, 300)
    tokens = torch.from_numpy(rows.pad(range(70)))
    with torch.no_grad():
        patches, words = model.towers.patches(torch.from_numpy(pixels)), model.towers.words(tokens)
        expected = model.logits(
            patches, words, tokens >= 0, ImageTextPairs(torch.from_numpy(images), torch.from_numpy(texts))
        )
    np.testing.assert_allclose(PairLogits(model, pixels, rows)(images, texts), expected.numpy(), rtol=1e-4, atol=1e-4)


def test_block_size_does_not_change_reranking_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, remaining = RANDOM.normal(size=(30, 30)), RANDOM.normal(size=(30, 30))
    full = score_reranking(table_scores(scores), one_each(30), 4, lambda i, t: remaining[i, t]).to_dict()
    monkeypatch.setattr("lemma.tasks.retrieval_score.BLOCK_SCORES", 64)
    assert score_reranking(table_scores(scores), one_each(30), 4, lambda i, t: remaining[i, t]).to_dict() == full
