"""Formulas read off a module: read it at small sizes, fit exact polynomials, prove them at sizes not seen before.

No formula is typed in anywhere. `fit_groups` is the whole method: choose sizes (`choose_probe_sizes`), group the paths
of repeated layers (`find_groupings`), interpolate (`fit_polynomials`), compare with fresh readings (`verify_fit`).
"""

import random
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain, combinations, islice, permutations, product
from math import lcm, prod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lemma.counting.linear import IndependentRows, evaluate_monomial, solve_coefficients
from lemma.counting.polynomial import ONE, ZERO, Monomial, Polynomial, symbol
from lemma.errors import CountingError

if TYPE_CHECKING:
    from lemma.counting.derived import DerivedSize
    from lemma.counting.layer_kinds import LayerKinds

Sizes = Mapping[str, int]  # the value of each symbol
ProbeSizes = dict[str, list[int]]  # the values at which each symbol is probed, the smallest first
Amounts = tuple[int, ...]
Readings = Mapping[str, Amounts]  # by path of a module: the shape of a parameter, or one or more amounts
Read = Callable[[Sizes], Readings]

NUM_PROOFS = 3  # fresh sizes at which a fit is compared with the module
NUM_PROOF_CANDIDATES = 60  # sizes drawn to find fresh ones among them
MAX_PROBE_CHOICES = 3  # of probe sizes at which a module works and yet cannot be read
SUM_ONLY = "…"  # the subset of a group of which only the sum is known


@dataclass(frozen=True)
class Domain:
    """The sizes at which formulas hold: all, unless it says otherwise."""

    only_at: Sizes = field(default_factory=dict)  # sizes that have one value only, such as a batch of one
    multiples: Sizes = field(default_factory=dict)  # numbers that sizes must be multiples of
    at_least: Sizes = field(default_factory=dict)  # the smallest values of sizes
    at_most: Sizes = field(default_factory=dict)  # the largest values of sizes
    ordered: Mapping[str, str] = field(default_factory=dict)  # sizes that are at most another one
    divided: Mapping[str, str] = field(default_factory=dict)  # sizes that are multiples of another one

    def contains(self, sizes: Sizes) -> bool:
        """Return whether formulas hold at `sizes`."""
        is_elsewhere = any(sizes.get(name) != size for name, size in self.only_at.items())
        is_below = any(sizes.get(name, size) < size for name, size in self.at_least.items())
        is_above = any(sizes.get(name, size) > size for name, size in self.at_most.items())
        is_between = any(sizes.get(name, 0) % step for name, step in self.multiples.items())
        is_disordered = any(sizes.get(low, 0) > sizes.get(high, 0) for low, high in self.ordered.items())
        is_cut = any(sizes.get(whole, 0) % sizes.get(part, 1) for whole, part in self.divided.items())
        return not (is_elsewhere or is_below or is_above or is_between or is_disordered or is_cut)

    def intersect(self, other: "Domain") -> "Domain":
        """Return the sizes that are in both domains."""

        def merge(a: Sizes, b: Sizes, choose: Callable[[int, int], int]) -> dict[str, int]:
            return {**a, **b, **{name: choose(a[name], b[name]) for name in a if name in b}}

        return Domain(
            {**self.only_at, **other.only_at},
            merge(self.multiples, other.multiples, lcm),
            merge(self.at_least, other.at_least, max),
            merge(self.at_most, other.at_most, min),
            {**self.ordered, **other.ordered},
            {**self.divided, **other.divided},
        )

    def restrict(self, probe_sizes: ProbeSizes) -> ProbeSizes:
        """Return probe sizes at which formulas of this domain hold: multiples, and a single value for fixed sizes."""
        stepped = {name: [step * size for size in probe_sizes[name]] for name, step in self.multiples.items()}
        for whole, part in self.divided.items():
            if any(size % divisor for size in probe_sizes[whole] for divisor in probe_sizes[part]):
                stepped |= {whole: _multiples(24), part: list(DIVISORS)}
        return {**probe_sizes, **stepped, **{name: [size] for name, size in self.only_at.items()}}


