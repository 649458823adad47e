"""Checking values line by line: `NAME = VALUE`, `NAME[row, column] = VALUE`, or `NAME[…] > NAME[…]`.

A wrong value is explained by the first mistake that gives it: those that the exercise knows, a sign, a transpose,
another quantity's numbers, rounding on the way.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np

from lemma.checking.arithmetic import LOG_BASES
from lemma.checking.checked_lines import CheckedLine, CheckedLines
from lemma.checking.expected_values import Array, ExpectedValue, Labels
from lemma.checking.read_values import (
    FLOAT_TOLERANCE,
    MIN_NONZERO,
    MIN_PERCENT_VALUE,
    BareList,
    ComputedNumber,
    Entries,
    RoundedArray,
    apply_decimal_commas,
    has_decimal_commas,
    multiply,
    order_by_label,
    read_arithmetic,
    read_entries,
    read_value,
    replace_values,
    write_value,
)
from lemma.errors import InputError, describe_unknown
from lemma.report.numbers import WrittenNumber, format_short, pluralize, read_entry, read_literal
from lemma.report.text import format_table, wrap_lines

ROUNDING_RULE = (
    "A number is right if it is the exact one rounded to the decimals given; without decimals it must be exact."
)
EXAMPLE = "As in: 'alpha2[they, Ajax] = 0.119', 'c_t = [0.52, -0.34]' or 'alpha2[they, Ajax] > alpha2[they, lost]'."
MAX_LINES, MAX_CHARS, MAX_NAME_CHARS = 200, 200_000, 200
MAX_DIFFERENCES, MAX_LISTED, MAX_NUMBERS = 3, 12, 24
DEFAULT_DECIMALS = 4  # of expected numbers, where the answer has none
MIN_ZERO_DECIMALS = 3  # of a zero that stands for a small number: 0.000 for 0.0001
MAX_ROUNDING_UNITS = 10  # units of the last decimal within which a value was probably rounded on the way
MAX_COARSE_ERROR = 0.05  # of a value with one digit, within which a mistake explains it
MAX_SLACK = 0.1  # of the distance between a mistake and the right value
FACTORS = {"twice": 2.0, "half": 0.5, "ten times": 10.0, "a tenth of": 0.1}
GREEK_NAMES = dict(
    zip(
        "αβγδεζηθικλμνξπρστφχψω",
        [
            "alpha",
            "beta",
            "gamma",
            "delta",
            "epsilon",
            "zeta",
            "eta",
            "theta",
            "iota",
            "kappa",
            "lambda",
            "mu",
            "nu",
            "xi",
            "pi",
            "rho",
            "sigma",
            "tau",
            "phi",
            "chi",
            "psi",
            "omega",
        ],
        strict=True,
    )
)
_SYMBOL = r"</?\w+>|->"  # a symbol or arrow in a name, as in P(I | <s>)
_LINE = re.compile(
    rf"(?P<left>(?:{_SYMBOL}|[^=<>≈()]|\([^()]{{0,100}}\)|[()])+?)\s*(?P<sign>==?|<|>|≈)\s*(?P<right>.+)", re.DOTALL
)
_TARGET = re.compile(r"(?P<name>[^\[\]]+?)\s*(?:\[(?P<labels>[^\[\]]*)\])?")
_LATEX_STYLE = re.compile(r"\\(?:text|mathrm|mathit|mathbf|boldsymbol|operatorname|left|right|[,;!])(?![a-z])\s*")
_HAT = re.compile(r"\\(?:hat|widehat)\s*\{([^{}]*)\}")


def check_lines(
    name: str,
    lines: Sequence[str],
    answer_keys: Callable[[Sequence["ValueClaim"]], Iterable["AnswerKey"]],
    heading: str = "",
    notes: tuple[str, ...] = (),
    show_solution: bool = False,
) -> "ValueReport":
    """Return a report on lines `NAME = VALUE`.

    Args:
        name: of the exercise, for the report and errors.
        lines: the answer; an item may hold several lines.
        answer_keys: returns the answer keys for some claims; several where different answers are right. The one that
            the answer fits best counts.
        heading: title of the report.
        notes: notes on all lines.
        show_solution: whether wrong lines show what is right.
    """
    if sum(map(len, lines)) > MAX_CHARS:
        raise InputError(f"{name}: the lines have more than {MAX_CHARS:,} characters. Check them in smaller parts.")
    claims = [read_claim(line) for text in lines for line in text.splitlines() if line.strip()]
    if not claims or len(claims) > MAX_LINES:
        raise InputError(f"{name}: from 1 to {MAX_LINES} lines are expected, got {len(claims)}.")
    best: tuple[ValueLine, ...] = ()
    for key in answer_keys(claims):
        checked = tuple(_check_line(claim, key) for claim in claims)
        if not best or sum(line.right for line in checked) > sum(line.right for line in best):
            best = checked
        if all(line.right for line in best):
            break
    if show_solution:
        best = tuple(replace(line, shows_solution=True) for line in best)
    return ValueReport(name, best, notes, heading)


def describe_values(expected: Sequence[ExpectedValue]) -> str:
    """Return a table of the names that an answer may claim, with shapes and meanings but no values."""
    first = [value for value in expected if not value.name.startswith("sentence")]
    lines = format_table([(value.name, value.shape_text, value.meaning) for value in first], left=(0, 1, 2))
    if len(first) < len(expected):
        lines.append(f"sentence2.{first[0].name} and so on: the same of the second sentence.")
    axes = dict.fromkeys(", ".join(axis) for value in expected for axis in value.labels)
    labels = [f"  {axis}" for axis in axes if not axis[:1].isdigit()][:6]
    if labels:
        lines += ["", "Rows and columns by these labels, or counted from 1:", *labels]
    return wrap_lines("\n".join(lines))


@dataclass(frozen=True)
class ValueLine(CheckedLine):
    """A line that claims a value, whether it is right, and what is right.

    Attributes:
        expected: the right value, as in "c_t = [0.52, −0.34]", rounded like the answer.
        wrong_entries: labels of the entries that differ, as in "they, Ajax".
        differences: texts on the first of them, with the right numbers.
        mistake: a sentence on the mistake that explains the difference; "" if none does.
        reading: how the value was read, where that is not obvious.
        shows_solution: whether the right value is printed.
    """

    text: str
    right: bool
    expected: str
    differences: tuple[str, ...] = ()
    mistake: str = ""
    wrong_entries: tuple[str, ...] = ()
    reading: str = ""
    shows_solution: bool = False

    @property
    def outcome(self) -> Literal["right", "wrong"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The field `right` as a word."""
        return "right" if self.right else "wrong"

    @property
    def notes(self) -> list[str]:
        """The texts below a line: how it was read, which entries are wrong, the likely mistake, the right value."""
        reading = [f"read as {self.reading}"] if self.reading else []
        if self.right:
            return reading
        mistake = [self.mistake[:1].upper() + self.mistake[1:]] if self.mistake else []
        if self.shows_solution:
            return [*reading, *self.differences, *mistake, f"right: {self.expected}"]
        listed = ", ".join(f"[{entry}]" for entry in self.wrong_entries[:MAX_DIFFERENCES])
        more = len(self.wrong_entries) - MAX_DIFFERENCES
        positions = [f"wrong at {listed}{f' and {more} more' if more > 0 else ''}"] if listed else []
        hidden = [] if self.wrong_entries else list(self.differences)
        return [*reading, *positions, *hidden, *mistake]

    @property
    def correction(self) -> str:
        """The mistake and the right value, in one paragraph."""
        return " ".join(replace(self, shows_solution=True).notes)

    def to_dict(self) -> dict[str, Any]:
        """Return the claim and the other fields as plain values for JSON; what is right only with the solution."""
        solution = {"expected": self.expected, "differences": list(self.differences)} if self.shows_solution else {}
        entries = {"wrong_entries": list(self.wrong_entries)} if self.wrong_entries else {}
        return {"claim": self.text, "right": self.right, **solution, **entries, "mistake": self.mistake}


