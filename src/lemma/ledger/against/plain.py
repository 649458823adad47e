"""A module that any tool can run: one tensor in, and only tensors out."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lemma.ledger.subject import Inputs

INSIDE = "module"


class Plain(nn.Module):
    """Runs a module on inputs of its own, since some tools pass one tensor only and some trace only tensors.

    Tools see the module itself, under the name `module`, called as ever. Some write what they count on the parts, as
    `__flops__`, and take it away at the end: it is `noted` here while it is there.
    """

    def __init__(self, module: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.module, self.inputs = module, inputs
        self.noted: dict[str, float] = {}

    def forward(self, signal: Tensor) -> tuple[Tensor, ...]:
        """Run the module, whatever was passed in."""
        outputs = self.module(*self.inputs.positional, **self.inputs.named)
        self.noted = {path: part.__dict__.get("__flops__", 0) for path, part in self.module.named_modules()}
        return tuple(_tensors(outputs))

    @property
    def signal(self) -> Tensor:
        """Something to pass in."""
        return torch.zeros(1)


def path_within(path: str) -> str | None:
    """The path of a part within the module; None for what is around it.

    >>> path_within("module.layers.0"), path_within("module"), path_within("")
    ('layers.0', '', None)
    """
    first, _, rest = path.partition(".")
    return rest if first == INSIDE else None


def _tensors(outputs: Any) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, dict):
        yield from _tensors(list(outputs.values()))
    elif isinstance(outputs, (tuple, list)):
        for output in outputs:
            yield from _tensors(output)
