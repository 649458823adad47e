"""Position encodings: added to the embedding, applied to queries and keys, or added to the scores.

There are three hooks, of which an encoding has those that it needs. Each is a module, made of the spec, the context
and a size; positions count from 0.

    adds    made for the stream's width     part(vectors, start)   vectors (batch, time, width)
    rotates made for the width of a head    part(vectors, start)   queries or keys (batch, heads, time, width)
    biases  made for the number of heads    part(distances)        distances (n) → what scores gain (heads, n)

A distance is the query's position minus the key's: the past is positive. The spec of another package's encoding names
its hooks (`NewPositions`).
"""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.errors import PackageError
from lemma.spec.positions import POSITIONS, Alibi, Learned, NewPositions, Positions, Rotary, Sinusoidal

Hook = Literal["adds", "rotates", "biases"]


class NoPart(nn.Module):
    """No positions: the embedding is left as it is."""

    def forward(self, vectors: Float[Tensor, "batch time width"], start: int = 0) -> Float[Tensor, "batch time width"]:
        """Return the vectors unchanged."""
        return vectors


class LearnedPart(nn.Module):
    """A learned vector for each position."""

    def __init__(self, context: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(context, width))

    def forward(self, vectors: Float[Tensor, "batch time width"], start: int = 0) -> Float[Tensor, "batch time width"]:
        """Add the vectors of positions start, start+1, …."""
        return vectors + self.weight[start : start + vectors.shape[1]]


class SinusoidalPart(nn.Module):
    """Sines and cosines of geometric wavelengths, fixed."""

    table: Tensor

    def __init__(self, context: int, width: int, base: float = 10_000.0, first: int = 0) -> None:
        super().__init__()
        self.register_buffer("table", sinusoids(context, width, base, first), persistent=False)

    def forward(self, vectors: Float[Tensor, "batch time width"], start: int = 0) -> Float[Tensor, "batch time width"]:
        """Add the table's rows of positions start, start+1, …."""
        return vectors + self.table[start : start + vectors.shape[1]]


class RotaryPart(nn.Module):
    """Rotates the pairs (1, 2), (3, 4), … of a vector at position p by pθ₁, pθ₂, …: q_p·k_r depends on p − r only."""

    table: Tensor

    def __init__(self, context: int, width: int, base: float = 10_000.0, first: int = 0) -> None:
        super().__init__()
        self.width, self.base, self.first = width, base, first
        self.register_buffer("table", self._rows(0, context), persistent=False)

    def forward(
        self, vectors: Float[Tensor, "*batch time width"], start: int = 0
    ) -> Float[Tensor, "*batch time width"]:
        """Rotate vectors at positions start, start+1, …, past the table's end too."""
        stop = start + vectors.shape[-2]
        rows = self.table[start:stop] if stop <= len(self.table) else self._rows(start, stop, vectors.device)
        return rotate(vectors, rows.to(vectors.dtype))

    def _rows(self, start: int, stop: int, device: torch.device | None = None) -> Float[Tensor, "time pairs two"]:
        begin = start + self.first
        return sinusoids(stop - start, self.width, self.base, begin, device).unflatten(1, (-1, 2))


def rotate(
    vectors: Float[Tensor, "*batch time width"], table: Float[Tensor, "time pairs two"]
) -> Float[Tensor, "*batch time width"]:
    """Rotate each pair (a, b) by the angle whose (sine, cosine) is in the table: (a cos − b sin, a sin + b cos).

    >>> quarter = torch.tensor([[[1.0, 0.0]]])  # the sine and cosine of 90°
    >>> rotate(torch.tensor([[2.0, 3.0]]), quarter).tolist()
    [[-3.0, 2.0]]
    """
    sine, cosine = table.unbind(-1)
    one, other = vectors.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([one * cosine - other * sine, one * sine + other * cosine], dim=-1).flatten(-2)


class AlibiPart(nn.Module):
    """Subtracts m·|distance| from every score, with a slope m for every head (Press et al. 2022)."""

    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(heads), persistent=False)

    def forward(self, distances: Int[Tensor, "distances"]) -> Float[Tensor, "heads distances"]:
        """Return −m·|distance|."""
        return -self.slopes[:, None] * distances.abs()


def alibi_slopes(heads: int) -> Float[Tensor, "heads"]:
    """ALiBi's slopes m, the geometric sequence 2^(−8/h), 2^(−16/h), …, 2^(−8) (Press et al. 2022).

    >>> alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    powers = torch.arange(1, heads + 1, dtype=torch.float64) * (-8 / heads)
    return torch.pow(2.0, powers).to(torch.get_default_dtype())


def sinusoids(
    context: int, width: int, base: float, first: int = 0, device: torch.device | None = None
) -> Float[Tensor, "context width"]:
    """The table (sin pθ₁, cos pθ₁, sin pθ₂, cos pθ₂, …) with θ_i = base^(−2(i−1)/width) (Vaswani et al. 2017).

    Its rows are those of positions `first`, `first` + 1, …: 0, 1, … here; sources that count from 1 have first = 1.

    >>> [round(number, 6) for number in sinusoids(2, 2, 10_000.0)[1].tolist()]  # sin 1, cos 1
    [0.841471, 0.540302]
    """
    places = torch.arange(first, first + context, dtype=torch.float64, device=device)[:, None]
    angles = places * base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)
    pairs = torch.stack([angles.sin(), angles.cos()], dim=-1)
    return pairs.flatten(1)[:, :width].to(torch.get_default_dtype())


def part_of(spec: Positions, hook: Hook, context: int, size: int) -> nn.Module | None:
    """Build what a kind of positions does at one of the three hooks; None if it does nothing there."""
    match hook, spec:
        case "adds", Learned():
            return LearnedPart(context, size)
        case "adds", Sinusoidal():
            return SinusoidalPart(context, size, spec.base, spec.first)
        case "rotates", Rotary():
            return RotaryPart(context, size, spec.base, spec.first)
        case "biases", Alibi():
            return AlibiPart(size)
    path = getattr(spec, hook) if isinstance(spec, NewPositions) else None
    if not isinstance(path, str):
        return None
    with POSITIONS.blaming(spec.kind, path):
        made = POSITIONS.part(spec.kind, path)(spec, context, size)
    if not isinstance(made, nn.Module):
        raise PackageError(f"positions '{spec.kind}': {path} returns a {type(made).__name__}, not an nn.Module.")
    return made


def positions(spec: Positions, context: int, width: int) -> nn.Module:
    """Build what a spec's `positions` adds to the embedding; what rotates or biases acts inside attention."""
    return part_of(spec, "adds", context, width) or NoPart()
