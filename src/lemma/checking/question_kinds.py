"""The kinds of questions on a sheet, one class each.

A question is prepared once: its model is counted and what is right is computed. An answer is then read once and
assessed; the mistake behind a wrong answer is looked for only where that is asked for, since it takes longer.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import prod
from typing import Any

import torch

from lemma.checking.cells import GradientCell, Sample
from lemma.checking.check_formula import FormulaExercise
from lemma.checking.check_number import NumberExercise
from lemma.checking.check_values import Target, normalize_name, read_claim, read_target
from lemma.checking.compare_formula import FormulaComparison, Verdict, compare_answer, format_number, has_symbols
from lemma.checking.derivation import find_symbols
from lemma.checking.exercises.base import ValueExercise, describe_solution
from lemma.checking.expressions import Evaluator, ShapeError, limited_work
from lemma.checking.gradients import check_gradients, read_derivation
from lemma.checking.read_formula import read_formula, substitute
from lemma.checking.sheet_kinds import DerivationCheck, GradientCheck, ShapeCheck
from lemma.checking.sheets import SheetQuestion, prefix_lines
from lemma.checking.written_answers import (
    COUNT_WORDS,
    PARAMETER_WORDS,
    UNITS,
    AnswerReading,
    compute_number,
    convert_unit,
    find_unit,
    formula_readings,
    number_readings,
    read_claims,
    singular,
    split_unit,
)
from lemma.counting.account import Account, Quantity
from lemma.counting.polynomial import Calculator, Rational, as_polynomial, symbol, work_limit
from lemma.counting.writing import write_formula
from lemma.errors import InputError, SpecError
from lemma.report.numbers import WrittenNumber, read_number

MAX_MARKING_STEPS = 40_000  # of work for one answer, see `work_limit`: a class hands in many
NOT_DIAGNOSED, UNEXPLAINED = "not diagnosed", "wrong, without a simple explanation"
NOT_A_FORMULA, ROUNDED = "a number in place of a formula", "rounded too far"
NOT_RECURRING = (NOT_DIAGNOSED, UNEXPLAINED, NOT_A_FORMULA, ROUNDED)  # these are mistakes in every answer
MAX_LINES = 100  # of an answer that are read one by one
SYMBOL_SIZES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)  # of a formula without a model, to compare numbers
_PERCENT_FACTOR = re.compile(r"(?<![\w.,])100\s*[*·×(]|[*·×)]\s*100(?![\w.,])")


@dataclass(frozen=True)
class Assessment:
    """The result of marking one answer."""

    fraction: float = 0.0  # of the points
    reason: str = ""  # what is wrong, for the teacher
    hint: str = ""  # what the student may see of it
    right_answer: str | None = None  # where it can be written
    mistakes: tuple[str, ...] = ()  # those that explain it, for the teacher
    value: Fraction | None = None  # the student's number, for the questions that build on it
    error_sources: tuple[str, ...] = ()  # earlier questions; it is right only with the student's wrong answers to these
    error: str = ""  # why the answer cannot be read
    is_diagnosed: bool = False  # whether the mistake behind a wrong answer was looked for

    @property
    def needs_diagnosis(self) -> bool:
        """True if the answer is wrong, readable and not yet explained."""
        return self.fraction < 1 and not (self.error or self.is_diagnosed)


@dataclass(frozen=True)
class EarlierAnswer:
    """A student's answer to a question that a later one builds on; `assessment` is None if there is no answer."""

    question: "PreparedQuestion"
    text: str  # as it was read
    answer: Any = None  # as parsed
    assessment: Assessment | None = None

    @property
    def is_wrong(self) -> bool:
        """True if the answer is not right by itself."""
        return self.assessment is not None and (self.assessment.fraction < 1 or bool(self.assessment.error_sources))

    @property
    def value(self) -> Fraction:
        """The number of the student's answer; 0 without an answer."""
        return (self.assessment and self.assessment.value) or Fraction(0)

    @property
    def formula(self) -> Rational:
        """The student's formula or number, with sizes that follow from others replaced."""
        if isinstance(self.question, FormulaAnswerQuestion):
            return self.question.expand_formula(self.answer)
        return Rational(as_polynomial(self.value))


class PreparedQuestion(ABC):
    """A question of a sheet together with its right answer; a subclass for each kind of answer."""

    solution: str  # the right answer
    compares_mistakes = False  # whether a mistake that recurs is follow-through, so that mistakes must be known

    def __init__(self, question: SheetQuestion) -> None:
        self.question, self.fields = question, question.fields

    @abstractmethod
    def read(self, text: str) -> Sequence[AnswerReading]:
        """Return the readings of an answer, the most likely first; raise an InputError if it cannot be read."""

    @abstractmethod
    def assess(self, text: str, answer: Any, earlier: Sequence[EarlierAnswer], diagnose: bool) -> Assessment:
        """Mark an answer.

        Args:
            text: the answer as it was read.
            answer: the parsed answer of the reading.
            earlier: the student's answers to the questions that this one builds on.
            diagnose: whether to explain a wrong answer.
        """


