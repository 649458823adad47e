"""Graphs whose nodes are classified: read, generated, split."""

import json
import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from jaxtyping import Float32, Int64

from lemma.data.corpora import CORA, GRAPHS, corpus_files
from lemma.data.files import Progress, files_sum, text_sum
from lemma.data.tables import SUFFIXES, Row, read_records
from lemma.data.text import exists
from lemma.errors import DataError, SpecError, unknown
from lemma.spec.data import GraphSpec

# A matrix of which only what is not nought is kept, row after row.


@dataclass(frozen=True)
class Compressed:
    """Row i holds `values[starts[i]:starts[i+1]]` in the columns of the same places, and nought elsewhere."""

    starts: Int64[np.ndarray, "rows_and_one"]
    columns: Int64[np.ndarray, "entries"]
    values: Float32[np.ndarray, "entries"]
    width: int

    @classmethod
    def identity(cls, size: int) -> Self:
        """One feature a node, its own."""
        return cls(np.arange(size + 1), np.arange(size), np.ones(size, dtype=np.float32), size)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.starts) - 1, self.width

    @property
    def rows(self) -> Int64[np.ndarray, "entries"]:
        """The row of every entry."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def scaled_rows(self) -> Self:
        """The same with rows that sum to one; an empty row stays empty.

        >>> bag = Compressed(np.array([0, 2, 2]), np.array([0, 2]), np.ones(2, dtype=np.float32), 3)
        >>> bag.scaled_rows().dense().tolist()
        [[0.5, 0.0, 0.5], [0.0, 0.0, 0.0]]
        """
        sums = np.zeros(len(self.starts) - 1, dtype=np.float64)
        np.add.at(sums, self.rows, self.values)
        values = (self.values / sums[self.rows]).astype(np.float32)
        return type(self)(self.starts, self.columns, values, self.width)

    def dense(self) -> Float32[np.ndarray, "rows width"]:
        """The whole matrix."""
        full = np.zeros(self.shape, dtype=np.float32)
        full[self.rows, self.columns] = self.values
        return full


Features = Compressed | Float32[np.ndarray, "nodes features"]
"""What is known of each node: few words of many, or a row of numbers."""


# A graph as it was read or made, before it is divided: names, labels, features, and each edge once.


Pairs = Int64[np.ndarray, "two edges"]
Weights = Float32[np.ndarray, "edges"]


@dataclass(frozen=True)
class RawGraph:
    """Nodes with labels and features, and the edges between them."""

    names: Sequence[str]
    """What each node is called in its file."""
    labels: Sequence[str]
    """The class of each node; an empty one is not known."""
    features: Features
    edges: Pairs
    weights: Weights | None
    hash: str
    about: str
    said: tuple[str, ...] = ()
    """How it was read, in words."""

    def tidied(self) -> "RawGraph":
        """The same with each edge once, in whatever direction it came, and without loops, which say nothing new."""
        edges, weights, said = each_once(self.edges, self.weights, len(self.names))
        if not edges.shape[1]:
            said.append("there are no edges: each node stands alone")
        return replace(self, edges=edges, weights=weights, said=(*self.said, *said))


def each_once(edges: Pairs, weights: Weights | None, nodes: int) -> tuple[Pairs, Weights | None, list[str]]:
    """Edges between two nodes, the lower number first, each once and in order; of weights the largest counts.

    >>> each_once(np.array([[1, 0, 2, 0], [0, 1, 2, 2]]), None, 3)[0].tolist()
    [[0, 0], [1, 2]]
    """
    apart = edges[0] != edges[1]
    low, high = np.minimum(*edges[:, apart]), np.maximum(*edges[:, apart])
    keys, owner = np.unique(low * nodes + high, return_inverse=True)
    said = [f"{edges.shape[1] - len(keys):,} edges were loops or came twice: each counts once"]
    if weights is not None:
        largest = np.zeros(len(keys), dtype=np.float32)
        np.maximum.at(largest, owner, weights[apart])
        weights = largest
    return np.stack([keys // nodes, keys % nodes]), weights, said if len(keys) < edges.shape[1] else []


# Numbers as 32 bits hold them, which is what models compute with.


def as_single(value: str | float) -> float | None:
    """The number that 32 bits make of a cell or a number; None where that is none, or not a finite one.

    >>> as_single("0.5"), as_single("tall"), as_single("1e300"), as_single("1e-60")
    (0.5, None, None, 0.0)
    """
    try:
        held = array("f", [float(value)])[0]
    except (ValueError, OverflowError):
        return None
    return held if math.isfinite(held) else None


def as_weight(value: str | float) -> float | None:
    """The same of an edge's weight, which is above 0."""
    weight = as_single(value)
    return weight if weight is not None and weight > 0 else None


