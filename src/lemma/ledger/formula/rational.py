"""A quotient of two polynomials: the value of every formula a person may write."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from lemma.errors import InputError
from lemma.ledger.formula.division import quotient
from lemma.ledger.polynomial import ONE, Number, Polynomial, of


@dataclass(frozen=True, eq=False)
class Rational:
    """A numerator over a denominator, equal to another exactly when they are equal as functions.

    A denominator of one term is divided through at once, so that d/h is a polynomial over 1.

    >>> from lemma.ledger.polynomial import symbol
    >>> d = symbol("d")
    >>> Rational(d**2 - 1, d - 1) == Rational(d + 1)
    True
    """

    numerator: Polynomial
    denominator: Polynomial = ONE

    def __post_init__(self) -> None:
        if not self.denominator:
            raise ZeroDivisionError("the denominator is zero")
        if len(self.denominator.terms) == 1 and self.denominator != ONE:
            object.__setattr__(self, "numerator", self.numerator / self.denominator)
            object.__setattr__(self, "denominator", ONE)

    def __add__(self, other: "Rational") -> "Rational":
        if self.denominator == other.denominator:
            return Rational(self.numerator + other.numerator, self.denominator)
        top = self.numerator * other.denominator + other.numerator * self.denominator
        return Rational(top, self.denominator * other.denominator)

    def __neg__(self) -> "Rational":
        return Rational(-self.numerator, self.denominator)

    def __sub__(self, other: "Rational") -> "Rational":
        return self + -other

    def __mul__(self, other: "Rational") -> "Rational":
        return Rational(self.numerator * other.numerator, self.denominator * other.denominator)

    def __truediv__(self, other: "Rational") -> "Rational":
        return self * other.inverse()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (Polynomial, int, Fraction)):
            other = Rational(of(other))
        if not isinstance(other, Rational):
            return NotImplemented
        if self.denominator == other.denominator:
            return self.numerator == other.numerator
        return self.numerator * other.denominator == other.numerator * self.denominator

    __hash__ = None  # type: ignore[assignment]  # equal values may have different numerators

    def inverse(self) -> "Rational":
        """One over it."""
        return Rational(self.denominator, self.numerator)

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols that occur in it."""
        return self.numerator.symbols | self.denominator.symbols

    @property
    def constant(self) -> Fraction | None:
        """Its value if it is written without symbols, else None."""
        return self.numerator.constant if self.denominator == ONE else None

    def polynomial(self) -> Polynomial | None:
        """The polynomial it is equal to, or None where the denominator does not divide the numerator."""
        return quotient(self.numerator, self.denominator)

    def at(self, values: Mapping[str, Number]) -> Fraction:
        """Its value where the symbols have these values."""
        missing = sorted(self.symbols - set(values))
        if missing:
            raise InputError(f"the formula needs a value of {', '.join(missing)}; got {', '.join(values) or 'none'}")
        try:
            return self.numerator.at(values) / self.denominator.at(values)
        except ZeroDivisionError:
            where = ", ".join(f"{name} = {values[name]}" for name in sorted(self.symbols))
            raise InputError(f"the formula divides by zero at {where}") from None
