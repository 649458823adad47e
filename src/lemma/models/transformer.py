"""Transformer layers and stacks, and the encoder (problem E3)."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lemma.errors import SpecError
from lemma.layers.attention import NOWHERE, Attention, AttentionShape, Line, Memory, Slots, distances_of
from lemma.layers.feed_forward import ACTIVATIONS, FeedForwardPart, norm
from lemma.layers.positions import RotaryPart, Start, part_of, positions
from lemma.models.base import Backbone, seen_of, widened, within
from lemma.spec.models import Decoder, Encoder, Transformer

Tokens = Int[Tensor, "batch time"]
Stream = Float[Tensor, "batch time width"]
Mask = Bool[Tensor, "batch 1 1 known"]
Past = tuple[Memory | None, Memory | None]
"""What a layer's self-attention keeps, and what its attention to the source keeps."""
NOTHING: Past = (None, None)
INITIAL_STD = 0.02  # of embeddings and outputs


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
    gated: bool = False
    """Whether its feed-forward part has a gate."""
    parallel: bool = False
    """Whether attention and feed-forward read the same stream and add to it at once (Wang & Komatsuzaki 2021)."""
    norm_bias: bool | None = None
    """Whether norms have a shift; as attention has biases if unset."""
    feed_forward_bias: bool | None = None
    """Whether the feed-forward part has biases; as attention has if unset."""
    norm_epsilon: float = 1e-5

    def new_norm(self) -> nn.Module:
        """One of its norms."""
        bias = self.attention.bias if self.norm_bias is None else self.norm_bias
        return norm(self.norm, self.attention.width, bias, self.norm_epsilon)

    def new_feed_forward(self) -> FeedForwardPart:
        """Its feed-forward part."""
        bias = self.attention.bias if self.feed_forward_bias is None else self.feed_forward_bias
        return FeedForwardPart(self.attention.width, self.inner, self.activation, bias, self.gated)

    @property
    def across(self) -> AttentionShape:
        """Its attention to the source: as its own, without order or positions."""
        return replace(self.attention, causal=False, source_width=self.attention.width, positions=NOWHERE)


class TransformerLayer(nn.Module):
    """Each part f in turn adds to the stream: x + f(norm(x)), or in post-norm layers norm(x + f(x)).

    (Pre-norm: Radford et al. 2019; post-norm: Vaswani et al. 2017.)
    """

    def __init__(self, shape: LayerShape, dropout: float = 0.0, attention_dropout: float = 0.0) -> None:
        super().__init__()
        self.post, self.crosses, self.parallel = shape.norm_place == "post", shape.source, shape.parallel
        self.attention_norm = shape.new_norm()
        self.attention = Attention(shape.attention, attention_dropout)
        if shape.source:
            self.source_norm = shape.new_norm()
            self.source_attention = Attention(shape.across, attention_dropout)
        self.feed_forward_norm = shape.new_norm()
        self.feed_forward = shape.new_feed_forward()
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        stream: Stream,
        past: Past | tuple[Slots, None] = NOTHING,
        mask: Mask | None = None,
        source: Float[Tensor, "batch known width"] | None = None,
        source_mask: Mask | None = None,
        start: Start | None = None,
        line: Line | None = None,
    ) -> tuple[Stream, Past]:
        """Let each part add to the stream; a source is given once, then only what is kept of it."""
        own, across = past
        read = stream if self.post else self.attention_norm(stream)
        mixed, own = self.attention(read, own, None, mask, start, line)
        if self.parallel:
            made = self.feed_forward(self.feed_forward_norm(stream))
            return self._add(self._add(stream, mixed, self.attention_norm), made, self.feed_forward_norm), (own, across)
        stream = self._add(stream, mixed, self.attention_norm)
        if self.crosses:
            queries = stream if self.post else self.source_norm(stream)
            mixed, across = self.source_attention(queries, across, source, source_mask)
            stream = self._add(stream, mixed, self.source_norm)
        made = self.feed_forward(stream if self.post else self.feed_forward_norm(stream))
        return self._add(stream, made, self.feed_forward_norm), (own, across)

    def _add(self, stream: Stream, update: Stream, norm: nn.Module) -> Stream:
        added = stream + (self.dropout(update) if self.training else update)  # decoding is faster without the call
        return norm(added) if self.post else added


