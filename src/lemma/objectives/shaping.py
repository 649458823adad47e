"""Losses that shape attention: focus wants its rows sharp (problem B2), near wants them close by (problem B3)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lemma.objectives.rows import Rows, row_sums
from lemma.parts import AttentionRecord


@dataclass(frozen=True)
class Shape:
    """How sharp and how near a model's attention is: means over batch, heads, rows and the layers that count."""

    focus: Float[Tensor, ""]
    """The mean entropy of a row, in nats, over all layers."""
    near: Float[Tensor, ""]
    """The mean of min(L_max, Σ α (t₁−t₂)²) over all layers but the last."""


def shape_of(
    records: Sequence[AttentionRecord],
    near_max: float,
    layers: int | None = None,
    counted: Bool[Tensor, "batch time"] | None = None,
) -> Shape:
    """Measure focus and near from what attention was given in each layer, differentiably.

    L_focus = 1/(K·T·L) Σ H(α[ℓ,k,t₁,·]) and L_near = 1/(K·T·(L−1)) Σ_{ℓ<L−1} min(L_max, Σ_{t₂} α (t₁−t₂)²), averaged
    over the batch too. Rows that see nothing do not count, nor those that `counted` leaves out. A layer may have
    several calls of attention, one after the other: `layers` says how many layers there are, one a call if unset.
    """
    calls, left_over = divmod(len(records), layers or len(records) or 1)
    if not calls or left_over:
        raise ValueError(f"{len(records)} calls of attention do not make {layers or 'any'} layers of equally many.")
    sums = [row_sums(Rows(record, near_max, counted)) for record in records]
    return Shape(_mean(sums, 0), _mean(sums[:-calls], 1))


def _mean(sums: Sequence[tuple[Tensor, Tensor, Tensor]], place: int) -> Float[Tensor, ""]:
    """The mean over all rows of all heads; zero where there are none."""
    if not sums:
        return torch.zeros(())
    rows = torch.cat([numbers for _, _, numbers in sums]).sum()
    return torch.cat([one[place] for one in sums]).sum() / rows.clamp(min=1)
