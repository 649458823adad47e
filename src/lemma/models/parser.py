"""The parser: embedded words and spellings, an encoder, and a last attention layer with one head a relation."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.data.lexicon import PADDING, RESERVED, UNKNOWN
from lemma.models.encoders import sentence_encoder
from lemma.parts.relations import RelationHeads, Scores, over_dependents, over_governors
from lemma.spec import Parser

FIRST = 0.1  # the spread of the first embeddings

Rows = Int[Tensor, "batch places columns"]
"""The top and the words of each sentence: a word's number, then those of the pieces of its spelling."""


class ParserModel(nn.Module):
    """Scores of every relation between every two words; place 0 of its input stands above the root."""

    stateful: ClassVar[bool] = False

    def __init__(self, spec: Parser, dropout: float = 0.0) -> None:
        super().__init__()
        self.spec = spec
        self.words = nn.Embedding(spec.vocabulary, spec.width)
        self.pieces = nn.Embedding(spec.buckets, spec.width)
        self.dropout = nn.Dropout(dropout)
        self.encoder = sentence_encoder(spec.encoder, 2 * spec.width, dropout)
        self.heads = RelationHeads(
            spec.encoder.width, spec.relations, spec.hidden, spec.head_width, spec.shared_width, dropout
        )

    def start(self) -> None:
        """Draw the first embeddings small, so that the encoder begins where its functions bend little."""
        for table in (self.words, self.pieces):
            nn.init.normal_(table.weight, std=FIRST)

    def forward(self, rows: Rows) -> Scores:
        """Score every relation from every governor (place 0 is the top) to every dependent (places 1 and on).

        Words given by their numbers alone, (batch, places), are read without their spelling.
        """
        rows = rows if rows.dim() == 3 else nn.functional.pad(rows[..., None], (0, 1))
        return self.heads(self.encode(rows))

    def encode(self, rows: Rows) -> Float[Tensor, "batch places width"]:
        """Read each sentence: a vector for the top and for every word."""
        return self.dropout(self.encoder(self.embed(rows), rows[..., 0] != PADDING))

    def embed(self, rows: Rows) -> Float[Tensor, "batch places both"]:
        """Join what is known of each word with the sum of what is known of the pieces of its spelling."""
        words, pieces = rows[..., 0], rows[..., 1:]
        if self.training and self.spec.word_dropout:
            hidden = torch.rand(words.shape, device=words.device) < self.spec.word_dropout
            words = torch.where(hidden & (words >= RESERVED), UNKNOWN, words)
        spelling = nn.functional.embedding_bag(pieces.flatten(0, 1), self.pieces.weight, mode="sum")
        spelled = (rows[..., :1] == UNKNOWN) | (rows[..., :1] >= RESERVED)  # neither padding nor the top is spelled
        return self.dropout(torch.cat([self.words(words), spelling.unflatten(0, words.shape) * spelled], dim=-1))

    def parse(self, rows: Rows) -> tuple[Scores, Float[Tensor, "batch relations governors null_and_dependents"]]:
        """Log p(governor, relation | dependent), and the log attention of each head over its dependents."""
        there = rows[:, 1:, 0] != PADDING
        scores = self(rows).float()
        return over_governors(scores, there), over_dependents(scores, self.heads.null.float(), there)
