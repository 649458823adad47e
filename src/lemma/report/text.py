"""Plain text fitted to a width: wrapped lines and tables."""

import re
import shutil
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

# How wide a text is, and how wide it may be.


PAGE, NARROWEST, WIDEST = 80, 40, 100
"""Columns where there is no terminal; the fewest and the most that are used of one."""
FIXED = "\u00a0"
"""A space at which no line is broken; written as a plain one."""
_columns: ContextVar[int] = ContextVar("columns", default=PAGE)


def columns() -> int:
    """How many columns text is set to now: 80, unless `set_to` says other."""
    return _columns.get()


@contextmanager
def set_to(number: int) -> Iterator[None]:
    """Set text to so many columns meanwhile.

    >>> with set_to(60):
    ...     columns()
    60
    """
    before = _columns.set(number)
    try:
        yield
    finally:
        _columns.reset(before)


def width_of(stream: TextIO | None) -> int:
    """The columns to use on a stream: a terminal's own, within reason; 80 in a pipe or a file.

    >>> import io
    >>> width_of(io.StringIO())
    80
    """
    if stream is None or not stream.isatty():
        return PAGE
    return min(max(shutil.get_terminal_size((PAGE, 24)).columns, NARROWEST), WIDEST)


def across(text: str) -> int:
    """How many columns of a terminal a text takes: signs of East Asia two, combining marks none.

    >>> across("d·h"), across("語"), across("e\u0301")
    (3, 2, 1)
    """
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text
    )


def together(text: str) -> str:
    """The text as one that is broken nowhere, as `d = 512` in a list of sizes."""
    return text.replace(" ", FIXED)


# Lines that are too long for the page, broken at spaces; what has no space runs over, as a long file name does.


HANGING = "  "
MOST_LABEL = 30
_OPERATOR = re.compile(r"(?<=\s)([-+−–=·×/<>≤≥≠≈→*]) (?=\S)")  # stands with what comes after it
_EQUATION = re.compile(r"(?<!\S)(\S{1,4}) = (?=\S)")  # d = 512 stays on one line
_COMMAND = re.compile(r"(?<=: )(?:lemma|iconv|pip|make|torchrun) \S.*$")  # is copied as a whole
_WORD = re.compile(r"([ \t]*)([^ \t]+)")
_LABEL = re.compile(r"(\S(?:.*?\S)??)( {2,})(?=\S)")
_DOTTED = re.compile(r"[^·.]+[·.]?|[·.]")
_BULLET = re.compile(r"[✓✗•·*–-] +(?=\S)")


def wrap(
    text: str, width: int | None = None, indent: str = "", hanging: str | None = None, anywhere: bool = False
) -> list[str]:
    """Break one line at spaces, and a formula before its signs; the first line after `indent`, others after `hanging`.

    What is too long for a line runs over it, unless it may be broken `anywhere`.

    >>> wrap("parameters = d·(V + 2) + L·d", 18, hanging="  ")
    ['parameters = d·(V', '  + 2) + L·d']
    """
    width, hanging = width or columns(), indent if hanging is None else hanging
    lines, line, empty = [], indent, True
    for space, word in _WORD.findall(_kept_together(text.strip(" "))):
        for place, piece in enumerate(_pieces(word, width - across(hanging), anywhere)):
            between = "" if empty or place else space
            if not empty and across(line + between + piece) > width:
                lines.append(line)
                line, between = hanging, ""
            line, empty = line + between + piece, False
    return [one.replace(FIXED, " ").rstrip() for one in [*lines, line]]


def _kept_together(text: str) -> str:
    """Signs stand with what comes after them; short equations, and a command that ends a line, are not broken."""
    signs = _OPERATOR.sub(rf"\1{FIXED}", _EQUATION.sub(rf"\1{FIXED}={FIXED}", text))
    return _COMMAND.sub(lambda found: together(found[0]), signs)


def _pieces(word: str, room: int, anywhere: bool) -> list[str]:
    """A word as it stands; a formula or a module's path that is too long cut after its dots. A file's stays whole."""
    if across(word) <= room or ("/" in word and not anywhere):
        return [word]
    pieces = [""]
    for factor in word if anywhere else _DOTTED.findall(word):
        if pieces[-1] and across(pieces[-1] + factor) > room:
            pieces.append("")
        pieces[-1] += factor
    return [part for piece in pieces for part in _chopped(piece, room)]


def _chopped(piece: str, room: int) -> list[str]:
    """What has no place to be cut at, such as a model's babble, cut where the line ends."""
    parts, used = [""], 0
    for character in piece:
        wide = across(character)
        if parts[-1] and used + wide > room:
            parts.append("")
            used = 0
        parts[-1] += character
        used += wide
    return parts


def paragraph(text: str, width: int | None = None) -> str:
    """A text whose lines are broken where they are too long, all of them beginning at the left.

    >>> print(paragraph("to be or not to be", 10))
    to be or
    not to be
    """
    return "\n".join(part for line in text.split("\n") for part in _broken(line, width or columns(), ""))


def fit(text: str, width: int | None = None) -> str:
    """A text whose lines are broken where they are too long, what follows of each standing a little to the right.

    Where a line begins with a name and two spaces, it goes on below what comes after them.

    >>> print(fit("loss    1.5 nats a token, lower is better", 24))
    loss    1.5 nats a
            token, lower is
            better
    """
    width = width or columns()
    return "\n".join(part for line in text.split("\n") for part in _broken(line, width, None))


