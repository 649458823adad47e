"""Measurements of a module, by module path: parameter shapes, FLOPs, bytes.

A measurement is a function of a module and its inputs that returns `Readings`. `ModuleReader` takes measurements of one
subject at many sizes, within limits of time and memory.
"""

import re
import warnings
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, cached_property, partial
from itertools import chain, islice, takewhile
from math import inf, prod
from time import process_time
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch.autograd.function import BackwardCFunction
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from lemma.counting.contractions import ConstantTracker, ContractionFinder
from lemma.counting.fit import (
    Amounts,
    Domain,
    ProbeSizes,
    Readings,
    Sizes,
    choose_probe_sizes,
    path_pattern,
    sample_sizes,
)
from lemma.counting.layer_kinds import LayerKinds, find_layer_kinds
from lemma.counting.subject import Inputs, Subject, format_sizes
from lemma.errors import CountingError, InputError, describe_error
from lemma.layers.recording import AttentionListener, AttentionRecord
from lemma.models.encoder_decoder import EncoderDecoderModel

Measure = Callable[[nn.Module, Inputs], Readings]
MAX_QUICK_ELEMENTS = 2**29  # of all tensors of a forward pass, up to which real ones are quicker than meta tensors
MAX_QUICK_RUN = 2**26  # bytes of weights and activations up to which a real run is preferred to one on fake tensors


@dataclass(frozen=True)
class CountLimits:
    """Limits of the work for formulas; past them, quantities are measured at the sizes asked for only."""

    seconds: float = 120.0  # processor time for reading a module at other sizes than those asked for, in all
    memory: int = 2**28  # bytes of weights and activations that a run on real tensors may take

    def __post_init__(self) -> None:
        if self.seconds <= 0 or self.memory <= 0:
            raise InputError(f"Limits must be above 0, got {self.seconds:g} seconds and {self.memory:,} bytes.")


DEFAULT_LIMITS = CountLimits()


class TooLargeToRunError(CountingError):
    """A module needs more memory for a real run than the limit."""


class TimeLimitError(CountingError):
    """Reading a module at small sizes took longer than the limit."""


