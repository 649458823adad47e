"""A module's forward pass as a data flow, with formulas for every size.

`trace_formulas` records the pass at many small sizes (`record_flow`), makes constants one signal each, folds equal
layers into one, and fits every dimension. `merge_views` then leaves out the steps that only view the same numbers.
"""

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from lemma.counting.fit import (
    LAYER_NUMBER,
    FitResult,
    GroupFit,
    PathGroup,
    Readings,
    Sizes,
    choose_probe_sizes,
    fit_groups,
    path_pattern,
)
from lemma.counting.measure import PathTracker, iter_tensors, track_paths
from lemma.counting.polynomial import ONE, ZERO, Polynomial
from lemma.counting.subject import Inputs, Subject, format_sizes
from lemma.errors import CountingError

Kind = Literal["input", "parameter", "buffer", "constant", "result"]
STORED = ("parameter", "buffer")  # kinds of tensors that the module stores under a name
Size = TypeVar("Size", int, Polynomial)


@dataclass(frozen=True)
class Ref:
    """A signal among a step's arguments, by its number; it may be transposed."""

    signal: int
    transposed: bool = False


@dataclass(frozen=True)
class Signal(Generic[Size]):
    """A tensor of the pass: whole numbers for its shape in one run, formulas once many runs are fitted."""

    kind: Kind
    shape: tuple[Size, ...]
    name: str = ""
    repeats: Polynomial = ONE  # how many equal parameters it represents


@dataclass(frozen=True)
class Step:
    """Operation: its name, the module at work, its arguments with signals as `Ref`s, and the signals it makes."""

    operation: str
    path: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[int, ...]
    merged_from: tuple[str, ...] = ()  # names of operations
    squared_scale: Polynomial | None = None  # n, if it scales by √n or 1/√n

    @property
    def refs(self) -> tuple[Ref, ...]:
        """Return the references to tensors among the step's arguments, nested lists included, in order."""
        return tuple(leaf for leaf in tree_leaves([self.args, self.kwargs]) if isinstance(leaf, Ref))

    @property
    def operands(self) -> tuple[int, ...]:
        return tuple(ref.signal for ref in self.refs)

    @property
    def numbers(self) -> tuple[float, ...]:
        """Return the ints and floats among the step's positional arguments, then its `scale`."""
        leaves = tree_leaves([self.args, self.kwargs.get("scale")])
        return tuple(x for x in leaves if isinstance(x, (int, float)) and not isinstance(x, bool))

    def with_refs(self, replace_ref: Callable[[Ref], Ref]) -> "Step":
        """Return a copy of this step in which `replace_ref` has mapped every reference to a tensor."""
        arguments, kwargs = tree_map_only(Ref, replace_ref, (self.args, self.kwargs))
        return replace(self, args=arguments, kwargs=kwargs)


@dataclass(frozen=True)
class Frame:
    """Equal layers one after the other, of which the first is in the flow."""

    path: str  # of the list of layers
    count: int
    first_path: str
    carried: Mapping[int, int] = field(default_factory=dict)  # what enters the next layer in place of what enters it
    formula: Polynomial = ONE  # the number of layers at all sizes


@dataclass(frozen=True)
class DataFlow(Generic[Size]):
    """The steps that lead to `result`, the first tensor that the module returns, in the order in which they ran."""

    signals: Mapping[int, Signal[Size]]
    steps: tuple[Step, ...]
    result: int
    frames: tuple[Frame, ...] = ()

    def count_uses(self) -> Counter[int]:
        """Count the steps that read each tensor, by its number; the result counts one more."""
        return Counter([self.result, *(operand for step in self.steps for operand in step.operands)])

    def renumber(self) -> "DataFlow[Size]":
        """Return the flow with tensors numbered in order of use, parameters and buffers after all others."""
        seen = dict.fromkeys(n for step in self.steps for n in (*step.operands, *step.results))
        order = sorted(seen, key=lambda number: self.signals[number].kind in STORED)
        new = {number: index for index, number in enumerate(order)}
        steps = [replace(step, results=tuple(new[number] for number in step.results)) for step in self.steps]
        frames = tuple(
            replace(frame, carried={new[a]: new[b] for a, b in frame.carried.items() if a in new and b in new})
            for frame in self.frames
        )
        smaller = self.with_steps(lambda ref: Ref(new[ref.signal], ref.transposed), steps)
        return replace(smaller, signals={new[number]: self.signals[number] for number in order}, frames=frames)

    def prune(self) -> "DataFlow[Size]":
        """Return the flow without steps that do not contribute to the result."""
        needed, steps = {self.result}, []
        for step in reversed(self.steps):
            if needed & set(step.results):
                needed |= set(step.operands)
                steps.append(step)
        return replace(self, steps=tuple(reversed(steps)))

    def with_steps(self, replace_ref: Callable[[Ref], Ref], steps: Iterable[Step]) -> "DataFlow[Size]":
        """Return the flow with these steps; `replace_ref` maps every reference in them and the result."""
        return replace(
            self,
            steps=tuple(step.with_refs(replace_ref) for step in steps),
            result=replace_ref(Ref(self.result)).signal,
        )


