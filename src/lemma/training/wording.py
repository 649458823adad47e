"""Captions worded a little otherwise every time they are learned: a stray token slips in, as in "a red heart"."""

import numpy as np
from jaxtyping import Int64

from lemma.data import Rows

STRAY = 0.3
"""At strength 1: how often a caption gets a token that is not its own."""
DRAW = 3
"""What tells these draws from others of the same seed and step."""

Tokens = Int64[np.ndarray, "batch longest"]


def reworded(tokens: Tokens, strays: Int64[np.ndarray, "strays"], seed: int, step: int, strength: float) -> Tokens:
    """Let one of the strays into captions, where there is room for it: behind their first token, before their last.

    What stands first and last stays there, be it a mark or not. All of it is a function of seed and step.
    """
    if not len(strays):
        return tokens
    random = np.random.default_rng([seed, step, DRAW])
    lengths, longest = (tokens >= 0).sum(1), tokens.shape[1]
    wanted = (random.uniform(0, 1, len(tokens)) < STRAY * strength) & (lengths >= 2) & (lengths < longest)
    places = 1 + random.integers(0, np.maximum(1, lengths - 1))
    guests = strays[random.integers(0, len(strays), len(tokens))]
    return _lengthened(tokens, np.where(wanted, places, longest), guests)


def inner_tokens(rows: Rows) -> Int64[np.ndarray, "inner"]:
    """All tokens that stand neither first nor last in their row: what may stray into others."""
    inner = np.ones(len(rows.tokens), dtype=bool)
    there = rows.lengths > 0
    inner[rows.bounds[:-1][there]] = inner[rows.bounds[1:][there] - 1] = False
    return rows.tokens[inner].astype(np.int64)


def _lengthened(tokens: Tokens, places: Int64[np.ndarray, "batch"], guests: Int64[np.ndarray, "batch"]) -> Tokens:
    """Put a guest at its place in each row, and move the rest by one; a place past the end is nowhere."""
    column = np.arange(tokens.shape[1])
    behind = column > places[:, None]
    moved = np.take_along_axis(tokens, np.where(behind, column - 1, column), axis=1)
    return np.where(column == places[:, None], guests[:, None], moved)