class ModuleReader:
    """Builds and runs the modules of one subject at many sizes, within limits of time and memory.

    `on_reading` is called before each reading, to show progress.
    """

    def __init__(
        self, subject: Subject, limits: CountLimits = DEFAULT_LIMITS, on_reading: Callable[[], None] | None = None
    ) -> None:
        self.subject, self.limits = subject, limits
        self._deadline, self._on_reading = inf, on_reading
        self._works: dict[tuple[int, ...], bool] = {}
        self._weight_bytes: dict[tuple[int, ...], int] = {}
        self._shapes: dict[tuple[int, ...], dict[bool | None, Readings]] = {}
        self._passes: dict[tuple[Any, ...], PassReadings] = {}
        self._num_elements: dict[bool, int] = {}  # that a forward pass computes as requested (True), at small sizes

    @cached_property
    def kinds(self) -> LayerKinds:
        """Return the lists of the subject's modules with layers of several kinds."""
        subject = self.subject
        hints, symbols = subject.probe_sizes, subject.sizes(False)
        choices = choose_probe_sizes(symbols, subject.can_build, hints) if symbols.keys() - hints.keys() else [hints]
        base = next(iter(choices), None)
        return find_layer_kinds(subject, {name: base[name][0] for name in symbols}) if base else LayerKinds()

    @contextmanager
    def time_limit(self, seconds: float) -> Iterator[None]:
        """Limit the processor time of readings inside to `seconds`, in place of the outer limit.

        They raise TimeLimitError.
        """
        outer, self._deadline = self._deadline, process_time() + seconds
        try:
            yield
        finally:
            self._deadline = outer

    def check_time(self) -> None:
        """Raise TimeLimitError if the time limit is over."""
        if self._on_reading:
            self._on_reading()
        if process_time() > self._deadline:
            raise TimeLimitError(f"reading it at other sizes takes more than {self.limits.seconds:g} s, the time limit")

    def run(self, measure: Measure, sizes: Sizes, devices: Sequence[str]) -> Readings:
        """Build the module and its inputs and call `measure` on them, on the first of `devices` on which that works.

        Raises:
            CountingError: the module fails on all devices, with the reason.
        """
        return self.kinds.rename_all(self._call(measure, sizes, devices), sizes)

    def run_pass(self, sizes: Sizes, devices: Sequence[str]) -> "PassReadings":
        """Return the readings of a forward and a backward pass, on the first of `devices` on which they work.

        Meta tensors come first where real ones take long.
        """
        if (key := (*sizes.items(), *devices)) not in self._passes:
            order = ("meta", "cpu") if self.is_heavy(sizes) else devices
            try:
                readings = self._call(read_pass, sizes, order)
            except (TooLargeToRunError, TimeLimitError):
                raise
            except CountingError as error:  # autograd refuses some modules, such as those that change a state in place
                readings = replace(self._call(torch.no_grad()(read_pass), sizes, order), backward_failure=str(error))
            self._passes[key] = readings.rename(self.kinds, sizes)
        return self._passes[key]

    def is_heavy(self, sizes: Sizes) -> bool:
        """Return whether meta tensors, which do not compute, are quicker: once for small and for requested sizes.

        A forward pass on meta tensors tells how many numbers are computed.
        """
        is_requested = all(sizes.get(name) == size for name, size in self.subject.sizes(True).items())
        if is_requested not in self._num_elements:
            try:
                self._num_elements[is_requested] = self._call(count_elements, sizes, ("meta",))
            except CountingError:  # then real tensors are the only choice
                self._num_elements[is_requested] = 0
        return self._num_elements[is_requested] > MAX_QUICK_ELEMENTS

    def run_state(self, sizes: Sizes) -> Readings:
        """Return the bytes of the state or cache that the module returns, read off an earlier pass if there was one."""
        devices = ("meta", "cpu")
        for order in (devices, devices[::-1]):
            readings = self._passes.get((*sizes.items(), *order))
            if readings and readings.state:  # some models return none while they are trained
                return readings.state
        return self.run(state_bytes, sizes, devices)

    def _call(self, measure: Callable[[nn.Module, Inputs], Any], sizes: Sizes, devices: Sequence[str]) -> Any:
        """Call `measure` on the module and its inputs at these sizes, on the first of `devices` on which that works."""
        self.check_time()
        failure: Exception | None = None
        for device in devices:
            try:
                if device == "cpu" and self.exceeds_memory(sizes):
                    raise TooLargeToRunError(f"a run takes more than {self.limits.memory // 2**20} MiB")
                random_init = measure is active_sizes  # zeros would leave experts without a gradient
                with MetaGroupedMM() if device == "meta" else nullcontext():
                    module = self.subject.build(sizes, device, random_init)
                    return measure(module, self.subject.build_inputs(sizes, device))
            except TooLargeToRunError as error:
                failure = error
            except CountingError:
                raise
            except Exception as error:  # the forward pass of other people's code may fail in any way
                failure = failure if isinstance(failure, TooLargeToRunError) else error
        if isinstance(failure, TooLargeToRunError):
            raise failure
        assert failure
        reason = describe_error(failure)
        raise CountingError(f"{self.subject.name} cannot be run at {format_sizes(sizes)}: {reason}") from failure

    def build(self, sizes: Sizes) -> nn.Module:
        """Build the module on the meta device, or raise TimeLimitError if the time limit is over."""
        self.check_time()
        return self.subject.build({name: sizes[name] for name in self.subject.symbols})

    def shapes(self, sizes: Sizes, trainable: bool | None = None) -> Readings:
        """Return parameter shapes by path: of trainable (True), frozen (False) or all (None) parameters."""
        key = tuple(sizes[name] for name in self.subject.symbols)
        if key not in self._shapes:
            module = self.build(sizes)
            shapes = {choice: parameter_shapes(module, choice) for choice in (True, False, None)}
            self._shapes[key] = {choice: self.kinds.rename_all(rows, sizes) for choice, rows in shapes.items()}
        return self._shapes[key][trainable]

    def optimizer_bytes(self, sizes: Sizes) -> Readings:
        """Return the bytes of AdamW's state by parameter path."""
        return self.kinds.rename_all(optimizer_bytes(self.build(sizes)), sizes)

    def weight_bytes(self, sizes: Sizes) -> int:
        """Return the bytes of all parameters at these sizes."""
        key = tuple(sizes[name] for name in self.subject.symbols)
        if key not in self._weight_bytes:
            self._weight_bytes[key] = tensor_bytes(self.subject.build(sizes).parameters())
        return self._weight_bytes[key]

    def exceeds_memory(self, sizes: Sizes) -> bool:
        """Return whether the parameters at these sizes take more bytes than the memory limit."""
        requested = self.subject.symbols
        is_smaller = all(sizes[name] <= size for name, size in requested.items())
        if is_smaller and self.weight_bytes(requested) <= self.limits.memory:
            return False  # without building the module at these sizes
        return self.weight_bytes(sizes) > self.limits.memory

    def probe_sizes(self, with_inputs: bool, domain: Domain | None = None) -> Iterator[ProbeSizes]:
        """Yield probe sizes within `domain` at which the module works; without any, raise why it cannot be built.

        A module that has inputs is built only at sizes at which it also runs: heads that do not divide a width may fail
        late.
        """
        symbols = self.subject.sizes(with_inputs)
        hints = {**self.subject.probe_sizes, **self.kinds.depths}
        choices = choose_probe_sizes(symbols, partial(self.works_at, with_inputs), hints)
        if self.subject.probes_work:
            choices = [{name: list(hints[name]) for name in symbols}]
        elif not with_inputs and self.subject.make_inputs:
            choices = chain(self._first_sizes_that_run(), choices)
        has_any = False
        for sizes in choices:
            has_any = True
            yield domain.restrict(sizes) if domain else sizes
        if not has_any:
            self.subject.build(symbols)

    def small_sizes(self, with_inputs: bool = True) -> dict[str, int]:
        """Return small sizes at which the module can be built and, unless `with_inputs` is False, run."""
        try:
            probe_sizes = next(self.probe_sizes(with_inputs and self.subject.make_inputs is not None), None)
        except TimeLimitError:
            probe_sizes = None
        return sample_sizes(probe_sizes, 4)[-1] if probe_sizes else self.subject.sizes(True)

    def works_at(self, with_inputs: bool, sizes: Sizes) -> bool:
        """Return whether the module can be built at these sizes and, if `with_inputs`, run."""
        key = (with_inputs, *sizes.values())
        if key not in self._works:
            self.check_time()
            works = self.subject.can_build(sizes)
            if works and with_inputs:
                try:
                    is_large = self.exceeds_memory(sizes) or self.is_heavy(sizes)
                    self.run(run_forward, sizes, ("meta",) if is_large else ("cpu",))
                except CountingError:
                    works = False
            self._works[key] = works
        return self._works[key]

    def fails_as_requested(self) -> bool:
        """Return whether the module fails at the requested sizes; False if it is too large to find out quickly."""
        requested = self.subject.sizes(True)
        if not self.subject.can_build(requested):
            return True
        if self.exceeds_memory(requested) or self.is_heavy(requested):
            return False
        return not self.works_at(True, requested)

    def _first_sizes_that_run(self) -> list[ProbeSizes]:
        """Return the first probe sizes at which the module runs, as a list of one.

        None after half of the time limit, or if it does not run as requested either.
        """
        if self.fails_as_requested():
            return []
        remaining = self._deadline - process_time() - self.limits.seconds / 2
        with suppress(TimeLimitError), self.time_limit(remaining):
            first = islice(self.probe_sizes(True), 1)
            return [{name: sizes[name] for name in self.subject.symbols} for sizes in first]
        return []


