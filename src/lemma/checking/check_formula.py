"""Check a formula for the parameters or operations of a model: read → account → compare → explain → verdict."""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from lemma.checking.accounts import ModelExercise, account_for
from lemma.checking.compare_formula import FormulaComparison, Verdict, compare_answer, format_number, substitute_sizes
from lemma.checking.explain import describe_nearest, explain, explain_number, suggest_settings
from lemma.checking.mistakes import COST_FACTOR, COST_GLOBAL
from lemma.counting.count import DEFAULT_CONVENTIONS, Conventions
from lemma.counting.polynomial import FormulaTooLarge, Polynomial, symbol, work_limit
from lemma.counting.subject import BATCH, Model
from lemma.errors import InputError, SpecError, describe_unknown

_LETTER = re.compile(r"[^\W\d]\w{0,15}=[A-Za-z]\w{0,30}|[^\W\d]\w{0,15}=\d{1,9}")
FORMULA_QUANTITIES = ("parameters", "flops", "trainable")
MAX_CHECKING_STEPS = 120_000  # steps of work for one verdict, see `work_limit`; an honest answer takes some thousands
MAX_EXPLAINING_STEPS = 40_000  # of these for the explanation


def check_formula(
    model: Model,
    quantity: Literal["parameters", "flops", "trainable"],
    text: str,
    settings: Mapping[str, Any] | None = None,
    conventions: Conventions = DEFAULT_CONVENTIONS,
) -> Verdict:
    """Check a written formula for the parameters, trainable parameters or operations of a model.

    Args:
        text: the formula, Python-like or in simple LaTeX.
        settings: sizes and choices of the model, by field name or symbol.

    >>> print(check_formula("feed-forward", "parameters", "V(d + d_h) + (N-1) d d_h"))
    Not equal: yours − model = −d_h. The model has a bias of d_h in 'hidden' that
    your formula leaves out.
    """
    if quantity not in FORMULA_QUANTITIES:
        raise InputError(describe_unknown("quantity", quantity, FORMULA_QUANTITIES))
    exercise, text = define_letters(model, quantity, text, settings or {}, conventions)
    with work_limit(MAX_CHECKING_STEPS):
        return exercise.check(exercise.parse(text))


def define_letters(
    model: Model, quantity: str, text: str, settings: Mapping[str, Any], conventions: Conventions
) -> tuple["FormulaExercise", str]:
    """Return the exercise, and the formula with the settings that define a letter, as in H=heads.

    A setting that the model does not have is a letter of the formula if its value is one of the model's sizes or a
    number.
    """
    try:
        return FormulaExercise(model, quantity, settings, conventions), text
    except SpecError as error:
        letters = {name: value for name, value in settings.items() if f"unknown setting '{name}'" in str(error)}
        if not letters or not all(_LETTER.fullmatch(f"{name}={value}") for name, value in letters.items()):
            raise
        other_settings = {name: value for name, value in settings.items() if name not in letters}
        exercise, text = define_letters(model, quantity, text, other_settings, conventions)
        definitions = ", ".join(f"{name} = {value}" for name, value in letters.items())
        names = {*exercise.account.order, *exercise.aliases}
        if not all(str(value).isdigit() or str(value) in names for value in letters.values()):
            raise
        joint = "," if re.search(r"\b(?:with|where)\b", text) else " with"
        return exercise, f"{text}{joint} {definitions}"


