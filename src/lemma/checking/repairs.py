"""Repairs of a wrong derivation: the small changes of an expression that people's errors call for, and the search."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from itertools import chain, combinations, combinations_with_replacement

import torch
from torch import Tensor

from lemma.checking.cells import GradientCell, Sample
from lemma.checking.expressions import (
    Binary,
    Call,
    Evaluator,
    Name,
    Negative,
    Node,
    Number,
    Path,
    Power,
    Shape,
    Slice,
    Transpose,
    UnfitError,
    children,
    factors,
    names,
    product,
    put,
    shape,
    substituted,
    subtrees,
    written,
)

TOLERANCE = 1e-9
"""The relative error up to which two float64 values count as equal."""
MOST_OPERATIONS, MOST_OPERATIONS_A_LINE = 45_000, 20_000
"""The operations that a report, and a line of it, may spend on repairs; a line takes a third of a second at most."""
_LONGEST_CHAIN = 12
_FUNCTIONS = ("sigmoid", "tanh", "softmax", "exp", "log")


@dataclass(frozen=True)
class Repair:
    """A changed expression and, in words, the change."""

    words: str
    expression: Node


@dataclass(frozen=True)
class Setting:
    """What a repair may look at: the cell, the name that is derived, and a sample."""

    cell: GradientCell
    target: str
    sample: Sample

    @cached_property
    def shape(self) -> Shape:
        """The shape that the target has."""
        return shape(self.sample.values[self.target])

    @cached_property
    def usable(self) -> dict[str, Shape]:
        """The names a repair may bring in: none that is derived only after the target."""
        cell, depth = self.cell, self.cell.depth(self.target)
        if self.target in cell.gradients:
            usable = [*cell.given, *cell.steps, *(name for name in cell.gradients if cell.depth(name) > depth)]
        else:
            usable = [*cell.given, *cell.steps[:depth]]
        return {name: shape(self.sample.values[name]) for name in usable}

    @cached_property
    def slopes(self) -> list[tuple[Node, Shape]]:
        """The derivatives of the cell's activations, and the pieces they consist of, where they may be used."""
        found: list[Node] = []
        for function, _, output in self.cell.activations:
            rest = Binary("-", Number("1"), output)
            tanh = Binary("-", Number("1"), Power(output, 2))
            found += [Binary("*", output, rest), rest] if function == "sigmoid" else [tanh]
            found += [] if isinstance(output, Name) else [output]
        evaluate = Evaluator(self.sample.values)
        return [(slope, shape(evaluate(slope))) for slope in found if names(slope) <= set(self.usable)]


Generator = Callable[[Node, Setting], Iterator[Repair]]
Changes = Iterator[tuple[str, Node]]


def everywhere(change: Callable[[Node, Setting], Changes]) -> Generator:
    """Try a change of one node at every node of a tree."""

    @wraps(change)
    def repairs(tree: Node, setting: Setting) -> Iterator[Repair]:
        for path, node in subtrees(tree):
            for words, new in change(node, setting):
                yield Repair(words, put(tree, path, new))

    return repairs


def exchanging(change: Callable[[Node, Setting], Iterator[Node]]) -> Generator:
    """Put other nodes for a node, at every node of a tree.

    The exchange is named together with the difference around it, as (1 - c_tilde^2) instead of (1 - pre_c).
    """

    @wraps(change)
    def repairs(tree: Node, setting: Setting) -> Iterator[Repair]:
        for path, node in subtrees(tree):
            for new in change(node, setting):
                changed = around = put(tree, path, new)
                old, parent = node, tree
                for step in path[:-1]:
                    parent, around = children(parent)[step], children(around)[step]
                if path and isinstance(parent, Binary) and parent.sign == "-":
                    old, new = parent, around
                said, better = (
                    f"({written(side)})" if isinstance(side, Binary) else written(side) for side in (old, new)
                )
                yield Repair(f"{better} instead of {said}", changed)

    return repairs


# Other signs, other order, other transposes.


