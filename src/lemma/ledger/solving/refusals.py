"""Questions that have no answer, refused before the search."""

from collections.abc import Mapping, Sequence

from lemma.errors import InputError
from lemma.errors import unknown as unknown_name
from lemma.ledger.polynomial import Polynomial
from lemma.ledger.subject import Values


def refuse_misfits(
    polynomial: Polynomial,
    wanted: Mapping[str, range],
    totals: Sequence[tuple[int, Values]],
    known: Values,
    ranges: Mapping[str, range],
) -> None:
    """Raise an `InputError` if an unknown, a total or a range does not fit the polynomial."""
    _check_unknowns(polynomial, list(wanted), known)
    _check_totals(polynomial, list(wanted), totals, known)
    for name in ranges:
        if name not in wanted:
            raise InputError(unknown_name("range: the unknown", name, wanted))
    for name, values in wanted.items():
        if not values or values[0] < 1 or values.step < 1:
            raise InputError(f"range of {name}: expected at least one value, rising, none below 1; got {values}.")


def _check_unknowns(polynomial: Polynomial, wanted: Sequence[str], known: Values) -> None:
    if not wanted:
        raise InputError("There is nothing to solve for. Name at least one unknown, as in V,d.")
    for name in wanted:
        if name not in polynomial.symbols and name in known:
            raise InputError(f"The formula does not depend on {name}, so no total can tell its value.")
        if name not in polynomial.symbols:
            raise InputError(unknown_name("unknown", name, sorted(polynomial.symbols)))


def _check_totals(
    polynomial: Polynomial, wanted: Sequence[str], totals: Sequence[tuple[int, Values]], known: Values
) -> None:
    if not totals:
        raise InputError("There is no total to solve for. Give at least one, as in 9721596 or L=2:9721596.")
    symbols = {*polynomial.symbols, *known}
    for value, own in totals:
        if value < 1:
            raise InputError(f"total {value}: expected a whole number above 0.")
        for name in own:
            if name in wanted:
                raise InputError(f"total {value:,}: {name} is given a value and asked for. Leave one of them out.")
            if name not in symbols:
                raise InputError(unknown_name(f"total {value:,}: the symbol", name, sorted(symbols)))
        missing = sorted(polynomial.symbols - {*wanted, *own, *known})
        if missing:
            raise InputError(f"total {value:,}: {', '.join(missing)} has no value. Give it one, or ask for it.")
