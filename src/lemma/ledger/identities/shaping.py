"""Problems B2 and B3: the losses that shape attention, tried where their values are known.

L_focus = 1/(K·T·L) Σ H(α[ℓ,k,t₁,·]), the mean entropy of a row;
L_near = 1/(K·T·(L−1)) Σ_{ℓ≤L−2} min(L_max, Σ α(t₁−t₂)²).
"""

import math

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor

from lemma.ledger.identities.identity import Identity, drawn
from lemma.ledger.identities.report import Finding, IdentityReport, residual
from lemma.objectives import shape_of
from lemma.parts import AttentionRecord
from lemma.spec import Spec

CLOSED = -1e4  # a score so low that its exponential is 0
Weights = Float[Tensor, "layers heads T T"]


class Focus(Spec):
    """How many layers, heads and places."""

    L: int = Field(default=2, ge=1, le=12)
    """Layers."""
    K: int = Field(default=3, ge=1, le=16)
    """Heads of a layer."""
    T: int = Field(default=16, ge=2, le=512)
    """Places."""
    seed: int = Field(default=1, ge=0)
    """Fixes the scores."""


class Near(Focus):
    """The same, with the bound."""

    L: int = Field(default=3, ge=2, le=12)
    """Layers; the last is left out."""
    T: int = Field(default=64, ge=2, le=512)
    """The largest number of places."""
    L_max: float = Field(default=6.0, gt=0)
    """Where a row's squared distance is cut off."""

    @model_validator(mode="after")
    def _reaches(self) -> "Near":
        if self.L_max > (self.T // 2) ** 2:
            least = 2 * math.ceil(math.sqrt(self.L_max))
            raise ValueError(
                f"T = {self.T}: no row reaches the bound L_max = {self.L_max:g}; give T = {least} or more."
            )
        return self


def records_of(scores: Weights) -> list[AttentionRecord]:
    """A layer of attention for each, whose scores are these."""
    layers, heads, places, _ = scores.shape
    nothing = torch.zeros(1, heads, places, 1, dtype=scores.dtype)
    return [AttentionRecord(nothing, nothing, None, 1.0, scores[layer][None]) for layer in range(layers)]


def furthest(layers: int, heads: int, places: int) -> Weights:
    """Scores by which every row attends only to the place furthest from it."""
    row = torch.arange(places)
    far = torch.where(row * 2 >= places - 1, 0, places - 1)
    scores = torch.full((places, places), CLOSED, dtype=torch.float64)
    scores[row, far] = 0.0
    return scores.expand(layers, heads, places, places).contiguous()


def close_by(sizes: Near) -> Weights:
    """Random scores that fall with the distance, so that no row comes near the bound."""
    places = torch.arange(sizes.T, dtype=torch.float64)
    distance = (places[:, None] - places).abs()
    return drawn(sizes.L, sizes.K, sizes.T, sizes.T, seed=sizes.seed) - 4 * distance


def run_focus(sizes: Focus) -> IdentityReport:
    """Focus on random, even and sharp attention, beside the formula written out."""
    shape = (sizes.L, sizes.K, sizes.T, sizes.T)
    scores, even, sharp = drawn(*shape, seed=sizes.seed), torch.zeros(shape).double(), furthest(*shape[:3])
    alpha = scores.softmax(-1)
    written = float(-(alpha * alpha.log()).sum((1, 2, 3)).sum() / (sizes.K * sizes.T * sizes.L))
    return IdentityReport(
        "b2",
        FOCUS.title,
        "L_focus = 1/(K·T·L) Σ H(α[ℓ,k,t1,·]) is the mean entropy, in nats, of every head's attention rows.",
        sizes.to_dict(),
        (
            Finding("random attention, beside the sum written out", focus_of(scores), written, 1e-10),
            Finding("even attention: log T", focus_of(even), math.log(sizes.T), 1e-10),
            residual("attention to one place only: no entropy", abs(focus_of(sharp))),
        ),
        remarks=("It lies between 0, every row on one place, and log T, every row even.",),
    )


def focus_of(scores: Weights) -> float:
    """L_focus by the objective that trains."""
    return float(shape_of(records_of(scores), near_max=1.0).focus)


def near_of(scores: Weights, bound: float) -> float:
    """L_near by the objective that trains."""
    return float(shape_of(records_of(scores), near_max=bound).near)


def run_near(sizes: Near) -> IdentityReport:
    """Near where every row looks as far away as it can, at more and more places."""
    first = 2 * math.ceil(math.sqrt(sizes.L_max))
    lengths = sorted({first, *(size for size in (16, 32, 64, 128, 256) if first < size < sizes.T), sizes.T})
    rows = [_row(sizes, length) for length in lengths]
    scores = close_by(sizes)
    last, before = scores.clone(), scores.clone()
    last[-1], before[0] = 9 * drawn(*scores.shape[1:], seed=sizes.seed + 1), furthest(*scores.shape[:3])[0]
    here = near_of(scores, sizes.L_max)
    return IdentityReport(
        "b3",
        NEAR.title,
        "The largest value of the near loss, min(L_max, Σ α (t1−t2)²) averaged, does not depend on T.",
        sizes.to_dict(),
        (
            *(Finding(f"largest at T = {row[0]}: L_max", row[1], sizes.L_max, 1e-10) for row in rows),
            residual("another last layer changes it by", abs(near_of(last, sizes.L_max) - here)),
            residual("another first layer changes it by", abs(near_of(before, sizes.L_max) - here), different=True),
        ),
        ("T", "largest, cut at L_max", "largest, not cut"),
        tuple(rows),
        ("Not cut, the largest value grows with T²: one far look would outweigh all others.",),
    )


def _row(sizes: Near, places: int) -> tuple[int, float, float]:
    scores = furthest(sizes.L, sizes.K, places)
    return places, near_of(scores, sizes.L_max), near_of(scores, 1e12)


FOCUS = Identity("b2", ("focus",), "Focus loss: the mean entropy of attention", Focus, run_focus)
NEAR = Identity("b3", ("near",), "Near loss: its bound does not depend on T", Near, run_near)
