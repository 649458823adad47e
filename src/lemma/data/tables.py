"""CSV, TSV and JSONL tables, each row with its line number."""

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
from typing import Any

from lemma.errors import DataError, describe_unknown
from lemma.files import parse_json
from lemma.spec.base import exists

TABLE_SUFFIXES = {".csv": ",;", ".tsv": "\t", ".tab": "\t", ".jsonl": "", ".ndjson": ""}
"""The kinds of table, and what may separate their columns."""
SEPARATED = {suffix for suffix, separators in TABLE_SUFFIXES.items() if separators}
MAX_CELL_LENGTH = 1 << 26
"""A cell of more characters is a quote that was never closed."""
PEEK_ROWS = 100
"""Rows that are looked at to tell a comma from a semicolon."""
SURROGATE = re.compile("[\ud800-\udfff]")

Row = tuple[int, Sequence[str]]
"""The line on which a row begins, and its cells."""
Names = tuple[str, ...]
IsHeader = Callable[[Sequence[str]], bool]
"""Whether a first row holds the names of columns."""


def open_table(path: Path) -> tuple[Names | None, Iterator[Row]]:
    """Open a table: the names of its columns, where the file itself gives them in every row (JSONL), and its rows."""
    *others, last = TABLE_SUFFIXES
    kinds = f"{', '.join(others)} or {last}"
    if not exists(path):
        raise DataError(f"{path}: there is no such file. Check the name and the folder it is looked for in.")
    if path.is_dir():
        raise DataError(f"{path}: this is a folder; a file that ends in {kinds} is expected here.")
    if path.suffix.lower() not in TABLE_SUFFIXES:
        raise DataError(
            f"{path}: a file that ends in {kinds} is expected, so that it is known how its columns are separated. "
            "Rename it by what it holds."
        )
    if not path.is_file():
        raise DataError(f"{path}: not a regular file, and it must be read twice. Save the table in a file first.")
    if path.suffix.lower() not in SEPARATED:
        first = [value for _, value in islice(_json_values(path), PEEK_ROWS) if isinstance(value, Mapping)]
        names = tuple(dict.fromkeys(name for row in first for name in row)) or None  # as they first appear
        return names, _json_rows(path, names)
    return None, _separated_rows(path)


def read_header(path: Path, is_header: IsHeader, empty: str) -> tuple[Names | None, Row, Iterator[Row]]:
    """Open a table: its header, if the first row is one, the first row of the file, and the rows of data."""
    names, rows = open_table(path)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path}: {empty}")
    if names is None and is_header(first[1]):
        return tuple(first[1]), first, rows
    return names, first, chain([first], rows)


# Separated columns.


def _separated_rows(path: Path) -> Iterator[Row]:
    separators = TABLE_SUFFIXES[path.suffix.lower()]
    if separators == "\t":  # quotes enclose cells, as spreadsheets write them, or are plain characters
        enclosing = any(line.startswith('"') or '\t"' in line for line in _lines(path))
        separator, quoted = "\t", enclosing and len(set(_widths(path, "\t", None))) == 1
    else:

        def fit(separator: str) -> tuple[bool, int]:
            widths = _widths(path, separator, PEEK_ROWS) or [0]
            return len(set(widths)) == 1 and widths[0] > 1, widths[0]

        separator, quoted = max(separators, key=fit), True  # of equals the first
    last = 0
    with _long_cells():
        try:
            for last, cells in _cells(path, separator, quoted):
                yield last, cells
        except csv.Error as error:
            reason = (
                "a carriage return within a line, where other lines of the file end with a newline. Put the cell that "
                "holds it in quotes; or give all lines the same ending, for instance: tr '\\r' '\\n' < old > new"
                if "new-line" in str(error)
                else f"a quote that opens or ends where it cannot ({error}). Put a cell that holds quotes in quotes, "
                'with each of its own doubled: "she said ""no"""'
            )
            raise DataError(f"{path}, after line {last}: {reason}") from None


def _cells(path: Path, separator: str, quoted: bool = True) -> Iterator[Row]:
    """Read rows; a broken quote is a csv.Error."""
    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    reader = csv.reader(_lines(path), delimiter=separator, quoting=quoting, strict=True)
    begins = 1
    for cells in reader:
        if cells:
            yield begins, cells
        begins = reader.line_num + 1


