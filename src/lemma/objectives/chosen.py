"""The objective that a recipe names: the causal one, or one that another package brings."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lemma.errors import PackageError
from lemma.objectives.causal import causal
from lemma.spec import OBJECTIVES, ChosenObjective, NewObjective

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
