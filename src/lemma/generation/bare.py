"""A module laid bare for decoding: the same forward methods on plain attributes.

At batch 1 a small model spends half its time in `nn.Module.__call__` and `__getattr__`, not in arithmetic. A bare copy
shares the parameters and runs the very same `forward`, on objects that have nothing but attributes. A module that has
hooks, a forward of its own, or a class that is neither ours nor one of torch's simple ones stays as it is, and is
called as a module: so hooks and wrapped layers go on working.
"""

from functools import cache
from types import FunctionType
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module

SIMPLE = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Dropout)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = tuple(f"_global{name}" for name in HOOKS)
TORCHS = frozenset(vars(nn.Module())) - {"training"}  # what every module has for torch's own use
INSIDE = ("_parameters", "_buffers")


def bare(module: nn.Module) -> Any:
    """Return what computes as `module` does, faster, as long as nobody changes the module's tree.

    >>> import torch
    >>> layer = nn.Linear(3, 2)
    >>> torch.equal(bare(layer)(torch.ones(3)), layer(torch.ones(3)))
    True
    """
    if any(getattr(torch_module, name) for name in GLOBAL_HOOKS):
        return module
    if isinstance(module, nn.ModuleList):
        return [bare(part) for part in module]
    if not _can_be_bared(module):
        return module
    copy = _class_of(type(module))()
    vars(copy).update(_plain(module))
    vars(copy).update({name: part if part is None else bare(part) for name, part in module._modules.items()})
    return copy


def _can_be_bared(module: nn.Module) -> bool:
    kind = type(module)
    known = kind in SIMPLE or (kind.__module__.startswith("lemma.") and not _calls_super(kind))
    return known and "forward" not in vars(module) and not any(getattr(module, name) for name in HOOKS)


def _plain(module: nn.Module) -> dict[str, Any]:
    """The attributes of a module that are no modules."""
    own = {name: value for name, value in vars(module).items() if name not in TORCHS}
    return own | {name: value for inside in INSIDE for name, value in getattr(module, inside).items()}


@cache
def _class_of(kind: type[nn.Module]) -> type:
    """A class of modules without `nn.Module`: an instance is called where a module is."""
    return type(kind.__name__, (), _members(kind) | {"__call__": kind.forward})


@cache
def _calls_super(kind: type[nn.Module]) -> bool:
    functions = [member for member in _members(kind).values() if isinstance(member, FunctionType)]
    return any("__class__" in function.__code__.co_freevars for function in functions)


def _members(kind: type[nn.Module]) -> dict[str, Any]:
    """What a class and its parents up to `nn.Module` define, Python's own names left out."""
    ours = [parent for parent in reversed(kind.__mro__) if parent not in nn.Module.__mro__]
    members = {name: value for parent in ours for name, value in vars(parent).items()}
    return {name: value for name, value in members.items() if not name.startswith(("__", "_abc_"))}
