"""Sizes that no polynomial gives: rounded ones, the smaller of two, and dimensions that only the module knows.

Each gets a symbol of its own. With it, what is read is a polynomial again (`fit_with_derived`): 3·L·d·m with
m = 64·⌈d/24⌉, 2·B·T·d·m with m = min(T, w). Two things give them away (`DerivedSizeFinder`): a dimension of a parameter
that follows no polynomial, and amounts that bend along a symbol.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import chain, combinations, islice, permutations, product
from math import ceil, floor, gcd
from typing import TYPE_CHECKING, Literal

from lemma.counting.fit import (
    LAYER_NAMES,
    FitResult,
    GroupFit,
    NotPolynomial,
    PathGroup,
    ProbeSizes,
    Read,
    Readings,
    Sizes,
    assign_to_groups,
    fit_columns,
    fit_groups,
    fit_polynomials,
    iter_patterns,
    sample_sizes,
    total_size,
)
from lemma.counting.linear import solve_coefficients
from lemma.counting.polynomial import ONE, ZERO, Monomial, Polynomial, as_polynomial, sum_polynomials, symbol
from lemma.counting.subject import format_sizes
from lemma.counting.writing import Style, write_formula
from lemma.errors import CountingError

if TYPE_CHECKING:
    from lemma.counting.measure import ModuleReader

MAX_PERIOD = 8
MAX_UNKNOWNS = 160  # coefficients of one fit
NUM_SPREAD_SIZES = 24  # values of a symbol between bends
NUM_EXTRA_SAMPLES = 12  # sizes at which a fit is proved
MAX_DERIVED_POWER, MAX_DERIVED_DEGREE = 2, 3  # of a derived size and the symbols it depends on


@dataclass(frozen=True)
class DerivedSize:
    """A size computed from symbols by rounding, by a minimum or maximum, or a dimension that only the module knows."""

    kind: Literal["floor", "ceil", "min", "max", "dimension"]  # ⌊x⌋ or ⌈x⌉ of one operand, the smaller or larger of two
    operands: tuple[Polynomial, ...] = ()  # of a dimension, the symbols that it depends on
    factor: int = 1
    dimension: str = ""  # the pattern of a parameter, and the index of its dimension

    @property
    def symbols(self) -> frozenset[str]:
        return frozenset(name for operand in self.operands for name in operand.symbols)

    @property
    def name(self) -> str:
        """Return the name that stands for this size in fitted formulas, such as "64*ceil(d/24)".

        Printed formulas use a letter.
        """
        return f"size of {self.dimension}" if self.kind == "dimension" else self.write()

    def at(self, sizes: Sizes) -> int:
        """Return the value of this size at `sizes`; a size of kind "dimension" has no rule."""
        values = [operand.at(sizes) for operand in self.operands]
        if self.kind in ("min", "max"):
            return self.factor * int(min(values) if self.kind == "min" else max(values))
        assert self.kind != "dimension", f"{self.name} has no rule"
        return self.factor * (floor(values[0]) if self.kind == "floor" else ceil(values[0]))

    def step_points(self, start: int) -> list[int]:
        """Return the first values of the symbol above `start` at which this rounded size increases."""
        (name,) = self.symbols
        end = start + int(4 / self.operands[0].terms[(name, 1),]) + 1
        return [value for value in range(start + 1, end) if self.at({name: value}) != self.at({name: value - 1})]

    def smooth_polynomial(self, sizes: Sizes) -> Polynomial:
        """Return this size as a polynomial: without rounding, or the operand that is selected at `sizes`."""
        if self.kind in ("floor", "ceil"):
            return self.factor * self.operands[0]
        return (min if self.kind == "min" else max)(self.operands, key=lambda operand: operand.at(sizes))

    def write(self, order: Sequence[str] = (), style: Style = "plain") -> str:
        """Write the rule as text; `order` is the order of symbols.

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
    """Return the fraction with the smallest denominator strictly between `low` and `high`, which are not negative.

    `high` = None stands for infinity.

    >>> simplest_between(Fraction(40, 1000), Fraction(43, 1000))
    Fraction(1, 24)
    """
    whole = floor(low)
    if high is None or whole + 1 < high:
        return Fraction(whole + 1)
    return whole + 1 / simplest_between(1 / (high - whole), 1 / (low - whole) if low > whole else None)


