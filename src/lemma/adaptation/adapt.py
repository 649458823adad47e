"""Adapt any model: freeze it, then train a part of it or something added (problem E5)."""

import math
import threading
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lemma.adaptation.adapters import add_adapters, has_adapters
from lemma.adaptation.lora import (
    LoraMatrices,
    LoraWrapper,
    LowRankUpdate,
    add_updates,
    check_rank,
    lora_modules,
    match_patterns,
    replace_modules,
    select_matrices,
)
from lemma.errors import SpecError
from lemma.models.base import weight_versions
from lemma.spec.recipe import Adapters, Full, Lora, Method

Module = TypeVar("Module", bound=nn.Module)


class TrainableParameter(NamedTuple):
    """Path and shape of a trained parameter."""

    path: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Adaptation(Generic[Module]):
    """An adapted model, with the method and the paths of what it added."""

    model: Module  # the model, changed in place; its wrapper, if it is a single matrix or layer
    method: Method  # the method
    paths: tuple[str, ...]  # of matrices or modules with an update or adapter

    @property
    def trainable(self) -> list[TrainableParameter]:
        """Path and shape of every parameter that is trained."""
        return trainable_parameters(self.model)

    @property
    def num_trainable(self) -> int:
        """Number of trained scalars."""
        return sum(math.prod(parameter.shape) for parameter in self.trainable)

    @property
    def trainable_bytes(self) -> int:
        """Bytes that are stored per task in addition to the base."""
        return sum(p.numel() * p.element_size() for p in self.model.parameters() if p.requires_grad)


def adapt_model(
    model: Module, method: Method, learn: Sequence[str] = (), *, any_rank: bool = False
) -> Adaptation[Module]:
    """Freeze a model in place, and add or unfreeze what a method trains; an error leaves the model unchanged.

    Args:
        learn: Path patterns of parameters that are trained with every method.
        any_rank: Allow a rank that matrices cannot have: for counting, which probes at small sizes.

    >>> adapt_model(nn.Sequential(nn.Linear(200, 50, bias=False)), Lora(rank=5)).num_trainable
    1250
    """
    check_not_adapted(model)
    parameters, always_trained = list(model.parameters()), match_parameters(model, learn)
    paths: list[str] = []
    if isinstance(method, Lora):
        matrices = select_matrices(model, method.targets, always_trained)
        if not any_rank:
            check_rank(matrices, method.rank)
        model, paths = add_updates(model, method, matrices), [matrix.path for matrix in matrices]
    elif isinstance(method, Adapters):
        paths = add_adapters(model, method)
    for parameter in parameters:
        is_trained = isinstance(method, Full) or id(parameter) in always_trained
        parameter.requires_grad_(is_trained and parameter.is_floating_point())
    return Adaptation(model, method, tuple(paths))


def match_parameters(model: nn.Module, patterns: Sequence[str]) -> set[int]:
    """Return the `id`s of the parameters whose path matches at least one pattern, such as *.bias."""
    paths: dict[int, list[str]] = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        paths.setdefault(id(parameter), []).append(path)
    ids = list(paths)
    return {ids[index] for index in match_patterns("learn", patterns, list(paths.values()))}


def trainable_parameters(model: nn.Module) -> list[TrainableParameter]:
    """Return path and shape of every trained parameter; a tied one is listed once."""
    return [TrainableParameter(path, tuple(p.shape)) for path, p in model.named_parameters() if p.requires_grad]


def check_not_adapted(model: nn.Module) -> None:
    """Raise SpecError if a model has LoRA updates or adapters already."""
    if lora_modules(model) or has_adapters(model):
        raise SpecError("this model is adapted already. Take merge_lora(model) of one with LoRA, or the plain base.")


def lora_matrix(W_in: int = 200, W_out: int = 50, R: int = 5) -> nn.Module:
    """Return a W_in × W_out linear layer with a LoRA update of rank R (problem E5): R(W_in + W_out) trained numbers."""
    return adapt_model(nn.Linear(W_in, W_out, bias=False), Lora(rank=R, targets=("*",))).model


def merge_lora(model: Module) -> Module:
    """Add the LoRA updates of a model to its matrices in place, and unfreeze all; return it. Outputs stay equal."""
    if has_adapters(model):
        raise SpecError(
            "adapters cannot be merged: σ is between W_down and W_up, so that x + W_up σ(W_down x) is not a matrix. "
            "Keep them as they are, or adapt with lora."
        )
    wrappers = [wrapper for _, wrapper in lora_modules(model)]
    with torch.no_grad():
        for weight, update in _updated_weights(wrappers):
            weight.copy_(_add_update(weight, update))
    merged = replace_modules(model, {wrapper: wrapper.base for wrapper in wrappers})
    for parameter in merged.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    return merged


MERGED_COPIES: WeakKeyDictionary[nn.Module, tuple[Any, nn.Module, list[Tensor]]] = WeakKeyDictionary()
MERGED_LOCK = threading.Lock()


def copy_merged(model: Module) -> Module:
    """Return a copy of a model with its LoRA updates merged; the model itself does not change.

    The copy has new matrices where there are updates and shares all other tensors with the model. It is reused while
    the model lives and its weights stay as they are. Updates are compared by value, since a fused optimizer and writes
    through `.data` leave the version of a tensor as it is.
    """
    key = (weight_versions(model), [module.training for module in model.modules()])
    wrappers = [wrapper for _, wrapper in lora_modules(model)]
    updates = [tensor for _, update in _updated_weights(wrappers) for tensor in update.parameters()]
    with MERGED_LOCK, torch.inference_mode(False), torch.no_grad():
        cached = MERGED_COPIES.get(model)
        if cached is None or cached[0] != key or not all(map(torch.equal, cached[2], updates)):
            memo: dict[int, Any] = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
            for weight, update in _updated_weights(wrappers):
                matrix = torch.empty_like(weight).copy_(_add_update(weight, update))
                memo[id(weight)] = nn.Parameter(matrix, weight.requires_grad)
            copy = deepcopy(model, memo)
            merged_model = replace_modules(copy, {wrapper: wrapper.base for _, wrapper in lora_modules(copy)})
            cached = MERGED_COPIES[model] = key, merged_model, [tensor.clone() for tensor in updates]
    return cached[1]  # pyright: ignore[reportReturnType]


def _updated_weights(wrappers: Sequence[LoraWrapper]) -> Iterator[tuple[nn.Parameter, LowRankUpdate]]:
    """Yield (matrix, its LoRA update) for each updated matrix; a tied matrix once."""
    seen: set[int] = set()
    for wrapper in wrappers:
        updates: Any = wrapper.updates if isinstance(wrapper, LoraMatrices) else {"weight": wrapper.update}
        for name, update in updates.items():
            weight: nn.Parameter = getattr(wrapper.base, name)
            if id(weight) not in seen:
                seen.add(id(weight))
                yield weight, update


def _add_update(weight: Tensor, update: LowRankUpdate) -> Tensor:
    """Return the sum of matrix and update, computed in the update's dtype and rounded once to the matrix's."""
    delta = update.delta()
    return (weight.to(delta.dtype) + delta).to(weight.dtype)
