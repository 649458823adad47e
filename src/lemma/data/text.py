"""Text files: read as UTF-8 in a stream, split into training, validation and test.

A shard may be packed (.gz, .zst) and hold records (.jsonl, .parquet). It is read as one stream of text, with an end
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
from typing import Any, BinaryIO, Literal

from lemma.data.splits import overlap_note
from lemma.errors import DataError, RunError
from lemma.files import file_hash, home_folder, read_json, text_hash, write_atomically
from lemma.spec.base import exists

BLOCK = 1 << 18
"""Bytes read at a time; also the longest text that is kept waiting for a place where it can be cut."""
MAX_CUT_DISTANCE = 1 << 16
"""A line's end is looked for at most this many bytes away, and never so far that a split would lose half its length."""
SAMPLE_WINDOWS = 512
"""Windows of a sample of a long text."""
ZSTD_READ = 1 << 12
"""Packed bytes that are unpacked at once: thirty thousand times as many may come of them."""
DOCUMENT_LIMIT = 32 << 20
"""Bytes of a line of records, characters of a cell of a table; parsed, a line may take thirty times as much memory."""
ROW_GROUP_LEAST, ROW_GROUP_RATIO = 64 << 20, 500
"""A row group is refused whose text is larger than this, in bytes, and than this multiple of its packed size."""
ROWS_AT_ONCE, BATCH_BYTES = (16, 1024), 256 << 20
"""Rows of a table that are read at once: fewer where a dictionary may give all of them a long cell."""
COMPRESSED_SUFFIXES = {".gz", ".zst"}
RECORD_SUFFIXES = {".jsonl", ".ndjson", ".parquet"}
TEXT_COLUMNS = ("text", "content")
"""Where the text of a record is looked for."""
DOCUMENT_END = "\udcff"
"""Stands between two records: the byte 0xFF, which no UTF-8 text holds."""


@dataclass(frozen=True)
class TextSpan:
    """The bytes from `start` up to `stop` of a UTF-8 file; both lie between two characters."""

    path: Path
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return self.stop - self.start


def total_size(spans: Iterable[TextSpan]) -> int:
    """The bytes of all these spans together."""
    return sum(span.size for span in spans)


def open_text(path: Path) -> TextSpan:
    """Return the whole text of a file, without a byte order mark; refuse what is not a text file."""
    if not exists(path):
        raise DataError(f"{path}: there is no such file. Check the name and the folder it is looked for in.")
    if path.is_dir():
        raise DataError(f"{path}: this is a folder, not a text file. Name the files in it, as in {path / '*.txt'}.")
    if not path.is_file():
        raise DataError(f"{path}: not a regular file, and it must be read twice. Save the text in a file first.")
    start = len(codecs.BOM_UTF8) if next(_blocks(TextSpan(path, 0, 3))) == codecs.BOM_UTF8 else 0
    if is_streamed(path):
        return TextSpan(path, start, _measured(path))
    span = TextSpan(path, start, path.stat().st_size)
    if not any(text.strip() for text in decode_span(span)):
        raise DataError(f"{path}: the file is empty, or nothing but white space. Give a file that holds text.")
    return span


def is_streamed(path: Path) -> bool:
    """Whether a file can only be read from its beginning on: it is packed, or holds records."""
    return any(_shape(path))


def _shape(path: Path) -> tuple[str, str]:
    """How a file is packed and what records it holds, by its last suffixes; empty if it is not, or holds none."""
    inner, last = ["", "", *map(str.lower, path.suffixes)][-2:]
    kind = inner if last in COMPRESSED_SUFFIXES else last
    return last if last in COMPRESSED_SUFFIXES else "", kind if kind in RECORD_SUFFIXES else ""


def _measured(path: Path) -> int:
    """The bytes of the text in a shard: read through once, then remembered by the shard's hash."""
    known = home_folder("texts") / f"{text_hash(f'{path.suffixes[-2:]} {file_hash(path)}')[:32]}.json"
    try:
        return int(read_json(known)["bytes"])
    except (RunError, LookupError, TypeError, ValueError):  # not there yet, or damaged
        pass
    size, blank = 0, True
    for text in decode_span(TextSpan(path, 0, 1 << 62)):
        blank = blank and not text.strip(f" \t\r\n{DOCUMENT_END}")
        size += len(text.encode("utf-8", "surrogateescape"))
    if blank:
        raise DataError(f"{path}: there is no text in it, or nothing but white space. Give a file that holds text.")
    write_atomically(known, json.dumps({"bytes": size}))
    return size


