"""Cross-entropy where some targets do not count: hidden tokens, translations and classes are all learned by it."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

IGNORED = -1
"""The target where nothing is to be predicted."""


class Entropy(NamedTuple):
    """Means over the targets that count, in nats; 0 where none does."""

    objective: Float[Tensor, ""]
    """What is minimised: (1 − ε)(−log p(target)) + ε · mean over all classes of −log p."""
    loss: Float[Tensor, ""]
    """The mean of −log p(target), whatever the smoothing: what is reported."""


def cross_entropy(
    logits: Float[Tensor, "*places classes"], targets: Int[Tensor, "*places"], smoothing: float = 0.0
) -> Entropy:
    """Measure logits by their targets; a target of −1 does not count (label smoothing ε: Szegedy et al. 2016).

    >>> found = cross_entropy(torch.tensor([[2.0, 2.0], [5.0, 0.0]]), torch.tensor([1, -1]))
    >>> round(found.loss.item(), 6)  # log 2: the second target does not count
    0.693147
    """
    targets = targets.flatten()
    exact = torch.promote_types(logits.dtype, torch.float32)
    log = logits.flatten(0, -2).log_softmax(-1, dtype=exact)
    count = (targets != IGNORED).sum().clamp(min=1)
    loss = functional.nll_loss(log, targets, ignore_index=IGNORED, reduction="sum") / count
    if not smoothing:
        return Entropy(loss, loss)
    even = -(log.mean(-1) * (targets != IGNORED)).sum() / count
    return Entropy((1 - smoothing) * loss + smoothing * even, loss.detach())
