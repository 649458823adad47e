"""What is learned and how it is judged: a model with its objective, and the score of a validation."""

from collections.abc import Callable
from typing import Protocol

from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.models import LanguageModel
from lemma.objectives import causal
from lemma.parts import State


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


Evaluate = Callable[[LanguageModel], Score]


class Lesson(nn.Module):
    """A model and its objective in one module, so that they can be compiled and shared as one."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, inputs: Int[Tensor, "rows stretch"], targets: Int[Tensor, "rows stretch"], state: State | None
    ) -> tuple[Float[Tensor, ""], State | None]:
        """Return the mean loss, and the state where training carries it on."""
        logits, state = self.model(inputs, state)
        return causal(logits, targets), state if self.model.stateful else None
