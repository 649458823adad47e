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
    NOT_NUMBERS,
    Generated,
    Sampling,
    Spelling,
    StateHistory,
    Stopped,
    StopStrings,
    TextLoop,
    TokenLogprob,
    adjusted,
    bare,
    beginning,
    choose,
    logprobs_of,
    observed_loop,
    proved_loop,
    refuse_tokens,
)
from lemma.layers.positions import RotaryPart
from lemma.layers.state import State
from lemma.models.base import LanguageModel, hooked
from lemma.models.decoder import ALIGNED, Cache, DecoderModel, DecoderSlots, read_in_numpy, reads_in_numpy

CHUNK = {"cpu": 256, "cuda": 4096}  # tokens of prompts that are read in one step
CHUNK_FLOPS = 2**34  # of a CPU for them: a third of a second, and 64 tokens of a model of 135 M parameters
PADDED = {"cpu": 16, "cuda": 64}  # a decoder's prompts of up to the same multiple of this length are read together
SPELLINGS = 2**16  # pairs of tokens whose text is remembered
RECURS_WITHIN = 500  # tokens of a loop after which the hidden vectors of a recurrent model have come back, if ever
STOPS_WITHIN = 100  # tokens of a loop after which a stop string would have come, if ever
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
    spell: bool = True
    """False where the tokens are wanted, and not the text as it comes."""
    follow: bool = True
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
    scores: tuple[TokenLogprob | None, ...] | None = None
    """Of the prompt's tokens, the first of which has none; comes once, before the first piece."""
    done: Generated | None = None
    """All tokens and why they end, at the end."""
    error: Exception | None = None
    """Why it cannot be written."""


