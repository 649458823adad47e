"""How wide a text is, and how wide it may be."""

import shutil
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

PAGE, NARROWEST, WIDEST = 80, 40, 100
"""Columns where there is no terminal; the fewest and the most that are used of one."""
FIXED = "\u00a0"
"""A space at which no line is broken; written as a plain one."""
_columns: ContextVar[int] = ContextVar("columns", default=PAGE)


def columns() -> int:
    """How many columns text is set to now: 80, unless `set_to` says other."""
    return _columns.get()


@contextmanager
def set_to(number: int) -> Iterator[None]:
    """Set text to so many columns meanwhile.

    >>> with set_to(60):
    ...     columns()
    60
    """
    before = _columns.set(number)
    try:
        yield
    finally:
        _columns.reset(before)


def width_of(stream: TextIO | None) -> int:
    """The columns to use on a stream: a terminal's own, within reason; 80 in a pipe or a file.

    >>> import io
    >>> width_of(io.StringIO())
    80
    """
    if stream is None or not stream.isatty():
        return PAGE
    return min(max(shutil.get_terminal_size((PAGE, 24)).columns, NARROWEST), WIDEST)


def across(text: str) -> int:
    """How many columns of a terminal a text takes: signs of East Asia two, combining marks none.

    >>> across("d·h"), across("語"), across("e\u0301")
    (3, 2, 1)
    """
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text
    )


def together(text: str) -> str:
    """The text as one that is broken nowhere, as `d = 512` in a list of sizes."""
    return text.replace(" ", FIXED)
