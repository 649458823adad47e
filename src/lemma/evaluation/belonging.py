"""Which texts belong to which pictures; texts that are the same belong to the pictures of each."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from lemma.data import Captioned


@dataclass(frozen=True)
class Belonging:
    """Which text belongs to which picture: the picture that owns each, and a number that equal texts share."""

    owners: Int64[np.ndarray, "texts"]
    names: Int64[np.ndarray, "texts"]

    @property
    def images(self) -> int:
        """How many pictures there are; each owns a text at least."""
        return int(self.owners.max()) + 1

    def of_images(self, rows: slice) -> np.ndarray:
        """Which texts are right for some of the pictures: their own, and all that are the same."""
        mine = (self.owners >= rows.start) & (self.owners < rows.stop)
        has = np.zeros((rows.stop - rows.start, int(self.names.max()) + 1), dtype=bool)
        has[self.owners[mine] - rows.start, self.names[mine]] = True
        return has[:, self.names]

    def of_texts(self, rows: slice) -> np.ndarray:
        """Which pictures are right for some of the texts: all that own the text or one that is the same."""
        right = np.zeros((rows.stop - rows.start, self.images), dtype=bool)
        queries, texts = np.nonzero(self.names[rows, None] == self.names)
        right[queries, self.owners[texts]] = True
        return right


def belonging_of(examples: Captioned) -> Belonging:
    """Which of the captions belong to which of the pictures."""
    _, names = np.unique(examples.names, return_inverse=True)
    return Belonging(owners_of(examples), names.astype(np.int64))


def owners_of(examples: Captioned) -> Int64[np.ndarray, "texts"]:
    """The picture that each caption belongs to."""
    counts = np.diff(examples.first)
    return np.repeat(np.arange(len(counts)), counts)
