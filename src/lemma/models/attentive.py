"""The feed-forward model that reads its window through one attention head (problems A2 and A4)."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.models.window_model import WindowModel
from lemma.parts import ACTIVATIONS, WindowHead
from lemma.spec import Attentive


class AttentiveModel(WindowModel):
    """V(d + d_h) + 2 d_k d + d_v d + (d_v + 1) d_h parameters, whatever N."""

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

    def read(self, joined: Int[Tensor, "batch joined"], time: int) -> Float[Tensor, "batch time hidden"]:
        """Read every window through the head, then as a feed-forward model does."""
        attended = self.head(self.dropout(self.embedding(joined)), time, self.span)
        return self.dropout(self.activation(self.hidden(attended)))
