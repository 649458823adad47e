"""Captions and queries as a text tower reads them: what is written in two ways is read in one."""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from jaxtyping import Int64


def levelled(text: str) -> str:
    """Small letters, and one blank before every word, the first one too: a word has the same tokens wherever it stands.

    >>> levelled("A  Red heart")
    ' a red heart'
    """
    return "".join(f" {word}" for word in text.lower().split())


def numbered(texts: Iterable[str]) -> Int64[np.ndarray, "texts"]:
    """A number of each text, the same for texts that are read as one, in whichever set they stand: 64 bits of a hash.

    >>> one, other, different = numbered(["A  Red heart", "a red heart", "a blue heart"]).tolist()
    >>> one == other, one == different
    (True, False)
    """
    sums = (blake2b(levelled(text).encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(sums), dtype="<i8").astype(np.int64)
