"""What an audit of the sources says: every claim right, wrong with its correction, or still to be measured."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from lemma.audit.claim import Claim
from lemma.audit.outcome import Outcome
from lemma.data.atomic import write_atomically
from lemma.errors import InputError, unknown
from lemma.typeset import columns, wrap

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
