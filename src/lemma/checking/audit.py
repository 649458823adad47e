"""A claim of the sources as data: its row, a sentence, and the call of `lemma check` that judges it. No verdict."""

import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from lemma.checking.gradients import GradientReport
from lemma.checking.identity import IdentityReport
from lemma.checking.question import Verdict
from lemma.checking.shapes import ShapeReport
from lemma.checking.worked.judge import WorkedReport
from lemma.data.files import write_atomically
from lemma.errors import InputError, SpecError, unknown
from lemma.report.text import columns, wrap
from lemma.spec.base import Spec, read_toml

if TYPE_CHECKING:
    from lemma.checking.identities import IdentityList
    from lemma.checking.sheets import Marked

ROW = re.compile(r"[A-E][1-9]\d?")


class Claim(Spec):
    """One thing that a source says; judged by `check`, or to be measured by a command that trains."""

    row: Annotated[str, Field(pattern=ROW.pattern)]
    """The number of its row: A1 … E9."""
    says: Annotated[str, Field(min_length=1, max_length=400)]
    """What is claimed, in one sentence."""
    check: str = ""
    """The checker: parameters, flops, trainable, number, shape, gradient, worked or identity."""
    of: str = ""
    """What it is about: a model, a cell, a case or an identity."""
    answers: tuple[str, ...] = ()
    """What is claimed, in the checker's own language."""
    sizes: dict[str, Any] = Field(default_factory=dict)
    """Sizes of the model or the identity."""
    measure: str = ""
    """The command that measures what no checker can judge without training or timing."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if bool(self.check) == bool(self.measure):
            raise ValueError("a claim has either check or measure")
        return self

    @property
    def command(self) -> str:
        """What a person would type to judge it."""
        if self.measure:
            return self.measure
        sizes = [f"{word}={value}" for word, value in self.sizes.items()]
        return shlex.join(["lemma", "check", self.check, self.of, *self.answers, *sizes])


@cache
def all_claims() -> tuple[Claim, ...]:
    """The claims of all rows, in their order."""
    folder = Path(str(files("lemma.checking"))) / "claims"
    found: list[Claim] = []
    for path in sorted(folder.glob("*.toml")):
        for number, table in enumerate(read_toml(path)["claims"], 1):
            found.append(Claim.read(table, f"{path.name}: claim {number}"))
    return tuple(sorted(found, key=lambda claim: _place(claim.row)))


def choose_claims(rows: Sequence[str]) -> tuple[Claim, ...]:
    """The claims of these rows: one by its number (C2), or a whole group by its letter (c); all if none is named.

    >>> sorted({claim.row for claim in choose_claims(["c2", "B"])})[:2]
    ['B1', 'B2']
    """
    known = dict.fromkeys(claim.row for claim in all_claims())
    chosen: set[str] = set()
    for asked in rows:
        name = asked.strip().upper()
        found = [row for row in known if row == name or row[0] == name]
        if not found:
            raise SpecError("check sources: " + unknown("row", name, [*dict.fromkeys(row[0] for row in known), *known]))
        chosen.update(found)
    return tuple(claim for claim in all_claims() if not rows or claim.row in chosen)


def _place(row: str) -> tuple[str, int]:
    return row[0], int(row[1:])


# What a checker found, of whatever kind, in the same few words: right or wrong, and what is right instead.


@dataclass(frozen=True)
class Outcome:
    """A claim judged: what was claimed in the checker's words, and the correction that the checker found."""

    right: bool
    claimed: str = ""
    correction: str = ""


def outcome_of(found: Any) -> Outcome:
    """Read the outcome off what a checker returned."""
    match found:
        case Verdict():
            return _of_verdict(found)
        case GradientReport():
            return _of_gradient(found)
        case IdentityReport():
            return Outcome(found.holds, found.claim, "" if found.holds else found.correction or found.verdict)
        case WorkedReport():
            return _of_lines([(one.right, one.claim, one.reasons()) for one in found.lines])
        case ShapeReport():
            lines = [(one.equal, f"{one.name} = {one.yours}", [one.right, one.reason]) for one in found.lines]
            return _of_lines(lines)
    raise TypeError(f"no outcome can be read off {type(found).__name__}")


def _of_verdict(found: Verdict) -> Outcome:
    if found.equal:
        return Outcome(True, found.yours)
    return Outcome(False, found.yours, " ".join([f"{found.right}.", *found.diagnosis]))


