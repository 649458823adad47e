"""Identities of attention as a map: its losses, orthogonal inputs, dense layers, permutations."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from lemma.checking.identities.base import (
    EXACT,
    OPERATIONS_PER_DRAW,
    SEED,
    VISIBLE,
    Evidence,
    Finding,
    check_divisible,
    check_work,
    expect_count,
    expect_nonzero,
    expect_zero,
    identity,
    random_module,
    run_recorded,
    sample_normal,
    setting,
    sweep_sizes,
)
from lemma.errors import SpecError
from lemma.layers.attention import Attention, AttentionShape
from lemma.layers.penalties import row_statistics
from lemma.layers.positions import sinusoids
from lemma.layers.recording import AttentionRecord
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
    seed: int = SEED,
) -> Evidence:
    """Compare Lemma's window head on random words with the formulas, computed word by word."""
    words = sample_normal(N - 1, d, seed=seed)
    head = random_module(lambda: WindowHead(d, d_k, d_v), seed)
    output, record = run_recorded(head, words[None], 1, N - 1)
    with torch.no_grad():
        query = head.query.weight @ words[-1]
        scores = torch.stack([query @ (head.key.weight @ word) for word in words]) / len(query) ** 0.5
        alpha = scores.exp() / scores.exp().sum()
        terms = [weight * (head.value.weight @ word) for weight, word in zip(alpha, words, strict=True)]
    return Evidence(
        (
            expect_zero("the head − the sum written out, largest entry", output[0, 0] - torch.stack(terms).sum(0)),
            expect_zero("its weights − softmax of the scores", record.weights()[0, 0, 0] - alpha),
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


@identity("c6 orthogonal", title="Self-attention on orthogonal inputs")
def orthogonal_inputs(
    N: int = setting(8, 2, 2000, "number of inputs"),
    D: int = setting(16, 2, 2000, "their width; there are no more than D orthogonal ones"),
    norm: float = setting(1.0, None, 1e6, "the norm r at which the equality is tried", gt=0),
    scaled: bool = setting(False, None, None, "whether scores are divided by √D; the source does not"),
    says: Literal["equality", "limit"] = setting("equality", None, None, "what is claimed"),
    seed: int = SEED,
) -> Evidence:
    """Compare the distance of outputs of self-attention from orthogonal inputs, at growing norms, with its formula."""
    if N > D:
        raise SpecError(f"N = {N}: in width D = {D} there are at most {D} orthogonal inputs.")
    check_work(4 * N**2 * D * (NUM_NORMS + 3), 4 * N * D + 4 * N**2, N=N, D=D)
    scale, directions = D**-0.5 if scaled else 1.0, draw_orthogonal(N, D, seed)
    largest_norm = math.sqrt(MAX_SCORE / scale)
    norms = [largest_norm * (step + 1) / NUM_NORMS for step in range(NUM_NORMS)]

    measured: dict[float, float] = {}
    for r in (*norms, norm):
        deviations = self_attention(directions * r, scale) - directions * r
        measured[r] = float((deviations.norm(dim=1) / r).max())
    predicted = {r: predict_error(N, r**2 * scale) for r in measured}
    limits = {r: math.sqrt(N * (N - 1)) * math.exp(-(r**2) * scale) for r in measured}

    at_last = f"claimed: error 0 in the limit; at the largest norm, r = {norms[-1]:.3g}"
    at_all = f"claimed: error 0 at every norm; largest over {len(norms) + 1} norms"
    claimed = expect_zero(at_all, max(measured.values()))
    if says == "limit":
        claimed = expect_zero(at_last, measured[norms[-1]], 20 * EXACT)
    fails = expect_nonzero(f"the source's equality fails: error at r = {norm:g}", measured[norm])
    if predicted[norm] <= 10 * EXACT:
        label = f"at r = {norm:g} float64 cannot tell the limit from equality: error"
        fails = expect_zero(label, measured[norm], 20 * EXACT)

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


def draw_orthogonal(N: int, D: int, seed: int) -> Float[Tensor, "N D"]:
    """Return N random orthogonal vectors of width D and norm 1, fixed by the seed."""
    return torch.linalg.qr(sample_normal(D, N, seed=seed)).Q.T


def self_attention(inputs: Float[Tensor, "N D"], scale: float) -> Float[Tensor, "N D"]:
    """Compute softmax(XXᵀ·scale)X of the inputs X with PyTorch's fused attention, without trained maps."""
    batch = inputs[None]
    return functional.scaled_dot_product_attention(batch, batch, batch, scale=scale)[0]


def predict_error(N: int, score: float) -> float:
    """Return √(N(N−1)) / (e^s + N − 1), an output's relative distance from its input whose score with itself is s."""
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
    N: int = setting(6, 1, None, "number of inputs"),
    D: int = setting(4, 1, None, "their width"),
    D_k: int = setting(3, 1, 4096, "width of queries and keys"),
    seed: int = SEED,
) -> Evidence:
    """Build the dense map M, compare its scores with those of attention, and count its entries."""
    if (entries := N**4 * D**2) > MAX_ENTRIES:
        raise SpecError(
            f"N = {N}, D = {D}: M would have N⁴D² = {entries:,} entries, {8 * entries:,} bytes. "
            f"At most {MAX_ENTRIES:,} are built; that N⁴D² grows so fast is the point."
        )
    operations = 2 * D_k * D * (D + 2 * N + OPERATIONS_PER_DRAW) + 4 * entries
    numbers = 2 * entries + 2 * D * D_k + D**2
    check_work(operations, numbers, N=N, D=D, D_k=D_k)
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
    """Return the dense layer M that maps products of entries of X to XAXᵀ: M[(i,a), (j,b), n, m] = A[a,b] δ_in δ_jm."""
    D, eye = len(A), torch.eye(N, dtype=A.dtype)
    return torch.einsum("ab,in,jm->iajbnm", A, eye, eye).reshape(N * D, N * D, N, N)


def dense_scores(M: Float[Tensor, "ND ND N N"], inputs: Float[Tensor, "N D"]) -> Float[Tensor, "N N"]:
    """Return the scores XAXᵀ of the inputs X: the dense layer M applied to all products of two of their entries."""
    flat, N = inputs.flatten(), len(inputs)
    return (torch.outer(flat, flat).flatten() @ M.flatten(0, 1).flatten(1)).view(N, N)


@identity(
    "c11 permutation equivariance",
    title="Self-attention is permutation-equivariant",
    claim="Self-attention without positions is permutation-equivariant: f(PX) = P f(X).",
)
def permutation_equivariance(
    N: int = setting(12, 3, 2000, "number of inputs"),
    D: int = setting(32, 1, 2048, "their width"),
    H: int = setting(4, 1, None, "number of heads; each is D/H wide"),
    seed: int = SEED,
) -> Evidence:
    """Compare f(PX) with P f(X) for PyTorch's and Lemma's attention, with and without positions and masks."""
    check_divisible("H", H, "D", D)
    operations = 12 * (8 * N * D**2 + 4 * N**2 * D + 10 * H * N**2) + OPERATIONS_PER_DRAW * 24 * D**2
    numbers = 24 * D**2 + 4 * H * N**2
    check_work(operations, numbers, N=N, D=D, H=H)
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
    seed: int = SEED,
) -> Evidence:
    """Compare the focus loss (mean entropy) of random, uniform and sharp attention with its formula."""
    check_work(100 * L * K * T**2, 8 * L * K * T**2, L=L, K=K, T=T)
    scores = sample_normal(L, K, T, T, seed=seed)
    alpha = scores.softmax(-1)
    expected = float(-(alpha * alpha.log()).sum((1, 2, 3)).sum() / (K * T * L))
    random, uniform, sharp = (
        float(row_statistics(_make_records(layer_scores), distance_max=1.0).entropy)
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
    seed: int = SEED,
    L_max: float = setting(6.0, None, 1e12, "where a row's squared distance is cut off", gt=0),
) -> Evidence:
    """Compare the near loss of attention to the farthest positions, for longer and longer sequences, with its bound."""
    check_work(200 * L * K * T**2, 8 * L * K * T**2, L=L, K=K, T=T)
    first = 2 * math.ceil(math.sqrt(L_max))
    if L_max > (T // 2) ** 2:
        raise SpecError(f"T = {T}: no row reaches the bound L_max = {L_max:g}; give T = {first} or more.")

    def near(scores: Scores, bound: float = L_max) -> float:
        return float(row_statistics(_make_records(scores), distance_max=bound).distance)

    lengths = sweep_sizes((size for size in (first, 16, 32, 64, 128, 256) if size >= first), T)
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


def _make_records(scores: Scores) -> list[AttentionRecord]:
    """Return one record of attention per layer with these scores; its queries and keys are zeros."""
    layers, heads, positions, _ = scores.shape
    empty = torch.zeros(1, heads, positions, 1, dtype=scores.dtype)
    return [AttentionRecord(empty, empty, None, 1.0, scores[layer][None]) for layer in range(layers)]


def _farthest_scores(layers: int, heads: int, positions: int) -> Scores:
    """Return scores with which each position attends only to the position farthest from it."""
    row = torch.arange(positions)
    scores = torch.full((positions, positions), -1e4, dtype=torch.float64)  # so low that its exponential is 0
    scores[row, torch.where(row * 2 >= positions - 1, 0, positions - 1)] = 0.0
    return scores.expand(layers, heads, positions, positions).contiguous()
