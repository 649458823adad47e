"""What the encoder and the encoder–decoder share: the way tokens enter, the layers' shape and the first weights."""

import math
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.models.body import Body
from lemma.models.layers import LayerShape, Stack
from lemma.models.padding import seen_of, widened, within
from lemma.parts import AttentionShape, positions
from lemma.spec import Transformer

FIRST = 0.02  # the spread of the first embeddings and outputs


class TransformerModel(Body):
    """One embedding, positions, and an encoder in which every token sees all that are there."""

    stateful: ClassVar[bool] = False

    def __init__(self, spec: Transformer, encoder_depth: int, dropout: float) -> None:
        super().__init__()
        self.limit = None if spec.positions.endless else spec.context
        self.limit_name = f"{getattr(spec, 'family', 'transformer')}.context"
        self.embedding = nn.Embedding(spec.vocabulary, spec.width)
        self.positions = positions(spec.positions, spec.context, spec.width)
        self.scale = math.sqrt(spec.width) if spec.positions.scaled else None
        self.dropout = nn.Dropout(dropout)
        self.encoder = Stack(layer_shape(spec), encoder_depth, dropout)

    @property
    def vector_width(self) -> int:
        """The stream's."""
        return self.embedding.embedding_dim

    def vectors(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time width"]:
        """Read all tokens both ways; no place sees padding."""
        kept = within(tokens, self.limit, self.limit_name)
        stream, _ = self.encoder(self.embed(kept), mask=seen_of(kept))
        return widened(stream, tokens.shape[1])

    def embed(self, tokens: Int[Tensor, "batch time"], start: int = 0) -> Float[Tensor, "batch time width"]:
        """Embed tokens that stand at positions start, start + 1, …; padding becomes token 0, which nothing sees."""
        embedded = self.embedding(tokens.clamp(min=0))
        embedded = embedded if self.scale is None else embedded * self.scale  # or sines of size 1 would drown it
        stream = self.positions(embedded, start=start)
        return self.dropout(stream) if self.training else stream

    def start(self) -> None:
        """Draw the first weights."""
        start_transformer(self)


def start_transformer(model: nn.Module) -> None:
    """Draw the first weights: tables and outputs small, so that all tokens begin about equally likely."""
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            nn.init.normal_(parameter, std=FIRST)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    for stack in (part for part in model.modules() if isinstance(part, Stack)):
        _start_layers(stack)


def _start_layers(stack: Stack) -> None:
    """Draw maps that neither stretch nor shrink (Glorot & Bengio 2010), those that write to the stream smaller.

    The more of these there are, the smaller: then all updates together are no larger in a deep stack. Post-norm layers
    need it as much as pre-norm ones do, for the gradient to pass all the norms.
    """
    maps = {name: parameter for name, parameter in stack.named_parameters() if parameter.dim() >= 2}
    writing = [name for name in maps if name.endswith(("attention.output.weight", "narrow.weight"))]
    for name, parameter in maps.items():
        nn.init.xavier_uniform_(parameter, gain=1 / math.sqrt(len(writing)) if name in writing else 1.0)


def layer_shape(spec: Transformer) -> LayerShape:
    """The layer of an encoder."""
    attention = AttentionShape(
        spec.width,
        spec.heads,
        spec.attention,
        causal=False,
        bias=spec.bias,
        positions=spec.positions,
        context=spec.context,
    )
    return LayerShape(attention, spec.inner, spec.activation, spec.norm, spec.norm_place)
