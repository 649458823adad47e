"""What `run_study` gives: the findings and the files they are saved in."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lemma import typeset
from lemma.studies.files import json_text, write_files
from lemma.studies.findings import Findings
from lemma.studies.more_shown import summary, texts
from lemma.studies.page import grid, paragraph
from lemma.studies.report import write_report

REPORT = "report.html"


@dataclass(frozen=True)
class StudyResult(Findings):
    """The findings of a study in the folder `out`, whole or, if it was interrupted, as far as they go."""

    out: Path
    interrupted: bool = False

    @property
    def report(self) -> Path:
        """Where the report is."""
        return self.out / REPORT

    def __str__(self) -> str:
        claims = "".join(f"\n\n{typeset.fit(str(judgement))}" for judgement in self.judgements)
        again = "\nInterrupted: the same command goes on where it stopped." if self.interrupted else ""
        conclusion = "\n".join(map(typeset.paragraph, self.conclusion))
        more = "".join(f"\n\n{text}" for text in texts(self.spec, self.rows))
        return f"{self.spec.name}\n\n{self.table}{more}\n\n{conclusion}{claims}\n{again}\nReport: {self.report}"

    def _repr_html_(self) -> str:
        rows = [("", self.table.cells(row)) for row in self.rows]
        sentences = [self.table.caption, *self.table.notes(), *self.conclusion]
        return grid(self.table.header, rows) + "".join(map(paragraph, sentences))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "study": self.spec.to_dict(),
            "data": dict(self.data),
            "hardware": dict(self.hardware),
            "interrupted": self.interrupted,
            "table": self.table.to_dict(),
            "measures": {name: summary(name, self.rows) for name in self.spec.measures},
            "conclusion": list(self.conclusion),
            "claims": [judgement.to_dict() for judgement in self.judgements],
            "runs": [run.to_dict() for run in self.runs],
            "report": str(self.report),
        }

    def save(self, folder: Path | None = None) -> Path:
        """Write the table (Markdown, CSV), everything (JSON) and the report into a folder; return the report's path."""
        place = folder or self.out
        files = {
            "table.md": self.table.to_markdown(),
            "table.csv": self.table.to_csv(),
            "results.json": json_text(self.to_dict()),
            REPORT: write_report(self),
        }
        write_files(place, files)
        return place / REPORT
