"""Reading `name = expression` lines; nothing that is read is ever executed.

expression  product (('+' | '-') product)*
product     unary (('*' | '/' | '@') unary)*
unary       '-' unary | postfix
postfix     atom ('^' integer | '.T' | '^T' | '[' rows [',' columns] ']')*
atom        number | name | function(expression, …[, axis=0 or 1]) | [expression; …] | (expression)
"""

from dataclasses import dataclass
from typing import NoReturn

from lemma.errors import unknown
from lemma.ledger.gradients.tokens import Token, tokens, unreadable
from lemma.ledger.gradients.tree import (
    WHOLE,
    Binary,
    Bound,
    Call,
    Name,
    Negative,
    Node,
    Number,
    Power,
    Range,
    Slice,
    Transpose,
)

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
