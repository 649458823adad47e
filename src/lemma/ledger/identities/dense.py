"""Problem C10: attention's scores as a constrained dense layer of the products x_i x_j.

QKᵀ/√D_k = X A Xᵀ with A = W_Q W_Kᵀ/√D_k is linear in the products of entries of X, so that a dense map M of shape
(ND, ND, N, N) gives it: M[(i,a), (j,b), n, m] = A[a,b] if i = n and j = m, else 0.
"""

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional

from lemma.ledger.identities.identity import Identity, drawn, gap
from lemma.ledger.identities.report import Finding, IdentityReport, residual
from lemma.spec import Spec

LARGEST = 2**26  # entries of M: half a gigabyte


class Sizes(Spec):
    """How many inputs, how wide; M has N⁴D² entries."""

    N: int = Field(default=6, ge=1)
    """Number of inputs."""
    D: int = Field(default=4, ge=1)
    """Their width."""
    D_k: int = Field(default=3, ge=1, le=4096)
    """Width of queries and keys."""
    seed: int = Field(default=1, ge=0)
    """Fixes inputs and weights."""

    @model_validator(mode="after")
    def _small_enough(self) -> "Sizes":
        if (entries := self.N**4 * self.D**2) > LARGEST:
            raise ValueError(
                f"N = {self.N}, D = {self.D}: M would have N⁴D² = {entries:,} entries, {8 * entries:,} bytes. "
                f"At most {LARGEST:,} are built; that N⁴D² grows so fast is the point."
            )
        return self


def dense_map(A: Float[Tensor, "D D"], N: int) -> Float[Tensor, "ND ND N N"]:
    """M[(i,a), (j,b), n, m] = A[a,b] δ_in δ_jm."""
    D, eye = len(A), torch.eye(N, dtype=A.dtype)
    return torch.einsum("ab,in,jm->iajbnm", A, eye, eye).reshape(N * D, N * D, N, N)


def dense_scores(M: Float[Tensor, "ND ND N N"], inputs: Float[Tensor, "N D"]) -> Float[Tensor, "N N"]:
    """Apply M to all products of two entries of the inputs, as one dense layer."""
    flat = inputs.flatten()
    N = len(inputs)
    return (torch.outer(flat, flat).flatten() @ M.flatten(0, 1).flatten(1)).view(N, N)


def run(sizes: Sizes) -> IdentityReport:
    """Build M, compare its scores with attention's, and count its entries."""
    N, D = sizes.N, sizes.D
    inputs, query, key = drawn(N, D, seed=sizes.seed), *drawn(2, D, sizes.D_k, seed=sizes.seed + 1)
    M = dense_map(query @ key.T * sizes.D_k**-0.5, N)
    mine, scores = dense_scores(M, inputs), (inputs @ query) @ (inputs @ key).T * sizes.D_k**-0.5
    queries, keys, values = (inputs @ query)[None], (inputs @ key)[None], inputs[None]
    fused = functional.scaled_dot_product_attention(queries, keys, values)[0]
    findings = (
        residual("M·(x ⊗ x) − QKᵀ/√D_k, largest entry", gap(mine, scores) / max(1.0, float(scores.abs().max()))),
        residual(
            "softmax(M·(x ⊗ x))X − PyTorch's fused attention, largest entry", gap(mine.softmax(-1) @ inputs, fused)
        ),
        Finding("entries of M", M.numel(), N**4 * D**2, 0.0, "a count"),
        Finding("entries of M that are not 0", int(M.count_nonzero()), N**2 * D**2, 0.0, "a count"),
    )
    return IdentityReport(
        "c10",
        IDENTITY.title,
        "QKᵀ/√D_k = X A Xᵀ is linear in the products x_i x_j: a dense map M of shape (ND, ND, N, N) expresses it, with "
        "O(N⁴D²) entries.",
        sizes.to_dict(),
        findings,
        ("N", "D", "entries of M, N⁴D²", "bytes in float32", "not 0, N²D²", "free, D²"),
        tuple(_row(n, d) for n, d in ((N, D), (2 * N, D), (N, 2 * D), (64, 64), (1024, 512), (2048, 1024))),
        (
            "Twice N makes 16 times the entries, twice D 4 times. Of them D² are free: attention is that dense layer "
            "with all other entries fixed at 0 and the rest shared between places.",
        ),
    )


def _row(N: int, D: int) -> tuple[int, ...]:
    entries = N**4 * D**2
    return N, D, entries, 4 * entries, N**2 * D**2, D**2


IDENTITY = Identity("c10", ("dense", "dense-layer"), "Attention as a constrained dense layer", Sizes, run)
