"""Small tables of labelled texts, and synthetic outcomes of classifiers."""

import csv
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lemma.spec.models import Classifier
from lemma.spec.recipe import Recipe
from lemma.studies.cells import StudyCell, group_rows
from lemma.studies.classifiers import ClassifierMeasures, LabelOutcome, LabelRow, LearningPoint

GOOD, BAD = ("good", "lovely", "bright", "warm"), ("bad", "ugly", "dull", "cold")
NEUTRAL = ("the", "film", "day", "was", "so", "and", "very", "a", "it", "house")


def random_texts(number: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return texts with one or two words that determine the label."""
    rng = random.Random(seed)
    rows = []
    for index in range(number):
        words = [*rng.choices(NEUTRAL, k=rng.randrange(4, 9)), *rng.choices(GOOD if index % 2 else BAD, k=2)]
        rng.shuffle(words)
        rows.append((" ".join([*words, f"n{index}"]), "positive" if index % 2 else "negative"))
    return rows


def write_table(path: Path, rows: list[tuple[str, str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


def measured(accuracy: float, **changes: Any) -> ClassifierMeasures:
    right = "1" * round(10_000 * accuracy) + "0" * (10_000 - round(10_000 * accuracy))
    values: dict[str, Any] = {
        "model": Classifier().to_dict(),
        "recipe": Recipe(steps=10).to_dict(),
        "parameters": 1000,
        "layers": 400,
        "learned": 1000,
        "steps": 10,
        "seconds": 2.0,
        **dict.fromkeys(("accuracy", "precision", "recall", "f1"), accuracy),
        "low": accuracy - 0.05,
        "high": accuracy + 0.05,
        "right": right,
        "curve": (LearningPoint(5, 1.0, 0.6, 0.5), LearningPoint(10, 2.0, 0.5, accuracy)),
    }
    return ClassifierMeasures(**{**values, **changes})


def outcomes(
    condition: str, accuracies: Sequence[float | str | None], labels: int | None = None, **changes: Any
) -> list[LabelOutcome]:
    """Return one outcome per seed: an accuracy, a reason for failure, or None if it was not run."""
    point = {} if labels is None else {"labels": labels}
    cells = [
        StudyCell(condition, point, seed, Classifier(), Recipe(seed=seed)) for seed in range(1, len(accuracies) + 1)
    ]
    return [
        LabelOutcome(
            cell,
            measured(value, **changes) if isinstance(value, float) else None,
            value if isinstance(value, str) else None,
        )
        for cell, value in zip(cells, accuracies, strict=True)
    ]


def label_row(
    condition: str, accuracies: Sequence[float | str | None], labels: int | None = None, **changes: Any
) -> LabelRow:
    [row] = group_rows(outcomes(condition, accuracies, labels, **changes))
    return row
