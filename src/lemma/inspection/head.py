"""One attention head on one text: weights, statistics, patterns."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lemma.errors import InputError
from lemma.layers.recording import AttentionRecord
from lemma.report.numbers import Word, counted

# Which text asks and which is asked, in one call of attention.


Words = tuple[Word, ...]
CROSS = ("cross", "encoder_attn", "encdec", "multihead_attn")  # how models call attention to another text


def sides(record: AttentionRecord, tokens: Words, source: Words) -> tuple[Words, Words, bool]:
    """Return the words that ask, those that are asked, and whether the two are different texts.

    Their numbers tell the texts apart; where both texts are equally long, the module's path does. A model that reads
    windows gives its last words.
    """
    new, known = record.queries.shape[-2], record.keys.shape[-2]
    if not source:
        return _last(tokens, new, record), _last(tokens, known, record), False
    name = record.name.lower()
    if new == known and (new != len(tokens) or (new == len(source) and _in_encoder(name))):
        return _last(source, new, record), _last(source, known, record), False
    if known == len(source) and (known != new or any(word in name for word in CROSS)):
        return _last(tokens, new, record), source, True
    return _last(tokens, new, record), _last(tokens, known, record), False


def _in_encoder(name: str) -> bool:
    return "encoder" in name.split(".")


def _last(words: Words, count: int, record: AttentionRecord) -> Words:
    if count > len(words):
        raise InputError(
            f"'{record.name}' attends with {counted(count, 'token')}, but got {counted(len(words), 'word')}. "
            "Give one word for each token, and source_words for the text of an encoder."
        )
    return words[len(words) - count :]


# What one matrix of attention weights is like, in a few numbers.


@dataclass(frozen=True)
class Statistics:
    """Means over the rows that may see at least one key."""

    entropy: float
    """H(α_i) = −Σ_j α_ij ln α_ij, in nats."""
    uniform_entropy: float
    """The most it could be: ln of the number of keys the row may see."""
    distance: float | None
    """Σ_j α_ij |i − j|, in tokens; none across two texts."""
    first: float
    """The share of attention on the first key."""

    @property
    def breadth(self) -> float:
        """The entropy as a share of uniform attention's; 0 where no row has a choice."""
        return self.entropy / self.uniform_entropy if self.uniform_entropy else 0.0


