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
    TooMuchWork,
    UnfitError,
    WorkBudget,
    join,
    names,
    put,
    substituted,
    subtrees,
    variable,
    written,
)

TOLERANCE = 1e-9
"""The relative error up to which two float64 values count as equal."""
SMALLEST = 1e-13
"""The absolute error that rounding makes of a gradient that is 0, such as that of a bias before a softmax over it."""
MOST_OPERATIONS, MOST_OPERATIONS_A_LINE = 45_000, 20_000
"""The operations that a report, and a line of it, may spend on repairs; a line takes a third of a second at most."""
_LONGEST_CHAIN = 12
_FUNCTIONS = ("sigmoid", "tanh", "softmax", "exp", "log")
_ONE = Node("number", value="1")


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
        return self.sample.values[self.target].shape

    @cached_property
    def usable(self) -> dict[str, Shape]:
        """The names a repair may bring in: none that is derived only after the target."""
        cell, available = self.cell, self.cell.available_for(self.target)
        usable = (name for name in (*cell.given, *cell.steps, *cell.gradients) if name in available)
        return {name: self.sample.values[name].shape for name in usable}

    @cached_property
    def matrices(self) -> dict[str, Shape]:
        """Those that have rows and columns, and nothing else."""
        return {name: shape for name, shape in self.usable.items() if len(shape) == 2}

    @cached_property
    def slopes(self) -> list[tuple[Node, Shape]]:
        """The derivatives of the cell's activations, and the pieces they consist of, where they may be used."""
        found: list[Node] = []
        for function, pre, output in self.cell.activations:
            rest = join("-", _ONE, output)
            if function == "relu":
                found.append(join(">", variable(pre), Node("number", value="0")))
                continue
            found += [join("*", output, rest), rest] if function == "sigmoid" else [join("-", _ONE, _square(output))]
            found += [] if output.head == "name" else [output]
        evaluate = Evaluator(self.sample.values)
        return [(slope, evaluate(slope).shape) for slope in found if names(slope) <= set(self.usable)]


Repairs = Iterator[Repair]
Changes = Iterator[tuple[str, Node]]


def everywhere(change: Callable[[Node, Setting], Changes]) -> Callable[[Node, Setting], Repairs]:
    """Try a change of one node at every node of a tree."""

    @wraps(change)
    def repairs(tree: Node, setting: Setting) -> Repairs:
        for path, node in subtrees(tree):
            for words, new in change(node, setting):
                yield Repair(words, put(tree, path, new))

    return repairs


def exchanging(change: Callable[[Node, Setting], Iterator[Node]]) -> Callable[[Node, Setting], Repairs]:
    """Put other nodes for a node, at every node of a tree.

    The exchange is named together with the difference around it, as (1 - c_tilde^2) instead of (1 - pre_c).
    """

    @wraps(change)
    def repairs(tree: Node, setting: Setting) -> Repairs:
        for path, node in subtrees(tree):
            for new in change(node, setting):
                changed = around = put(tree, path, new)
                old, parent = node, tree
                for step in path[:-1]:
                    parent, around = parent.below[step], around.below[step]
                if path and parent.joins and parent.head == "-":
                    old, new = parent, around
                said, better = (f"({written(side)})" if side.joins else written(side) for side in (old, new))
                yield Repair(f"{better} instead of {said}", changed)

    return repairs


# Other signs, other order, other transposes.


def signs(tree: Node, setting: Setting) -> Repairs:
    """Flip one sign."""
    for path, node in subtrees(tree):
        match node:
            case Node("-", (left, right)):
                swapped = join("-", right, left)
                yield Repair(f"the sign is wrong: {written(swapped)}, not {written(node)}", put(tree, path, swapped))
                yield Repair(f"the sign of {written(right)} is wrong", put(tree, path, join("+", left, right)))
            case Node("+", (left, right)):
                yield Repair(f"the sign of {written(right)} is wrong", put(tree, path, join("-", left, right)))
                yield Repair(f"the sign of {written(left)} is wrong", put(tree, path, join("-", right, left)))
            case Node("-", (inner,)):
                yield Repair("the sign is wrong", put(tree, path, inner))
    yield Repair("the sign is wrong", Node("-", (tree,)))


