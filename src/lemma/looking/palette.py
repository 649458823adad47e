"""Colours for weights from 0 to 1: cream over grey to dark blue.

They run along the yellow–blue axis and darken all the way, so they keep their order for every kind of colour vision and
in grey print. A weight's place on the scale is its square root: among sixty keys an even share is 0.017, which a linear
scale would not show.
"""

import math

import numpy as np
from jaxtyping import Float, Int

STOPS = ((0.97, 0.945, 0.85), (0.86, 0.79, 0.52), (0.56, 0.55, 0.50), (0.27, 0.33, 0.46), (0.0, 0.13, 0.31))
LEVELS = 255


def _mixed(level: float) -> str:
    place = level * (len(STOPS) - 1)
    below = min(int(place), len(STOPS) - 2)
    share = place - below
    channels = (low + share * (high - low) for low, high in zip(STOPS[below], STOPS[below + 1], strict=True))
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in channels)


COLOURS = tuple(_mixed(number / (LEVELS - 1)) for number in range(LEVELS))


def level(weight: float) -> int:
    """The colour's number for a weight.

    >>> level(0.0), level(0.25), level(1.0)
    (0, 127, 254)
    """
    return round(math.sqrt(min(max(weight, 0.0), 1.0)) * (LEVELS - 1))


def levels(weights: Float[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
    """The same for many weights at once."""
    return np.rint(np.sqrt(np.clip(weights, 0.0, 1.0)) * (LEVELS - 1)).astype(np.int64)


def ink(number: int) -> str:
    """What can be read on a colour."""
    return "#ffffff" if number > LEVELS * 0.57 else "#1c1d21"
