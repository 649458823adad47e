"""Data-parallel training under torchrun: every process takes its slice of the same global batch.

One process runs the same code. Only the first, rank 0, writes files, validates and talks. Nothing but tensors passes
between processes.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from inspect import signature
from itertools import count
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage] (documented, not listed)
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from lemma.spec.recipe import Recipe
from lemma.tasks.base import Worker
from lemma.training.precision import choose_device

GROUPS = count()  # the process groups that this process has been in, one after the other
PATIENCE = timedelta(hours=12)  # how long the others wait while the first process validates
# buffers are constants here, so there is nothing to send before each forward pass; PyTorch 2.13 renamed the switch
NEW_NAME, OLD_NAME = "forward_sync_buffers", "broadcast_buffers"
KNOWN = signature(DistributedDataParallel.__init__).parameters
BUFFERS_STAY: dict[str, Any] = {NEW_NAME if NEW_NAME in KNOWN else OLD_NAME: False}


@dataclass(frozen=True)
class Distributed(Worker):
    """The processes that train one model together, seen from one of them."""

    wrapped: list[DistributedDataParallel] = field(default_factory=list)

    @property
    def leads(self) -> bool:
        """Whether this is the first process, which writes files, validates and talks."""
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """Let a module average its gradients over all processes."""
        if self.size == 1:
            return module
        self.wrapped.append(DistributedDataParallel(module, gradient_as_bucket_view=True, **BUFFERS_STAY))
        return self.wrapped[-1]

    def leave(self) -> None:
        """Leave the process group for good.

        The reducers go first, while Python still holds the group: a reducer that outlives it waits for gloo's thread to
        end, and that thread may be waiting for the interpreter that the reducer holds.
        """
        for module in self.wrapped:
            del module.logger, module.reducer
        self.wrapped.clear()
        distributed.destroy_process_group()

    def mean(self, tensor: Tensor) -> Tensor:
        """Average a tensor over all processes."""
        if self.size == 1:
            return tensor
        total = tensor.clone()
        distributed.all_reduce(total)
        return total / self.size

    def broadcast(self, numbers: Sequence[float]) -> list[float]:
        """Return the first process's numbers to every process."""
        if self.size == 1:
            return list(numbers)
        heard = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        distributed.broadcast(heard, src=0)
        return heard.tolist()

    def any(self, wish: bool) -> bool:
        """Whether it is true in any process."""
        return bool(self.mean(torch.tensor(float(wish), device=self.device)).item()) if self.size > 1 else wish


def without_sync(module: nn.Module) -> AbstractContextManager[None]:
    """Let gradients add up before they are averaged over the processes."""
    return module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()


@contextmanager
def joined(recipe: Recipe) -> Iterator[Distributed]:
    """Join the processes that torchrun has started, if it has, and leave them at the end whatever happens."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    device = choose_device(recipe, int(os.environ.get("LOCAL_RANK", "0")))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if size == 1:
        yield Distributed(device)
        return
    store, rank, size = next(rendezvous("env://", rank, size, timeout=PATIENCE))
    own_store = PrefixStore(f"lemma-{next(GROUPS)}", store)  # not what an earlier group has left there
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, store=own_store, rank=rank, world_size=size, timeout=PATIENCE)
    processes = Distributed(device, rank, size)
    try:
        yield processes
    finally:
        processes.leave()
