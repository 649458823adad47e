"""Dependency treebanks: splits, trees as numbers, the parser's lexicon."""

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from lemma.data.batches import PAD
from lemma.data.conllu import CONLLU_SUFFIXES, Sentence, read_conllu
from lemma.data.corpora import TREEBANKS, fetch_corpus, user_path
from lemma.data.splits import Splits, count_overlaps, split_files
from lemma.errors import DataError, describe_unknown
from lemma.files import Progress, files_hash, parse_json, text_hash, write_atomically
from lemma.spec.base import exists
from lemma.spec.data import TreebankSpec

NO_WORD, UNKNOWN_WORD, ROOT = 0, 1, 2
"""The first numbers of words: no word, a word not in the list, and the place above the root."""
NUM_RESERVED = 3
PREFIX_LENGTHS, SUFFIX_LENGTHS = (1, 2, 3), (1, 2, 3, 4)
NUM_PIECES = len(PREFIX_LENGTHS) + len(SUFFIX_LENGTHS) + 2
"""Pieces per word: prefixes, suffixes, the whole word, and its shape."""
LEXICON_FORMAT = 1
DIGIT = re.compile(r"\d")


class Lexicon:
    """The words and relations of a training treebank; its JSON is kept in the run folder.

    A word is lower-cased and its digits become 0. Its pieces are its first and last letters and its shape, each hashed
    to one of a fixed number of rows, so that something is known about a word never seen before.

    >>> lexicon = Lexicon(["the", "flight"], ["det", "root"], buckets=1000)
    >>> lexicon.encode(["The", "Flights"])[:, 0].tolist(), lexicon.number("det")
    ([3, 1], 0)
    """

    def __init__(self, words: Sequence[str], relations: Sequence[str], buckets: int) -> None:
        self.words, self.relations, self.buckets = tuple(words), tuple(relations), buckets
        self._words = {word: place + NUM_RESERVED for place, word in enumerate(words)}
        self._relations = {relation: place for place, relation in enumerate(relations)}
        self._known: dict[str, list[int]] = {}
        self.hash = text_hash(self._json())

    @classmethod
    def from_sentences(cls, sentences: Iterable[Sentence], minimum_count: int, buckets: int) -> "Lexicon":
        """List the words seen often enough and all relations, the most frequent first."""
        words: Counter[str] = Counter()
        relations: Counter[str] = Counter()
        for sentence in sentences:
            words.update(map(normalise_word, sentence.words))
            relations.update(sentence.relations)
        frequent = [word for word in _ranked(words) if words[word] >= minimum_count]
        return cls(frequent, _ranked(relations), buckets)

    @property
    def vocabulary(self) -> int:
        """The number of words, the three reserved ones included."""
        return len(self.words) + NUM_RESERVED

    @property
    def description(self) -> str:
        """What it is, in words."""
        return f"words of a treebank, V = {self.vocabulary:,}, {len(self.relations)} relations"

    def __repr__(self) -> str:
        return f"<Lexicon: {self.description}>"

    def encode(self, words: Sequence[str]) -> Int64[np.ndarray, "words columns"]:
        """Return the number of each word and, behind it, of its pieces."""
        return np.array([self._row(word) for word in words], dtype=np.int64).reshape(len(words), 1 + NUM_PIECES)

    def relation_id(self, relation: str) -> int:
        """The number of a relation; −1 for one that is not known."""
        return self._relations.get(relation, -1)

    def _row(self, word: str) -> list[int]:
        row = self._known.get(word)
        if row is None:
            pieces = [zlib.crc32(piece.encode("utf-8", "surrogatepass")) % self.buckets for piece in word_pieces(word)]
            row = [self._words.get(normalise_word(word), UNKNOWN_WORD), *pieces]
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
            read = parse_json(Path(path).read_bytes())
            if read["format"] != LEXICON_FORMAT:
                raise ValueError(f"its format is {read['format']}, not {LEXICON_FORMAT}")
            return cls([str(word) for word in read["words"]], [str(r) for r in read["relations"]], int(read["buckets"]))
        except FileNotFoundError:
            raise DataError(f"{path}: there is no such lexicon.") from None
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise DataError(f"{path}: not a lexicon ({error}).") from None

    def _json(self) -> str:
        content = {"format": LEXICON_FORMAT, "buckets": self.buckets, "relations": self.relations, "words": self.words}
        return json.dumps(content, ensure_ascii=False, indent=0) + "\n"


