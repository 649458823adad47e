"""What a repair may look at: the cell, the name that is derived, and the shapes of what was written."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, combinations_with_replacement

import torch
from torch import Tensor

from lemma.checking.cells import Cell, Sample
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


@dataclass(frozen=True)
class Repair:
    """A changed expression and, in words, the change."""

    words: str
    expression: Node


@dataclass(frozen=True)
class Setting:
    """The cell, the name that is derived, and a sample."""

    cell: Cell
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
        evaluate = Evaluator(self.sample.values)
        return [(slope, shape(evaluate(slope))) for slope in self._slopes() if names(slope) <= set(self.usable)]

    def _slopes(self) -> Iterator[Node]:
        for function, _, output in self.cell.activations:
            rest = Binary("-", Number("1"), output)
            if function == "sigmoid":
                yield from (Binary("*", output, rest), rest)
            else:
                yield Binary("-", Number("1"), Power(output, 2))
            if not isinstance(output, Name):
                yield output


# Repairs that leave something out: factors and terms that are too many.


_LONGEST_CHAIN = 12


def spare_factors(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Drop one factor of a matrix product or quotient, or one or two of a chain of elementwise factors."""
    for path, node in chains(tree):
        if isinstance(node, Binary) and node.sign == "*":
            for kept, dropped in _without_some(factors(node)[:_LONGEST_CHAIN], factors(node)[_LONGEST_CHAIN:]):
                yield Repair(_too_many(kept, dropped), put(tree, path, product(kept)))
        elif isinstance(node, Binary) and node.sign in "@/":
            yield Repair(f"drop the factor {written(node.right)}", put(tree, path, node.left))
            yield Repair(f"drop the factor {written(node.left)}", put(tree, path, node.right))


