"""Text as tokens: the memory-mapped token store, and the way from a data spec to tokens on disk."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Integer

from lemma.data.batches import TokenRows
from lemma.data.corpora import CORPORA, TextSplits, fetch_corpus
from lemma.data.splits import Splits, combine_split_hashes, resolve_user_path, split_files
from lemma.data.text import (
    DOCUMENT_END,
    SAMPLE_WINDOWS,
    TextSpan,
    describe_shared_lines,
    hold_out,
    is_streamed,
    open_text,
    read_pieces,
    sample_stream,
    sample_text,
    total_size,
)
from lemma.data.tokenizers import Tokenizer, train_tokenizer
from lemma.errors import DataError
from lemma.files import (
    Advance,
    Progress,
    atomic_new_folder,
    cached,
    cached_json,
    combine_hashes,
    file_checksum,
    file_hash,
    home_folder,
    progress_counter,
    read_checked_json,
    real_path,
    remove_atomically,
    text_hash,
    verify_file,
    write_checked_json,
)
from lemma.spec.data import DataSpec, TokenizerSpec

STORE_FORMAT = 2
HEADER_FILE = "store.json"
TOKENS_FILE = "tokens.bin"
SAMPLE = 8 << 20  # byte-pairs are trained on at most this many bytes, spread evenly over the training text
BLOCK = 1 << 20  # characters of short texts that are encoded at once
BATCH = 1 << 18  # characters of running text that are encoded as one batch
PARALLEL_BYTES = 1 << 25  # bytes from which on several processes encode; below, starting them takes longer
SLOW_KINDS = ("byte-pairs", "pretrained")  # tokenizers that take longer than sending text to a process and ids back
BLANKS = " \t\n\r\v\f\u00a0\u3000"


class TokenArray(np.ndarray):
    """Token ids of a split, mapped from disk; slices and results of computations are ordinary arrays."""

    bytes: int  # UTF-8 bytes of the text that the tokens express
    dropped_characters: int  # characters of the text that the tokenizer could not express

    def __getitem__(self, key: Any) -> Any:
        return np.asarray(self)[key]

    def __array_wrap__(self, array: np.ndarray, context: Any = None, return_scalar: bool = False) -> Any:
        """Return the result of a computation as an ordinary array."""
        return array[()]


@dataclass(frozen=True)
class EncodedText:
    """Token ids of a batch of text pieces, and how many bytes and lost characters they stand for."""

    ids: Integer[np.ndarray, " tokens"]
    bytes: int = 0  # UTF-8 bytes that the ids express
    dropped_characters: int = 0


class TokenStore:
    """Folder with the tokens of all splits in one memory-mapped file and a JSON header; both have checksums."""

    def __init__(self, folder: Path) -> None:
        if not (folder / HEADER_FILE).exists():
            raise DataError(f"{folder}: not a readable token store ({HEADER_FILE} is missing). Remove the folder.")
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
            self.overlaps: tuple[str, ...] = tuple(header.get("overlaps", ()))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(f"{folder}: not a readable token store ({error}). Remove the folder.") from None
        self.folder = folder


def write_store(
    folder: Path,
    splits: Mapping[str, Iterable[EncodedText]],
    *,
    vocabulary: int,
    overlaps: Sequence[str] = (),
) -> TokenStore:
    """Write the encoded text of each split into a new folder as one file of ids; return the opened store.

    The folder appears only when everything is written. Ids have 16 bits if the `vocabulary` size permits, else 32.
    `overlaps` are sentences on text that two splits share.
    """
    dtype = "uint16" if vocabulary <= 1 << 16 else "uint32"
    extents: dict[str, dict[str, int]] = {}
    start = 0
    with atomic_new_folder(folder) as temporary:
        with (temporary / TOKENS_FILE).open("wb") as file:
            for name, pieces in splits.items():
                extent = {"start": start, "tokens": 0, "bytes": 0, "left_out": 0}
                for piece in pieces:  # not written through a map, whose touched pages would count as memory
                    file.write(piece.ids.astype(dtype).tobytes())
                    extent["tokens"] += len(piece.ids)
                    extent["bytes"] += piece.bytes
                    extent["left_out"] += piece.dropped_characters
                if not extent["tokens"]:
                    raise DataError(
                        f"the split '{name}' has no tokens: its text is too short, or holds nothing that the "
                        "tokenizer knows. Give more text or another tokenizer."
                    )
                extents[name] = extent
                start += extent["tokens"]
        header = {"format": STORE_FORMAT, "dtype": dtype, "splits": extents, "overlaps": list(overlaps)}
        write_checked_json(temporary / HEADER_FILE, header | {"file": file_checksum(temporary / TOKENS_FILE)})
    return TokenStore(folder)


# From the names of files to tokens on disk: `prepare_text` for training, `read_tokens` for evaluation on other text


def prepare_text(
    spec: DataSpec, *, tokenizer: Tokenizer | None = None, progress: Progress | None = None
) -> Splits[TokenArray]:
    """Tokenize the text of a spec, with a tokenizer trained on its training split unless one is passed.

    The tokens are cached in the data home; a second call only checks that the files are the same.
    """
    source = find_text_files(spec.text, spec.held_out, progress, split_files(spec))
    return _tokenise(source, tokenizer or spec.tokenizer, progress)


def read_tokens(paths: Sequence[str], tokenizer: Tokenizer, progress: Progress | None = None) -> Splits[TokenArray]:
    """Tokenize other text (corpora by name, and files) with a trained tokenizer, as a single split called `text`.

    Of a corpus its test split is read, or its validation split if it has no other; the description says which.
    """
    return _tokenise(find_text_files(paths, None, progress), tokenizer, progress)


@dataclass(frozen=True)
class TextFiles:
    """Text files, and the spans of bytes that make up each split."""

    files: tuple[Path, ...]  # in the order in which their hashes are combined; without those of provided splits
    splits: TextSplits
    description: str
    provided: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)  # files of the splits that the user provided
    notes: tuple[str, ...] = ()  # on splits of corpora that are not used

    def ranges(self) -> dict[str, list[list[int]]]:
        """Return the spans of each split as [file number, start byte, stop byte]."""
        numbers = {path: number for number, path in enumerate(chain(self.files, *self.provided.values()))}
        return {
            split: [[numbers[span.path], span.start, span.stop] for span in spans]
            for split, spans in self.splits.items()
        }


def find_text_files(
    names: Sequence[str],
    held_out: float | None = None,
    progress: Progress | None = None,
    provided: Mapping[str, Sequence[str]] | None = None,
) -> TextFiles:
    """Find the files of a text and split them into spans of bytes.

    Corpora and files may be mixed; each split then begins with the corpora.

    Args:
        names: built-in corpora, which have their own splits, and paths of files.
        held_out: fraction of the files' text for validation. None for a single split "text", which is all of a file,
            and of a corpus its test split, or else its validation split.
        provided: paths of the user's files for "validation" or "test".
    """
    provided = provided or {}
    corpora = [name for name in names if name in CORPORA]
    paths = [resolve_user_path("text", name, CORPORA, "a text file") for name in names if name not in CORPORA]
    name, count = Counter([*corpora, *(str(real_path(path)) for path in paths)]).most_common(1)[0]
    if count > 1:
        raise DataError(f"{name} is given twice, so that held-out text would be trained on too. Name it once.")
    files: list[Path] = []
    parts: list[TextSplits] = []
    descriptions: list[str] = []
    notes: list[str] = []
    for name in corpora:
        corpus, description = CORPORA[name], name
        assert corpus.split is not None
        corpus_files = fetch_corpus(corpus, progress)
        corpus_splits = corpus.split(corpus_files)
        files += corpus_files
        replaced = [split for split in corpus_splits if split in provided]
        notes += [f"{name}: its own {split} split is not used, since another is given" for split in replaced]
        if held_out is None:
            split = "test" if "test" in corpus_splits else "validation"
            corpus_splits, description = {"text": corpus_splits[split]}, f"{name} ({split})"
        parts.append(corpus_splits)
        descriptions.append(description)
    if paths:
        files += paths
        documents = [open_text(path) for path in paths]
        if held_out is None:
            parts.append({"text": documents})
        else:
            parts.append({"train": documents} if "validation" in provided else hold_out(documents, held_out))
    splits: TextSplits = {}
    for split, spans in chain.from_iterable(part.items() for part in parts):
        if split not in provided:
            splits.setdefault(split, []).extend(spans)
    descriptions += map(str, paths)
    provided_files = {split: tuple(map(Path, split_names)) for split, split_names in provided.items()}
    splits |= {split: [open_text(path) for path in split_paths] for split, split_paths in provided_files.items()}
    description = ", ".join(descriptions)
    if len(descriptions) > 3:
        description = f"{descriptions[0]} and {len(descriptions) - 1} more"
    return TextFiles(tuple(files), splits, description, provided_files, tuple(notes))


def _tokenise(source: TextFiles, tokenizer: Tokenizer | TokenizerSpec, progress: Progress | None) -> Splits[TokenArray]:
    """Tokenize the files of a text and cache the tokens; train the tokenizer first if only its spec is passed."""
    files = list(dict.fromkeys(chain(source.files, *source.provided.values())))
    advance = progress_counter(progress, "checking the files", sum(path.stat().st_size for path in files))
    hashes = {path: file_hash(path, advance) for path in files}
    provided = {split: combine_hashes([hashes[path] for path in paths]) for split, paths in source.provided.items()}
    own_hash = combine_hashes([hashes[path] for path in source.files])
    data_hash, split_hashes = combine_split_hashes(own_hash, provided)
    if isinstance(tokenizer, Tokenizer):
        trained, note = tokenizer, ""
    else:
        trained, note = _train_on_text(source, tokenizer, data_hash, progress)
    folder = home_folder("stores") / _cache_key(data_hash, trained.hash, source.ranges())

    def write() -> None:
        remove_atomically(folder)  # a damaged one
        advance = progress_counter(progress, "tokenising", sum(map(total_size, source.splits.values())))
        write_store(
            folder,
            {split: _encode_spans(spans, trained, advance) for split, spans in source.splits.items()},
            vocabulary=trained.vocabulary,
            overlaps=describe_shared_lines(source.splits) if source.provided else (),
        )

    store = cached(folder, lambda: TokenStore(folder), write)
    return Splits(
        kind="text",
        items=store.splits,
        tokenizer=trained,
        hash=data_hash,
        description=source.description,
        model_sizes={"vocabulary": trained.vocabulary},
        notes=source.notes,
        split_hashes=split_hashes,
        overlaps=store.overlaps,
        tokenizer_note=note,
    )


def _train_on_text(
    source: TextFiles, spec: TokenizerSpec, data_hash: str, progress: Progress | None
) -> tuple[Tokenizer, str]:
    """Return the tokenizer of a spec, trained on the training split, and a note on the sample used.

    The tokenizer is cached under `data_hash`, which identifies the text.
    """
    spans = source.splits["train"]
    total = total_size(spans)
    is_sample = spec.kind == "byte-pairs" and total > SAMPLE

    def train() -> Tokenizer:
        if is_sample and any(is_streamed(span.path) for span in spans):
            pieces, size = sample_stream(spans, SAMPLE), SAMPLE
        else:
            sample = sample_text(spans, SAMPLE) if is_sample else spans
            pieces, size = (piece for span in sample for piece in read_pieces(span, spec.kind)), total_size(sample)
        texts = (piece for piece in pieces if piece != DOCUMENT_END)
        advance = progress_counter(progress, "training the tokenizer", size)
        return train_tokenizer(spec, _report_progress(texts, advance))

    tokenizer = _cached_tokenizer(_cache_key(data_hash, spec.to_dict(), source.ranges()), train)
    note = (
        f"the byte-pairs were trained on {SAMPLE / 1e6:.1f} of the {total / 1e6:.1f} MB of training text, in "
        f"{SAMPLE_WINDOWS} windows spread over it"
    )
    return tokenizer, note if is_sample else ""


def _cached_tokenizer(key: str, train: Callable[[], Tokenizer]) -> Tokenizer:
    """Return the tokenizer cached under a key; if there is none, cache and return the one that `train` returns."""
    path = home_folder("tokenizers") / f"{key}.json"
    return Tokenizer(cached_json(path, lambda: {"tokenizer": train().json})["tokenizer"], str(path))


def _cache_key(*parts: object) -> str:
    """Return a hash of JSON-ready values that a cached file depends on, as its name."""
    return text_hash(json.dumps([STORE_FORMAT, *parts]))[:32]


def _report_progress(pieces: Iterable[str], advance: Advance) -> Iterator[str]:
    """Yield the pieces unchanged; after each was used, call `advance` with its number of bytes."""
    for piece in pieces:
        yield piece
        advance(1 if piece == DOCUMENT_END else utf8_size(piece))


# Encoding of running text

CONTINUES_DOCUMENT, FIRST_DOCUMENT, NEXT_DOCUMENT = range(3)
Piece = tuple[str, int]  # a text, and whether it continues a document, begins the first one, or a later one


def _encode_spans(spans: Sequence[TextSpan], tokenizer: Tokenizer, advance: Advance) -> Iterator[EncodedText]:
    """Yield the encoded batches of spans of text in order; long texts are encoded in several processes."""
    pieces = (_report_progress(read_pieces(span, tokenizer.kind), advance) for span in spans)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    is_long = total_size(spans) >= PARALLEL_BYTES and tokenizer.kind in SLOW_KINDS
    if not is_long or cores == 1:
        return (encode_pieces(tokenizer, batch) for batch in batch_pieces(pieces))
    from lemma.data.encoding import encode_batches  # which needs this module

    return encode_batches(tokenizer, batch_pieces(pieces), cores)


def utf8_size(text: str) -> int:
    """Return the number of bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def encode_pieces(tokenizer: Tokenizer, pieces: Sequence[Piece]) -> EncodedText:
    """Encode a batch of pieces, each a text and its position in its document, as one array of ids.

    Between two documents is one `<eos>`, if the tokenizer has it. Before each document come the special tokens that a
    pretrained model expects at the beginning of a text.
    """
    ids: list[np.ndarray] = []
    size = dropped = 0
    for text, position in pieces:
        if position == NEXT_DOCUMENT and tokenizer.eos is not None and tokenizer.eos not in tokenizer.prefix:
            ids.append(np.array([tokenizer.eos]))
        if position != CONTINUES_DOCUMENT and tokenizer.prefix and not tokenizer.suffix:  # encoders add them per window
            ids.append(np.array(tokenizer.prefix))
        piece_ids, piece_dropped = tokenizer.encode_lossy(text, continued=position == CONTINUES_DOCUMENT)
        ids.append(piece_ids)
        size += utf8_size(tokenizer.decode(piece_ids) if piece_dropped else text)
        dropped += piece_dropped
    return EncodedText(ids[0] if len(ids) == 1 else np.concatenate(ids), size, dropped)


