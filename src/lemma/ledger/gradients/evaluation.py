"""The value of an expression: a number, a column (n, 1), a row (1, n) or a matrix, in float64."""

from collections.abc import Mapping

from torch import Tensor, float64, tensor

from lemma.ledger.gradients.operations import UnfitError, called, joined, shape
from lemma.ledger.gradients.tree import (
    Binary,
    Call,
    Name,
    Negative,
    Node,
    Number,
    Power,
    Range,
    Slice,
    Transpose,
    children,
)


class Evaluator:
    """Evaluates expressions where names have given values, and counts its operations."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        self.values, self.operations = values, 0
        self._remembered: dict[int, tuple[Node, Tensor]] = {}

    def remember(self, node: Node) -> None:
        """Keep the values of a tree's nodes: another tree that holds some of them then costs only the rest."""
        for child in children(node):
            self.remember(child)
        try:
            self._remembered[id(node)] = (node, self(node))  # the node is held too, so that its id stays its own
        except UnfitError:
            return

    def __call__(self, node: Node) -> Tensor:
        """The value of a node; an `UnfitError` if its shapes do not fit."""
        if id(node) in self._remembered:
            return self._remembered[id(node)][1]
        self.operations += 1
        match node:
            case Number(text):
                return tensor(float(text), dtype=float64)
            case Name(name):
                return self.values[name]
            case Negative(inner):
                return -self(inner)
            case Binary(sign, left, right):
                return joined(sign, self(left), self(right))
            case Power(inner, exponent):
                return self(inner) ** exponent
            case Transpose(inner):
                value = self(inner)
                return value.mT if value.ndim else value
            case Slice(inner, rows, columns):
                return self._sliced(self(inner), rows, columns)
            case Call(function, arguments, axis):
                return called(function, [self(argument) for argument in arguments], axis)

    def _sliced(self, value: Tensor, rows: Range, columns: Range) -> Tensor:
        if value.ndim == 0:
            raise UnfitError("a slice of {}", shape(value))
        part = value[self._range(rows), self._range(columns)]
        if part.numel() == 0:
            raise UnfitError("an empty slice of {}", shape(value))
        return part

    def _range(self, ends: Range) -> slice:
        start, stop = (int(self.values[end]) if isinstance(end, str) else end for end in ends)
        return slice(start, stop)
