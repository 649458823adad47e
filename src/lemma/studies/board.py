"""The board of an adaptation: what each method costs, what it gains, and which is best for whom (problem E5)."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lemma import typeset
from lemma.studies.adapted import Adapted
from lemma.studies.figure import Figure, figure_of
from lemma.studies.files import json_text, write_files
from lemma.studies.forgetting import Forgetting
from lemma.studies.page import facts, grid, page, paragraph, section
from lemma.studies.timing import Spread

REPORT = "board.html"
NONE = "–"
MEGA = 1e6
GUESSING = "No method is told apart from always naming the commonest class: give more texts or steps to compare them."
ALIKE = 1.05
"""Times within this ratio of the least count as alike: the noise of a shared machine is larger than less."""
HOW = (
    "Memory: all tensors at the fullest moment of one training step. Inference: one pass over the same batch, all "
    "methods in turns in one process, median of the rounds; merged: updates folded into plain weights. Forgetting: "
    "perplexity of the base's own held-out data with the base's weights and with the adapted ones."
)
FOOTER = "Made by Lemma. This page needs no network and no script. The figures stand unrounded in board.json."


@dataclass(frozen=True)
class BoardRow:
    """One method: what came of it, and what it cost."""

    adapted: Adapted
    peak_bytes: int
    unmerged: Spread
    """Milliseconds of a pass as the run is loaded."""
    merged: Spread | None
    """The same with updates folded in, where there are any that can be."""
    slower: Spread
    """The pass's time against that of the fully tuned model, which has nothing added."""
    forgetting: Forgetting | None

    @property
    def method(self) -> str:
        """The method's name."""
        return self.adapted.method.kind

    @property
    def figure(self) -> Figure:
        """What it is judged by."""
        return figure_of(self.adapted.score)

    @property
    def fastest(self) -> float:
        """The milliseconds of a pass in its quickest form."""
        return min(self.unmerged.median, self.merged.median if self.merged else self.unmerged.median)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            **self.adapted.to_dict(),
            "peak_bytes": self.peak_bytes,
            "inference_ms": self.unmerged.median,
            "inference_merged_ms": self.merged.median if self.merged else None,
            "inference_against_full": {
                "median": self.slower.median,
                "low": self.slower.low,
                "high": self.slower.high,
            },
            "forgetting": self.forgetting.to_dict() if self.forgetting else None,
        }


@dataclass(frozen=True)
class Scenario:
    """A person with a need, and what counts for them."""

    says: str
    measured: str
    cost: Callable[[BoardRow], float]
    unit: str
    scale: float = 1.0


SCENARIOS = (
    Scenario("Many tasks on one base", "stored bytes a task", lambda row: row.adapted.stored_bytes, "kB", 1e3),
    Scenario("Little memory to train in", "peak training memory", lambda row: row.peak_bytes, "MB", MEGA),
    Scenario("Answers at once", "inference time, merged where possible", lambda row: row.fastest, "ms"),
)


