"""The claim "about the same accuracy, but cheaper", judged: which meaning of cost makes it true (problem C3)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lemma.studies.claims import Verdict
from lemma.studies.label_outcome import LabelRow, over_texts, paired, percent
from lemma.studies.statistics import Estimate, estimate
from lemma.studies.timing import ratio


@dataclass(frozen=True)
class CostRatio:
    """What one contender costs against another, by one meaning of cost."""

    meaning: str
    value: float
    low: float | None
    high: float | None
    """The interval; None where one seed gives none."""
    exact: bool = False
    """Whether it is counted, not measured."""

    @property
    def verdict(self) -> Verdict:
        """Whether it is cheaper."""
        if self.low is None or self.high is None:
            return "one seed only"
        if self.exact:
            return "held" if self.value < 1 else "not held"
        return "held" if self.high < 1 else "not held" if self.low > 1 else "within noise"

    def __str__(self) -> str:
        """Write the ratio and its interval.

        >>> print(CostRatio("training time", 1.234, 1.1, 1.4))
        training time 1.23 × (1.10 to 1.40)
        """
        ends = "" if self.exact or self.low is None or self.high is None else f" ({self.low:.2f} to {self.high:.2f})"
        return f"{self.meaning} {self.value:.2f} ×{ends}"


@dataclass(frozen=True)
class Compared:
    """A contender against another: the difference of accuracies, and the ratios of costs."""

    title: str
    against: str
    gap: Estimate | None
    """Accuracy less the other's, seed by seed; None if they have no seed in common."""
    texts: Estimate | None
    """The same, its interval over the test texts."""
    tolerance: float
    costs: tuple[CostRatio, ...]

    @property
    def same(self) -> Verdict:
        """Whether the accuracies are about the same."""
        return about_the_same(self.gap, self.tolerance)

    def by_verdict(self, verdict: Verdict) -> list[str]:
        """The meanings of cost by which "cheaper" got this verdict."""
        return [cost.meaning for cost in self.costs if cost.verdict == verdict]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        costs = {one.meaning: {"ratio": one.value, "low": one.low, "high": one.high} for one in self.costs}
        return {
            "contender": self.title,
            "against": self.against,
            "accuracy_difference": self.gap and self.gap.mean,
            "accuracy_difference_margin": self.gap and self.gap.margin,
            "accuracy_difference_margin_over_texts": self.texts and self.texts.margin,
            "tolerance": self.tolerance,
            "about_the_same": self.same,
            "costs": costs,
            "cheaper": {one.meaning: one.verdict for one in self.costs},
        }


def about_the_same(gap: Estimate | None, tolerance: float) -> Verdict:
    """Judge a difference by its whole interval: within the tolerance, outside it, or partly both.

    >>> [about_the_same(Estimate(mean, 0.01, 3), 0.02) for mean in (0.005, 0.02, -0.04)]
    ['held', 'within noise', 'not held']
    """
    if gap is None:
        return "not measured"
    if gap.margin is None:
        return "one seed only"
    if max(abs(gap.low), abs(gap.high)) <= tolerance:
        return "held"
    return "not held" if gap.low > tolerance or gap.high < -tolerance else "within noise"


def compare(row: LabelRow, base: LabelRow, tolerance: float, seconds: Mapping[str, Sequence[float]]) -> Compared:
    """Set a row beside another; `seconds` of inference were taken in turns, by the rows' titles."""
    costs = [_counted("parameters", row, base), _counted("layers", row, base), _trained(row, base)]
    if row.title in seconds and base.title in seconds:
        raced = ratio(seconds[row.title], seconds[base.title])
        costs.append(CostRatio("inference time", raced.median, raced.low, raced.high))
    gap = paired(row, base, "accuracy")
    known = tuple(cost for cost in costs if cost)
    return Compared(row.title, base.title, gap, over_texts(row, base), tolerance, known)


def _counted(name: str, row: LabelRow, base: LabelRow) -> CostRatio | None:
    mine, theirs = row.count(name), base.count(name)
    if mine is None or not theirs:
        return None
    share = mine / theirs
    return CostRatio("parameters of the layers" if name == "layers" else name, share, share, share, exact=True)


def _trained(row: LabelRow, base: LabelRow) -> CostRatio | None:
    """Training time, seed by seed: the geometric mean of the ratios with Student's interval of their logarithms."""
    mine, theirs = row.values("seconds"), base.values("seconds")
    both = sorted(mine.keys() & theirs.keys())
    if not both:
        return None
    logs = estimate([math.log(mine[seed] / theirs[seed]) for seed in both])
    ends = (None, None) if logs.margin is None else (math.exp(logs.low), math.exp(logs.high))
    return CostRatio("training time", math.exp(logs.mean), *ends)


SAME: dict[Verdict, str] = {
    "held": "about the same",
    "not held": "not about the same",
    "within noise": "the seeds do not tell whether that is about the same",
    "one seed only": "one seed has no interval, so that the noise is unknown",
    "not measured": "there is no seed that both have",
}


def sentences(one: Compared) -> tuple[str, ...]:
    """Say in plain words what was found, and whether the claim holds, for which meaning of cost."""
    claim = f"The claim “about the same accuracy, {one.title} cheaper than {one.against}” {_overall(one)}"
    costs = ", ".join(map(str, one.costs))
    return (claim, _accuracy(one), f"Cost of {one.title} against {one.against}: {costs}.") if costs else (claim,)


def _overall(one: Compared) -> str:
    cheaper, dearer = one.by_verdict("held"), one.by_verdict("not held")
    open_ = [*one.by_verdict("within noise"), *one.by_verdict("one seed only")]
    costs = [
        f"cheaper by {_and(cheaper)}" if cheaper else "",
        f"not cheaper by {_and(dearer)}" if dearer else "",
        f"undecided by {_and(open_)}" if open_ else "",
    ]
    said = "; ".join(filter(None, costs))
    match one.same:
        case "held":
            lead = f"holds if cost means {_or(cheaper)}" if cheaper else "does not hold" if dearer else "is not decided"
        case "not held":
            lead = "does not hold, since the accuracies are not about the same"
        case "not measured":
            return "was not measured."
        case _:
            lead = "is not decided, since the noise leaves open whether the accuracies are about the same"
    return f"{lead} ({said})." if said else f"{lead}."


def _accuracy(one: Compared) -> str:
    if one.gap is None:
        return f"Accuracy: {SAME[one.same]}."
    within = f"a difference within ±{100 * one.tolerance:g} points counts as the same"
    texts = f" Over the test texts in place of the seeds: {points(one.texts)}." if one.texts else ""
    sure = one.same == "within noise" and not one.gap.low <= 0 <= one.gap.high
    said = "a difference beyond the noise, though " if sure else ""
    return f"Accuracy, seed by seed: {points(one.gap)}: {said}{SAME[one.same]} ({within}).{texts}"


def points(gap: Estimate) -> str:
    """A difference of shares in points, with its sign.

    >>> points(Estimate(-0.0123, 0.02, 3))
    '−1.2 ± 2.0 points'
    """
    return f"{'+' if gap.mean > 0 else ''}{percent(gap)} points".replace("-", "−")


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _or(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
