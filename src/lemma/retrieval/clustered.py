"""Past a million vectors: faiss looks only where a query's neighbours are likely (an inverted file, not exact).

Vectors are divided among √n cells by k-means (Jégou et al. 2011, product IVF without compression); a query is compared
with the vectors of the nearest cells. With all cells looked at, the result is the exact one.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np

from lemma.data.atomic import replacing
from lemma.errors import InputError
from lemma.retrieval.index import Index
from lemma.retrieval.ranking import Nearest, Queries

MANY = 1_000_000
"""From so many vectors on faiss is used where it is installed."""
SHARE = 16
"""One cell in so many is looked at."""
BLOCK = 1 << 16
SAMPLES = 64
"""Vectors a cell that the cells are learned from."""


def installed() -> bool:
    """Whether faiss can be used."""
    try:
        import faiss  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        return False
    return True


def find_clustered(index: Index, queries: Queries, k: int, looked: int | None = None) -> Nearest:
    """The k nearest among the vectors of the `looked` cells nearest to each query, one in sixteen if not told."""
    cells: Any = _cells(index)
    cells.nprobe = min(cells.nlist, looked or max(1, cells.nlist // SHARE))
    scores, rows = cells.search(np.ascontiguousarray(queries, dtype=np.float32), min(k, len(index)))
    return Nearest(rows.astype(np.int64), scores.astype(np.float32))


def _faiss() -> Any:
    try:
        import faiss  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError("faiss is not installed. Install it: pip install 'lemma[faiss]'; or leave it out.") from None
    return faiss


def _cells(index: Index) -> Any:
    """The cells of an index, kept beside it; made anew whenever the index has changed."""
    faiss = _faiss()
    path = index.place / f"cells-{index.head.generation}-{index.head.rows}.faiss"
    if not path.exists():
        _remove_others(path)
        with replacing(path) as temporary:
            faiss.write_index(_divided(faiss, index), str(temporary))
    return faiss.read_index(str(path), faiss.IO_FLAG_MMAP)


def _divided(faiss: Any, index: Index) -> Any:
    rows, width = index.vectors.shape
    count = max(1, round(math.sqrt(rows)))
    cells = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, count, faiss.METRIC_INNER_PRODUCT)
    sample = np.random.default_rng(0).permutation(rows)[: SAMPLES * count]
    cells.train(np.ascontiguousarray(index.vectors[np.sort(sample)]))
    for first in range(0, rows, BLOCK):
        cells.add(np.ascontiguousarray(index.vectors[first : first + BLOCK]))
    return cells


def _remove_others(path: Path) -> None:
    for old in path.parent.glob("cells-*.faiss"):
        old.unlink(missing_ok=True)
