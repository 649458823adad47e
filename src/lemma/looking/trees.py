"""Trees out of attention: attention between words, the word attended to most, and the maximum spanning tree.

A causal model's words attend only to the past, so that a word's governor may lie where it cannot look. For a tree both
directions are therefore added, A + Aᵀ: the tree itself has no direction then, and hangs from the word that the others
attend to most on average.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64

from lemma.data import Tokenizer
from lemma.errors import InputError
from lemma.looking.alignment import align, between_words
from lemma.models import LanguageModel, evaluating
from lemma.parts import AttentionRecord, tap
from lemma.parts.spanning import best_tree

Between = Float[np.ndarray, "words words"]
"""Attention from each word (row) to each word (column)."""
Places = tuple[tuple[int, int], ...]
"""The layer and head of each."""
PROBE = 3  # tokens that tell which heads there are


@dataclass(frozen=True)
class WordAttention:
    """What every head of a model attends to, word by word."""

    names: tuple[str, ...]
    """`layer 0 head 1`, in the order of the heads."""
    places: Places
    weights: Float[np.ndarray, "heads words words"]
    left_out: int = 0
    """Characters that the tokenizer could not express."""

    def chosen(self, layer: int | None, head: int | None) -> Between:
        """The attention of one head, or the mean of a layer's or of all heads."""
        wanted = [
            number for number, place in enumerate(self.places) if layer in (None, place[0]) and head in (None, place[1])
        ]
        if not wanted:
            raise InputError(_no_such_head(self.places, layer, head))
        return self.weights[wanted].mean(axis=0)


def word_attention(model: LanguageModel, tokenizer: Tokenizer, words: Sequence[str]) -> WordAttention:
    """Let a model read some words, and return what its heads attend to, from word to word."""
    aligned = align(words, tokenizer)
    reach = model.reach
    if not len(aligned.ids) or (reach is not None and len(aligned.ids) > reach):
        raise InputError(
            f"the sentence has {len(aligned.ids)} tokens; the model reads 1 to {reach} at once. Give a shorter one."
        )
    square = _square_attention(model, torch.from_numpy(aligned.ids))
    places = _places(square)
    weights = torch.cat([record.weights()[0] for record in square]).double().cpu().numpy()
    names = tuple(f"layer {layer} head {head}" for layer, head in places)
    return WordAttention(names, places, between_words(weights, aligned.spans), aligned.left_out)


def check_heads(model: LanguageModel, layer: int | None, head: int | None) -> None:
    """Refuse a model without attention, or a layer or head that it does not have; costs the reading of three tokens."""
    size = PROBE if model.reach is None else min(PROBE, model.reach)
    places = _places(_square_attention(model, torch.zeros(size, dtype=torch.long)))
    if not any(layer in (None, place[0]) and head in (None, place[1]) for place in places):
        raise InputError(_no_such_head(places, layer, head))


def _square_attention(model: LanguageModel, ids: Int64[torch.Tensor, "tokens"]) -> list[AttentionRecord]:
    """What was recorded of every layer whose words all attend to all (or to all before)."""
    tokens, size = ids[None].to(next(model.parameters()).device), len(ids)
    with evaluating(model), torch.no_grad(), tap(model) as records:
        model(tokens)
    square = [r for r in records if r.queries.shape[0] == 1 and r.queries.shape[-2] == r.keys.shape[-2] == size]
    if not square:
        raise InputError(f"a model of the family {model.spec.family} has no attention between all words of a sentence.")
    return square


def _places(square: Sequence[AttentionRecord]) -> Places:
    return tuple((layer, head) for layer, record in enumerate(square) for head in range(record.queries.shape[1]))


def _no_such_head(places: Places, layer: int | None, head: int | None) -> str:
    asked = [f"{name} {number}" for name, number in (("layer", layer), ("head", head)) if number is not None]
    counts = [max(place[part] for place in places) + 1 for part in (0, 1)]
    layers, heads = (
        f"{count} {name}s (0 to {count - 1})" if count > 1 else f"one {name} (0)"
        for name, count in zip(("layer", "head"), counts, strict=True)
    )
    return f"there is no {', '.join(asked)}: the model has {layers} of {heads}."


def most_attended(weights: Float[np.ndarray, "heads words words"]) -> Int64[np.ndarray, "heads words"]:
    """The other word that each head attends to most from each word, counted from 1; 0 where it may see no other.

    >>> most_attended(np.array([[[1.0, 0, 0], [0.9, 0.1, 0], [0.1, 0.3, 0.6]]])).tolist()
    [[0, 1, 2]]
    """
    others = weights.copy()
    places = np.arange(weights.shape[-1])
    others[:, places, places] = 0.0
    return np.where(others.max(axis=-1) > 0, others.argmax(axis=-1) + 1, 0)


def attention_tree(weights: Between) -> tuple[int, ...]:
    """The maximum spanning tree of A + Aᵀ, hung from the word that others attend to most on average.

    >>> attention_tree(np.array([[1.0, 0, 0], [0.9, 0.1, 0], [0.8, 0.1, 0.1]]))
    (0, 1, 1)
    """
    size = len(weights)
    others = weights * (1 - np.eye(size))
    received = others.sum(axis=0) / np.maximum((others > 0).sum(axis=0), 1)
    table = np.zeros((size + 1, size + 1))
    table[1:, 1:] = others + others.T
    table[0, 1:] = received
    return tuple(best_tree(table).tolist())


def shuffled(weights: Float[np.ndarray, "heads words words"], seed: int) -> Float[np.ndarray, "heads words words"]:
    """Deal each word's attention out anew among the other words it may see: the baseline without knowledge."""
    random = np.random.default_rng(seed)
    dealt = weights.copy()
    for matrix in dealt:
        for word, row in enumerate(matrix):
            seen = np.flatnonzero((row > 0) & (np.arange(len(row)) != word))
            row[seen] = random.permutation(row[seen])
    return dealt
