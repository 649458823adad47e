"""LoRA for any module: low-rank updates of frozen matrices, W + (alpha / rank) B A (Hu et al. 2022).

A is random and B is zero, as in the paper: the initial output is the base's, to the last bit. Dropout acts on the input
of A. Where a matrix is not applied to vectors here but handed to a kernel (recurrent layers, the joint
matrix of torch's attention), the input of A cannot be reached: there whole columns of A are dropped, which drops a
coordinate of the inputs for the whole batch and all time steps at once. Of an embedding, whose input is the token
itself, a token's whole update is dropped.
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
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.parameter import UninitializedParameter

from lemma.errors import SpecError
from lemma.spec.recipe import Lora as LoraMethod

MAX_LISTED = 24  # known paths that an error lists
LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)|(?<=_l)\d+(?=_|$)")


def match_patterns(setting: str, patterns: Iterable[str], names: Sequence[Collection[str]]) -> list[int]:
    """Return the indices in `names` of which any name matches some pattern; each pattern must match at least one.

    >>> fitted("targets", ["layers.*.query"], [{"layers.0.query"}, {"layers.0.key"}, {"layers.1.query"}])
    [0, 2]
    """
    found: set[int] = set()
    for pattern in patterns:
        fits = {place for place, known in enumerate(names) if _matches(pattern, known)}
        if not fits:
            known = [name for one in names for name in one]
            near = _suggest_pattern(pattern, known)
            guess = f" Did you mean '{near}'?" if near else ""
            raise SpecError(f"{setting} = '{pattern}' matches nothing here.{guess} There are: {list_paths(known)}.")
        found |= fits
    return sorted(found)


def star_layer_numbers(path: str) -> str:
    """Write a star for every number of a layer.

    >>> starred("layers.3.attention.output"), starred("layers.weight_ih_l1")
    ('layers.*.attention.output', 'layers.weight_ih_l*')
    """
    return LAYER_NUMBER.sub("*", path)


def list_paths(names: Iterable[str]) -> str:
    """List paths, repeated layers as one, the first of very many only."""
    known = list(dict.fromkeys(star_layer_numbers(name) for name in names if name))
    more = f" and {len(known) - MAX_LISTED} more" if len(known) > MAX_LISTED else ""
    return (", ".join(known[:MAX_LISTED]) or "none") + more


def _matches(pattern: str, names: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _suggest_pattern(pattern: str, names: Sequence[str]) -> str | None:
    """What is below it, what ends with it, or what is spelled similarly."""
    for wider in (f"{pattern}.*", f"*.{pattern}", f"*.{pattern}.*"):
        if _matches(wider, names):
            return wider
    known = list(dict.fromkeys(star_layer_numbers(name) for name in names))
    ends = list(dict.fromkeys(f"*.{name.rpartition('.')[2]}" for name in known))
    return next(iter(get_close_matches(pattern, known, 1, 0.6) or get_close_matches(pattern, ends, 1, 0.5)), None)


PARAMETER_CONTAINERS = (nn.ParameterList, nn.ParameterDict)  # never called: their owners read their contents
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
BODY_LAYERS = (nn.Linear, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)
OUTPUT_NAMES = {"output", "head", "lm_head", "score", "classifier", "cls", "qa_outputs"}
"""The names of output layers that are direct children of a model."""
HEAD_NAMES = {"lm_head", "score", "classifier", "cls", "qa_outputs"}
"""Those of them that may have several layers, all of which are the output."""


@dataclass(frozen=True)
class MatrixLocation:
    """Where a matrix is: the path of its module, that module, and the matrix's name there."""

    path: str
    owner: nn.Module
    name: str

    @property
    def parameter_path(self) -> str:
        """The path of the parameter."""
        return ".".join(filter(None, (self.path, self.name)))


@dataclass(frozen=True)
class TargetMatrix:
    """One parameter, and everywhere it is used: a tied one has several places."""

    weight: nn.Parameter
    locations: tuple[MatrixLocation, ...]

    @property
    def names(self) -> list[str]:
        """Every name it goes by: the paths of its modules and of the parameter."""
        return [name for place in self.locations for name in (place.path, place.parameter_path)]

    @property
    def path(self) -> str:
        """The first path of the parameter."""
        return self.locations[0].parameter_path

    @property
    def is_transposed(self) -> bool:
        """Whether it is written inputs × outputs, as GPT-2's are."""
        return any(is_conv1d(place.owner) for place in self.locations)


