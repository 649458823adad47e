"""How alike vectors are, and which value of several is the largest, ties told."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float


def largest(names: Sequence[str], values: Float[np.ndarray, "names"]) -> tuple[str, ...]:
    """The names of the largest values; equal up to rounding counts as equal."""
    near = np.isclose(values, np.nanmax(values), rtol=1e-12, atol=1e-15)
    return tuple(name for name, chosen in zip(names, near, strict=True) if chosen)


def directions(vectors: Float[np.ndarray, "names width"]) -> Float[np.ndarray, "names width"]:
    """Vectors of length 1; first brought to size 1, so that squares of very small or large numbers are not lost."""
    sizes = np.abs(vectors).max(axis=1, keepdims=True)
    vectors = np.divide(vectors, sizes, out=np.full_like(vectors, np.nan), where=sizes > 0)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
