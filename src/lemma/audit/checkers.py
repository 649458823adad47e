"""Every checker of `lemma check` by its name: what a person calls, and what judges the claims of the sources."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lemma.errors import SpecError, unknown

if TYPE_CHECKING:
    from lemma.ledger.gradients import GradientReport
    from lemma.ledger.identities import IdentityList, IdentityReport
    from lemma.ledger.judging import ShapeReport, Verdict
    from lemma.ledger.sheets import Marked
    from lemma.looking.worked.judging import WorkedReport

Answers = Sequence[str]
Sizes = dict[str, Any]


def run_checker(what: str, model: Any, answers: Answers, sizes: Sizes) -> Any:
    """Judge answers about a model, a cell or a case by the checker of that name.

    What a file says (a claim, a sheet) may be passed on to it: nothing is imported here.
    """
    checker = CHECKERS.get(what)
    if checker is None:
        raise SpecError(unknown("check", what, [*CHECKERS, "sources"]))
    if model is None and what != "identity":
        kind, example = ("case", "e9") if what == "worked" else ("model", "lstm")
        raise SpecError(f"check {what}: a {kind} is expected behind it, as in check('{what}', '{example}', …).")
    return checker(model, answers, sizes)


def _formula(quantity: str, model: Any, answers: Answers, sizes: Sizes) -> "Verdict":
    from lemma.ledger.judging import judge_formula

    (formula,) = _expected(quantity, answers, "FORMULA")
    return judge_formula(model, quantity, formula, sizes)  # pyright: ignore[reportArgumentType]


def _number(model: Any, answers: Answers, sizes: Sizes) -> "Verdict":
    from lemma.ledger.judging import judge_number

    quantity, value = _expected("number", answers, "QUANTITY", "VALUE")
    return judge_number(model, quantity, str(value), sizes)


def _shapes(model: Any, lines: Answers, sizes: Sizes) -> "ShapeReport":
    from lemma.ledger.judging import judge_shapes

    return judge_shapes(model, lines, sizes)


def _gradient(cell: Any, lines: Answers, sizes: Sizes) -> "GradientReport":
    from lemma.ledger.gradients import judge_gradients

    _refuse_sizes("gradient", sizes, "it is judged at random ones")
    return judge_gradients(cell, lines)


def _worked(case: Any, lines: Answers, sizes: Sizes) -> "WorkedReport":
    from lemma.looking.worked.judging import judge_worked

    _refuse_sizes("worked", sizes, "a case has no sizes to set")
    return judge_worked(case, lines)


def _sheet(sheet: Any, answers: Answers, sizes: Sizes) -> "Marked":
    from lemma.ledger.sheets import mark

    (given,) = _expected("sheet", answers, "ANSWERS")
    _refuse_sizes("sheet", sizes, "each question names its own")
    return mark(Path(sheet), Path(given))


def _identity(name: str | None, answers: Answers, sizes: Sizes) -> "IdentityReport | IdentityList":
    from lemma.ledger.identities import check_identity, list_identities

    _expected("identity", answers)
    return check_identity(name, sizes) if name else list_identities()


CHECKERS: dict[str, Callable[..., Any]] = {
    "parameters": partial(_formula, "parameters"),
    "flops": partial(_formula, "flops"),
    "trainable": partial(_formula, "trainable"),
    "number": _number,
    "shape": _shapes,
    "gradient": _gradient,
    "worked": _worked,
    "sheet": _sheet,
    "identity": _identity,
}
OF_MODELS = ("parameters", "flops", "trainable", "number", "shape")
"""The checkers that are about a model, which a person may also name as `package.module:factory`."""


def _refuse_sizes(what: str, sizes: Sizes, why: str) -> None:
    """Refuse sizes where they would change nothing."""
    if sizes:
        raise SpecError(f"check {what}: '{next(iter(sizes))}' is unknown here: {why}.")


def _expected(what: str, answers: Answers, *names: str) -> Answers:
    if len(answers) != len(names):
        expected = " and ".join(names) or "nothing"
        raise SpecError(f"check {what}: {expected} expected behind the model, got {len(answers)} answers.")
    return answers
