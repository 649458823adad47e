"""The feed-forward neural language model (Bengio et al. 2003; problem A1)."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.models.window_model import WindowModel
from lemma.parts import ACTIVATIONS, slide
from lemma.spec import FeedForward


class FeedForwardModel(WindowModel):
    """softmax(U σ(W [e_{t−N+1}; …; e_{t−1}] + b)): V(d + d_h) + ((N−1)d + 1)d_h parameters."""

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

    def read(self, joined: Int[Tensor, "batch joined"], time: int) -> Float[Tensor, "batch time hidden"]:
        """Embed each token once, then read all windows at once."""
        windows = slide(self.dropout(self.embedding(joined)), time, self.span)
        return self.dropout(self.activation(self.hidden(windows.flatten(2))))
