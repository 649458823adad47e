"""A hand computation judged line by line against a worked case.

A line is `NAME = VALUE`, `NAME[row, column] = VALUE`, or one number next to another: `NAME[…] > NAME[…]`. Values are
read by a parser of our own; nothing is evaluated:

    value = list | table | item          list  = "[" value "," value … "]"    (or round brackets)
    item  = number | word | "quoted"     table = "{" label ":" item "," … "}"

A wrong value is explained by the first usual slip that gives it: a sign, a transpose, another quantity's numbers.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import isfinite
from pathlib import Path
from shlex import quote
from string import ascii_uppercase
from typing import Any

import numpy as np
from jaxtyping import Bool

from lemma.checking.worked.attention import work_attention, work_cross_attention
from lemma.checking.worked.bpe import MAX_SMALL_CHARS, MOST_ORDERS, expected_of_byte_pairs, normalize_symbols
from lemma.checking.worked.case import (
    KIND_FIELDS,
    Array,
    CaseLike,
    ExpectedNumbers,
    ExpectedValue,
    detect_kind,
    list_examples,
)
from lemma.checking.worked.graph import TABLE_SUFFIXES, work_graph
from lemma.checking.worked.lstm import work_lstm
from lemma.checking.worked.matching import work_matching
from lemma.errors import InputError, SpecError, describe_unknown
from lemma.report.numbers import format_short
from lemma.report.result import Block, Heading, Result, Text
from lemma.report.text import format_table, wrap_lines
from lemma.spec.base import read_toml

BPE_PREFIX = "bpe:"
SOLVERS: dict[str, Callable[..., Any]] = {
    "attention": work_attention,
    "cross": work_cross_attention,
    "graph": work_graph,
    "lstm": work_lstm,
    "matching": work_matching,
}
"""What works out each kind of case."""
ROUNDING_RULE = (
    "A number is right if it is the exact one rounded to the decimals given; without decimals it must be exact."
)
TIE_NOTE = (
    "Ties: any of the most frequent pairs may be merged first, so long as all lines keep to one order. Lemma's own "
    "rule: the pair whose left symbol comes first, then whose right symbol does."
)
BPE_NAMES = """\
merges        words     the pairs in the order of merging: [ab, Ab]
merge1        a word    the pair of step 1, and so on; A is another name of it
count1        a number  how often that pair occurs, and so on
counts1       a table   all pairs before step 1: {ab: 4, bb: 3}, and so on
segmentation  words     each word in its symbols: {abb: A b}
steps         a number  how many merges
symbols       a number  symbols of the whole text at the end

