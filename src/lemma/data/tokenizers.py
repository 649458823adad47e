"""Tokenizers over characters, words and byte pairs: trained, loaded, applied."""

import json
import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Engine

from lemma.data.batches import gather
from lemma.data.files import text_hash, write_atomically
from lemma.errors import DataError
from lemma.spec.data import BytePairs, Characters, Words

EOS = "<eos>"
UNK = "<unk>"
DIFFERENT_WORDS = 500_000
"""At most this many different words are counted at once; beyond that the rarest so far are dropped to bound memory."""
LONGEST_WORD = 100
"""A longer word becomes `<unk>`: a text without white space must not become its own vocabulary."""

Ids = Int64[np.ndarray, "tokens"]

# The three kinds of tokenizer as pipelines of the `tokenizers` library. Whatever loads their JSON (the library itself,
# transformers) finds the same ids, because nothing is added to the pipeline outside it. `<eos>` is a plain entry of
# the vocabulary, not an "added token" that the library would look for inside the text: text that spells "<eos>" stays
# text. (Byte-pairs cannot even merge into it, as GPT-2's rule separates letters from signs; among words, the word
# `<eos>` is the token, as in the Penn Treebank the word `<unk>` is.)

# What Python's str.split() splits at, spelled out: the regular expressions of the library know four characters fewer.
_SPACES = r"\t-\r\x1c-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
_CUT_AFTER_LONG_RUNS = re.compile(r"(?s).*?(?:\S{100}|\s{100})|.+")
_SURROGATE = re.compile("[\ud800-\udfff]")


def characters_pipeline(alphabet: Iterable[str]) -> Engine:
    """One token per character; a character outside the alphabet is an error."""
    engine = Engine(models.WordLevel({character: number for number, character in enumerate(alphabet)}))
    engine.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    engine.decoder = decoders.Fuse()
    return engine


def words_pipeline(words: Iterable[str]) -> Engine:
    """Words between white space; a newline is `<eos>`, a word that is not in the list `<unk>`."""
    numbers = {word: number for number, word in enumerate([UNK, EOS, *words])}
    engine = Engine(models.WordLevel(numbers, unk_token=UNK))
    engine.normalizer = normalizers.Replace("\n", f" {EOS} ")
    engine.pre_tokenizer = pre_tokenizers.Split(Regex(f"[{_SPACES}]+"), "removed")
    line_end = decoders.Replace(Regex(f" ?(?<![^ ]){EOS}(?![^ ]) ?"), "\n")
    # A word never holds a space, so that this decoder for word pieces takes every word for a new one.
    engine.decoder = decoders.Sequence([decoders.WordPiece(prefix=" ", cleanup=False), decoders.Fuse(), line_end])
    return engine


def byte_pairs_pipeline(vocabulary: Mapping[str, int], merges: Iterable[tuple[str, str]]) -> Engine:
    """Byte-level byte-pair encoding with GPT-2's rule for the first cut."""
    engine = Engine(models.BPE(dict(vocabulary), list(merges)))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    engine.decoder = decoders.ByteLevel()
    return engine


def _frame(engine: Engine) -> tuple[Any, ...]:
    """What decides how text is cut, in the library's own words: everything but the vocabulary."""
    plan = json.loads(engine.to_str())
    return plan["model"]["type"], plan["normalizer"], plan["pre_tokenizer"], plan["added_tokens"]


_FRAMES = {
    "characters": _frame(characters_pipeline([])),
    "words": _frame(words_pipeline([])),
    "byte-pairs": _frame(byte_pairs_pipeline({}, [])),
}


def kind_of(engine: Engine) -> str | None:
    """Which of the three kinds a pipeline is; None if it is another.

    >>> kind_of(characters_pipeline("abc")), kind_of(words_pipeline(["a"]))
    ('characters', 'words')
    """
    return next((kind for kind, frame in _FRAMES.items() if frame == _frame(engine)), None)


# The fast way from text to ids, one encoder per kind; a test compares each with the library's own ids. `encode_all`
# returns the ids of some texts one after the other, and where each text's begin and the last ones end; -1 is no id.


class CharacterEncoder:
    """Looks every code point up in one table."""

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self._table = np.full(0x110000, -1, dtype=np.int32)
        for character, number in vocabulary.items():
            self._table[ord(character)] = number

    def encode_all(self, texts: Sequence[str]) -> tuple[Ids, Ids]:
        """One id per character, -1 for a character outside the alphabet; and the bounds of each text's."""
        points = np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4")
        return self._table[points].astype(np.int64), np.cumsum([0, *map(len, texts)])


