"""How long an account takes: probed for the first time, and from the cache."""

import os
import tempfile
import time
from collections.abc import Callable
from unittest.mock import patch

from benchmarks.compare import machine

TARGETS = {
    "parameters, first time": 2.0,
    "flops, first time": 6.0,
    "parameters, from the cache": 0.2,
    "flops, from the cache": 0.2,
}


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> int:
    """Time the decoder's account; return how many targets were missed."""
    import lemma.counting.count
    import lemma.counting.subject  # imports take no part in the time

    measured: dict[str, list[float]] = {name: [] for name in TARGETS}
    for _ in range(3):
        with tempfile.TemporaryDirectory() as home, patch.dict(os.environ, LEMMA_HOME=home):
            for when in ("first time", "from the cache"):
                for quantity in ("parameters", "flops"):
                    spent = seconds(lambda quantity=quantity: str(lemma.count("decoder", quantities=[quantity])))
                    measured[f"{quantity}, {when}"].append(spent)
    print("The decoder's account, after imports; the median of three")
    missed = 0
    for name, times in measured.items():
        middle = sorted(times)[1]
        met = middle < TARGETS[name]
        missed += not met
        print(f"  {name:<28} {middle:6.2f} s   target < {TARGETS[name]} s: {'met' if met else 'MISSED'}")
    return missed


if __name__ == "__main__":
    print(machine())
    raise SystemExit(main() > 0)
