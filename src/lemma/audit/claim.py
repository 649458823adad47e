"""A claim of the sources as data: its row, a sentence, and the call of `lemma check` that judges it. No verdict."""

import re
import shlex
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from lemma.errors import SpecError, unknown
from lemma.spec import Spec
from lemma.spec.toml import read_toml

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
    folder = Path(str(files("lemma.audit"))) / "claims"
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
