"""Places in a module: paths in which repeated layers are one.

`layers.0.output.weight`, `layers.1.output.weight` … are `layers.*.output.weight`, as long as they say the same. Where a
path has several numbers, some may stand for different things (`blocks.*.0.weight`, `blocks.*.3.weight`). If only the
first or the last differs, it stands apart from the others; if nothing of the kind holds, only their sum is known.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

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
