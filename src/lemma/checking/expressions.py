"""The small language of gradient derivations: parsing, writing and evaluating expressions."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import islice
from math import prod
from typing import Any

import torch
from torch import Tensor, float64, tensor

from lemma.checking.tokens import Cursor, SourceText, Token, derivation_tokens
from lemma.errors import InputError, describe_unknown

Path = tuple[int, ...]  # indices of children on the way from the root to a node


@dataclass(frozen=True)
class Node:
    """A node of an expression tree.

    Attributes:
        op: an operator, a function, `number`, `name`, `slice` or `.T` (transpose). A `-` with one child is a minus
            sign; `>` and `<` give 1 where they hold, 0 elsewhere.
        value: text of a number or name, exponent of `^`, axis of a function, subscripts of an einsum; ranges of a
            slice, each a pair of numbers, names of sizes or None.
        position: column of a name in its line, for error messages.
    """

    op: str
    children: "tuple[Node, ...]" = ()
    value: Any = None
    position: int = field(default=0, compare=False)

    @property
    def is_binary(self) -> bool:
        """True if the node is a binary operator with two operands."""
        return len(self.children) == 2 and self.op in PRECEDENCE

    def __str__(self) -> str:
        return write_expression(self)


def variable(name: str, position: int = 0) -> Node:
    """Return the node that stands for a named value; `position` is its column in the line, for errors."""
    return Node("name", (), name, position)


def binary(operator: str, left: Node, right: Node) -> Node:
    """Return the node of one of the operators + - * / @ > <."""
    return Node(operator, (left, right))


def walk(node: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """Yield (path, node) for every node of a tree, the root first. A path is child indices; the root's is `path`."""
    yield path, node
    for index, child in enumerate(node.children):
        yield from walk(child, (*path, index))


def replace_at(node: Node, path: Path, new: Node) -> Node:
    """Return a copy of the tree with the node at `path` replaced by `new`.

    >>> print(replace_at(binary("-", variable("a"), variable("b")), (1,), variable("c")))
    a - c
    """
    if not path:
        return new
    children = list(node.children)
    children[path[0]] = replace_at(children[path[0]], path[1:], new)
    return Node(node.op, tuple(children), node.value)


def substitute_names(node: Node, values: Mapping[str, Node]) -> Node:
    """Return a copy of the tree in which the nodes of these names are replaced by expressions."""
    if not node.children:
        return values.get(node.value, node) if node.op == "name" else node
    return Node(node.op, tuple(substitute_names(child, values) for child in node.children), node.value)


def expand_names(node: Node, values: Mapping[str, Node]) -> Node | None:
    """Return a copy of the tree with names replaced by expressions; None if it would have more than MAX_NODES nodes."""
    expanded = substitute_names(node, values)
    return None if next(islice(walk(expanded), MAX_NODES, None), None) else expanded


def variable_names(node: Node) -> set[str]:
    """Return the names of the values that occur in an expression."""
    return {child.value for _, child in walk(node) if child.op == "name"}


# Parsing `name = expression` lines; nothing that is read is ever executed.
#
# comparison  expression [('>' | '<') expression], in brackets only
# expression  product (('+' | '-') product)*
# product     unary (('*' | '/' | '@') unary)*
# unary       '-' unary | postfix
# postfix     atom ('^' whole or half | '.T' | '^T' | '[' rows [',' columns …] ']')*
# atom        number | name | function(expression, …[, axis=0 or 1]) | [expression; …] | (comparison)
#
# As in NumPy: a.dot(b), np.matmul(a, b), a.sum(axis=0, keepdims=True), einsum("bi,bj->ij", a, b).

