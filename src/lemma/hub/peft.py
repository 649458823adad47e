"""LoRA in the format of the peft library."""

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from lemma.adaptation.adapt import Adaptation, adapt_model, refuse_adapted
from lemma.adaptation.lora import (
    LoraEmbedding,
    LoraMatrices,
    TargetMatrix,
    Update,
    besides,
    is_map,
    matrices,
    new_update,
    plain_modules,
    wrap,
)
from lemma.data.files import replacing
from lemma.errors import RunError, SpecError, unknown
from lemma.spec.recipe import Frozen, Lora

# The names of tensors in peft's files, and the places of a model that they mean.


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


def matrices_at(model: nn.Module, paths: Mapping[str, object], where: Path) -> dict[str, TargetMatrix]:
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


# The options of peft's LoRA: those that are written, those that are read, and those that are refused by name.


READ = {"r", "lora_alpha", "lora_dropout", "use_rslora", "rank_pattern", "alpha_pattern", "peft_type", "bias"}
SAID_BY_THE_TENSORS = {
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "modules_to_save",
    "fan_in_fan_out",
    "init_lora_weights",
    "eva_config",
    "ensure_weight_tying",
}
"""Options that say where updates stand and how they began: the tensors' names and values say it too."""
WITHOUT_EFFECT = {
    "task_type",
    "auto_mapping",
    "peft_version",
    "base_model_name_or_path",
    "revision",
    "inference_mode",
    "megatron_core",
    "qalora_group_size",
    "runtime_config",
}
FIRST_VALUES = (True, False, "gaussian", "eva", "orthogonal")
"""The ways to begin that leave the base as it is."""


@dataclass(frozen=True)
class Options:
    """What of peft's options says something beside the tensors."""

    method: Lora
    root_scaling: bool
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]

    def rank(self, path: str) -> int:
        """The rank of one place's update."""
        return int(_of(self.ranks, path, self.method.rank))

    def scale(self, path: str) -> float:
        """The scale of one place's update: alpha / rank, or alpha / √rank (Kalajdzievski 2023)."""
        rank = self.rank(path)
        return float(_of(self.alphas, path, self.method.alpha)) / (math.sqrt(rank) if self.root_scaling else rank)

    def plain(self, targets: Sequence[str]) -> Lora:
        """The method that has the same scale in our terms, alpha / rank, on these targets."""
        alpha = self.method.alpha * (math.sqrt(self.method.rank) if self.root_scaling else 1.0)
        return self.method.replace(alpha=alpha, targets=tuple(targets))


def read_options(config: Mapping[str, Any], where: Path) -> Options:
    """Read peft's options; what would change the result and cannot be had here is a RunError that names it."""
    if config.get("peft_type") != "LORA":
        raise RunError(f"{where}: peft_type = {config.get('peft_type')!r}; only LORA can be read.")
    for name, value in config.items():
        if name not in READ | SAID_BY_THE_TENSORS | WITHOUT_EFFECT and value not in (None, False, {}, [], ""):
            raise RunError(f"{where}: {name} = {value!r} cannot be had here: only plain LoRA can be read.")
    if config.get("bias", "none") != "none":
        raise RunError(f"{where}: bias = {config['bias']!r}: trained biases cannot be read, only LoRA's matrices.")
    if (begin := config.get("init_lora_weights", True)) not in FIRST_VALUES:
        raise RunError(
            f"{where}: init_lora_weights = {begin!r} changes the base's own matrices. Convert it to plain LoRA with "
            "peft's save_pretrained(path_initial_model_for_weight_conversion=…)."
        )
    words = {"rank": config.get("r", 8), "alpha": config.get("lora_alpha", 8)}
    method = Lora.read({**words, "lora_dropout": config.get("lora_dropout", 0.0)}, str(where))
    patterns = [config.get(name) or {} for name in ("rank_pattern", "alpha_pattern")]
    return Options(method, bool(config.get("use_rslora")), *patterns)


def options_of(
    model: nn.Module, updates: Mapping[str, Update], whole: Collection[str], base: str | None
) -> dict[str, Any]:
    """Say in peft's options where updates stand and what they are."""
    paths = [path for path, _ in plain_modules(model)]
    rank, alpha = Counter((len(update.A), _alpha(update)) for update in updates.values()).most_common(1)[0][0]
    _refuse_ambiguous(whole, paths, updates)
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": max(update.dropout for update in updates.values()),
        "target_modules": _targets(list(updates), paths),
        "rank_pattern": {_exactly(at): len(one.A) for at, one in updates.items() if len(one.A) != rank},
        "alpha_pattern": {_exactly(at): _alpha(one) for at, one in updates.items() if _alpha(one) != alpha},
        "modules_to_save": sorted(whole) or None,
        "fan_in_fan_out": any(update.transposed for update in updates.values()),
        "bias": "none",
        "init_lora_weights": True,
        "use_rslora": False,
        "use_dora": False,
    }


def _alpha(update: Update) -> float:
    alpha = update.scale * len(update.A)
    return round(alpha) if math.isclose(alpha, round(alpha), rel_tol=1e-12) else alpha


def _targets(targets: list[str], paths: Collection[str]) -> list[str] | str:
    """The paths themselves; where one is another's ending, which peft would take for it, an expression instead."""
    ends = tuple(f".{path}" for path in targets)
    if any(path.endswith(ends) and path not in targets for path in paths):
        return "|".join(map(re.escape, targets))
    return targets


