"""Seeing every call of PyTorch's fused attention, whoever makes it, without changing what it computes."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

FUSED = functional.scaled_dot_product_attention


class FusedCalls(TorchFunctionMode):
    """A context in which `around` is handed every call of `scaled_dot_product_attention` of its own thread.

    As a mode it sees every call but those that PyTorch's own functions make, such as multi-head attention's: for these
    the function itself is replaced for as long as anyone watches. Calls inside compiled code are not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self._inside = False

    def around(self, attend: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Call `attend(*args, **kwargs)` and note what there is to note."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Watch."""
        REPLACED.begin(self)
        super().__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        """Leave everything as it was."""
        super().__exit__(*failure)
        REPLACED.end(self)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function; fused attention is noted."""
        if func is FUSED and not torch.compiler.is_compiling():
            return self.once(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def once(self, attend: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Hand a call on, unless it is one that is being handed on already."""
        if self._inside:
            return attend(*args, **kwargs)
        self._inside = True
        try:
            return self.around(attend, args, kwargs)
        finally:
            self._inside = False


class Replaced(threading.local):
    """The watchers of each thread, and the function that stands in for PyTorch's while any thread has one."""

    lock, users = threading.Lock(), 0
    before: Callable[..., Tensor] = FUSED

    def __init__(self) -> None:
        self.watchers: list[FusedCalls] = []

    def begin(self, watcher: FusedCalls) -> None:
        """Let a watcher of this thread see; the first of all puts the function in its place."""
        self.watchers.append(watcher)
        with Replaced.lock:
            if not Replaced.users:
                Replaced.before = functional.scaled_dot_product_attention
                functional.scaled_dot_product_attention = _stand_in
            Replaced.users += 1

    def end(self, watcher: FusedCalls) -> None:
        """Let it go; the last of all puts back what was there before."""
        self.watchers.remove(watcher)
        with Replaced.lock:
            Replaced.users -= 1
            if not Replaced.users:
                functional.scaled_dot_product_attention = Replaced.before


REPLACED = Replaced()


def _stand_in(*args: Any, **kwargs: Any) -> Tensor:
    return _through(REPLACED.watchers, *args, **kwargs)


def _through(watchers: Sequence[FusedCalls], *args: Any, **kwargs: Any) -> Tensor:
    """Hand a call to the innermost watcher, which hands it on to the next."""
    if not watchers or torch.compiler.is_compiling():
        return Replaced.before(*args, **kwargs)
    *outer, inner = watchers
    return inner.once(partial(_through, outer), args, kwargs)