Symbols that are merged are A, B, C … as they are made; \\w ends a word."""
EXAMPLE = "As in: 'alpha2[they, Ajax] = 0.119', 'c_t = [0.52, -0.34]' or 'alpha2[they, Ajax] > alpha2[they, lost]'."
STEP = re.compile(r"(merge|counts?)(\d{1,4})")
"""What is claimed of one step of byte-pair encoding."""
MAX_LINES, MAX_DIFFERENCES, MAX_LISTED, MAX_NUMBERS, MAX_CHARS = 200, 3, 12, 24, 200_000
DEFAULT_DECIMALS = 4
"""Decimals of what is right where none were given."""


FLOAT_TOLERANCE = 1e-9
"""What rounding in float64 may add to half a unit."""
NUMBER = re.compile(r"[+-]?(\d{1,3}(?:[ _’']\d{3})+|\d+)?(\.\d*)?([eE][+-]?\d{1,3})?")
FRACTION = re.compile(r"([+-]?\d{1,12})\s*/\s*(\d{1,12})")


@dataclass(frozen=True)
class WrittenEntry:
    """A number as it was written."""

    text: str
    value: float
    decimals: int | None
    """Decimals written; None for a fraction or a power of ten, which carry a unit of their own."""
    unit: float = 0.0
    """The unit of the last decimal; 0 means exact."""


def read_number(text: str) -> WrittenEntry | None:
    """Read a number; None if the text is not one.

    >>> read_number("−0.25").value, read_number("1/4").value, read_number("they")
    (-0.25, 0.25, None)
    """
    plain = text.strip().replace("−", "-").replace("–", "-")
    if found := FRACTION.fullmatch(plain):
        if int(found[2]) == 0:
            return None
        return WrittenEntry(text.strip(), float(Fraction(int(found[1]), int(found[2]))), None)
    found = NUMBER.fullmatch(plain)
    if not found or not (found[1] or (found[2] or ".") != "."):
        return None
    decimals = len(found[2]) - 1 if found[2] else 0
    value = float(re.sub(r"[ _’']", "", plain))
    if not isfinite(value):
        return None
    if not found[3]:
        return WrittenEntry(text.strip(), value, decimals)
    # a power of ten that rounds whole numbers away must have two digits, else 0e3 would be any number
    unit = float(f"1e{int(found[3][1:]) - decimals}")
    return WrittenEntry(text.strip(), value, None, unit if unit < 1 or abs(value) >= 10 * unit else 0.0)


def is_near(exact: float, given: WrittenEntry, decimals: int, slack: float = 0.0) -> bool:
    """Whether a number given is the exact one, rounded to this many decimals; `slack` allows for more such units.

    Numbers of one list are taken to the decimals of the longest.

    >>> is_near(0.11879, read_number("0.119"), 3), is_near(0.11879, read_number("0.12"), 3)
    (True, False)
    """
    unit = given.unit if given.decimals is None else (10.0**-decimals if decimals else 0.0)
    return RoundedArray(np.array(given.value), np.array(unit)).matches(np.array(exact), slack)


MAX_VALUE_CHARS, MAX_DEPTH, MAX_NAME_CHARS = 50_000, 3, 200
BRACKETS = {"[": "]", "(": ")", "{": "}"}
ENDS = ",[](){}"
LINE = re.compile(r"(?P<left>[^=<>≈]+?)\s*(?P<sign>==?|<|>|≈)\s*(?P<right>.+)", re.DOTALL)
TARGET = re.compile(r"(?P<name>[^\[\]]+?)\s*(?:\[(?P<places>[^\[\]]*)\])?")


def read_value(text: str) -> Any:
    """Read a value: a number, a word, a list of values, or a table (dict) of items by their label.

    >>> [[one.value for one in row] for row in read_value("[[1, -0.5], [2, 3]]")]
    [[1.0, -0.5], [2.0, 3.0]]
    >>> read_value("sentence 3")
    'sentence 3'
    """
    if len(text) > MAX_VALUE_CHARS:
        raise InputError(f"the value has {len(text):,} characters; at most {MAX_VALUE_CHARS:,} are read.")
    reader = ValueReader(_plain_brackets(text))
    value = reader.value(0)
    if reader.peek() == ",":  # a list without its brackets
        reader = ValueReader(f"[{reader.text}]")
        value = reader.value(0)
    if left := reader.peek():
        raise reader.error(f"'{left}' is left over")
    return value


_WRAPPED = re.compile(
    r"(?:(?:np|numpy|torch)\.)?(?:array|tensor|matrix)\s*\(([\[(].*?[\])])(?:,\s*dtype\s*=[^()\[\]]*)?\)"
)
_LATEX_MATRIX = re.compile(r"\\begin\s*\{[a-zA-Z]*matrix\}(.*)\\end\s*\{[a-zA-Z]*matrix\}")
_TRANSPOSED_VECTOR = re.compile(r"([\[(][^\[\](){}]*[\])])\s*(?:\.T|ᵀ|⊤|\^\s*(?:T|⊤|\{\s*(?:T|⊤|\\top)\s*\}|\\top))")


def _plain_brackets(text: str) -> str:
    r"""Return a value without what NumPy, torch or LaTeX write around it.

    >>> _plain_brackets("np.array([[1, 2], [3, 4]])"), _plain_brackets(r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}")
    ('[[1, 2], [3, 4]]', '[1 , 2 ; 3 , 4]')
    """
    text = text.strip()
    for pattern in (_WRAPPED, _TRANSPOSED_VECTOR):
        if found := pattern.fullmatch(text):
            text = found[1].strip()
    if found := _LATEX_MATRIX.fullmatch(text):
        rows = found[1].strip().removesuffix("\\\\")
        text = f"[{rows.replace('&', ',').replace(chr(92) * 2, ';').strip()}]"
    return text


class ValueReader:
    """Reads one value from a text, left to right. Words may hold blanks; they end at a comma, a bracket or the end."""

    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0

    def value(self, depth: int) -> Any:
        """The next value, inside that many brackets."""
        if self.peek() not in BRACKETS:
            return self._item(ENDS)
        if depth >= MAX_DEPTH:
            raise self.error("brackets are too deep: a number, a vector or a matrix is expected")
        close, values, items = BRACKETS[self.text[self.place]], list[Any](), dict[str, Any]()
        rows: list[list[Any]] = []  # those that a semicolon ends, as in [1, 2; 3, 4]
        self.place += 1
        while self.peek() != close:
            if close == "}":
                label = self.value(depth + 1) if self.peek() in "([" else self._item(ENDS + ":")
                if self.peek() != ":":
                    raise self.error("a table is written {label: value, …}")
                self.place += 1
                item = self.value(depth + 1) if self.peek() in "([" else self._item(ENDS)
                items[_written(label)] = _written(item) if isinstance(item, list) else item
            elif self.peek() in BRACKETS:
                values.append(self.value(depth + 1))
            else:
                values += _numbers_or_word(self._item(f"{ENDS};"))
            if self.peek() == "," or (self.peek() == ";" and close != "}"):
                if self.peek() == ";":
                    rows.append(values)
                    values = []
                self.place += 1
            elif self.peek() != close and not (values and self.peek() in BRACKETS and close != "}"):
                raise self.error(f"',' or '{close}' is expected")
        self.place += 1
        if rows:
            return [*rows, values] if values else rows
        return items if close == "}" else values

    def _item(self, ends: str) -> WrittenEntry | str:
        mark = self.peek()
        if mark in ("'", '"'):
            self.place += 1
            end = self.text.find(mark, self.place)
            if end < 0:
                raise self.error(f"the {mark} that opens a word is not closed")
            word, self.place = self.text[self.place : end], end + 1
            return word
        start = self.place
        while self.place < len(self.text) and self.text[self.place] not in ends:
            self.place += 1
        word = self.text[start : self.place].strip()
        if not word:
            raise self.error("a value is missing")
        return read_number(word) or word

    def peek(self) -> str:
        """The next character that is not blank."""
        while self.place < len(self.text) and self.text[self.place].isspace():
            self.place += 1
        return self.text[self.place : self.place + 1]

    def error(self, what: str) -> InputError:
        """What is wrong here."""
        near = self.text[max(0, self.place - 12) : self.place + 12].strip()
        return InputError(f"the value cannot be read at character {self.place + 1} (near '{near}'): {what}.")


def _numbers_or_word(item: WrittenEntry | str) -> list[WrittenEntry | str]:
    """Return the numbers of `1. 2. 3.`, as NumPy prints a row, or the item itself."""
    numbers = [read_number(part) for part in item.split()] if isinstance(item, str) else []
    found = [number for number in numbers if number]
    return [*found] if found and len(found) == len(numbers) else [item]


def _written(value: Any) -> str:
    """A value as text."""
    if isinstance(value, WrittenEntry):
        return value.text
    return " ".join(map(_written, value)) if isinstance(value, list) else str(value)


@dataclass(frozen=True)
class Target:
    """What a claim is about: a name, and the place if it is about one element or row."""

    name: str
    labels: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(self.labels)}]" if self.labels else self.name


@dataclass(frozen=True)
class HandClaim:
    """One line: on the left a target, on the right a value or, next to < and >, another target."""

    text: str
    target: Target
    sign: str
    value_text: str

    @cached_property
    def value(self) -> Any:
        """What stands on the right, read."""
        return read_value(self.value_text)


def read_claim(text: str) -> HandClaim:
    """Split a line into what it is about, its sign and its value.

    >>> read_claim("alpha2[they, Ajax] = 0.119").target
    Target(name='alpha2', places=('they', 'Ajax'))
    """
    line = " ".join(text.split())
    found = LINE.fullmatch(line)
    if not found or len(found["left"]) > MAX_NAME_CHARS:
        raise InputError(f"'{line[:60]}' is not a claim: NAME = VALUE is expected. {EXAMPLE}")
    sign = "=" if found["sign"] in ("==", "≈") else found["sign"]
    return HandClaim(line, read_target(found["left"]), sign, found["right"].strip())


def read_target(text: str) -> Target:
    """Read a name with its places.

    >>> str(read_target("P[image 1,2]"))
    'P[image 1, 2]'
    """
    found = TARGET.fullmatch(text.strip())
    if not found:
        raise InputError(f"'{text.strip()[:60]}' is not the name of a quantity. {EXAMPLE}")
    places = tuple(place.strip() for place in found["places"].split(",")) if found["places"] else ()
    if "" in places:
        raise InputError(f"'{text.strip()[:60]}': a row or column is missing between the brackets. {EXAMPLE}")
    return Target(found["name"].strip(), places)


@dataclass(frozen=True)
class AnswerKey:
    """Everything that is right of a case, by every name it has."""

    case: str
    expected: Sequence[ExpectedValue]
    merges: int | None = None  # how many merges byte-pair encoding makes; None for other cases

    @cached_property
    def _by_name(self) -> dict[str, ExpectedValue]:
        """What is right by every spelling of its name; the first one where several share a spelling."""
        return {name: one for one in reversed(self.expected) for name in (one.name, *one.aliases)}

    @cached_property
    def _by_plain_name(self) -> dict[str, list[ExpectedValue]]:
        found: dict[str, list[ExpectedValue]] = {}
        for one in self.expected:
            for name in {_plain(name) for name in (one.name, *one.aliases)}:
                found.setdefault(name, []).append(one)
        return found

    def find(self, target: Target) -> ExpectedValue:
        """What is right under that name, at those places."""
        name = target.name
        found, close = self._by_name.get(name), self._by_plain_name.get(_plain(name), [])
        if found or len(close) == 1:
            whole = found or close[0]
            return select_part(whole, target) if target.labels else whole
        known = [one.name for one in self.expected]
        with_pass = [one.name for one in self.expected if f"{name}1" in (one.name, *one.aliases)]
        if with_pass:
            stem = with_pass[0].rstrip("0123456789")
            several = [one for one in known if one.rstrip("0123456789") == stem]
            said = f"'{name}' is there {len(several)} times. Which one? Known: {', '.join(several)}."
        else:
            few = known if len(known) <= MAX_LISTED else [one for one in known if _plain(one)[:1] == _plain(name)[:1]]
            said = describe_unknown("the name", name, (few or known)[:MAX_LISTED])
        raise InputError(f"{self.case}: {said} All names: lemma check worked {quote(self.case)} --names")


def select_part(whole: ExpectedValue, target: Target) -> ExpectedValue:
    """One element, row or column of what is right: places are labels, or counted from 1; `:` means all of them."""
    if len(target.labels) > len(whole.shape):
        held = ("one value", "a vector", "a matrix")[len(whole.shape)]
        raise InputError(f"{target}: {whole.name} is {held}; it has no place [{', '.join(target.labels)}].")
    for axis in reversed(range(len(target.labels))):  # from the last, so that an axis taken away moves no other
        asked, names = target.labels[axis], whole.labels[axis]
        if asked == ":":
            continue
        alike = (str, _plain)  # A b is another pair than a b, but they may be called They
        place = next((number for same in alike for number, name in enumerate(names) if same(name) == same(asked)), None)
        if place is None:
            if not asked.isdigit() or not 1 <= int(asked) <= len(names):
                known = describe_unknown("the place", asked, names[:MAX_LISTED])
                raise InputError(f"{target}: {known} Or a number from 1 to {len(names)}.")
            place = int(asked) - 1
        labels = whole.labels[:axis] + whole.labels[axis + 1 :]
        if isinstance(whole, ExpectedNumbers):
            slips = {said: made.take(place, axis) for said, made in whole.mistakes.items()}
            whole = replace(whole, values=whole.values.take(place, axis), labels=labels, mistakes=slips)
        else:
            whole = replace(whole, values=(whole.values[place],), labels=labels)
    return replace(whole, name=str(target))


def _plain(name: str) -> str:
    return name.casefold().replace("_", "").replace(" ", "")


def answer_keys(case: CaseLike, claims: Sequence[HandClaim] = ()) -> Iterator[AnswerKey]:
    """What is right of a case; of byte-pair encoding for one order of merges after the other, that of the claims first.

    >>> key = next(answer_keys("e9"))
    >>> [one.name for one in key.expected][:5]
    ['kept', 'added', 'c_t', 'tanh_c', 'h_t']
    """
    shown, kind = "the case" if isinstance(case, Mapping) else str(case), ""
    if isinstance(case, str) and case.startswith(BPE_PREFIX):
        text = case.removeprefix(BPE_PREFIX)
        if not text.split() or len(text) > MAX_SMALL_CHARS:
            raise InputError(
                f"{BPE_PREFIX} a text of 1 to {MAX_SMALL_CHARS:,} characters is expected behind it, got {len(text):,}."
            )
        numbered = (STEP.fullmatch(_plain(claim.target.name)) for claim in claims)
        steps = [int(found[2]) for found in numbered if found and found[1] == "counts"]
        most_orders = MOST_ORDERS * MAX_SMALL_CHARS // max(MAX_SMALL_CHARS, sum(len(claim.text) for claim in claims))
        expected = expected_of_byte_pairs(text, _claimed_merges(claims, text), steps, max(1, most_orders))
        return (AnswerKey(shown, one, merges) for one, merges in expected)
    if not isinstance(case, Mapping):  # an example, a table of edges, or a file whose words say what it is
        examples = {name: kind for kind in SOLVERS for name in list_examples(kind).titles}
        if shown in examples and not Path(case).is_file():
            kind = examples[shown]
        elif Path(case).suffix.lower() in TABLE_SUFFIXES:
            kind = "graph"
        elif not Path(case).is_file():
            ways = ' Or give a TOML file of your own, or "bpe:TEXT".'
            raise SpecError("check worked: " + describe_unknown("the case", shown, examples) + ways)
    kind = kind or detect_kind(case if isinstance(case, Mapping) else read_toml(Path(case)))
    if not kind:
        marks = ", ".join(f"{mark} ({kind})" for kind, mark in KIND_FIELDS.items())
        raise SpecError(f"{case}: not a case that can be worked out: it holds none of these words: {marks}.")
    return iter([AnswerKey(shown, SOLVERS[kind](case).expected())])


def _claimed_merges(claims: Sequence[HandClaim], text: str) -> dict[int, str]:
    """Return the pairs that lines of byte-pair encoding claim, by the number of their step."""
    letters = [letter for letter in ascii_uppercase if letter not in text]
    claimed: dict[int, str] = {}
    for claim in claims:
        name, places = claim.target.name, claim.target.labels
        if claim.sign != "=":
            continue
        if _plain(name) == "merges":
            value = claim.value if not places else [claim.value]
            first = int(places[0]) if places and places[0].isdecimal() else 1
            claimed |= {
                step: _written(pair) for step, pair in enumerate(value if isinstance(value, list) else (), first)
            }
        elif (found := STEP.fullmatch(_plain(name))) and found[1] == "merge":
            claimed[int(found[2])] = _written(claim.value)
        elif name in letters:
            claimed[letters.index(name) + 1] = _written(claim.value)
    return claimed


Entries = np.ndarray
"""The numbers of a value, each a WrittenEntry, in an array of its shape."""


def read_entries(value: Any, right: ExpectedNumbers) -> Entries:
    """The numbers of a value: a number, nested lists, or a table that has all labels of a vector."""
    if isinstance(value, dict):
        if len(right.labels) != 1:
            raise InputError(f"{right.name}: a table of labels is for a vector; {right.shape_text} is expected here.")
        numbers = {label: one if isinstance(one, WrittenEntry) else read_number(one) for label, one in value.items()}
        for label, one in numbers.items():
            if one is None:
                raise InputError(f"{right.name}: {label}: '{value[label]}' is not a number.")
        return np.array(_in_order(numbers, right), dtype=object)

    def nested(value: Any) -> Entries:
        if isinstance(value, list):
            rows = [nested(one) for one in value]
            if len({row.shape for row in rows}) > 1:
                raise InputError(f"{right.name}: all rows of a matrix are equally long; yours are not.")
            return np.stack(rows) if rows else np.empty(0, dtype=object)
        if not isinstance(value, WrittenEntry):
            raise InputError(f"{right.name}: '{_written(value)[:40]}' is not a number. Expected: {right.shape_text}.")
        return np.array(value, dtype=object)

    return nested(value)


def max_decimals(entries: Entries) -> int:
    """The most decimals of any of them: a list is written to one precision, zeros at its ends left out."""
    return max((one.decimals or 0 for one in entries.flat), default=0)


@dataclass(frozen=True)
class RoundedArray:
    """Numbers as they were written: their values and the unit of the last decimal of each, 0 where it must be exact."""

    values: Array
    units: Array

    @classmethod
    def from_entries(cls, entries: Entries) -> "RoundedArray":
        """Return the numbers of a value; all are taken to the decimals of the longest."""
        decimals = max_decimals(entries)
        shared = 10.0**-decimals if decimals else 0.0
        units = [one.unit if one.decimals is None else shared for one in entries.flat]
        values = [one.value for one in entries.flat]
        return cls(*(np.array(numbers, dtype=np.float64).reshape(entries.shape) for numbers in (values, units)))

    def is_close(self, exact: Array, slack: float = 0.0) -> Bool[np.ndarray, "..."]:
        """Return where these are the exact numbers, rounded; `slack` allows for more units of the last decimal.

        `exact` has the same shape, or more axes before it.
        """
        with np.errstate(invalid="ignore"):  # infinities are equal or not
            close = np.abs(exact - self.values) <= self.units * (0.5 + slack) + FLOAT_TOLERANCE * np.maximum(
                1.0, np.abs(exact)
            )
        return np.where(np.isfinite(exact), close, exact == self.values)

    def matches(self, exact: Array, slack: float = 0.0) -> bool:
        """Whether all numbers are the exact ones, rounded."""
        return exact.shape == self.values.shape and bool(self.is_close(exact, slack).all())

    def is_reordered(self, exact: Array, axis: int) -> bool:
        """Whether the slices along an axis are those of the exact array in another order."""
        values, units, theirs = (np.moveaxis(one, axis, 0) for one in (self.values, self.units, exact))
        left = np.ones(len(theirs), dtype=bool)
        for row, unit in zip(values, units, strict=True):
            matches = RoundedArray(row, unit).is_close(theirs).reshape(len(theirs), -1).all(axis=1) & left
            if not matches.any():
                return False
            left[matches.argmax()] = False
        return True


def _in_order(table: Mapping[str, Any], right: ExpectedValue) -> list[Any]:
    """The values of a table {label: value, …} in the order of the labels. All must be there: a gap cannot be right."""
    labels = right.labels[0] if right.labels else ()
    places = {"".join(label.split()): place for place, label in enumerate((*right.label_aliases, *labels))}
    places = {label: place % max(1, len(labels)) for label, place in places.items()}
    found: dict[int, Any] = {}
    for label, one in table.items():
        place = places.get("".join(label.split()))
        if place is None:
            raise InputError(f"{right.name}: there is no '{label}'. Known: {', '.join(labels) or 'none'}.")
        found[place] = one
    missing = [label for place, label in enumerate(labels or ("its one word",)) if place not in found]
    if missing:
        raise InputError(f"{right.name}: your table leaves out {', '.join(missing[:6])}.")
    return [found[place] for place in sorted(found)]


ROUNDING = 10
"""Units of the last decimal within which a value was probably rounded on the way."""
FACTORS = {"twice": 2.0, "half": 0.5, "ten times": 10.0, "a tenth of": 0.1}


def explain_difference(
    entries: Entries, right: ExpectedNumbers, others: Iterable[ExpectedValue] = (), places: tuple[str, ...] = ()
) -> Iterator[str]:
    """Every slip that explains a value, the most telling first."""
    exact, decimals, rounded = right.values, max_decimals(entries), RoundedArray.from_entries(entries)
    values = rounded.values

    def fits(other: Array) -> bool:
        return rounded.matches(other, slack=1.0)

    if fits(-exact):
        yield "the sign is wrong."
    for said, made in right.mistakes.items():
        if fits(made):
            yield f"{said}."
    if exact.ndim == 2 and fits(exact.T):
        yield "transposed: rows and columns are exchanged."
    if values.shape == exact.shape and np.ptp(values) > 0:
        for axis, name in enumerate({1: ("entries",), 2: ("rows", "columns")}.get(exact.ndim, ())):
            if rounded.is_reordered(exact, axis):
                yield f"the {name} are in another order."
    for other in others:
        try:
            taken = select_part(other, Target(other.name, places)) if places else other
        except InputError:  # it has no such place
            continue
        if not isinstance(taken, ExpectedNumbers) or taken.name == right.name or taken.labels != right.labels:
            continue
        # zeros and ones alone could be anything
        particular = np.any((np.abs(taken.values) > 1e-9) & (np.abs(taken.values - 1) > 1e-9))
        if fits(taken.values) and particular:
            meaning = f" ({other.meaning})" if other.meaning and other.meaning != other.name else ""
            yield f"that is {taken.name}{meaning}, not {right.name}."
    for said, factor in FACTORS.items():
        if fits(exact * factor) and np.abs(exact).max() > 0:
            yield f"yours is {said} the right value."
    if values.shape == exact.shape and decimals:
        worst = float(np.abs(values - exact).max())
        units = worst * 10**decimals
        if units <= ROUNDING and worst <= 0.02 * float(np.abs(exact).max()):
            off = f"off by at most {units:.1f} units of the last decimal"
            yield f"{off}: rounded on the way? Keep more decimals until the end."


@dataclass(frozen=True)
class JudgedLine:
    """One line judged."""

    claim: str
    right: bool
    expected: str
    """What is right, rounded like what was given."""
    places: tuple[str, ...] = ()
    """The first places that differ."""
    slip: str = ""
    """The mistake that explains the difference, if one does."""

    def reasons(self) -> list[str]:
        """Why it is wrong, line by line; nothing if it is right."""
        if self.right:
            return []
        slip = [self.slip[:1].upper() + self.slip[1:]] if self.slip else []
        return [*self.places, *slip, f"right: {self.expected}"]


@dataclass(frozen=True)
class WorkedReport(Result):
    """A hand computation judged line by line against a worked case."""

    case: str
    lines: tuple[JudgedLine, ...]
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What was judged."""
        return f"A hand computation of {self.case}"

    @property
    def right(self) -> bool:
        """Whether every line is."""
        return all(line.right for line in self.lines)

    def __bool__(self) -> bool:
        return self.right

    @property
    def exit_status(self) -> int:
        """What a command ends with: 0 if everything is right, 1 if not."""
        return 0 if self.right else 1

    def blocks(self) -> Iterator[Block]:
        """Each line right or wrong, where it differs, and the slip that explains it."""
        for line in self.lines:
            mark, kind = ("right", "good") if line.right else ("wrong", "bad")
            yield Text(f"{mark:<8}{line.claim}", kind)
            if line.reasons():
                yield Text("\n".join(f"{'':8}{reason}" for reason in line.reasons()), "note")
        yield from (Text(note, "note") for note in self.notes)
        count = sum(line.right for line in self.lines)
        yield Text(f"{count} of {len(self.lines)} right. {ROUNDING_RULE}", "note")

    def details(self) -> list[Block]:
        """The same under its title."""
        return [Heading(self.title, 1), *self.blocks()]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "case": self.case,
            "right": self.right,
            "lines": [asdict(line) for line in self.lines],
            "notes": list(self.notes),
            "rule": ROUNDING_RULE,
        }


