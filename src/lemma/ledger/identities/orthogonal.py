"""Problem C6: self-attention on orthogonal inputs does *not* return its inputs; it does so in the limit of large norms.

With N orthogonal inputs of norm r and s = r² (or r²/√D if scaled), every score is s on the diagonal and 0 elsewhere.
exp(0) is 1, not 0: each output is y_i = (e^s x_i + Σ_{j≠i} x_j) / (e^s + N − 1), and therefore
‖y_i − x_i‖ / ‖x_i‖ = √(N(N−1)) / (e^s + N − 1), which is 0 for no norm and tends to 0 as the norm grows.
"""

import math
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional

from lemma.ledger.identities.identity import Identity, drawn
from lemma.ledger.identities.report import EXACT, Finding, IdentityReport, residual
from lemma.ledger.lines import Curve, Plot
from lemma.spec import Spec

STEPS = 25
CLAIMS = {
    "equality": "Self-attention on orthogonal inputs returns its inputs.",
    "limit": "Self-attention on orthogonal inputs returns its inputs in the limit of large norms.",
}
LARGEST_SCORE = 30.0  # beyond it float64 cannot tell the output from the input


class Sizes(Spec):
    """How many inputs, how wide, up to which norm."""

    N: int = Field(default=8, ge=2, le=2000)
    """Number of inputs."""
    D: int = Field(default=16, ge=2, le=2000)
    """Their width; there are no more than D orthogonal ones."""
    norm: float = Field(default=1.0, gt=0, le=1e6)
    """The norm r at which the equality is tried."""
    scaled: bool = False
    """Whether scores are divided by √D; the source does not."""
    says: Literal["equality", "limit"] = "equality"
    """What is claimed: that it returns its inputs, or that it does so in the limit of large norms."""
    seed: int = Field(default=1, ge=0)
    """Fixes the directions."""

    @model_validator(mode="after")
    def _room_for_all(self) -> "Sizes":
        if self.N > self.D:
            raise ValueError(f"N = {self.N}: in width D = {self.D} there are at most {self.D} orthogonal inputs.")
        return self


def orthogonal(N: int, D: int, norm: float, seed: int) -> Float[Tensor, "N D"]:
    """N orthogonal vectors of one norm, in directions drawn at random."""
    return torch.linalg.qr(drawn(D, N, seed=seed)).Q.T * norm


def self_attention(inputs: Float[Tensor, "N D"], scale: float) -> Float[Tensor, "N D"]:
    """softmax(XXᵀ·scale)X by the kernel that every model here runs."""
    one = inputs[None]
    return functional.scaled_dot_product_attention(one, one, one, scale=scale)[0]


def relative_error(N: int, score: float) -> float:
    """√(N(N−1)) / (e^s + N − 1), the distance of each output from its input as a share of the norm."""
    return math.sqrt(N * (N - 1)) * math.exp(-score) / (1 + (N - 1) * math.exp(-score))


def measured_error(sizes: Sizes, norm: float) -> float:
    """The same, measured on the running kernel."""
    inputs = orthogonal(sizes.N, sizes.D, norm, sizes.seed)
    outputs = self_attention(inputs, _scale(sizes))
    return float(((outputs - inputs).norm(dim=1) / norm).max())


