"""Drawings of attention heads: the colours of weights, small PNG images, SVG, and characters for a terminal."""

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float
from jinja2 import Environment, PackageLoader, StrictUndefined

from lemma.report.numbers import VisibleToken
from lemma.report.text import display_width, text_width

if TYPE_CHECKING:
    from lemma.inspection.heads import Head, Heads

# Cream over grey to dark blue. The colours run along the yellow–blue axis and darken all the way, so they keep their
# order for every kind of colour vision and in grey print.
STOPS = ((0.97, 0.945, 0.85), (0.86, 0.79, 0.52), (0.56, 0.55, 0.50), (0.27, 0.33, 0.46), (0.0, 0.13, 0.31))
LEVELS = 255
CHANNELS = [np.interp(np.linspace(0, 1, LEVELS), np.linspace(0, 1, len(STOPS)), stops) for stops in np.transpose(STOPS)]
COLOURS = tuple("#" + "".join(f"{round(255 * channel):02x}" for channel in rgb) for rgb in np.transpose(CHANNELS))
PALETTE = bytes(3) + b"".join(bytes.fromhex(colour[1:]) for colour in COLOURS)  # entry 0 is the transparent one
MAX_TOKENS = 64  # of a head drawn in full
MIN_LINE_WEIGHT = 0.01  # lines of less weight are not drawn
MAX_HEADS_PER_ROW = 8  # heads side by side in a terminal
SHADES = "·░▒▓█"  # shares of attention below 0.04, 0.16, 0.36, 0.64, and above
SHADES_LEGEND = f"Rows are queries, columns are keys, blank is masked. {SHADES}: the share of attention, low to high."
MAX_LISTED_KEYS, MAX_LINES = 3, 8
PATTERN_LETTERS = {
    "previous": "p",
    "next": "n",
    "itself": "i",
    "first": "f",
    "same word": "s",
    "induction": "I",
    "broad": "b",
    "none": "·",
}

