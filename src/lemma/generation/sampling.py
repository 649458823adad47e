"""Sampling of the next token: bias, penalties, temperature, top-k, top-p and min-p; log-probabilities."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral, Real
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lemma.data.tokenizers import Tokenizer
from lemma.errors import InputError, SpecError, describe_unknown

MIN_TEMPERATURE = 1e-200  # so that no logit overflows; below it, no probability changes
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # what a tokenizer writes for bytes that are not a complete character
PRECISIONS = ("auto", "float32", "bfloat16")
NAN_LOGITS = "the model's logits are not numbers (NaN): its weights are damaged. Use an earlier checkpoint."
Logits = Float[Tensor, "rows vocabulary"]

LIMITS: dict[str, tuple[type, Callable[[Any], bool], str]] = {
    "tokens": (Integral, lambda value: value >= 1, "is less than 1: say how many tokens to generate"),
    "temperature": (Real, lambda value: 0 <= value < math.inf, "is not a number from 0 (always the most likely) up"),
    "top_k": (Integral, lambda value: value >= 1, "is less than 1; leave it out to keep every token"),
    "top_p": (Real, lambda value: 0 < value <= 1, "is not above 0 and up to 1; leave it out to keep every token"),
    "min_p": (Real, lambda value: 0 <= value <= 1, "is not from 0 to 1; leave it out to keep every token"),
    "repetition_penalty": (Real, lambda value: 0 < value < math.inf, "is not above 0; 1 changes nothing"),
    "frequency_penalty": (Real, math.isfinite, "is not a finite number; 0 changes nothing"),
    "presence_penalty": (Real, math.isfinite, "is not a finite number; 0 changes nothing"),
    "no_repeat_ngram": (Integral, lambda value: value >= 1, "is less than 1; leave it out to allow all"),
    "logprobs": (Integral, lambda value: value >= 0, "is less than 0, which records the chosen token alone"),
    "samples": (Integral, lambda value: value >= 1, "is less than 1: say how many texts to write for each prompt"),
    "seed": (Integral, lambda value: True, ""),
}
"""By setting: the type of its value, which values are allowed, and the end of the message about others."""


@dataclass(frozen=True)
class Sampling:
    """Settings of generation: how much to generate, how to sample each token and where to end.

    The logits go through these in the order of transformers, and what is not set changes nothing:

    1. `logit_bias` is added to the logits of single tokens; −inf forbids one.
    2. `repetition_penalty` θ (Keskar et al. 2019): of each token in the prompt or the text so far, a positive logit is
       divided by θ and a negative one multiplied with it.
    3. `frequency_penalty` α and `presence_penalty` β, as OpenAI defines them: a token that was generated c times loses
       α·c, and β if c > 0. The prompt does not count.
    4. `no_repeat_ngram` n: what would complete an n-gram that prompt and text already have is forbidden.
    5. `temperature` divides the logits. 0 takes the most likely token here, of equally likely ones the lowest id.
    6. `top_k` keeps the k most likely tokens.
    7. `top_p` (Holtzman et al. 2020) keeps, of what is left, the fewest most likely that together reach p.
    8. `min_p` (Nguyen et al. 2024) keeps, of what is left, those with at least this fraction of the highest
       probability.

    Attributes:
        stop: strings before which a text ends; searched in the generated text, wherever tokens begin.
        stop_tokens: tokens before which a text ends, besides the tokenizer's own `<eos>`.
        logprobs: record the model's own log-probability of each token, and those of this many most likely ones.
        samples: texts per prompt.
        precision: dtype in which a decoder computes on a GPU once the prompt is read; auto is bfloat16.
    """

    tokens: int = 100
    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    no_repeat_ngram: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: str | Sequence[str] = ()
    stop_tokens: Sequence[int] = ()
    logprobs: int | None = None
    samples: int = 1
    seed: int = 1
    stop_at_loop: bool = False
    stop_at_eos: bool = True
    precision: Literal["auto", "float32", "bfloat16"] = "auto"

    def __post_init__(self) -> None:
        self._check_types()
        for name, (_, is_allowed, message) in LIMITS.items():
            value = getattr(self, name)
            if value is not None and not is_allowed(value):
                raise InputError(f"{name} = {value} {message}.")
        for token, value in self.logit_bias.items():
            if not value < math.inf:
                raise InputError(f"logit_bias[{token}] = {value} is not a number below inf; -inf forbids a token.")
        if "" in self.stop:
            raise InputError("stop = '': an empty stop string would end the text at once. Leave it out.")
        if self.stop_at_loop and not self.is_greedy:
            raise InputError(f"stop_at_loop needs temperature 0, got {self.temperature}: sampling breaks every loop.")
        if self.stop_at_loop and self.history_setting:
            raise InputError(
                f"stop_at_loop: with {self.history_setting} the next token depends on all tokens so far, so that no "
                "loop can be proved. Leave out the one or the other."
            )

    def _check_types(self) -> None:
        """Raise an error for a setting of a wrong type; convert `stop` and `stop_tokens` to tuples in place."""
        for name, (kind, _, _) in LIMITS.items():
            if getattr(self, name) is not None:
                check_type(name, getattr(self, name), kind, "a whole number" if kind is Integral else "a number")
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        check_type("stop", stop, Iterable, "a text or a list of texts")
        check_type("stop_tokens", self.stop_tokens, Iterable, "a list of token ids")
        check_type("logit_bias", self.logit_bias, Mapping, "a mapping from token ids to numbers")
        object.__setattr__(self, "stop", tuple(stop))
        object.__setattr__(self, "stop_tokens", tuple(self.stop_tokens))
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        for text in self.stop:
            check_type("stop", text, str, "a text")
        for token in (*self.stop_tokens, *self.logit_bias):
            check_type("token", token, Integral, "the id of a token")
        for token, value in self.logit_bias.items():
            check_type(f"logit_bias[{token}]", value, Real, "a number")
        if self.precision not in PRECISIONS:
            raise SpecError(describe_unknown("precision", str(self.precision), PRECISIONS))

    def dtype(self, device: torch.device) -> torch.dtype | None:
        """Return the dtype in which `precision` makes a decoder compute on a device; None for that of its weights."""
        if self.precision == "bfloat16" and device.type != "cuda":
            raise InputError(
                "precision = 'bfloat16': only a decoder on a GPU changes its type to generate. Leave it out."
            )
        is_half = self.precision == "bfloat16" or (self.precision == "auto" and device.type == "cuda")
        return torch.bfloat16 if is_half else None

    @property
    def is_greedy(self) -> bool:
        """True at temperature 0: the most likely token is always taken."""
        return self.temperature == 0

    @cached_property
    def history_setting(self) -> str:
        """Name of a setting (n-grams, frequency penalty) by which logits depend on all tokens so far; "" if unset."""
        return "no_repeat_ngram" if self.no_repeat_ngram else "frequency_penalty" if self.frequency_penalty else ""

    @cached_property
    def depends_on_history(self) -> bool:
        """True if a penalty or n-gram setting makes the next token depend on earlier ones directly."""
        return bool(self.history_setting or self.repetition_penalty != 1 or self.presence_penalty)


def check_type(name: str, value: Any, kind: type, expected: str) -> None:
    """Raise an error unless a setting's value is of type `kind`; True and False are not numbers.

    Args:
        name: name of the setting, for the message.
        expected: description of the values it may have, for the message.

    >>> check_type("temperature", "hot", float, "a number from 0 up")
    Traceback (most recent call last):
    lemma.errors.SpecError: temperature = 'hot' (str) is not a number from 0 up.
    """
    if isinstance(value, bool) or not isinstance(value, kind):
        raise SpecError(f"{name} = {value!r} ({type(value).__name__}) is not {expected}.")


def check_tokens(source: str, tokens: Iterable[int], vocabulary: int) -> None:
    """Raise an error if a token id is not in 0 … vocabulary − 1; its message names `source`, such as "prompt 2"."""
    unknown = next((token for token in tokens if not 0 <= token < vocabulary), None)
    if unknown is not None:
        raise InputError(
            f"{source}: token {unknown} is outside the model's vocabulary of {vocabulary}. "
            "Use the tokenizer it was trained with."
        )


def adjust_logits(logits: Logits, settings: Sampling, tokens: Int[Tensor, "rows read"], num_generated: int) -> Logits:
    """Return logits with bias and penalties applied, in the order of the fields of `Sampling`.

    Args:
        logits: the model's own.
        tokens: all tokens before, prompt included; used by settings that depend on history.
        num_generated: how many of these, at the end, were generated.

    >>> logits = torch.tensor([[2.0, -1.0, 3.0]])
    >>> adjust_logits(logits, Sampling(repetition_penalty=2.0), torch.tensor([[0, 1]]), 1).tolist()
    [[1.0, -2.0, 3.0]]
    >>> adjust_logits(logits, Sampling(no_repeat_ngram=2, logit_bias={2: 0.5}), torch.tensor([[0, 1, 0]]), 1).tolist()
    [[2.0, -inf, 3.5]]
    """
    if not settings.logit_bias and not settings.depends_on_history:
        return logits
    logits = logits.double()
    if settings.logit_bias:
        ids = torch.tensor(list(settings.logit_bias), device=logits.device)
        bias = torch.tensor(list(settings.logit_bias.values()), dtype=torch.float64, device=logits.device)
        logits = logits.index_add(1, ids, bias.expand(len(logits), -1))
    if settings.repetition_penalty != 1:
        repeated, penalty = logits.gather(1, tokens), settings.repetition_penalty
        logits = logits.scatter(1, tokens, torch.where(repeated < 0, repeated * penalty, repeated / penalty))
    if settings.frequency_penalty or settings.presence_penalty:
        generated = tokens[:, tokens.shape[1] - num_generated :]
        counts = torch.zeros_like(logits).scatter_add(1, generated, torch.ones_like(generated, dtype=logits.dtype))
        logits = logits - settings.frequency_penalty * counts - settings.presence_penalty * counts.clamp(max=1)
    size = settings.no_repeat_ngram
    if size and tokens.shape[1] >= size:
        ngrams = tokens.unfold(1, size, 1)
        is_repeat = (ngrams[..., :-1] == tokens[:, None, tokens.shape[1] - size + 1 :]).all(-1)
        rows, starts = is_repeat.nonzero(as_tuple=True)
        logits = logits.index_put((rows, ngrams[rows, starts, -1]), logits.new_tensor(-math.inf))
    if bool(logits.isneginf().all(-1).any()):
        forbidding = [name for name in ("no_repeat_ngram", "logit_bias") if getattr(settings, name)]
        raise InputError(
            f"no token is left to choose after {num_generated} generated ones: {' and '.join(forbidding)} forbid all "
            f"{logits.shape[1]}. Generate fewer tokens, or forbid less."
        )
    return logits


def probabilities(
    logits: Logits,
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Float[Tensor, "rows vocabulary"]:
    """Return the probability with which each token is sampled, in float64; temperature 0 puts all on the most likely.

    >>> probs = probabilities(torch.tensor([[1.0, 2.0, 2.0]]).log(), temperature=0.5)
    >>> (9 * probs).round(decimals=6).tolist()  # the squares: 1, 4, 4
    [[1.0, 4.0, 4.0]]
    """
    if temperature == 0:
        return torch.zeros_like(logits, dtype=torch.float64).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    scaled = logits.double() / max(temperature, MIN_TEMPERATURE)
    if top_k is not None and top_k < logits.shape[-1]:
        scaled = scaled.masked_fill(~top_k_mask(scaled, top_k), -math.inf)
    probs = scaled.softmax(-1)
    cut = probs if top_p is None or top_p == 1 else probs * top_p_mask(probs, top_p)
    if min_p:
        cut = cut * (cut >= min_p * cut.amax(-1, keepdim=True))
    return probs if cut is probs else cut / cut.sum(-1, keepdim=True)


def top_k_mask(logits: Logits, count: int) -> Bool[Tensor, "rows vocabulary"]:
    """Return a mask that is True for the `count` highest logits of each row, of equal ones those of the lowest ids."""
    lowest = logits.topk(count, sorted=True).values[:, -1:]
    higher, tied = logits > lowest, logits == lowest
    return higher | (tied & (tied.cumsum(-1) <= count - higher.sum(-1, keepdim=True)))


def top_p_mask(probs: Float[Tensor, "rows vocabulary"], fraction: float) -> Bool[Tensor, "rows vocabulary"]:
    """Return a mask, True for the fewest most likely tokens of each row that together have at least `fraction`."""
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    return torch.zeros_like(probs, dtype=torch.bool).scatter_(-1, order, before < fraction)


def sample_tokens(
    logits: Logits, settings: Sampling, uniforms: Sequence[float] | Float[Tensor, " rows"]
) -> Int[Tensor, " rows"]:
    """Sample each row's next token: the one at which the cumulative probability passes a number from [0, 1).

    Args:
        logits: as `adjust_logits` returns them.
        uniforms: a random number per row; not used at temperature 0.

    >>> sample_tokens(torch.tensor([[1.0, 3.0]]).log().repeat(2, 1), Sampling(temperature=1.0), [0.2, 0.3]).tolist()
    [0, 1]
    """
    if settings.is_greedy:
        return logits.argmax(-1)
    sums = probabilities(logits, settings.temperature, settings.top_k, settings.top_p, settings.min_p).cumsum(-1)
    # Scaled by the last sum, so that rounding never leads past the last possible token.
    if len(uniforms) == 1:
        thresholds = sums[:, -1:] * uniforms[0]
    else:
        thresholds = sums[:, -1:] * torch.as_tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None]
    return torch.searchsorted(sums, thresholds, right=True).squeeze(-1)


@dataclass(frozen=True)
class TokenLogprob:
    """A token with its log-probability in nats: the model's own, before temperature, bias, penalties and cuts."""

    token: int
    logprob: float
    top: tuple["TokenLogprob", ...] = ()  # the most likely tokens at this position, as many as were asked for
    text: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return token, text and log-probability for JSON, and the most likely tokens as "top" if there are any."""
        entry = {"token": self.token, "text": self.text, "logprob": self.logprob}
        return entry | ({"top": [other.to_dict() for other in self.top]} if self.top else {})

    def with_text(self, tokenizer: Tokenizer, previous: Sequence[int] = ()) -> "TokenLogprob":
        """Return a copy in which this token and those in `top` have the text that they add after the `previous` tokens.

        Bytes that are not a complete character are decoded alone.
        """
        text, before = tokenizer.decode([self.token]), tokenizer.decode(previous)
        if tokenizer.kind not in ("byte-pairs", "characters") and before and INCOMPLETE not in before + text:
            both = tokenizer.decode([*previous, self.token])
            text = both[len(before) :] if both.startswith(before) else text
        return replace(self, text=text, top=tuple(other.with_text(tokenizer, previous) for other in self.top))


def token_logprobs(logits: Logits, tokens: Int[Tensor, " rows"], count: int) -> list[TokenLogprob]:
    """Return each row's token with its log-probability, and with the `count` most likely tokens of the row as `top`.

    Of equally likely tokens those with the lowest ids come first.

    >>> [logprob] = token_logprobs(torch.tensor([[1.0, 3.0]]).log(), torch.tensor([0]), 1)
    >>> round(math.exp(logprob.logprob), 6), logprob.top[0].token, round(math.exp(logprob.top[0].logprob), 6)
    (0.25, 1, 0.75)
    """
    logs, ids = logits.double().log_softmax(-1), tokens.unsqueeze(1)
    if count:
        values, top = logs.topk(min(count + 1, logs.shape[1]))
        if values.shape[1] > count and bool((values[:, count - 1] == values[:, count]).any()):
            top = logs.argsort(dim=-1, descending=True, stable=True)  # a tie at the end: the order of all decides
        top = top[:, :count].sort().values
        order = logs.gather(1, top).argsort(dim=-1, descending=True, stable=True)
        ids = torch.cat([ids, top.gather(1, order)], dim=1)
    pairs = zip(ids.tolist(), logs.gather(1, ids).tolist(), strict=True)
    rows = [[TokenLogprob(*pair) for pair in zip(*row, strict=True)] for row in pairs]
    return [replace(chosen, top=tuple(top)) for chosen, *top in rows]
