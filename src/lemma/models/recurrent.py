"""Recurrent language models: RNN (problem D1), LSTM (C1) and GRU."""

from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.layers.recurrent import RecurrentState, build_recurrent
from lemma.layers.state import State
from lemma.models.base import LanguageModel, init_embedding
from lemma.spec.models import Gru, Lstm, Rnn


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
        """Draw the initial embedding; the cells keep PyTorch's initial weights."""
        init_embedding(self.embedding)

    @property
    def receptive_field(self) -> None:
        """None: the logits depend on all tokens so far."""

    def forward(
        self, tokens: Int[Tensor, "batch time"], state: State | None = None
    ) -> tuple[Float[Tensor, "batch time vocabulary"], RecurrentState]:
        """Read the tokens one after the other, in PyTorch's kernel."""
        initial = None
        if isinstance(state, RecurrentState):
            initial = state.vectors[0] if len(state.vectors) == 1 else state.vectors
        outputs, final = self.layers(self.dropout(self.embedding(tokens)), initial)
        return self.output(self.dropout(outputs)), RecurrentState(final if isinstance(final, tuple) else (final,))

    @property
    def vector_width(self) -> int:
        return self.layers.hidden_size

    def vectors(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time hidden"]:
        """Read the tokens from left to right: no vector depends on the padding after it."""
        return self.dropout(self.layers(self.dropout(self.embedding(tokens.clamp(min=0))))[0])
