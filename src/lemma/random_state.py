"""Protection of the caller's global random state: numbers that Lemma draws must not change those that it draws."""

import random
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unchanged_random_state() -> Iterator[None]:
    """Save the random states of Python, NumPy and PyTorch, and restore them at the end of the block.

    As a decorator it also covers imports within the function: some libraries draw numbers when they are imported.
    """
    python_state = random.getstate()
    import numpy as np
    import torch

    numpy_state = np.random.get_state()  # noqa: NPY002
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
