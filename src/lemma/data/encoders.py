"""The fast way from text to ids, one encoder a kind; a test holds each to the library's own ids."""

import re
import threading
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Protocol

import numpy as np
from jaxtyping import Int64
from tokenizers import Tokenizer

from lemma.data.pipelines import EOS, UNK

Ids = Int64[np.ndarray, "tokens"]


class Encoder(Protocol):
    """Turns text into ids; what has none is -1."""

    def encode(self, text: str) -> Ids:
        """Return the ids of a text."""
        ...

    def encode_all(self, texts: Sequence[str]) -> tuple[Ids, Ids]:
        """Return the ids of some texts one after the other, and where each text's begin and the last ones end."""
        ...


class CharacterEncoder:
    """Looks every code point up in one table."""

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self._table = np.full(0x110000, -1, dtype=np.int32)
        for character, number in vocabulary.items():
            self._table[ord(character)] = number

    def encode(self, text: str) -> Ids:
        """One id a character, and -1 for a character outside the alphabet."""
        points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        return self._table[points].astype(np.int64)

    def encode_all(self, texts: Sequence[str]) -> tuple[Ids, Ids]:
        """Return the ids of some texts one after the other, and where each begins."""
        return _joined([self.encode(text) for text in texts])


class WordEncoder:
    """Looks every word up in one dictionary."""

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self._numbers = _WithDefault(vocabulary)
        self._numbers.default = vocabulary[UNK]

    def encode(self, text: str) -> Ids:
        """One id a word and one a newline."""
        words = split_words(text)
        return np.fromiter(map(self._numbers.__getitem__, words), dtype=np.int64, count=len(words))

    def encode_all(self, texts: Sequence[str]) -> tuple[Ids, Ids]:
        """Return the ids of some texts one after the other, and where each begins."""
        return _joined([self.encode(text) for text in texts])


def _joined(rows: Sequence[Ids]) -> tuple[Ids, Ids]:
    return np.concatenate([np.zeros(0, dtype=np.int64), *rows]), np.cumsum([0, *map(len, rows)])


class _WithDefault(dict[str, int]):
    default: int

    def __missing__(self, word: str) -> int:
        return self.default


def split_words(text: str) -> list[str]:
    r"""The words of a text, with `<eos>` for every newline.

    >>> split_words("to be\n\nor not")
    ['to', 'be', '<eos>', '<eos>', 'or', 'not']
    """
    return text.replace("\n", f" {EOS} ").split()


class BytePairEncoder:
    """Asks the library once for every different chunk of text, and remembers its ids.

    A chunk is a run of non-spaces with the space before it, or a stretch of white space: a coarser cut than GPT-2's
    rule makes, at places where that rule always cuts. Natural text repeats its chunks, which makes this several times
    as fast as encoding it all. What is remembered is dropped when it has grown past `MEMORY` ids.
    """

    MEMORY = 1 << 20
    # \x1c to \x1f are white space to Python but not to GPT-2's rule.
    _CHUNK = re.compile(r" ?[\S\x1c-\x1f]+|[^\S\x1c-\x1f]+(?![\S\x1c-\x1f])|[^\S\x1c-\x1f]")

    def __init__(self, engine: Tokenizer) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._forget()

    def encode(self, text: str) -> Ids:
        """The ids of a text."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> tuple[Ids, Ids]:
        """Return the ids of some texts, asking the library once for what is new in all of them; where each begins."""
        found = [self._CHUNK.findall(text) for text in texts]
        firsts = np.cumsum([0, *map(len, found)])
        with self._lock:
            if len(self._ids) > self.MEMORY:
                self._forget()
            rows = np.fromiter(map(self._rows.__getitem__, chain.from_iterable(found)), np.int64, firsts[-1])
            self._learn_new_rows()
            ends = np.cumsum(np.concatenate([[0], np.diff(self._bounds)[rows]]))
            return gather(self._ids, self._bounds, rows), ends[firsts]

    def _forget(self) -> None:
        self._rows = _Numbering()
        self._ids: Ids = np.zeros(0, dtype=np.int64)
        self._bounds: Ids = np.zeros(1, dtype=np.int64)  # row r owns ids[bounds[r] : bounds[r + 1]]

    def _learn_new_rows(self) -> None:
        chunks, self._rows.new = self._rows.new, []
        if not chunks:
            return
        try:
            lists = [encoding.ids for encoding in self._engine.encode_batch_fast(chunks, add_special_tokens=False)]
        except BaseException:
            self._forget()  # rows without ids must not stay
            raise
        lengths = np.array([len(ids) for ids in lists], dtype=np.int64)
        self._ids = np.concatenate([self._ids, np.fromiter(chain.from_iterable(lists), np.int64, lengths.sum())])
        self._bounds = np.concatenate([self._bounds, self._bounds[-1] + np.cumsum(lengths)])


class _Numbering(dict[str, int]):
    """Numbers its keys in the order in which they are first asked for, and lists those asked for lately."""

    def __init__(self) -> None:
        self.new: list[str] = []

    def __missing__(self, key: str) -> int:
        number = self[key] = len(self)
        self.new.append(key)
        return number


def gather(values: Ids, bounds: Ids, rows: Ids) -> Ids:
    """Join the stretches values[bounds[row]:bounds[row + 1]] of all rows.

    >>> gather(np.array([10, 20, 21, 30]), np.array([0, 1, 3, 4]), np.array([1, 0, 1]))
    array([20, 21, 10, 20, 21])
    """
    starts = bounds[rows]
    lengths = bounds[rows + 1] - starts
    ends = np.cumsum(lengths)
    shifts = np.repeat(starts - (ends - lengths), lengths)
    return values[np.arange(len(shifts)) + shifts]
