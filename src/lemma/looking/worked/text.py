"""Blocks as text for a terminal, and as Markdown."""

import re
import textwrap
from collections.abc import Sequence

from lemma.looking.worked.blocks import Block, Blocks, Grid, Heading, Matrix, Words
from lemma.looking.worked.numerals import across, bar

WIDTH = 110
"""A wider table is cut into several, each with the names of the rows."""
GAP = "  "


def as_text(blocks: Blocks, width: int = WIDTH) -> str:
    """Blocks one below the other, with an empty line between them; lines of arithmetic stand together."""
    lines: list[str] = []
    before: Block | None = None
    for block in blocks:
        if before is not None and not (isinstance(block, Words) and isinstance(before, Words | Heading)):
            lines.append("")
        lines += _text(block, width)
        before = block
    return "\n".join(lines)


def _text(block: Block, width: int) -> list[str]:
    if isinstance(block, Heading):
        lines = textwrap.wrap(block.text, width) or [""]
        return [*lines, *(["=" * max(map(across, lines))] if block.level == 1 else [])]
    if isinstance(block, Words):
        return [part for line in block.text.splitlines() for part in _wrapped(line, width)]
    return _grid(block.grid() if isinstance(block, Matrix) else block, width)


def _wrapped(line: str, width: int) -> list[str]:
    return textwrap.wrap(
        line, width, initial_indent=GAP, subsequent_indent=GAP * 2, break_long_words=False, break_on_hyphens=False
    ) or [""]


def _grid(grid: Grid, width: int) -> list[str]:
    title = _wrapped(grid.title, width) if grid.title else []
    bars = [bar(share) for share in grid.bars]
    table = [list(grid.header), *(list(row) for row in grid.rows), *([list(grid.total)] if grid.total else [])]
    lines: list[str] = []
    for columns in _chunks(table, width - len(GAP)):
        part = _lines([[row[column] for column in columns] for row in table], grid.plain)
        if bars and columns[-1] == len(grid.header) - 1:
            part = [line + (GAP + bars[place - 1] if 0 < place <= len(bars) else "") for place, line in enumerate(part)]
        lines += part
    return title + [f"{GAP}{line}".rstrip() for line in lines]


def _chunks(table: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Which columns stand side by side; the first one always does."""
    widths = _widths(table)
    chunks: list[list[int]] = [[0]]
    room = width - widths[0]
    for column in range(1, len(widths)):
        if len(chunks[-1]) > 1 and room < widths[column] + len(GAP):
            chunks.append([0])
            room = width - widths[0]
        chunks[-1].append(column)
        room -= widths[column] + len(GAP)
    return chunks


def _widths(table: Sequence[Sequence[str]]) -> list[int]:
    return [max(across(row[column]) for row in table) for column in range(len(table[0]))]


def _lines(table: Sequence[Sequence[str]], plain: bool) -> list[str]:
    widths = _widths(table)
    return [
        GAP.join(_aligned(cell, width, plain or place == 0) for place, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in table)
    ]


def _aligned(cell: str, width: int, left: bool) -> str:
    space = " " * (width - across(cell))
    return cell + space if left else space + cell


def as_markdown(blocks: Blocks) -> str:
    """Blocks as Markdown; nothing that a person wrote means anything in it."""
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {_quoted(block.text)}"
    if isinstance(block, Words):
        return "  \n".join(_quoted(line) for line in block.text.splitlines())
    grid = block.grid() if isinstance(block, Matrix) else block
    rows = [grid.header, *grid.rows, *([grid.total] if grid.total else [])]
    lines = [f"| {' | '.join(_quoted(cell) for cell in row)} |" for row in rows]
    ruler = "|" + "|".join(["---", *(["---" if grid.plain else "---:"] * (len(grid.header) - 1))]) + "|"
    title = f"**{_quoted(grid.title)}**\n\n" if grid.title else ""
    return title + "\n".join([lines[0], ruler, *lines[1:]])


def _quoted(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>#|$~&])", r"\\\1", " ".join(text.split()))
