"""Dependency trees of a text: by a parser, or from attention."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64

from lemma.data.conllu import Sentence, to_conllu
from lemma.data.files import write_atomically
from lemma.data.tokenizers import Tokenizer
from lemma.errors import InputError, unknown
from lemma.layers.recording import AttentionRecord, tap
from lemma.layers.spanning_tree import best_tree
from lemma.models.base import LanguageModel, evaluating
from lemma.models.parser import ParserModel, head_pictures, predict_trees
from lemma.report.text import across, columns, fit
from lemma.runs.load import Run
from lemma.tasks.parse_texts import split_sentence

# From words to the tokens of any tokenizer, and from attention between tokens to attention between words.
#
# Attention to a word is the sum over its tokens; attention from a word is the mean over its tokens (Clark et al.
# 2019).


@dataclass(frozen=True)
class Alignment:
    """The tokens of some words; word i owns the tokens from spans[i][0] up to spans[i][1]."""

    ids: Int64[np.ndarray, "tokens"]
    spans: tuple[tuple[int, int], ...]
    left_out: int = 0
    """Characters that the tokenizer could not express."""


def align(words: Sequence[str], tokenizer: Tokenizer) -> Alignment:
    """Encode words one by one, each with the space before it, which belongs to it."""
    ids: list[np.ndarray] = []
    spans: list[tuple[int, int]] = []
    place = left_out = 0
    for number, word in enumerate(words):
        own, missing = tokenizer.encode_known(f" {word}" if number else word)
        ids.append(own)
        spans.append((place, place + len(own)))
        place, left_out = place + len(own), left_out + missing
    return Alignment(np.concatenate(ids) if ids else np.zeros(0, dtype=np.int64), tuple(spans), left_out)


def between_words(
    weights: Float[np.ndarray, "heads tokens tokens"], spans: Sequence[tuple[int, int]]
) -> Float[np.ndarray, "heads words words"]:
    """Turn attention between tokens (from, to) into attention between words; a word without tokens has none.

    >>> between_words(np.array([[[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.2, 0.6]]]), [(0, 2), (2, 3)]).tolist()
    [[[1.0, 0.0], [0.4, 0.6]]]
    """
    owners = np.zeros((len(spans), weights.shape[-1]))
    for word, (start, stop) in enumerate(spans):
        owners[word, start:stop] = 1.0
    means = owners / np.maximum(owners.sum(1, keepdims=True), 1)
    return means @ weights @ owners.T


# Trees out of attention: attention between words, the word attended to most, and the maximum spanning tree.
#
# A causal model's words attend only to the past, so that a word's governor may lie where it cannot look. For a tree
# both
# directions are therefore added, A + Aᵀ: the tree itself has no direction then, and hangs from the word that the
# others
# attend to most on average.


Between = Float[np.ndarray, "words words"]
"""Attention from each word (row) to each word (column)."""
Places = tuple[tuple[int, int], ...]
"""The layer and head of each."""
PROBE = 3  # tokens that tell which heads there are


@dataclass(frozen=True)
class WordAttention:
    """What every head of a model attends to, word by word."""

    names: tuple[str, ...]
    """`layer 0 head 1`, in the order of the heads."""
    places: Places
    weights: Float[np.ndarray, "heads words words"]
    left_out: int = 0
    """Characters that the tokenizer could not express."""

    def chosen(self, layer: int | None, head: int | None) -> Between:
        """The attention of one head, or the mean of a layer's or of all heads."""
        wanted = [
            number for number, place in enumerate(self.places) if layer in (None, place[0]) and head in (None, place[1])
        ]
        if not wanted:
            raise InputError(_no_such_head(self.places, layer, head))
        return self.weights[wanted].mean(axis=0)


def word_attention(model: LanguageModel, tokenizer: Tokenizer, words: Sequence[str]) -> WordAttention:
    """Let a model read some words, and return what its heads attend to, from word to word."""
    aligned = align(words, tokenizer)
    reach = model.reach
    if not len(aligned.ids) or (reach is not None and len(aligned.ids) > reach):
        raise InputError(
            f"the sentence has {len(aligned.ids)} tokens; the model reads 1 to {reach} at once. Give a shorter one."
        )
    square = _square_attention(model, torch.from_numpy(aligned.ids))
    places = _places(square)
    weights = torch.cat([record.weights()[0] for record in square]).double().cpu().numpy()
    names = tuple(f"layer {layer} head {head}" for layer, head in places)
    return WordAttention(names, places, between_words(weights, aligned.spans), aligned.left_out)