def decode_span(span: TextSpan) -> Iterator[str]:
    """Decode a span block by block; bytes that are not UTF-8 are an error that gives their exact place."""
    _, records = _shape(span.path)
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape" if records else "strict")
    position = span.start
    for block in _blocks(span):
        begun = len(decoder.getstate()[0])  # bytes of a character that the last block began
        try:
            yield decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            byte, offset = error.object[error.start], position - begun + error.start
            utf_16 = offset == 0 and error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
            what = f"{span.path}: byte {offset} (0x{byte:02x}) is not UTF-8"
            if not utf_16 and b"\0" in error.object:
                raise DataError(f"{what}, and there are zero bytes: this is not a text file.") from None
            raise DataError(
                f"{what} ({error.reason}). Convert the file first, for instance: "
                f"{_converted(span.path, 'utf-16' if utf_16 else 'windows-1252')}"
            ) from None
        position += len(block)


def _converted(path: Path, encoding: str) -> str:
    """The command that writes a file's text as UTF-8 to one that Lemma reads."""
    packing, records = _shape(path)
    unpacked = {".gz": f"gzip -dc {path} | ", ".zst": f"zstd -dc {path} | "}.get(packing, "")
    return f"{unpacked}iconv -f {encoding} -t utf-8{'' if unpacked else f' {path}'} > text{records or '.txt'}"


def read_pieces(span: TextSpan, kind: str) -> Iterator[str]:
    """Read a span in pieces of at most about two blocks, cut where a tokenizer of this kind allows it.

    Text that offers no such place within a block (a line of a million letters) is cut between two characters. The end
    of a document is a piece of its own.
    """
    waiting = ""
    for text in decode_span(span):
        *ended, text = text.split(DOCUMENT_END)
        for document in ended:
            if waiting + document:
                yield waiting + document
            yield DOCUMENT_END
            waiting = ""
        waiting += text
        place = find_last_cut(waiting, kind) or (len(waiting) if len(waiting) >= BLOCK else 0)
        if place:
            yield waiting[:place]
            waiting = waiting[place:]
    if waiting:
        yield waiting


# GPT-2's rule joins a space to the word after it and treats runs of white space together, but it never looks back:
# before a single space or newline between two other characters it starts again.
_BYTE_PAIR_CUT = re.compile(r"(?<=\S)[\n ](?=\S)")
# Pretrained models have other rules, some of which join line ends to the signs before them; all cut between words.
_WORD_CUT = re.compile(r"(?<=[^\W\d_]) (?=[^\W\d_])")


def find_last_cut(text: str, kind: str) -> int:
    """The last place where cutting does not change the tokens of this kind; 0 without one.

    >>> [last_cut("to be or not", kind) for kind in ("characters", "words", "byte-pairs")]
    [12, 9, 8]
    """
    if kind == "characters":
        return len(text)
    if kind == "words":
        return max(text.rfind("\n"), text.rfind(" ")) + 1
    cut = _WORD_CUT if kind == "pretrained" else _BYTE_PAIR_CUT
    for start in (max(len(text) - 4096, 0), 0):  # nearly always there is a place near the end
        places = [match.start() for match in cut.finditer(text, start)]
        if places:
            return places[-1]
    return 0


def next_character_offset(path: Path, offset: int) -> int:
    """The first place at or after `offset` bytes where a character starts."""
    following = b"".join(_blocks(TextSpan(path, offset, offset + 3)))
    continuing = next((place for place, byte in enumerate(following) if byte & 0xC0 != 0x80), len(following))
    return offset + continuing


def _open(path: Path) -> BinaryIO:
    """The bytes of a file's text, unpacked; of records the bytes of their texts."""
    packing, records = _shape(path)
    try:
        file: Any = path.open("rb") if packing != ".gz" else gzip.GzipFile(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Check its permissions.") from None
    if packing == ".zst":
        file = io.BufferedReader(PartsStream(file, _unpacked(_optional("zstandard", path), path, file)))
    if not records:
        return file
    texts = _parquet_texts(path, file) if records == ".parquet" else _json_texts(path, file)
    ends = chain(("",), repeat(DOCUMENT_END))  # the end of a document is between two records
    parts = ((end + text).encode("utf-8", "surrogateescape") for end, text in zip(ends, texts, strict=False))
    return io.BufferedReader(PartsStream(file, parts))  # pyright: ignore[reportReturnType]


class PartsStream(io.RawIOBase):
    """Bytes that are made of a file's, part by part, as one stream."""

    def __init__(self, file: BinaryIO, parts: Iterator[bytes]) -> None:
        """Read the parts of a file, which is closed with this stream."""
        self.file, self.parts, self.waiting = file, parts, memoryview(b"")

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as one part goes; 0 at the end."""
        while not self.waiting:
            part = next(self.parts, None)
            if part is None:
                return 0
            self.waiting = memoryview(part)
        size = min(len(buffer), len(self.waiting))
        buffer[:size], self.waiting = self.waiting[:size], self.waiting[size:]
        return size

    def close(self) -> None:
        """Close the file too."""
        self.file.close()
        super().close()


def _unpacked(zstandard: Any, path: Path, file: BinaryIO) -> Iterator[bytes]:
    """The frames of a .zst file, one after the other; the library's own reader takes a cut-off file for a whole one."""
    unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 31)  # as far as `zstd --long=31` looks back
    frame, packed = None, b""
    try:
        while packed := packed or file.read(ZSTD_READ):
            frame = frame or unpacker.decompressobj()
            yield frame.decompress(packed)
            packed = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
    except zstandard.ZstdError as error:
        raise DataError(f"{path}: damaged, it cannot be unpacked ({error}). Get it again.") from None
    if frame is not None:
        raise DataError(f"{path}: damaged, it ends in the middle of a Zstandard frame. Get it again.")


