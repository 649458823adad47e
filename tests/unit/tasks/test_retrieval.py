"""Retrieval scores against sorting, all orders of ties, and plain loops over images and texts."""

import itertools
import math
import tracemalloc
from typing import cast

import numpy as np
import pytest

from lemma.errors import InputError
from lemma.tasks import retrieval_score as places_module
from lemma.tasks.image_text import mean_batch_loss
from lemma.tasks.retrieval_score import (
    NearestPixel,
    PairScores,
    Relevance,
    bootstrap_ranks,
    chance_rank,
    rank_relevant,
    score_directions,
    score_retrieval,
    vector_scores,
)

OWNERS = np.array([0, 0, 1, 2, 2, 2, 3, 4])
NAMES = np.array([0, 1, 2, 1, 3, 4, 5, 5])  # images 0 and 2 share a caption, and so do 3 and 4


def table_scores(table: np.ndarray) -> PairScores:
    return PairScores(lambda rows: table[rows], lambda rows: table.T[rows])


def right_of(image: int, text: int) -> bool:
    return NAMES[text] in NAMES[image == OWNERS]


def mean_rank_and_hits(scores: list[float], right: list[bool], first: int) -> tuple[float, float]:
    """Return mean rank and hit rate of the first relevant item over all sorted orders."""
    ranks = []
    for order in itertools.permutations(range(len(scores))):
        if all(scores[item] >= scores[other] for item, other in itertools.pairwise(order)):
            ranks.append(1 + next(index for index, candidate in enumerate(order) if right[candidate]))
    return float(np.mean(ranks)), float(np.mean([rank <= first for rank in ranks]))


@pytest.mark.parametrize("seed", range(8))
def test_ranks_and_hits_average_over_tie_orders(seed: int) -> None:
    random = np.random.default_rng(seed)
    scores = random.integers(0, 3, size=(1, 6)).astype(float)
    mask = random.uniform(size=(1, 6)) < 0.4
    mask[0, random.integers(6)] = True
    for first in (1, 2, 4):
        rank, hits = mean_rank_and_hits(scores[0].tolist(), mask[0].tolist(), first)
        assert rank_relevant(scores, mask).mean_ranks()[0] == pytest.approx(rank)
        assert rank_relevant(scores, mask).hit_probabilities(first)[0] == pytest.approx(hits)


def test_ranks_match_sorting() -> None:
    scores = np.random.default_rng(0).normal(size=(30, 12))
    right = np.arange(30) % 12
    by_hand = [1 + list(np.argsort(-row)).index(index) for row, index in zip(scores, right, strict=True)]
    assert rank_relevant(scores, np.arange(12) == right[:, None]).mean_ranks().tolist() == by_hand


def test_nan_scores_rank_last() -> None:
    scores = np.array([[math.nan, 1.0, 2.0], [math.nan] * 3])
    assert rank_relevant(scores, np.array([[True, False, False]] * 2)).mean_ranks().tolist() == [3.0, 2.0]


@pytest.mark.parametrize("block", [1 << 22, 11])
def test_recall_handles_multiple_and_equal_captions_in_both_directions(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places_module, "BLOCK_SCORES", block)
    random = np.random.default_rng(3)
    images, texts = random.normal(size=(5, 4)), random.normal(size=(8, 4))
    score = score_retrieval(vector_scores(images, texts), Relevance(OWNERS, NAMES), loss=1.0, samples=50)
    table = images @ texts.T
    forth, back = [], []
    for image in range(5):
        order = np.argsort(-table[image])
        forth.append(1 + next(index for index, text in enumerate(order) if right_of(image, text)))
    for text in range(8):
        order = np.argsort(-table[:, text])
        back.append(1 + next(index for index, image in enumerate(order) if right_of(image, text)))
    for way, ranks in ((score.scores.image_to_text, forth), (score.scores.text_to_image, back)):
        assert {first: item.value for first, item in way.recall.items()} == pytest.approx(
            {first: np.mean([rank <= first for rank in ranks]) for first in (1, 5, 10)}
        )
        assert way.median_rank.value == np.median(ranks)
    output = score_retrieval(table_scores(table), Relevance(OWNERS, NAMES), loss=1.0, samples=50)
    assert output.to_dict() == score.to_dict()


