"""The claims of the sources, each judged by the checker that a person would call: `lemma check sources`.

A claim is data: its row, a sentence, and the call of `lemma check` that judges it. It has no verdict.
"""

import re
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from lemma.checking.checkers import run_checker
from lemma.checking.compare_formula import Verdict
from lemma.checking.gradients import GradientReport
from lemma.checking.identity_report import IdentityReport
from lemma.checking.shapes import ShapeReport
from lemma.checking.worked.judge import WorkedReport
from lemma.errors import SpecError, describe_unknown
from lemma.report.numbers import pluralize
from lemma.report.result import Block, Heading, Result, Table, Text
from lemma.report.text import text_width, wrap
from lemma.spec.base import Spec, read_toml

ROW_PATTERN = re.compile(r"[A-E][1-9]\d?")
VERDICT_SIGNS = {True: "✓", False: "✗", None: "–"}
VERDICT_WORDS = {True: "right", False: "wrong", None: "to measure"}


class SourceClaim(Spec):
    """One thing that a source says; judged by `check`, or to be measured by a command that trains."""

    row: Annotated[str, Field(pattern=ROW_PATTERN.pattern)]
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
def load_claims() -> tuple[SourceClaim, ...]:
    """The claims of all rows, in their order."""
    folder = Path(str(files("lemma.checking"))) / "claims"
    found: list[SourceClaim] = []
    for path in sorted(folder.glob("*.toml")):
        for number, table in enumerate(read_toml(path)["claims"], 1):
            found.append(SourceClaim.read(table, f"{path.name}: claim {number}"))
    return tuple(sorted(found, key=lambda claim: (claim.row[0], int(claim.row[1:]))))


def select_claims(rows: Sequence[str]) -> tuple[SourceClaim, ...]:
    """The claims of these rows: one by its number (C2), or a whole group by its letter (c); all if none is named.

    >>> sorted({claim.row for claim in choose_claims(["c2", "B"])})[:2]
    ['B1', 'B2']
    """
    known = dict.fromkeys(claim.row for claim in load_claims())
    chosen: set[str] = set()
    for asked in rows:
        name = asked.strip().upper()
        found = [row for row in known if row == name or row[0] == name]
        if not found:
            raise SpecError(
                "check sources: " + describe_unknown("row", name, [*dict.fromkeys(row[0] for row in known), *known])
            )
        chosen.update(found)
    return tuple(claim for claim in load_claims() if not rows or claim.row in chosen)


@dataclass(frozen=True)
class CheckedClaim:
    """A claim, and what its checker found: whether it is right, what was claimed in its words, and the correction."""

    claim: SourceClaim
    right: bool | None
    """None where only a measurement can tell."""
    claimed: str = ""
    correction: str = ""

    def explanation(self) -> list[str]:
        """What is said below the claim: how to measure it, or of a wrong one what was claimed and what is right."""
        if self.right is None:
            return [f"to measure: {self.claim.measure}"]
        return [] if self.right else [f"claimed: {self.claimed}", f"right: {self.correction}"]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        about = {"row": self.claim.row, "says": self.claim.says, "verdict": VERDICT_WORDS[self.right]}
        found = {} if self.right is None else {"claimed": self.claimed, "correction": self.correction}
        return {**about, "command": self.claim.command, **found}


