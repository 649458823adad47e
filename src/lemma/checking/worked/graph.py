"""Graph convolution worked by hand (problem D4; Kipf & Welling 2017): Ã, Â, and what each does to features."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, overload

import numpy as np
from jaxtyping import Float
from pydantic import BeforeValidator, Field, field_validator

from lemma.checking.worked.case import (
    LARGEST,
    Array,
    Case,
    CaseExamples,
    CaseLike,
    Expected,
    Found,
    Labels,
    Number,
    WorkedCase,
    expect,
    list_examples,
    numbered,
    read_case,
    rectangle,
)
from lemma.data.tables import Column, read_table
from lemma.errors import SpecError, unknown
from lemma.report.numbers import counted, needed_decimals, numeral, printable, times
from lemma.report.result import Block, Heading, Matrix, Table, Text
from lemma.spec.base import to_toml

Square = Float[np.ndarray, "nodes nodes"]
MOST_NODES = 500
"""A larger graph is not a small case: its eigenvalues alone would take a while."""
MOST_SHOWN = 12
"""Nodes of a graph whose matrices are printed; those of a larger one only with `full`."""
HINT = "--full prints the matrices"
SYMBOLS = {"adjacency": "A", "loops": "Ã", "symmetric": "Â", "rows": "D̃⁻¹Ã"}
"""How each matrix is written."""
TYPED = {"adjacency": "A", "loops": "A_tilde", "symmetric": "A_hat", "rows": "A_rows"}
"""How each matrix is typed in a claim."""
SPELLINGS: dict[str, Labels] = {"loops": ("Ã", "A~"), "symmetric": ("Â", "A^"), "rows": ("D̃⁻¹Ã", "D^-1A", "D_inv_A")}
NEAR = 1e-9
"""Sums and norms that differ by less are the same but for rounding."""
CLAIM = "After D̃^(−1/2) Ã D̃^(−1/2) the rows are normalised: each sums to one."
HOLDS = "D̃⁻¹Ã is the one whose rows sum to one on every graph. What holds of Â: its spectral norm is 1."
TABLES = (".csv", ".tsv", ".jsonl")
"""Endings of tables of edges."""
FROM, TO = ("source", "from", "node1", "citing", "u"), ("target", "to", "node2", "cited", "v")
"""What the two columns of a table of edges are often called."""
WEIGHTS = ("weight", "value")


# The case


def _as_name(value: Any) -> Any:
    """A node may be called by a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Name = Annotated[str, BeforeValidator(_as_name), Field(min_length=1)]
GraphRow = Annotated[tuple[Number, ...], Field(min_length=1, max_length=MOST_NODES)]
GraphRows = Annotated[tuple[GraphRow, ...], Field(min_length=1, max_length=MOST_NODES)]


class GraphCase(Case):
    """An undirected graph, what its nodes know, and a layer."""

    kind: ClassVar[str] = "graph"

    nodes: tuple[Name, ...] = ()
    """The nodes by name; if none is given, those of the edges in their order."""
    edges: Annotated[tuple[tuple[Name, ...], ...], Field(max_length=100_000)]
    """Pairs of nodes; an edge counts for both of its ends, whichever stands first."""
    X: GraphRows | None = None
    """The features, a row for each node."""
    start: Literal["ones", "units"] = "ones"
    """What stands for X where none is given: a one at every node, or a unit vector for each."""
    W: GraphRows | None = None
    """The map of a layer Â X W, a row for each feature."""
    powers: Annotated[int, Field(strict=True, ge=1, le=50)] = 8
    """How often the features are multiplied."""
    focus: tuple[Name, ...] = ()
    """The nodes whose row of arithmetic is shown; if none is named, one of the most and one of the fewest edges."""

    @field_validator("focus", mode="before")
    @classmethod
    def _one_focus(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str | int) else value


@dataclass(frozen=True, eq=False)
class GivenGraph:
    """A graph as its adjacency matrix, with features and a layer."""

    names: Labels
    adjacency: Square
    features: Float[np.ndarray, "nodes features"]
    layer: Float[np.ndarray, "features out"] | None
    focus: tuple[int, ...]
    notes: tuple[str, ...]

    @property
    def edges(self) -> int:
        """How many edges there are between different nodes."""
        return int(self.adjacency.sum()) // 2


