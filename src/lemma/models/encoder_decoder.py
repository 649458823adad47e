"""The encoder–decoder Transformer (Vaswani et al. 2017; problem C5): a source read both ways, a target written."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.models.layers import Stack, causal
from lemma.models.padding import seen_of, widened, within
from lemma.models.transformer import TransformerModel, layer_shape
from lemma.models.writing import Writing
from lemma.spec import EncoderDecoder

Logits = Float[Tensor, "batch time vocabulary"]


class EncoderDecoderModel(TransformerModel):
    """One embedding for source and target, an encoder, a decoder that attends to what it gives, an output layer."""

    outward: ClassVar[tuple[str, ...]] = ("decoder", "output")

    def __init__(self, spec: EncoderDecoder, dropout: float = 0.0) -> None:
        super().__init__(spec, spec.encoder_depth, dropout)
        self.spec = spec
        self.decoder = Stack(causal(layer_shape(spec)), spec.decoder_depth, dropout)
        self.output = nn.Linear(spec.width, spec.vocabulary, bias=False)
        if spec.tied:
            self.output.weight = self.embedding.weight

    def forward(self, source: Int[Tensor, "batch source_time"], target: Int[Tensor, "batch time"]) -> Logits:
        """Return the logits of the token after each of the target's, which begins with <start>.

        The target needs no mask beside its order: its padding comes last, so that no token sees it.
        """
        kept = within(target, self.limit, self.limit_name)
        source = within(source, self.limit, self.limit_name)
        stream, _ = self.decoder(self.embed(kept), source=self.vectors(source), source_mask=seen_of(source))
        return self.output(widened(stream, target.shape[1]))

    def begin(self, source: Int[Tensor, "batch source_time"]) -> Writing:
        """Read the sources; return the state before anything is written."""
        source = within(source, self.limit, self.limit_name)
        return Writing(source[:, :0], seen_of(source), self.vectors(source))

    def step(self, tokens: Int[Tensor, "batch new"], state: Writing) -> tuple[Logits, Writing]:
        """Write tokens, the first of all <start>; return the logits after each, and the state after them.

        Keys and values of the source are made at the first step and kept, those of the target grow.
        """
        joined = within(torch.cat([state.written, tokens], dim=1), self.limit, self.limit_name)
        embedded = self.embed(tokens, start=state.written.shape[1])
        stream, layers = self.decoder(embedded, state.layers, source=state.source, source_mask=state.seen)
        return self.output(stream), Writing(joined, state.seen, None, layers)
