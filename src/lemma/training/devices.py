"""Devices of training: precision, compilation, CUDA graphs, and several processes under torchrun.

Each process reads its slice of the same global batch and has all weights (DDP), or a shard of them (FSDP2,
`shard=true`); a single process runs the same code. Only the main process, rank 0, writes files, validates and logs.
Parallelism and the recomputation of layers are added to a model from outside.
"""

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from inspect import signature
from itertools import count
from typing import Any, Literal

import torch
from torch import Tensor, distributed, nn
from torch.autograd.graph import increment_version
from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage] (documented, not listed)
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from lemma.errors import SpecError
from lemma.kernels.cuda_graphs import capture, warmup_stream
from lemma.spec.recipe import Recipe
from lemma.tasks.base import Worker

Forward = Callable[..., Any]
MISSING_KERNEL = "could not create a primitive"  # what oneDNN says
MIN_COMPILE_FLOPS = 5e15  # operations of a whole run, a minute of a fast GPU; compiling takes a quarter of that
MIN_RECORD_STEPS = 50  # steps; recording a CUDA graph takes as long as a few


@dataclass(frozen=True)
class Arithmetic:
    """Device and dtype of matrix products, and whether to compile and to replay a CUDA graph."""

    device: torch.device
    dtype: torch.dtype
    is_compiled: bool
    uses_cuda_graph: bool = False

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Run the block under autocast to `dtype`, unchanged if that is float32.

        A kernel that is missing for this dtype, such as the LSTM's on some CPUs, raises a SpecError.
        """
        if self.dtype == torch.float32:
            yield
            return
        try:
            with torch.autocast(self.device.type, self.dtype):
                yield
        except RuntimeError as error:
            if MISSING_KERNEL not in str(error):
                raise
            raise SpecError(
                "precision = 'bfloat16': PyTorch has no such arithmetic for a layer of this model on this "
                f"{self.device.type.upper()} ({str(error).partition('. ')[0]}). Use precision=float32."
            ) from None


@contextmanager
def matmul_precision(precision: Literal["high", "highest"]) -> Iterator[None]:
    """Allow TF32 in float32 matrix products ("high") or not ("highest"); restore the setting afterwards."""
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous)


@contextmanager
def training_environment(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Set threads and TF32 for training; random state, threads and precision are as before afterwards."""
    threads = torch.get_num_threads()
    tf32 = "high" if device.type == "cuda" else "highest"
    with fork_random(device), matmul_precision(tf32):
        try:
            if recipe.threads is not None:
                torch.set_num_threads(recipe.threads)
            yield
        finally:
            if recipe.threads is not None:
                torch.set_num_threads(threads)


def fork_random(device: torch.device) -> AbstractContextManager[None]:
    """Return a context manager that restores the random states of the CPU and of `device` at the end of its block."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def choose_arithmetic(recipe: Recipe, device: torch.device, compilable: bool, flops: float = math.inf) -> Arithmetic:
    """Return device, dtype, and whether to compile and to replay a CUDA graph, for a recipe.

    The setting `auto` is bfloat16 on a GPU, compiled in long runs (of `flops` in all matrix products); else neither. A
    CUDA graph is replayed wherever batches have one shape (`compilable`): it needs no compiler, and without it small
    models wait for the launches of kernels.
    """
    has_bfloat16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    is_float32 = recipe.precision == "float32" or (recipe.precision == "auto" and not has_bfloat16)
    pays = device.type == "cuda" and compilable and flops >= MIN_COMPILE_FLOPS
    compiles = pays if recipe.compile == "auto" else recipe.compile
    replays = device.type == "cuda" and compilable and recipe.accumulate == 1 and recipe.steps >= MIN_RECORD_STEPS
    return Arithmetic(device, torch.float32 if is_float32 else torch.bfloat16, compiles, replays)


def check_kernels(model: nn.Module, arithmetic: Arithmetic) -> None:
    """Run a model's recurrent layers on one token, so that a missing kernel raises an error before a run is written."""
    if arithmetic.dtype == torch.float32:
        return
    with fork_random(arithmetic.device):
        for layer in (layer for layer in model.modules() if isinstance(layer, nn.RNNBase)):
            with arithmetic.autocast():
                layer(torch.zeros(1, 1, layer.input_size, device=arithmetic.device))


def choose_device(recipe: Recipe, local_rank: int = 0) -> torch.device:
    """Return the device of a recipe; `auto` is the CPU or a GPU, of several the one with the index `local_rank`."""
    has_gpu = torch.cuda.is_available()
    if recipe.device == "cuda" and not has_gpu:
        raise SpecError("device = 'cuda': PyTorch sees no GPU here. Use device=cpu, or device=auto.")
    return torch.device("cuda", local_rank) if has_gpu and recipe.device != "cpu" else torch.device("cpu")


