"""From logits to the next token: temperature, top-k and top-p."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lemma.errors import InputError, SpecError


def refuse_type(name: str, value: Any, kind: type, wanted: str) -> None:
    """Refuse a value that is not of a kind; True and False are not numbers.

    >>> refuse_type("temperature", "hot", float, "a number from 0 up")
    Traceback (most recent call last):
    lemma.errors.SpecError: temperature = 'hot' (str) is not a number from 0 up.
    """
    if isinstance(value, bool) or not isinstance(value, kind):
        raise SpecError(f"{name} = {value!r} ({type(value).__name__}) is not {wanted}.")


COLDEST = 1e-200  # so that no logit overflows; below it, no probability changes


@dataclass(frozen=True)
class Sampling:
    """How much to generate and how to choose each token.

    Temperature divides the logits; then top-k keeps the k most likely tokens, and top-p (Holtzman et al. 2020), of
    what is left, the fewest most likely that together reach p. Temperature 0 always takes the most likely token. Of
    equally likely tokens the lowest id comes first.
    """

    tokens: int = 100
    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 1
    stop_at_loop: bool = False
    stop_at_eos: bool = True

    def __post_init__(self) -> None:
        for name in ("tokens", "top_k", "seed"):
            if getattr(self, name) is not None:
                refuse_type(name, getattr(self, name), Integral, "a whole number")
        for name in ("temperature", "top_p"):
            if getattr(self, name) is not None:
                refuse_type(name, getattr(self, name), Real, "a number")
        if self.tokens < 1:
            raise InputError(f"tokens = {self.tokens} is less than 1: say how many tokens to generate.")
        if not 0 <= self.temperature < math.inf:
            raise InputError(f"temperature = {self.temperature} is not a number from 0 (always the most likely) up.")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k = {self.top_k} is less than 1; leave it out to keep every token.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top_p = {self.top_p} is not above 0 and up to 1; leave it out to keep every token.")
        if self.stop_at_loop and not self.greedy:
            raise InputError(f"stop_at_loop needs temperature 0, got {self.temperature}: sampling breaks every loop.")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0


def probabilities(
    logits: Float[Tensor, "rows vocabulary"], temperature: float, top_k: int | None = None, top_p: float | None = None
) -> Float[Tensor, "rows vocabulary"]:
    """Return the probability with which each token is chosen, in float64; temperature 0 puts all on the most likely.

    >>> chances = probabilities(torch.tensor([[1.0, 2.0, 2.0]]).log(), temperature=0.5)
    >>> (9 * chances).round(decimals=6).tolist()  # the squares: 1, 4, 4
    [[1.0, 4.0, 4.0]]
    """
    if temperature == 0:
        return torch.zeros_like(logits, dtype=torch.float64).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    scaled = logits.double() / max(temperature, COLDEST)
    if top_k is not None and top_k < logits.shape[-1]:
        scaled = scaled.masked_fill(~top_k_mask(scaled, top_k), -math.inf)
    chances = scaled.softmax(-1)
    if top_p is None or top_p == 1:
        return chances
    kept = chances * top_p_mask(chances, top_p)
    return kept / kept.sum(-1, keepdim=True)


def top_k_mask(logits: Float[Tensor, "rows vocabulary"], count: int) -> Bool[Tensor, "rows vocabulary"]:
    """Mark the `count` highest logits of each row, of equal ones those with the lowest ids."""
    last = logits.topk(count, sorted=True).values[:, -1:]
    above, tied = logits > last, logits == last
    return above | (tied & (tied.cumsum(-1) <= count - above.sum(-1, keepdim=True)))


def top_p_mask(chances: Float[Tensor, "rows vocabulary"], share: float) -> Bool[Tensor, "rows vocabulary"]:
    """Mark the fewest most likely tokens of each row that together have at least this share of the probability."""
    ordered, order = chances.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    return torch.zeros_like(chances, dtype=torch.bool).scatter_(-1, order, before < share)


def choose(
    logits: Float[Tensor, "rows vocabulary"], settings: Sampling, chances: Sequence[float]
) -> Int[Tensor, "rows"]:
    """Choose each row's next token by a random number from [0, 1): where the cumulative probability passes it.

    >>> choose(torch.tensor([[1.0, 3.0]]).log().repeat(2, 1), Sampling(temperature=1.0), [0.2, 0.3]).tolist()
    [0, 1]
    """
    if settings.greedy:
        return logits.argmax(-1)
    sums = probabilities(logits, settings.temperature, settings.top_k, settings.top_p).cumsum(-1)
    # Scaled by the sum's own end, so that rounding never leads past the last token that can be chosen.
    places = torch.tensor(chances, dtype=torch.float64, device=logits.device)[:, None] * sums[:, -1:]
    return torch.searchsorted(sums, places, right=True).squeeze(-1)