POSITIVE = "a number above 0 is expected, within what 32 bits hold (1e-45 to 3.4e38)"
FINITE = "a finite number is expected, no larger than 3.4e38 (what 32 bits hold)"


# From what a person's table says of nodes to their features.
#
# Words, and columns of noughts and ones, become shares: each node's sum to one. Other numbers are made comparable:
# each
# column gets the mean 0 and the deviation 1. Where nothing is said, each node is its own feature.


Where = Callable[[int], str]
"""Names the place of a node, for an error."""
WORDS = "features"
"""The column that holds all features of a node, between spaces."""


def features_of(columns: Mapping[str, Sequence[str]], nodes: int, where: Where) -> tuple[Features, list[str]]:
    """The features of nodes, and how they were read, in words."""
    if WORDS in columns:
        return _listed(columns[WORDS], where)
    numeric = {name: cells for name, cells in columns.items() if any(map(_is_number, cells))}
    said = [f"the column '{name}' holds no numbers and was left out" for name in columns if name not in numeric]
    if not numeric:
        return Compressed.identity(nodes), [*said, "no features: each node is its own"]
    table = np.array([_numbers(name, cells, where) for name, cells in numeric.items()], dtype=np.float32).T
    features, how = _comparable(table)
    return features, [*said, how]


def _listed(cells: Sequence[str], where: Where) -> tuple[Features, list[str]]:
    """Of the column of all features: numbers, as many for each node, or else words."""
    rows = [cell.replace(",", " ").split() for cell in cells]
    first = next((row for row in rows if row), [])
    if first and all(map(_is_number, first)):
        return _vectors(rows, len(first), where)
    bag = _bag(rows)
    return bag, [f"{bag.width:,} different words are the features; those of a node sum to one"]


def _vectors(rows: Sequence[Sequence[str]], width: int, where: Where) -> tuple[Features, list[str]]:
    table = np.empty((len(rows), width), dtype=np.float32)
    for place, row in enumerate(rows):
        numbers = [number for word in row if (number := as_single(word)) is not None]
        if len(numbers) != width or len(row) != len(numbers):
            raise DataError(
                f"{where(place)}: {width} finite numbers (up to 3.4e38) are expected as features, as of the first node "
                f"that has any; got {len(row)} words, {len(numbers)} of them such numbers."
            )
        table[place] = numbers
    features, how = _comparable(table)
    return features, [how]


def _bag(rows: Sequence[Sequence[str]]) -> Compressed:
    """Which words each node has, in the order of the alphabet."""
    known = {word: place for place, word in enumerate(sorted({word for row in rows for word in row}))}
    columns, starts = array("q"), array("q", [0])
    for row in rows:
        columns.extend(sorted({known[word] for word in row}))
        starts.append(len(columns))
    values = np.ones(len(columns), dtype=np.float32)
    return Compressed(np.array(starts), np.array(columns), values, len(known)).scaled_rows()


