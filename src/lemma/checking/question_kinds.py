"""The kinds of questions on a sheet, one class each.

A question is prepared once: its model is counted and what is right is computed. An answer is then parsed once and
assessed; the mistake behind a wrong answer is looked for only where that is asked for, since it takes longer.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import torch

from lemma.checking.cells import GradientCell, Sample, find_cell
from lemma.checking.check_formula import FormulaExercise
from lemma.checking.check_number import NumberExercise
from lemma.checking.compare_formula import FormulaComparison, Verdict, compare_answer, format_number, has_symbols
from lemma.checking.expressions import Evaluator, ShapeError, limited_work
from lemma.checking.gradients import GradientReport, check_gradients, read_derivation
from lemma.checking.read_formula import read_formula, substitute
from lemma.checking.sheets import SheetQuestion, prefix_lines
from lemma.counting.account import Account
from lemma.counting.polynomial import Calculator, Rational, as_polynomial, symbol, work_limit
from lemma.counting.writing import write_formula
from lemma.errors import InputError, SpecError
from lemma.report.numbers import WrittenNumber, read_number

MAX_MARKING_STEPS = 40_000  # of work for one answer, see `work_limit`: a class hands in many
NOT_DIAGNOSED, UNEXPLAINED = "not diagnosed", "wrong, without a simple explanation"
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
    follows_from: tuple[str, ...] = ()  # earlier questions; it is right only with the student's wrong answers to these
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
    text: str
    answer: Any = None  # as parsed
    assessment: Assessment | None = None

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

    def __init__(self, question: SheetQuestion) -> None:
        self.question = question

    @abstractmethod
    def parse(self, text: str) -> Any:
        """Parse the text of an answer into the form that `assess` takes; raise an InputError if it cannot be read."""

    @abstractmethod
    def assess(self, text: str, answer: Any, earlier: Sequence[EarlierAnswer], diagnose: bool) -> Assessment:
        """Mark an answer.

        Args:
            text: the answer as the student wrote it.
            answer: the result of `parse` for this text.
            earlier: the student's answers to the questions that this one builds on.
            diagnose: whether to explain a wrong answer.
        """


class ExpressionQuestion(PreparedQuestion):
    """A question of a sheet that asks for a formula or a number."""

    at_sizes: ClassVar[str] = ""  # how a hint calls the place where two formulas are compared

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
        question, assessment = self.question, self._assess_alone(text, answer, diagnose)
        if assessment.fraction == 1:
            return assessment
        fractions = [fraction for other, fraction in self.credit if self.is_same(answer, other)]
        if fractions:
            assessment = replace(assessment, fraction=max(fractions), hint="Right in part.")
        assessments = [work.assessment for work in earlier if work.assessment and work.assessment.value is not None]
        if not earlier or len(assessments) < len(earlier):
            return assessment
        try:
            if not self.is_consistent(answer, earlier):
                return assessment
        except InputError:  # the student's formulas divide by zero, need too much work or have no value at these sizes
            return assessment
        has_mistake = any(previous.fraction < 1 or previous.follows_from for previous in assessments)
        fraction = question.follow_through if has_mistake else 1.0
        if fraction <= assessment.fraction:
            return assessment
        reason = f"Right with your own answer to {' and '.join(question.builds_on)}."
        follows_from = question.builds_on if has_mistake else ()
        return replace(
            assessment, fraction=fraction, hint=reason, reason=reason, mistakes=(), follows_from=follows_from
        )

    def _assess_alone(self, text: str, answer: Any, diagnose: bool) -> Assessment:
        """Mark an answer without regard to earlier answers and partial credit; arguments as of `assess`."""
        verdict = self.check(answer, diagnose)
        value, expected = Fraction(verdict.yours_at), Fraction(verdict.right_at)
        error = mistake = ""
        if verdict.solution != verdict.right and not has_symbols(verdict.yours):
            error, mistake = "a formula is asked for, not a number", "a number in place of a formula"
        elif verdict.equal and self.question.kind == "number" and not self._is_close(value, expected):
            error, mistake = f"{text} is rounded too far", "rounded too far"
        if error:
            reason = f"Not right: {error}."
            return Assessment(0.0, reason, reason, verdict.solution, (mistake,), value, is_diagnosed=True)
        hint = "Right." if verdict.equal else "Not right."
        if not verdict.equal and value != expected:
            hint = f"Not right: {'too large' if value > expected else 'too small'}{self.at_sizes}."
        # the diagnosis of a change starts with the numbers at both sizes
        mistake = " ".join(verdict.diagnosis[1:] if self.question.change else verdict.diagnosis)
        if not mistake or mistake.startswith("No simple explanation"):
            mistake = UNEXPLAINED if diagnose else NOT_DIAGNOSED
        mistakes = () if verdict.equal else (mistake,)
        reason = " ".join([self.write_headline(verdict, hint), *verdict.diagnosis, *verdict.remarks])
        fraction = float(verdict.equal)
        return Assessment(fraction, reason, hint, verdict.solution, mistakes, value, is_diagnosed=diagnose)

    def _is_close(self, value: Fraction | int, expected: Fraction) -> bool:
        """Return whether a number differs from the expected one by no more than the question's relative tolerance."""
        return abs(value - expected) <= Fraction(self.question.tolerance) * abs(expected)


