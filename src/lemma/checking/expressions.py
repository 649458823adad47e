"""The small language of gradient derivations: parsed, evaluated, written back."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, float64, tensor

from lemma.checking.tokens import Cursor, SourceText, Token, derivation_tokens
from lemma.errors import unknown

Bound = int | str | None
"""One end of a slice: a number, the name of a size, or nothing."""
Range = tuple[Bound, Bound]
Path = tuple[int, ...]
"""The way from the root to a node: which child to take at each step."""
WHOLE: Range = (None, None)


@dataclass(frozen=True)
class Number:
    """A number as it was written."""

    text: str


@dataclass(frozen=True)
class Name:
    """A named value and its position in the line."""

    name: str
    position: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Negative:
    """A value with its sign flipped."""

    inner: "Node"


@dataclass(frozen=True)
class Binary:
    """Two values joined by one of + - * / @."""

    sign: str
    left: "Node"
    right: "Node"


@dataclass(frozen=True)
class Power:
    """A value to a small integer power, element by element."""

    inner: "Node"
    exponent: int


@dataclass(frozen=True)
class Transpose:
    """A transposed value."""

    inner: "Node"


@dataclass(frozen=True)
class Call:
    """A function of the language, and the axis it works along where that is given."""

    function: str
    arguments: "tuple[Node, ...]"
    axis: int | None = None


@dataclass(frozen=True)
class Slice:
    """Some rows and columns of a value."""

    inner: "Node"
    rows: Range
    columns: Range


Node = Number | Name | Negative | Binary | Power | Transpose | Call | Slice


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly below a node."""
    match node:
        case Number() | Name():
            return ()
        case Binary(_, left, right):
            return (left, right)
        case Call(_, arguments):
            return arguments
        case _:
            return (node.inner,)


def with_children(node: Node, below: tuple[Node, ...]) -> Node:
    """The same node above other children."""
    match node:
        case Number() | Name():
            return node
        case Binary(sign):
            return Binary(sign, *below)
        case Call():
            return replace(node, arguments=below)
        case _:
            return replace(node, inner=below[0])


