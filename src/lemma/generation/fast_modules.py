"""Copies of modules that are called faster: at batch 1 a small model waits for `nn.Module`, not for arithmetic."""

from collections.abc import Callable
from functools import cache, partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from lemma.models.base import HOOKS, benefits_from_threads, has_global_hooks, threaded_linear

SIMPLE_MODULES = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Dropout)
TORCH_ATTRIBUTES = frozenset(vars(nn.Module())) - {"training"}  # what every module has for torch's own use


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
        return lambda vectors: linear(vectors, weight, bias)
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
