"""What an adaptation came to."""

from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from lemma.ledger.trainable import trainable_text
from lemma.runs import RunFolder
from lemma.runs.folder import ADAPTATION, LABELS, RECIPE, SPEC, SUMMARY, WEIGHTS
from lemma.spec import Method, ModelSpec
from lemma.studies.judged import AnyScore
from lemma.training import TrainingResult
from lemma.typeset import label

KEPT = (SPEC, RECIPE, ADAPTATION, LABELS, WEIGHTS, SUMMARY)
"""The files that an adapted run needs; the rest is its diary."""


@dataclass(frozen=True)
class Adapted:
    """An adapted run: what was learned of how much, what is stored, and how well it does on what was held out."""

    path: Path
    base: Path
    spec: ModelSpec
    method: Method
    always: tuple[str, ...]
    """Patterns of what learns whatever the method."""
    learned: int
    parameters: int
    stored_bytes: int
    training: TrainingResult
    score: AnyScore

    @cached_property
    def formula(self) -> str:
        """The parameters that were learned, as a formula read off the adapted module and proved against it."""
        return trainable_text(self.spec, self.method, self.always)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "path": str(self.path),
            "base": str(self.base),
            "method": self.method.to_dict(),
            "formula": self.formula,
            "learned": self.learned,
            "parameters": self.parameters,
            "stored_bytes": self.stored_bytes,
            "training": self.training.to_dict(),
            "score": self.score.to_dict(),
        }

    def __str__(self) -> str:
        head = "\n".join(label(name, value, 11) for name, value in self._lines())
        return f"{head}\n\nOn what was held out:\n{self.score}\n\nThe run is in {self.path}"

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in self._lines())
        shown = getattr(self.score, "_repr_html_", lambda: f"<pre>{escape(str(self.score))}</pre>")
        return f"<table>{''.join(rows)}</table>{shown()}"

    def _lines(self) -> list[tuple[str, str]]:
        told = {word: value for word, value in self.method.to_dict().items() if word != "kind" and value != []}
        words = ", ".join(f"{word} {value}" for word, value in told.items())
        share = 100 * self.learned / self.parameters
        return [
            ("method", self.method.kind + (f" ({words})" if words else "")),
            ("base", str(self.base)),
            ("learned", f"{self.learned:,} of {self.parameters:,} parameters ({share:.2f} %)"),
            ("formula", self.formula),
            ("stored", f"{self.stored_bytes:,} bytes beside the base"),
            ("time", f"{self.training.seconds:.1f} s, {self.training.steps:,} steps"),
            *(("warning", warning) for warning in self.training.warnings),
        ]


def stored_bytes(folder: RunFolder) -> int:
    """The bytes that must be kept of a run, beside its base."""
    return sum((folder.path / name).stat().st_size for name in KEPT if (folder.path / name).exists())
