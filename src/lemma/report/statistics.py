"""Estimates with their 95 % intervals: means over seeds (Student's t, Welch) and resampled figures (bootstrap)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from statistics import fmean, variance
from typing import Any

import numpy as np
from jaxtyping import Float

from lemma.errors import InputError
from lemma.report.text import label

Lines = list[tuple[str, str]]
"""Names and values, a line each."""


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval: mean ± margin over seeds, or the bounds that resampled data give.

    One seed, and data that were not resampled, have no interval.
    """

    mean: float
    margin: float | None = None
    count: int = 1
    """How many values the mean is taken over."""
    bounds: tuple[float, float] | None = None
    """The interval where it need not be symmetric."""

    @classmethod
    def of(cls, value: float, resampled: Float[np.ndarray, "samples"]) -> "Estimate":
        """A figure with the 2.5th and the 97.5th percentile of what resampled data gave."""
        if not len(resampled):
            return cls(float(value))
        low, high = np.percentile(resampled, [2.5, 97.5])
        return cls(float(value), bounds=(float(low), float(high)))

    @property
    def value(self) -> float:
        """The figure itself."""
        return self.mean

    @property
    def interval(self) -> list[float] | None:
        """The ends of the interval, if it has one."""
        if self.bounds is None and self.margin is None:
            return None
        return list(self.bounds) if self.bounds else [self.low, self.high]

    @property
    def low(self) -> float:
        """The lower end of the interval, or the figure itself."""
        return self.bounds[0] if self.bounds else self.mean - (self.margin or 0.0)

    @property
    def high(self) -> float:
        """The upper end of the interval, or the figure itself."""
        return self.bounds[1] if self.bounds else self.mean + (self.margin or 0.0)

    def __str__(self) -> str:
        """Write mean ± margin, both to the margin's second digit.

        >>> print(Estimate(4.8312, 0.1234, 3), Estimate(4.8312))
        4.83 ± 0.12 4.831
        """
        if self.margin is None:
            return f"{self.mean:,.{_decimals(self.mean, 4)}f}"
        places = min(_decimals(self.margin, 2), 6)
        return f"{self.mean:,.{places}f} ± {self.margin:,.{places}f}"

    def shown(self, scale: float = 1.0, unit: str = "") -> str:
        """Write the figure with the ends of its interval.

        >>> Estimate(0.75, bounds=(0.7, 0.8)).shown(100, " %")
        '75.00 %  (95 %: 70.00 to 80.00)'
        """
        between = f"  (95 %: {scale * self.low:.2f} to {scale * self.high:.2f})" if self.interval else ""
        return f"{scale * self.mean:.2f}{unit}{between}"


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of `values` and its margin t·s/√n.

    >>> print(estimate([4.0, 4.2, 4.1]))
    4.10 ± 0.25
    """
    count = len(values)
    if count < 2:
        return Estimate(values[0], None, count)
    return Estimate(fmean(values), student_quantile(count - 1) * math.sqrt(variance(values) / count), count)


def difference(ones: Sequence[float], others: Sequence[float]) -> Estimate:
    """Return the mean of `ones` minus that of `others`, with Welch's interval for unequal variances."""
    gap, count = fmean(ones) - fmean(others), min(len(ones), len(others))
    if count < 2:
        return Estimate(gap, None, count)
    shares = [(variance(values) / len(values), len(values) - 1) for values in (ones, others)]
    total = sum(share for share, _ in shares)
    if total == 0:
        return Estimate(gap, 0.0, count)
    freedom = total**2 / sum(share**2 / degrees for share, degrees in shares)
    return Estimate(gap, student_quantile(freedom) * math.sqrt(total), count)


def student_quantile(freedom: float, level: float = 0.95) -> float:
    """Return the t that holds `level` of Student's distribution between −t and t.

    >>> round(student_quantile(1), 3), round(student_quantile(4), 3)
    (12.706, 2.776)
    """
    from scipy import stats  # takes a while to load

    return float(stats.t.ppf((1 + level) / 2, freedom))


def _decimals(value: float, digits: int) -> int:
    """How many decimals show this many significant digits of `value`."""
    if value == 0 or not math.isfinite(value):
        return digits - 1
    return max(0, digits - 1 - math.floor(math.log10(abs(value))))


def needed(module: str, package: str, what: str) -> Any:
    """Import a library where it is first needed; say how to get it if it is not there."""
    try:
        return import_module(module)
    except ImportError:
        raise InputError(f"{what} needs {package}, which is not installed here: pip install {package}") from None


def protocol_lines(protocol: Mapping[str, Any]) -> Lines:
    """How a measurement was made, a line each."""
    return [(name, str(value)) for name, value in protocol.items() if value not in (None, (), [])]


def lay_out(lines: Lines) -> str:
    """Names and values in two columns."""
    width = max(len(name) for name, _ in lines) + 1
    return "\n".join(label(name, value, width) for name, value in lines)
