"""From words to the tokens of any tokenizer, and from attention between tokens to attention between words.

Attention to a word is the sum over its tokens; attention from a word is the mean over its tokens (Clark et al. 2019).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int64

from lemma.data import Tokenizer


@dataclass(frozen=True)
class Alignment:
    """The tokens of some words; word i owns the tokens from spans[i][0] up to spans[i][1]."""

    ids: Int64[np.ndarray, "tokens"]
    spans: tuple[tuple[int, int], ...]
    left_out: int = 0
    """Characters that the tokenizer could not express."""


def align(words: Sequence[str], tokenizer: Tokenizer) -> Alignment:
    """Encode words one by one, each with the space before it, which belongs to it."""
    ids: list[np.ndarray] = []
    spans: list[tuple[int, int]] = []
    place = left_out = 0
    for number, word in enumerate(words):
        own, missing = tokenizer.encode_known(f" {word}" if number else word)
        ids.append(own)
        spans.append((place, place + len(own)))
        place, left_out = place + len(own), left_out + missing
    return Alignment(np.concatenate(ids) if ids else np.zeros(0, dtype=np.int64), tuple(spans), left_out)


def between_words(
    weights: Float[np.ndarray, "heads tokens tokens"], spans: Sequence[tuple[int, int]]
) -> Float[np.ndarray, "heads words words"]:
    """Turn attention between tokens (from, to) into attention between words; a word without tokens has none.

    >>> between_words(np.array([[[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.2, 0.6]]]), [(0, 2), (2, 3)]).tolist()
    [[[1.0, 0.0], [0.4, 0.6]]]
    """
    owners = np.zeros((len(spans), weights.shape[-1]))
    for word, (start, stop) in enumerate(spans):
        owners[word, start:stop] = 1.0
    means = owners / np.maximum(owners.sum(1, keepdims=True), 1)
    return means @ weights @ owners.T
