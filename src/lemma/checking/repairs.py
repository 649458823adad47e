"""Repairs of a wrong derivation: a table of rewrite rules for the mistakes that people make, and the search.

A rule yields rewrites of an expression: the path of a node, the node to put there, and a description of the mistake.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from itertools import combinations, combinations_with_replacement

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
)

TOLERANCE = 1e-9  # relative error up to which two float64 values count as equal
ABSOLUTE_TOLERANCE = 1e-13  # rounding of a gradient that is 0, such as that of a bias before a softmax over it
MAX_OPERATIONS = 65_000  # for the repairs of a report
MAX_OPERATIONS_PER_LINE = 30_000  # half a second at most
_MAX_CHAIN = 12  # factors of a product
_ONE = Node("number", value="1")


@dataclass(frozen=True)
class Repair:
    """A repaired expression and a description of the mistake."""

    description: str
    expression: Node


class RepairSearch:
    """The search for repairs of the lines of one derivation, which share a budget of operations."""

    def __init__(self, cell: GradientCell) -> None:
        self.cell, self.budget = cell, WorkBudget(MAX_OPERATIONS)

    def find(
        self,
        expression: Node,
        target: str,
        samples: Sequence[Sample],
        available: Collection[str] | None = None,
        propose: "Callable[[Node, RepairContext], Iterator[Repair]] | None" = None,
        line_budget: WorkBudget | None = None,
    ) -> Repair | None:
        """Return the first repair that has the value of `target`, such as "dW", in every sample.

        It uses only `available` names, if these are not None; `propose` yields the repairs that are tried, by default
        all. Return None without one, or if the operations of `line_budget` or of the whole report run out.
        """
        first, *other_samples = samples
        with suppress(TooMuchWork), self.budget, line_budget or WorkBudget(MAX_OPERATIONS_PER_LINE) as budget:
            evaluate = Evaluator(first.values)
            evaluate.cache_values(expression)
            for repair in (propose or propose_repairs)(expression, RepairContext(self.cell, target, first)):
                budget.spend(1)
                if (
                    is_correct(repair.expression, target, first, evaluate)
                    and (available is None or variable_names(repair.expression) <= {*available})
                    and all(is_correct(repair.expression, target, sample) for sample in other_samples)
                ):
                    return repair
        return None


def is_correct(expression: Node, target: str, sample: Sample, evaluate: Evaluator | None = None) -> bool:
    """Return whether an expression has the true value of the name `target` in a sample; `evaluate` may cache values."""
    truth = sample.values[target]
    try:
        value = (evaluate or Evaluator(sample.values))(expression)
    except ShapeError:
        return False
    if value.numel() == truth.numel() == 1:  # a number may be written as a matrix of one row and column
        value = value.reshape(truth.shape)
    return value.shape == truth.shape and is_close(value, truth)


def is_close(value: Tensor, truth: Tensor) -> bool:
    """Return whether two tensors of the same shape are equal up to rounding in float64."""
    tolerance = max(TOLERANCE * float(truth.abs().max()), ABSOLUTE_TOLERANCE)
    return torch.allclose(value, truth, rtol=0.0, atol=tolerance)


def relative_error(value: Tensor, truth: Tensor) -> float:
    """Return the largest absolute difference of two tensors over the largest absolute true value."""
    return float((value - truth).abs().max() / truth.abs().max().clamp_min(1e-300))


@dataclass(frozen=True)
class RepairContext:
    """The information for a rule: the cell, the name that is derived (`target`), and a sample."""

    cell: GradientCell
    target: str
    sample: Sample

    @cached_property
    def shape(self) -> Shape:
        """The shape of the name that is derived."""
        return self.sample.values[self.target].shape

    @cached_property
    def available_shapes(self) -> dict[str, Shape]:
        """The shape of every name that a repair may use, by name; names derived only after the target are left out."""
        cell, available = self.cell, self.cell.available_for(self.target)
        names = (*cell.input_shapes, *cell.steps, *cell.gradients)
        return {name: self.sample.values[name].shape for name in names if name in available}

    @cached_property
    def matrices(self) -> dict[str, Shape]:
        """The shape of every available name with two axes, by name."""
        return {name: shape for name, shape in self.available_shapes.items() if len(shape) == 2}

    def can_use(self, node: Node) -> bool:
        """Return whether a repair may use every name in an expression."""
        return variable_names(node) <= self.available_shapes.keys()

    @cached_property
    def derivatives(self) -> list[tuple[Node, Shape]]:
        """Expressions for the derivatives of the cell's activations, and factors of these, with their shapes."""
        nodes: list[Node] = []
        for function, pre, output in self.cell.activations:
            complement = binary("-", _ONE, output)
            nodes += {
                "relu": [binary(">", variable(pre), Node("number", value="0"))],
                "sigmoid": [binary("*", output, complement), complement],
                "tanh": [binary("-", _ONE, _make_square(output))],
            }[function]
            if function != "relu" and output.op != "name":
                nodes.append(output)
        evaluate = Evaluator(self.sample.values)
        return [(node, evaluate(node).shape) for node in nodes if self.can_use(node)]


