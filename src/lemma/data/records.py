"""Rows of cells out of CSV, TSV and JSONL files, each with the line on which it begins."""

import codecs
import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from lemma.data.reading import exists
from lemma.errors import DataError

SUFFIXES = {".csv": ",;", ".tsv": "\t", ".tab": "\t", ".jsonl": "", ".ndjson": ""}
"""The kinds of table, and what may stand between their columns."""
SEPARATED = {suffix for suffix, between in SUFFIXES.items() if between}
LONGEST = 1 << 26
"""A cell of more characters is a quote that was never closed."""
PEEK = 100
"""Rows that are looked at to tell a comma from a semicolon."""
HALF_A_PAIR = re.compile("[\ud800-\udfff]")

Row = tuple[int, Sequence[str]]
"""The line on which a row begins, and its cells."""


@dataclass(frozen=True)
class Dialect:
    """How the cells of a file are told apart."""

    delimiter: str
    quoted: bool = True

    def read(self, lines: Iterator[str]) -> Iterator[Row]:
        """Read rows; a broken quote is a csv.Error."""
        quoting = csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE
        reader = csv.reader(lines, delimiter=self.delimiter, quoting=quoting, strict=True)
        begins = 1
        for cells in reader:
            if cells:
                yield begins, cells
            begins = reader.line_num + 1


def read_records(path: Path) -> tuple[tuple[str, ...] | None, Iterator[Row]]:
    """Open a table: the names of its columns, where the file itself says them in every row (JSONL), and its rows."""
    _refuse_other_files(path)
    if path.suffix.lower() not in SEPARATED:
        return _json_names(path), _json_rows(path)
    return None, _separated(path, _dialect(path))


def _separated(path: Path, dialect: Dialect) -> Iterator[Row]:
    last = 0
    with _long_cells():
        try:
            for last, cells in dialect.read(_lines(path)):
                yield last, cells
        except csv.Error as error:
            raise DataError(f"{path}, after line {last}: {_reason(error)}") from None


def _reason(error: csv.Error) -> str:
    if "new-line" in str(error):
        return (
            "a carriage return within a line, where other lines of the file end with a newline. Put the cell that "
            "holds it in quotes; or give all lines one kind of end, for instance: tr '\\r' '\\n' < old > new"
        )
    return (
        f"a quote that opens or ends where it cannot ({error}). Put a cell that holds quotes in quotes, with each of "
        'its own doubled: "she said ""no"""'
    )


@contextmanager
def _long_cells() -> Iterator[None]:
    """The csv module's own limit, 128 KiB a cell, is the whole process's: it is put back."""
    before = csv.field_size_limit(LONGEST)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _dialect(path: Path) -> Dialect:
    choices = SUFFIXES[path.suffix.lower()]
    if choices == "\t":
        return Dialect("\t", quoted=_quotes_quote(path))
    shapes = {delimiter: _shape(path, delimiter) for delimiter in choices}
    return Dialect(max(choices, key=lambda delimiter: (shapes[delimiter], -choices.index(delimiter))))


def _shape(path: Path, delimiter: str) -> tuple[bool, int]:
    """Whether the first rows have all one number of columns, more than one; and how many the first row has."""
    with _long_cells():
        try:
            widths = [len(cells) for _, cells in islice(Dialect(delimiter).read(_lines(path)), PEEK)]
        except csv.Error:
            return False, 0
    return len(set(widths)) == 1 and widths[0] > 1, widths[0] if widths else 0


def _quotes_quote(path: Path) -> bool:
    """Whether quotes in a file of tabs enclose cells, as spreadsheets write them, or are plain characters."""
    if not any(line.startswith('"') or '\t"' in line for line in _lines(path)):
        return False
    with _long_cells():
        try:
            return len({len(cells) for _, cells in Dialect("\t").read(_lines(path))}) == 1
        except csv.Error:
            return False


def _lines(path: Path) -> Iterator[str]:
    """Decode a file line by line, without its byte order mark."""
    with path.open("rb") as file:
        for number, line in enumerate(_split(file), start=1):
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                raise DataError(_not_utf8(path, number, line, error)) from None
            yield text.removeprefix("\ufeff") if number == 1 else text


def _split(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file; one without any newline is all one line, unless carriage returns end its lines."""
    first = file.readline()
    yield from [first] if first.endswith(b"\n") else first.splitlines(keepends=True)
    yield from file


def _not_utf8(path: Path, number: int, line: bytes, error: UnicodeDecodeError) -> str:
    wide = number == 1 and line[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    return (
        f"{path}, line {number}: the byte 0x{line[error.start]:02x} is not UTF-8 ({error.reason}). Convert the file "
        f"first, for instance: iconv -f {'utf-16' if wide else 'windows-1252'} -t utf-8 {path} > table{path.suffix}"
    )


def _json_values(path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: no valid JSON ({error}). Write one object a line.") from None
        if not isinstance(value, dict | list):
            raise DataError(f'{path}, line {number}: an object such as {{"text": "…"}} is expected, got {line[:40]!r}.')
        yield number, value


def _json_names(path: Path) -> tuple[str, ...] | None:
    """The keys of all objects, in the order in which they first appear in the first rows."""
    rows = [value for _, value in islice(_json_values(path), PEEK)]
    names = dict.fromkeys(name for row in rows if isinstance(row, Mapping) for name in row)
    return tuple(names) or None


def _json_rows(path: Path) -> Iterator[Row]:
    names = _json_names(path)
    for number, value in _json_values(path):
        if isinstance(value, Mapping) != (names is not None):
            raise DataError(f"{path}, line {number}: objects and lists are mixed. Write one object a line.")
        cells = [value.get(name) for name in names or ()] if isinstance(value, Mapping) else value
        yield number, [_text(cell, path, number) for cell in cells]


def _text(value: Any, path: Path, number: int) -> str:
    if isinstance(value, dict | list):
        raise DataError(f"{path}, line {number}: a text or a number is expected, got {json.dumps(value)[:40]}.")
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
    if not text.isascii() and HALF_A_PAIR.search(text):
        raise DataError(f"{path}, line {number}: half a surrogate pair is no character. Write the text as UTF-8.")
    return text


def _refuse_other_files(path: Path) -> None:
    if not exists(path):
        raise DataError(f"{path}: there is no such file. Check the name and the folder it is looked for in.")
    if path.is_dir():
        raise DataError(f"{path}: this is a folder; a file that ends in {_kinds()} is expected here.")
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{path}: a file that ends in {_kinds()} is expected, so that it is known how its columns are told apart. "
            "Rename it by what it holds."
        )
    if not path.is_file():
        raise DataError(f"{path}: this is no regular file, and it must be read twice. Save the table in a file first.")


def _kinds() -> str:
    *others, last = SUFFIXES
    return f"{', '.join(others)} or {last}"
