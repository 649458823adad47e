"""Classification scores: metrics, intervals, display and errors."""

import json
import math
import sys
import time

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lemma.data.batches import TokenRows, batch_by_length
from lemma.data.labels import LabelledExamples
from lemma.errors import InputError
from lemma.report.statistics import Estimate
from lemma.tasks.classification import bootstrap_metrics, classify, score_classes

GOLD = [0, 0, 0, 1, 1, 2]
CHANCES = np.array(
    [[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.8, 0.1], [0.5, 0.4, 0.1], [0.1, 0.1, 0.8]]
)
LABELS = ["good", "bad", "neither good nor bad but something else entirely"]


class Bag(nn.Module):
    """A simple classifier: the mean of embeddings, ignoring padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 3)
        self.dropout = nn.Dropout(0.5)
        self.asked: list[int] = []

    def forward(self, tokens: Tensor) -> Tensor:
        self.asked.append(len(tokens))
        present = (tokens >= 0)[..., None]
        return self.dropout((self.embedding(tokens.clamp(min=0)) * present).sum(1) / present.sum(1))


def examples(texts: int = 50) -> LabelledExamples:
    random = np.random.default_rng(3)
    lengths = random.integers(1, 30, size=texts)
    tokens = random.integers(0, 10, size=lengths.sum())
    return LabelledExamples(TokenRows(tokens, np.cumsum([0, *lengths])), random.integers(0, 3, size=texts))


@pytest.mark.parametrize("tokens", [1, 70, 10_000])
def test_class_probabilities_do_not_depend_on_batching(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, texts = Bag(), examples()
    monkeypatch.setattr("lemma.tasks.classification.tokens_per_batch", lambda device: tokens)
    result = classify(model, texts)
    assert model.training and model.dropout.training
    for index in range(50):
        single = model.eval()(torch.from_numpy(texts.batch([index])[0])).softmax(-1)
        np.testing.assert_allclose(result[index], single[0].detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(result.sum(1), 1)


def test_classify_accepts_models_without_weights() -> None:
    class Constant(nn.Module):
        def forward(self, tokens: Tensor) -> Tensor:
            return torch.zeros(len(tokens), 3)

    np.testing.assert_allclose(classify(Constant(), examples(5)), 1 / 3)


def test_length_batches_cover_examples_with_bounded_tokens() -> None:
    lengths = np.random.default_rng(0).integers(1, 60, size=300)
    groups = list(batch_by_length(lengths, max_tokens=200))
    assert sorted(np.concatenate(groups)) == list(range(300))
    assert all(len(group) == 1 or lengths[group].max() * len(group) <= 200 for group in groups)
    assert len(groups) < 1.3 * lengths.sum() / 200


def test_classification_metrics_match_hand_computation() -> None:
    score = score_classes(GOLD, CHANCES, LABELS, {"data": "made"})
    assert score.accuracy.value == pytest.approx(4 / 6) and score.figures["accuracy"] == score.accuracy.value
    assert score.confusion == ((2, 1, 0), (1, 1, 0), (0, 0, 1))
    assert score.classes[0].precision == pytest.approx(2 / 3) and score.classes[1].recall == pytest.approx(1 / 2)
    assert score.f1.value == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)
    assert score.majority == ("good", 0.5)
    expected = -np.mean([math.log(p) for p in (0.7, 0.6, 0.2, 0.8, 0.4, 0.8)])
    assert score.loss == pytest.approx(expected) and score.perplexity == pytest.approx(math.exp(expected))
    assert score.accuracy.low is not None and score.accuracy.high is not None
    assert score.accuracy.low < 4 / 6 < score.accuracy.high


def test_confidence_intervals_are_seeded_and_optional() -> None:
    item, again = (score_classes(GOLD, CHANCES, LABELS, samples=200, seed=5) for _ in range(2))
    assert item == again and item.to_dict()["intervals"].keys() == {"accuracy", "precision", "recall", "f1"}
    bare = score_classes(GOLD, CHANCES, LABELS, samples=0)
    assert bare.to_dict()["intervals"] == {} and "95 %" not in str(bare)


def test_confidence_intervals_have_nominal_coverage() -> None:
    random = np.random.default_rng(7)
    covered = 0
    for _ in range(200):
        gold = random.integers(0, 2, size=300)
        guessed = np.where(random.random(300) < 0.8, gold, 1 - gold)
        confusion = np.bincount(2 * gold + guessed, minlength=4).reshape(2, 2)
        result = Estimate.from_resamples(0.0, bootstrap_metrics(confusion, 200, seed=1)[0])
        covered += (result.low or 0) <= 0.8 <= (result.high or 0)
    assert 178 <= covered <= 200  # 95 % of 200 minus four standard deviations


def test_bootstrap_of_10000_texts_takes_about_a_second() -> None:
    random = np.random.default_rng(0)
    gold, chances = random.integers(0, 5, size=10_000), random.dirichlet(np.ones(5), size=10_000)
    score_classes(gold[:10], chances[:10], list("abcde"))  # import scikit-learn before timing
    before = time.process_time()
    score_classes(gold, chances, list("abcde"))
    assert time.process_time() - before < 1.5


@pytest.mark.parametrize("classes", [2, 3, 8, 9, 40])
def test_classification_score_fits_80_columns_json_and_notebook(classes: int) -> None:
    random = np.random.default_rng(classes)
    labels = [f"{number} {'a very long name of a class ' * (number % 3)}" for number in range(classes)]
    gold, chances = random.integers(0, classes, size=300), random.dirichlet(np.ones(classes), size=300)
    score = score_classes(gold, chances, labels, {"data hash": "0" * 64, "split": "test"}, samples=50)
    assert max(map(len, str(score).splitlines())) <= 80
    assert json.loads(json.dumps(score.to_dict()))["accuracy"] == score.accuracy.value
    assert "<table" in score._repr_html_() and "<script" not in score._repr_html_()


def test_labels_are_escaped_in_html() -> None:
    page = score_classes([0, 1], np.eye(2), ["<b>", "b"])._repr_html_()
    assert "<b>" not in page and "&lt;b&gt;" in page


def test_nan_probabilities_give_null_loss() -> None:
    score = score_classes([0, 1], np.full((2, 2), np.nan), ["a", "b"])
    assert math.isnan(score.loss) and score.to_dict()["loss"] is None
    assert score_classes([0, 1], np.array([[0.0, 1.0], [0.5, 0.5]]), ["a", "b"]).loss == math.inf


@pytest.mark.parametrize(
    ("gold", "chances", "message"),
    [
        ([], np.zeros((0, 3)), "no texts to score"),
        ([0, 1], np.zeros((2, 2)), r"need probabilities of shape \(2, 3\), got \(2, 2\)"),
        ([0, 3], np.zeros((2, 3)), "the class 3 is not one of 0 to 2"),
        ([0, -1], np.zeros((2, 3)), "the class -1 is not one of 0 to 2"),
    ],
)
def test_invalid_score_inputs_are_rejected(gold: list[int], chances: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        score_classes(gold, chances, LABELS)


def test_missing_scikit_learn_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    with pytest.raises(InputError, match=r"scoring classes needs scikit-learn.*pip install scikit-learn"):
        score_classes(GOLD, CHANCES, LABELS)
