"""Results of a search, as text, page, table and JSON."""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from lemma.data.images import make_thumbnail
from lemma.errors import DataError
from lemma.report.numbers import escape_invisible
from lemma.report.result import Block, Card, Cards, Heading, Image, Items, Result, Table, Text, as_csv, to_plain
from lemma.report.text import display_width, text_width

FILE_SUFFIXES = (".html", ".md", ".txt", ".json", ".csv")  # the kinds of files that a search is saved as
THUMBNAIL_SIDE = 144  # pixels on the longer side of a thumbnail
MAX_LINES = 4  # of the terminal for one hit or query; the rest is cut
MAX_LISTED = 5  # broken images that are named; --json names all


@dataclass(frozen=True)
class Hit:
    """An image or text that matches a query."""

    rank: int
    name: str  # the path of an image within its folder, or a text
    score: float  # cosine of its vector and the query's
    caption: str = ""  # of an image of a built-in set
    reranked_score: float | None = None  # score of the re-ranker
    path: Path | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary of rank, name, scores, caption and path."""
        return {name: value for name, value in to_plain(vars(self)).items() if value not in ("", None)}


@dataclass(frozen=True)
class QueryHits:
    """Hits of one query, the best first."""

    query: str
    hits: tuple[Hit, ...]
    note: str = ""  # what of the query was not read
    image: Path | None = field(default=None, repr=False)  # the query itself, if it is an image

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary of query, note and hits."""
        return to_plain({"query": self.query, **({"remark": self.note} if self.note else {}), "hits": self.hits})


@dataclass(frozen=True)
class IndexCounts:
    """Number of images or texts that were searched, and what updating the index changed before."""

    indexed: int
    new: int = 0
    removed: int = 0
    unreadable: tuple[tuple[str, str], ...] = ()  # names of images that cannot be read, each with the reason

    def __str__(self) -> str:
        changes = {"new": self.new, "removed": self.removed, "broken and left out": len(self.unreadable)}
        return ", ".join(
            [f"{self.indexed:,} indexed", *(f"{count:,} {change}" for change, count in changes.items() if count)]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary of the counts and the unreadable images."""
        unreadable = [{"name": name, "reason": reason} for name, reason in self.unreadable]
        return {"indexed": self.indexed, "new": self.new, "removed": self.removed, "broken": unreadable}


@dataclass(frozen=True)
class SearchResult(Result):
    """Hits of each query, and what was searched."""

    run: str
    kind: str  # what was searched: images or texts
    source: str  # the folder, the set or the file
    answers: tuple[QueryHits, ...]
    counts: IndexCounts
    method: str  # exact, or approximate
    index: Path | None = None
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Queries of the search, separated by commas."""
        return ", ".join(answer.query for answer in self.answers)

    def blocks(self) -> Iterator[Block]:
        """Yield the hits of each query and a summary as lines of text, for the terminal."""
        for answer in self.answers:
            lines = [answer.query, *([f"  ({answer.note})"] if answer.note else [])]
            for hit in answer.hits:
                reranked = "" if hit.reranked_score is None else f"  {hit.reranked_score:8.3f}"
                name = f"{hit.caption}  ({hit.name})" if hit.caption else hit.name
                lines.append(f"{hit.rank:>4}  {hit.score:7.4f}{reranked}  {name}")
            yield Text("\n".join(map(clip_text, lines)), blank_before=True)
        yield Text("\n".join(map(clip_text, self.summary_lines())), blank_before=True)

    def details(self) -> Iterator[Block]:
        """Yield the hits of each query as image cards or a table, for the HTML page."""
        for answer in self.answers:
            yield Heading(answer.query)
            if answer.image:
                yield _thumbnail(answer.image, answer.query)
            if answer.note:
                yield Text(answer.note, "note")
            yield self._cards(answer) if self.kind == "images" else self._table(answer)
        yield Items(self.summary_lines(), "note")

    def _cards(self, answer: QueryHits) -> Cards:
        """Return the hits of one query as image cards."""
        cards = []
        for hit in answer.hits:
            reranked = "" if hit.reranked_score is None else f", re-ranked {hit.reranked_score:.3f}"
            image = _thumbnail(hit.path, hit.caption or hit.name)
            name = f"{hit.caption} ({hit.name})" if hit.caption else hit.name
            cards.append(Card(f"{hit.rank}: {hit.score:.4f}{reranked}", (image,), name))
        return Cards(cards, small=True)

    def _table(self, answer: QueryHits) -> Table:
        """Return the hits of one query as a table of rank, score and text."""
        is_reranked = any(hit.reranked_score is not None for hit in answer.hits)
        header = ("", "cosine", *["re-ranked"] * is_reranked, "text")
        rows = []
        for hit in answer.hits:
            reranked = "" if hit.reranked_score is None else f"{hit.reranked_score:.3f}"
            rows.append((str(hit.rank), f"{hit.score:.4f}", *[reranked] * is_reranked, hit.name))
        bars = [max(0.0, min(hit.score, 1.0)) for hit in answer.hits]
        last = len(header) - 1
        return Table(header, rows, bars=bars, left=(0, last), breakable=(last,))

    def summary_lines(self) -> list[str]:
        """Return lines on what was searched, what was left out, and where the index is."""
        counts = self.counts if self.index else f"{self.counts.indexed:,} read"
        lines = [f"{self.kind}: {counts}", f"of: {self.source}", self.method]
        lines += [f"  {name}: {reason}" for name, reason in self.counts.unreadable[:MAX_LISTED]]
        unnamed = len(self.counts.unreadable) - MAX_LISTED
        lines += [f"  and {unnamed:,} more (--json names all)"] if unnamed > 0 else []
        return [*lines, *self.notes, *([f"index: {self.index}"] if self.index else [])]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary of hits, counts and search method."""
        values = {"run": self.run, "among": self.kind, "where": self.source, "answers": self.answers}
        values |= self.counts.to_dict()
        return to_plain({**values, "how": self.method, "index": self.index, "notes": self.notes})

    def records(self) -> list[dict[str, Any]]:
        """Return a row per query and hit for CSV."""
        is_reranked = any(hit.reranked_score is not None for answer in self.answers for hit in answer.hits)
        return [
            {"query": answer.query, "rank": hit.rank, "score": hit.score}
            | ({"reranked_score": hit.reranked_score} if is_reranked else {})
            | {"name": hit.name, "caption": hit.caption}
            for answer in self.answers
            for hit in answer.hits
        ]

    def writers(self) -> dict[str, Callable[[], str]]:
        """Return by file suffix the functions that render the result as a file's text."""
        writers = super().writers() | {".csv": lambda: as_csv(self.records())}
        return {suffix: writers[suffix] for suffix in FILE_SUFFIXES}


def _thumbnail(path: Path | None, text: str) -> Image:
    """Return a small image with `text` as its description, or with a note if it cannot be shown."""
    try:
        return Image(make_thumbnail(path, THUMBNAIL_SIDE), text) if path else Image(None, "the image is not here")
    except (DataError, OSError):
        return Image(None, "the image is not here")


def clip_text(text: str) -> str:
    """Return a text without control characters, cut to at most four lines of the terminal.

    >>> clip_text("a\\x1b[2Jb"), clip_text("x" * 900)[-2:]
    ('a\\\\x1b[2Jb', 'x…')
    """
    text, max_width = escape_invisible(text), MAX_LINES * text_width()
    if display_width(text) <= max_width:
        return text
    return text[: bisect_right(list(accumulate(map(display_width, text))), max_width - 1)] + "…"
