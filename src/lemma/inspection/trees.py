"""Dependency trees of a text: those of a parser, or the maximum spanning trees of a language model's attention."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64

from lemma.data.batches import TokenRows
from lemma.data.tokenizers import Tokenizer
from lemma.data.treebanks import Sentence, format_conllu, split_words
from lemma.errors import InputError, describe_unknown
from lemma.inspection.drawing import render_template
from lemma.layers.recording import AttentionRecord, record_attention
from lemma.models.base import LanguageModel, evaluating
from lemma.models.parser import ParserModel, predict_trees, relation_attention
from lemma.models.spanning_tree import best_tree
from lemma.report.result import Block, Figure, Matrix, Result, Text
from lemma.report.text import display_width, text_width
from lemma.runs.load import Run

MAX_WORDS = 400  # of a sentence: scores grow with the square
PROBE_TOKENS = 3  # tokens that tell which heads there are
TOP, NOTHING = "(top)", "(nothing)"
MAX_DRAWN_WORDS = 60  # words whose arcs are still legible in a terminal
TOO_WIDE = "(too wide to draw here: save the drawing with --out tree.svg)"
MIN_LISTED_WEIGHT = 0.05  # less attention is not listed
LETTER, SPACE, STEP, BASE = 9.0, 26.0, 30.0, 24.0  # pixels: a letter, between words, from arc to arc, above the arcs


def encode_words(words: Sequence[str], tokenizer: Tokenizer) -> TokenRows:
    """Encode words one by one as rows of tokens, each word but the first with the space before it.

    Characters without a token are left out.
    """
    ids = [tokenizer.encode_lossy(f" {word}" if number else word)[0] for number, word in enumerate(words)]
    return TokenRows(np.concatenate([np.zeros(0, dtype=np.int64), *ids]), np.cumsum([0, *map(len, ids)]))


@dataclass(frozen=True)
class WordAttention:
    """Attention of every head of a model between the words of a sentence."""

    head_indices: tuple[tuple[int, int], ...]  # layer and head of each
    weights: Float[np.ndarray, "heads words words"]

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each head: "layer 0 head 3"."""
        return tuple(f"layer {layer} head {head}" for layer, head in self.head_indices)

    def select(self, layer: int | None, head: int | None) -> Float[np.ndarray, "words words"]:
        """Return the attention of words (rows) to words (columns): one head's, or a mean over a layer or all heads."""
        return self.weights[_select_heads(self.head_indices, layer, head)].mean(axis=0)


def measure_word_attention(model: LanguageModel, tokenizer: Tokenizer, words: Sequence[str]) -> WordAttention:
    """Run a model on a sentence; return the attention of its heads between words."""
    aligned = encode_words(words, tokenizer)
    reach = model.receptive_field
    if not len(aligned) or (reach is not None and len(aligned) > reach):
        raise InputError(
            f"the sentence has {len(aligned)} tokens; the model reads 1 to {reach} at once. Give another sentence."
        )
    records = _record_self_attention(model, torch.from_numpy(aligned.tokens))
    weights = torch.cat([record.weights()[0] for record in records]).double().cpu().numpy()
    return WordAttention(_head_indices(records), merge_token_attention(weights, aligned.bounds))


def check_heads(model: LanguageModel, layer: int | None, head: int | None) -> None:
    """Raise an InputError if the model has no attention or lacks this layer or head, by running it on a few tokens."""
    size = PROBE_TOKENS if model.receptive_field is None else min(PROBE_TOKENS, model.receptive_field)
    _select_heads(_head_indices(_record_self_attention(model, torch.zeros(size, dtype=torch.long))), layer, head)


def merge_token_attention(
    weights: Float[np.ndarray, "heads tokens tokens"], bounds: Int64[np.ndarray, " words_and_one"]
) -> Float[np.ndarray, "heads words words"]:
    """Convert attention between tokens to attention between words; word i has the tokens bounds[i] to bounds[i + 1].

    Attention to a word is the sum over its tokens, attention from a word the mean over them (Clark et al. 2019). A word
    without tokens has no attention.

    >>> weights = np.array([[[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.2, 0.6]]])
    >>> merge_token_attention(weights, np.array([0, 2, 3])).tolist()
    [[[1.0, 0.0], [0.4, 0.6]]]
    """
    tokens = np.arange(weights.shape[-1])
    owners = ((tokens >= bounds[:-1, None]) & (tokens < bounds[1:, None])).astype(np.float64)
    means = owners / np.maximum(owners.sum(1, keepdims=True), 1)
    return means @ weights @ owners.T


