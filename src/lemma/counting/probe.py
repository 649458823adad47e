"""Formulas read off a module: read it at small sizes, fit exact polynomials, prove them at sizes not seen before.

No formula is typed in anywhere. `probe` is the whole of it: choose sizes (`choose_sizes`), group the paths of repeated
layers (`groupings_for`), interpolate (`fit`), compare with fresh readings (`prove`).
"""

import random
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import combinations, islice, permutations
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

from lemma.counting.polynomial import ONE, ZERO, Polynomial, as_polynomial, sum_polynomials, symbol
from lemma.errors import CountingError

if TYPE_CHECKING:
    from lemma.counting.piecewise import DerivedSize

Sizes = Mapping[str, int]
ProbeSizes = dict[str, list[int]]
"""The values at which each symbol is probed, the smallest first."""
Amounts = tuple[int, ...]
Readings = Mapping[str, Amounts]
"""What was read at each path of a module: a shape, or one or more amounts."""
Read = Callable[[Sizes], Readings]
Join = Callable[[Sequence[Amounts]], Amounts]
"""Adds up the readings of a group of which only the sum is known."""

NUM_PROOFS = 3
MAX_PROBE_CHOICES = 3  # of probe sizes at which a module works and yet cannot be read
NUM_PROOF_CANDIDATES = 60  # sizes among which there are always some that the fit has not asked for


@dataclass(frozen=True, order=True)
class PathGroup:
    """The paths of a pattern such as `layers.*.weight` that are counted as one; `which` says which of them, if not all.

    `layers.0.output.weight`, `layers.1.output.weight` … are one group as long as they read the same. Where a path has
    several numbers, some may mean different things (`blocks.*.0.weight`, `blocks.*.3.weight`). If only the first or the
    last layer differs, it is a group of its own; if nothing of the kind holds, only the sum of all is known.
    """

    pattern: str
    subset: str = ""

    def __str__(self) -> str:
        rest = iter(self.subset.split(",")) if self.subset else None
        return re.sub(r"\*", lambda star: next(rest, "*"), self.pattern) if rest else self.pattern

    def matches(self, path: str) -> bool:
        """Whether a path follows the pattern."""
        return re.fullmatch(re.escape(self.pattern).replace(r"\*", r"\d+"), path) is not None

    def contains(self, path: str, index: int, count: int) -> bool:
        """Whether a path belongs to it that is number `at` of `number` with its pattern.

        >>> PathGroup("layers.*.weight_l0").holds("layers.12.weight_l0", 12, 24)
        True
        >>> PathGroup("layers.*.weight", "1…").holds("layers.0.weight", 0, 24)
        False
        """
        last = index == count - 1
        mine = {"0": index == 0, "1…": index > 0, "-1": last, "…-2": not last}.get(self.subset, True)
        return mine and self.matches(path)


@dataclass(frozen=True)
class GroupFit:
    """What one member of a group reads, as polynomials, and how many members there are."""

    repeats: Polynomial
    columns: tuple[Polynomial, ...]


@dataclass(frozen=True)
class FitResult:
    """What was fitted in every group, and the groups that follow no polynomial, with the reason.

    `named` are the sizes other than symbols that formulas contain.
    """

    fits: dict[PathGroup, GroupFit]
    failures: dict[PathGroup, str]
    derived: "dict[str, DerivedSize]" = field(default_factory=dict)


def column_sums(rows: Sequence[Amounts]) -> Amounts:
    """Add rows up, column by column."""
    return tuple(sum(column) for column in zip(*rows, strict=True))


Column = tuple[PathGroup, int]
"""A group and the number of a column of its reading; column −1 is the number of members."""


