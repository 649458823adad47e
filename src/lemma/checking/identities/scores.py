"""Identities of attention scores: inner products of random vectors, and positions."""

import itertools
import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from lemma.checking.identities.base import (
    EXACT,
    KURTOSIS,
    OPERATIONS_PER_DRAW,
    SEED,
    VISIBLE,
    Distribution,
    Evidence,
    Finding,
    check_work,
    default_float64,
    draw,
    expect_mean,
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
from lemma.layers.positions import RotaryEmbedding, alibi_slopes, build_positions, rotate, sinusoids
from lemma.report.curves import Curve, Plot
from lemma.spec.positions import Alibi, NoPositions, Rotary, Sinusoidal


@identity(
    "c7 products inner-products",
    title="The mean square of an inner product is D",
    claim="E[(aᵀb)²] = D, where a, b ∈ R^D are independent with zero mean and unit variance.",
)
def product_variance(
    D: int = setting(64, 1, 100_000, "number of components"),
    samples: int = setting(20_000, 2, 10_000_000, "pairs drawn"),
    draws: Distribution = "normal",  # how components are drawn; only their two first moments matter
    seed: int = SEED,
) -> Evidence:
    """Compare the sampled mean of (aᵀb)² with D, up to standard errors in closed form."""
    rows, widths = [], sweep_sizes((1, 4, 16, 64, 256, 1024), D)
    check_work(2 * OPERATIONS_PER_DRAW * samples * sum(widths), 8 * samples, D=D, samples=samples)
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


def sample_inner_products(D: int, samples: int, draws: Distribution, seed: int) -> Float[Tensor, " samples"]:
    """Draw pairs a, b of vectors of D components, distributed as `draws` says; return aᵀb of every pair."""
    generator = torch.Generator().manual_seed(seed)
    rows = max(1, 2**22 // D)
    sizes = [min(rows, samples - start) for start in range(0, samples, rows)]
    return torch.cat([(draw(draws, (n, D), generator) * draw(draws, (n, D), generator)).sum(1) for n in sizes])


def fourth_moment(D: int, draws: Distribution) -> float:
    """Return E[(aᵀb)⁴] = D k² + 3D(D−1) of random vectors with D components, with k = E[x⁴] of a component.

    Of the D⁴ products a_i b_i a_j b_j a_k b_k a_l b_l those with an index once or three times are 0 on average.
    """
    return D * KURTOSIS[draws] ** 2 + 3 * D * (D - 1)


CANDIDATES = 50  # logits of the softmax whose sharpness B5 shows


@identity(
    "b5 temperature",
    title="The temperature that fits a dimension",
    claim="With h, e ∈ R^I of independent zero-mean, unit-variance components, β = 1/√I gives logits βhᵀe of zero mean "
    "and unit variance.",
)
def logit_temperature(
    I: int = setting(64, 1, 100_000, "number of components of h and e"),  # noqa: E741 - the source's letter
    samples: int = setting(20_000, 2, 10_000_000, "logits drawn"),
    draws: Distribution = "normal",  # how components are drawn; only their two first moments matter
    seed: int = SEED,
) -> Evidence:
    """Compare the mean and variance of sampled logits βhᵀe with 0 and 1; check that fused attention uses the same β."""
    widths = sweep_sizes((4, 16, 64, 256, 1024), I)
    check_work(2 * OPERATIONS_PER_DRAW * samples * (I + sum(widths)), 8 * samples, I=I, samples=samples)
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


ANGLE_TOLERANCE = 1e-11  # what rounding leaves of angles of some thousand


@identity(
    "c9 positions",
    title="Sinusoidal, rotary and ALiBi in width 4",
    claim="In width 4 at position p, sinusoidal adds (sin pθ1, cos pθ1, sin pθ2, cos pθ2); rotary turns the pairs "
    "(1,2) and (3,4) by pθ1 and pθ2; ALiBi adds −m·distance with a fixed slope m a head, a geometric sequence.",
)
def position_encodings(
    P: int = setting(4, 2, 500, "positions 1 to P"),
    base: float = setting(10_000.0, None, 1e12, "θ1 = 1 and θ2 = 1/√base", gt=1),
    h: int = setting(4, 1, 64, "heads, for the slopes of ALiBi"),
    seed: int = SEED,
) -> Evidence:
    """Compare sinusoidal, rotary and ALiBi layers on random vectors at positions 1 to P with their formulas."""
    angles, vectors = (1.0, base**-0.5), sample_normal(P, 4, seed=seed)
    attention = random_module(lambda: Attention(AttentionShape(4 * h, h, causal=False, positions=Alibi())), seed)
    with default_float64():
        added = build_positions(Sinusoidal(base=base, first=1), P, 4)(vectors[None])[0] - vectors
        rotated_vectors = RotaryEmbedding(P, 4, base, first=1)(vectors)
        slopes = alibi_slopes(h)
    _, record = run_recorded(attention, sample_normal(1, P, 4 * h, seed=seed))
    positions = torch.arange(P, dtype=torch.float64)
    penalties = (record.scores() - record.queries @ record.keys.mT * record.scale)[0]
    distances = slopes[:, None, None] * (positions[:, None] - positions).abs()
    ratios = slopes[1:] / slopes[:-1] if h > 1 else torch.ones(1).double()
    sines, rotated = [], []
    for position, vector in enumerate(vectors.tolist(), 1):
        sines.append([function(position * angle) for angle in angles for function in (math.sin, math.cos)])
        rotated.append([])
        for pair, angle in enumerate(angles):
            first, second = vector[2 * pair : 2 * pair + 2]
            sine, cosine = math.sin(position * angle), math.cos(position * angle)
            rotated[-1] += [first * cosine - second * sine, first * sine + second * cosine]
    slope_list = ", ".join(f"{slope:.6g}" for slope in slopes.tolist()[:8])
    sine_errors = added - torch.tensor(sines, dtype=torch.float64)
    rotation_errors = rotated_vectors - torch.tensor(rotated, dtype=torch.float64)
    return Evidence(
        (
            expect_zero("sinusoidal: what is added − the formula", sine_errors, ANGLE_TOLERANCE),
            expect_zero("rotary: what comes out − the formula", rotation_errors, ANGLE_TOLERANCE),
            expect_zero("ALiBi: what is added to scores + m·distance", penalties + distances, 1e-9),
            expect_zero("ALiBi: slopes' ratios, largest − smallest", float(ratios.max() - ratios.min())),
        ),
        ("p", "sin pθ1", "cos pθ1", "sin pθ2", "cos pθ2"),
        tuple((position, *row) for position, row in enumerate(added.tolist()[:8], 1)),
        (f"θ1 = 1, θ2 = {angles[1]:.6g}. ALiBi's slopes: {slope_list}.",),
    )


# If q is rotated by pθ and k by rθ, their product is that of q and k rotated by (r − p)θ.

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
    base: float = setting(10_000.0, None, 1e12, "the longest wavelength is 2π times this", gt=1),
    seed: int = SEED,
) -> Evidence:
    """Compare scores at equal distance with one vector at every position: rotary and ALiBi agree, sinusoids differ."""
    if D % 2:
        raise SpecError(f"D = {D} must be even: rotary turns pairs. Nearest: {D - 1}, {D + 1}.")
    check_work(16 * N**2 * D + 24 * N * D**2 + OPERATIONS_PER_DRAW * 12 * D**2, 12 * D**2 + 12 * N**2, N=N, D=D)
    scores: dict[str, Float[Tensor, "N N"]] = {}
    for kind, encoding in {"rotary": Rotary(base=base), "alibi": Alibi(), "sinusoidal": NoPositions()}.items():
        shape = AttentionShape(D, causal=False, positions=encoding, bias=False)
        layer = random_module(lambda shape=shape: Attention(shape), seed)
        inputs = sample_normal(1, 1, D, seed=seed).expand(1, N, D)
        if kind == "sinusoidal":
            inputs = inputs + sinusoids(N, D, base).double()
        scores[kind] = run_recorded(layer, inputs)[1].scores()[0, 0]
    spread = {
        kind: max(float(line.max() - line.min()) for line in (matrix.diagonal(offset) for offset in range(1 - N, N)))
        for kind, matrix in scores.items()
    }
    queries, keys = sample_normal(2, N, D, seed=seed)
    with default_float64():
        tables = [sinusoids(N, D, base, first).unflatten(1, (-1, 2)) for first in (0, shift)]
    shifts = torch.sub(*(rotate(queries, table) @ rotate(keys, table).T for table in tables))
    rounding = ANGLE_ROUNDING * D**0.5
    label = "one vector at every place, scores at equal distance: furthest two"
    distance = min(3, N // 3)
    rows = []
    for offset in range(min(5, N - 1)):
        lines = [scores[kind].diagonal(-offset) for kind in ("rotary", "sinusoidal")]
        rows.append((offset, *(float(line[end]) for line in lines for end in (0, -1))))
    curves = []
    for kind in ("rotary", "sinusoidal"):
        line = scores[kind].diagonal(-distance).tolist()
        curves.append(Curve(kind, tuple(map(float, range(len(line)))), tuple(line), dots=len(line) <= 40))
    caption = f"The score of one vector with itself, {distance} places apart, wherever the pair stands in the text."
    return Evidence(
        (
            expect_zero(f"scores of queries and keys, {shift} places further − here", shifts, rounding * (shift + N)),
            expect_zero(f"rotary attention, {label}", spread["rotary"], rounding * N),
            expect_zero(f"ALiBi, {label}", spread["alibi"]),
            expect_nonzero(f"sinusoidal positions, {label}", spread["sinusoidal"], VISIBLE),
        ),
        ("distance", *(f"{kind}, {end} pair" for kind in ("rotary", "sinusoidal") for end in ("first", "last"))),
        tuple(rows),
        ("First and last pair: the two pairs of places at that distance that lie furthest apart in the text.",),
        plot=Plot("place of the earlier token", f"score at distance {distance}", tuple(curves), caption=caption),
    )