def _ranked(counts: Counter[str]) -> list[str]:
    return sorted(counts, key=lambda word: (-counts[word], word))


def normalise_word(word: str) -> str:
    """A word in lower case with 0 for every digit.

    >>> normalise_word("B2B")
    'b0b'
    """
    return DIGIT.sub("0", word.lower())


def word_shape(word: str) -> str:
    """What kinds of characters a word is made of, with runs of one kind shortened to one.

    >>> row_statistics("Mary's"), row_statistics("42nd"), row_statistics("--")
    ('Xx.x', '0x', '.')
    """
    kinds = ("X" if c.isupper() else "x" if c.isalpha() else "0" if c.isdigit() else "." for c in word)
    return re.sub(r"(.)\1+", r"\1", "".join(kinds))


def word_pieces(word: str) -> list[str]:
    """The pieces of a word's spelling, each marked with what it is.

    >>> pieces_of("Walked")[:4]
    ['<w', '<wa', '<wal', 'd>']
    """
    letters = normalise_word(word)
    prefixes = [f"<{letters[:size]}" for size in PREFIX_LENGTHS]
    suffixes = [f"{letters[-size:]}>" for size in SUFFIX_LENGTHS]
    return [*prefixes, *suffixes, f"<{letters}>", f"shape {word_shape(word)}"]


@dataclass(frozen=True)
class Trees:
    """Sentences with trees, and the same as numbers: sentence i owns the rows bounds[i] to bounds[i + 1].

    Without a lexicon there are no numbers: such trees are only compared with.
    """

    sentences: tuple[Sentence, ...]
    lexicon: Lexicon | None = field(default=None, repr=False)

    @cached_property
    def rows(self) -> Int64[np.ndarray, "words columns"]:
        """The number of each word and of its pieces."""
        return np.concatenate([self._lexicon.encode(sentence.words) for sentence in self.sentences])

    @cached_property
    def targets(self) -> Int64[np.ndarray, "words two"]:
        """The head of each word and the number of its relation, −1 for one that the lexicon does not know."""
        arcs = [
            (head, self._lexicon.relation_id(relation))
            for sentence in self.sentences
            for head, relation in zip(sentence.heads, sentence.relations, strict=True)
        ]
        return np.array(arcs, dtype=np.int64)

    @cached_property
    def bounds(self) -> Int64[np.ndarray, " sentences_and_one"]:
        """Where the words of each sentence begin and the last ones end."""
        return np.cumsum([0, *(len(sentence.words) for sentence in self.sentences)])

    @property
    def lengths(self) -> Int64[np.ndarray, " sentences"]:
        """The words of each sentence."""
        return np.diff(self.bounds)

    @property
    def _lexicon(self) -> Lexicon:
        if not self.sentences:
            raise DataError("no sentences to train or evaluate on. Give a treebank that holds some.")
        assert self.lexicon is not None
        return self.lexicon

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def batch(
        self, sentences: Sequence[int] | np.ndarray
    ) -> tuple[Int64[np.ndarray, "batch places columns"], Int64[np.ndarray, "batch words two"]]:
        """Return some sentences as a batch: the top and their words, and each word's head and relation.

        Shorter ones are padded with no words at all, and with −1.
        """
        longest = int(self.lengths[sentences].max())
        rows = np.full((len(sentences), longest + 1, 1 + NUM_PIECES), NO_WORD, dtype=np.int64)
        targets = np.full((len(sentences), longest, 2), PAD, dtype=np.int64)
        rows[:, 0, 0] = ROOT
        for place, sentence in enumerate(sentences):
            own = slice(self.bounds[sentence], self.bounds[sentence + 1])
            count = own.stop - own.start
            rows[place, 1 : count + 1] = self.rows[own]
            targets[place, :count] = self.targets[own]
        return rows, targets