@contextmanager
def single_thread() -> Iterator[None]:
    """Compute with one thread inside the context: in small modules threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def reference_kernels() -> Iterator[None]:
    """Compute attention and recurrent layers by matrix products inside the context, as the meta device does."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # mkldnn's switch warns about GPUs
            with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
                yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


class PathTracker:
    """The path of the module that is running: forward by hooks, backward by the numbers autograd gives its nodes."""

    def __init__(self) -> None:
        self.stack: list[str] = []
        self._start_numbers: list[int] = []
        self._paths: list[str] = []

    @property
    def current(self) -> str:
        """Return the path of the module that runs now, forward or backward; "" outside any module."""
        node = torch._C._current_autograd_node()
        if node is None:
            return self.stack[-1] if self.stack else ""
        sequence_number = node._sequence_nr()  # pyright: ignore[reportAttributeAccessIssue]
        index = bisect_right(self._start_numbers, sequence_number) - 1
        return self._paths[index] if index >= 0 else ""

    def enter(self, path: str) -> None:
        """Record that the module at `path` starts its forward pass."""
        self.stack.append(path)
        self._record()

    def leave(self) -> None:
        """Record that the innermost running module ends its forward pass."""
        self.stack.pop()
        self._record()

    def _record(self) -> None:
        """Record which module is running from the next autograd sequence number on."""
        self._start_numbers.append(torch.autograd._get_sequence_nr())  # pyright: ignore[reportPrivateImportUsage]
        self._paths.append(self.stack[-1] if self.stack else "")


@contextmanager
def track_paths(module: nn.Module) -> Iterator[PathTracker]:
    """Attach hooks to a module that tell the yielded tracker which submodule is running."""
    tracker, handles = PathTracker(), []
    for path, part in module.named_modules():
        handles.append(part.register_forward_pre_hook(lambda *_, path=path: tracker.enter(path)))
        handles.append(part.register_forward_hook(lambda *_: tracker.leave(), always_call=True))
    try:
        yield tracker
    finally:
        for handle in handles:
            handle.remove()


def run_forward(module: nn.Module, inputs: Inputs) -> Readings:
    """Run a module forward without measuring anything; return no readings."""
    with torch.no_grad():
        module(*inputs.args, **inputs.kwargs)
    return {}


class ElementCounter(TorchDispatchMode):
    """Adds up the elements of all tensors that are computed."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.elements += sum(tensor.numel() for tensor in iter_tensors(out))
        return out


def count_elements(module: nn.Module, inputs: Inputs) -> int:
    """Run a module forward; return how many elements all tensors have that it computes."""
    with ElementCounter() as counter:
        run_forward(module, inputs)
    return counter.elements


def iter_tensors(value: Any, dataclasses: bool = False) -> Iterator[Tensor]:
    """Yield the tensors in a nested dictionary, list or tuple `value` (and dataclasses if `dataclasses`)."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from iter_tensors(inner, dataclasses)
    elif dataclasses and is_dataclass(value) and not isinstance(value, type):
        for member in fields(value):
            yield from iter_tensors(getattr(value, member.name), dataclasses)


CACHE_NAMES = ("past_key_values", "cache_params", "mems", "state")  # what the transformers library calls its caches


def output_tensors(value: Any, name: str = "", visited: dict[int, Any] | None = None) -> Iterator[Tensor]:
    """Yield the tensors in a module's outputs, each once: in containers, dataclasses and attributes of objects.

    States and caches are left out. `name` is that of the attribute or key that has the value; `visited` are the values
    so far by address, which holds them, so that no other value gets the address of one.
    """
    visited = {} if visited is None else visited
    if name in CACHE_NAMES or id(value) in visited:
        return
    visited[id(value)] = value
    if isinstance(value, Tensor):
        yield value
        return
    is_state = hasattr(value, "tensors") or type(value).__name__.endswith("Cache")
    if not (is_state or callable(value) or isinstance(value, ModuleType)):
        for member, inner in _members(value):
            yield from output_tensors(inner, member, visited)


