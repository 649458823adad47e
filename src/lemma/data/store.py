"""The memory-mapped token store, and the way from a data spec to tokens on disk."""

import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Bool, Int64, Integer

from lemma.data.batches import Rows
from lemma.data.corpora import CORPORA, corpus_files
from lemma.data.files import Advance, Progress, counting, files_sum, home_folder, new_folder, text_sum
from lemma.data.text import Section, Splits, exists, hold_out, open_text, read_pieces, spread, total_size
from lemma.data.tokenizers import Tokenizer, learn_tokenizer
from lemma.errors import DataError, unknown
from lemma.spec.data import DataSpec, TokenizerSpec

# The token store: one memory-mapped file with the tokens of all splits, and a JSON header beside it.


FORMAT = 1
HEADER = "store.json"
TOKENS = "tokens.bin"


@dataclass(frozen=True)
class Encoded:
    """A piece of text as ids, the UTF-8 bytes they express and the characters they could not."""

    ids: Integer[np.ndarray, "tokens"]
    bytes: int = 0
    left_out: int = 0


@dataclass(frozen=True)
class _Extent:
    """Where a split lies in the file, and what it holds."""

    start: int
    tokens: int
    bytes: int
    left_out: int


class TokenStore:
    """The tokens of each split, read from disk as they are touched."""

    def __init__(self, folder: Path) -> None:
        try:
            header = _read_header(folder)
            self._tokens = np.memmap(folder / TOKENS, dtype=header["dtype"], mode="r")
            self._extents = {name: _Extent(**extent) for name, extent in header["splits"].items()}
            self.data_hash: str = header["data_hash"]
            self.tokenizer_hash: str = header["tokenizer_hash"]
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(f"{folder}: no readable token store ({error}). Remove the folder.") from None
        if len(self._tokens) != sum(extent.tokens for extent in self._extents.values()):
            raise DataError(f"{folder}: the token file is not as long as its header says. Remove the folder.")
        self.folder = folder

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self._extents)

    def __getitem__(self, split: str) -> Integer[np.ndarray, "tokens"]:
        extent = self._extent(split)
        return self._tokens[extent.start : extent.start + extent.tokens]

    def bytes(self, split: str) -> int:
        """The UTF-8 bytes of the text that the split's tokens express."""
        return self._extent(split).bytes

    def left_out(self, split: str) -> int:
        """How many characters of the split's text the tokenizer could not express."""
        return self._extent(split).left_out

    def _extent(self, split: str) -> _Extent:
        if split not in self._extents:
            raise DataError(f"there is no split '{split}' in this text. It has: {', '.join(self._extents)}.")
        return self._extents[split]


def _read_header(folder: Path) -> dict[str, Any]:
    header = json.loads((folder / HEADER).read_text(encoding="utf-8"))
    if header["format"] != FORMAT:
        raise ValueError(f"its format is {header['format']}, not {FORMAT}")
    return header


def write_store(
    folder: Path, splits: Mapping[str, Iterable[Encoded]], *, vocabulary: int, data_hash: str, tokenizer_hash: str
) -> TokenStore:
    """Write the splits one after the other as they are encoded; the folder appears only when all is there."""
    dtype = "uint16" if vocabulary <= 1 << 16 else "uint32"
    with new_folder(folder) as temporary:
        with (temporary / TOKENS).open("wb") as file:
            extents = _write_splits(file, splits, np.dtype(dtype))
        header = {"format": FORMAT, "dtype": dtype, "data_hash": data_hash, "tokenizer_hash": tokenizer_hash}
        header["splits"] = {name: asdict(extent) for name, extent in extents.items()}
        (temporary / HEADER).write_text(json.dumps(header, indent=2), encoding="utf-8")
    return TokenStore(folder)


def _write_splits(file: BinaryIO, splits: Mapping[str, Iterable[Encoded]], dtype: np.dtype) -> dict[str, _Extent]:
    extents: dict[str, _Extent] = {}
    start = 0
    for name, pieces in splits.items():
        extents[name] = _write_split(file, pieces, dtype, start)
        if not extents[name].tokens:
            raise DataError(
                f"the split '{name}' has no tokens: its text is too short, or holds nothing that the tokenizer knows. "
                "Give more text or another tokenizer."
            )
        start += extents[name].tokens
    return extents


def _write_split(file: BinaryIO, pieces: Iterable[Encoded], dtype: np.dtype, start: int) -> _Extent:
    tokens = size = left_out = 0
    for piece in pieces:
        file.write(piece.ids.astype(dtype).tobytes())  # not through the map: its touched pages would count as memory
        tokens, size, left_out = tokens + len(piece.ids), size + piece.bytes, left_out + piece.left_out
    return _Extent(start, tokens, size, left_out)


# Documents into tokens, piece by piece.


BLOCK = 1 << 20
"""Characters of short texts that are encoded at once."""
BLANKS = " \t\n\r\v\f\u00a0\u3000"


