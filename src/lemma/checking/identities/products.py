"""Identities of inner products of random vectors."""

import itertools
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from lemma.checking.identities.base import (
    KURTOSIS,
    OPERATIONS_PER_DRAW,
    Distribution,
    check_work,
    draw,
    identity,
    sample_normal,
    seed_setting,
    setting,
    sweep,
)
from lemma.checking.identity_report import (
    EXACT,
    Evidence,
    Finding,
    expect_mean,
    expect_zero,
)


@identity(
    "c7 products inner-products",
    title="The mean square of an inner product is D",
    claim="E[(aᵀb)²] = D, where a, b ∈ R^D are independent with zero mean and unit variance.",
)
def product_variance(
    D: int = setting(64, 1, 100_000, "number of components"),
    samples: int = setting(20_000, 2, 10_000_000, "pairs drawn"),
    draws: Distribution = "normal",  # how components are drawn; only their two first moments matter
    seed: int = seed_setting("fixes the draws"),
) -> Evidence:
    """Compare the sampled mean of (aᵀb)² with D, with its standard error in closed form."""
    rows, widths = [], sweep((1, 4, 16, 64, 256, 1024), D)
    check_draws({"D": D, "samples": samples}, samples, sum(widths))
    for size in widths:
        mean = float(sample_inner_products(size, samples, draws, seed + size).square().mean())
        error = ((fourth_moment(size, draws) - size**2) / samples) ** 0.5
        rows.append((size, mean, error, mean / size))
    _, mean, error, _ = rows[-1]
    small = min(D, 6)  # up to here all 4^D pairs of sign vectors are gone through, without chance
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=small)), dtype=torch.float64)
    exact = float((signs @ signs.T).square().mean())
    return Evidence(
        (
            expect_mean(f"mean of (aᵀb)² over {samples:,} pairs at D = {D}", mean, float(D), error),
            Finding(f"all {4**small:,} pairs of sign vectors at D = {small}", exact, float(small), EXACT),
        ),
        ("D", "mean of (aᵀb)²", "standard error", "mean / D"),
        tuple(rows),
        (
            "Why: (aᵀb)² = Σ_ij a_i b_i a_j b_j; where i ≠ j the mean is a product of zeros, and D terms are left.",
            "Standard error: √((Dk² + 3D(D−1) − D²)/samples), with k = E[x⁴] of a component.",
        ),
    )


def check_draws(sizes: Mapping[str, int], samples: int, width: int) -> None:
    """Refuse to draw too many pairs of vectors, all of which together are `width` wide."""
    check_work(sizes, operations=2 * OPERATIONS_PER_DRAW * samples * width, numbers=8 * samples)


def sample_inner_products(D: int, samples: int, draws: Distribution, seed: int) -> Float[Tensor, " samples"]:
    """Draw pairs of vectors, some at a time, and return aᵀb of each."""
    generator = torch.Generator().manual_seed(seed)
    rows = max(1, 2**22 // D)
    sizes = [min(rows, samples - start) for start in range(0, samples, rows)]
    return torch.cat([(draw(draws, (n, D), generator) * draw(draws, (n, D), generator)).sum(1) for n in sizes])


def fourth_moment(D: int, draws: Distribution) -> float:
    """Return E[(aᵀb)⁴] = D k² + 3D(D−1), with k = E[x⁴] of one component.

    Of the D⁴ products a_i b_i a_j b_j a_k b_k a_l b_l those count in which each index comes twice or four times.
    """
    return D * KURTOSIS[draws] ** 2 + 3 * D * (D - 1)


CANDIDATES = 50  # logits of the softmax whose sharpness B5 shows


@identity(
    "b5 temperature",
    title="The temperature that fits a dimension",
    claim="With h, e ∈ R^I of independent zero-mean, unit-variance components, β = 1/√I gives logits βhᵀe of zero mean "
    "and unit variance.",
)
def temperature(
    I: int = setting(64, 1, 100_000, "number of components of h and e"),  # noqa: E741 - the source's letter
    samples: int = setting(20_000, 2, 10_000_000, "logits drawn"),
    draws: Distribution = "normal",  # how components are drawn; only their two first moments matter
    seed: int = seed_setting("fixes the draws"),
) -> Evidence:
    """Sample logits βhᵀe, and compare their mean and variance with 0 and 1; attention uses the same factor."""
    widths = sweep((4, 16, 64, 256, 1024), I)
    check_draws({"I": I, "samples": samples}, samples, I + sum(widths))
    logits = sample_inner_products(I, samples, draws, seed) * I**-0.5
    error = ((fourth_moment(I, draws) / I**2 - 1) / samples) ** 0.5
    queries, keys, values = sample_normal(3, 5, min(I, 1024), seed=seed)
    computed = (queries @ keys.T * queries.shape[-1] ** -0.5).softmax(-1) @ values
    fused = functional.scaled_dot_product_attention(queries[None], keys[None], values[None])[0]
    rows = []
    for size in widths:
        products = sample_inner_products(size, samples, draws, seed + 1)
        variances = [float(products.square().mean()) / scale for scale in (1, size)]
        batches = products[: samples // CANDIDATES * CANDIDATES].view(-1, CANDIDATES)
        softmaxes = batches if len(batches) else products[None]
        sharpness = [float(torch.softmax(softmaxes * beta, -1).amax(-1).mean()) for beta in (1.0, size**-0.5)]
        rows.append((size, *variances, *sharpness))
    return Evidence(
        (
            expect_mean(f"mean of {samples:,} logits at I = {I}", float(logits.mean()), 0.0, samples**-0.5),
            expect_mean(f"variance of {samples:,} logits at I = {I}", float(logits.square().mean()), 1.0, error),
            expect_zero("softmax(βQKᵀ)V − PyTorch's fused attention, largest entry", computed - fused),
        ),
        ("I", "variance, β = 1", "variance, β = 1/√I", "largest weight, β = 1", "largest weight, β = 1/√I"),
        tuple(rows),
        (
            "Closed form: E[hᵀe] = 0 and Var[hᵀe] = I, so that Var[βhᵀe] = β²I.",
            f"Largest weight: the mean over softmaxes of {CANDIDATES} such logits. Without β it goes to 1 as I grows.",
        ),
    )
