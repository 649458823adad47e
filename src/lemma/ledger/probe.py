"""Formulas read off a module: sample it at small sizes, fit every place exactly, prove it at sizes not seen before.

No formula is typed in anywhere.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from lemma.errors import LedgerError
from lemma.ledger.fitting import Newton, NotPolynomial, Values, prove
from lemma.ledger.ladders import Ladders, draws
from lemma.ledger.places import Join, Misfit, Place, Readings, Scheme, arrange, column_sums, schemes_for
from lemma.ledger.polynomial import ONE, Polynomial, symbol

Read = Callable[[Values], Readings]
Key = tuple[Place, int]
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
    powers: dict[Key, dict[str, int]] = {}
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
    powers: Mapping[Key, Mapping[str, int]],
    refused: Mapping[Place, str],
    values: Values,
) -> dict[Key, int]:
    places = arranged(values)
    columns = {(place, -1): count for place, (count, _) in places.items()}
    columns |= {(place, at): number for place, (_, row) in places.items() for at, number in enumerate(row)}
    for key, factors in powers.items():
        for name, power in factors.items():
            columns[key] = columns.get(key, 0) * values[name] ** power
    return {key: number for key, number in columns.items() if key[0] not in refused}


def _try_otherwise(failure: NotPolynomial, powers: dict[Key, dict[str, int]], refused: dict[Place, str]) -> None:
    """Go on with the quantity times the symbol it stumbled over, which may divide it; where that was tried, without."""
    place, column = failure.key
    factors = powers.setdefault((place, column), {})
    if not failure.name or failure.name in factors:
        refused[place] = failure.why
        for key in [key for key in powers if key[0] == place]:
            del powers[key]
    else:
        factors[failure.name] = 1


def _gathered(found: Mapping[Key, Polynomial], powers: Mapping[Key, Mapping[str, int]]) -> dict[Place, Fitted]:
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
