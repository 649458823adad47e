"""Identities about positions, problem C9: sinusoidal, rotary and ALiBi in width 4, and rotary's relative scores."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lemma.checking.identity import (
    VISIBLE,
    Evidence,
    difference,
    drawn,
    filled,
    gap,
    identity,
    in_float64,
    residual,
    setting,
)
from lemma.errors import SpecError
from lemma.layers.attention import Attention, AttentionShape
from lemma.layers.positions import RotaryPart, alibi_slopes, positions, rotate, sinusoids
from lemma.layers.recording import record_attention
from lemma.report.curves import Curve, Plot
from lemma.spec.positions import Alibi, NoPositions, Rotary, Sinusoidal

WIDTH = 4
FINE = 1e-11  # what rounding leaves of angles of some thousand


@identity(
    "c9",
    "positions",
    title="Sinusoidal, rotary and ALiBi in width 4",
    claim="In width 4 at position p, sinusoidal adds (sin pθ1, cos pθ1, sin pθ2, cos pθ2); rotary turns the pairs "
    "(1,2) and (3,4) by pθ1 and pθ2; ALiBi adds −m·distance with a fixed slope m a head, a geometric sequence.",
)
def position_table(
    P: int = setting(4, 2, 500, "positions 1 to P"),
    base: float = setting(10_000.0, above=1, about="θ1 = 1 and θ2 = 1/√base"),
    h: int = setting(4, 1, 64, "heads, for the slopes of ALiBi"),
    seed: int = setting(1, 0, about="fixes the vectors"),
) -> Evidence:
    """Put vectors of width 4 at positions 1 to P, and compare what each part does with the formulas written out."""
    angles, vectors = (1.0, base**-0.5), drawn(P, WIDTH, seed=seed)
    with in_float64():
        added = positions(Sinusoidal(base=base, first=1), P, WIDTH)(vectors[None])[0] - vectors
        turned = RotaryPart(P, WIDTH, base, first=1)(vectors)
        slopes = alibi_slopes(h)
        attention = Attention(AttentionShape(4 * h, h, causal=False, positions=Alibi()))
        with torch.no_grad(), record_attention() as records:
            attention(drawn(1, P, 4 * h, seed=seed))
    record, places = records[0], torch.arange(P, dtype=torch.float64)
    penalties = (record.scores() - record.queries @ record.keys.mT * record.scale)[0]
    expected = -slopes[:, None, None] * (places[:, None] - places).abs()
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
            residual(
                "sinusoidal: what is added − the formula", gap(added, torch.tensor(sines, dtype=torch.float64)), FINE
            ),
            residual(
                "rotary: what comes out − the formula", gap(turned, torch.tensor(rotated, dtype=torch.float64)), FINE
            ),
            residual("ALiBi: what is added to scores + m·distance", gap(penalties, expected), 1e-9),
            residual("ALiBi: slopes' ratios, largest − smallest", float(ratios.max() - ratios.min())),
        ),
        ("p", "sin pθ1", "cos pθ1", "sin pθ2", "cos pθ2"),
        tuple((place, *row) for place, row in enumerate(added.tolist()[:8], 1)),
        (f"θ1 = 1, θ2 = {angles[1]:.6g}. ALiBi's slopes: {written}.",),
    )


# Turning q by pθ and k by rθ, the product of a pair is that of q and k with k turned by (r − p)θ.

ANGLE = 1e-14  # what rounding leaves of an angle of 1, and more of a larger one


@identity(
    "rotary",
    "relative",
    "rotary-score",
    title="Rotary scores depend on the distance only",
    claim="Rotary scores depend only on the distance of two tokens.",
    row="c9",
)
def rotary_distance(
    N: int = setting(24, 3, 2000, "number of places"),
    D: int = setting(16, 2, 1024, "width of the head; even, since pairs are turned"),
    shift: int = setting(1000, 1, 100_000, "by how much both places are moved"),
    base: float = setting(10_000.0, above=1, about="the longest wavelength is 2π times this"),
    seed: int = setting(1, 0, about="fixes the vector and the weights"),
) -> Evidence:
    """Put one vector at every place, and see whether scores are the same along each diagonal."""
    if D % 2:
        raise SpecError(f"D = {D} must be even: rotary turns pairs. Nearest: {D - 1}, {D + 1}.")
    scores: dict[str, Float[Tensor, "N N"]] = {}
    for kind, chosen in {"rotary": Rotary(base=base), "alibi": Alibi(), "sinusoidal": NoPositions()}.items():
        shape = AttentionShape(D, causal=False, positions=chosen, bias=False)
        part = filled(lambda shape=shape: Attention(shape), seed)
        stream = drawn(1, 1, D, seed=seed).expand(1, N, D)
        if kind == "sinusoidal":
            stream = stream + sinusoids(N, D, base).double()
        with torch.no_grad(), in_float64(), record_attention(part) as records:
            part(stream)
        scores[kind] = records[0].scores()[0, 0]
    spread = {
        kind: max(float(line.max() - line.min()) for line in (one.diagonal(offset) for offset in range(1 - N, N)))
        for kind, one in scores.items()
    }
    queries, keys = drawn(2, N, D, seed=seed)
    with in_float64():
        tables = [sinusoids(N, D, base, first).unflatten(1, (-1, 2)) for first in (0, shift)]
    here, there = (rotate(queries, table) @ rotate(keys, table).T for table in tables)
    grain = ANGLE * D**0.5
    says = "one vector at every place, scores at equal distance: furthest two"
    distance = min(3, N // 3)
    curves = []
    for kind in ("rotary", "sinusoidal"):
        line = scores[kind].diagonal(-distance).tolist()
        curves.append(Curve(kind, tuple(map(float, range(len(line)))), tuple(line), dots=len(line) <= 40))
    caption = f"The score of one vector with itself, {distance} places apart, wherever the pair stands in the text."
    return Evidence(
        (
            residual(
                f"scores of queries and keys, {shift} places further − here", gap(here, there), grain * (shift + N)
            ),
            residual(f"rotary attention, {says}", spread["rotary"], grain * N),
            residual(f"ALiBi, {says}", spread["alibi"]),
            difference(f"sinusoidal positions, {says}", spread["sinusoidal"], VISIBLE),
        ),
        ("distance", *(f"{kind}, {end} pair" for kind in ("rotary", "sinusoidal") for end in ("first", "last"))),
        tuple(
            (far, *(float(scores[kind].diagonal(-far)[end]) for kind in ("rotary", "sinusoidal") for end in (0, -1)))
            for far in range(min(5, N - 1))
        ),
        ("First and last pair: the two pairs of places at that distance that lie furthest apart in the text.",),
        plot=Plot("place of the earlier token", f"score at distance {distance}", tuple(curves), caption=caption),
    )
