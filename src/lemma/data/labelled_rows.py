"""Texts as tokens with the numbers of their classes."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from lemma.data.examples import Indices, Rows


@dataclass(frozen=True)
class Labelled:
    """Texts as tokens, each with the number of its class."""

    rows: Rows
    classes: Int64[np.ndarray, "texts"]

    @property
    def lengths(self) -> Int64[np.ndarray, "texts"]:
        """The tokens of each text, marks included."""
        return self.rows.lengths

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: Indices) -> tuple[Int64[np.ndarray, "batch ..."], Int64[np.ndarray, "batch one"]]:
        """Some texts side by side, filled up with −1, and the class of each."""
        return self.rows.beside(indices), self.classes[np.asarray(indices, dtype=np.int64)][:, None]