def transposes(tree: Node, setting: Setting) -> Repairs:
    """Transpose one thing, or leave it untransposed."""
    yield Repair("the result is transposed", flipped(tree))
    for path, node in subtrees(tree):
        if node.head == ".T":
            yield Repair(f"do not transpose {written(node.below[0])}", put(tree, path, node.below[0]))
        elif path:
            yield Repair(f"transpose {written(node)}", put(tree, path, flipped(node)))


@everywhere
def orders(node: Node, setting: Setting) -> Changes:
    """Try every order and every transposition of the two sides of a matrix product."""
    if node.head == "@":
        for arranged in arrangements(*node.below):
            yield f"the factors are in the wrong order or wrongly transposed: {written(arranged)}", arranged


@everywhere
def products(node: Node, setting: Setting) -> Changes:
    """Take a matrix or outer product for an elementwise one, and the reverse."""
    match node:
        case Node("*", (left, right)) | Node("sum", (Node("*", (left, right)),)):
            for arranged in (join("@", left, right), *arrangements(left, right)):
                yield f"a matrix product is meant, not {node.head}: {written(arranged)}", arranged
        case Node("@", (left, right)):
            elementwise = join("*", left, right)
            yield f"the product is elementwise: {written(elementwise)}", elementwise


def arrangements(left: Node, right: Node) -> Iterator[Node]:
    """The products of two factors in either order, each factor as it is or transposed, the nearest ones first."""
    for first, second in ((right, left), (left, right)):
        yield join("@", first, second)
        yield join("@", flipped(first), second)
        yield join("@", first, flipped(second))
        yield join("@", flipped(first), flipped(second))


def flipped(node: Node) -> Node:
    """A node transposed; a transposed one as it was before."""
    return node.below[0] if node.head == ".T" else Node(".T", (node,))


def _square(node: Node) -> Node:
    return Node("^", (node,), 2)


# Factors, terms and functions that are too many.


def spare_factors(tree: Node, setting: Setting) -> Repairs:
    """Drop one factor of a matrix product or quotient, or one or two of a chain of elementwise factors."""
    for path, node in chains(tree):
        match node:
            case Node("*"):
                whole = factors(node)
                parts, rest = whole[:_LONGEST_CHAIN], whole[_LONGEST_CHAIN:]
                for count in range(1, min(2, len(parts) - 1) + 1):
                    for indices in combinations(range(len(parts)), count):
                        kept = [part for index, part in enumerate(parts) if index not in indices] + rest
                        dropped = [parts[index] for index in indices]
                        factor = written(reduce(partial(join, "*"), dropped))
                        twice = all(part in kept for part in dropped)
                        words = f"the factor {factor} occurs twice; drop one" if twice else f"drop the factor {factor}"
                        yield Repair(words, put(tree, path, reduce(partial(join, "*"), kept)))
            case Node("@" | "/", (left, right)):
                yield Repair(f"drop the factor {written(right)}", put(tree, path, left))
                yield Repair(f"drop the factor {written(left)}", put(tree, path, right))


def factors(node: Node) -> list[Node]:
    """The factors of a chain of elementwise products, from left to right."""
    return [factor for side in node.below for factor in factors(side)] if node.head == "*" else [node]


@everywhere
def spare_terms(node: Node, setting: Setting) -> Changes:
    """Drop one term of a sum or difference."""
    match node:
        case Node("+" | "-" as sign, (left, right)):
            yield f"drop the term {written(right)}", left
            yield f"drop the term {written(left)}", right if sign == "+" else Node("-", (right,))


@everywhere
def spare_functions(node: Node, setting: Setting) -> Changes:
    """Take the argument of a function for the function."""
    if len(node.below) == 1 and node.head not in ("-", "^", ".T", "slice"):
        yield f"{written(node.below[0])}, not {written(node)}", node.below[0]


