"""From examples of their own (trees, pairs, labelled texts) to batches on the device, those of like length together."""

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from lemma.data import BucketedExamples, Examples, Labelled, Pairs, Trees
from lemma.spec import Recipe
from lemma.training.parallel import Team


class ExampleFeed:
    """The batches of a run that learns examples: each a pure function of its step."""

    even = False
    """Whether all batches are of one shape."""

    def __init__(self, examples: Examples, recipe: Recipe, team: Team) -> None:
        self.examples, self.team, self.rows = examples, team, team.share(recipe.batch)
        self.order = BucketedExamples(examples.lengths, recipe.batch, recipe.seed)
        self.stretch = max(1, round(float(examples.lengths.mean())))
        self.counted = 0  # targets of the last batch, all processes' rows together
        self.tokens_a_step = max(1, round(float(examples.lengths.mean()) * recipe.batch))

    def batch(self, step: int) -> tuple[Int[Tensor, "rows ..."], Int[Tensor, "rows ..."]]:
        """Return the examples of a step, and what is to be said of them."""
        inputs, targets = self.examples.batch(self.order.examples(step))
        self.counted = int((self._targets(targets) >= 0).sum())
        return self.team.send(inputs[self.rows]), self.team.send(targets[self.rows])

    def share(self, targets: Int[Tensor, "rows ..."], parts: int) -> Float[Tensor, ""]:
        """How much a part of the batch counts: by its targets, so that the whole batch's mean comes out.

        A team's gradients are averaged, so that each process counts as many times as there are processes.
        """
        return (self._targets(targets) >= 0).sum().double() * (self.team.size / max(1, self.counted))

    def fresh(self, step: int) -> bool:
        """Whether a carried state is to be forgotten: examples have nothing to do with each other."""
        return True

    def close(self) -> None:
        """Let go of what was taken."""

    def _targets(self, targets: Tensor | np.ndarray) -> Tensor | np.ndarray:
        """What of the targets is predicted: a tree's governors, all but the first mark of a translation, a label."""
        match self.examples:
            case Trees():
                return targets[..., 0]
            case Pairs():
                return targets[:, 1:]
            case Labelled():
                return targets
        raise TypeError(f"{type(self.examples).__name__} are no examples that training knows.")