def _members(value: Any) -> list[tuple[str, Any]]:
    """Return the members of a container or an object with their names; "" for those of lists and sets."""
    if isinstance(value, Mapping):
        return [(str(name), inner) for name, inner in value.items()]
    if hasattr(value, "_asdict"):  # a named tuple
        return list(value._asdict().items())
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return [("", inner) for inner in value]
    slots = [getattr(base, "__slots__", ()) for base in type(value).__mro__]
    names = [name for group in slots for name in ((group,) if isinstance(group, str) else group)]
    return [*getattr(value, "__dict__", {}).items(), *((name, getattr(value, name, None)) for name in names)]


def differentiable_outputs(outputs: Any) -> list[Tensor]:
    """Return the tensors in a module's outputs from which a loss can go backward; states and caches are left out.

    A tensor from which another output was computed, such as an inner layer's hidden state, is left out, since the
    backward pass of the other reaches it anyway.
    """
    tensors = [tensor for tensor in output_tensors(outputs) if tensor.requires_grad]
    inner_nodes: set[Any] = set()  # of autograd, before those of the outputs
    stack = [node for tensor in tensors if tensor.grad_fn for node, _ in tensor.grad_fn.next_functions]
    while stack:
        node = stack.pop()
        if node is not None and node not in inner_nodes:
            inner_nodes.add(node)
            stack += [previous for previous, _ in node.next_functions]
    return [tensor for tensor in tensors if tensor.grad_fn not in inner_nodes]


# FLOPs, forward and backward, as PyTorch's own counter counts them: matrix products, convolutions and attention by the
# formulas of `torch.utils.flop_counter`, a multiply–add as two. Elementwise work is separate: one for every element of
# the result of a pointwise operation, a softmax or a norm.

PRODUCTS, CAUSAL, ELEMENTS = 0, 1, 2  # what is counted in one pass; causal products are among the products
ROW_OPERATORS = (
    "_softmax",
    "_log_softmax",
    "native_layer_norm",
    "_fused_rms_norm",
    "native_batch_norm",
    "native_group_norm",
)
CAUSAL_SUFFIX = " causal"  # follows the path while causal attention is running
READS_DATA = "reads"  # key of numbers that Python reads
CONTRACTS = "contracts"  # key of multiplications that are counted, since they are summed


def mm_flops(left: Tensor, *_: Any, out_val: Tensor, **__: Any) -> int:
    """Return the FLOPs of a product of matrices, whose inner dimension is the last of the left one."""
    return 2 * out_val.numel() * left.shape[-1]


def grouped_mm_flops(left: Tensor, right: Tensor, *args: Any, **kwargs: Any) -> int:
    """Return the FLOPs of a grouped matrix product, in which each row of one factor meets one matrix of the other."""
    groups = left.shape[0] if left.ndim == right.ndim == 3 else 1
    return 2 * groups * left.shape[-2] * left.shape[-1] * right.shape[-1]


