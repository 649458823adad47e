"""The losses that training minimises."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from lemma.errors import PackageError
from lemma.layers.attention import Scores, over_dependents, over_governors
from lemma.spec.recipe import OBJECTIVES, ChosenObjective, NewObjective

# The causal objective: the cross-entropy of each next token, in nats.


def causal(
    logits: Float[Tensor, "batch time vocabulary"], targets: Int[Tensor, "batch time"], reduction: str = "mean"
) -> Float[Tensor, "..."]:
    """Return −log p(target), averaged over all tokens, or summed with reduction="sum"."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)


# The objective that a recipe names: the causal one, or one that another package brings.


Loss = Callable[[Float[Tensor, "batch time vocabulary"], Int[Tensor, "batch time"]], Float[Tensor, ""]]


def loss_of(chosen: ChosenObjective) -> Loss:
    """The function of logits and targets that is made small; another package's is tried on a few numbers first.

    >>> loss_of(ChosenObjective(kind="causal")) is causal
    True
    """
    found = chosen.found()
    if found is None:
        return causal
    loss: Loss = partial(OBJECTIVES.part(chosen.kind, found.loss), **found.settings())
    _try(loss, found)
    return loss


def _try(loss: Loss, objective: NewObjective) -> None:
    """Refuse what gives anything but one number with a gradient."""
    logits = torch.zeros(2, 3, 5, requires_grad=True)
    with OBJECTIVES.blaming(objective.kind, objective.loss):
        got = loss(logits, torch.zeros(2, 3, dtype=torch.long))
    if not isinstance(got, Tensor) or got.dim() or not got.requires_grad or not got.isfinite():
        raise PackageError(
            f"the objective '{objective.kind}': {objective.loss} must give one finite number with a gradient, the mean "
            f"over all targets; of six targets it gives {got!r}."
        )


# Cross-entropy where some targets do not count: hidden tokens, translations and classes are all learned by it.


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


# What an encoder learns from plain text (problem E3): the tokens hidden from it, and whether one text follows
# another.
#
# The targets of a row are the tokens at the places that were hidden, −1 elsewhere. Its first place is a mark, which
# is
# never hidden: there stands whether the second stretch of the row follows the first (Devlin et al. 2019).


Targets = Int[Tensor, "batch time"]


def masked(logits: Float[Tensor, "batch time vocabulary"], targets: Targets, smoothing: float = 0.0) -> Entropy:
    """Measure the logits at every place that was hidden."""
    return cross_entropy(logits[:, 1:], targets[:, 1:], smoothing)


def next_sentence(follows: Float[Tensor, "batch two"], targets: Targets, smoothing: float = 0.0) -> Entropy:
    """Measure the logits of 0 (does not follow) and 1 (follows)."""
    return cross_entropy(follows, targets[:, 0], smoothing)


# What a dual encoder learns: which image and which text of a batch belong together (Radford et al. 2021).


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


# What a parser learns: the governor and relation of each word, and heads that are pictures of their relations.


ParsingTargets = Int[Tensor, "batch words two"]
"""The governor (a place, 0 the top) and the relation of each word; −1 where there is no word or nothing to learn."""


def arcs(scores: Scores, targets: ParsingTargets) -> Float[Tensor, ""]:
    """Mean −log p(governor, relation | dependent) over the words, in nats: the parser's joint cross-entropy."""
    there, learned = targets[..., 0] >= 0, targets[..., 1] >= 0
    log = over_governors(scores, there).flatten(1, 2)
    place = targets[..., 1] * scores.shape[2] + targets[..., 0]
    picked = log.gather(1, place.clamp(min=0)[:, None]).squeeze(1)
    return -torch.where(learned, picked, 0.0).sum() / learned.sum().clamp(min=1)


def attention(scores: Scores, null: Float[Tensor, "relations"], targets: ParsingTargets) -> Float[Tensor, ""]:
    """Mean over the words of −Σ_r log α_r on what is right: B1's loss.

    A governor's head is to attend evenly to its dependents of that relation, and to the null place where it has none.
    """
    there = targets[..., 0] >= 0
    log = over_dependents(scores, null, there)
    right = pictures(targets, scores.shape[1])
    governs = torch.cat([torch.ones_like(there[:, :1]), there], dim=1)
    loss = -torch.where(right > 0, right * log, 0.0).sum((1, 3))
    return (loss * governs).sum() / there.sum().clamp(min=1)


def pictures(targets: ParsingTargets, relations: int) -> Float[Tensor, "batch relations governors null_and_dependents"]:
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


# The objective of a re-ranker: among the few that the dual encoder likes best, the right one.


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


# What an encoder–decoder learns: each token of the target given the source and the true tokens before it.


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