def batch_pieces(documents: Iterable[Iterable[str]]) -> Iterator[list[Piece]]:
    """Group the pieces of documents into batches of about `BATCH` characters.

    Each piece gets its position in its document; after a piece DOCUMENT_END, which is left out, another one begins.
    """
    batch: list[Piece] = []
    size, position = 0, FIRST_DOCUMENT
    for document in documents:
        for text in document:
            if text == DOCUMENT_END:
                position = position if position == FIRST_DOCUMENT else NEXT_DOCUMENT
                continue
            batch.append((text, position))
            size, position = size + len(text), CONTINUES_DOCUMENT
            if size >= BATCH:
                yield batch
                batch, size = [], 0
        position = position if position == FIRST_DOCUMENT else NEXT_DOCUMENT
    if batch:
        yield batch


# Separate examples as rows of tokens


def load_or_train_tokenizer(spec: TokenizerSpec, texts: Sequence[str], progress: Progress | None = None) -> Tokenizer:
    """Return the tokenizer of a spec trained on texts, from the cache if it was trained on the same texts before.

    Byte-pairs are trained on the first texts only, up to a limit; the texts come in a shuffled order.
    """
    digest = hashlib.sha256()
    for text in texts:
        content = text.encode()
        digest.update(len(content).to_bytes(8))
        digest.update(content)

    def train() -> Tokenizer:
        sample = texts
        if spec.kind == "byte-pairs":
            offsets = accumulate(map(utf8_size, texts), initial=0)
            sample = texts[: sum(offset < SAMPLE for offset in offsets)]
        advance = progress_counter(progress, "training the tokenizer", sum(map(utf8_size, sample)))
        return train_tokenizer(spec, _report_progress(sample, advance))

    return _cached_tokenizer(_cache_key("texts", spec.to_dict(), digest.hexdigest()), train)


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str], advance: Advance) -> tuple[TokenRows, int]:
    """Encode each text as a row of tokens; return the rows and how many characters the tokenizer could not express.

    `advance` is called after each block with its number of bytes.
    """
    tokens, bounds = [np.zeros(0, dtype=np.int32)], [np.zeros(1, dtype=np.int64)]
    dropped = start = size = 0
    for stop, text in enumerate(texts, start=1):  # some at a time, of about `BLOCK` characters together
        size += len(text)
        if size < BLOCK and stop < len(texts):
            continue
        block = texts[start:stop]
        ids, block_bounds = tokenizer.encode_batch(block)
        is_valid = ids >= 0
        tokens.append(ids[is_valid].astype(np.int32))
        bounds.append(bounds[-1][-1] + np.cumsum(np.concatenate([[0], is_valid]))[block_bounds[1:]])
        dropped += len(ids) - len(tokens[-1])
        advance(sum(map(utf8_size, block)))
        start, size = stop, 0
    return TokenRows(np.concatenate(tokens), np.concatenate(bounds)), dropped


