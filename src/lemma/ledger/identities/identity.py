"""What an identity is to people: names, a sentence, the sizes it may be tried at, and what runs it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lemma.ledger.identities.report import IdentityReport
from lemma.spec import Spec

Module = TypeVar("Module", bound=nn.Module)
Draws = Literal["normal", "uniform", "signs"]
KURTOSIS: dict[str, float] = {"normal": 3.0, "uniform": 1.8, "signs": 1.0}
"""E[x⁴] of the three distributions, each of zero mean and unit variance."""


@dataclass(frozen=True)
class Identity:
    """One identity of the sources."""

    name: str
    words: tuple[str, ...]
    """What else a person may call it."""
    title: str
    sizes: type[Spec]
    run: Callable[[Any], IdentityReport]

    def __str__(self) -> str:
        sizes = " ".join(f"{word}={value}" for word, value in self.sizes().to_dict().items())
        return f"{self.name:<7} {self.words[0]:<15} {self.title}\n{'':<23} {sizes}"


def draw(kind: Draws, shape: tuple[int, ...], generator: torch.Generator) -> Float[Tensor, "..."]:
    """Independent components of zero mean and unit variance, in float64.

    >>> draw("signs", (3,), torch.Generator().manual_seed(0)).abs().tolist()
    [1.0, 1.0, 1.0]
    """
    if kind == "normal":
        return torch.randn(shape, generator=generator, dtype=torch.float64)
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    return (uniform - 0.5).mul(12**0.5) if kind == "uniform" else (uniform < 0.5).double().mul(2).sub(1)


def drawn(*shape: int, seed: int) -> Float[Tensor, "..."]:
    """Standard normal numbers in float64, fixed by the seed."""
    return draw("normal", shape, torch.Generator().manual_seed(seed))


def gap(one: Tensor, other: Tensor) -> float:
    """The largest difference between two tensors."""
    return float((one - other).abs().max())


@contextmanager
def in_float64() -> Iterator[None]:
    """Build modules and tables in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def filled(make: Callable[[], Module], seed: int) -> Module:
    """Build a module in float64 with normal weights of variance 1/width, fixed by the seed."""
    with in_float64():
        module = make()
    with torch.no_grad():
        for place, parameter in enumerate(module.parameters()):
            parameter.copy_(drawn(*parameter.shape, seed=seed + 1 + place) * parameter.shape[-1] ** -0.5)
    return module.eval()
