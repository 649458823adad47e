"""Training by several processes under torchrun: every one takes its slice of the same global batch.

Each has all weights (DDP), or a share of them (FSDP2, `shard=true`). One process runs the same code. Only the first,
rank 0, writes files, validates and talks. Nothing but tensors passes between processes. All this is done to a model
from outside, and so is the recomputation of its layers.
"""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from inspect import signature
from itertools import count
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage] (documented, not listed)
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from lemma.errors import SpecError
from lemma.spec.recipe import Recipe
from lemma.tasks.base import Worker
from lemma.training.precision import choose_device

GROUP_NUMBERS = count()  # the process groups that this process has been in, one after the other
TIMEOUT = timedelta(hours=12)  # how long the others wait while the first process validates
# buffers are constants here, so there is nothing to send before each forward pass; PyTorch 2.13 renamed the switch
NEW_NAME, OLD_NAME = "forward_sync_buffers", "broadcast_buffers"
DDP_PARAMETERS = signature(DistributedDataParallel.__init__).parameters
KEEP_BUFFERS: dict[str, Any] = {NEW_NAME if NEW_NAME in DDP_PARAMETERS else OLD_NAME: False}


@dataclass(frozen=True)
class Distributed(Worker):
    """The processes that train one model together, seen from one of them."""

    sharded: bool = False
    """Whether each process holds a share of the weights, the gradients and the optimizer's state."""
    ddp_modules: list[DistributedDataParallel] = field(default_factory=list)

    @property
    def is_main(self) -> bool:
        """Whether this is the first process, which writes files, validates and talks."""
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """Let a module average its gradients over all processes; if sharded, each keeps a share of every tensor.

        FSDP2: a layer's tensors are gathered when it runs, forwards and backwards, and dropped afterwards.
        """
        if self.sharded:
            from torch.distributed.device_mesh import init_device_mesh  # these take long to import
            from torch.distributed.fsdp import fully_shard

            # the keys and values that a layer returns are views, and nothing changes them in place
            warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
            mesh = init_device_mesh(self.device.type, (self.size,))
            for layer in find_layers(module):
                fully_shard(layer, mesh=mesh)
            fully_shard(module, mesh=mesh)
            return module
        if self.size == 1:
            return module
        self.ddp_modules.append(DistributedDataParallel(module, gradient_as_bucket_view=True, **KEEP_BUFFERS))
        return self.ddp_modules[-1]

    def leave(self) -> None:
        """Leave the process group for good.

        The reducers go first, while Python still holds the group: a reducer that outlives it waits for gloo's thread to
        end, and that thread may be waiting for the interpreter that the reducer holds.
        """
        for module in self.ddp_modules:
            del module.logger, module.reducer
        self.ddp_modules.clear()
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

    def collect(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors, one after the other, in the first process's main memory; the others take part, and get none.

        Tensors that are not sharded stay where they are.
        """
        if not self.sharded:
            return dict(tensors)
        from torch.distributed.tensor import DTensor

        found: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if self.is_main:
                found[name] = whole.cpu()
        return found

    def any(self, flag: bool) -> bool:
        """Whether it is true in any process."""
        return bool(self.mean(torch.tensor(float(flag), device=self.device)).item()) if self.size > 1 else flag


@contextmanager
def skip_gradient_sync(module: nn.Module) -> Iterator[None]:
    """Let gradients add up before they are averaged over the processes."""
    if isinstance(module, DistributedDataParallel):
        with module.no_sync():
            yield
        return
    synchronise = getattr(module, "set_requires_gradient_sync", None)  # of FSDP2
    if synchronise:
        synchronise(False)
    try:
        yield
    finally:
        if synchronise:
            synchronise(True)


def find_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of a model, wherever in it: what its lists called `layers` hold."""
    lists = [part for name, part in model.named_modules() if name.rpartition(".")[2] == "layers"]
    return [layer for part in lists if isinstance(part, nn.ModuleList) for layer in part]


def shard_like(tensor: Tensor, other: Tensor) -> Tensor:
    """This process's share of a whole tensor, if another one is sharded; else the tensor itself, on its device."""
    here = tensor.to(other.device)
    if not hasattr(other, "device_mesh"):
        return here
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(other, DTensor)
    return distribute_tensor(here, other.device_mesh, other.placements, src_data_rank=None)  # all have read the file


def recompute_layers(model: nn.Module) -> None:
    """Let each layer keep its inputs only, and run again when its gradients are needed (Chen et al. 2016).

    Dropout draws the same numbers again, so that gradients are the same bit for bit.
    """
    from torch.utils.checkpoint import checkpoint

    def run(forward: Any, *inputs: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs, **named)
        return checkpoint(forward, *inputs, use_reentrant=False, **named)

    for layer in find_layers(model):
        layer.forward = partial(run, layer.forward)


def check_layers(model: nn.Module, recipe: Recipe) -> None:
    """Refuse to shard a model, or to recompute its layers, where that is not possible."""
    asked = [f"recipe.{name} = {value}" for name, value in (("shard", "true"), ("recompute", "layers"))]
    asked = [said for said, does in zip(asked, (recipe.shard, recipe.recompute == "layers"), strict=True) if does]
    if not asked:
        return
    family = getattr(getattr(model, "spec", None), "family", type(model).__name__)
    if not find_layers(model):
        raise SpecError(f"{asked[0]}: a model of the family {family} has no list of layers. Leave it out.")
    if recipe.shard and (getattr(model, "stateful", False) or any(not one.dim() for one in model.parameters())):
        raise SpecError(
            f"recipe.shard = true: a model of the family {family} cannot be sharded. Leave it out: each process then "
            "has all weights."
        )
    if recipe.shard and recipe.compile is True:
        raise SpecError("recipe.compile = true: sharded layers are not compiled. Leave compile or shard out.")
    if recipe.shard and recipe.optimizer.kind == "muon":
        raise SpecError(
            "recipe.optimizer = muon needs whole matrices, and shard=true cuts them. Leave one of them out."
        )


@contextmanager
def join_processes(recipe: Recipe) -> Iterator[Distributed]:
    """Join the processes that torchrun has started, if it has, and leave them at the end whatever happens."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    device = choose_device(recipe, int(os.environ.get("LOCAL_RANK", "0")))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    sharded = recipe.shard and distributed.is_torchelastic_launched()
    if size == 1 and not sharded:
        yield Distributed(device)
        return
    store, rank, size = next(rendezvous("env://", rank, size, timeout=TIMEOUT))
    own_store = PrefixStore(f"lemma-{next(GROUP_NUMBERS)}", store)  # not what an earlier group has left there
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, store=own_store, rank=rank, world_size=size, timeout=TIMEOUT)
    processes = Distributed(device, rank, size, sharded)
    try:
        yield processes
    finally:
        processes.leave()
