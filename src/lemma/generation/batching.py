"""Continuous batching: texts of different lengths and settings are written together, one step for all of them.

Each step reads the next token of every text that has a row, and at most a chunk of the prompts that wait, so that a
long prompt never holds the others up; then it chooses one token for every text. A text that ends, or whose reader has
left, frees its row for the next. In float32 every text has the tokens that `generate` gives it alone: who else is in
the batch changes nothing but the last bit of rounding.

A decoder's texts are rows of one `DecoderSlots`, each at a place of its own. States of other families, and of a decoder
whose window is full, are joined where their shapes are equal; where none are, rows are stepped one by one.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lemma.data.tokenizers import Tokenizer
from lemma.errors import InputError
from lemma.generation.decode import (
    LOGITS_AT_ONCE,
    NOT_NUMBERS,
    Continuation,
    Generated,
    Sampling,
    Spelling,
    StopStrings,
    TokenLogprob,
    adjusted,
    bare,
    beginning,
    choose,
    logprobs_of,
    refuse_tokens,
)
from lemma.layers.positions import RotaryPart
from lemma.layers.state import State
from lemma.models.base import LanguageModel
from lemma.models.decoder import ALIGNED, Cache, DecoderModel, DecoderSlots

CHUNK = {"cpu": 256, "cuda": 4096}  # tokens of prompts that are read in one step
SPELLINGS = 2**16  # pairs of tokens whose text is remembered
Logits = Float[Tensor, "rows vocabulary"]


@dataclass(frozen=True, eq=False)
class TextRequest:
    """A prompt to be continued `settings.samples` times."""

    prompt: tuple[int, ...]
    settings: Sampling
    number: int = 0
    """The number of its first text: text i has the random numbers of row `number` + i of `generate`."""
    owner: Hashable = None
    """Owners take turns, however many requests each has."""
    score: bool = False
    """Whether the log-probabilities of the prompt's own tokens are wanted, as many as `settings.logprobs` says."""
    write: bool = True
    """False where only the prompt is to be read."""


@dataclass(frozen=True)
class TextEvent:
    """What a step adds to a text."""

    request: TextRequest
    index: int
    """Which of the request's texts."""
    text: str = ""
    """Whole characters; nothing that may still become a stop string."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of the tokens of this piece."""
    scores: tuple[TokenLogprob | None, ...] | None = None
    """Of the prompt's tokens, the first of which has none; comes once, before the first piece."""
    done: Generated | None = None
    """All tokens and why they end, at the end."""
    error: Exception | None = None
    """Why it cannot be written."""


class TextInProgress:
    """One text: its tokens, how they are spelled, and what is held back of it."""

    def __init__(self, request: TextRequest, index: int, start: tuple[int, ...], spell: Any) -> None:
        self.request, self.index = request, index
        self.row = Continuation(request.number + index, start, replace(request.settings, stop=()))
        self.spelling, self.stops = Spelling(spell, request.prompt), StopStrings(request.settings.stop)
        self.logprobs: list[TokenLogprob] = []

    @property
    def token(self) -> int:
        """The token that the model reads next."""
        return self.row.tokens[-1]

    def held(self) -> bytes | None:
        """What the end of the text depends on besides the model's state."""
        return f"{self.spelling.pending!r}{self.stops.held!r}".encode() if self.request.settings.stop else None

    def take(self, token: int, logprob: TokenLogprob | None, tokenizer: Tokenizer) -> TextEvent | None:
        """Take the next token; return what can be told by now."""
        piece, told = "", self.row.take(token, logprob, tokenizer.eos)
        # after the scores of a prompt, which harnesses count from the end, also of the token that ends the text
        self.logprobs += [logprob.spelled(tokenizer)] if logprob and (told or self.request.score) else []
        if told:
            piece = self.spelling.add(token)
            if self.request.settings.stop:
                piece = self.stops.add(piece)
                if self.stops.found:
                    self.row.stop("stop")
        if self.row.stopped:
            return self.end(piece)
        return self._event(piece) if piece else None

    def end(self, piece: str = "") -> TextEvent:
        """Tell what was held back, and all about the text that has ended."""
        piece += self.stops.add(self.spelling.rest()) + self.stops.rest()
        return replace(self._event(piece), done=self.row.result())

    def _event(self, piece: str) -> TextEvent:
        cut = self.stops.found and not piece  # what spells a stop string is not told
        logprobs, self.logprobs = [] if cut else self.logprobs, []
        return TextEvent(self.request, self.index, piece, tuple(logprobs))