def read_documents(documents: Iterable[Section], kind: str, advance: Advance) -> Iterator[str]:
    """Read documents one after the other in pieces, telling of each piece when it is done with."""
    for document in documents:
        for piece in read_pieces(document, kind):
            yield piece
            advance(utf8_size(piece))


def encode_documents(tokenizer: Tokenizer, documents: Iterable[Section], advance: Advance) -> Iterator[Encoded]:
    """Encode documents in order, with one `<eos>` between two of them if the tokenizer has it."""
    for number, document in enumerate(documents):
        if number and tokenizer.eos is not None:
            yield Encoded(np.array([tokenizer.eos]))
        for piece in read_documents([document], tokenizer.kind, advance):
            yield encode_piece(tokenizer, piece)


def encode_piece(tokenizer: Tokenizer, piece: str) -> Encoded:
    """Encode what the tokenizer can express of a piece of text."""
    ids, left_out = tokenizer.encode_known(piece)
    return Encoded(ids, utf8_size(tokenizer.decode(ids) if left_out else piece), left_out)


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str], advance: Advance) -> tuple[Rows, int]:
    """Encode texts, a row each; beside them how many characters the tokenizer could not express."""
    tokens, bounds = [np.zeros(0, dtype=np.int32)], [np.zeros(1, dtype=np.int64)]
    left_out = 0
    for block in _blocks(texts):
        ids, places = tokenizer.encode_all(block)
        known = ids >= 0
        tokens.append(ids[known].astype(np.int32))
        bounds.append(bounds[-1][-1] + np.cumsum(np.concatenate([[0], known]))[places[1:]])
        left_out += len(ids) - len(tokens[-1])
        advance(sum(map(utf8_size, block)))
    return Rows(np.concatenate(tokens), np.concatenate(bounds)), left_out


def unknown_tokens(rows: Rows, tokenizer: Tokenizer) -> tuple[Bool[np.ndarray, "rows"], Bool[np.ndarray, "rows"]]:
    """Which rows hold a word that the tokenizer does not know, and which hold nothing that it knows but white space."""
    strange = rows.tokens == (-1 if tokenizer.unk is None else tokenizer.unk)
    blank = np.isin(rows.tokens, tokenizer.encode_known(BLANKS)[0])
    return _counted(strange, rows) > 0, _counted(~strange & ~blank, rows) == 0


def _counted(tokens: Bool[np.ndarray, "tokens"], rows: Rows) -> Int64[np.ndarray, "rows"]:
    """How many of each row's tokens are such."""
    return np.diff(np.concatenate([[0], np.cumsum(tokens)])[rows.bounds])


def opening(text: str, kind: str, length: int) -> str:
    """As much of a text as its first `length` tokens can need, and one more: no token holds white space within.

    >>> opening("it was the best of times, it was the worst of times", "words", 3)
    'it was the best'
    """
    if kind == "characters" or len(text) <= 2 * length:
        return text
    found = re.match(rf"(?:\s*+\S++){{{length + 1}}}", text)
    return found[0] if found else text


def _blocks(texts: Sequence[str]) -> Iterator[list[str]]:
    """Some texts at a time, of about so many characters together."""
    block: list[str] = []
    size = 0
    for text in texts:
        block.append(text)
        size += len(text)
        if size >= BLOCK:
            yield block
            block, size = [], 0
    if block:
        yield block


def utf8_size(text: str) -> int:
    """The number of bytes a text takes in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


# From the names a person gives to files and to the parts of them that are read.


Part = tuple[Sequence[Path], Splits]
"""Some files, and what is read of them."""


@dataclass(frozen=True)
class Source:
    """The files that were named, in the order in which their sums are joined, and what is read of them."""

    files: tuple[Path, ...]
    splits: Splits
    about: str


def training_source(names: Sequence[str], held_out: float, progress: Progress | None = None) -> Source:
    """The named text divided for training: a corpus as it says itself, one's own files by `held_out`.

    Corpora and files may be mixed; each split then begins with the corpora.
    """
    corpora, files = _sort(names)
    parts = [_divided(name, progress) for name in corpora]
    if files:
        parts.append((files, hold_out([open_text(path) for path in files], held_out)))
    return _join(parts, [*corpora, *map(str, files)])


def whole_source(names: Sequence[str], progress: Progress | None = None) -> Source:
    """The named text as one split called `text`: of a corpus its test part (else validation), of a file all."""
    corpora, files = _sort(names)
    parts: list[Part] = []
    said: list[str] = []
    for name in corpora:
        paths, splits = _divided(name, progress)
        split = "test" if "test" in splits else "validation"
        parts.append((paths, {"text": splits[split]}))
        said.append(f"{name} ({split})")
    if files:
        parts.append((files, {"text": [open_text(path) for path in files]}))
    return _join(parts, [*said, *map(str, files)])


def _divided(name: str, progress: Progress | None) -> Part:
    paths = corpus_files(CORPORA[name], progress)
    return paths, CORPORA[name].divide(paths)


def _sort(names: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Tell corpora from files, and refuse what is neither or is named twice."""
    corpora = [name for name in names if name in CORPORA]
    files = [Path(name) for name in names if name not in CORPORA]
    for path in files:
        if path.name == str(path) and not path.suffix and not exists(path):
            raise DataError(unknown("text", str(path), CORPORA) + " Or give the path of a text file.")
    name, count = Counter([*corpora, *(str(path.resolve()) for path in files)]).most_common(1)[0]
    if count > 1:
        raise DataError(f"{name} is given twice, so that held-out text would be trained on too. Name it once.")
    return corpora, files


