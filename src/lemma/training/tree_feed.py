"""From trees as numbers to batches on the device: sentences of about equal length, side by side."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lemma.data import BucketedSentences, Trees
from lemma.spec import Recipe
from lemma.training.parallel import Team


class TreeFeed:
    """The batches of a parser's run: each a pure function of its step."""

    even = False
    """Whether all batches are of one shape."""

    def __init__(self, trees: Trees, recipe: Recipe, team: Team) -> None:
        self.trees, self.team, self.rows = trees, team, team.share(recipe.batch)
        self.order = BucketedSentences(trees.lengths, recipe.batch, recipe.seed)
        self.stretch = max(1, round(float(trees.lengths.mean())))
        self.words = 0  # of the last batch, all processes' rows together
        self.tokens_a_step = max(1, round(float(trees.lengths.mean()) * recipe.batch))

    def batch(self, step: int) -> tuple[Int[Tensor, "rows places columns"], Int[Tensor, "rows words two"]]:
        """Return the sentences of a step, and the governor and relation of each of their words."""
        rows, targets = self.trees.batch(self.order.sentences(step))
        self.words = int((targets[..., 0] >= 0).sum())
        return self._there(rows), self._there(targets)

    def share(self, targets: Int[Tensor, "rows words two"], parts: int) -> Float[Tensor, ""]:
        """How much a part of the batch counts: by its words, so that the whole batch's mean comes out.

        A team's gradients are averaged, so that each process counts as many times as there are processes.
        """
        return (targets[..., 0] >= 0).sum() * (self.team.size / max(1, self.words))

    def fresh(self, step: int) -> bool:
        """Whether a carried state is to be forgotten: sentences have nothing to do with each other."""
        return True

    def close(self) -> None:
        """Let go of what was taken."""

    def _there(self, numbers: np.ndarray) -> Tensor:
        own = torch.from_numpy(numbers[self.rows])
        if self.team.device.type == "cpu":
            return own
        return own.pin_memory().to(self.team.device, non_blocking=True)