def subtrees(node: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """Every node of a tree with the way to it, the root first."""
    yield path, node
    for index, child in enumerate(children(node)):
        yield from subtrees(child, (*path, index))


def put(node: Node, path: Path, new: Node) -> Node:
    """The tree with another node at the end of a path.

    >>> put(Binary("-", Number("1"), Name("h")), (1,), Number("2"))
    Binary(sign='-', left=Number(text='1'), right=Number(text='2'))
    """
    if not path:
        return new
    below = list(children(node))
    below[path[0]] = put(below[path[0]], path[1:], new)
    return with_children(node, tuple(below))


def substituted(node: Node, meaning: Mapping[str, Node]) -> Node:
    """The tree with some names replaced by what they stand for."""
    if isinstance(node, Name):
        return meaning.get(node.name, node)
    return with_children(node, tuple(substituted(child, meaning) for child in children(node)))


def names(node: Node) -> set[str]:
    """The names that occur in a tree."""
    return {below.name for _, below in subtrees(node) if isinstance(below, Name)}


def is_larger(node: Node, most: int) -> bool:
    """Whether a tree has more nodes than that; it counts no further."""
    return next(islice(subtrees(node), most, None), None) is not None


def factors(node: Node) -> list[Node]:
    """The factors of a chain of elementwise products, from left to right.

    >>> [factor.text for factor in factors(Binary("*", Binary("*", Number("1"), Number("2")), Number("3")))]
    ['1', '2', '3']
    """
    if isinstance(node, Binary) and node.sign == "*":
        return factors(node.left) + factors(node.right)
    return [node]


def product(parts: list[Node]) -> Node:
    """The elementwise product of one or more factors."""
    result = parts[0]
    for part in parts[1:]:
        result = Binary("*", result, part)
    return result


# Reading `name = expression` lines; nothing that is read is ever executed.
#
# expression  product (('+' | '-') product)*
# product     unary (('*' | '/' | '@') unary)*
# unary       '-' unary | postfix
# postfix     atom ('^' integer | '.T' | '^T' | '[' rows [',' columns] ']')*
# atom        number | name | function(expression, …[, axis=0 or 1]) | [expression; …] | (expression)


ARGUMENTS = {
    **dict.fromkeys(("sigmoid", "tanh", "exp", "log", "sqrt", "relu", "softmax", "sum", "diag", "ones"), (1, 1)),
    "outer": (2, 2),
    "concat": (2, 8),
}
"""The functions of the language with the fewest and the most arguments each takes."""
OTHER_NAMES = {"sigma": "sigmoid", "stack": "concat", "ln": "log"}
WITH_AXIS = ("softmax", "sum")
MOST_NODES, MOST_DEPTH, MOST_POWER = 200, 40, 6


@dataclass(frozen=True)
class Equation:
    """A line that a person wrote: the name on its left with its position, and the expression on its right."""

    name: str
    position: int
    expression: Node


def parse_equation(line: str, place: str = "line 1") -> Equation:
    """Read `name = expression`.

    >>> parse_equation("dh = δ2 Uᵀ")
    Traceback (most recent call last):
    lemma.errors.InputError: line 1, column 9: expected an operator before 'U', such as * or @.
        dh = δ2 Uᵀ
                ^
    """
    source = SourceText(line, f"{place}, column")
    parser = _EquationParser(source, derivation_tokens(source))
    name = parser.take()
    if name.kind != "name" or not parser.take_if("="):
        raise parser.wrong("expected 'name = expression', such as dz = y_hat - y.", name)
    expression = parser.expression()
    if parser.here.kind in ("name", "number"):
        raise parser.wrong(f"expected an operator before '{parser.here.text}', such as * or @.")
    if parser.here.kind != "end":
        raise parser.wrong(f"'{parser.here.text}' does not fit here.")
    return Equation(name.text, name.position, expression)


class _EquationParser(Cursor):
    """Builds a tree, and counts how large and how deep it grows."""

    def __init__(self, source: SourceText, tokens: list[Token]) -> None:
        super().__init__(source, tokens)
        self.nodes = self.depth = 0

    def expect(self, sign: str) -> None:
        if not self.take_if(sign):
            raise self.wrong(f"expected '{sign}', got {_shown(self.here)}.")

    def grow(self, node: Node) -> Node:
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise self.wrong(f"the expression has more than {MOST_NODES} parts; write some of it in a line of its own.")
        return node

    def expression(self) -> Node:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise self.wrong(f"brackets are nested more than {MOST_DEPTH} deep.")
        node = self.product()
        while sign := self.take_if("+", "-"):
            node = self.grow(Binary(sign.text, node, self.product()))
        self.depth -= 1
        return node

    def product(self) -> Node:
        node = self.unary()
        while sign := self.take_if("*", "/", "@"):
            node = self.grow(Binary(sign.text, node, self.unary()))
        return node

    def unary(self) -> Node:
        flips = 0
        while self.take_if("-"):
            flips += 1
        node = self.postfix()
        return self.grow(Negative(node)) if flips % 2 else node

    def postfix(self) -> Node:
        node = self.atom()
        while sign := self.take_if("^", ".T", "["):
            node = self.grow(self.after(node, sign.text))
        return node

    def after(self, node: Node, sign: str) -> Node:
        if sign == "^" and (self.here.kind, self.here.text) == ("name", "T"):
            sign = self.take().text
        match sign:
            case ".T" | "T":
                return Transpose(node)
            case "^":
                return Power(node, self.exponent())
            case _:
                rows = self.range()
                columns = self.range() if self.take_if(",") else WHOLE
                self.expect("]")
                return Slice(node, rows, columns)

    def exponent(self) -> int:
        bracket = self.take_if("(")
        minus, token = self.take_if("-"), self.take()
        if token.kind != "number" or not token.text.isdecimal() or len(token.text) > 3 or int(token.text) > MOST_POWER:
            raise self.wrong(
                f"an exponent is an integer from -{MOST_POWER} to {MOST_POWER}, not '{token.text}'.", token
            )
        if bracket:
            self.expect(")")
        return -int(token.text) if minus else int(token.text)

    def range(self) -> Range:
        start = self.bound()
        self.expect(":")
        return start, self.bound()

    def bound(self) -> Bound:
        token = self.take_if("name", "number")
        if token is None or token.kind == "name":
            return token and token.text
        if not token.text.isdecimal() or len(token.text) > 3:
            raise self.wrong(f"expected a small whole number or the name of a size, not '{token.text}'.", token)
        return int(token.text)

    def atom(self) -> Node:
        token = self.take()
        match token.kind:
            case "number":
                return self.grow(Number(token.text))
            case "name":
                return self.name_or_call(token)
            case "[":
                parts = [self.expression()]
                while self.take_if(";", ","):
                    parts.append(self.expression())
                self.expect("]")
                return self.counted("concat", parts, token)
            case "(":
                node = self.expression()
                self.expect(")")
                return node
        raise self.wrong(f"expected a value, got {_shown(token)}.", token)

    def name_or_call(self, token: Token) -> Node:
        function = OTHER_NAMES.get(token.text, token.text)
        if function in ARGUMENTS and self.take_if("^"):  # tanh²(c) is tanh(c)²
            exponent = self.exponent()
            return self.grow(Power(self.call(function), exponent))
        if self.here.kind == "(":
            if function not in ARGUMENTS:
                raise self.wrong(unknown("function", token.text, ARGUMENTS), token)
            return self.call(function)
        if token.text in ARGUMENTS:
            raise self.wrong(f"'{function}' is a function; write {function}(…).", token)
        return self.grow(Name(token.text, token.position))

    def call(self, function: str) -> Node:
        opening = self.here
        self.expect("(")
        arguments, axis = [self.expression()], None
        while axis is None and self.take_if(",", ";"):
            if function in WITH_AXIS:
                axis = self.axis()
            else:
                arguments.append(self.expression())
        self.expect(")")
        return self.counted(function, arguments, opening, axis)

    def counted(self, function: str, arguments: list[Node], at: Token, axis: int | None = None) -> Node:
        fewest, most = ARGUMENTS[function]
        if not fewest <= len(arguments) <= most:
            wanted = str(most) if fewest == most else f"{fewest} to {most}"
            raise self.wrong(f"{function} takes {wanted} values, not {len(arguments)}.", at)
        return self.grow(Call(function, tuple(arguments), axis))

    def axis(self) -> int:
        if (self.here.kind, self.here.text) == ("name", "axis"):
            self.take()
            self.expect("=")
        token = self.take()
        if token.text not in ("0", "1"):
            raise self.wrong(f"an axis is 0 (down the rows) or 1 (along them), not '{token.text}'.", token)
        return int(token.text)


def _shown(token: Token) -> str:
    return token.text if token.kind == "end" else f"'{token.text}'"


# Writing a tree back in the language it was read from.

PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "@": 2}
_UNARY, _POSTFIX = 3, 4


