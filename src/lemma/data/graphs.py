"""Graphs whose nodes are classified: read, generated and split."""

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import numpy as np
from jaxtyping import Float32, Int64

from lemma.data.corpora import CORPORA_BY_KIND, GRAPHS, fetch_corpus
from lemma.data.splits import Splits, combine_split_hashes, describe_overlaps
from lemma.data.tables import TABLE_SUFFIXES, read_header
from lemma.data.text import open_text
from lemma.errors import DataError, SpecError, describe_unknown
from lemma.files import Progress, files_hash, parse_json, text_hash
from lemma.report.numbers import pluralize
from lemma.spec.base import exists
from lemma.spec.data import GraphSpec

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Features = Union["csr_array", Float32[np.ndarray, "nodes features"]]  # few words of many, or a row of numbers
Edges = Int64[np.ndarray, "two edges"]
Weights = Float32[np.ndarray, " edges"]
Nodes = Int64[np.ndarray, " chosen"]
Locate = Callable[[int], str]  # from the number of a row to its file and line, for a message


@dataclass(frozen=True)
class NodeGraph:
    """A graph whose nodes have features and classes."""

    features: Features = field(repr=False)
    edges: Edges = field(repr=False)  # each once, the lower number first; without loops
    weights: Weights | None = field(repr=False)
    classes: Int64[np.ndarray, " nodes"] = field(repr=False)  # −1 if unknown
    node_names: Sequence[str] = field(repr=False)

    @property
    def width(self) -> int:
        """Number of features of each node."""
        shape: Any = self.features.shape
        return shape[1]


@dataclass(frozen=True)
class GraphNodes:
    """A graph and a selection of its nodes: those of one split."""

    graph: NodeGraph
    nodes: Nodes

    def __len__(self) -> int:
        """Return the number of selected nodes."""
        return len(self.nodes)

    @property
    def classes(self) -> Nodes:
        """Class number of each selected node; −1 if unknown."""
        return self.graph.classes[self.nodes]


@dataclass(frozen=True)
class RawGraph:
    """A graph as it was read or generated: edges may be repeated, and classes have names."""

    node_names: Sequence[str]
    labels: Sequence[str]  # the class of each node; "" if unknown
    features: Features
    edges: Edges
    weights: Weights | None
    hash: str
    description: str
    notes: tuple[str, ...] = ()  # how it was read


def prepare_graph(
    spec: GraphSpec, *, seed: int, labels: Sequence[str] | None = None, progress: Progress | None = None
) -> Splits[GraphNodes]:
    """Read or generate a graph and split its nodes into training, validation and test.

    `seed` draws the split, unless `spec.split` sets one; `labels` are the class names of a trained model, in its order.
    """
    raw = read_graph(spec, progress)
    edges, weights = deduplicate_edges(raw.edges, raw.weights, len(raw.node_names))
    notes = list(raw.notes)
    if repeated := raw.edges.shape[1] - edges.shape[1]:
        notes.append(f"{repeated:,} edges were loops or came twice: each counts once")
    if not edges.shape[1]:
        notes.append("there are no edges: each node is alone")
    names = tuple(labels) if labels is not None else tuple(sorted({label for label in raw.labels if label}))
    if len(names) < 2:
        problem = "no node has a label, so that there is nothing to learn. Give some nodes one."
        if names:
            problem = f"all labelled nodes are of one class, {names[0][:40]!r}; at least two are needed."
        raise DataError(f"{raw.description}: {problem}")
    class_numbers = {label: number for number, label in enumerate(names)} | {"": -1}
    for label in raw.labels:
        if label not in class_numbers:
            raise DataError(f"{raw.description}: {describe_unknown('label', label, names)}")
    classes = np.fromiter((class_numbers[label] for label in raw.labels), np.int64, len(raw.labels))
    graph = NodeGraph(raw.features, edges, weights, classes, raw.node_names)
    node_numbers = {name: number for number, name in enumerate(raw.node_names)}
    provided: dict[str, Nodes] = {}
    hashes: dict[str, str] = {}
    for split, file in {"train": spec.labelled, "validation": spec.validation, "test": spec.test}.items():
        if isinstance(file, str):
            provided[split], file_notes = _read_node_list(Path(file), node_numbers, classes)
            hashes[split] = files_hash([Path(file)])
            notes += file_notes
    splits, split_notes = split_nodes(classes, spec, seed if spec.split is None else spec.split, names, provided)
    data_hash, split_hashes = combine_split_hashes(raw.hash, hashes, "graph")
    node_lists = {split: nodes.tolist() for split, nodes in splits.items()}
    return Splits(
        kind="graph",
        items={split: GraphNodes(graph, nodes) for split, nodes in splits.items()},
        tokenizer=None,
        hash=data_hash,
        description=raw.description,
        model_sizes={"features": graph.width, "classes": len(names)},
        notes=(*notes, *split_notes),
        labels=names,
        split_hashes=split_hashes,
        overlaps=describe_overlaps(node_lists, "nodes") if provided else (),
    )


