"""Marked answers as a page that opens offline, and as Markdown; whatever a person wrote is escaped."""

import re
from html import escape

from lemma.ledger.sheets.marks import Mark, Marks, number

COLOURS = {"right": "#17803d", "partly right": "#a15c00", "wrong": "#b42318", "unreadable": "#b42318"}
STYLE = """
:root { color-scheme: light dark; }
body { margin: 2.5rem auto; max-width: 48rem; padding: 0 1.25rem; font: 1rem/1.55 system-ui, sans-serif; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
"""


def page(marked: Marks) -> str:
    """A whole page: no script, nothing fetched."""
    title = escape(marked.heading)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    whole = f"<head>{head}<style>{STYLE}</style></head><body>{body(marked)}</body>"
    return f'<!doctype html>\n<html lang="en">{whole}</html>\n'


def body(marked: Marks) -> str:
    """What stands on the page."""
    strangers = "".join(f"<p>{escape(stranger)}</p>" for stranger in marked.strangers)
    answers = "".join(_section(mark) for mark in marked.marks)
    return f"<h1>{escape(marked.heading)}</h1><p><strong>{marked.summary}</strong></p>{answers}{strangers}"


def _section(mark: Mark) -> str:
    colour = COLOURS.get(mark.verdict, "#667085")
    remarks = "".join(f"{escape(remark)}\n" for remark in mark.remarks)
    parts = {
        f"<p>{escape(mark.text)}</p>": mark.text,
        f"<pre><code>{escape(mark.answer)}</code></pre>": mark.answer,
        f'<p style="color: {colour}"><strong>{mark.verdict}</strong>, {_worth(mark)}</p>': mark.verdict,
        f"<pre>{remarks}</pre>": remarks,
    }
    return f"<h2>{escape(mark.id)}</h2>" + "".join(html for html, present in parts.items() if present)


def markdown(marked: Marks) -> str:
    """The same as Markdown; answers and remarks stand in blocks, where nothing in them means anything."""
    lines = [f"# {_quoted(marked.heading)}", "", f"**{marked.summary}**"]
    for mark in marked.marks:
        lines += ["", f"## {_quoted(mark.id)}", "", f"**{mark.verdict}**, {_worth(mark)}"]
        for block in (mark.answer, "\n".join(mark.remarks)):
            lines += ["", *_fenced(block)] if block else []
    return "\n".join([*lines, *(f"\n{_quoted(stranger)}" for stranger in marked.strangers)]) + "\n"


def _worth(mark: Mark) -> str:
    return f"{number(mark.points)} of {number(mark.of)} points"


def _fenced(block: str) -> list[str]:
    """A block within a fence longer than any in it."""
    longest = max((len(run) for run in re.findall("`+", block)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence, block, fence]


def _quoted(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", " ".join(text.split()))
