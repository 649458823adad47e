"""What a search found as a page that opens offline: no script, nothing fetched, every name escaped."""

from base64 import b64encode
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from lemma.retrieval.pictures import small_picture

if TYPE_CHECKING:
    from lemma.retrieval.result import Answer, Hit, SearchResult

SIDE = 144
"""Pixels on the longer side of a thumbnail."""
PAGE = """
:root { color-scheme: light dark; }
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1.25rem 4rem; background: #fdfdfc; color: #1b1f24; }
@media (prefers-color-scheme: dark) { body { background: #15171c; color: #e8e8e4; } }
"""
STYLE = """
.search { font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
.search h2 { font-size: 1.4rem; line-height: 1.25; margin: 2rem 0 .8rem; overflow-wrap: anywhere; }
.search h2:first-of-type { margin-top: 0; }
.search h2 img { display: block; margin-bottom: .5rem; }
.search img { background: #fff; border-radius: .4rem; }
.search ol { list-style: none; margin: 0; padding: 0; }
.search .pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); gap: .8rem; }
.search .pictures li { border: 1px solid #8884; border-radius: .6rem; padding: .6rem; }
.search .pictures .frame { height: 9rem; display: flex; align-items: center; justify-content: center;
  background: #fff; border-radius: .4rem; color: #555; font-size: .85rem; text-align: center; }
.search .pictures img { max-width: 100%; max-height: 100%; }
.search .score { display: flex; justify-content: space-between; font-variant-numeric: tabular-nums; margin-top: .5rem; }
.search .score b { color: #8a8a86; font-weight: 400; }
.search .name { font-size: .85rem; overflow-wrap: anywhere; }
.search .name small { color: #8a8a86; display: block; }
.search .texts li { display: grid; grid-template-columns: 2rem 4.5rem 1fr; gap: .6rem; padding: .35rem 0;
  border-bottom: 1px solid #8883; font-variant-numeric: tabular-nums; }
.search .texts li span:last-child { overflow-wrap: anywhere; }
.search .texts b { color: #8a8a86; font-weight: 400; }
.search .bar { display: block; height: .25rem; background: #2b7fc0; border-radius: .2rem; margin-top: .3rem; }
.search .about { color: #77777a; font-size: .85rem; margin-top: 2rem; overflow-wrap: anywhere; }
.search .about p { margin: .2rem 0; }
@media print { .search li { break-inside: avoid; } }
"""


def as_page(found: "SearchResult") -> str:
    """A whole page."""
    title = escape(", ".join(answer.query for answer in found.answers))
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{PAGE}</style>"
    )
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{as_fragment(found)}\n</body>\n</html>\n'


def as_fragment(found: "SearchResult") -> str:
    """What a notebook shows."""
    answers = "\n".join(_answer(answer, found.among) for answer in found.answers)
    about = "".join(f"<p>{escape(line)}</p>" for line in found.about())
    return f'<div class="search"><style>{STYLE}</style>\n{answers}\n<div class="about">{about}</div></div>'


def _answer(answer: "Answer", among: str) -> str:
    picture = _image(answer.picture, answer.query) if answer.picture else ""
    remark = f'<p class="about">{escape(answer.remark)}</p>' if answer.remark else ""
    one = _picture if among == "pictures" else _text
    hits = "\n".join(one(hit) for hit in answer.hits)
    return f'<h2>{picture}{escape(answer.query)}</h2>{remark}\n<ol class="{escape(among)}">\n{hits}\n</ol>'


def _picture(hit: "Hit") -> str:
    name = f"{escape(hit.caption)}<small>{escape(hit.name)}</small>" if hit.caption else escape(hit.name)
    image = _image(hit.path, hit.caption or hit.name) if hit.path else ""
    frame = f'<div class="frame">{image or "the picture is not here"}</div>'
    return f'<li>{frame}<div class="score"><b>{hit.rank}</b>{_score(hit)}</div><div class="name">{name}</div></li>'


def _text(hit: "Hit") -> str:
    bar = f'<i class="bar" style="width: {max(0.0, min(hit.score, 1.0)):.1%}"></i>'
    return f"<li><b>{hit.rank}</b><span>{_score(hit)}{bar}</span><span>{escape(hit.name)}</span></li>"


def _score(hit: "Hit") -> str:
    again = "" if hit.again is None else f'<br><b title="by which these are ordered">again {hit.again:.3f}</b>'
    return f"<span>{hit.score:.4f}{again}</span>"


def _image(path: Path, words: str) -> str:
    content = small_picture(path, SIDE)
    if content is None:
        return ""
    return f'<img alt="{escape(words)}" src="data:image/png;base64,{b64encode(content).decode()}">'