@dataclass(frozen=True, order=True)
class PathGroup:
    """The paths of a pattern such as `layers.*.weight` that are counted together.

    `layers.0.output.weight`, `layers.1.output.weight` … are one group as long as they read the same. Where a path has
    several numbers, some may mean different things (`blocks.*.0.weight`, `blocks.*.3.weight`). If only the first or the
    last layer differs, it is a group of its own; if nothing of the kind holds, only the sum of all is known.

    """

    pattern: str  # the path with a star for the number of a layer
    subset: str = ""  # which members belong to it: "0", "1…", "-1", "…-2" or `SUM_ONLY`; "" for all

    def __str__(self) -> str:
        if not self.subset:
            return self.pattern
        stars = iter(self.subset.split(","))
        return re.sub(r"\*", lambda star: next(stars, "*"), self.pattern)

    @property
    def excludes_one(self) -> bool:
        """Return whether all but the first or the last member belong to the group."""
        return self.subset in ("1…", "…-2")

    def matches(self, path: str) -> bool:
        """Return whether a path follows the pattern of this group, regardless of its subset."""
        return re.fullmatch(re.escape(self.pattern).replace(r"\*", r"\d+"), path) is not None

    def contains(self, path: str, index: int, count: int) -> bool:
        """Return whether a path belongs to the group; `index` is its position among the `count` paths of its pattern.

        >>> PathGroup("layers.*.weight_l0").contains("layers.12.weight_l0", 12, 24)
        True
        >>> PathGroup("layers.*.weight", "1…").contains("layers.0.weight", 0, 24)
        False
        """
        is_last = index == count - 1
        in_subset = {"0": index == 0, "1…": index > 0, "-1": is_last, "…-2": not is_last}.get(self.subset, True)
        return in_subset and self.matches(path)


@dataclass(frozen=True)
class GroupFit:
    """Polynomials for what one member of a group reads, and for the number of members."""

    repeats: Polynomial
    columns: tuple[Polynomial, ...]

    @property
    def total(self) -> Polynomial:
        """Return the formula of the sum over all paths of the group: their number times the product of the columns.

        A single column is an amount; several are the dimensions of a tensor.
        """
        return self.repeats * prod(self.columns, start=ONE)


@dataclass(frozen=True)
class FitResult:
    """Formulas of all groups of a module."""

    fits: dict[PathGroup, GroupFit]  # the groups that follow polynomials
    failures: dict[PathGroup, str]  # the groups that follow none, with the reason
    derived: "dict[str, DerivedSize]" = field(default_factory=dict)  # sizes that are no symbols, by name
    domain: Domain = field(default_factory=Domain)  # of the numbers of layers

    @property
    def groups(self) -> list[PathGroup]:
        """Return all groups of paths: those with a formula, then those without."""
        return [*self.fits, *self.failures]

    def evaluate(self, group: PathGroup, sizes: Sizes) -> Fraction:
        """Return the amount of a group that has a formula; its derived sizes need a rule."""
        derived = {name: size.at(sizes) for name, size in self.derived.items() if size.kind != "dimension"}
        return self.fits[group].total.at({**sizes, **derived})


Column = tuple[PathGroup, int]  # a group and the index of a column of its reading; -1 is the number of members
REPEATS = -1


def total_size(rows: Iterable[Amounts]) -> int:
    """Add up the products of the rows: a row is one amount, or the shape of a tensor."""
    return sum(prod(row) for row in rows)


def fit_groups(read: Read, choices: Iterable[ProbeSizes], kinds: "LayerKinds | None" = None) -> FitResult:
    """Fit polynomials of the symbols to the readings of a module, a formula for all paths such as `layers.*.weight`.

    The first of `choices` that work are used as probe sizes. The number of layers of one of `kinds` is not fitted.

    Raises:
        CountingError: nothing can be read at any of the sizes.
    """
    cached: dict[tuple[int, ...], Readings] = {}

    def read_once(sizes: Sizes) -> Readings:
        key = tuple(sizes.values())
        if key not in cached:
            cached[key] = read(sizes)
        return cached[key]

    failure = CountingError("it works at no small sizes that were tried; state some as factory.probe_sizes")
    for probe_sizes in islice(choices, MAX_PROBE_CHOICES):
        try:
            return _fit_groups_at(read_once, probe_sizes, kinds)
        except CountingError as error:
            failure = error
    raise failure


