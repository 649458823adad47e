"""Exact polynomials in named symbols, with rational coefficients.

Exponents may be negative, so that a head's width d/h is one too. Values are immutable, and equal exactly when they
are equal as functions.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm, prod

Number = int | Fraction
Monomial = tuple[tuple[str, int], ...]
"""Symbols with their exponents, sorted by symbol, none of them zero."""


class Polynomial:
    """A sum of monomials with coefficients.

    >>> d, h = symbol("d"), symbol("h")
    >>> (d + 1) * (d - 1) == d**2 - 1
    True
    >>> (12 * d**2 / h).at({"d": 6, "h": 3})
    Fraction(144, 1)
    """

    __slots__ = ("__dict__", "terms")

    def __init__(self, terms: Mapping[Monomial, Number]) -> None:
        self.terms: dict[Monomial, Fraction] = {
            monomial: Fraction(number) for monomial, number in terms.items() if number
        }

    def __add__(self, other: "Polynomial | Number") -> "Polynomial":
        total = dict(self.terms)
        for monomial, number in of(other).terms.items():
            total[monomial] = total.get(monomial, Fraction(0)) + number
        return Polynomial(total)

    def __neg__(self) -> "Polynomial":
        return Polynomial({monomial: -number for monomial, number in self.terms.items()})

    def __sub__(self, other: "Polynomial | Number") -> "Polynomial":
        return self + -of(other)

    def __mul__(self, other: "Polynomial | Number") -> "Polynomial":
        total: dict[Monomial, Fraction] = {}
        for mine, number in self.terms.items():
            for theirs, factor in of(other).terms.items():
                both = times(mine, theirs)
                total[both] = total.get(both, Fraction(0)) + number * factor
        return Polynomial(total)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Number) -> "Polynomial":
        return -self + other

    def __truediv__(self, other: "Polynomial | Number") -> "Polynomial":
        """Divide by a number or by a single monomial; anything else is no polynomial."""
        divisor = of(other)
        if len(divisor.terms) != 1:
            raise ZeroDivisionError(f"{divisor} is not a single term, so nothing can be divided by it exactly")
        ((monomial, number),) = divisor.terms.items()
        return self * Polynomial({tuple((name, -power) for name, power in monomial): 1 / number})

    def __pow__(self, power: int) -> "Polynomial":
        if power < 0:
            return ONE / self**-power
        result, base = ONE, self
        while power:
            result, base, power = (result * base if power & 1 else result), base * base, power >> 1
        return result

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Polynomial, int, Fraction)) and self.terms == of(other).terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __repr__(self) -> str:
        return " + ".join(_written(*term) for term in sorted(self.terms.items())) or "0"

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The symbols that occur in it."""
        return frozenset(name for monomial in self.terms for name, _ in monomial)

    @property
    def constant(self) -> Fraction | None:
        """Its value if it is a number, else None."""
        return None if self.symbols else self.terms.get((), Fraction(0))

    def degree(self, name: str) -> int:
        """The highest exponent of a symbol."""
        return max((dict(monomial).get(name, 0) for monomial in self.terms), default=0)

    def at(self, values: Mapping[str, Number]) -> Fraction:
        """Its value where the symbols have these values."""
        return sum(
            (
                number * prod((Fraction(values[name]) ** power for name, power in monomial), start=Fraction(1))
                for monomial, number in self.terms.items()
            ),
            Fraction(0),
        )

    def put(self, name: str, value: "Polynomial | Number") -> "Polynomial":
        """Put something in the place of a symbol."""
        total = ZERO
        for monomial, number in self.terms.items():
            power = dict(monomial).get(name, 0)
            rest = tuple(pair for pair in monomial if pair[0] != name)
            total = total + Polynomial({rest: number}) * of(value) ** power
        return total

    def common(self) -> tuple[Fraction, Monomial]:
        """The greatest number and the greatest monomial that divide every term."""
        if not self.terms:
            return Fraction(0), ()
        numbers = list(self.terms.values())
        number = Fraction(gcd(*(n.numerator for n in numbers)), lcm(*(n.denominator for n in numbers)))
        names = {name for monomial in self.terms for name, _ in monomial}
        powers = {name: min(dict(monomial).get(name, 0) for monomial in self.terms) for name in names}
        return number, tuple(sorted((name, power) for name, power in powers.items() if power))


def times(one: Monomial, other: Monomial) -> Monomial:
    """Multiply two monomials."""
    powers = dict(one)
    for name, power in other:
        powers[name] = powers.get(name, 0) + power
    return tuple(sorted((name, power) for name, power in powers.items() if power))


def symbol(name: str) -> Polynomial:
    """The polynomial that is just one symbol."""
    return Polynomial({((name, 1),): 1})


def of(value: "Polynomial | Number") -> Polynomial:
    """A number as a polynomial; a polynomial as itself."""
    return value if isinstance(value, Polynomial) else Polynomial({(): value})


def total(polynomials: Iterable[Polynomial]) -> Polynomial:
    """Add polynomials up."""
    return sum(polynomials, ZERO)


def _written(monomial: Monomial, number: Fraction) -> str:
    powers = [name if power == 1 else f"{name}**{power}" for name, power in monomial]
    return "*".join(([] if number == 1 and powers else [str(number)]) + powers)


ZERO = Polynomial({})
ONE = Polynomial({(): 1})
