"""Graph convolution worked by hand (problem D4; Kipf & Welling 2017): Ã, Â, and what each does to features."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float
from pydantic import BeforeValidator, Field
from threadpoolctl import threadpool_limits

from lemma.checking.expected_values import Array, ExpectedValue, Labels, expect_numbers, number_labels
from lemma.checking.worked.case import (
    MAX_MAGNITUDE,
    Case,
    CaseLike,
    Number,
    WorkedCase,
    as_matrix,
    prefix_errors,
    read_case,
)
from lemma.data.tables import Column, read_table
from lemma.errors import SpecError, describe_unknown
from lemma.report.numbers import escape_invisible, format_factor, format_number, format_numbers, format_times, pluralize
from lemma.report.result import Block, Heading, Matrix, Table, Text, to_plain
from lemma.spec.base import to_toml

Square = Float[np.ndarray, "nodes nodes"]
MAX_NODES = 500  # eigenvalues of a larger graph take a while
MAX_PRINTED_NODES = 12  # matrices of a larger graph are printed only with `full`
TOLERANCE = 1e-9  # sums and norms that differ by less are equal up to rounding
SYMBOLS = {"adjacency": "A", "loops": "Ã", "symmetric": "Â", "rows": "D̃⁻¹Ã"}
CLAIM_NAMES = {  # how each matrix may be written in a claim
    "adjacency": "A",
    "loops": "A_tilde Ã A~",
    "symmetric": "A_hat Â A^",
    "rows": "A_rows D̃⁻¹Ã D^-1A D_inv_A",
}
CLAIM = "After D̃^(−1/2) Ã D̃^(−1/2) the rows are normalised: each sums to one."
CORRECTION = "D̃⁻¹Ã is the one whose rows sum to one on every graph. What holds of Â: its spectral norm is 1."
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl")
SOURCE_COLUMNS = ("source", "from", "node1", "citing", "u")  # usual names of the columns of a table of edges
TARGET_COLUMNS = ("target", "to", "node2", "cited", "v")


def _as_node_name(value: Any) -> Any:
    """Return a whole number as text, since it names a node; return any other value unchanged."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Name = Annotated[str, BeforeValidator(_as_node_name), Field(min_length=1)]
NameOrNames = BeforeValidator(lambda value: (value,) if isinstance(value, str | int) else value)
GraphRow = Annotated[tuple[Number, ...], Field(min_length=1, max_length=MAX_NODES)]
GraphRows = Annotated[tuple[GraphRow, ...], Field(min_length=1, max_length=MAX_NODES)]


class GraphCase(Case):
    """A case of graph convolution: an undirected graph, the features of its nodes, and the map of a layer."""

    kind: ClassVar[str] = "graph"

    nodes: tuple[Name, ...] = ()  # the nodes by name; if none is given, those of the edges in their order
    # pairs of nodes; an edge counts for both of its ends, whichever comes first
    edges: Annotated[tuple[tuple[Name, ...], ...], Field(max_length=100_000)]
    X: GraphRows | None = None  # the features, a row for each node
    # the features where X is not given: a one at every node, or a unit vector for each
    start: Literal["ones", "units"] = "ones"
    W: GraphRows | None = None  # the map of a layer Â X W, a row for each feature
    powers: Annotated[int, Field(strict=True, ge=1, le=50)] = 8  # how often the features are multiplied
    # the nodes whose row of arithmetic is shown; if none is named, one of the most and one of the fewest edges
    focus: Annotated[tuple[Name, ...], NameOrNames] = ()


@dataclass(frozen=True, eq=False)
class MatrixProperties:
    """Row sums, symmetry and norms of one matrix."""

    row_sums: Float[np.ndarray, " nodes"]
    rows_sum_to_one: bool
    symmetric: bool
    largest_eigenvalue: float  # by absolute value
    spectral_norm: float  # root of the largest eigenvalue of MᵀM; the largest eigenvalue if M is symmetric


