"""What a parser learns: the governor and relation of every word, and heads that are pictures of their relations."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lemma.models import ParserModel
from lemma.objectives.parsing import Targets, arcs, attention

SCORES_AT_ONCE = 2**23  # 32 MB in float32, of which backward needs several
Encoded = Float[Tensor, "rows places width"]


class ParsingLesson(nn.Module):
    """A parser and its objective in one module: the arcs' cross-entropy and B1's attention loss."""

    terms: tuple[str, ...] = ("loss", "attention")
    """The names of what it reports."""

    def __init__(self, model: ParserModel) -> None:
        super().__init__()
        self.model = model
        self.weight = model.spec.attention_loss
        self.terms = ("loss", "attention") if self.weight else ("loss",)

    def forward(
        self, rows: Int[Tensor, "rows places columns"], targets: Int[Tensor, "rows words two"], state: None = None
    ) -> tuple[Float[Tensor, ""], tuple[Float[Tensor, ""], ...], None]:
        """Return what is minimised, the terms that are reported, and no state."""
        loss, picture = self._means(self.model.encode(rows), targets)
        if not self.weight:  # the null place is still touched: a team shares the gradients of all parameters
            return loss + 0.0 * self.model.heads.null.sum(), (loss,), None
        return loss + self.weight * picture, (loss, picture), None

    def _means(self, encoded: Encoded, targets: Targets) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """The mean losses of a batch; where its scores do not fit in memory, part by part and anew for backward."""
        step = max(1, SCORES_AT_ONCE // (self.model.spec.relations * encoded.shape[1] ** 2))
        if step >= len(encoded):
            return self._terms(encoded, targets)
        means, shares = [], []
        for part in zip(encoded.split(step), targets.split(step), strict=True):
            means.append(torch.stack(checkpoint(self._terms, *part, use_reentrant=False)))  # pyright: ignore[reportArgumentType]
            shares.append((part[1] >= 0).sum((0, 1)).flip(0))  # words with a relation, words
        parts, words = torch.stack(means), torch.stack(shares)
        loss, picture = ((parts * words).sum(0) / words.sum(0).clamp(min=1)).unbind()
        return loss, picture

    def _terms(self, encoded: Encoded, targets: Targets) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        scores = self.model.heads(encoded).float()
        loss = arcs(scores, targets)
        return loss, attention(scores, self.model.heads.null, targets) if self.weight else torch.zeros_like(loss)
