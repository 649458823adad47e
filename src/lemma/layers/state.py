"""The state of a language model between two calls: a value that can be compared, stored and indexed by rows."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional


class State(ABC):
    """Everything a model knows of earlier tokens: equal states give equal logits from then on.

    A state is a value: reading a token makes a new one and leaves this one as it was.
    """

    @property
    @abstractmethod
    def about(self) -> str:
        """Description in words of what the state holds, for messages, such as "the last 2 tokens"."""

    @property
    def can_recur(self) -> bool:
        """True if reading more tokens may lead to a state that equals an earlier one, so that a loop can be proved."""
        return True

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors of the state by name, with the batch as first dimension."""

    @abstractmethod
    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        """Return a state of the same class that holds these tensors, named as by `tensors()`."""

    def detach(self) -> Self:
        """Return the state with tensors detached from the autograd graph."""
        return self.with_tensors({name: tensor.detach() for name, tensor in self.tensors().items()})

    def select_rows(self, index: Tensor) -> Self:
        """Return the state of the batch rows at `index`."""
        return self.with_tensors({name: tensor[index] for name, tensor in self.tensors().items()})

    def signature(self, row: int = 0) -> bytes:
        """Return bytes that are equal exactly when the full state of that row is equal, bit for bit."""
        return b"|".join(tensor_bytes(tensor[row]) for tensor in self.tensors().values())


def tensor_bytes(tensor: Tensor) -> bytes:
    """Return a tensor's values as bytes, preceded by its shape."""
    values = tensor.detach().cpu().contiguous()
    return repr(tuple(values.shape)).encode() + values.view(-1).numpy().tobytes()


@dataclass(frozen=True)
class TokenWindow(State):
    """The last `span` tokens; fewer while the text has just begun."""

    tokens: Int[Tensor, "batch cached"]
    span: int

    @property
    def about(self) -> str:
        """The state in words, such as "the last 2 tokens"."""
        return "the last token" if self.span == 1 else f"the last {self.span} tokens"

    def tensors(self) -> dict[str, Tensor]:
        """Return the window's tokens as "seen"."""
        return {"seen": self.tokens}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "TokenWindow":
        """Return a window of the same span that holds the tokens "seen"."""
        return replace(self, tokens=tensors["seen"])

    def append(self, tokens: Int[Tensor, "batch time"]) -> "TokenWindow":
        """Return the window after `tokens`: the last `span` of old and new tokens."""
        return replace(self, tokens=self.with_context(tokens)[:, -self.span :])

    def with_context(self, tokens: Int[Tensor, "batch time"]) -> Int[Tensor, "batch joined"]:
        """Return the last span − 1 tokens of the window, or all if there are fewer, followed by `tokens`."""
        earlier = self.tokens[:, max(0, self.tokens.shape[1] - self.span + 1) :]
        return torch.cat([earlier, tokens], dim=1) if earlier.shape[1] else tokens


def sliding_windows(
    vectors: Float[Tensor, "batch joined width"], time: int, span: int
) -> Float[Tensor, "batch time span width"]:
    """Return, for each of the last `time` vectors, the `span` vectors up to it; zeros before the text starts.

    >>> sliding_windows(torch.tensor([[[1.0], [2.0], [3.0]]]), time=3, span=2).flatten(2).tolist()
    [[[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]]]
    """
    missing = time + span - 1 - vectors.shape[1]
    padded = functional.pad(vectors, (0, 0, missing, 0)) if missing else vectors
    width = vectors.shape[2]
    windows = padded.flatten(1).unfold(1, span * width, width)  # the vectors of a window are contiguous
    return windows.unflatten(2, (span, width))


def window_mask(num_tokens: int, time: int, span: int, device: torch.device) -> Bool[Tensor, "time span"] | None:
    """Return a mask of the windows of `sliding_windows`, False at zeros before the text; None if there are no zeros.

    Args:
        num_tokens: number of vectors of which the windows are made.
    """
    missing = time + span - 1 - num_tokens
    if not missing:
        return None
    ends, offsets = torch.arange(time, device=device), torch.arange(span, device=device)
    return ends[:, None] + offsets >= missing
