"""Problem C9: what sinusoidal, rotary and ALiBi positions do in width 4, to the element; positions count from 1."""

import math

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from lemma.ledger.identities.identity import Identity, drawn, gap, in_float64
from lemma.ledger.identities.report import IdentityReport, residual
from lemma.parts import Attention, AttentionShape, alibi_slopes, overhear, positions
from lemma.parts.positions import RotaryPart
from lemma.spec import Alibi, Sinusoidal, Spec

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
        IDENTITY.title,
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
    with torch.no_grad(), in_float64(), overhear() as records:
        part(drawn(1, sizes.P, 4 * sizes.h, seed=sizes.seed))
    record = records[0]
    return (record.scores() - record.queries @ record.keys.mT * record.scale)[0]


def expected(slopes: Float[Tensor, "h"], sizes: Sizes) -> Float[Tensor, "h P P"]:
    """−m·|i − j| for every head."""
    places = torch.arange(sizes.P, dtype=torch.float64)
    return -slopes[:, None, None] * (places[:, None] - places).abs()


IDENTITY = Identity("c9", ("positions",), "Sinusoidal, rotary and ALiBi in width 4", Sizes, run)
