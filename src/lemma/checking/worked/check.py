"""Checking a hand computation, line by line, against a worked case.

A line is `NAME = VALUE`, `NAME[row, column] = VALUE`, or one number next to another: `NAME[…] > NAME[…]`. A wrong value
is explained by the first common mistake that gives it: a sign, a transpose, another quantity's numbers.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from shlex import quote
from string import ascii_uppercase
from typing import Any, Literal

import numpy as np

from lemma.checking.checked_lines import CheckedLine, CheckedLines
from lemma.checking.worked.attention import work_attention, work_cross_attention
from lemma.checking.worked.bpe import MAX_ORDERS, MAX_SMALL_CHARS, expected_byte_pairs, normalize_symbols
from lemma.checking.worked.case import (
    KIND_FIELDS,
    Array,
    CaseLike,
    ExpectedValue,
    Labels,
    detect_kind,
    list_examples,
)
from lemma.checking.worked.graph import TABLE_SUFFIXES, work_graph
from lemma.checking.worked.lstm import work_lstm
from lemma.checking.worked.matching import work_matching
from lemma.checking.worked.values import (
    RoundedArray,
    order_by_label,
    read_entries,
    read_value,
    write_value,
)
from lemma.errors import InputError, SpecError, describe_unknown
from lemma.report.numbers import format_short, read_entry
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
MAX_LINES, MAX_CHARS, MAX_NAME_CHARS = 200, 200_000, 200
MAX_DIFFERENCES, MAX_LISTED, MAX_NUMBERS = 3, 12, 24
DEFAULT_DECIMALS = 4  # of expected numbers, where the answer has none
MAX_ROUNDING_UNITS = 10  # units of the last decimal within which a value was probably rounded on the way
FACTORS = {"twice": 2.0, "half": 0.5, "ten times": 10.0, "a tenth of": 0.1}
_LINE = re.compile(r"(?P<left>[^=<>≈]+?)\s*(?P<sign>==?|<|>|≈)\s*(?P<right>.+)", re.DOTALL)
_TARGET = re.compile(r"(?P<name>[^\[\]]+?)\s*(?:\[(?P<labels>[^\[\]]*)\])?")
_BPE_STEP = re.compile(r"(merge|counts?)(\d{1,4})")


def check_worked(case: CaseLike, lines: Sequence[str]) -> "WorkedReport":
    """Return a report on lines `NAME = VALUE` of a hand computation, compared with a worked case.

    Args:
        case: the name of an example, a TOML file, a mapping of fields, or "bpe:TEXT".
        lines: the answer; an item may hold several lines.

    >>> check_worked("e9", ["c_t = [0.52, -0.34]", "h_t[1] = 0.364"]).lines[1].mistake
    'tanh is left out: Γ_o∗c_t.'
    """
    if sum(map(len, lines)) > MAX_CHARS:
        raise InputError(
            f"check worked: the lines have more than {MAX_CHARS:,} characters. Check them in smaller parts."
        )
    claims = [read_claim(line) for text in lines for line in text.splitlines() if line.strip()]
    if not claims or len(claims) > MAX_LINES:
        raise InputError(f"check worked: from 1 to {MAX_LINES} lines are expected, got {len(claims)}.")
    best: tuple[WorkedLine, ...] = ()
    for key in answer_keys(case, claims):
        checked = tuple(_check_line(claim, key) for claim in claims)
        if not best or sum(line.right for line in checked) > sum(line.right for line in best):
            best = checked
        if all(line.right for line in best):
            break
    name = case if isinstance(case, str) else "the case"
    return WorkedReport(name, best, (TIE_NOTE,) if name.startswith(BPE_PREFIX) else ())


def describe_worked(case: CaseLike) -> str:
    """Return a table of every name that an answer may claim, with its shape and meaning but no values."""
    if isinstance(case, str) and case.startswith(BPE_PREFIX):
        return BPE_NAMES
    expected = next(answer_keys(case)).expected
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
class WorkedLine(CheckedLine):
    """A line of a hand computation, whether it is right, and what is right.

    Attributes:
        expected: the right value, as in "c_t = [0.52, −0.34]", rounded like the answer.
        differences: texts on the first entries that differ.
        mistake: a sentence on the mistake that explains the difference; "" if none does.
    """

    text: str
    right: bool
    expected: str
    differences: tuple[str, ...] = ()
    mistake: str = ""

    @property
    def outcome(self) -> Literal["right", "wrong"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The field `right` as a word."""
        return "right" if self.right else "wrong"

    @property
    def notes(self) -> list[str]:
        """The texts below a wrong line: the differences, the likely mistake and the right value."""
        if self.right:
            return []
        mistake = [self.mistake[:1].upper() + self.mistake[1:]] if self.mistake else []
        return [*self.differences, *mistake, f"right: {self.expected}"]

    def to_dict(self) -> dict[str, Any]:
        """Return the claim and the other fields as plain values for JSON."""
        names = ("right", "expected", "differences", "mistake")
        return {"claim": self.text, **{name: getattr(self, name) for name in names}}


