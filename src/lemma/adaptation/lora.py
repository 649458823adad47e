"""LoRA for any module: low-rank updates of frozen matrices, W + (alpha / rank) B A (Hu et al. 2022).

A is random and B is zero, as in the paper: the initial output equals the base's, bit for bit. Dropout acts on the input
of A. Where a matrix is passed to a kernel (recurrent layers, the joint matrix of torch's attention), the input of A
cannot be reached: there columns of A are dropped, which drops a coordinate of the inputs for the whole batch and all
time steps at once. In an embedding, whose input is the token itself, the update of a token is dropped.
"""

import math
import re
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, TypeVar, cast

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.parameter import UninitializedParameter

from lemma.errors import SpecError
from lemma.spec.recipe import Lora as LoraMethod

MAX_LISTED = 24  # paths that an error lists
LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)|(?<=_l)\d+(?=_|$)")


def match_patterns(setting: str, patterns: Iterable[str], names: Sequence[Collection[str]]) -> list[int]:
    """Return the indices, in order, of the items of `names` (each a set of names) with a name that matches a pattern.

    Raises:
        SpecError: A pattern matches nothing; the message starts with the `setting`, and suggests another pattern.

    >>> match_patterns("targets", ["layers.*.query"], [{"layers.0.query"}, {"layers.0.key"}, {"layers.1.query"}])
    [0, 2]
    """
    indices: set[int] = set()
    for pattern in patterns:
        matches = {index for index, item_names in enumerate(names) if _matches(pattern, item_names)}
        if not matches:
            all_names = [name for item_names in names for name in item_names]
            suggestion = _suggest_pattern(pattern, all_names)
            hint = f" Did you mean '{suggestion}'?" if suggestion else ""
            raise SpecError(
                f"{setting} = '{pattern}' matches nothing here.{hint} There are: {format_paths(all_names)}."
            )
        indices |= matches
    return sorted(indices)


def star_layer_numbers(path: str) -> str:
    """Return a module path with the numbers of layers replaced by *, such as layers.*.attention.

    >>> star_layer_numbers("layers.3.attention.output"), star_layer_numbers("layers.weight_ih_l1")
    ('layers.*.attention.output', 'layers.weight_ih_l*')
    """
    return LAYER_NUMBER.sub("*", path)


def format_paths(names: Iterable[str]) -> str:
    """Return module paths as one text for a message: layer numbers as *, at most `MAX_LISTED` paths."""
    paths = list(dict.fromkeys(star_layer_numbers(name) for name in names if name))
    more = f" and {len(paths) - MAX_LISTED} more" if len(paths) > MAX_LISTED else ""
    return (", ".join(paths[:MAX_LISTED]) or "none") + more


def _matches(pattern: str, names: Collection[str]) -> bool:
    """Return whether some name matches a pattern with wildcards."""
    return any(fnmatchcase(name, pattern) for name in names)


def _suggest_pattern(pattern: str, names: Sequence[str]) -> str | None:
    """Return a pattern similar to `pattern` that matches some of the names, for an error message; None without one."""
    for wider in (f"{pattern}.*", f"*.{pattern}", f"*.{pattern}.*"):
        if _matches(wider, names):
            return wider
    paths = list(dict.fromkeys(star_layer_numbers(name) for name in names))
    ends = list(dict.fromkeys(f"*.{path.rpartition('.')[2]}" for path in paths))
    return next(iter(get_close_matches(pattern, paths, 1, 0.6) or get_close_matches(pattern, ends, 1, 0.5)), None)


PARAMETER_CONTAINERS = (nn.ParameterList, nn.ParameterDict)  # never called: their owners read their contents
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
BODY_LAYERS = (nn.Linear, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)
OUTPUT_NAMES = {"output", "head", "lm_head", "score", "classifier", "cls", "qa_outputs"}
"""Names of output layers that are direct children of a model."""
HEAD_NAMES = {"lm_head", "score", "classifier", "cls", "qa_outputs"}
"""Those that may have several layers, all of which belong to the output."""


@dataclass(frozen=True)
class MatrixLocation:
    """Location of a matrix in a model: the module that owns it, its path, and the attribute's name."""

    path: str
    owner: nn.Module
    name: str

    @property
    def parameter_path(self) -> str:
        """Path of the matrix in the model, such as layers.0.query.weight."""
        return ".".join(filter(None, (self.path, self.name)))


