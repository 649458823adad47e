"""Augmentation: images and captions changed a little every time they are read.

What is drawn is a function of the seed and the step alone, the same on every machine and in every process. All of it
grows with one strength; the constants are what it comes to at strength 1.
"""

import math
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor
from torch.nn import functional

from lemma.data.batches import TokenRows

ROTATION, SCALE, ASPECT, SHEAR, SHIFT = math.radians(7.5), 0.11, 0.05, 0.075, 0.05
"""Radians, logarithms of factors (two), a slope, and a share of the side; up to so much in either direction."""
BRIGHTNESS, DARKER, CONTRAST, SATURATION, HUE = 0.2, 0.08, 0.4, 0.5, math.radians(27)
"""Shares to either side, what is taken off brightness (white images are to show more of it), and radians."""
FILTER, POINTWISE, GREY, BLUR, ERASE = 0.7, 0.3, 0.2, 0.3, 0.25
"""How often an image is filtered (and how often of these pixel by pixel), loses its colours, its sharpness, a box."""
MIN_BOX, BOX_RANGE = 0.07, 0.13
"""Half a box's sides, as a share of the image's: from the first to the sum of both."""
YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
"""From red, green and blue to brightness and two axes of colour, about which hues turn."""
TRANSFORM_STREAM = 2
"""What tells these draws from others of the same seed and step."""

Fractions = Float[np.ndarray, " batch"]


@dataclass(frozen=True)
class ImageTransforms:
    """What is done to each image of a batch, in this order."""

    affine: Float[np.ndarray, "batch 2 3"]
    """Where the pixel at (x, y) of the new image is taken from: an affine map, sides from −1 to 1."""
    brightness: Fractions
    contrast: Fractions
    """Factors; contrast is about the image's mean."""
    colour_maps: Float[np.ndarray, "batch 3 3"]
    """The map of colours."""
    filters: Float[np.ndarray, "batch 3 3 3 3"]
    """A filter of three by three pixels from all three channels to each."""
    filter_mix: Fractions
    """How much of the filtered image is mixed in."""
    is_grey: Bool[np.ndarray, " batch"]
    """Whether its colours are taken away."""
    blur_mix: Fractions
    """How much of the blurred image is mixed in."""
    box: Float[np.ndarray, "batch 4"]
    """A rectangle that is painted over: left, top, right, bottom, from 0 to 1."""
    paint: Float[np.ndarray, "batch 3"]
    """The colour that it is painted in."""

    def __getitem__(self, rows: slice) -> "ImageTransforms":
        return ImageTransforms(*(getattr(self, one.name)[rows] for one in fields(self)))


def draw_transforms(seed: int, step: int, batch: int, strength: float) -> ImageTransforms:
    """Draw what is done to the images of a step."""
    random = np.random.default_rng([seed, step, TRANSFORM_STREAM])

    def both(*shape: int) -> np.ndarray:
        return random.uniform(-1, 1, shape)

    def sometimes(chance: float) -> Bool[np.ndarray, " batch"]:
        return random.uniform(0, 1, batch) < chance

    # turn, size, aspect, shear and shift in one map
    angle, shear = (strength * most * both(batch) for most in (ROTATION, SHEAR))
    scale, aspect = (np.exp(strength * most * both(batch)) for most in (SCALE, ASPECT))
    shift = 2 * strength * SHIFT * both(2, batch)  # sides are two long
    cosine, sine = np.cos(angle), np.sin(angle)
    across = np.stack([scale * aspect * cosine, scale * aspect * (shear * cosine - sine), shift[0]], axis=-1)
    down = np.stack([scale / aspect * sine, scale / aspect * (shear * sine + cosine), shift[1]], axis=-1)
    brightness = 1 + strength * (BRIGHTNESS * both(batch) - DARKER)
    contrast = 1 + strength * CONTRAST * both(batch)

    # the plane of colours is rotated and scaled; brightness stays
    angle = strength * HUE * both(batch)
    saturation = 1 + strength * SATURATION * both(batch)
    turned = np.zeros((batch, 3, 3))
    turned[:, 0, 0] = 1
    turned[:, 1, 1] = turned[:, 2, 2] = saturation * np.cos(angle)
    turned[:, 2, 1] = saturation * np.sin(angle)
    turned[:, 1, 2] = -turned[:, 2, 1]

    # random filters change how surfaces look and leave shapes (Xu et al. 2021); some mix channels only
    filters = random.normal(0, math.sqrt(1 / 27), (batch, 3, 3, 3, 3))
    around = np.ones((3, 3), dtype=bool)
    around[1, 1] = False
    filters = np.where(sometimes(POINTWISE)[:, None, None, None, None] & around, 0.0, filters)
    filtered = random.uniform(0, 1, batch) * sometimes(FILTER * strength)
    grey = sometimes(GREY * strength)
    blurred = random.uniform(0, 1, batch) * sometimes(BLUR * strength)
    centres = random.uniform(0, 1, (batch, 2))
    half = MIN_BOX + strength * BOX_RANGE * random.uniform(0, 1, (batch, 2))
    half *= sometimes(ERASE * strength)[:, None]
    return ImageTransforms(
        affine=np.stack([across, down], axis=1),
        brightness=brightness,
        contrast=contrast,
        colour_maps=np.linalg.inv(YIQ) @ turned @ YIQ,
        filters=filters,
        filter_mix=filtered,
        is_grey=grey,
        blur_mix=blurred,
        box=np.concatenate([centres - half, centres + half], axis=1),
        paint=random.uniform(0, 1, (batch, 3)),
    )


