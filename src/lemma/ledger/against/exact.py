"""The exact figures of a module, module by module, and the functions that do the work."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from lemma.ledger.flops import products
from lemma.ledger.inside import Whereabouts, followed
from lemma.ledger.places import pattern_of
from lemma.ledger.subject import Inputs, Subject

ATTENTION = ("scaled_dot_product_attention", "multi_head_attention_forward")
NOTED = (*ATTENTION, "matmul", "bmm", "addmm", "baddbmm", "einsum", "linear", "lstm", "gru")


@dataclass(frozen=True)
class Exact:
    """Parameters and forward operations of every module, without those of the modules in it."""

    parameters: Mapping[str, int]
    operations: Mapping[str, int]
    kinds: Mapping[str, str]
    """The class of every module."""
    functions: Mapping[str, tuple[str, ...]]
    """The functions that a module itself calls and that multiply."""

    @cached_property
    def all_parameters(self) -> int:
        """The whole module's."""
        return sum(self.parameters.values())

    @cached_property
    def all_operations(self) -> int:
        """The whole module's."""
        return sum(self.operations.values())


def exact_figures(subject: Subject) -> Exact:
    """Read a subject at its own sizes, on the meta device."""
    values = subject.sizes(running=True)
    module, inputs = subject.build(values), subject.inputs(values)
    counted: Counter[str] = Counter()
    for name, parameter in module.named_parameters():
        counted[name.rpartition(".")[0]] += parameter.numel()
    kinds = {path: type(part).__name__ for path, part in module.named_modules()}
    functions = functions_called(module, inputs)
    operations = {path: row[0] for path, row in products(module, inputs).items() if row[0]}
    return Exact(counted, operations, kinds, functions)


def grouped(counts: Mapping[str, float]) -> dict[str, float]:
    """Add up what belongs to repeated layers."""
    groups: dict[str, float] = {}
    for path, count in counts.items():
        groups[pattern_of(path)] = groups.get(pattern_of(path), 0) + count
    return groups


def functions_called(module: nn.Module, inputs: Inputs) -> dict[str, tuple[str, ...]]:
    """Run a module and note which functions that multiply are called in each of its parts."""
    with followed(module) as where, torch.no_grad(), Noted(where) as noted:
        module(*inputs.positional, **inputs.named)
    return {path: tuple(dict.fromkeys(names)) for path, names in noted.found.items()}


class Noted(TorchFunctionMode):
    """Notes the names of functions under the path at which they are called."""

    def __init__(self, where: Whereabouts) -> None:
        super().__init__()
        self.where = where
        self.found: dict[str, list[str]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note it and call it."""
        name = getattr(func, "__name__", "").strip("_")
        if name in NOTED:
            self.found.setdefault(self.where.now, []).append(name)
        return func(*args, **(kwargs or {}))
