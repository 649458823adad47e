"""Position encodings: added to the embedding, applied to queries and keys, or added to the scores.

There are three hooks, of which an encoding has those that it needs. Each is a module, built from the spec, the context
and a size; positions count from 0.

    adds    built for the hidden width       module(vectors, start)   vectors (batch, time, width)
    rotates built for the width of a head    module(vectors, start)   queries or keys (batch, heads, time, width)
    biases  built for the number of heads    module(distances)        distances (n) → biases of the scores (heads, n)

A distance is the query's position minus the key's: the past is positive. The spec of another package's encoding names
its hooks (`NewPositions`).
"""

import math
import threading
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.errors import PackageError
from lemma.spec.positions import (
    PLUGIN_POSITIONS,
    Alibi,
    Learned,
    LinearScaling,
    Llama3Scaling,
    NewPositions,
    NoScaling,
    Positions,
    Relative,
    Rotary,
    Scaling,
    Sinusoidal,
    YarnScaling,
)

Hook = Literal["adds", "rotates", "biases"]
Vectors = Float[Tensor, "*batch time width"]
StartPosition = int | Int[Tensor, " batch"]
"""The position of the first vector, or of the only vector of each row."""
INITIAL_ROWS = 1024  # of a table of rotations at first; a context may be much longer than what is ever read
GROW_LOCK = threading.Lock()  # two threads that use one model must not replace a longer table by a shorter one


def _select_rows(table: Float[Tensor, "context width"], start: StartPosition, time: int) -> Float[Tensor, "..."]:
    """Return the table's rows start, …, start + time − 1; if `start` is a tensor, the row of each of its positions."""
    is_tensor = isinstance(start, Tensor) and start.dim() > 0  # a tracer turns numbers into tensors without axes
    return table[start][:, None] if is_tensor else table.narrow(0, start, time)


class NoEmbedding(nn.Module):
    """The identity, in place of a position embedding."""

    def forward(self, vectors: Vectors, start: StartPosition = 0) -> Vectors:
        """Return the vectors unchanged."""
        return vectors


class LearnedEmbedding(nn.Module):
    """A trainable vector for each position."""

    def __init__(self, context: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(context, width))

    def forward(self, vectors: Vectors, start: StartPosition = 0) -> Vectors:
        """Return vectors plus the trained vectors of positions start, start + 1, …."""
        return vectors + _select_rows(self.weight, start, vectors.shape[1])


class SinusoidalEmbedding(nn.Module):
    """Fixed sines and cosines of geometric wavelengths."""

    table: Tensor

    def __init__(self, context: int, width: int, base: float = 10_000.0, first: int = 0) -> None:
        super().__init__()
        self.register_buffer("table", sinusoids(context, width, base, first), persistent=False)

    def forward(self, vectors: Vectors, start: StartPosition = 0) -> Vectors:
        """Return vectors plus the sines and cosines of positions start, start + 1, …."""
        return vectors + _select_rows(self.table, start, vectors.shape[1])


