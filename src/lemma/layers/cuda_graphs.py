"""Capture of CUDA graphs in a process whose other threads use the GPU too."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

CAPTURING = threading.Lock()  # PyTorch captures on one stream of the process


@contextmanager
def capture(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Record the kernels launched inside into a graph; kernels and allocations of other threads do not break it."""
    with CAPTURING, torch.cuda.graph(graph, capture_error_mode="thread_local"):
        yield