class FormulaExercise(ModelExercise):
    """The exercise to write a quantity of a model as a formula."""

    def parse(self, text: str) -> FormulaComparison:
        """Parse a formula in the account's symbols; return it with the model's formula that it is compared with."""
        return compare_answer(self.account, self.names[0], text, self.aliases, self.settings)

    def check(self, question: FormulaComparison, diagnose: bool = True) -> Verdict:
        """Return the verdict on a formula from `parse`, and on the number stated after it, as in V*d = 32,768.

        Sizes that the formula does not name become numbers if that makes it right, or explains it better. Without
        `diagnose` a wrong formula is not explained, which would take a hundred times as long.
        """
        numeric, sizes = substitute_sizes(question), question.account.symbols
        absent = [name for name in sizes if name in question.expected.symbols - question.answer.symbols]
        values = ", ".join(f"{name} = {sizes[name]}" for name in absent)
        note = f"Using {values}, which {'does' if len(absent) == 1 else 'do'} not appear in your formula."
        if question.is_equal or (numeric is not None and numeric.is_equal):
            required = [] if question.is_equal else [name for name in absent if not question.can_omit(name)]
            if required:
                advice = f"Write the formula with {', '.join(required)}, or set the sizes that are fixed, as in"
                message = f"It is right only at {values}. {advice} {required[0]}={sizes[required[0]]}."
                return question.make_verdict(message)
            if question.has_wrong_number:
                number = format_number(question.answer.at(sizes))
                message = f"The formula is right, but not the number after it: at these sizes it is {number}."
                return question.make_verdict(message)
            return question.make_verdict(*([] if question.is_equal else [note]), equal=True)
        if not diagnose:
            return question.make_verdict()
        try:
            with work_limit(MAX_EXPLAINING_STEPS):
                return self._diagnose(question, numeric, note)
        except FormulaTooLarge:
            return question.make_verdict("No simple explanation: looking for one takes too much work.")

    def _diagnose(self, question: FormulaComparison, numeric: FormulaComparison | None, note: str) -> Verdict:
        """Return the verdict on a wrong formula, with an explanation.

        Args:
            numeric: the comparison with numbers for the symbols that the answer does not name; None if it names all.
            note: the sentence that reports these numbers.
        """
        if question.quantity.name == "flops" and (match := self._match_convention(question)):
            return question.make_verdict(match)
        if numeric is not None and not question.answer.symbols:
            return numeric.make_verdict(note, explain_number(question) or "No simple explanation.")
        explanation, cost = explain(question)
        if numeric is not None and cost > COST_FACTOR:
            numeric_explanation, numeric_cost = explain(numeric)
            if numeric_cost <= COST_GLOBAL or (numeric_cost <= COST_FACTOR and not explanation):
                return numeric.make_verdict(note, numeric_explanation)
        spec = self.subject.spec if question.quantity.name == "parameters" else None
        suggestion = suggest_settings(question, spec) if spec else ""
        if explanation or suggestion:
            return question.make_verdict(*filter(None, (explanation, suggestion)))
        if question.answer_polynomial is None:
            divisor = question.write(question.answer.denominator)
            return question.make_verdict(f"Your formula is not a polynomial: it is divided by {divisor}.")
        if question.explainable_difference is None:
            return question.make_verdict("No simple explanation: the difference has too many terms.")
        return question.make_verdict(describe_nearest(question))

    @cached_property
    def parameters(self) -> Polynomial:
        """The formula of the model's parameters, for the rules of thumb of its operations."""
        return account_for(self.subject, ("parameters",), DEFAULT_CONVENTIONS).quantities["parameters"].polynomial

    def _match_convention(self, question: FormulaComparison) -> str:
        """Return a sentence on the counting convention or rule of thumb by which the answer is right; "" if none is."""
        defaults = question.account.defaults
        unused = {name: value for name, value in defaults.items() if name not in question.answer.symbols}
        for notes, formula in self.alternatives:
            if question.answer_polynomial == formula.substitute_all(unused):
                return f"But it is right {', '.join(notes)}."
        parameters = self.parameters.substitute_all(unused)
        for factor in (2, 6):  # the second with the backward pass
            if question.answer_polynomial == parameters * factor * symbol(BATCH) * symbol("T"):
                return (
                    f"It is the rule of thumb of {factor} operations for each parameter and token, which takes "
                    "look-ups, biases and norms for products and leaves out what attention multiplies."
                )
        return ""