@dataclass(frozen=True)
class ValueReport(CheckedLines[ValueLine]):
    """Named values of an answer, checked line by line."""

    keys = ("case", "lines")
    topic = "values"

    heading: str = ""

    @property
    def title(self) -> str:
        """The title, such as "A hand computation of e9"."""
        return self.heading or f"An answer to {self.name}"

    def to_dict(self) -> dict[str, Any]:
        """Return the report, its notes and the rounding rule as plain values for JSON."""
        return super().to_dict() | {"notes": list(self.notes), "rule": ROUNDING_RULE}


# Claims


@dataclass(frozen=True)
class Target:
    """The left side of a claim: the name of a quantity, and the labels of an element or row if it is about one."""

    name: str
    labels: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(self.labels)}]" if self.labels else self.name


@dataclass(frozen=True)
class ValueClaim:
    """A line of a hand computation: a target, a sign, and as text a value or, after < and >, another target."""

    text: str
    target: Target
    sign: str
    value_text: str

    @cached_property
    def value(self) -> Any:
        """The right side, parsed: a WrittenNumber, a word, a list of these, or a dict of these by label."""
        return read_value(self.value_text)


def read_claim(text: str) -> ValueClaim:
    """Parse a line of a hand computation: its target, sign and value.

    >>> read_claim("alpha2[they, Ajax] = 0.119").target
    Target(name='alpha2', labels=('they', 'Ajax'))
    """
    line = " ".join(text.split())
    match = _LINE.fullmatch(line)
    if not match or len(match["left"]) > MAX_NAME_CHARS:
        raise InputError(f"'{line[:60]}' is not a claim: NAME = VALUE is expected. {EXAMPLE}")
    value = match["right"].strip()
    if match["sign"] == "≈" and value[:1].isdigit():
        value = f"≈ {value}"
    sign = "=" if match["sign"] in ("==", "≈") else match["sign"]
    return ValueClaim(line, read_target(match["left"]), sign, value)


