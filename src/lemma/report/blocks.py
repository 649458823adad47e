"""Results as blocks (headings, tables, matrices, text), rendered as text, Markdown, HTML or SVG."""

import json
import re
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape as html_escape
from itertools import groupby
from pathlib import Path
from typing import Any, Literal
from xml.sax.saxutils import escape, quoteattr

import numpy as np
from jaxtyping import Float

from lemma.data.files import write_atomically
from lemma.errors import InputError, unknown
from lemma.report.numbers import bar, needed_decimals, numeral, shade
from lemma.report.text import across, columns, table, wrap

# Colours that people with any kind of colour vision can tell apart: blue for more, orange for less than zero.


Colour = tuple[int, int, int]

MORE: Colour = (0, 93, 160)
LESS: Colour = (200, 85, 0)
WHITE: Colour = (255, 255, 255)
NOTHING = "#e4e4e4"
"""The cell of what is not a number, or may not be looked at."""
INK, PALE, PAPER, SOFT, LINE = "#1b1f24", "#ffffff", "#fdfdfc", "#59606b", "#c9ced6"


def cell_colours(value: float, largest: float) -> tuple[str, str]:
    """Fill and ink of a cell: the fill by the value's size beside the largest, the ink dark or light to be read on it.

    >>> cell_colours(0.0, 1.0), cell_colours(1.0, 1.0), cell_colours(float("nan"), 1.0)
    (('#ffffff', '#1b1f24'), ('#005da0', '#ffffff'), ('#e4e4e4', '#1b1f24'))
    """
    if not -float("inf") < value < float("inf"):
        return NOTHING, INK
    share = min(abs(value) / largest, 1.0) if largest else 0.0
    fill = _between(WHITE, MORE if value >= 0 else LESS, share)
    return "#{:02x}{:02x}{:02x}".format(*fill), PALE if _lightness(fill) < 0.3 else INK


def _between(start: Colour, end: Colour, share: float) -> Colour:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(start, end, strict=True))
    return red, green, blue


