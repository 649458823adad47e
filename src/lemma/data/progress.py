"""Telling how far a long reading has come."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called as progress(what, done, total), in bytes."""

Advance = Callable[[int], None]
"""Called with the number of bytes done since the last call."""


def counting(progress: Progress | None, what: str, total: int) -> Advance:
    """Return a function that adds up bytes and reports their sum.

    >>> advance = counting(lambda what, done, total: print(f"{what} {done}/{total}"), "reading", 10)
    reading 0/10
    >>> advance(4)
    reading 4/10
    >>> advance(6)
    reading 10/10
    """
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress(what, done, total)

    advance(0)
    return advance
