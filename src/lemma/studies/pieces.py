"""A text cut into pieces of one length, a few of which are read at once."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

AT_ONCE = 8192  # tokens read in one go


def pieces_of(tokens: np.ndarray, length: int, most: int) -> Int[Tensor, "pieces length"]:
    """Up to `most` pieces that do not overlap, spread evenly over the text.

    >>> pieces_of(np.arange(10), 3, 2).tolist()
    [[0, 1, 2], [6, 7, 8]]
    """
    count = len(tokens) // length
    chosen = np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))
    rows = [np.asarray(tokens[place * length : (place + 1) * length], dtype=np.int64) for place in chosen]
    return torch.from_numpy(np.stack(rows))


def in_batches(pieces: Int[Tensor, "pieces length"]) -> Iterator[Int[Tensor, "batch length"]]:
    """The pieces, as many at a time as can be read in one go."""
    return iter(pieces.split(max(1, AT_ONCE // pieces.shape[1])))
