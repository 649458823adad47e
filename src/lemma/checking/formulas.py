"""Is a formula right? And if not, why not: the smallest explanation of the difference."""

from collections.abc import Mapping
from typing import Any, Literal

from lemma.checking.explain import explain, explain_number, nearest, right_elsewhere
from lemma.checking.question import Verdict, account_for, ask, full_names, other_readings, spec_of, with_numbers
from lemma.counting.count import USUAL, Conventions, count
from lemma.counting.polynomial import Polynomial, symbol
from lemma.counting.subject import BATCH, Model, subject_of
from lemma.errors import InputError, unknown

FORMULAS = ("parameters", "flops", "trainable")
SIMPLE = 1.5  # the cost up to which an explanation is one element


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
    question = ask(account, quantity, text, full_names(spec, account.symbols))
    if question.equal:
        return question.verdict(equal=True)
    # sizes that the formula does not name are taken as numbers, if that makes it right or explains it better
    numeric, sizes = with_numbers(question), account.symbols
    absent = [f"{name}={sizes[name]}" for name in sizes if name in question.model.symbols - question.yours.symbols]
    taken = f"Taken at {', '.join(absent)}, for which your formula has no symbol."
    if numeric is not None and numeric.equal:
        return question.verdict(taken, equal=True)
    if not diagnose:
        return question.verdict()
    if quantity == "flops":

        def with_defaults(formula: Polynomial) -> Polynomial:
            for name in (name for name in account.defaults if name not in question.yours.symbols):
                formula = formula.put(name, account.defaults[name])
            return formula

        for differs, formula in other_readings(subject, conventions):
            if question.polynomial == with_defaults(formula):
                return question.verdict(f"But it is right {', '.join(differs)}.")
        parameters = with_defaults(count(subject, ("parameters",)).quantities["parameters"].polynomial)
        for number in (2, 6):  # the second with the backward pass
            if question.polynomial == parameters * number * symbol(BATCH) * symbol("T"):
                return question.verdict(
                    f"It is the rule of thumb of {number} operations for each parameter and token, which takes "
                    "look-ups, biases and norms for products and leaves out what attention multiplies."
                )
    if numeric is not None and not question.yours.symbols:
        return numeric.verdict(taken, explain_number(question) or "No simple explanation.")
    found, cost = explain(question)
    if numeric is not None and cost > SIMPLE:
        other, least = explain(numeric)
        if least < cost:
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
