"""What a model remembers between two calls: a value that can be compared, cut by rows and stored."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

from torch import Tensor


class State(ABC):
    """The whole memory of a model: equal states give equal logits for ever after.

    A state is a value: reading a token makes a new one and leaves this one as it was.
    """

    @property
    @abstractmethod
    def about(self) -> str:
        """What it is, in words: "the last 2 tokens"."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by name, with the batch as first dimension."""

    @abstractmethod
    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        """Return a state of the same kind that holds these tensors."""

    def detach(self) -> Self:
        """Return the same memory, cut off from the graph that made it."""
        return self.with_tensors({name: tensor.detach() for name, tensor in self.tensors().items()})

    def rows(self, index: Tensor) -> Self:
        """Return the memory of some rows of the batch."""
        return self.with_tensors({name: tensor[index] for name, tensor in self.tensors().items()})

    def signature(self, row: int = 0) -> bytes:
        """Return bytes that are equal exactly when the whole state of that row is equal, bit for bit."""
        return b"|".join(bytes_of(tensor[row]) for tensor in self.tensors().values())


def bytes_of(tensor: Tensor) -> bytes:
    """Return a tensor's values as bytes, preceded by its shape."""
    values = tensor.detach().cpu().contiguous()
    return repr(tuple(values.shape)).encode() + values.view(-1).numpy().tobytes()
