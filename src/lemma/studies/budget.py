"""Equal budgets: sizes that meet a number of parameters, and steps that meet a number of tokens or seconds."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from lemma.data.splits import Splits
from lemma.data.store import TokenArray
from lemma.errors import SpecError
from lemma.models.build import parameters_of
from lemma.runs.folder import RunFolder
from lemma.spec.data import DataSpec
from lemma.spec.models import Decoder, ModelSpec
from lemma.spec.positions import PositionsSpec
from lemma.spec.recipe import Recipe
from lemma.spec.studies import StudyBudget
from lemma.tasks.language import sequence_length_of
from lemma.training.loop import train

SIZES = ("width", "hidden", "key_width", "value_width", "feed_forward", "attention_width", "embedding")
HALVINGS = 60
WARM_UP, TRIAL = 4, 12  # steps of a speed trial: not timed, and in all


@dataclass(frozen=True)
class FittedModel:
    """A model with the sizes that a budget of parameters allows."""

    model: ModelSpec
    parameters: int
    budget: int

    @property
    def gap(self) -> float:
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
    sizes = _free_sizes(model, fixed)
    steps = [_step_of(model, name) for name in sizes]

    def at(factor: float) -> tuple[int, ...]:
        scaled = zip(sizes.values(), steps, strict=True)
        return tuple(step * max(1, math.floor(size * factor / step + 0.5)) for size, step in scaled)

    def resized(values: tuple[int, ...]) -> ModelSpec:
        return model.replace(**dict(zip(sizes, values, strict=True)))

    @cache
    def count(values: tuple[int, ...]) -> int:
        return parameters_of(resized(values))

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


def _free_sizes(model: ModelSpec, fixed: Collection[str]) -> dict[str, int]:
    """The sizes that may be scaled; where a Transformer's width is fixed, that of its feed-forward layers."""
    sizes = {name: getattr(model, name, None) for name in SIZES if name not in fixed}
    free = {name: size for name, size in sizes.items() if size}
    if not free and isinstance(model, Decoder) and "feed_forward" not in fixed:
        free = {"feed_forward": model.inner}
    if not free:
        held = ", ".join(f"{name}={getattr(model, name)}" for name in SIZES if name in fixed)
        raise SpecError(
            f"study.budget.parameters: {model.family} has no size left to choose, since {held} is fixed. "
            "Leave one of them free, or take the budget away."
        )
    return free


def _step_of(model: ModelSpec, name: str) -> int:
    """What a size must be a multiple of: the heads, where they share it, more where rotary positions turn pairs."""
    heads = getattr(model, "heads", 1)
    shared = "attention_width" if getattr(model, "attention_width", None) else "width"
    if name == shared:
        positions = getattr(model, "positions", None)
        return heads * positions.head_multiple if isinstance(positions, PositionsSpec) else heads
    return heads if name == "value_width" else 1


def tokens_per_step(model: ModelSpec, recipe: Recipe) -> int:
    """How many tokens a step predicts."""
    return recipe.batch * sequence_length_of(model, recipe)


def spread_validations(recipe: Recipe, validations: int | None) -> Recipe:
    """Validate a run that many times, at equal distances; a recipe that has its own schedule is left alone."""
    if validations is None or recipe.evaluate_every:
        return recipe
    return recipe.replace(evaluate_every=math.ceil(recipe.steps / validations))


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
            f"sequence_length {sequence_length_of(model, recipe)} = {tokens_per_step(model, recipe):,}. Raise it, or "
            "lower settings.batch."
        )
    return recipe.replace(steps=max(1, steps))


@dataclass(frozen=True)
class NoScore:
    """What a speed trial has in place of a validation."""

    loss: float = 0.0
    perplexity: float = 1.0


def measure_speed(model: ModelSpec, recipe: Recipe, data: DataSpec, dataset: Splits[TokenArray]) -> float:
    """Train for a few real steps and return the tokens/s of all but the first ones."""
    with TemporaryDirectory(prefix="lemma-trial-") as folder:
        path = Path(folder) / "trial"
        trial = recipe.replace(steps=TRIAL, evaluate_every=TRIAL, tensorboard=False)
        train(model, trial, data, dataset, path, evaluate=lambda model: NoScore(), sample=lambda model: [])
        rows = RunFolder.open(path).metrics.rows()
    first, last = rows[WARM_UP - 1], rows[-1]
    return (last["tokens"] - first["tokens"]) / (last["seconds"] - first["seconds"])