ARITY = {  # the functions of the language with the fewest and the most arguments each takes
    **dict.fromkeys(
        ("sigmoid", "tanh", "exp", "log", "sqrt", "relu", "silu", "abs", "softmax", "sum", "mean", "diag", "ones"),
        (1, 1),
    ),
    **dict.fromkeys(("outer", "maximum"), (2, 2)),
    "concat": (2, 8),
    "einsum": (1, 3),
}
FUNCTION_ALIASES = {"sigma": "sigmoid", "stack": "concat", "ln": "log"}
NUMPY_OPERATORS = {"dot": ("@", 2), "matmul": ("@", 2), "multiply": ("*", 2), "transpose": (".T", 1)}
AXIS_FUNCTIONS = ("softmax", "sum", "mean")
RESERVED_NAMES = frozenset({*ARITY, *FUNCTION_ALIASES, *NUMPY_OPERATORS, "T", "axis"})
_DERIVATIVES = {  # of elementwise functions
    "sigmoid": "sigmoid(u) * (1 - sigmoid(u))",
    "tanh": "1 - tanh(u)^2",
    "relu": "(u > 0)",
    "silu": "sigmoid(u) * (1 + u * (1 - sigmoid(u)))",
    "exp": "exp(u)",
    "log": "1 / u",
    "sqrt": "1 / (2 * sqrt(u))",
}
_EINSUM = re.compile(r"[a-zA-Z]{1,4}(?:,[a-zA-Z]{1,4}){0,2}->[a-zA-Z]{0,4}")
MAX_NODES, MAX_DEPTH, MAX_POWER, MAX_AXES = 200, 40, 6, 4


@dataclass(frozen=True)
class Equation:
    """A line `name = expression` with its text and line number."""

    name: str
    expression: Node
    text: str
    number: int


def parse_equation(line: str, line_number: int = 1) -> Equation:
    """Parse a line `name = expression`; `line_number` is for error messages.

    >>> parse_equation("dh = δ2 Uᵀ")
    Traceback (most recent call last):
    lemma.errors.InputError: line 1, column 9: expected an operator before 'U', such as * or @.
        dh = δ2 Uᵀ
                ^
    """
    source = SourceText(line, f"line {line_number}, column")
    parser = _EquationParser(source, derivation_tokens(source))
    left = parser.take()
    if left.kind != "name" or not parser.take_if("="):
        raise parser.error("expected 'name = expression', such as dz = y_hat - y.", left)
    expression = parser.expression()
    parser.expect_end()
    return Equation(left.text, expression, line, line_number)


def parse_steps(line: str, line_number: int = 1) -> tuple[str, list[Node]]:
    """Parse a line `name = expression = …` of a derivation; return its name, "" if it has none, and the expressions.

    `line_number` is for error messages.

    >>> name, steps = parse_steps("Y = (A + B).T = A.T + B.T")
    >>> name, [str(step) for step in steps], parse_steps("= B.T + A.T")[0]
    ('Y', ['(A + B).T', 'A.T + B.T'], '')
    """
    source = SourceText(line, f"line {line_number}, column")
    tokens = derivation_tokens(source)
    parser, name = _EquationParser(source, tokens), ""
    if [token.kind for token in tokens[:2]] == ["name", "="]:
        name = parser.take().text
    parser.take_if("=")
    steps = [parser.expression()]
    while parser.take_if("="):
        steps.append(parser.expression())
    parser.expect_end()
    return name, steps


