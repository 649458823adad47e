"""Sizes that no polynomial gives: rounded ones, the smaller of two, and dimensions that only the module knows.

Each gets a symbol of its own. With it, what is read is a polynomial again (`fit_with_derived`): 3·L·d·m with
m = 64·⌈d/24⌉, 2·B·T·d·m with m = min(T, w). `lemma.counting.rules` finds such sizes in a module.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, product
from math import ceil, floor, gcd
from typing import Literal

import numpy as np

from lemma.counting.fit import Column, PathGroup, ProbeSizes, Sizes, fit_columns
from lemma.counting.polynomial import Monomial, Polynomial, as_polynomial, sum_polynomials, symbol
from lemma.counting.writing import Style, write_formula
from lemma.errors import CountingError

MAX_PERIOD = 8
MAX_UNKNOWNS = 160  # coefficients of one fit
NUM_EXTRA_SAMPLES = 12  # sizes at which a fit is proved
MAX_DERIVED_POWER, MAX_DERIVED_DEGREE = 2, 3  # of a derived size and the symbols it depends on


@dataclass(frozen=True)
class DerivedSize:
    """A size computed from symbols by rounding or by a minimum or maximum, or a dimension that only the module knows.

    Attributes:
        kind: `factor` · ⌊x⌋ or ⌈x⌉ of one operand, the smaller or larger of two, or "dimension".
        operands: polynomials of the symbols; of a dimension, the symbols that it depends on.
        dimension: the pattern of a parameter, and the index of its dimension.
    """

    kind: Literal["floor", "ceil", "min", "max", "dimension"]
    operands: tuple[Polynomial, ...] = ()
    factor: int = 1
    dimension: str = ""

    @property
    def symbols(self) -> frozenset[str]:
        return frozenset(name for operand in self.operands for name in operand.symbols)

    @property
    def name(self) -> str:
        """Return its symbol in fitted formulas; people read a letter instead."""
        return f"size of {self.dimension}" if self.kind == "dimension" else self.write()

    def at(self, sizes: Sizes) -> int:
        """Return its value at these sizes; a dimension must be read off the module instead."""
        values = [operand.at(sizes) for operand in self.operands]
        match self.kind:
            case "floor":
                return self.factor * floor(values[0])
            case "ceil":
                return self.factor * ceil(values[0])
            case "min":
                return self.factor * int(min(values))
            case "max":
                return self.factor * int(max(values))
        raise ValueError(f"{self.name} has no rule")

    def step_points(self, start: int) -> list[int]:
        """Return the first few values of its symbol from `start` on at which a rounded size is larger than before."""
        (name,) = self.symbols
        end = start + int(4 / self.operands[0].terms[(name, 1),]) + 1
        return [value for value in range(start + 1, end) if self.at({name: value}) != self.at({name: value - 1})]

    def smooth_polynomial(self, sizes: Sizes) -> Polynomial:
        """Return it without rounding, or the one of two operands that it is at these sizes."""
        if self.kind in ("floor", "ceil"):
            return self.factor * self.operands[0]
        return (min if self.kind == "min" else max)(self.operands, key=lambda operand: operand.at(sizes))

    def write(self, order: Sequence[str] = (), style: Style = "plain") -> str:
        """Write the rule as a person would.

        >>> DerivedSize("ceil", (symbol("d") / 24,), 64).write(style="unicode")
        '64·⌈d/24⌉'
        >>> DerivedSize("min", (symbol("T"), symbol("w") - 1)).write()
        'min(T, w - 1)'
        """
        operands = ", ".join(write_formula(operand, order, style) for operand in self.operands)
        if self.kind in ("min", "max"):
            return rf"\{self.kind}({operands})" if style == "latex" else f"{self.kind}({operands})"
        unicode = {"floor": ("⌊", "⌋"), "ceil": ("⌈", "⌉")}[self.kind]
        latex = (rf"\l{self.kind} ", rf" \r{self.kind}")
        left, right = {"plain": (f"{self.kind}(", ")"), "unicode": unicode, "latex": latex}[style]
        dot = {"plain": "*", "unicode": "·", "latex": r" \cdot "}[style]
        return (f"{self.factor}{dot}" if self.factor != 1 else "") + left + operands + right


def simplest_between(low: Fraction, high: Fraction | None) -> Fraction:
    """Return the fraction with the smallest denominator strictly between two non-negative ones; None is infinity.

    >>> simplest_between(Fraction(40, 1000), Fraction(43, 1000))
    Fraction(1, 24)
    """
    whole = floor(low)
    if high is None or whole + 1 < high:
        return Fraction(whole + 1)
    return whole + 1 / simplest_between(1 / (high - whole), 1 / (low - whole) if low > whole else None)


def fit_staircase(name: str, points: Mapping[int, int]) -> tuple[DerivedSize, Polynomial] | None:
    """Fit a size that rises in equal steps with a symbol: return its rule and what is added to it, None if it does not.

    The sizes n at x are ⌊a·x + b⌋ exactly if n ≤ a·x + b < n + 1 at every x: a is the simplest slope that allows this.

    >>> fit_staircase("d", {d: 64 * -(-8 * d // 192) for d in range(1, 400, 7)})[0].write()
    '64*ceil(d/24)'
    """
    xs = sorted(points)
    step = gcd(*(points[x] - points[xs[0]] for x in xs))
    if len(set(points.values())) < 3 or not step:
        return None
    remainder = points[xs[0]] % step
    heights = {x: (points[x] - remainder) // step for x in xs}
    low = max(Fraction(heights[b] - heights[a] - 1, b - a) for a, b in combinations(xs, 2))
    high = min(Fraction(heights[b] - heights[a] + 1, b - a) for a, b in combinations(xs, 2))
    if not 0 <= max(low, 0) < high:
        return None
    slope = simplest_between(max(low, Fraction(0)), high)
    parts = slope.denominator
    lowest, highest = max(heights[x] - slope * x for x in xs), min(heights[x] + 1 - slope * x for x in xs)
    intercepts = range(ceil(lowest * parts), ceil(highest * parts))  # in units of 1/parts
    if parts == 1 or not intercepts:
        return None
    # rounded down without a shift is preferred, then rounded up, then the smallest shift
    intercept = min(intercepts, key=lambda b: ((-b) % parts and (b + 1) % parts, (-b) % parts != 0, abs(b)))
    offset, shift = divmod(intercept, parts)
    line, rest = slope * symbol(name), as_polynomial(remainder + step * offset)
    if shift == parts - 1:
        return DerivedSize("ceil", (line,), step), rest
    return DerivedSize("floor", (line + Fraction(shift, parts),), step), rest


def reduce_slope(size: DerivedSize, rest: Polynomial) -> tuple[DerivedSize, Polynomial]:
    """Take whole multiples of the symbol out of what is rounded, and add them to the rest.

    >>> half, rest = reduce_slope(DerivedSize("floor", (3 * symbol("L") / 2,)), symbol("L"))
    >>> half.write(), rest == 2 * symbol("L")
    ('floor(L/2)', True)
    """
    terms = size.operands[0].terms.items()
    whole = sum_polynomials(floor(number) * Polynomial({monomial: 1}) for monomial, number in terms if monomial)
    return replace(size, operands=(size.operands[0] - whole,)), rest + size.factor * whole


def find_bends(series: Mapping[int, int]) -> tuple[int, int]:
    """Find where a series over consecutive whole numbers stops being a parabola, and the period of a rounded one.

    Returns:
        The last number up to which it is one parabola, if it is another one after it, else 0; and the period with
        which it is a parabola everywhere, else 0.

    >>> xs = range(2, 30)
    >>> find_bends({x: 3 * x * min(x, 9) for x in xs}), find_bends({x: x + 5 * (x // 3) for x in xs})
    ((9, 0), (0, 3))
    """
    xs = sorted(series)

    def third_difference(x: int, stride: int) -> int:
        return series[x + 3 * stride] - 3 * series[x + 2 * stride] + 3 * series[x + stride] - series[x]

    def breaks(stride: int) -> list[int]:
        return [x for x in xs if x + 3 * stride in series and third_difference(x, stride)]

    broken = breaks(1)
    if not broken:
        return 0, 0
    if broken[-1] - broken[0] <= 2:
        return broken[0] + 2, 0
    max_period = min(MAX_PERIOD, (len(xs) - 1) // 4)
    return 0, next((period for period in range(2, max_period + 1) if not breaks(period)), 0)


ReadAmounts = Callable[[Sizes], Mapping[PathGroup, Sequence[int]]]  # amounts of groups at some sizes, by column
DerivedValue = Callable[[DerivedSize, Sizes], int]


def fit_with_derived(
    read: ReadAmounts, derived: Sequence[DerivedSize], probe_sizes: ProbeSizes, value_of: DerivedValue
) -> dict[Column, Polynomial]:
    """Fit what is read as polynomials of the symbols and of some derived sizes; what does not fit is left out.

    First with the symbols of the derived sizes held fixed, which shows how it depends on all others. Then every term of
    that is multiplied by all small powers of the derived sizes and of their symbols; the coefficients follow from as
    many samples, and are proved at more.
    """
    rng = random.Random(len(probe_sizes))
    symbols = frozenset[str]().union(*(size.symbols for size in derived))
    ranges = {**probe_sizes, **{name: spread_sizes(name, probe_sizes, derived) for name in symbols}}
    draws = ({name: rng.choice(values) for name, values in ranges.items()} for _ in range(6 * MAX_UNKNOWNS))
    terms = _find_terms(read, symbols, probe_sizes, draws)
    factors = _derived_factors(derived)
    bases = {
        column: list(dict.fromkeys(_multiply_monomials(term, factor) for factor in factors for term in monomials))
        for column, monomials in terms.items()
    }
    bases = {column: basis for column, basis in bases.items() if len(basis) <= MAX_UNKNOWNS}

    def with_derived(sizes: Sizes) -> dict[str, int]:
        return {**sizes, **{size.name: value_of(size, sizes) for size in derived}}

    needed = max(map(len, bases.values()), default=0) + NUM_EXTRA_SAMPLES
    samples: list[tuple[dict[str, int], Mapping[PathGroup, Sequence[int]]]] = []
    for sizes in draws if bases else ():
        if len(samples) == needed:
            break
        try:
            samples.append((with_derived(sizes), read(sizes)))
        except CountingError:
            continue
    fits: dict[Column, Polynomial] = {}
    for column, basis in bases.items():
        if len(samples) >= len(basis) + NUM_EXTRA_SAMPLES:
            polynomial = _solve(basis, [(sizes, _amount(amounts, column)) for sizes, amounts in samples])
            if polynomial is not None:
                fits[column] = polynomial
    for sizes in _breakpoints(derived, probe_sizes) if fits else ():
        try:
            amounts, values = read(sizes), with_derived(sizes)
        except CountingError:
            continue
        fits = {column: fit for column, fit in fits.items() if fit.at(values) == _amount(amounts, column)}
    return fits


def spread_sizes(name: str, probe_sizes: ProbeSizes, derived: Iterable[DerivedSize]) -> list[int]:
    """Return values of a symbol on all sides of the bends of derived sizes, as divisible as its probe sizes."""
    low, high, step = min(probe_sizes[name]), max(probe_sizes[name]), gcd(*probe_sizes[name])
    for size in derived:
        if size.kind in ("floor", "ceil") and name in size.symbols:
            high = max(high, int(6 / size.operands[0].terms[(name, 1),]))
        elif size.kind == "dimension":
            high = max(high, 8 * low, 64)
        elif name in size.symbols:  # the smaller or the larger of two
            constant = max((int(operand.constant or 0) for operand in size.operands), default=0)
            values = [value for other in size.symbols for value in probe_sizes[other]]
            high, low = max(high, 3 * constant, *values), min(low, *values)
    return list(range(-(-low // step) * step, high + 1, step))


def _find_terms(
    read: ReadAmounts, symbols: frozenset[str], probe_sizes: ProbeSizes, draws: Iterator[Sizes]
) -> dict[Column, dict[Monomial, None]]:
    """Return the monomials of every column where these symbols are fixed, from two fits at sizes that work."""

    def sample(sizes: Sizes) -> dict[Column, int]:
        return {(group, index): n for group, row in read(sizes).items() for index, n in enumerate(row)}

    terms: dict[Column, dict[Monomial, None]] = {}
    num_fits = 0
    for sizes in draws:
        try:
            fits, _ = fit_columns(sample, {**probe_sizes, **{name: [sizes[name]] for name in symbols}})
        except CountingError:
            continue
        for column, polynomial in fits.items():
            terms.setdefault(column, {}).update(dict.fromkeys(polynomial.terms))
        num_fits += 1
        if num_fits == 2 or not terms:
            break
    return terms


def _derived_factors(derived: Sequence[DerivedSize]) -> list[Monomial]:
    """Return all products of small powers of derived sizes and of their symbols, those of low degree first."""
    factors: list[Monomial] = [()]
    for size in derived:
        names = [*sorted(size.symbols), size.name]
        powers = product(range(MAX_DERIVED_POWER + 1), repeat=len(names))
        small = sorted((p for p in powers if sum(p) <= MAX_DERIVED_DEGREE), key=lambda p: (sum(p), max(p)))
        monomials = [tuple((name, n) for name, n in zip(names, power, strict=True) if n) for power in small]
        factors = [_multiply_monomials(factor, monomial) for factor in factors for monomial in monomials]
    return factors


def _solve(basis: Sequence[Monomial], samples: Sequence[tuple[Sizes, int]]) -> Polynomial | None:
    """Return the polynomial with these monomials that goes through all samples, the shorter of two; None without one.

    The system has more equations than unknowns; its free unknowns depend on the order of the monomials.
    """
    candidates: list[Polynomial] = []
    for monomials in (basis, sorted(basis, key=lambda monomial: -len(monomial))):
        residues = [
            solve_modular(
                [[_residue(monomial, sizes, prime) for monomial in monomials] for sizes, _ in samples],
                [number for _, number in samples],
                prime,
            )
            for prime in PRIMES
        ]
        first, second = residues
        if first is None or second is None:
            break
        coefficients = {
            monomials[index]: reconstruct_fraction([first.get(index, 0), second.get(index, 0)])
            for index in first.keys() | second.keys()
        }
        candidates.append(Polynomial(coefficients))
    shortest = min(candidates, key=lambda polynomial: len(polynomial.terms), default=None)
    if shortest is None or any(shortest.at(sizes) != number for sizes, number in samples):
        return None
    return shortest


PRIMES = (2**31 - 1, 2**31 - 19)  # a product of two residues fits into 64 bits


def solve_modular(rows: Sequence[Sequence[int]], right: Sequence[int], prime: int) -> dict[int, int] | None:
    """Solve a linear system modulo a prime, with as few of the last unknowns as possible.

    Returns:
        The unknowns that are not 0, by index; None if there is no solution.
    """
    table = np.array([[*row, number % prime] for row, number in zip(rows, right, strict=True)], dtype=np.int64)
    pivots: list[int] = []
    for column in range(table.shape[1] - 1):
        row = len(pivots)
        nonzero = np.flatnonzero(table[row:, column])
        if not len(nonzero):
            continue
        table[[row, row + nonzero[0]]] = table[[row + nonzero[0], row]]
        table[row] = table[row] * pow(int(table[row, column]), -1, prime) % prime
        factors = table[:, column].copy()
        factors[row] = 0
        table = (table - factors[:, None] * table[row] % prime) % prime
        pivots.append(column)
        if len(pivots) == len(table):
            break
    if table[len(pivots) :, -1].any():
        return None
    return {column: int(table[row, -1]) for row, column in enumerate(pivots) if table[row, -1]}


def reconstruct_fraction(residues: Sequence[int]) -> Fraction:
    """Return the fraction of small numbers that has these residues modulo the primes (Wang 1981)."""
    p, q = PRIMES
    modulus = p * q
    number = (residues[0] + p * ((residues[1] - residues[0]) * pow(p, -1, q) % q)) % modulus
    previous, current = (modulus, 0), (number, 1)
    while current[0] * current[0] * 2 > modulus:
        quotient = previous[0] // current[0]
        previous, current = current, (previous[0] - quotient * current[0], previous[1] - quotient * current[1])
    return Fraction(current[0], current[1]) if current[1] else Fraction(0)


def _amount(amounts: Mapping[PathGroup, Sequence[int]], column: Column) -> int:
    group, index = column
    row = amounts.get(group, ())
    return row[index] if index < len(row) else 0


def _breakpoints(derived: Sequence[DerivedSize], probe_sizes: ProbeSizes) -> Iterator[dict[str, int]]:
    """Yield sizes at which the operands of a minimum or maximum are equal, and the sizes next to them."""
    base = {name: values[-1] for name, values in probe_sizes.items()}
    for size in derived:
        if size.kind in ("min", "max"):
            (name, *_), bound = size.operands[0].symbols, size.operands[1]
            equal = int(bound.at(base))
            yield from ({**base, name: value} for value in (equal - 1, equal, equal + 1) if value > 0)


def _multiply_monomials(left: Monomial, right: Monomial) -> Monomial:
    ((monomial, _),) = (Polynomial({left: 1}) * Polynomial({right: 1})).terms.items()
    return monomial


def _residue(monomial: Monomial, sizes: Sizes, prime: int) -> int:
    residue = 1
    for name, power in monomial:
        residue = residue * pow(sizes[name], power, prime) % prime
    return residue
