"""Memory that is freed and asked for again at every step stays with the process while a model is trained on a CPU.

The C library else gives it back to the system after each step and takes it anew, page by page, at the next: of a small
Transformer's step that was a seventh.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # mallopt's names for the two settings, in glibc's malloc.h
KEPT = {TRIM_THRESHOLD: 1 << 30, MMAP_THRESHOLD: 32 << 20}  # bytes; more than 32 MB a block glibc refuses
USUAL = {TRIM_THRESHOLD: 128 << 10, MMAP_THRESHOLD: 128 << 10}


@contextmanager
def steady_heap(device: torch.device) -> Iterator[None]:
    """Keep up to a gigabyte of freed memory; where the C library is not glibc, do nothing."""
    if device.type != "cpu" or not sys.platform.startswith("linux"):
        yield
        return
    _set(KEPT)
    try:
        yield
    finally:
        _set(USUAL)


def _set(options: dict[int, int]) -> None:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return
    for name, value in options.items():
        mallopt(name, value)
