"""What a study compares: models, a grid over their words, seeds and an equal budget."""

from typing import Any, Self

from pydantic import Field, model_validator

from lemma.spec.base import Spec
from lemma.spec.data import DataSpec


class Budget(Spec):
    """What every model of a study gets alike."""

    parameters: int | None = Field(default=None, ge=1)
    """Parameters: each model's width is chosen to come nearest to this."""
    tokens: int | None = Field(default=None, ge=1)
    """Training tokens: each model takes as many steps as this allows."""
    seconds: float | None = Field(default=None, gt=0)
    """Training seconds: each model's speed is measured first, then the steps that fit are taken."""

    @model_validator(mode="after")
    def _one_clock(self) -> Self:
        if self.tokens and self.seconds:
            raise ValueError("study.budget: give tokens or seconds, not both; each fixes the number of steps.")
        return self


class Contender(Spec):
    """One row of a study before its grid is opened: a model and what it changes."""

    model: str
    """A preset or a spec file."""
    name: str | None = None
    """What the row is called; the model if unset."""
    words: dict[str, Any] = Field(default_factory=dict)
    """Words of the spec, the recipe or the tokenizer that this contender sets for itself."""


class StudySpec(Spec):
    """Models compared on the same data at the same budget, over seeds."""

    name: str
    """The study's name."""
    question: str = ""
    """What it asks, in one sentence; stands at the top of the report."""
    data: DataSpec
    """The text, the tokenizer and what is held out: the same for every run."""
    contenders: tuple[Contender, ...] = Field(min_length=1)
    """The models compared."""
    grid: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    """Words and the values each takes; every contender is run at every combination."""
    words: dict[str, Any] = Field(default_factory=dict)
    """Words of the spec or the recipe that all runs share, where the model knows them."""
    seeds: tuple[int, ...] = Field(default=(1, 2), min_length=1)
    """One run a seed."""
    budget: Budget = Budget()
    """What every model gets alike."""
    prompt: str = "\n"
    """What the samples in the report begin with."""
    sample_tokens: int = Field(default=200, ge=1)
    """Length of the samples in the report."""
