"""Repairs of a wrong derivation: the small changes of an expression that people's errors call for, and the search."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce, wraps
from itertools import chain, combinations, combinations_with_replacement

import torch
from torch import Tensor

from lemma.checking.cells import GradientCell, Sample
from lemma.checking.expressions import (
    Evaluator,
    Node,
    Path,
    Shape,
    ShapeError,
    TooMuchWork,
    WorkBudget,
    binary,
    replace_at,
    substitute_names,
    variable,
    variable_names,
    walk,
    write_expression,
)

TOLERANCE = 1e-9
"""The relative error up to which two float64 values count as equal."""
ABSOLUTE_TOLERANCE = 1e-13
"""The absolute error that rounding makes of a gradient that is 0, such as that of a bias before a softmax over it."""
MAX_OPERATIONS, MAX_OPERATIONS_PER_LINE = 45_000, 20_000
"""The operations that a report, and a line of it, may spend on repairs; a line takes a third of a second at most."""
_MAX_CHAIN = 12
_FUNCTIONS = ("sigmoid", "tanh", "softmax", "exp", "log")
_ONE = Node("number", value="1")


@dataclass(frozen=True)
class Repair:
    """A changed expression and, in words, the change."""

    description: str
    expression: Node


@dataclass(frozen=True)
class RepairContext:
    """What a repair may look at: the cell, the name that is derived, and a sample."""

    cell: GradientCell
    target: str
    sample: Sample

    @cached_property
    def shape(self) -> Shape:
        """The shape that the target has."""
        return self.sample.values[self.target].shape

    @cached_property
    def available_shapes(self) -> dict[str, Shape]:
        """The names a repair may bring in: none that is derived only after the target."""
        cell, available = self.cell, self.cell.available_for(self.target)
        usable = (name for name in (*cell.input_sides, *cell.steps, *cell.gradients) if name in available)
        return {name: self.sample.values[name].shape for name in usable}

    @cached_property
    def matrices(self) -> dict[str, Shape]:
        """Those that have rows and columns, and nothing else."""
        return {name: shape for name, shape in self.available_shapes.items() if len(shape) == 2}

    @cached_property
    def derivatives(self) -> list[tuple[Node, Shape]]:
        """The derivatives of the cell's activations, and the pieces they consist of, where they may be used."""
        found: list[Node] = []
        for function, pre, output in self.cell.activations:
            rest = binary("-", _ONE, output)
            if function == "relu":
                found.append(binary(">", variable(pre), Node("number", value="0")))
                continue
            found += (
                [binary("*", output, rest), rest] if function == "sigmoid" else [binary("-", _ONE, _square(output))]
            )
            found += [] if output.op == "name" else [output]
        evaluate = Evaluator(self.sample.values)
        return [
            (slope, evaluate(slope).shape) for slope in found if variable_names(slope) <= set(self.available_shapes)
        ]


Repairs = Iterator[Repair]
Changes = Iterator[tuple[str, Node]]


def at_every_node(change: Callable[[Node, RepairContext], Changes]) -> Callable[[Node, RepairContext], Repairs]:
    """Try a change of one node at every node of a tree."""

    @wraps(change)
    def repairs(tree: Node, setting: RepairContext) -> Repairs:
        for path, node in walk(tree):
            for words, new in change(node, setting):
                yield Repair(words, replace_at(tree, path, new))

    return repairs


def replacing_nodes(
    change: Callable[[Node, RepairContext], Iterator[Node]],
) -> Callable[[Node, RepairContext], Repairs]:
    """Put other nodes for a node, at every node of a tree.

    The exchange is named together with the difference around it, as (1 - c_tilde^2) instead of (1 - pre_c).
    """

    @wraps(change)
    def repairs(tree: Node, setting: RepairContext) -> Repairs:
        for path, node in walk(tree):
            for new in change(node, setting):
                changed = around = replace_at(tree, path, new)
                old, parent = node, tree
                for step in path[:-1]:
                    parent, around = parent.children[step], around.children[step]
                if path and parent.is_binary and parent.op == "-":
                    old, new = parent, around
                said, better = (
                    f"({write_expression(side)})" if side.is_binary else write_expression(side) for side in (old, new)
                )
                yield Repair(f"{better} instead of {said}", changed)

    return repairs


# Other signs, other order, other transposes.


