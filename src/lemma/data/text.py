"""Text files: read as UTF-8 in a stream, split into training, validation and test."""

import codecs
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import BinaryIO

from lemma.data.files import exists
from lemma.data.splits import overlap_note
from lemma.errors import DataError

BLOCK = 1 << 18
"""Bytes read at a time; also the longest text that is kept waiting for a place where it can be cut."""
NEAR = 1 << 16
"""A line's end is looked for at most this many bytes away, and never so far that a split would lose half its length."""
WINDOWS = 512
"""Windows of a sample of a long text."""


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
    with _open(path) as file:
        start = len(codecs.BOM_UTF8) if file.read(3) == codecs.BOM_UTF8 else 0
    span = TextSpan(path, start, path.stat().st_size)
    if not any(text.strip() for text in decode(span)):
        raise DataError(f"{path}: the file is empty, or nothing but white space. Give a file that holds text.")
    return span


def decode(span: TextSpan) -> Iterator[str]:
    """Decode a span block by block; bytes that are not UTF-8 are an error that gives their exact place."""
    decoder = codecs.getincrementaldecoder("utf-8")()
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
                f"iconv -f {'utf-16' if utf_16 else 'windows-1252'} -t utf-8 {span.path} > text.txt"
            ) from None
        position += len(block)


def read_pieces(span: TextSpan, kind: str) -> Iterator[str]:
    """Read a span in pieces of at most about two blocks, cut where a tokenizer of this kind allows it.

    Text that offers no such place within a block (a line of a million letters) is cut between two characters.
    """
    waiting = ""
    for text in decode(span):
        waiting += text
        place = last_cut(waiting, kind) or (len(waiting) if len(waiting) >= BLOCK else 0)
        if place:
            yield waiting[:place]
            waiting = waiting[place:]
    if waiting:
        yield waiting


# GPT-2's rule joins a space to the word after it and treats runs of white space together, but it never looks back:
# before a single space or newline between two other characters it starts again.
_BYTE_PAIR_CUT = re.compile(r"(?<=\S)[\n ](?=\S)")


def last_cut(text: str, kind: str) -> int:
    """The last place where cutting does not change the tokens of this kind; 0 without one.

    >>> [last_cut("to be or not", kind) for kind in ("characters", "words", "byte-pairs")]
    [12, 9, 8]
    """
    if kind == "characters":
        return len(text)
    if kind == "words":
        return max(text.rfind("\n"), text.rfind(" ")) + 1
    for start in (max(len(text) - 4096, 0), 0):  # nearly always there is a place near the end
        places = [match.start() for match in _BYTE_PAIR_CUT.finditer(text, start)]
        if places:
            return places[-1]
    return 0


def next_character(path: Path, offset: int) -> int:
    """The first place at or after `offset` bytes where a character starts."""
    following = b"".join(_blocks(TextSpan(path, offset, offset + 3)))
    continuing = next((place for place, byte in enumerate(following) if byte & 0xC0 != 0x80), len(following))
    return offset + continuing


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Check its permissions.") from None


def _blocks(span: TextSpan) -> Iterator[bytes]:
    """Yield the span's bytes, and at the end an empty block."""
    left = span.size
    with _open(span.path) as file:
        file.seek(span.start)
        while left and (block := file.read(min(left, BLOCK))):
            yield block
            left -= len(block)
    yield b""


def hold_out(documents: Sequence[TextSpan], share: float) -> dict[str, list[TextSpan]]:
    """Split documents into `train`, the first bytes of them all, and `validation`, the last `share`.

    The cut is at the end of a line if one is near, else at a space, else between two characters.
    """
    total = total_size(documents)
    place = min(max(round(total * (1 - share)), 1), total - 1)
    near = min(NEAR, place // 2, (total - place) // 2)
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
    for separator in (b"\n", b" "):
        found = (window.rfind(separator, 0, wanted - first), window.find(separator, wanted - first))
        if places := [first + place + 1 for place in found if place >= 0]:
            return min(places, key=lambda place: abs(place - wanted))
    return next_character(document.path, wanted)


def sample_text(spans: Sequence[TextSpan], limit: int) -> list[TextSpan]:
    """Return the spans themselves, or evenly spaced windows of them that hold about `limit` bytes in all."""
    total, before = total_size(spans), 0
    if total <= limit:
        return list(spans)
    windows: list[TextSpan] = []
    for span in spans:
        first, last = (ceil(place * WINDOWS / total) for place in (before, before + span.size))
        for number in range(first, last):
            start = span.start + total * number // WINDOWS - before
            stop = min(start + limit // WINDOWS, span.stop)
            windows.append(TextSpan(span.path, next_character(span.path, start), next_character(span.path, stop)))
        before += span.size
    return windows


def shared_lines(splits: Mapping[str, Sequence[TextSpan]]) -> list[str]:
    """Say how many lines of the validation and test splits, blank ones aside, are in an earlier split too.

    The training text is read once, and nothing of it is kept.
    """

    def hashes(split: str) -> Iterator[int]:
        for span in splits.get(split, ()):
            waiting = ""
            for text in decode(span):
                *whole, waiting = (waiting + text).split("\n")
                yield from (hash(line.strip()) for line in whole if line.strip())
            if waiting.strip():
                yield hash(waiting.strip())

    counts = {split: Counter(hashes(split)) for split in ("validation", "test")}
    either = counts["validation"].keys() | counts["test"].keys()
    known = {"train": {line for line in hashes("train") if line in either}, "validation": set(counts["validation"])}
    notes: list[str] = []
    for earlier, later in (("train", "validation"), ("train", "test"), ("validation", "test")):
        shared = sum(count for line, count in counts[later].items() if line in known[earlier])
        notes += overlap_note(shared, counts[later].total(), "lines", later, earlier)
    return notes