def _record_self_attention(model: LanguageModel, ids: Int64[torch.Tensor, " tokens"]) -> list[AttentionRecord]:
    """Run a model on `ids`; return the records of the attention calls in which all tokens are queries and keys."""
    tokens, size = ids[None].to(next(model.parameters()).device), len(ids)
    with evaluating(model), torch.no_grad(), record_attention(model) as records:
        model(tokens)
    square = [r for r in records if r.queries.shape[0] == 1 and r.queries.shape[-2] == r.keys.shape[-2] == size]
    if not square:
        raise InputError(f"a model of the family {model.spec.family} has no attention between all words of a sentence.")
    return square


def _head_indices(records: Sequence[AttentionRecord]) -> tuple[tuple[int, int], ...]:
    """Return (layer, head) for every head of the recorded attention calls."""
    return tuple((layer, head) for layer, record in enumerate(records) for head in range(record.queries.shape[1]))


def _select_heads(head_indices: Sequence[tuple[int, int]], layer: int | None, head: int | None) -> list[int]:
    """Return the indices of the heads in this layer and with this number (None: any).

    Raise InputError if there are none.
    """
    selected = [i for i, pair in enumerate(head_indices) if layer in (None, pair[0]) and head in (None, pair[1])]
    if not selected:
        requested = [f"{name} {number}" for name, number in (("layer", layer), ("head", head)) if number is not None]
        layers, heads = (
            f"{count} {name}s (0 to {count - 1})" if count > 1 else f"one {name} (0)"
            for name, count in zip(("layer", "head"), np.max(head_indices, axis=0) + 1, strict=True)
        )
        raise InputError(f"there is no {', '.join(requested)}: the model has {layers} of {heads}.")
    return selected


def most_attended(weights: Float[np.ndarray, "heads words words"]) -> Int64[np.ndarray, "heads words"]:
    """Return for each head and word the other word it attends to most, counted from 1; 0 if it may see no other.

    >>> most_attended(np.array([[[1.0, 0, 0], [0.9, 0.1, 0], [0.1, 0.3, 0.6]]])).tolist()
    [[0, 1, 2]]
    """
    off_diagonal = weights.copy()
    positions = np.arange(weights.shape[-1])
    off_diagonal[:, positions, positions] = 0.0
    return np.where(off_diagonal.max(axis=-1) > 0, off_diagonal.argmax(axis=-1) + 1, 0)


def attention_tree(weights: Float[np.ndarray, "words words"]) -> tuple[int, ...]:
    """Return the head of each word (0 for the root) in the maximum spanning tree of A + Aᵀ.

    The root is the word that receives most attention on average. A causal model's words attend only to the past, so
    that a word's head may lie where it cannot attend. Both directions are therefore added, and the tree itself has no
    direction then.

    >>> attention_tree(np.array([[1.0, 0, 0], [0.9, 0.1, 0], [0.8, 0.1, 0.1]]))
    (0, 1, 1)
    """
    size = len(weights)
    off_diagonal = weights * (1 - np.eye(size))
    received = off_diagonal.sum(axis=0) / np.maximum((off_diagonal > 0).sum(axis=0), 1)
    table = np.zeros((size + 1, size + 1))
    table[1:, 1:] = off_diagonal + off_diagonal.T
    table[0, 1:] = received
    return tuple(best_tree(table).tolist())


def shuffle_attention(
    weights: Float[np.ndarray, "heads words words"], seed: int
) -> Float[np.ndarray, "heads words words"]:
    """Permute each word's attention among the other words it may see: an uninformed baseline."""
    random = np.random.default_rng(seed)
    dealt = weights.copy()
    for matrix in dealt:
        for word, row in enumerate(matrix):
            seen = np.flatnonzero((row > 0) & (np.arange(len(row)) != word))
            row[seen] = random.permutation(row[seen])
    return dealt


Arc = tuple[int, int]
"""From head to dependent."""


