"""The page of a model's heads: one file, nothing fetched, readable without its script and on paper."""

from html import escape
from importlib.resources import files
from string import Template

from lemma.looking.head import Head, Seen
from lemma.looking.palette import COLOURS, level
from lemma.looking.patterns import ENOUGH_GAIN, MEANINGS
from lemma.looking.payload import payload
from lemma.looking.png import data_address
from lemma.looking.svg import one
from lemma.looking.words import counted

LEGEND = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0)


def page(seen: Seen) -> str:
    """The whole page."""
    packed = payload(seen)
    parts = {
        "title": escape(f"Attention of {seen.model}"),
        "facts": escape(_facts(seen)),
        "text": _text(seen),
        "notes": "".join(f'<p class="note left-out">{escape(note)}</p>' for note in packed.notes),
        "legend": _legend(),
        "grid": "".join(_layer(number, heads, packed.shown) for number, heads in seen.layers().items()),
        "first": one(seen.clearest()),
        "rows": "".join(map(_row, seen.heads)),
        "meanings": _meanings(),
        "payload": packed.json(),
        "style": _asset("look.css"),
        "script": _asset("look.js"),
    }
    return Template(_asset("look.html")).substitute(parts)


def _asset(name: str) -> str:
    return (files("lemma.looking") / "assets" / name).read_text(encoding="utf-8")


def _facts(seen: Seen) -> str:
    counts = {"layer": len(seen.layers()), "head": len(seen.heads), "token": len(seen.tokens)}
    return ", ".join(counted(count, what) for what, count in counts.items())


def _text(seen: Seen) -> str:
    """The tokens with their numbers."""
    return "".join(f"<li><i>{word.index}</i><bdi>{escape(word.shown)}</bdi></li>" for word in seen.tokens)


def _legend() -> str:
    boxes = (f'<li><b style="background:{COLOURS[level(weight)]}"></b>{weight:g}</li>' for weight in LEGEND)
    return "".join(boxes) + '<li><b class="empty"></b>masked</li>'


def _layer(number: int, heads: list[Head], shown: int) -> str:
    tiles = "".join(_tile(head, shown) for head in heads)
    name = f" <small>{escape(heads[0].name)}</small>" if heads[0].name else ""
    return f'<div class="layer"><h3>Layer {number}{name}</h3><div class="tiles">{tiles}</div></div>\n'


def _tile(head: Head, shown: int) -> str:
    """A small picture that leads to the head's row in the table, or with the script to the head itself."""
    address = data_address(head.weights[:shown, :shown], head.allowed[:shown, :shown])
    image = f'<img alt="" src="{address}">'
    words = f"<span>{head.head}<em>{escape(head.pattern) if head.pattern != 'none' else ''}</em></span>"
    label = escape(f"{head.title}: {head.pattern}")
    return f'<a class="tile" href="#row-{head.layer}-{head.head}" aria-label="{label}">{image}{words}</a>'


def _row(head: Head) -> str:
    numbers, near = head.statistics, head.nearest
    cells = [
        f"{numbers.entropy:.3f} <small>of {numbers.uniform_entropy:.3f}</small>",
        "–" if numbers.distance is None else f"{numbers.distance:.2f}",
        f"{numbers.first:.3f}",
        escape(head.pattern),
        escape(near.pattern) if near else "–",
        f"{near.score:.3f} <small>of {counted(near.rows, 'row')}</small>" if near else "–",
        f"{near.uniform:.3f}" if near else "–",
    ]
    name = f'<th scope="row"><a href="#all">{head.layer}.{head.head}</a></th>'
    body = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr id="row-{head.layer}-{head.head}">{name}{body}</tr>\n'


def _meanings() -> str:
    pairs = "".join(f"<dt>{escape(name)}</dt><dd>{escape(words)}</dd>" for name, words in MEANINGS.items())
    return (
        f"<dl>{pairs}</dl><p>A match counts from {ENOUGH_GAIN:.0%} of the way from uniform attention to all of it.</p>"
    )
