"""Graphs whose nodes are classified: read, generated, split."""

import json
import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import numpy as np
from jaxtyping import Float32, Int64

from lemma.data.corpora import CORPORA_BY_KIND, GRAPHS, fetch_corpus
from lemma.data.splits import Splits, combine_split_hashes, count_overlaps
from lemma.data.tables import TABLE_SUFFIXES, Row, read_header
from lemma.data.text import open_text
from lemma.errors import DataError, SpecError, describe_unknown
from lemma.files import Progress, files_hash, text_hash
from lemma.spec.base import exists
from lemma.spec.data import GraphSpec

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Features = Union["csr_array", Float32[np.ndarray, "nodes features"]]
"""What is known of each node: few words of many, or a row of numbers."""
Edges = Int64[np.ndarray, "two edges"]
Weights = Float32[np.ndarray, " edges"]


@dataclass(frozen=True)
class NodeGraph:
    """A graph with features and classes of its nodes."""

    features: Features = field(repr=False)
    edges: Edges = field(repr=False)
    """Each edge once, the lower number first; without loops."""
    weights: Weights | None = field(repr=False)
    classes: Int64[np.ndarray, " nodes"] = field(repr=False)
    """The number of each node's class; −1 where it is not known."""
    node_names: Sequence[str] = field(repr=False)
    """What the nodes are called."""

    @property
    def width(self) -> int:
        """The number of features."""
        shape: Any = self.features.shape
        return shape[1]


@dataclass(frozen=True)
class GraphNodes:
    """Some nodes of a graph: those that are trained or evaluated on at once."""

    graph: NodeGraph
    nodes: Int64[np.ndarray, " chosen"]

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def classes(self) -> Int64[np.ndarray, " chosen"]:
        """The class of each of these nodes."""
        return self.graph.classes[self.nodes]


@dataclass(frozen=True)
class RawGraph:
    """A graph as it was read or generated: its edges may come twice, and its classes have names."""

    node_names: Sequence[str]
    labels: Sequence[str]
    """The class of each node; an empty one is not known."""
    features: Features
    edges: Edges
    weights: Weights | None
    hash: str
    description: str
    notes: tuple[str, ...] = ()
    """How it was read, in words."""


def prepare_graph(
    spec: GraphSpec, *, seed: int, labels: Sequence[str] | None = None, progress: Progress | None = None
) -> Splits[GraphNodes]:
    """Read or generate a graph and split its nodes, by the spec's split or else by the seed.

    `labels` are the names of the classes where a model knows them already.
    """
    raw = read_graph(spec, progress)
    edges, weights = unique_edges(raw.edges, raw.weights, len(raw.node_names))
    notes = list(raw.notes)
    if repeated := raw.edges.shape[1] - edges.shape[1]:
        notes.append(f"{repeated:,} edges were loops or came twice: each counts once")
    if not edges.shape[1]:
        notes.append("there are no edges: each node is alone")
    names = tuple(labels) if labels is not None else tuple(sorted({label for label in raw.labels if label}))
    if not names:
        raise DataError(
            f"{raw.description}: no node has a label, so that there is nothing to learn. Give some nodes one."
        )
    if len(names) == 1:
        raise DataError(
            f"{raw.description}: all labelled nodes are of one class, {names[0][:40]!r}; at least two are needed."
        )
    number = {label: place for place, label in enumerate(names)} | {"": -1}
    for label in raw.labels:
        if label not in number:
            raise DataError(f"{raw.description}: {describe_unknown('the label', label, names)}")
    classes = np.fromiter((number[label] for label in raw.labels), np.int64, len(raw.labels))
    graph = NodeGraph(raw.features, edges, weights, classes, raw.node_names)
    places = {name: place for place, name in enumerate(raw.node_names)}
    given: dict[str, Int64[np.ndarray, " chosen"]] = {}
    hashes: dict[str, str] = {}
    for split, file in {"train": spec.labelled, "validation": spec.validation, "test": spec.test}.items():
        if isinstance(file, str):
            given[split], note = _listed_nodes(Path(file), places, classes)
            hashes[split] = files_hash([Path(file)])
            notes += note
    splits, cut = split_nodes(classes, spec, seed if spec.split is None else spec.split, names, given)
    items = {split: GraphNodes(graph, nodes) for split, nodes in splits.items()}
    data_hash, hashes = combine_split_hashes(raw.hash, hashes, "graph")
    overlaps = count_overlaps({split: nodes.tolist() for split, nodes in splits.items()}, "nodes") if given else ()
    sizes = {"features": graph.width, "classes": len(names)}
    return Splits("graph", items, None, data_hash, raw.description, sizes, (*notes, *cut), names, hashes, overlaps)