def convolution_backward_flops(grad: Tensor, input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> int:
    """Return the FLOPs of the gradients of a convolution: each takes as many as the convolution.

    PyTorch's counter ignores groups in the gradient of the weight, which makes it as many times larger for depthwise
    convolutions as there are channels.
    """
    transposed, output_mask = args[4], args[-1]
    positions = input if transposed else grad
    return sum(output_mask[:2]) * 2 * positions.numel() * weight[0].numel()


def attention_flops(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> int:
    """Return the FLOPs of attention: queries by keys, weights by values; backward as if the weights had been kept."""
    rows = query.numel() // query.shape[-1]
    return 2 * rows * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def trilinear_flops(*args: Any, **kwargs: Any) -> int:
    """Return the FLOPs of a bilinear layer: the first two factors are contracted, then the result with the third."""
    (first, second, third), expansions, summed = args[:3], args[3:6], {*args[6]}

    def axes(factor: Tensor, expansion: Sequence[int]) -> dict[int, int]:
        numbers = [axis for axis in range(factor.dim() + len(expansion)) if axis not in expansion]
        return dict(zip(numbers, factor.shape, strict=True))

    sizes = [axes(factor, expansion) for factor, expansion in zip((first, second, third), expansions, strict=True)]
    pair = {**sizes[0], **sizes[1]}
    rest = {axis: size for axis, size in pair.items() if axis not in summed or axis in sizes[2]}
    inner = 2 * prod(pair.values()) if len(rest) < len(pair) else 0
    return inner + 2 * prod({**rest, **sizes[2]}.values())


def bag_flops(indices: Tensor, width: int, weights: Tensor | None) -> int:
    """Return the FLOPs of a weighted sum of rows of a table; without weights it is a look-up."""
    return 0 if weights is None else 2 * indices.numel() * width


# FLOPs of operators that PyTorch's own counter does not know, or miscounts, from their arguments and their result.
EXTRA_FLOP_RULES: dict[str, Callable[..., int]] = {
    "aten.mv": lambda matrix, vector, **_: 2 * matrix.numel(),
    "aten.addmv": lambda added, matrix, vector, **_: 2 * matrix.numel(),
    "aten.dot": lambda left, right, **_: 2 * left.numel(),
    "aten.vdot": lambda left, right, **_: 2 * left.numel(),
    "aten.addr": lambda added, left, right, **_: 2 * left.numel() * right.numel(),
    "aten.addbmm": lambda added, left, right, **_: 2 * left.numel() * right.shape[-1],
    "aten.conv_tbc": lambda rows, kernel, *_, out_val, **__: 2 * out_val.numel() * kernel.shape[0] * kernel.shape[1],
    "aten.convolution_backward": convolution_backward_flops,
    "aten._addmm_activation": lambda added, left, right, *_, **__: 2 * left.numel() * right.shape[-1],
    "aten._int_mm": mm_flops,
    "aten._scaled_mm_v2": mm_flops,
    "aten._weight_int8pack_mm": mm_flops,
    "aten._weight_int4pack_mm": mm_flops,
    "aten._weight_int4pack_mm_for_cpu": mm_flops,
    "aten._dyn_quant_matmul_4bit": mm_flops,
    "aten._trilinear": trilinear_flops,
    "aten.linalg_solve_triangular": lambda matrix, right, **_: right.numel() * matrix.shape[-1],
    "aten._embedding_bag": lambda table, indices, *rest, **_: bag_flops(indices, table.shape[1], rest[4]),
    "aten._embedding_bag_forward_only": lambda table, indices, *rest, **_: bag_flops(indices, table.shape[1], rest[4]),
    "aten._embedding_bag_backward": lambda grad, indices, *rest, **_: bag_flops(indices, grad.shape[1], rest[8]),
    "aten._embedding_bag_per_sample_weights_backward": lambda grad, table, indices, *_, **__: bag_flops(
        indices, table.shape[1], indices
    ),
    "aten._scaled_dot_product_flash_attention_for_cpu": attention_flops,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": lambda _, *args, **__: 2 * attention_flops(*args),
    "aten._grouped_mm": grouped_mm_flops,  # tokens with their own experts
    "aten._scaled_grouped_mm": grouped_mm_flops,
    "transformers.grouped_mm_fallback": grouped_mm_flops,
}
OUTER_PRODUCTS = ("MvBackward0", "AddmvBackward0", "DotBackward0", "VdotBackward0")  # nodes whose `mul` is a product
PRODUCT_NAMES = re.compile(
    "mm(_|$)|bmm|mv(_|$)|dot(_|$)|matmul|linear|conv|attention|rnn|lstm|gru|cdist|pdist|euclidean|linalg|cholesky|solve"
    "|svd|eig|qr(f|$)|lu_|inverse|fft|encoder_layer|affine_grid|grid_sampler"
)
NO_PRODUCTS = re.compile("upsample|_thnn_fused|vector_norm|check_errors|cross|_unpack")


@cache
def flop_rule(func: Any) -> Callable[..., int] | None:
    """Return PyTorch's function that computes the FLOPs of an operator from its arguments; None without one.

    An in-place operator has the rule of its ordinary variant.
    """
    packet = func._overloadpacket
    name = packet.__name__.removesuffix("_")
    out_of_place = getattr(torch.ops.aten, name, packet) if func.namespace == "aten" else packet
    rule = EXTRA_FLOP_RULES.get(f"{func.namespace}.{name}")
    return rule or flop_registry.get(packet) or flop_registry.get(out_of_place)


@cache
def lacks_flop_rule(func: Any) -> bool:
    """Return whether an operator without a FLOP rule may be a matrix product: by its name, or if not PyTorch's own."""
    if func.namespace in ("prim", "prims"):
        return False
    name = func._overloadpacket.__name__
    return func.namespace != "aten" or bool(PRODUCT_NAMES.search(name) and not NO_PRODUCTS.search(name))


def is_outer_gradient(func: Any, node: Any) -> bool:
    """Return whether an operator in the backward pass of `node` multiplies for the gradient of a vector's product."""
    return func._overloadpacket is torch.ops.aten.mul and node.name() in OUTER_PRODUCTS


@dataclass(frozen=True)
class PassReadings:
    """What one forward and backward pass shows of a module.

    Attributes:
        products: (forward, forward causal, backward, backward causal) FLOPs of matrix products by module path; the
            causal ones are among the others.
        elementwise: (forward, backward) elementwise operations by module path.
        uncounted: events that FLOPs do not show. Keys are an operator without a rule, `READS_DATA` for numbers that
            Python reads and a branch may depend on, or `CONTRACTS` for multiplications that are counted as products;
            then a space and the module path. A reading is the number of events forward and backward, then that of the
            numbers that the operator gives.
        state: bytes of the state or cache by name.
        backward_failure: why there was no backward pass; autograd refuses some modules.
    """

    products: Readings
    elementwise: Readings
    uncounted: Readings
    state: Readings
    backward_failure: str = ""

    def rename(self, kinds: LayerKinds, sizes: Sizes) -> "PassReadings":
        """Insert the kinds of layers into the paths."""
        products, elementwise, state = (
            kinds.rename_all(readings, sizes) for readings in (self.products, self.elementwise, self.state)
        )
        return replace(self, products=products, elementwise=elementwise, state=state)


def read_pass(module: nn.Module, inputs: Inputs) -> PassReadings:
    """Run a module forward and backward, with the kernels of the meta device, and return all readings of the pass."""
    with (
        reference_kernels(),
        track_paths(module) as tracker,
        FlopCounter(tracker, module) as counter,
        CausalTracker(tracker),
    ):
        results = module(*inputs.args, **inputs.kwargs)
        outputs = differentiable_outputs(results)
        counter.phase = 1
        if outputs:  # else there is no backward pass: all is frozen, or the outputs are whole numbers
            torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
    names, events = dict.fromkeys((name, path) for path, _, name in counter.uncounted), counter.uncounted
    return PassReadings(
        counter.collect((PRODUCTS, CAUSAL)),
        counter.collect((ELEMENTS,)),
        {f"{name} {path}": tuple(events[path, key, name] for key in (0, 1, "elements")) for name, path in names},
        state_bytes(module, inputs) if isinstance(module, EncoderDecoderModel) else _list_state_bytes(results),
    )


def product_flops(module: nn.Module, inputs: Inputs) -> Readings:
    """Count the matrix-product FLOPs of a forward and backward pass, by module path: `PassReadings.products`."""
    return read_pass(module, inputs).products


def find_uncounted(module: nn.Module, inputs: Inputs) -> Readings:
    """Count events in a forward and backward pass that FLOPs do not show: `PassReadings.uncounted`."""
    return read_pass(module, inputs).uncounted


class FlopCounter(TorchDispatchMode):
    """Adds up the work of every operation under the path at which it happens."""

    supports_higher_order_operators = True

    def __init__(self, tracker: PathTracker, module: nn.Module) -> None:
        super().__init__()
        self.tracker, self.phase = tracker, 0
        self.work: Counter[tuple[str, int, int]] = Counter()
        self.uncounted: Counter[tuple[str, int | str, str]] = Counter()
        self._undecomposable: set[Any] = {torch.ops.prim.device.default}
        self._contractions, self._constants = ContractionFinder(), ConstantTracker(module.buffers())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        path = self.tracker.current
        if isinstance(func, HigherOrderOperator):  # such as a scan; the functions that it calls are counted
            self.uncounted[path, 1, str(func)] += 1  # but not the backward pass, which runs outside
            return func(*map(self._count_inside, args), **kwargs)
        rule = flop_rule(func)
        if rule is None and func not in self._undecomposable:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
            self._undecomposable.add(func)
        out = func(*args, **kwargs)
        node = torch._C._current_autograd_node()
        if node is None or isinstance(node, BackwardCFunction):  # forward, or in a custom backward function
            tensors = list(iter_tensors((args, kwargs)))
            if not self._constants.observe(func, tensors, list(iter_tensors(out))):
                self._count(func, rule, args, kwargs, out, path)
                for product in self._contractions.observe(func, tensors, out, path.removesuffix(CAUSAL_SUFFIX)):
                    self.work[product.path, self.phase, PRODUCTS] += product.flops
                    self.work[product.path, self.phase, ELEMENTS] -= product.flops // 2
                    self.uncounted[product.path, self.phase, CONTRACTS] += 1
        elif self._contractions.is_gradient(func, node, out) or is_outer_gradient(func, node):
            self.work[path.removesuffix(CAUSAL_SUFFIX), self.phase, PRODUCTS] += 2 * out.numel()
        else:
            self._count(func, rule, args, kwargs, out, path)
        return out

    def _count(self, func: Any, rule: Callable[..., int] | None, args: Any, kwargs: Any, out: Any, path: str) -> None:
        """Add up the work of one operator that returned `out`; `rule` computes its FLOPs if it is a product."""
        is_causal, path = path.endswith(CAUSAL_SUFFIX), path.removesuffix(CAUSAL_SUFFIX)
        if rule is not None:
            flops = rule(*args, **kwargs, out_val=out)
            self.work[path, self.phase, PRODUCTS] += flops
            self.work[path, self.phase, CAUSAL] += flops if is_causal else 0
        elif torch.Tag.pointwise in func.tags or func._overloadpacket.__name__.startswith(ROW_OPERATORS):
            first = out[0] if isinstance(out, tuple) else out
            self.work[path, self.phase, ELEMENTS] += first.numel() if isinstance(first, Tensor) else 0
        elif torch.Tag.data_dependent_output in func.tags:
            self.uncounted[path, self.phase, READS_DATA] += 1
        elif lacks_flop_rule(func):
            self.uncounted[path, self.phase, str(func._overloadpacket)] += 1
            numbers = sum(tensor.numel() for tensor in iter_tensors(out))
            self.uncounted[path, "elements", str(func._overloadpacket)] += numbers

    def _count_inside(self, value: Any) -> Any:
        """Return a function that counts while it runs, if `value` is a function; other values as they are."""
        if not callable(value) or isinstance(value, Tensor):
            return value

        def call(*args: Any) -> Any:
            with self:
                return value(*args)

        return call

    def collect(self, columns: Sequence[int]) -> Readings:
        """Return the operations of some kinds by module path: forward ones of each kind, then backward ones.

        `columns` selects the kinds: `PRODUCTS`, `CAUSAL` or `ELEMENTS`.
        """
        paths = dict.fromkeys(path for path, _, column in self.work if column in columns)
        return {path: tuple(self.work[path, phase, column] for phase in (0, 1) for column in columns) for path in paths}


class CausalTracker(AttentionListener):
    """Marks the time spent in causal attention, half of whose scores are not needed.

    Lemma's own attention announces it; of others the argument of the kernel tells.
    """

    def __init__(self, tracker: PathTracker) -> None:
        super().__init__()
        self.tracker, self.is_causal = tracker, False

    def on_attention(self, record: AttentionRecord) -> None:
        """Record whether Lemma's attention layer that starts now is causal."""
        self.is_causal = record.causal

    def on_sdpa(self, attend: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Call PyTorch's attention; the FLOPs of causal attention are counted under the path and " causal"."""
        path = self.tracker.stack[-1] if self.tracker.stack else ""
        argument = kwargs.get("is_causal", args[5] if len(args) > 5 else False)
        if not (self.is_causal if self.is_announced else argument):
            return attend(*args, **kwargs)
        self.tracker.enter(path + CAUSAL_SUFFIX)
        try:
            return attend(*args, **kwargs)
        finally:
            self.tracker.leave()


# Parameters.


def parameter_shapes(module: nn.Module, trainable: bool | None) -> Readings:
    """Return shapes by parameter name: of trainable (True), frozen (False) or all (None) parameters.

    A tied parameter is under its first name. Weights that a quantized module has packed, so that they are no parameters
    any more, count as frozen.
    """
    shapes = {
        name: tuple(parameter.shape)
        for name, parameter in module.named_parameters()
        if trainable in (None, parameter.requires_grad)
    }
    return shapes if trainable else {**shapes, **packed_shapes(module)}


def packed_shapes(module: nn.Module) -> Readings:
    """Return the shapes of weights that `quantize_dynamic` has packed into PyTorch objects, by path."""

    def unpack(value: Any) -> Iterator[Tensor]:
        if isinstance(value, torch.ScriptObject):
            value = value.__getstate__()
        if isinstance(value, (list, tuple)):
            for inner in value:
                yield from unpack(inner)
        elif isinstance(value, Tensor):
            yield value

    shapes: dict[str, Amounts] = {}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.ScriptObject):
                tensors = {tensor.data_ptr(): tensor for tensor in unpack(value)}  # recurrent ones hold biases twice
                for number, tensor in enumerate(tensors.values()):
                    shapes[f"{path}.{name}.{number}".removeprefix(".")] = tuple(tensor.shape)
    return shapes


def find_tied_names(module: nn.Module) -> dict[str, list[str]]:
    """Return the other names of every parameter that has several, by its first name."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {first: others for first, *others in names.values() if others}


class MetaGroupedMM(TorchDispatchMode):
    """Lets products of tokens with their experts run on meta and fake tensors, whatever their type.

    PyTorch's own meta kernel takes bfloat16 only, where those of CPUs take any type.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._overloadpacket is not getattr(torch.ops.aten, "_grouped_mm", None):
            return func(*args, **kwargs)
        left, right = args[:2]
        offsets = args[2] if len(args) > 2 else kwargs.get("offs")
        rows, columns = left.shape[-2], right.shape[-1]
        if left.ndim == right.ndim:
            return left.new_empty(left.shape[0] if left.ndim == 3 else len(offsets), rows, columns)
        return left.new_empty(rows, columns)


class RoutingTracker(TorchDispatchMode):
    """Records the choices of the largest few: the routers of experts."""

    def __init__(self, tracker: PathTracker) -> None:
        super().__init__()
        self.tracker = tracker
        self.chosen: dict[tuple[str, int], int] = {}  # by path and number of experts, how many of them are chosen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._overloadpacket is torch.ops.aten.topk and args[0].is_floating_point():
            number = args[1] if len(args) > 1 else kwargs["k"]
            self.chosen[self.tracker.current, args[0].shape[-1]] = number
        return func(*args, **kwargs)

    def experts_chosen_near(self, path: str, experts: int) -> int:
        """Return how many experts the router closest to `path` chooses per token; without a router `experts`."""

        def common_steps(other: str) -> int:
            pairs = zip(path.split("."), other.split("."), strict=False)
            return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))

        routers = [(common_steps(router), k) for (router, number), k in self.chosen.items() if number == experts]
        return max(routers)[1] if routers else experts