class FormulaAnswerQuestion(ExpressionQuestion):
    """A question of a sheet that asks for a formula, in the symbols of an account."""

    at_sizes = " at the model's sizes"

    def parse(self, text: str) -> FormulaComparison:
        """Parse a formula, which may lack sizes that the question sets; return it next to the account's formula."""
        return compare_answer(self.account, self.question.kind, text, self.aliases, self.question.settings)

    def expand_formula(self, answer: FormulaComparison) -> Rational:
        """Return the student's formula; sizes that follow from others, such as d_ff = 4d, are replaced."""
        return substitute(answer.answer, self.account.defaults)

    def is_same(self, answer: FormulaComparison, other: FormulaComparison) -> bool:
        """Return whether two parsed formulas are equal once sizes that follow from others are replaced."""
        return self.expand_formula(answer) == self.expand_formula(other)


class ModelFormula(FormulaAnswerQuestion):
    """A question of a sheet that asks for the formula of a model's parameters or FLOPs."""

    def __init__(self, question: SheetQuestion) -> None:
        exercise = FormulaExercise(question.model, question.kind, question.settings, question.conventions)
        super().__init__(question, exercise)
        quantity = self.account.quantities[question.kind]
        if quantity.at(self.account.symbols) is None or quantity.refused:
            raise InputError(f"the {question.kind} of {question.model} follow no formula. Ask for something else.")
        self.expected = substitute(Rational(quantity.polynomial), self.account.defaults)
        self.solution = quantity.write_formula(self.account.order)


class DerivedFormula(FormulaAnswerQuestion):
    """A question of a sheet for a formula that is computed from the answers to earlier questions, such as 16*Q1."""

    def __init__(self, question: SheetQuestion, earlier: Mapping[str, PreparedQuestion]) -> None:
        super().__init__(question)
        sources = [source for id in question.builds_on if isinstance(source := earlier[id], ExpressionQuestion)]
        accounts = [source.account for source in sources if source.account is not None]
        if not accounts:
            raise InputError(f"'{question.value}' builds on numbers only. Ask for a number: kind = 'number'.")
        symbols, defaults = dict(accounts[0].symbols), dict(accounts[0].defaults)
        for account in accounts[1:]:
            for name, size in account.symbols.items():
                if symbols.setdefault(name, size) != size:
                    raise InputError(f"{name} is {symbols[name]} in one of the models and {size} in another.")
            defaults |= account.defaults
        quantity = next(iter(accounts[0].quantities.values()))
        self.account = Account(question.value, symbols, {"formula": quantity}, defaults)
        self.aliases = {alias: name for source in sources for alias, name in source.aliases.items()}
        names = {**self.aliases, **{name: name for name in self.account.order}}
        readable = [*question.builds_on, *(name for name in names if name not in question.builds_on)]
        # the id of a question may be a symbol of another question's formula
        placeholders = {id: symbol(f"?{id}") for id in question.builds_on}
        self.template = substitute(read_formula(question.value, readable), placeholders)
        self.meanings = {alias: symbol(name) for alias, name in names.items() if alias != name}
        self.expected = self._derive([source.expected for source in sources])
        self.solution = write_formula(self.expected, self.account.order)

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
        if formula.constant is not None or answer.has_wrong_number:  # no number is a formula
            return False
        return formula == self._derive([work.formula for work in earlier])


