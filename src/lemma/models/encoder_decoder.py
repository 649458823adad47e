"""The encoder–decoder Transformer (Vaswani et al. 2017; problem C5) and its state while it writes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lemma.layers.attention import KVCache
from lemma.layers.state import State, tensor_bytes
from lemma.models.base import pad_to_length, padding_mask, trim_padding
from lemma.models.transformer import LayerCache, Stack, TransformerModel, layer_shape
from lemma.spec.models import EncoderDecoder

Logits = Float[Tensor, "batch time vocabulary"]
CACHE_NAMES = ("target", "source")


class EncoderDecoderModel(TransformerModel):
    """An embedding for source and target, an encoder, a decoder that attends to its output, and an output layer."""

    output_modules: ClassVar[tuple[str, ...]] = ("decoder", "output")

    def __init__(self, spec: EncoderDecoder, dropout: float = 0.0) -> None:
        super().__init__(spec, spec.encoder_depth, dropout)
        self.spec = spec
        shape = layer_shape(spec)
        shape = replace(shape, attention=replace(shape.attention, causal=True), source=True)
        self.decoder = Stack(shape, spec.decoder_depth, dropout)
        self.output = nn.Linear(spec.width, spec.vocabulary, bias=False)
        if spec.tied:
            self.output.weight = self.embedding.weight
        self.output_scale = spec.width**-0.5 if spec.scaled_output else None

    def forward(self, source: Int[Tensor, "batch source_time"], target: Int[Tensor, "batch time"]) -> Logits:
        """Return the logits of the token after each target token; a target row begins with <start>.

        The target needs only the causal mask: its padding comes last, so that no token sees it.
        """
        trimmed = trim_padding(target, self.max_length, self.length_setting)
        source = trim_padding(source, self.max_length, self.length_setting)
        hidden, _ = self.decoder(self.embed(trimmed), source=self.vectors(source), source_mask=padding_mask(source))
        return self._logits(pad_to_length(hidden, target.shape[1]))

    def begin(self, source: Int[Tensor, "batch source_time"]) -> "DecoderState":
        """Encode source token ids; return the decoding state before the first target token."""
        source = trim_padding(source, self.max_length, self.length_setting)
        return DecoderState(source[:, :0], padding_mask(source), self.vectors(source))

    def step(self, tokens: Int[Tensor, "batch new"], state: "DecoderState") -> tuple[Logits, "DecoderState"]:
        """Read new target tokens, <start> first; return the logits after each of them and the state after the last.

        Keys and values of the source are computed at the first step and cached; those of the target grow.
        """
        all_tokens = trim_padding(torch.cat([state.tokens, tokens], dim=1), self.max_length, self.length_setting)
        start = state.tokens.shape[1]
        hidden, layers = self.decoder(
            self.embed(tokens, start), state.layers, source=state.source, source_mask=state.source_mask, start=start
        )
        return self._logits(hidden), DecoderState(all_tokens, state.source_mask, None, layers)

    def _logits(self, hidden: Float[Tensor, "batch time width"]) -> Logits:
        """Return the vocabulary logits of the decoder's hidden states."""
        return self.output(hidden if self.output_scale is None else hidden * self.output_scale)


@dataclass(frozen=True)
class DecoderState(State):
    """State of decoding: the target tokens written so far, and each layer's KV caches of them and of the source.

    Attributes:
        source_mask: false at padding of the source; None without padding.
        source: the source's vectors, until every layer has projected them.
    """

    tokens: Int[Tensor, "batch written"]
    source_mask: Bool[Tensor, "batch 1 1 source_time"] | None
    source: Float[Tensor, "batch source_time width"] | None
    layers: tuple[LayerCache, ...] = ()

    @property
    def about(self) -> str:
        """Description in words of what the state holds."""
        return "the source and all tokens written so far"

    def tensors(self) -> dict[str, Tensor]:
        """Return target tokens ("written"), source mask ("seen"), source vectors and caches by name, if not None."""
        tensors = {"written": self.tokens, "seen": self.source_mask, "source": self.source}
        for index, caches in enumerate(self.layers):
            for side, cache in zip(CACHE_NAMES, caches, strict=True):
                tensors |= {f"layers.{index}.{side}.{part}": tensor for part, tensor in enumerate(cache or ())}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "DecoderState":
        """Return a state with as many layers that holds these tensors, named as by `tensors()`."""

        def read_cache(index: int, side: str, cache: KVCache | None) -> KVCache:
            return tuple(tensors[f"layers.{index}.{side}.{part}"] for part in range(len(cache or ())))

        layers = tuple(
            (read_cache(index, "target", target), read_cache(index, "source", source))
            for index, (target, source) in enumerate(self.layers)
        )
        return DecoderState(tensors["written"], tensors.get("seen"), tensors.get("source"), layers)

    def reorder(self, index: Int[Tensor, " rows"]) -> "DecoderState":
        """Return a state whose target tokens and caches are the rows at `index`, as beams of one source change places.

        The source's caches keep their rows.
        """
        layers = tuple((tuple(tensor[index] for tensor in target or ()), source) for target, source in self.layers)
        return replace(self, tokens=self.tokens[index], layers=layers)

    def signature(self, row: int = 0) -> bytes:
        """Return the tokens and the source of a row as bytes; they determine the state."""
        source = self.layers[0][1] or () if self.source is None else (self.source,)
        tensors = (self.tokens, *source) if self.source_mask is None else (self.tokens, *source, self.source_mask)
        return b"|".join(tensor_bytes(tensor[row]) for tensor in tensors)
