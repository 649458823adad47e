"""Estimates with their 95 % intervals over seeds (Student's t) or resampled data, and paired tests of differences."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev, variance
from typing import Any

import numpy as np
from jaxtyping import Float

from lemma.report.text import label_line

NamedValues = list[tuple[str, str]]  # names and values, a line each


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval: mean ± margin over seeds, or the bounds that resampled data give.

    One seed, and data that were not resampled, have no interval.
    """

    mean: float
    margin: float | None = None
    count: int = 1  # values that the mean is taken over
    bounds: tuple[float, float] | None = None  # the interval where it need not be symmetric
    values: tuple[float, ...] = ()  # the values themselves, where they are too few for an interval

    @classmethod
    def from_resamples(cls, value: float, resampled: Float[np.ndarray, " samples"]) -> "Estimate":
        """Return an estimate whose interval spans the 2.5th to 97.5th percentile of the values of resampled data.

        `value` is that of the original data.
        """
        if not len(resampled):
            return cls(float(value))
        low, high = np.percentile(resampled, [2.5, 97.5])
        return cls(float(value), bounds=(float(low), float(high)))

    @property
    def value(self) -> float:
        """The mean, or the value of the original data."""
        return self.mean

    @property
    def interval(self) -> list[float] | None:
        """Lower and upper end of the 95 % interval; None without an interval."""
        return None if self.bounds is None and self.margin is None else [self.low, self.high]

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval; the value itself without one."""
        return self.bounds[0] if self.bounds else self.mean - (self.margin or 0.0)

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval; the value itself without one."""
        return self.bounds[1] if self.bounds else self.mean + (self.margin or 0.0)

    def __str__(self) -> str:
        """Write mean ± margin, both to the margin's second digit; two values as they are.

        >>> print(Estimate(4.8312, 0.1234, 3), Estimate(4.8312))
        4.83 ± 0.12 4.831
        >>> print(estimate([4.0, 4.2]))
        4.000 / 4.200
        """
        if self.margin is None and self.values:
            return " / ".join(str(Estimate(value)) for value in self.values)
        if self.margin is None:
            return f"{self.mean:,.{_count_decimals(self.mean, 4)}f}"
        decimals = min(_count_decimals(self.margin, 2), 6)
        return f"{self.mean:,.{decimals}f} ± {self.margin:,.{decimals}f}"

    def format_interval(self, scale: float = 1.0, unit: str = "") -> str:
        """Return the value and its 95 % interval as text, multiplied by `scale` and followed by `unit`.

        >>> Estimate(0.75, bounds=(0.7, 0.8)).format_interval(100, " %")
        '75.00 %  (95 %: 70.00 to 80.00)'
        """
        interval = f"  (95 %: {scale * self.low:.2f} to {scale * self.high:.2f})" if self.interval else ""
        return f"{scale * self.mean:.2f}{unit}{interval}"


MIN_SEEDS = 3  # below there is neither an interval nor a test: two values give an interval of 12.7 standard errors
SIGNIFICANCE_LEVEL = 0.05  # a p-value below this is called significant


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of values of several seeds and its 95 % margin t·s/√n; two values have no margin.

    >>> print(estimate([4.0, 4.2, 4.1]))
    4.10 ± 0.25
    """
    count = len(values)
    if count < MIN_SEEDS:
        return Estimate(fmean(values), None, count, values=tuple(values) if count > 1 else ())
    return Estimate(fmean(values), student_quantile(count - 1) * math.sqrt(variance(values) / count), count)


@dataclass(frozen=True)
class PairedTest:
    """Paired test of a condition against a baseline, seed by seed: the mean difference, and whether chance explains it.

    Student's t-test of paired differences (Student 1908). On the log scale a difference is a ratio: what a seed does
    to both conditions cancels, and 73 against 55 weighs as much as 7.3 against 5.5. Fewer than three seeds are not
    tested. Of fractions of test items (accuracy), the standard error is never below that of the items.
    """

    differences: tuple[float, ...]  # one per seed: of logarithms, or of fractions
    log: bool = True
    min_error: float = 0.0  # least standard error of the mean difference: what the number of test items leaves open
    comparisons: int = 1  # that the p-value is corrected for
    corrected_p: float | None = None  # after Holm's correction; None if it was not corrected

    @property
    def mean(self) -> float:
        """Mean difference over the seeds."""
        return fmean(self.differences)

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean difference, at least `min_error`; None if there are fewer than three seeds."""
        count = len(self.differences)
        return max(stdev(self.differences) / math.sqrt(count), self.min_error) if count >= MIN_SEEDS else None

    @property
    def difference(self) -> Estimate:
        """Mean difference with its 95 % interval."""
        count = len(self.differences)
        if self.standard_error is None:
            return estimate(self.differences)
        return Estimate(self.mean, student_quantile(count - 1) * self.standard_error, count)

    @property
    def raw_p(self) -> float | None:
        """Two-sided p-value of the mean difference being 0, before any correction; None without a test."""
        if self.standard_error is None:
            return None
        if self.standard_error == 0:
            return float(self.mean == 0)
        from scipy import stats

        return float(2 * stats.t.sf(abs(self.mean) / self.standard_error, len(self.differences) - 1))

    @property
    def p(self) -> float | None:
        """P-value, corrected for the number of comparisons if there were several; None without a test."""
        return self.raw_p if self.corrected_p is None else self.corrected_p

    @property
    def effect(self) -> float | None:
        """Cohen's d of paired differences: mean divided by standard deviation; None if that is 0 or unknown."""
        return self.mean / (self.standard_error * math.sqrt(len(self.differences))) if self.standard_error else None

    @property
    def is_significant(self) -> bool:
        """True if the p-value is below the significance level."""
        return self.p is not None and self.p < SIGNIFICANCE_LEVEL

    @property
    def verdict(self) -> str:
        """Result of the test: "significant", "not significant" or "too few seeds for a test"."""
        if self.p is None:
            return "too few seeds for a test"
        return "significant" if self.is_significant else "not significant"

    def format_difference(self, difference: float, decimals: int = 1) -> str:
        """Return a difference as signed text without unit: per cent for logarithms, else percentage points."""
        value = 100 * (math.expm1(difference) if self.log else difference)
        return f"{value:+,.{decimals}f}".replace("-", "−")

    @property
    def unit(self) -> str:
        """Unit of formatted differences: "%" or "points"."""
        return "%" if self.log else "points"

    def __str__(self) -> str:
        """Write the difference, its interval, the p-value and the effect size, or the difference of each seed.

        >>> print(paired_test([73, 55, 55], [35, 35, 35]))
        +72.7 % (95 %: +15.1 to +159.2; p = 0.029, d = 3.3)
        >>> print(paired_test([73, 55], [35, 35]))
        +108.6 and +57.1 %, seed by seed
        """
        if self.standard_error is None:
            each = " and ".join(map(self.format_difference, self.differences))
            return f"{each} {self.unit}, {'one seed' if len(self.differences) == 1 else 'seed by seed'}"
        estimate = self.difference
        decimals = min(2, max(1, _count_decimals(100 * (estimate.margin or 0.0), 2)))
        low, mean, high = (
            self.format_difference(value, decimals) for value in (estimate.low, estimate.mean, estimate.high)
        )
        size = "" if self.effect is None else f", d = {self.effect:.2g}".replace("-", "−")
        return f"{mean} {self.unit} (95 %: {low} to {high}; {format_p(self.p)}{size})"

    def to_dict(self) -> dict[str, Any]:
        """Return the test as JSON-compatible values; differences are on the scale that was tested."""
        values = {"scale": "log" if self.log else "share", "differences": list(self.differences)}
        values |= {"mean": self.difference.mean, "margin": self.difference.margin, "p": self.raw_p, "p_holm": self.p}
        return values | {"comparisons": self.comparisons, "effect": self.effect}


