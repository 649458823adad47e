"""LoRA in the format of the peft library: a folder with adapter_config.json and adapter_model.safetensors.

A linear map's matrices are named `base_model.model.PATH.lora_A.weight` (rank × inputs) and `lora_B.weight` (outputs ×
rank), an embedding's `lora_embedding_A` (rank × tokens) and `lora_embedding_B` (width × rank). Modules that were
trained as a whole, such as a classifier's head, are stored under their own names and listed in `modules_to_save`.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
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
from lemma.data.files import read_json, restore
from lemma.errors import RunError, SpecError, unknown
from lemma.hub.architectures import Piece
from lemma.hub.pretrained import exporting
from lemma.models.base import save_tensors
from lemma.spec.recipe import Frozen, Lora

CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
PREFIX = "base_model.model."
Module = TypeVar("Module", bound=nn.Module)


Pieces = Mapping[str, Piece]
"""Of which tensors of transformers' each matrix of a pretrained model is made, by the paths of our modules."""


def write_peft(
    model: nn.Module,
    folder: Path | str,
    base: str | None = None,
    pieces: Pieces | None = None,
    task: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write a model's updates, and the modules of it that were trained whole, as a peft folder of the model `base`.

    With `pieces` the modules are called as in transformers' own class, of the kind of `task`, and the update of a
    joint matrix (queries, keys and values) is written as one for each of its parts. Matrices of recurrent layers and
    the joint matrix of torch's attention have no form there: a SpecError says so.
    """
    updates = besides(model)
    if not updates:
        raise SpecError("this model has no LoRA updates to write. Adapt it with lora first.")
    tensors: dict[str, Tensor] = {}
    placed: dict[str, Update] = {}
    for path, wrapper in updates:
        _check_exportable(path, wrapper)
        A, B = wrapper.update.A, wrapper.update.B
        for theirs, rows in _parts(path, B, pieces):
            name = f"{PREFIX}{theirs}".rstrip(".")
            placed[theirs] = wrapper.update
            if isinstance(wrapper, LoraEmbedding):  # its rows are the tokens
                tensors |= {f"{name}.lora_embedding_A": rows.mT, f"{name}.lora_embedding_B": A.mT}
            else:
                tensors |= {f"{name}.lora_A.weight": A, f"{name}.lora_B.weight": rows}
    whole = {_only(path, pieces): module for path, module in _whole_modules(model).items()}
    for path, module in whole.items():
        tensors |= {f"{PREFIX}{path}.{name}": tensor for name, tensor in module.state_dict().items()}
    names = [path for path, _ in plain_modules(model)]
    if pieces is not None:
        names = [name.removesuffix(".weight") for piece in pieces.values() for name in piece.theirs]
    options = _options_of(names, placed, whole, base) | {"task_type": task}
    if pieces is not None:
        options["fan_in_fan_out"] = any(piece.form == "transposed" for piece in pieces.values())
        last = sorted({path.rpartition(".")[2] for path in placed})
        if all(name in placed for name in names if name.rpartition(".")[2] in last):
            options["target_modules"] = last
    kept = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}  # none shares memory
    with exporting(Path(folder), overwrite) as temporary:
        (temporary / CONFIG).write_text(json.dumps(options, indent=2), encoding="utf-8")
        save_tensors(temporary / WEIGHTS, kept, {"format": "pt"})


def _parts(path: str, B: Tensor, pieces: Pieces | None) -> list[tuple[str, Tensor]]:
    """The modules of transformers' that one of ours is made of, each with its rows of the update."""
    if pieces is None:
        return [(path, B)]
    piece = pieces[path]
    names = [name.removesuffix(".weight") for name in piece.theirs]
    return list(zip(names, _upright(piece).split(B), strict=True))


def _upright(piece: Piece) -> Piece:
    """How the rows of an update become theirs: as those of the matrix, but never transposed."""
    return replace(piece, form="stacked") if piece.form == "transposed" else piece


def _only(path: str, pieces: Pieces | None) -> str:
    """The one module of transformers' that one of ours is, to be stored whole."""
    if pieces is None:
        return path
    piece = pieces.get(path)
    if piece is None or len(piece.theirs) != 1 or piece.form != "stacked" or piece.halves:
        raise SpecError(f"{path} is trained as a whole, and is not one module in transformers: leave it out.")
    return piece.theirs[0].removesuffix(".weight")


def read_peft(folder: Path | str, model: Module, pieces: Pieces | None = None) -> Adaptation[Module]:
    """Add the updates of a peft folder to the matrices of a base model, and copy in what was saved whole.

    With `pieces` the folder's modules are called as in transformers' own class of the base.

    What is not supported here, such as DoRA or trained biases, is refused by its name before anything has changed. The
    method that is returned says all, unless the folder's patterns give some matrices ranks or scales of their own.
    """
    folder = Path(folder)
    restore(folder)
    refuse_adapted(model)
    options = PeftOptions.read(_read_config(folder), folder / CONFIG)
    found = PeftTensors.sort(_read_weights(folder), folder / WEIGHTS)
    if pieces is not None:
        found, options = _renamed(found, options, pieces, folder)
    chosen = _matrices_at(model, found.updates, folder)
    updates = _new_updates(chosen, found, options, folder)
    whole = _whole_targets(model, found, chosen, folder)
    adapt_model(model, Frozen())
    for target, value in whole:
        _copy(target, value)
    places = list({id(matrix.weight): matrix for matrix in chosen.values()}.values())
    paths = tuple(matrix.path for matrix in places)
    return Adaptation(wrap(model, places, updates), options.plain(paths), paths)


def _renamed(
    found: "PeftTensors", options: "PeftOptions", pieces: Pieces, folder: Path
) -> tuple["PeftTensors", "PeftOptions"]:
    """Updates and modules by our names; the updates of parts of a joint matrix become one of all of it.

    Parts that share their A keep it. Others are put next to each other: the rank is the sum of theirs.
    """
    ours: dict[str, tuple[Tensor, Tensor]] = {}
    ranks, alphas = dict[str, int](), dict[str, float]()
    left = dict(found.updates)
    for path, piece in pieces.items():
        names = [name.removesuffix(".weight") for name in piece.theirs]
        there = [name for name in names if name in left]
        if not there:
            continue
        scale = options.scale(there[0])
        As = {name: left[name][0] for name in there}
        Bs = {name: left[name][1] * (options.scale(name) / scale) for name in there}
        sizes = piece.rows or (len(Bs[there[0]]),)
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
        ours[path] = (A, _upright(piece).join(parts))
        ranks[f"^{re.escape(path)}"], alphas[f"^{re.escape(path)}"] = width, scale * width
    if left:
        raise RunError(f"{folder}: {unknown('module', next(iter(left)), pieces)} It was trained on another base.")
    whole = {
        f"{path}.{kind}": found.whole.pop(f"{name}.{kind}")
        for path, piece in pieces.items()
        for name in [piece.theirs[0].removesuffix(".weight")]
        for kind in ("weight", "bias")
        if len(piece.theirs) == 1 and piece.form == "stacked" and f"{name}.{kind}" in found.whole
    }
    if found.whole:
        raise RunError(f"{folder}: {next(iter(found.whole))} cannot be put into this model. Merge it with peft first.")
    method = options.method.replace(rank=max(ranks.values(), default=options.method.rank))
    first = next(iter(alphas.values()), method.alpha)
    return PeftTensors(ours, {}, whole), PeftOptions(method.replace(alpha=first), False, ranks, alphas)


# The options


READ = {"r", "lora_alpha", "lora_dropout", "use_rslora", "rank_pattern", "alpha_pattern", "peft_type", "bias"}
IN_THE_TENSORS = {
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
INITIALISATIONS = (True, False, "gaussian", "eva", "orthogonal")
"""Those that leave the base as it is."""


@dataclass(frozen=True)
class PeftOptions:
    """The options that say something the tensors do not."""

    method: Lora
    root_scaling: bool
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]

    @classmethod
    def read(cls, config: Mapping[str, Any], where: Path) -> "PeftOptions":
        """Read peft's options; one that would change the result and is not supported is a RunError that names it."""
        if config.get("peft_type") != "LORA":
            raise RunError(f"{where}: peft_type = {config.get('peft_type')!r}; only LORA can be read.")
        for name, value in config.items():
            if name not in READ | IN_THE_TENSORS | WITHOUT_EFFECT and value not in (None, False, {}, [], ""):
                raise RunError(f"{where}: {name} = {value!r} is not supported: only plain LoRA can be read.")
        if config.get("bias", "none") != "none":
            raise RunError(f"{where}: bias = {config['bias']!r}: trained biases cannot be read, only LoRA's matrices.")
        if (begin := config.get("init_lora_weights", True)) not in INITIALISATIONS:
            raise RunError(
                f"{where}: init_lora_weights = {begin!r} changes the matrices of the base model. Convert it to plain "
                "LoRA with peft's save_pretrained(path_initial_model_for_weight_conversion=…)."
            )
        fields = {"rank": config.get("r", 8), "alpha": config.get("lora_alpha", 8)}
        method = Lora.read({**fields, "lora_dropout": config.get("lora_dropout", 0.0)}, str(where))
        ranks, alphas = (config.get(name) or {} for name in ("rank_pattern", "alpha_pattern"))
        return cls(method, bool(config.get("use_rslora")), ranks, alphas)

    def rank(self, path: str) -> int:
        """The rank of one update."""
        return int(_matching(self.ranks, path, self.method.rank))

    def scale(self, path: str) -> float:
        """The scale of one update: alpha / rank, or alpha / √rank (Kalajdzievski 2023)."""
        rank = self.rank(path)
        return float(_matching(self.alphas, path, self.method.alpha)) / (math.sqrt(rank) if self.root_scaling else rank)

    def plain(self, targets: Sequence[str]) -> Lora:
        """The method that has the same scale in our terms, alpha / rank, on these targets."""
        alpha = self.method.alpha * (math.sqrt(self.method.rank) if self.root_scaling else 1.0)
        return self.method.replace(alpha=alpha, targets=tuple(targets))


def _matching(patterns: Mapping[str, Any], path: str, default: Any) -> Any:
    """The value of the first pattern that fits the end of a path, as peft matches them."""
    return next((value for pattern, value in patterns.items() if re.match(rf"(.*\.)?({pattern})$", path)), default)


def _options_of(
    paths: Collection[str], updates: Mapping[str, Update], whole: Collection[str], base: str | None
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

    def alpha_of(update: Update) -> float:
        alpha = update.scale * len(update.A)
        return round(alpha) if math.isclose(alpha, round(alpha), rel_tol=1e-12) else alpha

    def exactly(path: str) -> str:
        return f"^{re.escape(path)}"

    rank, alpha = Counter((len(update.A), alpha_of(update)) for update in updates.values()).most_common(1)[0][0]
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": max(update.dropout for update in updates.values()),
        "target_modules": "|".join(map(re.escape, targets)) if ambiguous else targets,
        "rank_pattern": {exactly(at): len(one.A) for at, one in updates.items() if len(one.A) != rank},
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
    whole: dict[str, Tensor] = field(default_factory=dict)

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
                found.whole[WHOLE.sub("", name)] = tensor
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
        for matrix in matrices(model)
        for place in matrix.places
        if place.name == "weight" and (is_map(place.owner) or isinstance(place.owner, nn.Embedding))
    }
    wrong = next((path for path in paths if path not in known), None)
    if wrong is not None:
        raise RunError(f"{where}: {unknown('module', wrong, known)} It was trained on another base.")
    return {path: known[path] for path in paths}


def _new_updates(
    chosen: Mapping[str, TargetMatrix], found: PeftTensors, options: PeftOptions, folder: Path
) -> dict[int, Update]:
    """The updates by their matrices' identities; all places of a tied matrix must have the same one."""
    updates: dict[int, Update] = {}
    for path, matrix in chosen.items():
        update = new_update(matrix, options.rank(path), options.scale(path))
        update.dropout = options.method.lora_dropout
        for name, value in zip("AB", found.updates[path], strict=True):
            own = update.get_parameter(name)
            if own.shape != value.shape:
                raise RunError(
                    f"{folder}: {path}: lora_{name} is {tuple(value.shape)}, where this model and the options need "
                    f"{tuple(own.shape)}. It was trained on another base, or its options belong to another adapter."
                )
            _copy(own, value)
        known = updates.setdefault(id(matrix.weight), update)
        owners = {id(place.owner) for place in matrix.places if place.path in chosen}
        complete = all(id(place.owner) in owners for place in matrix.places)
        if not complete or not torch.allclose(known.delta(), update.delta()):
            raise RunError(
                f"{folder} has different updates for {' and '.join(place.path for place in matrix.places)}, which are "
                "one matrix in this model. Untie them before reading it."
            )
    return updates


def _whole_targets(
    model: nn.Module, found: PeftTensors, chosen: Mapping[str, TargetMatrix], folder: Path
) -> list[tuple[Tensor, Tensor]]:
    """The tensors of the model with the saved values they get; copies of frozen matrices must equal the model's."""
    own = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    for name, value in found.whole.items():
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
    return [(own[name], value) for name, value in found.whole.items()]


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


def _whole_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that are trained as a whole, by path; peft cannot store half of a module."""
    inside = {id(parameter) for part in model.modules() if isinstance(part, Update) for parameter in part.parameters()}
    found: dict[str, nn.Module] = {}
    for path, module in plain_modules(model):
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
    if not path.exists() and (folder / PICKLED).exists():
        raise RunError(
            f"{folder / PICKLED} is a pickle, which may run any code: it is not read. Save the adapter again with "
            "peft's save_pretrained(safe_serialization=True)."
        )
    try:
        return load_file(path)
    except FileNotFoundError:
        raise RunError(f"{path} is missing.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}.") from None
