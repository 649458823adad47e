"""The base classes of models, and what all models share: padding, evaluation mode, hooks."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import ClassVar
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
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
        """Draw the initial weights but those of a model inside; PyTorch's own unless a family says otherwise."""


class Backbone(Model):
    """A model whose output layer reads vectors; a classifier or a text tower can read them too.

    Attributes:
        output_modules: the modules that only come after the vectors.
    """

    output_modules: ClassVar[tuple[str, ...]] = ("output",)

    @property
    def vector_width(self) -> int:
        """Width of its vectors."""
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
        """Apply the output layer, and what comes after it, to vectors."""
        return self.get_submodule("output")(vectors)


def count_parameters(model: nn.Module) -> int:
    """Count the trainable numbers of a model; a tied tensor counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def init_embedding(embedding: nn.Embedding) -> None:
    """Draw a small initial embedding, so that the functions behind it are nearly linear at first."""
    nn.init.normal_(embedding.weight, std=0.1)


def has_global_hooks() -> bool:
    """Return whether hooks for all modules are registered."""
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
    """Switch the modules that are in training mode to evaluation mode, and just those back.

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
    """Switch dropout and gradients off, yield the model's device, and leave the model as it was."""
    first = next(chain(model.parameters(), model.buffers()), None)
    with evaluating(model), torch.no_grad():
        yield torch.device("cpu") if first is None else first.device


def padding_mask(tokens: Tokens) -> Bool[Tensor, "batch 1 1 time"] | None:
    """Return the mask of visible positions, for every query of every head; None where all are visible.

    Only a CPU is asked whether they are: a GPU would have to be waited for, and compiled code cannot ask. A row's first
    position is always visible, so that a row of padding gives numbers too.
    """
    is_token = tokens >= 0
    if tokens.device.type == "cpu" and not torch.compiler.is_compiling() and bool(is_token.all()):
        return None
    return functional.pad(is_token[:, 1:], (1, 0), value=True)[:, None, None, :]


def trim_padding(tokens: Tokens, max_length: int | None, setting: str) -> Tokens:
    """Cut padding off past the longest sequence that a model reads; refuse tokens there."""
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
    """Append zeros where padding was cut off."""
    missing = length - vectors.shape[1]
    return functional.pad(vectors, (0, 0, 0, missing)) if missing else vectors


def tokens_per_batch(device: torch.device, logits_per_token: int = 1) -> int:
    """Return how many tokens to read at once, if each gives this many logits."""
    kind = "cpu" if device.type == "cpu" else "cuda"
    return max(1, min(MAX_TOKENS[kind], MAX_LOGITS[kind] // logits_per_token))