def tree_arcs(heads: Sequence[int]) -> list[Arc]:
    """Return the arcs (head, dependent) of a tree but the root's; `heads` and arcs count words from 1 (0: root)."""
    return [(head, dependent) for dependent, head in enumerate(heads, start=1) if head]


def arc_levels(arcs: Sequence[Arc]) -> dict[Arc, int]:
    """Return the height (1, 2, …) at which to draw each arc, above the shorter arcs that it overlaps."""
    levels: dict[Arc, int] = {}
    for arc in sorted(arcs, key=lambda arc: (abs(arc[0] - arc[1]), arc)):
        low, high = sorted(arc)
        lower = [level for other, level in levels.items() if min(other) <= high and max(other) >= low]
        levels[arc] = max(lower, default=0) + 1
    return levels


def pad_column(cells: Sequence[str]) -> list[str]:
    """Return the cells of a column with spaces at their ends, so that all are displayed equally wide."""
    widest = max(map(display_width, cells), default=0)
    return [cell + " " * (widest - display_width(cell)) for cell in cells]


def draw_arcs(words: Sequence[str], heads: Sequence[int], notes: Sequence[str]) -> str:
    """Draw a tree in box characters, one line per word, with arrows from head to dependent.

    `heads` has each word's head, counted from 1 (0: root), and `notes` the text behind each word.

    >>> print(draw_arcs(["I", "sleep"], [2, 0], ["nsubj", "root"]))
    ┌─► I      nsubj
    └── sleep  root
    """
    levels = arc_levels(tree_arcs(heads))
    outermost_first = range(max(levels.values(), default=0), 0, -1)
    per_column = [[arc for arc in levels if levels[arc] == level] for level in outermost_first]
    lines = []
    for row, (word, note) in enumerate(zip(pad_column(words), notes, strict=True), start=1):
        line, running, arrives = "", False, False
        for column in per_column:
            arc = next((arc for arc in column if min(arc) <= row <= max(arc)), None)
            if arc is None:
                line += "─" if running else " "
            elif row in arc:
                line += ("┬" if row == min(arc) else "┴") if running else ("┌" if row == min(arc) else "└")
                running, arrives = True, arrives or row == arc[1]
            else:
                line += "┼" if running else "│"
            line += "─" if running else " "
        line += ("►" if arrives else "─" if running else " ") if per_column else ""
        lines.append(f"{line} {word}  {note}".rstrip())
    return "\n".join(lines)


def draw_svg_arcs(words: Sequence[str], heads: Sequence[int], labels: Sequence[str]) -> str:
    """Draw a tree as SVG: words in a row, arcs above them with their labels, an arrow at each dependent."""
    centres, x = [], SPACE / 2
    for word, label in zip(words, labels, strict=True):
        width = LETTER * max(display_width(word), display_width(label) * 0.78, 2)
        centres.append(x + width / 2)
        x += width + SPACE
    levels = arc_levels(tree_arcs(heads))
    floor = BASE + STEP * max([*levels.values(), 1]) + 14
    paths = []
    for head, dependent in tree_arcs(heads):
        lean = 5.0 if dependent > head else -5.0  # arcs that meet at a word do not start at one point
        start, end = centres[head - 1] + lean, centres[dependent - 1] - lean / 2.5
        top = floor - STEP * levels[head, dependent]
        bend = min(14.0, abs(end - start) / 2) * (1 if end > start else -1)
        path = (
            f"M{start:.1f},{floor:.1f} V{top + abs(bend):.1f} Q{start:.1f},{top:.1f} {start + bend:.1f},{top:.1f} "
            f"H{end - bend:.1f} Q{end:.1f},{top:.1f} {end:.1f},{top + abs(bend):.1f} V{floor - 5:.1f}"
        )
        paths.append((path, end, (start + end) / 2, top - 5, labels[dependent - 1]))
    return render_template(
        "tree.svg",
        words=words,
        width=round(x),
        height=round(floor + 34),
        floor=floor,
        arcs=paths,
        roots=[(centres[root], labels[root] or "root") for root, head in enumerate(heads) if not head],
        words_at=list(zip(centres, words, strict=True)),
    )