@dataclass(frozen=True)
class Audit(Result):
    """The claims of the sources, each judged by the checker that a person would call."""

    claims: tuple[CheckedClaim, ...]
    title = "The claims of the sources"

    @property
    def right(self) -> bool:
        """Whether nothing that could be judged is wrong."""
        return not self.wrong

    def __bool__(self) -> bool:
        return self.right

    @property
    def wrong(self) -> tuple[CheckedClaim, ...]:
        """The claims that are wrong."""
        return tuple(one for one in self.claims if one.right is False)

    @property
    def counts(self) -> dict[str, int]:
        """How many are right, wrong, and to be measured."""
        return {word: sum(one.right is state for one in self.claims) for state, word in VERDICT_WORDS.items()}

    @property
    def summary(self) -> str:
        """How many of each, and in which rows the wrong ones are."""
        rows = Counter(one.claim.row for one in self.wrong)
        places = ", ".join(f"{row} {number} times" if number > 1 else row for row, number in rows.items())
        right, wrong, measured = self.counts.values()
        total = pluralize(len(self.claims), "claim")
        return f"{total}: {right} right, {wrong} wrong{f' ({places})' if places else ''}, {measured} to measure."

    def __str__(self) -> str:
        width, deep = text_width(), " " * 7
        lines: list[str] = []  # commands to be copied are not broken
        for one in self.claims:
            lines += wrap(one.claim.says, width, f"{VERDICT_SIGNS[one.right]} {one.claim.row:<4} ", deep)
            lines += [line for text in one.explanation() for line in wrap(text, width, deep, f"{deep}  ")]
        return "\n".join([*lines, *wrap(self.summary, width)])

    def blocks(self) -> list[Block]:
        """Every claim with its verdict and the command that judges it, as a table."""
        header = ("row", "verdict", "claim", "right instead, or the command that measures", "command")
        rows = [
            (
                one.claim.row,
                f"{VERDICT_SIGNS[one.right]} {VERDICT_WORDS[one.right]}",
                one.claim.says,
                one.claim.measure if one.right is None else " ".join(one.explanation()),
                one.claim.command,
            )
            for one in self.claims
        ]
        kinds = [VERDICT_WORDS[one.right].split()[0] for one in self.claims]
        return [Heading(self.title, 1), Table(header, rows, is_text=True, row_kinds=kinds), Text(self.summary)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"counts": self.counts, "claims": [one.to_dict() for one in self.claims]}


def check_sources(rows: Sequence[str] = (), on_progress: Callable[[int, int], None] | None = None) -> Audit:
    """Judge the claims of these rows, or of all; `watch` is told how many of how many are done.

    >>> print(judge_sources(["D2"]).summary)
    1 claim: 1 right, 0 wrong, 0 to measure.
    """
    claims = select_claims(rows)
    told = on_progress or (lambda done, total: None)
    judged: list[CheckedClaim] = []
    told(0, len(claims))
    for claim in claims:
        judged.append(check_claim(claim))
        told(len(judged), len(claims))
    return Audit(tuple(judged))


def check_claim(claim: SourceClaim) -> CheckedClaim:
    """Call the checker of one claim; what needs training is left to be measured."""
    if claim.measure:
        return CheckedClaim(claim, None)
    return CheckedClaim(claim, *outcome_of(run_checker(claim.check, claim.of, claim.answers, dict(claim.sizes))))


def outcome_of(found: Any) -> tuple[bool, str, str]:
    """What a checker returned in the same few words: whether it is right, what was claimed, what is right instead."""
    match found:
        case Verdict():
            correction = "" if found.equal else " ".join([f"{found.right}.", *found.diagnosis])
            return found.equal, found.yours, correction
        case IdentityReport():
            return found.holds, found.claim, "" if found.holds else found.correction or found.verdict
        case GradientReport():
            lines = []
            for one in found.checked:
                reason = f"{one.reason[:1].upper()}{one.reason[1:]}." if one.reason else ""
                lines.append((one.outcome == "right", one.text, [f"{one.repair}." if one.repair else "", reason]))
            if not lines:
                return False, found.summary, "no line derives anything of the cell."
        case WorkedReport():
            lines = [(one.right, one.claim, one.reasons()) for one in found.lines]
        case ShapeReport():
            lines = [(one.equal, f"{one.name} = {one.yours}", [one.right, one.reason]) for one in found.lines]
        case _:
            raise TypeError(f"no outcome can be read off {type(found).__name__}")
    wrong = next((line for line in lines if not line[0]), None)
    if wrong is None:
        return True, "; ".join(text for _, text, _ in lines), ""
    return False, wrong[1], " ".join(reason for reason in wrong[2] if reason)
