"""What is measured of a module, by module path: parameter shapes, FLOPs, bytes."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import takewhile
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from lemma.counting.probe import Amounts, Readings
from lemma.counting.subject import Inputs
from lemma.layers.recording import AttentionListener, AttentionRecord
from lemma.models.encoder_decoder import EncoderDecoderModel


class PathTracker:
    """The path of the module that is running: forward by hooks, backward by the numbers autograd gives its nodes."""

    def __init__(self) -> None:
        self.stack: list[str] = []
        self._start_numbers: list[int] = []
        self._paths: list[str] = []

    @property
    def current(self) -> str:
        """The path that is running, in forward or in backward."""
        node = torch._C._current_autograd_node()
        if node is None:
            return self.stack[-1] if self.stack else ""
        at = bisect_right(self._start_numbers, node._sequence_nr()) - 1  # pyright: ignore[reportAttributeAccessIssue]
        return self._paths[at] if at >= 0 else ""

    def enter(self, path: str) -> None:
        """Note that a module begins."""
        self.stack.append(path)
        self._record()

    def leave(self) -> None:
        """Note that it ends."""
        self.stack.pop()
        self._record()

    def _record(self) -> None:
        self._start_numbers.append(torch.autograd._get_sequence_nr())  # pyright: ignore[reportPrivateImportUsage]
        self._paths.append(self.stack[-1] if self.stack else "")


@contextmanager
def track_paths(module: nn.Module) -> Iterator[PathTracker]:
    """Follow which part of a module is running."""
    path_now, handles = PathTracker(), []
    for path, part in module.named_modules():
        handles.append(part.register_forward_pre_hook(lambda *given, path=path: path_now.enter(path)))
        handles.append(part.register_forward_hook(lambda *given: path_now.leave(), always_call=True))
    try:
        yield path_now
    finally:
        for handle in handles:
            handle.remove()


def run_forward(module: nn.Module, inputs: Inputs) -> Readings:
    """Run a module forward and measure nothing."""
    with torch.no_grad():
        module(*inputs.args, **inputs.kwargs)
    return {}


def iter_tensors(value: Any, dataclasses: bool = False) -> Iterator[Tensor]:
    """The tensors in dictionaries, lists and tuples, and if wanted in dataclasses, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from iter_tensors(inner, dataclasses)
    elif dataclasses and is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            yield from iter_tensors(getattr(value, one.name), dataclasses)


CACHE_NAMES = ("past_key_values", "cache_params", "mems", "state")  # what the transformers library calls its caches


def differentiable_outputs(outputs: Any) -> list[Tensor]:
    """Return the tensors from which a loss may go backward: all that an output holds, except states and caches.

    Containers may be nested: tuples, lists, mappings, dataclasses. A tensor from which another one was computed, such
    as an inner layer's hidden state, is left out: what lies before it is reached anyway.
    """

    def leave_out_states(value: Any) -> Any:
        if hasattr(value, "tensors") and not isinstance(value, Tensor):
            return None
        if is_dataclass(value) and not isinstance(value, (type, Mapping)):
            value = {one.name: getattr(value, one.name) for one in fields(value)}
        if isinstance(value, Mapping):
            return [leave_out_states(inner) for name, inner in value.items() if name not in CACHE_NAMES]
        return [leave_out_states(inner) for inner in value] if isinstance(value, (list, tuple)) else value

    outputs = [tensor for tensor in iter_tensors(leave_out_states(outputs)) if tensor.requires_grad]
    inner: set[Any] = set()  # the nodes of autograd before those of the outputs
    waiting = [node for tensor in outputs if tensor.grad_fn for node, _ in tensor.grad_fn.next_functions]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in inner:
            inner.add(node)
            waiting += [before for before, _ in node.next_functions]
    return [tensor for tensor in outputs if tensor.grad_fn not in inner]


# FLOPs, forward and backward, as PyTorch's own counter counts them: matrix products, convolutions and attention by the
# formulas of `torch.utils.flop_counter`, a multiply–add as two. Elementwise work is kept apart: one for every element
# that a pointwise operation, a softmax or a norm gives out.

PRODUCTS, CAUSAL, ELEMENTS = 0, 1, 2  # what is counted in one pass; causal products are among the products
COLUMNS = 2  # of a reading of products, for one pass
ROW_OPERATORS = (
    "_softmax",
    "_log_softmax",
    "native_layer_norm",
    "_fused_rms_norm",
    "native_batch_norm",
    "native_group_norm",
)
CAUSAL_SUFFIX = " causal"  # follows the path while causal attention is running


