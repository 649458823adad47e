"""The table of what other tools say."""

from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from lemma.typeset import fit, table

HEADS = ("tool", "parameters", "ratio", "forward FLOPs", "ratio", "what it counts")


@dataclass(frozen=True)
class Row:
    """What one tool says beside the exact figures, and why; or why it says nothing."""

    tool: str
    parameters: int | None = None
    parameters_ratio: float | None = None
    operations: float | None = None
    operations_ratio: float | None = None
    convention: str = ""
    reasons: tuple[str, ...] = ()

    @property
    def cells(self) -> tuple[str, ...]:
        """Its cells in the table."""
        ratios = [_ratio(self.parameters_ratio), _ratio(self.operations_ratio)]
        return self.tool, _number(self.parameters), ratios[0], _number(self.operations), ratios[1], self.convention


@dataclass(frozen=True)
class Comparison:
    """Each tool's numbers, their ratio to the exact ones, and the module that explains the difference."""

    model: str
    parameters: int
    operations: int
    rows: tuple[Row, ...]

    @property
    def exact(self) -> Row:
        """The exact figures as a row."""
        return Row(
            "lemma", self.parameters, 1.0, self.operations, 1.0, "matrix products, multiply–add = 2, attention in full"
        )

    def __str__(self) -> str:
        rows = (self.exact, *self.rows)
        lines = table([HEADS[:-1], *(row.cells[:-1] for row in rows)])
        said = [lines[0]]
        for row, line in zip(rows, lines[1:], strict=True):
            said += [line, *(fit(f"    {about}") for about in (row.convention, *row.reasons) if about)]
        return "\n".join([self.model, *said])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        exact = {"parameters": self.parameters, "operations": self.operations}
        return {
            "model": self.model,
            **exact,
            "tools": [{**asdict(row), "reasons": list(row.reasons)} for row in self.rows],
        }

    def _repr_html_(self) -> str:
        heads = "".join(f"<th>{escape(head)}</th>" for head in HEADS)
        rows = "".join(_html(row) for row in (self.exact, *self.rows))
        return f"<table><caption>{escape(self.model)}</caption><tr>{heads}</tr>{rows}</table>"


def _html(row: Row) -> str:
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in row.cells)
    reasons = "<br>".join(escape(reason) for reason in row.reasons)
    below = (
        f'<tr><td></td><td colspan="5" style="text-align: left"><small>{reasons}</small></td></tr>' if reasons else ""
    )
    return f"<tr>{cells}</tr>{below}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
