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
from lemma.report.numbers import pluralize
from lemma.spec.base import exists

TABLE_SUFFIXES = {".csv": ",;", ".tsv": "\t", ".tab": "\t", ".jsonl": "", ".ndjson": ""}  # and their separators
SEPARATED = {suffix for suffix, separators in TABLE_SUFFIXES.items() if separators}
MAX_CELL_LENGTH = 1 << 26  # characters; a longer cell is a quote that was never closed
PEEK_ROWS = 100  # rows that are read to tell a comma from a semicolon
SURROGATE = re.compile("[\ud800-\udfff]")

Row = tuple[int, Sequence[str]]  # the line on which a row begins, and its cells
Names = tuple[str, ...]
IsHeader = Callable[[Sequence[str]], bool]  # whether a first row holds the names of columns


@dataclass(frozen=True)
class Column:
    """A column to look for in a table: by the name or number the user requested, else by its usual names."""

    role: str  # what it holds: text, label, source, target
    requested: str | None = None
    aliases: frozenset[str] = frozenset()  # in lower case
    required: bool = True  # whether an empty cell is an error; else its row is skipped

    def find(self, names: Names) -> list[int]:
        """Return the indices of the names that equal this column's role, such as "text", else of its aliases."""
        normalised = [name.strip().casefold() for name in names]
        return [index for index, name in enumerate(normalised) if name == self.role] or [
            index for index, name in enumerate(normalised) if name in self.aliases
        ]


@dataclass(frozen=True)
class DataTable:
    """The cells of some columns of a table file, by role, with the line of each row."""

    path: Path
    lines: Sequence[int]  # on which each row begins
    cells: Mapping[str, list[str]]  # of each column, by its role
    names: Names | None  # the header, if there is one
    note: str  # which columns were taken, and whether there was a header
    skipped_lines: Sequence[int] = ()  # of rows in which a cell that may be empty is empty

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.lines)

    def location(self, row: int) -> str:
        """Return the file and line of a row, for an error message."""
        return f"{self.path}, line {self.lines[row]}"


def read_table(
    path: Path,
    column_specs: Sequence[Column],
    *,
    any_width: bool,
    is_header: IsHeader | None = None,
    allowed_labels: Collection[str] | None = None,
) -> DataTable:
    """Read the cells of the wanted columns of a CSV, TSV or JSONL file.

    The first row is a header if it holds a requested name, if `is_header` returns True for it, or without `is_header`
    if it holds a usual name of a column. With `allowed_labels` it is one, too, if its last cell is no allowed label and
    occurs only once. Columns that no name identifies are the first remaining ones; without `any_width` it is an error
    if more columns remain than are wanted.
    """

    def has_header(first_row: Sequence[str]) -> bool:
        requested = [column.requested for column in column_specs if column.requested is not None]
        aliases = {name for column in column_specs for name in (column.role, *column.aliases)}
        has_names = is_header(first_row) if is_header else bool({c.strip().casefold() for c in first_row} & aliases)
        return has_names or any(not name.isdecimal() or name in first_row for name in requested)

    empty_message = "the file is empty. Give a file with one example per row."
    names, (_, first_row), rows = read_header(path, has_header, empty_message)
    indices = _find_columns(path, column_specs, names, first_row, any_width)
    lines, skipped_lines, cells = array("Q"), array("Q"), [[] for _ in column_specs]
    last = max(indices)
    for line, row in rows:
        if len(row) <= last:
            missing = f" ('{names[last]}')" if names else ""
            width = pluralize(len(row), "column")
            raise DataError(f"{path}, line {line}: {width}; column {last + 1}{missing} is missing.")
        if len(row) > len(first_row):
            raise DataError(
                f"{path}, line {line}: {len(row)} columns where the first row has {len(first_row)}. "
                "Put a cell that holds the separator in quotes."
            )
        values = [row[index].strip() for index in indices]
        for value, column in zip(values, column_specs, strict=True):
            if column.required and not value:
                raise DataError(f"{path}, line {line}: the {column.role} is empty. Fill it in, or take the row out.")
        if not all(values):
            skipped_lines.append(line)
            continue
        lines.append(line)
        for column_cells, value in zip(cells, values, strict=True):
            column_cells.append(value)
    if not lines:
        problem = "nothing but a header. Give a file with one example per row."
        if skipped_lines:
            problem = f"in all of its {len(skipped_lines):,} rows something is empty. Fill it in."
        raise DataError(f"{path}: {problem}")
    if allowed_labels is not None and names is None:
        labels = cells[-1]
        if len(labels) >= 3 and labels[0] not in allowed_labels and labels[0] not in labels[1:]:  # a header after all
            names, lines, cells = tuple(first_row), lines[1:], [column_cells[1:] for column_cells in cells]
    columns = [f"column '{names[index]}'" if names else f"column {index + 1}" for index in indices]
    note = ", ".join(f"{spec.role} from {column}" for spec, column in zip(column_specs, columns, strict=True))
    if path.suffix.lower() in SEPARATED:
        note += "; line 1 read as the header" if names else "; no header: line 1 read as data"
    by_role = {spec.role: column_cells for spec, column_cells in zip(column_specs, cells, strict=True)}
    return DataTable(path, lines, by_role, names, f"{path.name}: {note}", skipped_lines)


