"""Tensor parallelism read off a module: which linear layers are split, by their outputs or inputs, and what is sent.

In each layer, a linear layer that reads only the outputs of others of this layer is split by its inputs ("row"), and
these others by their outputs ("column"), as in Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053). A row layer gives a
partial sum, which is all-reduced forward; the gradient of what column layers read is all-reduced backward.

Which layer reads which is read off autograd's graph: every linear layer returns a new tensor without a history, so that
the graph of an input ends at the outputs it was made from. Weights take no memory; only what lies between is computed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from lemma.counting.fit import Sizes
from lemma.counting.measure import reference_kernels, single_thread
from lemma.counting.subject import BATCH, SOURCE, TIME, Subject
from lemma.counting.training_step import find_layers
from lemma.errors import CountingError
from lemma.random_state import unchanged_random_state

COLUMN, ROW, UNDIVIDED = "column", "row", "undivided"
SMALL_INPUTS = {BATCH: 1, TIME: 8, SOURCE: 8}  # at most: enough for each feature to depend on what it can depend on
MAX_SMALL_PARAMETER = 2**22  # numbers of a parameter up to which it is computed with


@dataclass(eq=False)
class LinearCall:
    """A call of a linear layer: its input, whose graph ends at the outputs of other calls, and its output."""

    path: str
    layer: str  # path of the layer of the model that it belongs to
    inputs: Tensor
    output: Tensor
    saved: int  # tensors that were saved for backward before it
    role: str = UNDIVIDED
    sources: tuple["LinearCall", ...] = ()  # whose outputs the input was made from
    parameters: tuple[str, ...] = ()  # names of other parameters that took part in making the input

    @property
    def widths(self) -> tuple[int, int]:
        return self.inputs.shape[-1], self.output.shape[-1]


@dataclass
class TensorSplit:
    """The linear layers of a module with their roles, and what each sends in a forward and a backward pass.

    `forward`, `backward` and `repeated` are numbers that are all-reduced, by module path: outputs of row layers, inputs
    of column layers, and outputs that are computed again if layers are recomputed. `boundary` has the numbers that a
    layer passes to the next.
    """

    calls: list[LinearCall]
    forward: dict[str, tuple[int]] = field(default_factory=dict)
    backward: dict[str, tuple[int]] = field(default_factory=dict)
    repeated: dict[str, tuple[int]] = field(default_factory=dict)
    boundary: dict[str, tuple[int]] = field(default_factory=dict)
    called_after: frozenset[str] = frozenset()  # modules outside the layers that run after the first of them
    layers: tuple[str, ...] = ()  # paths of the layers, in the order of their calls
    small_parameters: dict[str, Tensor] = field(default_factory=dict)

    @property
    def roles(self) -> dict[str, str]:
        """Return the role ("column" or "row") of each linear layer that is split, by its path."""
        return {call.path: call.role for call in self.calls if call.role != UNDIVIDED}

    def find_obstacle(self, parts: int) -> str:
        """Return why the layers cannot be split into this number of equal parts; "" if they can.

        They can if different parts of a row layer's input are made from different outputs of its column layers, as
        heads of attention are.
        """
        checked: set[Any] = set()
        for call in self.calls:
            inner = call.path.removeprefix(call.layer)
            key = inner, call.widths, tuple(source.widths for source in call.sources)
            if call.role != ROW or key in checked:
                continue
            checked.add(key)
            columns = [source for source in call.sources if source.role == COLUMN]
            uneven = next((c for c in (call, *columns) if c.widths[c.role == COLUMN] % parts), None)
            if uneven:
                return f"it does not divide the width {uneven.widths[uneven.role == COLUMN]:,} of {uneven.path}"
            for source, (first, remaining) in zip(columns, self._part_gradients(call, columns, parts), strict=True):
                if (_used_features(first) & _used_features(remaining)).any():
                    return f"equal parts of what {call.path} reads share outputs of {source.path}, such as a head"
        return ""

    def shared_parameters(self, parts: int) -> list[str]:
        """Return the names of parameters that all parts of a split layer use: their gradients are sums over parts."""
        shared = dict[str, None]()
        for call in self.calls:
            tensors = [self.small_parameters[name] for name in call.parameters]
            if call.role == ROW and tensors:
                for name, (first, remaining) in zip(
                    call.parameters, self._part_gradients(call, tensors, parts), strict=True
                ):
                    if ((first != 0) & (remaining != 0)).any():
                        shared[name] = None
        return list(shared)

    def _part_gradients(
        self, call: LinearCall, targets: Sequence["LinearCall | Tensor"], parts: int
    ) -> list[tuple[Tensor, Tensor]]:
        """Return the gradients of the first part of a call's input, and of all other parts, for each target."""
        tensors = [target.output if isinstance(target, LinearCall) else target for target in targets]
        width = call.inputs.shape[-1] // parts
        sections = call.inputs[..., :width], call.inputs[..., width:]
        pairs = [
            grad(section, tensors, torch.randn_like(section), retain_graph=True, allow_unused=True)
            for section in sections
        ]
        return [
            tuple(torch.zeros_like(tensor) if value is None else value for value in values)  # pyright: ignore
            for tensor, *values in zip(tensors, *pairs, strict=True)
        ]