def check_heads(model: LanguageModel, layer: int | None, head: int | None) -> None:
    """Refuse a model without attention, or a layer or head that it does not have; costs the reading of three tokens."""
    size = PROBE if model.reach is None else min(PROBE, model.reach)
    places = _places(_square_attention(model, torch.zeros(size, dtype=torch.long)))
    if not any(layer in (None, place[0]) and head in (None, place[1]) for place in places):
        raise InputError(_no_such_head(places, layer, head))


def _square_attention(model: LanguageModel, ids: Int64[torch.Tensor, "tokens"]) -> list[AttentionRecord]:
    """What was recorded of every layer whose words all attend to all (or to all before)."""
    tokens, size = ids[None].to(next(model.parameters()).device), len(ids)
    with evaluating(model), torch.no_grad(), tap(model) as records:
        model(tokens)
    square = [r for r in records if r.queries.shape[0] == 1 and r.queries.shape[-2] == r.keys.shape[-2] == size]
    if not square:
        raise InputError(f"a model of the family {model.spec.family} has no attention between all words of a sentence.")
    return square


def _places(square: Sequence[AttentionRecord]) -> Places:
    return tuple((layer, head) for layer, record in enumerate(square) for head in range(record.queries.shape[1]))


def _no_such_head(places: Places, layer: int | None, head: int | None) -> str:
    asked = [f"{name} {number}" for name, number in (("layer", layer), ("head", head)) if number is not None]
    counts = [max(place[part] for place in places) + 1 for part in (0, 1)]
    layers, heads = (
        f"{count} {name}s (0 to {count - 1})" if count > 1 else f"one {name} (0)"
        for name, count in zip(("layer", "head"), counts, strict=True)
    )
    return f"there is no {', '.join(asked)}: the model has {layers} of {heads}."


def most_attended(weights: Float[np.ndarray, "heads words words"]) -> Int64[np.ndarray, "heads words"]:
    """The other word that each head attends to most from each word, counted from 1; 0 where it may see no other.

    >>> most_attended(np.array([[[1.0, 0, 0], [0.9, 0.1, 0], [0.1, 0.3, 0.6]]])).tolist()
    [[0, 1, 2]]
    """
    others = weights.copy()
    places = np.arange(weights.shape[-1])
    others[:, places, places] = 0.0
    return np.where(others.max(axis=-1) > 0, others.argmax(axis=-1) + 1, 0)


def attention_tree(weights: Between) -> tuple[int, ...]:
    """The maximum spanning tree of A + Aᵀ, hung from the word that others attend to most on average.

    >>> attention_tree(np.array([[1.0, 0, 0], [0.9, 0.1, 0], [0.8, 0.1, 0.1]]))
    (0, 1, 1)
    """
    size = len(weights)
    others = weights * (1 - np.eye(size))
    received = others.sum(axis=0) / np.maximum((others > 0).sum(axis=0), 1)
    table = np.zeros((size + 1, size + 1))
    table[1:, 1:] = others + others.T
    table[0, 1:] = received
    return tuple(best_tree(table).tolist())


def shuffled(weights: Float[np.ndarray, "heads words words"], seed: int) -> Float[np.ndarray, "heads words words"]:
    """Deal each word's attention out anew among the other words it may see: the baseline without knowledge."""
    random = np.random.default_rng(seed)
    dealt = weights.copy()
    for matrix in dealt:
        for word, row in enumerate(matrix):
            seen = np.flatnonzero((row > 0) & (np.arange(len(row)) != word))
            row[seen] = random.permutation(row[seen])
    return dealt


# Trees drawn: in the terminal with box characters, one word a line, and as SVG with arcs above the words.


Arc = tuple[int, int]
"""From a governor to a dependent, words counted from 1."""
LETTER, GAP, STEP, BASE = (
    9.0,
    26.0,
    30.0,
    24.0,
)  # pixels: a letter, between words, between arcs' heights, below the arcs
INK, SOFT = "#0072b2", "#666"


