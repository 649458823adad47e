"""Adapt any model: freeze it, then train a part of it or something added (problem E5)."""

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
from lemma.models.weights import weight_versions
from lemma.spec.recipe import Adapters, Full, Lora, Method

Module = TypeVar("Module", bound=nn.Module)


class TrainableParameter(NamedTuple):
    """A parameter that is trained: its path and its shape."""

    path: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Adaptation(Generic[Module]):
    """An adapted model, and what was done to it."""

    model: Module
    """The model that was given, changed in place (if it was a single matrix or layer, the wrapper now around it)."""
    method: Method
    paths: tuple[str, ...]
    """The paths, in the plain model, of the matrices or modules that got an update or an adapter."""

    @property
    def trainable(self) -> list[TrainableParameter]:
        """Every parameter that is trained."""
        return trainable_parameters(self.model)

    @property
    def num_trainable(self) -> int:
        """How many numbers are trained."""
        return count_trainable(self.model)

    @property
    def trainable_bytes(self) -> int:
        """The bytes per task in addition to the base: those of what is trained."""
        return count_trainable_bytes(self.model)

    def __str__(self) -> str:
        whole = sum(parameter.numel() for parameter in self.model.parameters())
        share = f" ({self.num_trainable / whole:.2%})" if whole else ""
        return f"{self.method.kind}: {self.num_trainable:,} of {whole:,} numbers learn{share}, {self.trainable_bytes:,} bytes"


def adapt_model(
    model: Module, method: Method, learn: Sequence[str] = (), *, any_rank: bool = False
) -> Adaptation[Module]:
    """Freeze a model, and train what a method says; `learn` are patterns of parameters that are trained in any case.

    Everything happens in place, and `requires_grad` says what is trained afterwards; if it fails, nothing has changed.
    With `any_rank` a rank may be more than matrices can have: for counting, which probes at small sizes.

    >>> adapt_model(nn.Sequential(nn.Linear(200, 50, bias=False)), Lora(rank=5)).number
    1250
    """
    check_not_adapted(model)
    own, learned = list(model.parameters()), match_parameters(model, learn)
    places: list[str] = []
    if isinstance(method, Lora):
        chosen = select_matrices(model, method.targets, learned)
        if not any_rank:
            check_rank(chosen, method.rank)
        model, places = add_updates(model, method, chosen), [matrix.path for matrix in chosen]
    elif isinstance(method, Adapters):
        places = add_adapters(model, method)
    for parameter in own:
        grows = isinstance(method, Full) or id(parameter) in learned
        parameter.requires_grad_(grows and parameter.is_floating_point())
    return Adaptation(model, method, tuple(places))


def match_parameters(model: nn.Module, patterns: Sequence[str]) -> set[int]:
    """The identities of the parameters whose paths match some pattern."""
    paths: dict[int, list[str]] = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        paths.setdefault(id(parameter), []).append(path)
    known = list(paths)
    return {known[at] for at in match_patterns("learn", patterns, list(paths.values()))}


def trainable_parameters(model: nn.Module) -> list[TrainableParameter]:
    """Every parameter that is trained, a tied one once."""
    return [TrainableParameter(path, tuple(p.shape)) for path, p in model.named_parameters() if p.requires_grad]


def count_trainable(model: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def count_trainable_bytes(model: nn.Module) -> int:
    """The bytes of what is trained, which is what an adapted run stores."""
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)


def check_not_adapted(model: nn.Module) -> None:
    """Refuse a model that has updates or adapters already."""
    if lora_modules(model) or has_adapters(model):
        raise SpecError("this model is adapted already. Take merged(model) of one with LoRA, or the plain base.")


def lora_matrix(W_in: int = 200, W_out: int = 50, R: int = 5) -> nn.Module:
    """One matrix and its LoRA update (problem E5): R(W_in + W_out) numbers are trained, W_in·W_out are frozen."""
    return adapt_model(nn.Linear(W_in, W_out, bias=False), Lora(rank=R, targets=("*",))).model


@dataclass(frozen=True)
class FoldedMatrix:
    """One matrix into which an update was folded, and what it was before."""

    weight: Tensor
    original: Tensor
    update: LowRankUpdate


