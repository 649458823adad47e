"""Blocks as text for a terminal, and as Markdown."""

import re

from lemma.looking.worked.blocks import Block, Blocks, Grid, Heading, Matrix, Words
from lemma.looking.worked.numerals import bar
from lemma.typeset import across, columns, table, wrap

GAP = "  "


def as_text(blocks: Blocks) -> str:
    """Blocks one below the other, with an empty line between them; lines of arithmetic stand together."""
    lines: list[str] = []
    before: Block | None = None
    for block in blocks:
        if before is not None and not (isinstance(block, Words) and isinstance(before, Words | Heading)):
            lines.append("")
        lines += _text(block)
        before = block
    return "\n".join(lines)


def _text(block: Block) -> list[str]:
    if isinstance(block, Heading):
        lines = wrap(block.text)
        return [*lines, *(["=" * max(map(across, lines))] if block.level == 1 else [])]
    if isinstance(block, Words):
        return [part for line in block.text.splitlines() for part in _wrapped(line)]
    return _grid(block.grid() if isinstance(block, Matrix) else block)


def _wrapped(line: str) -> list[str]:
    return wrap(line, indent=GAP, hanging=GAP * 2)


def _grid(grid: Grid) -> list[str]:
    """A table, and where there is room the bars beside it that its shares are drawn as."""
    rows = [grid.header, *grid.rows, *([grid.total] if grid.total else [])]
    every = range(len(grid.header))
    lines = table(rows, left=every if grid.plain else (0,), flexible=every if grid.plain else (), width=columns() - 2)
    return [*(_wrapped(grid.title) if grid.title else []), *(f"{GAP}{line}".rstrip() for line in _barred(lines, grid))]


def _barred(lines: list[str], grid: Grid) -> list[str]:
    """The last lines of a table with a bar behind each of its rows."""
    bars = [bar(share) for share in grid.bars]
    first = len(lines) - len(grid.rows) - bool(grid.total)
    widest = max(map(across, lines[max(first, 0) :]), default=0)
    if not bars or first < 1 or widest + max(map(len, bars)) + 2 * len(GAP) > columns():
        return lines
    behind = dict(enumerate(bars, first))
    return [
        line + (" " * (widest - across(line)) + GAP + behind[at] if at in behind else "")
        for at, line in enumerate(lines)
    ]


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
