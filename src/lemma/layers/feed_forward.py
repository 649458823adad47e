"""The feed-forward layer, activations and normalisation."""

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from lemma.kernels import support

A = math.sqrt(8 / math.pi)
B = 0.044715 * A


def gelu(values: Tensor) -> Tensor:
    """Apply the Gaussian error linear unit in its tanh form, as GPT-2 does (Hendrycks & Gimpel 2016).

    ½x(1 + tanh(√(2/π)(x + 0.044715x³))) is x·sigmoid(z) with z = x(a + bx²), a = √(8/π), b = 0.044715a. On a CPU the
    sigmoid costs a fifth of the tanh, so training uses this form; elsewhere PyTorch's own kernel runs.

    >>> [round(value, 5) for value in gelu(torch.tensor([-1.0, 0.0, 1.0])).tolist()]
    [-0.15881, 0.0, 0.84119]
    """
    on_cpu = values.device.type == "cpu" and not support.COST_RECORDER
    if on_cpu and values.requires_grad and not torch.compiler.is_compiling():
        dtype = torch.promote_types(values.dtype, torch.float32)  # a CPU is slower in bfloat16 here
        return _SigmoidGelu.apply(values.to(dtype))  # pyright: ignore[reportReturnType]
    return functional.gelu(values, approximate="tanh")


class _SigmoidGelu(torch.autograd.Function):
    """The sigmoid form of `gelu`, in as few passes over memory as possible."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        """Return x·sigmoid(z), and save x for the gradient."""
        gate = torch.addcmul(values.new_tensor(A), values, values, value=B).mul_(values).sigmoid_()
        ctx.save_for_backward(values, gate)
        return values * gate

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return s + x s(1−s)(a + 3bx²), with s the gate, times the incoming gradient."""
        values, gate = ctx.saved_tensors
        slope = torch.addcmul(values.new_tensor(A), values, values, value=3 * B).mul_(values)
        slope.addcmul_(slope, gate, value=-1)
        return torch.addcmul(gate, gate, slope, out=slope).mul_(gradients[0])


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": functional.relu,
    "gelu": gelu,
    "gelu-exact": functional.gelu,
    "silu": functional.silu,
}


class FeedForwardLayer(nn.Module):
    """The feed-forward layer of a Transformer: W₂ σ(W₁ x + b₁) + b₂, or gated W₂(σ(W_g x + b_g) ⊙ (W₁ x + b₁)) + b₂.

    Gated, with silu it is SwiGLU, with gelu GeGLU (Shazeer 2020); the gate's rows come first in one joint matrix.
    """

    def __init__(self, width: int, inner: int, activation: str, bias: bool, gated: bool = False) -> None:
        super().__init__()
        self.gated = gated
        if gated:
            self.gate_widen = nn.Linear(width, 2 * inner, bias=bias)
        else:
            self.widen = nn.Linear(width, inner, bias=bias)
        self.narrow = nn.Linear(inner, width, bias=bias)
        self.activation = ACTIVATIONS[activation]

    def forward(self, hidden: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Return the output of the feed-forward layer for every vector."""
        if self.gated:
            gate, widened = self.gate_widen(hidden).chunk(2, -1)
            return self.narrow(self.activation(gate) * widened)
        return self.narrow(self.activation(self.widen(hidden)))


def build_norm(kind: Literal["layer", "rms"], width: int, bias: bool, epsilon: float = 1e-5) -> nn.Module:
    """Return a new layer norm (Ba et al. 2016), or an RMS norm, which has no bias (Zhang & Sennrich 2019)."""
    return nn.LayerNorm(width, epsilon, bias=bias) if kind == "layer" else nn.RMSNorm(width, eps=epsilon)
