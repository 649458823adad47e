"""CSV, TSV and JSONL tables, each cell with its line number."""

import codecs
import csv
import json
import re
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from lemma.data.text import exists
from lemma.errors import DataError, unknown

# Rows of cells out of CSV, TSV and JSONL files, each with the line on which it begins.


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


# Tables of one's own: which of their columns are meant, and the cells of these with their lines.


Names = tuple[str, ...]
Looks = Callable[[Sequence[str]], bool]


@dataclass(frozen=True)
class Column:
    """A column that is looked for: by the name or number given, else by what such columns are called."""

    role: str
    """What it holds: text, label, source, target."""
    given: str | None = None
    called: frozenset[str] = frozenset()
    """Other names, in lower case, that such a column often has."""
    needed: bool = True
    """Whether an empty cell is an error; else its row is left out."""

    def places(self, names: Names) -> list[int]:
        """Where columns are called so: as its role if there is one, else by one of the other names."""
        plain = [name.strip().casefold() for name in names]
        return [place for place, name in enumerate(plain) if name == self.role] or [
            place for place, name in enumerate(plain) if name in self.called
        ]


@dataclass(frozen=True)
class Table:
    """Some columns of a file, each a list of cells, and the line on which each row begins."""

    path: Path
    lines: Sequence[int]
    cells: Mapping[str, list[str]]
    names: Names | None
    """The header, where there is one."""
    said: str
    """Which columns were taken, and whether there was a header."""
    left_out: Sequence[int] = ()
    """The lines of rows in which a cell that may be empty is."""

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, row: int) -> str:
        """Name the place of a row, for an error or a warning."""
        return f"{self.path}, line {self.lines[row]}"


def read_table(
    path: Path, wanted: Sequence[Column], *, any_width: bool, is_header: Looks, values: Collection[str] | None = None
) -> Table:
    """Read the wanted columns of a CSV, TSV or JSONL file.

    A header is known by a name that was given, by what `is_header` says of the first row, and, with `values`, by a last
    column whose first cell is none of these and never comes again: no label stands alone.
    `any_width` takes the first columns of a table of any width where it says nothing else; else it must be two wide.
    """
    names, rows = read_records(path)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path}: the file is empty. Give a file with one example a row.")
    rows = chain([first], rows)
    if names is None and _has_header(first[1], wanted, is_header):
        names = tuple(first[1])
        next(rows)
    places = _places(path, wanted, names, first[1], any_width)
    table = _read(path, rows, wanted, places, names, len(first[1]))
    return _without_late_header(table, first, wanted, places, values) if values is not None else table


def _has_header(first: Sequence[str], wanted: Sequence[Column], is_header: Looks) -> bool:
    by_name = any(column.given is not None and not column.given.isdecimal() for column in wanted)
    named = any(column.given is not None and column.given in first for column in wanted)
    return by_name or named or is_header(first)


def _places(
    path: Path, wanted: Sequence[Column], names: Names | None, first: Sequence[str], any_width: bool
) -> list[int]:
    width = len(names or first)
    found: dict[str, int] = {}
    for column in wanted:
        if column.given is not None:
            found[column.role] = _given(path, column, names, width)
    for column in wanted:
        if column.role not in found and names is not None:
            free = [place for place in column.places(names) if place not in found.values()]
            if len(free) == 1:
                found[column.role] = free[0]
    free = [place for place in range(width) if place not in found.values()]
    missing = [column for column in wanted if column.role not in found]
    if missing and (len(free) < len(missing) or (len(free) > len(missing) and not any_width)):
        raise DataError(_which(path, missing[0], names, first, len(wanted)))
    found |= {column.role: place for column, place in zip(missing, free, strict=False)}
    return [found[column.role] for column in wanted]


def _given(path: Path, column: Column, names: Names | None, width: int) -> int:
    given = column.given or ""
    if names is not None and given in names:
        return names.index(given)
    if given.isdecimal() and 1 <= int(given) <= width:
        return int(given) - 1
    if given.isdecimal():
        raise DataError(f"{path}: there is no column {given} for the {column.role}; the first row has {width}.")
    raise DataError(f"{path}: {unknown(f'the column of the {column.role}', given, names or ())}")


def _which(path: Path, column: Column, names: Names | None, first: Sequence[str], needed: int) -> str:
    if len(first) < needed:
        return (
            f"{path}, line 1: {len(first)} column where {needed} are needed; there is none for the {column.role}. "
            "Check what stands between the columns: a comma in .csv, a tab in .tsv."
        )
    shown = ", ".join(f"{place} '{name[:30]}'" for place, name in enumerate(names or first, start=1))
    what = "columns" if names else "the first row"
    return f"{path}: which column is the {column.role}? {what}: {shown}. Say --{column.role}-column NAME or its number."


def _read(
    path: Path, rows: Iterator[Row], wanted: Sequence[Column], places: Sequence[int], names: Names | None, width: int
) -> Table:
    lines, left_out, cells = array("Q"), array("Q"), [[] for _ in wanted]
    for line, row in rows:
        if len(row) != width:
            _refuse_width(path, line, len(row), width, max(places), names)
        found = [row[place].strip() for place in places]
        empty = [column for cell, column in zip(found, wanted, strict=True) if not cell]
        for column in empty:
            if column.needed:
                raise DataError(f"{path}, line {line}: the {column.role} is empty. Fill it in, or take the row out.")
        (left_out if empty else lines).append(line)
        for kept, cell in zip(cells, () if empty else found, strict=not empty):
            kept.append(cell)
    if not lines and left_out:
        raise DataError(f"{path}: in all of its {len(left_out):,} rows something is empty. Fill it in.")
    if not lines:
        raise DataError(f"{path}: nothing but a header. Give a file with one example a row.")
    named = {column.role: kept for column, kept in zip(wanted, cells, strict=True)}
    return Table(path, lines, named, names, _say(path, wanted, places, names), left_out)


def _refuse_width(path: Path, line: int, got: int, width: int, last: int, names: Names | None) -> None:
    if got <= last:
        missing = f" ('{names[last]}')" if names else ""
        raise DataError(f"{path}, line {line}: {got} column{'s' * (got != 1)}; column {last + 1}{missing} is missing.")
    if got > width:
        raise DataError(
            f"{path}, line {line}: {got} columns where the first row has {width}. "
            "Put a cell that holds the sign between columns in quotes."
        )


def _without_late_header(
    table: Table, first: Row, wanted: Sequence[Column], places: Sequence[int], values: Collection[str]
) -> Table:
    """Take the first row for a header if its last wanted cell is no known value and never comes again."""
    column = table.cells[wanted[-1].role]
    if table.names is not None or len(column) < 3 or column[0] in values or column[0] in column[1:]:
        return table
    names = tuple(first[1])
    cells = {role: kept[1:] for role, kept in table.cells.items()}
    return Table(table.path, table.lines[1:], cells, names, _say(table.path, wanted, places, names), table.left_out)


def _say(path: Path, wanted: Sequence[Column], places: Sequence[int], names: Names | None) -> str:
    def called(place: int) -> str:
        return f"column '{names[place]}'" if names else f"column {place + 1}"

    taken = ", ".join(f"{column.role} from {called(place)}" for column, place in zip(wanted, places, strict=True))
    header = "; line 1 read as the header" if names else "; no header: line 1 read as data"
    return f"{path.name}: {taken}{header if path.suffix.lower() in SEPARATED else ''}"
