"""Heads as SVG: a grid of all of them, or one as lines between its tokens beside its matrix of numbers."""

from html import escape

import numpy as np

from lemma.looking.head import Head, Seen
from lemma.looking.palette import COLOURS, ink, level
from lemma.looking.png import data_address
from lemma.looking.words import Word

FONT = "system-ui, 'DejaVu Sans', sans-serif"
INK, SOFT = "#1c1d21", "#5d616b"
TILE, GAP, SIDE, TOP = 96, 12, 70, 44  # of the grid
STEP, CELL, ROW, LABEL, MIDDLE = 22, 34, 22, 112, 150  # of one head: rows, cells, token labels, room for lines
MOST_TOKENS = 64
LEAST_LINE = 0.01  # lines of less weight are not drawn


def picture(seen: Seen) -> str:
    """One head in full, or the grid of all."""
    return one(seen.heads[0]) if len(seen.heads) == 1 else grid(seen)


def grid(seen: Seen) -> str:
    """All heads as small pictures, a row a layer."""
    layers = seen.layers()
    width = SIDE + max(map(len, layers.values())) * (TILE + GAP)
    parts = [_text(8, 22, f"{seen.model}: attention of all heads", size=15, weight=600)]
    for row, (number, heads) in enumerate(layers.items()):
        y = TOP + row * (TILE + 38)
        parts.append(_text(8, y + TILE / 2, f"layer {number}", size=12))
        parts += [_tile(head, SIDE + column * (TILE + GAP), y) for column, head in enumerate(heads)]
    return _svg(width, TOP + len(layers) * (TILE + 38), parts)


def _tile(head: Head, x: float, y: float) -> str:
    address, name = data_address(head.weights, head.allowed), f"head {head.head}: {head.pattern}"
    frame = f'<rect x="{x}" y="{y}" width="{TILE}" height="{TILE}" fill="none" stroke="#dcdcd6"/>'
    image = (
        f'<image x="{x}" y="{y}" width="{TILE}" height="{TILE}" preserveAspectRatio="none" '
        f'style="image-rendering:pixelated" href="{address}"/>'
    )
    return image + frame + _text(x, y + TILE + 15, name, size=11)


def one(head: Head) -> str:
    """One head: lines from the tokens that ask to those that are asked, and the matrix of weights."""
    new, known = min(len(head.asking), MOST_TOKENS), min(len(head.known), MOST_TOKENS)
    matrix = 2 * LABEL + MIDDLE + 30
    left_out = " (the first tokens only)" if (new, known) != head.weights.shape else ""
    parts = [_text(8, 22, f"{head.title}: {head.pattern}{left_out}", size=15, weight=600)]
    parts += _lines(head, new, known, 48 + 80)
    parts += _matrix(head, new, known, matrix, 48 + 80)
    return _svg(matrix + LABEL + known * CELL + 10, 48 + 80 + max(new, known) * STEP + 16, parts)


def _lines(head: Head, new: int, known: int, top: float) -> list[str]:
    left, right = LABEL + 4, LABEL + MIDDLE - 4
    middle = (left + right) / 2
    parts = [_text(LABEL, top - 12, "asks", size=11, anchor="end", fill=SOFT)]
    parts += [_text(LABEL + MIDDLE, top - 12, "is asked", size=11, fill=SOFT)]
    for i, j in np.argwhere(head.allowed[:new, :known] & (head.weights[:new, :known] >= LEAST_LINE)):
        weight = float(head.weights[i, j])
        start, end = top + (i + 0.5) * STEP, top + (j + 0.5) * STEP
        curve = f"M{left} {start}C{middle} {start} {middle} {end} {right} {end}"
        look = f'stroke="{COLOURS[-1]}" stroke-width="{0.5 + 3 * weight:.2f}" stroke-opacity="{weight**0.5:.3f}"'
        parts.append(f'<path d="{curve}" fill="none" {look}/>')
    parts += [_label(word, LABEL, top + i * STEP + 15, "end") for i, word in enumerate(head.asking[:new])]
    return parts + [_label(word, LABEL + MIDDLE, top + j * STEP + 15) for j, word in enumerate(head.known[:known])]


def _matrix(head: Head, new: int, known: int, x: float, top: float) -> list[str]:
    parts = [_label(word, x + LABEL - 6, top + i * ROW + 15, "end") for i, word in enumerate(head.asking[:new])]
    for j, word in enumerate(head.known[:known]):
        corner = x + LABEL + j * CELL + 16, top - 6
        parts.append(f'<g transform="rotate(-60 {corner[0]} {corner[1]})">{_label(word, *corner)}</g>')
    for i, j in np.argwhere(head.allowed[:new, :known]):
        parts.append(_cell(float(head.weights[i, j]), x + LABEL + j * CELL, top + i * ROW))
    return parts


def _cell(weight: float, x: float, y: float) -> str:
    number = level(weight)
    box = f'<rect x="{x}" y="{y}" width="{CELL - 1}" height="{ROW - 1}" fill="{COLOURS[number]}"/>'
    return box + _text(x + CELL / 2, y + 15, f"{weight:.2f}", size=10, anchor="middle", fill=ink(number))


def _label(word: Word, x: float, y: float, anchor: str = "start") -> str:
    spelt = f'<tspan style="unicode-bidi:isolate">{escape(word.label(10))}</tspan>'
    number = f'<tspan fill="{SOFT}" font-size="9"> {word.index} </tspan>'
    return f'<text x="{x}" y="{y}" font-size="12" text-anchor="{anchor}" fill="{INK}">{number}{spelt}</text>'


def _text(
    x: float, y: float, text: str, size: int = 12, anchor: str = "start", fill: str = INK, weight: int = 400
) -> str:
    look = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{fill}"'
    return f'<text x="{x}" y="{y}" {look}>{escape(text)}</text>'


def _svg(width: float, height: float, parts: list[str]) -> str:
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    paper = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}">{paper}\n{body}\n</svg>\n'