def check_worked(case: CaseLike, lines: Sequence[str]) -> WorkedReport:
    """Judge lines `NAME = VALUE` against a worked case.

    >>> judge_worked("e9", ["c_t = [0.52, -0.34]", "h_t[1] = 0.364"]).lines[1].slip
    'tanh is left out: Γ_o∗c_t.'
    """
    if sum(map(len, lines)) > MAX_CHARS:
        raise InputError(
            f"check worked: the lines have more than {MAX_CHARS:,} characters. Judge them in smaller parts."
        )
    claims = [read_claim(line) for text in lines for line in text.splitlines() if line.strip()]
    if not claims or len(claims) > MAX_LINES:
        raise InputError(f"check worked: from 1 to {MAX_LINES} lines are expected, got {len(claims)}.")
    best: tuple[JudgedLine, ...] = ()
    for key in answer_keys(case, claims):
        judged = tuple(_judge(claim, key) for claim in claims)
        if not best or sum(one.right for one in judged) > sum(one.right for one in best):
            best = judged
        if all(one.right for one in best):
            break
    shown = case if isinstance(case, str) else "the case"
    return WorkedReport(shown, best, (TIE_NOTE,) if shown.startswith(BPE_PREFIX) else ())


def _judge(claim: HandClaim, key: AnswerKey) -> JudgedLine:
    step = STEP.fullmatch(_plain(claim.target.name)) if key.merges is not None else None
    if step and int(step[2]) > (key.merges or 0) + (step[1] == "counts"):
        after = f"there are {key.merges} merges, after which no pair occurs twice"
        return JudgedLine(claim.text, False, f"steps = {key.merges}", (after,))
    right = key.find(claim.target)
    if claim.sign != "=":  # one number next to another: alpha2[they, Ajax] > alpha2[they, Juventus]
        number = read_number(claim.value_text)
        mine = _one(right)
        theirs = number.value if number else _one(key.find(read_target(claim.value_text)))
        holds = mine > theirs + 1e-12 if claim.sign == ">" else mine < theirs - 1e-12
        other = claim.value_text if number else f"{claim.value_text} = {format_short(theirs, DEFAULT_DECIMALS)}"
        return JudgedLine(claim.text, holds, f"{right.name} = {format_short(mine, DEFAULT_DECIMALS)}, {other}")
    if isinstance(right, ExpectedNumbers):
        return _judge_numbers(claim, claim.value, _as_written(claim.value, right), key)
    return _judge_words(claim, claim.value, right)


