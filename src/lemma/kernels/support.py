"""Devices on which the kernels run, and the record of their costs where they do not."""

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor

TRITON = find_spec("triton") is not None  # CPU builds of PyTorch come without it
COST_RECORDER: Callable[[int, int], None] | None = None
"""Called with the FLOPs and bytes of a kernel while a CPU simulates a GPU to plan a training step; otherwise None."""


def is_available(device: torch.device) -> bool:
    """Return whether the Triton kernels run on a device: compute capability 8.0 or later, and Triton installed."""
    return TRITON and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def autocast_dtype(tensor: Tensor) -> torch.dtype:
    """Return autocast's dtype of matrix products on a tensor's device, or the tensor's own dtype if autocast is off."""
    kind = "cuda" if tensor.is_cuda else "cpu"
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensor.dtype