class WorkedReport(CheckedLines[WorkedLine]):
    """A hand computation checked line by line against a worked case."""

    keys = ("case", "lines")

    @property
    def title(self) -> str:
        """The title, such as "A hand computation of e9"."""
        return f"A hand computation of {self.name}"

    @property
    def summary(self) -> str:
        """The number of right lines, and the rule by which a rounded number is right."""
        return f"{super().summary} {ROUNDING_RULE}"

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
class HandClaim:
    """A line of a hand computation: a target, a sign, and as text a value or, after < and >, another target."""

    text: str
    target: Target
    sign: str
    value_text: str

    @cached_property
    def value(self) -> Any:
        """The right side, parsed: a WrittenNumber, a word, a list of these, or a dict of these by label."""
        return read_value(self.value_text)


def read_claim(text: str) -> HandClaim:
    """Parse a line of a hand computation: its target, sign and value.

    >>> read_claim("alpha2[they, Ajax] = 0.119").target
    Target(name='alpha2', labels=('they', 'Ajax'))
    """
    line = " ".join(text.split())
    match = _LINE.fullmatch(line)
    if not match or len(match["left"]) > MAX_NAME_CHARS:
        raise InputError(f"'{line[:60]}' is not a claim: NAME = VALUE is expected. {EXAMPLE}")
    sign = "=" if match["sign"] in ("==", "≈") else match["sign"]
    return HandClaim(line, read_target(match["left"]), sign, match["right"].strip())


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


# What is right


@dataclass(frozen=True)
class AnswerKey:
    """The right values of a case; `merges` is the number of merges of byte-pair encoding, None for other cases."""

    case: str
    expected: Sequence[ExpectedValue]
    merges: int | None = None

    @cached_property
    def _by_normalized_name(self) -> dict[str, list[ExpectedValue]]:
        """The expected values by `_normalize`d name and alias; several where these coincide."""
        values: dict[str, list[ExpectedValue]] = {}
        for value in self.expected:
            for name in {_normalize(name) for name in (value.name, *value.aliases)}:
                values.setdefault(name, []).append(value)
        return values

    def find(self, target: Target) -> ExpectedValue:
        """Return the right value of a target, found by exact name, then without regard to case, blanks and _."""
        name = target.name
        similar = self._by_normalized_name.get(_normalize(name), [])
        exact = next((value for value in similar if name in (value.name, *value.aliases)), None)
        if exact or len(similar) == 1:
            return select_part(exact or similar[0], target)
        names = [value.name for value in self.expected]
        numbered = [value.name for value in self.expected if f"{name}1" in (value.name, *value.aliases)]
        if numbered:
            stem = numbered[0].rstrip("0123456789")
            same = [other for other in names if other.rstrip("0123456789") == stem]
            message = f"'{name}' is there {len(same)} times. Which one? Choices: {', '.join(same)}."
        else:
            if len(names) > MAX_LISTED:
                names = [other for other in names if _normalize(other)[:1] == _normalize(name)[:1]] or names
            message = describe_unknown("name", name, names[:MAX_LISTED])
        raise InputError(f"{self.case}: {message} All names: lemma check worked {quote(self.case)} --names")


