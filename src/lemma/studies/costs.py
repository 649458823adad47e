"""What a study of costs comes to: formulas beside measured times, in a table, plots and a page."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from lemma.ledger import Account
from lemma.ledger.lines import Plot
from lemma.spec import CostSpec, to_toml
from lemma.studies.drawn import plots_section
from lemma.studies.files import csv_text, json_text, write_files
from lemma.studies.page import facts, grid, page, paragraph, section
from lemma.studies.timing import Spread
from lemma.typeset import paragraph as flowing
from lemma.typeset import table

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
        lines = table([self.header, *map(self.cells, self.rows)], left=(), rule=True)
        formulas = [f"{what}: {formula}" for what, formula in self.formulas.items()]
        hardware = "; ".join(self.hardware.values())
        parts = [self.spec.name, "", *lines, "", HOW, "", *formulas, self.convention, "", *self.conclusion, ""]
        plots = [self.unplotted] if self.unplotted else []
        return flowing("\n".join([*parts, *plots, hardware, f"Report: {self.report}"]))

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
        files = {
            "study.toml": to_toml(self.spec.to_dict()),
            "table.md": self._markdown(),
            "table.csv": self._csv(),
            "results.json": json_text(self.to_dict()),
            REPORT: self._page(),
        }
        write_files(place, files)
        return place / REPORT

    def _markdown(self) -> str:
        lines = [self.header, ["--:" for _ in self.header], *map(self.cells, self.rows)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"{table}\n\n{HOW}\n\n" + "".join(f"- {sentence}\n" for sentence in self.conclusion)

    def _csv(self) -> str:
        return csv_text([row.flat() for row in self.rows])

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
            plots_section(self.plots, self.unplotted),
            formulas,
            measured,
            where,
            f"<footer>{escape(FOOTER)}</footer>",
        ]
        return page(f"{self.spec.name}: a study", filter(None, parts))


def typeset(account: Account, name: str) -> str:
    """A formula as `lemma count` writes it: 3·d²."""
    return account.quantities[name].formula(account.order, "unicode")
