"""Check a formula for the parameters or operations of a model: read → account → compare → explain → verdict."""

from collections.abc import Mapping
from typing import Any, Literal

from lemma.checking.accounts import account_for, alternative_conventions, count_cached, symbol_aliases
from lemma.checking.compare_formula import FormulaQuestion, Verdict, format_number, read_question, substitute_sizes
from lemma.checking.explain import describe_nearest, explain, explain_number, suggest_settings
from lemma.checking.mistakes import COST_FACTOR, COST_TENSOR
from lemma.counting.count import DEFAULT_CONVENTIONS, Conventions
from lemma.counting.polynomial import FormulaTooLarge, symbol, work_limit
from lemma.counting.subject import BATCH, Model, Subject, resolve_subject
from lemma.errors import InputError, describe_unknown

FORMULA_QUANTITIES = ("parameters", "flops", "trainable")
MAX_CHECKING_STEPS = 120_000  # steps of work for one verdict, see `work_limit`; an honest answer takes some thousands
MAX_EXPLAINING_STEPS = 40_000  # of these for the explanation


def check_formula(
    model: Model,
    quantity: Literal["parameters", "flops", "trainable"],
    text: str,
    settings: Mapping[str, Any] | None = None,
    conventions: Conventions = DEFAULT_CONVENTIONS,
    diagnose: bool = True,
) -> Verdict:
    """Check a written formula for the parameters, trainable parameters or operations of a model.

    Args:
        text: the formula, Python-like or in simple LaTeX.
        settings: sizes and choices of the model, by field name or symbol.
        diagnose: whether to explain a wrong formula, which takes a hundred times as long.

    >>> print(check_formula("feed-forward", "parameters", "V(d + d_h) + (N-1) d d_h"))
    Not equal: yours − model = −d_h. The model has a bias of d_h in 'hidden' that
    your formula leaves out.
    """
    if quantity not in FORMULA_QUANTITIES:
        raise InputError(describe_unknown("quantity", quantity, FORMULA_QUANTITIES))
    subject = resolve_subject(model, settings)
    account = account_for(subject, (quantity,), conventions)
    with work_limit(MAX_CHECKING_STEPS):
        question = read_question(account, quantity, text, symbol_aliases(subject.spec, account.symbols), settings or ())
        return compare_formula(question, subject, conventions, diagnose)


def compare_formula(question: FormulaQuestion, subject: Subject, conventions: Conventions, diagnose: bool) -> Verdict:
    """Return the verdict on a parsed formula, and on the number stated after it, as in V*d = 32,768.

    Args:
        diagnose: whether to explain a wrong formula.
    """
    verdict = _compare(question, subject, conventions, diagnose)
    if verdict.equal and question.has_wrong_number:
        number = format_number(question.answer.at(question.account.symbols))
        message = f"The formula is right, but not the number after it: at these sizes it is {number}."
        return question.make_verdict(message)
    return verdict


def _compare(question: FormulaQuestion, subject: Subject, conventions: Conventions, diagnose: bool) -> Verdict:
    """Return the verdict on a parsed formula; sizes that it does not name become numbers where that makes it right."""
    if question.is_equal:
        return question.make_verdict(equal=True)
    # sizes that the formula does not name become numbers if that makes it right or explains it better
    numeric, sizes = substitute_sizes(question), question.account.symbols
    absent = [name for name in sizes if name in question.expected.symbols - question.answer.symbols]
    values = ", ".join(f"{name} = {sizes[name]}" for name in absent)
    note = f"Using {values}, which {'does' if len(absent) == 1 else 'do'} not appear in your formula."
    if numeric is not None and numeric.is_equal:
        required = [name for name in absent if not question.can_omit(name)]
        if not required:
            return question.make_verdict(note, equal=True)
        advice = f"Write the formula with {', '.join(required)}, or set the sizes that are fixed, as in"
        return question.make_verdict(f"It is right only at {values}. {advice} {required[0]}={sizes[required[0]]}.")
    if not diagnose:
        return question.make_verdict()
    try:
        with work_limit(MAX_EXPLAINING_STEPS):
            return _diagnose(question, numeric, note, subject, conventions)
    except FormulaTooLarge:
        return question.make_verdict("No simple explanation: looking for one takes too much work.")


def _diagnose(
    question: FormulaQuestion,
    numeric: FormulaQuestion | None,
    note: str,
    subject: Subject,
    conventions: Conventions,
) -> Verdict:
    """Return the verdict on a wrong formula, with an explanation.

    Args:
        numeric: the same question with numbers for the symbols that the answer does not name; None if it names all.
        note: the sentence that reports these numbers.
    """
    if question.quantity.name == "flops" and (match := _match_convention(question, subject, conventions)):
        return question.make_verdict(match)
    if numeric is not None and not question.answer.symbols:
        return numeric.make_verdict(note, explain_number(question) or "No simple explanation.")
    explanation, cost = explain(question)
    if numeric is not None and cost > COST_FACTOR:
        numeric_explanation, numeric_cost = explain(numeric)
        if numeric_cost == COST_TENSOR or (numeric_cost <= COST_FACTOR and not explanation):
            return numeric.make_verdict(note, numeric_explanation)
    is_parameters = question.quantity.name == "parameters"
    suggestion = suggest_settings(question, subject.spec) if subject.spec and is_parameters else ""
    if explanation or suggestion:
        return question.make_verdict(*filter(None, (explanation, suggestion)))
    if question.answer_polynomial is None:
        divisor = question.write(question.answer.denominator)
        return question.make_verdict(f"Your formula is not a polynomial: it is divided by {divisor}.")
    if question.explainable_difference is None:
        return question.make_verdict("No simple explanation: the difference has too many terms.")
    return question.make_verdict(describe_nearest(question))


def _match_convention(question: FormulaQuestion, subject: Subject, conventions: Conventions) -> str:
    """Return a sentence on the counting convention or rule of thumb by which the answer is right; "" without any."""
    defaults = question.account.defaults
    unused = {name: value for name, value in defaults.items() if name not in question.answer.symbols}
    for notes, formula in alternative_conventions(subject, conventions):
        if question.answer_polynomial == formula.substitute_all(unused):
            return f"But it is right {', '.join(notes)}."
    account = count_cached(subject, ("parameters",), DEFAULT_CONVENTIONS)
    parameters = account.quantities["parameters"].polynomial.substitute_all(unused)
    for factor in (2, 6):  # the second with the backward pass
        if question.answer_polynomial == parameters * factor * symbol(BATCH) * symbol("T"):
            return (
                f"It is the rule of thumb of {factor} operations for each parameter and token, which takes "
                "look-ups, biases and norms for products and leaves out what attention multiplies."
            )
    return ""