CANONICAL_NAMES = {"radd": "add", "iadd": "add", "rmul": "mul", "imul": "mul"}
CANONICAL_NAMES |= {"itruediv": "div", "truediv": "div", "isub": "sub"}


def record_flow(module: nn.Module, inputs: Inputs) -> DataFlow[int]:
    """Run a module once in eval mode; return the calls of PyTorch functions that lead to its first output tensor.

    Tensors are named after the variables of the module's methods.
    """
    module.eval()
    with torch.no_grad(), track_paths(module) as path_now, CallRecorder(module, inputs, path_now) as recorder:
        returned = module(*inputs.args, **inputs.kwargs)
    return recorder.flow(returned)


class CallRecorder(TorchFunctionMode):
    """Records every function that returns tensors. Signals are compared by identity, so all stay alive."""

    def __init__(self, module: nn.Module, inputs: Inputs, path_now: PathTracker) -> None:
        super().__init__()
        self.tracker = path_now
        self.signals: dict[int, Signal[int]] = {}
        self.steps: list[Step] = []
        self._numbers: dict[int, int] = {}
        self._alive: list[Tensor] = []
        self._frames: dict[FrameType, int] = {}
        self._modules: dict[int, str] = {}
        for name, parameter in module.named_parameters():
            self._add_signal(parameter, "parameter", name)
        for name, buffer in module.named_buffers():
            self._add_signal(buffer, "buffer", name)
        bound = inspect.signature(module.forward).bind(*inputs.args, **inputs.kwargs)
        for name, value in bound.arguments.items():
            for tensor in iter_tensors(value):
                self._add_signal(tensor, "input", name)
        self._handles = [
            part.register_forward_hook(lambda *given, path=path: self._name_output(path, given[2]))
            for path, part in module.named_modules()
            if path
        ]

    def _name_output(self, path: str, output: Any) -> None:
        """Name the first tensor in a module's output after the module's path; names of variables have priority."""
        word = next((word for word in reversed(path.split(".")) if not word.isdigit()), "")
        for tensor in list(iter_tensors(output, dataclasses=True))[:1]:
            self._modules.setdefault(self._numbers.get(id(tensor), -1), word)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frame = sys._getframe(1)
        while frame and frame.f_code is not record_flow.__code__:  # read the variables of the methods that are running
            is_user_code = not frame.f_globals.get("__name__", "").startswith("torch.")
            if is_user_code and isinstance(frame.f_locals.get("self"), nn.Module):
                self._frames.setdefault(frame, len(self.signals))
                self._read_names(frame)
            frame = frame.f_back
        returned = func(*args, **(kwargs or {}))
        results = list(iter_tensors(returned))
        if results and not isinstance(returned, torch.Size):
            # one name, whether it was written as a function, a method, an operator or an attribute
            name = getattr(func, "__name__", str(func))
            name = (func.__self__.__name__ if name == "__get__" else name).strip("_")
            arguments, keywords = tree_map_only(Tensor, self._make_ref, (tuple(args), kwargs or {}))
            numbers = tuple(self._add_signal(out, "result") for out in results)
            self.steps.append(Step(CANONICAL_NAMES.get(name, name), self.tracker.current, arguments, keywords, numbers))
        return returned

    def flow(self, returned: Any) -> DataFlow[int]:
        """Return the recorded steps that lead to the first tensor in `returned`, the module's output."""
        for handle in self._handles:
            handle.remove()
        for frame in self._frames:
            self._read_names(frame)
        for number, word in self._modules.items():
            self._set_name(number, word)
        result = next((self._numbers[id(tensor)] for tensor in iter_tensors(returned, dataclasses=True)), None)
        if result is None:
            raise CountingError(f"the module returns no tensor to draw, but {type(returned).__name__}.")
        self._frames.clear()
        return DataFlow(self.signals, tuple(self.steps), result).prune()

    def _add_signal(self, tensor: Tensor, kind: Kind, name: str = "") -> int:
        """Number a tensor of this kind and return the number; `name` is the parameter's or argument's, "" if unknown.

        A tensor changed in place gets a new number.
        """
        number = self._numbers[id(tensor)] = len(self.signals)
        self.signals[number] = Signal(kind, tuple(tensor.shape), name)
        self._alive.append(tensor)
        return number

    def _make_ref(self, tensor: Tensor) -> Ref:
        """Return a reference to a tensor's number; a tensor not seen before is numbered as a constant."""
        number = self._numbers.get(id(tensor))
        return Ref(self._add_signal(tensor, "constant") if number is None else number)

    def _read_names(self, frame: FrameType) -> None:
        """Name tensors after the local variables of a running method that hold them, if made since it began."""
        for name, value in frame.f_locals.items():
            number = self._numbers.get(id(value), -1) if isinstance(value, Tensor) else -1
            if number >= self._frames[frame]:
                self._set_name(number, name)

    def _set_name(self, number: int, name: str) -> None:
        """Set the name of tensor `number` unless it has a name."""
        if number in self.signals and not self.signals[number].name:
            self.signals[number] = replace(self.signals[number], name=name)