Rewrites = Iterator[tuple[Path, Node, str]]
Rule = Callable[[Node, RepairContext], Rewrites]


def apply_rules(rules: Iterable[Rule], tree: Node, context: RepairContext) -> Iterator[Repair]:
    """Yield the repairs of an expression that rules propose, in the order of the rules."""
    for rule in rules:
        for path, node, description in rule(tree, context):
            yield Repair(description, replace_at(tree, path, node))


def propose_repairs(tree: Node, context: RepairContext) -> Iterator[Repair]:
    """Yield repairs of a wrong expression by every rule, most likely first; then by pairs of the most common rules."""
    for propose in (propose_common, propose_less_common, propose_pairs):
        yield from propose(tree, context)


def propose_common(tree: Node, context: RepairContext) -> Iterator[Repair]:
    """Yield repairs of the most common mistakes."""
    return apply_rules(COMMON_RULES, tree, context)


def propose_less_common(tree: Node, context: RepairContext) -> Iterator[Repair]:
    """Yield repairs of less common mistakes, most likely first."""
    return apply_rules(LESS_COMMON_RULES, tree, context)


def propose_pairs(tree: Node, context: RepairContext) -> Iterator[Repair]:
    """Yield repairs of two common mistakes at once."""
    for first in apply_rules(COMMON_RULES, tree, context):
        for second in apply_rules(COMMON_RULES, first.expression, context):
            yield Repair(f"{first.description}; and {second.description}", second.expression)


# Signs, order, transposes.


def flip_signs(tree: Node, context: RepairContext) -> Rewrites:
    """Yield rewrites that flip a sign of the expression."""
    for path, node in walk(tree):
        match node:
            case Node("-", (left, right)):
                swapped = binary("-", right, left)
                yield path, swapped, f"the sign is wrong: {swapped}, not {node}"
                yield path, binary("+", left, right), f"the sign of {right} is wrong"
            case Node("+", (left, right)):
                yield path, binary("-", left, right), f"the sign of {right} is wrong"
                yield path, binary("-", right, left), f"the sign of {left} is wrong"
            case Node("-", (inner,)):
                yield path, inner, "the sign is wrong"
    yield (), Node("-", (tree,)), "the sign is wrong"


def toggle_transposes(tree: Node, context: RepairContext) -> Rewrites:
    """Yield rewrites that transpose a node of the expression, or drop its transpose."""
    yield (), transpose(tree), "the result is transposed"
    for path, node in walk(tree):
        if node.op == ".T":
            yield path, node.children[0], f"do not transpose {node.children[0]}"
        elif path:
            yield path, transpose(node), f"transpose {node}"


def reorder_products(tree: Node, context: RepairContext) -> Rewrites:
    """Yield rewrites of each matrix product with its operands in every order and transposition."""
    for path, node in walk(tree):
        if node.op == "@":
            for product in _arrange_factors(*node.children):
                yield path, product, f"the factors are in the wrong order or wrongly transposed: {product}"