def _fit_groups_at(read: Read, probe_sizes: ProbeSizes, kinds: "LayerKinds | None") -> FitResult:
    """Fit and prove the formulas of all groups of what `read` returns, at these probe sizes.

    A pattern whose members differ is grouped in the next possible way.
    """
    lowest = {name: values[0] for name, values in probe_sizes.items()}
    first = [lowest, *({**lowest, name: values[1]} for name, values in probe_sizes.items() if len(values) > 1)]
    groupings = find_groupings([read(sizes) for sizes in first])

    def sample(sizes: Sizes) -> dict[Column, int]:
        columns: dict[Column, int] = {}
        for pattern, members in _members_by_pattern(read(sizes)).items():
            groups = _group_members(pattern, members, groupings[pattern][0] if pattern in groupings else "each")
            if groups is None:
                raise GroupingError(pattern)
            for group, (count, row) in groups.items():
                columns[group, REPEATS] = count if kinds is None else kinds.per_layer(group, count, sizes)
                columns |= {(group, index): amount for index, amount in enumerate(row)}
        return columns

    while True:
        try:
            fitted, failures = fit_columns(sample, probe_sizes)
            break
        except GroupingError as error:  # a pattern that appears only at some sizes gets its sum
            (pattern,) = error.args
            groupings[pattern] = groupings.get(pattern, [])[1:] or ["sum"]
    by_group: dict[PathGroup, dict[int, Polynomial]] = {}
    for (group, index), polynomial in fitted.items():
        by_group.setdefault(group, {})[index] = polynomial
    fits: dict[PathGroup, GroupFit] = {}
    for group, columns in by_group.items():
        repeats = columns.pop(REPEATS, ONE)
        repeats = repeats if kinds is None else kinds.of_all_layers(group, repeats)
        fits[group] = GroupFit(repeats, tuple(columns[index] for index in sorted(columns)))
    if kinds is None:
        return FitResult(fits, failures)
    used = frozenset[str]().union(*(fit.repeats.symbols for fit in fits.values()))
    return FitResult(
        fits, failures, {name: kinds.derived[name] for name in kinds.derived if name in used}, kinds.domain
    )


def fit_columns(
    sample: Callable[[Sizes], Mapping[Column, int]], probe_sizes: ProbeSizes
) -> tuple[dict[Column, Polynomial], dict[PathGroup, str]]:
    """Fit and prove every column that `sample` returns; return polynomials, and groups without any with the reason.

    A column that fails in a symbol is multiplied by it and tried again, since the symbol may divide it.
    """
    multipliers: dict[Column, list[str]] = {}
    failures: dict[PathGroup, str] = {}
    candidates = {tuple(sizes.values()): sizes for sizes in sample_sizes(probe_sizes, NUM_PROOF_CANDIDATES)}
    seen: set[tuple[int, ...]] = set()

    def multiplied_sample(sizes: Sizes) -> dict[Column, int]:
        seen.add(tuple(sizes.values()))
        columns = dict(sample(sizes))
        for column, names in multipliers.items():
            columns[column] = columns.get(column, 0) * prod(sizes[name] for name in names)
        return {column: number for column, number in columns.items() if column[0] not in failures}

    while True:
        try:
            seen.clear()
            polynomials = fit_polynomials(multiplied_sample, probe_sizes)
            fresh = [sizes for key, sizes in candidates.items() if key not in seen][:NUM_PROOFS]
            verify_fit(polynomials, multiplied_sample, fresh, probe_sizes)
            break
        except NotPolynomial as error:
            group, _ = error.key
            names = multipliers.setdefault(error.key, [])
            if error.symbol and error.symbol not in names:
                names.append(error.symbol)
                continue
            failures[group] = error.reason
            multipliers = {column: names for column, names in multipliers.items() if column[0] != group}
    divided = {
        column: polynomial / prod(map(symbol, multipliers.get(column, [])), start=ONE)
        for column, polynomial in polynomials.items()
    }
    return divided, failures


# Grouping the paths of repeated layers.

LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)|(?<=_l)\d+(?=_|\.|$)")
Grouping = str | tuple[int, ...]  # all, each, first, last, sum; or the indices of the numbers that count layers
Member = tuple[str, Amounts]


class GroupingError(Exception):
    """The members of a pattern, its argument, do not follow the grouping chosen for it."""


