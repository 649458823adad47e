"""Notation around answers and statements: calculations in place of numbers, tables as text, words of a language."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from lemma.checking.expected_values import ExpectedValue, expect_words
from lemma.checking.read_values import FLOAT_TOLERANCE

MAX_ARITHMETIC_CHARS, MAX_ARITHMETIC_DEPTH, MAX_POWER, MAX_BITS = 400, 20, 64, 4096
MAX_TABLE_CHARS, MAX_TABLE_ENTRIES = 20_000, 2_500
_ARITHMETIC_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d{1,3})?|\.\d+)|(?P<name>\\?[a-z]+_?\{?\d*\}?)|(?P<sign>\*\*|[-+*/^()!]))"
)
_FUNCTIONS: dict[str, Callable[[float], float]] = {
    "log": math.log,
    "ln": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "exp": math.exp,
    "sqrt": math.sqrt,
}
_NAME_SIGN = re.compile(r"((?:</?\w+>|->|=>|[^=<>≈])++)(==?|≈)(.+)", re.DOTALL)
_PERCENTAGE = re.compile(r"([+-]?\d{0,15})(?:\.(\d{0,12}))?\s*\\?%")

_CONDITIONAL = re.compile(r"\b(?:[Pp]|Pr)\(\s*([^()|]{1,40}?)\s*(?:\|\s*([^()|]{1,40}?)\s*)?\)")  # P(H | C), P(H)

Number = Fraction | float


def evaluate_arithmetic(text: str) -> Number | None:
    """Return the value of a calculation with numbers, exact if it has no roots and logarithms; None for other text.

    >>> evaluate_arithmetic("1/3 * 2/3"), evaluate_arithmetic("log2(8)"), evaluate_arithmetic("C(a)/2")
    (Fraction(2, 9), 3.0, None)
    """
    for symbol, operator in {"−": "-", "–": "-", "·": "*", "×": "*", "\\cdot": "*", "\\times": "*", "÷": "/"}.items():
        text = text.replace(symbol, operator)
    text = re.sub(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"((\1)/(\2))", text).replace("\\", "").strip(" $")
    if not text or len(text) > MAX_ARITHMETIC_CHARS:
        return None
    tokens, position = [], 0
    while position < len(text.rstrip()):
        match = _ARITHMETIC_TOKEN.match(text, position)
        if not match:
            return None
        tokens.append(match.group().strip())
        position = match.end()
    try:
        value, end = _add(tokens, 0, 0)
    except (ValueError, IndexError, ZeroDivisionError, OverflowError, TypeError):
        return None
    if end != len(tokens) or isinstance(value, complex) or not math.isfinite(value):
        return None
    return value


def _add(tokens: Sequence[str], position: int, depth: int) -> tuple[Number, int]:
    """Return the value of a sum that begins at a position, and the position after it."""
    value, position = _multiply(tokens, position, depth)
    while position < len(tokens) and tokens[position] in "+-":
        right, following = _multiply(tokens, position + 1, depth)
        value, position = value + right if tokens[position] == "+" else value - right, following
    return value, position


def _multiply(tokens: Sequence[str], position: int, depth: int) -> tuple[Number, int]:
    """Return the value of a product that begins at a position, and the position after it."""
    value, position = _raise(tokens, position, depth)
    while position < len(tokens) and tokens[position] in ("*", "/"):
        right, following = _raise(tokens, position + 1, depth)
        value = value * right if tokens[position] == "*" else value / right
        position = following
        if isinstance(value, Fraction) and value.denominator.bit_length() + value.numerator.bit_length() > MAX_BITS:
            raise OverflowError
    return value, position


def _raise(tokens: Sequence[str], position: int, depth: int) -> tuple[Number, int]:
    """Return the value of a power, function or number that begins at a position, and the position after it."""
    if depth > MAX_ARITHMETIC_DEPTH:
        raise OverflowError
    token = tokens[position]
    if token in ("-", "+"):
        value, position = _raise(tokens, position + 1, depth + 1)
        return (-value if token == "-" else value), position
    if token == "(":
        value, position = _add(tokens, position + 1, depth + 1)
        if tokens[position] != ")":
            raise ValueError
        position += 1
    elif function := _FUNCTIONS.get(re.sub(r"[_{}]", "", token)):
        value, position = _raise(tokens, position + 1, depth + 1)
        return function(float(value)), position
    else:
        value, position = Fraction(token), position + 1
    if position < len(tokens) and tokens[position] in ("^", "**"):
        power, position = _raise(tokens, position + 1, depth + 1)
        if isinstance(value, Fraction) and isinstance(power, Fraction) and power.denominator == 1:
            if abs(power) * (value.numerator.bit_length() + value.denominator.bit_length()) > MAX_BITS:
                raise OverflowError
            return value ** int(power), position
        return float(value) ** float(power), position
    return value, position


def rewrite_number(line: str) -> str:
    """Return a line `NAME = calculation = NUMBER` as `NAME = NUMBER`, with calculations and percentages worked out.

    >>> rewrite_number("P(am | I) = C(I am)/C(I) = 2/3 ≈ 0.667"), rewrite_number("P = 1/3 * 2/3")
    ('P(am | I) = 0.667', 'P = 2/9')
    >>> rewrite_number("P = 0.02163 + 0.004632")  # to the digits of rounded numbers
    'P = 0.02626'
    >>> rewrite_number("P = 33.3 %"), rewrite_number("path = H → C")
    ('P = 0.333', 'path = H → C')
    """
    match = _NAME_SIGN.fullmatch(line)
    if not match:
        return line
    name, value = match[1].strip(), match[3]
    last = re.split(r"==?(?!>)|≈", value)[-1].strip().rstrip(".")
    percentage = _PERCENTAGE.fullmatch(last)
    if percentage and (percentage[1] or percentage[2]):
        decimals = len(percentage[2] or "") + 2
        return f"{name} = {Decimal(f'{percentage[1] or 0}.{percentage[2] or 0}') / 100:.{decimals}f}"
    normalized = last.replace("−", "-")
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?\d{1,12}\s*/\s*\d{1,12}", normalized):
        return f"{name} = {last}"
    power = re.fullmatch(
        r"([+-]?\d+(?:\.\d+)?)\s*(?:[*·×x]|\\cdot|\\times)\s*10\s*(?:\^|\*\*)\s*\{?([+-]?\d+)\}?", normalized
    )
    if power:
        return f"{name} = {power[1]}e{power[2]}"
    number = evaluate_arithmetic(last)
    if number is None:
        return line
    rounded = [digits for digits in map(_count_digits, re.findall(r"\d*\.\d+", last)) if digits > 2]
    if rounded:  # what is computed from rounded numbers is as exact as they are
        return f"{name} = {Decimal(f'{float(number):.{min(rounded)}g}'):f}"
    return f"{name} = {write_number(number)}"


def _count_digits(text: str) -> int:
    """Return the number of significant digits of a decimal number."""
    return len(text.replace(".", "").strip("0"))


def write_number(number: Number) -> str:
    """Return a number as text that is read back exactly, as far as its size allows."""
    if isinstance(number, float):
        return f"{number:.12g}"
    if max(abs(number.numerator), number.denominator) < 10**12:
        return f"{number.numerator}/{number.denominator}" if number.denominator > 1 else str(number.numerator)
    return f"{float(number):.12g}"


_INFORMATION_UNIT = re.compile(
    r"(?<=[\d)}\s])\s*\\?(?:text\{)?\s*(bits?|nats?|shannons?|hartleys?|dits?|bans?)\}?\s*\.?\s*$"
)
_UNIT_BASES = {"bit": "2", "shannon": "2", "nat": "e", "hartley": "10", "dit": "10", "ban": "10"}


def find_information_unit(line: str) -> str:
    """Return the base of the logarithms that the unit of an answer says: "2", "e" or "10"; "" without one.

    >>> find_information_unit("H = 1.5 bits"), find_information_unit("KL = 0.2nats"), find_information_unit("H = 2")
    ('2', 'e', '')
    """
    match = _INFORMATION_UNIT.search(line)
    return _UNIT_BASES[match[1].removesuffix("s")] if match else ""


def remove_information_unit(line: str) -> str:
    """Return a line without a unit of information after its number."""
    return _INFORMATION_UNIT.sub("", line)


# Statements


def read_number(text: Any) -> float:
    """Return a number that is written as 0.5, 1/3 or a calculation; a ValueError says what is expected.

    >>> read_number("1/4"), read_number(2)
    (0.25, 2.0)
    """
    if isinstance(text, bool) or not isinstance(text, int | float | str):
        raise ValueError(f"{str(text)[:40]!r} is not a number")
    if isinstance(text, str) and text.strip().casefold().replace("−", "-") in ("-inf", "-infinity", "-∞"):
        return -math.inf
    value = evaluate_arithmetic(text) if isinstance(text, str) else text
    if value is None or not abs(value) <= 1e300:
        raise ValueError(f"{str(text)[:40]!r} is not a number")
    return float(value)


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        read_number(text)
    except ValueError:
        return False
    return True


def read_table(value: Any, name: str) -> Any:
    """Return numbers by label, numbers in a list, or rows of these: a dict or list, nested at most once.

    Text may be written in many ways: "H 0.8, C 0.2", "H: 0.8, C: 0.2", "H: H 0.7, C 0.3; C: H 0.4, C 0.6",
    "H->H 0.7, H->C 0.3", "0.7 0.3; 0.4 0.6" or JSON.

    >>> read_table("H 0.8, C 1/5", "start")
    {'H': 0.8, 'C': 0.2}
    >>> read_table("H: H 0.7 C 0.3; C: H=0.4 C=0.6", "transition")
    {'H': {'H': 0.7, 'C': 0.3}, 'C': {'H': 0.4, 'C': 0.6}}
    >>> read_table("0.7 0.3; 0.4 0.6", "transition")
    [[0.7, 0.3], [0.4, 0.6]]
    """
    if isinstance(value, str):
        value = _parse_table(value, name)
    table = _read_numbers(value, name, 2)
    rows = table.values() if isinstance(table, dict) else table
    if sum(len(row) if isinstance(row, list | dict) else 1 for row in rows) > MAX_TABLE_ENTRIES:
        raise ValueError(f"{name} has more than {MAX_TABLE_ENTRIES:,} entries")
    return table


def _read_numbers(value: Any, name: str, depth: int) -> Any:
    """Return a nested dict or list with its leaves as numbers."""
    if isinstance(value, Mapping | list | tuple) and not depth:
        raise ValueError(f"{name} is nested too deeply: a table or a table of rows is expected")
    if isinstance(value, Mapping):
        return {str(label).strip(): _read_numbers(item, name, depth - 1) for label, item in value.items()}
    if isinstance(value, list | tuple):
        return [_read_numbers(item, name, depth - 1) for item in value]
    try:
        return read_number(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _parse_table(text: str, name: str) -> Any:
    """Return the nested dict or list that a text writes."""
    if len(text) > MAX_TABLE_CHARS:
        raise ValueError(f"{name} has {len(text):,} characters; at most {MAX_TABLE_CHARS:,} are read")
    if text.strip()[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            text = re.sub(r"\}\s*,", ";", text.strip()) if text.count("{") > 1 else text
            text = re.sub(r"\]\s*,", ";", text) if text.count("[") > 1 else text
            text = re.sub(r"[{}\[\]\"']", " ", text)
    text = _CONDITIONAL.sub(lambda match: f"{match[2]}->{match[1]}" if match[2] else match[1], text)
    rows = [row for row in re.split(r"[;\n]", text) if row.strip()]
    flat = [_parse_row(row) for row in rows]
    if all(row is not None for row in flat):
        if all(isinstance(row, dict) for row in flat):
            merged: dict[str, float] = {}
            for row in flat:
                merged.update(row if isinstance(row, dict) else {})
            return _nest_arrows(merged)
        return flat[0] if len(flat) == 1 else flat
    nested: dict[str, Any] = {}
    for row in rows:
        match = re.match(r"\s*([^\s:=,]+?)\s*(?:[:=|,\s]|->|→)\s*", row)
        inner = _parse_row(row[match.end() :]) if match else None
        if match is None or inner is None:
            raise ValueError(
                f"{name}: '{row.strip()[:60]}' cannot be read. Write it as in: H: H 0.7, C 0.3; C: H 0.4, C 0.6"
            )
        nested[match[1]] = inner
    return nested


def _parse_row(text: str) -> dict[str, float] | list[float] | None:
    """Return a row of labels with numbers, or of numbers; None for other text."""
    normalized = re.sub(r"\s*(?:->|→|\|)\s*", "->", text)
    normalized = re.sub(r"\s*[:=]\s*", "=", normalized.strip().strip(",&"))
    items = [item for item in re.split(r"[\s,&]+", normalized) if item]
    if not items:
        return None
    if all(is_number(item) for item in items):
        return [read_number(item) for item in items]
    if all(item.count("=") == 1 for item in items):
        pairs = [item.rsplit("=", 1) for item in items]
    elif len(items) % 2 == 0 and not any("=" in item for item in items):
        pairs = [[items[index], items[index + 1]] for index in range(0, len(items), 2)]
        if any(is_number(label) for label, _ in pairs) and not all(is_number(label) for label, _ in pairs):
            return None
    else:
        return None
    if not all(label and is_number(number) for label, number in pairs):
        return None
    return {label: read_number(number) for label, number in pairs}


def _nest_arrows(table: dict[str, float]) -> dict[str, Any]:
    """Return a table of labels such as H->C as rows by the first label."""
    if not table or not all("->" in label for label in table):
        return table
    nested: dict[str, dict[str, float]] = {}
    for label, number in table.items():
        row, _, column = label.partition("->")
        nested.setdefault(row, {})[column] = number
    return nested


def as_rows(table: Any, row_names: Sequence[str], column_names: Sequence[str], name: str) -> list[list[float]]:
    """Return a table of rows as a matrix with rows and columns in these orders; what is left out of a dict is 0."""
    rows = [table.get(row, {}) for row in row_names] if isinstance(table, dict) else table
    if isinstance(table, dict) and (unknown := [label for label in table if label not in row_names]):
        raise ValueError(f"{name}: unknown row '{unknown[0][:40]}'. Choices: {', '.join(row_names)}.")
    if len(rows) != len(row_names) or not all(isinstance(row, list | dict) for row in rows):
        raise ValueError(f"{name}: {len(row_names)} rows are expected, one for each of {', '.join(row_names)}.")
    return [as_row(row, column_names, f"{name}, row {label}") for row, label in zip(rows, row_names, strict=True)]


def as_row(row: Any, names: Sequence[str], name: str) -> list[float]:
    """Return a row of a table as numbers in the order of the names; what is left out of a dict is 0."""
    if isinstance(row, dict):
        if len(row) == 1 and isinstance(inner := next(iter(row.values())), dict):  # P(H | start) in place of P(H)
            row = inner
        if unknown := [label for label in row if label not in names]:
            raise ValueError(f"{name}: unknown label '{unknown[0][:40]}'. Choices: {', '.join(names)}.")
        return [float(row.get(label, 0.0)) for label in names]
    if len(row) != len(names):
        raise ValueError(f"{name}: {len(names)} numbers are expected, for {', '.join(names)}; got {len(row)}.")
    return [float(number) for number in row]


def split_words(value: Any, name: str, max_words: int = 200) -> tuple[str, ...]:
    """Return the words of a text or list; commas between words are dropped.

    >>> split_words("3, 1, 3", "observations"), split_words(["a", 2], "observations")
    (('3', '1', '3'), ('a', '2'))
    """
    if isinstance(value, str):
        words = [word for word in re.split(r"[\s,]+", value.strip().strip("[]")) if word]
    elif isinstance(value, list | tuple):
        words = [str(word).strip() for word in value]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        words = [str(value)]
    else:
        raise ValueError(f'{name}: words are expected, as in {name}="a b c"')
    if len(words) > max_words:
        raise ValueError(f"{name} has {len(words):,} words; at most {max_words} are read")
    return tuple(word.strip("\"'") or word for word in words)


def split_sentences(value: Any, name: str, max_words: int = 5000) -> tuple[str, ...]:
    """Return the sentences of a text, which are on lines or separated by " / ", or of a list.

    >>> split_sentences("I am Sam / Sam I am", "corpus")
    ('I am Sam', 'Sam I am')
    """
    if isinstance(value, str):
        value = re.split(r"\n|(?<=\s)[/|](?=\s)|(?<=</s>)\s*(?=\S)|;", value)
    if not isinstance(value, list | tuple):
        raise ValueError(f'{name}: sentences are expected, as in {name}="I am Sam / Sam I am"')
    sentences = [" ".join(map(str, item)) if isinstance(item, list | tuple) else str(item) for item in value]
    sentences = [" ".join(sentence.split()) for sentence in sentences if sentence.strip()]
    if sum(len(sentence.split()) for sentence in sentences) > max_words or sum(map(len, sentences)) > 20 * max_words:
        raise ValueError(f"{name} has more than {max_words:,} words; use a shorter text")
    return tuple(sentences)


def keep_distinct(right: float, mistakes: Mapping[str, float | None]) -> dict[str, float]:
    """Return the mistakes whose value is a number and differs from the right one and from those before it.

    >>> keep_distinct(0.5, {"first": 0.5, "second": 0.2, "third": 0.2, "fourth": None})
    {'second': 0.2}
    """
    distinct: dict[str, float] = {}
    for description, value in mistakes.items():
        if value is None or not math.isfinite(value):
            continue
        if any(math.isclose(value, other, rel_tol=1e-9, abs_tol=1e-12) for other in (right, *distinct.values())):
            continue
        distinct[description] = value
    return distinct


def make_alternatives(right: float, conventions: Iterable[tuple[str, float]]) -> dict[float, str]:
    """Return values of other conventions as factors of the right one, for `scales`.

    >>> make_alternatives(0.5, [("without </s>", 0.25)])
    {0.5: 'without </s>'}
    """
    if abs(right) <= FLOAT_TOLERANCE or not math.isfinite(right):
        return {}
    pairs = [(value / right, convention) for convention, value in conventions if math.isfinite(value)]
    return {factor: convention for factor, convention in pairs if not math.isclose(factor, 1.0)}


def expect_word(names: str | Sequence[str], alternatives: Sequence[str], **details: Any) -> ExpectedValue:
    """Return a quantity whose right value is a word: any of the alternatives.

    >>> expect_word("best", ["a b", "a c"]).shape
    ()
    """
    return replace(expect_words(names, [tuple(alternatives)], **details), labels=())


def strip_brackets(text: str) -> str:
    """Return a text without the brackets around all of it.

    >>> strip_brackets("[a, b]"), strip_brackets("(a, b), (c, d)"), strip_brackets("{(a, b), (c, d)}")
    ('a, b', '(a, b), (c, d)', '(a, b), (c, d)')
    """
    text, depth = text.strip(), 0
    if text[:1] not in ("[", "(", "{"):
        return text
    for index, character in enumerate(text):
        depth += (character in "[({") - (character in "])}")
        if depth == 0:
            return text[1:-1].strip() if index == len(text) - 1 else text
    return text


def format_product(factors: Sequence[float | Fraction], limit: int = 12) -> str:
    """Return factors as a product in text, fractions as such."""
    texts = [format_ratio(factor) for factor in factors[:limit]]
    return " · ".join(texts) + (" · …" if len(factors) > limit else "")


def format_ratio(number: float | Fraction) -> str:
    """Return a number as a fraction of small numbers if it is one, otherwise with 4 significant digits.

    >>> format_ratio(2 / 3), format_ratio(0.123456)
    ('2/3', '0.1235')
    """
    if not math.isfinite(number):
        return "∞" if number > 0 else "−∞"
    ratio = Fraction(number).limit_denominator(60)
    if math.isclose(ratio, number, rel_tol=1e-12, abs_tol=1e-15):
        return f"{ratio.numerator}/{ratio.denominator}" if ratio.denominator > 1 else str(ratio.numerator)
    return f"{number:.4g}"