def paired_test(
    values: Sequence[float], baseline: Sequence[float], log: bool = True, min_error: float = 0.0
) -> PairedTest:
    """Return the test of a condition's values against a baseline's, one of each per seed.

    With `log`, logarithms are compared, so that differences are ratios; the standard error is at least `min_error`.
    """
    pairs = zip(values, baseline, strict=True)
    differences = tuple(math.log(value / base) if log else value - base for value, base in pairs)
    return PairedTest(differences, log, min_error)


def holm_correct(tests: Sequence[PairedTest]) -> list[PairedTest]:
    """Return tests with p-values corrected for their number, so that the level holds for all together (Holm 1979).

    >>> [round(test.p, 4) for test in holm_correct([paired_test([73, 55, 55], [35, 35, 35])] * 2)]
    [0.0571, 0.0571]
    """
    order = sorted((test.raw_p, index) for index, test in enumerate(tests) if test.raw_p is not None)
    corrected, worst = list(tests), 0.0
    for rank, (p, index) in enumerate(order):
        worst = max(worst, min(1.0, (len(order) - rank) * p))
        corrected[index] = replace(tests[index], comparisons=len(order), corrected_p=worst)
    return corrected


def format_p(p: float | None) -> str:
    """Return a p-value as text; "no test" for None.

    >>> format_p(0.0286), format_p(0.00002)
    ('p = 0.029', 'p < 0.001')
    """
    return "no test" if p is None else "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def item_standard_error(differences: Sequence[float], num_items: int | None = None) -> float:
    """Return the standard error that a finite number of test items leaves in a difference of fractions.

    One more item each way is added, so that no number of items is certain (Laplace).

    Args:
        differences: per item, 1 if only the condition is right, −1 if only the baseline is, else 0.
        num_items: number of different items, if some were asked several times.

    >>> round(item_standard_error([1, 0, 0, 0, 0, -1, 0, 0, 0, 0] * 2), 3)
    0.114
    """
    smoothed = [*differences, 1.0, -1.0]
    return stdev(smoothed) / math.sqrt(num_items + 2 if num_items else len(smoothed))


def student_quantile(freedom: float, level: float = 0.95) -> float:
    """Return the t for which the interval −t to t holds the fraction `level` of Student's distribution.

    `freedom` is the number of degrees of freedom.

    >>> round(student_quantile(1), 3), round(student_quantile(4), 3)
    (12.706, 2.776)
    """
    from scipy import stats  # takes a while to load

    return float(stats.t.ppf((1 + level) / 2, freedom))


def _count_decimals(value: float, digits: int) -> int:
    """Return the number of decimals with which a value has `digits` significant digits."""
    if value == 0 or not math.isfinite(value):
        return digits - 1
    return max(0, digits - 1 - math.floor(math.log10(abs(value))))


def protocol_values(protocol: Mapping[str, Any]) -> NamedValues:
    """Return the settings of a measurement as (name, text) pairs, without those that are None or empty."""
    return [(name, str(value)) for name, value in protocol.items() if value not in (None, (), [])]


def format_named_values(values: NamedValues) -> str:
    """Return (name, value) pairs as lines of text in two columns."""
    width = max(len(name) for name, _ in values) + 1
    return "\n".join(label_line(name, value, width) for name, value in values)