def flip_signs(tree: Node, setting: RepairContext) -> Repairs:
    """Flip one sign."""
    for path, node in walk(tree):
        match node:
            case Node("-", (left, right)):
                swapped = binary("-", right, left)
                yield Repair(
                    f"the sign is wrong: {write_expression(swapped)}, not {write_expression(node)}",
                    replace_at(tree, path, swapped),
                )
                yield Repair(
                    f"the sign of {write_expression(right)} is wrong", replace_at(tree, path, binary("+", left, right))
                )
            case Node("+", (left, right)):
                yield Repair(
                    f"the sign of {write_expression(right)} is wrong", replace_at(tree, path, binary("-", left, right))
                )
                yield Repair(
                    f"the sign of {write_expression(left)} is wrong", replace_at(tree, path, binary("-", right, left))
                )
            case Node("-", (inner,)):
                yield Repair("the sign is wrong", replace_at(tree, path, inner))
    yield Repair("the sign is wrong", Node("-", (tree,)))


def toggle_transposes(tree: Node, setting: RepairContext) -> Repairs:
    """Transpose one thing, or leave it untransposed."""
    yield Repair("the result is transposed", transpose(tree))
    for path, node in walk(tree):
        if node.op == ".T":
            yield Repair(
                f"do not transpose {write_expression(node.children[0])}", replace_at(tree, path, node.children[0])
            )
        elif path:
            yield Repair(f"transpose {write_expression(node)}", replace_at(tree, path, transpose(node)))


@at_every_node
def reorder_products(node: Node, setting: RepairContext) -> Changes:
    """Try every order and every transposition of the two sides of a matrix product."""
    if node.op == "@":
        for arranged in product_arrangements(*node.children):
            yield f"the factors are in the wrong order or wrongly transposed: {write_expression(arranged)}", arranged


@at_every_node
def swap_product_kind(node: Node, setting: RepairContext) -> Changes:
    """Take a matrix or outer product for an elementwise one, and the reverse."""
    match node:
        case Node("*", (left, right)) | Node("sum", (Node("*", (left, right)),)):
            for arranged in (binary("@", left, right), *product_arrangements(left, right)):
                yield f"a matrix product is meant, not {node.op}: {write_expression(arranged)}", arranged
        case Node("@", (left, right)):
            elementwise = binary("*", left, right)
            yield f"the product is elementwise: {write_expression(elementwise)}", elementwise


def product_arrangements(left: Node, right: Node) -> Iterator[Node]:
    """The products of two factors in either order, each factor as it is or transposed, the nearest ones first."""
    for first, second in ((right, left), (left, right)):
        yield binary("@", first, second)
        yield binary("@", transpose(first), second)
        yield binary("@", first, transpose(second))
        yield binary("@", transpose(first), transpose(second))


def transpose(node: Node) -> Node:
    """A node transposed; a transposed one as it was before."""
    return node.children[0] if node.op == ".T" else Node(".T", (node,))


def _square(node: Node) -> Node:
    return Node("^", (node,), 2)


# Factors, terms and functions that are too many.


def drop_factors(tree: Node, setting: RepairContext) -> Repairs:
    """Drop one factor of a matrix product or quotient, or one or two of a chain of elementwise factors."""
    for path, node in walk_chains(tree):
        match node:
            case Node("*"):
                whole = list_factors(node)
                parts, rest = whole[:_MAX_CHAIN], whole[_MAX_CHAIN:]
                for count in range(1, min(2, len(parts) - 1) + 1):
                    for indices in combinations(range(len(parts)), count):
                        kept = [part for index, part in enumerate(parts) if index not in indices] + rest
                        dropped = [parts[index] for index in indices]
                        factor = write_expression(reduce(partial(binary, "*"), dropped))
                        twice = all(part in kept for part in dropped)
                        words = f"the factor {factor} occurs twice; drop one" if twice else f"drop the factor {factor}"
                        yield Repair(words, replace_at(tree, path, reduce(partial(binary, "*"), kept)))
            case Node("@" | "/", (left, right)):
                yield Repair(f"drop the factor {write_expression(right)}", replace_at(tree, path, left))
                yield Repair(f"drop the factor {write_expression(left)}", replace_at(tree, path, right))


def list_factors(node: Node) -> list[Node]:
    """The factors of a chain of elementwise products, from left to right."""
    return [factor for side in node.children for factor in list_factors(side)] if node.op == "*" else [node]


@at_every_node
def drop_terms(node: Node, setting: RepairContext) -> Changes:
    """Drop one term of a sum or difference."""
    match node:
        case Node("+" | "-" as sign, (left, right)):
            yield f"drop the term {write_expression(right)}", left
            yield f"drop the term {write_expression(left)}", right if sign == "+" else Node("-", (right,))