def path_pattern(path: str) -> str:
    """Replace the layer numbers in a module path by stars.

    >>> path_pattern("layers.3.output.weight"), path_pattern("weight_ih_l1_reverse"), path_pattern("weight_hh_l0.A")
    ('layers.*.output.weight', 'weight_ih_l*_reverse', 'weight_hh_l*.A')
    """
    return LAYER_NUMBER.sub("*", path)


def iter_patterns(path: str) -> Iterator[str]:
    """Yield all patterns of a path: each way to replace at least one of its numbers by a star.

    >>> list(iter_patterns("blocks.3.0.weight"))
    ['blocks.*.0.weight', 'blocks.3.*.weight', 'blocks.*.*.weight']
    """
    count = len(LAYER_NUMBER.findall(path))
    for size in range(1, count + 1):
        for starred in combinations(range(count), size):
            yield _star_numbers(path, starred)


def _star_numbers(path: str, starred: Sequence[int]) -> str:
    """Replace the numbers of a path whose indices are in `starred` by stars."""
    numbers = LAYER_NUMBER.findall(path)
    written = iter("*" if index in starred else str(int(number)) for index, number in enumerate(numbers))
    return LAYER_NUMBER.sub(lambda match: next(written), path)


def _members_by_pattern(readings: Readings) -> dict[str, list[Member]]:
    """Return (path, reading) pairs by path pattern such as `layers.*.weight`, ordered by the numbers in the paths."""
    members: dict[str, list[Member]] = {}
    for path, row in readings.items():
        members.setdefault(path_pattern(path), []).append((path, row))
    for same_pattern in members.values():
        same_pattern.sort(key=lambda member: [int(number) for number in LAYER_NUMBER.findall(member[0])])
    return members


def assign_to_groups(groups: Iterable[PathGroup], readings: Readings) -> dict[PathGroup, list[Amounts]]:
    """Return the readings of the paths in each group; a path that is in no group becomes a group itself."""
    rows: dict[PathGroup, list[Amounts]] = {group: [] for group in groups}
    for members in _members_by_pattern(readings).values():
        for index, (path, row) in enumerate(members):
            owner = next((group for group in rows if group.contains(path, index, len(members))), PathGroup(path))
            rows.setdefault(owner, []).append(row)
    return rows


def find_groupings(samples: Sequence[Readings]) -> dict[str, list[Grouping]]:
    """Return by path pattern, such as `layers.*.weight`, the ways to group its paths that fit all samples.

    In a way that fits, members of a group have equal readings. The most detailed way comes first and "sum" last.
    """
    samples_by_pattern = [_members_by_pattern(sample) for sample in samples]
    groupings: dict[str, list[Grouping]] = {}
    for pattern in dict.fromkeys(pattern for members in samples_by_pattern for pattern in members):
        members = [by_pattern.get(pattern, []) for by_pattern in samples_by_pattern]
        same_paths = len({tuple(path for path, _ in sample) for sample in members}) == 1
        stars = pattern.count("*")
        partial = [starred for size in range(stars - 1, 0, -1) for starred in combinations(range(stars), size)]
        groupings[pattern] = []
        for grouping in ("all", *partial, *(["each"] if same_paths else ["first", "last"])):
            groups = [_group_members(pattern, sample, grouping) for sample in members]
            if None not in groups and len({frozenset(group or ()) for group in groups}) == 1:
                groupings[pattern].append(grouping)
        groupings[pattern].append("sum")
    return groupings


def _group_members(
    pattern: str, members: list[Member], grouping: Grouping
) -> dict[PathGroup, tuple[int, Amounts]] | None:
    """Group the members of a pattern; return for every group the number of members and their common reading.

    Returns None if members of a group have different readings.
    """
    if grouping == "each":
        return {PathGroup(path): (1, row) for path, row in members}
    if grouping == "sum":
        return {PathGroup(pattern, SUM_ONLY): (1, (total_size(row for _, row in members),))}
    rows: dict[PathGroup, list[Amounts]] = {}
    for index, (path, row) in enumerate(members):
        if isinstance(grouping, tuple):
            group = PathGroup(_star_numbers(path, grouping))
        elif grouping == "first":
            group = PathGroup(pattern, "1…" if index else "0")
        elif grouping == "last":
            group = PathGroup(pattern, "-1" if index == len(members) - 1 else "…-2")
        else:
            group = PathGroup(pattern)
        rows.setdefault(group, []).append(row)
    if any(len(set(same_group)) > 1 for same_group in rows.values()):
        return None
    return {group: (len(same_group), same_group[0]) for group, same_group in rows.items()}