def encode_splits(
    texts: Mapping[str, Sequence[str]],
    tokenizer: Tokenizer,
    length: int,
    special_tokens: bool,
    noun: str,
    progress: Progress | None = None,
) -> tuple[dict[str, TokenRows], list[str]]:
    """Encode the texts of each split in rows of at most `length` tokens; return the rows by split, and notes.

    `special_tokens` puts texts between `<start>` and `<end>`, within `length`; `noun` is what the notes call the texts.
    """
    num_special = sum(map(len, tokenizer.boundary_tokens(special_tokens)))
    max_tokens = length - num_special
    if max_tokens < 1:
        special = f" and its {num_special} special tokens" if num_special else ""
        raise DataError(f"{length} tokens are too few for a text{special}.")
    short = {split: [truncate_text(text, tokenizer.kind, max_tokens) for text in texts[split]] for split in texts}
    advance = progress_counter(progress, "tokenising", sum(map(utf8_size, chain.from_iterable(short.values()))))
    encoded: dict[str, TokenRows] = {}
    total = too_long = dropped = with_unknown = all_unknown = 0
    for split, split_texts in short.items():
        rows, split_dropped = encode_texts(tokenizer, split_texts, advance)
        has_unknown, is_unknown = find_unknown(rows, tokenizer)
        total += len(split_texts)
        too_long += int((rows.lengths > max_tokens).sum())
        dropped += split_dropped
        with_unknown += int(has_unknown.sum())
        all_unknown += int(is_unknown.sum())
        encoded[split] = fit_rows(rows, tokenizer, length, special_tokens)
    notes = {
        f"{too_long:,} of {total:,} {noun} are longer than {length:,} tokens: their start was kept": too_long,
        f"{dropped:,} characters that the tokenizer does not know were left out": dropped,
        f"{with_unknown:,} of {total:,} {noun} hold words that the tokenizer does not know": with_unknown,
        f"{all_unknown:,} {noun} hold nothing that the tokenizer knows": all_unknown,
    }
    return encoded, [note for note, count in notes.items() if count]


