"""Where and with which arithmetic a model is trained."""

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
from lemma.layers.cuda_graphs import capture, warmup_stream
from lemma.spec.recipe import Recipe

Forward = Callable[..., Any]
MISSING_KERNEL = "could not create a primitive"  # what oneDNN says
MIN_COMPILE_FLOPS = 5e15  # operations of a whole run, a minute of a fast GPU; compiling takes a quarter of that
MIN_RECORD_STEPS = 50  # steps; recording a CUDA graph takes as long as a few


@dataclass(frozen=True)
class Arithmetic:
    """A device, the type that matrices are multiplied in, whether to compile, and whether to replay a CUDA graph."""

    device: torch.device
    dtype: torch.dtype
    is_compiled: bool
    uses_cuda_graph: bool = False

    def autocast(self) -> AbstractContextManager[object]:
        """Give the context that the forward pass runs in."""
        return contextlib.nullcontext() if self.dtype == torch.float32 else self._autocast()

    @contextmanager
    def _autocast(self) -> Iterator[None]:
        """A processor may lack a kernel, an LSTM's for one, that is only looked for when a model first runs."""
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
    """Allow TF32 in float32 matrix products ("high") or not ("highest"), and put the setting back afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


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
    """Give the context after which the random states are as they were before."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def choose_arithmetic(recipe: Recipe, device: torch.device, compilable: bool, flops: float = math.inf) -> Arithmetic:
    """Settle what a recipe leaves to `auto`: on a GPU bfloat16, in long runs a compiled model; elsewhere neither.

    A CUDA graph is replayed wherever batches have one shape: it needs no compiler, and small models are else slowed
    down by the launching of kernels. `work` are the operations of all matrix products of the run.
    """
    fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    exact = recipe.precision == "float32" or (recipe.precision == "auto" and not fast)
    pays = device.type == "cuda" and compilable and flops >= MIN_COMPILE_FLOPS
    compiles = pays if recipe.compile == "auto" else recipe.compile
    replays = device.type == "cuda" and compilable and recipe.accumulate == 1 and recipe.steps >= MIN_RECORD_STEPS
    return Arithmetic(device, torch.float32 if exact else torch.bfloat16, compiles, replays)


def check_kernels(model: nn.Module, arithmetic: Arithmetic) -> None:
    """Let recurrent layers read one token, so that a kernel that is not there is missed before a run is written."""
    if arithmetic.dtype == torch.float32:
        return
    with fork_random(arithmetic.device):
        for layer in (layer for layer in model.modules() if isinstance(layer, nn.RNNBase)):
            with arithmetic.autocast():
                layer(torch.zeros(1, 1, layer.input_size, device=arithmetic.device))


def choose_device(recipe: Recipe, local_rank: int = 0) -> torch.device:
    """Return the device a recipe names; auto takes the GPU if there is one."""
    there = torch.cuda.is_available()
    if recipe.device == "cuda" and not there:
        raise SpecError("device = 'cuda': PyTorch sees no GPU here. Use device=cpu, or device=auto.")
    return torch.device("cuda", local_rank) if there and recipe.device != "cpu" else torch.device("cpu")


def compile_module(
    module: nn.Module,
    layers: Sequence[nn.Module],
    try_forward: Callable[[Forward], object],
    log_message: Callable[[str], None],
) -> Forward:
    """Compile a module and try it once; where that is not possible, say so and return the module as it is.

    Where it has layers of one shape, one of them is compiled, and its code serves them all: that takes seconds,
    whatever their number. The compiled module shares the parameters; the names of weights are read from the module
    itself. What was compiled is kept with the data, for later runs.
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


class CudaGraphStep:
    """A training step, recorded as a CUDA graph: all its kernels are launched at once.

    Gradients stay where they were when it was recorded, and each replay writes them again.
    """

    def __init__(
        self,
        step: Callable[[Tensor, Tensor], list[Tensor]],
        optimizer: torch.optim.Optimizer,
        inputs: Tensor,
        targets: Tensor,
    ) -> None:
        """Record a step, which changes neither weights nor the optimizer's memory meanwhile."""
        self.inputs, self.targets = inputs.clone(), targets.clone()
        self.weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        for group in optimizer.param_groups:
            group["lr"].zero_()
        with warmup_stream():
            for _ in range(2):  # so that libraries have their workspaces, and the optimizer its memory
                optimizer.zero_grad(set_to_none=True)
                step(self.inputs, self.targets)
        optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with capture(self.graph):
            self.terms = step(self.inputs, self.targets)
        for tensor in (tensor for memory in optimizer.state.values() for tensor in memory.values()):
            tensor.zero_()

    def __call__(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """Take a step; return the loss, the gradient's norm and other terms."""
        self.inputs.copy_(inputs)
        self.targets.copy_(targets)
        self.graph.replay()
        for weight in self.weights:  # copies of the model, as generation keeps one, learn that they are out of date
            increment_version(weight)
        return self.terms
