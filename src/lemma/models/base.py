"""What all models share: the contract's types, padding, batched inference."""

import math
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as torch_module

from lemma.errors import InputError
from lemma.layers.state import State
from lemma.spec.models import LanguageSpec

Tokens = Int[Tensor, "batch time"]
"""Rows of tokens; shorter rows have −1 at their right end."""
MAX_TOKENS = {"cpu": 4096, "cuda": 65_536}  # tokens read at once, where their logits are few
MAX_LOGITS = {"cpu": 2**23, "cuda": 2**27}  # logits held at once: 32 and 512 MB in float32


class Backbone(nn.Module):
    """A model whose output layer reads vectors; a classifier or a text tower can read them too."""

    output_modules: ClassVar[tuple[str, ...]] = ("output",)
    """The modules that only come after the vectors."""

    @property
    def vector_width(self) -> int:
        """The width of its vectors."""
        raise NotImplementedError(f"{type(self).__name__} has no vectors.")

    def vectors(self, tokens: Tokens) -> Float[Tensor, "batch time vector_width"]:
        """Return what the output layer would read at each position.

        Where a token is −1 there is padding: at the right end of a row, seen by no other position, and with vectors
        that mean nothing.
        """
        raise NotImplementedError(f"{type(self).__name__} has no vectors.")

    def init_weights(self) -> None:
        """Draw the initial weights; PyTorch's own unless a family says otherwise."""


class LanguageModel(Backbone, ABC):
    """A model of the next token: `logits, state = model(tokens, state)`.

    Feeding tokens one by one through the state gives the logits of feeding them at once.
    """

    stateful: ClassVar[bool] = False
    """Whether training carries the state from batch to batch."""

    def __init__(self, spec: LanguageSpec) -> None:
        super().__init__()
        self.spec = spec

    @property
    @abstractmethod
    def receptive_field(self) -> int | None:
        """How many of the latest tokens the logits depend on; None if all of them."""

    @abstractmethod
    def forward(
        self, tokens: Tokens, state: State | None = None
    ) -> tuple[Float[Tensor, "batch time vocabulary"], State]:
        """Return the logits of the token after each of `tokens`, and the memory of all that was read."""

    def logits_of(self, vectors: Float[Tensor, "batch time vector_width"]) -> Float[Tensor, "batch time vocabulary"]:
        """Return the logits that the output layer, and what comes after it, makes of vectors."""
        return self.get_submodule("output")(vectors)


LARGE_MATRIX = (
    2**18
)  # numbers in a matrix; smaller ones stay in the processor's cache, where their order matters little


def store_column_major(model: nn.Module, copy_values: bool = True) -> None:
    """Bring the large maps of a model on a CPU that have no fewer rows than columns into memory column by column.

    Mapping one vector, as in decoding, takes the time of reading the matrix. With MKL that is 1.1 to 2 times faster
    along columns unless rows are longer; for many vectors the order hardly matters. Weights that are not filled in yet
    are not copied.
    """
    for part in model.modules():
        if not isinstance(part, nn.Linear) or part.weight.device.type != "cpu":
            continue
        weight = part.weight.data
        rows, columns = weight.shape
        if rows >= columns and weight.numel() >= LARGE_MATRIX and weight.stride(0) != 1:
            ordered = weight.new_empty(columns, rows).t()
            part.weight.data = ordered.copy_(weight) if copy_values else ordered


def benefits_from_threads(weight: Tensor) -> bool:
    """Whether a matrix is so large that reading it takes longer than starting the threads."""
    whole = weight.is_contiguous() or weight.t().is_contiguous()
    return weight.device.type == "cpu" and weight.numel() >= LARGE_MATRIX and whole


def threaded_linear(
    weight: Float[Tensor, "rows columns"], bias: Float[Tensor, " rows"] | None, vectors: Float[Tensor, "*batch columns"]
) -> Float[Tensor, "*batch rows"]:
    """The linear map, whose matrix is read by all threads also for a single vector, where MKL uses one of them.

    Each thread maps its share of the inputs, and the results are added; stored by rows, each has its share of outputs.
    """
    rows, columns = weight.shape
    by_columns = weight.stride(0) == 1
    parts = math.gcd(torch.get_num_threads(), columns if by_columns else rows)
    if parts == 1 or vectors.numel() != columns:
        return functional.linear(vectors, weight, bias)
    if by_columns:
        found = torch.bmm(vectors.reshape(parts, 1, -1), weight.t().view(parts, -1, rows)).sum(0)
    else:
        found = torch.bmm(vectors.reshape(1, 1, -1).expand(parts, 1, -1), weight.view(parts, -1, columns).mT)
    found = found.view(*vectors.shape[:-1], rows)
    return found if bias is None else found + bias


def init_embedding(embedding: nn.Embedding) -> None:
    """Draw a small initial embedding, so that the functions behind it are nearly linear at first."""
    nn.init.normal_(embedding.weight, std=0.1)


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


