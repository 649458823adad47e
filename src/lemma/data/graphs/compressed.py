"""A matrix of which only what is not nought is kept, row after row."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from jaxtyping import Float32, Int64


@dataclass(frozen=True)
class Compressed:
    """Row i holds `values[starts[i]:starts[i+1]]` in the columns of the same places, and nought elsewhere."""

    starts: Int64[np.ndarray, "rows_and_one"]
    columns: Int64[np.ndarray, "entries"]
    values: Float32[np.ndarray, "entries"]
    width: int

    @classmethod
    def identity(cls, size: int) -> Self:
        """One feature a node, its own."""
        return cls(np.arange(size + 1), np.arange(size), np.ones(size, dtype=np.float32), size)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.starts) - 1, self.width

    @property
    def rows(self) -> Int64[np.ndarray, "entries"]:
        """The row of every entry."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def scaled_rows(self) -> Self:
        """The same with rows that sum to one; an empty row stays empty.

        >>> bag = Compressed(np.array([0, 2, 2]), np.array([0, 2]), np.ones(2, dtype=np.float32), 3)
        >>> bag.scaled_rows().dense().tolist()
        [[0.5, 0.0, 0.5], [0.0, 0.0, 0.0]]
        """
        sums = np.zeros(len(self.starts) - 1, dtype=np.float64)
        np.add.at(sums, self.rows, self.values)
        values = (self.values / sums[self.rows]).astype(np.float32)
        return type(self)(self.starts, self.columns, values, self.width)

    def dense(self) -> Float32[np.ndarray, "rows width"]:
        """The whole matrix."""
        full = np.zeros(self.shape, dtype=np.float32)
        full[self.rows, self.columns] = self.values
        return full


Features = Compressed | Float32[np.ndarray, "nodes features"]
"""What is known of each node: few words of many, or a row of numbers."""
