"""From samples to the exact polynomial: interpolation that asks only where something still changes.

Every symbol has a ladder of values. The polynomial is built in Newton's form: the term of the rungs ν is
Π_s Π_{j<ν_s} (s − ladder_s[j]), and its coefficient follows from one sample. A term is asked for only if all the terms
just below it are there, so that a formula of few terms takes few samples. Many quantities are fitted to the same
samples at once. What comes out is a conjecture until `prove` has compared it with samples it has not seen.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Generic, TypeVar

from lemma.ledger.polynomial import ONE, ZERO, Polynomial, symbol

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
