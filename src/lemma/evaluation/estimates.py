"""A figure with the interval that resampling gives it."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from jaxtyping import Float

from lemma.errors import InputError
from lemma.typeset import label

Lines = list[tuple[str, str]]


@dataclass(frozen=True)
class Estimate:
    """A figure, and between which bounds 95 % of resampled data put it; None where nothing was resampled."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, value: float, resampled: Float[np.ndarray, "samples"]) -> "Estimate":
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