def read_target(text: str) -> Target:
    """Parse the name of a quantity with any labels in brackets, such as alpha2[they, Ajax].

    >>> str(read_target("P[image 1,2]"))
    'P[image 1, 2]'
    """
    match = _TARGET.fullmatch(text.strip())
    if not match:
        raise InputError(f"'{text.strip()[:60]}' is not the name of a quantity. {EXAMPLE}")
    labels = tuple(label.strip() for label in match["labels"].split(",")) if match["labels"] else ()
    if "" in labels:
        raise InputError(f"'{text.strip()[:60]}': a row or column is missing between the brackets. {EXAMPLE}")
    return Target(match["name"].strip(), labels)


@dataclass(frozen=True)
class AnswerKey:
    """The right values of an exercise.

    Attributes:
        name: of the exercise, for errors.
        expected: the values that `--names` lists.
        find_more: returns a value by a name that is not listed, such as the probability of any sentence, or None.
        explain_absence: returns the text that is right and the reason where a name cannot exist, or None.
        names_command: the command that lists all names.
    """

    name: str
    expected: Sequence[ExpectedValue]
    find_more: Callable[[str], ExpectedValue | None] = lambda name: None
    explain_absence: Callable[[str], tuple[str, str] | None] = lambda name: None
    names_command: str = ""

    @cached_property
    def _by_normalized_name(self) -> dict[str, list[ExpectedValue]]:
        """The expected values by normalized name and alias; several where these coincide."""
        values: dict[str, list[ExpectedValue]] = {}
        for value in self.expected:
            for name in {normalize_name(name) for name in (value.name, *value.aliases)}:
                values.setdefault(name, []).append(value)
        return values

    def find(self, target: Target) -> ExpectedValue:
        """Return the right value of a target, found by exact name, then without regard to case, blanks and _."""
        name = target.name
        similar = self._by_normalized_name.get(normalize_name(name), [])
        exact = next((value for value in similar if name in (value.name, *value.aliases)), None)
        if value := exact or (similar[0] if len(similar) == 1 else self.find_more(name)):
            return select_part(value, target)
        names = [value.name for value in self.expected]
        first = normalize_name(f"{name}1")
        numbered = [value.name for value in self.expected if first in map(normalize_name, (value.name, *value.aliases))]
        if (
            numbered
            and numbered[0].endswith("1")
            and not any(normalize_name(other) == normalize_name(f"{numbered[0][:-1]}2") for other in names)
        ):
            return select_part(self.find(Target(numbered[0])), target)
        if numbered:
            stem = numbered[0].rstrip("0123456789")
            same = [other for other in names if other.rstrip("0123456789") == stem]
            message = f"'{name}' is there {len(same)} times. Which one? Choices: {', '.join(same)}."
        else:
            if len(names) > MAX_LISTED:
                names = [other for other in names if normalize_name(other)[:1] == normalize_name(name)[:1]] or names
            message = describe_unknown("name", name, names[:MAX_LISTED])
        command = f" All names: {self.names_command}" if self.names_command else ""
        raise InputError(f"{self.name}: {message}{command}")