def test_chance_recall_is_exact_for_multiple_relevant_items() -> None:
    score = score_retrieval(table_scores(np.zeros((5, 8))), Relevance(OWNERS, NAMES), loss=1.0, samples=0)
    for way, total, number in (
        (score.scores.image_to_text, 8, [sum(right_of(image, text) for text in range(8)) for image in range(5)]),
        (score.scores.text_to_image, 5, [sum(right_of(image, text) for image in range(5)) for text in range(8)]),
    ):
        for first in (1, 5):
            missed = [math.comb(total - right, first) / math.comb(total, first) for right in number]
            assert way.chance[first] == pytest.approx(1 - np.mean(missed))
            assert way.recall[first].value == pytest.approx(way.chance[first])  # all tied: chance
    single = score_retrieval(table_scores(np.eye(20)), Relevance(np.arange(20), np.arange(20)), loss=1.0, samples=0)
    assert single.scores.image_to_text.chance == pytest.approx({1: 0.05, 5: 0.25, 10: 0.5})
    assert single.figures["recall_at_1"] == 1 and single.scores.text_to_image.chance_rank == 10.5


def test_bootstrap_resamples_images_with_all_their_texts() -> None:
    ranks, owners = np.array([1.0, 4.0, 2.0, 9.0]), np.array([0, 0, 1, 2])
    hits = (ranks <= 2)[None].astype(float)
    recalls, medians = bootstrap_ranks(ranks, hits, owners, 400, 5)
    possible_recalls, possible_medians = set(), set()
    for samples in itertools.product(range(3), repeat=3):
        used = np.concatenate([ranks[owners == image] for image in samples])
        possible_recalls.add(round(float((used <= 2).mean()), 5))
        possible_medians.add(float(np.median(used)))
    assert {round(float(recall), 5) for recall in recalls[0]} == possible_recalls
    assert set(medians.tolist()) == possible_medians


def test_recall_intervals_contain_the_value_and_shrink() -> None:
    widths = []
    for number in (40, 1000):
        table = np.random.default_rng(1).normal(size=(number, number)) + 3 * np.eye(number)
        same = np.arange(number)
        recall = score_retrieval(table_scores(table), Relevance(same, same), loss=1.0).scores.image_to_text.recall[1]
        low, high = cast(list[float], recall.interval)
        assert low < recall.value < high
        widths.append(high - low)
    assert widths[1] < widths[0] / 2