def prepare_treebank(
    spec: TreebankSpec,
    *,
    minimum_count: int,
    buckets: int,
    lexicon: Lexicon | None = None,
    progress: Progress | None = None,
) -> Splits[Trees]:
    """Read a treebank for training, with the splits given, else its own, or else evenly spaced sentences held out.

    The lexicon is learned from the training sentences unless one is given.
    """
    files = _files(spec.treebank, progress)
    given = {split: [_own_file(file)] for split, file in split_files(spec).items()}
    notes = [f"{spec.treebank}: its own {split} split, since another is given" for split in given if split in files]
    files |= given
    sentences, skipped = _read(files)
    if "validation" not in sentences:
        train, held = hold_out_sentences(sentences["train"], spec.held_out)
        sentences = {**sentences, "train": train, "validation": held}
    lexicon = lexicon or Lexicon.from_sentences(sentences["train"], minimum_count, buckets)
    sizes = {"vocabulary": lexicon.vocabulary, "relations": len(lexicon.relations)}
    items = {split: Trees(some, lexicon) for split, some in sentences.items()}
    words = {split: [sentence.words for sentence in some] for split, some in sentences.items()}
    return Splits(
        kind="treebank",
        items=items,
        tokenizer=lexicon,
        hash=_hash(files),
        description=spec.treebank,
        model_sizes=sizes,
        notes=(*skipped, *notes),
        split_hashes={split: files_hash(some) for split, some in files.items()} if given else {},
        overlaps=count_overlaps(words, "sentences") if given else (),
    )


def read_trees(name: str, progress: Progress | None = None, split: str | None = None) -> Splits[Trees]:
    """Read trees to compare with, as one split: of a treebank or folder `test` if it has one, of a file all."""
    files = _files(name, progress)
    chosen = split or next(part for part in ("test", "validation", "train") if part in files)
    if chosen not in files:
        raise DataError(describe_unknown("split", chosen, files))
    about = f"{name} ({chosen})" if len(files) > 1 or name in TREEBANKS else name
    files = {chosen: files[chosen]}
    sentences, skipped = _read(files)
    items = {split: Trees(some) for split, some in sentences.items()}
    return Splits("treebank", items, None, _hash(files), about, {}, tuple(skipped))


def hold_out_sentences(
    sentences: tuple[Sentence, ...], fraction: float
) -> tuple[tuple[Sentence, ...], tuple[Sentence, ...]]:
    """Split sentences into training and validation, which is evenly spaced and the same every time.

    >>> train, held = hold_out_sentences(tuple("abcdefghij"), 0.2)
    >>> "".join(train), "".join(held)
    ('abcdfghi', 'ej')
    """
    if len(sentences) < 2:
        raise DataError("a treebank of one sentence leaves none to validate on. Give more, or --validation FILE.")
    fraction = min(max(fraction, 1 / len(sentences)), 1 - 1 / len(sentences))
    held = [int((place + 1) * fraction + 1e-9) > int(place * fraction + 1e-9) for place in range(len(sentences))]
    train = tuple(sentence for sentence, out in zip(sentences, held, strict=True) if not out)
    return train, tuple(sentence for sentence, out in zip(sentences, held, strict=True) if out)


def _read(files: Mapping[str, Sequence[Path]]) -> tuple[dict[str, tuple[Sentence, ...]], list[str]]:
    splits: dict[str, tuple[Sentence, ...]] = {}
    skipped: list[str] = []
    for split, paths in files.items():
        read = [read_conllu(path) for path in paths]
        splits[split] = tuple(sentence for sentences, _ in read for sentence in sentences)
        skipped += [note for _, notes in read for note in notes]
    return splits, skipped


def _hash(files: Mapping[str, Sequence[Path]]) -> str:
    return files_hash(path for paths in files.values() for path in paths)


def _files(name: str, progress: Progress | None) -> dict[str, list[Path]]:
    """The files of a treebank by split, as their names say; without a file for training all are for training."""
    if name in TREEBANKS:
        paths = fetch_corpus(TREEBANKS[name], progress)
    elif exists(Path(name)) and Path(name).is_dir():
        paths = sorted(file for file in Path(name).iterdir() if file.suffix in CONLLU_SUFFIXES)
        if not paths:
            raise DataError(f"{name}: no CoNLL-U file ({', '.join(sorted(CONLLU_SUFFIXES))}) in this folder.")
    else:
        return {"train": [_own_file(name)]}
    files: dict[str, list[Path]] = {"train": [], "validation": [], "test": []}
    words = {"train": "train", "dev": "validation", "valid": "validation", "test": "test"}
    for path in paths:
        files[next((split for word, split in words.items() if word in path.stem.lower()), "train")].append(path)
    return {split: found for split, found in files.items() if found} if files["train"] else {"train": list(paths)}


def _own_file(name: str) -> Path:
    path = user_path("treebank", name, "a CoNLL-U file")
    if exists(path) and path.is_dir():
        raise DataError(f"{path}: this is a folder; a CoNLL-U file is expected here.")
    return path
