"""The heads of a model on one text, as a result: for the terminal, the notebook, a page or a file."""

from html import escape
from pathlib import Path
from typing import Any

from lemma.data.atomic import write_atomically
from lemma.errors import InputError
from lemma.looking.head import Seen
from lemma.looking.page import page
from lemma.looking.plain import as_csv, as_dict, as_json
from lemma.looking.svg import picture
from lemma.looking.terminal import terminal

WRITERS = {".html": page, ".svg": picture, ".json": as_json, ".csv": as_csv}


class Heads(Seen):
    """What every attention head of a model does on one text."""

    def __str__(self) -> str:
        return terminal(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: tokens, and for each head its numbers, its patterns and its weights."""
        return as_dict(self)

    def _repr_html_(self) -> str:
        """The page in a frame of its own, so that neither it nor the notebook restyles the other."""
        frame = 'sandbox="allow-scripts allow-downloads" style="width:100%;height:760px;border:1px solid #ccc"'
        return f'<iframe title="Attention heads" {frame} srcdoc="{escape(page(self))}"></iframe>'

    def save(self, path: str | Path) -> Path:
        """Write a page (.html), a picture (.svg), everything (.json) or the table (.csv)."""
        path = Path(path)
        writer = WRITERS.get(path.suffix.lower())
        if writer is None:
            raise InputError(f"{path}: heads are saved as {', '.join(WRITERS)}, not as '{path.suffix}'.")
        if not path.absolute().parent.is_dir():
            raise InputError(f"{path}: there is no folder {path.parent} to write to. Make it first.")
        write_atomically(path, writer(self))
        return path
