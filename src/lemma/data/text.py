"""Text files: decoded as a stream, cut into pieces, split into training and validation.

A shard may be compressed (.gz, .zst) and hold records (.jsonl, .parquet). It is read as one stream of text, with an end
of document between two records, and never unpacked to the disk.
"""

import codecs
import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, repeat
from math import ceil
from pathlib import Path
from typing import Any, BinaryIO

from lemma.data.splits import describe_overlap
from lemma.errors import DataError
from lemma.files import cached_json, file_hash, home_folder, text_hash
from lemma.optional import import_optional
from lemma.spec.base import exists

BLOCK = 1 << 18  # bytes read at a time; also the longest text that waits for a position where it can be cut
MAX_CUT_DISTANCE = 1 << 16  # bytes within which the end of a line is looked for
SAMPLE_WINDOWS = 512
ZSTD_READ = 1 << 12  # compressed bytes decompressed at once: thirty thousand times as many may come of them
TOO_LONG = "a document of more than {:,} {}. Split it into several records, or give it as a text file."
DOCUMENT_LIMIT = 32 << 20  # bytes of a line of records, characters of a cell; parsed, a line may take 30 times as much
ROW_GROUP_LEAST, ROW_GROUP_RATIO = 64 << 20, 500  # a row group whose text is larger than both is refused: bytes, and
# the multiple of its compressed size
ROWS_AT_ONCE, BATCH_BYTES = (16, 1024), 256 << 20  # of a table: fewer rows if a dictionary may give all a long cell
SHARDS = "'lemma-lm[shards]'"  # what pip installs to read packed shards
COMPRESSED_SUFFIXES = {".gz", ".zst"}
RECORD_SUFFIXES = {".jsonl", ".ndjson", ".parquet"}
TEXT_COLUMNS = ("text", "content")  # where the text of a record is looked for
DOCUMENT_END = "\udcff"  # between two records: the byte 0xFF, which no UTF-8 text holds


@dataclass(frozen=True)
class TextSpan:
    """The bytes from `start` up to `stop` of a UTF-8 file; both are between two characters."""

    path: Path
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.stop - self.start


def total_size(spans: Iterable[TextSpan]) -> int:
    """Return the number of bytes of all spans together."""
    return sum(span.size for span in spans)


# Opening and decoding


def open_text(path: Path) -> TextSpan:
    """Check that a file is text, and return the span of all of it, without a byte order mark."""
    if not exists(path):
        raise DataError(f"{path}: there is no such file. Check the name and the folder it is looked for in.")
    if path.is_dir():
        raise DataError(f"{path}: this is a folder, not a text file. Name the files in it, as in {path / '*.txt'}.")
    if not path.is_file():
        raise DataError(f"{path}: not a regular file, and it must be read twice. Save the text in a file first.")
    start = len(codecs.BOM_UTF8) if next(_read_blocks(TextSpan(path, 0, 3))) == codecs.BOM_UTF8 else 0
    if is_streamed(path):
        return TextSpan(path, start, _measure_stream(path))
    span = TextSpan(path, start, path.stat().st_size)
    if not any(text.strip() for text in decode_span(span)):
        raise DataError(f"{path}: the file is empty, or nothing but white space. Give a file that holds text.")
    return span


def is_streamed(path: Path) -> bool:
    """Return whether a file can only be read from its start: it is compressed, or holds records (JSONL, Parquet)."""
    return any(_parse_suffixes(path))


def _parse_suffixes(path: Path) -> tuple[str, str]:
    """Return the suffixes of a file name for compression and record format, such as (".gz", ".jsonl"); "" if none."""
    inner, last = ["", "", *map(str.lower, path.suffixes)][-2:]
    compression = last if last in COMPRESSED_SUFFIXES else ""
    records = inner if compression else last
    return compression, records if records in RECORD_SUFFIXES else ""


