"""The batches of an encoder that learns plain text: windows of which tokens are hidden, some of them in two halves."""

import numpy as np
from jaxtyping import Int
from torch import Tensor

from lemma.data import MaskedWindows
from lemma.spec import Encoder, Recipe
from lemma.training.parallel import Team


def masked_windows(length: int, spec: Encoder, rate: float, batch: int = 1, seed: int = 0) -> MaskedWindows:
    """The windows that an encoder reads of a text of some length."""
    return MaskedWindows(length, spec.context, batch, seed, rate, spec.objective, spec.vocabulary)


def hidden_places(spec: Encoder, rate: float) -> int:
    """How many tokens of every row are to be predicted."""
    return masked_windows(spec.context, spec, rate).hidden


class MaskedFeed:
    """Windows at random places, each batch a pure function of its step: what is hidden too."""

    even = True
    """Whether all batches are of one shape."""

    def __init__(self, tokens: Int[np.ndarray, "length"], spec: Encoder, recipe: Recipe, team: Team) -> None:
        self.tokens, self.team, self.rows = tokens, team, team.share(recipe.batch)
        self.windows = masked_windows(len(tokens), spec, recipe.mask_rate, recipe.batch, recipe.seed)
        self.stretch, self.tokens_a_step = spec.context, recipe.batch * spec.context

    def batch(self, step: int) -> tuple[Int[Tensor, "rows context"], Int[Tensor, "rows context"]]:
        """Return what the model reads at a step and what it is to say of it: this process's rows of both."""
        inputs, targets = self.windows.batch(self.tokens, step)
        return self.team.send(inputs[self.rows]), self.team.send(targets[self.rows])

    def share(self, targets: Int[Tensor, "rows context"], parts: int) -> float:
        """How much a part of the batch counts: as much as any other, since as many tokens of every row are hidden."""
        return 1 / parts

    def fresh(self, step: int) -> bool:
        """Whether a carried state is to be forgotten: windows have nothing to do with each other."""
        return True

    def close(self) -> None:
        """Let go of what was taken."""
