"""What a parser knows of words: a number for each word and relation, and for every word the pieces of its spelling.

A word is lower-cased and its digits become 0. Its pieces are its first and last letters and its shape, each hashed to
one of a fixed number of rows, so that a word never seen before still has something known about it.
"""

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from lemma.data.atomic import write_atomically
from lemma.data.conllu import Sentence
from lemma.data.hashing import text_sum
from lemma.errors import DataError

PADDING, UNKNOWN, TOP = 0, 1, 2
"""The first numbers of words: no word, a word not in the list, and the place above the root."""
RESERVED = 3
PREFIXES, SUFFIXES = (1, 2, 3), (1, 2, 3, 4)
PIECES = len(PREFIXES) + len(SUFFIXES) + 2
"""Pieces a word: prefixes, suffixes, the whole word, and its shape."""
FORMAT = 1
DIGIT = re.compile(r"\d")


class Lexicon:
    """The words and relations of a training treebank; its JSON is kept in the run folder.

    >>> lexicon = Lexicon(["the", "flight"], ["det", "root"], buckets=1000)
    >>> lexicon.encode(["The", "Flights"])[:, 0].tolist(), lexicon.number("det")
    ([3, 1], 0)
    """

    def __init__(self, words: Sequence[str], relations: Sequence[str], buckets: int) -> None:
        self.words, self.relations, self.buckets = tuple(words), tuple(relations), buckets
        self._words = {word: place + RESERVED for place, word in enumerate(words)}
        self._relations = {relation: place for place, relation in enumerate(relations)}
        self._known: dict[str, list[int]] = {}
        self.hash = text_sum(self._json())

    @classmethod
    def learn(cls, sentences: Iterable[Sentence], minimum_count: int, buckets: int) -> "Lexicon":
        """List the words seen often enough and all relations, the most frequent first."""
        words: Counter[str] = Counter()
        relations: Counter[str] = Counter()
        for sentence in sentences:
            words.update(map(plain, sentence.words))
            relations.update(sentence.relations)
        frequent = [word for word, count in _ranked(words) if count >= minimum_count]
        return cls(frequent, [relation for relation, _ in _ranked(relations)], buckets)

    @property
    def vocabulary(self) -> int:
        """The number of words, the three reserved ones included."""
        return len(self.words) + RESERVED

    @property
    def about(self) -> str:
        """What it is, in words."""
        return f"words of a treebank, V = {self.vocabulary:,}, {len(self.relations)} relations"

    def __repr__(self) -> str:
        return f"<Lexicon: {self.about}>"

    def encode(self, words: Sequence[str]) -> Int64[np.ndarray, "words columns"]:
        """Return the number of each word and, behind it, of its pieces."""
        return np.array([self._row(word) for word in words], dtype=np.int64).reshape(len(words), 1 + PIECES)

    def number(self, relation: str) -> int:
        """The number of a relation; −1 for one that was not learned."""
        return self._relations.get(relation, -1)

    def _row(self, word: str) -> list[int]:
        row = self._known.get(word)
        if row is None:
            pieces = [zlib.crc32(piece.encode("utf-8", "surrogatepass")) % self.buckets for piece in pieces_of(word)]
            row = [self._words.get(plain(word), UNKNOWN), *pieces]
            if len(self._known) < 1 << 20:
                self._known[word] = row
        return row

    def save(self, path: str | Path) -> None:
        """Write the lexicon as JSON."""
        write_atomically(Path(path), self._json())

    @classmethod
    def load(cls, path: str | Path) -> "Lexicon":
        """Read a lexicon that was saved."""
        try:
            said = json.loads(Path(path).read_text(encoding="utf-8"))
            if said["format"] != FORMAT:
                raise ValueError(f"its format is {said['format']}, not {FORMAT}")
            return cls([str(word) for word in said["words"]], [str(r) for r in said["relations"]], int(said["buckets"]))
        except FileNotFoundError:
            raise DataError(f"{path}: there is no such lexicon.") from None
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise DataError(f"{path}: not a lexicon ({error}).") from None

    def _json(self) -> str:
        said = {"format": FORMAT, "buckets": self.buckets, "relations": self.relations, "words": self.words}
        return json.dumps(said, ensure_ascii=False, indent=0) + "\n"


def plain(word: str) -> str:
    """A word in lower case with 0 for every digit.

    >>> plain("B2B")
    'b0b'
    """
    return DIGIT.sub("0", word.lower())


def shape_of(word: str) -> str:
    """What kinds of characters a word is made of, runs of one kind told once.

    >>> shape_of("Mary's"), shape_of("42nd"), shape_of("--")
    ('Xx.x', '0x', '.')
    """
    kinds = ("X" if c.isupper() else "x" if c.isalpha() else "0" if c.isdigit() else "." for c in word)
    return re.sub(r"(.)\1+", r"\1", "".join(kinds))


def pieces_of(word: str) -> list[str]:
    """The pieces of a word's spelling, each marked with what it is.

    >>> pieces_of("Walked")[:4]
    ['<w', '<wa', '<wal', 'd>']
    """
    letters = plain(word)
    prefixes = [f"<{letters[:size]}" for size in PREFIXES]
    suffixes = [f"{letters[-size:]}>" for size in SUFFIXES]
    return [*prefixes, *suffixes, f"<{letters}>", f"shape {shape_of(word)}"]


def _ranked(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