@dataclass(frozen=True, eq=False)
class GraphSteps:
    """A graph, its matrices A, Ã, Â and D̃⁻¹Ã, and features multiplied by each of them several times."""

    names: Labels
    adjacency: Square
    features: Float[np.ndarray, "nodes features"]
    weights: Float[np.ndarray, "features out"] | None  # W, the map of a layer
    focus: tuple[int, ...]
    powers: int

    @property
    def edges(self) -> int:
        """The number of edges between different nodes."""
        return int(self.adjacency.sum()) // 2

    @cached_property
    def degrees(self) -> Float[np.ndarray, " nodes"]:
        """The diagonal of D̃: each node's number of neighbours plus 1, the row sums of Ã."""
        return self.adjacency.sum(axis=1) + 1

    @cached_property
    def matrices(self) -> Mapping[str, Square]:
        """By name: "adjacency" A, "loops" Ã = A + I, "symmetric" Â = D̃^(−1/2) Ã D̃^(−1/2), "rows" D̃⁻¹Ã."""
        loops, degrees = self.adjacency + np.eye(len(self.adjacency)), self.degrees
        symmetric = loops / np.sqrt(np.outer(degrees, degrees))
        rows = loops / degrees[:, None]
        return {"adjacency": self.adjacency, "loops": loops, "symmetric": symmetric, "rows": rows}

    @cached_property
    def properties(self) -> Mapping[str, MatrixProperties]:
        """Row sums, symmetry and norms of each matrix, by the names of `matrices`."""
        properties: dict[str, MatrixProperties] = {}
        for name, matrix in self.matrices.items():
            sums = matrix.sum(axis=1)
            symmetric = bool(np.allclose(matrix, matrix.T, rtol=0, atol=1e-15))
            with threadpool_limits(
                1
            ):  # on a busy machine, threads for so small a matrix would only wait for each other
                values = np.linalg.eigvalsh(matrix) if symmetric else np.linalg.eigvals(matrix)
                radius = float(np.abs(values).max())
                norm = radius if symmetric else float(np.sqrt(np.linalg.eigvalsh(matrix.T @ matrix).max()))
            sum_to_one = bool((np.abs(sums - 1) < TOLERANCE).all())
            properties[name] = MatrixProperties(sums, sum_to_one, symmetric, radius, norm)
        return properties

    @cached_property
    def power_norms(self) -> Mapping[str, Float[np.ndarray, "powers two"]]:
        """For each matrix M, by name: Frobenius norm and largest |entry| of MᵏX in row k, for k from 0 to `powers`."""
        norms: dict[str, list[tuple[float, float]]] = {name: [] for name in self.matrices}
        for name, matrix in self.matrices.items():
            features = self.features
            for _ in range(self.powers + 1):
                largest = np.abs(features).max()  # divided out first: squares must not overflow
                scaled = features / largest if largest else features
                norms[name].append((np.sqrt((scaled**2).sum()) * (largest or 1.0), largest))
                features = matrix @ features
        return {name: np.array(pairs) for name, pairs in norms.items()}

    @property
    def rows_sum_to_one(self) -> bool:
        """True if every row of Â sums to 1, that is, if neighbours always have the same degree."""
        return self.properties["symmetric"].rows_sum_to_one

    @property
    def is_regular(self) -> bool:
        """True if all nodes have the same degree."""
        return len(set(self.degrees.tolist())) == 1

    @property
    def layer(self) -> Float[np.ndarray, "nodes out"] | None:
        """The output Â X W of a layer; None if the case gives no W."""
        return None if self.weights is None else self.matrices["symmetric"] @ (self.features @ self.weights)


