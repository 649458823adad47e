"""What a worked case is made of, before it is written as text, Markdown, a page or a picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from lemma.looking.worked.numerals import needed_decimals, numeral, shade

Look = Literal["signed", "share"]
"""How a matrix is coloured: by sign and size, or as shares from 0 to 1."""


@dataclass(frozen=True)
class Heading:
    """A title; level 1 is the case, 2 a part of it."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Words:
    """A paragraph, or one line of arithmetic."""

    text: str


@dataclass(frozen=True)
class Grid:
    """A table of written cells; the first column names the row. `bars` adds a bar from 0 to 1 to every row."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    bars: tuple[float, ...] = ()
    total: tuple[str, ...] = ()
    """A last row of sums."""
    plain: bool = False
    """Whether cells are words, written from the left, rather than numbers."""


@dataclass(frozen=True, eq=False)
class Matrix:
    """A matrix with names for its rows and columns."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: Float[np.ndarray, "rows columns"]
    look: Look = "signed"
    sums: tuple[float, ...] = ()
    """What each row adds up to, where that is used later."""
    decimals: int = 3

    def cells(self) -> tuple[tuple[str, ...], ...]:
        """Every number as it is written, with no more decimals than one of them needs."""
        needed = needed_decimals(self.values[np.isfinite(self.values)].tolist(), self.decimals)
        return tuple(tuple(numeral(value, needed) for value in row) for row in self.values)

    def grid(self) -> Grid:
        """The matrix as a table; shares get a small block beside the number."""
        cells = [list(row) for row in self.cells()]
        if self.look == "share":
            cells = [
                [f"{cell} {shade(value)}" for cell, value in zip(row, values, strict=True)]
                for row, values in zip(cells, self.values, strict=True)
            ]
        sums = [[numeral(value, self.decimals)] for value in self.sums] or [[] for _ in self.rows]
        rows = tuple((name, *row, *added) for name, row, added in zip(self.rows, cells, sums, strict=True))
        return Grid(self.title, ("", *self.columns, *(["sum"] if self.sums else [])), rows)


Block = Heading | Words | Grid | Matrix
Blocks = Sequence[Block]
