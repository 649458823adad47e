"""A matrix as a heat-map with its numbers, in SVG."""

from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from lemma.looking.worked.blocks import Matrix
from lemma.looking.worked.colours import INK, SOFT, cell_colours
from lemma.looking.worked.numerals import numeral
from lemma.typeset import across

SIGN = 6.9
"""Pixels of an average sign at 12 pixels; labels are cut to fit."""
LINE, CELL, LONGEST = 20, 26, 14
EDGE = 'stroke="#dde1e6" stroke-width="0.6"'


@dataclass(frozen=True)
class Drawn:
    """SVG elements with their size."""

    body: str
    width: float
    height: float


def heat_map(matrix: Matrix) -> Drawn:
    """Title, column names, then a row of cells for each row; darker is larger, orange is below zero."""
    left = SIGN * max(across(_cut(name)) for name in matrix.rows) + 10
    wide = _cell_width(matrix)
    columns = len(matrix.columns) + bool(matrix.sums)
    parts = [text(0, 14, matrix.title, weight="bold")]
    parts += [
        _label(left + wide * (place + 0.5), LINE + 16, name, "middle") for place, name in enumerate(_columns(matrix))
    ]
    for place, name in enumerate(matrix.rows):
        y = LINE + 22 + place * CELL
        parts += [_label(left - 6, y + 17, name, "end"), *_row(matrix, place, left, y, wide)]
    width = max(left + wide * columns, SIGN * across(matrix.title) + 6)
    return Drawn("\n".join(parts), width, LINE + 24 + CELL * len(matrix.rows))


def text(x: float, y: float, words: str, *, anchor: str = "start", fill: str = INK, weight: str = "normal") -> str:
    """A text element; what a person wrote is escaped."""
    bold = ' font-weight="600"' if weight == "bold" else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}"{bold} xml:space="preserve">'
        f"{escape(words)}</text>"
    )


def _columns(matrix: Matrix) -> tuple[str, ...]:
    return (*matrix.columns, "sum") if matrix.sums else matrix.columns


def _cell_width(matrix: Matrix) -> float:
    cells = [cell for row in matrix.cells() for cell in row] + [_cut(name) for name in matrix.columns]
    sums = [numeral(value, matrix.decimals) for value in matrix.sums]
    return max(34.0, SIGN * max(across(cell) for cell in cells + sums) + 12)


def _row(matrix: Matrix, row: int, left: float, y: float, wide: float) -> list[str]:
    finite = matrix.values[np.isfinite(matrix.values)]
    largest = float(np.abs(finite).max()) if finite.size else 0.0
    parts: list[str] = []
    for place, (value, cell) in enumerate(zip(matrix.values[row], matrix.cells()[row], strict=True)):
        fill, ink = cell_colours(float(value), largest)
        x = left + place * wide
        parts.append(f'<rect x="{x:.1f}" y="{y}" width="{wide - 1:.1f}" height="{CELL - 1}" fill="{fill}" {EDGE}/>')
        parts.append(text(x + wide / 2, y + 17, cell, anchor="middle", fill=ink))
    if matrix.sums:
        x = left + (len(matrix.columns) + 0.5) * wide
        parts.append(text(x, y + 17, numeral(matrix.sums[row], matrix.decimals), anchor="middle", weight="bold"))
    return parts


def _label(x: float, y: float, name: str, anchor: str) -> str:
    label = text(x, y, _cut(name), anchor=anchor, fill=SOFT)
    return label if _cut(name) == name else f"<g aria-label={quoteattr(name)}>{label}</g>"


def _cut(name: str) -> str:
    return name if across(name) <= LONGEST else name[: LONGEST - 1] + "…"
