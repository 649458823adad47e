"""The result of classifying texts: shares from 0 to 1 with intervals, by class, and what was taken for what."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from lemma.evaluation.estimates import Estimate, Lines, lay_out, protocol_lines
from lemma.typeset import fit

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
