"""The causal objective: the cross-entropy of each next token, in nats."""

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional


def causal(
    logits: Float[Tensor, "batch time vocabulary"], targets: Int[Tensor, "batch time"], reduction: str = "mean"
) -> Float[Tensor, "..."]:
    """Return −log p(target), averaged over all tokens, or summed with reduction="sum"."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)
