"""Sequences of tokens that the engine extends: requests, decoded text, stop strings, loops, and results.

A loop at temperature 0 (problem B8) is proved by a recurring state, or observed. Each token is a function of the state
before it, and so is the next state. When a full state recurs, all that followed it repeats indefinitely: a model whose
state is its last N−1 tokens has at most V^(N−1) full states, so it always ends in a loop.

Whatever else the next token depends on belongs to the state that must recur. Repetition and presence penalties depend
on which tokens have been used: a set that only grows, so that it is the same where its size is. Stop strings depend on
the end of the text that may still become one. Frequency penalties count every token, and each token adds an n-gram that
`no_repeat_ngram` forbids from then on: no state recurs, and no loop is proved.
"""

import random
import re
import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from lemma.data.tokenizers import PRETRAINED, Tokenizer
from lemma.errors import DataError
from lemma.generation.sampling import INCOMPLETE, Sampling, TokenLogprob
from lemma.layers.state import State
from lemma.models.base import LanguageModel
from lemma.report.numbers import make_visible
from lemma.report.result import Block, Pre, Result, Table, Text, as_text
from lemma.report.text import wrap_lines

MAX_PENDING_TOKENS = 8  # that are decoded again, where the last ones are not a complete character
PARTIAL_CHARACTER = re.compile(f"^{INCOMPLETE}{{1,3}}(?!{INCOMPLETE})")
RECURRENCE_TOKENS = 500  # of a loop, after which the hidden vectors of a recurrent model have recurred, if ever
STOP_STRING_TOKENS = 100  # of a loop, after which a stop string would have come, if ever
StopReason = Literal["length", "eos", "stop", "loop", "told"]
"""Why a text ends; `stop`: at a stop string or stop token; `told`: the caller asked for it."""


@dataclass(frozen=True)
class TextLoop:
    """A text that repeats itself: token t equals token t + period from `onset` on, counting generated tokens from 0."""

    onset: int
    period: int
    proved: bool  # the full state recurred, so it repeats indefinitely; otherwise it was seen three times in a row
    state: str  # description of the model's state

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        start = "from the first token" if self.onset == 0 else f"from token {self.onset}"
        every = "every token" if self.period == 1 else f"every {self.period} tokens"
        if self.proved:
            return f"{start} the text repeats {every}, for ever (proved: {self.state} repeated)"
        return f"{start} the text repeats {every} so far (not proved: {self.state} did not repeat)"


def make_proved_loop(tokens: Sequence[int], first: int, step: int, state: str) -> TextLoop:
    """Return the loop of a text whose state before token `first` equals that before token `step`; `state` describes it.

    >>> make_proved_loop([5, 1, 2, 1, 2], first=1, step=5, state="the last token")
    TextLoop(onset=1, period=2, proved=True, state='the last token')
    """
    period = smallest_period(tokens[first:step])
    return TextLoop(_find_onset(tokens, first, period), period, True, state)


