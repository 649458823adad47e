"""The base classes of models, and what all models share: padding, evaluation mode, hooks, weights."""

import math
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from itertools import chain
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as torch_module

from lemma.errors import InputError
from lemma.layers.state import State
from lemma.spec.models import LanguageSpec

Tokens = Int[Tensor, "batch time"]
"""Rows of tokens; shorter rows have −1 at their right end."""
MAX_TOKENS = {"cpu": 4096, "cuda": 65_536}  # read at once, where their logits are few
MAX_LOGITS = {"cpu": 2**23, "cuda": 2**27}  # held at once: 32 and 512 MB in float32
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Model(nn.Module):
    """A model of any family.

    Attributes:
        stateful: training carries the state from batch to batch.
    """

    stateful: ClassVar[bool] = False

    def init_weights(self) -> None:
        """Draw the initial weights but those of a model inside; PyTorch's own unless a family says otherwise."""


class Backbone(Model):
    """A model whose output layer reads vectors; a classifier or a text tower can read them too.

    Attributes:
        output_modules: the modules that only come after the vectors.
    """

    output_modules: ClassVar[tuple[str, ...]] = ("output",)

    @property
    def vector_width(self) -> int:
        """Width of its vectors."""
        raise NotImplementedError(f"{type(self).__name__} has no vectors.")

    def vectors(self, tokens: Tokens) -> Float[Tensor, "batch time vector_width"]:
        """Return the input of the output layer at each position.

        A token of −1 is padding: at the right end of a row, visible to no other position, and with vectors that mean
        nothing.
        """
        raise NotImplementedError(f"{type(self).__name__} has no vectors.")


class LanguageModel(Backbone, ABC):
    """A model of the next token: `logits, state = model(tokens, state)`.

    Feeding tokens one by one through the state gives the logits of feeding them at once.
    """

    def __init__(self, spec: LanguageSpec) -> None:
        super().__init__()
        self.spec = spec

    @property
    @abstractmethod
    def receptive_field(self) -> int | None:
        """Number of latest tokens on which the logits depend; None for all of them."""

    @abstractmethod
    def forward(
        self, tokens: Tokens, state: State | None = None
    ) -> tuple[Float[Tensor, "batch time vocabulary"], State]:
        """Return the logits of the token after each of `tokens`, and the state after all of them."""

    def logits_of(self, vectors: Float[Tensor, "batch time vector_width"]) -> Float[Tensor, "batch time vocabulary"]:
        """Apply the output layer, and what comes after it, to vectors."""
        return self.get_submodule("output")(vectors)


def count_parameters(model: nn.Module) -> int:
    """Count the trainable numbers of a model; a tied tensor counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def init_embedding(embedding: nn.Embedding) -> None:
    """Draw a small initial embedding, so that the functions behind it are nearly linear at first."""
    nn.init.normal_(embedding.weight, std=0.1)


def has_global_hooks() -> bool:
    """Return whether hooks for all modules are registered."""
    return any(getattr(torch_module, f"_global{name}") for name in HOOKS)


def has_hooks(model: nn.Module) -> bool:
    """Return whether a module of a model has hooks or a replaced `forward`, which fast copies and graphs would skip."""
    return has_global_hooks() or any(
        "forward" in vars(module) or any(getattr(module, name) for name in HOOKS) for module in model.modules()
    )


EVALUATING: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()  # open `evaluating` contexts of a training module
EVALUATING_LOCK = threading.Lock()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch the modules that are in training mode to evaluation mode, and just those back.

    Contexts of one model may overlap in any order, as those of two open streams do: the last to end switches back.
    """
    with EVALUATING_LOCK:
        training = [module for module in model.modules() if module.training or module in EVALUATING]
        for module in training:
            module.training, EVALUATING[module] = False, EVALUATING.get(module, 0) + 1
    try:
        yield
    finally:
        with EVALUATING_LOCK:
            for module in training:
                EVALUATING[module] -= 1
                if not EVALUATING[module]:
                    del EVALUATING[module]
                    module.training = True


@contextmanager
def measuring(model: nn.Module) -> Iterator[torch.device]:
    """Switch dropout and gradients off, yield the model's device, and leave the model as it was."""
    first = next(chain(model.parameters(), model.buffers()), None)
    with evaluating(model), torch.no_grad():
        yield torch.device("cpu") if first is None else first.device


