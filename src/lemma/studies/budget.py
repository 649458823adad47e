"""Budgets and costs: sizes that meet a number of parameters, steps that meet tokens or seconds; times and memory."""

import gc
import math
import platform
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lemma import __version__
from lemma.data.splits import Splits
from lemma.data.store import TokenArray
from lemma.errors import SpecError
from lemma.models.build import count_spec_parameters
from lemma.runs.folder import RunFolder
from lemma.spec.data import DataSpec
from lemma.spec.models import Decoder, ModelSpec
from lemma.spec.positions import PositionsSpec
from lemma.spec.recipe import Recipe, fit_warm_up
from lemma.spec.studies import CostStudy, StudyBudget
from lemma.tasks.language import training_length
from lemma.training.distributed import Distributed
from lemma.training.loop import train
from lemma.training.optimizer import VALIDATIONS_PER_RUN
from lemma.training.precision import fork_random
from lemma.training.session import Session

SIZES = ("width", "hidden", "key_width", "value_width", "feed_forward", "attention_width", "embedding")
HALVINGS = 60
TRIAL_WARM_UP, TRIAL_STEPS = 4, 12  # steps of a speed trial: not timed, and in all


@dataclass(frozen=True)
class FittedModel:
    """A model with the sizes that a budget of parameters allows."""

    model: ModelSpec
    parameters: int
    budget: int

    @property
    def relative_excess(self) -> float:
        """How much more the model has than the budget, as a share of it."""
        return self.parameters / self.budget - 1


def fit_parameters(model: ModelSpec, budget: int, fixed: Collection[str] = ()) -> FittedModel:
    """Scale the sizes of `model` that are not `fixed`, keeping their ratios, until its count is nearest to `budget`.

    Each size is a rounded multiple of one factor, so the count never falls as the factor grows: bisection finds the
    two neighbours between which the budget lies.

    >>> from lemma.spec.models import FeedForward
    >>> fit = fit_parameters(FeedForward(V=65), 200_000)
    >>> fit.model.width, fit.model.hidden, fit.parameters
    (79, 315, 200120)
    """
    named = {name: getattr(model, name, None) for name in SIZES if name not in fixed}
    sizes = {name: size for name, size in named.items() if size}
    if not sizes and isinstance(model, Decoder) and "feed_forward" not in fixed:
        sizes = {"feed_forward": model.feed_forward_width}  # its width is fixed, that of its feed-forward layers is not
    if not sizes:
        held = ", ".join(f"{name}={getattr(model, name)}" for name in SIZES if name in fixed)
        raise SpecError(
            f"study.budget.parameters: {model.family} has no size left to choose, since {held} is fixed. "
            "Leave one of them free, or take the budget away."
        )
    heads, positions = getattr(model, "heads", 1), getattr(model, "positions", None)
    multiple = positions.head_multiple if isinstance(positions, PositionsSpec) else 1  # rotary turns pairs
    shared = "attention_width" if getattr(model, "attention_width", None) else "width"
    multiples = {"value_width": heads, shared: heads * multiple}
    steps = [multiples.get(name, 1) for name in sizes]

    def at(factor: float) -> tuple[int, ...]:
        scaled = zip(sizes.values(), steps, strict=True)
        return tuple(step * max(1, math.floor(size * factor / step + 0.5)) for size, step in scaled)

    def resized(values: tuple[int, ...]) -> ModelSpec:
        return model.replace(**dict(zip(sizes, values, strict=True)))

    @cache
    def count(values: tuple[int, ...]) -> int:
        return count_spec_parameters(resized(values))

    if count(at(0.0)) > budget:
        smallest = resized(at(0.0))
        at_least = ", ".join(f"{name}={getattr(smallest, name)}" for name in sizes)
        raise SpecError(
            f"study.budget.parameters = {budget:,} is too little for {smallest.family}: at its smallest ({at_least}), "
            f"with a vocabulary of {smallest.sizes()['V']:,}, it has {count(at(0.0)):,}. "
            "Raise the budget, or shrink the vocabulary."
        )
    low, high = 0.0, 1.0
    while count(at(high)) <= budget:
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if count(at(middle)) <= budget else (low, middle)
    nearest = min(at(low), at(high), key=lambda values: abs(count(values) - budget))
    return FittedModel(resized(nearest), count(nearest), budget)


