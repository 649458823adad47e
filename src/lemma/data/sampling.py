"""A bounded sample of a long text, spread evenly over it."""

from collections.abc import Sequence
from math import ceil

from lemma.data.reading import next_character
from lemma.data.sections import Section, total_size

WINDOWS = 512


def spread(sections: Sequence[Section], limit: int) -> list[Section]:
    """Return the sections themselves, or evenly spaced windows of them that hold about `limit` bytes in all."""
    total, before = total_size(sections), 0
    if total <= limit:
        return list(sections)
    windows: list[Section] = []
    for section in sections:
        first, last = (ceil(place * WINDOWS / total) for place in (before, before + section.size))
        starts = [total * number // WINDOWS - before for number in range(first, last)]
        windows += [_window(section, start, limit // WINDOWS) for start in starts]
        before += section.size
    return windows


def _window(section: Section, start: int, length: int) -> Section:
    first = section.start + start
    last = min(first + length, section.stop)
    return Section(section.path, next_character(section.path, first), next_character(section.path, last))
