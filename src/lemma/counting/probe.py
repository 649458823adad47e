"""Formulas read off a module: sampled at small sizes, fitted exactly, proved at new sizes."""

import random
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import combinations, permutations
from typing import Any, Generic, TypeVar

from lemma.counting.polynomial import ONE, ZERO, Polynomial, symbol
from lemma.errors import LedgerError

# Places in a module: paths in which repeated layers are one.
#
# `layers.0.output.weight`, `layers.1.output.weight` … are `layers.*.output.weight`, as long as they say the same.
# Where a
# path has several numbers, some may stand for different things (`blocks.*.0.weight`, `blocks.*.3.weight`). If only
# the
# first or the last differs, it stands apart from the others; if nothing of the kind holds, only their sum is known.


NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)|(?<=_l)\d+(?=_|\.|$)")
Scheme = str | tuple[int, ...]
"""How the members of a pattern are told apart: all, each, first, last, sum; or which of their numbers count layers."""
Row = tuple[int, ...]
Member = tuple[str, Row]
Join = Callable[[Sequence[Row]], Row]
Readings = Mapping[str, tuple[int, ...]]
"""What was read at each concrete path: a shape, or one or more amounts."""


@dataclass(frozen=True, order=True)
class Place:
    """A path pattern, and which of its members are meant."""

    pattern: str
    which: str = ""

    def __str__(self) -> str:
        rest = iter(self.which.split(",")) if self.which else None
        return re.sub(r"\*", lambda star: next(rest, "*"), self.pattern) if rest else self.pattern


def pattern_of(path: str) -> str:
    """Write a star for every number of a layer.

    >>> pattern_of("layers.3.attention.output.weight"), pattern_of("weight_ih_l1_reverse"), pattern_of("weight_hh_l0.A")
    ('layers.*.attention.output.weight', 'weight_ih_l*_reverse', 'weight_hh_l*.A')
    """
    return NUMBER.sub("*", path)


def members(readings: Readings) -> dict[str, list[Member]]:
    """Sort readings by pattern; within each by the numbers in the path."""
    groups: dict[str, list[Member]] = {}
    for path, reading in readings.items():
        groups.setdefault(pattern_of(path), []).append((path, reading))
    for group in groups.values():
        group.sort(key=lambda member: numbers_of(member[0]))
    return groups


def schemes_for(samples: Sequence[Readings], join: Join) -> dict[str, list[Scheme]]:
    """The schemes of each pattern that fit all samples, the most telling first; the sum fits always."""
    grouped = [members(sample) for sample in samples]
    patterns = {pattern: None for groups in grouped for pattern in groups}
    return {
        pattern: list(_fitting(pattern, [groups.get(pattern, []) for groups in grouped], join)) for pattern in patterns
    }


def arrange(readings: Readings, schemes: Mapping[str, Sequence[Scheme]], join: Join) -> dict[Place, tuple[int, Row]]:
    """The number of members and the common reading of every place, by the first scheme of each pattern."""
    places: dict[Place, tuple[int, Row]] = {}
    for pattern, group in members(readings).items():
        found = arranged(pattern, group, schemes[pattern][0] if pattern in schemes else "each", join)
        if found is None:
            raise Misfit(pattern)
        places |= found
    return places


class Misfit(Exception):
    """A pattern's members do not follow the scheme chosen for it."""

    def __init__(self, pattern: str) -> None:
        super().__init__(pattern)
        self.pattern = pattern


def _fitting(pattern: str, groups: Sequence[list[Member]], join: Join) -> Iterator[Scheme]:
    numbers = pattern.count("*")
    some = [stars for size in range(numbers - 1, 0, -1) for stars in combinations(range(numbers), size)]
    steady = len({tuple(path for path, _ in group) for group in groups}) == 1
    for scheme in ("all", *some, *(["each"] if steady else ["first", "last"])):
        found = [arranged(pattern, group, scheme, join) for group in groups]
        if all(places is not None for places in found) and len({frozenset(places or ()) for places in found}) == 1:
            yield scheme
    yield "sum"


def arranged(pattern: str, group: list[Member], scheme: Scheme, join: Join) -> dict[Place, tuple[int, Row]] | None:
    """Bring the members of one pattern to their places; None if the scheme does not fit them."""
    if scheme == "each":
        return {Place(path): (1, reading) for path, reading in group}
    if scheme == "sum":
        return {Place(pattern, SUM): (1, join([reading for _, reading in group]))}
    places: dict[Place, list[Row]] = {}
    for at, (path, reading) in enumerate(group):
        places.setdefault(_place(pattern, path, at, len(group), scheme), []).append(reading)
    if any(len(set(rows)) > 1 for rows in places.values()):
        return None
    return {place: (len(rows), rows[0]) for place, rows in places.items()}


