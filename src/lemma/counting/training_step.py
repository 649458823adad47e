"""One training step traced on tensors that take no memory: what is alive at every moment, and what each kernel costs.

The step is the trainer's own: its loss, its autocast, its optimizer. It runs on fake tensors of a CPU; what a GPU does
differently (where autocast keeps float32, fused attention, cuDNN's recurrent layers) is emulated by `GpuEmulation`, so
that a GPU can be planned for on a machine without one.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import isqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import lemma.spec.models as specs
from lemma.counting.fit import Sizes
from lemma.counting.measure import (
    MAX_QUICK_RUN,
    PathTracker,
    differentiable_outputs,
    flop_rule,
    iter_tensors,
    tensor_bytes,
    track_paths,
)
from lemma.counting.subject import BATCH, SOURCE, TIME, Inputs, Subject, format_sizes
from lemma.errors import CountingError
from lemma.kernels import support
from lemma.spec.recipe import Recipe
from lemma.tasks.registry import task_for
from lemma.training.optimizer import build_optimizer, clip_gradients

PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers")
PHASES = FORWARD, BACKWARD, UPDATE = "forward pass", "backward pass", "optimizer step"
OUTPUT_MODULES = ("output", "lm_head", "head", "follow")  # the modules that give logits
SCRATCH_OPERATORS = ("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward")  # they need memory while they run
LOOKUP_OPERATORS = ("embedding", "index_select", "gather", "index")  # of their first argument only some rows are read
MAX_QUICK_STEP = 2 * 10**9  # FLOPs up to which a step is traced on real tensors
MAX_REAL_STEP = 3 * 10**11  # FLOPs up to which it is if fake tensors fail
CUDNN_RESERVE_PER_UNIT = 6  # numbers per unit and token that cuDNN's recurrent layers save for backward: an estimate


@dataclass(frozen=True)
class StepSettings:
    """The device and the recipe of a step."""

    gpu: bool = True
    precision: torch.dtype = torch.bfloat16
    recipe: Recipe = field(default_factory=Recipe)
    recompute: bool = False  # compute the activations inside each layer again in the backward pass
    split: Mapping[str, str] = field(default_factory=dict)  # role of each linear layer in tensor parallelism, by path


class Kind(NamedTuple):
    """Class of memory or work: inside the repeated layers or not, divided by tensor parallelism or not."""

    in_layers: bool = False
    is_split: bool = False


KINDS = tuple(Kind(*flags) for flags in ((False, False), (False, True), (True, False), (True, True)))


@dataclass(frozen=True)
class Moment:
    """The bytes that are alive after an operation, by part, and a label that says when that is."""

    parts: tuple[int, ...]
    label: str
    kinds: Mapping[Kind, tuple[int, ...]] = field(default_factory=dict)  # what is in layers or split, by kind

    @property
    def total(self) -> int:
        return sum(self.parts)

    def amounts(self, part: str) -> tuple[int, ...]:
        """Return the bytes of a part by kind, in the order of `KINDS`."""
        index = PARTS.index(part)
        inner = [self.kinds[kind][index] if kind in self.kinds else 0 for kind in KINDS[1:]]
        return self.parts[index] - sum(inner), *inner


class Kernel(NamedTuple):
    """The work of an operation."""

    flops: int
    bytes_moved: int
    kind: Kind = Kind()
    phase: str = ""  # one of `PHASES`


@dataclass(frozen=True)
class StepTrace:
    """The memory and the work of a training step."""

    moments: tuple[Moment, ...]  # what is alive after each operation
    kernels: Mapping[Kernel, int]  # the number of calls of each
    largest_layer: int  # bytes of the weights of the largest layer, or of the full model if it has none
    layers: int  # how many layers can be computed again

    @cached_property
    def amounts(self) -> Float[np.ndarray, "moments kinds parts"]:
        """Return the bytes at each moment by kind (see `KINDS`) and part."""
        rows = np.zeros((len(self.moments), len(KINDS), len(PARTS)))
        for row, moment in zip(rows, self.moments, strict=True):
            row[0] = moment.parts
            for kind, parts in moment.kinds.items():
                row[KINDS.index(kind)] = parts
                row[0] -= parts
        return rows

    @property
    def peak(self) -> Moment:
        return max(self.moments, key=lambda moment: moment.total)

    @property
    def flops(self) -> int:
        return sum(kernel.flops * times for kernel, times in self.kernels.items())

    @property
    def bytes_moved(self) -> int:
        return sum(kernel.bytes_moved * times for kernel, times in self.kernels.items())


def recurrent_flops(
    inputs: Tensor, weights: Sequence[Tensor], tokens: int, batch: int, *, directions: int = 1, backward: bool = False
) -> int:
    """Return the FLOPs of recurrent layers over `tokens` tokens in `batch` sequences, as `count` defines them.

    Backward, each product has two of its size, except for gradients that are not needed: of the initial states, and of
    inputs without a gradient.
    """
    matrices = [weight for weight in weights if weight.dim() > 1]  # input and hidden weights in turns
    forward = 2 * tokens * sum(weight.numel() for weight in matrices)
    if not backward:
        return forward
    unasked = 2 * batch * sum(weight.numel() for weight in matrices[1::2])
    if not inputs.requires_grad:
        unasked += 2 * tokens * sum(weight.numel() for weight in matrices[: 2 * directions : 2])
    return 2 * forward - unasked


def _onednn_flops(inputs: Tensor, *args: Any, backward: bool = False, **kwargs: Any) -> int:
    """Return the FLOPs of oneDNN's recurrent layer: one layer in one direction."""
    length, batch, _ = inputs.shape
    return recurrent_flops(inputs, args[:2], length * batch, batch, backward=backward)