def given_graph(case: GraphCase, where: str, notes: tuple[str, ...] = ()) -> GivenGraph:
    """Everything that the case gives; a loop adds nothing and an edge given twice counts once, which is noted."""
    names = case.nodes or tuple(dict.fromkeys(name for edge in case.edges for name in edge))
    if not names:
        raise SpecError(f'{where}: there is no node. Give nodes = ["a", "b"], or edges = [["a", "b"]].')
    if len(names) > MOST_NODES:
        raise SpecError(f"{where}: {len(names):,} nodes are too many for work by hand; at most {MOST_NODES} are read.")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise SpecError(f"{where}: the node '{twice[0]}' stands twice in nodes. Give each node once.")
    places = {name: place for place, name in enumerate(names)}
    adjacency = np.zeros((len(names), len(names)))
    for number, edge in enumerate(case.edges, 1):
        if len(edge) != 2:
            raise SpecError(f'{where}: edge {number} has {counted(len(edge), "end")}, expected two, as in ["a", "b"].')
        for name in edge:
            if name not in places:
                raise SpecError(f"{where}: edge {number}: " + unknown("the node", name, places))
        first, second = (places[name] for name in edge)
        if first != second:
            adjacency[first, second] = adjacency[second, first] = 1
    if case.X is not None:
        features = _matrix("X", case.X, len(names), "one for each node", where)
    else:
        features = np.ones((len(names), 1)) if case.start == "ones" else np.eye(len(names))
    for name in case.focus:
        if name not in places:
            raise SpecError(f"{where}: " + unknown("focus", name, places))
    edges = adjacency.sum(axis=1)
    focus = [places[name] for name in case.focus] or [int(edges.argmax()), int(edges.argmin())]
    width = features.shape[1]
    layer = None if case.W is None else _matrix("W", case.W, width, "one for each column of X", where)
    shown = tuple(map(printable, names))
    return GivenGraph(shown, adjacency, features, layer, tuple(dict.fromkeys(focus)), (*notes, *_notes(case)))


def _matrix(name: str, rows: Sequence[Sequence[float]], count: int, why: str, where: str) -> Array:
    matrix = rectangle(name, rows, where)
    if len(matrix) != count:
        turned = " It would fit transposed." if matrix.shape[1] == count else ""
        raise SpecError(f"{where}: {name} has {counted(len(matrix), 'row')}, expected {count}: {why}.{turned}")
    if np.abs(matrix).max() > LARGEST:
        raise SpecError(f"{where}: {name} holds a number past {LARGEST:.0e}, too large to work with.")
    return matrix


def _notes(case: GraphCase) -> Iterator[str]:
    loops = sum(len(set(edge)) == 1 for edge in case.edges)
    if loops:
        yield f"{counted(loops, 'edge')} from a node to itself: left out, since Ã gives every node one loop anyhow."
    pairs = [frozenset(edge) for edge in case.edges if len(set(edge)) == 2]
    if len(pairs) > len(set(pairs)):
        yield f"{counted(len(pairs) - len(set(pairs)), 'edge')} given twice: counted once."


# The steps


@dataclass(frozen=True)
class MatrixTraits:
    """What one matrix is: its row sums, its symmetry and its norms."""

    lowest_sum: float
    highest_sum: float
    symmetric: bool
    radius: float
    """The largest size of an eigenvalue."""
    norm: float
    """The spectral norm: the root of the largest eigenvalue of MᵀM, the radius itself where M is symmetric."""

    @classmethod
    def of(cls, matrix: Square) -> "MatrixTraits":
        """Measure a matrix."""
        sums = matrix.sum(axis=1)
        symmetric = bool(np.allclose(matrix, matrix.T, rtol=0, atol=1e-15))
        values = np.linalg.eigvalsh(matrix) if symmetric else np.linalg.eigvals(matrix)
        radius = float(np.abs(values).max())
        norm = radius if symmetric else float(np.sqrt(np.linalg.eigvalsh(matrix.T @ matrix).max()))
        return cls(float(sums.min()), float(sums.max()), symmetric, radius, norm)

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
        rows = loops / degrees[:, None]
        return {"adjacency": self.adjacency, "loops": loops, "symmetric": symmetric, "rows": rows}

    @cached_property
    def traits(self) -> Mapping[str, MatrixTraits]:
        """What each matrix is."""
        return {name: MatrixTraits.of(matrix) for name, matrix in self.matrices.items()}

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
        traits = {
            name: {
                "row_sums": self.matrices[name].sum(axis=1).tolist(),
                "rows_sum_to_one": one.sums_to_one,
                "symmetric": one.symmetric,
                "largest_eigenvalue": one.radius,
                "spectral_norm": one.norm,
            }
            for name, one in self.traits.items()
        }
        return {
            "degrees": self.degrees.tolist(),
            "matrices": {name: matrix.tolist() for name, matrix in self.matrices.items()},
            "traits": traits,
            "features": self.features.tolist(),
            "norms": {name: scale[:, 0].tolist() for name, scale in self.scales.items()},
            "largest": {name: scale[:, 1].tolist() for name, scale in self.scales.items()},
        }


