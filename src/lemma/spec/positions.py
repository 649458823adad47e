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
    """Fixed sines and cosines of geometric wavelengths, added to the embedding (Vaswani et al. 2017)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    base: float = Field(default=10_000.0, gt=1)
    """The longest wavelength is 2π times this."""


KINDS = ("none", "learned", "sinusoidal")


def _from_name(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value not in KINDS:
        raise ValueError(unknown("positions", value, KINDS))
    return {"kind": value}


Positions = Annotated[NoPositions | Learned | Sinusoidal, Field(discriminator="kind"), BeforeValidator(_from_name)]