RECURRENT_FLOPS = {
    "mkldnn_rnn_layer": _onednn_flops,
    "mkldnn_rnn_layer_backward": partial(_onednn_flops, backward=True),
}


class StepTracker(TorchDispatchMode):
    """Tracks which storages are alive, and counts the FLOPs and the bytes of every operation."""

    def __init__(self, gpu: bool, split: Mapping[str, str], layers: Sequence[str]) -> None:
        super().__init__()
        self.path_tracker, self.gpu, self.split = PathTracker(), gpu, split
        self.layers = tuple(f"{path}." for path in layers)
        self.phase, self.part = "", ""  # the part that new storages belong to; "" is read off where they are made
        self.parts = [0] * len(PARTS)
        self.kinds: dict[Kind, list[int]] = {}
        self.moments: list[Moment] = []
        self.kernels: Counter[Kernel] = Counter()
        self._storages: dict[int, tuple[weakref.ref[Any], int, int, Kind]] = {}
        self._max_positions: dict[int, int] = {}  # by storage: the last of an `arange`, which fake tensors do not hold

    def assign(self, tensors: Any, part: str, extra_bytes: int = 0, kind: Kind | None = None) -> None:
        """Count the storages of `tensors` to `part`, such as "weights", instead of the part they counted to before.

        `extra_bytes` are added to the size of each new storage; `kind` is that of new storages.
        """
        index = PARTS.index(part)
        for tensor in iter_tensors(tensors):
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self._storages:
                reference, before, size, storage_kind = self._storages[key]
                self._add(before, storage_kind, -size)
                self._storages[key] = reference, index, size, storage_kind
            else:
                storage_kind, size = kind or Kind(), storage.nbytes() + extra_bytes
                self._storages[key] = weakref.ref(storage, partial(self._free, key)), index, size, storage_kind
            self._add(index, storage_kind, size)

    def assign_parameters(self, module: nn.Module, prefix: str) -> None:
        """Count the weights and gradients of a module, each to its kind; its paths in the step start with `prefix`."""
        for name, parameter in module.named_parameters():
            path, _, attribute = f"{prefix}{name}".rpartition(".")
            role = self.split.get(path)
            is_split = role == "column" or (role == "row" and attribute == "weight")
            kind = Kind(path.startswith(self.layers), is_split)
            self.assign(parameter, "weights", kind=kind)
            if parameter.grad is not None:
                self.assign(parameter.grad, "gradients", kind=kind)

    def _add(self, index: int, kind: Kind, size: int) -> None:
        """Add bytes to a part, and to a part of a kind."""
        self.parts[index] += size
        self.kinds.setdefault(kind, [0] * len(PARTS))[index] += size

    def _free(self, key: int, _: Any) -> None:
        """Subtract the bytes of a storage that was garbage-collected; `key` identifies it."""
        self._max_positions.pop(key, None)
        if entry := self._storages.pop(key, None):
            self._add(entry[1], entry[3], -entry[2])

    def kind_of(self, tensors: Any) -> Kind:
        """Return the kind of what is made from tensors: inside the layers, or split, if one of them is."""
        kinds = [
            self._storages[key][3]
            for tensor in iter_tensors(tensors)
            if (key := _storage_key(tensor)) in self._storages
        ]
        return Kind(any(kind.in_layers for kind in kinds), any(kind.is_split for kind in kinds))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and args[0].dtype == torch.bool:
            return not self.gpu  # whether all tokens are there: a CPU is asked, and says yes; a GPU is not
        name = func._overloadpacket.__name__
        if name in LOOKUP_OPERATORS:
            self._check_positions(args)
        out = func(*args, **kwargs)
        if not self.phase and not self.part:
            return out
        formula = RECURRENT_FLOPS.get(name) or flop_rule(func)
        path = self.path_tracker.current
        new = [tensor for tensor in iter_tensors(out) if _storage_key(tensor) not in self._storages]
        source_kind = self.kind_of((args, kwargs))
        if new and func is torch.ops.aten.mkldnn_rnn_layer.default and not out[3].numel():
            self.assign(out[3], self._part_of(func, args), onednn_reserve_bytes(args))
        if new:
            part = self.part or self._part_of(func, args)
            is_partial_sum = bool(formula) and path in self.split and self._are_factors_split(args)
            if part in ("optimizer", "buffers"):  # of buffers only copies of weights belong to the layers
                in_layers = source_kind.in_layers and (part == "optimizer" or self._copies_weights(func, args))
            else:
                in_layers = path.startswith(self.layers)
            has_parts = source_kind.is_split and not is_partial_sum and any(tensor.dim() for tensor in new)
            self.assign(new, part, kind=Kind(in_layers, has_parts))
        if name == "arange" and out.numel():
            self._max_positions[_storage_key(out)] = int(max([0, *args[:2]][-1] - 1, 0))
        if self.phase and (new or name.endswith("_") or name in SCRATCH_OPERATORS):
            location = f", at {path.removeprefix('model.') or 'the loss'}" if self.phase != UPDATE else ""
            *parts, buffers = self.parts
            scratch = onednn_scratch_bytes(args) if name in SCRATCH_OPERATORS else 0
            kinds = {kind: tuple(sizes) for kind, sizes in self.kinds.items() if any(kind) and any(sizes)}
            self.moments.append(Moment((*parts, buffers + scratch), self.phase + location, kinds))
            if not name.startswith(("empty", "new_empty")):  # else nothing is written to it yet
                operands = [*iter_tensors(args), *iter_tensors(kwargs)][name in LOOKUP_OPERATORS :]
                flops = formula(*args, **kwargs, out_val=out) if formula else 0
                self.add_kernel(flops, tensor_bytes([*operands, *iter_tensors(out)]), (args, kwargs))
        return out

    def _are_factors_split(self, args: Sequence[Any]) -> bool:
        """Return whether both factors of a product, its last two tensors, are split: each device has a partial sum."""
        return all(self.kind_of(factor).is_split for factor in list(iter_tensors(args))[-2:])

    def _check_positions(self, args: Sequence[Any]) -> None:
        """Raise an IndexError if a lookup has a position past the end of its table; fake tensors would not notice.

        `args` are the table and its indices.
        """
        table, *indices = args
        for dimension, index in enumerate(iter_tensors(indices)):
            largest = self._max_positions.get(_storage_key(index), 0)
            if dimension < table.dim() and largest >= (rows := table.shape[dimension]):
                raise IndexError(f"position {largest:,} is past the end of a table of {rows:,}")

    def _part_of(self, func: Any, args: Any) -> str:
        """Return the part ("activations", "buffers" or "logits") that the new tensors of operator `func` belong to."""
        path = self.path_tracker.current
        if self.phase == UPDATE:
            return "buffers"
        copied = self._copies_weights(func, args)
        if path == "" or path.removeprefix("model.") in OUTPUT_MODULES:
            return "buffers" if copied else "logits"
        return "activations" if self.phase == FORWARD and not copied else "buffers"

    def _copies_weights(self, func: Any, args: Any) -> bool:
        """Return whether an operator copies a weight, as autocast does."""
        entry = self._storages.get(_storage_key(args[0])) if func is torch.ops.aten._to_copy.default else None
        return entry is not None and entry[1] == PARTS.index("weights")

    def add_kernel(self, flops: int, bytes_moved: int, operands: Any = ()) -> None:
        """Record an operation with its FLOPs, the bytes it reads and writes, and the tensors it is made from."""
        source_kind = self.kind_of(operands)
        in_layers = self.path_tracker.current.startswith(self.layers)
        self.kernels[Kernel(flops, bytes_moved, Kind(in_layers, source_kind.is_split), self.phase)] += 1


