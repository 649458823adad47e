"""A name for every signal: its author's where there is one, and no two alike."""

from collections import Counter

from lemma.ledger.drawing.graph import HELD, Graph, Step
from lemma.ledger.polynomial import Polynomial

LOWERED = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
WORDS = {
    "pad": "padded",
    "softmax": "weights",
    "einsum": "sums",
    "add": "sum",
    "mul": "product",
    "matmul": "product",
    "scaled_dot_product_attention": "attended",
    "multi_head_attention_forward": "attended",
}


def signal_names(graph: Graph[Polynomial]) -> dict[int, str]:
    """Name every signal; the second of a name is written with a small 2."""
    names: dict[int, str] = {}
    seen: Counter[str] = Counter()
    makers = {number: step for step in graph.steps for number in step.results}
    for number, signal in sorted(graph.signals.items()):
        if signal.kind in HELD:
            names[number] = signal.name
            continue
        if number in makers or signal.kind != "result":
            name = signal.name.rpartition(".")[2] or _called(makers[number], names)
            seen[name] += 1
            names[number] = name if seen[name] == 1 else name + str(seen[name]).translate(LOWERED)
    return names


def _called(step: Step, names: dict[int, str]) -> str:
    """What a signal is called after its step."""
    if step.operation == "rearrange" and "unfold" in step.through:
        return "windows"
    if step.operation == "rearrange":
        return names[step.operands[0]].rstrip("₀₁₂₃₄₅₆₇₈₉")
    return WORDS.get(step.operation, step.operation)
