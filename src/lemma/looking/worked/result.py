"""What every worked case can do: be printed, shown in a notebook, given as plain values, and saved."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lemma.data.atomic import write_atomically
from lemma.errors import InputError, unknown
from lemma.looking.worked.blocks import Blocks
from lemma.looking.worked.page import as_fragment, as_page
from lemma.looking.worked.picture import as_svg
from lemma.looking.worked.text import as_markdown, as_text


class Worked(ABC):
    """A result made of blocks."""

    @property
    @abstractmethod
    def heading(self) -> str:
        """What it is, in a line."""

    @abstractmethod
    def shown(self) -> Blocks:
        """What is printed."""

    @abstractmethod
    def drawn(self) -> Blocks:
        """What is saved and shown in notebooks: more than is printed."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""

    def __str__(self) -> str:
        return as_text(self.shown())

    def _repr_html_(self) -> str:
        return as_fragment(self.drawn())

    def writers(self) -> dict[str, Callable[[], str]]:
        """How each kind of file is written, by the end of its name."""
        return {
            ".svg": lambda: as_svg(self.drawn(), self.heading),
            ".html": lambda: as_page(self.drawn(), self.heading),
            ".md": lambda: as_markdown(self.drawn()),
            ".txt": lambda: as_text(self.drawn()) + "\n",
            ".json": lambda: json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        }

    def save(self, path: Path | str) -> Path:
        """Write it to a file whose name says how: .svg, .html, .md, .txt, .json or, for a case, .toml."""
        target, writers = Path(path), self.writers()
        if target.suffix.lower() not in writers:
            raise InputError(unknown(f"{target}: the end of the name", target.suffix, writers))
        if not target.absolute().parent.is_dir():
            raise InputError(f"{target}: there is no folder {target.parent}. Make it first.")
        write_atomically(target, writers[target.suffix.lower()]())
        return target
