"""The Transformer layer of all that is not a bare decoder: attention, attention to a source, feed-forward."""

from dataclasses import dataclass, replace
from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor, nn

from lemma.parts import Attention, AttentionShape, FeedForwardPart, Memory, norm

Stream = Float[Tensor, "batch time width"]
Mask = Bool[Tensor, "batch 1 1 known"]
Past = tuple[Memory | None, Memory | None]
"""What a layer's attention remembers, and what its attention to the source does."""
NOTHING: Past = (None, None)


@dataclass(frozen=True)
class LayerShape:
    """The choices of a layer; its attention says how wide it is and whether it has biases."""

    attention: AttentionShape
    inner: int
    """Units of the feed-forward part."""
    activation: str = "gelu"
    norm: Literal["layer", "rms"] = "layer"
    norm_place: Literal["pre", "post"] = "pre"
    source: bool = False
    """Whether it attends to a source too, which is as wide as the stream."""

    def new_norm(self) -> nn.Module:
        """One of its norms."""
        return norm(self.norm, self.attention.width, self.attention.bias)

    @property
    def across(self) -> AttentionShape:
        """Its attention to the source: as its own, without order or places."""
        width, heads, inner = self.attention.width, self.attention.heads, self.attention.attention_width
        return AttentionShape(width, heads, inner, causal=False, source_width=width, bias=self.attention.bias)


class Layer(nn.Module):
    """Each part f in turn adds to the stream: x + f(norm(x)), or in post-norm layers norm(x + f(x)).

    (Pre-norm: Radford et al. 2019; post-norm: Vaswani et al. 2017.)
    """

    def __init__(self, shape: LayerShape, dropout: float = 0.0, attention_dropout: float = 0.0) -> None:
        super().__init__()
        width, bias = shape.attention.width, shape.attention.bias
        self.post, self.crosses = shape.norm_place == "post", shape.source
        self.attention_norm = shape.new_norm()
        self.attention = Attention(shape.attention, attention_dropout)
        if shape.source:
            self.source_norm = shape.new_norm()
            self.source_attention = Attention(shape.across, attention_dropout)
        self.feed_forward_norm = shape.new_norm()
        self.feed_forward = FeedForwardPart(width, shape.inner, shape.activation, bias)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        stream: Stream,
        past: Past = NOTHING,
        mask: Mask | None = None,
        source: Float[Tensor, "batch known width"] | None = None,
        source_mask: Mask | None = None,
    ) -> tuple[Stream, Past]:
        """Let each part add to the stream; a source is given once, then only what is remembered of it."""
        own, across = past
        mixed, own = self.attention(self._before(stream, self.attention_norm), own, None, mask)
        stream = self._after(stream, mixed, self.attention_norm)
        if self.crosses:
            asking = self._before(stream, self.source_norm)
            mixed, across = self.source_attention(asking, across, source, source_mask)
            stream = self._after(stream, mixed, self.source_norm)
        made = self.feed_forward(self._before(stream, self.feed_forward_norm))
        return self._after(stream, made, self.feed_forward_norm), (own, across)

    def _before(self, stream: Stream, norm: nn.Module) -> Stream:
        return stream if self.post else norm(stream)

    def _after(self, stream: Stream, update: Stream, norm: nn.Module) -> Stream:
        added = stream + (self.dropout(update) if self.training else update)
        return norm(added) if self.post else added


class Stack(nn.Module):
    """Layers one after the other; the stream of pre-norm layers, which none of them norms, gets a last norm."""

    def __init__(self, shape: LayerShape, depth: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(shape, dropout, dropout) for _ in range(depth))
        self.norm = shape.new_norm() if shape.norm_place == "pre" else None

    def forward(
        self,
        stream: Stream,
        past: tuple[Past, ...] = (),
        mask: Mask | None = None,
        source: Float[Tensor, "batch known width"] | None = None,
        source_mask: Mask | None = None,
    ) -> tuple[Stream, tuple[Past, ...]]:
        """Read all layers; return the stream and what each layer remembers."""
        memories: list[Past] = []
        for number, layer in enumerate(self.layers):
            stream, memory = layer(stream, past[number] if past else NOTHING, mask, source, source_mask)
            memories.append(memory)
        return stream if self.norm is None else self.norm(stream), tuple(memories)


def causal(shape: LayerShape) -> LayerShape:
    """The layer that writes from left to right and attends to a source, beside one that reads both ways."""
    return replace(shape, attention=replace(shape.attention, causal=True), source=True)
