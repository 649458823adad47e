"""Trees drawn: in the terminal with box characters, one word a line, and as SVG with arcs above the words."""

from collections.abc import Sequence
from html import escape

from lemma.typeset import across

Arc = tuple[int, int]
"""From a governor to a dependent, words counted from 1."""
LETTER, GAP, STEP, BASE = (
    9.0,
    26.0,
    30.0,
    24.0,
)  # pixels: a letter, between words, between arcs' heights, below the arcs
INK, SOFT = "#0072b2", "#666"


def terminal_arcs(words: Sequence[str], heads: Sequence[int], notes: Sequence[str]) -> str:
    """Draw a tree beside its words, from governor to dependent, with a note behind each word.

    >>> print(terminal_arcs(["I", "sleep"], [2, 0], ["nsubj", "root"]))
    ┌─► I      nsubj
    └── sleep  root
    """
    arcs = [(head, place) for place, head in enumerate(heads, start=1) if head]
    columns = _columns(arcs)
    widest = max((across(word) for word in words), default=0)
    lines = []
    for row, word in enumerate(words, start=1):
        drawn = _row(row, columns)
        lines.append(f"{drawn} {word}{' ' * (widest - across(word))}  {notes[row - 1]}".rstrip())
    return "\n".join(lines)


def levels(arcs: Sequence[Arc]) -> dict[Arc, int]:
    """How high each arc must be drawn to run clear of the shorter ones that it overlaps: 1 and up."""
    found: dict[Arc, int] = {}
    for arc in sorted(arcs, key=lambda arc: (abs(arc[0] - arc[1]), arc)):
        low, high = sorted(arc)
        below = [level for other, level in found.items() if min(other) <= high and max(other) >= low]
        found[arc] = max(below, default=0) + 1
    return found


def _columns(arcs: Sequence[Arc]) -> list[list[Arc]]:
    """The arcs of each column of the drawing, the outermost first."""
    height = levels(arcs)
    return [[arc for arc in arcs if height[arc] == level] for level in range(max(height.values(), default=0), 0, -1)]


def _row(row: int, columns: Sequence[Sequence[Arc]]) -> str:
    drawn, running, arrives = "", False, False
    for column in columns:
        arc = next((arc for arc in column if min(arc) <= row <= max(arc)), None)
        if arc is None:
            drawn += "─" if running else " "
        elif row in arc:
            drawn += ("┬" if row == min(arc) else "┴") if running else ("┌" if row == min(arc) else "└")
            running, arrives = True, arrives or row == arc[1]
        else:
            drawn += "┼" if running else "│"
        drawn += "─" if running else " "
    return drawn + ("►" if arrives else "─" if running else " ") if columns else drawn


def svg_arcs(words: Sequence[str], heads: Sequence[int], labels: Sequence[str]) -> str:
    """Draw a tree as one SVG: words in a row, arcs above them with their labels, an arrow at each dependent."""
    wide = [LETTER * max(across(word), across(label) * 0.78, 2) for word, label in zip(words, labels, strict=True)]
    centres, place = [], GAP / 2
    for width in wide:
        centres.append(place + width / 2)
        place += width + GAP
    arcs = [(head, dependent) for dependent, head in enumerate(heads, start=1) if head]
    height = levels(arcs)
    floor = BASE + STEP * max([*height.values(), 1]) + 14
    body = [_arc_svg(arc, labels[arc[1] - 1], height[arc], centres, floor) for arc in arcs]
    body += [_root_svg(centres[d - 1], labels[d - 1], floor) for d, head in enumerate(heads, start=1) if not head]
    body += [_word_svg(word, centre, floor + 20) for word, centre in zip(words, centres, strict=True)]
    title = escape(" ".join(words))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {place:.0f} {floor + 34:.0f}" width="{place:.0f}" '
        f'height="{floor + 34:.0f}" role="img" aria-label="dependency tree: {title}" '
        f'font-family="system-ui, sans-serif" style="background:#fff">'
        f"<title>{title}</title>{''.join(body)}</svg>"
    )


def _arc_svg(arc: Arc, label: str, level: int, centres: Sequence[float], floor: float) -> str:
    governor, dependent = arc
    lean = 5.0 if dependent > governor else -5.0  # arcs that meet at a word do not start at one point
    start, end = centres[governor - 1] + lean, centres[dependent - 1] - lean / 2.5
    top = floor - STEP * level
    bend = min(14.0, abs(end - start) / 2)
    sign = 1 if end > start else -1
    path = (
        f"M{start:.1f},{floor:.1f} V{top + bend:.1f} Q{start:.1f},{top:.1f} {start + sign * bend:.1f},{top:.1f} "
        f"H{end - sign * bend:.1f} Q{end:.1f},{top:.1f} {end:.1f},{top + bend:.1f} V{floor - 5:.1f}"
    )
    tip = f"M{end - 4:.1f},{floor - 7:.1f} L{end:.1f},{floor:.1f} L{end + 4:.1f},{floor - 7:.1f} Z"
    said = escape(label) if label else ""
    return (
        f'<path d="{path}" fill="none" stroke="{INK}" stroke-width="1.4"/><path d="{tip}" fill="{INK}"/>'
        f'<text x="{(start + end) / 2:.1f}" y="{top - 5:.1f}" font-size="11" text-anchor="middle" '
        f'stroke="#fff" stroke-width="3" paint-order="stroke" fill="{SOFT}">{said}</text>'
    )


def _root_svg(centre: float, label: str, floor: float) -> str:
    tip = f"M{centre - 4:.1f},{floor - 7:.1f} L{centre:.1f},{floor:.1f} L{centre + 4:.1f},{floor - 7:.1f} Z"
    return (
        f'<path d="M{centre:.1f},12 V{floor - 5:.1f}" stroke="{SOFT}" stroke-dasharray="3 3"/>'
        f'<path d="{tip}" fill="{SOFT}"/><text x="{centre + 5:.1f}" y="14" font-size="11" fill="{SOFT}">'
        f"{escape(label or 'root')}</text>"
    )


def _word_svg(word: str, centre: float, height: float) -> str:
    return f'<text x="{centre:.1f}" y="{height:.1f}" font-size="15" text-anchor="middle">{escape(word)}</text>'
