"""Augmentation of images and captions, drawn again every time they are read.

The draws are a function of the seed and the step alone, the same on every machine and in every process. All of them
grow with one strength; the constants are their values at strength 1.
"""

import math
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor
from torch.nn import functional

from lemma.data.batches import TokenRows

# Largest geometric change in either direction: radians, two logarithms of factors, a slope, a fraction of the side.
ROTATION, SCALE, ASPECT, SHEAR, SHIFT = math.radians(7.5), 0.11, 0.05, 0.075, 0.05
# Largest change of factors in either direction, a constant darkening (to move white away from saturation), radians.
BRIGHTNESS, DARKER, CONTRAST, SATURATION, HUE = 0.2, 0.08, 0.4, 0.5, math.radians(27)
# Probabilities: to filter an image (of these, pixel by pixel), to make it grey, to blur it, to erase a box.
FILTER, POINTWISE, GREY, BLUR, ERASE = 0.7, 0.3, 0.2, 0.3, 0.25
MIN_BOX, BOX_RANGE = 0.07, 0.13  # half the sides of an erased box are MIN_BOX to MIN_BOX + BOX_RANGE of the image's
YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
"""Matrix from red, green and blue to brightness and two axes of colour, about which hues rotate."""
STD_EPSILON = 1e-3  # added to the standard deviation of an image, which is zero where it has one colour
NOISE_RATE = 0.3  # probability at strength 1 that a noise token is inserted into a caption
TRANSFORM_STREAM, NOISE_STREAM = 2, 3  # separate these draws from others of the same seed and step

Fractions = Float[np.ndarray, " batch"]
Captions = Int64[np.ndarray, "batch longest"]


@dataclass(frozen=True)
class ImageTransforms:
    """Random transforms of the images of a batch, in the order in which they are applied."""

    affine: Float[np.ndarray, "batch 2 3"]  # maps (x, y) of a new pixel to those of the old one; sides from −1 to 1
    brightness: Fractions  # factors
    contrast: Fractions  # factors about the mean of the image
    colour_maps: Float[np.ndarray, "batch 3 3"]  # linear maps of (red, green, blue)
    filters: Float[np.ndarray, "batch 3 3 3 3"]  # filters of 3 × 3 pixels from all channels to each
    filter_mix: Fractions  # weight of the filtered image in the result
    is_grey: Bool[np.ndarray, " batch"]  # whether the colours are removed
    blur_mix: Fractions  # weight of the blurred image in the result
    box: Float[np.ndarray, "batch 4"]  # rectangle to paint over: left, top, right, bottom, from 0 to 1
    paint: Float[np.ndarray, "batch 3"]  # colour of the rectangle

    def __getitem__(self, rows: slice) -> "ImageTransforms":
        return ImageTransforms(*(getattr(self, field.name)[rows] for field in fields(self)))


def draw_transforms(seed: int, step: int, batch: int, strength: float) -> ImageTransforms:
    """Return random transforms for `batch` images, a function of seed and step; `strength` 0 changes nothing."""
    random = np.random.default_rng([seed, step, TRANSFORM_STREAM])

    def uniform(*shape: int) -> np.ndarray:
        return random.uniform(-1, 1, shape)

    def bernoulli(probability: float) -> Bool[np.ndarray, " batch"]:
        return random.uniform(0, 1, batch) < probability

    # rotation, scale, aspect, shear and shift in one affine map
    angle, shear = (strength * limit * uniform(batch) for limit in (ROTATION, SHEAR))
    scale, aspect = (np.exp(strength * limit * uniform(batch)) for limit in (SCALE, ASPECT))
    shift = 2 * strength * SHIFT * uniform(2, batch)  # sides have length two
    cosine, sine = np.cos(angle), np.sin(angle)
    map_x = np.stack([scale * aspect * cosine, scale * aspect * (shear * cosine - sine), shift[0]], axis=-1)
    map_y = np.stack([scale / aspect * sine, scale / aspect * (shear * sine + cosine), shift[1]], axis=-1)
    brightness = 1 + strength * (BRIGHTNESS * uniform(batch) - DARKER)
    contrast = 1 + strength * CONTRAST * uniform(batch)

    # the plane of colours is rotated and scaled; brightness stays
    angle = strength * HUE * uniform(batch)
    saturation = 1 + strength * SATURATION * uniform(batch)
    hue_map = np.zeros((batch, 3, 3))
    hue_map[:, 0, 0] = 1
    hue_map[:, 1, 1] = hue_map[:, 2, 2] = saturation * np.cos(angle)
    hue_map[:, 2, 1] = saturation * np.sin(angle)
    hue_map[:, 1, 2] = -hue_map[:, 2, 1]

    # random filters change how surfaces look and leave shapes (Xu et al. 2021); some mix channels only
    filters = random.normal(0, math.sqrt(1 / 27), (batch, 3, 3, 3, 3))
    neighbours = np.ones((3, 3), dtype=bool)
    neighbours[1, 1] = False
    filters = np.where(bernoulli(POINTWISE)[:, None, None, None, None] & neighbours, 0.0, filters)
    filter_mix = random.uniform(0, 1, batch) * bernoulli(FILTER * strength)
    is_grey = bernoulli(GREY * strength)
    blur_mix = random.uniform(0, 1, batch) * bernoulli(BLUR * strength)
    centres = random.uniform(0, 1, (batch, 2))
    half_sides = MIN_BOX + strength * BOX_RANGE * random.uniform(0, 1, (batch, 2))
    half_sides *= bernoulli(ERASE * strength)[:, None]
    return ImageTransforms(
        affine=np.stack([map_x, map_y], axis=1),
        brightness=brightness,
        contrast=contrast,
        colour_maps=np.linalg.inv(YIQ) @ hue_map @ YIQ,
        filters=filters,
        filter_mix=filter_mix,
        is_grey=is_grey,
        blur_mix=blur_mix,
        box=np.concatenate([centres - half_sides, centres + half_sides], axis=1),
        paint=random.uniform(0, 1, (batch, 3)),
    )