def test_nearest_pixel_baseline_scores_training_images_with_the_caption(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lemma.tasks.retrieval_score.PIXEL_BLOCK", 36)  # three images
    monkeypatch.setattr(places_module, "BLOCK_SCORES", 30)
    random = np.random.default_rng(2)
    pixels, trained = (random.integers(0, 256, size=(count, 3, 2, 2)).astype(np.uint8) for count in (4, 7))
    owners, names = np.array([0, 1, 1, 2, 3, 4, 5, 6, 6]), np.array([5, 1, 9, 1, 2, 5, 5, 1, 7])
    texts = np.array([1, 2, 5, 8, 1])
    trained[2] = pixels[1]  # the identical image is excluded
    scores = NearestPixel(pixels, texts, trained, owners, names)
    result = np.concatenate([scores.of_images(slice(0, 3)), scores.of_images(slice(3, 4))])
    np.testing.assert_allclose(scores.of_texts(slice(1, 4)), result[:, 1:4].T, atol=1e-4)
    assert scores.count_seen_in_training() == 1
    for image, text in itertools.product(range(4), range(5)):
        carried = [
            ((pixels[image].astype(float) - trained[owner].astype(float)) ** 2).sum() / 255**2
            for owner, name in zip(owners, names, strict=True)
            if name == texts[text] and (image, owner) != (1, 2)
        ]
        assert result[image, text] == (pytest.approx(-min(carried), abs=1e-4) if carried else -math.inf)


def test_nearest_pixel_baseline_is_at_chance_for_unseen_captions() -> None:
    pixels = np.random.default_rng(4).integers(0, 256, size=(20, 3, 2, 2)).astype(np.uint8)
    same = np.arange(20)
    scores = NearestPixel(pixels, same, pixels, same, same + 100)
    methods = score_retrieval(scores, Relevance(same, same), loss=1.0, baselines={"nearest pixel": scores}, samples=0)
    for way in methods.baselines["nearest pixel"]:
        assert {first: item.value for first, item in way.recall.items()} == pytest.approx(way.chance)


def test_retrieval_loss_averages_batches_masking_equal_captions() -> None:
    random = np.random.default_rng(6)
    images, texts, names = random.normal(size=(7, 3)), random.normal(size=(7, 3)), np.array([0, 1, 0, 1, 0, 1, 1])
    order = np.random.default_rng(0).permutation(7)[:6].reshape(2, 3)
    losses = []
    for rows in order:
        logits = 2.5 * images[rows] @ texts[rows].T
        for index in range(3):
            remaining = [two for two in range(3) if two == index or names[rows[two]] != names[rows[index]]]
            for line in (logits[index, remaining], logits[remaining, index]):
                losses.append(np.log(np.exp(line).sum()) - logits[index, index])
    assert mean_batch_loss(images, texts, names, 2.5, 3) == pytest.approx(np.mean(losses), abs=1e-6)
    everything = mean_batch_loss(np.ones((4, 2)), np.ones((4, 2)), np.arange(4), 1.0, 99)
    assert everything == pytest.approx(math.log(4))


def test_retrieval_score_fits_80_columns_with_chance_and_baselines() -> None:
    same = np.arange(1200)
    table = table_scores(np.random.default_rng(1).normal(size=(1200, 1200)) + 2 * np.eye(1200))
    score = score_retrieval(table, Relevance(same, same), loss=1.0, baselines={"nearest pixel": table})
    lines = str(score).splitlines()
    assert max(map(len, lines)) <= 80 and sum("chance" in line for line in lines) == 2
    assert sum("nearest pixel" in line for line in lines) == 2 and "<table" in score._repr_html_()


def test_empty_retrieval_input_is_rejected() -> None:
    with pytest.raises(InputError, match="no images"):
        score_retrieval(table_scores(np.zeros((0, 0))), Relevance(same := np.zeros(0, dtype=int), same), loss=1.0)


@pytest.mark.parametrize(("right", "candidates"), [([1], 20), ([1], 21), ([3], 40), ([1, 1, 5, 9], 30), ([4], 4)])
def test_chance_rank_is_the_median_of_random_orders(right: list[int], candidates: int) -> None:
    random = np.random.default_rng(8)
    samples = random.permuted(np.tile(np.arange(candidates), (30_000, 1)), axis=1)
    ranks = [1 + (samples < number).argmax(1) for number in right]  # rank of the first relevant item
    assert chance_rank(np.array(right), candidates) == pytest.approx(np.median(np.concatenate(ranks)), abs=0.5)


def test_chance_rank_matches_exhaustive_enumeration() -> None:
    for right, candidates in itertools.product((1, 2, 3), (3, 4, 5, 6)):
        orders = itertools.permutations(range(candidates))
        ranks = [1 + min(order.index(index) for index in range(right)) for order in orders]
        assert chance_rank(np.array([right]), candidates) == np.median(ranks)
    methods = score_directions(
        table_scores(np.zeros((10, 20))), Relevance(np.arange(20) // 2, np.arange(20)), samples=0
    )
    assert (methods.image_to_text.chance_rank, methods.text_to_image.chance_rank) == (6.0, 5.5)


def test_nearest_pixel_baseline_uses_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places_module, "BLOCK_SCORES", 1 << 17)
    monkeypatch.setattr("lemma.tasks.retrieval_score.MAX_BLOCK_IMAGES", 128)
    random, count = np.random.default_rng(5), 2000
    pixels = random.integers(0, 256, size=(count, 3, 2, 2)).astype(np.uint8)
    scores = NearestPixel(pixels, np.arange(count), pixels[::-1], np.arange(count), np.arange(count))
    tracemalloc.start()
    score_directions(scores, Relevance(np.arange(count), np.arange(count)), samples=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * count**2 / 2  # half of the bytes of the full table