@dataclass(frozen=True)
class TargetMatrix:
    """A matrix with all its locations in a model; a tied one has several."""

    weight: nn.Parameter
    locations: tuple[MatrixLocation, ...]

    @property
    def names(self) -> list[str]:
        """Paths that a pattern may match: of the matrix, and of the modules that own it."""
        return [name for location in self.locations for name in (location.path, location.parameter_path)]

    @property
    def path(self) -> str:
        """Path of the matrix at its first location."""
        return self.locations[0].parameter_path

    @property
    def is_transposed(self) -> bool:
        """True if it is stored as inputs × outputs, like GPT-2's."""
        return any(is_conv1d(location.owner) for location in self.locations)


def find_matrices(model: nn.Module) -> list[TargetMatrix]:
    """Return all matrices of a model with their locations; a tied matrix is listed once."""
    matrices: dict[int, tuple[nn.Parameter, list[MatrixLocation]]] = {}
    for path, owner in model.named_modules(remove_duplicate=False):
        for name, parameter in () if isinstance(owner, PARAMETER_CONTAINERS) else owner._parameters.items():
            if parameter is not None and is_matrix(parameter):
                matrices.setdefault(id(parameter), (parameter, []))[1].append(MatrixLocation(path, owner, name))
    return [TargetMatrix(weight, tuple(locations)) for weight, locations in matrices.values()]


def find_body_matrices(model: nn.Module) -> list[TargetMatrix]:
    """Return the matrices of the backbone: not embeddings, matrices tied to them, or output layers."""
    outputs = {id(layer) for layer in find_output_layers(model)}

    def is_body(owner: nn.Module) -> bool:
        return (isinstance(owner, BODY_LAYERS) or is_conv1d(owner)) and id(owner) not in outputs

    return [matrix for matrix in find_matrices(model) if all(is_body(location.owner) for location in matrix.locations)]