def _lightness(colour: Colour) -> float:
    """Relative luminance as the accessibility guidelines (WCAG) define it."""
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (part / 255 for part in colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


# What a worked case is made of, before it is written as text, Markdown, a page or a picture.


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


# Blocks as text for a terminal, and as Markdown.


GAP = "  "


def as_text(blocks: Blocks) -> str:
    """Blocks one below the other, with an empty line between them; lines of arithmetic stand together."""
    lines: list[str] = []
    before: Block | None = None
    for block in blocks:
        if before is not None and not (isinstance(block, Words) and isinstance(before, Words | Heading)):
            lines.append("")
        lines += _text(block)
        before = block
    return "\n".join(lines)


def _text(block: Block) -> list[str]:
    if isinstance(block, Heading):
        lines = wrap(block.text)
        return [*lines, *(["=" * max(map(across, lines))] if block.level == 1 else [])]
    if isinstance(block, Words):
        return [part for line in block.text.splitlines() for part in _wrapped(line)]
    return _grid(block.grid() if isinstance(block, Matrix) else block)


def _wrapped(line: str) -> list[str]:
    return wrap(line, indent=GAP, hanging=GAP * 2)


def _grid(grid: Grid) -> list[str]:
    """A table, and where there is room the bars beside it that its shares are drawn as."""
    rows = [grid.header, *grid.rows, *([grid.total] if grid.total else [])]
    every = range(len(grid.header))
    lines = table(rows, left=every if grid.plain else (0,), flexible=every if grid.plain else (), width=columns() - 2)
    return [*(_wrapped(grid.title) if grid.title else []), *(f"{GAP}{line}".rstrip() for line in _barred(lines, grid))]


def _barred(lines: list[str], grid: Grid) -> list[str]:
    """The last lines of a table with a bar behind each of its rows."""
    bars = [bar(share) for share in grid.bars]
    first = len(lines) - len(grid.rows) - bool(grid.total)
    widest = max(map(across, lines[max(first, 0) :]), default=0)
    if not bars or first < 1 or widest + max(map(len, bars)) + 2 * len(GAP) > columns():
        return lines
    behind = dict(enumerate(bars, first))
    return [
        line + (" " * (widest - across(line)) + GAP + behind[at] if at in behind else "")
        for at, line in enumerate(lines)
    ]


def as_markdown(blocks: Blocks) -> str:
    """Blocks as Markdown; nothing that a person wrote means anything in it."""
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {_quoted(block.text)}"
    if isinstance(block, Words):
        return "  \n".join(_quoted(line) for line in block.text.splitlines())
    grid = block.grid() if isinstance(block, Matrix) else block
    rows = [grid.header, *grid.rows, *([grid.total] if grid.total else [])]
    lines = [f"| {' | '.join(_quoted(cell) for cell in row)} |" for row in rows]
    ruler = "|" + "|".join(["---", *(["---" if grid.plain else "---:"] * (len(grid.header) - 1))]) + "|"
    title = f"**{_quoted(grid.title)}**\n\n" if grid.title else ""
    return title + "\n".join([lines[0], ruler, *lines[1:]])


def _quoted(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>#|$~&])", r"\\\1", " ".join(text.split()))


# A matrix as a heat-map with its numbers, in SVG.


SIGN = 6.9
"""Pixels of an average sign at 12 pixels; labels are cut to fit."""
HEAT_MAP_LINE, CELL, LONGEST = 20, 26, 14
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
        _label(left + wide * (place + 0.5), HEAT_MAP_LINE + 16, name, "middle")
        for place, name in enumerate(_columns(matrix))
    ]
    for place, name in enumerate(matrix.rows):
        y = HEAT_MAP_LINE + 22 + place * CELL
        parts += [_label(left - 6, y + 17, name, "end"), *_row(matrix, place, left, y, wide)]
    width = max(left + wide * columns, SIGN * across(matrix.title) + 6)
    return Drawn("\n".join(parts), width, HEAT_MAP_LINE + 24 + CELL * len(matrix.rows))


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


# Blocks as one SVG picture: matrices side by side, tables and lines below each other.


WIDTH, MARGIN, PICTURE_GAP = 1120, 24, 28
ROW, BAR = 21, 120
FONTS = "system-ui, 'Segoe UI', Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
BLUE = "#005da0"


def as_svg(blocks: Blocks, title: str) -> str:
    """A whole SVG file."""
    parts: list[str] = []
    widest, y = 0.0, float(MARGIN)
    for drawn in _rows(blocks):
        parts.append(f'<g transform="translate({MARGIN} {y:.1f})">{drawn.body}</g>')
        widest, y = max(widest, drawn.width), y + drawn.height + 12
    return svg(Drawn("\n".join(parts), widest + 2 * MARGIN, y + MARGIN), title)


def svg(drawn: Drawn, title: str) -> str:
    """Drawn elements on paper of their own, so that they can be read in dark surroundings too."""
    width, height = round(drawn.width), round(drawn.height)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" font-family="{FONTS}" font-size="12"><title>{escape(title)}</title>\n'
        f'<rect width="{width}" height="{height}" rx="6" fill="{PAPER}"/>\n{drawn.body}\n</svg>\n'
    )


def _rows(blocks: Blocks) -> Iterator[Drawn]:
    """Each block is a row of the picture, but matrices that follow each other share rows."""
    for is_matrix, group in groupby(blocks, key=lambda block: isinstance(block, Matrix)):
        if is_matrix:
            yield from _side_by_side([heat_map(block) for block in group if isinstance(block, Matrix)])
        else:
            yield from (_drawn(block) for block in group)


def _side_by_side(maps: list[Drawn]) -> Iterator[Drawn]:
    row: list[Drawn] = []
    for one in maps:
        if row and sum(other.width + PICTURE_GAP for other in row) + one.width > WIDTH:
            yield _joined(row)
            row = []
        row.append(one)
    yield _joined(row)


def _joined(row: list[Drawn]) -> Drawn:
    parts, x = [], 0.0
    for one in row:
        parts.append(f'<g transform="translate({x:.1f} 0)">{one.body}</g>')
        x += one.width + PICTURE_GAP
    return Drawn("\n".join(parts), x - PICTURE_GAP, max(one.height for one in row) + 6)


