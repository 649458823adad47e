"""The trees of a text as a result: drawn in the terminal, as SVG, as a page, as CoNLL-U or JSON."""

import json
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from lemma.data import Sentence, to_conllu
from lemma.data.atomic import write_atomically
from lemma.errors import InputError, unknown
from lemma.looking.arcs import svg_arcs, terminal_arcs
from lemma.typeset import across, columns, fit

TOP, NOTHING = "(top)", "(nothing)"
MOST_DRAWN = 60  # words whose arcs are still legible in a terminal
TOO_WIDE = "(too wide to draw here: write the drawing with --out tree.svg)"
SHOWN = 0.05  # attention below this is not worth a word


@dataclass(frozen=True)
class HeadPicture:
    """Where the head of a relation attends from each governor: B1's picture."""

    relation: str
    words: tuple[str, ...]
    weights: Float[np.ndarray, "governors null_and_dependents"]
    """Row 0 is the top, column 0 the null place; words count from 1."""

    def lines(self) -> list[str]:
        """Each governor that attends to a word, and to which; the others in one line."""
        busy = [row for row in range(len(self.weights)) if self.weights[row, 0] < 0.5]
        said = [f"  from {self._governor(row)}: {self._attended(row)}" for row in busy]
        idle = [float(self.weights[row, 0]) for row in range(len(self.weights)) if row not in busy]
        rest = [f"  from all others: {NOTHING} ≥ {min(idle):.2f}"] if idle else []
        return [f"head {self.relation}", *said, *rest]

    def _governor(self, row: int) -> str:
        return self.words[row - 1] if row else TOP

    def _attended(self, row: int) -> str:
        order = np.argsort(-self.weights[row], kind="stable")
        named = [(self.words[place - 1] if place else NOTHING, float(self.weights[row, place])) for place in order]
        return ", ".join(f"{word} {weight:.2f}" for word, weight in named if weight >= SHOWN)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: rows from the top and each word, columns to nothing and each word."""
        return {"relation": self.relation, "weights": [[round(float(w), 6) for w in row] for row in self.weights]}


@dataclass(frozen=True)
class ParsedSentence:
    """One tree, how sure the parser is of each arc (None for a tree of attention), and pictures of its heads."""

    sentence: Sentence
    sure: tuple[float, ...] | None = None
    pictures: tuple[HeadPicture, ...] = ()

    def __str__(self) -> str:
        return fit(self.drawn(columns()))

    def drawn(self, room: int | None = None) -> str:
        """The tree in box characters, or as a table where those would be too wide for so many columns to be read."""
        words, heads = self.sentence.words, self.sentence.heads
        drawn = terminal_arcs(words, heads, [self._note(place) for place in range(len(words))])
        if room is not None and (len(words) > MOST_DRAWN or max(map(across, drawn.splitlines())) > room):
            drawn = f"{self._table()}\n{TOO_WIDE}"
        return "\n".join([drawn, *("\n".join(["", *picture.lines()]) for picture in self.pictures)])

    def _table(self) -> str:
        """A line a word: its number, the word, its governor's number and the governor, its note."""
        words, heads = self.sentence.words, self.sentence.heads
        governors = [f"{head:>4} {words[head - 1]}" if head else f"{0:>4} {TOP}" for head in heads]
        notes = [self._note(place) for place in range(len(words))]
        rows = [("word", "head", "relation"), *zip(words, governors, notes, strict=True)]
        widest, wider = (max(across(row[part]) for row in rows) for part in (0, 1))
        return "\n".join(
            f"{number or '':>4} {_padded(word, widest)}  {_padded(governor, wider)}  {note}".rstrip()
            for number, (word, governor, note) in enumerate(rows)
        )

    def _note(self, place: int) -> str:
        relation, head = self.sentence.relations[place], self.sentence.heads[place]
        label = "" if relation == "_" else relation
        if not head:
            label = label or "root"
        return f"{label:<12} {self.sure[place]:.2f}" if self.sure else label

    def svg(self) -> str:
        """The tree as SVG."""
        labels = ["" if relation == "_" else relation for relation in self.sentence.relations]
        return svg_arcs(self.sentence.words, self.sentence.heads, labels)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        tree = self.sentence
        arcs = [
            {"governor": head, "dependent": place, "relation": relation, "word": tree.words[place - 1]}
            | ({"probability": self.sure[place - 1]} if self.sure else {})
            for head, place, relation in tree.arcs()
        ]
        return {
            "words": list(tree.words),
            "heads": list(tree.heads),
            "relations": list(tree.relations),
            "arcs": arcs,
        } | ({"pictures": [picture.to_dict() for picture in self.pictures]} if self.pictures else {})