def fit_staircase(name: str, points: Mapping[int, int]) -> tuple[DerivedSize, Polynomial] | None:
    """Fit a size that rises in equal steps as a symbol grows; return None if it does not rise in equal steps.

    The sizes n at x are ⌊a·x + b⌋ exactly if n ≤ a·x + b < n + 1 at every x: a is the simplest slope that allows this.
    The result is the rounded rule and the polynomial that is added to it; `points` are sizes by value of the symbol.

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
    """Move whole multiples of the symbol out of the rounding into `rest`: floor(3·L/2) + L becomes floor(L/2) + 2·L.

    >>> half, rest = reduce_slope(DerivedSize("floor", (3 * symbol("L") / 2,)), symbol("L"))
    >>> half.write(), rest == 2 * symbol("L")
    ('floor(L/2)', True)
    """
    terms = size.operands[0].terms.items()
    whole = sum_polynomials(floor(number) * Polynomial({monomial: 1}) for monomial, number in terms if monomial)
    return replace(size, operands=(size.operands[0] - whole,)), rest + size.factor * whole


def find_bends(series: Mapping[int, int]) -> tuple[int, int]:
    """Return the last integer of the first of two parabolas that form a series, and the period of a rounded one, or 0.

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


ReadAmounts = Callable[[Sizes], Mapping[PathGroup, int]]  # the amounts of groups at some sizes
DerivedValue = Callable[[DerivedSize, Sizes], int]


def fit_with_derived(
    read: ReadAmounts, derived: Sequence[DerivedSize], probe_sizes: ProbeSizes, value_of: DerivedValue
) -> dict[PathGroup, Polynomial]:
    """Fit the amounts of groups as polynomials of symbols and derived sizes; groups that do not fit are left out.

    First fit with the symbols of the derived sizes held fixed, which shows how amounts depend on all other symbols.
    Then multiply every term by all small powers of the derived sizes and of their symbols; the coefficients follow from
    as many samples and are proved at further ones.
    """
    rng = random.Random(len(probe_sizes))
    symbols = frozenset[str]().union(*(size.symbols for size in derived))
    ranges = {**probe_sizes, **{name: spread_sizes(name, probe_sizes, derived) for name in symbols}}
    draws = ({name: rng.choice(values) for name, values in ranges.items()} for _ in range(6 * MAX_UNKNOWNS))
    terms = _find_terms(read, symbols, probe_sizes, draws)
    factors: list[Monomial] = [()]  # all products of small powers of derived sizes and of their symbols
    for size in derived:
        names = [*sorted(size.symbols), size.name]
        powers = product(range(MAX_DERIVED_POWER + 1), repeat=len(names))
        small = sorted((p for p in powers if sum(p) <= MAX_DERIVED_DEGREE), key=lambda p: (sum(p), max(p)))
        monomials = [tuple((name, n) for name, n in zip(names, power, strict=True) if n) for power in small]
        factors = [_multiply_monomials(factor, monomial) for factor in factors for monomial in monomials]
    bases = {
        group: list(dict.fromkeys(_multiply_monomials(term, factor) for factor in factors for term in monomials))
        for group, monomials in terms.items()
    }
    bases = {group: basis for group, basis in bases.items() if len(basis) <= MAX_UNKNOWNS}

    def samples_at(choices: Iterable[Sizes]) -> Iterator[tuple[Sizes, Mapping[PathGroup, int]]]:
        """Yield sizes, derived ones included, and the amounts there, as far as they can be read."""
        for sizes in choices:
            with suppress(CountingError):
                yield {**sizes, **{size.name: value_of(size, sizes) for size in derived}}, read(sizes)

    needed = max(map(len, bases.values()), default=0) + NUM_EXTRA_SAMPLES
    samples = list(islice(samples_at(draws), needed)) if bases else []
    fits: dict[PathGroup, Polynomial] = {}
    for group, basis in bases.items():
        if len(samples) >= len(basis) + NUM_EXTRA_SAMPLES:
            polynomial = _solve_coefficients(basis, [(sizes, amounts.get(group, 0)) for sizes, amounts in samples])
            if polynomial is not None:
                fits[group] = polynomial
    for sizes, amounts in samples_at(_sizes_at_breakpoints(derived, probe_sizes)) if fits else ():
        fits = {group: fit for group, fit in fits.items() if fit.at(sizes) == amounts.get(group, 0)}
    return fits


