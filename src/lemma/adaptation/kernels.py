"""Recurrent layers run with other weights than their own."""

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn


def run_recurrent(base: nn.RNNBase, weights: Mapping[str, Tensor], inputs: tuple[Any, ...], named: Any) -> Any:
    """Call torch.nn's recurrent layers with some of their weights replaced, for this one call.

    They hand their kernel a flat list of weights, which `functional_call` would have them gather anew, and on a GPU
    copied into one block under autograd's feet.
    """
    own = base._flat_weights
    base._flat_weights = [
        weights.get(name, weight)
        for name, weight in zip(base._flat_weights_names, own, strict=True)  # pyright: ignore[reportAttributeAccessIssue]
    ]
    try:
        with _without_advice() if own[0] is not None and own[0].is_cuda else nullcontext():
            return base(*inputs, **named)
    finally:
        base._flat_weights = own


def _without_advice() -> warnings.catch_warnings:
    """Weights that are new at every call are never in one block: cuDNN's advice to put them there is of no use."""
    return warnings.catch_warnings(action="ignore", category=UserWarning)
