"""The small language of gradient derivations: parsed, evaluated, written back."""

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
from lemma.errors import InputError, unknown

Path = tuple[int, ...]
"""The way from the root to a node: which of the nodes below to take at each step."""


@dataclass(frozen=True)
class Node:
    """A node of an expression: its sign or function, the nodes below it, and what else belongs to it.

    `number` and `name` have their text; `^` its exponent; `slice` its rows, columns and so on, each a pair of numbers,
    names of sizes or None; a function the axis it works along, if one is given. A `-` above one node flips its sign,
    `.T` transposes it; `+ - * / @` join two, and `>` and `<` give 1 where they hold, 0 elsewhere.
    """

    head: str
    below: "tuple[Node, ...]" = ()
    value: Any = None
    position: int = field(default=0, compare=False)
    """Of a name: where it is in the line."""

    @property
    def joins(self) -> bool:
        """Whether a sign joins two nodes."""
        return len(self.below) == 2 and self.head in PRECEDENCE


def variable(text: str, position: int = 0) -> Node:
    """A named value."""
    return Node("name", (), text, position)


def join(sign: str, left: Node, right: Node) -> Node:
    """Two values joined by one of + - * / @."""
    return Node(sign, (left, right))


def subtrees(node: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """Every node of a tree with the way to it, the root first."""
    yield path, node
    for index, child in enumerate(node.below):
        yield from subtrees(child, (*path, index))


def put(node: Node, path: Path, new: Node) -> Node:
    """The tree with another node at the end of a path.

    >>> written(put(join("-", variable("a"), variable("b")), (1,), variable("c")))
    'a - c'
    """
    if not path:
        return new
    below = list(node.below)
    below[path[0]] = put(below[path[0]], path[1:], new)
    return Node(node.head, tuple(below), node.value)


def substituted(node: Node, meaning: Mapping[str, Node]) -> Node:
    """The tree with some names replaced by what they stand for."""
    if not node.below:
        return meaning.get(node.value, node) if node.head == "name" else node
    return Node(node.head, tuple(substituted(child, meaning) for child in node.below), node.value)


def names(node: Node) -> set[str]:
    """The names that occur in a tree."""
    return {below.value for _, below in subtrees(node) if below.head == "name"}


def is_larger(node: Node, most: int) -> bool:
    """Whether a tree has more nodes than that; it counts no further."""
    return next(islice(subtrees(node), most, None), None) is not None


# Reading `name = expression` lines; nothing that is read is ever executed.
#
# comparison  expression [('>' | '<') expression], in brackets only
# expression  product (('+' | '-') product)*
# product     unary (('*' | '/' | '@') unary)*
# unary       '-' unary | postfix
# postfix     atom ('^' whole or half | '.T' | '^T' | '[' rows [',' columns …] ']')*
# atom        number | name | function(expression, …[, axis=0 or 1]) | [expression; …] | (comparison)
#
# As in NumPy: a.dot(b), np.matmul(a, b), a.sum(axis=0, keepdims=True), einsum("bi,bj->ij", a, b).


ARGUMENTS = {
    **dict.fromkeys(
        ("sigmoid", "tanh", "exp", "log", "sqrt", "relu", "silu", "abs", "softmax", "sum", "mean", "diag", "ones"),
        (1, 1),
    ),
    **dict.fromkeys(("outer", "maximum"), (2, 2)),
    "concat": (2, 8),
    "einsum": (1, 3),
}
"""The functions of the language with the fewest and the most arguments each takes."""
OTHER_NAMES = {"sigma": "sigmoid", "stack": "concat", "ln": "log"}
SIGNS = {"dot": ("@", 2), "matmul": ("@", 2), "multiply": ("*", 2), "transpose": (".T", 1)}
"""What NumPy calls by a name and the language writes with a sign."""
ALONG = ("softmax", "sum", "mean")
"""The functions that take an axis."""
RESERVED = frozenset({*ARGUMENTS, *OTHER_NAMES, *SIGNS, "T", "axis"})
"""What no value may be called."""
_DERIVATIVES = {
    "sigmoid": "sigmoid(u) * (1 - sigmoid(u))",
    "tanh": "1 - tanh(u)^2",
    "relu": "(u > 0)",
    "silu": "sigmoid(u) * (1 + u * (1 - sigmoid(u)))",
    "exp": "exp(u)",
    "log": "1 / u",
    "sqrt": "1 / (2 * sqrt(u))",
}
"""The derivatives of elementwise functions, in the language."""
_EINSUM = re.compile(r"[a-zA-Z]{1,4}(?:,[a-zA-Z]{1,4}){0,2}->[a-zA-Z]{0,4}")
MOST_NODES, MOST_DEPTH, MOST_POWER, MOST_AXES = 200, 40, 6, 4


@dataclass(frozen=True)
class Equation:
    """A line that a person wrote: the name on its left, and the expression on its right."""

    name: str
    expression: Node
    text: str
    number: int


def parse_equation(line: str, number: int = 1) -> Equation:
    """Read `name = expression`.

    >>> parse_equation("dh = δ2 Uᵀ")
    Traceback (most recent call last):
    lemma.errors.InputError: line 1, column 9: expected an operator before 'U', such as * or @.
        dh = δ2 Uᵀ
                ^
    """
    source = SourceText(line, f"line {number}, column")
    parser = _EquationParser(source, derivation_tokens(source))
    left = parser.take()
    if left.kind != "name" or not parser.take_if("="):
        raise parser.wrong("expected 'name = expression', such as dz = y_hat - y.", left)
    expression = parser.expression()
    parser.end()
    return Equation(left.text, expression, line, number)


def parse_steps(line: str, number: int = 1) -> tuple[str, list[Node]]:
    """Read a line of a derivation: the name before the first `=`, if it is there, and the expressions that are equal.

    >>> name, steps = parse_steps("Y = (A + B).T = A.T + B.T")
    >>> name, [written(step) for step in steps], parse_steps("= B.T + A.T")[0]
    ('Y', ['(A + B).T', 'A.T + B.T'], '')
    """
    source = SourceText(line, f"line {number}, column")
    tokens = derivation_tokens(source)
    parser, name = _EquationParser(source, tokens), ""
    if [token.kind for token in tokens[:2]] == ["name", "="]:
        name = parser.take().text
    parser.take_if("=")
    steps = [parser.expression()]
    while parser.take_if("="):
        steps.append(parser.expression())
    parser.end()
    return name, steps


class _EquationParser(Cursor):
    """Builds a tree, and counts how large and how deep it grows."""

    def __init__(self, source: SourceText, tokens: list[Token]) -> None:
        super().__init__(source, tokens)
        self.nodes = self.depth = 0

    def end(self) -> None:
        if self.here.kind in ("name", "number", "(", "["):
            raise self.wrong(f"expected an operator before '{self.here.text}', such as * or @.")
        if self.here.kind != "end":
            raise self.wrong(f"'{self.here.text}' does not fit here.")

    def expect(self, sign: str) -> None:
        if not self.take_if(sign):
            raise self.wrong(f"expected '{sign}', got {_shown(self.here)}.")

    def node(self, head: str, *below: Node, value: Any = None, position: int = 0) -> Node:
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise self.wrong(f"the expression has more than {MOST_NODES} parts; write some of it in a line of its own.")
        return Node(head, below, value, position)

    def expression(self) -> Node:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise self.wrong(f"brackets are nested more than {MOST_DEPTH} deep.")
        node = self.product()
        while sign := self.take_if("+", "-"):
            node = self.node(sign.text, node, self.product())
        self.depth -= 1
        return node

    def product(self) -> Node:
        node = self.unary()
        while sign := self.take_if("*", "/", "@"):
            node = self.node(sign.text, node, self.unary())
        return node

    def unary(self) -> Node:
        flips = 0
        while self.take_if("-"):
            flips += 1
        node = self.atom()
        while sign := self.take_if("^", ".T", "[", "."):
            if sign.text == ".":  # a.dot(b) is dot(a, b)
                token = self.take()
                function = OTHER_NAMES.get(token.text, token.text)
                if function not in {*ARGUMENTS, *SIGNS}:
                    raise self.wrong(unknown("function", token.text, (*ARGUMENTS, *SIGNS)), token)
                node = self.call(function, [node])
            elif sign.text == ".T" or (sign.text == "^" and (self.here.kind, self.here.text) == ("name", "T")):
                if sign.text == "^":
                    self.take()
                node = self.node(".T", node)
            elif sign.text == "^":
                node = self.node("^", node, value=self.exponent())
            else:
                ranges = [self.range()]
                while self.take_if(","):
                    ranges.append(self.range())
                self.expect("]")
                if len(ranges) > MOST_AXES:
                    raise self.wrong(f"a value has at most {MOST_AXES} axes.", sign)
                node = self.node("slice", node, value=(*ranges, (None, None)) if len(ranges) == 1 else tuple(ranges))
        return self.node("-", node) if flips % 2 else node

    def exponent(self) -> float:
        bracket = self.take_if("(")
        minus, token = self.take_if("-"), self.take()
        half = bracket and self.take_if("/") and self.take()
        value = float(token.text) if token.kind == "number" and len(token.text) <= 4 else MOST_POWER + 1
        if half:
            value = value / 2 if half.text == "2" else MOST_POWER + 1
        if value > MOST_POWER or value * 2 % 1:
            said = f"an exponent is a whole or half number from -{MOST_POWER} to {MOST_POWER}, not '{token.text}'."
            raise self.wrong(said, token)
        if bracket:
            self.expect(")")
        value = int(value) if value % 1 == 0 else value
        return -value if minus else value

    def range(self) -> tuple[int | str | None, ...]:
        ends: list[int | str | None] = []
        for last in (False, True):
            token = self.take_if("name", "number")
            if token and token.kind == "number" and (not token.text.isdecimal() or len(token.text) > 3):
                raise self.wrong(f"expected a small whole number or the name of a size, not '{token.text}'.", token)
            ends.append(int(token.text) if token and token.kind == "number" else token and token.text)
            if not last:
                self.expect(":")
        return tuple(ends)

    def atom(self) -> Node:
        token = self.take()
        match token.kind:
            case "number":
                return self.node("number", value=token.text)
            case "[":
                parts = [self.expression()]
                while self.take_if(";", ","):
                    parts.append(self.expression())
                self.expect("]")
                return self.counted("concat", parts, token)
            case "(":
                node = self.expression()
                if sign := self.take_if(">", "<"):
                    self.take_if("=")  # at random values >= is >
                    node = self.node(sign.text, node, self.expression())
                self.expect(")")
                return node
            case "name":
                function = OTHER_NAMES.get(token.text, token.text)
                if function in ARGUMENTS and self.take_if("^"):  # tanh²(c) is tanh(c)²
                    exponent = self.exponent()
                    return self.node("^", self.call(function), value=exponent)
                if self.take_if("'"):
                    return self.derivative(function, token)
                if self.here.kind == "(":
                    if function not in {*ARGUMENTS, *SIGNS}:
                        raise self.wrong(unknown("function", token.text, ARGUMENTS), token)
                    return self.call(function)
                if token.text in ARGUMENTS:
                    raise self.wrong(f"'{function}' is a function; write {function}(…).", token)
                return self.node("name", value=token.text, position=token.position)
        raise self.wrong(f"expected a value, got {_shown(token)}.", token)

    def derivative(self, function: str, at: Token) -> Node:
        """The derivative of an elementwise function, as in tanh'(z), written out."""
        if function not in _DERIVATIVES:
            raise self.wrong(f"'{at.text}' has no derivative here; known: {', '.join(_DERIVATIVES)}.", at)
        (argument,) = self.call(function).below
        written_out = _EquationParser(
            self.source, derivation_tokens(SourceText(_DERIVATIVES[function], ""))
        ).expression()
        for _ in subtrees(written_out):  # they count as parts of the expression
            self.node("name")
        return substituted(written_out, {"u": argument})

    def call(self, function: str, arguments: list[Node] | None = None) -> Node:
        """A function of what is in the bracket that follows, after the arguments that it has already."""
        opening, arguments, value = self.here, arguments or [], None
        self.expect("(")
        if function == "einsum":
            if self.here.kind != "string" or not _EINSUM.fullmatch(self.here.text):
                raise self.wrong(
                    "einsum begins with its letters, one to four a value, as in einsum('bi,bj->ij', a, b)."
                )
            value = self.take().text
            self.expect(",")
        if arguments and function == "transpose":  # a.transpose() or a.transpose(1, 0)
            while self.here.kind in ("number", "-"):
                self.axis()
                self.take_if(",")
        elif not (arguments and function in ALONG):  # of a.sum(axis=0) and a.sum(0) the axis is read below
            arguments.append(self.expression())
            if self.here.kind != ")" and not self.take_if(",", ";"):
                self.expect(")")
        while self.here.kind != ")":
            if function not in ALONG:
                arguments.append(self.expression())
            elif self.here.text in ("keepdim", "keepdims"):  # sums keep their rows and columns anyway
                self.take()
                self.expect("=")
                self.take_if("name")
            else:
                if self.here.text in ("axis", "dim"):
                    self.take()
                    self.expect("=")
                several = self.take_if("(")
                axes = [self.axis()]
                while several and self.take_if(","):
                    axes.append(self.axis())
                if several:
                    self.expect(")")
                value = axes[0] if len(axes) == 1 else tuple(axes)
            if not self.take_if(",", ";"):
                break
        self.expect(")")
        if function in SIGNS:
            sign, count = SIGNS[function]
            if len(arguments) != count:
                raise self.wrong(f"{function} takes {count} values, not {len(arguments)}.", opening)
            return self.node(sign, *arguments)
        if function == "einsum":
            return self.subscripts(str(value or ""), arguments, opening)
        return self.counted(function, arguments, opening, value)

    def axis(self) -> int:
        last, token = self.take_if("-"), self.take()
        if token.text not in map(str, range(1 if last else 0, MOST_AXES)):
            raise self.wrong(f"an axis is 0 (down the rows) or 1 (along them), not '{token.text}'.", token)
        return -int(token.text) if last else int(token.text)

    def subscripts(self, letters: str, arguments: list[Node], at: Token) -> Node:
        """An einsum whose letters fit its values."""
        sides, _, out = letters.partition("->")
        given = sides.split(",")
        if any(len(set(side)) < len(side) for side in (*given, out)) or not set(out) <= {*sides}:
            raise self.wrong("in an einsum each value has its letters once, and the result only letters of theirs.", at)
        if len(given) != len(arguments):
            raise self.wrong(f"einsum('{letters}') takes {len(given)} values, not {len(arguments)}.", at)
        return self.node("einsum", *arguments, value=letters)

    def counted(self, function: str, arguments: list[Node], at: Token, axis: Any = None) -> Node:
        fewest, most = ARGUMENTS[function]
        if not fewest <= len(arguments) <= most:
            wanted = str(most) if fewest == most else f"{fewest} to {most}"
            raise self.wrong(f"{function} takes {wanted} values, not {len(arguments)}.", at)
        return self.node(function, *arguments, value=axis)


def _shown(token: Token) -> str:
    return token.text if token.kind == "end" else f"'{token.text}'"


PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "@": 2, ">": 5, "<": 5}
_UNARY, _POSTFIX = 3, 4