def _storage_key(tensor: Tensor) -> int:
    """Return what identifies the storage of a tensor."""
    return tensor.untyped_storage()._cdata


def trace_step(subject: Subject, settings: StepSettings, values: Sizes | None = None) -> StepTrace:
    """Trace memory and work of a training step at sizes `values`, by default those the subject requests.

    It runs on real tensors if it is small, else on fake ones; if that fails, a CountingError has the reason.
    """
    values = values or subject.sizes(True)
    module = subject.build(values)
    weights = sum(parameter.numel() for parameter in module.parameters())
    batch, length = values.get(BATCH, 1), max(values.get(TIME, 1), values.get(SOURCE, 1))
    work = 6 * weights * batch * length + 12 * isqrt(weights) * batch * length**2  # products, and scores of attention
    quick = work <= MAX_QUICK_STEP
    failure: Exception | None = None
    if not quick:
        from torch._subclasses.fake_tensor import FakeTensorMode  # slow to import

        try:
            with FakeTensorMode(allow_non_fake_inputs=True):
                return _trace_module(subject, module, settings, values)
        except Exception as error:  # not every module can be traced without numbers
            failure = error
    if quick or (4 * weights <= MAX_QUICK_RUN and work <= MAX_REAL_STEP):
        try:
            return _trace_module(subject, subject.build(values, "cpu"), settings, values)
        except Exception as error:
            failure = failure or error
    why = str(failure).strip().partition("\n")[0] or type(failure).__name__
    message = f"a training step of {subject.name} cannot be traced at {format_sizes(values)}: {why}"
    raise CountingError(message) from failure


