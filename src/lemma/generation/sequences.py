"""Requests to the engine, the sequences that it extends for them, and the events that it returns."""

import random
import time
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from lemma.generation.detokenizer import Detokenizer, StopStringFilter
from lemma.generation.loops import StateHistory, TextLoop, find_observed_loop, make_proved_loop
from lemma.generation.sampling import Sampling, TokenLogprob
from lemma.layers.state import State
from lemma.models.base import LanguageModel

RECURRENCE_TOKENS = 500  # of a loop, after which the hidden vectors of a recurrent model have recurred, if ever
STOP_STRING_TOKENS = 100  # of a loop, after which a stop string would have come, if ever
StopReason = Literal["length", "eos", "stop", "loop", "told"]
"""Why a text ends; `stop`: at a stop string or stop token; `told`: the caller asked for it."""


@dataclass(frozen=True, eq=False)
class TextRequest:
    """A prompt to be continued `settings.samples` times.

    Attributes:
        first_row: index of its first text; text i has the random numbers of row `first_row` + i of `generate`.
        owner: owners take turns, however many requests each has.
        score_prompt: return log-probabilities of the prompt's own tokens, as many as `settings.logprobs` says.
        generates: False to read the prompt only.
        decode_text: False for tokens without their text.
        stream: False for one event at the end.
    """

    prompt: tuple[int, ...]
    settings: Sampling
    first_row: int = 0
    owner: Hashable = None
    score_prompt: bool = False
    generates: bool = True
    decode_text: bool = True
    stream: bool = True


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
    """Output of one decoding step for one sequence.

    Attributes:
        index: which of the request's sequences.
        text: complete characters; nothing that may still become a stop string.
        token: the latest token; None if it does not belong to the text.
        logprobs: of the tokens of this piece.
        prompt_logprobs: of the prompt's tokens, None for the first; comes once, before the first piece.
        result: all tokens and why they end, in the last event.
        error: why the sequence cannot be generated.
    """

    request: TextRequest
    index: int
    text: str = ""
    token: int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    result: GeneratedTokens | None = None
    error: Exception | None = None


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
        self._states = StateHistory()
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
        """Return prompt and generated tokens, for settings that depend on history."""
        if self._token_tensor is None:
            self._token_tensor = torch.tensor(self.prompt, device=device)
        missing = self.tokens[len(self._token_tensor) - len(self.prompt) :]
        if missing:
            self._token_tensor = torch.cat([self._token_tensor, self._token_tensor.new_tensor(missing)])
        return self._token_tensor

    def stop(self, reason: StopReason) -> None:
        """End here, and stop the clock."""
        self.stop_reason, self.finished_at = reason, time.perf_counter()

    def append(self, token: int, logprob: TokenLogprob | None) -> TextEvent | None:
        """Take the next token; return what can be emitted by now. `<eos>` and stop tokens do not belong to the text."""
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
        if self._tokenizer:
            logprob = logprob.with_text(self._tokenizer, self.tokens[-1:] or self.request.prompt[-1:])
        if not is_last:
            self.logprobs.append(logprob)
        # After a scored prompt the token that ends the text counts too: harnesses count logprobs from the end.
        if self.request.score_prompt or not is_last:
            self._unsent_logprobs.append(logprob)

    def finish(self, piece: str = "", token: int | None = None) -> TextEvent:
        """Return the last event: the text that was held back, and the result."""
        if self.detokenizer:
            piece += self.stop_filter.add(self.detokenizer.flush()) + self.stop_filter.flush()
            self.stop_reason = "stop" if self.stop_filter.has_stopped else self.stop_reason
        event = self._make_event(piece, token)
        event.result = self.result()
        return event

    def _make_event(self, piece: str, token: int | None) -> TextEvent:
        if not self._unsent_logprobs:
            return TextEvent(self.request, self.index, piece, token)
        is_stop_string = self.stop_filter.has_stopped and not piece  # its tokens are not emitted
        logprobs, self._unsent_logprobs = () if is_stop_string else tuple(self._unsent_logprobs), []
        return TextEvent(self.request, self.index, piece, token, logprobs)

    def check_loop(self, state: State, row: int, model: LanguageModel) -> None:
        """Look for an earlier state equal to that of this row of a batch, with all else the next token depends on.

        While a bounded window is not full, and where the state is all that was read, no state recurs.
        """
        step, settings, field = len(self.tokens), self.settings, model.receptive_field or 0
        if not step:
            self._state_description = self._describe_state(state)
        can_recur = state.can_recur and not settings.history_setting and len(self.prompt) + step >= field
        if can_recur and self._loop is None:
            first = self._states.find_earlier(self._extra_signature() + state.signature(row), step)
            if first is not None:
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
        settings = self.settings
        if settings.history_setting:
            return f"the text so far, on which {settings.history_setting} depends,"
        extra = ["the set of tokens used"] if settings.depends_on_history else []
        extra += ["what may become a stop string"] if settings.stop else []
        return " and ".join([state.about, *extra])

    def _extra_signature(self) -> bytes:
        """Return what the next token depends on besides the model's state."""
        extra = ""
        if self.settings.depends_on_history:
            extra = f"{len(self._used_tokens)},{len(self._generated_tokens)};"
        if self.settings.stop and self.detokenizer:
            extra += f"{self.detokenizer.pending!r}{self.stop_filter.pending!r}"
        return extra.encode()

    def result(self) -> GeneratedTokens:
        """Return the generated tokens, and the loop in them."""
        assert self.stop_reason
        loop = self._loop
        if loop is None and self.is_greedy and self.stop_reason == "length":
            loop = find_observed_loop(self.tokens, self._state_description)
        logprobs = None if self.settings.logprobs is None else tuple(self.logprobs)
        seconds = self.finished_at - self.started_at
        return GeneratedTokens(self.prompt, tuple(self.tokens), loop, self.stop_reason, seconds, logprobs)