@dataclass(frozen=True)
class ParsedText:
    """The trees of a text, one a line, and where they come from."""

    sentences: tuple[ParsedSentence, ...]
    about: str

    def __str__(self) -> str:
        return "\n\n".join([*map(str, self.sentences), fit(self.about)])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"about": self.about, "sentences": [sentence.to_dict() for sentence in self.sentences]}

    def conllu(self) -> str:
        """The trees as CoNLL-U."""
        return to_conllu(parsed.sentence for parsed in self.sentences)

    def svg(self) -> str:
        """The tree of a text of one sentence as SVG."""
        if len(self.sentences) != 1:
            raise InputError(f"an SVG holds one tree, the text has {len(self.sentences)} lines. Write .html instead.")
        return self.sentences[0].svg()

    def html(self) -> str:
        """All trees on one page, and the pictures of heads that were asked for."""
        parts = [_scroller(parsed.svg()) + _pictures_html(parsed) for parsed in self.sentences]
        style = "body{font-family:system-ui,sans-serif;margin:1rem;background:#fff;color:#111}"
        style += "td,th{padding:.15rem .4rem;text-align:right}table{border-collapse:collapse}"
        return (
            '<!doctype html><html lang="en"><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1"><title>Dependency trees</title>'
            f"<style>{style}</style>{''.join(parts)}<p>{escape(self.about)}</p></html>\n"
        )

    def _repr_html_(self) -> str:
        return "".join(_scroller(parsed.svg()) for parsed in self.sentences) + f"<p>{escape(self.about)}</p>"

    def save(self, path: str | Path) -> Path:
        """Write the trees as .svg, .html, .conllu, .json or .txt, and return the path."""
        ways = {
            ".svg": self.svg,
            ".html": self.html,
            ".conllu": self.conllu,
            ".json": lambda: json.dumps(self.to_dict(), ensure_ascii=False, indent=1) + "\n",
            ".txt": lambda: "\n\n".join([*(parsed.drawn() for parsed in self.sentences), self.about]) + "\n",
        }
        suffix = Path(path).suffix.lower()
        if suffix not in ways:
            raise InputError(unknown("a tree's file", suffix or str(path), ways))
        write_atomically(Path(path), ways[suffix]())
        return Path(path)


def _scroller(wide: str) -> str:
    """Let what is wider than the page scroll by itself, with the keyboard too."""
    style = "margin:0 0 1rem;max-width:100%;overflow-x:auto"
    return f'<figure class="scroller" tabindex="0" style="{style}">{wide}</figure>'


def _padded(text: str, width: int) -> str:
    return text + " " * (width - across(text))


def _pictures_html(parsed: ParsedSentence) -> str:
    return "".join(_picture_html(picture) for picture in parsed.pictures)


def _picture_html(picture: HeadPicture) -> str:
    head = "".join(f"<th>{escape(word)}</th>" for word in (NOTHING, *picture.words))
    rows = "".join(
        f"<tr><th>{escape(name)}</th>{''.join(_cell(float(w)) for w in row)}</tr>"
        for name, row in zip((TOP, *picture.words), picture.weights, strict=True)
    )
    table = f"<table><tr><th>from</th>{head}</tr>{rows}</table>"
    return f"<h2>head {escape(picture.relation)}</h2>{_scroller(table)}"


def _cell(weight: float) -> str:
    colour = "#fff" if weight > 0.6 else "#111"
    return f'<td style="background:rgb(0 114 178 / {weight:.3f});color:{colour}">{weight:.2f}</td>'
