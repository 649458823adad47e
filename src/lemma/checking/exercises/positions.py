"""Exercises on position encodings: sinusoidal, rotary and ALiBi."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from lemma.checking.exercises.base import ValueExercise
from lemma.checking.expected_values import ExpectedValue, expect_numbers


class PositionExercise(ValueExercise):
    """Position encodings computed by hand."""

    kind: ClassVar[str] = "position"

    scheme: Literal["sinusoidal", "rotary", "alibi"] = "sinusoidal"
    """Scheme of positions."""
    width: Annotated[int, Field(ge=2, le=256, multiple_of=2)] = 4
    """Width of the vectors, an even number."""
    position: int = 1
    """Position of the vector, counted from 0."""
    base: Annotated[float, Field(gt=1)] = 10000.0
    """Base of the wavelengths."""
    vector: tuple[float, ...] = ()
    """Vector that is rotated."""
    heads: Annotated[int, Field(ge=1, le=256)] = 8
    """Number of heads, for ALiBi."""

    def expected_values(self) -> Sequence[ExpectedValue]:
        """Return the angles and the encoding, or the slopes of the heads."""
        if self.scheme == "alibi":
            slopes = 2.0 ** (-8 * np.arange(1, self.heads + 1) / self.heads)
            return [expect_numbers("slopes m", slopes, formula="m_h = 2^(−8h/H) for h = 1 … H")]
        frequencies = self.base ** (-np.arange(0, self.width, 2) / self.width)
        angles = self.position * frequencies
        encoding = np.stack([np.sin(angles), np.cos(angles)], axis=1).ravel()
        return [
            expect_numbers("frequencies omega", frequencies, formula="ω_i = base^(−2i/d)"),
            expect_numbers("angles", angles, formula="position·ω_i"),
            expect_numbers(
                "PE", encoding, meaning="sine and cosine in turns", formula="sin, cos of each angle in turns"
            ),
        ]
