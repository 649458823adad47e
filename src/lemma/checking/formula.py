"""Formulas that people write, parsed exactly and safely."""

import re
import unicodedata
from collections.abc import Callable, Collection
from dataclasses import dataclass
from fractions import Fraction

from lemma.counting.polynomial import (
    DEEPEST_NESTING,
    LONGEST_TEXT,
    MOST_DIGITS,
    MOST_TOKENS,
    Calculator,
    Rational,
    TooLarge,
    mistake,
    named,
    of,
    symbol,
)
from lemma.errors import InputError, unknown

# From text to tokens: Python-like formulas and simple LaTeX, in one alphabet.
#
# Characters are first folded one for one (− to -, · to *, 𝑑 to d), so that a token's position is that of the text.


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a formula; `bound` is how many of a name's last characters are one subscript in braces."""

    kind: str
    text: str
    position: int
    bound: int = 0


_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "₀₁₂₃₄₅₆₇₈₉ₐₑₒₓₕₖₗₘₙₚₛₜᵢᵣᵤᵥⱼ"
_LETTER = rf"(?![{_RAISED}{_LOWERED}])[^\W\d_]"
_STYLE = r"\\(?:text(?:rm|it|bf|sf|tt)?|math(?:rm|it|bf|sf|tt|cal|bb)|operatorname|boldsymbol)(?![A-Za-z])"
_WORD = rf"(?:{_LETTER})(?:{_LETTER}|[0-9])*"
_PLAIN_TAIL = rf"\\?_(?:{_LETTER}|[0-9])+"
_INNER = rf"\s*((?:{_LETTER}|[0-9])+(?:{_PLAIN_TAIL})*)\s*"
_STYLED = rf"{_STYLE}\s*\{{{_INNER}\}}"
_BOUND_TAIL = rf"\\?_\s*(?:\{{\s*{_STYLED}\s*\}}|\{{{_INNER}\}}|{_STYLED})|([{_LOWERED}]+)"
_THOUSANDS = r"[0-9]{1,3}(?:(?:,|_|\{,\}|\\,|[ \u00a0\u2009\u202f])[0-9]{3})+(?![0-9])"
_KINDS = {
    "space": rf"\s+|\$+|~|\\[()\[\],;:!> ]|\\q?quad(?![A-Za-z])|\\(?:left|right|[Bb]igg?[lrm]?)(?![A-Za-z])|{_STYLE}",
    "number": rf"(?:{_THOUSANDS}|[0-9]+(?:_[0-9]+)*)(?:\.[0-9]+)?|\.[0-9]+",
    "word": rf"({_WORD}(?:{_PLAIN_TAIL})*)(?:{_BOUND_TAIL})?",
    "raised": rf"[{_RAISED}]+",
    "^": r"\^|\*\*",
    "*": r"\*|\\(?:cdot|times|ast)(?![A-Za-z])",
    "/": r"/|\\div(?![A-Za-z])",
    "fraction": r"\\[dt]?frac(?![A-Za-z])",
    "bar": r"\||\\[lr]?vert(?![A-Za-z])",
    "+": r"\+",
    "-": r"-",
    "=": r"=",
    "(": r"\(",
    ")": r"\)",
    "[": r"\[",
    "]": r"\]",
    "{": r"\\?\{",
    "}": r"\\?\}",
    "command": r"\\[A-Za-z]+",
}
_PATTERNS = [(kind, re.compile(pattern)) for kind, pattern in _KINDS.items()]
_FOLDED = dict.fromkeys("·×⋅∙∗•", "*") | dict.fromkeys("−–—‐‑", "-") | dict.fromkeys("÷∕⁄", "/") | {"∣": "|", "ˆ": "^"}


def tokens(text: str) -> list[Token]:
    """Cut a formula into tokens; the last one is of the kind `end`.

    >>> [token.text for token in tokens("2d_{ff}·(N−1)")]
    ['2', 'd_ff', '*', '(', 'N', '-', '1', ')', '']
    """
    if len(text) > LONGEST_TEXT:
        raise TooLarge(f"the formula has {len(text):,} characters; at most {LONGEST_TEXT:,} are read")
    folded = "".join(map(_fold, text))
    found: list[Token] = []
    position = 0
    while position < len(text):
        kind, match = _next(text, folded, position)
        if kind != "space":
            found.append(_token(text, kind, match))
        position = match.end()
        if len(found) > MOST_TOKENS:
            raise TooLarge(f"the formula has more than {MOST_TOKENS:,} symbols, numbers and signs")
    return [*found, Token("end", "", len(text.rstrip()))]


def _fold(character: str) -> str:
    """Letters and digits in another type face, and signs of other shapes, as the plain ones."""
    if character.isascii() or character in _FOLDED:
        return _FOLDED.get(character, character)
    if unicodedata.decomposition(character).startswith(("<font>", "<wide>")):
        plain = unicodedata.normalize("NFKC", character)
        return plain if len(plain) == 1 else character
    return character


