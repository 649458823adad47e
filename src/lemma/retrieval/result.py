"""What a search found as a page that opens offline: no script, nothing fetched, every name escaped."""

import csv
import io
import json
import unicodedata
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from lemma.data.files import write_atomically
from lemma.errors import InputError
from lemma.report.text import columns, fit
from lemma.retrieval.index import small_picture

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


# What a search found, for the terminal, the notebook, a page or a file.


MOST_LINES = 4
"""Lines that one thing found, or one query, may take; beyond them it is cut."""
NAMED = 5
"""Broken pictures that are named where there is little room."""


@dataclass(frozen=True)
class Hit:
    """One thing that was found."""

    rank: int
    name: str
    """The path of a picture within its folder, or a text."""
    score: float
    """The cosine of its vector and the query's."""
    caption: str = ""
    """What its set says of a picture."""
    again: float | None = None
    """The re-ranker's score, if it was ranked once more."""
    path: Path | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        plain = {"rank": self.rank, "name": self.name, "score": self.score}
        more = {"caption": self.caption, "reranked_score": self.again, "path": self.path and str(self.path)}
        return plain | {word: value for word, value in more.items() if value not in ("", None)}


@dataclass(frozen=True)
class Answer:
    """What one query found, the best first."""

    query: str
    hits: tuple[Hit, ...]
    remark: str = ""
    """What of the query was not read."""
    picture: Path | None = field(default=None, repr=False)
    """The query itself, where it is a picture."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        remark = {"remark": self.remark} if self.remark else {}
        return {"query": self.query, **remark, "hits": [hit.to_dict() for hit in self.hits]}


@dataclass(frozen=True)
class Counts:
    """What a search was made among."""

    indexed: int
    new: int = 0
    removed: int = 0
    broken: tuple[tuple[str, str], ...] = ()
    """Names of pictures that cannot be read, each with the reason."""

    def __str__(self) -> str:
        changes = {"new": self.new, "removed": self.removed, "broken and left out": len(self.broken)}
        told = [f"{count:,} {what}" for what, count in changes.items() if count]
        return ", ".join([f"{self.indexed:,} indexed", *told])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        broken = [{"name": name, "reason": reason} for name, reason in self.broken]
        return {"indexed": self.indexed, "new": self.new, "removed": self.removed, "broken": broken}


@dataclass(frozen=True)
class SearchResult:
    """What each query found."""

    run: str
    among: str
    """What was searched: pictures or texts."""
    where: str
    """The folder, the set or the file."""
    answers: tuple[Answer, ...]
    counts: Counts
    how: str
    """How the nearest were found: exact, or not."""
    index: Path | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(fit, self._lines()))

    def _lines(self) -> Iterator[str]:
        for answer in self.answers:
            yield clipped(answer.query)
            if answer.remark:
                yield clipped(f"  ({answer.remark})")
            yield from (_line(hit) for hit in answer.hits)
            yield ""
        yield from (clipped(line) for line in self.about())

    def about(self) -> list[str]:
        """What was searched, what was left out, and where the index is."""
        counted = self.counts if self.index else f"{self.counts.indexed:,} read"
        lines = [f"{self.among}: {counted}", f"of: {self.where}", self.how]
        lines += [f"  {name}: {reason}" for name, reason in self.counts.broken[:NAMED]]
        rest = len(self.counts.broken) - NAMED
        lines += [f"  and {rest:,} more (--json names all)"] if rest > 0 else []
        return [*lines, *self.notes, *([f"index: {self.index}"] if self.index else [])]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "run": self.run,
            "among": self.among,
            "where": self.where,
            "answers": [answer.to_dict() for answer in self.answers],
            **self.counts.to_dict(),
            "how": self.how,
            "index": self.index and str(self.index),
            "notes": list(self.notes),
        }

    def _repr_html_(self) -> str:
        return as_fragment(self)

    def save(self, path: Path | str) -> Path:
        """Write a page (.html), everything (.json) or a table (.csv)."""
        target = Path(path)
        refuse_target(target)
        write_atomically(target, WRITERS[target.suffix.lower()](self))
        return target

    def _json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    def _csv(self) -> str:
        written = io.StringIO()
        table = csv.writer(written, lineterminator="\n")
        again = any(hit.again is not None for answer in self.answers for hit in answer.hits)
        table.writerow(("query", "rank", "score", *["reranked_score"] * again, "name", "caption"))
        for answer in self.answers:
            for hit in answer.hits:
                table.writerow((answer.query, hit.rank, hit.score, *[hit.again] * again, hit.name, hit.caption))
        return written.getvalue()


WRITERS = {".html": as_page, ".json": SearchResult._json, ".csv": SearchResult._csv}
"""How each kind of file is written, by the end of its name."""


def refuse_target(target: Path) -> None:
    """Refuse a file that what was found cannot be written to."""
    if target.suffix.lower() not in WRITERS:
        raise InputError(f"{target}: a search is saved as {', '.join(WRITERS)}, not as '{target.suffix}'.")
    if not target.absolute().parent.is_dir():
        raise InputError(f"{target}: there is no folder {target.parent} to write to. Make it first.")


def _line(hit: Hit) -> str:
    again = "" if hit.again is None else f"  {hit.again:8.3f}"
    return clipped(f"{hit.rank:>4}  {hit.score:7.4f}{again}  {_named(hit)}")


def _named(hit: Hit) -> str:
    return f"{hit.caption}  ({hit.name})" if hit.caption else hit.name


def clipped(text: str, width: int | None = None) -> str:
    """A line that can do nothing to a terminal, and is not endless.

    >>> clipped("a\\x1b[2Jb"), clipped("x" * 900)[-2:]
    ('a\\\\x1b[2Jb', 'x…')
    """
    width = width or MOST_LINES * columns()
    seen = "".join(_visible(sign) for sign in text)
    sizes = [2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in seen]
    if sum(sizes) <= width:
        return seen
    kept, room = "", width - 1
    for sign, size in zip(seen, sizes, strict=True):
        room -= size
        if room < 0:
            break
        kept += sign
    return kept + "…"


def _visible(sign: str) -> str:
    return sign.encode("unicode_escape").decode() if unicodedata.category(sign) in {"Cc", "Cf", "Cs", "Zl"} else sign
