"""Scaled dot-product attention through PyTorch's fused kernel, whatever the widths, groups, mask or positions."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from lemma.parts.tap import EARS, AttentionRecord, bias_of, spread, telling

Queries = Float[Tensor, "batch heads new width"]
Keys = Float[Tensor, "batch key_heads known width"]
Values = Float[Tensor, "batch value_heads known value_width"]
Line = Float[Tensor, "heads distances"]
"""What is added to the scores of each head at the distances 1 − new … known − 1, of new queries and known keys."""
Mixed = Float[Tensor, "batch heads new value_width"]


def attend(
    queries: Queries,
    keys: Keys,
    values: Values,
    scale: float,
    causal: bool,
    mask: Bool[Tensor, "..."] | None = None,
    line: Line | None = None,
    dropout: float = 0.0,
    alike: bool = False,
) -> Mixed:
    """Return Σ_j α_j v_j with α = softmax_j(scale · q·k_j + line[distance]) over the keys that may be seen.

    `causal`: the last query stands beside the last key, and each sees the keys up to its own place. Fewer heads of keys
    or values than of queries serve groups of them. `line` is what positions add. `alike` promises that all three have
    as many heads and are equally wide, which spares the looking.
    """
    if EARS.listeners:
        return _heard(queries, keys, values, scale, causal, mask, line, dropout)
    if alike and mask is None and line is None:
        new = queries.shape[2]
        if new == 1 or new == keys.shape[2]:
            return functional.scaled_dot_product_attention(
                queries, keys, values, None, dropout, causal and new > 1, scale=scale
            )
    return _fused(queries, keys, values, scale, causal, mask, line, dropout)


def _heard(
    queries: Queries,
    keys: Keys,
    values: Values,
    scale: float,
    causal: bool,
    mask: Tensor | None,
    line: Line | None,
    dropout: float,
) -> Mixed:
    """Attend, and tell those who listen what is attended to."""
    heads = queries.shape[1]
    bias = bias_of(mask, queries)
    with telling(AttentionRecord(queries, spread(keys, heads), spread(values, heads), scale, bias, causal, line)):
        return _fused(queries, keys, values, scale, causal, mask, line, dropout)


def _fused(
    queries: Queries,
    keys: Keys,
    values: Values,
    scale: float,
    causal: bool,
    mask: Tensor | None,
    line: Line | None,
    dropout: float,
) -> Mixed:
    new, known, width = queries.shape[-2], keys.shape[-2], values.shape[-1]
    bias: Tensor | None = mask
    if line is not None:
        keys, values = keys.flip(-2), values.flip(-2)
        bias = distance_bias(line, new, known, causal, mask, queries.dtype)
    elif causal and (mask is not None or 1 < new < known):
        order = torch.ones(new, known, dtype=torch.bool, device=keys.device).tril(known - new)
        bias = order if mask is None else mask & order
    alone = causal and bias is None and new == known
    if keys.shape[-1] != width:
        queries, keys, values = _widened(queries, keys, values)
    if keys.shape[1] != values.shape[1]:
        keys, values = (spread(tensor, queries.shape[1]) for tensor in (keys, values))
    mixed = functional.scaled_dot_product_attention(
        queries, keys, values, bias, dropout, alone, scale=scale, enable_gqa=keys.shape[1] != queries.shape[1]
    )
    return mixed if mixed.shape[-1] == width else mixed[..., :width]


def _widened(*tensors: Tensor) -> list[Tensor]:
    """Bring all to one width with zeros, which change neither a score nor a mean: the fused kernel knows one width."""
    width = max(tensor.shape[-1] for tensor in tensors)
    return [functional.pad(tensor, (0, width - tensor.shape[-1])) for tensor in tensors]


def distance_bias(
    line: Line, new: int, known: int, causal: bool, mask: Tensor | None, dtype: torch.dtype
) -> Float[Tensor, "batch heads new known"]:
    """What a line adds to the scores of keys in reversed order, as a view of its new + known − 1 numbers a head.

    With the keys reversed, query i and key j lie i + j + 1 − new apart: all that depends on i + j alone, so the matrix
    needs no memory of its own. (CUDA's kernel makes a copy of it for itself.)

    >>> line = -0.5 * torch.tensor([[1.0, 0.0, 1.0]])  # ALiBi's, at the distances −1, 0 and 1
    >>> distance_bias(line, 2, 2, True, None, torch.float32).tolist()  # keys 1, 0
    [[[[-inf, -0.0], [-0.0, -0.5]]]]
    """
    line = line.to(dtype)
    if causal:
        line = line.masked_fill(distances_of(new, known, line.device) < 0, -torch.inf)
    bias = line.contiguous().as_strided((1, len(line), new, known), (0, line.shape[1], 1, 1))
    return bias if mask is None else bias.masked_fill(~mask.flip(-1), -torch.inf)


def distances_of(new: int, known: int, device: torch.device) -> Int[Tensor, "distances"]:
    """How far keys can lie before queries, the last of which stands beside the last key: 1 − new … known − 1."""
    return torch.arange(1 - new, known, device=device)