def _trace_module(subject: Subject, module: nn.Module, settings: StepSettings, values: Sizes) -> StepTrace:
    """Run one training step of `module` at sizes `values` under a `StepTracker` and return its trace."""
    recipe = settings.recipe.replace(batch=values.get(BATCH, 1))
    with ExitStack() as stack:
        model = _materialize(module).train()
        inputs = subject.build_inputs(values, "cpu")
        step_module, run_step = _make_step(model, inputs, recipe)
        prefix = "" if step_module is model else "model."
        paths, layers = [list(pair) for pair in zip(*find_layers(model), strict=True)] or ([], [])
        split = {f"{prefix}{path}": role for path, role in settings.split.items()}
        tracker = StepTracker(settings.gpu, split, [f"{prefix}{path}" for path in paths])
        if settings.gpu:  # the trainer's own kernels tell what they would cost
            support.COST_RECORDER = tracker.add_kernel
            stack.callback(setattr, support, "COST_RECORDER", None)
        tracker.path_tracker = stack.enter_context(track_paths(step_module))

        def emulation() -> AbstractContextManager[Any]:
            return GpuEmulation(tracker, settings.precision) if settings.gpu else nullcontext()

        if settings.recompute:

            def run(forward: Callable[..., Any], *args: Any, **named: Any) -> Any:
                with emulation():
                    return forward(*args, **named)  # in backward, where no mode of the forward pass is left

            for layer in layers:
                forward_layer = partial(run, layer.forward)
                layer.forward = partial(checkpoint, forward_layer, use_reentrant=False, preserve_rng_state=False)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = build_optimizer(model, recipe) if trained else None
        with tracker:
            for parameter in trained:
                parameter.grad = torch.empty_like(parameter)
            tracker.assign_parameters(model, prefix)
            tracker.assign([list(model.buffers()), list(inputs.args), dict(inputs.kwargs)], "buffers")
            for parameter in trained:
                parameter.register_post_accumulate_grad_hook(lambda leaf: tracker.assign(leaf.grad, "gradients"))
            if optimizer:
                tracker.part = "optimizer"
                optimizer.step()
                tracker.part = ""
                if recipe.accumulate == 1:
                    optimizer.zero_grad(set_to_none=True)
            with emulation():
                tracker.phase = FORWARD
                loss = _run_forward(step_module, run_step, settings, tracker)
                tracker.phase = BACKWARD
                if loss is not None:
                    loss.backward()
                del loss
            tracker.phase = UPDATE
            if optimizer:
                clip_gradients(model, recipe.clip)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            tracker.phase = ""
    largest = max(tensor_bytes(layer.parameters()) for layer in layers or [model])
    return StepTrace(tuple(tracker.moments), dict(tracker.kernels), largest, len(layers))


