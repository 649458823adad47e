"""What things cost on this machine: times measured fairly, the memory of a training step, and the hardware in words."""

import gc
import platform
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lemma.spec.recipe import Recipe
from lemma.training.session import Session


def device_named(name: str) -> str:
    """The device that a spec's `device` means on this machine."""
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"


def device_of(recipe: Recipe) -> str:
    """Where a run of this recipe is measured: where it was trained."""
    return device_named(recipe.device)


def describe_hardware(device: str = "cpu") -> dict[str, str]:
    """The machine, the threads and the versions that measured times depend on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.processor() or platform.machine()
    try:
        lemma = version("lemma")
    except PackageNotFoundError:
        lemma = "not installed as a package"
    threads = torch.get_num_threads()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, Lemma {lemma}"
    return {
        **({"GPU": torch.cuda.get_device_name()} if device == "cuda" else {}),
        "processor": f"{processor}, {threads} thread{'' if threads == 1 else 's'}",
        "system": f"{platform.system()} {platform.machine()}, {versions}",
    }


# Times: all candidates in one process, in turns, many times over.


LEAST = 2e-3  # seconds: what is quicker is repeated within one measurement
MOST = 1000  # repetitions within one measurement


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
        if self.median < 1:
            return f"{self.median:.3g} ({self.low:.3g}–{self.high:.3g})"
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
    """One candidate's time divided by another's, round by round: what slows a round down slows down both."""
    return spread([one / other for one, other in zip(ones, others, strict=True)])


def race(calls: Mapping[str, Callable[[], Any]], repetitions: int, device: str = "cpu") -> dict[str, list[float]]:
    """Time every candidate once a round, each round beginning with another one; seconds per call.

    What takes less than two milliseconds is called several times within one measurement, the same number of times in
    every round. The garbage collector waits until the end.
    """

    def seconds(call: Callable[[], Any], times: int) -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(times):
            call()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begin) / times

    def repeats(call: Callable[[], Any]) -> int:
        seconds(call, 1)  # warms up
        return min(MOST, max(1, round(LEAST / max(seconds(call, 1), 1e-7))))

    names = list(calls)
    taken: dict[str, list[float]] = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.disable()
    try:
        times = {name: repeats(calls[name]) for name in names}
        for turn in range(repetitions):
            for place in range(len(names)):
                name = names[(turn + place) % len(names)]
                taken[name].append(seconds(calls[name], times[name]))
    finally:
        if collecting:
            gc.enable()
    return taken


# Memory: weights, gradients, the optimizer's state and activations at the peak of one training step.


def peak_of_step(session: Session) -> int:
    """The bytes of all tensors at the peak of a session's second step; the first makes the optimizer's state."""
    session.step()
    if session.processes.device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        session.step()
        return torch.cuda.max_memory_allocated()
    held = {id(tensor): tensor for tensor in (*session.model.parameters(), *session.model.buffers())}
    state = [value for known in session.optimizer.state.values() for value in known.values()]
    with LiveBytes() as live:
        session.step()
    kept = sum(tensor.nbytes for tensor in held.values())
    return kept + sum(value.nbytes for value in state if isinstance(value, Tensor)) + live.peak


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that are made within it, from when they are made until nothing refers to them.

    >>> with LiveBytes() as live:
    ...     for _ in range(3):
    ...         held = torch.zeros(10)  # one more is made before the one before is freed
    >>> live.peak
    80
    """

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation as it is, and count the storage it made."""
        made = func(*args, **(kwargs or {}))
        given = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in given:
                self._count(leaf.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self.live:
            self.live[key] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self.now -= self.live.pop(key, 0)
