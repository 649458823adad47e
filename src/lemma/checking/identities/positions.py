"""Identities of position encodings."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lemma.checking.identities.base import (
    OPERATIONS_PER_DRAW,
    check_work,
    default_float64,
    identity,
    random_module,
    sample_normal,
    seed_setting,
    setting,
    setting_above,
)
from lemma.checking.identity_report import (
    VISIBLE,
    Evidence,
    expect_nonzero,
    expect_zero,
)
from lemma.errors import SpecError
from lemma.layers.attention import Attention, AttentionShape
from lemma.layers.positions import RotaryEmbedding, alibi_slopes, build_positions, rotate, sinusoids
from lemma.layers.recording import record_attention
from lemma.report.curves import Curve, Plot
from lemma.spec.positions import Alibi, NoPositions, Rotary, Sinusoidal

ANGLE_TOLERANCE = 1e-11  # what rounding leaves of angles of some thousand


@identity(
    "c9 positions",
    title="Sinusoidal, rotary and ALiBi in width 4",
    claim="In width 4 at position p, sinusoidal adds (sin pθ1, cos pθ1, sin pθ2, cos pθ2); rotary turns the pairs "
    "(1,2) and (3,4) by pθ1 and pθ2; ALiBi adds −m·distance with a fixed slope m a head, a geometric sequence.",
)
def position_table(
    P: int = setting(4, 2, 500, "positions 1 to P"),
    base: float = setting_above(1, 10_000.0, 1e12, "θ1 = 1 and θ2 = 1/√base"),
    h: int = setting(4, 1, 64, "heads, for the slopes of ALiBi"),
    seed: int = seed_setting("fixes the vectors"),
) -> Evidence:
    """Put vectors of width 4 at positions 1 to P, and compare what each part does with the formulas written out."""
    angles, vectors = (1.0, base**-0.5), sample_normal(P, 4, seed=seed)
    attention = random_module(lambda: Attention(AttentionShape(4 * h, h, causal=False, positions=Alibi())), seed)
    with default_float64():
        added = build_positions(Sinusoidal(base=base, first=1), P, 4)(vectors[None])[0] - vectors
        rotated_vectors = RotaryEmbedding(P, 4, base, first=1)(vectors)
        slopes = alibi_slopes(h)
        with torch.no_grad(), record_attention() as records:
            attention(sample_normal(1, P, 4 * h, seed=seed))
    record, positions = records[0], torch.arange(P, dtype=torch.float64)
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
    return Evidence(
        (
            expect_zero(
                "sinusoidal: what is added − the formula",
                added - torch.tensor(sines, dtype=torch.float64),
                ANGLE_TOLERANCE,
            ),
            expect_zero(
                "rotary: what comes out − the formula",
                rotated_vectors - torch.tensor(rotated, dtype=torch.float64),
                ANGLE_TOLERANCE,
            ),
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
    base: float = setting_above(1, 10_000.0, 1e12, "the longest wavelength is 2π times this"),
    seed: int = seed_setting("fixes the vector and the weights"),
) -> Evidence:
    """Put one vector at every position, and compare the scores along each diagonal."""
    if D % 2:
        raise SpecError(f"D = {D} must be even: rotary turns pairs. Nearest: {D - 1}, {D + 1}.")
    check_work(
        {"N": N, "D": D},
        operations=16 * N**2 * D + 24 * N * D**2 + OPERATIONS_PER_DRAW * 12 * D**2,
        numbers=12 * D**2 + 12 * N**2,
    )
    scores: dict[str, Float[Tensor, "N N"]] = {}
    for kind, encoding in {"rotary": Rotary(base=base), "alibi": Alibi(), "sinusoidal": NoPositions()}.items():
        shape = AttentionShape(D, causal=False, positions=encoding, bias=False)
        layer = random_module(lambda shape=shape: Attention(shape), seed)
        inputs = sample_normal(1, 1, D, seed=seed).expand(1, N, D)
        if kind == "sinusoidal":
            inputs = inputs + sinusoids(N, D, base).double()
        with torch.no_grad(), default_float64(), record_attention(layer) as records:
            layer(inputs)
        scores[kind] = records[0].scores()[0, 0]
    spread = {
        kind: max(float(line.max() - line.min()) for line in (matrix.diagonal(offset) for offset in range(1 - N, N)))
        for kind, matrix in scores.items()
    }
    queries, keys = sample_normal(2, N, D, seed=seed)
    with default_float64():
        tables = [sinusoids(N, D, base, first).unflatten(1, (-1, 2)) for first in (0, shift)]
    scores_unshifted, scores_shifted = (rotate(queries, table) @ rotate(keys, table).T for table in tables)
    rounding = ANGLE_ROUNDING * D**0.5
    label = "one vector at every place, scores at equal distance: furthest two"
    distance = min(3, N // 3)
    curves = []
    for kind in ("rotary", "sinusoidal"):
        line = scores[kind].diagonal(-distance).tolist()
        curves.append(Curve(kind, tuple(map(float, range(len(line)))), tuple(line), dots=len(line) <= 40))
    caption = f"The score of one vector with itself, {distance} places apart, wherever the pair stands in the text."
    return Evidence(
        (
            expect_zero(
                f"scores of queries and keys, {shift} places further − here",
                scores_unshifted - scores_shifted,
                rounding * (shift + N),
            ),
            expect_zero(f"rotary attention, {label}", spread["rotary"], rounding * N),
            expect_zero(f"ALiBi, {label}", spread["alibi"]),
            expect_nonzero(f"sinusoidal positions, {label}", spread["sinusoidal"], VISIBLE),
        ),
        ("distance", *(f"{kind}, {end} pair" for kind in ("rotary", "sinusoidal") for end in ("first", "last"))),
        tuple(
            (
                offset_shown,
                *(
                    float(scores[kind].diagonal(-offset_shown)[end])
                    for kind in ("rotary", "sinusoidal")
                    for end in (0, -1)
                ),
            )
            for offset_shown in range(min(5, N - 1))
        ),
        ("First and last pair: the two pairs of places at that distance that lie furthest apart in the text.",),
        plot=Plot("place of the earlier token", f"score at distance {distance}", tuple(curves), caption=caption),
    )
