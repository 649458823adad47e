"""The numbers of a graph's case as matrices, checked against each other."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from lemma.errors import SpecError, unknown
from lemma.looking.words import counted
from lemma.looking.worked.graph_case import MOST_NODES, GraphCase
from lemma.looking.worked.maps import rectangle
from lemma.looking.worked.numerals import printable
from lemma.looking.worked.steps import LARGEST


@dataclass(frozen=True, eq=False)
class GivenGraph:
    """A graph as its adjacency matrix, with features and a layer."""

    names: tuple[str, ...]
    adjacency: Float[np.ndarray, "nodes nodes"]
    features: Float[np.ndarray, "nodes features"]
    layer: Float[np.ndarray, "features out"] | None
    focus: tuple[int, ...]
    notes: tuple[str, ...]

    @property
    def edges(self) -> int:
        """How many edges there are between different nodes."""
        return int(self.adjacency.sum()) // 2


def given_graph(case: GraphCase, where: str, notes: tuple[str, ...] = ()) -> GivenGraph:
    """Everything that the case gives; a loop adds nothing and an edge that stands twice counts once, which is noted."""
    names = _names(case, where)
    places = {name: place for place, name in enumerate(names)}
    adjacency = np.zeros((len(names), len(names)))
    for number, edge in enumerate(case.edges, 1):
        first, second = _ends(edge, number, places, where)
        if first != second:
            adjacency[first, second] = adjacency[second, first] = 1
    features = _features(case, len(names), where)
    focus = _focus(case, places, adjacency, where)
    shown = tuple(map(printable, names))
    said = (*notes, *_notes(case))
    return GivenGraph(shown, adjacency, features, _layer(case, features, where), focus, said)


def _names(case: GraphCase, where: str) -> tuple[str, ...]:
    names = case.nodes or tuple(dict.fromkeys(name for edge in case.edges for name in edge))
    if not names:
        raise SpecError(f'{where}: there is no node. Give nodes = ["a", "b"], or edges = [["a", "b"]].')
    if len(names) > MOST_NODES:
        raise SpecError(f"{where}: {len(names):,} nodes are too many for work by hand; at most {MOST_NODES} are read.")
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise SpecError(f"{where}: the node '{twice[0]}' stands twice in nodes. Give each node once.")
    return names


def _ends(edge: tuple[str, ...], number: int, places: dict[str, int], where: str) -> tuple[int, int]:
    if len(edge) != 2:
        raise SpecError(f'{where}: edge {number} has {counted(len(edge), "end")}, expected two, as in ["a", "b"].')
    for name in edge:
        if name not in places:
            raise SpecError(f"{where}: edge {number}: " + unknown("the node", name, places))
    return places[edge[0]], places[edge[1]]


def _features(case: GraphCase, nodes: int, where: str) -> Float[np.ndarray, "nodes features"]:
    if case.X is None:
        return np.ones((nodes, 1)) if case.start == "ones" else np.eye(nodes)
    features = rectangle("X", case.X, where)
    if len(features) != nodes:
        turned = " It would fit transposed." if features.shape[1] == nodes else ""
        raise SpecError(f"{where}: X has {counted(len(features), 'row')}, expected {nodes}: one for each node.{turned}")
    _refuse_large(features, "X", where)
    return features


def _layer(
    case: GraphCase, features: Float[np.ndarray, "nodes features"], where: str
) -> Float[np.ndarray, "features out"] | None:
    if case.W is None:
        return None
    layer = rectangle("W", case.W, where)
    if len(layer) != features.shape[1]:
        turned = " It would fit transposed." if layer.shape[1] == features.shape[1] else ""
        raise SpecError(
            f"{where}: W has {counted(len(layer), 'row')}, expected {features.shape[1]}: one for each column of X."
            f"{turned}"
        )
    _refuse_large(layer, "W", where)
    return layer


def _refuse_large(matrix: Float[np.ndarray, "rows columns"], name: str, where: str) -> None:
    if np.abs(matrix).max() > LARGEST:
        raise SpecError(f"{where}: {name} holds a number past {LARGEST:.0e}, too large to work with.")


def _focus(
    case: GraphCase, places: dict[str, int], adjacency: Float[np.ndarray, "nodes nodes"], where: str
) -> tuple[int, ...]:
    """The nodes that were named; else the first of the most edges and the first of the fewest."""
    for name in case.focus:
        if name not in places:
            raise SpecError(f"{where}: " + unknown("focus", name, places))
    if case.focus:
        return tuple(dict.fromkeys(places[name] for name in case.focus))
    degrees = adjacency.sum(axis=1)
    return tuple(dict.fromkeys((int(degrees.argmax()), int(degrees.argmin()))))


def _notes(case: GraphCase) -> Iterator[str]:
    loops = sum(len(set(edge)) == 1 for edge in case.edges)
    if loops:
        yield f"{counted(loops, 'edge')} from a node to itself: left out, since Ã gives every node one loop anyhow."
    pairs = [frozenset(edge) for edge in case.edges if len(set(edge)) == 2]
    if len(pairs) > len(set(pairs)):
        yield f"{counted(len(pairs) - len(set(pairs)), 'edge')} given twice: counted once."
