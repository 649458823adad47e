"""What the page's script is given: scores, masks and vectors as compact numbers, within a budget.

Scores are kept in single precision for the cells that may be seen, with each row's greatest score and row sum over all
keys: from them the script works out every weight as the model does. Queries, keys and values are kept in single
precision where all of them fit, else rounded to 16 bits, layer by layer until the budget is spent.
"""

import base64
import json
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np

from lemma.inspection.draw import COLOURS, data_address, level, one
from lemma.inspection.head import ENOUGH_GAIN, MEANINGS, Head, Seen
from lemma.report.numbers import Word, counted

BUDGET = 3_000_000  # characters of numbers in a page
SCORES = BUDGET // 2  # of these for scores; the rest is for vectors
MOST_TOKENS = 80
INFLATION = 4 / 3  # of base64


@dataclass
class Store:
    """Arrays in base64, each kept once however often it comes."""

    spent: int = 0
    arrays: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def put(self, array: np.ndarray) -> int:
        """Keep an array and return its number."""
        text = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
        if text not in self.numbers:
            self.numbers[text] = len(self.arrays)
            self.arrays.append(text)
            self.spent += len(text)
        return self.numbers[text]


@dataclass(frozen=True)
class Payload:
    """The values for the script, how many tokens are shown, and what had to be left out."""

    values: dict[str, Any]
    shown: int
    notes: tuple[str, ...]

    def json(self) -> str:
        """JSON that can stand inside a page's script element: no `<`, no separators that end a line of script."""
        text = json.dumps(self.values, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def payload(seen: Seen) -> Payload:
    """Pack the heads of a text, cut to the tokens that fit."""
    shown, store = shown_tokens(seen), Store()
    texts = list(dict.fromkeys(words for head in seen.heads for words in (head.asking, head.known)))
    heads = [_head(head, texts, shown, store) for head in seen.heads]
    bare = _put_vectors(seen, heads, shown, store)
    values = {
        "colours": COLOURS,
        "first": seen.heads.index(seen.clearest()),
        "texts": [_words(words, shown) for words in texts],
        "heads": heads,
        "arrays": store.arrays,
    }
    return Payload(values, shown, tuple(_notes(seen, shown, bare)))


def shown_tokens(seen: Seen) -> int:
    """How many tokens' scores fit into their part of the budget."""
    longest = max(max(head.weights.shape) for head in seen.heads)
    for count in range(min(MOST_TOKENS, longest), 2, -1):
        if sum(_cells(head, count) for head in seen.heads) * 4 * INFLATION <= SCORES:
            return count
    return min(2, longest)


def _cells(head: Head, count: int) -> int:
    """How many numbers a head's scores take, with what is added to them and two more a row."""
    cells = int(head.allowed[:count, :count].sum())
    return cells * (1 if head.added is None else 2) + 2 * count


def _head(head: Head, texts: list[tuple[Word, ...]], shown: int, store: Store) -> dict[str, Any]:
    allowed = head.allowed[:shown, :shown]
    return {
        "layer": head.layer,
        "head": head.head,
        "about": _about(head),
        "rows": texts.index(head.asking),
        "columns": texts.index(head.known),
        "size": list(allowed.shape),
        "all": len(head.known),
        "scale": head.scale,
        "mask": store.put(np.packbits(allowed)),
        "scores": store.put(head.scores[:shown, :shown][allowed].astype("<f4")),
        "sums": store.put(_sums(head)[:shown].astype("<f4")),
        "added": None if head.added is None else store.put(head.added[:shown, :shown][allowed].astype("<f4")),
        "vectors": None,
    }


def _about(head: Head) -> str:
    """The head in a few sentences."""
    numbers, fit = head.statistics, head.nearest
    near = f" {fit.score:.3f} of its attention where uniform attention has {fit.uniform:.3f}" if fit else ""
    match = f"Best match: {head.pattern}, {MEANINGS[head.pattern]}:{near}."
    if not head.scored:
        broad = f"; it is broad, with {MEANINGS['broad']}" if head.pattern == "broad" else ""
        match = f"No pattern matches{broad}." + (f" The nearest is {fit.pattern}:{near}." if fit else "")
    distance = "" if numbers.distance is None else f" Mean distance {numbers.distance:.2f} tokens."
    entropy = f"Entropy {numbers.entropy:.3f} of at most {numbers.uniform_entropy:.3f} nats."
    return f"{match} {entropy}{distance} {numbers.first:.3f} of its attention goes to the first token."


def _words(words: tuple[Word, ...], shown: int) -> dict[str, Any]:
    return {"start": words[0].index, "words": [word.shown for word in words[:shown]]}


def _sums(head: Head) -> np.ndarray:
    """Each row's greatest score and Σ_j exp(score_j − greatest), over all keys, shown or not."""
    most = head.scores.max(1)
    most = np.where(np.isfinite(most), most, 0.0)
    return np.stack([most, np.exp(head.scores - most[:, None]).sum(1)], axis=1)


def _put_vectors(seen: Seen, heads: list[dict[str, Any]], shown: int, store: Store) -> int:
    """Keep queries, keys and values as long as there is room; return how many heads have none."""
    needed = sum(_numbers(head, shown) for head in seen.heads) * 4 * INFLATION
    whole = store.spent + needed <= BUDGET
    for number, head in enumerate(seen.heads):
        if store.spent + _numbers(head, shown) * (4 if whole else 2) * INFLATION > BUDGET:
            return len(heads) - number
        heads[number]["vectors"] = [_vectors(part, shown, whole, store) for part in _parts(head)]
    return 0


def _parts(head: Head) -> list[np.ndarray]:
    return [part for part in (head.queries, head.keys, head.values) if part is not None]


def _numbers(head: Head, shown: int) -> int:
    return sum(part[:shown].size for part in _parts(head))


def _vectors(part: np.ndarray, shown: int, whole: bool, store: Store) -> dict[str, Any]:
    part = part[:shown]
    if whole:
        return {"width": part.shape[1], "unit": 1, "bytes": 4, "array": store.put(part.astype("<f4"))}
    unit = float(np.abs(part).max(initial=0.0)) / 32767 or 1.0
    return {"width": part.shape[1], "unit": unit, "bytes": 2, "array": store.put(np.rint(part / unit).astype("<i2"))}


def _notes(seen: Seen, shown: int, bare: int) -> list[str]:
    longest = max(max(head.weights.shape) for head in seen.heads)
    notes = list(seen.notes)
    if shown < longest:
        notes.append(f"Pictures show the first {shown} of {longest} tokens; the table counts all {longest}.")
    if bare:
        notes.append(
            f"Queries, keys and values of the last {bare} of {len(seen.heads)} heads are left out to keep the page "
            "small; their arithmetic begins with the product q·k. A page of one layer (--layer) has them."
        )
    return notes


# The page of a model's heads: one file, nothing fetched, readable without its script and on paper.


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
    return (files("lemma.inspection") / "assets" / name).read_text(encoding="utf-8")


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