STD_EPSILON = 1e-3
"""What keeps the spread of an image of one colour from being divided by."""


def augment(
    images: UInt8[Tensor, "batch channels side side"], transforms: ImageTransforms
) -> Float[Tensor, "batch channels side side"]:
    """Move, recolour, filter, blur and paint over images; what comes in from outside is white. From 0 to 1."""

    def here(numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(numbers.astype(np.float32)).to(images.device, non_blocking=True)

    def each(numbers: Fractions | Bool[np.ndarray, " batch"]) -> Float[Tensor, "batch 1 1 1"]:
        return here(numbers)[:, None, None, None]

    # every pixel from its place; darkness is moved and not light, so that nothing is white
    grid = functional.affine_grid(here(transforms.affine), list(images.shape), align_corners=False)
    changed = 1 - functional.grid_sample(1 - images / 255, grid, padding_mode="zeros", align_corners=False)
    lit = changed * each(transforms.brightness)
    changed = torch.lerp(lit.mean((1, 2, 3), keepdim=True), lit, each(transforms.contrast))
    changed = torch.bmm(here(transforms.colour_maps), changed.flatten(2)).view_as(changed)

    # the filtered image, brought to the image's own mean and spread in each channel, is mixed in
    around = functional.unfold(functional.pad(changed, [1] * 4, mode="replicate"), 3)
    found = torch.bmm(here(transforms.filters).flatten(2), around).view_as(changed)
    spread, mean = torch.std_mean(found, (2, 3), keepdim=True)
    own_spread, own_mean = torch.std_mean(changed, (2, 3), keepdim=True)
    like_it = (found - mean) / (spread + STD_EPSILON) * own_spread + own_mean
    changed = torch.lerp(changed, like_it, each(transforms.filter_mix))

    grey = (changed * here(YIQ[0])[:, None, None]).sum(1, keepdim=True)
    changed = torch.where(each(transforms.is_grey) > 0, grey, changed)
    padded = functional.pad(changed, [2] * 4, mode="replicate")
    blurred = functional.avg_pool2d(
        functional.avg_pool2d(padded, 3, 1), 3, 1
    )  # the mean of three by three pixels, twice
    changed = torch.lerp(changed, blurred, each(transforms.blur_mix))

    centres = (torch.arange(images.shape[-1], device=images.device) + 0.5) / images.shape[-1]
    left, top, right, bottom = (column[:, None] for column in here(transforms.box).unbind(1))
    across, down = (left < centres) & (centres < right), (top < centres) & (centres < bottom)
    inside = (down[:, :, None] & across[:, None, :])[:, None]
    return torch.where(inside, here(transforms.paint)[:, :, None, None], changed).clamp(0, 1)


NOISE_RATE = 0.3
"""At strength 1: how often a caption gets a token that is not its own."""
NOISE_STREAM = 3
"""What tells these draws from others of the same seed and step."""
Captions = Int64[np.ndarray, "batch longest"]


def insert_noise(
    tokens: Captions, noise_tokens: Int64[np.ndarray, " strays"], seed: int, step: int, strength: float
) -> Captions:
    """Let one of the strays into captions, where there is room for it: behind their first token, before their last.

    What stands first and last stays there, be it a mark or not. All of it is a function of seed and step.
    """
    if not len(noise_tokens):
        return tokens
    random = np.random.default_rng([seed, step, NOISE_STREAM])
    lengths, longest = (tokens >= 0).sum(1), tokens.shape[1]
    wanted = (random.uniform(0, 1, len(tokens)) < NOISE_RATE * strength) & (lengths >= 2) & (lengths < longest)
    places = 1 + random.integers(0, np.maximum(1, lengths - 1))
    guests = noise_tokens[random.integers(0, len(noise_tokens), len(tokens))]
    column, place = np.arange(longest), np.where(wanted, places, longest)[:, None]  # a place past the end is nowhere
    moved = np.take_along_axis(tokens, np.where(column > place, column - 1, column), axis=1)
    return np.where(column == place, guests[:, None], moved)


def inner_tokens(rows: TokenRows) -> Int64[np.ndarray, " inner"]:
    """All tokens that stand neither first nor last in their row: what may stray into others."""
    inner = np.ones(len(rows.tokens), dtype=bool)
    there = rows.lengths > 0
    inner[rows.bounds[:-1][there]] = inner[rows.bounds[1:][there] - 1] = False
    return rows.tokens[inner].astype(np.int64)
