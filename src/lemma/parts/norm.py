"""Normalisation of the residual stream."""

from typing import Literal

from torch import nn


def norm(kind: Literal["layer", "rms"], width: int, bias: bool) -> nn.Module:
    """Layer norm (Ba et al. 2016), or root-mean-square norm, which has no shift (Zhang & Sennrich 2019)."""
    return nn.LayerNorm(width, bias=bias) if kind == "layer" else nn.RMSNorm(width, eps=1e-5)
