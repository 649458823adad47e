"""What may be claimed of a worked case: numbers or words by name, with a label for every row and column."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

Labels = tuple[str, ...]
Array = Float[np.ndarray, "..."]


@dataclass(frozen=True, eq=False)
class Quantity:
    """Numbers of a worked case under one name: one number, a vector or a matrix."""

    name: str
    values: Array
    labels: tuple[Labels, ...]
    """The labels of each axis."""
    meaning: str = ""
    spellings: Labels = ()
    """What else a person may call it."""
    slips: Mapping[str, Array] = field(default_factory=dict)
    """What comes out by a known mistake, by what the mistake is."""

    @property
    def shape(self) -> tuple[int, ...]:
        """How many rows and columns."""
        return self.values.shape

    @property
    def form(self) -> str:
        """What is to be given, in words."""
        if len(self.shape) == 1:
            return f"{self.shape[0]} numbers"
        return "×".join(map(str, self.shape)) or "a number"


@dataclass(frozen=True)
class WordQuantity:
    """Words of a worked case under one name; several are right where they tie."""

    name: str
    values: tuple[Labels, ...]
    """For each label the words that are right, any of them."""
    labels: tuple[Labels, ...]
    """The labels, if there are several places; none where the quantity is one word."""
    meaning: str = ""
    spellings: Labels = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """How many places."""
        return (len(self.values),) if self.labels else ()

    @property
    def form(self) -> str:
        """What is to be given, in words."""
        return f"{self.shape[0]} words" if self.labels else "a word"


AnyQuantity = Quantity | WordQuantity


def numbered(count: int, prefix: str = "") -> Labels:
    """Labels that are counted from 1.

    >>> numbered(2, "x_")
    ('x_1', 'x_2')
    """
    return tuple(f"{prefix}{place}" for place in range(1, count + 1))


def quantity(
    name: str,
    values: Array | float,
    labels: Iterable[Iterable[str]] | None = None,
    meaning: str = "",
    spellings: Iterable[str] = (),
    slips: Mapping[str, Array] | None = None,
) -> Quantity:
    """Numbers under a name; axes without labels are counted from 1."""
    array = np.asarray(values, dtype=np.float64)
    named = tuple(map(tuple, labels)) if labels is not None else tuple(map(numbered, array.shape))
    return Quantity(name, array, named, meaning, tuple(spellings), dict(slips or {}))
