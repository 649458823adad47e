"""The files of a result: written whole or not at all, and the form of tables and plain values in them."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lemma.runs import write_atomically


def write_files(place: Path, files: Mapping[str, str]) -> None:
    """Write files into a folder, each in one act; the folder is made if need be."""
    place.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_atomically(place / name, content)


def json_text(plain: Mapping[str, Any]) -> str:
    """Plain values as JSON that people can read; what is no number is refused."""
    return json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same names as CSV with a header.

    >>> csv_text([{"model": "rnn", "seed": 1}])
    'model,seed\\nrnn,1\\n'
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], first: str = ":--") -> str:
    """A table in Markdown: the first column to the left, figures to the right; cells cannot break it.

    >>> print(markdown_table(["model", "loss"], [["a|b", "1.2"]]))
    | model | loss |
    | :-- | --: |
    | a\\|b | 1.2 |
    """
    lines = [header, [first, *("--:" for _ in header[1:])], *([escape_cell(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape_cell(cell: str) -> str:
    """Text as a cell, or a line, of Markdown that means itself."""
    return " ".join(cell.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;").split())
