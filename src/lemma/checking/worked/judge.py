"""A hand computation judged line by line against a worked case.

A line is `NAME = VALUE`, `NAME[row, column] = VALUE`, or one number next to another: `NAME[…] > NAME[…]`. Values are
read by a parser of our own; nothing is evaluated:

    value = list | table | item          list  = "[" value "," value … "]"    (or round brackets)
    item  = number | word | "quoted"     table = "{" label ":" item "," … "}"

A wrong value is explained by the first usual slip that gives it: a sign, a transpose, another quantity's numbers.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import product
from math import isinf
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from lemma.checking.worked.attention import attention_by_hand, cross_by_hand
from lemma.checking.worked.bpe import SMALL, expected_of_byte_pairs
from lemma.checking.worked.case import (
    MARKS,
    Array,
    CaseLike,
    Expected,
    ExpectedNumbers,
    ExpectedWords,
    Labels,
    kind_of,
    list_examples,
)
from lemma.checking.worked.graph import TABLES, graph_by_hand
from lemma.checking.worked.lstm import lstm_by_hand
from lemma.checking.worked.matching import matching_by_hand
from lemma.errors import InputError, SpecError, unknown
from lemma.report.numbers import numeral
from lemma.report.result import Block, Result, Text
from lemma.report.text import fit, table
from lemma.spec.base import read_toml

BYTE_PAIRS = "bpe:"
WORKERS: dict[str, Callable[..., Any]] = {
    "attention": attention_by_hand,
    "cross": cross_by_hand,
    "graph": graph_by_hand,
    "lstm": lstm_by_hand,
    "matching": matching_by_hand,
}
"""What works out each kind of case."""
RULE = "A number is right if it is the exact one rounded to the decimals given; without decimals it must be exact."
TIES = (
    "Ties: any of the most frequent pairs may be merged first, so long as all lines keep to one order. Lemma's own "
    "rule: the pair whose left symbol comes first, then whose right symbol does."
)
OF_BYTE_PAIRS = """\
merges        words     the pairs in the order of merging: [ab, Ab]
merge1        a word    the pair of step 1, and so on; A is another name of it
count1        a number  how often that pair occurs, and so on
counts1       a table   all pairs before step 1: {ab: 4, bb: 3}, and so on
segmentation  words     each word in its symbols: {abb: A b}
steps         a number  how many merges
symbols       a number  symbols of the whole text at the end

