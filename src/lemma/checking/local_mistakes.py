"""Mistakes in one step of backpropagation: a wrong derivative of an activation, or a forgotten use of a value.

A mistake is recognized by its value: the gradient is computed once more with the mistaken step, whatever the form in
which the answer is written.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from lemma.checking.cells import PART, GradientCell, Sample
from lemma.checking.expressions import Evaluator, Node, ShapeError, variable_names, walk
from lemma.checking.repairs import is_close

Slope = Callable[[Tensor], Tensor]
MAX_TRIALS = 120  # mistakes that are tried for a line


def _sigmoid_slope(value: Tensor) -> Tensor:
    """Return the derivative of the sigmoid."""
    return torch.sigmoid(value) * (1 - torch.sigmoid(value))


def _density(value: Tensor) -> Tensor:
    """Return the density of the standard normal distribution."""
    return torch.exp(-(value**2) / 2) / (2 * torch.pi) ** 0.5


# Wrong derivatives by function; {z} is its argument and {a} its value.
WRONG_SLOPES: Mapping[str, Mapping[str, Slope]] = {
    "sigmoid": {
        "the derivative of sigmoid({z}) is missing": torch.ones_like,
        "the derivative of the sigmoid is taken at {a}, not at {z}": lambda z: _sigmoid_slope(torch.sigmoid(z)),
        "the derivative of sigmoid({z}) is a(1 - a) with a = {a}; yours is 1 - a^2, that of tanh": lambda z: (
            1 - torch.sigmoid(z) ** 2
        ),
        "the derivative of sigmoid({z}) is a(1 - a) with a = {a}; yours is a alone": torch.sigmoid,
        "the derivative of sigmoid({z}) is a(1 - a) with a = {a}; yours is 1 - a alone": lambda z: 1 - torch.sigmoid(z),
        "the derivative of sigmoid({z}) is a(1 - a) with a = {a}; yours is z(1 - z)": lambda z: z * (1 - z),
    },
    "tanh": {
        "the derivative of tanh({z}) is missing": torch.ones_like,
        "the derivative of tanh is taken at {a}, not at {z}": lambda z: 1 - torch.tanh(torch.tanh(z)) ** 2,
        "the derivative of tanh({z}) is 1 - a^2 with a = {a}; yours is 1 - a": lambda z: 1 - torch.tanh(z),
        "the derivative of tanh({z}) is 1 - a^2 with a = {a}; yours is a(1 - a), that of the sigmoid": lambda z: (
            torch.tanh(z) * (1 - torch.tanh(z))
        ),
        "the derivative of tanh({z}) is 1 - a^2 with a = {a}; yours is 1 - z^2": lambda z: 1 - z**2,
        "the derivative of tanh({z}) is 1 - a^2 with a = {a}; yours is a^2": lambda z: torch.tanh(z) ** 2,
    },
    "relu": {
        "the derivative of relu({z}), which is ({z} > 0), is missing": torch.ones_like,
        "the derivative of relu({z}) is ({z} > 0), not {z} itself": lambda z: z,
        "the derivative of relu({z}) is ({z} > 0), not relu({z})": torch.relu,
        "the derivative of relu({z}) is ({z} > 0), not ({z} < 0)": lambda z: (z < 0).double(),
    },
    "silu": {
        "the derivative of x sigmoid(x) has a second term, x sigmoid'(x), by the product rule": torch.sigmoid,
        "the derivative of x sigmoid(x) has a first term, sigmoid(x), by the product rule": lambda z: (
            z * _sigmoid_slope(z)
        ),
        "that is the derivative of the sigmoid; of x sigmoid(x) it is sigmoid(x) + x sigmoid'(x)": _sigmoid_slope,
        "sigmoid'(x) is sigmoid(x)(1 - sigmoid(x)); the factor sigmoid(x) is missing in it": lambda z: (
            torch.sigmoid(z) + z * (1 - torch.sigmoid(z))
        ),
        "sigmoid'(x) is sigmoid(x)(1 - sigmoid(x)); the factor 1 - sigmoid(x) is missing in it": lambda z: (
            torch.sigmoid(z) * (1 + z)
        ),
        "the derivative of the SiLU is missing": torch.ones_like,
    },
    "gelu": {
        "the derivative of x Phi(x) has a second term, x phi(x), by the product rule": torch.special.ndtr,
        "the derivative of x Phi(x) has a first term, Phi(x), by the product rule": lambda z: z * _density(z),
        "the derivative of Phi(x) is phi(x); of x Phi(x) it is Phi(x) + x phi(x)": _density,
        "Phi and phi are exchanged: the derivative of x Phi(x) is Phi(x) + x phi(x)": lambda z: (
            z * torch.special.ndtr(z) + _density(z)
        ),
        "the factor x of phi(x) is missing: the derivative of x Phi(x) is Phi(x) + x phi(x)": lambda z: (
            torch.special.ndtr(z) + _density(z)
        ),
        "the derivative of the GELU is missing": torch.ones_like,
    },
    "softplus": {
        "the derivative of log(1 + exp(x)) is exp(x) / (1 + exp(x)); the denominator is missing": torch.exp,
        "the derivative of log(1 + exp(x)) is sigmoid(x), not sigmoid'(x)": _sigmoid_slope,
        "the derivative of log(1 + exp(x)) is sigmoid(x), not sigmoid(-x)": lambda z: torch.sigmoid(-z),
        "the factor exp(x) is missing: the derivative of log(1 + exp(x)) is exp(x) / (1 + exp(x))": lambda z: (
            1 / (1 + torch.exp(z))
        ),
        "the derivative of the softplus is missing": torch.ones_like,
    },
    "leaky_relu": {
        "the slope of the leaky ReLU for negative values is missing; that is the derivative of the ReLU": lambda z: (
            z > 0
        ).double(),
        "the derivative of the leaky ReLU is missing": torch.ones_like,
    },
    "exp": {"the derivative of exp({z}) is missing": torch.ones_like},
}
_MAXIMUM = "the derivative of maximum, which is 1 for the larger value and 0 for the other, is missing"


@dataclass(frozen=True)
class LocalMistake:
    """A mistake in one step of the backward pass.

    Attributes:
        message: a clause for the diagnosis.
        node: the node of the forward pass with a wrong derivative; None for a forgotten use.
        slope: its wrong derivative; None for one that passes gradients on unchanged.
        equation: the index of the equation in which the value is taken for a constant, or -1.
    """

    message: str
    node: Node | None = None
    slope: Slope | None = None
    equation: int = -1


class _MistakenEvaluator(Evaluator):
    """Evaluates expressions with a wrong derivative of one node."""

    def __init__(self, values: Mapping[str, Tensor], mistake: LocalMistake) -> None:
        super().__init__(values)
        self.mistake = mistake

    def _apply(self, node: Node, operands: list[Tensor]) -> Tensor:
        """Return the value of a node; the mistaken node has its value with another derivative."""
        value = super()._apply(node, operands)
        if node is not self.mistake.node:
            return value
        slope = self.mistake.slope
        value = value.detach()
        for operand in operands if slope is None else operands[:1]:
            factor = 1.0 if slope is None else slope(operand.detach())
            value = value + factor * (operand - operand.detach())
        return value


def list_wrong_derivatives(cell: GradientCell, target: str) -> Iterator[LocalMistake]:
    """Yield the wrong derivatives of activations that change the gradient `target`."""
    dependent = {target[1:], *cell.descendants.get(target[1:], ())}
    for equation in cell.equations[cell.step_index(target) + 1 :]:
        for path, node in walk(equation.expression):
            if not node.children or not variable_names(node) & dependent:
                continue
            output = str(node) if path else equation.name
            for message, slope in WRONG_SLOPES.get(node.op, {}).items():
                yield LocalMistake(message.format(z=node.children[0], a=output), node, slope)
            if node.op == "maximum":
                yield LocalMistake(_MAXIMUM, node)


def list_forgotten_uses(cell: GradientCell, target: str) -> Iterator[LocalMistake]:
    """Yield the mistakes of leaving out one of several equations that use the value of the gradient `target`."""
    value = target[1:]
    later = [(index, equation) for index, equation in enumerate(cell.equations) if index > cell.step_index(target)]
    uses = [(index, equation) for index, equation in later if value in variable_names(equation.expression)]
    for index, equation in uses if len(uses) > 1 else ():
        message = f"the use of {value} in {equation.name} = {equation.expression} is forgotten"
        if equation.name == "loss":
            message = f"{value} occurs in the loss too, which is forgotten"
        yield LocalMistake(message, equation=index)


def mistaken_gradient(cell: GradientCell, sample: Sample, target: str, mistake: LocalMistake) -> Tensor | None:
    """Return the gradient `target` with a mistake in the backward pass; None if nothing is left of it."""
    source = target[1:]
    values = {name: sample.values[name].clone() for name in (*cell.sizes, *cell.input_shapes)}
    with torch.enable_grad():
        if source in values:
            values[source].requires_grad_()
        for index, equation in enumerate(cell.equations):
            scope = values
            if index == mistake.equation:
                scope = {**values, source: values[source].detach()}
            value = _MistakenEvaluator(scope, mistake)(equation.expression)
            if equation.name == source:
                value = value.detach().requires_grad_()
            values[equation.name] = value
        loss = values["loss"].sum()
        if not loss.requires_grad:
            return None
        return torch.autograd.grad(loss, [values[source]], allow_unused=True)[0]


def explain_by_local_mistake(
    expression: Node,
    cell: GradientCell,
    mistakes: Iterable[LocalMistake],
    target: str,
    samples: Sequence[tuple[Sample, Sample]],
    change: Callable[[Tensor], Tensor],
) -> str:
    """Return a clause on the mistake in one step that gives the value of an expression; "" if there is none.

    Args:
        samples: pairs of a sample in the layout of the answer and the same in the layout of the function.
        change: converts a value of the function to the layout of the answer.
    """
    if PART in target or target not in cell.gradients:
        return ""
    try:
        values = [Evaluator(sample.values)(expression) for sample, _ in samples]
    except ShapeError:
        return ""
    truth = change(samples[0][1].values[target])
    if values[0].numel() == truth.numel() == 1:
        values = [value.reshape(truth.shape) for value in values]
    if values[0].shape != truth.shape:
        return ""
    for mistake in islice(mistakes, MAX_TRIALS):
        if all(
            gradient is not None and is_close(value, change(gradient))
            for value, gradient in zip(
                values, (mistaken_gradient(cell, sample, target, mistake) for _, sample in samples), strict=True
            )
        ):
            return mistake.message
    return ""
