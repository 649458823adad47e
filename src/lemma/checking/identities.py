"""The identities of the problems, each run on our own modules next to arithmetic written out; listed, found by name."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from lemma.checking.identity import (
    EXACT,
    KURTOSIS,
    REGISTRY,
    VISIBLE,
    Distribution,
    Evidence,
    Finding,
    Identity,
    IdentityReport,
    default_float64,
    draw,
    expect_count,
    expect_mean,
    expect_nonzero,
    expect_zero,
    identity,
    random_module,
    sample_normal,
    setting,
)
from lemma.counting.count import count
from lemma.counting.polynomial import Polynomial, sum_polynomials, symbol
from lemma.counting.subject import factory_subject
from lemma.counting.writing import write_formula
from lemma.errors import SpecError, describe_unknown
from lemma.layers.attention import Attention, AttentionShape
from lemma.layers.graph import Normalisation, build_adjacency
from lemma.layers.penalties import row_statistics
from lemma.layers.positions import RotaryEmbedding, alibi_slopes, build_positions, rotate, sinusoids
from lemma.layers.recording import AttentionRecord, record_attention
from lemma.models.build import build
from lemma.models.feed_forward import WindowHead
from lemma.models.parser import log_arc_probabilities, log_attention
from lemma.report.curves import Curve, Plot
from lemma.report.result import Block, Heading, Result, Table, Text
from lemma.spec.models import Decoder, Encoder, FeedForward, Lstm
from lemma.spec.positions import Alibi, NoPositions, Rotary, Sinusoidal
from lemma.tasks.language import causal_loss
from lemma.tasks.masked import masked_loss, next_sentence_loss
from lemma.tasks.parsing import attention_targets

MAX_OPERATIONS = 2 * 10**10
"""Floating-point operations of one identity: some seconds of one core."""
MAX_NUMBERS = 2**27
"""Numbers in float64 that one identity may hold at once: a gigabyte."""
OPERATIONS_PER_DRAW = 20
"""What drawing one random number costs."""
MAX_SEED = 2**31


def check_work(sizes: Mapping[str, int], operations: int, numbers: int) -> None:
    """Refuse sizes at which an identity would take more operations or memory than the limits above.

    >>> limit_work({"D": 10**5}, operations=4 * 10**13, numbers=10**8)
    Traceback (most recent call last):
    lemma.errors.SpecError: D = 100,000: that takes 4e+13 operations; at most 2e+10 are made. Give smaller sizes.
    """
    chosen = ", ".join(f"{name} = {size:,}" for name, size in sizes.items())
    if operations > MAX_OPERATIONS:
        work = f"that takes {operations:.0e} operations; at most {MAX_OPERATIONS:.0e} are made"
        raise SpecError(f"{chosen}: {work}. Give smaller sizes.")
    if numbers > MAX_NUMBERS:
        memory = f"that takes {8 * numbers / 1e9:.1f} GB of memory; at most {8 * MAX_NUMBERS / 1e9:.1f} GB are taken"
        raise SpecError(f"{chosen}: {memory}. Give smaller sizes.")


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
    seed: int = setting(1, 0, MAX_SEED, "fixes words and weights"),
) -> Evidence:
    """Run our head on one window, and compare its output with the formulas, word by word."""
    words = sample_normal(N - 1, d, seed=seed)
    head = random_module(lambda: WindowHead(d, d_k, d_v), seed)
    with torch.no_grad(), record_attention() as records:
        output = head(words[None], 1, N - 1)[0, 0]
        query = head.query.weight @ words[-1]
        scores = torch.stack([query @ (head.key.weight @ word) for word in words]) / len(query) ** 0.5
        alpha = scores.exp() / scores.exp().sum()
        terms = [share * (head.value.weight @ word) for share, word in zip(alpha, words, strict=True)]
    return Evidence(
        (
            expect_zero("the head − the sum written out, largest entry", output - torch.stack(terms).sum(0)),
            expect_zero("its weights − softmax of the scores", records[0].weights()[0, 0, 0] - alpha),
            expect_count("outputs for a window: one, of width", output.numel(), d_v),
        ),
        ("word", "score", "α"),
        tuple((str(place + 1), float(scores[place]), float(alpha[place])) for place in range(min(8, N - 1))),
    )


ARCS = {
    "I": ("prefer", "nsubj"),
    "prefer": ("(top)", "root"),
    "the": ("flight", "det"),
    "morning": ("flight", "nmod"),
    "flight": ("prefer", "dobj"),
    "through": ("Denver", "case"),
    "Denver": ("flight", "nmod"),
}
"""The words of B1's sentence, each with its head and relation."""


