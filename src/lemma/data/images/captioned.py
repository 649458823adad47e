"""Pictures and their captions as numbers, batch by batch."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, UInt8

from lemma.data.examples import Indices, Rows


@dataclass(frozen=True)
class Captioned:
    """Pictures as pixels, each with the tokens of one caption or several."""

    pixels: UInt8[np.ndarray, "pictures 3 side side"]
    rows: Rows
    """The tokens of all captions."""
    first: Int64[np.ndarray, "pictures_and_one"]
    """Picture i owns the captions first[i] to first[i + 1]."""
    names: Int64[np.ndarray, "captions"]
    """A number of each caption, the same wherever the same is said, known to the tokenizer or not."""

    @property
    def lengths(self) -> Int64[np.ndarray, "pictures"]:
        """The tokens of each picture's longest caption, marks included."""
        return np.maximum.reduceat(self.rows.lengths, self.first[:-1])

    def __len__(self) -> int:
        """The tokens of all captions together."""
        return len(self.rows)

    def batch(
        self, indices: Indices, choice: int | Int64[np.ndarray, "batch"] = 0
    ) -> tuple[UInt8[np.ndarray, "batch 3 side side"], Int64[np.ndarray, "batch longest"]]:
        """Some pictures, and of each the caption of that number, counted round, filled up with −1."""
        return np.asarray(self.pixels[np.asarray(indices, dtype=np.int64)]), self.captions(indices, choice)

    def captions(
        self, indices: Indices, choice: int | Int64[np.ndarray, "batch"] = 0
    ) -> Int64[np.ndarray, "batch longest"]:
        """The captions of that number of some pictures, counted round, filled up with −1."""
        places = np.asarray(indices, dtype=np.int64)
        return self.rows.beside(self.first[places] + choice % np.diff(self.first)[places])