class _EquationParser(Cursor):
    """A recursive-descent parser that builds a tree of bounded size and depth; each method reads one construct."""

    def __init__(self, source: SourceText, tokens: list[Token]) -> None:
        super().__init__(source, tokens)
        self.nodes = self.depth = 0

    def expect_end(self) -> None:
        """Raise an error if the line does not end here."""
        if self.current.kind in ("name", "number", "(", "["):
            raise self.error(f"expected an operator before '{self.current.text}', such as * or @.")
        if self.current.kind != "end":
            raise self.error(f"'{self.current.text}' does not fit here.")

    def expect(self, kind: str) -> None:
        """Move past a token of this kind; raise an error if the next token is of another kind."""
        if not self.take_if(kind):
            raise self.error(f"expected '{kind}', got {_quote(self.current)}.")

    def node(self, op: str, *children: Node, value: Any = None, position: int = 0) -> Node:
        """Build a node; raise an error if the expression has more than MAX_NODES of them."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise self.error(f"the expression has more than {MAX_NODES} parts; write some of it in a line of its own.")
        return Node(op, children, value, position)

    def expression(self) -> Node:
        """Read a sum or difference of products; raise an error if brackets nest more than MAX_DEPTH deep."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"brackets are nested more than {MAX_DEPTH} deep.")
        node = self.product()
        while sign := self.take_if("+", "-"):
            node = self.node(sign.text, node, self.product())
        self.depth -= 1
        return node

    def product(self) -> Node:
        """Read operands with *, / or @ between them."""
        node = self.unary()
        while sign := self.take_if("*", "/", "@"):
            node = self.node(sign.text, node, self.unary())
        return node

    def unary(self) -> Node:
        """Read an operand with its minus signs before it and powers, transposes, slices and method calls after it."""
        is_negative = False
        while self.take_if("-"):
            is_negative = not is_negative
        node = self.atom()
        while sign := self.take_if("^", ".T", "[", "."):
            if sign.text == ".":  # a.dot(b) is dot(a, b)
                token = self.take()
                function = FUNCTION_ALIASES.get(token.text, token.text)
                if function not in {*ARITY, *NUMPY_OPERATORS}:
                    raise self.error(describe_unknown("function", token.text, (*ARITY, *NUMPY_OPERATORS)), token)
                node = self.call(function, [node])
            elif sign.text == ".T":
                node = self.node(".T", node)
            elif sign.text == "[":
                node = self.node("slice", node, value=self.ranges(sign))
            elif (self.current.kind, self.current.text) == ("name", "T"):  # W^T
                self.take()
                node = self.node(".T", node)
            else:
                node = self.node("^", node, value=self.exponent())
        return self.node("-", node) if is_negative else node

    def ranges(self, opening: Token) -> tuple[Any, ...]:
        """Read the ranges of a slice such as `[:n, 1:]` after its opening bracket; return (start, stop) by axis."""
        ranges = [self.range()]
        while self.take_if(","):
            ranges.append(self.range())
        self.expect("]")
        if len(ranges) > MAX_AXES:
            raise self.error(f"a value has at most {MAX_AXES} axes.", opening)
        return (*ranges, (None, None)) if len(ranges) == 1 else tuple(ranges)

    def exponent(self) -> float:
        """Read the exponent of a power: a whole or half number, with or without brackets."""
        bracket = self.take_if("(")
        minus, token = self.take_if("-"), self.take()
        divisor = bracket and self.take_if("/") and self.take()
        value = float(token.text) if token.kind == "number" and len(token.text) <= 4 else MAX_POWER + 1
        if divisor:
            value = value / 2 if divisor.text == "2" else MAX_POWER + 1
        if value > MAX_POWER or value * 2 % 1:
            message = f"an exponent is a whole or half number from -{MAX_POWER} to {MAX_POWER}, not '{token.text}'."
            raise self.error(message, token)
        if bracket:
            self.expect(")")
        value = int(value) if value % 1 == 0 else value
        return -value if minus else value

    def range(self) -> tuple[int | str | None, ...]:
        """Read `start:stop` of a slice; return both ends as a number, the name of a size, or None if left out."""
        ends: list[int | str | None] = []
        for last in (False, True):
            token = self.take_if("name", "number")
            if token and token.kind == "number" and (not token.text.isdecimal() or len(token.text) > 3):
                raise self.error(f"expected a small whole number or the name of a size, not '{token.text}'.", token)
            ends.append(int(token.text) if token and token.kind == "number" else token and token.text)
            if not last:
                self.expect(":")
        return tuple(ends)

    def atom(self) -> Node:
        """Read a number, a name, a function call, a stack `[a; b]`, or an expression in brackets."""
        token = self.take()
        match token.kind:
            case "number":
                return self.node("number", value=token.text)
            case "[":
                parts = [self.expression()]
                while self.take_if(";", ","):
                    parts.append(self.expression())
                self.expect("]")
                return self.apply("concat", parts, token)
            case "(":
                node = self.expression()
                if sign := self.take_if(">", "<"):
                    self.take_if("=")  # at random values >= is >
                    node = self.node(sign.text, node, self.expression())
                self.expect(")")
                return node
            case "name":
                function = FUNCTION_ALIASES.get(token.text, token.text)
                if function in ARITY and self.take_if("^"):  # tanh²(c) is tanh(c)²
                    exponent = self.exponent()
                    return self.node("^", self.call(function), value=exponent)
                if self.take_if("'"):
                    return self.derivative(function, token)
                if self.current.kind == "(":
                    if function not in {*ARITY, *NUMPY_OPERATORS}:
                        raise self.error(describe_unknown("function", token.text, ARITY), token)
                    return self.call(function)
                if token.text in ARITY:
                    raise self.error(f"'{function}' is a function; write {function}(…).", token)
                return self.node("name", value=token.text, position=token.position)
        raise self.error(f"expected a value, got {_quote(token)}.", token)

    def derivative(self, function: str, token: Token) -> Node:
        """Read the `(z)` of tanh'(z) or another function, after the '; return its derivative at z as an expression."""
        if function not in _DERIVATIVES:
            raise self.error(f"'{token.text}' has no derivative here; known: {', '.join(_DERIVATIVES)}.", token)
        (argument,) = self.call(function).children
        tokens = derivation_tokens(SourceText(_DERIVATIVES[function], ""))
        expanded = _EquationParser(self.source, tokens).expression()
        for _ in walk(expanded):  # they count as parts of the expression
            self.node("name")
        return substitute_names(expanded, {"u": argument})

    def call(self, function: str, arguments: list[Node] | None = None) -> Node:
        """Read a function's arguments in brackets; return its node. `arguments` has the x of a method call x.sum()."""
        opening, arguments, value = self.current, arguments or [], None
        self.expect("(")
        if function == "einsum":
            if self.current.kind != "string" or not _EINSUM.fullmatch(self.current.text):
                message = "einsum begins with its letters, one to four a value, as in einsum('bi,bj->ij', a, b)."
                raise self.error(message)
            value = self.take().text
            self.expect(",")
        if arguments and function == "transpose":  # a.transpose() or a.transpose(1, 0)
            while self.current.kind in ("number", "-"):
                self.axis()
                self.take_if(",")
        elif not (arguments and function in AXIS_FUNCTIONS):  # of a.sum(axis=0) and a.sum(0) the axis is read below
            arguments.append(self.expression())
            if self.current.kind != ")" and not self.take_if(",", ";"):
                self.expect(")")
        while self.current.kind != ")":
            if function not in AXIS_FUNCTIONS:
                arguments.append(self.expression())
            elif self.current.text in ("keepdim", "keepdims"):  # sums keep their rows and columns anyway
                self.take()
                self.expect("=")
                self.take_if("name")
            else:
                value = self.axes()
            if not self.take_if(",", ";"):
                break
        self.expect(")")
        if function in NUMPY_OPERATORS:
            operator, count = NUMPY_OPERATORS[function]
            if len(arguments) != count:
                raise self.error(f"{function} takes {count} values, not {len(arguments)}.", opening)
            return self.node(operator, *arguments)
        if function == "einsum":
            return self.einsum(str(value or ""), arguments, opening)
        return self.apply(function, arguments, opening, value)

    def axes(self) -> int | tuple[int, ...]:
        """Read `axis=0`, `dim=0`, `0` or `(0, 1)`; return the number, or a tuple of several."""
        if self.current.text in ("axis", "dim"):
            self.take()
            self.expect("=")
        bracket = self.take_if("(")
        axes = [self.axis()]
        while bracket and self.take_if(","):
            axes.append(self.axis())
        if bracket:
            self.expect(")")
        return axes[0] if len(axes) == 1 else tuple(axes)

    def axis(self) -> int:
        """Read the number of an axis, which may be negative."""
        minus, token = self.take_if("-"), self.take()
        if token.text not in map(str, range(1 if minus else 0, MAX_AXES)):
            raise self.error(f"an axis is 0 (down the rows) or 1 (along them), not '{token.text}'.", token)
        return -int(token.text) if minus else int(token.text)

    def einsum(self, subscripts: str, arguments: list[Node], opening: Token) -> Node:
        """Return the node of an einsum; raise an error at its bracket `opening` if subscripts and arguments differ."""
        inputs, _, output = subscripts.partition("->")
        operands = inputs.split(",")
        if any(len(set(letters)) < len(letters) for letters in (*operands, output)) or not set(output) <= {*inputs}:
            message = "in an einsum each value has its letters once, and the result only letters of theirs."
            raise self.error(message, opening)
        if len(operands) != len(arguments):
            raise self.error(f"einsum('{subscripts}') takes {len(operands)} values, not {len(arguments)}.", opening)
        return self.node("einsum", *arguments, value=subscripts)

    def apply(self, function: str, arguments: list[Node], opening: Token, axis: Any = None) -> Node:
        """Return the node of a function call; raise an error at `opening` if it has too few or too many arguments."""
        minimum, maximum = ARITY[function]
        if not minimum <= len(arguments) <= maximum:
            expected = str(maximum) if minimum == maximum else f"{minimum} to {maximum}"
            raise self.error(f"{function} takes {expected} values, not {len(arguments)}.", opening)
        return self.node(function, *arguments, value=axis)