def select_part(value: ExpectedValue, target: Target) -> ExpectedValue:
    """Return the part of a value that a target selects by a label, or number from 1, on each axis; `:` is all."""
    if not target.labels:
        return value
    if len(target.labels) > len(value.shape):
        kind = ("one value", "a vector", "a matrix")[len(value.shape)]
        raise InputError(f"{target}: {value.name} is {kind}; it has no entry [{', '.join(target.labels)}].")
    for axis in reversed(range(len(target.labels))):  # from the last: removing an axis moves no other
        if target.labels[axis] == ":":
            continue
        index = _find_label(target, target.labels[axis], value.labels[axis])
        labels = value.labels[:axis] + value.labels[axis + 1 :]
        if value.is_numeric:
            mistakes = {name: array.take(index, axis) for name, array in value.mistakes.items()}
            value = replace(value, values=value.values.take(index, axis), labels=labels, mistakes=mistakes)
        else:
            mistakes = {name: (words[index],) for name, words in value.mistakes.items() if index < len(words)}
            value = replace(value, values=(value.values[index],), labels=labels, mistakes=mistakes)
    return replace(value, name=str(target))


def _find_label(target: Target, label: str, labels: Sequence[str]) -> int:
    """Return the index of a label, or number from 1, among the labels of an axis; errors name the target."""
    for standardize in (str, normalize_name):
        for index, name in enumerate(labels):
            if standardize(name) == standardize(label):
                return index
    if not label.isdigit() or not 1 <= int(label) <= len(labels):
        message = describe_unknown("row or column", label, labels[:MAX_LISTED])
        raise InputError(f"{target}: {message} Or a number from 1 to {len(labels)}.")
    return int(label) - 1


def normalize_name(name: str) -> str:
    r"""Return a name for comparison: in lower case, without blanks, underscores, braces and the commands of LaTeX.

    >>> normalize_name(r"P(\text{am} \mid I)"), normalize_name(r"\hat{\theta}_1"), normalize_name("θ̂₁")
    ('p(am|i)', 'thetahat1', 'thetahat1')
    """
    text = _HAT.sub(r"\1hat", unicodedata.normalize("NFKD", name.strip().strip("$")))
    text = "".join(GREEK_NAMES.get(character, character) for character in text).replace(
        "\N{COMBINING CIRCUMFLEX ACCENT}", "hat"
    )
    text = _LATEX_STYLE.sub("", text).replace("\\mid", "|").replace("\\", "")
    return re.sub(r"[\s_{}“”\"]", "", text.casefold())


def _check_line(claim: ValueClaim, key: AnswerKey) -> ValueLine:
    """Compare a line of an answer with the right values; return it with its outcome."""
    if absence := key.explain_absence(claim.target.name):
        solution, reason = absence
        return ValueLine(claim.text, False, solution, (reason,))
    expected = key.find(claim.target)
    if claim.sign != "=":
        return _check_order(claim, expected, key)
    if expected.is_numeric:
        return _check_numbers(claim, expected, key)
    return _check_words(claim, expected)