def _listed_nodes(
    path: Path, number: Mapping[str, int], classes: Int64[np.ndarray, " nodes"]
) -> tuple[Int64[np.ndarray, " chosen"], list[str]]:
    """The nodes that a file names, one per line, and a note on those that it names twice."""
    open_text(path)  # a file that is missing, empty or not a text is refused
    found: list[int] = []
    for line, name in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), start=1):
        if not name.strip():
            continue
        if name.strip() not in number:
            raise DataError(
                f"{path}, line {line}: there is no node {name.strip()[:40]!r} among the {len(number):,} nodes of the "
                "graph. Write one node per line, as the graph names it."
            )
        found.append(number[name.strip()])
        if classes[found[-1]] < 0:
            raise DataError(f"{path}, line {line}: the node {name.strip()[:40]!r} has no label. Take the line out.")
    nodes = np.unique(np.array(found, dtype=np.int64))
    twice = len(found) - len(nodes)
    return nodes, [f"{path.name}: {twice:,} lines name a node again: each node counts once"] if twice else []


def read_graph(spec: GraphSpec, progress: Progress | None = None) -> RawGraph:
    """A graph by name, or out of a person's own files."""
    path = Path(spec.graph)
    for word in ("nodes", "edges"):
        if getattr(spec, word) is not None and spec.graph != "blocks":
            raise SpecError(
                f"data.{word} = {getattr(spec, word)}: only the generated graph 'blocks' has a size to choose."
            )
    if spec.nodes_file is not None and (spec.graph in GRAPHS or path.is_dir() or path.suffix.lower() == ".json"):
        raise SpecError(
            f"--nodes {spec.nodes_file} (nodes_file): {spec.graph} has its own nodes. Leave it out, or give a table of "
            "edges (.csv, .tsv, .jsonl) as the graph."
        )
    if spec.graph == "karate":
        return karate_graph()
    if spec.graph == "blocks":
        return block_graph(spec.nodes, spec.edges)
    if spec.graph == "cora":
        edges, nodes = sorted(fetch_corpus(CORPORA_BY_KIND["graph"]["cora"], progress))
        return read_graph_tables(nodes, edges, "cora")
    if not exists(path):
        known = describe_unknown("graph", spec.graph, GRAPHS) if path.name == str(path) and not path.suffix else ""
        raise DataError(
            f"{known or f'{path}: there is no such file or folder.'} Or give a folder with tables of nodes and edges, "
            "a table of edges with --nodes FILE, or a node-link JSON."
        )
    if path.is_dir():
        tables: list[Path] = []
        for name in ("nodes", "edges"):
            found = sorted(table for table in path.glob(f"{name}.*") if table.suffix.lower() in TABLE_SUFFIXES)
            if len(found) != 1:
                names = ", ".join(table.name for table in found)
                what = f"there are {names}" if found else f"there is no table of {name}"
                raise DataError(f"{path}: {what}; one file {name}.csv, .tsv or .jsonl is expected.")
            tables += found
        return read_graph_tables(tables[0], tables[1], str(path))
    if path.suffix.lower() == ".json":
        return read_node_link(path)
    if spec.nodes_file is None:
        raise DataError(
            f"{path}: a table of edges holds no labels, so that there is nothing to learn. Give a table of nodes "
            "(id, label, features) with --nodes FILE; to a study with nodes_file=FILE."
        )
    return read_graph_tables(Path(spec.nodes_file), path, str(path))