def _quote(token: Token) -> str:
    """Return the text of a token for a message, in quotes unless it is the end of the line."""
    return token.text if token.kind == "end" else f"'{token.text}'"


PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "@": 2, ">": 5, "<": 5}
_UNARY, _POSTFIX = 3, 4


def write_expression(node: Node) -> str:
    """Return a tree as text in the language it was read from, without brackets that are not needed.

    >>> write_expression(binary("*", variable("h"), binary("-", Node("number", value="1"), variable("h"))))
    'h * (1 - h)'
    """
    match node:
        case Node("number" | "name", _, text):
            return text
        case Node("-", (inner,)):
            return f"-{_write_operand(inner, _UNARY)}"
        case Node(">" | "<" as sign, (left, right)):  # always in brackets
            return f"({write_expression(left)} {sign} {write_expression(right)})"
        case Node(sign, (left, right)) if node.is_binary:
            level = PRECEDENCE[sign]
            associative = right.is_binary and right.op == sign and sign in "+*"
            return f"{_write_operand(left, level)} {sign} {_write_operand(right, level + (not associative))}"
        case Node("^", (inner,), exponent):
            return f"{_write_operand(inner, _POSTFIX)}^{exponent if exponent % 1 == 0 else f'({exponent})'}"
        case Node(".T", (inner,)):
            return f"{_write_operand(inner, _POSTFIX)}.T"
        case Node("slice", (inner,), ranges):
            axes = [":".join("" if end is None else str(end) for end in ends) for ends in ranges]
            while len(axes) > 1 and axes[-1] == ":":
                axes.pop()
            return f"{_write_operand(inner, _POSTFIX)}[{', '.join(axes)}]"
        case Node("einsum", arguments, letters):
            return f"einsum({', '.join([repr(letters), *map(write_expression, arguments)])})"
        case Node("concat", arguments):
            return f"[{'; '.join(map(write_expression, arguments))}]"
        case Node(function, arguments, axis):
            suffix = "" if axis is None else f", axis={axis}"
            return f"{function}({', '.join(map(write_expression, arguments))}{suffix})"


