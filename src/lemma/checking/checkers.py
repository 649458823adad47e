"""The checkers of `lemma check` by their names.

A file (a claim, a sheet) may pass on what it says to them: nothing is imported here by name.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lemma.errors import SpecError, unknown
from lemma.report.result import Result

ANSWERS = {
    "parameters": ("FORMULA",),
    "flops": ("FORMULA",),
    "trainable": ("FORMULA",),
    "number": ("QUANTITY", "VALUE"),
    "shape": None,
    "gradient": None,
    "derivation": (),
    "worked": None,
    "sheet": None,
    "identity": (),
}
"""What each checker expects behind the model; None where any number of lines may follow."""
NO_SIZES = {
    "gradient": "it is judged at random ones",
    "derivation": "it is judged at random ones, or exactly",
    "worked": "a case has no sizes to set",
    "sheet": "each question names its own",
}
"""The checkers that take no sizes, and why."""
OF_MODELS = ("parameters", "flops", "trainable", "number", "shape")
"""The checkers that are about a model, which a person may also name as `package.module:factory`."""


def run_checker(what: str, model: Any, answers: Sequence[Any], sizes: Mapping[str, Any]) -> Result:
    """Judge answers about a model, a cell, a case or a sheet by the checker of that name.

    >>> run_checker("number", "table-a5", ["parameters", "9,721,596"], {"L": 2}).equal
    True
    """
    if what not in ANSWERS:
        raise SpecError(unknown("check", what, [*ANSWERS, "sources"]))
    if what != "identity" and model is None:
        kind, example = ("case", "e9") if what == "worked" else ("model", "lstm")
        raise SpecError(f"check {what}: a {kind} is expected behind it, as in check('{what}', '{example}', …).")
    named = ANSWERS[what]
    if named is not None and len(answers) != len(named):
        expected = " and ".join(named) or "nothing"
        raise SpecError(f"check {what}: {expected} expected behind the model, got {len(answers)} answers.")
    if what in NO_SIZES and sizes:
        raise SpecError(f"check {what}: '{next(iter(sizes))}' is unknown here: {NO_SIZES[what]}.")
    match what:  # a checker is imported when it is called: some take a second
        case "parameters" | "flops" | "trainable":
            from lemma.checking.formulas import judge_formula

            return judge_formula(model, what, answers[0], sizes)
        case "number":
            from lemma.checking.numbers import judge_number

            return judge_number(model, answers[0], str(answers[1]), sizes)
        case "shape":
            from lemma.checking.shapes import judge_shapes

            return judge_shapes(model, answers, sizes)
        case "gradient":
            from lemma.checking.gradients import judge_gradients

            return judge_gradients(model, answers)
        case "derivation":
            from lemma.checking.derivation import judge_derivation

            return judge_derivation(model)
        case "worked":
            from lemma.checking.worked.judge import judge_worked

            return judge_worked(model, answers)
        case "sheet":
            from lemma.checking.grading import check_sheet

            return check_sheet(model, answers)
        case _:
            from lemma.checking.identities import check_identity, list_identities

            return check_identity(model, sizes) if model else list_identities()
