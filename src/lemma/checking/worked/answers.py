"""A hand computation read and compared with a worked case."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from html import escape
from itertools import product
from math import isinf
from shlex import quote
from typing import Any

import numpy as np
from jaxtyping import Float

from lemma.errors import InputError, unknown
from lemma.report.numbers import numeral
from lemma.report.text import columns, wrap

# Numbers as a person writes them, with the unit of their last decimal.


SLACK = 1e-9
"""What rounding in float64 may add to half a unit."""
NUMBER = re.compile(r"[+-]?(\d{1,3}(?:[ _’']\d{3})+|\d+)?(\.\d*)?([eE][+-]?\d{1,3})?")
DIGITS = 10
"""Units that a power of ten of 1 or more must hold to be taken as rounded: two digits."""
FRACTION = re.compile(r"([+-]?\d{1,12})\s*/\s*(\d{1,12})")
RULE = "A number is right if it is the exact one rounded to the decimals given; without decimals it must be exact."


@dataclass(frozen=True)
class Given:
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


def read_number(text: str) -> Given | None:
    """Read a number; None if the text is not one.

    >>> read_number("−0.25").value, read_number("1/4").value, read_number("they")
    (-0.25, 0.25, None)
    """
    plain = text.strip().replace("−", "-").replace("–", "-")
    if found := FRACTION.fullmatch(plain):
        return _fraction(text, found)
    found = NUMBER.fullmatch(plain)
    if not found or not any(sign.isdigit() for sign in plain):
        return None
    if not (found[1] or (found[2] or ".") != "."):
        return None
    decimals = len(found[2]) - 1 if found[2] else 0
    value = float(re.sub(r"[ _’']", "", plain))
    if isinf(value):
        return None
    if found[3]:
        return Given(text.strip(), value, None, _unit(value, int(found[3][1:]) - decimals))
    return Given(text.strip(), value, decimals)


def _unit(value: float, power: int) -> float:
    """The unit of a power of ten; one that rounds whole numbers away takes two digits, else 0e3 would be any number.

    >>> _unit(1.3e5, 4), _unit(1e3, 3), _unit(5e-3, -3)
    (10000.0, 0.0, 0.001)
    """
    unit = float(f"1e{power}")
    return unit if unit < 1 or abs(value) >= DIGITS * unit else 0.0


def _fraction(text: str, found: re.Match[str]) -> Given | None:
    if int(found[2]) == 0:
        return None
    return Given(text.strip(), float(Fraction(int(found[1]), int(found[2]))), None)


def is_near(exact: float, given: Given, decimals: int, slack: float = 0.0) -> bool:
    """Whether a number given is the exact one, rounded to so many decimals; `slack` allows for more such units.

    >>> is_near(0.11879, read_number("0.119"), 3), is_near(0.11879, read_number("0.12"), 3)
    (True, False)
    """
    if exact != exact or abs(exact) == float("inf"):
        return exact == given.value
    allowed = given.tolerance(decimals) * (1 + 2 * slack)
    return abs(exact - given.value) <= allowed + SLACK * max(1.0, abs(exact))


# The values of a claim, read by a parser of our own: a number, a word, or lists and tables of them.
#
#     value  = list | table | item          list  = "[" value "," value … "]"    (or round brackets)
#     item   = number | word | "quoted"     table = "{" label ":" item "," … "}"
#
# Words may hold blanks; they end at a comma, a bracket or the end. Nothing is evaluated.


LONGEST, DEEPEST = 50_000, 3
BRACKETS = {"[": "]", "(": ")", "{": "}"}
ENDS = ",[](){}"
Value = "Given | str | list[Value] | Table"


@dataclass(frozen=True)
class Table:
    """Items by their label."""

    items: dict[str, Given | str]


class Reader:
    """Reads one value from a text, left to right."""

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            raise InputError(f"the value has {len(text):,} characters; at most {LONGEST:,} are read.")
        self.text, self.place = text, 0

    def whole(self) -> "Given | str | list | Table":
        """The value, and nothing after it."""
        value = self._value(0)
        self._blanks()
        if self.place < len(self.text):
            raise self._error(f"'{self.text[self.place]}' is left over")
        return value

    def _value(self, depth: int) -> "Given | str | list | Table":
        self._blanks()
        sign = self._peek()
        if sign in BRACKETS and depth >= DEEPEST:
            raise self._error("brackets are too deep: a number, a vector or a matrix is expected")
        if sign in ("[", "("):
            return self._list(depth)
        return self._table() if sign == "{" else self._item(ENDS)

    def _list(self, depth: int) -> list:
        close = BRACKETS[self._take()]
        values: list = []
        while True:
            self._blanks()
            if self._peek() == close:
                self._take()
                return values
            values.append(self._value(depth + 1))
            self._between(close)

    def _table(self) -> Table:
        self._take()
        items: dict[str, Given | str] = {}
        while True:
            self._blanks()
            if self._peek() == "}":
                self._take()
                return Table(items)
            label = self._label()
            items[label] = self._item(ENDS)
            self._between("}")

    def _label(self) -> str:
        label = self._item(ENDS + ":")
        if self._peek() != ":":
            raise self._error("a table is written {label: value, …}")
        self._take()
        return label.text if isinstance(label, Given) else label

    def _item(self, ends: str) -> Given | str:
        self._blanks()
        if self._peek() in ('"', "'"):
            return self._quoted()
        start = self.place
        while self.place < len(self.text) and self.text[self.place] not in ends:
            self.place += 1
        word = self.text[start : self.place].strip()
        if not word:
            raise self._error("a value is missing")
        return read_number(word) or word

    def _quoted(self) -> str:
        mark = self._take()
        end = self.text.find(mark, self.place)
        if end < 0:
            raise self._error(f"the {mark} that opens a word is not closed")
        word, self.place = self.text[self.place : end], end + 1
        self._blanks()
        return word

    def _between(self, close: str) -> None:
        self._blanks()
        if self._peek() == ",":
            self._take()
        elif self._peek() != close:
            raise self._error(f"',' or '{close}' is expected")

    def _blanks(self) -> None:
        while self.place < len(self.text) and self.text[self.place].isspace():
            self.place += 1

    def _peek(self) -> str:
        return self.text[self.place] if self.place < len(self.text) else ""

    def _take(self) -> str:
        self.place += 1
        return self.text[self.place - 1]

    def _error(self, what: str) -> InputError:
        near = self.text[max(0, self.place - 12) : self.place + 12].strip()
        return InputError(f"the value cannot be read at character {self.place + 1} (near '{near}'): {what}.")


def read_value(text: str) -> "Given | str | list | Table":
    """Read what stands to the right of the sign.

    >>> [[one.value for one in row] for row in read_value("[[1, -0.5], [2, 3]]")]
    [[1.0, -0.5], [2.0, 3.0]]
    >>> read_value("sentence 3")
    'sentence 3'
    """
    return Reader(text).whole()


# A line of a person's hand computation: `NAME = VALUE`, `NAME[row, column] = VALUE`, or one number beside another.


LINE = re.compile(r"(?P<left>[^=<>≈]+?)\s*(?P<sign>==?|<|>|≈)\s*(?P<right>.+)", re.DOTALL)
TARGET = re.compile(r"(?P<name>[^\[\]]+?)\s*(?:\[(?P<places>[^\[\]]*)\])?")
LONGEST_NAME = 200
EXAMPLE = "As in: 'alpha2[they, Ajax] = 0.119', 'c_t = [0.52, -0.34]' or 'alpha2[they, Ajax] > alpha2[they, lost]'."


@dataclass(frozen=True)
class Target:
    """What a claim is about: a name, and the place if it is about one element or row."""

    name: str
    places: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(self.places)}]" if self.places else self.name


@dataclass(frozen=True)
class Claim:
    """One line: on the left a target, on the right a value or, beside < and >, another target."""

    text: str
    target: Target
    sign: str
    right: str


def read_claim(text: str) -> Claim:
    """Split a line into what it is about, its sign and its value.

    >>> read_claim("alpha2[they, Ajax] = 0.119").target
    Target(name='alpha2', places=('they', 'Ajax'))
    """
    line = " ".join(text.split())
    found = LINE.fullmatch(line)
    if not found or len(found["left"]) > LONGEST_NAME:
        raise InputError(f"'{line[:60]}' is no claim: NAME = VALUE is expected. {EXAMPLE}")
    sign = "=" if found["sign"] in ("==", "≈") else found["sign"]
    return Claim(line, read_target(found["left"]), sign, found["right"].strip())


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


# What may be claimed of a worked case: numbers or words by name, with a label for every row and column.


Labels = tuple[str, ...]
Array = Float[np.ndarray, "..."]


@dataclass(frozen=True, eq=False)
class Quantity:
    """Numbers of a worked case under one name: one number, a vector or a matrix."""

    name: str
    values: Array
    labels: tuple[Labels, ...]
    """The labels of each axis."""
    meaning: str = ""
    spellings: Labels = ()
    """What else a person may call it."""
    slips: Mapping[str, Array] = field(default_factory=dict)
    """What comes out by a known mistake, by what the mistake is."""

    @property
    def shape(self) -> tuple[int, ...]:
        """How many rows and columns."""
        return self.values.shape

    @property
    def form(self) -> str:
        """What is to be given, in words."""
        if len(self.shape) == 1:
            return f"{self.shape[0]} numbers"
        return "×".join(map(str, self.shape)) or "a number"


@dataclass(frozen=True)
class WordQuantity:
    """Words of a worked case under one name; several are right where they tie."""

    name: str
    values: tuple[Labels, ...]
    """For each label the words that are right, any of them."""
    labels: tuple[Labels, ...]
    """The labels, if there are several places; none where the quantity is one word."""
    meaning: str = ""
    spellings: Labels = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """How many places."""
        return (len(self.values),) if self.labels else ()

    @property
    def form(self) -> str:
        """What is to be given, in words."""
        return f"{self.shape[0]} words" if self.labels else "a word"


AnyQuantity = Quantity | WordQuantity


def numbered(count: int, prefix: str = "") -> Labels:
    """Labels that are counted from 1.

    >>> numbered(2, "x_")
    ('x_1', 'x_2')
    """
    return tuple(f"{prefix}{place}" for place in range(1, count + 1))


def quantity(
    name: str,
    values: Array | float,
    labels: Iterable[Iterable[str]] | None = None,
    meaning: str = "",
    spellings: Iterable[str] = (),
    slips: Mapping[str, Array] | None = None,
) -> Quantity:
    """Numbers under a name; axes without labels are counted from 1."""
    array = np.asarray(values, dtype=np.float64)
    named = tuple(map(tuple, labels)) if labels is not None else tuple(map(numbered, array.shape))
    return Quantity(name, array, named, meaning, tuple(spellings), dict(slips or {}))


# From what a claim is about to the quantity of the case, or the part of it at the places named.


MOST_LISTED = 12
ALL = ":"
"""Stands for every row, or every column."""


@dataclass(frozen=True)
class Names:
    """The quantities of a case by every name they have."""

    case: str
    quantities: Sequence[AnyQuantity]

    def find(self, target: Target) -> AnyQuantity:
        """The quantity of that name, at those places."""
        named = self._by_name(target.name)
        return part(named, target) if target.places else named

    def _by_name(self, name: str) -> AnyQuantity:
        for one in self.quantities:
            if name in (one.name, *one.spellings):
                return one
        close = [one for one in self.quantities if _plain(name) in map(_plain, (one.name, *one.spellings))]
        if len(close) == 1:
            return close[0]
        raise InputError(f"{self.case}: {self._unknown(name)} All names: lemma check worked {quote(self.case)} --names")

    def _unknown(self, name: str) -> str:
        known = [one.name for one in self.quantities]
        numbered = [one.name for one in self.quantities if f"{name}1" in (one.name, *one.spellings)]
        if numbered:
            last = numbered[0].rstrip("0123456789")
            several = [one for one in known if one.rstrip("0123456789") == last]
            return f"'{name}' is there {len(several)} times. Which one? Known: {', '.join(several)}."
        shown = known if len(known) <= MOST_LISTED else [one for one in known if _plain(one)[:1] == _plain(name)[:1]]
        return unknown("the name", name, shown[:MOST_LISTED] or known[:MOST_LISTED])


def part(whole: AnyQuantity, target: Target) -> AnyQuantity:
    """One element, row or column of a quantity: places are labels, or counted from 1; `:` stands for all of them.

    Taken from the last axis to the first, so that an axis that falls away does not move the others.
    """
    if len(target.places) > len(whole.shape):
        held = ("one value", "a vector", "a matrix")[len(whole.shape)]
        raise InputError(f"{target}: {whole.name} is {held}; it has no place [{', '.join(target.places)}].")
    for axis in reversed(range(len(target.places))):
        if target.places[axis] != ALL:
            whole = _at(whole, axis, _place(whole.labels[axis], target.places[axis], target))
    return replace(whole, name=str(target))


def _at(whole: AnyQuantity, axis: int, place: int) -> AnyQuantity:
    labels = whole.labels[:axis] + whole.labels[axis + 1 :]
    if isinstance(whole, Quantity):
        slips = {said: made.take(place, axis) for said, made in whole.slips.items()}
        return replace(whole, values=whole.values.take(place, axis), labels=labels, slips=slips)
    return replace(whole, values=(whole.values[place],), labels=labels)


def _place(labels: Labels, place: str, target: Target) -> int:
    for number, label in enumerate(labels):
        if _plain(label) == _plain(place):
            return number
    if place.isdigit() and 1 <= int(place) <= len(labels):
        return int(place) - 1
    count = f" Or a number from 1 to {len(labels)}."
    raise InputError(f"{target}: " + unknown("the place", place, labels[:MOST_LISTED]) + count)


def _plain(name: str) -> str:
    return name.casefold().replace("_", "").replace(" ", "")


# A value as a person wrote it, held against a quantity: where is it right, and where not.


Place = tuple[int, ...]


@dataclass(frozen=True)
class Entries:
    """The numbers of a value by their place, with the decimals to which all of them are taken."""

    shape: tuple[int, ...]
    numbers: dict[Place, Given]

    @property
    def decimals(self) -> int:
        """The most decimals of any of them: a list is written to one precision, noughts at its ends left out."""
        return max((one.decimals or 0 for one in self.numbers.values()), default=0)

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


def read_entries(value: Any, against: Quantity) -> Entries:
    """The numbers of a value, which must have the shape of what it is held against, or be its transpose."""
    if isinstance(value, Table):
        return _from_table(value, against)
    numbers = dict(_flat(value, (), against))
    return Entries(_shape(value, against), numbers)


def words_of(value: Any, against: WordQuantity) -> list[tuple[int, str]]:
    """The words of a value with their places."""
    if isinstance(value, Table):
        words = {_label(against.labels, label, against.name): _text(one) for label, one in value.items.items()}
        _refuse_gaps(words, against)
        return list(words.items())
    if not against.labels:
        return [(0, _text(value))]
    if not isinstance(value, list):
        raise InputError(
            f"{against.name}: a list of words is expected, as in [{_text(value)}, …]; got '{_text(value)}'."
        )
    return [(place, _text(one)) for place, one in enumerate(value)]


def same_word(given: str, right: Sequence[str]) -> bool:
    """Whether a word is one of those that are right; blanks count once, and </w> ends a word too."""
    return _comparing_plain(given) in map(_comparing_plain, right)


def _comparing_plain(word: str) -> str:
    return " ".join(word.replace("</w>", r"\w").split())


def _text(value: Any) -> str:
    if isinstance(value, Given):
        return value.text
    return " ".join(map(_text, value)) if isinstance(value, list) else str(value)


def _flat(value: Any, place: Place, against: Quantity) -> Iterator[tuple[Place, Given]]:
    if isinstance(value, list):
        for number, one in enumerate(value):
            yield from _flat(one, (*place, number), against)
    elif isinstance(value, Given):
        yield place, value
    else:
        raise InputError(f"{against.name}: '{_text(value)[:40]}' is no number. Expected: {against.form}.")


def _shape(value: Any, against: Quantity) -> tuple[int, ...]:
    if not isinstance(value, list):
        return ()
    shapes = {_shape(one, against) for one in value}
    if len(shapes) > 1:
        raise InputError(f"{against.name}: all rows of a matrix are equally long; yours are not.")
    return (len(value), *(shapes.pop() if shapes else ()))


def _from_table(value: Table, against: Quantity) -> Entries:
    if len(against.labels) != 1:
        raise InputError(f"{against.name}: a table of labels is for a vector; {against.form} is expected here.")
    numbers: dict[Place, Given] = {}
    for label, one in value.items.items():
        given = one if isinstance(one, Given) else read_number(one)
        if given is None:
            raise InputError(f"{against.name}: {label}: '{one}' is no number.")
        numbers[(_label(against.labels, label, against.name),)] = given
    _refuse_gaps([place for (place,) in numbers], against)
    return Entries(against.shape, numbers)


def _refuse_gaps(places: Collection[int], against: AnyQuantity) -> None:
    """A table has all labels: what is left out cannot be right."""
    labels = against.labels[0] if against.labels else ("its one word",)
    missing = [label for place, label in enumerate(labels) if place not in places]
    if missing:
        raise InputError(f"{against.name}: your table leaves out {', '.join(missing[:6])}.")


def _label(labels: tuple[tuple[str, ...], ...], label: str, name: str) -> int:
    if len(labels) == 1 and "".join(label.split()) in (squeezed := ["".join(one.split()) for one in labels[0]]):
        return squeezed.index("".join(label.split()))
    known = ", ".join(labels[0]) if labels else "none"
    raise InputError(f"{name}: there is no '{label}'. Known: {known}.")


def permutation(entries: Entries, exact: Array) -> str:
    """Whether rows, or columns, stand in another order; an empty text if not."""
    if entries.shape != exact.shape or not 1 <= exact.ndim <= 2:
        return ""
    names = ("entries",) if exact.ndim == 1 else ("rows", "columns")
    for axis, name in enumerate(names):
        if _reordered(entries, exact, axis):
            return f"the {name} stand in another order"
    return ""


def _reordered(entries: Entries, exact: Array, axis: int) -> bool:
    """Every slice of the value is a slice of the exact one, each used once."""
    left = list(range(exact.shape[axis]))
    for place in range(exact.shape[axis]):
        found = next((other for other in left if _same_slice(entries, exact, axis, place, other)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _same_slice(entries: Entries, exact: Array, axis: int, place: int, other: int) -> bool:
    others = [range(size) for number, size in enumerate(exact.shape) if number != axis]
    for rest in product(*others):
        mine, theirs = ((*rest[:axis], one, *rest[axis:]) for one in (place, other))
        if not is_near(float(exact[theirs]), entries.numbers[mine], entries.decimals):
            return False
    return True


def as_array(entries: Entries) -> Array:
    """The numbers themselves."""
    made = np.zeros(entries.shape)
    for place, given in entries.numbers.items():
        made[place] = given.value
    return made


# Slips that explain a wrong value: signs, transposes, another quantity's numbers, rounding on the way.


ROUNDING = 10
"""Units of the last decimal within which a value was probably rounded on the way."""
FACTORS = {"twice": 2.0, "half": 0.5, "ten times": 10.0, "a tenth of": 0.1}


def explain(entries: Entries, right: Quantity, others: Iterable[AnyQuantity], places: tuple[str, ...]) -> str:
    """The first slip that explains a value; an empty text if none does."""
    return next(_explanations(entries, right, others, places), "")


def _explanations(
    entries: Entries, right: Quantity, others: Iterable[AnyQuantity], places: tuple[str, ...]
) -> Iterator[str]:
    exact = right.values
    if entries.fits(-exact):
        yield "the sign is the other way round."
    for said, made in right.slips.items():
        if entries.fits(made):
            yield f"{said}."
    if entries.shape == exact.T.shape and exact.ndim == 2 and entries.fits(exact.T):
        yield "transposed: rows and columns are exchanged."
    if entries.shape == exact.shape and np.ptp(as_array(entries)) > 0:
        said = permutation(entries, exact)
        yield from [f"{said}."] if said else []
    yield from _another(entries, right, others, places)
    for said, factor in FACTORS.items():
        if entries.fits(exact * factor) and np.abs(exact).max() > 0:
            yield f"yours is {said} the right value."
    yield from _rounded(entries, right)


def _another(
    entries: Entries, right: Quantity, others: Iterable[AnyQuantity], places: tuple[str, ...]
) -> Iterator[str]:
    """The numbers of another quantity of the case, at the same place."""
    for other in others:
        taken = _same_part(other, places)
        if taken is None or taken.name == right.name or taken.labels != right.labels:
            continue
        if entries.fits(taken.values) and _tells(taken.values):
            meaning = f" ({other.meaning})" if other.meaning and other.meaning != other.name else ""
            yield f"that is {taken.name}{meaning}, not {right.name}."


def _same_part(other: AnyQuantity, places: tuple[str, ...]) -> Quantity | None:
    if not isinstance(other, Quantity) or len(other.shape) < len(places):
        return None
    try:
        taken = part(other, Target(other.name, places)) if places else other
    except InputError:  # it has no such place
        return None
    return taken if isinstance(taken, Quantity) else None


def _tells(values: np.ndarray) -> bool:
    """Whether the numbers are particular enough to be recognised: not nought or one alone."""
    return bool(np.any((np.abs(values) > 1e-9) & (np.abs(values - 1) > 1e-9)))


def _rounded(entries: Entries, right: Quantity) -> Iterator[str]:
    if entries.shape != right.shape or not entries.decimals:
        return
    worst = float(np.abs(as_array(entries) - right.values).max())
    units = worst * 10**entries.decimals
    if units <= ROUNDING and worst <= 0.02 * float(np.abs(right.values).max()):
        yield f"off by at most {units:.1f} units of the last decimal: rounded on the way? Keep more decimals till then."


# Right values as a person would write them: with as many decimals as were given.


FEWEST, MOST_NUMBERS = 4, 24


def write_values(values: Array, decimals: int) -> str:
    """An array with so many decimals, noughts at the ends left out.

    >>> write_values(np.array([[0.25, -1.0]]), 3)
    '[[0.25, −1]]'
    """
    if not values.shape:
        return write_number(float(values), decimals)
    return "[" + ", ".join(write_values(one, decimals) for one in values) + "]"


def write_number(value: float, decimals: int) -> str:
    """One number, noughts at its end left out."""
    text = numeral(value, decimals)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def write_right(right: Quantity | WordQuantity, decimals: int) -> str:
    """What is right, whole if it is small."""
    if isinstance(right, WordQuantity):
        written = [" or ".join(dict.fromkeys(words[:2])) for words in right.values]
        return ", ".join(written) if right.labels else written[0]
    if np.size(right.values) > MOST_NUMBERS:
        return f"{right.form} numbers; look at the case for all of them"
    return write_values(right.values, decimals)


# What is said of a hand computation: each line right or wrong, where it differs, and the slip that explains it.


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

    def __str__(self) -> str:
        mark = "right" if self.right else "wrong"
        return "\n".join([_block(self.claim, f"{mark:<8}"), *(_block(line) for line in self.reasons())])

    def reasons(self) -> list[str]:
        """Why it is wrong, line by line; nothing if it is right."""
        if self.right:
            return []
        slip = [self.slip[:1].upper() + self.slip[1:]] if self.slip else []
        return [*self.places, *slip, f"right: {self.expected}"]


@dataclass(frozen=True)
class WorkedReport:
    """A hand computation judged line by line against a worked case."""

    case: str
    lines: tuple[JudgedClaim, ...]
    notes: tuple[str, ...] = ()
    rule: str = RULE

    @property
    def right(self) -> bool:
        """Whether every line is."""
        return all(line.right for line in self.lines)

    @property
    def exit_status(self) -> int:
        """What a command ends with: 0 if everything is right, 1 if not."""
        return 0 if self.right else 1

    def __str__(self) -> str:
        said = [*map(str, self.lines), *(_block(note, "") for note in self.notes)]
        return "\n".join([*said, _block(f"{self._sum} {self.rule}", "")])

    @property
    def _sum(self) -> str:
        count = sum(line.right for line in self.lines)
        return f"{count} of {len(self.lines)} right."

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "case": self.case,
            "right": self.right,
            "lines": [asdict(line) for line in self.lines],
            "notes": list(self.notes),
            "rule": self.rule,
        }

    def _repr_html_(self) -> str:
        return "".join(map(_as_html, self.lines)) + f"<p>{escape(f'{self._sum} {self.rule}')}</p>"


def _as_html(line: JudgedClaim) -> str:
    colour, mark = ("#17803d", "right") if line.right else ("#b42318", "wrong")
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in line.reasons())
    listed = f"<ul>{reasons}</ul>" if reasons else ""
    return f'<p><b style="color: {colour}">{mark}</b> <code>{escape(line.claim)}</code></p>{listed}'


def _block(text: str, lead: str = " " * 8) -> str:
    """Text wrapped to the width of a terminal, all lines indented alike."""
    return "\n".join(wrap(text, columns(), lead, " " * len(lead)))
