"""The verbs of mathematics: count and check."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lemma.api.shared import refuse_unknown, watch

if TYPE_CHECKING:
    from lemma.audit import Audit
    from lemma.ledger import Account
    from lemma.ledger.against import Comparison
    from lemma.ledger.drawing import Drawing
    from lemma.ledger.gradients import GradientReport
    from lemma.ledger.identities import IdentityList, IdentityReport
    from lemma.ledger.judging import ShapeReport, Verdict
    from lemma.ledger.sheets import Marked
    from lemma.ledger.solving import Solutions
    from lemma.looking.worked.judging import WorkedReport


def count(
    model: Any,
    *,
    quantities: Sequence[str] | None = None,
    multiply_add: int = 2,
    causal: str = "full",
    elementwise: bool = False,
    **symbols: Any,
) -> Account:
    """Account for a model: parameters, operations and bytes as formulas in its sizes, proved against the module.

    `model` is a preset, a spec, a spec file, a run folder, an example's name, `package.module:factory`, or a factory
    itself. Quantities: parameters, flops, backward, activations, cache, optimizer; all of them if none is named.
    """
    from lemma.ledger import QUANTITIES, Conventions, imported, subject_of
    from lemma.ledger import count as account_for

    conventions = Conventions(multiply_add, causal, elementwise)  # pyright: ignore[reportArgumentType]
    return account_for(subject_of(imported(model), symbols), quantities or QUANTITIES, conventions)


def solve(
    model: Any,
    unknown: Sequence[str],
    totals: Sequence[int | str],
    *,
    quantity: str = "parameters",
    ranges: Sequence[str] = (),
    **symbols: Any,
) -> Solutions:
    """Find the sizes that give printed totals: `solve("table-a5", ["V", "d_e"], ["L=2:9721596", "L=4:14980860"])`."""
    from lemma.ledger import count as account_for
    from lemma.ledger import imported, subject_of
    from lemma.ledger.solving import read_range, read_total, solve_for

    subject = subject_of(imported(model), symbols)
    figure = account_for(subject, [quantity]).quantities[quantity]
    wanted = [read_total(str(total)) for total in totals]
    return solve_for(subject, figure, unknown, wanted, dict(read_range(text) for text in ranges))


def against(model: Any, tools: Sequence[str], **symbols: Any) -> Comparison:
    """Set other tools' figures beside the exact ones, and name the module that explains a difference."""
    from lemma.ledger import imported, subject_of
    from lemma.ledger.against import against as compare

    return compare(subject_of(imported(model), symbols), tools)


def draw(model: Any = "self-attention", **symbols: Any) -> Drawing:
    """Draw the flow of data through a module, with the symbolic shape of everything in it."""
    from lemma.ledger import imported, subject_of
    from lemma.ledger.drawing import draw as draw_subject

    return draw_subject(subject_of(imported(model), symbols))


def check(
    what: str, model: Any = None, *answers: str, **symbols: Any
) -> Verdict | GradientReport | ShapeReport | WorkedReport | Marked | IdentityReport | IdentityList | Audit:
    """Judge a derivation of one's own.

    `check("parameters", "lstm", "4*D*(d + D + 1) + …")`, likewise `"flops"` and `"trainable"`; `check("number",
    "table-a5", "parameters", "9,721,596")`; `check("gradient", "lstm", "dW_y = (y_hat - y) @ a.T", …)`;
    `check("worked", "e9", "c_t = [0.52, -0.34]")`, a hand computation held against a worked case; `check("shape",
    "self-attention", "Q = H×S×M_QK")`; `check("sheet", "questions.toml", "answers.toml")`; `check("identity", "c7",
    D=256)`, and without a name the list of identities; `check("sources")`, every claim of the sources, or of
    some rows, with `progress=True` told how far it is.
    """
    if what == "sources":
        return _audit([row for row in (model, *answers) if row is not None], symbols)
    from lemma.audit.checkers import OF_MODELS, run_checker

    if what in OF_MODELS:
        from lemma.ledger import imported

        model = imported(model)
    return run_checker(what, model, answers, symbols)


def _audit(rows: Sequence[str], words: dict[str, Any]) -> Audit:
    from lemma.audit import judge_sources
    from lemma.training import watched_reading

    refuse_unknown(words, ("progress",), "check sources")
    watcher = watched_reading(watch(bool(words.get("progress"))), {"judging": "claims"})
    return judge_sources(rows, partial(watcher, "judging"))


def describe_cell(cell: str) -> str:
    """The step of a cell whose gradients can be judged, with every name and its shape."""
    from lemma.ledger.gradients import describe_cell as describe

    return describe(cell)


def describe_worked(case: Any) -> str:
    """The names that may be claimed of a worked case, with shapes and meanings; no values."""
    from lemma.looking.worked.judging import describe_worked as describe

    return describe(case)
