"""Text files: read as UTF-8 in a stream, split into training, validation and test."""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import BinaryIO

from lemma.errors import DataError

# Stretches of text files, and how they make up splits.


@dataclass(frozen=True)
class Section:
    """The bytes from `start` up to `stop` of a UTF-8 file; both stand between two characters."""

    path: Path
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return self.stop - self.start


Splits = dict[str, list[Section]]
"""The documents of each split, in order."""


def total_size(sections: Iterable[Section]) -> int:
    """The bytes of all these sections together."""
    return sum(section.size for section in sections)


# Where a text may be cut in two without changing its tokens.


_TAIL = 4096
# GPT-2's rule joins a space to the word after it and treats runs of white space together, but it never looks back:
# before a single space or newline between two characters that are no white space it starts anew.
_BYTE_PAIR_CUT = re.compile(r"(?<=\S)[\n ](?=\S)")


def _cut_characters(text: str) -> int:
    return len(text)


def _cut_words(text: str) -> int:
    return max(text.rfind("\n"), text.rfind(" ")) + 1


def _cut_byte_pairs(text: str) -> int:
    for start in (max(len(text) - _TAIL, 0), 0):  # nearly always there is a place near the end
        places = [match.start() for match in _BYTE_PAIR_CUT.finditer(text, start)]
        if places:
            return places[-1]
    return 0


_CUTS: dict[str, Callable[[str], int]] = {
    "characters": _cut_characters,
    "words": _cut_words,
    "byte-pairs": _cut_byte_pairs,
}


def last_cut(text: str, kind: str) -> int:
    """The last place where cutting leaves the tokens of this kind alone; 0 if there is none.

    >>> [last_cut("to be or not", kind) for kind in ("characters", "words", "byte-pairs")]
    [12, 9, 8]
    """
    return _CUTS[kind](text)


# UTF-8 text read from files in a stream, in pieces that are cut where a cut cannot change the tokens.


BLOCK = 1 << 18
"""Bytes read at a time; also the longest text that is kept waiting for a harmless place to cut."""


def open_text(path: Path) -> Section:
    """Return the whole text of a file, without a byte order mark; refuse what is no text file."""
    section = Section(path, _mark_length(path), _size(path))
    if not any(text.strip() for text in decode(section)):
        raise DataError(f"{path}: the file is empty, or nothing but white space. Give a file that holds text.")
    return section


def exists(path: Path) -> bool:
    """Whether there is anything of that name; a name that no file can have is no error."""
    try:
        return path.exists()
    except OSError:
        return False


def _size(path: Path) -> int:
    if not exists(path):
        raise DataError(f"{path}: there is no such file. Check the name and the folder it is looked for in.")
    if path.is_dir():
        raise DataError(f"{path}: this is a folder, not a text file. Name the files in it, as in {path / '*.txt'}.")
    if not path.is_file():
        raise DataError(f"{path}: this is no regular file, and it must be read twice. Save the text in a file first.")
    return path.stat().st_size


def _mark_length(path: Path) -> int:
    _size(path)
    with _open(path) as file:
        return len(codecs.BOM_UTF8) if file.read(3) == codecs.BOM_UTF8 else 0


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Check who may read it.") from None


def read_bytes(section: Section) -> bytes:
    """The bytes of a short section."""
    return b"".join(_blocks(section))


def next_character(path: Path, offset: int) -> int:
    """The first place at or after `offset` bytes where a character starts."""
    following = read_bytes(Section(path, offset, offset + 3))
    continuing = next((place for place, byte in enumerate(following) if byte & 0xC0 != 0x80), len(following))
    return offset + continuing


def read_pieces(section: Section, kind: str) -> Iterator[str]:
    """Read a section in pieces of at most about two blocks, cut as tokenizers of this kind allow.

    Text that offers no such place within a block (a line of a million letters) is cut between two characters.
    """
    waiting = ""
    for text in decode(section):
        waiting += text
        place = last_cut(waiting, kind) or (len(waiting) if len(waiting) >= BLOCK else 0)
        if place:
            yield waiting[:place]
            waiting = waiting[place:]
    if waiting:
        yield waiting