# Interpolation.

Key = TypeVar("Key", bound=Hashable)
Sample = Callable[[Sizes], Mapping[Key, int]]
Powers = dict[str, tuple[int, int]]  # the lowest and the highest power of each symbol of a quantity
MAX_POWER = 5  # the highest power of a symbol that is tried, if it has enough probe sizes
MAX_MONOMIALS = 160  # of one quantity
MAX_UNTESTED = 24  # number of monomials up to which it is not tested which powers occur together
NUM_DRAWS = 300  # random sizes among which those are chosen that determine all coefficients
NUM_CONTRADICTIONS = 4  # of these draws are always taken
NUM_SMALLEST = 4  # probe sizes of each symbol from which these are drawn at first; of a number of layers two


class NotPolynomial(Exception):
    """A quantity follows no polynomial; `symbol` is the one in which the fit failed, "" if several."""

    def __init__(self, key: Any, symbol: str, reason: str) -> None:
        super().__init__(reason)
        self.key, self.symbol, self.reason = key, symbol, reason


def fit_polynomials(sample: Sample[Key], probe_sizes: Mapping[str, Sequence[int]]) -> dict[Key, Polynomial]:
    """Fit a polynomial to every quantity that `sample` returns at given sizes.

    Along each symbol, with the others at their lowest sizes, divided differences show which powers occur. The products
    of these powers are the monomials that a quantity may have; a power that all of them share is no unknown. Their
    coefficients solve linear equations, and all quantities share the samples. The result is a conjecture until
    `verify_fit` has compared it with samples that were not used.

    Raises:
        NotPolynomial: a quantity follows no polynomial.

    >>> area = fit_polynomials(lambda at: {"area": at["a"] * (at["b"] - 1)}, {"a": [2, 3, 4, 5], "b": [2, 3, 4, 5]})
    >>> area["area"] == symbol("a") * (symbol("b") - 1)
    True
    """
    table = SampleTable(sample, probe_sizes)
    powers = table.find_powers()
    fits = table.solve({key: table.list_monomials(key, ranges) for key, ranges in powers.items()})
    failing = [key for key, polynomial in fits.items() if polynomial is None]
    if failing:  # where the other sizes are lowest, a factor may vanish, or all terms may share a power by chance
        ranges = table.widen_powers(powers, failing)
        fits |= table.solve({key: multiply_powers(ranges[key]) for key in failing})
    for key, polynomial in fits.items():
        if polynomial is None:
            names = ", ".join(probe_sizes)
            raise NotPolynomial(key, "", f"no polynomial of {names}: each alone fits, but not all together")
    return {key: polynomial for key, polynomial in fits.items() if polynomial is not None}


