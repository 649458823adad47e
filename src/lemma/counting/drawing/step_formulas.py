"""Names of the signals of a data flow, and the formula of every step in these names."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lemma.counting.drawing.tracing import STORED, DataFlow, Ref, Step
from lemma.counting.polynomial import Polynomial
from lemma.counting.writing import write_formula

SUBSCRIPT_DIGITS = "₀₁₂₃₄₅₆₇₈₉"
RESULT_NAMES = {
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
TEMPLATES = {"embedding": "{1}[{0}]", "start": "{0}", "neg": "−{0}", "rsqrt": "1/√{0}"}
TEMPLATES |= {"multi_head_attention_forward": "multi-head attention({0}, {1}, {2})"}
SIGNS = {"add": "+", "sub": "−", "mul": "∗", "div": "/", "rsub": "−", "rtruediv": "/"}


def name_signals(flow: DataFlow[Polynomial]) -> dict[int, str]:
    """Return a name for every tensor of the flow, by its number: that of its variable, else one after its step.

    Tensors of the same name are distinguished by small digits: x, x₂.
    """
    names: dict[int, str] = {}
    seen: Counter[str] = Counter()
    makers = {number: step for step in flow.steps for number in step.results}
    for number, signal in sorted(flow.signals.items()):
        if signal.kind in STORED:
            names[number] = signal.name
        elif number in makers or signal.kind != "result":
            name = signal.name.rpartition(".")[2]
            if not name:
                step = makers[number]
                name = RESULT_NAMES.get(step.operation, step.operation)
                if step.operation == "rearrange":
                    name = (
                        "windows" if "unfold" in step.merged_from else names[step.operands[0]].rstrip(SUBSCRIPT_DIGITS)
                    )
            seen[name] += 1
            small = str.maketrans("0123456789", SUBSCRIPT_DIGITS)
            names[number] = name if seen[name] == 1 else name + str(seen[name]).translate(small)
    return names


def short_name(name: str) -> str:
    """Return W for a parameter that ends in "weight", b for "bias", else the last word of its dotted name."""
    last = name.rpartition(".")[2]
    return {"weight": "W", "bias": "b"}.get(last, last)


class StepFormulas:
    """Writes formulas for one data flow, whose signals have names; sizes are written in the order of the symbols."""

    def __init__(self, flow: DataFlow[Polynomial], names: Mapping[int, str], order: Sequence[str]) -> None:
        self.flow, self.names, self.order, self.uses = flow, names, order, flow.count_uses()

    def write_step(self, step: Step) -> list[str]:
        """Write the formula of a step as one or more lines, such as "q = x Wᵀ + b"."""
        left = ", ".join(self.names[number] for number in step.results if self.uses[number])
        if step.operation in RECURRENT:
            kind = step.operation.split("_")[0].upper()
            return [f"{left} = {kind}({self._write_operand(step.refs[0])})", *RECURRENT[step.operation]]
        return [f"{left} = {self._write_right_side(step)}"]

    def write_size(self, size: Polynomial) -> str:
        """Write a dimension as text, such as 3·d; a sum is put in brackets: (N-1)."""
        text = write_formula(size, self.order, "unicode")
        return f"({text.replace(' ', '')})" if " " in text else text

    def write_shape(self, shape: Sequence[Polynomial]) -> str:
        """Write a shape as text: "B × T × d"."""
        return " × ".join(map(self.write_size, shape)) or "1"

    def _write_operand(self, value: Any) -> str:
        """Write an operand `value`: the name of a tensor (W or b for a parameter), or a number."""
        if not isinstance(value, Ref):
            return f"{value:.4g}" if isinstance(value, float) else str(value)
        name = self.names[value.signal]
        if self.flow.signals[value.signal].kind in STORED:
            name = short_name(name)
        return name + ("ᵀ" if value.transposed else "")

    def _write_right_side(self, step: Step) -> str:
        """Write the right-hand side of a step's formula."""
        names, signals = [self._write_operand(ref) for ref in step.refs], self.flow.signals
        if step.operation in TEMPLATES:
            return TEMPLATES[step.operation].format(*names)
        match step.operation:
            case "linear":
                return f"{names[0]} {names[1]}ᵀ" + "".join(f" + {bias}" for bias in names[2:])
            case "matmul" | "bmm":
                return " ".join(names)
            case "addmm":
                return f"{' '.join(names[1:])} + {names[0]}"
            case "einsum":  # a sum over the sizes of the letters that do not come out
                inputs, _, output = str(step.args[0]).replace(" ", "").partition("->")
                sizes: dict[str, Polynomial] = {}
                for letters, ref in zip(inputs.split(","), step.refs, strict=True):
                    sizes |= dict(zip(letters, signals[ref.signal].shape, strict=False))
                over = ", ".join(self._write_compact(size) for letter, size in sizes.items() if letter not in output)
                return f"sum over {over} of {' ∗ '.join(names)}"
            case "softmax" | "log_softmax":
                axis = next((n for n in (*step.numbers, step.kwargs.get("dim")) if isinstance(n, int)), -1)
                size = signals[step.operands[0]].shape[axis]
                return f"{step.operation.replace('_', ' ')}({names[0]}) over {self._write_compact(size)}"
            case "layer_norm" | "rms_norm":  # scaled and shifted by what of weight and bias there is
                factors = zip([" ∗ ", " + "], names[1:], strict=False)
                return NORMS[step.operation].format(names[0]) + "".join(sign + name for sign, name in factors)
            case "scaled_dot_product_attention":
                queries, keys, values, *mask = names
                width = step.squared_scale or signals[step.operands[0]].shape[-1]
                causal = ", causal" if step.kwargs.get("is_causal") or True in step.args else ""
                more = f" + {mask[0]}" if mask else ""
                return f"softmax({queries} {keys}ᵀ/√{self._write_in_brackets(width)}{more}{causal}) {values}"
            case "masked_fill":
                number = "−∞" if step.numbers and step.numbers[-1] < -1e30 else "".join(map(str, step.numbers[-1:]))
                return f"{names[0]}, {number} where {names[1]}"
            case "cat":
                return f"[{' ; '.join(names)}]"
            case "pow":
                return f"{names[0]}^{self._write_operand(step.numbers[-1])}" if step.numbers else f"pow({names[0]})"
            case "pad":
                before, after = any(step.numbers[::2]), any(step.numbers[1::2])
                return f"zeros {'around' if before and after else 'before' if before else 'after'} {names[0]}"
            case "rearrange":
                return self._write_rearrangement(step, names[0])
        if step.operation not in SIGNS or len(step.args) < 2:
            return f"{step.operation}({', '.join(names)})"
        if step.squared_scale is not None:
            sign = "∗" if (step.operation == "mul") == (step.numbers[0] > 1) else "/"
            return f"{names[0]} {sign} √{self._write_in_brackets(step.squared_scale)}"
        operands = list(map(self._write_operand, step.args[:2]))
        left, right = reversed(operands) if step.operation in ("rsub", "rtruediv") else operands
        return f"{left} {SIGNS[step.operation]} {right}"

    def _write_rearrangement(self, step: Step, name: str) -> str:
        """Describe in words a step that reshapes, permutes or indexes the tensor `name`."""
        if "unfold" in step.merged_from:
            return f"windows of {name}"
        before, after = (list(self.flow.signals[n].shape) for n in (step.operands[0], step.results[0]))
        if len(step.results) > 1:
            return f"the parts of {name}"
        gone = [size for size in before if size not in after]
        new = [size for size in after if size not in before]
        if not gone and not new:
            return f"{name}, axes reordered"
        if not new and set(step.merged_from) <= {"getitem", "select"}:
            return f"{name} at one place of {self.write_shape(gone)}"
        return f"{name}, axes {self.write_shape(gone)} → {self.write_shape(new)}"

    def _write_compact(self, size: Polynomial) -> str:
        """Write a size without spaces."""
        return write_formula(size, self.order, "unicode").replace(" ", "")

    def _write_in_brackets(self, size: Polynomial) -> str:
        """Write a size as a factor: in brackets unless it is one word."""
        text = write_formula(size, self.order, "unicode")
        return text if text.replace("_", "").isalnum() else f"({text.replace(' ', '')})"
