"""The checkers of `lemma check` by their names.

Files such as claims and sheets choose a checker by its name; nothing that a file names is imported.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lemma.errors import SpecError, describe_unknown
from lemma.report.result import Result

ANSWER_ARGUMENTS = {  # what follows the model; None for any number of lines
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
WITHOUT_SIZES = {  # the checkers that take no sizes, and why
    "gradient": "it is checked at random ones",
    "derivation": "it is checked at random ones, or exactly",
    "worked": "a case has no sizes to set",
    "sheet": "each question names its own",
}
MODEL_CHECKERS = ("parameters", "flops", "trainable", "number", "shape")  # these take `package.module:factory` too


def run_checker(name: str, model: Any, answers: Sequence[Any], sizes: Mapping[str, Any]) -> Result:
    """Run the checker of `lemma check` that has this name; return its report.

    Args:
        name: a key of ANSWER_ARGUMENTS, such as "parameters" or "gradient".
        model: what is checked: a model, a cell, a worked case, a sheet or an identity.
        answers: texts that follow the model on the command line, as ANSWER_ARGUMENTS lists them.
        sizes: settings of the model or sizes of the identity.

    >>> run_checker("number", "table-a5", ["parameters", "9,721,596"], {"L": 2}).equal
    True
    """
    if name not in ANSWER_ARGUMENTS:
        raise SpecError(describe_unknown("check", name, [*ANSWER_ARGUMENTS, "sources"]))
    if name != "identity" and model is None:
        kind, example = ("case", "e9") if name == "worked" else ("model", "lstm")
        raise SpecError(f"check {name}: a {kind} is expected behind it, as in check('{name}', '{example}', …).")
    arguments = ANSWER_ARGUMENTS[name]
    if arguments is not None and len(answers) != len(arguments):
        expected = " and ".join(arguments) or "nothing"
        raise SpecError(f"check {name}: {expected} expected behind the model, got {len(answers)} answers.")
    if name in WITHOUT_SIZES and sizes:
        raise SpecError(f"check {name}: '{next(iter(sizes))}' is unknown here: {WITHOUT_SIZES[name]}.")
    match name:  # checkers are imported when they are called: some imports take a second
        case "parameters" | "flops" | "trainable":
            from lemma.checking.check_formula import check_formula

            return check_formula(model, name, answers[0], sizes)
        case "number":
            from lemma.checking.check_number import check_number

            return check_number(model, answers[0], str(answers[1]), sizes)
        case "shape":
            from lemma.checking.shapes import check_shapes

            return check_shapes(model, answers, sizes)
        case "gradient":
            from lemma.checking.gradients import check_gradients

            return check_gradients(model, answers)
        case "derivation":
            from lemma.checking.derivation import check_derivation

            return check_derivation(model)
        case "worked":
            from lemma.checking.worked.check import check_worked

            return check_worked(model, answers)
        case "sheet":
            from lemma.checking.grading import check_sheet

            return check_sheet(model, answers)
        case _:
            from lemma.checking.identities import check_identity, list_identities

            return check_identity(model, sizes) if model else list_identities()