class GraphedTrainingStep:
    """A training step recorded as a CUDA graph, which launches all its kernels at once.

    Each replay writes the gradients to the tensors of the recording.
    """

    def __init__(
        self,
        step: Callable[[Tensor, Tensor], list[Tensor]],
        optimizer: torch.optim.Optimizer,
        inputs: Tensor,
        targets: Tensor,
    ) -> None:
        """Record a step; weights and the state of the optimizer do not change."""
        self.inputs, self.targets = inputs.clone(), targets.clone()
        self.weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        for group in optimizer.param_groups:
            group["lr"].zero_()
        with warmup_stream():
            for _ in range(2):  # to allocate the workspaces of libraries and the state of the optimizer
                optimizer.zero_grad(set_to_none=True)
                step(self.inputs, self.targets)
        optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with capture(self.graph):
            self.terms = step(self.inputs, self.targets)
        for tensor in (tensor for state in optimizer.state.values() for tensor in state.values()):
            tensor.zero_()

    def __call__(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """Take a step; return the loss, the gradient norm and other terms."""
        self.inputs.copy_(inputs)
        self.targets.copy_(targets)
        self.graph.replay()
        for weight in self.weights:  # for caches that depend on the version of the weights, such as generation's
            increment_version(weight)
        return self.terms


# Several processes

GROUP_NUMBERS = count()  # of the process groups that this process joins, one after the other
TIMEOUT = timedelta(hours=12)  # of the others while the main process validates
# buffers are constants, so they need not be sent before each forward pass; PyTorch 2.13 renamed the argument
NEW_NAME, OLD_NAME = "forward_sync_buffers", "broadcast_buffers"
DDP_PARAMETERS = signature(DistributedDataParallel.__init__).parameters
KEEP_BUFFERS: dict[str, Any] = {NEW_NAME if NEW_NAME in DDP_PARAMETERS else OLD_NAME: False}


@dataclass(frozen=True)
class Distributed(Worker):
    """One of the processes that train a model together, and the operations between them."""

    sharded: bool = False  # whether each process has a shard of weights, gradients and optimizer state
    ddp_modules: list[DistributedDataParallel] = field(default_factory=list)

    @property
    def is_main(self) -> bool:
        """True in the main process, which writes files, validates and logs."""
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return `module` wrapped to average its gradients over all processes (DDP), or with sharded tensors (FSDP2).

        FSDP2 gathers the tensors of a layer when it runs, forward and backward, and frees them afterwards.
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
        """Leave torch's process group.

        The reducers are deleted first: one that outlives the group waits for gloo's thread, which may wait for the
        interpreter lock that the reducer holds.
        """
        for module in self.ddp_modules:
            del module.logger, module.reducer
        self.ddp_modules.clear()
        distributed.destroy_process_group()

    def mean(self, tensor: Tensor) -> Tensor:
        """Return the mean of a tensor over all processes."""
        if self.size == 1:
            return tensor
        total = tensor.clone()
        distributed.all_reduce(total)
        return total / self.size

    def broadcast(self, numbers: Sequence[float]) -> list[float]:
        """Return, in every process, the numbers that the main process passes."""
        if self.size == 1:
            return list(numbers)
        received = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        distributed.broadcast(received, src=0)
        return received.tolist()

    def collect(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the full tensors by name in the main process, gathered one by one; {} in other processes.

        Tensors of a model that is not sharded are returned as they are.
        """
        if not self.sharded:
            return dict(tensors)
        from torch.distributed.tensor import DTensor

        collected: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if self.is_main:
                collected[name] = full.cpu()
        return collected

    def any(self, flag: bool) -> bool:
        """Return whether the flag is true in at least one process."""
        return bool(self.mean(torch.tensor(float(flag), device=self.device)).item()) if self.size > 1 else flag


@contextmanager
def skip_gradient_sync(module: nn.Module) -> Iterator[None]:
    """Accumulate the gradients of backward passes in the block without averaging them over the processes."""
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
    """Return a model's repeated layers: the modules in all its lists called `layers`."""
    lists = [module for name, module in model.named_modules() if name.rpartition(".")[2] == "layers"]
    return [layer for module in lists if isinstance(module, nn.ModuleList) for layer in module]


def shard_like(tensor: Tensor, other: Tensor) -> Tensor:
    """Return a full tensor on the device of `other`: only this process's shard if `other` is sharded."""
    local = tensor.to(other.device)
    if not hasattr(other, "device_mesh"):
        return local
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(other, DTensor)
    return distribute_tensor(local, other.device_mesh, other.placements, src_data_rank=None)  # all have read the file


def recompute_layers(model: nn.Module) -> None:
    """Change each layer to store only its inputs, and to run again in the backward pass (Chen et al. 2016).

    Dropout draws the same numbers again, so gradients are equal bit for bit.
    """
    from torch.utils.checkpoint import checkpoint

    def run(forward: Any, *inputs: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs, **kwargs)
        return checkpoint(forward, *inputs, use_reentrant=False, **kwargs)

    for layer in find_layers(model):
        layer.forward = partial(run, layer.forward)


def check_layers(model: nn.Module, recipe: Recipe) -> None:
    """Raise SpecError if a model cannot be sharded, or its layers cannot be recomputed, as the recipe asks."""
    settings = ["recipe.shard = true"] if recipe.shard else []
    settings += ["recipe.recompute = layers"] if recipe.recompute == "layers" else []
    if not settings:
        return
    family = getattr(getattr(model, "spec", None), "family", type(model).__name__)
    if not find_layers(model):
        raise SpecError(f"{settings[0]}: a model of the family {family} has no list of layers. Leave it out.")
    if recipe.shard and (
        getattr(model, "stateful", False) or any(not parameter.dim() for parameter in model.parameters())
    ):
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
    """Join the processes that torchrun has started, or yield a single process; leave them at the end of the block."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    device = choose_device(recipe, int(os.environ.get("LOCAL_RANK", "0")))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    sharded = recipe.shard and distributed.is_torchelastic_launched()
    if size == 1 and not sharded:
        yield Distributed(device)
        return
    store, rank, size = next(rendezvous("env://", rank, size, timeout=TIMEOUT))
    group_store = PrefixStore(f"lemma-{next(GROUP_NUMBERS)}", store)  # without the keys of an earlier group
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, store=group_store, rank=rank, world_size=size, timeout=TIMEOUT)
    processes = Distributed(device, rank, size, sharded)
    try:
        yield processes
    finally:
        processes.leave()
