"""Colours that people with any kind of colour vision can tell apart: blue for more, orange for less than zero."""

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