def _json_texts(path: Path, file: BinaryIO) -> Iterator[str]:
    """The texts of one JSON object, or string, per line."""
    for number in count(1):
        line = file.readline(DOCUMENT_LIMIT + 1)
        if not line:
            return
        if len(line) > DOCUMENT_LIMIT:
            raise DataError(f"{path}, line {number}: {too_long_message(DOCUMENT_LIMIT, 'bytes')}")
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            utf_16 = line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
            raise DataError(
                f"{path}, line {number}: byte {error.start} (0x{line[error.start]:02x}) of the line is not UTF-8. "
                f"Convert the file first, for instance: {_converted(path, 'utf-16' if utf_16 else 'windows-1252')}"
            ) from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: not valid JSON ({error}). Write one object per line.") from None
        if isinstance(value, dict):
            name = next((name for name in TEXT_COLUMNS if name in value), None)
            if name and value[name] is None:  # as in a table: a record without a text
                continue
            value = name and value[name]
        if not isinstance(value, str):
            raise DataError(f'{path}, line {number}: an object such as {{"text": "…"}} is expected, got {line[:40]!r}.')
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise DataError(f"{path}, line {number}: half a surrogate pair is not a character. Write it as UTF-8.")
        yield value


def too_long_message(limit: int, unit: str) -> str:
    """Say that a document is longer than the limit, and what to do."""
    return f"a document of more than {limit:,} {unit}. Split it into several records, or give it as a text file."


