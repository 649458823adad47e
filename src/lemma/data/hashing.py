"""SHA-256 sums of files, alone and together."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from lemma.data.progress import Advance

BLOCK = 1 << 20


def file_sum(path: Path, advance: Advance | None = None) -> str:
    """The SHA-256 of one file, as `sha256sum` prints it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            if advance:
                advance(len(block))
    return digest.hexdigest()


def joint_sum(sums: Sequence[str]) -> str:
    """One sum for several files: that of a single file itself, else the SHA-256 over the joined sums.

    >>> joint_sum(["ab"])
    'ab'
    >>> joint_sum(["ab", "cd"]) == text_sum("abcd")
    True
    """
    return sums[0] if len(sums) == 1 else text_sum("".join(sums))


def text_sum(text: str) -> str:
    """The SHA-256 of a string's UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()


def files_sum(paths: Iterable[Path], advance: Advance | None = None) -> str:
    """The joint sum of some files, in this order."""
    return joint_sum([file_sum(path, advance) for path in paths])
