"""The contract of every language model: `logits, state = model(tokens, state)`."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.models.body import Body
from lemma.parts import State
from lemma.spec import LanguageSpec


class LanguageModel(Body, ABC):
    """A model of the next token.

    Feeding tokens one by one through the state gives the logits of feeding them at once.
    """

    stateful: ClassVar[bool] = False
    """Whether training carries the state from batch to batch."""

    def __init__(self, spec: LanguageSpec) -> None:
        super().__init__()
        self.spec = spec

    def start(self) -> None:
        """Draw the first weights of a family from another package; PyTorch's own if it does not say otherwise."""

    @property
    @abstractmethod
    def reach(self) -> int | None:
        """How many of the latest tokens the logits depend on; None if all of them."""

    @abstractmethod
    def forward(
        self, tokens: Int[Tensor, "batch time"], state: State | None = None
    ) -> tuple[Float[Tensor, "batch time vocabulary"], State]:
        """Return the logits of the token after each of `tokens`, and the memory of all that was read."""


def count_parameters(model: nn.Module) -> int:
    """Count the numbers a model learns; a tied tensor counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Take those parts of a model out of training mode that are in it, and put just those back."""
    awake = [part for part in model.modules() if part.training]
    for part in awake:
        part.training = False
    try:
        yield
    finally:
        for part in awake:
            part.training = True
