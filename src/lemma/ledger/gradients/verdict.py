"""What the judge says of a derivation, line by line."""

from dataclasses import asdict, dataclass
from html import escape
from math import isfinite
from typing import Any, Literal

from lemma.typeset import fit

Outcome = Literal["right", "wrong", "helper"]
_COLOURS = {"right": "#17803d", "wrong": "#b42318", "helper": "#667085"}


@dataclass(frozen=True)
class Verdict:
    """One line: what was written, whether it is right, and if not, why and what would be."""

    line: int
    name: str
    text: str
    outcome: Outcome
    reason: str = ""
    error: float | None = None
    """The relative error, where the shape is right and the values are finite."""
    repair: str | None = None
    """The repaired line, where a simple repair fits."""
    taken: tuple[str, ...] = ()
    """Gradients the line uses that no line derives; their true values are taken."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that are good JSON."""
        finite = self.error if self.error is not None and isfinite(self.error) else None
        return {**asdict(self), "error": finite, "taken": list(self.taken)}

    @property
    def remarks(self) -> tuple[str, ...]:
        """All there is to say below the line itself."""
        repaired = f"repaired: {self.repair}" if self.repair else ""
        taken = f"taken as given, since no line derives it: {', '.join(self.taken)}" if self.taken else ""
        return tuple(remark for remark in (self.reason, repaired, taken) if remark)

    def __str__(self) -> str:
        return "\n".join([f"{self.outcome:<7} {self.text}", *(f"{'':<7} {remark}" for remark in self.remarks)])


@dataclass(frozen=True)
class GradientReport:
    """The verdicts on all lines of a derivation."""

    cell: str
    verdicts: tuple[Verdict, ...]

    @property
    def judged(self) -> tuple[Verdict, ...]:
        """The verdicts on lines that derive something the cell knows, or that cannot be computed."""
        return tuple(verdict for verdict in self.verdicts if verdict.outcome != "helper")

    @property
    def right(self) -> bool:
        """Whether something was judged and all of it is right."""
        return bool(self.judged) and all(verdict.outcome == "right" for verdict in self.judged)

    @property
    def summary(self) -> str:
        """How many lines are right."""
        right = sum(verdict.outcome == "right" for verdict in self.judged)
        return f"{self.cell}: {right} of {len(self.judged)} right"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that are good JSON."""
        verdicts = [verdict.to_dict() for verdict in self.verdicts]
        return {"cell": self.cell, "right": self.right, "verdicts": verdicts}

    def __str__(self) -> str:
        return fit("\n".join([*map(str, self.verdicts), self.summary]))

    def _repr_html_(self) -> str:
        rows = "".join(_row(verdict) for verdict in self.verdicts)
        return f"<table>{rows}</table><p>{escape(self.summary)}</p>"


def _row(verdict: Verdict) -> str:
    remarks = "".join(f"<br><small>{escape(remark)}</small>" for remark in verdict.remarks)
    colour = _COLOURS[verdict.outcome]
    return (
        f'<tr><td style="color: {colour}">{verdict.outcome}</td>'
        f'<td style="text-align: left"><code>{escape(verdict.text)}</code>{remarks}</td></tr>'
    )