Symbols that are merged are A, B, C … as they are made; \\w ends a word."""
EXAMPLE = "As in: 'alpha2[they, Ajax] = 0.119', 'c_t = [0.52, -0.34]' or 'alpha2[they, Ajax] > alpha2[they, lost]'."
MOST_LINES, MOST_PLACES, MOST_LISTED, MOST_NUMBERS = 200, 3, 12, 24
FEWEST_DECIMALS = 4
"""Decimals of what is right where none were given."""


# Numbers as a person writes them, with the unit of their last decimal


SLACK = 1e-9
"""What rounding in float64 may add to half a unit."""
NUMBER = re.compile(r"[+-]?(\d{1,3}(?:[ _’']\d{3})+|\d+)?(\.\d*)?([eE][+-]?\d{1,3})?")
FRACTION = re.compile(r"([+-]?\d{1,12})\s*/\s*(\d{1,12})")


@dataclass(frozen=True)
class WrittenNumber:
    """A number as it was written."""

    text: str
    value: float
    decimals: int | None
    """Decimals written; None for a fraction or a power of ten, which carry a unit of their own."""
    unit: float = 0.0
    """The unit of the last decimal; 0 means exact."""

    def tolerance(self, decimals: int) -> float:
        """Half a unit; numbers of one list are taken to the decimals of the longest."""
        unit = self.unit if self.decimals is None else (10.0**-decimals if decimals else 0.0)
        return unit / 2


def read_number(text: str) -> WrittenNumber | None:
    """Read a number; None if the text is not one.

    >>> read_number("−0.25").value, read_number("1/4").value, read_number("they")
    (-0.25, 0.25, None)
    """
    plain = text.strip().replace("−", "-").replace("–", "-")
    if found := FRACTION.fullmatch(plain):
        if int(found[2]) == 0:
            return None
        return WrittenNumber(text.strip(), float(Fraction(int(found[1]), int(found[2]))), None)
    found = NUMBER.fullmatch(plain)
    if not found or not (found[1] or (found[2] or ".") != "."):
        return None
    decimals = len(found[2]) - 1 if found[2] else 0
    value = float(re.sub(r"[ _’']", "", plain))
    if isinf(value):
        return None
    if not found[3]:
        return WrittenNumber(text.strip(), value, decimals)
    # a power of ten that rounds whole numbers away must have two digits, else 0e3 would be any number
    unit = float(f"1e{int(found[3][1:]) - decimals}")
    return WrittenNumber(text.strip(), value, None, unit if unit < 1 or abs(value) >= 10 * unit else 0.0)


def is_near(exact: float, given: WrittenNumber, decimals: int, slack: float = 0.0) -> bool:
    """Whether a number given is the exact one, rounded to this many decimals; `slack` allows for more such units.

    >>> is_near(0.11879, read_number("0.119"), 3), is_near(0.11879, read_number("0.12"), 3)
    (True, False)
    """
    if exact != exact or abs(exact) == float("inf"):
        return exact == given.value
    allowed = given.tolerance(decimals) * (1 + 2 * slack)
    return abs(exact - given.value) <= allowed + SLACK * max(1.0, abs(exact))


# Values and claims


LONGEST, DEEPEST, LONGEST_NAME = 50_000, 3, 200
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
    if len(text) > LONGEST:
        raise InputError(f"the value has {len(text):,} characters; at most {LONGEST:,} are read.")
    return ValueReader(text).whole()


class ValueReader:
    """Reads one value from a text, left to right. Words may hold blanks; they end at a comma, a bracket or the end."""

    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0

    def whole(self) -> Any:
        """The value, and nothing after it."""
        value = self._value(0)
        if self._peek():
            raise self._error(f"'{self._peek()}' is left over")
        return value

    def _value(self, depth: int) -> Any:
        sign = self._peek()
        if sign not in BRACKETS:
            return self._item(ENDS)
        if depth >= DEEPEST:
            raise self._error("brackets are too deep: a number, a vector or a matrix is expected")
        close, values, items = BRACKETS[self._take()], [], {}
        while self._peek() != close:
            if close == "}":
                label = self._item(ENDS + ":")
                if self._peek() != ":":
                    raise self._error("a table is written {label: value, …}")
                self._take()
                items[_written(label)] = self._item(ENDS)
            else:
                values.append(self._value(depth + 1))
            if self._peek() == ",":
                self._take()
            elif self._peek() != close:
                raise self._error(f"',' or '{close}' is expected")
        self._take()
        return items if close == "}" else values

    def _item(self, ends: str) -> WrittenNumber | str:
        mark = self._peek()
        if mark in ('"', "'") and mark:
            self._take()
            end = self.text.find(mark, self.place)
            if end < 0:
                raise self._error(f"the {mark} that opens a word is not closed")
            word, self.place = self.text[self.place : end], end + 1
            return word
        start = self.place
        while self.place < len(self.text) and self.text[self.place] not in ends:
            self.place += 1
        word = self.text[start : self.place].strip()
        if not word:
            raise self._error("a value is missing")
        return read_number(word) or word

    def _peek(self) -> str:
        """The next character that is not blank."""
        while self.place < len(self.text) and self.text[self.place].isspace():
            self.place += 1
        return self.text[self.place : self.place + 1]

    def _take(self) -> str:
        self.place += 1
        return self.text[self.place - 1]

    def _error(self, what: str) -> InputError:
        near = self.text[max(0, self.place - 12) : self.place + 12].strip()
        return InputError(f"the value cannot be read at character {self.place + 1} (near '{near}'): {what}.")


def _written(value: Any) -> str:
    """A value as text."""
    if isinstance(value, WrittenNumber):
        return value.text
    return " ".join(map(_written, value)) if isinstance(value, list) else str(value)


@dataclass(frozen=True)
class Target:
    """What a claim is about: a name, and the place if it is about one element or row."""

    name: str
    places: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(self.places)}]" if self.places else self.name


@dataclass(frozen=True)
class HandClaim:
    """One line: on the left a target, on the right a value or, next to < and >, another target."""

    text: str
    target: Target
    sign: str
    right: str


def read_claim(text: str) -> HandClaim:
    """Split a line into what it is about, its sign and its value.

    >>> read_claim("alpha2[they, Ajax] = 0.119").target
    Target(name='alpha2', places=('they', 'Ajax'))
    """
    line = " ".join(text.split())
    found = LINE.fullmatch(line)
    if not found or len(found["left"]) > LONGEST_NAME:
        raise InputError(f"'{line[:60]}' is no claim: NAME = VALUE is expected. {EXAMPLE}")
    sign = "=" if found["sign"] in ("==", "≈") else found["sign"]
    return HandClaim(line, read_target(found["left"]), sign, found["right"].strip())


def read_target(text: str) -> Target:
    """Read a name with its places.

    >>> str(read_target("P[image 1,2]"))
    'P[image 1, 2]'
    """
    found = TARGET.fullmatch(text.strip())
    if not found:
        raise InputError(f"'{text.strip()[:60]}' is no name of a quantity. {EXAMPLE}")
    places = tuple(place.strip() for place in found["places"].split(",")) if found["places"] else ()
    if "" in places:
        raise InputError(f"'{text.strip()[:60]}': a row or column is missing between the brackets. {EXAMPLE}")
    return Target(found["name"].strip(), places)


# What is right of a case, found by name and place


@dataclass(frozen=True)
class AnswerKey:
    """Everything that is right of a case, by every name it has."""

    case: str
    expected: Sequence[Expected]

    def find(self, target: Target) -> Expected:
        """What is right under that name, at those places."""
        whole = self._by_name(target.name)
        return part(whole, target) if target.places else whole

    def _by_name(self, name: str) -> Expected:
        for one in self.expected:
            if name in (one.name, *one.spellings):
                return one
        close = [one for one in self.expected if _plain(name) in map(_plain, (one.name, *one.spellings))]
        if len(close) == 1:
            return close[0]
        known = [one.name for one in self.expected]
        with_pass = [one.name for one in self.expected if f"{name}1" in (one.name, *one.spellings)]
        if with_pass:
            stem = with_pass[0].rstrip("0123456789")
            several = [one for one in known if one.rstrip("0123456789") == stem]
            said = f"'{name}' is there {len(several)} times. Which one? Known: {', '.join(several)}."
        else:
            few = known if len(known) <= MOST_LISTED else [one for one in known if _plain(one)[:1] == _plain(name)[:1]]
            said = unknown("the name", name, (few or known)[:MOST_LISTED])
        raise InputError(f"{self.case}: {said} All names: lemma check worked {quote(self.case)} --names")


def part(whole: Expected, target: Target) -> Expected:
    """One element, row or column of what is right: places are labels, or counted from 1; `:` stands for all of them."""
    if len(target.places) > len(whole.shape):
        held = ("one value", "a vector", "a matrix")[len(whole.shape)]
        raise InputError(f"{target}: {whole.name} is {held}; it has no place [{', '.join(target.places)}].")
    for axis in reversed(range(len(target.places))):  # from the last, so that an axis taken away moves no other
        if target.places[axis] == ":":
            continue
        place = _place(whole.labels[axis], target.places[axis], target)
        labels = whole.labels[:axis] + whole.labels[axis + 1 :]
        if isinstance(whole, ExpectedNumbers):
            slips = {said: made.take(place, axis) for said, made in whole.slips.items()}
            whole = replace(whole, values=whole.values.take(place, axis), labels=labels, slips=slips)
        else:
            whole = replace(whole, values=(whole.values[place],), labels=labels)
    return replace(whole, name=str(target))


def _place(labels: Labels, place: str, target: Target) -> int:
    for number, label in enumerate(labels):
        if _plain(label) == _plain(place):
            return number
    if place.isdigit() and 1 <= int(place) <= len(labels):
        return int(place) - 1
    known = unknown("the place", place, labels[:MOST_LISTED])
    raise InputError(f"{target}: {known} Or a number from 1 to {len(labels)}.")


def _plain(name: str) -> str:
    return name.casefold().replace("_", "").replace(" ", "")


def answer_keys(case: CaseLike) -> Iterator[AnswerKey]:
    """What is right of a case; of byte-pair encoding once for each order of ties.

    >>> key = next(answer_keys("e9"))
    >>> [one.name for one in key.expected][:5]
    ['kept', 'added', 'c_t', 'tanh_c', 'h_t']
    """
    shown = "the case" if isinstance(case, Mapping) else str(case)
    if not isinstance(case, str) or not case.startswith(BYTE_PAIRS):
        return iter([AnswerKey(shown, WORKERS[_kind(case)](case).expected())])
    text = case.removeprefix(BYTE_PAIRS)
    if not text.split() or len(text) > SMALL:
        raise InputError(f"{BYTE_PAIRS} a text of 1 to {SMALL:,} characters is expected behind it, got {len(text):,}.")
    return (AnswerKey(shown, expected) for expected in expected_of_byte_pairs(text))


def _kind(case: CaseLike) -> str:
    """Which kind of case it is: by the examples that come with Lemma, or by the words of a file."""
    if not isinstance(case, Mapping):
        examples = {name: kind for kind in WORKERS for name in list_examples(kind).titles}
        if str(case) in examples and not Path(case).is_file():
            return examples[str(case)]
        if Path(case).suffix.lower() in TABLES:
            return "graph"
        if not Path(case).is_file():
            ways = ' Or give a TOML file of your own, or "bpe:TEXT".'
            raise SpecError("check worked: " + unknown("the case", str(case), examples) + ways)
    found = kind_of(case if isinstance(case, Mapping) else read_toml(Path(case)))
    if not found:
        marks = ", ".join(f"{mark} ({kind})" for kind, mark in MARKS.items())
        raise SpecError(f"{case}: no case that can be worked: one of these words is expected in it: {marks}.")
    return found


# A value next to what is right: its numbers by place


Place = tuple[int, ...]


@dataclass(frozen=True)
class WrittenEntries:
    """The numbers of a value by their place."""

    shape: tuple[int, ...]
    numbers: dict[Place, WrittenNumber]

    @property
    def decimals(self) -> int:
        """The most decimals of any of them: a list is written to one precision, zeros at its ends left out."""
        return max((one.decimals or 0 for one in self.numbers.values()), default=0)

    @property
    def array(self) -> Array:
        """The numbers themselves."""
        made = np.zeros(self.shape)
        for place, given in self.numbers.items():
            made[place] = given.value
        return made

    def differing(self, exact: Array) -> list[Place]:
        """The places at which this is not the exact value, rounded."""
        return [
            place for place, given in self.numbers.items() if not is_near(float(exact[place]), given, self.decimals)
        ]

    def fits(self, other: Array) -> bool:
        """Whether these are the numbers of another array, up to a unit more of the last decimal."""
        return other.shape == self.shape and all(
            is_near(float(other[place]), given, self.decimals, slack=1.0) for place, given in self.numbers.items()
        )


def read_entries(value: Any, right: ExpectedNumbers) -> WrittenEntries:
    """The numbers of a value: a number, nested lists, or a table that has all labels of a vector."""
    if not isinstance(value, dict):
        return WrittenEntries(_shape(value, right), dict(_flat(value, (), right)))
    if len(right.labels) != 1:
        raise InputError(f"{right.name}: a table of labels is for a vector; {right.form} is expected here.")
    numbers: dict[Place, WrittenNumber] = {}
    for label, one in value.items():
        given = one if isinstance(one, WrittenNumber) else read_number(one)
        if given is None:
            raise InputError(f"{right.name}: {label}: '{one}' is no number.")
        numbers[(_label(right, label),)] = given
    _refuse_gaps([place for (place,) in numbers], right)
    return WrittenEntries(right.shape, numbers)


def _flat(value: Any, place: Place, right: ExpectedNumbers) -> Iterator[tuple[Place, WrittenNumber]]:
    if isinstance(value, list):
        for number, one in enumerate(value):
            yield from _flat(one, (*place, number), right)
    elif isinstance(value, WrittenNumber):
        yield place, value
    else:
        raise InputError(f"{right.name}: '{_written(value)[:40]}' is no number. Expected: {right.form}.")


def _shape(value: Any, right: ExpectedNumbers) -> tuple[int, ...]:
    if not isinstance(value, list):
        return ()
    shapes = {_shape(one, right) for one in value}
    if len(shapes) > 1:
        raise InputError(f"{right.name}: all rows of a matrix are equally long; yours are not.")
    return (len(value), *(shapes.pop() if shapes else ()))


def read_words(value: Any, right: ExpectedWords) -> list[tuple[int, str]]:
    """The words of a value with their places."""
    if isinstance(value, dict):
        words = {_label(right, label): _written(one) for label, one in value.items()}
        _refuse_gaps(words, right)
        return list(words.items())
    if not right.labels:
        return [(0, _written(value))]
    if not isinstance(value, list):
        word = _written(value)
        raise InputError(f"{right.name}: a list of words is expected, as in [{word}, …]; got '{word}'.")
    return [(place, _written(one)) for place, one in enumerate(value)]


def _label(right: Expected, label: str) -> int:
    labels = right.labels[0] if len(right.labels) == 1 else ()
    for place, one in enumerate(labels):
        if "".join(one.split()) == "".join(label.split()):
            return place
    known = ", ".join(right.labels[0]) if right.labels else "none"
    raise InputError(f"{right.name}: there is no '{label}'. Known: {known}.")


def _refuse_gaps(places: Collection[int], right: Expected) -> None:
    """A table has all labels: what is left out cannot be right."""
    labels = right.labels[0] if right.labels else ("its one word",)
    missing = [label for place, label in enumerate(labels) if place not in places]
    if missing:
        raise InputError(f"{right.name}: your table leaves out {', '.join(missing[:6])}.")


# Slips that explain a wrong value


ROUNDING = 10
"""Units of the last decimal within which a value was probably rounded on the way."""
FACTORS = {"twice": 2.0, "half": 0.5, "ten times": 10.0, "a tenth of": 0.1}


def explain(
    entries: WrittenEntries, right: ExpectedNumbers, others: Iterable[Expected] = (), places: tuple[str, ...] = ()
) -> str:
    """The first slip that explains a value; an empty text if none does."""
    return next(_explanations(entries, right, others, places), "")


def _explanations(
    entries: WrittenEntries, right: ExpectedNumbers, others: Iterable[Expected], places: tuple[str, ...]
) -> Iterator[str]:
    exact = right.values
    if entries.fits(-exact):
        yield "the sign is the other way round."
    for said, made in right.slips.items():
        if entries.fits(made):
            yield f"{said}."
    if exact.ndim == 2 and entries.fits(exact.T):
        yield "transposed: rows and columns are exchanged."
    if entries.shape == exact.shape and np.ptp(entries.array) > 0:
        for axis, name in enumerate({1: ("entries",), 2: ("rows", "columns")}.get(exact.ndim, ())):
            if _reordered(entries, exact, axis):
                yield f"the {name} stand in another order."
    for other in others:
        try:
            taken = part(other, Target(other.name, places)) if places else other
        except InputError:  # it has no such place
            continue
        if not isinstance(taken, ExpectedNumbers) or taken.name == right.name or taken.labels != right.labels:
            continue
        # zeros and ones alone could be anything
        particular = np.any((np.abs(taken.values) > 1e-9) & (np.abs(taken.values - 1) > 1e-9))
        if entries.fits(taken.values) and particular:
            meaning = f" ({other.meaning})" if other.meaning and other.meaning != other.name else ""
            yield f"that is {taken.name}{meaning}, not {right.name}."
    for said, factor in FACTORS.items():
        if entries.fits(exact * factor) and np.abs(exact).max() > 0:
            yield f"yours is {said} the right value."
    if entries.shape == exact.shape and entries.decimals:
        worst = float(np.abs(entries.array - exact).max())
        units = worst * 10**entries.decimals
        if units <= ROUNDING and worst <= 0.02 * float(np.abs(exact).max()):
            off = f"off by at most {units:.1f} units of the last decimal"
            yield f"{off}: rounded on the way? Keep more decimals till then."


def _reordered(entries: WrittenEntries, exact: Array, axis: int) -> bool:
    """Whether every slice of the value along an axis is a slice of the exact one, each used once."""
    others = [range(size) for number, size in enumerate(exact.shape) if number != axis]

    def same_slice(mine: int, theirs: int) -> bool:
        return all(
            is_near(
                float(exact[(*rest[:axis], theirs, *rest[axis:])]),
                entries.numbers[(*rest[:axis], mine, *rest[axis:])],
                entries.decimals,
            )
            for rest in product(*others)
        )

    left = list(range(exact.shape[axis]))
    for place in range(exact.shape[axis]):
        found = next((other for other in left if same_slice(place, other)), None)
        if found is None:
            return False
        left.remove(found)
    return True


# Judging


@dataclass(frozen=True)
class JudgedClaim:
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
    lines: tuple[JudgedClaim, ...]
    notes: tuple[str, ...] = ()
    rule: str = RULE

    @property
    def title(self) -> str:
        """What was judged."""
        return f"A hand computation of {self.case}"

    @property
    def right(self) -> bool:
        """Whether every line is."""
        return all(line.right for line in self.lines)

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
        yield Text(f"{count} of {len(self.lines)} right. {self.rule}", "note")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "case": self.case,
            "right": self.right,
            "lines": [asdict(line) for line in self.lines],
            "notes": list(self.notes),
            "rule": self.rule,
        }


def judge_worked(case: CaseLike, lines: Sequence[str]) -> WorkedReport:
    """Judge lines `NAME = VALUE` against a worked case.

    >>> judge_worked("e9", ["c_t = [0.52, -0.34]", "h_t[1] = 0.364"]).lines[1].slip
    'tanh is left out: Γ_o∗c_t.'
    """
    claims = [read_claim(line) for text in lines for line in text.splitlines() if line.strip()]
    if not claims or len(claims) > MOST_LINES:
        raise InputError(f"check worked: from 1 to {MOST_LINES} lines are expected, got {len(claims)}.")
    best: tuple[JudgedClaim, ...] = ()
    for key in answer_keys(case):
        judged = tuple(_judge(claim, key) for claim in claims)
        if not best or sum(one.right for one in judged) > sum(one.right for one in best):
            best = judged
        if all(one.right for one in best):
            break
    shown = case if isinstance(case, str) else "the case"
    return WorkedReport(shown, best, (TIES,) if shown.startswith(BYTE_PAIRS) else ())


def _judge(claim: HandClaim, key: AnswerKey) -> JudgedClaim:
    right = key.find(claim.target)
    if claim.sign != "=":
        return _compare(claim, right, key)
    value = read_value(claim.right)
    if isinstance(right, ExpectedWords):
        return _judge_words(claim, value, right)
    return _judge_numbers(claim, value, right, key)


def _judge_numbers(claim: HandClaim, value: Any, right: ExpectedNumbers, key: AnswerKey) -> JudgedClaim:
    entries = read_entries(value, right)
    decimals = entries.decimals or FEWEST_DECIMALS
    many = np.size(right.values) > MOST_NUMBERS
    written = (
        f"{right.form} numbers; look at the case for all of them" if many else write_values(right.values, decimals)
    )
    expected = f"{right.name} = {written}"
    if entries.shape != right.shape:
        got = "×".join(map(str, entries.shape)) or "one number"
        wrong = (f"{got} given, {right.form} expected",)
        return JudgedClaim(claim.text, False, expected, wrong, explain(entries, right))
    differing = entries.differing(right.values)
    if not differing:
        return JudgedClaim(claim.text, True, expected)
    places: list[str] = []
    if right.shape:  # a lone number is told by what is right
        for place in differing[:MOST_PLACES]:
            labels = ", ".join(right.labels[axis][one] for axis, one in enumerate(place))
            exact = write_values(right.values[place], decimals)
            places.append(f"[{labels}]: {entries.numbers[place].text} given, {exact} is right")
        more = len(differing) - len(places)
        places += [f"and {more} more"] if more else []
    slip = explain(entries, right, key.expected, claim.target.places)
    return JudgedClaim(claim.text, False, expected, tuple(places), slip)


def _judge_words(claim: HandClaim, value: Any, right: ExpectedWords) -> JudgedClaim:
    written = [" or ".join(dict.fromkeys(words[:2])) for words in right.values]
    expected = f"{right.name} = {', '.join(written) if right.labels else written[0]}"
    if isinstance(value, list) and right.labels and len(value) != len(right.values):
        return JudgedClaim(claim.text, False, expected, (f"{len(value)} given, {len(right.values)} words expected",))
    wrong = [(place, word) for place, word in read_words(value, right) if not _same_word(word, right.values[place])]
    said = tuple(
        f"[{right.labels[0][place]}]: {word} given, {written[place]} is right"
        for place, word in wrong[:MOST_PLACES]
        if right.labels
    )
    return JudgedClaim(claim.text, not wrong, expected, said)


def _same_word(given: str, right: Sequence[str]) -> bool:
    """Whether a word is one of those that are right; blanks count once, and </w> ends a word too."""
    given, *others = (" ".join(word.replace("</w>", r"\w").split()) for word in (given, *right))
    return given in others


def _compare(claim: HandClaim, left: Expected, key: AnswerKey) -> JudgedClaim:
    """One number next to another: `alpha2[they, Ajax] > alpha2[they, Juventus]`."""
    number = read_number(claim.right)
    mine = _one(left)
    theirs = number.value if number else _one(key.find(read_target(claim.right)))
    holds = mine > theirs + 1e-12 if claim.sign == ">" else mine < theirs - 1e-12
    other = claim.right if number else f"{claim.right} = {write_values(np.array(theirs), FEWEST_DECIMALS)}"
    return JudgedClaim(claim.text, holds, f"{left.name} = {write_values(np.array(mine), FEWEST_DECIMALS)}, {other}")


def _one(right: Expected) -> float:
    if isinstance(right, ExpectedWords) or right.shape:
        raise InputError(f"{right.name}: < and > are for single numbers, as in alpha2[they, Ajax] > 0.1.")
    return float(right.values)


def write_values(values: Array, decimals: int) -> str:
    """An array with at most this many decimals, zeros at the ends left out.

    >>> write_values(np.array([[0.25, -1.0]]), 3)
    '[[0.25, −1]]'
    """
    if np.ndim(values):
        return "[" + ", ".join(write_values(one, decimals) for one in values) + "]"
    text = numeral(float(values), decimals)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def describe_worked(case: CaseLike) -> str:
    """Every name that may be claimed, its shape and what it is; no values."""
    if isinstance(case, str) and case.startswith(BYTE_PAIRS):
        return OF_BYTE_PAIRS
    expected = next(answer_keys(case)).expected
    first = [one for one in expected if not one.name.startswith("sentence")]
    lines = table([(one.name, one.form, one.meaning) for one in first], left=(0, 1, 2))
    if len(first) < len(expected):
        lines.append(f"sentence2.{first[0].name} and so on: the same of the second sentence.")
    labels = dict.fromkeys(", ".join(axis) for one in expected for axis in one.labels)
    places = [f"  {axis}" for axis in labels if not axis[:1].isdigit()][:6]
    if places:
        lines += ["", "Rows and columns by these labels, or counted from 1:", *places]
    return fit("\n".join(lines))
