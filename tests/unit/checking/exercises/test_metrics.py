"""Metrics agree with sacreBLEU, rouge_score, NLTK, scikit-learn and SciPy."""

import random
from typing import Any

import numpy as np
import pytest
import sacrebleu
from nltk.metrics.distance import edit_distance
from rouge_score.rouge_scorer import RougeScorer
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy
from sklearn import metrics as sklearn_metrics

import lemma
from lemma.checking.exercises.metrics import MetricExercise
from lemma.errors import LemmaError

WORDS = ["a", "b", "c", "d", "e"]


def value_of(name: str, **fields: Any) -> Any:
    """Return a right value of an exercise by its name."""
    exercise = MetricExercise.read(fields, "metric")
    values = {value.name: value.values for value in exercise.expected_values()}
    return values[name]


def draw_sentence(generator: random.Random, low: int = 4, high: int = 12) -> str:
    return " ".join(generator.choices(WORDS, k=generator.randint(low, high)))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("smoothing", "method", "number"),
    [("none", "none", None), ("add-1", "add-k", 1), ("floor", "floor", 0.1), ("exp", "exp", None)],
)
def test_bleu_is_that_of_sacrebleu(seed: int, smoothing: str, method: Any, number: float | None) -> None:
    generator = random.Random(seed)
    candidates = [draw_sentence(generator) for _ in range(2)]
    references = [[draw_sentence(generator) for _ in range(3)] for _ in candidates]
    expected = sacrebleu.corpus_bleu(
        candidates,
        [list(column) for column in zip(*references, strict=True)],
        smooth_method=method,
        smooth_value=number,
        tokenize="none",
        use_effective_order=False,
    )
    fields = {"candidate": candidates, "reference": references, "smoothing": smoothing}
    assert value_of("BLEU", metric="bleu", **fields) == pytest.approx(expected.score / 100)
    assert value_of("BP", metric="bleu", **fields) == pytest.approx(expected.bp)
    for order in range(1, 5):
        actual = value_of(f"p{order}", metric="bleu", **fields)
        assert actual == pytest.approx(expected.precisions[order - 1] / 100)


@pytest.mark.parametrize("seed", range(20))
def test_rouge_is_that_of_rouge_score(seed: int) -> None:
    generator = random.Random(seed)
    candidate, reference = draw_sentence(generator), draw_sentence(generator)
    scores = RougeScorer(["rouge1", "rouge2", "rougeL"]).score(reference, candidate)
    for name, score in scores.items():
        fields = {"metric": "rouge", "candidate": candidate, "reference": reference}
        assert value_of(f"{name}_recall", **fields) == pytest.approx(score.recall)
        assert value_of(f"{name}_precision", **fields) == pytest.approx(score.precision)
        assert value_of(f"{name}_f1", **fields) == pytest.approx(score.fmeasure)


@pytest.mark.parametrize("seed", range(20))
def test_chrf_is_that_of_sacrebleu(seed: int) -> None:
    generator = random.Random(seed)
    candidate, references = draw_sentence(generator), [draw_sentence(generator) for _ in range(2)]
    expected = sacrebleu.sentence_chrf(candidate, references).score / 100
    actual = value_of("chrF", metric="chrf", candidate=candidate, reference=[references])
    assert actual == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("substitution", [1, 2])
def test_edit_distance_is_that_of_nltk(seed: int, substitution: int) -> None:
    generator = random.Random(seed)
    source, target = ("".join(generator.choices("abc", k=generator.randint(1, 7))) for _ in range(2))
    fields = {"candidate": source, "reference": target, "substitute_cost": substitution}
    assert value_of("distance", metric="edit-distance", **fields) == edit_distance(source, target, substitution)


def brute_force_edits(source: str, target: str) -> tuple[int, set[tuple[int, int, int]]]:
    """Return the smallest number of edits and all (S, D, I) that reach it, by trying every alignment."""
    if not source or not target:
        return len(source) + len(target), {(0, len(source), len(target))}
    options = []
    for cost, rest, change in (
        (source[0] != target[0], (source[1:], target[1:]), (int(source[0] != target[0]), 0, 0)),
        (1, (source[1:], target), (0, 1, 0)),
        (1, (source, target[1:]), (0, 0, 1)),
    ):
        best, edits = brute_force_edits(*rest)
        options.append((best + cost, {tuple(a + b for a, b in zip(edit, change, strict=True)) for edit in edits}))
    least = min(cost for cost, _ in options)
    return least, set().union(*(edits for cost, edits in options if cost == least))


@pytest.mark.parametrize("seed", range(10))
def test_every_cheapest_alignment_is_accepted(seed: int) -> None:
    generator = random.Random(seed)
    source, target = ("".join(generator.choices("ab", k=generator.randint(1, 5))) for _ in range(2))
    least, alignments = brute_force_edits(source, target)
    for substitutions in range(4):
        for deletions in range(4):
            for insertions in range(4):
                lines = [f"S = {substitutions}", f"deletions = {deletions}", f"I = {insertions}", f"distance = {least}"]
                fields = {"metric": "edit-distance", "candidate": source, "reference": target}
                report = lemma.check.exercise("metric", fields, *lines)
                assert bool(report) == ((substitutions, deletions, insertions) in alignments)


