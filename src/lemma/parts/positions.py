"""Where a token stands: what is added to its embedding, or done to its queries and keys. Positions count from 0."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lemma.spec import Alibi, Learned, NoPositions, Positions, Rotary, Sinusoidal


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
    """Turns the pairs (1, 2), (3, 4), … of a vector at position p by pθ₁, pθ₂, …: q_p·k_r depends on p − r only."""

    table: Tensor

    def __init__(self, context: int, width: int, base: float = 10_000.0, first: int = 0) -> None:
        super().__init__()
        self.width, self.base, self.first = width, base, first
        self.register_buffer("table", self._rows(0, context), persistent=False)

    def forward(
        self, vectors: Float[Tensor, "*batch time width"], start: int = 0
    ) -> Float[Tensor, "*batch time width"]:
        """Turn vectors at positions start, start+1, …, past the table's end too."""
        stop = start + vectors.shape[-2]
        rows = self.table[start:stop] if stop <= len(self.table) else self._rows(start, stop, vectors.device)
        return rotate(vectors, rows.to(vectors.dtype))

    def _rows(self, start: int, stop: int, device: torch.device | None = None) -> Float[Tensor, "time pairs two"]:
        begin = start + self.first
        return sinusoids(stop - start, self.width, self.base, begin, device).unflatten(1, (-1, 2))


def rotate(
    vectors: Float[Tensor, "*batch time width"], table: Float[Tensor, "time pairs two"]
) -> Float[Tensor, "*batch time width"]:
    """Turn each pair (a, b) by the angle whose (sine, cosine) stands in the table: (a cos − b sin, a sin + b cos).

    >>> quarter = torch.tensor([[[1.0, 0.0]]])  # the sine and cosine of 90°
    >>> rotate(torch.tensor([[2.0, 3.0]]), quarter).tolist()
    [[-3.0, 2.0]]
    """
    sine, cosine = table.unbind(-1)
    one, other = vectors.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([one * cosine - other * sine, one * sine + other * cosine], dim=-1).flatten(-2)


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

    >>> sinusoids(2, 2, 10_000.0)[1].tolist()  # sin 1, cos 1
    [0.8414710164070129, 0.5403022766113281]
    """
    places = torch.arange(first, first + context, dtype=torch.float64, device=device)[:, None]
    angles = places * base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)
    pairs = torch.stack([angles.sin(), angles.cos()], dim=-1)
    return pairs.flatten(1)[:, :width].to(torch.get_default_dtype())


def positions(spec: Positions, context: int, width: int) -> NoPart | LearnedPart | SinusoidalPart:
    """Build what a spec's `positions` adds to the embedding; rotary and ALiBi act inside attention."""
    match spec:
        case NoPositions() | Rotary() | Alibi():
            return NoPart()
        case Learned():
            return LearnedPart(context, width)
        case Sinusoidal():
            return SinusoidalPart(context, width, spec.base, spec.first)