def swap_product_kind(tree: Node, context: RepairContext) -> Rewrites:
    """Yield rewrites of each elementwise product as a matrix or outer product, and the reverse."""
    for path, node in walk(tree):
        match node:
            case Node("*", (left, right)) | Node("sum", (Node("*", (left, right)),)):
                for product in (binary("@", left, right), *_arrange_factors(left, right)):
                    yield path, product, f"a matrix product is meant, not {node.op}: {product}"
            case Node("@", (left, right)):
                elementwise = binary("*", left, right)
                yield path, elementwise, f"the product is elementwise: {elementwise}"


def _arrange_factors(left: Node, right: Node) -> Iterator[Node]:
    """Yield the matrix products of two factors in either order, each factor as it is or transposed, nearest first."""
    for first, second in ((right, left), (left, right)):
        yield binary("@", first, second)
        yield binary("@", transpose(first), second)
        yield binary("@", first, transpose(second))
        yield binary("@", transpose(first), transpose(second))


def transpose(node: Node) -> Node:
    """Return the transpose of a node; a node that is a transpose is unwrapped."""
    return node.children[0] if node.op == ".T" else Node(".T", (node,))


def _make_square(node: Node) -> Node:
    """Return the node of an expression's elementwise square, x^2."""
    return Node("^", (node,), 2)


# A factor or term too many.


def drop_factors(tree: Node, context: RepairContext) -> Rewrites:
    """Yield rewrites that drop a factor of a matrix product or quotient, or one or two of an elementwise product."""
    for path, node in _walk_chains(tree):
        if node.op == "*":
            yield from ((path, *rewrite) for rewrite in _drop_from_chain(_list_factors(node)))
        elif node.op in ("@", "/"):
            left, right = node.children
            yield path, left, f"drop the factor {right}"
            yield path, right, f"drop the factor {left}"


def _drop_from_chain(factors: list[Node]) -> Iterator[tuple[Node, str]]:
    """Yield (product of the other factors, description) for every choice of one or two factors to drop."""
    multiply = partial(reduce, partial(binary, "*"))
    candidates, tail = factors[:_MAX_CHAIN], factors[_MAX_CHAIN:]
    for count in range(1, min(2, len(candidates) - 1) + 1):
        for indices in combinations(range(len(candidates)), count):
            dropped = [candidates[index] for index in indices]
            remaining = [factor for index, factor in enumerate(candidates) if index not in indices] + tail
            product, is_repeated = multiply(dropped), all(factor in remaining for factor in dropped)
            twice = f"the factor {product} occurs twice; drop one"
            yield multiply(remaining), twice if is_repeated else f"drop the factor {product}"


def _list_factors(node: Node) -> list[Node]:
    """Return the factors of a chain of elementwise products; [node] for any other node."""
    return [factor for child in node.children for factor in _list_factors(child)] if node.op == "*" else [node]


def drop_terms(tree: Node, context: RepairContext) -> Rewrites:
    """Yield rewrites that drop a term of a sum or difference."""
    for path, node in walk(tree):
        match node:
            case Node("+" | "-" as sign, (left, right)):
                yield path, left, f"drop the term {right}"
                yield path, right if sign == "+" else Node("-", (right,)), f"drop the term {left}"


# One thing for another: an activation for its input, a name for a name.


def swap_activations(tree: Node, context: RepairContext) -> Rewrites:
    """Yield rewrites that exchange an activation, its square and its input, as in h^2 instead of h."""
    for path, node in walk(tree):
        for function, pre, output in context.cell.activations:
            if function == "relu":
                positive = binary(">", variable(pre), Node("number", value="0"))
                if path and node in (variable(pre), output) and context.can_use(positive):
                    yield path, positive, f"{positive} instead of {node}"
                continue
            square, replacements = _make_square(output), tuple[Node, ...]()
            if function == "sigmoid" and node == binary("-", _ONE, square):  # the derivative of tanh
                replacements = (binary("*", output, binary("-", _ONE, output)),)
            elif node == variable(pre):
                replacements = (square, output)
            elif node == output:
                replacements = (square, variable(pre))
            elif node in (square, Node(function, (output,))):  # sigmoid(G_f): the activation applied twice
                replacements = (output,)
            elif node == _make_square(variable(pre)):
                replacements = (square,)
            for replacement in replacements:
                if context.can_use(replacement):
                    yield path, replacement, _describe_exchange(tree, path, replacement)


