"""What a study of costs comes to: formulas beside measured times, in a table, plots and a page."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from lemma.ledger import Account
from lemma.ledger.lines import NO_PLOT, Plot, can_draw
from lemma.runs import write_atomically
from lemma.spec import CostSpec, to_toml
from lemma.studies.page import facts, grid, page, paragraph, section
from lemma.studies.timing import Spread

REPORT = "report.html"
JOINED = "\u2060–\u2060"  # a dash at which no line is broken: cells wrap before the bracket
HOW = (
    "Times: median of the rounds with the quartiles in brackets. All contenders run in one process, once a round, each "
    "round beginning with another one; ratios are taken round by round."
)
FOOTER = "Made by Lemma. This page needs no network and no script. The figures stand unrounded in results.json."


@dataclass(frozen=True)
class Cost:
    """One contender at one size: what it is, its counts by formula, and how long it took."""

    place: Mapping[str, Any]
    counts: Mapping[str, int]
    forward: Spread
    both: Spread
    """Forward and backward."""
    forward_ratio: Spread
    both_ratio: Spread

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; times in seconds."""
        spreads = {name: asdict(getattr(self, name)) for name in ("forward", "both", "forward_ratio", "both_ratio")}
        return {**self.place, **self.counts, **spreads}

    def flat(self) -> dict[str, Any]:
        """The same without tables inside, for CSV."""
        plain = self.to_dict()
        spreads = {name: value for name, value in plain.items() if isinstance(value, dict)}
        ends = {f"{name}_{end}": number for name, one in spreads.items() for end, number in one.items()}
        return {**{name: value for name, value in plain.items() if name not in spreads}, **ends}


@dataclass(frozen=True)
class CostResult:
    """The findings of a study of costs, in the folder `out`."""

    spec: CostSpec
    hardware: Mapping[str, str]
    formulas: Mapping[str, str]
    """Every formula by what it counts, read off the running module."""
    convention: str
    rows: tuple[Cost, ...]
    against: str
    """What the ratios compare with."""
    conclusion: tuple[str, ...]
    plots: tuple[Plot, ...]
    out: Path
    unplotted: str = ""
    """Why there is no plot, where there is none."""

    @property
    def report(self) -> Path:
        """Where the report is."""
        return self.out / REPORT

    @property
    def header(self) -> list[str]:
        """The names of the columns."""
        times = ["forward ms", f"× {self.against}", "forward+backward ms", f"× {self.against} "]
        return [*self.rows[0].place, *self.rows[0].counts, *times]

    def cells(self, row: Cost) -> list[str]:
        """One row as a person reads it."""
        times = [str(row.forward.scaled(1e3)), str(row.forward_ratio), str(row.both.scaled(1e3)), str(row.both_ratio)]
        return [*map(str, row.place.values()), *(f"{number:,}" for number in row.counts.values()), *times]

    def __str__(self) -> str:
        lines = [self.header, *map(self.cells, self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        table.insert(1, "  ".join("─" * width for width in widths))
        formulas = [f"{what}: {formula}" for what, formula in self.formulas.items()]
        hardware = "; ".join(self.hardware.values())
        parts = [self.spec.name, "", *table, "", HOW, "", *formulas, self.convention, "", *self.conclusion, ""]
        plots = [self.unplotted] if self.unplotted else []
        return "\n".join([*parts, *plots, hardware, f"Report: {self.report}"])

    def _repr_html_(self) -> str:
        return self._table() + "".join(map(paragraph, [HOW, *self.conclusion]))

    def _table(self) -> str:
        whole = [[cell.replace("–", JOINED) for cell in self.cells(row)] for row in self.rows]
        return grid(self.header, [("", cells) for cells in whole], "wrapping")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "study": self.spec.to_dict(),
            "hardware": dict(self.hardware),
            "formulas": dict(self.formulas),
            "convention": self.convention,
            "against": self.against,
            "rows": [row.to_dict() for row in self.rows],
            "conclusion": list(self.conclusion),
            "report": str(self.report),
        }

    def save(self, folder: Path | None = None) -> Path:
        """Write the table (Markdown, CSV), everything (JSON) and the report into a folder; return the report's path."""
        place = folder or self.out
        place.mkdir(parents=True, exist_ok=True)
        files = {
            "study.toml": to_toml(self.spec.to_dict()),
            "table.md": self._markdown(),
            "table.csv": self._csv(),
            "results.json": json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n",
            REPORT: self._page(),
        }
        for name, content in files.items():
            write_atomically(place / name, content)
        return place / REPORT

    def _markdown(self) -> str:
        lines = [self.header, ["--:" for _ in self.header], *map(self.cells, self.rows)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"{table}\n\n{HOW}\n\n" + "".join(f"- {sentence}\n" for sentence in self.conclusion)

    def _csv(self) -> str:
        rows = [row.flat() for row in self.rows]
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def _page(self) -> str:
        kicker, question = paragraph("A study by Lemma", "kicker"), paragraph(self.spec.question, "question")
        head = f"<header>{kicker}<h1>{escape(self.spec.name)}</h1>{question if self.spec.question else ''}</header>"
        found = f'<div class="finding">{"".join(map(paragraph, self.conclusion))}</div>'
        formulas = section("By formula", facts(self.formulas), paragraph(self.convention, "note"))
        measured = section("Measured", self._table(), paragraph(HOW, "note"))
        where = section("Hardware", facts(self.hardware))
        parts = [
            head,
            found,
            _figures(self.plots, self.unplotted),
            formulas,
            measured,
            where,
            f"<footer>{escape(FOOTER)}</footer>",
        ]
        return page(f"{self.spec.name}: a study", filter(None, parts))


def typeset(account: Account, name: str) -> str:
    """A formula as `lemma count` writes it: 3·d²."""
    return account.quantities[name].formula(account.order, "unicode")


def _figures(plots: Sequence[Plot], unplotted: str) -> str:
    if not plots:
        return section("Plots", paragraph(unplotted)) if unplotted else ""
    if not can_draw():
        return section("Plots", paragraph(NO_PLOT))
    figures = "".join(
        f"<figure>{plot.svg()}<figcaption>{escape(plot.whole_caption)}</figcaption></figure>" for plot in plots
    )
    return section("Plots", f'<div class="plots">{figures}</div>')