@dataclass(frozen=True)
class RelationHead:
    """Attention weights of the parser's head for one relation: each word attends to its dependents."""

    relation: str
    words: tuple[str, ...]
    weights: Float[np.ndarray, "heads null_and_dependents"]  # row 0 is the top, column 0 the null position

    @property
    def columns(self) -> tuple[str, ...]:
        """Headers of the columns: the null position, then the words."""
        return (NOTHING, *self.words)

    @property
    def rows(self) -> Iterator[tuple[str, list[float]]]:
        """Rows (word, its attention weights by column) of the root position and of every word."""
        return zip((TOP, *self.words), self.weights.tolist(), strict=True)

    def lines(self) -> list[str]:
        """Return the attention as text, one line per word that attends to words; the other words share a line."""
        lines, idle = [f"head {self.relation}"], []
        for name, row in self.rows:
            if row[0] >= 0.5:
                idle.append(row[0])
                continue
            order = np.argsort(-np.array(row), kind="stable")
            attended = [f"{self.columns[at]} {row[at]:.2f}" for at in order if row[at] >= MIN_LISTED_WEIGHT]
            lines.append(f"  from {name}: {', '.join(attended)}")
        return [*lines, *([f"  from all others: {NOTHING} ≥ {min(idle):.2f}"] if idle else [])]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary; the first row is the root position, the first column the null position."""
        return {"relation": self.relation, "weights": [[round(w, 6) for w in row] for _, row in self.rows]}


@dataclass(frozen=True)
class ParsedSentence:
    """Dependency tree of a sentence, with arc probabilities of a parser (None without) and attention of relations."""

    sentence: Sentence
    probabilities: tuple[float, ...] | None = None
    relation_heads: tuple[RelationHead, ...] = ()

    def draw(self, max_width: int | None = None) -> str:
        """Draw the tree in box characters, or as a table if it is wider than `max_width` characters."""
        words, heads = self.sentence.words, self.sentence.heads
        relations = ["" if relation == "_" else relation for relation in self.sentence.relations]
        notes = [relation or ("" if head else "root") for relation, head in zip(relations, heads, strict=True)]
        if self.probabilities:
            notes = [f"{note:<12} {p:.2f}" for note, p in zip(notes, self.probabilities, strict=True)]
        drawing = draw_arcs(words, heads, notes)
        if max_width is not None and (
            len(words) > MAX_DRAWN_WORDS or max(map(display_width, drawing.splitlines())) > max_width
        ):
            labels = [f"{head:>4} {words[head - 1] if head else TOP}" for head in heads]
            columns = [pad_column(["word", *words]), pad_column(["head", *labels]), ["relation", *notes]]
            rows = enumerate(zip(*columns, strict=True))
            lines = [f"{number or '':>4} {'  '.join(cells)}".rstrip() for number, cells in rows]
            drawing = "\n".join([*lines, TOO_WIDE])
        return "\n".join([drawing, *("\n".join(["", *head.lines()]) for head in self.relation_heads)])

    def svg(self) -> str:
        """Draw the tree as SVG."""
        labels = ["" if relation == "_" else relation for relation in self.sentence.relations]
        return draw_svg_arcs(self.sentence.words, self.sentence.heads, labels)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary of words, arcs and attention of relations."""
        tree = self.sentence
        arcs = [
            {"governor": head, "dependent": dependent, "relation": relation, "word": tree.words[dependent - 1]}
            | ({"probability": self.probabilities[dependent - 1]} if self.probabilities else {})
            for head, dependent, relation in tree.arcs()
        ]
        fields = {"words": list(tree.words), "heads": list(tree.heads), "relations": list(tree.relations), "arcs": arcs}
        heads = [head.to_dict() for head in self.relation_heads]
        return fields | ({"pictures": heads} if heads else {})


