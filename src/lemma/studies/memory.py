"""Whether what a study of costs will hold fits into memory, asked before anything is built."""

import os
from pathlib import Path

import torch

from lemma.errors import SpecError
from lemma.spec import CostSpec, HeadsStudy

FLOAT = 4  # bytes
SQUARES = 5  # T × T matrices a head while going back: scores, scaled, weights, and the gradients of two
VECTORS = 24  # vectors a token: inputs, four gates or queries, keys and values, their states and gradients
MATRICES = 16  # d × d weights of a contender, with their gradients
CONTAINER = Path("/sys/fs/cgroup/memory.max")


def check_memory(spec: CostSpec, device: str) -> None:
    """Refuse sizes that need more than the device has."""
    needed, there = bytes_needed(spec), bytes_there(device)
    if needed > there:
        sizes = f"width={spec.width}, batch={spec.batch}, lengths up to {max(spec.lengths)}"
        raise SpecError(
            f"study {spec.name}: {sizes} would need about {_gigabytes(needed)}; {device} has {_gigabytes(there)}. "
            "Take shorter lengths, or a smaller batch, width or number of heads."
        )


def bytes_needed(spec: CostSpec) -> int:
    """About what the largest race holds: Bh·T² where weights are written out, BT·d, and d² a contender.

    >>> from lemma.spec import COSTS
    >>> bytes_needed(COSTS["heads"]) < 200_000_000 < bytes_needed(COSTS["heads"].replace(lengths=[4096]))
    True
    """
    heads = isinstance(spec, HeadsStudy)
    length, contenders = max(spec.lengths), len(spec.heads) if heads else len(spec.contenders)
    squares = SQUARES * max(spec.heads) * length**2 if heads and "explicit" in spec.paths else 0
    tokens = VECTORS * length * spec.width
    return FLOAT * (spec.batch * (squares + tokens) + MATRICES * contenders * spec.width**2)


def bytes_there(device: str) -> float:
    """The memory of the GPU, or of this machine or the container it is in; without end where nobody says."""
    if device == "cuda":
        return torch.cuda.get_device_properties(0).total_memory
    if not hasattr(os, "sysconf"):
        return float("inf")
    return min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), _of_container())


def _of_container() -> float:
    try:
        return float(CONTAINER.read_text())
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return float("inf")


def _gigabytes(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB"
