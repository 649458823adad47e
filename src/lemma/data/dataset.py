"""From a data spec to tokens on disk: `prepare` for training, `read_tokens` for judging other text."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Integer

from lemma.data.encoding import encode_documents, read_documents
from lemma.data.hashing import files_sum, text_sum
from lemma.data.home import home_folder
from lemma.data.learn import learn_tokenizer
from lemma.data.progress import Progress, counting
from lemma.data.sampling import spread
from lemma.data.sections import total_size
from lemma.data.sources import Source, training_source, whole_source
from lemma.data.store import FORMAT, TokenStore, write_store
from lemma.data.tokenizer import Tokenizer
from lemma.errors import DataError
from lemma.spec import DataSpec

SAMPLE = 8 << 20
"""Byte-pairs are learned from at most so many bytes, spread evenly over the training text."""


@dataclass(frozen=True)
class Dataset:
    """Text as tokens: the tokenizer, the store with the splits, the SHA-256 of the files and what they are."""

    tokenizer: Tokenizer
    store: TokenStore
    hash: str
    about: str

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return self.store.splits

    def sizes(self) -> dict[str, int]:
        """What a model has to know of the data's size."""
        return {"vocabulary": self.tokenizer.vocabulary}

    def tokens(self, split: str) -> Integer[np.ndarray, "tokens"]:
        """The tokens of a split, mapped from disk."""
        return self.store[split]

    def bytes(self, split: str) -> int:
        """The UTF-8 bytes of the text that the split's tokens express."""
        return self.store.bytes(split)

    def left_out(self, split: str) -> int:
        """How many characters of the split's text the tokenizer could not express."""
        return self.store.left_out(split)


def prepare(spec: DataSpec, *, tokenizer: Tokenizer | None = None, progress: Progress | None = None) -> Dataset:
    """Turn the text of a spec into tokens, with a tokenizer learned from its training split unless one is given.

    Everything is kept in the data home; a second call only checks that the files are the same.
    """
    source = training_source(spec.text, spec.held_out, progress)
    data_hash = _hash(source, progress)
    return _dataset(source, data_hash, tokenizer or _learned(spec, source, data_hash, progress), progress)


def read_tokens(paths: Sequence[str], tokenizer: Tokenizer, progress: Progress | None = None) -> Dataset:
    """Turn other text into tokens of a given tokenizer, as one split called `text`.

    Of a corpus its test split is read, or its validation split if it has no other; `about` says which.
    """
    source = whole_source(paths, progress)
    return _dataset(source, _hash(source, progress), tokenizer, progress)


def _hash(source: Source, progress: Progress | None) -> str:
    total = sum(path.stat().st_size for path in source.files)
    return files_sum(source.files, counting(progress, "checking the files", total))


def _learned(spec: DataSpec, source: Source, data_hash: str, progress: Progress | None) -> Tokenizer:
    key = _key(data_hash, spec.tokenizer.to_dict(), _ranges(source))
    path = home_folder("tokenizers") / f"{key}.json"
    try:
        return Tokenizer.load(path)
    except DataError:  # not there yet, or damaged
        tokenizer = _learn(spec, source, progress)
        tokenizer.save(path)
        return tokenizer


def _learn(spec: DataSpec, source: Source, progress: Progress | None) -> Tokenizer:
    kind, sections = spec.tokenizer.kind, source.splits["train"]
    if kind == "byte-pairs":
        sections = spread(sections, SAMPLE)
    advance = counting(progress, "learning the tokenizer", total_size(sections))
    return learn_tokenizer(spec.tokenizer, read_documents(sections, kind, advance))


def _dataset(source: Source, data_hash: str, tokenizer: Tokenizer, progress: Progress | None) -> Dataset:
    folder = home_folder("stores") / _key(data_hash, tokenizer.hash, _ranges(source))
    store = _stored(folder) or _write(folder, source, data_hash, tokenizer, progress)
    return Dataset(tokenizer, store, data_hash, source.about)


def _stored(folder: Path) -> TokenStore | None:
    """The store that lies there whole; a damaged one is removed."""
    if not folder.is_dir():
        return None
    try:
        return TokenStore(folder)
    except DataError:
        shutil.rmtree(folder)
        return None


def _write(folder: Path, source: Source, data_hash: str, tokenizer: Tokenizer, progress: Progress | None) -> TokenStore:
    total = sum(total_size(documents) for documents in source.splits.values())
    advance = counting(progress, "tokenising", total)
    splits = {name: encode_documents(tokenizer, documents, advance) for name, documents in source.splits.items()}
    return write_store(
        folder, splits, vocabulary=tokenizer.vocabulary, data_hash=data_hash, tokenizer_hash=tokenizer.hash
    )


def _ranges(source: Source) -> dict[str, list[list[int]]]:
    """Which bytes of which file each split holds: what `held_out` and a corpus's division come to."""
    number = {path: place for place, path in enumerate(source.files)}
    return {
        split: [[number[section.path], section.start, section.stop] for section in sections]
        for split, sections in source.splits.items()
    }


def _key(*parts: object) -> str:
    """The name of a cached thing: it changes when anything changes that the thing depends on."""
    return text_sum(json.dumps([FORMAT, *parts]))[:32]
