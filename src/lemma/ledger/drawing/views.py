"""Steps that only look at the same numbers otherwise: left out, merged into one, or written as a transpose."""

from dataclasses import replace

from lemma.ledger.drawing.graph import Graph, Ref, Signal, Step
from lemma.ledger.polynomial import ZERO, Polynomial

COPIES = {"contiguous", "detach", "clone", "to", "float", "type", "type_as", "dropout", "alias", "type_promotion"}
RESHAPES = {"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "getitem", "narrow", "select"}
SWAPS = {"transpose", "permute", "swapaxes", "movedim", "T", "mT", "t"}
SPLITS = {"unbind", "chunk", "split", "unfold"}
PRODUCTS = {"matmul", "bmm"}
REARRANGED = "rearrange"


def without_views(graph: Graph[Polynomial]) -> Graph[Polynomial]:
    """Return the graph without copies, with chains of views as one step, and Kᵀ where a product reads a transpose."""
    return _turned(_merged(_without_copies(graph)))


def _without_copies(graph: Graph[Polynomial]) -> Graph[Polynomial]:
    same: dict[int, int] = {}
    kept: list[Step] = []
    signals = dict(graph.signals)
    for step in graph.steps:
        if not _changes_nothing(graph, step):
            kept.append(step)
            continue
        (made,), source = step.results, step.operands[0] if step.operation != "cat" else _filled(graph, step)[0]
        source = same.get(source, source)
        same[made] = source
        if not signals[source].name and step.operation in RESHAPES:
            signals[source] = replace(signals[source], name=signals[made].name)
    smaller = graph.reading(lambda ref: replace(ref, signal=same.get(ref.signal, ref.signal)), kept)
    frames = tuple(
        replace(frame, carried={same.get(a, a): same.get(b, b) for a, b in frame.carried.items()})
        for frame in graph.frames
    )
    return replace(smaller, signals=signals, frames=frames)


def _changes_nothing(graph: Graph[Polynomial], step: Step) -> bool:
    if step.operation == "cat":
        return len(_filled(graph, step)) == 1
    if len(step.operands) != 1 or len(step.results) != 1:
        return False
    same_shape = graph.signals[step.operands[0]].shape == graph.signals[step.results[0]].shape
    return same_shape and step.operation in COPIES | RESHAPES


def _filled(graph: Graph[Polynomial], step: Step) -> list[int]:
    """What a step reads that holds anything: a cache begins with nothing."""
    return [number for number in step.operands if ZERO not in graph.signals[number].shape]


def _merged(graph: Graph[Polynomial]) -> Graph[Polynomial]:
    """Join a view with the view that alone reads it."""
    uses, makers, signals = graph.uses(), {}, dict(graph.signals)
    kept: list[Step] = []
    for step in graph.steps:
        if _is_view(step):
            step = replace(step, operation=REARRANGED, through=(step.operation,))
            before = makers.get(step.operands[0])
            if before in kept and uses[step.operands[0]] == 1:
                kept.remove(before)
                signals[step.results[0]] = _named(signals[step.results[0]], signals[step.operands[0]].name)
                step = replace(step, arguments=before.arguments, through=before.through + step.through)
            makers |= {number: step for number in step.results if len(step.results) == 1}
        kept.append(step)
    return replace(graph, signals=signals, steps=tuple(kept))


def _named(signal: Signal[Polynomial], name: str) -> Signal[Polynomial]:
    return signal if signal.name else replace(signal, name=name)


def _is_view(step: Step) -> bool:
    return step.operation in RESHAPES | SWAPS | SPLITS and len(step.operands) == 1


def _turned(graph: Graph[Polynomial]) -> Graph[Polynomial]:
    """Write a transpose that only products read into the products."""
    readers: dict[int, set[str]] = {graph.result: {"result"}}
    for step in graph.steps:
        for number in step.operands:
            readers.setdefault(number, set()).add(step.operation)
    turned = {
        step.results[0]: Ref(step.operands[0], turned=True)
        for step in graph.steps
        if _is_transpose(graph, step) and readers.get(step.results[0], set()) <= PRODUCTS
    }
    kept = [step for step in graph.steps if step.results[0] not in turned]
    return graph.reading(lambda ref: turned.get(ref.signal, ref), kept)


def _is_transpose(graph: Graph[Polynomial], step: Step) -> bool:
    """Whether a step swaps the last two dimensions and does nothing else."""
    if step.operation != REARRANGED or len(step.through) != 1 or step.through[0] not in SWAPS:
        return False
    before, after = graph.signals[step.operands[0]].shape, graph.signals[step.results[0]].shape
    return len(before) > 1 and after == (*before[:-2], before[-1], before[-2])
