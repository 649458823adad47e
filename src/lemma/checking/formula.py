"""Formulas that people write, read exactly and safely: from tokens to a value, by recursive descent."""

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import comb

from lemma.checking.tokens import (
    COMMA_HINT,
    MAX_FORMULA_CHARS,
    Cursor,
    SourceText,
    Token,
    describe_character,
    formula_tokens,
)
from lemma.counting.polynomial import (
    MAX_EXPONENT,
    ONE,
    Calculator,
    Polynomial,
    Rational,
    as_polynomial,
    spend,
    symbol,
    work_limit,
)
from lemma.errors import InputError, describe_unknown

MAX_NESTING = 60
_MAX_NAME_LENGTH = 200
MAX_READING_STEPS = 60_000
"""Steps of work for reading one formula, see `work_limit`."""
_MAX_NAME_SHOWN = 40
FUNCTIONS = frozenset(
    """
    sqrt root log lg ln exp sin cos tan tanh sigmoid softmax max min abs floor ceil round sum prod pow binom int float
    lfloor rfloor lceil rceil factorial mod bmod pmod
    """.split()  # noqa: SIM905
)
"""What is read as a function, and refused: formulas are rational."""
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_OPERAND_STARTS = frozenset({"number", "name", "command", "fraction", "bar", "big", *_CLOSING})
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")


def read_formula(text: str, symbols: Collection[str]) -> Rational:
    r"""Read a formula in these symbols, Python-like or in simple LaTeX. Nothing is ever evaluated as code.

    >>> read_formula(r"|V|(d+d_h) + ((N-1)d+1)d_h", ["V", "d", "d_h", "N"]).at({"V": 9, "d": 2, "d_h": 3, "N": 3})
    Fraction(60, 1)
    """
    return read_answer(text, symbols).value


@dataclass(frozen=True)
class FormulaReading:
    """A formula as it was read: what is judged, and what a person said about it on the way there."""

    value: Rational
    chain: tuple[Rational, ...] = ()
    """What is equal to the value by the person's own account: the earlier members of a = b = c, the sum of parts."""
    settings: dict[str, Rational] = field(default_factory=dict)
    """Sizes that the person set, as in `with d_ff = 4d`; they are in the value already."""
    interpretations: tuple[str, ...] = ()
    """Runs of letters that can be read in two ways, each with how it was read."""


_SETTING_WORDS = {"with", "where", "for", "assuming", "given", "when", "if", "at"}
_UNIT_WORDS = {"parameters", "parameter", "params", "weights", "flops", "operations", "trainable", "in", "total", "all"}
_TOTAL_LABELS = {"total", "sum", "altogether", "overall", "together", "all", "P", "parameters", "params"}
FILLER_WORDS = frozenset({*_SETTING_WORDS, *_UNIT_WORDS, "and"})
"""Words around a formula."""
_CONTINUATION_SIGNS = {"+", "-", "*", "/", "=", "^", ":", ",", ";"}