def written(node: Node) -> str:
    """A tree in the language it was read from, with no bracket that is not needed.

    >>> written(Binary("*", Name("h"), Binary("-", Number("1"), Name("h"))))
    'h * (1 - h)'
    """
    match node:
        case Number(text):
            return text
        case Name(name):
            return name
        case Negative(inner):
            return f"-{_bracketed(inner, _UNARY)}"
        case Binary(sign, left, right):
            level = PRECEDENCE[sign]
            associative = isinstance(right, Binary) and right.sign == sign and sign in "+*"
            return f"{_bracketed(left, level)} {sign} {_bracketed(right, level + (not associative))}"
        case Power(inner, exponent):
            return f"{_bracketed(inner, _POSTFIX)}^{exponent}"
        case Transpose(inner):
            return f"{_bracketed(inner, _POSTFIX)}.T"
        case Slice(inner):
            return f"{_bracketed(inner, _POSTFIX)}[{_ranges(node)}]"
        case Call("concat", arguments):
            return f"[{'; '.join(map(written, arguments))}]"
        case Call(function, arguments, axis):
            along = "" if axis is None else f", axis={axis}"
            return f"{function}({', '.join(map(written, arguments))}{along})"


def _ranges(node: Slice) -> str:
    spelled = [":".join("" if end is None else str(end) for end in ends) for ends in (node.rows, node.columns)]
    return spelled[0] if node.columns == WHOLE else ", ".join(spelled)


