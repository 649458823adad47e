"""Text as tokens: the memory-mapped token store, and the way from a data spec to tokens on disk."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from filelock import FileLock
from jaxtyping import Bool, Integer

from lemma.data.batches import TokenRows
from lemma.data.corpora import CORPORA, TextSplits, fetch_corpus, user_path
from lemma.data.splits import Splits, combine_split_hashes, split_files
from lemma.data.text import (
    DOCUMENT_END,
    SAMPLE_WINDOWS,
    count_shared_lines,
    hold_out,
    is_streamed,
    open_text,
    read_pieces,
    sample_stream,
    sample_text,
    total_size,
)
from lemma.data.tokenizers import Tokenizer, train_tokenizer
from lemma.errors import DataError, RunError
from lemma.files import (
    Advance,
    Progress,
    atomic_new_folder,
    combine_hashes,
    file_checksum,
    file_hash,
    file_lock,
    home_folder,
    progress_counter,
    read_checked_json,
    real_path,
    remove_atomically,
    text_hash,
    verify_file,
    with_checksum,
    write_atomically,
)
from lemma.spec.data import DataSpec, TokenizerSpec

STORE_FORMAT = 2
HEADER_FILE = "store.json"
TOKENS_FILE = "tokens.bin"
SAMPLE = 8 << 20
"""Byte-pairs are trained on at most this many bytes, spread evenly over the training text."""
BLOCK = 1 << 20
"""Characters of short texts that are encoded at once."""
LOCK_TIMEOUT = 3600.0
"""Seconds for which another process that makes the same is waited for."""
Made = TypeVar("Made")
WORTH_PROCESSES = 1 << 25
"""Bytes from which on text is encoded by several processes; below, starting them takes longer."""
SLOW = ("byte-pairs", "pretrained")
"""The kinds of tokenizer that take longer than sending text to a process and ids back."""
BATCH = 1 << 18
"""Characters that are encoded as one batch."""
BLANKS = " \t\n\r\v\f\u00a0\u3000"


class TokenArray(np.ndarray):
    """The tokens of a split, mapped from disk; what is taken of it or computed from it is an ordinary array."""

    bytes: int
    """The UTF-8 bytes of the text that the tokens express."""
    dropped_characters: int
    """How many characters of the text the tokenizer could not express."""

    def __getitem__(self, key: Any) -> Any:
        return np.asarray(self)[key]

    def __array_wrap__(self, array: np.ndarray, context: Any = None, return_scalar: bool = False) -> Any:
        return array[()]


@dataclass(frozen=True)
class EncodedText:
    """Pieces of text as ids, the UTF-8 bytes they express and the characters they could not."""

    ids: Integer[np.ndarray, " tokens"]
    bytes: int = 0
    dropped_characters: int = 0


class TokenStore:
    """A folder with the tokens of all splits in one file and a JSON header; read from disk as they are touched.

    Both are compared with their checksums first.
    """

    def __init__(self, folder: Path) -> None:
        try:
            header = read_checked_json(folder / HEADER_FILE)
            if header["format"] != STORE_FORMAT:
                raise ValueError(f"its format is {header['format']}, not {STORE_FORMAT}")
            verify_file(folder / TOKENS_FILE, header["file"], HEADER_FILE)
            tokens = np.memmap(folder / TOKENS_FILE, dtype=header["dtype"], mode="r")
            self.splits: dict[str, TokenArray] = {}
            for name, extent in header["splits"].items():
                array = tokens[extent["start"] : extent["start"] + extent["tokens"]].view(TokenArray)
                array.bytes, array.dropped_characters = extent["bytes"], extent["left_out"]
                self.splits[name] = array
            self.data_hash: str = header["data_hash"]
            self.tokenizer_hash: str = header["tokenizer_hash"]
            self.overlaps: tuple[str, ...] = tuple(header.get("overlaps", ()))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(f"{folder}: not a readable token store ({error}). Remove the folder.") from None
        self.folder = folder


def write_store(
    folder: Path,
    splits: Mapping[str, Iterable[EncodedText]],
    *,
    vocabulary: int,
    data_hash: str,
    tokenizer_hash: str,
    overlaps: Sequence[str] = (),
) -> TokenStore:
    """Write the splits one after the other as they are encoded; the folder appears only when all is there."""
    dtype = "uint16" if vocabulary <= 1 << 16 else "uint32"
    extents: dict[str, dict[str, int]] = {}
    start = 0
    with atomic_new_folder(folder) as temporary:
        with (temporary / TOKENS_FILE).open("wb") as file:
            for name, pieces in splits.items():
                tokens = size = left_out = 0
                for piece in pieces:  # not written through a map: its touched pages would count as memory
                    file.write(piece.ids.astype(dtype).tobytes())
                    tokens, size, left_out = (
                        tokens + len(piece.ids),
                        size + piece.bytes,
                        left_out + piece.dropped_characters,
                    )
                if not tokens:
                    raise DataError(
                        f"the split '{name}' has no tokens: its text is too short, or holds nothing that the "
                        "tokenizer knows. Give more text or another tokenizer."
                    )
                extents[name] = {"start": start, "tokens": tokens, "bytes": size, "left_out": left_out}
                start += tokens
        header: dict[str, Any] = {"format": STORE_FORMAT, "dtype": dtype, "data_hash": data_hash}
        header |= {"tokenizer_hash": tokenizer_hash, "splits": extents}
        header |= {"overlaps": list(overlaps)} if overlaps else {}
        header["file"] = file_checksum(temporary / TOKENS_FILE)
        (temporary / HEADER_FILE).write_text(json.dumps(with_checksum(header), indent=2), encoding="utf-8")
    return TokenStore(folder)


# From the names a person gives to tokens on disk: `prepare` for training, `read_tokens` for evaluation on other text.


@dataclass(frozen=True)
class TextFiles:
    """The files that were named, in the order in which their hashes are joined, and what is read of them."""

    files: tuple[Path, ...]
    splits: TextSplits
    description: str
    provided: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    """The files of the splits that were given."""
    notes: tuple[str, ...] = ()

    def ranges(self) -> dict[str, list[list[int]]]:
        """Which bytes of which file each split holds: the result of `held_out` and of a corpus's own splits."""
        number = {path: place for place, path in enumerate(chain(self.files, *self.provided.values()))}
        return {
            split: [[number[span.path], span.start, span.stop] for span in spans]
            for split, spans in self.splits.items()
        }