def find_stacked_experts(module: nn.Module, numbers: Collection[int]) -> set[str]:
    """Return the names of parameters that hold all experts of a layer in one tensor: their matrices and biases.

    `numbers` are the possible numbers of experts.
    """
    names: set[str] = set()
    for path, part in module.named_modules():
        parameters = {name: value for name, value in part.named_parameters(path, recurse=False) if value.dim() > 1}
        stacked = {name for name, value in parameters.items() if value.shape[0] in numbers}
        if any(parameters[name].dim() > 2 for name in stacked):
            names |= stacked
    return names


def active_sizes(module: nn.Module, inputs: Inputs) -> Readings:
    """Run a module on one token; return by parameter name how many of its numbers take part in the outputs.

    Experts may be separate modules, or matrices stacked in one tensor. Parameters that are not routed take part in
    full. On real tensors gradients tell which experts take part; on the meta device it is as many as each router
    chooses. The result is empty if the module does not route.
    """
    with track_paths(module) as tracker, RoutingTracker(tracker) as routing:
        outputs = module(*inputs.args, **inputs.kwargs)
    outputs = differentiable_outputs(outputs)
    if not routing.chosen or not outputs:
        return {}
    numbers = {experts for _, experts in routing.chosen}
    stacked = find_stacked_experts(module, numbers)
    full = {name: parameter.numel() for name, parameter in module.named_parameters()}
    active = dict(full)
    if outputs[0].is_meta:
        for name, parameter in module.named_parameters():
            if name in stacked:
                experts = parameter.shape[0]
                active[name] = full[name] // experts * routing.experts_chosen_near(name, experts)
        for path, part in module.named_modules():
            if isinstance(part, nn.ModuleList) and len(part) in numbers:
                idle = {id(value) for value in part[routing.experts_chosen_near(path, len(part)) :].parameters()}
                active |= {name: 0 for name, value in module.named_parameters() if id(value) in idle}
    else:
        torch.autograd.backward(outputs, [torch.rand_like(output) for output in outputs])
        for name, parameter in module.named_parameters():
            if parameter.grad is None:
                active[name] = 0 if parameter.requires_grad else full[name]
            elif name in stacked:
                experts = int((parameter.grad != 0).flatten(1).any(1).sum())
                active[name] = full[name] // len(parameter) * experts
    return {name: (size,) for name, size in active.items()} if active != full else {}


