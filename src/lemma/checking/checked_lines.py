"""Answers checked line by line: the base of the reports on shapes, derivations, gradients and worked cases."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from lemma.report.result import Block, Heading, Result, Text, TextKind, to_plain

OUTCOME_KINDS: dict[str, TextKind] = {"right": "good", "wrong": "bad"}


class CheckedLine:
    """A line of an answer and its outcome.

    Subclasses are dataclasses that give `outcome` and `text` as fields or properties. The outcome is "right", "wrong",
    or another word for a line that was read but not checked.
    """

    outcome: Any
    text: Any

    @property
    def notes(self) -> Sequence[str]:
        """Lines printed below the text, such as the reason of a wrong answer."""
        return ()

    @property
    def claim(self) -> str:
        """The statement of the line, such as "Q = H×S", as the audit of sources quotes it."""
        return self.text

    @property
    def correction(self) -> str:
        """The right answer in place of a wrong line, in one paragraph."""
        return " ".join(self.notes)

    def __str__(self) -> str:
        return "\n".join([f"{self.outcome:<8}{self.text}", *(f"{'':8}{note}" for note in self.notes)])


LineT = TypeVar("LineT", bound=CheckedLine)


@dataclass(frozen=True)
class CheckedLines(Result, Generic[LineT]):
    """Report on an answer that was checked line by line; true if lines were checked and all of them are right.

    Attributes:
        name: what the answer is about: a model, a function, a file or a case.
        notes: notes on all lines, printed below them.
        topic: what was checked, for the title.
        keys: the keys of the name and of the lines in JSON.
    """

    topic: ClassVar[str]
    keys: ClassVar[tuple[str, str]] = ("name", "lines")

    name: str
    lines: tuple[LineT, ...]
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The title of the report, such as "rnn: gradients"."""
        return f"{self.name}: {self.topic}"

    def to_dict(self) -> dict[str, Any]:
        """Return the name, `right` and the lines under the report's keys, as plain values for JSON."""
        name_key, lines_key = self.keys
        return to_plain({name_key: self.name, "right": self.right, lines_key: self.lines})

    @property
    def checked(self) -> list[LineT]:
        """The lines that are right or wrong; lines that were only read are left out."""
        return [line for line in self.lines if line.outcome in OUTCOME_KINDS]

    @property
    def right(self) -> bool:
        """True if lines were checked and all of them are right."""
        return bool(self.checked) and all(line.outcome == "right" for line in self.checked)

    def __bool__(self) -> bool:
        return self.right

    @property
    def summary(self) -> str:
        """A sentence with the number of right lines, as in "2 of 3 right.", of those that were checked."""
        right = sum(line.outcome == "right" for line in self.checked)
        return f"{right} of {len(self.checked)} right."

    def claim_and_correction(self) -> tuple[str, str]:
        """Return the texts of the first wrong line and of its correction; of all lines and "" if none is wrong."""
        if not self.checked:
            return self.summary, "no line was checked."
        wrong = next((line for line in self.checked if line.outcome == "wrong"), None)
        if wrong is None:
            return "; ".join(line.claim for line in self.checked), ""
        return wrong.claim, wrong.correction

    def blocks(self) -> list[Block]:
        """Return each line with its outcome and notes, then the notes on all lines and the summary."""
        blocks: list[Block] = []
        for line in self.lines:
            blocks.append(Text(f"{line.outcome:<8}{line.text}", OUTCOME_KINDS.get(line.outcome, "")))
            if line.notes:
                blocks.append(Text("\n".join(f"{'':8}{note}" for note in line.notes), "note"))
        return [*blocks, *(Text(note, "note") for note in self.notes), Text(self.summary, "note")]

    def details(self) -> list[Block]:
        """Return the title and the blocks that are printed."""
        return [Heading(self.title, 1), *self.blocks()]