SUM = "…"


def _place(pattern: str, path: str, at: int, number: int, scheme: Scheme) -> Place:
    if isinstance(scheme, tuple):
        written = iter("*" if star in scheme else str(n) for star, n in enumerate(numbers_of(path)))
        return Place(NUMBER.sub(lambda match: next(written), path))
    if scheme == "first":
        return Place(pattern, "1…" if at else "0")
    if scheme == "last":
        return Place(pattern, "-1" if at == number - 1 else "…-2")
    return Place(pattern)


def column_sums(rows: Sequence[Row]) -> Row:
    """Add rows up, column by column."""
    return tuple(sum(column) for column in zip(*rows, strict=True))


def numbers_of(path: str) -> tuple[int, ...]:
    """The numbers of the layers in a path."""
    return tuple(int(number) for number in NUMBER.findall(path))


# From samples to the exact polynomial: interpolation that asks only where something still changes.
#
# Every symbol has a ladder of values. The polynomial is built in Newton's form: the term of the rungs ν is
# Π_s Π_{j<ν_s} (s − ladder_s[j]), and its coefficient follows from one sample. A term is asked for only if all the
# terms
# just below it are there, so that a formula of few terms takes few samples. Many quantities are fitted to the same
# samples at once. What comes out is a conjecture until `prove` has compared it with samples it has not seen.


Values = Mapping[str, int]
Rungs = tuple[int, ...]
Key = TypeVar("Key", bound=Hashable)
Sample = Callable[[Values], Mapping[Key, int]]
HIGHEST = 5  # the highest power of a symbol that is tried, if its ladder is long enough


class NotPolynomial(Exception):
    """A quantity follows no polynomial of the symbols; `name` is the one it stumbles over, empty if it is several."""

    def __init__(self, key: Any, name: str, why: str) -> None:
        super().__init__(why)
        self.key, self.name, self.why = key, name, why


@dataclass
class Newton(Generic[Key]):
    """A growing interpolation of many quantities over the same ladders."""

    sample: Sample[Key]
    ladders: Mapping[str, Sequence[int]]
    names: tuple[str, ...] = ()
    terms: dict[Key, dict[Rungs, Fraction]] = field(default_factory=dict)
    asked: set[Rungs] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.names = tuple(self.ladders)

    def run(self) -> dict[Key, Polynomial]:
        """Ask until nothing changes any more."""
        waiting = [tuple(0 for _ in self.names)]
        while waiting:
            for rungs in waiting:
                self._ask(rungs)
            waiting = sorted(self._next(waiting))
        return {key: self._polynomial(terms) for key, terms in self.terms.items()}

    def _ask(self, rungs: Rungs) -> None:
        values = {name: self.ladders[name][rung] for name, rung in zip(self.names, rungs, strict=True)}
        found = self.sample(values)
        self.asked.add(rungs)
        whole = self._basis(rungs, values)
        for key in dict.fromkeys([*self.terms, *found]):  # in the module's own order
            terms = self.terms.setdefault(key, {})
            rest = found.get(key, 0) - sum(
                (number * self._basis(below, values) for below, number in terms.items()), Fraction(0)
            )
            if rest:
                self._refuse_high(key, rungs)
                terms[rungs] = rest / whole

    def _refuse_high(self, key: Key, rungs: Rungs) -> None:
        for name, rung in zip(self.names, rungs, strict=True):
            if rung > min(HIGHEST, len(self.ladders[name]) - 2):
                raise NotPolynomial(key, name, f"no polynomial of {name}: it still changes at the power {rung}")

    def _basis(self, rungs: Rungs, values: Values) -> Fraction:
        number = Fraction(1)
        for name, rung in zip(self.names, rungs, strict=True):
            for lower in self.ladders[name][:rung]:
                number *= values[name] - lower
        return number

    def _next(self, latest: Iterable[Rungs]) -> set[Rungs]:
        above = {_raised(rungs, place) for rungs in latest for place in range(len(self.names))} - self.asked
        return {rungs for rungs in above if any(self._called_for(rungs, terms) for terms in self.terms.values())}

    def _called_for(self, rungs: Rungs, terms: Mapping[Rungs, Fraction]) -> bool:
        below = (_raised(rungs, place, -1) for place, rung in enumerate(rungs) if rung)
        return all(lower in terms for lower in below)

    def _polynomial(self, terms: Mapping[Rungs, Fraction]) -> Polynomial:
        whole = ZERO
        for rungs, number in terms.items():
            part = ONE * number
            for name, rung in zip(self.names, rungs, strict=True):
                for lower in self.ladders[name][:rung]:
                    part = part * (symbol(name) - lower)
            whole = whole + part
        return whole


