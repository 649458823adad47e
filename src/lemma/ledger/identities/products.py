"""Problem C7: E[(aᵀb)²] = D for independent a, b ∈ R^D of zero mean and unit variance."""

import itertools

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from lemma.ledger.identities.identity import KURTOSIS, Draws, Identity, draw
from lemma.ledger.identities.report import Finding, IdentityReport, sampled
from lemma.spec import Spec

AT_ONCE = 2**22  # numbers drawn in one go
ENUMERATED = 6  # up to here all 4^D pairs of sign vectors are gone through


class Sizes(Spec):
    """At which D, with how many pairs."""

    D: int = Field(default=64, ge=1, le=100_000)
    """Number of components."""
    samples: int = Field(default=20_000, ge=2, le=10_000_000)
    """Pairs drawn."""
    draws: Draws = "normal"
    """How components are drawn: normal, uniform or signs; only their two first moments matter."""
    seed: int = Field(default=1, ge=0)
    """Fixes the draws."""


def fourth_moment(D: int, draws: Draws) -> float:
    """E[(aᵀb)⁴] = D k² + 3D(D−1), with k = E[x⁴] of one component.

    Of the D⁴ products a_i b_i a_j b_j a_k b_k a_l b_l those count in which each index comes twice or four times.
    """
    return D * KURTOSIS[draws] ** 2 + 3 * D * (D - 1)


def inner_products(D: int, samples: int, draws: Draws, seed: int) -> Float[Tensor, "samples"]:
    """Draw pairs of vectors, some at a time, and return aᵀb of each."""
    generator = torch.Generator().manual_seed(seed)
    rows = max(1, AT_ONCE // D)
    sizes = [min(rows, samples - begin) for begin in range(0, samples, rows)]
    return torch.cat([(draw(draws, (n, D), generator) * draw(draws, (n, D), generator)).sum(1) for n in sizes])


def enumerated(D: int) -> float:
    """E[(aᵀb)²] over all pairs of sign vectors, without chance."""
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=D)), dtype=torch.float64)
    return float((signs @ signs.T).square().mean())


def run(sizes: Sizes) -> IdentityReport:
    """Set the sampled mean of (aᵀb)² beside D, with its standard error in closed form."""
    ladder = sorted({*(D for D in (1, 4, 16, 64, 256, 1024) if D < sizes.D), sizes.D})
    findings = [_finding(D, sizes) for D in ladder]
    rows = [(D, one.got, one.tolerance / 4, one.got / D) for D, one in zip(ladder, findings, strict=True)]
    small = min(sizes.D, ENUMERATED)
    exact = Finding(f"all {4**small:,} pairs of sign vectors at D = {small}", enumerated(small), float(small), 1e-12)
    return IdentityReport(
        "c7",
        IDENTITY.title,
        "E[(aᵀb)²] = D, where a, b ∈ R^D are independent with zero mean and unit variance.",
        sizes.to_dict(),
        (findings[-1], exact),
        ("D", "mean of (aᵀb)²", "standard error", "mean / D"),
        tuple(rows),
        (
            "Why: (aᵀb)² = Σ_ij a_i b_i a_j b_j; where i ≠ j the mean is a product of zeros, and D terms are left.",
            "Standard error: √((Dk² + 3D(D−1) − D²)/samples), with k = E[x⁴] of a component.",
        ),
    )


def _finding(D: int, sizes: Sizes) -> Finding:
    squares = inner_products(D, sizes.samples, sizes.draws, sizes.seed + D).square()
    error = ((fourth_moment(D, sizes.draws) - D**2) / sizes.samples) ** 0.5
    return sampled(f"mean of (aᵀb)² over {sizes.samples:,} pairs at D = {D}", float(squares.mean()), float(D), error)


IDENTITY = Identity("c7", ("products", "inner-products"), "The mean square of an inner product is D", Sizes, run)
