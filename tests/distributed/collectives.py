"""A program that runs real parallel training steps in several gloo processes and prints the bytes of their collectives.

`python collectives.py 4 CASE…` forks 4 processes. Each case takes steps of tiny models with torch's own DDP, FSDP2 and
tensor parallelism, or with the textbook pipeline and the split that Lemma reads off a module; a dispatch mode adds up
the bytes that enter each collective. Where Lemma chooses what is split, gradients are compared with those of one
process.
"""

import json
import socket
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.autograd import Function, grad
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from lemma.counting.subject import resolve_subject
from lemma.counting.tensor_split import COLUMN, ROW, find_split
from lemma.counting.training_step import find_layers
from lemma.training.devices import KEEP_BUFFERS

MODELS: dict[str, tuple[str, dict[str, int]]] = {
    "decoder": ("decoder", {"d": 32, "L": 4, "h": 8, "T": 8, "V": 51, "B": 2}),
    "encoder-decoder": ("encoder-decoder", {"d": 16, "L_enc": 1, "L_dec": 2, "h": 4, "T": 6, "S": 5, "V": 30, "B": 2}),
    "llama": ("llama", {"d": 24, "L": 2, "h": 4, "h_kv": 2, "d_h": 6, "d_ff": 40, "V": 30, "T": 8, "B": 2}),
    "gpt2": ("gpt2", {"d": 24, "L": 2, "h": 4, "T": 8, "V": 30, "B": 2}),
    "qwen3": (
        "qwen3",
        {"d": 24, "L": 2, "h": 4, "num_key_value_heads": 2, "d_h": 6, "d_ff": 40, "V": 30, "T": 8, "B": 2},
    ),
    "torch": ("torch-transformer", {"d": 16, "h": 2, "L_enc": 1, "L_dec": 2, "d_ff": 24, "B": 2, "S": 5, "T": 6}),
}
MICRO_BATCHES = 3


class ByteCounter(TorchDispatchMode):
    """Adds up the bytes of tensors that enter a collective, by its kind; a gather counts what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._overloadpacket.__name__
        if func.namespace == "c10d":
            if name == "allreduce_":
                self.bytes["all-reduce"] += sum(tensor.nbytes for tensor in args[0])
            elif name == "_allgather_base_":
                self.bytes["all-gather"] += args[0].nbytes
            elif name == "_reduce_scatter_base_":
                self.bytes["reduce-scatter"] += args[1].nbytes
            elif name == "send":
                self.bytes["send"] += sum(tensor.nbytes for tensor in args[0])
            elif name not in ("recv_", "monitored_barrier_", "barrier"):
                raise AssertionError(f"uncounted collective {name}")
        elif func.namespace == "_c10d_functional" and name not in ("wait_tensor", "_wrap_tensor_autograd"):
            assert name in ("all_reduce", "all_reduce_"), f"uncounted collective {name}"
            self.bytes["all-reduce"] += args[0].nbytes
        return out


def build(name: str, tokens: int = 0) -> tuple[nn.Module, Callable[[], Tensor]]:
    """Return a tiny model with random weights, the same in all processes, and a function that returns its loss.

    The inputs are random numbers of a process; `tokens` chooses them.
    """
    model, sizes = MODELS[name]
    subject = resolve_subject(model, dict(sizes))
    torch.manual_seed(0)
    module = subject.build(subject.sizes(True), "cpu")
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    inputs = subject.build_inputs(subject.sizes(True), "cpu")
    generator = torch.Generator().manual_seed(tokens)

    def draw(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.is_floating_point():
            return torch.randn(value.shape, generator=generator)
        return torch.randint(1, sizes["V"], value.shape, generator=generator)

    args, kwargs = tuple(map(draw, inputs.args)), {key: draw(value) for key, value in inputs.kwargs.items()}
    kwargs = {key: False if key == "use_cache" else value for key, value in kwargs.items()}

    def loss(wrapped: nn.Module = module) -> Tensor:
        out = wrapped(*args, **kwargs)
        out = getattr(out, "logits", out[0] if isinstance(out, tuple) else out)
        return (out * torch.linspace(-1, 1, out.shape[-1])).tanh().sum()

    return module, loss


def run_data(name: str) -> dict[str, int]:
    """Take a step with DDP."""
    module, loss = build(name, distributed.get_rank())
    wrapped = DistributedDataParallel(module, **KEEP_BUFFERS)  # as the trainer has it
    with ByteCounter() as counter:
        loss(wrapped).backward()
    return counter.bytes


def run_shards(name: str, replicas: int = 1, micro_batches: int = MICRO_BATCHES) -> dict[str, int]:
    """Take a step of several micro-batches with FSDP2, with replicas of the shards if `replicas` is above 1."""
    module, loss = build(name, distributed.get_rank())
    size = distributed.get_world_size()
    shape = (replicas, size // replicas) if replicas > 1 else (size,)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "shards")[-len(shape) :])
    for _, layer in find_layers(module):
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    with ByteCounter() as counter:
        for number in range(micro_batches):
            module.set_requires_gradient_sync(number == micro_batches - 1)
            loss(module).backward()
    return counter.bytes


class SumBackward(Function):
    """The identity, whose gradient is summed over all processes."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        gradient = gradient.clone()
        distributed.all_reduce(gradient)
        return gradient


