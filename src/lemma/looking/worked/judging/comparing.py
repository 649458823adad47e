"""A value as a person wrote it, held against a quantity: where is it right, and where not."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from lemma.errors import InputError
from lemma.looking.worked.judging.numbers import Given, is_near, read_number
from lemma.looking.worked.judging.quantity import AnyQuantity, Array, Quantity, WordQuantity
from lemma.looking.worked.judging.values import Table

Place = tuple[int, ...]


@dataclass(frozen=True)
class Entries:
    """The numbers of a value by their place, with the decimals to which all of them are taken."""

    shape: tuple[int, ...]
    numbers: dict[Place, Given]

    @property
    def decimals(self) -> int:
        """The most decimals of any of them: a list is written to one precision, noughts at its ends left out."""
        return max((one.decimals or 0 for one in self.numbers.values()), default=0)

    def differing(self, exact: Array) -> list[Place]:
        """The places at which this is not the exact value, rounded."""
        return [
            place for place, given in self.numbers.items() if not is_near(float(exact[place]), given, self.decimals)
        ]

    def fits(self, other: Array) -> bool:
        """Whether these are the numbers of another array, up to a unit more of the last decimal."""
        return other.shape == self.shape and all(
            is_near(float(other[place]), given, self.decimals, slack=1.0) for place, given in self.numbers.items()
        )


def read_entries(value: Any, against: Quantity) -> Entries:
    """The numbers of a value, which must have the shape of what it is held against, or be its transpose."""
    if isinstance(value, Table):
        return _from_table(value, against)
    numbers = dict(_flat(value, (), against))
    return Entries(_shape(value, against), numbers)


def words_of(value: Any, against: WordQuantity) -> list[tuple[int, str]]:
    """The words of a value with their places."""
    if isinstance(value, Table):
        words = {_label(against.labels, label, against.name): _text(one) for label, one in value.items.items()}
        _refuse_gaps(words, against)
        return list(words.items())
    if not against.labels:
        return [(0, _text(value))]
    if not isinstance(value, list):
        raise InputError(
            f"{against.name}: a list of words is expected, as in [{_text(value)}, …]; got '{_text(value)}'."
        )
    return [(place, _text(one)) for place, one in enumerate(value)]


def same_word(given: str, right: Sequence[str]) -> bool:
    """Whether a word is one of those that are right; blanks count once, and </w> ends a word too."""
    return _plain(given) in map(_plain, right)


def _plain(word: str) -> str:
    return " ".join(word.replace("</w>", r"\w").split())


def _text(value: Any) -> str:
    if isinstance(value, Given):
        return value.text
    return " ".join(map(_text, value)) if isinstance(value, list) else str(value)


def _flat(value: Any, place: Place, against: Quantity) -> Iterator[tuple[Place, Given]]:
    if isinstance(value, list):
        for number, one in enumerate(value):
            yield from _flat(one, (*place, number), against)
    elif isinstance(value, Given):
        yield place, value
    else:
        raise InputError(f"{against.name}: '{_text(value)[:40]}' is no number. Expected: {against.form}.")


def _shape(value: Any, against: Quantity) -> tuple[int, ...]:
    if not isinstance(value, list):
        return ()
    shapes = {_shape(one, against) for one in value}
    if len(shapes) > 1:
        raise InputError(f"{against.name}: all rows of a matrix are equally long; yours are not.")
    return (len(value), *(shapes.pop() if shapes else ()))


def _from_table(value: Table, against: Quantity) -> Entries:
    if len(against.labels) != 1:
        raise InputError(f"{against.name}: a table of labels is for a vector; {against.form} is expected here.")
    numbers: dict[Place, Given] = {}
    for label, one in value.items.items():
        given = one if isinstance(one, Given) else read_number(one)
        if given is None:
            raise InputError(f"{against.name}: {label}: '{one}' is no number.")
        numbers[(_label(against.labels, label, against.name),)] = given
    _refuse_gaps([place for (place,) in numbers], against)
    return Entries(against.shape, numbers)


def _refuse_gaps(places: Collection[int], against: AnyQuantity) -> None:
    """A table has all labels: what is left out cannot be right."""
    labels = against.labels[0] if against.labels else ("its one word",)
    missing = [label for place, label in enumerate(labels) if place not in places]
    if missing:
        raise InputError(f"{against.name}: your table leaves out {', '.join(missing[:6])}.")


def _label(labels: tuple[tuple[str, ...], ...], label: str, name: str) -> int:
    if len(labels) == 1 and "".join(label.split()) in (squeezed := ["".join(one.split()) for one in labels[0]]):
        return squeezed.index("".join(label.split()))
    known = ", ".join(labels[0]) if labels else "none"
    raise InputError(f"{name}: there is no '{label}'. Known: {known}.")


def permutation(entries: Entries, exact: Array) -> str:
    """Whether rows, or columns, stand in another order; an empty text if not."""
    if entries.shape != exact.shape or not 1 <= exact.ndim <= 2:
        return ""
    names = ("entries",) if exact.ndim == 1 else ("rows", "columns")
    for axis, name in enumerate(names):
        if _reordered(entries, exact, axis):
            return f"the {name} stand in another order"
    return ""


def _reordered(entries: Entries, exact: Array, axis: int) -> bool:
    """Every slice of the value is a slice of the exact one, each used once."""
    left = list(range(exact.shape[axis]))
    for place in range(exact.shape[axis]):
        found = next((other for other in left if _same_slice(entries, exact, axis, place, other)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _same_slice(entries: Entries, exact: Array, axis: int, place: int, other: int) -> bool:
    others = [range(size) for number, size in enumerate(exact.shape) if number != axis]
    for rest in product(*others):
        mine, theirs = ((*rest[:axis], one, *rest[axis:]) for one in (place, other))
        if not is_near(float(exact[theirs]), entries.numbers[mine], entries.decimals):
            return False
    return True


def as_array(entries: Entries) -> Array:
    """The numbers themselves."""
    made = np.zeros(entries.shape)
    for place, given in entries.numbers.items():
        made[place] = given.value
    return made
