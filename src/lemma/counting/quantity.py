"""A quantity of a module, part by part, and its figure at some sizes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import prod
from typing import Any

from lemma.counting.polynomial import ONE, Polynomial, of, total
from lemma.counting.writing import Style, write, write_sum

Values = Mapping[str, int]


@dataclass(frozen=True)
class Part:
    """One place of the module: what one member holds, and how many members there are."""

    path: str
    each: Polynomial
    repeats: Polynomial
    shape: tuple[Polynomial, ...] | None = None
    note: str = ""

    @property
    def whole(self) -> Polynomial:
        """All members together."""
        return self.repeats * self.each

    @property
    def factors(self) -> tuple[Polynomial, ...]:
        """One member as a product: its shape where it has one."""
        return (self.each,) if self.shape is None else self.shape


@dataclass(frozen=True)
class Quantity:
    """A quantity of a module, part by part.

    `refused` are the parts that follow no formula, with the reason; `measured` is what they came to in a real run at
    the sizes asked for, if there was one.
    """

    name: str
    unit: str
    parts: tuple[Part, ...]
    convention: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)
    measured: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def polynomial(self) -> Polynomial:
        """The sum of all parts."""
        return total(part.whole for part in self.parts)

    def formula(self, order: tuple[str, ...], style: Style = "plain") -> str:
        """The sum as a person would write it: repeated parts in a bracket behind their number."""
        brackets: dict[Polynomial, list[Part]] = {}
        for part in self.parts:
            number, _ = part.repeats.common()
            brackets.setdefault(part.repeats / number if number else part.repeats, []).append(part)
        return write_sum([(repeats, _products(repeats, parts)) for repeats, parts in brackets.items()], order, style)

    def at(self, values: Values) -> int | None:
        """The number at these sizes; None if a part that follows no formula was not measured."""
        if self.refused.keys() - self.measured.keys():
            return None
        return whole_number(self.polynomial.at(values)) + sum(self.measured.values())


@dataclass(frozen=True)
class Figure:
    """One quantity at some sizes."""

    quantity: Quantity
    symbols: Values

    @property
    def order(self) -> tuple[str, ...]:
        """The symbols in the order in which formulas are written."""
        return tuple(self.symbols)

    @property
    def formula(self) -> str:
        """The formula in plain text."""
        return self.quantity.formula(self.order)

    @property
    def latex(self) -> str:
        """The formula in LaTeX."""
        return self.quantity.formula(self.order, "latex")

    @property
    def total(self) -> int | None:
        """The number; None if a part of it is not known."""
        return self.quantity.at(self.symbols)

    @property
    def polynomial(self) -> Polynomial:
        """The formula as an exact polynomial."""
        return self.quantity.polynomial

    @property
    def parts(self) -> list[dict[str, Any]]:
        """Path, shape, formula and number of every part."""
        order, values = self.order, self.symbols
        return [
            {
                "path": part.path,
                "shape": None if part.shape is None else [write(size, order) for size in part.shape],
                "formula": write_sum([(part.repeats, [part.factors])], order),
                "count": whole_number(part.whole.at(values)),
                **({"note": part.note} if part.note else {}),
            }
            for part in self.quantity.parts
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        about = {"unit": self.quantity.unit, "convention": self.quantity.convention}
        figures = {"formula": self.formula, "total": self.total, "latex": self.latex}
        refused = {"refused": dict(self.quantity.refused), "measured": dict(self.quantity.measured)}
        return {**figures, **about, "parts": self.parts, **(refused if self.quantity.refused else {})}

    def __str__(self) -> str:
        return f"{self.formula} = {'unknown' if self.total is None else f'{self.total:,}'}"


def _products(repeats: Polynomial, parts: list[Part]) -> list[tuple[Polynomial, ...]]:
    """Shapes as they are, behind a number where there are several of them; amounts without a shape added up first."""
    shapes = [(*_times(part, repeats), *part.shape) for part in parts if part.shape is not None]
    rest = total(prod((*_times(part, repeats), part.each), start=ONE) for part in parts if part.shape is None)
    return [*shapes, (rest,)] if rest else shapes


def _times(part: Part, repeats: Polynomial) -> tuple[Polynomial, ...]:
    """How often a part stands in the bracket behind `repeats`, unless it is once."""
    return () if part.repeats == repeats else (of(next(n / repeats.terms[m] for m, n in part.repeats.terms.items())),)


def whole_number(value: Fraction) -> int:
    """A count as an integer; it can be nothing else."""
    assert value.denominator == 1, value
    return value.numerator
