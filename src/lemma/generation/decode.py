"""Generation: read the prompt once, then one token at a time through the state; sampling, and the proof of loops."""

import math
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property, partial
from hashlib import blake2b
from numbers import Integral, Real
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from lemma.data.tokenizers import PRETRAINED, Tokenizer
from lemma.errors import DataError, InputError, SpecError, describe_unknown
from lemma.models.base import HOOKS, LanguageModel, benefits_from_threads, evaluating, has_global_hooks, threaded_linear
from lemma.report.numbers import make_visible
from lemma.report.result import Block, Pre, Result, Table, Text, as_text
from lemma.report.text import wrap_lines

if TYPE_CHECKING:
    from lemma.generation.batching import TextEvent, TokenSequence

# From logits to the next token: bias, penalties, temperature, top-k, top-p and min-p.


def check_type(name: str, value: Any, kind: type, expected: str) -> None:
    """Refuse a value that is not of a kind; True and False are not numbers.

    >>> refuse_type("temperature", "hot", float, "a number from 0 up")
    Traceback (most recent call last):
    lemma.errors.SpecError: temperature = 'hot' (str) is not a number from 0 up.
    """
    if isinstance(value, bool) or not isinstance(value, kind):
        raise SpecError(f"{name} = {value!r} ({type(value).__name__}) is not {expected}.")


MIN_TEMPERATURE = 1e-200  # so that no logit overflows; below it, no probability changes


