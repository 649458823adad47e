"""How a Transformer learns where a token stands: one tagged choice."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from lemma.errors import unknown
from lemma.spec.base import Spec


class NoPositions(Spec):
    """No position information: only the causal mask tells the order."""

    kind: Literal["none"] = "none"


class Learned(Spec):
    """A learned vector for each of the `context` positions, added to the embedding."""

    kind: Literal["learned"] = "learned"


class Sinusoidal(Spec):
    """Fixed sines and cosines of geometric wavelengths, added to √d times the embedding (Vaswani et al. 2017)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    base: float = Field(default=10_000.0, gt=1)
    """The longest wavelength is 2π times this."""
    first: int = Field(default=0, ge=0)
    """The number of the first position; 1 gives the table of sources that count from 1."""


class Rotary(Spec):
    """Queries and keys turned pair by pair by angles that grow with the position (Su et al. 2021).

    A score then depends only on how far two tokens lie apart, so that nothing ends at the trained context.
    """

    kind: Literal["rotary"] = "rotary"
    base: float = Field(default=10_000.0, gt=1)
    """The longest wavelength is 2π times this."""
    first: int = Field(default=0, ge=0)
    """The number of the first position; 1 gives the vectors of sources that count from 1, and the same scores."""


class Alibi(Spec):
    """A penalty of slope × distance on every score, with a fixed slope a head (Press et al. 2022).

    The slopes are the geometric sequence 2^(−8/h), 2^(−16/h), …, 2^(−8); nothing ends at the trained context.
    """

    kind: Literal["alibi"] = "alibi"


KINDS = ("none", "learned", "sinusoidal", "rotary", "alibi")


def _from_name(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value not in KINDS:
        raise ValueError(unknown("positions", value, KINDS))
    return {"kind": value}


Positions = Annotated[
    NoPositions | Learned | Sinusoidal | Rotary | Alibi, Field(discriminator="kind"), BeforeValidator(_from_name)
]
