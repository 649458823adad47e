"""What an account is about: something that builds a module from the values of its symbols."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from lemma.errors import LedgerError
from lemma.ledger.polynomial import Polynomial

Values = Mapping[str, int]
BATCH = "B"
FILLINGS = {
    "normal_",
    "uniform_",
    "fill_",
    "zero_",
    "xavier_uniform_",
    "kaiming_uniform_",
    "trunc_normal_",
    "constant_",
}


@dataclass(frozen=True)
class Inputs:
    """What a module is called with: positional and named arguments."""

    positional: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """A family of modules, one for each assignment of whole numbers to its symbols.

    `symbols` are the sizes asked for; `feed` makes the inputs of one batch, on the device in whose context it is
    called; without it only parameters can be counted. `running` names the symbols that only the inputs depend on.
    `defaults` says what some symbols are in terms of others where the person has not set them. `ladders` gives the
    values at which a symbol may be probed, where any will not do. `identity` tells this subject from all others, for
    the shelf of finished accounts; without one, nothing is kept.
    """

    name: str
    symbols: Values
    make: Callable[[Values], nn.Module]
    feed: Callable[[Values], Inputs] | None = None
    running: Values = field(default_factory=dict)
    defaults: Mapping[str, Polynomial] = field(default_factory=dict)
    ladders: Mapping[str, Sequence[int]] = field(default_factory=dict)
    identity: str | None = None

    def build(self, values: Values, device: str = "meta") -> nn.Module:
        """Build the module there; a refusal says at which sizes."""
        try:
            with torch.device(device), NoFilling() if device == "meta" else nullcontext():
                module = self.make(values)
        except Exception as error:  # a stranger's constructor may refuse in any way
            raise LedgerError(f"{self.name} cannot be built at {sizes_in_words(values)}: {error}") from error
        if not isinstance(module, nn.Module):
            raise LedgerError(f"{self.name} gives a {type(module).__name__}, where an nn.Module is expected.")
        return module

    def can_be_built(self, values: Values) -> bool:
        """Whether the constructor takes these sizes."""
        try:
            self.build(values)
        except LedgerError:
            return False
        return True

    def inputs(self, values: Values, device: str = "meta") -> Inputs:
        """Make one batch there."""
        if self.feed is None:
            raise LedgerError(f"{self.name} says nothing about its inputs, so only its parameters can be counted.")
        with torch.device(device):
            return self.feed(values)

    def sizes(self, running: bool) -> dict[str, int]:
        """The symbols of the module, and if wanted those of its inputs."""
        return {**self.symbols, **(self.running if running else {})}


class NoFilling(TorchFunctionMode):
    """Leaves out the filling of new tensors: on the meta device there is nothing to fill, yet it takes most time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the tensor of a filling function as it is; call any other."""
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in FILLINGS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def sizes_in_words(values: Values) -> str:
    """Sizes as a person would type them."""
    return " ".join(f"{name}={value}" for name, value in values.items())