def fold_constants(flow: DataFlow[int]) -> DataFlow[int]:
    """Replace steps that depend on no input and no parameter, such as those of a mask, by one constant."""
    signals, steps = dict(flow.signals), []
    for step in flow.steps:
        if any(signals[operand].kind not in ("constant", "buffer") for operand in step.operands):
            steps.append(step)
            continue
        source = next((signals[operand].name for operand in step.operands), "") or step.operation
        source = f"not {source}" if step.operation in ("invert", "bitwise_not", "logical_not") else source
        for number in step.results:
            signals[number] = replace(signals[number], kind="constant", name=signals[number].name or source)
    return replace(flow, signals=signals, steps=tuple(steps))


LayerMatch = tuple[dict[int, int], list[tuple[int, int]]]
"""Signals of the first layer paired with those of another: their results, and what they read from outside."""


@dataclass(frozen=True)
class LayerChain:
    """Equal layers, each of which reads results of the one before."""

    layers: Sequence[Sequence[Step]]
    # signals that a layer reads from outside, each with its source in the layer before; None if all layers share it
    reads: Sequence[tuple[int, int | None]]
    last_results: Mapping[int, int]  # signals of the first layer by those of the last


def fold_layers(flow: DataFlow[int]) -> DataFlow[int]:
    """Return the flow with only the first of equal layers, also for layers within layers.

    Layers are candidates by their paths and proved equal step by step.
    """
    done = {frame.path for frame in flow.frames}
    containers: dict[str, None] = {}  # the paths that hold numbered modules
    for step in flow.steps:
        words = step.path.split(".")
        containers |= {".".join(words[:index]): None for index, word in enumerate(words) if word.isdigit()}
    for container in sorted((path for path in containers if path not in done), key=lambda path: path.count(".")):
        prefix = f"{container}." if container else ""
        numbered: dict[int, list[Step]] = {}
        for step in flow.steps:
            number = step.path.removeprefix(prefix).split(".")[0]
            if step.path.startswith(prefix) and number.isdigit():
                numbered.setdefault(int(number), []).append(step)
        chain = _match_chain(flow, [numbered[number] for number in sorted(numbered)])
        if chain is not None:
            return fold_layers(_keep_first_layer(flow, container, chain))
    return flow


def _match_chain(flow: DataFlow[int], layers: Sequence[list[Step]]) -> LayerChain | None:
    """Return layers as a chain if each repeats the first on results of the layer before it, else None.

    `layers` has the steps of each layer.
    """
    within = {id(step) for layer in layers for step in layer}
    outside = {operand for step in flow.steps if id(step) not in within for operand in step.operands}
    midway = any(number in outside for layer in layers[:-1] for step in layer for number in step.results)
    if len(layers) < 2 or midway:  # something else reads what a layer other than the last has made
        return None
    sources: dict[int, int] = {}  # signals of the first layer by those of the layer before
    chains: list[list[tuple[int, int | None]]] = []
    for index, layer in enumerate(layers):
        match = _match_layers(flow, layers[0], layer)
        if match is None:
            return None
        results, read = match
        stored = {theirs for _, theirs in read if flow.signals[theirs].kind in (*STORED, "constant")}
        if index and any(ours != theirs and theirs not in {*sources, *stored} for ours, theirs in read):
            return None
        chains.append([(ours, sources.get(theirs)) for ours, theirs in read])
        sources = {theirs: ours for ours, theirs in results.items()}
    return LayerChain(layers, chains[1], sources) if all(chain == chains[1] for chain in chains[2:]) else None


