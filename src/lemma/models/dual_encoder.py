"""The dual encoder: an image tower and a text tower that meet in one space (problem E7; Radford et al. 2021)."""

import math
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from lemma.models.body import Body
from lemma.models.classifier import pooled
from lemma.models.image_tower import Images, ImageTower
from lemma.spec import DualEncoder

LARGEST = 100.0
"""What cosines are multiplied by at most: the temperature is never below 0.01."""

Tokens = Int[Tensor, "batch time"]
Vectors = Float[Tensor, "batch shared"]


class Bounded(torch.autograd.Function):
    """A number that stays below a bound; past it a gradient still leads back, and only none leads further out."""

    @staticmethod
    def forward(value: Tensor, largest: float) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The value, or the bound if that is smaller."""
        return value.clamp(max=largest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Remember whether the bound is reached."""
        value, largest = inputs
        ctx.save_for_backward(value >= largest)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Pass the gradient, but for one that asks for more than the bound."""
        (reached,) = ctx.saved_tensors
        return torch.where(reached & (gradient < 0), torch.zeros_like(gradient), gradient), None


class DualEncoderModel(nn.Module):
    """Two towers, a linear map of each to the shared space, and a temperature that is learned."""

    stateful: ClassVar[bool] = False

    def __init__(self, spec: DualEncoder, body: Body, dropout: float = 0.0) -> None:
        super().__init__()
        self.spec, self.body = spec, body
        for name in body.outward:
            delattr(body, name)
        self.image = ImageTower(spec, dropout)
        self.image_projection = nn.Linear(spec.image_width * spec.maps, spec.shared, bias=False)
        self.text_projection = nn.Linear(body.vector_width, spec.shared, bias=False)
        self.log_scale = nn.Parameter(torch.tensor(-math.log(spec.temperature)))

    def start(self) -> None:
        """Draw the first weights of the image tower and of both maps; the body draws its own."""
        self.image.start()
        for projection in (self.image_projection, self.text_projection):
            nn.init.normal_(projection.weight, std=1 / math.sqrt(projection.in_features))
        nn.init.constant_(self.log_scale, -math.log(self.spec.temperature))

    @property
    def scale(self) -> Float[Tensor, ""]:
        """What cosines are multiplied by: one over the temperature."""
        return Bounded.apply(self.log_scale.exp(), LARGEST)  # pyright: ignore[reportReturnType]

    def patches(self, images: Images) -> Float[Tensor, "batch patches image_width"]:
        """A vector for every patch of every image."""
        return self.image(images)

    def words(self, tokens: Tokens) -> Float[Tensor, "batch time vector_width"]:
        """A vector for every token of every text; where a token is −1 it means nothing."""
        return self.body.vectors(tokens)

    def image_vectors(self, images: Images) -> Vectors:
        """The images in the shared space, each of length 1."""
        return self.project_image(self.patches(images))

    def text_vectors(self, tokens: Tokens) -> Vectors:
        """The texts in the shared space, each of length 1."""
        return self.project_text(self.words(tokens), tokens >= 0)

    def project_image(self, patches: Float[Tensor, "batch patches image_width"]) -> Vectors:
        """Take patches to the shared space: all side by side or their mean, mapped and brought to length 1."""
        joined = patches.flatten(1) if self.spec.maps > 1 else patches.mean(1)
        return functional.normalize(self.image_projection(joined), dim=-1)

    def queries(self, patches: Float[Tensor, "batch patches image_width"]) -> Float[Tensor, "batch patches shared"]:
        """Each patch in the shared space, by the map of its place; their sum is the image there, but for its length."""
        if self.spec.maps == 1:
            return self.image_projection(patches)
        maps = self.image_projection.weight.unflatten(1, (self.spec.maps, -1))
        return torch.einsum("bpw,spw->bps", patches, maps)

    def keys(self, words: Float[Tensor, "batch time vector_width"]) -> Float[Tensor, "batch time shared"]:
        """Each word in the shared space; what is read of them is the text there, but for its length."""
        return self.text_projection(words)

    def project_text(self, words: Float[Tensor, "batch time vector_width"], there: Tensor) -> Vectors:
        """Take words to the shared space: what is read of them, mapped and brought to length 1."""
        return functional.normalize(self.text_projection(pooled(words, there, self.spec.pooling)), dim=-1)

    def forward(self, images: Images, tokens: Tokens) -> Float[Tensor, "images texts"]:
        """Return the logits of which image and which text belong together: cosines over the temperature."""
        return self.scale * self.image_vectors(images) @ self.text_vectors(tokens).T