@pytest.mark.parametrize("seed", range(10))
def test_classes_are_those_of_scikit_learn(seed: int) -> None:
    generator = random.Random(seed)
    gold, predicted = ([generator.choice("xyz") for _ in range(15)] for _ in range(2))
    fields = {"metric": "f1", "gold": gold, "predicted": predicted, "classes": ["x", "y", "z"]}
    for average in ("macro", "weighted"):
        precision, recall, score, _ = sklearn_metrics.precision_recall_fscore_support(
            gold, predicted, labels=["x", "y", "z"], average=average, zero_division=0
        )
        assert value_of(f"{average}_precision", **fields) == pytest.approx(precision)
        assert value_of(f"{average}_recall", **fields) == pytest.approx(recall)
        assert value_of(f"{average}_F1", **fields) == pytest.approx(score)
    assert value_of("accuracy", **fields) == pytest.approx(sklearn_metrics.accuracy_score(gold, predicted))
    kappa = sklearn_metrics.cohen_kappa_score(gold, predicted)
    assert value_of("kappa", metric="kappa", gold=gold, predicted=predicted) == pytest.approx(kappa)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("k", [0, 3])
def test_ndcg_and_average_precision_are_those_of_scikit_learn(seed: int, k: int) -> None:
    generator = random.Random(seed)
    relevances = [generator.randint(0, 3) for _ in range(7)] + [1]
    scores = [-rank for rank in range(8)]
    expected = sklearn_metrics.ndcg_score([relevances], [scores], k=k or None)
    assert value_of("nDCG", metric="ndcg", relevance=[relevances], k=k) == pytest.approx(expected)
    hits = [int(relevance > 0) for relevance in relevances]
    average = sklearn_metrics.average_precision_score(hits, scores)
    assert value_of("MAP", metric="map", relevance=[relevances]) == pytest.approx(average)


@pytest.mark.parametrize("base", ["2", "e", "10"])
def test_information_is_that_of_scipy(base: str) -> None:
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.6, 0.3])
    fields = {"metric": "kl", "p": p.tolist(), "q": q.tolist(), "log_base": base}
    number = {"2": 2, "e": np.e, "10": 10}[base]
    assert value_of("KL", **fields) == pytest.approx(entropy(p, q, base=number))
    assert value_of("H(p)", **fields) == pytest.approx(entropy(p, base=number))
    assert value_of("JS(p,q)", **fields) == pytest.approx(jensenshannon(p, q, base=number) ** 2)
    joint = np.array([[3, 1, 2], [0, 4, 5]])
    labels = [(x, y) for x in range(2) for y in range(3) for _ in range(joint[x, y])]
    expected = sklearn_metrics.mutual_info_score(*zip(*labels, strict=True)) / np.log(number)
    actual = value_of("I(X;Y)", metric="mutual-information", joint=joint.tolist(), log_base=base)
    assert actual == pytest.approx(expected)


def test_pass_at_k_is_the_fraction_of_samples_with_a_right_one() -> None:
    from itertools import combinations

    for correct in range(8):
        for k in range(1, 8):
            draws = list(combinations(range(7), k))
            fraction = sum(min(draw) < correct for draw in draws) / len(draws)
            assert value_of("pass@k", metric="pass@k", samples=7, correct=correct, k=k) == pytest.approx(fraction)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"metric": "bleu"}, "candidate and reference are needed"),
        ({"metric": "f1", "tp": 3}, "tp, fp and fn are needed"),
        ({"metric": "f1", "gold": "a b", "predicted": "a"}, "2 labels"),
        ({"metric": "kappa", "matrix": "1 2 3; 4 5 6"}, "as many rows as columns"),
        ({"metric": "kl", "p": "0.5 0.5", "q": "1 0"}, "infinite"),
        ({"metric": "kl", "p": "0.5 0.6", "q": "1 0"}, "sum to 1.1"),
        ({"metric": "perplexity", "probabilities": "0.5 0"}, "above 0"),
        ({"metric": "pass@k", "samples": 3, "correct": 4, "k": 1}, "larger than samples"),
        ({"metric": "ndcg", "relevance": "x y"}, "not a number"),
        ({"metric": "pmi", "count_xy": 9, "count_x": 3, "count_y": 5, "total": 10}, "too large"),
        ({"metric": "wer", "candidate": "a " * 3000, "reference": "b"}, "at most 120"),
        ({"metric": "bleu", "candidate": "a" * 30_000, "reference": "b"}, "characters are read"),
        ({"metric": "unknown"}, "unknown"),
    ],
)
def test_statements_that_make_no_exercise_are_explained(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(LemmaError, match=message):
        lemma.check.exercise("metric", fields, "1")


def test_the_convention_that_fits_best_counts_for_every_line() -> None:
    fields = {"metric": "kl", "p": "0.5 0.5", "q": "0.9 0.1"}
    lines = ["KL = 0.511", "H(p) = 0.693", "H(p,q) = 9.99"]
    report = lemma.check.exercise("metric", fields, *lines)
    assert [line.right for line in report.lines] == [True, True, False] and "base e" in str(report)
    report = lemma.check.exercise("metric", {**fields, "log_base": 2}, *lines)
    assert not any(line.right for line in report.lines)
