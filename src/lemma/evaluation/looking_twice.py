"""The logits of many pairs of pictures and captions by a re-ranker, each picture read once."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from lemma.data import Rows
from lemma.models import CrossAttentionModel
from lemma.models.cross_attention import Pairs
from lemma.models.measuring import measuring, positions_on

Numbers = Int64[np.ndarray, "pairs"]


@dataclass(frozen=True)
class PairLogits:
    """Scores pairs of these pictures and these texts."""

    model: CrossAttentionModel
    pixels: UInt8[np.ndarray, "images channels side side"]
    rows: Rows
    """The texts' tokens."""

    def __call__(self, images: Numbers, texts: Numbers) -> Float[np.ndarray, "pairs"]:
        """Return the logit of each pair, in the order of the pairs."""
        found = np.zeros(len(images))
        with measuring(self.model) as device:
            at_once = max(1, positions_on(device) // self.model.towers.spec.grid**2)
            for group in by_image(images, at_once):
                known, places = np.unique(images[group], return_inverse=True)
                pixels = torch.from_numpy(np.ascontiguousarray(self.pixels[known])).to(device)
                patches = self.model.towers.patches(pixels)
                for some in (slice(start, start + at_once) for start in range(0, len(group), at_once)):
                    found[group[some]] = self._scored(patches, places[some], texts[group[some]])
        return found

    def _scored(self, patches: Tensor, images: Numbers, texts: Numbers) -> Float[np.ndarray, "pairs"]:
        known, places = np.unique(texts, return_inverse=True)
        tokens = torch.from_numpy(self.rows.beside(known)).to(patches.device)
        pairs = Pairs(*(torch.from_numpy(numbers).to(patches.device) for numbers in (images, places)))
        logits = self.model.logits(patches, self.model.towers.words(tokens), tokens >= 0, pairs)
        return logits.double().cpu().numpy()


def by_image(images: Numbers, at_once: int) -> Iterator[Numbers]:
    """The places of pairs in groups of a few images each, all pairs of an image in one group.

    >>> [group.tolist() for group in by_image(np.array([7, 3, 7, 5]), 2)]
    [[1, 3], [0, 2]]
    """
    order = np.argsort(images, kind="stable")
    number = np.unique(images[order], return_inverse=True)[1]
    for start in range(0, int(number.max(initial=-1)) + 1, at_once):
        yield order[(number >= start) & (number < start + at_once)]
