"""What is said of a hand computation: each line right or wrong, where it differs, and the slip that explains it."""

from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from lemma.looking.worked.judging.numbers import RULE
from lemma.typeset import columns, wrap


@dataclass(frozen=True)
class JudgedClaim:
    """One line judged."""

    claim: str
    right: bool
    expected: str
    """What is right, rounded like what was given."""
    places: tuple[str, ...] = ()
    """The first places that differ."""
    slip: str = ""
    """The mistake that explains the difference, if one does."""

    def __str__(self) -> str:
        mark = "right" if self.right else "wrong"
        return "\n".join([_block(self.claim, f"{mark:<8}"), *(_block(line) for line in self.reasons())])

    def reasons(self) -> list[str]:
        """Why it is wrong, line by line; nothing if it is right."""
        if self.right:
            return []
        slip = [self.slip[:1].upper() + self.slip[1:]] if self.slip else []
        return [*self.places, *slip, f"right: {self.expected}"]


@dataclass(frozen=True)
class WorkedReport:
    """A hand computation judged line by line against a worked case."""

    case: str
    lines: tuple[JudgedClaim, ...]
    notes: tuple[str, ...] = ()
    rule: str = RULE

    @property
    def right(self) -> bool:
        """Whether every line is."""
        return all(line.right for line in self.lines)

    @property
    def exit_status(self) -> int:
        """What a command ends with: 0 if everything is right, 1 if not."""
        return 0 if self.right else 1

    def __str__(self) -> str:
        said = [*map(str, self.lines), *(_block(note, "") for note in self.notes)]
        return "\n".join([*said, _block(f"{self._sum} {self.rule}", "")])

    @property
    def _sum(self) -> str:
        count = sum(line.right for line in self.lines)
        return f"{count} of {len(self.lines)} right."

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "case": self.case,
            "right": self.right,
            "lines": [asdict(line) for line in self.lines],
            "notes": list(self.notes),
            "rule": self.rule,
        }

    def _repr_html_(self) -> str:
        return "".join(map(_as_html, self.lines)) + f"<p>{escape(f'{self._sum} {self.rule}')}</p>"


def _as_html(line: JudgedClaim) -> str:
    colour, mark = ("#17803d", "right") if line.right else ("#b42318", "wrong")
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in line.reasons())
    listed = f"<ul>{reasons}</ul>" if reasons else ""
    return f'<p><b style="color: {colour}">{mark}</b> <code>{escape(line.claim)}</code></p>{listed}'


def _block(text: str, lead: str = " " * 8) -> str:
    """Text wrapped to the width of a terminal, all lines indented alike."""
    return "\n".join(wrap(text, columns(), lead, " " * len(lead)))
