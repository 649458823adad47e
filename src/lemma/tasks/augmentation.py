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

TURN, SCALE, ASPECT, SHEAR, SHIFT = math.radians(7.5), 0.11, 0.05, 0.075, 0.05
"""Radians, logarithms of factors (two), a slope, and a share of the side; up to so much in either direction."""
BRIGHT, DARKER, CONTRAST, SATURATION, HUE = 0.2, 0.08, 0.4, 0.5, math.radians(27)
"""Shares to either side, what is taken off brightness (white images are to show more of it), and radians."""
FILTER, POINTWISE, GREY, BLUR, ERASE = 0.7, 0.3, 0.2, 0.3, 0.25
"""How often an image is filtered (and how often of these pixel by pixel), loses its colours, its sharpness, a box."""
NARROWEST, WIDER = 0.07, 0.13
"""Half a box's sides, as a share of the image's: from the first to the sum of both."""
YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
"""From red, green and blue to brightness and two axes of colour, about which hues turn."""
CHANGES_DRAW = 2
"""What tells these draws from others of the same seed and step."""

Shares = Float[np.ndarray, "batch"]


@dataclass(frozen=True)
class Changes:
    """What is done to each image of a batch, in this order."""

    places: Float[np.ndarray, "batch 2 3"]
    """Where the pixel at (x, y) of the new image is taken from: an affine map, sides from −1 to 1."""
    brightness: Shares
    contrast: Shares
    """Factors; contrast is about the image's mean."""
    colours: Float[np.ndarray, "batch 3 3"]
    """The map of colours."""
    filters: Float[np.ndarray, "batch 3 3 3 3"]
    """A filter of three by three pixels from all three channels to each."""
    filtered: Shares
    """How much of the filtered image is mixed in."""
    grey: Bool[np.ndarray, "batch"]
    """Whether its colours are taken away."""
    blurred: Shares
    """How much of the blurred image is mixed in."""
    box: Float[np.ndarray, "batch 4"]
    """A rectangle that is painted over: left, top, right, bottom, from 0 to 1."""
    paint: Float[np.ndarray, "batch 3"]
    """The colour that it is painted in."""

    def __getitem__(self, rows: slice) -> "Changes":
        return Changes(*(getattr(self, one.name)[rows] for one in fields(self)))


def changes(seed: int, step: int, batch: int, strength: float) -> Changes:
    """Draw what is done to the images of a step."""
    random = np.random.default_rng([seed, step, CHANGES_DRAW])
    return Changes(
        places=_places(random, batch, strength),
        brightness=1 + strength * (BRIGHT * _both(random, batch) - DARKER),
        contrast=1 + strength * CONTRAST * _both(random, batch),
        colours=_colours(random, batch, strength),
        filters=_filters(random, batch),
        filtered=random.uniform(0, 1, batch) * _sometimes(random, batch, FILTER * strength),
        grey=_sometimes(random, batch, GREY * strength),
        blurred=random.uniform(0, 1, batch) * _sometimes(random, batch, BLUR * strength),
        box=_boxes(random, batch, strength),
        paint=random.uniform(0, 1, (batch, 3)),
    )


