"""What the runs of a study of classifiers came to, one by one and gathered over the seeds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, NamedTuple, Self

from lemma.studies.outcome import Outcome
from lemma.studies.statistics import Estimate, estimate
from lemma.studies.table import NONE

SCORES = ("accuracy", "precision", "recall", "f1")


class LearningPoint(NamedTuple):
    """One validation on the way: after how many steps and seconds, its loss and accuracy."""

    step: int
    seconds: float
    loss: float
    accuracy: float


@dataclass(frozen=True)
class LabelMeasures:
    """All that was measured of a trained classifier, beside what it was."""

    model: Mapping[str, Any]
    recipe: Mapping[str, Any]
    parameters: int
    layers: int
    """Parameters of the body without its embeddings: what the recurrent or attention layers have."""
    learned: int
    """Those that training changed."""
    steps: int
    seconds: float
    accuracy: float
    precision: float
    recall: float
    f1: float
    """On the test texts; precision, recall and F1 are means over the classes."""
    low: float | None
    high: float | None
    """The bootstrap's interval of this run's accuracy, over the test texts."""
    right: str
    """One digit a test text, in the order of the split: 1 where the class is right."""
    curve: tuple[LearningPoint, ...]

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote."""
        return cls(**{**values, "curve": tuple(LearningPoint(*point) for point in values["curve"])})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "curve": [list(point) for point in self.curve]}


LabelOutcome = Outcome[LabelMeasures]
"""A cell of a study of classifiers and what became of it."""


@dataclass(frozen=True)
class LabelRow:
    """What the seeds of one contender at one place came to."""

    contender: str
    point: Mapping[str, Any]
    title: str
    measured: Mapping[int, LabelMeasures]
    """By their seeds."""
    missing: tuple[str, ...] = ()
    """Why seeds are missing, in words."""

    def values(self, name: str) -> dict[int, float]:
        """Something measured, by the seeds."""
        return {seed: float(getattr(one, name)) for seed, one in self.measured.items()}

    def estimate(self, name: str) -> Estimate | None:
        """The mean of something measured with its interval; None if no seed came to an end."""
        return estimate(list(self.values(name).values())) if self.measured else None

    def count(self, name: str) -> int | None:
        """Something that is the same for every seed."""
        return next((int(getattr(one, name)) for one in self.measured.values()), None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: shares as they are, not in per cent."""
        figures: dict[str, Any] = {}
        for name in (*SCORES, "seconds"):
            found = self.estimate(name)
            figures |= {name: found and found.mean, f"{name}_margin": found and found.margin}
        counts = {name: self.count(name) for name in ("parameters", "layers", "learned", "steps")}
        place = {"contender": self.contender, **self.point, "seeds": len(self.measured)}
        return {**place, **figures, **counts, "notes": "; ".join(self.missing)}


def gather(outcomes: Iterable[LabelOutcome]) -> list[LabelRow]:
    """Put the seeds of each contender at each place together, in the order in which they first come."""
    groups: dict[tuple[str, str], list[LabelOutcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.cell.contender, outcome.cell.place), []).append(outcome)
    return [_row(group) for group in groups.values()]


def _row(outcomes: Sequence[LabelOutcome]) -> LabelRow:
    cell = outcomes[0].cell
    return LabelRow(
        contender=cell.contender,
        point=cell.point,
        title=", ".join(filter(None, [cell.contender, cell.place])),
        measured={outcome.cell.seed: outcome.measures for outcome in outcomes if outcome.measures},
        missing=tuple(_why(outcome) for outcome in outcomes if not outcome.measures),
    )


def _why(outcome: LabelOutcome) -> str:
    seed = f"seed {outcome.cell.seed}"
    return f"{seed} failed: {outcome.reason}" if outcome.reason else f"{seed} not run yet"


def paired(ones: LabelRow, others: LabelRow, name: str) -> Estimate | None:
    """One row's figure less another's, over the seeds that both have.

    A seed fixes the order of the batches and the numbers that first weights are drawn from, for both alike; what it
    does to both goes out of the difference.
    """
    mine, theirs = ones.values(name), others.values(name)
    both = sorted(mine.keys() & theirs.keys())
    return estimate([mine[seed] - theirs[seed] for seed in both]) if both else None


def over_texts(ones: LabelRow, others: LabelRow) -> Estimate | None:
    """The same difference of accuracies, its interval over the test texts: seeds are averaged text by text."""
    both = sorted(ones.measured.keys() & others.measured.keys())
    shares = [_shares([row.measured[seed].right for seed in both]) for row in (ones, others)]
    gaps = [one - other for one, other in zip(*shares, strict=True)] if both else []
    return estimate(gaps) if gaps else None


def _shares(rights: Sequence[str]) -> list[float]:
    """How often each test text was classified rightly."""
    return [fmean(map(int, digits)) for digits in zip(*rights, strict=True)]


def percent(found: Estimate | None) -> str:
    """A share in per cent.

    >>> percent(Estimate(0.8123, 0.0123, 3))
    '81.2 ± 1.2'
    """
    if found is None:
        return NONE
    if found.margin is None:
        return f"{100 * found.mean:.1f}"
    return str(Estimate(100 * found.mean, 100 * found.margin, found.count))
