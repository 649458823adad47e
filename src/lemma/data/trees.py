"""Trees as numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int64

from lemma.data.conllu import Sentence
from lemma.data.examples import NOTHING, BucketedExamples
from lemma.data.lexicon import PADDING, PIECES, TOP, Lexicon
from lemma.errors import DataError


@dataclass(frozen=True)
class Trees:
    """Sentences as numbers, one after the other: sentence i owns the rows bounds[i] to bounds[i + 1]."""

    rows: Int64[np.ndarray, "words columns"]
    targets: Int64[np.ndarray, "words two"]
    bounds: Int64[np.ndarray, "sentences_and_one"]

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def lengths(self) -> Int64[np.ndarray, "sentences"]:
        """The words of each sentence."""
        return np.diff(self.bounds)

    def batch(
        self, sentences: Sequence[int] | np.ndarray
    ) -> tuple[Int64[np.ndarray, "batch places columns"], Int64[np.ndarray, "batch words two"]]:
        """Return some sentences side by side: the top and their words, and each word's governor and relation.

        Shorter ones are filled up with no words at all, and with −1.
        """
        longest = int(self.lengths[sentences].max())
        rows = np.full((len(sentences), longest + 1, 1 + PIECES), PADDING, dtype=np.int64)
        targets = np.full((len(sentences), longest, 2), NOTHING, dtype=np.int64)
        rows[:, 0, 0] = TOP
        for place, sentence in enumerate(sentences):
            own = slice(self.bounds[sentence], self.bounds[sentence + 1])
            count = own.stop - own.start
            rows[place, 1 : count + 1] = self.rows[own]
            targets[place, :count] = self.targets[own]
        return rows, targets


def encode_trees(sentences: Sequence[Sentence], lexicon: Lexicon) -> Trees:
    """Turn sentences into numbers; a relation that the lexicon does not know has none (−1)."""
    if not sentences:
        raise DataError("no sentences to learn from or to judge. Give a treebank that holds some.")
    arcs = [
        (head, lexicon.number(relation))
        for sentence in sentences
        for head, relation in zip(sentence.heads, sentence.relations, strict=True)
    ]
    bounds = np.cumsum([0, *(len(sentence.words) for sentence in sentences)])
    rows = np.concatenate([lexicon.encode(sentence.words) for sentence in sentences])
    return Trees(rows, np.array(arcs, dtype=np.int64), bounds)


class BucketedSentences(BucketedExamples):
    """Every epoch all sentences in a new order, cut into batches of about equal length."""

    def sentences(self, step: int) -> Int64[np.ndarray, "batch"]:
        """The sentences of a step."""
        return self.examples(step)
