"""The feed-forward part of a Transformer layer, and the non-linearities by name."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from lemma.parts.gelu import gelu

Activation = Callable[[Tensor], Tensor]


ACTIVATIONS: dict[str, Activation] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": functional.relu,
    "gelu": gelu,
}


class FeedForwardPart(nn.Module):
    """Widen, bend, narrow: W₂ σ(W₁ x + b₁) + b₂."""

    def __init__(self, width: int, inner: int, activation: str, bias: bool) -> None:
        super().__init__()
        self.widen = nn.Linear(width, inner, bias=bias)
        self.narrow = nn.Linear(inner, width, bias=bias)
        self.activation = ACTIVATIONS[activation]

    def forward(self, stream: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Apply it to every vector alike."""
        return self.narrow(self.activation(self.widen(stream)))
