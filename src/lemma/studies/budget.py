"""Budgets: sizes that meet a number of parameters, steps that meet tokens or seconds."""

import math
from collections.abc import Collection
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

from lemma.data.splits import Splits
from lemma.data.store import TokenArray
from lemma.errors import SpecError
from lemma.models.build import count_spec_parameters
from lemma.runs.folder import RunFolder
from lemma.spec.data import DataSpec
from lemma.spec.models import Decoder, ModelSpec
from lemma.spec.positions import PositionsSpec
from lemma.spec.recipe import Recipe, fit_warm_up
from lemma.spec.studies import StudyBudget
from lemma.tasks.language import training_length
from lemma.training.loop import train
from lemma.training.optimizer import VALIDATIONS_PER_RUN

SIZES = ("width", "hidden", "key_width", "value_width", "feed_forward", "attention_width", "embedding")
HALVINGS = 60
TRAINING_COST = 3  # a token is read forward and backward in training, only forward in validation
TRIAL_WARM_UP, TRIAL_STEPS = 4, 12  # steps of a speed trial: not timed, and in all


def fit_parameters(model: ModelSpec, budget: int, fixed: Collection[str] = ()) -> ModelSpec:
    """Scale the sizes of `model` until its number of parameters is nearest to `budget`; those in `fixed` stay.

    The ratios of the sizes stay, too. Each size is a rounded multiple of one factor, so the count never falls as the
    factor grows: bisection finds the two neighbours between which the budget lies.

    >>> from lemma.spec.models import FeedForward
    >>> model = fit_parameters(FeedForward(V=65), 200_000)
    >>> model.width, model.hidden, count_spec_parameters(model)
    (79, 315, 200120)
    """
    free = {name: getattr(model, name, None) for name in SIZES if name not in fixed}
    sizes = {name: size for name, size in free.items() if size}
    if not sizes and isinstance(model, Decoder) and "feed_forward" not in fixed:
        sizes = {"feed_forward": model.feed_forward_width}  # its width is fixed, that of its feed-forward layers is not
    if not sizes:
        fixed_sizes = ", ".join(f"{name}={getattr(model, name)}" for name in SIZES if name in fixed)
        raise SpecError(
            f"study.budget.parameters: {model.family} has no size left to choose, since {fixed_sizes} is fixed. "
            "Leave one of them free, or take the budget away."
        )
    heads, positions = getattr(model, "heads", 1), getattr(model, "positions", None)
    multiple = positions.head_multiple if isinstance(positions, PositionsSpec) else 1  # rotary turns pairs
    shared = "attention_width" if getattr(model, "attention_width", None) else "width"
    multiples = {"value_width": heads, shared: heads * multiple}
    steps = [multiples.get(name, 1) for name in sizes]

    def scale_sizes(factor: float) -> tuple[int, ...]:
        """Return all sizes times a factor, each rounded to a positive multiple of its step."""
        scaled = zip(sizes.values(), steps, strict=True)
        return tuple(step * max(1, math.floor(size * factor / step + 0.5)) for size, step in scaled)

    def resize(values: tuple[int, ...]) -> ModelSpec:
        """Return the model with these sizes."""
        return model.replace(**dict(zip(sizes, values, strict=True)))

    @cache
    def count(values: tuple[int, ...]) -> int:
        """Return the number of parameters of the model with these sizes."""
        return count_spec_parameters(resize(values))

    if count(scale_sizes(0.0)) > budget:
        smallest = resize(scale_sizes(0.0))
        at_least = ", ".join(f"{name}={getattr(smallest, name)}" for name in sizes)
        raise SpecError(
            f"study.budget.parameters = {budget:,} is too little for {smallest.family}: at its smallest ({at_least}), "
            f"with a vocabulary of {smallest.sizes()['V']:,}, it has {count(scale_sizes(0.0)):,}. "
            "Raise the budget, or shrink the vocabulary."
        )
    low, high = 0.0, 1.0
    while count(scale_sizes(high)) <= budget:
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if count(scale_sizes(middle)) <= budget else (low, middle)
    return resize(min(scale_sizes(low), scale_sizes(high), key=lambda values: abs(count(values) - budget)))


def tokens_per_step(model: ModelSpec, recipe: Recipe) -> int:
    """Return the number of tokens that a training step predicts: batch size times training length."""
    return recipe.batch * training_length(model, recipe)


def fit_schedule(
    recipe: Recipe, fixed: Collection[str], validations: int | None, step_tokens: int = 0, validation_tokens: int = 0
) -> tuple[Recipe, list[str]]:
    """Return a recipe with warm-up and validation interval in proportion to its steps, and notes on changed settings.

    A warm-up takes a tenth of the steps at most; if it is among the `fixed` settings, half of them. `validations` (ten
    if None) take no longer than training; an `evaluate_every` that the recipe has stays.

    `step_tokens` and `validation_tokens` are read by a training step and by a validation.

    >>> recipe, notes = fit_schedule(Recipe(steps=19), {"warm_up"}, 1, step_tokens=1024, validation_tokens=111_000)
    >>> recipe.warm_up, recipe.evaluate_every, notes
    (1, 19, ['a warm-up of 50 does not fit into 19 steps: it takes 1'])
    """
    notes, requested = [], recipe.warm_up
    recipe = fit_warm_up(recipe, max_steps=recipe.steps // 2 if "warm_up" in fixed else None)
    if "warm_up" in fixed and recipe.warm_up != requested:
        notes.append(f"a warm-up of {requested} does not fit into {recipe.steps:,} steps: it takes {recipe.warm_up}")
    if recipe.evaluate_every:
        return recipe, notes
    affordable = recipe.steps
    if step_tokens and validation_tokens:
        affordable = TRAINING_COST * step_tokens * recipe.steps // validation_tokens
    count = max(1, min(validations or VALIDATIONS_PER_RUN, affordable, recipe.steps))
    if count < (validations or 1):
        times = "once" if count == 1 else f"{count} times"
        notes.append(f"validated {times}, not {validations}: more would take longer than {recipe.steps:,} steps")
    return recipe.replace(evaluate_every=math.ceil(recipe.steps / count)), notes


def fit_steps(model: ModelSpec, recipe: Recipe, budget: StudyBudget, speed: float | None = None) -> Recipe:
    """Return the recipe with as many steps as the budget allows; `speed`, in tokens/s, converts seconds to tokens.

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
    """Train a new model for a few steps in a temporary folder and return the tokens/s of all but the first steps."""
    with TemporaryDirectory(prefix="lemma-trial-") as folder:
        path = Path(folder) / "trial"
        trial = recipe.replace(steps=TRIAL_STEPS, evaluate_every=TRIAL_STEPS, tracker=None)
        no_score = SimpleNamespace(loss=0.0, perplexity=1.0)  # in place of a validation
        train(model, trial, data, dataset, path, evaluate=lambda model: no_score, sample=lambda model: [])
        rows = RunFolder.open(path).metrics.rows()
    first, last = rows[TRIAL_WARM_UP - 1], rows[-1]
    return (last["tokens"] - first["tokens"]) / (last["seconds"] - first["seconds"])