def _comparable(table: Float32[np.ndarray, "nodes features"]) -> tuple[Features, str]:
    if np.isin(table, (0, 1)).all():
        rows, columns = np.nonzero(table)
        starts = np.searchsorted(rows, np.arange(len(table) + 1))
        bag = Compressed(starts, columns, np.ones(len(columns), dtype=np.float32), table.shape[1])
        return bag.scaled_rows(), f"{table.shape[1]:,} features of noughts and ones; those of a node sum to one"
    deviation = table.std(axis=0, dtype=np.float64)
    centred = (table - table.mean(axis=0, dtype=np.float64)) / np.where(deviation > 0, deviation, 1)
    return centred.astype(np.float32), f"{table.shape[1]:,} features, each brought to mean 0 and deviation 1"


def _numbers(name: str, cells: Sequence[str], where: Where) -> list[float]:
    numbers: list[float] = []
    for place, cell in enumerate(cells):
        number = as_single(cell)
        if number is None:
            raise DataError(f"{where(place)}: the feature '{name}' is {cell[:40]!r}; {FINITE}.")
        numbers.append(number)
    return numbers


def _is_number(cell: str) -> bool:
    """Whether a cell says a number, be it one that is too large."""
    try:
        return not np.isnan(float(cell))
    except ValueError:
        return False


# Graphs out of tables: one of nodes (id, label, features) and one of edges (source, target, weight).


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


# Graphs out of node-link JSON, as networkx writes it: {"nodes": [{"id": …}], "links": [{"source": …, …}]}.


def graph_of_json(path: Path) -> RawGraph:
    """Read a node-link file; a link to an unknown node is an error that says which one it is."""
    document = _document(path)
    nodes, links = _node_link_listed(path, document, "nodes"), _node_link_listed(path, document, "links", "edges")
    number: dict[str, int] = {}
    for place, node in enumerate(nodes):
        name = str(_item(path, f"nodes[{place}]", node, "id"))
        if number.setdefault(name, place) != place:
            raise DataError(f"{path}, nodes[{place}]: the node {name[:40]!r} is there already.")
    label = next((name for name in LABELS if any(name in node for node in nodes)), None)
    if label is None:
        raise DataError(f"{path}: no node has a 'label', so that there is nothing to learn. Give some nodes one.")
    others = {name: None for node in nodes for name in node if name not in ("id", label)}
    columns = {name: [_text(node.get(name)) for node in nodes] for name in others}
    features, said = features_of(columns, len(nodes), lambda place: f"{path}, nodes[{place}]")
    ends = [
        [_end(path, place, link, side, number) for side in ("source", "target")] for place, link in enumerate(links)
    ]
    return RawGraph(
        names=list(number),
        labels=[_label(node.get(label)) for node in nodes],
        features=features,
        edges=np.array(ends, dtype=np.int64).reshape(-1, 2).T,
        weights=_weights(path, links),
        hash=files_sum([path]),
        about=str(path),
        said=tuple(said),
    )