def fit_rows(rows: TokenRows, tokenizer: Tokenizer, length: int, special_tokens: bool) -> TokenRows:
    """Add special tokens to rows of tokens, cut to `length` tokens in all; a row that stays empty gets one token."""
    prefix, suffix = tokenizer.boundary_tokens(special_tokens)
    rows = rows.truncate(max(1, length - len(prefix) - len(suffix)))
    return rows.add_affixes(prefix, suffix) if prefix or suffix else rows.fill_empty(tokenizer.eos or 0)


def find_unknown(rows: TokenRows, tokenizer: Tokenizer) -> tuple[Bool[np.ndarray, " rows"], Bool[np.ndarray, " rows"]]:
    """Return which rows hold an unknown token, and which hold nothing but unknown tokens and blanks."""
    is_unknown = rows.tokens == (-1 if tokenizer.unk is None else tokenizer.unk)
    is_blank = np.isin(rows.tokens, tokenizer.encode_lossy(BLANKS)[0])

    def count_in_rows(mask: np.ndarray) -> np.ndarray:
        return np.diff(np.concatenate([[0], np.cumsum(mask)])[rows.bounds])

    return count_in_rows(is_unknown) > 0, count_in_rows(~is_unknown & ~is_blank) == 0


def truncate_text(text: str, kind: str, length: int) -> str:
    """Return the beginning of a text, cut at white space, that holds at least `length` + 1 tokens if the text does.

    `kind` is that of the tokenizer.

    >>> truncate_text("it was the best of times, it was the worst of times", "words", 3)
    'it was the best'
    """
    if kind == "characters" or len(text) <= 2 * length:
        return text
    match = re.match(rf"(?:\s*+\S++){{{length + 1}}}", text)
    return match[0] if match else text