def _as_written(value: Any, right: ExpectedNumbers) -> ExpectedNumbers:
    """Return what is right in the form of the value: a matrix of one row or column may be written as a vector.

    So may a vector as a matrix of one row or column, and a single number in brackets.
    """
    depth = 1 if isinstance(value, dict) else 0
    first, sizes = value, list[int]()
    while isinstance(first, list) and first:
        sizes.append(len(first))
        first, depth = first[0], depth + 1
    long_axes = [axis for axis in right.labels if len(axis) != 1]
    if depth == len(right.labels) or len(long_axes) > depth:
        return right
    labels = long_axes
    while len(labels) < depth:  # axes of length 1 where the value has them
        at = next((axis for axis, size in enumerate(sizes) if size == 1), len(labels))
        labels.insert(min(at, len(labels)), ("1",))
        sizes = [size if axis != at else 0 for axis, size in enumerate(sizes)]
    shape = tuple(map(len, labels))
    slips = {said: made.reshape(shape) for said, made in right.mistakes.items()}
    return replace(right, values=np.reshape(right.values, shape), labels=tuple(labels), mistakes=slips)


def _one(right: ExpectedValue) -> float:
    if not isinstance(right, ExpectedNumbers) or right.shape:
        raise InputError(f"{right.name}: < and > are for single numbers, as in alpha2[they, Ajax] > 0.1.")
    return float(right.values)


