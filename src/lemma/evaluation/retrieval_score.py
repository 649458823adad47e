"""The result of retrieval: recall both ways with intervals, beside chance and beside what simpler means find."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from lemma.evaluation.estimates import Estimate, Lines, lay_out, protocol_lines

FIRST = (1, 5, 10)
"""Among how many of the first the right one is looked for."""


@dataclass(frozen=True)
class OneWay:
    """From pictures to texts, or from texts to pictures: shares from 0 to 1, and what guessing comes to."""

    queries: int
    candidates: int
    recall: Mapping[int, Estimate]
    """How often a right one is among the first 1, 5 and 10."""
    median_rank: Estimate
    chance: Mapping[int, float]
    """The same of candidates in random order."""
    chance_rank: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "queries": self.queries,
            "candidates": self.candidates,
            "recall": {str(first): estimate.value for first, estimate in self.recall.items()},
            "median_rank": self.median_rank.value,
            "intervals": {
                str(name): estimate.interval
                for name, estimate in [*self.recall.items(), ("median_rank", self.median_rank)]
                if estimate.interval
            },
            "chance": {str(first): share for first, share in self.chance.items()},
            "chance_rank": self.chance_rank,
        }


@dataclass(frozen=True)
class TwoWays:
    """Both ways."""

    image_to_text: OneWay
    text_to_image: OneWay

    def __iter__(self) -> Iterator[tuple[str, OneWay]]:
        return iter((("image → text", self.image_to_text), ("text → image", self.text_to_image)))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"image_to_text": self.image_to_text.to_dict(), "text_to_image": self.text_to_image.to_dict()}


@dataclass(frozen=True)
class RetrievalScore:
    """Recall among the first 1, 5 and 10 and the median rank, both ways; chance and baselines beside them."""

    found: TwoWays
    loss: float
    """The contrastive loss in batches, nats a pair."""
    pictures: int
    texts: int
    baselines: Mapping[str, TwoWays]
    protocol: Mapping[str, Any]

    @property
    def perplexity(self) -> float:
        """exp(loss): among so many of a batch it hesitates."""
        return math.exp(min(self.loss, 700))

    @property
    def figures(self) -> dict[str, float]:
        """The figures that a training run writes down at each validation: means of both ways."""
        ways = [way for _, way in self.found]
        return {f"recall_at_{first}": sum(way.recall[first].value for way in ways) / 2 for first in (1, 10)}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that are good JSON: None stands for what is infinite or no number."""
        return {
            **self.found.to_dict(),
            "loss": self.loss if math.isfinite(self.loss) else None,
            "pictures": self.pictures,
            "texts": self.texts,
            "baselines": {name: ways.to_dict() for name, ways in self.baselines.items()},
            "protocol": dict(self.protocol),
        }

    def __str__(self) -> str:
        return "\n".join([*self._table(), "", lay_out(self._lines())])

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in self._lines())
        table = escape("\n".join(self._table()))
        return f"<pre>{table}</pre><table>{''.join(rows)}</table>"

    def _table(self) -> list[str]:
        head = f"{'':<20}" + "".join(f"{f'recall@{first}':>14}" for first in FIRST) + f"{'median rank':>14}"
        lines = [head]
        for (name, way), *others in zip(self.found, *self.baselines.values(), strict=True):
            lines += [_line(name, way), *(_interval(way) if way.median_rank.interval else [])]
            lines += [_line(f"  {other}", found) for other, (_, found) in zip(self.baselines, others, strict=True)]
            lines += [_cells("  chance", [*way.chance.values()], way.chance_rank)]
        return lines

    def _lines(self) -> Lines:
        return [
            ("loss", f"{self.loss:.4f} nats/pair"),
            ("pictures", f"{self.pictures:,}, all of them candidates for each text"),
            ("texts", f"{self.texts:,}, all of them candidates for each picture"),
            *protocol_lines(self.protocol),
        ]


def _line(name: str, way: OneWay) -> str:
    return _cells(name, [estimate.value for estimate in way.recall.values()], way.median_rank.value)


def _cells(name: str, recall: list[float], rank: float) -> str:
    return f"{name:<20}" + "".join(f"{100 * share:>12.2f} %" for share in recall) + f"{rank:>14,.1f}".rstrip()


def _interval(way: OneWay) -> list[str]:
    shares = [_bounds(estimate, 100, 1) for estimate in way.recall.values()]
    return [f"{'  95 %':<20}" + "".join(f"{one:>14}" for one in [*shares, _bounds(way.median_rank, 1, 0)])]


def _bounds(estimate: Estimate, scale: float, digits: int) -> str:
    low, high = estimate.interval or (math.nan, math.nan)
    return f"{scale * low:,.{digits}f}–{scale * high:,.{digits}f}"