def find_matrices(model: nn.Module) -> list[TargetMatrix]:
    """All matrices of a module."""
    found: dict[int, tuple[nn.Parameter, list[MatrixLocation]]] = {}
    for path, owner in model.named_modules(remove_duplicate=False):
        for name, parameter in () if isinstance(owner, PARAMETER_CONTAINERS) else owner._parameters.items():
            if parameter is not None and is_matrix(parameter):
                found.setdefault(id(parameter), (parameter, []))[1].append(MatrixLocation(path, owner, name))
    return [TargetMatrix(weight, tuple(places)) for weight, places in found.values()]


def find_body_matrices(model: nn.Module) -> list[TargetMatrix]:
    """The matrices of the backbone: not embeddings, nor what is tied to them, nor the output layer."""
    outputs = {id(part) for part in find_output_layers(model)}

    def inside(owner: nn.Module) -> bool:
        return (isinstance(owner, BODY_LAYERS) or is_conv1d(owner)) and id(owner) not in outputs

    return [matrix for matrix in find_matrices(model) if all(inside(place.owner) for place in matrix.locations)]


def find_output_layers(model: nn.Module) -> Iterator[nn.Module]:
    """The output layers of a model, as far as they can be recognised."""
    for part in model.modules():
        outputs = getattr(type(part), "output_modules", ())  # a backbone of ours says what comes after its vectors
        yield from (child for name, child in part.named_children() if name in outputs and is_linear(child))
    for name, child in model.named_children():
        if name in HEAD_NAMES:
            yield from child.modules()
        elif name in OUTPUT_NAMES and is_linear(child):
            yield child
    named = getattr(model, "get_output_embeddings", None)  # as Hugging Face's models have it
    found = named() if callable(named) else None
    if isinstance(found, nn.Module):
        yield found


def is_matrix(parameter: Tensor) -> bool:
    """Whether something is a parameter with rows and columns of real numbers."""
    return not isinstance(parameter, UninitializedParameter) and parameter.dim() == 2 and parameter.is_floating_point()


def is_linear(module: Any) -> bool:
    """Whether a module is one linear map: torch.nn's, or the one of GPT-2 in transformers."""
    return isinstance(module, nn.Linear) or is_conv1d(module)


def is_conv1d(module: Any) -> bool:
    """Whether a module is transformers' Conv1D: a linear map whose matrix is written inputs × outputs."""
    return any(
        kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers") for kind in type(module).__mro__
    )


def run_recurrent(base: nn.RNNBase, weights: Mapping[str, Tensor], inputs: tuple[Any, ...], named: Any) -> Any:
    """Call torch.nn's recurrent layers with some of their weights replaced, for this one call.

    They hand their kernel a flat list of weights, which `functional_call` would make them gather again, and on a GPU
    copy into one block behind autograd's back.
    """
    own = base._flat_weights
    base._flat_weights = [
        weights.get(name, weight)
        for name, weight in zip(base._flat_weights_names, own, strict=True)  # pyright: ignore[reportAttributeAccessIssue]
    ]
    try:
        if own[0] is None or not own[0].is_cuda:
            return base(*inputs, **named)
        # cuDNN advises to put weights into one block, which those that are new at every call never are
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            return base(*inputs, **named)
    finally:
        base._flat_weights = own


HALF_PRECISION = (torch.float16, torch.bfloat16)  # too coarse for the small steps of what learns


