"""Formulas that people write, read exactly and safely: from tokens to a value, by recursive descent."""

from collections.abc import Callable, Collection
from fractions import Fraction

from lemma.checking.tokens import Cursor, SourceText, Token, formula_tokens, named
from lemma.counting.polynomial import Calculator, Rational, of, symbol
from lemma.errors import InputError, unknown

DEEPEST_NESTING = 60
_LONGEST_RUN = 200
_SHOWN = 40
_FUNCTIONS = """
    sqrt root log ln exp sin cos tan tanh sigmoid softmax max min abs floor ceil round sum prod pow binom int float
    lfloor rfloor lceil rceil factorial mod bmod pmod
"""
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_STARTS = frozenset({"number", "name", "command", "fraction", "bar", *_CLOSING})
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")


def read_formula(text: str, known: Collection[str]) -> Rational:
    r"""Read a formula in these symbols, Python-like or in simple LaTeX. Nothing is ever evaluated as code.

    >>> read_formula(r"|V|(d+d_h) + ((N-1)d+1)d_h", ["V", "d", "d_h", "N"]).at({"V": 9, "d": 2, "d_h": 3, "N": 3})
    Fraction(60, 1)
    """
    source = SourceText(text, "formula, character")
    tokens = formula_tokens(source)
    if len(tokens) == 1:
        raise InputError(f"the formula is empty; write one in {', '.join(known)}")
    signs = [index for index, token in enumerate(tokens) if token.kind == "="]
    if signs:  # a person gave their formula a name, as in P = …
        left = [token for token in tokens[: signs[0]] if token.kind != "bar"]
        if len(signs) > 1:
            raise source.mistake(tokens[signs[1]].position, "a formula has one = at most.")
        if len(left) > 1 or any(token.kind != "name" or token.text in known for token in left):
            said = "only a new name may come before =; write the formula alone."
            raise source.mistake(tokens[signs[0]].position, said)
        tokens = tokens[signs[0] + 1 :]
    return _FormulaParser(source, tokens, known).whole()


def symbols_of(token: Token, known: Collection[str]) -> list[str] | None:
    """The known symbols whose product a name is: itself, or the longest ones it can be cut into; None if it cannot.

    A subscript in braces is never cut.

    >>> symbols_of(Token("name", "dd_h", 0), ["V", "d", "d_h", "h"])
    ['d', 'd_h']
    """
    word, end = token.text, len(token.text)
    if word in known or end > _LONGEST_RUN:
        return [word] if word in known else None
    longest = max(map(len, known), default=0)
    cut: dict[int, list[str]] = {end: []}
    for start in range(end - max(token.bound, 1), -1, -1):
        for stop in range(min(end, start + longest), start, -1):
            if stop in cut and word[start:stop] in known:
                cut[start] = [word[start:stop], *cut[stop]]
                break
    return cut.get(0)


def why_unknown(word: str, known: Collection[str]) -> str:
    """Say why a name is not read, and which one may have been meant.

    >>> why_unknown("v", ["V", "d"])
    "symbol = 'v' is unknown. Did you mean 'V'? Known: V, d."
    """
    if word in _FUNCTIONS.split():
        return f"'{word}' is a function; formulas here are rational: sums, products, quotients and whole powers."
    shown = word if len(word) <= _SHOWN else word[:_SHOWN] + "…"
    twin = next((name for name in known if name.casefold() == word.casefold()), None)
    if twin:
        return f"symbol = '{shown}' is unknown. Did you mean '{twin}'? Known: {', '.join(known)}."
    strange = [named(character) for character in shown if not character.isascii() and character != "…"]
    remark = f" It holds {strange[0]}." if strange else ""
    return unknown("symbol", shown, known) + remark


