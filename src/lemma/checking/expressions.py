"""The small language of gradient derivations: parsing, writing and evaluating expressions."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import islice
from math import pi, prod, sqrt
from typing import Any

import torch
from torch import Tensor, float64, tensor

from lemma.checking.notation import INDICATOR
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


def walk_all(node: Node) -> list[Node]:
    """Return all nodes of an expression, those in the conditions of cases included."""
    nodes = [child for _, child in walk(node)]
    conditions = [condition for child in nodes if child.op == "cases" for condition in child.value if condition]
    return nodes + [inner for condition in conditions for inner in walk_all(condition)]


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
    value: Any = node.value
    if node.op == "cases":
        value = tuple(condition and substitute_names(condition, values) for condition in node.value)
    if not node.children:
        return values.get(value, node) if node.op == "name" else node
    return Node(node.op, tuple(substitute_names(child, values) for child in node.children), value)


def expand_names(node: Node, values: Mapping[str, Node]) -> Node | None:
    """Return a copy of the tree with names replaced by expressions; None if it would have more than MAX_NODES nodes."""
    expanded = substitute_names(node, values)
    return None if next(islice(walk(expanded), MAX_NODES, None), None) else expanded


def variable_names(node: Node) -> set[str]:
    """Return the names of the values that occur in an expression."""
    return {child.value for child in walk_all(node) if child.op == "name"}


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
    **dict.fromkeys(("erf", "gelu", "softplus", "normal_cdf", "normal_pdf", "eye"), (1, 1)),
    "leaky_relu": (2, 2),
    **dict.fromkeys(("outer", "maximum", "minimum"), (2, 2)),
    "concat": (2, 8),
    "einsum": (1, 3),
}
FUNCTION_ALIASES = {"sigma": "sigmoid", "stack": "concat", "ln": "log"}
_PAPER_ALIASES = {"max": "maximum", "min": "minimum", "Phi": "normal_cdf", "phi": "normal_pdf", "logistic": "sigmoid"}
_PAPER_ALIASES |= {
    "swish": "silu",
    "leakyrelu": "leaky_relu",
    "cat": "concat",
    "sigm": "sigmoid",
    "lrelu": "leaky_relu",
}
GENERIC_FUNCTIONS = frozenset({"f", "g", "phi", "sigma", "act", "activation", "varphi"})  # of an activation
_KEYWORDS = frozenset({"if", "for", "when", "where", "otherwise", "else", "and", "all", "elsewhere", "whenever"})
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
    "softplus": "sigmoid(u)",
    "gelu": "normal_cdf(u) + u * normal_pdf(u)",
    "normal_cdf": "normal_pdf(u)",
    "abs": "(u > 0) - (u < 0)",
}
_EINSUM = re.compile(r"[a-zA-Z]{1,4}(?:,[a-zA-Z]{1,4}){0,2}->[a-zA-Z]{0,4}")
MAX_NODES, MAX_DEPTH, MAX_POWER, MAX_AXES = 200, 40, 6, 4


@dataclass(frozen=True)
class Equation:
    """A line `name = expression` with its text and line number.

    Attributes:
        condition: on the indices of the name, as in du_w = … for w ≠ o; None without one.
        alternatives: other readings of the expression, where the text leaves a choice.
        is_literal: whether the text is in the small language itself, so that its reading need not be shown.
        left: the node of the name, where it has indices; None otherwise.
    """

    name: str
    expression: Node
    text: str
    number: int
    condition: Node | None = None
    alternatives: tuple[Node, ...] = ()
    is_literal: bool = True
    left: Node | None = None


@dataclass(frozen=True)
class Vocabulary:
    """The names that a derivation may use; with it, products can be written without a sign, as in papers.

    Attributes:
        is_value: tells whether a name has a value.
        activation: the function that f, φ and σ stand for where they have no other meaning; "" if there is none.
        functions: the functions of the forward pass.
    """

    is_value: Callable[[str], bool]
    activation: str = ""
    functions: frozenset[str] = frozenset()

    def split(self, name: str) -> list[str]:
        """Split a name such as Uh into the names that it consists of; return [name] if there is no single way to."""
        splits: dict[int, list[list[str]]] = {0: [[]]}
        for end in range(1, len(name) + 1):
            shorter = [(start, name[start:end]) for start in splits if name[start].isalpha()] if end else []
            candidates = [
                [*parts, piece] for start, piece in shorter if self.is_value(piece) for parts in splits[start]
            ]
            if candidates:
                fewest = min(map(len, candidates))
                splits[end] = [parts for parts in candidates if len(parts) == fewest][:2]
        complete = splits.get(len(name), [])
        return complete[0] if len(complete) == 1 else [name]


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


def parse_line(line: str, line_number: int, vocabulary: Vocabulary) -> list[Equation]:
    """Parse a line `name = expression = …` in the notation of papers; return an equation for each expression.

    >>> anything = Vocabulary(lambda name: True)
    >>> [str(line.expression) for line in parse_line(r"dh = U^\\top \\delta = \\delta U", 1, anything)]
    ['U.T delta', 'delta U']
    """
    source = SourceText(line, f"line {line_number}, column")
    tokens = derivation_tokens(source)

    def parse(has_tight_dots: bool) -> list[Equation]:
        parser = _EquationParser(source, tokens, vocabulary, has_tight_dots)
        left = parser.take()
        condition = parser.left_condition() if left.kind == "name" else None
        if left.kind != "name" or not parser.take_if("="):
            raise parser.error("expected 'name = expression', such as dz = y_hat - y.", left)
        expressions = [parser.branches()]
        while parser.take_if("="):
            expressions.append(parser.branches())
        parser.expect_end()
        is_literal = parser.is_literal
        return [
            Equation(left.text, expression, line, line_number, condition, is_literal=is_literal)
            for expression in expressions
        ]

    equations = parse(has_tight_dots=False)
    if any(token.kind == "·" for token in tokens):
        pairs = zip(equations, parse(has_tight_dots=True), strict=True)
        equations = [
            replace(first, alternatives=(second.expression,)) if second.expression != first.expression else first
            for first, second in pairs
        ]
    return equations


def parse_steps(line: str, line_number: int = 1, vocabulary: Vocabulary | None = None) -> tuple[str, list[Node]]:
    """Parse a line `name = expression = …` of a derivation; return its name, "" if it has none, and the expressions.

    `line_number` is for error messages; with a `vocabulary` the notation of papers is read.

    >>> name, steps = parse_steps("Y = (A + B).T = A.T + B.T")
    >>> name, [str(step) for step in steps], parse_steps("= B.T + A.T")[0]
    ('Y', ['(A + B).T', 'A.T + B.T'], '')
    """
    source = SourceText(line, f"line {line_number}, column")
    tokens = derivation_tokens(source)
    parser, name = _EquationParser(source, tokens, vocabulary), ""
    if [token.kind for token in tokens[:2]] == ["name", "="]:
        name = parser.take().text
    parser.take_if("=")
    read = parser.branches if vocabulary else parser.expression
    steps = [read()]
    while parser.take_if("="):
        steps.append(read())
    parser.expect_end()
    return name, steps


class _EquationParser(Cursor):
    """A recursive-descent parser that builds a tree of bounded size and depth; each method reads one construct."""

    def __init__(
        self,
        source: SourceText,
        tokens: list[Token],
        vocabulary: Vocabulary | None = None,
        has_tight_dots: bool = False,
    ) -> None:
        if vocabulary:
            tokens = [part for index, token in enumerate(tokens) for part in self.split(token, index, vocabulary)]
        super().__init__(source, tokens)
        self.nodes = self.depth = 0
        self.vocabulary, self.has_tight_dots = vocabulary, has_tight_dots
        self.is_literal = "\\" not in source.text

    def split(self, token: Token, index: int, vocabulary: Vocabulary) -> list[Token]:
        """Split a name that has no value but consists of names that have one, as in Uh."""
        reserved = {*ARITY, *FUNCTION_ALIASES, *NUMPY_OPERATORS, *_PAPER_ALIASES, *_KEYWORDS, "axis", "dim", "T"}
        if token.kind != "name" or not index or token.text in reserved or vocabulary.is_value(token.text):
            return [token]
        parts, position, tokens = vocabulary.split(token.text), token.position, list[Token]()
        for part in parts:
            tokens.append(replace(token, text=part, position=position))
            position += len(part)
        return tokens

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
        """Read operands with *, / or @ between them, and in the notation of papers with nothing between them."""
        node = self.factor()
        while True:
            if sign := self.take_if("*", "/", "@", "·", "⊗"):
                right = self.denominator() if sign.kind == "/" else self.factor()
                if sign.kind == "⊗":
                    node = self.node("outer", node, right)
                elif sign.kind == "·":
                    node = self.node("juxt", node, right, value="·") if self.vocabulary else self.node("*", node, right)
                else:
                    node = self.node(sign.text, node, right)
            elif self.starts_operand():
                node = self.juxtapose(node, self.unary())
            else:
                return node

    def factor(self) -> Node:
        """Read operands with nothing between them, which bind more tightly than the signs of products."""
        node = self.unary()
        while self.starts_operand() or (self.has_tight_dots and self.current.kind == "·"):
            if self.take_if("·"):
                node = self.node("juxt", node, self.unary(), value="·")
            else:
                node = self.juxtapose(node, self.unary())
        return node

    def denominator(self) -> Node:
        """Read what follows a /: one operand, or a number with the name right after it, as in 1/2n."""
        number = self.current
        node = self.unary() if self.vocabulary else self.factor()
        is_close = self.current.position == number.position + len(number.text)
        if node.op == "number" and self.vocabulary and is_close and self.current.kind == "name":
            node = self.juxtapose(node, self.unary())
        return node

    def juxtapose(self, left: Node, right: Node) -> Node:
        """Return the node of a product without a sign; what product it is depends on the shapes."""
        self.is_literal = False
        return self.node("juxt", left, right, value="")

    def starts_operand(self) -> bool:
        """Return whether an operand follows right here, without a sign between; only in the notation of papers."""
        kind, text = self.current.kind, self.current.text
        if self.has_trailing_condition():
            return False
        if self.vocabulary is None or kind not in ("name", "(", "[", "sum", INDICATOR, "⟦", "jacobian"):
            return False
        return not (kind == "name" and text in _KEYWORDS and not self.vocabulary.is_value(text))

    def has_trailing_condition(self) -> bool:
        """Return whether a condition in brackets follows and ends the line or case, as in `ŷ_w v_c (w ≠ o)`."""
        kinds = [token.kind for token in self.tokens[self.index : self.index + 6]]
        is_condition = kinds[:2] == ["(", "name"] and kinds[2:3] in (["="], ["≠"]) and kinds[4:5] == [")"]
        return self.vocabulary is not None and is_condition and kinds[5] in ("end", ",", ";", "⏎", "⟧")

    def has_condition(self) -> bool:
        """Return whether the next tokens are a condition such as `w ≠ o`."""
        kinds = [token.kind for token in self.tokens[self.index : self.index + 3]]
        return kinds in (["name", "=", "name"], ["name", "≠", "name"])

    def is_keyword(self, *words: str) -> bool:
        """Return whether the next token is one of these words and not the name of a value."""
        is_value = self.vocabulary is not None and self.vocabulary.is_value(self.current.text)
        return self.current.kind == "name" and self.current.text in words and not is_value

    def branches(self) -> Node:
        """Read an expression, or several by cases, as in `A for w = o, B otherwise`."""
        return self.continue_branches(self.expression())

    def continue_branches(self, first: Node) -> Node:
        """Read the condition of an expression and the other cases after it; return the node of all cases."""
        cases, conditions, node = [first], list[Node | None](), first
        while True:
            had_comma = bool(self.take_if(",", ";"))
            if len(cases) == len(conditions) + 1 and self.is_keyword("if", "for", "when", "where", "whenever"):
                self.take()
                while self.is_keyword("all", "if", "for", "when"):
                    self.take()
                self.is_literal = False
                is_otherwise = self.is_keyword("otherwise", "else", "elsewhere")
                conditions.append(self.take() and None if is_otherwise else self.condition())
            elif len(cases) == len(conditions) + 1 and (
                self.has_trailing_condition() or (had_comma and self.has_condition())
            ):
                self.is_literal = False
                conditions.append(self.condition())
            elif len(cases) == len(conditions) + 1 and conditions and self.is_keyword("otherwise", "elsewhere", "else"):
                self.take()
                conditions.append(None)
            elif conditions and len(cases) == len(conditions) and (had_comma or self.is_keyword("and", "else")):
                if self.is_keyword("and", "else"):
                    self.take()
                if self.is_keyword("otherwise", "else"):
                    self.take()
                    self.take_if(":", ",")
                cases.append(self.expression())
            elif self.take_if("⏎"):
                if conditions and self.current.kind != "⟧":
                    cases.append(self.expression())
            else:
                break
            if len(cases) > 4:
                raise self.error("at most four cases are read.")
        if not conditions:
            return node
        conditions += [None] * (len(cases) - len(conditions))
        explicit = [condition for condition in conditions if condition]
        if len(explicit) < len(cases) - 1:
            raise self.error("of several cases only the last can be without a condition, as in 'B otherwise'.")
        return self.node("cases", *cases, value=tuple(conditions))

    def left_condition(self) -> Node | None:
        """Read the condition between the name of a line and its =, as in du_w (w ≠ o) = …; None without one."""
        kinds = [token.kind for token in self.tokens[self.index : self.index + 4]]
        if kinds[:3] == ["(", "name", "≠"] or (kinds[:3] == ["(", "name", "="] and "=" in kinds[3:]):
            self.take()
            condition = self.condition()
            self.expect(")")
            self.take_if(":")
            return condition
        if self.is_keyword("for", "if", "when"):
            self.take()
            if self.is_keyword("all"):
                self.take()
            condition = self.condition()
            self.take_if(":")
            return condition
        if self.take_if(","):
            condition = self.condition()
            self.take_if(":")
            return condition
        return None

    def condition(self) -> Node:
        """Read a condition such as `w = o`, `w ≠ o` or `z > 0`, in brackets or not."""
        if self.current.kind == "(" and any(
            token.kind in ("=", "≠") for token in self.tokens[self.index : self.index + 4]
        ):
            self.take()
            node = self.condition()
            self.expect(")")
            return node
        kinds = [token.kind for token in self.tokens[self.index : self.index + 4]]
        if kinds == ["name", "=", "=", "name"]:  # k == y
            self.tokens = self.tokens[: self.index + 1] + self.tokens[self.index + 2 :]
            kinds = kinds[:2] + kinds[3:]
        if kinds[:2] in (["name", "="], ["name", "≠"]) and kinds[2:] and kinds[2] in ("name", "number"):
            first, sign, second = self.take(), self.take(), self.take()
            self.take_if("=")
            node = self.node("equal", value=(first.text, second.text), position=first.position)
            return node if sign.kind == "=" else self.node("-", Node("number", value="1"), node)
        left = self.expression()
        sign = self.take_if(">", "<")
        if not sign:
            raise self.error("expected a condition, such as w = o, w ≠ o or z > 0.")
        self.take_if("=")
        return self.node(sign.text, left, self.expression())

    def unary(self) -> Node:
        """Read an operand with its minus signs before it and powers, transposes, slices and method calls after it."""
        is_negative = False
        while self.take_if("-"):
            is_negative = not is_negative
        node = self.atom()
        while sign := self.take_if("^", ".T", "[", ".", *("'" if self.vocabulary else "")):
            if sign.text == "'":
                self.is_literal = False
                node = self.node(".T", node)
                continue
            if sign.text == "[" and self.vocabulary and not self.is_slice():
                self.index -= 1
                break
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

    def is_slice(self) -> bool:
        """Return whether the bracket that was just opened holds the ranges of a slice, or a single number or name."""
        depth = 0
        for index, token in enumerate(self.tokens[self.index :]):
            depth += {"[": 1, "(": 1, "]": -1, ")": -1}.get(token.kind, 0)
            if depth < 0 or token.kind == "end":
                return index == 1 and self.current.kind == "number"
            if token.kind == ":" and depth == 0:
                return True
        return False

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
        if self.vocabulary and [token.kind for token in self.tokens[self.index : self.index + 2]] in (
            ["(", "("],
            ["(", "name"],
        ):
            opening = self.current
            value = _constant(self.atom())
            if value is None or abs(value) > MAX_POWER or value * 2 % 1:
                raise self.error(f"an exponent is a whole or half number from -{MAX_POWER} to {MAX_POWER}.", opening)
            return int(value) if value % 1 == 0 else value
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
                if self.vocabulary and (node := self.bracketed_condition("]")):
                    return node
                parts = [self.expression()]
                while self.take_if(";", ","):
                    parts.append(self.expression())
                self.expect("]")
                if len(parts) == 1 and self.vocabulary:
                    return parts[0]
                return self.apply("concat", parts, token)
            case "(":
                if self.vocabulary and (node := self.bracketed_condition(")")):
                    return node
                node = self.branches() if self.vocabulary else self.expression()
                if sign := self.take_if(">", "<"):
                    self.take_if("=")  # at random values >= is >
                    node = self.node(sign.text, node, self.expression())
                self.expect(")")
                return node
            case "sum" if self.vocabulary:
                self.is_literal = False
                self.depth += 1
                if self.depth > MAX_DEPTH:
                    raise self.error(f"sums are nested more than {MAX_DEPTH} deep.", token)
                body = self.product()
                self.depth -= 1
                return self.node("index_sum", body, value=token.text, position=token.position)
            case "\ue001" if self.vocabulary:
                self.is_literal = False
                if opening := self.take_if("(", "["):
                    node = self.condition()
                    self.expect(")" if opening.kind == "(" else "]")
                    return node
                return self.node("ones_vector")
            case "⟦" if self.vocabulary:
                self.is_literal = False
                node = self.continue_branches(self.expression())
                self.expect("⟧")
                return node
            case "jacobian":
                raise JacobianError(
                    self.source.error_at(
                        token.position,
                        "a derivative of a vector by a vector is not read here. Write what it is, as a product.",
                    ).args[0]
                )
            case "name":
                return self.name_or_call(token)
        raise self.error(f"expected a value, got {_quote(token)}.", token)

    def bracketed_condition(self, closing: str) -> Node | None:
        """Read `w = o` or `w ≠ o` and the closing bracket; return None if something else is in the brackets."""
        kinds = [token.kind for token in self.tokens[self.index : self.index + 4]]
        if kinds[:1] != ["name"] or kinds[1:2] not in (["="], ["≠"]) or kinds[3:] != [closing]:
            return None
        self.is_literal = False
        node = self.condition()
        self.expect(closing)
        return node

    def name_or_call(self, token: Token) -> Node:
        """Read what begins with a name: a value, a function call, or the derivative of a function."""
        vocabulary = self.vocabulary
        is_value = vocabulary is not None and vocabulary.is_value(token.text)
        function = self.function_name(token.text, is_value, self.current.kind == "'")
        if function in ARITY and self.take_if("^"):  # tanh²(c) is tanh(c)²
            exponent = self.exponent()
            return self.node("^", self.call(function), value=exponent)
        next_kind = self.tokens[self.index + 1].kind if self.current.kind == "'" else ""
        if next_kind and (next_kind == "(" or not vocabulary) and not (is_value and function not in _DERIVATIVES):
            self.take()
            return self.derivative(function, token)
        if vocabulary and not is_value and token.text.lower() in ("onehot", "one_hot") and self.current.kind == "(":
            self.is_literal = False
            return self.atom()  # of a value that is one-hot already
        if self.current.kind == "(" and not is_value:
            if function not in {*ARITY, *NUMPY_OPERATORS}:
                raise self.error(describe_unknown("function", token.text, ARITY), token)
            return self.call(function)
        if vocabulary and not is_value:
            if token.text == "e" and self.take_if("^"):
                self.is_literal = False
                return self.node("exp", self.unary())
            if function in ARITY and ARITY[function][0] == 1 and self.starts_operand():
                self.is_literal = False
                return self.apply(function, [self.unary()], token)
        if function in ARITY and not is_value:
            raise self.error(f"'{function}' is a function; write {function}(…).", token)
        return self.node("name", value=token.text, position=token.position)

    def function_name(self, text: str, is_value: bool, is_derivative: bool) -> str:
        """Return the function of the language that a text stands for, or the text.

        f and g stand for the activation of the function, and so do σ' and φ' where it is not a sigmoid.
        """
        vocabulary = self.vocabulary
        if vocabulary is None:
            return FUNCTION_ALIASES.get(text, text)
        if is_value:
            return text
        if text in GENERIC_FUNCTIONS and vocabulary.activation:
            is_sigmoid = (
                vocabulary.activation not in ("tanh", "relu", "leaky_relu") or "sigmoid" in vocabulary.functions
            )
            has_standard_meaning = {"sigma": is_sigmoid or not is_derivative, "phi": "gelu" in vocabulary.functions}
            if not has_standard_meaning.get(text, False):
                self.is_literal = False
                return vocabulary.activation
        function = FUNCTION_ALIASES.get(text, _PAPER_ALIASES.get(text, text))
        lower = text.lower()
        return (
            _PAPER_ALIASES.get(lower, lower)
            if function not in ARITY and _PAPER_ALIASES.get(lower, lower) in ARITY
            else function
        )

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


class JacobianError(InputError):
    """An expression with the derivative of a vector by a vector, which has no value here."""


def _constant(node: Node) -> float | None:
    """Return the value of an expression of numbers; None if it has a name or a function."""
    if node.op == "number":
        return float(node.value)
    values = [_constant(child) for child in node.children]
    match node.op, values:
        case "-", [float(value)]:
            return -value
        case "/", [float(first), float(second)] if second:
            return first / second
        case "-" | "+" | "*" as sign, [float(first), float(second)]:
            return {"-": first - second, "+": first + second, "*": first * second}[sign]
    return None


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
        case Node("index", (inner,), IndexSpec() as spec):
            letters = spec.text.rpartition("_")[2]
            return spec.text if inner == variable(spec.name) else f"{_write_operand(inner, _POSTFIX)}_{letters}"
        case Node("index", _, str(text)):
            return text
        case Node("collect", (inner,)):
            return write_expression(inner)
        case Node("index_sum", (inner,), (letter, _)):
            return f"sum_{letter} {_write_operand(inner, 2)}"
        case Node("delta", _, (first, second, *_)):
            return f"delta_{'ijklmn'[first]}{'ijklmn'[second]}"
        case Node("juxt", (left, right)):
            return f"{_write_operand(left, 2)} {_write_operand(right, _UNARY)}"
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
    "erf": torch.erf,
    "gelu": torch.nn.functional.gelu,
    "softplus": torch.nn.functional.softplus,
    "normal_cdf": torch.special.ndtr,
    "normal_pdf": lambda value: torch.exp(-(value**2) / 2) / sqrt(2 * pi),
}


@dataclass(frozen=True)
class IndexSpec:
    """A selection of entries, rows or columns of a matrix by the indices in a name such as u_w.

    Attributes:
        text: the name with its indices, as in the line.
        name: the matrix.
        axes: for each axis of the matrix the position of its index among those of the line; None if it has no index.
        num_indices: number of indices in the line; each is a leading axis of the values.
        is_flipped: whether rows are read as columns and columns as rows.
    """

    text: str
    name: str
    axes: tuple[int | None, int | None]
    num_indices: int
    is_flipped: bool = False


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
    else:  # indices and batches are broadcast freely
        inner = pairs[-2:]
        fits = 0 in (left.ndim, right.ndim) or all(b in (1, a) for a, b in inner) or all(a in (1, b) for a, b in inner)
        fits = fits and all(1 in (a, b) or a == b for a, b in pairs[:-2])
        if num_axes > 2:
            _check_size(prod(max(pair) for pair in pairs))
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
    if function in ("maximum", "minimum"):
        apply_operator("+", *arguments)  # checks that the shapes fit
        return (torch.maximum if function == "maximum" else torch.minimum)(*arguments)
    if function == "leaky_relu":
        return torch.where(first > 0, first, apply_operator("*", first, arguments[1]))
    if function == "eye":
        if first.ndim != 2 or first.shape[0] != first.shape[1]:
            raise ShapeError("the identity matrix next to {}", first.shape)
        return torch.eye(first.shape[0], dtype=float64)
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
            case "index":
                return self._index(first, node.value)
            case "collect":
                return self._collect(first, node.value)
            case "index_sum":
                _, axis = node.value
                if first.ndim < -axis:
                    raise ShapeError("the sum over an index of {}", first.shape)
                return first.sum(axis, keepdim=True)
            case "delta":
                return self._delta(first, node.value)
            case function:
                return apply_function(function, operands, node.value)

    def _index(self, value: Tensor, spec: IndexSpec) -> Tensor:
        """Return the entries, rows or columns of a matrix with its indices as leading axes."""
        if value.ndim != 2:
            raise ShapeError("an index of {}", value.shape)
        order = sorted((axis for axis in (0, 1) if spec.axes[axis] is not None), key=lambda axis: spec.axes[axis] or 0)
        leading, inner = [1] * spec.num_indices, [1, 1]
        for axis in (0, 1):
            position = spec.axes[axis]
            if position is None:
                inner[axis] = value.shape[axis]
            else:
                leading[position] = value.shape[axis]
        remaining_axes = [axis for axis in (0, 1) if axis not in order]
        entries = value.permute(*order, *remaining_axes).reshape(*leading, *inner)
        return entries.mT if spec.is_flipped else entries

    def _collect(self, value: Tensor, spec: IndexSpec) -> Tensor:
        """Return the matrix whose entries, rows or columns are given by index: the inverse of `_index`."""
        matrix = self.values[spec.name]
        if matrix.ndim < 2 and value.numel() == 1:
            return value.reshape(matrix.shape)
        inner = [1 if spec.axes[axis] is not None else matrix.shape[axis] for axis in (0, 1)]
        inner = inner[::-1] if spec.is_flipped else inner
        if value.ndim < 2 and value.numel() == 1:
            value = value.reshape(1, 1)
        if value.ndim < spec.num_indices + 2:
            value = value.reshape((1,) * (spec.num_indices + 2 - value.ndim) + tuple(value.shape))
        if list(value.shape[-2:]) != inner:
            raise ShapeError(f"each {spec.text} is {{}}, not {{}}", tuple(inner), tuple(value.shape[-2:]))
        lengths = [1] * spec.num_indices
        for axis in (0, 1):
            position = spec.axes[axis]
            if position is not None:
                lengths[position] = matrix.shape[axis]
        if any(length not in (1, expected) for length, expected in zip(value.shape, lengths, strict=False)):
            raise ShapeError("an index that is not summed over: {}", tuple(value.shape))
        value = value.mT if spec.is_flipped else value
        value = value.expand(*lengths, *value.shape[-2:])
        order = sorted((axis for axis in (0, 1) if spec.axes[axis] is not None), key=lambda axis: spec.axes[axis] or 0)
        remaining_axes = [axis for axis in (0, 1) if axis not in order]
        permuted = value.reshape([matrix.shape[axis] for axis in (*order, *remaining_axes)])
        return permuted.permute(*(([*order, *remaining_axes]).index(axis) for axis in (0, 1)))

    def _delta(self, value: Tensor, spec: tuple[int, int, int, int]) -> Tensor:
        """Return the identity matrix with two indices as leading axes; the axis of a value gives its size."""
        first, second, num_indices, axis = spec
        shape = [1] * (num_indices + 2)
        shape[first] = shape[second] = value.shape[axis]
        return torch.eye(value.shape[axis], dtype=float64).reshape(shape)

    def _slice(self, value: Tensor, ranges: Sequence[tuple[int | str | None, ...]]) -> Tensor:
        """Return a slice of a value; its ends are numbers, names of sizes or None, and it must not be empty."""
        if value.ndim < len(ranges):
            raise ShapeError("a slice of {}", value.shape)
        slices = (slice(*(int(self.values[end]) if isinstance(end, str) else end for end in ends)) for ends in ranges)
        part = value[tuple(slices)]
        if part.numel() == 0:
            raise ShapeError("an empty slice of {}", value.shape)
        return part