class NumericQuestion(ExpressionQuestion):
    """A question of a sheet that asks for a number."""

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
        exercise = NumberExercise(question.model, question.quantity, question.settings, question.conventions)
        super().__init__(question, exercise)
        expected = exercise.quantity.at(self.account.symbols)
        if expected is None:
            raise InputError(f"the {question.quantity} of {question.model} follow no formula. Ask for something else.")
        if question.change:
            expected = exercise.expected_change(self.parse("1 %"))
        self.expected = Rational(as_polynomial(expected))

    def parse(self, text: str) -> WrittenNumber:
        """Parse a number; for a change, a percentage with or without its sign, between the sizes of the question."""
        if self.question.change:  # the sheet names the two sizes, whatever the student writes
            number = text.lower().partition("from")[0].strip()
            percent = "" if "%" in number or "cent" in number else " %"
            return read_number(f"{number}{percent} {self.question.change}")
        number = read_number(text)
        if number.start or number.is_percent:
            raise InputError("a plain number is asked for, not a change in per cent.")
        return number

    def is_consistent(self, answer: WrittenNumber, earlier: Sequence[EarlierAnswer]) -> bool:
        """Return whether the number is the value, or change, of the student's formula in the earlier question."""
        formula = compare_answer(self.account, self.question.quantity, earlier[0].text, self.aliases).answer_polynomial
        if formula is None:
            return False
        sizes, change = self.account.symbols, self.question.change
        expected = self.exercise.expected_change(answer, formula) if change else formula.at(sizes)
        return answer.is_right(expected) and self._is_close(answer.value, expected)


class DerivedNumber(NumericQuestion):
    """A question of a sheet for a number that is computed from the answers to earlier questions, such as 100*Q1/Q2."""

    def __init__(self, question: SheetQuestion, earlier: Mapping[str, PreparedQuestion]) -> None:
        super().__init__(question)
        self.template = read_formula(question.value, list(question.builds_on))
        sources = [source for id in question.builds_on if isinstance(source := earlier[id], ExpressionQuestion)]
        numbers = [source.expected.at(source.account.symbols if source.account else {}) for source in sources]
        self.expected = Rational(as_polynomial(self._derive(numbers)))

    def _derive(self, numbers: Sequence[Fraction]) -> Fraction:
        """Return the number that is right if the earlier questions have these numbers."""
        return self.template.at(dict(zip(self.question.builds_on, numbers, strict=True)))

    def parse(self, text: str) -> WrittenNumber:
        """Parse a number; 5 % is read as 5 where the right value is in per cent already, else as 0.05."""
        number = read_number(text)
        if number.start:
            raise InputError("a plain number is asked for, not a change in per cent.")
        if number.is_percent and _PERCENT_FACTOR.search(self.question.value):  # the value is in per cent already
            return replace(number, value=100 * number.value, unit=100 * number.unit)
        return number

    def check(self, answer: WrittenNumber, diagnose: bool) -> Verdict:
        """Return the verdict on a number; nothing is diagnosed."""
        expected = self.expected.at({})
        texts = (self.question.value, "number", answer.text, format_number(expected))
        return Verdict(answer.is_right(expected), *texts, None, (), {}, answer.value, expected)

    def write_headline(self, verdict: Verdict, hint: str) -> str:
        """Return the hint, such as "Not right: too large."."""
        return hint

    def is_consistent(self, answer: WrittenNumber, earlier: Sequence[EarlierAnswer]) -> bool:
        """Return whether the number is the one that the student's earlier numbers lead to."""
        expected = self._derive([work.value for work in earlier])
        return answer.matches(expected) and self._is_close(answer.value, expected)