def swap_complements(tree: Node, context: RepairContext) -> Rewrites:
    """Yield rewrites that replace a gate g by 1 - g, and the reverse."""
    for path, node in walk(tree):
        if node.op in ("name", "^"):
            replacement = binary("-", _ONE, node)
        elif node.is_binary and node.op == "-" and node.children[0] == _ONE:
            replacement = node.children[1]
        else:
            continue
        yield path, replacement, _describe_exchange(tree, path, replacement)


def _describe_exchange(tree: Node, path: Path, replacement: Node) -> str:
    """Return "NEW instead of OLD" for the replacement of the node at `path`.

    A difference around the node is shown too: (1 - c_tilde^2) instead of (1 - pre_c).
    """
    node = parent = tree
    for index in path:
        node, parent = node.children[index], node
    if path and parent.is_binary and parent.op == "-":
        node, replacement = parent, replace_at(parent, path[-1:], replacement)
    old, new = (f"({side})" if side.is_binary else str(side) for side in (node, replacement))
    return f"{new} instead of {old}"


def swap_names(tree: Node, context: RepairContext) -> Rewrites:
    """Yield rewrites that replace a name by another of the same kind and shape, once or everywhere."""
    values = context.sample.values
    for old, new in _list_swaps(tree, context):
        if values[old].shape == values[new].shape:
            yield from _swap_name(tree, old, new)


def swap_unlike_names(tree: Node, context: RepairContext) -> Rewrites:
    """Yield rewrites that replace a name by one of the same kind and another shape, once or everywhere."""
    values = context.sample.values
    for old, new in _list_swaps(tree, context):
        if values[old].shape != values[new].shape and values[old].ndim == values[new].ndim:
            yield from _swap_name(tree, old, new)


def swap_kinds(tree: Node, context: RepairContext) -> Rewrites:
    """Yield rewrites that replace a value by a gradient of the same shape or the reverse, once or everywhere."""
    values = context.sample.values
    for old, new in _list_swaps(tree, context, same_kind=False):
        if values[old].shape == values[new].shape:
            yield from _swap_name(tree, old, new)


def _list_swaps(tree: Node, context: RepairContext, same_kind: bool = True) -> Iterator[tuple[str, str]]:
    """Yield (name of the expression, available name) for all names that differ; both are values or both gradients."""
    gradients = {*context.cell.gradients, *context.cell.incoming}
    for old in sorted(variable_names(tree)):
        for new in context.available_shapes if old in context.sample.values else ():
            if new != old and ((old in gradients) == (new in gradients)) == same_kind:
                yield old, new


def _swap_name(tree: Node, old: str, new: str) -> Rewrites:
    """Yield rewrites that replace a name by another, once or everywhere."""
    description = f"{new} instead of {old}"
    for path, node in walk(tree):
        if node == variable(old):
            yield path, variable(new), description
    yield (), substitute_names(tree, {old: variable(new)}), description


def subtract_targets(tree: Node, context: RepairContext) -> Rewrites:
    """Yield rewrites that subtract the target of the loss from a prediction: y_hat - y instead of y_hat."""
    cell, values = context.cell, context.sample.values
    targets = [name for name, kinds in cell.input_kinds.items() if kinds & {"one-hot", "mask", "fixed", "permutation"}]
    indexed = [node for _, node in walk(tree) if node.op == "index"]
    for path, node in walk(tree):
        for name in targets if node == _ONE and path else ():
            yield path, variable(name), f"{name} instead of 1"
            for index in indexed:
                if values[index.children[0].value].shape == values[name].shape:
                    letters = index.value.text.rpartition("_")[2]
                    spec = replace(index.value, name=name, text=f"{name}_{letters}")
                    one_hot = Node("index", (variable(name),), spec)
                    yield path, one_hot, f"{one_hot} instead of 1, which is right only where {one_hot} = 1"
    for path, node in walk(tree):
        for name in targets:
            target: Node | None = None
            if node.op == "name" and node.value in cell.steps and values[node.value].shape == values[name].shape:
                target = variable(name)
            elif node.op == "index" and node.children[0].value in cell.steps:
                base = node.children[0].value
                if values[base].shape == values[name].shape:
                    letters = node.value.text.rpartition("_")[2]
                    spec = replace(node.value, name=name, text=f"{name}_{letters}")
                    target = Node("index", (variable(name),), spec)
            if target is not None:
                yield path, binary("-", node, target), f"the term -{target} is missing: {node} - {target}"