def find_text_files(
    names: Sequence[str],
    held_out: float | None = None,
    progress: Progress | None = None,
    provided: Mapping[str, Sequence[str]] | None = None,
) -> TextFiles:
    """The named text, split for training: a corpus by its own splits, other files by `held_out`, unless they are given.

    Without `held_out` one split called `text`: of a corpus its test split (else validation), of a file all. Corpora and
    files may be mixed; each split then begins with the corpora.
    """
    provided = provided or {}
    corpora = [name for name in names if name in CORPORA]
    paths = [user_path("text", name, "a text file") for name in names if name not in CORPORA]
    name, count = Counter([*corpora, *(str(real_path(path)) for path in paths)]).most_common(1)[0]
    if count > 1:
        raise DataError(f"{name} is given twice, so that held-out text would be trained on too. Name it once.")
    files: list[Path] = []
    splits: TextSplits = {}
    about: list[str] = []
    notes: list[str] = []

    def add(some: Sequence[Path], found: TextSplits) -> None:
        files.extend(some)
        for split, spans in found.items():
            splits.setdefault(split, []).extend(spans)

    for name in corpora:
        corpus = CORPORA[name]
        assert corpus.split is not None
        found = fetch_corpus(corpus, progress)
        own = corpus.split(found)
        replaced = [split for split in own if split in provided]
        notes += [f"{name}: its own {split} split is not used, since another is given" for split in replaced]
        split = "test" if "test" in own else "validation"
        kept = {split: spans for split, spans in own.items() if split not in provided}
        add(found, {"text": own[split]} if held_out is None else kept)
        about.append(f"{name} ({split})" if held_out is None else name)
    if paths:
        documents = [open_text(path) for path in paths]
        if held_out is None:
            add(paths, {"text": documents})
        else:
            add(paths, {"train": documents} if "validation" in provided else hold_out(documents, held_out))
    about += map(str, paths)
    others = {split: tuple(map(Path, some)) for split, some in provided.items()}
    splits |= {split: [open_text(path) for path in some] for split, some in others.items()}
    said = ", ".join(about) if len(about) <= 3 else f"{about[0]} and {len(about) - 1} more"
    return TextFiles(tuple(files), splits, said, others, tuple(notes))


