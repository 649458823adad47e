"""Stretches of text files, and how they make up splits."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Section:
    """The bytes from `start` up to `stop` of a UTF-8 file; both stand between two characters."""

    path: Path
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return self.stop - self.start


Splits = dict[str, list[Section]]
"""The documents of each split, in order."""


def total_size(sections: Iterable[Section]) -> int:
    """The bytes of all these sections together."""
    return sum(section.size for section in sections)
