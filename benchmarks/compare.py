"""Candidates timed in turns in one process; what counts is the ratio of neighbouring timings and its spread."""

import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch

from lemma.studies.timing import Quartiles, time_in_turns, time_ratio


@dataclass(frozen=True)
class Comparison:
    """Rates of the peers, and the speed-up of the first over each of the others."""

    title: str
    unit: str
    rates: Mapping[str, float]
    ratios: Mapping[str, Quartiles]
    target: Mapping[str, float]

    @property
    def met(self) -> bool:
        """Return True if the median ratio reaches the target against every peer that has one."""
        return all(self.ratios[name].median >= target for name, target in self.target.items())

    def __str__(self) -> str:
        lines = [self.title, *(f"  {name:<34}{rate:>12,.0f} {self.unit}" for name, rate in self.rates.items())]
        for name, ratio in self.ratios.items():
            target = f"; target ≥ {self.target[name]}" if name in self.target else ""
            spread = f"quartiles {ratio.low:.2f} to {ratio.high:.2f}{target}"
            lines.append(f"  times faster than {name}: {ratio.median:.2f} ({spread})")
        return "\n".join([*lines, *([f"  {verdict(self.met)}"] if self.target else [])])


def compare(
    title: str,
    peers: Mapping[str, Callable[[], object]],
    *,
    work: float,
    unit: str,
    rounds: int = 15,
    target: Mapping[str, float] | None = None,
) -> Comparison:
    """Time each peer once a round, in turns; `work` is how many units one call does."""
    seconds = time_in_turns(peers, rounds)
    first, *peer_names = peers
    rates = {name: work / statistics.median(times) for name, times in seconds.items()}
    ratios = {name: time_ratio(seconds[name], seconds[first]) for name in peer_names}
    return Comparison(title, unit, rates, ratios, target or {})


def verdict(met: bool) -> str:
    """Return the verdict on a target: met or missed."""
    return "target met" if met else "TARGET MISSED"


def check_names(names: Sequence[str], choices: Iterable[str], description: str) -> None:
    """End with the names there are if one of them is not known, or help is asked for, before anything is measured."""
    choices = list(choices)
    wrong = [name for name in names if name not in choices]
    if not wrong:
        return
    listed = f"{description}\n\nNames: {', '.join(choices)}."
    if wrong[0] in ("-h", "--help"):
        print(listed)
        raise SystemExit(0)
    print(f"'{wrong[0]}' is not a benchmark.\n{listed}", file=sys.stderr)
    raise SystemExit(2)


def machine() -> str:
    """Describe the machine, the library versions and the date of a measurement."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} cores ({processor()})"
    return f"{date.today()}: {device}, torch {torch.__version__}, Python {platform.python_version()}"


def processor() -> str:
    """The processor's own name for itself."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as facts:
            return next((line.split(":", 1)[1].strip() for line in facts if line.startswith("model name")), "unknown")
    except OSError:
        return platform.processor() or "unknown"