class SampleTable(Generic[Key]):
    """Samples of many quantities at several sizes, and polynomials through them."""

    def __init__(self, sample: Sample[Key], probe_sizes: Mapping[str, Sequence[int]]) -> None:
        self.sample, self.probe_sizes = sample, probe_sizes
        self.lowest = {name: nodes[0] for name, nodes in probe_sizes.items()}
        self.samples: dict[tuple[int, ...], Mapping[Key, int]] = {}  # by the sizes, in the order of the symbols

    def take(self, changes: Sizes) -> Mapping[Key, int]:
        """Return the sample at the lowest sizes with `changes`."""
        sizes = {**self.lowest, **changes}
        key = tuple(sizes.values())
        if key not in self.samples:
            self.samples[key] = self.sample(sizes)
        return self.samples[key]

    def find_powers(self) -> dict[Key, Powers]:
        """Return for each quantity the powers of each symbol along which it changes, the others at their lowest sizes.

        Each symbol is sampled at two sizes more than its highest power.

        Raises:
            NotPolynomial: a symbol has too few probe sizes for its power.
        """
        powers: dict[Key, Powers] = {key: {} for key in self.take({})}
        for name, nodes in self.probe_sizes.items():
            differences: dict[Key, list[int | Fraction]] = {}  # the coefficients of Newton's form
            for index, node in enumerate(nodes):
                numbers, is_changing = self.take({name: node}), not index
                for key in dict.fromkeys([*differences, *numbers]):  # in the order of the module
                    terms = differences.setdefault(key, [0] * index)
                    value: int | Fraction = numbers.get(key, 0)
                    for earlier, term in zip(nodes, terms, strict=False):
                        difference = value - term
                        value = Fraction(difference, node - earlier) if difference else 0
                    terms.append(value)
                    if value and index > max(0, min(MAX_POWER, len(nodes) - 2)):
                        reason = f"no polynomial of {name}: it still changes at the power {index}"
                        raise NotPolynomial(key, name, reason)
                    is_changing |= bool(value)
                if not is_changing:
                    break
            for key, terms in differences.items():
                exponents = [power for power, number in enumerate(expand_newton(terms, nodes)) if number]
                powers.setdefault(key, {})
                if exponents and exponents[-1]:
                    powers[key][name] = exponents[0], exponents[-1]
        return powers

    def widen_powers(self, powers: Mapping[Key, Powers], keys: Sequence[Key]) -> dict[Key, Powers]:
        """Return the powers of some quantities from 0 up, with symbols along which they change at larger sizes only.

        Such a symbol is multiplied by what vanishes at the lowest sizes, as d is in (h − 1)·d at h = 1.
        """
        larger = {name: nodes[min(1, len(nodes) - 1)] for name, nodes in self.probe_sizes.items()}
        widened = {key: {name: (0, high) for name, (_, high) in powers[key].items()} for key in keys}
        for name, nodes in self.probe_sizes.items():
            unchanged = [key for key in keys if name not in powers[key]]
            if unchanged and len(nodes) > 1:
                before, after = self.take(larger), self.take({**larger, name: nodes[0]})
                for key in unchanged:
                    if before.get(key) != after.get(key):
                        widened[key][name] = 0, 1
        return widened

    def list_monomials(self, key: Key, powers: Powers) -> list[Monomial]:
        """Return the monomials that a quantity may have: products of its powers.

        Where these are many, only those of which each pair of powers occurs together.
        """
        number = prod(high - low + 1 for low, high in powers.values())
        if number <= MAX_UNTESTED:
            return multiply_powers(powers)
        exponents: list[dict[str, int]] = [{}]
        for name, (low, high) in powers.items():
            pairs = {other: self._find_pairs(key, powers, other, name) for other in exponents[0]}
            exponents = [
                {**earlier, name: power}
                for earlier in exponents
                for power in range(low, high + 1)
                if all((earlier[other], power) in pair for other, pair in pairs.items())
            ]
            if not 0 < len(exponents) <= 20 * MAX_MONOMIALS:
                return []
        return [tuple(sorted((name, power) for name, power in row.items() if power)) for row in exponents]

    def _find_pairs(self, key: Key, powers: Powers, first: str, second: str) -> Collection[tuple[int, int]]:
        """Return which powers of two symbols occur together in a quantity, the other sizes being the lowest."""
        (low, high), (lowest, highest) = powers[first], powers[second]
        pairs = [*product(range(low, high + 1), range(lowest, highest + 1))]
        if low == high or lowest == highest:
            return pairs
        basis: list[Monomial] = [((first, power), (second, other)) for power, other in pairs]
        grid = product(self.probe_sizes[first][: high - low + 1], self.probe_sizes[second][: highest - lowest + 1])
        points = [{first: size, second: other} for size, other in grid]
        (polynomial,) = solve_coefficients(basis, points, [[self.take(point).get(key, 0) for point in points]])
        terms = [] if polynomial is None else [tuple(dict(monomial).values()) for monomial in polynomial.terms]
        return [(power, other) for power, other in terms] or pairs

    def solve(self, monomials: Mapping[Key, Sequence[Monomial]]) -> dict[Key, Polynomial | None]:
        """Return a polynomial with these monomials through all samples for each quantity, None where there is none.

        Samples are taken at random probe sizes until they determine all coefficients; the first few are always taken,
        so that coefficients of wrong monomials contradict them.
        """
        keys: dict[tuple[Monomial, ...], list[Key]] = {}
        for key, candidates in monomials.items():
            if 0 < len(candidates) <= MAX_MONOMIALS:
                keys.setdefault(tuple(candidates), []).append(key)
        rows = {basis: IndependentRows(len(basis)) for basis in keys}
        draws = self._draw_sizes()
        for sizes in islice(draws, NUM_CONTRADICTIONS):
            self.take(sizes)
        for sizes in chain(self._list_sizes(), draws):
            incomplete = [basis for basis in keys if not rows[basis].is_complete]
            if not incomplete:
                break
            helped = [
                basis
                for basis in incomplete
                if rows[basis].add([evaluate_monomial(monomial, sizes) for monomial in basis])
            ]
            if helped:
                self.take(sizes)
        fits: dict[Key, Polynomial | None] = dict.fromkeys(monomials)
        samples = self._list_sizes()
        for basis, same_basis in keys.items():
            if rows[basis].is_complete:
                amounts = [[row.get(key, 0) for row in self.samples.values()] for key in same_basis]
                fits |= zip(same_basis, solve_coefficients(basis, samples, amounts), strict=True)
        return fits

    def _list_sizes(self) -> list[dict[str, int]]:
        """Return the sizes of all samples taken so far."""
        return [dict(zip(self.probe_sizes, sizes, strict=True)) for sizes in self.samples]

    def _draw_sizes(self) -> Iterator[dict[str, int]]:
        """Yield random probe sizes, small ones first, the same for all quantities so that they share readings.

        None of the first few has a lowest size: a term that is missing there contradicts wrong monomials.
        """
        rng = random.Random(len(self.probe_sizes))
        small = {
            name: nodes[: 2 if LAYER_NAMES.match(name) else NUM_SMALLEST] for name, nodes in self.probe_sizes.items()
        }
        above_lowest = {name: nodes[1:] or nodes for name, nodes in small.items()}
        for choices, number in ((above_lowest, NUM_CONTRADICTIONS), (small, NUM_DRAWS), (self.probe_sizes, NUM_DRAWS)):
            for _ in range(number):
                yield {name: rng.choice(nodes) for name, nodes in choices.items()}