def fit_groups(read: Read, choices: Iterable[ProbeSizes], join: Join = column_sums) -> FitResult:
    """Fit what `read` gives, in every group of paths, as polynomials of the symbols, on the first sizes that work.

    A LedgerError says why nothing can be read.
    """
    known: dict[tuple[int, ...], Readings] = {}

    def reading(values: Sizes) -> Readings:
        key = tuple(values.values())
        if key not in known:
            known[key] = read(values)
        return known[key]

    refusal = CountingError("it works at no small sizes that were tried; state some as factory.probe_sizes")
    for sizes in islice(choices, MAX_PROBE_CHOICES):
        try:
            return _fit_groups_at(reading, sizes, join)
        except CountingError as error:
            refusal = error
    raise refusal


def _fit_groups_at(reading: Read, sizes: ProbeSizes, join: Join) -> FitResult:
    """Fit until all groups are proved: those that fail are grouped otherwise, multiplied by a symbol, or refused."""
    lowest = {name: values[0] for name, values in sizes.items()}
    first = [lowest, *({**lowest, name: values[1]} for name, values in sizes.items() if len(values) > 1)]
    groupings = find_groupings([reading(values) for values in first], join)
    multiplied: dict[Column, list[str]] = {}  # by which symbols, since they may divide the quantity
    refused: dict[PathGroup, str] = {}
    drawn = {tuple(values.values()): values for values in sample_sizes(sizes, NUM_PROOF_CANDIDATES)}
    asked: set[tuple[int, ...]] = set()

    def sample(values: Sizes) -> dict[Column, int]:
        asked.add(tuple(values.values()))
        groups: dict[PathGroup, tuple[int, Amounts]] = {}
        for pattern, members in _members_by_pattern(reading(values)).items():
            found = _group_members(pattern, members, groupings[pattern][0] if pattern in groupings else "each", join)
            if found is None:
                raise GroupingError(pattern)
            groups |= found
        columns = {(group, -1): count for group, (count, _) in groups.items()}
        columns |= {(group, at): number for group, (_, row) in groups.items() for at, number in enumerate(row)}
        for key, names in multiplied.items():
            columns[key] = columns.get(key, 0) * prod(values[name] for name in names)
        return {key: number for key, number in columns.items() if key[0] not in refused}

    while True:
        try:
            asked.clear()
            found = fit_polynomials(sample, sizes)
            verify_fit(found, sample, [values for at, values in drawn.items() if at not in asked][:NUM_PROOFS], sizes)
            break
        except GroupingError as failure:  # the next grouping; a pattern that showed up only now gets its sum
            (pattern,) = failure.args
            groupings[pattern] = groupings.get(pattern, [])[1:] or ["sum"]
            refused = {group: why for group, why in refused.items() if path_pattern(group.pattern) != pattern}
        except NotPolynomial as failure:
            group, _ = failure.key
            names = multiplied.setdefault(failure.key, [])
            if failure.symbol and failure.symbol not in names:
                names.append(failure.symbol)
                continue
            refused[group] = failure.reason
            multiplied = {key: names for key, names in multiplied.items() if key[0] != group}
    columns: dict[PathGroup, dict[int, Polynomial]] = {}
    for (group, column), polynomial in found.items():
        divisor = prod(map(symbol, multiplied.get((group, column), [])), start=ONE)
        columns.setdefault(group, {})[column] = polynomial / divisor
    fitted = {
        group: GroupFit(mine.get(-1, ONE), tuple(mine[at] for at in sorted(mine) if at >= 0))
        for group, mine in columns.items()
    }
    return FitResult(fitted, refused)


NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)|(?<=_l)\d+(?=_|\.|$)")
SUM_ONLY = "…"
Grouping = str | tuple[int, ...]
"""How the members of a pattern are grouped: all, each, first, last, sum; or which of their numbers count layers."""
Member = tuple[str, Amounts]


class GroupingError(Exception):
    """The members of a pattern, its argument, do not follow the grouping chosen for it."""


def path_pattern(path: str) -> str:
    """Write a star for every number of a layer.

    >>> pattern_of("layers.3.attention.output.weight"), pattern_of("weight_ih_l1_reverse"), pattern_of("weight_hh_l0.A")
    ('layers.*.attention.output.weight', 'weight_ih_l*_reverse', 'weight_hh_l*.A')
    """
    return NUMBER.sub("*", path)


