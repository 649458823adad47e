"""The weights of a model: by name, in a file, and laid out and called such that decoding is fast."""

import math
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import chain
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from lemma.models.base import HOOKS, has_global_hooks

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
