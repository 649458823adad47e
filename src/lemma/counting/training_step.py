"""One training step followed on tensors that take no memory: what is alive at every moment, and what each kernel costs.

The step is the trainer's own: its loss, its autocast, its optimizer. It runs on fake tensors of a CPU; what a GPU does
otherwise (where autocast keeps float32, fused attention, cuDNN's recurrent layers) is put in its place by
`GpuArithmetic`, so that a GPU can be planned for on a machine without one.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import flop_registry

import lemma.spec.models as specs
from lemma.counting.fit import Sizes
from lemma.counting.measure import MAX_QUICK_RUN, PathTracker, differentiable_outputs, iter_tensors, track_paths
from lemma.counting.subject import BATCH, SOURCE, TIME, Inputs, Subject, format_sizes
from lemma.errors import CountingError
from lemma.layers import fused
from lemma.spec.recipe import Recipe
from lemma.tasks.registry import task_for
from lemma.training.optimizer import build_optimizer, clip_gradients

PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers")
OUTPUT_MODULES = ("output", "lm_head", "head", "follow")  # the modules that give logits
SCRATCH_OPERATORS = ("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward")  # they need memory while they run
LOOKUP_OPERATORS = ("embedding", "index_select", "gather", "index")  # of their first argument only some rows are read
MAX_QUICK_STEP, MAX_REAL_STEP = (
    2 * 10**9,
    3 * 10**11,
)  # FLOPs up to which real tensors are followed: first, and if fakes fail
CUDNN_RESERVE_PER_UNIT = (
    6  # numbers a unit and token that cuDNN's recurrent layers keep for backward, where none can be asked
)


@dataclass(frozen=True)
class StepSettings:
    """Where and how a step is taken."""

    gpu: bool = True
    precision: torch.dtype = torch.bfloat16
    recipe: Recipe = field(default_factory=Recipe)
    recompute: bool = False
    """Whether the activations inside each layer are computed again in the backward pass."""


@dataclass(frozen=True)
class Moment:
    """What is alive after an operation: bytes by part; and where that is, in words."""

    parts: tuple[int, ...]
    label: str

    @property
    def total(self) -> int:
        """All parts together."""
        return sum(self.parts)


@dataclass(frozen=True)
class StepTrace:
    """A training step: what is alive after each operation, and what all operations came to."""

    moments: tuple[Moment, ...]
    kernels: Mapping[tuple[int, int], int]
    """How often an operation took this number of FLOPs and moved this number of bytes."""
    largest_layer: int
    """Bytes of the weights of the largest layer, or of the whole model if it has none."""
    layers: int
    """How many layers can be computed again."""

    @property
    def peak(self) -> Moment:
        """The moment at which most is alive."""
        return max(self.moments, key=lambda moment: moment.total)

    @property
    def flops(self) -> int:
        """All FLOPs, a multiply–add as two."""
        return sum(flops * times for (flops, _), times in self.kernels.items())

    @property
    def bytes_moved(self) -> int:
        """All bytes that operations read and write."""
        return sum(moved * times for (_, moved), times in self.kernels.items())


def _attention_flops(query: Tensor, key: Tensor, value: Tensor, *others: Any, **named: Any) -> int:
    """Those of QKᵀ and of the mean of the values."""
    return 2 * query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2] * (query.shape[3] + value.shape[3])


def recurrent_flops(
    inputs: Tensor, weights: Sequence[Tensor], tokens: int, batch: int, *, directions: int = 1, backward: bool = False
) -> int:
    """FLOPs of recurrent layers over `tokens` tokens of `batch` sequences, as `count` has them.

    Backward, each product has two of its size, but for those of gradients that nobody asks for: of the first states,
    and of inputs without a gradient.
    """
    matrices = [weight for weight in weights if weight.dim() > 1]  # input and hidden weights in turns
    forward = 2 * tokens * sum(weight.numel() for weight in matrices)
    if not backward:
        return forward
    unasked = 2 * batch * sum(weight.numel() for weight in matrices[1::2])
    if not inputs.requires_grad:
        unasked += 2 * tokens * sum(weight.numel() for weight in matrices[: 2 * directions : 2])
    return 2 * forward - unasked


def _onednn_flops(inputs: Tensor, *args: Any, backward: bool = False, **named: Any) -> int:
    """FLOPs of oneDNN's recurrent layer: one layer in one direction."""
    length, batch, _ = inputs.shape
    return recurrent_flops(inputs, args[:2], length * batch, batch, backward=backward)


