"""Is a formula right? And if not, why not: the smallest explanation of the difference."""

from collections.abc import Mapping
from typing import Any, Literal

from lemma.checking.explain import ODD, PLAIN, explain, explain_number, nearest, right_elsewhere
from lemma.checking.question import (
    MOST_EXPLAINING,
    MOST_JUDGING,
    FormulaQuestion,
    Verdict,
    account_for,
    ask,
    counted,
    full_names,
    other_readings,
    shown,
    spec_of,
    with_numbers,
)
from lemma.counting.count import USUAL, Conventions
from lemma.counting.polynomial import Polynomial, TooLarge, symbol, work_limit
from lemma.counting.subject import BATCH, Model, Subject, subject_of
from lemma.errors import InputError, unknown
from lemma.spec.models import ModelSpec

FORMULAS = ("parameters", "flops", "trainable")


def judge_formula(
    model: Model,
    quantity: Literal["parameters", "flops", "trainable"],
    text: str,
    words: Mapping[str, Any] | None = None,
    conventions: Conventions = USUAL,
    diagnose: bool = True,
) -> Verdict:
    """Judge a formula for the parameters, those that learn, or the operations of a model against the model itself.

    Without `diagnose` a wrong one is not explained, which takes a hundredth of the time.

    >>> print(judge_formula("feed-forward", "parameters", "V(d + d_h) + (N-1) d d_h"))
    Not equal: yours − model = −d_h. The model has a bias of d_h in 'hidden' that
    your formula leaves out.
    """
    if quantity not in FORMULAS:
        raise InputError(unknown("quantity", quantity, FORMULAS))
    subject = subject_of(model, words)
    account = account_for(subject, (quantity,), conventions)
    spec = spec_of(model, words, subject)
    with work_limit(MOST_JUDGING):
        asked = ask(account, quantity, text, full_names(spec, account.symbols), words or ())
        verdict = _judge(asked, subject, spec, conventions, diagnose)
        if verdict.equal and asked.has_wrong_number:
            right = shown(asked.yours.at(account.symbols))
            return asked.verdict(f"The formula is right, but not the number after it: at these sizes it is {right}.")
        return verdict


def _judge(
    question: FormulaQuestion, subject: Subject, spec: ModelSpec | None, conventions: Conventions, diagnose: bool
) -> Verdict:
    """Judge a formula that has been read; `spec` is that of the model, where it has one."""
    account = question.account
    if question.equal:
        return question.verdict(equal=True)
    # sizes that the formula does not name are taken as numbers, if that makes it right or explains it better
    numeric, sizes = with_numbers(question), account.symbols
    absent = [name for name in sizes if name in question.model.symbols - question.yours.symbols]
    values = ", ".join(f"{name}={sizes[name]}" for name in absent)
    taken = f"Taken at {values}, for which your formula has no symbol."
    if numeric is not None and numeric.equal:
        letters = [name for name in absent if not question.may_omit(name)]
        if not letters:
            return question.verdict(taken, equal=True)
        advice = f"Write the formula with {', '.join(letters)}, or set the sizes that are fixed, as in"
        return question.verdict(f"It is right only at {values}. {advice} {letters[0]}={sizes[letters[0]]}.")
    if not diagnose:
        return question.verdict()
    try:
        with work_limit(MOST_EXPLAINING):
            return _explain(question, numeric, taken, subject, spec, conventions)
    except TooLarge:
        return question.verdict("No simple explanation: looking for one takes too much work.")


def _explain(
    question: FormulaQuestion,
    numeric: FormulaQuestion | None,
    taken: str,
    subject: Subject,
    spec: ModelSpec | None,
    conventions: Conventions,
) -> Verdict:
    """Explain a wrong formula; `numeric` is the question with numbers for letters, and `taken` says which."""
    account, quantity = question.account, question.quantity.name
    if quantity == "flops":

        def defaulted(formula: Polynomial) -> Polynomial:
            for name in (name for name in account.defaults if name not in question.yours.symbols):
                formula = formula.put(name, account.defaults[name])
            return formula

        for differs, formula in other_readings(subject, conventions):
            if question.polynomial == defaulted(formula):
                return question.verdict(f"But it is right {', '.join(differs)}.")
        parameters = defaulted(counted(subject, ("parameters",), USUAL).quantities["parameters"].polynomial)
        for number in (2, 6):  # the second with the backward pass
            if question.polynomial == parameters * number * symbol(BATCH) * symbol("T"):
                return question.verdict(
                    f"It is the rule of thumb of {number} operations for each parameter and token, which takes "
                    "look-ups, biases and norms for products and leaves out what attention multiplies."
                )
    if numeric is not None and not question.yours.symbols:
        return numeric.verdict(taken, explain_number(question) or "No simple explanation.")
    found, cost = explain(question)
    if numeric is not None and cost > ODD:
        other, least = explain(numeric)
        if least == PLAIN or (least <= ODD and not found):
            return numeric.verdict(taken, other)
    likewise = right_elsewhere(question, spec) if spec and quantity == "parameters" else ""
    if found or likewise:
        return question.verdict(*filter(None, (found, likewise)))
    if question.polynomial is None:
        divisor = question.write(question.yours.denominator)
        return question.verdict(f"Your formula is not a polynomial: it is divided by {divisor}.")
    if question.residual is None:
        return question.verdict("No simple explanation: the difference has too many terms.")
    return question.verdict(nearest(question))