@dataclass(frozen=True, eq=False)
class WorkedGraph(WorkedCase):
    """A worked case of graph convolution; the matrices of a large graph are printed only if `full`."""

    default_title: ClassVar[str] = "Graph convolution by hand"
    hint: ClassVar[str] = "--full prints the matrices"

    case: GraphCase
    steps: GraphSteps
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """Sentences on whether the rows of Â are normalised in this graph, and on what holds for all graphs."""
        if self.steps.rows_sum_to_one:
            reason = "all degrees are the same" if self.steps.is_regular else "every connected part has one degree only"
            return (
                f"Right on this graph, since {reason}; wrong of graphs in general: where neighbours differ in degree, "
                f"not all rows sum to one. {CORRECTION}"
            )
        sums = self.steps.properties["symmetric"].row_sums
        lowest, highest = (format_number(value, self.decimals) for value in (sums.min(), sums.max()))
        return (
            f"Wrong: the rows of Â sum to {lowest} up to {highest} here. All of them sum to one exactly if every "
            f"connected part is regular: its nodes have all the same degree. {CORRECTION}"
        )

    @property
    def is_abridged(self) -> bool:
        """True if the graph is too large for its matrices to be printed without `full`."""
        return not self.full and len(self.steps.names) > MAX_PRINTED_NODES

    def step_blocks(self, every_matrix: bool) -> list[Block]:
        """Return report blocks of matrices, properties, the claim, powers and the layer; ignore `every_matrix`."""
        degrees = self.steps.degrees
        sizes = f"{pluralize(len(self.steps.names), 'node')}, {pluralize(self.steps.edges, 'edge')}"
        degree_range = (
            f"degrees with the loop from {format_number(degrees.min(), 0)} to {format_number(degrees.max(), 0)}"
        )
        rounding = f"Printed to {pluralize(self.decimals, 'decimal')}; nothing is rounded on the way."
        return [
            Text(f"{sizes}; {degree_range}. {rounding}"),
            *map(Text, self.notes),
            *([] if self.is_abridged else self._matrix_blocks()),
            *self._property_blocks(),
            Heading("The claim"),
            Text(CLAIM),
            Text(self.verdict),
            *self._power_blocks(),
            *([] if self.is_abridged else self._layer_blocks()),
        ]

    def _matrix_blocks(self) -> list[Block]:
        """Return report blocks of A, Ã, the degrees, Â with the arithmetic of the rows in focus, and D̃⁻¹Ã."""
        steps, names, degrees = self.steps, self.steps.names, self.steps.degrees
        a, loops, symmetric, rows = (
            Matrix(SYMBOLS[name], names, names, matrix, sums=matrix.sum(axis=1).tolist(), decimals=self.decimals)
            for name, matrix in steps.matrices.items()
        )
        columns = [format_numbers(values, self.decimals) for values in (degrees - 1, degrees, degrees**-0.5)]
        lines: list[str] = []
        for node in steps.focus:
            row, neighbours = steps.matrices["symmetric"][node], np.flatnonzero(steps.matrices["loops"][node])
            for other in neighbours:
                product = f"{format_number(degrees[node], 0)}·{format_number(degrees[other], 0)}"
                lines.append(f"Â[{names[node]}, {names[other]}] = 1/√({product}) = {self._number(row[other])}")
            terms = " + ".join(self._number(row[other]) for other in neighbours)
            lines.append(f"row {names[node]}: {terms} = {self._number(row.sum())}")
        return [
            Heading("The graph: A, and Ã = A + I"),
            a,
            loops,
            Heading("Degrees: d̃ is the row sum of Ã"),
            Table(("node", "edges", "d̃", "1/√d̃"), tuple(zip(names, *columns, strict=True))),
            Heading("Â = D̃^(−1/2) Ã D̃^(−1/2): 1/√(d̃_i d̃_j) where Ã has a one"),
            Text("\n".join(lines)),
            symmetric,
            Heading("D̃⁻¹Ã: every row of Ã over its own degree"),
            rows,
        ]

    def _property_blocks(self) -> list[Block]:
        """Return a report table of row sums, symmetry, largest eigenvalue and spectral norm of each matrix."""
        rows = []
        for name, properties in self.steps.properties.items():
            sums = properties.row_sums
            lowest, highest = self._number(sums.min()), self._number(sums.max())
            span = lowest if np.ptp(sums) < TOLERANCE else f"{lowest} to {highest}"
            norms = self._number(properties.largest_eigenvalue), self._number(properties.spectral_norm)
            rows.append((SYMBOLS[name], span, "yes" if properties.symmetric else "no", *norms))
        explanation = (
            "The spectral norm of a symmetric matrix is its largest |eigenvalue|; that of D̃⁻¹Ã, which has the "
            "eigenvalues of Â, is the root of the largest eigenvalue of MᵀM."
        )
        header = ("", "row sums", "symmetric", "largest |eigenvalue|", "spectral norm")
        return [Heading("What each of them is"), Table(header, rows), Text(explanation)]

    def _power_blocks(self) -> list[Block]:
        """Return report tables of the norm and largest |entry| of MᵏX for each matrix M, and text on their growth."""
        steps, features = self.steps, self.steps.features
        description = f"given: {features.shape[0]}×{features.shape[1]}"
        if np.array_equal(features, np.ones((len(features), 1))):
            description = "a one at every node"
        elif np.array_equal(features, np.eye(len(features))):
            description = "a unit vector for every node, so that MᵏX is Mᵏ itself"
        tables = []
        for which, title in enumerate(("‖MᵏX‖, the root of the sum of squares", "the largest |entry| of MᵏX")):
            columns = [format_numbers(norms[:, which], self.decimals) for norms in steps.power_norms.values()]
            rows = zip(map(str, range(steps.powers + 1)), *columns, strict=True)
            tables.append(Table(("k", *SYMBOLS.values()), tuple(rows), title))
        growth = "X is 0, and stays so."
        if np.any(features):
            grown = {name: self._number(norms[-1, 0] / norms[0, 0]) for name, norms in steps.power_norms.items()}
            spectral = {name: self._number(values.spectral_norm) for name, values in steps.properties.items()}
            growth = (
                f"Ã: {grown['loops']} times the norm after {format_times(steps.powers)}; a product multiplies by at "
                f"most {spectral['loops']}, its largest eigenvalue, and in the long run nearly always by that."
                f"\nÂ: {grown['symmetric']} times; its spectral norm is 1, so that the norm never grows."
                f"\nD̃⁻¹Ã: {grown['rows']} times; every entry is a mean, so that the largest never grows; its "
                f"spectral norm is {spectral['rows']}."
            )
        return [Heading("What each does to the scale of features"), Text(f"X is {description}."), *tables, Text(growth)]

    def _layer_blocks(self) -> list[Block]:
        """Return report blocks of the layer Â X W, its first column term by term for nodes in focus; [] without W."""
        steps, names, weights = self.steps, self.steps.names, self.steps.weights
        if weights is None or steps.layer is None:
            return []
        features, columns = number_labels(weights.shape[0], "x_"), number_labels(weights.shape[1], "out_")
        mapped = steps.features @ weights
        lines = []
        for node in steps.focus:
            row = steps.matrices["symmetric"][node]
            neighbours = np.flatnonzero(steps.matrices["loops"][node])
            terms = " + ".join(self._product(row[other], mapped[other, 0]) for other in neighbours)
            lines.append(f"{names[node]}, out_1: {terms} = {self._number(row @ mapped[:, 0])}")
        return [
            Heading("One layer: Â X W"),
            Matrix("X", names, features, steps.features, decimals=self.decimals),
            Matrix("W", features, columns, weights, decimals=self.decimals),
            Matrix("X W", names, columns, mapped, decimals=self.decimals),
            Text("\n".join(lines)),
            Matrix("Â X W", names, columns, steps.layer, decimals=self.decimals),
        ]

    def _number(self, value: float) -> str:
        """Write a number for a sentence."""
        return format_numbers([value], self._decimals(value))[0]

    def _product(self, left: float, right: float) -> str:
        """Write a product of two numbers, such as 0.5·(−2): a negative right factor is in brackets."""
        return f"{self._number(left)}·{format_factor(right, self._decimals(right))}"

    def _decimals(self, value: float) -> int:
        """Return the number of decimals with which a number is written in a sentence."""
        return self.decimals if abs(value) < 1000 else 0  # a large number in a sentence needs no decimals

    def to_dict(self) -> dict[str, Any]:
        """Return the case, every step and the verdict on the claim as plain values for JSON."""
        steps = self.steps
        names = ("edges", "degrees", "matrices", "features", "layer")
        norms = {
            name: {key: norms[:, column] for key, norms in steps.power_norms.items()}
            for column, name in enumerate(("norms", "largest"))
        }
        values = {
            "case": self.case,
            "notes": self.notes,
            "nodes": steps.names,
            "traits": steps.properties,
            "claim": {"said": CLAIM, "right": steps.rows_sum_to_one, "verdict": self.verdict},
        }
        return to_plain(values | norms | {name: getattr(steps, name) for name in names})

    def expected(self) -> list[ExpectedValue]:
        """Return the right values of degrees, matrices, their sums, norms and powers, and of the layer."""
        steps, nodes = self.steps, self.steps.names
        edges, powers = steps.adjacency.sum(axis=1), tuple(map(str, range(steps.powers + 1)))
        edge_roots = np.divide(1.0, np.sqrt(edges), out=np.zeros_like(edges), where=edges > 0)  # 0 if it has none
        no_loop = "the loop that Ã adds is not counted"
        wrong_roots = {no_loop: edge_roots, "1/d̃ in place of 1/√d̃": 1 / steps.degrees}
        roots = 1 / np.sqrt(steps.degrees)
        expected: list[ExpectedValue] = [
            expect_numbers("degrees d d̃ d_tilde D", steps.degrees, (nodes,), "d̃, the row sums of Ã", {no_loop: edges}),
            expect_numbers("roots 1/√d̃ inverse_roots", roots, (nodes,), "1/√d̃", wrong_roots),
        ]
        # what divides each matrix, with the degrees of A in place of those of Ã
        divisors = {"symmetric": np.outer(edge_roots, edge_roots), "rows": edge_roots[:, None] ** 2}
        for key, matrix in steps.matrices.items():
            symbol, properties, norms, mistakes = SYMBOLS[key], steps.properties[key], steps.power_norms[key], {}
            if key in divisors:
                mistakes = {
                    "A in place of Ã: no loops": steps.adjacency * divisors[key],
                    "degrees of A in place of those of Ã": steps.matrices["loops"] * divisors[key],
                }
            wrong_sums = {mistake: wrong.sum(axis=1) for mistake, wrong in mistakes.items()}
            if key == "symmetric":
                wrong_sums["the rows of Â are not normalised; those of D̃⁻¹Ã are"] = np.ones(len(nodes))
            meaning = "adjacency" if key == "adjacency" else symbol
            expected.append(expect_numbers(CLAIM_NAMES[key], matrix, (nodes, nodes), meaning, mistakes))
            for prefix, values, labels, meaning, wrong in (
                ("sum", properties.row_sums, (nodes,), f"row sums of {symbol}", wrong_sums),
                ("norm", properties.spectral_norm, (), f"spectral norm of {symbol}", None),
                ("radius", properties.largest_eigenvalue, (), f"largest |eigenvalue| of {symbol}", None),
                ("size", norms[:, 0], (powers,), f"‖MᵏX‖ for k = 0 …, M = {symbol}", None),
                ("largest", norms[:, 1], (powers,), "its largest entry", None),
            ):
                names = " ".join(f"{prefix}_{name}" for name in CLAIM_NAMES[key].split())
                expected.append(expect_numbers(names, values, labels, meaning, wrong))
        if steps.layer is not None:
            mapped = steps.features @ steps.weights
            mistakes = {
                "Ã in place of Â": steps.matrices["loops"] @ mapped,
                "A in place of Â: no loops, not normalised": steps.adjacency @ mapped,
                "D̃⁻¹Ã in place of Â": steps.matrices["rows"] @ mapped,
                "X W alone: Â is left out": mapped,
            }
            expected.append(expect_numbers("layer AXW ÂXW Y", steps.layer, (nodes,), "Â X W", mistakes))
        return expected


