"""What a search found."""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from lemma.data.images import make_thumbnail
from lemma.errors import DataError
from lemma.report.numbers import escape_invisible
from lemma.report.result import Block, Card, Cards, Heading, Image, Items, Result, Table, Text, as_csv
from lemma.report.text import display_width, text_width

FILE_SUFFIXES = (".html", ".md", ".txt", ".json", ".csv")
"""The kinds of files that a search is saved as."""
THUMBNAIL_SIDE = 144  # pixels on the longer side of a thumbnail
MAX_LINES = 4  # of the terminal for one hit or query; the rest is cut
MAX_NAMED = 5  # broken images that are named; --json names all


@dataclass(frozen=True)
class Hit:
    """One image or text that was found."""

    rank: int
    name: str
    """The path of an image within its folder, or a text."""
    score: float
    """The cosine of its vector and the query's."""
    caption: str = ""
    """What its set says of an image."""
    reranked_score: float | None = None
    """The re-ranker's score, if it was ranked again."""
    path: Path | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        more = {"caption": self.caption, "reranked_score": self.reranked_score, "path": self.path and str(self.path)}
        plain = {"rank": self.rank, "name": self.name, "score": self.score}
        return plain | {name: value for name, value in more.items() if value not in ("", None)}


@dataclass(frozen=True)
class QueryHits:
    """What one query found, the best first."""

    query: str
    hits: tuple[Hit, ...]
    note: str = ""
    """What of the query was not read."""
    image: Path | None = field(default=None, repr=False)
    """The query itself, if it is an image."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        remark = {"remark": self.note} if self.note else {}
        return {"query": self.query, **remark, "hits": [hit.to_dict() for hit in self.hits]}


@dataclass(frozen=True)
class IndexCounts:
    """How many images or texts were searched, and what changed in the index before."""

    indexed: int
    new: int = 0
    removed: int = 0
    unreadable: tuple[tuple[str, str], ...] = ()
    """Names of images that cannot be read, each with the reason."""

    def __str__(self) -> str:
        changes = {"new": self.new, "removed": self.removed, "broken and left out": len(self.unreadable)}
        return ", ".join([f"{self.indexed:,} indexed", *(f"{n:,} {what}" for what, n in changes.items() if n)])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        broken = [{"name": name, "reason": reason} for name, reason in self.unreadable]
        return {"indexed": self.indexed, "new": self.new, "removed": self.removed, "broken": broken}


@dataclass(frozen=True)
class SearchResult(Result):
    """What each query found."""

    run: str
    kind: str
    """What was searched: images or texts."""
    source: str
    """The folder, the set or the file."""
    answers: tuple[QueryHits, ...]
    counts: IndexCounts
    method: str
    """How the nearest were found: exact, or not."""
    index: Path | None = None
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The queries."""
        return ", ".join(answer.query for answer in self.answers)

    def blocks(self) -> Iterator[Block]:
        """The hits of each query, and what was searched."""
        for answer in self.answers:
            lines = [answer.query, *([f"  ({answer.note})"] if answer.note else [])]
            for hit in answer.hits:
                again = "" if hit.reranked_score is None else f"  {hit.reranked_score:8.3f}"
                name = f"{hit.caption}  ({hit.name})" if hit.caption else hit.name
                lines.append(f"{hit.rank:>4}  {hit.score:7.4f}{again}  {name}")
            yield Text("\n".join(map(clip, lines)), blank_before=True)
        yield Text("\n".join(map(clip, self.summary_lines())), blank_before=True)

    def details(self) -> Iterator[Block]:
        """The same with thumbnails."""
        for answer in self.answers:
            yield Heading(answer.query)
            if answer.image:
                yield _thumbnail(answer.image, answer.query)
            if answer.note:
                yield Text(answer.note, "note")
            yield self._cards(answer) if self.kind == "images" else self._table(answer)
        yield Items(self.summary_lines(), "note")

    def _cards(self, answer: QueryHits) -> Cards:
        cards = []
        for hit in answer.hits:
            again = "" if hit.reranked_score is None else f", re-ranked {hit.reranked_score:.3f}"
            image = _thumbnail(hit.path, hit.caption or hit.name)
            name = f"{hit.caption} ({hit.name})" if hit.caption else hit.name
            cards.append(Card(f"{hit.rank}: {hit.score:.4f}{again}", (image,), name))
        return Cards(cards, small=True)

    def _table(self, answer: QueryHits) -> Table:
        again = any(hit.reranked_score is not None for hit in answer.hits)
        header = ("", "cosine", *["re-ranked"] * again, "text")
        rows = []
        for hit in answer.hits:
            reranked = "" if hit.reranked_score is None else f"{hit.reranked_score:.3f}"
            rows.append((str(hit.rank), f"{hit.score:.4f}", *[reranked] * again, hit.name))
        bars = [max(0.0, min(hit.score, 1.0)) for hit in answer.hits]
        last = len(header) - 1
        return Table(header, rows, bars=bars, left=(0, last), breakable=(last,))

    def summary_lines(self) -> list[str]:
        """What was searched, what was left out, and where the index is."""
        counts = self.counts if self.index else f"{self.counts.indexed:,} read"
        lines = [f"{self.kind}: {counts}", f"of: {self.source}", self.method]
        lines += [f"  {name}: {reason}" for name, reason in self.counts.unreadable[:MAX_NAMED]]
        rest = len(self.counts.unreadable) - MAX_NAMED
        lines += [f"  and {rest:,} more (--json names all)"] if rest > 0 else []
        return [*lines, *self.notes, *([f"index: {self.index}"] if self.index else [])]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "run": self.run,
            "among": self.kind,
            "where": self.source,
            "answers": [answer.to_dict() for answer in self.answers],
            **self.counts.to_dict(),
            "how": self.method,
            "index": self.index and str(self.index),
            "notes": list(self.notes),
        }

    def records(self) -> list[dict[str, Any]]:
        """One row per hit."""
        again = any(hit.reranked_score is not None for answer in self.answers for hit in answer.hits)
        return [
            {"query": answer.query, "rank": hit.rank, "score": hit.score}
            | ({"reranked_score": hit.reranked_score} if again else {})
            | {"name": hit.name, "caption": hit.caption}
            for answer in self.answers
            for hit in answer.hits
        ]

    def writers(self) -> dict[str, Callable[[], str]]:
        """The kinds of files that make sense for a search."""
        writers = super().writers() | {".csv": lambda: as_csv(self.records())}
        return {ending: writers[ending] for ending in FILE_SUFFIXES}


def _thumbnail(path: Path | None, text: str) -> Image:
    """A small image with its description, or a note that it cannot be shown."""
    try:
        return Image(make_thumbnail(path, THUMBNAIL_SIDE), text) if path else Image(None, "the image is not here")
    except (DataError, OSError):
        return Image(None, "the image is not here")


def clip(text: str) -> str:
    """A line that can do nothing to a terminal, and takes at most four lines of it.

    >>> clip("a\\x1b[2Jb"), clip("x" * 900)[-2:]
    ('a\\\\x1b[2Jb', 'x…')
    """
    text, room = escape_invisible(text), MAX_LINES * text_width()
    if display_width(text) <= room:
        return text
    return text[: bisect_right(list(accumulate(map(display_width, text))), room - 1)] + "…"