def new_layers(shape: LayerShape, depth: int, dropout: float) -> nn.ModuleList:
    """Layers of one shape; tables of rotations, which take memory, are one for all."""
    layers: list[TransformerLayer] = []
    for _ in range(depth):
        layers.append(TransformerLayer(shape, dropout, dropout))
        first, last = layers[0].attention.turns, layers[-1].attention.turns
        if isinstance(first, RotaryPart) and isinstance(last, RotaryPart):
            last.table = first.table
    return nn.ModuleList(layers)


def shared_biases(shape: AttentionShape) -> nn.Module | None:
    """What positions add to the scores in all layers alike; None where they add nothing, or each layer has its own."""
    if not shape.positions.shared:
        return None
    return part_of(shape.positions, "biases", shape.context, shape.heads, shape.causal)


class Stack(nn.Module):
    """Layers one after the other; pre-norm layers leave their stream without a norm, so that it gets a last one."""

    def __init__(self, shape: LayerShape, depth: int, dropout: float) -> None:
        super().__init__()
        self.layers = new_layers(shape, depth, dropout)
        self.norm = shape.new_norm() if shape.norm_place == "pre" else None
        self.biases = shared_biases(shape.attention)

    def forward(
        self,
        stream: Stream,
        past: tuple[Past, ...] = (),
        mask: Mask | None = None,
        source: Float[Tensor, "batch known width"] | None = None,
        source_mask: Mask | None = None,
        start: int = 0,
    ) -> tuple[Stream, tuple[Past, ...]]:
        """Run all layers; return the stream and what each layer keeps. `start` is the first vector's position."""
        memories: list[Past] = []
        line = None
        if self.biases is not None:
            new = stream.shape[1]
            line = self.biases(distances_of(new, start + new, stream.device))
        for number, layer in enumerate(self.layers):
            earlier = past[number] if past else NOTHING
            stream, memory = layer(stream, earlier, mask, source, source_mask, start, line)
            memories.append(memory)
        return stream if self.norm is None else self.norm(stream), tuple(memories)


def layer_shape(spec: Decoder | Transformer) -> LayerShape:
    """The layer of a decoder, or of an encoder."""
    attention = AttentionShape(
        spec.width,
        spec.heads,
        spec.attention,
        causal=False,
        bias=spec.bias,
        norm_epsilon=spec.norm_epsilon,
        positions=spec.positions,
        context=spec.context,
    )
    if isinstance(spec, Transformer):
        return LayerShape(
            replace(attention, scaled=spec.scaled_scores),
            spec.inner,
            spec.activation,
            spec.norm,
            spec.norm_place,
            gated=spec.gated,
            norm_epsilon=spec.norm_epsilon,
        )
    attention = replace(
        attention,
        causal=True,
        value_width=spec.value_width,
        key_value_heads=spec.key_value_heads,
        key_query=spec.key_query,
        value_output=spec.value_output,
        bias=spec.bias if spec.query_key_value_bias is None else spec.query_key_value_bias,
        output_bias=spec.bias if spec.attention_output_bias is None else spec.attention_output_bias,
        query_key_norm=spec.query_key_norm,
        window=spec.window,
    )
    return LayerShape(
        attention,
        spec.inner,
        spec.activation,
        spec.norm,
        gated=spec.gated,
        parallel=spec.residual == "parallel",
        norm_bias=spec.bias,
        feed_forward_bias=spec.bias if spec.feed_forward_bias is None else spec.feed_forward_bias,
        norm_epsilon=spec.norm_epsilon,
    )


def causal(shape: LayerShape) -> LayerShape:
    """The layer of an encoder–decoder that writes from left to right and attends to the source."""
    return replace(shape, attention=replace(shape.attention, causal=True), source=True)


class TransformerModel(Backbone):
    """What the encoder and the encoder–decoder share: one embedding, positions, and an encoder that sees all tokens."""

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
        """The stream's width."""
        return self.embedding.embedding_dim

    def vectors(self, tokens: Tokens) -> Stream:
        """Read all tokens in both directions; no position sees padding."""
        kept = within(tokens, self.limit, self.limit_name)
        stream, _ = self.encoder(self.embed(kept), mask=seen_of(kept))
        return widened(stream, tokens.shape[1])

    def embed(self, tokens: Tokens, start: int = 0) -> Stream:
        """Embed tokens at positions start, start + 1, …; padding becomes token 0, which nothing sees."""
        stream = self.place(self.embedding(tokens.clamp(min=0)), start)
        return self.dropout(stream) if self.training else stream

    def place(self, embedded: Stream, start: int = 0) -> Stream:
        """Add positions start, start + 1, … to embedded tokens."""
        embedded = embedded if self.scale is None else embedded * self.scale  # or sines of size 1 would drown it
        return self.positions(embedded, start=start)

    def init_weights(self) -> None:
        """Draw the initial weights."""
        init_transformer(self)