def terminal_arcs(words: Sequence[str], heads: Sequence[int], notes: Sequence[str]) -> str:
    """Draw a tree beside its words, from governor to dependent, with a note behind each word.

    >>> print(terminal_arcs(["I", "sleep"], [2, 0], ["nsubj", "root"]))
    ┌─► I      nsubj
    └── sleep  root
    """
    arcs = [(head, place) for place, head in enumerate(heads, start=1) if head]
    columns = _columns(arcs)
    widest = max((across(word) for word in words), default=0)
    lines = []
    for row, word in enumerate(words, start=1):
        drawn = _row(row, columns)
        lines.append(f"{drawn} {word}{' ' * (widest - across(word))}  {notes[row - 1]}".rstrip())
    return "\n".join(lines)


def levels(arcs: Sequence[Arc]) -> dict[Arc, int]:
    """How high each arc must be drawn to run clear of the shorter ones that it overlaps: 1 and up."""
    found: dict[Arc, int] = {}
    for arc in sorted(arcs, key=lambda arc: (abs(arc[0] - arc[1]), arc)):
        low, high = sorted(arc)
        below = [level for other, level in found.items() if min(other) <= high and max(other) >= low]
        found[arc] = max(below, default=0) + 1
    return found


def _columns(arcs: Sequence[Arc]) -> list[list[Arc]]:
    """The arcs of each column of the drawing, the outermost first."""
    height = levels(arcs)
    return [[arc for arc in arcs if height[arc] == level] for level in range(max(height.values(), default=0), 0, -1)]


def _row(row: int, columns: Sequence[Sequence[Arc]]) -> str:
    drawn, running, arrives = "", False, False
    for column in columns:
        arc = next((arc for arc in column if min(arc) <= row <= max(arc)), None)
        if arc is None:
            drawn += "─" if running else " "
        elif row in arc:
            drawn += ("┬" if row == min(arc) else "┴") if running else ("┌" if row == min(arc) else "└")
            running, arrives = True, arrives or row == arc[1]
        else:
            drawn += "┼" if running else "│"
        drawn += "─" if running else " "
    return drawn + ("►" if arrives else "─" if running else " ") if columns else drawn


def svg_arcs(words: Sequence[str], heads: Sequence[int], labels: Sequence[str]) -> str:
    """Draw a tree as one SVG: words in a row, arcs above them with their labels, an arrow at each dependent."""
    wide = [LETTER * max(across(word), across(label) * 0.78, 2) for word, label in zip(words, labels, strict=True)]
    centres, place = [], GAP / 2
    for width in wide:
        centres.append(place + width / 2)
        place += width + GAP
    arcs = [(head, dependent) for dependent, head in enumerate(heads, start=1) if head]
    height = levels(arcs)
    floor = BASE + STEP * max([*height.values(), 1]) + 14
    body = [_arc_svg(arc, labels[arc[1] - 1], height[arc], centres, floor) for arc in arcs]
    body += [_root_svg(centres[d - 1], labels[d - 1], floor) for d, head in enumerate(heads, start=1) if not head]
    body += [_word_svg(word, centre, floor + 20) for word, centre in zip(words, centres, strict=True)]
    title = escape(" ".join(words))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {place:.0f} {floor + 34:.0f}" width="{place:.0f}" '
        f'height="{floor + 34:.0f}" role="img" aria-label="dependency tree: {title}" '
        f'font-family="system-ui, sans-serif" style="background:#fff">'
        f"<title>{title}</title>{''.join(body)}</svg>"
    )


def _arc_svg(arc: Arc, label: str, level: int, centres: Sequence[float], floor: float) -> str:
    governor, dependent = arc
    lean = 5.0 if dependent > governor else -5.0  # arcs that meet at a word do not start at one point
    start, end = centres[governor - 1] + lean, centres[dependent - 1] - lean / 2.5
    top = floor - STEP * level
    bend = min(14.0, abs(end - start) / 2)
    sign = 1 if end > start else -1
    path = (
        f"M{start:.1f},{floor:.1f} V{top + bend:.1f} Q{start:.1f},{top:.1f} {start + sign * bend:.1f},{top:.1f} "
        f"H{end - sign * bend:.1f} Q{end:.1f},{top:.1f} {end:.1f},{top + bend:.1f} V{floor - 5:.1f}"
    )
    tip = f"M{end - 4:.1f},{floor - 7:.1f} L{end:.1f},{floor:.1f} L{end + 4:.1f},{floor - 7:.1f} Z"
    said = escape(label) if label else ""
    return (
        f'<path d="{path}" fill="none" stroke="{INK}" stroke-width="1.4"/><path d="{tip}" fill="{INK}"/>'
        f'<text x="{(start + end) / 2:.1f}" y="{top - 5:.1f}" font-size="11" text-anchor="middle" '
        f'stroke="#fff" stroke-width="3" paint-order="stroke" fill="{SOFT}">{said}</text>'
    )


