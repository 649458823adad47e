"""Times and memory: candidates timed in turns in one process, and the memory at the peak of a training step."""

import gc
import math
import platform
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lemma import __version__
from lemma.spec.models import ModelSpec
from lemma.spec.recipe import Recipe
from lemma.spec.studies import CostStudy
from lemma.training.devices import Distributed, fork_random
from lemma.training.session import Session

MIN_SECONDS = 2e-3  # of one measurement: a call that is quicker is repeated within it
MAX_REPEATS = 1000  # calls within one measurement
MAX_ROUNDS, MIN_ROUNDS = 20, 5  # of timed training steps
MAX_SECONDS = 5.0  # for all these rounds together, if there are more than the least
TIME_NEUTRAL_SETTINGS = {"seed", "steps", "learning_rate", "final_rate", "warm_up", "schedule", "weight_decay", "beta2"}
TIME_NEUTRAL_SETTINGS |= {"evaluate_every", "checkpoint_every", "patience", "keep", "tensorboard", "distance_max"}
"""Settings of a recipe that do not change the time of a step."""


def device_of(spec: Recipe | CostStudy) -> str:
    """Return the device, "cuda" or "cpu", on which a run with this recipe, or a study of costs, is measured here."""
    return "cuda" if spec.device != "cpu" and torch.cuda.is_available() else "cpu"


def describe_hardware(device: str = "cpu") -> dict[str, str]:
    """Describe what measured times depend on by topic: processor and threads, the GPU if used, versions."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, Lemma {__version__}"
    return {
        **({"GPU": torch.cuda.get_device_name()} if device == "cuda" else {}),
        "processor": f"{processor}, {threads} thread{'' if threads == 1 else 's'}",
        "system": f"{platform.system()} {platform.machine()}, {versions}",
    }


@dataclass(frozen=True)
class Quartiles:
    """A median with the quartiles around it."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """Write the median and the quartiles.

        >>> print(Quartiles(1.234, 1.2, 1.301))
        1.23 (1.20–1.30)
        """
        if self.median < 1:
            return f"{self.median:.3g} ({self.low:.3g}–{self.high:.3g})"
        decimals = 2 if self.median < 100 else 0
        return f"{self.median:.{decimals}f} ({self.low:.{decimals}f}–{self.high:.{decimals}f})"

    def scale(self, factor: float) -> "Quartiles":
        """Return these quartiles multiplied by a factor."""
        return Quartiles(self.median * factor, self.low * factor, self.high * factor)


def quartiles(values: Sequence[float]) -> Quartiles:
    """Return the median and the quartiles of `values`; a single value is all three.

    >>> quartiles([1.0, 2.0, 3.0, 4.0, 5.0])
    Quartiles(median=3.0, low=2.0, high=4.0)
    """
    if len(values) < 2:
        return Quartiles(values[0], values[0], values[0])
    low, median, high = quantiles(values, n=4, method="inclusive")
    return Quartiles(median, low, high)


def time_ratio(times: Sequence[float], baseline: Sequence[float]) -> Quartiles:
    """Return quartiles of the ratios of times to the baseline's, round by round, as a slow round slows down both."""
    return quartiles([seconds / base for seconds, base in zip(times, baseline, strict=True)])


def time_in_turns(
    calls: Mapping[str, Callable[[], Any]], repetitions: int, device: str = "cpu", limit: float = math.inf
) -> dict[str, list[float]]:
    """Time every call once per round, each round starting with another one; return its seconds in each round, by name.

    A call that takes less than two milliseconds is repeated within one measurement, equally often in every round. The
    garbage collector waits until the end.

    `limit` is in seconds: past it no round starts, once quartiles can be computed.
    """

    def measure(call: Callable[[], Any], repeats: int) -> float:
        """Return the seconds per call of `repeats` calls in a row."""
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / repeats

    def choose_repeats(call: Callable[[], Any]) -> int:
        """Return how often to repeat a call within one measurement, after two calls that warm it up."""
        measure(call, 1)  # warms up
        return min(MAX_REPEATS, max(1, round(MIN_SECONDS / max(measure(call, 1), 1e-7))))

    names = list(calls)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.disable()
    try:
        repeats = {name: choose_repeats(calls[name]) for name in names}
        deadline = time.perf_counter() + limit
        for turn in range(repetitions):
            if turn >= MIN_ROUNDS and time.perf_counter() > deadline:
                break
            for index in range(len(names)):
                name = names[(turn + index) % len(names)]
                seconds[name].append(measure(calls[name], repeats[name]))
    finally:
        if collecting:
            gc.enable()
    return seconds


def time_steps(plans: Mapping[str, tuple[ModelSpec, Recipe]], tokens: Any) -> dict[str, list[float]]:
    """Time training steps of each model and recipe on `tokens`, in turns; return the seconds per token by plan name.

    Weights are new, and nothing is written or validated. The result is empty if the models do not fit into memory at
    once.
    """
    sessions: dict[str, Session] = {}
    random_states = ExitStack()
    try:
        for name, (model, recipe) in plans.items():
            device = torch.device(device_of(recipe))
            random_states.enter_context(fork_random(device))
            sessions[name] = Session(model, recipe, tokens, Distributed(device), lambda message: None)
        device = next(iter(sessions.values())).processes.device.type
        steps = {name: session.step for name, session in sessions.items()}
        seconds = time_in_turns(steps, MAX_ROUNDS, device, MAX_SECONDS)
    except torch.OutOfMemoryError:
        return {}
    finally:
        random_states.close()
        for session in sessions.values():
            session.batches.close()
    return {name: [time / sessions[name].batches.tokens_per_step for time in times] for name, times in seconds.items()}


# Memory: weights, gradients, the optimizer's state and activations at the peak of one training step.


def peak_step_bytes(session: Session) -> int:
    """Run two training steps; return the bytes of all tensors at the peak of the second, with an optimizer state."""
    session.step()
    if session.processes.device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        session.step()
        return torch.cuda.max_memory_allocated()
    weights = {id(tensor): tensor for tensor in (*session.model.parameters(), *session.model.buffers())}
    state = [value for states in session.optimizer.state.values() for value in states.values()]
    with LiveBytes() as live:
        session.step()
    static = sum(tensor.nbytes for tensor in weights.values())
    return static + sum(value.nbytes for value in state if isinstance(value, Tensor)) + live.peak


class LiveBytes(TorchDispatchMode):
    """Context that counts the bytes of tensors made within it, as long as anything refers to them; `peak` is the most.

    >>> with LiveBytes() as live:
    ...     for _ in range(3):
    ...         held = torch.zeros(10)  # one more is made before the one before is freed
    >>> live.peak
    80
    """

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}  # bytes by storage
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        inputs = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for storage in (leaf.untyped_storage() for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)):
            key = storage._cdata
            if key not in inputs and key not in self.live:
                self.live[key] = storage.nbytes()
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._free, key)
        return outputs

    def _free(self, key: int) -> None:
        """Subtract the bytes of a storage that was garbage-collected; `key` identifies it."""
        self.now -= self.live.pop(key, 0)
