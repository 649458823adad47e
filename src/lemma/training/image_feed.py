"""From pictures with captions to batches on the device: in a new order every epoch, changed a little every time."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Int64
from torch import Tensor

from lemma.data import BucketedExamples, Captioned
from lemma.spec import Recipe
from lemma.training.augmenting import augment
from lemma.training.changes import changes
from lemma.training.parallel import Team
from lemma.training.wording import inner_tokens, reworded

DRAW = 1
"""What tells the choice of captions from other draws of the same seed and step."""
NOTHING = -1


def fitting(recipe: Recipe, tokens: Any, team: Team, tell: Callable[[str], None]) -> Recipe:
    """The recipe with a batch of no more pictures than there are: none is to stand in it twice, and so be too easy."""
    if not isinstance(tokens, Captioned) or recipe.batch <= (pictures := len(tokens.first) - 1):
        return recipe
    batch = pictures // team.size * team.size
    tell(f"batch = {recipe.batch} is more than the {pictures:,} training pictures: batch={batch} is taken.")
    return recipe.replace(batch=batch)


class ImageFeed:
    """The batches of a run that learns pictures: each a pure function of its step, all of one shape."""

    even = True
    """Whether all batches are of one shape: captions are filled up to the longest of all."""

    apart = True
    """Pictures are others at every reading, and a smaller held-out part has a lower loss by its size alone."""

    def __init__(self, examples: Captioned, recipe: Recipe, team: Team) -> None:
        self.examples, self.recipe, self.team = examples, recipe, team
        self.rows, self.longest = team.share(recipe.batch), int(examples.rows.lengths.max())
        self.strays = inner_tokens(examples.rows)
        alike = np.zeros(len(examples.lengths), dtype=np.int64)  # pictures are not sorted by their captions' length
        self.order = BucketedExamples(alike, recipe.batch, recipe.seed)
        self.stretch = max(1, round(float(examples.rows.lengths.mean())))
        self.tokens_a_step = recipe.batch * self.stretch

    def batch(self, step: int) -> tuple[Float[Tensor, "rows channels side side"], Int[Tensor, "rows longest"]]:
        """Return the pictures of a step and a caption of each: this process's rows of both."""
        chosen = self.order.examples(step)
        pixels = np.asarray(self.examples.pixels[chosen[self.rows]])
        return self._changed(self.team.send(pixels), step), self.team.send(self._captions(chosen, step)[self.rows])

    def _captions(self, chosen: Int64[np.ndarray, "batch"], step: int) -> Int64[np.ndarray, "batch longest"]:
        """A caption of each picture; pictures of one caption, or one that stands twice, have the same tokens."""
        recipe = self.recipe
        choice = int(np.random.default_rng([recipe.seed, step, DRAW]).integers(1 << 31))
        tokens = self.examples.captions(chosen, choice)
        tokens = np.pad(tokens, ((0, 0), (0, self.longest - tokens.shape[1])), constant_values=NOTHING)
        if not recipe.augment:
            return tokens
        different, which = np.unique(tokens, axis=0, return_inverse=True)
        return reworded(different, self.strays, recipe.seed, step, recipe.augment)[which.reshape(-1)]

    def share(self, targets: Int[Tensor, "rows longest"], parts: int) -> float:
        """How much a part of the batch counts: all, since every process works out the loss of the whole batch."""
        return 1.0

    def fresh(self, step: int) -> bool:
        """Whether a carried state is to be forgotten: pictures have nothing to do with each other."""
        return True

    def close(self) -> None:
        """Let go of what was taken."""

    def _changed(self, pixels: Tensor, step: int) -> Float[Tensor, "rows channels side side"]:
        recipe = self.recipe
        if not recipe.augment:
            return pixels / 255
        return augment(pixels, changes(recipe.seed, step, recipe.batch, recipe.augment)[self.rows])
