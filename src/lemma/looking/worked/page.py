"""Blocks as a page that opens offline: no script, nothing fetched, every text escaped."""

from html import escape
from itertools import groupby

from lemma.looking.worked.blocks import Block, Blocks, Grid, Heading, Matrix, Words
from lemma.looking.worked.heat_map import Drawn, heat_map
from lemma.looking.worked.picture import svg

PAGE = """
:root { color-scheme: light dark; }
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1.25rem 4rem; background: #fdfdfc; color: #1b1f24; }
@media (prefers-color-scheme: dark) { body { background: #15171c; color: #e8e8e4; } }
"""
STYLE = """
.worked { font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
.worked h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .6rem; }
.worked h2 { font-size: 1.15rem; margin: 2.2rem 0 .7rem; padding-top: .8rem; border-top: 1px solid #8886; }
.worked p { margin: .5rem 0; overflow-wrap: anywhere; }
.worked .matrices { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start; }
.worked .matrix, .worked .scroll { overflow-x: auto; max-width: 100%; }
.worked svg { display: block; }
.worked table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; margin: .4rem 0; }
.worked caption { text-align: left; font-weight: 600; padding: .2rem 0; }
.worked th, .worked td { padding: .2rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #8883; }
.worked th:first-child, .worked td:first-child, .worked .plain th, .worked .plain td { text-align: left; }
.worked th:first-child, .worked td:first-child { padding-left: 0; font-weight: 600; }
.worked .plain td:not(:first-child) { white-space: normal; }
.worked tr.total td { font-weight: 600; border-bottom: 0; }
.worked td.bar { width: 9rem; padding-right: 0; }
.worked td.bar span { display: block; height: .7rem; background: #2b7fc0; }
@media print { .worked svg, .worked tr { break-inside: avoid; } }
"""
EDGE = 10


def as_page(blocks: Blocks, title: str) -> str:
    """A whole page."""
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{PAGE}</style>"
    )
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{as_fragment(blocks)}\n</body>\n</html>\n'


def as_fragment(blocks: Blocks) -> str:
    """What a notebook shows."""
    parts = []
    for is_matrix, group in groupby(blocks, key=lambda block: isinstance(block, Matrix)):
        body = "\n".join(_html(block) for block in group)
        parts.append(f'<div class="matrices">{body}</div>' if is_matrix else body)
    return f'<div class="worked"><style>{STYLE}</style>\n' + "\n".join(parts) + "\n</div>"


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{escape(block.text)}</h{block.level}>"
    if isinstance(block, Words):
        return f"<p>{'<br>'.join(escape(line) for line in block.text.splitlines())}</p>"
    return f'<div class="scroll">{_table(block)}</div>' if isinstance(block, Grid) else _matrix(block)


def _matrix(matrix: Matrix) -> str:
    drawn = heat_map(matrix)
    moved = Drawn(
        f'<g transform="translate({EDGE} {EDGE})">{drawn.body}</g>', drawn.width + 2 * EDGE, drawn.height + 2 * EDGE
    )
    return f'<div class="matrix">{svg(moved, matrix.title)}</div>'


def _table(grid: Grid) -> str:
    caption = f"<caption>{escape(grid.title)}</caption>" if grid.title else ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in grid.header) + ("<th></th>" if grid.bars else "")
    bars = [f'<td class="bar"><span style="width: {share:.1%}"></span></td>' for share in grid.bars]
    rows = [_cells(row) + (bars[place] if bars else "") for place, row in enumerate(grid.rows)]
    body = "".join(f"<tr>{row}</tr>\n" for row in rows)
    total = f'<tr class="total">{_cells(grid.total)}</tr>' if grid.total else ""
    kind = ' class="plain"' if grid.plain else ""
    return f"<table{kind}>{caption}<thead><tr>{head}</tr></thead>\n<tbody>{body}{total}</tbody></table>"


def _cells(row: tuple[str, ...]) -> str:
    return "".join(f"<td>{escape(cell)}</td>" for cell in row)