def _write_operand(node: Node, level: int) -> str:
    """Return an operand as text, in brackets if it binds less tightly than `level`, a number of PRECEDENCE."""
    if node.is_binary:
        precedence = PRECEDENCE[node.op]
    else:
        precedence = _UNARY if node.op == "-" or (node.op == "^" and level == _UNARY) else _POSTFIX
    return write_expression(node) if precedence >= level else f"({write_expression(node)})"


# Evaluating.

Shape = tuple[int, ...]
MAX_ELEMENTS = 20_000  # of a value; the values of a cell are far smaller
MAX_EINSUM_PRODUCTS = 50 * MAX_ELEMENTS
_REDUCTIONS = {"sum": torch.sum, "mean": torch.mean}
_ELEMENTWISE = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "abs": torch.abs,
    "ones": torch.ones_like,
}


class ShapeError(ValueError):
    """An operation whose operands do not fit; its text has `{}` for each shape."""

    def __init__(self, operation: str, *shapes: Shape) -> None:
        super().__init__(operation, shapes)
        self.operation, self.shapes = operation, shapes


class TooMuchWork(InputError):
    """An answer that takes more operations to evaluate than its budget allows."""


class WorkBudget:
    """A budget of operations for evaluating expressions; evaluations inside `with budget:` draw from it.

    An operation takes about 15 microseconds: one operation on a small value, or a part of one on a large value.
    Budgets nest: what is spent inside is spent of the outer ones too.
    """

    def __init__(self, operations: int) -> None:
        self.remaining = operations
        self._outer: WorkBudget | None = None

    def __enter__(self) -> "WorkBudget":
        self._outer = _BUDGET.get()
        _BUDGET.set(self)
        return self

    def __exit__(self, *exception: object) -> None:
        _BUDGET.set(self._outer)

    def spend(self, operations: int) -> None:
        """Take operations from this budget and the outer ones; raise TooMuchWork if they do not suffice."""
        self.remaining -= operations
        if self.remaining < 0:
            raise TooMuchWork("This takes too much work to evaluate. Use smaller values and fewer lines.")
        if self._outer is not None:
            self._outer.spend(operations)