def _materialize(module: nn.Module) -> nn.Module:
    """Replace the meta tensors of a module by CPU tensors (fake ones under FakeTensorMode) and return it."""
    new: dict[int, Tensor] = {}

    def moved(tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            return tensor
        if id(tensor) not in new:
            empty = torch.empty_like(tensor, device="cpu")
            trained = isinstance(tensor, nn.Parameter)
            new[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if trained else empty
        return new[id(tensor)]

    for part in module.modules():
        holders: list[dict[str, Any]] = [part._parameters, part._buffers, part.__dict__]
        for tensors in holders:
            tensors.update({name: moved(value) for name, value in tensors.items() if isinstance(value, Tensor)})
        if isinstance(part, nn.RNNBase):
            part._flat_weights = [getattr(part, name) for name in part._flat_weights_names]
    return module


def _run_forward(
    module: nn.Module, run_step: Callable[[], Any], settings: StepSettings, tracker: StepTracker
) -> Tensor | None:
    """Run the forward pass of a step under autocast and return its loss; None if nothing is trainable."""

    def assign_logits(_: nn.Module, inputs: Any, out: Any) -> None:
        tracker.assign(list(iter_tensors(out, True))[:1], "logits")

    model = getattr(module, "model", None)
    handle = model.register_forward_hook(assign_logits) if model is not None else None
    with torch.autocast("cpu", settings.precision) if settings.precision != torch.float32 else nullcontext():
        out = run_step()
    if handle:
        handle.remove()
    outputs = differentiable_outputs(out)
    if not outputs or not outputs[0].dim():  # nothing is trained, or a loss comes first
        return outputs[0] if outputs else None
    loss, *more_losses = (output.sum() for output in outputs)
    return sum(more_losses, loss)


def _make_step(model: nn.Module, inputs: Inputs, recipe: Recipe) -> tuple[nn.Module, Callable[[], Any]]:
    """Return the module that a step runs and a function that calls it.

    For a model with a spec it is the trainer's loss module, else the model itself.
    """
    spec = getattr(model, "spec", None)
    if not isinstance(spec, specs.ModelSpec) or isinstance(
        spec, specs.Parser | specs.DualEncoder | specs.CrossAttention | specs.Graph | specs.Tree
    ):
        return model, lambda: model(*inputs.args, **inputs.kwargs)
    first, *more = inputs.args
    if isinstance(spec, specs.EncoderDecoder):  # targets are one longer than what is fed
        targets = torch.zeros(more[0].shape[0], more[0].shape[1] + 1, dtype=torch.long)
    else:
        targets = torch.zeros(first.shape[0], 1, dtype=torch.long) if isinstance(spec, specs.Classifier) else first
    loss = task_for(spec).loss(model, recipe)
    return loss, lambda: loss(first, targets, None)[0]


def find_layers(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield path and module of the repeated layers: members of the outermost lists whose members have submodules.

    The members of a Sequential are repeated layers only if they are of one class.
    """
    for name, child in module.named_children():
        members = list(child.named_children()) if isinstance(child, nn.ModuleList | nn.Sequential) else []
        is_repeated = isinstance(child, nn.ModuleList) or len({type(member) for _, member in members}) == 1
        if is_repeated and any(list(member.children()) for _, member in members):
            yield from ((f"{path}{name}.{index}", member) for index, member in members)
        else:
            yield from find_layers(child, f"{path}{name}.")


# fmt: off
FLOAT32 = frozenset((
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt",
    "sinh", "tan", "pow", "__pow__", "__rpow__", "softplus", "layer_norm", "rms_norm", "group_norm", "norm",
    "cosine_similarity", "cosine_embedding_loss", "nll_loss", "kl_div", "l1_loss", "smooth_l1_loss", "mse_loss",
    "huber_loss", "binary_cross_entropy_with_logits", "dist", "cdist", "renorm", "logsumexp",
))
# fmt: on
"""Functions that autocast computes in float32 on a GPU and not on a CPU (ATen/autocast_mode.h)."""
FLOAT32_BY_DEFAULT = frozenset(["prod", "softmax", "log_softmax", "cumprod", "cumsum", "sum", "vector_norm"])
RECURRENT = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}  # gates


class GpuEmulation(TorchFunctionMode):
    """Calls functions as a GPU would where it differs from a CPU."""

    def __init__(self, tracker: StepTracker, precision: torch.dtype) -> None:
        super().__init__()
        self.tracker, self.precision = tracker, precision

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            return self._attend(func, *args, **kwargs)
        if name in RECURRENT and len(args) == 9:
            return self._recurrent(name, *args)
        if not torch.is_autocast_enabled("cpu"):
            return func(*args, **kwargs)
        if name == "cross_entropy":
            # its logarithms stay as the logits are; only the loss of them is in float32
            kwargs.pop("label_smoothing", None)
            with torch.autocast("cpu", enabled=False):
                log = args[0].log_softmax(min(1, args[0].dim() - 1))
                return functional.nll_loss(log.float(), *args[1:], **kwargs)
        if name in FLOAT32_BY_DEFAULT and kwargs.get("dtype") is None and args[0].is_floating_point():
            kwargs["dtype"] = torch.float32
        if name in FLOAT32:
            args = tuple(_to_float32(value) for value in args)
            kwargs = {key: _to_float32(value) for key, value in kwargs.items()}
            with torch.autocast("cpu", enabled=False):
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    def _attend(
        self,
        func: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Run attention as a fused GPU kernel: it saves queries, keys, values, the output and one number per row."""
        is_low_precision = torch.is_autocast_enabled("cpu")
        if is_low_precision:
            query, key, value = (tensor.to(self.precision) for tensor in (query, key, value))
        half = query.dtype in (torch.bfloat16, torch.float16)
        if query.dim() != 4 or (enable_gqa and not half):  # grouped heads have a kernel in half precision only
            with sdpa_kernel(SDPBackend.MATH):
                return func(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
        if attn_mask is not None and not attn_mask.requires_grad:
            attn_mask = attn_mask.to(query.dtype).expand(*query.shape[:-1], key.shape[-2])
        heads, new, width = query.shape[1:]
        self.tracker.add_kernel(
            2 * len(query) * heads * new * key.shape[-2] * (width + value.shape[-1]),
            tensor_bytes((query, key, value, query)),
            (query, key, value),
        )
        return _FusedAttention.apply(query, key, value, attn_mask, self.tracker)

    def _recurrent(
        self,
        name: str,
        inputs: Tensor,
        state: Any,
        weights: Sequence[Tensor],
        biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        is_bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        """Run a recurrent layer as cuDNN: time first, all weights in one buffer, and reserve space for backward."""
        dtype = self.precision if torch.is_autocast_enabled("cpu") else inputs.dtype
        states = state if isinstance(state, tuple) else (state,)
        batch, time = inputs.shape[:2] if batch_first else inputs.shape[1::-1]
        hidden, directions = states[0].shape[-1], 1 + is_bidirectional
        reserve_bytes = cudnn_reserve_bytes(name, (batch, time, inputs.shape[-1], hidden, layers, directions), dtype)
        count_flops = partial(recurrent_flops, inputs, weights, batch * time, batch, directions=directions)
        flops, backward = count_flops(), count_flops(backward=True)
        self.tracker.add_kernel(flops, sum(tensor.numel() for tensor in weights) * dtype.itemsize * time)
        out = _CudnnLayers.apply(
            self.tracker, backward, reserve_bytes, hidden * directions, batch_first, dtype, inputs, *weights
        )
        return (out, *(tensor.to(dtype) for tensor in states))


class _FusedAttention(torch.autograd.Function):
    """The memory of fused attention: softmax(QKᵀ) is never stored. Backward, dQ is summed in float32."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, tracker: StepTracker
    ) -> Tensor:
        """Return an empty output of attention and save the tensors that a fused kernel saves for backward."""
        # laid out as the kernel does: heads after time, so that joining the heads again is a view
        out = query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]).transpose(1, 2)
        rows = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, mask, out, rows)
        ctx.tracker = tracker
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return empty gradients and record the FLOPs and bytes of the backward kernel."""
        query, key, value, _, out, _ = ctx.saved_tensors
        sums = torch.empty_like(query, dtype=torch.float32)
        shape = (len(query), query.shape[1], key.shape[2], key.shape[3])
        expanded = [key.new_empty(shape), value.new_empty(shape)] if key.shape[1] < query.shape[1] else []
        gradients = [torch.empty_like(tensor) for tensor in (query, key, value)]
        work = 2 * len(query) * query.shape[1] * query.shape[2] * key.shape[2]
        bytes_moved = tensor_bytes((query, key, value, out, grad, sums, *gradients))
        ctx.tracker.add_kernel(2 * work * (query.shape[-1] + value.shape[-1]), bytes_moved, (query, key, value))
        del sums, expanded
        return *gradients, None, None


class _CudnnLayers(torch.autograd.Function):
    """The memory of cuDNN's recurrent layers."""

    @staticmethod
    def forward(
        ctx: Any,
        tracker: StepTracker,
        flops: int,
        reserve_bytes: int,
        width: int,
        batch_first: bool,
        dtype: torch.dtype,
        inputs: Tensor,
        *weights: Tensor,
    ) -> Tensor:
        """Return an empty output of recurrent layers and save the tensors that cuDNN saves for backward."""
        cast = inputs.to(dtype)
        first = cast.transpose(0, 1).contiguous() if batch_first else cast
        size = sum(weight.numel() for weight in weights)
        flat = first.new_empty(size) if weights[0].dtype != dtype else weights[0]
        tracker.assign(flat, "buffers" if flat is not weights[0] else "weights")
        reserve = first.new_empty(reserve_bytes, dtype=torch.uint8)
        out = first.new_empty(*first.shape[:-1], width)
        ctx.save_for_backward(first, flat, reserve, out, *weights)
        ctx.about = tracker, flops, batch_first, inputs.dtype, size
        return out.transpose(0, 1) if batch_first else out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return empty gradients and record the FLOPs of the backward pass."""
        first, _, _, _, *weights = ctx.saved_tensors
        tracker, flops, batch_first, dtype, size = ctx.about
        grad = (grad.transpose(0, 1) if batch_first else grad).contiguous()
        tracker.add_kernel(flops, 0)
        into = torch.empty_like(first)
        flat = first.new_empty(size)
        parts = [
            part.view_as(weight).to(weight.dtype)
            for part, weight in zip(flat.split([weight.numel() for weight in weights]), weights, strict=True)
        ]
        back = (into.transpose(0, 1) if batch_first else into).to(dtype)
        return None, None, None, None, None, None, back, *parts


def cudnn_reserve_bytes(name: str, sizes: tuple[int, int, int, int, int, int], dtype: torch.dtype) -> int:
    """Return the bytes that cuDNN saves for the backward pass: measured on a GPU if there is one, else estimated.

    `sizes` are batch, time, input width, hidden width, layers and directions.
    """
    batch, time, width, hidden, layers, directions = sizes
    if torch.cuda.is_available():
        with suppress(Exception), _real_tensors():
            cells = {"lstm": nn.LSTM, "gru": nn.GRU}.get(name, nn.RNN)
            real = cells(width, hidden, layers, bidirectional=directions == 2, device="cuda", dtype=dtype)
            before = torch.cuda.memory_allocated()
            inputs = torch.zeros(time, batch, width, device="cuda", dtype=dtype)
            out, _ = real(inputs)
            return torch.cuda.memory_allocated() - before - (inputs.numel() + out.numel()) * dtype.itemsize
    return CUDNN_RESERVE_PER_UNIT * batch * time * hidden * layers * directions * dtype.itemsize


def onednn_reserve_bytes(args: Sequence[Any]) -> int:
    """Return the bytes that oneDNN's recurrent layer saves for backward, extrapolated from runs of 2 and 3 tokens.

    `args` are those of `mkldnn_rnn_layer`.
    """
    time, sizes = args[0].shape[0], []
    with _real_tensors():
        for length in (2, 3):
            shapes = [(length, *args[0].shape[1:]), *(tensor.shape for tensor in args[1:7])]
            real = [torch.zeros(shape, dtype=tensor.dtype) for shape, tensor in zip(shapes, args[:7], strict=True)]
            sizes.append(torch.ops.aten.mkldnn_rnn_layer(*real, *args[7:])[3].nbytes)
    return sizes[0] + (time - 2) * (sizes[1] - sizes[0])


def onednn_scratch_bytes(args: Sequence[Any]) -> int:
    """Return the bytes that oneDNN's recurrent layer needs while it runs: all gates of all tokens, and its weights.

    `args` are those of `mkldnn_rnn_layer`.
    """
    (time, batch, _), weights = args[0].shape, args[1:5]
    return (time * batch * weights[0].shape[0] + sum(weight.numel() for weight in weights)) * args[0].element_size()


@contextmanager
def _real_tensors() -> Iterator[None]:
    """Leave FakeTensorMode and all dispatch modes inside the context, so that tensors are real."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.utils._python_dispatch import _disable_current_modes

    with unset_fake_temporarily(), _disable_current_modes():
        yield


def _to_float32(value: Any) -> Any:
    """Convert a bfloat16 or float16 tensor to float32; return any other value unchanged."""
    lower = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if lower else value