@dataclass(frozen=True)
class Sampling:
    """How much to generate, how to choose each token and where to end.

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
    8. `min_p` (Nguyen et al. 2024) keeps, of what is left, those with at least this share of the highest probability.
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
    """Texts before which a text ends; looked for in what is generated, wherever tokens begin."""
    stop_tokens: Sequence[int] = ()
    """Tokens before which a text ends, besides the tokenizer's own `<eos>`."""
    logprobs: int | None = None
    """Record the model's own log-probability of each token, and those of this many most likely ones next to it."""
    samples: int = 1
    """Texts for each prompt."""
    seed: int = 1
    stop_at_loop: bool = False
    stop_at_eos: bool = True
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """The type in which a decoder computes on a GPU once the prompt is read: bfloat16 if it is left to auto."""

    def __post_init__(self) -> None:
        for name in ("tokens", "top_k", "no_repeat_ngram", "logprobs", "samples", "seed"):
            if getattr(self, name) is not None:
                check_type(name, getattr(self, name), Integral, "a whole number")
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"):
            if getattr(self, name) is not None:
                check_type(name, getattr(self, name), Real, "a number")
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
            if not value < math.inf:
                raise InputError(f"logit_bias[{token}] = {value} is not a number below inf; -inf forbids a token.")
        if self.precision not in ("auto", "float32", "bfloat16"):
            raise SpecError(describe_unknown("precision", str(self.precision), ("auto", "float32", "bfloat16")))
        if self.tokens < 1:
            raise InputError(f"tokens = {self.tokens} is less than 1: say how many tokens to generate.")
        if not 0 <= self.temperature < math.inf:
            raise InputError(f"temperature = {self.temperature} is not a number from 0 (always the most likely) up.")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k = {self.top_k} is less than 1; leave it out to keep every token.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top_p = {self.top_p} is not above 0 and up to 1; leave it out to keep every token.")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise InputError(f"min_p = {self.min_p} is not from 0 to 1; leave it out to keep every token.")
        if not 0 < self.repetition_penalty < math.inf:
            raise InputError(f"repetition_penalty = {self.repetition_penalty} is not above 0; 1 changes nothing.")
        for name in ("frequency_penalty", "presence_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise InputError(f"{name} = {getattr(self, name)} is not a finite number; 0 changes nothing.")
        if self.no_repeat_ngram is not None and self.no_repeat_ngram < 1:
            raise InputError(f"no_repeat_ngram = {self.no_repeat_ngram} is less than 1; leave it out to allow all.")
        if "" in self.stop:
            raise InputError("stop = '': an empty stop string would end the text at once. Leave it out.")
        if self.logprobs is not None and self.logprobs < 0:
            raise InputError(f"logprobs = {self.logprobs} is less than 0, which records the chosen token alone.")
        if self.samples < 1:
            raise InputError(f"samples = {self.samples} is less than 1: say how many texts to write for each prompt.")
        if self.stop_at_loop and not self.is_greedy:
            raise InputError(f"stop_at_loop needs temperature 0, got {self.temperature}: sampling breaks every loop.")
        if self.stop_at_loop and self.history_setting:
            raise InputError(
                f"stop_at_loop: with {self.history_setting} the next token depends on all tokens so far, so that no loop "
                "can be proved. Leave out the one or the other."
            )

    def dtype(self, device: torch.device) -> torch.dtype | None:
        """The type in which a decoder computes on a device; None is that of its weights."""
        if self.precision == "bfloat16" and device.type != "cuda":
            raise InputError(
                "precision = 'bfloat16': only a decoder on a GPU changes its type to generate. Leave it out."
            )
        half = self.precision == "bfloat16" or (self.precision == "auto" and device.type == "cuda")
        return torch.bfloat16 if half else None

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0

    @cached_property
    def history_setting(self) -> str:
        """The setting that depends on all tokens so far, so that no state is ever the same again; empty without one."""
        return "no_repeat_ngram" if self.no_repeat_ngram else "frequency_penalty" if self.frequency_penalty else ""

    @cached_property
    def depends_on_history(self) -> bool:
        """Whether the next token depends on earlier ones also past the model's own state."""
        return bool(self.history_setting or self.repetition_penalty != 1 or self.presence_penalty)


def adjust_logits(
    logits: Float[Tensor, "rows vocabulary"], settings: Sampling, tokens: Int[Tensor, "rows read"], num_generated: int
) -> Float[Tensor, "rows vocabulary"]:
    """Apply bias and penalties, in the order of `Sampling`; temperature 0 takes the highest of what this returns.

    Args:
        logits: The model's own.
        read: The tokens before, of the prompt too; used by what looks back.
        generated: How many of these, at the end, were generated.

    >>> logits = torch.tensor([[2.0, -1.0, 3.0]])
    >>> adjusted(logits, Sampling(repetition_penalty=2.0), torch.tensor([[0, 1]]), 1).tolist()
    [[1.0, -2.0, 3.0]]
    >>> adjusted(logits, Sampling(no_repeat_ngram=2, logit_bias={2: 0.5}), torch.tensor([[0, 1, 0]]), 1).tolist()
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
        found, penalty = logits.gather(1, tokens), settings.repetition_penalty
        logits = logits.scatter(1, tokens, torch.where(found < 0, found * penalty, found / penalty))
    if settings.frequency_penalty or settings.presence_penalty:
        new = tokens[:, tokens.shape[1] - num_generated :]
        counts = torch.zeros_like(logits).scatter_add(1, new, torch.ones_like(new, dtype=logits.dtype))
        logits = logits - settings.frequency_penalty * counts - settings.presence_penalty * counts.clamp(max=1)
    size = settings.no_repeat_ngram
    if size and tokens.shape[1] >= size:
        ngrams = tokens.unfold(1, size, 1)
        begun = (ngrams[..., :-1] == tokens[:, None, tokens.shape[1] - size + 1 :]).all(-1)
        rows, places = begun.nonzero(as_tuple=True)
        logits = logits.index_put((rows, ngrams[rows, places, -1]), logits.new_tensor(-math.inf))
    if bool(logits.isneginf().all(-1).any()):
        forbidding = [name for name in ("no_repeat_ngram", "logit_bias") if getattr(settings, name)]
        raise InputError(
            f"no token is left to choose after {num_generated} generated ones: {' and '.join(forbidding)} forbid all "
            f"{logits.shape[1]}. Generate fewer tokens, or forbid less."
        )
    return logits


def probabilities(
    logits: Float[Tensor, "rows vocabulary"],
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Float[Tensor, "rows vocabulary"]:
    """Return the probability with which each token is chosen, in float64; temperature 0 puts all on the most likely.

    >>> chances = probabilities(torch.tensor([[1.0, 2.0, 2.0]]).log(), temperature=0.5)
    >>> (9 * chances).round(decimals=6).tolist()  # the squares: 1, 4, 4
    [[1.0, 4.0, 4.0]]
    """
    if temperature == 0:
        return torch.zeros_like(logits, dtype=torch.float64).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    scaled = logits.double() / max(temperature, MIN_TEMPERATURE)
    if top_k is not None and top_k < logits.shape[-1]:
        scaled = scaled.masked_fill(~top_k_mask(scaled, top_k), -math.inf)
    chances = scaled.softmax(-1)
    kept = chances if top_p is None or top_p == 1 else chances * top_p_mask(chances, top_p)
    if min_p:
        kept = kept * (kept >= min_p * kept.amax(-1, keepdim=True))
    return chances if kept is chances else kept / kept.sum(-1, keepdim=True)


def top_k_mask(logits: Float[Tensor, "rows vocabulary"], count: int) -> Bool[Tensor, "rows vocabulary"]:
    """Mark the `count` highest logits of each row, of equal ones those with the lowest ids."""
    last = logits.topk(count, sorted=True).values[:, -1:]
    above, tied = logits > last, logits == last
    return above | (tied & (tied.cumsum(-1) <= count - above.sum(-1, keepdim=True)))


def top_p_mask(probs: Float[Tensor, "rows vocabulary"], fraction: float) -> Bool[Tensor, "rows vocabulary"]:
    """Mark the fewest most likely tokens of each row that together have at least this share of the probability."""
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    return torch.zeros_like(probs, dtype=torch.bool).scatter_(-1, order, before < fraction)


def sample_tokens(
    logits: Float[Tensor, "rows vocabulary"], settings: Sampling, uniforms: Sequence[float] | Float[Tensor, " rows"]
) -> Int[Tensor, " rows"]:
    """Choose each row's next token by a random number from [0, 1): where the cumulative probability passes it.

    The logits are those that `adjusted` returns.

    >>> choose(torch.tensor([[1.0, 3.0]]).log().repeat(2, 1), Sampling(temperature=1.0), [0.2, 0.3]).tolist()
    [0, 1]
    """
    if settings.is_greedy:
        return logits.argmax(-1)
    sums = probabilities(logits, settings.temperature, settings.top_k, settings.top_p, settings.min_p).cumsum(-1)
    # Scaled by the sum's own end, so that rounding never leads past the last token that can be chosen.
    if len(uniforms) == 1:
        places = sums[:, -1:] * uniforms[0]
    else:
        places = sums[:, -1:] * torch.as_tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None]
    return torch.searchsorted(sums, places, right=True).squeeze(-1)


# Loops at temperature 0 (problem B8).
#
# Each token is a function of the state before it, and so is the next state. When a whole state comes back, all that
# followed it repeats for ever: a model whose memory is its last N−1 tokens has at most V^(N−1) full states, so it
# always ends in a loop.
#
# What depends on more than the model's state belongs to the state that must come back. Repetition and presence
# penalties depend on which tokens have been used: a set that only grows, so that it is the same where its size is.
# Stop strings depend on the end of the text that may still become one. Frequency penalties count every token, and
# each token adds an n-gram that `no_repeat_ngram` forbids from then on: nothing comes back, and no loop is proved.


@dataclass(frozen=True)
class TextLoop:
    """A text that repeats itself: token t equals token t + period from `onset` on, counting generated tokens from 0."""

    onset: int
    period: int
    proved: bool
    """Whether the whole state repeated, so that it goes on for ever; if not, it was seen three times in a row."""
    state: str
    """What the model's state is, in words."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def __str__(self) -> str:
        start = "from the first token" if self.onset == 0 else f"from token {self.onset}"
        every = "every token" if self.period == 1 else f"every {self.period} tokens"
        if self.proved:
            return f"{start} the text repeats {every}, for ever (proved: {self.state} repeated)"
        return f"{start} the text repeats {every} so far (not proved: {self.state} did not repeat)"


class StateHistory:
    """The states of one generation, to find one that comes back.

    A signature of up to 32 bytes is kept as it is, a longer one as its 256-bit BLAKE2 digest.
    """

    def __init__(self) -> None:
        self._first: dict[bytes, int] = {}

    def find_earlier(self, signature: bytes, step: int) -> int | None:
        """Return the step at which this state was seen before; None if it is new, and then remember it."""
        key = signature if len(signature) <= 32 else blake2b(signature, digest_size=32).digest()
        first = self._first.setdefault(key, step)
        return None if first == step else first


def make_proved_loop(tokens: Sequence[int], first: int, step: int, state: str) -> TextLoop:
    """Describe the loop that is proved when the states before tokens `first` and `step` are the same.

    >>> proved_loop([5, 1, 2, 1, 2], first=1, step=5, state="the last token")
    TextLoop(onset=1, period=2, proved=True, state='the last token')
    """
    period = smallest_period(tokens[first:step])
    return TextLoop(_find_onset(tokens, first, period), period, True, state)


def find_observed_loop(tokens: Sequence[int], state: str) -> TextLoop | None:
    """Describe the shortest loop that the end of the text has gone through three times; None without one.

    >>> observed_loop([9, 1, 2, 1, 2, 1, 2], "the hidden vectors")
    TextLoop(onset=1, period=2, proved=False, state='the hidden vectors')
    """
    for period in range(1, len(tokens) // 3 + 1):
        if tokens[-1] == tokens[-1 - period] and tokens[-2 * period :] == tokens[-3 * period : -period]:
            return TextLoop(_find_onset(tokens, len(tokens) - 3 * period, period), period, False, state)
    return None


def smallest_period(word: Sequence[int]) -> int:
    """Return the smallest period of a word repeated for ever; it divides the word's length.

    >>> smallest_period([1, 2, 1, 2]), smallest_period([1, 2, 1])
    (2, 3)
    """
    size = len(word)
    divisors = (period for period in range(1, size + 1) if size % period == 0)
    return next(period for period in divisors if word[period:] == word[:-period] or period == size)


def _find_onset(tokens: Sequence[int], start: int, period: int) -> int:
    """Walk back from a place in the loop to where it begins."""
    while start and tokens[start - 1] == tokens[start - 1 + period]:
        start -= 1
    return start


# Generation: read the prompt once, then one token at a time through the state.


StopReason = Literal["length", "eos", "stop", "loop", "told"]
"""Why a text ends; `stop`: at a stop string or stop token; `told`: the callback asked for it."""
OnToken = Callable[[int, int], object]
"""Is called with a row's number and its next token as soon as that is chosen; True ends the row there."""
OnText = Callable[[int, str], object]
"""Is called with a prompt's number and the next piece of its text, whole characters only; True ends that text there."""
LOGITS_AT_ONCE = 2**24  # logits of prompts: 64 MB
MAX_ROWS = 256  # texts of different lengths that are written at once
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # what a tokenizer writes for bytes that are not a whole character
MAX_PENDING_TOKENS = 8  # tokens that are looked at again, where the last ones are not a whole character
PARTIAL_CHARACTER = re.compile(f"^{INCOMPLETE}{{1,3}}(?!{INCOMPLETE})")
NAN_LOGITS = "the model's logits are not numbers (NaN): its weights are damaged. Use an earlier checkpoint."


@dataclass(frozen=True)
class TokenLogprob:
    """A token with its log-probability in nats: the model's own, before temperature, bias, penalties and cuts."""

    token: int
    logprob: float
    top: tuple["TokenLogprob", ...] = ()
    """The most likely tokens at this place, as many as were asked for."""
    text: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        plain = {"token": self.token, "text": self.text, "logprob": self.logprob}
        return plain | ({"top": [one.to_dict() for one in self.top]} if self.top else {})

    def with_text(self, tokenizer: Tokenizer, previous: Sequence[int] = ()) -> "TokenLogprob":
        """Return the same with the texts of its tokens: what each adds to that of the token before, maybe a space.

        Bytes that are not a whole character are decoded alone.
        """
        text, told = tokenizer.decode([self.token]), tokenizer.decode(previous)
        if tokenizer.kind not in ("byte-pairs", "characters") and told and INCOMPLETE not in told + text:
            joined = tokenizer.decode([*previous, self.token])
            text = joined[len(told) :] if joined.startswith(told) else text
        return replace(self, text=text, top=tuple(one.with_text(tokenizer, previous) for one in self.top))


@dataclass(frozen=True)
class GeneratedTokens:
    """The tokens generated after a prompt, without the `<eos>` or stop token, and why they end."""

    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    loop: TextLoop | None
    stopped: StopReason
    seconds: float
    logprobs: tuple[TokenLogprob, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        logprobs = None if self.logprobs is None else [one.to_dict() for one in self.logprobs]
        plain = {"prompt_tokens": list(self.prompt_tokens), "tokens": list(self.tokens), "logprobs": logprobs}
        return {**asdict(self), **plain}


@dataclass(frozen=True)
class Generation(Result):
    """The text generated after a prompt."""

    prompt: str
    text: str
    tokens: tuple[int, ...]
    """All generated tokens: also those that spell a stop string, before which the text ends."""
    loop: TextLoop | None
    stopped: StopReason
    tokens_per_second: float
    logprobs: tuple[TokenLogprob, ...] | None = None
    """Of each of the tokens, if they were asked for."""
    seed: int | None = None
    """The seed that was drawn by chance, since none was given: with it the same text comes again."""

    @property
    def title(self) -> str:
        """What it is."""
        return "generated text"

    @property
    def note(self) -> str:
        """A line about the loop, and one about the seed that was drawn; empty without both."""
        lines = [f"loop: {self.loop}" if self.loop else "", "" if self.seed is None else f"seed: {self.seed}"]
        return "\n".join(line for line in lines if line)

    @property
    def notes(self) -> str:
        """What is printed below the text: the loop, the seed, and the log-probabilities."""
        tables = as_text(self._tables())
        return "\n".join(([wrap_lines(self.note)] if self.note else []) + (["", tables] if tables else []))

    def _tables(self) -> list[Block]:
        def shown(one: TokenLogprob) -> str:
            return f"{make_visible(one.text)} {one.logprob:.3f}"

        if self.logprobs is None:
            return []
        rows = [(make_visible(one.text), f"{one.logprob:.3f}", ", ".join(map(shown, one.top))) for one in self.logprobs]
        wide = 3 if any(one.top for one in self.logprobs) else 2
        header = ("token", "log p", "most likely")
        return [Table(header[:wide], [row[:wide] for row in rows], left=(0, 2), breakable=(2,) if wide == 3 else ())]

    def blocks(self) -> Iterable[Block]:
        """The prompt with the text that continues it, the loop and the log-probabilities."""
        yield Pre([(self.prompt, "prompt"), (self.text, "")])
        if self.note:
            yield Text(self.note, "note")
        yield from self._tables()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        logprobs = None if self.logprobs is None else [one.to_dict() for one in self.logprobs]
        return {**asdict(self), "tokens": list(self.tokens), "logprobs": logprobs}

    def __str__(self) -> str:  # the text as it is, never wrapped
        return f"{self.prompt}{self.text}\n{self.notes}".rstrip("\n")


def generate(
    model: LanguageModel,
    prompts: Sequence[Sequence[int] | np.ndarray],
    settings: Sampling,
    *,
    eos: int | None = None,
    on_token: OnToken | None = None,
) -> list[GeneratedTokens]:
    """Continue each prompt, `settings.samples` times, through the model's state, never reading a token twice.

    (A decoder whose window is full moves all its positions at each token, and therefore reads its window again.)

    Prompts of equal length run as one batch, and equal ones are read once. Each row has random numbers of its own,
    seeded by seed + row, and does not depend on other rows. Only the rounding of batched matrix products may differ in
    the last bit from that of the row alone: so a choice can differ where tokens are equally likely up to that bit, and
    nowhere else.
    """
    if settings.stop:
        raise InputError(f"stop = {settings.stop!r}: stop strings need a tokenizer. Use generate_text, or stop_tokens.")
    checked: list[list[int]] = []
    for number, prompt in enumerate(prompts):
        checked.append([int(token) for token in prompt])
        if not checked[-1]:
            raise InputError(f"prompt {number} has no tokens; a model needs at least one to start from, such as <eos>.")
        check_tokens(f"prompt {number}", checked[-1], model.spec.vocabulary)
    tell = (lambda row, event: event.token is not None and on_token(row, event.token)) if on_token else None
    events = _run_engine(model, None, checked, settings, eos, stream=on_token is not None)
    return [text.result() for text in run_to_end(events, tell)]


def _run_engine(
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    prompts: Sequence[Sequence[int]],
    settings: Sampling,
    eos: int | None = None,
    decode_text: bool = False,
    stream: bool = True,
) -> "Generator[tuple[int, TextEvent], object, list[TokenSequence]]":
    """Yield what the engine writes, with the number of its text; True sent back ends that text there."""
    from lemma.generation.batching import BatchEngine, TextRequest  # which is made of what is here

    count, together = settings.samples, len({len(prompt) or 1 for prompt in prompts}) == 1
    rows, device = max(1, count * len(prompts)), next(model.parameters()).device
    if device.type == "cuda":
        from lemma.generation.engine import MIN_GRAPH_TOKENS  # a GPU's own part

        together = together or settings.tokens < MIN_GRAPH_TOKENS
    dtype = settings.dtype(device)
    with evaluating(model):
        engine = BatchEngine(
            model, tokenizer, rows if together else min(rows, MAX_ROWS), LOGITS_AT_ONCE, dtype, eos, together
        )
        requests = [
            TextRequest(tuple(ids), settings, count * n, decode_text=decode_text, stream=stream)
            for n, ids in enumerate(prompts)
        ]
        texts = [text for request in requests for text in engine.add(request)]
        try:
            while engine.is_busy:
                for event in engine.step():
                    if event.error:
                        raise event.error
                    number = event.request.first_row + event.index
                    if (yield number, event) is True and not (text := texts[number]).stop_filter.has_stopped:
                        text.stop("told")
                        if not event.result and (rest := text.finish()).text:
                            yield number, rest
        finally:
            engine.close()
    return texts


Piece = TypeVar("Piece")
Done = TypeVar("Done")


@torch.inference_mode()
def run_to_end(
    steps: Generator[tuple[int, Piece], object, Done], callback: Callable[[int, Piece], object] | None
) -> Done:
    """Run a generation to its end, telling each piece as it comes; return its result."""
    answer: object = None
    with closing(steps):
        while True:
            try:
                number, piece = steps.send(answer)
            except StopIteration as end:
                return end.value
            answer = callback(number, piece) if callback else None


def check_tokens(source: str, tokens: Iterable[int], vocabulary: int) -> None:
    """Refuse tokens that a model does not have."""
    wrong = next((token for token in tokens if not 0 <= token < vocabulary), None)
    if wrong is not None:
        raise InputError(
            f"{source}: token {wrong} is outside the model's vocabulary of {vocabulary}. "
            "Use the tokenizer it was trained with."
        )


def token_logprobs(
    logits: Float[Tensor, "rows vocabulary"], tokens: Int[Tensor, " rows"], count: int
) -> list[TokenLogprob]:
    """The log-probability of each row's token, and the `count` most likely tokens, of equals the lowest ids first.

    >>> [found] = logprobs_of(torch.tensor([[1.0, 3.0]]).log(), torch.tensor([0]), 1)
    >>> round(math.exp(found.logprob), 6), found.top[0].token, round(math.exp(found.top[0].logprob), 6)
    (0.25, 1, 0.75)
    """
    logs, ids = logits.double().log_softmax(-1), tokens.unsqueeze(1)
    if count:
        values, most = logs.topk(min(count + 1, logs.shape[1]))
        if values.shape[1] > count and bool((values[:, count - 1] == values[:, count]).any()):
            most = logs.argsort(dim=-1, descending=True, stable=True)  # which of equals are the last: all are sorted
        most = most[:, :count].sort().values
        order = logs.gather(1, most).argsort(dim=-1, descending=True, stable=True)
        ids = torch.cat([ids, most.gather(1, order)], dim=1)
    pairs = zip(ids.tolist(), logs.gather(1, ids).tolist(), strict=True)
    rows = [[TokenLogprob(*pair) for pair in zip(*row, strict=True)] for row in pairs]
    return [replace(chosen, top=tuple(top)) for chosen, *top in rows]


class Detokenizer:
    """Spells the tokens that follow a prompt, piece by piece, never half a character.

    A token may end inside a character, or need the token before it to know whether a space parts them: so each piece
    is what the text of the latest tokens has gained, and an unfinished end waits for the next token.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(prompt[-1:])
        self._emitted = tokenizer.decode(self._tokens)
        self._has_started = False

    def add(self, token: int) -> str:
        """Take a token and return the text that is complete by now."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        held = min(3, len(text) - len(text.rstrip(INCOMPLETE)))  # what comes next can change no more than these
        if held and len(text) - held < len(self._emitted) + 4:  # of four, none is half a character of the prompt's
            return ""
        piece = self._strip_start(text[len(self._emitted) : len(text) - held])
        self._tokens = self._tokens[-MAX_PENDING_TOKENS:] if held else [token]
        told = self._tokenizer.decode(self._tokens)
        self._emitted = told[: len(told) - held]
        return piece

    def _strip_start(self, piece: str) -> str:
        """A piece without half a character at the begin of the whole text, which nothing before can complete."""
        begun, self._has_started = self._has_started, self._has_started or bool(piece)
        return piece if begun else strip_partial_character(self._tokenizer, piece)

    @property
    def pending(self) -> tuple[int, ...]:
        """The tokens on which the next piece depends."""
        return tuple(self._tokens)

    def flush(self) -> str:
        """Return what is left at the end, complete or not."""
        return self._strip_start(self._tokenizer.decode(self._tokens)[len(self._emitted) :])


def strip_partial_character(tokenizer: Tokenizer, text: str) -> str:
    """A text of byte pairs without the bytes, three at most, at its begin that are the end of a character."""
    return PARTIAL_CHARACTER.sub("", text) if tokenizer.kind in ("byte-pairs", PRETRAINED) else text


class StopStringFilter:
    """Lets text pass until a stop string comes; what may still become one is held back.

    The text ends before the stop string that is complete first, of several the one that begins first: so what passes
    depends on the text alone, not on the pieces in which it comes.

    >>> stops = StopStrings(["###"])
    >>> [stops.add(piece) for piece in ("a#", "#b", "c##", "# d")], stops.found, stops.rest()
    (['a', '##b', 'c', ''], True, '')
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops, self.pending, self.has_stopped = tuple(stops), "", False

    def add(self, piece: str) -> str:
        """Take a piece and return what can be told by now; nothing after the stop."""
        if self.has_stopped:
            return ""
        text = self.pending + piece
        places = [(place + len(stop), place) for stop in self._stops if (place := text.find(stop)) >= 0]
        self.has_stopped = bool(places)
        end = min(places)[1] if places else len(text) - self._partial_length(text)
        self.pending = "" if places else text[end:]
        return text[:end]

    def flush(self) -> str:
        """Return what is still held back at the end."""
        return self.pending

    def _partial_length(self, text: str) -> int:
        """How many characters at the end are the beginning of a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        lengths = range(min(longest, len(text)), 0, -1)
        return next((size for size in lengths if any(stop.startswith(text[-size:]) for stop in self._stops)), 0)


def generate_text(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    settings: Sampling,
    on_text: OnText | None = None,
    max_prompt_tokens: int | None = None,
) -> list[Generation]:
    """Continue each prompt, `settings.samples` times; the texts of a prompt follow each other.

    A prompt without tokens starts from `<eos>`; if the tokenizer has none, from a newline; if its alphabet has none,
    from token 0. Of a prompt with more than `longest` tokens, only the last ones are read.
    """
    return run_to_end(_stream_pieces(model, tokenizer, prompts, settings, on_text is None, max_prompt_tokens), on_text)


@torch.inference_mode()
def stream_text(
    model: LanguageModel, tokenizer: Tokenizer, prompts: Sequence[str], settings: Sampling
) -> Generator[tuple[int, str], object, list[Generation]]:
    """Yield each text's number and its next piece, whole characters only; True sent back ends that text there."""
    return (yield from _stream_pieces(model, tokenizer, prompts, settings))


def _stream_pieces(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    settings: Sampling,
    only_results: bool = False,
    max_prompt_tokens: int | None = None,
) -> Generator[tuple[int, str], object, list[Generation]]:
    """The pieces of all texts as they come; with `whole` none is needed, and each text is spelled at its end."""
    for prompt in prompts:
        check_type("prompt", prompt, str, "a text")
    encoded = [
        tokenizer.encode(prompt)[-max_prompt_tokens if max_prompt_tokens else 0 :].tolist() for prompt in prompts
    ]
    spell, answer, texts = bool(settings.stop) or not only_results, None, [""] * (len(prompts) * settings.samples)
    steps = _run_engine(model, tokenizer, encoded, settings, decode_text=spell, stream=spell)
    with closing(steps):
        while True:
            try:
                number, event = steps.send(answer)
            except StopIteration as end:
                rows: list[TokenSequence] = end.value
                break
            texts[number] += event.text
            answer = (yield number, event.text) if event.text else None
    found: list[Generation] = []
    for number, row in enumerate(rows):
        result, before = row.result(), encoded[number // settings.samples][-1:]  # which may call for a space
        if not spell:
            text = tokenizer.decode([*before, *result.tokens])[len(tokenizer.decode(before)) :]
            texts[number] = strip_partial_character(tokenizer, text)
        speed = len(result.tokens) / result.seconds if result.seconds else 0.0
        prompt, text, logprobs = prompts[number // settings.samples], texts[number], result.logprobs
        found.append(Generation(prompt, text, result.tokens, result.loop, result.stopped, speed, logprobs))
    return found


def start_token(tokenizer: Tokenizer) -> int:
    """The token that a text without a prompt starts from: `<eos>`, a newline, or token 0."""
    if tokenizer.eos is not None:
        return tokenizer.eos
    try:
        return int(tokenizer.encode("\n")[0])
    except DataError:
        return 0


SIMPLE_MODULES = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Dropout)
TORCH_ATTRIBUTES = frozenset(vars(nn.Module())) - {"training"}  # what every module has for torch's own use


def fast_copy(module: nn.Module) -> Any:
    """Return what computes as `module` does, faster, as long as nobody changes the module's tree.

    At batch 1 a small model spends half its time in `nn.Module.__call__` and `__getattr__`, not in arithmetic. A bare
    copy shares the parameters and runs the very same `forward`, on objects that have nothing but attributes; large maps
    on a CPU read their matrices with all threads. A module that has hooks, a forward of its own, or a class that is
    neither ours nor one of torch's simple ones stays as it is, and is called as a module: so hooks and wrapped layers
    go on working.

    >>> layer = nn.Linear(3, 2)
    >>> torch.equal(bare(layer)(torch.ones(3)), layer(torch.ones(3)))
    True
    """
    if has_global_hooks():
        return module
    if isinstance(module, nn.ModuleList):
        return [fast_copy(part) for part in module]
    kind = type(module)
    known = kind in SIMPLE_MODULES or (kind.__module__.startswith("lemma.") and not _calls_super(kind))
    if not known or "forward" in vars(module) or any(getattr(module, name) for name in HOOKS):
        return module
    copy = (kind in SIMPLE_MODULES and _as_function(module)) or _plain_class(kind)()
    vars(copy).update({name: value for name, value in vars(module).items() if name not in TORCH_ATTRIBUTES})
    vars(copy).update(module._parameters | module._buffers)
    vars(copy).update({name: part if part is None else fast_copy(part) for name, part in module._modules.items()})
    return copy


def _as_function(module: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """What the most frequent of torch's modules compute, as a function, which Python calls faster than any object."""
    if isinstance(module, nn.Linear):
        weight, bias = module.weight, module.bias
        return (
            partial(threaded_linear, weight, bias)
            if benefits_from_threads(weight)
            else lambda x: linear(x, weight, bias)
        )
    if isinstance(module, nn.LayerNorm):
        shape, scale, shift, epsilon = module.normalized_shape, module.weight, module.bias, module.eps
        return lambda vectors: torch.layer_norm(vectors, shape, scale, shift, epsilon)
    if isinstance(module, nn.Embedding) and module.max_norm is None:
        table = module.weight
        return lambda tokens: torch.embedding(table, tokens)
    return None


@cache
def _plain_class(kind: type[nn.Module]) -> type:
    """A class of modules without `nn.Module`: an instance is called where a module is."""
    return type(kind.__name__, (), _members(kind) | {"__call__": kind.forward})


@cache
def _calls_super(kind: type[nn.Module]) -> bool:
    functions = [member for member in _members(kind).values() if isinstance(member, FunctionType)]
    return any("__class__" in function.__code__.co_freevars for function in functions)


def _members(kind: type[nn.Module]) -> dict[str, Any]:
    """What a class and its parents up to `nn.Module` define, Python's own names left out."""
    ours = [parent for parent in reversed(kind.__mro__) if parent not in nn.Module.__mro__]
    members = {name: value for parent in ours for name, value in vars(parent).items()}
    return {name: value for name, value in members.items() if not name.startswith(("__", "_abc_"))}
