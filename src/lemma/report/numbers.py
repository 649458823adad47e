"""Numbers and tokens as people read them."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from unicodedata import category

BLOCKS = " ▁▂▃▄▅▆▇█"
BAR_WIDTH = 20


def format_number(value: float, decimals: int = 3) -> str:
    """Write a number with at most `decimals` decimals; very small and large ones get a power of ten, NaN is a dash.

    >>> [format_number(value) for value in (0.2186, -1.0, 1e-9, float("-inf"))]
    ['0.219', '−1', '1.00e−09', '−∞']
    """
    size = abs(value)
    if size != size:
        return "–"
    if size == float("inf"):
        text = "∞"
    elif size >= 1e7 or 0 < size < 0.5 * 10**-decimals:
        text = f"{size:.2e}"
    else:
        text = f"{size:.{decimals}f}"
        text = text.partition(".")[0] if float(text) == round(size) else text
    negative = value < 0 and text != "0"
    return ("−" if negative else "") + text.replace("-", "−")


def needed_decimals(values: Iterable[float], decimals: int) -> int:
    """Return how many decimals, at most `decimals`, write all finite values as well as that many would.

    >>> needed_decimals([0.5, -1.25, 3], 4), needed_decimals([1 / 3, float("nan")], 4), needed_decimals([], 4)
    (2, 4, 0)
    """
    finite = [value for value in values if isfinite(value)]
    for count in range(decimals):
        if all(round(value, count) == round(value, decimals) for value in finite):
            return count
    return decimals


def format_vector(values: Iterable[float], decimals: int = 3) -> str:
    """Write a vector in brackets.

    >>> format_vector([1, -0.25])
    '(1, −0.25)'
    """
    return "(" + ", ".join(format_short(value, decimals) for value in values) + ")"


def format_short(value: float, decimals: int = 3) -> str:
    """Write a number without the zeros that only line up columns.

    >>> format_short(0.25, 4), format_number(0.25, 4)
    ('0.25', '0.2500')
    """
    text = format_number(value, decimals)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def format_numbers(values: Iterable[float], decimals: int = 3) -> list[str]:
    """Write the numbers of a column, all with no more decimals than one of them needs.

    >>> format_numbers([1, -0.25])
    ['1', '−0.25']
    """
    numbers = [float(value) for value in values]
    needed = needed_decimals(numbers, decimals)
    return [format_number(number, needed) for number in numbers]


def format_factor(value: float, decimals: int = 3) -> str:
    """Write a number as a factor of a product: with brackets if it is negative.

    >>> format_factor(-0.5), format_factor(2)
    ('(−0.5)', '2')
    """
    (text,) = format_numbers([value], decimals)
    return f"({text})" if text.startswith("−") else text


def format_times(count: int) -> str:
    """Write how often something happens.

    >>> format_times(1), format_times(2), format_times(1000)
    ('once', 'twice', '1,000 times')
    """
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def shade_block(fraction: float) -> str:
    """Return a block character whose height is a fraction from 0 to 1.

    >>> shade_block(0), shade_block(0.219), shade_block(1)
    (' ', '▂', '█')
    """
    return BLOCKS[ceil(_clamp(fraction) * 8)]


def _clamp(fraction: float) -> float:
    """Limit a fraction to 0 to 1; NaN is 0."""
    return min(max(fraction, 0.0), 1.0) if fraction == fraction else 0.0


def draw_bar(fraction: float) -> str:
    """Draw a bar whose length is a fraction from 0 to 1; any positive fraction can be seen.

    >>> draw_bar(0.5), draw_bar(0), draw_bar(0.001)
    ('██████████', '', '▏')
    """
    eighths = round(_clamp(fraction) * BAR_WIDTH * 8)
    if eighths == 0:
        return "▏" if fraction > 0 else ""
    return "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8]


def shorten(text: str, max_length: int = 60) -> str:
    """Return the text, or its beginning if it is longer than `max_length`.

    >>> shorten("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def escape_invisible(text: str) -> str:
    """Write invisible characters as escapes.

    >>> escape_invisible("a\\x07b")
    'a\\\\x07b'
    """
    return "".join(
        character if character.isprintable() and category(character)[0] != "C" else ascii(character)[1:-1]
        for character in text
    )


# Tokens: numbered, and with nothing invisible in them


SPACE_SYMBOLS = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍", "\xa0": "⍽"}
JOINERS = {"\u200c", "\u200d"}  # they hold emoji and some scripts together and reorder nothing
HIDDEN_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@dataclass(frozen=True)
class VisibleToken:
    """Token of a text."""

    index: int  # from 0
    text: str
    identity: Hashable  # equal for tokens that are the same

    @property
    def visible_text(self) -> str:
        """The text with spaces and control characters made visible."""
        return make_visible(self.text)

    def label(self, max_length: int = 12) -> str:
        """Return the visible text, shortened."""
        return shorten(self.visible_text, max_length)


def number_tokens(texts: Sequence[str], identities: Sequence[Hashable] | None = None) -> tuple[VisibleToken, ...]:
    """Number the tokens of a text; without identities, equal texts are the same token."""
    pairs = zip(texts, texts if identities is None else identities, strict=True)
    return tuple(VisibleToken(index, text, identity) for index, (text, identity) in enumerate(pairs))


def pluralize(count: int, noun: str) -> str:
    """Write a count with its noun.

    >>> pluralize(1, "head"), pluralize(1200, "token")
    ('1 head', '1,200 tokens')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def make_visible(text: str) -> str:
    r"""Write a token so that it is visible and cannot change a terminal or a page's order of reading.

    >>> make_visible(" the"), make_visible("a\nb"), make_visible("\x1b[2J"), make_visible("")
    ('␣the', 'a↵b', '\\x1b[2J', '∅')
    """

    def visible(character: str) -> str:
        if character in SPACE_SYMBOLS:
            return SPACE_SYMBOLS[character]
        is_hidden = category(character) in HIDDEN_CATEGORIES and character not in JOINERS
        return character.encode("unicode_escape").decode() if is_hidden else character

    return "".join(map(visible, text)) or "∅"
