"""Is a formula right? And if not, why not: the smallest explanation of the difference."""

from collections.abc import Mapping
from typing import Any, Literal

from lemma.checking.explain import COST_FACTOR, COST_TENSOR, describe_nearest, explain, explain_number, suggest_settings
from lemma.checking.question import (
    MAX_CHECKING_STEPS,
    MAX_EXPLAINING_STEPS,
    FormulaQuestion,
    Verdict,
    account_for,
    alternative_conventions,
    count_cached,
    format_number,
    read_question,
    spec_of,
    substitute_sizes,
    symbol_aliases,
)
from lemma.counting.count import DEFAULT_CONVENTIONS, Conventions
from lemma.counting.polynomial import FormulaTooLarge, Polynomial, symbol, work_limit
from lemma.counting.subject import BATCH, Model, Subject, resolve_subject
from lemma.errors import InputError, describe_unknown
from lemma.spec.models import ModelSpec

FORMULA_QUANTITIES = ("parameters", "flops", "trainable")


def check_formula(
    model: Model,
    quantity: Literal["parameters", "flops", "trainable"],
    text: str,
    settings: Mapping[str, Any] | None = None,
    conventions: Conventions = DEFAULT_CONVENTIONS,
    diagnose: bool = True,
) -> Verdict:
    """Judge a formula for the parameters, those that learn, or the operations of a model against the model itself.

    Without `diagnose` a wrong one is not explained, which takes a hundredth of the time.

    >>> print(judge_formula("feed-forward", "parameters", "V(d + d_h) + (N-1) d d_h"))
    Not equal: yours − model = −d_h. The model has a bias of d_h in 'hidden' that
    your formula leaves out.
    """
    if quantity not in FORMULA_QUANTITIES:
        raise InputError(describe_unknown("quantity", quantity, FORMULA_QUANTITIES))
    subject = resolve_subject(model, settings)
    account = account_for(subject, (quantity,), conventions)
    spec = spec_of(model, settings, subject)
    with work_limit(MAX_CHECKING_STEPS):
        question = read_question(account, quantity, text, symbol_aliases(spec, account.symbols), settings or ())
        return compare_formula(question, subject, spec, conventions, diagnose)


def compare_formula(
    question: FormulaQuestion, subject: Subject, spec: ModelSpec | None, conventions: Conventions, diagnose: bool
) -> Verdict:
    """Compare a formula that has been read, and the number after it if there is one, with the model's."""
    verdict = _compare(question, subject, spec, conventions, diagnose)
    if verdict.equal and question.has_wrong_number:
        right = format_number(question.answer.at(question.account.symbols))
        return question.make_verdict(
            f"The formula is right, but not the number after it: at these sizes it is {right}."
        )
    return verdict


def _compare(
    question: FormulaQuestion, subject: Subject, spec: ModelSpec | None, conventions: Conventions, diagnose: bool
) -> Verdict:
    """Judge a formula that has been read; `spec` is that of the model, where it has one."""
    account = question.account
    if question.is_equal:
        return question.make_verdict(equal=True)
    # sizes that the formula does not name are taken as numbers, if that makes it right or explains it better
    numeric, sizes = substitute_sizes(question), account.symbols
    absent = [name for name in sizes if name in question.expected.symbols - question.answer.symbols]
    values = ", ".join(f"{name}={sizes[name]}" for name in absent)
    taken = f"Taken at {values}, for which your formula has no symbol."
    if numeric is not None and numeric.is_equal:
        letters = [name for name in absent if not question.can_omit(name)]
        if not letters:
            return question.make_verdict(taken, equal=True)
        advice = f"Write the formula with {', '.join(letters)}, or set the sizes that are fixed, as in"
        return question.make_verdict(f"It is right only at {values}. {advice} {letters[0]}={sizes[letters[0]]}.")
    if not diagnose:
        return question.make_verdict()
    try:
        with work_limit(MAX_EXPLAINING_STEPS):
            return _diagnose(question, numeric, taken, subject, spec, conventions)
    except FormulaTooLarge:
        return question.make_verdict("No simple explanation: looking for one takes too much work.")


def _diagnose(
    question: FormulaQuestion,
    numeric: FormulaQuestion | None,
    note: str,
    subject: Subject,
    spec: ModelSpec | None,
    conventions: Conventions,
) -> Verdict:
    """Explain a wrong formula; `numeric` is the question with numbers for letters, and `taken` says which."""
    account, quantity = question.account, question.quantity.name
    if quantity == "flops":

        def defaulted(formula: Polynomial) -> Polynomial:
            for name in (name for name in account.defaults if name not in question.answer.symbols):
                formula = formula.substitute(name, account.defaults[name])
            return formula

        for differs, formula in alternative_conventions(subject, conventions):
            if question.answer_polynomial == defaulted(formula):
                return question.make_verdict(f"But it is right {', '.join(differs)}.")
        parameters = defaulted(
            count_cached(subject, ("parameters",), DEFAULT_CONVENTIONS).quantities["parameters"].polynomial
        )
        for number in (2, 6):  # the second with the backward pass
            if question.answer_polynomial == parameters * number * symbol(BATCH) * symbol("T"):
                return question.make_verdict(
                    f"It is the rule of thumb of {number} operations for each parameter and token, which takes "
                    "look-ups, biases and norms for products and leaves out what attention multiplies."
                )
    if numeric is not None and not question.answer.symbols:
        return numeric.make_verdict(note, explain_number(question) or "No simple explanation.")
    found, cost = explain(question)
    if numeric is not None and cost > COST_FACTOR:
        other, least = explain(numeric)
        if least == COST_TENSOR or (least <= COST_FACTOR and not found):
            return numeric.make_verdict(note, other)
    likewise = suggest_settings(question, spec) if spec and quantity == "parameters" else ""
    if found or likewise:
        return question.make_verdict(*filter(None, (found, likewise)))
    if question.answer_polynomial is None:
        divisor = question.write(question.answer.denominator)
        return question.make_verdict(f"Your formula is not a polynomial: it is divided by {divisor}.")
    if question.explainable_difference is None:
        return question.make_verdict("No simple explanation: the difference has too many terms.")
    return question.make_verdict(describe_nearest(question))