def _find_columns(
    path: Path, column_specs: Sequence[Column], names: Names | None, first_row: Sequence[str], any_width: bool
) -> list[int]:
    """Return the index of each wanted column: by requested name or number, then by usual names, then in order.

    `names` is the header; without `any_width` it is an error if columns remain that are not wanted.
    """
    width = len(names or first_row)
    indices: dict[str, int] = {}
    for column in column_specs:
        role, requested = column.role, column.requested
        if requested is None:
            continue
        if names is not None and requested in names:
            indices[role] = names.index(requested)
        elif requested.isdecimal() and 1 <= int(requested) <= width:
            indices[role] = int(requested) - 1
        elif requested.isdecimal():
            raise DataError(f"{path}: there is no column {requested} for the {role}; the first row has {width}.")
        else:
            raise DataError(f"{path}: {describe_unknown(f'column of the {role}', requested, names or ())}")
    for column in column_specs:
        if column.role not in indices and names is not None:
            free = [index for index in column.find(names) if index not in indices.values()]
            if len(free) == 1:
                indices[column.role] = free[0]
    free = [index for index in range(width) if index not in indices.values()]
    missing = [column.role for column in column_specs if column.role not in indices]
    if missing and (len(free) < len(missing) or (len(free) > len(missing) and not any_width)):
        if len(first_row) < len(column_specs):
            raise DataError(
                f"{path}, line 1: {len(first_row)} column where {len(column_specs)} are needed; none is left for the "
                f"{missing[0]}. Check what separates the columns: a comma in .csv, a tab in .tsv."
            )
        listed = ", ".join(f"{number} '{name[:30]}'" for number, name in enumerate(names or first_row, start=1))
        raise DataError(
            f"{path}: which column is the {missing[0]}? {'columns' if names else 'the first row'}: {listed}. "
            f"Give --{missing[0]}-column NAME or its number."
        )
    indices |= dict(zip(missing, free, strict=False))
    return [indices[column.role] for column in column_specs]


def read_header(path: Path, is_header: IsHeader, empty_message: str) -> tuple[Names | None, Row, Iterator[Row]]:
    """Open a table; return its header (None without one), the first row of the file, and the rows of data.

    `is_header` is called with the first row of CSV and TSV; `empty_message` is the error for a file without rows.
    """
    names, rows = open_table(path)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path}: {empty_message}")
    if names is None and is_header(first[1]):
        return tuple(first[1]), first, rows
    return names, first, chain([first], rows)


def open_table(path: Path) -> tuple[Names | None, Iterator[Row]]:
    """Open a table; return its column names (JSONL only, otherwise None), and an iterator of its rows."""
    *first_suffixes, last = TABLE_SUFFIXES
    suffixes = f"{', '.join(first_suffixes)} or {last}"
    if not exists(path):
        raise DataError(f"{path}: there is no such file. Check the name and the folder it is looked for in.")
    if path.is_dir():
        raise DataError(f"{path}: this is a folder; a file that ends in {suffixes} is expected here.")
    if path.suffix.lower() not in TABLE_SUFFIXES:
        raise DataError(
            f"{path}: a file that ends in {suffixes} is expected, so that it is known how its columns are separated. "
            "Rename it by what it holds."
        )
    if not path.is_file():
        raise DataError(f"{path}: not a regular file, and it must be read twice. Save the table in a file first.")
    if path.suffix.lower() in SEPARATED:
        return None, _separated_rows(path)
    first_rows = [value for _, value in islice(_json_values(path), PEEK_ROWS) if isinstance(value, Mapping)]
    names = tuple(dict.fromkeys(name for row in first_rows for name in row)) or None  # as they first appear
    return names, _json_rows(path, names)


