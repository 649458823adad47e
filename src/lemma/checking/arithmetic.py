r"""Arithmetic as people write it: chains of equations between numbers, with units.

`3*4.51e12*1024*400e3/(0.5*19.5e12)/86400 ≈ 6583 days` is read by a parser of its own: sums, products (also implicit
ones), powers, roots, logarithms, factorials, `choose`, simple LaTeX, and letters with known values. Nothing is
evaluated as code. Numbers are exact fractions as long as the operations allow it. Every step of a chain is checked.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from lemma.checking.read_formula import split_into_symbols
from lemma.checking.tokens import SourceText, Token
from lemma.checking.units import NO_DIMENSION, TIME_UNITS, Dimension, describe_dimension, find_unit, multiply_dimensions
from lemma.errors import InputError
from lemma.report.numbers import MAX_RELATIVE_ERROR, WrittenNumber, normalize_notation, read_literal

MAX_CHARS, MAX_TOKENS, MAX_NESTING, MAX_MEMBERS, MAX_POSTFIXES = 2000, 600, 40, 20, 6
MAX_BITS = 4096  # of the numerator and denominator of an exact number; beyond, floating point is used
MAX_MAGNITUDE_BITS = 1000  # of a number: about 10^300
MAX_EXACT_EXPONENT, MAX_FACTORIAL, MAX_CHOOSE = 4096, 1000, 2000
FLOAT_TOLERANCE = Fraction(1, 10**9)  # relative error of floating point that is ignored
MIN_ROUNDED_DIGITS = 2  # significant digits of a decimal that may be a rounded number, such as 0.33
MIN_TRUSTED_DIGITS = 3  # of decimals in an expression that is not evaluated
LOG_BASES: tuple[float, ...] = (math.e, 2.0, 10.0)  # of a logarithm without a base, the first by default
Scalar = Fraction | float


# The expression.


@dataclass(frozen=True, eq=False)
class MathNode:
    """A node of an expression; `text` is what was written."""

    text: str


@dataclass(frozen=True, eq=False)
class LiteralNode(MathNode):
    """A number as written, with the unit of its last digit."""

    number: WrittenNumber


@dataclass(frozen=True, eq=False)
class LetterNode(MathNode):
    """A letter whose value is known."""

    name: str


@dataclass(frozen=True, eq=False)
class UnitNode(MathNode):
    """A unit or prefix, such as GB, days, million or %."""

    factor: Scalar
    dimension: Dimension = NO_DIMENSION


@dataclass(frozen=True, eq=False)
class SumNode(MathNode):
    """A sum of terms with signs, 1 or −1."""

    terms: tuple[tuple[int, MathNode], ...]


@dataclass(frozen=True, eq=False)
class ProductNode(MathNode):
    """A product of factors with exponents, 1 or −1 for divisors."""

    factors: tuple[tuple[int, MathNode], ...]


@dataclass(frozen=True, eq=False)
class PowerNode(MathNode):
    """A power."""

    base: MathNode
    exponent: MathNode


@dataclass(frozen=True, eq=False)
class CallNode(MathNode):
    """A function of one or two arguments."""

    name: str
    arguments: tuple[MathNode, ...]


def walk(node: MathNode) -> Iterator[MathNode]:
    """Yield a node and all nodes below it."""
    yield node
    for child in children(node):
        yield from walk(child)


def children(node: MathNode) -> tuple[MathNode, ...]:
    """Return the nodes directly below a node."""
    match node:
        case SumNode():
            return tuple(term for _, term in node.terms)
        case ProductNode():
            return tuple(factor for _, factor in node.factors)
        case PowerNode():
            return (node.base, node.exponent)
        case CallNode():
            return node.arguments
        case _:
            return ()


# Evaluation.


@dataclass(frozen=True)
class Evaluation:
    """A value in base units (seconds, bytes, FLOPs), and its dimension."""

    value: Scalar
    dimension: Dimension = NO_DIMENSION


@dataclass(frozen=True)
class ArithmeticEvaluator:
    """The rules by which an expression has a value.

    Attributes:
        letters: values of letters.
        log_base: base of a logarithm without a base.
        replaced: numbers that take the place of literals, by the id of the node.
    """

    letters: Mapping[str, Evaluation] = field(default_factory=dict)
    log_base: float = math.e
    replaced: Mapping[int, Fraction] = field(default_factory=dict)

    def evaluate(self, node: MathNode) -> Evaluation:
        """Return the value of an expression; raise an InputError where it has none."""
        try:
            return self._evaluate(node)
        except (OverflowError, ZeroDivisionError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            reason = "something is divided by zero" if isinstance(error, ZeroDivisionError) else "it has no value"
            reason = "the number is too large" if isinstance(error, OverflowError) else reason
            raise InputError(f"'{shorten_text(node.text)}': {reason}.") from None

    def _evaluate(self, node: MathNode) -> Evaluation:
        match node:
            case LiteralNode():
                return Evaluation(simplify(self.replaced.get(id(node), node.number.value)))
            case LetterNode():
                return self.letters[node.name]
            case UnitNode():
                return Evaluation(node.factor, node.dimension)
            case SumNode():
                return self._evaluate_sum(node)
            case ProductNode():
                return self._evaluate_product(node)
            case PowerNode():
                base, exponent = self._evaluate(node.base), self._evaluate(node.exponent)
                dimension = NO_DIMENSION
                if isinstance(exponent.value, Fraction) and exponent.value.denominator == 1 and base.dimension:
                    power = int(max(-9, min(9, exponent.value)))
                    dimension = multiply_dimensions(NO_DIMENSION, base.dimension, power)
                return Evaluation(raise_to_power(base.value, exponent.value), dimension)
            case CallNode():
                arguments = [self._evaluate(argument).value for argument in node.arguments]
                if node.name == "log":
                    arguments = arguments if len(arguments) > 1 else [*arguments, self.log_base]
                return Evaluation(FUNCTIONS[node.name](*arguments))
            case _:
                raise AssertionError(node)

    def _evaluate_sum(self, node: SumNode) -> Evaluation:
        """Return the value of a sum; a term without a unit takes that of the others."""
        total, dimension = Fraction(0), NO_DIMENSION
        for sign, term in node.terms:
            evaluation = self._evaluate(term)
            if evaluation.dimension and dimension and evaluation.dimension != dimension:
                first, second = describe_dimension(dimension), describe_dimension(evaluation.dimension)
                raise InputError(f"'{shorten_text(node.text)}': {first} and {second} cannot be added.")
            dimension = dimension or evaluation.dimension
            total = simplify(total + sign * evaluation.value)
        return Evaluation(total, dimension)

    def _evaluate_product(self, node: ProductNode) -> Evaluation:
        product, dimension = Fraction(1), NO_DIMENSION
        for exponent, factor in node.factors:
            evaluation = self._evaluate(factor)
            product = product * evaluation.value if exponent > 0 else product / evaluation.value
            product = simplify(product)
            dimension = multiply_dimensions(dimension, evaluation.dimension, exponent)
        return Evaluation(product, dimension)


def simplify(value: Scalar) -> Scalar:
    """Return a value as a fraction while that has few digits, else as a float; raise if it is no finite number."""
    if isinstance(value, Fraction):
        if value.numerator.bit_length() - value.denominator.bit_length() > MAX_MAGNITUDE_BITS:
            raise OverflowError
        if max(value.numerator.bit_length(), value.denominator.bit_length()) <= MAX_BITS:
            return value
        value = float(value)
    if math.isinf(value):
        raise OverflowError
    if math.isnan(value):
        raise ValueError
    return value


def raise_to_power(base: Scalar, exponent: Scalar) -> Scalar:
    """Return a power, exactly where base and exponent allow it.

    >>> raise_to_power(Fraction(2), Fraction(-2)), raise_to_power(Fraction(4), Fraction(1, 2))
    (Fraction(1, 4), Fraction(2, 1))
    """
    if isinstance(base, Fraction) and isinstance(exponent, Fraction):
        bits = max(base.numerator.bit_length(), base.denominator.bit_length(), 1)
        power = exponent.numerator
        if exponent.denominator == 1 and abs(power) <= MAX_EXACT_EXPONENT and bits * abs(power) <= MAX_BITS:
            return simplify(base**power)
        if exponent.denominator <= 8 and base >= 0:
            root = exact_root(base, exponent.denominator)
            if root is not None and exponent.denominator > 1:
                return raise_to_power(root, Fraction(power))
    result = float(base) ** float(exponent)
    if isinstance(result, complex):
        raise InputError("the root of a negative number has no value here.")
    return simplify(result)


def exact_root(value: Fraction, degree: int) -> Fraction | None:
    """Return the root of a fraction if it is a fraction, else None.

    >>> exact_root(Fraction(8, 27), 3)
    Fraction(2, 3)
    """
    roots: list[int] = []
    for number in (value.numerator, value.denominator):
        if number.bit_length() > 1000:
            return None
        root = round(number ** (1 / degree))
        exact = next((guess for guess in (root - 1, root, root + 1) if guess >= 0 and guess**degree == number), None)
        if exact is None:
            return None
        roots.append(exact)
    return Fraction(roots[0], roots[1])


def take_logarithm(value: Scalar, base: Scalar) -> Scalar:
    """Return a logarithm, exactly for powers of a whole base.

    >>> take_logarithm(Fraction(1, 8), Fraction(2))
    Fraction(-3, 1)
    """
    if value <= 0 or base <= 0 or base == 1:
        raise InputError("a logarithm is taken of positive numbers only.")
    if isinstance(value, Fraction) and float(base).is_integer():
        result = round(_logarithm_of_fraction(value) / math.log(base))
        if abs(result) <= MAX_EXACT_EXPONENT and raise_to_power(Fraction(int(base)), Fraction(result)) == value:
            return Fraction(result)
    logarithm = _logarithm_of_fraction(value) if isinstance(value, Fraction) else math.log(value)
    return logarithm if base == math.e else logarithm / math.log(base)


def _logarithm_of_fraction(value: Fraction) -> float:
    """Return the natural logarithm of a fraction of any size."""
    return math.log(value.numerator) - math.log(value.denominator)


def take_factorial(value: Scalar) -> Scalar:
    """Return n! of a whole number."""
    if value != int(value) or not 0 <= value <= MAX_FACTORIAL:
        raise InputError(f"a factorial is taken of whole numbers from 0 to {MAX_FACTORIAL:,}.")
    return simplify(Fraction(math.factorial(int(value))))


def choose(number: Scalar, selected: Scalar) -> Scalar:
    """Return the binomial coefficient of two whole numbers."""
    if number != int(number) or selected != int(selected) or not 0 <= number <= 10**9 or not selected >= 0:
        raise InputError("'choose' takes whole numbers.")
    if min(selected, number - selected) > MAX_CHOOSE:
        raise InputError(f"'choose' takes at most {MAX_CHOOSE:,} elements.")
    return simplify(Fraction(math.comb(int(number), int(selected))))


def _of_float(function: Callable[[float], float]) -> Callable[[Scalar], Scalar]:
    """Return a function of a scalar from one of a float."""
    return lambda value: simplify(function(float(value)))


def _exponential(value: Scalar) -> Scalar:
    """Return e to a power; 1 exactly for 0."""
    return Fraction(1) if value == 0 else simplify(math.exp(value))


FUNCTIONS: dict[str, Callable[..., Scalar]] = {
    "exp": _exponential,
    "ln": lambda value: take_logarithm(value, math.e),
    "log": take_logarithm,
    "sqrt": lambda value: raise_to_power(value, Fraction(1, 2)),
    "root": lambda value, degree: raise_to_power(value, 1 / Fraction(degree)),
    "factorial": take_factorial,
    "choose": choose,
    "abs": abs,
    "floor": lambda value: Fraction(math.floor(value)),
    "ceil": lambda value: Fraction(math.ceil(value)),
    "round": lambda value: Fraction(math.floor(value + Fraction(1, 2))),
    "max": lambda *values: max(values),
    "min": lambda *values: min(values),
    "sigmoid": _of_float(lambda value: 1 / (1 + math.exp(-value)) if value > -700 else 0.0),
    "relu": lambda value: max(value, Fraction(0)),
    **{name: _of_float(getattr(math, name)) for name in ("sin", "cos", "tan", "tanh", "sinh", "cosh", "atan")},
}
FUNCTION_NAMES = {  # as people write them
    **{name: name for name in FUNCTIONS},
    "arctan": "atan",
    "arcsin": "asin",
    "arccos": "acos",
    **dict.fromkeys(("binom", "binomial", "dbinom", "tbinom", "comb", "nCr"), "choose"),
    "fact": "factorial",
    "loge": "ln",
    "Log": "log",
    "lg": "log",
    "Ln": "ln",
    "ceiling": "ceil",
    "σ": "sigmoid",
    "sigma": "sigmoid",
    "Sigmoid": "sigmoid",
    "logistic": "sigmoid",
    "ReLU": "relu",
    "√": "sqrt",
}
for _name in ("asin", "acos"):
    FUNCTIONS[_name] = _of_float(getattr(math, _name))
_ARITIES = {"root": (2, 2), "choose": (2, 2), "log": (1, 2), "max": (1, 50), "min": (1, 50)}
_CONSTANTS = {"e": math.e, "π": math.pi, "pi": math.pi, "Pi": math.pi}


# Tokens.

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺"
_THOUSANDS = r"[0-9]{1,3}(?:(?:,|_|'|\u2009|\u202f|\u00a0)[0-9]{3})+(?![0-9])"
_TOKENS = re.compile(
    rf"""
    (?P<space>[ \t\n\r]+)
    |(?P<number>(?:{_THOUSANDS}|[0-9]+)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{{1,5}}(?![0-9A-Za-z]))?
        |\.[0-9]+(?:[eE][+-]?[0-9]{{1,5}})?)
    |(?P<logarithm>\\?(?:log|lb|ld)(?:(?:\s*_\s*\{{?\s*)?(?P<base>10|2|e)\s*\}}?(?![0-9A-Za-z])|(?P<low>₂|₁₀))
        |\\?l[bd](?![A-Za-z]))
    |(?P<fraction>\\[dt]?frac(?![A-Za-z]))
    |(?P<name>\\?(?:(?![{_RAISED}])[^\W\d_])+(?:_(?:\{{[A-Za-z0-9]+\}}|[A-Za-z0-9]+))*[0-9]*)
    |(?P<raised>[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+)
    |(?P<sign>\*\*|[-+*/^()\[\]{{}},!%√|:;])
    """,
    re.VERBOSE,
)
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_EQUALITY = re.compile(r":=|==|=|≈|≃|≅|≐|≡")
_ELLIPSIS = re.compile(r"(?<=\d)\s*(?:…|\.\.\.+|\\[lc]?dots)\s*$")  # 0.666… is cut, not rounded
_APPROXIMATION = re.compile(r"\s*(?:about|approximately|approx\.?|roughly|circa|ca\.?|some|~|≈|≃)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class MathToken:
    """A number, name or sign with its position."""

    kind: str
    text: str
    start: int
    end: int
    is_after_blank: bool = False


def tokenize(source: SourceText) -> list[MathToken]:
    """Split an expression into tokens; the last is of the kind `end`."""
    tokens: list[MathToken] = []
    position, blank = 0, False
    while position < len(source.text):
        match = _TOKENS.match(source.text, position)
        if match is None:
            raise source.error_at(position, f"'{source.text[position]}' is not read in arithmetic.")
        kind = next(name for name in _KINDS if match[name] is not None)
        if kind == "space":
            blank = True
        else:
            text = match.group()
            if kind == "sign":
                kind = {"**": "^"}.get(text, text)
            tokens.append(MathToken(kind, text, position, match.end(), blank))
            blank = False
        position = match.end()
        if len(tokens) > MAX_TOKENS:
            raise InputError(f"an expression has at most {MAX_TOKENS} numbers, names and signs; write it shorter.")
    return [*tokens, MathToken("end", "", len(source.text), len(source.text), blank)]


_KINDS = ("space", "number", "logarithm", "fraction", "name", "raised", "sign")


class _ArithmeticParser:
    """A recursive-descent parser of one expression."""

    def __init__(self, text: str, letters: Mapping[str, Evaluation], has_bits: bool = False) -> None:
        self.source = SourceText(text, "arithmetic, character")
        self.tokens, self.index, self.depth = tokenize(self.source), 0, 0
        self.letters, self.has_bits = letters, has_bits
        self.notes: list[str] = []

    @property
    def current(self) -> MathToken:
        """The next token."""
        return self.tokens[self.index]

    def take(self) -> MathToken:
        """Return the next token and move past it."""
        token = self.current
        self.index += token.kind != "end"
        return token

    def take_if(self, *kinds: str) -> MathToken | None:
        """Return the next token and move past it if it is of one of these kinds."""
        return self.take() if self.current.kind in kinds else None

    def error(self, message: str, token: MathToken | None = None) -> InputError:
        """Return an error with a caret under a token, by default the next."""
        return self.source.error_at(min((token or self.current).start, len(self.source.text)), message)

    def text_from(self, start: int) -> str:
        """Return the text from the token at an index up to the next token."""
        return self.source.text[self.tokens[start].start : self.tokens[max(self.index - 1, start)].end].strip()

    def parse(self) -> MathNode:
        """Return the whole expression."""
        node = self.sum()
        if self.current.kind != "end":
            raise self.error(f"'{self.current.text[:20]}' does not fit here.")
        return node

    def sum(self) -> MathNode:
        """Read a sum of products."""
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise self.error(f"brackets nest more than {MAX_NESTING} deep.")
        start = self.index
        terms = [(1, self.product())]
        while sign := self.take_if("+", "-"):
            terms.append((1 if sign.kind == "+" else -1, self.product()))
        self.depth -= 1
        return terms[0][1] if len(terms) == 1 else SumNode(self.text_from(start), tuple(terms))

    def product(self) -> MathNode:
        """Read factors with *, / or nothing between them."""
        start = self.index
        factors: list[tuple[int, MathNode]] = [(1, self.signed())]
        last, divided = "", None
        while True:
            token = self.current
            if token.kind in ("*", "/") or self._is_times(token):
                self.take()
                if token.kind != "/" and self._is_end():  # 33× and 33 x
                    break
                last, divided = token.kind, token
                factors.append((-1 if token.kind == "/" else 1, self.signed()))
            elif token.kind == "name" and token.text in ("choose", "\\choose"):
                self.take()
                number = self._pack(factors, start)
                combination = CallNode("", "choose", (number, self.signed()))
                factors = [(1, replace(combination, text=self.text_from(start)))]
            elif self._is_unit(token) and token.text not in ("choose",):
                factors += self._units()
            elif self._starts_operand(token):
                if last == "/" and divided is not None and not self._is_tight_fraction(start):
                    raise self.error("a/b c can be read as a/(b*c) or as (a/b)*c; put brackets.", divided)
                if token.kind == "number" and self.tokens[self.index - 1].kind == "number":
                    raise self.error("two numbers side by side; put * between them.")
                factors.append((1, self.signed_free()))
                last = "implicit"
            else:
                break
        return self._pack(factors, start)

    def _pack(self, factors: list[tuple[int, MathNode]], start: int) -> MathNode:
        return factors[0][1] if len(factors) == 1 else ProductNode(self.text_from(start), tuple(factors))

    def _is_times(self, token: MathToken) -> bool:
        """Return whether a name is an x that means "times", as in 3 x 4 and 33x."""
        return token.kind == "name" and token.text in ("x", "X") and token.text not in self.letters

    def _is_end(self) -> bool:
        return self.current.kind in ("end", ")", "]", "}", ",")

    def _is_tight_fraction(self, start: int) -> bool:
        """Return whether the factors so far are a fraction such as 1/2, written without blanks before a blank."""
        tokens = self.tokens[start : self.index]
        kinds = [token.kind for token in tokens]
        blanks = any(token.is_after_blank for token in tokens[1:])
        return kinds[-3:] == ["number", "/", "number"] and not blanks and self.current.is_after_blank

    def _starts_operand(self, token: MathToken) -> bool:
        kinds = ("number", "name", "logarithm", "fraction", "(", "[", "{", "√", "|")
        return token.kind in kinds and not (token.kind == "|" and self._in_bars)

    _in_bars = False

    def signed(self) -> MathNode:
        """Read a power with signs before it."""
        start, sign = self.index, 1
        while token := self.take_if("+", "-"):
            sign *= -1 if token.kind == "-" else 1
        node = self.signed_free()
        return node if sign > 0 else SumNode(self.text_from(start), ((-1, node),))

    def signed_free(self) -> MathNode:
        """Read a power: a number, letter, function or bracket with its exponents, units and percent signs."""
        start = self.index
        node = self._postfix(self.primary(), start)
        if raised := self.take_if("raised"):
            digits = raised.text.translate(_SUPERSCRIPTS)
            if not re.fullmatch(r"[+-]?\d{1,6}", digits):
                raise self.error(f"'{raised.text[:9]}' is not an exponent.", raised)
            exponent = LiteralNode(digits, WrittenNumber(digits, Fraction(int(digits)), Fraction(0), 0))
            node = PowerNode(self.text_from(start), node, exponent)
        elif self.take_if("^"):
            self.depth += 1
            if self.depth > MAX_NESTING:
                raise self.error(f"powers nest more than {MAX_NESTING} deep.")
            exponent = self.signed()
            self.depth -= 1
            node = PowerNode(self.text_from(start), node, exponent)
        return self._postfix(node, start)

    def _postfix(self, node: MathNode, start: int) -> MathNode:
        """Read factorials, percent signs and units after a number or bracket."""
        for _ in range(MAX_POSTFIXES):
            if self.take_if("!"):
                node = CallNode(self.text_from(start), "factorial", (node,))
            elif self.take_if("%"):
                unit = UnitNode("%", Fraction(1, 100))
                node = ProductNode(self.text_from(start), ((1, node), (1, unit)))
            elif self._is_unit(self.current) and not isinstance(node, LetterNode):
                units = self._units()
                node = ProductNode(self.text_from(start), ((1, node), *units))
            else:
                return node
        raise self.error(f"at most {MAX_POSTFIXES} signs may follow a number.")

    def _is_unit(self, token: MathToken) -> bool:
        """Return whether a name is a unit here; a letter with a value is not."""
        if token.kind != "name" or self._splits(token.text) or self._is_times(token):
            return False
        following = self.tokens[min(self.tokens.index(token) + 1, len(self.tokens) - 1)].kind
        is_minute = token.text == "min" and following != "("
        if token.text in _CONSTANTS or (token.text.lstrip("\\") in FUNCTION_NAMES and not is_minute):
            return False
        return find_unit(token.text, self.has_bits) is not None

    def _splits(self, name: str) -> list[str] | None:
        """Return the letters whose product a name is, or None."""
        return split_into_symbols(Token("name", normalize_letter(name), 0), self.letters) if self.letters else None

    def _units(self) -> list[tuple[int, MathNode]]:
        """Read a unit such as GB, TFLOP/s or tokens per second."""
        units: list[tuple[int, MathNode]] = []
        exponent = 1
        while True:
            token = self.take()
            unit = find_unit(token.text, self.has_bits)
            assert unit is not None
            units.append((exponent, UnitNode(token.text, unit.factor, unit.dimension)))
            if (token.text, self.current.text) in (("times", "as"),):
                break
            after = self.tokens[min(self.index + 1, len(self.tokens) - 1)]
            is_per = self.current.kind == "/" or self.current.text == "per"
            is_rate = after.text in TIME_UNITS and not after.is_after_blank  # in tokens/s, s is no letter
            if is_per and (self._is_unit(after) or is_rate):
                self.take()
                exponent = -1
            elif self._is_unit(self.current):
                continue
            else:
                break
        return units

    def primary(self) -> MathNode:
        """Read a number, letter, constant, function or bracket."""
        start, token = self.index, self.take()
        match token.kind:
            case "number":
                return LiteralNode(token.text, read_number_token(token.text, self))
            case "(" | "[" | "{":
                return self.bracket(token)
            case "fraction":
                numerator, denominator = self.group(token), self.group(token)
                return ProductNode(self.text_from(start), ((1, numerator), (-1, denominator)))
            case "logarithm":
                base = next((base for base in ("10", "2", "e") if base in token.text.translate(_LOW)), "2")
                name, number = ("ln", None) if base == "e" else ("log", Fraction(int(base)))
                exponent = self._function_exponent()
                argument = self.argument(token)
                arguments = (argument,)
                if number is not None:
                    arguments = (argument, LiteralNode(base, WrittenNumber(base, number, Fraction(0), 0)))
                node: MathNode = CallNode(self.text_from(start), name, arguments)
                return node if exponent is None else PowerNode(self.text_from(start), node, exponent)
            case "√":
                return CallNode("√", "sqrt", (self.argument(token),))
            case "|":
                self._in_bars = True
                node = self.sum()
                self._in_bars = False
                if not self.take_if("|"):
                    raise self.error("this bar is not closed.", token)
                return CallNode(self.text_from(start), "abs", (node,))
            case "name":
                return self.name(token, start)
            case _:
                actual = "the expression ends" if token.kind == "end" else f"got '{token.text[:20]}'"
                raise self.error(f"{actual} where a number or a bracket is expected.", token)

    def bracket(self, opening: MathToken) -> MathNode:
        """Read an expression and the bracket that closes it."""
        bars, self._in_bars = self._in_bars, False
        node = self.sum()
        self._in_bars = bars
        if not self.take_if(_CLOSING[opening.kind]):
            raise self.error(f"this bracket is not closed by '{_CLOSING[opening.kind]}'.", opening)
        return node

    def group(self, token: MathToken) -> MathNode:
        """Read a group in braces, or a single digit, as LaTeX does."""
        if opening := self.take_if("{", "("):
            return self.bracket(opening)
        if self.current.kind == "number" and len(self.current.text) == 2 and self.current.text.isdigit():
            number = self.take()  # \frac12
            digits = [MathToken("number", digit, number.start, number.end) for digit in number.text]
            self.index -= 1
            self.tokens[self.index : self.index + 1] = digits
        if self.current.kind in ("number", "name"):
            return self.primary()
        raise self.error("\\frac takes two groups in braces: \\frac{a}{b}.", token)

    def _function_exponent(self) -> MathNode | None:
        """Read the exponent of a function before its argument, as in log^2(8)."""
        return self.signed() if self.take_if("^") else None

    def argument(self, token: MathToken) -> MathNode:
        """Read the argument of a function, in brackets or the next power; 2/3 without blanks is one argument."""
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise self.error(f"functions nest more than {MAX_NESTING} deep.", token)
        if opening := self.take_if("(", "[", "{"):
            node = self.bracket(opening)
        else:
            start = self.index
            node = self.signed()
            if self.current.kind == "/":
                divisor = self.tokens[self.index + 1]
                is_tight = not (self.current.is_after_blank or divisor.is_after_blank)
                kinds = [node.kind for node in self.tokens[start : self.index]]
                following = self.tokens[min(self.index + 2, len(self.tokens) - 1)]
                if is_tight and kinds == ["number"] and divisor.kind == "number" and following.kind not in ("^", "/"):
                    self.take()
                    node = ProductNode(self.text_from(start), ((1, node), (-1, self.primary())))
                    node = replace(node, text=self.text_from(start))
                    self.notes.append(f"{token.text}({node.text})")
                else:
                    raise self.error(
                        f"{token.text} a/b can be read as {token.text}(a/b) or as {token.text}(a)/b; put brackets.",
                        token,
                    )
        self.depth -= 1
        return node

    def name(self, token: MathToken, start: int) -> MathNode:
        """Read a letter, a constant or a function."""
        word = token.text.lstrip("\\")
        if letters := self._splits(token.text):
            nodes: list[tuple[int, MathNode]] = [(1, LetterNode(letter, letter)) for letter in letters]
            if len(nodes) > 1 and self.current.kind in ("^", "raised"):  # of ND^2 only D is raised
                last = nodes.pop()[1]
                raised = self.take()
                if raised.kind == "raised":
                    digits = raised.text.translate(_SUPERSCRIPTS)
                    exponent: MathNode = LiteralNode(
                        digits, WrittenNumber(digits, Fraction(int(digits)), Fraction(0), 0)
                    )
                else:
                    exponent = self.signed()
                nodes.append((1, PowerNode(self.text_from(start), last, exponent)))
            if len(nodes) > 1:
                self.notes.append("·".join(letters))
            return nodes[0][1] if len(nodes) == 1 else ProductNode(self.text_from(start), tuple(nodes))
        if word in _CONSTANTS:
            value = Fraction(_CONSTANTS[word])
            return LiteralNode(word, WrittenNumber(word, value, Fraction(0)))
        if token.text == "C" and self.current.kind == "(":
            word = "choose"
        name = FUNCTION_NAMES.get(word, "")
        if name:
            return self.function(token, name, start)
        raise self.error(self.explain_name(word), token)

    def explain_name(self, word: str) -> str:
        """Return a sentence on an unknown name."""
        if self.letters:
            return f"unknown letter '{word[:30]}'. Letters here: {', '.join(self.letters)}."
        return f"'{word[:30]}' is not a number, a unit or a function that is known here."

    def function(self, token: MathToken, name: str, start: int) -> MathNode:
        """Read the arguments of a function."""
        if name == "sqrt" and self.take_if("["):
            degree = self.sum()
            if not self.take_if("]"):
                raise self.error("\\sqrt[n]{x} is expected.", token)
            argument = self.argument(token)
            return CallNode(self.text_from(start), "root", (argument, degree))
        low, high = _ARITIES.get(name, (1, 1))
        exponent = self._function_exponent()
        if high == 1:
            arguments = [self.argument(token)]
        elif token.text.startswith("\\") and self.current.kind == "{":  # \binom{5}{2}
            arguments = [self.group(token) for _ in range(low)]
        elif opening := self.take_if("(", "[", "{"):
            arguments = [self.sum()]
            while self.take_if(","):
                arguments.append(self.sum())
            if not self.take_if(_CLOSING[opening.kind]):
                raise self.error("this bracket is not closed.", opening)
        else:
            arguments = [self.argument(token)]
        if not low <= len(arguments) <= high:
            raise self.error(f"{token.text} takes {low} arguments.", token)
        node: MathNode = CallNode(self.text_from(start), name, tuple(arguments))
        return node if exponent is None else PowerNode(self.text_from(start), node, exponent)


_LOW = str.maketrans({"₂": "2", "₁": "1", "₀": "0"})


def read_number_token(text: str, parser: _ArithmeticParser) -> WrittenNumber:
    """Return the number of a token."""
    number = read_literal(text)
    if number is None:
        raise parser.error(f"'{text[:20]}' is not read as a number.")
    return number


def normalize_letter(name: str) -> str:
    """Return a name without the signs of LaTeX, as in d_ff for d_{ff}.

    >>> normalize_letter("d_{ff}"), normalize_letter("\\\\alpha")
    ('d_ff', 'alpha')
    """
    return name.lstrip("\\").replace("{", "").replace("}", "")


def parse_expression(text: str, letters: Mapping[str, Evaluation] | None = None, has_bits: bool = False) -> MathNode:
    """Return the expression that a text writes, without a sign of equality; raise an InputError for another text.

    >>> float(ArithmeticEvaluator().evaluate(parse_expression(r"\\frac{2}{3} \\cdot 0.5")).value)
    0.3333333333333333
    """
    if len(text) > MAX_CHARS:
        raise InputError(f"the arithmetic has {len(text):,} characters; at most {MAX_CHARS:,} are read.")
    return move_trailing_unit(_ArithmeticParser(prepare_text(text), letters or {}, has_bits).parse())


def prepare_text(text: str) -> str:
    """Return a text in the characters that the parser reads."""
    return normalize_notation(text).rstrip(" .;")


# Chains of equations.


@dataclass(frozen=True)
class Member:
    """An expression in a chain, with its value.

    Attributes:
        single_number: the number in its unit, if the expression is a single number; otherwise None.
        tolerance: how far the value may be off because decimals in the expression were rounded.
        has_free_log: whether it has a logarithm without a base.
    """

    text: str
    node: MathNode
    evaluation: Evaluation
    single_number: WrittenNumber | None
    scale: Scalar
    tolerance: Scalar
    has_free_log: bool = False
    notes: tuple[str, ...] = ()

    @property
    def has_letters(self) -> bool:
        """True if the expression has letters."""
        return any(isinstance(node, LetterNode) for node in walk(self.node))

    @property
    def number(self) -> WrittenNumber:
        """The value in base units, with the precision with which it is written."""
        value, scale = self.evaluation.value, to_fraction(self.scale)
        if self.single_number is not None:
            return replace(
                self.single_number, value=self.single_number.value * scale, unit=self.single_number.unit * scale
            )
        unit = Fraction(0) if isinstance(value, Fraction) else abs(to_fraction(value)) * FLOAT_TOLERANCE / 100
        digits = min((count_digits(literal.number) for literal in rounded_literals(self.node)), default=0)
        tolerance = to_fraction(self.tolerance)
        if digits >= MIN_TRUSTED_DIGITS and tolerance <= abs(to_fraction(value)) / 100:
            unit += 2 * tolerance  # 0.333*0.5 claims no more digits than 0.333
        return WrittenNumber(self.text, to_fraction(value), unit)


@dataclass(frozen=True)
class WrittenQuantity:
    """A number, an expression or a chain of them, as in 2/3*0.5 = 0.333, as it was read.

    Attributes:
        members: the expressions; those with unknown names, as in P = C(a)/C(b) = 2/3, are left out.
        wrong_steps: sentences on equations that do not hold.
        notes: how the text was read where that is not obvious.
        is_cut: whether the last number ends with dots, as in 0.666…, so that it may be off by a unit.
    """

    text: str
    members: tuple[Member, ...]
    wrong_steps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    is_cut: bool = False

    @property
    def last(self) -> Member:
        """The last expression, which is the answer."""
        return self.members[-1]

    @property
    def number(self) -> WrittenNumber:
        """The last number in base units (seconds, bytes, FLOPs), with its written precision."""
        number = self.last.number
        return replace(number, text=self.text.strip(), unit=number.unit * 2 if self.is_cut else number.unit)

    @property
    def dimension(self) -> Dimension:
        """The dimension of the last expression."""
        return self.last.evaluation.dimension

    @property
    def units(self) -> list[str]:
        """The units of the last expression, as written."""
        return [part.text for part in walk(self.last.node) if isinstance(part, UnitNode)]

    @property
    def has_free_log(self) -> bool:
        """True if the value depends on the base of a logarithm that is not written."""
        return self.last.has_free_log

    @cached_property
    def echo(self) -> str:
        """The reading of the text, where that is not obvious."""
        return "; ".join(dict.fromkeys(self.notes))


def to_fraction(value: Scalar) -> Fraction:
    """Return a value as a fraction."""
    return value if isinstance(value, Fraction) else Fraction(value)


def shorten_text(text: str, length: int = 60) -> str:
    """Return a text in a single line of at most this length."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1]}…"


def read_quantity(
    text: str,
    letters: Mapping[str, Evaluation] | None = None,
    *,
    log_base: float | None = None,
    has_bits: bool = False,
    decimal_comma: bool = False,
) -> WrittenQuantity:
    """Read a number, an expression or a chain of equations; the last expression is the value.

    Args:
        letters: values of letters that may be used.
        log_base: base of logarithms without one; by default the natural one, or the one with which the steps hold.
        has_bits: whether bits are an eighth of a byte; otherwise they are a plain number, as for an entropy.
        decimal_comma: whether a comma is a decimal point, and a point separates thousands.

    >>> quantity = read_quantity("3*4.51e12*1024*400e3/(0.5*19.5e12)/86400 ≈ 6578 days")
    >>> float(quantity.number.value / 86400), quantity.wrong_steps
    (6578.0, ())
    >>> read_quantity("2/3*0.5 = 0.34").wrong_steps
    ('2/3*0.5 = 0.34 is wrong: 0.333',)
    """
    if len(text) > MAX_CHARS:
        raise InputError(f"the arithmetic has {len(text):,} characters; at most {MAX_CHARS:,} are read.")
    bases = LOG_BASES if log_base is None else (log_base,)
    is_cut = _ELLIPSIS.search(text) is not None
    prepared = prepare_text(_ELLIPSIS.sub("", text))
    comma_note = ""
    if decimal_comma:
        prepared = exchange_separators(prepared)
    elif has_decimal_comma(prepared):
        first = _DECIMAL_COMMA.search(prepared)
        comma_note = f"{first.group().replace(',', '.')} (a decimal comma)" if first else ""
        prepared = re.sub(r"(?<=\d),(?=\d)", ".", prepared)
    pieces = [piece for piece in _EQUALITY.split(prepared) if piece.strip()]
    if not pieces:
        raise InputError("a number is missing: write one such as 0.25, 3/14 or 2/3*0.5 = 0.333.")
    if len(pieces) > MAX_MEMBERS:
        raise InputError(f"a chain has at most {MAX_MEMBERS} steps; write it in several lines.")
    parsed: list[tuple[str, MathNode, tuple[str, ...]] | None] = []
    for index, piece in enumerate(pieces):
        is_approximate = bool(_APPROXIMATION.match(piece)) or "≈" in prepared
        piece = _APPROXIMATION.sub("", piece, count=1) if _APPROXIMATION.match(piece) else piece
        parser = None
        try:
            parser = _ArithmeticParser(piece.strip().rstrip(".").strip(), letters or {}, has_bits)
            node = parser.parse()
        except InputError:
            if index == len(pieces) - 1:
                raise
            parsed.append(None)
            continue
        parsed.append(
            (f"{'~' if is_approximate and index == len(pieces) - 1 else ''}{piece.strip()}", node, (*parser.notes,))
        )
    skipped = [piece.strip() for piece, entry in zip(pieces, parsed, strict=True) if entry is None]
    best: WrittenQuantity | None = None
    for base in bases:
        evaluator = ArithmeticEvaluator(letters or {}, base)
        members = tuple(_evaluate_member(entry, evaluator) for entry in parsed if entry is not None)
        has_log = any(member.has_free_log for member in members)
        wrong = tuple(_check_steps(members))
        notes = [comma_note] * bool(comma_note) + [note for member in members for note in member.notes]
        if skipped and not any(character.isalpha() for character in skipped[-1]):
            notes.append(f"{shorten_text(pieces[-1], 40)}; {shorten_text(skipped[-1], 40)} is not checked")
        if has_log:
            notes.append({math.e: "a natural logarithm"}.get(base, f"a logarithm to base {base:g}"))
        quantity = WrittenQuantity(text, members, wrong, tuple(notes), is_cut)
        if best is None or len(wrong) < len(best.wrong_steps):
            best = quantity
        if not has_log or not best.wrong_steps:
            break
    assert best is not None
    return best


_DECIMAL_COMMA = re.compile(r"(?<![\d.,])(?:0\d*,\d+|\d+,(?:\d{1,2}|\d{4,}))(?![\d,.])")
_MULTI_ARGUMENT_CALL = re.compile(r"(?:choose|binom|comb|log|max|min|C|nCr)[\w{}\\]*\s*\(", re.IGNORECASE)


def has_decimal_comma(text: str) -> bool:
    """Return whether a comma in a text can only be a decimal comma, as in 0,5, and no number has a decimal point.

    >>> has_decimal_comma("0,5*1,25"), has_decimal_comma("1,537"), has_decimal_comma("log(8, 2)")
    (True, False, False)
    """
    if _MULTI_ARGUMENT_CALL.search(text) or re.search(r"\d\.\d", text):
        return False
    return _DECIMAL_COMMA.search(text) is not None


def exchange_separators(text: str) -> str:
    """Return a text with points for commas and commas for points in its numbers.

    >>> exchange_separators("1.234,5 + 0,5")
    '1,234.5 + 0.5'
    """
    swap = str.maketrans(",.", ".,")
    return re.sub(r"\d[\d.,]*\d|,\d+", lambda match: match.group().translate(swap), text)


def _evaluate_member(entry: tuple[str, MathNode, tuple[str, ...]], evaluator: ArithmeticEvaluator) -> Member:
    """Return a member of a chain with its value, written precision and tolerance."""
    text, node, notes = entry
    is_approximate, text = text.startswith("~"), text.removeprefix("~")
    node = move_trailing_unit(node)
    evaluation = evaluator.evaluate(node)
    single_number, scale = find_single_number(node, is_approximate)
    tolerance: Scalar = Fraction(0)
    for literal in rounded_literals(node) if single_number is None else []:
        number = literal.number
        shifted = replace(evaluator, replaced={id(literal): number.value + number.unit / 2})
        try:
            tolerance += abs(to_fraction(shifted.evaluate(node).value) - to_fraction(evaluation.value))
        except InputError:
            continue
    has_log = any(isinstance(part, CallNode) and part.name == "log" and len(part.arguments) == 1 for part in walk(node))
    return Member(text, node, evaluation, single_number, scale, tolerance, has_log, notes)


def move_trailing_unit(node: MathNode) -> MathNode:
    """Return an expression such as 12e9/86400 days, where the unit is that of the result, as (12e9/86400) days."""
    if not isinstance(node, ProductNode) or len(node.factors) < 2:
        return node
    exponent, last = node.factors[-1]
    units = [part for part in walk(node) if isinstance(part, UnitNode) and part.dimension]
    is_bracket = not node.text.rstrip().endswith(last.text.rstrip())
    if exponent > 0 or not isinstance(last, ProductNode) or not units or is_bracket:
        return node
    inner = [part for _, part in last.factors]
    if [part for part in inner if isinstance(part, UnitNode) and part.dimension] != units:
        return node
    numbers = tuple((power, part) for power, part in last.factors if not isinstance(part, UnitNode))
    trailing = tuple((power, part) for power, part in last.factors if isinstance(part, UnitNode))
    divisors = tuple((-power, part) for power, part in numbers)
    return ProductNode(node.text, (*node.factors[:-1], *divisors, *trailing))


MAX_ROUNDED_LITERALS = 40


def rounded_literals(node: MathNode) -> list[LiteralNode]:
    """Return the decimals of an expression that may have been rounded, such as 0.33 or 4.51e12; not 0.5 or 0.25."""
    literals: list[LiteralNode] = []
    for part in walk(node):
        if not isinstance(part, LiteralNode) or not part.number.unit:
            continue
        if count_digits(part.number) >= MIN_ROUNDED_DIGITS and part.number.value / part.number.unit % 5:
            literals.append(part)
    return literals[:MAX_ROUNDED_LITERALS]


def count_digits(number: WrittenNumber) -> int:
    """Return the number of significant digits of a rounded number."""
    return len(str(abs(int(number.value / number.unit)))) if number.unit else 0


def find_single_number(node: MathNode, is_approximate: bool) -> tuple[WrittenNumber | None, Scalar]:
    """Return the number that an expression is, if it is a single one, and the factor of its unit.

    A power of ten belongs to the number: 6.02·10^23 has three digits.
    """
    sign = 1
    if isinstance(node, SumNode) and len(node.terms) == 1:
        sign, node = node.terms[0]
    scale: Scalar = Fraction(1)
    is_percent, number = False, None
    power = Fraction(1)
    factors = flatten(node)
    for index, (exponent, factor) in enumerate(factors):
        if index == 0 and isinstance(factor, LiteralNode) and factor.text not in _CONSTANTS:
            number = factor.number
        elif isinstance(factor, UnitNode):
            scale = scale * factor.factor if exponent > 0 else scale / factor.factor
            is_percent |= factor.text == "%" or factor.text in ("percent",)
        elif index and exponent > 0 and (ten := power_of_ten(factor)):
            power *= ten
        else:
            return None, Fraction(1)
    if number is None:
        return None, Fraction(1)
    digits, unit = number.value * sign, number.unit
    has_scale = power != 1 or (scale != 1 and not is_percent)
    if not number.decimals and unit == 0 and has_scale:
        unit = Fraction(1)
    if is_approximate and not number.decimals and unit <= 1 and digits:
        zeros = len(str(abs(int(digits)))) - len(str(abs(int(digits))).rstrip("0"))
        unit = Fraction(10**zeros)
    if is_percent:
        unit = Fraction(1, 10 ** (number.decimals or 0))
    return replace(number, value=digits * power, unit=unit * power, is_percent=is_percent), scale


def power_of_ten(node: MathNode) -> Fraction | None:
    """Return the value of 10^n, or None for another expression."""
    if not isinstance(node, PowerNode) or not isinstance(node.base, LiteralNode) or node.base.number.value != 10:
        return None
    evaluation = (
        ArithmeticEvaluator().evaluate(node.exponent)
        if not any(isinstance(x, LetterNode) for x in walk(node))
        else None
    )
    if evaluation is None or not isinstance(evaluation.value, Fraction) or evaluation.value.denominator != 1:
        return None
    return Fraction(10) ** int(evaluation.value) if abs(evaluation.value) <= 300 else None


def flatten(node: MathNode, exponent: int = 1) -> list[tuple[int, MathNode]]:
    """Return the factors of products within products."""
    if isinstance(node, ProductNode):
        return [pair for power, factor in node.factors for pair in flatten(factor, exponent * power)]
    return [(exponent, node)]


def _check_steps(members: tuple[Member, ...]) -> Iterator[str]:
    """Yield sentences on the equations of a chain that do not hold."""
    for left, right in pairwise(members):
        if not is_consistent(left, right):
            step = f"{shorten_text(left.text)} = {shorten_text(right.text)}"
            yield f"{step} is wrong: {format_for_comparison(left, right)}"


def is_consistent(left: Member, right: Member) -> bool:
    """Return whether two members of a chain are equal, to the digits with which their numbers are written."""
    first = to_fraction(left.evaluation.value)
    scales = {to_fraction(right.scale), Fraction(1)} if right.single_number else {Fraction(1)}
    right_value = to_fraction(right.evaluation.value)
    candidates: list[tuple[Fraction, Fraction]] = [
        (right_value, right.number.unit if right.single_number else Fraction(0))
    ]
    if bool(left.evaluation.dimension) != bool(right.evaluation.dimension):  # the unit is written on one side only
        if right.single_number is not None:
            candidates += [(right.number.value / scale, right.number.unit / scale) for scale in scales]
        if left.single_number is not None:
            candidates.append((right_value * to_fraction(left.scale), Fraction(0)))
        if right.single_number is None and right.evaluation.dimension:
            stripped = strip_units(right.node)
            if stripped is not None:
                candidates.append((to_fraction(ArithmeticEvaluator().evaluate(stripped).value), Fraction(0)))
    if left.single_number is not None and left.single_number.is_percent and right.single_number is not None:
        candidates.append((right.number.value / 100, right.number.unit / 100))
    is_rounded = (
        right.single_number is not None
        and right.number.unit == 0
        and right_value.denominator == 1
        and abs(right_value) >= 100
    )
    if is_rounded and first.denominator != 1:  # 6583 for 6583.4
        candidates = [(value, value / right_value) for value, _ in candidates]
    left_slack = left.number.unit / 2 if left.single_number is not None else Fraction(0)
    for value, unit in candidates:
        slack = min(abs(Fraction(unit)) / 2, MAX_RELATIVE_ERROR * abs(first) if unit >= 1 else abs(Fraction(unit)))
        slack += to_fraction(left.tolerance) + to_fraction(right.tolerance) + left_slack
        if abs(value - first) <= slack + FLOAT_TOLERANCE * max(abs(first), abs(value)):
            return True
    return False


def strip_units(node: MathNode) -> MathNode | None:
    """Return an expression without its trailing units, or None if it has letters."""
    if any(isinstance(part, LetterNode) for part in walk(node)) or not isinstance(node, ProductNode):
        return None
    factors = tuple((power, part) for power, part in node.factors if not isinstance(part, UnitNode))
    return ProductNode(node.text, factors) if factors else None


def format_for_comparison(left: Member, right: Member) -> str:
    """Return the value of a member as text, with a decimal more than the other member has, at least 3 digits."""
    value = to_fraction(left.evaluation.value)
    scale = (
        to_fraction(right.scale)
        if right.single_number and (left.evaluation.dimension or right.single_number.is_percent)
        else 1
    )
    return f"{format_scalar(value / scale)}{f' {unit}' if scale != 1 and (unit := unit_text(right.node)) else ''}"


def unit_text(node: MathNode) -> str:
    """Return the units of an expression as text."""
    texts = [f"{'/' if power < 0 else ''}{part.text}" for power, part in flatten(node) if isinstance(part, UnitNode)]
    return "".join(texts)


def format_scalar(value: Scalar, digits: int = 3) -> str:
    """Return a number as text: whole numbers in full, others with some significant digits.

    >>> format_scalar(Fraction(1, 3)), format_scalar(Fraction(124439808)), format_scalar(6578.4, 6)
    ('0.333', '124,439,808', '6,578.4')
    """
    fraction = to_fraction(value)
    if fraction.denominator == 1 and abs(fraction) < 10**15:
        return f"{int(fraction):,}".replace("-", "−")
    number = float(fraction)
    if 1e-4 <= abs(number) < 1e15:
        num_integer_digits = len(str(int(abs(number)))) if abs(number) >= 1 else 0
        text = f"{number:,.{max(digits, min(num_integer_digits + 1, 12))}g}"
        return text.replace("-", "−")
    return f"{number:.{digits - 1}e}".replace("-", "−")
