"""The base classes of exercises.

A kind of exercise is a class: its fields are the statement, as a teacher writes it in TOML or a student on the command
line, and its methods check answers. `lemma check`, sheets, exports for other tools and the page use the same classes.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import floor, log10
from typing import Any, ClassVar, Literal

import numpy as np

from lemma.checking.check_values import (
    DEFAULT_DECIMALS,
    AnswerKey,
    ValueClaim,
    ValueReport,
    check_lines,
    describe_values,
    format_values,
    read_claim,
)
from lemma.checking.expected_values import ExpectedValue
from lemma.checking.read_values import read_arithmetic
from lemma.errors import InputError, describe_unknown
from lemma.report.result import Block, Heading, Result, Text
from lemma.spec.base import Spec

REPETITIONS = 12  # of a repeating decimal
MAX_REWRITTEN_CHARS = 5_000  # longer lines are read as they are
MAX_GUESSED_CHARS, MAX_GUESSED_NAMES = 300, 40  # of an answer without a name, and of the values it is compared with
_CLAIM_SEPARATOR = re.compile(r"\s*[,;]\s*(?:and\s+)?(?=[^\W\d][\w^{}\\]{0,30}\s*[=≈](?!=))")
HelpLevel = Literal["hint", "where", "solution"]


class Exercise(Spec, ABC):
    """An exercise: its fields are the statement of the question."""

    kind: ClassVar[str]
    """Name of the kind in `lemma check KIND`, and in files."""
    common_fields: ClassVar[tuple[str, ...]] = ("title", "text", "asks", "hint")
    """Fields that every kind has."""
    first_field: ClassVar[str] = ""
    """Field that the first argument of `lemma check KIND` sets without its name, as in `lemma check code softmax`."""

    typed_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that name code to run: only a person may set them, never a file."""
    runs_code: ClassVar[bool] = False
    """Whether an answer is code that is run, so that it must not come from a file of answers."""
    blanks_mark_answers: ClassVar[bool] = False
    """Whether NAME = VALUE with a blank before the sign is an answer on the command line even if NAME is a field."""

    title: str = ""
    """Title of the exercise."""
    text: str = ""
    """Statement, as the student reads it."""
    asks: tuple[str, ...] = ()
    """Names of the values that are asked for."""
    hint: str = ""
    """First hint; by default the formula of what is asked for."""

    @classmethod
    def is_answer(cls, name: str, value: str, stated: Collection[str]) -> bool:
        """Return whether an argument NAME=VALUE of the command line is an answer although NAME is a field.

        Args:
            name: the text before the sign, with its blanks.
            value: the text after the sign.
            stated: names of all arguments.
        """
        return cls.blanks_mark_answers and name != name.strip()

    @property
    def name(self) -> str:
        """The title of the exercise, or its kind."""
        return self.title or self.kind

    @abstractmethod
    def check(self, answers: Sequence[str], show_solution: bool = False) -> Result:
        """Check an answer, given as lines; the result is true if all of it is right.

        Args:
            answers: lines as the student wrote them; an item may hold several lines.
            show_solution: whether the report shows what is right.
        """

    @abstractmethod
    def describe(self) -> str:
        """Return a table of the names that an answer may use, without any right value."""

    @abstractmethod
    def help_with(self, level: HelpLevel, answers: Sequence[str] = ()) -> "ExerciseHelp":
        """Return a hint, where an answer goes wrong, or the worked solution."""