@contextmanager
def _long_cells() -> Iterator[None]:
    """Raise the csv module's limit of 128 KiB per cell; it is that of the whole process, so it is put back."""
    before = csv.field_size_limit(MAX_CELL_LENGTH)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _widths(path: Path, separator: str, rows: int | None) -> list[int]:
    """How many columns each of the first rows has; nothing if quotes are broken."""
    with _long_cells():
        try:
            return [len(cells) for _, cells in islice(_cells(path, separator), rows)]
        except csv.Error:
            return []


def _lines(path: Path) -> Iterator[str]:
    """Decode a file line by line, without its byte order mark."""
    with path.open("rb") as file:
        first = file.readline()  # a file without any newline is one line, unless carriage returns end its lines
        beginning = [first] if first.endswith(b"\n") else first.splitlines(keepends=True)
        for number, line in enumerate(chain(beginning, file), start=1):
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                utf_16 = number == 1 and line[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
                raise DataError(
                    f"{path}, line {number}: the byte 0x{line[error.start]:02x} is not UTF-8 ({error.reason}). "
                    f"Convert the file first, for instance: iconv -f {'utf-16' if utf_16 else 'windows-1252'} "
                    f"-t utf-8 {path} > table{path.suffix}"
                ) from None
            yield text.removeprefix("\ufeff") if number == 1 else text


# One JSON object or list per line.


def _json_values(path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            value = parse_json(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: not valid JSON ({error}). Write one object per line.") from None
        if not isinstance(value, dict | list):
            raise DataError(f'{path}, line {number}: an object such as {{"text": "…"}} is expected, got {line[:40]!r}.')
        yield number, value


def _json_rows(path: Path, names: Names | None) -> Iterator[Row]:
    for number, value in _json_values(path):
        if isinstance(value, Mapping) != (names is not None):
            raise DataError(f"{path}, line {number}: objects and lists are mixed. Write one object per line.")
        texts: list[str] = []
        for cell in [value.get(name) for name in names or ()] if isinstance(value, Mapping) else value:
            if isinstance(cell, dict | list):
                raise DataError(f"{path}, line {number}: a text or a number is expected, got {json.dumps(cell)[:40]}.")
            text = cell if isinstance(cell, str) else "" if cell is None else json.dumps(cell)
            if not text.isascii() and SURROGATE.search(text):
                raise DataError(
                    f"{path}, line {number}: half a surrogate pair is not a character. Write the text as UTF-8."
                )
            texts.append(text)
        yield number, texts


# Some columns of a table, found by name or place.


@dataclass(frozen=True)
class Column:
    """A column that is looked for: by the name or number given, else by what such columns are usually called."""

    role: str
    """What it holds: text, label, source, target."""
    requested: str | None = None
    aliases: frozenset[str] = frozenset()
    """Other names, in lower case, that such a column often has."""
    required: bool = True
    """Whether an empty cell is an error; else its row is left out."""

    def find(self, names: Names) -> list[int]:
        """Where columns have this name: that of its role if there is one, else one of the aliases."""
        lowered = [name.strip().casefold() for name in names]
        return [place for place, name in enumerate(lowered) if name == self.role] or [
            place for place, name in enumerate(lowered) if name in self.aliases
        ]


@dataclass(frozen=True)
class DataTable:
    """Some columns of a file, each a list of cells, and the line on which each row begins."""

    path: Path
    lines: Sequence[int]
    cells: Mapping[str, list[str]]
    names: Names | None
    """The header, where there is one."""
    note: str
    """Which columns were taken, and whether there was a header."""
    skipped_lines: Sequence[int] = ()
    """The lines of rows in which a cell that may be empty is empty."""

    def __len__(self) -> int:
        return len(self.lines)

    def location(self, row: int) -> str:
        """Name the place of a row, for an error or a warning."""
        return f"{self.path}, line {self.lines[row]}"


def read_table(
    path: Path,
    column_specs: Sequence[Column],
    *,
    any_width: bool,
    is_header: IsHeader | None = None,
    known_labels: Collection[str] | None = None,
) -> DataTable:
    """Read the wanted columns of a CSV, TSV or JSONL file.

    A header is known by a name that was given, by what `is_header` says of the first row, else by any usual name in it,
    and, with `values`, by a last column whose first cell is none of these and occurs only once: no label does.
    `any_width` takes the first columns of a table of any width where nothing else is known; else it must be two wide.
    """

    def has_header(first: Sequence[str]) -> bool:
        given = [column.requested for column in column_specs if column.requested is not None]
        usual = {name for column in column_specs for name in (column.role, *column.aliases)}
        found = is_header(first) if is_header else bool({cell.strip().casefold() for cell in first} & usual)
        return found or any(not name.isdecimal() or name in first for name in given)

    names, (_, first), rows = read_header(path, has_header, "the file is empty. Give a file with one example per row.")
    places, width = _places(path, column_specs, names, first, any_width), len(first)
    lines, left_out, cells = array("Q"), array("Q"), [[] for _ in column_specs]
    last = max(places)
    for line, row in rows:
        if len(row) <= last:
            missing = f" ('{names[last]}')" if names else ""
            columns = f"{len(row)} column{'s' * (len(row) != 1)}"
            raise DataError(f"{path}, line {line}: {columns}; column {last + 1}{missing} is missing.")
        if len(row) > width:
            raise DataError(
                f"{path}, line {line}: {len(row)} columns where the first row has {width}. "
                "Put a cell that holds the separator in quotes."
            )
        found = [row[place].strip() for place in places]
        empty = [column for cell, column in zip(found, column_specs, strict=True) if not cell]
        for column in empty:
            if column.required:
                raise DataError(f"{path}, line {line}: the {column.role} is empty. Fill it in, or take the row out.")
        (left_out if empty else lines).append(line)
        for kept, cell in zip(cells, () if empty else found, strict=not empty):
            kept.append(cell)
    if not lines and left_out:
        raise DataError(f"{path}: in all of its {len(left_out):,} rows something is empty. Fill it in.")
    if not lines:
        raise DataError(f"{path}: nothing but a header. Give a file with one example per row.")
    if known_labels is not None and names is None:
        ends = cells[-1]
        if len(ends) >= 3 and ends[0] not in known_labels and ends[0] not in ends[1:]:  # a header after all
            names, lines, cells = tuple(first), lines[1:], [kept[1:] for kept in cells]
    called = [f"column '{names[place]}'" if names else f"column {place + 1}" for place in places]
    note = ", ".join(f"{column.role} from {name}" for column, name in zip(column_specs, called, strict=True))
    if path.suffix.lower() in SEPARATED:
        note += "; line 1 read as the header" if names else "; no header: line 1 read as data"
    named = {column.role: kept for column, kept in zip(column_specs, cells, strict=True)}
    return DataTable(path, lines, named, names, f"{path.name}: {note}", left_out)


def _places(
    path: Path, wanted: Sequence[Column], names: Names | None, first: Sequence[str], any_width: bool
) -> list[int]:
    """Where the wanted columns are: those given, then those found by name, then the ones that are left, in order."""
    width = len(names or first)
    found: dict[str, int] = {}
    for role, given in ((column.role, column.requested) for column in wanted if column.requested is not None):
        if names is not None and given in names:
            found[role] = names.index(given)
        elif given.isdecimal() and 1 <= int(given) <= width:
            found[role] = int(given) - 1
        elif given.isdecimal():
            raise DataError(f"{path}: there is no column {given} for the {role}; the first row has {width}.")
        else:
            raise DataError(f"{path}: {describe_unknown(f'the column of the {role}', given, names or ())}")
    for column in wanted:
        if column.role not in found and names is not None:
            free = [place for place in column.find(names) if place not in found.values()]
            if len(free) == 1:
                found[column.role] = free[0]
    free = [place for place in range(width) if place not in found.values()]
    missing = [column for column in wanted if column.role not in found]
    if missing and (len(free) < len(missing) or (len(free) > len(missing) and not any_width)):
        role = missing[0].role
        if len(first) < len(wanted):
            raise DataError(
                f"{path}, line 1: {len(first)} column where {len(wanted)} are needed; none is left for the {role}. "
                "Check what separates the columns: a comma in .csv, a tab in .tsv."
            )
        shown = ", ".join(f"{place} '{name[:30]}'" for place, name in enumerate(names or first, start=1))
        what = "columns" if names else "the first row"
        raise DataError(f"{path}: which column is the {role}? {what}: {shown}. Say --{role}-column NAME or its number.")
    found |= {column.role: place for column, place in zip(missing, free, strict=False)}
    return [found[column.role] for column in wanted]
