"""The dependency parser (problem B1): an encoder over words, an attention head per relation, trees from its scores."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lemma.data.treebanks import NO_WORD, NUM_RESERVED, UNKNOWN_WORD, Lexicon, Sentence, Trees
from lemma.layers.attention import AttentionShape
from lemma.models.base import Model, evaluating
from lemma.models.spanning_tree import best_tree
from lemma.models.transformer import LayerShape, TransformerLayer
from lemma.spec.models import BiLstm, Parser, TransformerEncoder
from lemma.spec.positions import Rotary

ROTARY_BASE = 1000.0  # sentences are short
NULL_SCORE = 4.0  # initial score of the null position: from most words, most relations have nothing to attend to
MAX_SCORES = 1 << 24  # numbers in the scores of a batch: 64 MB in float32
MAX_SENTENCES = 64  # of a batch
HiddenStates = Float[Tensor, "batch positions width"]
PaddingMask = Bool[Tensor, "batch positions"]
"""False at padding, which comes last."""
WordFeatures = Int[Tensor, "batch positions columns"]
"""The root and the words of each sentence: the word's index, then those of its spelling features."""
RelationScores = Float[Tensor, "batch relations head_words dependents"]
RelationAttention = Float[Tensor, "batch relations head_words null_and_dependents"]
LogArcs = Float[np.ndarray, "relations head_words dependents"]
"""Log p(head word, relation | dependent) of one sentence; head word 0 is the root."""
LogAttention = Float[np.ndarray, "relations head_words null_and_dependents"]
"""Log attention of each relation from each head word, to the null position and to each word."""


class ParserModel(Model):
    """Scores of every relation between every two words; position 0 of its input is the artificial root."""

    def __init__(self, spec: Parser, dropout: float = 0.0) -> None:
        super().__init__()
        self.spec = spec
        self.words = nn.Embedding(spec.vocabulary, spec.width)
        self.pieces = nn.Embedding(spec.buckets, spec.width)  # of spelling features; the name is in state dicts
        self.dropout = nn.Dropout(dropout)
        if isinstance(spec.encoder, BiLstm):
            self.encoder = BiLstmEncoder(spec.encoder, 2 * spec.width, dropout)
        else:
            self.encoder = RotaryEncoder(spec.encoder, 2 * spec.width, dropout)
        self.heads = RelationHeads(
            spec.encoder.width, spec.relations, spec.hidden, spec.head_width, spec.shared_width, dropout
        )

    def init_weights(self) -> None:
        """Draw small initial embeddings, so that the encoder is nearly linear at first."""
        for table in (self.words, self.pieces):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, rows: WordFeatures) -> RelationScores:
        """Return a score for every relation between every head word (0 is the root) and every dependent (from 1).

        Words given by their indices alone, (batch, positions), are read without their spelling.
        """
        rows = rows if rows.dim() == 3 else nn.functional.pad(rows[..., None], (0, 1))
        return self.heads(self.encode(rows))

    def encode(self, rows: WordFeatures) -> HiddenStates:
        """Return the encoder's hidden state of the root and of every word."""
        return self.dropout(self.encoder(self.embed(rows), rows[..., 0] != NO_WORD))

    def embed(self, rows: WordFeatures) -> Float[Tensor, "batch positions both"]:
        """Return each word's embedding, concatenated with the sum of the embeddings of its spelling features."""
        words, features = rows[..., 0], rows[..., 1:]
        if self.training and self.spec.word_dropout:
            dropped = torch.rand(words.shape, device=words.device) < self.spec.word_dropout
            words = torch.where(dropped & (words >= NUM_RESERVED), UNKNOWN_WORD, words)
        spelling = nn.functional.embedding_bag(features.flatten(0, 1), self.pieces.weight, mode="sum")
        has_spelling = (rows[..., :1] == UNKNOWN_WORD) | (rows[..., :1] >= NUM_RESERVED)  # neither padding nor the root
        return self.dropout(torch.cat([self.words(words), spelling.unflatten(0, words.shape) * has_spelling], dim=-1))

    def parse(self, rows: WordFeatures) -> tuple[RelationScores, RelationAttention]:
        """Return log p(head word, relation | dependent), and each relation's log attention from every head word to a
        null position and the dependents.
        """
        mask = rows[:, 1:, 0] != NO_WORD
        scores = self(rows).float()
        return log_arc_probabilities(scores, mask), log_attention(scores, self.heads.null.float(), mask)