def _of_gradient(found: GradientReport) -> Outcome:
    lines = [
        (one.outcome == "right", one.text, [f"{one.repair}." if one.repair else "", _sentence(one.reason)])
        for one in found.judged
    ]
    return _of_lines(lines) if lines else Outcome(False, found.summary, "no line derives anything of the cell.")


def _of_lines(lines: list[tuple[bool, str, list[str]]]) -> Outcome:
    """All lines are right, or the first that is wrong says why."""
    wrong = next((line for line in lines if not line[0]), None)
    if wrong is None:
        return Outcome(True, "; ".join(text for _, text, _ in lines))
    return Outcome(False, wrong[1], " ".join(reason for reason in wrong[2] if reason))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


# Every checker of `lemma check` by its name: what a person calls, and what judges the claims of the sources.


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
    from lemma.checking.formulas import judge_formula

    (formula,) = _expected(quantity, answers, "FORMULA")
    return judge_formula(model, quantity, formula, sizes)  # pyright: ignore[reportArgumentType]


def _number(model: Any, answers: Answers, sizes: Sizes) -> "Verdict":
    from lemma.checking.numbers import judge_number

    quantity, value = _expected("number", answers, "QUANTITY", "VALUE")
    return judge_number(model, quantity, str(value), sizes)


def _shapes(model: Any, lines: Answers, sizes: Sizes) -> "ShapeReport":
    from lemma.checking.shapes import judge_shapes

    return judge_shapes(model, lines, sizes)


def _gradient(cell: Any, lines: Answers, sizes: Sizes) -> "GradientReport":
    from lemma.checking.gradients import judge_gradients

    _refuse_sizes("gradient", sizes, "it is judged at random ones")
    return judge_gradients(cell, lines)


def _worked(case: Any, lines: Answers, sizes: Sizes) -> "WorkedReport":
    from lemma.checking.worked.judge import judge_worked

    _refuse_sizes("worked", sizes, "a case has no sizes to set")
    return judge_worked(case, lines)


def _sheet(sheet: Any, answers: Answers, sizes: Sizes) -> "Marked":
    from lemma.checking.sheets import mark

    (given,) = _expected("sheet", answers, "ANSWERS")
    _refuse_sizes("sheet", sizes, "each question names its own")
    return mark(Path(sheet), Path(given))


def _identity(name: str | None, answers: Answers, sizes: Sizes) -> "IdentityReport | IdentityList":
    from lemma.checking.identities import check_identity, list_identities

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


# What an audit of the sources says: every claim right, wrong with its correction, or still to be measured.


MARKS = {True: "✓", False: "✗", None: "–"}
WORDS = {True: "right", False: "wrong", None: "to measure"}
DEEP = " " * 7
STYLE = (
    "<style>body{font:1rem/1.5 system-ui,sans-serif;margin:2rem auto;padding:0 1rem;max-width:60rem}.audit td"
    "{padding:.3rem .8rem .3rem 0;vertical-align:top;border-bottom:1px solid #8884}.audit code{font-size:.85em;"
    "overflow-wrap:anywhere}.wrong{color:#b42318}.right{color:#17803d}</style>"
)


@dataclass(frozen=True)
class Judged:
    """One claim, and what its checker found; no outcome where it is to be measured."""

    claim: Claim
    outcome: Outcome | None = None

    @property
    def right(self) -> bool | None:
        """Whether it is; None where only a measurement can tell."""
        return None if self.outcome is None else self.outcome.right

    def lines(self) -> list[str]:
        """What is printed of it: a sentence, and under a wrong one what was claimed and what is right."""
        lead = f"{MARKS[self.right]} {self.claim.row:<4} "
        said = wrap(self.claim.says, columns(), lead, DEEP)
        return [*said, *(part for text in self._below() for part in wrap(text, columns(), DEEP, f"{DEEP}  "))]

    def _below(self) -> list[str]:
        if self.outcome is None:
            return [f"to measure: {self.claim.measure}"]
        if self.outcome.right:
            return []
        return [f"claimed: {self.outcome.claimed}", f"right: {self.outcome.correction}"]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        found = {} if self.outcome is None else {"claimed": self.outcome.claimed, "correction": self.outcome.correction}
        about = {"row": self.claim.row, "says": self.claim.says, "verdict": WORDS[self.right]}
        return {**about, "command": self.claim.command, **found}


