"""Claims judged from the numbers of a study: held, not held, or not decided."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from lemma.report.statistics import MIN_SEEDS, Estimate, PairedTest, estimate
from lemma.spec.studies import StudyClaim
from lemma.studies.cells import StudyRow, compare_rows, correct_tests, format_settings
from lemma.studies.result import NO_VALUE
from lemma.studies.timing import time_ratio

Verdict = Literal["held", "not held", "not decided", "too few seeds", "not measured"]
SEVERITY: tuple[Verdict, ...] = ("not held", "not measured", "too few seeds", "not decided", "held")
VERDICT_SENTENCES: dict[Verdict, str] = {
    "held": "held in every comparison",
    "not held": "did not hold",
    "not decided": "not decided, since a difference is not significant",
    "too few seeds": f"not decided, since fewer than {MIN_SEEDS} seeds give no test",
    "not measured": "not decided, since a run is missing",
}


class ComparisonVerdict(NamedTuple):
    """The difference between two rows as text, and the verdict on the claim that follows from it."""

    finding: str
    verdict: Verdict
    p: float | None = None

    def __str__(self) -> str:
        return f"{self.finding}: {self.verdict}"


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim of a study with the verdicts of its comparisons; it holds if it holds in each."""

    claim: str
    comparisons: tuple[ComparisonVerdict, ...]

    @property
    def verdict(self) -> Verdict:
        """Return the most severe verdict of the comparisons, such as "not held"."""
        verdicts = {comparison.verdict for comparison in self.comparisons}
        return next(verdict for verdict in SEVERITY if verdict in verdicts)

    @property
    def sentence(self) -> str:
        """Return the claim and its verdict as a sentence."""
        return f"“{self.claim.rstrip('.')}”: {VERDICT_SENTENCES[self.verdict]}."

    def __str__(self) -> str:
        return "\n".join([f"{self.claim.rstrip('.')}: {self.verdict}", *(f"  {part}" for part in self.comparisons)])

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary of claim, verdict and comparisons."""
        comparisons = [comparison._asdict() for comparison in self.comparisons]
        return {"claim": self.claim, "verdict": self.verdict, "comparisons": comparisons}


def judge_claims(claims: Sequence[StudyClaim], rows: Sequence[StudyRow[Any]]) -> tuple[ClaimVerdict, ...]:
    """Check claims about rows by paired differences of log perplexity over seeds; return a verdict for each claim.

    p-values are corrected for all comparisons.
    """
    points = [{"model": row.condition, **row.point} for row in rows]
    compared: list[tuple[int, str, str, str]] = []  # claim, rows, figures, expected
    tests: list[PairedTest | None] = []
    for number, claim in enumerate(claims):
        for comparison in claim.comparisons:
            for row, point in zip(rows, points, strict=True):
                if not point.items() >= comparison.at.items():
                    continue
                baseline = rows[points.index({**point, **comparison.against})]
                open_settings = {  # those that the comparison does not name, as far as they distinguish rows
                    name: value
                    for name, value in point.items()
                    if name not in comparison.at and any(other[name] != value for other in points)
                }
                title = f"{format_settings(comparison.at)} against {format_settings(comparison.against)}"
                title += f" ({format_settings(open_settings)})" if open_settings else ""
                figures = f"{row.estimate('perplexity')} against {baseline.estimate('perplexity')}"
                compared.append((number, title, figures, comparison.expects))
                tests.append(compare_rows(row, baseline, "perplexity"))
    corrected = correct_tests(dict(enumerate(tests)))
    verdicts: list[list[ComparisonVerdict]] = [[] for _ in claims]
    for index, (number, title, figures, expects) in enumerate(compared):
        test = corrected.get(index)
        if test is None:
            verdicts[number].append(ComparisonVerdict(f"{title}: a run is missing", "not measured"))
            continue
        expected = "below 0" if expects == "lower" else "not below 0"
        finding = f"{title}: {figures}, {test}, expected {expected}"
        verdicts[number].append(ComparisonVerdict(finding, judge_difference(test, expects), test.p))
    return tuple(ClaimVerdict(claim.says, tuple(parts)) for claim, parts in zip(claims, verdicts, strict=True))


def judge_difference(test: PairedTest, expects: str) -> Verdict:
    """Return the verdict on the claim that a difference is below zero (`expects` = "lower"), or else that it is not.

    >>> from lemma.report.statistics import paired_test
    >>> judge_difference(paired_test([6.0, 6.1, 6.2], [7.0, 7.1, 7.3]), "lower")
    'held'
    """
    if test.p is None:
        return "too few seeds"
    if not test.is_significant:
        return "not decided"
    return "held" if (test.mean < 0) == (expects == "lower") else "not held"


def judge_equivalence(difference: Estimate | None, tolerance: float) -> Verdict:
    """Return the verdict on the claim that a difference is within ±`tolerance`, by its interval.

    The verdict is "not measured" for None, and "too few seeds" without an interval.

    >>> [judge_equivalence(Estimate(mean, 0.01, 3), 0.02) for mean in (0.005, 0.02, -0.04)]
    ['held', 'not decided', 'not held']
    """
    if difference is None:
        return "not measured"
    if difference.margin is None:
        return "too few seeds"
    if max(abs(difference.low), abs(difference.high)) <= tolerance:
        return "held"
    return "not held" if difference.low > tolerance or difference.high < -tolerance else "not decided"


# The claim "about the same accuracy, but cheaper": which meaning of cost makes it true.


class CostRatio(NamedTuple):
    """The cost of one model divided by that of another; `meaning` is the kind of cost, such as "training time"."""

    meaning: str
    value: float
    low: float | None  # ends of its interval; None where there are too few seeds for one
    high: float | None
    exact: bool = False  # counted, not measured

    @property
    def verdict(self) -> Verdict:
        """Return "held" if the ratio's whole interval is below 1, "not held" if above, else why it is not decided."""
        if self.low is None or self.high is None:
            return "too few seeds"
        return "held" if self.high < 1 else "not held" if self.low > 1 or self.exact else "not decided"

    def __str__(self) -> str:
        """Write the ratio and its interval.

        >>> print(CostRatio("training time", 1.234, 1.1, 1.4))
        training time 1.23 × (1.10 to 1.40)
        """
        ends = "" if self.exact or self.low is None or self.high is None else f" ({self.low:.2f} to {self.high:.2f})"
        return f"{self.meaning} {self.value:.2f} ×{ends}"


