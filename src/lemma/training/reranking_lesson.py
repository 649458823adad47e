"""What a re-ranker learns: to tell the right one among the few that the dual encoder likes best in a batch."""

from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lemma.models import CrossAttentionModel
from lemma.models.cross_attention import Pairs
from lemma.objectives import Candidates, candidates_of, equal_rows, reranking
from lemma.spec import Recipe
from lemma.training.contrastive_lesson import refuse_parts

Learned = tuple[Float[Tensor, ""], tuple[Float[Tensor, ""], ...], None]
"""What is minimised, the terms that are reported, and no state."""
BLOCK = 1 << 25
"""Numbers in the streams of the pairs that are looked at together; of more, blocks are worked out twice."""


class RerankingLesson(nn.Module):
    """Each image picks its text among the dual encoder's k best of the batch, and each text its image.

    Of several processes each finds its candidates among its own rows.
    """

    terms = ("loss",)

    def __init__(self, model: CrossAttentionModel, recipe: Recipe) -> None:
        super().__init__()
        refuse_parts(recipe)
        self.model = model

    def forward(
        self, images: Shaped[Tensor, "rows 3 side side"], tokens: Int[Tensor, "rows time"], state: Any = None
    ) -> Learned:
        """Return the mean loss of both ways; it begins at the dual encoder's own."""
        logits, candidates = self.logits(images, tokens)
        loss = reranking(logits, candidates)
        return loss, (loss,), None

    def logits(
        self, images: Shaped[Tensor, "rows 3 side side"], tokens: Int[Tensor, "rows time"]
    ) -> tuple[Float[Tensor, "rows rows"], Candidates]:
        """The dual encoder's logits of all pairs, with what looking adds to those of the candidates."""
        towers, there = self.model.towers, tokens >= 0
        patches, words = towers.patches(images), towers.words(tokens)
        seen, read = towers.project_image(patches).float(), towers.project_text(words, there).float()
        with torch.autocast(seen.device.type, enabled=False):  # a logit of 100 has no digits left in bfloat16
            dual = towers.scale.float() * seen @ read.T
        candidates = candidates_of(dual, self.model.spec.candidates, equal_rows(tokens))
        pairs = Pairs(*candidates.either.nonzero(as_tuple=True))
        added = looked_at(self.model, patches, words, there, pairs)
        return dual + torch.zeros_like(dual).masked_scatter(candidates.either, added), candidates


def looked_at(
    model: CrossAttentionModel, patches: Tensor, words: Tensor, there: Tensor, pairs: Pairs
) -> Float[Tensor, "pairs"]:
    """What the model adds to the logits of many pairs, in blocks where all at once would take too much memory."""
    at_once = max(1, BLOCK // patches[0].numel())
    if len(pairs.images) <= at_once:
        return model(patches, words, there, pairs).float()
    blocks = zip(*(numbers.split(at_once) for numbers in pairs), strict=True)
    parts = [checkpoint(model, patches, words, there, Pairs(*block), use_reentrant=False) for block in blocks]
    return torch.cat([part.float() for part in parts if part is not None])