def _document(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: no valid JSON ({error}).") from None
    if not isinstance(document, dict):
        raise DataError(f'{path}: an object with "nodes" and "links" is expected, as networkx.node_link_data gives it.')
    return _keyed(path, "the document", document)


def _keyed(path: Path, where: str, item: Mapping[str, Any]) -> dict[str, Any]:
    """The same with its keys as tables have them: in lower case, without spaces around."""
    keyed: dict[str, Any] = {}
    for key, value in item.items():
        if keyed.setdefault(key.strip().casefold(), value) is not value:
            raise DataError(f"{path}, {where}: the key {key[:40]!r} stands twice. Give each a name of its own.")
    return keyed


def _node_link_listed(path: Path, document: Mapping[str, Any], *names: str) -> Sequence[Mapping[str, Any]]:
    found = next((document[name] for name in names if name in document), None)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise DataError(f'{path}: "{names[0]}" is to be a list of objects, as networkx.node_link_data gives it.')
    if not found and names == ("nodes",):
        raise DataError(f"{path}: there are no nodes.")
    return [_keyed(path, f"{names[0]}[{place}]", item) for place, item in enumerate(found)]


def _item(path: Path, where: str, item: Mapping[str, Any], name: str) -> Any:
    if name not in item or isinstance(item[name], dict | list):
        raise DataError(f"{path}, {where}: '{name}' is missing, or is no plain name.")
    return item[name]


def _end(path: Path, place: int, link: Mapping[str, Any], side: str, number: Mapping[str, int]) -> int:
    name = str(_item(path, f"links[{place}]", link, side))
    if name not in number:
        raise DataError(f"{path}, links[{place}]: there is no node {name[:40]!r}. Add it, or take the link out.")
    return number[name]


def _weights(path: Path, links: Sequence[Mapping[str, Any]]) -> np.ndarray | None:
    if not any("weight" in link for link in links):
        return None
    weights = [link.get("weight", 1) for link in links]
    for place, weight in enumerate(weights):
        if not isinstance(weight, int | float) or as_weight(weight) is None:
            raise DataError(f"{path}, links[{place}]: the weight is {str(weight)[:40]}; {POSITIVE}.")
    return np.array(weights, dtype=np.float32)


def _label(value: Any) -> str:
    """A label; what tables of numbers write for nothing, NaN, is none."""
    return "" if isinstance(value, float) and np.isnan(value) else _text(value).strip()


def _text(value: Any) -> str:
    """A cell as a table would hold it: a list between spaces, nothing as an empty one."""
    if isinstance(value, list):
        return " ".join(_text(item) for item in value)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


# A generated graph: communities that are denser within than between, with features that only hint at them.
#
# The stochastic block model (Holland, Laskey & Leinhardt 1983), drawn edge by edge, so that time and memory grow with
# the
# edges and not with the pairs of nodes.


NODES, DEGREE = 1000, 10
CLASSES, FEATURES = 4, 16
WITHIN = 0.7
"""The share of the edges that are drawn within a community."""
HINT = 0.5
"""How far the means of two communities lie apart in a feature, in standard deviations of its noise, about."""
SPARSE = 16
"""At most nodes²/16 edges, so that few draws hit an edge that is there already."""


def blocks(nodes: int | None = None, edges: int | None = None, seed: int = 0) -> RawGraph:
    """Draw communities, edges and features; the same sizes and seed give the same graph.

    >>> blocks(100, 300).edges.shape
    (2, 300)
    """
    nodes = nodes or NODES
    edges = edges or nodes * DEGREE // 2
    _refuse_dense(nodes, edges)
    random = np.random.default_rng(seed)
    classes = random.permutation(np.arange(nodes) % CLASSES)
    said = f"blocks nodes={nodes} edges={edges} seed={seed} classes={CLASSES} features={FEATURES} {WITHIN} {HINT}"
    return RawGraph(
        names=list(map(str, range(nodes))),
        labels=[f"community {number + 1}" for number in classes.tolist()],
        features=_features(random, classes),
        edges=_edges(random, classes, edges),
        weights=None,
        hash=text_sum(said),
        about=f"blocks of {nodes:,} nodes and {edges:,} edges",
    )


def _edges(random: np.random.Generator, classes: Int64[np.ndarray, "nodes"], wanted: int) -> Pairs:
    """Draw edges until so many different ones are there, and keep so many of them by lot."""
    drawn = np.zeros((2, 0), dtype=np.int64)
    while drawn.shape[1] < wanted:
        more = _draw(random, classes, (wanted - drawn.shape[1]) * 5 // 4 + 16)
        drawn, _, _ = each_once(np.concatenate([drawn, more], axis=1), None, len(classes))
    kept = np.sort(random.permutation(drawn.shape[1])[:wanted])
    return drawn[:, kept]


def _draw(random: np.random.Generator, classes: Int64[np.ndarray, "nodes"], count: int) -> Pairs:
    """Edges from anywhere, to anywhere or to a node of the same community; loops among them."""
    order = np.argsort(classes, kind="stable")
    starts = np.searchsorted(classes[order], np.arange(CLASSES + 1))
    source, target = random.integers(len(classes), size=(2, count))
    home = classes[source]
    near = order[starts[home] + (random.random(count) * (starts[home + 1] - starts[home])).astype(np.int64)]
    return np.stack([source, np.where(random.random(count) < WITHIN, near, target)])


def _features(
    random: np.random.Generator, classes: Int64[np.ndarray, "nodes"]
) -> Float32[np.ndarray, "nodes features"]:
    means = HINT * random.standard_normal((CLASSES, FEATURES), dtype=np.float32)
    return means[classes] + random.standard_normal((len(classes), FEATURES), dtype=np.float32)


def _refuse_dense(nodes: int, edges: int) -> None:
    if nodes < 8 * CLASSES:
        raise SpecError(f"data.nodes = {nodes}: a graph of {CLASSES} blocks needs at least {8 * CLASSES} nodes.")
    if edges > nodes**2 // SPARSE:
        raise SpecError(
            f"data.edges = {edges:,} is too dense for {nodes:,} nodes: at most {nodes**2 // SPARSE:,} edges are drawn."
        )


# Zachary's karate club (1977): 34 members, 78 friendships, and the faction that each joined when the club split.


MEMBERS = 34
FACTIONS = ("Mr. Hi", "Officer")
"""Those who went with the teacher, and those who stayed with the club's president."""
WITH_MR_HI = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 17, 18, 20, 22}
FRIENDS = """
1: 2 3 4 5 6 7 8 9 11 12 13 14 18 20 22 32
2: 3 4 8 14 18 20 22 31
3: 4 8 9 10 14 28 29 33
4: 8 13 14
5: 7 11
6: 7 11 17
7: 17
9: 31 33 34
10: 34
14: 34
15: 33 34
16: 33 34
19: 33 34
20: 34
21: 33 34
23: 33 34
24: 26 28 30 33 34
25: 26 28 32
26: 32
27: 30 34
28: 34
29: 32 34
30: 33 34
31: 33 34
32: 33 34
33: 34
"""
"""Each member, and the friends with higher numbers."""


def karate() -> RawGraph:
    """The club as a graph; its members are known by their numbers alone, so that each is its own feature.

    >>> karate().edges.shape
    (2, 78)
    """
    lines = [line.split(":") for line in FRIENDS.split("\n") if line]
    pairs = [(int(one) - 1, int(other) - 1) for one, others in lines for other in others.split()]
    members = range(1, MEMBERS + 1)
    return RawGraph(
        names=[str(member) for member in members],
        labels=[FACTIONS[member not in WITH_MR_HI] for member in members],
        features=Compressed.identity(MEMBERS),
        edges=np.array(pairs, dtype=np.int64).T,
        weights=None,
        hash=text_sum(f"{FACTIONS}{sorted(WITH_MR_HI)}{FRIENDS}"),
        about="karate",
    )


# Which nodes are learned, validated and tested: drawn by a seed, as many of each class to learn from.


SplitNodes = Int64[np.ndarray, "chosen"]
USUAL = 20
"""Nodes of each class to learn from, where the graph has enough."""
PART = 8
"""Where it has not: this part of the class in the middle, so that one rare class does not starve all."""

NAMED = 5
"""Of small classes so many are named in a message."""


def divide_nodes(
    classes: Int64[np.ndarray, "nodes"], spec: GraphSpec, seed: int, names: Sequence[str] = ()
) -> tuple[dict[str, SplitNodes], list[str]]:
    """Draw the splits among the nodes whose class is known (−1 is not), with what had to be cut said.

    >>> splits, said = divide_nodes(np.array([0, 1] * 17), GraphSpec(graph="karate"), seed=1)
    >>> {name: len(nodes) for name, nodes in splits.items()}
    {'train': 4, 'validation': 10, 'test': 20}
    """
    order = np.random.default_rng(seed).permutation(np.flatnonzero(classes >= 0))
    counts = np.bincount(classes[order])
    labelled = spec.labelled or min(USUAL, max(1, int(np.median(counts[counts > 0])) // PART))
    learned = np.concatenate([order[classes[order] == number][:labelled] for number in range(len(counts))])
    rest = order[~np.isin(order, learned)]
    validation, test = _shares(len(rest), spec.validation, spec.test)
    splits = {
        "train": np.sort(learned),
        "validation": np.sort(rest[:validation]),
        "test": np.sort(rest[validation : validation + test]),
    }
    small = np.flatnonzero((counts > 0) & (counts < labelled)).tolist()
    few = [names[number] if names else str(number) for number in small]
    return splits, _said(spec, labelled, few, splits)


def _shares(left: int, validation: int, test: int) -> tuple[int, int]:
    """As many as asked for, or else what is left in their proportion."""
    if left < 2:
        raise DataError(
            f"{left} labelled node{' is' if left == 1 else 's are'} left to validate and test on, besides those that "
            "are learned. Lower labelled=, or give more labels."
        )
    if left >= validation + test:
        return validation, test
    fewer = min(left - 1, max(1, left * validation // (validation + test)))
    return fewer, left - fewer


def _said(spec: GraphSpec, labelled: int, few: Sequence[str], splits: dict[str, SplitNodes]) -> list[str]:
    said = []
    if spec.labelled is None and labelled < USUAL:
        said.append(f"the graph is small: {_nodes(labelled)} of each class {_are(labelled)} learned, not {USUAL}")
    if few:
        some = ", ".join(name[:40] for name in few[:NAMED]) + (", …" if len(few) > NAMED else "")
        classes = f"{len(few):,} class{' has' if len(few) == 1 else 'es have'}"
        said.append(f"{classes} fewer than {_nodes(labelled)}: all of theirs are learned ({some})")
    held = {"validation": spec.validation, "test": spec.test}
    if any(len(splits[name]) < wanted for name, wanted in held.items()):
        kept = len(splits["validation"])
        said.append(f"{_nodes(kept)} {_are(kept)} left to validate and {len(splits['test']):,} to test")
    return said


def _nodes(count: int) -> str:
    return f"{count:,} node{'' if count == 1 else 's'}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


# Graphs as data: `prepare_graph` gives one with its classes numbered and its nodes divided.


@dataclass(frozen=True)
class GraphData:
    """A graph ready for training or judging."""

    features: Features = field(repr=False)
    edges: Pairs = field(repr=False)
    """Each edge once, the lower number first; without loops."""
    weights: Weights | None = field(repr=False)
    classes: Int64[np.ndarray, "nodes"] = field(repr=False)
    """The number of each node's class; −1 where it is not known."""
    labels: tuple[str, ...]
    """The names of the classes, in the order of their numbers."""
    names: Sequence[str] = field(repr=False)
    """What the nodes are called."""
    by_split: Mapping[str, SplitNodes] = field(repr=False)
    hash: str
    """The SHA-256 of the files, or of what a generated graph was made of."""
    about: str
    skipped: tuple[str, ...] = ()
    """How it was read and what was cut, in words."""
    tokenizer: None = None
    """A graph has no text."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self.by_split)

    def tokens(self, split: str) -> "GraphNodes":
        """The nodes of a split within their graph."""
        if split not in self.by_split:
            raise DataError(f"there is no split '{split}' in {self.about}. It has: {', '.join(self.splits)}.")
        return GraphNodes(self, self.by_split[split])

    def sizes(self) -> dict[str, int]:
        """What a model has to know of the data's size."""
        return {"features": self.features.shape[1], "classes": len(self.labels)}


@dataclass(frozen=True)
class GraphNodes:
    """Some nodes of a graph: what is learned or judged at once."""

    graph: GraphData
    nodes: SplitNodes

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def classes(self) -> Int64[np.ndarray, "chosen"]:
        """The class of each of these nodes."""
        return self.graph.classes[self.nodes]


def prepare_graph(
    spec: GraphSpec, *, seed: int, labels: Sequence[str] | None = None, progress: Progress | None = None
) -> GraphData:
    """Read or make a graph and divide its nodes, by the spec's split or else by the seed.

    `labels` are the names of the classes where a model knows them already.
    """
    raw = read_graph(spec, progress).tidied()
    names = tuple(labels) if labels is not None else tuple(sorted({label for label in raw.labels if label}))
    _refuse_few(raw, names)
    number = {label: place for place, label in enumerate(names)}
    classes = np.fromiter((_numbered(raw, label, number) for label in raw.labels), np.int64, len(raw.labels))
    splits, said = divide_nodes(classes, spec, seed if spec.split is None else spec.split, names)
    told = (*raw.said, *said)
    return GraphData(raw.features, raw.edges, raw.weights, classes, names, raw.names, splits, raw.hash, raw.about, told)


def read_graph(spec: GraphSpec, progress: Progress | None = None) -> RawGraph:
    """A graph by name, or out of a person's own files."""
    _refuse_sizes(spec)
    _refuse_nodes_file(spec)
    match spec.graph:
        case "karate":
            return karate()
        case "blocks":
            return blocks(spec.nodes, spec.edges)
        case "cora":
            edges, nodes = sorted(corpus_files(CORA, progress))
            return graph_of_tables(nodes, edges, "cora")
        case _:
            return _own(Path(spec.graph), spec.nodes_file)


def _own(path: Path, nodes: str | None) -> RawGraph:
    if not exists(path):
        known = unknown("graph", str(path), GRAPHS) if path.name == str(path) and not path.suffix else ""
        raise DataError(
            f"{known or f'{path}: there is no such file or folder.'} Or give a folder with tables of nodes and edges, "
            "a table of edges with --nodes FILE, or a node-link JSON."
        )
    if path.is_dir():
        return graph_of_tables(_table(path, "nodes"), _table(path, "edges"), str(path))
    if path.suffix.lower() == ".json":
        return graph_of_json(path)
    if nodes is None:
        raise DataError(
            f"{path}: a table of edges says no labels, so that there is nothing to learn. Give a table of nodes "
            "(id, label, features) with --nodes FILE; to a study with nodes_file=FILE."
        )
    return graph_of_tables(Path(nodes), path, str(path))


def _table(folder: Path, name: str) -> Path:
    """The table of that name in a folder, in whatever format."""
    found = sorted(path for path in folder.glob(f"{name}.*") if path.suffix.lower() in SUFFIXES)
    if len(found) == 1:
        return found[0]
    what = f"there are {', '.join(path.name for path in found)}" if found else f"there is no table of {name}"
    raise DataError(f"{folder}: {what}; one file {name}.csv, .tsv or .jsonl is expected.")


def _refuse_sizes(spec: GraphSpec) -> None:
    for word in ("nodes", "edges"):
        if getattr(spec, word) is not None and spec.graph != "blocks":
            raise SpecError(
                f"data.{word} = {getattr(spec, word)}: only the generated graph 'blocks' has a size to choose."
            )


def _refuse_nodes_file(spec: GraphSpec) -> None:
    """Refuse a table of nodes beside a graph that brings its own."""
    path = Path(spec.graph)
    own = spec.graph in GRAPHS or path.is_dir() or path.suffix.lower() == ".json"
    if spec.nodes_file is not None and own:
        raise SpecError(
            f"--nodes {spec.nodes_file} (nodes_file): {spec.graph} has its own nodes. Leave it out, or give a table of "
            "edges (.csv, .tsv, .jsonl) as the graph."
        )


def _refuse_few(raw: RawGraph, names: Sequence[str]) -> None:
    if not names:
        raise DataError(f"{raw.about}: no node has a label, so that there is nothing to learn. Give some nodes one.")
    if len(names) == 1:
        raise DataError(
            f"{raw.about}: all labelled nodes are of one class, {names[0][:40]!r}; at least two are needed."
        )


def _numbered(raw: RawGraph, label: str, number: Mapping[str, int]) -> int:
    if label and label not in number:
        raise DataError(f"{raw.about}: {unknown('the label', label, number)}")
    return number[label] if label else -1