def tokens_per_step(model: ModelSpec, recipe: Recipe) -> int:
    """How many tokens a step predicts."""
    return recipe.batch * training_length(model, recipe)


TRAINING_COST = 3  # a token is read forward and backward in training, only forward in validation


def fit_schedule(
    recipe: Recipe, fixed: Collection[str], validations: int | None, tokens: int = 0, validation: int = 0
) -> tuple[Recipe, list[str]]:
    """Warm up and validate in proportion to the steps; return the recipe, and what of the settings does not fit.

    A warm-up takes a tenth of the steps at most; one that was given only has to end before half of them. Validations
    (ten, or those asked for) take no longer than training, of which a step reads `tokens` and a validation
    `validation`; a distance that was given is kept.

    >>> recipe, said = fit_schedule(Recipe(steps=19), {"warm_up"}, 1, tokens=1024, validation=111_000)
    >>> recipe.warm_up, recipe.evaluate_every, said
    (1, 19, ['a warm-up of 50 does not fit into 19 steps: it takes 1'])
    """
    said, asked = [], recipe.warm_up
    recipe = fit_warm_up(recipe, max_steps=recipe.steps // 2 if "warm_up" in fixed else None)
    if "warm_up" in fixed and recipe.warm_up != asked:
        said.append(f"a warm-up of {asked} does not fit into {recipe.steps:,} steps: it takes {recipe.warm_up}")
    if recipe.evaluate_every:
        return recipe, said
    most = TRAINING_COST * tokens * recipe.steps // validation if tokens and validation else recipe.steps
    count = max(1, min(validations or VALIDATIONS_PER_RUN, most, recipe.steps))
    if count < (validations or 1):
        times = "once" if count == 1 else f"{count} times"
        said.append(f"validated {times}, not {validations}: more would take longer than {recipe.steps:,} steps")
    return recipe.replace(evaluate_every=math.ceil(recipe.steps / count)), said


def fit_steps(model: ModelSpec, recipe: Recipe, budget: StudyBudget, speed: float | None = None) -> Recipe:
    """Give the recipe as many steps as the budget allows; `speed`, in tokens/s, turns seconds into tokens.

    >>> from lemma.spec.models import Lstm
    >>> fit_steps(Lstm(), Recipe(batch=10, sequence_length=20), StudyBudget(tokens=10_100)).steps
    50
    """
    if budget.tokens is None and budget.seconds is None:
        return recipe
    tokens = budget.tokens if budget.tokens else (budget.seconds or 0.0) * (speed or 0.0)
    steps = math.floor(tokens / tokens_per_step(model, recipe))
    if steps < 1 and budget.tokens:
        raise SpecError(
            f"study.budget.tokens = {budget.tokens:,} is less than one step of {model.family}: batch {recipe.batch} × "
            f"sequence_length {training_length(model, recipe)} = {tokens_per_step(model, recipe):,}. Raise it, or "
            "lower settings.batch."
        )
    return recipe.replace(steps=max(1, steps))


def measure_speed(model: ModelSpec, recipe: Recipe, data: DataSpec, dataset: Splits[TokenArray]) -> float:
    """Train for a few real steps and return the tokens/s of all but the first ones."""
    with TemporaryDirectory(prefix="lemma-trial-") as folder:
        path = Path(folder) / "trial"
        trial = recipe.replace(steps=TRIAL_STEPS, evaluate_every=TRIAL_STEPS, tracker=None)
        no_score = SimpleNamespace(loss=0.0, perplexity=1.0)  # in place of a validation
        train(model, trial, data, dataset, path, evaluate=lambda model: no_score, sample=lambda model: [])
        rows = RunFolder.open(path).metrics.rows()
    first, last = rows[TRIAL_WARM_UP - 1], rows[-1]
    return (last["tokens"] - first["tokens"]) / (last["seconds"] - first["seconds"])


def device_of(spec: Recipe | CostStudy) -> str:
    """Where a run of a recipe, or a study of costs, is measured on this machine."""
    return "cuda" if spec.device != "cpu" and torch.cuda.is_available() else "cpu"


def describe_hardware(device: str = "cpu") -> dict[str, str]:
    """The machine, the threads and the versions that measured times depend on."""
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


# Times: all candidates in one process, in turns, many times over.


MIN_SECONDS = 2e-3  # seconds: what is quicker is repeated within one measurement
MAX_REPEATS = 1000  # repetitions within one measurement


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
        places = 2 if self.median < 100 else 0
        return f"{self.median:.{places}f} ({self.low:.{places}f}–{self.high:.{places}f})"

    def scale(self, factor: float) -> "Quartiles":
        """The same in another unit."""
        return Quartiles(self.median * factor, self.low * factor, self.high * factor)


def quartiles(values: Sequence[float]) -> Quartiles:
    """The median and the quartiles of some measurements.

    >>> quartiles([1.0, 2.0, 3.0, 4.0, 5.0])
    Quartiles(median=3.0, low=2.0, high=4.0)
    """
    if len(values) < 2:
        return Quartiles(values[0], values[0], values[0])
    low, median, high = quantiles(values, n=4, method="inclusive")
    return Quartiles(median, low, high)


def time_ratio(times: Sequence[float], baseline: Sequence[float]) -> Quartiles:
    """One candidate's time divided by another's, round by round: what slows a round down slows down both."""
    return quartiles([one / other for one, other in zip(times, baseline, strict=True)])


def time_in_turns(
    calls: Mapping[str, Callable[[], Any]], repetitions: int, device: str = "cpu", limit: float = math.inf
) -> dict[str, list[float]]:
    """Time every candidate once a round, each round beginning with another one; seconds per call.

    After `limit` seconds there are no more rounds, but for the least that quartiles can be taken of.

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
        return min(MAX_REPEATS, max(1, round(MIN_SECONDS / max(seconds(call, 1), 1e-7))))

    names = list(calls)
    taken: dict[str, list[float]] = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.disable()
    try:
        times = {name: repeats(calls[name]) for name in names}
        end = time.perf_counter() + limit
        for turn in range(repetitions):
            if turn >= MIN_ROUNDS and time.perf_counter() > end:
                break
            for place in range(len(names)):
                name = names[(turn + place) % len(names)]
                taken[name].append(seconds(calls[name], times[name]))
    finally:
        if collecting:
            gc.enable()
    return taken


TIME_NEUTRAL_SETTINGS = {"seed", "steps", "learning_rate", "final_rate", "warm_up", "schedule", "weight_decay", "beta2"}
TIME_NEUTRAL_SETTINGS |= {"evaluate_every", "checkpoint_every", "patience", "keep", "tensorboard", "distance_max"}
"""Settings of a recipe that do not change the time of a step."""
MAX_ROUNDS = 20  # at most
MIN_ROUNDS = 5
MAX_SECONDS = 5.0  # that all rounds may take together, if there are more than the least


def time_steps(plans: Mapping[str, tuple[ModelSpec, Recipe]], tokens: Any) -> dict[str, list[float]]:
    """Seconds per token of one training step of each model, in turns; nothing if they do not fit into memory at once.

    Weights are new, and nothing is written or validated: a step is all that is timed.
    """
    sessions: dict[str, Session] = {}
    random_states = ExitStack()
    try:
        for name, (model, recipe) in plans.items():
            device = torch.device(device_of(recipe))
            random_states.enter_context(fork_random(device))
            sessions[name] = Session(model, recipe, tokens, Distributed(device), lambda message: None)
        device = next(iter(sessions.values())).processes.device.type
        taken = time_in_turns(
            {name: session.step for name, session in sessions.items()}, MAX_ROUNDS, device, MAX_SECONDS
        )
    except torch.OutOfMemoryError:
        return {}
    finally:
        random_states.close()
        for session in sessions.values():
            session.batches.close()
    return {name: [one / sessions[name].batches.tokens_per_step for one in some] for name, some in taken.items()}


# Memory: weights, gradients, the optimizer's state and activations at the peak of one training step.


def peak_step_bytes(session: Session) -> int:
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
        for storage in (leaf.untyped_storage() for leaf in tree_leaves(made) if isinstance(leaf, Tensor)):
            key = storage._cdata
            if key not in given and key not in self.live:
                self.live[key] = storage.nbytes()
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._free, key)
        return made

    def _free(self, key: int) -> None:
        self.now -= self.live.pop(key, 0)
