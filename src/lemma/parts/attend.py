"""Scaled dot-product attention through PyTorch's fused kernel, whatever the widths, groups, mask or slopes."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from lemma.parts.tap import EARS, AttentionRecord, bias_of, spread, telling

Queries = Float[Tensor, "batch heads new width"]
Keys = Float[Tensor, "batch key_heads known width"]
Values = Float[Tensor, "batch value_heads known value_width"]
Slopes = Float[Tensor, "heads"]
Mixed = Float[Tensor, "batch heads new value_width"]


def attend(
    queries: Queries,
    keys: Keys,
    values: Values,
    scale: float,
    causal: bool,
    mask: Bool[Tensor, "..."] | None = None,
    slopes: Slopes | None = None,
    dropout: float = 0.0,
    alike: bool = False,
) -> Mixed:
    """Return Σ_j α_j v_j with α = softmax_j(scale · q·k_j − m·distance) over the keys that may be seen.

    `causal`: the last query stands beside the last key, and each sees the keys up to its own place. Fewer heads of keys
    or values than of queries serve groups of them. `slopes` are ALiBi's m, one a head. `alike` promises that all three
    have as many heads and are equally wide, which spares the looking.
    """
    if EARS.listeners:
        return _heard(queries, keys, values, scale, causal, mask, slopes, dropout)
    if alike and mask is None and slopes is None:
        new = queries.shape[2]
        if new == 1 or new == keys.shape[2]:
            return functional.scaled_dot_product_attention(
                queries, keys, values, None, dropout, causal and new > 1, scale=scale
            )
    return _fused(queries, keys, values, scale, causal, mask, slopes, dropout)


def _heard(
    queries: Queries,
    keys: Keys,
    values: Values,
    scale: float,
    causal: bool,
    mask: Tensor | None,
    slopes: Slopes | None,
    dropout: float,
) -> Mixed:
    """Attend, and tell those who listen what is attended to."""
    heads = queries.shape[1]
    bias = bias_of(mask, queries)
    with telling(AttentionRecord(queries, spread(keys, heads), spread(values, heads), scale, bias, causal, slopes)):
        return _fused(queries, keys, values, scale, causal, mask, slopes, dropout)


def _fused(
    queries: Queries,
    keys: Keys,
    values: Values,
    scale: float,
    causal: bool,
    mask: Tensor | None,
    slopes: Slopes | None,
    dropout: float,
) -> Mixed:
    new, known, width = queries.shape[-2], keys.shape[-2], values.shape[-1]
    bias: Tensor | None = mask
    if slopes is not None:
        keys, values = keys.flip(-2), values.flip(-2)
        bias = alibi_bias(slopes, new, known, causal, mask, queries.dtype)
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


def alibi_bias(
    slopes: Slopes, new: int, known: int, causal: bool, mask: Tensor | None, dtype: torch.dtype
) -> Float[Tensor, "batch heads new known"]:
    """ALiBi's −m·distance for keys in reversed order, as a view of new + known − 1 numbers a head.

    With the keys reversed, query i and key j lie i + j + 1 − new apart: all that depends on i + j alone, so the matrix
    needs no memory of its own. (CUDA's kernel makes a copy of it for itself.)

    >>> alibi_bias(torch.tensor([0.5]), 2, 2, True, None, torch.float32).tolist()  # keys 1, 0
    [[[[-inf, -0.0], [-0.0, -0.5]]]]
    """
    length = new + known - 1
    distance = torch.arange(1 - new, known, device=slopes.device)
    line = -slopes[:, None].to(dtype) * distance.abs()
    if causal:
        line = line.masked_fill(distance < 0, -torch.inf)
    bias = line.as_strided((1, len(slopes), new, known), (0, length, 1, 1))
    return bias if mask is None else bias.masked_fill(~mask.flip(-1), -torch.inf)