def _root_svg(centre: float, label: str, floor: float) -> str:
    tip = f"M{centre - 4:.1f},{floor - 7:.1f} L{centre:.1f},{floor:.1f} L{centre + 4:.1f},{floor - 7:.1f} Z"
    return (
        f'<path d="M{centre:.1f},12 V{floor - 5:.1f}" stroke="{SOFT}" stroke-dasharray="3 3"/>'
        f'<path d="{tip}" fill="{SOFT}"/><text x="{centre + 5:.1f}" y="14" font-size="11" fill="{SOFT}">'
        f"{escape(label or 'root')}</text>"
    )


def _word_svg(word: str, centre: float, height: float) -> str:
    return f'<text x="{centre:.1f}" y="{height:.1f}" font-size="15" text-anchor="middle">{escape(word)}</text>'


# The trees of a text as a result: drawn in the terminal, as SVG, as a page, as CoNLL-U or JSON.


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


# The trees of a text: those of a parser, or the spanning trees of a language model's attention.


MOST_WORDS = 400  # of a sentence: scores grow with the square


def parse_text(
    run: Run, text: str, *, layer: int | None = None, head: int | None = None, relation: str | None = None
) -> ParsedText:
    """Draw the trees of a text, one sentence a line.

    Of a parser its own, with the picture of one `relation`'s head if asked for ("all" for every relation in the tree);
    of a language model the maximum spanning tree over the attention of one head, or over the mean of all.
    """
    sentences = _sentences(text)
    if run.spec.family == "parser":
        if layer is not None or head is not None:
            raise InputError("a parser has one tree a sentence; layer and head choose among a language model's heads.")
        return _parsed(run, sentences, relation)
    if relation is not None:
        raise InputError("relation shows a parser's head; a language model's heads have no relation. Give layer, head.")
    return _attended(run, sentences, layer, head)


def _sentences(text: str) -> list[list[str]]:
    sentences = [words for line in text.splitlines() if (words := split_sentence(line))]
    if not sentences:
        raise InputError("the text has no words: there is no tree to draw. As in: --text 'I prefer the morning flight'")
    longest = max(map(len, sentences))
    if longest > MOST_WORDS:
        raise InputError(
            f"a sentence has {longest:,} words, at most {MOST_WORDS} are drawn. Put each sentence on a line of its own."
        )
    return sentences


def _parsed(run: Run, sentences: list[list[str]], relation: str | None) -> ParsedText:
    lexicon = run.lexicon
    if relation not in (None, "all") and relation not in lexicon.relations:
        raise InputError(unknown("relation", str(relation), ["all", *lexicon.relations]))
    found = []
    for words, guess in zip(
        sentences, predict_trees(run.require(ParserModel, "a parser"), lexicon, sentences), strict=True
    ):
        asked = dict.fromkeys(guess.sentence.relations) if relation == "all" else [relation] if relation else []
        pictures = _pictures(run, words, list(asked))
        found.append(ParsedSentence(guess.sentence, guess.probabilities, pictures))
    return ParsedText(tuple(found), f"trees of {run.path.name}, a parser: maximum spanning trees with one root")


def _pictures(run: Run, words: list[str], relations: list[str]) -> tuple[HeadPicture, ...]:
    if not relations:
        return ()
    weights = head_pictures(run.require(ParserModel, "a parser"), run.lexicon, words)
    return tuple(HeadPicture(name, tuple(words), weights[run.lexicon.number(name)]) for name in relations)


def _attended(run: Run, sentences: list[list[str]], layer: int | None, head: int | None) -> ParsedText:
    check_heads(run.model, layer, head)
    found = []
    for words in sentences:
        weights = word_attention(run.model, run.tokenizer, words).chosen(layer, head)
        found.append(ParsedSentence(Sentence(tuple(words), attention_tree(weights), ("_",) * len(words))))
    which = "the mean of all heads" if layer is None and head is None else _named(layer, head)
    return ParsedText(
        tuple(found),
        f"maximum spanning trees of A + Aᵀ, where A is the attention between words of {which} of {run.path.name}; no "
        "labels, and the root is the word attended to most on average",
    )


def _named(layer: int | None, head: int | None) -> str:
    if layer is None:
        return f"head {head} of every layer"
    return f"layer {layer}" + (f", head {head}" if head is not None else ", the mean of its heads")