def _check_order(claim: ValueClaim, expected: ExpectedValue, key: AnswerKey) -> ValueLine:
    """Check a line such as alpha2[they, Ajax] > alpha2[they, Juventus]; `expected` is the value of its left side."""
    number, left = read_entry(claim.value_text) or read_arithmetic(claim.value_text), _single_number(expected)
    right = float(number.value) if number else _single_number(key.find(read_target(claim.value_text)))
    holds = left > right + 1e-12 if claim.sign == ">" else left < right - 1e-12
    other = claim.value_text if number else f"{claim.value_text} = {format_short(right, DEFAULT_DECIMALS)}"
    return ValueLine(claim.text, holds, f"{expected.name} = {format_short(left, DEFAULT_DECIMALS)}, {other}")


def _single_number(expected: ExpectedValue) -> float:
    """Return the right value as a float; raise an InputError if it is not a single number."""
    if not expected.is_numeric or expected.shape:
        raise InputError(f"{expected.name}: < and > are for single numbers, as in alpha2[they, Ajax] > 0.1.")
    return float(expected.values)


def _match_dimensions(expected: ExpectedValue, value: Any) -> ExpectedValue:
    """Return the expected value, reshaped like the parsed answer `value` if only axes of length 1 differ.

    A matrix of one row or column may be written as a vector, a vector as such a matrix, a number in brackets.
    """
    depth = 1 if isinstance(value, dict) else 0
    first, sizes = value, list[int]()
    while isinstance(first, list) and first:
        sizes.append(len(first))
        first, depth = first[0], depth + 1
    labels = [axis for axis in expected.labels if len(axis) != 1]
    if depth == len(expected.labels) or len(labels) > depth:
        return expected
    while len(labels) < depth:  # insert axes of length 1 where the answer has them
        index = next((axis for axis, size in enumerate(sizes) if size == 1), len(labels))
        labels.insert(min(index, len(labels)), ("1",))
        sizes = [size if axis != index else 0 for axis, size in enumerate(sizes)]
    shape = tuple(map(len, labels))
    mistakes = {name: array.reshape(shape) for name, array in expected.mistakes.items()}
    return replace(expected, values=np.reshape(expected.values, shape), labels=tuple(labels), mistakes=mistakes)


def _check_numbers(claim: ValueClaim, expected: ExpectedValue, key: AnswerKey) -> ValueLine:
    """Compare the numbers of a line with the right ones; a wrong line gets its differences and a likely mistake."""
    entries, expected = _read_numbers(claim, expected)
    if "transposition" in expected.up_to and entries.shape == expected.shape[::-1] != expected.shape:
        entries = entries.T
    answer = RoundedArray.from_entries(entries)
    decimals = answer.decimals or DEFAULT_DECIMALS
    if np.size(expected.values) > MAX_NUMBERS:
        solution = f"{expected.shape_text} numbers; look at the case for all of them"
    else:
        solution = format_values(expected.values, decimals)
    solution = f"{expected.name} = {solution}"
    if entries.shape != expected.shape:
        shape = "×".join(map(str, entries.shape)) or "one number"
        difference = f"{shape} given, {expected.shape_text} expected"
        return ValueLine(claim.text, False, solution, (difference,), next(explain_difference(answer, expected), ""))
    computed = [number for number in entries.flat if isinstance(number, ComputedNumber)]
    notes = list(dict.fromkeys(number.reading for number in computed if number.reading))[:MAX_DIFFERENCES]
    wrong_steps = [step for number in computed for step in number.wrong_steps]
    if reading := accepted_reading(answer, expected):
        if wrong_steps:
            mistake = f"the result is right, but the arithmetic {wrong_steps[0]}."
            return ValueLine(claim.text, False, solution, (), mistake, reading="; ".join(notes))
        return ValueLine(claim.text, True, solution, reading="; ".join(filter(None, [*notes, reading.strip()])))
    if not entries.shape:
        reject_ambiguous_separator(entries.item(), expected)
    wrong = [tuple(map(int, index)) for index in np.argwhere(~answer.is_close(expected.values))]
    differences: list[str] = []
    if expected.shape:  # for a single number the solution says enough
        for index in wrong[:MAX_DIFFERENCES]:
            labels = ", ".join(axis[i] for axis, i in zip(expected.labels, index, strict=True))
            exact = format_values(expected.values[index], decimals)
            differences.append(f"[{labels}]: {entries[index].text} given, {exact} is right")
        more = len(wrong) - len(differences)
        differences += [f"and {more} more"] if more else []
    if wrong_steps:
        exact = RoundedArray.from_entries(replace_values(entries))
        start = "the formula is right, but the arithmetic" if exact.matches(expected.values) else "the arithmetic"
        mistake = f"{start} {wrong_steps[0]}."
    else:
        mistake = next(explain_difference(answer, expected, key.expected, claim.target.labels), "")
    entry_labels = [", ".join(axis[i] for axis, i in zip(expected.labels, index, strict=True)) for index in wrong]
    entry_texts = tuple(filter(None, entry_labels))
    return ValueLine(claim.text, False, solution, tuple(differences), mistake, entry_texts, "; ".join(notes))


