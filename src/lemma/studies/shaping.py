"""Whether shaping losses helped (problem B4): the same model with and without them, seed by seed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from lemma.studies.outcome import Measures
from lemma.studies.row import Row
from lemma.studies.statistics import Estimate, estimate

TERMS = ("focus", "near")
OWN = {*TERMS, "near_max", "seed", "steps", "evaluate_every", "checkpoint_every"}  # under a clock steps differ
MATTERS = 0.001  # of the plain perplexity: below it nobody would care, however sure it is


@dataclass(frozen=True)
class Help:
    """The perplexity of a shaped model less that of the plain one, over the seeds both have."""

    title: str
    gap: Estimate
    plain: float
    """The mean perplexity of the plain model."""

    @property
    def share(self) -> float:
        """The gap as a share of the plain model's perplexity."""
        return self.gap.mean / self.plain

    @property
    def verdict(self) -> str:
        """Helped, hurt, or neither as far as these seeds tell; a gap too small to matter is neither."""
        if self.gap.margin is None:
            return "one seed only, so that the noise is unknown"
        noisy = self.gap.low <= 0 <= self.gap.high
        if abs(self.share) < MATTERS and (not noisy or self.gap.margin < MATTERS * self.plain):
            return f"no difference that matters (below {MATTERS:.1%})".replace("%", " %")
        if noisy:
            return "within noise"
        return "helped" if self.gap.high < 0 else "hurt"

    def __str__(self) -> str:
        sign = "+" if self.gap.mean > 0 else ""
        gap = f"{sign}{self.gap} ({self.share:+.2%})".replace("-", "−").replace("%", " %")
        return f"{self.title}: perplexity {gap} against the model without it, seed by seed: {self.verdict}."

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        gap = {"gap": self.gap.mean, "margin": self.gap.margin, "share": self.share}
        return {"row": self.title, **gap, "verdict": self.verdict}


def helped(rows: Sequence[Row]) -> Iterator[Help]:
    """Compare every row that shapes attention with the row that is the same but for that."""
    plain = [row for row in rows if row.measured and not _shapes(row.measured[0].recipe)]
    for row in rows:
        base = next((other for other in plain if row.measured and _same_but_shaped(row, other)), None)
        if base is None or not _shapes(row.measured[0].recipe):
            continue
        mine, theirs = _by_seed(row.measured), _by_seed(base.measured)
        if both := sorted(mine.keys() & theirs.keys()):
            gap = estimate([mine[seed] - theirs[seed] for seed in both])
            yield Help(row.title, gap, fmean(theirs[seed] for seed in both))


def _shapes(recipe: Mapping[str, Any]) -> bool:
    return any(recipe.get(term) for term in TERMS)


def _same_but_shaped(row: Row, other: Row) -> bool:
    one, two = row.measured[0], other.measured[0]
    return one.model == two.model and _rest(one.recipe) == _rest(two.recipe)


def _rest(recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {word: value for word, value in recipe.items() if word not in OWN}


def _by_seed(measured: Sequence[Measures]) -> dict[int, float]:
    return {one.recipe["seed"]: one.perplexity for one in measured}
