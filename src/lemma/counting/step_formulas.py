"""A name for every signal of a data flow, and the formula of every step in these names."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lemma.counting.polynomial import Polynomial
from lemma.counting.tracing import HELD, DataFlow, Ref, Step
from lemma.counting.writing import write

LOWERED = "₀₁₂₃₄₅₆₇₈₉"
CALLED = {
    "pad": "padded",
    "softmax": "weights",
    "einsum": "sums",
    "add": "sum",
    "mul": "product",
    "matmul": "product",
    "scaled_dot_product_attention": "attended",
    "multi_head_attention_forward": "attended",
}
RECURRENT = {
    "lstm": [
        "(i, f, g, o) = W_ih x_t + b_ih + W_hh h + b_hh",
        "c = σ(f) ∗ c + σ(i) ∗ tanh(g)",
        "h = σ(o) ∗ tanh(c)",
    ],
    "gru": [
        "r, z = σ(W_ih x_t + b_ih + W_hh h + b_hh)",
        "n = tanh(W_in x_t + b_in + r ∗ (W_hn h + b_hn))",
        "h = (1 − z) ∗ n + z ∗ h",
    ],
    "rnn_tanh": ["h = tanh(W_ih x_t + b_ih + W_hh h + b_hh)"],
    "rnn_relu": ["h = max(0, W_ih x_t + b_ih + W_hh h + b_hh)"],
}
NORMS = {"layer_norm": "({0} − mean)/√(variance + ε)", "rms_norm": "{0}/√(mean of {0}² + ε)"}
SIGNS = {"add": "+", "sub": "−", "mul": "∗", "div": "/", "rsub": "−", "rtruediv": "/"}


def signal_names(flow: DataFlow[Polynomial]) -> dict[int, str]:
    """Name every signal: by its author's name or after its step; the second of a name is written with a small 2."""
    names: dict[int, str] = {}
    seen: Counter[str] = Counter()
    makers = {number: step for step in flow.steps for number in step.results}
    for number, signal in sorted(flow.signals.items()):
        if signal.kind in HELD:
            names[number] = signal.name
        elif number in makers or signal.kind != "result":
            name = signal.name.rpartition(".")[2]
            if not name:
                step = makers[number]
                name = CALLED.get(step.operation, step.operation)
                if step.operation == "rearrange":
                    name = "windows" if "unfold" in step.through else names[step.operands[0]].rstrip(LOWERED)
            seen[name] += 1
            small = str.maketrans("0123456789", LOWERED)
            names[number] = name if seen[name] == 1 else name + str(seen[name]).translate(small)
    return names


def short(name: str) -> str:
    """W for a weight, b for a bias; other names are their last word."""
    last = name.rpartition(".")[2]
    return {"weight": "W", "bias": "b"}.get(last, last)


