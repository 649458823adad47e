"""Transformer layers and stacks, and the encoder (problem E3)."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lemma.errors import SpecError
from lemma.layers.attention import (
    NO_POSITIONS,
    Attention,
    AttentionShape,
    KVCache,
    PositionBias,
    SlotCache,
    relative_distances,
)
from lemma.layers.feed_forward import ACTIVATIONS, FeedForwardLayer, build_norm
from lemma.layers.positions import RotaryEmbedding, StartPosition, build_hook, build_positions
from lemma.models.base import Backbone, pad_to_length, padding_mask, trim_padding
from lemma.spec.models import Decoder, Encoder, Transformer

Tokens = Int[Tensor, "batch time"]
HiddenStates = Float[Tensor, "batch time width"]
Mask = Bool[Tensor, "batch 1 1 known"]
LayerCache = tuple[KVCache | None, KVCache | None]
"""What a layer's self-attention keeps, and what its attention to the source keeps."""
NO_CACHE: LayerCache = (None, None)
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

    def build_norm(self) -> nn.Module:
        """One of its norms."""
        bias = self.attention.bias if self.norm_bias is None else self.norm_bias
        return build_norm(self.norm, self.attention.width, bias, self.norm_epsilon)

    def build_feed_forward(self) -> FeedForwardLayer:
        """Its feed-forward part."""
        bias = self.attention.bias if self.feed_forward_bias is None else self.feed_forward_bias
        return FeedForwardLayer(self.attention.width, self.inner, self.activation, bias, self.gated)

    @property
    def cross_attention(self) -> AttentionShape:
        """Its attention to the source: as its own, without order or positions."""
        return replace(self.attention, causal=False, source_width=self.attention.width, positions=NO_POSITIONS)


class TransformerLayer(nn.Module):
    """Each part f in turn adds to the stream: x + f(norm(x)), or in post-norm layers norm(x + f(x)).

    (Pre-norm: Radford et al. 2019; post-norm: Vaswani et al. 2017.)
    """

    def __init__(self, shape: LayerShape, dropout: float = 0.0, attention_dropout: float = 0.0) -> None:
        super().__init__()
        self.is_post_norm, self.has_source, self.is_parallel = shape.norm_place == "post", shape.source, shape.parallel
        self.attention_norm = shape.build_norm()
        self.attention = Attention(shape.attention, attention_dropout)
        if shape.source:
            self.source_norm = shape.build_norm()
            self.source_attention = Attention(shape.cross_attention, attention_dropout)
        self.feed_forward_norm = shape.build_norm()
        self.feed_forward = shape.build_feed_forward()
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        hidden: HiddenStates,
        cache: LayerCache | tuple[SlotCache, None] = NO_CACHE,
        mask: Mask | None = None,
        source: Float[Tensor, "batch known width"] | None = None,
        source_mask: Mask | None = None,
        start: StartPosition | None = None,
        position_bias: PositionBias | None = None,
    ) -> tuple[HiddenStates, LayerCache]:
        """Let each part add to the stream; a source is given once, then only what is kept of it."""
        own, across = cache
        read = hidden if self.is_post_norm else self.attention_norm(hidden)
        mixed, own = self.attention(read, own, None, mask, start, position_bias)
        if self.is_parallel:
            made = self.feed_forward(self.feed_forward_norm(hidden))
            return self._add(self._add(hidden, mixed, self.attention_norm), made, self.feed_forward_norm), (own, across)
        hidden = self._add(hidden, mixed, self.attention_norm)
        if self.has_source:
            queries = hidden if self.is_post_norm else self.source_norm(hidden)
            mixed, across = self.source_attention(queries, across, source, source_mask)
            hidden = self._add(hidden, mixed, self.source_norm)
        made = self.feed_forward(hidden if self.is_post_norm else self.feed_forward_norm(hidden))
        return self._add(hidden, made, self.feed_forward_norm), (own, across)

    def _add(self, hidden: HiddenStates, update: HiddenStates, norm: nn.Module) -> HiddenStates:
        added = hidden + (self.dropout(update) if self.training else update)  # decoding is faster without the call
        return norm(added) if self.is_post_norm else added


def build_layers(shape: LayerShape, depth: int, dropout: float) -> nn.ModuleList:
    """Layers of one shape; tables of rotations, which take memory, are one for all."""
    layers: list[TransformerLayer] = []
    for _ in range(depth):
        layers.append(TransformerLayer(shape, dropout, dropout))
        first, last = layers[0].attention.turns, layers[-1].attention.turns
        if isinstance(first, RotaryEmbedding) and isinstance(last, RotaryEmbedding):
            last.table = first.table
    return nn.ModuleList(layers)


def build_shared_biases(shape: AttentionShape) -> nn.Module | None:
    """What positions add to the scores in all layers alike; None where they add nothing, or each layer has its own."""
    if not shape.positions.shared:
        return None
    return build_hook(shape.positions, "biases", shape.context, shape.heads, shape.causal)