class RelationHeads(nn.Module):
    """An attention layer with one attention head per relation (problem B1); head words are the root and all words.

    S_r[g, d] = q_r(g)·k_r(d)/√w for head word g, dependent d and relation r, where the queries and keys of each
    relation have some coordinates of their own and some that all relations share. Normalised over a head word's
    dependents, with a null position for "none", `dobj` attends from `prefer` to `flight` with weight 1. Normalised over
    all (head word, relation) of each dependent, the same scores are a parser (Dozat & Manning 2017 have the bilinear
    form with separate arcs and labels). "Head word" is the head of a dependency; "head" is an attention head.
    """

    def __init__(
        self, width: int, relations: int, hidden: int, relation_width: int, shared_width: int, dropout: float
    ) -> None:
        super().__init__()
        self.relations, self.relation_width, self.shared_width = relations, relation_width, shared_width
        self.governor, self.dependent = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.query = nn.Linear(hidden, relations * relation_width + shared_width)
        self.key = nn.Linear(hidden, relations * relation_width + shared_width)
        self.null = nn.Parameter(torch.full((relations,), NULL_SCORE))
        self.dropout = nn.Dropout(dropout)
        self.scale = (relation_width + shared_width) ** -0.5

    def forward(self, hidden: HiddenStates) -> RelationScores:
        """Return the score of each relation from every head word (0 is the root) to every dependent (from 1)."""
        queries = self.query(self._activate(self.governor, hidden))
        keys = self.key(self._activate(self.dependent, hidden[:, 1:]))
        scores = torch.matmul(self._split_heads(queries), self._split_heads(keys).transpose(-1, -2))
        if not self.shared_width:
            return scores * self.scale
        shared = queries[..., -self.shared_width :] @ keys[..., -self.shared_width :].transpose(-1, -2)
        return (scores + shared[:, None]) * self.scale

    def _activate(self, layer: nn.Linear, hidden: Tensor) -> Tensor:
        """Return dropout(leaky ReLU(layer(hidden)))."""
        return self.dropout(nn.functional.leaky_relu(layer(hidden), 0.1))

    def _split_heads(self, vectors: Tensor) -> Float[Tensor, "batch relations positions relation_width"]:
        """Split queries or keys, without the coordinates that relations share, into one vector per relation."""
        by_relation = vectors[..., : self.relations * self.relation_width]
        return by_relation.unflatten(-1, (self.relations, self.relation_width)).transpose(1, 2)


def log_attention(
    scores: RelationScores, null: Float[Tensor, " relations"], mask: Bool[Tensor, "batch dependents"]
) -> RelationAttention:
    """Return each relation's log attention from every head word to a null position and to the dependents.

    Args:
        null: score of the null position in each relation.
        mask: True at words, False at padding.
    """
    masked = scores.masked_fill(~mask[:, None, None], float("-inf"))
    batch, relations, head_words, _ = scores.shape
    null_scores = null[None, :, None, None].expand(batch, relations, head_words, 1).to(scores.dtype)
    return torch.cat([null_scores, masked], dim=-1).log_softmax(-1)


def log_arc_probabilities(scores: RelationScores, mask: Bool[Tensor, "batch dependents"]) -> RelationScores:
    """Return log p(head word, relation | dependent); −∞ for a word as its own head and for padding as a head.

    Args:
        scores: as `ParserModel` returns them.
        mask: True at words, False at padding.
    """
    can_govern = torch.cat([torch.ones_like(mask[:, :1]), mask], dim=1)
    is_itself = torch.eye(scores.shape[-1], dtype=torch.bool, device=scores.device)
    forbidden = ~can_govern[:, :, None] | torch.cat([torch.zeros_like(is_itself[:1]), is_itself])
    masked = scores.masked_fill(forbidden[:, None], float("-inf"))
    return masked.flatten(1, 2).log_softmax(1).view_as(scores)


class BiLstmEncoder(nn.Module):
    """Bidirectional LSTM layers with dropout between them."""

    def __init__(self, spec: BiLstm, width: int, dropout: float) -> None:
        super().__init__()
        widths = [width, *[spec.width] * (spec.depth - 1)]
        self.layers = nn.ModuleList(BiLstmLayer(layer_width, spec.hidden) for layer_width in widths)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: HiddenStates, mask: PaddingMask) -> HiddenStates:
        """Return hidden states after all layers; `mask` is False at padding."""
        positions = torch.arange(mask.shape[1], device=mask.device)
        reversed_order = torch.where(mask, mask.sum(1, keepdim=True) - 1 - positions, positions)  # padding stays
        for index, layer in enumerate(self.layers):
            hidden = layer(self.dropout(hidden) if index else hidden, reversed_order)
        return hidden


