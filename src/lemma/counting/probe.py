"""Formulas read off a module: read it at small sizes, fit exact polynomials, prove them at sizes not seen before.

No formula is typed in anywhere. `probe` is the whole of it: choose sizes (`choose_sizes`), group the paths of repeated
layers (`groupings_for`), interpolate (`Newton`), compare with fresh readings (`prove`).
"""

import random
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations, permutations
from typing import Any, Generic, TypeVar

from lemma.counting.polynomial import ONE, ZERO, Polynomial, symbol
from lemma.errors import LedgerError

Values = Mapping[str, int]
ProbeSizes = dict[str, list[int]]
"""The values at which each symbol is probed, the smallest first."""
Amounts = tuple[int, ...]
Readings = Mapping[str, Amounts]
"""What was read at each path of a module: a shape, or one or more amounts."""
Read = Callable[[Values], Readings]
Join = Callable[[Sequence[Amounts]], Amounts]
"""Adds up the readings of a group of which only the sum is known."""

PROOFS = 3
DRAWN = 60  # sizes among which there are always some that the fit has not asked for


@dataclass(frozen=True, order=True)
class PathGroup:
    """The paths of a pattern such as `layers.*.weight` that are counted as one; `which` says which of them, if not all.

    `layers.0.output.weight`, `layers.1.output.weight` … are one group as long as they read the same. Where a path has
    several numbers, some may mean different things (`blocks.*.0.weight`, `blocks.*.3.weight`). If only the first or the
    last layer differs, it is a group of its own; if nothing of the kind holds, only the sum of all is known.
    """

    pattern: str
    which: str = ""

    def __str__(self) -> str:
        rest = iter(self.which.split(",")) if self.which else None
        return re.sub(r"\*", lambda star: next(rest, "*"), self.pattern) if rest else self.pattern

    def matches(self, path: str) -> bool:
        """Whether a path follows the pattern.

        >>> PathGroup("layers.*.weight_l0").matches("layers.12.weight_l0")
        True
        """
        return re.fullmatch(re.escape(self.pattern).replace(r"\*", r"\d+"), path) is not None


@dataclass(frozen=True)
class Fitted:
    """What one member of a group reads, as polynomials, and how many members there are."""

    repeats: Polynomial
    columns: tuple[Polynomial, ...]


@dataclass(frozen=True)
class Probed:
    """What was fitted in every group, and the groups that follow no polynomial, with the reason."""

    groups: dict[PathGroup, Fitted]
    refused: dict[PathGroup, str]


def column_sums(rows: Sequence[Amounts]) -> Amounts:
    """Add rows up, column by column."""
    return tuple(sum(column) for column in zip(*rows, strict=True))


def probe(read: Read, choices: Iterable[ProbeSizes], join: Join = column_sums) -> Probed:
    """Fit what `read` gives, in every group of paths, as polynomials of the symbols, on the first sizes that work.

    A LedgerError says why nothing can be read.
    """
    known: dict[tuple[int, ...], Readings] = {}

    def reading(values: Values) -> Readings:
        key = tuple(values.values())
        if key not in known:
            known[key] = read(values)
        return known[key]

    refusal = LedgerError("there are no sizes at which this module can be built.")
    for sizes in choices:
        try:
            return _fit_groups(reading, sizes, join)
        except LedgerError as error:
            refusal = error
    raise refusal


Column = tuple[PathGroup, int]
"""A group and the number of a column of its reading; column −1 is the number of members."""


