"""Which vectors are nearest to a query: exact, by one product with all of them, block by block."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int64

BLOCK = 1 << 14
"""Rows that are multiplied at once: their scores fit the cache, and of a mapped file only so much is touched."""

Queries = Float32[np.ndarray, "queries width"]


class Nearest(NamedTuple):
    """The rows nearest to each query, the nearest first, with their scores; of equal ones the earlier row first."""

    rows: Int64[np.ndarray, "queries found"]
    scores: Float32[np.ndarray, "queries found"]


def find(vectors: Float32[np.ndarray, "rows width"], queries: Queries, k: int, block: int = BLOCK) -> Nearest:
    """The k rows with the largest product with each query: cosines, where all have length 1.

    >>> rows = np.array([[1, 0], [0, 1], [1, 0]], dtype=np.float32)
    >>> found = find(rows, np.array([[0.6, 0.8]], dtype=np.float32), 2)
    >>> found.rows.tolist(), found.scores.round(2).tolist()
    ([[1, 0]], [[0.800000011920929, 0.6000000238418579]])
    """
    queries = np.ascontiguousarray(queries, dtype=np.float32)
    best = [(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)) for _ in queries]
    for first in range(0, len(vectors), block):
        products = queries @ np.asarray(vectors[first : first + block]).T
        best = [_joined(one, first, scores, k) for one, scores in zip(best, products, strict=True)]
    found = min(k, len(vectors))
    rows = np.array([rows for rows, _ in best], dtype=np.int64).reshape(len(queries), found)
    return Nearest(rows, np.array([scores for _, scores in best], dtype=np.float32).reshape(len(queries), found))


Best = tuple[Int64[np.ndarray, "found"], Float32[np.ndarray, "found"]]


def _joined(best: Best, first: int, scores: Float32[np.ndarray, "block"], k: int) -> Best:
    """The best of those so far and of a block; sorting is stable, so that earlier rows come first among equals."""
    places = _largest(scores, k, best[1][-1] if len(best[1]) == k else None)
    rows, values = np.concatenate([best[0], places + first]), np.concatenate([best[1], scores[places]])
    order = np.argsort(-values, kind="stable")[:k]
    return rows[order], values[order]


def _largest(scores: Float32[np.ndarray, "block"], k: int, least: float | None) -> Int64[np.ndarray, "found"]:
    """The places of the k largest scores in their order, only of such as beat what is there already."""
    places = np.arange(len(scores)) if least is None else np.flatnonzero(scores > least)
    if len(places) <= k:
        return places
    inside = scores[places]
    bound = np.partition(inside, len(inside) - k)[len(inside) - k]
    above, level = places[inside > bound], places[inside == bound]
    return np.sort(np.concatenate([above, level[: k - len(above)]]))
