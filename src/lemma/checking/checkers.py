"""Every checker of `lemma check`: one typed function each, and the table that finds one by name.

A file (a claim, a sheet) may pass on what it says to these functions: nothing is imported here by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from lemma.errors import SpecError, unknown

if TYPE_CHECKING:  # a checker is imported when it is called: some take a second
    from pathlib import Path

    from lemma.checking.gradients import GradientReport
    from lemma.checking.identities import IdentityList
    from lemma.checking.identity import IdentityReport
    from lemma.checking.question import Verdict
    from lemma.checking.shapes import ShapeReport
    from lemma.checking.sheets import Marked
    from lemma.checking.worked.judge import WorkedReport
    from lemma.counting.subject import Model


def parameters(model: Model, formula: str, /, **sizes: Any) -> Verdict:
    """Is this formula the number of a model's parameters? `parameters("rnn", "|V|d + D^2 + dD + …", L=1)`."""
    from lemma.checking.formulas import judge_formula

    return judge_formula(model, "parameters", formula, sizes)


def flops(model: Model, formula: str, /, **sizes: Any) -> Verdict:
    """Is this formula the number of a model's operations? `flops("decoder", "2V d T B + L T B(24d^2 + 4 d T)")`."""
    from lemma.checking.formulas import judge_formula

    return judge_formula(model, "flops", formula, sizes)


def trainable(model: Model, formula: str, /, **sizes: Any) -> Verdict:
    """Is this formula the number of a model's parameters that are trained? `trainable("lora", "R(W_in + W_out)")`."""
    from lemma.checking.formulas import judge_formula

    return judge_formula(model, "trainable", formula, sizes)


def number(model: Model, quantity: str, value: str | float, /, **sizes: Any) -> Verdict:
    """Is this number right? `number("table-a5", "parameters", "9,721,596")`."""
    from lemma.checking.numbers import judge_number

    return judge_number(model, quantity, str(value), sizes)


def shape(model: Model, /, *lines: str, **sizes: Any) -> ShapeReport:
    """Do the tensors of a module have these shapes? `shape("self-attention", "Q = H×S×M_QK")`."""
    from lemma.checking.shapes import judge_shapes

    return judge_shapes(model, lines, sizes)


def gradient(cell: str, *lines: str) -> GradientReport:
    """Are these gradients right? `gradient("lstm", "dW_y = (y_hat - y) @ a.T")`."""
    from lemma.checking.gradients import judge_gradients

    return judge_gradients(cell, lines)


def worked(case: Any, *lines: str) -> WorkedReport:
    """Is this computation by hand right? `worked("e9", "c_t = [0.52, -0.34]")`."""
    from lemma.checking.worked.judge import judge_worked

    return judge_worked(case, lines)


def sheet(questions: Path | str, answers: Path | str) -> Marked:
    """Mark a student's answers to a sheet of questions; both are files in TOML or Markdown."""
    from lemma.checking.sheets import mark

    return mark(questions, answers)


@overload
def identity(name: None = None, /) -> IdentityList: ...
@overload
def identity(name: str, /, **sizes: Any) -> IdentityReport: ...
def identity(name: str | None = None, /, **sizes: Any) -> IdentityReport | IdentityList:
    """Run an identity of the sources at these sizes, `identity("c7", D=256)`; without a name, list all of them."""
    from lemma.checking.identities import check_identity, list_identities

    return check_identity(name, sizes) if name else list_identities()


@dataclass(frozen=True)
class Checker:
    """A checker, what it expects behind the model, and why it takes no sizes."""

    run: Callable[..., Any]
    answers: tuple[str, ...] | None = None
    """The names of its answers; None where any number of lines may follow."""
    no_sizes: str = ""


CHECKERS: Mapping[str, Checker] = {
    "parameters": Checker(parameters, ("FORMULA",)),
    "flops": Checker(flops, ("FORMULA",)),
    "trainable": Checker(trainable, ("FORMULA",)),
    "number": Checker(number, ("QUANTITY", "VALUE")),
    "shape": Checker(shape),
    "gradient": Checker(gradient, no_sizes="it is judged at random ones"),
    "worked": Checker(worked, no_sizes="a case has no sizes to set"),
    "sheet": Checker(sheet, ("ANSWERS",), no_sizes="each question names its own"),
    "identity": Checker(identity, ()),
}
OF_MODELS = ("parameters", "flops", "trainable", "number", "shape")
"""The checkers that are about a model, which a person may also name as `package.module:factory`."""


def run_checker(what: str, model: Any, answers: Sequence[str], sizes: Mapping[str, Any]) -> Any:
    """Judge answers about a model, a cell, a case or a sheet by the checker of that name."""
    checker = CHECKERS.get(what)
    if checker is None:
        raise SpecError(unknown("check", what, [*CHECKERS, "sources"]))
    if model is None and what != "identity":
        kind, example = ("case", "e9") if what == "worked" else ("model", "lstm")
        raise SpecError(f"check {what}: a {kind} is expected behind it, as in check('{what}', '{example}', …).")
    if checker.answers is not None and len(answers) != len(checker.answers):
        expected = " and ".join(checker.answers) or "nothing"
        raise SpecError(f"check {what}: {expected} expected behind the model, got {len(answers)} answers.")
    if checker.no_sizes and sizes:
        raise SpecError(f"check {what}: '{next(iter(sizes))}' is unknown here: {checker.no_sizes}.")
    if what == "identity" and not model:
        return identity()
    return checker.run(model, *answers, **sizes)