def _read_node_list(
    path: Path, node_numbers: Mapping[str, int], classes: Int64[np.ndarray, " nodes"]
) -> tuple[Nodes, list[str]]:
    """Read a file with one node name per line; return the node numbers, sorted, and notes on duplicates.

    An unknown node, or one without a class (−1 in `classes`), is an error.
    """
    open_text(path)  # refuses a file that is missing, empty or not a text
    numbers: list[int] = []
    for line, text in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), start=1):
        name = text.strip()
        if not name:
            continue
        if name not in node_numbers:
            raise DataError(
                f"{path}, line {line}: there is no node {name[:40]!r} among the {len(node_numbers):,} nodes of the "
                "graph. Write one node per line, as the graph names it."
            )
        numbers.append(node_numbers[name])
        if classes[numbers[-1]] < 0:
            raise DataError(f"{path}, line {line}: the node {name[:40]!r} has no label. Take the line out.")
    nodes = np.unique(np.array(numbers, dtype=np.int64))
    repeated = len(numbers) - len(nodes)
    return nodes, [f"{path.name}: {repeated:,} lines name a node again: each node counts once"] if repeated else []


def read_graph(spec: GraphSpec, progress: Progress | None = None) -> RawGraph:
    """Read or generate the graph that `spec.graph` names or whose files it points to."""
    path = Path(spec.graph)
    for setting in ("nodes", "edges"):
        if getattr(spec, setting) is not None and spec.graph != "blocks":
            raise SpecError(
                f"data.{setting} = {getattr(spec, setting)}: only the generated graph 'blocks' has a size to choose."
            )
    if spec.nodes_file is not None and (spec.graph in GRAPHS or path.is_dir() or path.suffix.lower() == ".json"):
        raise SpecError(
            f"--nodes {spec.nodes_file} (nodes_file): {spec.graph} has its own nodes. Leave it out, or give a table of "
            "edges (.csv, .tsv, .jsonl) as the graph."
        )
    if spec.graph == "karate":
        return build_karate_graph()
    if spec.graph == "blocks":
        return generate_block_graph(spec.nodes, spec.edges)
    if spec.graph == "cora":
        edges, nodes = fetch_corpus(CORPORA_BY_KIND["graph"]["cora"], progress)
        return read_graph_tables(nodes, edges, "cora")
    if not exists(path):
        unknown = describe_unknown("graph", spec.graph, GRAPHS) if path.name == str(path) and not path.suffix else ""
        raise DataError(
            f"{unknown or f'{path}: there is no such file or folder.'} Or give a folder with tables of nodes and "
            "edges, a table of edges with --nodes FILE, or a node-link JSON."
        )
    if path.is_dir():
        nodes, edges = (_find_table(path, name) for name in ("nodes", "edges"))
        return read_graph_tables(nodes, edges, str(path))
    if path.suffix.lower() == ".json":
        return read_node_link(path)
    if spec.nodes_file is None:
        raise DataError(
            f"{path}: a table of edges holds no labels, so that there is nothing to learn. Give a table of nodes "
            "(id, label, features) with --nodes FILE; to a study with nodes_file=FILE."
        )
    return read_graph_tables(Path(spec.nodes_file), path, str(path))