def _drawn(block: Block) -> Drawn:
    if isinstance(block, Heading):
        return _heading(block)
    if isinstance(block, Grid):
        return _picture_grid(block)
    return _paragraph(block) if isinstance(block, Words) else heat_map(block)


def _heading(heading: Heading) -> Drawn:
    size = 20 if heading.level == 1 else 15
    lines = textwrap.wrap(heading.text, round(WIDTH / size / 0.58)) or [""]
    body = "".join(text(0, (size + 6) * (place + 1), line, weight="bold") for place, line in enumerate(lines))
    return Drawn(
        f'<g font-size="{size}">{body}</g>', max(map(across, lines)) * size * 0.62, (size + 6) * len(lines) + 6
    )


def _paragraph(words: Words) -> Drawn:
    lines = [part for line in words.text.splitlines() for part in textwrap.wrap(line, 120) or [""]]
    body = "".join(text(0, 14 + 17 * place, line) for place, line in enumerate(lines))
    return Drawn(f'<g font-size="13">{body}</g>', max(map(across, lines)) * SIGN, 17 * len(lines))


def _picture_grid(grid: Grid) -> Drawn:
    table = [grid.header, *grid.rows, *([grid.total] if grid.total else [])]
    widths = [SIGN * max(across(row[column]) for row in table) + 18 for column in range(len(grid.header))]
    parts = [text(0, 14, grid.title, weight="bold")] if grid.title else []
    top = ROW if grid.title else 0
    for place, row in enumerate(table):
        strong = place == 0 or (bool(grid.total) and place == len(table) - 1)
        parts.append(_line(row, widths, top + place * ROW, strong, grid.plain))
    across_all = sum(widths)
    parts.append(f'<path d="M0 {top + ROW - 3}H{across_all:.1f}" stroke="{LINE}"/>')
    parts += [
        f'<rect x="{across_all + 4:.1f}" y="{top + ROW * (place + 1) + 4}" width="{share * BAR:.1f}" height="11" '
        f'fill="{BLUE}"/>'
        for place, share in enumerate(grid.bars)
    ]
    return Drawn("\n".join(parts), across_all + (BAR + 4 if grid.bars else 0), top + ROW * len(table) + 6)


def _line(row: tuple[str, ...], widths: list[float], y: float, strong: bool, plain: bool) -> str:
    parts, x = [], 0.0
    for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
        left = plain or place == 0
        where = x if left else x + width - 10
        fill = SOFT if strong and y == 0 else "#1b1f24"
        anchor, weight = "start" if left else "end", "bold" if strong else "normal"
        parts.append(text(where, y + 14, cell, anchor=anchor, fill=fill, weight=weight))
        x += width
    return "".join(parts)


# Blocks as a page that opens offline: no script, nothing fetched, every text escaped.


PAGE = """
:root { color-scheme: light dark; }
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1.25rem 4rem; background: #fdfdfc; color: #1b1f24; }
@media (prefers-color-scheme: dark) { body { background: #15171c; color: #e8e8e4; } }
"""
STYLE = """
.worked { font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
.worked h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .6rem; }
.worked h2 { font-size: 1.15rem; margin: 2.2rem 0 .7rem; padding-top: .8rem; border-top: 1px solid #8886; }
.worked p { margin: .5rem 0; overflow-wrap: anywhere; }
.worked .matrices { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start; }
.worked .matrix, .worked .scroll { overflow-x: auto; max-width: 100%; }
.worked svg { display: block; }
.worked table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; margin: .4rem 0; }
.worked caption { text-align: left; font-weight: 600; padding: .2rem 0; }
.worked th, .worked td { padding: .2rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #8883; }
.worked th:first-child, .worked td:first-child, .worked .plain th, .worked .plain td { text-align: left; }
.worked th:first-child, .worked td:first-child { padding-left: 0; font-weight: 600; }
.worked .plain td:not(:first-child) { white-space: normal; }
.worked tr.total td { font-weight: 600; border-bottom: 0; }
.worked td.bar { width: 9rem; padding-right: 0; }
.worked td.bar span { display: block; height: .7rem; background: #2b7fc0; }
@media print { .worked svg, .worked tr { break-inside: avoid; } }
"""
PAGE_EDGE = 10


