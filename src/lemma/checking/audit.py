"""An audit of the sources: their claims, each checked by the checker that a person would call (`lemma check sources`).

A claim is data: its row, a sentence, and the call of `lemma check` that checks it. It has no verdict.
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
from lemma.errors import SpecError, describe_unknown
from lemma.report.numbers import pluralize
from lemma.report.result import Block, Heading, Result, Table, Text
from lemma.report.text import text_width, wrap
from lemma.spec.base import Spec, read_toml

ROW_PATTERN = re.compile(r"[A-E][1-9]\d?")
SIGNS = {"right": "✓", "wrong": "✗", "to measure": "–"}  # of the verdicts


class SourceClaim(Spec):
    """A claim of a source: checked by `check`, or to be measured by a command that trains."""

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
    def _require_check_or_measure(self) -> Self:
        """Return the claim; raise a ValueError unless it has either a checker or a command to measure it, not both."""
        if bool(self.check) == bool(self.measure):
            raise ValueError("a claim has either check or measure")
        return self

    @property
    def command(self) -> str:
        """The shell command that checks or measures the claim, such as `lemma check parameters decoder …`."""
        if self.measure:
            return self.measure
        sizes = [f"{name}={value}" for name, value in self.sizes.items()]
        return shlex.join(["lemma", "check", self.check, self.of, *self.answers, *sizes])


@cache
def load_claims() -> tuple[SourceClaim, ...]:
    """Read the claims of the sources from the package's TOML files, sorted by row (A1 … E9)."""
    folder = Path(str(files("lemma.checking"))) / "claims"
    claims: list[SourceClaim] = []
    for path in sorted(folder.glob("*.toml")):
        for number, table in enumerate(read_toml(path)["claims"], 1):
            claims.append(SourceClaim.read(table, f"{path.name}: claim {number}"))
    return tuple(sorted(claims, key=lambda claim: (claim.row[0], int(claim.row[1:]))))


def select_claims(rows: Sequence[str]) -> tuple[SourceClaim, ...]:
    """Return the claims of some rows, named by number (C2) or by the letter of several rows (c); all if none is named.

    >>> sorted({claim.row for claim in select_claims(["c2", "B"])})[:2]
    ['B1', 'B2']
    """
    all_rows = dict.fromkeys(claim.row for claim in load_claims())
    selected: set[str] = set()
    for requested in rows:
        name = requested.strip().upper()
        matches = [row for row in all_rows if row == name or row[0] == name]
        if not matches:
            choices = [*dict.fromkeys(row[0] for row in all_rows), *all_rows]
            raise SpecError("check sources: " + describe_unknown("row", name, choices))
        selected.update(matches)
    return tuple(claim for claim in load_claims() if not rows or claim.row in selected)


@dataclass(frozen=True)
class CheckedClaim:
    """A claim with its verdict.

    Attributes:
        right: whether it is right; None if only a measurement can tell.
        claimed: the claim in the checker's language.
        correction: what is right instead of a wrong claim.
    """

    claim: SourceClaim
    right: bool | None
    claimed: str = ""
    correction: str = ""

    @property
    def verdict(self) -> str:
        """The verdict in words: "right", "wrong" or "to measure"."""
        return "to measure" if self.right is None else "right" if self.right else "wrong"

    def explanation(self) -> list[str]:
        """Return lines to print: the command that measures the claim, or a wrong claim and its correction; or []."""
        if self.right is None:
            return [f"to measure: {self.claim.measure}"]
        return [] if self.right else [f"claimed: {self.claimed}", f"right: {self.correction}"]

    def to_dict(self) -> dict[str, Any]:
        """Return row, sentence, verdict, command and correction of the claim as plain values for JSON."""
        about = {"row": self.claim.row, "says": self.claim.says, "verdict": self.verdict, "command": self.claim.command}
        return about if self.right is None else {**about, "claimed": self.claimed, "correction": self.correction}


@dataclass(frozen=True)
class Audit(Result):
    """The claims of the sources with their verdicts; true if none that could be checked is wrong."""

    json_names = ("counts", "claims")

    claims: tuple[CheckedClaim, ...]
    title = "The claims of the sources"

    @property
    def right(self) -> bool:
        """True if no claim that could be checked is wrong."""
        return not self.wrong

    def __bool__(self) -> bool:
        return self.right

    @property
    def wrong(self) -> tuple[CheckedClaim, ...]:
        """The claims that are wrong."""
        return tuple(checked for checked in self.claims if checked.right is False)

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of claims, by "right", "wrong" and "to measure"."""
        return {verdict: sum(checked.verdict == verdict for checked in self.claims) for verdict in SIGNS}

    @property
    def summary(self) -> str:
        """A sentence with the numbers of claims by verdict, and the rows of the wrong ones."""
        counts = Counter(checked.claim.row for checked in self.wrong)
        rows = ", ".join(f"{row} {number} times" if number > 1 else row for row, number in counts.items())
        right, wrong, to_measure = self.counts.values()
        total = pluralize(len(self.claims), "claim")
        return f"{total}: {right} right, {wrong} wrong{f' ({rows})' if rows else ''}, {to_measure} to measure."

    def __str__(self) -> str:
        width, indent = text_width(), " " * 7
        lines: list[str] = []  # commands to be copied are not broken
        for checked in self.claims:
            lines += wrap(checked.claim.says, width, f"{SIGNS[checked.verdict]} {checked.claim.row:<4} ", indent)
            lines += [line for text in checked.explanation() for line in wrap(text, width, indent, f"{indent}  ")]
        return "\n".join([*lines, *wrap(self.summary, width)])

    def blocks(self) -> list[Block]:
        """Return a table of the claims with verdicts and corrections, and the summary."""
        header = ("row", "verdict", "claim", "right instead, or the command that measures", "command")
        rows: list[tuple[str, ...]] = []
        for checked in self.claims:
            claim, sign = checked.claim, SIGNS[checked.verdict]
            remark = claim.measure or " ".join(checked.explanation())
            rows.append((claim.row, f"{sign} {checked.verdict}", claim.says, remark, claim.command))
        kinds = [checked.verdict.split()[0] for checked in self.claims]
        return [Heading(self.title, 1), Table(header, rows, is_text=True, row_kinds=kinds), Text(self.summary)]


def check_sources(rows: Sequence[str] = (), on_progress: Callable[[int, int], None] | None = None) -> Audit:
    """Check the claims of some rows, such as C2, or groups of rows, such as C; all claims if `rows` is empty.

    `on_progress` receives the number of claims checked so far and their total.

    >>> print(check_sources(["D2"]).summary)
    1 claim: 1 right, 0 wrong, 0 to measure.
    """
    claims, report = select_claims(rows), on_progress or (lambda done, total: None)
    checked: list[CheckedClaim] = []
    report(0, len(claims))
    for claim in claims:
        checked.append(check_claim(claim))
        report(len(checked), len(claims))
    return Audit(tuple(checked))


def check_claim(claim: SourceClaim) -> CheckedClaim:
    """Run the checker of a claim; return it with `right` True or False, or None if it needs training or timing."""
    if claim.measure:
        return CheckedClaim(claim, None)
    result: Any = run_checker(claim.check, claim.of, claim.answers, dict(claim.sizes))
    return CheckedClaim(claim, bool(result), *result.claim_and_correction())