def prepare_text(
    spec: DataSpec, *, tokenizer: Tokenizer | None = None, progress: Progress | None = None
) -> Splits[TokenArray]:
    """Turn the text of a spec into tokens, with a tokenizer trained on its training split unless one is given.

    Everything is kept in the data home; a second call only checks that the files are the same.
    """
    given = split_files(spec)
    return _tokenise(find_text_files(spec.text, spec.held_out, progress, given), tokenizer or spec.tokenizer, progress)


def read_tokens(paths: Sequence[str], tokenizer: Tokenizer, progress: Progress | None = None) -> Splits[TokenArray]:
    """Turn other text into tokens of a given tokenizer, as one split called `text`.

    Of a corpus its test split is read, or its validation split if it has no other; `about` says which.
    """
    return _tokenise(find_text_files(paths, None, progress), tokenizer, progress)


def _tokenise(source: TextFiles, tokenizer: Tokenizer | TokenizerSpec, progress: Progress | None) -> Splits[TokenArray]:
    files = list(dict.fromkeys(chain(source.files, *source.provided.values())))
    advance = progress_counter(progress, "checking the files", sum(path.stat().st_size for path in files))
    hashes = {path: file_hash(path, advance) for path in files}
    own, *others = (
        combine_hashes([hashes[path] for path in some]) for some in (source.files, *source.provided.values())
    )
    data_hash, split_hashes = combine_split_hashes(own, dict(zip(source.provided, others, strict=True)))
    note = ""
    if not isinstance(tokenizer, Tokenizer):
        spec = tokenizer
        whole = total_size(source.splits["train"])
        sample = spec.kind == "byte-pairs" and whole > SAMPLE

        def train() -> Tokenizer:
            spans = source.splits["train"]
            if sample and any(is_streamed(span.path) for span in spans):
                pieces, size = sample_stream(spans, SAMPLE), SAMPLE
            else:
                spans = sample_text(spans, SAMPLE) if sample else spans
                pieces, size = (piece for span in spans for piece in read_pieces(span, spec.kind)), total_size(spans)
            texts = (piece for piece in pieces if piece != DOCUMENT_END)
            return train_tokenizer(spec, _reported(texts, progress_counter(progress, "training the tokenizer", size)))

        key = _key(data_hash, spec.to_dict(), source.ranges())
        with _only_maker(home_folder("tokenizers") / key):
            tokenizer = _cached_tokenizer(key, train)
        if sample:
            note = (
                f"the byte-pairs were trained on {SAMPLE / 1e6:.1f} of the {whole / 1e6:.1f} MB of training text, in "
                f"{SAMPLE_WINDOWS} windows spread over it"
            )
    folder = home_folder("stores") / _key(data_hash, tokenizer.hash, source.ranges())
    with _only_maker(folder):
        store = None
        with suppress(DataError):  # where it is damaged it is written again
            store = TokenStore(folder) if (folder / HEADER_FILE).exists() else None
        if store is None:
            remove_atomically(folder)
            total = sum(map(total_size, source.splits.values()))
            advance = progress_counter(progress, "tokenising", total)
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

            def encoded(split: str) -> Iterator[EncodedText]:
                spans, words = source.splits[split], tokenizer
                pieces = (_reported(read_pieces(span, words.kind), advance) for span in spans)
                long = total_size(spans) >= WORTH_PROCESSES and words.kind in SLOW
                if not long or cores == 1:
                    return (encode_pieces(words, batch) for batch in batch_pieces(pieces))
                from lemma.data.encoding import encode_batches  # which needs this module

                return encode_batches(words, batch_pieces(pieces), cores)

            store = write_store(
                folder,
                {split: encoded(split) for split in source.splits},
                vocabulary=tokenizer.vocabulary,
                data_hash=data_hash,
                tokenizer_hash=tokenizer.hash,
                overlaps=count_shared_lines(source.splits) if source.provided else (),
            )
    return Splits(
        kind="text",
        items=store.splits,
        tokenizer=tokenizer,
        hash=data_hash,
        description=source.description,
        model_sizes={"vocabulary": tokenizer.vocabulary},
        notes=source.notes,
        split_hashes=split_hashes,
        overlaps=store.overlaps,
        tokenizer_note=note,
    )


@contextmanager
def _only_maker(path: Path) -> Iterator[None]:
    """Let one process at a time make a cached file or folder: the others wait for it, and find it made."""
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        lock.acquire()
    except OSError:  # a file system without locks: all make it, and the first one's stays
        yield
        return
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def _reported(pieces: Iterable[str], advance: Advance) -> Iterator[str]:
    """The pieces, each reported when it is done with."""
    for piece in pieces:
        yield piece
        advance(1 if piece == DOCUMENT_END else utf8_size(piece))


