"""What a dual encoder learns: each picture's caption among those of the whole batch, and each caption's picture."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, distributed, nn
from torch.autograd.function import FunctionCtx

from lemma.errors import SpecError
from lemma.models import DualEncoderModel
from lemma.objectives import contrastive, equal_rows
from lemma.spec import Recipe
from lemma.training.parallel import Team

Learned = tuple[Float[Tensor, ""], tuple[Float[Tensor, ""], ...], None]
"""What is minimised, the terms that are reported, and no state."""


class ContrastiveLesson(nn.Module):
    """A dual encoder and the symmetric contrastive loss; a team's vectors are compared all with all."""

    terms = ("loss", "temperature")

    def __init__(self, model: DualEncoderModel, recipe: Recipe, team: Team) -> None:
        super().__init__()
        refuse_parts(recipe)
        self.model, self.team, self.smoothing = model, team, recipe.label_smoothing
        self.chance = (recipe.batch, "captions", "B")
        """Among how many, and of what, it guesses before it has learned anything; and their letter."""

    def forward(
        self, images: Float[Tensor, "rows channels side side"], tokens: Int[Tensor, "rows time"], state: Any = None
    ) -> Learned:
        """Return the smoothed loss of the whole batch, to minimise; the true one and the temperature are reported."""
        model = self.model
        pictures, texts = (
            everyone(vectors.float(), self.team)
            for vectors in (model.image_vectors(images), model.text_vectors(tokens))
        )
        with torch.autocast(images.device.type, enabled=False):  # bfloat16 is too coarse for cosines times a hundred
            logits = model.scale * pictures @ texts.T
        objective, loss = contrastive(logits, equal_rows(self.team.gather(tokens)), self.smoothing)
        return objective, (loss, 1 / model.scale), None


def refuse_parts(recipe: Recipe) -> None:
    """Refuse a batch of one pair, which has nothing to tell apart, and one cut into parts that cannot be compared."""
    if recipe.batch < 2:
        raise SpecError(
            f"recipe.batch = {recipe.batch}: each picture is told from the others of its batch, and one alone has no "
            "others. Give batch=2 or more."
        )
    if recipe.accumulate > 1:
        raise SpecError(
            f"recipe.accumulate = {recipe.accumulate}: the contrastive loss compares every picture with every caption "
            "of the batch, and parts cannot be compared one by one. Leave accumulate out, or lower batch."
        )


def everyone(vectors: Float[Tensor, "rows shared"], team: Team) -> Float[Tensor, "batch shared"]:
    """The vectors of all processes, in the order of ranks, with the way back for their gradients."""
    gathered: Any = Gathered.apply(vectors, team) if team.size > 1 else vectors
    return gathered


class Gathered(torch.autograd.Function):
    """Join a team's rows. Backward every process takes its own rows of the sum of all processes' gradients.

    Every process works out the same loss, so that the sum is as many times too large as there are processes, and the
    mean over the team, which the sharing of gradients takes, is right again.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, vectors: Tensor, team: Team) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Join the rows of all."""
        ctx.team, ctx.own = team, len(vectors)  # pyright: ignore[reportAttributeAccessIssue]
        return team.gather(vectors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Add up what all say, and take the own rows of it."""
        total = gradient.contiguous().clone()
        distributed.all_reduce(total)
        start = ctx.team.rank * ctx.own
        return total[start : start + ctx.own], None
