"""Time measured fairly: all contenders in one process, in turns, many times over."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

import torch

LEAST = 2e-3  # seconds: what is quicker is repeated within one measurement
MOST = 1000  # repetitions within one measurement
Run = Callable[[], Any]


@dataclass(frozen=True)
class Spread:
    """A median with the quartiles around it."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """Write the median and the quartiles.

        >>> print(Spread(1.234, 1.2, 1.301))
        1.23 (1.20–1.30)
        """
        return f"{self.median:.3g} ({self.low:.3g}–{self.high:.3g})" if self.median < 1 else self._decimals()

    def _decimals(self) -> str:
        places = 2 if self.median < 100 else 0
        return f"{self.median:.{places}f} ({self.low:.{places}f}–{self.high:.{places}f})"

    def scaled(self, factor: float) -> "Spread":
        """The same in another unit."""
        return Spread(self.median * factor, self.low * factor, self.high * factor)


def spread(values: Sequence[float]) -> Spread:
    """The median and the quartiles of some measurements.

    >>> spread([1.0, 2.0, 3.0, 4.0, 5.0])
    Spread(median=3.0, low=2.0, high=4.0)
    """
    if len(values) < 2:
        return Spread(values[0], values[0], values[0])
    low, median, high = quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


def ratio(ones: Sequence[float], others: Sequence[float]) -> Spread:
    """One contender's time against another's, round by round: what slows a round down slows down both."""
    return spread([one / other for one, other in zip(ones, others, strict=True)])


def race(runs: Mapping[str, Run], repetitions: int, device: str = "cpu") -> dict[str, list[float]]:
    """Time every contender once a round, each round beginning with another one; seconds a call.

    What takes less than two milliseconds is called several times within one measurement, the same number of times in
    every round.
    """
    names = list(runs)
    with _quiet():
        times = {name: _calls(runs[name], device) for name in names}
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(repetitions):
            for place in range(len(names)):
                name = names[(turn + place) % len(names)]
                seconds[name].append(_seconds(runs[name], times[name], device))
    return seconds


def _calls(run: Run, device: str) -> int:
    """How many calls make a measurement; the calls made here warm up."""
    _seconds(run, 1, device)
    return min(MOST, max(1, round(LEAST / max(_seconds(run, 1, device), 1e-7))))


def _seconds(run: Run, calls: int, device: str) -> float:
    _wait(device)
    begin = time.perf_counter()
    for _ in range(calls):
        run()
    _wait(device)
    return (time.perf_counter() - begin) / calls


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the collector of garbage from running in the middle of a measurement."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