def work_graph(
    example: CaseLike,
    *,
    nodes: Sequence[str] | None = None,
    powers: int | None = None,
    full: bool = False,
    decimals: int = 4,
) -> WorkedGraph:
    """Compute an example of graph convolution: matrices, their properties, powers, and a layer.

    Ã = A + I, Â = D̃^{-1/2} Ã D̃^{-1/2} with D̃ the degrees of Ã; row sums, symmetry and spectral norm of each, the
    norm of X, MX, M²X … and, with W, one layer Â X W.

    The example may be a table of edges (.csv) too. `nodes`, whose arithmetic is shown, replaces the field `focus`;
    `powers` replaces its own. `full` prints the matrices of a large graph.

    >>> worked = work_graph({"edges": [["hub", "a"], ["hub", "b"], ["hub", "c"]]})
    >>> worked.steps.matrices["symmetric"].sum(axis=1).round(3).tolist(), worked.steps.rows_sum_to_one
    ([1.311, 0.854, 0.854, 0.854], False)
    """
    overrides = {"focus": tuple(nodes) if nodes else None, "powers": powers}
    notes: list[str] = []
    if isinstance(example, str | Path) and Path(example).suffix.lower() in TABLE_SUFFIXES:
        label = str(example)
        case = _read_edges(Path(example), overrides, notes)
        text = to_toml(case.to_dict())
    else:
        case, label, text = read_case(GraphCase, example, overrides)
    with prefix_errors(label):
        steps = _build_graph(case, notes)
    return WorkedGraph(case, text, steps, tuple(notes), full=full, decimals=decimals)