class GradientQuestion(PreparedQuestion):
    """A question of a sheet that asks for gradients of a cell, a line each."""

    def __init__(self, question: SheetQuestion) -> None:
        super().__init__(question)
        self.cell = find_cell(question.cell)
        self.solution = "\n".join(f"{line} = …" for line in question.lines)  # the gradients themselves are left out

    def parse(self, text: str) -> list[str]:
        """Split an answer into its lines, which `assess` parses."""
        return text.splitlines()

    @work_limit(None)  # gradients are checked on tensors, within bounds of their own
    def assess(self, text: str, answer: list[str], earlier: Sequence[EarlierAnswer], diagnose: bool) -> Assessment:
        """Mark gradients line by line; a wrong gradient may follow from gradients that the student derived before."""
        question, cell = self.question, self.cell
        previous = [line for work in earlier for line in work.text.splitlines()]
        derived, attempted = _earlier_gradients(cell, previous)
        report = check_gradients(cell, answer, diagnose, derived_before=derived, attempted_before=attempted)
        outcomes, consistent = self._outcomes(report), set[str]()
        if previous and "wrong" in outcomes.values() and (samples := follow_through_samples(cell, previous)):
            again = self._outcomes(check_gradients(cell, answer, False, samples, derived, attempted))
            consistent = {name for name, outcome in outcomes.items() if outcome == "wrong" and again[name] == "right"}
            outcomes |= dict.fromkeys(consistent, "follows")
        credit_by_outcome = {"right": 1.0, "follows": question.follow_through}
        fractions = [credit_by_outcome.get(outcome, 0.0) for outcome in outcomes.values()]
        fraction = sum(fractions) / len(fractions) if question.partial else min(fractions)
        assumed = sorted({name for line in report.checked for name in line.taken})
        hint = ", ".join(f"{name} {outcome}" for name, outcome in outcomes.items()) + "."
        if consistent:
            hint += f" Those that follow are right with your own answer to {' and '.join(question.builds_on)}."
        hint += f" Taken as given: {', '.join(assumed)}." if assumed else ""
        notes = [f"{line.name}: {'; '.join(line.notes)}" for line in report.checked if line.notes]
        mistakes = [f"{name} is missing" for name, outcome in outcomes.items() if outcome == "missing"]
        following = {cell.canonical(name) for name in consistent}
        for line in report.checked:
            if line.outcome == "wrong" and line.name not in following:
                mistakes.append(f"{line.name}: {re.sub(r'^relative error [^:;]*[:;] ', '', line.reason)}")
        follows_from = question.builds_on if consistent and {*outcomes.values()} <= {"right", "follows"} else ()
        reason = "\n".join([hint, *notes])
        return Assessment(fraction, reason, hint, None, tuple(mistakes), None, follows_from, is_diagnosed=diagnose)

    def _outcomes(self, report: GradientReport) -> dict[str, str]:
        """Return "right", "wrong" or "missing" for each gradient that the question asks for, by its name."""
        outcomes = {}
        for name in self.question.lines:
            lines = [line.outcome == "right" for line in report.checked if line.name == self.cell.canonical(name)]
            outcomes[name] = "missing" if not lines else "right" if all(lines) else "wrong"
        return outcomes


def _earlier_gradients(cell: GradientCell, lines: Sequence[str]) -> tuple[set[str], set[str]]:
    """Check the lines of an earlier answer; return the names of the right gradients and of the wrong ones."""
    try:
        checked = check_gradients(cell, lines, diagnose=False).checked if lines else ()
    except InputError:
        return set(), set()
    right = {line.name for line in checked if line.outcome == "right"}
    return right, ({line.name for line in checked} & {*cell.gradients}) - right


@limited_work(60_000)
def follow_through_samples(cell: GradientCell, lines: Sequence[str]) -> tuple[Sample, ...]:
    """Return a cell's samples with the gradients that follow from those a student's lines compute, right or wrong.

    Backpropagation continues from the student's gradient of a value instead of the true one: the gradients of values
    before it are then right with the student's mistake. Return () if all lines are right.
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
            if line.name in cell.gradients and value.shape == values[line.name].shape and value.isfinite().all():
                derived[line.name] = value
            if line.name in derived or line.name not in cell.all_names:
                values[line.name] = value
        if all(torch.allclose(value, sample.values[gradient]) for gradient, value in derived.items()):
            return ()
        gradients = _backpropagate(cell, sample, derived)
        samples.append(Sample(sample.size_names, {**sample.values, **gradients, **derived}))
    return tuple(samples)


def _backpropagate(cell: GradientCell, sample: Sample, derived: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return all gradients of a cell in a sample, computed with those in `derived` in place of autograd's."""
    values = {name: sample.values[name].clone() for name in (*cell.sizes, *cell.input_sides)}
    for name in cell.input_sides:
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
    field = "value" if question.value else "change" if question.change else "model"
    try:
        match question.kind:
            case "gradient":
                return GradientQuestion(question)
            case "formula":
                prepared = DerivedFormula(question, earlier)
            case "number":
                prepared = DerivedNumber(question, earlier) if question.value else ModelNumber(question)
            case _:
                prepared = ModelFormula(question)
        field = "credit"
        _ = prepared.credit  # an answer that cannot be read is an error of the sheet
        return prepared
    except SpecError as error:  # an unknown model or setting
        raise prefix_lines(error, label) from None
    except InputError as error:
        raise InputError(f"{label}: {field}: {error}") from None
