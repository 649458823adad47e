"""The result of classifying texts: shares from 0 to 1 with intervals, by class, and what was taken for what."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import nn

from lemma.data.labels import Labelled
from lemma.errors import InputError
from lemma.models.base import by_length, measuring, positions_on
from lemma.report.statistics import Estimate, Lines, lay_out, needed, protocol_lines
from lemma.report.text import fit

MOST_CLASSES = 8
"""A larger table of confusions is not shown whole; the commonest are listed."""
NAME = 24
COMMONEST = 10


@dataclass(frozen=True)
class ClassScore:
    """How one class fared: shares from 0 to 1, the texts that are of it and those that were said to be."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int
    guessed: int


@dataclass(frozen=True)
class ClassificationScore:
    """Accuracy, and precision, recall and F1 averaged over the classes; shares from 0 to 1."""

    texts: int
    accuracy: Estimate
    precision: Estimate
    recall: Estimate
    f1: Estimate
    classes: tuple[ClassScore, ...]
    confusion: tuple[tuple[int, ...], ...]
    """Row: the class of a text; column: what it was said to be."""
    loss: float
    """The mean of −log p(class), in nats."""
    protocol: Mapping[str, Any]
    unit: str = "text"
    """What is classified: a text, or a node of a graph."""

    @property
    def perplexity(self) -> float:
        """exp(loss): among so many classes the classifier hesitates."""
        return math.exp(min(self.loss, 700))

    @property
    def majority(self) -> tuple[str, float]:
        """The commonest class of these texts, and the accuracy of always saying it."""
        commonest = max(self.classes, key=lambda score: score.support)
        return commonest.label, commonest.support / self.texts

    @property
    def figures(self) -> dict[str, float]:
        """The figures that a training run writes down at each validation."""
        return {"accuracy": self.accuracy.value, "f1": self.f1.value}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that are good JSON: None stands for what is infinite or no number."""
        means = {"accuracy": self.accuracy, "precision": self.precision, "recall": self.recall, "f1": self.f1}
        label, share = self.majority
        return {
            **{name: estimate.value for name, estimate in means.items()},
            "intervals": {name: estimate.interval for name, estimate in means.items() if estimate.interval},
            "loss": self.loss if math.isfinite(self.loss) else None,
            f"{self.unit}s": self.texts,
            "classes": [asdict(score) for score in self.classes],
            "confusion": [list(row) for row in self.confusion],
            "majority": {"label": label, "accuracy": share},
            "protocol": dict(self.protocol),
        }

    def __str__(self) -> str:
        return fit("\n".join([lay_out(self._lines()), "", *self._table(), "", *self._confusions()]))

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in self._lines())
        tables = "\n".join([*self._table(), "", *self._confusions()])
        return f"<table>{''.join(rows)}</table><pre>{escape(tables)}</pre>"

    def _lines(self) -> Lines:
        label, share = self.majority
        return [
            ("accuracy", self.accuracy.shown(100, " %")),
            ("precision", f"{self.precision.shown(100, ' %')}, mean of the classes"),
            ("recall", f"{self.recall.shown(100, ' %')}, mean of the classes"),
            ("F1", f"{self.f1.shown(100, ' %')}, mean of the classes"),
            ("majority", f"{100 * share:.2f} % by always saying '{_short(label)}'"),
            ("loss", f"{self.loss:.4f} nats/{self.unit}"),
            (f"{self.unit}s", f"{self.texts:,}"),
            *protocol_lines(self.protocol),
        ]

    def _table(self) -> list[str]:
        width = max(5, *(len(_short(score.label)) for score in self.classes)) + 1
        head = f"{'class':<{width}}{'precision':>10}{'recall':>9}{'F1':>9}{self.unit + 's':>9}{'said':>9}"
        return [head, *(_line(score, width) for score in self.classes)]

    def _confusions(self) -> list[str]:
        if len(self.classes) > MOST_CLASSES:
            return ["what was most often taken for what:", *self._commonest()]
        names = [score.label for score in self.classes]
        left = min(max(5, *map(len, names)), NAME) + 1
        number = len(f"{max(map(max, self.confusion)):,}")
        width = max(number, min(max(map(len, names)), (78 - left) // len(names) - 1))
        left = min(left, 79 - (width + 1) * len(names))
        head = "".join(f" {name[:width]:>{width}}" for name in names)
        rows = zip(names, self.confusion, strict=True)
        body = [f"{name[: left - 1]:<{left}}" + "".join(f" {n:>{width},}" for n in row) for name, row in rows]
        return [f"rows: the class of a {self.unit}; columns: what it was said to be", " " * left + head, *body]

    def _commonest(self) -> Iterator[str]:
        names = [_short(score.label) for score in self.classes]
        cells = ((n, i, j) for i, row in enumerate(self.confusion) for j, n in enumerate(row) if i != j and n)
        for count, i, j in sorted(cells, key=lambda cell: (-cell[0], cell[1:]))[:COMMONEST]:
            yield f"{count:>7,}  {names[i]} → {names[j]}"


def _line(score: ClassScore, width: int) -> str:
    shares = f"{100 * score.precision:>8.2f} %{100 * score.recall:>7.2f} %{100 * score.f1:>7.2f} %"
    return f"{_short(score.label):<{width}}{shares}{score.support:>9,}{score.guessed:>9,}"


def _short(label: str) -> str:
    return label if len(label) <= NAME else f"{label[: NAME - 1]}…"


# How well texts are classified: accuracy, precision, recall and F1, by scikit-learn, with bootstrap intervals.
#
# Of a bootstrap over texts these figures need only how often each (class, guess) is drawn, and that is a multinomial
# draw
# over the pairs seen: a thousand samples of ten thousand texts take a fraction of a second.


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
