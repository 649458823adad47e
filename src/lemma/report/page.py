"""HTML pages that open offline, and the files of a result."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from lemma.data.files import write_atomically
from lemma.report.curves import NO_PLOT, Plot, can_draw

# The bones of a page that opens offline: no script, nothing fetched, every text escaped.


STYLE = """
:root { color-scheme: light dark; --paper: #fdfdfb; --ink: #1c1d21; --soft: #5d616b; --line: #dcdcd6; --card: #f4f4ef;
  --accent: #0072b2; --loop: #f5cd86; --loop-again: #fae8c8; --good: #00694d; --bad: #a63d00; }
@media (prefers-color-scheme: dark) { :root { --paper: #15171c; --ink: #e8e8e4; --soft: #a3a7b1; --line: #343842;
  --card: #1e2128; --accent: #56b4e9; --loop: #7a5a14; --loop-again: #3d311b; --good: #4cc9a0; --bad: #f0955b; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 64rem; padding: 2.5rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", sans-serif; }
h1, h2, h3 { line-height: 1.2; text-wrap: balance; }
h1 { font-size: clamp(1.8rem, 5vw, 2.5rem); letter-spacing: -0.02em; margin: 0 0 .5rem; }
h2 { font-size: 1.3rem; letter-spacing: -0.01em; margin: 3.25rem 0 .9rem; padding-top: .9rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 0 0 .4rem; }
p, ul { margin: 0 0 1rem; max-width: 44rem; }
.kicker { color: var(--soft); font-size: .8rem; letter-spacing: .08em; text-transform: uppercase; margin: 0 0 .4rem; }
.question { font-size: 1.15rem; color: var(--soft); }
.note, figcaption, footer { color: var(--soft); font-size: .875rem; }
.finding { border-left: 4px solid var(--accent); background: var(--card); padding: 1rem 1.25rem;
  border-radius: 0 .5rem .5rem 0; margin: 1.75rem 0; }
.finding p { margin: .35rem 0; max-width: none; }
.finding p:first-child { font-size: 1.1rem; font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .925rem; }
th, td { padding: .5rem .75rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); font-size: .825rem; }
th:first-child, td:first-child { text-align: left; padding-left: .5rem; }
td:first-child { font-weight: 600; }
tr.best td { background: var(--card); }
tr.best td:first-child::after { content: "best"; margin-left: .6rem; font-size: .7rem; font-weight: 600;
  letter-spacing: .04em; color: var(--paper); background: var(--accent); border-radius: 1rem; padding: .1rem .5rem; }
.wrapping th, .wrapping td { white-space: normal; padding: .5rem .4rem; }
.plain th, .plain td { text-align: left; }
.plain td + td { white-space: normal; min-width: 6rem; }
.swatch { display: inline-block; width: 1.5rem; vertical-align: middle; margin-right: .5rem; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; list-style: none; padding: 0; margin: 0 0 1rem;
  max-width: none; font-size: .9rem; }
.plots, .cards { display: grid; gap: 1.75rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
.cards { gap: 1.25rem; align-items: start; }
figure { margin: 0; min-width: 0; }
figure svg { display: block; width: 100%; height: auto; }
figure svg text { fill: var(--ink) !important; }
figure.narrow { max-width: 34rem; margin-top: 1.5rem; }
.plots + .note, .cards + .note { margin-top: 1rem; }
.scroll + .note { margin-top: .6rem; }
figure svg .role-axis-grid line { stroke: var(--line) !important; }
figure svg .role-axis-domain line, figure svg .role-axis-tick line { stroke: var(--soft) !important; }
.card { background: var(--card); border-radius: .6rem; padding: 1rem 1.1rem; min-width: 0; }
.card .note { margin: .6rem 0 0; }
pre { margin: 0; white-space: break-spaces; overflow-wrap: anywhere; font: .84rem/1.5 ui-monospace, "SF Mono", Menlo,
  Consolas, "Liberation Mono", monospace; }
pre .prompt { color: var(--soft); }
mark { background: var(--loop); color: inherit; border-radius: .2rem; box-decoration-break: clone;
  -webkit-box-decoration-break: clone; }
mark.again { background: var(--loop-again); }
dl { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: .4rem 1.25rem; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.held { color: var(--good); font-weight: 600; } .not-held { color: var(--bad); font-weight: 600; }
.verdict { font-weight: 600; }
footer { margin-top: 3.5rem; border-top: 1px solid var(--line); padding-top: 1rem; }
@media (max-width: 32rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .6rem; }
  h2 { margin-top: 2.5rem; } }
@media print { body { max-width: none; } .card, figure, tr { break-inside: avoid; } }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """Join parts into one whole HTML page that needs no other file."""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n{chr(10).join(parts)}\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """A section with its heading; empty parts are left out."""
    return f"<section>\n<h2>{escape(title)}</h2>\n{chr(10).join(part for part in parts if part)}\n</section>"


def html_paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text.

    >>> html_paragraph("a < b", "note")
    '<p class="note">a &lt; b</p>'
    """
    return f"<p{_class(kind)}>{escape(text)}</p>"


def facts(pairs: Mapping[str, str]) -> str:
    """Names with their values, as a list of definitions."""
    return (
        "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs.items()) + "</dl>"
    )


def grid(header: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], kind: str = "") -> str:
    """A table that scrolls sideways on a narrow screen; each row comes with its class and its cells, escaped here."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    body = "".join(
        f"<tr{_class(row_kind)}>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>\n"
        for row_kind, cells in rows
    )
    table = f"<table{_class(kind)}>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>"
    return f'<div class="scroll">\n{table}\n</div>'


def card(title: str, body: str, note: str = "") -> str:
    """A titled card; the body is HTML already."""
    return f'<div class="card"><h3>{escape(title)}</h3>{body}{html_paragraph(note, "note") if note else ""}</div>'


def cards(some: Iterable[str]) -> str:
    """Cards side by side, as many as the screen has room for."""
    return f'<div class="cards">{"".join(some)}</div>'


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


# Plots on a page, or the sentence that says why there are none.


def figure(plot: Plot, kind: str = "") -> str:
    """One plot with its caption."""
    opened = f'<figure class="{kind}">' if kind else "<figure>"
    return f"{opened}{plot.svg()}<figcaption>{escape(plot.whole_caption)}</figcaption></figure>"


def figures(plots: Sequence[Plot]) -> str:
    """Plots side by side, where they can be drawn."""
    if not can_draw():
        return html_paragraph(NO_PLOT)
    return f'<div class="plots">{"".join(map(figure, plots))}</div>'


def plots_section(plots: Sequence[Plot], otherwise: str = "") -> str:
    """The page's part with all plots; without any, what is said instead."""
    if plots:
        return section("Plots", figures(plots))
    return section("Plots", html_paragraph(otherwise)) if otherwise else ""


# The files of a result: written whole or not at all, and the form of tables and plain values in them.


def write_files(place: Path, files: Mapping[str, str]) -> None:
    """Write files into a folder, each in one act; the folder is made if need be."""
    place.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_atomically(place / name, content)


def json_text(plain: Mapping[str, Any]) -> str:
    """Plain values as JSON that people can read; what is no number is refused."""
    return json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same names as CSV with a header.

    >>> csv_text([{"model": "rnn", "seed": 1}])
    'model,seed\\nrnn,1\\n'
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], first: str = ":--") -> str:
    """A table in Markdown: the first column to the left, figures to the right; cells cannot break it.

    >>> print(markdown_table(["model", "loss"], [["a|b", "1.2"]]))
    | model | loss |
    | :-- | --: |
    | a\\|b | 1.2 |
    """
    lines = [header, [first, *("--:" for _ in header[1:])], *([escape_cell(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape_cell(cell: str) -> str:
    """Text as a cell, or a line, of Markdown that means itself."""
    return " ".join(cell.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;").split())
