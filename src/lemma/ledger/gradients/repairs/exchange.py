"""Repairs that put one thing for another: an activation for its input, a name for a name, a function for a function."""

from collections.abc import Iterator

from lemma.ledger.gradients.repairs.setting import Repair, Setting
from lemma.ledger.gradients.tree import (
    Binary,
    Call,
    Name,
    Node,
    Number,
    Path,
    Power,
    Slice,
    children,
    names,
    put,
    substituted,
    subtrees,
)
from lemma.ledger.gradients.writing import written

_FUNCTIONS = ("sigmoid", "tanh", "softmax", "exp", "log")


def activations(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Put an activation or its square for its input, the square for the activation, and the reverse."""
    for path, node in subtrees(tree):
        for new in _activated(node, setting):
            if names(new) <= set(setting.usable):
                yield _exchanged(tree, path, node, new)


def other_names(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Put another name of the same shape for a name, in one place or everywhere."""
    for name in sorted(names(tree)):
        for other in _alike(name, setting):
            for path, node in subtrees(tree):
                if isinstance(node, Name) and node.name == name:
                    yield Repair(f"{other} instead of {name}", put(tree, path, Name(other)))
            yield Repair(f"{other} instead of {name}", substituted(tree, {name: Name(other)}))


def complements(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Put 1 - g for a gate g, and the reverse."""
    for path, node in subtrees(tree):
        match node:
            case Name() | Power():
                yield _exchanged(tree, path, node, Binary("-", Number("1"), node))
            case Binary("-", Number("1"), right):
                yield _exchanged(tree, path, node, right)


def functions(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Put another function for a function."""
    for path, node in subtrees(tree):
        if isinstance(node, Call) and node.function in _FUNCTIONS:
            for function in _FUNCTIONS:
                yield _exchanged(tree, path, node, Call(function, node.arguments))


def slices(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Take some of the rows of the whole: of a stacked vector's gradient, the part that belongs to the target."""
    for size in setting.cell.sizes:
        for rows in ((None, size), (size, None)):
            part = Slice(tree, rows, (None, None))
            yield Repair(f"take the rows that belong to {setting.target[1:]}", part)


def softmaxes(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Put the derivative of a softmax for whatever was made of it."""
    for equation in setting.cell.forward:
        match equation.expression:
            case Call("softmax", (Name(scores),)) if f"d{scores}" == setting.target:
                if names(tree) & {equation.name, f"d{equation.name}"}:
                    words = "softmax couples all its elements: its derivative is not elementwise"
                    yield Repair(words, _coupled(equation.name, axis=None if 1 in setting.shape else 1))


def _coupled(output: str, axis: int | None) -> Node:
    """The gradient through a softmax: p * (dp - the sum of p * dp over what sums to one)."""
    weights, gradient = Name(output), Name(f"d{output}")
    mean = Call("sum", (Binary("*", weights, gradient),), axis)
    return Binary("*", weights, Binary("-", gradient, mean))


def _activated(node: Node, setting: Setting) -> Iterator[Node]:
    for function, pre, output in setting.cell.activations:
        one_less = Binary("-", Number("1"), output)
        if function == "sigmoid" and node == Binary("-", Number("1"), Power(output, 2)):  # the slope of tanh
            yield Binary("*", output, one_less)
        elif node == Name(pre):
            yield from (Power(output, 2), output)
        elif node == output:
            yield from (Power(output, 2), Name(pre))
        elif node == Power(output, 2):
            yield output
        elif node == Power(Name(pre), 2):
            yield Power(output, 2)
        elif node == Call(function, (output,)):  # sigmoid(G_f): the activation taken twice
            yield output


def _alike(name: str, setting: Setting) -> list[str]:
    have = tuple(setting.sample.values[name].shape) if name in setting.sample.values else None
    return [other for other, shape in setting.usable.items() if shape == have and other != name]


def _exchanged(tree: Node, path: Path, node: Node, new: Node) -> Repair:
    """Name the exchange together with the difference it stands in, as 1 - c_tilde^2 for 1 - pre_c."""
    changed = put(tree, path, new)
    around, inside = tree, changed
    for step in path[:-1]:
        around, inside = children(around)[step], children(inside)[step]
    if path and isinstance(around, Binary) and around.sign == "-":
        node, new = around, inside
    old, better = (f"({written(side)})" if isinstance(side, Binary) else written(side) for side in (node, new))
    return Repair(f"{better} instead of {old}", changed)