def _fit_groups(reading: Read, sizes: ProbeSizes, join: Join) -> Probed:
    """Fit until all groups are proved: those that fail are grouped otherwise, multiplied by a symbol, or refused."""
    lowest = {name: values[0] for name, values in sizes.items()}
    first = [lowest, *({**lowest, name: values[1]} for name, values in sizes.items())]
    groupings = groupings_for([reading(values) for values in first], join)
    multiplied: dict[Column, list[str]] = {}  # by which symbols, since they may divide the quantity
    refused: dict[PathGroup, str] = {}

    def sample(values: Values) -> dict[Column, int]:
        groups = _grouped(reading(values), groupings, join)
        columns = {(group, -1): count for group, (count, _) in groups.items()}
        columns |= {(group, at): number for group, (_, row) in groups.items() for at, number in enumerate(row)}
        for key, names in multiplied.items():
            for name in names:
                columns[key] = columns.get(key, 0) * values[name]
        return {key: number for key, number in columns.items() if key[0] not in refused}

    while True:
        try:
            newton = Newton(sample, sizes)
            found = newton.run()
            drawn = {newton.index(values): values for values in draws(sizes, DRAWN)}
            prove(found, sample, [values for at, values in drawn.items() if at not in newton.asked][:PROOFS], sizes)
            break
        except Ungrouped as failure:  # the next grouping; a pattern that showed up only now gets its sum
            groupings[failure.pattern] = groupings.get(failure.pattern, [])[1:] or ["sum"]
        except NotPolynomial as failure:
            group, _ = failure.key
            names = multiplied.setdefault(failure.key, [])
            if failure.name and failure.name not in names:
                names.append(failure.name)
                continue
            refused[group] = failure.why
            multiplied = {key: names for key, names in multiplied.items() if key[0] != group}
    columns: dict[PathGroup, dict[int, Polynomial]] = {}
    for (group, column), polynomial in found.items():
        for name in multiplied.get((group, column), []):
            polynomial = polynomial / symbol(name)
        columns.setdefault(group, {})[column] = polynomial
    fitted = {
        group: Fitted(mine.get(-1, ONE), tuple(mine[at] for at in sorted(mine) if at >= 0))
        for group, mine in columns.items()
    }
    return Probed(fitted, refused)


# Grouping paths.

NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)|(?<=_l)\d+(?=_|\.|$)")
SUM = "…"
Grouping = str | tuple[int, ...]
"""How the members of a pattern are grouped: all, each, first, last, sum; or which of their numbers count layers."""
Member = tuple[str, Amounts]


class Ungrouped(Exception):
    """The members of a pattern do not follow the grouping chosen for it."""

    def __init__(self, pattern: str) -> None:
        super().__init__(pattern)
        self.pattern = pattern


def pattern_of(path: str) -> str:
    """Write a star for every number of a layer.

    >>> pattern_of("layers.3.attention.output.weight"), pattern_of("weight_ih_l1_reverse"), pattern_of("weight_hh_l0.A")
    ('layers.*.attention.output.weight', 'weight_ih_l*_reverse', 'weight_hh_l*.A')
    """
    return NUMBER.sub("*", path)


def _members(readings: Readings) -> dict[str, list[Member]]:
    """Sort readings by pattern; within each by the numbers in the path."""
    groups: dict[str, list[Member]] = {}
    for path, reading in readings.items():
        groups.setdefault(pattern_of(path), []).append((path, reading))
    for group in groups.values():
        group.sort(key=lambda member: [int(number) for number in NUMBER.findall(member[0])])
    return groups


def groupings_for(samples: Sequence[Readings], join: Join) -> dict[str, list[Grouping]]:
    """The groupings of each pattern that fit all samples, the most detailed first; the sum always fits."""
    sorted_samples = [_members(sample) for sample in samples]
    patterns = {pattern: None for groups in sorted_samples for pattern in groups}
    found: dict[str, list[Grouping]] = {}
    for pattern in patterns:
        numbers = pattern.count("*")
        some = [stars for size in range(numbers - 1, 0, -1) for stars in combinations(range(numbers), size)]
        members = [groups.get(pattern, []) for groups in sorted_samples]
        steady = len({tuple(path for path, _ in group) for group in members}) == 1
        found[pattern] = []
        for grouping in ("all", *some, *(["each"] if steady else ["first", "last"])):
            tried = [_group(pattern, group, grouping, join) for group in members]
            if all(groups is not None for groups in tried) and len({frozenset(groups or ()) for groups in tried}) == 1:
                found[pattern].append(grouping)
        found[pattern].append("sum")
    return found


def _grouped(
    readings: Readings, groupings: Mapping[str, Sequence[Grouping]], join: Join
) -> dict[PathGroup, tuple[int, Amounts]]:
    """The number of members and the common reading of every group, by the first grouping of each pattern."""
    found: dict[PathGroup, tuple[int, Amounts]] = {}
    for pattern, members in _members(readings).items():
        groups = _group(pattern, members, groupings[pattern][0] if pattern in groupings else "each", join)
        if groups is None:
            raise Ungrouped(pattern)
        found |= groups
    return found


