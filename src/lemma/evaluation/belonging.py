"""Which texts belong to which pictures; texts that are the same belong to the pictures of each."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Int64

from lemma.data import Captioned, Rows


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
    (names,) = names_of(examples.rows)
    return Belonging(owners_of(examples), names)


def owners_of(examples: Captioned) -> Int64[np.ndarray, "texts"]:
    """The picture that each caption belongs to."""
    counts = np.diff(examples.first)
    return np.repeat(np.arange(len(counts)), counts)


def names_of(*sets: Rows) -> tuple[Int64[np.ndarray, "texts"], ...]:
    """A number for every text of several sets, the same where texts are the same token for token.

    >>> one, other = Rows(np.array([5, 6, 5]), np.array([0, 1, 3])), Rows(np.array([6, 5]), np.array([0, 2]))
    >>> [names.tolist() for names in names_of(one, other)]
    [[0, 1], [1]]
    """
    numbers: dict[bytes, int] = {}
    found = []
    for rows in sets:
        tokens, bounds = rows.tokens.astype(np.int64), rows.bounds.tolist()
        keys = (tokens[start:end].tobytes() for start, end in pairwise(bounds))
        found.append(np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64))
    return tuple(found)