class Stack(nn.Module):
    """Layers one after the other; pre-norm layers leave their stream without a norm, so that it gets a last one."""

    def __init__(self, shape: LayerShape, depth: int, dropout: float) -> None:
        super().__init__()
        self.layers = build_layers(shape, depth, dropout)
        self.norm = shape.build_norm() if shape.norm_place == "pre" else None
        self.biases = build_shared_biases(shape.attention)

    def forward(
        self,
        hidden: HiddenStates,
        caches: tuple[LayerCache, ...] = (),
        mask: Mask | None = None,
        source: Float[Tensor, "batch known width"] | None = None,
        source_mask: Mask | None = None,
        start: int = 0,
    ) -> tuple[HiddenStates, tuple[LayerCache, ...]]:
        """Run all layers; return the stream and what each layer keeps. `start` is the first vector's position."""
        memories: list[LayerCache] = []
        line = None
        if self.biases is not None:
            new = hidden.shape[1]
            line = self.biases(relative_distances(new, start + new, hidden.device))
        for number, layer in enumerate(self.layers):
            earlier = caches[number] if caches else NO_CACHE
            hidden, memory = layer(hidden, earlier, mask, source, source_mask, start, line)
            memories.append(memory)
        return hidden if self.norm is None else self.norm(hidden), tuple(memories)


def layer_shape(spec: Decoder | Transformer) -> LayerShape:
    """The layer of a decoder, or of an encoder."""
    attention = AttentionShape(
        spec.width,
        spec.heads,
        spec.query_width,
        causal=False,
        bias=spec.bias,
        norm_epsilon=spec.norm_epsilon,
        positions=spec.positions,
        context=spec.context,
    )
    if isinstance(spec, Transformer):
        return LayerShape(
            replace(attention, scaled=spec.scaled_scores),
            spec.feed_forward_width,
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
        spec.feed_forward_width,
        spec.activation,
        spec.norm,
        gated=spec.gated,
        parallel=spec.residual == "parallel",
        norm_bias=spec.bias,
        feed_forward_bias=spec.bias if spec.feed_forward_bias is None else spec.feed_forward_bias,
        norm_epsilon=spec.norm_epsilon,
    )


def causal_layer_shape(shape: LayerShape) -> LayerShape:
    """The layer of an encoder–decoder that writes from left to right and attends to the source."""
    return replace(shape, attention=replace(shape.attention, causal=True), source=True)


class TransformerModel(Backbone):
    """What the encoder and the encoder–decoder share: one embedding, positions, and an encoder that sees all tokens."""

    stateful: ClassVar[bool] = False

    def __init__(self, spec: Transformer, encoder_depth: int, dropout: float) -> None:
        super().__init__()
        self.max_length = None if spec.positions.extrapolates else spec.context
        self.length_setting = f"{getattr(spec, 'family', 'transformer')}.context"
        self.embedding = nn.Embedding(spec.vocabulary, spec.width)
        self.positions = build_positions(spec.positions, spec.context, spec.width)
        self.scale = math.sqrt(spec.width) if spec.positions.scaled else None
        self.dropout = nn.Dropout(dropout)
        self.encoder = Stack(layer_shape(spec), encoder_depth, dropout)

    @property
    def vector_width(self) -> int:
        """The stream's width."""
        return self.embedding.embedding_dim

    def vectors(self, tokens: Tokens) -> HiddenStates:
        """Read all tokens in both directions; no position sees padding."""
        kept = trim_padding(tokens, self.max_length, self.length_setting)
        stream, _ = self.encoder(self.embed(kept), mask=padding_mask(kept))
        return pad_to_length(stream, tokens.shape[1])

    def embed(self, tokens: Tokens, start: int = 0) -> HiddenStates:
        """Embed tokens at positions start, start + 1, …; padding becomes token 0, which nothing sees."""
        stream = self.add_positions(self.embedding(tokens.clamp(min=0)), start)
        return self.dropout(stream) if self.training else stream

    def add_positions(self, embedded: HiddenStates, start: int = 0) -> HiddenStates:
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
            self.embedding_norm = layer_shape(spec).build_norm()
        width, tokens, bias = spec.width, spec.vocabulary, spec.output_bias
        if spec.objective != "next-sentence":
            if spec.output_transform:
                self.output = OutputHead(width, tokens, spec.activation, bias, layer_shape(spec).build_norm())
            else:
                self.output = nn.Linear(width, tokens, bias=bias)
            if spec.tied:
                (self.output.map if isinstance(self.output, OutputHead) else self.output).weight = self.embedding.weight
        if spec.objective != "masked":
            hidden = spec.output_transform
            self.follow = OutputHead(width, 2, "tanh", spec.bias) if hidden else nn.Linear(width, 2, bias=spec.bias)

    def embed(self, tokens: Tokens, start: int = 0) -> HiddenStates:
        """Embed tokens, their positions and the segments they are in, with a norm if there is one."""
        stream = self.add_positions(self.embedding(tokens.clamp(min=0)), start)
        if self.segments is not None:
            ends = (tokens == self.spec.special_ids[1]).long()
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