def statistics(
    weights: Float[np.ndarray, "new known"],
    allowed: Bool[np.ndarray, "new known"],
    distances: Float[np.ndarray, "new known"] | None,
) -> Statistics:
    """Measure a head's weights; `distances` is |i − j|, or None where the two texts have no common order.

    >>> weights = np.array([[1.0, 0.0], [0.5, 0.5]])
    >>> print(statistics(weights, weights > 0, np.array([[0.0, 1.0], [1.0, 0.0]])))
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


# Patterns that attention heads are known for, and how much of a head's attention lies on them.
#
# A pattern says for each row (the token that asks) at which places it expects the attention. Only keys that the row
# may
# see count. The score of a head is the mean over rows of the share of attention on the pattern's places,
#
#     score = 1/|R| Σ_{i∈R} Σ_{j∈P_i} α_ij,
#
# where R holds the rows in which the pattern has a place and the row may see other keys too: a row with no choice
# says
# nothing. Beside it stands what uniform attention over the visible keys would give on the same rows. The best pattern
# is
# the one furthest on the way from there to all of the attention, (score − uniform)/(1 − uniform).


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


# One attention head on one text, and all that was seen of a model: plain values, which other files draw.


@dataclass(frozen=True, eq=False)
class Head:
    """One head: who asks, who is asked, the weights, and what they were made from.

    α_ij = softmax_j(scale · q_i·k_j + added_ij) over the allowed keys j; the head's output is Σ_j α_ij v_j.
    """

    layer: int
    head: int
    name: str
    """The path of the attention inside the model."""
    asking: tuple[Word, ...]
    known: tuple[Word, ...]
    cross: bool
    """Whether the keys come from another text than the queries."""
    weights: Float[np.ndarray, "new known"]
    scores: Float[np.ndarray, "new known"]
    """Scaled, with all that is added; −∞ where a key may not be seen."""
    allowed: Bool[np.ndarray, "new known"]
    added: Float[np.ndarray, "new known"] | None
    """What is added to the scaled scores of allowed keys (ALiBi, relative biases), if anything is."""
    queries: Float[np.ndarray, "new width"]
    keys: Float[np.ndarray, "known width"]
    values: Float[np.ndarray, "known value_width"] | None
    scale: float
    statistics: Statistics
    matches: tuple[Match, ...]
    """All patterns that these tokens could show, not only the best."""

    @property
    def title(self) -> str:
        """What to call it."""
        return f"Layer {self.layer}, head {self.head}"

    @property
    def nearest(self) -> Match | None:
        """The pattern it comes nearest to, whether or not that is near."""
        return nearest(self.matches)

    @property
    def pattern(self) -> str:
        """The pattern it fits best; `broad` or `none` if it fits none."""
        return name_of(self.nearest, self.statistics.breadth)

    @property
    def scored(self) -> Match | None:
        """The nearest pattern, where it is a match."""
        return self.nearest if self.nearest and self.nearest.pattern == self.pattern else None


@dataclass(frozen=True, eq=False)
class Seen:
    """The heads of a model on one text."""

    model: str
    """What the model is called."""
    tokens: tuple[Word, ...]
    source: tuple[Word, ...]
    """The other text, where there is one that the tokens attend to."""
    heads: tuple[Head, ...]
    notes: tuple[str, ...] = ()
    """What was left out, and why."""

    def layers(self) -> dict[int, list[Head]]:
        """The heads by their layer."""
        found: dict[int, list[Head]] = {}
        for head in self.heads:
            found.setdefault(head.layer, []).append(head)
        return found

    def clearest(self) -> Head:
        """The head that fits its pattern best, or the first."""
        return max(self.heads, key=lambda head: head.scored.gain if head.scored else 0.0)


# From one record of attention to its heads: the weights worked out again, measured and matched with patterns.


MASKED = -1e30  # some models add the least number there is instead of −∞


def heads_of(
    number: int, record: AttentionRecord, tokens: tuple[Word, ...], source: tuple[Word, ...], only: int | None
) -> Iterator[Head]:
    """The heads of one call of attention; of several rows of a batch, the last is looked at."""
    asking, known, cross = sides(record, tokens, source)
    record = _last_row(record)
    scores, added = _array(record.scores()), _added(record)
    if np.isnan(scores).any():
        raise InputError(f"layer {number} ({record.name}): scores that are no numbers (NaN). The weights are damaged.")
    common = {"layer": number, "name": record.name, "scale": float(record.scale)}
    common |= {"asking": asking, "known": known, "cross": cross}
    for index in range(len(scores)) if only is None else [only]:
        parts = {"added": None if added is None else added[index], **_vectors(record, index)}
        yield Head(head=index, **common, **parts, **_measured(scores[index], asking, known, cross))


def _vectors(record: AttentionRecord, index: int) -> dict[str, Any]:
    values = None if record.values is None else _array(record.values)[index]
    return {"queries": _array(record.queries)[index], "keys": _array(record.keys)[index], "values": values}


def _measured(
    scores: Float[np.ndarray, "new known"], asking: tuple[Word, ...], known: tuple[Word, ...], cross: bool
) -> dict[str, Any]:
    """Weights from scores, and all that is said about them."""
    allowed = scores > MASKED
    scores = np.where(allowed, scores, -np.inf)
    weights = _softmax(scores)
    places = places_of(asking, known, cross)
    return {
        "scores": scores,
        "allowed": allowed,
        "weights": weights,
        "statistics": statistics(weights, allowed, None if cross else np.abs(distances(asking, known))),
        "matches": tuple(match(name, weights, allowed, where) for name, where in places.items()),
    }


def _last_row(record: AttentionRecord) -> AttentionRecord:
    """The last row of a batch, in single precision or better."""
    precision = torch.promote_types(record.queries.dtype, torch.float32)
    fields = {field: getattr(record, field) for field in ("queries", "keys", "values", "bias")}
    kept = {field: _row(value).to("cpu", precision) for field, value in fields.items() if value is not None}
    line = None if record.line is None else record.line.to("cpu", precision)
    return replace(record, **kept, line=line)


def _row(tensor: Tensor) -> Tensor:
    return tensor[-1:] if tensor.dim() == 4 else tensor


def _array(tensor: Tensor) -> np.ndarray:
    return tensor[-1].numpy()


def _softmax(scores: Float[np.ndarray, "new known"]) -> Float[np.ndarray, "new known"]:
    """Row by row, in single precision or better; a row that may see nothing is zero."""
    most = scores.max(1, keepdims=True, initial=-np.inf)
    powers = np.exp(scores - np.where(np.isfinite(most), most, 0.0))
    total = powers.sum(1, keepdims=True)
    return np.divide(powers, total, out=np.zeros_like(powers), where=total > 0)


def _added(record: AttentionRecord) -> Float[np.ndarray, "heads new known"] | None:
    """What is added to the scaled scores where a key may be seen; None where that is nothing anywhere."""
    shape = (1, record.queries.shape[1], record.queries.shape[2], record.keys.shape[2])
    bias = torch.zeros(shape) if record.bias is None else record.bias.expand(shape)
    if record.line is not None:
        bias = bias + record.by_distance(record.steps())
    finite = bias.masked_fill(bias <= MASKED, 0.0)
    return _array(finite) if finite.any() else None


# The heads as plain values: a dictionary, JSON, and a table of comma-separated values.


MOST_NUMBERS = 200_000  # weights in a dictionary; beyond it they are left out, and it says so


def as_dict(seen: Seen) -> dict[str, Any]:
    """Return everything but the vectors; weights only where they are few enough to be read by anyone."""
    with_weights = sum(head.weights.size for head in seen.heads) <= MOST_NUMBERS
    notes = [*seen.notes] if with_weights else [*seen.notes, "Weights are left out: choose a layer and a head."]
    return {
        "model": seen.model,
        "tokens": [_token(word) for word in seen.tokens],
        "source": [_token(word) for word in seen.source],
        "notes": notes,
        "heads": [_head(head) | {"weights": head.weights.tolist() if with_weights else None} for head in seen.heads],
    }


def as_json(seen: Seen) -> str:
    """The same, as JSON."""
    return json.dumps(as_dict(seen), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def as_csv(seen: Seen) -> str:
    """The table, one row a head."""
    rows = [row(head) for head in seen.heads]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def row(head: Head) -> dict[str, Any]:
    """The numbers of one head under the names they have everywhere."""
    nearest = head.nearest
    return {
        "layer": head.layer,
        "head": head.head,
        "name": head.name,
        "entropy": head.statistics.entropy,
        "uniform_entropy": head.statistics.uniform_entropy,
        "distance": head.statistics.distance,
        "first": head.statistics.first,
        "pattern": head.pattern,
        "nearest": nearest.pattern if nearest else None,
        "score": nearest.score if nearest else None,
        "uniform": nearest.uniform if nearest else None,
        "rows": nearest.rows if nearest else None,
    }


def _token(word: Word) -> dict[str, Any]:
    return {"index": word.index, "text": word.text}


def _head(head: Head) -> dict[str, Any]:
    patterns = {one.pattern: {"score": one.score, "uniform": one.uniform, "rows": one.rows} for one in head.matches}
    return row(head) | {
        "cross": head.cross,
        "masked": not head.allowed.all(),
        "scale": head.scale,
        "patterns": patterns,
    }