@contextmanager
def limited_work(operations: int) -> Iterator[None]:
    """Limit the operations of evaluating expressions in a `with` block or a call; raise TooMuchWork beyond."""
    with WorkBudget(operations):
        yield


_BUDGET: ContextVar[WorkBudget | None] = ContextVar("budget of evaluations", default=None)
# what costs one operation: products of a matrix product, products of an einsum, values of a function, other values
_MATRIX_PRODUCTS, _EINSUM_PRODUCTS, _FUNCTION_VALUES, _OTHER_VALUES = 25_000, 500, 1_500, 10_000


def _extra_operations(node: Node, operands: Sequence[Tensor], value: Tensor) -> int:
    """Return how many operations a node costs beyond 1, by the sizes of its operands and of its value."""
    if node.op == "@":
        return value.numel() * operands[0].shape[-1] // _MATRIX_PRODUCTS
    if node.op == "einsum":
        lengths: dict[str, int] = {}
        for letters, operand in zip(str(node.value).partition("->")[0].split(","), operands, strict=True):
            lengths |= zip(letters, operand.shape if len(letters) > 1 else (operand.numel(),), strict=True)
        return 4 + prod(lengths.values()) // _EINSUM_PRODUCTS
    if node.op in ARITY or node.op == "^":
        return max(value.numel(), *(operand.numel() for operand in operands)) // _FUNCTION_VALUES
    return value.numel() // _OTHER_VALUES