@dataclass(frozen=True)
class Board:
    """All methods on one base and one task."""

    rows: tuple[BoardRow, ...]
    base: Path
    data: str
    hardware: Mapping[str, str]
    out: Path
    note: str = ""
    """What could not be measured, and why."""

    @property
    def header(self) -> list[str]:
        """The name of the table's corner, and the methods."""
        return ["", *(row.method for row in self.rows)]

    def lines(self) -> list[list[str]]:
        """The board as a person reads it: a line for each quantity, a column for each method."""
        name = self.rows[0].figure.name
        lines: list[tuple[str, Callable[[BoardRow], str]]] = [
            ("learned parameters", lambda row: f"{row.adapted.learned:,}"),
            ("share of all", lambda row: f"{100 * row.adapted.learned / row.adapted.parameters:.2f} %"),
            ("stored a task, bytes", lambda row: f"{row.adapted.stored_bytes:,}"),
            ("peak memory, MB", lambda row: f"{row.peak_bytes / MEGA:,.1f}"),
            ("training, s", lambda row: f"{row.adapted.training.seconds:,.1f}"),
            ("inference, ms", lambda row: f"{row.unmerged.median:.3g}"),
            ("  against full", lambda row: f"{row.slower.median:.2f}"),
            ("  quartiles", lambda row: f"{row.slower.low:.2f}–{row.slower.high:.2f}"),
            ("inference merged, ms", lambda row: f"{row.merged.median:.3g}" if row.merged else NONE),
            (name, lambda row: row.figure.shown),
            ("  95 % interval", lambda row: row.figure.interval),
            *([("  by guessing", lambda row: row.figure.guess)] if self.rows[0].figure.guessed is not None else []),
            ("base perplexity", lambda row: f"{row.forgetting.before:,.2f}" if row.forgetting else NONE),
            ("  after adapting", lambda row: f"{row.forgetting.after:,.2f}" if row.forgetting else NONE),
        ]
        return [[title, *(cell(row) for row in self.rows)] for title, cell in lines]

    @property
    def formulas(self) -> dict[str, str]:
        """The parameters that each method learns, as formulas read off its module."""
        return {row.method: row.adapted.formula for row in self.rows}

    @property
    def winners(self) -> list[str]:
        """One sentence for each scenario, and before them one where no method has learned the task."""
        guessing = [GUESSING] if all(row.figure.guesses for row in self.rows) else []
        return [*guessing, *(winner(scenario, self.rows) for scenario in SCENARIOS)]

    def __str__(self) -> str:
        head = f"{self.base} adapted to {self.data}"
        formulas = [typeset.label(f"  {name}", formula, 11) for name, formula in self.formulas.items()]
        parts = [
            head,
            "",
            *typeset.table([self.header, *self.lines()], rule=True),
            "",
            "Learned, by formula:",
            *formulas,
            "",
        ]
        hardware = "; ".join(self.hardware.values())
        said = [typeset.paragraph(sentence) for sentence in (*self.winners, "", HOW, self.note, hardware)]
        return "\n".join([*parts, *said, f"Board: {self.out / REPORT}"])

    def _repr_html_(self) -> str:
        return self._table() + facts(self.formulas) + "".join(map(paragraph, self.winners))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "base": str(self.base),
            "data": self.data,
            "hardware": dict(self.hardware),
            "rows": [row.to_dict() for row in self.rows],
            "winners": self.winners,
            "note": self.note,
            "board": str(self.out / REPORT),
        }

    def save(self, folder: Path | None = None) -> Path:
        """Write the board as a page, Markdown, CSV and JSON into a folder; return the page's path."""
        place = folder or self.out
        files = {
            "board.md": self._markdown(),
            "board.csv": self._csv(),
            "board.json": json_text(self.to_dict()),
            REPORT: self._page(),
        }
        write_files(place, files)
        return place / REPORT

    def _table(self) -> str:
        return grid(self.header, [("", cells) for cells in self.lines()])

    def _markdown(self) -> str:
        table = [self.header, ["---", *["--:" for _ in self.rows]], *self.lines()]
        rows = "\n".join(f"| {' | '.join(line)} |" for line in table)
        formulas = "".join(f"- {name}: {formula}\n" for name, formula in self.formulas.items())
        return f"{rows}\n\n{formulas}\n" + "".join(f"- {sentence}\n" for sentence in self.winners) + f"\n{HOW}\n"

    def _csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.header, *self.lines()])
        return text.getvalue()

    def _page(self) -> str:
        head = f"<header>{paragraph('Adaptation', 'kicker')}<h1>Ways to adapt</h1>"
        head += f"{paragraph(f'{self.base} adapted to {self.data}', 'question')}</header>"
        found = f'<div class="finding">{"".join(map(paragraph, self.winners))}</div>'
        measured = section("Measured", self._table(), paragraph(f"{HOW} {self.note}".strip(), "note"))
        formulas = section("Learned parameters by formula", facts(self.formulas))
        where = section("Hardware", facts(self.hardware))
        return page("Ways to adapt", [head, found, measured, formulas, where, f"<footer>{FOOTER}</footer>"])


def winner(scenario: Scenario, rows: Sequence[BoardRow]) -> str:
    """Name the method that costs least among those that do the task as well as the best, as far as can be told."""
    best = max(rows, key=lambda row: row.figure.goodness)
    good = [row for row in rows if row.figure.reaches(best.figure)]
    least = min(scenario.cost(row) for row in good)
    alike = [row for row in good if scenario.cost(row) <= ALIKE * least]
    chosen = min(alike, key=lambda row: (-row.figure.goodness, scenario.cost(row)))
    cost = f"{scenario.cost(chosen) / scenario.scale:,.4g} {scenario.unit}"
    others = [row.method for row in alike if row is not chosen]
    same = f" ({' and '.join(others)}: about the same)" if others else ""
    said = f"{scenario.says}: {chosen.method}, by {scenario.measured} ({cost}){same}."
    cheaper = [row for row in rows if row not in good and scenario.cost(row) < least]
    if not cheaper:
        return said
    names = " and ".join(row.method for row in cheaper)
    return f"{said} Cheaper, but worse at the task: {names}."
