"""The encoder: a Transformer in which every token sees all, and that learns what is hidden from it (problem E3)."""

from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.errors import SpecError
from lemma.models.transformer import TransformerModel
from lemma.spec import Encoder

Tokens = Int[Tensor, "batch time"]


class EncoderModel(TransformerModel):
    """Embedding and positions, layers, and an output layer for hidden tokens, for what follows what, or for both."""

    outward: ClassVar[tuple[str, ...]] = ("output", "follow")

    def __init__(self, spec: Encoder, dropout: float = 0.0) -> None:
        super().__init__(spec, spec.depth, dropout)
        self.spec = spec
        self.output = self.follow = None
        if spec.objective != "next-sentence":
            self.output = nn.Linear(spec.width, spec.vocabulary, bias=False)
            if spec.tied:
                self.output.weight = self.embedding.weight
        if spec.objective != "masked":
            self.follow = nn.Linear(spec.width, 2, bias=spec.bias)

    def forward(self, tokens: Tokens) -> Float[Tensor, "batch time vocabulary"]:
        """Return the logits of the token at each place, <mask> or not."""
        if self.output is None:
            raise SpecError(
                "encoder.objective = 'next-sentence': this encoder has not learned tokens. Use follows(tokens), or "
                "build it with objective=both."
            )
        return self.output(self.vectors(tokens))

    def follows(self, tokens: Tokens) -> Float[Tensor, "batch two"]:
        """Return the logits of whether the second stretch of each row does not follow the first (0), or does (1)."""
        if self.follow is None:
            raise SpecError(
                "encoder.objective = 'masked': this encoder has not learned what follows what. Use forward(tokens), or "
                "build it with objective=both."
            )
        return self.follow(self.vectors(tokens)[:, 0])