CPU_FLOPS = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention_flops,
    "_scaled_dot_product_flash_attention_for_cpu_backward": lambda _, *args, **named: 2 * _attention_flops(*args),
    "mkldnn_rnn_layer": _onednn_flops,
    "mkldnn_rnn_layer_backward": partial(_onednn_flops, backward=True),
}
"""What PyTorch's counter of FLOPs does not know; backward as if the scores had been kept, as `count` has it."""


class StepTracker(TorchDispatchMode):
    """Follows which storages are alive, and counts the FLOPs and the bytes of every operation."""

    def __init__(self, gpu: bool) -> None:
        super().__init__()
        self.path_tracker, self.gpu = PathTracker(), gpu
        self.phase, self.part = "", ""  # the part that new storages belong to; "" is read off where they are made
        self.parts = [0] * len(PARTS)
        self.moments: list[Moment] = []
        self.kernels: Counter[tuple[int, int]] = Counter()
        self._storages: dict[int, tuple[weakref.ref[Any], int, int]] = {}
        self._max_positions: dict[
            int, int
        ] = {}  # by storage: the largest of consecutive positions, which fakes do not hold

    def assign(self, tensors: Any, part: str, extra_bytes: int = 0) -> None:
        """Count storages to a part, whatever they counted to before; each with `more` bytes in addition."""
        place = PARTS.index(part)
        for tensor in iter_tensors(tensors):
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self._storages:
                known, before, size = self._storages[key]
                self.parts[before] -= size
                self._storages[key] = known, place, size
            else:
                size = storage.nbytes() + extra_bytes
                self._storages[key] = weakref.ref(storage, partial(self._free, key)), place, size
            self.parts[place] += size

    def _free(self, key: int, _: Any) -> None:
        self._max_positions.pop(key, None)
        if found := self._storages.pop(key, None):
            self.parts[found[1]] -= found[2]

    def belongs_to(self, tensor: Tensor, part: str) -> bool:
        """Whether a tensor's storage counts to a part."""
        found = self._storages.get(tensor.untyped_storage()._cdata)
        return found is not None and PARTS[found[1]] == part

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count what it made, read and wrote."""
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and args[0].dtype == torch.bool:
            return not self.gpu  # whether all tokens are there: a CPU is asked, and says yes; a GPU is not
        name = func._overloadpacket.__name__
        if name in LOOKUP_OPERATORS:
            self._check_positions(args)
        out = func(*args, **kwargs)
        if not self.phase and not self.part:
            return out
        made = [one for one in iter_tensors(out) if one.untyped_storage()._cdata not in self._storages]
        if made and func is torch.ops.aten.mkldnn_rnn_layer.default and not out[3].numel():
            self.assign(out[3], self._part_of(func, args), onednn_reserve_bytes(args))
        if made:
            self.assign(made, self.part or self._part_of(func, args))
        if name == "arange" and out.numel():
            self._max_positions[out.untyped_storage()._cdata] = int(max([0, *args[:2]][-1] - 1, 0))
        if self.phase and (made or name.endswith("_") or name in SCRATCH_OPERATORS):
            path = self.path_tracker.current
            place = f", at {path.removeprefix('model.') or 'the loss'}" if self.phase != "optimizer step" else ""
            *others, buffers = self.parts
            inside = onednn_scratch_bytes(args) if name in SCRATCH_OPERATORS else 0
            self.moments.append(Moment((*others, buffers + inside), self.phase + place))
            self._count_kernel(func, args, kwargs, out)
        return out

    def _check_positions(self, args: Sequence[Any]) -> None:
        """Refuse positions past the end of a table, which tensors without numbers would let pass."""
        table, *others = args
        for dimension, index in enumerate(iter_tensors(others)):
            largest = self._max_positions.get(index.untyped_storage()._cdata, 0)
            if dimension < table.dim() and largest >= (rows := table.shape[dimension]):
                raise IndexError(f"position {largest:,} is past the end of a table of {rows:,}")

    def _part_of(self, func: Any, args: Any) -> str:
        path = self.path_tracker.current
        if self.phase == "optimizer step":
            return "buffers"
        copied = func is torch.ops.aten._to_copy.default and self.belongs_to(args[0], "weights")
        if path == "" or path.removeprefix("model.") in OUTPUT_MODULES:
            return "buffers" if copied else "logits"
        return "activations" if self.phase == "forward pass" and not copied else "buffers"

    def _count_kernel(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        name = func._overloadpacket.__name__
        if name.startswith(("empty", "new_empty")):
            return  # nothing is written to it yet
        formula = CPU_FLOPS.get(name) or flop_registry.get(func._overloadpacket)
        read = [*iter_tensors(args), *iter_tensors(kwargs)]
        read = read[1:] if name in LOOKUP_OPERATORS else read
        moved = sum(tensor.numel() * tensor.element_size() for tensor in [*read, *iter_tensors(out)])
        self.add_kernel(formula(*args, **kwargs, out_val=out) if formula else 0, moved)

    def add_kernel(self, flops: int, bytes_moved: int) -> None:
        """Count an operation."""
        self.kernels[flops, bytes_moved] += 1


def trace_step(subject: Subject, settings: StepSettings, values: Sizes | None = None) -> StepTrace:
    """Follow a training step of a subject at some sizes, those asked for unless others are given."""
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
                return _trace(subject, module, settings, values)
        except Exception as error:  # not every module can be followed without numbers
            failure = error
    if quick or (4 * weights <= MAX_QUICK_RUN and work <= MAX_REAL_STEP):
        try:
            return _trace(subject, subject.build(values, "cpu"), settings, values)
        except Exception as error:
            failure = failure or error
    why = str(failure).strip().partition("\n")[0] or type(failure).__name__
    words = format_sizes(values)
    raise CountingError(f"a training step of {subject.name} cannot be followed at {words}: {why}") from failure


def _trace(subject: Subject, module: nn.Module, settings: StepSettings, values: Sizes) -> StepTrace:
    recipe = settings.recipe.replace(batch=values.get(BATCH, 1))
    with ExitStack() as stack:
        meter = StepTracker(settings.gpu)
        stack.enter_context(_emulate_gpu(meter))
        model = _materialize(module).train()
        inputs = subject.build_inputs(values, "cpu")
        step = _make_step(subject, model, inputs, recipe)
        layers = list(find_layers(model))
        meter.path_tracker = stack.enter_context(track_paths(step.module))
        if settings.recompute:

            def run(forward: Callable[..., Any], *args: Any, **named: Any) -> Any:
                with GpuEmulation(meter, settings.precision) if settings.gpu else nullcontext():
                    return forward(*args, **named)  # in backward, where no mode of the forward pass is left

            for layer in layers:
                inside = partial(run, layer.forward)
                layer.forward = partial(checkpoint, inside, use_reentrant=False, preserve_rng_state=False)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = build_optimizer(model, recipe) if trained else None
        with meter:
            meter.assign(list(model.parameters()), "weights")
            meter.assign([list(model.buffers()), list(inputs.args), dict(inputs.kwargs)], "buffers")
            for parameter in trained:
                parameter.register_post_accumulate_grad_hook(lambda one: meter.assign(one.grad, "gradients"))
                parameter.grad = torch.empty_like(parameter)
                meter.assign(parameter.grad, "gradients")
            if optimizer:
                meter.part = "optimizer"
                optimizer.step()
                meter.part = ""
                if recipe.accumulate == 1:
                    optimizer.zero_grad(set_to_none=True)
            with GpuEmulation(meter, settings.precision) if settings.gpu else nullcontext():
                meter.phase = "forward pass"
                loss = step.forward(settings, meter)
                meter.phase = "backward pass"
                if loss is not None:
                    loss.backward()
                del loss
            meter.phase = "optimizer step"
            if optimizer:
                clip_gradients(model, recipe.clip)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            meter.phase = ""
    sizes = [sum(p.numel() * p.element_size() for p in layer.parameters()) for layer in layers]
    whole = sum(p.numel() * p.element_size() for p in model.parameters())
    return StepTrace(tuple(meter.moments), dict(meter.kernels), max(sizes, default=whole), len(layers))


@contextmanager
def _emulate_gpu(meter: StepTracker) -> Iterator[None]:
    """Let the CPU stand in for a GPU, if one is planned for: the trainer then takes its operators."""
    fused.COST_RECORDER = meter.add_kernel if meter.gpu else None
    try:
        yield
    finally:
        fused.COST_RECORDER = None


def _materialize(module: nn.Module) -> nn.Module:
    """Give a module that was built on the meta device tensors of the CPU: fake ones, where tensors are fake."""
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
        for held in holders:
            held.update({name: moved(one) for name, one in held.items() if isinstance(one, Tensor)})
        if isinstance(part, nn.RNNBase):
            part._flat_weights = [getattr(part, name) for name in part._flat_weights_names]
    return module


@dataclass(frozen=True)
class _Step:
    """What is called in the forward pass."""

    module: nn.Module
    call: Callable[[], Any]

    def forward(self, settings: StepSettings, meter: StepTracker) -> Tensor | None:
        """Return what is minimised; None if nothing is trained."""
        lowered = settings.precision != torch.float32
        handle = None
        if (model := getattr(self.module, "model", None)) is not None:
            handle = model.register_forward_hook(lambda _, __, out: meter.assign(_first_tensor(out), "logits"))
        with torch.autocast("cpu", settings.precision) if lowered else nullcontext():
            out = self.call()
        if handle:
            handle.remove()
        outputs = differentiable_outputs(out)
        if not outputs or not outputs[0].dim():  # nothing is trained, or a loss comes first
            return outputs[0] if outputs else None
        loss, *others = (output.sum() for output in outputs)
        return sum(others, loss)


def _first_tensor(out: Any) -> list[Tensor]:
    """The first tensor that comes out of a model: its logits."""
    return list(iter_tensors(out, True))[:1]


def _make_step(subject: Subject, model: nn.Module, inputs: Inputs, recipe: Recipe) -> _Step:
    """The trainer's own loss where the model is one of ours; else the sum of what comes out."""
    spec = getattr(model, "spec", None)
    if not isinstance(spec, specs.ModelSpec) or isinstance(
        spec, specs.Parser | specs.DualEncoder | specs.CrossAttention | specs.Graph | specs.Tree
    ):
        return _Step(model, lambda: model(*inputs.args, **inputs.kwargs))
    first, *rest = inputs.args
    if isinstance(spec, specs.EncoderDecoder):  # targets are one longer than what is fed
        targets = torch.zeros(rest[0].shape[0], rest[0].shape[1] + 1, dtype=torch.long)
    else:
        targets = torch.zeros(first.shape[0], 1, dtype=torch.long) if isinstance(spec, specs.Classifier) else first
    loss = task_for(spec).loss(model, recipe)
    return _Step(loss, lambda: loss(first, targets, None)[0])


