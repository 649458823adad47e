"""Specs of position encodings: a tagged choice, open to plugins."""

from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from lemma.spec.base import Spec, kind_validator
from lemma.spec.plugins import OpenChoice, PluginGroup


class PositionsSpec(Spec):
    """Base class of position encodings and what models need to know of them."""

    extrapolates: ClassVar[bool] = False
    """Whether it depends on distances only, so that the model can read past the trained context."""
    tabled: ClassVar[bool] = False
    """Whether it has learned parameters for each position of the context, and none for later ones."""
    scaled: ClassVar[bool] = False
    """Whether embeddings are multiplied by √d before it is added to them."""
    paired: ClassVar[bool] = False
    """Whether it works on pairs of a head's coordinates, so that the head width must be even."""

    rotates: ClassVar[bool | str] = False
    """Whether it changes queries and keys, and so acts between their two matrices."""
    biases: ClassVar[bool | str] = False
    """Whether it adds a bias to scores by distance."""
    shared: ClassVar[bool] = False
    """Whether all layers share the bias on scores."""

    if TYPE_CHECKING:
        kind: Any

    @property
    def head_multiple(self) -> int:
        """Number that must divide a head's width."""
        return 2 if self.paired else 1


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
    """Base of the wavelengths; the longest is 2π times this."""
    first: int = Field(default=0, ge=0)
    """Number of the first position; 1 gives the table of sources that count from 1."""


class NoScaling(Spec):
    """Angles as they are: position × frequency."""

    kind: Literal["none"] = "none"


class LinearScaling(Spec):
    """All angles divided by one factor, so that a longer context has the angles of a shorter one (Chen et al. 2023)."""

    kind: Literal["linear"] = "linear"
    factor: float = Field(default=2.0, ge=1)
    """Factor by which the context is extended."""


class Llama3Scaling(Spec):
    """Slow angles divided by a factor, fast ones kept, and a smooth passage between them (Llama 3, Dubey et al. 2024).

    An angle is slow if it turns fewer than `slow` times within the original context, fast if more than `fast` times.
    """

    kind: Literal["llama3"] = "llama3"
    factor: float = Field(default=8.0, ge=1)
    """Divisor of slow angles."""
    slow: float = Field(default=1.0, gt=0)
    """Angles that turn fewer times than this within the original context are divided by the factor."""
    fast: float = Field(default=4.0, gt=0)
    """Angles that turn more times than this within the original context are unchanged."""
    original_context: int = Field(default=8192, ge=1)
    """Context length before the extension."""


class YarnScaling(Spec):
    """Slow angles divided by a factor, fast ones kept, a ramp between them, and larger scores (YaRN, Peng et al. 2024).

    The ramp is linear in the number of the pair, between the pairs that turn `fast` and `slow` times within the
    original context.
    """

    kind: Literal["yarn"] = "yarn"
    factor: float = Field(default=4.0, ge=1)
    """Divisor of slow angles."""
    slow: float = Field(default=1.0, gt=0)
    """Pairs that turn fewer times than this within the original context are slowed down by the factor."""
    fast: float = Field(default=32.0, gt=0)
    """Pairs that turn more times than this within the original context are unchanged."""
    original_context: int = Field(default=4096, ge=1)
    """Context length before the extension."""
    attention_factor: float | None = Field(default=None, gt=0)
    """Multiplier of rotated queries and keys. Default: 1 + ln(factor)/10."""
    whole_pairs: bool = True
    """Whether the ramp begins and ends at whole pairs."""


SCALINGS = ("none", "linear", "llama3", "yarn")
Scaling = Annotated[
    NoScaling | LinearScaling | Llama3Scaling | YarnScaling,
    Field(discriminator="kind"),
    kind_validator("scaling", SCALINGS, default="none"),
]