def spread_sizes(name: str, probe_sizes: ProbeSizes, derived: Iterable[DerivedSize]) -> list[int]:
    """Return values of the symbol `name` on both sides of the bends of derived sizes.

    They have the divisor that its probe sizes share. There are more of them than a wrong formula has coefficients to
    pass through all.
    """
    low, high, step = min(probe_sizes[name]), max(probe_sizes[name]), gcd(*probe_sizes[name])
    high = max(high, low + NUM_SPREAD_SIZES * step)
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
) -> dict[PathGroup, dict[Monomial, None]]:
    """Return for every group the monomials that occur when these symbols are fixed at sizes from `draws`.

    `read` returns the amounts of groups at given sizes. The values of the inner dictionary are None. Two fits are made,
    at the first sizes that work.
    """
    terms: dict[PathGroup, dict[Monomial, None]] = {}
    num_fits = 0
    for sizes in draws:
        try:
            fits, _ = fit_columns(
                lambda at: {(group, 0): amount for group, amount in read(at).items()},
                {**probe_sizes, **{name: [sizes[name]] for name in symbols}},
            )
        except CountingError:
            continue
        for (group, _), polynomial in fits.items():
            terms.setdefault(group, {}).update(dict.fromkeys(polynomial.terms))
        num_fits += 1
        if num_fits == 2 or not terms:
            break
    return terms


def _solve_coefficients(basis: Sequence[Monomial], samples: Sequence[tuple[Sizes, int]]) -> Polynomial | None:
    """Return a polynomial with monomials of `basis` that goes through all samples, else None.

    The system has more equations than unknowns; its free unknowns depend on the order of the monomials, so two orders
    are tried and the shorter polynomial is returned. A sample is sizes and the amount there.
    """
    points, numbers = [sizes for sizes, _ in samples], [number for _, number in samples]
    orders = (basis, sorted(basis, key=lambda monomial: -len(monomial)))
    solutions = [solve_coefficients(monomials, points, [numbers])[0] for monomials in orders]
    polynomials = [polynomial for polynomial in solutions if polynomial is not None]
    return min(polynomials, key=lambda polynomial: len(polynomial.terms), default=None)


def _sizes_at_breakpoints(derived: Sequence[DerivedSize], probe_sizes: ProbeSizes) -> Iterator[dict[str, int]]:
    """Yield sizes at which the operands of a minimum or maximum are equal, and the sizes one below and one above."""
    base = {name: values[-1] for name, values in probe_sizes.items()}
    for size in derived:
        if size.kind in ("min", "max"):
            (name, *_), bound = size.operands[0].symbols, size.operands[1]
            equal = int(bound.at(base))
            yield from ({**base, name: value} for value in (equal - 1, equal, equal + 1) if value > 0)


def _multiply_monomials(left: Monomial, right: Monomial) -> Monomial:
    """Return the product of two monomials."""
    ((monomial, _),) = (Polynomial({left: 1}) * Polynomial({right: 1})).terms.items()
    return monomial


# Dimensions of parameters, and amounts that bend along a symbol.

SERIES_LENGTH = 33  # sizes along one symbol at which bends are looked for: four periods of eight, and one more
LAYER_SERIES_LENGTH = 13  # layers take time: enough to see every second or third
NUM_RULE_POINTS, NUM_RULE_PROOFS = 48, 16  # sizes at which a dimension is read to find its rule, and to prove it
MAX_CANDIDATES, MAX_READINGS = 12, 400  # fits with derived sizes, alone and in pairs, and readings for them
MEMBERS = "members"  # stands for the number of tensors with a pattern, next to the indices of their dimensions

DimensionRule = tuple[DerivedSize, Polynomial]  # a derived size, and what is added to it


