"""Patterns of paths: what they fit, and what a person may have meant by one that fits nothing."""

import re
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from lemma.errors import SpecError

SHOWN = 24  # known paths that an error lists
NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)|(?<=_l)\d+(?=_|$)")


def fitted(word: str, patterns: Iterable[str], names: Sequence[Collection[str]]) -> list[int]:
    """Return the places in `names` that some pattern fits by any of their names, each pattern fitting one at least.

    >>> fitted("targets", ["layers.*.query"], [{"layers.0.query"}, {"layers.0.key"}, {"layers.1.query"}])
    [0, 2]
    """
    found: set[int] = set()
    for pattern in patterns:
        fits = {place for place, known in enumerate(names) if _fits(pattern, known)}
        if not fits:
            raise SpecError(_fits_nothing(word, pattern, [name for known in names for name in known]))
        found |= fits
    return sorted(found)


def starred(path: str) -> str:
    """Write a star for every number of a layer.

    >>> starred("layers.3.attention.output"), starred("layers.weight_ih_l1")
    ('layers.*.attention.output', 'layers.weight_ih_l*')
    """
    return NUMBER.sub("*", path)


def listed(names: Iterable[str]) -> str:
    """List paths, repeated layers as one, the first of very many only."""
    known = list(dict.fromkeys(starred(name) for name in names if name))
    more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return (", ".join(known[:SHOWN]) or "none") + more


def _fits(pattern: str, names: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _fits_nothing(word: str, pattern: str, names: Sequence[str]) -> str:
    near = _meant(pattern, names)
    guess = f" Did you mean '{near}'?" if near else ""
    return f"{word} = '{pattern}' fits nothing here.{guess} There are: {listed(names)}."


def _meant(pattern: str, names: Sequence[str]) -> str | None:
    """What is below it, what ends with it, or what is spelled nearly so."""
    for wider in (f"{pattern}.*", f"*.{pattern}", f"*.{pattern}.*"):
        if _fits(wider, names):
            return wider
    known = list(dict.fromkeys(starred(name) for name in names))
    ends = list(dict.fromkeys(f"*.{name.rpartition('.')[2]}" for name in known))
    return next(iter(get_close_matches(pattern, known, 1, 0.6) or get_close_matches(pattern, ends, 1, 0.5)), None)
