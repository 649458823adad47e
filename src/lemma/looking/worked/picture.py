"""Blocks as one SVG picture: matrices side by side, tables and lines below each other."""

import textwrap
from collections.abc import Iterator
from itertools import groupby
from xml.sax.saxutils import escape

from lemma.looking.worked.blocks import Block, Blocks, Grid, Heading, Matrix, Words
from lemma.looking.worked.colours import LINE, PAPER, SOFT
from lemma.looking.worked.heat_map import SIGN, Drawn, heat_map, text
from lemma.typeset import across

WIDTH, MARGIN, GAP = 1120, 24, 28
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
        if row and sum(other.width + GAP for other in row) + one.width > WIDTH:
            yield _joined(row)
            row = []
        row.append(one)
    yield _joined(row)


def _joined(row: list[Drawn]) -> Drawn:
    parts, x = [], 0.0
    for one in row:
        parts.append(f'<g transform="translate({x:.1f} 0)">{one.body}</g>')
        x += one.width + GAP
    return Drawn("\n".join(parts), x - GAP, max(one.height for one in row) + 6)


def _drawn(block: Block) -> Drawn:
    if isinstance(block, Heading):
        return _heading(block)
    if isinstance(block, Grid):
        return _grid(block)
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


def _grid(grid: Grid) -> Drawn:
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
