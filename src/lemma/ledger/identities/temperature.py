"""Problem B5: β = 1/√I gives logits of zero mean and unit variance, whatever the dimension I."""

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from lemma.ledger.identities.identity import Draws, Identity, drawn, gap
from lemma.ledger.identities.products import fourth_moment, inner_products
from lemma.ledger.identities.report import Finding, IdentityReport, residual, sampled
from lemma.spec import Spec

CANDIDATES = 50  # logits of the softmax whose sharpness is shown


class Sizes(Spec):
    """At which I, with how many logits."""

    I: int = Field(default=64, ge=1, le=100_000)  # noqa: E741 - the source's letter
    """Number of components of h and e."""
    samples: int = Field(default=20_000, ge=2, le=10_000_000)
    """Logits drawn."""
    draws: Draws = "normal"
    """How components are drawn: normal, uniform or signs; only their two first moments matter."""
    seed: int = Field(default=1, ge=0)
    """Fixes the draws."""


def run(sizes: Sizes) -> IdentityReport:
    """Sample logits βhᵀe, and set their mean and variance beside 0 and 1."""
    I = sizes.I  # noqa: E741
    products = inner_products(I, sizes.samples, sizes.draws, sizes.seed)
    return IdentityReport(
        "b5",
        IDENTITY.title,
        "With h, e ∈ R^I of independent zero-mean, unit-variance components, β = 1/√I gives logits βhᵀe of zero mean "
        "and unit variance.",
        sizes.to_dict(),
        (*_moments(products * I**-0.5, sizes), _same_factor_as_attention(I, sizes.seed)),
        ("I", "variance, β = 1", "variance, β = 1/√I", "largest weight, β = 1", "largest weight, β = 1/√I"),
        tuple(_row(size, sizes) for size in sorted({*(size for size in (4, 16, 64, 256, 1024) if size < I), I})),
        (
            "Closed form: E[hᵀe] = 0 and Var[hᵀe] = I, so that Var[βhᵀe] = β²I.",
            f"Largest weight: the mean over softmaxes of {CANDIDATES} such logits. Without β it goes to 1 as I grows.",
        ),
    )


def _moments(logits: Float[Tensor, "samples"], sizes: Sizes) -> tuple[Finding, Finding]:
    I, count = sizes.I, sizes.samples  # noqa: E741
    of_variance = ((fourth_moment(I, sizes.draws) / I**2 - 1) / count) ** 0.5
    return (
        sampled(f"mean of {count:,} logits at I = {I}", float(logits.mean()), 0.0, count**-0.5),
        sampled(f"variance of {count:,} logits at I = {I}", float(logits.square().mean()), 1.0, of_variance),
    )


def _same_factor_as_attention(I: int, seed: int) -> Finding:  # noqa: E741
    queries, keys, values = drawn(3, 5, min(I, 1024), seed=seed)
    mine = (queries @ keys.T * queries.shape[-1] ** -0.5).softmax(-1) @ values
    theirs = functional.scaled_dot_product_attention(queries[None], keys[None], values[None])[0]
    return residual("softmax(βQKᵀ)V − PyTorch's fused attention, largest entry", gap(mine, theirs))


def _row(size: int, sizes: Sizes) -> tuple[float | int, ...]:
    logits = inner_products(size, sizes.samples, sizes.draws, sizes.seed + 1)
    whole = logits[: len(logits) // CANDIDATES * CANDIDATES].view(-1, CANDIDATES)
    rows = whole if len(whole) else logits[None]
    variances = [float(logits.square().mean()) / scale for scale in (1, size)]
    sharpness = [float(torch.softmax(rows * scale, -1).amax(-1).mean()) for scale in (1.0, size**-0.5)]
    return size, *variances, *sharpness


IDENTITY = Identity("b5", ("temperature",), "The temperature that fits a dimension", Sizes, run)