@dataclass(frozen=True)
class FoldedModel(Generic[Module]):
    """A model whose updates are in its matrices, and the way back; also a context that goes back at its end."""

    model: Module
    """The plain model: it has the structure and the names it had before it was adapted."""
    folds: tuple[FoldedMatrix, ...]
    wrappers: tuple[LoraWrapper, ...]

    def unfold(self) -> Module:
        """Subtract the updates again, and put the wrappers back.

        What a matrix was is known, so that it becomes that again to the last bit; what it learned in between is added.
        """
        with torch.no_grad():
            for fold in self.folds:
                fold.update.to(fold.weight.device)
                original = fold.original.to(fold.weight)
                fold.weight.copy_(original + (fold.weight - _sum(original, fold.update)))
        return replace_modules(
            self.model, {wrapper.base: wrapper.train(wrapper.base.training) for wrapper in self.wrappers}
        )

    def __enter__(self) -> Module:
        return self.model

    def __exit__(self, *failure: object) -> None:
        self.unfold()


def fold(model: Module) -> FoldedModel[Module]:
    """Fold every update into its matrix, for as long as it takes: the model is plain until it is unfolded."""
    if has_adapters(model):
        raise SpecError(
            "adapters cannot be merged: σ is between W_down and W_up, so that x + W_up σ(W_down x) is not a matrix. "
            "Keep them as they are, or adapt with lora."
        )
    wrappers = tuple(wrapper for _, wrapper in lora_modules(model))
    folds: dict[int, FoldedMatrix] = {}
    with torch.no_grad():
        for weight, update in _updated_weights(wrappers):
            folds[id(weight)] = FoldedMatrix(weight, weight.clone(), update)
            weight.copy_(_sum(weight, update))
    plain = replace_modules(model, {wrapper: wrapper.base for wrapper in wrappers})
    return FoldedModel(plain, tuple(folds.values()), wrappers)


def merge_lora(model: Module) -> Module:
    """Fold every update into its matrix for good, and unfreeze everything: a plain model, with equal outputs."""
    plain = fold(model).model
    for parameter in plain.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    return plain


MERGED_COPIES: WeakKeyDictionary[nn.Module, tuple[Any, nn.Module, list[Tensor]]] = WeakKeyDictionary()
MERGED_LOCK = threading.Lock()


def copy_merged(model: Module) -> Module:
    """Return a plain copy of a model with LoRA, updates merged; the model itself and its other users see no change.

    The copy has new matrices where there are updates and shares all other tensors with the model. It is reused as long
    as the model lives and its weights stay as they are. Updates are compared by value, since a fused optimizer and
    writes through `.data` leave no trace in the version of a tensor.
    """
    key = (weight_versions(model), [part.training for part in model.modules()])
    wrappers = [wrapper for _, wrapper in lora_modules(model)]
    updates = [tensor for _, update in _updated_weights(wrappers) for tensor in update.parameters()]
    with MERGED_LOCK, torch.inference_mode(False), torch.no_grad():
        known = MERGED_COPIES.get(model)
        if known is None or known[0] != key or not all(map(torch.equal, known[2], updates)):
            memo: dict[int, Any] = {id(one): one for one in chain(model.parameters(), model.buffers())}
            for weight, update in _updated_weights(wrappers):
                matrix = torch.empty_like(weight).copy_(_sum(weight, update))
                memo[id(weight)] = nn.Parameter(matrix, weight.requires_grad)
            copy = deepcopy(model, memo)
            merged_model = replace_modules(copy, {wrapper: wrapper.base for _, wrapper in lora_modules(copy)})
            known = MERGED_COPIES[model] = key, merged_model, [tensor.clone() for tensor in updates]
    return known[1]  # pyright: ignore[reportReturnType]


def _updated_weights(wrappers: Sequence[LoraWrapper]) -> Iterator[tuple[nn.Parameter, LowRankUpdate]]:
    """Yield each matrix that has an update, with its update; a tied matrix, which is in several modules, once."""
    seen: set[int] = set()
    for wrapper in wrappers:
        updates: Any = wrapper.updates if isinstance(wrapper, LoraMatrices) else {"weight": wrapper.update}
        for name, update in updates.items():
            weight: nn.Parameter = getattr(wrapper.base, name)
            if id(weight) not in seen:
                seen.add(id(weight))
                yield weight, update


def _sum(weight: Tensor, update: LowRankUpdate) -> Tensor:
    """The updated matrix, rounded once."""
    delta = update.delta()
    return (weight.to(delta.dtype) + delta).to(weight.dtype)
