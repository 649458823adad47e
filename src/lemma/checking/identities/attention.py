"""Identities of attention as a map: its output, orthogonal inputs, dense layers, permutations."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from lemma.checking.identities.base import (
    OPERATIONS_PER_DRAW,
    check_divisible,
    check_work,
    identity,
    random_module,
    sample_normal,
    seed_setting,
    setting,
    setting_above,
)
from lemma.checking.identity_report import (
    EXACT,
    VISIBLE,
    Evidence,
    expect_count,
    expect_nonzero,
    expect_zero,
)
from lemma.errors import SpecError
from lemma.layers.attention import Attention, AttentionShape
from lemma.layers.positions import sinusoids
from lemma.layers.recording import record_attention
from lemma.models.feed_forward import WindowHead
from lemma.report.curves import Curve, Plot
from lemma.spec.positions import Alibi, Rotary


@identity(
    "a2 window-head",
    title="One head over the window, asked by its last word",
    claim="With the query of the last word only, a = Σ α_i W^v e_i, α = softmax((W^q e_last)·(W^k e_i)/√d_k).",
)
def window_head(
    d: int = setting(8, 1, 1024, "width of the embedded words"),
    d_k: int = setting(5, 1, 1024, "width of query and keys"),
    d_v: int = setting(6, 1, 1024, "width of values"),
    N: int = setting(5, 2, 512, "the window has N−1 words"),
    seed: int = seed_setting("fixes words and weights"),
) -> Evidence:
    """Run our head on one window, and compare its output with the formulas, word by word."""
    words = sample_normal(N - 1, d, seed=seed)
    head = random_module(lambda: WindowHead(d, d_k, d_v), seed)
    with torch.no_grad(), record_attention() as records:
        output = head(words[None], 1, N - 1)[0, 0]
        query = head.query.weight @ words[-1]
        scores = torch.stack([query @ (head.key.weight @ word) for word in words]) / len(query) ** 0.5
        alpha = scores.exp() / scores.exp().sum()
        terms = [weight * (head.value.weight @ word) for weight, word in zip(alpha, words, strict=True)]
    return Evidence(
        (
            expect_zero("the head − the sum written out, largest entry", output - torch.stack(terms).sum(0)),
            expect_zero("its weights − softmax of the scores", records[0].weights()[0, 0, 0] - alpha),
            expect_count("outputs for a window: one, of width", output.numel(), d_v),
        ),
        ("word", "score", "α"),
        tuple((str(index + 1), float(scores[index]), float(alpha[index])) for index in range(min(8, N - 1))),
    )


# C6: self-attention on orthogonal inputs does *not* return its inputs; it does so in the limit of large norms.
# With N orthogonal inputs of norm r and s = r² (or r²/√D if scaled), every score is s on the diagonal and 0 elsewhere.
# exp(0) is 1, not 0: each output is y_i = (e^s x_i + Σ_{j≠i} x_j) / (e^s + N − 1), and therefore
# ‖y_i − x_i‖ / ‖x_i‖ = √(N(N−1)) / (e^s + N − 1), which is 0 for no norm and tends to 0 as the norm grows.

NUM_NORMS = 25
MAX_SCORE = 30.0  # beyond it float64 cannot tell the output from the input


@identity("c6 orthogonal", title="Self-attention on orthogonal inputs", claim="")
def orthogonal_inputs(
    N: int = setting(8, 2, 2000, "number of inputs"),
    D: int = setting(16, 2, 2000, "their width; there are no more than D orthogonal ones"),
    norm: float = setting_above(0, 1.0, 1e6, "the norm r at which the equality is tried"),
    scaled: bool = setting(False, description="whether scores are divided by √D; the source does not"),
    says: Literal["equality", "limit"] = setting("equality", description="what is claimed"),
    seed: int = seed_setting("fixes the directions"),
) -> Evidence:
    """Measure the error against the norm, next to the exact formula and its limit."""
    if N > D:
        raise SpecError(f"N = {N}: in width D = {D} there are at most {D} orthogonal inputs.")
    check_work({"N": N, "D": D}, operations=4 * N**2 * D * (NUM_NORMS + 3), numbers=4 * N * D + 4 * N**2)
    scale, directions = D**-0.5 if scaled else 1.0, orthogonal(N, D, seed)
    largest_norm = math.sqrt(MAX_SCORE / scale)
    norms = [largest_norm * (step + 1) / NUM_NORMS for step in range(NUM_NORMS)]
    measured: dict[float, float] = {}
    for r in (*norms, norm):
        inputs = directions * r
        measured[r] = float(((self_attention(inputs, scale) - inputs).norm(dim=1) / r).max())
    predicted = {r: relative_error(N, r**2 * scale) for r in measured}
    limits = {r: math.sqrt(N * (N - 1)) * math.exp(-(r**2) * scale) for r in measured}

    if says == "limit":
        last = f"claimed: error 0 in the limit; at the largest norm, r = {norms[-1]:.3g}"
        claimed = expect_zero(last, measured[norms[-1]], 20 * EXACT)
    else:
        worst = max(measured.values())
        claimed = expect_zero(f"claimed: error 0 at every norm; largest over {len(norms) + 1} norms", worst)
    if predicted[norm] > 10 * EXACT:
        fails = expect_nonzero(f"the source's equality fails: error at r = {norm:g}", measured[norm])
    else:
        blurred = f"at r = {norm:g} float64 cannot tell the limit from equality: error"
        fails = expect_zero(blurred, measured[norm], 20 * EXACT)

    inputs, neighbor_weight = directions * norm, math.exp(-(norm**2) * scale)
    exact = (inputs + neighbor_weight * (inputs.sum(0, keepdim=True) - inputs)) / (1 + (N - 1) * neighbor_weight)
    formula = (self_attention(inputs, scale) - exact) / norm
    deviation = max(abs(measured[r] - predicted[r]) for r in norms)
    identity_error = torch.eye(N, dtype=torch.float64) @ inputs - inputs
    x = tuple(norms)
    curves = (
        Curve("error by formula", x, tuple(predicted[r] for r in norms)),
        Curve("error measured", x, tuple(measured[r] for r in norms), dots=True),
        Curve("limit √(N(N−1))·exp(−s)", x, tuple(limits[r] for r in norms), dashed=True),
    )
    caption = (
        f"How far the outputs lie from the inputs, against the norm of the inputs (N = {N}, D = {D}). The "
        "source's equality would be 0 throughout; it is approached, never reached."
    )
    return Evidence(
        (
            fails,
            expect_zero("outputs − the formula below, largest entry / r", formula),
            expect_zero(f"measured error − formula, largest over {len(norms)} norms", deviation),
            expect_zero("with 0 in place of exp(0) the inputs would come back: largest difference", identity_error),
        ),
        ("norm r", "score s", "weight on itself", "error measured", "error by formula", "limit √(N(N−1))·e^(−s)"),
        tuple(
            (r, r**2 * scale, 1 / (1 + (N - 1) * math.exp(-(r**2) * scale)), measured[r], predicted[r], limits[r])
            for r in sorted({*norms[:: NUM_NORMS // 8], norm})
        ),
        ("Error: ‖y_i − x_i‖ / ‖x_i‖. The slip: the off-diagonal scores are 0, and exp(0) was taken for 0; it is 1.",),
        f"y_i = (e^s x_i + Σ_(j≠i) x_j) / (e^s + N − 1) with s = r²{'/√D' if scaled else ''}; "
        "the error is √(N(N−1)) / (e^s + N − 1): never 0, and 0 only in the limit of large norms.",
        Plot("norm r of the inputs", "‖y − x‖ / ‖x‖", curves, log_y=True, caption=caption),
        (claimed,),
        f"Self-attention on orthogonal inputs returns its inputs{' in the limit of large norms' * (says == 'limit')}.",
    )


def orthogonal(N: int, D: int, seed: int) -> Float[Tensor, "N D"]:
    """Return N orthogonal vectors of norm 1, in directions drawn at random."""
    return torch.linalg.qr(sample_normal(D, N, seed=seed)).Q.T


def self_attention(inputs: Float[Tensor, "N D"], scale: float) -> Float[Tensor, "N D"]:
    """Compute softmax(XXᵀ·scale)X with the kernel that every model here uses."""
    batch = inputs[None]
    return functional.scaled_dot_product_attention(batch, batch, batch, scale=scale)[0]


def relative_error(N: int, score: float) -> float:
    """Return √(N(N−1)) / (e^s + N − 1), the distance of each output from its input relative to the norm."""
    return math.sqrt(N * (N - 1)) * math.exp(-score) / (1 + (N - 1) * math.exp(-score))


# C10: QKᵀ/√D_k = X A Xᵀ with A = W_Q W_Kᵀ/√D_k is linear in the products of entries of X, so that a dense map M of
# shape (ND, ND, N, N) gives it: M[(i,a), (j,b), n, m] = A[a,b] if i = n and j = m, else 0.

MAX_ENTRIES = 2**25  # a quarter of a gigabyte


@identity(
    "c10 dense dense-layer",
    title="Attention as a constrained dense layer",
    claim="QKᵀ/√D_k = X A Xᵀ is linear in the products x_i x_j: a dense map M of shape (ND, ND, N, N) expresses it, "
    "with O(N⁴D²) entries.",
)
def dense_layer(
    N: int = setting(6, 1, description="number of inputs"),
    D: int = setting(4, 1, description="their width"),
    D_k: int = setting(3, 1, 4096, "width of queries and keys"),
    seed: int = seed_setting("fixes inputs and weights"),
) -> Evidence:
    """Build M, compare its scores with attention's, and count its entries."""
    if (entries := N**4 * D**2) > MAX_ENTRIES:
        raise SpecError(
            f"N = {N}, D = {D}: M would have N⁴D² = {entries:,} entries, {8 * entries:,} bytes. "
            f"At most {MAX_ENTRIES:,} are built; that N⁴D² grows so fast is the point."
        )
    check_work(
        {"N": N, "D": D, "D_k": D_k},
        operations=2 * D_k * D * (D + 2 * N + OPERATIONS_PER_DRAW) + 4 * entries,
        numbers=2 * entries + 2 * D * D_k + D**2,
    )
    inputs, query, key = sample_normal(N, D, seed=seed), *sample_normal(2, D, D_k, seed=seed + 1)
    queries, keys = inputs @ query, inputs @ key
    M = dense_map(query @ key.T * D_k**-0.5, N)
    dense, scores = dense_scores(M, inputs), queries @ keys.T * D_k**-0.5
    mixed = dense.softmax(-1) @ inputs
    fused = functional.scaled_dot_product_attention(queries[None], keys[None], inputs[None])[0]
    sizes = ((N, D), (2 * N, D), (N, 2 * D), (64, 64), (1024, 512), (2048, 1024))
    return Evidence(
        (
            expect_zero("M·(x ⊗ x) − QKᵀ/√D_k, largest entry", (dense - scores) / scores.abs().max().clamp(min=1.0)),
            expect_zero("softmax(M·(x ⊗ x))X − PyTorch's fused attention, largest entry", mixed - fused),
            expect_count("entries of M", M.numel(), entries),
            expect_count("entries of M that are not 0", int(M.count_nonzero()), N**2 * D**2),
        ),
        ("N", "D", "entries of M, N⁴D²", "bytes in float32", "not 0, N²D²", "free, D²"),
        tuple((n, d, n**4 * d**2, 4 * n**4 * d**2, n**2 * d**2, d**2) for n, d in sizes),
        (
            "Twice N makes 16 times the entries, twice D 4 times. Of them D² are free: attention is that dense layer "
            "with all other entries fixed at 0 and the rest shared between places.",
        ),
    )