def _broken(line: str, width: int, hanging: str | None) -> list[str]:
    if across(line) <= width:
        return [line.replace(FIXED, " ")]
    indent = line[: len(line) - len(line.lstrip(" "))]
    deeper = indent + (_deeper(line.lstrip(" ")) if hanging is None else hanging)
    return wrap(line, width, indent, deeper)


def _deeper(line: str) -> str:
    """How much further to the right a line goes on."""
    for known in (_BULLET.match(line), _LABEL.match(line)):
        if known and across(known[0]) <= MOST_LABEL:
            return " " * across(known[0])
    return HANGING


def label(name: str, value: str, width: int, anywhere: bool = False) -> str:
    """A name and what is said of it, the latter in a column of its own however long it is.

    >>> print(label("loss", "1.5 nats", 6))
    loss   1.5 nats
    """
    lead = f"{name}{' ' * (width - across(name))} "
    return "\n".join(
        wrap(value, indent=lead, hanging=" " * across(lead), anywhere=anywhere) if value else [lead.rstrip()]
    )


# Tables that fit the page: cells that may be broken are, and columns that still find no room go on below.


GAP, NARROW_GAP = "  ", " "
NARROWEST_COLUMN = 12
"""Columns that a broken cell is given at least."""
Rows = Sequence[Sequence[str]]


def table(
    rows: Rows,
    *,
    left: Collection[int] = (0,),
    flexible: Collection[int] = (),
    head: bool = True,
    rule: bool = False,
    width: int | None = None,
) -> list[str]:
    """Align a table: columns in `left` to the left, others to the right; cells in `flexible` may be broken.

    Those of the first row may be too if it is the `head`, which `rule` underlines. Where that is not enough, columns
    that are underlined stand one space apart; and where that is not, they go on below, the first of them repeated.

    >>> print("\\n".join(table([["a", "bb", "cc"], ["1", "2", "3"]], rule=True, width=6)))
    a  bb
    ─  ──
    1   2
    <BLANKLINE>
    a  cc
    ─  ──
    1   3
    """
    if not rows:
        return []
    room, natural, least = width or columns(), _widths(rows), _least(rows, flexible, head)
    gap = next((one for one in ((GAP, NARROW_GAP) if rule else (GAP,)) if _total(least, one) <= room), GAP)
    widths = _narrowed(natural, least, room, gap)
    blocks = [list(range(len(widths)))] if _total(widths, gap) <= room else _blocks(widths, room)
    shown = [_block(rows, places, widths, left, head, rule, gap) for places in blocks]
    return [line for number, block in enumerate(shown) for line in ([""] if number else []) + block]


def _widths(rows: Rows) -> list[int]:
    return [max(map(across, column)) for column in zip(*rows, strict=True)]


def _least(rows: Rows, flexible: Collection[int], head: bool) -> list[int]:
    """How narrow each column can be made by breaking what may be broken."""
    return [
        max(
            _tables_broken(cell) if place in flexible or (head and not row) else across(cell)
            for row, cell in enumerate(column)
        )
        for place, column in enumerate(zip(*rows, strict=True))
    ]


def _tables_broken(cell: str) -> int:
    return max(map(across, _cell(cell, NARROWEST_COLUMN)))


def _total(widths: Sequence[int], gap: str) -> int:
    return sum(widths) + len(gap) * (len(widths) - 1)


def _narrowed(widths: Sequence[int], least: Sequence[int], room: int, gap: str) -> list[int]:
    """Take columns from the widest cells that may be broken, until all fit or none can give more."""
    new = list(widths)
    over = _total(new, gap) - room
    while over > 0 and (wide := [place for place in range(len(new)) if new[place] > least[place]]):
        new[max(wide, key=lambda one: new[one])] -= 1
        over -= 1
    return new


def _blocks(widths: Sequence[int], room: int) -> list[list[int]]:
    """Which columns stand side by side; the first one always does."""
    blocks: list[list[int]] = [[0]]
    used = widths[0]
    for place in range(1, len(widths)):
        if len(blocks[-1]) > 1 and used + len(GAP) + widths[place] > room:
            blocks.append([0])
            used = widths[0]
        blocks[-1].append(place)
        used += len(GAP) + widths[place]
    return blocks


def _block(
    rows: Rows, places: Sequence[int], widths: Sequence[int], left: Collection[int], head: bool, rule: bool, gap: str
) -> list[str]:
    first, *others = [
        [gap.join(line).rstrip() for line in _row(row, places, widths, left, low=head and not number)]
        for number, row in enumerate(rows)
    ]
    ruler = [gap.join("─" * widths[place] for place in places)] if rule else []
    return [*first, *ruler, *(line for lines in others for line in lines)]


def _row(
    row: Sequence[str], places: Sequence[int], widths: Sequence[int], left: Collection[int], low: bool
) -> Iterator[list[str]]:
    """One row, over as many lines as its longest cell takes; its cells at the top of them, or low at their end."""
    cells = [_cell(row[place], widths[place]) for place in places]
    height = max(map(len, cells))
    filled = [[""] * (height - len(cell)) + cell if low else cell + [""] * (height - len(cell)) for cell in cells]
    for line in zip(*filled, strict=True):
        yield [_aligned(cell, widths[place], place in left) for place, cell in zip(places, line, strict=True)]


def _cell(text: str, width: int) -> list[str]:
    if across(text) <= width:
        return [text]
    indent = text[: len(text) - len(text.lstrip(" "))]
    return wrap(text, width, indent, indent)


def _aligned(cell: str, width: int, left: bool) -> str:
    space = " " * (width - across(cell))
    return cell + space if left else space + cell