def scale_parts(tree: Node, context: RepairContext) -> Rewrites:
    """Yield rewrites that multiply or divide a part by a size or scalar input: epsilon / K instead of epsilon."""
    sizes = [variable(size) for size in context.cell.sizes]
    scalars = [variable(name) for name, shape in context.cell.input_shapes.items() if not shape]
    factors = [*sizes, *scalars, *(binary("-", _ONE, scalar) for scalar in scalars), Node("number", value="2")]
    operands = _product_operands(tree)
    for path, node in walk(tree):
        if (
            not path
            or node.op == "number"
            or path in operands & {path for path, inner in walk(tree) if inner.op == "*"}
        ):
            continue
        for factor in factors:
            if factor == node:
                continue
            for operator in "/*":
                product = binary(operator, node, factor)
                old = f"({node})" if node.is_binary and node.op in "+-" else str(node)
                yield path, product, f"{product} instead of {old}"


def insert_derivatives(tree: Node, context: RepairContext) -> Rewrites:
    """Yield rewrites that multiply a part of a chain of matrix products by the derivative of an activation."""
    evaluate = Evaluator(context.sample.values)
    for path, node in walk(tree):
        factors = _list_chain(node)
        if len(factors) < 3 or len(factors) > _MAX_CHAIN:
            continue
        for start, stop in combinations(range(len(factors) + 1), 2):
            if stop - start < 2 or (start, stop) == (0, len(factors)):
                continue
            part = reduce(partial(binary, "@"), factors[start:stop])
            try:
                shape = evaluate(part).shape
            except ShapeError:
                continue
            for derivative, derivative_shape in context.derivatives:
                for factor, factor_shape in (
                    (derivative, derivative_shape),
                    (transpose(derivative), derivative_shape[::-1]),
                ):
                    if factor_shape == shape:
                        product = binary("*", part, factor)
                        chain = [*factors[:start], product, *factors[stop:]]
                        yield path, reduce(partial(binary, "@"), chain), f"the factor {factor} is missing after {part}"


def _list_chain(node: Node) -> list[Node]:
    """Return the factors of a chain of matrix products; [node] for any other node."""
    return [factor for child in node.children for factor in _list_chain(child)] if node.op == "@" else [node]


def slice_rows(tree: Node, context: RepairContext) -> Rewrites:
    """Yield rewrites that take the first rows of the whole, or those after a size: one part of a stacked vector."""
    for size in context.cell.sizes:
        for rows in ((None, size), (size, None)):
            selected = Node("slice", (tree,), (rows, (None, None)))
            yield (), selected, f"take the rows that belong to {context.target[1:]}"


def fix_softmax(tree: Node, context: RepairContext) -> Rewrites:
    """Yield the derivative of a softmax, p * (dp - the sum of p * dp), for one that is taken element by element."""
    for equation in context.cell.equations:
        match equation.expression:
            case Node("softmax", (Node("name", _, scores),), axis) if f"d{scores}" == context.target:
                weights, gradient = variable(equation.name), variable(f"d{equation.name}")
                if not context.can_use(gradient):
                    continue
                slope = binary("*", weights, binary("-", _ONE, weights))
                elementwise = (binary("*", weights, gradient), binary("*", slope, gradient), slope)
                if any(_has_value(tree, wrong, context.sample) for wrong in elementwise):
                    default = None if 1 in context.shape else len(context.shape) - 1
                    mean = Node("sum", (binary("*", weights, gradient),), default if axis is None else axis)
                    corrected = binary("*", weights, binary("-", gradient, mean))
                    yield (), corrected, "softmax couples all its elements: its derivative is not elementwise"


