"""Capture of CUDA graphs in a process whose other threads use the GPU too."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

CAPTURE_LOCK = threading.Lock()  # PyTorch captures on one stream of the process


@contextmanager
def capture(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Record the CUDA kernels that are launched inside the context into `graph`; other threads do not disturb it."""
    with CAPTURE_LOCK, torch.cuda.graph(graph, capture_error_mode="thread_local"):
        yield


@contextmanager
def warmup_stream() -> Iterator[None]:
    """Launch the kernels of the context on a side stream, as PyTorch demands before a capture, then wait for them.

    All warm-ups share one stream per device, since cuBLAS keeps 32 MiB for every stream that it has seen.
    """
    current, side = torch.cuda.current_stream(), _side_stream(torch.cuda.current_device())
    side.wait_stream(current)
    with torch.cuda.stream(side):
        yield
    current.wait_stream(side)


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """Return the CUDA stream of all warm-ups on the device of this index."""
    return torch.cuda.Stream(device)