def compare_costs(
    row: StudyRow[Any], baseline: StudyRow[Any], inference_seconds: Mapping[str, Sequence[float]]
) -> tuple[CostRatio, ...]:
    """Divide the costs of one row by those of another: parameters, training time and inference time.

    Training time is compared seed by seed: the geometric mean of the ratios with Student's interval of their
    logarithms. `inference_seconds` are measured in turns, by row title. What was not measured is left out.
    """
    costs = []
    for name, meaning in (("parameters", "parameters"), ("layers", "parameters of the layers")):
        count, baseline_count = row.count(name), baseline.count(name)
        if count is not None and baseline_count:
            share = count / baseline_count
            costs.append(CostRatio(meaning, share, share, share, exact=True))
    times, baseline_times = row.values("seconds"), baseline.values("seconds")
    if seeds := sorted(times.keys() & baseline_times.keys()):
        logs = estimate([math.log(times[seed] / baseline_times[seed]) for seed in seeds])
        ends = (None, None) if logs.margin is None else (math.exp(logs.low), math.exp(logs.high))
        costs.append(CostRatio("training time", math.exp(logs.mean), *ends))
    if row.title in inference_seconds and baseline.title in inference_seconds:
        inference = time_ratio(inference_seconds[row.title], inference_seconds[baseline.title])
        costs.append(CostRatio("inference time", inference.median, inference.low, inference.high))
    return tuple(costs)


SAME_SENTENCES: dict[Verdict, str] = {
    "held": "about the same",
    "not held": "not about the same",
    "not decided": "the seeds do not decide whether that is about the same",
    "too few seeds": "too few seeds to say whether that is about the same",
    "not measured": "there is no seed that both have",
}
CHEAPER_VERDICTS: dict[str, tuple[Verdict, ...]] = {
    "cheaper": ("held",),
    "not cheaper": ("not held",),
    "undecided": ("not decided", "too few seeds"),
}