class StepFormulas:
    """Writes formulas for one data flow, whose signals have names; sizes are written in the order of the symbols."""

    def __init__(self, flow: DataFlow[Polynomial], names: Mapping[int, str], order: Sequence[str]) -> None:
        self.flow, self.names, self.order, self.uses = flow, names, order, flow.uses()

    def lines(self, step: Step) -> list[str]:
        """The formula of a step, one line or more."""
        left = ", ".join(self.names[number] for number in step.results if self.uses[number])
        if step.operation in RECURRENT:
            kind = step.operation.split("_")[0].upper()
            return [f"{left} = {kind}({self._name(step.refs[0])})", *RECURRENT[step.operation]]
        return [f"{left} = {self._right(step)}"]

    def size(self, size: Polynomial) -> str:
        """One dimension among others: a sum in brackets."""
        text = write(size, self.order, "unicode")
        return f"({text.replace(' ', '')})" if " " in text else text

    def shape(self, shape: Sequence[Polynomial]) -> str:
        """A shape: S × E."""
        return " × ".join(map(self.size, shape)) or "1"

    def _name(self, value: Any) -> str:
        """A signal or a number; W and b are the weight and the bias that are drawn next to the step."""
        if not isinstance(value, Ref):
            return f"{value:.4g}" if isinstance(value, float) else str(value)
        name = self.names[value.signal]
        if self.flow.signals[value.signal].kind in HELD:
            name = short(name)
        return name + ("ᵀ" if value.turned else "")

    def _right(self, step: Step) -> str:
        names, signals = [self._name(ref) for ref in step.refs], self.flow.signals
        match step.operation:
            case "linear":
                return f"{names[0]} {names[1]}ᵀ" + "".join(f" + {bias}" for bias in names[2:])
            case "matmul" | "bmm":
                return " ".join(names)
            case "addmm":
                return f"{' '.join(names[1:])} + {names[0]}"
            case "einsum":  # a sum over the sizes of the letters that do not come out
                given, _, kept = str(step.arguments[0]).replace(" ", "").partition("->")
                sizes: dict[str, Polynomial] = {}
                for letters, ref in zip(given.split(","), step.refs, strict=True):
                    sizes |= dict(zip(letters, signals[ref.signal].shape, strict=False))
                over = ", ".join(self._alone(size) for letter, size in sizes.items() if letter not in kept)
                return f"sum over {over} of {' ∗ '.join(names)}"
            case "softmax" | "log_softmax":
                axis = next((n for n in (*step.numbers, step.named.get("dim")) if isinstance(n, int)), -1)
                size = signals[step.operands[0]].shape[axis]
                return f"{step.operation.replace('_', ' ')}({names[0]}) over {self._alone(size)}"
            case "layer_norm" | "rms_norm":  # scaled and shifted by what of weight and bias there is
                held = zip([" ∗ ", " + "], names[1:], strict=False)
                return NORMS[step.operation].format(names[0]) + "".join(sign + name for sign, name in held)
            case "embedding":
                return f"{names[1]}[{names[0]}]"
            case "scaled_dot_product_attention":
                queries, keys, values, *mask = names
                width = step.under_root or signals[step.operands[0]].shape[-1]
                causal = ", causal" if step.named.get("is_causal") or True in step.arguments else ""
                more = f" + {mask[0]}" if mask else ""
                return f"softmax({queries} {keys}ᵀ/√{self._bracket(width)}{more}{causal}) {values}"
            case "multi_head_attention_forward":
                return f"multi-head attention({', '.join(names[:3])})"
            case "masked_fill":
                number = "−∞" if step.numbers and step.numbers[-1] < -1e30 else "".join(map(str, step.numbers[-1:]))
                return f"{names[0]}, {number} where {names[1]}"
            case "cat":
                return f"[{' ; '.join(names)}]"
            case "pow":
                return f"{names[0]}^{self._name(step.numbers[-1])}" if step.numbers else f"pow({names[0]})"
            case "start":
                return names[0]
            case "neg":
                return f"−{names[0]}"
            case "rsqrt":
                return f"1/√{names[0]}"
            case "pad":
                before, after = any(step.numbers[::2]), any(step.numbers[1::2])
                return f"zeros {'around' if before and after else 'before' if before else 'after'} {names[0]}"
            case "rearrange":
                return self._rearranged(step, names[0])
        if step.operation not in SIGNS or len(step.arguments) < 2:
            return f"{step.operation}({', '.join(names)})"
        if step.under_root is not None:
            sign = "∗" if (step.operation == "mul") == (step.numbers[0] > 1) else "/"
            return f"{names[0]} {sign} √{self._bracket(step.under_root)}"
        sides = list(map(self._name, step.arguments[:2]))
        left, right = reversed(sides) if step.operation in ("rsub", "rtruediv") else sides
        return f"{left} {SIGNS[step.operation]} {right}"

    def _rearranged(self, step: Step, name: str) -> str:
        if "unfold" in step.through:
            return f"windows of {name}"
        before, after = (list(self.flow.signals[n].shape) for n in (step.operands[0], step.results[0]))
        if len(step.results) > 1:
            return f"the parts of {name}"
        gone = [size for size in before if size not in after]
        new = [size for size in after if size not in before]
        if not gone and not new:
            return f"{name}, axes reordered"
        if not new and set(step.through) <= {"getitem", "select"}:
            return f"{name} at one place of {self.shape(gone)}"
        return f"{name}, axes {self.shape(gone)} → {self.shape(new)}"

    def _alone(self, size: Polynomial) -> str:
        return write(size, self.order, "unicode").replace(" ", "")

    def _bracket(self, size: Polynomial) -> str:
        text = write(size, self.order, "unicode")
        return text if text.replace("_", "").isalnum() else f"({text.replace(' ', '')})"
