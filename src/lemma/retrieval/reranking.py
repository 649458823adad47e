"""The seam of the re-ranker: the first few that were found, looked at once more and put in a new order."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8

from lemma.models import CrossAttentionModel
from lemma.runs import Run

Pairs = tuple[UInt8[np.ndarray, "pairs 3 side side"], Int64[np.ndarray, "pairs time"]]
"""Candidates: pixels and tokens, one of the two the same in every pair."""
Rescore = Callable[[Pairs], Float32[np.ndarray, "pairs"]]


def rescorer(run: Run) -> tuple[Rescore, int] | None:
    """How a run scores pairs of a picture and a text once more, and how many of those found; None if it does not."""
    model = run.module
    if not isinstance(model, CrossAttentionModel):
        return None
    return lambda pairs: cross_scores(model, pairs), model.spec.candidates


def said_again(candidates: int) -> str:
    """How a result says that the first few were ranked once more."""
    return f"the first {candidates} were ranked again, by the second figure: patches look at words"


@torch.inference_mode()
def cross_scores(model: CrossAttentionModel, pairs: Pairs) -> Float32[np.ndarray, "pairs"]:
    """The logit of each pair: the dual encoder's, and what looking at patches and words adds to it."""
    device = next(model.parameters()).device
    pixels, tokens = (torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in pairs)
    logits = model.logits(model.towers.patches(pixels), model.towers.words(tokens), tokens >= 0)
    return logits.float().cpu().numpy()


def reordered(scores: Float32[np.ndarray, "candidates"]) -> list[int]:
    """The places of the candidates in their new order; equal ones stay as they were.

    >>> reordered(np.array([0.1, 0.9, 0.1], dtype=np.float32))
    [1, 0, 2]
    """
    return np.argsort(-scores, kind="stable").tolist()
