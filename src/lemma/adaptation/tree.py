"""The tree of modules: one put in the place of another, and the tree as it is without anything beside."""

from collections.abc import Iterator, Mapping
from typing import TypeVar, cast

from torch import nn

from lemma.adaptation.low_rank import Beside

Module = TypeVar("Module", bound=nn.Module)


def put(model: Module, new: Mapping[nn.Module, nn.Module]) -> Module:
    """Put new modules wherever the old ones stand, and return the model: the new one if it was itself an old one."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and child in new:
                parent._modules[name] = new[child]
    return cast(Module, new.get(model, model))


def plain_modules(model: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Every module by the path it has in the plain model; a wrapper stands for its base."""
    seen: set[int] = set()
    waiting = [(path, model)]
    while waiting:
        path, module = waiting.pop(0)
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        inner = module.base if isinstance(module, Beside) else module
        waiting[:0] = [(f"{path}.{name}".lstrip("."), child) for name, child in inner.named_children()]


def besides(model: nn.Module) -> list[tuple[str, Beside]]:
    """Every module that has updates beside it, by its path in the plain model."""
    return [(path, module) for path, module in plain_modules(model) if isinstance(module, Beside)]