def iter_patterns(path: str) -> Iterator[str]:
    """All patterns that a path follows, with a star for one number at least.

    >>> list(patterns_of("blocks.3.0.weight"))
    ['blocks.*.0.weight', 'blocks.3.*.weight', 'blocks.*.*.weight']
    """
    numbers = NUMBER.findall(path)
    for size in range(1, len(numbers) + 1):
        for stars in combinations(range(len(numbers)), size):
            written = iter("*" if place in stars else number for place, number in enumerate(numbers))
            yield NUMBER.sub(lambda _, written=written: next(written), path)


def _members_by_pattern(readings: Readings) -> dict[str, list[Member]]:
    """Sort readings by pattern; within each by the numbers in the path."""
    groups: dict[str, list[Member]] = {}
    for path, reading in readings.items():
        groups.setdefault(path_pattern(path), []).append((path, reading))
    for group in groups.values():
        group.sort(key=lambda member: [int(number) for number in NUMBER.findall(member[0])])
    return groups


def assign_to_groups(groups: Iterable[PathGroup], readings: Readings) -> dict[PathGroup, list[Amounts]]:
    """The readings that belong to each group; a path that belongs to none is a group of its own."""
    found: dict[PathGroup, list[Amounts]] = {group: [] for group in groups}
    for members in _members_by_pattern(readings).values():
        for at, (path, reading) in enumerate(members):
            mine = next((group for group in found if group.contains(path, at, len(members))), PathGroup(path))
            found.setdefault(mine, []).append(reading)
    return found


def find_groupings(samples: Sequence[Readings], join: Join) -> dict[str, list[Grouping]]:
    """The groupings of each pattern that fit all samples, the most detailed first; the sum always fits."""
    sorted_samples = [_members_by_pattern(sample) for sample in samples]
    patterns = {pattern: None for groups in sorted_samples for pattern in groups}
    found: dict[str, list[Grouping]] = {}
    for pattern in patterns:
        numbers = pattern.count("*")
        some = [stars for size in range(numbers - 1, 0, -1) for stars in combinations(range(numbers), size)]
        members = [groups.get(pattern, []) for groups in sorted_samples]
        steady = len({tuple(path for path, _ in group) for group in members}) == 1
        found[pattern] = []
        for grouping in ("all", *some, *(["each"] if steady else ["first", "last"])):
            tried = [_group_members(pattern, group, grouping, join) for group in members]
            if all(groups is not None for groups in tried) and len({frozenset(groups or ()) for groups in tried}) == 1:
                found[pattern].append(grouping)
        found[pattern].append("sum")
    return found


def _group_members(
    pattern: str, members: list[Member], grouping: Grouping, join: Join
) -> dict[PathGroup, tuple[int, Amounts]] | None:
    """Group the members of one pattern; None if those of a group do not read the same."""
    if grouping == "each":
        return {PathGroup(path): (1, reading) for path, reading in members}
    if grouping == "sum":
        return {PathGroup(pattern, SUM_ONLY): (1, join([reading for _, reading in members]))}
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


Key = TypeVar("Key", bound=Hashable)
Sample = Callable[[Sizes], Mapping[Key, int]]
MAX_POWER = 5  # the highest power of a symbol that is tried, if it has enough probe sizes


class NotPolynomial(Exception):
    """A quantity follows no polynomial of the symbols; `name` is the symbol in which the fit failed, "" if several."""

    def __init__(self, key: Any, name: str, why: str) -> None:
        super().__init__(why)
        self.key, self.symbol, self.reason = key, name, why


