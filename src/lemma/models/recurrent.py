"""Recurrent language models on PyTorch's kernels, and their state: RNN (problem D1), LSTM (C1) and GRU."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.layers.state import State
from lemma.models.base import LanguageModel, init_embedding
from lemma.spec.models import Gru, Lstm, Rnn

CELLS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


@dataclass(frozen=True)
class RecurrentState(State):
    """The hidden vectors of every layer, each (depth, batch, hidden); an LSTM has its cells too."""

    vectors: tuple[Tensor, ...]

    @property
    def about(self) -> str:
        """The state in words: "the hidden vectors", and cells if it has them."""
        return "the hidden vectors" if len(self.vectors) == 1 else "the hidden vectors and cells"

    def tensors(self) -> dict[str, Tensor]:
        """Return "hidden", and "cell" of an LSTM, each (batch, depth, hidden)."""
        return {name: vector.transpose(0, 1) for name, vector in zip(("hidden", "cell"), self.vectors, strict=False)}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "RecurrentState":
        """Return a state that holds these tensors, in the order and shapes of `tensors()`."""
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
    """Return `depth` recurrent layers on torch.nn's fused kernels, with 0, 1 or 2 bias vectors per gate.

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


class RecurrentModel(LanguageModel):
    """Embedding, layers of cells, output layer with bias; the state is the hidden vectors."""

    stateful: ClassVar[bool] = True

    def __init__(self, spec: Rnn | Lstm | Gru, dropout: float = 0.0) -> None:
        super().__init__(spec)
        options = {"nonlinearity": spec.activation} if isinstance(spec, Rnn) else {}
        self.embedding = nn.Embedding(spec.vocabulary, spec.width)
        self.layers = build_recurrent(spec.family, spec.width, spec.hidden, spec.depth, spec.biases, dropout, **options)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(spec.hidden, spec.vocabulary)
        if spec.tied:
            self.output.weight = self.embedding.weight

    def init_weights(self) -> None:
        """Draw a small initial embedding; the cells keep PyTorch's initial weights."""
        init_embedding(self.embedding)

    @property
    def receptive_field(self) -> None:
        """None, since the logits depend on all tokens so far."""

    def forward(
        self, tokens: Int[Tensor, "batch time"], state: State | None = None
    ) -> tuple[Float[Tensor, "batch time vocabulary"], RecurrentState]:
        """Return the logits after each token and the state after the last one, starting from `state` or from zeros."""
        initial = None
        if isinstance(state, RecurrentState):
            initial = state.vectors[0] if len(state.vectors) == 1 else state.vectors
        outputs, final = self.layers(self.dropout(self.embedding(tokens)), initial)
        return self.output(self.dropout(outputs)), RecurrentState(final if isinstance(final, tuple) else (final,))

    @property
    def vector_width(self) -> int:
        """Width of the hidden vectors."""
        return self.layers.hidden_size

    def vectors(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time hidden"]:
        """Return the last layer's hidden vector after each token; none depends on the padding after it."""
        return self.dropout(self.layers(self.dropout(self.embedding(tokens.clamp(min=0))))[0])
