"""Sizes that no polynomial gives: rounded ones, the smaller of two, and dimensions that only the module knows.

Each gets a symbol of its own. With it, what is read is a polynomial again (`fit_with`): 3·L·d·m with m = 64·⌈d/24⌉,
2·B·T·d·m with m = min(T, w). What such a size is, is found along one symbol (`staircase`, `bends`), and proved like any
formula: at sizes that were not used.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, product
from math import ceil, floor, gcd
from typing import Literal

import numpy as np

from lemma.counting.polynomial import Monomial, Polynomial, as_polynomial, sum_polynomials, symbol
from lemma.counting.probe import Column, PathGroup, ProbeSizes, Readings, Sizes, fit_groups
from lemma.counting.writing import Style, write_formula
from lemma.errors import CountingError

SERIES_LENGTH = 33  # sizes along one symbol at which bends are looked for: four periods of eight, and one more
LAYER_SERIES_LENGTH = 13  # layers take time: enough to see every second or third
MAX_PERIOD = 8
NUM_RULE_POINTS, NUM_RULE_PROOFS = (
    48,
    16,
)  # sizes at which a rounded dimension is read to find its rule, and to prove it
MAX_UNKNOWNS = 160  # unknown coefficients of one fit
NUM_EXTRA_SAMPLES = 12  # sizes at which a fit is proved
MAX_DERIVED_POWER, MAX_DERIVED_DEGREE = 2, 3  # of a named size and the symbols it depends on


@dataclass(frozen=True)
class DerivedSize:
    """`times` · ⌊x⌋ or ⌈x⌉, the smaller or the larger of two; or a dimension that only the module at `place` knows.

    Of a dimension, `of` are the symbols that it depends on.
    """

    kind: Literal["floor", "ceil", "min", "max", "dimension"]
    operands: tuple[Polynomial, ...] = ()
    factor: int = 1
    dimension: str = ""

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols that it depends on."""
        return frozenset(name for one in self.operands for name in one.symbols)

    @property
    def name(self) -> str:
        """A name by which formulas are kept; people read a letter instead."""
        return f"size of {self.dimension}" if self.kind == "dimension" else self.write()

    def at(self, values: Sizes) -> int:
        """Its value where the symbols have these values; a dimension is read off the module instead."""
        numbers = [one.at(values) for one in self.operands]
        rule = {"floor": lambda: floor(numbers[0]), "ceil": lambda: ceil(numbers[0])}
        rule |= {"min": lambda: int(min(numbers)), "max": lambda: int(max(numbers))}
        return self.factor * rule[self.kind]()

    def step_points(self, start: int) -> list[int]:
        """The first few values of its symbol from `start` on at which a rounded size is larger than before."""
        (name,) = self.symbols
        reach = start + int(4 / self.operands[0].terms[(name, 1),]) + 1
        return [one for one in range(start + 1, reach) if self.at({name: one}) != self.at({name: one - 1})]

    def smooth_polynomial(self, values: Sizes) -> Polynomial:
        """What it would be without rounding, or which of the two it is where the symbols have these values."""
        if self.kind in ("floor", "ceil"):
            return self.factor * self.operands[0]
        return (min if self.kind == "min" else max)(self.operands, key=lambda one: one.at(values))

    def write(self, order: Sequence[str] = (), style: Style = "plain") -> str:
        """The rule as a person would write it.

        >>> NamedSize("ceil", (symbol("d") / 24,), 64).write(style="unicode")
        '64·⌈d/24⌉'
        >>> NamedSize("min", (symbol("T"), symbol("w") - 1)).write()
        'min(T, w - 1)'
        """
        inside = ", ".join(write_formula(one, order, style) for one in self.operands)
        if self.kind in ("min", "max"):
            return rf"\{self.kind}({inside})" if style == "latex" else f"{self.kind}({inside})"
        unicode = {"floor": ("⌊", "⌋"), "ceil": ("⌈", "⌉")}[self.kind]
        latex = (rf"\l{self.kind} ", rf" \r{self.kind}")
        opened, closed = {"plain": (f"{self.kind}(", ")"), "unicode": unicode, "latex": latex}[style]
        dot = {"plain": "*", "unicode": "·", "latex": r" \cdot "}[style]
        return (f"{self.factor}{dot}" if self.factor != 1 else "") + opened + inside + closed