def run(sizes: Sizes) -> IdentityReport:
    """Measure the error against the norm, beside the exact formula and its limit."""
    top = math.sqrt(LARGEST_SCORE / _scale(sizes))
    norms = [top * (step + 1) / STEPS for step in range(STEPS)]
    rows = [_row(sizes, norm) for norm in sorted({*norms[:: STEPS // 8], sizes.norm})]
    return IdentityReport(
        "c6",
        IDENTITY.title,
        CLAIMS[sizes.says],
        sizes.to_dict(),
        _findings(sizes, norms),
        ("norm r", "score s", "weight on itself", "error measured", "error by formula", "limit √(N(N−1))·e^(−s)"),
        tuple(rows),
        ("Error: ‖y_i − x_i‖ / ‖x_i‖. The slip: the off-diagonal scores are 0, and exp(0) was taken for 0; it is 1.",),
        "y_i = (e^s x_i + Σ_(j≠i) x_j) / (e^s + N − 1) with s = r²" + ("/√D" if sizes.scaled else "") + "; "
        "the error is √(N(N−1)) / (e^s + N − 1): never 0, and 0 only in the limit of large norms.",
        _plot(sizes, norms),
        (_claim(sizes, norms),),
    )


def _claim(sizes: Sizes, norms: list[float]) -> Finding:
    """The equality as the source claims it, for every norm; or in the limit, at the largest of them."""
    if sizes.says == "limit":
        last = measured_error(sizes, norms[-1])
        return residual(f"claimed: error 0 in the limit; at the largest norm, r = {norms[-1]:.3g}", last, 20 * EXACT)
    worst = max(measured_error(sizes, norm) for norm in (*norms, sizes.norm))
    return residual(f"claimed: error 0 at every norm; largest over {len(norms) + 1} norms", worst)


def _findings(sizes: Sizes, norms: list[float]) -> tuple[Finding, ...]:
    inputs = orthogonal(sizes.N, sizes.D, sizes.norm, sizes.seed)
    scale = _scale(sizes)
    score = sizes.norm**2 * scale
    others = inputs.sum(0, keepdim=True) - inputs
    exact = (inputs + math.exp(-score) * others) / (1 + (sizes.N - 1) * math.exp(-score))
    formula = float((self_attention(inputs, scale) - exact).abs().max() / sizes.norm)
    worst = max(abs(measured_error(sizes, norm) - relative_error(sizes.N, norm**2 * scale)) for norm in norms)
    slip = torch.eye(sizes.N, dtype=torch.float64) @ inputs - inputs
    return (
        _claimed(sizes.norm, measured_error(sizes, sizes.norm), relative_error(sizes.N, score)),
        residual("outputs − the formula below, largest entry / r", formula),
        residual(f"measured error − formula, largest over {len(norms)} norms", worst),
        residual("with 0 in place of exp(0) the inputs would come back: largest difference", float(slip.abs().max())),
    )


def _claimed(norm: float, error: float, predicted: float) -> Finding:
    """The equality fails, unless the norm is so large that float64 cannot tell any more."""
    if predicted > 10 * EXACT:
        return residual(f"the source's equality fails: error at r = {norm:g}", error, different=True)
    return residual(f"at r = {norm:g} float64 cannot tell the limit from equality: error", error, 20 * EXACT)


def _row(sizes: Sizes, norm: float) -> tuple[float, ...]:
    score = norm**2 * _scale(sizes)
    itself = 1 / (1 + (sizes.N - 1) * math.exp(-score))
    limit = math.sqrt(sizes.N * (sizes.N - 1)) * math.exp(-score)
    return norm, score, itself, measured_error(sizes, norm), relative_error(sizes.N, score), limit


def _plot(sizes: Sizes, norms: list[float]) -> Plot:
    x = tuple(norms)
    scores = [norm**2 * _scale(sizes) for norm in norms]
    root = math.sqrt(sizes.N * (sizes.N - 1))
    measured = Curve("error measured", x, tuple(measured_error(sizes, norm) for norm in norms), dots=True)
    formula = Curve("error by formula", x, tuple(relative_error(sizes.N, score) for score in scores))
    limit = Curve("limit √(N(N−1))·exp(−s)", x, tuple(root * math.exp(-score) for score in scores), dashed=True)
    caption = (
        f"How far the outputs lie from the inputs, against the norm of the inputs (N = {sizes.N}, D = {sizes.D}). The "
        "source's equality would be 0 throughout; it is approached, never reached."
    )
    return Plot("norm r of the inputs", "‖y − x‖ / ‖x‖", (formula, measured, limit), log_y=True, caption=caption)


def _scale(sizes: Sizes) -> float:
    return sizes.D**-0.5 if sizes.scaled else 1.0


IDENTITY = Identity("c6", ("orthogonal",), "Self-attention on orthogonal inputs", Sizes, run)
