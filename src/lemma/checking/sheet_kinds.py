"""The kinds of questions on a sheet: for each its class, whose fields are what the question states.

Formulas and numbers have fields alone, since marking compares them. Every other kind is an exercise with lines: those
of `lemma.spec.exercises`, and here the checks of gradients, shapes, derivations, worked cases and identities.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from lemma.checking.cells import CELL_NAMES, GradientCell, find_cell
from lemma.checking.check_values import AnswerKey, ValueClaim, ValueReport
from lemma.checking.checked_lines import CheckedLines
from lemma.checking.derivation import DerivationReport, DerivationStep, check_derivation
from lemma.checking.exercises.base import Exercise, ExerciseHelp, HelpLevel, ValueExercise
from lemma.checking.exercises.registry import load_kind
from lemma.checking.expected_values import ExpectedValue, expect_words, normalize_word
from lemma.checking.gradients import check_gradients, describe_cell
from lemma.checking.shapes import check_shapes
from lemma.counting.count import QUANTITIES, Conventions
from lemma.errors import InputError, SpecError, describe_unknown
from lemma.spec.base import Spec, parse_settings
from lemma.spec.exercises import KINDS

_NAME_OF_STEP = re.compile(r"^[A-Za-z]+(?:_[A-Za-z0-9]+)?\s*=")
YES = frozenset({"yes", "true", "holds", "right", "correct", "it holds", "y", "1"})
NO = frozenset({"no", "false", "wrong", "does not hold", "it does not hold", "incorrect", "n", "0"})


def split_names(value: Any) -> Any:
    """Split text such as "dW, db" into names; return any other value unchanged."""
    return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else value


def _read_settings(value: Any) -> Any:
    """Turn text such as "L=2, d=64" into a table; return any other value unchanged."""
    return parse_settings(value.replace(",", " ").split()) if isinstance(value, str) else value


def _as_text(value: Any) -> Any:
    """Turn a number into text; return any other value unchanged."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Names = Annotated[tuple[str, ...], BeforeValidator(split_names)]
Settings = Annotated[dict[str, Any], BeforeValidator(_read_settings)]
Value = Annotated[str, BeforeValidator(_as_text)]


class ModelFields(Spec):
    """A question for the formula of a model's parameters, FLOPs or trainable parameters."""

    renamed: ClassVar[Mapping[str, str]] = {"words": "settings"}

    model: str = ""
    """Model that the question is about."""
    settings: Settings = Field(default_factory=dict)
    """The model's settings, as a table or as key=value."""
    multiply_add: Literal[1, 2] = 2
    """What a multiply–add counts as."""
    causal: Literal["full", "half"] = "full"
    """Whether causal attention counts in full."""

    @property
    def conventions(self) -> Conventions:
        """The conventions by which operations are counted."""
        return Conventions(self.multiply_add, self.causal)

    @model_validator(mode="after")
    def _check_model(self) -> Self:
        """Return the fields; raise a ValueError if nothing says what is right."""
        if not self.model and not getattr(self, "value", ""):
            raise ValueError("model: the question needs one, as in model = 'decoder'.")
        return self


class NumberFields(ModelFields):
    """A question for a number: of a model, in terms of earlier answers, or a plain one."""

    quantity: str = "parameters"
    """What a number of a model counts."""
    change: str = ""
    """Sizes between which a change in per cent is asked for, as in: from 2 to 4 layers."""
    value: Value = ""
    """Right number: 42, a computation, or in terms of earlier questions, as in 16*Q1."""
    unit: str = ""
    """Unit of the number, such as bytes, ms or %; answers may be in another unit of the same kind."""
    tolerance: Annotated[float, Field(ge=0, le=1)] = 0.01
    """How far a rounded number may be off, as a part of the right one."""

    @model_validator(mode="after")
    def _check_number(self) -> Self:
        """Return the fields; raise a ValueError for fields that do not fit each other."""
        if self.value and (self.model or self.change):
            raise ValueError("value: says what is right; a model or a change would say it again. Leave them out.")
        if not self.value and self.quantity not in QUANTITIES:
            raise ValueError(describe_unknown("quantity", self.quantity, QUANTITIES))
        return self