CONTINUES_DOCUMENT, FIRST_DOCUMENT, NEXT_DOCUMENT = range(3)
Piece = tuple[str, int]
"""A text, and whether it goes on with a document, begins the first one, or one after another."""


def utf8_size(text: str) -> int:
    """The number of bytes a text takes in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def encode_pieces(tokenizer: Tokenizer, pieces: Sequence[Piece]) -> EncodedText:
    """Encode pieces in order, with one `<eos>` between two documents if the tokenizer has it.

    Before each document comes what a pretrained model expects at the begin of a text.
    """
    found: list[np.ndarray] = []
    size = missing = 0
    for text, place in pieces:
        if place == NEXT_DOCUMENT and tokenizer.eos is not None and tokenizer.eos not in tokenizer.prefix:
            found.append(np.array([tokenizer.eos]))
        if (
            place != CONTINUES_DOCUMENT and tokenizer.prefix and not tokenizer.suffix
        ):  # an encoder's windows have their own
            found.append(np.array(tokenizer.prefix))
        ids, left_out = tokenizer.encode_lossy(text, continued=place == CONTINUES_DOCUMENT)
        found.append(ids)
        size, missing = size + utf8_size(tokenizer.decode(ids) if left_out else text), missing + left_out
    return EncodedText(found[0] if len(found) == 1 else np.concatenate(found), size, missing)


def batch_pieces(documents: Iterable[Iterable[str]]) -> Iterator[list[Piece]]:
    """The pieces of documents in batches; an end of document within one begins another."""
    batch: list[Piece] = []
    size, next_place = 0, FIRST_DOCUMENT
    for document in documents:
        for text in document:
            if text == DOCUMENT_END:
                next_place = next_place if next_place == FIRST_DOCUMENT else NEXT_DOCUMENT
                continue
            batch.append((text, next_place))
            size, next_place = size + len(text), CONTINUES_DOCUMENT
            if size >= BATCH:
                yield batch
                batch, size = [], 0
        next_place = next_place if next_place == FIRST_DOCUMENT else NEXT_DOCUMENT
    if batch:
        yield batch


def _key(*parts: object) -> str:
    """The name of a cached file: it changes when anything changes that the file depends on."""
    return text_hash(json.dumps([STORE_FORMAT, *parts]))[:32]


def _cached(path: Path, read: Callable[[], Made], make: Callable[[], Made]) -> Made:
    """Read what is cached; if it is not there yet, or damaged, make it, one process at a time."""
    try:
        return read()
    except (DataError, RunError):
        pass
    with file_lock(path, timeout=LOCK_TIMEOUT):
        try:
            return read()  # another process has made it in the meantime
        except (DataError, RunError):
            return make()


def _cached_tokenizer(key: str, train: Callable[[], Tokenizer]) -> Tokenizer:
    path = home_folder("tokenizers") / f"{key}.json"

    def trained() -> Tokenizer:
        tokenizer = train()
        write_atomically(path, json.dumps(with_checksum({"tokenizer": tokenizer.json}), ensure_ascii=False))
        return tokenizer

    return _cached(path, lambda: Tokenizer(str(read_checked_json(path)["tokenizer"]), str(path)), trained)


# Texts that are separate examples as rows of tokens.


def load_or_train_tokenizer(spec: TokenizerSpec, texts: Sequence[str], progress: Progress | None = None) -> Tokenizer:
    """Train a tokenizer on texts, or take the one that was trained on the same texts before.

    Byte-pairs are trained on the first texts only, up to a limit; the texts come in a shuffled order.
    """
    digest = hashlib.sha256()
    for text in texts:
        content = text.encode()
        digest.update(len(content).to_bytes(8))
        digest.update(content)

    def train() -> Tokenizer:
        some = texts
        if spec.kind == "byte-pairs":
            before = accumulate(map(utf8_size, texts), initial=0)
            some = texts[: sum(size < SAMPLE for size in before)]
        advance = progress_counter(progress, "training the tokenizer", sum(map(utf8_size, some)))
        return train_tokenizer(spec, _reported(some, advance))

    return _cached_tokenizer(_key("texts", spec.to_dict(), digest.hexdigest()), train)


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str], advance: Advance) -> tuple[TokenRows, int]:
    """Encode texts, one row each; with them how many characters the tokenizer could not express."""
    tokens, bounds = [np.zeros(0, dtype=np.int32)], [np.zeros(1, dtype=np.int64)]
    left_out = 0
    start = size = 0
    for stop, text in enumerate(texts, start=1):  # some at a time, of about `BLOCK` characters together
        size += len(text)
        if size < BLOCK and stop < len(texts):
            continue
        block = texts[start:stop]
        ids, places = tokenizer.encode_batch(block)
        known = ids >= 0
        tokens.append(ids[known].astype(np.int32))
        bounds.append(bounds[-1][-1] + np.cumsum(np.concatenate([[0], known]))[places[1:]])
        left_out += len(ids) - len(tokens[-1])
        advance(sum(map(utf8_size, block)))
        start, size = stop, 0
    return TokenRows(np.concatenate(tokens), np.concatenate(bounds)), left_out


def encode_splits(
    texts: Mapping[str, Sequence[str]],
    tokenizer: Tokenizer,
    length: int,
    special_tokens: bool,
    noun: str,
    progress: Progress | None = None,
) -> tuple[dict[str, TokenRows], list[str]]:
    """The texts of each split as rows of at most `length` tokens, and in words what had to be cut or left out.

    With `special_tokens` a text is put between `<start>` and `<end>`, which count; `what` is what the texts are called.
    """
    marks = sum(map(len, tokenizer.boundary_tokens(special_tokens)))
    room = length - marks
    if room < 1:
        raise DataError(f"{length} tokens are too few for a text{f' and its {marks} special tokens' if marks else ''}.")
    openings = {split: [truncate_text(text, tokenizer.kind, room) for text in some] for split, some in texts.items()}
    advance = progress_counter(
        progress, "tokenising", sum(utf8_size(text) for some in openings.values() for text in some)
    )
    encoded: dict[str, TokenRows] = {}
    total = long = characters = strange = empty = 0
    for split, some in openings.items():
        rows, missing = encode_texts(tokenizer, some, advance)
        unknown_words, unknown_texts = find_unknown(rows, tokenizer)
        total, long = total + len(some), long + int((rows.lengths > room).sum())
        characters, strange, empty = (
            characters + missing,
            strange + int(unknown_words.sum()),
            empty + int(unknown_texts.sum()),
        )
        encoded[split] = fit_rows(rows, tokenizer, length, special_tokens)
    notes = {
        f"{long:,} of {total:,} {noun} are longer than {length:,} tokens: their start was kept": long,
        f"{characters:,} characters that the tokenizer does not know were left out": characters,
        f"{strange:,} of {total:,} {noun} hold words that the tokenizer does not know": strange,
        f"{empty:,} {noun} hold nothing that the tokenizer knows": empty,
    }
    return encoded, [note for note, count in notes.items() if count]


def fit_rows(rows: TokenRows, tokenizer: Tokenizer, length: int, special_tokens: bool) -> TokenRows:
    """Cut rows to length; a row of no tokens at all gets one, since every model has to read something."""
    before, after = tokenizer.boundary_tokens(special_tokens)
    kept = rows.truncate(max(1, length - len(before) - len(after)))
    return kept.add_affixes(before, after) if before or after else kept.fill_empty(tokenizer.eos or 0)


def find_unknown(rows: TokenRows, tokenizer: Tokenizer) -> tuple[Bool[np.ndarray, " rows"], Bool[np.ndarray, " rows"]]:
    """Which rows hold a word that the tokenizer does not know, and which hold nothing that it knows but white space."""
    strange = rows.tokens == (-1 if tokenizer.unk is None else tokenizer.unk)
    blank = np.isin(rows.tokens, tokenizer.encode_lossy(BLANKS)[0])
    of_rows = [np.diff(np.concatenate([[0], np.cumsum(one)])[rows.bounds]) for one in (strange, ~strange & ~blank)]
    return of_rows[0] > 0, of_rows[1] == 0


def truncate_text(text: str, kind: str, length: int) -> str:
    """As much of a text as its first `length` tokens can need, and one more: no token holds white space within.

    >>> opening("it was the best of times, it was the worst of times", "words", 3)
    'it was the best'
    """
    if kind == "characters" or len(text) <= 2 * length:
        return text
    found = re.match(rf"(?:\s*+\S++){{{length + 1}}}", text)
    return found[0] if found else text