def padding_mask(tokens: Tokens) -> Bool[Tensor, "batch 1 1 time"] | None:
    """Return the mask of visible positions, for every query of every head; None where all are visible.

    Only a CPU is asked whether they are: a GPU would have to be waited for, and compiled code cannot ask. A row's first
    position is always visible, so that a row of padding gives numbers too.
    """
    is_token = tokens >= 0
    if tokens.device.type == "cpu" and not torch.compiler.is_compiling() and bool(is_token.all()):
        return None
    return functional.pad(is_token[:, 1:], (1, 0), value=True)[:, None, None, :]


def trim_padding(tokens: Tokens, max_length: int | None, setting: str) -> Tokens:
    """Cut padding off past the longest sequence that a model reads; refuse tokens there."""
    if max_length is None or tokens.shape[1] <= max_length:
        return tokens
    if bool((tokens[:, max_length:] >= 0).any()):
        longest = int((tokens >= 0).sum(1).max())
        raise InputError(
            f"{setting} = {max_length} is the most that this model reads at once; got {longest} tokens. "
            "Cut the text, or build the model with a longer context."
        )
    return tokens[:, :max_length]


def pad_to_length(vectors: Float[Tensor, "batch trimmed width"], length: int) -> Float[Tensor, "batch time width"]:
    """Append zeros where padding was cut off."""
    missing = length - vectors.shape[1]
    return functional.pad(vectors, (0, 0, 0, missing)) if missing else vectors


