"""Is a formula right? And if not, why not: the smallest explanation of the difference."""

from collections.abc import Mapping
from typing import Any, Literal

from lemma.checking.explain import explain, explain_number, nearest, right_elsewhere
from lemma.checking.question import (
    FormulaQuestion,
    Verdict,
    account_for,
    ask,
    full_names,
    other_readings,
    rule_of_thumb,
    spec_of,
    with_numbers,
)
from lemma.counting.count import USUAL, Conventions
from lemma.counting.subject import Model, subject_of
from lemma.errors import InputError, unknown
from lemma.spec.models import ModelSpec

FORMULAS = ("parameters", "flops", "trainable")
SIMPLE = 1.5  # the cost up to which an explanation is one element


def judge_formula(
    model: Model,
    quantity: Literal["parameters", "flops", "trainable"],
    text: str,
    words: Mapping[str, Any] | None = None,
    conventions: Conventions = USUAL,
) -> Verdict:
    """Judge a formula for the parameters, those that learn, or the operations of a model against the model itself.

    >>> print(judge_formula("feed-forward", "parameters", "V(d + d_h) + (N-1) d d_h"))
    Not equal: yours − model = −d_h. The model has a bias of d_h in 'hidden' that
    your formula leaves out.
    """
    if quantity not in FORMULAS:
        raise InputError(unknown("quantity", quantity, FORMULAS))
    subject = subject_of(model, words)
    account = account_for(subject, (quantity,), conventions)
    spec = spec_of(model, words, subject)
    question = ask(account, quantity, text, full_names(spec, account.symbols))
    if question.equal:
        return _verdict(question, True, ())
    numeric = with_numbers(question)
    if numeric is not None and numeric.equal:
        return _verdict(question, True, (_as_numbers(question),))
    if quantity == "flops":
        defaults = {name: one for name, one in account.defaults.items() if name not in question.yours.symbols}
        for reading in other_readings(model, words, conventions, defaults):
            if question.polynomial == reading.formula:
                return _verdict(question, False, (f"But it is right {', '.join(reading.words)}.",))
        if thumb := rule_of_thumb(question.polynomial, model, words, defaults):
            return _verdict(question, False, (thumb,))
    return _explained(question, numeric, spec)


def _explained(question: FormulaQuestion, numeric: FormulaQuestion | None, spec: ModelSpec | None) -> Verdict:
    """The verdict on a wrong formula: in the model's symbols, or with numbers for some if that explains it better."""
    if numeric is not None and not question.yours.symbols:
        found = explain_number(question)
        return _verdict(numeric, False, (_as_numbers(question), found.text if found else "No simple explanation."))
    found = explain(question)
    if numeric is not None and (found is None or found.cost > SIMPLE):
        other = explain(numeric)
        if other is not None and (found is None or other.cost < found.cost):
            return _verdict(numeric, False, (_as_numbers(question), other.text))
    likewise = right_elsewhere(question, spec) if spec and question.quantity.name == "parameters" else ""
    said = tuple(text for text in (found.text if found else "", likewise) if text)
    if said:
        return _verdict(question, False, said)
    if question.polynomial is None:
        divisor = question.write(question.yours.denominator)
        lost = f"Your formula is not a polynomial: it is divided by {divisor}."
    elif question.residual is None:
        lost = "No simple explanation: the difference has too many terms."
    else:
        lost = nearest(question)
    return _verdict(question, False, (lost,))


def _as_numbers(question: FormulaQuestion) -> str:
    """Say which sizes of the model are taken as numbers, since the formula does not name them."""
    sizes = question.account.symbols
    absent = [name for name in sizes if name in question.model.symbols - question.yours.symbols]
    return f"Taken at {', '.join(f'{name}={sizes[name]}' for name in absent)}, for which your formula has no symbol."


def _verdict(question: FormulaQuestion, equal: bool, diagnosis: tuple[str, ...]) -> Verdict:
    account = question.account
    return Verdict(
        equal,
        account.model,
        question.quantity.name,
        question.write(question.yours),
        question.right,
        None if equal else question.written_difference,
        diagnosis,
        account.symbols,
        question.yours.at(account.symbols),
        int(question.model.at(account.symbols)),
    )