def _match_layers(flow: DataFlow[int], first: Sequence[Step], layer: Sequence[Step]) -> LayerMatch | None:
    """Pair the tensors of two layers; return None if their steps differ in more than the parameters they read.

    `first` and `layer` are the steps of the first and of another layer.
    """
    if [step.operation for step in first] != [step.operation for step in layer]:
        return None
    results: dict[int, int] = {}
    read: list[tuple[int, int]] = []
    for first_step, other_step in zip(first, layer, strict=True):
        if len(first_step.refs) != len(other_step.refs) or len(first_step.results) != len(other_step.results):
            return None
        pairs = list(zip(first_step.operands, other_step.operands, strict=True))
        if any(results.get(a, b) != b for a, b in pairs):
            return None
        read += [pair for pair in pairs if pair[0] not in results]
        results |= zip(first_step.results, other_step.results, strict=True)
    for one, other in [*results.items(), *read]:
        a, b = flow.signals[one], flow.signals[other]
        if a.shape != b.shape or (a.kind in STORED) != (b.kind in STORED):
            return None
    return results, read


def _keep_first_layer(flow: DataFlow[int], container: str, chain: LayerChain) -> DataFlow[int]:
    """Return the flow with only the first layer of `chain`, in a frame for the list of layers at path `container`.

    Steps that read signals of the last layer then read those of the first. A signal that is both shared by all layers
    and the input of the first is split: the latter gets a step.
    """
    first_layer = chain.layers[0]
    shared = {number for number, source in chain.reads if source is None}
    begins = {number: source for number, source in chain.reads if source is not None}
    split = {number: max(flow.signals) + index for index, number in enumerate((n for n in begins if n in shared), 1)}
    starts = [Step("start", "", (Ref(number),), {}, (new,)) for number, new in split.items()]
    signals = {new: replace(flow.signals[begins[number]], kind="result") for number, new in split.items()}
    flow = replace(flow, signals={**flow.signals, **signals})
    produced, sources = {n for step in first_layer for n in step.results}, iter(chain.reads)

    def begun(ref: Ref) -> Ref:
        is_carried = ref.signal not in produced and next(sources)[1] is not None
        return replace(ref, signal=split.get(ref.signal, ref.signal)) if is_carried else ref

    first = [*starts, *(step.with_refs(begun) for step in first_layer)]
    layered = {id(step) for layer in chain.layers for step in layer}
    at = next(index for index, step in enumerate(flow.steps) if step is first_layer[0])
    before, after = ([s for s in part if id(s) not in layered] for part in (flow.steps[:at], flow.steps[at:]))
    back = chain.last_results
    smaller = flow.with_steps(
        lambda ref: replace(ref, signal=back.get(ref.signal, ref.signal)), [*before, *first, *after]
    )
    path = ".".join(first_layer[0].path.split(".")[: len(container.split(".")) + 1 if container else 1])
    carried = {split.get(number, number): source for number, source in begins.items()}
    return replace(smaller, frames=(*flow.frames, Frame(container, len(chain.layers), path, carried)))


MAX_REAL_SIZE = 128  # sizes up to which real tensors are faster than those of the meta device
BUFFER = "buffer "
SCALING = ("mul", "div", "scaled_dot_product_attention")


