"""Plain text fitted to a width: wrapped lines and tables."""

import re
import shutil
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

# How wide a text is, and how wide it may be.


DEFAULT_WIDTH = 80  # columns where there is no terminal
MIN_WIDTH, MAX_WIDTH = 40, 100  # the fewest and the most columns of a terminal that are used
NO_BREAK_SPACE = "\u00a0"  # no line is broken at it; written as a plain space
_columns: ContextVar[int] = ContextVar("columns", default=DEFAULT_WIDTH)


def text_width() -> int:
    """Return the width of text in columns: 80, unless within `set_text_width`."""
    return _columns.get()


@contextmanager
def set_text_width(columns: int) -> Iterator[None]:
    """Set `text_width()` to a number of columns within the `with` block.

    >>> with set_text_width(60):
    ...     text_width()
    60
    """
    before = _columns.set(columns)
    try:
        yield
    finally:
        _columns.reset(before)


def stream_width(stream: TextIO | None) -> int:
    """Return the columns to use on an output stream: those of a terminal, within limits; 80 for a pipe or a file.

    >>> import io
    >>> stream_width(io.StringIO())
    80
    """
    if stream is None or not stream.isatty():
        return DEFAULT_WIDTH
    return min(max(shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns, MIN_WIDTH), MAX_WIDTH)


def display_width(text: str) -> int:
    """Return the number of terminal columns that a text takes; wide characters take two, combining marks none.

    >>> display_width("d·h"), display_width("語"), display_width("é"), display_width("👩‍👩‍👧"), display_width("❤️")
    (3, 2, 1, 2, 2)
    """
    return len(text) if text.isascii() else sum(width for _, width in iter_graphemes(text))


JOINER, EMOJI_STYLE, SOFT_HYPHEN = "\u200d", "\ufe0f", "\u00ad"
SKIN_TONES = range(0x1F3FB, 0x1F400)


def iter_graphemes(text: str) -> Iterator[tuple[str, int]]:
    """Yield (character as a reader sees it, width in columns); a joined emoji is one character (UAX #29)."""
    cluster, width = "", 0
    for sign in text:
        extends_cluster = cluster.endswith(JOINER) and width == 2 and unicodedata.category(sign) == "So"
        marks = unicodedata.category(sign) in ("Mn", "Me", "Cf") and sign != SOFT_HYPHEN
        if extends_cluster or marks or (width == 2 and ord(sign) in SKIN_TONES):
            cluster, width = cluster + sign, 2 if sign == EMOJI_STYLE and cluster else width
            continue
        if cluster:
            yield cluster, width
        cluster, width = sign, 2 if unicodedata.east_asian_width(sign) in "WF" else 1
    if cluster:
        yield cluster, width


def keep_together(text: str) -> str:
    """Return a text with its spaces replaced by no-break spaces, at which `wrap` does not break it."""
    return text.replace(" ", NO_BREAK_SPACE)


# Lines that are too long for the page, broken at spaces; what has no space runs over, as a long file name does.


HANGING = "  "
MAX_LABEL = 30
_OPERATOR = re.compile(r"(?<=\s)([-+−–=·×/<>≤≥≠≈→*]) (?=\S)")  # stays with what comes after it
_EQUATION = re.compile(r"(?<!\S)(\S{1,4}) = (?=\S)")  # d = 512 stays on one line
_COMMAND = re.compile(r"(?<=: )(?:lemma|iconv|pip|make|torchrun) \S.*$")  # is copied as a whole
_WORD = re.compile(r"([ \t]*)([^ \t]+)")
_LABEL = re.compile(r"(\S(?:.*?\S)??)( {2,})(?=\S)")
_DOTTED = re.compile(r"[^·.]+[·.]?|[·.]")
_BULLET = re.compile(r"[✓✗•·*–-] +(?=\S)")