# Bytes.


def optimizer_bytes(module: nn.Module) -> Readings:
    """Return the bytes of AdamW's state for every trainable parameter, by name, measured after one step."""
    parameters = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    return {name: (_adamw_bytes(value.shape, value.dtype),) for name, value in parameters.items()}


@cache
def _adamw_bytes(shape: torch.Size, dtype: torch.dtype) -> int:
    """Return the bytes of AdamW's state for a parameter of this shape, measured after one step without memory."""
    parameter = nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"))
    parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW([parameter], foreach=False)
    optimizer.step()
    return tensor_bytes(optimizer.state[parameter].values())


def tensor_bytes(values: Iterable[Any]) -> int:
    """Add up the bytes of the tensors among `values`; other values are ignored."""
    return sum(value.numel() * value.element_size() for value in values if isinstance(value, Tensor))


def saved_bytes(module: nn.Module, inputs: Inputs) -> Readings:
    """Run a module forward; return the bytes that autograd saves, by the path of the module that saves them first.

    A storage counts once, however many views of it are saved; parameters and buffers exist anyway and do not count.
    """
    stored = [*module.parameters(), *module.buffers()]
    stored_ids, seen = {id(tensor) for tensor in stored}, {tensor.untyped_storage()._cdata for tensor in stored}
    # As long as they live, no other storage can have their address. The graph gets their indices: a node that holds its
    # own output is never freed.
    saved: list[Tensor] = []
    amounts: Counter[str] = Counter()
    with track_paths(module) as tracker:

        def pack(tensor: Tensor) -> int:
            storage = tensor.untyped_storage()
            if storage._cdata not in seen and id(tensor._base) not in stored_ids:
                seen.add(storage._cdata)
                amounts[tracker.current] += storage.nbytes()
            saved.append(tensor)
            return len(saved) - 1

        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, saved.__getitem__):
                module(*inputs.args, **inputs.kwargs)
        finally:
            saved.clear()
    return {path: (amount,) for path, amount in amounts.items()}


