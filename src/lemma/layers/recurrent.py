"""Recurrent layers on PyTorch's kernels, and their state."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from lemma.layers.state import State

CELLS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


@dataclass(frozen=True)
class RecurrentState(State):
    """The hidden vectors of every layer, each (depth, batch, hidden); an LSTM has its cells too."""

    vectors: tuple[Tensor, ...]

    @property
    def about(self) -> str:
        return "the hidden vectors" if len(self.vectors) == 1 else "the hidden vectors and cells"

    def tensors(self) -> dict[str, Tensor]:
        return {name: vector.transpose(0, 1) for name, vector in zip(("hidden", "cell"), self.vectors, strict=False)}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "RecurrentState":
        return RecurrentState(tuple(tensor.transpose(0, 1).contiguous() for tensor in tensors.values()))


def build_recurrent(
    cell: Literal["rnn", "lstm", "gru"],
    width: int,
    hidden: int,
    depth: int,
    biases: int,
    dropout: float,
    **options: str,
) -> nn.RNNBase:
    """Build recurrent layers on torch.nn's fused kernels, with 0, 1 or 2 bias vectors per gate.

    torch.nn gives every gate an input and a recurrent bias. Textbooks have one; the other is then fixed at zero and not
    a parameter. `options` are those of torch.nn, such as `nonlinearity`.
    """
    layer_dropout = dropout if depth > 1 else 0.0
    layers = CELLS[cell](width, hidden, depth, bias=biases > 0, batch_first=True, dropout=layer_dropout, **options)
    if biases == 1:
        for name in (f"bias_hh_l{layer}" for layer in range(depth)):
            zeros = torch.zeros_like(getattr(layers, name), requires_grad=False)
            delattr(layers, name)
            layers.register_buffer(name, zeros, persistent=False)
        layers.to(layers.weight_ih_l0.dtype)  # makes torch.nn gather its list of weights again
    return layers