class FormulaFields(Spec):
    """A question for a formula: in terms of earlier answers, as in 16*Q1, or a formula without a model."""

    value: Value = ""
    """Right formula: in terms of earlier questions, as in 16*Q1, or alone, as in n^2 + 3n."""
    symbols: Names = ()
    """Further symbols that an answer to a formula without a model may use."""
    settings: Settings = Field(default_factory=dict)
    """Sizes of the symbols of a formula without a model, at which a number after it is checked."""

    @model_validator(mode="after")
    def _check_value(self) -> Self:
        """Return the fields; raise a ValueError without a value."""
        if not self.value:
            raise ValueError("value: a question of kind formula needs one, as in value = '16*Q1' or 'n^2 + 3n'.")
        return self


class GradientCheck(Exercise):
    """Gradients of a function, one line each."""

    kind: ClassVar[str] = "gradient"
    renamed: ClassVar[Mapping[str, str]] = {"lines": "asks"}

    cell: str | dict[str, Any] = ""
    """Function: its name, a TOML file next to the sheet, or the table of such a file."""
    asks: Names = ()
    """Gradients asked for; `lines` is another name of this field."""

    @model_validator(mode="after")
    def _check_cell(self) -> Self:
        """Return the exercise; raise a ValueError for an unknown function or gradient."""
        if isinstance(self.cell, str) and self.cell not in CELL_NAMES:
            raise ValueError(f"{describe_unknown('cell', self.cell, CELL_NAMES)} Or name a TOML file, as in mine.toml.")
        cell = self.function
        if not cell.gradients:
            raise ValueError(f"cell: {cell.name} has no loss, and so no gradients. Give one, as in loss = 'sum(dY*Y)'.")
        if not self.asks:
            raise ValueError(f"lines: name the gradients asked for, such as {', '.join(cell.gradients[:2])}.")
        for name in self.asks:
            if cell.canonical(name) not in cell.gradients:
                raise ValueError(describe_unknown("lines", name, cell.gradients))
        return self

    @property
    def function(self) -> GradientCell:
        """The function; without the answers that its file may hold."""
        cell = find_cell(self.cell)
        return cell.model_copy(update={"answers": ()}) if cell.answers else cell

    def check(self, answers: Sequence[str], show_solution: bool = False) -> CheckedLines[Any]:
        """Check lines `NAME = EXPRESSION` against autograd."""
        return check_gradients(self.function, answers)

    def describe(self) -> str:
        """Return the function with all names that an answer may use."""
        return describe_cell(self.function)

    def help_with(self, level: HelpLevel, answers: Sequence[str] = ()) -> ExerciseHelp:
        """Return the wrong lines of an answer; hints and solutions of gradients are not written out."""
        return _locate_lines(self, level, answers)


class ShapeCheck(Exercise):
    """Shapes of a model's tensors, one line each."""

    kind: ClassVar[str] = "shape"
    renamed: ClassVar[Mapping[str, str]] = {"lines": "asks", "words": "settings"}

    model: str = Field(min_length=1)
    """Model whose tensors are asked for."""
    settings: Settings = Field(default_factory=dict)
    """The model's settings."""
    asks: Names = Field(min_length=1)
    """Names of the tensors asked for, as in the model's drawing; `lines` is another name of this field."""

    def check(self, answers: Sequence[str], show_solution: bool = False) -> CheckedLines[Any]:
        """Check lines `NAME = SHAPE`."""
        return check_shapes(self.model, answers, self.settings)

    def describe(self) -> str:
        """Return where the names are."""
        return f"The names are those of the drawing: lemma count {self.model} --draw FILE.svg"

    def help_with(self, level: HelpLevel, answers: Sequence[str] = ()) -> ExerciseHelp:
        """Return the wrong lines of an answer."""
        return _locate_lines(self, level, answers)