def augment(
    images: UInt8[Tensor, "batch channels side side"], transforms: ImageTransforms
) -> Float[Tensor, "batch channels side side"]:
    """Return images moved, recoloured, filtered, blurred and painted over, from 0 to 1; white comes in from outside."""

    def to_device(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array.astype(np.float32)).to(images.device, non_blocking=True)

    def per_image(values: Fractions | Bool[np.ndarray, " batch"]) -> Float[Tensor, "batch 1 1 1"]:
        return to_device(values)[:, None, None, None]

    # darkness is resampled instead of light, so that zero padding is white
    grid = functional.affine_grid(to_device(transforms.affine), list(images.shape), align_corners=False)
    result = 1 - functional.grid_sample(1 - images / 255, grid, padding_mode="zeros", align_corners=False)
    lit = result * per_image(transforms.brightness)
    result = torch.lerp(lit.mean((1, 2, 3), keepdim=True), lit, per_image(transforms.contrast))
    result = torch.bmm(to_device(transforms.colour_maps), result.flatten(2)).view_as(result)

    # the filtered image gets the mean and spread of the image in each channel, and is mixed in
    patches = functional.unfold(functional.pad(result, [1] * 4, mode="replicate"), 3)
    filtered = torch.bmm(to_device(transforms.filters).flatten(2), patches).view_as(result)
    filtered_std, filtered_mean = torch.std_mean(filtered, (2, 3), keepdim=True)
    std, mean = torch.std_mean(result, (2, 3), keepdim=True)
    filtered = (filtered - filtered_mean) / (filtered_std + STD_EPSILON) * std + mean
    result = torch.lerp(result, filtered, per_image(transforms.filter_mix))

    grey = (result * to_device(YIQ[0])[:, None, None]).sum(1, keepdim=True)
    result = torch.where(per_image(transforms.is_grey) > 0, grey, result)
    padded = functional.pad(result, [2] * 4, mode="replicate")
    blurred = functional.avg_pool2d(functional.avg_pool2d(padded, 3, 1), 3, 1)  # the mean of 3 × 3 pixels, twice
    result = torch.lerp(result, blurred, per_image(transforms.blur_mix))

    centres = (torch.arange(images.shape[-1], device=images.device) + 0.5) / images.shape[-1]
    left, top, right, bottom = (side[:, None] for side in to_device(transforms.box).unbind(1))
    in_columns, in_rows = (left < centres) & (centres < right), (top < centres) & (centres < bottom)
    in_box = (in_rows[:, :, None] & in_columns[:, None, :])[:, None]
    return torch.where(in_box, to_device(transforms.paint)[:, :, None, None], result).clamp(0, 1)


def insert_noise(
    tokens: Captions, noise_tokens: Int64[np.ndarray, " noise"], seed: int, step: int, strength: float
) -> Captions:
    """Return captions, some with a random noise token inserted between first and last token, where there is room."""
    if not len(noise_tokens):
        return tokens
    random = np.random.default_rng([seed, step, NOISE_STREAM])
    lengths, longest = (tokens >= 0).sum(1), tokens.shape[1]
    gets_noise = (random.uniform(0, 1, len(tokens)) < NOISE_RATE * strength) & (lengths >= 2) & (lengths < longest)
    positions = 1 + random.integers(0, np.maximum(1, lengths - 1))
    noise = noise_tokens[random.integers(0, len(noise_tokens), len(tokens))]
    columns, position = np.arange(longest), np.where(gets_noise, positions, longest)[:, None]
    shifted = np.take_along_axis(tokens, np.where(columns > position, columns - 1, columns), axis=1)
    return np.where(columns == position, noise[:, None], shifted)


def inner_tokens(rows: TokenRows) -> Int64[np.ndarray, " inner"]:
    """Return all tokens but the first and last of each row, in one array: the noise tokens for `insert_noise`."""
    is_inner = np.ones(len(rows.tokens), dtype=bool)
    is_filled = rows.lengths > 0
    is_inner[rows.bounds[:-1][is_filled]] = is_inner[rows.bounds[1:][is_filled] - 1] = False
    return rows.tokens[is_inner].astype(np.int64)