@dataclass(eq=False)
class PromptInProgress:
    """A prompt that is being read, chunk by chunk."""

    request: TextRequest
    texts: list[TextInProgress]
    tokens: tuple[int, ...]
    """What the model reads: of a prompt longer than its receptive field, the end."""
    place: int = 0
    state: State | None = None
    scores: list[TokenLogprob | None] = field(default_factory=lambda: [None])


class Row(NamedTuple):
    """A text whose next token is to be chosen, and its row of a state; None for a state that cannot come back."""

    text: TextInProgress
    state: State | None
    place: int


@dataclass(eq=False)
class Pool:
    """Texts whose states have one shape, as one state."""

    texts: list[TextInProgress]
    state: State

    @property
    def shape(self) -> tuple[Any, ...]:
        """What must be equal for states to be joined."""
        return tuple((name, *tensor.shape[1:]) for name, tensor in self.state.tensors().items())

    def without_stopped(self) -> "Pool":
        """Drop the texts that have ended."""
        going = [place for place, text in enumerate(self.texts) if not text.row.stopped]
        if len(going) == len(self.texts):
            return self
        return Pool([self.texts[place] for place in going], self.state.rows(torch.tensor(going, dtype=torch.long)))

    @staticmethod
    def joined(pools: Sequence["Pool"]) -> "list[Pool]":
        """Join those of one shape."""
        groups: dict[tuple[Any, ...], list[Pool]] = {}
        for pool in pools:
            groups.setdefault(pool.shape, []).append(pool)
        found: list[Pool] = []
        for group in groups.values():
            first = group[0].state
            parts = [pool.state.tensors() for pool in group]
            state = first
            if len(group) > 1:
                state = first.with_tensors({name: torch.cat([one[name] for one in parts]) for name in parts[0]})
            found.append(Pool([text for pool in group for text in pool.texts], state))
        return found