def fit_polynomials(sample: Sample[Key], sizes: Mapping[str, Sequence[int]]) -> dict[Key, Polynomial]:
    """Fit every quantity that `sample` gives, over at least two sizes more than its highest power.

    Newton's form: an index ν gives for each symbol s a place among its sizes; the term of ν is
    Π_s Π_{j<ν_s} (s − sizes_s[j]), and its coefficient follows from one sample. A term is asked for only if all the
    terms just below it are there, so that a formula of few terms takes few samples. What comes out is a conjecture
    until `prove` has compared it with samples it has not seen.

    >>> area = fit(lambda at: {"area": at["a"] * (at["b"] - 1)}, {"a": [2, 3, 4, 5, 6], "b": [2, 3, 4, 5, 6]})
    >>> area["area"] == symbol("a") * (symbol("b") - 1)
    True
    """
    terms: dict[Key, dict[tuple[int, ...], int | Fraction]] = {}
    asked: set[tuple[int, ...]] = set()
    there: set[frozenset[tuple[int, ...]]] = set()
    """The terms of each quantity; many have the same."""

    def basis_at(values: Mapping[str, Any]) -> Callable[[tuple[int, ...]], Any]:
        @cache  # the quantities share their terms, and there may be hundreds of them
        def basis(index: tuple[int, ...]) -> Any:
            lower = [(name, one) for (name, known), at in zip(sizes.items(), index, strict=True) for one in known[:at]]
            return prod(values[name] - one for name, one in lower)

        return basis

    def moved(index: tuple[int, ...], place: int, by: int) -> tuple[int, ...]:
        return (*index[:place], index[place] + by, *index[place + 1 :])

    def called_for(index: tuple[int, ...]) -> bool:
        below = {moved(index, place, -1) for place, at in enumerate(index) if at}
        return any(below <= mine for mine in there)

    places = [place for place, known in enumerate(sizes.values()) if len(known) > 1]  # with one size it is a constant
    waiting = [(0,) * len(sizes)]
    while waiting:
        for index in waiting:
            values = {name: known[at] for (name, known), at in zip(sizes.items(), index, strict=True)}
            found, basis = sample(values), basis_at(values)
            for key in dict.fromkeys([*terms, *found]):  # in the module's own order
                mine = terms.setdefault(key, {})
                rest = found.get(key, 0) - sum(number * basis(below) for below, number in mine.items())
                if not rest:
                    continue
                for (name, known), power in zip(sizes.items(), index, strict=True):
                    if power > max(0, min(MAX_POWER, len(known) - 2)):
                        why = f"no polynomial of {name}: it still changes at the power {power}"
                        raise NotPolynomial(key, name, why)
                number = Fraction(rest) / basis(index)
                mine[index] = number.numerator if number.denominator == 1 else number  # quicker to count with
        asked.update(waiting)
        there = {frozenset(mine) for mine in terms.values()}
        above = {moved(index, place, 1) for index in waiting for place in places} - asked
        waiting = sorted(filter(called_for, above))
    written = basis_at({name: symbol(name) for name in sizes})
    return {
        key: sum_polynomials(as_polynomial(number * written(index)) for index, number in mine.items())
        for key, mine in terms.items()
    }


def verify_fit(
    fits: Mapping[Key, Polynomial],
    sample: Sample[Key],
    fresh_sizes: Iterable[Sizes],
    sizes: Mapping[str, Sequence[int]],
) -> None:
    """Compare with samples the fit has not seen; where they differ, say in which symbol the fit fails."""
    for values in fresh_sizes:
        numbers = sample(values)
        for key in dict.fromkeys([*fits, *numbers]):
            if fits.get(key, ZERO).at(values) == numbers.get(key, 0):
                continue
            for name in sizes:  # the first symbol that alone leads away from the fit
                there = {**{other: known[0] for other, known in sizes.items()}, name: values[name]}
                number, fitted = sample(there).get(key, 0), fits.get(key, ZERO).at(there)
                if number != fitted:
                    why = f"at {name} = {values[name]} it is {number:,}, where its smaller values lead to {fitted}"
                    raise NotPolynomial(key, name, f"no polynomial of {name}: {why}")
            raise NotPolynomial(key, "", f"no polynomial of {', '.join(sizes)}: each alone fits, but not all together")


