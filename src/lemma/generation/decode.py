"""Generation: read the prompt once, then one token at a time through the state; sampling, and the proof of loops."""

import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import blake2b
from numbers import Integral, Real
from types import FunctionType
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from lemma.data.tokenizers import Tokenizer
from lemma.errors import DataError, InputError, SpecError
from lemma.layers.state import State
from lemma.models.base import LanguageModel, evaluating
from lemma.report.result import Block, Pre, Result, Text
from lemma.report.text import fit

# From logits to the next token: temperature, top-k and top-p.


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


# Loops at temperature 0 (problem B8).
#
# Each token is a function of the state before it, and so is the next state. When a whole state comes back, all that
# followed it repeats for ever: a model whose memory is its last N−1 tokens has at most V^(N−1) full states, so it
# always ends in a loop.


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

    def earlier(self, signature: bytes, step: int) -> int | None:
        """Return the step at which this state was seen before; None if it is new, and then remember it."""
        key = signature if len(signature) <= 32 else blake2b(signature, digest_size=32).digest()
        first = self._first.setdefault(key, step)
        return None if first == step else first


def proved_loop(tokens: Sequence[int], first: int, step: int, state: str) -> TextLoop:
    """Describe the loop that is proved when the states before tokens `first` and `step` are the same.

    >>> proved_loop([5, 1, 2, 1, 2], first=1, step=5, state="the last token")
    TextLoop(onset=1, period=2, proved=True, state='the last token')
    """
    period = smallest_period(tokens[first:step])
    return TextLoop(_onset(tokens, first, period), period, True, state)


def observed_loop(tokens: Sequence[int], state: str) -> TextLoop | None:
    """Describe the shortest loop that the end of the text has gone through three times; None without one.

    >>> observed_loop([9, 1, 2, 1, 2, 1, 2], "the hidden vectors")
    TextLoop(onset=1, period=2, proved=False, state='the hidden vectors')
    """
    for period in range(1, len(tokens) // 3 + 1):
        if tokens[-1] == tokens[-1 - period] and tokens[-2 * period :] == tokens[-3 * period : -period]:
            return TextLoop(_onset(tokens, len(tokens) - 3 * period, period), period, False, state)
    return None


def smallest_period(word: Sequence[int]) -> int:
    """Return the smallest period of a word repeated for ever; it divides the word's length.

    >>> smallest_period([1, 2, 1, 2]), smallest_period([1, 2, 1])
    (2, 3)
    """
    size = len(word)
    divisors = (period for period in range(1, size + 1) if size % period == 0)
    return next(period for period in divisors if word[period:] == word[:-period] or period == size)


def _onset(tokens: Sequence[int], known: int, period: int) -> int:
    """Walk back from a place in the loop to where it begins."""
    while known and tokens[known - 1] == tokens[known - 1 + period]:
        known -= 1
    return known


# Generation: read the prompt once, then one token at a time through the state.


Stopped = Literal["length", "eos", "loop", "told"]
"""Why a text ends; `told`: the callback asked for it."""
OnToken = Callable[[int, int], object]
"""Is called with a row's number and its next token as soon as that is chosen; True ends the row there."""
OnText = Callable[[int, str], object]
"""Is called with a prompt's number and the next piece of its text, whole characters only; True ends that text there."""
LOGITS_AT_ONCE = 2**24  # logits of a prompt: 64 MB
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # what a tokenizer writes for bytes that are not a whole character
NOT_NUMBERS = "the model's logits are not numbers (NaN): its weights are damaged. Use an earlier checkpoint."


@dataclass(frozen=True)
class Generated:
    """The tokens generated after a prompt, `<eos>` left out, and why they end."""

    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    loop: TextLoop | None
    stopped: Stopped
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "prompt_tokens": list(self.prompt_tokens), "tokens": list(self.tokens)}


@dataclass(frozen=True)
class Generation(Result):
    """The text generated after a prompt."""

    prompt: str
    text: str
    tokens: tuple[int, ...]
    loop: TextLoop | None
    stopped: Stopped
    tokens_per_second: float

    @property
    def title(self) -> str:
        """What it is."""
        return "generated text"

    @property
    def remark(self) -> str:
        """One line about the loop; empty without one."""
        return f"loop: {self.loop}" if self.loop else ""

    def blocks(self) -> Iterable[Block]:
        """The prompt with the text that continues it, and the loop."""
        yield Pre([(self.prompt, "prompt"), (self.text, "")])
        if self.remark:
            yield Text(self.remark, "note")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "tokens": list(self.tokens)}

    def __str__(self) -> str:  # the text as it is, never wrapped
        return f"{self.prompt}{self.text}\n{fit(self.remark)}".rstrip("\n")