class BiLstmLayer(nn.Module):
    """A bidirectional LSTM layer; the backward direction starts at the end of each sentence, not at its padding."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.forwards = nn.LSTM(width, hidden, batch_first=True)
        self.backwards = nn.LSTM(width, hidden, batch_first=True)

    def forward(self, hidden: HiddenStates, reversed_order: Int[Tensor, "batch positions"]) -> HiddenStates:
        """Return the outputs of both directions, concatenated at each position.

        Args:
            reversed_order: index that reverses the positions of each sentence but leaves its padding at the end.
        """
        ahead, _ = self.forwards(hidden)
        back, _ = self.backwards(_gather(hidden, reversed_order))
        return torch.cat([ahead, _gather(back, reversed_order)], dim=-1)


def _gather(vectors: HiddenStates, index: Int[Tensor, "batch positions"]) -> HiddenStates:
    """Return the vectors of each row in the order of `index`."""
    return vectors.gather(1, index[..., None].expand_as(vectors))


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
        """Return hidden states after all layers; no word sees padding, where `mask` is False."""
        hidden = self.enter(hidden)
        for layer in self.layers:
            hidden, _ = layer(hidden, mask=mask[:, None, None, :])
        return self.norm(hidden)


@dataclass(frozen=True)
class Prediction:
    """A predicted tree, and the probability of each word's head and relation."""

    sentence: Sentence
    probabilities: tuple[float, ...]


def predict_trees(model: ParserModel, lexicon: Lexicon, sentences: Sequence[Sequence[str]]) -> list[Prediction]:
    """Return the predicted dependency tree of each sentence, given as a list of words."""
    predictions = {
        index: decode_tree(log_arcs, sentences[index], lexicon)
        for index, log_arcs, _ in score_sentences(model, lexicon, sentences)
    }
    return [predictions[index] for index in range(len(sentences))]


def decode_tree(log_arcs: LogArcs, words: Sequence[str], lexicon: Lexicon) -> Prediction:
    """Return the most probable tree of a sentence.

    Args:
        log_arcs: log p(head word, relation | dependent), as `score_sentences` yields them.
    """
    relations = log_arcs.argmax(axis=0)
    arcs = np.take_along_axis(log_arcs, relations[None], axis=0)[0]
    size = arcs.shape[1]
    heads = best_tree(np.concatenate([np.zeros((size + 1, 1)), arcs], axis=1))
    dependents = np.arange(size)
    names = tuple(lexicon.relations[number] for number in relations[heads, dependents])
    probabilities = tuple(np.exp(arcs[heads, dependents]).tolist())
    return Prediction(Sentence(tuple(words), tuple(heads.tolist()), names), probabilities)


def score_sentences(
    model: ParserModel, lexicon: Lexicon, sentences: Sequence[Sequence[str]]
) -> Iterator[tuple[int, LogArcs, LogAttention]]:
    """Yield (index of a sentence, its arc log-probabilities, its log attention), in batches of similar length."""
    for batch in _batches([len(words) for words in sentences], model.spec.relations):
        arcs, attention = _score_batch(model, lexicon, [sentences[index] for index in batch])
        for row, index in enumerate(batch):
            size = len(sentences[index])
            yield index, arcs[row, :, : size + 1, :size], attention[row, :, : size + 1, : size + 1]


def relation_attention(
    model: ParserModel, lexicon: Lexicon, words: Sequence[str]
) -> Float[np.ndarray, "relations head_words null_and_dependents"]:
    """Return each relation's attention weights from each head word (0 is the root): null position first, then words."""
    return np.exp(_score_batch(model, lexicon, [words])[1][0])


def _score_batch(
    model: ParserModel, lexicon: Lexicon, sentences: Sequence[Sequence[str]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return (arc log-probabilities, log attention) of all sentences, arrays with one row per sentence, padded."""
    unlabelled = [Sentence(tuple(words), (0,) * len(words), ("",) * len(words)) for words in sentences]
    rows, _ = Trees(tuple(unlabelled), lexicon).batch(range(len(sentences)))
    device = next(model.parameters()).device
    with evaluating(model), torch.no_grad():
        arcs, attention = model.parse(torch.from_numpy(rows).to(device))
    return arcs.cpu().numpy(), attention.cpu().numpy()


def _batches(lengths: Sequence[int], relations: int) -> Iterator[list[int]]:
    """Yield batches of sentence indices, shortest sentences first, whose scores for all relations fit in memory.

    Args:
        lengths: number of words of each sentence.
        relations: number of relations.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index]):
        fitting = MAX_SCORES // (relations * (lengths[index] + 1) ** 2)
        if batch and len(batch) >= min(MAX_SENTENCES, max(1, fitting)):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
