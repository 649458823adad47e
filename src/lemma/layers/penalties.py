"""Penalties on attention (B2, B3), from queries and keys, in memory that does not grow with T²."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lemma.errors import SpecError
from lemma.layers.recording import AttentionRecord

# The T×T weights are never in memory as a whole: a block of rows is computed, summed up and dropped, and computed again
# for the gradient. A row's entropy is lse(s) − E[s], with s its scores and E the mean under α = softmax(s); its
# squared distance is E[δ²], cut off at a maximum. Their gradients with respect to the scores are −α(s − E[s]) and
# α(δ² − E[δ²]).


BLOCK_SCORES = 2**20  # scores held at a time: 4 MB in float32
MASKED_SCORE = -1e30  # in the place of −∞, which times a weight of zero would be NaN

Scores = Float[Tensor, "batch heads rows known"]


@dataclass(frozen=True)
class AttentionRows:
    """Attention without its queries and keys: what else is needed to work out the scores of a row."""

    record: AttentionRecord
    max_distance: float
    """Where a row's squared distance is cut off."""
    row_mask: Bool[Tensor, "batch time"] | None = None
    """The rows that count; all that see anything if unset."""

    def blocks(self) -> Iterator[slice]:
        """The rows, as many at a time as fit."""
        batch, heads, new, _ = self.record.queries.shape
        step = max(1, BLOCK_SCORES // (batch * heads * self.record.keys.shape[-2]))
        return (slice(start, min(start + step, new)) for start in range(0, new, step))

    def num_visible(self, rows: slice) -> int:
        """How many keys these rows can see at most: the first ones."""
        new, known = self.record.queries.shape[-2], self.record.keys.shape[-2]
        return known - new + rows.stop if self.record.causal else known

    def distances(self, rows: slice, like: Tensor) -> Float[Tensor, "rows seen"]:
        """How far each key lies before each of these rows."""
        new, known = self.record.queries.shape[-2], self.record.keys.shape[-2]
        places = torch.arange(known - new + rows.start, known - new + rows.stop, device=like.device)
        return (places[:, None] - torch.arange(self.num_visible(rows), device=like.device)).to(like.dtype)

    def scores(self, queries: Tensor, keys: Tensor, rows: slice, distances: Tensor) -> Scores:
        """The scores of some rows, `MASKED` where a key may not be seen."""
        record = self.record
        scores = (queries[..., rows, :] * record.scale) @ keys[..., : self.num_visible(rows), :].mT
        if record.position_bias is not None:
            scores += record.position_bias_at(distances).to(scores)
        if record.bias is not None:
            bias = record.bias if record.bias.shape[-2] == 1 else record.bias[..., rows, :]
            scores = scores + bias[..., : scores.shape[-1]].to(scores)
        if record.causal:
            scores.masked_fill_(distances < 0, MASKED_SCORE)
        return scores.clamp_(min=MASKED_SCORE)

    def counted_rows(self, scores: Scores, rows: slice) -> Bool[Tensor, "batch heads rows"]:
        """Which of some rows count: those that see anything and are not left out."""
        full, real = scores.amax(-1) > MASKED_SCORE, self.record.unmasked_rows()
        full = full if real is None else full & real[..., rows]
        return full if self.row_mask is None else full & self.row_mask[:, None, rows]


class BlockwiseKernel:
    """The two passes over the rows, block by block, on any device; a fused kernel for one would be a subclass."""

    def forward(self, rows: AttentionRows, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return, head by head, the sums of entropies and of cut-off squared distances, and the number of rows."""
        sums = torch.zeros(3, queries.shape[1], dtype=torch.float64, device=queries.device)
        for block in rows.blocks():
            distances = rows.distances(block, queries)
            scores = rows.scores(queries, keys, block, distances)
            counted = rows.counted_rows(scores, block)
            total, mean, near, _ = _moments(scores, distances.square())
            terms = (total - mean, near.clamp(max=rows.max_distance), torch.ones_like(near))
            sums += torch.stack([(term * counted).sum((0, 2), dtype=torch.float64) for term in terms])
        entropies, distances, numbers = sums.unbind()
        return entropies, distances, numbers

    def backward(
        self, rows: AttentionRows, queries: Tensor, keys: Tensor, entropy: Tensor, distance: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of queries and keys, given those of the two sums of each head; blocks are made again.

        With respect to the scores it is α(−g(s − E[s]) + g'(δ² − E[δ²])), g' zero beyond the cut.
        """
        scale = rows.record.scale
        by_queries, by_keys = torch.zeros_like(queries), torch.zeros_like(keys)
        for block in rows.blocks():
            distances = rows.distances(block, queries)
            scores = rows.scores(queries, keys, block, distances)
            counted = rows.counted_rows(scores, block)
            _, mean, near, weights = _moments(scores, distances.square())
            of_entropy = entropy.to(queries)[:, None] * counted
            of_distance = distance.to(queries)[:, None] * (counted & (near < rows.max_distance))
            slopes = scores.mul_(-of_entropy[..., None]).add_((of_entropy * mean - of_distance * near)[..., None])
            if of_distance.any():
                slopes.addcmul_(of_distance[..., None], distances.square())
            slopes.mul_(weights)
            seen = slopes.shape[-1]
            by_queries[..., block, :] = (slopes @ keys[..., :seen, :]) * scale
            by_keys[..., :seen, :] += slopes.mT @ (queries[..., block, :] * scale)
        return by_queries, by_keys


def _moments(scores: Scores, squares: Tensor) -> tuple[Tensor, Tensor, Tensor, Scores]:
    """Each row's lse(s), E[s] and E[δ²], and its weights."""
    total = scores.logsumexp(-1)
    weights = (scores - total[..., None]).exp_()
    return total, torch.linalg.vecdot(weights, scores), torch.einsum("bhrk,rk->bhr", weights, squares), weights


KERNELS: dict[str, BlockwiseKernel] = {}
"""Kernels of their own by type of device, as in `KERNELS["cuda"] = …`; blocks of rows for all others."""


class _RowSums(torch.autograd.Function):
    """The sums of a kernel, with the gradients it works out."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, rows: AttentionRows) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(queries, keys)
        ctx.rows, ctx.kernel = rows, KERNELS.get(queries.device.type, BlockwiseKernel())
        sums = ctx.kernel.forward(rows, queries, keys)
        ctx.mark_non_differentiable(sums[2])
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the gradients of queries and keys."""
        queries, keys = ctx.saved_tensors
        with torch.autocast(queries.device.type, enabled=False):
            return (*ctx.kernel.backward(ctx.rows, queries, keys, gradients[0], gradients[1]), None)


def row_sums(rows: AttentionRows) -> tuple[Float[Tensor, " heads"], Float[Tensor, " heads"], Float[Tensor, " heads"]]:
    """The sums of entropies and of cut-off squared distances of each head's rows, and how many rows counted."""
    record = rows.record
    if record.position_bias is not None and record.position_bias.requires_grad:
        raise SpecError(
            "attention is shaped through queries and keys: positions that learn what they add to scores have "
            "no gradient of it. Leave entropy_penalty and distance_penalty out, or choose other positions."
        )
    exact = torch.promote_types(record.queries.dtype, torch.float32)
    with torch.autocast(record.queries.device.type, enabled=False):
        return _RowSums.apply(record.queries.to(exact), record.keys.to(exact), rows)  # pyright: ignore[reportReturnType]


@dataclass(frozen=True)
class RowMeans:
    """Entropy and squared distance of attention rows: means over batch, heads, rows and the layers that count."""

    entropy: Float[Tensor, ""]
    """The mean entropy of a row, in nats, over all layers."""
    distance: Float[Tensor, ""]
    """The mean of min(L_max, Σ α (t₁−t₂)²) over all layers but the last."""


def row_statistics(
    records: Sequence[AttentionRecord],
    distance_max: float,
    num_layers: int | None = None,
    row_mask: Bool[Tensor, "batch time"] | None = None,
) -> RowMeans:
    """Measure entropy (B2) and squared distance (B3) of attention's rows from each layer's records, differentiably.

    L_focus = 1/(K·T·L) Σ H(α[ℓ,k,t₁,·]) and L_near = 1/(K·T·(L−1)) Σ_{ℓ<L−1} min(L_max, Σ_{t₂} α (t₁−t₂)²), averaged
    over the batch too. Rows that see nothing do not count, nor those that `counted` leaves out. A layer may have
    several calls of attention, one after the other: `layers` says how many layers there are, one a call if unset.
    """
    calls, left_over = divmod(len(records), num_layers or len(records) or 1)
    if not calls or left_over:
        raise ValueError(f"{len(records)} calls of attention do not make {num_layers or 'any'} layers of equally many.")
    sums = [row_sums(AttentionRows(record, distance_max, row_mask)) for record in records]
    return RowMeans(_mean(sums, 0), _mean(sums[:-calls], 1))


def _mean(sums: Sequence[tuple[Tensor, Tensor, Tensor]], place: int) -> Float[Tensor, ""]:
    """The mean over all rows of all heads; zero where there are none."""
    if not sums:
        return torch.zeros(())
    rows = torch.cat([numbers for _, _, numbers in sums]).sum()
    return torch.cat([one[place] for one in sums]).sum() / rows.clamp(min=1)
