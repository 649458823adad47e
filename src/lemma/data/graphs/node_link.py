"""Graphs out of node-link JSON, as networkx writes it: {"nodes": [{"id": …}], "links": [{"source": …, …}]}."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lemma.data.graphs.features import features_of
from lemma.data.graphs.numbers import POSITIVE, as_weight
from lemma.data.graphs.raw import RawGraph
from lemma.data.graphs.tables import LABELS
from lemma.data.hashing import files_sum
from lemma.errors import DataError


def graph_of_json(path: Path) -> RawGraph:
    """Read a node-link file; a link to an unknown node is an error that says which one it is."""
    document = _document(path)
    nodes, links = _listed(path, document, "nodes"), _listed(path, document, "links", "edges")
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


def _listed(path: Path, document: Mapping[str, Any], *names: str) -> Sequence[Mapping[str, Any]]:
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
