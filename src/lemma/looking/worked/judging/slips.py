"""Slips that explain a wrong value: signs, transposes, another quantity's numbers, rounding on the way."""

from collections.abc import Iterable, Iterator

import numpy as np

from lemma.errors import InputError
from lemma.looking.worked.judging.claims import Target
from lemma.looking.worked.judging.comparing import Entries, as_array, permutation
from lemma.looking.worked.judging.finding import part
from lemma.looking.worked.judging.quantity import AnyQuantity, Quantity

ROUNDING = 10
"""Units of the last decimal within which a value was probably rounded on the way."""
FACTORS = {"twice": 2.0, "half": 0.5, "ten times": 10.0, "a tenth of": 0.1}


def explain(entries: Entries, right: Quantity, others: Iterable[AnyQuantity], places: tuple[str, ...]) -> str:
    """The first slip that explains a value; an empty text if none does."""
    return next(_explanations(entries, right, others, places), "")


def _explanations(
    entries: Entries, right: Quantity, others: Iterable[AnyQuantity], places: tuple[str, ...]
) -> Iterator[str]:
    exact = right.values
    if entries.fits(-exact):
        yield "the sign is the other way round."
    for said, made in right.slips.items():
        if entries.fits(made):
            yield f"{said}."
    if entries.shape == exact.T.shape and exact.ndim == 2 and entries.fits(exact.T):
        yield "transposed: rows and columns are exchanged."
    if entries.shape == exact.shape and np.ptp(as_array(entries)) > 0:
        said = permutation(entries, exact)
        yield from [f"{said}."] if said else []
    yield from _another(entries, right, others, places)
    for said, factor in FACTORS.items():
        if entries.fits(exact * factor) and np.abs(exact).max() > 0:
            yield f"yours is {said} the right value."
    yield from _rounded(entries, right)


def _another(
    entries: Entries, right: Quantity, others: Iterable[AnyQuantity], places: tuple[str, ...]
) -> Iterator[str]:
    """The numbers of another quantity of the case, at the same place."""
    for other in others:
        taken = _same_part(other, places)
        if taken is None or taken.name == right.name or taken.labels != right.labels:
            continue
        if entries.fits(taken.values) and _tells(taken.values):
            meaning = f" ({other.meaning})" if other.meaning and other.meaning != other.name else ""
            yield f"that is {taken.name}{meaning}, not {right.name}."


def _same_part(other: AnyQuantity, places: tuple[str, ...]) -> Quantity | None:
    if not isinstance(other, Quantity) or len(other.shape) < len(places):
        return None
    try:
        taken = part(other, Target(other.name, places)) if places else other
    except InputError:  # it has no such place
        return None
    return taken if isinstance(taken, Quantity) else None


def _tells(values: np.ndarray) -> bool:
    """Whether the numbers are particular enough to be recognised: not nought or one alone."""
    return bool(np.any((np.abs(values) > 1e-9) & (np.abs(values - 1) > 1e-9)))


def _rounded(entries: Entries, right: Quantity) -> Iterator[str]:
    if entries.shape != right.shape or not entries.decimals:
        return
    worst = float(np.abs(as_array(entries) - right.values).max())
    units = worst * 10**entries.decimals
    if units <= ROUNDING and worst <= 0.02 * float(np.abs(right.values).max()):
        yield f"off by at most {units:.1f} units of the last decimal: rounded on the way? Keep more decimals till then."
