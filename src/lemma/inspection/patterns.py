"""Statistics of a matrix of attention weights, and the known pattern that it comes nearest to.

A pattern says for each row (a query) at which keys it expects the attention. Only keys that the row may see count. The
score of a head is the mean over rows of the share of attention on the pattern's keys,

    score = 1/|R| Σ_{i∈R} Σ_{j∈P_i} α_ij,

where R holds the rows in which the pattern exists and the row may see other keys too: a row without a choice says
nothing. It is compared with the score of uniform attention over the visible keys on the same rows. The nearest pattern
has the greatest gain, (score − uniform)/(1 − uniform).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Float, Int

from lemma.report.numbers import VisibleToken

MIN_ROWS = 3  # fewer are a coincidence; patterns with fewer rows count only where none has more
MIN_GAIN = 0.2  # a smaller gain is not a match
BROAD_FRACTION = 0.8  # a head that matches nothing is broad from this share of uniform attention's entropy on
MEANINGS = {
    "previous": "the token before",
    "next": "the token after",
    "itself": "the same position",
    "first": "the first token of the text, from any other token",
    "same word": "other occurrences of the same token",
    "induction": "the token after an earlier occurrence of the same token",
    "broad": f"at least {BROAD_FRACTION:.0%} of the entropy of uniform attention",
    "none": "no pattern, and not broad",
}
Mask = Bool[np.ndarray, "queries keys"]


@dataclass(frozen=True)
class Statistics:
    """Entropy, distance and other statistics of a head: means over the rows that may see at least one key."""

    entropy: float  # H(α_i) = −Σ_j α_ij ln α_ij, in nats
    uniform_entropy: float  # its maximum: ln of the number of keys the row may see
    distance: float | None  # Σ_j α_ij |i − j|, in tokens; None across two texts
    first: float  # fraction of attention on the first key

    @property
    def breadth(self) -> float:
        """Entropy as a fraction of that of uniform attention; 0 if no row sees two keys."""
        return self.entropy / self.uniform_entropy if self.uniform_entropy else 0.0


def softmax_sums(
    scores: Float[np.ndarray, "queries keys"], sink: float | None = None
) -> Float[np.ndarray, "queries two"]:
    """Return per row the maximum m of the scores and Σ exp(score − m); both are 0 for a row without allowed keys.

    `sink` is the score of an attention sink, which is added to every row.

    >>> softmax_sums(np.array([[0.0, -np.inf], [1.0, 1.0]]), sink=1.0).round(3).tolist()
    [[1.0, 1.368], [1.0, 3.0]]
    """
    scores = scores if sink is None else np.column_stack([scores, np.full(len(scores), sink, scores.dtype)])
    most = scores.max(1, initial=-np.inf)
    most = np.where(np.isfinite(most), most, 0.0).astype(scores.dtype)
    return np.stack([most, np.exp(scores - most[:, None]).sum(1)], axis=1)


def measure_weights(
    weights: Float[np.ndarray, "queries keys"], allowed: Mask, distances: Float[np.ndarray, "queries keys"] | None
) -> Statistics:
    """Measure entropy, distance and attention to the first key of a head, as means over rows that see a key.

    Args:
        weights: α_ij, which is 0 for masked keys.
        allowed: the keys that each query may attend to.
        distances: |i − j|, or None if queries and keys are tokens of two texts.

    >>> weights = np.array([[1.0, 0.0], [0.5, 0.5]])
    >>> print(measure_weights(weights, weights > 0, np.array([[0.0, 1.0], [1.0, 0.0]])))
    Statistics(entropy=0.346..., uniform_entropy=0.346..., distance=0.25, first=0.75)
    """
    rows = allowed.any(1)
    if not rows.any():
        return Statistics(0.0, 0.0, None if distances is None else 0.0, 0.0)
    weights = weights[rows].astype(np.float64)
    entropies = -(weights * np.log(np.where(weights > 0, weights, 1.0))).sum(1)
    return Statistics(
        entropy=float(entropies.mean()) + 0.0,  # no −0
        uniform_entropy=float(np.log(allowed[rows].sum(1)).mean()),
        distance=None if distances is None else float((weights * distances[rows]).sum(1).mean()),
        first=float(weights[:, 0].mean()),
    )


@dataclass(frozen=True)
class PatternMatch:
    """The score of a head for one pattern, and that of uniform attention on the same rows."""

    pattern: str
    score: float
    uniform: float
    rows: int

    @property
    def gain(self) -> float:
        """Gain over uniform attention, (score − uniform) / (1 − uniform): at most 1; 0 without rows."""
        return (self.score - self.uniform) / (1 - self.uniform) if self.rows else 0.0


def match_pattern(
    pattern: str, weights: Float[np.ndarray, "queries keys"], allowed: Mask, pattern_mask: Mask
) -> PatternMatch:
    """Score how well a head follows a pattern: its mean attention to the keys in `pattern_mask`.

    The mean is over rows that may attend to a key of the pattern and to another key.

    >>> diagonal, everything = np.eye(2, dtype=bool), np.ones((2, 2), dtype=bool)
    >>> match_pattern("itself", np.array([[0.75, 0.25], [0.5, 0.5]]), everything, diagonal)
    PatternMatch(pattern='itself', score=0.625, uniform=0.5, rows=2)
    """
    matching = pattern_mask & allowed
    rows = matching.any(1) & (allowed & ~matching).any(1)
    if not rows.any():
        return PatternMatch(pattern, 0.0, 0.0, 0)
    matching, allowed = matching[rows], allowed[rows]
    score = np.where(matching, weights[rows], 0.0).sum(1).mean()
    return PatternMatch(pattern, float(score), float((matching.sum(1) / allowed.sum(1)).mean()), len(matching))


def best_pattern(matches: Sequence[PatternMatch]) -> PatternMatch | None:
    """Return the match with the highest gain among those with `MIN_ROWS` rows, else among those with any.

    None if no match has rows.
    """
    candidates = [match for match in matches if match.rows >= MIN_ROWS] or [match for match in matches if match.rows]
    return max(candidates, key=lambda match: match.gain, default=None)


def pattern_name(match: PatternMatch | None, breadth: float) -> str:
    """Return the pattern of the match if its gain is large enough; else "broad" if `breadth` is large, or "none".

    `breadth` is the entropy as a fraction of that of uniform attention.
    """
    if match and match.gain >= MIN_GAIN:
        return match.pattern
    return "broad" if breadth >= BROAD_FRACTION else "none"


def key_distances(queries: Sequence[VisibleToken], keys: Sequence[VisibleToken]) -> Int[np.ndarray, "queries keys"]:
    """Return how many tokens each key lies before each query; negative for later keys."""
    return np.subtract.outer([word.index for word in queries], [word.index for word in keys])


@lru_cache(maxsize=8)  # all heads of a text share it
def pattern_masks(queries: tuple[VisibleToken, ...], keys: tuple[VisibleToken, ...], cross: bool) -> dict[str, Mask]:
    """Return the mask of keys that each pattern attends to, by name of the pattern.

    If `cross`, queries and keys belong to two texts, and only patterns that need no common order are returned.
    """
    numbers: dict[object, int] = {}
    rows, columns = ([numbers.setdefault(word.identity, len(numbers)) for word in side] for side in (queries, keys))
    same = np.equal.outer(rows, columns)
    at_first = np.array([word.index == 0 for word in keys])
    if cross:
        return {"first": np.tile(at_first, (len(queries), 1)), "same word": same}
    before = key_distances(queries, keys)
    earlier = same & (before > 0)
    return {
        "previous": before == 1,
        "next": before == -1,
        "itself": before == 0,
        "first": np.array([word.index != 0 for word in queries])[:, None] & at_first,
        "same word": same & (before != 0),
        "induction": np.pad(earlier, ((0, 0), (1, 0)))[:, :-1],  # the key before is an earlier occurrence
    }
