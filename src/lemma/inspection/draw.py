"""Attention heads drawn in the terminal and as SVG."""

import base64
import math
import struct
import zlib
from html import escape

import numpy as np
from jaxtyping import Bool, Float, Int

from lemma.inspection.head import MEANINGS, Head, Seen
from lemma.report.numbers import Word, counted
from lemma.report.text import across, columns, fit, table

# Colours for weights from 0 to 1: cream over grey to dark blue.
#
# They run along the yellow–blue axis and darken all the way, so they keep their order for every kind of colour vision
# and
# in grey print. A weight's place on the scale is its square root: among sixty keys an even share is 0.017, which a
# linear
# scale would not show.


STOPS = ((0.97, 0.945, 0.85), (0.86, 0.79, 0.52), (0.56, 0.55, 0.50), (0.27, 0.33, 0.46), (0.0, 0.13, 0.31))
LEVELS = 255


def _mixed(level: float) -> str:
    place = level * (len(STOPS) - 1)
    below = min(int(place), len(STOPS) - 2)
    share = place - below
    channels = (low + share * (high - low) for low, high in zip(STOPS[below], STOPS[below + 1], strict=True))
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in channels)


COLOURS = tuple(_mixed(number / (LEVELS - 1)) for number in range(LEVELS))


def level(weight: float) -> int:
    """The colour's number for a weight.

    >>> level(0.0), level(0.25), level(1.0)
    (0, 127, 254)
    """
    return round(math.sqrt(min(max(weight, 0.0), 1.0)) * (LEVELS - 1))


