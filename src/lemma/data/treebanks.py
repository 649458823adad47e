"""Dependency treebanks: splits, trees as numbers, the parser's lexicon."""

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from lemma.data.batches import NOTHING, BucketedExamples
from lemma.data.conllu import Sentence, read_conllu
from lemma.data.corpora import TREEBANKS, corpus_files
from lemma.data.files import Progress, files_sum, text_sum, write_atomically
from lemma.data.text import exists
from lemma.errors import DataError, unknown
from lemma.spec.data import TreebankSpec

# What a parser knows of words: a number for each word and relation, and for every word the pieces of its spelling.
#
# A word is lower-cased and its digits become 0. Its pieces are its first and last letters and its shape, each hashed
# to
# one of a fixed number of rows, so that a word never seen before still has something known about it.


PADDING, UNKNOWN, TOP = 0, 1, 2
"""The first numbers of words: no word, a word not in the list, and the place above the root."""
RESERVED = 3
PREFIXES, LEXICON_SUFFIXES = (1, 2, 3), (1, 2, 3, 4)
PIECES = len(PREFIXES) + len(LEXICON_SUFFIXES) + 2
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
    suffixes = [f"{letters[-size:]}>" for size in LEXICON_SUFFIXES]
    return [*prefixes, *suffixes, f"<{letters}>", f"shape {shape_of(word)}"]


def _ranked(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


# Trees as numbers.


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


# From the name of a treebank, a CoNLL-U file or a folder of them to sentences with trees, divided for training.


SUFFIXES = {".conllu", ".conll"}
MARKS = {"train": "train", "dev": "validation", "valid": "validation", "test": "test"}
"""What a file's name says of its split."""

Sentences = tuple[Sentence, ...]


@dataclass(frozen=True)
class TreebankSource:
    """Sentences by split, the SHA-256 of their files, and what they are."""

    splits: Mapping[str, Sentences]
    hash: str
    about: str
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class TreebankData:
    """A treebank ready for training: the lexicon learned from its training part, and its splits."""

    tokenizer: Lexicon
    source: TreebankSource

    @property
    def hash(self) -> str:
        """The SHA-256 of the files."""
        return self.source.hash

    @property
    def about(self) -> str:
        """What it is, in words."""
        return self.source.about

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self.source.splits)

    def sentences(self, split: str) -> Sentences:
        """The sentences of a split."""
        if split not in self.source.splits:
            raise DataError(f"there is no split '{split}' in {self.about}. It has: {', '.join(self.splits)}.")
        return self.source.splits[split]

    def tokens(self, split: str) -> Trees:
        """The sentences of a split as numbers."""
        return encode_trees(self.sentences(split), self.tokenizer)

    def sizes(self) -> dict[str, int]:
        """What a model has to know of the treebank's size."""
        return {"vocabulary": self.tokenizer.vocabulary, "relations": len(self.tokenizer.relations)}


def prepare_treebank(
    spec: TreebankSpec,
    *,
    minimum_count: int,
    buckets: int,
    lexicon: Lexicon | None = None,
    progress: Progress | None = None,
) -> TreebankData:
    """Read a treebank for training, with a lexicon learned from its training sentences unless one is given."""
    source = training_trees(spec, progress)
    return TreebankData(lexicon or Lexicon.learn(source.splits["train"], minimum_count, buckets), source)


def training_trees(spec: TreebankSpec, progress: Progress | None = None) -> TreebankSource:
    """Read a treebank divided as it says itself, or else with evenly spaced sentences held out."""
    files = _files(spec.treebank, progress)
    if spec.dev is not None:
        files = {**files, "validation": [_conllu(Path(spec.dev))]}
    source = _read(files, spec.treebank)
    if "validation" in source.splits:
        return source
    train, held = hold_out_sentences(source.splits["train"], spec.held_out)
    return replace(source, splits={**source.splits, "train": train, "validation": held})


def read_trees(name: str, progress: Progress | None = None, split: str | None = None) -> TreebankSource:
    """Read trees to judge: of a treebank or folder its test part if it has one, of a file all; one split only."""
    files = _files(name, progress)
    chosen = split or next(part for part in ("test", "validation", "train") if part in files)
    if chosen not in files:
        raise DataError(unknown("split", chosen, files))
    several = len(files) > 1 or name in TREEBANKS
    return _read({chosen: files[chosen]}, f"{name} ({chosen})" if several else name)


def hold_out_sentences(sentences: Sentences, share: float) -> tuple[Sentences, Sentences]:
    """Divide sentences into those to learn and those held out, evenly spaced and the same every time.

    >>> train, held = hold_out_sentences(tuple("abcdefghij"), 0.2)
    >>> "".join(train), "".join(held)
    ('abcdfghi', 'ej')
    """
    if len(sentences) < 2:
        raise DataError("a treebank of one sentence leaves none to validate on. Give more, or --dev FILE.")
    share = min(max(share, 1 / len(sentences)), 1 - 1 / len(sentences))
    held = [int((place + 1) * share + 1e-9) > int(place * share + 1e-9) for place in range(len(sentences))]
    train = tuple(sentence for sentence, out in zip(sentences, held, strict=True) if not out)
    return train, tuple(sentence for sentence, out in zip(sentences, held, strict=True) if out)


def _read(files: Mapping[str, Sequence[Path]], name: str) -> TreebankSource:
    splits: dict[str, Sentences] = {}
    skipped: list[str] = []
    for split, paths in files.items():
        read = [read_conllu(path) for path in paths]
        splits[split] = tuple(sentence for treebank in read for sentence in treebank.sentences)
        skipped += [said for treebank in read for said in treebank.skipped]
    return TreebankSource(splits, files_sum(path for paths in files.values() for path in paths), name, tuple(skipped))


def _files(name: str, progress: Progress | None) -> dict[str, list[Path]]:
    """The files of a treebank by split; a folder without a file for training is all training."""
    if name in TREEBANKS:
        return _by_split(corpus_files(TREEBANKS[name], progress))
    path = Path(name)
    if exists(path) and path.is_dir():
        found = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        if not found:
            raise DataError(f"{path}: no CoNLL-U file ({', '.join(sorted(SUFFIXES))}) in this folder.")
        return _by_split(found)
    return {"train": [_conllu(path)]}


def _by_split(paths: Sequence[Path]) -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = {"train": [], "validation": [], "test": []}
    for path in paths:
        mark = next((split for mark, split in MARKS.items() if mark in path.stem.lower()), "train")
        files[mark].append(path)
    if not files["train"]:
        return {"train": list(paths)}
    return {split: found for split, found in files.items() if found}


def _conllu(path: Path) -> Path:
    if not exists(path) and path.name == str(path) and not path.suffix:
        raise DataError(unknown("treebank", str(path), TREEBANKS) + " Or give the path of a CoNLL-U file.")
    if exists(path) and path.is_dir():
        raise DataError(f"{path}: this is a folder; a CoNLL-U file is expected here.")
    return path