def decode(section: Section) -> Iterator[str]:
    """Decode a section block by block; bytes that are not UTF-8 are an error that gives their exact place."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    position = section.start
    for block in _blocks(section):
        begun = len(decoder.getstate()[0])  # bytes of a character that the last block began
        try:
            yield decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise DataError(_explain(section.path, position - begun, error)) from None
        position += len(block)


def _blocks(section: Section) -> Iterator[bytes]:
    """Yield the section's bytes, and at the end an empty block."""
    left = section.size
    with _open(section.path) as file:
        file.seek(section.start)
        while left and (block := file.read(min(left, BLOCK))):
            yield block
            left -= len(block)
    yield b""


def _explain(path: Path, base: int, error: UnicodeDecodeError) -> str:
    byte, offset = error.object[error.start], base + error.start
    wide = offset == 0 and error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    likely = "utf-16" if wide else "windows-1252"
    if not wide and b"\0" in error.object:
        return f"{path}: byte {offset} (0x{byte:02x}) is not UTF-8, and there are zero bytes: it is no text file."
    return (
        f"{path}: byte {offset} (0x{byte:02x}) is not UTF-8 ({error.reason}). "
        f"Convert the file first, for instance: iconv -f {likely} -t utf-8 {path} > text.txt"
    )


# One's own files into training and validation text: the end is held out, cut at a line if one ends near.


NEAR = 1 << 16
"""A line's end is looked for at most so many bytes away, and never so far that a part would lose half its length."""


def hold_out(documents: Sequence[Section], share: float) -> Splits:
    """Divide documents into `train`, the first bytes of them all, and `validation`, the last `share`."""
    total = total_size(documents)
    place = min(max(round(total * (1 - share)), 1), total - 1)
    near = min(NEAR, place // 2, (total - place) // 2)
    splits: Splits = {"train": [], "validation": []}
    for document in documents:
        cut = _cut(document, place, near)
        splits["train"].append(Section(document.path, document.start, cut))
        splits["validation"].append(Section(document.path, cut, document.stop))
        place -= document.size
    return {name: _filled(name, sections, total) for name, sections in splits.items()}


def _filled(name: str, sections: list[Section], total: int) -> list[Section]:
    if not total_size(sections):
        raise DataError(f"a text of {total} bytes leaves nothing for the split '{name}'. Give more text.")
    return [section for section in sections if section.size]


def _cut(document: Section, place: int, near: int) -> int:
    """Where the document is cut if training text ends `place` bytes after its start."""
    if place <= 0 or place >= document.size:
        return document.start if place <= 0 else document.stop
    wanted = document.start + place
    return (
        _after(b"\n", document, wanted, near)
        or _after(b" ", document, wanted, near)
        or next_character(document.path, wanted)
    )


def _after(separator: bytes, document: Section, wanted: int, near: int) -> int | None:
    """The place after a separator that lies nearest to the wanted one; None if there is none near."""
    first = max(wanted - near, document.start)
    window = read_bytes(Section(document.path, first, min(wanted + near, document.stop)))
    found = (window.rfind(separator, 0, wanted - first), window.find(separator, wanted - first))
    places = [first + place + 1 for place in found if place >= 0]
    return min(places, key=lambda place: abs(place - wanted), default=None)


# A bounded sample of a long text, spread evenly over it.


WINDOWS = 512


def spread(sections: Sequence[Section], limit: int) -> list[Section]:
    """Return the sections themselves, or evenly spaced windows of them that hold about `limit` bytes in all."""
    total, before = total_size(sections), 0
    if total <= limit:
        return list(sections)
    windows: list[Section] = []
    for section in sections:
        first, last = (ceil(place * WINDOWS / total) for place in (before, before + section.size))
        starts = [total * number // WINDOWS - before for number in range(first, last)]
        windows += [_window(section, start, limit // WINDOWS) for start in starts]
        before += section.size
    return windows


def _window(section: Section, start: int, length: int) -> Section:
    first = section.start + start
    last = min(first + length, section.stop)
    return Section(section.path, next_character(section.path, first), next_character(section.path, last))