@dataclass(frozen=True)
class ParsedText(Result):
    """Dependency trees of a text, one per line, and which model they come from."""

    json_names = ("about", "sentences")

    sentences: tuple[ParsedSentence, ...]
    about: str
    title = "Dependency trees"

    def blocks(self) -> Iterator[Block]:
        """Yield the trees in box characters."""
        yield from (Text(sentence.draw(text_width()), blank_before=True) for sentence in self.sentences)
        yield Text(self.about, blank_before=True)

    def details(self) -> Iterator[Block]:
        """Yield the trees as SVG and the attention of relations, for the HTML page."""
        for sentence in self.sentences:
            yield Figure(sentence.svg(), " ".join(sentence.sentence.words))
            for head in sentence.relation_heads:
                names = (TOP, *head.words)
                yield Matrix(f"head {head.relation}", names, head.columns, head.weights, "share", decimals=2)
        yield Text(self.about)

    def svg(self) -> str:
        """Draw the tree as SVG; raise InputError if the text has several sentences."""
        if len(self.sentences) != 1:
            raise InputError(
                f"an SVG file holds one tree, but the text has {len(self.sentences)} lines. Save it as .html instead."
            )
        return self.sentences[0].svg()

    def html(self, full_page: bool = True) -> str:
        """Render an HTML page of all trees and relations; `full_page=False` is only the trees, for a notebook."""
        return render_template(
            "trees.html", title=self.title, sentences=self.sentences, about=self.about, whole=full_page
        )

    def writers(self) -> dict[str, Callable[[], str]]:
        """Return by file suffix the functions that render the trees as a file's text; lines are not wrapped."""
        return super().writers() | {
            ".svg": self.svg,
            ".html": self.html,
            ".txt": lambda: "\n\n".join([*(sentence.draw() for sentence in self.sentences), self.about]) + "\n",
            ".conllu": lambda: format_conllu(parsed.sentence for parsed in self.sentences),
        }

    def _repr_html_(self) -> str:
        """Return the trees as HTML, for notebooks."""
        return self.html(full_page=False)


def parse_text(
    run: Run, text: str, *, layer: int | None = None, head: int | None = None, relation: str | None = None
) -> ParsedText:
    """Parse a text of one sentence per line.

    A parser predicts trees; `relation` shows the attention of that relation's head, "all" of every one in the tree. A
    language model's tree is the maximum spanning tree over the attention of a layer and head, by default their mean.
    """
    sentences = [words for line in text.splitlines() if (words := split_words(line))]
    if not sentences:
        raise InputError(
            "the text has no words, so there is no tree to draw. Give some, as in: --text 'I prefer the morning flight'"
        )
    longest = max(map(len, sentences))
    if longest > MAX_WORDS:
        raise InputError(
            f"a sentence has {longest:,} words, at most {MAX_WORDS} can be drawn. Put each sentence on its own line."
        )
    parsed: list[ParsedSentence] = []
    if isinstance(run.module, ParserModel):
        if layer is not None or head is not None:
            raise InputError(
                "a parser gives one tree per sentence; layer and head select heads of a language model. Leave them out."
            )
        lexicon = run.lexicon
        if relation not in (None, "all") and relation not in lexicon.relations:
            raise InputError(describe_unknown("relation", str(relation), ["all", *lexicon.relations]))
        parser = run.require(ParserModel, "a parser")
        for words, guess in zip(sentences, predict_trees(parser, lexicon, sentences), strict=True):
            relations = dict.fromkeys(guess.sentence.relations) if relation == "all" else [relation] if relation else []
            weights = relation_attention(parser, lexicon, words) if relations else []
            heads = tuple(RelationHead(name, tuple(words), weights[lexicon.relation_id(name)]) for name in relations)
            parsed.append(ParsedSentence(guess.sentence, guess.probabilities, heads))
        return ParsedText(tuple(parsed), f"trees of {run.path.name}, a parser: maximum spanning trees with one root")
    if relation is not None:
        raise InputError(
            "relation selects a head of a parser; the heads of a language model have no relations. "
            "Give layer and head instead."
        )
    check_heads(run.model, layer, head)
    for words in sentences:
        weights = measure_word_attention(run.model, run.tokenizer, words).select(layer, head)
        parsed.append(ParsedSentence(Sentence(tuple(words), attention_tree(weights), ("_",) * len(words))))
    if layer is None:
        which = "the mean of all heads" if head is None else f"head {head} of every layer"
    else:
        which = f"layer {layer}, " + ("the mean of its heads" if head is None else f"head {head}")
    return ParsedText(
        tuple(parsed),
        f"maximum spanning trees of A + Aᵀ, where A is the attention between words of {which} of {run.path.name}; no "
        "labels, and the root is the word attended to most on average",
    )
