"""Floating-point operations, forward and backward, counted as PyTorch's own counter counts them.

The module runs on the meta device, so that nothing is computed and nothing is stored. Matrix products, convolutions
and attention are counted by the formulas of `torch.utils.flop_counter`, a multiply–add as two. Elementwise work is kept
apart: one for every element that a pointwise operation, a softmax or a norm gives out.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from lemma.ledger.inside import Whereabouts, followed
from lemma.ledger.places import Readings
from lemma.ledger.subject import Inputs
from lemma.parts.tap import AttentionRecord, Listener, listening

PRODUCTS, CAUSAL = 0, 1
"""The columns of a reading for one pass: products, and of these those of causal attention."""
COLUMNS = 2
SPREAD = ("_softmax", "_log_softmax", "native_layer_norm", "_fused_rms_norm", "native_batch_norm", "native_group_norm")


def products(module: nn.Module, inputs: Inputs) -> Readings:
    """Run a module forward and backward; return for every path two columns forward and two backward."""
    meter = _run(module, inputs)
    places = [(phase, column) for phase in (0, 1) for column in range(COLUMNS)]
    paths = dict.fromkeys(path for path, _, _ in meter.products)
    return {path: tuple(meter.products[path, phase, column] for phase, column in places) for path in paths}


def elementwise(module: nn.Module, inputs: Inputs) -> Readings:
    """Run a module forward and backward; return for every path its elementwise work, forward and backward."""
    meter = _run(module, inputs)
    paths = dict.fromkeys(path for path, _ in meter.elements)
    return {path: (meter.elements[path, 0], meter.elements[path, 1]) for path in paths}


def _run(module: nn.Module, inputs: Inputs) -> "Meter":
    with followed(module) as where:
        meter = Meter(where)
        with meter, listening(CausalWatch(where)):
            outputs = module(*inputs.positional, **inputs.named)
            meter.phase = 1
            scalar_of(outputs).backward()
    return meter


MARK = " causal"  # follows the path while causal attention is at work


class Meter(TorchDispatchMode):
    """Adds up the work of every operation under the path at which it happens."""

    def __init__(self, where: Whereabouts) -> None:
        super().__init__()
        self.where, self.phase = where, 0
        self.products: Counter[tuple[str, int, int]] = Counter()
        self.elements: Counter[tuple[str, int]] = Counter()
        self._whole: set[Any] = {torch.ops.prim.device.default}  # operations that cannot be taken apart

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operation that has a formula; take apart one that has none, as PyTorch's counter does."""
        kwargs = kwargs or {}
        if func._overloadpacket not in flop_registry and func not in self._whole:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
            self._whole.add(func)
        out = func(*args, **kwargs)
        self._count(func, args, kwargs, out)
        return out

    def _count(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        path, causal = self._path()
        if func._overloadpacket in flop_registry:
            amount = flop_registry[func._overloadpacket](*args, **kwargs, out_val=out)
            self.products[path, self.phase, PRODUCTS] += amount
            self.products[path, self.phase, CAUSAL] += amount if causal else 0
        elif torch.Tag.pointwise in func.tags or func._overloadpacket.__name__.startswith(SPREAD):
            first = out[0] if isinstance(out, tuple) else out
            self.elements[path, self.phase] += first.numel() if isinstance(first, Tensor) else 0

    def _path(self) -> tuple[str, bool]:
        path = self.where.now
        return path.removesuffix(MARK), path.endswith(MARK)


class CausalWatch(Listener):
    """Marks the time spent in causal attention, half of whose scores are not needed.

    Our own attention tells; of others the kernel's switch does.
    """

    def __init__(self, where: Whereabouts) -> None:
        super().__init__()
        self.where, self.causal = where, False

    def hear(self, record: AttentionRecord) -> None:
        """Note whether what comes is causal; the record itself is not kept."""
        self.causal = record.causal

    def around(self, attend: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Call it, and note where causal attention begins and ends."""
        path = self.where.stack[-1] if self.where.stack else ""
        switch = kwargs.get("is_causal", args[5] if len(args) > 5 else False)
        if not (self.causal if self.told else switch):
            return attend(*args, **kwargs)
        self.where.enter(path + MARK)
        try:
            return attend(*args, **kwargs)
        finally:
            self.where.leave()


def scalar_of(outputs: Any) -> Tensor:
    """One number that depends on every output that can be trained: the sum of the first such tensor."""
    tensors = [tensor for tensor in _tensors(outputs) if tensor.requires_grad]
    return tensors[0].sum()


def _tensors(outputs: Any) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, dict):
        for value in outputs.values():
            yield from _tensors(value)
    elif isinstance(outputs, (tuple, list)):
        for value in outputs:
            yield from _tensors(value)