@at_every_node
def drop_functions(node: Node, setting: RepairContext) -> Changes:
    """Take the argument of a function for the function."""
    if len(node.children) == 1 and node.op not in ("-", "^", ".T", "slice"):
        yield f"{write_expression(node.children[0])}, not {write_expression(node)}", node.children[0]


# One thing for another: an activation for its input, a name for a name, a function for a function.


@replacing_nodes
def swap_activations(node: Node, setting: RepairContext) -> Iterator[Node]:
    """Put an activation or its square for its input, the square for the activation, and the reverse."""
    for function, pre, output in setting.cell.activations:
        if function == "relu":  # its slope is where its input is positive, or its output
            continue
        square = _square(output)
        found: tuple[Node, ...] = ()
        if function == "sigmoid" and node == binary("-", _ONE, square):  # the slope of tanh
            found = (binary("*", output, binary("-", _ONE, output)),)
        elif node == variable(pre):
            found = (square, output)
        elif node == output:
            found = (square, variable(pre))
        elif node in (square, Node(function, (output,))):  # sigmoid(G_f): the activation taken twice
            found = (output,)
        elif node == _square(variable(pre)):
            found = (square,)
        yield from (new for new in found if variable_names(new) <= set(setting.available_shapes))


def swap_names(tree: Node, setting: RepairContext) -> Repairs:
    """Put another name of the same shape for a name, in one place or everywhere."""
    for old in sorted(variable_names(tree)):
        have = setting.sample.values[old].shape if old in setting.sample.values else None
        for other in (other for other, size in setting.available_shapes.items() if size == have and other != old):
            for path, node in walk(tree):
                if node == variable(old):
                    yield Repair(f"{other} instead of {old}", replace_at(tree, path, variable(other)))
            yield Repair(f"{other} instead of {old}", substitute_names(tree, {old: variable(other)}))


@replacing_nodes
def swap_complements(node: Node, setting: RepairContext) -> Iterator[Node]:
    """Put 1 - g for a gate g, and the reverse."""
    if node.op in ("name", "^"):
        yield binary("-", _ONE, node)
    elif node.is_binary and node.op == "-" and node.children[0] == _ONE:
        yield node.children[1]


@replacing_nodes
def swap_functions(node: Node, setting: RepairContext) -> Iterator[Node]:
    """Put another function for a function."""
    if node.op in _FUNCTIONS:
        yield from (Node(function, node.children) for function in _FUNCTIONS)


def slice_rows(tree: Node, setting: RepairContext) -> Repairs:
    """Take some of the rows of the whole: of a stacked vector's gradient, the part that belongs to the target."""
    for size in setting.cell.sizes:
        for rows in ((None, size), (size, None)):
            part = Node("slice", (tree,), (rows, (None, None)))
            yield Repair(f"take the rows that belong to {setting.target[1:]}", part)


def fix_softmax(tree: Node, setting: RepairContext) -> Repairs:
    """Put the derivative of a softmax, p * (dp - the sum of p * dp over what sums to one), for what was made of it."""
    for equation in setting.cell.equations:
        match equation.expression:
            case Node("softmax", (Node("name", _, scores),)) if f"d{scores}" == setting.target:
                if variable_names(tree) & {equation.name, f"d{equation.name}"}:
                    weights, gradient = variable(equation.name), variable(f"d{equation.name}")
                    mean = Node(
                        "sum", (binary("*", weights, gradient),), None if 1 in setting.shape else len(setting.shape) - 1
                    )
                    words = "softmax couples all its elements: its derivative is not elementwise"
                    yield Repair(words, binary("*", weights, binary("-", gradient, mean)))


# Something that is missing: a term, a factor, a matrix.


def add_missing(
    kind: str, sign: str, tree: Node, setting: RepairContext, candidates: Iterable[tuple[Node, Shape | None]]
) -> Repairs:
    """Join other nodes of the same shape to a node; a factor more is one more of a whole elementwise product."""
    inside = product_operands(tree) if sign == "*" else set()
    for path, node, have in walk_matrices(tree, setting):
        for other, size in candidates if path not in inside else ():
            if size == have:
                yield Repair(
                    f"the {kind} {write_expression(other)} is missing",
                    replace_at(tree, path, binary(sign, node, other)),
                )