def trace_formulas(subject: Subject) -> tuple[DataFlow[Polynomial], list[Signal[Polynomial]]]:
    """Run a subject at many sizes; return its data flow with formulas as sizes, and the parameters it does not use."""
    first_flow: DataFlow[int] | None = None

    def read(values: Sizes) -> Readings:
        nonlocal first_flow
        device = "cpu" if max(values.values()) <= MAX_REAL_SIZE else "meta"
        module = subject.build(values, device)
        stored = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
        stored |= {f"{BUFFER}{name}": tuple(buffer.shape) for name, buffer in module.named_buffers()}
        inputs = subject.build_inputs(values, device)
        try:
            flow = fold_layers(fold_constants(record_flow(module, inputs)).prune()).renumber()
        except CountingError:
            raise
        except Exception as error:  # the forward pass of other people's code may fail in any way
            sizes = format_sizes(values).replace(" ", ", ")
            raise CountingError(f"{subject.name} cannot be run at {sizes}: {error}") from error
        first_flow = first_flow or flow
        expected, actual = _size_independent_parts(first_flow), _size_independent_parts(flow)
        if expected != actual:
            same = [*(left == right for left, right in zip(expected, actual, strict=False)), False]
            raise CountingError(
                f"{subject.name}: its steps differ from size to size (at step {same.index(False) + 1} for the first "
                "time), so no one drawing is true of it. Draw one of its parts, as in package.module:factory."
            )
        signals = {f"signal {n}": signal.shape for n, signal in flow.signals.items() if signal.kind not in STORED}
        frames = {f"frame {index}": (frame.count,) for index, frame in enumerate(flow.frames)}
        scales = {f"scale {index}": (square_of_scale(step),) for index, step in enumerate(flow.steps) if step.numbers}
        return {**stored, **signals, **frames, **scales}

    probed = fit_groups(
        read, choose_probe_sizes(subject.sizes(with_inputs=True), subject.can_build, subject.probe_sizes)
    )
    assert first_flow
    return _apply_formulas(subject.name, first_flow, probed)


def _size_independent_parts(flow: DataFlow[int]) -> list[Hashable]:
    """Return operations, paths and tensor numbers of a flow, which must be equal at all sizes."""
    structure: list[Hashable] = []
    for step in flow.steps:
        stored = [n for n in step.operands if flow.signals[n].kind in STORED]
        read = tuple(n for n in step.operands if n not in stored)
        names = frozenset(path_pattern(flow.signals[n].name) for n in stored)
        structure.append((step.operation, step.path, read, names, step.results))
    return structure


def square_of_scale(step: Step) -> int:
    """Return n if a step scales by √n or 1/√n, else 0.

    >>> square_of_scale(Step("mul", "", (3**-0.5,), {}, ())), square_of_scale(Step("div", "", (0.3,), {}, ()))
    (3, 0)
    """
    numbers = [float(number) for number in step.numbers]
    if step.operation not in SCALING or len(numbers) != 1 or not 0 < numbers[0] < float("inf"):
        return 0
    square = max(numbers[0] ** 2, numbers[0] ** -2)
    return round(square) if abs(square - round(square)) < 1e-9 * square else 0


def _apply_formulas(
    name: str, flow: DataFlow[int], fit_result: FitResult
) -> tuple[DataFlow[Polynomial], list[Signal[Polynomial]]]:
    """Replace the shapes of a recorded flow by fitted formulas; return the flow and the parameters it does not use.

    `name` is the model's, for errors.
    """

    def fitted(group: PathGroup) -> GroupFit:
        if group in fit_result.failures:
            raise CountingError(f"{name}: the shape of {group} cannot be drawn: {fit_result.failures[group]}.")
        return fit_result.fits[group]

    def parameter(group: PathGroup) -> Signal[Polynomial]:
        return Signal("parameter", fitted(group).columns, str(group), fitted(group).repeats)

    def group_of(stored: str) -> PathGroup:
        """Return the group of a parameter in a pass of at least two layers, of which only the first may differ."""
        groups = [group for group in fit_result.fits if group.matches(stored)]
        if len(groups) > 1:
            which = "0" if set(LAYER_NUMBER.findall(stored)) == {"0"} else "1…"
            groups = [group for group in groups if group.subset == which] or groups
        return groups[0] if groups else PathGroup(path_pattern(stored))

    signals: dict[int, Signal[Polynomial]] = {}
    for number, signal in flow.signals.items():
        if signal.kind in STORED:
            stored = parameter(group_of((BUFFER if signal.kind == "buffer" else "") + signal.name))
            signals[number] = replace(stored, kind=signal.kind, name=stored.name.removeprefix(BUFFER))
        else:  # a single number has no dimensions to fit
            shape = fitted(PathGroup(f"signal {number}")).columns if signal.shape else ()
            signals[number] = Signal(signal.kind, shape, signal.name)
    frames = tuple(
        replace(frame, formula=fitted(PathGroup(f"frame {index}")).columns[0])
        for index, frame in enumerate(flow.frames)
    )
    steps = list(flow.steps)
    for index, step in enumerate(steps):
        scale = fit_result.fits.get(PathGroup(f"scale {index}"))
        if scale and scale.columns[0].symbols:
            steps[index] = replace(step, squared_scale=scale.columns[0])
    used = {signal.name for signal in signals.values() if signal.kind in STORED}
    parameters = [parameter(group) for group in fit_result.fits if " " not in group.pattern]
    unused = [signal for signal in parameters if signal.name not in used]
    return DataFlow(signals, tuple(steps), flow.result, frames), unused


