"""What is looked for, as a vector of the shared space: texts and pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from lemma.data.images.decoding import decode, quietly
from lemma.errors import InputError
from lemma.retrieval.embedding import Embedder


@dataclass(frozen=True)
class Query:
    """What is looked for: a text or a picture, as a vector."""

    name: str
    vector: Float32[np.ndarray, "shared"]
    remark: str = ""
    tokens: np.ndarray | None = None
    picture: Path | None = None


def text_queries(embedder: Embedder, texts: Sequence[str]) -> list[Query]:
    """Texts to look for; one of which the tokenizer knows nothing is refused."""
    vectors, read = embedder.texts(texts)
    for text, known in zip(texts, read.known, strict=True):
        if not known:
            raise InputError(
                f"the query '{text}' holds nothing that the run's tokenizer knows "
                f"({embedder.run.tokenizer.about}). Use words that the captions have."
            )
    return [
        Query(text, vectors[place], read.remarks[place], read.rows.beside([place])[0])
        for place, text in enumerate(texts)
    ]


def picture_query(embedder: Embedder, path: Path, framed: bool = False) -> Query:
    """A picture to look for."""
    with quietly():
        pixels = decode(path, embedder.side, framed=framed)
    return Query(path.name, embedder.pictures(pixels[None])[0], picture=path)
