"""Translation by beam search; a beam of 1 is greedy: the likeliest token, always."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np
import torch

from lemma.errors import InputError
from lemma.generation.hypotheses import Hypotheses, Translation
from lemma.generation.kinds import refuse_type
from lemma.models import EncoderDecoderModel, evaluating
from lemma.spec import MARKS

SUMS_AT_ONCE = 2**24  # scores of all candidates of a batch: 128 MB in float64
LANES_AT_ONCE = 512


@dataclass(frozen=True)
class Beam:
    """How many beginnings to keep side by side, and how to compare translations of unlike lengths.

    Translations are compared by Σ log p / length^length_penalty: 0 takes the likeliest, 1 the one with the likeliest
    tokens on average, more favours longer ones.
    """

    beam: int = 1
    length_penalty: float = 1.0
    tokens: int | None = None
    """The most tokens to write, <end> included; the model's context if unset, and never more."""

    def __post_init__(self) -> None:
        refuse_type("beam", self.beam, Integral, "a whole number from 1 up")
        refuse_type("length_penalty", self.length_penalty, Real, "a number from 0 up")
        if self.tokens is not None:
            refuse_type("tokens", self.tokens, Integral, "a whole number from 1 up; leave it out for the context")
        if self.beam < 1:
            raise InputError(f"beam = {self.beam} is less than 1: 1 always takes the likeliest token, 4 is usual.")
        if not 0 <= self.length_penalty < math.inf:
            raise InputError(f"length_penalty = {self.length_penalty} is not a number from 0 (the likeliest) up.")
        if self.tokens is not None and self.tokens < 1:
            raise InputError(f"tokens = {self.tokens} is less than 1; leave it out to write up to the context.")


@torch.inference_mode()
def translate(
    model: EncoderDecoderModel, sources: Sequence[Sequence[int] | np.ndarray], settings: Beam | None = None
) -> list[Translation]:
    """Translate sources, given as ids without marks, each on its own whatever else is in the batch.

    A beam may lose the greedy translation on its way and end with a worse one. So that it never does, the greedy one
    competes too: the normalised score of a wider beam is at least that of a beam of 1.
    """
    settings = settings or Beam()
    rows = [_checked(model, source, number) for number, source in enumerate(sources)]
    with evaluating(model):
        found = _best(model, rows, settings, settings.beam)
        if settings.beam > 1:
            greedy = _best(model, rows, settings, 1)
            found = [max(pair, key=lambda one: one.normalised) for pair in zip(found, greedy, strict=True)]
    return found


def longest_source(model: EncoderDecoderModel) -> int:
    """How many tokens a source may have: the context has <end> in it."""
    return model.spec.context - 1


def _checked(model: EncoderDecoderModel, source: Sequence[int] | np.ndarray, number: int) -> list[int]:
    ids, known = [int(token) for token in source], model.spec.vocabulary - len(MARKS)
    wrong = next((token for token in ids if not 0 <= token < known), None)
    if wrong is not None:
        raise InputError(
            f"source {number}: token {wrong} is not one of 0 to {known - 1}, the tokens that are no marks. "
            "Use the tokenizer the model was trained with."
        )
    if len(ids) > longest_source(model):
        raise InputError(
            f"source {number} has {len(ids)} tokens; with <end> the context of {model.spec.context} has room for "
            f"{longest_source(model)}. Cut it."
        )
    return ids


def _best(model: EncoderDecoderModel, rows: Sequence[list[int]], settings: Beam, beam: int) -> list[Translation]:
    """The best translation of every source, those of like length in one batch."""
    most = min(settings.tokens or model.spec.context, model.spec.context)
    found: dict[int, Translation] = {}
    for batch in _batches([len(row) for row in rows], beam, model.spec.vocabulary):
        search = Hypotheses(model, [rows[number] for number in batch], beam, float(settings.length_penalty), most)
        found |= dict(zip(batch, search.run(), strict=True))
    return [found[number] for number in range(len(rows))]


def _batches(lengths: Sequence[int], beam: int, vocabulary: int) -> Iterator[list[int]]:
    order = sorted(range(len(lengths)), key=lambda number: lengths[number])
    size = max(1, min(SUMS_AT_ONCE // (beam * vocabulary), LANES_AT_ONCE // beam))
    return (order[begin : begin + size] for begin in range(0, len(order), size))