def add_incoming_gradients(tree: Node, setting: RepairContext) -> Repairs:
    """Add a gradient that arrives from elsewhere."""
    terms = [(variable(term), setting.available_shapes.get(term)) for term in setting.cell.incoming]
    return add_missing("term", "+", tree, setting, terms)


def multiply_derivatives(tree: Node, setting: RepairContext) -> Repairs:
    """Multiply by the derivative of an activation."""
    return add_missing("factor", "*", tree, setting, setting.derivatives)


def multiply_names(tree: Node, setting: RepairContext) -> Repairs:
    """Multiply by a named value of the same shape."""
    return add_missing(
        "factor", "*", tree, setting, [(variable(one), size) for one, size in setting.available_shapes.items()]
    )


def multiply_scales(tree: Node, setting: RepairContext) -> Repairs:
    """Multiply or divide by a number that belongs to the cell: a size or its root, a given number, or two."""
    sizes = [variable(size) for size in setting.cell.sizes]
    given = [variable(name) for name, sides in setting.cell.input_sides.items() if not sides]
    numbers = [*(Node("sqrt", (size,)) for size in sizes), *sizes, *given]
    for number in (*numbers, Node("number", value="2")):
        yield Repair(f"the factor 1/{write_expression(number)} is missing", binary("/", tree, number))
        yield Repair(f"the factor {write_expression(number)} is missing", binary("*", tree, number))


def change_reductions(tree: Node, setting: RepairContext) -> Repairs:
    """Sum over the rows or along them, of all or of one part, or do not; sum for a mean."""
    for axis, words in ((0, "sum over the rows"), (1, "sum along the rows")):
        yield Repair(f"{words}: axis={axis}", Node("sum", (tree,), axis))
    for path, node in walk(tree):
        if node.op in ("sum", "mean"):
            for function, axis in (("sum", 0), ("sum", 1), ("mean", 0), ("mean", 1)):
                other = Node(function, node.children, axis)
                if other != node:
                    yield Repair(
                        f"{write_expression(other)}, not {write_expression(node)}", replace_at(tree, path, other)
                    )


def multiply_pairs(tree: Node, setting: RepairContext) -> Repairs:
    """Multiply by the derivative of an activation and by a named value."""
    return _combine(multiply_derivatives, multiply_names, tree, setting)


def multiply_matrices(tree: Node, setting: RepairContext) -> Repairs:
    """Multiply by a named matrix or vector from either side."""
    for path, node, have in walk_matrices(tree, setting):
        for matrix, other in setting.matrices.items():
            for factor, (rows, columns) in ((variable(matrix), other), (transpose(variable(matrix)), other[::-1])):
                words = f"the factor {write_expression(factor)} is missing"
                if columns == have[0]:
                    yield Repair(words, replace_at(tree, path, binary("@", factor, node)))
                if rows == have[1]:
                    yield Repair(words, replace_at(tree, path, binary("@", node, factor)))


@at_every_node
def add_sibling_terms(node: Node, setting: RepairContext) -> Changes:
    """Add a term like one that is there, of another gate that has all of its names."""
    endings, here = (
        {one.rpartition("_")[2] for one in among if "_" in one}
        for among in (setting.available_shapes, variable_names(node))
    )
    for ending in sorted(here & endings):
        own = [one for one in variable_names(node) if one.endswith(f"_{ending}")]
        for other in sorted(endings - {ending}):
            meaning = {one: f"{one.removesuffix(ending)}{other}" for one in own}
            if setting.available_shapes.keys() >= set(meaning.values()):
                term = substitute_names(node, {one: variable(new) for one, new in meaning.items()})
                yield f"the term {write_expression(term)} is missing", binary("+", node, term)


def add_terms(tree: Node, setting: RepairContext) -> Repairs:
    """Add to the whole a named value, the elementwise product of two, or a gradient times a given matrix."""
    terms = [variable(one) for one, have in setting.available_shapes.items() if have == setting.shape]
    terms += [binary("*", *pair) for pair in combinations_with_replacement(terms, 2)]
    for gradient in setting.cell.gradients:  # times a transposed matrix, from either side
        rows, columns = setting.matrices.get(gradient, (0, 0))
        for matrix, (height, width) in setting.matrices.items():
            if matrix in setting.cell.input_sides and height == rows and (width, columns) == setting.shape:
                terms.append(binary("@", transpose(variable(matrix)), variable(gradient)))
            if matrix in setting.cell.input_sides and width == columns and (rows, height) == setting.shape:
                terms.append(binary("@", variable(gradient), transpose(variable(matrix))))
    for term in terms:
        yield Repair(f"the term {write_expression(term)} is missing", binary("+", tree, term))
        yield Repair(f"the term -{write_expression(term)} is missing", binary("-", tree, term))


