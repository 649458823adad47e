"""What is learned and how it is judged: a model with its objective, and the score of a validation."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.errors import SpecError
from lemma.models import LanguageModel, evaluating
from lemma.objectives import causal, shape_of
from lemma.parts import State, overhear
from lemma.spec import Decoder, Recipe


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
    """The names of what it reports."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model
        self.chance = (model.spec.vocabulary, "tokens", "V")
        """Among how many, and of what, it guesses before it has learned anything; and their letter."""

    def forward(
        self, inputs: Int[Tensor, "rows stretch"], targets: Int[Tensor, "rows stretch"], state: State | None
    ) -> Learned:
        """Return the mean loss, to be minimised and reported, and the state where training carries it on."""
        logits, state = self.model(inputs, state)
        loss = causal(logits, targets)
        return loss, (loss,), state if self.model.stateful else None


class ShapedLesson(Lesson):
    """A lesson that also shapes attention: L = L_LM + focus · L_focus + near · L_near."""

    terms = ("loss", "focus", "near")

    def __init__(self, model: LanguageModel, focus: float, near: float, near_max: float) -> None:
        super().__init__(model)
        self.focus, self.near, self.near_max = focus, near, near_max
        self.layers: int = getattr(model.spec, "depth", 1)

    def forward(
        self, inputs: Int[Tensor, "rows stretch"], targets: Int[Tensor, "rows stretch"], state: State | None
    ) -> Learned:
        """Return the loss with its shaping terms; the loss alone and both terms are reported."""
        with overhear() as records:
            logits, state = self.model(inputs, state)
        shape = shape_of(records, self.near_max, self.layers)
        loss = causal(logits, targets)
        total = loss + self.focus * shape.focus + self.near * shape.near
        return total.to(loss.dtype), (loss, shape.focus, shape.near), state if self.model.stateful else None


def lesson_for(model: LanguageModel, recipe: Recipe) -> Lesson:
    """The lesson that a recipe asks for; attention can only be shaped where there is some."""
    if not (recipe.focus or recipe.near):
        return Lesson(model)
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
    return ShapedLesson(model, recipe.focus, recipe.near, recipe.near_max)


def _layers_with_attention(model: LanguageModel) -> int:
    """How many layers attend, seen by letting the model read two tokens."""
    tokens = torch.zeros(1, 2, dtype=torch.long, device=next(model.parameters()).device)
    with evaluating(model), torch.no_grad(), overhear() as records:
        model(tokens)
    return min(len(records), getattr(model.spec, "depth", 1))