class SumForward(Function):
    """The sum over all processes, whose gradient is passed on."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        total = inputs.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient


def run_tensor(name: str) -> dict[str, int]:
    """Take a step in which each process computes its part of the layers that Lemma says are split.

    A process has all weights, and sets the outputs of column layers and the inputs of row layers to zero that are not
    of its part. Its gradients must be those of one process: for split and shared weights, their sum over the processes.
    """
    rank, size = distributed.get_rank(), distributed.get_world_size()
    reference, reference_loss = build(name)
    expected = reference_loss()
    expected.backward()
    model, sizes = MODELS[name]
    subject = resolve_subject(model, sizes)
    split = find_split(subject, subject.sizes(True))
    assert not split.find_obstacle(size), split.find_obstacle(size)
    module, loss = build(name)
    modules, summed = dict(module.named_modules()), dict[tuple[str, int], tuple[Tensor, Any]]()

    def read_column(layer: str, args: Any) -> Any:
        """Sum the gradient of a tensor once in each layer, however many column layers read it."""
        key = layer, id(args[0])
        if key not in summed:
            summed[key] = args[0], SumBackward.apply(args[0])
        return (summed[key][1],)

    for call in split.calls:
        part, width = modules[call.path], call.inputs.shape[-1] // size
        if call.role == COLUMN:
            part.register_forward_pre_hook(lambda _, args, layer=call.layer: read_column(layer, args))
        elif call.role == ROW:
            chosen = torch.zeros(call.inputs.shape[-1])
            chosen[rank * width : (rank + 1) * width] = 1
            section = call.inputs[..., rank * width : (rank + 1) * width]
            for source in call.sources:
                (used,) = grad(section, source.output, torch.randn_like(section), retain_graph=True)
                mask = (used.flatten(0, -2) != 0).any(0).float()
                modules[source.path].register_forward_hook(lambda _, __, out, mask=mask: out * mask)
            bias = part.bias

            def sum_parts(_: nn.Module, __: Any, out: Tensor, bias: Tensor | None = bias) -> Tensor:
                total = SumForward.apply(out if bias is None else out - bias)
                return total if bias is None else total + bias  # pyright: ignore[reportReturnType]

            part.register_forward_pre_hook(lambda _, args, chosen=chosen: (args[0] * chosen,))
            part.register_forward_hook(sum_parts)
    with ByteCounter() as counter:
        actual = loss()
        actual.backward()
        shared = {*split.shared_parameters(size)}
        for key, parameter in module.named_parameters():
            if key in shared:
                distributed.all_reduce(parameter.grad)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    for (key, parameter), other in zip(module.named_parameters(), reference.parameters(), strict=True):
        path, _, attribute = key.rpartition(".")
        role = split.roles.get(path)
        if role == COLUMN or (role == ROW and attribute == "weight"):
            distributed.all_reduce(parameter.grad)
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-3, atol=1e-4, msg=f"{name}: {key}")
    return counter.bytes


def run_torch_tensor(name: str) -> dict[str, int]:
    """Take a step of a Llama with torch's own tensor parallelism."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        parallelize_module,
    )

    expected = build(name)[1]()
    module, loss = build(name)
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for layer in module.model.layers:  # pyright: ignore
        plan = {f"self_attn.{key}_proj": ColwiseParallel() for key in "qkv"} | {"self_attn.o_proj": RowwiseParallel()}
        plan |= {f"mlp.{key}_proj": ColwiseParallel() for key in ("gate", "up")} | {"mlp.down_proj": RowwiseParallel()}
        plan |= {
            "self_attn": PrepareModuleInput(
                input_kwarg_layouts={"hidden_states": Replicate()},
                desired_input_kwarg_layouts={"hidden_states": Replicate()},
            ),
            "mlp": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate()),
        }
        parallelize_module(layer, mesh, plan)
    with ByteCounter() as counter:
        actual = loss()
        actual.backward()
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    return counter.bytes