def _both(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.uniform(-1, 1, shape)


def _sometimes(random: np.random.Generator, batch: int, chance: float) -> Bool[np.ndarray, "batch"]:
    return random.uniform(0, 1, batch) < chance


def _places(random: np.random.Generator, batch: int, strength: float) -> Float[np.ndarray, "batch 2 3"]:
    """Turn, size, aspect, shear and shift in one map."""
    angle, shear = (strength * most * _both(random, batch) for most in (TURN, SHEAR))
    scale, aspect = (np.exp(strength * most * _both(random, batch)) for most in (SCALE, ASPECT))
    shift = 2 * strength * SHIFT * _both(random, 2, batch)  # sides are two long
    cosine, sine = np.cos(angle), np.sin(angle)
    across = np.stack([scale * aspect * cosine, scale * aspect * (shear * cosine - sine), shift[0]], axis=-1)
    down = np.stack([scale / aspect * sine, scale / aspect * (shear * sine + cosine), shift[1]], axis=-1)
    return np.stack([across, down], axis=1)


def _colours(random: np.random.Generator, batch: int, strength: float) -> Float[np.ndarray, "batch 3 3"]:
    """Rotate and scale the plane of colours; brightness stays."""
    angle = strength * HUE * _both(random, batch)
    saturation = 1 + strength * SATURATION * _both(random, batch)
    turned = np.zeros((batch, 3, 3))
    turned[:, 0, 0] = 1
    turned[:, 1, 1] = turned[:, 2, 2] = saturation * np.cos(angle)
    turned[:, 2, 1] = saturation * np.sin(angle)
    turned[:, 1, 2] = -turned[:, 2, 1]
    return np.linalg.inv(YIQ) @ turned @ YIQ


def _filters(random: np.random.Generator, batch: int) -> Float[np.ndarray, "batch 3 3 3 3"]:
    """Random filters, which change how surfaces look and leave shapes (Xu et al. 2021); some mix channels only."""
    filters = random.normal(0, math.sqrt(1 / 27), (batch, 3, 3, 3, 3))
    pointwise = _sometimes(random, batch, POINTWISE)
    around = np.ones((3, 3), dtype=bool)
    around[1, 1] = False
    return np.where(pointwise[:, None, None, None, None] & around, 0.0, filters)


def _boxes(random: np.random.Generator, batch: int, strength: float) -> Float[np.ndarray, "batch 4"]:
    centres = random.uniform(0, 1, (batch, 2))
    half = NARROWEST + strength * WIDER * random.uniform(0, 1, (batch, 2))
    half *= _sometimes(random, batch, ERASE * strength)[:, None]
    return np.concatenate([centres - half, centres + half], axis=1)


FLAT = 1e-3
"""What keeps the spread of an image of one colour from being divided by."""

Images = Float[Tensor, "batch channels side side"]
ImageShares = Float[Tensor, "batch 1 1 1"]


def augment(images: UInt8[Tensor, "batch channels side side"], drawn: Changes) -> Images:
    """Move, recolour, filter, blur and paint over images; what comes in from outside is white. From 0 to 1."""
    device = images.device
    changed = _moved(images / 255, _on(drawn.places, device))
    changed = _lit(changed, _each(drawn.brightness, device), _each(drawn.contrast, device))
    changed = _mapped(changed, _on(drawn.colours, device))
    changed = _filtered(changed, _on(drawn.filters, device), _each(drawn.filtered, device))
    changed = torch.where(_each(drawn.grey, device) > 0, _grey(changed), changed)
    changed = torch.lerp(changed, _blurred(changed), _each(drawn.blurred, device))
    return _painted(changed, _on(drawn.box, device), _on(drawn.paint, device)).clamp(0, 1)


def _on(numbers: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(numbers.astype(np.float32)).to(device, non_blocking=True)


def _each(numbers: Float[np.ndarray, "batch"] | Bool[np.ndarray, "batch"], device: torch.device) -> ImageShares:
    return _on(numbers, device)[:, None, None, None]


def _moved(images: Images, places: Float[Tensor, "batch 2 3"]) -> Images:
    """Take every pixel from its place; darkness is moved and not light, so that nothing is white."""
    grid = functional.affine_grid(places, list(images.shape), align_corners=False)
    return 1 - functional.grid_sample(1 - images, grid, padding_mode="zeros", align_corners=False)


def _lit(images: Images, brightness: ImageShares, contrast: ImageShares) -> Images:
    lit = images * brightness
    return torch.lerp(lit.mean((1, 2, 3), keepdim=True), lit, contrast)


def _mapped(images: Images, colours: Float[Tensor, "batch 3 3"]) -> Images:
    return torch.bmm(colours, images.flatten(2)).view_as(images)


def _grey(images: Images) -> Images:
    weights = _on(YIQ[0], images.device)[:, None, None]
    return (images * weights).sum(1, keepdim=True)


def _filtered(images: Images, filters: Float[Tensor, "batch 3 3 3 3"], share: ImageShares) -> Images:
    """Mix in the filtered image, brought to the image's own mean and spread in each channel."""
    around = functional.unfold(functional.pad(images, [1] * 4, mode="replicate"), 3)
    found = torch.bmm(filters.flatten(2), around).view_as(images)
    spread, mean = torch.std_mean(found, (2, 3), keepdim=True)
    own_spread, own_mean = torch.std_mean(images, (2, 3), keepdim=True)
    return torch.lerp(images, (found - mean) / (spread + FLAT) * own_spread + own_mean, share)


def _blurred(images: Images) -> Images:
    """The mean of three by three pixels, twice."""
    return functional.avg_pool2d(functional.avg_pool2d(functional.pad(images, [2] * 4, mode="replicate"), 3, 1), 3, 1)


def _painted(images: Images, box: Float[Tensor, "batch 4"], paint: Float[Tensor, "batch 3"]) -> Images:
    centres = (torch.arange(images.shape[-1], device=images.device) + 0.5) / images.shape[-1]
    left, top, right, bottom = (column[:, None] for column in box.unbind(1))
    across, down = (left < centres) & (centres < right), (top < centres) & (centres < bottom)
    inside = (down[:, :, None] & across[:, None, :])[:, None]
    return torch.where(inside, paint[:, :, None, None], images)


STRAY = 0.3
"""At strength 1: how often a caption gets a token that is not its own."""
WORDING_DRAW = 3
"""What tells these draws from others of the same seed and step."""


Captions = Int64[np.ndarray, "batch longest"]


def reworded(tokens: Captions, strays: Int64[np.ndarray, "strays"], seed: int, step: int, strength: float) -> Captions:
    """Let one of the strays into captions, where there is room for it: behind their first token, before their last.

    What stands first and last stays there, be it a mark or not. All of it is a function of seed and step.
    """
    if not len(strays):
        return tokens
    random = np.random.default_rng([seed, step, WORDING_DRAW])
    lengths, longest = (tokens >= 0).sum(1), tokens.shape[1]
    wanted = (random.uniform(0, 1, len(tokens)) < STRAY * strength) & (lengths >= 2) & (lengths < longest)
    places = 1 + random.integers(0, np.maximum(1, lengths - 1))
    guests = strays[random.integers(0, len(strays), len(tokens))]
    column, place = np.arange(longest), np.where(wanted, places, longest)[:, None]  # a place past the end is nowhere
    moved = np.take_along_axis(tokens, np.where(column > place, column - 1, column), axis=1)
    return np.where(column == place, guests[:, None], moved)


def inner_tokens(rows: TokenRows) -> Int64[np.ndarray, "inner"]:
    """All tokens that stand neither first nor last in their row: what may stray into others."""
    inner = np.ones(len(rows.tokens), dtype=bool)
    there = rows.lengths > 0
    inner[rows.bounds[:-1][there]] = inner[rows.bounds[1:][there] - 1] = False
    return rows.tokens[inner].astype(np.int64)
