"""The tokenizer: one class over the `tokenizers` library for characters, words and byte-pairs."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer as Engine

from lemma.data.atomic import write_atomically
from lemma.data.encoders import BytePairEncoder, CharacterEncoder, Encoder, Ids, WordEncoder
from lemma.data.hashing import text_sum
from lemma.data.pipelines import EOS, UNK, kind_of
from lemma.errors import DataError

_HALF_A_PAIR = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """Text to ids and back; its JSON is the library's own and gives the same ids everywhere.

    >>> from lemma.data import learn_tokenizer
    >>> from lemma.spec import Characters
    >>> tokenizer = learn_tokenizer(Characters(), ["abba"])
    >>> tokenizer, tokenizer.encode("baa"), tokenizer.decode([1, 0])
    (<Tokenizer: characters, V = 2>, array([1, 0, 0]), 'ba')
    """

    def __init__(self, json: str, where: str = "the tokenizer") -> None:
        try:
            self._engine = Engine.from_str(json)
        except Exception as error:  # the library raises nothing narrower
            raise DataError(f"{where}: not a tokenizer of the tokenizers library ({error}).") from None
        self._json = json
        self.kind = _known_kind(self._engine, where)
        self.vocabulary: int = self._engine.get_vocab_size()
        self.eos: int | None = self._engine.token_to_id(EOS) if self.kind != "characters" else None
        self.unk: int | None = self._engine.token_to_id(UNK) if self.kind == "words" else None
        self.hash = text_sum(json)
        self._encoder = _encoder(self.kind, self._engine)

    @property
    def about(self) -> str:
        """What it is, in words."""
        return f"{self.kind}, V = {self.vocabulary:,}"

    def __repr__(self) -> str:
        return f"<Tokenizer: {self.about}>"

    def encode(self, text: str) -> Ids:
        """Return the ids of a text; a character that has none is an error."""
        ids = self._ids(text)
        if (missing := np.flatnonzero(ids < 0)).size:
            offset = int(missing[0])
            raise DataError(
                f"the character {text[offset]!r} (U+{ord(text[offset]):04X}) at offset {offset} is not among the "
                f"{self.vocabulary} characters that the tokenizer knows. Leave it out, or train on text that has it."
            )
        return ids

    def encode_known(self, text: str) -> tuple[Ids, int]:
        """Return the ids of what the tokenizer can express, and how many characters had to be left out."""
        ids = self._ids(text)
        known = ids[ids >= 0]
        return known, len(ids) - len(known)

    def encode_all(self, texts: Sequence[str]) -> tuple[Ids, Ids]:
        """Return the ids of some texts one after the other, −1 for what has none, and the bounds of each text's."""
        for text in texts:
            _refuse_halves(text)
        return self._encoder.encode_all(texts)

    def _ids(self, text: str) -> Ids:
        _refuse_halves(text)
        return self._encoder.encode(text)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the text of some ids."""
        numbers = np.asarray(ids, dtype=np.int64)
        strange = numbers[(numbers < 0) | (numbers >= self.vocabulary)]
        if strange.size:
            raise DataError(
                f"the token {strange[0]} is not one of 0 to {self.vocabulary - 1}. "
                "Decode with the tokenizer that made the ids."
            )
        return self._engine.decode(numbers.tolist(), skip_special_tokens=False)

    def save(self, path: str | Path) -> None:
        """Write the tokenizer as a JSON file that the library and transformers load as well."""
        write_atomically(Path(path), self._json.encode())

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a tokenizer that was saved; its kind stands in the file itself."""
        try:
            return cls(Path(path).read_bytes().decode(), where=str(path))
        except FileNotFoundError:
            raise DataError(f"{path}: there is no such tokenizer file.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot be read as a tokenizer file ({error}).") from None


def _refuse_halves(text: str) -> None:
    if not text.isascii() and (half := _HALF_A_PAIR.search(text)):
        raise DataError(
            f"offset {half.start()}: half a surrogate pair (U+{ord(half[0]):04X}) is no character. "
            "Decode the text as UTF-8 before giving it."
        )


def _known_kind(engine: Engine, where: str) -> str:
    kind, numbers = kind_of(engine), engine.get_vocab()
    if kind is None:
        raise DataError(
            f"{where}: a pipeline that is none of characters, words and byte-pairs as Lemma writes them. "
            "Let Lemma learn a tokenizer from the text."
        )
    if sorted(numbers.values()) != list(range(len(numbers))) or not numbers:
        raise DataError(f"{where}: the ids are not 0 to {len(numbers) - 1}, each once.")
    if (kind == "words" and not {UNK, EOS} <= numbers.keys()) or (
        kind == "characters" and any(len(token) != 1 for token in numbers)
    ):
        raise DataError(f"{where}: the vocabulary is not one of {kind}.")
    return kind


def _encoder(kind: str, engine: Engine) -> Encoder:
    if kind == "characters":
        return CharacterEncoder(engine.get_vocab())
    return WordEncoder(engine.get_vocab()) if kind == "words" else BytePairEncoder(engine)
