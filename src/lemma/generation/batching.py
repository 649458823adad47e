"""The engine that writes texts, of one call of `generate` or of all clients of a server: continuous batching.

Each step reads the next token of every text that has a row, and at most a chunk of the prompts that wait, so that a
long prompt never holds the others up; then it chooses one token for every text. A text that ends, or whose reader has
left, frees its row for the next. In float32 every text has the tokens that it has alone: who else is in the batch
changes nothing but the last bit of rounding.

States are joined where their shapes are equal; where none are, rows are stepped one by one. A decoder's texts of
different lengths are rows of one `DecoderSlots`, each at a place of its own, until their window is full. Texts of one
length that begin `together` stay one state: on a GPU, their step is a graph that chooses its own tokens.
"""

import math
import random
import time
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lemma.data.tokenizers import Tokenizer
from lemma.errors import InputError
from lemma.generation.decode import (
    LOGITS_AT_ONCE,
    NAN_LOGITS,
    Detokenizer,
    GeneratedTokens,
    Sampling,
    StateHistory,
    StopReason,
    StopStringFilter,
    TextLoop,
    TokenLogprob,
    adjust_logits,
    check_tokens,
    fast_copy,
    find_observed_loop,
    make_proved_loop,
    sample_tokens,
    start_token,
    token_logprobs,
)
from lemma.layers.positions import RotaryEmbedding
from lemma.layers.state import State
from lemma.models.base import LanguageModel, has_hooks
from lemma.models.decoder import (
    CACHE_ALIGNMENT,
    DecoderCache,
    DecoderModel,
    DecoderSlotCache,
    step_in_numpy,
    supports_numpy,
)

PROMPT_CHUNK = {"cpu": 256, "cuda": 4096}  # tokens of prompts that are read in one step
CHUNK_FLOPS = 2**34  # of a CPU for them: a third of a second, and 64 tokens of a model of 135 M parameters
LENGTH_BUCKET = {
    "cpu": 16,
    "cuda": 64,
}  # a decoder's prompts of up to the same multiple of this length are read together
DECODE_CACHE_SIZE = 2**16  # pairs of tokens whose text is remembered
RECURRENCE_TOKENS = 500  # tokens of a loop after which the hidden vectors of a recurrent model have come back, if ever
STOP_STRING_TOKENS = 100  # tokens of a loop after which a stop string would have come, if ever
Logits = Float[Tensor, "rows vocabulary"]


@dataclass(frozen=True, eq=False)
class TextRequest:
    """A prompt to be continued `settings.samples` times."""

    prompt: tuple[int, ...]
    settings: Sampling
    first_row: int = 0
    """The number of its first text: text i has the random numbers of row `number` + i of `generate`."""
    owner: Hashable = None
    """Owners take turns, however many requests each has."""
    score_prompt: bool = False
    """Whether the log-probabilities of the prompt's own tokens are wanted, as many as `settings.logprobs` says."""
    generates: bool = True
    """False where only the prompt is to be read."""
    decode_text: bool = True
    """False where the tokens are wanted, and not the text as it comes."""
    stream: bool = True
    """False where nobody waits for the tokens one by one: there is an event at the end alone."""


@dataclass(slots=True)
class TextEvent:
    """What a step adds to a text."""

    request: TextRequest
    index: int
    """Which of the request's texts."""
    text: str = ""
    """Whole characters; nothing that may still become a stop string."""
    token: int | None = None
    """The latest token; None if it does not belong to the text."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of the tokens of this piece."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    """Of the prompt's tokens, the first of which has none; comes once, before the first piece."""
    result: GeneratedTokens | None = None
    """All tokens and why they end, at the end."""
    error: Exception | None = None
    """Why it cannot be written."""


