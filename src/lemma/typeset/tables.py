"""Tables that fit the page: cells that may be broken are, and columns that still find no room go on below."""

from collections.abc import Collection, Iterator, Sequence

from lemma.typeset.lines import wrap
from lemma.typeset.measure import across, columns

GAP, NARROW_GAP = "  ", " "
NARROWEST = 12
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
            _broken(cell) if place in flexible or (head and not row) else across(cell)
            for row, cell in enumerate(column)
        )
        for place, column in enumerate(zip(*rows, strict=True))
    ]


def _broken(cell: str) -> int:
    return max(map(across, _cell(cell, NARROWEST)))


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
