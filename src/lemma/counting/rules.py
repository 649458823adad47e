"""Derived sizes of a module, found where formulas of the symbols alone fail (`DerivedSizeFinder`).

Two things give them away: a dimension of a parameter that follows no polynomial, and amounts that bend along a symbol.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import partial
from itertools import chain, combinations, islice, product
from math import gcd

from lemma.counting.derived import (
    DerivedSize,
    ReadAmounts,
    find_bends,
    fit_staircase,
    fit_with_derived,
    reduce_slope,
)
from lemma.counting.fit import (
    LAYER_NAMES,
    Amounts,
    FitResult,
    GroupFit,
    Join,
    NotPolynomial,
    PathGroup,
    ProbeSizes,
    Read,
    Readings,
    Sizes,
    assign_to_groups,
    fit_groups,
    fit_polynomials,
    iter_patterns,
    sample_sizes,
)
from lemma.counting.measure import ModuleReader, total_size
from lemma.counting.polynomial import ONE, ZERO, Polynomial, as_polynomial, symbol
from lemma.counting.subject import format_sizes
from lemma.errors import CountingError

SERIES_LENGTH = 33  # sizes along one symbol at which bends are looked for: four periods of eight, and one more
LAYER_SERIES_LENGTH = 13  # layers take time: enough to see every second or third
NUM_RULE_POINTS, NUM_RULE_PROOFS = 48, 16  # sizes at which a dimension is read to find its rule, and to prove it
MAX_CANDIDATES, MAX_READINGS = 12, 400  # fits with derived sizes, alone and in pairs, and readings for them
MEMBERS = "members"  # stands for the number of tensors with a pattern, next to the indices of their dimensions

DimensionRule = tuple[DerivedSize, Polynomial]  # a derived size, and what is added to it


class DerivedSizeFinder:
    """Finds sizes of one subject's modules that no polynomial of the symbols gives, and fits formulas with them."""

    def __init__(self, reader: ModuleReader) -> None:
        self.reader, self.subject = reader, reader.subject
        self._rules: dict[str, DimensionRule] | None = None
        self._dimension_fit: FitResult | None = None

    def value(self, size: DerivedSize, sizes: Sizes) -> int:
        """Return the value of a derived size; that of a dimension is read off the module."""
        return self._read_dimension(size.dimension, sizes) if size.kind == "dimension" else size.at(sizes)

    def refit(
        self,
        fit: FitResult,
        missed: Mapping[PathGroup, Amounts],
        read: Read,
        probe_sizes: ProbeSizes,
        join: Join,
        pins: Sizes,
    ) -> FitResult:
        """Fit the groups that were missed with derived sizes: odd dimensions, and what bends along one symbol.

        `pins` are the sizes asked for that lead away from the formulas, where these are known.
        """
        fits = {group: group_fit for group, group_fit in fit.fits.items() if group not in missed}
        derived: dict[str, DerivedSize] = {}
        rules = self._dimension_rules()
        remaining = list(missed)
        if join is total_size:  # parameters, dimension by dimension
            for group, group_fit in self._fit_shapes(fit, missed, rules).items():
                fits[group] = group_fit
                remaining.remove(group)
                used = {name for polynomial in (group_fit.repeats, *group_fit.columns) for name in polynomial.symbols}
                derived |= {size.name: size for size, _ in rules.values() if size.name in used}
        cached: dict[tuple[int, ...], dict[PathGroup, list[Amounts]]] = {}

        def amounts(sizes: Sizes) -> dict[PathGroup, Amounts]:
            key = tuple(sizes[name] for name in probe_sizes)
            if key not in cached:
                if len(cached) == MAX_READINGS:
                    raise CountingError("it was read often enough")
                cached[key] = assign_to_groups(fit.groups, read(sizes))
            return {group: tuple(join(cached[key][group])) if cached[key].get(group) else () for group in remaining}

        def candidates() -> Iterator[tuple[DerivedSize, ...]]:
            bends = self._find_bend_candidates(fit, missed, amounts, probe_sizes, pins)
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
            polynomials = fit_with_derived(amounts, sizes, probe_sizes, self.value)
            for group in list(remaining):
                keys = [(group, index) for index in range(len(missed[group]))]
                if all(key in polynomials for key in keys):
                    columns = [polynomials[key] for key in keys]
                    fits[group] = GroupFit(ONE, tuple(columns))
                    remaining.remove(group)
                    used = {name for column in columns for name in column.symbols}
                    derived |= {size.name: size for size in sizes if size.name in used}
        failures = {group: reason for group, reason in fit.failures.items() if group not in fits}
        for group in remaining:
            failures.setdefault(group, "no polynomial as far as the sizes asked for")
        return FitResult(fits, failures, derived)

    # Dimensions of parameters that follow no polynomial.

    def _read_dimensions(self, sizes: Sizes) -> Readings:
        """Read every dimension of every parameter, and the number of parameters of each pattern."""
        shapes = self.reader.shapes(sizes)
        dimensions = {f"{path} {index}": (size,) for path, shape in shapes.items() for index, size in enumerate(shape)}
        members = Counter(pattern for path in shapes for pattern in iter_patterns(path))
        return {**dimensions, **{_members_key(pattern): (number,) for pattern, number in members.items()}}

    def _read_dimension(self, key: str, sizes: Sizes) -> int:
        """Read a dimension of the parameters of a pattern, or their number."""
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

        Those that are equal wherever they were read share a rule.
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
        """Find what a dimension is: rounded, or the smaller or the larger of two symbols; else only the module knows.

        Raises:
            CountingError: the dimension changes with no size alone.
        """
        requested = self.subject.sizes(False)
        fresh = [requested, *sample_sizes(probe_sizes, NUM_RULE_PROOFS)]
        lowest = {name: values[0] for name, values in probe_sizes.items()}
        read = partial(self._read_dimension, key)
        rng = random.Random(key)

        def read_along(name: str, others: Sizes, values: Iterable[int] | None = None) -> dict[int, int]:
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
            if len(probe_sizes[name]) < 2:
                continue
            points = read_along(name, lowest)
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
        for (first, second), offset in product(combinations(varied, 2), (0, -1, 1)):
            for kind in ("min", "max"):
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
        """Fit parameters as products of their dimensions, where each has a formula or a rule."""
        requested = self.subject.sizes(False)
        shapes = assign_to_groups(fit.groups, self.reader.shapes(requested))

        def dimension_formula(key: str, size: int) -> Polynomial | None:
            group_fit = self._dimension_fit.fits.get(PathGroup(key)) if self._dimension_fit else None
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

    # Amounts that bend along a symbol.

    def _find_bend_candidates(
        self,
        fit: FitResult,
        missed: Mapping[PathGroup, Amounts],
        amounts: ReadAmounts,
        probe_sizes: ProbeSizes,
        pins: Sizes,
    ) -> Iterator[DerivedSize]:
        """Yield sizes that may explain where amounts bend, along one symbol after the other."""
        base = {name: values[-1] for name, values in probe_sizes.items()}
        fails_together = any("together" in fit.failures.get(group, "") for group in missed)
        names = [*pins, *(name for name in probe_sizes if (fails_together or not pins) and name not in pins)]
        for name in names:
            if gcd(*probe_sizes[name]) > 1 or len(probe_sizes[name]) < 2:
                continue
            start, series = min(probe_sizes[name]), dict[int, Mapping[PathGroup, Sequence[int]]]()
            length = LAYER_SERIES_LENGTH if LAYER_NAMES.match(name) else SERIES_LENGTH
            with suppress(CountingError):
                for value in range(start, start + length):
                    series[value] = amounts({**base, name: value})
            for group, row in missed.items():
                for column in range(len(row)):
                    line = {value: (rows.get(group) or [0] * len(row))[column] for value, rows in series.items()}
                    bend, period = find_bends(line) if len(line) > 4 else (0, 0)
                    if bend:
                        yield from self._find_minima(name, bend, base, missed, amounts, probe_sizes)
                    if period:
                        x = symbol(name) / period
                        yield from (DerivedSize(kind, (x,)) for kind in ("ceil", "floor"))
                        shifts = [Fraction(shift, period) for shift in range(1, period - 1)]
                        yield from (DerivedSize("floor", (x + shift,)) for shift in shifts)
            yield from self._find_cap(name, fit, missed, amounts, probe_sizes)

    def _find_minima(
        self,
        name: str,
        bend: int,
        base: Sizes,
        missed: Mapping[PathGroup, Amounts],
        amounts: ReadAmounts,
        probe_sizes: ProbeSizes,
    ) -> Iterator[DerivedSize]:
        """Yield minima that bend there: of the symbol and each other one that moves the bend, else a number."""

        def moves_bend(other: str) -> bool:
            if other == name or base[other] - 3 < min(probe_sizes[other]):
                return False
            with suppress(CountingError):
                smaller = {**base, other: base[other] - 3}
                rows = [amounts({**smaller, name: bend + offset}) for offset in (1, 0, -1, -2)]
                return not any(
                    a - 3 * b + 3 * c - d
                    for group in missed
                    for a, b, c, d in zip(*(row.get(group, ()) for row in rows), strict=False)
                )
            return False

        others = [other for other in probe_sizes if abs(bend - base[other]) <= 1 and moves_bend(other)]
        for other in others:
            offset = bend - base[other]
            if offset <= 0:
                yield DerivedSize("min", (symbol(name), symbol(other) + offset))
            else:
                yield DerivedSize("min", (symbol(other), symbol(name) - offset))
        if not others:
            yield DerivedSize("min", (symbol(name), as_polynomial(bend)))

    def _find_cap(
        self,
        name: str,
        fit: FitResult,
        missed: Mapping[PathGroup, Amounts],
        amounts: ReadAmounts,
        probe_sizes: ProbeSizes,
    ) -> Iterator[DerivedSize]:
        """Yield the minima of the symbol and the largest value up to which a formula holds, found by bisection."""
        lowest = {other: values[0] for other, values in probe_sizes.items()}
        requested = self.subject.sizes(any(other in self.subject.input_sizes for other in probe_sizes))
        for group in missed:
            group_fit = fit.fits.get(group)
            low, high = max(probe_sizes[name]), requested[name]  # the formula holds at the first, and not at the second
            if not group_fit or high <= low or group not in amounts(lowest):
                continue  # another size has explained it already
            with suppress(CountingError):
                while high - low > 1:
                    middle = (low + high) // 2
                    sizes = {**lowest, name: middle}
                    expected = [(group_fit.repeats * column).at(sizes) for column in group_fit.columns]
                    if expected == list(amounts(sizes).get(group, ())):
                        low = middle
                    else:
                        high = middle
                yield DerivedSize("min", (symbol(name), as_polynomial(low)))


def _members_key(pattern: str) -> str:
    """Return the key of the number of tensors of a pattern; with no dots, so that its numbers count no layers."""
    return f"{pattern.replace('.', '/')} {MEMBERS}"
