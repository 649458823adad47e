"""What the signs and functions of the language do to values, and which shapes they take."""

from math import prod

import torch
from jaxtyping import Float
from torch import Tensor

Shape = tuple[int, ...]
MOST_ELEMENTS = 20_000
"""No value may grow beyond this; the values of a cell are far smaller."""
_JOIN = {"+": torch.add, "-": torch.sub, "*": torch.mul, "/": torch.div}
_EACH = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "relu": torch.relu,
    "ones": torch.ones_like,
}


class UnfitError(ValueError):
    """Values that an operation cannot take: the operation with `{}` where the shapes belong, and the shapes."""

    def __init__(self, operation: str, *shapes: Shape) -> None:
        super().__init__(operation, shapes)
        self.operation, self.shapes = operation, shapes


def shape(value: Tensor) -> Shape:
    """The shape of a value as a plain tuple."""
    return tuple(value.shape)


def joined(sign: str, left: Tensor, right: Tensor) -> Tensor:
    """Two values joined by a sign.

    A number, or a row or column as long as the other value, is spread over the other value. A row and a column are
    not spread over each other: who means the outer product says so.
    """
    if not (_chain(left, right) if sign == "@" else _spread(left, right)):
        raise UnfitError(f"{{}} {sign} {{}}", shape(left), shape(right))
    if sign == "@":
        _check_size(left.shape[0] * right.shape[1])
        return left @ right
    return _JOIN[sign](left, right)


def called(function: str, arguments: list[Tensor], axis: int | None) -> Tensor:
    """A function of the language applied to values."""
    first = arguments[0]
    _check_size(_elements(function, arguments))
    if function in _EACH:
        return _EACH[function](first)
    match function:
        case "sum":
            return first.sum() if axis is None else _grid(function, first).sum(axis, keepdim=True)
        case "softmax":
            return _softmax(_grid(function, first), axis)
        case "diag":
            return torch.diag(_flat(function, first))
        case "outer":
            return torch.outer(*(_flat(function, argument) for argument in arguments))
        case _:
            return _stacked(arguments)


def _chain(left: Tensor, right: Tensor) -> bool:
    return left.ndim == right.ndim == 2 and left.shape[1] == right.shape[0]


def _spread(left: Tensor, right: Tensor) -> bool:
    if left.ndim != 2 or right.ndim != 2 or left.shape == right.shape:
        return True
    return _covers(left, right) or _covers(right, left)


def _covers(large: Tensor, small: Tensor) -> bool:
    return all(length in (1, full) for full, length in zip(large.shape, small.shape, strict=True))


def _softmax(value: Float[Tensor, "rows columns"], axis: int | None) -> Float[Tensor, "rows columns"]:
    """The softmax of a row or of a column, or of each row of a matrix, unless an axis is given."""
    column = value.shape[1] == 1
    return value.softmax((0 if column else 1) if axis is None else axis)


def _stacked(arguments: list[Tensor]) -> Float[Tensor, "rows columns"]:
    """Columns stacked upon each other, or rows put side by side."""
    shapes = [shape(argument) for argument in arguments]
    for axis in (0, 1):
        if all(len(each) == 2 and each[1 - axis] == 1 for each in shapes):
            return torch.cat(arguments, axis)
    raise UnfitError(f"[{'; '.join('{}' for _ in shapes)}]", *shapes)


def _grid(function: str, value: Tensor) -> Float[Tensor, "rows columns"]:
    if value.ndim != 2:
        raise UnfitError(f"{function} of {{}}", shape(value))
    return value


def _flat(function: str, value: Tensor) -> Float[Tensor, " length"]:
    if value.ndim != 2 or 1 not in value.shape:
        raise UnfitError(f"{function} of {{}}, which is no row or column", shape(value))
    return value.flatten()


def _elements(function: str, arguments: list[Tensor]) -> int:
    """How many elements the result may have."""
    counts = [argument.numel() for argument in arguments]
    grows = {"diag": counts[0] ** 2, "outer": prod(counts), "concat": sum(counts)}
    return grows.get(function, counts[0])


def _check_size(elements: int) -> None:
    if elements > MOST_ELEMENTS:
        raise UnfitError(f"a value of {elements} elements, which is too large")