def wrap(
    text: str, width: int | None = None, indent: str = "", hanging: str | None = None, break_anywhere: bool = False
) -> list[str]:
    """Break a line of text at spaces, and formulas before operators; return the lines.

    Args:
        text: the line.
        width: columns; by default `text_width()`.
        indent: prefix of the first line.
        hanging: prefix of all other lines; `indent` if None.
        break_anywhere: whether words that are longer than a line are broken; otherwise they run over it.

    >>> wrap("parameters = d·(V + 2) + L·d", 18, hanging="  ")
    ['parameters = d·(V', '  + 2) + L·d']
    """
    width, hanging = width or text_width(), indent if hanging is None else hanging
    lines, line, empty = [], indent, True
    text_with_glue = _EQUATION.sub(rf"\1{NO_BREAK_SPACE}={NO_BREAK_SPACE}", text.strip(" "))
    text_with_glue = _COMMAND.sub(
        lambda match: keep_together(match[0]), _OPERATOR.sub(rf"\1{NO_BREAK_SPACE}", text_with_glue)
    )
    for space, word in _WORD.findall(text_with_glue):
        for index, piece in enumerate(_split_word(word, width - display_width(hanging), break_anywhere)):
            between = "" if empty or index else space
            if not empty and display_width(line + between + piece) > width:
                lines.append(line)
                line, between = hanging, ""
            line, empty = line + between + piece, False
    return [wrapped.replace(NO_BREAK_SPACE, " ").rstrip() for wrapped in [*lines, line]]


def _split_word(word: str, width: int, break_anywhere: bool) -> list[str]:
    """Split a formula or module path wider than `width` after its dots (or anywhere); else a file path stays whole."""
    if display_width(word) <= width or ("/" in word and not break_anywhere):
        return [word]
    dotted = ((factor, display_width(factor)) for factor in _DOTTED.findall(word))
    parts = _pack_parts(iter_graphemes(word) if break_anywhere else dotted, width)
    # what has no place to be cut at, such as a model's babble, is cut where the line ends
    return [piece for part in parts for piece in _pack_parts(iter_graphemes(part), width)]


def _pack_parts(parts: Iterable[tuple[str, int]], width: int) -> list[str]:
    """Join neighbouring (text, width) parts into pieces of at most `width` columns, or of a single wider part."""
    pieces, used = [""], 0
    for part, part_width in parts:
        if pieces[-1] and used + part_width > width:
            pieces.append("")
            used = 0
        pieces[-1] += part
        used += part_width
    return pieces


def wrap_paragraph(text: str, width: int | None = None) -> str:
    """Break the lines of a text that are wider than `width` columns, without indentation.

    >>> print(wrap_paragraph("to be or not to be", 10))
    to be or
    not to be
    """
    return "\n".join(part for line in text.split("\n") for part in _wrap_line(line, width or text_width(), ""))


def wrap_lines(text: str, width: int | None = None) -> str:
    """Break the lines of a text that are wider than `width` columns, and indent their continuations.

    Where a line begins with a name and two spaces, its continuations begin below the text after them.

    >>> print(wrap_lines("loss    1.5 nats/token, lower is better", 24))
    loss    1.5 nats/token,
            lower is better
    """
    width = width or text_width()
    return "\n".join(part for line in text.split("\n") for part in _wrap_line(line, width, None))


def _wrap_line(line: str, width: int, hanging: str | None) -> list[str]:
    """Break one line; its continuations begin with `hanging` or, if None, below the text after its bullet or label."""
    if display_width(line) <= width:
        return [line.replace(NO_BREAK_SPACE, " ")]
    indent = line[: len(line) - len(line.lstrip(" "))]
    if hanging is None:  # a line goes on below what follows its bullet or its label
        prefixes = (_BULLET.match(line.lstrip(" ")), _LABEL.match(line.lstrip(" ")))
        short = [prefix[0] for prefix in prefixes if prefix and display_width(prefix[0]) <= MAX_LABEL]
        hanging = " " * display_width(short[0]) if short else HANGING
    return wrap(line, width, indent, indent + hanging)