def _judge_numbers(claim: HandClaim, value: Any, right: ExpectedNumbers, key: AnswerKey) -> JudgedLine:
    entries = read_entries(value, right)
    given = max_decimals(entries)
    decimals = given or DEFAULT_DECIMALS
    many = np.size(right.values) > MAX_NUMBERS
    written = (
        f"{right.shape_text} numbers; look at the case for all of them"
        if many
        else format_values(right.values, decimals)
    )
    expected = f"{right.name} = {written}"
    if entries.shape != right.shape:
        got = "×".join(map(str, entries.shape)) or "one number"
        wrong = (f"{got} given, {right.shape_text} expected",)
        return JudgedLine(claim.text, False, expected, wrong, next(explain_difference(entries, right), ""))
    wrong = np.argwhere(~RoundedArray.from_entries(entries).is_close(right.values))
    differing = [tuple(map(int, place)) for place in wrong]
    if not differing:
        return JudgedLine(claim.text, True, expected)
    places: list[str] = []
    if right.shape:  # of a single number the right value says enough
        for place in differing[:MAX_DIFFERENCES]:
            labels = ", ".join(names[number] for names, number in zip(right.labels, place, strict=True))
            exact = format_values(right.values[place], decimals)
            places.append(f"[{labels}]: {entries[place].text} given, {exact} is right")
        more = len(differing) - len(places)
        places += [f"and {more} more"] if more else []
    slip = next(explain_difference(entries, right, key.expected, claim.target.labels), "")
    return JudgedLine(claim.text, False, expected, tuple(places), slip)


