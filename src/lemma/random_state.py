"""The global random state of a program that calls Lemma: what Lemma draws must not change what the program draws."""

import random
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unchanged_random_state() -> Iterator[None]:
    """Restore the random states of Python, NumPy and PyTorch on leaving.

    As a decorator it covers imports within the function, too: some libraries draw numbers when they are imported.
    """
    python = random.getstate()
    import numpy as np
    import torch

    numpy = np.random.get_state()  # noqa: NPY002
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