# The steps as blocks: each formula, the numbers that go through it, and what it does to features


class GraphTables:
    """Makes the blocks of one graph."""

    def __init__(self, given: GivenGraph, steps: GraphSteps, decimals: int) -> None:
        self.given, self.steps, self.decimals = given, steps, decimals

    def matrices(self) -> list[Block]:
        """A, Ã, the degrees, Â with the arithmetic of the rows in focus, and D̃⁻¹Ã, each with its row sums."""
        steps, names = self.steps, self.given.names
        a, loops, symmetric, rows = (
            Matrix(SYMBOLS[name], names, names, matrix, sums=matrix.sum(axis=1).tolist(), decimals=self.decimals)
            for name, matrix in steps.matrices.items()
        )
        degrees = [self._column(one) for one in (steps.adjacency.sum(axis=1), steps.degrees, steps.degrees**-0.5)]
        return [
            Heading("The graph: A, and Ã = A + I"),
            a,
            loops,
            Heading("Degrees: d̃ is the row sum of Ã"),
            Table(("node", "edges", "d̃", "1/√d̃"), tuple(zip(names, *degrees, strict=True))),
            Heading("Â = D̃^(−1/2) Ã D̃^(−1/2): 1/√(d̃_i d̃_j) where Ã has a one"),
            Text("\n".join(line for node in self.given.focus for line in self._entries(node))),
            symmetric,
            Heading("D̃⁻¹Ã: every row of Ã over its own degree"),
            rows,
        ]

    def _entries(self, node: int) -> Iterator[str]:
        """The arithmetic of a row of Â."""
        names, degrees = self.given.names, self.steps.degrees
        row, own = self.steps.matrices["symmetric"][node], numeral(degrees[node], 0)
        places = np.flatnonzero(self.steps.loops[node])
        for place in places:
            other = numeral(degrees[place], 0)
            yield f"Â[{names[node]}, {names[place]}] = 1/√({own}·{other}) = {self._number(row[place])}"
        added = " + ".join(self._number(row[place]) for place in places)
        yield f"row {names[node]}: {added} = {self._number(row.sum())}"

    def traits(self) -> list[Block]:
        """Row sums, symmetry and norms of the four."""
        rows = []
        for name, one in self.steps.traits.items():
            lowest, highest = self._number(one.lowest_sum), self._number(one.highest_sum)
            sums = lowest if abs(one.lowest_sum - one.highest_sum) < NEAR else f"{lowest} to {highest}"
            symmetric = "yes" if one.symmetric else "no"
            rows.append((SYMBOLS[name], sums, symmetric, self._number(one.radius), self._number(one.norm)))
        about = (
            "The spectral norm of a symmetric matrix is its largest |eigenvalue|; that of D̃⁻¹Ã, which has the "
            "eigenvalues of Â, is the root of the largest eigenvalue of MᵀM."
        )
        header = ("", "row sums", "symmetric", "largest |eigenvalue|", "spectral norm")
        return [Heading("What each of them is"), Table(header, rows), Text(about)]

    def scales(self) -> list[Block]:
        """What multiplying again and again does to the features."""
        features = self.given.features
        about = f"given: {features.shape[0]}×{features.shape[1]}"
        if np.array_equal(features, np.ones((len(features), 1))):
            about = "a one at every node"
        elif np.array_equal(features, np.eye(len(features))):
            about = "a unit vector for every node, so that MᵏX is Mᵏ itself"
        return [
            Heading("What each does to the scale of features"),
            Text(f"X is {about}."),
            self._scale("‖MᵏX‖, the root of the sum of squares", 0),
            self._scale("the largest |entry| of MᵏX", 1),
            Text(self._growth()),
        ]

    def _scale(self, title: str, which: int) -> Table:
        columns = [self._column(scale[:, which]) for scale in self.steps.scales.values()]
        powers = map(str, range(self.steps.powers + 1))
        return Table(("k", *SYMBOLS.values()), tuple(zip(powers, *columns, strict=True)), title)

    def _growth(self) -> str:
        """What the columns show, in words."""
        if not np.any(self.given.features):
            return "X is 0, and stays so."
        traits = self.steps.traits
        grown = {name: self._number(scale[-1, 0] / scale[0, 0]) for name, scale in self.steps.scales.items()}
        return (
            f"Ã: {grown['loops']} times the norm after {times(self.steps.powers)}; a product multiplies by at most "
            f"{self._number(traits['loops'].norm)}, its largest eigenvalue, and in the long run nearly always by that."
            f"\nÂ: {grown['symmetric']} times; its spectral norm is 1, so that the norm never grows."
            f"\nD̃⁻¹Ã: {grown['rows']} times; every entry is a mean, so that the largest never grows; its "
            f"spectral norm is {self._number(traits['rows'].norm)}."
        )

    def layer(self) -> list[Block]:
        """Â X W, if there is a W: the arithmetic of the first output of the nodes in focus, and the whole."""
        weights, names = self.given.layer, self.given.names
        if weights is None:
            return []
        features, columns = numbered(weights.shape[0], "x_"), numbered(weights.shape[1], "out_")
        mapped = self.given.features @ weights
        lines = []
        for node in self.given.focus:
            row = self.steps.matrices["symmetric"][node]
            places = np.flatnonzero(self.steps.loops[node])
            added = " + ".join(f"{self._number(row[place])}·{self._factor(mapped[place, 0])}" for place in places)
            lines.append(f"{names[node]}, out_1: {added} = {self._number(row @ mapped[:, 0])}")
        return [
            Heading("One layer: Â X W"),
            Matrix("X", names, features, self.given.features, decimals=self.decimals),
            Matrix("W", features, columns, weights, decimals=self.decimals),
            Matrix("X W", names, columns, mapped, decimals=self.decimals),
            Text("\n".join(lines)),
            Matrix("Â X W", names, columns, self.steps.layer(weights), decimals=self.decimals),
        ]

    def _column(self, values: Float[np.ndarray, "rows"]) -> list[str]:
        decimals = needed_decimals(values.tolist(), self.decimals)
        return [numeral(value, decimals) for value in values.tolist()]

    def _number(self, value: float) -> str:
        decimals = self.decimals if abs(value) < 1000 else 0  # a large number in a sentence needs no decimals
        return numeral(float(value), needed_decimals([float(value)], decimals))

    def _factor(self, value: float) -> str:
        text = self._number(value)
        return f"({text})" if text.startswith("−") else text