def _next(text: str, folded: str, position: int) -> tuple[str, re.Match[str]]:
    for kind, pattern in _PATTERNS:
        if match := pattern.match(folded, position):
            return kind, match
    raise mistake(text, position, f"{named(text[position])} is not read here. {_advice(text[position])}")


def _advice(character: str) -> str:
    if character == ",":
        return "A comma only separates thousands (9,721,596); write decimals with a point."
    return "A formula has numbers, symbols, + - * / ^, brackets, \\frac, \\cdot, \\times and |V|."


def _token(text: str, kind: str, match: re.Match[str]) -> Token:
    if kind == "word":
        return _name(match)
    if kind == "number":
        return Token(kind, _digits(text, match), match.start())
    signs = {"^": "^", "*": "*", "/": "/", "{": "{", "}": "}"}
    return Token(kind, signs.get(kind, match.group()), match.start())


def _name(match: re.Match[str]) -> Token:
    """A name; what stands in a braced or lowered subscript belongs together."""
    stem, *tails = match.groups()
    tail = next((unicodedata.normalize("NFKC", part) for part in tails if part), "")
    whole = (f"{stem}_{tail}" if tail else stem).replace("\\", "")
    return Token("word", whole, match.start(), bound=len(tail.replace("\\", "")) + 1 if tail else 0)


def _digits(text: str, match: re.Match[str]) -> str:
    digits = re.sub(r"[^0-9.]", "", match.group())
    if len(digits) > MOST_DIGITS:
        raise mistake(text, match.start(), f"a number has at most {MOST_DIGITS} digits here.")
    return digits


# From a run of letters to known symbols: `Vd` is V times d where only V and d are known.


_LONGEST_RUN = 200
_SHOWN = 40
_FUNCTIONS = """
    sqrt root log ln exp sin cos tan tanh sigmoid softmax max min abs floor ceil round sum prod pow binom int float
    lfloor rfloor lceil rceil factorial mod bmod pmod
"""


