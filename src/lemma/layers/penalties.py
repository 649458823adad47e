"""Entropy and distance of attention rows (problems B2, B3) from queries and keys, in memory that does not grow with T².

The T×T weights are never in memory at once: a block of rows is computed, summed and dropped, and computed again for the
gradient. A row's entropy is lse(s) − E[s], with s its scores and E the mean under α = softmax(s); its squared distance
is E[δ²], cut off at a maximum. Their gradients with respect to the scores are −α(s − E[s]) and α(δ² − E[δ²]).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lemma.errors import SpecError
from lemma.layers.recording import AttentionRecord

BLOCK_SCORES = 2**20  # scores held at a time: 4 MB in float32
MASKED_SCORE = -1e30  # in place of −∞, which times a weight of zero would be NaN
Scores = Float[Tensor, "batch heads rows keys"]
HeadSums = Float[Tensor, " heads"]


@dataclass(frozen=True)
class RowMeans:
    """Entropy and squared distance of attention rows: means over batch, heads, rows and layers."""

    entropy: Float[Tensor, ""]  # in nats, over all layers
    distance: Float[Tensor, ""]  # of min(L_max, Σ α (t₁−t₂)²), over all layers but the last


def row_statistics(records: Sequence[AttentionRecord], distance_max: float, num_layers: int | None = None) -> RowMeans:
    """Return the mean entropy (B2) and mean squared distance (B3) of all attention rows, differentiably.

    L_focus = 1/(K·T·L) Σ H(α[ℓ,k,t₁,·]) and L_near = 1/(K·T·(L−1)) Σ_{ℓ<L−1} min(L_max, Σ_{t₂} α (t₁−t₂)²), averaged
    over the batch too. Rows without visible keys do not count, nor those of padding.

    Args:
        records: calls of attention, layer by layer.
        distance_max: L_max, at which a row's squared distance is cut off.
        num_layers: how many layers the records belong to, each with equally many calls; one call per layer if unset.
    """
    calls, remainder = divmod(len(records), num_layers or len(records) or 1)
    if not calls or remainder:
        raise ValueError(f"{len(records)} calls of attention do not make {num_layers or 'any'} layers of equally many.")
    sums = [row_sums(AttentionRows(record, distance_max)) for record in records]
    return RowMeans(_mean(sums, 0), _mean(sums[:-calls], 1))


def _mean(sums: Sequence[tuple[Tensor, Tensor, Tensor]], index: int) -> Float[Tensor, ""]:
    """Return the mean over all rows of all calls, from `row_sums` of each; 0 without rows.

    Args:
        index: of the sum, 0 for entropy, 1 for distance.
    """
    if not sums:
        return torch.zeros(())
    rows = torch.cat([counts for _, _, counts in sums]).sum()
    return torch.cat([layer[index] for layer in sums]).sum() / rows.clamp(min=1)


@dataclass(frozen=True)
class AttentionRows:
    """The rows (queries) of a recorded attention call, whose scores are computed block by block."""

    record: AttentionRecord
    max_distance: float  # cut-off of a row's squared distance

    def blocks(self) -> Iterator[slice]:
        """Yield slices of query positions that together cover all rows; the scores of each fit in memory."""
        batch, heads, new, _ = self.record.queries.shape
        step = max(1, BLOCK_SCORES // (batch * heads * self.record.keys.shape[-2]))
        return (slice(start, min(start + step, new)) for start in range(0, new, step))

    def scores(self, queries: Tensor, keys: Tensor, rows: slice) -> tuple[Scores, Float[Tensor, "rows keys"]]:
        """Return the scores of the query positions `rows` over the visible keys, and query − key position of each."""
        record = self.record
        new, known = record.queries.shape[-2], record.keys.shape[-2]
        num_visible = known - new + rows.stop if record.causal else known
        positions = torch.arange(known - new + rows.start, known - new + rows.stop, device=queries.device)
        distances = (positions[:, None] - torch.arange(num_visible, device=queries.device)).to(queries.dtype)
        scores = (queries[..., rows, :] * record.scale) @ keys[..., :num_visible, :].mT
        if record.position_bias is not None:
            scores += record.position_bias_at(distances).to(scores)
        if record.bias is not None:
            bias = record.bias if record.bias.shape[-2] == 1 else record.bias[..., rows, :]
            scores = scores + bias[..., : scores.shape[-1]].to(scores)
        if record.causal:
            scores.masked_fill_(distances < 0, MASKED_SCORE)
        return scores.clamp_(min=MASKED_SCORE), distances

    def counted_rows(self, scores: Scores, rows: slice) -> Bool[Tensor, "batch heads rows"]:
        """Return a mask of the query positions `rows`, True where a row has visible keys and is not padding."""
        is_counted, unmasked = scores.amax(-1) > MASKED_SCORE, self.record.unmasked_rows()
        return is_counted if unmasked is None else is_counted & unmasked[..., rows]


def row_sums(rows: AttentionRows) -> tuple[HeadSums, HeadSums, HeadSums]:
    """Return for each head the sums over all rows of entropy and of cut-off squared distance, and the row count."""
    record = rows.record
    if record.position_bias is not None and record.position_bias.requires_grad:
        raise SpecError(
            "attention is shaped through queries and keys: positions that learn what they add to scores have "
            "no gradient of it. Leave entropy_penalty and distance_penalty out, or choose other positions."
        )
    dtype = torch.promote_types(record.queries.dtype, torch.float32)
    with torch.autocast(record.queries.device.type, enabled=False):
        return _RowSums.apply(record.queries.to(dtype), record.keys.to(dtype), rows)  # pyright: ignore[reportReturnType]


class _RowSums(torch.autograd.Function):
    """Autograd function of `row_sums`, whose backward pass computes the scores of every block of rows again."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, rows: AttentionRows) -> tuple[Tensor, Tensor, Tensor]:
        """Return the three sums of `row_sums`."""
        ctx.save_for_backward(queries, keys)
        ctx.rows = rows
        sums = torch.zeros(3, queries.shape[1], dtype=torch.float64, device=queries.device)
        for block in rows.blocks():
            scores, distances = rows.scores(queries, keys, block)
            is_counted = rows.counted_rows(scores, block)
            lse, mean, distance, _ = _moments(scores, distances.square())
            terms = (lse - mean, distance.clamp(max=rows.max_distance), torch.ones_like(distance))
            sums += torch.stack([(term * is_counted).sum((0, 2), dtype=torch.float64) for term in terms])
        entropies, distances, counts = sums.unbind()
        ctx.mark_non_differentiable(counts)
        return entropies, distances, counts

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the gradients of the sums with respect to queries and keys.

        With respect to the scores they are α(−g(s − E[s]) + g'(δ² − E[δ²])), g' zero beyond the cut-off.
        """
        queries, keys = ctx.saved_tensors
        rows: AttentionRows = ctx.rows
        scale = rows.record.scale
        query_gradients, key_gradients = torch.zeros_like(queries), torch.zeros_like(keys)
        with torch.autocast(queries.device.type, enabled=False):
            for block in rows.blocks():
                scores, distances = rows.scores(queries, keys, block)
                is_counted = rows.counted_rows(scores, block)
                _, mean, distance, weights = _moments(scores, distances.square())
                g_entropy = gradients[0].to(queries)[:, None] * is_counted
                g_distance = gradients[1].to(queries)[:, None] * (is_counted & (distance < rows.max_distance))
                slopes = scores.mul_(-g_entropy[..., None]).add_((g_entropy * mean - g_distance * distance)[..., None])
                if g_distance.any():
                    slopes.addcmul_(g_distance[..., None], distances.square())
                slopes.mul_(weights)
                visible = slopes.shape[-1]
                query_gradients[..., block, :] = (slopes @ keys[..., :visible, :]) * scale
                key_gradients[..., :visible, :] += slopes.mT @ (queries[..., block, :] * scale)
        return query_gradients, key_gradients, None


def _moments(scores: Scores, squares: Tensor) -> tuple[Tensor, Tensor, Tensor, Scores]:
    """Return each row's lse(s), E[s] and E[δ²], and its attention weights, for scores s and squared distances δ²."""
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp_()
    return lse, torch.linalg.vecdot(weights, scores), torch.einsum("bhrk,rk->bhr", weights, squares), weights
