"""Problem C9: what sinusoidal, rotary and ALiBi positions do in width 4, to the element; positions count from 1."""

import math

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor

from lemma.checking.identity import Identity, IdentityReport, drawn, filled, gap, in_float64, residual
from lemma.layers.attention import Attention, AttentionShape
from lemma.layers.positions import RotaryPart, alibi_slopes, positions, rotate, sinusoids
from lemma.layers.recording import record_attention
from lemma.report.curves import Curve, Plot
from lemma.spec.base import Spec
from lemma.spec.positions import Alibi, NoPositions, Rotary, Sinusoidal

WIDTH = 4
FINE = 1e-11  # what rounding leaves of angles of some thousand


class Sizes(Spec):
    """Up to which place, with which wavelengths."""

    P: int = Field(default=4, ge=2, le=500)
    """Positions 1 to P."""
    base: float = Field(default=10_000.0, gt=1)
    """θ1 = 1 and θ2 = 1/√base."""
    h: int = Field(default=4, ge=1, le=64)
    """Heads, for the slopes of ALiBi."""
    seed: int = Field(default=1, ge=0)
    """Fixes the vectors."""


def angles(sizes: Sizes) -> tuple[float, float]:
    """θ1 and θ2."""
    return 1.0, sizes.base**-0.5


def run(sizes: Sizes) -> IdentityReport:
    """Put vectors of width 4 at positions 1 to P, and set what each part does beside the formulas written out."""
    vectors = drawn(sizes.P, WIDTH, seed=sizes.seed)
    with in_float64():
        added = positions(Sinusoidal(base=sizes.base, first=1), sizes.P, WIDTH)(vectors[None])[0] - vectors
        turned = RotaryPart(sizes.P, WIDTH, sizes.base, first=1)(vectors)
        slopes = alibi_slopes(sizes.h)
    ratios = slopes[1:] / slopes[:-1] if sizes.h > 1 else torch.ones(1).double()
    return IdentityReport(
        "c9",
        POSITION_TABLE.title,
        "In width 4 at position p, sinusoidal adds (sin pθ1, cos pθ1, sin pθ2, cos pθ2); rotary turns the pairs (1,2) "
        "and (3,4) by pθ1 and pθ2; ALiBi adds −m·distance with a fixed slope m a head, a geometric sequence.",
        sizes.to_dict(),
        (
            residual("sinusoidal: what is added − the formula", gap(added, sines(sizes)), FINE),
            residual("rotary: what comes out − the formula", gap(turned, rotated(vectors, sizes)), FINE),
            residual(
                "ALiBi: what is added to scores + m·distance", gap(penalties(sizes), expected(slopes, sizes)), 1e-9
            ),
            residual("ALiBi: slopes' ratios, largest − smallest", float(ratios.max() - ratios.min())),
        ),
        ("p", "sin pθ1", "cos pθ1", "sin pθ2", "cos pθ2"),
        tuple((place, *row) for place, row in enumerate(added.tolist()[:8], 1)),
        (f"θ1 = 1, θ2 = {angles(sizes)[1]:.6g}. ALiBi's slopes: {_listed(slopes)}.",),
    )


def _listed(slopes: Float[Tensor, "h"]) -> str:
    return ", ".join(f"{slope:.6g}" for slope in slopes.tolist()[:8])


def sines(sizes: Sizes) -> Float[Tensor, "P 4"]:
    """(sin pθ1, cos pθ1, sin pθ2, cos pθ2) for p = 1 …, one by one."""
    rows = [
        [function(place * angle) for angle in angles(sizes) for function in (math.sin, math.cos)]
        for place in range(1, sizes.P + 1)
    ]
    return torch.tensor(rows, dtype=torch.float64)


def rotated(vectors: Float[Tensor, "P 4"], sizes: Sizes) -> Float[Tensor, "P 4"]:
    """Both pairs of each vector turned by hand."""
    rows = []
    for place, vector in enumerate(vectors.tolist(), 1):
        row = []
        for pair, angle in enumerate(angles(sizes)):
            one, other = vector[2 * pair : 2 * pair + 2]
            sine, cosine = math.sin(place * angle), math.cos(place * angle)
            row += [one * cosine - other * sine, one * sine + other * cosine]
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def penalties(sizes: Sizes) -> Float[Tensor, "h P P"]:
    """What ALiBi adds to the scores of our attention."""
    with in_float64():
        part = Attention(AttentionShape(4 * sizes.h, sizes.h, causal=False, positions=Alibi()))
    with torch.no_grad(), in_float64(), record_attention() as records:
        part(drawn(1, sizes.P, 4 * sizes.h, seed=sizes.seed))
    record = records[0]
    return (record.scores() - record.queries @ record.keys.mT * record.scale)[0]


def expected(slopes: Float[Tensor, "h"], sizes: Sizes) -> Float[Tensor, "h P P"]:
    """−m·|i − j| for every head."""
    places = torch.arange(sizes.P, dtype=torch.float64)
    return -slopes[:, None, None] * (places[:, None] - places).abs()


POSITION_TABLE = Identity("c9", ("positions",), "Sinusoidal, rotary and ALiBi in width 4", Sizes, run)