class ExpressionQuestion(PreparedQuestion):
    """A question of a sheet that asks for a formula or a number."""

    at_sizes: str = ""  # how a hint calls the place where two formulas are compared

    account: Any = None  # of the model; None for a number that is computed from other numbers
    aliases: Mapping[str, str] = {}  # other names of the account's symbols
    expected: Rational  # the right formula in the symbols of the model, or the right number

    def __init__(self, question: SheetQuestion, exercise: FormulaExercise | NumberExercise | None = None) -> None:
        super().__init__(question)
        if exercise is not None:
            self.exercise: Any = exercise
            self.account, self.aliases = exercise.account, exercise.aliases

    @cached_property
    def credit(self) -> list[tuple[Any, float]]:
        """The other answers that earn partial credit: (the parsed answer, fraction of the points)."""
        return [(self.parse(text), fraction) for text, fraction in self.question.credit.items()]

    @abstractmethod
    def parse(self, text: str) -> Any:
        """Parse a formula or number without words around it; raise an InputError if it cannot be read."""

    def check(self, answer: Any, diagnose: bool) -> Verdict:
        """Compare a parsed answer with the right one; with `diagnose`, explain a wrong answer."""
        return self.exercise.check(answer, diagnose)

    @abstractmethod
    def is_same(self, answer: Any, other: Any) -> bool:
        """Return whether two parsed answers are the same formula, or the same number as the first rounds it."""

    def is_consistent(self, answer: Any, earlier: Sequence[EarlierAnswer]) -> bool:
        """Return whether a parsed answer follows from the student's answers to earlier questions, right or wrong."""
        return False  # the formula of a model builds on nothing

    def write_headline(self, verdict: Verdict, hint: str) -> str:
        """Return the first sentence of the reason, for the teacher; `hint` is what the student sees."""
        return verdict.headline

    def assess(self, text: str, answer: Any, earlier: Sequence[EarlierAnswer], diagnose: bool) -> Assessment:
        """Mark an answer; the best of partial credit and of consistency with earlier answers counts."""
        question, assessment = self.question, self._assess_independently(text, answer, diagnose)
        if assessment.fraction == 1:
            return assessment
        fractions = [fraction for other, fraction in self.credit if self.is_same(answer, other)]
        if fractions:
            assessment = replace(assessment, fraction=max(fractions), hint="Right in part.")
        assessments = [work.assessment for work in earlier if work.assessment and work.assessment.value is not None]
        if not earlier or len(assessments) < len(earlier) or is_copied(text, earlier):
            return assessment
        try:
            recurring = recurring_mistakes(assessment.mistakes, earlier) if self.compares_mistakes else []
            if not recurring and not self.is_consistent(answer, earlier):
                return assessment
        except InputError:  # the student's formulas divide by zero, need too much work or have no value at these sizes
            return assessment
        has_mistake = any(work.is_wrong for work in earlier)
        fraction = question.follow_through if has_mistake else 1.0
        if fraction <= assessment.fraction:
            return assessment
        reason = f"Right with your own answer to {' and '.join(question.builds_on)}."
        if recurring:
            reason = f"The mistake of {' and '.join(recurring)} again, which counts only there."
        error_sources = question.builds_on if has_mistake else ()
        return replace(
            assessment, fraction=fraction, hint=reason, reason=reason, mistakes=(), error_sources=error_sources
        )

    def _assess_independently(self, text: str, answer: Any, diagnose: bool) -> Assessment:
        """Mark an answer without regard to earlier answers and partial credit; arguments as of `assess`."""
        verdict = self.check(answer, diagnose)
        value, expected = Fraction(verdict.yours_at), Fraction(verdict.right_at)
        error = mistake = ""
        if verdict.solution != verdict.right and not has_symbols(verdict.yours):
            error, mistake = "a formula is asked for, not a number", NOT_A_FORMULA
        elif verdict.equal and self.question.kind == "number" and not self._is_close(value, expected):
            error, mistake = f"{text[:60]} is rounded too far", ROUNDED
        if error:
            reason = f"Not right: {error}."
            return Assessment(0.0, reason, reason, verdict.solution, (mistake,), value, is_diagnosed=True)
        hint = "Right." if verdict.equal else "Not right."
        if not verdict.equal and value != expected:
            hint = f"Not right: {'too large' if value > expected else 'too small'}{self.at_sizes}."
        # the diagnosis of a change starts with the numbers at both sizes
        mistake = " ".join(verdict.diagnosis[1:] if getattr(self.fields, "change", "") else verdict.diagnosis)
        if not mistake or mistake.startswith("No simple explanation"):
            mistake = UNEXPLAINED if diagnose else NOT_DIAGNOSED
        mistakes = () if verdict.equal else (mistake,)
        reason = " ".join([self.write_headline(verdict, hint), *verdict.diagnosis, *verdict.remarks])
        fraction = float(verdict.equal)
        return Assessment(fraction, reason, hint, verdict.solution, mistakes, value, is_diagnosed=diagnose)

    def _is_close(self, value: Fraction | int, expected: Fraction) -> bool:
        """Return whether a number differs from the expected one by no more than the question's relative tolerance."""
        return abs(value - expected) <= Fraction(self.fields.tolerance) * abs(expected)


