"""What does not depend on inputs or parameters, masks above all: one constant, however many steps made it."""

from dataclasses import replace

from lemma.ledger.drawing.graph import Graph

FIXED = ("constant", "buffer")


def without_constants(graph: Graph[int]) -> Graph[int]:
    """Return the graph in which what is made of constants alone, or of nothing, is a constant itself."""
    signals, kept = dict(graph.signals), []
    for step in graph.steps:
        if any(signals[operand].kind not in FIXED for operand in step.operands):
            kept.append(step)
            continue
        source = next((signals[operand].name for operand in step.operands), "") or step.operation
        source = f"not {source}" if step.operation in ("invert", "bitwise_not", "logical_not") else source
        for number in step.results:
            signals[number] = replace(signals[number], kind="constant", name=signals[number].name or source)
    return replace(graph, signals=signals, steps=tuple(kept))
