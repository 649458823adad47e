"""Updates folded into the matrices beside which they stand, and taken out again."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from lemma.adaptation.bottleneck import has_adapter
from lemma.adaptation.low_rank import Beside, LoraMatrices, Update
from lemma.adaptation.tree import besides, put
from lemma.errors import SpecError

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class Fold:
    """One matrix into which an update was folded, and what it was before."""

    weight: Tensor
    original: Tensor
    update: Update


@dataclass(frozen=True)
class Folded(Generic[Module]):
    """A model whose updates are in its matrices, and the way back; also a context that goes back at its end."""

    model: Module
    """The plain model: it has the structure and the names it had before it was adapted."""
    folds: tuple[Fold, ...]
    wrappers: tuple[Beside, ...]

    def unfold(self) -> Module:
        """Take the updates out again, and put them back beside the matrices.

        What a matrix was is known, so that it becomes that again to the last bit; what it learned in between is added.
        """
        with torch.no_grad():
            for fold in self.folds:
                fold.update.to(fold.weight.device)
                original = fold.original.to(fold.weight)
                fold.weight.copy_(original + (fold.weight - _sum(original, fold.update)))
        return put(self.model, {wrapper.base: wrapper.train(wrapper.base.training) for wrapper in self.wrappers})

    def __enter__(self) -> Module:
        return self.model

    def __exit__(self, *failure: object) -> None:
        self.unfold()


def fold(model: Module) -> Folded[Module]:
    """Fold every update into its matrix, for as long as it takes: the model is plain until it is unfolded."""
    _refuse_adapters(model)
    wrappers = tuple(wrapper for _, wrapper in besides(model))
    folds: dict[int, Fold] = {}
    with torch.no_grad():
        for weight, update in updated(wrappers):
            if id(weight) not in folds:  # a tied matrix stands at several places
                folds[id(weight)] = Fold(weight, weight.clone(), update)
                weight.copy_(_sum(weight, update))
    plain = put(model, {wrapper: wrapper.base for wrapper in wrappers})
    return Folded(plain, tuple(folds.values()), wrappers)


def merged(model: Module) -> Module:
    """Fold every update into its matrix for good, and let everything learn again: a plain model, with equal outputs."""
    plain = fold(model).model
    for parameter in plain.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    return plain


def updated(wrappers: tuple[Beside, ...]) -> Iterator[tuple[Tensor, Update]]:
    """Every matrix that has an update, and the update."""
    for wrapper in wrappers:
        beside: Any = wrapper.updates if isinstance(wrapper, LoraMatrices) else {"weight": wrapper.update}
        for name, update in beside.items():
            yield getattr(wrapper.base, name), update


def _sum(weight: Tensor, update: Update) -> Tensor:
    """The updated matrix, rounded once."""
    delta = update.delta()
    return (weight.to(delta.dtype) + delta).to(weight.dtype)


def _refuse_adapters(model: nn.Module) -> None:
    if any(map(has_adapter, model.modules())):
        raise SpecError(
            "adapters cannot be merged: σ stands between W_down and W_up, so that x + W_up σ(W_down x) is no matrix. "
            "Keep them behind their modules, or adapt with lora."
        )
