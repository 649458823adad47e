"""A module's forward pass as a graph of signals and steps, with formulas for every size."""

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import pairwise
from types import FrameType
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lemma.counting.measure import Whereabouts, followed
from lemma.counting.polynomial import ONE, ZERO, Polynomial
from lemma.counting.probe import NUMBER, Fitted, Place, Probed, Readings, choose_ladders, pattern_of, probe
from lemma.counting.subject import Inputs, Subject, Values
from lemma.counting.writing import write
from lemma.errors import LedgerError

# A module's forward pass as a graph: signals, and the steps that make them from one another.


Kind = Literal["input", "parameter", "buffer", "constant", "result"]
HELD = ("parameter", "buffer")  # what the module holds, and has a name for
Size = TypeVar("Size", int, Polynomial)


@dataclass(frozen=True)
class Ref:
    """A signal as it stands among a step's arguments, by its number; `turned` is its transpose."""

    signal: int
    turned: bool = False


@dataclass(frozen=True)
class Signal(Generic[Size]):
    """A tensor of the pass: whole numbers for its shape in one run, formulas once many runs are fitted."""

    kind: Kind
    shape: tuple[Size, ...]
    name: str = ""
    repeats: Polynomial = ONE
    """How many equal parameters it stands for."""


@dataclass(frozen=True)
class Step:
    """One operation: its name, the module at work, its arguments with signals as `Ref`s, and the signals it makes."""

    operation: str
    path: str
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]
    results: tuple[int, ...]
    through: tuple[str, ...] = ()
    """The operations it was merged from."""
    under_root: Polynomial | None = None
    """What its scale is one over the root of, where it has a scale that is so."""

    @property
    def refs(self) -> tuple[Ref, ...]:
        """Its signals in the order of its arguments, those within lists too."""
        return tuple(found for found in leaves([*self.arguments, *self.named.values()]) if isinstance(found, Ref))

    @property
    def operands(self) -> tuple[int, ...]:
        """The numbers of its signals."""
        return tuple(ref.signal for ref in self.refs)

    @property
    def numbers(self) -> tuple[float, ...]:
        """The plain numbers among its arguments: those in their order, and a scale."""
        found = leaves([*self.arguments, self.named.get("scale")])
        return tuple(x for x in found if isinstance(x, (int, float)) and not isinstance(x, bool))

    def reading(self, swap: Callable[[Ref], Ref]) -> "Step":
        """Return the step with other signals in the place of its own."""
        arguments, named = swapped(self.arguments, swap), swapped(dict(self.named), swap)
        return replace(self, arguments=arguments, named=named)


@dataclass(frozen=True)
class Frame:
    """Equal layers one after the other, of which one is in the graph: their path, how many, what passes between.

    `carried` gives, for what enters the first layer, what enters the next ones in its place.
    """

    path: str
    count: int
    first: str
    carried: Mapping[int, int] = field(default_factory=dict)
    formula: Polynomial = ONE
    """How many there are at all sizes."""


@dataclass(frozen=True)
class Graph(Generic[Size]):
    """What leads to `result`, the first tensor that the module returns; steps are in the order in which they ran."""

    signals: Mapping[int, Signal[Size]]
    steps: tuple[Step, ...]
    result: int
    frames: tuple[Frame, ...] = ()

    def uses(self) -> Counter[int]:
        """How often each signal is read; the result once more."""
        return Counter([self.result, *(operand for step in self.steps for operand in step.operands)])

    def numbered(self) -> "Graph[Size]":
        """Return it with the signals that occur numbered as they come, what the module holds behind all others."""
        seen = dict.fromkeys(n for step in self.steps for n in (*step.operands, *step.results))
        order = sorted(seen, key=lambda number: self.signals[number].kind in HELD)
        new = {number: place for place, number in enumerate(order)}
        steps = [replace(step, results=tuple(new[number] for number in step.results)) for step in self.steps]
        frames = tuple(
            replace(frame, carried={new[a]: new[b] for a, b in frame.carried.items() if a in new and b in new})
            for frame in self.frames
        )
        smaller = self.reading(lambda ref: Ref(new[ref.signal], ref.turned), steps)
        return replace(smaller, signals={new[number]: self.signals[number] for number in order}, frames=frames)

    def needed(self) -> "Graph[Size]":
        """Return it without what does not lead to the result."""
        wanted, kept = {self.result}, []
        for step in reversed(self.steps):
            if wanted & set(step.results):
                wanted |= set(step.operands)
                kept.append(step)
        return replace(self, steps=tuple(reversed(kept)))

    def reading(self, swap: Callable[[Ref], Ref], steps: Iterable[Step] | None = None) -> "Graph[Size]":
        """Return it with these steps, all of which read other signals in the place of their own."""
        swapped_steps = tuple(step.reading(swap) for step in (self.steps if steps is None else steps))
        return replace(self, steps=swapped_steps, result=swap(Ref(self.result)).signal)


