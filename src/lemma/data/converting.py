"""What a package's files are turned into: tables with a header, whose sums are known."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

Sums = tuple[str, str]
"""The SHA-256 of the file that arrives, and of what is kept of it."""


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]], separator: str = ",") -> None:
    """Write a table, the same bytes on every machine."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=separator, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