class Rotary(PositionsSpec):
    """Queries and keys rotated pair by pair by angles that grow with the position (Su et al. 2021).

    A score then depends only on the distance of two tokens, so that the model can read past the trained context.
    """

    extrapolates: ClassVar[bool] = True
    paired: ClassVar[bool] = True
    rotates: ClassVar[bool | str] = True
    kind: Literal["rotary"] = "rotary"
    base: float = Field(default=10_000.0, gt=1)
    """Base of the wavelengths; the longest is 2π times this."""
    first: int = Field(default=0, ge=0)
    """Number of the first position; 1 gives the vectors of sources that count from 1, and the same scores."""
    share: float = Field(default=1.0, gt=0, le=1)
    """Fraction of a head's coordinates to rotate, the first ones (GPT-NeoX, Black et al. 2022)."""
    layout: Literal["pairs", "halves"] = "pairs"
    """Coordinates that form a pair: neighbours, as in the paper, or those half the width apart (Hugging Face)."""
    scaling: Scaling = NoScaling()
    """Scaling of angles for a longer context: none, linear, llama3 or yarn."""

    def rotary_dim(self, head_width: int) -> int:
        """Return the number of coordinates that are rotated in a head of this width.

        >>> Rotary(share=0.25).rotary_dim(64)
        16
        """
        return int(head_width * self.share)

    @property
    def head_multiple(self) -> int:
        """Number that must divide a head's width, to rotate whole pairs."""
        return 2 * Fraction(self.share).limit_denominator(1000).denominator


class Alibi(PositionsSpec):
    """A penalty of slope × distance on every score, with a fixed slope per head (Press et al. 2022).

    The slopes are the geometric sequence 2^(−8/h), 2^(−16/h), …, 2^(−8); the model can read past the trained context.
    """

    extrapolates: ClassVar[bool] = True
    biases: ClassVar[bool | str] = True
    kind: Literal["alibi"] = "alibi"


class Relative(PositionsSpec):
    """A learned number for every distance and head, added to scores and shared by all layers (T5, Raffel et al. 2020).

    Small distances have a number each, larger ones share it in buckets that grow like the logarithm; where tokens see
    both sides, half of the buckets are for the tokens after them.
    """

    extrapolates: ClassVar[bool] = True
    biases: ClassVar[bool | str] = True
    shared: ClassVar[bool] = True
    kind: Literal["relative"] = "relative"
    buckets: int = Field(default=32, ge=4, multiple_of=4)
    """Number of learned biases per head."""
    farthest: int = Field(default=128, ge=2)
    """Distance from which on all distances share the last bucket."""

    @model_validator(mode="after")
    def _check_buckets(self) -> Self:
        """Check that `farthest` is beyond the distances that have a bucket of their own."""
        if self.farthest <= self.buckets // 2:
            raise ValueError(
                f"relative.farthest = {self.farthest} must be larger than half of relative.buckets = {self.buckets}: "
                "that many distances have a bucket each."
            )
        return self


class NewPositions(PositionsSpec):
    """Base class of position encodings that plugins bring: the settings, and the modules that implement it.

    A subclass has its name as `kind: Literal["fading"] = "fading"` and names one module or more, each as
    `package.module:Class` and each called with this spec, the context and a size.
    """

    adds: ClassVar[bool | str] = False
    """Adds to embeddings: made with the stream's width, called with vectors (batch, time, width) and `start`."""
    rotates: ClassVar[bool | str] = False
    """Changes queries and keys: made with a head's width, called with (batch, heads, time, width) and `start`."""
    biases: ClassVar[bool | str] = False
    """Adds to scores: made with the number of heads, called with distances (n) and gives (heads, n)."""


BUILT_IN_KINDS = ("none", "learned", "sinusoidal", "rotary", "alibi", "relative")
PLUGIN_POSITIONS: PluginGroup[NewPositions] = PluginGroup(
    "lemma.positions", "positions", NewPositions, "kind", lambda: BUILT_IN_KINDS
)
"""Position encodings of plugins."""


_BuiltIn = Annotated[NoPositions | Learned | Sinusoidal | Rotary | Alibi | Relative, Field(discriminator="kind")]
Positions = Annotated[
    NoPositions | Learned | Sinusoidal | Rotary | Alibi | Relative | NewPositions,
    OpenChoice(_BuiltIn, PLUGIN_POSITIONS),
    kind_validator("positions", BUILT_IN_KINDS, PLUGIN_POSITIONS),
]
