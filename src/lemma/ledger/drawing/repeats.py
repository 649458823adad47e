"""Equal layers one after the other, drawn once: found by their paths, proved equal step by step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from lemma.ledger.drawing.graph import HELD, Frame, Graph, Ref, Step

START = "start"
Pair = tuple[int, int]
Chain = list[tuple[int, int | None]]
"""For all that a layer reads from outside, in order: what made it in the layer before; None for what layers share."""


def folded(graph: Graph[int]) -> Graph[int]:
    """Return the graph with the first of equal layers in the place of all of them, layers within layers too."""
    for container in _containers(graph):
        layers = _layers(graph, container)
        chain = _chain(graph, layers)
        if chain is not None:
            return folded(_first_only(graph, container, layers, chain))
    return graph


@dataclass(frozen=True)
class Match:
    """A layer beside the first: the signals that both make, and those that both read from outside, pair by pair."""

    made: dict[int, int]
    read: list[Pair]


def _containers(graph: Graph[int]) -> list[str]:
    """The paths that hold numbered modules, outermost first, without those folded already."""
    done = {frame.path for frame in graph.frames}
    found: dict[str, None] = {}
    for step in graph.steps:
        words = step.path.split(".")
        found |= {".".join(words[:place]): None for place, word in enumerate(words) if word.isdigit()}
    return sorted((path for path in found if path not in done), key=lambda path: path.count("."))


def _layers(graph: Graph[int], container: str) -> list[list[Step]]:
    prefix = f"{container}." if container else ""
    numbered: dict[int, list[Step]] = {}
    for step in graph.steps:
        number = step.path.removeprefix(prefix).split(".")[0]
        if step.path.startswith(prefix) and number.isdigit():
            numbered.setdefault(int(number), []).append(step)
    return [numbered[number] for number in sorted(numbered)]


def _chain(graph: Graph[int], layers: Sequence[list[Step]]) -> Chain | None:
    """What goes from layer to layer, if every later one repeats the first on what the one before it made."""
    if len(layers) < 2 or _read_midway(graph, layers):
        return None
    matches = [_matched(graph, layers[0], layer) for layer in layers]
    chains = [_chained(graph, before, here) for before, here in pairwise(matches)]
    return chains[0] if all(chain == chains[0] for chain in chains) else None


def _matched(graph: Graph[int], first: Sequence[Step], layer: Sequence[Step]) -> Match | None:
    """Lay two layers side by side; None if they differ in anything but the parameters they read."""
    if [step.operation for step in first] != [step.operation for step in layer]:
        return None
    match = Match({}, [])
    for mine, theirs in zip(first, layer, strict=True):
        if len(mine.refs) != len(theirs.refs) or len(mine.results) != len(theirs.results):
            return None
        within = [pair for pair in zip(mine.operands, theirs.operands, strict=True) if pair[0] in match.made]
        match.read.extend(p for p in zip(mine.operands, theirs.operands, strict=True) if p[0] not in match.made)
        match.made.update(zip(mine.results, theirs.results, strict=True))
        if any(match.made[a] != b for a, b in within):
            return None
    alike = all(_alike(graph, *pair) for pair in [*match.made.items(), *match.read])
    return match if alike else None


def _alike(graph: Graph[int], one: int, other: int) -> bool:
    mine, theirs = graph.signals[one], graph.signals[other]
    return mine.shape == theirs.shape and (mine.kind in HELD) == (theirs.kind in HELD)


def _chained(graph: Graph[int], before: Match | None, here: Match | None) -> Chain | None:
    """The chain from one layer to the next; None if that one reads anything else."""
    if before is None or here is None:
        return None
    came_from = {theirs: mine for mine, theirs in before.made.items()}
    for mine, theirs in here.read:
        if mine != theirs and theirs not in came_from and graph.signals[theirs].kind not in (*HELD, "constant"):
            return None
    return [(mine, came_from.get(theirs)) for mine, theirs in here.read]


def _read_midway(graph: Graph[int], layers: Sequence[list[Step]]) -> bool:
    """Whether something outside reads what a layer other than the last has made."""
    within = {id(step) for layer in layers for step in layer}
    outside = {operand for step in graph.steps if id(step) not in within for operand in step.operands}
    return any(number in outside for layer in layers[:-1] for step in layer for number in step.results)


def _first_only(graph: Graph[int], container: str, layers: Sequence[list[Step]], chain: Chain) -> Graph[int]:
    """Leave the first layer, in a frame; what reads the last one's signals reads the first one's."""
    graph, first, carried = _parted(graph, layers[0], chain)
    match = _matched(graph, layers[0], layers[-1])
    back = {theirs: mine for mine, theirs in match.made.items()} if match else {}
    layered = {id(step) for layer in layers for step in layer}
    at = next(place for place, step in enumerate(graph.steps) if id(step) == id(layers[0][0]))
    before, after = ([s for s in part if id(s) not in layered] for part in (graph.steps[:at], graph.steps[at:]))
    smaller = graph.reading(
        lambda ref: replace(ref, signal=back.get(ref.signal, ref.signal)), [*before, *first, *after]
    )
    path = ".".join(layers[0][0].path.split(".")[: len(container.split(".")) + 1 if container else 1])
    return replace(smaller, frames=(*graph.frames, Frame(container, len(layers), path, carried)))


def _parted(graph: Graph[int], layer: list[Step], chain: Chain) -> tuple[Graph[int], list[Step], dict[int, int]]:
    """Part a signal that is both what all layers share and what the first begins with: the latter gets a step."""
    shared = {mine for mine, made in chain if made is None}
    begins = {mine: made for mine, made in chain if made is not None}
    free = max(graph.signals) + 1
    new = {mine: free + place for place, mine in enumerate(mine for mine in begins if mine in shared)}
    signals = {number: replace(graph.signals[begins[mine]], kind="result") for mine, number in new.items()}
    starts = [Step(START, "", (Ref(mine),), {}, (number,)) for mine, number in new.items()]
    made, rest = {n for step in layer for n in step.results}, iter(chain)

    def swap(ref: Ref) -> Ref:
        carried = None if ref.signal in made else next(rest)[1]
        return ref if carried is None else replace(ref, signal=new.get(ref.signal, ref.signal))

    first = [step.reading(swap) for step in layer]
    carried = {new.get(mine, mine): source for mine, source in begins.items()}
    return replace(graph, signals={**graph.signals, **signals}), [*starts, *first], carried