COPIES = {"contiguous", "detach", "clone", "to", "float", "type", "type_as", "dropout", "alias", "type_promotion"}
RESHAPES = {"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "getitem", "narrow", "select"}
SWAPS = {"transpose", "permute", "swapaxes", "movedim", "T", "mT", "t"}
SPLITS = {"unbind", "chunk", "split", "unfold"}
REARRANGE = "rearrange"


def merge_views(flow: DataFlow[Polynomial]) -> DataFlow[Polynomial]:
    """Return the flow without copies, with chains of views as one step, and with transposed operands as Kᵀ."""
    return _absorb_transposes(_merge_view_chains(_drop_copies(flow)))


def _drop_copies(flow: DataFlow[Polynomial]) -> DataFlow[Polynomial]:
    """Return the flow without steps whose result equals their operand: copies, and reshapes to the same shape."""
    same: dict[int, int] = {}
    steps: list[Step] = []
    signals = dict(flow.signals)
    for step in flow.steps:
        operands = step.operands
        if step.operation == "cat":  # a cache begins with nothing
            operands = tuple(number for number in operands if ZERO not in signals[number].shape)
        copies = step.operation in COPIES | RESHAPES and signals[operands[0]].shape == signals[step.results[0]].shape
        if len(operands) != 1 or len(step.results) != 1 or not (copies or step.operation == "cat"):
            steps.append(step)
            continue
        (result,), source = step.results, same.get(operands[0], operands[0])
        same[result] = source
        if not signals[source].name and step.operation in RESHAPES:
            signals[source] = replace(signals[source], name=signals[result].name)
    smaller = flow.with_steps(lambda ref: replace(ref, signal=same.get(ref.signal, ref.signal)), steps)
    frames = tuple(
        replace(frame, carried={same.get(a, a): same.get(b, b) for a, b in frame.carried.items()})
        for frame in flow.frames
    )
    return replace(smaller, signals=signals, frames=frames)


def _merge_view_chains(flow: DataFlow[Polynomial]) -> DataFlow[Polynomial]:
    """Merge each view with the view that alone reads it."""
    uses, makers, signals = flow.count_uses(), {}, dict(flow.signals)
    steps: list[Step] = []
    for step in flow.steps:
        if step.operation in RESHAPES | SWAPS | SPLITS and len(step.operands) == 1:
            step = replace(step, operation=REARRANGE, merged_from=(step.operation,))
            source, result = step.operands[0], step.results[0]
            before = makers.get(source)
            if before in steps and uses[source] == 1:
                steps.remove(before)
                signals[result] = replace(signals[result], name=signals[result].name or signals[source].name)
                step = replace(step, args=before.args, merged_from=before.merged_from + step.merged_from)
            makers |= {number: step for number in step.results if len(step.results) == 1}
        steps.append(step)
    return replace(flow, signals=signals, steps=tuple(steps))


def _absorb_transposes(flow: DataFlow[Polynomial]) -> DataFlow[Polynomial]:
    """Remove transposes that only products read; the operands of the products are marked as transposed."""
    readers: dict[int, set[str]] = {flow.result: {"result"}}
    for step in flow.steps:
        for number in step.operands:
            readers.setdefault(number, set()).add(step.operation)
    transposed: dict[int, Ref] = {}
    for step in flow.steps:
        if step.operation == REARRANGE and len(step.merged_from) == 1 and step.merged_from[0] in SWAPS:
            before, after = flow.signals[step.operands[0]].shape, flow.signals[step.results[0]].shape
            last_two = len(before) > 1 and after == (*before[:-2], before[-1], before[-2])
            if last_two and readers.get(step.results[0], set()) <= {"matmul", "bmm"}:
                transposed[step.results[0]] = Ref(step.operands[0], transposed=True)
    steps = [step for step in flow.steps if step.results[0] not in transposed]
    return flow.with_steps(lambda ref: transposed.get(ref.signal, ref), steps)