def _has_value(tree: Node, other: Node, sample: Sample) -> bool:
    """Return whether two expressions have the same value in a sample."""
    try:
        first, second = (Evaluator(sample.values)(node) for node in (tree, other))
    except ShapeError:
        return False
    return first.shape == second.shape and is_close(first, second)


# A term, a factor or a matrix that is missing.


def _join_missing(
    kind: str, operator: str, tree: Node, context: RepairContext, candidates: Sequence[tuple[Node, Shape | None]]
) -> Rewrites:
    """Yield rewrites that join a candidate (a "term" or "factor") to a node of the same shape by "+" or "*".

    A factor is added to a whole chain of elementwise products."""
    operands = _product_operands(tree) if operator == "*" else set()
    for path, node, shape in _walk_matrices(tree, context):
        for other, other_shape in candidates if path not in operands else ():
            is_row = operator == "*" and other_shape is not None and len(other_shape) == 2 and shape == context.shape
            if other_shape == shape or (
                is_row and other_shape in ((1, shape[1]), (shape[0], 1)) and shape not in ((1, 1),)
            ):
                yield path, binary(operator, node, other), f"the {kind} {other} is missing"


def add_incoming_gradients(tree: Node, context: RepairContext) -> Rewrites:
    """Yield rewrites that add a gradient that arrives from outside the function."""
    terms = [(variable(name), context.available_shapes.get(name)) for name in context.cell.incoming]
    return _join_missing("term", "+", tree, context, terms)


def multiply_derivatives(tree: Node, context: RepairContext) -> Rewrites:
    """Yield rewrites that multiply a node by the derivative of an activation."""
    return _join_missing("factor", "*", tree, context, context.derivatives)


def multiply_names(tree: Node, context: RepairContext) -> Rewrites:
    """Yield rewrites that multiply a node elementwise by a named value of the same shape."""
    factors = [(variable(name), shape) for name, shape in context.available_shapes.items()]
    scalars = {name for name, shape in context.cell.input_shapes.items() if not shape}
    for path, node in walk(tree):
        if node.op == "name" and node.value in scalars:
            for factor, shape in factors:
                if shape == context.shape:
                    yield path, binary("*", node, factor), f"the factor {factor} of {node} is missing"
    yield from _join_missing("factor", "*", tree, context, factors)


def multiply_scales(tree: Node, context: RepairContext) -> Rewrites:
    """Yield rewrites that multiply or divide the whole by a size or its root, a scalar input, or 2."""
    sizes = [variable(size) for size in context.cell.sizes]
    scalars = [variable(name) for name, shape in context.cell.input_shapes.items() if not shape]
    for number in (*(Node("sqrt", (size,)) for size in sizes), *sizes, *scalars, Node("number", value="2")):
        yield (), binary("/", tree, number), f"the factor 1/{number} is missing"
        yield (), binary("*", tree, number), f"the factor {number} is missing"


def change_reductions(tree: Node, context: RepairContext) -> Rewrites:
    """Yield rewrites that add a sum over an axis, change the axis of a sum, or exchange a sum and a mean."""
    for axis, description in ((0, "sum over the rows"), (1, "sum along the rows")):
        yield (), Node("sum", (tree,), axis), f"{description}: axis={axis}"
    for path, node in walk(tree):
        if node.op in ("sum", "mean"):
            for function, axis in (("sum", 0), ("sum", 1), ("mean", 0), ("mean", 1)):
                other = Node(function, node.children, axis)
                if other != node:
                    yield path, other, f"{other}, not {node}"