def grouped_mm_flops(left: Tensor, right: Tensor, *others: Any, **named: Any) -> int:
    """The FLOPs of a product in which each row of one factor belongs to one matrix of the other, or sums to one."""
    groups = left.shape[0] if left.ndim == right.ndim == 3 else 1
    return 2 * groups * left.shape[-2] * left.shape[-1] * right.shape[-1]


# FLOPs of operators that PyTorch's own counter does not know: of their arguments and of what comes out.
EXTRA_FLOP_RULES: dict[str, Callable[..., int]] = {
    "mv": lambda matrix, vector, **_: 2 * matrix.numel(),
    "addmv": lambda added, matrix, vector, **_: 2 * matrix.numel(),
    "dot": lambda left, right, **_: 2 * left.numel(),
    "vdot": lambda left, right, **_: 2 * left.numel(),
    "addr": lambda added, left, right, **_: 2 * left.numel() * right.numel(),
    "addbmm": lambda added, left, right, **_: 2 * left.numel() * right.shape[-1],
    "conv_tbc": lambda rows, kernel, *_, out_val, **__: 2 * out_val.numel() * kernel.shape[0] * kernel.shape[1],
    "_addmm_activation": lambda added, left, right, *_, **__: 2 * left.numel() * right.shape[-1],
    "_int_mm": lambda left, right, **_: 2 * left.numel() * right.shape[-1],
    "_weight_int8pack_mm": lambda left, right, *_, **__: 2 * left.numel() * right.shape[0],
    "_grouped_mm": grouped_mm_flops,  # tokens with their own experts
    "grouped_mm_fallback": grouped_mm_flops,
}
OUTER_PRODUCTS = ("MvBackward0", "AddmvBackward0", "DotBackward0", "VdotBackward0")  # nodes whose `mul` is a product
PRODUCT_NAMES = re.compile(
    "mm(_|$)|bmm|mv(_|$)|dot(_|$)|matmul|linear|conv|attention|rnn|lstm|gru|cdist|pdist|euclidean|linalg|cholesky|solve"
    "|svd|eig|qr(f|$)|lu_|inverse|fft|encoder_layer"
)
NO_PRODUCTS = re.compile("upsample|_thnn_fused|vector_norm|check_errors|cross|_unpack")


@cache
def flop_rule(func: Any) -> Callable[..., int] | None:
    """Return the rule by which the FLOPs of an operator are counted; one that works in place has the same."""
    packet = func._overloadpacket
    name = packet.__name__.removesuffix("_")
    plain = getattr(torch.ops.aten, name, packet) if func.namespace == "aten" else packet
    return flop_registry.get(packet) or flop_registry.get(plain) or EXTRA_FLOP_RULES.get(name)


@cache
def lacks_flop_rule(func: Any) -> bool:
    """Return whether an operator without a rule may hold matrix products: by its name, or since it is not PyTorch's."""
    if func.namespace in ("prim", "prims"):
        return False
    name = func._overloadpacket.__name__
    return func.namespace != "aten" or bool(PRODUCT_NAMES.search(name) and not NO_PRODUCTS.search(name))


def product_flops(module: nn.Module, inputs: Inputs) -> Readings:
    """Run a module forward and backward; return for every path two columns forward and two backward."""
    return _collect_work(module, inputs, (PRODUCTS, CAUSAL))


def elementwise_flops(module: nn.Module, inputs: Inputs) -> Readings:
    """Run a module forward and backward; return for every path its elementwise work, forward and backward."""
    return _collect_work(module, inputs, (ELEMENTS,))


def find_uncounted(module: nn.Module, inputs: Inputs) -> Readings:
    """Run a module forward and backward; return how often, in each pass, what a count of FLOPs does not see happens.

    Keys are operators without a rule, and READS for numbers that Python reads, on which a loop or a branch may depend;
    then a space and the path of the module.
    """
    meter = _run_counter(module, inputs)
    names = dict.fromkeys((name, path) for path, _, name in meter.uncounted)
    return {f"{name} {path}": (meter.uncounted[path, 0, name], meter.uncounted[path, 1, name]) for name, path in names}