def find_observed_loop(tokens: Sequence[int], state: str) -> TextLoop | None:
    """Return the shortest loop that the end of a text has gone through three times, not proved; None without one.

    >>> find_observed_loop([9, 1, 2, 1, 2, 1, 2], "the hidden vectors")
    TextLoop(onset=1, period=2, proved=False, state='the hidden vectors')
    """
    for period in range(1, len(tokens) // 3 + 1):
        if tokens[-1] == tokens[-1 - period] and tokens[-2 * period :] == tokens[-3 * period : -period]:
            return TextLoop(_find_onset(tokens, len(tokens) - 3 * period, period), period, False, state)
    return None


def smallest_period(word: Sequence[int]) -> int:
    """Return the length of the shortest sequence of which `word` is one or more repetitions.

    >>> smallest_period([1, 2, 1, 2]), smallest_period([1, 2, 1])
    (2, 3)
    """
    size = len(word)
    divisors = (period for period in range(1, size + 1) if size % period == 0)
    return next(period for period in divisors if word[period:] == word[:-period] or period == size)


def _find_onset(tokens: Sequence[int], start: int, period: int) -> int:
    """Return the smallest index from which all tokens up to `start` equal those `period` positions later."""
    while start and tokens[start - 1] == tokens[start - 1 + period]:
        start -= 1
    return start


class Detokenizer:
    """Incremental decoder of the tokens that follow a prompt; it returns complete characters only.

    A token may end inside a character, or need the token before it to know whether a space parts them: so each piece
    is what the text of the latest tokens has gained, and an unfinished end waits for the next token.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(prompt[-1:])
        self._emitted = tokenizer.decode(self._tokens)
        self._has_started = False

    def add(self, token: int) -> str:
        """Append a token; return the text that is complete now and was not returned before."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        pending = min(3, len(text) - len(text.rstrip(INCOMPLETE)))  # later tokens can change no more than these
        if pending and len(text) - pending < len(self._emitted) + 4:  # of four, none is half a character of the prompt
            return ""
        piece = self._strip_start(text[len(self._emitted) : len(text) - pending])
        self._tokens = self._tokens[-MAX_PENDING_TOKENS:] if pending else [token]
        emitted = self._tokenizer.decode(self._tokens)
        self._emitted = emitted[: len(emitted) - pending]
        return piece

    @property
    def pending(self) -> tuple[int, ...]:
        """Last tokens, decoded or not, on which the next piece depends."""
        return tuple(self._tokens)

    def flush(self) -> str:
        """Return the text that `add` has held back, at the end of the tokens, even with an incomplete character."""
        return self._strip_start(self._tokenizer.decode(self._tokens)[len(self._emitted) :])

    def _strip_start(self, piece: str) -> str:
        """Return the piece; the first of the text without the end of a character that began in the prompt."""
        had_started, self._has_started = self._has_started, self._has_started or bool(piece)
        return piece if had_started else strip_partial_character(self._tokenizer, piece)


def strip_partial_character(tokenizer: Tokenizer, text: str) -> str:
    """Return a text without the bytes at its start, three at most, that are the end of a character cut in two."""
    return PARTIAL_CHARACTER.sub("", text) if tokenizer.kind in ("byte-pairs", PRETRAINED) else text


class StopStringFilter:
    """A filter that passes text until a stop string comes, and holds back what may still become one.

    The text ends before the stop string that is complete first, of several the one that begins first: so what passes
    depends on the text alone, not on the pieces in which it comes.

    >>> stops = StopStringFilter(["###"])
    >>> [stops.add(piece) for piece in ("a#", "#b", "c##", "# d")], stops.has_stopped, stops.flush()
    (['a', '##b', 'c', ''], True, '')
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops, self.pending, self.has_stopped = tuple(stops), "", False

    def add(self, piece: str) -> str:
        """Append a piece of text; return what can be emitted now, nothing from a stop string on."""
        if self.has_stopped:
            return ""
        text = self.pending + piece
        matches = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        self.has_stopped = bool(matches)
        end = min(matches)[1] if matches else len(text) - self._partial_length(text)
        self.pending = "" if matches else text[end:]
        return text[:end]

    def flush(self) -> str:
        """Return the text that is still held back at the end."""
        return self.pending

    def _partial_length(self, text: str) -> int:
        """Return how many characters at the end of a text are the beginning of a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        lengths = range(min(longest, len(text)), 0, -1)
        return next((size for size in lengths if any(stop.startswith(text[-size:]) for stop in self._stops)), 0)


def start_token(tokenizer: Tokenizer) -> int:
    """Return the id of the token from which a text without a prompt starts: `<eos>`, else a newline, else 0."""
    if tokenizer.eos is not None:
        return tokenizer.eos
    try:
        return int(tokenizer.encode("\n")[0])
    except DataError:
        return 0


@dataclass(frozen=True, eq=False)
class TextRequest:
    """A prompt to be continued `settings.samples` times."""

    prompt: tuple[int, ...]
    settings: Sampling
    first_row: int = 0  # index of its first text; text i has the random numbers of row `first_row` + i of `generate`
    owner: Hashable = None  # owners take turns, however many requests each has
    score_prompt: bool = False  # return log-probabilities of the prompt's tokens, as many as `settings.logprobs` says
    generates: bool = True  # False to read the prompt only
    decode_text: bool = True  # False for tokens without their text
    stream: bool = True  # False for one event at the end


@dataclass(frozen=True)
class GeneratedTokens:
    """The tokens generated after a prompt, without the `<eos>` or stop token, and why they end."""

    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    loop: TextLoop | None
    stopped: StopReason
    seconds: float
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(slots=True)
class TextEvent:
    """Output of one decoding step for one sequence."""

    request: TextRequest
    index: int  # which of the request's sequences
    text: str = ""  # complete characters; nothing that may still become a stop string
    token: int | None = None  # the latest token; None if it does not belong to the text
    logprobs: tuple[TokenLogprob, ...] = ()  # of the tokens of this piece
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    """Of the prompt's tokens, None for the first; comes once, before the first piece."""
    result: GeneratedTokens | None = None  # all tokens and why they end, in the last event
    error: Exception | None = None  # why the sequence cannot be generated

    @property
    def row(self) -> int:
        """Index of the event's sequence among the sequences of all prompts."""
        return self.request.first_row + self.index


class TokenSequence:
    """A prompt and the tokens generated after it, with its random numbers, its text so far and its earlier states."""

    def __init__(
        self, request: TextRequest, index: int, prompt: tuple[int, ...], eos: int | None, tokenizer: Any
    ) -> None:
        settings = request.settings
        self.request, self.index, self.prompt, self.settings = request, index, prompt, settings
        self.is_greedy, self.random = settings.is_greedy, random.Random(settings.seed + request.first_row + index)
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.stop_reason: StopReason | None = None
        self.started_at = self.finished_at = 0.0
        self.detokenizer = Detokenizer(tokenizer, request.prompt) if request.decode_text or settings.stop else None
        self.stop_filter = StopStringFilter(settings.stop)
        self._eos, self._tokenizer = eos, tokenizer
        self._token_tensor: Tensor | None = None
        self._unsent_logprobs: list[TokenLogprob] = []
        self._used_tokens, self._generated_tokens = set(prompt), set[int]()
        self._first_steps: dict[bytes, int] = {}  # of each state, by its signature
        self._loop: TextLoop | None = None
        self._state_description = ""
        self._adjusts_logits = bool(settings.logit_bias or settings.depends_on_history)
        cuts = (settings.temperature, settings.top_k, settings.top_p, settings.min_p)
        self._sampling_key = (id(settings), len(prompt)) if self._adjusts_logits else (*cuts, settings.logprobs)

    @property
    def last_token(self) -> int:
        """Token that the model reads next."""
        return self.tokens[-1] if self.tokens else 0

    @property
    def sampling_key(self) -> tuple[Any, ...]:
        """Key of sequences whose next tokens can be sampled in one batch."""
        return (*self._sampling_key, len(self.tokens)) if self._adjusts_logits else self._sampling_key

    def all_tokens(self, device: torch.device) -> Int[Tensor, " read"]:
        """Return the ids of prompt and generated tokens on a device, for settings that depend on history."""
        if self._token_tensor is None:
            self._token_tensor = torch.tensor(self.prompt, device=device)
        missing = self.tokens[len(self._token_tensor) - len(self.prompt) :]
        if missing:
            self._token_tensor = torch.cat([self._token_tensor, self._token_tensor.new_tensor(missing)])
        return self._token_tensor

    def stop(self, reason: StopReason) -> None:
        """Mark the sequence as ended for a reason, and record the time."""
        self.stop_reason, self.finished_at = reason, time.perf_counter()

    def append(self, token: int, logprob: TokenLogprob | None) -> TextEvent | None:
        """Append the sampled token; return an event if text can be emitted now, else None.

        `<eos>` and stop tokens end the sequence and do not belong to the text.
        """
        settings = self.settings
        if token == self._eos:
            ending = "eos" if settings.stop_at_eos else None
        else:
            ending = "stop" if token in settings.stop_tokens else None
        if logprob:
            self._add_logprob(logprob, is_last=ending is not None)
        if ending:
            self.stop(ending)
            return self.finish()
        self.tokens.append(token)
        if settings.depends_on_history:
            self._used_tokens.add(token)
            self._generated_tokens.add(token)
        if len(self.tokens) == settings.tokens:
            self.stop("length")
        piece = self.detokenizer.add(token) if self.detokenizer else ""
        if settings.stop:
            piece = self.stop_filter.add(piece)
            if self.stop_filter.has_stopped:
                self.stop("stop")
        if self.stop_reason:
            return self.finish(piece, token)
        return self._make_event(piece, token) if self.request.stream and (piece or not self.detokenizer) else None

    def _add_logprob(self, logprob: TokenLogprob, is_last: bool) -> None:
        """Record a token's log-probability for the result and the next event; `is_last` if the token ends the text."""
        if self._tokenizer:
            logprob = logprob.with_text(self._tokenizer, self.tokens[-1:] or self.request.prompt[-1:])
        if not is_last:
            self.logprobs.append(logprob)
        # After a scored prompt the token that ends the text counts too: harnesses count logprobs from the end.
        if self.request.score_prompt or not is_last:
            self._unsent_logprobs.append(logprob)

    def finish(self, piece: str = "", token: int | None = None) -> TextEvent:
        """Return the last event: `piece` and `token` of this step, the text that was held back, and the result."""
        if self.detokenizer:
            piece += self.stop_filter.add(self.detokenizer.flush()) + self.stop_filter.flush()
            self.stop_reason = "stop" if self.stop_filter.has_stopped else self.stop_reason
        event = self._make_event(piece, token)
        event.result = self.result()
        return event

    def _make_event(self, piece: str, token: int | None) -> TextEvent:
        """Return an event with a piece of text, its last token, and all log-probabilities not sent yet."""
        if not self._unsent_logprobs:
            return TextEvent(self.request, self.index, piece, token)
        is_stop_string = self.stop_filter.has_stopped and not piece  # its tokens are not emitted
        logprobs, self._unsent_logprobs = () if is_stop_string else tuple(self._unsent_logprobs), []
        return TextEvent(self.request, self.index, piece, token, logprobs)

    def check_loop(self, state: State, row: int, model: LanguageModel) -> None:
        """Record a loop if all that the next token depends on, in row `row` of `state` and besides, occurred before.

        With `stop_at_loop` a loop, also one only observed three times, stops the sequence.

        While a bounded window is not full, and where the state is all that was read, no state recurs.
        """
        step, settings, field = len(self.tokens), self.settings, model.receptive_field or 0
        if not step:
            self._state_description = self._describe_state(state)
        can_recur = state.can_recur and not settings.history_setting and len(self.prompt) + step >= field
        if can_recur and self._loop is None:
            signature = self._extra_signature() + state.signature(row)
            key = signature if len(signature) <= 32 else blake2b(signature, digest_size=32).digest()
            if (first := self._first_steps.setdefault(key, step)) < step:
                self._loop = make_proved_loop(self.tokens, first, step, self._state_description)
        if settings.stop_at_loop:
            if self._loop is None:  # one seen three times, and for longer than the state in which it could be proved
                threshold = RECURRENCE_TOKENS if model.stateful else field
                threshold += STOP_STRING_TOKENS if settings.stop else 0
                observed = find_observed_loop(self.tokens, self._state_description) if step > threshold else None
                self._loop = observed if observed and step - observed.onset > threshold else None
            if self._loop:
                self.stop("loop")

    def _describe_state(self, state: State) -> str:
        """Return a noun phrase for all that the next token depends on, for the message about a loop."""
        settings = self.settings
        if settings.history_setting:
            return f"the text so far, on which {settings.history_setting} depends,"
        extra = ["the set of tokens used"] if settings.depends_on_history else []
        extra += ["what may become a stop string"] if settings.stop else []
        return " and ".join([state.about, *extra])

    def _extra_signature(self) -> bytes:
        """Return bytes that identify what the next token depends on besides the model's state, such as tokens used."""
        extra = ""
        if self.settings.depends_on_history:
            extra = f"{len(self._used_tokens)},{len(self._generated_tokens)};"
        if self.settings.stop and self.detokenizer:
            extra += f"{self.detokenizer.pending!r}{self.stop_filter.pending!r}"
        return extra.encode()

    def result(self) -> GeneratedTokens:
        """Return the generated tokens of a stopped sequence, why it stopped, and the loop in them if there is one."""
        assert self.stop_reason
        loop = self._loop
        if loop is None and self.is_greedy and self.stop_reason == "length":
            loop = find_observed_loop(self.tokens, self._state_description)
        logprobs = None if self.settings.logprobs is None else tuple(self.logprobs)
        seconds = self.finished_at - self.started_at
        return GeneratedTokens(self.prompt, tuple(self.tokens), loop, self.stop_reason, seconds, logprobs)


@dataclass(frozen=True)
class Generation(Result):
    """The text generated after a prompt."""

    prompt: str
    text: str
    tokens: tuple[int, ...]  # all that were generated: also those that spell a stop string, before which the text ends
    loop: TextLoop | None
    stopped: StopReason
    tokens_per_second: float
    logprobs: tuple[TokenLogprob, ...] | None = None
    seed: int | None = None  # that was drawn, if none was given: with it the same text comes again

    @property
    def title(self) -> str:
        """Heading of the result."""
        return "generated text"

    @property
    def note(self) -> str:
        """Up to two lines, about the loop and about the seed that was drawn; "" without both."""
        lines = [f"loop: {self.loop}" if self.loop else "", "" if self.seed is None else f"seed: {self.seed}"]
        return "\n".join(line for line in lines if line)

    @property
    def notes(self) -> str:
        """Text printed below the generated text: the loop, the seed, and the log-probabilities."""
        tables = as_text(self._tables())
        return "\n".join(([wrap_lines(self.note)] if self.note else []) + (["", tables] if tables else []))

    def _tables(self) -> list[Block]:
        """Return a list of one table, of the tokens with their log-probabilities; [] if these were not requested."""
        if self.logprobs is None:
            return []
        rows: list[tuple[str, ...]] = []
        for logprob in self.logprobs:
            top = ", ".join(f"{make_visible(other.text)} {other.logprob:.3f}" for other in logprob.top)
            rows.append((make_visible(logprob.text), f"{logprob.logprob:.3f}", top))
        if any(logprob.top for logprob in self.logprobs):
            return [Table(("token", "log p", "most likely"), rows, left=(0, 2), breakable=(2,))]
        return [Table(("token", "log p"), [row[:2] for row in rows], left=(0, 2))]

    def blocks(self) -> Iterable[Block]:
        """Yield prompt and text, then the note and the table of log-probabilities if there are any."""
        yield Pre([(self.prompt, "prompt"), (self.text, "")])
        if self.note:
            yield Text(self.note, "note")
        yield from self._tables()

    def __str__(self) -> str:  # the text as it is, never wrapped
        return f"{self.prompt}{self.text}\n{self.notes}".rstrip("\n")