def find_layers(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of a model: the members of its outermost lists of modules of one class that have parts themselves."""
    for child in module.children():
        members = list(child.children()) if isinstance(child, nn.ModuleList | nn.Sequential) else []
        if len({type(one) for one in members}) == 1 and any(list(one.children()) for one in members):
            yield from members
        else:
            yield from find_layers(child)


# fmt: off
FLOAT32 = frozenset((
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt",
    "sinh", "tan", "pow", "__pow__", "__rpow__", "softplus", "layer_norm", "rms_norm", "group_norm", "norm",
    "cosine_similarity", "cosine_embedding_loss", "nll_loss", "kl_div", "l1_loss", "smooth_l1_loss", "mse_loss",
    "huber_loss", "binary_cross_entropy_with_logits", "dist", "cdist", "renorm", "logsumexp",
))
# fmt: on
"""What autocast computes in float32 on a GPU and not on a CPU (ATen/autocast_mode.h)."""
FLOAT32_BY_DEFAULT = frozenset(["prod", "softmax", "log_softmax", "cumprod", "cumsum", "sum", "vector_norm"])
RECURRENT = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}  # gates


class GpuEmulation(TorchFunctionMode):
    """What a GPU does otherwise than a CPU."""

    def __init__(self, meter: StepTracker, precision: torch.dtype) -> None:
        super().__init__()
        self.meter, self.precision = meter, precision

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function as a GPU would."""
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
            args = tuple(_to_float32(one) for one in args)
            kwargs = {word: _to_float32(one) for word, one in kwargs.items()}
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
        """Fused attention: queries, keys, values, the result and one number a row are kept for backward."""
        lowered = torch.is_autocast_enabled("cpu")
        if lowered:
            query, key, value = (one.to(self.precision) for one in (query, key, value))
        half = query.dtype in (torch.bfloat16, torch.float16)
        if query.dim() != 4 or (enable_gqa and not half):  # grouped heads have a kernel in half precision only
            with sdpa_kernel(SDPBackend.MATH):
                return func(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
        if attn_mask is not None and not attn_mask.requires_grad:
            attn_mask = attn_mask.to(query.dtype).expand(*query.shape[:-1], key.shape[-2])
        heads, new, width = query.shape[1:]
        self.meter.add_kernel(
            2 * len(query) * heads * new * key.shape[-2] * (width + value.shape[-1]),
            sum(one.numel() * one.element_size() for one in (query, key, value, query)),
        )
        return _FusedAttention.apply(query, key, value, attn_mask, self.meter)

    def _recurrent(
        self,
        name: str,
        given: Tensor,
        state: Any,
        weights: Sequence[Tensor],
        biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        both_ways: bool,
        batch_first: bool,
    ) -> Any:
        """A cuDNN call: the input time first, all weights in one buffer, and what it keeps for backward."""
        dtype = self.precision if torch.is_autocast_enabled("cpu") else given.dtype
        states = state if isinstance(state, tuple) else (state,)
        batch, time = given.shape[:2] if batch_first else given.shape[1::-1]
        hidden, ways = states[0].shape[-1], 1 + both_ways
        kept = cudnn_reserve_bytes(name, (batch, time, given.shape[-1], hidden, layers, ways), dtype)
        flops, backward = (
            recurrent_flops(given, weights, batch * time, batch, directions=ways, backward=back)
            for back in (False, True)
        )
        self.meter.add_kernel(flops, sum(one.numel() for one in weights) * dtype.itemsize * time)
        out = _CudnnLayers.apply(self.meter, backward, kept, hidden * ways, batch_first, dtype, given, *weights)
        return (out, *(one.to(dtype) for one in states))


class _FusedAttention(torch.autograd.Function):
    """The memory of fused attention: softmax(QKᵀ) is never stored. Backward, dQ is summed in float32."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, meter: StepTracker) -> Tensor:
        # laid out as the kernel does: heads after time, so that joining the heads again is a view
        out = query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]).transpose(1, 2)
        rows = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, mask, out, rows)
        ctx.meter = meter
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        query, key, value, _, out, _ = ctx.saved_tensors
        sums = torch.empty_like(query, dtype=torch.float32)
        spread = (len(query), query.shape[1], key.shape[2], key.shape[3])
        wide = [key.new_empty(spread), value.new_empty(spread)] if key.shape[1] < query.shape[1] else []
        given = [torch.empty_like(one) for one in (query, key, value)]
        work = 2 * len(query) * query.shape[1] * query.shape[2] * key.shape[2]
        moved = sum(one.numel() * one.element_size() for one in (query, key, value, out, grad, sums, *given))
        ctx.meter.add_kernel(2 * work * (query.shape[-1] + value.shape[-1]), moved)
        del sums, wide
        return *given, None, None


class _CudnnLayers(torch.autograd.Function):
    """The memory of cuDNN's recurrent layers."""

    @staticmethod
    def forward(
        ctx: Any,
        meter: StepTracker,
        flops: int,
        kept: int,
        width: int,
        batch_first: bool,
        dtype: torch.dtype,
        given: Tensor,
        *weights: Tensor,
    ) -> Tensor:
        lowered = given.to(dtype)
        first = lowered.transpose(0, 1).contiguous() if batch_first else lowered
        size = sum(one.numel() for one in weights)
        flat = first.new_empty(size) if weights[0].dtype != dtype else weights[0]
        meter.assign(flat, "buffers" if flat is not weights[0] else "weights")
        reserve = first.new_empty(kept, dtype=torch.uint8)
        out = first.new_empty(*first.shape[:-1], width)
        ctx.save_for_backward(first, flat, reserve, out, *weights)
        ctx.about = meter, flops, batch_first, given.dtype, size
        return out.transpose(0, 1) if batch_first else out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        first, _, _, _, *weights = ctx.saved_tensors
        meter, flops, batch_first, dtype, size = ctx.about
        grad = (grad.transpose(0, 1) if batch_first else grad).contiguous()
        meter.add_kernel(flops, 0)
        into = torch.empty_like(first)
        flat = first.new_empty(size)
        parts = [
            part.view_as(one).to(one.dtype)
            for part, one in zip(flat.split([one.numel() for one in weights]), weights, strict=True)
        ]
        back = (into.transpose(0, 1) if batch_first else into).to(dtype)
        return None, None, None, None, None, None, back, *parts


def cudnn_reserve_bytes(name: str, sizes: tuple[int, int, int, int, int, int], dtype: torch.dtype) -> int:
    """The bytes that cuDNN keeps of a batch for the backward pass: asked of it where there is a GPU, else estimated."""
    batch, time, width, hidden, layers, ways = sizes
    if torch.cuda.is_available():
        with suppress(Exception), _real_tensors():
            cells = {"lstm": nn.LSTM, "gru": nn.GRU}.get(name, nn.RNN)
            real = cells(width, hidden, layers, bidirectional=ways == 2, device="cuda", dtype=dtype)
            before = torch.cuda.memory_allocated()
            given = torch.zeros(time, batch, width, device="cuda", dtype=dtype)
            out, _ = real(given)
            return torch.cuda.memory_allocated() - before - (given.numel() + out.numel()) * dtype.itemsize
    return CUDNN_RESERVE_PER_UNIT * batch * time * hidden * layers * ways * dtype.itemsize


def onednn_reserve_bytes(args: Sequence[Any]) -> int:
    """The bytes that oneDNN's recurrent layer keeps for the backward pass, read off two short texts."""
    time, found = args[0].shape[0], []
    with _real_tensors():
        for length in (2, 3):
            shapes = [(length, *args[0].shape[1:]), *(one.shape for one in args[1:7])]
            real = [torch.zeros(shape, dtype=one.dtype) for shape, one in zip(shapes, args[:7], strict=True)]
            found.append(torch.ops.aten.mkldnn_rnn_layer(*real, *args[7:])[3].nbytes)
    return found[0] + (time - 2) * (found[1] - found[0])


def onednn_scratch_bytes(args: Sequence[Any]) -> int:
    """The bytes that oneDNN's recurrent layer needs while it runs: all gates of all tokens, and its weights again."""
    (time, batch, _), weights = args[0].shape, args[1:5]
    return (time * batch * weights[0].shape[0] + sum(one.numel() for one in weights)) * args[0].element_size()


@contextmanager
def _real_tensors() -> Iterator[None]:
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.utils._python_dispatch import _disable_current_modes

    with unset_fake_temporarily(), _disable_current_modes():
        yield


def _to_float32(value: Any) -> Any:
    lower = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if lower else value