TEMPLATES = Environment(
    loader=PackageLoader("lemma.inspection", "assets"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
TEMPLATES.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}


def colour_index(weight: float) -> int:
    """Return the palette index of an attention weight from 0 to 1: 254·√weight, so that small weights are visible.

    >>> colour_index(0.0), colour_index(0.25), colour_index(1.0)
    (0, 127, 254)
    """
    return round(math.sqrt(min(max(weight, 0.0), 1.0)) * (LEVELS - 1))


def text_colour(colour: int) -> str:
    """Return black or white, whichever is legible on the palette colour with this index."""
    return "#ffffff" if colour > LEVELS * 0.57 else "#1c1d21"


def encode_png(weights: Float[np.ndarray, "queries keys"], allowed: Bool[np.ndarray, "queries keys"]) -> bytes:
    """Draw an attention matrix as PNG bytes, one pixel per weight; those that are not `allowed` are transparent.

    PNG 1.2: header, palette, transparency of its first entry, rows, end.
    """
    levels = np.rint(np.sqrt(np.clip(weights, 0.0, 1.0)) * (LEVELS - 1)).astype(np.int64)
    pixels = np.where(allowed, levels + 1, 0).astype(np.uint8)
    height, width = pixels.shape
    rows = np.pad(pixels, ((0, 0), (1, 0))).tobytes()  # each row begins with 0: no filter
    content = b"\x89PNG\r\n\x1a\n"
    for kind, chunk in (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", PALETTE),
        (b"tRNS", b"\0"),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    ):
        content += struct.pack(">I", len(chunk)) + kind + chunk + struct.pack(">I", zlib.crc32(kind + chunk))
    return content


def png_url(head: "Head", max_tokens: int | None = None) -> str:
    """Return the first `max_tokens` rows and columns of a head's weights as a data URL of a PNG."""
    image = encode_png(head.weights[:max_tokens, :max_tokens], head.allowed[:max_tokens, :max_tokens])
    return "data:image/png;base64," + base64.b64encode(image).decode()


def render_template(template: str, **values: Any) -> str:
    """Return the text of a template file of this package, filled with values, which are escaped."""
    return TEMPLATES.get_template(template).render(values)


def draw_head(head: "Head") -> str:
    """Draw a head as SVG: lines from queries to keys, and the matrix of weights."""
    queries, keys = head.query_tokens[:MAX_TOKENS], head.key_tokens[:MAX_TOKENS]
    left_out = " (the first tokens only)" if (len(queries), len(keys)) != head.weights.shape else ""
    cells = [
        (int(i), int(j), float(head.weights[i, j])) for i, j in np.argwhere(head.allowed[:MAX_TOKENS, :MAX_TOKENS])
    ]
    title = f"{head.title}: {head.pattern}{left_out}"
    context = {"queries": queries, "keys": keys, "cells": cells, "title": title, "least": MIN_LINE_WEIGHT}
    return render_template("head.svg", **context, colours=COLOURS, level=colour_index, ink=text_colour)


def list_tokens(tokens: Sequence[VisibleToken]) -> str:
    """List tokens with their indices as lines of text, wrapped to the terminal's width."""
    lines = [""]
    for word in tokens:
        token = f"{word.index}:{word.label()}"
        if display_width(lines[-1]) + 2 + display_width(token) > text_width():
            lines.append("")
        lines[-1] += ("  " if lines[-1] else "") + token
    return "\n".join(lines[:MAX_LINES] + (["…"] if len(lines) > MAX_LINES else []))


def draw_layer(layer: int, heads: "list[Head]") -> str:
    """Draw the heads of a layer with block characters, side by side as far as they fit into the terminal."""
    side = math.ceil(len(heads) / math.ceil(len(heads) / MAX_HEADS_PER_ROW))
    max_width = min(24, text_width() // side - 2)
    images = []
    for head in heads:
        image_width = min(max_width, len(head.key_tokens) * 2)
        high = min(max(1, max_width // 2), len(head.query_tokens))
        lines = [line.ljust(max_width) for line in shade_matrix(head.weights, head.allowed, high, image_width)]
        images.append(
            [f"head {head.head}".ljust(max_width)[:max_width], *lines, head.pattern.ljust(max_width)[:max_width]]
        )
    rows = [images[start : start + side] for start in range(0, len(images), side)]
    name = f"Layer {layer}  {heads[0].name}".rstrip()
    return "\n".join([name, *("\n".join(map("  ".join, zip(*row, strict=True))).rstrip() for row in rows)])


def draw_pattern_letters(heads: "Heads") -> str:
    """Draw a grid of letters, one row per layer, with the letter of each head's pattern."""
    layers = heads.heads_by_layer()
    most, side = max(map(len, layers.values())), len(f"layer {max(layers)}")
    rows = [("head", [f"{number % 100:2d}" for number in range(most)])]
    rows += [(f"layer {layer}", [f" {PATTERN_LETTERS[head.pattern]}" for head in row]) for layer, row in layers.items()]
    return "\n".join(f"{name:>{side}}  {' '.join(cells)}" for name, cells in rows)


def shade_matrix(
    weights: Float[np.ndarray, "queries keys"], allowed: Bool[np.ndarray, "queries keys"], rows: int, columns: int
) -> list[str]:
    """Draw an attention matrix as `rows` lines of `columns` characters, blank where no weight is `allowed`.

    A character is as dark as the mean attention that its queries give to its keys.

    >>> weights = np.array([[1.0, 0.0], [0.25, 0.75]])
    >>> shade_matrix(weights, np.tri(2, dtype=bool), 2, 4)
    ['██  ', '▒▒██']
    """

    def spans(count: int, size: int) -> list[slice]:
        starts = [number * size // count for number in range(count)]
        return [slice(a, max(a + 1, (number + 1) * size // count)) for number, a in enumerate(starts)]

    def shade(y: slice, x: slice) -> str:
        if not allowed[y, x].any():
            return " "
        return SHADES[min(len(SHADES) - 1, int(math.sqrt(weights[y, x].sum(1).mean()) * len(SHADES)))]

    across = spans(columns, weights.shape[1])
    return ["".join(shade(y, x) for x in across) for y in spans(rows, weights.shape[0])]


def list_attended_tokens(head: "Head") -> str:
    """List the keys that each query attends to most with their weights, one line per query."""
    width = max(len(word.label()) for word in head.query_tokens)
    lines = []
    for row, word in enumerate(head.query_tokens):
        order = np.argsort(-head.weights[row], kind="stable")[:MAX_LISTED_KEYS]
        keys = [(head.key_tokens[key], head.weights[row, key]) for key in order if head.allowed[row, key]]
        listed = ",  ".join(f"{key.index}:{key.label()} {weight:.3f}" for key, weight in keys)
        lines.append(f"{word.index:5d} {word.label():{width}}  → {listed or 'nothing: all keys are masked'}")
    return "\n".join(lines)