def _group(
    pattern: str, members: list[Member], grouping: Grouping, join: Join
) -> dict[PathGroup, tuple[int, Amounts]] | None:
    """Group the members of one pattern; None if those of a group do not read the same."""
    if grouping == "each":
        return {PathGroup(path): (1, reading) for path, reading in members}
    if grouping == "sum":
        return {PathGroup(pattern, SUM): (1, join([reading for _, reading in members]))}
    groups: dict[PathGroup, list[Amounts]] = {}
    for at, (path, reading) in enumerate(members):
        if isinstance(grouping, tuple):
            numbers = NUMBER.findall(path)
            written = iter("*" if star in grouping else str(int(n)) for star, n in enumerate(numbers))
            group = PathGroup(NUMBER.sub(lambda match, written=written: next(written), path))
        elif grouping == "first":
            group = PathGroup(pattern, "1…" if at else "0")
        elif grouping == "last":
            group = PathGroup(pattern, "-1" if at == len(members) - 1 else "…-2")
        else:
            group = PathGroup(pattern)
        groups.setdefault(group, []).append(reading)
    if any(len(set(rows)) > 1 for rows in groups.values()):
        return None
    return {group: (len(rows), rows[0]) for group, rows in groups.items()}


# From samples to exact polynomials: interpolation that asks only where something still changes.

Key = TypeVar("Key", bound=Hashable)
Sample = Callable[[Values], Mapping[Key, int]]
Index = tuple[int, ...]
"""For each symbol the place of a value among its probe sizes."""
HIGHEST = 5  # the highest power of a symbol that is tried, if it has enough probe sizes


class NotPolynomial(Exception):
    """A quantity follows no polynomial of the symbols; `name` is the symbol in which the fit failed, "" if several."""

    def __init__(self, key: Any, name: str, why: str) -> None:
        super().__init__(why)
        self.key, self.name, self.why = key, name, why


@dataclass
class Newton(Generic[Key]):
    """A growing interpolation of many quantities over the same sizes, in Newton's form.

    The term of the index ν is Π_s Π_{j<ν_s} (s − sizes_s[j]), and its coefficient follows from one sample. A term is
    asked for only if all the terms just below it are there, so that a formula of few terms takes few samples. What
    comes out is a conjecture until `prove` has compared it with samples it has not seen.
    """

    sample: Sample[Key]
    sizes: Mapping[str, Sequence[int]]
    terms: dict[Key, dict[Index, Fraction]] = field(default_factory=dict)
    asked: set[Index] = field(default_factory=set)

    def run(self) -> dict[Key, Polynomial]:
        """Ask until nothing changes any more."""
        waiting = [tuple(0 for _ in self.sizes)]
        while waiting:
            for index in waiting:
                self._ask(index)
            above = {_raised(index, place) for index in waiting for place in range(len(self.sizes))} - self.asked
            waiting = sorted(index for index in above if self._called_for(index))
        return {key: self._polynomial(terms) for key, terms in self.terms.items()}

    def index(self, values: Values) -> Index:
        """The place of these values among the sizes."""
        return tuple(sizes.index(values[name]) for name, sizes in self.sizes.items())

    def _ask(self, index: Index) -> None:
        values = {name: sizes[at] for (name, sizes), at in zip(self.sizes.items(), index, strict=True)}
        found = self.sample(values)
        self.asked.add(index)
        whole = self._basis(index, values)
        for key in dict.fromkeys([*self.terms, *found]):  # in the module's own order
            terms = self.terms.setdefault(key, {})
            rest = found.get(key, 0) - sum(
                (number * self._basis(below, values) for below, number in terms.items()), Fraction(0)
            )
            if not rest:
                continue
            for (name, sizes), power in zip(self.sizes.items(), index, strict=True):
                if power > min(HIGHEST, len(sizes) - 2):
                    raise NotPolynomial(key, name, f"no polynomial of {name}: it still changes at the power {power}")
            terms[index] = rest / whole

    def _basis(self, index: Index, values: Values) -> Fraction:
        number = Fraction(1)
        for (name, sizes), at in zip(self.sizes.items(), index, strict=True):
            for lower in sizes[:at]:
                number *= values[name] - lower
        return number

    def _called_for(self, index: Index) -> bool:
        below = [_raised(index, place, -1) for place, at in enumerate(index) if at]
        return any(all(lower in terms for lower in below) for terms in self.terms.values())

    def _polynomial(self, terms: Mapping[Index, Fraction]) -> Polynomial:
        whole = ZERO
        for index, number in terms.items():
            part = ONE * number
            for (name, sizes), at in zip(self.sizes.items(), index, strict=True):
                for lower in sizes[:at]:
                    part = part * (symbol(name) - lower)
            whole = whole + part
        return whole