def _used_features(gradient: Tensor) -> Tensor:
    """Return which features, along the last dimension, have a gradient at any position."""
    return (gradient.flatten(0, -2) != 0).any(0)


@unchanged_random_state()
def find_split(subject: Subject, sizes: Sizes) -> TensorSplit:
    """Run the module of these sizes with inert linear layers, and find how its layers split.

    Raises:
        CountingError: it cannot be run so.
    """
    torch.manual_seed(0)
    module = subject.build(sizes).eval()
    with single_thread(), reference_kernels():
        try:
            probe = SplitProbe(module)
            inputs = subject.build_inputs(sizes, "cpu")
            with torch.autograd.graph.saved_tensors_hooks(probe.count_saved, lambda tensor: tensor):
                module(*inputs.args, **inputs.kwargs)
            return probe.finish()
        except Exception as error:  # the forward pass of other people's code may fail in any way
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise CountingError(f"the layers of {subject.name} cannot be looked at: {reason}") from error


def small_inputs(sizes: Sizes) -> dict[str, int]:
    """Return sizes with few sequences of few tokens."""
    return {name: min(size, SMALL_INPUTS.get(name, size)) for name, size in sizes.items()}


class SplitProbe:
    """A module whose linear layers, embeddings and other large modules return tensors without a history."""

    def __init__(self, module: nn.Module) -> None:
        self.calls: list[LinearCall] = []
        self.saved = 0
        self.layer_paths = {id(layer): path for path, layer in find_layers(module)}
        self.layer_calls: list[str] = []
        self.saved_at_end: dict[str, int] = {}
        self.boundary: dict[str, tuple[int]] = {}
        self.after: set[str] = set()
        self.current = ""  # path of the layer that runs
        self.alive: list[Tensor] = []  # so that no other tensor has the same address
        self.small: dict[str, Tensor] = {}
        _materialize_small(module, self.small)
        in_lists = {
            id(part)
            for path, layers in module.named_modules()
            if isinstance(layers, nn.ModuleList)
            and len(layers) > 1
            and len({type(member) for member in layers}) == 1
            and any(path.startswith(f"{layer}.") for layer in self.layer_paths.values())
            for part in layers.modules()
        }  # experts, of which each token meets a few
        for path, part in module.named_modules():
            part.register_forward_pre_hook(partial(self._note_order, path))
            if id(part) in self.layer_paths:
                part.register_forward_pre_hook(partial(self._enter_layer, path), with_kwargs=True)
                part.register_forward_hook(partial(self._leave_layer, path), always_call=True)
            if _is_linear(part):
                part.forward = partial(self._call_linear, path, part, id(part) in in_lists)
            elif any(parameter.is_meta for parameter in part.parameters(recurse=False)):
                part.forward = partial(self._call_inert, part)

    def count_saved(self, tensor: Tensor) -> Tensor:
        """Count a tensor that is saved for the backward pass."""
        self.saved += 1
        return tensor

    def _note_order(self, path: str, *_: Any) -> None:
        if self.layer_calls and not self.current:
            self.after.add(path)

    def _enter_layer(self, path: str, _: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Cut the graph of a layer's inputs, and record what the layer before passes to it."""
        if self.current:
            return args, kwargs
        self.current, amounts = path, []

        def cut(value: Any) -> Any:
            if isinstance(value, Tensor) and value.requires_grad:
                amounts.append(value.numel())
                return value.detach().requires_grad_().clone()
            if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
                return type(value)(map(cut, value))
            return value

        args, kwargs = tuple(map(cut, args)), {name: cut(value) for name, value in kwargs.items()}
        if self.layer_calls:
            self.boundary = {"boundary": (max(sum(amounts), *self.boundary.get("boundary", (0,))),)}
        self.layer_calls.append(path)
        return args, kwargs

    def _leave_layer(self, path: str, *_: Any) -> None:
        if self.current == path:
            self.current, self.saved_at_end[path] = "", self.saved

    def _call_linear(self, path: str, part: nn.Module, is_expert: bool, inputs: Tensor, *_: Any) -> Tensor:
        weight: Any = part.weight
        width = weight.shape[0] if isinstance(part, nn.Linear) else weight.shape[1]
        output = torch.randn(*inputs.shape[:-1], width, requires_grad=inputs.requires_grad or weight.requires_grad)
        if self.current and not is_expert:
            self.calls.append(LinearCall(path, self.current, inputs, output, self.saved))
        self.alive += [inputs, output]
        return output.clone()  # which may be changed in place

    def _call_inert(self, part: nn.Module, inputs: Tensor, *_: Any, **__: Any) -> Tensor:
        """Return a new tensor in place of an embedding's rows, or of the outputs of a module with large parameters."""
        shape = (*inputs.shape, part.weight.shape[1]) if isinstance(part, nn.Embedding) else inputs.shape
        trainable = any(parameter.requires_grad for parameter in part.parameters())
        return torch.randn(*shape, requires_grad=trainable).clone()

    def finish(self) -> TensorSplit:
        """Return the roles of all linear layers, and what they send."""
        outputs = {id(call.output): call for call in self.calls}
        names = {id(tensor): name for name, tensor in self.small.items()}
        for call in self.calls:
            leaves = list(_find_leaves(call.inputs))
            call.parameters = tuple(names[id(leaf)] for leaf in leaves if id(leaf) in names)
            if all(id(leaf) in outputs or id(leaf) in names for leaf in leaves):
                call.sources = tuple(outputs[id(leaf)] for leaf in leaves if id(leaf) in outputs)
        for call in reversed(self.calls):
            if call.role == UNDIVIDED and call.sources:
                call.role = ROW
                for source in call.sources:
                    source.role = COLUMN
                for source in call.sources:
                    for before in source.sources:
                        if before in call.sources:  # read in full by a column layer, as MLA's compressed keys are
                            before.role = UNDIVIDED
        split = TensorSplit(
            self.calls,
            boundary=self.boundary,
            called_after=frozenset(self.after),
            layers=tuple(self.layer_calls),
            small_parameters=self.small,
        )
        seen: set[int] = set()
        for call in self.calls:
            if call.role == ROW:
                split.forward[call.path] = (call.output.numel(),)
                last = call.saved == self.saved_at_end[call.layer]
                is_last = not any(later.layer == call.layer for later in self.calls[self.calls.index(call) + 1 :])
                if not (last and is_last):
                    split.repeated[call.path] = split.forward[call.path]
                for source in call.sources:  # whole layers whose outputs the parts share, as they do MLA's rotated keys
                    if source.role == UNDIVIDED:
                        (gradient,) = grad(call.inputs, source.output, torch.randn_like(call.inputs), retain_graph=True)
                        width = int(_used_features(gradient).sum())
                        split.backward[source.path] = (source.output.numel() // source.widths[1] * width,)
            elif call.role == COLUMN and call.inputs.requires_grad and id(call.inputs) not in seen:
                seen.add(id(call.inputs))
                split.backward[call.path] = (call.inputs.numel(),)
        return split


def _is_linear(part: nn.Module) -> bool:
    """Return whether a module is a linear layer: torch's, or the one of the transformers library with W transposed.

    The output layer of `nn.MultiheadAttention` is not: its weights are used without calling it.
    """
    is_transposed = type(part).__name__ == "Conv1D" and hasattr(part, "nf")
    return (isinstance(part, nn.Linear) or is_transposed) and not isinstance(part, NonDynamicallyQuantizableLinear)


def _materialize_small(module: nn.Module, small: dict[str, Tensor]) -> None:
    """Replace meta tensors of a module by random ones on the CPU, except large parameters and those of linear layers.

    Buffers of whole numbers become zeros, and of truth values ones; parameters are added to `small` by name.
    """
    new: dict[int, Tensor] = {}

    def fill(tensor: Tensor) -> Tensor:
        if id(tensor) not in new:
            if tensor.is_floating_point():
                filled = torch.rand(tensor.shape, dtype=tensor.dtype) + 0.5
            else:
                filled = torch.full(tensor.shape, tensor.dtype == torch.bool, dtype=tensor.dtype)
            new[id(tensor)] = nn.Parameter(filled, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else filled
        return new[id(tensor)]

    for path, part in module.named_modules():
        inert = _is_linear(part) or isinstance(part, nn.Embedding)
        holders: list[dict[str, Any]] = [part._buffers, part.__dict__, part._parameters]
        for holder in holders:
            for name, tensor in list(holder.items()):
                is_large = isinstance(tensor, nn.Parameter) and (inert or tensor.numel() > MAX_SMALL_PARAMETER)
                if isinstance(tensor, Tensor) and tensor.is_meta and not is_large:
                    holder[name] = fill(tensor)
                    if holder is part._parameters:
                        small[f"{path}.{name}".removeprefix(".")] = holder[name]


def _find_leaves(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensors without a history from which a tensor was made, itself if it is one."""
    if tensor.grad_fn is None:
        yield tensor
        return
    seen: set[Any] = {tensor.grad_fn}
    stack: list[Any] = [tensor.grad_fn]
    while stack:
        node = stack.pop()
        if hasattr(node, "variable"):
            yield node.variable
        for previous, _ in node.next_functions:
            if previous is not None and previous not in seen:
                seen.add(previous)
                stack.append(previous)
