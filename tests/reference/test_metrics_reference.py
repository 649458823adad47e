"""Classification and translation metrics against scikit-learn and sacrebleu, resample by resample."""

import json

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from lemma.tasks.classification import bootstrap_metrics, macro_metrics, score_classes
from lemma.tasks.translation import score_translations


def confusion_of(gold: np.ndarray, guessed: np.ndarray, classes: int) -> np.ndarray:
    return np.bincount(gold * classes + guessed, minlength=classes**2).reshape(classes, classes)


def chances_of(random: np.random.Generator, texts: int, classes: int) -> np.ndarray:
    return random.dirichlet(np.ones(classes), size=texts)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), texts=st.integers(1, 60), classes=st.integers(2, 6))
def test_classification_metrics_match_scikit_learn(seed: int, texts: int, classes: int) -> None:
    random = np.random.default_rng(seed)
    gold, chances = random.integers(0, classes, size=texts), chances_of(random, texts, classes)
    guessed, labels = chances.argmax(1), [f"c{number}" for number in range(classes)]
    score = score_classes(gold, chances, labels, samples=0)
    report = metrics.classification_report(
        gold, guessed, labels=range(classes), target_names=labels, output_dict=True, zero_division=0
    )
    assert score.accuracy.value == metrics.accuracy_score(gold, guessed)
    assert score.f1.value == metrics.f1_score(gold, guessed, average="macro", zero_division=0)
    assert score.precision.value == metrics.precision_score(gold, guessed, average="macro", zero_division=0)
    assert score.recall.value == metrics.recall_score(gold, guessed, average="macro", zero_division=0)
    assert np.array(score.confusion).tolist() == metrics.confusion_matrix(gold, guessed, labels=range(classes)).tolist()
    for one in score.classes:
        expected = report[one.label]
        assert (one.precision, one.recall, one.f1) == (expected["precision"], expected["recall"], expected["f1-score"])
        assert one.support == expected["support"]
    np.testing.assert_allclose(score.loss, metrics.log_loss(gold, chances, labels=range(classes)), rtol=1e-9)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), texts=st.integers(1, 40), classes=st.integers(2, 5))
def test_resampled_metrics_match_scikit_learn(seed: int, texts: int, classes: int) -> None:
    random = np.random.default_rng(seed)
    gold, guessed = random.integers(0, classes, size=(2, texts))
    drawn = random.integers(0, texts, size=(5, texts))
    ours = macro_metrics(np.stack([confusion_of(gold[row], guessed[row], classes) for row in drawn]))
    for column, row in zip(ours.T, drawn, strict=True):
        theirs = metrics.precision_recall_fscore_support(gold[row], guessed[row], average="macro", zero_division=0)[:3]
        np.testing.assert_allclose(column, [metrics.accuracy_score(gold[row], guessed[row]), *theirs], rtol=1e-12)


def test_bootstrap_equals_drawing_texts_one_by_one() -> None:
    random = np.random.default_rng(1)
    gold = random.integers(0, 3, size=200)
    guessed = np.where(random.random(200) < 0.7, gold, random.integers(0, 3, size=200))
    ours = bootstrap_metrics(confusion_of(gold, guessed, 3), 4000, seed=2)
    drawn = random.integers(0, 200, size=(4000, 200))
    right, said = gold[drawn], guessed[drawn]
    found = [(2 * ((right == c) & (said == c)).sum(1)) / ((right == c).sum(1) + (said == c).sum(1)) for c in range(3)]
    theirs = [(right == said).mean(1), np.mean(found, axis=0)]
    for mine, other in zip(ours[[0, 3]], theirs, strict=True):
        assert mine.mean() == pytest.approx(other.mean(), abs=0.004)
        np.testing.assert_allclose(np.percentile(mine, [2.5, 97.5]), np.percentile(other, [2.5, 97.5]), atol=0.012)


HYPOTHESES = ["the cat sat on the mat .", "a dog runs", "", "we saw three birds in the old tree today"] * 5
REFERENCES = [
    ("the cat sat on the mat .", "a cat sat on a mat ."),
    ("the dog is running fast",),
    ("nothing was said",),
    ("we saw three birds in an old tree today", "three birds were in the tree", "today we saw birds"),
] * 5


def test_bleu_chrf_intervals_and_signatures_match_sacrebleu() -> None:
    score = score_translations(HYPOTHESES, REFERENCES, samples=200)
    streams = [[several[n] if n < len(several) else None for several in REFERENCES] for n in range(3)]
    for ours, metric, name in [(score.bleu, sacrebleu.BLEU(), "bleu"), (score.chrf, sacrebleu.CHRF(), "chrf")]:
        plain = metric.corpus_score(HYPOTHESES, streams)
        assert ours.value == plain.score
        drawn = metric.corpus_score(HYPOTHESES, streams, n_bootstrap=200)
        signature = metric.get_signature().format()
        told = json.loads(drawn.format(width=6, signature=signature, is_json=True))
        assert ours.low == pytest.approx(told["confidence_mean"] - told["confidence_var"], abs=1e-6)
        assert ours.high == pytest.approx(told["confidence_mean"] + told["confidence_var"], abs=1e-6)
        assert score.signatures[name] == signature


def test_single_reference_scores_equal_standard_bleu() -> None:
    references = [several[0] for several in REFERENCES]
    score = score_translations(HYPOTHESES, references, samples=0)
    assert score.bleu.value == sacrebleu.corpus_bleu(HYPOTHESES, [references], force=True).score
    assert score.chrf.value == sacrebleu.corpus_chrf(HYPOTHESES, [references]).score
    assert score.bleu.interval is None and "bs:" not in score.signatures["bleu"]
