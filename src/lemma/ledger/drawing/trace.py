"""Recording a module's forward pass at the level of PyTorch's functions, with the names its author gave to things."""

import inspect
import sys
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lemma.errors import LedgerError
from lemma.ledger.drawing.graph import Graph, Ref, Signal, Step, leaves
from lemma.ledger.inside import Whereabouts, followed
from lemma.ledger.subject import Inputs

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
