"""What a study gives: a table, a conclusion, plots and samples, and the files they are saved in."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lemma.files import file_lock, write_atomically, write_checksums
from lemma.report.curves import Plot
from lemma.report.result import (
    Block,
    Facts,
    Heading,
    Items,
    Result,
    Table,
    Text,
    as_csv,
    as_html,
    as_json,
    as_markdown,
    as_text,
    plot_blocks,
)
from lemma.runs.checkpoint import MANIFEST
from lemma.runs.verify import STUDY_FILE
from lemma.spec.studies import StudySpec

NO_VALUE = "–"
RESUME_HINT = "Interrupted: the same command goes on where it stopped."
NOTHING_FINISHED = "No run finished."
NOTHING_TO_COMPARE = "No run finished, so that there is nothing to compare."
FOOTER = "Made by Lemma. This page needs no network and no script. The unrounded figures are in {}."


@dataclass(frozen=True)
class StudyTable:
    """A study's table: formatted cells for people, and the same figures unrounded in `records`."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    records: Sequence[Mapping[str, Any]]  # the rows with figures as they are, for CSV and JSON
    caption: str
    notes: Sequence[str] = ()  # why runs are missing
    best_row: int | None = None  # the row that is marked as the best
    mark_meaning: str = ""  # of the mark of the best row, where it is printed as a sign
    left: Sequence[int] = (0,)  # columns that are aligned left

    def blocks(self) -> Iterator[Block]:
        """Yield the table, its caption and notes, for the terminal."""
        rows = [[f"{row[0]} *", *row[1:]] if index == self.best_row else row for index, row in enumerate(self.rows)]
        yield Table(self.header, rows, left=self.left, underline_header=True)
        marked = self.mark_meaning if self.best_row is not None else ""
        yield from (Text(text, "note") for text in (f"{self.caption} {marked}".strip(), *self.notes))

    def details(self) -> Iterator[Block]:
        """Yield the table and the notes on missing runs, for the HTML page."""
        kinds = ["best" if index == self.best_row else "" for index in range(len(self.rows))]
        yield Table(self.header, self.rows, left=self.left, row_kinds=kinds, caption=self.caption)
        if self.notes:
            yield from (Heading("Missing runs", 3), Items(self.notes))

    def __str__(self) -> str:
        return as_text(self.blocks())

    def to_markdown(self) -> str:
        """Return the table as Markdown, with caption and notes."""
        table, *texts = self.blocks()
        notes = [Items(self.notes)] if self.notes else []
        return as_markdown([table, texts[0], *notes])

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary of caption and unrounded rows."""
        return {"caption": self.caption, "rows": [dict(record) for record in self.records]}


@dataclass(frozen=True)
class StudyResult(Result):
    """The result of a study in the folder `out`; if it was interrupted, of the runs that there are."""

    title: str
    out: Path
    table: StudyTable
    conclusion: tuple[str, ...]  # sentences made from the numbers
    hardware: Mapping[str, str]
    spec: StudySpec | None = None
    question: str = ""
    data: Mapping[str, str] = field(default_factory=dict)  # what was learned from, in words
    protocol: Mapping[str, str] = field(default_factory=dict)  # how it was measured, in words
    runs: tuple[Any, ...] = ()  # the outcomes of all cells
    rows: tuple[Any, ...] = ()  # the rows of the table, with all that was measured
    claims: tuple[Any, ...] = ()  # the verdicts on the study's claims
    formulas: Mapping[str, str] = field(default_factory=dict)  # by what they count, read off the running module
    convention: str = ""  # how the formulas count
    plots: tuple[Plot, ...] = ()
    terminal_blocks: tuple[Block, ...] = ()  # printed below the table
    page_blocks: tuple[Block, ...] = ()  # shown below the table of the page
    extra: Mapping[str, Any] = field(default_factory=dict)  # further plain values
    interrupted: bool = False
    next_command: str = ""  # what one might type next
    kicker: str = "A study by Lemma"
    files: tuple[str, str, str, str] = ("table.md", "table.csv", "results.json", "report.html")

    @property
    def report(self) -> Path:
        """Return the path of the HTML page."""
        return self.out / self.files[-1]

    @property
    def failed(self) -> tuple[Any, ...]:
        """Return the outcomes of the cells that failed."""
        return tuple(run for run in self.runs if run.reason)

    @property
    def all_failed(self) -> bool:
        """Return whether there are cells and all of them failed."""
        return bool(self.runs) and len(self.failed) == len(self.runs)

    def blocks(self) -> Iterator[Block]:
        """Yield table, conclusions, claims and next command, for the terminal."""
        yield from (Heading(self.title), *self.table.blocks(), *self.terminal_blocks)
        formulas = [f"{quantity}: {formula}" for quantity, formula in self.formulas.items()]
        if formulas:
            yield Text("\n".join(filter(None, [*formulas, self.convention])), blank_before=True)
        yield from (Text(sentence, "finding", blank_before=not index) for index, sentence in enumerate(self.conclusion))
        yield from (Text(str(claim), blank_before=True) for claim in self.claims)
        yield Text("; ".join(self.hardware.values()), "note", blank_before=True)
        following = [f"Next: {self.next_command}"] if self.next_command else []
        yield Text("\n".join([*([RESUME_HINT] if self.interrupted else []), f"Report: {self.report}", *following]))

    def details(self) -> Iterator[Block]:
        """Yield everything that the HTML page shows."""
        yield from (Text(self.kicker, "kicker"), Heading(self.title, 1))
        if self.question:
            yield Text(self.question, "question")
        yield from (Text(sentence, "finding") for sentence in self.conclusion)
        if self.data:
            yield Facts(self.data)
        yield from (Heading("Result"), *self.table.details(), *self.page_blocks)
        if self.plots:
            yield from (Heading("Plots"), *plot_blocks(self.plots))
        if self.formulas:
            yield from (Heading("By formula"), Facts(self.formulas), Text(self.convention, "note"))
        yield from (Heading("Protocol and hardware"), Facts({**self.protocol, **self.hardware}))
        yield Text(FOOTER.format(self.files[2]), "footer")

    def records(self) -> list[dict[str, Any]]:
        """Return the unrounded rows of the table for CSV."""
        return [dict(record) for record in self.table.records]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary of the study, its data, table, conclusions and runs."""
        return {
            **({"study": self.spec.to_dict()} if self.spec else {}),
            "data": dict(self.data),
            "hardware": dict(self.hardware),
            "protocol": dict(self.protocol),
            "interrupted": self.interrupted,
            "table": self.table.to_dict(),
            "conclusion": list(self.conclusion),
            "runs": [run.to_dict() for run in self.runs],
            "report": str(self.report),
            **self.extra,
        }

    def save(self, path: Path | str | None = None) -> Path:
        """Write the result and return the path of the HTML page.

        Args:
            path: one file, whose suffix selects the format; or a folder for table (Markdown, CSV), JSON and page. The
                default is the study's folder, which also gets a manifest of their checksums.
        """
        if path is not None and Path(path).suffix in self.writers():
            return super().save(path)
        folder = self.out if path is None else Path(path)
        conclusion = as_markdown([Items(self.conclusion)])
        texts = (
            f"{self.table.to_markdown()}\n{conclusion}",
            as_csv(self.records()),
            as_json(self.to_dict(), indent=1),
            as_html(self.details(), self.title),
        )
        folder.mkdir(parents=True, exist_ok=True)
        with file_lock(folder / MANIFEST, timeout=60):  # other processes may write the same report
            if path is None:
                (folder / MANIFEST).unlink(missing_ok=True)  # until all that it lists is there
            for name, content in zip(self.files, texts, strict=True):
                write_atomically(folder / name, content)
            if path is None:
                names = [name for name in (STUDY_FILE, *self.files) if (folder / name).exists()]
                write_checksums(folder, MANIFEST, names)
        return folder / self.files[-1]