def _measure_stream(path: Path) -> int:
    """Return the number of UTF-8 bytes of the text in a compressed or record file, cached by the file's hash."""

    def measure() -> dict[str, int]:
        size, is_blank = 0, True
        for text in decode_span(TextSpan(path, 0, 1 << 62)):
            is_blank = is_blank and not text.strip(f" \t\r\n{DOCUMENT_END}")
            size += len(text.encode("utf-8", "surrogateescape"))
        if is_blank:
            raise DataError(f"{path}: there is no text in it, or nothing but white space. Give a file that holds text.")
        return {"bytes": size}

    key = text_hash(f"{path.suffixes[-2:]} {file_hash(path)}")[:32]
    return cached_json(home_folder("texts") / f"{key}.json", measure)["bytes"]


def decode_span(span: TextSpan) -> Iterator[str]:
    """Yield the text of a span block by block; bytes that are not UTF-8 are an error with their exact offset."""
    _, records = _parse_suffixes(span.path)
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape" if records else "strict")
    position = span.start
    for block in _read_blocks(span):
        pending = len(decoder.getstate()[0])  # bytes of a character that the last block began
        try:
            yield decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            byte, offset = error.object[error.start], position - pending + error.start
            is_utf_16 = offset == 0 and error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
            message = f"{span.path}: byte {offset} (0x{byte:02x}) is not UTF-8"
            if not is_utf_16 and b"\0" in error.object:
                raise DataError(f"{message}, and there are zero bytes: this is not a text file.") from None
            command = _conversion_command(span.path, "utf-16" if is_utf_16 else "windows-1252")
            raise DataError(f"{message} ({error.reason}). Convert the file first, for instance: {command}") from None
        position += len(block)


def _conversion_command(path: Path, encoding: str) -> str:
    """Return a shell command that converts a file from `encoding` to UTF-8, for an error message."""
    compression, records = _parse_suffixes(path)
    unpack = {".gz": f"gzip -dc {path} | ", ".zst": f"zstd -dc {path} | "}.get(compression, "")
    return f"{unpack}iconv -f {encoding} -t utf-8{'' if unpack else f' {path}'} > text{records or '.txt'}"


def read_pieces(span: TextSpan, kind: str) -> Iterator[str]:
    """Yield the text of a span in pieces of at most about two blocks, cut where tokenizers of this kind may cut.

    Text without such a position within a block (a line of a million letters) is cut between two characters. The end of
    a document is a piece of its own.
    """
    pending = ""
    for text in decode_span(span):
        *ended, text = text.split(DOCUMENT_END)
        for document in ended:
            if pending + document:
                yield pending + document
            yield DOCUMENT_END
            pending = ""
        pending += text
        cut = find_last_cut(pending, kind) or (len(pending) if len(pending) >= BLOCK else 0)
        if cut:
            yield pending[:cut]
            pending = pending[cut:]
    if pending:
        yield pending


# GPT-2's rule joins a space to the word after it and treats runs of white space together, but it never looks back:
# before a single space or newline between two other characters it starts again.
_BYTE_PAIR_CUT = re.compile(r"(?<=\S)[\n ](?=\S)")
# Pretrained models have other rules, some of which join line ends to the signs before them; all cut between words.
_WORD_CUT = re.compile(r"(?<=[^\W\d_]) (?=[^\W\d_])")


def find_last_cut(text: str, kind: str) -> int:
    """Return the last offset where cutting a text does not change the tokens of a tokenizer of this kind; 0 if none.

    >>> [find_last_cut("to be or not", kind) for kind in ("characters", "words", "byte-pairs")]
    [12, 9, 8]
    """
    if kind == "characters":
        return len(text)
    if kind == "words":
        return max(text.rfind("\n"), text.rfind(" ")) + 1
    pattern = _WORD_CUT if kind == "pretrained" else _BYTE_PAIR_CUT
    for start in (max(len(text) - 4096, 0), 0):  # nearly always there is a match near the end
        matches = [match.start() for match in pattern.finditer(text, start)]
        if matches:
            return matches[-1]
    return 0


