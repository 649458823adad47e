"""The window models: feed-forward (A1) and attentive (A4)."""

from abc import abstractmethod

from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.layers.attention import WindowHead
from lemma.layers.feed_forward import ACTIVATIONS
from lemma.layers.state import State, TokenWindow, sliding_windows
from lemma.models.base import LanguageModel, init_embedding
from lemma.spec.models import Attentive, FeedForward, LanguageSpec


class WindowModel(LanguageModel):
    """A model of the next token given the N−1 before it; all windows of a sequence are read at once."""

    embedding: nn.Embedding
    output: nn.Linear

    def __init__(self, spec: LanguageSpec, context: int) -> None:
        super().__init__(spec)
        self.span = context - 1

    def init_weights(self) -> None:
        """Draw the initial embedding; the maps have PyTorch's."""
        init_embedding(self.embedding)

    @property
    def receptive_field(self) -> int:
        """N−1."""
        return self.span

    @abstractmethod
    def read(self, tokens: Int[Tensor, "batch joined"], time: int) -> Float[Tensor, "batch time vector_width"]:
        """Return what the output layer reads after each of the last `time` of these tokens."""

    def forward(
        self, tokens: Int[Tensor, "batch time"], state: State | None = None
    ) -> tuple[Float[Tensor, "batch time vocabulary"], TokenWindow]:
        """Predict the token after each of `tokens` from its window."""
        window = state if isinstance(state, TokenWindow) else TokenWindow.empty(tokens, self.span)
        return self.output(self.read(window.with_context(tokens), tokens.shape[1])), window.append(tokens)

    def vectors(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time vector_width"]:
        """Read every window; no window reaches to its right, where padding is."""
        return self.read(tokens.clamp(min=0), tokens.shape[1])


class FeedForwardModel(WindowModel):
    """softmax(U σ(W [e_{t−N+1}; …; e_{t−1}] + b)) (Bengio et al. 2003; problem A1).

    V(d + d_h) + ((N−1)d + 1)d_h parameters.
    """

    def __init__(self, spec: FeedForward, dropout: float = 0.0) -> None:
        super().__init__(spec, spec.context)
        self.embedding = nn.Embedding(spec.vocabulary, spec.width)
        self.hidden = nn.Linear(self.span * spec.width, spec.hidden)
        self.activation = ACTIVATIONS[spec.activation]
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(spec.hidden, spec.vocabulary, bias=False)

    @property
    def vector_width(self) -> int:
        """The hidden layer's."""
        return self.hidden.out_features

    def read(self, tokens: Int[Tensor, "batch joined"], time: int) -> Float[Tensor, "batch time hidden"]:
        """Embed each token once, then read all windows at once."""
        windows = sliding_windows(self.dropout(self.embedding(tokens)), time, self.span)
        return self.dropout(self.activation(self.hidden(windows.flatten(2))))


class AttentiveModel(WindowModel):
    """The feed-forward model that reads its window through one attention head (problems A2 and A4).

    V(d + d_h) + 2 d_k d + d_v d + (d_v + 1) d_h parameters, whatever N.
    """

    def __init__(self, spec: Attentive, dropout: float = 0.0) -> None:
        super().__init__(spec, spec.context)
        self.embedding = nn.Embedding(spec.vocabulary, spec.width)
        self.head = WindowHead(spec.width, spec.key_width, spec.value_width)
        self.hidden = nn.Linear(spec.value_width, spec.hidden)
        self.activation = ACTIVATIONS[spec.activation]
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(spec.hidden, spec.vocabulary, bias=False)

    @property
    def vector_width(self) -> int:
        """The hidden layer's."""
        return self.hidden.out_features

    def read(self, tokens: Int[Tensor, "batch joined"], time: int) -> Float[Tensor, "batch time hidden"]:
        """Read every window through the head, then as a feed-forward model does."""
        attended = self.head(self.dropout(self.embedding(tokens)), time, self.span)
        return self.dropout(self.activation(self.hidden(attended)))