def tokens_per_batch(device: torch.device, logits_per_token: int = 1) -> int:
    """Return how many tokens to read at once, if each gives this many logits."""
    kind = "cpu" if device.type == "cpu" else "cuda"
    return max(1, min(MAX_TOKENS[kind], MAX_LOGITS[kind] // logits_per_token))


# Weights: by name, in a file, and laid out and called such that decoding is fast

LARGE_MATRIX = 2**18  # numbers; smaller ones stay in the processor's cache, where their order matters little
SIMPLE_MODULES = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Dropout)
TORCH_ATTRIBUTES = frozenset(vars(nn.Module())) - {"training"}  # what every module has for torch's own use


def named_weights(model: nn.Module, include_frozen: bool = False) -> dict[str, Tensor]:
    """Return the trainable tensors and buffers of a model by name, not copied; a tied tensor under its first name.

    Frozen parameters are those of a base, and only included if asked for.
    """
    first_names: dict[int, str] = {}
    tensors = model.state_dict(keep_vars=True)
    for name, tensor in tensors.items():
        if include_frozen or tensor.requires_grad or not isinstance(tensor, nn.Parameter):
            first_names.setdefault(id(tensor), name)
    return {name: tensors[name].detach() for name in first_names.values()}


def save_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    """Write a safetensors file with the rights that the umask gives; a disk that refuses is an OSError."""
    path.touch()
    mode = path.stat().st_mode  # the library itself lets nobody else read its files
    try:
        save_file(dict(tensors), path, dict(header))
    except SafetensorError as error:
        if number := re.search(r"os error (\d+)", str(error)):  # such as a full disk
            raise OSError(int(number[1]), str(error), str(path)) from None
        raise
    path.chmod(mode)


def weight_versions(model: nn.Module) -> tuple[Any, ...]:
    """Return a key that changes when a weight or a buffer of a model is replaced, moved or written to in place.

    Writes through `.data` and by fused optimizers do not change it.
    """
    tensors = chain(model.parameters(), model.buffers())
    return tuple((tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version) for tensor in tensors)


def store_column_major(model: nn.Module, copy_values: bool = True) -> None:
    """Store large matrices on a CPU that have no fewer rows than columns in column-major order.

    Multiplying one vector, as in decoding, takes the time of reading the matrix. With MKL that is 1.1 to 2 times faster
    along columns unless rows are longer; for many vectors the order hardly matters.

    Args:
        copy_values: False for weights that are not filled in yet.
    """
    for module in model.modules():
        if not isinstance(module, nn.Linear) or module.weight.device.type != "cpu":
            continue
        weight = module.weight.data
        rows, columns = weight.shape
        if rows >= columns and weight.numel() >= LARGE_MATRIX and weight.stride(0) != 1:
            column_major = weight.new_empty(columns, rows).t()
            module.weight.data = column_major.copy_(weight) if copy_values else column_major


def benefits_from_threads(weight: Tensor) -> bool:
    """Return whether reading a matrix takes longer than starting the threads."""
    is_dense = weight.is_contiguous() or weight.t().is_contiguous()
    return weight.device.type == "cpu" and weight.numel() >= LARGE_MATRIX and is_dense


def threaded_linear(
    weight: Float[Tensor, "rows columns"], bias: Float[Tensor, " rows"] | None, vectors: Float[Tensor, "*batch columns"]
) -> Float[Tensor, "*batch rows"]:
    """Apply a linear map with all threads also to a single vector, for which MKL uses one of them.

    Each thread multiplies its part of the inputs, and the results are added; row-major, each has its part of outputs.
    """
    rows, columns = weight.shape
    is_column_major = weight.stride(0) == 1
    parts = math.gcd(torch.get_num_threads(), columns if is_column_major else rows)
    if parts == 1 or vectors.numel() != columns:
        return functional.linear(vectors, weight, bias)
    if is_column_major:
        output = torch.bmm(vectors.reshape(parts, 1, -1), weight.t().view(parts, -1, rows)).sum(0)
    else:
        output = torch.bmm(vectors.reshape(1, 1, -1).expand(parts, 1, -1), weight.view(parts, -1, columns).mT)
    output = output.view(*vectors.shape[:-1], rows)
    return output if bias is None else output + bias


def fast_copy(module: nn.Module) -> Any:
    """Return a callable that computes as `module` does, as long as nobody changes the module's tree.

    At batch 1 a small model spends half its time in `nn.Module.__call__` and `__getattr__`. The copy shares the
    parameters and runs the very same `forward`, on objects that have nothing but attributes; large linear layers on a
    CPU read their matrices with all threads. A module that has hooks, a replaced `forward`, or a class that is neither
    ours nor one of torch's simple ones stays as it is, and is called as a module: so hooks and wrapped layers work.

    >>> layer = nn.Linear(3, 2)
    >>> torch.equal(fast_copy(layer)(torch.ones(3)), layer(torch.ones(3)))
    True
    """
    if has_global_hooks():
        return module
    if isinstance(module, nn.ModuleList):
        return [fast_copy(child) for child in module]
    kind = type(module)
    is_supported = kind in SIMPLE_MODULES or (kind.__module__.startswith("lemma.") and not _calls_super(kind))
    if not is_supported or "forward" in vars(module) or any(getattr(module, name) for name in HOOKS):
        return module
    copy = (kind in SIMPLE_MODULES and _as_function(module)) or _make_class(kind)()
    vars(copy).update({name: value for name, value in vars(module).items() if name not in TORCH_ATTRIBUTES})
    vars(copy).update(module._parameters | module._buffers)
    vars(copy).update({name: None if child is None else fast_copy(child) for name, child in module._modules.items()})
    return copy


def _as_function(module: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """Return what torch's most frequent modules compute as a function, which Python calls faster than any object."""
    if isinstance(module, nn.Linear):
        weight, bias = module.weight, module.bias
        if benefits_from_threads(weight):
            return partial(threaded_linear, weight, bias)
        return lambda vectors: functional.linear(vectors, weight, bias)
    if isinstance(module, nn.LayerNorm):
        shape, scale, shift, epsilon = module.normalized_shape, module.weight, module.bias, module.eps
        return lambda vectors: torch.layer_norm(vectors, shape, scale, shift, epsilon)
    if isinstance(module, nn.Embedding) and module.max_norm is None:
        table = module.weight
        return lambda tokens: torch.embedding(table, tokens)
    return None


@cache
def _make_class(kind: type[nn.Module]) -> type:
    """Make a class with a module's methods but without `nn.Module`; its instances are called as modules are."""
    return type(kind.__name__, (), _members(kind) | {"__call__": kind.forward})


@cache
def _calls_super(kind: type[nn.Module]) -> bool:
    functions = [member for member in _members(kind).values() if isinstance(member, FunctionType)]
    return any("__class__" in function.__code__.co_freevars for function in functions)


def _members(kind: type[nn.Module]) -> dict[str, Any]:
    """Return what a class and its parents up to `nn.Module` define, special names left out."""
    parents = [parent for parent in reversed(kind.__mro__) if parent not in nn.Module.__mro__]
    members = {name: value for parent in parents for name, value in vars(parent).items()}
    return {name: value for name, value in members.items() if not name.startswith(("__", "_abc_"))}
