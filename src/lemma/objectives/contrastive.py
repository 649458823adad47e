"""What a dual encoder learns: which image and which text of a batch belong together (Radford et al. 2021)."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lemma.objectives.entropy import Entropy

Logits = Float[Tensor, "images texts"]
Mask = Bool[Tensor, "images texts"]


def contrastive(logits: Logits, alike: Mask | None = None, smoothing: float = 0.0) -> Entropy:
    """The symmetric loss: −½ (mean log softmax of rows + mean log softmax of columns) at the pairs, in nats.

    Image i belongs to text i. Where `alike` is true off the diagonal, text j is as right for image i as its own: the
    pair is left out of both softmaxes, and of what smoothing spreads over. Where all logits are equal it is ln B.

    >>> contrastive(torch.zeros(8, 8)).loss.item() - math.log(8) < 1e-6
    True
    """
    left_out = torch.zeros_like(logits, dtype=torch.bool) if alike is None else alike.clone()
    left_out.fill_diagonal_(False)
    ways = (_one_way(logits, left_out, smoothing), _one_way(logits.T, left_out.T, smoothing))
    objective, loss = (torch.stack(both).mean() for both in zip(*ways, strict=True))
    return Entropy(objective, loss)


def _one_way(logits: Logits, left_out: Mask, smoothing: float) -> Entropy:
    exact = torch.promote_types(logits.dtype, torch.float32)
    log = logits.masked_fill(left_out, -math.inf).log_softmax(-1, dtype=exact)
    loss = -log.diagonal().mean()
    if not smoothing:
        return Entropy(loss, loss)
    even = -(log.masked_fill(left_out, 0.0).sum(-1) / (~left_out).sum(-1)).mean()
    return Entropy((1 - smoothing) * loss + smoothing * even, loss.detach())


def equal_rows(tokens: Int[Tensor, "batch time"]) -> Bool[Tensor, "batch batch"]:
    """Which texts are the same, token for token.

    >>> equal_rows(torch.tensor([[1, 2], [1, -1], [1, 2]]))[0].tolist()
    [True, False, True]
    """
    return (tokens[:, None] == tokens[None]).all(-1)