class WordEncoder:
    """Looks every word up in one dictionary."""

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self._numbers = _WithDefault(vocabulary)
        self._numbers.default = vocabulary[UNK]

    def encode_all(self, texts: Sequence[str]) -> tuple[Ids, Ids]:
        """One id per word and one per newline; and the bounds of each text's."""
        words = [split_words(text) for text in texts]
        bounds = np.cumsum([0, *map(len, words)])
        return np.fromiter(map(self._numbers.__getitem__, chain.from_iterable(words)), np.int64, bounds[-1]), bounds


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

    A chunk is a run of non-spaces with the space before it, or a run of white space: a coarser cut than GPT-2's rule
    makes, at places where that rule always cuts. Natural text repeats its chunks, which makes this several times as
    fast as encoding it all. What is remembered is dropped when it has grown past `MEMORY` ids.
    """

    MEMORY = 1 << 20
    # \x1c to \x1f are white space to Python but not to GPT-2's rule.
    _CHUNK = re.compile(r" ?[\S\x1c-\x1f]+|[^\S\x1c-\x1f]+(?![\S\x1c-\x1f])|[^\S\x1c-\x1f]")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._forget()

    def encode_all(self, texts: Sequence[str]) -> tuple[Ids, Ids]:
        """The ids of some texts, asking the library once for what is new in all of them; and the bounds of each."""
        found = [self._CHUNK.findall(text) for text in texts]
        firsts = np.cumsum([0, *map(len, found)])
        with self._lock:
            if len(self._ids) > self.MEMORY:
                self._forget()
            rows = np.fromiter(map(self._rows.__getitem__, chain.from_iterable(found)), np.int64, firsts[-1])
            self._add_new_rows()
            ends = np.cumsum(np.concatenate([[0], np.diff(self._bounds)[rows]]))
            return gather(self._ids, self._bounds, rows), ends[firsts]

    def _forget(self) -> None:
        self._rows = _Numbering()
        self._ids: Ids = np.zeros(0, dtype=np.int64)
        self._bounds: Ids = np.zeros(1, dtype=np.int64)  # row r owns ids[bounds[r] : bounds[r + 1]]

    def _add_new_rows(self) -> None:
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
    """Numbers its keys in the order in which they are first asked for, and lists the latest new ones."""

    def __init__(self) -> None:
        self.new: list[str] = []

    def __missing__(self, key: str) -> int:
        number = self[key] = len(self)
        self.new.append(key)
        return number


class Tokenizer:
    """Text to ids and back; its JSON is the library's own and gives the same ids everywhere.

    >>> from lemma.data.tokenizers import train_tokenizer
    >>> from lemma.spec.data import Characters
    >>> tokenizer = train_tokenizer(Characters(), ["abba"])
    >>> tokenizer, tokenizer.encode("baa"), tokenizer.decode([1, 0])
    (<Tokenizer: characters, V = 2>, array([1, 0, 0]), 'ba')
    """

    def __init__(self, json: str, where: str = "the tokenizer") -> None:
        try:
            self._engine = Engine.from_str(json)
        except Exception as error:  # the library raises nothing narrower
            raise DataError(f"{where}: not a tokenizer of the tokenizers library ({error}).") from None
        self._json = json
        kind, numbers = kind_of(self._engine), self._engine.get_vocab()
        if kind is None:
            raise DataError(
                f"{where}: this pipeline is not one of characters, words and byte-pairs as Lemma writes them. "
                "Let Lemma train a tokenizer on the text."
            )
        if sorted(numbers.values()) != list(range(len(numbers))) or not numbers:
            raise DataError(f"{where}: the ids are not 0 to {len(numbers) - 1}, each once.")
        if (kind == "words" and not {UNK, EOS} <= numbers.keys()) or (
            kind == "characters" and any(len(token) != 1 for token in numbers)
        ):
            raise DataError(f"{where}: the vocabulary is not one of {kind}.")
        self.kind, self.vocabulary = kind, len(numbers)
        self.eos: int | None = self._engine.token_to_id(EOS) if self.kind != "characters" else None
        self.unk: int | None = self._engine.token_to_id(UNK) if self.kind == "words" else None
        self.hash = text_hash(json)
        if self.kind == "byte-pairs":
            self._encoder = BytePairEncoder(self._engine)
        else:
            self._encoder = CharacterEncoder(numbers) if self.kind == "characters" else WordEncoder(numbers)

    @property
    def about(self) -> str:
        """What it is, in words."""
        return f"{self.kind}, V = {self.vocabulary:,}"

    def __repr__(self) -> str:
        return f"<Tokenizer: {self.about}>"

    def encode(self, text: str) -> Ids:
        """Return the ids of a text; a character that has none is an error."""
        ids, _ = self.encode_all([text])
        if (missing := np.flatnonzero(ids < 0)).size:
            offset = int(missing[0])
            raise DataError(
                f"the character {text[offset]!r} (U+{ord(text[offset]):04X}) at offset {offset} is not among the "
                f"{self.vocabulary} characters that the tokenizer knows. Leave it out, or train on text that has it."
            )
        return ids

    def encode_known(self, text: str) -> tuple[Ids, int]:
        """Return the ids of what the tokenizer can express, and how many characters had to be left out."""
        ids, _ = self.encode_all([text])
        known = ids[ids >= 0]
        return known, len(ids) - len(known)

    def encode_all(self, texts: Sequence[str]) -> tuple[Ids, Ids]:
        """Return the ids of some texts one after the other, −1 for what has none, and the bounds of each text's."""
        for text in texts:
            if not text.isascii() and (half := _SURROGATE.search(text)):
                raise DataError(
                    f"offset {half.start()}: half a surrogate pair (U+{ord(half[0]):04X}) is not a character. "
                    "Decode the text as UTF-8 before giving it."
                )
        return self._encoder.encode_all(texts)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the text of some ids."""
        numbers = np.asarray(ids, dtype=np.int64)
        wrong = numbers[(numbers < 0) | (numbers >= self.vocabulary)]
        if wrong.size:
            raise DataError(
                f"the token {wrong[0]} is not one of 0 to {self.vocabulary - 1}. "
                "Decode with the tokenizer that made the ids."
            )
        return self._engine.decode(numbers.tolist(), skip_special_tokens=False)

    def save(self, path: str | Path) -> None:
        """Write the tokenizer as a JSON file that the library and transformers load as well."""
        write_atomically(Path(path), self._json.encode())

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a tokenizer that was saved; the file itself says of which kind it is."""
        try:
            return cls(Path(path).read_bytes().decode(), where=str(path))
        except FileNotFoundError:
            raise DataError(f"{path}: there is no such tokenizer file.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot be read as a tokenizer file ({error}).") from None