def apply_operator(sign: str, left: Tensor, right: Tensor) -> Tensor:
    """Apply a binary operator, such as + or @; raise a ShapeError if the shapes do not fit.

    A number, or a row or column as long as the other value, is broadcast. A row and a column are not broadcast against
    each other: an outer product must be written as such.
    """
    num_axes = max(left.ndim, right.ndim)
    left_shape, right_shape = ((1,) * (num_axes - value.ndim) + tuple(value.shape) for value in (left, right))
    pairs = list(zip(left_shape, right_shape, strict=True))
    if sign == "@":
        fits = min(left.ndim, right.ndim) >= 2 and left.shape[-1] == right.shape[-2]
        fits = fits and all(1 in (a, b) or a == b for a, b in pairs[:-2])
    else:
        fits = 0 in (left.ndim, right.ndim) or all(b in (1, a) for a, b in pairs) or all(a in (1, b) for a, b in pairs)
    if not fits:
        raise ShapeError(f"{{}} {sign} {{}}", left.shape, right.shape)
    if sign == "@":
        _check_size(prod(max(pair) for pair in pairs[:-2]) * left.shape[-2] * right.shape[-1])
        return left @ right
    if sign in "<>":
        return (left > right if sign == ">" else left < right).double()
    return {"+": torch.add, "-": torch.sub, "*": torch.mul, "/": torch.div}[sign](left, right)


def apply_function(function: str, arguments: list[Tensor], value: Any) -> Tensor:
    """Apply a function of the language; `value` is its axis or axes or the subscripts of an einsum, or None."""
    first, counts = arguments[0], [argument.numel() for argument in arguments]
    result_sizes = {"diag": counts[0] ** 2, "outer": prod(counts), "concat": sum(counts)}
    _check_size(result_sizes.get(function, counts[0]))
    if function in _ELEMENTWISE:
        return _ELEMENTWISE[function](first)
    if function in _REDUCTIONS and value is None:
        return _REDUCTIONS[function](first)
    if function == "maximum":
        apply_operator("+", *arguments)  # checks that the shapes fit
        return torch.maximum(*arguments)
    axes: tuple[int, ...] = value if isinstance(value, tuple) else (value,) if isinstance(value, int) else ()
    if function in AXIS_FUNCTIONS and (first.ndim < 2 or not all(-first.ndim <= axis < first.ndim for axis in axes)):
        raise ShapeError(f"{function} of {{}}", first.shape)
    if len({axis % first.ndim for axis in axes}) < len(axes):
        raise ShapeError(f"{function} of {{}} along one axis twice", first.shape)
    if function in ("diag", "outer"):
        for argument in arguments:
            if argument.ndim != 2 or 1 not in argument.shape:
                raise ShapeError(f"{function} of {{}}, which is not a row or column", argument.shape)
    match function:
        case "sum" | "mean":
            return _REDUCTIONS[function](first, value, keepdim=True)
        case "softmax":  # of a row or of a column, or of each row of a matrix, unless an axis is given
            is_column = first.ndim == 2 and first.shape[1] == 1
            return first.softmax(axes[0] if axes else 0 if is_column else -1)
        case "diag":
            return torch.diag(first.flatten())
        case "outer":
            return torch.outer(*(argument.flatten() for argument in arguments))
        case "einsum":
            return _einsum(str(value), arguments)
    return _concatenate(arguments)


def _concatenate(arguments: list[Tensor]) -> Tensor:
    """Join tensors as `[a; b]` does: columns below each other, rows side by side, matrices along the axis that fits.

    Matrices with equally many rows are joined side by side, as attention heads are; otherwise below each other.
    """
    shapes = [tuple(argument.shape) for argument in arguments]
    if all(len(shape) == 2 for shape in shapes):
        axes = [axis for axis in (0, 1) if all(shape[1 - axis] == 1 for shape in shapes)]
        axes += [axis for axis in (1, 0) if len({shape[1 - axis] for shape in shapes}) == 1]
        if axes:
            return torch.cat(arguments, axes[0])
    raise ShapeError(f"[{'; '.join('{}' for _ in shapes)}]", *shapes)


