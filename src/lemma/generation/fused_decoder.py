"""A decoder's step in five Triton kernels per layer; `DecoderModel.step` is the plain path that it replaces."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.kernels.decoding import MAX_ROWS, RotaryTables, attend_slot_cache, embed_tokens, fused_linear, take_argmax
from lemma.kernels.support import is_available
from lemma.layers.attention import Attention
from lemma.layers.feed_forward import ACTIVATIONS
from lemma.layers.positions import AlibiBias, LearnedEmbedding, NoEmbedding, RotaryEmbedding, SinusoidalEmbedding
from lemma.models.decoder import DecoderModel, DecoderSlotCache
from lemma.models.transformer import TransformerLayer

ACTIVATION_NAMES = {function: name for name, function in ACTIVATIONS.items()}


class FusedDecoder:
    """A decoder's step in bfloat16: the same function as `DecoderModel.step`, with fewer roundings."""

    def __init__(self, model: DecoderModel, capacity: int) -> None:
        self.model = model
        self.layers: list[Any] = list(model.layers)
        attention: Attention = self.layers[0].attention
        self.rotary_tables = None
        if isinstance(attention.turns, RotaryEmbedding):
            self.rotary_tables = build_rotary_tables(attention.turns, capacity, attention.head_width)
        self.slopes = attention.biases.slopes if isinstance(attention.biases, AlibiBias) else None
        self.position_table = getattr(model.positions, "weight", getattr(model.positions, "table", None))

    @staticmethod
    def supports(model: DecoderModel, rows: int) -> bool:
        """Return whether the kernels cover a model: bfloat16, plain linear layers, known activations and positions."""
        parameter = next(model.parameters())
        return (
            rows <= MAX_ROWS
            and parameter.dtype == torch.bfloat16
            and is_available(parameter.device)
            and type(model.output) is nn.Linear
            and type(model.positions) in (NoEmbedding, LearnedEmbedding, SinusoidalEmbedding)
            and all(
                type(layer) is TransformerLayer
                and supports_attention(layer.attention)
                and layer.feed_forward.activation in ACTIVATION_NAMES
                and all(type(child) is nn.Linear for child in layer.feed_forward.children())
                for layer in model.layers
            )
        )

    def step(
        self, tokens: Int[Tensor, "batch 1"], slots: DecoderSlotCache, take_most_likely: bool = False
    ) -> Float[Tensor, "batch 1 vocabulary"]:
        """Append the next token of each sequence to its slot, which must not be full, and predict the one after it.

        With `take_most_likely`, the most likely tokens are written into `tokens` and into the slots.
        """
        model = self.model
        scale = model.scale or 1.0
        hidden = embed_tokens(tokens, slots.lengths, slots.tokens, model.embedding.weight, self.position_table, scale)
        for layer, cache in zip(self.layers, slots.layers, strict=True):
            attention, feed_forward = layer.attention, layer.feed_forward
            qkv = fused_linear(hidden, attention.query_key_value, layer.attention_norm)
            keys, values = cache.tensors
            mixed = attend_slot_cache(
                qkv,
                keys,
                values,
                cache.lengths,
                attention.scale,
                attention.window,
                attention.query_norm,
                attention.key_norm,
                self.rotary_tables,
                self.slopes,
            )
            attended = fused_linear(mixed, attention.output, residual=hidden)
            widen = feed_forward.gate_widen if feed_forward.gated else feed_forward.widen
            activation = ACTIVATION_NAMES[feed_forward.activation]
            inputs = hidden if layer.is_parallel else attended
            widened = fused_linear(inputs, widen, layer.feed_forward_norm, activation, feed_forward.gated)
            hidden = fused_linear(widened, feed_forward.narrow, residual=attended)
        logits = fused_linear(hidden, model.output, model.norm, dtype=torch.float32)
        if take_most_likely:  # a cap does not change the order of logits
            take_argmax(logits, tokens, slots.lengths, slots.tokens)
        else:
            slots.lengths += 1
        return (logits if model.logit_cap is None else model.logit_cap * torch.tanh(logits / model.logit_cap))[:, None]


def supports_attention(attention: Attention) -> bool:
    """Return whether `attend_slot_cache` covers an attention: self-attention with heads of one width."""
    shape = attention.shape
    return (
        not attention.is_cross
        and shape.key_query == shape.value_output == "separate"
        and shape.head_width == shape.head_value_width <= 256
        and (attention.turns is None or type(attention.turns) is RotaryEmbedding)
        and (attention.biases is None or type(attention.biases) is AlibiBias)
        and type(attention.query_key_value) is type(attention.output) is nn.Linear
    )


def build_rotary_tables(rotary: RotaryEmbedding, capacity: int, width: int) -> RotaryTables:
    """Return signed sines and cosines of each position, and the partner of each coordinate; the rest is not rotated."""
    size, columns = rotary.rotary_dim, torch.arange(width, device=rotary.table.device)
    rows, table = rotary.table[:capacity].float(), torch.zeros(capacity, 2, width, device=rotary.table.device)
    table[:, 1] = 1.0
    if rotary.halves:
        table[:, :, :size] = rows
        partner = torch.where(columns < size // 2, columns + size // 2, columns - size // 2)
    else:
        sine, cosine = rows.unbind(-1)
        table[:, 0, :size] = torch.stack([-sine, sine], -1).flatten(1)
        table[:, 1, :size] = cosine.repeat_interleave(2, 1)
        partner = columns ^ 1
    return table, torch.where(columns < size, partner, columns).int()