def _refuse_ambiguous(whole: Collection[str], paths: Collection[str], targets: Collection[str]) -> None:
    for name in whole:
        among = [path for path in paths if path != name and path.endswith(name)]
        hidden = [path for path in targets if re.match(rf"(^|.*\.){name}($|\..*)", path)]
        if among or hidden:
            raise SpecError(
                f"{name} learns as a whole, but peft's modules_to_save = ['{name}'] would take {(among + hidden)[0]} "
                "too: this cannot be written in its form."
            )


def _of(patterns: Mapping[str, Any], path: str, otherwise: Any) -> Any:
    """The first pattern that fits the end of a path, as peft matches them."""
    fitting = (value for pattern, value in patterns.items() if re.match(rf"(.*\.)?({pattern})$", path))
    return next(fitting, otherwise)


def _exactly(path: str) -> str:
    return f"^{re.escape(path)}"


# Updates between a model of ours and peft's tensors: what can be written, and what is read fits the model.


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


def new_updates(chosen: Mapping[str, TargetMatrix], found: Sorted, options: Options, folder: Path) -> dict[int, Update]:
    """The updates by their matrices' identities; all places of a tied matrix must say the same of it."""
    updates: dict[int, Update] = {}
    for path, matrix in chosen.items():
        update = new_update(matrix, options.rank(path), options.scale(path))
        update.dropout = options.method.lora_dropout
        _fill(update, *found.updates[path], f"{folder}: {path}")
        known = updates.setdefault(id(matrix.weight), update)
        _refuse_half_of_a_tie(matrix, chosen, torch.allclose(known.delta(), update.delta()), folder)
    return updates


def _refuse_half_of_a_tie(matrix: TargetMatrix, chosen: Mapping[str, TargetMatrix], agree: bool, folder: Path) -> None:
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
    model: nn.Module, found: Sorted, chosen: Mapping[str, TargetMatrix], folder: Path
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


# LoRA in the form of the peft library: a folder with adapter_config.json and adapter_model.safetensors.
#
# A map's matrices are named `base_model.model.PATH.lora_A.weight` (rank × inputs) and `lora_B.weight` (outputs ×
# rank),
# an embedding's `lora_embedding_A` (rank × tokens) and `lora_embedding_B` (width × rank). What learns as a whole,
# such as
# a classifier's head, stands beside them under its own name, and its module in `modules_to_save`.


CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
WRITTEN = {CONFIG, WEIGHTS, "README.md"}
Module = TypeVar("Module", bound=nn.Module)


def write_peft(model: nn.Module, folder: Path | str, base: str | None = None) -> None:
    """Write a model's updates, and what of it learns as a whole, as peft's folder; `base` says of which model.

    Matrices of recurrent layers and the joint matrix of torch's attention have no form there: a SpecError says so.
    """
    updates = [exportable(path, wrapper) for path, wrapper in besides(model)]
    if not updates:
        raise SpecError("this model has no LoRA updates to write. Adapt it with lora first.")
    whole = whole_modules(model)
    options = options_of(model, {path: wrapper.update for path, wrapper in updates}, whole, base)
    tensors = {name: value for path, wrapper in updates for name, value in named(path, wrapper).items()}
    tensors |= {f"{PREFIX}{name}": value for values in whole.values() for name, value in values.items()}
    kept = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}  # none shares memory
    with _new_folder(Path(folder)) as temporary:
        (temporary / CONFIG).write_text(json.dumps(options, indent=2), encoding="utf-8")
        save_file(kept, temporary / WEIGHTS, {"format": "pt"})


def read_peft(folder: Path | str, model: Module) -> Adaptation[Module]:
    """Put the updates of peft's folder beside the matrices of a base model, and what it saved whole into it.

    What cannot be had here, such as DoRA or trained biases, is refused by its name, and then nothing has changed. The
    method that is returned says all, unless the folder's patterns give some matrices ranks or scales of their own.
    """
    folder = Path(folder)
    refuse_adapted(model)
    options = read_options(_config(folder), folder / CONFIG)
    found = sort_tensors(_weights(folder), folder / WEIGHTS)
    chosen = matrices_at(model, found.updates, folder)
    updates = new_updates(chosen, found, options, folder)
    whole = targets_of_whole(model, found, chosen, folder)
    adapt_model(model, Frozen())
    for target, value in whole:
        copy(target, value)
    places = list({id(matrix.weight): matrix for matrix in chosen.values()}.values())
    paths = tuple(matrix.path for matrix in places)
    return Adaptation(wrap(model, places, updates), options.plain(paths), paths)


@contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """A folder that is there whole or not at all; one that holds other things is never replaced."""
    others = [inner.name for inner in path.iterdir() if inner.name not in WRITTEN] if path.is_dir() else []
    if others or path.is_file():
        raise RunError(f"{path} is there already and holds {others[0] if others else 'a file'}. Name a new folder.")
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.mkdir()
        yield temporary


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{folder / CONFIG} is missing: this is no folder of peft's.") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{folder / CONFIG} is damaged: {error}.") from None
    if not isinstance(config, dict):
        raise RunError(f"{folder / CONFIG} is damaged: a table of options was expected.")
    return config


def _weights(folder: Path) -> dict[str, Tensor]:
    if not (folder / WEIGHTS).exists() and (folder / PICKLED).exists():
        raise RunError(
            f"{folder / PICKLED} is a pickle, which may run any code: it is not read. Save the adapter again with "
            "peft's save_pretrained(safe_serialization=True)."
        )
    try:
        return load_file(folder / WEIGHTS)
    except FileNotFoundError:
        raise RunError(f"{folder / WEIGHTS} is missing.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise RunError(f"{folder / WEIGHTS} is damaged: {error}.") from None