@identity(
    "b1 relations dependency",
    title="A head as a dependency relation",
    claim="In 'I prefer the morning flight through Denver' the head dobj attending from prefer is 1 on flight, else 0.",
)
def relation_head(
    sharpness: float = setting(
        60.0, maximum=1000, exclusive_minimum=0, description="the score of what is right; all others are 0"
    ),
) -> Evidence:
    """Let attention heads with the right scores attend, and read their weights and the tree off them."""
    words, relations = list(ARCS), sorted({relation for _, relation in ARCS.values()})
    places = ["(top)", *words]
    targets = torch.tensor([[[places.index(head), relations.index(relation)] for head, relation in ARCS.values()]])
    scores = torch.zeros(1, len(relations), len(places), len(words), dtype=torch.float64)
    for dependent, (head, relation) in enumerate(targets[0].tolist()):
        scores[0, relation, head, dependent] = sharpness
    there = torch.ones(1, len(words), dtype=torch.bool)
    null = torch.full((len(relations),), sharpness / 2, dtype=torch.float64)
    alpha = log_attention(scores, null, there).exp()[0]
    dobj, flight = alpha[relations.index("dobj"), places.index("prefer")], places.index("flight")
    best = log_arc_probabilities(scores, there)[0].flatten(0, 1).argmax(0)
    right = targets[0, :, 1] * len(places) + targets[0, :, 0]
    wanted = attention_targets(targets, len(relations))[0].double()
    return Evidence(
        (
            Finding("head dobj from prefer, on flight", float(dobj[flight]), 1.0, 1e-9),
            expect_zero("the same head, on everything else together", float(dobj.sum() - dobj[flight]), 1e-9),
            expect_zero("all heads from all words − the weights that the tree asks for", alpha - wanted, 1e-9),
            expect_count("words whose head and relation the scores give back", int((best == right).sum()), 7),
        ),
        ("word", "head", "relation"),
        tuple((word, *ARCS[word]) for word in words),
        ("From a word without such a dependent, a head attends to a null place; several dependents share evenly.",),
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
    seed: int = setting(1, 0, MAX_SEED, "fixes the scores"),
) -> Evidence:
    """Focus on random, even and sharp attention, compared with the formula written out."""
    check_work({"L": L, "K": K, "T": T}, operations=100 * L * K * T**2, numbers=8 * L * K * T**2)
    scores = sample_normal(L, K, T, T, seed=seed)
    alpha = scores.softmax(-1)
    written = float(-(alpha * alpha.log()).sum((1, 2, 3)).sum() / (K * T * L))
    random, even, sharp = (
        float(row_statistics(_records(one), distance_max=1.0).entropy)
        for one in (scores, torch.zeros_like(scores), _farthest_scores(L, K, T))
    )
    return Evidence(
        (
            Finding("random attention, against the sum written out", random, written, 1e-10),
            Finding("even attention: log T", even, math.log(T), 1e-10),
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
    seed: int = setting(1, 0, MAX_SEED, "fixes the scores"),
    L_max: float = setting(
        6.0, maximum=1e12, exclusive_minimum=0, description="where a row's squared distance is cut off"
    ),
) -> Evidence:
    """Near where every row looks as far away as it can, at more and more places."""
    check_work({"L": L, "K": K, "T": T}, operations=200 * L * K * T**2, numbers=8 * L * K * T**2)
    first = 2 * math.ceil(math.sqrt(L_max))
    if L_max > (T // 2) ** 2:
        raise SpecError(f"T = {T}: no row reaches the bound L_max = {L_max:g}; give T = {first} or more.")

    def near(scores: Scores, bound: float = L_max) -> float:
        return float(row_statistics(_records(scores), distance_max=bound).distance)

    lengths = sorted({first, *(size for size in (16, 32, 64, 128, 256) if first < size < T), T})
    rows = [
        (places, near(_farthest_scores(L, K, places)), near(_farthest_scores(L, K, places), 1e12)) for places in lengths
    ]
    places = torch.arange(T, dtype=torch.float64)
    # scores that fall with the distance, so that no row comes near the bound
    scores = sample_normal(L, K, T, T, seed=seed) - 4 * (places[:, None] - places).abs()
    last, before = scores.clone(), scores.clone()
    last[-1], before[0] = 9 * sample_normal(K, T, T, seed=seed + 1), _farthest_scores(L, K, T)[0]
    return Evidence(
        (
            *(Finding(f"largest at T = {places}: L_max", got, L_max, 1e-10) for places, got, _ in rows),
            expect_zero("another last layer changes it by", abs(near(last) - near(scores))),
            expect_nonzero("another first layer changes it by", abs(near(before) - near(scores))),
        ),
        ("T", "largest, cut at L_max", "largest, not cut"),
        tuple(rows),
        ("Not cut, the largest value grows with T²: one far look would outweigh all others.",),
    )


def _records(scores: Scores) -> list[AttentionRecord]:
    """A record of attention for each layer, whose scores are these."""
    layers, heads, places, _ = scores.shape
    nothing = torch.zeros(1, heads, places, 1, dtype=scores.dtype)
    return [AttentionRecord(nothing, nothing, None, 1.0, scores[layer][None]) for layer in range(layers)]


def _farthest_scores(layers: int, heads: int, positions: int) -> Scores:
    """Scores by which every row attends only to the place furthest from it."""
    row = torch.arange(positions)
    scores = torch.full((positions, positions), -1e4, dtype=torch.float64)  # so low that its exponential is 0
    scores[row, torch.where(row * 2 >= positions - 1, 0, positions - 1)] = 0.0
    return scores.expand(layers, heads, positions, positions).contiguous()


@identity(
    "c7 products inner-products",
    title="The mean square of an inner product is D",
    claim="E[(aᵀb)²] = D, where a, b ∈ R^D are independent with zero mean and unit variance.",
)
def product_variance(
    D: int = setting(64, 1, 100_000, "number of components"),
    samples: int = setting(20_000, 2, 10_000_000, "pairs drawn"),
    draws: Distribution = "normal",  # how components are drawn; only their two first moments matter
    seed: int = setting(1, 0, MAX_SEED, "fixes the draws"),
) -> Evidence:
    """Compare the sampled mean of (aᵀb)² with D, with its standard error in closed form."""
    rows, widths = [], sorted({*(size for size in (1, 4, 16, 64, 256, 1024) if size < D), D})
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
    sizes = [min(rows, samples - begin) for begin in range(0, samples, rows)]
    return torch.cat([(draw(draws, (n, D), generator) * draw(draws, (n, D), generator)).sum(1) for n in sizes])


def fourth_moment(D: int, draws: Distribution) -> float:
    """E[(aᵀb)⁴] = D k² + 3D(D−1), with k = E[x⁴] of one component.

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
    seed: int = setting(1, 0, MAX_SEED, "fixes the draws"),
) -> Evidence:
    """Sample logits βhᵀe, and compare their mean and variance with 0 and 1; attention uses the same factor."""
    widths = sorted({*(size for size in (4, 16, 64, 256, 1024) if size < I), I})
    check_draws({"I": I, "samples": samples}, samples, I + sum(widths))
    logits = sample_inner_products(I, samples, draws, seed) * I**-0.5
    error = ((fourth_moment(I, draws) / I**2 - 1) / samples) ** 0.5
    queries, keys, values = sample_normal(3, 5, min(I, 1024), seed=seed)
    mine = (queries @ keys.T * queries.shape[-1] ** -0.5).softmax(-1) @ values
    fused = functional.scaled_dot_product_attention(queries[None], keys[None], values[None])[0]
    rows = []
    for size in widths:
        products = sample_inner_products(size, samples, draws, seed + 1)
        variances = [float(products.square().mean()) / scale for scale in (1, size)]
        whole = products[: samples // CANDIDATES * CANDIDATES].view(-1, CANDIDATES)
        softmaxes = whole if len(whole) else products[None]
        sharpness = [float(torch.softmax(softmaxes * beta, -1).amax(-1).mean()) for beta in (1.0, size**-0.5)]
        rows.append((size, *variances, *sharpness))
    return Evidence(
        (
            expect_mean(f"mean of {samples:,} logits at I = {I}", float(logits.mean()), 0.0, samples**-0.5),
            expect_mean(f"variance of {samples:,} logits at I = {I}", float(logits.square().mean()), 1.0, error),
            expect_zero("softmax(βQKᵀ)V − PyTorch's fused attention, largest entry", mine - fused),
        ),
        ("I", "variance, β = 1", "variance, β = 1/√I", "largest weight, β = 1", "largest weight, β = 1/√I"),
        tuple(rows),
        (
            "Closed form: E[hᵀe] = 0 and Var[hᵀe] = I, so that Var[βhᵀe] = β²I.",
            f"Largest weight: the mean over softmaxes of {CANDIDATES} such logits. Without β it goes to 1 as I grows.",
        ),
    )


@identity(
    "b6 merged query-key",
    title="One merged query–key matrix a head",
    claim="W^QK[j1,j2] = Σ_i W^Q[i,j1] W^K[i,j2] (per head), times 1/√I, gives the same attention without a key "
    "matrix.",
)
def merged_matrices(
    N: int = setting(10, 2, 2000, "number of inputs"),
    J: int = setting(24, 1, 1024, "their width"),
    I: int = setting(6, 1, 1024, "width of a head's queries and keys"),  # noqa: E741 - the source's letter
    H: int = setting(3, 1, 64, "number of heads"),
    seed: int = setting(1, 0, MAX_SEED, "fixes inputs and weights"),
) -> Evidence:
    """Compare our attention with separate matrices, with merged ones, and with the identity in their place.

    A plain inner product of the inputs cannot replace the merged matrix: it is the same for every head.
    """
    maps, scores = H * J * (5 * I + 4 * J), H * N**2
    check_work(
        {"N": N, "J": J, "I": I, "H": H},
        operations=2 * N * maps + 6 * scores * (2 * I + J) + 2 * H * I * J**2 + OPERATIONS_PER_DRAW * maps,
        numbers=maps + 5 * scores,
    )
    shape = AttentionShape(width=J, heads=H, attention_width=H * I, causal=False, bias=False)
    apart = random_module(lambda: Attention(shape), seed)
    with default_float64():
        joined, plain = (Attention(replace(shape, key_query="merged")) for _ in range(2))
    query, key, value = apart.query_key_value.weight.detach().split(H * I)
    matrices = [merged_weight(*pair) for pair in zip(query.split(I), key.split(I), strict=True)]
    with torch.no_grad():
        joined.get_parameter("query_value.weight").copy_(torch.cat([*matrices, value]))
        plain.get_parameter("query_value.weight").copy_(torch.cat([*[torch.eye(J, dtype=value.dtype)] * H, value]))
        for part in (joined, plain):
            part.output.weight.copy_(apart.output.weight)
    inputs, outputs, weights = sample_normal(1, N, J, seed=seed), [], []
    for part in (apart, joined, plain):
        with torch.no_grad(), record_attention(part) as records:
            outputs.append(part(inputs)[0][0])
        weights.append(records[0].weights()[0])
    spreads = [float((one.amax(0) - one.amin(0)).max()) for one in weights]
    size = outputs[0].abs().max().clamp(min=1.0)
    findings = [
        expect_zero("outputs, merged − separate, largest entry", (outputs[1] - outputs[0]) / size),
        expect_zero("weights, merged − separate, largest entry", weights[1] - weights[0]),
    ]
    if H > 1:
        findings += [
            expect_nonzero("merged, heads differ: furthest two", spreads[1], VISIBLE),
            expect_zero("a plain inner product in its place, heads are one: furthest two", spreads[2]),
        ]
    return Evidence(
        tuple(findings),
        ("form", "query–key parameters a head", "kept for each token", "furthest heads"),
        (
            ("separate", 2 * I * J, f"{H * I} (keys)", spreads[0]),
            ("merged", J**2, f"{J} (the input itself)", spreads[1]),
            ("plain inner product", 0, f"{J} (the input itself)", spreads[2]),
        ),
        ("Furthest heads: the largest difference between two heads' weights for the same pair of tokens.",),
    )


def merged_weight(query: Float[Tensor, "I J"], key: Float[Tensor, "I J"]) -> Float[Tensor, "J J"]:
    """What takes an input to the vector that meets the other inputs: (W_Qᵀ W_K)ᵀ, for maps written W x."""
    return (query.T @ key).T


@identity(
    "b7 parameters merged-parameters",
    title="Parameters of a merged query–key matrix",
    claim="A merged query–key matrix has J² parameters a head, separate ones 2IJ; equal at I = J/2.",
)
def merged_parameters(
    J: int = setting(64, 2, 4096, "width of the inputs"),
    I: int = setting(16, 1, 4096, "width of a head's queries and keys"),  # noqa: E741 - the source's letter
) -> Evidence:
    """Read both formulas off our attention, and find where they meet."""
    apart, joined = (query_key_parameters(factory, J, I) for factory in (separate_head, merged_head))
    head, width, order, at = symbol("I"), symbol("J"), ("I", "J"), {"I": I, "J": J}
    left = len((apart - 2 * head * width).terms) + len((joined - width**2).terms)
    # a fraction where J is odd: no head is that wide, but the formulas meet there all the same
    meeting = float((joined - apart).at({"I": Fraction(J, 2), "J": J}))
    between = f" (J is odd: between I = {J // 2} and I = {J // 2 + 1})" if J % 2 else ""
    widths = sorted({1, max(1, J // 8), max(1, J // 4), J // 2, (J + 1) // 2, I, 3 * J // 4, J})
    x = tuple(float(one) for one in sorted({max(1, J * step // 16) for step in range(1, 17)}))
    curves = (
        Curve("separate, 2IJ", x, tuple(2 * one * J for one in x)),
        Curve("merged, J²", x, tuple(float(J**2) for _ in x), dashed=True),
    )
    caption = f"Query–key parameters of one head at J = {J}; the two meet at I = J/2 = {J / 2:g}."
    return Evidence(
        (
            expect_count(
                f"separate, {write_formula(apart, order, 'unicode')} at I = {I}, J = {J}", int(apart.at(at)), 2 * I * J
            ),
            expect_count(f"merged, {write_formula(joined, order, 'unicode')} at J = {J}", int(joined.at(at)), J**2),
            expect_count("formulas of the module − 2IJ and J²: terms left", left, 0, "exact"),
            Finding(f"at I = J/2 = {J / 2:g}{between}, merged − separate", meeting, 0.0, 0.0, "exact"),
        ),
        ("I", "separate, 2IJ", "merged, J²", "merged / separate"),
        tuple((one, 2 * one * J, J**2, J / (2 * one)) for one in widths),
        ("Usual heads are narrow (I = J/h), so that merging costs h/2 times as many; at I > J/2 it saves some.",),
        plot=Plot("width I of a head", "parameters", curves, rule=J / 2, caption=caption),
    )


def separate_head(J: int, I: int) -> Attention:  # noqa: E741
    """One head with its query and its key matrix."""
    return Attention(AttentionShape(J, 1, I, value_output="merged", bias=False))


def merged_head(J: int, I: int) -> Attention:  # noqa: E741
    """One head with one query–key matrix."""
    return Attention(AttentionShape(J, 1, I, key_query="merged", value_output="merged", bias=False))


def query_key_parameters(factory: object, J: int, I: int) -> Polynomial:  # noqa: E741
    """The parameters of queries and keys as a formula, read off the running module by the names of its maps."""
    parts = count(factory_subject(factory, {"J": J, "I": I}), ["parameters"]).quantities["parameters"].groups
    return sum_polynomials(part.total for part in parts if "query" in part.path)


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
    norm: float = setting(
        1.0, maximum=1e6, exclusive_minimum=0, description="the norm r at which the equality is tried"
    ),
    scaled: bool = setting(False, description="whether scores are divided by √D; the source does not"),
    says: Literal["equality", "limit"] = setting("equality", description="what is claimed"),
    seed: int = setting(1, 0, MAX_SEED, "fixes the directions"),
) -> Evidence:
    """Measure the error against the norm, next to the exact formula and its limit."""
    if N > D:
        raise SpecError(f"N = {N}: in width D = {D} there are at most {D} orthogonal inputs.")
    check_work({"N": N, "D": D}, operations=4 * N**2 * D * (NUM_NORMS + 3), numbers=4 * N * D + 4 * N**2)
    scale, directions = D**-0.5 if scaled else 1.0, orthogonal(N, D, seed)
    top = math.sqrt(MAX_SCORE / scale)
    norms = [top * (step + 1) / NUM_NORMS for step in range(NUM_NORMS)]
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

    inputs, other = directions * norm, math.exp(-(norm**2) * scale)
    exact = (inputs + other * (inputs.sum(0, keepdim=True) - inputs)) / (1 + (N - 1) * other)
    formula = (self_attention(inputs, scale) - exact) / norm
    off = max(abs(measured[r] - predicted[r]) for r in norms)
    slip = torch.eye(N, dtype=torch.float64) @ inputs - inputs
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
            expect_zero(f"measured error − formula, largest over {len(norms)} norms", off),
            expect_zero("with 0 in place of exp(0) the inputs would come back: largest difference", slip),
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
    """softmax(XXᵀ·scale)X by the kernel that every model here runs."""
    one = inputs[None]
    return functional.scaled_dot_product_attention(one, one, one, scale=scale)[0]


def relative_error(N: int, score: float) -> float:
    """√(N(N−1)) / (e^s + N − 1), the distance of each output from its input as a share of the norm."""
    return math.sqrt(N * (N - 1)) * math.exp(-score) / (1 + (N - 1) * math.exp(-score))


@identity(
    "c8 sum-over-heads heads",
    title="Multi-head attention as a sum over heads",
    claim="Y = Σ_h softmax(Q_h K_hᵀ/√D_k) X W^(h) with W^(h) = W_h^(v) W_h^(o).",
)
def sum_over_heads(
    N: int = setting(10, 1, 2000, "number of inputs"),
    D: int = setting(32, 1, 2048, "their width"),
    H: int = setting(4, 1, description="number of heads; each is D/H wide"),
    bias: bool = setting(False, description="whether the four maps have biases"),
    seed: int = setting(1, 0, MAX_SEED, "fixes inputs and weights"),
) -> Evidence:
    """Compare PyTorch's multi-head attention, and ours with the same weights, with the sum over heads."""
    _check_divisible("H", H, "D", D)
    check_work(
        {"N": N, "D": D, "H": H},
        operations=H * (6 * D**2 * (D + N) + 10 * N**2 * D) + 60 * N * D**2 + OPERATIONS_PER_DRAW * 4 * D**2,
        numbers=4 * H * D**2 + 2 * H * N * D + 2 * H * N**2 + 12 * D**2,
    )
    inputs = sample_normal(N, D, seed=seed)
    layer = random_module(lambda: nn.MultiheadAttention(D, H, bias=bias, batch_first=True), seed)
    with torch.no_grad():
        theirs = layer(*[inputs[None]] * 3, need_weights=False)[0][0]
        size = max(1.0, float(theirs.abs().max()))
        matrices = [head_matrix(layer, head) for head in range(H)]
        parts = torch.stack([head_output(layer, inputs, head) for head in range(H)])
        summed = parts.sum(0)
        if bias:  # weights sum to 1, so every row gets what the biases of values and output add
            summed = summed + layer.in_proj_bias.chunk(3)[2] @ layer.out_proj.weight.T + layer.out_proj.bias
        said = "torch.nn.MultiheadAttention − the sum over heads, largest entry"
        findings = [expect_zero(said, (theirs - summed) / size)]
        for form in () if bias else ("separate", "merged"):
            with default_float64():
                ours = Attention(AttentionShape(D, H, causal=False, bias=False, value_output=form))
            if form == "separate":
                ours.query_key_value.weight.copy_(layer.in_proj_weight)
                ours.output.weight.copy_(layer.out_proj.weight)
            else:
                ours.get_parameter("query_key.weight").copy_(layer.in_proj_weight[: 2 * D])
                ours.output.weight.copy_(torch.cat(matrices).T)
            says = f"lemma.layers.attention.Attention, value–output {form} − the sum, largest entry"
            findings.append(expect_zero(says, (ours(inputs[None])[0][0] - summed) / size))
        ranks = [int(torch.linalg.matrix_rank(matrix)) for matrix in matrices]
        shares = [float(part.square().sum() / parts.sum(0).square().sum()) for part in parts]
    return Evidence(
        (*findings, expect_count("largest rank of a W^(h)", max(ranks), D // H)),
        ("head", "‖W^(h)‖", "share of ‖Y‖² if alone"),
        tuple((head, float(matrices[head].norm()), shares[head]) for head in range(H)),
        (
            f"W^(h) is {D} × {D}, yet of rank D/H = {D // H} at most: merged it has D² numbers a head, apart 2D²/H.",
            *(["With biases every row also gets b^(v)W^(o) + b^(o), since weights sum to 1."] if bias else []),
        ),
    )


def head_output(layer: nn.MultiheadAttention, inputs: Float[Tensor, "N D"], head: int) -> Float[Tensor, "N D"]:
    """One term of the sum: softmax(Q_h K_hᵀ/√D_k) X W^(h)."""
    rows = slice(head * layer.head_dim, (head + 1) * layer.head_dim)
    query, key, _ = layer.in_proj_weight.chunk(3)
    shifts = layer.in_proj_bias.chunk(3) if layer.in_proj_bias is not None else (query.new_zeros(len(query)),) * 3
    queries, keys = inputs @ query[rows].T + shifts[0][rows], inputs @ key[rows].T + shifts[1][rows]
    return (queries @ keys.T * layer.head_dim**-0.5).softmax(-1) @ inputs @ head_matrix(layer, head)


def head_matrix(layer: nn.MultiheadAttention, head: int) -> Float[Tensor, "D D"]:
    """W^(h) = W_h^(v) W_h^(o); PyTorch keeps both transposed."""
    rows = slice(head * layer.head_dim, (head + 1) * layer.head_dim)
    value = layer.in_proj_weight.chunk(3)[2][rows]
    return value.T @ layer.out_proj.weight[:, rows].T


def _check_divisible(heads: str, number: int, name: str, width: int) -> None:
    if width % number:
        raise SpecError(f"{heads} = {number} does not divide {name} = {width}.")


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
    seed: int = setting(1, 0, MAX_SEED, "fixes inputs and weights"),
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
    mine, scores = dense_scores(M, inputs), queries @ keys.T * D_k**-0.5
    mixed = mine.softmax(-1) @ inputs
    fused = functional.scaled_dot_product_attention(queries[None], keys[None], inputs[None])[0]
    sizes = ((N, D), (2 * N, D), (N, 2 * D), (64, 64), (1024, 512), (2048, 1024))
    return Evidence(
        (
            expect_zero("M·(x ⊗ x) − QKᵀ/√D_k, largest entry", (mine - scores) / scores.abs().max().clamp(min=1.0)),
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
    """M[(i,a), (j,b), n, m] = A[a,b] δ_in δ_jm."""
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
    seed: int = setting(1, 0, MAX_SEED, "fixes inputs, weights and the permutation"),
) -> Evidence:
    """Permute the inputs of PyTorch's and of our attention: their outputs are permuted alike, or are not."""
    _check_divisible("H", H, "D", D)
    check_work(
        {"N": N, "D": D, "H": H},
        operations=12 * (8 * N * D**2 + 4 * N**2 * D + 10 * H * N**2) + OPERATIONS_PER_DRAW * 24 * D**2,
        numbers=24 * D**2 + 4 * H * N**2,
    )
    shape = AttentionShape(D, H, causal=False)
    plain = random_module(lambda: Attention(shape), seed)
    theirs = random_module(lambda: nn.MultiheadAttention(D, H, batch_first=True), seed)
    table = sinusoids(N, D, 10_000.0).double()
    cases: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {  # what is tried, and whether it is equivariant
        "no positions, no mask": (lambda x: plain(x[None])[0][0], True),
        "torch.nn.MultiheadAttention": (lambda x: theirs(*[x[None]] * 3, need_weights=False)[0][0], True),
        "sinusoidal positions added": (lambda x: plain(x[None] + table)[0][0], False),
    }
    others = {"causal mask": replace(shape, causal=True), "ALiBi": replace(shape, positions=Alibi())}
    if shape.head_width % 2 == 0:
        others["rotary positions"] = replace(shape, positions=Rotary())
    for name, other in others.items():
        part = random_module(lambda other=other: Attention(other), seed)
        cases[name] = (lambda x, part=part: part(x[None])[0][0], False)

    inputs = sample_normal(N, D, seed=seed)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(seed))
    if bool((order.diff().abs() == 1).all()):  # the identity or the reversal, which keep all distances
        order = order.roll(1)
    findings, rows = [], []
    for name, (attend, equivariant) in cases.items():
        with torch.no_grad():
            size = float((attend(inputs[order]) - attend(inputs)[order]).abs().max())
        says = f"{name}: f(PX) − P f(X)"
        findings.append(expect_zero(says, size) if equivariant else expect_nonzero(says, size, VISIBLE))
        rows.append((name, size))
    return Evidence(
        tuple(findings),
        ("case", "largest entry of f(PX) − P f(X)"),
        tuple(rows),
        (f"P: {' '.join(map(str, order.tolist()[:16]))}{' …' if N > 16 else ''}",),
    )


@identity(
    "d3 single-multi heads-cost",
    title="Single against multi-head attention",
    claim="Single and multi-head attention both have 3d² parameters and take O(n²d + nd²) operations; multi-head pays "
    "h softmaxes a query.",
)
def head_costs(
    d: int = setting(64, 2, 4096, "width"),
    h: int = setting(8, 2, 64, "heads of the one that has several"),
    n: int = setting(32, 2, 4096, "tokens"),
) -> Evidence:
    """Read parameters and operations of both, without an output map, off our attention; count the softmaxes of each."""
    _check_divisible("h", h, "d", d)
    check_work(
        {"d": d, "h": h, "n": n},
        operations=2 * (6 * n * d**2 + 8 * n**2 * d + 10 * h * n**2) + OPERATIONS_PER_DRAW * 6 * d**2,
        numbers=6 * d**2 + 2 * h * n**2,
    )
    accounts = {
        "single": count(factory_subject(single_head, {"d": d, "n": n}), ["parameters", "flops"]),
        "multi": count(factory_subject(multi_head, {"d": d, "h": h, "n": n}), ["parameters", "flops"]),
    }
    width, tokens = symbol("d"), symbol("n")
    wanted = {
        "parameters": ("parameters − 3d²", 3 * width**2),
        "flops": ("operations − 2(3nd² + 2n²d)", 2 * (3 * tokens * width**2 + 2 * tokens**2 * width)),
    }
    findings = []
    for quantity, (says, formula) in wanted.items():
        for name, one in accounts.items():
            left = one.quantities[quantity].polynomial - formula
            findings.append(expect_count(f"{name}: {says}: terms left", len(left.terms), 0, "a formula"))
    softmaxes = {}
    for name, heads in (("single", 1), ("multi", h)):
        with torch.no_grad(), record_attention() as records:
            multi_head(d, heads)(_tokens(d, n))
        softmaxes[name] = sum(record.weights().shape[:-1].numel() for record in records)
    ratio = softmaxes["multi"] / softmaxes["single"]
    return Evidence(
        (*findings, Finding("softmaxes: multi / single", ratio, h, 0, "a count")),
        ("attention", "parameters", "operations", "softmaxes"),
        tuple(
            (name, *(int(one.quantities[kind].polynomial.at(one.symbols)) for kind in one.quantities), softmaxes[name])
            for name, one in accounts.items()
        ),
        ("Operations: those of matrix products, a multiply–add counted as two. Time: lemma study heads.",),
    )


def single_head(d: int) -> Attention:
    """One head of width d."""
    return multi_head(d, 1)


def multi_head(d: int, h: int) -> Attention:
    """Heads of width d/h, side by side."""
    return Attention(AttentionShape(d, h, value_output="none", bias=False, causal=False))


def _tokens(d: int, n: int = 32) -> Tensor:
    return torch.zeros(1, n, d)


single_head.inputs = _tokens  # pyright: ignore[reportFunctionMemberAccess]
multi_head.inputs = _tokens  # pyright: ignore[reportFunctionMemberAccess]


ANGLE_TOLERANCE = 1e-11  # what rounding leaves of angles of some thousand


@identity(
    "c9 positions",
    title="Sinusoidal, rotary and ALiBi in width 4",
    claim="In width 4 at position p, sinusoidal adds (sin pθ1, cos pθ1, sin pθ2, cos pθ2); rotary turns the pairs "
    "(1,2) and (3,4) by pθ1 and pθ2; ALiBi adds −m·distance with a fixed slope m a head, a geometric sequence.",
)
def position_table(
    P: int = setting(4, 2, 500, "positions 1 to P"),
    base: float = setting(10_000.0, maximum=1e12, exclusive_minimum=1, description="θ1 = 1 and θ2 = 1/√base"),
    h: int = setting(4, 1, 64, "heads, for the slopes of ALiBi"),
    seed: int = setting(1, 0, MAX_SEED, "fixes the vectors"),
) -> Evidence:
    """Put vectors of width 4 at positions 1 to P, and compare what each part does with the formulas written out."""
    angles, vectors = (1.0, base**-0.5), sample_normal(P, 4, seed=seed)
    attention = random_module(lambda: Attention(AttentionShape(4 * h, h, causal=False, positions=Alibi())), seed)
    with default_float64():
        added = build_positions(Sinusoidal(base=base, first=1), P, 4)(vectors[None])[0] - vectors
        turned = RotaryEmbedding(P, 4, base, first=1)(vectors)
        slopes = alibi_slopes(h)
        with torch.no_grad(), record_attention() as records:
            attention(sample_normal(1, P, 4 * h, seed=seed))
    record, places = records[0], torch.arange(P, dtype=torch.float64)
    penalties = (record.scores() - record.queries @ record.keys.mT * record.scale)[0]
    distances = slopes[:, None, None] * (places[:, None] - places).abs()
    ratios = slopes[1:] / slopes[:-1] if h > 1 else torch.ones(1).double()
    sines, rotated = [], []
    for place, vector in enumerate(vectors.tolist(), 1):
        sines.append([function(place * angle) for angle in angles for function in (math.sin, math.cos)])
        rotated.append([])
        for pair, angle in enumerate(angles):
            one, other = vector[2 * pair : 2 * pair + 2]
            sine, cosine = math.sin(place * angle), math.cos(place * angle)
            rotated[-1] += [one * cosine - other * sine, one * sine + other * cosine]
    written = ", ".join(f"{slope:.6g}" for slope in slopes.tolist()[:8])
    return Evidence(
        (
            expect_zero(
                "sinusoidal: what is added − the formula",
                added - torch.tensor(sines, dtype=torch.float64),
                ANGLE_TOLERANCE,
            ),
            expect_zero(
                "rotary: what comes out − the formula",
                turned - torch.tensor(rotated, dtype=torch.float64),
                ANGLE_TOLERANCE,
            ),
            expect_zero("ALiBi: what is added to scores + m·distance", penalties + distances, 1e-9),
            expect_zero("ALiBi: slopes' ratios, largest − smallest", float(ratios.max() - ratios.min())),
        ),
        ("p", "sin pθ1", "cos pθ1", "sin pθ2", "cos pθ2"),
        tuple((place, *row) for place, row in enumerate(added.tolist()[:8], 1)),
        (f"θ1 = 1, θ2 = {angles[1]:.6g}. ALiBi's slopes: {written}.",),
    )


# Turning q by pθ and k by rθ, the product of a pair is that of q and k with k turned by (r − p)θ.

ANGLE_ROUNDING = 1e-14  # what rounding leaves of an angle of 1, and more of a larger one


@identity(
    "rotary relative rotary-score",
    title="Rotary scores depend on the distance only",
    claim="Rotary scores depend only on the distance of two tokens.",
    row="c9",
)
def rotary_distance(
    N: int = setting(24, 3, 2000, "number of places"),
    D: int = setting(16, 2, 1024, "width of the head; even, since pairs are turned"),
    shift: int = setting(1000, 1, 100_000, "by how much both places are moved"),
    base: float = setting(
        10_000.0, maximum=1e12, exclusive_minimum=1, description="the longest wavelength is 2π times this"
    ),
    seed: int = setting(1, 0, MAX_SEED, "fixes the vector and the weights"),
) -> Evidence:
    """Put one vector at every place, and see whether scores are the same along each diagonal."""
    if D % 2:
        raise SpecError(f"D = {D} must be even: rotary turns pairs. Nearest: {D - 1}, {D + 1}.")
    check_work(
        {"N": N, "D": D},
        operations=16 * N**2 * D + 24 * N * D**2 + OPERATIONS_PER_DRAW * 12 * D**2,
        numbers=12 * D**2 + 12 * N**2,
    )
    scores: dict[str, Float[Tensor, "N N"]] = {}
    for kind, chosen in {"rotary": Rotary(base=base), "alibi": Alibi(), "sinusoidal": NoPositions()}.items():
        shape = AttentionShape(D, causal=False, positions=chosen, bias=False)
        part = random_module(lambda shape=shape: Attention(shape), seed)
        stream = sample_normal(1, 1, D, seed=seed).expand(1, N, D)
        if kind == "sinusoidal":
            stream = stream + sinusoids(N, D, base).double()
        with torch.no_grad(), default_float64(), record_attention(part) as records:
            part(stream)
        scores[kind] = records[0].scores()[0, 0]
    spread = {
        kind: max(float(line.max() - line.min()) for line in (one.diagonal(offset) for offset in range(1 - N, N)))
        for kind, one in scores.items()
    }
    queries, keys = sample_normal(2, N, D, seed=seed)
    with default_float64():
        tables = [sinusoids(N, D, base, first).unflatten(1, (-1, 2)) for first in (0, shift)]
    here, there = (rotate(queries, table) @ rotate(keys, table).T for table in tables)
    grain = ANGLE_ROUNDING * D**0.5
    says = "one vector at every place, scores at equal distance: furthest two"
    distance = min(3, N // 3)
    curves = []
    for kind in ("rotary", "sinusoidal"):
        line = scores[kind].diagonal(-distance).tolist()
        curves.append(Curve(kind, tuple(map(float, range(len(line)))), tuple(line), dots=len(line) <= 40))
    caption = f"The score of one vector with itself, {distance} places apart, wherever the pair stands in the text."
    return Evidence(
        (
            expect_zero(
                f"scores of queries and keys, {shift} places further − here", here - there, grain * (shift + N)
            ),
            expect_zero(f"rotary attention, {says}", spread["rotary"], grain * N),
            expect_zero(f"ALiBi, {says}", spread["alibi"]),
            expect_nonzero(f"sinusoidal positions, {says}", spread["sinusoidal"], VISIBLE),
        ),
        ("distance", *(f"{kind}, {end} pair" for kind in ("rotary", "sinusoidal") for end in ("first", "last"))),
        tuple(
            (far, *(float(scores[kind].diagonal(-far)[end]) for kind in ("rotary", "sinusoidal") for end in (0, -1)))
            for far in range(min(5, N - 1))
        ),
        ("First and last pair: the two pairs of places at that distance that lie furthest apart in the text.",),
        plot=Plot("place of the earlier token", f"score at distance {distance}", tuple(curves), caption=caption),
    )


NUM_MODELS, NUM_ROUNDS, MAX_STATES = 20, 10, 4096


@identity(
    "b8 loops greedy",
    title="Greedy decoding of an n-gram model loops",
    claim="A neural n-gram model decoded at temperature 0 repeats its last N−1 tokens, and from there loops for ever.",
)
def greedy_loops(
    V: int = setting(12, 2, 64, "words of the vocabulary"),
    N: int = setting(3, 2, 6, "words of an n-gram; 3 is the trigram model"),
    seed: int = setting(1, 0, MAX_SEED, "fixes the weights of all models"),
) -> Evidence:
    """Decode twenty models with random weights greedily, and watch for the state that comes back.

    Each token follows from the N−1 before it. There are V^(N−1) such states, so that within that many steps one comes
    back; all that followed it follows again.
    """
    if (bound := V ** (N - 1)) > MAX_STATES:
        raise SpecError(f"V = {V}, N = {N}: V^(N−1) = {bound:,} states; at most {MAX_STATES:,} are tried.")

    def following(model: nn.Module, state: Sequence[int]) -> int:
        with torch.no_grad():
            return int(model(torch.tensor([state]))[0][0, -1].argmax())

    spec = FeedForward(vocabulary=V, width=6, hidden=12, context=N)
    broken, loops = 0, []
    for number in range(NUM_MODELS):
        model = random_module(lambda: build(spec), seed + 1000 * number)
        for parameter in model.parameters():
            parameter.data.mul_(parameter.shape[-1] ** 0.5)  # so large that the text wanders before it loops
        tokens, seen = [0] * (N - 1), {}
        while (state := tuple(tokens[1 - N :])) not in seen:
            seen[state] = len(tokens)
            tokens.append(following(model, state))
        period = len(tokens) - seen[state]
        loops.append((seen[state] - N + 1, period))
        for _ in range(min(NUM_ROUNDS * period, 200)):
            tokens.append(following(model, tokens[1 - N :]))
            broken += tokens[-1] != tokens[-1 - period]
    within = sum(onset + period <= bound for onset, period in loops)
    return Evidence(
        (
            expect_count(
                f"of {NUM_MODELS} models, those that loop within V^(N−1) = {bound:,} steps", within, NUM_MODELS
            ),
            expect_count(f"tokens that break a loop in {NUM_ROUNDS} more rounds of each", broken, 0),
        ),
        ("model", "onset", "period"),
        tuple((str(number), *loop) for number, loop in enumerate(loops[:8], 1)),
        ("The loop of a trigram model starts where a bigram comes back; its period is the distance between the two.",),
    )


@identity(
    "c1 lstm lstm-step",
    title="One LSTM step by its formulas",
    claim="c_t = Γ_f∗c_{t−1} + Γ_u∗c̃, a_t = Γ_o∗tanh(c_t), ŷ = softmax(W_y a_t + b_y), with [a; x] stacked.",
)
def lstm_step(
    D: int = setting(6, 1, 1024, "units"),
    d: int = setting(4, 1, 1024, "numbers of the input"),
    V: int = setting(5, 2, 10_000, "classes"),
    seed: int = setting(1, 0, MAX_SEED, "fixes all numbers"),
) -> Evidence:
    """One step by the formulas, with Γ = σ(W[a; x] + b) for the gates u, f, o, and by torch.nn.LSTMCell."""
    cell = random_module(lambda: nn.LSTMCell(d, D), seed)
    output = random_module(lambda: nn.Linear(D, V), seed + 50)
    x, a, c = (sample_normal(size, seed=seed + 90 + place) for place, size in enumerate((d, D, D)))
    with torch.no_grad():
        theirs, state = cell(x[None], (a[None], c[None]))
        chances = output(theirs).softmax(-1)[0]
        weights = torch.cat([cell.weight_hh, cell.weight_ih], dim=1).chunk(4)
        biases = (cell.bias_ih + cell.bias_hh).chunk(4)
        stacked = torch.cat([a, x])
        # PyTorch stacks input (here update), forget, cell (here the candidate), output
        u, f, candidate, o = (W @ stacked + b for W, b in zip(weights, biases, strict=True))
        u, f, o = (1 / (1 + (-gate).exp()) for gate in (u, f, o))
        c_t = f * c + u * candidate.tanh()
        a_t = o * c_t.tanh()
        scores = (output.weight @ a_t + output.bias).exp()
    return Evidence(
        (
            expect_zero("c_t − torch.nn.LSTMCell's, largest entry", c_t - state[0]),
            expect_zero("a_t − torch.nn.LSTMCell's, largest entry", a_t - theirs[0]),
            expect_zero("ŷ − softmax of the output layer, largest entry", scores / scores.sum() - chances),
        )
    )


@identity(
    "d2 perplexity cross-entropy",
    title="Cross-entropy is log perplexity",
    claim="The cross-entropy of a text is the logarithm of its perplexity.",
)
def cross_entropy(
    V: int = setting(50, 2, 5000, "words of the vocabulary"),
    T: int = setting(64, 2, 500, "tokens that are predicted"),
    seed: int = setting(1, 0, MAX_SEED, "fixes the text and the weights"),
) -> Evidence:
    """Predict one text by three models, and take the perplexity and the cross-entropy apart from each other."""
    text = torch.randint(V, (1, T + 1), generator=torch.Generator().manual_seed(seed))
    findings, rows = [], []
    for spec in (
        FeedForward(vocabulary=V, width=8, hidden=16, context=3),
        Lstm(vocabulary=V, width=8, hidden=16),
        Decoder(vocabulary=V, width=16, depth=1, heads=2, context=T),
    ):
        model = random_module(lambda spec=spec: build(spec), seed)
        with torch.no_grad():
            logits, _ = model(text[:, :-1])
        entropy, perplexity = float(causal_loss(logits, text[:, 1:])), _geometric_mean(logits, text[:, 1:])
        says = f"{spec.family}: log of the geometric mean of 1/p − cross-entropy"
        findings.append(expect_zero(says, abs(math.log(perplexity) - entropy)))
        rows.append((spec.family, entropy, math.exp(entropy), perplexity))
    ignorant = _geometric_mean(torch.zeros(1, T, V, dtype=torch.float64), text[:, 1:])
    findings.append(Finding("a model that knows nothing: perplexity against V", ignorant, V, V * EXACT))
    return Evidence(
        tuple(findings),
        ("model", "cross-entropy", "exp of it", "perplexity"),
        tuple(rows),
        ("In nats; in bits, cross-entropy is the logarithm to base 2 of the same perplexity.",),
    )


def _geometric_mean(logits: Float[Tensor, "1 T V"], targets: Tensor) -> float:
    """The perplexity (Π 1/p_t)^(1/T), by products of probabilities: no logarithm is taken of any of them."""
    chances = logits[0].softmax(-1).gather(1, targets[0, :, None]).flatten()
    return float((1 / chances).pow(1 / len(chances)).prod())


@identity(
    "e3 pretraining",
    title="What plain text teaches by itself",
    claim="Causal, masked and next-sentence pretraining need no labels: each predicts a part of the text from another.",
)
def pretraining(
    V: int = setting(30, 8, 5000, "words of the vocabulary"),
    T: int = setting(16, 4, 200, "tokens of a text"),
    seed: int = setting(1, 0, MAX_SEED, "fixes texts and weights"),
) -> Evidence:
    """Each loss by the objective that trains, compared with −log p of what the text itself says, token by token."""
    text = torch.randint(V - 4, (1, T + 1), generator=torch.Generator().manual_seed(seed))
    reader = random_module(lambda: build(Lstm(vocabulary=V, width=8, hidden=12)), seed)
    spec = Encoder(vocabulary=V, width=16, depth=1, heads=2, context=T + 1, objective="both")
    encoder = random_module(lambda: build(spec), seed)
    hidden = torch.arange(1, T + 1, 4)
    targets = torch.full_like(text, -1)
    targets[0, hidden], targets[0, 0] = text[0, hidden], 1
    with torch.no_grad():
        # the prefix alone is given for each prediction, so that nothing later can help
        each = [-reader(text[:, :end])[0][0, -1].log_softmax(-1)[text[0, end]].item() for end in range(1, T + 1)]
        read = float(causal_loss(reader(text[:, :-1])[0], text[:, 1:]))
        logits, follows = encoder(text), encoder.follows(text)
        other = -logits
        other[0, hidden] = logits[0, hidden]
        loss, same = (masked_loss(one, targets).loss for one in (logits, other))
        chances = logits[0, hidden].log_softmax(-1).gather(1, text[0, hidden, None])
        second = float(next_sentence_loss(follows, targets).loss + follows[0].log_softmax(-1)[1])
    return Evidence(
        (
            expect_zero("causal − mean of −log p(next token), read one prefix at a time", abs(read - sum(each) / T)),
            expect_zero("masked − mean of −log p over the hidden places", abs(float(loss + chances.mean()))),
            expect_zero("masked: other logits at places that are not hidden change it by", abs(float(loss - same))),
            expect_zero("next-sentence − (−log p(follows))", abs(second)),
        )
    )


# D4: the rows of Â = D̃^(−1/2) Ã D̃^(−1/2) do *not* sum to one, unless every connected part is regular.
# What holds on every graph: the spectral norm of Â is 1 (its eigenvector is √d̃), and the rows of D̃⁻¹Ã sum to one.

POWERS = 8
NORM_TOLERANCE = 1e-10  # what rounding leaves of an eigenvalue of a matrix of some hundred rows
MATRIX_FORMULAS = {"symmetric": "Â = D̃^(−1/2) Ã D̃^(−1/2)", "rows": "D̃⁻¹Ã"}
MATRIX_NAMES: dict[Normalisation, str] = {"none": "Ã", "symmetric": "Â", "rows": "D̃⁻¹Ã"}
Graph = Literal["star", "path", "random", "cycle", "complete"]


@identity("d4 graph convolution", title="Are the rows of Â normalised?", claim="")
def graph_convolution(
    graph: Graph = "star",  # cycles and complete graphs are regular: all their nodes have the same degree
    matrix: Literal["symmetric", "rows"] = "symmetric",  # of which matrix the rows are claimed to sum to one
    nodes: int = setting(8, 2, 500, "how many nodes"),
    edges: int = setting(12, 0, 500 * 499 // 2, "how many edges a random graph has; the other kinds have theirs"),
    seed: int = setting(1, 0, MAX_SEED, "fixes the random graph and the features"),
) -> Evidence:
    """Build Ã, Â and D̃⁻¹Ã by our own convolution, and measure their rows and norms."""
    most = nodes * (nodes - 1) // 2
    if graph == "random" and edges > most:
        raise SpecError(f"edges = {edges}: {nodes} nodes have at most {most} edges.")
    if graph == "cycle" and nodes < 3:
        raise SpecError("nodes = 2: a cycle needs 3 nodes at least.")
    numbers = torch.arange(nodes)
    every = torch.combinations(numbers).T
    order = torch.randperm(every.shape[1], generator=torch.Generator().manual_seed(seed))
    pairs: Int[Tensor, "two edges"] = {
        "star": torch.stack([torch.zeros_like(numbers[1:]), numbers[1:]]),
        "path": torch.stack([numbers[:-1], numbers[1:]]),
        "cycle": torch.stack([numbers, numbers.roll(-1)]),
        "complete": every,
        "random": every[:, order[:edges]],
    }[graph]
    features = sample_normal(nodes, 3, seed=seed)
    with default_float64():
        made: dict[Normalisation, Tensor] = {
            kind: build_adjacency(pairs, nodes, kind).to_dense() for kind in MATRIX_NAMES
        }
    off = {kind: float((one.sum(1) - 1).abs().max()) for kind, one in made.items()}
    norms = {kind: float(torch.linalg.matrix_norm(one, 2)) for kind, one in made.items()}
    degrees = torch.bincount(pairs.flatten(), minlength=nodes)
    # the nodes of each connected part have all the same degree just if the two ends of every edge do
    regular = bool((degrees[pairs[0]] == degrees[pairs[1]]).all())
    longer, before = 0, features
    for _ in range(POWERS):
        after = made["symmetric"] @ before
        longer += bool(after.norm() > before.norm() * (1 + NORM_TOLERANCE))
        before = after
    rows = []
    for kind, one in made.items():
        sums, after = one.sum(1), torch.linalg.matrix_power(one, POWERS) @ features
        grown = float(after.norm() / features.norm())
        rows.append((MATRIX_NAMES[kind], float(sums.min()), float(sums.max()), norms[kind], grown))
    sums_to_one = off["symmetric"] <= EXACT
    remark = f"This {graph} graph is regular, so the claim holds here; graph=star shows that it is not general."
    return Evidence(
        (
            Finding("spectral norm of Â", norms["symmetric"], 1.0, NORM_TOLERANCE),
            expect_zero("rows of D̃⁻¹Ã: furthest sum − 1", off["rows"]),
            expect_count("rows of Â sum to one (1 = yes), against: every part is regular", sums_to_one, regular),
            expect_count("powers of Â up to 8 that make features longer", longer, 0),
        ),
        ("matrix", "lowest row sum", "highest row sum", "spectral norm", f"‖M^{POWERS} X‖ / ‖X‖"),
        tuple(rows),
        (remark,) if sums_to_one and matrix == "symmetric" else (),
        "the rows of Â sum to one only where every connected part of the graph is regular; those of D̃⁻¹Ã do on every "
        "graph. What holds of Â: its spectral norm is 1, so that repeated layers do not blow features up.",
        claimed=(
            expect_zero(f"claimed: every row of {MATRIX_NAMES[matrix]} sums to 1; furthest sum − 1", off[matrix]),
        ),
        claim=f"The rows of {MATRIX_FORMULAS[matrix]} are normalised: each sums to one.",
        sizes={"edges": pairs.shape[1]},
    )


IDENTITIES: dict[str, Identity] = dict(
    sorted(REGISTRY.items(), key=lambda item: (item[1].row[0], int(item[1].row[1:])))
)
"""All identities by name, in the order of the problems."""


@dataclass(frozen=True)
class IdentityList(Result):
    """The identities that can be checked, with the sizes each may be tried at."""

    identities: tuple[Identity, ...]
    title = "The identities that can be checked"

    def blocks(self) -> list[Block]:
        """Two lines for each."""
        first = self.identities[0]
        word, value = next(iter(first.sizes().to_dict().items()))
        usage = f"As in: lemma check identity {first.aliases[0]} {word}={value}"
        return [Text("\n".join(map(str, self.identities))), Text(usage, blank_before=True)]

    def details(self) -> list[Block]:
        """The same as a table."""
        rows = [
            (
                one.name,
                ", ".join(one.aliases),
                one.title,
                " ".join(f"{k}={v}" for k, v in one.sizes().to_dict().items()),
            )
            for one in self.identities
        ]
        return [Heading(self.title, 1), Table(("name", "or", "what it is about", "sizes"), rows, is_text=True)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "identities": [
                {"name": one.name, "words": list(one.aliases), "title": one.title, "sizes": one.sizes().to_dict()}
                for one in self.identities
            ]
        }


def list_identities() -> IdentityList:
    """All identities that can be checked."""
    return IdentityList(tuple(IDENTITIES.values()))


def find_identity(name: str) -> Identity:
    """Find an identity by its number (c7) or by a word (products)."""
    named = {word: one for one in IDENTITIES.values() for word in (one.name, *one.aliases)}
    asked = name.strip().lower().replace("_", "-").replace(" ", "-")
    if asked not in named:
        raise SpecError(describe_unknown("identity", name, named))
    return named[asked]


def check_identity(name: str, sizes: Mapping[str, Any] | None = None) -> IdentityReport:
    """Run the identity of that number or name at these sizes.

    >>> check_identity("products", {"D": 3, "samples": 1000}).holds
    True
    """
    return find_identity(name)(**(sizes or {}))
