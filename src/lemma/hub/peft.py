"""LoRA in the format of the peft library: a folder with adapter_config.json and adapter_model.safetensors.

A linear map's matrices are named `base_model.model.PATH.lora_A.weight` (rank × inputs) and `lora_B.weight` (outputs ×
rank), an embedding's `lora_embedding_A` (rank × tokens) and `lora_embedding_B` (width × rank). Modules that were
trained as a whole, such as a classifier's head, are stored under their own names and listed in `modules_to_save`.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from lemma.adaptation.adapt import Adaptation, adapt_model, check_not_adapted
from lemma.adaptation.lora import (
    LoraMatrices,
    LowRankUpdate,
    TargetMatrix,
    find_matrices,
    init_update,
    is_linear,
    lora_modules,
    unwrapped_modules,
    wrap_owners,
)
from lemma.data.foreign import ForeignFields, reading_foreign_file
from lemma.errors import RunError, SpecError, describe_unknown
from lemma.files import read_json, restore_moved_folder
from lemma.hub.pretrained import export_folder
from lemma.hub.tensor_maps import TensorMap
from lemma.models.base import save_tensors
from lemma.spec.recipe import Frozen, Lora

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
PREFIX = "base_model.model."
Module = TypeVar("Module", bound=nn.Module)
Value = TypeVar("Value", int, float)


TensorMaps = Mapping[str, TensorMap]
"""How transformers stores each matrix of a pretrained model, by the paths of Lemma's modules."""


# Writing