def as_page(blocks: Blocks, title: str) -> str:
    """A whole page."""
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html_escape(title)}</title><style>{PAGE}</style>"
    )
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{as_fragment(blocks)}\n</body>\n</html>\n'


def as_fragment(blocks: Blocks) -> str:
    """What a notebook shows."""
    parts = []
    for is_matrix, group in groupby(blocks, key=lambda block: isinstance(block, Matrix)):
        body = "\n".join(_html(block) for block in group)
        parts.append(f'<div class="matrices">{body}</div>' if is_matrix else body)
    return f'<div class="worked"><style>{STYLE}</style>\n' + "\n".join(parts) + "\n</div>"


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{html_escape(block.text)}</h{block.level}>"
    if isinstance(block, Words):
        return f"<p>{'<br>'.join(html_escape(line) for line in block.text.splitlines())}</p>"
    return f'<div class="scroll">{_table(block)}</div>' if isinstance(block, Grid) else _matrix(block)


def _matrix(matrix: Matrix) -> str:
    drawn = heat_map(matrix)
    moved = Drawn(
        f'<g transform="translate({PAGE_EDGE} {PAGE_EDGE})">{drawn.body}</g>',
        drawn.width + 2 * PAGE_EDGE,
        drawn.height + 2 * PAGE_EDGE,
    )
    return f'<div class="matrix">{svg(moved, matrix.title)}</div>'


def _table(grid: Grid) -> str:
    caption = f"<caption>{html_escape(grid.title)}</caption>" if grid.title else ""
    head = "".join(f'<th scope="col">{html_escape(name)}</th>' for name in grid.header) + (
        "<th></th>" if grid.bars else ""
    )
    bars = [f'<td class="bar"><span style="width: {share:.1%}"></span></td>' for share in grid.bars]
    rows = [_cells(row) + (bars[place] if bars else "") for place, row in enumerate(grid.rows)]
    body = "".join(f"<tr>{row}</tr>\n" for row in rows)
    total = f'<tr class="total">{_cells(grid.total)}</tr>' if grid.total else ""
    kind = ' class="plain"' if grid.plain else ""
    return f"<table{kind}>{caption}<thead><tr>{head}</tr></thead>\n<tbody>{body}{total}</tbody></table>"


def _cells(row: tuple[str, ...]) -> str:
    return "".join(f"<td>{html_escape(cell)}</td>" for cell in row)


# What every worked case can do: be printed, shown in a notebook, given as plain values, and saved.


class Worked(ABC):
    """A result made of blocks."""

    @property
    @abstractmethod
    def heading(self) -> str:
        """What it is, in a line."""

    @abstractmethod
    def shown(self) -> Blocks:
        """What is printed."""

    @abstractmethod
    def drawn(self) -> Blocks:
        """What is saved and shown in notebooks: more than is printed."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""

    def __str__(self) -> str:
        return as_text(self.shown())

    def _repr_html_(self) -> str:
        return as_fragment(self.drawn())

    def writers(self) -> dict[str, Callable[[], str]]:
        """How each kind of file is written, by the end of its name."""
        return {
            ".svg": lambda: as_svg(self.drawn(), self.heading),
            ".html": lambda: as_page(self.drawn(), self.heading),
            ".md": lambda: as_markdown(self.drawn()),
            ".txt": lambda: as_text(self.drawn()) + "\n",
            ".json": lambda: json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        }

    def save(self, path: Path | str) -> Path:
        """Write it to a file whose name says how: .svg, .html, .md, .txt, .json or, for a case, .toml."""
        target, writers = Path(path), self.writers()
        if target.suffix.lower() not in writers:
            raise InputError(unknown(f"{target}: the end of the name", target.suffix, writers))
        if not target.absolute().parent.is_dir():
            raise InputError(f"{target}: there is no folder {target.parent}. Make it first.")
        write_atomically(target, writers[target.suffix.lower()]())
        return target