def select_part(value: ExpectedValue, target: Target) -> ExpectedValue:
    """Return the part of a value that a target selects by a label, or number from 1, on each axis; `:` is all."""
    if not target.labels:
        return value
    if len(target.labels) > len(value.shape):
        kind = ("one value", "a vector", "a matrix")[len(value.shape)]
        raise InputError(f"{target}: {value.name} is {kind}; it has no place [{', '.join(target.labels)}].")
    for axis in reversed(range(len(target.labels))):  # from the last: removing an axis moves no other
        if target.labels[axis] == ":":
            continue
        index = _find_label(target, target.labels[axis], value.labels[axis])
        labels = value.labels[:axis] + value.labels[axis + 1 :]
        if value.is_numeric:
            mistakes = {name: array.take(index, axis) for name, array in value.mistakes.items()}
            value = replace(value, values=value.values.take(index, axis), labels=labels, mistakes=mistakes)
        else:
            value = replace(value, values=(value.values[index],), labels=labels)
    return replace(value, name=str(target))


def _find_label(target: Target, label: str, labels: Sequence[str]) -> int:
    """Return the index of a label, or number from 1, among the labels of an axis; errors name the target."""
    for normalize in (str, _normalize):
        for index, name in enumerate(labels):
            if normalize(name) == normalize(label):
                return index
    if not label.isdigit() or not 1 <= int(label) <= len(labels):
        message = describe_unknown("place", label, labels[:MAX_LISTED])
        raise InputError(f"{target}: {message} Or a number from 1 to {len(labels)}.")
    return int(label) - 1


def _normalize(name: str) -> str:
    """Return a name in lower case without blanks and underscores, for comparison."""
    return name.casefold().replace("_", "").replace(" ", "")


def answer_keys(case: CaseLike, claims: Sequence[HandClaim] = ()) -> Iterator[AnswerKey]:
    """Yield the answer key of a case; of byte-pair encoding one key per order of merges, the claimed order first.

    >>> key = next(answer_keys("e9"))
    >>> [value.name for value in key.expected][:5]
    ['kept', 'added', 'c_t', 'tanh_c', 'h_t']
    """
    name = "the case" if isinstance(case, Mapping) else str(case)
    if isinstance(case, str) and case.startswith(BPE_PREFIX):
        return _byte_pair_keys(name, case.removeprefix(BPE_PREFIX), claims)
    kind = _find_kind(case, name)
    return iter([AnswerKey(name, SOLVERS[kind](case).expected())])


def _find_kind(case: CaseLike, name: str) -> str:
    """Return the kind of a case, such as "attention" or "graph"; `name` names the case in errors."""
    if not isinstance(case, Mapping):
        examples = {name: kind for kind in SOLVERS for name in list_examples(kind).titles}
        if name in examples and not Path(case).is_file():
            return examples[name]
        if Path(case).suffix.lower() in TABLE_SUFFIXES:
            return "graph"
        if not Path(case).is_file():
            message = describe_unknown("case", name, examples)
            raise SpecError(f'check worked: {message} Or give a TOML file of your own, or "bpe:TEXT".')
    kind = detect_kind(case if isinstance(case, Mapping) else read_toml(Path(case)))
    if not kind:
        fields = ", ".join(f"{field} ({kind})" for kind, field in KIND_FIELDS.items())
        raise SpecError(f"{case}: not a case that can be worked out: it holds none of these words: {fields}.")
    return kind


def _byte_pair_keys(name: str, text: str, claims: Sequence[HandClaim]) -> Iterator[AnswerKey]:
    """Yield an answer key of byte-pair encoding of `text` per order of merges, the claimed one first."""
    if not text.split() or len(text) > MAX_SMALL_CHARS:
        raise InputError(
            f"{BPE_PREFIX} a text of 1 to {MAX_SMALL_CHARS:,} characters is expected behind it, got {len(text):,}."
        )
    steps = [_BPE_STEP.fullmatch(_normalize(claim.target.name)) for claim in claims]
    count_steps = [int(step[2]) for step in steps if step and step[1] == "counts"]
    # each order is compared with all claims, so that long claims leave time for fewer orders
    orders = MAX_ORDERS * MAX_SMALL_CHARS // max(MAX_SMALL_CHARS, sum(len(claim.text) for claim in claims))
    keys = expected_byte_pairs(text, _claimed_merges(claims, text), count_steps, max(1, orders))
    return (AnswerKey(name, expected, merges) for expected, merges in keys)