def _join(parts: Sequence[Part], names: Sequence[str]) -> Source:
    splits: Splits = {}
    for _, divided in parts:
        for split, sections in divided.items():
            splits.setdefault(split, []).extend(sections)
    about = ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more"
    return Source(tuple(path for files, _ in parts for path in files), splits, about)


# From a data spec to tokens on disk: `prepare` for training, `read_tokens` for judging other text.


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


# The tokenizer of examples: learned from their training texts, and kept in the data home.


def learned_tokenizer(spec: TokenizerSpec, texts: Sequence[str], progress: Progress | None = None) -> Tokenizer:
    """Learn a tokenizer from texts, or take the one that was learned from the same texts before."""
    key = text_sum(json.dumps([FORMAT, "texts", spec.to_dict(), _sum(texts)]))[:32]
    path = home_folder("tokenizers") / f"{key}.json"
    try:
        return Tokenizer.load(path)
    except DataError:  # not there yet, or damaged
        tokenizer = _learned_learn(spec, texts, progress)
        tokenizer.save(path)
        return tokenizer


def _learned_learn(spec: TokenizerSpec, texts: Sequence[str], progress: Progress | None) -> Tokenizer:
    limit = SAMPLE if spec.kind == "byte-pairs" else None
    total = sum(map(utf8_size, texts))
    advance = counting(progress, "learning the tokenizer", min(limit or total, total))
    return learn_tokenizer(spec, _first(texts, limit, advance))


def _first(texts: Sequence[str], limit: int | None, advance: Advance) -> Iterator[str]:
    """The first texts, of at most so many bytes together; they come in a drawn order."""
    done = 0
    for text in texts:
        if limit is not None and done >= limit:
            return
        yield text
        done += utf8_size(text)
        advance(utf8_size(text))


def _sum(texts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        content = text.encode()
        digest.update(len(content).to_bytes(8))
        digest.update(content)
    return digest.hexdigest()


# Texts of their own as rows of tokens: cut to length, between two marks where a model wants these.


def encode_marked(
    texts: Mapping[str, Sequence[str]],
    tokenizer: Tokenizer,
    length: int,
    marked: bool,
    what: str,
    progress: Progress | None = None,
) -> tuple[dict[str, Rows], list[str]]:
    """The texts of each split as rows of at most `length` tokens, with what had to be cut or left out said.

    With `marked` a text stands between `<start>` and `<end>`, which count; `what` is what the texts are called.
    """
    room = length - 2 * marked
    if room < 1:
        raise DataError(f"{length} tokens are too few for a text{' and its two marks' if marked else ''}.")
    openings = {split: [opening(text, tokenizer.kind, room) for text in some] for split, some in texts.items()}
    advance = counting(progress, "tokenising", sum(utf8_size(text) for some in openings.values() for text in some))
    encoded: dict[str, Rows] = {}
    counts: Counter[str] = Counter()
    for split, some in openings.items():
        rows, missing = encode_texts(tokenizer, some, advance)
        counts += _counts(rows, tokenizer, missing, room)
        encoded[split] = finished(rows, tokenizer, length, marked)
    return encoded, _told(counts, length, what)


def finished(rows: Rows, tokenizer: Tokenizer, length: int, marked: bool) -> Rows:
    """Cut rows to length; a row of no tokens at all gets one, since every model has to read something."""
    if marked:
        return rows.cut(length - 2).marked([tokenizer.vocabulary], [tokenizer.vocabulary + 1])
    return rows.cut(length).filled(tokenizer.eos or 0)


def _counts(rows: Rows, tokenizer: Tokenizer, missing: int, room: int) -> Counter[str]:
    strange, empty = (int(rows_of.sum()) for rows_of in unknown_tokens(rows, tokenizer))
    long = int((rows.lengths > room).sum())
    return Counter(texts=len(rows.lengths), long=long, strange=strange, empty=empty, characters=missing)


def _told(counts: Counter[str], length: int, what: str) -> list[str]:
    long = f"{counts['long']:,} of {counts['texts']:,} {what} are longer than {length:,} tokens: their start was kept"
    characters = f"{counts['characters']:,} characters that the tokenizer does not know were left out"
    strange = f"{counts['strange']:,} of {counts['texts']:,} {what} hold words that the tokenizer does not know"
    empty = f"{counts['empty']:,} {what} hold nothing that the tokenizer knows"
    told = {"long": long, "characters": characters, "strange": strange, "empty": empty}
    return [sentence for what, sentence in told.items() if counts[what]]
