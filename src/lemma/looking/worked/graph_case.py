"""What a person writes in a file to have a small graph worked out: nodes, edges and, if wanted, X and W."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from lemma.looking.worked.cases import Case, Number

MOST_NODES = 500
"""A larger graph is no small case: its eigenvalues alone would take a while."""


def _as_name(value: Any) -> Any:
    """A node may be called by a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Name = Annotated[str, BeforeValidator(_as_name), Field(min_length=1)]
Row = Annotated[tuple[Number, ...], Field(min_length=1, max_length=MOST_NODES)]
Matrix = Annotated[tuple[Row, ...], Field(min_length=1, max_length=MOST_NODES)]


class GraphCase(Case):
    """An undirected graph, what its nodes know, and a layer (problem D4)."""

    nodes: tuple[Name, ...] = ()
    """The nodes by name; if none is given, those of the edges in their order."""
    edges: Annotated[tuple[tuple[Name, ...], ...], Field(max_length=100_000)]
    """Pairs of nodes; an edge counts for both of its ends, whichever stands first."""
    X: Matrix | None = None
    """The features, a row for each node."""
    start: Literal["ones", "units"] = "ones"
    """What stands for X where none is given: a one at every node, or a unit vector for each."""
    W: Matrix | None = None
    """The map of a layer Â X W, a row for each feature."""
    powers: Annotated[int, Field(strict=True, ge=1, le=50)] = 8
    """How often the features are multiplied."""
    focus: tuple[Name, ...] = ()
    """The nodes whose row of arithmetic is shown; if none is named, one of the most and one of the fewest edges."""

    @field_validator("focus", mode="before")
    @classmethod
    def _one_focus(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str | int) else value