def _claimed_merges(claims: Sequence[HandClaim], text: str) -> dict[int, str]:
    """Return the claimed pairs by step from 1, from lines such as merges = [ab, Ab], merge2 = Ab and B = Ab.

    A, B, C … name the merges in their order, without the letters that occur in the encoded `text`.
    """
    letters = [letter for letter in ascii_uppercase if letter not in text]
    merges: dict[int, str] = {}
    for claim in claims:
        name, labels = claim.target.name, claim.target.labels
        if claim.sign != "=":
            continue
        if _normalize(name) == "merges":
            value = [claim.value] if labels else claim.value
            first = int(labels[0]) if labels and labels[0].isdecimal() else 1
            merges |= {
                step: write_value(pair) for step, pair in enumerate(value if isinstance(value, list) else (), first)
            }
        elif (step := _BPE_STEP.fullmatch(_normalize(name))) and step[1] == "merge":
            merges[int(step[2])] = write_value(claim.value)
        elif name in letters:
            merges[letters.index(name) + 1] = write_value(claim.value)
    return merges


# Comparing


def _check_line(claim: HandClaim, key: AnswerKey) -> WorkedLine:
    """Compare a line of an answer with the right values; return it with its outcome."""
    step = _BPE_STEP.fullmatch(_normalize(claim.target.name)) if key.merges is not None else None
    if step and int(step[2]) > (key.merges or 0) + (step[1] == "counts"):
        reason = f"there are {key.merges} merges, after which no pair occurs twice"
        return WorkedLine(claim.text, False, f"steps = {key.merges}", (reason,))
    expected = key.find(claim.target)
    if claim.sign != "=":
        return _check_order(claim, expected, key)
    if expected.is_numeric:
        return _check_numbers(claim, _match_dimensions(expected, claim.value), key)
    return _check_words(claim, expected)


def _check_order(claim: HandClaim, expected: ExpectedValue, key: AnswerKey) -> WorkedLine:
    """Check a line such as alpha2[they, Ajax] > alpha2[they, Juventus]; `expected` is the value of its left side."""
    number, left = read_entry(claim.value_text), _single_number(expected)
    right = float(number.value) if number else _single_number(key.find(read_target(claim.value_text)))
    holds = left > right + 1e-12 if claim.sign == ">" else left < right - 1e-12
    other = claim.value_text if number else f"{claim.value_text} = {format_short(right, DEFAULT_DECIMALS)}"
    return WorkedLine(claim.text, holds, f"{expected.name} = {format_short(left, DEFAULT_DECIMALS)}, {other}")


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


def _check_numbers(claim: HandClaim, expected: ExpectedValue, key: AnswerKey) -> WorkedLine:
    """Compare the numbers of a line with the right ones; a wrong line gets its differences and a likely mistake."""
    entries = read_entries(claim.value, expected)
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
        return WorkedLine(claim.text, False, solution, (difference,), next(explain_difference(answer, expected), ""))
    wrong = [tuple(map(int, index)) for index in np.argwhere(~answer.is_close(expected.values))]
    if not wrong:
        return WorkedLine(claim.text, True, solution)
    differences: list[str] = []
    if expected.shape:  # for a single number the solution says enough
        for index in wrong[:MAX_DIFFERENCES]:
            labels = ", ".join(axis[i] for axis, i in zip(expected.labels, index, strict=True))
            exact = format_values(expected.values[index], decimals)
            differences.append(f"[{labels}]: {entries[index].text} given, {exact} is right")
        more = len(wrong) - len(differences)
        differences += [f"and {more} more"] if more else []
    mistake = next(explain_difference(answer, expected, key.expected, claim.target.labels), "")
    return WorkedLine(claim.text, False, solution, tuple(differences), mistake)