class Continuation:
    """One prompt, what has been generated after it, its random numbers and the states it has been in."""

    def __init__(self, number: int, prompt: Sequence[int], settings: Sampling) -> None:
        self.number, self.prompt, self.settings = number, tuple(prompt), settings
        self.random = random.Random(settings.seed + number)
        self.tokens: list[int] = []
        self.stopped: Stopped | None = None
        self.begun = self.ended = 0.0
        self._history = StateHistory()
        self._loop: TextLoop | None = None
        self._about = ""

    def stop(self, why: Stopped) -> None:
        """End here, and stop the clock."""
        self.stopped, self.ended = why, time.perf_counter()

    def take(self, token: int, eos: int | None) -> bool:
        """Take the next token; return whether it belongs to the text, which `<eos>` does not."""
        if token == eos and self.settings.stop_at_eos:
            self.stop("eos")
            return False
        self.tokens.append(token)
        if len(self.tokens) == self.settings.tokens:
            self.stop("length")
        return True

    def look_for_loop(self, state: State, row: int, receptive_field: int | None) -> None:
        """See whether the state of this row of the batch has been the same before.

        As long as a bounded memory is not full, its length alone distinguishes each state from all others.
        """
        step, self._about = len(self.tokens), state.about
        if self._loop or len(self.prompt) + step < (receptive_field or 0):
            return
        first = self._history.earlier(state.signature(row), step)
        if first is not None:
            self._loop = proved_loop(self.tokens, first, step, self._about)
            if self.settings.stop_at_loop:
                self.stop("loop")

    def result(self) -> Generated:
        """Return what has been generated, and the loop in it."""
        assert self.stopped
        loop = self._loop
        if loop is None and self.settings.greedy and self.stopped == "length":
            loop = observed_loop(self.tokens, self._about)
        return Generated(self.prompt, tuple(self.tokens), loop, self.stopped, self.ended - self.begun)


@torch.inference_mode()
def generate(
    model: LanguageModel,
    prompts: Sequence[Sequence[int] | np.ndarray],
    settings: Sampling,
    *,
    eos: int | None = None,
    on_token: OnToken | None = None,
) -> list[Generated]:
    """Continue each prompt through the model's state, never reading a token twice.

    (A decoder whose window is full moves all its positions at each token, and therefore reads its window again.)

    Prompts of equal length run as one batch. Each row has random numbers of its own, seeded by seed + row, and does not
    depend on other rows. Only the rounding of batched matrix products may differ in the last bit from that of the row
    alone: so a choice can differ where tokens are equally likely up to that bit, and nowhere else.
    """
    rows = [Continuation(number, _checked(model, prompt, number), settings) for number, prompt in enumerate(prompts)]
    groups: defaultdict[int, list[Continuation]] = defaultdict(list)
    for row in rows:
        groups[len(row.prompt)].append(row)
    with evaluating(model):
        for group in groups.values():
            _run(model, group, settings, eos, on_token)
    return [row.result() for row in rows]


def _checked(model: LanguageModel, prompt: Sequence[int] | np.ndarray, number: int) -> list[int]:
    ids = [int(token) for token in prompt]
    if not ids:
        raise InputError(f"prompt {number} has no tokens; a model needs at least one to start from, such as <eos>.")
    wrong = next((token for token in ids if not 0 <= token < model.spec.vocabulary), None)
    if wrong is not None:
        raise InputError(
            f"prompt {number}: token {wrong} is outside the model's vocabulary of {model.spec.vocabulary}. "
            "Use the tokenizer it was trained with."
        )
    return ids


def _run(
    model: LanguageModel, rows: list[Continuation], settings: Sampling, eos: int | None, on_token: OnToken | None
) -> None:
    """Continue prompts of equal length until every row has stopped."""
    for row in rows:
        row.begun = time.perf_counter()
    logits, state = _read_prompts(model, rows)
    step = bare(model)
    while True:
        if settings.greedy:
            for place, row in enumerate(rows):
                row.look_for_loop(state, place, model.receptive_field)
        running = [place for place, row in enumerate(rows) if not row.stopped]
        if not running:
            return
        if len(running) < len(rows):
            index = torch.tensor(running, dtype=torch.long, device=logits.device)
            rows, logits, state = [rows[place] for place in running], logits[index], state.rows(index)
        tokens = choose(logits, settings, () if settings.greedy else [row.random.random() for row in rows])
        for row, token in zip(rows, tokens.tolist(), strict=True):
            if row.take(token, eos) and on_token and on_token(row.number, token) is True:
                row.stop("told")
        if all(row.stopped for row in rows):
            return
        logits, state = step(tokens.unsqueeze(1), state)
        logits = logits.select(1, -1)


