"""Exact polynomials and rational functions in named symbols, with bounded arithmetic."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm, prod
from typing import Any

from lemma.errors import InputError

Number = int | Fraction
Monomial = tuple[tuple[str, int], ...]
"""Symbols with their exponents, sorted by symbol, none of them zero."""


class FormulaTooLarge(InputError):
    """A formula exceeds one of the bounds of this module."""


@dataclass
class Budget:
    """The remaining work, in steps: a step is a product of two terms, about five microseconds."""

    remaining: int


_BUDGET: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextmanager
def work_limit(steps: int | None) -> Iterator[None]:
    """Limit the polynomial arithmetic inside the context to this many steps; they also count for an outer limit.

    None removes the limit, for work that does not depend on user input.

    Raises:
        FormulaTooLarge: the limit was reached.

    >>> with work_limit(1_000):
    ...     (symbol("d") + symbol("L") + 1) ** 99
    Traceback (most recent call last):
    lemma.counting.polynomial.FormulaTooLarge: this takes too much work; write it shorter, with fewer brackets or powers
    """
    outer = _BUDGET.get()
    granted = None if steps is None else min(steps, outer.remaining) if outer else steps
    budget = None if granted is None else Budget(granted)
    token = _BUDGET.set(budget)
    try:
        yield
    finally:
        _BUDGET.reset(token)
        if outer and budget and granted is not None:
            outer.remaining -= granted - budget.remaining


def spend(steps: int) -> None:
    """Subtract steps from the work limit of the surrounding `work_limit` context, if there is one.

    Raises:
        FormulaTooLarge: nothing remains.
    """
    budget = _BUDGET.get()
    if budget is not None:
        budget.remaining -= steps
        if budget.remaining < 0:
            raise FormulaTooLarge("this takes too much work; write it shorter, with fewer brackets or powers")


class Polynomial:
    """A sum of monomials with rational coefficients, immutable; equal polynomials are equal as functions.

    Exponents may be negative, so that the width of a head, d/h, is a polynomial too.

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
        if _BUDGET.get() is not None:
            spend(1 + len(terms) // 4)

    @cached_property
    def term_cost(self) -> int:
        """Return the cost of an operation on a term relative to a short term: digits and symbols add to it."""
        numbers = self.terms.values()
        bits = max((number.numerator.bit_length() + number.denominator.bit_length() for number in numbers), default=0)
        return 1 + bits // 800 + max(map(len, self.terms), default=0) // 12

    def __add__(self, other: "Polynomial | Number") -> "Polynomial":
        total = dict(self.terms)
        for monomial, number in as_polynomial(other).terms.items():
            total[monomial] = total.get(monomial, Fraction(0)) + number
        return Polynomial(total)

    def __neg__(self) -> "Polynomial":
        return Polynomial({monomial: -number for monomial, number in self.terms.items()})

    def __sub__(self, other: "Polynomial | Number") -> "Polynomial":
        return self + -as_polynomial(other)

    def __mul__(self, other: "Polynomial | Number") -> "Polynomial":
        total: dict[Monomial, Fraction] = {}
        other = as_polynomial(other)
        if _BUDGET.get() is not None:
            spend(len(self.terms) * len(other.terms) * (self.term_cost + other.term_cost - 1))
        for left, number in self.terms.items():
            for right, factor in other.terms.items():
                powers = dict(left)
                for name, power in right:
                    powers[name] = powers.get(name, 0) + power
                product = tuple(sorted((name, power) for name, power in powers.items() if power))
                total[product] = total.get(product, Fraction(0)) + number * factor
        return Polynomial(total)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Number) -> "Polynomial":
        return -self + other

    def __truediv__(self, other: "Polynomial | Number") -> "Polynomial":
        """Divide by a number or by a single monomial; anything else is no polynomial."""
        divisor = as_polynomial(other)
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
        return isinstance(other, (Polynomial, int, Fraction)) and self.terms == as_polynomial(other).terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __repr__(self) -> str:
        texts = []
        for monomial, number in sorted(self.terms.items()):
            powers = [name if power == 1 else f"{name}**{power}" for name, power in monomial]
            texts.append("*".join(([] if number == 1 and powers else [str(number)]) + powers))
        return " + ".join(texts) or "0"

    @cached_property
    def symbols(self) -> frozenset[str]:
        return frozenset(name for monomial in self.terms for name, _ in monomial)

    @property
    def constant(self) -> Fraction | None:
        """Return the value of a polynomial without symbols; None if it has symbols."""
        return None if self.symbols else self.terms.get((), Fraction(0))

    def at(self, values: Mapping[str, Number]) -> Fraction:
        """Evaluate the polynomial at `values`, numbers by symbol."""
        if _BUDGET.get() is not None:
            spend(2 * len(self.terms) * self.term_cost)
        return sum(
            (
                number * prod((Fraction(values[name]) ** power for name, power in monomial), start=Fraction(1))
                for monomial, number in self.terms.items()
            ),
            Fraction(0),
        )

    def substitute(self, name: str, value: "Polynomial | Number") -> "Polynomial":
        """Return this polynomial with the symbol `name` replaced by `value`."""
        total: dict[Monomial, Fraction] = {}
        for monomial, number in self.terms.items():
            power = dict(monomial).get(name, 0)
            factors = tuple(pair for pair in monomial if pair[0] != name)
            for product, factor in (Polynomial({factors: number}) * as_polynomial(value) ** power).terms.items():
                total[product] = total.get(product, Fraction(0)) + factor
        return Polynomial(total)

    def substitute_all(self, values: "Mapping[str, Polynomial] | Mapping[str, int]") -> "Polynomial":
        """Return this polynomial with each symbol in `values` replaced by its value, one after the other."""
        result = self
        for name, value in values.items():
            result = result.substitute(name, value)
        return result

    def to_json(self) -> list[Any]:
        """Return the terms as JSON values: a list of [symbol, power] pairs, then the coefficient as text."""
        return [[list(map(list, monomial)), str(number)] for monomial, number in self.terms.items()]

    @classmethod
    def from_json(cls, terms: Iterable[Any]) -> "Polynomial":
        """Build a polynomial from the terms that `to_json` returns."""
        return cls({tuple((name, power) for name, power in factors): Fraction(number) for factors, number in terms})

    def common_factor(self) -> tuple[Fraction, Monomial]:
        """Return the greatest number and the greatest monomial (powers of symbols) that divide every term."""
        if not self.terms:
            return Fraction(0), ()
        spend(len(self.terms) * (1 + len(self.symbols)) // 4)
        numbers = list(self.terms.values())
        number = Fraction(gcd(*(n.numerator for n in numbers)), lcm(*(n.denominator for n in numbers)))
        powers = {name: min(dict(monomial).get(name, 0) for monomial in self.terms) for name in self.symbols}
        return number, tuple(sorted((name, power) for name, power in powers.items() if power))


def symbol(name: str) -> Polynomial:
    """Return the polynomial that consists of one symbol."""
    return Polynomial({((name, 1),): 1})


def as_polynomial(value: "Polynomial | Number") -> Polynomial:
    """Convert a number to a constant polynomial; return a polynomial unchanged."""
    return value if isinstance(value, Polynomial) else Polynomial({(): value})


def sum_polynomials(polynomials: Iterable[Polynomial]) -> Polynomial:
    """Return the sum of the polynomials."""
    return sum(polynomials, ZERO)


ZERO, ONE = Polynomial({}), Polynomial({(): 1})
MAX_DIVISION_STEPS = 100_000  # steps (terms taken away or looked at) of one division


def divide_exactly(dividend: Polynomial, divisor: Polynomial) -> Polynomial | None:
    """Return the quotient of two polynomials if the remainder is zero, else None.

    Long division by the leading term. Lowest exponents add when polynomials are multiplied, and so do highest ones:
    they bound the quotient on all sides, so that the division ends as soon as a term falls outside these bounds.

    >>> d = symbol("d")
    >>> divide_exactly(d**2 - 1, d - 1) == d + 1
    True
    """
    if len(divisor.terms) == 1 or not dividend:
        return dividend / divisor if dividend else dividend
    names = sorted(dividend.symbols | divisor.symbols)
    remainder, divisor_terms = (
        {tuple(dict(monomial).get(name, 0) for name in names): number for monomial, number in polynomial.terms.items()}
        for polynomial in (dividend, divisor)
    )
    bounds = [
        (min(dividend_powers) - min(divisor_powers), max(dividend_powers) - max(divisor_powers))
        for dividend_powers, divisor_powers in zip(
            zip(*remainder, strict=True), zip(*divisor_terms, strict=True), strict=True
        )
    ]
    lead, quotient, steps = max(divisor_terms), {}, 0
    while remainder:
        top = max(remainder)
        powers = tuple(a - b for a, b in zip(top, lead, strict=True))
        if any(not low <= power <= high for power, (low, high) in zip(powers, bounds, strict=True)):
            return None
        quotient[powers] = factor = remainder[top] / divisor_terms[lead]
        for divisor_powers, number in divisor_terms.items():
            powers_sum = tuple(a + b for a, b in zip(powers, divisor_powers, strict=True))
            difference = remainder.pop(powers_sum, Fraction(0)) - factor * number
            if difference:
                remainder[powers_sum] = difference
        steps += len(remainder) + len(divisor_terms)
        spend(len(divisor_terms) * (1 + factor.numerator.bit_length() // 800) + len(remainder) // 16)
        if steps > MAX_DIVISION_STEPS:
            raise FormulaTooLarge(
                f"a division of polynomials takes more than {MAX_DIVISION_STEPS:,} steps; shorten the formula"
            )
    return Polynomial(
        {
            tuple((name, power) for name, power in zip(names, powers, strict=True) if power): number
            for powers, number in quotient.items()
        }
    )


@dataclass(frozen=True, eq=False)
class Rational:
    """A quotient of two polynomials: the value of any formula. Two are equal exactly if they are equal as functions.

    A denominator of one term is divided through at once, so that d/h is a polynomial over 1.

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
            other = Rational(as_polynomial(other))
        if not isinstance(other, Rational):
            return NotImplemented
        if self.denominator == other.denominator:
            return self.numerator == other.numerator
        return self.numerator * other.denominator == other.numerator * self.denominator

    __hash__ = None  # type: ignore[assignment]  # equal values may have different numerators

    def inverse(self) -> "Rational":
        """Return the quotient with numerator and denominator exchanged."""
        return Rational(self.denominator, self.numerator)

    @property
    def symbols(self) -> frozenset[str]:
        return self.numerator.symbols | self.denominator.symbols

    @property
    def constant(self) -> Fraction | None:
        """Return the value of a quotient that is written without symbols; None if it has symbols."""
        return self.numerator.constant if self.denominator == ONE else None

    def to_polynomial(self) -> Polynomial | None:
        """Return this quotient as a polynomial; None if the denominator does not divide the numerator."""
        return divide_exactly(self.numerator, self.denominator)

    def at(self, values: Mapping[str, Number]) -> Fraction:
        """Evaluate the quotient at `values`, numbers by symbol.

        Raises:
            InputError: a symbol has no value, or the denominator is 0.
        """
        missing = sorted(self.symbols - set(values))
        if missing:
            raise InputError(f"the formula needs a value for {', '.join(missing)}; got {', '.join(values) or 'none'}")
        try:
            return self.numerator.at(values) / self.denominator.at(values)
        except ZeroDivisionError:
            values_text = ", ".join(f"{name} = {values[name]}" for name in sorted(self.symbols))
            raise InputError(f"the formula divides by zero at {values_text}") from None


# Bounds on formulas that people type. Sizes are checked before anything is multiplied, so that even a short text such
# as (a+b)**12**12 is computed in well under a second or refused.

MAX_EXPONENT, MAX_DEGREE, MAX_DIGITS, MAX_TERMS = 12, 100, 300, 2_000
MAX_WORK = 40_000  # products and sums of single terms over a whole formula; about eight microseconds each


class Calculator:
    """The arithmetic of one formula, with bounded work."""

    def __init__(self) -> None:
        self.work = 0

    def add(self, values: Sequence[Rational]) -> Rational:
        """Return the sum of `values`; adding halves first avoids copying a long sum once per term."""
        if len(values) == 1:
            return values[0]
        middle = len(values) // 2
        left, right = self.add(values[:middle]), self.add(values[middle:])
        a, b, c, d = (len(part.terms) for side in (left, right) for part in (side.numerator, side.denominator))
        self._spend(a + c if left.denominator == right.denominator else a * d + c * b + b * d)
        return _check_bounds(left + right)

    def multiply(self, left: Rational, right: Rational) -> Rational:
        """Return left · right; raise FormulaTooLarge if the work or the product is too large."""
        self._spend(len(left.numerator.terms) * len(right.numerator.terms))
        self._spend(len(left.denominator.terms) * len(right.denominator.terms))
        return _check_bounds(left * right)

    def divide(self, left: Rational, right: Rational) -> Rational:
        """Return left / right; raise InputError if `right` is zero."""
        if not right.numerator:
            raise InputError("this divides by zero")
        return self.multiply(left, right.inverse())

    def power(self, base: Rational, exponent: Rational) -> Rational:
        """Return base ** exponent; raise InputError unless the exponent is an integer."""
        number = exponent.constant
        if number is None or number.denominator != 1:
            raise InputError(f"an exponent is a whole number from {-MAX_EXPONENT} to {MAX_EXPONENT} here")
        if number < 0 and not base.numerator:
            raise InputError("this divides by zero")
        if base.constant is not None:  # 10^23
            bits = max(base.constant.numerator.bit_length(), base.constant.denominator.bit_length())
            if abs(number) * bits * 3 > 2 * MAX_DIGITS * 10:  # well above what is checked exactly afterwards
                raise FormulaTooLarge(f"a number has more than {MAX_DIGITS} digits")
            return _check_bounds(Rational(as_polynomial(base.constant ** int(number))))
        if abs(number) > MAX_EXPONENT:
            raise FormulaTooLarge(f"an exponent is at most {MAX_EXPONENT} here")
        factor, result = (base.inverse() if number < 0 else base), Rational(ONE)
        for _ in range(abs(number.numerator)):
            result = self.multiply(result, factor)
        return result

    def _spend(self, steps: int) -> None:
        """Add steps to the work of this formula; raise FormulaTooLarge past the limit."""
        self.work += steps
        if self.work > MAX_WORK:
            raise FormulaTooLarge(f"multiplied out, the formula takes more than {MAX_WORK:,} steps")


def _check_bounds(value: Rational) -> Rational:
    """Return `value` if its number of terms, degrees and digits are within the bounds, else raise FormulaTooLarge."""
    for polynomial in (value.numerator, value.denominator):
        if len(polynomial.terms) > MAX_TERMS:
            raise FormulaTooLarge(f"multiplied out, the formula has more than {MAX_TERMS:,} terms")
        for monomial, number in polynomial.terms.items():
            if any(abs(power) > MAX_DEGREE for _, power in monomial):
                raise FormulaTooLarge(f"multiplied out, a symbol has an exponent past {MAX_DEGREE}")
            if max(number.numerator.bit_length(), number.denominator.bit_length()) * 3 > MAX_DIGITS * 10:
                raise FormulaTooLarge(f"a number has more than {MAX_DIGITS} digits")
    return value
