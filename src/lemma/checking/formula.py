"""Formulas that people write, read exactly and safely: from tokens to a value, by recursive descent."""

from collections.abc import Callable, Collection
from dataclasses import replace
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
    parser = _FormulaParser(source, tokens, known)
    value = parser.sum()
    if parser.here.kind != "end":
        raise parser.wrong(f"'{parser.here.text[:20]}' does not fit here.")
    return value


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

    def worked_out(self, token: Token, operation: Callable[..., Rational], *values: object) -> Rational:
        """The result of an operation; where it fails, the error shows the token."""
        try:
            return operation(*values)
        except InputError as error:
            raise self.wrong(f"{error}.", token) from None

    def sum(self) -> Rational:
        self.depth += 1
        if self.depth > DEEPEST_NESTING:
            raise self.wrong(f"brackets and signs nest more than {DEEPEST_NESTING} deep.")
        first, parts = self.here, [self.product()]
        while sign := self.take_if("+", "-"):
            parts.append(self.product() if sign.kind == "+" else -self.product())
        self.depth -= 1
        return self.worked_out(first, self.calculator.add, parts)

    def product(self) -> Rational:
        """Factors with *, / or nothing between them, unless that could be read in two ways."""
        value, last = self.signed(), None
        while self.here.kind in ("*", "/", *_STARTS):
            sign = self.take_if("*", "/")
            if sign is None and last is not None and last.kind == "/":
                raise self.wrong("a/b c can be read as a/(b*c) or as (a/b)*c; put brackets.", last)
            if sign is None and self.here.kind == self.tokens[self.place - 1].kind == "number":
                raise self.wrong("two numbers side by side; put * between them.")
            last = sign or Token("implicit", "", self.here.position)
            operation = self.calculator.divide if last.kind == "/" else self.calculator.multiply
            value = self.worked_out(last, operation, value, self.signed())
        return value

    def signed(self) -> Rational:
        negative = False
        while sign := self.take_if("+", "-"):
            negative ^= sign.kind == "-"
        value = self.power()
        return -value if negative else value

    def power(self) -> Rational:
        """A primary with its exponents, which group from the right.

        Of symbols written together only the last one is raised: Ld^2 is L times d^2, as in print.
        """
        first = self.here
        *others, value = self.names(self.take()) if first.kind in ("name", "command") else [self.primary()]
        while token := self.take_if("raised"):
            digits = token.text.translate(_RAISED)
            if not digits.removeprefix("-").isdecimal() or len(digits) > 3:
                raise self.wrong(f"'{token.text[:9]}' is not an exponent.", token)
            value = self.worked_out(token, self.calculator.power, value, Rational(of(int(digits))))
        if token := self.take_if("^"):
            self.depth += 1
            if self.depth > DEEPEST_NESTING:
                raise self.wrong(f"powers nest more than {DEEPEST_NESTING} deep.", token)
            value = self.worked_out(token, self.calculator.power, value, self.signed())
            self.depth -= 1
        for other in reversed(others):
            value = self.worked_out(first, self.calculator.multiply, other, value)
        return value

    def primary(self) -> Rational:
        """A number, a bracket, a fraction or |V|."""
        token = self.take()
        if token.kind == "number":
            return Rational(of(Fraction(token.text)))
        if token.kind in _CLOSING:
            return self.bracket(token)
        if token.kind == "bar":  # around a symbol, with or without braces around it
            found = self.names(self.take()) if self.here.kind in ("name", "command") else []
            found = [self.bracket(self.take())] if self.here.kind == "{" and not found else found
            lone = len(found) == 1 and any(found[0] == Rational(symbol(name)) for name in self.known)
            if not lone or self.take().kind != "bar":
                raise self.wrong("bars are read only around one symbol, as in |V|.", token)
            return found[0]
        if token.kind == "fraction":
            groups: list[Rational] = []
            for opening in (self.take_if("{") for _ in range(2)):
                if opening is None:
                    raise self.wrong("\\frac takes two groups in braces: \\frac{a}{b}.", token)
                groups.append(self.bracket(opening))
            return self.worked_out(token, self.calculator.divide, *groups)
        got = "the formula ends" if token.kind == "end" else f"got '{token.text[:20]}'"
        raise self.wrong(f"{got} where a number, a symbol or a bracket was expected.", token)

    def bracket(self, opening: Token) -> Rational:
        """The value of a bracket that has just been opened."""
        value, wanted = self.sum(), _CLOSING[opening.kind]
        if not self.take_if(wanted):
            raise self.wrong(f"this bracket is not closed by '{wanted}'.", opening)
        return value

    def names(self, token: Token) -> list[Rational]:
        """The symbol that a name stands for, or the symbols whose product it is."""
        token = replace(token, text=token.text.removeprefix("\\"))
        found = symbols_of(token, self.known)
        if found is None:
            raise self.wrong(why_unknown(token.text, self.known), token)
        return [Rational(symbol(name)) for name in found]
