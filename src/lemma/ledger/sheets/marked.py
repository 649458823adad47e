"""Marked answers, to be shown and saved."""

import json
from dataclasses import dataclass
from pathlib import Path

from lemma.data.atomic import write_atomically
from lemma.errors import InputError, unknown
from lemma.ledger.sheets.marks import Marks
from lemma.ledger.sheets.page import body, markdown, page


@dataclass(frozen=True)
class Marked(Marks):
    """All marks of one student, as a page, as Markdown and as JSON."""

    def _repr_html_(self) -> str:
        return body(self)

    def save(self, path: Path | str) -> None:
        """Write it as a page, Markdown or JSON, as the name ends."""
        writers = {".html": page, ".md": markdown, ".json": lambda one: json.dumps(one.to_dict(), indent=2) + "\n"}
        suffix = Path(path).suffix.lower()
        if suffix not in writers:
            raise InputError(f"{path}: {unknown('the ending', suffix, writers)}")
        write_atomically(Path(path), writers[suffix](self))
