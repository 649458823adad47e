r"""Reading the values of a hand computation.

Nothing is evaluated; the grammar is

    value = list | table | item          list  = "[" value "," value … "]"    (or round brackets)
    item  = number | word | "quoted"     table = "{" label ":" item "," … "}"

A number may be arithmetic, or a chain such as 2/3*0.5 = 0.333 (see `arithmetic.py`).

What NumPy, torch or LaTeX write around a value is removed first.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from jaxtyping import Bool

from lemma.checking.arithmetic import WrittenQuantity, read_quantity
from lemma.checking.expected_values import Array, ExpectedValue
from lemma.checking.units import Dimension, UnitEntry, find_unit
from lemma.errors import InputError
from lemma.report.numbers import WrittenNumber, read_entry

MAX_CHARS, MAX_DEPTH = 50_000, 3
FLOAT_TOLERANCE = 1e-9  # rounding in float64 may add this to half a unit
TINY = 1e-5  # below this size, the tolerance shrinks with the number
MIN_NONZERO = 1e-15  # what is smaller may be an error of float64
_BRACKETS = {"[": "]", "(": ")", "{": "}"}
_ENDS = ",[](){}"
_WRAPPED = re.compile(
    r"(?:(?:np|numpy|torch)\.)?(?:array|tensor|matrix)\s*\(([\[(].*?[\])])(?:,\s*dtype\s*=[^()\[\]]*)?\)"
)
_LATEX_MATRIX = re.compile(r"\\begin\s*\{[a-zA-Z]*matrix\}(.*)\\end\s*\{[a-zA-Z]*matrix\}")
_TRANSPOSED_VECTOR = re.compile(r"([\[(][^\[\](){}]*[\])])\s*(?:\.T|ᵀ|⊤|\^\s*(?:T|⊤|\{\s*(?:T|⊤|\\top)\s*\}|\\top))")

_LIST_CHAIN = re.compile(r"(?<=[\])}])\s*(?:=|≈)\s*(?=[\[({])")
_OPERATORS = "+-*/^=≈·×⋅÷∙−%!x√\\⁰¹²³⁴⁵⁶⁷⁸⁹⁻"
_DECIMAL_COMMA = re.compile(r"(?<=\d),(?=\d)")
MIN_PERCENT_VALUE = 5  # a right value above this is in per cent itself where the answer has a percent sign

Entries = np.ndarray
"""The numbers of a value, each a WrittenNumber, in an array of its shape."""


@dataclass(frozen=True)
class ComputedNumber(WrittenNumber):
    """A number written as arithmetic, as a chain, or with a unit.

    Attributes:
        reading: how it was read, where that is not obvious.
        wrong_steps: sentences on its equations that do not hold.
        first_value: value of the first expression of a chain.
        has_free_log: whether the base of a logarithm is not written.
    """

    reading: str = ""
    wrong_steps: tuple[str, ...] = ()
    first_value: Fraction = Fraction(0)
    has_free_log: bool = False


class BareList(list[Any]):
    """A list written without brackets: in 0,5 the comma may be a decimal comma."""

    text = ""


def read_value(text: str) -> Any:
    """Parse a value: a WrittenNumber, a word, a (nested) list of these, or a dict of these by label.

    >>> [[float(number.value) for number in row] for row in read_value("[[1, -0.5], [2, 3]]")]
    [[1.0, -0.5], [2.0, 3.0]]
    >>> read_value("sentence 3")
    'sentence 3'
    """
    if len(text) > MAX_CHARS:
        raise InputError(f"the value has {len(text):,} characters; at most {MAX_CHARS:,} are read.")
    text = _LIST_CHAIN.split(text)[-1] if "," in text or ";" in text else text
    reader = _ValueReader(_strip_notation(text))
    value = reader.read()
    if reader.peek() == ",":  # a list without its brackets
        reader = _ValueReader(f"[{reader.text}]")
        value = BareList(reader.read())
        value.text = text
    if trailing := reader.peek():
        raise reader.error(f"'{trailing}' is left over")
    return value


def write_value(value: Any) -> str:
    """Return a parsed value as text, the items of a list separated by blanks."""
    if isinstance(value, WrittenNumber):
        return value.text
    return " ".join(map(write_value, value)) if isinstance(value, list) else str(value)


def _strip_notation(text: str) -> str:
    r"""Rewrite a value in the notation of NumPy, torch or LaTeX as a plain list; return other text unchanged.

    >>> _strip_notation("np.array([[1, 2], [3, 4]])"), _strip_notation(r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}")
    ('[[1, 2], [3, 4]]', '[1 , 2 ; 3 , 4]')
    """
    text = text.strip()
    for pattern in (_WRAPPED, _TRANSPOSED_VECTOR):
        if match := pattern.fullmatch(text):
            text = match[1].strip()
    if match := _LATEX_MATRIX.fullmatch(text):
        rows = match[1].strip().removesuffix("\\\\")
        text = f"[{rows.replace('&', ',').replace(chr(92) * 2, ';').strip()}]"
    return text


class _ValueReader:
    """A parser that reads the value in a text from left to right. Words may hold blanks, but no commas or brackets."""

    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0

    def read(self, depth: int = 0) -> Any:
        """Read the next value of the text; `depth` is the number of brackets around it."""
        if self.peek() not in _BRACKETS or self._opens_arithmetic():
            return self._read_item(_ENDS)
        if depth >= MAX_DEPTH:
            raise self.error("brackets are too deep: a number, a vector or a matrix is expected")
        close = _BRACKETS[self.text[self.position]]
        self.position += 1
        return self._read_table(depth) if close == "}" else self._read_list(depth, close)

    def _read_list(self, depth: int, close: str) -> list[Any]:
        """Read the items of a list up to its closing bracket `close`; rows ended by semicolons become lists."""
        values: list[Any] = []
        rows: list[list[Any]] = []  # those that a semicolon ends, as in [1, 2; 3, 4]
        while self.peek() != close:
            if self.peek() in _BRACKETS and not self._opens_arithmetic():
                values.append(self.read(depth + 1))
            else:
                values += _split_numbers(self._read_item(f"{_ENDS};"))
            if self.peek() in (",", ";"):
                if self.peek() == ";":
                    rows.append(values)
                    values = []
                self.position += 1
            elif self.peek() != close and not (values and self.peek() in _BRACKETS):
                raise self.error(f"',' or '{close}' is expected")
        self.position += 1
        if rows:
            return [*rows, values] if values else rows
        return values

    def _read_table(self, depth: int) -> dict[str, Any]:
        """Read `label: item` pairs up to the closing brace; return the items by label."""
        items: dict[str, Any] = {}
        while self.peek() != "}":
            label = self.read(depth + 1) if self.peek() in "([" else self._read_item(_ENDS + ":")
            if self.peek() != ":":
                raise self.error("a table is written {label: value, …}")
            self.position += 1
            item = self.read(depth + 1) if self.peek() in "([" else self._read_item(_ENDS)
            items[write_value(label)] = write_value(item) if isinstance(item, list) else item
            if self.peek() == ",":
                self.position += 1
            elif self.peek() != "}":
                raise self.error("',' or '}' is expected")
        self.position += 1
        return items

    def _read_item(self, ends: str) -> WrittenNumber | str:
        """Read a number or word that ends before any of the characters in `ends`, or a quoted word."""
        quote = self.peek()
        if quote in ("'", '"'):
            self.position += 1
            end = self.text.find(quote, self.position)
            if end < 0:
                raise self.error(f"the {quote} that opens a word is not closed")
            word, self.position = self.text[self.position : end], end + 1
            return word
        start = self.position
        while self.position < len(self.text):
            character = self.text[self.position]
            if character in "({" or (character == "[" and self.text[start : self.position].endswith("sqrt")):
                end = self._find_closing(self.position)  # the brackets of arithmetic, as in log2(0.5)
                if end < 0:
                    break
                self.position = end
            elif character in ends:
                break
            self.position += 1
        word = self.text[start : self.position].strip()
        if not word:
            raise self.error("a value is missing")
        return read_entry(word) or word

    def _find_closing(self, opening: int) -> int:
        """Return the position of the bracket that closes the one at a position, or −1."""
        stack: list[str] = []
        for position in range(opening, len(self.text)):
            character = self.text[position]
            if character in _BRACKETS:
                stack.append(_BRACKETS[character])
            elif character in "])}":
                if not stack or stack.pop() != character:
                    return -1
                if not stack:
                    return position
        return -1

    def _opens_arithmetic(self) -> bool:
        """Return whether the next bracket belongs to arithmetic, as in (2+1)/(3+11), and not to a list."""
        opening = self.position
        if self.text[opening] != "(":
            return False
        end = self._find_closing(opening)
        following = self.text[end + 1 :].lstrip()[:1] if end >= 0 else ""
        content = self.text[opening + 1 : end]
        is_list = "," in content or ";" in content
        if following == "(" and not is_list:  # (2)(3), but ((1) (2)) is a list of lists
            return opening == 0 or self.text[end + 1] == "("
        return bool(following) and following in _OPERATORS and not (is_list and following in "=≈")

    def peek(self) -> str:
        """Skip blanks; return the next character without reading it, "" at the end of the text."""
        while self.position < len(self.text) and self.text[self.position].isspace():
            self.position += 1
        return self.text[self.position : self.position + 1]

    def error(self, message: str) -> InputError:
        """Return an error that names the position in the text; `message` says what is wrong there."""
        excerpt = self.text[max(0, self.position - 12) : self.position + 12].strip()
        return InputError(f"the value cannot be read at character {self.position + 1} (near '{excerpt}'): {message}.")


def _split_numbers(item: WrittenNumber | str) -> list[WrittenNumber | str]:
    """Split an item such as `1. 2. 3.`, a row as NumPy prints it, into numbers; return any other in a list of one."""
    parts = [read_entry(part) for part in item.split()] if isinstance(item, str) else []
    numbers = [number for number in parts if number]
    return [*numbers] if numbers and len(numbers) == len(parts) else [item]


def read_entries(value: Any, expected: ExpectedValue, log_base: float | None = None) -> Entries:
    """Return the numbers of a parsed answer (a number, nested lists, or a dict by `expected` label) as an array.

    `log_base` is the base of logarithms without one; by default the natural one.
    """

    def to_number(item: Any, label: str = "") -> WrittenNumber:
        if isinstance(item, WrittenNumber):
            return item
        text = write_value(item)
        number = read_arithmetic(text, expected, log_base)
        if number is not None:
            return number
        location = f"{expected.name}: {label}: " if label else f"{expected.name}: "
        expectation = "" if label else f" Expected: {expected.shape_text}."
        try:
            read_quantity(text)
        except InputError as error:
            if any(character.isdigit() for character in text) and not text.isalnum():
                raise InputError(f"{location}'{text[:40]}' is not read as a number: {error}") from None
        raise InputError(f"{location}'{text[:40]}' is not a number.{expectation}")

    if isinstance(value, dict):
        if len(expected.labels) != 1:
            raise InputError(f"{expected.name}: a table of labels is for a vector; {expected.shape_text} is expected.")
        numbers = {label: to_number(item, label) for label, item in value.items()}
        return np.array(order_by_label(numbers, expected), dtype=object)

    def to_array(value: Any) -> Entries:
        if isinstance(value, list):
            rows = [to_array(row) for row in value]
            if len({row.shape for row in rows}) > 1:
                raise InputError(f"{expected.name}: all rows of a matrix are equally long; yours are not.")
            return np.stack(rows) if rows else np.empty(0, dtype=object)
        return np.array(to_number(value), dtype=object)

    return to_array(value)


def read_arithmetic(
    text: str, expected: ExpectedValue | None = None, log_base: float | None = None
) -> ComputedNumber | None:
    """Return the number that arithmetic or a chain gives; None if the text is neither.

    >>> float(read_arithmetic("(2+1)/(3+11) = 3/14").value), read_arithmetic("they")
    (0.21428571428571427, None)
    """
    try:
        quantity = read_quantity(text, log_base=log_base)
    except InputError:
        return None
    if not any(character.isdigit() for character in text) and quantity.last.single_number is None:
        return None if text.strip().isalpha() and len(text.strip()) > 2 else _to_computed(quantity, expected)
    return _to_computed(quantity, expected)


def _to_computed(quantity: WrittenQuantity, expected: ExpectedValue | None) -> ComputedNumber:
    """Return the number of a quantity, in the unit of the right value if that is known."""
    number = quantity.number
    scale = Fraction(1)
    if quantity.dimension and expected is not None:
        unit = find_unit(expected.unit) if expected.unit else find_described_unit(expected, quantity.dimension)
        scale = unit.factor if unit is not None else scale
    value, precision = number.value / scale, number.unit / scale
    decimals = number.decimals
    if number.is_percent and decimals is not None:
        decimals += 2
    elif (decimals == 0 and precision) or quantity.dimension or quantity.last.scale != 1:
        decimals = None
    if precision >= 1 and abs(value) < 10 * precision:  # one digit says too little
        precision = Fraction(0)
    first = quantity.members[0]
    return ComputedNumber(
        number.text,
        value,
        precision,
        decimals,
        is_percent=number.is_percent,
        alternative=number.alternative if len(quantity.members) == 1 and not quantity.dimension else None,
        reading=quantity.echo,
        wrong_steps=quantity.wrong_steps,
        first_value=first.number.value / scale,
        has_free_log=quantity.has_free_log,
    )


def find_described_unit(expected: ExpectedValue, dimension: Dimension) -> UnitEntry | None:
    """Return the unit of this dimension that describes a right value, such as GB for "memory in GB"; None without."""
    words = re.findall(r"[A-Za-zµ]{2,}", f"{expected.name} {expected.meaning}")
    units = [find_unit(word) for word in words]
    return next((unit for unit in units if unit is not None and unit.dimension == dimension), None)


def multiply(number: WrittenNumber, factor: int) -> WrittenNumber:
    """Return a number times a factor, with its precision."""
    return replace(number, value=number.value * factor, unit=number.unit * factor, decimals=None)


def replace_values(entries: Entries) -> Entries:
    """Return the entries of an answer with the values of the first expression of each chain, exactly."""
    first = [
        WrittenNumber(number.text, number.first_value, Fraction(0)) if isinstance(number, ComputedNumber) else number
        for number in entries.flat
    ]
    array = np.empty(len(first), dtype=object)
    array[:] = first
    return array.reshape(entries.shape)


def has_decimal_commas(text: str) -> bool:
    """Return whether commas between digits may be decimal commas: no number has a decimal point."""
    return _DECIMAL_COMMA.search(text) is not None and not re.search(r"\d\.\d", text)


def apply_decimal_commas(text: str) -> str:
    """Return a text with points for commas between digits.

    >>> apply_decimal_commas("[0,33; 0,67]")
    '[0.33; 0.67]'
    """
    return _DECIMAL_COMMA.sub(".", text)


def order_by_label(table: Mapping[str, Any], expected: ExpectedValue) -> list[Any]:
    """Return the values of a dict by label in the order of the expected labels; an InputError names missing ones."""
    labels = expected.labels[0] if expected.labels else ()
    indices = {"".join(label.split()): index for index, label in enumerate((*expected.label_aliases, *labels))}
    by_index: dict[int, Any] = {}
    for label, value in table.items():
        index = indices.get("".join(label.split()))
        if index is None:
            raise InputError(f"{expected.name}: there is no '{label}'. Choices: {', '.join(labels) or 'none'}.")
        by_index[index % max(1, len(labels))] = value
    missing = [label for index, label in enumerate(labels or ("its one word",)) if index not in by_index]
    if missing:
        raise InputError(f"{expected.name}: your table leaves out {', '.join(missing[:6])}.")
    return [by_index[index] for index in sorted(by_index)]


@dataclass(frozen=True)
class RoundedArray:
    """Numbers as written in an answer, with the precision of each.

    Attributes:
        values: the numbers.
        units: the unit of the last decimal of each, such as 0.01; 0 where the number must be exact.
        decimals: the most decimals of any.
    """

    values: Array
    units: Array
    decimals: int = 0

    @classmethod
    def from_entries(cls, entries: Entries) -> "RoundedArray":
        """Return the numbers of an answer, each with the precision to which it is written.

        An entry with few decimals, such as 1 or 0.5 next to 0.125, may have left out final zeros: it has the precision
        of the entry with the most decimals. Three digits, as in 135.4 and 2916, say enough of a larger number.
        """
        decimals = max((number.decimals or 0 for number in entries.flat), default=0)
        shared = 10.0**-decimals if decimals else 0.0
        fewest = max(2, decimals - 2)

        def choose_unit(number: Any) -> float:
            if number.decimals is None or number.decimals >= fewest:
                return float(number.unit)
            entry_unit = 10.0**-number.decimals
            return (
                entry_unit if abs(number.value) >= 100 * entry_unit and (number.unit or not number.decimals) else shared
            )

        units = [choose_unit(number) for number in entries.flat]
        values = [float(number.value) for number in entries.flat]
        arrays = [np.array(numbers, dtype=np.float64).reshape(entries.shape) for numbers in (values, units)]
        return cls(arrays[0], arrays[1], decimals)

    def is_close(self, exact: Array, slack: float = 0.0) -> Bool[np.ndarray, "..."]:
        """Return for each entry whether the exact number rounds to it, up to `slack` further units of its last decimal.

        The exact array has the same shape, or more axes before it.
        """
        with np.errstate(invalid="ignore"):  # infinities are equal or not
            size = np.abs(exact)
            allowed = np.where(size < TINY, FLOAT_TOLERANCE / TINY * size, FLOAT_TOLERANCE * np.maximum(1.0, size))
            # 0 in an answer stands for what is 0 next to the largest entry, up to floating-point errors
            largest = FLOAT_TOLERANCE * np.minimum(1.0, size.max(initial=0.0)) + MIN_NONZERO
            allowed = np.where(self.values == 0, np.maximum(allowed, largest), allowed)
            tolerance = self.units * (0.5 + slack) + allowed
            close = np.abs(exact - self.values) <= tolerance
        return np.where(np.isfinite(exact), close, exact == self.values)

    def matches(self, exact: Array, slack: float = 0.0) -> bool:
        """Return whether the exact array has the same shape and rounds to these numbers; `slack` as in `is_close`."""
        return exact.shape == self.values.shape and bool(self.is_close(exact, slack).all())

    def matches_reordered(self, exact: Array, axis: int) -> bool:
        """Return whether the slices along an axis, in some order, are those of the exact array, rounded."""
        values, units, slices = (np.moveaxis(array, axis, 0) for array in (self.values, self.units, exact))
        unmatched = np.ones(len(slices), dtype=bool)
        for row, unit in zip(values, units, strict=True):
            matches = RoundedArray(row, unit).is_close(slices).reshape(len(slices), -1).all(axis=1) & unmatched
            if not matches.any():
                return False
            unmatched[matches.argmax()] = False
        return True