def expand_newton(terms: Sequence[int | Fraction], nodes: Sequence[int]) -> list[int | Fraction]:
    """Return the coefficients by power of a polynomial in Newton's form: Σ terms[j] · Π_{i<j} (x − nodes[i])."""
    coefficients: list[int | Fraction] = []
    for term, node in zip(reversed(terms), reversed(nodes[: len(terms)]), strict=True):  # Horner's scheme
        shifted = [0, *coefficients]
        scaled = [-node * number for number in coefficients] + [0]
        coefficients = [a + b for a, b in zip(shifted, scaled, strict=True)]
        coefficients[0] += term
    return coefficients


def multiply_powers(powers: Powers) -> list[Monomial]:
    """Return all products of powers, one of each symbol, from the lowest to the highest; none if they are too many."""
    ranges = [[(name, power) for power in range(low, high + 1)] for name, (low, high) in powers.items()]
    if prod(map(len, ranges)) > 20 * MAX_MONOMIALS:
        return []
    return [tuple(sorted(factor for factor in factors if factor[1])) for factors in product(*ranges)]


def verify_fit(
    fits: Mapping[Key, Polynomial],
    sample: Sample[Key],
    fresh_sizes: Iterable[Sizes],
    probe_sizes: Mapping[str, Sequence[int]],
) -> None:
    """Compare fitted polynomials with samples at sizes that were not used to fit them.

    Raises:
        NotPolynomial: they differ; it names the first symbol that alone makes the fit fail.
    """
    for sizes in fresh_sizes:
        numbers = sample(sizes)
        for key in dict.fromkeys([*fits, *numbers]):
            polynomial = fits.get(key, ZERO)
            if polynomial.at(sizes) == numbers.get(key, 0):
                continue
            for name in probe_sizes:
                near = {**{other: nodes[0] for other, nodes in probe_sizes.items()}, name: sizes[name]}
                actual, expected = sample(near).get(key, 0), polynomial.at(near)
                if actual != expected:
                    why = f"at {name} = {sizes[name]} it is {actual:,}, where its smaller values lead to {expected}"
                    raise NotPolynomial(key, name, f"no polynomial of {name}: {why}")
            names = ", ".join(probe_sizes)
            raise NotPolynomial(key, "", f"no polynomial of {names}: each alone fits, but not all together")


# Probe sizes.