@dataclass(frozen=True)
class CheaperClaim:
    """The claim that a model is as accurate as another and cheaper."""

    title: str
    against: str
    test: PairedTest | None  # of accuracy minus the other's, seed by seed; None if they have no seed in common
    over_texts: Estimate | None  # the same, its interval over the test texts
    tolerance: float  # a difference within ± this counts as the same
    costs: tuple[CostRatio, ...]

    @property
    def accuracy_verdict(self) -> Verdict:
        """Return the verdict of `judge_equivalence` on the difference in accuracy, such as "held"."""
        return judge_equivalence(self.test and self.test.difference, self.tolerance)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary of accuracy difference, its test, and cost ratios."""
        return {
            "model": self.title,
            "against": self.against,
            "accuracy_difference": self.test and self.test.mean,
            "accuracy_difference_margin": self.test and self.test.difference.margin,
            "accuracy_test": self.test and self.test.to_dict(),
            "accuracy_difference_margin_over_texts": self.over_texts and self.over_texts.margin,
            "tolerance": self.tolerance,
            "about_the_same": self.accuracy_verdict,
            "costs": {cost.meaning: {"ratio": cost.value, "low": cost.low, "high": cost.high} for cost in self.costs},
            "cheaper": {cost.meaning: cost.verdict for cost in self.costs},
        }

    def sentences(self) -> tuple[str, ...]:
        """Return sentences on whether the claim holds, for which meaning of cost, and the figures behind it."""
        meanings = {
            word: [cost.meaning for verdict in verdicts for cost in self.costs if cost.verdict == verdict]
            for word, verdicts in CHEAPER_VERDICTS.items()
        }
        match self.accuracy_verdict:
            case "held" if meanings["cheaper"]:
                verdict = f"holds if cost means {join_names(meanings['cheaper'], 'or')}"
            case "held":
                verdict = "does not hold" if meanings["not cheaper"] else "is not decided"
            case "not held":
                verdict = "does not hold, since the accuracies are not about the same"
            case "not measured":
                verdict = "was not measured"
            case _:
                verdict = "is not decided, since the noise leaves open whether the accuracies are about the same"
        by_cost = "; ".join(f"{word} by {join_names(names)}" for word, names in meanings.items() if names)
        details = f" ({by_cost})" if by_cost and self.accuracy_verdict != "not measured" else ""
        claim = f"The claim “about the same accuracy, {self.title} cheaper than {self.against}” {verdict}{details}."
        if not self.costs:
            return (claim,)
        accuracy = f"Accuracy: {SAME_SENTENCES[self.accuracy_verdict]}."
        if self.test is not None:
            within = f"a difference within ±{100 * self.tolerance:g} points counts as the same"
            texts = self.over_texts and f" Over the test texts instead of the seeds: {format_points(self.over_texts)}."
            undecided = self.accuracy_verdict == "not decided" and self.test.is_significant
            though = "a significant difference, though " if undecided else ""
            accuracy = (
                f"Accuracy: {self.test}: {though}{SAME_SENTENCES[self.accuracy_verdict]} ({within}).{texts or ''}"
            )
        return claim, accuracy, f"Cost of {self.title} against {self.against}: {', '.join(map(str, self.costs))}."


def join_names(names: Sequence[str], word: str = "and") -> str:
    """Join names by commas, and the last one by `word`: "a, b or c"."""
    return f" {word} ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def format_percent(estimate: Estimate | None) -> str:
    """Write a fraction in per cent with its interval; a dash for None.

    >>> format_percent(Estimate(0.8123, 0.0123, 3))
    '81.2 ± 1.2'
    """
    if estimate is None:
        return NO_VALUE
    if estimate.margin is None:
        return " / ".join(f"{100 * value:.1f}" for value in estimate.values or (estimate.mean,))
    return str(Estimate(100 * estimate.mean, 100 * estimate.margin, estimate.count))


def format_points(difference: Estimate) -> str:
    """Write a difference of fractions in percentage points, with sign and interval.

    >>> format_points(Estimate(-0.0123, 0.02, 3))
    '−1.2 ± 2.0 points'
    """
    return f"{'+' if difference.mean > 0 else ''}{format_percent(difference)} points".replace("-", "−")