def _read_numbers(claim: ValueClaim, expected: ExpectedValue) -> tuple[Entries, ExpectedValue]:
    """Return the numbers of a line, and the right ones in the shape in which they are written.

    Where the line leaves something open, the reading that is right is taken: the base of a logarithm, commas as
    decimal commas, and a percent sign where the right value is in per cent itself.
    """

    def read(value: Any, log_base: float | None = None) -> tuple[Entries, ExpectedValue]:
        if isinstance(value, BareList) and not expected.shape:  # 0,5 and 9,721,596 as one number
            number = read_arithmetic(value.text, expected, log_base)
            if number is not None:
                return np.array(number, dtype=object), expected
        matched = _match_dimensions(expected, value)
        return read_entries(value, matched, log_base), matched

    def is_right(entries: Entries, matched: ExpectedValue) -> bool:
        answer = RoundedArray.from_entries(entries)
        return entries.shape == matched.shape and bool(accepted_reading(answer, matched))

    try:
        first = read(claim.value)
    except InputError:
        if not has_decimal_commas(claim.value_text):
            raise
        first = read(read_value(apply_decimal_commas(claim.value_text)))
    entries, matched = first
    if is_right(entries, matched):
        return first
    if entries.shape != matched.shape and has_decimal_commas(claim.value_text):
        with suppress(InputError):
            text = apply_decimal_commas(claim.value_text)
            other = read(read_value(text if text[0] in "[({" or not matched.shape else f"[{text}]"))
            if other[0].shape == other[1].shape:
                return other
    if any(isinstance(number, ComputedNumber) and number.has_free_log for number in entries.flat):
        alternatives = [read(claim.value, base) for base in LOG_BASES[1:]]
        first = next((other for other in alternatives if is_right(*other)), first)
    is_percent = entries.shape == matched.shape and any(number.is_percent for number in entries.flat)
    if is_percent and np.abs(matched.values).max() > MIN_PERCENT_VALUE:
        scaled = np.array([multiply(number, 100) for number in entries.flat], dtype=object).reshape(entries.shape)
        first = (scaled, matched) if is_right(scaled, matched) else first
    return first


def reject_ambiguous_separator(number: WrittenNumber, expected: ExpectedValue) -> None:
    """Raise an InputError if a number such as 1,537 is right only where its comma means the other thing."""
    number = read_literal(number.text) or number
    if number.alternative is None:
        return
    unit = Fraction(1, 1000) if number.alternative < number.value else Fraction(0)
    other = WrittenNumber(number.text, number.alternative, unit, 3 if unit else 0)
    if RoundedArray.from_entries(np.array(other, dtype=object)).matches(expected.values):
        raise number.make_separator_question()


