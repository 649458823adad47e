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
from typing import Any, NamedTuple, TypeVar

import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from lemma.adaptation.adapt import Adaptation, adapt_model, check_not_adapted
from lemma.adaptation.lora import (
    LoraEmbedding,
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
from lemma.hub.architectures import TensorMap
from lemma.hub.patterns import matches_to_end
from lemma.hub.pretrained import export_folder
from lemma.models.weights import save_tensors
from lemma.spec.recipe import Frozen, Lora

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
PREFIX = "base_model.model."
Module = TypeVar("Module", bound=nn.Module)
Value = TypeVar("Value", int, float)


TensorMaps = Mapping[str, TensorMap]
"""Of which tensors of transformers' each matrix of a pretrained model is made, by the paths of our modules."""


def write_peft(
    model: nn.Module,
    folder: Path | str,
    base: str | None = None,
    tensor_maps: TensorMaps | None = None,
    task: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write a model's updates, and the modules of it that were trained whole, as a peft folder of the model `base`.

    With `pieces` the modules are called as in transformers' own class, of the kind of `task`, and the update of a
    joint matrix (queries, keys and values) is written as one for each of its parts. Matrices of recurrent layers and
    the joint matrix of torch's attention have no form there: a SpecError says so.
    """
    updates = lora_modules(model)
    if not updates:
        raise SpecError("this model has no LoRA updates to write. Adapt it with lora first.")
    tensors: dict[str, Tensor] = {}
    placed: dict[str, UpdateOptions] = {}
    for path, wrapper in updates:
        _check_exportable(path, wrapper)
        update: LowRankUpdate = wrapper.update
        for theirs, rows in _parts(path, update.B, tensor_maps):
            if update.B.any() and not rows.any():  # only other parts of the joint matrix have an update
                continue
            name = f"{PREFIX}{theirs}".rstrip(".")
            A, rows = drop_zero_ranks(update.A, rows)
            placed[theirs] = UpdateOptions(len(A), update.scale * len(A), update.dropout, update.transposed)
            if isinstance(wrapper, LoraEmbedding):  # its rows are the tokens
                tensors |= {f"{name}.lora_embedding_A": rows.mT, f"{name}.lora_embedding_B": A.mT}
            else:
                tensors |= {f"{name}.lora_A.weight": A, f"{name}.lora_B.weight": rows}
    whole = {_only(path, tensor_maps): module for path, module in _trained_modules(model).items()}
    for path, module in whole.items():
        tensors |= {f"{PREFIX}{path}.{name}": tensor for name, tensor in module.state_dict().items()}
    names = [path for path, _ in unwrapped_modules(model)]
    if tensor_maps is not None:
        names = [name.removesuffix(".weight") for piece in tensor_maps.values() for name in piece.hf_names]
    options = _options_of(names, placed, whole, base) | {"task_type": task}
    if tensor_maps is not None:
        options["fan_in_fan_out"] = any(piece.layout == "transposed" for piece in tensor_maps.values())
        last = sorted({path.rpartition(".")[2] for path in placed})
        if all(name in placed for name in names if name.rpartition(".")[2] in last):
            options["target_modules"] = last
    kept = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}  # none shares memory
    with export_folder(Path(folder), overwrite) as temporary:
        (temporary / CONFIG).write_text(json.dumps(options, indent=2), encoding="utf-8")
        save_tensors(temporary / WEIGHTS, kept, {"format": "pt"})


class UpdateOptions(NamedTuple):
    """What peft's options say of one update."""

    rank: int
    alpha: float
    dropout: float
    transposed: bool


def drop_zero_ranks(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """Drop the columns of B that are zero, with their rows of A; all stay if B is zero, as before training.

    `read_peft` puts them there: to give all updates one rank, and where parts of a joint matrix have their own A.
    """
    used = B.detach().any(dim=0)
    return (A[used], B[:, used]) if used.any() else (A, B)


def _parts(path: str, B: Tensor, pieces: TensorMaps | None) -> list[tuple[str, Tensor]]:
    """The modules of transformers' that one of ours is made of, each with its rows of the update."""
    if pieces is None:
        return [(path, B)]
    piece = pieces[path]
    names = [name.removesuffix(".weight") for name in piece.hf_names]
    return list(zip(names, _upright(piece).to_hf(B), strict=True))


def _upright(piece: TensorMap) -> TensorMap:
    """How the rows of an update become theirs: as those of the matrix, but never transposed."""
    return replace(piece, layout="stacked") if piece.layout == "transposed" else piece


def _only(path: str, pieces: TensorMaps | None) -> str:
    """The one module of transformers' that one of ours is, to be stored whole."""
    if pieces is None:
        return path
    piece = pieces.get(path)
    if piece is None or len(piece.hf_names) != 1 or piece.layout != "stacked" or piece.rotary_dim:
        raise SpecError(f"{path} is trained as a whole, and is not one module in transformers: leave it out.")
    return piece.hf_names[0].removesuffix(".weight")


def read_peft(folder: Path | str, model: Module, tensor_maps: TensorMaps | None = None) -> Adaptation[Module]:
    """Add the updates of a peft folder to the matrices of a base model, and copy in what was saved whole.

    With `pieces` the folder's modules are called as in transformers' own class of the base.

    What is not supported here, such as DoRA or trained biases, is refused by its name before anything has changed. The
    method that is returned describes all updates: those of a smaller rank are filled up with zeros to the largest, and
    other scales are multiplied into B. `write_peft` leaves these zeros out again.
    """
    folder = Path(folder)
    restore_moved_folder(folder)
    check_not_adapted(model)
    with reading_foreign_file(folder):
        options = PeftOptions.read(_read_config(folder), folder / CONFIG)
        found = PeftTensors.sort(_read_weights(folder), folder / WEIGHTS)
        found.updates = {path: options.scaled(path, *sides, folder) for path, sides in found.updates.items()}
        if tensor_maps is not None:
            found = _renamed(found, tensor_maps, folder)
        chosen = _matrices_at(model, found.updates, folder)
        method = options.as_lora(max(len(A) for A, _ in found.updates.values()))
        updates = _new_updates(chosen, found, method, folder)
        whole = _full_targets(model, found, chosen, folder)
    adapt_model(model, Frozen())
    for target, value in whole:
        _copy(target, value)
    places = list({id(matrix.weight): matrix for matrix in chosen.values()}.values())
    paths = tuple(matrix.path for matrix in places)
    return Adaptation(wrap_owners(model, places, updates), method.replace(targets=paths), paths)


def _renamed(found: "PeftTensors", pieces: TensorMaps, folder: Path) -> "PeftTensors":
    """Updates and modules by our names; the updates of parts of a joint matrix become one of all of it.

    Parts that share their A keep it. Others are put next to each other: the rank is the sum of theirs.
    """
    ours: dict[str, tuple[Tensor, Tensor]] = {}
    left = dict(found.updates)
    for path, piece in pieces.items():
        names = [name.removesuffix(".weight") for name in piece.hf_names]
        there = [name for name in names if name in left]
        if not there:
            continue
        As, Bs = ({name: left[name][side] for name in there} for side in (0, 1))
        sizes = piece.row_counts or (len(Bs[there[0]]),)
        shared = len(there) == len(names) and all(torch.equal(As[there[0]], A) for A in As.values())
        width = len(As[there[0]]) if shared else sum(map(len, As.values()))
        parts: list[Tensor] = []
        place = 0
        for name, rows in zip(names, sizes, strict=True):
            part = torch.zeros(rows, width)
            if name in Bs:
                if Bs[name].shape != (rows, len(As[name])):
                    raise RunError(
                        f"{folder}: {name}: lora_B is {tuple(Bs[name].shape)}. It was trained on another base."
                    )
                part[:, place : place + len(As[name])] = Bs[name]
                place += 0 if shared else len(As[name])
                left.pop(name)
            parts.append(part)
        A = As[there[0]] if shared else torch.cat(list(As.values()))
        ours[path] = (A, _upright(piece).from_hf(parts))
    if left:
        raise RunError(
            f"{folder}: {describe_unknown('module', next(iter(left)), pieces)} It was trained on another base."
        )
    whole = {
        f"{path}.{kind}": found.full_tensors.pop(f"{name}.{kind}")
        for path, piece in pieces.items()
        for name in [piece.hf_names[0].removesuffix(".weight")]
        for kind in ("weight", "bias")
        if len(piece.hf_names) == 1 and piece.layout == "stacked" and f"{name}.{kind}" in found.full_tensors
    }
    if found.full_tensors:
        raise RunError(
            f"{folder}: {next(iter(found.full_tensors))} cannot be put into this model. Merge it with peft first."
        )
    return PeftTensors(ours, {}, whole)


# The options


READ_OPTIONS = {"r", "lora_alpha", "lora_dropout", "use_rslora", "rank_pattern", "alpha_pattern", "peft_type", "bias"}
OPTIONS_IN_TENSORS = {
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
"""Options about where updates are and how they were initialised: the tensors' names and values say it too."""
OPTIONS_WITHOUT_EFFECT = {
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
INITIALISATIONS = (True, False, "gaussian", "eva", "orthogonal")
"""Those that leave the base as it is."""


class PeftFields(ForeignFields):
    """The options of adapter_config.json that are read, with their types."""

    peft_type: str | None = None
    r: int = Field(default=8, ge=1)
    lora_alpha: float = 8.0
    lora_dropout: float = 0.0
    use_rslora: bool | None = False
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    bias: str | None = "none"
    init_lora_weights: bool | str | None = True


@dataclass(frozen=True)
class PeftOptions:
    """The options that say something the tensors do not."""

    method: Lora
    uses_rslora: bool
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]

    @classmethod
    def read(cls, config: Mapping[str, Any], where: Path) -> "PeftOptions":
        """Read peft's options; one that would change the result and is not supported is a RunError that names it."""
        if config.get("peft_type") != "LORA":
            raise RunError(f"{where}: peft_type = {config.get('peft_type')!r}; only LORA can be read.")
        for name, value in config.items():
            if name not in READ_OPTIONS | OPTIONS_IN_TENSORS | OPTIONS_WITHOUT_EFFECT and value not in (
                None,
                False,
                {},
                [],
                "",
            ):
                raise RunError(f"{where}: {name} = {value!r} is not supported: only plain LoRA can be read.")
        fields = PeftFields.read(config, where)
        if fields.bias != "none":
            raise RunError(f"{where}: bias = {fields.bias!r}: trained biases cannot be read, only LoRA's matrices.")
        if fields.init_lora_weights not in INITIALISATIONS:
            raise RunError(
                f"{where}: init_lora_weights = {fields.init_lora_weights!r} changes the matrices of the base model. "
                "Convert it to plain LoRA with peft's save_pretrained(path_initial_model_for_weight_conversion=…)."
            )
        settings = {"rank": fields.r, "alpha": fields.lora_alpha, "lora_dropout": fields.lora_dropout}
        method = Lora.read(settings, str(where))
        return cls(method, bool(fields.use_rslora), fields.rank_pattern or {}, fields.alpha_pattern or {})

    @property
    def scale(self) -> float:
        """The scale of updates that no pattern names: alpha / rank, or alpha / √rank (Kalajdzievski 2023)."""
        return self._scale(self.method.alpha, self.method.rank)

    def _scale(self, alpha: float, rank: int) -> float:
        return alpha / (math.sqrt(rank) if self.uses_rslora else rank)

    def scaled(self, path: str, A: Tensor, B: Tensor, folder: Path) -> tuple[Tensor, Tensor]:
        """Return an update with its difference from the common scale multiplied into B; its rank must be as stated."""
        rank = _matching(self.ranks, path, self.method.rank)
        if A.dim() != 2 or B.dim() != 2 or not len(A) == B.shape[1] == rank:
            raise RunError(
                f"{folder}: {path}: lora_A is {tuple(A.shape)} and lora_B {tuple(B.shape)}, where its options need the "
                f"rank {rank}. Its options belong to another adapter."
            )
        scale = self._scale(_matching(self.alphas, path, self.method.alpha), rank)
        return A, B if scale == self.scale else B * (scale / self.scale)

    def as_lora(self, rank: int) -> Lora:
        """The method of this rank that has the common scale in our terms, alpha / rank."""
        return self.method.replace(rank=rank, alpha=self.scale * rank)


def _matching(patterns: Mapping[str, Value], path: str, default: Value) -> Value:
    """The value of the first pattern that fits the end of a path, as peft matches them."""
    starts = [0, *(dot.end() for dot in re.finditer(r"\.", path))]
    return next((value for pattern, value in patterns.items() if matches_to_end(pattern, path, starts)), default)


def _options_of(
    paths: Collection[str], updates: Mapping[str, UpdateOptions], whole: Collection[str], base: str | None
) -> dict[str, Any]:
    """Say in peft's options where updates are, among the paths of all modules, and what they are."""
    targets = list(updates)
    for name in whole:
        taken = [path for path in paths if path != name and path.endswith(name)]
        taken += [path for path in targets if re.match(rf"(^|.*\.){name}($|\..*)", path)]
        if taken:
            raise SpecError(
                f"{name} is trained as a whole, but peft's modules_to_save = ['{name}'] would take {taken[0]} too: "
                "peft's format cannot express this."
            )
    ends = tuple(f".{path}" for path in targets)  # peft would take a path that ends with another's for it
    ambiguous = any(path.endswith(ends) and path not in targets for path in paths)

    def alpha_of(update: UpdateOptions) -> float:
        nearest = round(update.alpha)
        return nearest if math.isclose(update.alpha, nearest, rel_tol=1e-12) else update.alpha

    def exactly(path: str) -> str:
        return f"^{re.escape(path)}"

    rank, alpha = Counter((update.rank, alpha_of(update)) for update in updates.values()).most_common(1)[0][0]
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": max(update.dropout for update in updates.values()),
        "target_modules": "|".join(map(re.escape, targets)) if ambiguous else targets,
        "rank_pattern": {exactly(at): one.rank for at, one in updates.items() if one.rank != rank},
        "alpha_pattern": {exactly(at): alpha_of(one) for at, one in updates.items() if alpha_of(one) != alpha},
        "modules_to_save": sorted(whole) or None,
        "fan_in_fan_out": any(update.transposed for update in updates.values()),
        "bias": "none",
        "init_lora_weights": True,
        "use_rslora": False,
        "use_dora": False,
    }


# The tensors


UPDATE = re.compile(r"(?:(?P<path>.+)\.)?lora_(?P<embedding>embedding_)?(?P<side>[AB])(?:\.weight)?")
COPY = re.compile(r"(?P<path>.+)\.base_layer\.weight")
WHOLE = re.compile(r"\.modules_to_save(\.\w+)?(?=\.)")
OTHERS = ("lora_", "base_layer.", "token_adapter", "original_module")
"""What only the names of peft's other adaptation methods hold."""


@dataclass
class PeftTensors:
    """The tensors of a file: updates by the paths of their modules, frozen copies of matrices, and what is whole."""

    updates: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    copies: dict[str, Tensor] = field(default_factory=dict)
    full_tensors: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def sort(cls, tensors: Mapping[str, Tensor], where: Path) -> "PeftTensors":
        """Sort a file's tensors; an update is A and B of the matrix as it is stored, where a row is a token."""
        found, halves = cls(), dict[str, dict[str, Tensor]]()
        for key, tensor in tensors.items():
            name = key.removeprefix(PREFIX)
            if half := UPDATE.fullmatch(name):
                side = {"A": "B", "B": "A"}[half["side"]] if half["embedding"] else half["side"]
                halves.setdefault(half["path"] or "", {})[side] = tensor.mT if half["embedding"] else tensor
            elif copy := COPY.fullmatch(name):
                found.copies[copy["path"]] = tensor
            elif any(other in name for other in OTHERS):
                raise RunError(f"{where}: {key} is not part of plain LoRA and cannot be read.")
            else:
                found.full_tensors[WHOLE.sub("", name)] = tensor
        for path, sides in halves.items():
            if len(sides) < 2:
                raise RunError(f"{where} is damaged: {path} has only lora_{next(iter(sides))}.")
            found.updates[path] = (sides["A"], sides["B"])
        if not found.updates:
            raise RunError(f"{where} holds no LoRA updates.")
        return found


def _matrices_at(model: nn.Module, paths: Mapping[str, object], where: Path) -> dict[str, TargetMatrix]:
    """The matrices of the linear maps and embeddings at these paths."""
    known = {
        place.path: matrix
        for matrix in find_matrices(model)
        for place in matrix.locations
        if place.name == "weight" and (is_linear(place.owner) or isinstance(place.owner, nn.Embedding))
    }
    wrong = next((path for path in paths if path not in known), None)
    if wrong is not None:
        raise RunError(f"{where}: {describe_unknown('module', wrong, known)} It was trained on another base.")
    return {path: known[path] for path in paths}


def _new_updates(
    chosen: Mapping[str, TargetMatrix], found: PeftTensors, method: Lora, folder: Path
) -> dict[int, LowRankUpdate]:
    """The updates by their matrices' identities; all places of a tied matrix must have the same one."""
    updates: dict[int, LowRankUpdate] = {}
    for path, matrix in chosen.items():
        A, B = found.updates[path]
        rows, columns = reversed(matrix.weight.shape) if matrix.is_transposed else matrix.weight.shape
        if (B.shape[0], A.shape[1]) != (rows, columns):
            raise RunError(
                f"{folder}: {path}: lora_A is {tuple(A.shape)} and lora_B {tuple(B.shape)}, where this model needs "
                f"{len(A)} × {columns} and {rows} × {len(A)}. It was trained on another base."
            )
        with torch.random.fork_rng(devices=[]):  # initial values, which are overwritten
            update = init_update(matrix, method.rank, method.alpha / method.rank, method.lora_dropout)
        _copy(update.A, functional.pad(A, (0, 0, 0, method.rank - len(A))))
        _copy(update.B, functional.pad(B, (0, method.rank - len(A))))
        known = updates.setdefault(id(matrix.weight), update)
        owners = {id(place.owner) for place in matrix.locations if place.path in chosen}
        complete = all(id(place.owner) in owners for place in matrix.locations)
        if not complete or not torch.allclose(known.delta(), update.delta()):
            raise RunError(
                f"{folder} has different updates for {' and '.join(place.path for place in matrix.locations)}, which are "
                "one matrix in this model. Untie them before reading it."
            )
    return updates


def _full_targets(
    model: nn.Module, found: PeftTensors, chosen: Mapping[str, TargetMatrix], folder: Path
) -> list[tuple[Tensor, Tensor]]:
    """The tensors of the model with the saved values they get; copies of frozen matrices must equal the model's."""
    own = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    for name, value in found.full_tensors.items():
        there = own.get(name)
        if there is None or there.shape != value.shape:
            here = "missing" if there is None else f"{tuple(there.shape)}"
            raise RunError(
                f"{folder}: {name} is {tuple(value.shape)}, in this model it is {here}. "
                "Load the base model that it was trained on."
            )
    for path, value in found.copies.items():
        weight = chosen[path].weight.detach().cpu() if path in chosen else None
        if weight is None or not torch.equal(weight, value.to(weight.dtype)):
            raise RunError(
                f"{folder} holds its own base matrix of {path}, which differs from this model's. "
                "Load the base model that it was trained on."
            )
    return [(own[name], value) for name, value in found.full_tensors.items()]


def _copy(target: Tensor, value: Tensor) -> None:
    """Copy a value into a tensor of a model; if it is a parameter, it is trained."""
    with torch.no_grad():
        target.copy_(value)
    if isinstance(target, nn.Parameter):
        target.requires_grad_(True)


def _check_exportable(path: str, wrapper: Any) -> None:
    """Refuse a wrapper that peft does not have; of torch's attention it would ignore the update of the output map."""
    base = wrapper.base
    if isinstance(wrapper, LoraMatrices) or isinstance(base, NonDynamicallyQuantizableLinear):
        inside = wrapper.updates if isinstance(wrapper, LoraMatrices) else ["weight"]
        names = ", ".join(f"{path}.{name}".lstrip(".") for name in inside)
        raise SpecError(
            f"{names}: peft's format has updates of linear maps and embeddings only, not of what is inside "
            f"torch.nn's recurrent layers or attention (here {type(base).__name__}). Merge the model and share it "
            "whole, or leave them out of targets."
        )


def _trained_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that are trained as a whole, by path; peft cannot store half of a module."""
    inside = {
        id(parameter) for part in model.modules() if isinstance(part, LowRankUpdate) for parameter in part.parameters()
    }
    found: dict[str, nn.Module] = {}
    for path, module in unwrapped_modules(model):
        own = dict(module.named_parameters(recurse=False))
        learns = [name for name, parameter in own.items() if parameter.requires_grad and id(parameter) not in inside]
        if learns and (len(learns) < len(own) or not path or any(True for _ in module.children())):
            names = ", ".join(f"{path}.{name}".lstrip(".") for name in learns)
            raise SpecError(
                f"{names}: peft saves whole modules only, and this is a part of one. Train the whole module."
            )
        if learns:
            found[path] = module
    return found


# Files


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.exists():
        raise RunError(f"{path} is missing: this is not a peft folder.")
    return read_json(path)


def _read_weights(folder: Path) -> dict[str, Tensor]:
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
