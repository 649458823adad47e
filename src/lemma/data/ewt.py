"""UD English-EWT out of the graphs that carry it: one JSON file a split, turned into CoNLL-U once.

Each sentence is a graph of nodes and, beside each node, the edges that leave it. Its tree are the edges of the domain
syntax and the type dependency; words know their place, their form and their part of speech.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lemma.data.conllu import Sentence, to_conllu
from lemma.errors import DataError

SPLITS = ("train", "dev", "test")


def convert_graphs(files: Sequence[Path], into: Path) -> None:
    """Write `SPLIT.conllu` into a folder for each JSON file of graphs."""
    for path in files:
        (into / f"{_split(path)}.conllu").write_text(to_conllu(read_graphs(path)), encoding="utf-8")


def read_graphs(path: Path) -> list[Sentence]:
    """Read the trees of a file of graphs, in its order."""
    try:
        graphs = json.loads(path.read_text(encoding="utf-8"))["data"]
        return [sentence_of(name, graph) for name, graph in graphs.items()]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not the graphs of the treebank ({type(error).__name__}: {error}).") from None


def sentence_of(name: str, graph: Mapping[str, Any]) -> Sentence:
    """Return the tree of one graph; `adjacency[i]` holds the edges that leave `nodes[i]`."""
    nodes = {node["id"]: node for node in graph["nodes"] if node["domain"] in ("syntax", "root")}
    words = sorted((node for node in nodes.values() if node["domain"] == "syntax"), key=lambda node: node["position"])
    above: dict[str, tuple[int, str]] = {}
    for node, edges in zip(graph["nodes"], graph["adjacency"], strict=True):
        for edge in edges:
            if edge.get("domain") == "syntax" and edge.get("type") == "dependency":
                above[edge["id"]] = (node["position"], edge["deprel"])
    arcs = [above[node["id"]] for node in words]
    return Sentence(
        words=tuple(node["form"] for node in words),
        heads=tuple(head for head, _ in arcs),
        relations=tuple(relation for _, relation in arcs),
        tags=tuple(node.get("upos", "_") for node in words),
        name=name,
    )


def _split(path: Path) -> str:
    found = [split for split in SPLITS if f"-{split}-" in path.name]
    if len(found) != 1:
        raise DataError(f"{path.name}: no split of the treebank ({', '.join(SPLITS)}) in the file's name.")
    return found[0]
