"""What a study compares: models, a grid over their words, seeds, an equal budget; and the claims it tests."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from lemma.errors import unknown
from lemma.spec.base import Spec
from lemma.spec.data import DataSpec
from lemma.spec.seeds import Seeds


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
    """Words of the spec or the recipe that this contender sets for itself; a size named here is not scaled."""

    @property
    def title(self) -> str:
        """What the row is called."""
        return self.name or self.model


class Comparison(Spec):
    """Two places of the grid and which of them is expected to have the lower perplexity."""

    at: dict[str, Any] = Field(min_length=1)
    """The place the claim speaks of: grid words with their values, or `contender` with a name."""
    against: dict[str, Any] = Field(min_length=1)
    """The place it is compared with, in the same words."""
    expects: Literal["lower", "not lower"] = "lower"
    """What is claimed of the perplexity `at` the one, seen from the other."""

    @model_validator(mode="after")
    def _same_words(self) -> Self:
        if self.at.keys() != self.against.keys() or self.at == self.against:
            raise ValueError(
                f"study.claims: at = {self.at} and against = {self.against} "
                "must name the same words, and differ in at least one value."
            )
        return self


class Claim(Spec):
    """A statement that the measured numbers bear out or not."""

    says: str
    """The claim in words."""
    comparisons: tuple[Comparison, ...] = Field(min_length=1)
    """What must hold for it, at every value of the grid words that are not named."""


class StudySpec(Spec):
    """Models compared on the same data at the same budget, over seeds."""

    name: str
    """The study's name."""
    question: str = ""
    """What it asks, in a sentence or two; stands at the top of the report."""
    data: DataSpec
    """The text, the tokenizer and what is held out: the same for every run."""
    contenders: tuple[Contender, ...] = Field(min_length=1)
    """The models compared."""
    grid: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    """Words and the values each takes; every contender is run at every combination."""
    words: dict[str, Any] = Field(default_factory=dict)
    """Words of the spec or the recipe that all runs share, where the model knows them."""
    seeds: Seeds = (1, 2)
    """How many seeds, from 1 on, or which: one run a seed."""
    budget: Budget = Budget()
    """What every model gets alike."""
    claims: tuple[Claim, ...] = ()
    """Statements to be judged from the numbers."""
    validations: int | None = Field(default=None, ge=1)
    """Full validations a run, the points of its learning curve; as the recipe has it if unset."""
    measures: tuple[Literal["positions", "attention"], ...] = ()
    """What else is measured of each trained model: `positions`, its loss against position past the trained length;
    `attention`, the entropy and the distance of each head."""
    beyond: int = Field(default=4, ge=1)
    """Up to how many times the trained length the loss is read against position."""
    prompt: str = ""
    """What the samples in the report begin with; unset, they begin like a line of the text."""
    sample_tokens: int = Field(default=200, ge=1)
    """Length of the samples in the report."""

    @model_validator(mode="after")
    def _values_differ(self) -> Self:
        for word, values in {**self.grid, "seeds": self.seeds}.items():
            if not values or len({repr(value) for value in values}) < len(values):
                raise ValueError(f"study: {word} = {list(values)} must hold at least one value, and none twice.")
        titles = [contender.title for contender in self.contenders]
        if twice := sorted({title for title in titles if titles.count(title) > 1}):
            raise ValueError(f"study.contenders: '{twice[0]}' stands there twice. Give each a `name` of its own.")
        return self

    @model_validator(mode="after")
    def _claims_fit(self) -> Self:
        places = {**self.grid, "contender": tuple(contender.title for contender in self.contenders)}
        for comparison in (comparison for claim in self.claims for comparison in claim.comparisons):
            for word, value in [*comparison.at.items(), *comparison.against.items()]:
                if word not in places:
                    raise ValueError(unknown("study.claims: the word", word, places))
                if value not in places[word]:
                    known = ", ".join(map(str, places[word]))
                    raise ValueError(
                        f"study.claims: {word} = {value!r} is not in the grid. Known: {known}. Or set claims=[]."
                    )
        return self
