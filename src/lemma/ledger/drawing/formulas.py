"""The formula of each step, in the names of its signals."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lemma.ledger.drawing.graph import HELD, Graph, Ref, Step
from lemma.ledger.polynomial import Polynomial
from lemma.ledger.writing import write

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


class Formulas:
    """Writes formulas for one graph, whose signals have names; sizes are written in the order of the symbols."""

    def __init__(self, graph: Graph[Polynomial], names: Mapping[int, str], order: Sequence[str]) -> None:
        self.graph, self.names, self.order = graph, names, order

    def lines(self, step: Step) -> list[str]:
        """The formula of a step, one line or more."""
        if step.operation in RECURRENT:
            return [
                f"{self._results(step)} = {step.operation.split('_')[0].upper()}({self._first(step)})",
                *RECURRENT[step.operation],
            ]
        return [f"{self._results(step)} = {self._right(step)}"]

    def size(self, size: Polynomial) -> str:
        """One dimension as it stands among others: a sum in brackets."""
        text = write(size, self.order, "unicode")
        return f"({text.replace(' ', '')})" if " " in text else text

    def shape(self, shape: Sequence[Polynomial]) -> str:
        """A shape: S × E."""
        return " × ".join(map(self.size, shape)) or "1"

    def _results(self, step: Step) -> str:
        uses = self.graph.uses()
        return ", ".join(self.names[number] for number in step.results if uses[number])

    def _right(self, step: Step) -> str:
        writers: dict[str, Callable[[Step], str]] = {
            "linear": self._linear,
            "matmul": self._product,
            "bmm": self._product,
            "einsum": self._einsum,
            "softmax": self._softmax,
            "log_softmax": self._softmax,
            "layer_norm": self._layer_norm,
            "rms_norm": self._rms_norm,
            "embedding": self._embedding,
            "scaled_dot_product_attention": self._attention,
            "multi_head_attention_forward": self._whole_attention,
            "masked_fill": self._masked,
            "cat": self._joined,
            "addmm": self._shifted_product,
            "pow": self._power,
            "start": self._first,
            "neg": lambda step: f"−{self._first(step)}",
            "rsqrt": lambda step: f"1/√{self._first(step)}",
            "pad": self._padded,
            "rearrange": self._rearranged,
            "rsub": self._backwards,
            "rtruediv": self._backwards,
        }
        if step.operation in writers:
            return writers[step.operation](step)
        if step.operation in SIGNS and len(step.arguments) > 1:
            return self._infix(step, step.arguments[:2])
        return f"{step.operation}({', '.join(self._name(ref) for ref in step.refs)})"

    def _name(self, value: Any) -> str:
        """A signal or a number; W and b are the weight and the bias that stand beside the step."""
        if not isinstance(value, Ref):
            return f"{value:.4g}" if isinstance(value, float) else str(value)
        name = self.names[value.signal]
        if self.graph.signals[value.signal].kind in HELD:
            name = short(name)
        return name + ("ᵀ" if value.turned else "")

    def _first(self, step: Step) -> str:
        return self._name(step.refs[0])

    def _linear(self, step: Step) -> str:
        x, weight, *bias = map(self._name, step.refs)
        return f"{x} {weight}ᵀ" + "".join(f" + {b}" for b in bias)

    def _product(self, step: Step) -> str:
        return " ".join(map(self._name, step.refs))

    def _shifted_product(self, step: Step) -> str:
        shift, *factors = map(self._name, step.refs)
        return f"{' '.join(factors)} + {shift}"

    def _power(self, step: Step) -> str:
        return f"{self._first(step)}^{self._name(step.numbers[-1])}" if step.numbers else f"pow({self._first(step)})"

    def _einsum(self, step: Step) -> str:
        """A sum over the sizes of the letters that do not come out."""
        given, _, kept = str(step.arguments[0]).replace(" ", "").partition("->")
        sizes: dict[str, Polynomial] = {}
        for letters, ref in zip(given.split(","), step.refs, strict=True):
            sizes |= dict(zip(letters, self.graph.signals[ref.signal].shape, strict=False))
        over = ", ".join(self._alone(size) for letter, size in sizes.items() if letter not in kept)
        return f"sum over {over} of {' ∗ '.join(map(self._name, step.refs))}"

    def _softmax(self, step: Step) -> str:
        axis = next((n for n in (*step.numbers, step.named.get("dim")) if isinstance(n, int)), -1)
        shape = self.graph.signals[step.operands[0]].shape
        return f"{step.operation.replace('_', ' ')}({self._first(step)}) over {self._alone(shape[axis])}"

    def _layer_norm(self, step: Step) -> str:
        return self._scaled_and_shifted("(x − mean)/√(variance + ε)", step)

    def _rms_norm(self, step: Step) -> str:
        return self._scaled_and_shifted("x/√(mean of x² + ε)", step)

    def _scaled_and_shifted(self, normal: str, step: Step) -> str:
        x, *held = map(self._name, step.refs)
        signs = [" ∗ ", " + "]
        return normal.replace("x", x) + "".join(sign + name for sign, name in zip(signs, held, strict=False))

    def _embedding(self, step: Step) -> str:
        tokens, weight = (self._name(ref) for ref in step.refs)
        return f"{weight}[{tokens}]"

    def _attention(self, step: Step) -> str:
        queries, keys, values, *mask = map(self._name, step.refs)
        width = step.under_root or self.graph.signals[step.operands[0]].shape[-1]
        causal = step.named.get("is_causal") or True in step.arguments
        more = f" + {mask[0]}" if mask else ""
        return f"softmax({queries} {keys}ᵀ/√{self._bracket(width)}{more}{', causal' if causal else ''}) {values}"

    def _whole_attention(self, step: Step) -> str:
        return f"multi-head attention({', '.join(self._name(ref) for ref in step.refs[:3])})"

    def _masked(self, step: Step) -> str:
        number = "−∞" if step.numbers and step.numbers[-1] < -1e30 else "".join(map(str, step.numbers[-1:]))
        return f"{self._first(step)}, {number} where {self._name(step.refs[1])}"

    def _joined(self, step: Step) -> str:
        return f"[{' ; '.join(map(self._name, step.refs))}]"

    def _padded(self, step: Step) -> str:
        amounts = [int(number) for number in step.numbers]
        before, after = any(amounts[::2]), any(amounts[1::2])
        return f"zeros {'around' if before and after else 'before' if before else 'after'} {self._first(step)}"

    def _rearranged(self, step: Step) -> str:
        if "unfold" in step.through:
            return f"windows of {self._first(step)}"
        before, after = (list(self.graph.signals[n].shape) for n in (step.operands[0], step.results[0]))
        gone = [size for size in before if size not in after]
        new = [size for size in after if size not in before]
        if len(step.results) > 1:
            return f"the parts of {self._first(step)}"
        if not gone and not new:
            return f"{self._first(step)}, axes reordered"
        if not new and set(step.through) <= {"getitem", "select"}:
            return f"{self._first(step)} at one place of {self._axes(gone)}"
        return f"{self._first(step)}, axes {self._axes(gone)} → {self._axes(new)}"

    def _axes(self, sizes: Sequence[Polynomial]) -> str:
        return " × ".join(map(self.size, sizes)) or "1"

    def _backwards(self, step: Step) -> str:
        return self._infix(step, tuple(reversed(step.arguments[:2])))

    def _infix(self, step: Step, sides: tuple[Any, ...]) -> str:
        left, right = map(self._name, sides)
        if step.under_root is not None:
            sign = "∗" if (step.operation == "mul") == (step.numbers[0] > 1) else "/"
            return f"{self._first(step)} {sign} √{self._bracket(step.under_root)}"
        return f"{left} {SIGNS[step.operation]} {right}"

    def _alone(self, size: Polynomial) -> str:
        return write(size, self.order, "unicode").replace(" ", "")

    def _bracket(self, size: Polynomial) -> str:
        text = write(size, self.order, "unicode")
        return text if text.replace("_", "").isalnum() else f"({text.replace(' ', '')})"


def short(name: str) -> str:
    """W for a weight, b for a bias; other names are their last word."""
    last = name.rpartition(".")[2]
    return {"weight": "W", "bias": "b"}.get(last, last)
