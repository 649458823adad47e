"""Where a token stands: what is added to its embedding. Positions count from 0."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lemma.spec import Learned, NoPositions, Positions, Sinusoidal


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

    def __init__(self, context: int, width: int, base: float = 10_000.0) -> None:
        super().__init__()
        self.register_buffer("table", sinusoids(context, width, base), persistent=False)

    def forward(self, vectors: Float[Tensor, "batch time width"], start: int = 0) -> Float[Tensor, "batch time width"]:
        """Add the table's rows of positions start, start+1, …."""
        return vectors + self.table[start : start + vectors.shape[1]]


def sinusoids(context: int, width: int, base: float) -> Float[Tensor, "context width"]:
    """The table (sin pθ₁, cos pθ₁, sin pθ₂, cos pθ₂, …) with θ_i = base^(−2(i−1)/width) (Vaswani et al. 2017).

    >>> sinusoids(2, 2, 10_000.0)[1].tolist()  # sin 1, cos 1
    [0.8414710164070129, 0.5403022766113281]
    """
    places = torch.arange(context, dtype=torch.float64)[:, None]
    angles = places * base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    pairs = torch.stack([angles.sin(), angles.cos()], dim=-1)
    return pairs.flatten(1)[:, :width].to(torch.get_default_dtype())


def positions(spec: Positions, context: int, width: int) -> NoPart | LearnedPart | SinusoidalPart:
    """Build the part that a spec's `positions` names."""
    match spec:
        case NoPositions():
            return NoPart()
        case Learned():
            return LearnedPart(context, width)
        case Sinusoidal():
            return SinusoidalPart(context, width, spec.base)
