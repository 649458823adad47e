"""Images and texts in one space: two towers, and the cross-attention that looks at both (problems E7 and E8)."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from lemma.spec.base import Letter, Spec
from lemma.spec.bodies import AnyBody, Reading
from lemma.spec.family import Size, check_heads
from lemma.spec.transformer import Encoder

CHANNELS = 3
"""Red, green and blue; what is transparent is laid on white."""


class DualEncoder(Reading):
    """A patch Transformer for images, any body for texts, and a linear map of each to a shared width.

    An image and a text are as alike as their vectors' cosine; both towers learn to be most alike where they belong
    together (Radford et al. 2021). The image tower is made of the encoder's own parts (Dosovitskiy et al. 2021).
    """

    family: Literal["dual-encoder"] = "dual-encoder"
    body: AnyBody = Encoder(width=128, depth=1, context=32)
    """What reads the text: a language model without its output layer, or an encoder."""
    grid: Annotated[Size, Letter("G")] = 4
    """Patches on a side of an image."""
    patch: Annotated[Size, Letter("P")] = 6
    """Pixels on a side of a patch; an image is read at grid times patch pixels on a side."""
    image_width: Annotated[Size, Letter("d_i")] = 128
    """Width of the image tower's stream."""
    image_depth: Annotated[Size, Letter("L_i")] = 2
    """Layers of the image tower."""
    image_heads: Annotated[Size, Letter("h_i")] = 4
    """Attention heads a layer of the image tower."""
    image_pool: Literal["places", "mean"] = "places"
    """How patches meet in the shared space: each by the map of its own place, added up; or their mean by one map."""
    shared: Annotated[Size, Letter("d_s")] = 128
    """Width of the space that images and texts share."""
    temperature: float = Field(default=0.07, gt=0.01, le=1)
    """What cosines are divided by at first; it is learned, and never below 0.01."""

    @property
    def side(self) -> int:
        """Pixels on a side of an image as it is read."""
        return self.grid * self.patch

    @property
    def maps(self) -> int:
        """How many maps take patches to the shared space: one for every place, or one for all."""
        return self.grid**2 if self.image_pool == "places" else 1

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        check_heads("dual-encoder.image_width", self.image_width, "dual-encoder.image_heads", self.image_heads)
        return self


class Reranking(Spec):
    """What of a re-ranker is not its dual encoder's."""

    candidates: Annotated[int, Field(ge=2)] = 10
    """How many of the dual encoder's findings are ranked again: the k of top k."""


class CrossAttention(Reranking):
    """A re-ranker: an image's patches look at a text's words, by the dual encoder's two maps as queries and keys.

    It adds to them the scale, the softmax and a map of values (problem E8), a feed-forward part and a score. It is
    made of a trained dual encoder by adapting it, and sorts the first few that the dual encoder finds once more.
    """

    family: Literal["cross-attention"] = "cross-attention"
    towers: DualEncoder = DualEncoder()
    """The dual encoder whose findings are ranked again."""

    @property
    def vocabulary(self) -> int:
        """The text tower's."""
        return self.towers.vocabulary

    def sized(self, sizes: Mapping[str, int]) -> Self:
        """Return a copy of the sizes that the data have."""
        return self.replace(towers=self.towers.sized(sizes).to_dict())

    def sizes(self) -> dict[str, int]:
        """The towers' sizes by their letters."""
        return self.towers.sizes()

    def at(self, sizes: Mapping[str, int]) -> Self:
        """Return a copy with other sizes of the towers, given by their letters."""
        return self.replace(towers=self.towers.at(sizes).to_dict())