def symbols_of(token: Token, known: Collection[str]) -> list[str] | None:
    """The known symbols whose product a name is: itself, or the longest ones it can be cut into; None if it cannot.

    A subscript in braces is never cut.

    >>> symbols_of(Token("word", "dd_h", 0), ["V", "d", "d_h", "h"])
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


# From tokens to a value, by recursive descent: sum, product, sign, power, primary.


_CLOSING = {"(": ")", "[": "]", "{": "}"}
_STARTS = frozenset({"number", "word", "command", "fraction", "bar", *_CLOSING})
_parser_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")


def read_formula(text: str, known: Collection[str]) -> Rational:
    r"""Read a formula in these symbols, Python-like or in simple LaTeX. Nothing is ever evaluated as code.

    >>> read_formula(r"|V|(d+d_h) + ((N-1)d+1)d_h", ["V", "d", "d_h", "N"]).at({"V": 9, "d": 2, "d_h": 3, "N": 3})
    Fraction(60, 1)
    """
    found = tokens(text)
    if len(found) == 1:
        raise InputError(f"the formula is empty; write one in {', '.join(known)}")
    return Parser(text, _right_hand_side(text, found, known), known).whole()


def _right_hand_side(text: str, found: list[Token], known: Collection[str]) -> list[Token]:
    """What stands after `P =`, where a person gave their formula a name."""
    signs = [index for index, token in enumerate(found) if token.kind == "="]
    if not signs:
        return found
    left = [token for token in found[: signs[0]] if token.kind != "bar"]
    if len(signs) > 1:
        raise mistake(text, found[signs[1]].position, "a formula has one = at most.")
    if len(left) > 1 or any(token.kind != "word" or token.text in known for token in left):
        raise mistake(text, found[signs[0]].position, "only a new name may stand before =; write the formula alone.")
    return found[signs[0] + 1 :]


class Parser:
    """Reads one list of tokens once, from left to right."""

    def __init__(self, text: str, found: list[Token], known: Collection[str]) -> None:
        self.text, self.tokens, self.known = text, found, known
        self.place, self.depth, self.calculator = 0, 0, Calculator()

    def whole(self) -> Rational:
        """The value of all tokens."""
        value = self.sum()
        if self.here.kind != "end":
            raise self.wrong(self.here, f"'{self.here.text[:20]}' does not fit here.")
        return value

    @property
    def here(self) -> Token:
        """The next token."""
        return self.tokens[self.place]

    def take(self) -> Token:
        """The next token, which is then behind us."""
        token = self.here
        self.place += token.kind != "end"
        return token

    def wrong(self, token: Token, message: str) -> InputError:
        """An error at a token."""
        return mistake(self.text, token.position, message)

    def worked_out(self, token: Token, operation: Callable[..., Rational], *values: object) -> Rational:
        """The result of an operation; where it fails, the error shows the token."""
        try:
            return operation(*values)
        except InputError as error:
            raise self.wrong(token, f"{error}.") from None

    def sum(self) -> Rational:
        """Products with + and − between them."""
        self.depth += 1
        if self.depth > DEEPEST_NESTING:
            raise self.wrong(self.here, f"brackets and signs nest more than {DEEPEST_NESTING} deep.")
        first, parts = self.here, [self.product()]
        while self.here.kind in ("+", "-"):
            sign = self.take()
            parts.append(self.product() if sign.kind == "+" else -self.product())
        self.depth -= 1
        return self.worked_out(first, self.calculator.add, parts)

    def product(self) -> Rational:
        """Factors with *, / or nothing between them."""
        value, last = self.signed(), None
        while self.here.kind in ("*", "/") or self.here.kind in _STARTS:
            sign = self.take() if self.here.kind in ("*", "/") else self.nothing_between(last)
            right = self.signed()
            operation = self.calculator.divide if sign.kind == "/" else self.calculator.multiply
            value, last = self.worked_out(sign, operation, value, right), sign
        return value

    def nothing_between(self, last: Token | None) -> Token:
        """The place of a product without a sign, unless it could be read in two ways."""
        if last is not None and last.kind == "/":
            raise self.wrong(last, "a/b c can be read as a/(b*c) or as (a/b)*c; put brackets.")
        if self.here.kind == "number" and self.tokens[self.place - 1].kind == "number":
            raise self.wrong(self.here, "two numbers side by side; put * between them.")
        return Token("implicit", "", self.here.position)

    def signed(self) -> Rational:
        """A power, with signs before it."""
        negative = False
        while self.here.kind in ("+", "-"):
            negative ^= self.take().kind == "-"
        value = self.power()
        return -value if negative else value

    def power(self) -> Rational:
        """A primary with its exponents.

        Of symbols written together only the last one is raised: Ld^2 is L times d^2, as in print.
        """
        first = self.here
        if first.kind not in ("word", "command"):
            return self.raised_by_what_follows(self.primary())
        *others, last = self.names(self.take())
        return self.multiplied(first, [*others, self.raised_by_what_follows(last)])

    def raised_by_what_follows(self, value: Rational) -> Rational:
        """A value with the exponents behind it, if there are any; they group from the right."""
        while self.here.kind == "raised":
            token = self.take()
            value = self.worked_out(token, self.calculator.power, value, self.raised(token))
        if self.here.kind != "^":
            return value
        token = self.take()
        self.depth += 1
        if self.depth > DEEPEST_NESTING:
            raise self.wrong(token, f"powers nest more than {DEEPEST_NESTING} deep.")
        exponent = self.signed()
        self.depth -= 1
        return self.worked_out(token, self.calculator.power, value, exponent)

    def raised(self, token: Token) -> Rational:
        """The value of raised digits."""
        digits = token.text.translate(_parser_RAISED)
        if not digits.removeprefix("-").isdecimal() or len(digits) > 3:
            raise self.wrong(token, f"'{token.text[:9]}' is no exponent.")
        return Rational(of(int(digits)))

    def primary(self) -> Rational:
        """A number, a symbol, a bracket, a fraction or |V|."""
        token = self.take()
        if token.kind == "number":
            return Rational(of(Fraction(token.text)))
        if token.kind in _CLOSING:
            return self.bracket(token)
        if token.kind in ("word", "command"):
            return self.multiplied(token, self.names(token))
        if token.kind == "bar":
            return self.size(token)
        if token.kind == "fraction":
            top, bottom = self.group(token), self.group(token)
            return self.worked_out(token, self.calculator.divide, top, bottom)
        got = "the formula ends" if token.kind == "end" else f"'{token.text[:20]}' stands"
        raise self.wrong(token, f"{got} where a number, a symbol or a bracket was expected.")

    def bracket(self, opening: Token) -> Rational:
        """What stands in a bracket that has just been opened."""
        value, wanted = self.sum(), _CLOSING[opening.kind]
        closing = self.take()
        if closing.kind != wanted:
            raise self.wrong(opening, f"this bracket is not closed by '{wanted}'.")
        return value

    def group(self, command: Token) -> Rational:
        """An argument of \\frac."""
        opening = self.take()
        if opening.kind != "{":
            raise self.wrong(command, "\\frac takes two groups in braces: \\frac{a}{b}.")
        return self.bracket(opening)

    def size(self, opening: Token) -> Rational:
        """The symbol V in |V|, with or without braces around it."""
        value = self.primary() if self.here.kind in ("word", "command", "{") else None
        lone = value is not None and any(value == Rational(symbol(name)) for name in self.known)
        if value is None or not lone or self.take().kind != "bar":
            raise self.wrong(opening, "bars are read only around one symbol, as in |V|.")
        return value

    def names(self, token: Token) -> list[Rational]:
        """The symbol that a name stands for, or the symbols whose product it is."""
        token = Token("word", token.text.removeprefix("\\"), token.position, token.bound)
        found = symbols_of(token, self.known)
        if found is None:
            raise self.wrong(token, why_unknown(token.text, self.known))
        return [Rational(symbol(name)) for name in found]

    def multiplied(self, token: Token, factors: list[Rational]) -> Rational:
        """The product of factors that are written together."""
        value = Rational(of(1))
        for factor in factors:
            value = self.worked_out(token, self.calculator.multiply, value, factor)
        return value
