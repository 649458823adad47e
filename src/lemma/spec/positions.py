"""The position encodings of a Transformer: one tagged choice, open to other packages."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from lemma.spec.base import Spec
from lemma.spec.plugins import OpenChoice, PluginGroup, by_name


class PositionsSpec(Spec):
    """What every position encoding says of itself."""

    endless: ClassVar[bool] = False
    """Whether it depends on distances only, so that the model can read past the trained context."""
    tabled: ClassVar[bool] = False
    """Whether it learns something for each position of the context, and has nothing for later ones."""
    scaled: ClassVar[bool] = False
    """Whether embeddings are multiplied by √d before it is added to them."""
    paired: ClassVar[bool] = False
    """Whether it works on pairs of a head's coordinates, so that the head width must be even."""

    rotates: ClassVar[bool | str] = False
    """Whether it changes queries and keys, and so acts between their two matrices."""
    biases: ClassVar[bool | str] = False
    """Whether it adds to scores, by distance."""

    if TYPE_CHECKING:
        kind: Any


class NoPositions(PositionsSpec):
    """No position encoding: only the causal mask gives the order."""

    kind: Literal["none"] = "none"


class Learned(PositionsSpec):
    """A learned vector for each position of the context, added to the embedding (Gehring et al. 2017)."""

    tabled: ClassVar[bool] = True
    kind: Literal["learned"] = "learned"


class Sinusoidal(PositionsSpec):
    """Fixed sines and cosines of geometric wavelengths, added to √d times the embedding (Vaswani et al. 2017)."""

    scaled: ClassVar[bool] = True
    kind: Literal["sinusoidal"] = "sinusoidal"
    base: float = Field(default=10_000.0, gt=1)
    """The longest wavelength is 2π times this."""
    first: int = Field(default=0, ge=0)
    """Number of the first position; 1 gives the table of sources that count from 1."""


class Rotary(PositionsSpec):
    """Queries and keys rotated pair by pair by angles that grow with the position (Su et al. 2021).

    A score then depends only on the distance of two tokens, so that the model can read past the trained context.
    """

    endless: ClassVar[bool] = True
    paired: ClassVar[bool] = True
    rotates: ClassVar[bool | str] = True
    kind: Literal["rotary"] = "rotary"
    base: float = Field(default=10_000.0, gt=1)
    """The longest wavelength is 2π times this."""
    first: int = Field(default=0, ge=0)
    """Number of the first position; 1 gives the vectors of sources that count from 1, and the same scores."""


class Alibi(PositionsSpec):
    """A penalty of slope × distance on every score, with a fixed slope per head (Press et al. 2022).

    The slopes are the geometric sequence 2^(−8/h), 2^(−16/h), …, 2^(−8); the model can read past the trained context.
    """

    endless: ClassVar[bool] = True
    biases: ClassVar[bool | str] = True
    kind: Literal["alibi"] = "alibi"


class NewPositions(PositionsSpec):
    """A position encoding that another package brings: its settings, and the modules that implement it.

    A subclass has its name as `kind: Literal["fading"] = "fading"` and names one module or more, each as
    `package.module:Class` and each called with this spec, the context and a size.
    """

    adds: ClassVar[bool | str] = False
    """Adds to embeddings: made with the stream's width, called with vectors (batch, time, width) and `start`."""
    rotates: ClassVar[bool | str] = False
    """Changes queries and keys: made with a head's width, called with (batch, heads, time, width) and `start`."""
    biases: ClassVar[bool | str] = False
    """Adds to scores: made with the number of heads, called with distances (n) and gives (heads, n)."""


KINDS = ("none", "learned", "sinusoidal", "rotary", "alibi")
POSITIONS: PluginGroup[NewPositions] = PluginGroup("lemma.positions", "positions", NewPositions, "kind", lambda: KINDS)
"""The position encodings of other packages."""


_OURS = Annotated[NoPositions | Learned | Sinusoidal | Rotary | Alibi, Field(discriminator="kind")]
Positions = Annotated[
    NoPositions | Learned | Sinusoidal | Rotary | Alibi | NewPositions,
    OpenChoice(_OURS, POSITIONS),
    by_name("positions", KINDS, POSITIONS),
]
