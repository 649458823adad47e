"""What was found: the sizes that give the totals, the roundest first."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from lemma.typeset import fit, table


@dataclass(frozen=True)
class Total:
    """A printed total, and the sizes that are known where it holds."""

    value: int
    known: Mapping[str, int]

    def __str__(self) -> str:
        where = ", ".join(f"{name}={value:,}" for name, value in self.known.items())
        return f"{self.value:,}" + (f" at {where}" if where else "")


@dataclass(frozen=True)
class Solutions:
    """The whole numbers that give the totals.

    `number` of them solve the equations within the ranges. `tried` of these were built, the roundest first, and
    `shown` are those with which that went well; where nothing was built, `tried` is 0.
    """

    unknown: tuple[str, ...]
    totals: tuple[Total, ...]
    ranges: Mapping[str, range]
    number: int
    tried: int
    shown: tuple[Mapping[str, int], ...]

    @property
    def only(self) -> bool:
        """Whether there is exactly one."""
        return len(self.shown) == 1 and self.number == max(self.tried, 1)

    @property
    def summary(self) -> str:
        """How many there are."""
        names, within = ", ".join(self.unknown), f"within {spelled(self.ranges)}"
        if not self.number:
            return f"No whole numbers {names} give that {within}."
        if not self.shown:
            return f"{_counted(self.number)} the equation, but {names} cannot be built so {within}."
        if self.only:
            return f"The only solution {within}."
        return f"{_counted(self.number)} the equation {within}.{self._shown()}"

    def _shown(self) -> str:
        unfit = f" {self.number - len(self.shown):,} of them cannot be built." if self.number == self.tried else ""
        if self.number > max(self.tried, len(self.shown)):
            return f" The {len(self.shown)} roundest" + (" that can be built:" if self.tried else ":")
        return unfit if self.number > len(self.shown) else " The roundest first:"

    def __str__(self) -> str:
        rows = [self.unknown, *(tuple(f"{solution[name]:,}" for name in self.unknown) for solution in self.shown)]
        said = [*map(str, self.totals), self.summary]
        return "\n".join([*map(fit, said), *(table(rows, left=()) if self.shown else [])])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "unknown": list(self.unknown),
            "totals": [{"total": total.value, "known": dict(total.known)} for total in self.totals],
            "ranges": {name: [values[0], values[-1], values.step] for name, values in self.ranges.items()},
            "number": self.number,
            "tried": self.tried,
            "solutions": [dict(solution) for solution in self.shown],
        }

    def _repr_html_(self) -> str:
        totals = "".join(f"<li>{escape(str(total))}</li>" for total in self.totals)
        heads = "".join(f"<th>{escape(name)}</th>" for name in self.unknown)
        rows = ("".join(f"<td>{solution[name]:,}</td>" for name in self.unknown) for solution in self.shown)
        table = f"<table><tr>{heads}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>" if self.shown else ""
        return f"<ul>{totals}</ul><p>{escape(self.summary)}</p>{table}"


def spelled(ranges: Mapping[str, range]) -> str:
    """Ranges in words.

    >>> spelled({"V": range(1, 1001), "d": range(64, 513, 64)})
    'V 1…1,000, d 64…512 by 64'
    """
    steps = {name: f" by {values.step}" if values.step != 1 else "" for name, values in ranges.items()}
    return ", ".join(f"{name} {values[0]:,}…{values[-1]:,}{steps[name]}" for name, values in ranges.items())


def _counted(number: int) -> str:
    return "1 assignment solves" if number == 1 else f"{number:,} assignments solve"