def init_transformer(model: nn.Module) -> None:
    """Draw the initial weights: tables and outputs small, so that all tokens are about equally likely at first.

    The maps of a stack preserve the scale (Glorot & Bengio 2010). Those that write to the stream are smaller
    the more of them there are, so that all updates together are no larger in a deep stack; post-norm layers need it as
    much as pre-norm ones do, for the gradient to pass all the norms.
    """
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            nn.init.normal_(parameter, std=INITIAL_STD)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    for stack in (part for part in model.modules() if isinstance(part, Stack)):
        maps = {name: parameter for name, parameter in stack.named_parameters() if parameter.dim() >= 2}
        writing = [name for name in maps if name.endswith(("attention.output.weight", "narrow.weight"))]
        for name, parameter in maps.items():
            nn.init.xavier_uniform_(parameter, gain=1 / math.sqrt(len(writing)) if name in writing else 1.0)


class OutputHead(nn.Module):
    """An output layer with a hidden layer before it: W norm(σ(W₁ x + b₁)) + b (Devlin et al. 2019)."""

    def __init__(self, width: int, outputs: int, activation: str, bias: bool, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.transform = nn.Linear(width, width)
        self.activation = ACTIVATIONS[activation]
        self.norm = norm
        self.map = nn.Linear(width, outputs, bias=bias)

    def forward(self, vectors: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch outputs"]:
        """Return the logits of vectors."""
        hidden = self.activation(self.transform(vectors))
        return self.map(hidden if self.norm is None else self.norm(hidden))


class EncoderModel(TransformerModel):
    """Embedding and positions, layers, and an output layer for masked tokens, for the next sentence, or for both."""

    output_modules: ClassVar[tuple[str, ...]] = ("output", "follow")

    def __init__(self, spec: Encoder, dropout: float = 0.0) -> None:
        super().__init__(spec, spec.depth, dropout)
        self.spec = spec
        self.output = self.follow = self.segments = self.embedding_norm = None
        if spec.segments:
            self.segments = nn.Embedding(spec.segments, spec.width)
        if spec.embedding_norm:
            self.embedding_norm = layer_shape(spec).new_norm()
        width, tokens, bias = spec.width, spec.vocabulary, spec.output_bias
        if spec.objective != "next-sentence":
            if spec.output_transform:
                self.output = OutputHead(width, tokens, spec.activation, bias, layer_shape(spec).new_norm())
            else:
                self.output = nn.Linear(width, tokens, bias=bias)
            if spec.tied:
                (self.output.map if isinstance(self.output, OutputHead) else self.output).weight = self.embedding.weight
        if spec.objective != "masked":
            hidden = spec.output_transform
            self.follow = OutputHead(width, 2, "tanh", spec.bias) if hidden else nn.Linear(width, 2, bias=spec.bias)

    def embed(self, tokens: Tokens, start: int = 0) -> Stream:
        """Embed tokens, their positions and the segments they are in, with a norm if there is one."""
        stream = self.place(self.embedding(tokens.clamp(min=0)), start)
        if self.segments is not None:
            ends = (tokens == self.spec.marks[1]).long()
            stream = stream + self.segments((ends.cumsum(1) - ends).clamp(max=self.spec.segments - 1))
        stream = stream if self.embedding_norm is None else self.embedding_norm(stream)
        return self.dropout(stream) if self.training else stream

    def forward(self, tokens: Tokens) -> Float[Tensor, "batch time vocabulary"]:
        """Return the logits of the token at each position, <mask> or not."""
        if self.output is None:
            raise SpecError(
                "encoder.objective = 'next-sentence': this encoder has not learned tokens. Use follows(tokens), or "
                "build it with objective=both."
            )
        return self.output(self.vectors(tokens))

    def follows(self, tokens: Tokens) -> Float[Tensor, "batch two"]:
        """Return the logits of whether the second segment of each row does not follow the first (0), or does (1)."""
        if self.follow is None:
            raise SpecError(
                "encoder.objective = 'masked': this encoder has not learned what follows what. Use forward(tokens), or "
                "build it with objective=both."
            )
        return self.follow(self.vectors(tokens)[:, 0])