def find_output_layers(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the output layers of a model, recognized by their names or by `get_output_embeddings`."""
    for module in model.modules():
        outputs = getattr(type(module), "output_modules", ())  # named by Lemma's backbones
        yield from (child for name, child in module.named_children() if name in outputs and is_linear(child))
    for name, child in model.named_children():
        if name in HEAD_NAMES:
            yield from child.modules()
        elif name in OUTPUT_NAMES and is_linear(child):
            yield child
    getter = getattr(model, "get_output_embeddings", None)  # of Hugging Face's models
    layer = getter() if callable(getter) else None
    if isinstance(layer, nn.Module):
        yield layer


def is_matrix(parameter: Tensor) -> bool:
    """Return whether a parameter is an initialised two-dimensional tensor of real numbers."""
    return not isinstance(parameter, UninitializedParameter) and parameter.dim() == 2 and parameter.is_floating_point()


def is_linear(module: Any) -> bool:
    """Return whether a module is a linear layer: torch.nn's, or GPT-2's in transformers."""
    return isinstance(module, nn.Linear) or is_conv1d(module)


def is_conv1d(module: Any) -> bool:
    """Return whether a module is transformers' Conv1D: a linear map whose matrix is stored as inputs × outputs."""
    return any(
        kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers") for kind in type(module).__mro__
    )


def run_recurrent(base: nn.RNNBase, weights: Mapping[str, Tensor], inputs: tuple[Any, ...], kwargs: Any) -> Any:
    """Return the output of a recurrent torch.nn layer with some of its weights replaced, for this call only.

    The layer passes a flat list of weights to its kernel. With `functional_call` or a parametrization it would gather
    that list again, and on a GPU copy it into one block, past autograd.
    """
    original = base._flat_weights
    base._flat_weights = [
        weights.get(name, weight)
        for name, weight in zip(base._flat_weights_names, original, strict=True)  # pyright: ignore[reportAttributeAccessIssue]
    ]
    try:
        if original[0] is None or not original[0].is_cuda:
            return base(*inputs, **kwargs)
        # cuDNN warns that weights are not in one block, which new ones never are
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            return base(*inputs, **kwargs)
    finally:
        base._flat_weights = original


HALF_PRECISION = (torch.float16, torch.bfloat16)  # too coarse for small updates


class LowRankUpdate(nn.Module):
    """Low-rank update scale · B A of a matrix, of the matrix's shape: rows are outputs, columns are inputs."""

    def __init__(self, weight: Tensor, rank: int, scale: float, dropout: float = 0.0, transposed: bool = False) -> None:
        super().__init__()
        rows, columns = reversed(weight.shape) if transposed else weight.shape
        options = {"device": weight.device, "dtype": torch.float32 if weight.dtype in HALF_PRECISION else weight.dtype}
        self.A = nn.Parameter(torch.empty(rank, columns, **options))
        self.B = nn.Parameter(torch.zeros(rows, rank, **options))
        self.scale, self.dropout, self.transposed = scale, dropout, transposed
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))  # uniform within ±1/√columns

    def forward(self, inputs: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*batch rows"]:
        """Return scale · B A x for each vector x."""
        inputs = inputs.to(self.A.dtype)
        if self.training and self.dropout:
            inputs = functional.dropout(inputs, self.dropout)
        return functional.linear(functional.linear(inputs, self.A) * self.scale, self.B)  # scaled at rank width

    def embed(self, tokens: Int[Tensor, "*batch"], padding: int | None) -> Float[Tensor, "*batch columns"]:
        """Return the rows of an embedding's update for token ids; that of the padding id gets no gradient."""
        rows = functional.embedding(tokens, self.B, padding)
        if self.training and self.dropout:
            rows = rows * functional.dropout(torch.ones_like(rows[..., :1]), self.dropout)
        return rows @ self.A * self.scale

    def delta(self, A: Tensor | None = None) -> Float[Tensor, "first second"]:
        """Return scale · B A, transposed if the matrix is stored transposed; `A` replaces the module's own."""
        product = self.B @ (self.A if A is None else A) * self.scale
        return product.mT if self.transposed else product

    def add_to(self, weight: Float[Tensor, "first second"]) -> Float[Tensor, "first second"]:
        """Return weight + update; in training, dropout sets some columns of A to zero."""
        A = self.A
        if self.training and self.dropout:
            A = A * functional.dropout(torch.ones_like(A[:1]), self.dropout)
        return weight + self.delta(A).to(weight.dtype)

    def extra_repr(self) -> str:
        """Return rank and scale, for printing."""
        return f"rank={self.A.shape[0]}, scale={self.scale:g}"


class LoraWrapper(nn.Module):
    """A module with low-rank updates of its matrices; other attributes are those of the wrapped module, `base`."""

    base: Any

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "base":
                raise
            return getattr(self.base, name)


class LoraLinear(LoraWrapper):
    """A linear map with a low-rank update, W x + b + scale · B A x, or an embedding, E[token] + scale · B[token] A."""

    def __init__(self, base: nn.Module, update: LowRankUpdate) -> None:
        super().__init__()
        self.base, self.update, self.is_embedding = base, update, isinstance(base, nn.Embedding)

    def forward(self, inputs: Shaped[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return the output of the base plus that of the update."""
        outputs = self.base(inputs)
        update = self.update.embed(inputs, self.base.padding_idx) if self.is_embedding else self.update(inputs)
        return outputs + update.to(outputs.dtype)

    @property
    def weight(self) -> Tensor:
        """Matrix plus update, for code that reads it directly, such as torch's attention."""
        return self.update.add_to(self.base.weight)


class LoraMatrices(LoraWrapper):
    """Any other module with low-rank updates, called with the updated matrices."""

    def __init__(self, base: nn.Module, updates: dict[str, LowRankUpdate]) -> None:
        super().__init__()
        self.base, self.updates = base, nn.ModuleDict(updates)

    def __getattr__(self, name: str) -> Any:
        updates = self.__dict__.get("_modules", {}).get("updates", ())
        return self.updated_weight(name) if name in updates else super().__getattr__(name)

    def updated_weight(self, name: str) -> Tensor:
        """Return the base's matrix called `name`, plus its update."""
        update: Any = self.updates[name]
        return update.add_to(getattr(self.base, name))

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Return the output of the base with its updated matrices."""
        updated = {name: self.updated_weight(name) for name in self.updates}
        if isinstance(self.base, nn.RNNBase):
            return run_recurrent(self.base, updated, inputs, kwargs)
        return functional_call(self.base, updated, inputs, kwargs)

    def extra_repr(self) -> str:
        """Return the inherited text; overridden since decoding replaces modules without their own `extra_repr`."""
        return super().extra_repr()


Module = TypeVar("Module", bound=nn.Module)


def replace_modules(model: Module, replacements: Mapping[nn.Module, nn.Module]) -> Module:
    """Replace submodules in place (old → new); return the model, or its replacement if it is one of them."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and child in replacements:
                parent._modules[name] = replacements[child]
    return cast(Module, replacements.get(model, model))


def unwrapped_modules(model: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield (path, module) of every module, with paths as before LoRA: a wrapper has the path of its base."""
    seen: set[int] = set()
    queue = [(path, model)]
    while queue:
        path, module = queue.pop(0)
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        inner = module.base if isinstance(module, LoraWrapper) else module
        queue[:0] = [(f"{path}.{name}".lstrip("."), child) for name, child in inner.named_children()]


def lora_modules(model: nn.Module) -> list[tuple[str, LoraWrapper]]:
    """Return (path, wrapper) of every LoRA wrapper, with paths as before LoRA."""
    return [(path, module) for path, module in unwrapped_modules(model) if isinstance(module, LoraWrapper)]


def add_updates(model: Module, method: LoraMethod, matrices: Sequence[TargetMatrix]) -> Module:
    """Add a new low-rank update to each matrix in place; return the model, or its wrapper if it is wrapped itself."""
    scale = method.alpha / method.rank
    updates = {id(matrix.weight): init_update(matrix, method.rank, scale, method.lora_dropout) for matrix in matrices}
    return wrap_owners(model, matrices, updates)


def select_matrices(model: nn.Module, targets: Sequence[str], excluded: Collection[int] = ()) -> list[TargetMatrix]:
    """Return the matrices that match a pattern in `targets` (default: the body's), without the `id`s in `excluded`."""
    matrices = [matrix for matrix in find_matrices(model) if id(matrix.weight) not in excluded]
    if targets:
        indices = match_patterns("targets", targets, [matrix.names for matrix in matrices])
        return [matrices[index] for index in indices]
    body = [matrix for matrix in find_body_matrices(model) if id(matrix.weight) not in excluded]
    if not body:
        raise SpecError(
            "there are no matrices for LoRA by default. Name targets; there are: "
            f"{format_paths(matrix.path for matrix in matrices)}."
        )
    return body


def init_update(matrix: TargetMatrix, rank: int, scale: float, dropout: float = 0.0) -> LowRankUpdate:
    """Return a new low-rank update of a matrix, with random A and zero B."""
    _check_matrix(matrix)
    update = LowRankUpdate(matrix.weight, rank, scale, dropout, matrix.is_transposed)
    if any(isinstance(location.owner, EMBEDDINGS) for location in matrix.locations):
        nn.init.normal_(update.A)  # as in the code of the paper: the row of a token has no fan-in
    return update


def wrap_owners(model: Module, matrices: Sequence[TargetMatrix], updates: Mapping[int, LowRankUpdate]) -> Module:
    """Wrap, in place, every module that owns some of the matrices; `updates` maps a matrix's `id` to its update."""
    owners: defaultdict[nn.Module, dict[str, LowRankUpdate]] = defaultdict(dict)
    for matrix in matrices:
        for location in matrix.locations:
            owners[location.owner][location.name] = updates[id(matrix.weight)]
    wrappers: dict[nn.Module, nn.Module] = {}
    for owner, named in owners.items():
        is_single = [*named] == ["weight"] and (is_linear(owner) or isinstance(owner, nn.Embedding))
        wrappers[owner] = LoraLinear(owner, named["weight"]) if is_single else LoraMatrices(owner, named)
        for module in (wrappers[owner], *named.values()):
            module.training = owner.training
    return replace_modules(model, wrappers)


def check_rank(matrices: Sequence[TargetMatrix], rank: int) -> None:
    """Raise SpecError if `rank` is above the smaller side of some matrix."""
    smallest = min(matrices, key=lambda matrix: min(matrix.weight.shape))
    max_rank = min(smallest.weight.shape)
    if rank > max_rank:
        rows, columns = smallest.weight.shape
        raise SpecError(
            f"rank = {rank} is more than {smallest.path} of {rows} × {columns} can have. "
            f"Take rank={max_rank} or less, or leave that matrix out of targets."
        )


def _check_matrix(matrix: TargetMatrix) -> None:
    """Raise SpecError if the matrix cannot have an update: its module rewrites it, or only some read it transposed."""
    for location in matrix.locations:
        if (norm := getattr(location.owner, "max_norm", None)) is not None:
            raise SpecError(
                f"{location.path} has max_norm = {norm}: it changes its own matrix whenever it is read, so that the "
                "matrix cannot stay frozen. Set max_norm=None, or leave it out of targets."
            )
    if len({is_conv1d(location.owner) for location in matrix.locations}) > 1:
        names = ", ".join(location.parameter_path for location in matrix.locations)
        raise SpecError(f"{names} are one matrix, which some read transposed: one update cannot serve both.")
