"""The table of a study: one row for each contender at each place of the grid, means over seeds."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from lemma import typeset
from lemma.studies.files import csv_text, escape_cell, markdown_table
from lemma.studies.grid import plain
from lemma.studies.outcome import Outcome
from lemma.studies.row import Row, gather

MARK = "*"
MARKED = f" {MARK} marks the lowest perplexity."
NONE = "–"


@dataclass(frozen=True)
class Table:
    """The rows of a study, ready for the terminal, Markdown, CSV and JSON."""

    rows: tuple[Row, ...]

    @property
    def header(self) -> list[str]:
        """The names of the columns, as a person reads them."""
        figures = ["perplexity", "bits/byte", "parameters", "tokens", "tokens/s", "seconds"]
        return ["model", *self.rows[0].point, *figures]

    @property
    def caption(self) -> str:
        """What the figures are and what the marks mean."""
        counts = {len(row.measured) for row in self.rows if row.measured}
        words = "Perplexity and bits per byte: full validation pass."
        if not counts:
            return "No run has come to its end."
        words += MARKED
        if max(counts) > 1:
            seeds = f"{max(counts)} seeds" if len(counts) == 1 else f"up to {max(counts)} seeds"
            words += f" Mean ± half the 95 % interval over {seeds} (Student's t)."
        if min(counts) == 1:
            words += " A figure without ± comes from one seed, which has no interval."
        return words

    def cells(self, row: Row) -> list[str]:
        """One row as a person reads it, the best one marked."""
        values = row.to_dict()
        mark = f" {MARK}" if row.best else ""
        return [
            row.contender + mark,
            *(plain(value) for value in row.point.values()),
            NONE if row.perplexity is None else str(row.perplexity),
            NONE if row.bits_per_byte is None else str(row.bits_per_byte),
            *(_count(values[word]) for word in ("parameters", "tokens", "tokens_per_second")),
            NONE if values["seconds"] is None else f"{values['seconds']:,.1f}",
        ]

    def notes(self) -> list[str]:
        """One line for each seed that is missing, with its reason."""
        return [f"{row.title}, {note}" for row in self.rows for note in row.notes]

    def __str__(self) -> str:
        lines = typeset.table([self.header, *map(self.cells, self.rows)], rule=True)
        return "\n".join([*lines, "", *map(typeset.paragraph, (self.caption, *self.notes()))])

    def to_markdown(self) -> str:
        """Write the table as Markdown."""
        table = markdown_table(self.header, [self.cells(row) for row in self.rows])
        notes = "".join(f"- {escape_cell(note)}\n" for note in self.notes())
        return f"{table}\n\n{escape_cell(self.caption)}\n" + (f"\n{notes}" if notes else "")

    def to_csv(self) -> str:
        """Write the table as CSV, figures unrounded."""
        return csv_text(self.to_dict()["rows"])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"caption": self.caption, "rows": [row.to_dict() for row in self.rows]}


def make_table(outcomes: Iterable[Outcome]) -> Table:
    """Gather the outcomes of each contender at each place, and mark the row of the lowest mean perplexity."""
    rows = gather(outcomes)
    ranked = [row for row in rows if row.perplexity]
    best = min(ranked, key=lambda row: row.perplexity.mean if row.perplexity else 0.0, default=None)
    return Table(tuple(replace(row, best=row is best) for row in rows))


def _count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"
