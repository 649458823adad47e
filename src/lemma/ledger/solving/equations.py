"""Polynomial equations in whole numbers: fast to put values into, and solved exactly for one unknown."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import comb, gcd, lcm, prod

from lemma.ledger.polynomial import Polynomial

Equation = Mapping[tuple[int, ...], int]
"""What is to be zero: whole coefficients by exponents, one exponent for each unknown. An empty one holds always."""


def equation(left: Polynomial, unknown: Sequence[str]) -> Equation:
    """Write `left = 0` without fractions and without negative exponents.

    >>> from lemma.ledger.polynomial import symbol
    >>> equation(symbol("d") / symbol("h") / 2 - 3, ["d", "h"])
    {(1, 0): 1, (0, 1): -6}
    """
    terms = {tuple(dict(monomial).get(name, 0) for name in unknown): number for monomial, number in left.terms.items()}
    lowest = [min([0, *(powers[place] for powers in terms)]) for place in range(len(unknown))]
    scale = lcm(*(number.denominator for number in terms.values()))
    cleared = {
        tuple(power - least for power, least in zip(powers, lowest, strict=True)): int(number * scale)
        for powers, number in terms.items()
    }
    divisor = gcd(*cleared.values())
    return {powers: number // divisor for powers, number in cleared.items()}


def put(this: Equation, place: int, value: int) -> Equation:
    """Put a value in the place of an unknown."""
    result: dict[tuple[int, ...], int] = {}
    for powers, number in this.items():
        rest = (*powers[:place], 0, *powers[place + 1 :])
        result[rest] = result.get(rest, 0) + number * value ** powers[place]
    return {powers: number for powers, number in result.items() if number}


def places(this: Equation) -> frozenset[int]:
    """The unknowns that occur in it, by their place."""
    return frozenset(place for powers in this for place, power in enumerate(powers) if power)


def value_at(this: Equation, values: Sequence[int]) -> int:
    """The value of its left side."""
    return sum(number * prod(map(pow, values, powers)) for powers, number in this.items())


def shifted(this: Equation, by: Sequence[int]) -> Equation:
    """The same with every unknown counted from another start."""
    result: dict[tuple[int, ...], int] = {}
    for powers, number in this.items():
        for lower in product(*(range(power + 1) for power in powers)):
            ways = prod(comb(n, k) * start ** (n - k) for n, k, start in zip(powers, lower, by, strict=True))
            result[lower] = result.get(lower, 0) + number * ways
    return result


def roots(this: Equation, place: int, values: range) -> list[int]:
    """All values in the range that solve an equation in one unknown."""
    if not values:
        return []
    coefficients = [0] * (1 + max(powers[place] for powers in this))
    for powers, number in this.items():
        coefficients[powers[place]] = number
    if len(coefficients) == 2:
        root, rest = divmod(-coefficients[0], coefficients[1])
        return [root] if not rest and root in values else []
    found = _whole_roots(coefficients, min(values[0], values[-1]), max(values[0], values[-1]))
    return [root for root in found if root in values]


def _whole_roots(coefficients: list[int], low: int, high: int) -> Iterator[int]:
    """Halve the interval as long as the bounds of the polynomial on it allow a zero."""
    start = _started_at(coefficients, low)
    width = high - low
    parts = [number * width**power for power, number in enumerate(start)]
    least = parts[0] + sum(part for part in parts[1:] if part < 0)
    most = parts[0] + sum(part for part in parts[1:] if part > 0)
    if least > 0 or most < 0:
        return
    if not width:
        yield low
        return
    middle = (low + high) // 2
    yield from _whole_roots(coefficients, low, middle)
    yield from _whole_roots(coefficients, middle + 1, high)


def _started_at(coefficients: list[int], start: int) -> list[int]:
    """The coefficients of the polynomial of x + start."""
    result = list(coefficients)
    for begin in range(len(result) - 1):
        for power in range(len(result) - 2, begin - 1, -1):
            result[power] += start * result[power + 1]
    return result