class _FormulaParser(Cursor):
    """A formula is a sum of products of signed powers of primaries."""

    def __init__(self, source: SourceText, tokens: list[Token], known: Collection[str]) -> None:
        super().__init__(source, tokens)
        self.known, self.depth, self.calculator = known, 0, Calculator()

    def whole(self) -> Rational:
        """The value of all tokens."""
        value = self.sum()
        if self.here.kind != "end":
            raise self.wrong(f"'{self.here.text[:20]}' does not fit here.")
        return value

    def worked_out(self, token: Token, operation: Callable[..., Rational], *values: object) -> Rational:
        """The result of an operation; where it fails, the error shows the token."""
        try:
            return operation(*values)
        except InputError as error:
            raise self.wrong(f"{error}.", token) from None

    def sum(self) -> Rational:
        """Products with + and − between them."""
        self.depth += 1
        if self.depth > DEEPEST_NESTING:
            raise self.wrong(f"brackets and signs nest more than {DEEPEST_NESTING} deep.")
        first, parts = self.here, [self.product()]
        while sign := self.take_if("+", "-"):
            parts.append(self.product() if sign.kind == "+" else -self.product())
        self.depth -= 1
        return self.worked_out(first, self.calculator.add, parts)

    def product(self) -> Rational:
        """Factors with *, / or nothing between them."""
        value, last = self.signed(), None
        while self.here.kind in ("*", "/", *_STARTS):
            sign = self.take_if("*", "/") or self.nothing_between(last)
            right = self.signed()
            operation = self.calculator.divide if sign.kind == "/" else self.calculator.multiply
            value, last = self.worked_out(sign, operation, value, right), sign
        return value

    def nothing_between(self, last: Token | None) -> Token:
        """The place of a product without a sign, unless it could be read in two ways."""
        if last is not None and last.kind == "/":
            raise self.wrong("a/b c can be read as a/(b*c) or as (a/b)*c; put brackets.", last)
        if self.here.kind == "number" and self.tokens[self.place - 1].kind == "number":
            raise self.wrong("two numbers side by side; put * between them.")
        return Token("implicit", "", self.here.position)

    def signed(self) -> Rational:
        """A power, with signs before it."""
        negative = False
        while sign := self.take_if("+", "-"):
            negative ^= sign.kind == "-"
        value = self.power()
        return -value if negative else value

    def power(self) -> Rational:
        """A primary with its exponents.

        Of symbols written together only the last one is raised: Ld^2 is L times d^2, as in print.
        """
        first = self.here
        if first.kind not in ("name", "command"):
            return self.raised_by_what_follows(self.primary())
        *others, last = self.names(self.take())
        return self.multiplied(first, [*others, self.raised_by_what_follows(last)])

    def raised_by_what_follows(self, value: Rational) -> Rational:
        """A value with the exponents behind it, if there are any; they group from the right."""
        while token := self.take_if("raised"):
            digits = token.text.translate(_RAISED)
            if not digits.removeprefix("-").isdecimal() or len(digits) > 3:
                raise self.wrong(f"'{token.text[:9]}' is not an exponent.", token)
            value = self.worked_out(token, self.calculator.power, value, Rational(of(int(digits))))
        token = self.take_if("^")
        if token is None:
            return value
        self.depth += 1
        if self.depth > DEEPEST_NESTING:
            raise self.wrong(f"powers nest more than {DEEPEST_NESTING} deep.", token)
        exponent = self.signed()
        self.depth -= 1
        return self.worked_out(token, self.calculator.power, value, exponent)

    def primary(self) -> Rational:
        """A number, a symbol, a bracket, a fraction or |V|."""
        token = self.take()
        if token.kind == "number":
            return Rational(of(Fraction(token.text)))
        if token.kind in _CLOSING:
            return self.bracket(token)
        if token.kind in ("name", "command"):
            return self.multiplied(token, self.names(token))
        if token.kind == "bar":
            return self.size(token)
        if token.kind == "fraction":
            return self.worked_out(token, self.calculator.divide, self.group(token), self.group(token))
        got = "the formula ends" if token.kind == "end" else f"got '{token.text[:20]}'"
        raise self.wrong(f"{got} where a number, a symbol or a bracket was expected.", token)

    def bracket(self, opening: Token) -> Rational:
        """The value of a bracket that has just been opened."""
        value, wanted = self.sum(), _CLOSING[opening.kind]
        if not self.take_if(wanted):
            raise self.wrong(f"this bracket is not closed by '{wanted}'.", opening)
        return value

    def group(self, command: Token) -> Rational:
        """An argument of \\frac."""
        opening = self.take()
        if opening.kind != "{":
            raise self.wrong("\\frac takes two groups in braces: \\frac{a}{b}.", command)
        return self.bracket(opening)

    def size(self, opening: Token) -> Rational:
        """The symbol V in |V|, with or without braces around it."""
        value = self.primary() if self.here.kind in ("name", "command", "{") else None
        lone = value is not None and any(value == Rational(symbol(name)) for name in self.known)
        if value is None or not lone or self.take().kind != "bar":
            raise self.wrong("bars are read only around one symbol, as in |V|.", opening)
        return value

    def names(self, token: Token) -> list[Rational]:
        """The symbol that a name stands for, or the symbols whose product it is."""
        token = Token("name", token.text.removeprefix("\\"), token.position, token.bound)
        found = symbols_of(token, self.known)
        if found is None:
            raise self.wrong(why_unknown(token.text, self.known), token)
        return [Rational(symbol(name)) for name in found]

    def multiplied(self, token: Token, factors: list[Rational]) -> Rational:
        """The product of factors that are written together."""
        value = Rational(of(1))
        for factor in factors:
            value = self.worked_out(token, self.calculator.multiply, value, factor)
        return value