def dense_map(A: Float[Tensor, "D D"], N: int) -> Float[Tensor, "ND ND N N"]:
    """Return M[(i,a), (j,b), n, m] = A[a,b] δ_in δ_jm."""
    D, eye = len(A), torch.eye(N, dtype=A.dtype)
    return torch.einsum("ab,in,jm->iajbnm", A, eye, eye).reshape(N * D, N * D, N, N)


def dense_scores(M: Float[Tensor, "ND ND N N"], inputs: Float[Tensor, "N D"]) -> Float[Tensor, "N N"]:
    """Apply M to all products of two entries of the inputs, as one dense layer."""
    flat, N = inputs.flatten(), len(inputs)
    return (torch.outer(flat, flat).flatten() @ M.flatten(0, 1).flatten(1)).view(N, N)


@identity(
    "c11 permutation equivariance",
    title="Self-attention is permutation-equivariant",
    claim="Self-attention without positions is permutation-equivariant: f(PX) = P f(X).",
)
def permutation(
    N: int = setting(12, 3, 2000, "number of inputs"),
    D: int = setting(32, 1, 2048, "their width"),
    H: int = setting(4, 1, description="number of heads; each is D/H wide"),
    seed: int = seed_setting("fixes inputs, weights and the permutation"),
) -> Evidence:
    """Permute the inputs of PyTorch's and of our attention: their outputs are permuted alike, or are not."""
    check_divisible("H", H, "D", D)
    check_work(
        {"N": N, "D": D, "H": H},
        operations=12 * (8 * N * D**2 + 4 * N**2 * D + 10 * H * N**2) + OPERATIONS_PER_DRAW * 24 * D**2,
        numbers=24 * D**2 + 4 * H * N**2,
    )
    shape = AttentionShape(D, H, causal=False)
    attention = random_module(lambda: Attention(shape), seed)
    reference = random_module(lambda: nn.MultiheadAttention(D, H, batch_first=True), seed)
    table = sinusoids(N, D, 10_000.0).double()
    cases: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {  # what is tried, and whether it is equivariant
        "no positions, no mask": (lambda x: attention(x[None])[0][0], True),
        "torch.nn.MultiheadAttention": (lambda x: reference(*[x[None]] * 3, need_weights=False)[0][0], True),
        "sinusoidal positions added": (lambda x: attention(x[None] + table)[0][0], False),
    }
    variants = {"causal mask": replace(shape, causal=True), "ALiBi": replace(shape, positions=Alibi())}
    if shape.head_width % 2 == 0:
        variants["rotary positions"] = replace(shape, positions=Rotary())
    for name, variant in variants.items():
        layer = random_module(lambda variant=variant: Attention(variant), seed)
        cases[name] = (lambda x, layer=layer: layer(x[None])[0][0], False)

    inputs = sample_normal(N, D, seed=seed)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(seed))
    if bool((order.diff().abs() == 1).all()):  # the identity or the reversal, which keep all distances
        order = order.roll(1)
    findings, rows = [], []
    for name, (attend, equivariant) in cases.items():
        with torch.no_grad():
            size = float((attend(inputs[order]) - attend(inputs)[order]).abs().max())
        label = f"{name}: f(PX) − P f(X)"
        findings.append(expect_zero(label, size) if equivariant else expect_nonzero(label, size, VISIBLE))
        rows.append((name, size))
    return Evidence(
        tuple(findings),
        ("case", "largest entry of f(PX) − P f(X)"),
        tuple(rows),
        (f"P: {' '.join(map(str, order.tolist()[:16]))}{' …' if N > 16 else ''}",),
    )
