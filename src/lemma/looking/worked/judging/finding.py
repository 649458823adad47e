"""From what a claim is about to the quantity of the case, or the part of it at the places named."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from shlex import quote

from lemma.errors import InputError, unknown
from lemma.looking.worked.judging.claims import Target
from lemma.looking.worked.judging.quantity import AnyQuantity, Labels, Quantity

MOST_LISTED = 12
ALL = ":"
"""Stands for every row, or every column."""


@dataclass(frozen=True)
class Names:
    """The quantities of a case by every name they have."""

    case: str
    quantities: Sequence[AnyQuantity]

    def find(self, target: Target) -> AnyQuantity:
        """The quantity of that name, at those places."""
        named = self._by_name(target.name)
        return part(named, target) if target.places else named

    def _by_name(self, name: str) -> AnyQuantity:
        for one in self.quantities:
            if name in (one.name, *one.spellings):
                return one
        close = [one for one in self.quantities if _plain(name) in map(_plain, (one.name, *one.spellings))]
        if len(close) == 1:
            return close[0]
        raise InputError(f"{self.case}: {self._unknown(name)} All names: lemma check worked {quote(self.case)} --names")

    def _unknown(self, name: str) -> str:
        known = [one.name for one in self.quantities]
        numbered = [one.name for one in self.quantities if f"{name}1" in (one.name, *one.spellings)]
        if numbered:
            last = numbered[0].rstrip("0123456789")
            several = [one for one in known if one.rstrip("0123456789") == last]
            return f"'{name}' is there {len(several)} times. Which one? Known: {', '.join(several)}."
        shown = known if len(known) <= MOST_LISTED else [one for one in known if _plain(one)[:1] == _plain(name)[:1]]
        return unknown("the name", name, shown[:MOST_LISTED] or known[:MOST_LISTED])


def part(whole: AnyQuantity, target: Target) -> AnyQuantity:
    """One element, row or column of a quantity: places are labels, or counted from 1; `:` stands for all of them.

    Taken from the last axis to the first, so that an axis that falls away does not move the others.
    """
    if len(target.places) > len(whole.shape):
        held = ("one value", "a vector", "a matrix")[len(whole.shape)]
        raise InputError(f"{target}: {whole.name} is {held}; it has no place [{', '.join(target.places)}].")
    for axis in reversed(range(len(target.places))):
        if target.places[axis] != ALL:
            whole = _at(whole, axis, _place(whole.labels[axis], target.places[axis], target))
    return replace(whole, name=str(target))


def _at(whole: AnyQuantity, axis: int, place: int) -> AnyQuantity:
    labels = whole.labels[:axis] + whole.labels[axis + 1 :]
    if isinstance(whole, Quantity):
        slips = {said: made.take(place, axis) for said, made in whole.slips.items()}
        return replace(whole, values=whole.values.take(place, axis), labels=labels, slips=slips)
    return replace(whole, values=(whole.values[place],), labels=labels)


def _place(labels: Labels, place: str, target: Target) -> int:
    for number, label in enumerate(labels):
        if _plain(label) == _plain(place):
            return number
    if place.isdigit() and 1 <= int(place) <= len(labels):
        return int(place) - 1
    count = f" Or a number from 1 to {len(labels)}."
    raise InputError(f"{target}: " + unknown("the place", place, labels[:MOST_LISTED]) + count)


def _plain(name: str) -> str:
    return name.casefold().replace("_", "").replace(" ", "")