# One thing for another: an activation for its input, a name for a name, a function for a function.


@exchanging
def activations(node: Node, setting: Setting) -> Iterator[Node]:
    """Put an activation or its square for its input, the square for the activation, and the reverse."""
    for function, pre, output in setting.cell.activations:
        if function == "relu":  # its slope is where its input is positive, or its output
            continue
        square = _square(output)
        found: tuple[Node, ...] = ()
        if function == "sigmoid" and node == join("-", _ONE, square):  # the slope of tanh
            found = (join("*", output, join("-", _ONE, output)),)
        elif node == variable(pre):
            found = (square, output)
        elif node == output:
            found = (square, variable(pre))
        elif node in (square, Node(function, (output,))):  # sigmoid(G_f): the activation taken twice
            found = (output,)
        elif node == _square(variable(pre)):
            found = (square,)
        yield from (new for new in found if names(new) <= set(setting.usable))


def other_names(tree: Node, setting: Setting) -> Repairs:
    """Put another name of the same shape for a name, in one place or everywhere."""
    for old in sorted(names(tree)):
        have = setting.sample.values[old].shape if old in setting.sample.values else None
        for other in (other for other, size in setting.usable.items() if size == have and other != old):
            for path, node in subtrees(tree):
                if node == variable(old):
                    yield Repair(f"{other} instead of {old}", put(tree, path, variable(other)))
            yield Repair(f"{other} instead of {old}", substituted(tree, {old: variable(other)}))


@exchanging
def complements(node: Node, setting: Setting) -> Iterator[Node]:
    """Put 1 - g for a gate g, and the reverse."""
    if node.head in ("name", "^"):
        yield join("-", _ONE, node)
    elif node.joins and node.head == "-" and node.below[0] == _ONE:
        yield node.below[1]


@exchanging
def functions(node: Node, setting: Setting) -> Iterator[Node]:
    """Put another function for a function."""
    if node.head in _FUNCTIONS:
        yield from (Node(function, node.below) for function in _FUNCTIONS)


def slices(tree: Node, setting: Setting) -> Repairs:
    """Take some of the rows of the whole: of a stacked vector's gradient, the part that belongs to the target."""
    for size in setting.cell.sizes:
        for rows in ((None, size), (size, None)):
            part = Node("slice", (tree,), (rows, (None, None)))
            yield Repair(f"take the rows that belong to {setting.target[1:]}", part)


def softmaxes(tree: Node, setting: Setting) -> Repairs:
    """Put the derivative of a softmax, p * (dp - the sum of p * dp over what sums to one), for what was made of it."""
    for equation in setting.cell.equations:
        match equation.expression:
            case Node("softmax", (Node("name", _, scores),)) if f"d{scores}" == setting.target:
                if names(tree) & {equation.name, f"d{equation.name}"}:
                    weights, gradient = variable(equation.name), variable(f"d{equation.name}")
                    mean = Node(
                        "sum", (join("*", weights, gradient),), None if 1 in setting.shape else len(setting.shape) - 1
                    )
                    words = "softmax couples all its elements: its derivative is not elementwise"
                    yield Repair(words, join("*", weights, join("-", gradient, mean)))


# Something that is missing: a term, a factor, a matrix.


def missing(what: str, sign: str, tree: Node, setting: Setting, others: Iterable[tuple[Node, Shape | None]]) -> Repairs:
    """Join other nodes of the same shape to a node; a factor more is one more of a whole elementwise product."""
    inside = members(tree) if sign == "*" else set()
    for path, node, have in shaped(tree, setting):
        for other, size in others if path not in inside else ():
            if size == have:
                yield Repair(f"the {what} {written(other)} is missing", put(tree, path, join(sign, node, other)))


def incoming_terms(tree: Node, setting: Setting) -> Repairs:
    """Add a gradient that arrives from elsewhere."""
    terms = [(variable(term), setting.usable.get(term)) for term in setting.cell.incoming]
    return missing("term", "+", tree, setting, terms)


