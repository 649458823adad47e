"""Graphs out of tables: one of nodes (id, label, features) and one of edges (source, target, weight)."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np

from lemma.data.graphs.features import features_of
from lemma.data.graphs.numbers import POSITIVE, as_weight
from lemma.data.graphs.raw import Pairs, RawGraph, Weights
from lemma.data.hashing import files_sum
from lemma.data.records import Row, read_records
from lemma.errors import DataError

Otherwise = TypeVar("Otherwise", int, None)
IDS = ("id", "node", "name", "nodeid", "node_id")
LABELS = ("label", "labels", "class", "category", "subject", "topic", "community", "club", "y")
SOURCES = ("source", "from", "src", "citing", "sourcenodeid")
TARGETS = ("target", "to", "dst", "cited", "targetnodeid")
WEIGHTS = ("weight", "value")


@dataclass(frozen=True)
class Nodes:
    """A table of nodes: their names in order, their labels, and all that is said beside."""

    path: Path
    lines: Sequence[int]
    names: list[str]
    labels: list[str]
    others: Mapping[str, list[str]]

    def where(self, place: int) -> str:
        """Name the place of a node, for an error."""
        return f"{self.path}, line {self.lines[place]}"


def graph_of_tables(nodes_path: Path, edges_path: Path, about: str) -> RawGraph:
    """Read both tables; an edge that names an unknown node is an error that names its line."""
    nodes = read_nodes(nodes_path)
    number = {name: place for place, name in enumerate(nodes.names)}
    edges, weights = read_edges(edges_path, number)
    features, said = features_of(nodes.others, len(nodes.names), nodes.where)
    found = files_sum([nodes_path, edges_path])
    return RawGraph(nodes.names, nodes.labels, features, edges, weights, found, about, tuple(said))


def read_nodes(path: Path) -> Nodes:
    """Read a table of nodes; without a header the first column is the name and the second the label."""
    names, rows = _opened(path, (*IDS, *LABELS, "features"))
    header = [name.strip().casefold() for name in names] if names else []
    lines, cells = _columns(path, rows, names)
    own = _place(header, IDS, 0)
    label = _place(header, LABELS, None) if header else 1
    if label is None or label >= len(cells) or label == own:
        raise DataError(
            f"{path}: no column of labels, so that there is nothing to learn. Call one 'label'; a node whose class is "
            f"not known has an empty one. Columns: {', '.join(names or [str(len(cells))])}."
        )
    _refuse_twice(path, lines, cells[own])
    titles = [(header[place] if header else "") or f"column {place + 1}" for place in range(len(cells))]
    others = {titles[place]: cells[place] for place in range(len(cells)) if place not in (own, label)}
    return Nodes(path, lines, cells[own], cells[label], others)


def read_edges(path: Path, number: Mapping[str, int]) -> tuple[Pairs, Weights | None]:
    """Read a table of edges: columns called source and target, or else the first two; a weight if called so."""
    names, rows = _opened(path, (*SOURCES, *TARGETS, *WEIGHTS))
    header = [name.strip().casefold() for name in names] if names else []
    weight = _place(header, WEIGHTS, None)
    source, target = _sides(path, header, weight)
    ends, weights = array("q"), array("f")
    for line, cells in rows:
        if len(cells) <= max(source, target, weight or 0):
            needed = "its source and target" if weight is None else "its source, target and weight"
            raise DataError(f"{path}, line {line}: {_counted(len(cells))}, where an edge needs {needed}.")
        ends.append(_known(path, line, cells[source], number))
        ends.append(_known(path, line, cells[target], number))
        if weight is not None:
            weights.append(_weight(path, line, cells[weight]))
    pairs = np.array(ends, dtype=np.int64).reshape(-1, 2).T
    return pairs, np.array(weights, dtype=np.float32) if weight is not None else None


def _opened(path: Path, called: Sequence[str]) -> tuple[Sequence[str] | None, Iterator[Row]]:
    """The header, if the first row bears any of the names that such columns have, and the rows after it."""
    names, rows = read_records(path)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path}: the table is empty.")
    if names is None and {cell.strip().casefold() for cell in first[1]} & set(called):
        names, found = first[1], rows
    else:
        found = chain([first], rows)
    _refuse_titles(path, names or ())
    return names, found


def _refuse_titles(path: Path, names: Sequence[str]) -> None:
    """Refuse two columns of one name, of which one could only be lost."""
    header = [name.strip().casefold() for name in names]
    if twice := [name for place, name in enumerate(header) if name and name in header[:place]]:
        raise DataError(f"{path}: two columns are called {twice[0][:40]!r}. Give each a name of its own.")


def _sides(path: Path, header: Sequence[str], weight: int | None) -> tuple[int, int]:
    """Where the two ends of an edge stand; if only one is named, the other is the first column left."""
    source, target = _place(header, SOURCES, None), _place(header, TARGETS, None)
    left = (place for place in range(len(header) or 2) if place not in (source, target, weight))
    source = next(left, None) if source is None else source
    target = next(left, None) if target is None else target
    if source is None or target is None:
        raise DataError(
            f"{path}: an edge has two ends, and there is no second column for one. Call the columns source and target; "
            f"got: {', '.join(header)}."
        )
    return source, target


def _columns(path: Path, rows: Iterator[Row], names: Sequence[str] | None) -> tuple[Sequence[int], list[list[str]]]:
    lines, cells = array("q"), [[] for _ in names or ()]
    for line, row in rows:
        cells = cells or [[] for _ in row]
        if len(row) != len(cells):
            raise DataError(f"{path}, line {line}: {_counted(len(row))} where the table has {len(cells)}.")
        lines.append(line)
        for column, cell in zip(cells, row, strict=True):
            column.append(cell.strip())
    if not lines:
        raise DataError(f"{path}: nothing but a header. Give one node a row.")
    return lines, cells


def _place(header: Sequence[str], called: Sequence[str], otherwise: Otherwise) -> int | Otherwise:
    """Where a column is that goes by one of these names, the first of them first."""
    return next((header.index(name) for name in called if name in header), otherwise)


def _known(path: Path, line: int, cell: str, number: Mapping[str, int]) -> int:
    place = number.get(cell.strip())
    if place is None:
        hint = " If line 1 is a header, call its columns source and target." if line == 1 else ""
        raise DataError(
            f"{path}, line {line}: there is no node {cell.strip()[:40]!r} among the {len(number):,} nodes. "
            f"Add it to their table, or take the edge out.{hint}"
        )
    return place


def _weight(path: Path, line: int, cell: str) -> float:
    weight = as_weight(cell)
    if weight is None:
        raise DataError(f"{path}, line {line}: the weight is {cell[:40]!r}; {POSITIVE}.")
    return weight


def _counted(columns: int) -> str:
    """So many columns, in words."""
    return f"{columns} column{'' if columns == 1 else 's'}"


def _refuse_twice(path: Path, lines: Sequence[int], names: Sequence[str]) -> None:
    seen: dict[str, int] = {}
    for line, name in zip(lines, names, strict=True):
        if not name:
            raise DataError(f"{path}, line {line}: the node has no name. Fill in its id.")
        if name in seen:
            raise DataError(f"{path}, line {line}: the node {name[:40]!r} stands on line {seen[name]} already.")
        seen[name] = line