def _bracketed(node: Node, level: int) -> str:
    match node:
        case Binary(sign):
            binds = PRECEDENCE[sign]
        case Negative():
            binds = _UNARY
        case Power():
            binds = _UNARY if level == _UNARY else _POSTFIX
        case _:
            binds = _POSTFIX
    return written(node) if binds >= level else f"({written(node)})"


# What the signs and functions of the language do to values, and which shapes they take.

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
    both = left.ndim == right.ndim == 2
    if sign == "@":
        fits = both and left.shape[1] == right.shape[0]
    else:
        fits = not both or _covers(left, right) or _covers(right, left)
    if not fits:
        raise UnfitError(f"{{}} {sign} {{}}", shape(left), shape(right))
    if sign == "@":
        _check_size(left.shape[0] * right.shape[1])
        return left @ right
    return _JOIN[sign](left, right)


def called(function: str, arguments: list[Tensor], axis: int | None) -> Tensor:
    """A function of the language applied to values."""
    first, counts = arguments[0], [argument.numel() for argument in arguments]
    grows = {"diag": counts[0] ** 2, "outer": prod(counts), "concat": sum(counts)}
    _check_size(grows.get(function, counts[0]))
    if function in _EACH:
        return _EACH[function](first)
    match function:
        case "sum" if axis is None:
            return first.sum()
        case "sum":
            return _grid(function, first).sum(axis, keepdim=True)
        case "softmax":  # of a row or of a column, or of each row of a matrix, unless an axis is given
            usual = 0 if _grid(function, first).shape[1] == 1 else 1
            return first.softmax(usual if axis is None else axis)
        case "diag":
            return torch.diag(_flat(function, first))
        case "outer":
            return torch.outer(*(_flat(function, argument) for argument in arguments))
        case _:  # columns stacked upon each other, or rows put side by side
            shapes = [shape(argument) for argument in arguments]
            for along in (0, 1):
                if all(len(each) == 2 and each[1 - along] == 1 for each in shapes):
                    return torch.cat(arguments, along)
            raise UnfitError(f"[{'; '.join('{}' for _ in shapes)}]", *shapes)


def _covers(large: Tensor, small: Tensor) -> bool:
    return all(length in (1, full) for full, length in zip(large.shape, small.shape, strict=True))


def _grid(function: str, value: Tensor) -> Float[Tensor, "rows columns"]:
    if value.ndim != 2:
        raise UnfitError(f"{function} of {{}}", shape(value))
    return value


def _flat(function: str, value: Tensor) -> Float[Tensor, " length"]:
    if value.ndim != 2 or 1 not in value.shape:
        raise UnfitError(f"{function} of {{}}, which is not a row or column", shape(value))
    return value.flatten()


def _check_size(elements: int) -> None:
    if elements > MOST_ELEMENTS:
        raise UnfitError(f"a value of {elements} elements, which is too large")


# The value of an expression: a number, a column (n, 1), a row (1, n) or a matrix, in float64.


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

    def _sliced(self, value: Tensor, *ranges: Range) -> Tensor:
        if value.ndim == 0:
            raise UnfitError("a slice of {}", shape(value))
        ends = ((int(self.values[end]) if isinstance(end, str) else end for end in each) for each in ranges)
        part = value[tuple(slice(start, stop) for start, stop in ends)]
        if part.numel() == 0:
            raise UnfitError("an empty slice of {}", shape(value))
        return part