@dataclass(frozen=True)
class Audit:
    """The claims of the sources, each judged by the checker that a person would call."""

    judged: tuple[Judged, ...]

    @property
    def right(self) -> bool:
        """Whether nothing that could be judged is wrong."""
        return not self.wrong

    @property
    def wrong(self) -> tuple[Judged, ...]:
        """The claims that are wrong."""
        return tuple(one for one in self.judged if one.right is False)

    @property
    def summary(self) -> str:
        """How many of each, and in which rows the wrong ones are."""
        count = {state: sum(one.right is state for one in self.judged) for state in MARKS}
        rows: dict[str, int] = {}
        for one in self.wrong:
            rows[one.claim.row] = rows.get(one.claim.row, 0) + 1
        places = ", ".join(f"{row} {number} times" if number > 1 else row for row, number in rows.items())
        named = f" ({places})" if places else ""
        total = f"{len(self.judged)} claims" if len(self.judged) != 1 else "1 claim"
        return f"{total}: {count[True]} right, {count[False]} wrong{named}, {count[None]} to measure."

    def __str__(self) -> str:
        lines = [line for one in self.judged for line in one.lines()]
        return "\n".join([*lines, *wrap(self.summary, columns())])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        count = {WORDS[state]: sum(one.right is state for one in self.judged) for state in MARKS}
        return {"counts": count, "claims": [one.to_dict() for one in self.judged]}

    def _repr_html_(self) -> str:
        rows = "".join(map(_html_row, self.judged))
        return f'<table class="audit">{rows}</table><p>{escape(self.summary)}</p>'

    def markdown(self) -> str:
        """The audit as a table."""
        head = ["| row | verdict | claim | right instead, or the command that measures |", "|---|---|---|---|"]
        return "\n".join([*head, *map(_markdown_row, self.judged), "", self.summary]) + "\n"

    def save(self, path: Path | str) -> Path:
        """Write it as .html, .md or .json, as the name says."""
        target = Path(path)
        forms: dict[str, Callable[[], str]] = {".html": self._page, ".md": self.markdown, ".json": self._json}
        if target.suffix.lower() not in forms:
            raise InputError(f"{target}: " + unknown("the form", target.suffix, forms))
        if not target.absolute().parent.is_dir():
            raise InputError(f"{target}: there is no folder {target.parent}. Make it first.")
        write_atomically(target, forms[target.suffix.lower()]())
        return target

    def _page(self) -> str:
        view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
        head = f'<meta charset="utf-8">{view}<title>The claims of the sources</title>{STYLE}'
        body = f"<h1>The claims of the sources</h1>{self._repr_html_()}"
        return f'<!doctype html><html lang="en">{head}{body}</html>\n'

    def _json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _html_row(one: Judged) -> str:
    word = WORDS[one.right]
    below = "".join(f"<br>{escape(text)}" for text in one._below() if one.outcome is not None)
    cells = f"<td>{one.claim.row}</td><td>{MARKS[one.right]} {word}</td>"
    said = f"{escape(one.claim.says)}{below}<br><code>{escape(one.claim.command)}</code>"
    return f'<tr class="{word.split()[0]}">{cells}<td>{said}</td></tr>'


def _markdown_row(one: Judged) -> str:
    last = one.claim.measure if one.outcome is None else one.outcome.correction
    cells = [one.claim.row, f"{MARKS[one.right]} {WORDS[one.right]}", one.claim.says, last]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# The claims of the sources, each judged by the checker that a person would call: `lemma check sources`.


def judge_sources(rows: Sequence[str] = (), watch: Callable[[int, int], None] | None = None) -> Audit:
    """Judge the claims of these rows, or of all.

    >>> print(judge_sources(["D2"]).summary)
    1 claim: 1 right, 0 wrong, 0 to measure.
    """
    claims = choose_claims(rows)
    judged: list[Judged] = []
    for number, claim in enumerate(claims):
        if watch is not None:
            watch(number, len(claims))
        judged.append(judge_claim(claim))
    if watch is not None:
        watch(len(claims), len(claims))
    return Audit(tuple(judged))


def judge_claim(claim: Claim) -> Judged:
    """Call the checker of one claim; what needs training is left to be measured."""
    if claim.measure:
        return Judged(claim)

    return Judged(claim, outcome_of(run_checker(claim.check, claim.of, claim.answers, dict(claim.sizes))))