@work_limit(MAX_READING_STEPS)
def read_answer(text: str, symbols: Collection[str]) -> FormulaReading:
    """Read a formula with what people write around it.

    A chain `a = b = c` of which the last is judged, settings (`with d_ff = 4d`), a trailing `parameters`, parts that
    add up (`embedding: Vd, layers: 12Ld^2`), and names of your own (`A = 4d^2; A*L`).

    >>> reading = read_answer("P = Vd + d_ff = d(V + 4) with d_ff = 4d", ["V", "d", "d_ff"])
    >>> reading.value == reading.chain[0], reading.echo
    (True, ("'Vd' as V·d",))
    """
    source = SourceText(_strip_bullets(text), "formula, character")
    tokens = formula_tokens(source)
    plain = FILLER_WORDS - {*symbols}
    inside = 0
    for place, token in enumerate(tokens):  # \text{with} leaves its braces behind
        if token.kind == "{":
            inside = place + 1
        elif token.kind == "}" and inside and {word.text.lower() for word in tokens[inside:place]} <= plain:
            tokens[inside - 1] = tokens[place] = Token("", "", token.position)
    tokens = [token for token in tokens if token.kind]
    end = tokens.pop()
    calls = [place for place, token in enumerate(tokens) if token.kind == "name" and token.text.lower() in plain]
    begins = next((place for place in calls if tokens[place].text.lower() in _SETTING_WORDS), len(tokens))
    tokens, after = tokens[:begins], tokens[begins + 1 :]
    while len(tokens) > 1 and tokens[-1].kind in ("name", "newline", ".") and tokens[-1].text.lower() in {*plain, "."}:
        tokens.pop()
    if not tokens:
        raise InputError(f"the formula is empty; write one in {', '.join(symbols)}")
    echo: dict[str, str] = {}
    mine: dict[str, Rational] = {}  # names of their own
    calculator = Calculator()  # one for all of it, so that its work is bounded as a whole

    def value_of(piece: list[Token]) -> Rational:
        spend(len(symbols) // 50)
        if len(piece) > 1 and _is_grouped_number(piece):  # nothing but 9 721 596; before a bracket, 4 128 is refused
            echo[" ".join(token.text for token in piece)] = "one number"
            piece = [replace(piece[0], text="".join(token.text for token in piece))]
        parser = _FormulaParser(source, [*piece, end], {**dict.fromkeys(symbols), **mine}, calculator, echo)
        value = parser.sum()
        if parser.current.kind != "end":
            raise parser.error(f"'{parser.current.text[:20]}' does not fit here.")
        return value

    settings: dict[str, Rational] = {}
    for piece in _split(after, {",", ";", "newline", "and"}):
        if len(piece) < 3 or piece[0].kind != "name" or piece[1].kind != "=":
            raise source.error_at(piece[0].position, "a setting is of the form name = formula, as in: with d_ff = 4d.")
        (mine if piece[0].text not in symbols else settings)[piece[0].text] = value_of(piece[2:])
    items = _split(tokens, {",", ";", "newline"})
    commas = [token for token in tokens if token.kind == ","]
    if commas and not all(any(token.kind == "name" for token in item) for item in items):
        raise source.error_at(commas[0].position, f"',' is not read here. {COMMA_HINT}")
    read: list[tuple[str, list[Rational], bool]] = []  # label, members of its chain, whether it uses names of its own
    for item in items:
        label, signs = "", [place for place, token in enumerate(item) if token.kind == ":"]
        if signs:
            label, item = " ".join(token.text for token in item[: signs[-1]]), item[signs[-1] + 1 :]
        first, *others = _split(item, {"="}, keep_empty=True)
        left = [token for token in first if token.kind != "bar"]
        if others and all(token.kind == "name" for token in left):  # a person gave their formula a name, as in P = …
            readable = [split_into_symbols(token, symbols) is not None for token in left]
            if len(left) == 1 and left[0].text in symbols:
                said = "only a new name may come before =; write the formula alone."
                raise source.error_at(left[0].position, said)
            if not all(readable) or (len(left) == 1 and not label):
                label, first = " ".join(token.text for token in left), []
        uses = any(token.text in mine for piece in (first, *others) for token in piece if token.kind == "name")
        members = [value_of(piece) for piece in ([first] if first or not others else []) + others]
        read.append((label, members, uses))
        if len(items) > 1 and label and label not in symbols:
            mine[label] = members[-1]
    if not read:
        raise InputError(f"the formula is empty; write one in {', '.join(symbols)}")
    *parts, (label, members, uses) = read
    chain, value = members[:-1], members[-1]
    if parts and not uses:
        whole = calculator.add([*(one[-1] for _, one, _ in parts)])
        total = bool({*label.lower().split(), label} & _TOTAL_LABELS)
        chain, value = ([whole, *chain], value) if total else ([], calculator.add([whole, value]))
    for name, meaning in settings.items():
        chain, value = (
            [substitute(one, name, meaning, calculator) for one in chain],
            substitute(value, name, meaning, calculator),
        )
    return FormulaReading(value, tuple(chain), settings, tuple(f"'{run}' as {how}" for run, how in echo.items()))


def _is_grouped_number(tokens: list[Token]) -> bool:
    """Return whether tokens are the groups of one number whose thousands are set apart by blanks."""
    first, *others = (token.text if token.kind == "number" else "" for token in tokens)
    return first.isdecimal() and len(first) <= 3 and all(len(one) == 3 and one.isdecimal() for one in others)


_BULLET = re.compile(r"\s*(?:[-*•–—]|\(?\d{1,2}[.)])\s+(?=\S)")


def _strip_bullets(text: str) -> str:
    """A list of parts without its bullets or numbers, which blanks replace; what is not such a list stays as it is.

    >>> _without_bullets("- tokens: Vd\\n- norm: 2d\\ntotal: d(V + 2)")
    '  tokens: Vd\\n  norm: 2d\\ntotal: d(V + 2)'
    """
    lines = text.split("\n") if len(text) <= MAX_FORMULA_CHARS else []
    bullets = [_BULLET.match(line) for line in lines]
    rest = [line for line, bullet in zip(lines, bullets, strict=True) if line.strip() and not bullet]
    if sum(map(bool, bullets)) < 2 or not all(":" in line or "=" in line for line in rest):
        return text
    pairs = zip(lines, bullets, strict=True)
    return "\n".join(" " * bullet.end() + line[bullet.end() :] if bullet else line for line, bullet in pairs)


def _split(tokens: list[Token], separators: set[str], keep_empty: bool = False) -> list[list[Token]]:
    """The pieces between tokens of these kinds or texts, outside brackets; empty ones only if they are kept.

    A line that ends or begins with an operator goes on.
    """
    pieces: list[list[Token]] = [[]]
    depth = 0
    for place, token in enumerate(tokens):
        depth += (token.kind in _CLOSING) - (token.kind in _CLOSING.values())
        if token.kind == "newline":
            near = (tokens[max(place - 1, 0)].kind, tokens[min(place + 1, len(tokens) - 1)].kind)
            if depth > 0 or _CONTINUATION_SIGNS & {*near}:
                continue
        if depth <= 0 and (token.kind in separators or (token.kind == "name" and token.text in separators)):
            pieces.append([])
        else:
            pieces[-1].append(token)
    return [piece for piece in pieces if piece or keep_empty]


def substitute(formula: Rational, name: str, value: Rational, calculator: Calculator) -> Rational:
    """Put a formula in the place of a symbol of another, within the bounds of the calculator.

    >>> put(Rational(symbol("d") ** 2), "d", Rational(symbol("h") + 1), Calculator()) == (symbol("h") + 1) ** 2
    True
    """
    if name not in formula.symbols:
        return formula
    sides: list[Rational] = []
    for side in (formula.numerator, formula.denominator):
        terms: list[Rational] = []
        for monomial, number in side.terms.items():
            power = dict(monomial).get(name, 0)
            rest = Rational(Polynomial({tuple(pair for pair in monomial if pair[0] != name): number}))
            terms.append(calculator.multiply(rest, calculator.power(value, Rational(as_polynomial(power)))))
        sides.append(calculator.add(terms))
    return calculator.divide(*sides)


def split_into_symbols(token: Token, symbols: Collection[str], include_self: bool = True) -> list[str] | None:
    """The known symbols whose product a name is: itself, or the longest ones it can be cut into; None if it cannot.

    A subscript in braces is never cut; without `whole` the name itself does not count.

    >>> symbols_of(Token("name", "dd_h", 0), ["V", "d", "d_h", "h"])
    ['d', 'd_h']
    """
    word, end = token.text, len(token.text)
    if end > _MAX_NAME_LENGTH:
        return None
    if word in symbols and include_self:
        return [word]
    longest = max(map(len, symbols), default=0)
    spend((len(symbols) + end * min(end, longest)) // 50)
    cut: dict[int, list[str]] = {end: []}
    for start in range(end - max(token.subscript_length, 1), -1, -1):
        for stop in range(min(end, start + longest), start, -1):
            if stop in cut and word[start:stop] in symbols and (include_self or stop - start < end):
                cut[start] = [word[start:stop], *cut[stop]]
                break
    return cut.get(0)


def is_function_name(word: str) -> bool:
    """Return whether a name is that of a function, with or without its base.

    >>> is_function("log2"), is_function("log_10"), is_function("d2")
    (True, True, False)
    """
    return re.sub(r"_?\d+$", "", word) in FUNCTIONS


def explain_unknown(word: str, symbols: Collection[str]) -> str:
    """Say why a name is not read, and which one may have been meant.

    >>> why_unknown("v", ["V", "d"])
    "symbol = 'v' is unknown. Did you mean 'V'? Known: V, d."
    """
    if is_function_name(word):
        return f"'{word}' is a function; formulas here are rational: sums, products, quotients and whole powers."
    shown = word if len(word) <= _MAX_NAME_SHOWN else word[:_MAX_NAME_SHOWN] + "…"
    twin = next((name for name in symbols if name.casefold() == word.casefold()), None)
    if twin:
        return f"symbol = '{shown}' is unknown. Did you mean '{twin}'? Known: {', '.join(symbols)}."
    strange = [describe_character(character) for character in shown if not character.isascii() and character != "…"]
    remark = f" It holds {strange[0]}." if strange else ""
    return describe_unknown("symbol", shown, symbols) + remark


class _FormulaParser(Cursor):
    """A formula is a sum of products of signed powers of primaries."""

    def __init__(
        self,
        source: SourceText,
        tokens: list[Token],
        symbols: dict[str, Rational | None],
        calculator: Calculator,
        interpretations: dict[str, str],
    ) -> None:
        super().__init__(source, tokens)
        self.symbols, self.depth, self.calculator, self.interpretations = symbols, 0, calculator, interpretations

    def compute(self, token: Token, operation: Callable[..., Rational], *operands: object) -> Rational:
        """The result of an operation; where it fails, the error shows the token."""
        try:
            return operation(*operands)
        except InputError as error:
            raise self.error(f"{error}.", token) from None

    def sum(self) -> Rational:
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise self.error(f"brackets and signs nest more than {MAX_NESTING} deep.")
        first, parts = self.current, [self.product()]
        while sign := self.take_if("+", "-"):
            parts.append(self.product() if sign.kind == "+" else -self.product())
        self.depth -= 1
        return self.compute(first, self.calculator.add, parts)

    def product(self) -> Rational:
        """Factors with *, / or nothing between them, unless that could be read in two ways."""
        value, last = self.signed(), None
        while self.current.kind in ("*", "/", *_OPERAND_STARTS):
            sign = self.take_if("*", "/")
            if sign is None and last is not None and last.kind == "/":
                raise self.error("a/b c can be read as a/(b*c) or as (a/b)*c; put brackets.", last)
            if sign is None and self.current.kind == self.tokens[self.index - 1].kind == "number":
                numbers = [self.tokens[self.index - 1].text, self.current.text]
                advice = "put * between them, or write thousands with commas."
                raise self.error(f"two numbers side by side, {' and '.join(numbers)[:60]}; {advice}")
            last = sign or Token("implicit", "", self.current.position)
            operation = self.calculator.divide if last.kind == "/" else self.calculator.multiply
            value = self.compute(last, operation, value, self.signed())
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
        first, place = self.current, self.index
        if first.kind == "big":
            return self.big_operator(self.take())
        *others, value = self.symbol_product(self.take()) if first.kind in ("name", "command") else [self.primary()]
        while token := self.take_if("raised"):
            digits = token.text.translate(_SUPERSCRIPTS)
            if not digits.removeprefix("-").isdecimal() or len(digits) > 3:
                raise self.error(f"'{token.text[:9]}' is not an exponent.", token)
            value = self.compute(token, self.calculator.power, value, Rational(as_polynomial(int(digits))))
        if token := self.take_if("^"):
            self.depth += 1
            if self.depth > MAX_NESTING:
                raise self.error(f"powers nest more than {MAX_NESTING} deep.", token)
            value = self.compute(token, self.calculator.power, value, self.signed())
            self.depth -= 1
        word = first.text.removeprefix("\\")
        cut = (
            split_into_symbols(replace(first, text=word), self.symbols, include_self=False)
            if first.kind in ("name", "command")
            else None
        )
        if cut and (others or len(cut) > 1):  # it could have been read in another way
            power = "".join(token.text for token in self.tokens[place + 1 : self.index])
            shown = f"{'·'.join(cut)}{power}" if others else f"one symbol, not {'·'.join(cut)}"
            self.interpretations[f"{word}{power}"] = shown
        for other in reversed(others):
            value = self.compute(first, self.calculator.multiply, other, value)
        return value

    def big_operator(self, token: Token) -> Rational:
        """A sum or product over an index: of the product that follows it, as in print."""
        kind, index = token.text.split()
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise self.error(f"sums nest more than {MAX_NESTING} deep.", token)
        first = self.sum()
        if not self.take_if("}") or not self.take_if("^"):
            raise self.error(f"write the bounds as in \\{kind}_{{{index}=1}}^{{L}}.", token)
        last, outer, inner = self.power(), self.symbols, Rational(symbol(f"{index} "))
        self.symbols = {**outer, index: inner}
        begin = self.current
        body = self.product()
        self.symbols = outer
        self.depth -= 1
        if self.current.kind in ("+", "-") and self.tokens[self.index - 1].kind not in _CLOSING.values():
            self.interpretations["∑" if kind == "sum" else "∏"] = (
                "that of the product after it alone; put brackets around a sum"
            )
        name = f"{index} "
        if name in body.denominator.symbols or any(
            power < 0 for term in body.numerator.terms for of, power in term if of == name
        ):
            raise self.error(f"nothing is divided by the index {index} here.", begin)
        if kind == "prod":
            ends = [bound.constant for bound in (first, last) if bound.constant is not None]
            whole = len(ends) == 2 and all(bound.denominator == 1 for bound in ends)
            if not whole or ends[1] - ends[0] > 2 * MAX_EXPONENT:
                raise self.error(f"a product has whole numbers as bounds, at most {2 * MAX_EXPONENT} apart.", token)
            value = Rational(ONE)
            for number in range(int(ends[0]), int(ends[1]) + 1):  # pyright: ignore
                one = self.compute(begin, substitute, body, name, Rational(as_polynomial(number)), self.calculator)
                value = self.compute(token, self.calculator.multiply, value, one)
            return value
        before, total = self.compute(token, self.calculator.add, [first, Rational(as_polynomial(-1))]), list[Rational]()
        for monomial, number in body.numerator.terms.items():
            power = dict(monomial).get(name, 0)
            if power >= MAX_EXPONENT:
                raise self.error(f"the index {index} has at most the power {MAX_EXPONENT - 1} here.", begin)
            rest = Rational(Polynomial({tuple(pair for pair in monomial if pair[0] != name): number}), body.denominator)
            for bound, sign in ((last, 1), (before, -1)):
                raised = (
                    self.compute(token, self.calculator.power, bound, Rational(as_polynomial(exponent)))
                    * Rational(as_polynomial(factor * sign))
                    for exponent, factor in power_sum_terms(power)
                )
                whole = self.compute(token, self.calculator.add, list(raised))
                total.append(self.compute(token, self.calculator.multiply, rest, whole))
        return self.compute(token, self.calculator.add, total) if total else Rational(as_polynomial(0))

    def primary(self) -> Rational:
        """A number, a bracket, a fraction or |V|."""
        token = self.take()
        if token.kind == "number":
            letter = next((letter for letter in "eE" if letter in token.text and letter in self.symbols), "")
            if letter:
                raise self.error(
                    f"'{token.text[:20]}' can be read as a number, or with the symbol {letter}; put * around it.", token
                )
            return Rational(as_polynomial(Fraction(token.text)))
        if token.kind in _CLOSING:
            return self.bracket(token)
        if token.kind == "bar":  # around a symbol, with or without braces around it
            found = self.symbol_product(self.take()) if self.current.kind in ("name", "command") else []
            found = [self.bracket(self.take())] if self.current.kind == "{" and not found else found
            lone = len(found) == 1 and any(found[0] == Rational(symbol(name)) for name in self.symbols)
            if not lone or self.take().kind != "bar":
                raise self.error("bars are read only around one symbol, as in |V|.", token)
            return found[0]
        if token.kind == "fraction":
            groups: list[Rational] = []
            for opening in (self.take_if("{") for _ in range(2)):
                if opening is None:
                    raise self.error("\\frac takes two groups in braces: \\frac{a}{b}.", token)
                groups.append(self.bracket(opening))
            return self.compute(token, self.calculator.divide, *groups)
        got = "the formula ends" if token.kind == "end" else f"got '{token.text[:20]}'"
        raise self.error(f"{got} where a number, a symbol or a bracket was expected.", token)

    def bracket(self, opening: Token) -> Rational:
        """The value of a bracket that has just been opened."""
        value, wanted = self.sum(), _CLOSING[opening.kind]
        if not self.take_if(wanted):
            raise self.error(f"this bracket is not closed by '{wanted}'.", opening)
        return value

    def symbol_product(self, token: Token) -> list[Rational]:
        """The symbol that a name stands for, or the symbols whose product it is."""
        token = replace(token, text=token.text.removeprefix("\\"))
        found = split_into_symbols(token, self.symbols)
        if found is None or (is_function_name(token.text) and token.text not in self.symbols):
            raise self.error(explain_unknown(token.text, self.symbols), token)
        return [self.symbols[name] or Rational(symbol(name)) for name in found]


def power_sum_terms(power: int) -> Iterator[tuple[int, Fraction]]:
    """The exponents and factors of the polynomial in n that 1^power + 2^power + … + n^power is (Faulhaber).

    >>> [(exponent, str(factor)) for exponent, factor in powers_added(2)]
    [(3, '1/3'), (2, '1/2'), (1, '1/6')]
    """
    bernoulli = [Fraction(1)]
    for order in range(1, power + 1):
        bernoulli.append(-sum(comb(order + 1, k) * bernoulli[k] for k in range(order)) / Fraction(order + 1))
    for k, number in enumerate(bernoulli):
        if number:
            yield power + 1 - k, comb(power + 1, k) * number * (-1) ** k / Fraction(power + 1)