def label_line(name: str, value: str, width: int, break_anywhere: bool = False) -> str:
    """Return a name, padded to `width` columns, and its value, which continues in its own column if it is long.

    `break_anywhere` allows breaks within words of the value.

    >>> print(label_line("loss", "1.5 nats", 6))
    loss   1.5 nats
    """
    lead = f"{name}{' ' * (width - display_width(name))} "
    if not value:
        return lead.rstrip()
    return "\n".join(wrap(value, indent=lead, hanging=" " * display_width(lead), break_anywhere=break_anywhere))


# Tables that fit the width: cells that may be broken are, and columns that still find no room go on below


GAP, NARROW_GAP = "  ", " "
MIN_COLUMN = 12  # columns that a broken cell is given at least


def format_table(
    rows: Sequence[Sequence[str]],
    *,
    left: Collection[int] = (0,),
    breakable: Collection[int] = (),
    has_header: bool = True,
    underline_header: bool = False,
    width: int | None = None,
) -> list[str]:
    r"""Align the cells of a table in columns; return the lines.

    If the table is too wide, breakable cells are broken first, then underlined columns move closer, then columns
    continue below, the first of them repeated.

    Args:
        rows: cells of each row.
        left: indices of columns aligned left; others are aligned right.
        breakable: indices of columns whose cells may be broken.
        has_header: whether the first row is a header, whose cells may be broken.
        underline_header: whether a line of dashes follows the header.
        width: columns of text; by default `text_width()`.

    >>> print("\n".join(format_table([["a", "bb", "cc"], ["1", "2", "3"]], underline_header=True, width=6)))
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
    max_width = width or text_width()
    widths, min_widths = [], []  # as the cells are, and with all cells broken that may be
    for index, column in enumerate(zip(*rows, strict=True)):
        widths.append(max(map(display_width, column)))
        parts = [
            _wrap_cell(cell, MIN_COLUMN) if index in breakable or (has_header and number == 0) else [cell]
            for number, cell in enumerate(column)
        ]
        min_widths.append(max(display_width(part) for cell_parts in parts for part in cell_parts))

    def total(column_widths: Sequence[int], between: str) -> int:
        """Return the width of columns of these widths, joined by the separator `between`."""
        return sum(column_widths) + len(between) * (len(column_widths) - 1)

    is_narrow = underline_header and total(min_widths, GAP) > max_width >= total(min_widths, NARROW_GAP)
    gap = NARROW_GAP if is_narrow else GAP
    while total(widths, gap) > max_width:
        shrinkable = [at for at in range(len(widths)) if widths[at] > min_widths[at]]
        if not shrinkable:
            break
        widths[max(shrinkable, key=lambda at: widths[at])] -= 1
    blocks = [list(range(len(widths)))]
    if total(widths, gap) > max_width:  # the first column begins every block
        blocks = [[0]]
        for index in range(1, len(widths)):
            if len(blocks[-1]) > 1 and total([widths[at] for at in (*blocks[-1], index)], GAP) > max_width:
                blocks.append([0])
            blocks[-1].append(index)

    lines: list[str] = []
    for column_indices in blocks:
        lines += [""] if lines else []
        for number, row in enumerate(rows):
            cells = [_wrap_cell(row[index], widths[index]) for index in column_indices]
            height = max(map(len, cells))
            for at, index in enumerate(column_indices):
                empty = [""] * (height - len(cells[at]))  # cells of a header end on its last line
                filled = empty + cells[at] if has_header and number == 0 else cells[at] + empty
                spaces = [" " * (widths[index] - display_width(part)) for part in filled]
                pairs = zip(filled, spaces, strict=True)
                cells[at] = [part + space if index in left else space + part for part, space in pairs]
            lines += [gap.join(line).rstrip() for line in zip(*cells, strict=True)]
            if underline_header and number == 0:
                lines.append(gap.join("─" * widths[index] for index in column_indices))
    return lines


def _wrap_cell(text: str, width: int) -> list[str]:
    """Return the lines of a cell broken to `width` columns, each indented like the first."""
    if display_width(text) <= width:
        return [text]
    indent = text[: len(text) - len(text.lstrip(" "))]
    return wrap(text, width, indent, indent)
