"""Results as SVG: matrices as heat maps with their numbers, side by side; all else as lines of text."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from lemma.report.numbers import format_number
from lemma.report.result import Block, Blocks, Card, Cards, Figure, Fold, Heading, Matrix, as_text
from lemma.report.text import display_width

# People with any kind of colour vision can tell these apart: blue is above zero, orange below.
POSITIVE, NEGATIVE, WHITE = (0, 93, 160), (200, 85, 0), (255, 255, 255)
NOT_A_NUMBER = "#e4e4e4"  # the cell of NaN, and of what a mask hides
INK, PALE, PAPER, SOFT = "#1b1f24", "#ffffff", "#fdfdfc", "#59606b"
FONTS = "system-ui, 'Segoe UI', Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
MONOSPACE, MONOSPACE_WIDTH = "Consolas, 'Liberation Mono', 'DejaVu Sans Mono', monospace", 7.9  # at 13 pixels
CHARACTER_WIDTH = 6.9  # pixels of an average character at 12 pixels; labels are cut to fit
WIDTH, MARGIN, GAP = 1120, 24, 28
CELL = 26
MAX_LABEL = 14


@dataclass(frozen=True)
class SvgPart:
    """A drawing as text of SVG elements, with its size in pixels."""

    body: str
    width: float
    height: float


def as_svg(blocks: Blocks, title: str) -> str:
    """Return blocks as an SVG document, one below the other, neighbouring matrices side by side."""
    parts: list[str] = []
    widest, y = 0.0, float(MARGIN)
    for drawing in _draw_rows(blocks):
        parts.append(_translate(drawing.body, MARGIN, y))
        widest, y = max(widest, drawing.width), y + drawing.height + 12
    return _build_document(SvgPart("\n".join(parts), widest + 2 * MARGIN, y + MARGIN), title)


def matrix_svg(matrix: Matrix, edge: int = 10) -> str:
    """Return a matrix as an SVG document: a heat map with a margin of `edge` pixels."""
    drawing = heat_map(matrix)
    body = _translate(drawing.body, edge, edge)
    return _build_document(SvgPart(body, drawing.width + 2 * edge, drawing.height + 2 * edge), matrix.title)


def _build_document(drawing: SvgPart, title: str) -> str:
    """Return a drawing as an SVG document with a light background."""
    width, height = round(drawing.width), round(drawing.height)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" font-family="{FONTS}" font-size="12"><title>{escape(title)}</title>\n'
        f'<rect width="{width}" height="{height}" rx="6" fill="{PAPER}"/>\n{drawing.body}\n</svg>\n'
    )


def _translate(body: str, x: float, y: float) -> str:
    """Return SVG elements moved by x and y pixels."""
    return f'<g transform="translate({x:.1f} {y:.1f})">{body}</g>'


def _draw_rows(blocks: Blocks) -> Iterator[SvgPart]:
    """Yield the drawings of blocks from top to bottom; neighbouring matrices are joined to rows that fit the width."""
    for is_matrix, group in groupby(blocks, key=lambda block: isinstance(block, Matrix)):
        if is_matrix:
            yield from _join_side_by_side([heat_map(block) for block in group if isinstance(block, Matrix)])
        else:
            for block in group:
                yield from _draw_block(block)


def _join_side_by_side(maps: Sequence[SvgPart]) -> Iterator[SvgPart]:
    """Yield rows of heat maps side by side, each of as many as fit the width."""
    parts: list[str] = []
    x = height = 0.0
    for heat in maps:
        if parts and x + heat.width > WIDTH:
            yield SvgPart("\n".join(parts), x - GAP, height + 6)
            parts, x, height = [], 0.0, 0.0
        parts.append(_translate(heat.body, x, 0))
        x, height = x + heat.width + GAP, max(height, heat.height)
    yield SvgPart("\n".join(parts), x - GAP, height + 6)


def _draw_block(block: Block) -> Iterator[SvgPart]:
    """Yield the drawings of one block that is not a matrix, from top to bottom."""
    match block:
        case Heading(text, level):
            size = 20 if level == 1 else 15
            lines = textwrap.wrap(text, round(WIDTH / size / 0.58)) or [""]
            body = "".join(
                _text_element(0, (size + 6) * (index + 1), line, bold=True) for index, line in enumerate(lines)
            )
            width = max(map(display_width, lines)) * size * 0.62
            yield SvgPart(f'<g font-size="{size}">{body}</g>', width, (size + 6) * len(lines) + 6)
        case Card() | Cards() | Fold():
            yield from _draw_rows(block.content())
        case Figure(svg, caption):
            size = {name: re.search(rf'\b{name}="([\d.]+)', svg) for name in ("width", "height")}
            width, height = (float(match[1]) if match else 400.0 for match in size.values())
            yield SvgPart(svg, width, height)
            if caption:
                yield _draw_lines(caption)
        case _:
            if text := as_text([block]):
                yield _draw_lines(text)


def _draw_lines(text: str) -> SvgPart:
    """Draw lines of text, such as those of a table, in a font whose characters are equally wide."""
    lines = text.split("\n")
    body = "".join(_text_element(0, 14 + 17 * index, line) for index, line in enumerate(lines))
    width = max(map(display_width, lines)) * MONOSPACE_WIDTH
    return SvgPart(f'<g font-size="13" font-family="{MONOSPACE}">{body}</g>', width, 17 * len(lines))


def heat_map(matrix: Matrix) -> SvgPart:
    """Draw a matrix as cells with numbers: blue is positive, orange negative, darker larger in absolute value."""
    cells, sums = matrix.cells(), [format_number(value, matrix.decimals) for value in matrix.sums]
    labels = [*(cell for row in cells for cell in row), *map(_shorten_label, matrix.columns), *sums]
    cell_width = max(34.0, CHARACTER_WIDTH * max(map(display_width, labels)) + 12)
    left = CHARACTER_WIDTH * max(display_width(_shorten_label(name)) for name in matrix.rows) + 10
    finite = matrix.values[np.isfinite(matrix.values)]
    largest = float(np.abs(finite).max()) if finite.size else 0.0
    names = [*matrix.columns, *(["sum"] if sums else [])]
    parts = [_text_element(0, 14, matrix.title, bold=True)]
    parts += [_label_element(left + cell_width * (index + 0.5), 36, name, "middle") for index, name in enumerate(names)]
    for row, name in enumerate(matrix.rows):
        y = 42 + row * CELL
        parts.append(_label_element(left - 6, y + 17, name, "end"))
        for column, cell in enumerate(cells[row]):
            fill, ink = cell_colours(float(matrix.values[row][column]), largest)
            x = left + column * cell_width
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{cell_width - 1:.1f}" height="{CELL - 1}" fill="{fill}" '
                'stroke="#dde1e6" stroke-width="0.6"/>'
            )
            parts.append(_text_element(x + cell_width / 2, y + 17, cell, "middle", ink))
        if sums:
            parts.append(
                _text_element(left + (len(cells[row]) + 0.5) * cell_width, y + 17, sums[row], "middle", bold=True)
            )
    width = max(left + cell_width * len(names), CHARACTER_WIDTH * display_width(matrix.title) + 6)
    return SvgPart("\n".join(parts), width, 44 + CELL * len(matrix.rows))


def cell_colours(value: float, largest: float) -> tuple[str, str]:
    """Return the colour of a cell, the darker the nearer |value| is to `largest`, and a legible colour for its number.

    >>> cell_colours(0.0, 1.0), cell_colours(1.0, 1.0), cell_colours(float("nan"), 1.0)
    (('#ffffff', '#1b1f24'), ('#005da0', '#ffffff'), ('#e4e4e4', '#1b1f24'))
    """
    if not np.isfinite(value):
        return NOT_A_NUMBER, INK
    fraction = min(abs(value) / largest, 1.0) if largest else 0.0
    end = POSITIVE if value >= 0 else NEGATIVE
    fill = [round(a + (b - a) * fraction) for a, b in zip(WHITE, end, strict=True)]
    # relative luminance as the accessibility guidelines (WCAG) define it
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (part / 255 for part in fill)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#{:02x}{:02x}{:02x}".format(*fill), PALE if luminance < 0.3 else INK


def _text_element(x: float, y: float, content: str, anchor: str = "start", fill: str = INK, bold: bool = False) -> str:
    """Return an SVG text element at a position; `anchor` is start, middle or end."""
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}"{weight} xml:space="preserve">'
        f"{escape(content)}</text>"
    )


def _label_element(x: float, y: float, name: str, anchor: str) -> str:
    """Return an SVG text element with a name, shortened if needed; its full form is then in an aria-label."""
    label = _text_element(x, y, _shorten_label(name), anchor, SOFT)
    return label if _shorten_label(name) == name else f"<g aria-label={quoteattr(name)}>{label}</g>"


def _shorten_label(name: str) -> str:
    """Return a name cut to MAX_LABEL columns."""
    return name if display_width(name) <= MAX_LABEL else name[: MAX_LABEL - 1] + "…"