def leaves(value: Any) -> Iterator[Any]:
    """All that is in lists, tuples and dictionaries, however deep."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value


def swapped(value: Any, swap: Callable[[Ref], Ref]) -> Any:
    """Put other signals in the place of those in lists, tuples and dictionaries."""
    if isinstance(value, Ref):
        return swap(value)
    if isinstance(value, dict):
        return {key: swapped(inner, swap) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(swapped(inner, swap) for inner in value)
    return value


# A name for every signal: its author's where there is one, and no two alike.


LOWERED = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
WORDS = {
    "pad": "padded",
    "softmax": "weights",
    "einsum": "sums",
    "add": "sum",
    "mul": "product",
    "matmul": "product",
    "scaled_dot_product_attention": "attended",
    "multi_head_attention_forward": "attended",
}


def signal_names(graph: Graph[Polynomial]) -> dict[int, str]:
    """Name every signal; the second of a name is written with a small 2."""
    names: dict[int, str] = {}
    seen: Counter[str] = Counter()
    makers = {number: step for step in graph.steps for number in step.results}
    for number, signal in sorted(graph.signals.items()):
        if signal.kind in HELD:
            names[number] = signal.name
            continue
        if number in makers or signal.kind != "result":
            name = signal.name.rpartition(".")[2] or _called(makers[number], names)
            seen[name] += 1
            names[number] = name if seen[name] == 1 else name + str(seen[name]).translate(LOWERED)
    return names


def _called(step: Step, names: dict[int, str]) -> str:
    """What a signal is called after its step."""
    if step.operation == "rearrange" and "unfold" in step.through:
        return "windows"
    if step.operation == "rearrange":
        return names[step.operands[0]].rstrip("₀₁₂₃₄₅₆₇₈₉")
    return WORDS.get(step.operation, step.operation)


# Recording a module's forward pass at the level of PyTorch's functions, with the names its author gave to things.


SIDES = {"radd": "add", "iadd": "add", "rmul": "mul", "imul": "mul", "itruediv": "div", "truediv": "div", "isub": "sub"}


def trace(module: nn.Module, inputs: Inputs) -> Graph[int]:
    """Run a module once, out of training mode, and return what leads to the first tensor it returns."""
    module.eval()
    with torch.no_grad(), followed(module) as where:
        recorder = Recorder(where)
        recorder.begin(module, inputs)
        with recorder:
            returned = module(*inputs.positional, **inputs.named)
    return recorder.graph(returned)


class Recorder(TorchFunctionMode):
    """Notes every function that returns tensors. Signals are told apart by identity, so all are kept alive."""

    def __init__(self, where: Whereabouts) -> None:
        super().__init__()
        self.where = where
        self.signals: dict[int, Signal[int]] = {}
        self.steps: list[Step] = []
        self._numbers: dict[int, int] = {}
        self._alive: list[Tensor] = []
        self._frames: dict[FrameType, int] = {}
        self._modules: dict[int, str] = {}
        self._handles: list[Any] = []

    def begin(self, module: nn.Module, inputs: Inputs) -> None:
        """Note what is there before the first step, and what modules return."""
        for name, parameter in module.named_parameters():
            self._add(parameter, Signal("parameter", tuple(parameter.shape), name))
        for name, buffer in module.named_buffers():
            self._add(buffer, Signal("buffer", tuple(buffer.shape), name))
        for name, value in _arguments(module, inputs):
            for tensor in leaves(value):
                if isinstance(tensor, Tensor):
                    self._add(tensor, Signal("input", tuple(tensor.shape), name))
        for path, part in module.named_modules():
            if path:
                self._handles.append(part.register_forward_hook(lambda *g, path=path: self._returned(path, g[2])))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function, and note it if tensors come out."""
        self._look_around()
        made = func(*args, **(kwargs or {}))
        results = [out for out in leaves(made) if isinstance(out, Tensor)]
        if results and not isinstance(made, torch.Size):
            self._note(_name(func), args, kwargs or {}, results)
        return made

    def graph(self, returned: Any) -> Graph[int]:
        """The graph of all that was noted and leads to the first tensor returned."""
        for handle in self._handles:
            handle.remove()
        for frame in self._frames:
            self._read_names(frame)
        for number, word in self._modules.items():  # what its author has not named is called after its module
            self._call(number, word)
        result = next((self._numbers[id(tensor)] for tensor in tensors_in(returned)), None)
        if result is None:
            raise LedgerError(f"the module returns no tensor to draw, but {type(returned).__name__}.")
        self._frames.clear()
        return Graph(self.signals, tuple(self.steps), result).needed()

    def _note(self, operation: str, args: Any, kwargs: dict[str, Any], results: list[Tensor]) -> None:
        arguments, named = self._refs(list(args)), self._refs(kwargs)
        made = tuple(self._add(out, Signal("result", tuple(out.shape))) for out in results)
        self.steps.append(Step(operation, self.where.now, tuple(arguments), named, made))

    def _add(self, tensor: Tensor, signal: Signal[int]) -> int:
        """Number a tensor; one that was changed in place gets a new number."""
        number = len(self.signals)
        self.signals[number], self._numbers[id(tensor)] = signal, number
        self._alive.append(tensor)
        return number

    def _refs(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            known = self._numbers.get(id(value))
            return Ref(self._add(value, Signal("constant", tuple(value.shape))) if known is None else known)
        if isinstance(value, dict):
            return {key: self._refs(inner) for key, inner in value.items()}
        return tuple(map(self._refs, value)) if isinstance(value, (list, tuple)) else value

    def _returned(self, path: str, output: Any) -> None:
        word = next((word for word in reversed(path.split(".")) if not word.isdigit()), "")
        for tensor in list(tensors_in(output))[:1]:
            self._modules.setdefault(self._numbers.get(id(tensor), -1), word)

    def _call(self, number: int, name: str) -> None:
        """Name a signal unless it has a name."""
        if number in self.signals and not self.signals[number].name:
            signal = self.signals[number]
            self.signals[number] = Signal(signal.kind, signal.shape, name)

    def _look_around(self) -> None:
        """Read the variables of the methods that are at work."""
        frame = sys._getframe(2)
        while frame and frame.f_code is not trace.__code__:
            if _is_a_modules_own(frame):
                self._frames.setdefault(frame, len(self.signals))
                self._read_names(frame)
            frame = frame.f_back

    def _read_names(self, frame: FrameType) -> None:
        """Take over the names of variables; what was there before the method began has its name from elsewhere."""
        for name, value in frame.f_locals.items():
            number = self._numbers.get(id(value), -1) if isinstance(value, Tensor) else -1
            if number >= self._frames[frame]:
                self._call(number, name)


def tensors_in(value: Any) -> Iterable[Tensor]:
    """The tensors in what a module returns, in order."""
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value) and not isinstance(value, (type, dict)):
        yield from tensors_in([getattr(value, one.name) for one in fields(value)])
    elif isinstance(value, (dict, list, tuple)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(inner)


def _arguments(module: nn.Module, inputs: Inputs) -> list[tuple[str, Any]]:
    bound = inspect.signature(module.forward).bind(*inputs.positional, **inputs.named)
    return list(bound.arguments.items())


def _is_a_modules_own(frame: FrameType) -> bool:
    if frame.f_globals.get("__name__", "").startswith("torch."):
        return False
    return isinstance(frame.f_locals.get("self"), nn.Module)


def _name(function: Any) -> str:
    """An operation by one name, whether it was written as a function, a method, an operator or an attribute."""
    name = getattr(function, "__name__", str(function))
    if name == "__get__":
        name = function.__self__.__name__
    name = name.strip("_")
    return SIDES.get(name, name)


# What does not depend on inputs or parameters, masks above all: one constant, however many steps made it.


FIXED = ("constant", "buffer")


def without_constants(graph: Graph[int]) -> Graph[int]:
    """Return the graph in which what is made of constants alone, or of nothing, is a constant itself."""
    signals, kept = dict(graph.signals), []
    for step in graph.steps:
        if any(signals[operand].kind not in FIXED for operand in step.operands):
            kept.append(step)
            continue
        source = next((signals[operand].name for operand in step.operands), "") or step.operation
        source = f"not {source}" if step.operation in ("invert", "bitwise_not", "logical_not") else source
        for number in step.results:
            signals[number] = replace(signals[number], kind="constant", name=signals[number].name or source)
    return replace(graph, signals=signals, steps=tuple(kept))


# Steps that only look at the same numbers otherwise: left out, merged into one, or written as a transpose.


COPIES = {"contiguous", "detach", "clone", "to", "float", "type", "type_as", "dropout", "alias", "type_promotion"}
RESHAPES = {"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "getitem", "narrow", "select"}
SWAPS = {"transpose", "permute", "swapaxes", "movedim", "T", "mT", "t"}
SPLITS = {"unbind", "chunk", "split", "unfold"}
PRODUCTS = {"matmul", "bmm"}
REARRANGED = "rearrange"


def without_views(graph: Graph[Polynomial]) -> Graph[Polynomial]:
    """Return the graph without copies, with chains of views as one step, and Kᵀ where a product reads a transpose."""
    return _turned(_merged(_without_copies(graph)))


def _without_copies(graph: Graph[Polynomial]) -> Graph[Polynomial]:
    same: dict[int, int] = {}
    kept: list[Step] = []
    signals = dict(graph.signals)
    for step in graph.steps:
        if not _changes_nothing(graph, step):
            kept.append(step)
            continue
        (made,), source = step.results, step.operands[0] if step.operation != "cat" else _filled(graph, step)[0]
        source = same.get(source, source)
        same[made] = source
        if not signals[source].name and step.operation in RESHAPES:
            signals[source] = replace(signals[source], name=signals[made].name)
    smaller = graph.reading(lambda ref: replace(ref, signal=same.get(ref.signal, ref.signal)), kept)
    frames = tuple(
        replace(frame, carried={same.get(a, a): same.get(b, b) for a, b in frame.carried.items()})
        for frame in graph.frames
    )
    return replace(smaller, signals=signals, frames=frames)


def _changes_nothing(graph: Graph[Polynomial], step: Step) -> bool:
    if step.operation == "cat":
        return len(_filled(graph, step)) == 1
    if len(step.operands) != 1 or len(step.results) != 1:
        return False
    same_shape = graph.signals[step.operands[0]].shape == graph.signals[step.results[0]].shape
    return same_shape and step.operation in COPIES | RESHAPES


def _filled(graph: Graph[Polynomial], step: Step) -> list[int]:
    """What a step reads that holds anything: a cache begins with nothing."""
    return [number for number in step.operands if ZERO not in graph.signals[number].shape]


def _merged(graph: Graph[Polynomial]) -> Graph[Polynomial]:
    """Join a view with the view that alone reads it."""
    uses, makers, signals = graph.uses(), {}, dict(graph.signals)
    kept: list[Step] = []
    for step in graph.steps:
        if _is_view(step):
            step = replace(step, operation=REARRANGED, through=(step.operation,))
            before = makers.get(step.operands[0])
            if before in kept and uses[step.operands[0]] == 1:
                kept.remove(before)
                signals[step.results[0]] = _named(signals[step.results[0]], signals[step.operands[0]].name)
                step = replace(step, arguments=before.arguments, through=before.through + step.through)
            makers |= {number: step for number in step.results if len(step.results) == 1}
        kept.append(step)
    return replace(graph, signals=signals, steps=tuple(kept))


def _named(signal: Signal[Polynomial], name: str) -> Signal[Polynomial]:
    return signal if signal.name else replace(signal, name=name)


def _is_view(step: Step) -> bool:
    return step.operation in RESHAPES | SWAPS | SPLITS and len(step.operands) == 1


def _turned(graph: Graph[Polynomial]) -> Graph[Polynomial]:
    """Write a transpose that only products read into the products."""
    readers: dict[int, set[str]] = {graph.result: {"result"}}
    for step in graph.steps:
        for number in step.operands:
            readers.setdefault(number, set()).add(step.operation)
    turned = {
        step.results[0]: Ref(step.operands[0], turned=True)
        for step in graph.steps
        if _is_transpose(graph, step) and readers.get(step.results[0], set()) <= PRODUCTS
    }
    kept = [step for step in graph.steps if step.results[0] not in turned]
    return graph.reading(lambda ref: turned.get(ref.signal, ref), kept)


def _is_transpose(graph: Graph[Polynomial], step: Step) -> bool:
    """Whether a step swaps the last two dimensions and does nothing else."""
    if step.operation != REARRANGED or len(step.through) != 1 or step.through[0] not in SWAPS:
        return False
    before, after = graph.signals[step.operands[0]].shape, graph.signals[step.results[0]].shape
    return len(before) > 1 and after == (*before[:-2], before[-1], before[-2])


# Equal layers one after the other, drawn once: found by their paths, proved equal step by step.


START = "start"
Pair = tuple[int, int]
Chain = list[tuple[int, int | None]]
"""For all that a layer reads from outside, in order: what made it in the layer before; None for what layers share."""


def folded(graph: Graph[int]) -> Graph[int]:
    """Return the graph with the first of equal layers in the place of all of them, layers within layers too."""
    for container in _containers(graph):
        layers = _layers(graph, container)
        chain = _chain(graph, layers)
        if chain is not None:
            return folded(_first_only(graph, container, layers, chain))
    return graph


@dataclass(frozen=True)
class Match:
    """A layer beside the first: the signals that both make, and those that both read from outside, pair by pair."""

    made: dict[int, int]
    read: list[Pair]


def _containers(graph: Graph[int]) -> list[str]:
    """The paths that hold numbered modules, outermost first, without those folded already."""
    done = {frame.path for frame in graph.frames}
    found: dict[str, None] = {}
    for step in graph.steps:
        words = step.path.split(".")
        found |= {".".join(words[:place]): None for place, word in enumerate(words) if word.isdigit()}
    return sorted((path for path in found if path not in done), key=lambda path: path.count("."))


def _layers(graph: Graph[int], container: str) -> list[list[Step]]:
    prefix = f"{container}." if container else ""
    numbered: dict[int, list[Step]] = {}
    for step in graph.steps:
        number = step.path.removeprefix(prefix).split(".")[0]
        if step.path.startswith(prefix) and number.isdigit():
            numbered.setdefault(int(number), []).append(step)
    return [numbered[number] for number in sorted(numbered)]


def _chain(graph: Graph[int], layers: Sequence[list[Step]]) -> Chain | None:
    """What goes from layer to layer, if every later one repeats the first on what the one before it made."""
    if len(layers) < 2 or _read_midway(graph, layers):
        return None
    matches = [_matched(graph, layers[0], layer) for layer in layers]
    chains = [_chained(graph, before, here) for before, here in pairwise(matches)]
    return chains[0] if all(chain == chains[0] for chain in chains) else None


def _matched(graph: Graph[int], first: Sequence[Step], layer: Sequence[Step]) -> Match | None:
    """Lay two layers side by side; None if they differ in anything but the parameters they read."""
    if [step.operation for step in first] != [step.operation for step in layer]:
        return None
    match = Match({}, [])
    for mine, theirs in zip(first, layer, strict=True):
        if len(mine.refs) != len(theirs.refs) or len(mine.results) != len(theirs.results):
            return None
        within = [pair for pair in zip(mine.operands, theirs.operands, strict=True) if pair[0] in match.made]
        match.read.extend(p for p in zip(mine.operands, theirs.operands, strict=True) if p[0] not in match.made)
        match.made.update(zip(mine.results, theirs.results, strict=True))
        if any(match.made[a] != b for a, b in within):
            return None
    alike = all(_alike(graph, *pair) for pair in [*match.made.items(), *match.read])
    return match if alike else None


def _alike(graph: Graph[int], one: int, other: int) -> bool:
    mine, theirs = graph.signals[one], graph.signals[other]
    return mine.shape == theirs.shape and (mine.kind in HELD) == (theirs.kind in HELD)


def _chained(graph: Graph[int], before: Match | None, here: Match | None) -> Chain | None:
    """The chain from one layer to the next; None if that one reads anything else."""
    if before is None or here is None:
        return None
    came_from = {theirs: mine for mine, theirs in before.made.items()}
    for mine, theirs in here.read:
        if mine != theirs and theirs not in came_from and graph.signals[theirs].kind not in (*HELD, "constant"):
            return None
    return [(mine, came_from.get(theirs)) for mine, theirs in here.read]


def _read_midway(graph: Graph[int], layers: Sequence[list[Step]]) -> bool:
    """Whether something outside reads what a layer other than the last has made."""
    within = {id(step) for layer in layers for step in layer}
    outside = {operand for step in graph.steps if id(step) not in within for operand in step.operands}
    return any(number in outside for layer in layers[:-1] for step in layer for number in step.results)


def _first_only(graph: Graph[int], container: str, layers: Sequence[list[Step]], chain: Chain) -> Graph[int]:
    """Leave the first layer, in a frame; what reads the last one's signals reads the first one's."""
    graph, first, carried = _parted(graph, layers[0], chain)
    match = _matched(graph, layers[0], layers[-1])
    back = {theirs: mine for mine, theirs in match.made.items()} if match else {}
    layered = {id(step) for layer in layers for step in layer}
    at = next(place for place, step in enumerate(graph.steps) if id(step) == id(layers[0][0]))
    before, after = ([s for s in part if id(s) not in layered] for part in (graph.steps[:at], graph.steps[at:]))
    smaller = graph.reading(
        lambda ref: replace(ref, signal=back.get(ref.signal, ref.signal)), [*before, *first, *after]
    )
    path = ".".join(layers[0][0].path.split(".")[: len(container.split(".")) + 1 if container else 1])
    return replace(smaller, frames=(*graph.frames, Frame(container, len(layers), path, carried)))


def _parted(graph: Graph[int], layer: list[Step], chain: Chain) -> tuple[Graph[int], list[Step], dict[int, int]]:
    """Part a signal that is both what all layers share and what the first begins with: the latter gets a step."""
    shared = {mine for mine, made in chain if made is None}
    begins = {mine: made for mine, made in chain if made is not None}
    free = max(graph.signals) + 1
    new = {mine: free + place for place, mine in enumerate(mine for mine in begins if mine in shared)}
    signals = {number: replace(graph.signals[begins[mine]], kind="result") for mine, number in new.items()}
    starts = [Step(START, "", (Ref(mine),), {}, (number,)) for mine, number in new.items()]
    made, rest = {n for step in layer for n in step.results}, iter(chain)

    def swap(ref: Ref) -> Ref:
        carried = None if ref.signal in made else next(rest)[1]
        return ref if carried is None else replace(ref, signal=new.get(ref.signal, ref.signal))

    first = [step.reading(swap) for step in layer]
    carried = {new.get(mine, mine): source for mine, source in begins.items()}
    return replace(graph, signals={**graph.signals, **signals}), [*starts, *first], carried


# The graph with formulas for its sizes: traced at many, with the same steps, every dimension fitted and proved.


SMALL = 128  # sizes up to which real tensors are faster than those of the meta device
BUFFER = "buffer "
SCALING = ("mul", "div", "scaled_dot_product_attention")


def fitted_graph(subject: Subject) -> tuple[Graph[Polynomial], list[Signal[Polynomial]]]:
    """Trace a subject and return its graph in formulas, and the parameters that take no part in it."""
    tracer = Tracer(subject)
    names = list(subject.sizes(running=True))
    probed = probe(tracer.read, choose_ladders(names, subject.can_be_built, subject.ladders))
    assert tracer.graph
    return Formulas(subject.name, tracer.graph, probed).graph()


def simple_graph(module: nn.Module, inputs: Inputs) -> Graph[int]:
    """What leads to the result in one run; constants are one signal each, and equal layers are there once."""
    return folded(without_constants(trace(module, inputs)).needed()).numbered()


class Tracer:
    """Traces a subject at the sizes asked for; the steps must be the same at all of them."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.graph: Graph[int] | None = None

    def read(self, values: Values) -> Readings:
        """The shape of every signal and parameter, the number of repeated layers, and the scales, at these sizes."""
        device = "cpu" if max(values.values()) <= SMALL else "meta"
        module = self.subject.build(values, device)
        held = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
        held |= {f"{BUFFER}{name}": tuple(buffer.shape) for name, buffer in module.named_buffers()}
        graph = self._run(module, values, device)
        self.graph = self.graph or graph
        self._compare(structure(self.graph), structure(graph))
        signals = {f"signal {n}": signal.shape for n, signal in graph.signals.items() if signal.kind not in HELD}
        frames = {f"frame {place}": (frame.count,) for place, frame in enumerate(graph.frames)}
        scales = {f"scale {place}": (under_root(step),) for place, step in enumerate(graph.steps) if step.numbers}
        return {**held, **signals, **frames, **scales}

    def _run(self, module: nn.Module, values: Values, device: str) -> Graph[int]:
        inputs = self.subject.inputs(values, device)
        try:
            return simple_graph(module, inputs)
        except LedgerError:
            raise
        except Exception as error:  # a stranger's forward may refuse in any way
            sizes = ", ".join(f"{name}={value}" for name, value in values.items())
            raise LedgerError(f"{self.subject.name} cannot be run at {sizes}: {error}") from error

    def _compare(self, known: list[Hashable], here: list[Hashable]) -> None:
        if known != here:
            same = [one == other for one, other in zip(known, here, strict=False)]
            at = same.index(False) if False in same else len(same)
            raise LedgerError(
                f"{self.subject.name}: its steps differ from size to size (at step {at + 1} for the first time), so no "
                "one drawing is true of it. Draw one of its parts, as in package.module:factory."
            )


def structure(graph: Graph[int]) -> list[Hashable]:
    """What must not depend on sizes: operations, places, and what is read; parameters by their names' pattern."""
    return [
        (
            step.operation,
            step.path,
            tuple(number for number in step.operands if graph.signals[number].kind not in HELD),
            frozenset(pattern_of(graph.signals[n].name) for n in step.operands if graph.signals[n].kind in HELD),
            step.results,
        )
        for step in graph.steps
    ]


def under_root(step: Step) -> int:
    """The n of a scale √n or 1/√n; 0 if it is none.

    >>> under_root(Step("mul", "", (3**-0.5,), {}, ())), under_root(Step("div", "", (0.3,), {}, ()))
    (3, 0)
    """
    numbers = [float(number) for number in step.numbers]
    if step.operation not in SCALING or len(numbers) != 1 or not 0 < numbers[0] < float("inf"):
        return 0
    square = max(numbers[0] ** 2, numbers[0] ** -2)
    return round(square) if abs(square - round(square)) < 1e-9 * square else 0


class Formulas:
    """Puts what was fitted in the place of the numbers of one trace."""

    def __init__(self, name: str, graph: Graph[int], probed: Probed) -> None:
        self.name, self.traced, self.probed = name, graph, probed

    def graph(self) -> tuple[Graph[Polynomial], list[Signal[Polynomial]]]:
        """The graph in formulas, and the parameters that take no part in it."""
        steps = tuple(self._step(place, step) for place, step in enumerate(self.traced.steps))
        signals = {number: self._signal(number, signal) for number, signal in self.traced.signals.items()}
        frames = tuple(self._frame(place, frame) for place, frame in enumerate(self.traced.frames))
        used = {signal.name for signal in signals.values() if signal.kind in HELD}
        others = [self._held(place) for place in self.probed.places if " " not in place.pattern]
        unused = [signal for signal in others if signal.name not in used]
        return Graph(signals, steps, self.traced.result, frames), unused

    def _fitted(self, place: Place) -> Fitted:
        if place in self.probed.refused:
            raise LedgerError(f"{self.name}: the shape of {place} cannot be drawn: {self.probed.refused[place]}.")
        return self.probed.places[place]

    def _signal(self, number: int, signal: Signal[int]) -> Signal[Polynomial]:
        if signal.kind in HELD:
            buffer = BUFFER if signal.kind == "buffer" else ""
            found = self._held(self._place(buffer + signal.name))
            return replace(found, kind=signal.kind, name=found.name.removeprefix(BUFFER))
        key = Place(f"signal {number}")
        if not signal.shape:  # a single number has no dimensions to fit
            return Signal(signal.kind, (), signal.name)
        return Signal(signal.kind, self._fitted(key).columns, signal.name)

    def _held(self, place: Place) -> Signal[Polynomial]:
        fitted = self._fitted(place)
        return Signal("parameter", fitted.columns, str(place), fitted.repeats)

    def _place(self, name: str) -> Place:
        """The place of a parameter in a trace of two layers at least, of which only the first may stand apart."""
        found = [place for place in self.probed.places if place.pattern in (name, pattern_of(name))]
        numbers = NUMBER.findall(name)
        if len(found) > 1:
            first = bool(numbers) and set(numbers) == {"0"}
            found = [place for place in found if place.which == ("0" if first else "1…")] or found
        return found[0] if found else Place(pattern_of(name))

    def _frame(self, place: int, frame: Frame) -> Frame:
        (count,) = self._fitted(Place(f"frame {place}")).columns
        return replace(frame, formula=count)

    def _step(self, place: int, step: Step) -> Step:
        fitted = self.probed.places.get(Place(f"scale {place}"))
        scale = fitted.columns[0] if fitted else None
        return replace(step, under_root=scale if scale is not None and scale.symbols else None)


# The formula of each step, in the names of its signals.


RECURRENT = {
    "lstm": [
        "(i, f, g, o) = W_ih x_t + b_ih + W_hh h + b_hh",
        "c = σ(f) ∗ c + σ(i) ∗ tanh(g)",
        "h = σ(o) ∗ tanh(c)",
    ],
    "gru": [
        "r, z = σ(W_ih x_t + b_ih + W_hh h + b_hh)",
        "n = tanh(W_in x_t + b_in + r ∗ (W_hn h + b_hn))",
        "h = (1 − z) ∗ n + z ∗ h",
    ],
    "rnn_tanh": ["h = tanh(W_ih x_t + b_ih + W_hh h + b_hh)"],
    "rnn_relu": ["h = max(0, W_ih x_t + b_ih + W_hh h + b_hh)"],
}
SIGNS = {"add": "+", "sub": "−", "mul": "∗", "div": "/", "rsub": "−", "rtruediv": "/"}


class StepFormulas:
    """Writes formulas for one graph, whose signals have names; sizes are written in the order of the symbols."""

    def __init__(self, graph: Graph[Polynomial], names: Mapping[int, str], order: Sequence[str]) -> None:
        self.graph, self.names, self.order = graph, names, order

    def lines(self, step: Step) -> list[str]:
        """The formula of a step, one line or more."""
        if step.operation in RECURRENT:
            return [
                f"{self._results(step)} = {step.operation.split('_')[0].upper()}({self._first(step)})",
                *RECURRENT[step.operation],
            ]
        return [f"{self._results(step)} = {self._right(step)}"]

    def size(self, size: Polynomial) -> str:
        """One dimension as it stands among others: a sum in brackets."""
        text = write(size, self.order, "unicode")
        return f"({text.replace(' ', '')})" if " " in text else text

    def shape(self, shape: Sequence[Polynomial]) -> str:
        """A shape: S × E."""
        return " × ".join(map(self.size, shape)) or "1"

    def _results(self, step: Step) -> str:
        uses = self.graph.uses()
        return ", ".join(self.names[number] for number in step.results if uses[number])

    def _right(self, step: Step) -> str:
        writers: dict[str, Callable[[Step], str]] = {
            "linear": self._linear,
            "matmul": self._product,
            "bmm": self._product,
            "einsum": self._einsum,
            "softmax": self._softmax,
            "log_softmax": self._softmax,
            "layer_norm": self._layer_norm,
            "rms_norm": self._rms_norm,
            "embedding": self._embedding,
            "scaled_dot_product_attention": self._attention,
            "multi_head_attention_forward": self._whole_attention,
            "masked_fill": self._masked,
            "cat": self._joined,
            "addmm": self._shifted_product,
            "pow": self._power,
            "start": self._first,
            "neg": lambda step: f"−{self._first(step)}",
            "rsqrt": lambda step: f"1/√{self._first(step)}",
            "pad": self._padded,
            "rearrange": self._rearranged,
            "rsub": self._backwards,
            "rtruediv": self._backwards,
        }
        if step.operation in writers:
            return writers[step.operation](step)
        if step.operation in SIGNS and len(step.arguments) > 1:
            return self._infix(step, step.arguments[:2])
        return f"{step.operation}({', '.join(self._name(ref) for ref in step.refs)})"

    def _name(self, value: Any) -> str:
        """A signal or a number; W and b are the weight and the bias that stand beside the step."""
        if not isinstance(value, Ref):
            return f"{value:.4g}" if isinstance(value, float) else str(value)
        name = self.names[value.signal]
        if self.graph.signals[value.signal].kind in HELD:
            name = short(name)
        return name + ("ᵀ" if value.turned else "")

    def _first(self, step: Step) -> str:
        return self._name(step.refs[0])

    def _linear(self, step: Step) -> str:
        x, weight, *bias = map(self._name, step.refs)
        return f"{x} {weight}ᵀ" + "".join(f" + {b}" for b in bias)

    def _product(self, step: Step) -> str:
        return " ".join(map(self._name, step.refs))

    def _shifted_product(self, step: Step) -> str:
        shift, *factors = map(self._name, step.refs)
        return f"{' '.join(factors)} + {shift}"

    def _power(self, step: Step) -> str:
        return f"{self._first(step)}^{self._name(step.numbers[-1])}" if step.numbers else f"pow({self._first(step)})"

    def _einsum(self, step: Step) -> str:
        """A sum over the sizes of the letters that do not come out."""
        given, _, kept = str(step.arguments[0]).replace(" ", "").partition("->")
        sizes: dict[str, Polynomial] = {}
        for letters, ref in zip(given.split(","), step.refs, strict=True):
            sizes |= dict(zip(letters, self.graph.signals[ref.signal].shape, strict=False))
        over = ", ".join(self._alone(size) for letter, size in sizes.items() if letter not in kept)
        return f"sum over {over} of {' ∗ '.join(map(self._name, step.refs))}"

    def _softmax(self, step: Step) -> str:
        axis = next((n for n in (*step.numbers, step.named.get("dim")) if isinstance(n, int)), -1)
        shape = self.graph.signals[step.operands[0]].shape
        return f"{step.operation.replace('_', ' ')}({self._first(step)}) over {self._alone(shape[axis])}"

    def _layer_norm(self, step: Step) -> str:
        return self._scaled_and_shifted("(x − mean)/√(variance + ε)", step)

    def _rms_norm(self, step: Step) -> str:
        return self._scaled_and_shifted("x/√(mean of x² + ε)", step)

    def _scaled_and_shifted(self, normal: str, step: Step) -> str:
        x, *held = map(self._name, step.refs)
        signs = [" ∗ ", " + "]
        return normal.replace("x", x) + "".join(sign + name for sign, name in zip(signs, held, strict=False))

    def _embedding(self, step: Step) -> str:
        tokens, weight = (self._name(ref) for ref in step.refs)
        return f"{weight}[{tokens}]"

    def _attention(self, step: Step) -> str:
        queries, keys, values, *mask = map(self._name, step.refs)
        width = step.under_root or self.graph.signals[step.operands[0]].shape[-1]
        causal = step.named.get("is_causal") or True in step.arguments
        more = f" + {mask[0]}" if mask else ""
        return f"softmax({queries} {keys}ᵀ/√{self._bracket(width)}{more}{', causal' if causal else ''}) {values}"

    def _whole_attention(self, step: Step) -> str:
        return f"multi-head attention({', '.join(self._name(ref) for ref in step.refs[:3])})"

    def _masked(self, step: Step) -> str:
        number = "−∞" if step.numbers and step.numbers[-1] < -1e30 else "".join(map(str, step.numbers[-1:]))
        return f"{self._first(step)}, {number} where {self._name(step.refs[1])}"

    def _joined(self, step: Step) -> str:
        return f"[{' ; '.join(map(self._name, step.refs))}]"

    def _padded(self, step: Step) -> str:
        amounts = [int(number) for number in step.numbers]
        before, after = any(amounts[::2]), any(amounts[1::2])
        return f"zeros {'around' if before and after else 'before' if before else 'after'} {self._first(step)}"

    def _rearranged(self, step: Step) -> str:
        if "unfold" in step.through:
            return f"windows of {self._first(step)}"
        before, after = (list(self.graph.signals[n].shape) for n in (step.operands[0], step.results[0]))
        gone = [size for size in before if size not in after]
        new = [size for size in after if size not in before]
        if len(step.results) > 1:
            return f"the parts of {self._first(step)}"
        if not gone and not new:
            return f"{self._first(step)}, axes reordered"
        if not new and set(step.through) <= {"getitem", "select"}:
            return f"{self._first(step)} at one place of {self._axes(gone)}"
        return f"{self._first(step)}, axes {self._axes(gone)} → {self._axes(new)}"

    def _axes(self, sizes: Sequence[Polynomial]) -> str:
        return " × ".join(map(self.size, sizes)) or "1"

    def _backwards(self, step: Step) -> str:
        return self._infix(step, tuple(reversed(step.arguments[:2])))

    def _infix(self, step: Step, sides: tuple[Any, ...]) -> str:
        left, right = map(self._name, sides)
        if step.under_root is not None:
            sign = "∗" if (step.operation == "mul") == (step.numbers[0] > 1) else "/"
            return f"{self._first(step)} {sign} √{self._bracket(step.under_root)}"
        return f"{left} {SIGNS[step.operation]} {right}"

    def _alone(self, size: Polynomial) -> str:
        return write(size, self.order, "unicode").replace(" ", "")

    def _bracket(self, size: Polynomial) -> str:
        text = write(size, self.order, "unicode")
        return text if text.replace("_", "").isalnum() else f"({text.replace(' ', '')})"


def short(name: str) -> str:
    """W for a weight, b for a bias; other names are their last word."""
    last = name.rpartition(".")[2]
    return {"weight": "W", "bias": "b"}.get(last, last)
