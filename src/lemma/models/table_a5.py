"""The Transformer of the table in problem A5, on torch.nn's decoder layers."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.layers.positions import sinusoids
from lemma.layers.state import sliding_windows, window_mask
from lemma.models.feed_forward import WindowModel
from lemma.spec.models import TableA5


class TableA5Model(WindowModel):
    """A window of N−1 words through L decoder layers whose cross-attention reads the embedded window itself.

    (d_e + d + 1)V + (d_e + 1)d + L(10d² + 16d) parameters at d_ff = d; the problem does not say what the
    cross-attention reads, and this interpretation needs no other input.
    """

    position_table: Tensor

    def __init__(self, spec: TableA5, dropout: float = 0.0) -> None:
        super().__init__(spec, spec.context)
        self.embedding = nn.Embedding(spec.vocabulary, spec.embedding)
        self.projection = nn.Linear(spec.embedding, spec.width)
        self.register_buffer("position_table", sinusoids(self.span, spec.width, 10_000.0), persistent=False)
        self.layers = nn.ModuleList(
            nn.TransformerDecoderLayer(spec.width, spec.heads, spec.feed_forward, dropout, batch_first=True)
            for _ in range(spec.depth)
        )
        self.output = nn.Linear(spec.width, spec.vocabulary)

    @property
    def vector_width(self) -> int:
        """Width of the layers."""
        return self.projection.out_features

    def read(self, tokens: Int[Tensor, "batch joined"], time: int) -> Float[Tensor, "batch time width"]:
        """Return the vector of the last word of the window that ends at each of the last `time` tokens."""
        windows = sliding_windows(self.projection(self.embedding(tokens)), time, self.span)
        embedded = (windows + self.position_table).flatten(0, 1)
        mask = window_mask(tokens.shape[1], time, self.span, tokens.device)
        padding = None if mask is None else (~mask).repeat(len(tokens), 1)
        hidden = embedded
        for layer in self.layers:
            hidden = layer(hidden, embedded, tgt_key_padding_mask=padding, memory_key_padding_mask=padding)
        return hidden[:, -1].unflatten(0, windows.shape[:2])