def written(node: Node) -> str:
    """A tree in the language it was read from, with no bracket that is not needed.

    >>> written(join("*", variable("h"), join("-", Node("number", value="1"), variable("h"))))
    'h * (1 - h)'
    """
    match node:
        case Node("number" | "name", _, text):
            return text
        case Node("-", (inner,)):
            return f"-{_bracketed(inner, _UNARY)}"
        case Node(">" | "<" as sign, (left, right)):  # which has its brackets always
            return f"({written(left)} {sign} {written(right)})"
        case Node(sign, (left, right)) if node.joins:
            level = PRECEDENCE[sign]
            associative = right.joins and right.head == sign and sign in "+*"
            return f"{_bracketed(left, level)} {sign} {_bracketed(right, level + (not associative))}"
        case Node("^", (inner,), exponent):
            return f"{_bracketed(inner, _POSTFIX)}^{exponent if exponent % 1 == 0 else f'({exponent})'}"
        case Node(".T", (inner,)):
            return f"{_bracketed(inner, _POSTFIX)}.T"
        case Node("slice", (inner,), ranges):
            axes = [":".join("" if end is None else str(end) for end in ends) for ends in ranges]
            while len(axes) > 1 and axes[-1] == ":":
                axes.pop()
            return f"{_bracketed(inner, _POSTFIX)}[{', '.join(axes)}]"
        case Node("einsum", arguments, letters):
            return f"einsum({', '.join([repr(letters), *map(written, arguments)])})"
        case Node("concat", arguments):
            return f"[{'; '.join(map(written, arguments))}]"
        case Node(function, arguments, axis):
            along = "" if axis is None else f", axis={axis}"
            return f"{function}({', '.join(map(written, arguments))}{along})"