def _build_graph(case: GraphCase, notes: list[str]) -> GraphSteps:
    """Return the graph and features of a case, checked; append sentences on edges left out to `notes`."""
    names = case.nodes or tuple(dict.fromkeys(name for edge in case.edges for name in edge))
    if not names:
        raise SpecError('the graph has no nodes. Give nodes = ["a", "b"], or edges = [["a", "b"]].')
    if len(names) > MAX_NODES:
        raise SpecError(f"{len(names):,} nodes are too many for work by hand; at most {MAX_NODES} are read.")
    duplicate = next((name for name, count in Counter(names).items() if count > 1), None)
    if duplicate is not None:
        raise SpecError(f"the node '{duplicate}' is listed twice in nodes. Give each node once.")
    indices = {name: index for index, name in enumerate(names)}
    adjacency = _build_adjacency(case, indices, notes)
    features = np.ones((len(names), 1)) if case.start == "ones" else np.eye(len(names))
    if case.X is not None:
        features = _read_matrix("X", case.X, len(names), "one for each node")
    weights = None
    if case.W is not None:
        weights = _read_matrix("W", case.W, features.shape[1], "one for each column of X")
    for name in case.focus:
        if name not in indices:
            raise SpecError(describe_unknown("focus", name, indices))
    neighbours = adjacency.sum(axis=1)
    focus = [indices[name] for name in case.focus] or [int(neighbours.argmax()), int(neighbours.argmin())]
    labels, rows = tuple(map(escape_invisible, names)), tuple(dict.fromkeys(focus))
    return GraphSteps(labels, adjacency, features, weights, rows, case.powers)


