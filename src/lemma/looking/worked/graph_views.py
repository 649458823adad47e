"""A graph's matrices as blocks: each formula, the numbers that go through it, and what it does to features."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from lemma.looking.worked.blocks import Block, Grid, Heading, Matrix, Words
from lemma.looking.worked.graph_given import GivenGraph
from lemma.looking.worked.graph_steps import NEAR, SYMBOLS, GraphSteps, Traits
from lemma.looking.worked.numerals import needed_decimals, numeral, times

LARGE = 1000
"""Past this a number in a sentence needs no decimals."""


class GraphViews:
    """Makes the blocks of one graph."""

    def __init__(self, given: GivenGraph, steps: GraphSteps, decimals: int) -> None:
        self.given, self.steps, self.decimals = given, steps, decimals

    def matrices(self) -> list[Block]:
        """A, Ã, the degrees, Â with the arithmetic of the rows in focus, and D̃⁻¹Ã, each with its row sums."""
        return [
            Heading("The graph: A, and Ã = A + I"),
            self._square("adjacency"),
            self._square("loops"),
            Heading("Degrees: d̃ is the row sum of Ã"),
            self._degrees(),
            Heading("Â = D̃^(−1/2) Ã D̃^(−1/2): 1/√(d̃_i d̃_j) where Ã has a one"),
            Words("\n".join(line for node in self.given.focus for line in self._entries(node))),
            self._square("symmetric"),
            Heading("D̃⁻¹Ã: every row of Ã over its own degree"),
            self._square("rows"),
        ]

    def traits(self) -> list[Block]:
        """Row sums, symmetry and norms of the four."""
        header = ("", "row sums", "symmetric", "largest |eigenvalue|", "spectral norm")
        rows = tuple((SYMBOLS[name], *self._trait(traits)) for name, traits in self.steps.traits.items())
        about = (
            "The spectral norm of a symmetric matrix is its largest |eigenvalue|; that of D̃⁻¹Ã, which has the "
            "eigenvalues of Â, is the root of the largest eigenvalue of MᵀM."
        )
        return [Heading("What each of them is"), Grid("", header, rows), Words(about)]

    def scales(self) -> list[Block]:
        """What multiplying again and again does to the features."""
        return [
            Heading("What each does to the scale of features"),
            Words(f"X is {self._about_features()}."),
            self._scale("‖MᵏX‖, the root of the sum of squares", 0),
            self._scale("the largest |entry| of MᵏX", 1),
            Words("\n".join(self._said())),
        ]

    def layer(self) -> list[Block]:
        """Â X W, if there is a W: the products of the rows in focus, and the whole."""
        weights = self.given.layer
        if weights is None:
            return []
        columns = _numbered("out", weights.shape[1])
        features = _numbered("x", weights.shape[0])
        mapped = self.given.features @ weights
        return [
            Heading("One layer: Â X W"),
            Matrix("X", self.given.names, features, self.given.features, decimals=self.decimals),
            Matrix("W", features, columns, weights, decimals=self.decimals),
            Matrix("X W", self.given.names, columns, mapped, decimals=self.decimals),
            Words("\n".join(line for node in self.given.focus for line in self._mixed(node, mapped))),
            Matrix("Â X W", self.given.names, columns, self.steps.layer(weights), decimals=self.decimals),
        ]

    def _square(self, name: str) -> Matrix:
        matrix = self.steps.matrices[name]
        names, sums = self.given.names, tuple(matrix.sum(axis=1).tolist())
        return Matrix(SYMBOLS[name], names, names, matrix, sums=sums, decimals=self.decimals)

    def _degrees(self) -> Grid:
        columns = (self.steps.adjacency.sum(axis=1), self.steps.degrees, self.steps.degrees**-0.5)
        written = [self._column(column) for column in columns]
        return Grid("", ("node", "edges", "d̃", "1/√d̃"), tuple(zip(self.given.names, *written, strict=True)))

    def _entries(self, node: int) -> Iterator[str]:
        """The arithmetic of a row of Â."""
        names, degrees = self.given.names, self.steps.degrees
        row, own = self.steps.matrices["symmetric"][node], numeral(degrees[node], 0)
        places = [int(place) for place in np.flatnonzero(self.steps.loops[node])]
        for place in places:
            other = numeral(degrees[place], 0)
            yield f"Â[{names[node]}, {names[place]}] = 1/√({own}·{other}) = {self._number(row[place])}"
        added = " + ".join(self._number(row[place]) for place in places)
        yield f"row {names[node]}: {added} = {self._number(row.sum())}"

    def _mixed(self, node: int, mapped: Float[np.ndarray, "nodes out"]) -> Iterator[str]:
        """The arithmetic of a node's first output: its neighbours' and its own, weighted."""
        row = self.steps.matrices["symmetric"][node]
        places = np.flatnonzero(self.steps.loops[node])
        added = " + ".join(f"{self._number(row[place])}·{self._factor(mapped[place, 0])}" for place in places)
        yield f"{self.given.names[node]}, out_1: {added} = {self._number(row @ mapped[:, 0])}"

    def _trait(self, traits: Traits) -> tuple[str, ...]:
        sums = [self._number(value) for value in (traits.lowest_sum, traits.highest_sum)]
        said = sums[0] if abs(traits.lowest_sum - traits.highest_sum) < NEAR else f"{sums[0]} to {sums[1]}"
        return said, "yes" if traits.symmetric else "no", self._number(traits.radius), self._number(traits.norm)

    def _about_features(self) -> str:
        nodes, width = self.given.features.shape
        if np.array_equal(self.given.features, np.ones((nodes, 1))):
            return "a one at every node"
        if np.array_equal(self.given.features, np.eye(nodes)):
            return "a unit vector for every node, so that MᵏX is Mᵏ itself"
        return f"given: {nodes}×{width}"

    def _scale(self, title: str, which: int) -> Grid:
        columns = [self._column(scale[:, which]) for scale in self.steps.scales.values()]
        powers = [str(power) for power in range(self.steps.powers + 1)]
        return Grid(title, ("k", *SYMBOLS.values()), tuple(zip(powers, *columns, strict=True)))

    def _said(self) -> Iterator[str]:
        """What the columns show, in words."""
        traits, power = self.steps.traits, self.steps.powers
        loops, rows = traits["loops"].norm, traits["rows"].norm
        if not np.any(self.given.features):
            yield "X is 0, and stays so."
            return
        grown = {name: scale[-1, 0] / scale[0, 0] for name, scale in self.steps.scales.items()}
        yield (
            f"Ã: {self._number(grown['loops'])} times the norm after {times(power)}; a product multiplies by at most "
            f"{self._number(loops)}, its largest eigenvalue, and in the long run nearly always by that."
        )
        yield f"Â: {self._number(grown['symmetric'])} times; its spectral norm is 1, so that the norm never grows."
        yield (
            f"D̃⁻¹Ã: {self._number(grown['rows'])} times; every entry is a mean, so that the largest never grows; its "
            f"spectral norm is {self._number(rows)}."
        )

    def _column(self, values: Float[np.ndarray, "rows"]) -> list[str]:
        decimals = needed_decimals(values.tolist(), self.decimals)
        return [numeral(value, decimals) for value in values.tolist()]

    def _number(self, value: float) -> str:
        decimals = self.decimals if abs(value) < LARGE else 0
        return numeral(float(value), needed_decimals([float(value)], decimals))

    def _factor(self, value: float) -> str:
        text = self._number(value)
        return f"({text})" if text.startswith("−") else text


def _numbered(letter: str, count: int) -> tuple[str, ...]:
    return tuple(f"{letter}_{place}" for place in range(1, count + 1))