READS_DATA = "reads"


def _collect_work(module: nn.Module, inputs: Inputs, columns: tuple[int, ...]) -> Readings:
    work = _run_counter(module, inputs).work
    paths = dict.fromkeys(path for path, _, column in work if column in columns)
    return {path: tuple(work[path, phase, at] for phase in (0, 1) for at in columns) for path in paths}


def _run_counter(module: nn.Module, inputs: Inputs) -> "FlopCounter":
    with track_paths(module) as path_now, FlopCounter(path_now) as meter, CausalTracker(path_now):
        outputs = differentiable_outputs(module(*inputs.args, **inputs.kwargs))
        meter.phase = 1
        if outputs:  # else there is nothing to learn: all is frozen, or what comes out are whole numbers
            torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
    return meter


class FlopCounter(TorchDispatchMode):
    """Adds up the work of every operation under the path at which it happens."""

    def __init__(self, path_now: PathTracker) -> None:
        super().__init__()
        self.tracker, self.phase = path_now, 0
        self.work: Counter[tuple[str, int, int]] = Counter()
        self.uncounted: Counter[tuple[str, int, str]] = Counter()
        self._undecomposable: set[Any] = {torch.ops.prim.device.default}  # operations that cannot be taken apart

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operation that has a formula; take apart one that has none, as PyTorch's counter does."""
        kwargs = kwargs or {}
        formula = flop_rule(func)
        if formula is None and func not in self._undecomposable:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
            self._undecomposable.add(func)
        out = func(*args, **kwargs)
        path = self.tracker.current
        causal, path = path.endswith(CAUSAL_SUFFIX), path.removesuffix(CAUSAL_SUFFIX)
        node = torch._C._current_autograd_node()
        if func._overloadpacket is torch.ops.aten.mul and node is not None and node.name() in OUTER_PRODUCTS:
            self.work[path, self.phase, PRODUCTS] += 2 * out.numel()
        elif formula is not None:
            amount = formula(*args, **kwargs, out_val=out)
            self.work[path, self.phase, PRODUCTS] += amount
            self.work[path, self.phase, CAUSAL] += amount if causal else 0
        elif torch.Tag.pointwise in func.tags or func._overloadpacket.__name__.startswith(ROW_OPERATORS):
            first = out[0] if isinstance(out, tuple) else out
            self.work[path, self.phase, ELEMENTS] += first.numel() if isinstance(first, Tensor) else 0
        elif torch.Tag.data_dependent_output in func.tags:
            self.uncounted[path, self.phase, READS_DATA] += 1
        elif lacks_flop_rule(func):
            self.uncounted[path, self.phase, str(func._overloadpacket)] += 1
        return out


class CausalTracker(AttentionListener):
    """Marks the time spent in causal attention, half of whose scores are not needed.

    Our own attention announces it; of others the switch of the kernel says it.
    """

    def __init__(self, path_now: PathTracker) -> None:
        super().__init__()
        self.tracker, self.causal = path_now, False

    def on_attention(self, record: AttentionRecord) -> None:
        """Note whether what comes is causal; the record itself is not kept."""
        self.causal = record.causal

    def on_sdpa(self, attend: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Call it, and note where causal attention begins and ends."""
        path = self.tracker.stack[-1] if self.tracker.stack else ""
        switch = kwargs.get("is_causal", args[5] if len(args) > 5 else False)
        if not (self.causal if self.is_announced else switch):
            return attend(*args, **kwargs)
        self.tracker.enter(path + CAUSAL_SUFFIX)
        try:
            return attend(*args, **kwargs)
        finally:
            self.tracker.leave()


def parameter_shapes(module: nn.Module, trainable: bool | None) -> Readings:
    """The shape of every parameter that is, or is not, trained, or of all; a tied one is under its first name.

    Weights that a quantized module has packed, so that they are no parameters any more, are among those not trained.
    """
    found = {
        name: tuple(parameter.shape)
        for name, parameter in module.named_parameters()
        if trainable in (None, parameter.requires_grad)
    }
    return found if trainable else {**found, **packed_shapes(module)}


def packed_shapes(module: nn.Module) -> Readings:
    """Return the shapes of weights packed into objects of PyTorch's, as `quantize_dynamic` does."""

    def unpack(value: Any) -> Iterator[Tensor]:
        if isinstance(value, torch.ScriptObject):
            value = value.__getstate__()
        if isinstance(value, (list, tuple)):
            for inner in value:
                yield from unpack(inner)
        elif isinstance(value, Tensor):
            yield value

    found: dict[str, Amounts] = {}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.ScriptObject):
                tensors = {tensor.data_ptr(): tensor for tensor in unpack(value)}  # recurrent ones hold biases twice
                for number, tensor in enumerate(tensors.values()):
                    found[f"{path}.{name}.{number}".removeprefix(".")] = tuple(tensor.shape)
    return found


