"""The most memory that one step of training holds: weights, gradients, the optimizer's memory and activations."""

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lemma.training import Session, take_step


def peak_of_step(session: Session) -> int:
    """The bytes of all tensors at the fullest moment of a session's second step; the first makes the optimizer's."""
    take_step(session)
    if session.team.device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        take_step(session)
        return torch.cuda.max_memory_allocated()
    held = held_bytes(session.model) + _optimizer_bytes(session)
    with LiveBytes() as live:
        take_step(session)
    return held + live.peak


def held_bytes(module: nn.Module) -> int:
    """The bytes of a module's parameters and buffers, a shared one counted once."""
    tensors = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return sum(tensor.nbytes for tensor in tensors.values())


def _optimizer_bytes(session: Session) -> int:
    state = session.optimizer.state.values()
    return sum(value.nbytes for known in state for value in known.values() if isinstance(value, Tensor))


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that are made within it, from when they are made until nobody holds them.

    >>> with LiveBytes() as live:
    ...     for _ in range(3):
    ...         held = torch.zeros(10)  # one more is made before the one before is let go
    >>> live.peak
    80
    """

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation as it is, and note what storage it made."""
        made = func(*args, **(kwargs or {}))
        given = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in given:
                self._note(leaf.untyped_storage())
        return made

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self.live:
            return
        self.live[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._let_go, key)

    def _let_go(self, key: int) -> None:
        self.now -= self.live.pop(key, 0)
