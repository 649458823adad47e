r"""Reading quantities as people write them: arithmetic with letters and units, such as `2 L h_kv d_h T · 2 bytes`.

Nothing is evaluated as code. The grammar, after LaTeX and typographic signs are replaced by plain ones, is

    sum     = product (("+" | "-") product)*          product = signed (("*" | "/" | "") signed)*
    signed  = ("+" | "-") signed | power              power   = atom ("^" signed)?
    atom    = number unit* | letters | function "(" sum, … ")" | "(" sum ")" | "⌊" sum "⌋" | "⌈" sum "⌉"

Where a text has several readings (7B as billions or as 7·B, a/2b as a/(2b) or as (a/2)·b), all of them are returned.
"""

import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import product

from lemma.errors import InputError, describe_unknown
from lemma.report.numbers import shorten

Value = Fraction | float
Dimension = tuple[int, int, int]
"""Powers of bytes, seconds and dollars. FLOPs, tokens, parameters and devices have no dimension."""
NONE: Dimension = (0, 0, 0)
BYTES, SECONDS, DOLLARS, PER_SECOND = (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, -1, 0)
MAX_CHARS, MAX_TOKENS, MAX_DEPTH, MAX_BITS = 2_000, 400, 40, 4_000
MAX_EXPONENT = 250  # of a number such as 1e12, and of a power
FUNCTIONS: dict[str, Callable[..., Value]] = {}
_FLOP_WORDS = ("flop", "flops", "operations", "ops")
_FILLERS = [
    "parameters",
    "parameter",
    "params",
    "param",
    "tokens",
    "token",
    "sequences",
    "sequence",
    "samples",
    "sample",
    "sentences",
    "gpus",
    "gpu",
    "devices",
    "device",
    "weights",
    "numbers",
    "number",
    "elements",
    "element",
    "values",
    "value",
    "requests",
    "steps",
    "step",
    "layers",
    "layer",
    "heads",
    "head",
    "times",
    "fold",
    "users",
    "user",
    "tok",
    "toks",
    "nats",
    "nat",
    "A100",
    "H100",
    "V100",
    "A100s",
    "H100s",
    "V100s",
]
DAY = 86_400
TIME_UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), Fraction(1)),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), Fraction(1, 1000)),
    **dict.fromkeys(("us", "µs", "μs", "microsecond", "microseconds"), Fraction(1, 10**6)),
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), Fraction(1, 10**9)),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), Fraction(60)),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), Fraction(3600)),
    **dict.fromkeys(("d", "day", "days"), Fraction(DAY)),
    **dict.fromkeys(("week", "weeks"), Fraction(7 * DAY)),
    **dict.fromkeys(("month", "months"), Fraction(30 * DAY)),
    **dict.fromkeys(("y", "yr", "yrs", "year", "years"), Fraction(365 * DAY)),
}
PREFIXES = {"k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18, "Z": 10**21}
COUNT_WORDS = {
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "B": 10**9,
    "G": 10**9,
    "T": 10**12,
    "thousand": 10**3,
    "million": 10**6,
    "millions": 10**6,
    "mio": 10**6,
    "bn": 10**9,
    "billion": 10**9,
    "billions": 10**9,
    "trillion": 10**12,
    "trillions": 10**12,
    "quadrillion": 10**15,
}


def _make_units() -> dict[str, tuple[Fraction, Dimension]]:
    """Return the factor to the base unit, and the dimension, of every unit."""
    units: dict[str, tuple[Fraction, Dimension]] = {name: (factor, SECONDS) for name, factor in TIME_UNITS.items()}
    for word in ("byte", "bytes", "Byte", "Bytes", "B"):
        units[word] = (Fraction(1), BYTES)
    for word in ("bit", "bits", "b"):
        units[word] = (Fraction(1, 8), BYTES)
    for power, letter in enumerate("KMGTPE", 1):
        for spelling in {letter, letter.lower() if letter in "KM" else letter}:
            decimal, binary = Fraction(1000**power), Fraction(1024**power)
            for word in ("B", "Byte", "Bytes", "byte", "bytes"):
                units[f"{spelling}{word}"] = (decimal, BYTES)
                units[f"{spelling}i{word}"] = (binary, BYTES)
            for word in ("b", "bit", "bits"):
                units[f"{spelling}{word}"] = (decimal / 8, BYTES)
                units[f"{spelling}i{word}"] = (binary / 8, BYTES)
            units[f"{spelling}bps"] = (decimal / 8, (1, -1, 0))
            units[f"{spelling}Bps"] = (decimal, (1, -1, 0))
    for power, word in enumerate(("kilo", "mega", "giga", "tera", "peta"), 1):
        for spelling in (word, word.capitalize()):
            units |= {f"{spelling}{end}": (Fraction(1000**power), BYTES) for end in ("byte", "bytes")}
            units |= {f"{spelling}{end}": (Fraction(1000**power, 8), BYTES) for end in ("bit", "bits")}
    for power, word in enumerate(("kibi", "mebi", "gibi", "tebi"), 1):
        units |= {f"{word}{end}": (Fraction(1024**power), BYTES) for end in ("byte", "bytes")}
    units |= {word: (Fraction(1), NONE) for word in _FILLERS}
    units |= {"%": (Fraction(1, 100), NONE), "x": (Fraction(1), NONE), "$": (Fraction(1), DOLLARS)}
    units |= dict.fromkeys(("USD", "usd", "dollars", "dollar", "euros", "euro", "EUR", "eur"), (Fraction(1), DOLLARS))
    units |= {"ct": (Fraction(1, 100), DOLLARS), "cents": (Fraction(1, 100), DOLLARS)}
    return units


UNITS = _make_units()
_FLOP_UNIT = re.compile(r"(kilo|mega|giga|tera|peta|exa|[kKMGTPEZ])?(flops?|FLOPS?|FLOPs?|Flops?|FLOp/?s)(ps|/s)?")
_WORD_PREFIXES: dict[str, int] = dict(
    zip(("kilo", "mega", "giga", "tera", "peta", "exa"), (1000**n for n in range(1, 7)), strict=True)
)


def find_unit(name: str, flops_is_rate: bool = False) -> tuple[Fraction, Dimension] | None:
    """Return the factor and dimension of a unit; None if there is no such unit.

    Args:
        name: as written.
        flops_is_rate: whether FLOPS means FLOPs per second.

    >>> find_unit("GiB"), find_unit("TFLOPS", flops_is_rate=True)[1]
    ((Fraction(1073741824, 1), (1, 0, 0)), (0, -1, 0))
    """
    if unit := UNITS.get(name) or (UNITS.get(name.casefold()) if name.casefold() in _CASELESS else None):
        return unit
    if match := _FLOP_UNIT.fullmatch(name):
        prefix, word, per_second = match[1] or "", match[2], match[3]
        factor = Fraction(_WORD_PREFIXES.get(prefix) or PREFIXES.get(prefix, 1))
        is_rate = per_second or (flops_is_rate and word.lower() == "flops")
        return factor, PER_SECOND if is_rate else NONE
    return None


_CASELESS = {*_FILLERS, "bytes", "byte", "bits", "bit", "days", "day", "hours", "hour", "seconds", "second", "minutes"}
_CASELESS |= {"weeks", "week", "years", "year", "usd", "months", "gibibytes", "gigabytes", "megabytes"}


@dataclass(frozen=True)
class Measure:
    """A number with its written uncertainty and its dimension.

    Attributes:
        error: how far the exact number may be away, from the last digits that are written.
    """

    value: Value
    error: float = 0.0
    dimension: Dimension = NONE


@dataclass(frozen=True)
class QuantityNode:
    """A node of an expression: `number`, `letter`, `unit`, a function or an operator with its operands."""

    op: str
    children: tuple["QuantityNode", ...] = ()
    name: str = ""
    measure: Measure = Measure(Fraction(0))

    def letters(self) -> frozenset[str]:
        """Return the letters that occur."""
        return self._letters

    @cached_property
    def _letters(self) -> frozenset[str]:
        if self.op == "letter":
            return frozenset((self.name,))
        return frozenset().union(*(child.letters() for child in self.children))

    @property
    def is_integer(self) -> bool:
        """True for a number that is written without decimals."""
        return self.op == "number" and "." not in self.name and not re.search(r",\d{1,2}$", self.name)

    @property
    def literal(self) -> bool:
        """True for a number with at most a unit and a sign."""
        if self.op == "neg":
            return self.children[0].literal
        if self.op == "*" and self.children[1].op == "unit":
            return self.children[0].literal
        return self.op == "number"

    @property
    def has_content(self) -> bool:
        """True if a number or a letter occurs, not units alone."""
        return self.op in ("number", "letter") or any(child.has_content for child in self.children)

    @property
    def has_unit(self) -> bool:
        """True if a unit that is written out occurs in the expression."""
        return self.op == "unit" or any(child.has_unit for child in self.children)


@dataclass(frozen=True)
class QuantityReading:
    """A reading of a text."""

    node: QuantityNode
    text: str
    is_percent: bool = False
    note: str = ""


def read_readings(text: str, letters: Mapping[str, str]) -> list[QuantityReading]:
    """Return all readings of an expression, the most natural first.

    Args:
        text: the expression.
        letters: names that may occur, each with the letter that it stands for.

    >>> node = read_readings("2 GB + 8 bits", {})[0].node
    >>> evaluate(node, {}).value
    Fraction(2000000001, 1)
    """
    if len(text) > MAX_CHARS:
        raise InputError(f"the expression has {len(text):,} characters; at most {MAX_CHARS:,} are read.")
    normalized = _normalize(text, letters)
    if not normalized.strip():
        raise InputError("the answer is empty: a number such as 8.59 GB, or a formula, is expected.")
    texts = [normalized]
    if match := _TRAILING_UNIT.fullmatch(normalized):  # 1.5 B + 112 GB as (1.5 B + 112) GB
        body, unit = match[1], match[2]
        unit_words = [word for word in re.split(r"[\s/*]+", unit) if word]
        is_unit = all(find_unit(word) or word in COUNT_WORDS for word in unit_words)
        has_other = any(find_unit(word) for word in re.findall(r"[A-Za-z]+", body) if word not in letters)
        if re.search(r"(?<![eE])[+-]", body[1:]) and is_unit and not has_other:
            texts.append(f"({body}) {unit}")
    readings: list[QuantityReading] = []
    error: InputError | None = None
    for expression in texts:
        tokens = list(_tokenize(expression))
        words = {token for token in tokens if token[:1].isalpha()}
        has_clash = any(word in letters and (find_unit(word) or word in COUNT_WORDS) for word in words)
        has_flops = any((match := _FLOP_UNIT.fullmatch(word)) and match[2].lower() == "flops" for word in words)
        has_b = bool(words & {"B", "b"})
        options = product(
            (False, True) if has_clash else (False,),
            (False, True) if has_flops else (False,),
            (False, True),
            (False, True) if has_b else (False,),
        )
        for units_first, flops_is_rate, loose, count_first in options:
            try:
                parser = _QuantityParser(tokens, letters, units_first, flops_is_rate, loose, count_first)
                node = parser.read()
            except InputError as failure:
                error = error or failure
                continue
            if loose and not parser.was_ambiguous:
                continue
            readings.append(QuantityReading(node, expression, "%" in tokens))
    if not readings:
        raise error or InputError(f"'{shorten(text)}' cannot be read.")
    distinct: list[QuantityReading] = []
    for reading in readings:
        if all(reading.node != other.node for other in distinct):
            distinct.append(reading)
    return distinct


_TRAILING_UNIT = re.compile(r"(.*[\d)A-Za-z])\s+((?:[A-Za-z%$µ]+)(?:\s*/\s*[A-Za-z]+)?)\s*", re.DOTALL)
_SUPERSCRIPTS = {**dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789", strict=True)), "⁻": "-", "⁺": "+"}
_SIGNS = {
    **dict.fromkeys("·×⋅∙∗•✕", "*"),
    **dict.fromkeys("−–—‐‑﹣", "-"),
    **dict.fromkeys("÷∕⁄", "/"),
    "√": " sqrt ",
    "∣": "|",
    "≃": "≈",
    "≅": "≈",
    "⩾": "≥",
    "⩽": "≤",
    "€": "$",
    "％": "%",
}
_GREEK = {
    character: (name.lower() if "SMALL" in words else name.capitalize())
    for character in map(chr, (*range(0x391, 0x3AA), *range(0x3B1, 0x3CA)))
    if len(words := unicodedata.name(character, "").replace("LAMDA", "LAMBDA").split()) == 4
    for name in words[-1:]
}
_GREEK["μ"] = "mu"
_LATEX = (
    (re.compile(r"\\(?:left|right|[Bb]igg?[lr]?)(?![A-Za-z])"), ""),
    (re.compile(r"\\[,;:!> ]|\\q?quad(?![A-Za-z])|~|\\displaystyle|\\tfrac(?=\d\d)"), " "),
    (re.compile(r"\\[td]?frac\s*(\d)\s*(\d)"), r"((\1)/(\2))"),
    (re.compile(r"\\(?:cdot|times|ast)(?![A-Za-z])"), "*"),
    (re.compile(r"\\div(?![A-Za-z])"), "/"),
    (re.compile(r"\\approx(?![A-Za-z])|\\simeq(?![A-Za-z])"), "≈"),
    (re.compile(r"\\geq?(?:slant)?(?![A-Za-z])|>="), "≥"),
    (re.compile(r"\\leq?(?:slant)?(?![A-Za-z])|<="), "≤"),
    (re.compile(r"\\gt(?![A-Za-z])"), ">"),
    (re.compile(r"\\lt(?![A-Za-z])"), "<"),
    (re.compile(r"\\lfloor(?![A-Za-z])"), "⌊"),
    (re.compile(r"\\rfloor(?![A-Za-z])"), "⌋"),
    (re.compile(r"\\lceil(?![A-Za-z])"), "⌈"),
    (re.compile(r"\\rceil(?![A-Za-z])"), "⌉"),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\\\$"), "$"),
    (re.compile(r"\{,\}"), ","),
)
_STYLE = re.compile(r"\\(?:text(?:rm|it|bf|sf|tt)?|math(?:rm|it|bf|sf|tt|cal)|operatorname|boldsymbol)\s*\{([^{}]*)\}")


def replace_latex(text: str) -> str:
    r"""Return a text with LaTeX and typographic signs replaced by plain ones.

    >>> replace_latex(r"$N \geq \frac{F v}{R c}$"), replace_latex("2·d²")
    ('N ≥ ((F v)/(R c))', '2*d^(2)')
    """
    text = unicodedata.normalize("NFC", text)
    if text.count("$") >= 2:  # around formulas
        text = text.replace("$", " ")
    text = "".join(_SIGNS.get(character, character) for character in text)
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+", lambda match: "^(" + "".join(_SUPERSCRIPTS[c] for c in match[0]) + ")", text)
    text = re.sub(r"[₀-₉ₐ-ₜᵢᵣᵤᵥⱼ]+", lambda match: "_" + unicodedata.normalize("NFKC", match[0]), text)
    text = re.sub(r"[µμ]s\b", "us", text)
    text = "".join(_GREEK.get(character, character) for character in text)
    text = text.replace("**", "^").replace("|V|", "V")
    for _ in range(3):
        text = _STYLE.sub(r"\1", text)
    for pattern, replacement in _LATEX:
        text = pattern.sub(replacement, text)
    for _ in range(MAX_DEPTH):
        shorter = re.sub(r"\\[td]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"((\1)/(\2))", text)
        shorter = re.sub(r"\\sqrt\s*\{([^{}]*)\}", r" sqrt(\1)", shorter)
        shorter = re.sub(r"_\s*\{\s*(\w+)\s*\}", r"_\1", shorter)
        shorter = re.sub(r"\^\s*\{([^{}]*)\}", r"^(\1)", shorter)
        if shorter == text:
            break
        text = shorter
    text = re.sub(r"\\(?=[A-Za-z])", " ", text)
    return text.replace("{", "(").replace("}", ")").strip()


def _normalize(text: str, letters: Mapping[str, str]) -> str:
    """Return an expression in plain signs, without the words around it."""
    text = replace_latex(text)
    text = re.sub(r"(?i)^\s*(?:about|approximately|approx\.?|roughly|circa|ca\.?|around|some|~|≈)\s*", "", text)
    text = re.sub(r"(?i)\bper\s?cent\b", "%", text)
    text = re.sub(r"(?i)\bper\b", "/", text)
    text = re.sub(r"(?i)\b(gpu|device)s?\s*-\s*(?=[hdys])", r"\1 ", text)
    text = re.sub(r"(?i)(?<=\d)\s*-?\s*fold\b", "", text)
    text = re.sub(r"(?i)(flops?(?:\s*/\s*s)?)\s*-\s*(?=days?|hours?|h\b|s\b)", r"\1 ", text)
    text = re.sub(r"(?i)\bGPUh\b", "hours", text)
    text = re.sub(r"\b([PEZ])F(?:LOPs?)?(?:/s)?[\s-]*days?\b", r"\1FLOP/s days", text)
    text = re.sub(r"\b([AHV]\d00)\s*-\s*(?=hours?|days?)", r"\1 ", text)
    text = re.sub(r"^\s*(?:USD|EUR)\s*(?=[\d.])(.*)$", r"\1 USD", text)
    text = re.sub(r"(?i)\s*\b(?:in total|altogether|of memory|of the total|of all parameters|each)\b\.?\s*$", "", text)
    if "x" not in letters:
        text = re.sub(r"(?<=[\d)A-Za-z])\s+[xX]\s+(?=[\d(A-Za-z])", " * ", text)
        text = re.sub(r"(?<=\d)[xX](?=\d)", " * ", text)
    text = re.sub(r"^\s*\$\s*(?=[\d.])(.*)$", r"\1 USD", text)
    return text.strip().removesuffix(".").removesuffix("*").strip()


_NUMBER = (
    r"(?:\d{1,3}(?:[,'’_\u00a0\u2009\u202f ]\d{3})+(?![\d.]*\d,)(?!\d)|\d+,\d+(?![,\d])|\d+)(?:\.\d+|\.(?!\d))?|\.\d+"
)
_TOKEN = re.compile(
    rf"\s*(?:(?P<number>(?:{_NUMBER})(?:[eE][+-]?\d+)?)|(?P<name>[^\W\d](?:\w)*)|(?P<sign>[-+*/^()\[\],⌊⌋⌈⌉%$!|]))"
)


def _tokenize(text: str) -> Iterator[str]:
    """Yield the numbers, names and signs of an expression."""
    position, count = 0, 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise InputError(f"'{text[position : position + 20].strip()}' is not read in '{shorten(text)}'.")
        count += 1
        if count > MAX_TOKENS:
            raise InputError(f"the expression has more than {MAX_TOKENS} numbers, names and signs.")
        yield match[0].strip()
        position = match.end()


def read_literal(text: str) -> QuantityNode:
    """Return the node of a number, whose error is half a unit of its last digit."""
    mantissa, _, exponent = re.sub(r"[eE]", "e", text).partition("e")
    power = int(exponent or 0) if len(exponent) < 6 else MAX_EXPONENT + 1
    if abs(power) > MAX_EXPONENT or len(mantissa) > MAX_EXPONENT:
        raise InputError(f"'{shorten(text, 40)}': a number has at most {MAX_EXPONENT} digits here.")
    digits = re.sub(r"['’_\u00a0\u2009\u202f ]", "", mantissa)
    if re.fullmatch(r"\d+,\d+", digits) and not re.fullmatch(r"[1-9]\d{0,2},\d{3}", digits):
        digits = digits.replace(",", ".")  # a decimal comma
    digits = digits.replace(",", "")
    integer_digits, _, decimals = digits.partition(".")
    value = Fraction(f"{digits.rstrip('.')}") * Fraction(10) ** power
    if decimals or exponent:
        unit = Fraction(10) ** (power - len(decimals))
    else:
        zeros = len(integer_digits) - len(integer_digits.rstrip("0"))
        unit = Fraction(10 ** max(0, min(zeros, len(integer_digits) - 3)))
    return QuantityNode("number", measure=Measure(value, float(unit) / 2), name=text)


class _QuantityParser:
    """A recursive-descent parser of one reading of an expression."""

    def __init__(
        self,
        tokens: list[str],
        letters: Mapping[str, str],
        units_first: bool,
        flops_is_rate: bool,
        loose: bool,
        count_first: bool,
    ) -> None:
        self.tokens, self.letters, self.index, self.depth = [*tokens, ""], letters, 0, 0
        self.units_first, self.flops_is_rate, self.loose, self.count_first = (
            units_first,
            flops_is_rate,
            loose,
            count_first,
        )
        self.was_ambiguous = False

    @property
    def current(self) -> str:
        return self.tokens[self.index]

    def take(self) -> str:
        """Return the next token and move past it."""
        token = self.current
        self.index += token != ""
        return token

    def read(self) -> QuantityNode:
        """Read the whole expression."""
        node = self.sum()
        node = node if node.literal else _as_exact(node)
        if self.current:
            raise InputError(f"'{shorten(self.current, 20)}' does not fit in '{shorten(' '.join(self.tokens))}'.")
        return node

    def sum(self) -> QuantityNode:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise InputError(f"the brackets nest more than {MAX_DEPTH} deep.")
        node = self.product()
        while self.current in ("+", "-"):
            sign = self.take()
            node = QuantityNode(sign, (node, self.product()))
        self.depth -= 1
        return node

    def product(self) -> QuantityNode:
        node = self.signed()
        last = ""
        while self.current in ("*", "/") or self._starts_operand():
            sign = self.take() if self.current in ("*", "/") else ""
            right = self.signed()
            if not sign and last == "/" and right.op != "unit":
                self.was_ambiguous = True
                if not self.loose:  # a/2b is a/(2b)
                    node = QuantityNode("/", (node.children[0], QuantityNode("*", (node.children[1], right))))
                    continue
            node = QuantityNode(sign or "*", (node, right))
            last = sign or last
        return node

    def _starts_operand(self) -> bool:
        token = self.current
        return bool(token) and (token[0].isalnum() or token[0] in "([⌊⌈%$." or token[0] == "_")

    def signed(self) -> QuantityNode:
        if self.current in ("+", "-"):
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise InputError("there are too many signs in a row.")
            sign = self.take()
            inner = self.signed()
            self.depth -= 1
            return QuantityNode("neg", (inner,)) if sign == "-" else inner
        return self.power()

    def power(self) -> QuantityNode:
        *factors, node = self.atom()
        if self.current == "^":
            self.take()
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise InputError(f"the powers nest more than {MAX_DEPTH} deep.")
            node = QuantityNode("^", (node, self._exponent()))
            self.depth -= 1
        for factor in reversed(factors):
            node = QuantityNode("*", (factor, node))
        return node

    def _exponent(self) -> QuantityNode:
        """Read an exponent; units after it belong to the power, as in 10^9 bytes."""
        sign = self.take() if self.current in ("+", "-") else ""
        if self.current[:1].isdigit() and self.tokens[min(self.index + 1, len(self.tokens) - 1)] != "^":
            number = read_literal(self.take())
            return QuantityNode("neg", (number,)) if sign == "-" else number
        inner = self.signed()
        return QuantityNode("neg", (inner,)) if sign == "-" else inner

    def atom(self) -> list[QuantityNode]:
        """Read a number with its units, a name, a function or a bracket; letters written together are several."""
        token = self.take()
        if token[:1].isdigit() or token[:1] == ".":
            return [self._units_after(read_literal(token))]
        if token in ("(", "["):
            return [self._close(self.sum(), {"(": ")", "[": "]"}[token])]
        if token in ("⌊", "⌈"):
            name = "floor" if token == "⌊" else "ceil"
            return [QuantityNode(name, (self._close(self.sum(), "⌋" if token == "⌊" else "⌉"),))]
        if token in ("%", "$"):
            return [self._unit(token)]
        if token[:1].isalpha() or token[:1] == "_":
            return self._name(token)
        actual = f"got '{token}'" if token else "the expression ends"
        raise InputError(f"{actual} where a number, a letter or a bracket is expected.")

    def _close(self, node: QuantityNode, closing: str) -> QuantityNode:
        if self.take() != closing:
            raise InputError(f"a bracket is not closed by '{closing}'.")
        return node

    def _unit(self, name: str) -> QuantityNode:
        factor, dimension = find_unit(name, self.flops_is_rate) or (Fraction(1), NONE)
        return QuantityNode("unit", name=name, measure=Measure(factor, 0.0, dimension))

    def _is_unit(self, token: str) -> bool:
        if not token or (token in self.letters and not self.units_first):
            return False
        return bool(find_unit(token))

    def _units_after(self, number: QuantityNode) -> QuantityNode:
        """Return a number with the units that follow it: 2 TB/s binds more closely than a division."""
        token = self.current
        is_letter = token in self.letters and not self.units_first
        after = self.tokens[self.index + 1] if self.index + 1 < len(self.tokens) else ""
        means_count = token in COUNT_WORDS and not is_letter and (token != "B" or self.count_first)
        is_counted = (find_unit(after) or (1, NONE))[1] == NONE  # 167 B tokens
        if means_count and after != "^" and not (token in ("B", "b") and self._is_unit(after) and not is_counted):
            self.take()
            factor = COUNT_WORDS[token]
            measure = Measure(number.measure.value * factor, number.measure.error * factor)
            if "." not in number.name and "," not in number.name:
                measure = Measure(measure.value, factor / 2)
            number = QuantityNode("number", measure=measure, name=f"{number.name} {token}")
        node = number
        while (token := self.current) in ("%", "$") or self._is_unit(token):
            after = self.tokens[self.index + 1]
            if after == "^" and token not in ("%", "$"):
                break
            node = QuantityNode("*", (node, self._unit(self.take())))
            while self.current == "/" and self._is_unit(self.tokens[self.index + 1]):
                self.take()
                unit = self._unit(self.take())
                factor, dimension = unit.measure.value, unit.measure.dimension
                inverse = Measure(1 / factor, 0.0, tuple(-power for power in dimension))  # type: ignore[arg-type]
                node = QuantityNode("*", (node, QuantityNode("unit", name=f"/{unit.name}", measure=inverse)))
        return node

    def _name(self, token: str) -> list[QuantityNode]:
        if token in FUNCTIONS and token not in self.letters:
            return [self._call(token)]
        if self.units_first and find_unit(token) and self.index >= 2 and self.tokens[self.index - 2] == ")":
            return [self._unit(token)]
        if token in self.letters:
            return [QuantityNode("letter", name=self.letters[token])]
        if find_unit(token):
            return [self._unit(token)]
        if parts := split_letters(token, self.letters):
            return [QuantityNode("letter", name=self.letters[part]) for part in parts]
        if token in COUNT_WORDS:
            return [QuantityNode("number", name=token, measure=Measure(Fraction(COUNT_WORDS[token])))]
        folded = {name.casefold(): name for name in self.letters}
        if token.casefold() in folded and len(token) > 1:
            return [QuantityNode("letter", name=self.letters[folded[token.casefold()]])]
        choices = sorted(set(self.letters.values()))
        raise InputError(
            describe_unknown("letter or unit", shorten(token, 30), choices)
            if choices
            else f"'{shorten(token, 30)}' is not a unit, and no letters are used here."
        )

    def _call(self, name: str) -> QuantityNode:
        if self.current not in ("(", "["):
            return QuantityNode(name, (self.atom()[-1],))
        closing = {"(": ")", "[": "]"}[self.take()]
        arguments = [self.sum()]
        while self.current == ",":
            self.take()
            arguments.append(self.sum())
        self._close(arguments[0], closing)
        if len(arguments) > (8 if name in ("min", "max") else 1):
            raise InputError(f"{name} has one argument.")
        return QuantityNode(name, tuple(arguments))


def _as_exact(node: QuantityNode) -> QuantityNode:
    """Return an expression whose whole numbers are exact, unless they have a unit, as in 112 GB."""
    if node.op == "number" and node.is_integer:
        return replace(node, measure=replace(node.measure, error=0.0))
    has_unit = node.op == "*" and node.children[1].op == "unit" and node.children[0].op == "number"
    if has_unit and node.children[1].measure.value != 1:
        return node
    return replace(node, children=tuple(map(_as_exact, node.children)))


def split_letters(token: str, letters: Mapping[str, str]) -> list[str] | None:
    """Split a run of letters into names whose product it is; None if that is impossible.

    >>> split_letters("LdT", {"L": "L", "d": "d", "T": "T"})
    ['L', 'd', 'T']
    """
    if len(token) > 60:
        return None
    suffixes: dict[int, list[str]] = {len(token): []}
    for start in range(len(token) - 1, -1, -1):
        for stop in range(len(token), start, -1):
            if stop in suffixes and token[start:stop] in letters:
                suffixes[start] = [token[start:stop], *suffixes[stop]]
                break
    return suffixes.get(0)


# Evaluation


def _check_size(value: Value) -> Value:
    """Return a number; as a float if its fraction is long."""
    if isinstance(value, Fraction):
        if max(value.numerator.bit_length(), value.denominator.bit_length()) <= MAX_BITS:
            return value
        value = as_float(value)
    if not math.isfinite(value):
        raise InputError("a number is too large.")
    return value


def as_float(value: Value) -> float:
    """Return a number as a float; an InputError if it is too large."""
    try:
        return float(value)
    except OverflowError:
        raise InputError("a number is too large.") from None


def evaluate(node: QuantityNode, letters: Mapping[str, Value]) -> Measure:
    """Return the value of an expression with these values of its letters, exact as long as it is rational."""
    if node.op in ("number", "unit"):
        return node.measure
    if node.op == "letter":
        if node.name not in letters:
            raise InputError(f"{node.name} has no value in this exercise.")
        return Measure(letters[node.name])
    children = [evaluate(child, letters) for child in node.children]
    left = children[0]
    match node.op:
        case "neg":
            return Measure(-left.value, left.error, left.dimension)
        case "+" | "-":
            right = children[1]
            if NONE not in (left.dimension, right.dimension) and left.dimension != right.dimension:
                raise InputError("quantities of different units are added.")
            dimension = left.dimension if left.dimension != NONE else right.dimension
            value = _apply(lambda a, b: a + b if node.op == "+" else a - b, left.value, right.value)
            return Measure(value, left.error + right.error, dimension)
        case "*":
            return _multiply(left, children[1])
        case "/":
            right = children[1]
            if not right.value:
                raise InputError("this divides by zero.")
            size = abs(as_float(right.value))
            inverse = Measure(
                _apply(lambda a, b: a / b, Fraction(1), right.value),
                right.error / size / size,
                _negate(right.dimension),
            )
            return _multiply(left, inverse)
        case "^":
            return _raise(left, children[1])
        case _:
            values = [child.value for child in children]
            try:
                value = _check_size(FUNCTIONS[node.op](*values))
            except (ValueError, OverflowError, ZeroDivisionError):
                raise InputError(f"{node.op} of {shorten(str(values[0]), 20)} is not a number.") from None
            size = abs(as_float(left.value))
            error = sum(child.error for child in children) * (as_float(abs(value)) / size if size else 1)
            if node.op == "sqrt":
                return Measure(value, error / 2, tuple(power // 2 for power in left.dimension))  # type: ignore[arg-type]
            return Measure(value, error, left.dimension)


def _negate(dimension: Dimension) -> Dimension:
    """Return the dimension of an inverse."""
    return (-dimension[0], -dimension[1], -dimension[2])


def _apply(operation: Callable[[Value, Value], Value], left: Value, right: Value) -> Value:
    """Return the result of an operation, in floats if one of the operands is a float."""
    if isinstance(left, float) or isinstance(right, float):
        left, right = as_float(left), as_float(right)
    try:
        return _check_size(operation(left, right))
    except OverflowError:
        raise InputError("a number is too large.") from None


def _multiply(left: Measure, right: Measure) -> Measure:
    """Return the product of two measures; relative errors add."""
    value = _apply(lambda a, b: a * b, left.value, right.value)
    error = abs(as_float(left.value)) * right.error + abs(as_float(right.value)) * left.error
    a, b = left.dimension, right.dimension
    return Measure(value, error, (a[0] + b[0], a[1] + b[1], a[2] + b[2]))


def _raise(base: Measure, exponent: Measure) -> Measure:
    """Return a power, exact for whole exponents."""
    power = exponent.value
    if exponent.dimension != NONE:
        raise InputError("an exponent has a unit.")
    size = as_float(base.value)
    if abs(as_float(power)) > MAX_EXPONENT:
        raise InputError(f"an exponent is at most {MAX_EXPONENT} here.")
    if not size and power <= 0:
        raise InputError("this divides by zero.")
    if isinstance(power, Fraction) and power.denominator == 1 and isinstance(base.value, Fraction):
        bits = max(base.value.numerator.bit_length(), base.value.denominator.bit_length())
        if bits * abs(power.numerator) <= MAX_BITS:
            value: Value = base.value ** int(power)
            error = abs(float(power)) * base.error / abs(size) * abs(as_float(value)) if size else 0.0
            a, b, c = (n * int(power) for n in base.dimension)
            return Measure(value, error, (a, b, c))
    if size < 0:
        raise InputError("a root of a negative number.")
    try:
        result = size ** as_float(power)
    except OverflowError:
        raise InputError("a number is too large.") from None
    if not math.isfinite(result):
        raise InputError("a number is too large.")
    a, b, c = (round(n * as_float(power)) for n in base.dimension)
    return Measure(result, abs(as_float(power)) * base.error / size * result if size else 0.0, (a, b, c))


def _root(value: Value) -> Value:
    """Return a square root, exact for squares of fractions."""
    if isinstance(value, Fraction) and value >= 0:
        numerator, denominator = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if numerator**2 == value.numerator and denominator**2 == value.denominator:
            return Fraction(numerator, denominator)
    return math.sqrt(value)


FUNCTIONS |= {
    "sqrt": _root,
    "ln": lambda value: math.log(value),
    "log": lambda value: math.log(value),
    "log2": lambda value: math.log2(value),
    "log10": lambda value: math.log10(value),
    "exp": lambda value: math.exp(value),
    "min": lambda *values: min(values),
    "max": lambda *values: max(values),
    "floor": lambda value: Fraction(math.floor(value)),
    "ceil": lambda value: Fraction(math.ceil(value)),
    "round": lambda value: Fraction(round(value)),
}


def read_quantity_field(value: object) -> object:
    """Return the number of a field that may be written with a unit, such as "7B", "312 TFLOPs", "2 TB/s" or "50 %".

    Bytes, seconds and FLOPs are the base units. Other values are returned as they are.

    >>> read_quantity_field("2 TB/s"), read_quantity_field("50 %"), read_quantity_field("7B")
    (2000000000000.0, 0.5, 7000000000.0)
    """
    if not isinstance(value, str):
        return value
    readings = read_readings(value, {})
    counts = [reading for reading in readings if not re.search(r"\d\s*B$", value.strip())]
    for reading in counts or readings[::-1]:
        return as_float(evaluate(reading.node, {}).value)
    return value