# Separated columns


def _separated_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a CSV or TSV file; the separator and the use of quotes are recognised from the file."""
    separators = TABLE_SUFFIXES[path.suffix.lower()]
    if separators == "\t":  # quotes enclose cells, as spreadsheets write them, or are plain characters
        may_quote = any(line.startswith('"') or '\t"' in line for line in _decoded_lines(path))
        separator, quoted = "\t", may_quote and len(set(_count_columns(path, "\t", None))) == 1
    else:

        def fit(separator: str) -> tuple[bool, int]:
            widths = _count_columns(path, separator, PEEK_ROWS) or [0]
            return len(set(widths)) == 1 and widths[0] > 1, widths[0]

        separator, quoted = max(separators, key=fit), True  # of equals the first
    line = 0
    with _allow_long_cells():
        try:
            for line, cells in _csv_rows(path, separator, quoted):
                yield line, cells
        except csv.Error as error:
            reason = (
                "a carriage return within a line, where other lines of the file end with a newline. Put the cell that "
                "holds it in quotes; or give all lines the same ending, for instance: tr '\\r' '\\n' < old > new"
                if "new-line" in str(error)
                else f"a quote that opens or ends where it cannot ({error}). Put a cell that holds quotes in quotes, "
                'with each of its own doubled: "she said ""no"""'
            )
            raise DataError(f"{path}, after line {line}: {reason}") from None


def _csv_rows(path: Path, separator: str, quoted: bool = True) -> Iterator[Row]:
    """Yield the rows of a file with this separator, each with its line number; a broken quote is a csv.Error.

    If not `quoted`, quotes are plain characters.
    """
    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    reader = csv.reader(_decoded_lines(path), delimiter=separator, quoting=quoting, strict=True)
    first_line = 1
    for cells in reader:
        if cells:
            yield first_line, cells
        first_line = reader.line_num + 1


@contextmanager
def _allow_long_cells() -> Iterator[None]:
    """Raise the csv module's limit of 128 KiB per cell within the block; it is global, so it is reset afterwards."""
    previous = csv.field_size_limit(MAX_CELL_LENGTH)
    try:
        yield
    finally:
        csv.field_size_limit(previous)


def _count_columns(path: Path, separator: str, max_rows: int | None) -> list[int]:
    """Return how many columns each of the first rows (None: of all) has with a separator; [] if quotes are broken."""
    with _allow_long_cells():
        try:
            return [len(cells) for _, cells in islice(_csv_rows(path, separator), max_rows)]
        except csv.Error:
            return []


def _decoded_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, without its byte order mark."""
    with path.open("rb") as file:
        first = file.readline()  # a file without any newline is one line, unless carriage returns end its lines
        first_lines = [first] if first.endswith(b"\n") else first.splitlines(keepends=True)
        for number, line in enumerate(chain(first_lines, file), start=1):
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                is_utf_16 = number == 1 and line[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
                raise DataError(
                    f"{path}, line {number}: the byte 0x{line[error.start]:02x} is not UTF-8 ({error.reason}). "
                    f"Convert the file first, for instance: iconv -f {'utf-16' if is_utf_16 else 'windows-1252'} "
                    f"-t utf-8 {path} > table{path.suffix}"
                ) from None
            yield text.removeprefix("\ufeff") if number == 1 else text


# One JSON object or list per line


def _json_values(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the object or list on each line of a JSONL file, with the line's number."""
    for number, line in enumerate(_decoded_lines(path), start=1):
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
    """Yield the line number and cells of each line of a JSONL file; `names` are its keys, None if lines are lists."""
    for number, value in _json_values(path):
        if isinstance(value, Mapping) != (names is not None):
            raise DataError(f"{path}, line {number}: objects and lists are mixed. Write one object per line.")
        cells: list[str] = []
        for cell in [value.get(name) for name in names or ()] if isinstance(value, Mapping) else value:
            if isinstance(cell, dict | list):
                raise DataError(f"{path}, line {number}: a text or a number is expected, got {json.dumps(cell)[:40]}.")
            text = cell if isinstance(cell, str) else "" if cell is None else json.dumps(cell)
            if not text.isascii() and SURROGATE.search(text):
                raise DataError(
                    f"{path}, line {number}: half a surrogate pair is not a character. Write the text as UTF-8."
                )
            cells.append(text)
        yield number, cells