def unique_edges(edges: Edges, weights: Weights | None, num_nodes: int) -> tuple[Edges, Weights | None]:
    """Edges between two nodes, the lower number first, each once and in order; of weights the largest counts.

    >>> each_once(np.array([[1, 0, 2, 0], [0, 1, 2, 2]]), None, 3)[0].tolist()
    [[0, 0], [1, 2]]
    """
    apart = edges[0] != edges[1]
    low, high = np.minimum(*edges[:, apart]), np.maximum(*edges[:, apart])
    keys, owner = np.unique(low * num_nodes + high, return_inverse=True)
    if weights is not None:
        largest = np.zeros(len(keys), dtype=np.float32)
        np.maximum.at(largest, owner, weights[apart])
        weights = largest
    return np.stack([keys // num_nodes, keys % num_nodes]), weights


# Which nodes are trained, validated and tested on: drawn by a seed, as many of each class to train on.

DEFAULT_LABELLED = 20
"""Nodes of each class to train on, where the graph has enough."""
MAX_NAMED = 5
"""Of small classes at most this many are named in a message."""


def split_nodes(
    classes: Int64[np.ndarray, " nodes"],
    spec: GraphSpec,
    seed: int,
    names: Sequence[str] = (),
    provided: Mapping[str, Int64[np.ndarray, " chosen"]] | None = None,
) -> tuple[dict[str, Int64[np.ndarray, " chosen"]], list[str]]:
    """Draw the splits among the nodes whose class is known (−1 is not), and say what had to be cut.

    Splits that are given are taken as they are, and the others drawn among the nodes that are in none of them.

    >>> splits, notes = split_nodes(np.array([0, 1] * 17), GraphSpec(graph="karate"), seed=1)
    >>> {name: len(nodes) for name, nodes in splits.items()}
    {'train': 4, 'validation': 10, 'test': 20}
    """
    provided = provided or {}
    order = np.random.default_rng(seed).permutation(np.flatnonzero(classes >= 0))
    order = order[~np.isin(order, np.concatenate([np.zeros(0, np.int64), *provided.values()]))]
    counts = np.bincount(classes[order], minlength=1)
    # where there are not enough, an eighth of the median class, so that one rare class does not starve all
    usual = min(DEFAULT_LABELLED, max(1, int(np.median(counts[counts > 0] if counts.any() else 0)) // 8))
    labelled = spec.labelled if isinstance(spec.labelled, int) else usual
    train = provided.get("train")
    if train is None:
        train = np.concatenate([order[classes[order] == number][:labelled] for number in range(len(counts))])
        if not len(train):
            raise DataError("no labelled node is left to train on, besides those of the validation and test files.")
    rest = order[~np.isin(order, train)]
    wanted = {split: size for split in ("validation", "test") if isinstance(size := getattr(spec, split), int)}
    if len(rest) < len(wanted):
        verbs = " and ".join({"validation": "validate", "test": "test"}[split] for split in wanted)
        raise DataError(
            f"{len(rest)} labelled node{' is' if len(rest) == 1 else 's are'} left to {verbs} on, besides "
            "those that are trained on. Lower labelled=, or give more labels."
        )
    validation, test = (wanted.get(split, 0) for split in ("validation", "test"))
    short = len(rest) < validation + test
    if short and len(wanted) == 2:  # what is left, in their proportion
        validation = min(len(rest) - 1, max(1, len(rest) * validation // (validation + test)))
        test = len(rest) - validation
    splits = {"train": train, "validation": rest[:validation], "test": rest[validation : validation + test]}
    splits = {split: np.sort(nodes) for split, nodes in {**splits, **provided}.items()}
    notes: list[str] = []
    if spec.labelled is None and labelled < DEFAULT_LABELLED:
        nodes, are = _nodes(labelled)
        notes.append(f"the graph is small: {nodes} of each class {are} trained on, not {DEFAULT_LABELLED}")
    few = np.flatnonzero((counts > 0) & (counts < labelled)).tolist() if "train" not in provided else []
    if few:
        some = ", ".join((names[number] if names else str(number))[:40] for number in few[:MAX_NAMED])
        have = f"{len(few):,} class{' has' if len(few) == 1 else 'es have'}"
        more = ", …" if len(few) > MAX_NAMED else ""
        notes.append(f"{have} fewer than {_nodes(labelled)[0]}: all of theirs are trained on ({some}{more})")
    if short and len(wanted) == 2:
        notes.append(f"{' '.join(_nodes(validation))} left to validate and {test:,} to test")
    elif short:
        notes.append(f"{' '.join(_nodes(len(rest)))} left for the {next(iter(wanted))} split")
    return splits, notes


def _nodes(count: int) -> tuple[str, str]:
    """How many nodes, and the verb that goes with them."""
    return ("1 node", "is") if count == 1 else (f"{count:,} nodes", "are")


# Graphs out of tables: one of nodes (id, label, features) and one of edges (source, target, weight).

IDS = ("id", "node", "name", "nodeid", "node_id")
LABELS = ("label", "labels", "class", "category", "subject", "topic", "community", "club", "y")
SOURCES = ("source", "from", "src", "citing", "sourcenodeid")
TARGETS = ("target", "to", "dst", "cited", "targetnodeid")
WEIGHTS = ("weight", "value")
POSITIVE = "a number above 0 is expected, within what 32 bits hold (1e-45 to 3.4e38)"
FINITE = "a finite number is expected, no larger than 3.4e38 (what 32 bits hold)"


def read_graph_tables(nodes_path: Path, edges_path: Path, description: str) -> RawGraph:
    """Read both tables; an edge that names an unknown node is an error that names its line."""
    names, labels, features, notes = _read_nodes(nodes_path)
    edges, weights = _read_edges(edges_path, {name: place for place, name in enumerate(names)})
    found = files_hash([nodes_path, edges_path])
    return RawGraph(names, labels, features, edges, weights, found, description, tuple(notes))


def _read_nodes(path: Path) -> tuple[list[str], list[str], Features, list[str]]:
    """Names, labels and features; without a header the first column is the name and the second the label."""
    titles, rows = _open(path, (*IDS, *LABELS, "features"))
    header = [title.strip().casefold() for title in titles or ()]
    lines, cells = array("q"), [[] for _ in header]
    for line, row in rows:
        cells = cells or [[] for _ in row]
        if len(row) != len(cells):
            raise DataError(
                f"{path}, line {line}: {len(row)} column{'s' * (len(row) != 1)} where the table has {len(cells)}."
            )
        lines.append(line)
        for column, cell in zip(cells, row, strict=True):
            column.append(cell.strip())
    if not lines:
        raise DataError(f"{path}: nothing but a header. Give one node per row.")
    own, label = _place(header, IDS), _place(header, LABELS)
    own, label = 0 if own is None else own, label if header else 1
    if label is None or label >= len(cells) or label == own:
        raise DataError(
            f"{path}: no column of labels, so that there is nothing to learn. Call one 'label'; a node whose class is "
            f"not known has an empty one. Columns: {', '.join(titles or [str(len(cells))])}."
        )
    seen: dict[str, int] = {}
    for line, name in zip(lines, cells[own], strict=True):
        if not name:
            raise DataError(f"{path}, line {line}: the node has no name. Fill in its id.")
        if name in seen:
            raise DataError(f"{path}, line {line}: the node {name[:40]!r} is on line {seen[name]} already.")
        seen[name] = line
    columns = {
        (header[place] if header else "") or f"column {place + 1}": cells[place]
        for place in range(len(cells))
        if place not in (own, label)
    }
    features, notes = _features_of(columns, len(lines), lambda place: f"{path}, line {lines[place]}")
    return cells[own], cells[label], features, notes


def _read_edges(path: Path, number: Mapping[str, int]) -> tuple[Edges, Weights | None]:
    """Columns called source and target, or else the first two; a weight if there is a column of that name."""
    titles, rows = _open(path, (*SOURCES, *TARGETS, *WEIGHTS))
    header = [title.strip().casefold() for title in titles or ()]
    source, target, weight = (_place(header, called) for called in (SOURCES, TARGETS, WEIGHTS))
    left = (place for place in range(len(header) or 2) if place not in (source, target, weight))
    source = next(left, None) if source is None else source
    target = next(left, None) if target is None else target
    if source is None or target is None:
        raise DataError(
            f"{path}: an edge has two ends, and there is no second column for one. Call the columns source and target; "
            f"got: {', '.join(header)}."
        )
    ends, weights = array("q"), array("f")
    for line, cells in rows:
        if len(cells) <= max(source, target, weight or 0):
            needed = "its source and target" if weight is None else "its source, target and weight"
            columns = f"{len(cells)} column{'s' * (len(cells) != 1)}"
            raise DataError(f"{path}, line {line}: {columns}, where an edge needs {needed}.")
        for cell in (cells[source].strip(), cells[target].strip()):
            if cell not in number:
                hint = " If line 1 is a header, call its columns source and target." if line == 1 else ""
                raise DataError(
                    f"{path}, line {line}: there is no node {cell[:40]!r} among the {len(number):,} nodes. "
                    f"Add it to their table, or take the edge out.{hint}"
                )
            ends.append(number[cell])
        if weight is not None:
            value = parse_float32(cells[weight])
            if value is None or value <= 0:
                raise DataError(f"{path}, line {line}: the weight is {cells[weight][:40]!r}; {POSITIVE}.")
            weights.append(value)
    edges = np.array(ends, dtype=np.int64).reshape(-1, 2).T
    return edges, np.array(weights, dtype=np.float32) if weight is not None else None


def _open(path: Path, called: Sequence[str]) -> tuple[Sequence[str] | None, Iterator[Row]]:
    """The header, if the first row holds any of the names that such columns have, and the rows after it."""

    def is_header(first: Sequence[str]) -> bool:
        return bool({cell.strip().casefold() for cell in first} & set(called))

    titles, _, rows = read_header(path, is_header, "the table is empty.")
    header = [title.strip().casefold() for title in titles or ()]
    if twice := [name for place, name in enumerate(header) if name and name in header[:place]]:
        raise DataError(f"{path}: two columns are called {twice[0][:40]!r}. Give each a name of its own.")
    return titles, rows


def _place(header: Sequence[str], called: Sequence[str]) -> int | None:
    """Where a column is that has one of these names, the first of them first."""
    return next((header.index(name) for name in called if name in header), None)


def parse_float32(value: str | float) -> float | None:
    """The 32-bit number that a cell or a number gives; None where it is not one, or not a finite one.

    >>> as_single("0.5"), as_single("tall"), as_single("1e300"), as_single("1e-60")
    (0.5, None, None, 0.0)
    """
    try:
        held = array("f", [float(value)])[0]
    except (ValueError, OverflowError):
        return None
    return held if math.isfinite(held) else None


# Features. Words, and columns of 0 and 1, become shares: each node's sum to one. Other numbers are standardised: each
# column gets the mean 0 and the deviation 1. Where nothing is known, each node is its own feature.


def _features_of(
    columns: Mapping[str, Sequence[str]], nodes: int, where: Callable[[int], str]
) -> tuple[Features, list[str]]:
    """The features of nodes, and how they were read, in words; `where` names the place of a node, for an error."""
    if "features" in columns:  # all features of a node, between spaces
        rows = [cell.replace(",", " ").split() for cell in columns["features"]]
        first = next((row for row in rows if row), [])
        if first and all(map(_is_number, first)):
            table = np.empty((nodes, len(first)), dtype=np.float32)
            for place, row in enumerate(rows):
                numbers = [number for word in row if (number := parse_float32(word)) is not None]
                if len(numbers) != len(first) or len(row) != len(numbers):
                    raise DataError(
                        f"{where(place)}: {len(first)} finite numbers (up to 3.4e38) are expected as features, as of "
                        f"the first node that has any; got {len(row)} words, {len(numbers)} of them such numbers."
                    )
                table[place] = numbers
            features, note = _standardised(table)
        else:
            known = {word: place for place, word in enumerate(sorted({word for row in rows for word in row}))}
            features = _bag([sorted({known[word] for word in row}) for row in rows], len(known))
            note = f"{len(known):,} different words are the features; those of a node sum to one"
        return features, [note]
    numeric = {name: cells for name, cells in columns.items() if any(map(_is_number, cells))}
    notes = [f"the column '{name}' holds no numbers and was left out" for name in columns if name not in numeric]
    if not numeric:
        return _each_alone(nodes), [*notes, "no features: each node is its own"]
    table = np.empty((nodes, len(numeric)), dtype=np.float32, order="F")  # dropout follows the order in memory
    for column, (name, cells) in enumerate(numeric.items()):
        for place, cell in enumerate(cells):
            number = parse_float32(cell)
            if number is None:
                raise DataError(f"{where(place)}: the feature '{name}' is {cell[:40]!r}; {FINITE}.")
            table[place, column] = number
    features, note = _standardised(table)
    return features, [*notes, note]


def _each_alone(nodes: int) -> "csr_array":
    from scipy.sparse import csr_array, identity  # takes a while to load

    return csr_array(identity(nodes, "float32"))


def _bag(rows: Sequence[Sequence[int]], width: int) -> "csr_array":
    """Which columns each node has, those of a node with values that sum to one."""
    from scipy.sparse import csr_array

    counts = np.array(list(map(len, rows)), dtype=np.int64)
    columns = np.fromiter(chain.from_iterable(rows), np.int64, counts.sum())
    values = np.repeat(1 / np.maximum(counts, 1), counts).astype(np.float32)
    return csr_array((values, columns, np.concatenate([[0], np.cumsum(counts)])), shape=(len(rows), width))


def _standardised(table: Float32[np.ndarray, "nodes features"]) -> tuple[Features, str]:
    if np.isin(table, (0, 1)).all():
        bag = _bag([np.flatnonzero(row).tolist() for row in table], table.shape[1])
        return bag, f"{table.shape[1]:,} features of 0 and 1; those of a node sum to one"
    deviation = table.std(axis=0, dtype=np.float64)
    centred = (table - table.mean(axis=0, dtype=np.float64)) / np.where(deviation > 0, deviation, 1)
    return centred.astype(np.float32), f"{table.shape[1]:,} features, each standardised to mean 0 and deviation 1"


def _is_number(cell: str) -> bool:
    """Whether a cell holds a number, even one that is too large."""
    try:
        return not math.isnan(float(cell))
    except ValueError:
        return False


# Graphs out of node-link JSON, as networkx writes it: {"nodes": [{"id": …}], "links": [{"source": …, …}]}. It is not
# read by networkx, which would not say which node or link is wrong.


def read_node_link(path: Path) -> RawGraph:
    """Read a node-link file; a link to an unknown node is an error that says which one it is."""
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({error}).") from None
    if not isinstance(document, dict):
        raise DataError(f'{path}: an object with "nodes" and "links" is expected, as networkx.node_link_data gives it.')

    def lower_keys(where: str, item: Mapping[str, Any]) -> dict[str, Any]:
        """The same with its keys as tables have them: in lower case, without spaces around."""
        lowered: dict[str, Any] = {}
        for key, value in item.items():
            if lowered.setdefault(key.strip().casefold(), value) is not value:
                raise DataError(f"{path}, {where}: the key {key[:40]!r} occurs twice. Give each a name of its own.")
        return lowered

    def plain_name(where: str, item: Mapping[str, Any], name: str) -> str:
        if name not in item or isinstance(item[name], dict | list):
            raise DataError(f"{path}, {where}: '{name}' is missing, or is not a plain name.")
        return str(item[name])

    document = lower_keys("the document", document)
    lists: list[list[dict[str, Any]]] = []
    for called in (("nodes",), ("links", "edges")):
        listed = next((document[name] for name in called if name in document), None)
        if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
            raise DataError(f'{path}: "{called[0]}" must be a list of objects, as networkx.node_link_data gives it.')
        lists.append([lower_keys(f"{called[0]}[{place}]", item) for place, item in enumerate(listed)])
    nodes, links = lists
    if not nodes:
        raise DataError(f"{path}: there are no nodes.")
    number: dict[str, int] = {}
    for place, node in enumerate(nodes):
        name = plain_name(f"nodes[{place}]", node, "id")
        if number.setdefault(name, place) != place:
            raise DataError(f"{path}, nodes[{place}]: the node {name[:40]!r} is there already.")
    label = next((name for name in LABELS if any(name in node for node in nodes)), None)
    if label is None:
        raise DataError(f"{path}: no node has a 'label', so that there is nothing to learn. Give some nodes one.")
    others = {name: None for node in nodes for name in node if name not in ("id", label)}
    columns = {name: [_cell(node.get(name)) for node in nodes] for name in others}
    features, notes = _features_of(columns, len(nodes), lambda place: f"{path}, nodes[{place}]")
    ends: list[int] = []
    for place, link in enumerate(links):
        for side in ("source", "target"):
            name = plain_name(f"links[{place}]", link, side)
            if name not in number:
                raise DataError(
                    f"{path}, links[{place}]: there is no node {name[:40]!r}. Add it, or take the link out."
                )
            ends.append(number[name])
    weights = [link.get("weight", 1) for link in links] if any("weight" in link for link in links) else None
    for place, weight in enumerate(weights or ()):
        if not isinstance(weight, int | float) or not (parse_float32(weight) or 0) > 0:
            raise DataError(f"{path}, links[{place}]: the weight is {str(weight)[:40]}; {POSITIVE}.")
    labels = [node.get(label) for node in nodes]
    return RawGraph(
        node_names=list(number),
        # what tables of numbers write for nothing, NaN, is no label
        labels=["" if isinstance(one, float) and math.isnan(one) else _cell(one).strip() for one in labels],
        features=features,
        edges=np.array(ends, dtype=np.int64).reshape(-1, 2).T,
        weights=None if weights is None else np.array(weights, dtype=np.float32),
        hash=files_hash([path]),
        description=str(path),
        notes=tuple(notes),
    )


def _cell(value: Any) -> str:
    """A value as a table would hold it: a list between spaces, nothing as an empty cell."""
    if isinstance(value, list):
        return " ".join(_cell(item) for item in value)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


# Graphs that need no file.

DEFAULT_NODES, DEFAULT_DEGREE = 1000, 10
CLASSES, FEATURES = 4, 16
WITHIN_FRACTION = 0.7
"""The share of the edges that are drawn within a community."""
FEATURE_SIGNAL = 0.5
"""How far the means of two communities lie apart in a feature, in standard deviations of its noise, about."""
MIN_SPARSITY = 16
"""At most nodes²/16 edges, so that few draws hit an edge that is there already."""


def karate_graph() -> RawGraph:
    """Zachary's karate club (1977): 34 members, 78 friendships, and the faction that each joined when the club split.

    Its members are known by their numbers alone, so that each is its own feature.

    >>> karate().edges.shape
    (2, 78)
    """
    from networkx import karate_club_graph

    club = karate_club_graph()
    factions = ("Mr. Hi", "Officer")
    labels = [club.nodes[member]["club"] for member in sorted(club)]
    edges = sorted((min(edge), max(edge)) for edge in club.edges)
    # The hash is that of version 0.1, which listed each member, from 1 on, with the friends of higher numbers.
    friends = {one: " ".join(str(high + 1) for low, high in edges if low == one) for one, _ in edges}
    listed = "".join(f"{one + 1}: {others}\n" for one, others in friends.items())
    first = [member + 1 for member, label in enumerate(labels) if label == factions[0]]
    return RawGraph(
        node_names=[str(member + 1) for member in sorted(club)],
        labels=labels,
        features=_each_alone(len(labels)),
        edges=np.array(edges, dtype=np.int64).T,
        weights=None,
        hash=text_hash(f"{factions}{first}\n{listed}"),
        description="karate",
    )


def block_graph(nodes: int | None = None, edges: int | None = None, seed: int = 0) -> RawGraph:
    """Communities that are denser within than between, with features that only hint at them.

    The stochastic block model (Holland, Laskey & Leinhardt 1983), drawn edge by edge, so that time and memory grow with
    the edges and not with the pairs of nodes (networkx draws by pairs). The same sizes and seed give the same graph.

    >>> blocks(100, 300).edges.shape
    (2, 300)
    """
    nodes = nodes or DEFAULT_NODES
    edges = edges or nodes * DEFAULT_DEGREE // 2
    if nodes < 8 * CLASSES:
        raise SpecError(f"data.nodes = {nodes}: a graph of {CLASSES} blocks needs at least {8 * CLASSES} nodes.")
    if edges > nodes**2 // MIN_SPARSITY:
        raise SpecError(
            f"data.edges = {edges:,} is too dense for {nodes:,} nodes: at most {nodes**2 // MIN_SPARSITY:,} edges are drawn."
        )
    random = np.random.default_rng(seed)
    classes = random.permutation(np.arange(nodes) % CLASSES)
    means = FEATURE_SIGNAL * random.standard_normal((CLASSES, FEATURES), dtype=np.float32)
    features = means[classes] + random.standard_normal((nodes, FEATURES), dtype=np.float32)
    drawn = np.zeros((2, 0), dtype=np.int64)
    order = np.argsort(classes, kind="stable")
    starts = np.searchsorted(classes[order], np.arange(CLASSES + 1))
    while drawn.shape[1] < edges:  # from anywhere, to anywhere or to a node of the same community; loops among them
        count = (edges - drawn.shape[1]) * 5 // 4 + 16
        source, target = random.integers(nodes, size=(2, count))
        home = classes[source]
        near = order[starts[home] + (random.random(count) * (starts[home + 1] - starts[home])).astype(np.int64)]
        more = np.stack([source, np.where(random.random(count) < WITHIN_FRACTION, near, target)])
        drawn, _ = unique_edges(np.concatenate([drawn, more], axis=1), None, nodes)
    kept = np.sort(random.permutation(drawn.shape[1])[:edges])
    made_of = f"blocks nodes={nodes} edges={edges} seed={seed} classes={CLASSES} features={FEATURES} {WITHIN_FRACTION} {FEATURE_SIGNAL}"
    return RawGraph(
        node_names=list(map(str, range(nodes))),
        labels=[f"community {number + 1}" for number in classes.tolist()],
        features=features,
        edges=drawn[:, kept],
        weights=None,
        hash=text_hash(made_of),
        description=f"blocks of {nodes:,} nodes and {edges:,} edges",
    )