class DerivationCheck(Exercise):
    """A derivation from one formula to another, a step a line."""

    kind: ClassVar[str] = "derivation"

    start: str = Field(min_length=1, max_length=1000)
    """Formula that the derivation begins with."""
    value: str = Field(min_length=1, max_length=1000)
    """Formula that it ends with."""
    forward: str = ""
    """Definitions for a derivation with matrices, as in Y = X @ W."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """Matrices with their sides, as in W = "n d"; without them the steps are formulas."""
    sizes: dict[str, str] | tuple[str, ...] = ()
    """Names of the sides."""

    @model_validator(mode="after")
    def _check_ends(self) -> Self:
        """Return the exercise; raise a ValueError if its two ends are not equal."""
        report = self._check_steps([f"= {self.value}"])
        if not report:
            raise ValueError(f"value: {self.value} is not equal to {self.start}: {report.lines[-1].reason}")
        return self

    def check(self, answers: Sequence[str], show_solution: bool = False) -> CheckedLines[Any]:
        """Check each step; an answer that stops before the end, or differs from it in form, is not decided."""
        lines = [line.strip() for answer in answers for line in answer.splitlines() if line.strip()]
        steps = [line if line.startswith("=") else f"= {_NAME_OF_STEP.sub('', line).strip()}" for line in lines]
        report = self._check_steps(steps)
        if report.first_wrong or not steps:
            return report
        end = re.split(r"=", steps[-1])[-1]
        term_lists = [_list_terms(text) for text in (end, self.value, self.start)]
        if term_lists[0] == term_lists[1]:
            return report
        if term_lists[0] == term_lists[2]:
            number = len(steps) + 1
            wrong = DerivationStep(number, steps[-1], "wrong", "the derivation ends where it began")
            return DerivationReport(report.name, (*report.lines[:-1], wrong))
        raise InputError(f"every step is right, but the last, '{end.strip()[:60]}', is not written like {self.value}.")

    def _check_steps(self, steps: Sequence[str]) -> DerivationReport:
        """Return the report on the steps after the start."""
        if not self.inputs:
            return check_derivation("\n".join([f"{self.start.strip()}", *steps]) + "\n")
        table = {"forward": self.forward, "inputs": self.inputs, "sizes": self.sizes}
        return check_derivation({**table, "steps": "\n".join([f"answer_ = {self.start}", *steps])})

    def describe(self) -> str:
        """Return the two ends."""
        return f"From {self.start} to {self.value}, a step a line."

    def help_with(self, level: HelpLevel, answers: Sequence[str] = ()) -> ExerciseHelp:
        """Return the wrong steps of an answer."""
        return _locate_lines(self, level, answers)


class WorkedCheck(ValueExercise):
    """A computation by hand on a worked case."""

    kind: ClassVar[str] = "worked"

    case: str | dict[str, Any] = ""
    """Case: e9, a TOML file next to the sheet, its table, or bpe:TEXT."""
    asks: Names = Field(min_length=1)
    """Names of the values asked for."""

    def expected_values(self) -> Sequence[ExpectedValue]:
        """Return all values of the case."""
        (key, *_) = self.answer_keys(())
        return key.expected

    def answer_keys(self, claims: Sequence[ValueClaim]) -> Iterable[AnswerKey]:
        """Yield the answer keys of the case."""
        from lemma.checking.worked.check import answer_keys

        return answer_keys(self.case, claims)


class IdentityCheck(ValueExercise):
    """The question whether an identity holds; the answer is yes or no."""

    kind: ClassVar[str] = "identity"

    identity: str = Field(min_length=1)
    """Identity, as lemma check identity lists them."""
    settings: Settings = Field(default_factory=dict)
    """Sizes of the identity."""

    def expected_values(self) -> Sequence[ExpectedValue]:
        """Return whether the identity holds."""
        from lemma.checking.identities import check_identity

        report = check_identity(self.identity, self.settings)
        answer, other = ("yes", "no") if report.holds else ("no", "yes")
        mistakes = {"it is the other way round": other}
        return [expect_words("holds", answer, mistakes=mistakes, work=report.claim, normalize=normalize_yes_or_no)]

    def check(self, answers: Sequence[str], show_solution: bool = False) -> ValueReport:
        """Check yes or no; raise an InputError for any other answer."""
        report = super().check(answers, show_solution)
        for line in report.lines:
            word = normalize_yes_or_no(line.text.rpartition("=")[2])
            if word not in ("yes", "no"):
                raise InputError(f"'{word[:40]}': yes or no is expected.")
        return report


def normalize_yes_or_no(word: str) -> str:
    """Return "yes" or "no" for words that mean it, and other words for comparison.

    >>> normalize_yes_or_no("It holds."), normalize_yes_or_no("False")
    ('yes', 'no')
    """
    normalized = normalize_word(word).strip(".! ")
    return "yes" if normalized in YES else "no" if normalized in NO else normalized


def _locate_lines(exercise: Exercise, level: HelpLevel, answers: Sequence[str]) -> ExerciseHelp:
    """Return the wrong lines of an answer; for another level of help, the hint of the exercise."""
    if level != "where" or not answers:
        return ExerciseHelp(exercise.name, level, (exercise.hint or exercise.describe(),))
    report: Any = exercise.check(answers)
    wrong = [str(line) for line in report.lines if line.outcome == "wrong"]
    return ExerciseHelp(exercise.name, level, tuple(wrong) or ("All of it is right.",))


def _list_terms(formula: str) -> Counter[str]:
    """Return the terms of a formula outside brackets, without blanks and multiplication signs, with their numbers.

    >>> _list_terms("a^2 + 2ab + b^2") == _list_terms("b**2 + 2*b*a + a^2")
    True
    """
    text = re.sub(r"\s+|\*(?!\*)|·|\\cdot", "", formula.replace("**", "^").replace("−", "-").replace("²", "^2"))
    terms, depth, start = Counter[str](), 0, 0
    for index, character in enumerate(f"{text}+"):
        depth += (character in "([{") - (character in ")]}")
        if character in "+-" and not depth and index > start:
            factors = re.findall(
                r"\([^()]*\)|[A-Za-z](?:_\w+)?(?:\^\w+)?|[^A-Za-z()]+|.", text[start:index].lstrip("+")
            )
            terms["".join(sorted(factors))] += 1
            start = index
    return terms


FIELD_CLASSES: dict[str, type[Spec]] = {
    "parameters": ModelFields,
    "flops": ModelFields,
    "trainable": ModelFields,
    "number": NumberFields,
    "formula": FormulaFields,
    **{check.kind: check for check in (GradientCheck, ShapeCheck, DerivationCheck, WorkedCheck, IdentityCheck)},
}


def question_kinds() -> list[str]:
    """Return the names of all kinds of questions."""
    return [*FIELD_CLASSES, *(kind for kind in KINDS if kind not in FIELD_CLASSES)]


def load_fields(kind: str) -> type[Spec]:
    """Return the class whose fields a question of this kind states."""
    if kind in FIELD_CLASSES:
        return FIELD_CLASSES[kind]
    if kind not in KINDS:
        raise SpecError(describe_unknown("kind", kind, question_kinds()))
    exercise_class = load_kind(kind)
    if exercise_class.runs_code:
        raise SpecError(
            f"kind = '{kind}': its answers are code, and code from a file of answers is never run. Check a file that "
            f"you name yourself: lemma check {kind} …"
        )
    return exercise_class