def named_weights(model: nn.Module, include_frozen: bool = False) -> dict[str, Tensor]:
    """Return what a model learns by name, not copied; a tied tensor is there once, under its first name.

    Frozen parameters are those of a base, and only named if asked for.
    """
    first: dict[int, str] = {}
    tensors = model.state_dict(keep_vars=True)
    for name, tensor in tensors.items():
        if include_frozen or tensor.requires_grad or not isinstance(tensor, nn.Parameter):
            first.setdefault(id(tensor), name)
    return {name: tensors[name].detach() for name in first.values()}


def count_parameters(model: nn.Module) -> int:
    """Count the numbers a model learns; a tied tensor counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def weight_versions(model: nn.Module) -> tuple[Any, ...]:
    """Return a key that changes when a weight or a buffer of a model is replaced, moved or written to in place.

    Writes through `.data` and by fused optimizers do not change it.
    """
    tensors = chain(model.parameters(), model.buffers())
    return tuple((one.data_ptr(), 0 if one.is_inference() else one._version) for one in tensors)


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_global_hooks() -> bool:
    """Whether hooks of every module there is are registered."""
    return any(getattr(torch_module, f"_global{name}") for name in HOOKS)


def has_hooks(model: nn.Module) -> bool:
    """Whether a part of a model has hooks or a forward of its own, which copies and replayed steps would pass by."""
    own = (any(getattr(part, name) for name in HOOKS) or "forward" in vars(part) for part in model.modules())
    return has_global_hooks() or any(own)


EVALUATING: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()  # open `evaluating` contexts of a training module
EVALUATING_LOCK = threading.Lock()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch the modules that are in training mode to evaluation mode, and just those back.

    Contexts of one model may overlap in any order, as those of two open streams do: the last to end switches back.
    """
    with EVALUATING_LOCK:
        training = [part for part in model.modules() if part.training or part in EVALUATING]
        for part in training:
            part.training, EVALUATING[part] = False, EVALUATING.get(part, 0) + 1
    try:
        yield
    finally:
        with EVALUATING_LOCK:
            for part in training:
                EVALUATING[part] -= 1
                if not EVALUATING[part]:
                    del EVALUATING[part]
                    part.training = True


@contextmanager
def measuring(model: nn.Module) -> Iterator[torch.device]:
    """Switch dropout and gradients off, give the model's device, and leave the model as it was."""
    first = next(chain(model.parameters(), model.buffers()), None)
    with evaluating(model), torch.no_grad():
        yield torch.device("cpu") if first is None else first.device


def padding_mask(tokens: Tokens) -> Bool[Tensor, "batch 1 1 time"] | None:
    """The mask of what may be attended to, from every position of every head; None where that is everything.

    Only a CPU is asked whether it is: a GPU would have to be waited for, and compiled code cannot ask. A row's first
    position may always be seen, so that a row of padding gives numbers too.
    """
    there = tokens >= 0
    if tokens.device.type == "cpu" and not torch.compiler.is_compiling() and bool(there.all()):
        return None
    return functional.pad(there[:, 1:], (1, 0), value=True)[:, None, None, :]


def trim_padding(tokens: Tokens, max_length: int | None, setting: str) -> Tokens:
    """Leave out what lies past the longest sequence that a model reads, if that is padding; refuse it if it is not."""
    if max_length is None or tokens.shape[1] <= max_length:
        return tokens
    if bool((tokens[:, max_length:] >= 0).any()):
        longest = int((tokens >= 0).sum(1).max())
        raise InputError(
            f"{setting} = {max_length} is the most that this model reads at once; got {longest} tokens. "
            "Cut the text, or build the model with a longer context."
        )
    return tokens[:, :max_length]


def pad_to_length(vectors: Float[Tensor, "batch kept width"], length: int) -> Float[Tensor, "batch time width"]:
    """Bring vectors back to `time` positions, with zeros where padding was left out."""
    missing = length - vectors.shape[1]
    return functional.pad(vectors, (0, 0, 0, missing)) if missing else vectors


def tokens_per_batch(device: torch.device, logits_per_token: int = 1) -> int:
    """How many tokens are read at once, where each gives `logits` logits."""
    kind = "cpu" if device.type == "cpu" else "cuda"
    return max(1, min(MAX_TOKENS[kind], MAX_LOGITS[kind] // logits_per_token))


def batch_by_length(lengths: Int64[np.ndarray, " examples"], max_tokens: int) -> Iterator[Int64[np.ndarray, " some"]]:
    """Examples in groups of similar length, each of about `positions` tokens with its padding.

    >>> [group.tolist() for group in by_length(np.array([5, 1, 9, 2]), positions=10)]
    [[1, 3], [0], [2]]
    """
    order = np.argsort(lengths, kind="stable")
    begin = 0
    for place in range(1, len(order) + 1):
        if place == len(order) or (place + 1 - begin) * lengths[order[place]] > max(max_tokens, lengths[order[place]]):
            yield order[begin:place]
            begin = place
