"""How wide a text is at most, in the sans-serif fonts that a reader may have, and how it is broken into lines."""

import re

SIZE = 14
SMALL = 12  # subscripts: the smallest letters there are
LINE = 19
SUBSCRIPT = re.compile(r"(?<![A-Za-z0-9_.])([A-Za-zα-ω])_([A-Za-z0-9]+)")
NARROW, WIDE, SIGNS = frozenset("iljI|.,:;'!()[]ftr/-ᵀ…·"), frozenset("mwMW—"), frozenset("×=+−÷√→∗∞≤<>~")


def pieces(text: str) -> list[tuple[str, bool]]:
    """Cut a text into pieces, each with whether it is a subscript: d_h has one, attention_norm has none.

    >>> pieces("H·M_QK")
    [('H·M', False), ('QK', True)]
    """
    found, at = [], 0
    for match in SUBSCRIPT.finditer(text):
        found += [(text[at : match.end(1)], False), (match[2], True)]
        at = match.end()
    return [piece for piece in [*found, (text[at:], False)] if piece[0]]


def width(text: str, bold: bool = False) -> float:
    """An upper estimate of a text's width in pixels."""
    plain = sum(sum(map(_em, piece)) * (SMALL if lowered else SIZE) for piece, lowered in pieces(text))
    return plain * (1.08 if bold else 1.0)


def broken(text: str, limit: float) -> list[str]:
    """Break a text at spaces into lines no wider than the limit, as far as its words allow."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and width(longer) > limit:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _em(letter: str) -> float:
    if letter == " ":
        return 0.33
    if letter in NARROW:
        return 0.42
    if letter in WIDE:
        return 0.95
    if letter in SIGNS:
        return 0.84
    return 0.72 if letter.isupper() else 0.62
