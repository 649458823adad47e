"""Arithmetic that refuses to grow: whatever a person types is worked out in well under a second, or refused.

Sizes are checked before anything is multiplied, so that a short text such as (a+b)**12**12 costs nothing.
"""

from collections.abc import Sequence

from lemma.errors import InputError
from lemma.ledger.formula.rational import Rational
from lemma.ledger.polynomial import Polynomial

LONGEST_TEXT = 10_000
MOST_TOKENS = 4_000
DEEPEST_NESTING = 60
LARGEST_EXPONENT = 12
HIGHEST_DEGREE = 100
MOST_DIGITS = 300
MOST_TERMS = 2_000
MOST_WORK = 40_000
"""Products and sums of single terms over a whole formula; about eight microseconds each."""


class TooLarge(InputError):
    """A formula goes past one of the bounds of this module."""


class Calculator:
    """The arithmetic of one formula, which keeps count of its own work."""

    def __init__(self) -> None:
        self.work = 0

    def add(self, values: Sequence[Rational]) -> Rational:
        """Add values up, halves first: a long sum is not copied once for each of its terms."""
        if len(values) == 1:
            return values[0]
        middle = len(values) // 2
        left, right = self.add(values[:middle]), self.add(values[middle:])
        if left.denominator == right.denominator:
            self._spend(len(left.numerator.terms) + len(right.numerator.terms))
        else:
            self._spend_product(left.numerator, right.denominator)
            self._spend_product(right.numerator, left.denominator)
            self._spend_product(left.denominator, right.denominator)
        return checked(left + right)

    def multiply(self, left: Rational, right: Rational) -> Rational:
        """Multiply two values."""
        self._spend_product(left.numerator, right.numerator)
        self._spend_product(left.denominator, right.denominator)
        return checked(left * right)

    def divide(self, left: Rational, right: Rational) -> Rational:
        """Divide one value by another."""
        if not right.numerator:
            raise InputError("this divides by zero")
        return self.multiply(left, right.inverse())

    def power(self, base: Rational, exponent: Rational) -> Rational:
        """Raise to a whole power."""
        number = exponent.constant
        if number is None or number.denominator != 1:
            raise InputError(f"an exponent is a whole number from {-LARGEST_EXPONENT} to {LARGEST_EXPONENT} here")
        if abs(number) > LARGEST_EXPONENT:
            raise TooLarge(f"an exponent is at most {LARGEST_EXPONENT} here")
        if number < 0 and not base.numerator:
            raise InputError("this divides by zero")
        factor, result = (base.inverse() if number < 0 else base), Rational(Polynomial({(): 1}))
        for _ in range(abs(number.numerator)):
            result = self.multiply(result, factor)
        return result

    def _spend_product(self, left: Polynomial, right: Polynomial) -> None:
        self._spend(len(left.terms) * len(right.terms))

    def _spend(self, steps: int) -> None:
        self.work += steps
        if self.work > MOST_WORK:
            raise TooLarge(f"multiplied out, the formula takes more than {MOST_WORK:,} steps")


def checked(value: Rational) -> Rational:
    """The value itself, if its terms, degrees and digits are within the bounds."""
    for polynomial in (value.numerator, value.denominator):
        if len(polynomial.terms) > MOST_TERMS:
            raise TooLarge(f"multiplied out, the formula has more than {MOST_TERMS:,} terms")
        for monomial, number in polynomial.terms.items():
            if any(abs(power) > HIGHEST_DEGREE for _, power in monomial):
                raise TooLarge(f"multiplied out, a symbol has an exponent past {HIGHEST_DEGREE}")
            if max(number.numerator.bit_length(), number.denominator.bit_length()) * 3 > MOST_DIGITS * 10:
                raise TooLarge(f"a number has more than {MOST_DIGITS} digits")
    return value