class FormulaAnswerQuestion(ExpressionQuestion):
    """A question of a sheet that asks for a formula, in the symbols of an account."""

    at_sizes = " at the model's sizes"

    def parse(self, text: str) -> FormulaComparison:
        """Parse a formula, which may lack sizes that the question sets; return it next to the account's formula."""
        return compare_answer(self.account, self.question.kind, text, self.aliases, self.fields.settings)

    def read(self, text: str) -> Sequence[AnswerReading]:
        """Return the readings of a formula with words around it, or of several lines that lead to it."""
        return formula_readings(text, self.parse, self.question.id)

    def expand_formula(self, answer: FormulaComparison) -> Rational:
        """Return the student's formula; sizes that follow from others, such as d_ff = 4d, are replaced."""
        return substitute(answer.answer, self.account.defaults)

    def is_same(self, answer: FormulaComparison, other: FormulaComparison) -> bool:
        """Return whether two parsed formulas are equal once sizes that follow from others are replaced."""
        return self.expand_formula(answer) == self.expand_formula(other)


class ModelFormula(FormulaAnswerQuestion):
    """A question of a sheet that asks for the formula of a model's parameters, trainable parameters or FLOPs."""

    def __init__(self, question: SheetQuestion) -> None:
        fields = question.fields
        exercise = FormulaExercise(fields.model, question.kind, fields.settings, fields.conventions)
        super().__init__(question, exercise)
        self.compares_mistakes = bool(question.builds_on)
        quantity = self.account.quantities[question.kind]
        if quantity.at(self.account.symbols) is None or quantity.refused:
            raise InputError(f"the {question.kind} of {fields.model} follow no formula. Ask for something else.")
        self.expected = substitute(Rational(quantity.polynomial), self.account.defaults)
        self.solution = quantity.write_formula(self.account.order)


class DerivedFormula(FormulaAnswerQuestion):
    """A question of a sheet for a formula that the sheet states: from earlier answers, such as 16*Q1, or alone."""

    def __init__(self, question: SheetQuestion, earlier: Mapping[str, PreparedQuestion]) -> None:
        super().__init__(question)
        sources = [source for id in question.builds_on if isinstance(source := earlier[id], ExpressionQuestion)]
        accounts = [source.account for source in sources if source.account is not None]
        if sources and not accounts:
            raise InputError(f"'{question.value}' builds on numbers only. Ask for a number: kind = 'number'.")
        symbols, defaults = {}, {}
        if not sources:
            self.at_sizes = ""
            symbols = self._choose_sizes()
        for account in accounts:
            for name, size in account.symbols.items():
                if symbols.setdefault(name, size) != size:
                    raise InputError(f"{name} is {symbols[name]} in one of the models and {size} in another.")
            defaults |= account.defaults
        quantities = [quantity for account in accounts for quantity in account.quantities.values()]
        self.account = Account(question.value, symbols, {"formula": (quantities or [_NO_QUANTITY])[0]}, defaults)
        self.aliases = {alias: name for source in sources for alias, name in source.aliases.items()}
        names = {**self.aliases, **{name: name for name in self.account.order}}
        readable = [*question.builds_on, *(name for name in names if name not in question.builds_on)]
        # the id of a question may be a symbol of another question's formula
        placeholders = {id: symbol(f"?{id}") for id in question.builds_on}
        self.template = substitute(read_formula(question.value, readable), placeholders)
        self.meanings = {alias: symbol(name) for alias, name in names.items() if alias != name}
        self.expected = self._derive([source.expected for source in sources])
        self.solution = write_formula(self.expected, self.account.order)

    def _choose_sizes(self) -> dict[str, int]:
        """Return the symbols of a formula without a model with the sizes that the question sets, else primes."""
        names = sorted({*find_symbols([self.question.value]), *self.fields.symbols, *self.fields.settings})
        if len(names) > len(SYMBOL_SIZES):
            raise InputError(f"'{self.question.value[:60]}' has more than {len(SYMBOL_SIZES)} symbols.")
        sizes: dict[str, int] = dict(zip(names, SYMBOL_SIZES, strict=False))
        for name, size in self.fields.settings.items():
            if not isinstance(size, int) or isinstance(size, bool):
                raise InputError(f"settings: {name} = {size}: a whole number is expected.")
            sizes[name] = size
        return sizes

    def _derive(self, formulas: Sequence[Rational]) -> Rational:
        """Return the formula that is right if the earlier questions have these formulas."""
        derived, calculator = self.template, Calculator()
        for id, formula in zip(self.question.builds_on, formulas, strict=True):
            derived = substitute(derived, {f"?{id}": formula}, calculator)
        return substitute(substitute(derived, self.meanings), self.account.defaults)

    def check(self, answer: FormulaComparison, diagnose: bool) -> Verdict:
        """Return the verdict on a parsed formula and on the number after it, if any; nothing is diagnosed."""
        formula, sizes = self.expand_formula(answer), self.account.symbols
        expected, diagnosis = self.expected.at(sizes), ()
        is_equal = formula == self.expected
        if is_equal and answer.has_wrong_number:
            message = f"The formula is right, but not the number after it: {format_number(expected)}."
            is_equal, diagnosis = False, (message,)
        texts = (self.account.model, "formula", answer.write(formula), self.solution)
        return Verdict(is_equal, *texts, None, diagnosis, sizes, formula.at(sizes), expected, answer.notes)

    def write_headline(self, verdict: Verdict, hint: str) -> str:
        """Return the verdict's headline, or for a wrong answer a sentence with the right formula."""
        return verdict.headline if verdict.equal else f"Not equal: {self.solution} is right."

    def is_consistent(self, answer: FormulaComparison, earlier: Sequence[EarlierAnswer]) -> bool:
        """Return whether the formula is the one that the student's earlier formulas lead to."""
        formula = self.expand_formula(answer)
        if not earlier or formula.constant is not None or answer.has_wrong_number:  # no number is a formula
            return False
        return formula == self._derive([work.formula for work in earlier])