def next_character_offset(path: Path, offset: int) -> int:
    """Return the byte offset of the first character that starts at or after `offset` in a UTF-8 file."""
    following = b"".join(_read_blocks(TextSpan(path, offset, offset + 3)))
    continuation = next((i for i, byte in enumerate(following) if byte & 0xC0 != 0x80), len(following))
    return offset + continuation


# Streams of bytes


def _read_blocks(span: TextSpan) -> Iterator[bytes]:
    """Yield the bytes of a span in blocks of at most `BLOCK` bytes, and at the end an empty block."""
    remaining, to_skip = span.size, span.start
    with _open_stream(span.path) as file:
        if not is_streamed(span.path):
            file.seek(to_skip)
            to_skip = 0
        try:
            while to_skip and (skipped := file.read(min(to_skip, BLOCK))):
                to_skip -= len(skipped)
            while remaining and (block := file.read(min(remaining, BLOCK))):
                yield block
                remaining -= len(block)
        except (EOFError, OSError, zlib.error) as error:
            raise DataError(f"{span.path}: damaged, it cannot be read to its end ({error}). Get it again.") from None
    yield b""


def _open_stream(path: Path) -> BinaryIO:
    """Open a file as a stream of its text, decompressed; DOCUMENT_END is between the texts of a record file."""
    compression, records = _parse_suffixes(path)
    try:
        file: Any = path.open("rb") if compression != ".gz" else gzip.GzipFile(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Check its permissions.") from None
    if compression == ".zst":
        file = io.BufferedReader(PartsStream(file, _decompress_zstd(path, file)))
    if not records:
        return file
    texts = _parquet_texts(path, file) if records == ".parquet" else _json_texts(path, file)
    ends = chain(("",), repeat(DOCUMENT_END))  # the end of a document is between two records
    parts = ((end + text).encode("utf-8", "surrogateescape") for end, text in zip(ends, texts, strict=False))
    return io.BufferedReader(PartsStream(file, parts))  # pyright: ignore[reportReturnType]


class PartsStream(io.RawIOBase):
    """Readable stream of the bytes that an iterator computes from a file, part by part."""

    def __init__(self, file: BinaryIO, parts: Iterator[bytes]) -> None:
        """Serve the concatenated `parts`, which are computed from `file`; it is closed with this stream."""
        self.file, self.parts, self.pending = file, parts, memoryview(b"")

    def readable(self) -> bool:
        """Return True: the stream can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the next bytes and return how many; 0 at the end."""
        while not self.pending:
            part = next(self.parts, None)
            if part is None:
                return 0
            self.pending = memoryview(part)
        size = min(len(buffer), len(self.pending))
        buffer[:size], self.pending = self.pending[:size], self.pending[size:]
        return size

    def close(self) -> None:
        """Close the stream and the file that it is computed from."""
        self.file.close()
        super().close()


def _decompress_zstd(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """Yield the decompressed bytes of a .zst file; a file that was cut off is an error."""
    zstandard = import_optional("zstandard", "zstandard", f"{path}: reading it", SHARDS)
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)  # as far as `zstd --long=31` looks back
    frame, block = None, b""
    try:
        while block := block or file.read(ZSTD_READ):
            frame = frame or decompressor.decompressobj()
            yield frame.decompress(block)
            block = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
    except zstandard.ZstdError as error:
        raise DataError(f"{path}: damaged, it cannot be unpacked ({error}). Get it again.") from None
    if frame is not None:
        raise DataError(f"{path}: damaged, it ends in the middle of a Zstandard frame. Get it again.")


def _json_texts(path: Path, file: BinaryIO) -> Iterator[str]:
    """Yield the text of each line of a JSONL file: a string, or the text field of an object."""
    for number in count(1):
        line = file.readline(DOCUMENT_LIMIT + 1)
        if not line:
            return
        if len(line) > DOCUMENT_LIMIT:
            raise DataError(f"{path}, line {number}: {TOO_LONG.format(DOCUMENT_LIMIT, 'bytes')}")
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            is_utf_16 = line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
            command = _conversion_command(path, "utf-16" if is_utf_16 else "windows-1252")
            raise DataError(
                f"{path}, line {number}: byte {error.start} (0x{line[error.start]:02x}) of the line is not UTF-8. "
                f"Convert the file first, for instance: {command}"
            ) from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: not valid JSON ({error}). Write one object per line.") from None
        if isinstance(value, dict):
            name = next((name for name in TEXT_COLUMNS if name in value), None)
            if name and value[name] is None:  # a record without a text, as in a table
                continue
            value = name and value[name]
        if not isinstance(value, str):
            raise DataError(f'{path}, line {number}: an object such as {{"text": "…"}} is expected, got {line[:40]!r}.')
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise DataError(f"{path}, line {number}: half a surrogate pair is not a character. Write it as UTF-8.")
        yield value


def _parquet_texts(path: Path, file: BinaryIO) -> Iterator[str]:
    """Yield the cells of a Parquet file's text column, a batch of rows at a time."""
    parquet = import_optional("pyarrow.parquet", "pyarrow", f"{path}: reading it", SHARDS)
    try:
        table = parquet.ParquetFile(file)
        names = table.schema_arrow.names
        column = next((name for name in TEXT_COLUMNS if name in names), None)
        if column is None:
            expected = " or ".join(TEXT_COLUMNS)
            raise DataError(f"{path}: there is no column called {expected}; it has {', '.join(names)}. Rename one.")
        largest = max([1, *_row_group_sizes(path, table.metadata, column)])
        least, most = ROWS_AT_ONCE
        for rows in table.iter_batches(min(most, max(least, BATCH_BYTES // largest)), columns=[column]):
            for cell in rows.column(0):
                text = cell.as_py()
                if text is None:
                    continue
                if not isinstance(text, str):
                    raise DataError(f"{path}: the column {column} holds {type(text).__name__}, where text is expected.")
                if len(text) > DOCUMENT_LIMIT:
                    raise DataError(f"{path}: {TOO_LONG.format(DOCUMENT_LIMIT, 'characters')}")
                yield text
    except DataError:
        raise
    except Exception as error:  # pyarrow raises errors of many kinds for a damaged file
        raise DataError(f"{path}: not a readable Parquet file ({error}).") from None


def _row_group_sizes(path: Path, metadata: Any, column: str) -> Iterator[int]:
    """Yield the uncompressed size in bytes of a column in each row group, by the Parquet file's metadata.

    A size that is far above the compressed one, as in a decompression bomb, is an error.
    """
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = [group.column(index) for index in range(group.num_columns)]
        chunks = [chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] == column]
        size = sum(chunk.total_uncompressed_size for chunk in chunks)
        compressed = sum(chunk.total_compressed_size for chunk in chunks)
        if size > max(ROW_GROUP_LEAST, ROW_GROUP_RATIO * compressed):
            raise DataError(
                f"{path}: row group {number + 1} packs {size:,} bytes into {compressed:,}, more than text can be "
                "packed. Write the table again in smaller row groups."
            )
        yield size


# Splits and samples


def hold_out(documents: Sequence[TextSpan], fraction: float) -> dict[str, list[TextSpan]]:
    """Split the bytes of documents into `train`, their beginning, and `validation`, the last `fraction`.

    The cut is at the end of a line if one is near, else at a space, else between two characters. It is never moved so
    far that a split would lose half its length.
    """
    total = total_size(documents)
    offset = min(max(round(total * (1 - fraction)), 1), total - 1)
    max_distance = min(MAX_CUT_DISTANCE, offset // 2, (total - offset) // 2)
    splits: dict[str, list[TextSpan]] = {"train": [], "validation": []}
    for document in documents:
        cut = _find_cut(document, offset, max_distance)
        splits["train"].append(TextSpan(document.path, document.start, cut))
        splits["validation"].append(TextSpan(document.path, cut, document.stop))
        offset -= document.size
    for name, spans in splits.items():
        if not total_size(spans):
            raise DataError(f"a text of {total} bytes leaves nothing for the split '{name}'. Give more text.")
    return {name: [span for span in spans if span.size] for name, spans in splits.items()}


def _find_cut(document: TextSpan, offset: int, max_distance: int) -> int:
    """Return the byte offset at which a document is cut into training and validation text.

    `offset` is where to cut, in bytes from the document's start: at its start if negative, at its end if past it. The
    end of a record, a line or a word is preferred if one is at most `max_distance` bytes away.
    """
    if offset <= 0 or offset >= document.size:
        return document.start if offset <= 0 else document.stop
    target = document.start + offset
    first = max(target - max_distance, document.start)
    window = b"".join(_read_blocks(TextSpan(document.path, first, min(target + max_distance, document.stop))))
    for separator in (b"\xff", b"\n", b" "):
        matches = (window.rfind(separator, 0, target - first), window.find(separator, target - first))
        if cuts := [first + match + 1 for match in matches if match >= 0]:
            return min(cuts, key=lambda cut: abs(cut - target))
    return next_character_offset(document.path, target)


def sample_text(spans: Sequence[TextSpan], limit: int) -> list[TextSpan]:
    """Return evenly spaced parts of spans, of about `limit` bytes in all; the spans themselves if they have less."""
    total, offset = total_size(spans), 0
    if total <= limit:
        return list(spans)
    windows: list[TextSpan] = []
    for span in spans:
        first, last = (ceil(bound * SAMPLE_WINDOWS / total) for bound in (offset, offset + span.size))
        for number in range(first, last):
            start = span.start + total * number // SAMPLE_WINDOWS - offset
            bounds = (start, min(start + limit // SAMPLE_WINDOWS, span.stop))
            windows.append(TextSpan(span.path, *(next_character_offset(span.path, bound) for bound in bounds)))
        offset += span.size
    return windows


def sample_stream(spans: Sequence[TextSpan], limit: int) -> Iterator[str]:
    """Yield evenly spaced parts of the spans' text, of about `limit` bytes in all, for files that cannot seek."""
    total, offset = total_size(spans), 0
    for span in spans:
        for text in decode_span(span):
            block = text.encode("utf-8", "surrogateescape")
            number = max(0, offset * SAMPLE_WINDOWS // total - 1)  # the window before may reach into this block
            while (start := total * number // SAMPLE_WINDOWS - offset) < len(block):
                window = block[max(0, start) : max(0, start + limit // SAMPLE_WINDOWS)]
                if window:
                    yield window.decode("utf-8", "ignore")  # without half a character at its ends
                number += 1
            offset += len(block)


def describe_shared_lines(splits: Mapping[str, Sequence[TextSpan]]) -> list[str]:
    """Return sentences on how many lines of validation and test, without blank ones, are in an earlier split.

    The training text is read once, and nothing of it is kept in memory.
    """
    counts = {split: Counter(_line_hashes(splits.get(split, ()))) for split in ("validation", "test")}
    held_out = counts["validation"].keys() | counts["test"].keys()
    train = {line for line in _line_hashes(splits.get("train", ())) if line in held_out}
    seen = {"train": train, "validation": set(counts["validation"])}
    notes: list[str] = []
    for earlier, later in (("train", "validation"), ("train", "test"), ("validation", "test")):
        shared = sum(count for line, count in counts[later].items() if line in seen[earlier])
        notes += describe_overlap(shared, counts[later].total(), "lines", later, earlier)
    return notes


def _line_hashes(spans: Iterable[TextSpan]) -> Iterator[int]:
    """Yield a hash of each line of the spans that is not blank."""
    for span in spans:
        pending = ""
        for text in chain(decode_span(span), "\n"):
            *lines, pending = (pending + text.replace(DOCUMENT_END, "\n")).split("\n")
            while len(pending) >= BLOCK:  # an endless line is compared in parts
                lines, pending = [*lines, pending[:BLOCK]], pending[BLOCK:]
            parts = (line[start : start + BLOCK].strip() for line in lines for start in range(0, len(line), BLOCK))
            yield from (hash(part) for part in parts if part)
