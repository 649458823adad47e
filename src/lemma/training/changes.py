"""What is done to the pictures of a step before they are learned: numbers drawn from the seed and the step alone.

A pure function, the same on every machine and in every process of a team. All of it grows with one strength; the
constants are what it comes to at strength 1.
"""

import math
from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Bool, Float

TURN, SCALE, ASPECT, SHEAR, SHIFT = math.radians(7.5), 0.11, 0.05, 0.075, 0.05
"""Radians, logarithms of factors (two), a slope, and a share of the side; up to so much in either direction."""
BRIGHT, DARKER, CONTRAST, SATURATION, HUE = 0.2, 0.08, 0.4, 0.5, math.radians(27)
"""Shares to either side, what is taken off brightness (white pictures are to show more of it), and radians."""
FILTER, POINTWISE, GREY, BLUR, ERASE = 0.7, 0.3, 0.2, 0.3, 0.25
"""How often a picture is filtered (and how often of these pixel by pixel), loses its colours, its sharpness, a box."""
NARROWEST, WIDER = 0.07, 0.13
"""Half a box's sides, as a share of the picture's: from the first to the sum of both."""
YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
"""From red, green and blue to brightness and two axes of colour, about which hues turn."""
DRAW = 2
"""What tells these draws from others of the same seed and step."""

Shares = Float[np.ndarray, "batch"]


@dataclass(frozen=True)
class Changes:
    """What is done to each picture of a batch, in this order."""

    places: Float[np.ndarray, "batch 2 3"]
    """Where the pixel at (x, y) of the new picture is taken from: an affine map, sides from −1 to 1."""
    brightness: Shares
    contrast: Shares
    """Factors; contrast is about the picture's mean."""
    colours: Float[np.ndarray, "batch 3 3"]
    """The map of colours."""
    filters: Float[np.ndarray, "batch 3 3 3 3"]
    """A filter of three by three pixels from all three channels to each."""
    filtered: Shares
    """How much of the filtered picture is mixed in."""
    grey: Bool[np.ndarray, "batch"]
    """Whether its colours are taken away."""
    blurred: Shares
    """How much of the blurred picture is mixed in."""
    box: Float[np.ndarray, "batch 4"]
    """A rectangle that is painted over: left, top, right, bottom, from 0 to 1."""
    paint: Float[np.ndarray, "batch 3"]
    """The colour that it is painted in."""

    def __getitem__(self, rows: slice) -> "Changes":
        return Changes(*(getattr(self, one.name)[rows] for one in fields(self)))


def changes(seed: int, step: int, batch: int, strength: float) -> Changes:
    """Draw what is done to the pictures of a step."""
    random = np.random.default_rng([seed, step, DRAW])
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
    """Turn the plane of colours, and stretch it; brightness stays."""
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
