"""Which of several solutions a person is likely to have chosen."""

from collections.abc import Mapping
from math import log2

VOCABULARIES = frozenset({256, 10_000, 21_128, 28_996, 30_000, 30_522, 32_000, 32_128, 37_000, 49_152, 50_000, 50_257})
VOCABULARIES |= {50_265, 50_304, 100_277, 119_547, 128_000, 128_256, 151_936, 250_002, 256_000}
"""Sizes of vocabularies that are much used."""
VOCABULARY = "V"


def oddness(value: int) -> float:
    """How far a number is from being round: the bits it keeps without its factors of two, or without its last zeros.

    >>> oddness(512), oddness(768) == oddness(3), oddness(30_000) == oddness(3)
    (0.0, True, True)
    """
    return log2(min(value // (value & -value), int(str(value).rstrip("0"))))


def order_of(solution: Mapping[str, int]) -> tuple[float, tuple[int, ...]]:
    """A key that puts the roundest first. A vocabulary is whatever the text has, so that it counts for less."""
    return sum(_weighed(name, value) for name, value in solution.items()), tuple(solution.values())


def _weighed(name: str, value: int) -> float:
    if name != VOCABULARY:
        return oddness(value)
    return 0.0 if value in VOCABULARIES else oddness(value) / 4