class DerivedSizeFinder:
    """Finds sizes of one subject's modules that no polynomial of the symbols gives, and fits formulas with them."""

    def __init__(self, reader: "ModuleReader") -> None:
        self.reader, self.subject = reader, reader.subject
        self._rules: dict[str, DimensionRule] | None = None
        self._dimension_fit = FitResult({}, {})

    def value(self, size: DerivedSize, sizes: Sizes) -> int:
        """Return the value of a derived size at `sizes`, read off the module's parameters if no rule gives it."""
        return self._read_dimension(size.dimension, sizes) if size.kind == "dimension" else size.at(sizes)

    def refit(
        self,
        fit: FitResult,
        missed: Iterable[PathGroup],
        read: Read,
        probe_sizes: ProbeSizes,
        pins: Sizes,
        reads_shapes: bool,
    ) -> FitResult:
        """Return `fit` with new formulas, with derived sizes, for the groups `missed`.

        `pins` are requested sizes that alone make the formulas fail, if known; shapes (`reads_shapes`) are fitted
        dimension by dimension. Groups that still have no formula are failures.
        """
        rules = self._dimension_rules()
        remaining = list(missed)
        fits = {group: group_fit for group, group_fit in fit.fits.items() if group not in remaining}
        derived = dict(fit.derived)

        def keep(group: PathGroup, group_fit: GroupFit, candidates: Iterable[DerivedSize]) -> None:
            fits[group] = group_fit
            remaining.remove(group)
            used = frozenset[str]().union(*(size.symbols for size in (group_fit.repeats, *group_fit.columns)))
            derived.update({size.name: size for size in candidates if size.name in used})

        if reads_shapes:  # parameters, dimension by dimension
            for group, group_fit in self._fit_shapes(fit, remaining, rules).items():
                keep(group, group_fit, [size for size, _ in rules.values()])
        cached: dict[tuple[int, ...], dict[PathGroup, int]] = {}

        def amounts(sizes: Sizes) -> dict[PathGroup, int]:
            key = tuple(sizes[name] for name in probe_sizes)
            if key not in cached:
                if len(cached) == MAX_READINGS:
                    raise CountingError("it was read often enough")
                rows = assign_to_groups(fit.groups, read(sizes))
                cached[key] = {group: total_size(same_group) for group, same_group in rows.items()}
            return {group: cached[key].get(group, 0) for group in remaining}

        def candidates() -> Iterator[tuple[DerivedSize, ...]]:
            requested = self.subject.sizes(any(name in self.subject.input_sizes for name in probe_sizes))
            bends = BendFinder(fit, list(missed), amounts, probe_sizes, requested).candidates(pins)
            varied = {name for name, values in probe_sizes.items() if len(values) > 1}
            tried: dict[DerivedSize, None] = {}
            for size in chain((size for size, _ in rules.values()), bends):
                if size not in tried and size.symbols <= varied:
                    tried[size] = None
                    yield (size,)
            yield from combinations(tried, 2)

        for sizes in islice(candidates() if remaining else (), MAX_CANDIDATES):
            if not remaining:
                break
            for group, polynomial in fit_with_derived(amounts, sizes, probe_sizes, self.value).items():
                keep(group, GroupFit(ONE, (polynomial,)), sizes)
        failures = {group: reason for group, reason in fit.failures.items() if group not in fits}
        for group in remaining:
            failures.setdefault(group, "no polynomial as far as the sizes asked for")
        return FitResult(fits, failures, derived, fit.domain)

    def _read_dimensions(self, sizes: Sizes) -> Readings:
        """Return each dimension of each parameter, and the number of parameters of each path pattern."""
        shapes = self.reader.shapes(sizes)
        dimensions = {f"{path} {index}": (size,) for path, shape in shapes.items() for index, size in enumerate(shape)}
        members = Counter(pattern for path in shapes for pattern in iter_patterns(path))
        return {**dimensions, **{_members_key(pattern): (number,) for pattern, number in members.items()}}

    def _read_dimension(self, key: str, sizes: Sizes) -> int:
        """Return the number that `key` names: "layers.*.weight 0" is the first dimension of these parameters.

        A key that ends in "members" is the number of parameters with a pattern.
        """
        pattern, _, index = key.rpartition(" ")
        group = PathGroup(pattern.replace("/", ".") if index == MEMBERS else pattern)
        shapes = [shape for path, shape in self.reader.shapes(sizes).items() if group.matches(path)]
        if index == MEMBERS:
            return len(shapes)
        if not shapes:
            raise CountingError(f"{pattern} does not exist at {format_sizes(sizes)}")
        return shapes[0][int(index)]

    def _dimension_rules(self) -> dict[str, DimensionRule]:
        """Return the rules of dimensions, and of numbers of parameters, that follow no polynomial.

        Keys are "pattern index" or "pattern members". Dimensions that are equal at all sizes that were read share a
        rule.
        """
        if self._rules is not None:
            return self._rules
        self._rules = {}
        requested = self.subject.sizes(False)
        try:
            probe_sizes = next(self.reader.probe_sizes(False))
            fit = self._dimension_fit = fit_groups(self._read_dimensions, [probe_sizes])
        except (CountingError, StopIteration):
            return self._rules
        samples = [requested, *sample_sizes(probe_sizes, 6)]
        by_readings: dict[tuple[int, ...], DimensionRule] = {}
        for group, rows in assign_to_groups(fit.groups, self._read_dimensions(requested)).items():
            group_fit = fit.fits.get(group)
            if group.subset or len(set(rows)) != 1 or (group_fit and (group_fit.columns[0].at(requested),) == rows[0]):
                continue
            with suppress(CountingError):
                readings = tuple(self._read_dimension(group.pattern, sizes) for sizes in samples)
                if readings not in by_readings:
                    by_readings[readings] = self._find_rule(group.pattern, probe_sizes)
                self._rules[group.pattern] = by_readings[readings]
        return self._rules

    def _find_rule(self, key: str, probe_sizes: ProbeSizes) -> DimensionRule:
        """Find the rule of the dimension `key`: rounded, minimum or maximum of two symbols, else read off the module.

        A CountingError is raised if no symbol changes the dimension when it alone varies.
        """
        requested = self.subject.sizes(False)
        fresh = [requested, *sample_sizes(probe_sizes, NUM_RULE_PROOFS)]
        lowest = {name: values[0] for name, values in probe_sizes.items()}
        read = partial(self._read_dimension, key)
        rng = random.Random(key)

        def read_along(name: str, others: Sizes, values: Iterable[int] = ()) -> dict[int, int]:
            if not values:
                step, start = gcd(*probe_sizes[name]), min(probe_sizes[name])
                reach = max(4 * requested[name], 2 * max(probe_sizes[name])) // step
                far = [step * rng.randint(1, reach) for _ in range(NUM_RULE_POINTS)]
                values = [*range(start, start + NUM_RULE_POINTS // 3), *far]
            points: dict[int, int] = {}
            for value in values:
                with suppress(CountingError):
                    points[value] = read({**others, name: value})
            return points

        def find_staircase(name: str, points: dict[int, int]) -> DimensionRule | None:
            rule = None
            for _ in range(3):  # again with readings at its steps, which show whether it is rounded up or down
                rule = fit_staircase(name, points)
                if rule is None:
                    return None
                size, rest = rule
                at_steps = {n for step in size.step_points(min(probe_sizes[name])) for n in (step - 1, step)}
                new_points = read_along(name, lowest, at_steps)
                if all(size.at({name: n}) + rest.at({}) == number for n, number in new_points.items()):
                    return rule
                points |= new_points
            return rule

        varied: list[str] = []
        for name in requested:
            points = read_along(name, lowest) if len(probe_sizes[name]) > 1 else {}
            if len(set(points.values())) < 2:
                continue
            varied.append(name)
            rule = find_staircase(name, points)
            if rule is None:
                continue
            size, rest = reduce_slope(*rule) if key.endswith(MEMBERS) else rule
            with suppress(CountingError, NotPolynomial):  # other symbols may be added to it
                remainder = fit_polynomials(lambda at, size=size: {"": read(at) - size.at(at)}, probe_sizes)
                rest = remainder.get("", ZERO)
                more = [{**requested, name: value} for value in read_along(name, requested)]
                if all(size.at(sizes) + rest.at(sizes) == read(sizes) for sizes in [*fresh, *more]):
                    return size, rest
        for (first, second), offset, kind in product(combinations(varied, 2), (0, -1, 1), ("min", "max")):
            size = DerivedSize(kind, (symbol(first), symbol(second) + offset))
            with suppress(CountingError):
                if all(size.at(sizes) == read(sizes) for sizes in fresh):
                    return size, ZERO
        if not varied:
            raise CountingError(f"{key} does not change with one size alone")
        return DerivedSize("dimension", tuple(map(symbol, varied)), dimension=key), ZERO

    def _fit_shapes(
        self, fit: FitResult, missed: Iterable[PathGroup], rules: Mapping[str, DimensionRule]
    ) -> dict[PathGroup, GroupFit]:
        """Fit parameters of `missed` groups as products of dimensions, if each has a formula or one of `rules`."""
        requested = self.subject.sizes(False)
        shapes = assign_to_groups(fit.groups, self.reader.shapes(requested))

        def dimension_formula(key: str, size: int) -> Polynomial | None:
            group_fit = self._dimension_fit.fits.get(PathGroup(key))
            if group_fit and group_fit.columns[0].at(requested) == size:
                return group_fit.columns[0]
            if key not in rules:
                return None
            derived, rest = rules[key]
            return symbol(derived.name) + rest

        fits: dict[PathGroup, GroupFit] = {}
        for group in missed:
            rows = shapes.get(group, [])
            if group.subset or len(set(rows)) != 1 or group not in fit.groups:
                continue
            columns = [dimension_formula(f"{group.pattern} {index}", size) for index, size in enumerate(rows[0])]
            repeats = dimension_formula(_members_key(group.pattern), len(rows))
            if repeats is not None and None not in columns:
                fits[group] = GroupFit(repeats, tuple(column for column in columns if column is not None))
        return fits


@dataclass(frozen=True)
class BendFinder:
    """Finds sizes that may explain where the amounts of groups bend along a symbol."""

    fit: FitResult
    missed: Sequence[PathGroup]
    amounts: ReadAmounts
    probe_sizes: ProbeSizes
    requested: Sizes

    def candidates(self, pins: Sizes) -> Iterator[DerivedSize]:
        """Yield derived sizes that may cause bends, symbol by symbol: minima, rounded sizes, then caps by a number.

        `pins` are requested sizes that alone make the formulas fail; other symbols are tried only if `pins` do not
        explain all.
        """
        base = {name: values[-1] for name, values in self.probe_sizes.items()}
        fails_together = any("together" in self.fit.failures.get(group, "") for group in self.missed)
        names = [*pins, *(name for name in self.probe_sizes if (fails_together or not pins) and name not in pins)]
        for name in names:
            if gcd(*self.probe_sizes[name]) > 1 or len(self.probe_sizes[name]) < 2:
                continue
            start, series = min(self.probe_sizes[name]), dict[int, Mapping[PathGroup, int]]()
            length = LAYER_SERIES_LENGTH if LAYER_NAMES.match(name) else SERIES_LENGTH
            with suppress(CountingError):
                for value in range(start, start + length):
                    series[value] = self.amounts({**base, name: value})
            for group in self.missed if len(series) > 4 else ():
                bend, period = find_bends({value: amounts.get(group, 0) for value, amounts in series.items()})
                if bend:
                    yield from self._find_minima(name, bend, base)
                if period:
                    x = symbol(name) / period
                    yield from (DerivedSize(kind, (x,)) for kind in ("ceil", "floor"))
                    shifts = [Fraction(shift, period) for shift in range(1, period - 1)]
                    yield from (DerivedSize("floor", (x + shift,)) for shift in shifts)
            yield from self._find_cap(name)

    def _find_minima(self, name: str, bend: int, base: Sizes) -> Iterator[DerivedSize]:
        """Yield minima of symbol `name` and each other symbol that moves the bend at value `bend`, else a number.

        `base` has the sizes of the other symbols.
        """

        def moves_bend(other: str) -> bool:
            if other == name or base[other] - 3 < min(self.probe_sizes[other]):
                return False
            smaller = {**base, other: base[other] - 3}
            with suppress(CountingError):
                a, b, c, d = (self.amounts({**smaller, name: bend + offset}) for offset in (1, 0, -1, -2))
                return not any(a[group] - 3 * b[group] + 3 * c[group] - d[group] for group in a)
            return False

        others = [other for other in self.probe_sizes if abs(bend - base[other]) <= 1 and moves_bend(other)]
        for other in others:
            offset = bend - base[other]
            if offset <= 0:
                yield DerivedSize("min", (symbol(name), symbol(other) + offset))
            else:
                yield DerivedSize("min", (symbol(other), symbol(name) - offset))
        if not others:
            yield DerivedSize("min", (symbol(name), as_polynomial(bend)))

    def _find_cap(self, name: str) -> Iterator[DerivedSize]:
        """Yield the minimum of symbol `name` and the largest value at which a formula holds, which bisection finds."""
        lowest = {other: values[0] for other, values in self.probe_sizes.items()}

        def holds_at(group: PathGroup, value: int) -> bool:
            sizes = {**lowest, name: value}
            return self.fit.evaluate(group, sizes) == self.amounts(sizes).get(group)

        for group in self.missed:
            group_fit = self.fit.fits.get(group)
            # the formula holds at the first, and not at the second
            low, high = max(self.probe_sizes[name]), self.requested[name]
            if not group_fit or high <= low or group not in self.amounts(lowest):
                continue  # another size has explained it already
            with suppress(CountingError):
                if holds_at(group, high):
                    continue  # the formula fails together with other sizes only
                while high - low > 1:
                    middle = (low + high) // 2
                    low, high = (middle, high) if holds_at(group, middle) else (low, middle)
                yield DerivedSize("min", (symbol(name), as_polynomial(low)))


REGULAR_SIZES = [48, 60, 72, 84]  # multiples of all small numbers that divide 12


def find_divisors(
    reader: "ModuleReader", letters: Collection[str], probe_sizes: Mapping[str, Sequence[int]]
) -> dict[str, str]:
    """Return those of the sizes `letters` that are divided by another one and rounded, with the size that divides.

    Widths that heads share are an example: dimensions h·⌊d/h⌋ follow a polynomial at multiples of h only.
    """
    symbols = {name: size for name, size in reader.subject.symbols.items() if not LAYER_NAMES.match(name)}
    lowest = {name: values[0] for name, values in probe_sizes.items()}
    divisors: dict[str, str] = {}

    def read(sizes: Sizes, name: str, size: int) -> Readings:
        return reader.shapes({**sizes, name: size})

    for whole, part in permutations(symbols, 2):
        if whole not in letters or not symbols[whole] > symbols[part] > 1 or symbols[whole] % symbols[part]:
            continue
        regular = probe_sizes[whole][:4] if gcd(*probe_sizes[whole]) % 12 == 0 else REGULAR_SIZES
        read_at_4, read_at_6 = (partial(read, {**lowest, part: divisor}, whole) for divisor in (4, 6))
        with suppress(CountingError):
            is_rounded = _is_irregular(read_at_4, regular, 2) and _is_irregular(read_at_6, regular, 4)
            if is_rounded and not _is_irregular(read_at_4, regular, 4) and not _is_irregular(read_at_6, regular, 6):
                divisors.setdefault(whole, part)
    return divisors


def _is_irregular(read: Callable[[int], Readings], regular: Sequence[int], offset: int) -> bool:
    """Return whether a dimension that is a quadratic polynomial at `regular` sizes is another one at an offset.

    So is a module that cannot be built there.
    """
    rows = [read(size) for size in regular]
    try:
        actual = read(regular[0] + offset)
    except CountingError:
        return True
    t = Fraction(offset, regular[1] - regular[0])
    for path, dimensions in actual.items():
        for index, dimension in enumerate(dimensions) if all(path in row for row in rows) else ():
            a, b, c, d = (row[path][index] for row in rows)
            is_quadratic = d - 3 * c + 3 * b - a == 0
            if is_quadratic and a + t * (b - a) + t * (t - 1) / 2 * (c - 2 * b + a) != dimension:
                return True
    return False


def _members_key(pattern: str) -> str:
    """Return the key of the number of tensors of a path pattern; "/" replaces "." so that digits count no layers."""
    return f"{pattern.replace('.', '/')} {MEMBERS}"
