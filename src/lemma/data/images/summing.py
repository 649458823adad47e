"""The SHA-256 sums of many files, read in threads."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lemma.data.hashing import file_sum, text_sum
from lemma.data.progress import Progress, counting
from lemma.data.reading import exists


def picture_sums(paths: Sequence[Path], progress: Progress | None = None) -> list[str]:
    """The sum of each file; of one that cannot be read, which is said when it is decoded, the sum of its path."""
    sizes = [size_of(path) for path in paths]
    advance = counting(progress, "reading pictures", sum(sizes))
    sums: list[str] = []
    with ThreadPoolExecutor() as threads:
        for size, total in zip(sizes, threads.map(_sum, paths), strict=True):
            sums.append(total)
            advance(size)
    return sums


def size_of(path: Path) -> int:
    """The bytes of a file; none if it is gone."""
    return path.stat().st_size if exists(path) else 0


def _sum(path: Path) -> str:
    try:
        return file_sum(path)
    except OSError:
        return text_sum(f"{path} cannot be read")
