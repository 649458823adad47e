"""The names of tensors in peft's files, and the places of a model that they mean."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

from lemma.adaptation.low_rank import Update
from lemma.adaptation.matrices import Matrix, is_map, matrices
from lemma.adaptation.tree import plain_modules
from lemma.errors import RunError, SpecError, unknown

PREFIX = "base_model.model."
UPDATE = re.compile(r"(?:(?P<path>.+)\.)?lora_(?P<looks_up>embedding_)?(?P<side>[AB])(?:\.weight)?")
COPY = re.compile(r"(?P<path>.+)\.base_layer\.weight")
WHOLE = re.compile(r"\.modules_to_save(\.\w+)?(?=\.)")
OTHERS = ("lora_", "base_layer.", "token_adapter", "original_module")
"""What other names hold that only peft's other ways to adapt have."""


@dataclass
class Sorted:
    """The tensors of a file: updates by the paths of their modules, frozen copies of matrices, and what is whole."""

    updates: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    copies: dict[str, Tensor] = field(default_factory=dict)
    whole: dict[str, Tensor] = field(default_factory=dict)


def sort_tensors(tensors: Mapping[str, Tensor], where: Path) -> Sorted:
    """Sort a file's tensors; an update is A and B as its matrix is written, an embedding's rows being its tokens."""
    found, halves = Sorted(), dict[str, dict[str, Tensor]]()
    for key, tensor in tensors.items():
        name = key.removeprefix(PREFIX)
        if half := UPDATE.fullmatch(name):
            side = half["side"] if not half["looks_up"] else {"A": "B", "B": "A"}[half["side"]]
            halves.setdefault(half["path"] or "", {})[side] = tensor.mT if half["looks_up"] else tensor
        elif copy := COPY.fullmatch(name):
            found.copies[copy["path"]] = tensor
        elif any(other in name for other in OTHERS):
            raise RunError(f"{where}: {key} is no part of plain LoRA, and cannot be read.")
        else:
            found.whole[WHOLE.sub("", name)] = tensor
    for path, sides in halves.items():
        if len(sides) < 2:
            raise RunError(f"{where} is damaged: of {path} it has only lora_{next(iter(sides))}.")
        found.updates[path] = (sides["A"], sides["B"])
    if not found.updates:
        raise RunError(f"{where} holds no updates.")
    return found


def matrices_at(model: nn.Module, paths: Mapping[str, object], where: Path) -> dict[str, Matrix]:
    """The matrices that paths of linear maps and embeddings mean."""
    known = {
        place.path: matrix
        for matrix in matrices(model)
        for place in matrix.places
        if place.name == "weight" and (is_map(place.owner) or isinstance(place.owner, nn.Embedding))
    }
    wrong = next((path for path in paths if path not in known), None)
    if wrong is not None:
        raise RunError(f"{where}: {unknown('module', wrong, known)} It was trained on another base.")
    return {path: known[path] for path in paths}


def whole_modules(model: nn.Module) -> dict[str, dict[str, Tensor]]:
    """The modules that learn as a whole, by path, and their tensors by name; peft knows no half of a module."""
    inside = {id(parameter) for part in model.modules() if isinstance(part, Update) for parameter in part.parameters()}
    found: dict[str, dict[str, Tensor]] = {}
    for path, module in plain_modules(model):
        own = dict(module.named_parameters(recurse=False))
        learns = [name for name, parameter in own.items() if parameter.requires_grad and id(parameter) not in inside]
        if not learns:
            continue
        if len(learns) < len(own) or not path or any(True for _ in module.children()):
            names = ", ".join(f"{path}.{name}".lstrip(".") for name in learns)
            raise SpecError(f"{names}: peft saves whole modules only, and this is a part of one. Let all of it learn.")
        found[path] = {f"{path}.{name}": tensor for name, tensor in module.state_dict().items()}
    return found
