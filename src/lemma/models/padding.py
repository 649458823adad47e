"""Rows of unlike lengths in one batch: −1 stands where nothing is, at the right end only."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from lemma.errors import InputError

Tokens = Int[Tensor, "batch time"]
Seen = Bool[Tensor, "batch 1 1 time"]
"""Which places of each row may be attended to, from every place of every head."""


def seen_of(tokens: Tokens) -> Seen | None:
    """The mask of what is there; None where that is everything.

    Only a CPU is asked whether it is: a GPU would have to be waited for, and compiled code cannot ask. A row's first
    place may always be seen, so that a row of nothing gives numbers too.
    """
    there = tokens >= 0
    if tokens.device.type == "cpu" and not torch.compiler.is_compiling() and bool(there.all()):
        return None
    return functional.pad(there[:, 1:], (1, 0), value=True)[:, None, None, :]


def within(tokens: Tokens, most: int | None, where: str) -> Tokens:
    """Leave out what lies past the longest stretch that a model reads, if that is padding; refuse it if it is not."""
    if most is None or tokens.shape[1] <= most:
        return tokens
    if bool((tokens[:, most:] >= 0).any()):
        longest = int((tokens >= 0).sum(1).max())
        raise InputError(
            f"{where} = {most} is the longest stretch that this model reads at once; got {longest} tokens. "
            "Cut the text, or build the model with a longer context."
        )
    return tokens[:, :most]


def widened(vectors: Float[Tensor, "batch kept width"], time: int) -> Float[Tensor, "batch time width"]:
    """Bring vectors back to as many places as were asked for, with zeros where padding was left out."""
    missing = time - vectors.shape[1]
    return functional.pad(vectors, (0, 0, 0, missing)) if missing else vectors
