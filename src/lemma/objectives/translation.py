"""What an encoder–decoder learns: each token of the target given the source and the true tokens before it."""

from jaxtyping import Float, Int
from torch import Tensor

from lemma.objectives.entropy import Entropy, cross_entropy


def teacher_forcing(targets: Int[Tensor, "batch time"]) -> tuple[Int[Tensor, "batch fed"], Int[Tensor, "batch fed"]]:
    """Cut whole targets, <start> … <end>, into what is fed and what is to come after it.

    >>> import torch
    >>> [part.tolist() for part in teacher_forcing(torch.tensor([[7, 1, 2, 8], [7, 3, 8, -1]]))]
    [[[7, 1, 2], [7, 3, 8]], [[1, 2, 8], [3, 8, -1]]]
    """
    return targets[:, :-1], targets[:, 1:]


def translation(
    logits: Float[Tensor, "batch fed vocabulary"], targets: Int[Tensor, "batch time"], smoothing: float = 0.0
) -> Entropy:
    """Measure the logits after each token of whole targets but the last, by the token that comes next."""
    return cross_entropy(logits, teacher_forcing(targets)[1], smoothing)