def _bracketed(node: Node, level: int) -> str:
    if node.joins:
        binds = PRECEDENCE[node.head]
    else:
        binds = _UNARY if node.head == "-" or (node.head == "^" and level == _UNARY) else _POSTFIX
    return written(node) if binds >= level else f"({written(node)})"


Shape = tuple[int, ...]
MOST_ELEMENTS = 20_000
"""No value may grow beyond this; the values of a cell are far smaller."""
_EACH = {
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


class UnfitError(ValueError):
    """Values that an operation cannot take: the operation with `{}` where the shapes belong, and the shapes."""

    def __init__(self, operation: str, *shapes: Shape) -> None:
        super().__init__(operation, shapes)
        self.operation, self.shapes = operation, shapes


class TooMuchWork(InputError):
    """An answer that takes more operations to evaluate than its budget has."""


class WorkBudget:
    """Operations that evaluating expressions may still take; `with budget:` makes every evaluation draw from it.

    An operation is about 15 microseconds: one operation on a small value, or a part of one on a large value. Budgets
    nest: what is spent inside is spent of all around it.
    """

    def __init__(self, operations: int) -> None:
        self.left = operations
        self._outer: WorkBudget | None = None

    def __enter__(self) -> "WorkBudget":
        self._outer = _BUDGET.get()
        _BUDGET.set(self)
        return self

    def __exit__(self, *exception: object) -> None:
        _BUDGET.set(self._outer)

    def spend(self, operations: int) -> None:
        """Take operations from this budget and from all around it."""
        self.left -= operations
        if self.left < 0:
            raise TooMuchWork("This takes too much work to evaluate. Use smaller values and fewer lines.")
        if self._outer is not None:
            self._outer.spend(operations)


@contextmanager
def limited_work(operations: int) -> Iterator[None]:
    """Give what is evaluated inside, or each call of a function that this decorates, a budget of its own."""
    with WorkBudget(operations):
        yield


_BUDGET: ContextVar[WorkBudget | None] = ContextVar("budget of evaluations", default=None)
_PRODUCTS, _EINSUM_PRODUCTS, _FUNCTION_VALUES, _VALUES = 25_000, 500, 1_500, 10_000
"""Products of a matrix product and of an einsum, values of a function, and other values that cost one operation."""


def _extra_operations(node: Node, below: Sequence[Tensor], value: Tensor) -> int:
    """Return how many operations a node costs beyond one, by the sizes of its values."""
    if node.head == "@":
        return value.numel() * below[0].shape[-1] // _PRODUCTS
    if node.head == "einsum":
        lengths: dict[str, int] = {}
        for side, argument in zip(str(node.value).partition("->")[0].split(","), below, strict=True):
            lengths |= zip(side, argument.shape if len(side) > 1 else (argument.numel(),), strict=True)
        return 4 + prod(lengths.values()) // _EINSUM_PRODUCTS
    if node.head in ARGUMENTS or node.head == "^":
        return max(value.numel(), *(one.numel() for one in below)) // _FUNCTION_VALUES
    return value.numel() // _VALUES


def joined(sign: str, left: Tensor, right: Tensor) -> Tensor:
    """Two values joined by a sign.

    A number, or a row or column as long as the other value, is spread over the other value. A row and a column are
    not spread over each other: who means the outer product says so.
    """
    axes = max(left.ndim, right.ndim)
    ours, theirs = ((1,) * (axes - value.ndim) + tuple(value.shape) for value in (left, right))
    pairs = list(zip(ours, theirs, strict=True))
    if sign == "@":
        fits = min(left.ndim, right.ndim) >= 2 and left.shape[-1] == right.shape[-2]
        fits = fits and all(1 in (a, b) or a == b for a, b in pairs[:-2])
    else:
        fits = 0 in (left.ndim, right.ndim) or all(b in (1, a) for a, b in pairs) or all(a in (1, b) for a, b in pairs)
    if not fits:
        raise UnfitError(f"{{}} {sign} {{}}", left.shape, right.shape)
    if sign == "@":
        _check_size(prod(max(pair) for pair in pairs[:-2]) * left.shape[-2] * right.shape[-1])
        return left @ right
    if sign in "<>":
        return (left > right if sign == ">" else left < right).double()
    return {"+": torch.add, "-": torch.sub, "*": torch.mul, "/": torch.div}[sign](left, right)


def called(function: str, arguments: list[Tensor], value: Any) -> Tensor:
    """A function of the language applied to values; `value` is its axis, or the letters of an einsum."""
    first, counts = arguments[0], [argument.numel() for argument in arguments]
    grows = {"diag": counts[0] ** 2, "outer": prod(counts), "concat": sum(counts)}
    _check_size(grows.get(function, counts[0]))
    if function in _EACH:
        return _EACH[function](first)
    if function in ("sum", "mean") and value is None:
        return first.sum() if function == "sum" else first.mean()
    if function == "maximum":
        joined("+", *arguments)  # whether they fit
        return torch.maximum(*arguments)
    axes: tuple[int, ...] = value if isinstance(value, tuple) else (value,) if isinstance(value, int) else ()
    if function in ALONG and (first.ndim < 2 or not all(-first.ndim <= axis < first.ndim for axis in axes)):
        raise UnfitError(f"{function} of {{}}", first.shape)
    if len({axis % first.ndim for axis in axes}) < len(axes):
        raise UnfitError(f"{function} of {{}} along one axis twice", first.shape)
    if function in ("diag", "outer"):
        for argument in arguments:
            if argument.ndim != 2 or 1 not in argument.shape:
                raise UnfitError(f"{function} of {{}}, which is not a row or column", argument.shape)
    match function:
        case "sum":
            return first.sum(value, keepdim=True)
        case "mean":
            return first.mean(value, keepdim=True)
        case "softmax":  # of a row or of a column, or of each row of a matrix, unless an axis is given
            column = first.ndim == 2 and first.shape[1] == 1
            return first.softmax(axes[0] if axes else 0 if column else -1)
        case "diag":
            return torch.diag(first.flatten())
        case "outer":
            return torch.outer(*(argument.flatten() for argument in arguments))
        case "einsum":
            return _einsum(str(value), arguments)
    for along in (0, 1):  # columns stacked upon each other, or rows put side by side
        if all(argument.ndim == 2 and argument.shape[1 - along] == 1 for argument in arguments):
            return torch.cat(arguments, along)
    for along in (1, 0):  # matrices of as many rows side by side, as heads are
        flat = all(argument.ndim == 2 for argument in arguments)
        if flat and len({argument.shape[1 - along] for argument in arguments}) == 1:
            return torch.cat(arguments, along)
    raise UnfitError(f"[{'; '.join('{}' for _ in arguments)}]", *(argument.shape for argument in arguments))


def _einsum(letters: str, arguments: list[Tensor]) -> Tensor:
    """A sum of products by letters; a value with one letter is a row or a column, and a result of one is alike."""
    sides, _, out = letters.partition("->")
    unfit = UnfitError(
        f"einsum('{letters}') of {', '.join('{}' for _ in arguments)}", *(one.shape for one in arguments)
    )
    values, lengths, row = list[Tensor](), dict[str, int](), False
    for side, argument in zip(sides.split(","), arguments, strict=True):
        if argument.ndim != max(len(side), 2) or (len(side) == 1 and 1 not in argument.shape):
            raise unfit
        row |= len(side) == 1 and argument.shape[0] == 1
        values.append(argument.flatten() if len(side) == 1 else argument)
        if any(lengths.setdefault(letter, size) != size for letter, size in zip(side, values[-1].shape, strict=True)):
            raise unfit
    _check_size(prod(lengths[letter] for letter in out))
    if prod(lengths.values()) > MOST_ELEMENTS * 50:
        raise UnfitError("an einsum of too many products")
    result = torch.einsum(letters, *values)
    return result if len(out) != 1 else result[None] if row else result[:, None]


def _check_size(elements: int) -> None:
    if elements > MOST_ELEMENTS:
        raise UnfitError(f"a value of {elements} elements, which is too large")


class Evaluator:
    """Evaluates expressions where names have given values, and counts its operations.

    A value is a number, a column (n, 1), a row (1, n), a matrix, or a batch of matrices, in float64.
    """

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        self.values, self.operations = values, 0
        self._budget = _BUDGET.get()
        self._remembered: dict[int, tuple[Node, Tensor]] = {}

    def remember(self, node: Node) -> None:
        """Keep the values of a tree's nodes: another tree that holds some of them then costs only the rest."""
        for child in node.below:
            self.remember(child)
        try:
            self._remembered[id(node)] = (node, self(node))  # the node is held too, so that its id stays its own
        except UnfitError:
            return

    def __call__(self, node: Node) -> Tensor:
        """The value of a node; an `UnfitError` if its shapes do not fit."""
        if id(node) in self._remembered:
            return self._remembered[id(node)][1]
        self._spend(1)  # also where the shapes do not fit
        below = [self(child) for child in node.below]
        value = self._apply(node, below)
        self._spend(_extra_operations(node, below, value))
        return value

    def _spend(self, operations: int) -> None:
        self.operations += operations
        if operations and self._budget is not None:
            self._budget.spend(operations)

    def _apply(self, node: Node, below: list[Tensor]) -> Tensor:
        if node.head == "number":
            return tensor(float(node.value), dtype=float64)
        if node.head == "name":
            return self.values[node.value]
        first, *others = below
        match node.head:
            case "-" if not others:
                return -first
            case sign if node.joins:
                return joined(sign, *below)
            case "^":
                return first**node.value
            case ".T":
                return first.mT if first.ndim else first
            case "slice":
                if first.ndim < len(node.value):
                    raise UnfitError("a slice of {}", first.shape)
                ends = [[int(self.values[end]) if isinstance(end, str) else end for end in of] for of in node.value]
                part = first[tuple(slice(*pair) for pair in ends)]
                if part.numel() == 0:
                    raise UnfitError("an empty slice of {}", first.shape)
                return part
            case function:
                return called(function, below, node.value)
