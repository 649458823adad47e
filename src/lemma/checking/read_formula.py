"""Reading formulas as people write them, exactly and safely: from tokens to a value, by recursive descent."""

import re
from collections.abc import Callable, Collection, Mapping
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
from lemma.errors import InputError, closest_name
from lemma.report.numbers import WrittenNumber, read_number

MAX_READING_STEPS = 60_000  # steps of work for one formula, see `work_limit`
MAX_NESTING = 60
_MAX_NAME_LENGTH, _MAX_QUOTED_NAME, _MAX_LETTER = 200, 40, 5  # characters
_MAX_CHOICES = 12
FUNCTIONS = frozenset(  # recognized only to be refused: formulas are rational
    """
    sqrt root log lg ln exp sin cos tan tanh sigmoid softmax max min abs floor ceil round sum prod pow binom int float
    lfloor rfloor lceil rceil factorial mod bmod pmod
    """.split()  # noqa: SIM905
)
_SETTING_WORDS = {"with", "where", "for", "assuming", "given", "when", "if", "at"}
_UNIT_WORDS = {"parameters", "parameter", "params", "weights", "flops", "operations", "trainable", "in", "total", "all"}
_TOTAL_LABELS = {"total", "sum", "altogether", "overall", "together", "all", "P", "parameters", "params"}
FILLER_WORDS = frozenset({*_SETTING_WORDS, *_UNIT_WORDS, "and"})  # words around a formula
_CONTINUATION_SIGNS = {"+", "-", "*", "/", "=", "^", ":", ",", ";"}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_OPERAND_STARTS = frozenset({"number", "name", "command", "fraction", "bar", "big", *_CLOSING})
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_APPROXIMATE = re.compile(r"\\(?:approx|simeq|cong)(?:eq)?(?![A-Za-z])|[≈≃≅≐]")
_SETTINGS_START = re.compile(rf"\s(?:{'|'.join(sorted(_SETTING_WORDS))})\b")
_BULLET = re.compile(r"\s*(?:[-*•–—]|\(?\d{1,2}[.)])\s+(?=\S)")


def read_formula(text: str, symbols: Collection[str]) -> Rational:
    r"""Parse a formula in these symbols, Python-like or in simple LaTeX. Nothing is ever evaluated as code.

    >>> read_formula(r"|V|(d+d_h) + ((N-1)d+1)d_h", ["V", "d", "d_h", "N"]).at({"V": 9, "d": 2, "d_h": 3, "N": 3})
    Fraction(60, 1)
    """
    return read_answer(text, symbols).value


@dataclass(frozen=True)
class FormulaReading:
    """A formula as it was read, with what was written around it."""

    value: Rational
    chain: tuple[Rational, ...] = ()  # said to equal the value: the earlier members of a = b = c, the sum of parts
    settings: dict[str, Rational] = field(default_factory=dict)  # as in `with d_ff = 4d`; substituted in the value
    stated: WrittenNumber | None = None  # the number after the last sign of equality, which may be rounded
    interpretations: tuple[str, ...] = ()  # runs of letters with two readings, each with the reading that was taken


@work_limit(MAX_READING_STEPS)
def read_answer(text: str, symbols: Collection[str]) -> FormulaReading:
    """Parse a formula with what people write around it.

    That is a chain `a = b = c` of which the last is checked, settings (`with d_ff = 4d`), a trailing `parameters`,
    parts that add up (`embedding: Vd, layers: 12Ld^2`), or custom names (`A = 4d^2; A*L`).

    >>> reading = read_answer("P = Vd + d_ff = d(V + 4) with d_ff = 4d", ["V", "d", "d_ff"])
    >>> reading.value == reading.chain[0], reading.interpretations
    (True, ("'Vd' as V·d",))
    """
    return _AnswerReader(text, symbols).read()


@dataclass(frozen=True)
class _Item:
    """A comma-separated part of an answer: `label: a = b = c`."""

    label: str
    members: list[Rational]
    uses_custom_names: bool