class RotaryEmbedding(nn.Module):
    """Rotation of pairs of a vector at position p by pθ₁, pθ₂, …, so that q_p·k_r depends on p − r only.

    Pairs are (1, 2), (3, 4), … or, in halves, (1, 1 + n), (2, 2 + n), … of the first 2n coordinates; the rest stays.
    """

    table: Tensor

    def __init__(
        self,
        context: int,
        width: int,
        base: float = 10_000.0,
        first: int = 0,
        layout: Literal["pairs", "halves"] = "pairs",
        scaling: Scaling | None = None,
        rotary_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.rotary_dim, self.base, self.first = rotary_dim or width, base, first
        self.unrotated_dim = width - self.rotary_dim
        self.halves, self.scaling = layout == "halves", scaling or NoScaling()
        self.register_buffer("table", self._compute_rows(0, min(context, INITIAL_ROWS)), persistent=False)

    def forward(self, vectors: Vectors, start: StartPosition = 0) -> Vectors:
        """Return queries or keys rotated by the angles of positions start, start + 1, …, or of a position per row.

        The table grows as needed, except in compiled code, which computes missing rows each time. A tensor `start` must
        be within the table: `ensure_length` makes it long enough.
        """
        if isinstance(start, Tensor):
            rows = self.table[start][:, None, None]
        elif vectors.dtype == torch.float64:  # a table of single precision would shift scores with the position
            rows = self._compute_rows(start, start + vectors.shape[-2], vectors.device, torch.float64)
        else:
            stop = start + vectors.shape[-2]
            if stop > len(self.table) and torch.compiler.is_compiling():
                rows = self._compute_rows(start, stop, vectors.device)
            else:
                if stop > len(self.table):
                    self.ensure_length(2 * stop)
                rows = self.table[start:stop]
        rotate_vectors = rotate_halves if self.halves else rotate
        if not self.unrotated_dim:
            return rotate_vectors(vectors, rows.to(vectors.dtype))
        rotary_part, rest = vectors.split((self.rotary_dim, self.unrotated_dim), dim=-1)
        return torch.cat([rotate_vectors(rotary_part, rows.to(vectors.dtype)), rest], dim=-1)

    def ensure_length(self, length: int) -> None:
        """Extend the table of sines and cosines to at least `length` positions."""
        if len(self.table) >= length:
            return
        with GROW_LOCK, torch.inference_mode(False):  # a tensor of inference mode could not be trained with later
            if len(self.table) < length:
                self.table = self._compute_rows(0, length, self.table.device).to(self.table.dtype)

    def _compute_rows(
        self, start: int, stop: int, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Float[Tensor, "time ..."]:
        """Return the sines and cosines of positions `start` … `stop` − 1, in the layout that `forward` needs."""
        frequencies, factor = rotary_frequencies(self.rotary_dim, self.base, self.scaling, device)
        first = start + self.first
        positions = torch.arange(first, first + stop - start, dtype=torch.float64, device=device)[:, None]
        sine, cosine = (positions * frequencies).sin() * factor, (positions * frequencies).cos() * factor
        if self.halves:
            rows = torch.stack([torch.cat([-sine, sine], -1), torch.cat([cosine, cosine], -1)], dim=1)
        else:
            rows = torch.stack([sine, cosine], dim=-1)
        return rows.to(dtype or torch.get_default_dtype())


def rotary_frequencies(
    width: int, base: float, scaling: Scaling, device: torch.device | None = None
) -> tuple[Float[Tensor, " pairs"], float]:
    """Return the angle per position of each pair, θ_i = base^(−2(i−1)/width) with scaling, and a factor for vectors.

    >>> from lemma.spec.positions import LinearScaling
    >>> rotary_frequencies(4, 10_000.0, LinearScaling(factor=2))[0].tolist()
    [0.5, 0.005]
    """
    numbers = torch.arange(0, width, 2, dtype=torch.float64, device=device)
    frequencies = base ** (-numbers / width)
    match scaling:
        case LinearScaling():
            return frequencies / scaling.factor, 1.0
        case Llama3Scaling():
            turns = scaling.original_context * frequencies / (2 * math.pi)
            unscaled = ((turns - scaling.slow) / (scaling.fast - scaling.slow)).clamp(0, 1)
            return frequencies * (unscaled + (1 - unscaled) / scaling.factor), 1.0
        case YarnScaling():
            # Index of the pair that turns this often within the original context.
            low, high = (
                width * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(base))
                for turns in (scaling.fast, scaling.slow)
            )
            if scaling.whole_pairs:
                low, high = math.floor(low), math.ceil(high)
            low, high = max(low, 0), min(high, width - 1)
            high = high + 0.001 if low == high else high
            slowed = ((numbers / 2 - low) / (high - low)).clamp(0, 1)
            grown = 0.1 * math.log(scaling.factor) + 1.0
            return frequencies * (1 - slowed + slowed / scaling.factor), scaling.attention_factor or grown
    return frequencies, 1.0


def rotate(vectors: Vectors, table: Float[Tensor, "time pairs two"]) -> Vectors:
    """Return vectors with each adjacent pair (a, b) rotated to (a cos − b sin, a sin + b cos).

    The table has (sine, cosine).

    >>> quarter = torch.tensor([[[1.0, 0.0]]])  # the sine and cosine of 90°
    >>> rotate(torch.tensor([[2.0, 3.0]]), quarter).tolist()
    [[-3.0, 2.0]]
    """
    sine, cosine = table.unbind(-1)
    first, second = vectors.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([first * cosine - second * sine, first * sine + second * cosine], dim=-1).flatten(-2)


def rotate_halves(vectors: Vectors, table: Float[Tensor, "time two width"]) -> Vectors:
    """Rotate each pair (a, b), where b comes half the width after a; the table has (−sine, sine) and (cosine, cosine).

    >>> quarter = torch.tensor([[[-1.0, 1.0], [0.0, 0.0]]])  # sines and cosines of 90°
    >>> rotate_halves(torch.tensor([[2.0, 3.0]]), quarter).tolist()
    [[-3.0, 2.0]]
    """
    sine, cosine = table.unbind(-2)
    first, second = vectors.chunk(2, -1)
    return torch.addcmul(vectors * cosine, torch.cat([second, first], -1), sine)


class AlibiBias(nn.Module):
    """A bias of −m·|distance| on every score, with a slope m for every head (Press et al. 2022)."""

    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(heads), persistent=False)

    def forward(self, distances: Int[Tensor, " distances"]) -> Float[Tensor, "heads distances"]:
        """Return −m·|distance| for every head and distance, with the head's slope m."""
        return -self.slopes[:, None] * distances.abs()