def _read_prompts(model: LanguageModel, rows: list[Continuation]) -> tuple[Float[Tensor, "rows vocabulary"], State]:
    """Read what the model can see of the prompts, in pieces whose logits fit in memory; return the last logits."""
    field = model.receptive_field
    seen = [row.prompt[-field:] if field else row.prompt for row in rows]
    tokens = torch.tensor(seen, device=next(model.parameters()).device)
    logits, state = None, None
    for piece in tokens.split(max(1, LOGITS_AT_ONCE // (len(rows) * model.spec.vocabulary)), dim=1):
        logits, state = model(piece, state)
    assert logits is not None and state is not None
    if logits[:, -1].isnan().any():
        raise InputError(NOT_NUMBERS)
    return logits[:, -1], state


class Spelling:
    """Spells the tokens that follow a prompt, piece by piece, never half a character.

    A token may end inside a character, or need the token before it to know whether a space parts them: so each piece
    is what the text of the latest tokens has gained, and an unfinished end waits for the next token.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(before[-1:])
        self._told = tokenizer.decode(self._tokens)

    def add(self, token: int) -> str:
        """Take a token and return the text that is complete by now."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        if text.endswith(INCOMPLETE):
            return ""
        piece = text[len(self._told) :]
        self._tokens = [token]
        self._told = self._tokenizer.decode(self._tokens)
        return piece

    def rest(self) -> str:
        """Return what is left at the end, complete or not."""
        return self._tokenizer.decode(self._tokens)[len(self._told) :]


def generate_text(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    settings: Sampling,
    on_text: OnText | None = None,
) -> list[Generation]:
    """Continue each prompt.

    A prompt without tokens starts from `<eos>`; if the tokenizer has none, from a newline; if its alphabet has none,
    from token 0.
    """
    for prompt in prompts:
        refuse_type("prompt", prompt, str, "a text")
    encoded = [tokenizer.encode(prompt).tolist() for prompt in prompts]
    spellings = [Spelling(tokenizer, ids) for ids in encoded]

    def tell(row: int, piece: str) -> bool:
        return on_text is not None and bool(piece) and on_text(row, piece) is True

    def spell(row: int, token: int) -> bool:
        return tell(row, spellings[row].add(token))

    starts = [ids or [_beginning(tokenizer)] for ids in encoded]
    results = generate(model, starts, settings, eos=tokenizer.eos, on_token=spell if on_text else None)
    for row, spelling in enumerate(spellings):
        tell(row, spelling.rest())
    found: list[Generation] = []
    for prompt, ids, result in zip(prompts, encoded, results, strict=True):
        last = ids[-1:]  # the prompt's last token may call for a space
        text = tokenizer.decode([*last, *result.tokens])[len(tokenizer.decode(last)) :]
        speed = len(result.tokens) / result.seconds if result.seconds else 0.0
        found.append(Generation(prompt, text, result.tokens, result.loop, result.stopped, speed))
    return found


def _beginning(tokenizer: Tokenizer) -> int:
    if tokenizer.eos is not None:
        return tokenizer.eos
    try:
        return int(tokenizer.encode("\n")[0])
    except DataError:
        return 0


SIMPLE = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Dropout)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
TORCH_ATTRIBUTES = frozenset(vars(nn.Module())) - {"training"}  # what every module has for torch's own use


def bare(module: nn.Module) -> Any:
    """Return what computes as `module` does, faster, as long as nobody changes the module's tree.

    At batch 1 a small model spends half its time in `nn.Module.__call__` and `__getattr__`, not in arithmetic. A bare
    copy shares the parameters and runs the very same `forward`, on objects that have nothing but attributes. A module
    that has hooks, a forward of its own, or a class that is neither ours nor one of torch's simple ones stays as it is,
    and is called as a module: so hooks and wrapped layers go on working.

    >>> layer = nn.Linear(3, 2)
    >>> torch.equal(bare(layer)(torch.ones(3)), layer(torch.ones(3)))
    True
    """
    if any(getattr(torch_module, f"_global{name}") for name in HOOKS):
        return module
    if isinstance(module, nn.ModuleList):
        return [bare(part) for part in module]
    kind = type(module)
    known = kind in SIMPLE or (kind.__module__.startswith("lemma.") and not _calls_super(kind))
    if not known or "forward" in vars(module) or any(getattr(module, name) for name in HOOKS):
        return module
    copy = _bare_class(kind)()
    vars(copy).update({name: value for name, value in vars(module).items() if name not in TORCH_ATTRIBUTES})
    vars(copy).update(module._parameters | module._buffers)
    vars(copy).update({name: part if part is None else bare(part) for name, part in module._modules.items()})
    return copy


@cache
def _bare_class(kind: type[nn.Module]) -> type:
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
