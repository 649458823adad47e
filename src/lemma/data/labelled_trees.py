"""Texts with labels whose words are joined by trees: what a body reads that goes along arcs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from lemma.data.conllu import Sentence, numbered_sentences
from lemma.data.examples import NOTHING, Indices, Rows
from lemma.data.label_splits import Texts
from lemma.data.label_table import LabelledText
from lemma.data.labelled_rows import Labelled

Governors = Sequence[tuple[int, ...]]
"""Of each text, for each word the place of its governor."""


class DrawnText(NamedTuple):
    """The words of a text, and for each the place of its governor, counted from 0; −1 for a root."""

    words: tuple[str, ...]
    governors: tuple[int, ...]

    @property
    def text(self) -> str:
        """The words with blanks between them, so that a tokenizer of words has a token for each."""
        return " ".join(self.words)


@dataclass(frozen=True)
class Drawer:
    """What draws the trees of texts, a parser or a file that holds them, and the hash that tells it from others."""

    hash: str
    draw: Callable[[Sequence[str]], Sequence[DrawnText]]


@dataclass(frozen=True)
class LabelledTrees(Labelled):
    """Texts as tokens and arcs, each with the number of its class."""

    governors: Rows
    """For each token the place of its governor in its row, −1 for none."""

    def batch(self, indices: Indices) -> tuple[Int64[np.ndarray, "batch longest two"], Int64[np.ndarray, "batch one"]]:
        """Some texts side by side, each word a token and the place of its governor, filled up with −1."""
        tokens, classes = super().batch(indices)
        return np.stack([tokens, self.governors.beside(indices)], axis=2), classes


def drawn_text(sentences: Sequence[Sentence]) -> DrawnText:
    """The trees of a text's sentences one after the other; white space within a word is closed up.

    >>> drawn_text([Sentence(("I", "sleep"), (2, 0), ("nsubj", "root")), Sentence(("Hush",), (0,), ("root",))])
    DrawnText(words=('I', 'sleep', 'Hush'), governors=(1, -1, -1))
    """
    starts = accumulate((len(sentence.words) for sentence in sentences), initial=0)
    words = tuple(word for sentence in sentences for word in sentence.text.split(" "))
    governors = tuple(
        start + head - 1 if head else NOTHING
        for start, sentence in zip(starts, sentences, strict=False)
        for head in sentence.heads
    )
    return DrawnText(words, governors)


def trees_in(path: Path) -> Drawer:
    """The trees that a CoNLL-U file holds, by their texts; of a sentence that stands there twice the first tree."""
    trees: dict[str, DrawnText] = {}
    for _, sentence in numbered_sentences(path):
        trees.setdefault(sentence.text, drawn_text([sentence]))
    return Drawer("", lambda texts: [trees[text] for text in texts])


def draw_splits(splits: Mapping[str, Texts], drawer: Drawer) -> tuple[dict[str, Texts], dict[str, Governors]]:
    """The splits with the parser's words in the place of the texts, and the governors of these words."""
    drawn = drawer.draw([text for texts in splits.values() for text, _ in texts])
    spoken: dict[str, Texts] = {}
    governors: dict[str, Governors] = {}
    start = 0
    for split, texts in splits.items():
        own = drawn[start : start + len(texts)]
        start += len(texts)
        spoken[split] = tuple(LabelledText(one.text, label) for one, (_, label) in zip(own, texts, strict=True))
        governors[split] = [one.governors for one in own]
    return spoken, governors


def with_trees(examples: Labelled, governors: Governors) -> LabelledTrees:
    """Join tokens with their arcs; an arc to a word that was cut off is lost.

    A text without words has one token that stands for nothing, and no arc.
    """
    rows = [
        [place if place < length else NOTHING for place in own[:length]] + [NOTHING] * (length - len(own))
        for own, length in zip(governors, examples.lengths.tolist(), strict=True)
    ]
    arcs = np.array([place for row in rows for place in row], dtype=np.int32)
    return LabelledTrees(examples.rows, examples.classes, Rows(arcs, examples.rows.bounds))