def _check_words(claim: HandClaim, expected: ExpectedValue) -> WorkedLine:
    """Compare the words of a line with the right ones; a wrong line gets the entries that differ."""
    value = claim.value
    solutions = [" or ".join(dict.fromkeys(words[:2])) for words in expected.values]
    solution = f"{expected.name} = {', '.join(solutions) if expected.labels else solutions[0]}"
    if isinstance(value, list) and expected.labels and len(value) != len(expected.values):
        difference = f"{len(value)} given, {len(expected.values)} words expected"
        return WorkedLine(claim.text, False, solution, (difference,))
    if isinstance(value, dict):
        words = order_by_label(value, expected)
    elif isinstance(value, list) or not expected.labels or len(expected.values) == 1:
        words = value if expected.labels and isinstance(value, list) else [value]
    else:
        word = write_value(value)
        raise InputError(f"{expected.name}: a list of words is expected, as in [{word}, …]; got '{word}'.")
    wrong = [
        (index, word)
        for index, word in enumerate(map(write_value, words))
        if normalize_symbols(word) not in map(normalize_symbols, expected.values[index])
    ]
    differences = tuple(
        f"[{expected.labels[0][index]}]: {word} given, {solutions[index]} is right"
        for index, word in wrong[:MAX_DIFFERENCES]
        if expected.labels
    )
    return WorkedLine(claim.text, not wrong, solution, differences)


def explain_difference(
    answer: RoundedArray, expected: ExpectedValue, others: Iterable[ExpectedValue] = (), labels: Labels = ()
) -> Iterator[str]:
    """Yield sentences such as "the sign is wrong." on each mistake that gives the wrong numbers, the most likely first.

    Args:
        answer: the numbers given for `expected`, with the decimals to which they are written.
        others: other quantities of the case, whose numbers may have been given instead.
        labels: the element or row that the claim is about, as in c_t[1], to select in `others`.
    """
    exact, values = expected.values, answer.values

    def matches(array: Array) -> bool:
        return answer.matches(array, slack=1.0)

    if matches(-exact):
        yield "the sign is wrong."
    for name, array in expected.mistakes.items():
        if matches(array):
            yield f"{name}."
    if exact.ndim == 2 and matches(exact.T):
        yield "transposed: rows and columns are exchanged."
    if values.shape == exact.shape and np.ptp(values) > 0:
        for axis, name in enumerate({1: ("entries",), 2: ("rows", "columns")}.get(exact.ndim, ())):
            if answer.matches_reordered(exact, axis):
                yield f"the {name} are in another order."
    for other in others:
        try:
            part = select_part(other, Target(other.name, labels))
        except InputError:  # it has no such element
            continue
        if not part.is_numeric or part.name == expected.name or part.labels != expected.labels:
            continue
        # zeros and ones alone could be anything
        is_telling = np.any((np.abs(part.values) > 1e-9) & (np.abs(part.values - 1) > 1e-9))
        if matches(part.values) and is_telling:
            meaning = f" ({other.meaning})" if other.meaning and other.meaning != other.name else ""
            yield f"that is {part.name}{meaning}, not {expected.name}."
    for name, factor in FACTORS.items():
        if matches(exact * factor) and np.abs(exact).max() > 0:
            yield f"yours is {name} the right value."
    if values.shape == exact.shape and answer.decimals:
        worst = float(np.abs(values - exact).max())
        units = worst * 10**answer.decimals
        if units <= MAX_ROUNDING_UNITS and worst <= 0.02 * float(np.abs(exact).max()):
            error = f"off by at most {units:.1f} units of the last decimal"
            yield f"{error}: rounded on the way? Keep more decimals until the end."


def format_values(values: Array, decimals: int) -> str:
    """Write an array as nested lists in text, with at most this many decimals and no final zeros.

    >>> format_values(np.array([[0.25, -1.0]]), 3)
    '[[0.25, −1]]'
    """
    if np.ndim(values):
        return "[" + ", ".join(format_values(value, decimals) for value in values) + "]"
    return format_short(float(values), decimals)
