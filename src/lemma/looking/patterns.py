"""Patterns that attention heads are known for, and how much of a head's attention lies on them.

A pattern says for each row (the token that asks) at which places it expects the attention. Only keys that the row may
see count. The score of a head is the mean over rows of the share of attention on the pattern's places,

    score = 1/|R| Σ_{i∈R} Σ_{j∈P_i} α_ij,

where R holds the rows in which the pattern has a place and the row may see other keys too: a row with no choice says
nothing. Beside it stands what uniform attention over the visible keys would give on the same rows. The best pattern is
the one furthest on the way from there to all of the attention, (score − uniform)/(1 − uniform).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Float, Int

from lemma.looking.words import Word

Places = Bool[np.ndarray, "new known"]
ENOUGH_ROWS = 3  # fewer are a coincidence; patterns with so few count only where none has more
ENOUGH_GAIN = 0.2  # less of the way from uniform to all is called no match
BROAD = 0.8  # a head that matches nothing is broad from this share of uniform attention's entropy on


@dataclass(frozen=True)
class Match:
    """How well a head fits one pattern, and what uniform attention would reach on the same rows."""

    pattern: str
    score: float
    uniform: float
    rows: int

    @property
    def gain(self) -> float:
        """How far the score lies on the way from uniform attention to all of it; at most 1."""
        return (self.score - self.uniform) / (1 - self.uniform) if self.rows else 0.0


def match(pattern: str, weights: Float[np.ndarray, "new known"], allowed: Places, places: Places) -> Match:
    """Score one pattern: the mean share of attention on its places, over the rows where it exists.

    >>> here, all_seen = np.eye(2, dtype=bool), np.ones((2, 2), dtype=bool)
    >>> match("itself", np.array([[0.75, 0.25], [0.5, 0.5]]), all_seen, here)
    Match(pattern='itself', score=0.625, uniform=0.5, rows=2)
    """
    inside = places & allowed
    rows = inside.any(1) & (allowed & ~inside).any(1)
    if not rows.any():
        return Match(pattern, 0.0, 0.0, 0)
    inside, allowed = inside[rows], allowed[rows]
    score = np.where(inside, weights[rows], 0.0).sum(1).mean()
    return Match(pattern, float(score), float((inside.sum(1) / allowed.sum(1)).mean()), len(inside))


def nearest(matches: Sequence[Match]) -> Match | None:
    """The pattern with the greatest gain among those that exist in enough rows; None where no pattern exists."""
    candidates = [one for one in matches if one.rows >= ENOUGH_ROWS] or [one for one in matches if one.rows]
    return max(candidates, key=lambda one: one.gain, default=None)


def name_of(found: Match | None, breadth: float) -> str:
    """What to call a head: its nearest pattern if that is near enough, `broad` if its entropy is, else `none`."""
    if found and found.gain >= ENOUGH_GAIN:
        return found.pattern
    return "broad" if breadth >= BROAD else "none"


@lru_cache(maxsize=8)  # every head of a text asks for the same
def places_of(asking: tuple[Word, ...], known: tuple[Word, ...], cross: bool) -> dict[str, Places]:
    """The places of every pattern for these tokens; across two texts only those that need no common order."""
    if cross:
        return {"first": _first(asking, known, cross), "same word": _same(asking, known)}
    rules: dict[str, Callable[[], Places]] = {
        "previous": lambda: distances(asking, known) == 1,
        "next": lambda: distances(asking, known) == -1,
        "itself": lambda: distances(asking, known) == 0,
        "first": lambda: _first(asking, known, cross),
        "same word": lambda: _same(asking, known) & (distances(asking, known) != 0),
        "induction": lambda: _after_earlier(asking, known),
    }
    return {name: rule() for name, rule in rules.items()}


MEANINGS = {
    "previous": "the token before",
    "next": "the token after",
    "itself": "the same place",
    "first": "the text's first token, asked from any other",
    "same word": "other occurrences of the same token",
    "induction": "the token after an earlier occurrence of the same token",
    "broad": f"at least {BROAD:.0%} of the entropy of uniform attention",
    "none": "none of these, and not broad",
}


def distances(asking: Sequence[Word], known: Sequence[Word]) -> Int[np.ndarray, "new known"]:
    """How far each key lies before each query."""
    return np.subtract.outer([word.index for word in asking], [word.index for word in known])


def _first(asking: Sequence[Word], known: Sequence[Word], cross: bool) -> Places:
    at_first = np.array([word.index == 0 for word in known])
    others = np.array([cross or word.index != 0 for word in asking])
    return others[:, None] & at_first[None, :]


def _same(asking: Sequence[Word], known: Sequence[Word]) -> Places:
    """Which key is the same token as which query."""
    numbers: dict[object, int] = {}
    rows = [numbers.setdefault(word.identity, len(numbers)) for word in asking]
    columns = [numbers.setdefault(word.identity, len(numbers)) for word in known]
    return np.equal.outer(rows, columns)


def _after_earlier(asking: Sequence[Word], known: Sequence[Word]) -> Places:
    """Where the key before is an earlier occurrence of the asking token."""
    earlier = _same(asking, known) & (distances(asking, known) > 0)
    return np.pad(earlier, ((0, 0), (1, 0)))[:, :-1]
