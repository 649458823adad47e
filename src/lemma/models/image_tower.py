"""The image tower: a picture cut into patches, which a Transformer reads as it would read words."""

import math

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional

from lemma.models.layers import LayerShape, Stack
from lemma.models.transformer import start_transformer
from lemma.parts import AttentionShape, positions
from lemma.spec import CHANNELS, DualEncoder, Learned

FAINT = 0.05
"""What is added to a picture's spread, so that one of a single colour is not all noise."""
Images = Shaped[Tensor, "batch channels side side"]
"""Bytes from 0 to 255, or else numbers from 0 to 1."""


class ImageTower(nn.Module):
    """Patches, each mapped to the stream's width; learned places; layers in which every patch sees all."""

    def __init__(self, spec: DualEncoder, dropout: float = 0.0) -> None:
        super().__init__()
        self.patch, width = spec.patch, spec.image_width
        self.enter = nn.Linear(CHANNELS * spec.patch**2, width)
        self.positions = positions(Learned(), spec.grid**2, width)
        self.dropout = nn.Dropout(dropout)
        attention = AttentionShape(width, spec.image_heads, causal=False)
        self.encoder = Stack(LayerShape(attention, 4 * width), spec.image_depth, dropout)

    def start(self) -> None:
        """Draw the first weights; the map of patches so that standardised pixels give entries of about size 1."""
        start_transformer(self)
        nn.init.normal_(self.enter.weight, std=1 / math.sqrt(self.enter.in_features))

    def forward(self, images: Images) -> Float[Tensor, "batch patches image_width"]:
        """Return a vector for every patch, row by row."""
        stream = self.positions(self.enter(patches_of(standardised(images), self.patch)), start=0)
        return self.encoder(self.dropout(stream))[0]


def standardised(images: Images) -> Float[Tensor, "batch channels side side"]:
    """Each picture with a mean of 0 and a spread of about 1, however bright it is and however strong its contrast."""
    pixels = images if images.is_floating_point() else images / 255
    spread, mean = torch.std_mean(pixels, dim=(1, 2, 3), keepdim=True)
    return (pixels - mean) / (spread + FAINT)


def patches_of(
    images: Float[Tensor, "batch channels side side"], patch: int
) -> Float[Tensor, "batch patches channels_patch_patch"]:
    """Cut pictures into squares, row by row, each with its channels one after the other.

    >>> patches_of(torch.arange(16.0).view(1, 1, 4, 4), 2)[0].tolist()[1]
    [2.0, 3.0, 6.0, 7.0]
    """
    return functional.unfold(images, patch, stride=patch).transpose(1, 2)
