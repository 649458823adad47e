"""Adapt any model: freeze it, then let a part of it, or something beside it, learn (problem E5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from torch import nn

from lemma.adaptation.bottleneck import has_adapter
from lemma.adaptation.lora import chosen_matrices, put_updates, refuse_rank
from lemma.adaptation.patterns import fitted
from lemma.adaptation.placement import put_adapters
from lemma.adaptation.tree import besides
from lemma.errors import SpecError
from lemma.spec import Adapters, Full, Lora, Method

Module = TypeVar("Module", bound=nn.Module)


class Learned(NamedTuple):
    """A parameter that learns: its path and its shape."""

    path: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Adaptation(Generic[Module]):
    """An adapted model, and what was done to it."""

    model: Module
    """The model that was given, changed in place (if it was a single matrix or layer, the wrapper now around it)."""
    method: Method
    places: tuple[str, ...]
    """The paths, in the plain model, of what got something beside or behind it."""

    @property
    def learned(self) -> list[Learned]:
        """Every parameter that learns."""
        return trainable(self.model)

    @property
    def number(self) -> int:
        """How many numbers learn."""
        return trainable_number(self.model)

    @property
    def bytes(self) -> int:
        """The bytes a task needs beside its base: those of what learns."""
        return trainable_bytes(self.model)

    def __str__(self) -> str:
        whole = sum(parameter.numel() for parameter in self.model.parameters())
        share = f" ({self.number / whole:.2%})" if whole else ""
        return f"{self.method.kind}: {self.number:,} of {whole:,} numbers learn{share}, {self.bytes:,} bytes"


def adapt_model(
    model: Module, method: Method, learn: Sequence[str] = (), *, any_rank: bool = False
) -> Adaptation[Module]:
    """Freeze a model, and let learn what a method says; `learn` are patterns of parameters that learn whatever it is.

    Everything happens in place, and `requires_grad` says what learns afterwards; if it fails, nothing has changed. With
    `any_rank` a rank may be more than matrices can have: for the ledger, which probes at small sizes.

    >>> adapt_model(nn.Sequential(nn.Linear(200, 50, bias=False)), Lora(rank=5)).number
    1250
    """
    refuse_adapted(model)
    own, learned = list(model.parameters()), named_parameters(model, learn)
    places: list[str] = []
    if isinstance(method, Lora):
        chosen = chosen_matrices(model, method.targets, learned)
        if not any_rank:
            refuse_rank(chosen, method.rank)
        model, places = put_updates(model, method, chosen), [matrix.path for matrix in chosen]
    elif isinstance(method, Adapters):
        places = put_adapters(model, method)
    for parameter in own:
        grows = isinstance(method, Full) or id(parameter) in learned
        parameter.requires_grad_(grows and parameter.is_floating_point())
    return Adaptation(model, method, tuple(places))


def named_parameters(model: nn.Module, patterns: Sequence[str]) -> set[int]:
    """The identities of the parameters whose paths some pattern fits."""
    paths: dict[int, list[str]] = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        paths.setdefault(id(parameter), []).append(path)
    known = list(paths)
    return {known[at] for at in fitted("learn", patterns, list(paths.values()))}


def trainable(model: nn.Module) -> list[Learned]:
    """Every parameter that learns, a tied one once."""
    return [Learned(path, tuple(p.shape)) for path, p in model.named_parameters() if p.requires_grad]


def trainable_number(model: nn.Module) -> int:
    """How many numbers learn."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def trainable_bytes(model: nn.Module) -> int:
    """The bytes of what learns, which is what an adapted run stores."""
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)


def refuse_adapted(model: nn.Module) -> None:
    """Refuse a model that has something beside or behind its modules already."""
    if besides(model) or any(map(has_adapter, model.modules())):
        raise SpecError("this model is adapted already. Take merged(model) of one with LoRA, or the plain base.")