SMALL_SIZES = [2, 3, 4, 5, 6, 7, 8, 9]
DIVISORS = [2, 3, 4, 6, 12]  # never 1, at which much is a special case
GROUPED_HEADS = ([1, 2, 4], [4, 8, 12, 16], [96, 192, 288, 384])  # few heads divide many, and these half of the width
NUM_TRIALS = 8
MAX_TRIALS = 500  # sizes that are tried in all, before giving up
LAYER_COUNTS = [2, 3, 4, 5]  # layers take time, and are never multiplied with each other
HEAD_NAMES, WIDTH_NAMES = re.compile("h|k$|n_?h|.*head|.*kv"), re.compile("d|.*width|.*hidden|.*dim|.*embd")
LAYER_NAMES = re.compile("L(_|$)|.*layers|depth")


def choose_probe_sizes(
    requested: Sizes, can_run: Callable[[Sizes], bool], hints: Mapping[str, Sequence[int]]
) -> Iterator[ProbeSizes]:
    """Yield probe sizes at which the module works, the simplest first; `hints` are values for some symbols.

    These are small sizes; small sizes in the order of the requested ones, since a sequence may have to be as long as a
    window, or at most as long as a table of positions; and divisible sizes where heads must divide a width, or groups
    of heads the heads. Only what divides at the requested sizes is tried, the likely names first.
    """
    ranks = sorted(set(requested.values()))
    layers = {name: LAYER_COUNTS for name in requested if LAYER_NAMES.match(name)}
    small = {name: list(SMALL_SIZES) for name in requested} | layers
    ordered = {name: [10 * ranks.index(size) + n for n in SMALL_SIZES] for name, size in requested.items()} | layers
    aligned = {name: _multiples(8) for name, size in requested.items() if WIDTH_NAMES.match(name) and size % 8 == 0}
    hinted = {name: list(values) for name, values in hints.items() if name in requested}
    trials = 0
    for pattern in _divisibility_patterns(requested):
        for others in (small, ordered, ordered | aligned):
            if trials > MAX_TRIALS:
                return
            probe_sizes = {**others, **pattern, **hinted}
            for sizes in sample_sizes(probe_sizes, NUM_TRIALS):
                trials += 1
                if not can_run(sizes):
                    break
            else:
                yield probe_sizes


def _multiples(step: int) -> list[int]:
    """Return the first eight multiples of `step`."""
    return [step * number for number in range(1, 9)]


def _divisibility_patterns(requested: Sizes) -> Iterator[ProbeSizes]:
    """Yield probe sizes at which one symbol divides another, for each plausible pair of symbols.

    In the first there is no such pair.
    """

    def divides(low: str, high: str) -> bool:
        return low != high and requested[low] <= requested[high] and requested[high] % requested[low] == 0

    def unlikelihood(names: tuple[str, ...]) -> int:
        *heads, width = names
        return sum(not HEAD_NAMES.match(name) for name in heads) + (not WIDTH_NAMES.match(width))

    yield {}
    pairs = sorted((pair for pair in permutations(requested, 2) if divides(*pair)), key=unlikelihood)
    triples = [names for names in permutations(requested, 3) if divides(*names[:2]) and divides(*names[1:])]
    triples.sort(key=lambda names: (unlikelihood(names), "kv" not in names[0]))
    num_shared = sum("kv" in names[0] and not unlikelihood(names) for names in triples)  # surely groups of heads
    grouped = [dict(zip(names, map(list, GROUPED_HEADS), strict=True)) for names in triples]
    yield from grouped[:num_shared]
    singles = [{low: DIVISORS, high: _multiples(step)} for low, high in pairs for step in (12, 24)]
    yield from singles[:8]
    yield from grouped[num_shared:8]
    for low in dict.fromkeys(low for low, _ in pairs):
        yield {low: DIVISORS, **{high: _multiples(24) for high in requested if divides(low, high)}}
    for high in dict.fromkeys(high for _, high in pairs):  # where hints say what divides it
        yield from ({high: _multiples(step)} for step in (144, 288))
    yield from singles[8:]
    yield from grouped[max(8, num_shared) :]


def sample_sizes(probe_sizes: ProbeSizes, count: int) -> list[dict[str, int]]:
    """Return `count` sizes: the lowest probe sizes, then random ones, the same in every call."""
    rng = random.Random(len(probe_sizes))
    lowest = {name: values[0] for name, values in probe_sizes.items()}
    return [lowest, *({name: rng.choice(values) for name, values in probe_sizes.items()} for _ in range(count - 1))]
