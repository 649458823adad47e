"""The dependency parser (B1): encoder over words, relation heads, trees from scores."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lemma.data.treebanks import NO_WORD, NUM_RESERVED, UNKNOWN_WORD, Lexicon, Sentence, Trees
from lemma.layers.attention import AttentionShape, RelationHeads, RelationScores, log_arc_probabilities, log_attention
from lemma.layers.spanning_tree import best_tree
from lemma.models.base import evaluating
from lemma.models.transformer import LayerShape, TransformerLayer
from lemma.spec.models import BiLstm, Parser, TransformerEncoder
from lemma.spec.positions import Rotary

HiddenStates = Float[Tensor, "batch places width"]
PaddingMask = Bool[Tensor, "batch places"]
"""Which positions are not padding, which comes last."""
ROTARY_BASE = 1000.0  # rotary's base: sentences are short


class BiLstmLayer(nn.Module):
    """A bidirectional LSTM layer; the backward direction starts at the end of each sentence, not at its padding."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.forwards = nn.LSTM(width, hidden, batch_first=True)
        self.backwards = nn.LSTM(width, hidden, batch_first=True)

    def forward(self, hidden: HiddenStates, backwards_order: Int[Tensor, "batch places"]) -> HiddenStates:
        """Concatenate the outputs of both directions at each position."""
        ahead, _ = self.forwards(hidden)
        back, _ = self.backwards(_gather(hidden, backwards_order))
        return torch.cat([ahead, _gather(back, backwards_order)], dim=-1)


class BiLstmEncoder(nn.Module):
    """Bidirectional LSTM layers with dropout between them."""

    def __init__(self, spec: BiLstm, width: int, dropout: float) -> None:
        super().__init__()
        widths = [width, *[spec.width] * (spec.depth - 1)]
        self.layers = nn.ModuleList(BiLstmLayer(into, spec.hidden) for into in widths)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: HiddenStates, mask: PaddingMask) -> HiddenStates:
        """Read all layers, one after the other."""
        places = torch.arange(mask.shape[1], device=mask.device)
        backwards_order = torch.where(mask, mask.sum(1, keepdim=True) - 1 - places, places)  # padding stays
        for number, layer in enumerate(self.layers):
            hidden = layer(self.dropout(hidden) if number else hidden, backwards_order)
        return hidden


class RotaryEncoder(nn.Module):
    """Pre-norm Transformer layers with rotary positions."""

    def __init__(self, spec: TransformerEncoder, width: int, dropout: float) -> None:
        super().__init__()
        self.enter = nn.Linear(width, spec.width)
        attention = AttentionShape(spec.width, spec.heads, causal=False, positions=Rotary(base=ROTARY_BASE))
        shape = LayerShape(attention, 4 * spec.width)
        self.layers = nn.ModuleList(TransformerLayer(shape, dropout) for _ in range(spec.depth))
        self.norm = shape.build_norm()

    def forward(self, hidden: HiddenStates, mask: PaddingMask) -> HiddenStates:
        """Read all layers; no word sees padding."""
        hidden = self.enter(hidden)
        for layer in self.layers:
            hidden, _ = layer(hidden, mask=mask[:, None, None, :])
        return self.norm(hidden)


def _gather(vectors: HiddenStates, index: Int[Tensor, "batch places"]) -> HiddenStates:
    return vectors.gather(1, index[..., None].expand_as(vectors))


Rows = Int[Tensor, "batch places columns"]
"""The root and the words of each sentence: a word's index, then those of its spelling features."""


class ParserModel(nn.Module):
    """Scores of every relation between every two words; position 0 of its input is the artificial root."""

    stateful: ClassVar[bool] = False

    def __init__(self, spec: Parser, dropout: float = 0.0) -> None:
        super().__init__()
        self.spec = spec
        self.words = nn.Embedding(spec.vocabulary, spec.width)
        self.pieces = nn.Embedding(spec.buckets, spec.width)
        self.dropout = nn.Dropout(dropout)
        encoder = spec.encoder
        self.encoder = (
            BiLstmEncoder(encoder, 2 * spec.width, dropout)
            if isinstance(encoder, BiLstm)
            else RotaryEncoder(encoder, 2 * spec.width, dropout)
        )
        self.heads = RelationHeads(
            spec.encoder.width, spec.relations, spec.hidden, spec.head_width, spec.shared_width, dropout
        )

    def init_weights(self) -> None:
        """Draw small initial embeddings, so that the encoder is nearly linear at first."""
        for table in (self.words, self.pieces):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, rows: Rows) -> RelationScores:
        """Score every relation from every head word (position 0 is the root) to every dependent (positions 1 and on).

        Words given by their numbers alone, (batch, places), are read without their spelling.
        """
        rows = rows if rows.dim() == 3 else nn.functional.pad(rows[..., None], (0, 1))
        return self.heads(self.encode(rows))

    def encode(self, rows: Rows) -> Float[Tensor, "batch places width"]:
        """Read each sentence: a vector for the root and for every word."""
        return self.dropout(self.encoder(self.embed(rows), rows[..., 0] != NO_WORD))

    def embed(self, rows: Rows) -> Float[Tensor, "batch places both"]:
        """Concatenate each word's embedding with the sum of the embeddings of its spelling features."""
        words, pieces = rows[..., 0], rows[..., 1:]
        if self.training and self.spec.word_dropout:
            hidden = torch.rand(words.shape, device=words.device) < self.spec.word_dropout
            words = torch.where(hidden & (words >= NUM_RESERVED), UNKNOWN_WORD, words)
        spelling = nn.functional.embedding_bag(pieces.flatten(0, 1), self.pieces.weight, mode="sum")
        spelled = (rows[..., :1] == UNKNOWN_WORD) | (
            rows[..., :1] >= NUM_RESERVED
        )  # neither padding nor the root is spelled
        return self.dropout(torch.cat([self.words(words), spelling.unflatten(0, words.shape) * spelled], dim=-1))

    def parse(
        self, rows: Rows
    ) -> tuple[RelationScores, Float[Tensor, "batch relations head_words null_and_dependents"]]:
        """Log p(head word, relation | dependent), and the log attention of each head over its dependents."""
        there = rows[:, 1:, 0] != NO_WORD
        scores = self(rows).float()
        return log_arc_probabilities(scores, there), log_attention(scores, self.heads.null.float(), there)