class MetaGroupedMM(TorchDispatchMode):
    """Lets products of tokens with their experts run on meta and fake tensors, whatever their type.

    PyTorch's own meta kernel takes bfloat16 only, where those of CPUs take any type.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return a tensor of the right shape for a grouped product; call any other operator."""
        kwargs = kwargs or {}
        if func._overloadpacket is not getattr(torch.ops.aten, "_grouped_mm", None):
            return func(*args, **kwargs)
        left, right = args[:2]
        ends = args[2] if len(args) > 2 else kwargs.get("offs")
        rows, columns = left.shape[-2], right.shape[-1]
        if left.ndim == right.ndim:
            return left.new_empty(left.shape[0] if left.ndim == 3 else len(ends), rows, columns)
        return left.new_empty(rows, columns)


class RoutingTracker(TorchDispatchMode):
    """Notes where the largest few are chosen, of how many and how many: the experts of a router."""

    def __init__(self, path_now: PathTracker) -> None:
        super().__init__()
        self.tracker = path_now
        self.chosen: dict[tuple[str, int], int] = {}  # of a path and a number of experts, how many are chosen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation; a choice of the largest few routes a token, unless it is one that learns nothing."""
        kwargs = kwargs or {}
        if func._overloadpacket is torch.ops.aten.topk and args[0].is_floating_point():
            number = args[1] if len(args) > 1 else kwargs["k"]
            self.chosen[self.tracker.current, args[0].shape[-1]] = number
        return func(*args, **kwargs)

    def experts_chosen_near(self, path: str, experts: int) -> int:
        """Return how many experts the router closest to a path chooses of this number; all of them without a router."""

        def shared(other: str) -> int:
            pairs = zip(path.split("."), other.split("."), strict=False)
            return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))

        near = [(shared(router), chosen) for (router, number), chosen in self.chosen.items() if number == experts]
        return max(near)[1] if near else experts


def find_stacked_experts(module: nn.Module, numbers: Collection[int]) -> set[str]:
    """Return the names of parameters that hold all experts of a layer in one tensor: their matrices and biases."""
    found: set[str] = set()
    for path, part in module.named_modules():
        mine = {name: one for name, one in part.named_parameters(path, recurse=False) if one.dim() > 1}
        stacked = {name for name, one in mine.items() if one.shape[0] in numbers}
        if any(mine[name].dim() > 2 for name in stacked):
            found |= stacked
    return found


def active_sizes(module: nn.Module, inputs: Inputs) -> Readings:
    """Run a module on one token; return how many numbers of each parameter take part in what comes out.

    Experts may be modules of their own, or matrices stacked in one tensor. What is not routed takes part as a whole. On
    real tensors gradients tell which experts take part; on the meta device it is as many as each router chooses.
    Nothing is returned if there is no choice of the largest few.
    """
    with track_paths(module) as path_now, RoutingTracker(path_now) as watch:
        outputs = module(*inputs.args, **inputs.kwargs)
    trained = differentiable_outputs(outputs)
    if not watch.chosen or not trained:
        return {}
    numbers = {experts for _, experts in watch.chosen}
    stacked = find_stacked_experts(module, numbers)
    whole = {name: parameter.numel() for name, parameter in module.named_parameters()}
    found = dict(whole)
    if trained[0].is_meta:
        for name, parameter in module.named_parameters():
            if name in stacked:
                experts = parameter.shape[0]
                found[name] = whole[name] // experts * watch.experts_chosen_near(name, experts)
        for path, part in module.named_modules():
            if isinstance(part, nn.ModuleList) and len(part) in numbers:
                idle = {id(one) for one in part[watch.experts_chosen_near(path, len(part)) :].parameters()}
                found |= {name: 0 for name, one in module.named_parameters() if id(one) in idle}
    else:
        torch.autograd.backward(trained, [torch.rand_like(output) for output in trained])
        for name, parameter in module.named_parameters():
            if parameter.grad is None:
                found[name] = 0 if parameter.requires_grad else whole[name]
            elif name in stacked:
                active = int((parameter.grad != 0).flatten(1).any(1).sum())
                found[name] = whole[name] // len(parameter) * active
    return {name: (size,) for name, size in found.items()} if found != whole else {}