# The result, how the claim of the source is judged on it, and what may be claimed


@dataclass(frozen=True, eq=False)
class WorkedGraph(WorkedCase):
    """A graph with its four matrices. A large one is summed up unless `full`."""

    untitled: ClassVar[str] = "Graph convolution by hand"

    case: GraphCase
    given: GivenGraph
    steps: GraphSteps
    full: bool = False
    decimals: int = 4

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

    def blocks(self) -> list[Block]:
        """Every matrix of a small graph; of a large one what they are, and what they do."""
        return [*self.details(), *([Heading(HINT)] if self._cut else [])]

    def details(self) -> list[Block]:
        """The same, without the hint."""
        tables, degrees = GraphTables(self.given, self.steps, self.decimals), self.steps.degrees
        sizes = f"{counted(len(self.given.names), 'node')}, {counted(self.given.edges, 'edge')}"
        between = f"degrees with the loop from {numeral(degrees.min(), 0)} to {numeral(degrees.max(), 0)}"
        rounding = f"Printed to {counted(self.decimals, 'decimal')}; nothing is rounded on the way."
        return [
            self.headline,
            Text(f"{sizes}; {between}. {rounding}"),
            *map(Text, self.given.notes),
            *([] if self._cut else tables.matrices()),
            *tables.traits(),
            Heading("The claim"),
            Text(CLAIM),
            Text(self.verdict),
            *tables.scales(),
            *([] if self._cut else tables.layer()),
        ]

    @property
    def _cut(self) -> bool:
        """Whether matrices are left out."""
        return not self.full and len(self.given.names) > MOST_SHOWN

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

    def expected(self) -> list[Expected]:
        """The four matrices, degrees, row sums, norms, what powers do to features, and the layer."""
        steps, nodes = self.steps, self.given.names
        edges, powers = steps.adjacency.sum(axis=1), tuple(map(str, range(steps.powers + 1)))
        without = {"the loop that Ã adds is not counted": edges}
        roots = {"the loop that Ã adds is not counted": _inverse_root(edges), "1/d̃ in place of 1/√d̃": 1 / steps.degrees}
        spellings = ("d", "d̃", "d_tilde", "D")
        found: list[Expected] = [
            expect("degrees", steps.degrees, (nodes,), "d̃, the row sums of Ã", spellings, without),
            expect("roots", _inverse_root(steps.degrees), (nodes,), "1/√d̃", ("1/√d̃", "inverse_roots"), roots),
        ]
        for key, matrix in steps.matrices.items():
            name, sign, others = TYPED[key], SYMBOLS[key], SPELLINGS.get(key, ())
            slips, traits, scale = _slips(key, steps.adjacency), steps.traits[key], steps.scales[key]
            sums = {said: made.sum(axis=1) for said, made in slips.items()}
            if key == "symmetric":
                sums["the rows of Â are not normalised; those of D̃⁻¹Ã are"] = np.ones(len(nodes))
            meaning = sign if sign != name else "adjacency"
            found.append(expect(name, matrix, (nodes, nodes), meaning, others, slips))
            for kind, values, labels, said, wrong in (
                ("sum", matrix.sum(axis=1), (nodes,), f"row sums of {sign}", sums),
                ("norm", traits.norm, None, f"spectral norm of {sign}", None),
                ("radius", traits.radius, None, f"largest |eigenvalue| of {sign}", None),
                ("size", scale[:, 0], (powers,), f"‖MᵏX‖ for k = 0 …, M = {sign}", None),
                ("largest", scale[:, 1], (powers,), "its largest entry", None),
            ):
                spelled = [f"{kind}_{other}" for other in others]
                found.append(expect(f"{kind}_{name}", values, labels, said, spelled, wrong))
        if self.given.layer is not None:
            through = steps.features @ self.given.layer
            layer_slips = {
                "Ã in place of Â": steps.matrices["loops"] @ through,
                "A in place of Â: no loops, not normalised": steps.matrices["adjacency"] @ through,
                "D̃⁻¹Ã in place of Â": steps.matrices["rows"] @ through,
                "X W alone: Â is left out": through,
            }
            labels = (nodes, numbered(through.shape[1]))
            spellings = ("AXW", "ÂXW", "Y")
            found.append(expect("layer", steps.layer(self.given.layer), labels, "Â X W", spellings, layer_slips))
        return found