def _read_edges(path: Path, overrides: Mapping[str, Any], notes: list[str]) -> GraphCase:
    """Read a table of edges as a case with the fields in `overrides`; append a note on each weight column left out."""
    columns = [
        Column("source", None, frozenset(SOURCE_COLUMNS)),
        Column("target", None, frozenset(TARGET_COLUMNS)),
    ]
    table = read_table(
        path,
        columns,
        any_width=True,
        is_header=lambda first: bool({cell.strip().casefold() for cell in first} & {*SOURCE_COLUMNS, *TARGET_COLUMNS}),
    )
    notes += [
        f"The column '{escape_invisible(name.strip())}' is left out: here every edge counts 1."
        for name in table.names or ()
        if name.strip().casefold() in ("weight", "value")
    ]
    edges = list(zip(table.cells["source"], table.cells["target"], strict=True))
    fields = {name: value for name, value in overrides.items() if value is not None}
    return GraphCase.read({"title": f"The graph of {path.name}", "edges": edges, **fields}, str(path))


def _build_adjacency(case: GraphCase, indices: Mapping[str, int], notes: list[str]) -> Square:
    """Return the adjacency matrix; `indices` are the rows of nodes. Append sentences on edges left out to `notes`."""
    adjacency = np.zeros((len(indices), len(indices)))
    for number, edge in enumerate(case.edges, 1):
        if len(edge) != 2:
            raise SpecError(f'edge {number} has {pluralize(len(edge), "end")}, expected two, as in ["a", "b"].')
        for name in edge:
            if name not in indices:
                raise SpecError(f"edge {number}: " + describe_unknown("node", name, indices))
        first, second = (indices[name] for name in edge)
        if first != second:
            adjacency[first, second] = adjacency[second, first] = 1
    loops = sum(len(set(edge)) == 1 for edge in case.edges)
    if loops:
        notes.append(
            f"{pluralize(loops, 'edge')} from a node to itself: left out, since Ã gives every node one loop anyway."
        )
    duplicates = len(case.edges) - loops - int(adjacency.sum()) // 2
    if duplicates:
        notes.append(f"{pluralize(duplicates, 'edge')} given twice: counted once.")
    return adjacency


def _read_matrix(name: str, rows: Sequence[Sequence[float]], count: int, reason: str) -> Array:
    """Return the field `name` as a matrix; raise a SpecError, which ends in the reason, unless it has `count` rows."""
    matrix = as_matrix(name, rows)
    if len(matrix) != count:
        hint = " It would fit transposed." if matrix.shape[1] == count else ""
        raise SpecError(f"{name} has {pluralize(len(matrix), 'row')}, expected {count}: {reason}.{hint}")
    if np.abs(matrix).max() > MAX_MAGNITUDE:
        raise SpecError(f"{name} holds a number past {MAX_MAGNITUDE:.0e}, too large to work with.")
    return matrix
