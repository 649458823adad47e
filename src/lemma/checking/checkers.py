"""The checkers of `lemma check` by their names.

Files such as claims and sheets choose a checker by its name; nothing that a file names is imported.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
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
FUNCTIONS = {  # by module; imported when called, since some imports take a second. The others check formulas
    "number": ("check_number", "check_number"),
    "shape": ("shapes", "check_shapes"),
    "gradient": ("gradients", "check_gradients"),
    "derivation": ("derivation", "check_derivation"),
    "worked": ("worked.check", "check_worked"),
    "sheet": ("grading", "check_sheet"),
    "identity": ("identities", "check_identity"),
}


def run_checker(name: str, model: Any, answers: Sequence[Any], sizes: Mapping[str, Any]) -> Result:
    """Run the checker of `lemma check` that has this name; return its report.

    Args:
        name: a key of ANSWER_ARGUMENTS, such as "parameters" or "gradient".
        model: what is checked: a model, a cell, a worked case, a sheet or an identity.
        answers: texts that follow the model on the command line, as ANSWER_ARGUMENTS lists them.

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
    if name == "identity" and not model:
        from lemma.checking.identities import list_identities

        return list_identities()
    module, function = FUNCTIONS.get(name, ("check_formula", "check_formula"))
    arguments = [model, *([] if name in FUNCTIONS else [name]), *([answers] if arguments is None else answers)]
    check = getattr(import_module(f"lemma.checking.{module}"), function)
    return check(*arguments, *([] if name in WITHOUT_SIZES else [sizes]))