def train_tokenizer(spec: Characters | Words | BytePairs, pieces: Iterable[str]) -> Tokenizer:
    """Train the tokenizer that `spec` describes on pieces of training text; the same text always gives the same one.

    Characters are numbered in the order of their code points; words by how often they were seen, and equally frequent
    ones in the order of their code points. Byte pairs are merged until the vocabulary, with all 256 bytes and `<eos>`,
    has its size. A pair seen only once is not merged, so a short text yields a smaller vocabulary; of equally frequent
    pairs the library merges the one whose parts were learned first. Runs longer than 100 characters are cut.

    >>> train_tokenizer(Words(minimum_count=2), ["b a b c", " a c a"]).decode([2, 3, 4])
    'a b c'
    """
    if isinstance(spec, Characters):
        alphabet: set[str] = set()
        for piece in pieces:
            alphabet.update(set(piece))
        engine = characters_pipeline(sorted(alphabet))
    elif isinstance(spec, Words):
        counts: Counter[str] = Counter()
        for piece in pieces:
            words = split_words(piece)
            if max(map(len, words), default=0) > LONGEST_WORD:
                words = [word for word in words if len(word) <= LONGEST_WORD]
            counts.update(words)
            floor = 1
            while len(counts) > DIFFERENT_WORDS:
                for word in [word for word, count in counts.items() if count <= floor]:
                    del counts[word]
                floor += 1
        least = spec.minimum_count
        seen = sorted((-count, word) for word, count in counts.items() if count >= least and word not in (UNK, EOS))
        if not seen and least == 1:
            raise DataError(
                f"the training text has no words: nothing of at most {LONGEST_WORD} characters between white space. "
                "Take characters or byte-pairs for it."
            )
        if not seen:
            raise DataError(
                f"no word is seen {least} times in the training text. Set a lower minimum_count or give more text."
            )
        limit = None if spec.vocabulary is None else spec.vocabulary - 2
        engine = words_pipeline(word for _, word in seen[:limit])
    else:
        trainer: Any = trainers.BpeTrainer(
            vocab_size=spec.vocabulary - 1,
            min_frequency=2,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        learning = byte_pairs_pipeline({}, [])
        # Training takes time in the square of the longest word: text without spaces would take hours.
        parts = chain.from_iterable(map(_CUT_AFTER_LONG_RUNS.findall, pieces))
        learning.train_from_iterator(parts, trainer)
        model = json.loads(learning.to_str())["model"]
        numbers = {**model["vocab"], EOS: len(model["vocab"])}
        engine = byte_pairs_pipeline(numbers, [tuple(pair) for pair in model["merges"]])
    return Tokenizer(engine.to_str(pretty=True))
