"""A cross-modal search with every number on the way: projections, products, cosines, winners."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from lemma.looking.worked.alike import directions, largest
from lemma.looking.worked.steps import plain_rows

Matrix = Float[np.ndarray, "rows columns"]


@dataclass(frozen=True, eq=False)
class MatchingSteps:
    """P = I·W_i, Q = T·W_t, scores P·Qᵀ, and the cosines of the same vectors."""

    images: tuple[str, ...]
    sentences: tuple[str, ...]
    image_inputs: Float[np.ndarray, "images image_width"]
    sentence_inputs: Float[np.ndarray, "sentences text_width"]
    image_map: Float[np.ndarray, "image_width shared"]
    sentence_map: Float[np.ndarray, "text_width shared"]

    @cached_property
    def image_vectors(self) -> Float[np.ndarray, "images shared"]:
        """I·W_i."""
        return self.image_inputs @ self.image_map

    @cached_property
    def sentence_vectors(self) -> Float[np.ndarray, "sentences shared"]:
        """T·W_t."""
        return self.sentence_inputs @ self.sentence_map

    @cached_property
    def scores(self) -> Float[np.ndarray, "images sentences"]:
        """The product of every image with every sentence."""
        return self.image_vectors @ self.sentence_vectors.T

    @cached_property
    def cosines(self) -> Float[np.ndarray, "images sentences"]:
        """The products of the same vectors brought to length 1; no number where a vector is zero."""
        return directions(self.image_vectors) @ directions(self.sentence_vectors).T

    @cached_property
    def image_lengths(self) -> Float[np.ndarray, "images"]:
        """|p| of every image."""
        return np.linalg.norm(self.image_vectors, axis=1)

    @cached_property
    def sentence_lengths(self) -> Float[np.ndarray, "sentences"]:
        """|q| of every sentence."""
        return np.linalg.norm(self.sentence_vectors, axis=1)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; a cosine that is None belongs to a vector of nothing but zeros."""
        return {
            "images": list(self.images),
            "sentences": list(self.sentences),
            "image_vectors": self.image_vectors.tolist(),
            "sentence_vectors": self.sentence_vectors.tolist(),
            "image_lengths": self.image_lengths.tolist(),
            "sentence_lengths": self.sentence_lengths.tolist(),
            "scores": self.scores.tolist(),
            "cosines": plain_rows(self.cosines),
        }


@dataclass(frozen=True)
class Match:
    """What fits one image, or one sentence, best: by product and by cosine; several if they tie."""

    name: str
    by_product: tuple[str, ...]
    product: float
    by_cosine: tuple[str, ...]
    cosine: float | None
    """None where the cosine is not defined."""

    @property
    def agree(self) -> bool:
        """Whether both name the same."""
        return self.by_product == self.by_cosine


def matches(rows: Sequence[str], columns: Sequence[str], scores: Matrix, cosines: Matrix) -> tuple[Match, ...]:
    """The winner of every row."""
    return tuple(_match(name, columns, *pair) for name, *pair in zip(rows, scores, cosines, strict=True))


def _match(name: str, columns: Sequence[str], scores: np.ndarray, cosines: np.ndarray) -> Match:
    known = cosines[~np.isnan(cosines)]
    best = float(known.max()) if known.size else None
    by_cosine = largest(columns, cosines) if best is not None else ()
    return Match(name, largest(columns, scores), float(scores.max()), by_cosine, best)