SMALL_SIZES = [2, 3, 4, 5, 6, 7, 8, 9]
DIVISORS = [2, 3, 4, 6, 12]  # never 1, at which much is a special case
GROUPED_HEADS = (
    [1, 2, 4],
    [4, 8, 12, 16],
    [96, 192, 288, 384],
)  # few heads divide many, and these an even part of the width
NUM_TRIALS = 8
MAX_TRIALS = 500  # sizes that are tried in all, before it is said that there are none
LAYER_COUNTS = [2, 3, 4, 5]  # layers take time, and are never multiplied with each other
HEAD_NAMES, WIDTH_NAMES = re.compile("h|k$|n_?h|.*head|.*kv"), re.compile("d|.*width|.*hidden|.*dim|.*embd")
LAYER_NAMES = re.compile("L(_|$)|.*layers|depth")


def choose_probe_sizes(
    requested: Sizes, can_run: Callable[[Sizes], bool], hints: Mapping[str, Sequence[int]]
) -> Iterator[ProbeSizes]:
    """Yield sizes at which the module works, the simplest first.

    Small ones; small ones in the order of the sizes asked for, since a text may have to be as long as a window, or at
    most as long as a table of positions; and where heads must divide a width, or groups of heads the heads, divisible
    ones. Only what divides at the sizes asked for is tried, the likely names first.
    """

    def multiples(step: int) -> list[int]:
        return [step * number for number in range(1, 9)]

    ranks = sorted(set(requested.values()))
    few = {name: LAYER_COUNTS for name in requested if LAYER_NAMES.match(name)}
    plain = {name: list(SMALL_SIZES) for name in requested} | few
    ordered = {
        name: [10 * ranks.index(value) + small for small in SMALL_SIZES] for name, value in requested.items()
    } | few
    aligned = {name: multiples(8) for name, value in requested.items() if WIDTH_NAMES.match(name) and value % 8 == 0}

    def divides(low: str, high: str) -> bool:
        return low != high and requested[low] <= requested[high] and requested[high] % requested[low] == 0

    def likely(names: tuple[str, ...]) -> int:
        *heads, width = names
        return sum(not HEAD_NAMES.match(name) for name in heads) + (not WIDTH_NAMES.match(width))

    def patterns() -> Iterator[ProbeSizes]:
        yield {}
        pairs = sorted((pair for pair in permutations(requested, 2) if divides(*pair)), key=likely)
        triples = [three for three in permutations(requested, 3) if divides(*three[:2]) and divides(*three[1:])]
        triples.sort(key=lambda three: (likely(three), "kv" not in three[0]))
        shared = sum("kv" in three[0] and not likely(three) for three in triples)  # where there are some, they are used
        triples = [dict(zip(three, map(list, GROUPED_HEADS), strict=True)) for three in triples]
        yield from triples[:shared]
        singles = [{pair[0]: DIVISORS, pair[1]: multiples(step)} for pair in pairs for step in (12, 24)]
        yield from singles[:8]
        yield from triples[shared:8]
        for low in dict.fromkeys(low for low, _ in pairs):
            yield {low: DIVISORS, **{high: multiples(24) for high in requested if divides(low, high)}}
        for high in dict.fromkeys(high for _, high in pairs):  # where hints say what divides it
            yield from ({high: multiples(step)} for step in (144, 288))
        yield from singles[8:]
        yield from triples[max(8, shared) :]

    tried = 0
    for pattern in patterns():
        for others in (plain, ordered, ordered | aligned):
            chosen = {**others, **pattern, **{name: list(hint) for name, hint in hints.items() if name in requested}}
            if tried > MAX_TRIALS:
                return
            for values in sample_sizes(chosen, NUM_TRIALS):
                tried += 1
                if not can_run(values):
                    break
            else:
                yield chosen


def sample_sizes(sizes: ProbeSizes, count: int) -> list[dict[str, int]]:
    """The lowest sizes, then sizes drawn at random; the same ones each time."""
    source = random.Random(len(sizes))
    lowest = {name: values[0] for name, values in sizes.items()}
    drawn = [{name: source.choice(values) for name, values in sizes.items()} for _ in range(count - 1)]
    return [lowest, *drawn]
