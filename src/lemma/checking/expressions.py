"""The small language of gradient derivations: parsed, evaluated, written back."""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from math import prod
from typing import NoReturn

import torch
from jaxtyping import Float
from torch import Tensor, float64, tensor

from lemma.errors import InputError, unknown

# The syntax tree of an expression: its nodes, and how one of them is replaced.


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
    """A named value and the column it stands in."""

    name: str
    column: int = field(default=0, compare=False)


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


def substituted(node: Node, meaning: "dict[str, Node]") -> Node:
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


# Cutting a line into tokens: numbers, names in any of their spellings, and signs.


SIGNS = {
    **dict.fromkeys("−–—", "-"),
    **dict.fromkeys("∗·⋅⊙×∘", "*"),
    "**": "^",
}
"""Other ways to write a sign: minus signs and dashes, the elementwise products, Python's power."""
ACCENTS = {"\u0302": "_hat", "\u0303": "_tilde", "∂": "d"}
LONGEST = 40
"""The most characters of a single token."""
_LETTER = r"(?![ᵀ⁰-⁹¹²³])[^\W\d]"
_INSIDE = r"(?![ᵀ⁰-⁹¹²³])[\w\u0302\u0303]"
_TOKEN = re.compile(
    rf"""(?P<space>\s+)
    |(?P<number>(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    |(?P<name>(?:{_LETTER}|∂)(?:{_INSIDE})*(?:(?<=_)\{{[^{{}}]{{1,12}}\}})?)
    |(?P<superscript>[ᵀ²³])
    |(?P<sign>\*\*|\.T\b|[-+*/@^()\[\],;:=−–—∗·⋅⊙×∘])""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Token:
    """A piece of a line: what kind it is, its plain spelling, and the column it starts in."""

    kind: str
    text: str
    column: int


def tokens(line: str, place: str) -> list[Token]:
    """Cut a line into tokens; `place` says where the line stands, for errors.

    >>> [token.text for token in tokens("dΓ_f = da∗c_{t−1}", "line 1")]
    ['dGamma_f', '=', 'da', '*', 'c_prev']
    """
    found, position = [], 0
    while position < len(line):
        match = _TOKEN.match(line, position)
        if match is None:
            raise unreadable(place, position + 1, f"{line[position]!r} is not part of the language.")
        if match.lastgroup != "space" and match.end() - position > LONGEST:
            raise unreadable(place, position + 1, f"a name or number has at most {LONGEST} characters.")
        found += _token(match)
        position = match.end()
    return found


def unreadable(place: str, column: int, complaint: str) -> InputError:
    """An error that says where a line cannot be read."""
    return InputError(f"{place}, column {column}: {complaint}")


def plain_name(name: str) -> str:
    """The plain spelling of a name: Greek letters, accents and subscripts written out.

    >>> [plain_name(name) for name in ("ŷ", "δ₁", "c̃", "h_{t-1}", "dα", "a_t")]
    ['y_hat', 'delta1', 'c_tilde', 'h_prev', 'dalpha', 'a']
    """
    name = (
        name.replace("−", "-").replace("_{t-1}", "_prev").replace("_{t+1}", "_next").replace("{", "").replace("}", "")
    )
    letters = "".join(_spelled(letter) for letter in unicodedata.normalize("NFKD", name))
    return letters.removesuffix("_t") or letters


def _spelled(letter: str) -> str:
    if letter in ACCENTS:
        return ACCENTS[letter]
    greek = unicodedata.name(letter, "").split()
    if greek[:1] != ["GREEK"] or greek[-2:-1] != ["LETTER"]:
        return letter
    return greek[-1].capitalize() if letter.isupper() else greek[-1].lower()


def _token(match: re.Match[str]) -> list[Token]:
    kind, text, column = str(match.lastgroup), match.group(), match.start() + 1
    match kind:
        case "space":
            return []
        case "name":
            return [Token("name", plain_name(text), column)]
        case "superscript" if text == "ᵀ":
            return [Token("sign", ".T", column)]
        case "superscript":
            return [Token("sign", "^", column), Token("number", str(unicodedata.digit(text)), column)]
        case _:
            return [Token(kind, SIGNS.get(text, text), column)]


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
MOST_CHARACTERS, MOST_NODES, MOST_DEPTH, MOST_POWER = 2000, 200, 40, 6
_END = Token("end", "the end of the line", 0)


@dataclass(frozen=True)
class Equation:
    """A line that a person wrote: the name on its left and the expression on its right."""

    name: str
    column: int
    expression: Node


def parse_equation(line: str, place: str = "line 1") -> Equation:
    """Read `name = expression`.

    >>> parse_equation("dh = δ2 Uᵀ")
    Traceback (most recent call last):
    lemma.errors.InputError: line 1, column 9: expected an operator before 'U', such as * or @.
    """
    if len(line) > MOST_CHARACTERS:
        raise unreadable(place, MOST_CHARACTERS, f"a line has at most {MOST_CHARACTERS} characters, not {len(line)}.")
    reader = _Reader(tokens(line, place), place, len(line) + 1)
    name = reader.take()
    if name.kind != "name" or not reader.take_if("="):
        raise unreadable(place, name.column or 1, "expected 'name = expression', such as dz = y_hat - y.")
    expression = reader.expression()
    if reader.next is not _END:
        reader.fail_after_value()
    return Equation(name.text, name.column, expression)


class _Reader:
    """A place in a list of tokens, and how much of the tree is built."""

    def __init__(self, pieces: list[Token], place: str, end: int) -> None:
        self.pieces, self.place, self.end = pieces, place, end
        self.index = self.nodes = self.depth = 0

    @property
    def next(self) -> Token:
        return self.pieces[self.index] if self.index < len(self.pieces) else _END

    def take(self) -> Token:
        token = self.next
        self.index += 1
        return token

    def take_if(self, *texts: str) -> Token | None:
        return self.take() if self.next.kind == "sign" and self.next.text in texts else None

    def expect(self, text: str) -> None:
        if not self.take_if(text):
            self.fail(f"expected '{text}', got {self.shown()}.")

    def shown(self) -> str:
        return self.next.text if self.next is _END else f"'{self.next.text}'"

    def fail(self, complaint: str, at: Token | None = None) -> NoReturn:
        raise unreadable(self.place, (at or self.next).column or self.end, complaint)

    def fail_after_value(self) -> NoReturn:
        if self.next.kind == "sign":
            self.fail(f"'{self.next.text}' does not fit here.")
        self.fail(f"expected an operator before {self.shown()}, such as * or @.")

    def grow(self, node: Node) -> Node:
        self.nodes += 1
        if self.nodes > MOST_NODES:
            self.fail(f"the expression has more than {MOST_NODES} parts; write some of it in a line of its own.")
        return node

    def expression(self) -> Node:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            self.fail(f"brackets are nested more than {MOST_DEPTH} deep.")
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
        if sign == ".T" or (sign == "^" and self.take_transpose()):
            return Transpose(node)
        return Power(node, self.exponent()) if sign == "^" else self.slice(node)

    def take_transpose(self) -> bool:
        found = self.next.kind == "name" and self.next.text == "T"
        self.index += found
        return found

    def exponent(self) -> int:
        bracket = self.take_if("(")
        minus, token = self.take_if("-"), self.take()
        if token.kind != "number" or not token.text.isdecimal() or len(token.text) > 3 or int(token.text) > MOST_POWER:
            self.fail(f"an exponent is an integer from -{MOST_POWER} to {MOST_POWER}, not '{token.text}'.", token)
        if bracket:
            self.expect(")")
        return -int(token.text) if minus else int(token.text)

    def slice(self, node: Node) -> Slice:
        rows = self.range()
        columns = self.range() if self.take_if(",") else WHOLE
        self.expect("]")
        return Slice(node, rows, columns)

    def range(self) -> Range:
        start = self.bound()
        self.expect(":")
        return start, self.bound()

    def bound(self) -> Bound:
        if self.next.kind == "name":
            return self.take().text
        if self.next.kind != "number":
            return None
        token = self.take()
        if not token.text.isdecimal() or len(token.text) > 3:
            self.fail(f"expected a small whole number or the name of a size, not '{token.text}'.", token)
        return int(token.text)

    def atom(self) -> Node:
        token = self.take()
        if token.kind == "number":
            return self.grow(Number(token.text))
        if token.kind == "name":
            return self.name_or_call(token)
        if token.text == "[":
            return self.stack(token)
        if token.text != "(" or token is _END:
            self.fail(f"expected a value, got {token.text if token is _END else repr(token.text)}.", token)
        node = self.expression()
        self.expect(")")
        return node

    def name_or_call(self, token: Token) -> Node:
        function = OTHER_NAMES.get(token.text, token.text)
        if function in ARGUMENTS and self.take_if("^"):  # tanh²(c) is tanh(c)²
            exponent = self.exponent()
            return self.grow(Power(self.call(function), exponent))
        if self.next.kind == "sign" and self.next.text == "(":
            if function not in ARGUMENTS:
                self.fail(unknown("function", token.text, ARGUMENTS), token)
            return self.call(function)
        if token.text in ARGUMENTS:
            self.fail(f"'{function}' is a function; write {function}(…).", token)
        return self.grow(Name(token.text, token.column))

    def call(self, function: str) -> Node:
        opening = self.next
        self.expect("(")
        arguments, axis = [self.expression()], None
        while axis is None and self.take_if(",", ";"):
            if function in WITH_AXIS:
                axis = self.axis()
            else:
                arguments.append(self.expression())
        self.expect(")")
        self.check_count(function, len(arguments), opening)
        return self.grow(Call(function, tuple(arguments), axis))

    def check_count(self, function: str, count: int, at: Token) -> None:
        fewest, most = ARGUMENTS[function]
        if not fewest <= count <= most:
            wanted = str(most) if fewest == most else f"{fewest} to {most}"
            self.fail(f"{function} takes {wanted} values, not {count}.", at)

    def axis(self) -> int:
        if self.next.kind == "name" and self.next.text == "axis":
            self.take()
            self.expect("=")
        token = self.take()
        if token.text not in ("0", "1"):
            self.fail(f"an axis is 0 (down the rows) or 1 (along them), not '{token.text}'.", token)
        return int(token.text)

    def stack(self, opening: Token) -> Node:
        parts = [self.expression()]
        while self.take_if(";", ","):
            parts.append(self.expression())
        self.expect("]")
        self.check_count("concat", len(parts), opening)
        return self.grow(Call("concat", tuple(parts)))


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

    def _sliced(self, value: Tensor, rows: Range, columns: Range) -> Tensor:
        if value.ndim == 0:
            raise UnfitError("a slice of {}", shape(value))
        part = value[self._range(rows), self._range(columns)]
        if part.numel() == 0:
            raise UnfitError("an empty slice of {}", shape(value))
        return part

    def _range(self, ends: Range) -> slice:
        start, stop = (int(self.values[end]) if isinstance(end, str) else end for end in ends)
        return slice(start, stop)