MAX_SCORES = 1 << 24  # numbers of a batch's scores: 64 MB in float32
MAX_SENTENCES = 64

LogArcs = Float[np.ndarray, "relations head_words dependents"]
"""Log p(head word, relation | dependent) of one sentence; head word 0 is the root."""
LogAttention = Float[np.ndarray, "relations head_words null_and_dependents"]
"""Log attention of each relation's head from each head word, to the null position and to each word."""


@dataclass(frozen=True)
class Prediction:
    """A tree, and the probability of each word's head and relation."""

    sentence: Sentence
    probabilities: tuple[float, ...]


def predict_trees(model: ParserModel, lexicon: Lexicon, sentences: Sequence[Sequence[str]]) -> list[Prediction]:
    """Parse sentences, given as lists of words."""
    found = {
        place: decode_tree(log, sentences[place], lexicon)
        for place, log, _ in score_sentences(model, lexicon, sentences)
    }
    return [found[place] for place in range(len(sentences))]


def decode_tree(log_arcs: LogArcs, words: Sequence[str], lexicon: Lexicon) -> Prediction:
    """Take the most likely relation of each arc, and of those arcs the tree of the highest probability."""
    relations = log_arcs.argmax(axis=0)
    arcs = np.take_along_axis(log_arcs, relations[None], axis=0)[0]
    size = arcs.shape[1]
    heads = best_tree(np.concatenate([np.zeros((size + 1, 1)), arcs], axis=1))
    dependents = np.arange(size)
    names = tuple(lexicon.relations[number] for number in relations[heads, dependents])
    sure = tuple(np.exp(arcs[heads, dependents]).tolist())
    return Prediction(Sentence(tuple(words), tuple(heads.tolist()), names), sure)


def score_sentences(
    model: ParserModel, lexicon: Lexicon, sentences: Sequence[Sequence[str]]
) -> Iterator[tuple[int, LogArcs, LogAttention]]:
    """Yield each sentence's index and both readings of its scores in logarithms, in batches of similar length."""
    for batch in _batches([len(words) for words in sentences], model.spec.relations):
        arcs, attention = _score_batch(model, lexicon, [sentences[place] for place in batch])
        for row, place in enumerate(batch):
            size = len(sentences[place])
            yield place, arcs[row, :, : size + 1, :size], attention[row, :, : size + 1, : size + 1]


def relation_attention(
    model: ParserModel, lexicon: Lexicon, words: Sequence[str]
) -> Float[np.ndarray, "relations head_words null_and_dependents"]:
    """Where each relation attends from each head word (0 is the root): the null position first, then the words."""
    return np.exp(_score_batch(model, lexicon, [words])[1][0])


def _score_batch(
    model: ParserModel, lexicon: Lexicon, sentences: Sequence[Sequence[str]]
) -> tuple[np.ndarray, np.ndarray]:
    unknown = [Sentence(tuple(words), (0,) * len(words), ("",) * len(words)) for words in sentences]
    rows, _ = Trees(tuple(unknown), lexicon).batch(range(len(sentences)))
    device = next(model.parameters()).device
    with evaluating(model), torch.no_grad():
        arcs, attention = model.parse(torch.from_numpy(rows).to(device))
    return arcs.cpu().numpy(), attention.cpu().numpy()


def _batches(lengths: Sequence[int], relations: int) -> Iterator[list[int]]:
    """Cut sentences, in the order of their lengths, into batches whose scores fit in memory."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: lengths[place]):
        room = MAX_SCORES // (relations * (lengths[place] + 1) ** 2)
        if batch and len(batch) >= min(MAX_SENTENCES, max(1, room)):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
