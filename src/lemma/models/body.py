"""What can be the body of a classifier: a model that gives a vector for every token it reads."""

from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor, nn


class Body(nn.Module):
    """A model whose output layer reads vectors; others may read them too."""

    outward: ClassVar[tuple[str, ...]] = ("output",)
    """The parts that only come after the vectors."""

    @property
    def vector_width(self) -> int:
        """The width of its vectors."""
        raise NotImplementedError(f"{type(self).__name__} has no vectors.")

    def vectors(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time vector_width"]:
        """Return what the output layer would read at each place.

        Where a token is −1 there is nothing: such places stand at the right end of a row, no other place sees them, and
        their own vectors mean nothing.
        """
        raise NotImplementedError(f"{type(self).__name__} has no vectors.")
