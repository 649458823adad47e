"""Transformer layers and stacks, and the encoder (problem E3)."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from jaxtyping import Bool, Float
from torch import Tensor, nn

from lemma.errors import SpecError
from lemma.layers.attention import (
    NO_POSITIONS,
    Attention,
    AttentionShape,
    HiddenStates,
    KVCache,
    PositionBias,
    SlotCache,
    relative_distances,
)
from lemma.layers.feed_forward import ACTIVATIONS, FeedForwardLayer, build_norm
from lemma.layers.positions import RotaryEmbedding, StartPosition, build_hook, build_positions
from lemma.models.base import Backbone, Tokens, pad_to_length, padding_mask, trim_padding
from lemma.spec.models import Decoder, Encoder, Transformer

Mask = Bool[Tensor, "batch 1 1 known"]
LayerCache = tuple[KVCache | None, KVCache | None]
"""Caches of a layer's self-attention and of its attention to the source."""
NO_CACHE: LayerCache = (None, None)
INITIAL_STD = 0.02  # of embeddings and outputs


@dataclass(frozen=True)
class LayerShape:
    """Settings of a Transformer layer; the width, and biases where unset, are those of its `attention`."""

    attention: AttentionShape
    inner: int  # units of the feed-forward layer
    activation: str = "gelu"
    norm: Literal["layer", "rms"] = "layer"
    norm_place: Literal["pre", "post"] = "pre"
    source: bool = False  # it also attends to a source, which is as wide as the hidden states
    gated: bool = False
    parallel: bool = False  # attention and feed-forward read the same vectors (Wang & Komatsuzaki 2021)
    norm_bias: bool | None = None
    feed_forward_bias: bool | None = None
    norm_epsilon: float = 1e-5

    def build_norm(self) -> nn.Module:
        """Return a new layer norm or RMS norm with the width, bias and epsilon of these settings."""
        bias = self.attention.bias if self.norm_bias is None else self.norm_bias
        return build_norm(self.norm, self.attention.width, bias, self.norm_epsilon)


class TransformerLayer(nn.Module):
    """Attention and feed-forward f, each with a residual: x + f(norm(x)), or in post-norm layers norm(x + f(x)).

    (Pre-norm: Radford et al. 2019; post-norm: Vaswani et al. 2017.)
    """

    def __init__(self, shape: LayerShape, dropout: float = 0.0, attention_dropout: float = 0.0) -> None:
        super().__init__()
        self.is_post_norm, self.has_source, self.is_parallel = shape.norm_place == "post", shape.source, shape.parallel
        self.attention_norm = shape.build_norm()
        self.attention = Attention(shape.attention, attention_dropout)
        if shape.source:
            self.source_norm = shape.build_norm()
            source_shape = replace(
                shape.attention, causal=False, source_width=shape.attention.width, positions=NO_POSITIONS
            )
            self.source_attention = Attention(source_shape, attention_dropout)
        self.feed_forward_norm = shape.build_norm()
        bias = shape.attention.bias if shape.feed_forward_bias is None else shape.feed_forward_bias
        self.feed_forward = FeedForwardLayer(shape.attention.width, shape.inner, shape.activation, bias, shape.gated)
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
        """Return the new hidden states of a layer and its extended caches.

        Args:
            cache: keys and values of earlier tokens, for self-attention and for the source.
            mask: visible keys of self-attention.
            source: vectors that cross-attention reads, only at the first call; later its keys and values are cached.
            source_mask: visible positions of the source.
            start: position of the first vector.
            position_bias: bias of the attention scores that all layers share.
        """
        self_cache, source_cache = cache
        inputs = hidden if self.is_post_norm else self.attention_norm(hidden)
        attended, self_cache = self.attention(inputs, self_cache, None, mask, start, position_bias)
        if self.is_parallel:
            update = self.feed_forward(self.feed_forward_norm(hidden))
            hidden = self._add(hidden, attended, self.attention_norm)
            return self._add(hidden, update, self.feed_forward_norm), (self_cache, source_cache)
        hidden = self._add(hidden, attended, self.attention_norm)
        if self.has_source:
            inputs = hidden if self.is_post_norm else self.source_norm(hidden)
            attended, source_cache = self.source_attention(inputs, source_cache, source, source_mask)
            hidden = self._add(hidden, attended, self.source_norm)
        update = self.feed_forward(hidden if self.is_post_norm else self.feed_forward_norm(hidden))
        return self._add(hidden, update, self.feed_forward_norm), (self_cache, source_cache)

    def _add(self, hidden: HiddenStates, update: HiddenStates, norm: nn.Module) -> HiddenStates:
        """Return hidden + dropout(update), normalised if the layer is post-norm."""
        hidden = hidden + (self.dropout(update) if self.training else update)  # decoding is faster without the call
        return norm(hidden) if self.is_post_norm else hidden


def build_layers(shape: LayerShape, depth: int, dropout: float) -> nn.ModuleList:
    """Return `depth` new layers of one shape; all share one table of rotary angles."""
    layers: list[TransformerLayer] = []
    for _ in range(depth):
        layers.append(TransformerLayer(shape, dropout, dropout))
        first, last = layers[0].attention.turns, layers[-1].attention.turns
        if isinstance(first, RotaryEmbedding) and isinstance(last, RotaryEmbedding):
            last.table = first.table
    return nn.ModuleList(layers)


def build_shared_biases(shape: AttentionShape) -> nn.Module | None:
    """Return the module of a position bias that all layers share.

    None if there is no bias, or each layer has its own.
    """
    if not shape.positions.shared:
        return None
    return build_hook(shape.positions, "biases", shape.context, shape.heads, shape.causal)