@dataclass(frozen=True)
class ExerciseHelp(Result):
    """A hint, the first step of an answer that is wrong, or a worked solution."""

    name: str
    level: HelpLevel
    lines: tuple[str, ...]

    @property
    def title(self) -> str:
        """The title, such as "Bigrams: solution"."""
        return f"{self.name}: {self.level}"

    def blocks(self) -> list[Block]:
        """Return the lines as texts."""
        return [Text("\n".join(self.lines))]

    def details(self) -> list[Block]:
        """Return the title and the lines."""
        return [Heading(self.title, 1), *self.blocks()]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON."""
        return {"name": self.name, "level": self.level, "lines": list(self.lines)}


class ValueExercise(Exercise):
    """An exercise whose answer is a list of named values: numbers, words, vectors or matrices.

    A subclass defines `expected_values`; everything else follows from it.
    """

    names_with_parameters: ClassVar[str] = ""
    """Names that `find_value` knows, for the table of names, as in "P(w | v), C(v w)"."""

    @abstractmethod
    def expected_values(self) -> Sequence[ExpectedValue]:
        """Return all values that an answer may claim, intermediate ones first, with the mistakes that are known."""

    def main_names(self) -> tuple[str, ...]:
        """Return the names of the results, where the exercise does not say what it asks for: by default the last."""
        return (self.expected_values()[-1].name,)

    def find_value(self, name: str) -> ExpectedValue | None:
        """Return a value by a name that `expected_values` does not list, such as the probability of any sentence."""
        return None

    def answer_keys(self, claims: Sequence[ValueClaim]) -> Iterable[AnswerKey]:
        """Yield the right answers: several where there are ties, those that fit the claims first."""
        yield self.make_key(self.expected_values())

    def rewrite_line(self, line: str) -> str:
        """Return a line of an answer in the notation `NAME = VALUE`; subclasses read further notations."""
        return line

    def check_bare_answer(self, answer: str) -> None:
        """Raise an InputError if an answer without a name could be about several values."""

    def make_key(self, expected: Sequence[ExpectedValue]) -> AnswerKey:
        """Return an answer key with these values."""
        return AnswerKey(self.name, expected, self.find_value, names_command=f"lemma check {self.kind} … --names")

    def check(self, answers: Sequence[str], show_solution: bool = False) -> ValueReport:
        """Check lines `NAME = VALUE`; a line without a name is the value that is asked for, if it is a single one."""
        target_names = self.asks or self.main_names()
        lines = [line for answer in answers for line in answer.splitlines() if line.strip()]
        originals, lines = (
            lines,
            [standardize_line(line) if len(line) <= MAX_REWRITTEN_CHARS else line for line in lines],
        )
        if len(lines) == 1 and len(target_names) == 1 and not has_name(lines[0]):
            self.check_bare_answer(lines[0].strip())
            lines = [self._name_line(lines[0].strip(), target_names[0])]
            originals = lines
        parts = [part for line in lines for part in self._split_claims(line)]
        originals, lines = originals if len(parts) == len(lines) else parts, parts
        normalized = [self.rewrite_line(line) if len(line) <= MAX_REWRITTEN_CHARS else line for line in lines]
        report = check_lines(self.name, normalized, self.answer_keys, show_solution=show_solution)
        checked = (
            replace(line, text=" ".join(text.split())) for line, text in zip(report.lines, originals, strict=True)
        )
        return replace(report, lines=tuple(checked))

    def _split_claims(self, line: str) -> list[str]:
        """Return the parts of a line such as "w1 = 4, w2 = 3.2", each of which begins with the name of a value."""
        parts = _CLAIM_SEPARATOR.split(line)
        if len(parts) < 2 or "[" in line:
            return [line]
        key = self.make_key(self.expected_values())
        try:
            for part in parts:
                key.find(read_claim(part).target)
        except InputError:
            return [line]
        return parts

    def _is_right_as(self, name: str, text: str) -> bool | None:
        """Return whether a text is right as the value of a name; None if it cannot be its value."""
        try:
            report = check_lines(self.name, [self.rewrite_line(f"{name} = {text}")], self.answer_keys)
        except InputError:
            return None
        (line,) = report.lines if len(report.lines) == 1 else (None,)
        if line is None or any(" expected" in difference for difference in line.differences):
            return None
        return line.right

    def _name_line(self, text: str, default: str) -> str:
        """Return an answer without a name with the name of the value that it is about.

        That is the default, unless the exercise does not say what it asks for, and the answer cannot be the default: it
        has another shape, or is a number in place of words. Then it is the value for which it is right.
        """
        claim = f"{default} = {text}"
        if self.asks or len(text) > MAX_GUESSED_CHARS or not text:
            return claim
        values = {value.name: value for value in self.expected_values()}
        default_value = values.get(default)
        is_word = default_value is not None and not default_value.is_numeric
        if default_value is None or (is_word and read_arithmetic(text) is None):
            return claim
        if not is_word and self._is_right_as(default, text) is not None:
            return claim
        names = [name for name in values if name != default]
        if is_word:  # the number of what is asked for in words: P(best) of best, probability(pug) of tokens(pug)
            subject = re.sub(r".*\((.*)\)", r"\1", default)
            names = [name for name in names if values[name].is_numeric and f"({subject})" in name]
            probability = next((name for name in names if name.casefold().startswith("p")), default)
            claim = f"{probability} = {text}"
        return next((f"{name} = {text}" for name in names[:MAX_GUESSED_NAMES] if self._is_right_as(name, text)), claim)

    def describe(self) -> str:
        """Return a table of the names that an answer may use, with shapes and meanings but no values."""
        table = describe_values(self.expected_values())
        return f"{table}\n\nAnd: {self.names_with_parameters}" if self.names_with_parameters else table

    def select_targets(self) -> list[ExpectedValue]:
        """Return the values that are asked for."""
        (key, *_) = self.answer_keys(())
        by_name = {value.name: value for value in key.expected}
        selected = [by_name.get(name) or self.find_value(name) for name in self.asks or self.main_names()]
        for name, value in zip(self.asks, selected, strict=False):
            if value is None:
                raise InputError(describe_unknown(f"{self.name}: asks: name", name, by_name))
        return [value for value in selected if value is not None]

    def help_with(self, level: HelpLevel, answers: Sequence[str] = ()) -> ExerciseHelp:
        """Return the formulas of what is asked for, the first wrong line of an answer, or every step with numbers."""
        if level == "hint":
            formulas = [f"{value.name}: {value.formula or value.meaning}" for value in self.select_targets()]
            return ExerciseHelp(self.name, level, (self.hint,) if self.hint else tuple(formulas))
        if level == "where":
            return ExerciseHelp(self.name, level, self._locate_mistake(answers))
        (key, *_) = self.answer_keys(())
        names = {value.name for value in key.expected}
        expected = [*key.expected, *(value for value in self.select_targets() if value.name not in names)]
        return ExerciseHelp(self.name, level, tuple(line for value in expected for line in describe_solution(value)))

    def _locate_mistake(self, answers: Sequence[str]) -> tuple[str, ...]:
        """Return the wrong lines of an answer with the entries that are wrong; without an answer, where to begin."""
        (key, *_) = self.answer_keys(())
        if not answers:
            names = ", ".join(value.name for value in key.expected[:6])
            return (f"Work in this order, and check each step: {names}.",)
        wrong = [line for line in self.check(answers).lines if not line.right]
        return tuple(str(line) for line in wrong) or ("All of it is right.",)


def standardize_line(line: str) -> str:
    r"""Return a line of an answer with the sign = and with repeating decimals written out.

    >>> standardize_line(r"P(a) \approx 0.67"), standardize_line("P(a): 2/3"), standardize_line("P(a) = 2/3 (0.667)")
    ('P(a) ≈ 0.67', 'P(a) = 2/3', 'P(a) = 2/3 = 0.667')
    >>> standardize_line(r"P = 0.\overline{6}"), standardize_line("P = 0.0333...")
    ('P = 0.666666666666', 'P = 0.0333333333333')
    """
    line = re.sub(r"\\(?:approx|simeq|sim)(?![a-z])", "≈", line)
    line = re.sub(r"(?<=\d)\s*\((?:rounded|approx\.?|approximately|about)\)\s*$", "", line)
    line = re.sub(
        r"(\d\.\d{0,12})\\(?:overline|bar)\s*\{?(\d{1,6})\}?", lambda match: match[1] + match[2] * REPETITIONS, line
    )
    line = re.sub(
        r"(\.\d{0,12}?)(\d)\2+(?:\.\.\.|…|\\[lc]?dots)", lambda match: match[1] + match[2] * REPETITIONS, line
    )
    if not re.search(r"[=≈<>]", line):
        definition = re.fullmatch(r"\s*([^:=]{1,100}\)|[A-Za-zκαβγ][\w@*-]{0,40})\s*(?::|\sis\s)\s*(\S.*)", line)
        if definition and read_arithmetic(definition[2]) is not None:
            return f"{definition[1]} = {definition[2]}"
    repeated = re.fullmatch(r"(.*[=≈]\s*)([^=≈]*[^\s=≈(*·×/+-])\s+\(\s*[≈=~]?\s*(\d*\.\d+)\s*\)\s*", line)
    if repeated:
        first, second = read_arithmetic(repeated[2]), read_arithmetic(repeated[3])
        if first and second and abs(first.value - second.value) <= second.unit:
            return f"{repeated[1]}{repeated[2]} = {repeated[3]}"
    return line


def has_name(line: str) -> bool:
    """Return whether a line begins with a name and a sign; 2/3*0.5 = 0.333 begins with arithmetic.

    >>> has_name("P = 0.5"), has_name("2/3*0.5 = 0.333"), has_name("≈ 0.5")
    (True, False, False)
    """
    without_symbols = re.sub(r"</?\w+>|[-=]>", "", line)
    name, sign, _ = re.split(r"([=<>≈]|$)", without_symbols, maxsplit=1)
    is_cell = re.fullmatch(r"\s*(\[[^\[\]]*,[^\[\]]*\]|\(\s*\d+\s*,\s*\d+\s*\))\s*", name)  # of a chart: [0, 5] = S
    return bool(sign and name.strip()) and bool(is_cell or read_arithmetic(name) is None)


def needed_decimals(value: ExpectedValue) -> int:
    """Return the decimals with which a solution shows a value: four, or more for a small number."""
    smallest = float(np.abs(value.values).max(initial=0.0))
    return max(DEFAULT_DECIMALS, 3 - floor(log10(smallest))) if 1e-12 < smallest < 1 else DEFAULT_DECIMALS


def describe_solution(value: ExpectedValue) -> list[str]:
    """Return the lines of a worked solution for a value: its formula, the computation and the result."""
    if value.is_numeric:
        result = format_values(value.values, needed_decimals(value))
    else:
        words = [alternatives[0] for alternatives in value.values]
        result = ", ".join(words)
    steps = [f"  {text}" for text in (value.formula, value.work) if text]
    return [f"{value.name} = {result}", *steps]