def spare_terms(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Drop one term of a sum or difference."""
    for path, node in subtrees(tree):
        match node:
            case Binary("+" | "-" as sign, left, right):
                yield Repair(f"drop the term {written(right)}", put(tree, path, left))
                rest = right if sign == "+" else Negative(right)
                yield Repair(f"drop the term {written(left)}", put(tree, path, rest))


def spare_functions(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Take the argument of a function for the function."""
    for path, node in subtrees(tree):
        if isinstance(node, Call) and len(node.arguments) == 1:
            argument = node.arguments[0]
            yield Repair(f"{written(argument)}, not {written(node)}", put(tree, path, argument))


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


def _without_some(parts: list[Node], rest: list[Node]) -> Iterator[tuple[list[Node], list[Node]]]:
    for count in range(1, min(2, len(parts) - 1) + 1):
        for left_out in combinations(range(len(parts)), count):
            kept = [part for index, part in enumerate(parts) if index not in left_out]
            yield kept + rest, [parts[index] for index in left_out]


def _too_many(kept: list[Node], dropped: list[Node]) -> str:
    factor = written(product(dropped))
    doubled = all(part in kept for part in dropped)
    return f"the factor {factor} occurs twice; drop one" if doubled else f"drop the factor {factor}"


# Repairs that put one thing for another: an activation for its input, a name for a name, a function for a function.


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


# Repairs that use what is there: other signs, other order, other transposes.


def signs(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Flip one sign."""
    for path, node in subtrees(tree):
        match node:
            case Binary("-", left, right):
                swapped = Binary("-", right, left)
                yield Repair(f"the sign is wrong: {written(swapped)}, not {written(node)}", put(tree, path, swapped))
                yield Repair(f"the sign of {written(right)} is wrong", put(tree, path, Binary("+", left, right)))
            case Binary("+", left, right):
                for part, flipped in (
                    (right, Binary("-", left, right)),
                    (left, Binary("-", right, left)),
                ):
                    yield Repair(f"the sign of {written(part)} is wrong", put(tree, path, flipped))
            case Negative(inner):
                yield Repair("the sign is wrong", put(tree, path, inner))
    yield Repair("the sign is wrong", Negative(tree))


def transposes(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Transpose one thing, or leave it untransposed."""
    yield Repair("the result is transposed", flipped(tree))
    for path, node in subtrees(tree):
        if isinstance(node, Transpose):
            yield Repair(f"do not transpose {written(node.inner)}", put(tree, path, node.inner))
        elif path:
            yield Repair(f"transpose {written(node)}", put(tree, path, Transpose(node)))


def orders(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Try every order and every transposition of the two sides of a matrix product."""
    for path, node in subtrees(tree):
        if isinstance(node, Binary) and node.sign == "@":
            for product in arrangements(node.left, node.right):
                words = f"the factors are in the wrong order or wrongly transposed: {written(product)}"
                yield Repair(words, put(tree, path, product))


def products(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Take a matrix or outer product for an elementwise one, and the reverse."""
    for path, node in subtrees(tree):
        match node:
            case Binary("*", left, right) | Call("sum", (Binary("*", left, right),)):
                taken = "*" if isinstance(node, Binary) else "sum"
                for product in (Binary("@", left, right), *arrangements(left, right)):
                    words = f"a matrix product is meant, not {taken}: {written(product)}"
                    yield Repair(words, put(tree, path, product))
            case Binary("@", left, right):
                product = Binary("*", left, right)
                yield Repair(f"the product is elementwise: {written(product)}", put(tree, path, product))


def arrangements(left: Node, right: Node) -> Iterator[Binary]:
    """The products of two factors in either order, each factor as it is or transposed, the nearest ones first."""
    for first, second in ((right, left), (left, right)):
        yield from (
            Binary("@", first, second),
            Binary("@", flipped(first), second),
            Binary("@", first, flipped(second)),
            Binary("@", flipped(first), flipped(second)),
        )


def flipped(node: Node) -> Node:
    """A node transposed; a transposed one as it was before."""
    return node.inner if isinstance(node, Transpose) else Transpose(node)


# Repairs that add something: a missing term, a missing factor, a missing matrix.


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
    numbers = [Call("sqrt", (Name(name),)) for name in setting.cell.sizes] + [Number("2")]
    for number in numbers:
        words = f"the factor 1/{written(number)} is missing"
        yield Repair(words, Binary("/", tree, number))
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


def sibling_terms(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Add a term like one that is there, of another gate."""
    endings = {name.rpartition("_")[2] for name in setting.usable if "_" in name}
    for path, node in subtrees(tree):
        for ending in sorted(_endings(node) & endings):
            for other in sorted(endings - {ending}):
                term = _of_gate(node, ending, other, setting)
                if term is not None:
                    words = f"the term {written(term)} is missing"
                    yield Repair(words, put(tree, path, Binary("+", node, term)))


def plain_terms(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Add to the whole a named value, the elementwise product of two, or a gradient times a given matrix."""
    fitting = [Name(name) for name, have in setting.usable.items() if have == setting.shape]
    pairs = [Binary("*", *pair) for pair in combinations_with_replacement(fitting, 2)]
    for term in (*fitting, *pairs, *_backward_products(setting)):
        yield Repair(f"the term {written(term)} is missing", Binary("+", tree, term))
        yield Repair(f"the term -{written(term)} is missing", Binary("-", tree, term))


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


def _endings(node: Node) -> set[str]:
    found = (below.name for _, below in subtrees(node) if isinstance(below, Name) and "_" in below.name)
    return {name.rpartition("_")[2] for name in found}


def _of_gate(node: Node, ending: str, other: str, setting: Setting) -> Node | None:
    """The same expression of another gate; None where that gate lacks one of its names."""
    meaning = {name: Name(f"{name.removesuffix(ending)}{other}") for name in names(node) if name.endswith(f"_{ending}")}
    exists = all(new.name in setting.usable for new in meaning.values())
    return substituted(node, dict(meaning)) if exists else None


# Repairs of a wrong derivation: every small change of its expression that people's errors call for.


_LIGHT = (
    signs,
    transposes,
    orders,
    spare_factors,
    spare_terms,
    incoming_terms,
    activations,
    slopes,
    scales,
)
_HEAVY = (
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


def repairs(tree: Node, setting: Setting) -> Iterator[Repair]:
    """Every repair of one error, the likeliest first; then those of two errors, both of the commonest kinds."""
    for kind in (*_LIGHT, *_HEAVY):
        yield from kind(tree, setting)
    for first in _light(tree, setting):
        for second in _light(first.expression, setting):
            yield Repair(f"{first.words}; and {second.words}", second.expression)


def _light(tree: Node, setting: Setting) -> Iterator[Repair]:
    for kind in _LIGHT:
        yield from kind(tree, setting)


# Comparing an expression with the truth and, where they differ, finding the repair that fits.


TOLERANCE = 1e-9
"""The relative error up to which two float64 values count as equal."""
MOST_OPERATIONS, MOST_OPERATIONS_A_LINE = 45_000, 20_000
"""The operations that a report, and a line of it, may spend on repairs; a line takes a third of a second at most."""


@dataclass
class Budget:
    """The operations that are left for the repairs of a report."""

    operations: int = MOST_OPERATIONS


def relative_error(value: Tensor, truth: Tensor) -> float:
    """The largest difference over the largest true element; infinite where the value is not finite."""
    error = ((value - truth).abs().max() / truth.abs().max().clamp_min(1e-300)).item()
    return error if error < float("inf") else float("inf")


def agrees(expression: Node, target: str, sample: Sample) -> bool:
    """Whether an expression has the true value of a name in a sample."""
    return _fits(Evaluator(sample.values), expression, sample.values[target])


def find_repair(expression: Node, cell: Cell, target: str, samples: Sequence[Sample], budget: Budget) -> Repair | None:
    """The first repair that makes an expression right in every sample, if the budget allows to find one."""
    if budget.operations <= 0:
        return None
    setting = Setting(cell, target, samples[0])
    evaluate, truth = Evaluator(samples[0].values), samples[0].values[target]
    evaluate.remember(expression)
    for repair in _affordable(repairs(expression, setting), evaluate, budget):
        right = _fits(evaluate, repair.expression, truth)
        if right and all(agrees(repair.expression, target, sample) for sample in samples[1:]):
            return repair
    return None


def _affordable(candidates: Iterable[Repair], evaluate: Evaluator, budget: Budget) -> Iterator[Repair]:
    """The candidates that can be tried before the operations of the line or of the report are spent."""
    start, tried = evaluate.operations, 0
    most = min(budget.operations, MOST_OPERATIONS_A_LINE)
    try:
        for candidate in candidates:
            tried += 1
            if evaluate.operations - start + tried > most:
                return
            yield candidate
    finally:
        budget.operations -= evaluate.operations - start + tried


def _fits(evaluate: Callable[[Node], Tensor], expression: Node, truth: Tensor) -> bool:
    try:
        value = evaluate(expression)
    except UnfitError:
        return False
    return shape(value) == shape(truth) and torch.allclose(
        value, truth, rtol=0.0, atol=TOLERANCE * float(truth.abs().max())
    )