def _raised(index: Index, place: int, by: int = 1) -> Index:
    return (*index[:place], index[place] + by, *index[place + 1 :])


def fit(sample: Sample[Key], sizes: Mapping[str, Sequence[int]]) -> dict[Key, Polynomial]:
    """Fit every quantity that `sample` gives, over at least two sizes more than its highest power.

    >>> area = fit(lambda at: {"area": at["a"] * (at["b"] - 1)}, {"a": [2, 3, 4, 5, 6], "b": [2, 3, 4, 5, 6]})
    >>> area["area"] == symbol("a") * (symbol("b") - 1)
    True
    """
    return Newton(sample, sizes).run()


def prove(
    found: Mapping[Key, Polynomial], sample: Sample[Key], fresh: Iterable[Values], sizes: Mapping[str, Sequence[int]]
) -> None:
    """Compare with samples the fit has not seen; where they differ, say in which symbol the fit fails."""
    for values in fresh:
        numbers = sample(values)
        for key in dict.fromkeys([*found, *numbers]):
            if found.get(key, ZERO).at(values) == numbers.get(key, 0):
                continue
            for name in sizes:  # the first symbol that alone leads away from the fit
                there = {**{other: known[0] for other, known in sizes.items()}, name: values[name]}
                number, fitted = sample(there).get(key, 0), found.get(key, ZERO).at(there)
                if number != fitted:
                    why = f"at {name} = {values[name]} it is {number:,}, where its smaller values lead to {fitted}"
                    raise NotPolynomial(key, name, f"no polynomial of {name}: {why}")
            raise NotPolynomial(key, "", f"no polynomial of {', '.join(sizes)}: each alone fits, but not all together")


# At which sizes to probe: small ones, and where heads must divide a width or the like, highly divisible ones.

PLAIN = [2, 3, 4, 5, 6, 7, 8, 9]
DIVISORS = [2, 3, 4, 6, 12]  # never 1, at which much is a special case
MIDDLE = [12 * step for step in (1, 2, 3, 4, 6)]
TRIALS = 12
WIDEST = 3  # symbols that may have to be wide together


def choose_sizes(
    names: Sequence[str], builds: Callable[[Values], bool], hints: Mapping[str, Sequence[int]]
) -> Iterator[ProbeSizes]:
    """Yield sizes at which the module can be built, the simplest first.

    Which symbols must be wide is found by trying: the fewest that let the module be built at a dozen random sizes.
    """
    for sizes in _candidates(names):
        chosen = {**sizes, **{name: list(hint) for name, hint in hints.items() if name in sizes}}
        if all(builds(values) for values in draws(chosen, TRIALS)):
            yield chosen


def draws(sizes: ProbeSizes, number: int) -> list[dict[str, int]]:
    """The lowest sizes, then sizes drawn at random; the same ones each time."""
    source = random.Random(len(sizes))
    lowest = {name: values[0] for name, values in sizes.items()}
    drawn = [{name: source.choice(values) for name, values in sizes.items()} for _ in range(number - 1)]
    return [lowest, *drawn]


def _candidates(names: Sequence[str]) -> Iterator[ProbeSizes]:
    yield {name: list(PLAIN) for name in names}
    for step in (12, 24):
        for number in range(1, WIDEST + 1):
            for wide in combinations(names, number):
                for others in (PLAIN, DIVISORS):
                    yield {name: _multiples(step) if name in wide else list(others) for name in names}
    for step in (144, 288):  # heads in groups: few divide many, and many divide a width
        for middle, wide in permutations(names, 2):
            special = {wide: _multiples(step), middle: list(MIDDLE)}
            yield {name: special.get(name, list(DIVISORS)) for name in names}


def _multiples(step: int) -> list[int]:
    return [step * number for number in range(1, 9)]
