"""Graphs as data: `prepare_graph` gives one with its classes numbered and its nodes divided."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from lemma.data.graphs.blocks import blocks
from lemma.data.graphs.compressed import Features
from lemma.data.graphs.dividing import Nodes, divide_nodes
from lemma.data.graphs.karate import karate
from lemma.data.graphs.named import CORA, GRAPHS
from lemma.data.graphs.node_link import graph_of_json
from lemma.data.graphs.raw import Pairs, RawGraph, Weights
from lemma.data.graphs.tables import graph_of_tables
from lemma.data.library import corpus_files
from lemma.data.progress import Progress
from lemma.data.reading import exists
from lemma.data.records import SUFFIXES
from lemma.errors import DataError, SpecError, unknown
from lemma.spec import GraphSpec


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
    by_split: Mapping[str, Nodes] = field(repr=False)
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
    nodes: Nodes

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