def write_peft(
    model: nn.Module,
    folder: Path | str,
    base: str | None = None,
    tensor_maps: TensorMaps | None = None,
    task: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write a model's LoRA updates, and its modules that were trained in full, as a peft folder.

    The update of a joint matrix (queries, keys and values) is written as one for each of its parts. Matrices of
    recurrent layers and the joint matrix of torch's attention have no format in peft: they are a SpecError.

    Args:
        base: path or name of the base model, as peft records it.
        tensor_maps: maps of the base's matrices, to write the names of transformers' modules instead of Lemma's.
        task: peft's `task_type`, which is the kind of transformers' class.
    """
    wrappers = lora_modules(model)
    if not wrappers:
        raise SpecError("this model has no LoRA updates to write. Adapt it with lora first.")
    own_names = {path: f"{path}.weight" for path, _ in unwrapped_modules(model)}
    maps = tensor_maps or {path: TensorMap(name, (name,)) for path, name in own_names.items()}
    tensors: dict[str, Tensor] = {}
    updates: dict[str, UpdateOptions] = {}
    for path, wrapper in wrappers:
        _check_exportable(path, wrapper)
        update: LowRankUpdate = wrapper.update
        for hf_path, B in zip(maps[path].hf_modules, _row_map(maps[path]).to_hf(update.B), strict=True):
            if update.B.any() and not B.any():  # only other parts of the joint matrix have an update
                continue
            name = f"{PREFIX}{hf_path}".rstrip(".")
            A, B = drop_zero_ranks(update.A, B)
            alpha, nearest = update.scale * len(A), round(update.scale * len(A))
            alpha = nearest if math.isclose(alpha, nearest, rel_tol=1e-12) else alpha  # but for rounding errors
            updates[hf_path] = UpdateOptions(len(A), alpha, update.dropout, update.transposed)
            if wrapper.is_embedding:  # its rows are the tokens
                tensors |= {f"{name}.lora_embedding_A": B.mT, f"{name}.lora_embedding_B": A.mT}
            else:
                tensors |= {f"{name}.lora_A.weight": A, f"{name}.lora_B.weight": B}
    full_modules = {_hf_module(path, maps): module for path, module in _trained_modules(model).items()}
    for path, module in full_modules.items():
        tensors |= {f"{PREFIX}{path}.{name}": tensor for name, tensor in module.state_dict().items()}
    paths = [path for each in maps.values() for path in each.hf_modules]
    options = _build_options(paths, updates, full_modules, base) | {"task_type": task}
    if tensor_maps is not None:
        options["fan_in_fan_out"] = any(each.layout == "transposed" for each in tensor_maps.values())
        last_names = sorted({path.rpartition(".")[2] for path in updates})
        if all(path in updates for path in paths if path.rpartition(".")[2] in last_names):
            options["target_modules"] = last_names
    copies = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}  # none shares memory
    with export_folder(Path(folder), overwrite) as temporary:
        (temporary / CONFIG).write_text(json.dumps(options, indent=2), encoding="utf-8")
        save_tensors(temporary / WEIGHTS, copies, {"format": "pt"})


class UpdateOptions(NamedTuple):
    """Options of one update in peft's configuration."""

    rank: int
    alpha: float
    dropout: float
    transposed: bool


def drop_zero_ranks(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """Return A and B without the columns of B that are zero and their rows of A; unchanged if all of B is zero.

    Such zeros come from `read_peft`, which gives all updates one rank and joins parts of a matrix with different A.
    """
    used = B.detach().any(dim=0)
    return (A[used], B[:, used]) if used.any() else (A, B)


def _row_map(tensor_map: TensorMap) -> TensorMap:
    """Return the map of LoRA's B, whose rows are those of the matrix: the matrix's map, but never transposed."""
    return replace(tensor_map, layout="stacked") if tensor_map.layout == "transposed" else tensor_map


def _hf_module(path: str, tensor_maps: TensorMaps) -> str:
    """Return the path in transformers of Lemma's module at `path`; one that is not a module there is a SpecError."""
    tensor_map = tensor_maps.get(path)
    is_single = tensor_map is not None and len(tensor_map.hf_names) == 1
    if tensor_map is None or not is_single or tensor_map.layout != "stacked" or tensor_map.rotary_dim:
        raise SpecError(f"{path} is trained as a whole, and is not one module in transformers: leave it out.")
    return tensor_map.hf_modules[0]


def _check_exportable(path: str, wrapper: Any) -> None:
    """Raise a SpecError if peft's format cannot express the update of a wrapped module at a path."""
    base = wrapper.base
    if isinstance(wrapper, LoraMatrices) or isinstance(base, NonDynamicallyQuantizableLinear):
        parameters = wrapper.updates if isinstance(wrapper, LoraMatrices) else ["weight"]
        names = ", ".join(f"{path}.{name}".lstrip(".") for name in parameters)
        raise SpecError(
            f"{names}: peft's format has updates of linear maps and embeddings only, not of what is inside "
            f"torch.nn's recurrent layers or attention (here {type(base).__name__}). Merge the model and share it "
            "whole, or leave them out of targets."
        )


def _trained_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that are trained in full, by path; a module that is trained in part is a SpecError."""
    updates = [part for part in model.modules() if isinstance(part, LowRankUpdate)]
    update_ids = {id(parameter) for update in updates for parameter in update.parameters()}
    modules: dict[str, nn.Module] = {}
    for path, module in unwrapped_modules(model):
        parameters = dict(module.named_parameters(recurse=False))
        trainable = [name for name, value in parameters.items() if value.requires_grad and id(value) not in update_ids]
        if not trainable:
            continue
        if len(trainable) < len(parameters) or not path or any(True for _ in module.children()):
            names = ", ".join(f"{path}.{name}".lstrip(".") for name in trainable)
            raise SpecError(
                f"{names}: peft saves whole modules only, and this is a part of one. Train the whole module."
            )
        modules[path] = module
    return modules


def _build_options(
    paths: Collection[str], updates: Mapping[str, UpdateOptions], full_modules: Collection[str], base: str | None
) -> dict[str, Any]:
    """Return the content of adapter_config.json; modules that it cannot tell apart are a SpecError.

    Args:
        paths: of all modules that peft may find by name.
        updates: options of each LoRA update, by the path of its module.
        full_modules: paths of the modules that were trained in full.
        base: path or name of the base model.
    """
    targets = list(updates)
    for name in full_modules:
        clashes = [path for path in paths if path != name and path.endswith(name)]
        clashes += [path for path in targets if re.match(rf"(^|.*\.){name}($|\..*)", path)]
        if clashes:
            raise SpecError(
                f"{name} is trained as a whole, but peft's modules_to_save = ['{name}'] would take {clashes[0]} too: "
                "peft's format cannot express this."
            )
    ends = tuple(f".{path}" for path in targets)  # peft would take a path that ends with another's for it
    ambiguous = any(path.endswith(ends) and path not in targets for path in paths)
    rank, alpha = Counter((update.rank, update.alpha) for update in updates.values()).most_common(1)[0][0]
    patterns = {f"^{re.escape(path)}": update for path, update in updates.items()}  # each matches a complete path only
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": max(update.dropout for update in updates.values()),
        "target_modules": "|".join(map(re.escape, targets)) if ambiguous else targets,
        "rank_pattern": {pattern: update.rank for pattern, update in patterns.items() if update.rank != rank},
        "alpha_pattern": {pattern: update.alpha for pattern, update in patterns.items() if update.alpha != alpha},
        "modules_to_save": sorted(full_modules) or None,
        "fan_in_fan_out": any(update.transposed for update in updates.values()),
        "bias": "none",
        "init_lora_weights": True,
        "use_rslora": False,
        "use_dora": False,
    }


# Reading


def read_peft(folder: Path | str, model: Module, tensor_maps: TensorMaps | None = None) -> Adaptation[Module]:
    """Add the LoRA updates of a peft folder to a model, and copy its modules that were trained in full.

    Anything not supported, such as DoRA or trained biases, is a RunError before the model is changed. The returned
    `Adaptation` has one LoRA method for all updates: those of a smaller rank are filled up with zeros to the largest,
    and other scales are multiplied into B. `write_peft` leaves these zeros out again.

    Args:
        model: the base, which is changed in place once the folder was checked.
        tensor_maps: maps of the base's matrices, if the folder has the names of transformers' modules.
    """
    folder = Path(folder)
    restore_moved_folder(folder)
    check_not_adapted(model)
    with reading_foreign_file(folder):
        if not (folder / CONFIG).exists():
            raise RunError(f"{folder / CONFIG} is missing: this is not a peft folder.")
        options = PeftOptions.read(read_json(folder / CONFIG), folder / CONFIG)
        stored = PeftTensors.sort_tensors(_read_weights(folder), folder / WEIGHTS)
        stored.updates = {path: options.rescale(path, A, B) for path, (A, B) in stored.updates.items()}
        if tensor_maps is not None:
            stored = _rename_tensors(stored, tensor_maps)
        targets = _find_matrices_at(model, stored.updates)
        method = options.as_lora(max(len(A) for A, _ in stored.updates.values()))
        updates = _build_updates(targets, stored, method)
        full_targets = _pair_full_tensors(model, stored, targets)
    adapt_model(model, Frozen())
    for target, value in full_targets:
        _copy_into(target, value)
    matrices = list({id(matrix.weight): matrix for matrix in targets.values()}.values())
    paths = tuple(matrix.path for matrix in matrices)
    return Adaptation(wrap_owners(model, matrices, updates), method.replace(targets=paths), paths)


def _rename_tensors(stored: "PeftTensors", tensor_maps: TensorMaps) -> "PeftTensors":
    """Return the stored tensors by Lemma's module paths instead of transformers'; join the updates of joint matrices.

    Args:
        stored: tensors by transformers' paths; its `full_tensors` are emptied.
    """
    updates: dict[str, tuple[Tensor, Tensor]] = {}
    remaining = dict(stored.updates)
    full_tensors: dict[str, Tensor] = {}
    for path, tensor_map in tensor_maps.items():
        names = tensor_map.hf_modules
        parts = {name: remaining.pop(name) for name in names if name in remaining}
        if parts:
            updates[path] = _join_updates(tensor_map, parts)
        if len(names) == 1 and tensor_map.layout == "stacked":
            for suffix in ("weight", "bias"):
                if f"{names[0]}.{suffix}" in stored.full_tensors:
                    full_tensors[f"{path}.{suffix}"] = stored.full_tensors.pop(f"{names[0]}.{suffix}")
    if remaining:
        message = describe_unknown("module", next(iter(remaining)), tensor_maps)
        raise RunError(f"{message} It was trained on another base.")
    if stored.full_tensors:
        name = next(iter(stored.full_tensors))
        raise RunError(f"{name} cannot be put into this model. Merge it with peft first.")
    return PeftTensors(updates, {}, full_tensors)


def _join_updates(tensor_map: TensorMap, parts: Mapping[str, tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the update (A, B) of Lemma's joint matrix, from those of the transformers modules that are its parts.

    Updates that share their A keep it. Others are put next to each other: the rank is the sum of theirs.
    """
    names = tensor_map.hf_modules
    first_A, first_B = next(iter(parts.values()))
    is_shared = len(parts) == len(names) and all(torch.equal(first_A, A) for A, _ in parts.values())
    rank = len(first_A) if is_shared else sum(len(A) for A, _ in parts.values())
    blocks: list[Tensor] = []
    column = 0
    for name, rows in zip(names, tensor_map.row_counts or (len(first_B),), strict=True):
        block = torch.zeros(rows, rank)
        if name in parts:
            A, B = parts[name]
            if B.shape != (rows, len(A)):
                raise RunError(f"{name}: lora_B is {tuple(B.shape)}. It was trained on another base.")
            block[:, column : column + len(A)] = B
            column += 0 if is_shared else len(A)
        blocks.append(block)
    joint_A = first_A if is_shared else torch.cat([A for A, _ in parts.values()])
    return joint_A, _row_map(tensor_map).from_hf(blocks)


OPTIONS_IN_TENSORS = (
    "target_modules exclude_modules layers_to_transform layers_pattern modules_to_save fan_in_fan_out eva_config "
    "ensure_weight_tying"
)
"""Options about the locations and initial values of updates, which the tensors have too."""
OPTIONS_WITHOUT_EFFECT = (
    "task_type auto_mapping peft_version base_model_name_or_path revision inference_mode megatron_core "
    "qalora_group_size runtime_config"
)
INITIALISATIONS = (True, False, "gaussian", "eva", "orthogonal")  # those that leave the base unchanged


class PeftOptions(ForeignFields):
    """Options in a peft folder's adapter_config.json that cannot be read off its tensors."""

    r: int = Field(default=8, ge=1)
    lora_alpha: float = Field(default=8.0, gt=0)
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    use_rslora: bool | None = False
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    bias: str | None = "none"
    init_lora_weights: bool | str | None = True

    @classmethod
    def read(cls, values: Mapping[str, Any], source: Path | str) -> Self:
        """Validate the content of adapter_config.json, whose path is `source`.

        An option that is not supported is a RunError that names it.
        """
        if values.get("peft_type") != "LORA":
            raise RunError(f"{source}: peft_type = {values.get('peft_type')!r}; only LORA can be read.")
        supported = {*cls.model_fields, "peft_type", *OPTIONS_IN_TENSORS.split(), *OPTIONS_WITHOUT_EFFECT.split()}
        for name, value in values.items():
            if name not in supported and value not in (None, False, {}, [], ""):
                raise RunError(f"{source}: {name} = {value!r} is not supported: only plain LoRA can be read.")
        options = super().read(values, source)
        if options.bias != "none":
            raise RunError(f"{source}: bias = {options.bias!r}: trained biases cannot be read, only LoRA's matrices.")
        if options.init_lora_weights not in INITIALISATIONS:
            raise RunError(
                f"{source}: init_lora_weights = {options.init_lora_weights!r} changes the matrices of the base model. "
                "Convert it to plain LoRA with peft's save_pretrained(path_initial_model_for_weight_conversion=…)."
            )
        return options

    @property
    def scale(self) -> float:
        """Common scale, of updates that no pattern changes: alpha / rank, or alpha / √rank (Kalajdzievski 2023)."""
        return self._scale(self.lora_alpha, self.r)

    def _scale(self, alpha: float, rank: int) -> float:
        """Return the scale of an update: alpha / rank, or alpha / √rank."""
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def rescale(self, path: str, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
        """Return the update (A, B) of the module at `path` with B multiplied such that the common scale applies to it.

        A rank that is not the one in the options is a RunError.
        """
        rank = _select_by_pattern(self.rank_pattern, path, self.r)
        if A.dim() != 2 or B.dim() != 2 or not len(A) == B.shape[1] == rank:
            raise RunError(
                f"{path}: lora_A is {tuple(A.shape)} and lora_B {tuple(B.shape)}, where its options need the rank "
                f"{rank}. Its options belong to another adapter."
            )
        scale = self._scale(_select_by_pattern(self.alpha_pattern, path, self.lora_alpha), rank)
        return A, B if scale == self.scale else B * (scale / self.scale)

    def as_lora(self, rank: int) -> Lora:
        """Return Lemma's spec of LoRA with this rank, the common scale and the folder's dropout."""
        return Lora(rank=rank, alpha=self.scale * rank, lora_dropout=self.lora_dropout)


def _select_by_pattern(patterns: Mapping[str, Value] | None, path: str, default: Value) -> Value:
    """Return the value of the first pattern that `matches_path` accepts for a module path, or `default`."""
    matches = (value for pattern, value in (patterns or {}).items() if matches_path(pattern, path))
    return next(matches, default)


MAX_STEPS = 10**7
"""Length of a path to the power of the number of repetitions in a pattern that is matched with it."""
UNSUPPORTED = re.compile(r"\)[*+{]|\(\?|\\[1-9]")
"""Repeated groups, for which Python's `re` may take exponential time, and groups with extensions."""


def matches_path(pattern: str, path: str) -> bool:
    r"""Return whether a regular expression matches a module path as a whole, or its end after a dot.

    A pattern from a foreign file that is not valid, or may take long to match, is a RunError.

    >>> matches_path(r"layers\.(0|1\d)\..*proj", "model.layers.12.q_proj"), matches_path("proj", "q_proj")
    (True, False)
    """
    syntax = re.sub(r"\\[^1-9]", "x", pattern)
    if UNSUPPORTED.search(syntax):
        raise RunError(
            f"the regular expression {pattern[:100]!r} is not supported: only characters, classes, groups, "
            "alternatives and repetitions of single characters are. Name the modules one by one."
        )
    if (len(path) + 1) ** len(re.findall(r"[*+?{]", syntax)) > MAX_STEPS:
        raise RunError(f"the regular expression {pattern[:100]!r} takes too much work. Name the modules one by one.")
    try:
        return re.match(rf"(.*\.)?({pattern})$", path) is not None
    except (re.error, OverflowError, RecursionError) as error:
        raise RunError(f"{pattern[:100]!r} is not a regular expression: {error}.") from None


UPDATE = re.compile(r"(?:(?P<path>.+)\.)?lora_(?P<embedding>embedding_)?(?P<side>[AB])(?:\.weight)?")
COPY = re.compile(r"(?P<path>.+)\.base_layer\.weight")
MODULES_TO_SAVE = re.compile(r"\.modules_to_save(\.\w+)?(?=\.)")
OTHER_METHODS = ("lora_", "base_layer.", "token_adapter", "original_module")
"""Parts of names of peft's other adaptation methods."""


@dataclass
class PeftTensors:
    """Tensors of a peft file: updates (A, B) and copies of frozen matrices by module path, other tensors by name."""

    updates: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    copies: dict[str, Tensor] = field(default_factory=dict)
    full_tensors: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def sort_tensors(cls, tensors: Mapping[str, Tensor], path: Path) -> "PeftTensors":
        """Sort the tensors of the file at `path` into updates, copies of frozen matrices and full tensors.

        A and B are those of the matrix as Lemma stores it: a row of an embedding is a token.
        """
        stored, factors = cls(), dict[str, dict[str, Tensor]]()
        for key, tensor in tensors.items():
            name = key.removeprefix(PREFIX)
            if match := UPDATE.fullmatch(name):
                factor = match["side"]
                if match["embedding"]:
                    factor, tensor = {"A": "B", "B": "A"}[factor], tensor.mT
                factors.setdefault(match["path"] or "", {})[factor] = tensor
            elif match := COPY.fullmatch(name):
                stored.copies[match["path"]] = tensor
            elif any(part in name for part in OTHER_METHODS):
                raise RunError(f"{path}: {key} is not part of plain LoRA and cannot be read.")
            else:
                stored.full_tensors[MODULES_TO_SAVE.sub("", name)] = tensor
        for module, pair in factors.items():
            if len(pair) < 2:
                raise RunError(f"{path} is damaged: {module} has only lora_{next(iter(pair))}.")
            stored.updates[module] = (pair["A"], pair["B"])
        if not stored.updates:
            raise RunError(f"{path} holds no LoRA updates.")
        return stored


def _find_matrices_at(model: nn.Module, paths: Mapping[str, object]) -> dict[str, TargetMatrix]:
    """Return the linear or embedding matrix at each module path (key of `paths`); an unknown path is a RunError."""
    matrices = {
        location.path: matrix
        for matrix in find_matrices(model)
        for location in matrix.locations
        if location.name == "weight" and (is_linear(location.owner) or isinstance(location.owner, nn.Embedding))
    }
    for path in paths:
        if path not in matrices:
            raise RunError(f"{describe_unknown('module', path, matrices)} It was trained on another base.")
    return {path: matrices[path] for path in paths}


def _build_updates(targets: Mapping[str, TargetMatrix], stored: PeftTensors, method: Lora) -> dict[int, LowRankUpdate]:
    """Return the stored LoRA updates of the matrices in `targets` (by module path), by the `id` of their weights.

    All locations of a tied matrix must have the same update. `method` has the rank and scale of all updates.
    """
    updates: dict[int, LowRankUpdate] = {}
    for path, matrix in targets.items():
        A, B = stored.updates[path]
        rows, columns = reversed(matrix.weight.shape) if matrix.is_transposed else matrix.weight.shape
        if (B.shape[0], A.shape[1]) != (rows, columns):
            raise RunError(
                f"{path}: lora_A is {tuple(A.shape)} and lora_B {tuple(B.shape)}, where this model needs "
                f"{len(A)} × {columns} and {rows} × {len(A)}. It was trained on another base."
            )
        with torch.random.fork_rng(devices=[]):  # initial values, which are overwritten
            update = init_update(matrix, method.rank, method.alpha / method.rank, method.lora_dropout)
        _copy_into(update.A, functional.pad(A, (0, 0, 0, method.rank - len(A))))
        _copy_into(update.B, functional.pad(B, (0, method.rank - len(A))))
        first = updates.setdefault(id(matrix.weight), update)
        owners = {id(location.owner) for location in matrix.locations if location.path in targets}
        is_complete = all(id(location.owner) in owners for location in matrix.locations)
        if not is_complete or not torch.allclose(first.delta(), update.delta()):
            paths = " and ".join(location.path for location in matrix.locations)
            raise RunError(
                f"it has different updates for {paths}, which are one matrix in this model. "
                "Untie them before reading it."
            )
    return updates


def _pair_full_tensors(
    model: nn.Module, stored: PeftTensors, targets: Mapping[str, TargetMatrix]
) -> list[tuple[Tensor, Tensor]]:
    """Return (tensor of the model, saved value) for each tensor that was saved in full.

    A missing tensor, or a saved copy of a frozen matrix that differs from the model's, is a RunError.
    """
    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    for name, value in stored.full_tensors.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != value.shape:
            actual = "missing" if tensor is None else f"{tuple(tensor.shape)}"
            raise RunError(
                f"{name} is {tuple(value.shape)}, in this model it is {actual}. "
                "Load the base model that it was trained on."
            )
    for path, value in stored.copies.items():
        weight = targets[path].weight.detach().cpu() if path in targets else None
        if weight is None or not torch.equal(weight, value.to(weight.dtype)):
            raise RunError(
                f"it holds its own base matrix of {path}, which differs from this model's. "
                "Load the base model that it was trained on."
            )
    return [(tensors[name], value) for name, value in stored.full_tensors.items()]


def _copy_into(target: Tensor, value: Tensor) -> None:
    """Copy a value into a tensor in place; a parameter becomes trainable."""
    with torch.no_grad():
        target.copy_(value)
    if isinstance(target, nn.Parameter):
        target.requires_grad_(True)


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the tensors by name in a peft folder's safetensors file; a missing or damaged one is a RunError."""
    path = folder / WEIGHTS
    if not path.exists() and (folder / PICKLE).exists():
        raise RunError(
            f"{folder / PICKLE} is a pickle, which may run any code: it is not read. Save the adapter again with "
            "peft's save_pretrained(safe_serialization=True)."
        )
    try:
        return load_file(path)
    except FileNotFoundError:
        raise RunError(f"{path} is missing.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}.") from None