def slopes(tree: Node, setting: Setting) -> Repairs:
    """Multiply by the derivative of an activation."""
    return missing("factor", "*", tree, setting, setting.slopes)


def named_factors(tree: Node, setting: Setting) -> Repairs:
    """Multiply by a named value of the same shape."""
    return missing("factor", "*", tree, setting, [(variable(one), size) for one, size in setting.usable.items()])


def scales(tree: Node, setting: Setting) -> Repairs:
    """Multiply or divide by a number that belongs to the cell: a size or its root, a given number, or two."""
    sizes = [variable(size) for size in setting.cell.sizes]
    given = [variable(name) for name, sides in setting.cell.given.items() if not sides]
    numbers = [*(Node("sqrt", (size,)) for size in sizes), *sizes, *given]
    for number in (*numbers, Node("number", value="2")):
        yield Repair(f"the factor 1/{written(number)} is missing", join("/", tree, number))
        yield Repair(f"the factor {written(number)} is missing", join("*", tree, number))


def reductions(tree: Node, setting: Setting) -> Repairs:
    """Sum over the rows or along them, of all or of one part, or do not; sum for a mean."""
    for axis, words in ((0, "sum over the rows"), (1, "sum along the rows")):
        yield Repair(f"{words}: axis={axis}", Node("sum", (tree,), axis))
    for path, node in subtrees(tree):
        if node.head in ("sum", "mean"):
            for function, axis in (("sum", 0), ("sum", 1), ("mean", 0), ("mean", 1)):
                other = Node(function, node.below, axis)
                if other != node:
                    yield Repair(f"{written(other)}, not {written(node)}", put(tree, path, other))


def double_factors(tree: Node, setting: Setting) -> Repairs:
    """Multiply by the derivative of an activation and by a named value."""
    return _two(slopes, named_factors, tree, setting)


def matrix_factors(tree: Node, setting: Setting) -> Repairs:
    """Multiply by a named matrix or vector from either side."""
    for path, node, have in shaped(tree, setting):
        for matrix, other in setting.matrices.items():
            for factor, (rows, columns) in ((variable(matrix), other), (flipped(variable(matrix)), other[::-1])):
                words = f"the factor {written(factor)} is missing"
                if columns == have[0]:
                    yield Repair(words, put(tree, path, join("@", factor, node)))
                if rows == have[1]:
                    yield Repair(words, put(tree, path, join("@", node, factor)))


@everywhere
def sibling_terms(node: Node, setting: Setting) -> Changes:
    """Add a term like one that is there, of another gate that has all of its names."""
    endings, here = ({one.rpartition("_")[2] for one in among if "_" in one} for among in (setting.usable, names(node)))
    for ending in sorted(here & endings):
        own = [one for one in names(node) if one.endswith(f"_{ending}")]
        for other in sorted(endings - {ending}):
            meaning = {one: f"{one.removesuffix(ending)}{other}" for one in own}
            if setting.usable.keys() >= set(meaning.values()):
                term = substituted(node, {one: variable(new) for one, new in meaning.items()})
                yield f"the term {written(term)} is missing", join("+", node, term)


def plain_terms(tree: Node, setting: Setting) -> Repairs:
    """Add to the whole a named value, the elementwise product of two, or a gradient times a given matrix."""
    terms = [variable(one) for one, have in setting.usable.items() if have == setting.shape]
    terms += [join("*", *pair) for pair in combinations_with_replacement(terms, 2)]
    for gradient in setting.cell.gradients:  # times a transposed matrix, from either side
        rows, columns = setting.matrices.get(gradient, (0, 0))
        for matrix, (height, width) in setting.matrices.items():
            if matrix in setting.cell.given and height == rows and (width, columns) == setting.shape:
                terms.append(join("@", flipped(variable(matrix)), variable(gradient)))
            if matrix in setting.cell.given and width == columns and (rows, height) == setting.shape:
                terms.append(join("@", variable(gradient), flipped(variable(matrix))))
    for term in terms:
        yield Repair(f"the term {written(term)} is missing", join("+", tree, term))
        yield Repair(f"the term -{written(term)} is missing", join("-", tree, term))