def multiply_matrices(tree: Node, context: RepairContext) -> Rewrites:
    """Yield rewrites that multiply a node by a named matrix or vector, or its transpose, from either side."""
    for path, node, shape in _walk_matrices(tree, context):
        for name, size in context.matrices.items():
            for factor, (rows, columns) in ((variable(name), size), (transpose(variable(name)), size[::-1])):
                description = f"the factor {factor} is missing"
                if columns == shape[0]:
                    yield path, binary("@", factor, node), description
                if rows == shape[1]:
                    yield path, binary("@", node, factor), description


def add_sibling_terms(tree: Node, context: RepairContext) -> Rewrites:
    """Yield rewrites that add a term like an existing one with the names of another gate, such as W_f for W_u."""
    available = context.available_shapes.keys()
    gates = {name.rpartition("_")[2] for name in available if "_" in name}
    for path, node in walk(tree):
        names = variable_names(node)
        for gate in sorted(gates & {name.rpartition("_")[2] for name in names if "_" in name}):
            for other in sorted(gates - {gate}):
                siblings = {name: f"{name.removesuffix(gate)}{other}" for name in names if name.endswith(f"_{gate}")}
                if available >= set(siblings.values()):
                    term = substitute_names(node, {name: variable(sibling) for name, sibling in siblings.items()})
                    yield path, binary("+", node, term), f"the term {term} is missing"


def add_terms(tree: Node, context: RepairContext) -> Rewrites:
    """Yield rewrites that add to the whole a named value, a product of two, or a gradient times a transposed input."""
    terms = [variable(name) for name, shape in context.available_shapes.items() if shape == context.shape]
    scalars = [variable(name) for name, shape in context.cell.input_shapes.items() if not shape]
    sizes = [variable(size) for size in context.cell.sizes]
    products = [binary("*", scalar, term) for scalar in scalars for term in terms]
    terms += [_ONE, *products, *scalars, *(binary("/", scalar, size) for scalar in scalars for size in sizes)]
    names = [term for term in terms if term.op == "name"]
    terms += [binary("*", *pair) for pair in combinations_with_replacement(names, 2)]
    for name in context.cell.gradients:  # times a transposed matrix, from either side
        gradient, (rows, columns) = variable(name), context.matrices.get(name, (0, 0))
        for matrix, (height, width) in context.matrices.items():
            if matrix not in context.cell.input_shapes:
                continue
            if height == rows and (width, columns) == context.shape:
                terms.append(binary("@", transpose(variable(matrix)), gradient))
            if width == columns and (rows, height) == context.shape:
                terms.append(binary("@", gradient, transpose(variable(matrix))))
    for term in terms:
        yield (), binary("+", tree, term), f"the term {term} is missing"
        yield (), binary("-", tree, term), f"the term -{term} is missing"


def _walk_chains(tree: Node) -> Iterator[tuple[Path, Node]]:
    """Yield (path, node) for every node of a tree except products inside a chain a * b * c."""
    operands = _product_operands(tree)
    return ((path, node) for path, node in walk(tree) if path not in operands or node.op != "*")


def _product_operands(tree: Node) -> set[Path]:
    """Return the paths of the operands of every elementwise product."""
    return {(*path, index) for path, node in walk(tree) if node.op == "*" for index in (0, 1)}


def _walk_matrices(tree: Node, context: RepairContext) -> Iterator[tuple[Path, Node, Shape]]:
    """Yield (path, node, shape) for the nodes whose value has two axes."""
    evaluate = Evaluator(context.sample.values)
    evaluate.cache_values(tree)
    for path, node in _walk_chains(tree):
        try:
            shape = evaluate(node).shape
        except ShapeError:
            continue
        if len(shape) == 2:
            yield path, node, shape


COMMON_RULES: tuple[Rule, ...] = (  # pairs of these mistakes are tried too
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
LESS_COMMON_RULES: tuple[Rule, ...] = (  # most likely first
    fix_softmax,
    change_reductions,
    swap_product_kind,
    slice_rows,
    swap_complements,
    swap_names,
    subtract_targets,
    scale_parts,
    insert_derivatives,
    multiply_names,
    multiply_matrices,
    swap_unlike_names,
    swap_kinds,
    add_sibling_terms,
    add_terms,
)
