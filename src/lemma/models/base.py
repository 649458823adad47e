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
        """Draw the model's initial weights in place, except those of a backbone inside it; PyTorch's own by default."""


class Backbone(Model):
    """A model whose output layer reads vectors; a classifier or a text tower can read them too.

    Attributes:
        output_modules: the modules that only come after the vectors.
    """

    output_modules: ClassVar[tuple[str, ...]] = ("output",)

    @property
    def vector_width(self) -> int:
        """Width of the vectors that `vectors` returns, the input width of the output layer."""
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
        """Return the next-token logits of what `vectors` returned: the output layer, then a logit cap if any."""
        return self.get_submodule("output")(vectors)


def count_parameters(model: nn.Module) -> int:
    """Return the number of trainable scalars of a model; a tensor that several modules share counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def init_embedding(embedding: nn.Embedding) -> None:
    """Draw small initial weights of an embedding in place: the functions behind it are then nearly linear."""
    nn.init.normal_(embedding.weight, std=0.1)


def has_global_hooks() -> bool:
    """Return whether a torch hook is registered for all modules of the process."""
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
    """Switch submodules in training mode to evaluation mode inside the context, and back to training mode afterwards.

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
    """Yield the model's device; inside the context dropout and gradients are off, afterwards they are as before."""
    first = next(chain(model.parameters(), model.buffers()), None)
    with evaluating(model), torch.no_grad():
        yield torch.device("cpu") if first is None else first.device


def padding_mask(tokens: Tokens) -> Bool[Tensor, "batch 1 1 time"] | None:
    """Return the attention mask of token ids with −1 as padding, True where a key is visible; None if all are visible.

    Only a CPU is asked whether they are: a GPU would have to be waited for, and compiled code cannot ask. A row's first
    position is always visible, so that a row of padding gives numbers too.
    """
    is_token = tokens >= 0
    if tokens.device.type == "cpu" and not torch.compiler.is_compiling() and bool(is_token.all()):
        return None
    return functional.pad(is_token[:, 1:], (1, 0), value=True)[:, None, None, :]


def trim_padding(tokens: Tokens, max_length: int | None, setting: str) -> Tokens:
    """Return token ids without the columns of padding past `max_length`; raise an error if a text has tokens there.

    Args:
        tokens: ids, (batch, time), −1 as padding at the right end of a row.
        max_length: the most tokens that the model reads; None for no limit.
        setting: name of the setting with that limit, for the error message.
    """
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
    """Append zero vectors along the time axis up to `length`, in place of the padding that `trim_padding` removed."""
    missing = length - vectors.shape[1]
    return functional.pad(vectors, (0, 0, 0, missing)) if missing else vectors


def tokens_per_batch(device: torch.device, logits_per_token: int = 1) -> int:
    """Return the number of tokens in a batch for which `logits_per_token` logits each fit in a device's memory."""
    kind = "cpu" if device.type == "cpu" else "cuda"
    return max(1, min(MAX_TOKENS[kind], MAX_LOGITS[kind] // logits_per_token))


# Weights: by name, in a file, and laid out and called such that decoding is fast

LARGE_MATRIX = 2**18  # numbers; smaller ones stay in the processor's cache, where their order matters little
SIMPLE_MODULES = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Dropout)
TORCH_ATTRIBUTES = frozenset(vars(nn.Module())) - {"training"}  # what every module has for torch's own use


def named_weights(model: nn.Module, include_frozen: bool = False) -> dict[str, Tensor]:
    """Return the trainable tensors and buffers of a model by name, not copied; a tied tensor under its first name only.

    Args:
        include_frozen: also return parameters that do not require gradients, such as an adapted model's base.
    """
    first_names: dict[int, str] = {}
    tensors = model.state_dict(keep_vars=True)
    for name, tensor in tensors.items():
        if include_frozen or tensor.requires_grad or not isinstance(tensor, nn.Parameter):
            first_names.setdefault(id(tensor), name)
    return {name: tensors[name].detach() for name in first_names.values()}


def save_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    """Write tensors by name and a header of strings to a new safetensors file at `path`; may raise OSError."""
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
    """Change the memory layout of a CPU model's large matrices with rows ≥ columns to column-major, in place.

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
    """Return whether reading a matrix from memory takes longer than starting threads to multiply by it."""
    is_dense = weight.is_contiguous() or weight.t().is_contiguous()
    return weight.device.type == "cpu" and weight.numel() >= LARGE_MATRIX and is_dense


def threaded_linear(
    weight: Float[Tensor, "rows columns"], bias: Float[Tensor, " rows"] | None, vectors: Float[Tensor, "*batch columns"]
) -> Float[Tensor, "*batch rows"]:
    """Return vectors · weightᵀ + bias, computed by all threads; for a single vector MKL would use one thread.

    A column-major weight is split by inputs, and the threads' sums are added; a row-major one is split by outputs.
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
    """Return a plain function that computes what a linear, layer norm or embedding module does; None for others."""
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
    """Return a class with the methods of a module class but without `nn.Module`; `fast_copy` makes its instances."""
    return type(kind.__name__, (), _members(kind) | {"__call__": kind.forward})


@cache
def _calls_super(kind: type[nn.Module]) -> bool:
    """Return whether a method of a module class uses `super()` or `__class__`, which a copied class cannot have."""
    functions = [member for member in _members(kind).values() if isinstance(member, FunctionType)]
    return any("__class__" in function.__code__.co_freevars for function in functions)


def _members(kind: type[nn.Module]) -> dict[str, Any]:
    """Return name → member of what a module class and its parents below `nn.Module` define, without dunders."""
    parents = [parent for parent in reversed(kind.__mro__) if parent not in nn.Module.__mro__]
    members = {name: value for parent in parents for name, value in vars(parent).items()}
    return {name: value for name, value in members.items() if not name.startswith(("__", "_abc_"))}