def chains(tree: Node) -> Iterator[tuple[Path, Node]]:
    """The nodes of a tree, but of a chain of elementwise products only the whole of it and its factors."""
    inside = members(tree)
    return ((path, node) for path, node in subtrees(tree) if path not in inside or node.head != "*")


def members(tree: Node) -> set[Path]:
    """The ways to the two sides of every elementwise product."""
    return {(*path, side) for path, node in subtrees(tree) if node.head == "*" for side in (0, 1)}


def shaped(tree: Node, setting: Setting) -> Iterator[tuple[Path, Node, Shape]]:
    """The nodes that have rows and columns, with their shapes."""
    evaluate = Evaluator(setting.sample.values)
    evaluate.remember(tree)
    for path, node in chains(tree):
        try:
            have = evaluate(node).shape
        except UnfitError:
            continue
        if len(have) == 2:
            yield path, node, have


COMMON = (signs, transposes, orders, spare_factors, spare_terms, incoming_terms, activations, slopes, scales)
"""The errors that people make most; two of them at once are tried too."""
LESS_COMMON = (
    *(
        reductions,
        products,
        spare_functions,
        slices,
        complements,
        functions,
        other_names,
        named_factors,
        matrix_factors,
    ),
    *(sibling_terms, plain_terms, softmaxes, double_factors),
)
"""The other kinds of repair, the most likely first."""


def _common(tree: Node, setting: Setting) -> Repairs:
    return chain.from_iterable(kind(tree, setting) for kind in COMMON)


def _two(first: Callable[..., Repairs], second: Callable[..., Repairs], tree: Node, setting: Setting) -> Repairs:
    for one in first(tree, setting):
        for other in second(one.expression, setting):
            yield Repair(f"{one.words}; and {other.words}", other.expression)


def repairs(tree: Node, setting: Setting) -> Repairs:
    """Every repair of one error, the most likely first; then those of two errors, both of the most common kinds."""
    yield from _common(tree, setting)
    for kind in LESS_COMMON:
        yield from kind(tree, setting)
    yield from _two(_common, _common, tree, setting)


def agrees(expression: Node, target: str, sample: Sample, evaluate: Evaluator | None = None) -> bool:
    """Whether an expression has the true value of a name in a sample; an evaluator of it may remember some values."""
    truth = sample.values[target]
    try:
        value = (evaluate or Evaluator(sample.values))(expression)
    except UnfitError:
        return False
    return value.shape == truth.shape and is_close(value, truth)


def is_close(value: Tensor, truth: Tensor) -> bool:
    """Whether two values of one shape are equal but for rounding."""
    within = max(TOLERANCE * float(truth.abs().max()), SMALLEST)
    return torch.allclose(value, truth, rtol=0.0, atol=within)


def find_repair(
    expression: Node,
    cell: GradientCell,
    target: str,
    samples: Sequence[Sample],
    left: int,
    available: Collection[str] | None = None,
) -> tuple[Repair | None, int]:
    """The first repair in `available` names (any by default) that is right in every sample, and the operations left.

    No repair is returned if the operations do not suffice.
    """
    first, *others = samples
    most, tried, spent = min(left, MOST_OPERATIONS_A_LINE), 0, 0
    if most <= 0:
        return None, left
    try:
        with WorkBudget(2 * most) as budget:
            evaluate = Evaluator(first.values)
            evaluate.remember(expression)
            start = evaluate.operations
            for repair in repairs(expression, Setting(cell, target, first)):
                tried += 1
                spent = evaluate.operations - start + tried
                if spent > most:
                    break
                if (
                    agrees(repair.expression, target, first, evaluate)
                    and (available is None or names(repair.expression) <= {*available})
                    and all(agrees(repair.expression, target, sample) for sample in others)
                ):
                    return repair, left - spent
    except TooMuchWork:  # with large values the search alone may take all of it
        return None, left - most
    return None, left - max(spent, min(most, (2 * most - budget.left) // 2))