def _raised(rungs: Rungs, place: int, by: int = 1) -> Rungs:
    return (*rungs[:place], rungs[place] + by, *rungs[place + 1 :])


def fit(sample: Sample[Key], ladders: Mapping[str, Sequence[int]]) -> dict[Key, Polynomial]:
    """Fit every quantity that `sample` gives, over ladders of two values more than its highest power at least.

    >>> area = fit(lambda at: {"area": at["a"] * (at["b"] - 1)}, {"a": [2, 3, 4, 5, 6], "b": [2, 3, 4, 5, 6]})
    >>> area["area"] == symbol("a") * (symbol("b") - 1)
    True
    """
    return Newton(sample, ladders).run()


def prove(
    found: Mapping[Key, Polynomial], sample: Sample[Key], fresh: Iterable[Values], ladders: Mapping[str, Sequence[int]]
) -> None:
    """Compare with samples the fit has not seen; where they differ, say which symbol leads away."""
    for values in fresh:
        numbers = sample(values)
        for key in dict.fromkeys([*found, *numbers]):
            if found.get(key, ZERO).at(values) != numbers.get(key, 0):
                raise NotPolynomial(key, *_culprit(key, found, sample, values, ladders))


def _culprit(
    key: Key, found: Mapping[Key, Polynomial], sample: Sample[Key], values: Values, ladders: Mapping[str, Sequence[int]]
) -> tuple[str, str]:
    """The first symbol that alone leads away from the fit, and how."""
    base = {name: ladder[0] for name, ladder in ladders.items()}
    for name in ladders:
        there = {**base, name: values[name]}
        number, fitted = sample(there).get(key, 0), found.get(key, ZERO).at(there)
        if number != fitted:
            why = f"at {name} = {values[name]} it is {number:,}, where its smaller values lead to {fitted}"
            return name, f"no polynomial of {name}: {why}"
    return "", f"no polynomial of {', '.join(ladders)}: each alone fits, but not all together"


# At which sizes to probe: small ones, and where heads must divide a width or the like, well divisible ones.
#
# Which symbols must be wide is found by trying: the fewest that let the module be built at a dozen random sizes.


Ladders = dict[str, list[int]]
PLAIN = [2, 3, 4, 5, 6, 7, 8, 9]
DIVISORS = [2, 3, 4, 6, 12]  # never 1, at which much is a case of its own
MIDDLE = [12 * step for step in (1, 2, 3, 4, 6)]
TRIALS = 12
WIDEST = 3  # symbols that may have to be wide together


def choose_ladders(
    names: Sequence[str], builds: Callable[[Values], bool], hints: Mapping[str, Sequence[int]]
) -> Iterator[Ladders]:
    """Yield ladders at which the module can be built, the simplest first."""
    for ladders in _candidates(names):
        chosen = {**ladders, **{name: list(hint) for name, hint in hints.items() if name in ladders}}
        if all(builds(values) for values in draws(chosen, TRIALS)):
            yield chosen


def draws(ladders: Ladders, number: int, rungs: int | None = None) -> list[dict[str, int]]:
    """The lowest sizes, then sizes drawn at random from the ladders' first rungs; the same ones each time."""
    source = random.Random(len(ladders))
    lowest = {name: ladder[0] for name, ladder in ladders.items()}
    drawn = [{name: source.choice(ladder[:rungs]) for name, ladder in ladders.items()} for _ in range(number - 1)]
    return [lowest, *drawn]


def _candidates(names: Sequence[str]) -> Iterator[Ladders]:
    yield {name: list(PLAIN) for name in names}
    for step in (12, 24):
        for number in range(1, WIDEST + 1):
            for wide in combinations(names, number):
                for others in (PLAIN, DIVISORS):
                    yield _tiers(names, dict.fromkeys(wide, step), others)
    for step in (144, 288):  # heads in groups: few divide many, and many divide a width
        for middle, wide in permutations(names, 2):
            yield {**_tiers(names, {wide: step}, DIVISORS), middle: list(MIDDLE)}


def _tiers(names: Sequence[str], steps: Mapping[str, int], others: Sequence[int]) -> Ladders:
    return {name: [steps[name] * rung for rung in range(1, 9)] if name in steps else list(others) for name in names}


# Formulas read off a module: sample it at small sizes, fit every place exactly, prove it at sizes not seen before.
#
# No formula is typed in anywhere.


Read = Callable[[Values], Readings]
ReadingKey = tuple[Place, int]
"""A place and the number of a column of its reading; column −1 is the number of members."""

PROOFS = 3
DRAWN = 60  # sizes among which there are always some that the fit has not asked for


@dataclass(frozen=True)
class Fitted:
    """What a place reads, as polynomials, and how many members it has."""

    repeats: Polynomial
    columns: tuple[Polynomial, ...]


