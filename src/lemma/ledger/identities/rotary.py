"""Problem C9: rotary scores depend only on how far two tokens lie apart; with sinusoidal positions they do not.

Turning q by pθ and k by rθ, the product of a pair is that of q and k with k turned by (r − p)θ.
"""

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor

from lemma.ledger.identities.identity import Identity, drawn, filled, in_float64
from lemma.ledger.identities.report import IdentityReport, residual
from lemma.ledger.lines import Curve, Plot
from lemma.parts import Attention, AttentionShape, rotate, sinusoids, tap
from lemma.spec import Alibi, NoPositions, Rotary, Spec

VISIBLE = 1e-6  # a difference that is no rounding
ANGLE = 1e-14  # what rounding leaves of an angle of 1, and more of a larger one
SHOWN = 5  # distances in the table
KINDS = ("rotary", "alibi", "sinusoidal")
Scores = Float[Tensor, "N N"]


class Sizes(Spec):
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
    def _pairs(self) -> "Sizes":
        if self.D % 2:
            raise ValueError(f"D = {self.D} must be even: rotary turns pairs. Nearest: {self.D - 1}, {self.D + 1}.")
        return self


def run(sizes: Sizes) -> IdentityReport:
    """Let one vector stand at every place, and see whether scores are the same along each diagonal."""
    scores = {kind: scores_of_one_word(kind, sizes) for kind in KINDS}
    spread = {kind: unevenness(scores[kind]) for kind in KINDS}
    grain = ANGLE * sizes.D**0.5
    says = "one vector at every place, scores at equal distance: furthest two"
    return IdentityReport(
        "rotary",
        IDENTITY.title,
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


def scores_of_one_word(kind: str, sizes: Sizes) -> Scores:
    """Our attention's scores where the same vector stands at every place."""
    chosen = {"rotary": Rotary(base=sizes.base), "alibi": Alibi()}.get(kind, NoPositions())
    part = filled(lambda: Attention(AttentionShape(sizes.D, causal=False, positions=chosen, bias=False)), sizes.seed)
    stream = drawn(1, 1, sizes.D, seed=sizes.seed).expand(1, sizes.N, sizes.D)
    if kind == "sinusoidal":
        stream = stream + sinusoids(sizes.N, sizes.D, sizes.base).double()
    with torch.no_grad(), in_float64(), tap(part) as records:
        part(stream)
    return records[0].scores()[0, 0]


def unevenness(scores: Scores) -> float:
    """The largest difference between two scores on one diagonal."""
    size = len(scores)
    diagonals = (scores.diagonal(offset) for offset in range(1 - size, size))
    return max(float(diagonal.max() - diagonal.min()) for diagonal in diagonals)


def moved(sizes: Sizes) -> float:
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


IDENTITY = Identity("rotary", ("relative", "rotary-score"), "Rotary scores depend on the distance only", Sizes, run)
