"""The simplest way from pictures to captions: that of the learned picture which is nearest, pixel by pixel."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
from jaxtyping import Bool, Float, Int64, UInt8

Pixels = UInt8[np.ndarray, "pictures channels side side"]
AT_ONCE = 1 << 23
"""Numbers in the pictures that are compared at once."""
PICTURES = 1024
"""Pictures that are compared at once at most, however small they are."""


@dataclass(frozen=True)
class NearestPixel:
    """How alike pictures and texts are: minus the distance to the nearest learned picture that carries just this text.

    A text that no learned picture carries is at −∞: after all others, and at chance among its like. A learned picture
    that is the very picture that is asked about tells nothing, and is left out.
    """

    pixels: Pixels
    names: Int64[np.ndarray, "texts"]
    """The number of each text; equal texts have equal numbers."""
    learned: Pixels
    owners: Int64[np.ndarray, "captions"]
    """The learned picture that each of the learned captions belongs to."""
    learned_names: Int64[np.ndarray, "captions"]

    def of_images(self, rows: slice) -> Float[np.ndarray, "pictures texts"]:
        """Some pictures' scores of all texts."""
        return -self._nearest(rows, self.names)

    def of_texts(self, rows: slice) -> Float[np.ndarray, "texts pictures"]:
        """Some texts' scores of all pictures."""
        return -self._nearest(slice(0, len(self.pixels)), self.names[rows]).T

    def known(self) -> int:
        """How many of the pictures were learned, pixel for pixel."""
        return int(np.isin(self._sums[0], self._sums[1]).sum())

    @cached_property
    def _sums(self) -> tuple[np.ndarray, np.ndarray]:
        return _sums(self.pixels), _sums(self.learned)

    def _nearest(self, rows: slice, names: Int64[np.ndarray, "texts"]) -> Float[np.ndarray, "pictures texts"]:
        """The distance of some pictures to the nearest learned one that carries each of these texts."""
        wanted, places = np.unique(names, return_inverse=True)
        near = np.full((rows.stop - rows.start, len(wanted)), np.inf, dtype=np.float32)
        carrying = np.flatnonzero(np.isin(self.learned_names, wanted))
        pictures = np.unique(self.owners[carrying])
        for some in _cut(len(pictures), self.learned):
            chosen = pictures[some]
            captions = carrying[np.isin(self.owners[carrying], chosen)]
            captions = captions[np.argsort(self.learned_names[captions], kind="stable")]
            self._bring_nearer(near, rows, chosen, captions, np.searchsorted(wanted, self.learned_names[captions]))
        return near[:, places]

    def _bring_nearer(
        self,
        near: Float[np.ndarray, "pictures wanted"],
        rows: slice,
        chosen: Int64[np.ndarray, "some"],
        captions: Int64[np.ndarray, "captions"],
        columns: Int64[np.ndarray, "captions"],
    ) -> None:
        """Let distances to some more learned pictures count where they are the smallest so far."""
        reached, starts = np.unique(columns, return_index=True)
        others, sums = _flat(self.learned[chosen]), self._sums[1][chosen]
        carriers = np.searchsorted(chosen, self.owners[captions])
        for block in _cut(len(near), self.pixels):
            here = slice(rows.start + block.start, rows.start + block.stop)
            same = self._sums[0][here, None] == sums
            distances = _distances(_flat(self.pixels[here]), others, same)
            nearest = np.minimum.reduceat(distances[:, carriers], starts, axis=1)
            near[block, reached] = np.minimum(near[block, reached], nearest)


def _distances(
    mine: Float[np.ndarray, "pictures pixels"],
    others: Float[np.ndarray, "some pixels"],
    same: Bool[np.ndarray, "pictures some"],
) -> Float[np.ndarray, "pictures some"]:
    """Squared distances, infinite where both are the same picture."""
    distances = (mine**2).sum(1)[:, None] + (others**2).sum(1) - 2 * mine @ others.T
    return np.where(same, np.float32(np.inf), distances)


def _cut(count: int, pixels: Pixels) -> Iterator[slice]:
    """So many pictures in blocks of about so many numbers as are compared at once."""
    size = min(PICTURES, max(1, AT_ONCE // int(np.prod(pixels.shape[1:]))))
    return (slice(start, min(count, start + size)) for start in range(0, count, size))


def _flat(pixels: Pixels) -> Float[np.ndarray, "pictures pixels"]:
    return pixels.reshape(len(pixels), -1).astype(np.float32) / 255 - 0.5


def _sums(pixels: Pixels) -> np.ndarray:
    """A number for each picture, the same for the same pixels: 64 bits of a hash."""
    sums = (blake2b(np.ascontiguousarray(picture).tobytes(), digest_size=8).digest() for picture in pixels)
    return np.frombuffer(b"".join(sums), dtype="<u8")
