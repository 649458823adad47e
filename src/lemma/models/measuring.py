"""Running a model over examples to measure it: no dropout, no gradients, examples of like length together."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import numpy as np
import torch
from jaxtyping import Int64
from torch import nn

from lemma.models.language_model import evaluating

POSITIONS = {"cpu": 4096, "cuda": 65_536}  # tokens read at once, where their logits are few
LOGITS = {"cpu": 2**23, "cuda": 2**27}  # logits held at once: 32 and 512 MB in float32


@contextmanager
def measuring(model: nn.Module) -> Iterator[torch.device]:
    """Switch dropout and gradients off, give the model's device, and leave the model as it was."""
    first = next(chain(model.parameters(), model.buffers()), None)
    with evaluating(model), torch.no_grad():
        yield torch.device("cpu") if first is None else first.device


def positions_on(device: torch.device, logits: int = 1) -> int:
    """How many tokens are read at once, where each gives so many logits."""
    kind = "cpu" if device.type == "cpu" else "cuda"
    return max(1, min(POSITIONS[kind], LOGITS[kind] // logits))


def by_length(lengths: Int64[np.ndarray, "examples"], positions: int) -> Iterator[Int64[np.ndarray, "some"]]:
    """Examples in groups of like length, each of about so many tokens with its padding.

    >>> [group.tolist() for group in by_length(np.array([5, 1, 9, 2]), positions=10)]
    [[1, 3], [0], [2]]
    """
    order = np.argsort(lengths, kind="stable")
    begin = 0
    for place in range(1, len(order) + 1):
        if place == len(order) or (place + 1 - begin) * lengths[order[place]] > max(positions, lengths[order[place]]):
            yield order[begin:place]
            begin = place
