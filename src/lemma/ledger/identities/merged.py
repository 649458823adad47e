"""Problem B6: one merged query–key matrix a head gives the same attention without a key matrix.

W^QK[j1,j2] = Σ_i W^Q[i,j1] W^K[i,j2], times 1/√I. A plain inner product of the inputs cannot replace it: it is the same
for every head.
"""

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from lemma.ledger.identities.identity import Identity, drawn, filled, gap, in_float64
from lemma.ledger.identities.report import Finding, IdentityReport, residual
from lemma.parts import Attention, AttentionShape, tap
from lemma.spec import Spec

VISIBLE = 1e-6  # a difference that is no rounding


class Sizes(Spec):
    """How many inputs, how wide, how many heads of which width."""

    N: int = Field(default=10, ge=2, le=2000)
    """Number of inputs."""
    J: int = Field(default=24, ge=1, le=1024)
    """Their width."""
    I: int = Field(default=6, ge=1, le=1024)  # noqa: E741 - the source's letter
    """Width of a head's queries and keys."""
    H: int = Field(default=3, ge=1, le=64)
    """Number of heads."""
    seed: int = Field(default=1, ge=0)
    """Fixes inputs and weights."""


def run(sizes: Sizes) -> IdentityReport:
    """Compare our attention with separate and with merged matrices, and with none."""
    inputs = drawn(1, sizes.N, sizes.J, seed=sizes.seed)
    separate, merged, plain = _parts(sizes)
    outputs, weights = zip(*(_read(part, inputs) for part in (separate, merged, plain)), strict=True)
    size = max(1.0, float(outputs[0].abs().max()))
    return IdentityReport(
        "b6",
        IDENTITY.title,
        "W^QK[j1,j2] = Σ_i W^Q[i,j1] W^K[i,j2] (per head), times 1/√I, gives the same attention without a key matrix.",
        sizes.to_dict(),
        (
            residual("outputs, merged − separate, largest entry", gap(outputs[1], outputs[0]) / size),
            residual("weights, merged − separate, largest entry", gap(weights[1], weights[0])),
            *_heads_differ(weights[1], weights[2]),
        ),
        ("form", "query–key parameters a head", "kept for each token", "furthest heads"),
        (
            ("separate", 2 * sizes.I * sizes.J, f"{sizes.H * sizes.I} (keys)", spread_of_heads(weights[0])),
            ("merged", sizes.J**2, f"{sizes.J} (the input itself)", spread_of_heads(weights[1])),
            ("plain inner product", 0, f"{sizes.J} (the input itself)", spread_of_heads(weights[2])),
        ),
        ("Furthest heads: the largest difference between two heads' weights for the same pair of tokens.",),
    )


def merged_weight(query: Float[Tensor, "I J"], key: Float[Tensor, "I J"]) -> Float[Tensor, "J J"]:
    """What takes an input to the vector that meets the other inputs: (W_Qᵀ W_K)ᵀ, for maps written W x."""
    return (query.T @ key).T


def spread_of_heads(weights: Float[Tensor, "heads N N"]) -> float:
    """The largest difference between two heads' weights for the same pair of tokens."""
    return float((weights.amax(0) - weights.amin(0)).max())


def _parts(sizes: Sizes) -> tuple[Attention, Attention, Attention]:
    """The same attention with separate matrices, with merged ones, and with the identity in their place."""
    H, I, J = sizes.H, sizes.I, sizes.J  # noqa: E741
    words = {"width": J, "heads": H, "attention_width": H * I, "causal": False, "bias": False}
    separate = filled(lambda: Attention(AttentionShape(**words)), sizes.seed)
    with in_float64():
        merged, plain = (Attention(AttentionShape(**words, key_query="merged")) for _ in range(2))
    query, key, value = separate.query_key_value.weight.detach().split(H * I)
    pairs = zip(query.split(I), key.split(I), strict=True)
    with torch.no_grad():
        merged.get_parameter("query_value.weight").copy_(torch.cat([*(merged_weight(*pair) for pair in pairs), value]))
        plain.get_parameter("query_value.weight").copy_(torch.cat([*[torch.eye(J, dtype=value.dtype)] * H, value]))
        for part in (merged, plain):
            part.output.weight.copy_(separate.output.weight)
    return separate, merged, plain


def _read(part: Attention, inputs: Tensor) -> tuple[Float[Tensor, "N J"], Float[Tensor, "heads N N"]]:
    with torch.no_grad(), tap(part) as records:
        outputs = part(inputs)[0][0]
    return outputs, records[0].weights()[0]


def _heads_differ(merged: Tensor, plain: Tensor) -> list[Finding]:
    if len(merged) < 2:
        return []
    return [
        residual("merged, heads differ: furthest two", spread_of_heads(merged), VISIBLE, different=True),
        residual("a plain inner product in its place, heads are one: furthest two", spread_of_heads(plain)),
    ]


IDENTITY = Identity("b6", ("merged", "query-key"), "One merged query–key matrix a head", Sizes, run)
