"""What is learned and how it is judged: a model with its objective, and the score of a validation."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.errors import PackageError, SpecError
from lemma.models import LanguageModel, evaluating
from lemma.objectives import Loss, causal, loss_of, shape_of
from lemma.parts import State, overhear
from lemma.spec import NEW_FAMILIES, Decoder, NewFamily, Recipe


class Score(Protocol):
    """What a validation comes to."""

    @property
    def loss(self) -> float:
        """Nats a token."""
        ...

    @property
    def perplexity(self) -> float:
        """The exponential of the loss."""
        ...


Evaluate = Callable[[Any], Score]
"""What validates a model, of whatever kind it is."""


Learned = tuple[Float[Tensor, ""], tuple[Float[Tensor, ""], ...], State | None]
"""What is minimised, the terms that are reported, and the state where training carries it on."""


class Lesson(nn.Module):
    """A model and its objective in one module, so that they can be compiled and shared as one."""

    terms: tuple[str, ...] = ("loss",)
    """The names of what it reports: the causal loss always, and beside it another objective where one was chosen."""

    def __init__(self, model: LanguageModel, objective: Loss = causal) -> None:
        super().__init__()
        self.model, self.objective = model, objective
        if objective is not causal:
            self.terms = (*self.terms, "objective")
        self.chance = (model.spec.vocabulary, "tokens", "V")
        """Among how many, and of what, it guesses before it has learned anything; and their letter."""

    def forward(
        self, inputs: Int[Tensor, "rows stretch"], targets: Int[Tensor, "rows stretch"], state: State | None
    ) -> Learned:
        """Return the objective, to be minimised, the mean loss, and the state where training carries it on."""
        logits, state = self.model(inputs, state)
        objective, terms = self.measured(logits, targets)
        return objective, terms, state if self.model.stateful else None

    def measured(
        self, logits: Float[Tensor, "rows stretch vocabulary"], targets: Int[Tensor, "rows stretch"]
    ) -> tuple[Float[Tensor, ""], tuple[Float[Tensor, ""], ...]]:
        """What is minimised of logits, and what is reported of them."""
        if self.objective is causal:
            loss = causal(logits, targets)
            return loss, (loss,)
        objective = self.objective(logits, targets)
        return objective, (causal(logits.detach(), targets), objective)


class ShapedLesson(Lesson):
    """A lesson that also shapes attention: L = L_LM + focus · L_focus + near · L_near."""

    def __init__(
        self, model: LanguageModel, focus: float, near: float, near_max: float, objective: Loss = causal
    ) -> None:
        super().__init__(model, objective)
        self.terms = (*self.terms, "focus", "near")
        self.focus, self.near, self.near_max = focus, near, near_max
        self.layers: int = getattr(model.spec, "depth", 1)

    def forward(
        self, inputs: Int[Tensor, "rows stretch"], targets: Int[Tensor, "rows stretch"], state: State | None
    ) -> Learned:
        """Return the loss with its shaping terms; the loss alone and both terms are reported."""
        with overhear() as records:
            logits, state = self.model(inputs, state)
        shape = shape_of(records, self.near_max, self.layers)
        objective, terms = self.measured(logits, targets)
        total = objective + self.focus * shape.focus + self.near * shape.near
        reported = (*terms, shape.focus, shape.near)
        return total.to(objective.dtype), reported, state if self.model.stateful else None


def lesson_for(model: LanguageModel, recipe: Recipe) -> Lesson:
    """The lesson that a recipe asks for; attention can only be shaped where there is some."""
    refuse_broken(model)
    objective = loss_of(recipe.objective)
    if not (recipe.focus or recipe.near):
        return Lesson(model, objective)
    layers = _layers_with_attention(model)
    if not layers:
        word = "focus" if recipe.focus else "near"
        raise SpecError(
            f"recipe.{word} = {getattr(recipe, word)} shapes attention, and a model of the family "
            f"{model.spec.family} has none. Leave the word out, or train a decoder."
        )
    if recipe.near and layers < 2:
        raise SpecError(
            f"recipe.near = {recipe.near} leaves the last layer out, and this model has only one. Try depth=2."
        )
    if recipe.compile is True:
        raise SpecError(
            "recipe.compile = true: shaping listens to attention while it runs, and compiled code is not heard. "
            "Leave compile out."
        )
    if recipe.stretch and model.reach and isinstance(model.spec, Decoder) and recipe.stretch > model.reach:
        raise SpecError(
            f"recipe.stretch = {recipe.stretch} is longer than decoder.context = {model.reach}: attention is shaped "
            "within the context only. Leave stretch out, or raise the context."
        )
    return ShapedLesson(model, recipe.focus, recipe.near, recipe.near_max, objective)


def refuse_broken(model: LanguageModel) -> None:
    """Let a model of another package read two tokens, so that what is wrong with it is said before it is trained."""
    if not isinstance(model.spec, NewFamily):
        return
    tokens = torch.zeros(1, 2, dtype=torch.long, device=next(model.parameters()).device)
    with NEW_FAMILIES.blaming(model.spec.family, model.spec.model), evaluating(model), torch.no_grad():
        logits, state = model(tokens)
    if logits.shape != (1, 2, model.spec.vocabulary) or not isinstance(state, State):
        raise PackageError(
            f"the family '{model.spec.family}' gives logits of the shape {tuple(logits.shape)} and a "
            f"{type(state).__name__} for one row of two tokens, where (1, 2, {model.spec.vocabulary}) and a "
            "lemma.parts.State are expected. lemma.models.contract says more."
        )


def _layers_with_attention(model: LanguageModel) -> int:
    """How many layers attend, seen by letting the model read two tokens."""
    tokens = torch.zeros(1, 2, dtype=torch.long, device=next(model.parameters()).device)
    with evaluating(model), torch.no_grad(), overhear() as records:
        model(tokens)
    return min(len(records), getattr(model.spec, "depth", 1))
