"""Marks: per question the verdict, the reason and the points."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from lemma.typeset import fit

Outcome = Literal["right", "partly right", "wrong", "unreadable", "not answered"]


@dataclass(frozen=True)
class Mark:
    """One answer and what it is worth. `right` is the right answer, where the sheet allows it to be shown."""

    id: str
    text: str
    answer: str
    verdict: Outcome
    reason: str
    points: float
    of: float
    right: str | None = None

    def become(self, verdict: Outcome, reason: str, points: float = 0, right: str | None = None) -> "Mark":
        """The same answer, judged."""
        return replace(self, verdict=verdict, reason=reason, points=points, right=right)

    @property
    def remarks(self) -> tuple[str, ...]:
        """All there is to say about it."""
        right = f"The right answer: {self.right}" if self.right and self.verdict != "right" else ""
        return tuple(remark for remark in (*self.reason.splitlines(), right) if remark)


@dataclass(frozen=True)
class Marks:
    """All marks of one student."""

    title: str
    student: str
    marks: tuple[Mark, ...]
    strangers: tuple[str, ...] = ()
    """What is said of answers to questions that are not on the sheet."""

    @property
    def points(self) -> float:
        """All points together."""
        return round(sum(mark.points for mark in self.marks), 2)

    @property
    def of(self) -> float:
        """The points that can be had."""
        return round(sum(mark.of for mark in self.marks), 2)

    @property
    def summary(self) -> str:
        """The points in words."""
        return f"{number(self.points)} of {number(self.of)} points"

    @property
    def heading(self) -> str:
        """The title, and whose answers these are."""
        return f"{self.title}: {self.student}" if self.student else self.title

    def __str__(self) -> str:
        width = max(len(mark.id) for mark in self.marks)
        lines = [self.heading]
        for mark in self.marks:
            lines.append(f"{mark.id:<{width}}  {mark.verdict:<12}  {number(mark.points):>5} of {number(mark.of)}")
            lines += [f"{'':<{width}}  {remark}" for remark in mark.remarks]
        return fit("\n".join([*lines, *self.strangers, self.summary]))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        about = {"title": self.title, "student": self.student, "points": self.points, "of": self.of}
        return {**about, "marks": [asdict(mark) for mark in self.marks], "strangers": list(self.strangers)}


def number(value: float) -> str:
    """Points without needless decimals.

    >>> number(2.0), number(1.5)
    ('2', '1.5')
    """
    return f"{value:g}"
