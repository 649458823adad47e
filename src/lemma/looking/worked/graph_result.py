"""What a graph worked by hand holds, how the claim of the source is judged on it, and how it is shown."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lemma.looking.words import counted
from lemma.looking.worked.blocks import Block, Blocks, Heading, Words
from lemma.looking.worked.graph_case import GraphCase
from lemma.looking.worked.graph_given import GivenGraph
from lemma.looking.worked.graph_steps import GraphSteps
from lemma.looking.worked.graph_views import GraphViews
from lemma.looking.worked.numerals import numeral, printable
from lemma.looking.worked.result import Worked

MOST_SHOWN = 12
"""Nodes of a graph whose matrices are printed; of a larger one where all is asked for."""
HINT = "--full prints the matrices"
CLAIM = "After D̃^(−1/2) Ã D̃^(−1/2) the rows are normalised: each sums to one."
HOLDS = "D̃⁻¹Ã is the one whose rows sum to one on every graph. What holds of Â: its spectral norm is 1."


@dataclass(frozen=True, eq=False)
class WorkedGraph(Worked):
    """A graph with its four matrices. A large one is summed up unless `full`."""

    case: GraphCase
    source: str
    """The case as it was written."""
    given: GivenGraph
    steps: GraphSteps
    full: bool = False
    decimals: int = 4

    @property
    def heading(self) -> str:
        """The title of the case."""
        return printable(self.case.title) or "Graph convolution by hand"

    @property
    def verdict(self) -> str:
        """Whether the claim is right on this graph, and what holds instead."""
        if self.steps.normalised:
            same = "all degrees are the same" if self.steps.regular else "every connected part has one degree only"
            return (
                f"Right on this graph, since {same}; wrong of graphs in general: where neighbours differ in degree, "
                f"not all rows sum to one. {HOLDS}"
            )
        traits = self.steps.traits["symmetric"]
        lowest, highest = (numeral(value, self.decimals) for value in (traits.lowest_sum, traits.highest_sum))
        return (
            f"Wrong: the rows of Â sum to {lowest} up to {highest} here. All of them sum to one exactly if every "
            f"connected part is regular: its nodes have all the same degree. {HOLDS}"
        )

    def shown(self) -> Blocks:
        """Every matrix of a small graph; of a large one what they are, and what they do."""
        return [*self._blocks(), *([Heading(HINT)] if self._cut else [])]

    def drawn(self) -> Blocks:
        """The same."""
        return self._blocks()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, none of them rounded."""
        weights = self.given.layer
        return {
            "case": self.case.to_dict(),
            "notes": list(self.given.notes),
            "nodes": list(self.given.names),
            "edges": self.given.edges,
            **self.steps.to_dict(),
            "layer": None if weights is None else self.steps.layer(weights).tolist(),
            "claim": {"said": CLAIM, "right": self.steps.normalised, "verdict": self.verdict},
        }

    def writers(self) -> dict[str, Callable[[], str]]:
        """The usual files, and the case itself to start another from."""
        return super().writers() | {".toml": lambda: self.source}

    @property
    def _cut(self) -> bool:
        """Whether matrices are left out."""
        return not self.full and len(self.given.names) > MOST_SHOWN

    def _blocks(self) -> list[Block]:
        views = GraphViews(self.given, self.steps, self.decimals)
        judged = [Heading("The claim"), Words(CLAIM), Words(self.verdict)]
        details = [] if self._cut else views.matrices()
        layer = [] if self._cut else views.layer()
        return [*self._begin(), *details, *views.traits(), *judged, *views.scales(), *layer]

    def _begin(self) -> list[Block]:
        degrees = self.steps.degrees
        sizes = f"{counted(len(self.given.names), 'node')}, {counted(self.given.edges, 'edge')}"
        rounding = f"Printed to {counted(self.decimals, 'decimal')}; nothing is rounded on the way."
        between = f"degrees with the loop from {numeral(degrees.min(), 0)} to {numeral(degrees.max(), 0)}"
        return [Heading(self.heading, 1), Words(f"{sizes}; {between}. {rounding}"), *map(Words, self.given.notes)]