def accepted_reading(answer: RoundedArray, expected: ExpectedValue) -> str:
    """Return how the numbers of an answer are right: " " as they are, or a phrase such as "in per cent"; else "".

    A value may be right in another unit (`scales`), or up to sign, scale, order or transposition (`up_to`).
    """
    exact, values = expected.values, answer.values
    is_zero = exact.ndim == 0 and values.ndim == 0 and float(values) == 0
    if is_zero and answer.decimals < MIN_ZERO_DECIMALS and abs(float(exact)) > MIN_NONZERO:
        return ""  # 0.00 says nothing about a small number
    if answer.matches(exact):
        is_exact = np.allclose(values, exact, rtol=1e-9, atol=FLOAT_TOLERANCE)
        is_mistake = (
            wrong.shape == values.shape and np.allclose(values, wrong, rtol=1e-9, atol=FLOAT_TOLERANCE)
            for wrong in expected.mistakes.values()
        )
        # with one decimal, a mistake may be what the right value would be rounded to: 0.4 for 4/9
        return "" if answer.decimals <= 1 and not is_exact and any(is_mistake) else " "
    is_rounded_integer = "decimals" in expected.up_to and is_rounded_to_integer(answer, exact)
    if is_rounded_integer and not any(answer.matches(wrong) for wrong in expected.mistakes.values()):
        return "rounded to a whole number"
    for scale, unit in expected.scales.items():
        if answer.matches(exact * scale):
            return unit
    if "sign" in expected.up_to and answer.matches(-exact):
        return "the same up to its sign"
    if "transposition" in expected.up_to and exact.ndim == 2 and answer.matches(exact.T):
        return "the same transposed"
    if "order" in expected.up_to and exact.ndim and values.shape == exact.shape and answer.matches_reordered(exact, 0):
        return "the same in another order"
    if "scale" in expected.up_to and values.shape == exact.shape and np.abs(exact).max() > 0:
        index = np.unravel_index(np.abs(exact).argmax(), exact.shape)
        factor = values[index] / exact[index]
        if factor and ("sign" in expected.up_to or factor > 0) and answer.matches(exact * factor):
            return f"the same times {factor:.4g}"
    return ""


def is_rounded_to_integer(answer: RoundedArray, exact: Array) -> bool:
    """Return whether an answer is a whole number of two or more digits to which the exact one rounds."""
    if exact.ndim or answer.values.ndim or answer.units.any():
        return False
    number = float(answer.values)
    return number.is_integer() and abs(number) >= 10 and abs(number - float(exact)) <= 0.5 + FLOAT_TOLERANCE


def _check_words(claim: ValueClaim, expected: ExpectedValue) -> ValueLine:
    """Compare the words of a line with the right ones; a wrong line gets the entries that differ."""
    value = claim.value
    solutions = [" or ".join(dict.fromkeys(words[:2])) for words in expected.values]
    solution = f"{expected.name} = {', '.join(solutions) if expected.labels else solutions[0]}"
    words = _read_words(value, expected)
    normalize_word = expected.normalize
    normalized = [normalize_word(word) for word in words]
    accepted = [tuple(map(normalize_word, alternatives)) for alternatives in expected.values]
    mistake = next(
        (name for name, wrong in expected.mistakes.items() if [normalize_word(word) for word in wrong] == normalized),
        "",
    )
    mistake = f"{mistake}." if mistake else ""
    if len(words) != len(accepted):
        difference = f"{len(words)} given, {pluralize(len(accepted), 'word')} expected"
        return ValueLine(claim.text, False, solution, (difference,), mistake)
    if "order" in expected.up_to and sorted(normalized) == sorted(words[0] for words in accepted):
        return ValueLine(claim.text, True, solution)
    wrong = [index for index, word in enumerate(normalized) if word not in accepted[index]]
    labels = expected.labels[0] if expected.labels else ()
    differences = [f"[{labels[index]}]: {words[index]} given, {solutions[index]} is right" for index in wrong if labels]
    entries = tuple(labels[index] for index in wrong) if labels else ()
    return ValueLine(claim.text, not wrong, solution, tuple(differences[:MAX_DIFFERENCES]), mistake, entries)


def _read_words(value: Any, expected: ExpectedValue) -> list[str]:
    """Return the words of a parsed answer in the order of the expected labels."""
    if isinstance(value, dict):
        return [write_value(word) for word in order_by_label(value, expected)]
    if isinstance(value, list) and expected.labels:
        return list(map(write_value, value))
    if not expected.labels or len(expected.values) == 1:
        return [write_value(value)]
    words = write_value(value).replace("→", " ").replace("->", " ").split()  # a path, as in H → H → C
    if len(words) > 1:
        return words
    raise InputError(f"{expected.name}: a list of words is expected, as in [{words[0]}, …]; got '{words[0]}'.")


