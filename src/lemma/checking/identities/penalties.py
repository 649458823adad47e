"""Identities of the losses that shape attention: focus and near."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lemma.checking.identities.base import (
    check_work,
    identity,
    sample_normal,
    seed_setting,
    setting,
    setting_above,
    sweep,
)
from lemma.checking.identity_report import (
    Evidence,
    Finding,
    expect_nonzero,
    expect_zero,
)
from lemma.errors import SpecError
from lemma.layers.penalties import row_statistics
from lemma.layers.recording import AttentionRecord

# B2 and B3: the losses that shape attention, tried where their values are known.
# L_focus = 1/(K·T·L) Σ H(α[ℓ,k,t₁,·]), the mean entropy of a row;
# L_near = 1/(K·T·(L−1)) Σ_{ℓ≤L−2} min(L_max, Σ α(t₁−t₂)²).

Scores = Float[Tensor, "layers heads T T"]


@identity(
    "b2 focus",
    title="Focus loss: the mean entropy of attention",
    claim="L_focus = 1/(K·T·L) Σ H(α[ℓ,k,t1,·]) is the mean entropy, in nats, of every head's attention rows.",
)
def focus_loss(
    L: int = setting(2, 1, 12, "layers"),
    K: int = setting(3, 1, 16, "heads of a layer"),
    T: int = setting(16, 2, 512, "places"),
    seed: int = seed_setting("fixes the scores"),
) -> Evidence:
    """Compute the focus loss of random, uniform and sharp attention, and compare it with the formula."""
    check_work({"L": L, "K": K, "T": T}, operations=100 * L * K * T**2, numbers=8 * L * K * T**2)
    scores = sample_normal(L, K, T, T, seed=seed)
    alpha = scores.softmax(-1)
    expected = float(-(alpha * alpha.log()).sum((1, 2, 3)).sum() / (K * T * L))
    random, uniform, sharp = (
        float(row_statistics(_records(layer_scores), distance_max=1.0).entropy)
        for layer_scores in (scores, torch.zeros_like(scores), _farthest_scores(L, K, T))
    )
    return Evidence(
        (
            Finding("random attention, against the sum written out", random, expected, 1e-10),
            Finding("even attention: log T", uniform, math.log(T), 1e-10),
            expect_zero("attention to one place only: no entropy", abs(sharp)),
        ),
        notes=("It lies between 0, every row on one place, and log T, every row even.",),
    )


@identity(
    "b3 near",
    title="Near loss: its bound does not depend on T",
    claim="The largest value of the near loss, min(L_max, Σ α (t1−t2)²) averaged, does not depend on T.",
)
def near_loss(
    L: int = setting(3, 2, 12, "layers; the last is left out"),
    K: int = setting(3, 1, 16, "heads of a layer"),
    T: int = setting(64, 2, 512, "the largest number of places"),
    seed: int = seed_setting("fixes the scores"),
    L_max: float = setting_above(0, 6.0, 1e12, "where a row's squared distance is cut off"),
) -> Evidence:
    """Compute the near loss where every row attends as far away as it can, for longer and longer sequences."""
    check_work({"L": L, "K": K, "T": T}, operations=200 * L * K * T**2, numbers=8 * L * K * T**2)
    first = 2 * math.ceil(math.sqrt(L_max))
    if L_max > (T // 2) ** 2:
        raise SpecError(f"T = {T}: no row reaches the bound L_max = {L_max:g}; give T = {first} or more.")

    def near(scores: Scores, bound: float = L_max) -> float:
        return float(row_statistics(_records(scores), distance_max=bound).distance)

    lengths = sweep((size for size in (first, 16, 32, 64, 128, 256) if size >= first), T)
    rows = [
        (length, near(_farthest_scores(L, K, length)), near(_farthest_scores(L, K, length), 1e12)) for length in lengths
    ]
    positions = torch.arange(T, dtype=torch.float64)
    # scores that fall with the distance, so that no row comes near the bound
    scores = sample_normal(L, K, T, T, seed=seed) - 4 * (positions[:, None] - positions).abs()
    other_last, other_first = scores.clone(), scores.clone()
    other_last[-1], other_first[0] = 9 * sample_normal(K, T, T, seed=seed + 1), _farthest_scores(L, K, T)[0]
    return Evidence(
        (
            *(Finding(f"largest at T = {length}: L_max", value, L_max, 1e-10) for length, value, _ in rows),
            expect_zero("another last layer changes it by", abs(near(other_last) - near(scores))),
            expect_nonzero("another first layer changes it by", abs(near(other_first) - near(scores))),
        ),
        ("T", "largest, cut at L_max", "largest, not cut"),
        tuple(rows),
        ("Not cut, the largest value grows with T²: one far look would outweigh all others.",),
    )


def _records(scores: Scores) -> list[AttentionRecord]:
    """Return a record of attention with these scores for each layer."""
    layers, heads, positions, _ = scores.shape
    empty = torch.zeros(1, heads, positions, 1, dtype=scores.dtype)
    return [AttentionRecord(empty, empty, None, 1.0, scores[layer][None]) for layer in range(layers)]


def _farthest_scores(layers: int, heads: int, positions: int) -> Scores:
    """Return scores by which every row attends only to the position farthest from it."""
    row = torch.arange(positions)
    scores = torch.full((positions, positions), -1e4, dtype=torch.float64)  # so low that its exponential is 0
    scores[row, torch.where(row * 2 >= positions - 1, 0, positions - 1)] = 0.0
    return scores.expand(layers, heads, positions, positions).contiguous()
