"""Exact division of polynomials."""

from collections.abc import Iterable
from fractions import Fraction

from lemma.errors import InputError
from lemma.ledger.polynomial import Polynomial

LARGEST_DIVISION = 100_000
"""The most steps (terms taken away or looked at) of one division."""

Exponents = tuple[int, ...]


def quotient(dividend: Polynomial, divisor: Polynomial) -> Polynomial | None:
    """The polynomial that gives the dividend when multiplied by the divisor, or None where there is none.

    >>> from lemma.ledger.polynomial import symbol
    >>> d = symbol("d")
    >>> quotient(d**2 - 1, d - 1) == d + 1
    True
    """
    if len(divisor.terms) == 1 or not dividend:
        return dividend / divisor if dividend else dividend
    names = sorted(dividend.symbols | divisor.symbols)
    found = _long_division(_by_exponents(dividend, names), _by_exponents(divisor, names))
    return None if found is None else _polynomial(found, names)


def _long_division(
    rest: dict[Exponents, Fraction], divisor: dict[Exponents, Fraction]
) -> dict[Exponents, Fraction] | None:
    """Take the leading term away until nothing is left, or until the next step would leave the quotient's box.

    Lowest exponents add when polynomials are multiplied, and so do highest ones. They bound the quotient on all sides.
    """
    low = _minus(_least(rest), _least(divisor))
    high = _minus(_greatest(rest), _greatest(divisor))
    lead, found, steps = max(divisor), {}, 0
    while rest:
        top = max(rest)
        power = _minus(top, lead)
        if any(not a <= b <= c for a, b, c in zip(low, power, high, strict=True)):
            return None
        found[power] = rest[top] / divisor[lead]
        _take_away(rest, power, found[power], divisor)
        steps += len(rest) + len(divisor)
        if steps > LARGEST_DIVISION:
            raise InputError(
                f"a division of polynomials takes more than {LARGEST_DIVISION:,} steps; shorten the formula"
            )
    return found


def _take_away(
    rest: dict[Exponents, Fraction], power: Exponents, number: Fraction, divisor: dict[Exponents, Fraction]
) -> None:
    for theirs, factor in divisor.items():
        place = tuple(a + b for a, b in zip(power, theirs, strict=True))
        left = rest.pop(place, Fraction(0)) - number * factor
        if left:
            rest[place] = left


def _by_exponents(polynomial: Polynomial, names: list[str]) -> dict[Exponents, Fraction]:
    return {
        tuple(dict(monomial).get(name, 0) for name in names): number for monomial, number in polynomial.terms.items()
    }


def _polynomial(terms: dict[Exponents, Fraction], names: list[str]) -> Polynomial:
    return Polynomial(
        {
            tuple((name, power) for name, power in zip(names, powers, strict=True) if power): number
            for powers, number in terms.items()
        }
    )


def _least(places: Iterable[Exponents]) -> Exponents:
    return tuple(min(column) for column in zip(*places, strict=True))


def _greatest(places: Iterable[Exponents]) -> Exponents:
    return tuple(max(column) for column in zip(*places, strict=True))


def _minus(one: Exponents, other: Exponents) -> Exponents:
    return tuple(a - b for a, b in zip(one, other, strict=True))