# Problem C9: rotary scores depend only on how far two tokens lie apart; with sinusoidal positions they do not.
#
# Turning q by pθ and k by rθ, the product of a pair is that of q and k with k turned by (r − p)θ.


VISIBLE = 1e-6  # a difference that is no rounding
ANGLE = 1e-14  # what rounding leaves of an angle of 1, and more of a larger one
SHOWN = 5  # distances in the table
KINDS = ("rotary", "alibi", "sinusoidal")
Scores = Float[Tensor, "N N"]


class RotarySizes(Spec):
    """How many places, how wide, shifted by how much."""

    N: int = Field(default=24, ge=3, le=2000)
    """Number of places."""
    D: int = Field(default=16, ge=2, le=1024)
    """Width of the head; even, since pairs are turned."""
    shift: int = Field(default=1000, ge=1, le=100_000)
    """By how much both places are moved."""
    base: float = Field(default=10_000.0, gt=1)
    """The longest wavelength is 2π times this."""
    seed: int = Field(default=1, ge=0)
    """Fixes the vector and the weights."""

    @model_validator(mode="after")
    def _pairs(self) -> "RotarySizes":
        if self.D % 2:
            raise ValueError(f"D = {self.D} must be even: rotary turns pairs. Nearest: {self.D - 1}, {self.D + 1}.")
        return self


def run_rotary(sizes: RotarySizes) -> IdentityReport:
    """Let one vector stand at every place, and see whether scores are the same along each diagonal."""
    scores = {kind: scores_of_one_word(kind, sizes) for kind in KINDS}
    spread = {kind: unevenness(scores[kind]) for kind in KINDS}
    grain = ANGLE * sizes.D**0.5
    says = "one vector at every place, scores at equal distance: furthest two"
    return IdentityReport(
        "rotary",
        ROTARY_DISTANCE.title,
        "Rotary scores depend only on the distance of two tokens.",
        sizes.to_dict(),
        (
            residual(
                f"scores of queries and keys, {sizes.shift} places further − here",
                moved(sizes),
                grain * (sizes.shift + sizes.N),
            ),
            residual(f"rotary attention, {says}", spread["rotary"], grain * sizes.N),
            residual(f"ALiBi, {says}", spread["alibi"]),
            residual(f"sinusoidal positions, {says}", spread["sinusoidal"], VISIBLE, different=True),
        ),
        ("distance", *(f"{kind}, {end} pair" for kind in ("rotary", "sinusoidal") for end in ("first", "last"))),
        tuple(_row(scores, distance) for distance in range(min(SHOWN, sizes.N - 1))),
        ("First and last pair: the two pairs of places at that distance that lie furthest apart in the text.",),
        plot=_plot(scores, min(3, sizes.N // 3)),
    )


def scores_of_one_word(kind: str, sizes: RotarySizes) -> Scores:
    """Our attention's scores where the same vector stands at every place."""
    chosen = {"rotary": Rotary(base=sizes.base), "alibi": Alibi()}.get(kind, NoPositions())
    part = filled(lambda: Attention(AttentionShape(sizes.D, causal=False, positions=chosen, bias=False)), sizes.seed)
    stream = drawn(1, 1, sizes.D, seed=sizes.seed).expand(1, sizes.N, sizes.D)
    if kind == "sinusoidal":
        stream = stream + sinusoids(sizes.N, sizes.D, sizes.base).double()
    with torch.no_grad(), in_float64(), record_attention(part) as records:
        part(stream)
    return records[0].scores()[0, 0]


def unevenness(scores: Scores) -> float:
    """The largest difference between two scores on one diagonal."""
    size = len(scores)
    diagonals = (scores.diagonal(offset) for offset in range(1 - size, size))
    return max(float(diagonal.max() - diagonal.min()) for diagonal in diagonals)


def moved(sizes: RotarySizes) -> float:
    """How much the scores of any queries and keys change when both move by `shift`."""
    queries, keys = drawn(2, sizes.N, sizes.D, seed=sizes.seed)
    with in_float64():
        here, there = (
            sinusoids(sizes.N, sizes.D, sizes.base, first).unflatten(1, (-1, 2)) for first in (0, sizes.shift)
        )
    near, far = (rotate(queries, table) @ rotate(keys, table).T for table in (here, there))
    return float((near - far).abs().max())


def _row(scores: dict[str, Scores], distance: int) -> tuple[float | int, ...]:
    diagonals = [scores[kind].diagonal(-distance) for kind in ("rotary", "sinusoidal")]
    return distance, *(float(diagonal[end]) for diagonal in diagonals for end in (0, -1))


def _plot(scores: dict[str, Scores], distance: int) -> Plot:
    curves = [
        Curve(kind, tuple(float(place) for place in range(len(line))), tuple(line.tolist()), dots=len(line) <= 40)
        for kind in ("rotary", "sinusoidal")
        for line in [scores[kind].diagonal(-distance)]
    ]
    caption = f"The score of one vector with itself, {distance} places apart, wherever the pair stands in the text."
    return Plot("place of the earlier token", f"score at distance {distance}", tuple(curves), caption=caption)


ROTARY_DISTANCE = Identity(
    "rotary", ("relative", "rotary-score"), "Rotary scores depend on the distance only", RotarySizes, run_rotary
)