def levels(weights: Float[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
    """The same for many weights at once."""
    return np.rint(np.sqrt(np.clip(weights, 0.0, 1.0)) * (LEVELS - 1)).astype(np.int64)


def ink(number: int) -> str:
    """What can be read on a colour."""
    return "#ffffff" if number > LEVELS * 0.57 else "#1c1d21"


# A matrix of weights as a small PNG, one pixel a cell; cells that may not be seen are transparent.


PALETTE = bytes(3) + b"".join(bytes.fromhex(colour[1:]) for colour in COLOURS)  # entry 0 is the empty one


def png(weights: Float[np.ndarray, "new known"], allowed: Bool[np.ndarray, "new known"]) -> bytes:
    """The bytes of the picture (PNG 1.2: header, palette, transparency of its first entry, rows, end)."""
    pixels = np.where(allowed, levels(weights) + 1, 0).astype(np.uint8)
    height, width = pixels.shape
    rows = np.pad(pixels, ((0, 0), (1, 0))).tobytes()  # each row begins with 0: no filter
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = [
        (b"IHDR", header),
        (b"PLTE", PALETTE),
        (b"tRNS", b"\0"),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def data_address(weights: Float[np.ndarray, "new known"], allowed: Bool[np.ndarray, "new known"]) -> str:
    """The picture as an address that needs no file."""
    return "data:image/png;base64," + base64.b64encode(png(weights, allowed)).decode()


# Heads as SVG: a grid of all of them, or one as lines between its tokens beside its matrix of numbers.


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


# The heads in a terminal: small pictures side by side, the table, and for one head who attends to whom.


MOST_ACROSS = 8
SHADES = "·░▒▓█"  # shares of attention below 0.04, 0.16, 0.36, 0.64, and above
MOST_LISTED, MOST_LINES = 3, 8


def terminal(seen: Seen) -> str:
    """Everything there is to say in plain characters."""
    parts = [f"{seen.model}: {counted(len(seen.heads), 'head')} on {counted(len(seen.tokens), 'token')}", _tokens(seen)]
    parts += [_pictures(number, heads) for number, heads in seen.layers().items()]
    parts += [_key(seen), _table(seen)]
    parts += [_listing(seen.heads[0])] if len(seen.heads) == 1 else []
    return fit("\n\n".join([*parts, *seen.notes]))


def _tokens(seen: Seen) -> str:
    """The tokens with their numbers, in lines that fit."""
    lines = [""]
    for word in seen.tokens:
        piece = f"{word.index}:{word.label()}"
        if across(lines[-1]) + 2 + across(piece) > columns():
            lines.append("")
        lines[-1] += ("  " if lines[-1] else "") + piece
    return "\n".join(lines[:MOST_LINES] + (["…"] if len(lines) > MOST_LINES else []))


def _key(seen: Seen) -> str:
    lines = [f"Rows ask, columns are asked, blank is masked. {SHADES}: the share of attention under a character."]
    meant = {head.pattern for head in seen.heads}
    return "\n".join([*lines, *(f"{name}: {words}." for name, words in MEANINGS.items() if name in meant)])


def _pictures(layer: int, heads: list[Head]) -> str:
    """The heads of a layer, as many side by side as there is room for."""
    side = math.ceil(len(heads) / math.ceil(len(heads) / MOST_ACROSS))
    room = min(24, columns() // side - 2)
    blocks = [_picture(head, room) for head in heads]
    rows = [blocks[start : start + side] for start in range(0, len(blocks), side)]
    name = f"Layer {layer}  {heads[0].name}".rstrip()
    return "\n".join([name, *("\n".join(map("  ".join, zip(*row, strict=True))).rstrip() for row in rows)])


def _picture(head: Head, room: int) -> list[str]:
    columns = room if len(head.known) * 2 > room else len(head.known) * 2
    rows = min(max(1, room // 2), len(head.asking))
    lines = ["".join(line).ljust(room) for line in shades(head.weights, head.allowed, rows, columns)]
    return [f"head {head.head}".ljust(room)[:room], *lines, head.pattern.ljust(room)[:room]]


def shades(
    weights: Float[np.ndarray, "new known"], allowed: Bool[np.ndarray, "new known"], rows: int, columns: int
) -> list[list[str]]:
    """Draw a matrix in a few characters, blank where all is masked.

    Each is as dark as the share of attention that its rows, in the mean, give to its columns.

    >>> weights = np.array([[1.0, 0.0], [0.25, 0.75]])
    >>> ["".join(line) for line in shades(weights, np.tri(2, dtype=bool), 2, 4)]
    ['██  ', '▒▒██']
    """
    new, known = weights.shape
    across = [slice(*_span(column, columns, known)) for column in range(columns)]
    down = [slice(*_span(row, rows, new)) for row in range(rows)]
    return [[_shade(weights[y, x], allowed[y, x]) for x in across] for y in down]


def _span(number: int, count: int, size: int) -> tuple[int, int]:
    start = number * size // count
    return start, max(start + 1, (number + 1) * size // count)


def _shade(weights: np.ndarray, allowed: np.ndarray) -> str:
    if not allowed.any():
        return " "
    return SHADES[min(len(SHADES) - 1, int(math.sqrt(weights.sum(1).mean()) * len(SHADES)))]


def _table(seen: Seen) -> str:
    """A head by its layer and its number; `uniform` is what entropy and score are of uniform weights."""
    head = ("head", "entropy", "uniform", "distance", "to first", "pattern", "nearest", "score", "uniform")
    return "\n".join(table([head, *map(_row, seen.heads)], left=(0, 5, 6)))


def _row(head: Head) -> tuple[str, ...]:
    numbers, near = head.statistics, head.nearest
    distance = "–" if numbers.distance is None else f"{numbers.distance:.2f}"
    match = (near.pattern, f"{near.score:.3f}", f"{near.uniform:.3f}") if near else ("–", "", "")
    mean = (f"{numbers.entropy:.3f}", f"{numbers.uniform_entropy:.3f}", distance, f"{numbers.first:.3f}")
    return (f"{head.layer}.{head.head}", *mean, head.pattern, *match)


def _listing(head: Head) -> str:
    """To whom each token attends most."""
    width = max(len(word.label()) for word in head.asking)
    return "\n".join(f"{word.index:5d} {word.label():{width}}  {_most(head, i)}" for i, word in enumerate(head.asking))


def _most(head: Head, row: int) -> str:
    order = np.argsort(-head.weights[row], kind="stable")[:MOST_LISTED]
    seen = [column for column in order if head.allowed[row, column]]
    listed = (f"{head.known[c].index}:{head.known[c].label()} {head.weights[row, c]:.3f}" for c in seen)
    return "→ " + ",  ".join(listed) if seen else "→ nothing: all keys are masked"
