"""What the judge says: equal or not, by how much, and why."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from html import escape
from typing import Any

from lemma.typeset import paragraph

Number = int | Fraction


@dataclass(frozen=True)
class Verdict:
    """One answer judged: what the person gave, what is right, the difference, and its explanation, best first."""

    equal: bool
    model: str
    quantity: str
    yours: str
    right: str
    residual: str | None
    """Yours − model in its simplest form; None if there is no difference."""
    diagnosis: tuple[str, ...]
    symbols: Mapping[str, int]
    """The sizes asked for, at which the two numbers are taken."""
    yours_at: Number
    right_at: Number

    @property
    def exit_status(self) -> int:
        """What a command ends with: 0 if it is right, 1 if not."""
        return 0 if self.equal else 1

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        if self.equal:
            return f"Equal: {self.right}{f' = {shown(self.right_at)}' if is_formula(self.right) else ''}."
        if self.residual is None:
            return f"Not equal: yours is {self.yours}, the model's {self.right}."
        return f"Not equal: yours − model = {self.residual.replace('-', '−')}."

    def __str__(self) -> str:
        return paragraph(" ".join([self.headline, *self.diagnosis]))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "equal": self.equal,
            "model": self.model,
            "quantity": self.quantity,
            "yours": self.yours,
            "right": self.right,
            "residual": self.residual,
            "diagnosis": list(self.diagnosis),
            "symbols": dict(self.symbols),
            "yours_at": _plain(self.yours_at),
            "right_at": _plain(self.right_at),
        }

    def _repr_html_(self) -> str:
        colour = "#17803d" if self.equal else "#b42318"
        rows = {"yours": (self.yours, self.yours_at), f"{self.model}: {self.quantity}": (self.right, self.right_at)}
        lines = "".join(f"<tr><td>{escape(name)}</td>{_cells(*row)}</tr>" for name, row in rows.items())
        reasons = "".join(f"<p>{escape(reason)}</p>" for reason in self.diagnosis)
        return f'<p style="color: {colour}">{escape(self.headline)}</p><table>{lines}</table>{reasons}'


def is_formula(text: str) -> bool:
    """Whether there are symbols in it, and not just a number."""
    return any(character.isalpha() for character in text)


def shown(value: Number) -> str:
    """A number as it is printed: whole ones with their thousands apart.

    >>> shown(9721596), shown(Fraction(1, 3))
    ('9,721,596', '0.333333')
    """
    return f"{int(value):,}" if Fraction(value).denominator == 1 else f"{float(value):,.6g}"


def _cells(formula: str, value: Number) -> str:
    number = f"= {shown(value)}" if is_formula(formula) else ""
    return f'<td style="text-align: left"><code>{escape(formula)}</code></td><td>{number}</td>'


def _plain(value: Number) -> int | float:
    return int(value) if Fraction(value).denominator == 1 else float(value)
