"""Places in a module: paths in which repeated layers are one.

`layers.0.output.weight`, `layers.1.output.weight` … are all `layers.*.output.weight`, as long as they say the same. If
only the first differs, it stands apart from the others; if nothing of the kind holds, only their sum is known.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)|(?<=_l)\d+(?=_|$)")
Scheme = Literal["all", "each", "first", "last", "sum"]
SCHEMES: tuple[Scheme, ...] = ("all", "each", "first", "last", "sum")
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

    >>> pattern_of("layers.3.attention.output.weight"), pattern_of("weight_ih_l1_reverse")
    ('layers.*.attention.output.weight', 'weight_ih_l*_reverse')
    """
    return NUMBER.sub("*", path)


def members(readings: Readings) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """Sort readings by pattern; within each by the numbers in the path."""
    groups: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for path, reading in readings.items():
        groups.setdefault(pattern_of(path), []).append((path, reading))
    for group in groups.values():
        group.sort(key=lambda member: _numbers(member[0]))
    return groups


def schemes_for(samples: Sequence[Readings]) -> dict[str, Scheme]:
    """The first scheme for each pattern that fits all samples."""
    grouped = [members(sample) for sample in samples]
    patterns = {pattern: None for groups in grouped for pattern in groups}
    return {pattern: _scheme([groups.get(pattern, []) for groups in grouped]) for pattern in patterns}


def arrange(readings: Readings, schemes: Mapping[str, Scheme]) -> dict[Place, tuple[int, tuple[int, ...]]] | None:
    """The number of members and the common reading of every place; None if a scheme does not fit."""
    places: dict[Place, tuple[int, tuple[int, ...]]] = {}
    for pattern, group in members(readings).items():
        found = _arranged(pattern, group, schemes.get(pattern, "each"))
        if found is None:
            return None
        places |= found
    return places


def _scheme(groups: Sequence[list[tuple[str, tuple[int, ...]]]]) -> Scheme:
    if len({tuple(path for path, _ in group) for group in groups}) > 1:
        candidates: tuple[Scheme, ...] = ("all", "first", "last", "sum")
    else:
        candidates = ("all", "each")
    for scheme in candidates:
        if all(_arranged("", group, scheme) is not None for group in groups):
            return scheme
    return "sum"


def _arranged(
    pattern: str, group: list[tuple[str, tuple[int, ...]]], scheme: Scheme
) -> dict[Place, tuple[int, tuple[int, ...]]] | None:
    readings = [reading for _, reading in group]
    if scheme == "each":
        return {Place(path): (1, reading) for path, reading in group}
    if scheme == "sum":
        return {Place(pattern, "…"): (1, tuple(sum(column) for column in zip(*readings, strict=False)))}
    cuts = {"all": [(0, None, "")], "first": [(0, 1, "0"), (1, None, "1…")], "last": [(0, -1, "…"), (-1, None, "-1")]}
    places: dict[Place, tuple[int, tuple[int, ...]]] = {}
    for begin, end, which in cuts[scheme]:
        chosen = readings[begin:end]
        if len(set(chosen)) > 1:
            return None
        if chosen:
            places[Place(pattern, which)] = len(chosen), chosen[0]
    return places


def _numbers(path: str) -> tuple[int, ...]:
    return tuple(int(number) for number in NUMBER.findall(path))
