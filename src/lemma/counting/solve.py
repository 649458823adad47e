"""From a printed total back to the sizes that give it."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import combinations, product
from math import comb, gcd, lcm, log2, prod
from typing import Any

from lemma.counting.polynomial import Polynomial
from lemma.counting.quantity import Quantity
from lemma.counting.subject import Subject, Values
from lemma.errors import InputError, LedgerError
from lemma.errors import unknown as unknown_name
from lemma.report.text import fit, table

# Polynomial equations in whole numbers: fast to put values into, and solved exactly for one unknown.


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


# Questions that have no answer, refused before the search.


def refuse_misfits(
    polynomial: Polynomial,
    wanted: Mapping[str, range],
    totals: Sequence[tuple[int, Values]],
    known: Values,
    ranges: Mapping[str, range],
) -> None:
    """Raise an `InputError` if an unknown, a total or a range does not fit the polynomial."""
    _check_unknowns(polynomial, list(wanted), known)
    _check_totals(polynomial, list(wanted), totals, known)
    for name in ranges:
        if name not in wanted:
            raise InputError(unknown_name("range: the unknown", name, wanted))
    for name, values in wanted.items():
        if not values or values[0] < 1 or values.step < 1:
            raise InputError(f"range of {name}: expected at least one value, rising, none below 1; got {values}.")


def _check_unknowns(polynomial: Polynomial, wanted: Sequence[str], known: Values) -> None:
    if not wanted:
        raise InputError("There is nothing to solve for. Name at least one unknown, as in V,d.")
    for name in wanted:
        if name not in polynomial.symbols and name in known:
            raise InputError(f"The formula does not depend on {name}, so no total can tell its value.")
        if name not in polynomial.symbols:
            raise InputError(unknown_name("unknown", name, sorted(polynomial.symbols)))


def _check_totals(
    polynomial: Polynomial, wanted: Sequence[str], totals: Sequence[tuple[int, Values]], known: Values
) -> None:
    if not totals:
        raise InputError("There is no total to solve for. Give at least one, as in 9721596 or L=2:9721596.")
    symbols = {*polynomial.symbols, *known}
    for value, own in totals:
        if value < 1:
            raise InputError(f"total {value}: expected a whole number above 0.")
        for name in own:
            if name in wanted:
                raise InputError(f"total {value:,}: {name} is given a value and asked for. Leave one of them out.")
            if name not in symbols:
                raise InputError(unknown_name(f"total {value:,}: the symbol", name, sorted(symbols)))
        missing = sorted(polynomial.symbols - {*wanted, *own, *known})
        if missing:
            raise InputError(f"total {value:,}: {', '.join(missing)} has no value. Give it one, or ask for it.")


# Which of several solutions a person is likely to have chosen.


VOCABULARIES = frozenset({256, 10_000, 21_128, 28_996, 30_000, 30_522, 32_000, 32_128, 37_000, 49_152, 50_000, 50_257})
VOCABULARIES |= {50_265, 50_304, 100_277, 119_547, 128_000, 128_256, 151_936, 250_002, 256_000}
"""Sizes of vocabularies that are much used."""
VOCABULARY = "V"


def oddness(value: int) -> float:
    """How far a number is from being round: the bits it keeps without its factors of two, or without its last zeros.

    >>> oddness(512), oddness(768) == oddness(3), oddness(30_000) == oddness(3)
    (0.0, True, True)
    """
    return log2(min(value // (value & -value), int(str(value).rstrip("0"))))


def order_of(solution: Mapping[str, int]) -> tuple[float, tuple[int, ...]]:
    """A key that puts the roundest first. A vocabulary is whatever the text has, so that it counts for less."""
    return sum(_weighed(name, value) for name, value in solution.items()), tuple(solution.values())


def _weighed(name: str, value: int) -> float:
    if name != VOCABULARY:
        return oddness(value)
    return 0.0 if value in VOCABULARIES else oddness(value) / 4


# All solutions of some equations in bounded whole numbers, without looking where there can be none.


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


# What was found: the sizes that give the totals, the roundest first.


@dataclass(frozen=True)
class Total:
    """A printed total, and the sizes that are known where it holds."""

    value: int
    known: Mapping[str, int]

    def __str__(self) -> str:
        where = ", ".join(f"{name}={value:,}" for name, value in self.known.items())
        return f"{self.value:,}" + (f" at {where}" if where else "")


@dataclass(frozen=True)
class Solutions:
    """The whole numbers that give the totals.

    `number` of them solve the equations within the ranges. `tried` of these were built, the roundest first, and
    `shown` are those with which that went well; where nothing was built, `tried` is 0.
    """

    unknown: tuple[str, ...]
    totals: tuple[Total, ...]
    ranges: Mapping[str, range]
    number: int
    tried: int
    shown: tuple[Mapping[str, int], ...]

    @property
    def only(self) -> bool:
        """Whether there is exactly one."""
        return len(self.shown) == 1 and self.number == max(self.tried, 1)

    @property
    def summary(self) -> str:
        """How many there are."""
        names, within = ", ".join(self.unknown), f"within {spelled(self.ranges)}"
        if not self.number:
            return f"No whole numbers {names} give that {within}."
        if not self.shown:
            return f"{_counted(self.number)} the equation, but {names} cannot be built so {within}."
        if self.only:
            return f"The only solution {within}."
        return f"{_counted(self.number)} the equation {within}.{self._shown()}"

    def _shown(self) -> str:
        unfit = f" {self.number - len(self.shown):,} of them cannot be built." if self.number == self.tried else ""
        if self.number > max(self.tried, len(self.shown)):
            return f" The {len(self.shown)} roundest" + (" that can be built:" if self.tried else ":")
        return unfit if self.number > len(self.shown) else " The roundest first:"

    def __str__(self) -> str:
        rows = [self.unknown, *(tuple(f"{solution[name]:,}" for name in self.unknown) for solution in self.shown)]
        said = [*map(str, self.totals), self.summary]
        return "\n".join([*map(fit, said), *(table(rows, left=()) if self.shown else [])])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "unknown": list(self.unknown),
            "totals": [{"total": total.value, "known": dict(total.known)} for total in self.totals],
            "ranges": {name: [values[0], values[-1], values.step] for name, values in self.ranges.items()},
            "number": self.number,
            "tried": self.tried,
            "solutions": [dict(solution) for solution in self.shown],
        }

    def _repr_html_(self) -> str:
        totals = "".join(f"<li>{escape(str(total))}</li>" for total in self.totals)
        heads = "".join(f"<th>{escape(name)}</th>" for name in self.unknown)
        rows = ("".join(f"<td>{solution[name]:,}</td>" for name in self.unknown) for solution in self.shown)
        table = f"<table><tr>{heads}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>" if self.shown else ""
        return f"<ul>{totals}</ul><p>{escape(self.summary)}</p>{table}"


def spelled(ranges: Mapping[str, range]) -> str:
    """Ranges in words.

    >>> spelled({"V": range(1, 1001), "d": range(64, 513, 64)})
    'V 1…1,000, d 64…512 by 64'
    """
    steps = {name: f" by {values.step}" if values.step != 1 else "" for name, values in ranges.items()}
    return ", ".join(f"{name} {values[0]:,}…{values[-1]:,}{steps[name]}" for name, values in ranges.items())


def _counted(number: int) -> str:
    return "1 assignment solves" if number == 1 else f"{number:,} assignments solve"


# Totals and ranges as a person types them.


DIGITS = re.compile(r"[0-9]+(?:[,_][0-9]{3})*|[0-9]+")


def read_total(text: str) -> tuple[int, dict[str, int]]:
    """Read a total, before it the sizes that belong to it alone.

    >>> read_total("9,721,596"), read_total("L=4:14980860")
    ((9721596, {}), (14980860, {'L': 4}))
    """
    sizes, _, number = text.rpartition(":")
    known = dict(_pair(word, text) for word in sizes.split(",") if word.strip())
    return _whole(number, f"total '{text}'", "9721596, or L=2:9721596"), known


def read_range(text: str) -> tuple[str, range]:
    """Read the range of an unknown: first and last value, and the step if there is one.

    >>> read_range("V=1000..60000"), read_range("d=64..4096..64")
    (('V', range(1000, 60001)), ('d', range(64, 4097, 64)))
    """
    name, equals, bounds = text.partition("=")
    numbers = [_whole(bound, f"range '{text}'", "d=64..4096, or d=64..4096..64") for bound in bounds.split("..")]
    if not name.strip() or not equals or len(numbers) not in (2, 3) or numbers[0] > numbers[1]:
        raise InputError(f"range '{text}': expected the first and the last value, as in d=64..4096, or d=64..4096..64.")
    return name.strip(), range(numbers[0], numbers[1] + 1, *numbers[2:])


def _pair(word: str, text: str) -> tuple[str, int]:
    name, _, value = word.partition("=")
    if not name.strip():
        raise InputError(f"total '{text}': a size has no name. Expected L=2:9721596.")
    return name.strip(), _whole(value, f"total '{text}'", "L=2:9721596")


def _whole(text: str, where: str, example: str) -> int:
    if not DIGITS.fullmatch(text.strip()) or len(text) > 40 or not int(re.sub("[,_]", "", text)):
        raise InputError(f"{where}: '{text.strip()[:40]}' is no whole number above 0. Expected {example}.")
    return int(re.sub("[,_]", "", text))


# The sizes that give a printed total.


MOST_BUILT = 200
"""Candidates that are built in order to see whether they can be."""
LAYERS, HEADS = range(1, 201), range(1, 257)
SENSIBLE = {
    "V": range(1, 1_000_001),
    "T": range(1, 1_000_001),
    "N": range(2, 1_001),
    **dict.fromkeys(("L", "L_enc", "L_dec"), LAYERS),
    **dict.fromkeys(("h", "h_kv"), HEADS),
}
WIDTHS = range(1, 65_537)
Fits = Callable[[Values], bool]


def solve(
    polynomial: Polynomial,
    unknown: Sequence[str],
    totals: Sequence[tuple[int, Values]],
    known: Values,
    ranges: Mapping[str, range] | None = None,
    fits: Fits | None = None,
    limit: int = 20,
    most: int = LARGEST_SEARCH,
) -> Solutions:
    """Find the whole numbers at which a polynomial has these totals, each with sizes of its own beside the known ones.

    `fits` says whether something can be built with all its sizes; it is asked about the roundest candidates first.

    >>> from lemma.ledger.polynomial import symbol
    >>> print(solve(symbol("V") * symbol("d") + symbol("d"), ["V"], [(808, {})], {"d": 8}))
    808 at d=8
    The only solution within V 1…1,000,000.
      V
    100
    """
    wanted = {name: (ranges or {}).get(name, SENSIBLE.get(name, WIDTHS)) for name in unknown}
    refuse_misfits(polynomial, wanted, totals, known, ranges or {})
    needed = {name: value for name, value in known.items() if name in polynomial.symbols and name not in wanted}
    where = tuple(Total(value, {**needed, **own}) for value, own in totals)
    lefts = [_with(polynomial, total.known) - total.value for total in where]
    lefts += [one - other for one, other in combinations(lefts, 2)]  # what they share is gone from these
    equations = [equation(left, unknown) for left in lefts]
    found = Search(list(unknown), most).solutions(equations, tuple(wanted.values()))
    candidates = sorted((dict(zip(unknown, values, strict=True)) for values in found), key=order_of)
    shown, tried = _fitting(candidates, [{**known, **own} for _, own in totals], fits, limit)
    return Solutions(tuple(unknown), where, wanted, len(candidates), tried, shown)


def solve_for(
    subject: Subject,
    quantity: Quantity,
    unknown: Sequence[str],
    totals: Sequence[tuple[int, Values]],
    ranges: Mapping[str, range] | None = None,
    limit: int = 20,
) -> Solutions:
    """Find the sizes at which a quantity of a subject has these totals; the other sizes are the subject's own.

    Sizes that follow others by default, such as d_ff = 4d, follow them here too. What cannot be built is left out.
    """
    if quantity.refused:
        raise LedgerError(f"{subject.name}: its {quantity.name} follow no formula, so they cannot be solved for sizes.")
    given = {*unknown, *(name for _, own in totals for name in own)}
    follows = {name: default for name, default in subject.defaults.items() if name not in given}
    polynomial = _with(quantity.polynomial, follows)
    known = {name: value for name, value in subject.sizes(True).items() if name not in follows and name not in unknown}

    def fits(values: Values) -> bool:
        return _builds(subject, {**values, **{name: int(default.at(values)) for name, default in follows.items()}})

    return solve(polynomial, unknown, totals, known, ranges, fits, limit)


def _with(polynomial: Polynomial, values: Mapping[str, Polynomial] | Values) -> Polynomial:
    for name, value in values.items():
        polynomial = polynomial.put(name, value)
    return polynomial


def _fitting(
    candidates: Sequence[dict[str, int]], others: Sequence[Values], fits: Fits | None, limit: int
) -> tuple[tuple[dict[str, int], ...], int]:
    """The first candidates that fit, and how many were asked about; all of them if they are not too many."""
    if fits is None:
        return tuple(candidates[:limit]), 0
    shown: list[dict[str, int]] = []
    tried = 0
    for candidate in candidates[:MOST_BUILT]:
        if len(shown) == limit:
            break
        tried += 1
        shown += [candidate] if all(fits({**known, **candidate}) for known in others) else []
    return tuple(shown), tried


def _builds(subject: Subject, values: Values) -> bool:
    try:
        subject.build({name: values[name] for name in subject.symbols})
    except LedgerError:
        return False
    return True
