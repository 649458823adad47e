"""Updates between a model of ours and peft's tensors: what can be written, and what is read fits the model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from lemma.adaptation import LoraEmbedding, LoraMatrices, Update
from lemma.adaptation.lora import new_update
from lemma.adaptation.matrices import Matrix
from lemma.errors import RunError, SpecError
from lemma.interop.peft_names import PREFIX, Sorted
from lemma.interop.peft_options import Options


def exportable(path: str, wrapper: Any) -> tuple[str, Any]:
    """A wrapper that peft has, too; of torch's attention it would read the output map without its update."""
    base = wrapper.base
    if not isinstance(wrapper, LoraMatrices) and not isinstance(base, NonDynamicallyQuantizableLinear):
        return path, wrapper
    inside = wrapper.updates if isinstance(wrapper, LoraMatrices) else ["weight"]
    names = ", ".join(f"{path}.{name}".lstrip(".") for name in inside)
    raise SpecError(
        f"{names}: peft's form has updates of linear maps and embeddings only, not of what is inside "
        f"torch.nn's recurrent layers or attention (here {type(base).__name__}). Merge the model and share it whole, "
        "or leave them out of targets."
    )


def named(path: str, wrapper: Any) -> dict[str, Tensor]:
    """An update's tensors by peft's names; of an embedding, rows are what goes in."""
    A, B = wrapper.update.A, wrapper.update.B
    where = f"{PREFIX}{path}".rstrip(".")
    if isinstance(wrapper, LoraEmbedding):
        return {f"{where}.lora_embedding_A": B.mT, f"{where}.lora_embedding_B": A.mT}
    return {f"{where}.lora_A.weight": A, f"{where}.lora_B.weight": B}


def new_updates(chosen: Mapping[str, Matrix], found: Sorted, options: Options, folder: Path) -> dict[int, Update]:
    """The updates by their matrices' identities; all places of a tied matrix must say the same of it."""
    updates: dict[int, Update] = {}
    for path, matrix in chosen.items():
        update = new_update(matrix, options.rank(path), options.scale(path))
        update.dropout = options.method.lora_dropout
        _fill(update, *found.updates[path], f"{folder}: {path}")
        known = updates.setdefault(id(matrix.weight), update)
        _refuse_half_of_a_tie(matrix, chosen, torch.allclose(known.delta(), update.delta()), folder)
    return updates


def _refuse_half_of_a_tie(matrix: Matrix, chosen: Mapping[str, Matrix], agree: bool, folder: Path) -> None:
    owners = {id(place.owner) for place in matrix.places if place.path in chosen}
    if not agree or any(id(place.owner) not in owners for place in matrix.places):
        raise RunError(
            f"{folder} does not say the same of {' and '.join(place.path for place in matrix.places)}, which are one "
            "matrix in this model. Untie them before reading it."
        )


def _fill(update: Update, A: Tensor, B: Tensor, where: str) -> None:
    for name, value in (("A", A), ("B", B)):
        own = update.get_parameter(name)
        if own.shape != value.shape:
            raise RunError(
                f"{where}: lora_{name} is {tuple(value.shape)}, where this model and the options need "
                f"{tuple(own.shape)}. It was trained on another base, or its options are not its own."
            )
        copy(own, value)


def targets_of_whole(
    model: nn.Module, found: Sorted, chosen: Mapping[str, Matrix], folder: Path
) -> list[tuple[Tensor, Tensor]]:
    """The tensors of the model into which what was saved whole goes; copies of frozen matrices must be its own."""
    own = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    for name, value in found.whole.items():
        there = own.get(name)
        if there is None or there.shape != value.shape:
            here = "missing" if there is None else f"{tuple(there.shape)}"
            raise RunError(f"{folder}: {name} is {tuple(value.shape)}, in this model it is {here}. Take its own base.")
    for path, value in found.copies.items():
        if path not in chosen or not torch.equal(
            chosen[path].weight.detach().cpu(), value.to(chosen[path].weight.dtype)
        ):
            raise RunError(
                f"{folder} holds its own base matrix of {path}, which is not this model's. Take its own base."
            )
    return [(own[name], value) for name, value in found.whole.items()]


def copy(target: Tensor, value: Tensor) -> None:
    """Copy a value into a tensor of a model; if it is a parameter, it learns."""
    with torch.no_grad():
        target.copy_(value)
    if isinstance(target, nn.Parameter):
        target.requires_grad_(True)