def _einsum(subscripts: str, arguments: list[Tensor]) -> Tensor:
    """Compute an einsum; an operand or result with one subscript is a row (1, n) or a column (n, 1)."""
    inputs, _, output = subscripts.partition("->")
    placeholders = ", ".join("{}" for _ in arguments)
    error = ShapeError(f"einsum('{subscripts}') of {placeholders}", *(argument.shape for argument in arguments))
    values, lengths, has_row = list[Tensor](), dict[str, int](), False
    for letters, argument in zip(inputs.split(","), arguments, strict=True):
        if argument.ndim != max(len(letters), 2) or (len(letters) == 1 and 1 not in argument.shape):
            raise error
        has_row |= len(letters) == 1 and argument.shape[0] == 1
        value = argument.flatten() if len(letters) == 1 else argument
        values.append(value)
        if any(lengths.setdefault(letter, size) != size for letter, size in zip(letters, value.shape, strict=True)):
            raise error
    _check_size(prod(lengths[letter] for letter in output))
    if prod(lengths.values()) > MAX_EINSUM_PRODUCTS:
        raise ShapeError("an einsum of too many products")
    result = torch.einsum(subscripts, *values)
    if len(output) != 1:
        return result
    return result[None] if has_row else result[:, None]


def _check_size(elements: int) -> None:
    """Raise a ShapeError if a value of this many elements is too large to compute."""
    if elements > MAX_ELEMENTS:
        raise ShapeError(f"a value of {elements} elements, which is too large")


class Evaluator:
    """Evaluates expressions for given values of names, within the current budget of operations.

    A value is a number, a column (n, 1), a row (1, n), a matrix, or a batch of matrices, in float64.
    """

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        self.values, self._budget = values, _BUDGET.get()
        self._cache: dict[int, tuple[Node, Tensor]] = {}

    def cache_values(self, node: Node) -> None:
        """Evaluate every node of a tree and store its value; other trees that share these nodes then cost less."""
        for child in node.children:
            self.cache_values(child)
        try:
            self._cache[id(node)] = (node, self(node))  # holding the node keeps its id from being reused
        except ShapeError:
            return

    def __call__(self, node: Node) -> Tensor:
        """Return the value of a node; raise a `ShapeError` if shapes do not fit."""
        if id(node) in self._cache:
            return self._cache[id(node)][1]
        if self._budget:
            self._budget.spend(1)  # also where the shapes do not fit
        operands = [self(child) for child in node.children]
        value = self._apply(node, operands)
        if self._budget:
            self._budget.spend(_extra_operations(node, operands, value))
        return value

    def _apply(self, node: Node, operands: list[Tensor]) -> Tensor:
        """Return the value of a node, computed from the values of its children."""
        if node.op == "number":
            return tensor(float(node.value), dtype=float64)
        if node.op == "name":
            return self.values[node.value]
        first = operands[0]
        match node.op:
            case "-" if len(operands) == 1:
                return -first
            case operator if node.is_binary:
                return apply_operator(operator, *operands)
            case "^":
                return first**node.value
            case ".T":
                return first.mT if first.ndim else first
            case "slice":
                return self._slice(first, node.value)
            case function:
                return apply_function(function, operands, node.value)

    def _slice(self, value: Tensor, ranges: Sequence[tuple[int | str | None, ...]]) -> Tensor:
        """Return a slice of a value; its ends are numbers, names of sizes or None, and it must not be empty."""
        if value.ndim < len(ranges):
            raise ShapeError("a slice of {}", value.shape)
        slices = (slice(*(int(self.values[end]) if isinstance(end, str) else end for end in ends)) for ends in ranges)
        part = value[tuple(slices)]
        if part.numel() == 0:
            raise ShapeError("an empty slice of {}", value.shape)
        return part
