"""The solver of a parameter budget: all sizes of a model scaled by one factor until its count fits."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache

from lemma.errors import SpecError
from lemma.models import parameters_of
from lemma.spec import Decoder, ModelSpec, PositionsSpec

SIZES = ("width", "hidden", "key_width", "value_width", "feed_forward", "attention_width", "embedding")
HALVINGS = 60


@dataclass(frozen=True)
class Fit:
    """A model with the size a budget allows, and how far from it it is."""

    model: ModelSpec
    parameters: int
    budget: int

    @property
    def gap(self) -> float:
        """How much more the model has than the budget, as a share of it."""
        return self.parameters / self.budget - 1

    def __str__(self) -> str:
        """Say the count and its distance.

        >>> from lemma.spec import Rnn
        >>> print(Fit(Rnn(), 100_500, 100_000))
        100,500 parameters, +0.50 % of the budget
        """
        return f"{self.parameters:,} parameters, {100 * self.gap:+.2f} % of the budget"


def fit_parameters(model: ModelSpec, budget: int, fixed: Collection[str] = ()) -> Fit:
    """Scale the sizes of `model` that are not `fixed`, keeping their ratios, until its count is nearest to `budget`.

    Each size is a rounded multiple of one factor, so the count never falls as the factor grows: bisection finds the
    two neighbours between which the budget lies.

    >>> from lemma.spec import FeedForward
    >>> fit = fit_parameters(FeedForward(V=65), 200_000)
    >>> fit.model.width, fit.model.hidden, fit.parameters
    (79, 315, 200120)
    """
    sizes = _free_sizes(model, fixed)
    grains = [_grain(model, name) for name in sizes]

    def at(factor: float) -> tuple[int, ...]:
        return tuple(_round(size * factor, grain) for size, grain in zip(sizes.values(), grains, strict=True))

    def shaped(values: tuple[int, ...]) -> ModelSpec:
        return model.replace(**dict(zip(sizes, values, strict=True)))

    @cache
    def count(values: tuple[int, ...]) -> int:
        return parameters_of(shaped(values))

    _refuse_impossible(shaped(at(0.0)), count(at(0.0)), budget, sizes)
    low, high = _neighbours(lambda factor: count(at(factor)) <= budget)
    nearest = min(at(low), at(high), key=lambda values: abs(count(values) - budget))
    return Fit(shaped(nearest), count(nearest), budget)


def _free_sizes(model: ModelSpec, fixed: Collection[str]) -> dict[str, int]:
    """The sizes that may be scaled, as the model has them; a Transformer's own ones where the width is fixed."""
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


def _grain(model: ModelSpec, name: str) -> int:
    """What a size must be a multiple of: the heads, where they share it, twice that where rotary turns pairs."""
    heads = getattr(model, "heads", 1)
    shared = "attention_width" if getattr(model, "attention_width", None) else "width"
    if name == shared:
        places = getattr(model, "positions", None)
        return 2 * heads if isinstance(places, PositionsSpec) and places.paired else heads
    return heads if name == "value_width" else 1


def _round(size: float, grain: int) -> int:
    return grain * max(1, math.floor(size / grain + 0.5))


def _refuse_impossible(smallest: ModelSpec, parameters: int, budget: int, sizes: dict[str, int]) -> None:
    if parameters > budget:
        at_least = ", ".join(f"{name}={getattr(smallest, name)}" for name in sizes)
        raise SpecError(
            f"study.budget.parameters = {budget:,} is too little for {smallest.family}: at its smallest ({at_least}), "
            f"with a vocabulary of {smallest.sizes()['V']:,}, it has {parameters:,}. "
            "Raise the budget, or shrink the vocabulary."
        )


def _neighbours(fits: Callable[[float], bool]) -> tuple[float, float]:
    """Return two factors as good as equal, the first of which fits and the second does not."""
    low, high = 0.0, 1.0
    while fits(high):
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low, high
