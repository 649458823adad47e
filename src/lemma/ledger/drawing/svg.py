"""Shapes as SVG: on a background of its own, so that it can be read in light and dark surroundings."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

from lemma.ledger.drawing.shapes import Box, Line, Shape, Text
from lemma.ledger.drawing.text import SIZE, SMALL, pieces

FILLS = {
    "input": ("#e3f4e4", "#2e7d32"),
    "result": ("#e3f4e4", "#2e7d32"),
    "parameter": ("#dceafb", "#1f5fa8"),
    "constant": ("#eeeeee", "#757575"),
    "step": ("#ffffff", "#5f6b7a"),
    "free step": ("#fff3d6", "#b26a00"),
    "frame": ("none", "#8a5fb5"),
}
INK, PAPER, FLOW = "#1b1f24", "#fcfcfd", "#5f6b7a"
FONTS = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"


def svg(shapes: Sequence[Shape], width: float, height: float, title: str) -> str:
    """An SVG document of this size."""
    order = sorted(
        shapes, key=lambda shape: (not (isinstance(shape, Box) and shape.look == "frame"), not isinstance(shape, Line))
    )
    body = "\n".join(_drawn(shape) for shape in order)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" font-family="{FONTS}" font-size="{SIZE}">\n'
        f"<title>{escape(title)}</title>\n"
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto" '
        f'markerUnits="userSpaceOnUse"><path d="M0,0.5 L8,4 L0,7.5 z" fill="{FLOW}"/></marker></defs>\n'
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="{PAPER}"/>\n{body}\n</svg>\n'
    )


def _drawn(shape: Shape) -> str:
    if isinstance(shape, Box):
        return _box(shape)
    return _text(shape) if isinstance(shape, Text) else _line(shape)


def _box(box: Box) -> str:
    fill, edge = FILLS[box.look]
    round_ = {"free step": 13, "step": 13, "frame": 12}.get(box.look, 2)
    dashes = ' stroke-dasharray="6 4"' if box.look == "frame" else ""
    place = f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
    return f'<rect {place} rx="{round_}" fill="{fill}" stroke="{edge}" stroke-width="1.2"{dashes}/>'


def _text(text: Text) -> str:
    spans = [
        span for words, strong in ((text.strong, True), (text.plain, False)) if words for span in _spans(words, strong)
    ]
    if text.strong and text.plain:
        spans.insert(len(_spans(text.strong, True)), "  ")
    place = f'x="{text.x:.1f}" y="{text.y:.1f}" text-anchor="middle" fill="{INK}" xml:space="preserve"'
    return f"<text {place}>{''.join(spans)}</text>"


def _spans(words: str, strong: bool) -> list[str]:
    """Spans of text; what follows a subscript is lifted up again."""
    weight = ' font-weight="bold"' if strong else ""
    spans, low = [], False
    for piece, lowered in pieces(words):
        shift = f' dy="{4 if lowered else -4}"' if lowered != low else ""
        size = f' font-size="{SMALL}"' if lowered else ""
        spans.append(f"<tspan{weight}{shift}{size}>{escape(piece)}</tspan>")
        low = lowered
    return [*spans, '<tspan dy="-4">\u200b</tspan>'] if low else spans


def _line(line: Line) -> str:
    (x, y), *rest = line.points
    path = f"M{x:.1f},{y:.1f}"
    for a, b in rest:
        if line.sideways:
            path += f" C{(x + a) / 2:.1f},{y:.1f} {(x + a) / 2:.1f},{b:.1f} {a:.1f},{b:.1f}"
        elif abs(a - x) < 0.5:
            path += f" L{a:.1f},{b:.1f}"
        else:
            path += f" C{x:.1f},{(y + b) / 2:.1f} {a:.1f},{(y + b) / 2:.1f} {a:.1f},{b:.1f}"
        x, y = a, b
    tip = ' marker-end="url(#tip)"' if line.arrow else ""
    return f'<path d="{path}" fill="none" stroke="{FLOW}" stroke-width="1.4"{tip}/>'