class TokenSequence:
    """One text: its prompt, what has been generated after it, its random numbers, and the states it has been in."""

    def __init__(
        self, request: TextRequest, index: int, prompt: tuple[int, ...], eos: int | None, tokenizer: Any
    ) -> None:
        self.request, self.index, self.prompt, self.settings = request, index, prompt, request.settings
        self.is_greedy, self.random = (
            self.settings.is_greedy,
            random.Random(self.settings.seed + request.first_row + index),
        )
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.stop_reason: StopReason | None = None
        self.started_at = self.finished_at = 0.0
        settings, self._eos, self._tokenizer = self.settings, eos, tokenizer
        self.detokenizer = Detokenizer(tokenizer, request.prompt) if request.decode_text or settings.stop else None
        self.stop_filter = StopStringFilter(settings.stop)
        self._history_tensor: Tensor | None = None
        self._unsent_logprobs: list[TokenLogprob] = []
        self._seen_tokens, self._generated_tokens = set(prompt), set[int]()
        self._history = StateHistory()
        self._loop: TextLoop | None = None
        self._state_description = ""
        cuts = (settings.temperature, settings.top_k, settings.top_p, settings.min_p)
        adjusts = settings.logit_bias or settings.depends_on_history
        self._sampling_key = (id(settings), len(prompt)) if adjusts else (*cuts, settings.logprobs)
        self._adjusts_logits = bool(adjusts)

    @property
    def last_token(self) -> int:
        """The token that the model reads next."""
        return self.tokens[-1] if self.tokens else 0

    @property
    def sampling_key(self) -> tuple[Any, ...]:
        """Of texts for which this is equal, the next tokens can be chosen at once."""
        return (*self._sampling_key, len(self.tokens)) if self._adjusts_logits else self._sampling_key

    def history(self, device: torch.device) -> Int[Tensor, " history"]:
        """All tokens so far, for what looks back."""
        if self._history_tensor is None:
            self._history_tensor = torch.tensor(self.prompt, device=device)
        missing = self.tokens[len(self._history_tensor) - len(self.prompt) :]
        self._history_tensor = (
            torch.cat([self._history_tensor, self._history_tensor.new_tensor(missing)])
            if missing
            else self._history_tensor
        )
        return self._history_tensor

    def stop(self, reason: StopReason) -> None:
        """End here, and stop the clock."""
        self.stop_reason, self.finished_at = reason, time.perf_counter()

    def append(self, token: int, logprob: TokenLogprob | None) -> TextEvent | None:
        """Take the next token; return what can be told by now. `<eos>` and stop tokens do not belong to the text."""
        settings = self.settings
        if token == self._eos:
            ends = "eos" if settings.stop_at_eos else None
        else:
            ends = "stop" if token in settings.stop_tokens else None
        if logprob:
            before = self.tokens[-1:] or self.request.prompt[-1:]
            logprob = logprob.with_text(self._tokenizer, before) if self._tokenizer else logprob
            # after the scores of a prompt, which harnesses count from the end, also of the token that ends the text
            self._unsent_logprobs += [logprob] if self.request.score_prompt or not ends else []
            self.logprobs += [] if ends else [logprob]
        if ends:
            self.stop(ends)
            return self.finish()
        self.tokens.append(token)
        if settings.depends_on_history:
            self._seen_tokens.add(token)
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
        return self._event(piece, token) if self.request.stream and (piece or not self.detokenizer) else None

    def finish(self, piece: str = "", token: int | None = None) -> TextEvent:
        """Tell what was held back, and all about the text that has ended."""
        if self.detokenizer:
            piece += self.stop_filter.add(self.detokenizer.flush()) + self.stop_filter.flush()
            self.stop_reason = "stop" if self.stop_filter.has_stopped else self.stop_reason
        event = self._event(piece, token)
        event.result = self.result()
        return event

    def _event(self, piece: str, token: int | None) -> TextEvent:
        if not self._unsent_logprobs:
            return TextEvent(self.request, self.index, piece, token)
        cut = self.stop_filter.has_stopped and not piece  # what spells a stop string is not told
        logprobs, self._unsent_logprobs = () if cut else tuple(self._unsent_logprobs), []
        return TextEvent(self.request, self.index, piece, token, logprobs)

    def check_loop(self, state: State, row: int, model: LanguageModel) -> None:
        """See whether the state of this row of a batch, with all else the text depends on, has been the same before.

        While a bounded memory is not full, and where it is all that was read, no state comes back.
        """
        step, settings, memory = len(self.tokens), self.settings, model.receptive_field or 0
        if not step:
            also = ["the set of tokens used"] if settings.depends_on_history else []
            also += ["what may become a stop string"] if settings.stop else []
            self._state_description = " and ".join([state.about, *also])
            if settings.history_setting:
                self._state_description = f"the text so far, on which {settings.history_setting} depends,"
        comes_back = state.can_recur and not settings.history_setting and len(self.prompt) + step >= memory
        if comes_back and self._loop is None:
            also = f"{len(self._seen_tokens)},{len(self._generated_tokens)};" if settings.depends_on_history else ""
            if settings.stop and self.detokenizer:
                also += f"{self.detokenizer.pending!r}{self.stop_filter.pending!r}"
            first = self._history.find_earlier(also.encode() + state.signature(row), step)
            if first is not None:
                self._loop = make_proved_loop(self.tokens, first, step, self._state_description)
        if settings.stop_at_loop:
            if self._loop is None:  # one seen three times, and for longer than the memory in which it could be proved
                memory = (RECURRENCE_TOKENS if model.stateful else memory) + (
                    STOP_STRING_TOKENS if settings.stop else 0
                )
                seen = find_observed_loop(self.tokens, self._state_description) if step > memory else None
                self._loop = seen if seen and step - seen.onset > memory else None
            if self._loop:
                self.stop("loop")

    def result(self) -> GeneratedTokens:
        """Return what has been generated, and the loop in it."""
        assert self.stop_reason
        loop = self._loop
        if loop is None and self.settings.is_greedy and self.stop_reason == "length":
            loop = find_observed_loop(self.tokens, self._state_description)
        logprobs = None if self.settings.logprobs is None else tuple(self.logprobs)
        return GeneratedTokens(
            self.prompt, tuple(self.tokens), loop, self.stop_reason, self.finished_at - self.started_at, logprobs
        )


