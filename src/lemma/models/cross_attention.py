"""Cross-attention of images on text, as a re-ranker of what the dual encoder found (problem E8)."""

import math
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lemma.models.dual_encoder import DualEncoderModel
from lemma.parts import FeedForwardPart, attend, norm
from lemma.spec import CrossAttention

Patches = Float[Tensor, "images patches image_width"]
Words = Float[Tensor, "texts time vector_width"]
There = Bool[Tensor, "texts time"]
Stream = Float[Tensor, "pairs patches image_width"]


class Pairs(NamedTuple):
    """Which image is laid beside which text, by their numbers."""

    images: Int[Tensor, "pairs"]
    texts: Int[Tensor, "pairs"]


class CrossAttentionModel(nn.Module):
    """An image's patches look at a text's words: x + softmax(q kᵀ / √d_s) V, then a feed-forward part and a score.

    q = W_i x and k = W_t t are the dual encoder's two maps; the values' map, the feed-forward part and the score are
    added. The score is added to the dual encoder's logit and begins at nought, so that untrained it changes no order.
    """

    stateful: ClassVar[bool] = False
    added: ClassVar[tuple[str, ...]] = ("values.*", "norm.*", "feed_forward.*", "score_norm.*", "score.*")
    """What is not the dual encoder's."""

    def __init__(self, spec: CrossAttention, towers: DualEncoderModel, dropout: float = 0.0) -> None:
        super().__init__()
        self.spec, self.towers = spec, towers
        width = towers.spec.image_width
        self.values = nn.Linear(towers.text_projection.in_features, width, bias=False)
        self.norm = norm("layer", width, True)
        self.feed_forward = FeedForwardPart(width, 4 * width, "gelu", bias=True)
        self.score_norm = norm("layer", width, False)  # what all pairs have in common changes no order
        self.score = nn.Linear(width, 1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def start(self) -> None:
        """Draw the first weights of what is added; the score begins at nought."""
        for part in (self.values, self.feed_forward.widen, self.feed_forward.narrow):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        nn.init.zeros_(self.score.weight)

    def look(self, patches: Patches, words: Words, there: There, pairs: Pairs | None = None) -> Stream:
        """The patches of each pair's image, updated by what they saw in its text; each is mapped once for all pairs."""
        images, texts = pairs or (None, None)
        queries = _picked(self.towers.queries(patches), images)[:, None]
        keys = _picked(self.towers.keys(words), texts)[:, None]
        values = _picked(self.values(words), texts)[:, None]
        scale = 1 / math.sqrt(queries.shape[-1])
        seen = attend(queries, keys, values, scale, causal=False, mask=_picked(there, texts)[:, None, None, :])[:, 0]
        return _picked(patches, images) + self.dropout(seen)

    def forward(
        self, patches: Patches, words: Words, there: There, pairs: Pairs | None = None
    ) -> Float[Tensor, "pairs"]:
        """Return what is added to the dual encoder's logit of each pair; without pairs, of each row with its own."""
        stream = self.look(patches, words, there, pairs)
        stream = stream + self.dropout(self.feed_forward(self.norm(stream)))
        return self.score(self.score_norm(stream).mean(1))[:, 0]

    def logits(
        self, patches: Patches, words: Words, there: There, pairs: Pairs | None = None
    ) -> Float[Tensor, "pairs"]:
        """Return the logit of each pair: the dual encoder's, and what looking adds to it."""
        return self.dual_logits(patches, words, there, pairs) + self(patches, words, there, pairs)

    def dual_logits(
        self, patches: Patches, words: Words, there: There, pairs: Pairs | None = None
    ) -> Float[Tensor, "pairs"]:
        """Return the dual encoder's logit of each pair."""
        images, texts = pairs or (None, None)
        image = _picked(self.towers.project_image(patches), images)
        text = _picked(self.towers.project_text(words, there), texts)
        return self.towers.scale * torch.linalg.vecdot(image, text)


def _picked(rows: Tensor, numbers: Tensor | None) -> Tensor:
    """Some rows, in this order; unlike rows[numbers] its gradient adds up in one order on a CPU, bit for bit."""
    return rows if numbers is None else rows.index_select(0, numbers)
