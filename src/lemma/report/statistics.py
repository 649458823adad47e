"""Means, confidence intervals and tests."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from statistics import fmean, variance
from typing import Any

import numpy as np
from jaxtyping import Float

from lemma.errors import InputError
from lemma.report.text import label

# Means over seeds with their intervals, by Student's t.


LEVEL = 0.95
PIECES, HALVINGS = 200, 60


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and half the width of its 95 % interval; one seed has no interval."""

    mean: float
    margin: float | None
    count: int

    @property
    def low(self) -> float:
        """The lower end of the interval, or the mean itself."""
        return self.mean - (self.margin or 0.0)

    @property
    def high(self) -> float:
        """The upper end of the interval, or the mean itself."""
        return self.mean + (self.margin or 0.0)

    def __str__(self) -> str:
        """Write mean ± margin, both to the margin's second digit.

        >>> print(Estimate(4.8312, 0.1234, 3), Estimate(4.8312, None, 1))
        4.83 ± 0.12 4.831
        """
        if self.margin is None:
            return f"{self.mean:,.{_decimals(self.mean, 4)}f}"
        places = min(_decimals(self.margin, 2), 6)
        return f"{self.mean:,.{places}f} ± {self.margin:,.{places}f}"


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
    """Return the mean of `ones` less that of `others`, with Welch's interval for unequal variances."""
    gap, count = fmean(ones) - fmean(others), min(len(ones), len(others))
    if count < 2:
        return Estimate(gap, None, count)
    shares = [(variance(values) / len(values), len(values) - 1) for values in (ones, others)]
    total = sum(share for share, _ in shares)
    if total == 0:
        return Estimate(gap, 0.0, count)
    freedom = total**2 / sum(share**2 / degrees for share, degrees in shares)
    return Estimate(gap, student_quantile(freedom) * math.sqrt(total), count)


@cache
def student_quantile(freedom: float, level: float = LEVEL) -> float:
    """Return the t that holds `level` of Student's distribution between −t and t.

    >>> round(student_quantile(1), 3), round(student_quantile(4), 3)
    (12.706, 2.776)
    """
    low, high = 0.0, 1.0
    while student_between(high, freedom) < level:
        high *= 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if student_between(middle, freedom) < level else (low, middle)
    return high


def student_between(t: float, freedom: float) -> float:
    """Return the share of Student's distribution between −t and t.

    With t = √ν tan θ the density becomes cos^(ν−1) θ / B(1/2, ν/2), which Simpson's rule integrates easily.
    """
    end = math.atan(t / math.sqrt(freedom))
    heights = [math.cos(end * piece / PIECES) ** (freedom - 1) for piece in range(PIECES + 1)]
    area = end / PIECES / 3 * (heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2]))
    beta = math.exp(math.lgamma(0.5) + math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2))
    return 2 * area / beta


def _decimals(value: float, digits: int) -> int:
    """How many decimals show so many significant digits of `value`."""
    if value == 0 or not math.isfinite(value):
        return digits - 1
    return max(0, digits - 1 - math.floor(math.log10(abs(value))))


# A figure with the interval that resampling gives it.


Lines = list[tuple[str, str]]


@dataclass(frozen=True)
class BootstrapEstimate:
    """A figure, and between which bounds 95 % of resampled data put it; None where nothing was resampled."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, value: float, resampled: Float[np.ndarray, "samples"]) -> "BootstrapEstimate":
        """The figure with the 2.5th and the 97.5th percentile of what resampled data gave."""
        if not len(resampled):
            return cls(float(value))
        low, high = np.percentile(resampled, [2.5, 97.5])
        return cls(float(value), float(low), float(high))

    def shown(self, scale: float = 1.0, unit: str = "") -> str:
        """The figure as a person reads it.

        >>> Estimate(0.75, 0.7, 0.8).shown(100, " %")
        '75.00 %  (95 %: 70.00 to 80.00)'
        """
        figure = f"{scale * self.value:.2f}{unit}"
        if self.low is None or self.high is None:
            return figure
        return f"{figure}  (95 %: {scale * self.low:.2f} to {scale * self.high:.2f})"

    @property
    def interval(self) -> list[float] | None:
        """Its bounds, if it has any."""
        return None if self.low is None or self.high is None else [self.low, self.high]


def needed(module: str, package: str, what: str) -> Any:
    """Import a library where it is first needed; say how to get it if it is not there."""
    try:
        return import_module(module)
    except ImportError:
        raise InputError(f"{what} needs {package}, which is not installed here: pip install {package}") from None


def protocol_lines(protocol: Mapping[str, Any]) -> Lines:
    """How a measurement came about, a line each."""
    return [(name, str(value)) for name, value in protocol.items() if value not in (None, (), [])]


def lay_out(lines: Lines) -> str:
    """Names and values in two columns."""
    width = max(len(name) for name, _ in lines) + 1
    return "\n".join(label(name, value, width) for name, value in lines)
