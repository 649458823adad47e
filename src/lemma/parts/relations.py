"""An attention layer with one head a relation (problem B1), and the two ways its scores are read.

S_r[g, d] = q_r(g)·k_r(d)/√w for governor g, dependent d and relation r, where each head's queries and keys have some
coordinates for themselves and some that all heads share. Normalised over the dependents of each governor, with a null
place for "none", the head `dobj` from `prefer` is 1 on `flight`. Normalised over all (governor, relation) of each
dependent, the same scores are a parser (Dozat & Manning 2017 have the bilinear form with separate arcs and labels).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

Scores = Float[Tensor, "batch relations governors dependents"]
QUIET = 4.0  # the null place's first score: nearly all heads of nearly all governors have nothing to attend to


class RelationHeads(nn.Module):
    """Scores of every relation between every two places; governors are the top and all words, dependents the words."""

    def __init__(self, width: int, relations: int, hidden: int, own: int, shared: int, dropout: float) -> None:
        super().__init__()
        self.relations, self.own, self.shared = relations, own, shared
        self.governor, self.dependent = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.query = nn.Linear(hidden, relations * own + shared)
        self.key = nn.Linear(hidden, relations * own + shared)
        self.null = nn.Parameter(torch.full((relations,), QUIET))
        self.dropout = nn.Dropout(dropout)
        self.scale = (own + shared) ** -0.5

    def forward(self, stream: Float[Tensor, "batch places width"]) -> Scores:
        """Score all governors, of which place 0 is the top, for all dependents, places 1 and on."""
        queries = self.query(self._bent(self.governor, stream))
        keys = self.key(self._bent(self.dependent, stream[:, 1:]))
        own = torch.matmul(self._heads(queries), self._heads(keys).transpose(-1, -2))
        if not self.shared:
            return own * self.scale
        common = queries[..., -self.shared :] @ keys[..., -self.shared :].transpose(-1, -2)
        return (own + common[:, None]) * self.scale

    def _bent(self, layer: nn.Linear, stream: Tensor) -> Tensor:
        return self.dropout(nn.functional.leaky_relu(layer(stream), 0.1))

    def _heads(self, joined: Tensor) -> Float[Tensor, "batch relations places own"]:
        batch, places, _ = joined.shape
        return joined[..., : self.relations * self.own].view(batch, places, self.relations, self.own).transpose(1, 2)


def over_dependents(
    scores: Scores, null: Float[Tensor, "relations"], there: Bool[Tensor, "batch dependents"]
) -> Float[Tensor, "batch relations governors null_and_dependents"]:
    """Log attention of each head from each governor over the null place and the dependents: B1's picture."""
    masked = scores.masked_fill(~there[:, None, None], float("-inf"))
    batch, relations, governors, _ = scores.shape
    nothing = null[None, :, None, None].expand(batch, relations, governors, 1).to(scores.dtype)
    return torch.cat([nothing, masked], dim=-1).log_softmax(-1)


def over_governors(scores: Scores, there: Bool[Tensor, "batch dependents"]) -> Scores:
    """Log probability of each (governor, relation) for each dependent: the parser. The top is always there."""
    governs = torch.cat([torch.ones_like(there[:, :1]), there], dim=1)
    itself = torch.eye(scores.shape[-1], dtype=torch.bool, device=scores.device)
    barred = ~governs[:, :, None] | torch.cat([torch.zeros_like(itself[:1]), itself])
    masked = scores.masked_fill(barred[:, None], float("-inf"))
    return masked.flatten(1, 2).log_softmax(1).view_as(scores)