class Continuation:
    """One text: its prompt, what has been generated after it, its random numbers, and the states it has been in."""

    def __init__(self, request: TextRequest, index: int, prompt: tuple[int, ...], eos: int | None, spell: Any) -> None:
        self.request, self.index, self.prompt, self.settings = request, index, prompt, request.settings
        self.greedy, self.random = self.settings.greedy, random.Random(self.settings.seed + request.number + index)
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.stopped: Stopped | None = None
        self.begun = self.ended = 0.0
        settings, self._eos, self._spell = self.settings, eos, spell
        self.spelling = Spelling(spell, request.prompt) if request.spell or settings.stop else None
        self.stops = StopStrings(settings.stop)
        self._read: Tensor | None = None
        self._untold: list[TokenLogprob] = []
        self._used, self._generated = set(prompt), set[int]()
        self._history = StateHistory()
        self._loop: TextLoop | None = None
        self._about = ""
        cuts = (settings.temperature, settings.top_k, settings.top_p, settings.min_p)
        adjusts = settings.logit_bias or settings.looks_back
        self._alike = (id(settings), len(prompt)) if adjusts else (*cuts, settings.logprobs)
        self._adjusts = bool(adjusts)

    @property
    def latest(self) -> int:
        """The token that the model reads next."""
        return self.tokens[-1] if self.tokens else 0

    @property
    def alike(self) -> tuple[Any, ...]:
        """Of texts for which this is equal, the next tokens can be chosen at once."""
        return (*self._alike, len(self.tokens)) if self._adjusts else self._alike

    def read(self, device: torch.device) -> Int[Tensor, " read"]:
        """All tokens so far, for what looks back."""
        if self._read is None:
            self._read = torch.tensor(self.prompt, device=device)
        missing = self.tokens[len(self._read) - len(self.prompt) :]
        self._read = torch.cat([self._read, self._read.new_tensor(missing)]) if missing else self._read
        return self._read

    def stop(self, why: Stopped) -> None:
        """End here, and stop the clock."""
        self.stopped, self.ended = why, time.perf_counter()

    def take(self, token: int, logprob: TokenLogprob | None) -> TextEvent | None:
        """Take the next token; return what can be told by now. `<eos>` and stop tokens do not belong to the text."""
        settings = self.settings
        if token == self._eos:
            ends = "eos" if settings.stop_at_eos else None
        else:
            ends = "stop" if token in settings.stop_tokens else None
        if logprob:
            before = self.tokens[-1:] or self.request.prompt[-1:]
            logprob = logprob.spelled(self._spell, before) if self._spell else logprob
            # after the scores of a prompt, which harnesses count from the end, also of the token that ends the text
            self._untold += [logprob] if self.request.score or not ends else []
            self.logprobs += [] if ends else [logprob]
        if ends:
            self.stop(ends)
            return self.end()
        self.tokens.append(token)
        if settings.looks_back:
            self._used.add(token)
            self._generated.add(token)
        if len(self.tokens) == settings.tokens:
            self.stop("length")
        piece = self.spelling.add(token) if self.spelling else ""
        if settings.stop:
            piece = self.stops.add(piece)
            if self.stops.found:
                self.stop("stop")
        if self.stopped:
            return self.end(piece, token)
        return self._event(piece, token) if self.request.follow and (piece or not self.spelling) else None

    def end(self, piece: str = "", token: int | None = None) -> TextEvent:
        """Tell what was held back, and all about the text that has ended."""
        if self.spelling:
            piece += self.stops.add(self.spelling.rest()) + self.stops.rest()
            self.stopped = "stop" if self.stops.found else self.stopped
        event = self._event(piece, token)
        event.done = self.result()
        return event

    def _event(self, piece: str, token: int | None) -> TextEvent:
        if not self._untold:
            return TextEvent(self.request, self.index, piece, token)
        cut = self.stops.found and not piece  # what spells a stop string is not told
        logprobs, self._untold = () if cut else tuple(self._untold), []
        return TextEvent(self.request, self.index, piece, token, logprobs)

    def look_for_loop(self, state: State, row: int, model: LanguageModel) -> None:
        """See whether the state of this row of a batch, with all else the text depends on, has been the same before.

        While a bounded memory is not full, and where it is all that was read, no state comes back.
        """
        step, settings, memory = len(self.tokens), self.settings, model.receptive_field or 0
        if not step:
            also = ["the set of tokens used"] if settings.looks_back else []
            also += ["what may become a stop string"] if settings.stop else []
            self._about = " and ".join([state.about, *also])
            if settings.never_repeats:
                self._about = f"the text so far, on which {settings.never_repeats} depends,"
        comes_back = state.comes_back and not settings.never_repeats and len(self.prompt) + step >= memory
        if comes_back and self._loop is None:
            also = f"{len(self._used)},{len(self._generated)};" if settings.looks_back else ""
            if settings.stop and self.spelling:
                also += f"{self.spelling.pending!r}{self.stops.held!r}"
            first = self._history.earlier(also.encode() + state.signature(row), step)
            if first is not None:
                self._loop = proved_loop(self.tokens, first, step, self._about)
        if settings.stop_at_loop:
            if self._loop is None:  # one seen three times, and for longer than the memory in which it could be proved
                memory = (RECURS_WITHIN if model.stateful else memory) + (STOPS_WITHIN if settings.stop else 0)
                seen = observed_loop(self.tokens, self._about) if step > memory else None
                self._loop = seen if seen and step - seen.onset > memory else None
            if self._loop:
                self.stop("loop")

    def result(self) -> Generated:
        """Return what has been generated, and the loop in it."""
        assert self.stopped
        loop = self._loop
        if loop is None and self.settings.greedy and self.stopped == "length":
            loop = observed_loop(self.tokens, self._about)
        logprobs = None if self.settings.logprobs is None else tuple(self.logprobs)
        return Generated(self.prompt, tuple(self.tokens), loop, self.stopped, self.ended - self.begun, logprobs)