def signs(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Flip one sign."""
    yield from _inner_signs(tree, setting)
    yield Repair("the sign is wrong", Negative(tree))


@everywhere
def _inner_signs(node: Node, setting: Setting) -> Changes:
    match node:
        case Binary("-", left, right):
            swapped = Binary("-", right, left)
            yield f"the sign is wrong: {written(swapped)}, not {written(node)}", swapped
            yield f"the sign of {written(right)} is wrong", Binary("+", left, right)
        case Binary("+", left, right):
            yield f"the sign of {written(right)} is wrong", Binary("-", left, right)
            yield f"the sign of {written(left)} is wrong", Binary("-", right, left)
        case Negative(inner):
            yield "the sign is wrong", inner


def transposes(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Transpose one thing, or leave it untransposed."""
    yield Repair("the result is transposed", flipped(tree))
    for path, node in subtrees(tree):
        if isinstance(node, Transpose):
            yield Repair(f"do not transpose {written(node.inner)}", put(tree, path, node.inner))
        elif path:
            yield Repair(f"transpose {written(node)}", put(tree, path, Transpose(node)))


@everywhere
def orders(node: Node, setting: Setting) -> Changes:
    """Try every order and every transposition of the two sides of a matrix product."""
    if isinstance(node, Binary) and node.sign == "@":
        for arranged in arrangements(node.left, node.right):
            yield f"the factors are in the wrong order or wrongly transposed: {written(arranged)}", arranged


@everywhere
def products(node: Node, setting: Setting) -> Changes:
    """Take a matrix or outer product for an elementwise one, and the reverse."""
    match node:
        case Binary("*", left, right) | Call("sum", (Binary("*", left, right),)):
            taken = "*" if isinstance(node, Binary) else "sum"
            for arranged in (Binary("@", left, right), *arrangements(left, right)):
                yield f"a matrix product is meant, not {taken}: {written(arranged)}", arranged
        case Binary("@", left, right):
            elementwise = Binary("*", left, right)
            yield f"the product is elementwise: {written(elementwise)}", elementwise


def arrangements(left: Node, right: Node) -> Iterator[Binary]:
    """The products of two factors in either order, each factor as it is or transposed, the nearest ones first."""
    for first, second in ((right, left), (left, right)):
        yield Binary("@", first, second)
        yield Binary("@", flipped(first), second)
        yield Binary("@", first, flipped(second))
        yield Binary("@", flipped(first), flipped(second))


def flipped(node: Node) -> Node:
    """A node transposed; a transposed one as it was before."""
    return node.inner if isinstance(node, Transpose) else Transpose(node)


# Factors, terms and functions that are too many.


def spare_factors(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Drop one factor of a matrix product or quotient, or one or two of a chain of elementwise factors."""
    for path, node in chains(tree):
        match node:
            case Binary("*"):
                whole = factors(node)
                parts, rest = whole[:_LONGEST_CHAIN], whole[_LONGEST_CHAIN:]
                for count in range(1, min(2, len(parts) - 1) + 1):
                    for indices in combinations(range(len(parts)), count):
                        kept = [part for index, part in enumerate(parts) if index not in indices] + rest
                        dropped = [parts[index] for index in indices]
                        factor = written(product(dropped))
                        twice = all(part in kept for part in dropped)
                        words = f"the factor {factor} occurs twice; drop one" if twice else f"drop the factor {factor}"
                        yield Repair(words, put(tree, path, product(kept)))
            case Binary("@" | "/", left, right):
                yield Repair(f"drop the factor {written(right)}", put(tree, path, left))
                yield Repair(f"drop the factor {written(left)}", put(tree, path, right))


@everywhere
def spare_terms(node: Node, setting: Setting) -> Changes:
    """Drop one term of a sum or difference."""
    match node:
        case Binary("+" | "-" as sign, left, right):
            yield f"drop the term {written(right)}", left
            yield f"drop the term {written(left)}", right if sign == "+" else Negative(right)


@everywhere
def spare_functions(node: Node, setting: Setting) -> Changes:
    """Take the argument of a function for the function."""
    if isinstance(node, Call) and len(node.arguments) == 1:
        yield f"{written(node.arguments[0])}, not {written(node)}", node.arguments[0]


# One thing for another: an activation for its input, a name for a name, a function for a function.


@exchanging
def activations(node: Node, setting: Setting) -> Iterator[Node]:
    """Put an activation or its square for its input, the square for the activation, and the reverse."""
    for function, pre, output in setting.cell.activations:
        one_less, square = Binary("-", Number("1"), output), Power(output, 2)
        found: tuple[Node, ...] = ()
        if function == "sigmoid" and node == Binary("-", Number("1"), square):  # the slope of tanh
            found = (Binary("*", output, one_less),)
        elif node == Name(pre):
            found = (square, output)
        elif node == output:
            found = (square, Name(pre))
        elif node in (square, Call(function, (output,))):  # sigmoid(G_f): the activation taken twice
            found = (output,)
        elif node == Power(Name(pre), 2):
            found = (square,)
        yield from (new for new in found if names(new) <= set(setting.usable))


def other_names(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Put another name of the same shape for a name, in one place or everywhere."""
    for name in sorted(names(tree)):
        have = shape(setting.sample.values[name]) if name in setting.sample.values else None
        for other in (other for other, size in setting.usable.items() if size == have and other != name):
            for path, node in subtrees(tree):
                if isinstance(node, Name) and node.name == name:
                    yield Repair(f"{other} instead of {name}", put(tree, path, Name(other)))
            yield Repair(f"{other} instead of {name}", substituted(tree, {name: Name(other)}))


@exchanging
def complements(node: Node, setting: Setting) -> Iterator[Node]:
    """Put 1 - g for a gate g, and the reverse."""
    match node:
        case Name() | Power():
            yield Binary("-", Number("1"), node)
        case Binary("-", Number("1"), right):
            yield right


@exchanging
def functions(node: Node, setting: Setting) -> Iterator[Node]:
    """Put another function for a function."""
    if isinstance(node, Call) and node.function in _FUNCTIONS:
        yield from (Call(function, node.arguments) for function in _FUNCTIONS)


def slices(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Take some of the rows of the whole: of a stacked vector's gradient, the part that belongs to the target."""
    for size in setting.cell.sizes:
        for rows in ((None, size), (size, None)):
            part = Slice(tree, rows, (None, None))
            yield Repair(f"take the rows that belong to {setting.target[1:]}", part)


def softmaxes(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Put the derivative of a softmax, p * (dp - the sum of p * dp over what sums to one), for what was made of it."""
    for equation in setting.cell.forward:
        match equation.expression:
            case Call("softmax", (Name(scores),)) if f"d{scores}" == setting.target:
                if names(tree) & {equation.name, f"d{equation.name}"}:
                    weights, gradient = Name(equation.name), Name(f"d{equation.name}")
                    axis = None if 1 in setting.shape else 1
                    mean = Call("sum", (Binary("*", weights, gradient),), axis)
                    words = "softmax couples all its elements: its derivative is not elementwise"
                    yield Repair(words, Binary("*", weights, Binary("-", gradient, mean)))


# Something that is missing: a term, a factor, a matrix.


def incoming_terms(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Add a gradient that arrives from elsewhere."""
    for path, node, have in shaped(tree, setting):
        for name in setting.cell.incoming:
            if setting.usable.get(name) == have:
                yield Repair(f"the term {name} is missing", put(tree, path, Binary("+", node, Name(name))))


def slopes(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Multiply by the derivative of an activation."""
    for path, node, have in whole_products(tree, setting):
        for slope, other in setting.slopes:
            if other == have:
                yield Repair(f"the factor {written(slope)} is missing", put(tree, path, Binary("*", node, slope)))


def scales(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Multiply or divide by a number that belongs to the cell: the root of a size, or two."""
    for number in (*(Call("sqrt", (Name(name),)) for name in setting.cell.sizes), Number("2")):
        yield Repair(f"the factor 1/{written(number)} is missing", Binary("/", tree, number))
        yield Repair(f"the factor {written(number)} is missing", Binary("*", tree, number))


def named_factors(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Multiply by a named value of the same shape."""
    for path, node, have in whole_products(tree, setting):
        for name, other in setting.usable.items():
            if other == have:
                yield Repair(f"the factor {name} is missing", put(tree, path, Binary("*", node, Name(name))))


def double_factors(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Multiply by the derivative of an activation and by a named value."""
    for repair in slopes(tree, setting):
        for second in named_factors(repair.expression, setting):
            yield Repair(f"{repair.words}; and {second.words}", second.expression)


def matrix_factors(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Multiply by a named matrix or vector from either side."""
    for path, node, have in shaped(tree, setting):
        for name, other in setting.usable.items():
            for factor, (rows, columns) in ((Name(name), other), (flipped(Name(name)), other[::-1])):
                words = f"the factor {written(factor)} is missing"
                if columns == have[0]:
                    yield Repair(words, put(tree, path, Binary("@", factor, node)))
                if rows == have[1]:
                    yield Repair(words, put(tree, path, Binary("@", node, factor)))


@everywhere
def sibling_terms(node: Node, setting: Setting) -> Changes:
    """Add a term like one that is there, of another gate that has all of its names."""
    endings = {name.rpartition("_")[2] for name in setting.usable if "_" in name}
    here = {name.rpartition("_")[2] for name in names(node) if "_" in name}
    for ending in sorted(here & endings):
        for other in sorted(endings - {ending}):
            meaning = {
                name: f"{name.removesuffix(ending)}{other}" for name in names(node) if name.endswith(f"_{ending}")
            }
            if setting.usable.keys() >= set(meaning.values()):
                term = substituted(node, {name: Name(new) for name, new in meaning.items()})
                yield f"the term {written(term)} is missing", Binary("+", node, term)


def plain_terms(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Add to the whole a named value, the elementwise product of two, or a gradient times a given matrix."""
    fitting = [Name(name) for name, have in setting.usable.items() if have == setting.shape]
    pairs = [Binary("*", *pair) for pair in combinations_with_replacement(fitting, 2)]
    for term in (*fitting, *pairs, *_backward_products(setting)):
        yield Repair(f"the term {written(term)} is missing", Binary("+", tree, term))
        yield Repair(f"the term -{written(term)} is missing", Binary("-", tree, term))


def chains(tree: Node) -> Iterator[tuple[Path, Node]]:
    """The nodes of a tree, but of a chain of elementwise products only the whole of it and its factors."""
    inside = members(tree)
    for path, node in subtrees(tree):
        if path not in inside or not (isinstance(node, Binary) and node.sign == "*"):
            yield path, node


def members(tree: Node) -> set[Path]:
    """The ways to the two sides of every elementwise product."""
    found = [path for path, node in subtrees(tree) if isinstance(node, Binary) and node.sign == "*"]
    return {(*path, side) for path in found for side in (0, 1)}


def shaped(tree: Node, setting: Setting) -> Iterator[tuple[Path, Node, Shape]]:
    """The nodes that have rows and columns, with their shapes."""
    evaluate = Evaluator(setting.sample.values)
    evaluate.remember(tree)
    for path, node in chains(tree):
        try:
            have = shape(evaluate(node))
        except UnfitError:
            continue
        if len(have) == 2:
            yield path, node, have


def whole_products(tree: Node, setting: Setting) -> Iterator[tuple[Path, Node, Shape]]:
    """The same without the factors of elementwise products: a factor more is one more of the whole product."""
    inside = members(tree)
    return (found for found in shaped(tree, setting) if found[0] not in inside)


def _backward_products(setting: Setting) -> Iterator[Node]:
    """Every gradient times a transposed given matrix, from either side, that has the shape of the target."""
    matrices = {name: have for name, have in setting.usable.items() if name in setting.cell.given}
    for gradient in setting.cell.gradients:
        rows, columns = setting.usable.get(gradient, (0, 0))
        for name, (height, width) in matrices.items():
            if height == rows and (width, columns) == setting.shape:
                yield Binary("@", Transpose(Name(name)), Name(gradient))
            if width == columns and (rows, height) == setting.shape:
                yield Binary("@", Name(gradient), Transpose(Name(name)))


# The search for the repair that fits.

COMMON = (signs, transposes, orders, spare_factors, spare_terms, incoming_terms, activations, slopes, scales)
"""The errors that people make most; two of them at once are tried too."""
REPAIRS: tuple[Generator, ...] = (
    *COMMON,
    products,
    spare_functions,
    slices,
    complements,
    functions,
    other_names,
    named_factors,
    matrix_factors,
    sibling_terms,
    plain_terms,
    softmaxes,
    double_factors,
)
"""Every kind of repair, the most likely first."""


def repairs(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Every repair of one error, the most likely first; then those of two errors, both of the most common kinds."""
    for kind in REPAIRS:
        yield from kind(tree, setting)
    for first in chain.from_iterable(kind(tree, setting) for kind in COMMON):
        for second in chain.from_iterable(kind(first.expression, setting) for kind in COMMON):
            yield Repair(f"{first.words}; and {second.words}", second.expression)


def relative_error(value: Tensor, truth: Tensor) -> float:
    """The largest difference over the largest true element; infinite where the value is not finite."""
    error = ((value - truth).abs().max() / truth.abs().max().clamp_min(1e-300)).item()
    return error if error < float("inf") else float("inf")


def agrees(expression: Node, target: str, sample: Sample) -> bool:
    """Whether an expression has the true value of a name in a sample."""
    return _fits(Evaluator(sample.values), expression, sample.values[target])


def _fits(evaluate: Evaluator, expression: Node, truth: Tensor) -> bool:
    try:
        value = evaluate(expression)
    except UnfitError:
        return False
    within = TOLERANCE * float(truth.abs().max())
    return shape(value) == shape(truth) and torch.allclose(value, truth, rtol=0.0, atol=within)


class RepairSearch:
    """Finds repairs for the lines of a report, as long as its operations last."""

    def __init__(self) -> None:
        self.left = MOST_OPERATIONS

    def find(self, expression: Node, cell: GradientCell, target: str, samples: Sequence[Sample]) -> Repair | None:
        """The first repair that makes an expression right in every sample, if one is found in time."""
        first, *others = samples
        evaluate, truth = Evaluator(first.values), first.values[target]
        most = min(self.left, MOST_OPERATIONS_A_LINE)
        if most <= 0:
            return None
        evaluate.remember(expression)
        start, tried = evaluate.operations, 0
        try:
            for repair in repairs(expression, Setting(cell, target, first)):
                tried += 1
                if evaluate.operations - start + tried > most:
                    return None
                if _fits(evaluate, repair.expression, truth) and all(
                    agrees(repair.expression, target, sample) for sample in others
                ):
                    return repair
            return None
        finally:
            self.left -= evaluate.operations - start + tried
