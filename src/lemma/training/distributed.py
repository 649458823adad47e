"""Data-parallel training under torchrun: every process takes its slice of the same global batch.

One process is a team of one, and the same code runs. Only the leader, rank 0, writes files, validates and talks.
Nothing but tensors passes between processes.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from inspect import signature
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage] (documented, not listed)
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from lemma.errors import SpecError
from lemma.spec.recipe import Recipe
from lemma.training.precision import choose_device

MEETINGS = count()  # the teams that this process has been in, one after the other
PATIENCE = timedelta(hours=12)  # how long the others wait while the leader validates
# buffers are constants here, so there is nothing to send before each forward pass; PyTorch 2.13 renamed the switch
NEW_NAME, OLD_NAME = "forward_sync_buffers", "broadcast_buffers"
KNOWN = signature(DistributedDataParallel.__init__).parameters
BUFFERS_STAY: dict[str, Any] = {NEW_NAME if NEW_NAME in KNOWN else OLD_NAME: False}


@dataclass(frozen=True)
class Team:
    """The processes that train one model together, seen from one of them."""

    device: torch.device
    rank: int = 0
    size: int = 1
    wrapped: list[DistributedDataParallel] = field(default_factory=list)

    @property
    def leads(self) -> bool:
        """Whether this process is the leader."""
        return self.rank == 0

    def send(self, numbers: np.ndarray) -> Tensor:
        """Bring numbers to this process's device, without waiting for them."""
        tensor = torch.from_numpy(numbers)
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def share(self, batch: int) -> slice:
        """The rows of the global batch that this process takes."""
        own = batch // self.size
        return slice(self.rank * own, (self.rank + 1) * own)

    def wrap(self, module: nn.Module) -> nn.Module:
        """Let a module average its gradients over the team."""
        if self.size == 1:
            return module
        self.wrapped.append(DistributedDataParallel(module, gradient_as_bucket_view=True, **BUFFERS_STAY))
        return self.wrapped[-1]

    def part(self) -> None:
        """Leave the team for good.

        The reducers go first, while Python still holds the group: a reducer that outlives it waits for gloo's thread to
        end, and that thread may be waiting for the interpreter that the reducer holds.
        """
        for module in self.wrapped:
            del module.logger, module.reducer
        self.wrapped.clear()
        distributed.destroy_process_group()

    def mean(self, tensor: Tensor) -> Tensor:
        """Average a tensor over the team."""
        if self.size == 1:
            return tensor
        total = tensor.clone()
        distributed.all_reduce(total)
        return total / self.size

    def gather(self, tensor: Tensor) -> Tensor:
        """Join the team's tensors along their first dimension, in the order of ranks."""
        if self.size == 1:
            return tensor
        own = tensor.to(self.device).contiguous()
        every = [torch.empty_like(own) for _ in range(self.size)]
        distributed.all_gather(every, own)
        return torch.cat(every).to(tensor.device)

    def hear(self, numbers: Sequence[float]) -> list[float]:
        """Return the leader's numbers to everyone."""
        if self.size == 1:
            return list(numbers)
        heard = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        distributed.broadcast(heard, src=0)
        return heard.tolist()

    def agree(self, wish: bool) -> bool:
        """Whether any process of the team has a wish."""
        return bool(self.mean(torch.tensor(float(wish), device=self.device)).item()) if self.size > 1 else wish


def delay_sharing(module: nn.Module) -> AbstractContextManager[None]:
    """Let gradients add up before the team averages them."""
    return module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()


def refuse_uneven(recipe: Recipe, team: Team) -> None:
    """Refuse a batch that cannot be cut into equal parts for every process."""
    cuts = team.size * recipe.accumulate
    if recipe.batch % cuts:
        nearest = max(1, round(recipe.batch / cuts)) * cuts
        raise SpecError(
            f"recipe.batch = {recipe.batch} cannot be cut into equal parts for {team.size} processes × "
            f"accumulate {recipe.accumulate}. Nearest batch: {nearest}."
        )


@contextmanager
def teamwork(recipe: Recipe) -> Iterator[Team]:
    """Join the team that torchrun has started, if it has, and leave it at the end whatever happens."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    device = choose_device(recipe, int(os.environ.get("LOCAL_RANK", "0")))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if size == 1:
        yield Team(device)
        return
    store, rank, size = next(rendezvous("env://", rank, size, timeout=PATIENCE))
    own_store = PrefixStore(f"lemma-{next(MEETINGS)}", store)  # not what an earlier team has left there
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, store=own_store, rank=rank, world_size=size, timeout=PATIENCE)
    team = Team(device, rank, size)
    try:
        yield team
    finally:
        team.part()
