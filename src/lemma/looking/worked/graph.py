"""Graph convolution worked by hand (problem D4; Kipf & Welling 2017): Ã, Â, and what each does to features."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

from lemma.data.tables import Column, read_table
from lemma.looking.worked.graph_case import GraphCase
from lemma.looking.worked.graph_given import given_graph
from lemma.looking.worked.graph_result import WorkedGraph
from lemma.looking.worked.graph_steps import GraphSteps
from lemma.looking.worked.numerals import printable
from lemma.looking.worked.reading import Examples, Found, Given, list_examples, read_case
from lemma.spec.toml import to_toml

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
