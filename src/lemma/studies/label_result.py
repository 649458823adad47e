"""What a study of classifiers gives: one table, its sentences and plots, and the files they are saved in."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from lemma import typeset
from lemma.ledger.lines import Plot
from lemma.spec import GraphStudy, LabelStudySpec, to_toml
from lemma.studies.drawn import plots_section
from lemma.studies.files import csv_text, escape_cell, json_text, markdown_table, write_files
from lemma.studies.label_outcome import LabelOutcome
from lemma.studies.page import facts, grid, page, paragraph, section

REPORT = "report.html"
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
        lines = typeset.table([self.header, *self.rows], rule=True)
        return "\n".join([*lines, "", *map(typeset.paragraph, (self.caption, *self.notes))])

    def to_markdown(self) -> str:
        """Write the table as Markdown."""
        table = markdown_table(self.header, self.rows)
        notes = "".join(f"- {escape_cell(note)}\n" for note in self.notes)
        return f"{table}\n\n{escape_cell(self.caption)}\n" + (f"\n{notes}" if notes else "")

    def to_csv(self) -> str:
        """Write the table as CSV, figures unrounded."""
        return csv_text(self.plain)

    def to_html(self) -> str:
        """The table of a page, with its caption and notes."""
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        missing = f"<h3>Runs that are missing</h3><ul>{notes}</ul>" if notes else ""
        return grid(self.header, [("", row) for row in self.rows]) + paragraph(self.caption, "note") + missing


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
        said = "\n".join(map(typeset.paragraph, self.conclusion))
        where = typeset.paragraph("; ".join(self.hardware.values()))
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
        files = {
            "study.toml": to_toml(self.spec.to_dict()),
            "table.md": self.table.to_markdown() + "".join(f"\n- {sentence}" for sentence in self.conclusion) + "\n",
            "table.csv": self.table.to_csv(),
            "results.json": json_text(self.to_dict()),
            REPORT: self._page(),
        }
        write_files(place, files)
        return place / REPORT

    def _page(self) -> str:
        question = paragraph(self.spec.question, "question") if self.spec.question else ""
        parts = [
            f"<header>{paragraph('A study by Lemma', 'kicker')}<h1>{escape(self.spec.name)}</h1>{question}</header>",
            f'<div class="finding">{"".join(map(paragraph, self.conclusion))}</div>',
            facts(self.data),
            section("Result", self.table.to_html()),
            plots_section(self.plots),
            section("Protocol and hardware", facts({**self.protocol, **self.hardware})),
            f"<footer>{escape(FOOTER)}</footer>",
        ]
        return page(f"{self.spec.name}: a study", filter(None, parts))
