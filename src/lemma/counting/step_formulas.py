"""A name for every signal of a data flow, and the formula of every step in these names."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
        """The right-hand side, by a writer for the operation, which is given the names of its signals."""
        names = [self._name(ref) for ref in step.refs]
        writers: dict[str, Callable[[Step, list[str]], str]] = {
            "linear": lambda step, names: f"{names[0]} {names[1]}ᵀ" + "".join(f" + {bias}" for bias in names[2:]),
            "matmul": lambda step, names: " ".join(names),
            "bmm": lambda step, names: " ".join(names),
            "addmm": lambda step, names: f"{' '.join(names[1:])} + {names[0]}",
            "einsum": self._einsum,
            "softmax": self._softmax,
            "log_softmax": self._softmax,
            "layer_norm": lambda step, names: _normed("(x − mean)/√(variance + ε)", names),
            "rms_norm": lambda step, names: _normed("x/√(mean of x² + ε)", names),
            "embedding": lambda step, names: f"{names[1]}[{names[0]}]",
            "scaled_dot_product_attention": self._attention,
            "multi_head_attention_forward": lambda step, names: f"multi-head attention({', '.join(names[:3])})",
            "masked_fill": self._masked,
            "cat": lambda step, names: f"[{' ; '.join(names)}]",
            "pow": lambda step, names: (
                f"{names[0]}^{self._name(step.numbers[-1])}" if step.numbers else f"pow({names[0]})"
            ),
            "start": lambda step, names: names[0],
            "neg": lambda step, names: f"−{names[0]}",
            "rsqrt": lambda step, names: f"1/√{names[0]}",
            "pad": self._padded,
            "rearrange": self._rearranged,
        }
        if step.operation in writers:
            return writers[step.operation](step, names)
        if step.operation in SIGNS and len(step.arguments) > 1:
            return self._infix(step, names)
        return f"{step.operation}({', '.join(names)})"

    def _infix(self, step: Step, names: list[str]) -> str:
        if step.under_root is not None:
            sign = "∗" if (step.operation == "mul") == (step.numbers[0] > 1) else "/"
            return f"{names[0]} {sign} √{self._bracket(step.under_root)}"
        sides = list(map(self._name, step.arguments[:2]))
        left, right = reversed(sides) if step.operation in ("rsub", "rtruediv") else sides
        return f"{left} {SIGNS[step.operation]} {right}"

    def _einsum(self, step: Step, names: list[str]) -> str:
        """A sum over the sizes of the letters that do not come out."""
        given, _, kept = str(step.arguments[0]).replace(" ", "").partition("->")
        sizes: dict[str, Polynomial] = {}
        for letters, ref in zip(given.split(","), step.refs, strict=True):
            sizes |= dict(zip(letters, self.flow.signals[ref.signal].shape, strict=False))
        over = ", ".join(self._alone(size) for letter, size in sizes.items() if letter not in kept)
        return f"sum over {over} of {' ∗ '.join(names)}"

    def _softmax(self, step: Step, names: list[str]) -> str:
        axis = next((n for n in (*step.numbers, step.named.get("dim")) if isinstance(n, int)), -1)
        shape = self.flow.signals[step.operands[0]].shape
        return f"{step.operation.replace('_', ' ')}({names[0]}) over {self._alone(shape[axis])}"

    def _attention(self, step: Step, names: list[str]) -> str:
        queries, keys, values, *mask = names
        width = step.under_root or self.flow.signals[step.operands[0]].shape[-1]
        causal = step.named.get("is_causal") or True in step.arguments
        more = f" + {mask[0]}" if mask else ""
        return f"softmax({queries} {keys}ᵀ/√{self._bracket(width)}{more}{', causal' if causal else ''}) {values}"

    def _masked(self, step: Step, names: list[str]) -> str:
        number = "−∞" if step.numbers and step.numbers[-1] < -1e30 else "".join(map(str, step.numbers[-1:]))
        return f"{names[0]}, {number} where {names[1]}"

    def _padded(self, step: Step, names: list[str]) -> str:
        amounts = [int(number) for number in step.numbers]
        before, after = any(amounts[::2]), any(amounts[1::2])
        return f"zeros {'around' if before and after else 'before' if before else 'after'} {names[0]}"

    def _rearranged(self, step: Step, names: list[str]) -> str:
        if "unfold" in step.through:
            return f"windows of {names[0]}"
        before, after = (list(self.flow.signals[n].shape) for n in (step.operands[0], step.results[0]))
        if len(step.results) > 1:
            return f"the parts of {names[0]}"
        gone = [size for size in before if size not in after]
        new = [size for size in after if size not in before]
        if not gone and not new:
            return f"{names[0]}, axes reordered"
        if not new and set(step.through) <= {"getitem", "select"}:
            return f"{names[0]} at one place of {self.shape(gone)}"
        return f"{names[0]}, axes {self.shape(gone)} → {self.shape(new)}"

    def _alone(self, size: Polynomial) -> str:
        return write(size, self.order, "unicode").replace(" ", "")

    def _bracket(self, size: Polynomial) -> str:
        text = write(size, self.order, "unicode")
        return text if text.replace("_", "").isalnum() else f"({text.replace(' ', '')})"


def _normed(normal: str, names: list[str]) -> str:
    """A norm, scaled and shifted by what of weight and bias there is."""
    x, *held = names
    return normal.replace("x", x) + "".join(sign + name for sign, name in zip([" ∗ ", " + "], held, strict=False))
