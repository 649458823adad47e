"""The shapes of a module's parameters, and the bytes an optimizer keeps for them."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from lemma.ledger.places import Readings, Row


def shapes(module: nn.Module, trainable: bool) -> Readings:
    """Read the shape of every parameter that is, or is not, trained; a tied one stands under its first name."""
    return {
        name: tuple(parameter.shape)
        for name, parameter in module.named_parameters()
        if parameter.requires_grad == trainable
    }


def numbers_together(rows: Sequence[Row]) -> Row:
    """How many numbers tensors of different shapes hold together."""
    return (sum(prod(shape) for shape in rows),)


def tied_names(module: nn.Module) -> dict[str, list[str]]:
    """The other names of every parameter that has more than one."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {first: others for first, *others in names.values() if others}


def optimizer_bytes(module: nn.Module) -> Readings:
    """The bytes that AdamW keeps for every trained parameter, read off its state after one step."""
    named = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    for parameter in named.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW(named.values(), foreach=False)
    optimizer.step()
    return {name: (sum(map(bytes_of, optimizer.state[parameter].values())),) for name, parameter in named.items()}


def bytes_of(value: object) -> int:
    """The bytes of a tensor's elements; nothing else counts."""
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0