class _AnswerReader:
    """The state of reading one answer: custom names, interpretations, and one calculator that bounds all work."""

    def __init__(self, text: str, symbols: Collection[str]) -> None:
        text, self.stated = _split_stated_number(_APPROXIMATE.sub(lambda sign: "=".ljust(len(sign[0])), text), text)
        self.source = SourceText(_strip_bullets(text), "formula, character")
        self.symbols = symbols
        self.custom: dict[str, Rational] = {}
        self.interpretations: dict[str, str] = {}
        self.calculator = Calculator()

    def read(self) -> FormulaReading:
        """Return the formula of the answer with its chain, settings and interpretations."""
        tokens, setting_tokens = self._split_settings()
        pieces = _split_tokens(tokens, {",", ";", "newline"})
        if not pieces:
            raise InputError(f"the formula is empty; write one in {', '.join(self.symbols)}")
        settings: dict[str, Rational] = {}
        for piece in _split_tokens(setting_tokens, {",", ";", "newline", "and"}):
            if len(piece) < 3 or piece[0].kind != "name" or piece[1].kind != "=":
                message = "a setting is of the form name = formula, as in: with d_ff = 4d."
                raise self.source.error_at(piece[0].position, message)
            target = settings if piece[0].text in self.symbols else self.custom
            target[piece[0].text] = self._evaluate(piece[2:])
        comma = next((token for token in tokens if token.kind == ","), None)
        if comma and not all(any(token.kind == "name" for token in piece) for piece in pieces):
            raise self.source.error_at(comma.position, f"',' is not read here. {COMMA_HINT}")
        items: list[_Item] = []
        for piece in pieces:
            item = self._read_item(piece)
            items.append(item)
            if len(pieces) > 1 and item.label and item.label not in self.symbols:  # later parts may use it as a name
                self.custom[item.label] = item.members[-1]
        *parts, last = items
        chain, value = last.members[:-1], last.members[-1]
        if parts and not last.uses_custom_names:
            total = self.calculator.add([item.members[-1] for item in parts])
            if {*last.label.lower().split(), last.label} & _TOTAL_LABELS:
                chain = [total, *chain]
            else:
                chain, value = [], self.calculator.add([total, value])
        chain = [substitute(member, settings, self.calculator) for member in chain]
        value = substitute(value, settings, self.calculator)
        notes = tuple(f"'{letters}' as {meaning}" for letters, meaning in self.interpretations.items())
        return FormulaReading(value, tuple(chain), settings, self.stated, notes)

    def _split_settings(self) -> tuple[list[Token], list[Token]]:
        """Return the tokens of the formula and those of the settings after it, without filler words."""
        tokens = formula_tokens(self.source)
        fillers = FILLER_WORDS - {*self.symbols}
        start = 0
        for index, token in enumerate(tokens):  # \text{with} leaves its braces behind
            if token.kind == "{":
                start = index + 1
            elif token.kind == "}" and start and {word.text.lower() for word in tokens[start:index]} <= fillers:
                tokens[start - 1] = tokens[index] = Token("", "", token.position)
        tokens = [token for token in tokens if token.kind]
        self.end = tokens.pop()
        setting_words = _SETTING_WORDS & fillers
        is_start = (token.kind == "name" and token.text.lower() in setting_words for token in tokens)
        cut = next((index for index, starts in enumerate(is_start) if starts), len(tokens))
        tokens, settings = tokens[:cut], tokens[cut + 1 :]
        endings = {("name", word) for word in fillers} | {(".", ".")}
        while len(tokens) > 1 and (tokens[-1].kind, tokens[-1].text.lower()) in endings:
            tokens.pop()
        return tokens, settings

    def _read_item(self, tokens: list[Token]) -> _Item:
        """Parse one part of an answer, `label: a = b = c`."""
        label, colons = "", [index for index, token in enumerate(tokens) if token.kind == ":"]
        if colons:
            label, tokens = " ".join(token.text for token in tokens[: colons[-1]]), tokens[colons[-1] + 1 :]
        first, *equal = _split_tokens(tokens, {"="}, keep_empty=True)
        left = [token for token in first if token.kind != "bar"]
        if equal and all(token.kind == "name" for token in left):  # the formula may have a name, as in P = …
            is_single = len(left) == 1
            if is_single and left[0].text in self.symbols:
                message = "only a new name may come before =; write the formula alone."
                raise self.source.error_at(left[0].position, message)
            is_product = all(split_into_symbols(token, self.symbols) is not None for token in left)
            if not is_product or (is_single and not label):
                label, first = " ".join(token.text for token in left), []
        members = [*([first] if first or not equal else []), *equal]
        uses_custom = any(token.kind == "name" and token.text in self.custom for piece in members for token in piece)
        return _Item(label, [self._evaluate(piece) for piece in members], uses_custom)

    def _evaluate(self, tokens: list[Token]) -> Rational:
        """Parse the tokens of one formula; custom names are replaced by their formulas."""
        spend(len(self.symbols) // 50)
        text = " ".join(token.text if token.kind == "number" else "?" for token in tokens)
        if re.fullmatch(r"\d{1,3}( \d{3})+", text):  # nothing but 9 721 596; before a bracket, 4 128 is refused
            self.interpretations[text] = "one number"
            tokens = [replace(tokens[0], text=text.replace(" ", ""))]
        symbols = {**dict.fromkeys(self.symbols), **self.custom}
        parser = _FormulaParser(self.source, [*tokens, self.end], symbols, self.calculator, self.interpretations)
        value = parser.sum()
        if parser.current.kind != "end":
            raise parser.error(f"'{parser.current.text[:20]}' does not fit here.")
        return value


def _split_stated_number(text: str, original: str) -> tuple[str, WrittenNumber | None]:
    """Return a formula whose trailing number is written in full, as in V d = 0.83 million, and that number.

    >>> _split_stated_number("V*d = 8.34e5", "")[0], _split_stated_number("V*d = d*V", "")
    ('V*d = 834000', ('V*d = d*V', None))
    """
    settings = _SETTINGS_START.search(text) if len(text) <= MAX_FORMULA_CHARS else None
    end = settings.start() if settings else len(text)
    start = text.rfind("=", 0, end) + 1
    if not start or not re.search(r"\d", text[start:end]) or len(text) > MAX_FORMULA_CHARS:
        return text, None
    sign = "≈ " if _APPROXIMATE.search(original[: start + 1], max(0, start - 12)) else ""
    try:
        number = read_number(f"{sign}{text[start:end]}")
    except InputError:
        return text, None
    if number.is_percent or number.start or number.value.denominator != 1:
        return text, None
    return f"{text[:start]} {int(number.value)}{text[end:]}", number


def _strip_bullets(text: str) -> str:
    """Replace the bullets or numbers before the lines of a list by blanks; return other text unchanged.

    >>> _strip_bullets("- tokens: Vd\\n- norm: 2d\\ntotal: d(V + 2)")
    '  tokens: Vd\\n  norm: 2d\\ntotal: d(V + 2)'
    """
    lines = text.split("\n") if len(text) <= MAX_FORMULA_CHARS else []
    bullets = [_BULLET.match(line) for line in lines]
    unmarked = [line for line, bullet in zip(lines, bullets, strict=True) if line.strip() and not bullet]
    if sum(map(bool, bullets)) < 2 or not all(":" in line or "=" in line for line in unmarked):
        return text
    pairs = zip(lines, bullets, strict=True)
    return "\n".join(" " * bullet.end() + line[bullet.end() :] if bullet else line for line, bullet in pairs)


def _split_tokens(tokens: list[Token], separators: set[str], keep_empty: bool = False) -> list[list[Token]]:
    """Split tokens outside brackets at separators, kinds or names; a line that ends with an operator is continued."""
    pieces: list[list[Token]] = [[]]
    depth = 0
    for index, token in enumerate(tokens):
        depth += (token.kind in _CLOSING) - (token.kind in _CLOSING.values())
        if token.kind == "newline":
            neighbors = {tokens[max(index - 1, 0)].kind, tokens[min(index + 1, len(tokens) - 1)].kind}
            if depth > 0 or _CONTINUATION_SIGNS & neighbors:
                continue
        if depth <= 0 and (token.kind in separators or (token.kind == "name" and token.text in separators)):
            pieces.append([])
        else:
            pieces[-1].append(token)
    return [piece for piece in pieces if piece or keep_empty]


def substitute(
    formula: Rational, values: Mapping[str, Rational] | Mapping[str, Polynomial], calculator: Calculator | None = None
) -> Rational:
    """Replace symbols by formulas, one after the other; the calculator bounds the work.

    >>> substitute(Rational(symbol("d") ** 2), {"d": symbol("h") + 1}) == (symbol("h") + 1) ** 2
    True
    """
    calculator = calculator or Calculator()
    for name, value in values.items():
        if name not in formula.symbols:
            continue
        replacement = Rational(value) if isinstance(value, Polynomial) else value
        numerator, denominator = (
            _substitute_symbol(side, name, replacement, calculator) for side in (formula.numerator, formula.denominator)
        )
        if not denominator.numerator:
            raise InputError(f"the formula divides by zero where {name} = {value}")
        formula = calculator.divide(numerator, denominator)
    return formula


def _substitute_symbol(formula: Polynomial, name: str, value: Rational, calculator: Calculator) -> Rational:
    """Replace the symbol `name` by `value` in a polynomial, which may become a quotient."""
    terms: list[Rational] = []
    for monomial, coefficient in formula.terms.items():
        power = dict(monomial).get(name, 0)
        remaining = Rational(Polynomial({tuple(pair for pair in monomial if pair[0] != name): coefficient}))
        raised = calculator.power(value, Rational(as_polynomial(power)))
        terms.append(calculator.multiply(remaining, raised))
    return calculator.add(terms)


def split_into_symbols(token: Token, symbols: Collection[str], include_self: bool = True) -> list[str] | None:
    """Split a name into the symbols whose product it is; [name] if it is a symbol itself, None if that is impossible.

    A subscript in braces is never split. Without `include_self` the name itself does not count as a symbol.

    >>> split_into_symbols(Token("name", "dd_h", 0), ["V", "d", "d_h", "h"])
    ['d', 'd_h']
    """
    word, end = token.text, len(token.text)
    if end > _MAX_NAME_LENGTH:
        return None
    if word in symbols and include_self:
        return [word]
    longest = max(map(len, symbols), default=0)
    spend((len(symbols) + end * min(end, longest)) // 50)
    suffixes: dict[int, list[str]] = {end: []}  # how the rest of the word from each index can be split
    for start in range(end - max(token.subscript_length, 1), -1, -1):
        for stop in range(min(end, start + longest), start, -1):
            if stop in suffixes and word[start:stop] in symbols and (include_self or stop - start < end):
                suffixes[start] = [word[start:stop], *suffixes[stop]]
                break
    return suffixes.get(0)


def is_function_name(word: str) -> bool:
    """Return whether a name is that of a known function, also with a base, such as log2.

    >>> is_function_name("log2"), is_function_name("log_10"), is_function_name("d2")
    (True, True, False)
    """
    return re.sub(r"_?\d+$", "", word) in FUNCTIONS


def explain_unknown(word: str, symbols: Collection[str]) -> str:
    """Return a sentence on why a name cannot be read, and on the symbol that may have been meant."""
    if is_function_name(word):
        return f"'{word}' is a function; formulas here are rational: sums, products, quotients and whole powers."
    text = word if len(word) <= _MAX_QUOTED_NAME else word[:_MAX_QUOTED_NAME] + "…"
    other_case = next((name for name in symbols if name.casefold() == word.casefold()), None)
    guess = other_case or closest_name(text, symbols)
    question = f" Did you mean '{guess}'?" if guess else ""
    choices = [name for name in symbols if len(name) <= _MAX_LETTER] or [*symbols]
    message = f"unknown symbol '{text}'.{question} Choices: {', '.join(choices[:_MAX_CHOICES])}."
    if word.isidentifier():
        message += f" Or say what it stands for, as in: … with {text} = {guess or choices[0]}." if choices else ""
    unusual = [describe_character(character) for character in text if not character.isascii() and character != "…"]
    return f"{message} It holds {unusual[0]}." if unusual and not other_case else message


class _FormulaParser(Cursor):
    """A recursive-descent parser whose methods read a construct and return its value: sums, products, signed powers."""

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
        """Return the result of an operation on operands; if it fails, the error points at `token`."""
        try:
            return operation(*operands)
        except InputError as error:
            raise self.error(f"{error}.", token) from None

    def enter(self, construct: str, token: Token | None = None) -> None:
        """Increase the depth of nesting; raise an error past MAX_NESTING, about a construct such as "powers"."""
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise self.error(f"{construct} nest more than {MAX_NESTING} deep.", token)

    def sum(self) -> Rational:
        """Read a sum or difference of products."""
        self.enter("brackets and signs")
        first, terms = self.current, [self.product()]
        while sign := self.take_if("+", "-"):
            terms.append(self.product() if sign.kind == "+" else -self.product())
        self.depth -= 1
        return self.compute(first, self.calculator.add, terms)

    def product(self) -> Rational:
        """Read factors with *, / or nothing between them; raise an error where that has two readings, as in a/b c."""
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
        """Read a power with plus and minus signs before it."""
        is_negative = False
        while sign := self.take_if("+", "-"):
            is_negative ^= sign.kind == "-"
        value = self.power()
        return -value if is_negative else value

    def power(self) -> Rational:
        """Read a number, symbol or bracket with its exponents, which group from the right.

        Of symbols written together only the last one is raised: Ld^2 is L times d^2, as in print.
        """
        first, start = self.current, self.index
        if first.kind == "big":
            return self.big_operator(self.take())
        is_name = first.kind in ("name", "command")
        *factors, value = self.symbol_product(self.take()) if is_name else [self.primary()]
        while token := self.take_if("raised"):
            digits = token.text.translate(_SUPERSCRIPTS)
            if not digits.removeprefix("-").isdecimal() or len(digits) > 3:
                raise self.error(f"'{token.text[:9]}' is not an exponent.", token)
            value = self.compute(token, self.calculator.power, value, Rational(as_polynomial(int(digits))))
        if token := self.take_if("^"):
            self.enter("powers", token)
            value = self.compute(token, self.calculator.power, value, self.signed())
            self.depth -= 1
        if is_name:
            self.note_interpretation(first, start, is_product=bool(factors))
        for factor in reversed(factors):
            value = self.compute(first, self.calculator.multiply, factor, value)
        return value

    def note_interpretation(self, token: Token, start: int, is_product: bool) -> None:
        """Record how a name was read that may be one symbol or a product of symbols, as in 'Vd' as V·d.

        `start` is the index of its token; an exponent is recorded with it.
        """
        word = token.text.removeprefix("\\")
        parts = split_into_symbols(replace(token, text=word), self.symbols, include_self=False)
        if parts and (is_product or len(parts) > 1):
            exponent = "".join(token.text for token in self.tokens[start + 1 : self.index])
            product = "·".join(parts)
            reading = f"{product}{exponent}" if is_product else f"one symbol, not {product}"
            self.interpretations[word + exponent] = reading

    def big_operator(self, token: Token) -> Rational:
        """Read ∑ or ∏ over an index, after its sign `token`; it extends over the product that follows, as in print."""
        kind, index = token.text.split()
        name = f"{index} "  # the blank distinguishes the index from a symbol of the same letter
        self.enter("sums", token)
        first = self.sum()
        if not self.take_if("}") or not self.take_if("^"):
            raise self.error(f"write the bounds as in \\{kind}_{{{index}=1}}^{{L}}.", token)
        last, outer = self.power(), self.symbols
        self.symbols = {**outer, index: Rational(symbol(name))}
        start, body = self.current, self.product()
        self.symbols = outer
        self.depth -= 1
        if self.current.kind in ("+", "-") and self.tokens[self.index - 1].kind not in _CLOSING.values():
            scope = "that of the product after it alone; put brackets around a sum"
            self.interpretations["∑" if kind == "sum" else "∏"] = scope
        powers = [power for monomial in body.numerator.terms for factor, power in monomial if factor == name]
        if name in body.denominator.symbols or any(power < 0 for power in powers):
            raise self.error(f"nothing is divided by the index {index} here.", start)
        if kind == "prod":
            low, high = first.constant, last.constant
            are_integers = low is not None and high is not None and low.denominator == high.denominator == 1
            if low is None or high is None or not are_integers or high - low > 2 * MAX_EXPONENT:
                raise self.error(f"a product has whole numbers as bounds, at most {2 * MAX_EXPONENT} apart.", token)
            value = Rational(ONE)
            for number in range(int(low), int(high) + 1):
                factor = self.compute(start, substitute, body, {name: as_polynomial(number)}, self.calculator)
                value = self.compute(token, self.calculator.multiply, value, factor)
            return value
        if any(power >= MAX_EXPONENT for power in powers):
            raise self.error(f"the index {index} has at most the power {MAX_EXPONENT - 1} here.", start)
        # in closed form: F(last) − F(first − 1), where F(n) is the sum for the index from 1 to n
        sums: list[Rational] = []
        for monomial, coefficient in body.numerator.terms.items():
            remaining = Polynomial({tuple(pair for pair in monomial if pair[0] != name): coefficient})
            sums.append(Rational(remaining * power_sum(dict(monomial).get(name, 0), name), body.denominator))
        closed = self.compute(token, self.calculator.add, sums or [body])
        bounds = (last, first - Rational(ONE))
        until, before = (self.compute(token, substitute, closed, {name: bound}, self.calculator) for bound in bounds)
        return self.compute(token, self.calculator.add, [until, -before])

    def primary(self) -> Rational:
        """Read a number, a bracket, a fraction or |V|."""
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
        if token.kind == "bar":
            return self.cardinality(token)
        if token.kind == "fraction":
            groups: list[Rational] = []
            for opening in (self.take_if("{") for _ in range(2)):
                if opening is None:
                    raise self.error("\\frac takes two groups in braces: \\frac{a}{b}.", token)
                groups.append(self.bracket(opening))
            return self.compute(token, self.calculator.divide, *groups)
        actual = "the formula ends" if token.kind == "end" else f"got '{token.text[:20]}'"
        raise self.error(f"{actual} where a number, a symbol or a bracket was expected.", token)

    def cardinality(self, bar: Token) -> Rational:
        """Read a symbol between bars, as in |V|, after the first `bar`."""
        values: list[Rational] = []
        if self.current.kind in ("name", "command"):
            values = self.symbol_product(self.take())
        elif self.current.kind == "{":
            values = [self.bracket(self.take())]
        is_symbol = len(values) == 1 and any(values[0] == Rational(symbol(name)) for name in self.symbols)
        if not is_symbol or self.take().kind != "bar":
            raise self.error("bars are read only around one symbol, as in |V|.", bar)
        return values[0]

    def bracket(self, opening: Token) -> Rational:
        """Read a formula and the bracket that closes `opening`."""
        value, closing = self.sum(), _CLOSING[opening.kind]
        if not self.take_if(closing):
            raise self.error(f"this bracket is not closed by '{closing}'.", opening)
        return value

    def symbol_product(self, token: Token) -> list[Rational]:
        """Return the value of the symbol that a name stands for, or the values of the symbols whose product it is."""
        token = replace(token, text=token.text.removeprefix("\\"))
        names = split_into_symbols(token, self.symbols)
        if names is None or (is_function_name(token.text) and token.text not in self.symbols):
            raise self.error(explain_unknown(token.text, self.symbols), token)
        return [self.symbols[name] or Rational(symbol(name)) for name in names]


def power_sum(power: int, name: str) -> Polynomial:
    """Return 1^power + … + n^power as a polynomial in the symbol n called `name` (Faulhaber's formula).

    >>> power_sum(1, "n") == (symbol("n") ** 2 + symbol("n")) / 2
    True
    """
    bernoulli = [Fraction(1)]
    for order in range(1, power + 1):
        bernoulli.append(-sum(comb(order + 1, k) * bernoulli[k] for k in range(order)) / Fraction(order + 1))
    terms = ((-1) ** k * comb(power + 1, k) * number / (power + 1) for k, number in enumerate(bernoulli))
    return Polynomial({((name, power + 1 - k),): term for k, term in enumerate(terms)})
