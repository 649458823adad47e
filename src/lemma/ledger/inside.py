"""Where in a module something happens: forward by hooks, backward by the numbers autograd gives its nodes."""

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class Whereabouts:
    """Follows the path of the module that is at work."""

    def __init__(self) -> None:
        self.stack: list[str] = []
        self._begins: list[int] = []
        self._paths: list[str] = []

    @property
    def now(self) -> str:
        """The path at work, in forward or in backward."""
        node = torch._C._current_autograd_node()
        if node is None:
            return self.stack[-1] if self.stack else ""
        at = bisect_right(self._begins, node._sequence_nr()) - 1  # pyright: ignore[reportAttributeAccessIssue]
        return self._paths[at] if at >= 0 else ""

    def enter(self, path: str) -> None:
        """Note that a module begins."""
        self.stack.append(path)
        self._note()

    def leave(self) -> None:
        """Note that it ends."""
        self.stack.pop()
        self._note()

    def _note(self) -> None:
        number = torch.autograd._get_sequence_nr()  # pyright: ignore[reportPrivateImportUsage]
        self._begins.append(number)
        self._paths.append(self.stack[-1] if self.stack else "")


@contextmanager
def followed(module: nn.Module) -> Iterator[Whereabouts]:
    """Follow a module and all its parts."""
    where, handles = Whereabouts(), []

    def leave(*given: Any) -> None:
        where.leave()

    for path, part in module.named_modules():
        handles.append(part.register_forward_pre_hook(lambda *given, path=path: where.enter(path)))
        handles.append(part.register_forward_hook(leave, always_call=True))
    try:
        yield where
    finally:
        for handle in handles:
            handle.remove()