class SlotRows:
    """A decoder's texts in the rows of one `DecoderSlots`, each at its own place; rows and room go by doubling.

    On a GPU, where another shape is another graph, there are `rows` rows from the beginning, and room is never given
    back.
    """

    def __init__(self, model: DecoderModel, rows: int, dtype: torch.dtype | None) -> None:
        self.model, self.dtype, self.window = model, dtype, model.window
        if dtype is not None:
            from lemma.generation.engine import lowered  # a GPU's own part

            self.model = lowered(model, dtype).model
        self.fixed = next(model.parameters()).is_cuda
        self.least = rows if self.fixed else 1
        self.texts: list[TextInProgress | None] = []
        self.lengths: list[int] = []
        self.slots: DecoderSlots | None = None
        self.read: Any = None

    @property
    def active(self) -> int:
        """How many rows have a text."""
        return len(self.texts) - self.texts.count(None)

    def takes(self, pool: Pool) -> bool:
        """Give each text of a pool a row, all with its one state; False for a decoder's whose window is full."""
        cache = pool.state
        if not isinstance(cache, Cache) or not cache.layers:
            return False
        if cache.seen.shape[1] == cache.window:
            pool.state = Cache(cache.seen, cache.window)  # the tokens say it all
            return False
        if self.dtype is not None:
            layers = tuple(tuple(one.to(self.dtype) for one in layer) for layer in cache.layers)
            cache = Cache(cache.seen, cache.window, layers)
        length, more = cache.seen.shape[1], len(pool.texts)
        self.slots = self.slots or DecoderSlots(cache, length + 1)
        if self.texts.count(None) < more or length >= self.slots.room:
            self._resize(more, length)
        for text in pool.texts:
            row = self.texts.index(None)
            self.texts[row], self.lengths[row] = text, length
            self.slots.put(row, cache)
        return True

    def without_stopped(self) -> None:
        """Free the rows of texts that have ended; give memory back where a quarter would do."""
        for row, text in enumerate(self.texts):
            if text and text.row.stopped:
                self.texts[row], self.lengths[row] = None, 0
        if self.slots is None or self.fixed:
            return
        if not self.active:
            self.slots, self.texts, self.lengths, self.read = None, [], [], None
        elif 4 * self.active <= len(self.texts) or 4 * max(self.lengths) < self.slots.room > ALIGNED:
            self._resize()

    def step(self) -> tuple[list[TextInProgress], Logits, list[Pool]]:
        """Read one token of each text; return the texts, their logits, and those whose window is full by now."""
        assert self.slots is not None
        if max(self.lengths) >= self.slots.room:
            self._resize()
        slots = self.slots
        slots.places.copy_(torch.tensor(self.lengths))  # free rows write at 0, where nobody reads
        tokens = [[text.token if text else 0] for text in self.texts]
        logits = self.read(torch.tensor(tokens, device=slots.places.device), slots)
        self.lengths = [length + 1 if text else 0 for text, length in zip(self.texts, self.lengths, strict=True)]
        there = [(row, text) for row, text in enumerate(self.texts) if text]
        full: list[Pool] = []
        for row, text in there:
            if self.lengths[row] == self.window:
                full.append(Pool([text], Cache(slots.seen[row, None, : self.window], self.window)))
                self.texts[row], self.lengths[row] = None, 0
        logits = logits if len(there) == len(logits) else logits[[row for row, _ in there]]
        return [text for _, text in there], logits, full

    def _resize(self, more: int = 0, length: int = 0) -> None:
        """Bring the texts into as many rows, of as much room, as they need, and make the step for that shape."""
        assert self.slots is not None
        rows = [row for row, text in enumerate(self.texts) if text]
        batch = max(self.least, 1 << (max(1, len(rows) + more) - 1).bit_length())
        room = self.slots.room if self.fixed else ALIGNED
        while room <= max((length, *self.lengths)):
            room *= 2
        index = torch.tensor(rows, dtype=torch.long, device=self.slots.texts.device)
        self.slots = self.slots.resized(index, batch, room)
        self.texts = [*(self.texts[row] for row in rows), *[None] * (batch - len(rows))]
        self.lengths = [*(self.lengths[row] for row in rows), *[0] * (batch - len(rows))]
        for part in self.model.modules():
            if isinstance(part, RotaryPart):
                part.reach(room)
        plain = bare(self.model).step
        self.read = lambda tokens, slots: plain(tokens, slots)[:, -1]
        if self.fixed:
            from lemma.generation.engine import WORTH_FUSING, GraphedStep  # a GPU's own part

            logits_only = Sampling(tokens=WORTH_FUSING, logprobs=0)  # each text has settings of its own
            graph = GraphedStep(self.model, self.slots, self.model, logits_only)

            def replay(tokens: Tensor, slots: DecoderSlots) -> Tensor:
                slots.count = 0  # and a place of its own
                return graph(tokens, slots, [])[0][:, -1]

            self.read = replay


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
        tokenizer: Tokenizer,
        rows: int = 32,
        chunk: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if rows < 1:
            raise InputError(f"rows = {rows} is less than 1: say how many texts are written at once.")
        self.model, self.tokenizer, self.rows = model, tokenizer, rows
        self.device = next(model.parameters()).device
        chunk = chunk or CHUNK["cuda" if self.device.type == "cuda" else "cpu"]
        self.chunk = max(1, min(chunk, LOGITS_AT_ONCE // model.spec.vocabulary))
        self.waiting: OrderedDict[Hashable, deque[PromptInProgress]] = OrderedDict()
        self.reading: deque[PromptInProgress] = deque()
        self.pools: list[Pool] = []
        slotted = isinstance(model, DecoderModel) and model.has_slots()
        self.slots = SlotRows(model, rows, dtype) if slotted else None  # pyright: ignore[reportArgumentType]
        self.read = bare(model)
        self._spell = SimpleNamespace(kind=tokenizer.kind, decode=lambda ids: self._spelled(tuple(ids)))
        self._spelled = lru_cache(SPELLINGS)(tokenizer.decode)

    @property
    def writing(self) -> int:
        """How many texts have a row, or will have one as soon as their prompt is read."""
        return (self.slots.active if self.slots else 0) + sum(len(one.texts) for one in (*self.pools, *self.reading))

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.waiting or self.writing)

    def check(self, request: TextRequest) -> None:
        """Refuse what the model cannot read or write."""
        vocabulary = self.model.spec.vocabulary
        for name in ("stop_tokens", "logit_bias"):
            refuse_tokens(name, getattr(request.settings, name), vocabulary)
        refuse_tokens("prompt", request.prompt, vocabulary)

    def add(self, request: TextRequest) -> None:
        """Let a request wait for its turn."""
        self.check(request)
        start = request.prompt or (beginning(self.tokenizer),)
        field = self.model.receptive_field
        seen = start[-field:] if field and not request.score else start
        queue = self.waiting.setdefault(request.owner, deque())
        for begin in range(0, request.settings.samples, self.rows):
            numbers = range(begin, min(begin + self.rows, request.settings.samples))
            texts = [TextInProgress(request, index, start, self._spell) for index in numbers]
            queue.append(PromptInProgress(request, texts, seen))

    def cancel(self, owner: Hashable) -> None:
        """Drop all that an owner asked for; its rows are free at the next step."""
        self.waiting.pop(owner, None)
        self.reading = deque(prompt for prompt in self.reading if prompt.request.owner != owner)
        slotted = self.slots.texts if self.slots else []
        for text in (*slotted, *(text for pool in self.pools for text in pool.texts)):
            if text and text.request.owner == owner and not text.row.stopped:
                text.row.stop("told")

    @torch.inference_mode()
    def step(self) -> list[TextEvent]:
        """Read one token of every text and a chunk of the prompts, then choose the next token of every text."""
        events: list[TextEvent] = []
        if self.device.type == "cuda":
            from lemma.generation.engine import steady_attention as surroundings
        else:
            surroundings = nullcontext
        with surroundings():
            found = [*self._advance(), *self._read_prompts(events)]
            if found:
                rows = [row for some, _ in found for row in some]
                self._choose(rows, torch.cat([logits for _, logits in found]), events)
        return events

    def _advance(self) -> list[tuple[list[Row], Logits]]:
        """Read one token of every text; return the logits of what comes next."""
        found: list[tuple[list[Row], Logits]] = []
        pools = [pool for pool in (pool.without_stopped() for pool in self.pools) if pool.texts]
        self.pools = []
        if self.slots:
            self.slots.without_stopped()
            if self.reading or self.waiting or self.slots.active:  # the text that was alone has company
                pools = [pool for pool in pools if not self.slots.takes(pool)]
        for pool in Pool.joined(pools):
            tokens = torch.tensor([[text.token] for text in pool.texts], device=self.device)
            logits, state = self.read(tokens, pool.state)
            self.pools.append(Pool(pool.texts, state))
            found.append(([Row(text, state, place) for place, text in enumerate(pool.texts)], logits[:, -1]))
        if self.slots and self.slots.active:
            texts, logits, full = self.slots.step()
            states = {pool.texts[0]: pool.state for pool in full}
            found.append(([Row(text, states.get(text), 0) for text in texts], logits))
            self.pools += full
        return found

    def _read_prompts(self, events: list[TextEvent]) -> list[tuple[list[Row], Logits]]:
        """Let requests in as rows are free, owner by owner, and read a chunk of their prompts, each in its turn."""
        writing = self.writing
        while self.waiting:
            owner, queue = next(iter(self.waiting.items()))
            if writing and writing + len(queue[0].texts) > self.rows:
                break
            prompt = queue.popleft()
            writing += len(prompt.texts)
            self.reading.append(prompt)
            self.waiting.move_to_end(owner) if queue else self.waiting.pop(owner)
        groups: dict[tuple[int, Any], list[PromptInProgress]] = {}
        left = self.chunk
        while self.reading and left > 0:
            prompt = self.reading.popleft()
            size = min(left, len(prompt.tokens) - prompt.place)
            left -= size
            groups.setdefault((size, prompt if prompt.state else None), []).append(prompt)
        begun: list[tuple[list[Row], Logits]] = []
        for (size, _), prompts in groups.items():
            pieces = [prompt.tokens[prompt.place : prompt.place + size] for prompt in prompts]
            logits, state = self.read(torch.tensor(pieces, device=self.device), prompts[0].state)
            for place, prompt in enumerate(prompts):
                prompt.state = state if len(prompts) == 1 else state.rows(torch.tensor([place]))
                if prompt.request.score:
                    nexts = prompt.tokens[prompt.place + 1 : prompt.place + size + 1]
                    count = prompt.request.settings.logprobs or 0
                    targets = torch.tensor(nexts, dtype=torch.long, device=self.device)
                    found = logprobs_of(logits[place, : len(nexts)], targets, count)
                    prompt.scores += [one.spelled(self.tokenizer) for one in found]
                prompt.place += size
                if prompt.place < len(prompt.tokens):
                    self.reading.append(prompt)
                elif rows := self._begin(prompt, events):
                    begun.append((rows, logits[place, -1:].expand(len(rows), -1)))
        return begun

    def _begin(self, prompt: PromptInProgress, events: list[TextEvent]) -> list[Row]:
        """Give the texts of a prompt that has been read their rows."""
        request, texts, state = prompt.request, prompt.texts, prompt.state
        assert state is not None
        if request.score and texts[0].index == 0:
            events.append(TextEvent(request, 0, scores=tuple(prompt.scores)))
        if not request.write:
            nothing = Generated(request.prompt, (), None, "length", 0.0)
            events += [TextEvent(request, text.index, done=nothing) for text in texts]
            return []
        for text in texts:
            text.row.begun = time.perf_counter()
        alone = self.device.type == "cpu" and self.writing == 0 and len(texts) == 1 and not self.waiting
        pool = Pool(texts, state)
        if self.slots and not alone and self.slots.takes(pool):
            return [Row(text, None, 0) for text in texts]
        if len(texts) > 1:
            pool.state = state.rows(torch.zeros(len(texts), dtype=torch.long, device=self.device))
        self.pools.append(pool)
        return [Row(text, pool.state, place) for place, text in enumerate(texts)]

    def _choose(self, rows: list[Row], logits: Logits, events: list[TextEvent]) -> None:
        """Choose the next token of every text by its own settings and random numbers; those alike at once."""
        groups: dict[tuple[Any, ...], list[int]] = {}
        changed: dict[int, Tensor] = {}
        for place, (row, broken) in enumerate(zip(rows, logits.isnan().any(-1).tolist(), strict=True)):
            text, settings = row.text.row, row.text.request.settings
            try:
                if broken:
                    raise InputError(NOT_NUMBERS)
                if settings.greedy:
                    self._look_for_loop(row)
                if settings.logit_bias or settings.looks_back:
                    read = torch.tensor([[*text.prompt, *text.tokens]], device=self.device)
                    changed[place] = adjusted(logits[place, None], settings, read, len(text.tokens))
            except InputError as error:
                text.stop("told")
                events.append(TextEvent(row.text.request, row.text.index, error=error))
                continue
            if text.stopped:  # at a loop
                events.append(row.text.end())
                continue
            cuts = (settings.temperature, settings.top_k, settings.top_p, settings.min_p)
            groups.setdefault((*cuts, place in changed), []).append(place)
        for places in groups.values():
            texts = [rows[place].text for place in places]
            settings = texts[0].request.settings
            some = torch.cat([changed[place] for place in places]) if places[0] in changed else logits[places]
            tokens = choose(some, settings, () if settings.greedy else [text.row.random.random() for text in texts])
            logprobs: list[TokenLogprob | None] = [None] * len(texts)
            for count in {text.request.settings.logprobs for text in texts}:
                if count is None:
                    continue
                asked = [number for number, text in enumerate(texts) if text.request.settings.logprobs == count]
                found = logprobs_of(logits[[places[number] for number in asked]], tokens[asked], count)
                for number, one in zip(asked, found, strict=True):
                    logprobs[number] = one
            for text, token, logprob in zip(texts, tokens.tolist(), logprobs, strict=True):
                if event := text.take(token, logprob, self.tokenizer):
                    events.append(event)

    def _look_for_loop(self, row: Row) -> None:
        """See whether a greedy text's state has come back; of one that cannot, only the name is noted."""
        text, state = row.text, row.state
        if state is None:
            state = Cache(torch.zeros(1, 0), self.model.window if isinstance(self.model, DecoderModel) else None)
        if not text.row.tokens or (row.state is not None and row.state.comes_back):
            text.row.look_for_loop(state, row.place, self.model.receptive_field, text.held())
