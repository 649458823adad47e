"""The simplest way from pictures to captions: that of the learned picture which is nearest, pixel by pixel."""

import numpy as np
from jaxtyping import Float, Int64, UInt8

from lemma.evaluation.places import blocks_of

Pixels = UInt8[np.ndarray, "pictures channels side side"]
LEARNED = 1024
"""Learned pictures that are compared with at once."""


def nearest_pixel(
    pixels: Pixels,
    names: Int64[np.ndarray, "texts"],
    learned: Pixels,
    owners: Int64[np.ndarray, "captions"],
    learned_names: Int64[np.ndarray, "captions"],
) -> Float[np.ndarray, "pictures texts"]:
    """How alike pictures and texts are: minus the distance to the nearest learned picture that carries just this text.

    A text that no learned picture carries is at −∞: after all others, and at chance among its like. `owners` says
    which learned picture each of the learned captions belongs to, and equal texts have equal names.
    """
    wanted, places = np.unique(names, return_inverse=True)
    near = np.full((len(pixels), len(wanted)), np.inf, dtype=np.float32)
    for some in (slice(start, start + LEARNED) for start in range(0, len(learned), LEARNED)):
        inside = (owners >= some.start) & (owners < some.stop) & np.isin(learned_names, wanted)
        if inside.any():
            columns = np.searchsorted(wanted, learned_names[inside])
            _bring_nearer(near, pixels, _flat(learned[some]), owners[inside] - some.start, columns)
    return -near[:, places]


def _bring_nearer(
    near: Float[np.ndarray, "pictures wanted"],
    pixels: Pixels,
    others: Float[np.ndarray, "some pixels"],
    owners: Int64[np.ndarray, "captions"],
    columns: Int64[np.ndarray, "captions"],
) -> None:
    """Let distances to some more learned pictures count where they are the smallest so far."""
    order = np.argsort(columns, kind="stable")
    reached, starts = np.unique(columns[order], return_index=True)
    for rows in blocks_of(len(pixels), others.shape[1]):
        mine = _flat(pixels[rows])
        distances = (mine**2).sum(1)[:, None] + (others**2).sum(1) - 2 * mine @ others.T
        nearest = np.minimum.reduceat(distances[:, owners[order]], starts, axis=1)
        near[rows, reached] = np.minimum(near[rows, reached], nearest)


def _flat(pixels: Pixels) -> Float[np.ndarray, "pictures pixels"]:
    return pixels.reshape(len(pixels), -1).astype(np.float32) / 255 - 0.5