@dataclass(eq=False)
class PromptInProgress:
    """A prompt that is being read, chunk by chunk."""

    request: TextRequest
    texts: list[Continuation]
    tokens: tuple[int, ...]
    """What the model reads: of a prompt longer than its receptive field, the end."""
    place: int = 0
    state: State | None = None
    scores: list[TokenLogprob | None] = field(default_factory=lambda: [None])


@dataclass(eq=False)
class Pool:
    """Texts whose states have one shape, as one state."""

    texts: list[Continuation]
    state: State
    ahead: Any = None
    """On a GPU, of texts that stay together: the step that chooses its own tokens (`engine.GraphedStep`)."""
    chosen: Int[Tensor, " texts"] | None = None
    """The tokens that it reads next, if they were chosen for these texts and no others."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """What must be equal for states to be joined."""
        return tuple((name, *tensor.shape[1:]) for name, tensor in self.state.tensors().items())

    def without_stopped(self) -> "Pool":
        """Drop the texts that have ended."""
        going = [place for place, text in enumerate(self.texts) if not text.stopped]
        if len(going) == len(self.texts):
            return self
        if self.ahead:
            self.ahead.idle = not going
            # slots keep their rows until half of them have ended: another number of rows is another graph
            keeps = going and (2 * len(going) > len(self.texts) or self.ahead.busy)
            if keeps and isinstance(self.state, DecoderSlots):
                return self
        state = self.state.rows(torch.tensor(going, dtype=torch.long)) if going else self.state
        return Pool([self.texts[place] for place in going], state, self.ahead)

    @staticmethod
    def joined(pools: Sequence["Pool"]) -> "list[Pool]":
        """Join those of one shape."""
        groups: dict[tuple[Any, ...], list[Pool]] = {}
        for pool in pools:
            groups.setdefault(pool.shape, []).append(pool)
        found: list[Pool] = []
        for group in groups.values():
            state, parts = group[0].state, [pool.state.tensors() for pool in group]
            if len(group) > 1:
                state = state.with_tensors({name: torch.cat([one[name] for one in parts]) for name in parts[0]})
            found.append(Pool([text for pool in group for text in pool.texts], state))
        return found


class SlotRows:
    """A decoder's texts in the rows of one `DecoderSlots`, each at its own place; rows and room go by doubling.

    On a GPU, where another shape is another graph, there are `rows` rows from the beginning, and room is never given
    back.
    """

    def __init__(self, model: DecoderModel, rows: int, dtype: torch.dtype | None) -> None:
        self.model, self.dtype, self.window = model, dtype, model.window
        replays = next(model.parameters()).is_cuda and not hooked(model)
        if dtype is not None and replays and next(model.parameters()).dtype == torch.float32:
            from lemma.generation.engine import lowered  # a GPU's own part

            self.model = lowered(model, dtype).model
        else:
            self.dtype = None
        self.fixed = replays
        self.least = rows if self.fixed else 1
        self.texts: list[Continuation | None] = []
        self.lengths: list[int] = []
        self.slots: DecoderSlots | None = None
        self.read: Any = None

    @property
    def active(self) -> int:
        """How many rows have a text."""
        return len(self.texts) - self.texts.count(None)

    def takes(
        self, texts: Sequence[Continuation], cache: State, places: Sequence[int], padding: Sequence[int] = ()
    ) -> bool:
        """Give each text a row, with what a cache holds at its place; False for a decoder's whose window is full.

        The last tokens of a place, as many as its padding, are not the text's own and will be written over.
        """
        cache = cache.whole() if isinstance(cache, DecoderSlots) else cache  # of a text that was alone
        if not isinstance(cache, Cache) or not cache.layers or cache.seen.shape[1] == cache.window:
            return False
        if self.dtype is not None:
            layers = tuple(tuple(one.to(self.dtype) for one in layer) for layer in cache.layers)
            cache = Cache(cache.seen, cache.window, layers)
        longest = cache.seen.shape[1]
        self.slots = self.slots or DecoderSlots(cache, longest + 1)
        if self.texts.count(None) < len(texts) or longest >= self.slots.room:
            self._resize(len(texts), longest)
        rows = [row for row, text in enumerate(self.texts) if text is None][: len(texts)]
        for row, text, beyond in zip(rows, texts, padding or [0] * len(texts), strict=True):
            self.texts[row], self.lengths[row] = text, longest - beyond
        self.slots.put(rows, cache, places)
        return True

    def without_stopped(self) -> None:
        """Free the rows of texts that have ended; give memory back where a quarter would do."""
        for row, text in enumerate(self.texts):
            if text and text.stopped:
                self.texts[row], self.lengths[row] = None, 0
        if self.slots is None or self.fixed:
            return
        if not self.active:
            self.slots, self.texts, self.lengths, self.read = None, [], [], None
        elif 4 * self.active <= len(self.texts) or 4 * max(self.lengths) < self.slots.room > ALIGNED:
            self._resize()

    def step(self) -> tuple[list[Continuation], Logits, list[Pool]]:
        """Read one token of each text; return the texts, their logits, and those whose window is full by now."""
        assert self.slots is not None
        if max(self.lengths) >= self.slots.room:
            self._resize()
        slots = self.slots
        slots.places.copy_(torch.tensor(self.lengths))  # free rows write at 0, where nobody reads
        tokens = [[text.latest if text else 0] for text in self.texts]
        reached = slots if self.fixed else slots.up_to(max(self.lengths) + 1)
        logits = self.read(torch.tensor(tokens, device=slots.places.device), reached)
        self.lengths = [length + 1 if text else 0 for text, length in zip(self.texts, self.lengths, strict=True)]
        there = [(row, text) for row, text in enumerate(self.texts) if text]
        full: list[Pool] = []
        for row, text in there:
            if self.lengths[row] == self.window:
                seen = slots.seen[row, None, : self.window].clone()  # before the row is another text's
                full.append(Pool([text], Cache(seen, self.window)))
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
        tokenizer: Tokenizer | None,
        rows: int = 32,
        chunk: int | None = None,
        dtype: torch.dtype | None = None,
        eos: int | None = None,
        together: bool = False,
    ) -> None:
        """Without a tokenizer it writes tokens, up to `eos`, and no text.

        `together`: all prompts have one length and the same settings, and have been added before the first step.
        """
        if rows < 1:
            raise InputError(f"rows = {rows} is less than 1: say how many texts are written at once.")
        self.model, self.tokenizer, self.rows, self.dtype, self.together = model, tokenizer, rows, dtype, together
        self.eos = tokenizer.eos if tokenizer else eos
        self.device = next(model.parameters()).device
        kind = "cuda" if self.device.type == "cuda" else "cpu"
        if chunk is None:
            parameters = sum(one.numel() for one in model.parameters())
            affordable = max(16, CHUNK_FLOPS // (2 * parameters)) if kind == "cpu" else CHUNK[kind]
            chunk = min(CHUNK[kind], affordable)
        logits = LOGITS_AT_ONCE * (8 if self.device.type == "cuda" else 1)  # 512 MB of a GPU's memory
        self.chunk = max(1, min(chunk, logits // model.spec.vocabulary))
        self.waiting: OrderedDict[Hashable, deque[PromptInProgress]] = OrderedDict()
        self.reading: deque[PromptInProgress] = deque()
        self.pools: list[Pool] = []
        self.read = bare(model)
        self.slots: SlotRows | None = None
        if not together and isinstance(model, DecoderModel) and model.has_slots() and self.read is not model:
            self.slots = SlotRows(model, rows, dtype)
            bounds = (model.window, model.spec.window)  # a cache beyond them no longer holds all that was read
            self.padded, self.below = PADDED[kind], min((bound for bound in bounds if bound), default=math.inf)
        self._surroundings: Any = nullcontext
        if self.device.type == "cuda":
            from lemma.generation.engine import steady_attention  # a GPU's own part

            self._surroundings = steady_attention
        self._spell: Any = None
        if tokenizer:
            decode = lru_cache(SPELLINGS)(tokenizer.decode)
            self._spell = SimpleNamespace(kind=tokenizer.kind, decode=lambda ids: decode(tuple(ids)))

    @cached_property
    def read_one(self) -> Any:
        """What reads the next token of a text that is alone."""
        if reads_in_numpy(self.model) and not hooked(self.model):
            return partial(read_in_numpy, self.model, self.read)
        return self.read

    @property
    def writing(self) -> int:
        """How many texts have a row, or will have one as soon as their prompt is read."""
        return (self.slots.active if self.slots else 0) + sum(len(one.texts) for one in (*self.pools, *self.reading))

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.waiting or self.pools or self.reading or (self.slots and self.slots.active))

    def check(self, request: TextRequest) -> None:
        """Refuse what the model cannot read or write."""
        vocabulary = self.model.spec.vocabulary
        for name in ("stop_tokens", "logit_bias"):
            refuse_tokens(name, getattr(request.settings, name), vocabulary)
        refuse_tokens("prompt", request.prompt, vocabulary)

    def add(self, request: TextRequest) -> list[Continuation]:
        """Let a request wait for its turn; return its texts."""
        self.check(request)
        prompt, field = request.prompt, self.model.receptive_field
        if not prompt:
            assert self.tokenizer, "without a tokenizer a prompt needs a token"
            prompt = (beginning(self.tokenizer),)
        seen = prompt[-field:] if field and not request.score else prompt
        numbers = range(request.settings.samples)
        texts = [Continuation(request, index, prompt, self.eos, self._spell) for index in numbers]
        queue = self.waiting.setdefault(request.owner, deque())
        queue.extend(
            PromptInProgress(request, texts[begin : begin + self.rows], seen) for begin in numbers[:: self.rows]
        )
        return texts

    def cancel(self, owner: Hashable) -> None:
        """Drop all that an owner asked for; its rows are free at the next step."""
        self.waiting.pop(owner, None)
        self.reading = deque(prompt for prompt in self.reading if prompt.request.owner != owner)
        slotted = self.slots.texts if self.slots else []
        for text in (*slotted, *(text for pool in self.pools for text in pool.texts)):
            if text and text.request.owner == owner and not text.stopped:
                text.stop("told")

    def close(self) -> None:
        """Give back what others may use."""
        for pool in self.pools:
            if pool.ahead:
                pool.ahead.idle = True

    def step(self) -> list[TextEvent]:
        """Read one token of every text and a chunk of the prompts, then choose the next token of every text."""
        events: list[TextEvent] = []
        inference = nullcontext() if torch.is_inference_mode_enabled() else torch.inference_mode()
        with self._surroundings(), inference:
            found = self._advance(events)
            if self.waiting or self.reading:
                found += self._read_prompts(events)
            if len(found) == 1:
                self._choose(*found[0], events)
            elif found:
                self._choose(
                    [text for texts, _ in found for text in texts], torch.cat([one for _, one in found]), events
                )
        return events

    def _advance(self, events: list[TextEvent]) -> list[tuple[list[Continuation], Logits]]:
        """Read one token of every text; return the logits of what comes next."""
        if self.together and (self.waiting or self.reading):
            return []  # those that stay together begin together
        found: list[tuple[list[Continuation], Logits]] = []
        pools = [pool for pool in map(Pool.without_stopped, self.pools) if pool.texts]
        slots, going = self.slots, list[Pool]()  # who counts texts meanwhile, in another thread, sees those before
        if slots:
            slots.without_stopped()
            if self.reading or self.waiting or slots.active:  # the text that was alone has company
                pools = [pool for pool in pools if not slots.takes(pool.texts, pool.state, range(len(pool.texts)))]
        for pool in Pool.joined(pools) if len(pools) > 1 else pools:
            if self.together and self.device.type == "cuda" and not pool.ahead and len(pool.texts[0].tokens) == 1:
                from lemma.generation import engine  # a GPU's own part

                settings = pool.texts[0].settings
                pool.ahead, pool.state = engine.fast_step(self.model, pool.state, self.read, settings, self.dtype)
            if pool.chosen is None:
                pool.chosen = torch.tensor([text.latest for text in pool.texts], device=self.device)
            tokens, pool.chosen = pool.chosen.unsqueeze(1), None
            if pool.ahead:
                logits, pool.state = pool.ahead(tokens, pool.state, pool.texts)
            else:
                read = self.read_one if len(pool.texts) == 1 else self.read
                logits, pool.state = read(tokens, pool.state)
            going.append(pool)
            self._look_for_loops(pool.texts, pool.state, events)
            found.append((pool.texts, logits.select(1, -1)))
        if slots and slots.active:
            texts, logits, full = slots.step()
            states = {pool.texts[0]: pool.state for pool in full}
            assert slots.slots
            for text in texts:
                if text.greedy:
                    self._look_for_loops([text], states.get(text, slots.slots), events)
            found.append((texts, logits))
            going += full
        self.pools = going
        return found

    def _read_prompts(self, events: list[TextEvent]) -> list[tuple[list[Continuation], Logits]]:
        """Let requests in as rows are free, owner by owner, and read a chunk of their prompts, each in its turn."""
        writing = self.writing
        while self.waiting:
            owner, queue = next(iter(self.waiting.items()))
            if writing and writing + len(queue[0].texts) > self.rows:
                break
            prompt = queue.popleft()
            writing += len(prompt.texts)
            for text in prompt.texts:
                text.begun = time.perf_counter()
            self.reading.append(prompt)
            self.waiting.move_to_end(owner) if queue else self.waiting.pop(owner)
        groups: dict[Hashable, list[tuple[PromptInProgress, tuple[int, ...]]]] = {}
        widths: dict[int, int] = {}  # of the groups that are padded
        left = self.chunk
        while self.reading and left > 0:
            size = len(self.reading[0].tokens) - self.reading[0].place
            if left < size <= self.chunk:
                break  # it is read whole in the next step
            prompt, size = self.reading.popleft(), min(left, size)
            left -= size
            kind: Hashable = (prompt if prompt.state else None, size)
            if self.slots and size == len(prompt.tokens) < self.below:
                about = -(-size // self.padded)
                before, count = widths.get(about, 0), len(groups.get(about, ()))
                wide = max(size, before)
                padding = wide * (count + 1) - before * count - size
                if padding <= left:  # it is read like tokens
                    kind, widths[about], left = about, wide, left - padding
            groups.setdefault(kind, []).append((prompt, prompt.tokens[prompt.place : prompt.place + size]))
        begun: list[tuple[list[Continuation], Logits]] = []
        for group in groups.values():
            places = {piece: place for place, piece in enumerate(dict.fromkeys(piece for _, piece in group))}
            longest = max(map(len, places))  # what follows a shorter one changes nothing before it
            rows = [(*piece, *[0] * (longest - len(piece))) for piece in places]
            logits, state = self.read(torch.tensor(rows, device=self.device), group[0][0].state)
            texts: list[Continuation] = []
            index: list[int] = []
            beyond: list[int] = []
            for prompt, piece in group:
                place, request, size = places[piece], prompt.request, len(piece)
                if request.score:
                    nexts = prompt.tokens[prompt.place + 1 : prompt.place + size + 1]
                    targets = torch.tensor(nexts, dtype=torch.long, device=self.device)
                    found = logprobs_of(logits[place, : len(nexts)], targets, request.settings.logprobs or 0)
                    if self._spell:
                        pairs = zip(found, prompt.tokens[prompt.place :], strict=False)
                        found = [one.spelled(self._spell, (before,)) for one, before in pairs]
                    prompt.scores += found
                prompt.place += size
                if prompt.place < len(prompt.tokens):
                    prompt.state = state if len(places) == 1 else state.rows(torch.tensor([place]))
                    self.reading.append(prompt)
                    continue
                if request.score and prompt.texts[0].index == 0:
                    scores = tuple(prompt.scores) if request.prompt else ()  # not of the token that begins every text
                    events.append(TextEvent(request, 0, scores=scores))
                if request.write:
                    texts += prompt.texts
                    index += [place] * len(prompt.texts)
                    beyond += [longest - size] * len(prompt.texts)
                else:
                    nothing = Generated(request.prompt, (), None, "length", 0.0)
                    events += [TextEvent(request, text.index, done=nothing) for text in prompt.texts]
            if texts:
                self._begin(texts, state, index, beyond, events)
                begun.append((texts, logits[index, [-1 - one for one in beyond]]))
        return begun

    def _begin(
        self, texts: list[Continuation], state: State, places: list[int], padding: list[int], events: list[TextEvent]
    ) -> None:
        """Give texts whose prompts have been read their rows, each with what a state holds at its place."""
        count = len(next(iter(state.tensors().values())))
        alone = self.device.type == "cpu" and len(texts) == count == 1 and self.writing == 0 and not self.waiting
        if not self.slots or alone or not self.slots.takes(texts, state, places, padding):
            state = state if places == list(range(count)) else state.rows(torch.tensor(places))
            self.pools.append(Pool(texts, state))
            places = list(range(len(texts)))
        self._look_for_loops(texts, state, events, places)

    def _look_for_loops(
        self, texts: list[Continuation], state: State, events: list[TextEvent], places: Sequence[int] = ()
    ) -> None:
        """See which texts at temperature 0 are in a loop; end those that are to stop there."""
        for place, text in enumerate(texts):
            if text.greedy and not text.stopped:
                text.look_for_loop(state, places[place] if places else place, self.model)
                if text.stopped:
                    events.append(text.end())

    def _choose(self, texts: list[Continuation], logits: Logits, events: list[TextEvent]) -> None:
        """Choose the next token of every text by its own settings and random numbers; those alike at once."""
        ahead = self.pools[0].ahead.tokens() if self.pools and self.pools[0].ahead else None
        if ahead is not None:
            broken = (ahead < 0).tolist()
        else:
            broken = logits.isnan().any(-1).tolist() if math.isnan(logits.max()) else ()
        groups: dict[tuple[Any, ...], list[int]] = {}
        for place, text in enumerate(texts):
            if broken and broken[place] and not text.stopped:
                text.stop("told")
                events.append(TextEvent(text.request, text.index, error=InputError(NOT_NUMBERS)))
            if not text.stopped:  # a text may have ended in a loop, or keep its row for a while
                groups.setdefault(text.alike, []).append(place)
        waiting = deque(groups.values())
        while waiting:
            places = waiting.popleft()
            whole, alike = len(places) == len(texts), [texts[place] for place in places]
            settings, some = alike[0].settings, logits if whole else logits[places]
            if ahead is not None:
                tokens = ahead if whole else ahead[places]
            else:
                read = torch.stack([text.read(self.device) for text in alike]) if settings.looks_back else logits
                try:
                    fit = adjusted(some, settings, read, len(alike[0].tokens))
                except InputError as error:
                    if len(alike) > 1:
                        waiting.extend([place] for place in places)
                    else:
                        alike[0].stop("told")
                        events.append(TextEvent(alike[0].request, alike[0].index, error=error))
                    continue
                tokens = choose(fit, settings, () if settings.greedy else [text.random.random() for text in alike])
            asked = settings.logprobs
            logprobs = [None] * len(alike) if asked is None else logprobs_of(some, tokens, asked)
            if whole and len(self.pools) == 1 and len(self.pools[0].texts) == len(texts):
                self.pools[0].chosen = tokens
            for text, token, logprob in zip(alike, tokens.tolist(), logprobs, strict=True):
                if event := text.take(token, logprob):
                    events.append(event)