def _find_table(folder: Path, name: str) -> Path:
    """Return the path of the only table `NAME.csv`, `.tsv` or `.jsonl` in a folder."""
    tables = sorted(table for table in folder.glob(f"{name}.*") if table.suffix.lower() in TABLE_SUFFIXES)
    if len(tables) != 1:
        names = ", ".join(table.name for table in tables)
        problem = f"there are {names}" if tables else f"there is no table of {name}"
        raise DataError(f"{folder}: {problem}; one file {name}.csv, .tsv or .jsonl is expected.")
    return tables[0]


def deduplicate_edges(edges: Edges, weights: Weights | None, num_nodes: int) -> tuple[Edges, Weights | None]:
    """Remove loops and duplicates of undirected edges; a duplicate keeps its largest weight.

    The result is sorted, with the lower node number of each edge first.

    >>> deduplicate_edges(np.array([[1, 0, 2, 0], [0, 1, 2, 2]]), None, 3)[0].tolist()
    [[0, 0], [1, 2]]
    """
    no_loop = edges[0] != edges[1]
    low, high = np.minimum(*edges[:, no_loop]), np.maximum(*edges[:, no_loop])
    keys, inverse = np.unique(low * num_nodes + high, return_inverse=True)
    if weights is not None:
        largest = np.zeros(len(keys), dtype=np.float32)
        np.maximum.at(largest, inverse, weights[no_loop])
        weights = largest
    return np.stack([keys // num_nodes, keys % num_nodes]), weights


# Splits: as many nodes of each class to train on, the others drawn by a seed

DEFAULT_LABELLED = 20  # nodes of each class to train on, if the graph has enough
MAX_LISTED = 5  # small classes that a note names


def split_nodes(
    classes: Int64[np.ndarray, " nodes"],
    spec: GraphSpec,
    seed: int,
    names: Sequence[str] = (),
    provided: Mapping[str, Nodes] | None = None,
) -> tuple[dict[str, Nodes], list[str]]:
    """Draw training, validation and test nodes; return their numbers by split, and notes on shortages.

    Nodes of unknown class (−1) are in no split. `names` are those of the classes, for the notes. The splits that the
    user `provided` stay, and the others are drawn from the remaining nodes.

    >>> splits, notes = split_nodes(np.array([0, 1] * 17), GraphSpec(graph="karate"), seed=1)
    >>> {name: len(nodes) for name, nodes in splits.items()}
    {'train': 4, 'validation': 10, 'test': 20}
    """
    provided = provided or {}
    order = np.random.default_rng(seed).permutation(np.flatnonzero(classes >= 0))
    order = order[~np.isin(order, np.concatenate([np.zeros(0, np.int64), *provided.values()]))]
    counts = np.bincount(classes[order], minlength=1)
    # in a small graph an eighth of the median class, so that one rare class does not shrink all
    default = min(DEFAULT_LABELLED, max(1, int(np.median(counts[counts > 0] if counts.any() else 0)) // 8))
    labelled = spec.labelled if isinstance(spec.labelled, int) else default
    train = provided.get("train")
    if train is None:
        train = np.concatenate([order[classes[order] == number][:labelled] for number in range(len(counts))])
        if not len(train):
            raise DataError("no labelled node is left to train on, besides those of the validation and test files.")
    remaining = order[~np.isin(order, train)]
    sizes = {split: size for split in ("validation", "test") if isinstance(size := getattr(spec, split), int)}
    if len(remaining) < len(sizes):
        verbs = " and ".join({"validation": "validate", "test": "test"}[split] for split in sizes)
        raise DataError(
            f"{len(remaining)} labelled node{' is' if len(remaining) == 1 else 's are'} left to {verbs} on, besides "
            "those that are trained on. Lower labelled=, or give more labels."
        )
    validation, test = (sizes.get(split, 0) for split in ("validation", "test"))
    is_short = len(remaining) < validation + test
    if is_short and len(sizes) == 2:  # the remaining nodes, in the same proportion
        validation = min(len(remaining) - 1, max(1, len(remaining) * validation // (validation + test)))
        test = len(remaining) - validation
    splits = {"train": train, "validation": remaining[:validation], "test": remaining[validation : validation + test]}
    splits = {split: np.sort(nodes) for split, nodes in {**splits, **provided}.items()}
    notes: list[str] = []
    if spec.labelled is None and labelled < DEFAULT_LABELLED:
        count, verb = _format_node_count(labelled)
        notes.append(f"the graph is small: {count} of each class {verb} trained on, not {DEFAULT_LABELLED}")
    rare = np.flatnonzero((counts > 0) & (counts < labelled)).tolist() if "train" not in provided else []
    if rare:
        listed = ", ".join((names[number] if names else str(number))[:40] for number in rare[:MAX_LISTED])
        listed += ", …" if len(rare) > MAX_LISTED else ""
        have = f"{len(rare):,} class{' has' if len(rare) == 1 else 'es have'}"
        notes.append(f"{have} fewer than {_format_node_count(labelled)[0]}: all of theirs are trained on ({listed})")
    if is_short and len(sizes) == 2:
        notes.append(f"{' '.join(_format_node_count(validation))} left to validate and {test:,} to test")
    elif is_short:
        notes.append(f"{' '.join(_format_node_count(len(remaining)))} left for the {next(iter(sizes))} split")
    return splits, notes


def _format_node_count(count: int) -> tuple[str, str]:
    """Return a number of nodes as text with the verb that fits it: ("1 node", "is") or ("2 nodes", "are")."""
    return pluralize(count, "node"), "is" if count == 1 else "are"


# Graphs from files: tables of nodes (id, label, features) and of edges (source, target, weight), or node-link JSON as
# networkx writes it: {"nodes": [{"id": …}], "links": [{"source": …, …}]}. It is not read by networkx, which
# would not say which node or link is wrong.

IDS = ("id", "node", "name", "nodeid", "node_id")
LABELS = ("label", "labels", "class", "category", "subject", "topic", "community", "club", "y")
SOURCES = ("source", "from", "src", "citing", "sourcenodeid")
TARGETS = ("target", "to", "dst", "cited", "targetnodeid")
WEIGHTS = ("weight", "value")
POSITIVE = "a number above 0 is expected, within what 32 bits hold (1e-45 to 3.4e38)"
FINITE = "a finite number is expected, no larger than 3.4e38 (what 32 bits hold)"


@dataclass(frozen=True)
class GraphTable:
    """Rows of nodes or of edges, from a table or a list of node-link JSON."""

    path: Path
    header: Sequence[str]  # in lower case; empty without a header
    rows: Iterable[tuple[int, Sequence[Any]]]  # number of each row and its cells
    list_name: str = ""  # "nodes" or "links" of node-link JSON

    def locate(self, row: int) -> str:
        """Return the file and the line or index of a row, for an error message."""
        return f"{self.path}, {f'{self.list_name}[{row}]' if self.list_name else f'line {row}'}"

    def find_column(self, names: Sequence[str]) -> int | None:
        """Return the index of the column with the first of these names that is in the header; None without any."""
        return next((self.header.index(name) for name in names if name in self.header), None)


def read_graph_tables(nodes_path: Path, edges_path: Path, description: str) -> RawGraph:
    """Read a graph from a table of nodes and a table of edges; `description` is its name for messages."""
    nodes = _open_table(nodes_path, (*IDS, *LABELS, "features"))
    data_hash = files_hash([nodes_path, edges_path])
    return _build_graph(nodes, _open_table(edges_path, (*SOURCES, *TARGETS, *WEIGHTS)), data_hash, description)


def _open_table(path: Path, aliases: Sequence[str]) -> GraphTable:
    """Open a CSV, TSV or JSONL file; its first row is a header if it holds one of the column names `aliases`."""

    def is_header(first_row: Sequence[str]) -> bool:
        return bool({cell.strip().casefold() for cell in first_row} & set(aliases))

    titles, _, rows = read_header(path, is_header, "the table is empty.")
    header = [title.strip().casefold() for title in titles or ()]
    if repeated := [name for index, name in enumerate(header) if name and name in header[:index]]:
        raise DataError(f"{path}: two columns are called {repeated[0][:40]!r}. Give each a name of its own.")
    return GraphTable(path, header, rows)


def _build_graph(nodes: GraphTable, edges: GraphTable, data_hash: str, description: str) -> RawGraph:
    """Build a graph from the rows of two tables; an edge to an unknown node is an error that names its line.

    `data_hash` is the hash of the files, and `description` their name for messages.
    """
    names, labels, features, notes = _read_nodes(nodes)
    numbered, weights = _read_edges(edges, {name: number for number, name in enumerate(names)})
    return RawGraph(names, labels, features, numbered, weights, data_hash, description, tuple(notes))


def _read_nodes(table: GraphTable) -> tuple[list[str], list[str], Features, list[str]]:
    """Return node names, labels ("" if unknown), features, and notes on the features.

    Without a header, the first column is the name and the second the label.
    """
    path, header = table.path, table.header
    numbers, cells = array("q"), [[] for _ in header]
    for number, row in table.rows:
        cells = cells or [[] for _ in row]
        if len(row) != len(cells):
            width = pluralize(len(row), "column")
            raise DataError(f"{table.locate(number)}: {width} where the table has {len(cells)}.")
        numbers.append(number)
        for column, cell in zip(cells, row, strict=True):
            column.append(cell.strip())
    if not numbers:
        raise DataError(f"{path}: nothing but a header. Give one node per row.")
    name, label = table.find_column(IDS) or 0, table.find_column(LABELS) if header else 1
    if label is None or label >= len(cells) or label == name:
        raise DataError(
            f"{path}: no column of labels, so that there is nothing to learn. Call one 'label'; a node whose class is "
            f"not known has an empty one. Columns: {', '.join(header or [str(len(cells))])}."
        )
    first_numbers: dict[str, int] = {}
    for number, node in zip(numbers, cells[name], strict=True):
        if not node:
            raise DataError(f"{table.locate(number)}: the node has no name. Fill in its id.")
        if (first := first_numbers.setdefault(node, number)) != number:
            where = "there" if table.list_name else f"on line {first}"
            raise DataError(f"{table.locate(number)}: the node {node[:40]!r} is {where} already.")
    columns = {
        (header[index] if header else "") or f"column {index + 1}": column
        for index, column in enumerate(cells)
        if index not in (name, label)
    }
    features, notes = _build_features(columns, len(numbers), lambda row: table.locate(numbers[row]))
    return cells[name], cells[label], features, notes


def _read_edges(table: GraphTable, node_numbers: Mapping[str, int]) -> tuple[Edges, Weights | None]:
    """Return the node numbers of the edges' ends and, if there is a weight column, their weights.

    Without columns called source and target, the first two other columns are the ends.
    """
    header, ends, weights = table.header, array("q"), array("f")
    source, target, weight = map(table.find_column, (SOURCES, TARGETS, WEIGHTS))
    remaining = (index for index in range(len(header) or 2) if index not in (source, target, weight))
    source = next(remaining, None) if source is None else source
    target = next(remaining, None) if target is None else target
    if source is None or target is None:
        raise DataError(
            f"{table.path}: an edge has two ends, and there is no second column for one. Call the columns source and "
            f"target; got: {', '.join(header)}."
        )
    for number, cells in table.rows:
        if len(cells) <= max(source, target, weight or 0):
            needed = "its source and target" if weight is None else "its source, target and weight"
            width = pluralize(len(cells), "column")
            raise DataError(f"{table.locate(number)}: {width}, where an edge needs {needed}.")
        for name in (cells[source].strip(), cells[target].strip()):
            if name not in node_numbers:
                hint = " If line 1 is a header, call its columns source and target." if not header else ""
                raise DataError(
                    f"{table.locate(number)}: there is no node {name[:40]!r} among the {len(node_numbers):,} nodes. "
                    f"Add it, or take the edge out.{hint if number == 1 else ''}"
                )
            ends.append(node_numbers[name])
        if weight is not None:
            value = parse_float32(cells[weight])
            if value is None or value <= 0:
                raise DataError(f"{table.locate(number)}: the weight is {repr(cells[weight])[:42]}; {POSITIVE}.")
            weights.append(value)
    edges = np.array(ends, dtype=np.int64).reshape(-1, 2).T
    return edges, None if weight is None else np.array(weights, dtype=np.float32)


def read_node_link(path: Path) -> RawGraph:
    """Read a graph from a node-link JSON file; keys are matched in lower case."""
    try:
        document = parse_json(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON ({error}).") from None
    if not isinstance(document, dict):
        raise DataError(f'{path}: an object with "nodes" and "links" is expected, as networkx.node_link_data gives it.')
    document = _lower_keys(document, f"{path}, the document")
    lists: list[list[dict[str, Any]]] = []
    for names in (("nodes",), ("links", "edges")):
        items = next((document[name] for name in names if name in document), None)
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise DataError(f'{path}: "{names[0]}" must be a list of objects, as networkx.node_link_data gives it.')
        lists.append([_lower_keys(item, f"{path}, {names[0]}[{index}]") for index, item in enumerate(items)])
    nodes, links = lists
    if not nodes:
        raise DataError(f"{path}: there are no nodes.")
    label = next((name for name in LABELS if any(name in node for node in nodes)), None)
    if label is None:
        raise DataError(f"{path}: no node has a 'label', so that there is nothing to learn. Give some nodes one.")
    keys = list(dict.fromkeys(["id", *(key for node in nodes for key in node)]))
    node_rows: list[list[str]] = []
    for index, node in enumerate(nodes):
        if isinstance(value := node.get(label), float) and math.isnan(value):
            node[label] = ""  # tables of numbers write NaN for an empty cell
        name = _get_name(node, "id", f"{path}, nodes[{index}]")
        node_rows.append([name, *(_to_cell(node.get(key)) for key in keys[1:])])
    ends = ("source", "target")
    has_weights = any("weight" in link for link in links)
    link_rows: list[list[Any]] = []
    for index, link in enumerate(links):
        location, weight = f"{path}, links[{index}]", link.get("weight", 1)
        if not isinstance(weight, int | float):
            raise DataError(f"{location}: the weight is {repr(weight)[:42]}; {POSITIVE}.")
        link_rows.append([*(_get_name(link, end, location) for end in ends), *[weight] * has_weights])
    return _build_graph(
        GraphTable(path, keys, enumerate(node_rows), "nodes"),
        GraphTable(path, [*ends, *["weight"] * has_weights], enumerate(link_rows), "links"),
        files_hash([path]),
        str(path),
    )


def _lower_keys(item: Mapping[str, Any], location: str) -> dict[str, Any]:
    """Return a JSON object with its keys in lower case and stripped; two equal keys are an error at `location`."""
    result: dict[str, Any] = {}
    for key, value in item.items():
        if result.setdefault(key.strip().casefold(), value) is not value:
            raise DataError(f"{location}: the key {key[:40]!r} occurs twice. Give each a name of its own.")
    return result


def _get_name(item: Mapping[str, Any], key: str, location: str) -> str:
    """Return the value of `key` in a JSON object as a node name; a missing or nested one is an error at `location`."""
    if key not in item or isinstance(item[key], dict | list):
        raise DataError(f"{location}: '{key}' is missing, or is not a plain name.")
    return str(item[key])


def _to_cell(value: Any) -> str:
    """Convert a JSON value to the text of a table's cell: a list is joined by spaces, null is empty."""
    if isinstance(value, list):
        return " ".join(_to_cell(item) for item in value)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def parse_float32(value: str | float) -> float | None:
    """Return a cell or number rounded to 32 bits; None if it is not a finite number.

    >>> parse_float32("0.5"), parse_float32("tall"), parse_float32("1e300"), parse_float32("1e-60")
    (0.5, None, None, 0.0)
    """
    try:
        number = array("f", [float(value)])[0]
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


# Features. Words, and columns of 0 and 1, are scaled: those of a node sum to one. Other numbers are standardised: each
# column gets mean 0 and deviation 1. Without any features, each node is its own feature.


def _build_features(columns: Mapping[str, Sequence[str]], num_nodes: int, locate: Locate) -> tuple[Features, list[str]]:
    """Convert the feature columns of a table (cells by column name) to a matrix, with notes on how they were read.

    `locate` returns the file and line of a row index, for error messages.
    """
    if "features" in columns:
        features, note = _parse_feature_lists(columns["features"], locate)
        return features, [note]
    numeric = {name: cells for name, cells in columns.items() if any(map(_is_number, cells))}
    notes = [f"the column '{name}' holds no numbers and was left out" for name in columns if name not in numeric]
    if not numeric:
        return _identity_features(num_nodes), [*notes, "no features: each node is its own"]
    table = np.empty((num_nodes, len(numeric)), dtype=np.float32, order="F")  # dropout follows the order in memory
    for column, (name, cells) in enumerate(numeric.items()):
        for row, cell in enumerate(cells):
            number = parse_float32(cell)
            if number is None:
                raise DataError(f"{locate(row)}: the feature '{name}' is {cell[:40]!r}; {FINITE}.")
            table[row, column] = number
    features, note = _scale_features(table)
    return features, [*notes, note]


def _parse_feature_lists(cells: Sequence[str], locate: Locate) -> tuple[Features, str]:
    """Convert cells, each the numbers or words of one node between spaces, to a feature matrix and a note."""
    rows = [cell.replace(",", " ").split() for cell in cells]
    first = next((row for row in rows if row), [])
    if not first or not all(map(_is_number, first)):
        words = {word: number for number, word in enumerate(sorted({word for row in rows for word in row}))}
        features = _bag_of_words([sorted({words[word] for word in row}) for row in rows], len(words))
        return features, f"{len(words):,} different words are the features; those of a node sum to one"
    table = np.empty((len(rows), len(first)), dtype=np.float32)
    for index, row in enumerate(rows):
        numbers = [number for word in row if (number := parse_float32(word)) is not None]
        if len(numbers) != len(first) or len(row) != len(numbers):
            raise DataError(
                f"{locate(index)}: {len(first)} finite numbers (up to 3.4e38) are expected as features, as of "
                f"the first node that has any; got {len(row)} words, {len(numbers)} of them such numbers."
            )
        table[index] = numbers
    return _scale_features(table)


def _identity_features(num_nodes: int) -> "csr_array":
    """Return the identity matrix as features, so that each node is its own feature."""
    from scipy.sparse import csr_array, identity  # takes a while to load

    return csr_array(identity(num_nodes, "float32"))


def _bag_of_words(rows: Sequence[Sequence[int]], width: int) -> "csr_array":
    """Return a sparse matrix of `width` columns; each row is 1/n in the n columns listed for it, and 0 elsewhere."""
    from scipy.sparse import csr_array

    counts = np.array(list(map(len, rows)), dtype=np.int64)
    columns = np.fromiter(chain.from_iterable(rows), np.int64, counts.sum())
    values = np.repeat(1 / np.maximum(counts, 1), counts).astype(np.float32)
    return csr_array((values, columns, np.concatenate([[0], np.cumsum(counts)])), shape=(len(rows), width))


def _scale_features(table: Float32[np.ndarray, "nodes features"]) -> tuple[Features, str]:
    """Scale each row to sum 1 if all features are 0 or 1, else standardise each column; return also a note on it."""
    if np.isin(table, (0, 1)).all():
        features = _bag_of_words([np.flatnonzero(row).tolist() for row in table], table.shape[1])
        return features, f"{table.shape[1]:,} features of 0 and 1; those of a node sum to one"
    deviation = table.std(axis=0, dtype=np.float64)
    centred = (table - table.mean(axis=0, dtype=np.float64)) / np.where(deviation > 0, deviation, 1)
    return centred.astype(np.float32), f"{table.shape[1]:,} features, each standardised to mean 0 and deviation 1"


def _is_number(cell: str) -> bool:
    """Return whether a cell holds a number, even an infinite one or one too large for 32 bits."""
    try:
        return not math.isnan(float(cell))
    except ValueError:
        return False


# Graphs that need no file

DEFAULT_NODES, DEFAULT_DEGREE = 1000, 10
CLASSES, FEATURES = 4, 16
WITHIN_FRACTION = 0.7  # of the edges are drawn within a community
FEATURE_SIGNAL = 0.5  # about how far the means of two communities are apart in a feature, in deviations of its noise
MIN_SPARSITY = 16  # at most nodes²/16 edges, so that few draws repeat an edge


def build_karate_graph() -> RawGraph:
    """Return Zachary's karate club (1977): 34 members, 78 friendships, and the faction that each joined in the split.

    Its members have no features, so each is its own feature.

    >>> build_karate_graph().edges.shape
    (2, 78)
    """
    from networkx import karate_club_graph

    club = karate_club_graph()
    labels = [club.nodes[member]["club"] for member in sorted(club)]
    edges = sorted((min(edge), max(edge)) for edge in club.edges)
    # The hash is that of version 0.1, which listed each member, from 1 on, with the friends of higher numbers.
    friends = {member: " ".join(str(high + 1) for low, high in edges if low == member) for member, _ in edges}
    friend_lists = "".join(f"{member + 1}: {numbers}\n" for member, numbers in friends.items())
    first = [member + 1 for member, label in enumerate(labels) if label == "Mr. Hi"]
    return RawGraph(
        node_names=[str(member + 1) for member in sorted(club)],
        labels=labels,
        features=_identity_features(len(labels)),
        edges=np.array(edges, dtype=np.int64).T,
        weights=None,
        hash=text_hash(f"{('Mr. Hi', 'Officer')}{first}\n{friend_lists}"),
        description="karate",
    )


def generate_block_graph(nodes: int | None = None, edges: int | None = None, seed: int = 0) -> RawGraph:
    """Generate a graph of communities, denser within than between them, with features that only hint at them.

    The stochastic block model (Holland, Laskey & Leinhardt 1983), drawn edge by edge, so that time and memory grow with
    the edges and not with the pairs of nodes (networkx draws by pairs). The same sizes and seed give the same graph.

    >>> generate_block_graph(100, 300).edges.shape
    (2, 300)
    """
    nodes = nodes or DEFAULT_NODES
    edges = edges or nodes * DEFAULT_DEGREE // 2
    max_edges = nodes**2 // MIN_SPARSITY
    if nodes < 8 * CLASSES:
        raise SpecError(f"data.nodes = {nodes}: a graph of {CLASSES} blocks needs at least {8 * CLASSES} nodes.")
    if edges > max_edges:
        raise SpecError(
            f"data.edges = {edges:,} is too dense for {nodes:,} nodes: at most {max_edges:,} edges are drawn."
        )
    rng = np.random.default_rng(seed)
    classes = rng.permutation(np.arange(nodes) % CLASSES)
    means = FEATURE_SIGNAL * rng.standard_normal((CLASSES, FEATURES), dtype=np.float32)
    features = means[classes] + rng.standard_normal((nodes, FEATURES), dtype=np.float32)
    pairs = np.zeros((2, 0), dtype=np.int64)
    order = np.argsort(classes, kind="stable")
    starts = np.searchsorted(classes[order], np.arange(CLASSES + 1))
    while pairs.shape[1] < edges:  # from any node, to any node or to one of the same community; with loops
        count = (edges - pairs.shape[1]) * 5 // 4 + 16
        source, target = rng.integers(nodes, size=(2, count))
        block = classes[source]
        neighbour = order[starts[block] + (rng.random(count) * (starts[block + 1] - starts[block])).astype(np.int64)]
        more = np.stack([source, np.where(rng.random(count) < WITHIN_FRACTION, neighbour, target)])
        pairs, _ = deduplicate_edges(np.concatenate([pairs, more], axis=1), None, nodes)
    selected = np.sort(rng.permutation(pairs.shape[1])[:edges])
    sizes = f"nodes={nodes} edges={edges} seed={seed} classes={CLASSES} features={FEATURES}"
    return RawGraph(
        node_names=list(map(str, range(nodes))),
        labels=[f"community {number + 1}" for number in classes.tolist()],
        features=features,
        edges=pairs[:, selected],
        weights=None,
        hash=text_hash(f"blocks {sizes} {WITHIN_FRACTION} {FEATURE_SIGNAL}"),
        description=f"blocks of {nodes:,} nodes and {edges:,} edges",
    )
