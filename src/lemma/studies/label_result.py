"""What a study of classifiers gives: one table, its sentences and plots, and the files they are saved in."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from textwrap import fill
from typing import Any

from lemma.ledger.lines import NO_PLOT, Plot, can_draw
from lemma.runs import write_atomically
from lemma.spec import GraphStudy, LabelStudySpec, to_toml
from lemma.studies.label_outcome import LabelOutcome
from lemma.studies.page import facts, grid, page, paragraph, section

REPORT = "report.html"
WIDEST = 80
GAP = "  "
FOOTER = "Made by Lemma. This page needs no network and no script. The figures stand unrounded in results.json."
AGAIN = "Interrupted: the same command goes on where it stopped."


@dataclass(frozen=True)
class LabelTable:
    """A table as people read it, and the same figures unrounded."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    plain: tuple[Mapping[str, Any], ...]
    caption: str
    notes: tuple[str, ...] = ()
    """Why runs are missing."""

    def __str__(self) -> str:
        blocks = "\n\n".join(fold([self.header, *self.rows], WIDEST))
        return "\n".join([blocks, "", *(fill(text, WIDEST) for text in (self.caption, *self.notes))])

    def to_markdown(self) -> str:
        """Write the table as Markdown."""
        rule = [":--", *("--:" for _ in self.header[1:])]
        lines = [self.header, rule, *([_escape(cell) for cell in row] for row in self.rows)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        notes = "".join(f"- {_escape(note)}\n" for note in self.notes)
        return f"{table}\n\n{_escape(self.caption)}\n" + (f"\n{notes}" if notes else "")

    def to_csv(self) -> str:
        """Write the table as CSV, figures unrounded."""
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(self.plain[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.plain)
        return text.getvalue()

    def to_html(self) -> str:
        """The table of a page, with its caption and notes."""
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        missing = f"<h3>Runs that are missing</h3><ul>{notes}</ul>" if notes else ""
        return grid(self.header, [("", row) for row in self.rows]) + paragraph(self.caption, "note") + missing


def fold(lines: Sequence[Sequence[str]], widest: int) -> list[str]:
    """Align a table; where it is too wide, its columns go on below, the first of them repeated.

    >>> print("|".join(fold([["a", "bb", "cc"], ["1", "2", "3"]], 6)))
    a  bb
    ─  ──
    1   2|a  cc
    ─  ──
    1   3
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    blocks: list[list[int]] = []
    for place, width in enumerate(widths[1:], start=1):
        used = sum(widths[one] + len(GAP) for one in (0, *blocks[-1])) if blocks else widest
        if used + width <= widest:
            blocks[-1].append(place)
        else:
            blocks.append([place])
    return [_block(lines, [0, *places], widths) for places in blocks]


def _block(lines: Sequence[Sequence[str]], places: Sequence[int], widths: Sequence[int]) -> str:
    text = [
        GAP.join(line[place].rjust(widths[place]) if place else line[0].ljust(widths[0]) for place in places).rstrip()
        for line in lines
    ]
    text.insert(1, GAP.join("─" * widths[place] for place in places))
    return "\n".join(text)


@dataclass(frozen=True)
class LabelResult:
    """The findings of a study of classifiers in the folder `out`; if it was interrupted, as far as they go."""

    spec: LabelStudySpec | GraphStudy
    data: Mapping[str, str]
    """What the texts are, in words."""
    hardware: Mapping[str, str]
    protocol: Mapping[str, str]
    """How it was measured, in words."""
    table: LabelTable
    conclusion: tuple[str, ...]
    plots: tuple[Plot, ...]
    runs: tuple[LabelOutcome, ...]
    out: Path
    interrupted: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)
    """What else was found, as plain values."""

    @property
    def report(self) -> Path:
        """Where the report is."""
        return self.out / REPORT

    @property
    def failed(self) -> tuple[LabelOutcome, ...]:
        """The runs that failed, each with its reason."""
        return tuple(run for run in self.runs if run.reason)

    def __str__(self) -> str:
        said = "\n".join(fill(sentence, WIDEST) for sentence in self.conclusion)
        where = fill("; ".join(self.hardware.values()), WIDEST)
        again = [AGAIN] if self.interrupted else []
        return "\n".join([self.spec.name, "", str(self.table), "", said, "", where, *again, f"Report: {self.report}"])

    def _repr_html_(self) -> str:
        return self.table.to_html() + "".join(map(paragraph, self.conclusion))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "study": self.spec.to_dict(),
            "data": dict(self.data),
            "hardware": dict(self.hardware),
            "protocol": dict(self.protocol),
            "interrupted": self.interrupted,
            "table": {"caption": self.table.caption, "rows": [dict(row) for row in self.table.plain]},
            **self.more,
            "conclusion": list(self.conclusion),
            "runs": [run.to_dict() for run in self.runs],
            "report": str(self.report),
        }

    def save(self, folder: Path | None = None) -> Path:
        """Write the table (Markdown, CSV), everything (JSON) and the report into a folder; return the report's path."""
        place = folder or self.out
        place.mkdir(parents=True, exist_ok=True)
        files = {
            "study.toml": to_toml(self.spec.to_dict()),
            "table.md": self.table.to_markdown() + "".join(f"\n- {sentence}" for sentence in self.conclusion) + "\n",
            "table.csv": self.table.to_csv(),
            "results.json": json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n",
            REPORT: self._page(),
        }
        for name, content in files.items():
            write_atomically(place / name, content)
        return place / REPORT

    def _page(self) -> str:
        question = paragraph(self.spec.question, "question") if self.spec.question else ""
        parts = [
            f"<header>{paragraph('A study by Lemma', 'kicker')}<h1>{escape(self.spec.name)}</h1>{question}</header>",
            f'<div class="finding">{"".join(map(paragraph, self.conclusion))}</div>',
            facts(self.data),
            section("Result", self.table.to_html()),
            _figures(self.plots),
            section("Protocol and hardware", facts({**self.protocol, **self.hardware})),
            f"<footer>{escape(FOOTER)}</footer>",
        ]
        return page(f"{self.spec.name}: a study", filter(None, parts))


def _figures(plots: Sequence[Plot]) -> str:
    if not plots:
        return ""
    if not can_draw():
        return section("Plots", paragraph(NO_PLOT))
    figures = "".join(
        f"<figure>{plot.svg()}<figcaption>{escape(plot.whole_caption)}</figcaption></figure>" for plot in plots
    )
    return section("Plots", f'<div class="plots">{figures}</div>')


def _escape(cell: str) -> str:
    return " ".join(cell.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;").split())
