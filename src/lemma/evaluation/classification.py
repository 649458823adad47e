"""How well texts are classified: accuracy, precision, recall and F1, by scikit-learn, with bootstrap intervals.

Of a bootstrap over texts these figures need only how often each (class, guess) is drawn, and that is a multinomial draw
over the pairs seen: a thousand samples of ten thousand texts take a fraction of a second.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import nn

from lemma.data import Labelled
from lemma.errors import InputError
from lemma.evaluation.classification_score import ClassificationScore, ClassScore
from lemma.evaluation.estimates import Estimate, needed
from lemma.models.measuring import by_length, measuring, positions_on

Counts = Int64[np.ndarray, "samples classes"]
AT_ONCE = 1 << 23
"""Numbers drawn at once: 64 MB."""


def classify(model: nn.Module, examples: Labelled, batch: int | None = None) -> Float[np.ndarray, "texts classes"]:
    """The probability of each class for each text, by a model of tokens to logits; `batch` texts at once, if set."""
    found: list[np.ndarray] = []
    order: list[np.ndarray] = []
    with measuring(model) as device:
        groups = by_length(examples.lengths, positions_on(device))
        for group in _parts(groups, batch):
            tokens, _ = examples.batch(group)
            logits = model(torch.from_numpy(tokens).to(device))
            found.append(logits.double().softmax(-1).cpu().numpy())
            order.append(group)
    return np.concatenate(found)[np.argsort(np.concatenate(order), kind="stable")]


def _parts(groups: Any, batch: int | None) -> Any:
    for group in groups:
        size = batch or len(group)
        yield from (group[start : start + size] for start in range(0, len(group), size))


def score_classes(
    gold: Sequence[int] | Int64[np.ndarray, "texts"],
    chances: Float[np.ndarray, "texts classes"],
    labels: Sequence[str],
    protocol: Mapping[str, Any] | None = None,
    *,
    samples: int = 1000,
    seed: int = 0,
    unit: str = "text",
) -> ClassificationScore:
    """Compare the likeliest class of each text with its own.

    The means over classes are over those that are there or were guessed, each counting the same ("macro").
    """
    right, table = np.asarray(gold, dtype=np.int64), np.asarray(chances, dtype=np.float64)
    _refuse_other_shapes(right, table, labels)
    guessed = table.argmax(1)
    metrics = needed("sklearn.metrics", "scikit-learn", "scoring classes")
    means = metrics.precision_recall_fscore_support(right, guessed, average="macro", zero_division=0)[:3]
    figures = [metrics.accuracy_score(right, guessed), *means]
    drawn = resample(right, guessed, len(labels), samples, seed)
    accuracy, precision, recall, f1 = (Estimate.of(*both) for both in zip(figures, drawn, strict=True))
    confusion = metrics.confusion_matrix(right, guessed, labels=range(len(labels)))
    return ClassificationScore(
        texts=len(right),
        accuracy=accuracy,
        precision=precision,
        recall=recall,
        f1=f1,
        classes=_classes(metrics, right, guessed, labels),
        confusion=tuple(tuple(map(int, row)) for row in confusion),
        loss=_loss(table, right),
        protocol={**(protocol or {}), **_bootstrap(samples, seed, unit)},
        unit=unit,
    )


def resample(
    gold: Int64[np.ndarray, "texts"], guessed: Int64[np.ndarray, "texts"], classes: int, samples: int, seed: int
) -> Float[np.ndarray, "figures samples"]:
    """Accuracy, and macro precision, recall and F1, of texts drawn with replacement, as often as asked."""
    random = np.random.default_rng(seed)
    pairs, counts = np.unique(np.stack([gold, guessed]), axis=1, return_counts=True)
    step = max(1, AT_ONCE // (len(counts) + 3 * classes))
    parts = [
        _figures(random.multinomial(len(gold), counts / len(gold), size=min(step, samples - start)), pairs, classes)
        for start in range(0, samples, step)
    ]
    return np.concatenate(parts, axis=1) if parts else np.zeros((4, 0))


def _figures(
    drawn: Int64[np.ndarray, "samples pairs"], pairs: Int64[np.ndarray, "two pairs"], classes: int
) -> Float[np.ndarray, "figures samples"]:
    there, guessed, right = (np.zeros((len(drawn), classes), dtype=np.int64) for _ in range(3))
    for column, (gold, guess) in zip(drawn.T, pairs.T, strict=True):
        there[:, gold] += column
        guessed[:, guess] += column
        if gold == guess:
            right[:, gold] += column
    seen = (there + guessed) > 0
    shares = [_share(right, guessed), _share(right, there), _share(2 * right, there + guessed)]
    means = [share.sum(1) / seen.sum(1) for share in shares]
    return np.stack([right.sum(1) / there.sum(1), *means])


def _share(part: Counts, whole: Counts) -> Float[np.ndarray, "samples classes"]:
    """0 of nothing, as scikit-learn has it with zero_division=0."""
    return np.divide(part, whole, out=np.zeros(part.shape), where=whole > 0)


def _classes(metrics: Any, gold: np.ndarray, guessed: np.ndarray, labels: Sequence[str]) -> tuple[ClassScore, ...]:
    numbers = list(range(len(labels)))
    found = metrics.precision_recall_fscore_support(gold, guessed, labels=numbers, zero_division=0)
    times = np.bincount(guessed, minlength=len(labels))
    return tuple(
        ClassScore(label, float(precision), float(recall), float(f1), int(support), int(times[number]))
        for number, (label, precision, recall, f1, support) in enumerate(zip(labels, *found, strict=True))
    )


def _loss(chances: Float[np.ndarray, "texts classes"], gold: Int64[np.ndarray, "texts"]) -> float:
    with np.errstate(divide="ignore"):
        return float(-np.log(chances[np.arange(len(gold)), gold]).mean())


def _bootstrap(samples: int, seed: int, unit: str) -> dict[str, str]:
    return {"intervals": f"bootstrap over {unit}s, {samples:,} samples, seed {seed}"} if samples else {}


def _refuse_other_shapes(gold: np.ndarray, chances: np.ndarray, labels: Sequence[str]) -> None:
    if not len(gold):
        raise InputError("no texts to score. Give a file that holds some.")
    if chances.shape != (len(gold), len(labels)):
        raise InputError(
            f"{len(gold)} texts and {len(labels)} labels need chances of shape {(len(gold), len(labels))}, "
            f"got {chances.shape}."
        )
    if gold.min() < 0 or gold.max() >= len(labels):
        wrong = int(gold.min() if gold.min() < 0 else gold.max())
        raise InputError(f"the class {wrong} is not one of 0 to {len(labels) - 1}, the numbers of the labels.")