class Stack(nn.Module):
    """Layers in sequence, with a last norm after pre-norm layers."""

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
        """Return the hidden states after all layers, and the extended cache of each layer.

        The arguments are those of `TransformerLayer`; `caches` is empty at the start of a sequence.
        """
        new_caches: list[LayerCache] = []
        position_bias = None
        if self.biases is not None:
            new = hidden.shape[1]
            position_bias = self.biases(relative_distances(new, start + new, hidden.device))
        for index, layer in enumerate(self.layers):
            earlier = caches[index] if caches else NO_CACHE
            hidden, cache = layer(hidden, earlier, mask, source, source_mask, start, position_bias)
            new_caches.append(cache)
        return hidden if self.norm is None else self.norm(hidden), tuple(new_caches)


def layer_shape(spec: Decoder | Transformer) -> LayerShape:
    """Return the layer settings that a decoder's or a Transformer's spec describes."""
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
    shape = LayerShape(
        attention,
        spec.feed_forward_width,
        spec.activation,
        spec.norm,
        gated=spec.gated,
        norm_bias=spec.bias,
        norm_epsilon=spec.norm_epsilon,
    )
    if isinstance(spec, Transformer):
        return replace(shape, attention=replace(attention, scaled=spec.scaled_scores), norm_place=spec.norm_place)
    attention = replace(
        attention,
        causal=True,
        value_width=spec.value_width,
        key_value_heads=spec.key_value_heads,
        key_query=spec.key_query,
        value_output=spec.value_output,
        bias=spec.has_bias("query_key_value"),
        output_bias=spec.has_bias("attention_output"),
        query_key_norm=spec.query_key_norm,
        window=spec.window,
    )
    parallel, bias = spec.residual == "parallel", spec.has_bias("feed_forward")
    return replace(shape, attention=attention, parallel=parallel, feed_forward_bias=bias)


class TransformerModel(Backbone):
    """Base of the encoder and the encoder–decoder: one embedding, positions, and an encoder that sees all tokens."""

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
        """Width of the hidden states."""
        return self.embedding.embedding_dim

    def vectors(self, tokens: Tokens) -> HiddenStates:
        """Return the encoder's hidden state of each token; tokens see both directions but no padding."""
        trimmed = trim_padding(tokens, self.max_length, self.length_setting)
        hidden, _ = self.encoder(self.embed(trimmed), mask=padding_mask(trimmed))
        return pad_to_length(hidden, tokens.shape[1])

    def embed(self, tokens: Tokens, start: int = 0) -> HiddenStates:
        """Return the embeddings of tokens at positions start, start + 1, ….

        Padding is embedded as token 0, and masked later.
        """
        hidden = self.add_positions(self.embedding(tokens.clamp(min=0)), start)
        return self.dropout(hidden) if self.training else hidden

    def add_positions(self, embedded: HiddenStates, start: int = 0) -> HiddenStates:
        """Return embedded tokens with the position embeddings of start, start + 1, … added."""
        embedded = embedded if self.scale is None else embedded * self.scale  # or sines of size 1 would drown it
        return self.positions(embedded, start=start)

    def init_weights(self) -> None:
        """Draw initial weights by `init_transformer`."""
        init_transformer(self)


def init_transformer(model: nn.Module) -> None:
    """Draw initial weights in place: embeddings and output layers small, so that all tokens are about equally likely.

    The matrices of a stack preserve the scale (Glorot & Bengio 2010). Those that add to the residual are smaller the
    more of them there are, so that all updates together are no larger in a deep stack; post-norm layers need it as much
    as pre-norm ones do, for the gradient to pass all the norms.
    """
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            nn.init.normal_(parameter, std=INITIAL_STD)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    for stack in (part for part in model.modules() if isinstance(part, Stack)):
        matrices = {name: parameter for name, parameter in stack.named_parameters() if parameter.dim() >= 2}
        residual = [name for name in matrices if name.endswith(("attention.output.weight", "narrow.weight"))]
        for name, parameter in matrices.items():
            nn.init.xavier_uniform_(parameter, gain=1 / math.sqrt(len(residual)) if name in residual else 1.0)


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
            if spec.output_transform:
                self.follow = OutputHead(width, 2, "tanh", spec.bias)
            else:
                self.follow = nn.Linear(width, 2, bias=spec.bias)

    def embed(self, tokens: Tokens, start: int = 0) -> HiddenStates:
        """Return token embeddings plus those of positions `start`, … and of segments; then the norm if there is one."""
        hidden = self.add_positions(self.embedding(tokens.clamp(min=0)), start)
        if self.segments is not None:
            ends = (tokens == self.spec.special_ids[1]).long()
            hidden = hidden + self.segments((ends.cumsum(1) - ends).clamp(max=self.spec.segments - 1))
        hidden = hidden if self.embedding_norm is None else self.embedding_norm(hidden)
        return self.dropout(hidden) if self.training else hidden

    def forward(self, tokens: Tokens) -> Float[Tensor, "batch time vocabulary"]:
        """Return the vocabulary logits at each position, masked (<mask>) or not."""
        if self.output is None:
            raise SpecError(
                "encoder.objective = 'next-sentence': this encoder has not learned tokens. Use follows(tokens), or "
                "build it with objective=both."
            )
        return self.output(self.vectors(tokens))

    def follows(self, tokens: Tokens) -> Float[Tensor, "batch two"]:
        """Return two logits per row: that its second segment does not follow its first, and that it does."""
        if self.follow is None:
            raise SpecError(
                "encoder.objective = 'masked': this encoder has not learned what follows what. Use forward(tokens), or "
                "build it with objective=both."
            )
        return self.follow(self.vectors(tokens)[:, 0])
