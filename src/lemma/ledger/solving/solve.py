"""The sizes that give a printed total."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

from lemma.errors import LedgerError
from lemma.ledger.polynomial import Polynomial
from lemma.ledger.quantity import Quantity
from lemma.ledger.solving.equations import equation
from lemma.ledger.solving.refusals import refuse_misfits
from lemma.ledger.solving.roundness import order_of
from lemma.ledger.solving.search import LARGEST_SEARCH, Search
from lemma.ledger.solving.solutions import Solutions, Total
from lemma.ledger.subject import Subject, Values

MOST_BUILT = 200
"""Candidates that are built in order to see whether they can be."""
LAYERS, HEADS = range(1, 201), range(1, 257)
SENSIBLE = {
    "V": range(1, 1_000_001),
    "T": range(1, 1_000_001),
    "N": range(2, 1_001),
    **dict.fromkeys(("L", "L_enc", "L_dec"), LAYERS),
    **dict.fromkeys(("h", "h_kv"), HEADS),
}
WIDTHS = range(1, 65_537)
Fits = Callable[[Values], bool]


def solve(
    polynomial: Polynomial,
    unknown: Sequence[str],
    totals: Sequence[tuple[int, Values]],
    known: Values,
    ranges: Mapping[str, range] | None = None,
    fits: Fits | None = None,
    limit: int = 20,
    most: int = LARGEST_SEARCH,
) -> Solutions:
    """Find the whole numbers at which a polynomial has these totals, each with sizes of its own beside the known ones.

    `fits` says whether something can be built with all its sizes; it is asked about the roundest candidates first.

    >>> from lemma.ledger.polynomial import symbol
    >>> print(solve(symbol("V") * symbol("d") + symbol("d"), ["V"], [(808, {})], {"d": 8}))
    808 at d=8
    The only solution within V 1…1,000,000.
      V
    100
    """
    wanted = {name: (ranges or {}).get(name, SENSIBLE.get(name, WIDTHS)) for name in unknown}
    refuse_misfits(polynomial, wanted, totals, known, ranges or {})
    needed = {name: value for name, value in known.items() if name in polynomial.symbols and name not in wanted}
    where = tuple(Total(value, {**needed, **own}) for value, own in totals)
    lefts = [_with(polynomial, total.known) - total.value for total in where]
    lefts += [one - other for one, other in combinations(lefts, 2)]  # what they share is gone from these
    equations = [equation(left, unknown) for left in lefts]
    found = Search(list(unknown), most).solutions(equations, tuple(wanted.values()))
    candidates = sorted((dict(zip(unknown, values, strict=True)) for values in found), key=order_of)
    shown, tried = _fitting(candidates, [{**known, **own} for _, own in totals], fits, limit)
    return Solutions(tuple(unknown), where, wanted, len(candidates), tried, shown)


def solve_for(
    subject: Subject,
    quantity: Quantity,
    unknown: Sequence[str],
    totals: Sequence[tuple[int, Values]],
    ranges: Mapping[str, range] | None = None,
    limit: int = 20,
) -> Solutions:
    """Find the sizes at which a quantity of a subject has these totals; the other sizes are the subject's own.

    Sizes that follow others by default, such as d_ff = 4d, follow them here too. What cannot be built is left out.
    """
    if quantity.refused:
        raise LedgerError(f"{subject.name}: its {quantity.name} follow no formula, so they cannot be solved for sizes.")
    given = {*unknown, *(name for _, own in totals for name in own)}
    follows = {name: default for name, default in subject.defaults.items() if name not in given}
    polynomial = _with(quantity.polynomial, follows)
    known = {name: value for name, value in subject.sizes(True).items() if name not in follows and name not in unknown}

    def fits(values: Values) -> bool:
        return _builds(subject, {**values, **{name: int(default.at(values)) for name, default in follows.items()}})

    return solve(polynomial, unknown, totals, known, ranges, fits, limit)


def _with(polynomial: Polynomial, values: Mapping[str, Polynomial] | Values) -> Polynomial:
    for name, value in values.items():
        polynomial = polynomial.put(name, value)
    return polynomial


def _fitting(
    candidates: Sequence[dict[str, int]], others: Sequence[Values], fits: Fits | None, limit: int
) -> tuple[tuple[dict[str, int], ...], int]:
    """The first candidates that fit, and how many were asked about; all of them if they are not too many."""
    if fits is None:
        return tuple(candidates[:limit]), 0
    shown: list[dict[str, int]] = []
    tried = 0
    for candidate in candidates[:MOST_BUILT]:
        if len(shown) == limit:
            break
        tried += 1
        shown += [candidate] if all(fits({**known, **candidate}) for known in others) else []
    return tuple(shown), tried


def _builds(subject: Subject, values: Values) -> bool:
    try:
        subject.build({name: values[name] for name in subject.symbols})
    except LedgerError:
        return False
    return True
