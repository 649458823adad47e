"""The objective of a re-ranker: among the few that the dual encoder likes best, the right one."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

Logits = Float[Tensor, "images texts"]
Chosen = Bool[Tensor, "images texts"]


class Candidates(NamedTuple):
    """Of each image the texts, and of each text the images, that are ranked again."""

    texts: Chosen
    """Row: the texts among which an image's own is to be found."""
    images: Chosen
    """Column: the images among which a text's own is to be found."""

    @property
    def either(self) -> Chosen:
        """All pairs that have to be looked at."""
        return self.texts | self.images


def candidates_of(dual: Logits, number: int, alike: Chosen | None = None) -> Candidates:
    """The `number` most alike of each row and of each column, its own (on the diagonal) always among them.

    Where `alike` is true off the diagonal, as where two pictures have one caption, the pair is left out of both.

    >>> dual = torch.tensor([[1.0, 3.0, 2.0], [9.0, 0.0, 1.0], [0.0, 0.0, 5.0]])
    >>> candidates_of(dual, 2).texts.int().tolist()
    [[1, 1, 0], [1, 1, 0], [1, 0, 1]]
    """
    own = torch.eye(len(dual), dtype=torch.bool, device=dual.device)
    likings = dual.detach().float()
    if alike is not None:
        likings = likings.masked_fill(alike, -torch.inf)
    likings = likings.masked_fill(own, torch.inf)
    texts, images = _best(likings, number), _best(likings.T, number).T
    others = torch.zeros_like(own) if alike is None else alike & ~own
    return Candidates(texts & ~others, images & ~others)


def _best(likings: Float[Tensor, "queries candidates"], number: int) -> Bool[Tensor, "queries candidates"]:
    best = likings.topk(min(number, likings.shape[1]), dim=1).indices
    return torch.zeros_like(likings, dtype=torch.bool).scatter_(1, best, True)


def reranking(logits: Logits, candidates: Candidates) -> Float[Tensor, ""]:
    """Return −log p(own) among the candidates, the mean of both ways, in nats.

    >>> reranking(torch.zeros(4, 4), candidates_of(torch.zeros(4, 4), 2)).exp().item()  # chance: one of two
    2.0
    """
    own = torch.arange(len(logits), device=logits.device)
    ways = (logits.masked_fill(~candidates.texts, -torch.inf), logits.T.masked_fill(~candidates.images.T, -torch.inf))
    return torch.stack([functional.cross_entropy(way, own) for way in ways]).mean()
