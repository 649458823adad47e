"""One attention head on one text, and all that was seen of a model: plain values, which other files draw."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from lemma.looking.patterns import Match, name_of, nearest
from lemma.looking.statistics import Statistics
from lemma.looking.words import Word


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