def walk_chains(tree: Node) -> Iterator[tuple[Path, Node]]:
    """The nodes of a tree, but of a chain of elementwise products only the whole of it and its factors."""
    inside = product_operands(tree)
    return ((path, node) for path, node in walk(tree) if path not in inside or node.op != "*")


def product_operands(tree: Node) -> set[Path]:
    """The ways to the two sides of every elementwise product."""
    return {(*path, side) for path, node in walk(tree) if node.op == "*" for side in (0, 1)}


def walk_matrices(tree: Node, setting: RepairContext) -> Iterator[tuple[Path, Node, Shape]]:
    """The nodes that have rows and columns, with their shapes."""
    evaluate = Evaluator(setting.sample.values)
    evaluate.cache_values(tree)
    for path, node in walk_chains(tree):
        try:
            have = evaluate(node).shape
        except ShapeError:
            continue
        if len(have) == 2:
            yield path, node, have


COMMON_RULES = (
    flip_signs,
    toggle_transposes,
    reorder_products,
    drop_factors,
    drop_terms,
    add_incoming_gradients,
    swap_activations,
    multiply_derivatives,
    multiply_scales,
)
"""The errors that people make most; two of them at once are tried too."""
LESS_COMMON_RULES = (
    *(
        change_reductions,
        swap_product_kind,
        drop_functions,
        slice_rows,
        swap_complements,
        swap_functions,
        swap_names,
        multiply_names,
        multiply_matrices,
    ),
    *(add_sibling_terms, add_terms, fix_softmax, multiply_pairs),
)
"""The other kinds of repair, the most likely first."""


def _common(tree: Node, setting: RepairContext) -> Repairs:
    return chain.from_iterable(kind(tree, setting) for kind in COMMON_RULES)


def _combine(
    first: Callable[..., Repairs], second: Callable[..., Repairs], tree: Node, setting: RepairContext
) -> Repairs:
    for one in first(tree, setting):
        for other in second(one.expression, setting):
            yield Repair(f"{one.description}; and {other.description}", other.expression)


def propose_repairs(tree: Node, setting: RepairContext) -> Repairs:
    """Every repair of one error, the most likely first; then those of two errors, both of the most common kinds."""
    yield from _common(tree, setting)
    for kind in LESS_COMMON_RULES:
        yield from kind(tree, setting)
    yield from _combine(_common, _common, tree, setting)


def is_correct(expression: Node, target: str, sample: Sample, evaluate: Evaluator | None = None) -> bool:
    """Whether an expression has the true value of a name in a sample; an evaluator of it may remember some values."""
    truth = sample.values[target]
    try:
        value = (evaluate or Evaluator(sample.values))(expression)
    except ShapeError:
        return False
    return value.shape == truth.shape and is_close(value, truth)


def is_close(value: Tensor, truth: Tensor) -> bool:
    """Whether two values of one shape are equal but for rounding."""
    within = max(TOLERANCE * float(truth.abs().max()), ABSOLUTE_TOLERANCE)
    return torch.allclose(value, truth, rtol=0.0, atol=within)


def find_repair(
    expression: Node,
    cell: GradientCell,
    target: str,
    samples: Sequence[Sample],
    operations_left: int,
    available: Collection[str] | None = None,
) -> tuple[Repair | None, int]:
    """The first repair in `available` names (any by default) that is right in every sample, and the operations left.

    No repair is returned if the operations do not suffice.
    """
    first, *others = samples
    most, tried, spent = min(operations_left, MAX_OPERATIONS_PER_LINE), 0, 0
    if most <= 0:
        return None, operations_left
    try:
        with WorkBudget(2 * most) as budget:
            evaluate = Evaluator(first.values)
            evaluate.cache_values(expression)
            start = evaluate.operations
            for repair in propose_repairs(expression, RepairContext(cell, target, first)):
                tried += 1
                spent = evaluate.operations - start + tried
                if spent > most:
                    break
                if (
                    is_correct(repair.expression, target, first, evaluate)
                    and (available is None or variable_names(repair.expression) <= {*available})
                    and all(is_correct(repair.expression, target, sample) for sample in others)
                ):
                    return repair, operations_left - spent
    except TooMuchWork:  # with large values the search alone may take all of it
        return None, operations_left - most
    return None, operations_left - max(spent, min(most, (2 * most - budget.remaining) // 2))