def simplest_between(low: Fraction, high: Fraction | None) -> Fraction:
    """The fraction with the smallest denominator strictly between two that are not negative; None is infinity.

    >>> simplest_between(Fraction(40, 1000), Fraction(43, 1000))
    Fraction(1, 24)
    """
    whole = floor(low)
    if high is None or whole + 1 < high:
        return Fraction(whole + 1)
    return whole + 1 / simplest_between(1 / (high - whole), 1 / (low - whole) if low > whole else None)


def fit_staircase(name: str, points: Mapping[int, int]) -> tuple[DerivedSize, Polynomial] | None:
    """The rule of a size that rises in equal steps with a symbol, and what is to be added to it; None if it does not.

    The sizes n at x are ⌊a·x + b⌋ exactly if n ≤ a·x + b < n + 1 at every x: a is the simplest slope that allows this.

    >>> staircase("d", {d: 64 * -(-8 * d // 192) for d in range(1, 400, 7)})[0].write()
    '64*ceil(d/24)'
    """
    places = sorted(points)
    step = gcd(*(points[x] - points[places[0]] for x in places))
    if len(set(points.values())) < 3 or not step:
        return None
    rest = points[places[0]] % step
    steps = {x: (points[x] - rest) // step for x in places}
    low = max(Fraction(steps[j] - steps[i] - 1, j - i) for i, j in combinations(places, 2))
    high = min(Fraction(steps[j] - steps[i] + 1, j - i) for i, j in combinations(places, 2))
    if not 0 <= max(low, 0) < high:
        return None
    slope = simplest_between(max(low, Fraction(0)), high)
    below, above = max(steps[x] - slope * x for x in places), min(steps[x] + 1 - slope * x for x in places)
    parts = slope.denominator
    starts = range(ceil(below * parts), ceil(above * parts))
    if parts == 1 or not starts:
        return None
    start = min(starts, key=lambda one: ((-one) % parts and (one + 1) % parts, (-one) % parts != 0, abs(one)))
    offset, shift = divmod(start, parts)
    line = slope * symbol(name)
    if shift == parts - 1:
        return DerivedSize("ceil", (line,), step), as_polynomial(rest + step * offset)
    return DerivedSize("floor", (line + Fraction(shift, parts),), step), as_polynomial(rest + step * offset)


def reduce_slope(size: DerivedSize, rest: Polynomial) -> tuple[DerivedSize, Polynomial]:
    """The same with whole multiples of the symbol taken out of what is rounded.

    >>> half, rest = with_small_slope(NamedSize("floor", (3 * symbol("L") / 2,)), symbol("L"))
    >>> half.write(), rest == 2 * symbol("L")
    ('floor(L/2)', True)
    """
    whole = sum_polynomials(
        floor(number) * Polynomial({term: 1}) for term, number in size.operands[0].terms.items() if term
    )
    return replace(size, operands=(size.operands[0] - whole,)), rest + size.factor * whole


def find_bends(series: Mapping[int, int]) -> tuple[int, int]:
    """Where a series over consecutive whole numbers stops to be a parabola, and the period of one that is rounded.

    The first is the last number up to which it is one, if it is another one after it; the second is the period with
    which it is a parabola everywhere. Each is 0 if it does not exist.

    >>> bends({x: 3 * x * min(x, 9) for x in range(2, 30)}), bends({x: x + 5 * (x // 3) for x in range(2, 30)})
    ((9, 0), (0, 3))
    """
    places = sorted(series)

    def breaks(stride: int) -> list[int]:
        def third(x: int) -> int:
            return series[x + 3 * stride] - 3 * series[x + 2 * stride] + 3 * series[x + stride] - series[x]

        return [x for x in places if x + 3 * stride in series and third(x)]

    broken = breaks(1)
    if not broken:
        return 0, 0
    if broken[-1] - broken[0] <= 2:
        return broken[0] + 2, 0
    wide = (len(places) - 1) // 4
    return 0, next((q for q in range(2, min(MAX_PERIOD, wide) + 1) if not breaks(q)), 0)


PRIMES = (2**31 - 1, 2**31 - 19)  # a product of two residues fits into 64 bits


def solve_modular(rows: Sequence[Sequence[int]], right: Sequence[int], prime: int) -> dict[int, int] | None:
    """The unknowns of a linear system modulo a prime that are not 0: as few of the last as possible; None if none."""
    table = np.array([[*row, number % prime] for row, number in zip(rows, right, strict=True)], dtype=np.int64)
    pivots: list[int] = []
    for column in range(table.shape[1] - 1):
        start = len(pivots)
        below = np.flatnonzero(table[start:, column])
        if not len(below):
            continue
        table[[start, start + below[0]]] = table[[start + below[0], start]]
        table[start] = table[start] * pow(int(table[start, column]), -1, prime) % prime
        factors = table[:, column].copy()
        factors[start] = 0
        table = (table - factors[:, None] * table[start] % prime) % prime
        pivots.append(column)
        if len(pivots) == len(table):
            break
    if table[len(pivots) :, -1].any():
        return None
    return {column: int(table[row, -1]) for row, column in enumerate(pivots) if table[row, -1]}


def reconstruct_fraction(residues: Sequence[int]) -> Fraction:
    """The fraction of small numbers that has these residues modulo the primes (Wang 1981)."""
    one, two = PRIMES
    modulus = one * two
    number = (residues[0] + one * ((residues[1] - residues[0]) * pow(one, -1, two) % two)) % modulus
    before, now = (modulus, 0), (number, 1)
    while now[0] * now[0] * 2 > modulus:
        quotient = before[0] // now[0]
        before, now = now, (before[0] - quotient * now[0], before[1] - quotient * now[1])
    return Fraction(now[0], now[1]) if now[1] else Fraction(0)


def spread_sizes(name: str, sizes: ProbeSizes, named: Iterable[DerivedSize]) -> list[int]:
    """Values of a symbol on all sides of the bends of sizes that depend on it, as divisible as its probe sizes."""
    low, reach, step = min(sizes[name]), max(sizes[name]), gcd(*sizes[name])
    for one in named:
        if one.kind in ("floor", "ceil") and name in one.symbols:
            reach = max(reach, int(6 / one.operands[0].terms[(name, 1),]))
        elif one.kind == "dimension":
            reach = max(reach, 8 * low, 64)
        elif name in one.symbols:  # the smaller or the larger of two
            fixed = max((int(bound.constant or 0) for bound in one.operands), default=0)
            reach = max(reach, 3 * fixed, *(size for other in one.symbols for size in sizes[other]))
            low = min(low, *(size for other in one.symbols for size in sizes[other]))
    return list(range(-(-low // step) * step, reach + 1, step))


ReadAmounts = Callable[[Sizes], Mapping[PathGroup, Sequence[int]]]
"""What each of the groups comes to at some sizes, column by column."""


def fit_with_derived(
    read: ReadAmounts, named: Sequence[DerivedSize], sizes: ProbeSizes, value: Callable[[DerivedSize, Sizes], int]
) -> dict[Column, Polynomial]:
    """Fit what is read as polynomials of the symbols and of some named sizes.

    First with these symbols as they are, which shows how it depends on all others. Then every term of that is
    multiplied by all small powers of the named sizes and of their symbols, and the coefficients follow from as many
    samples, and are proved at more. What does not fit is left out.
    """
    source = random.Random(len(sizes))
    driving = frozenset[str]().union(*(one.symbols for one in named))
    ranges = {**sizes, **{name: spread_sizes(name, sizes, named) for name in driving}}

    def drawn() -> Iterator[dict[str, int]]:
        for _ in range(6 * MAX_UNKNOWNS):
            yield {name: source.choice(values) for name, values in ranges.items()}

    terms: dict[Column, dict[Monomial, None]] = {}
    samples = drawn()
    settled = 0
    for values in samples:
        pinned = {**sizes, **{name: [values[name]] for name in driving}}
        groups: list[PathGroup] = []

        def flat(at: Sizes, groups: list[PathGroup] = groups) -> Readings:
            found = read(at)
            groups[:] = list(found)
            return {f"g{number}": tuple(found[group]) for number, group in enumerate(groups)}

        try:
            probed = fit_groups(flat, [pinned])
        except CountingError:
            continue
        for number, group in enumerate(groups):
            fitted = probed.fits.get(PathGroup(f"g{number}"))
            if fitted is None:
                continue
            for column, one in enumerate(fitted.columns):
                terms.setdefault((group, column), {}).update(dict.fromkeys((fitted.repeats * one).terms))
        settled += 1
        if settled == 2 or not terms:
            break
    powers: list[list[Monomial]] = []
    for one in named:
        names = [*sorted(one.symbols), one.name]
        each = [
            power
            for power in product(range(MAX_DERIVED_POWER + 1), repeat=len(names))
            if sum(power) <= MAX_DERIVED_DEGREE
        ]
        each.sort(key=lambda power: (sum(power), max(power)))
        powers.append([tuple((name, at) for name, at in zip(names, power, strict=True) if at) for power in each])
    factors: list[Monomial] = [()]
    for each in powers:
        factors = [_multiply_monomials(one, other) for one in factors for other in each]
    bases = {
        key: list(dict.fromkeys(_multiply_monomials(term, factor) for factor in factors for term in mine))
        for key, mine in terms.items()
    }
    bases = {key: basis for key, basis in bases.items() if len(basis) <= MAX_UNKNOWNS}
    wanted = max(map(len, bases.values()), default=0) + NUM_EXTRA_SAMPLES
    taken: list[tuple[dict[str, int], Mapping[PathGroup, Sequence[int]]]] = []
    for values in samples if bases else ():
        if len(taken) == wanted:
            break
        try:
            taken.append(({**values, **{one.name: value(one, values) for one in named}}, read(values)))
        except CountingError:
            continue
    found: dict[Column, Polynomial] = {}
    for (group, column), basis in bases.items():
        if len(taken) < len(basis) + NUM_EXTRA_SAMPLES:
            continue
        numbers = [dict(enumerate(amounts.get(group, ()))).get(column, 0) for _, amounts in taken]
        tried: list[Polynomial] = []
        for order in (basis, sorted(basis, key=lambda one: -len(one))):
            answers = [
                solve_modular([[_residue(one, values, prime) for one in order] for values, _ in taken], numbers, prime)
                for prime in PRIMES
            ]
            if answers[0] is None or answers[1] is None:
                break
            places = answers[0].keys() | answers[1].keys()
            made = {
                order[at]: reconstruct_fraction([one.get(at, 0) for one in answers if one is not None]) for at in places
            }
            tried.append(Polynomial(made))
        best = min(tried, key=lambda one: len(one.terms), default=None)
        if best is not None and all(
            best.at(values) == number for (values, _), number in zip(taken, numbers, strict=True)
        ):
            found[group, column] = best
    for at in _breakpoints(named, sizes) if found else ():
        try:
            amounts, values = read(at), {**at, **{one.name: value(one, at) for one in named}}
        except CountingError:
            continue
        found = {
            (group, column): best
            for (group, column), best in found.items()
            if best.at(values) == dict(enumerate(amounts.get(group, ()))).get(column, 0)
        }
    return found


def _breakpoints(named: Sequence[DerivedSize], sizes: ProbeSizes) -> Iterator[dict[str, int]]:
    """Sizes at which the two that a minimum or a maximum is taken of are equal, and those next to them."""
    base = {name: values[-1] for name, values in sizes.items()}
    for one in named:
        if one.kind in ("min", "max"):
            (name, *_), bound = one.operands[0].symbols, one.operands[1]
            yield from ({**base, name: meet} for by in (-1, 0, 1) if (meet := int(bound.at(base)) + by) > 0)


def _multiply_monomials(term: Monomial, factor: Monomial) -> Monomial:
    ((monomial, _),) = (Polynomial({term: 1}) * Polynomial({factor: 1})).terms.items()
    return monomial


def _residue(monomial: Monomial, values: Sizes, prime: int) -> int:
    residue = 1
    for name, power in monomial:
        residue = residue * pow(values[name], power, prime) % prime
    return residue
