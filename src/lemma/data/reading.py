"""UTF-8 text read from files in a stream, in pieces that are cut where a cut cannot change the tokens."""

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from lemma.data.cutting import last_cut
from lemma.data.sections import Section
from lemma.errors import DataError

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