def _parquet_texts(path: Path, file: BinaryIO) -> Iterator[str]:
    """The texts of a Parquet table, some rows at a time."""
    parquet = _optional("pyarrow", path).parquet
    try:
        table = parquet.ParquetFile(file)
        names = table.schema_arrow.names
        column = next((name for name in TEXT_COLUMNS if name in names), None)
        if column is None:
            wanted = " or ".join(TEXT_COLUMNS)
            raise DataError(f"{path}: there is no column called {wanted}; it has {', '.join(names)}. Rename one.")
        largest = 1
        for number in range(table.num_row_groups):
            group = table.metadata.row_group(number)
            chunks = [group.column(index) for index in range(group.num_columns)]
            chunks = [chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] == column]
            size = sum(chunk.total_uncompressed_size for chunk in chunks)
            packed = sum(chunk.total_compressed_size for chunk in chunks)
            if size > max(ROW_GROUP_LEAST, ROW_GROUP_RATIO * packed):
                raise DataError(
                    f"{path}: row group {number + 1} packs {size:,} bytes into {packed:,}, more than text can be "
                    "packed. Write the table again in smaller row groups."
                )
            largest = max(largest, size)
        least, most = ROWS_AT_ONCE
        for rows in table.iter_batches(min(most, max(least, BATCH_BYTES // largest)), columns=[column]):
            for cell in rows.column(0):
                text = cell.as_py()
                if text is None:
                    continue
                if not isinstance(text, str):
                    raise DataError(f"{path}: the column {column} holds {type(text).__name__}, where text is expected.")
                if len(text) > DOCUMENT_LIMIT:
                    raise DataError(f"{path}: {too_long_message(DOCUMENT_LIMIT, 'characters')}")
                yield text
    except DataError:
        raise
    except Exception as error:  # pyarrow raises errors of many kinds for a damaged file
        raise DataError(f"{path}: not a readable Parquet file ({error}).") from None


def _optional(package: Literal["zstandard", "pyarrow"], path: Path) -> Any:
    """A package that only some shards need."""
    try:
        if package == "zstandard":
            import zstandard  # pyright: ignore[reportMissingImports]

            return zstandard
        import pyarrow
        import pyarrow.parquet

        return pyarrow
    except ImportError:
        raise DataError(f"{path}: to read it, {package} is needed: pip install 'lemma-lm[shards]'") from None


def _blocks(span: TextSpan) -> Iterator[bytes]:
    """Yield the span's bytes, and at the end an empty block."""
    left, before = span.size, span.start
    with _open(span.path) as file:
        if not is_streamed(span.path):
            file.seek(before)
            before = 0
        try:
            while before and (skipped := file.read(min(before, BLOCK))):
                before -= len(skipped)
            while left and (block := file.read(min(left, BLOCK))):
                yield block
                left -= len(block)
        except (EOFError, OSError, zlib.error) as error:
            raise DataError(f"{span.path}: damaged, it cannot be read to its end ({error}). Get it again.") from None
    yield b""


def hold_out(documents: Sequence[TextSpan], fraction: float) -> dict[str, list[TextSpan]]:
    """Split documents into `train`, the first bytes of them all, and `validation`, the last `share`.

    The cut is at the end of a line if one is near, else at a space, else between two characters.
    """
    total = total_size(documents)
    place = min(max(round(total * (1 - fraction)), 1), total - 1)
    near = min(MAX_CUT_DISTANCE, place // 2, (total - place) // 2)
    splits: dict[str, list[TextSpan]] = {"train": [], "validation": []}
    for document in documents:
        cut = _cut(document, place, near)
        splits["train"].append(TextSpan(document.path, document.start, cut))
        splits["validation"].append(TextSpan(document.path, cut, document.stop))
        place -= document.size
    for name, spans in splits.items():
        if not total_size(spans):
            raise DataError(f"a text of {total} bytes leaves nothing for the split '{name}'. Give more text.")
    return {name: [span for span in spans if span.size] for name, spans in splits.items()}


def _cut(document: TextSpan, place: int, near: int) -> int:
    """Where the document is cut if training text ends `place` bytes after its start."""
    if place <= 0 or place >= document.size:
        return document.start if place <= 0 else document.stop
    wanted = document.start + place
    first = max(wanted - near, document.start)
    window = b"".join(_blocks(TextSpan(document.path, first, min(wanted + near, document.stop))))
    for separator in (b"\xff", b"\n", b" "):
        found = (window.rfind(separator, 0, wanted - first), window.find(separator, wanted - first))
        if places := [first + place + 1 for place in found if place >= 0]:
            return min(places, key=lambda place: abs(place - wanted))
    return next_character_offset(document.path, wanted)


def sample_text(spans: Sequence[TextSpan], limit: int) -> list[TextSpan]:
    """Return the spans themselves, or evenly spaced windows of them that hold about `limit` bytes in all."""
    total, before = total_size(spans), 0
    if total <= limit:
        return list(spans)
    windows: list[TextSpan] = []
    for span in spans:
        first, last = (ceil(place * SAMPLE_WINDOWS / total) for place in (before, before + span.size))
        for number in range(first, last):
            start = span.start + total * number // SAMPLE_WINDOWS - before
            stop = min(start + limit // SAMPLE_WINDOWS, span.stop)
            windows.append(
                TextSpan(span.path, next_character_offset(span.path, start), next_character_offset(span.path, stop))
            )
        before += span.size
    return windows


def sample_stream(spans: Sequence[TextSpan], limit: int) -> Iterator[str]:
    """The same windows of text that can only be read from its beginning on: one pass through all of it."""
    total, place = total_size(spans), 0
    for span in spans:
        for text in decode_span(span):
            block = text.encode("utf-8", "surrogateescape")
            number = max(0, place * SAMPLE_WINDOWS // total - 1)  # the window before may reach into this block
            while (start := total * number // SAMPLE_WINDOWS - place) < len(block):
                window = block[max(0, start) : max(0, start + limit // SAMPLE_WINDOWS)]
                if window:
                    yield window.decode("utf-8", "ignore")  # without half a character at its ends
                number += 1
            place += len(block)


def count_shared_lines(splits: Mapping[str, Sequence[TextSpan]]) -> list[str]:
    """Say how many lines of the validation and test splits, blank ones aside, are in an earlier split too.

    The training text is read once, and nothing of it is kept.
    """

    def hashes(split: str) -> Iterator[int]:
        for span in splits.get(split, ()):
            waiting = ""
            for text in chain(decode_span(span), "\n"):
                *lines, waiting = (waiting + text.replace(DOCUMENT_END, "\n")).split("\n")
                while len(waiting) >= BLOCK:  # a line without end is compared in parts
                    lines, waiting = [*lines, waiting[:BLOCK]], waiting[BLOCK:]
                parts = (line[start : start + BLOCK].strip() for line in lines for start in range(0, len(line), BLOCK))
                yield from (hash(part) for part in parts if part)

    counts = {split: Counter(hashes(split)) for split in ("validation", "test")}
    either = counts["validation"].keys() | counts["test"].keys()
    known = {"train": {line for line in hashes("train") if line in either}, "validation": set(counts["validation"])}
    notes: list[str] = []
    for earlier, later in (("train", "validation"), ("train", "test"), ("validation", "test")):
        shared = sum(count for line, count in counts[later].items() if line in known[earlier])
        notes += overlap_note(shared, counts[later].total(), "lines", later, earlier)
    return notes