def total_size(rows: Sequence[Amounts]) -> Amounts:
    """How many numbers tensors of different shapes hold together."""
    return (sum(prod(shape) for shape in rows),)


def find_tied_names(module: nn.Module) -> dict[str, list[str]]:
    """The other names of every parameter that has more than one."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {first: others for first, *others in names.values() if others}


def optimizer_bytes(module: nn.Module) -> Readings:
    """The bytes that AdamW keeps for every trained parameter, read off its state after one step."""
    named = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    for parameter in named.values():
        parameter.grad = torch.zeros_like(parameter)
    if not named:
        return {}
    optimizer = torch.optim.AdamW(named.values(), foreach=False)
    optimizer.step()
    kept = {name: [t for t in optimizer.state[one].values() if isinstance(t, Tensor)] for name, one in named.items()}
    return {name: (sum(tensor.numel() * tensor.element_size() for tensor in state),) for name, state in kept.items()}


def saved_bytes(module: nn.Module, inputs: Inputs) -> Readings:
    """Run a module forward; return the bytes autograd saved, under the path that saved them first.

    A storage counts once, however many views of it are saved; parameters and buffers are there anyway and do not count.
    """
    held = [*module.parameters(), *module.buffers()]
    there, known = {id(tensor) for tensor in held}, {tensor.untyped_storage()._cdata for tensor in held}
    kept: list[Tensor] = []  # as long as they live, no other storage can have their address
    amounts: Counter[str] = Counter()
    with track_paths(module) as path_now:

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in known and id(tensor._base) not in there:
                known.add(storage._cdata)
                kept.append(tensor)
                amounts[path_now.current] += storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            outputs = module(*inputs.args, **inputs.kwargs)
    del outputs
    return {path: (amount,) for path, amount in amounts.items()}


def state_bytes(module: nn.Module, inputs: Inputs) -> Readings:
    """The bytes of the state or cache that a module returns next to its output, by name.

    It may be a state of ours, a transformers cache, or the vectors of a recurrent torch.nn module. An encoder–decoder
    returns one only when it reads its source and writes its target step by step.
    """
    with torch.no_grad():
        if isinstance(module, EncoderDecoderModel):
            source, target = inputs.args
            outputs = module.step(target, module.begin(source))
        else:
            outputs = module(*inputs.args, **inputs.kwargs)
    cache: Any = next((found for name in CACHE_NAMES if (found := getattr(outputs, name, None)) is not None), None)
    state: Any = outputs[1] if isinstance(outputs, tuple) and len(outputs) > 1 else None
    if cache is not None:
        found = dict(_tensors_by_name(cache))
    elif hasattr(state, "tensors"):
        found = state.tensors()
        vectors = {name: tensor for name, tensor in found.items() if tensor.is_floating_point()}
        found = vectors or found  # next to keys and values, the tokens read so far are bookkeeping
    elif isinstance(state, Tensor) or (isinstance(state, tuple) and len(state) < 3):  # of a recurrent torch.nn module
        found = dict(zip(("hidden", "cell"), state if isinstance(state, tuple) else (state,), strict=False))
    else:  # such as the keys and values of every layer
        found = dict(_tensors_by_name(state)) if isinstance(state, (tuple, list, dict)) else {}
    tensors = {name: value for name, value in found.items() if isinstance(value, Tensor)}
    return {name: (tensor.numel() * tensor.element_size(),) for name, tensor in tensors.items()}


def _tensors_by_name(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a cache: of its layers, and of the caches in it."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, (dict, list, tuple)) or hasattr(value, "__dict__"):
        numbered = isinstance(value, (list, tuple))
        parts = enumerate(value) if numbered else (value if isinstance(value, dict) else vars(value)).items()
        for name, inner in parts:
            if not str(name).startswith("_"):  # auxiliary numbers are no state
                yield from _tensors_by_name(inner, f"{path}.{name}".removeprefix("."))
