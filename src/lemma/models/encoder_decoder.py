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
from lemma.models.transformer import LayerCache, Stack, TransformerModel, causal_layer_shape, layer_shape
from lemma.spec.models import EncoderDecoder

SIDES = ("target", "source")


@dataclass(frozen=True)
class DecoderState(State):
    """The tokens written so far, and what each layer keeps of them and of the source."""

    written: Int[Tensor, "batch written"]
    source_mask: Bool[Tensor, "batch 1 1 source_time"] | None
    """Which positions of the source are not padding; all of them if unset."""
    source: Float[Tensor, "batch source_time width"] | None
    """The source's vectors, as long as no layer has made its keys and values of them."""
    layers: tuple[LayerCache, ...] = ()

    @property
    def about(self) -> str:
        """What it is, in words."""
        return "the source and all tokens written so far"

    def tensors(self) -> dict[str, Tensor]:
        """The tokens, the source, and each layer's keys and values."""
        named = {"written": self.written, "seen": self.source_mask, "source": self.source}
        for number, sides in enumerate(self.layers):
            for side, memory in zip(SIDES, sides, strict=True):
                named |= {f"layers.{number}.{side}.{part}": tensor for part, tensor in enumerate(memory or ())}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "DecoderState":
        """Return a state of the same layers that holds these tensors."""

        def memory(number: int, side: str, like: KVCache | None) -> KVCache:
            return tuple(tensors[f"layers.{number}.{side}.{part}"] for part in range(len(like or ())))

        layers = tuple(
            (memory(number, "target", own), memory(number, "source", across))
            for number, (own, across) in enumerate(self.layers)
        )
        return DecoderState(tensors["written"], tensors.get("seen"), tensors.get("source"), layers)

    def reorder(self, index: Int[Tensor, " rows"]) -> "DecoderState":
        """Return the rows in an order that leaves each with its own source, of which nothing is moved."""
        layers = tuple((tuple(one[index] for one in own or ()), across) for own, across in self.layers)
        return replace(self, written=self.written[index], layers=layers)

    def signature(self, row: int = 0) -> bytes:
        """The source and the tokens say it all."""
        source = self.layers[0][1] or () if self.source is None else (self.source,)
        whole = (self.written, *source) if self.source_mask is None else (self.written, *source, self.source_mask)
        return b"|".join(tensor_bytes(tensor[row]) for tensor in whole)


Logits = Float[Tensor, "batch time vocabulary"]


class EncoderDecoderModel(TransformerModel):
    """One embedding for source and target, an encoder, a decoder that attends to its output, and an output layer."""

    output_modules: ClassVar[tuple[str, ...]] = ("decoder", "output")

    def __init__(self, spec: EncoderDecoder, dropout: float = 0.0) -> None:
        super().__init__(spec, spec.encoder_depth, dropout)
        self.spec = spec
        self.decoder = Stack(causal_layer_shape(layer_shape(spec)), spec.decoder_depth, dropout)
        self.output = nn.Linear(spec.width, spec.vocabulary, bias=False)
        if spec.tied:
            self.output.weight = self.embedding.weight
        self.output_scale = spec.width**-0.5 if spec.scaled_output else None

    def forward(self, source: Int[Tensor, "batch source_time"], target: Int[Tensor, "batch time"]) -> Logits:
        """Return the logits of the token after each of the target's, which begins with <start>.

        The target needs only the causal mask: its padding comes last, so that no token sees it.
        """
        kept = trim_padding(target, self.max_length, self.length_setting)
        source = trim_padding(source, self.max_length, self.length_setting)
        stream, _ = self.decoder(self.embed(kept), source=self.vectors(source), source_mask=padding_mask(source))
        return self._logits(pad_to_length(stream, target.shape[1]))

    def begin(self, source: Int[Tensor, "batch source_time"]) -> DecoderState:
        """Read the sources; return the state before anything is written."""
        source = trim_padding(source, self.max_length, self.length_setting)
        return DecoderState(source[:, :0], padding_mask(source), self.vectors(source))

    def step(self, tokens: Int[Tensor, "batch new"], state: DecoderState) -> tuple[Logits, DecoderState]:
        """Write tokens, the first of all <start>; return the logits after each, and the state after them.

        Keys and values of the source are made at the first step and kept, those of the target grow.
        """
        joined = trim_padding(torch.cat([state.written, tokens], dim=1), self.max_length, self.length_setting)
        start = state.written.shape[1]
        embedded = self.embed(tokens, start)
        stream, layers = self.decoder(
            embedded, state.layers, source=state.source, source_mask=state.source_mask, start=start
        )
        return self._logits(stream), DecoderState(joined, state.source_mask, None, layers)

    def _logits(self, stream: Float[Tensor, "batch time width"]) -> Logits:
        return self.output(stream if self.output_scale is None else stream * self.output_scale)
