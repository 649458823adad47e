"""Device, precision, compilation and CUDA graphs of training."""

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from lemma.errors import SpecError
from lemma.files import home_folder
from lemma.kernels.cuda_graphs import capture, warmup_stream
from lemma.spec.recipe import Recipe

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

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context of the forward pass."""
        return contextlib.nullcontext() if self.dtype == torch.float32 else self._autocast()

    @contextmanager
    def _autocast(self) -> Iterator[None]:
        """Autocast, and explain a missing kernel, such as the LSTM's on some CPUs, which only shows when it runs."""
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
    """Return a context that restores the random states of the CPU and of `device`."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def choose_arithmetic(recipe: Recipe, device: torch.device, compilable: bool, flops: float = math.inf) -> Arithmetic:
    """Resolve `auto` in a recipe: on a GPU bfloat16, and a compiled model in long runs; elsewhere neither.

    A CUDA graph is replayed wherever batches have one shape: it needs no compiler, and without it small models wait for
    the launches of kernels. `flops` are those of all matrix products of the run.
    """
    has_bfloat16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    is_float32 = recipe.precision == "float32" or (recipe.precision == "auto" and not has_bfloat16)
    pays = device.type == "cuda" and compilable and flops >= MIN_COMPILE_FLOPS
    compiles = pays if recipe.compile == "auto" else recipe.compile
    replays = device.type == "cuda" and compilable and recipe.accumulate == 1 and recipe.steps >= MIN_RECORD_STEPS
    return Arithmetic(device, torch.float32 if is_float32 else torch.bfloat16, compiles, replays)


def check_kernels(model: nn.Module, arithmetic: Arithmetic) -> None:
    """Run recurrent layers on one token, so that a missing kernel is reported before a run is written."""
    if arithmetic.dtype == torch.float32:
        return
    with fork_random(arithmetic.device):
        for layer in (layer for layer in model.modules() if isinstance(layer, nn.RNNBase)):
            with arithmetic.autocast():
                layer(torch.zeros(1, 1, layer.input_size, device=arithmetic.device))


def choose_device(recipe: Recipe, local_rank: int = 0) -> torch.device:
    """Return the device a recipe names; auto takes the GPU if there is one."""
    has_gpu = torch.cuda.is_available()
    if recipe.device == "cuda" and not has_gpu:
        raise SpecError("device = 'cuda': PyTorch sees no GPU here. Use device=cpu, or device=auto.")
    return torch.device("cuda", local_rank) if has_gpu and recipe.device != "cpu" else torch.device("cpu")


def compile_module(
    module: nn.Module,
    layers: Sequence[nn.Module],
    try_forward: Callable[[Forward], object],
    log_message: Callable[[str], None],
) -> Forward:
    """Compile a module and try it once; if that fails, log it and return the module as it is.

    If it has layers of one shape, one of them is compiled for all, which takes seconds for any number of layers. The
    compiled module shares the parameters. The code is cached in the data home for later runs.
    """
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(home_folder("compiled")))
    fast: Forward = module if layers else torch.compile(module, dynamic=False)
    for layer in layers:
        layer.compile(dynamic=False)
    try:
        try_forward(fast)
    except Exception as error:  # whatever the compiler, its C++ or its GPU back end may raise
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        log_message(f"torch.compile is not possible here ({reason}); training goes on uncompiled.")
        for layer in layers:
            layer._compiled_call_impl = None
        return module
    return fast


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