class LowRankUpdate(nn.Module):
    """scale · B A, of the shape of one matrix: rows are what comes out, columns what goes in."""

    def __init__(self, weight: Tensor, rank: int, scale: float, dropout: float = 0.0, transposed: bool = False) -> None:
        super().__init__()
        rows, columns = reversed(weight.shape) if transposed else weight.shape
        like = {"device": weight.device, "dtype": torch.float32 if weight.dtype in HALF_PRECISION else weight.dtype}
        self.A = nn.Parameter(torch.empty(rank, columns, **like))
        self.B = nn.Parameter(torch.zeros(rows, rank, **like))
        self.scale, self.dropout, self.transposed = scale, dropout, transposed
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))  # uniform within ±1/√columns

    def forward(self, inputs: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*batch rows"]:
        """Apply it to vectors, through the narrow middle."""
        inputs = inputs.to(self.A.dtype)
        if self.training and self.dropout:
            inputs = functional.dropout(inputs, self.dropout)
        return functional.linear(functional.linear(inputs, self.A) * self.scale, self.B)  # scaled where it is narrow

    def embed(self, tokens: Int[Tensor, "*batch"], padding: int | None) -> Float[Tensor, "*batch columns"]:
        """Its rows of some tokens; the row of padding never learns."""
        picked = functional.embedding(tokens, self.B, padding)
        if self.training and self.dropout:
            picked = picked * functional.dropout(torch.ones_like(picked[..., :1]), self.dropout)
        return picked @ self.A * self.scale

    def delta(self) -> Float[Tensor, "one other"]:
        """The whole update, as its matrix is written."""
        return self._product(self.A)

    def add_to(self, weight: Float[Tensor, "one other"]) -> Float[Tensor, "one other"]:
        """The updated matrix for one use; in training, columns of A are dropped."""
        A = self.A
        if self.training and self.dropout:
            A = A * functional.dropout(torch.ones_like(A[:1]), self.dropout)
        return weight + self._product(A).to(weight.dtype)

    def _product(self, A: Tensor) -> Tensor:
        product = self.B @ A * self.scale
        return product.mT if self.transposed else product

    def extra_repr(self) -> str:
        """Rank and scale."""
        return f"rank={self.A.shape[0]}, scale={self.scale:g}"


class LoraWrapper(nn.Module):
    """A module with updates; attributes that it does not have are its base's."""

    base: Any

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "base":
                raise
            return getattr(self.base, name)


class LoraLinear(LoraWrapper):
    """A linear map with an update of low rank: W x + b + scale · B A x."""

    def __init__(self, base: nn.Module, update: LowRankUpdate) -> None:
        super().__init__()
        self.base, self.update = base, update

    def forward(self, inputs: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*batch rows"]:
        """Add what the update makes of the inputs."""
        outputs = self.base(inputs)
        return outputs + self.update(inputs).to(outputs.dtype)

    @property
    def weight(self) -> Tensor:
        """The updated matrix, for those who read it themselves, such as torch's attention its output map."""
        return self.update.add_to(self.base.weight)


class LoraEmbedding(LoraWrapper):
    """An embedding with an update of low rank: E[token] + scale · B[token] A."""

    def __init__(self, base: nn.Embedding, update: LowRankUpdate) -> None:
        super().__init__()
        self.base, self.update, self.padding = base, update, base.padding_idx

    def forward(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch width"]:
        """Add the tokens' rows of the update."""
        vectors = self.base(tokens)
        return vectors + self.update.embed(tokens, self.padding).to(vectors.dtype)

    @property
    def weight(self) -> Tensor:
        """The updated matrix, for those who read it themselves."""
        return self.update.add_to(self.base.weight)


class LoraMatrices(LoraWrapper):
    """Any module that owns matrices, run with their updated values."""

    def __init__(self, base: nn.Module, updates: dict[str, LowRankUpdate]) -> None:
        super().__init__()
        self.base, self.updates = base, nn.ModuleDict(updates)

    def __getattr__(self, name: str) -> Any:
        updates = self.__dict__.get("_modules", {}).get("updates", ())
        return self.updated_weight(name) if name in updates else super().__getattr__(name)

    def updated_weight(self, name: str) -> Tensor:
        """One matrix with its update, for one use."""
        update: Any = self.updates[name]
        return update.add_to(getattr(self.base, name))

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the base with its matrices updated."""
        updated = {name: self.updated_weight(name) for name in self.updates}
        if isinstance(self.base, nn.RNNBase):
            return run_recurrent(self.base, updated, inputs, named)
        return functional_call(self.base, updated, inputs, named)

    def extra_repr(self) -> str:
        """What super says: and so decoding leaves this a module, as `functional_call` needs its base to be one."""
        return super().extra_repr()


Module = TypeVar("Module", bound=nn.Module)


def replace_modules(model: Module, replacements: Mapping[nn.Module, nn.Module]) -> Module:
    """Put new modules in the place of old ones, and return the model: the new one if it was itself replaced."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and child in replacements:
                parent._modules[name] = replacements[child]
    return cast(Module, replacements.get(model, model))


def unwrapped_modules(model: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Every module by the path it has in the plain model; a wrapper counts as its base."""
    seen: set[int] = set()
    waiting = [(path, model)]
    while waiting:
        path, module = waiting.pop(0)
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        inner = module.base if isinstance(module, LoraWrapper) else module
        waiting[:0] = [(f"{path}.{name}".lstrip("."), child) for name, child in inner.named_children()]


def lora_modules(model: nn.Module) -> list[tuple[str, LoraWrapper]]:
    """Every module that has updates, by its path in the plain model."""
    return [(path, module) for path, module in unwrapped_modules(model) if isinstance(module, LoraWrapper)]


def add_updates(model: Module, method: LoraMethod, chosen: Sequence[TargetMatrix]) -> Module:
    """Put new updates on the chosen matrices, and return the model."""
    scale = method.alpha / method.rank
    updates = {id(one.weight): init_update(one, method.rank, scale, method.lora_dropout) for one in chosen}
    return wrap_owners(model, chosen, updates)


def select_matrices(model: nn.Module, targets: Sequence[str], excluded: Collection[int] = ()) -> list[TargetMatrix]:
    """The matrices that targets name, each once; those of the body if none is named."""
    known = [matrix for matrix in find_matrices(model) if id(matrix.weight) not in excluded]
    if targets:
        return [known[at] for at in match_patterns("targets", targets, [matrix.names for matrix in known])]
    chosen = [matrix for matrix in find_body_matrices(model) if id(matrix.weight) not in excluded]
    if not chosen:
        raise SpecError(
            f"there are no matrices for LoRA by default. Name targets; there are: {list_paths(m.path for m in known)}."
        )
    return chosen


def init_update(matrix: TargetMatrix, rank: int, scale: float, dropout: float = 0.0) -> LowRankUpdate:
    """A new update of one matrix, with its initial values."""
    _check_matrix(matrix)
    update = LowRankUpdate(matrix.weight, rank, scale, dropout, matrix.is_transposed)
    if any(isinstance(place.owner, EMBEDDINGS) for place in matrix.locations):
        nn.init.normal_(update.A)  # as the paper's own code has it: one token's row alone has no fan to divide by
    return update


def wrap_owners(model: Module, chosen: Sequence[TargetMatrix], updates: Mapping[int, LowRankUpdate]) -> Module:
    """Put every module that owns chosen matrices behind a wrapper that holds their updates."""
    owners: defaultdict[nn.Module, dict[str, LowRankUpdate]] = defaultdict(dict)
    for matrix in chosen:
        for place in matrix.locations:
            owners[place.owner][place.name] = updates[id(matrix.weight)]
    wrappers = {owner: _wrapper(owner, updates) for owner, updates in owners.items()}
    for owner, wrapper in wrappers.items():
        for part in (wrapper, *owners[owner].values()):
            part.training = owner.training
    return replace_modules(model, wrappers)


def check_rank(chosen: Sequence[TargetMatrix], rank: int) -> None:
    """Refuse a rank that is more than some matrix can have."""
    low = min(chosen, key=lambda matrix: min(matrix.weight.shape))
    most = min(low.weight.shape)
    if rank > most:
        rows, columns = low.weight.shape
        raise SpecError(
            f"rank = {rank} is more than {low.path} of {rows} × {columns} can have. "
            f"Take rank={most} or less, or leave that matrix out of targets."
        )


def _wrapper(owner: nn.Module, updates: dict[str, LowRankUpdate]) -> LoraWrapper:
    alone = updates.get("weight") if len(updates) == 1 else None
    if alone and is_linear(owner):
        return LoraLinear(owner, alone)
    if alone and isinstance(owner, nn.Embedding):
        return LoraEmbedding(owner, alone)
    return LoraMatrices(owner, updates)


def _check_matrix(matrix: TargetMatrix) -> None:
    for place in matrix.locations:
        if (norm := getattr(place.owner, "max_norm", None)) is not None:
            raise SpecError(
                f"{place.path} has max_norm = {norm}: it changes its own matrix whenever it is read, so that the "
                "matrix cannot stay frozen. Set max_norm=None, or leave it out of targets."
            )
    if len({is_conv1d(place.owner) for place in matrix.locations}) > 1:
        names = ", ".join(place.parameter_path for place in matrix.locations)
        raise SpecError(f"{names} are one matrix, which some read transposed: one update cannot serve both.")
