"""The numbers of a graph's case as matrices, checked against each other."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
from jaxtyping import Float

from lemma.checking.worked.attention import LARGEST, rectangle
from lemma.checking.worked.case import MOST_NODES, Examples, Found, Given, GraphCase, list_examples, read_case
from lemma.data.tables import Column, read_table
from lemma.errors import SpecError, unknown
from lemma.report.blocks import Block, Blocks, Grid, Heading, Matrix, Words, Worked
from lemma.report.numbers import counted, needed_decimals, numeral, printable, times
from lemma.spec.base import to_toml


@dataclass(frozen=True, eq=False)
class GivenGraph:
    """A graph as its adjacency matrix, with features and a layer."""

    names: tuple[str, ...]
    adjacency: Float[np.ndarray, "nodes nodes"]
    features: Float[np.ndarray, "nodes features"]
    layer: Float[np.ndarray, "features out"] | None
    focus: tuple[int, ...]
    notes: tuple[str, ...]

    @property
    def edges(self) -> int:
        """How many edges there are between different nodes."""
        return int(self.adjacency.sum()) // 2


def given_graph(case: GraphCase, where: str, notes: tuple[str, ...] = ()) -> GivenGraph:
    """Everything that the case gives; a loop adds nothing and an edge that stands twice counts once, which is noted."""
    names = _names(case, where)
    places = {name: place for place, name in enumerate(names)}
    adjacency = np.zeros((len(names), len(names)))
    for number, edge in enumerate(case.edges, 1):
        first, second = _ends(edge, number, places, where)
        if first != second:
            adjacency[first, second] = adjacency[second, first] = 1
    features = _features(case, len(names), where)
    focus = _focus(case, places, adjacency, where)
    shown = tuple(map(printable, names))
    said = (*notes, *_notes(case))
    return GivenGraph(shown, adjacency, features, _layer(case, features, where), focus, said)


def _names(case: GraphCase, where: str) -> tuple[str, ...]:
    names = case.nodes or tuple(dict.fromkeys(name for edge in case.edges for name in edge))
    if not names:
        raise SpecError(f'{where}: there is no node. Give nodes = ["a", "b"], or edges = [["a", "b"]].')
    if len(names) > MOST_NODES:
        raise SpecError(f"{where}: {len(names):,} nodes are too many for work by hand; at most {MOST_NODES} are read.")
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise SpecError(f"{where}: the node '{twice[0]}' stands twice in nodes. Give each node once.")
    return names


def _ends(edge: tuple[str, ...], number: int, places: dict[str, int], where: str) -> tuple[int, int]:
    if len(edge) != 2:
        raise SpecError(f'{where}: edge {number} has {counted(len(edge), "end")}, expected two, as in ["a", "b"].')
    for name in edge:
        if name not in places:
            raise SpecError(f"{where}: edge {number}: " + unknown("the node", name, places))
    return places[edge[0]], places[edge[1]]


def _features(case: GraphCase, nodes: int, where: str) -> Float[np.ndarray, "nodes features"]:
    if case.X is None:
        return np.ones((nodes, 1)) if case.start == "ones" else np.eye(nodes)
    features = rectangle("X", case.X, where)
    if len(features) != nodes:
        turned = " It would fit transposed." if features.shape[1] == nodes else ""
        raise SpecError(f"{where}: X has {counted(len(features), 'row')}, expected {nodes}: one for each node.{turned}")
    _refuse_large(features, "X", where)
    return features


def _layer(
    case: GraphCase, features: Float[np.ndarray, "nodes features"], where: str
) -> Float[np.ndarray, "features out"] | None:
    if case.W is None:
        return None
    layer = rectangle("W", case.W, where)
    if len(layer) != features.shape[1]:
        turned = " It would fit transposed." if layer.shape[1] == features.shape[1] else ""
        raise SpecError(
            f"{where}: W has {counted(len(layer), 'row')}, expected {features.shape[1]}: one for each column of X."
            f"{turned}"
        )
    _refuse_large(layer, "W", where)
    return layer


def _refuse_large(matrix: Float[np.ndarray, "rows columns"], name: str, where: str) -> None:
    if np.abs(matrix).max() > LARGEST:
        raise SpecError(f"{where}: {name} holds a number past {LARGEST:.0e}, too large to work with.")


def _focus(
    case: GraphCase, places: dict[str, int], adjacency: Float[np.ndarray, "nodes nodes"], where: str
) -> tuple[int, ...]:
    """The nodes that were named; else the first of the most edges and the first of the fewest."""
    for name in case.focus:
        if name not in places:
            raise SpecError(f"{where}: " + unknown("focus", name, places))
    if case.focus:
        return tuple(dict.fromkeys(places[name] for name in case.focus))
    degrees = adjacency.sum(axis=1)
    return tuple(dict.fromkeys((int(degrees.argmax()), int(degrees.argmin()))))


def _notes(case: GraphCase) -> Iterator[str]:
    loops = sum(len(set(edge)) == 1 for edge in case.edges)
    if loops:
        yield f"{counted(loops, 'edge')} from a node to itself: left out, since Ã gives every node one loop anyhow."
    pairs = [frozenset(edge) for edge in case.edges if len(set(edge)) == 2]
    if len(pairs) > len(set(pairs)):
        yield f"{counted(len(pairs) - len(set(pairs)), 'edge')} given twice: counted once."


# What graph convolution makes of a graph (problem D4): Ã, Â and D̃⁻¹Ã, what they are, and what they do to features.


Square = Float[np.ndarray, "nodes nodes"]
SYMBOLS = {"adjacency": "A", "loops": "Ã", "symmetric": "Â", "rows": "D̃⁻¹Ã"}
"""How each matrix is written."""
NEAR = 1e-9
"""Sums and norms that differ by less are the same but for rounding."""


@dataclass(frozen=True)
class Traits:
    """What one matrix is: its row sums, its symmetry and its norms."""

    lowest_sum: float
    highest_sum: float
    symmetric: bool
    radius: float
    """The largest size of an eigenvalue."""
    norm: float
    """The spectral norm: the root of the largest eigenvalue of MᵀM, the radius itself where M is symmetric."""

    @property
    def sums_to_one(self) -> bool:
        """Whether every row sums to one."""
        return abs(self.lowest_sum - 1) < NEAR and abs(self.highest_sum - 1) < NEAR


@dataclass(frozen=True, eq=False)
class GraphSteps:
    """A graph's four matrices, and features multiplied by each of them again and again."""

    adjacency: Square
    features: Float[np.ndarray, "nodes features"]
    powers: int

    @property
    def loops(self) -> Square:
        """Ã = A + I."""
        return self.adjacency + np.eye(len(self.adjacency))

    @property
    def degrees(self) -> Float[np.ndarray, "nodes"]:
        """The diagonal of D̃: the row sums of Ã."""
        return self.loops.sum(axis=1)

    @cached_property
    def matrices(self) -> Mapping[str, Square]:
        """All four by name: Â has 1/√(d̃_i d̃_j) where Ã has 1, and D̃⁻¹Ã has 1/d̃_i."""
        loops, degrees = self.loops, self.degrees
        symmetric = loops / np.sqrt(np.outer(degrees, degrees))
        return {
            "adjacency": self.adjacency,
            "loops": loops,
            "symmetric": symmetric,
            "rows": loops / degrees[:, None],
        }

    @cached_property
    def traits(self) -> Mapping[str, Traits]:
        """What each matrix is."""
        return {name: _traits(matrix) for name, matrix in self.matrices.items()}

    @cached_property
    def scales(self) -> Mapping[str, Float[np.ndarray, "powers two"]]:
        """For each matrix M and k = 0, 1, …: the norm of MᵏX, the root of its sum of squares, and its largest entry."""
        return {name: self._scale(matrix) for name, matrix in self.matrices.items()}

    def _scale(self, matrix: Square) -> Float[np.ndarray, "powers two"]:
        features, found = self.features, []
        for _ in range(self.powers + 1):
            largest = np.abs(features).max()  # taken out first, so that squares do not overflow
            shrunk = features / largest if largest else features
            found.append((np.sqrt((shrunk**2).sum()) * (largest or 1.0), largest))
            features = matrix @ features
        return np.array(found)

    @property
    def normalised(self) -> bool:
        """Whether the rows of Â sum to one here: just where all neighbours have the same degree."""
        return self.traits["symmetric"].sums_to_one

    @property
    def regular(self) -> bool:
        """Whether all nodes have the same degree."""
        return len(set(self.degrees.tolist())) == 1

    def layer(self, weights: Float[np.ndarray, "features out"]) -> Float[np.ndarray, "nodes out"]:
        """Â X W."""
        return self.matrices["symmetric"] @ (self.features @ weights)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, none of them rounded."""
        return {
            "degrees": self.degrees.tolist(),
            "matrices": {name: matrix.tolist() for name, matrix in self.matrices.items()},
            "traits": {name: _plain(self.matrices[name], traits) for name, traits in self.traits.items()},
            "features": self.features.tolist(),
            "norms": {name: scale[:, 0].tolist() for name, scale in self.scales.items()},
            "largest": {name: scale[:, 1].tolist() for name, scale in self.scales.items()},
        }


def _traits(matrix: Square) -> Traits:
    sums = matrix.sum(axis=1)
    symmetric = bool(np.allclose(matrix, matrix.T, rtol=0, atol=1e-15))
    values = np.linalg.eigvalsh(matrix) if symmetric else np.linalg.eigvals(matrix)
    radius = float(np.abs(values).max())
    norm = radius if symmetric else float(np.sqrt(np.linalg.eigvalsh(matrix.T @ matrix).max()))
    return Traits(float(sums.min()), float(sums.max()), symmetric, radius, norm)


def _plain(matrix: Square, traits: Traits) -> dict[str, Any]:
    return {
        "row_sums": matrix.sum(axis=1).tolist(),
        "rows_sum_to_one": traits.sums_to_one,
        "symmetric": traits.symmetric,
        "largest_eigenvalue": traits.radius,
        "spectral_norm": traits.norm,
    }


# A graph's matrices as blocks: each formula, the numbers that go through it, and what it does to features.


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


# What a graph worked by hand holds, how the claim of the source is judged on it, and how it is shown.


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


# Graph convolution worked by hand (problem D4; Kipf & Welling 2017): Ã, Â, and what each does to features.


TABLES = (".csv", ".tsv", ".jsonl")
WEIGHTS = ("weight", "value")
FROM, TO = ("source", "from", "node1", "citing", "u"), ("target", "to", "node2", "cited", "v")
"""What the two columns of a table of edges are often called."""


@overload
def graph_by_hand(example: None = None) -> Examples: ...
@overload
def graph_by_hand(
    example: Given,
    *,
    nodes: Sequence[str] | None = None,
    powers: int | None = None,
    full: bool = False,
    decimals: int = 4,
) -> WorkedGraph: ...
def graph_by_hand(
    example: Given | None = None,
    *,
    nodes: Sequence[str] | None = None,
    powers: int | None = None,
    full: bool = False,
    decimals: int = 4,
) -> WorkedGraph | Examples:
    """Work a graph out, for an example by name, a TOML file, a table of edges (.csv) or the same words.

    Ã = A + I, Â = D̃^{-1/2} Ã D̃^{-1/2} with D̃ the degrees of Ã; row sums, symmetry and spectral norm of each, the norm
    of X, MX, M²X … and, with W, one layer Â X W. `nodes` (those in focus) and `powers` take the place of what the case
    says. Without an example, those that come with Lemma are listed.

    >>> worked = graph_by_hand({"edges": [["hub", "a"], ["hub", "b"], ["hub", "c"]]})
    >>> worked.steps.matrices["symmetric"].sum(axis=1).round(3).tolist(), worked.steps.normalised
    ([1.311, 0.854, 0.854, 0.854], False)
    """
    if example is None:
        return list_examples("graph")
    changes = {"focus": tuple(nodes) if nodes else None, "powers": powers}
    found, notes = _table(example, changes) or (read_case(GraphCase, example, changes), ())
    given = given_graph(found.case, found.where, notes)
    steps = GraphSteps(given.adjacency, given.features, found.case.powers)
    return WorkedGraph(found.case, found.text, given, steps, full, decimals)


def _table(example: Given, changes: dict[str, object]) -> tuple[Found[GraphCase], tuple[str, ...]] | None:
    """The graph of a table of edges, if one is given, and what of it is left out."""
    if not isinstance(example, str | Path) or Path(example).suffix.lower() not in TABLES:
        return None
    columns = [Column("source", None, frozenset(FROM)), Column("target", None, frozenset(TO))]
    read = read_table(Path(example), columns, any_width=True, is_header=_is_header)
    edges = list(zip(read.cells["source"], read.cells["target"], strict=True))
    changed = {word: value for word, value in changes.items() if value is not None}
    case = GraphCase.read({"title": f"The graph of {Path(example).name}", "edges": edges, **changed}, str(example))
    return Found(case, str(example), to_toml(case.to_dict())), tuple(_left_out(read.names or ()))


def _left_out(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        if name.strip().casefold() in WEIGHTS:
            yield f"The column '{printable(name.strip())}' is left out: here every edge counts 1."


def _is_header(first: Sequence[str]) -> bool:
    """Whether a first row bears the names that such columns have."""
    return bool({cell.strip().casefold() for cell in first} & {*FROM, *TO})
