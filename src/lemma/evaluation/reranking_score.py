"""The result of looking twice: recall before and after, what was gained, and how much there was to gain."""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

from lemma.evaluation.estimates import Estimate, Lines, lay_out
from lemma.evaluation.retrieval_score import RetrievalScore


@dataclass(frozen=True)
class Gain:
    """What the new order gains one way; shares from 0 to 1."""

    recall: Estimate
    """Recall at 1 after less that before, by a paired bootstrap."""
    better: int
    """Queries whose right one comes first only now."""
    worse: int
    """Queries whose right one came first only before."""
    ceiling: float
    """How often a right one is among the few that are ranked again at all: recall at 1 cannot become more."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        found = {"recall_at_1": self.recall.value, "interval": self.recall.interval}
        return {**found, "better": self.better, "worse": self.worse, "ceiling": self.ceiling}

    def __str__(self) -> str:
        bounds = self.recall.interval
        between = f"  (95 %: {100 * bounds[0]:+.2f} to {100 * bounds[1]:+.2f})" if bounds else ""
        return f"{100 * self.recall.value:+.2f} points{between}"


@dataclass(frozen=True)
class RerankingScore:
    """Recall both ways of the new order, beside that of the dual encoder alone."""

    score: RetrievalScore
    candidates: int
    """How many findings are ranked again."""
    image_to_text: Gain
    text_to_image: Gain

    @property
    def loss(self) -> float:
        """−log p(own) among the few and the right one, mean of both ways, in nats."""
        return self.score.loss

    @property
    def perplexity(self) -> float:
        """exp(loss): among so many of the few it hesitates."""
        return self.score.perplexity

    @property
    def figures(self) -> dict[str, float]:
        """The figures that a training run writes down at each validation."""
        gain = (self.image_to_text.recall.value + self.text_to_image.recall.value) / 2
        return {**self.score.figures, "gain_at_1": gain}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        gains = {"image_to_text": self.image_to_text.to_dict(), "text_to_image": self.text_to_image.to_dict()}
        return {**self.score.to_dict(), "candidates": self.candidates, "gain": gains}

    def __str__(self) -> str:
        return f"{self.score}\n\n{lay_out(self._lines())}"

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in self._lines())
        return f"{self.score._repr_html_()}<table>{''.join(rows)}</table>"

    def _ways(self) -> Iterator[tuple[str, Gain]]:
        return iter((("image → text", self.image_to_text), ("text → image", self.text_to_image)))

    def _lines(self) -> Lines:
        lines = [("ranked again", f"the first {self.candidates} of the dual encoder")]
        for way, gain in self._ways():
            lines.append((f"gain, {way}", f"{gain} in recall@1"))
            lines.append(("", f"{gain.better:,} put first only now, {gain.worse:,} only before"))
            lines.append(("", f"at most {100 * gain.ceiling:.2f} %: so many are among the {self.candidates}"))
        return lines
