"""What a parser learns: the governor and relation of each word, and heads that are pictures of their relations."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lemma.parts.relations import Scores, over_dependents, over_governors

Targets = Int[Tensor, "batch words two"]
"""The governor (a place, 0 the top) and the relation of each word; −1 where there is no word or nothing to learn."""


def arcs(scores: Scores, targets: Targets) -> Float[Tensor, ""]:
    """Mean −log p(governor, relation | dependent) over the words, in nats: the parser's joint cross-entropy."""
    there, learned = targets[..., 0] >= 0, targets[..., 1] >= 0
    log = over_governors(scores, there).flatten(1, 2)
    place = targets[..., 1] * scores.shape[2] + targets[..., 0]
    picked = log.gather(1, place.clamp(min=0)[:, None]).squeeze(1)
    return -torch.where(learned, picked, 0.0).sum() / learned.sum().clamp(min=1)


def attention(scores: Scores, null: Float[Tensor, "relations"], targets: Targets) -> Float[Tensor, ""]:
    """Mean over the words of −Σ_r log α_r on what is right: B1's loss.

    A governor's head is to attend evenly to its dependents of that relation, and to the null place where it has none.
    """
    there = targets[..., 0] >= 0
    log = over_dependents(scores, null, there)
    right = pictures(targets, scores.shape[1])
    governs = torch.cat([torch.ones_like(there[:, :1]), there], dim=1)
    loss = -torch.where(right > 0, right * log, 0.0).sum((1, 3))
    return (loss * governs).sum() / there.sum().clamp(min=1)


def pictures(targets: Targets, relations: int) -> Float[Tensor, "batch relations governors null_and_dependents"]:
    """What each head should attend to: 1/n on each of a governor's n dependents, 1 on the null place if there is none.

    For "I prefer the morning flight through Denver" the head `dobj` from `prefer` is 1 on `flight`, else 0.
    """
    batch, words, _ = targets.shape
    right = torch.zeros(batch, relations, words + 1, words + 1, device=targets.device)
    row, word = torch.nonzero((targets >= 0).all(-1), as_tuple=True)
    governor, relation = targets[row, word].unbind(-1)
    right[row, relation, governor, word + 1] = 1.0
    count = right.sum(-1)
    right[..., 0] = (count == 0).float()
    return right / count.clamp(min=1)[..., None]