def run_pipeline(name: str) -> dict[str, int]:
    """Take a step of several micro-batches in which each process has an equal number of layers, and sends by hand.

    The layers are run one after the other by hooks: a stage's first layer receives what the previous stage sent, and
    what follows a stage's last layer is not computed.
    """
    rank, size = distributed.get_rank(), distributed.get_world_size()
    references = [build(name, tokens) for tokens in range(MICRO_BATCHES)]
    for module, loss in references:
        loss(module).backward()
    steps = [build(name, tokens) for tokens in range(MICRO_BATCHES)]
    layers = [layer for _, layer in find_layers(steps[0][0])]
    per_stage = len(layers) // size
    with ByteCounter() as counter:
        pending = []
        for module, loss in steps:
            mine = [layer for _, layer in find_layers(module)]
            pending.append(run_stage(module, loss, mine, rank, size, per_stage))
        for received, sent, total in pending:
            if rank == size - 1:
                total.backward()
            else:
                gradient = torch.empty_like(sent)
                distributed.recv(gradient, rank + 1)
                sent.backward(gradient)
            if rank > 0:
                distributed.send(received.grad, rank - 1)
        tied = "embedding.weight"  # it is the output layer's, too
        if rank in (0, size - 1):
            actual, expected = (
                sum(dict(m.named_parameters())[tied].grad for m, _ in rows) for rows in (steps, references)
            )
            distributed.all_reduce(actual, group=ENDS[0])
            torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
    for key in [key for key, _ in steps[0][0].named_parameters() if ".layers." in f".{key}"]:
        index = int(key.partition("layers.")[2].partition(".")[0])
        if index // per_stage == rank:
            for (module, _), (other, _) in zip(steps, references, strict=True):
                actual, expected = (dict(m.named_parameters())[key].grad for m in (module, other))
                torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
    return counter.bytes


ENDS: list[Any] = []


class Stopped(Exception):
    """What follows the last layer of a stage is not of this process."""


def run_stage(
    module: nn.Module, loss: Callable[..., Tensor], layers: list[nn.Module], rank: int, size: int, per_stage: int
) -> tuple[Any, Any, Any]:
    """Run the layers of one stage forward; return what was received, what was sent, and the loss on the last stage."""
    first, last = rank * per_stage, (rank + 1) * per_stage - 1
    edges: dict[str, Any] = {"received": None, "sent": None}

    def receive(_: nn.Module, args: Any) -> Any:
        edges["received"] = torch.empty_like(args[0]).requires_grad_()
        distributed.recv(edges["received"].data, rank - 1)
        return (edges["received"], *args[1:])

    def send(_: nn.Module, __: Any, out: Any) -> Any:
        edges["sent"] = out[0] if isinstance(out, tuple) else out
        distributed.send(edges["sent"].detach(), rank + 1)
        raise Stopped

    for index, layer in enumerate(layers):
        if index < first:  # not of this process
            layer.register_forward_pre_hook(lambda _, args: (args[0].detach(), *args[1:]))
    if rank > 0:
        layers[first].register_forward_pre_hook(receive)
    if rank < size - 1:
        layers[last].register_forward_hook(send)
    total = None
    with suppress(Stopped):
        total = loss(module)
    return edges["received"], edges["sent"], total


CASES: dict[str, Callable[[str], dict[str, int]]] = {
    "data": run_data,
    "shards": run_shards,
    "both": lambda name: run_shards(name, 2, 1),
    "tensor": run_tensor,
    "torch-tensor": run_torch_tensor,
    "pipeline": run_pipeline,
}


def work(rank: int, size: int, port: int, cases: list[str]) -> None:
    """Run the cases in one process; the first prints, for each, the bytes of each process."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    ENDS.append(distributed.new_group([0, size - 1]))
    results = {}
    for case in cases:
        kind, _, name = case.partition(":")
        counted: list[Any] = [None] * size
        distributed.all_gather_object(counted, dict(CASES[kind](name)))
        results[case] = counted
    if rank == 0:
        print(json.dumps(results))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    number, *names = sys.argv[1:]
    start_processes(work, (int(number), port, names), int(number), start_method="fork")