@dataclass(frozen=True)
class Probed:
    """What was fitted at every place, and the places that follow no polynomial, with the reason."""

    places: dict[Place, Fitted]
    refused: dict[Place, str]


def probe(read: Read, choices: Iterable[Ladders], join: Join = column_sums) -> Probed:
    """Fit what `read` gives, at every place, as polynomials of the symbols, on the first ladders that will do.

    `join` adds up the rows of members of which only the sum is known. A LedgerError says why nothing can be read.
    """
    remembered: dict[tuple[int, ...], Readings] = {}

    def reading(values: Values) -> Readings:
        key = tuple(values.values())
        if key not in remembered:
            remembered[key] = read(values)
        return remembered[key]

    refusal = LedgerError("there are no sizes at which this module can be built.")
    for ladders in choices:
        try:
            return _fit_places(reading, ladders, join)
        except LedgerError as error:
            refusal = error
    raise refusal


def _fit_places(reading: Read, ladders: Ladders, join: Join) -> Probed:
    schemes = schemes_for([reading(values) for values in _first_samples(ladders)], join)
    powers: dict[ReadingKey, dict[str, int]] = {}
    refused: dict[Place, str] = {}
    while True:
        sample = partial(_columns, lambda values: arrange(reading(values), schemes, join), powers, refused)
        try:
            newton = Newton(sample, ladders)
            found = newton.run()
            prove(found, sample, _unseen(ladders, newton.asked), ladders)
            return Probed(_gathered(found, powers), refused)
        except Misfit as misfit:
            _give_up_scheme(schemes, misfit.pattern)
        except NotPolynomial as failure:
            _try_otherwise(failure, powers, refused)


def _unseen(ladders: Ladders, asked: Collection[tuple[int, ...]]) -> list[dict[str, int]]:
    """Sizes, drawn from the ladders, whose rungs the fit has not asked for."""
    drawn = {_rungs(ladders, values): values for values in draws(ladders, DRAWN)}
    return [values for rungs, values in drawn.items() if rungs not in asked][:PROOFS]


def _rungs(ladders: Ladders, values: Values) -> tuple[int, ...]:
    return tuple(ladder.index(values[name]) for name, ladder in ladders.items())


def _give_up_scheme(schemes: dict[str, list[Scheme]], pattern: str) -> None:
    """Take the next scheme of a pattern; one that showed up only now gets its sum."""
    schemes[pattern] = schemes.get(pattern, [])[1:] or ["sum"]


def _first_samples(ladders: Ladders) -> list[dict[str, int]]:
    base = {name: ladder[0] for name, ladder in ladders.items()}
    return [base, *({**base, name: ladder[1]} for name, ladder in ladders.items())]


def _columns(
    arranged: Callable[[Values], Mapping[Place, tuple[int, tuple[int, ...]]]],
    powers: Mapping[ReadingKey, Mapping[str, int]],
    refused: Mapping[Place, str],
    values: Values,
) -> dict[ReadingKey, int]:
    places = arranged(values)
    columns = {(place, -1): count for place, (count, _) in places.items()}
    columns |= {(place, at): number for place, (_, row) in places.items() for at, number in enumerate(row)}
    for key, factors in powers.items():
        for name, power in factors.items():
            columns[key] = columns.get(key, 0) * values[name] ** power
    return {key: number for key, number in columns.items() if key[0] not in refused}


def _try_otherwise(failure: NotPolynomial, powers: dict[ReadingKey, dict[str, int]], refused: dict[Place, str]) -> None:
    """Go on with the quantity times the symbol it stumbled over, which may divide it; where that was tried, without."""
    place, column = failure.key
    factors = powers.setdefault((place, column), {})
    if not failure.name or failure.name in factors:
        refused[place] = failure.why
        for key in [key for key in powers if key[0] == place]:
            del powers[key]
    else:
        factors[failure.name] = 1


def _gathered(
    found: Mapping[ReadingKey, Polynomial], powers: Mapping[ReadingKey, Mapping[str, int]]
) -> dict[Place, Fitted]:
    whole = {key: _divided(polynomial, powers.get(key, {})) for key, polynomial in found.items()}
    places: dict[Place, dict[int, Polynomial]] = {}
    for (place, column), polynomial in whole.items():
        places.setdefault(place, {})[column] = polynomial
    return {
        place: Fitted(columns.get(-1, ONE), tuple(columns[at] for at in sorted(columns) if at >= 0))
        for place, columns in places.items()
    }


def _divided(polynomial: Polynomial, factors: Mapping[str, int]) -> Polynomial:
    for name, power in factors.items():
        polynomial = polynomial / symbol(name) ** power
    return polynomial