def explain_difference(
    answer: RoundedArray, expected: ExpectedValue, other_values: Iterable[ExpectedValue] = (), labels: Labels = ()
) -> Iterator[str]:
    """Yield sentences such as "the sign is wrong." on each mistake that gives the wrong numbers, the most likely first.

    Args:
        answer: the numbers given for `expected`, with the decimals to which they are written.
        other_values: other quantities of the case, whose numbers may have been given instead.
        labels: the element or row that the claim is about, as in c_t[1], to select in `other_values`.
    """
    exact, values = expected.values, answer.values

    # one digit fits almost any number: 0.1 says little about 0.085
    is_coarse = not values.ndim and 0 < abs(float(values)) < 9.5 * float(answer.units)

    def fits(array: Array) -> bool:
        is_close = not is_coarse or abs(float(np.max(values - array))) <= MAX_COARSE_ERROR * abs(float(values))
        return answer.matches(array) and is_close

    def matches(array: Array) -> bool:
        if fits(array):
            return True
        if is_coarse:
            return False
        # a value that was rounded on the way must be much closer to the mistake than the mistake is to the right value
        is_close = answer.matches(array, slack=1.0) and exact.shape == array.shape
        return is_close and float(np.abs(values - array).max()) <= MAX_SLACK * float(np.abs(array - exact).max())

    if np.any(values) and matches(-exact):
        yield "the sign is wrong."
    different = {
        name: array for name, array in expected.mistakes.items() if not np.allclose(array, exact, rtol=1e-9, atol=0)
    }
    equal = {
        name
        for name, array in different.items()
        if array.shape == values.shape and np.allclose(array, values, rtol=1e-9, atol=FLOAT_TOLERANCE)
    }
    close = sorted((name for name, array in different.items() if fits(array)), key=lambda name: name not in equal)
    if answer.decimals > 1:  # with one decimal, a further unit would fit almost any number
        close += [name for name, array in different.items() if name not in close and matches(array)]
    for name in close:
        yield f"{name}."
    if exact.ndim == 2 and matches(exact.T):
        yield "transposed: rows and columns are exchanged."
    if values.shape == exact.shape and np.ptp(values) > 0:
        for axis, name in enumerate({1: ("entries",), 2: ("rows", "columns")}.get(exact.ndim, ())):
            if answer.matches_reordered(exact, axis):
                yield f"the {name} are in another order."
    for other in other_values:
        try:
            part = select_part(other, Target(other.name, labels))
        except InputError:  # it has no such element
            continue
        if not part.is_numeric or part.name == expected.name or part.labels != expected.labels:
            continue
        # zeros and ones alone could be anything
        differs = np.any((np.abs(part.values) > 1e-9) & (np.abs(part.values - 1) > 1e-9))
        if matches(part.values) and differs and is_telling(answer):
            meaning = f" ({other.meaning})" if other.meaning and other.meaning != other.name else ""
            yield f"that is {part.name}{meaning}, not {expected.name}."
    for name, factor in FACTORS.items():
        if matches(exact * factor) and np.abs(exact).max() > 0 and is_telling(answer):
            yield f"yours is {name} the right value."
    if values.shape == exact.shape and answer.decimals:
        worst = float(np.abs(values - exact).max())
        units = worst * 10**answer.decimals
        if units <= MAX_ROUNDING_UNITS and worst <= 0.02 * float(np.abs(exact).max()):
            error = f"off by at most {units:.1f} units of the last decimal"
            yield f"{error}: rounded on the way? Keep more decimals until the end."


def is_telling(answer: RoundedArray) -> bool:
    """Return whether numbers are enough to recognize a quantity: two significant digits, or two entries that differ."""
    units = np.round(np.abs(np.atleast_1d(answer.values)) * 10.0**answer.decimals)
    return bool(units.max(initial=0) >= 10) or len({*units.ravel().tolist()}) > 1


def format_values(values: Array, decimals: int) -> str:
    """Write an array as nested lists in text, with at most this many decimals and no final zeros.

    >>> format_values(np.array([[0.25, -1.0]]), 3)
    '[[0.25, −1]]'
    """
    if np.ndim(values):
        return "[" + ", ".join(format_values(value, decimals) for value in values) + "]"
    return format_short(float(values), decimals)