def alibi_slopes(heads: int) -> Float[Tensor, " heads"]:
    """Return ALiBi's slopes m, the geometric sequence 2^(−8/h), 2^(−16/h), …, 2^(−8) (Press et al. 2022).

    >>> alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    powers = torch.arange(1, heads + 1, dtype=torch.float64) * (-8 / heads)
    return torch.pow(2.0, powers).to(torch.get_default_dtype())


class RelativeBias(nn.Module):
    """A trainable bias for each head and bucket of distances (Raffel et al. 2020)."""

    def __init__(self, heads: int, buckets: int, max_distance: int, causal: bool) -> None:
        super().__init__()
        self.buckets, self.max_distance, self.causal = buckets, max_distance, causal
        self.weight = nn.Parameter(torch.zeros(buckets, heads))

    def forward(self, distances: Int[Tensor, " distances"]) -> Float[Tensor, "heads distances"]:
        """Return every head's trained bias of the bucket of each distance."""
        return self.weight[relative_buckets(distances, self.buckets, self.max_distance, self.causal)].T


def relative_buckets(
    distances: Int[Tensor, " distances"], buckets: int, max_distance: int, causal: bool
) -> Int[Tensor, " distances"]:
    """Return the bucket index of each distance: one bucket per small distance, then logarithmic (Raffel et al. 2020).

    Args:
        distances: query position − key position.
        buckets: number of buckets; half are for negative distances unless `causal`.
        max_distance: distance from which all are in the last bucket.

    >>> relative_buckets(torch.tensor([-1, 0, 1, 2, 3, 5, 7, 100]), 8, 16, causal=True).tolist()
    [0, 0, 1, 2, 3, 4, 5, 7]
    """
    offset = torch.zeros_like(distances)
    if causal:
        distances = distances.clamp(min=0)
    else:
        buckets = buckets // 2
        offset, distances = (distances < 0).long() * buckets, distances.abs()
    exact = buckets // 2
    # In float32, as T5's weights were trained: at the edges of buckets rounding decides.
    steps = torch.log(distances.clamp(min=1).float() / exact) / math.log(max_distance / exact) * (buckets - exact)
    large = (exact + steps.long()).clamp(max=buckets - 1)
    return offset + torch.where(distances < exact, distances, large)


def sinusoids(context: int, width: int, base: float, first: int = 0) -> Float[Tensor, "context width"]:
    """Return the table (sin pθ₁, cos pθ₁, sin pθ₂, cos pθ₂, …) with θ_i = base^(−2(i−1)/width) (Vaswani et al. 2017).

    Its rows are those of positions `first`, `first` + 1, …: 0, 1, … here; sources that count from 1 have first = 1.

    >>> [round(number, 6) for number in sinusoids(2, 2, 10_000.0)[1].tolist()]  # sin 1, cos 1
    [0.841471, 0.540302]
    """
    positions = torch.arange(first, first + context, dtype=torch.float64)[:, None]
    angles = positions * base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    pairs = torch.stack([angles.sin(), angles.cos()], dim=-1)
    return pairs.flatten(1)[:, :width].to(torch.get_default_dtype())


def build_hook(spec: Positions, hook: Hook, context: int, size: int, causal: bool = True) -> nn.Module | None:
    """Return a new module with which positions of this spec act at one point of a model; None if they do not act there.

    Args:
        hook: the point: "adds" (to embeddings), "rotates" (queries and keys) or "biases" (attention scores).
        context: number of positions.
        size: width of the vectors, or number of heads for a bias.
    """
    match hook, spec:
        case "adds", Learned():
            return LearnedEmbedding(context, size)
        case "adds", Sinusoidal():
            return SinusoidalEmbedding(context, size, spec.base, spec.first)
        case "rotates", Rotary():
            return RotaryEmbedding(
                context, size, spec.base, spec.first, spec.layout, spec.scaling, rotary_dim=spec.rotary_dim(size)
            )
        case "biases", Alibi():
            return AlibiBias(size)
        case "biases", Relative():
            return RelativeBias(size, spec.buckets, spec.farthest, causal)
    path = getattr(spec, hook) if isinstance(spec, NewPositions) else None
    if not isinstance(path, str):
        return None
    with PLUGIN_POSITIONS.attribute_errors(spec.kind, path):
        module = PLUGIN_POSITIONS.load_part(spec.kind, path)(spec, context, size)
    if not isinstance(module, nn.Module):
        raise PackageError(f"positions '{spec.kind}': {path} returns a {type(module).__name__}, not an nn.Module.")
    return module


def build_positions(spec: Positions, context: int, width: int) -> nn.Module:
    """Return a new module that adds a spec's position embeddings to token embeddings; the identity if it has none."""
    return build_hook(spec, "adds", context, width) or NoEmbedding()