class NumericQuestion(ExpressionQuestion):
    """A question of a sheet that asks for a number."""

    unit = ""  # of the right number

    def read(self, text: str) -> Sequence[AnswerReading]:
        """Return the readings of a number with words around it, or of a computation that leads to it."""
        return number_readings(text, self.parse, self.question.id)

    def parse_with_unit(self, text: str) -> WrittenNumber:
        """Parse a number and convert its unit; raise an InputError where its unit may not be the right one."""
        core, unit = split_unit(text, self.unit)
        try:
            number = read_number(core)
        except InputError:
            value = compute_number(core)
            if value is None:
                raise
            number = WrittenNumber(core, value, Fraction(0))
        if number.start:
            raise InputError("a plain number is asked for, not a change in per cent.")
        if self.unit == "%":
            return self._scale_percent(number)
        if not unit:
            return number
        converted = convert_unit(number, unit, self.unit)
        if converted is not None:
            return converted
        words = (
            PARAMETER_WORDS if getattr(self.fields, "model", "") and self.fields.quantity in _COUNTS else COUNT_WORDS
        )
        mentioned = re.search(rf"(?<![^\W\d_]){re.escape(singular(unit))}", self.question.statement, re.IGNORECASE)
        if not (mentioned or (singular(unit) in words and self.unit.lower() not in UNITS)):
            expected = f"expected {self.unit}" if self.unit else "expected a number without a unit"
            raise InputError(f"'{text[:40]}': the unit is {unit}; {expected}.")
        return number

    def _scale_percent(self, number: WrittenNumber) -> WrittenNumber:
        """Return a number in per cent: 12.5 for 12.5 %."""
        if number.is_percent:
            return replace(number, value=100 * number.value, unit=100 * number.unit)
        return number

    def is_same(self, answer: WrittenNumber, other: WrittenNumber) -> bool:
        """Return whether the answer is the other number, to the digits with which the answer is written."""
        return answer.matches(other.value)

    @property
    def solution(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The right number as text, with four significant digits unless it is whole."""
        value = self.expected.at({})
        return str(value) if value.denominator == 1 else f"{float(value):.4g}"


class ModelNumber(NumericQuestion):
    """A question of a sheet for a number of a model, or for its change in per cent between two sizes."""

    def __init__(self, question: SheetQuestion) -> None:
        fields = question.fields
        exercise = NumberExercise(fields.model, fields.quantity, fields.settings, fields.conventions)
        super().__init__(question, exercise)
        self.unit = fields.unit or exercise.quantity.unit
        expected = exercise.quantity.at(self.account.symbols)
        if expected is None:
            raise InputError(f"the {fields.quantity} of {fields.model} follow no formula. Ask for something else.")
        if fields.change:
            expected = exercise.expected_change(self.parse("1 %"))
        elif fields.unit:
            expected = _in_unit(Fraction(expected), exercise.quantity.unit, fields.unit)
        self.expected = Rational(as_polynomial(expected))

    def parse(self, text: str) -> WrittenNumber:
        """Parse a number; for a change, a percentage with or without its sign, between the sizes of the question."""
        if self.fields.change:  # the sheet names the two sizes, whatever the student writes
            number = text.lower().partition("from")[0].strip()
            percent = "" if "%" in number or "cent" in number else " %"
            return read_number(f"{number}{percent} {self.fields.change}")
        number = self.parse_with_unit(text)
        if number.is_percent:
            raise InputError("a plain number is asked for, not a change in per cent.")
        return number

    def check(self, answer: WrittenNumber, diagnose: bool) -> Verdict:
        """Compare a number with the right one; a number in a unit of the sheet's own is not diagnosed."""
        if self.fields.unit:
            return _compare_number(self, answer)
        return super().check(answer, diagnose)

    def is_consistent(self, answer: WrittenNumber, earlier: Sequence[EarlierAnswer]) -> bool:
        """Return whether the number is the value, or change, of the student's formula in the earlier question."""
        formula = compare_answer(self.account, self.fields.quantity, earlier[0].text, self.aliases).answer_polynomial
        if formula is None:
            return False
        sizes, change = self.account.symbols, self.fields.change
        expected = self.exercise.expected_change(answer, formula) if change else formula.at(sizes)
        return answer.is_right(expected) and self._is_close(answer.value, expected)


class DerivedNumber(NumericQuestion):
    """A question of a sheet for a number that the sheet states: from earlier answers, such as 100*Q1/Q2, or alone."""

    def __init__(self, question: SheetQuestion, earlier: Mapping[str, PreparedQuestion]) -> None:
        super().__init__(question)
        self.stated: WrittenNumber | None = None  # the number of the sheet, which may itself be rounded
        self.unit = self.fields.unit or find_unit(question.statement)
        if question.builds_on or not _is_decimal(question.value):
            self.template = read_formula(question.value, list(question.builds_on))
        else:
            self.stated = read_number(question.value)
            self.template = Rational(as_polynomial(self.stated.value))
        sources = [source for id in question.builds_on if isinstance(source := earlier[id], ExpressionQuestion)]
        numbers = [source.expected.at(source.account.symbols if source.account else {}) for source in sources]
        self.expected = Rational(as_polynomial(self._derive(numbers)))
        if self.unit and self.unit != "%" and self.stated is None and not question.builds_on:
            self.expected.at({})  # a computation with numbers only has a value

    def _derive(self, numbers: Sequence[Fraction]) -> Fraction:
        """Return the number that is right if the earlier questions have these numbers."""
        return self.template.at(dict(zip(self.question.builds_on, numbers, strict=True)))

    def parse(self, text: str) -> WrittenNumber:
        """Parse a number; 5 % is read as 5 where the right value is in per cent already, else as 0.05."""
        number = self.parse_with_unit(text)
        if self.unit != "%" and number.is_percent and _PERCENT_FACTOR.search(self.question.value):
            return self._scale_percent(number)
        return number

    def check(self, answer: WrittenNumber, diagnose: bool) -> Verdict:
        """Return the verdict on a number; nothing is diagnosed. Raise an InputError if only its unit may be wrong."""
        if self.stated is not None and self.stated.unit and answer.unit < self.stated.unit:
            expected = self.stated.value  # the sheet's number is rounded: the answer may have more digits
            if abs(answer.value - expected) <= self.stated.unit / 2:
                answer = replace(answer, value=expected)
        verdict = _compare_number(self, answer)
        is_percent = self.unit == "%" or _PERCENT_FACTOR.search(self.question.value)
        if is_percent and not verdict.equal and not answer.is_percent and answer.value and answer.unit < 1:
            scaled = replace(answer, value=100 * answer.value, unit=100 * answer.unit, alternative=None)
            if scaled.matches(verdict.right_at) and abs(scaled.value - verdict.right_at) <= abs(verdict.right_at) / 100:
                raise InputError(f"'{answer.text[:40]}' may be meant as {float(scaled.value):g} %. Write the sign %.")
        return verdict

    def write_headline(self, verdict: Verdict, hint: str) -> str:
        """Return the hint, such as "Not right: too large."."""
        return hint

    def is_consistent(self, answer: WrittenNumber, earlier: Sequence[EarlierAnswer]) -> bool:
        """Return whether the number is the one that the student's earlier numbers lead to."""
        if not earlier:
            return False
        expected = self._derive([work.value for work in earlier])
        return answer.matches(expected) and self._is_close(answer.value, expected)


def _compare_number(question: NumericQuestion, answer: WrittenNumber) -> Verdict:
    """Return the verdict on a number, without a diagnosis."""
    expected = question.expected.at({})
    label = question.question.value or question.question.id
    texts = (label, "number", answer.text, format_number(expected))
    return Verdict(answer.is_right(expected), *texts, None, (), {}, answer.value, expected)


def _is_decimal(text: str) -> bool:
    """Return whether the text of a value is a single number with its digits, rather than a computation."""
    return re.fullmatch(r"\s*[-−+]?\d[\d,_]*(?:\.\d+)?(?:[eE][-+]?\d+)?\s*", text) is not None


def _in_unit(value: Fraction, unit: str, target_unit: str) -> Fraction:
    """Return a value in the wanted unit; unchanged if the units are not related, such as FLOPs and parameters."""
    (dimension, size), (other, base) = UNITS.get(unit.lower(), ("", 0)), UNITS.get(target_unit.lower(), ("-", 1))
    return value * Fraction(size) / Fraction(base) if dimension == other else value


_COUNTS = ("parameters", "active")
_NO_QUANTITY = Quantity("formula", "numbers", ())


def is_copied(text: str, earlier: Sequence[EarlierAnswer]) -> bool:
    """Return whether a text repeats a wrong answer to an earlier question: then nothing was derived from it."""
    return any(work.is_wrong and _squeeze(text) == _squeeze(work.text) for work in earlier)


def recurring_mistakes(mistakes: Sequence[str], earlier: Sequence[EarlierAnswer]) -> list[str]:
    """Return the ids of earlier questions in which the same mistakes were made; [] if a mistake is a new one."""
    ids: dict[str, None] = {}
    for mistake in map(_strip_name, mistakes):
        if mistake in NOT_RECURRING or mistake.endswith("is missing"):
            return []
        sources = [
            work for work in earlier if work.assessment and mistake in map(_strip_name, work.assessment.mistakes)
        ]
        if not sources:
            return []
        ids |= dict.fromkeys(work.question.question.id for work in sources)
    return list(ids)


def _squeeze(text: str) -> str:
    """Return a text without blanks, in lower case, for comparison."""
    return "".join(text.split()).casefold()


def _strip_name(mistake: str) -> str:
    """Return a mistake without the name of the value before it, and without the sizes that a formula was read at."""
    return re.sub(r"^(?:[^\s:]{1,40}: |Using .*? in your formula\. )", "", mistake)


class LinesQuestion(PreparedQuestion):
    """A question of a sheet for values or lines: any exercise whose `check` returns lines."""

    def __init__(self, question: SheetQuestion) -> None:
        super().__init__(question)
        self.compares_mistakes = bool(question.builds_on)
        main_names: Callable[[], Sequence[str]] = getattr(self.fields, "main_names", list)
        self.asks = tuple(self.fields.asks or main_names())
        if isinstance(self.fields, ValueExercise):
            (self.key, *_) = self.fields.answer_keys(())
            self.targets = [self._resolve(read_target(name)) for name in self.asks]
        if isinstance(self.fields, ShapeCheck):
            self.fields.check([f"{name} = 1" for name in self.asks])  # a model or tensor that does not exist
        if question.partial and not self.asks:
            raise InputError(
                f"partial: say which values or lines are asked for, as in asks = [...], for {question.kind}."
            )
        names = ", ".join(self.asks)
        self.solution = f"{names} = …" if names else "…"

    @cached_property
    def right_answer(self) -> str | None:
        """The right answer as text, for sheets that show it; None where it is not written out."""
        if not isinstance(self.fields, ValueExercise) or not self.question.show_answer:
            return None
        return "; ".join(describe_solution(value)[0] for value in self.fields.select_targets())

    def _resolve(self, target: Target) -> tuple[str, tuple[str, ...]]:
        """Return the canonical name of a target's value, and its labels for comparison; raise an InputError."""
        if absence := self.key.explain_absence(target.name):
            return target.name, (absence[0],)
        self.key.find(target)
        return self.key.find(Target(target.name)).name, tuple(map(normalize_name, target.labels))

    def read(self, text: str) -> Sequence[AnswerReading]:
        """Return the readings of lines: as written, and without what stands around them."""
        exercise = self.fields
        is_values = isinstance(exercise, ValueExercise)
        name = self.asks[0] if len(self.asks) == 1 and not isinstance(exercise, DerivationCheck) else ""
        readings = read_claims(text, self.question.id, name, is_values, isinstance(exercise, DerivationCheck))
        parsed: list[AnswerReading] = []
        error: InputError | None = None
        for reading in readings:
            try:
                parsed.append(replace(reading, answer=self._check(reading.text.splitlines())))
            except InputError as raised:
                error = error or raised
        if not parsed:
            parsed = self._read_target(readings[-1].text.splitlines())
        if not parsed:
            raise error or InputError("there is no line to check")
        return parsed

    def _check(self, lines: Sequence[str]) -> Any:
        """Return the report of the exercise on lines."""
        return self.fields.check(lines)

    def _read_target(self, lines: Sequence[str]) -> list[AnswerReading]:
        """Return a reading of only the lines that can be read, if they answer everything; [] if they do not."""
        readable: list[str] = []
        for line in lines[:MAX_LINES]:
            try:
                self._check([line])
            except InputError:
                continue
            readable.append(line)
        if not readable or len(readable) == len(lines):
            return []
        try:
            report = self._check(readable)
        except InputError:
            return []
        if not self.asks or "missing" in self._outcomes(report).values():
            return []
        note = f"Lines that were not read: {len(lines) - len(readable)}."
        return [AnswerReading("\n".join(readable), report, note=note)]

    def _outcomes(self, report: Any) -> dict[str, str]:
        """Return "right", "wrong" or "missing" for each value or line that is asked for, by its name."""
        if not self.asks:
            return {"": "right" if report else "wrong"}
        if not isinstance(self.fields, ValueExercise):
            outcomes = {}
            has_names = any(self.names_line(line, name) for line in report.lines for name in self.asks)
            in_order = (
                not has_names and len(report.lines) == len(self.asks) and not any(map(self._has_name, report.lines))
            )
            for index, name in enumerate(self.asks):
                lines = [line for line in report.lines if self.names_line(line, name)]
                lines = [report.lines[index]] if in_order else lines
                rights = [line.outcome == "right" for line in lines]
                outcomes[name] = "missing" if not rights else "right" if all(rights) else "wrong"
            return outcomes
        claims = [(line, read_claim(line.text)) for line in report.lines]
        entries = [(*self._resolve(claim.target), line.right) for line, claim in claims if claim.sign == "="]
        outcomes = {}
        for name, (value, labels) in zip(self.asks, self.targets, strict=True):
            direct = [right for other, selected, right in entries if other == value and selected in (labels, ())]
            parts = {
                selected: right for other, selected, right in entries if other == value and selected not in (labels, ())
            }
            size = prod(self.key.find(Target(value)).shape or (1,))
            if direct:
                outcomes[name] = "right" if all((*direct, *parts.values())) else "wrong"
            elif not labels and parts:
                outcomes[name] = "wrong" if not all(parts.values()) else "right" if len(parts) >= size else "missing"
            else:
                outcomes[name] = "missing"
        return outcomes

    def names_line(self, line: Any, name: str) -> bool:
        """Return whether a checked line is about the value of this name."""
        text, find = self._line_name(line), getattr(self.fields, "find", None)
        if find is not None and (value := find(text)) is not None:
            other = find(name)
            return other is not None and value.name == other.name
        stated, expected = normalize_name(text), normalize_name(name)
        return stated == expected or stated.endswith(f".{expected}")

    def _line_name(self, line: Any) -> str:
        """Return the name at the start of a checked line, or all of it if it has none."""
        text = getattr(line, "name", None) or re.split(r"[=≈:]", str(line.text), maxsplit=1)[0]
        return str(text).strip().strip("$").strip()

    def _has_name(self, line: Any) -> bool:
        """Return whether a checked line says which value it is about."""
        find = getattr(self.fields, "find", None)
        return find(self._line_name(line)) is not None if find else self._line_name(line) != str(line.text).strip()

    def explain(self, report: Any, outcomes: Mapping[str, str]) -> list[str]:
        """Return the mistakes in the wrong lines, for the teacher, each after its name if several are asked for."""
        mistakes = [f"{name} is missing" for name, outcome in outcomes.items() if outcome == "missing"]
        for line in report.lines:
            if line.outcome != "wrong":
                continue
            text = str(getattr(line, "mistake", "") or getattr(line, "reason", "")).rstrip(".")
            name = str(getattr(line, "name", "") or str(line.text).partition("=")[0]).strip()[:40]
            mistakes.append(f"{name}: {text or UNEXPLAINED}" if len(self.asks) != 1 and name else text or UNEXPLAINED)
        return mistakes

    def assess(self, text: str, answer: Any, earlier: Sequence[EarlierAnswer], diagnose: bool) -> Assessment:
        """Mark values or lines: all of them, or with `partial` each for its part."""
        outcomes = self._outcomes(answer)
        mistakes = self.explain(answer, outcomes)
        recurring: list[str] = []
        if "wrong" in outcomes.values() and not is_copied(text, earlier):
            recurring = recurring_mistakes([each for each in mistakes if not each.endswith("is missing")], earlier)
        if recurring:
            outcomes = {name: "follows" if outcome == "wrong" else outcome for name, outcome in outcomes.items()}
        source = "the mistake of " + " and ".join(recurring) + " again, which counts only there" if recurring else ""
        notes = [note for line in answer.lines if line.outcome == "wrong" for note in line.notes]
        return self.make_assessment(outcomes, mistakes, tuple(recurring), source, notes)

    def make_assessment(
        self,
        outcomes: Mapping[str, str],
        mistakes: Sequence[str],
        error_sources: tuple[str, ...],
        source: str,
        notes: Sequence[str],
        hint_notes: str = "",
        is_diagnosed: bool = True,
    ) -> Assessment:
        """Return the assessment of outcomes by name.

        Args:
            mistakes: for the teacher.
            error_sources: earlier questions whose mistakes explain those that follow.
            source: clause on what follows from what; "" if nothing does.
            notes: lines of the reason, for sheets that show the right answer.
            hint_notes: sentences that students may see too.
            is_diagnosed: whether mistakes were looked for.
        """
        credit_by_outcome = {"right": 1.0, "follows": self.question.follow_through}
        fractions = [credit_by_outcome.get(outcome, 0.0) for outcome in outcomes.values()]
        fraction = sum(fractions) / len(fractions) if self.question.partial else min(fractions)
        if [*outcomes] == [""] or (len(outcomes) == 1 and not isinstance(self.fields, GradientCheck)):
            hint = {"right": "Right.", "wrong": "Not right.", "follows": "Not right, but it follows."}.get(
                next(iter(outcomes.values())), f"{next(iter(outcomes))} is missing."
            )
        else:
            hint = ", ".join(f"{name} {outcome}" for name, outcome in outcomes.items()) + "."
        hint += f" {source[:1].upper()}{source[1:]}." if source else ""
        hint += hint_notes
        if not {*outcomes.values()} <= {"right", "follows"}:
            error_sources = ()
        if {*outcomes.values()} == {"right"}:
            mistakes = ()
        reason = "\n".join([hint, *notes])
        return Assessment(
            fraction, reason, hint, self.right_answer, tuple(mistakes), None, error_sources, is_diagnosed=is_diagnosed
        )


class GradientQuestion(LinesQuestion):
    """A question of a sheet that asks for gradients of a function, a line each."""

    def __init__(self, question: SheetQuestion) -> None:
        super().__init__(question)
        self.compares_mistakes = False
        self.cell = self.fields.function
        self.solution = "\n".join(f"{line} = …" for line in self.asks)  # the gradients themselves are left out

    @work_limit(None)  # gradients are checked on tensors, within bounds of their own
    def _check(self, lines: Sequence[str]) -> Any:
        """Return the report on lines, without diagnoses; a line that can be read is enough."""
        return check_gradients(self.cell, lines, diagnose=False)

    def names_line(self, line: Any, name: str) -> bool:
        """Return whether a checked line derives the gradient of this name."""
        return line.name == self.cell.canonical(name)

    @work_limit(None)
    def assess(self, text: str, answer: Any, earlier: Sequence[EarlierAnswer], diagnose: bool) -> Assessment:
        """Mark gradients line by line; a wrong gradient may follow from gradients that the student derived before."""
        cell, lines = self.cell, text.splitlines()
        previous = [line for work in earlier for line in work.text.splitlines()]
        derived, attempted = _earlier_gradients(cell, previous)
        report = check_gradients(cell, lines, diagnose, derived_before=derived, attempted_before=attempted)
        outcomes, consistent = self._outcomes(report), set[str]()
        for name in [name for name, outcome in outcomes.items() if outcome == "wrong" and previous]:
            # what an earlier answer says of this gradient itself is left out: a copy of it derives nothing
            samples = follow_through_samples(cell, previous, cell.canonical(name))
            if samples:
                again = self._outcomes(check_gradients(cell, lines, False, samples, derived, attempted))
                consistent |= {name} if again[name] == "right" else set()
        outcomes |= dict.fromkeys(consistent, "follows")
        assumed = sorted({name for line in report.checked for name in line.taken})
        notes = [f"{line.name}: {'; '.join(line.notes)}" for line in report.checked if line.notes]
        mistakes = [f"{name} is missing" for name, outcome in outcomes.items() if outcome == "missing"]
        following = {cell.canonical(name) for name in consistent}
        for line in report.checked:
            if line.outcome == "wrong" and line.name not in following:
                mistakes.append(f"{line.name}: {re.sub(r'^relative error [^:;]*[:;] ', '', line.reason)}")
        source = f"those that follow are right with your own answer to {' and '.join(self.question.builds_on)}"
        assumptions = f" Taken as given: {', '.join(assumed)}." if assumed else ""
        error_sources = self.question.builds_on if consistent else ()
        return self.make_assessment(
            outcomes, mistakes, error_sources, source if consistent else "", notes, assumptions, is_diagnosed=diagnose
        )


def _earlier_gradients(cell: GradientCell, lines: Sequence[str]) -> tuple[set[str], set[str]]:
    """Check the lines of an earlier answer; return the names of the right gradients and of the wrong ones."""
    try:
        checked = check_gradients(cell, lines, diagnose=False).checked if lines else ()
    except InputError:
        return set(), set()
    right = {line.name for line in checked if line.outcome == "right"}
    return right, ({line.name for line in checked} & {*cell.gradients}) - right


@limited_work(60_000)
def follow_through_samples(cell: GradientCell, lines: Sequence[str], target: str = "") -> tuple[Sample, ...]:
    """Return a cell's samples with the gradients that follow from those a student's lines compute, right or wrong.

    Backpropagation continues from the student's gradient of a value instead of the true one: the gradients of values
    before it are then right with the student's mistake. Lines on `target`, the gradient that is checked, are left out.
    Return () if all lines are right.
    """
    samples: list[Sample] = []
    try:
        derivation = read_derivation(cell, lines)
    except InputError:
        return ()
    for sample in cell.samples:
        values, derived = dict(sample.values), dict[str, torch.Tensor]()
        for line in derivation:
            try:
                value = Evaluator(values)(line.expression)
            except ShapeError:
                continue
            if (
                line.name in cell.gradients
                and line.name != target
                and value.shape == values[line.name].shape
                and value.isfinite().all()
            ):
                derived[line.name] = value
            if line.name in derived or line.name not in cell.all_names:
                values[line.name] = value  # also where it is another line's helper
        if all(torch.allclose(value, sample.values[gradient]) for gradient, value in derived.items()):
            return ()
        gradients = _backpropagate(cell, sample, derived)
        samples.append(Sample(sample.size_names, {**sample.values, **gradients, **derived}))
    return tuple(samples)


def _backpropagate(cell: GradientCell, sample: Sample, derived: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return all gradients of a cell in a sample, computed with those in `derived` in place of autograd's."""
    values = {name: sample.values[name].clone() for name in (*cell.sizes, *cell.input_shapes)}
    for name in cell.input_shapes:
        values[name].requires_grad_(f"d{name}" in cell.gradients)
    with torch.enable_grad():
        for equation in cell.equations:
            values[equation.name] = Evaluator(values)(equation.expression)
            gradient = derived.get(f"d{equation.name}")
            if gradient is not None:
                values[equation.name].register_hook(lambda _, gradient=gradient: gradient)
    inputs = [values[gradient[1:]] for gradient in cell.gradients]
    return dict(zip(cell.gradients, torch.autograd.grad(values["loss"], inputs), strict=True))


@work_limit(MAX_MARKING_STEPS)
def prepare_question(question: SheetQuestion, earlier: Mapping[str, PreparedQuestion], source: str) -> PreparedQuestion:
    """Compute the right answer to a question; `earlier` has those before it by id. Errors name the sheet `source`."""
    label = f"{source}: question {question.id}"
    fields = question.fields
    field = "value" if question.value else "change" if getattr(fields, "change", "") else "model"
    try:
        match question.kind:
            case "gradient":
                return GradientQuestion(question)
            case "formula":
                prepared = DerivedFormula(question, earlier)
            case "number":
                prepared = DerivedNumber(question, earlier) if question.value else ModelNumber(question)
            case "parameters" | "flops" | "trainable":
                prepared = ModelFormula(question)
            case _:
                field = question.kind
                with work_limit(None):  # exercises have bounds of their own
                    return LinesQuestion(question)
        field = "credit"
        _ = prepared.credit  # an answer that cannot be read is an error of the sheet
        return prepared
    except SpecError as error:  # an unknown model or setting
        raise prefix_lines(error, label) from None
    except InputError as error:
        raise InputError(f"{label}: {field}: {error}") from None