def _slips(key: str, adjacency: Square) -> dict[str, Array]:
    """Â and D̃⁻¹Ã made without loops, or with the degrees of A."""
    if key not in ("symmetric", "rows"):
        return {}
    roots = _inverse_root(adjacency.sum(axis=1))
    factors = np.outer(roots, roots) if key == "symmetric" else roots[:, None] ** 2
    loops = adjacency + np.eye(len(adjacency))
    return {"A in place of Ã: no loops": adjacency * factors, "degrees of A in place of those of Ã": loops * factors}


def _inverse_root(degrees: Float[np.ndarray, "nodes"]) -> Float[np.ndarray, "nodes"]:
    """1/√d, and 0 for a node without neighbours."""
    return np.divide(1.0, np.sqrt(degrees), out=np.zeros_like(degrees), where=degrees > 0)


@overload
def graph_by_hand(example: None = None) -> CaseExamples: ...
@overload
def graph_by_hand(
    example: CaseLike,
    *,
    nodes: Sequence[str] | None = None,
    powers: int | None = None,
    full: bool = False,
    decimals: int = 4,
) -> WorkedGraph: ...
def graph_by_hand(
    example: CaseLike | None = None,
    *,
    nodes: Sequence[str] | None = None,
    powers: int | None = None,
    full: bool = False,
    decimals: int = 4,
) -> WorkedGraph | CaseExamples:
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
    if isinstance(example, str | Path) and Path(example).suffix.lower() in TABLES:
        found, notes = _read_edges(Path(example), changes)
    else:
        found, notes = read_case(GraphCase, example, changes), ()
    given = given_graph(found.case, found.where, notes)
    steps = GraphSteps(given.adjacency, given.features, found.case.powers)
    return WorkedGraph(found.case, found.text, given, steps, full, decimals)


def _read_edges(path: Path, changes: Mapping[str, Any]) -> tuple[Found[GraphCase], tuple[str, ...]]:
    """The graph of a table of edges, and what of the table is left out."""

    def is_header(first: Sequence[str]) -> bool:
        return bool({cell.strip().casefold() for cell in first} & {*FROM, *TO})

    columns = [Column("source", None, frozenset(FROM)), Column("target", None, frozenset(TO))]
    read = read_table(path, columns, any_width=True, is_header=is_header)
    edges = list(zip(read.cells["source"], read.cells["target"], strict=True))
    changed = {word: value for word, value in changes.items() if value is not None}
    case = GraphCase.read({"title": f"The graph of {path.name}", "edges": edges, **changed}, str(path))
    notes = tuple(
        f"The column '{printable(name.strip())}' is left out: here every edge counts 1."
        for name in read.names or ()
        if name.strip().casefold() in WEIGHTS
    )
    return Found(case, str(path), to_toml(case.to_dict())), notes
