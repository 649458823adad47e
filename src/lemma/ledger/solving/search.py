"""All solutions of some equations in bounded whole numbers, without looking where there can be none."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from lemma.errors import InputError
from lemma.ledger.solving.equations import Equation, places, put, roots, shifted, value_at

LARGEST_SEARCH = 500_000
"""Values tried before a search is given up; each takes some ten microseconds."""

Ranges = tuple[range, ...]


class Search:
    """Runs over the unknown with the fewest values left until an equation has one unknown only, and solves that."""

    def __init__(self, names: Sequence[str], most: int = LARGEST_SEARCH) -> None:
        self.names, self.most, self.tried = names, most, 0
        self.narrowed: Ranges | None = None

    def solutions(
        self, equations: Sequence[Equation], ranges: Ranges, left: frozenset[int] | None = None
    ) -> Iterator[tuple[int, ...]]:
        """Yield every assignment within the ranges that solves all equations."""
        left = frozenset(range(len(ranges))) if left is None else left
        equations = [one for one in equations if one]
        if any(not places(one) for one in equations):  # a number other than zero is said to be zero
            return
        if not left:
            yield tuple(values[0] for values in ranges)
            return
        place, values, ranges = self._next(equations, ranges, left)
        for value in values:
            self._spend(ranges)
            inner = (*ranges[:place], range(value, value + 1), *ranges[place + 1 :])
            yield from self.solutions([put(one, place, value) for one in equations], inner, left - {place})

    def _next(
        self, equations: Sequence[Equation], ranges: Ranges, left: frozenset[int]
    ) -> tuple[int, Sequence[int], Ranges]:
        """The unknown to settle next, the values that it can have, and what is left for the others."""
        if not equations:
            place = min(left, key=lambda place: len(ranges[place]))
            return place, ranges[place], ranges
        fewest = min(equations, key=lambda one: len(places(one)))
        if len(places(fewest)) == 1:
            (place,) = places(fewest)
            return place, roots(fewest, place, ranges[place]), ranges
        for one in equations:
            ranges = narrowed(one, ranges)
        self.narrowed = self.narrowed or ranges
        place = min(places(fewest), key=lambda place: len(ranges[place]))
        return place, ranges[place], ranges

    def _spend(self, ranges: Ranges) -> None:
        self.tried += 1
        if self.tried > self.most:
            raise InputError(_too_large(self.names, self.narrowed or ranges, self.most))


def narrowed(one: Equation, ranges: Ranges) -> Ranges:
    """Cut off values at which the equation cannot hold whatever the others are, where it only rises or only falls."""
    lows = [values[0] if values else 0 for values in ranges]
    highs = [values[-1] if values else 0 for values in ranges]
    slopes = [number for powers, number in shifted(one, lows).items() if any(powers)]
    if not all(ranges) or (min(slopes) < 0 < max(slopes)):
        return ranges
    sign = 1 if max(slopes) > 0 else -1
    return tuple(
        _cut(one, place, values, sign, lows, highs) if place in places(one) else values
        for place, values in enumerate(ranges)
    )


def _cut(one: Equation, place: int, values: range, sign: int, lows: Sequence[int], highs: Sequence[int]) -> range:
    def height(others: Sequence[int], value: int) -> int:
        return sign * value_at(one, [*others[:place], value, *others[place + 1 :]])

    end = bisect_right(values, 0, key=lambda value: height(lows, value))
    begin = bisect_left(values, 0, key=lambda value: height(highs, value))
    return values[begin:end]


def _too_large(names: Sequence[str], ranges: Ranges, most: int) -> str:
    sizes = ", ".join(
        f"{name} {values[0]:,}…{values[-1]:,}" for name, values in zip(names, ranges, strict=True) if values
    )
    return (
        f"too many combinations to search ({sizes}): more than {most:,} values were tried. "
        "Narrow a range, fix one of the unknowns, or give a second total."
    )
