"""The sizes at which a formula holds, checked against the module before the formula is written for use elsewhere.

A formula is fitted at small sizes and compared at the requested ones. Here the module is read again along each size, at
its smallest values and past the requested one, so that the domain of the written formula leaves out what differs.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from lemma.counting.account import Quantity
from lemma.counting.fit import LAYER_NAMES, Domain, Sizes
from lemma.counting.polynomial import Polynomial
from lemma.errors import CountingError

FAR_FACTOR, MIN_FAR = 4, 1024  # of the requested size, and at least: where roundings of widths and windows show
NUM_COMBINATIONS = 8  # sizes at which all symbols differ from the small ones
MAX_CHECKS = 6  # numbers of the module that are written with a formula


@dataclass(frozen=True)
class ModuleFigure:
    """A number that was read off the module at some sizes."""

    sizes: Sizes
    number: int


@dataclass(frozen=True)
class ProvedDomain:
    """The sizes at which a formula holds.

    Attributes:
        domain: bounds of single sizes, and sizes that are at most another.
        below: pairs of `domain.ordered` of which the first must be smaller, not equal.
        divisors: sizes that must divide others, for which the formula has quotients.
        checks: numbers of the module in the domain.
    """

    domain: Domain
    below: frozenset[tuple[str, str]]
    divisors: Mapping[str, tuple[str, ...]]
    checks: tuple[ModuleFigure, ...]

    def contains(self, sizes: Sizes) -> bool:
        """Return whether the formula holds at `sizes`."""
        is_equal = any(sizes[low] == sizes[high] for low, high in self.below)
        is_broken = any(sizes[name] % sizes[by] for by, names in self.divisors.items() for name in names)
        return self.domain.contains(sizes) and not is_equal and not is_broken

    @property
    def symbols(self) -> frozenset[str]:
        """Return the sizes that the domain restricts."""
        domain = self.domain
        single = {*domain.only_at, *domain.multiples, *domain.at_least, *domain.at_most}
        pairs = {*domain.ordered, *domain.ordered.values(), *self.divisors}
        return frozenset(single | pairs | {name for names in self.divisors.values() for name in names})


class DomainSearch:
    """Reads one quantity off the module at many sizes, and finds where its formula holds."""

    def __init__(self, quantity: Quantity, small: Sizes) -> None:
        self.quantity = quantity
        self.requested = dict(quantity.compared_at)
        self.base = self._move_into_domain({name: small.get(name, size) for name, size in self.requested.items()})
        self.readings: dict[tuple[int, ...], tuple[Sizes, int]] = {}

    def prove(self) -> ProvedDomain:
        """Return the domain of the formula, with numbers of the module in it.

        Raises:
            CountingError: the formula fails at sizes that cannot be separated from those at which it holds.
        """
        walks = [(name, sizes) for name in self.requested for sizes in self._walk(name)]
        for sizes in (self.requested, self.base, *(sizes for _, sizes in walks)):
            self._read(sizes)
        proved = ProvedDomain(self.quantity.domain, frozenset(), {}, ())
        proved = replace(proved, divisors=self._find_divisors())
        proved = replace(proved, below=self._find_strict_orders(proved))
        for name in self.requested:
            proved = replace(proved, domain=self._bound(name, proved))
        if not proved.contains(self.requested):
            raise CountingError("the formula holds at the requested sizes only")
        for sizes in self._combinations(proved):
            self._read(sizes)
        self._check_all(proved)
        return replace(proved, checks=tuple(self._choose_checks(proved)))

    def _read(self, sizes: Sizes) -> int | None:
        """Return the amount at `sizes`, read off the module once; None if that is not possible."""
        key = tuple(sizes[name] for name in self.requested)
        if key not in self.readings and self.quantity.recount is not None:
            expected = self.quantity.evaluate(sizes)
            try:
                number = self.quantity.recount(sizes, expected or 0)
            except CountingError:  # the module does not work there
                return None
            if number is None:
                return None
            self.readings[key] = dict(sizes), number
        return self.readings[key][1] if key in self.readings else None

    def _holds(self, sizes: Sizes) -> bool | None:
        """Return whether the formula gives the module's number; None if there is none, or no formula there."""
        number, expected = self._read(sizes), self.quantity.evaluate(sizes)
        return None if number is None or expected is None else number == expected

    def _move_into_domain(self, sizes: Sizes) -> dict[str, int]:
        """Return sizes near `sizes` that are in the quantity's domain."""
        domain = self.quantity.domain
        moved = {**sizes, **{name: size for name, size in domain.only_at.items() if name in sizes}}
        for name, step in domain.multiples.items():
            moved[name] = -(-moved[name] // step) * step
        for name, size in domain.at_least.items():
            moved[name] = max(moved[name], size)
        for low, high in domain.ordered.items():
            moved[high] = max(moved[high], moved[low] + 1)
        return moved if domain.contains(moved) else dict(self.requested)

    def _walk(self, name: str) -> Iterator[dict[str, int]]:
        """Yield sizes that differ in one from small ones: 1, one between, and some past the requested one."""
        requested, small = self.requested[name], self.base[name]
        is_depth = LAYER_NAMES.match(name) is not None
        far = 2 * requested if is_depth else max(FAR_FACTOR * requested, MIN_FAR)
        values = {1, (requested + small) // 2 or 1, requested + 1, small * -(-far // small)}
        values |= set() if is_depth else {far + 1}
        if name in self.quantity.domain.only_at:
            values = {requested}
        for value in sorted(values):
            sizes = {**self.base, name: value}
            yield sizes
            if high := self.quantity.domain.ordered.get(name):  # up to the size that bounds it
                yield {**sizes, high: value}
                yield {**sizes, high: value + 1}

    def _find_divisors(self) -> dict[str, tuple[str, ...]]:
        """Return for each size in a denominator the sizes that it must divide."""
        numerators: dict[str, set[str]] = {}
        for polynomial in _list_factors(self.quantity):
            for monomial in polynomial.terms:
                powers = dict(monomial)
                for name in (name for name, power in monomial if power < 0):
                    enough = {other for other, power in monomial if power >= -powers[name]}
                    numerators[name] = numerators.get(name, enough) & enough
        divisors: dict[str, tuple[str, ...]] = {}
        right = [sizes for sizes, number in self.readings.values() if self.quantity.evaluate(sizes) == number]
        for name, others in numerators.items():
            divided = [other for other in self.requested if other in others]
            divisors[name] = tuple(
                other for other in divided if all(sizes[other] % sizes[name] == 0 for sizes in right)
            )
            if not divisors[name]:
                raise CountingError(f"{name} divides no size that it must divide")
        return divisors

    def _find_strict_orders(self, proved: ProvedDomain) -> frozenset[tuple[str, str]]:
        """Return the pairs of ordered sizes that must not be equal."""
        strict: set[tuple[str, str]] = set()
        for low, high in self.quantity.domain.ordered.items():
            equal = [sizes for sizes, _ in self.readings.values() if sizes[low] == sizes[high]]
            outcomes = {self._holds(sizes) for sizes in equal if proved.contains(sizes)} - {None}
            if outcomes != {True}:  # it fails there, or nothing could be read
                strict.add((low, high))
        return frozenset(strict)

    def _bound(self, name: str, proved: ProvedDomain) -> Domain:
        """Return the domain with bounds of one size, outside of which the formula fails along that size."""
        requested = self.requested[name]
        along = {
            sizes[name]: sizes
            for sizes, _ in self.readings.values()
            if all(sizes[other] == self.base[other] for other in self.requested if other != name)
        }
        outcomes = {value: self._holds(sizes) for value, sizes in along.items() if proved.contains(sizes)}
        failing = [value for value, holds in outcomes.items() if holds is False]
        working = [value for value, holds in outcomes.items() if holds]
        at_least, at_most = dict(proved.domain.at_least), dict(proved.domain.at_most)
        lows = [value for value in failing if value <= requested]
        highs = [value for value in failing if value > requested]
        if lows:
            above = [value for value in working if value > max(lows)]
            at_least[name] = self._bisect(name, min(above, default=requested), max(lows), proved)
        if highs:
            below = [value for value in working if value < min(highs)]
            at_most[name] = self._bisect(name, max(below, default=requested), min(highs), proved)
        return replace(proved.domain, at_least=at_least, at_most=at_most)

    def _bisect(self, name: str, working: int, failing: int, proved: ProvedDomain) -> int:
        """Return the last value from `working` towards `failing` at which the formula holds."""
        while abs(working - failing) > 1:
            middle = (working + failing) // 2
            sizes = {**self.base, name: middle}
            holds = self._holds(sizes) if proved.contains(sizes) else None
            working, failing = (middle, failing) if holds else (working, middle)  # unknown is taken for failing
        return working

    def _combinations(self, proved: ProvedDomain) -> Iterator[dict[str, int]]:
        """Yield sizes in the domain of which each is one at which the formula holds along that size."""
        right = [sizes for sizes, number in self.readings.values() if self.quantity.evaluate(sizes) == number]
        small = [sizes for sizes in right if proved.contains(sizes) and sizes != self.requested]
        values = {name: sorted({sizes[name] for sizes in small}) or [self.base[name]] for name in self.requested}
        rng = random.Random(len(values))
        remaining = NUM_COMBINATIONS
        for _ in range(20 * NUM_COMBINATIONS):
            sizes = {name: rng.choice(choices[: max(2, len(choices) - 2)]) for name, choices in values.items()}
            if remaining and proved.contains(sizes):
                remaining -= 1
                yield sizes

    def _check_all(self, proved: ProvedDomain) -> None:
        """Raise CountingError if the formula fails anywhere in its domain."""
        for sizes, number in self.readings.values():
            if proved.contains(sizes) and self.quantity.evaluate(sizes) not in (number, None):
                where = ", ".join(f"{name} = {size:,}" for name, size in sizes.items())
                raise CountingError(f"it does not hold at {where}, and no bound of one size leaves that out")

    def _choose_checks(self, proved: ProvedDomain) -> Iterator[ModuleFigure]:
        """Yield numbers of the module in the domain: at the requested sizes if known, then where most sizes differ."""
        used = self.quantity.polynomial.symbols | proved.symbols
        used |= frozenset[str]().union(*(rule.symbols for rule in self.quantity.rules.values()))
        checks = [
            ModuleFigure(sizes, number)
            for sizes, number in self.readings.values()
            if proved.contains(sizes) and self.quantity.evaluate(sizes) == number
        ]
        first = [check for check in checks if check.sizes == self.requested]
        others = [check for check in checks if check.sizes != self.requested]
        others.sort(key=lambda check: -sum(size != self.base[name] for name, size in check.sizes.items()))
        different = {
            tuple(check.sizes.get(name) for name in sorted(used)): check for check in reversed([*first, *others])
        }
        yield from [*reversed(different.values())][:MAX_CHECKS]


def _list_factors(quantity: Quantity) -> Iterator[Polynomial]:
    """Yield the polynomials of which the parts of a quantity are products."""
    for part in quantity.groups:
        yield part.repeats
        yield from part.factors


def prove_domain(quantity: Quantity, small: Sizes) -> ProvedDomain:
    """Return where the formula of a quantity holds, checked against the module; `small` are sizes to start from.

    Raises:
        CountingError: a part has no formula, or the formula fails in its domain.
    """
    if quantity.refused:
        path, reason = next(iter(quantity.refused.items()))
        raise CountingError(f"{path or 'the module'} follows {reason}")
    unknown = [letter for letter in quantity.derived if letter not in quantity.rules]
    if unknown:
        raise CountingError(f"{', '.join(unknown)} follows no formula of the other sizes")
    if quantity.recount is None:
        raise CountingError("there is no module to compare it with")
    return DomainSearch(quantity, small).prove()
