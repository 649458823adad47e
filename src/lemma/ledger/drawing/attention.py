"""Multi-head self-attention step by step, in the letters of problem E2."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn


class SelfAttention(nn.Module):
    """Y = [A₁V₁ … A_H V_H] W_O with A = softmax(Q Kᵀ/√M_QK), where Q = X W_Q, K = X W_K, V = X W_V in each head."""

    def __init__(self, E: int, H: int, M_QK: int, M_V: int) -> None:
        super().__init__()
        self.W_Q = nn.Parameter(torch.randn(H, E, M_QK) / math.sqrt(E))
        self.W_K = nn.Parameter(torch.randn(H, E, M_QK) / math.sqrt(E))
        self.W_V = nn.Parameter(torch.randn(H, E, M_V) / math.sqrt(E))
        self.W_O = nn.Parameter(torch.randn(H * M_V, E) / math.sqrt(H * M_V))

    def forward(self, X: Float[Tensor, "S E"]) -> Float[Tensor, "S E"]:
        """Let every vector of a sequence attend to all of them; each step has a name of its own, for the drawing."""
        Q, K, V = X @ self.W_Q, X @ self.W_K, X @ self.W_V
        scores = Q @ K.transpose(-2, -1)
        scaled = scores / math.sqrt(Q.shape[-1])
        A = scaled.softmax(-1)
        heads = A @ V
        concat = heads.transpose(0, 1).flatten(1)
        Y = concat @ self.W_O
        return Y  # noqa: RET504  (the name is drawn)


def self_attention(E: int = 64, H: int = 4, M_QK: int = 16, M_V: int = 16) -> nn.Module:
    """Problem E2: width E, H heads of M_QK for queries and keys and M_V for values; a sequence has S vectors.

    >>> sum(parameter.numel() for parameter in self_attention(E=8, H=2, M_QK=4, M_V=4).parameters())  # 3·8² + 8²
    256
    """
    return SelfAttention(E, H, M_QK, M_V)


def _sequence(E: int, S: int = 32) -> Tensor:
    return torch.zeros(S, E)


self_attention.inputs = _sequence  # pyright: ignore[reportFunctionMemberAccess]