def _judge_words(claim: HandClaim, value: Any, right: ExpectedValue) -> JudgedLine:
    written = [" or ".join(dict.fromkeys(words[:2])) for words in right.values]
    expected = f"{right.name} = {', '.join(written) if right.labels else written[0]}"
    if isinstance(value, list) and right.labels and len(value) != len(right.values):
        return JudgedLine(claim.text, False, expected, (f"{len(value)} given, {len(right.values)} words expected",))
    if isinstance(value, dict):
        words = _in_order(value, right)
    elif isinstance(value, list) or not right.labels or len(right.values) == 1:
        words = value if right.labels and isinstance(value, list) else [value]
    else:
        word = _written(value)
        raise InputError(f"{right.name}: a list of words is expected, as in [{word}, …]; got '{word}'.")
    given = enumerate(map(_written, words))
    wrong = [
        (place, word)
        for place, word in given
        if normalize_symbols(word) not in map(normalize_symbols, right.values[place])
    ]
    said = tuple(
        f"[{right.labels[0][place]}]: {word} given, {written[place]} is right"
        for place, word in wrong[:MAX_DIFFERENCES]
        if right.labels
    )
    return JudgedLine(claim.text, not wrong, expected, said)


def format_values(values: Array, decimals: int) -> str:
    """An array with at most this many decimals, zeros at the ends left out.

    >>> write_values(np.array([[0.25, -1.0]]), 3)
    '[[0.25, −1]]'
    """
    if np.ndim(values):
        return "[" + ", ".join(format_values(one, decimals) for one in values) + "]"
    return format_short(float(values), decimals)


def describe_worked(case: CaseLike) -> str:
    """Every name that may be claimed, its shape and what it is; no values."""
    if isinstance(case, str) and case.startswith(BPE_PREFIX):
        return BPE_NAMES
    expected = next(answer_keys(case)).expected
    first = [one for one in expected if not one.name.startswith("sentence")]
    lines = format_table([(one.name, one.shape_text, one.meaning) for one in first], left=(0, 1, 2))
    if len(first) < len(expected):
        lines.append(f"sentence2.{first[0].name} and so on: the same of the second sentence.")
    labels = dict.fromkeys(", ".join(axis) for one in expected for axis in one.labels)
    places = [f"  {axis}" for axis in labels if not axis[:1].isdigit()][:6]
    if places:
        lines += ["", "Rows and columns by these labels, or counted from 1:", *places]
    return wrap_lines("\n".join(lines))