@dataclass(eq=False)
class PromptPrefill:
    """A prompt that is being read, chunk by chunk."""

    request: TextRequest
    sequences: list[TokenSequence]
    tokens: tuple[int, ...]
    """What the model reads: of a prompt longer than its receptive field, the end."""
    position: int = 0
    state: State | None = None
    logprobs: list[TokenLogprob | None] = field(default_factory=lambda: [None])


@dataclass(eq=False)
class SequenceGroup:
    """Texts whose states have one shape, as one state."""

    sequences: list[TokenSequence]
    state: State
    graph_step: Any = None
    """On a GPU, of texts that stay together: the step that chooses its own tokens (`engine.GraphedStep`)."""
    next_tokens: Int[Tensor, " sequences"] | None = None
    """The tokens that it reads next, if they were chosen for these texts and no others."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """What must be equal for states to be joined."""
        return tuple((name, *tensor.shape[1:]) for name, tensor in self.state.tensors().items())

    def drop_finished(self) -> "SequenceGroup":
        """Drop the texts that have ended."""
        going = [place for place, text in enumerate(self.sequences) if not text.stop_reason]
        if len(going) == len(self.sequences):
            return self
        if self.graph_step:
            self.graph_step.idle = not going
            # slots keep their rows until half of them have ended: another number of rows is another graph
            keeps = going and (2 * len(going) > len(self.sequences) or self.graph_step.has_tokens_ahead)
            if keeps and isinstance(self.state, DecoderSlotCache):
                return self
        state = self.state.select_rows(torch.tensor(going, dtype=torch.long)) if going else self.state
        return SequenceGroup([self.sequences[place] for place in going], state, self.graph_step)

    @staticmethod
    def merge(pools: Sequence["SequenceGroup"]) -> "list[SequenceGroup]":
        """Join those of one shape."""
        groups: dict[tuple[Any, ...], list[SequenceGroup]] = {}
        for pool in pools:
            groups.setdefault(pool.shape, []).append(pool)
        found: list[SequenceGroup] = []
        for group in groups.values():
            state, parts = group[0].state, [pool.state.tensors() for pool in group]
            if len(group) > 1:
                state = state.with_tensors({name: torch.cat([one[name] for one in parts]) for name in parts[0]})
            found.append(SequenceGroup([text for pool in group for text in pool.sequences], state))
        return found


class SlotBatch:
    """A decoder's texts in the rows of one `DecoderSlots`, each at its own place; rows and room go by doubling.

    On a GPU, where another shape is another graph, there are `rows` rows from the beginning, and room is never given
    back.
    """

    def __init__(self, model: DecoderModel, rows: int, dtype: torch.dtype | None) -> None:
        self.model, self.dtype, self.window = model, dtype, model.window
        replays = next(model.parameters()).is_cuda and not has_hooks(model)
        if dtype is not None and replays and next(model.parameters()).dtype == torch.float32:
            from lemma.generation.engine import cast_copy  # a GPU's own part

            self.model = cast_copy(model, dtype).model
        else:
            self.dtype = None
        self.has_fixed_shape = replays
        self.min_rows = rows if self.has_fixed_shape else 1
        self.sequences: list[TokenSequence | None] = []
        self.lengths: list[int] = []
        self.slots: DecoderSlotCache | None = None
        self.step_model: Any = None

    @property
    def num_active(self) -> int:
        """How many rows have a text."""
        return len(self.sequences) - self.sequences.count(None)

    def admit(
        self, sequences: Sequence[TokenSequence], cache: State, cache_rows: Sequence[int], padding: Sequence[int] = ()
    ) -> bool:
        """Give each text a row, with what a cache holds at its place; False for a decoder's whose window is full.

        The last tokens of a place, as many as its padding, are not the text's own and will be written over.
        """
        cache = cache.to_cache() if isinstance(cache, DecoderSlotCache) else cache  # of a text that was alone
        if not isinstance(cache, DecoderCache) or not cache.layers or cache.seen.shape[1] == cache.window:
            return False
        if self.dtype is not None:
            layers = tuple(tuple(one.to(self.dtype) for one in layer) for layer in cache.layers)
            cache = DecoderCache(cache.seen, cache.window, layers)
        longest = cache.seen.shape[1]
        self.slots = self.slots or DecoderSlotCache(cache, longest + 1)
        if self.sequences.count(None) < len(sequences) or longest >= self.slots.capacity:
            self._resize(len(sequences), longest)
        rows = [row for row, text in enumerate(self.sequences) if text is None][: len(sequences)]
        for row, text, beyond in zip(rows, sequences, padding or [0] * len(sequences), strict=True):
            self.sequences[row], self.lengths[row] = text, longest - beyond
        self.slots.write_rows(rows, cache, cache_rows)
        return True

    def drop_finished(self) -> None:
        """Free the rows of texts that have ended; give memory back where a quarter would do."""
        for row, text in enumerate(self.sequences):
            if text and text.stop_reason:
                self.sequences[row], self.lengths[row] = None, 0
        if self.slots is None or self.has_fixed_shape:
            return
        if not self.num_active:
            self.slots, self.sequences, self.lengths, self.step_model = None, [], [], None
        elif (
            4 * self.num_active <= len(self.sequences) or 4 * max(self.lengths) < self.slots.capacity > CACHE_ALIGNMENT
        ):
            self._resize()

    def step(self) -> tuple[list[TokenSequence], Logits, list[SequenceGroup]]:
        """Read one token of each text; return the texts, their logits, and those whose window is full by now."""
        assert self.slots is not None
        if max(self.lengths) >= self.slots.capacity:
            self._resize()
        slots = self.slots
        slots.lengths.copy_(torch.tensor(self.lengths))  # free rows write at 0, where nobody reads
        tokens = [[text.last_token if text else 0] for text in self.sequences]
        reached = slots if self.has_fixed_shape else slots.narrow(max(self.lengths) + 1)
        logits = self.step_model(torch.tensor(tokens, device=slots.lengths.device), reached)
        self.lengths = [length + 1 if text else 0 for text, length in zip(self.sequences, self.lengths, strict=True)]
        there = [(row, text) for row, text in enumerate(self.sequences) if text]
        full: list[SequenceGroup] = []
        for row, text in there:
            if self.lengths[row] == self.window:
                seen = slots.tokens[row, None, : self.window].clone()  # before the row is another text's
                full.append(SequenceGroup([text], DecoderCache(seen, self.window)))
                self.sequences[row], self.lengths[row] = None, 0
        logits = logits if len(there) == len(logits) else logits[[row for row, _ in there]]
        return [text for _, text in there], logits, full

    def _resize(self, more: int = 0, length: int = 0) -> None:
        """Bring the texts into as many rows, of as much room, as they need, and make the step for that shape."""
        assert self.slots is not None
        rows = [row for row, text in enumerate(self.sequences) if text]
        batch = max(self.min_rows, 1 << (max(1, len(rows) + more) - 1).bit_length())
        room = self.slots.capacity if self.has_fixed_shape else CACHE_ALIGNMENT
        while room <= max((length, *self.lengths)):
            room *= 2
        index = torch.tensor(rows, dtype=torch.long, device=self.slots.row_index.device)
        self.slots = self.slots.resize(index, batch, room)
        self.sequences = [*(self.sequences[row] for row in rows), *[None] * (batch - len(rows))]
        self.lengths = [*(self.lengths[row] for row in rows), *[0] * (batch - len(rows))]
        for part in self.model.modules():
            if isinstance(part, RotaryEmbedding):
                part.ensure_length(room)
        plain = fast_copy(self.model).step
        self.step_model = lambda tokens, slots: plain(tokens, slots)[:, -1]
        if self.has_fixed_shape:
            from lemma.generation.engine import MIN_TRITON_TOKENS, GraphedStep  # a GPU's own part

            logits_only = Sampling(tokens=MIN_TRITON_TOKENS, logprobs=0)  # each text has settings of its own
            graph = GraphedStep(self.model, self.slots, self.model, logits_only)

            def replay(tokens: Tensor, slots: DecoderSlotCache) -> Tensor:
                slots.length = 0  # and a place of its own
                return graph(tokens, slots, [])[0][:, -1]

            self.step_model = replay


class BatchEngine:
    """Writes the texts of many requests at once, at most `rows` of them.

    `step` returns what has been written since the last one. It is not thread-safe: one thread does everything.

    >>> engine = BatchEngine(model, tokenizer)  # doctest: +SKIP
    >>> engine.add(TextRequest((5, 8), Sampling(tokens=20)))  # doctest: +SKIP
    >>> while engine.busy:  # doctest: +SKIP
    ...     print("".join(event.text for event in engine.step()), end="")
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer | None,
        rows: int = 32,
        chunk: int | None = None,
        dtype: torch.dtype | None = None,
        eos: int | None = None,
        same_length: bool = False,
    ) -> None:
        """Without a tokenizer it writes tokens, up to `eos`, and no text.

        `together`: all prompts have one length and the same settings, and have been added before the first step.
        """
        if rows < 1:
            raise InputError(f"rows = {rows} is less than 1: say how many texts are written at once.")
        self.model, self.tokenizer, self.rows, self.dtype, self.same_length = model, tokenizer, rows, dtype, same_length
        self.eos = tokenizer.eos if tokenizer else eos
        self.device = next(model.parameters()).device
        kind = "cuda" if self.device.type == "cuda" else "cpu"
        if chunk is None:
            parameters = sum(one.numel() for one in model.parameters())
            affordable = max(16, CHUNK_FLOPS // (2 * parameters)) if kind == "cpu" else PROMPT_CHUNK[kind]
            chunk = min(PROMPT_CHUNK[kind], affordable)
        logits = LOGITS_AT_ONCE * (8 if self.device.type == "cuda" else 1)  # 512 MB of a GPU's memory
        self.chunk = max(1, min(chunk, logits // model.spec.vocabulary))
        self.waiting: OrderedDict[Hashable, deque[PromptPrefill]] = OrderedDict()
        self.prefilling: deque[PromptPrefill] = deque()
        self.groups: list[SequenceGroup] = []
        self.step_model = fast_copy(model)
        self.slots: SlotBatch | None = None
        if (
            not same_length
            and isinstance(model, DecoderModel)
            and model.supports_slots()
            and self.step_model is not model
        ):
            self.slots = SlotBatch(model, rows, dtype)
            bounds = (model.window, model.spec.window)  # a cache beyond them no longer holds all that was read
            self.padded, self.below = LENGTH_BUCKET[kind], min((bound for bound in bounds if bound), default=math.inf)
        self._surroundings: Any = nullcontext
        if self.device.type == "cuda":
            from lemma.generation.engine import without_cudnn_attention  # a GPU's own part

            self._surroundings = without_cudnn_attention
        self._cached_tokenizer: Any = None
        if tokenizer:
            decode = lru_cache(DECODE_CACHE_SIZE)(tokenizer.decode)
            self._cached_tokenizer = SimpleNamespace(kind=tokenizer.kind, decode=lambda ids: decode(tuple(ids)))

    @cached_property
    def step_single(self) -> Any:
        """What reads the next token of a text that is alone."""
        if supports_numpy(self.model) and not has_hooks(self.model):
            return partial(step_in_numpy, self.model, self.step_model)
        return self.step_model

    @property
    def num_running(self) -> int:
        """How many texts have a row, or will have one as soon as their prompt is read."""
        return (self.slots.num_active if self.slots else 0) + sum(
            len(one.sequences) for one in (*self.groups, *self.prefilling)
        )

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.waiting or self.groups or self.prefilling or (self.slots and self.slots.num_active))

    def check(self, request: TextRequest) -> None:
        """Refuse what the model cannot read or write."""
        vocabulary = self.model.spec.vocabulary
        for name in ("stop_tokens", "logit_bias"):
            check_tokens(name, getattr(request.settings, name), vocabulary)
        check_tokens("prompt", request.prompt, vocabulary)

    def add(self, request: TextRequest) -> list[TokenSequence]:
        """Let a request wait for its turn; return its texts."""
        self.check(request)
        prompt, field = request.prompt, self.model.receptive_field
        if not prompt:
            assert self.tokenizer, "without a tokenizer a prompt needs a token"
            prompt = (start_token(self.tokenizer),)
        seen = prompt[-field:] if field and not request.score_prompt else prompt
        numbers = range(request.settings.samples)
        texts = [TokenSequence(request, index, prompt, self.eos, self._cached_tokenizer) for index in numbers]
        queue = self.waiting.setdefault(request.owner, deque())
        queue.extend(PromptPrefill(request, texts[begin : begin + self.rows], seen) for begin in numbers[:: self.rows])
        return texts

    def cancel(self, owner: Hashable) -> None:
        """Drop all that an owner asked for; its rows are free at the next step."""
        self.waiting.pop(owner, None)
        self.prefilling = deque(prompt for prompt in self.prefilling if prompt.request.owner != owner)
        slotted = self.slots.sequences if self.slots else []
        for text in (*slotted, *(text for pool in self.groups for text in pool.sequences)):
            if text and text.request.owner == owner and not text.stop_reason:
                text.stop("told")

    def close(self) -> None:
        """Give back what others may use."""
        for pool in self.groups:
            if pool.graph_step:
                pool.graph_step.idle = True

    def step(self) -> list[TextEvent]:
        """Read one token of every text and a chunk of the prompts, then choose the next token of every text."""
        events: list[TextEvent] = []
        inference = nullcontext() if torch.is_inference_mode_enabled() else torch.inference_mode()
        with self._surroundings(), inference:
            found = self._decode(events)
            if self.waiting or self.prefilling:
                found += self._prefill(events)
            if len(found) == 1:
                self._sample(*found[0], events)
            elif found:
                self._sample(
                    [text for texts, _ in found for text in texts], torch.cat([one for _, one in found]), events
                )
        return events

    def _decode(self, events: list[TextEvent]) -> list[tuple[list[TokenSequence], Logits]]:
        """Read one token of every text; return the logits of what comes next."""
        if self.same_length and (self.waiting or self.prefilling):
            return []  # those that stay together begin together
        found: list[tuple[list[TokenSequence], Logits]] = []
        pools = [pool for pool in map(SequenceGroup.drop_finished, self.groups) if pool.sequences]
        slots, going = (
            self.slots,
            list[SequenceGroup](),
        )  # who counts texts meanwhile, in another thread, sees those before
        if slots:
            slots.drop_finished()
            if self.prefilling or self.waiting or slots.num_active:  # the text that was alone has company
                pools = [
                    pool for pool in pools if not slots.admit(pool.sequences, pool.state, range(len(pool.sequences)))
                ]
        for pool in SequenceGroup.merge(pools) if len(pools) > 1 else pools:
            if (
                self.same_length
                and self.device.type == "cuda"
                and not pool.graph_step
                and len(pool.sequences[0].tokens) == 1
            ):
                from lemma.generation import engine  # a GPU's own part

                settings = pool.sequences[0].settings
                pool.graph_step, pool.state = engine.fast_step(
                    self.model, pool.state, self.step_model, settings, self.dtype
                )
            if pool.next_tokens is None:
                pool.next_tokens = torch.tensor([text.last_token for text in pool.sequences], device=self.device)
            tokens, pool.next_tokens = pool.next_tokens.unsqueeze(1), None
            if pool.graph_step:
                logits, pool.state = pool.graph_step(tokens, pool.state, pool.sequences)
            else:
                read = self.step_single if len(pool.sequences) == 1 else self.step_model
                logits, pool.state = read(tokens, pool.state)
            going.append(pool)
            self._check_loops(pool.sequences, pool.state, events)
            found.append((pool.sequences, logits.select(1, -1)))
        if slots and slots.num_active:
            texts, logits, full = slots.step()
            states = {pool.sequences[0]: pool.state for pool in full}
            assert slots.slots
            for text in texts:
                if text.is_greedy:
                    self._check_loops([text], states.get(text, slots.slots), events)
            found.append((texts, logits))
            going += full
        self.groups = going
        return found

    def _prefill(self, events: list[TextEvent]) -> list[tuple[list[TokenSequence], Logits]]:
        """Let requests in as rows are free, owner by owner, and read a chunk of their prompts, each in its turn."""
        writing = self.num_running
        while self.waiting:
            owner, queue = next(iter(self.waiting.items()))
            if writing and writing + len(queue[0].sequences) > self.rows:
                break
            prompt = queue.popleft()
            writing += len(prompt.sequences)
            for text in prompt.sequences:
                text.started_at = time.perf_counter()
            self.prefilling.append(prompt)
            self.waiting.move_to_end(owner) if queue else self.waiting.pop(owner)
        groups: dict[Hashable, list[tuple[PromptPrefill, tuple[int, ...]]]] = {}
        widths: dict[int, int] = {}  # of the groups that are padded
        left = self.chunk
        while self.prefilling and left > 0:
            size = len(self.prefilling[0].tokens) - self.prefilling[0].position
            if left < size <= self.chunk:
                break  # it is read whole in the next step
            prompt, size = self.prefilling.popleft(), min(left, size)
            left -= size
            kind: Hashable = (prompt if prompt.state else None, size)
            if self.slots and size == len(prompt.tokens) < self.below:
                about = -(-size // self.padded)
                before, count = widths.get(about, 0), len(groups.get(about, ()))
                wide = max(size, before)
                padding = wide * (count + 1) - before * count - size
                if padding <= left:  # it is read like tokens
                    kind, widths[about], left = about, wide, left - padding
            groups.setdefault(kind, []).append((prompt, prompt.tokens[prompt.position : prompt.position + size]))
        begun: list[tuple[list[TokenSequence], Logits]] = []
        for group in groups.values():
            places = {piece: place for place, piece in enumerate(dict.fromkeys(piece for _, piece in group))}
            longest = max(map(len, places))  # what follows a shorter one changes nothing before it
            rows = [(*piece, *[0] * (longest - len(piece))) for piece in places]
            logits, state = self.step_model(torch.tensor(rows, device=self.device), group[0][0].state)
            texts: list[TokenSequence] = []
            index: list[int] = []
            beyond: list[int] = []
            for prompt, piece in group:
                place, request, size = places[piece], prompt.request, len(piece)
                if request.score_prompt:
                    nexts = prompt.tokens[prompt.position + 1 : prompt.position + size + 1]
                    targets = torch.tensor(nexts, dtype=torch.long, device=self.device)
                    found = token_logprobs(logits[place, : len(nexts)], targets, request.settings.logprobs or 0)
                    if self._cached_tokenizer:
                        pairs = zip(found, prompt.tokens[prompt.position :], strict=False)
                        found = [one.with_text(self._cached_tokenizer, (before,)) for one, before in pairs]
                    prompt.logprobs += found
                prompt.position += size
                if prompt.position < len(prompt.tokens):
                    prompt.state = state if len(places) == 1 else state.select_rows(torch.tensor([place]))
                    self.prefilling.append(prompt)
                    continue
                if request.score_prompt and prompt.sequences[0].index == 0:
                    scores = tuple(prompt.logprobs) if request.prompt else ()  # not of the token that begins every text
                    events.append(TextEvent(request, 0, prompt_logprobs=scores))
                if request.generates:
                    texts += prompt.sequences
                    index += [place] * len(prompt.sequences)
                    beyond += [longest - size] * len(prompt.sequences)
                else:
                    nothing = GeneratedTokens(request.prompt, (), None, "length", 0.0)
                    events += [TextEvent(request, text.index, result=nothing) for text in prompt.sequences]
            if texts:
                self._start_sequences(texts, state, index, beyond, events)
                begun.append((texts, logits[index, [-1 - one for one in beyond]]))
        return begun

    def _start_sequences(
        self, texts: list[TokenSequence], state: State, places: list[int], padding: list[int], events: list[TextEvent]
    ) -> None:
        """Give texts whose prompts have been read their rows, each with what a state holds at its place."""
        count = len(next(iter(state.tensors().values())))
        alone = self.device.type == "cpu" and len(texts) == count == 1 and self.num_running == 0 and not self.waiting
        if not self.slots or alone or not self.slots.admit(texts, state, places, padding):
            state = state if places == list(range(count)) else state.select_rows(torch.tensor(places))
            self.groups.append(SequenceGroup(texts, state))
            places = list(range(len(texts)))
        self._check_loops(texts, state, events, places)

    def _check_loops(
        self, texts: list[TokenSequence], state: State, events: list[TextEvent], places: Sequence[int] = ()
    ) -> None:
        """See which texts at temperature 0 are in a loop; end those that are to stop there."""
        for place, text in enumerate(texts):
            if text.is_greedy and not text.stop_reason:
                text.check_loop(state, places[place] if places else place, self.model)
                if text.stop_reason:
                    events.append(text.finish())

    def _sample(self, texts: list[TokenSequence], logits: Logits, events: list[TextEvent]) -> None:
        """Choose the next token of every text by its own settings and random numbers; those alike at once."""
        ahead = self.groups[0].graph_step.tokens() if self.groups and self.groups[0].graph_step else None
        if ahead is not None:
            broken = (ahead < 0).tolist()
        else:
            broken = logits.isnan().any(-1).tolist() if math.isnan(logits.max()) else ()
        groups: dict[tuple[Any, ...], list[int]] = {}
        for place, text in enumerate(texts):
            if broken and broken[place] and not text.stop_reason:
                text.stop("told")
                events.append(TextEvent(text.request, text.index, error=InputError(NAN_LOGITS)))
            if not text.stop_reason:  # a text may have ended in a loop, or keep its row for a while
                groups.setdefault(text.sampling_key, []).append(place)
        waiting = deque(groups.values())
        while waiting:
            places = waiting.popleft()
            whole, alike = len(places) == len(texts), [texts[place] for place in places]
            settings, some = alike[0].settings, logits if whole else logits[places]
            if ahead is not None:
                tokens = ahead if whole else ahead[places]
            else:
                read = (
                    torch.stack([text.history(self.device) for text in alike])
                    if settings.depends_on_history
                    else logits
                )
                try:
                    fit = adjust_logits(some, settings, read, len(alike[0].tokens))
                except InputError as error:
                    if len(alike) > 1:
                        waiting.extend([place] for place in places)
                    else:
                        alike[0].stop("told")
                        events.append(TextEvent(alike[0].request, alike[0].index, error=error))
                    continue
                tokens = sample_tokens(
                    fit, settings, () if settings.is_greedy else [text.random.random() for text in alike]
                )
            asked = settings.logprobs
            logprobs = [None] * len(alike) if asked is None else token_logprobs(some, tokens, asked)
            if whole and len(self.groups) == 1 and len(self.groups[0].sequences) == len(texts):
                self.groups[0].next_tokens = tokens
            for text, token, logprob in zip(alike, tokens.tolist(), logprobs, strict=True):
                if event := text.append(token, logprob):
                    events.append(event)