def state_bytes(module: nn.Module, inputs: Inputs) -> Readings:
    """Run a module; return the bytes of each tensor of the state or cache it returns next to its output, by name.

    An encoder–decoder returns one only when it reads its source and writes its target step by step.

    Raises:
        CountingError: no state is returned, but the run leaves tensors in attributes of the module.
    """
    module.eval()  # some models return no state while they are trained
    with torch.no_grad():
        if isinstance(module, EncoderDecoderModel):
            source, target = inputs.args
            return _list_state_bytes(module.step(target, module.begin(source)))
        before = {path: id(tensor) for path, tensor in _tensor_attributes(module)}
        amounts = _list_state_bytes(module(*inputs.args, **inputs.kwargs))
    inside = [path for path, tensor in _tensor_attributes(module) if before.get(path) != id(tensor)]
    if inside and not amounts:
        raise CountingError(
            f"it returns no cache and keeps a state inside ({path_pattern(inside[0])}), of unknown extent"
        )
    return amounts


def _tensor_attributes(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield path and value of the attributes of a module and its parts that are tensors; buffers are none."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor) and value.is_floating_point():
                yield f"{path}.{name}".removeprefix("."), value


def _list_state_bytes(outputs: Any) -> Readings:
    """Return the bytes of each tensor of the state or cache among the outputs of a module, by name.

    It may be a state of Lemma's, a transformers cache, or the vectors of a recurrent torch.nn module.
    """
    library_cache = next((value for name in CACHE_NAMES if (value := getattr(outputs, name, None)) is not None), None)
    state: Any = outputs[1] if isinstance(outputs, tuple) and len(outputs) > 1 else None
    if library_cache is not None:
        tensors = dict(_tensors_by_name(library_cache))
    elif hasattr(state, "tensors"):
        tensors = state.tensors()
        vectors = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
        tensors = vectors or tensors  # next to keys and values, the tokens read so far are bookkeeping
    elif isinstance(state, Tensor) or (isinstance(state, tuple) and len(state) < 3):  # of a recurrent torch.nn module
        tensors = dict(zip(("hidden", "cell"), state if isinstance(state, tuple) else (state,), strict=False))
    else:  # such as the keys and values of every layer
        tensors = dict(_tensors_by_name(state)) if isinstance(state, (tuple, list, dict)) else {}
    return {name: (tensor_bytes([value]),) for name, value in tensors.items() if isinstance(value, Tensor)}


def _tensors_by_name(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield (dotted name, tensor) for the tensors of a cache `value`; `path` is the prefix of the names."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, (dict, list, tuple)) or hasattr(value, "__dict__"):
        if isinstance(value, (list, tuple)):
            members = enumerate(value)
        else:
            members = (value if isinstance(value, dict) else vars(value)).items()
        for name, inner in members:
            if not str(name).startswith("_"):  # auxiliary numbers are no state
                yield from _tensors_by_name(inner, f"{path}.{name}".removeprefix("."))
