"""Continuous batching: the decoding engine behind `generate` and `serve`.

Each step reads the next token of every running sequence, and at most a chunk of the waiting prompts, so that a long
prompt never holds the others up; then it samples one token for every sequence. A sequence that ends, or whose reader
has left, frees its row for the next. In float32 every sequence has the tokens that it has alone: who else is in the
batch changes nothing but the last bit of rounding.

States are joined where their shapes are equal; where none are, sequences are stepped in turn. A decoder's sequences of
different lengths are rows of one `DecoderSlotCache` until their window is full. Sequences of one length that start
together stay one state: on a GPU, their step is a CUDA graph that samples its own tokens.
"""

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lemma.data.tokenizers import Tokenizer
from lemma.errors import InputError
from lemma.generation.sampling import (
    NAN_LOGITS,
    Sampling,
    TokenLogprob,
    adjust_logits,
    check_tokens,
    check_type,
    sample_tokens,
    token_logprobs,
)
from lemma.generation.sequences import (
    GeneratedTokens,
    Generation,
    TextEvent,
    TextRequest,
    TokenSequence,
    start_token,
    strip_partial_character,
)
from lemma.generation.slots import SlotBatch
from lemma.layers.state import State
from lemma.models.base import LanguageModel, evaluating, fast_copy, has_hooks
from lemma.models.decoder import DecoderModel, DecoderSlotCache
from lemma.models.decoder_numpy import step_in_numpy, supports_numpy

if TYPE_CHECKING:
    from lemma.generation.cuda_graphs import CudaGraphStep

MAX_ROWS = 256  # sequences of different lengths that are generated at once
PROMPT_CHUNK = {"cpu": 256, "cuda": 4096}  # tokens of prompts that are read in one step
CHUNK_FLOPS = 2**34  # of a CPU for them: a third of a second, and 64 tokens of a model of 135 M parameters
MAX_PROMPT_LOGITS = 2**24  # 64 MB; eight times as many on a GPU
LENGTH_BUCKET = {"cpu": 16, "cuda": 64}  # tokens: a decoder's prompts of one bucket of lengths are read together
DECODE_CACHE_SIZE = 2**16  # pairs of tokens whose text is remembered
OnToken = Callable[[int, int], object]
"""Called with a row's index and its next token as soon as that is sampled; True ends the row there."""
OnText = Callable[[int, str], object]
"""Called with a text's index and its next piece, complete characters only; True ends that text there."""
Logits = Float[Tensor, "rows vocabulary"]
StepLogits = list[tuple[list[TokenSequence], Logits]]
"""Sequences, and the logits of their next tokens."""


@dataclass(eq=False)
class PromptPrefill:
    """A prompt that is being read chunk by chunk, and its sequences that start afterwards."""

    request: TextRequest
    sequences: list[TokenSequence]
    tokens: tuple[int, ...]  # what the model reads: the end of a prompt that is longer than the receptive field
    position: int = 0  # tokens read so far
    state: State | None = None
    logprobs: list[TokenLogprob | None] = field(default_factory=lambda: [None])  # of the prompt; None for the first


PromptChunk = tuple[PromptPrefill, tuple[int, ...]]
"""A prompt and its tokens to read next."""


@dataclass(eq=False)
class SequenceGroup:
    """Sequences whose states have one shape, joined into one state."""

    sequences: list[TokenSequence]
    state: State
    graph_step: "CudaGraphStep | None" = None  # on a GPU, for sequences that stay together; samples its own tokens
    next_tokens: Int[Tensor, " sequences"] | None = None  # to read next, if sampled for just these sequences

    @property
    def shape(self) -> tuple[Any, ...]:
        """(Name, shape without the batch) of each state tensor; groups for which it is equal can be merged."""
        return tuple((name, *tensor.shape[1:]) for name, tensor in self.state.tensors().items())

    def drop_finished(self) -> "SequenceGroup":
        """Return the group without the sequences that have stopped; unchanged if a CUDA graph needs its rows."""
        rows = [row for row, sequence in enumerate(self.sequences) if not sequence.stop_reason]
        if len(rows) == len(self.sequences):
            return self
        if self.graph_step:
            self.graph_step.is_idle = not rows
            # Slots keep their rows until half of them have stopped: another number of rows is another graph.
            keeps_rows = rows and (2 * len(rows) > len(self.sequences) or self.graph_step.has_tokens_ahead)
            if keeps_rows and isinstance(self.state, DecoderSlotCache):
                return self
        state = self.state.select_rows(torch.tensor(rows, dtype=torch.long)) if rows else self.state
        return SequenceGroup([self.sequences[row] for row in rows], state, self.graph_step)

    @staticmethod
    def merge(groups: Sequence["SequenceGroup"]) -> "list[SequenceGroup]":
        """Return one group for each distinct `shape`, with the sequences of all groups of that shape."""
        by_shape: dict[tuple[Any, ...], list[SequenceGroup]] = {}
        for group in groups:
            by_shape.setdefault(group.shape, []).append(group)
        merged: list[SequenceGroup] = []
        for same in by_shape.values():
            state, parts = same[0].state, [group.state.tensors() for group in same]
            if len(same) > 1:
                state = state.with_tensors({name: torch.cat([part[name] for part in parts]) for name in parts[0]})
            merged.append(SequenceGroup([sequence for group in same for sequence in group.sequences], state))
        return merged


class BatchEngine:
    """A decoding engine for many requests, with at most `rows` sequences at once.

    `step` returns the new events. Not thread-safe: one thread does everything.

    >>> engine = BatchEngine(model, tokenizer)  # doctest: +SKIP
    >>> engine.add(TextRequest((5, 8), Sampling(tokens=20)))  # doctest: +SKIP
    >>> while engine.is_busy:  # doctest: +SKIP
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
        """Prepare the model's steps.

        Args:
            tokenizer: None to generate tokens, up to `eos`, and no text.
            chunk: most tokens of prompts to read in one step; by the speed of the device if unset.
            same_length: all prompts have one length and one setting, and are added before the first step.
        """
        if rows < 1:
            raise InputError(f"rows = {rows} is less than 1: say how many texts are written at once.")
        self.model, self.tokenizer, self.rows, self.dtype, self.same_length = model, tokenizer, rows, dtype, same_length
        self.eos = tokenizer.eos if tokenizer else eos
        self.device = next(model.parameters()).device
        kind = "cuda" if self.device.type == "cuda" else "cpu"
        if chunk is None:
            chunk = PROMPT_CHUNK[kind]
            if kind == "cpu":
                parameters = sum(parameter.numel() for parameter in model.parameters())
                chunk = min(chunk, max(16, CHUNK_FLOPS // (2 * parameters)))
        max_logits = MAX_PROMPT_LOGITS * (8 if kind == "cuda" else 1)
        self.chunk = max(1, min(chunk, max_logits // model.spec.vocabulary))
        self.waiting: OrderedDict[Hashable, deque[PromptPrefill]] = OrderedDict()
        self.prefilling: deque[PromptPrefill] = deque()
        self.groups: list[SequenceGroup] = []
        self.events: list[TextEvent] = []  # of the step that runs
        self.step_model = fast_copy(model)
        self.slots: SlotBatch | None = None
        uses_slots = not same_length and self.step_model is not model
        if uses_slots and isinstance(model, DecoderModel) and model.supports_slots():
            self.slots = SlotBatch(model, rows, dtype)
            self.length_bucket = LENGTH_BUCKET[kind]
            bounds = (model.window, model.spec.window)  # beyond them, a cache no longer holds all that was read
            self.max_padded_length = min((bound for bound in bounds if bound), default=math.inf)
        self._step_context: Callable[[], Any] = nullcontext
        if kind == "cuda":
            from lemma.generation.cuda_graphs import without_cudnn_attention  # needed on a GPU only

            self._step_context = without_cudnn_attention
        self._cached_tokenizer: Any = None
        if tokenizer:
            decode = lru_cache(DECODE_CACHE_SIZE)(tokenizer.decode)
            self._cached_tokenizer = SimpleNamespace(kind=tokenizer.kind, decode=lambda ids: decode(tuple(ids)))

    @cached_property
    def step_single(self) -> Callable[[Tensor, State], tuple[Tensor, State]]:
        """Function (token, state) → (logits, state) that is fastest for a single sequence."""
        if supports_numpy(self.model) and not has_hooks(self.model):
            return partial(step_in_numpy, self.model, self.step_model)
        return self.step_model

    @property
    def num_running(self) -> int:
        """Number of sequences that have a row of the batch, or get one when their prompt has been read."""
        in_slots = self.slots.num_active if self.slots else 0
        return in_slots + sum(len(batch.sequences) for batch in (*self.groups, *self.prefilling))

    @property
    def is_busy(self) -> bool:
        """True if any sequence is waiting, being read or being continued."""
        return bool(self.waiting or self.groups or self.prefilling or (self.slots and self.slots.num_active))

    def add(self, request: TextRequest) -> list[TokenSequence]:
        """Queue a request and return its `settings.samples` sequences; raise an error for tokens the model lacks."""
        for name in ("stop_tokens", "logit_bias"):
            check_tokens(name, getattr(request.settings, name), self.model.spec.vocabulary)
        check_tokens("prompt", request.prompt, self.model.spec.vocabulary)
        prompt, field = request.prompt, self.model.receptive_field
        if not prompt:
            assert self.tokenizer, "without a tokenizer a prompt needs a token"
            prompt = (start_token(self.tokenizer),)
        read = prompt[-field:] if field and not request.score_prompt else prompt
        samples = range(request.settings.samples)
        sequences = [TokenSequence(request, index, prompt, self.eos, self._cached_tokenizer) for index in samples]
        queue = self.waiting.setdefault(request.owner, deque())
        for start in samples[:: self.rows]:
            queue.append(PromptPrefill(request, sequences[start : start + self.rows], read))
        return sequences

    def cancel(self, owner: Hashable) -> None:
        """Drop all requests whose `owner` is this one; their rows are free at the next step."""
        self.waiting.pop(owner, None)
        self.prefilling = deque(prompt for prompt in self.prefilling if prompt.request.owner != owner)
        in_slots = self.slots.sequences if self.slots else []
        for sequence in (*in_slots, *(sequence for group in self.groups for sequence in group.sequences)):
            if sequence and sequence.request.owner == owner and not sequence.stop_reason:
                sequence.stop("told")

    def close(self) -> None:
        """Mark CUDA graphs as free for reuse by another engine."""
        for group in self.groups:
            if group.graph_step:
                group.graph_step.is_idle = True

    def run(self) -> Iterator[TextEvent]:
        """Yield the events of all steps until no sequence is left; raise the error of a sequence that failed."""
        while self.is_busy:
            for event in self.step():
                if event.error:
                    raise event.error
                yield event

    def step(self) -> list[TextEvent]:
        """Extend every sequence by a token and read a chunk of waiting prompts; return the events of this step."""
        self.events = []
        inference = nullcontext() if torch.is_inference_mode_enabled() else torch.inference_mode()
        with self._step_context(), inference:
            outputs = self._decode()
            if self.waiting or self.prefilling:
                self._admit_requests()
                for chunks in self._take_chunks():
                    outputs += self._prefill(chunks)
            if len(outputs) == 1:
                self._sample(*outputs[0])
            elif outputs:
                sequences = [sequence for batch, _ in outputs for sequence in batch]
                self._sample(sequences, torch.cat([logits for _, logits in outputs]))
        return self.events

    def _decode(self) -> StepLogits:
        """Read the last token of every running sequence; return (sequences, logits of their next tokens) by batch."""
        if self.same_length and (self.waiting or self.prefilling):
            return []  # sequences that stay together start together
        groups = [group for group in map(SequenceGroup.drop_finished, self.groups) if group.sequences]
        slots = self.slots
        if slots:
            slots.drop_finished()
            if self.prefilling or self.waiting or slots.num_active:  # a sequence is no longer alone
                groups = [
                    group
                    for group in groups
                    if not slots.admit(group.sequences, group.state, range(len(group.sequences)))
                ]
        outputs: StepLogits = []
        stepped: list[SequenceGroup] = []  # another thread that counts sequences meanwhile sees the earlier ones
        for group in SequenceGroup.merge(groups) if len(groups) > 1 else groups:
            logits = self._step_group(group)
            stepped.append(group)
            self._check_loops(group.sequences, group.state)
            outputs.append((group.sequences, logits))
        if slots and slots.num_active:
            sequences, logits, windows = slots.step()
            assert slots.slots
            for sequence in sequences:
                if sequence.is_greedy:
                    self._check_loops([sequence], windows.get(sequence, slots.slots))
            outputs.append((sequences, logits))
            stepped += [SequenceGroup([sequence], window) for sequence, window in windows.items()]
        self.groups = stepped
        return outputs

    def _step_group(self, group: SequenceGroup) -> Logits:
        """Return the logits after the last token of each sequence of a group, and update the group's state."""
        is_first_step = len(group.sequences[0].tokens) == 1
        if self.same_length and self.device.type == "cuda" and is_first_step and not group.graph_step:
            from lemma.generation import cuda_graphs  # needed on a GPU only

            settings = group.sequences[0].settings
            group.graph_step, group.state = cuda_graphs.make_graph_step(
                self.model, group.state, self.step_model, settings, self.dtype
            )
        if group.next_tokens is None:
            group.next_tokens = torch.tensor([sequence.last_token for sequence in group.sequences], device=self.device)
        tokens, group.next_tokens = group.next_tokens.unsqueeze(1), None
        if group.graph_step:
            logits, group.state = group.graph_step(tokens, group.state, group.sequences)
        else:
            step = self.step_single if len(group.sequences) == 1 else self.step_model
            logits, group.state = step(tokens, group.state)
        return logits.select(1, -1)

    def _admit_requests(self) -> None:
        """Move queued prompts to those being read as rows become free, one owner after the other."""
        running = self.num_running
        while self.waiting:
            owner, queue = next(iter(self.waiting.items()))
            if running and running + len(queue[0].sequences) > self.rows:
                break
            prompt = queue.popleft()
            running += len(prompt.sequences)
            for sequence in prompt.sequences:
                sequence.started_at = time.perf_counter()
            self.prefilling.append(prompt)
            self.waiting.move_to_end(owner) if queue else self.waiting.pop(owner)

    def _take_chunks(self) -> list[list[PromptChunk]]:
        """Return (prompt, its tokens to read in this step) pairs, in lists that can each be read in one model call."""
        groups: dict[Hashable, list[PromptChunk]] = {}
        widths: dict[int, int] = {}  # of groups with padding, by length bucket
        budget = self.chunk
        while self.prefilling and budget > 0:
            size = len(self.prefilling[0].tokens) - self.prefilling[0].position
            if budget < size <= self.chunk:
                break  # it is read in one piece in the next step
            prompt, size = self.prefilling.popleft(), min(budget, size)
            budget -= size
            key: Hashable = (prompt if prompt.state else None, size)
            if self.slots and size == len(prompt.tokens) < self.max_padded_length:
                bucket = -(-size // self.length_bucket)
                width, count = widths.get(bucket, 0), len(groups.get(bucket, ()))
                new_width = max(size, width)
                padding = new_width * (count + 1) - width * count - size
                if padding <= budget:  # padding is read like tokens
                    key, widths[bucket], budget = bucket, new_width, budget - padding
            groups.setdefault(key, []).append((prompt, prompt.tokens[prompt.position : prompt.position + size]))
        return list(groups.values())

    def _prefill(self, chunks: list[PromptChunk]) -> StepLogits:
        """Read chunks in one model call, equal ones once; start and return the sequences of prompts that are now read.

        They come with the logits of their first tokens.
        """
        row_of = {tokens: row for row, tokens in enumerate(dict.fromkeys(tokens for _, tokens in chunks))}
        longest = max(map(len, row_of))  # padding after a shorter one changes nothing before it
        rows = [(*tokens, *[0] * (longest - len(tokens))) for tokens in row_of]
        logits, state = self.step_model(torch.tensor(rows, device=self.device), chunks[0][0].state)
        sequences: list[TokenSequence] = []
        state_rows: list[int] = []
        padding: list[int] = []
        for prompt, tokens in chunks:
            row, request = row_of[tokens], prompt.request
            if request.score_prompt:
                self._score_prompt(prompt, logits[row], len(tokens))
            prompt.position += len(tokens)
            if prompt.position < len(prompt.tokens):
                prompt.state = state if len(row_of) == 1 else state.select_rows(torch.tensor([row]))
                self.prefilling.append(prompt)
                continue
            if request.score_prompt and prompt.sequences[0].index == 0:
                logprobs = tuple(prompt.logprobs) if request.prompt else ()  # not of the token that starts every text
                self.events.append(TextEvent(request, 0, prompt_logprobs=logprobs))
            if request.generates:
                count = len(prompt.sequences)
                sequences += prompt.sequences
                state_rows += [row] * count
                padding += [longest - len(tokens)] * count
            else:
                empty = GeneratedTokens(request.prompt, (), None, "length", 0.0)
                self.events += [TextEvent(request, sequence.index, result=empty) for sequence in prompt.sequences]
        if not sequences:
            return []
        self._start_sequences(sequences, state, state_rows, padding)
        return [(sequences, logits[state_rows, [-1 - padded for padded in padding]])]

    def _score_prompt(self, prompt: PromptPrefill, logits: Float[Tensor, "time vocabulary"], size: int) -> None:
        """Append to a prompt's log-probabilities those of the tokens that follow each of the `size` tokens just read.

        Args:
            logits: after each of these tokens.
        """
        following = prompt.tokens[prompt.position + 1 : prompt.position + size + 1]
        targets = torch.tensor(following, dtype=torch.long, device=self.device)
        logprobs = token_logprobs(logits[: len(following)], targets, prompt.request.settings.logprobs or 0)
        if self._cached_tokenizer:
            pairs = zip(logprobs, prompt.tokens[prompt.position :], strict=False)
            logprobs = [logprob.with_text(self._cached_tokenizer, (previous,)) for logprob, previous in pairs]
        prompt.logprobs += logprobs

    def _start_sequences(
        self, sequences: list[TokenSequence], state: State, state_rows: list[int], padding: list[int]
    ) -> None:
        """Add sequences to the running batch, after their prompts have been read.

        Sequence i is row `state_rows[i]` of the state, which ends with `padding[i]` tokens of padding.
        """
        count = len(next(iter(state.tensors().values())))
        is_single = len(sequences) == count == 1 and self.num_running == 0 and not self.waiting
        steps_in_numpy = self.device.type == "cpu" and is_single
        if not self.slots or steps_in_numpy or not self.slots.admit(sequences, state, state_rows, padding):
            state = state if state_rows == list(range(count)) else state.select_rows(torch.tensor(state_rows))
            self.groups.append(SequenceGroup(sequences, state))
            state_rows = list(range(len(sequences)))
        self._check_loops(sequences, state, state_rows)

    def _check_loops(self, sequences: list[TokenSequence], state: State, rows: Sequence[int] = ()) -> None:
        """Search for loops of sequences at temperature 0, and finish those that are to stop at a loop.

        Args:
            rows: row of each sequence in the state; 0, 1, … if empty.
        """
        for index, sequence in enumerate(sequences):
            if sequence.is_greedy and not sequence.stop_reason:
                sequence.check_loop(state, rows[index] if rows else index, self.model)
                if sequence.stop_reason:
                    self.events.append(sequence.finish())

    def _sample(self, sequences: list[TokenSequence], logits: Logits) -> None:
        """Sample the next token of every sequence from its logits, and append it to the sequence."""
        graph_tokens = None
        if self.groups and self.groups[0].graph_step:
            graph_tokens = self.groups[0].graph_step.pop_tokens()
        if graph_tokens is not None:
            is_nan = (graph_tokens < 0).tolist()
        else:
            is_nan = logits.isnan().any(-1).tolist() if math.isnan(logits.max()) else ()
        by_key: dict[tuple[Any, ...], list[int]] = {}
        for row, sequence in enumerate(sequences):
            if is_nan and is_nan[row] and not sequence.stop_reason:
                self._fail(sequence, InputError(NAN_LOGITS))
            if not sequence.stop_reason:  # it may have ended in a loop, or keep its row for a while
                by_key.setdefault(sequence.sampling_key, []).append(row)
        pending = deque(by_key.values())
        while pending:
            rows = pending.popleft()
            is_all, batch = len(rows) == len(sequences), [sequences[row] for row in rows]
            settings, batch_logits = batch[0].settings, logits if is_all else logits[rows]
            if graph_tokens is not None:
                tokens = graph_tokens if is_all else graph_tokens[rows]
            else:
                try:
                    tokens = self._sample_batch(batch, settings, batch_logits)
                except InputError as error:
                    if len(batch) > 1:
                        pending.extend([row] for row in rows)
                    else:
                        self._fail(batch[0], error)
                    continue
            logprobs = [None] * len(batch)
            if settings.logprobs is not None:
                logprobs = token_logprobs(batch_logits, tokens, settings.logprobs)
            if is_all and len(self.groups) == 1 and len(self.groups[0].sequences) == len(sequences):
                self.groups[0].next_tokens = tokens
            for sequence, token, logprob in zip(batch, tokens.tolist(), logprobs, strict=True):
                if event := sequence.append(token, logprob):
                    self.events.append(event)

    def _sample_batch(self, batch: list[TokenSequence], settings: Sampling, logits: Logits) -> Int[Tensor, " rows"]:
        """Return the next token of each sequence, sampled from its row of `logits` by its own random numbers."""
        if settings.logit_bias or settings.depends_on_history:
            tokens = torch.stack([sequence.all_tokens(self.device) for sequence in batch])
            logits = adjust_logits(logits, settings, tokens, len(batch[0].tokens))
        uniforms = () if settings.is_greedy else [sequence.random.random() for sequence in batch]
        return sample_tokens(logits, settings, uniforms)

    def _fail(self, sequence: TokenSequence, error: InputError) -> None:
        """Stop a sequence and report its error as an event."""
        sequence.stop("told")
        self.events.append(TextEvent(sequence.request, sequence.index, error=error))


@torch.inference_mode()
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

    Args:
        prompts: token ids, at least one each.
        eos: id of the token that ends a row; None if there is none.
        on_token: called with (row, token id) for each token at once; the row ends if it returns True.
    """
    if settings.stop:
        raise InputError(f"stop = {settings.stop!r}: stop strings need a tokenizer. Use generate_text, or stop_tokens.")
    token_lists = [[int(token) for token in prompt] for prompt in prompts]
    for index, tokens in enumerate(token_lists):
        if not tokens:
            raise InputError(f"prompt {index} has no tokens; a model needs at least one to start from, such as <eos>.")
        check_tokens(f"prompt {index}", tokens, model.spec.vocabulary)
    with _start_engine(model, None, token_lists, settings, eos, stream=on_token is not None) as (engine, sequences):
        for event in engine.run():
            if on_token and event.token is not None and on_token(event.row, event.token) is True:
                sequences[event.row].stop("told")
    return [sequence.result() for sequence in sequences]


@torch.inference_mode()
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
    from token 0. Of a prompt with more than `max_prompt_tokens` tokens, only the last ones are read.

    Args:
        on_text: called with (index of the text, its next piece) at once; that text ends if it returns True.
    """
    decodes_pieces = on_text is not None or bool(settings.stop)
    answer: object = None
    with closing(stream_text(model, tokenizer, prompts, settings, decodes_pieces, max_prompt_tokens)) as pieces:
        while True:
            try:
                index, piece = pieces.send(answer)
            except StopIteration as end:
                return end.value
            answer = on_text(index, piece) if on_text else None


@torch.inference_mode()
def stream_text(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    settings: Sampling,
    decodes_pieces: bool = True,
    max_prompt_tokens: int | None = None,
) -> Generator[tuple[int, str], object, list[Generation]]:
    """Yield (index of a text, its next piece of complete characters); a True sent to the generator ends that text.

    Return all texts at the end. Without `decodes_pieces` each is decoded at its end only, and nothing is yielded.
    """
    for prompt in prompts:
        check_type("prompt", prompt, str, "a text")
    start = -max_prompt_tokens if max_prompt_tokens else 0
    encoded = [tokenizer.encode(prompt)[start:].tolist() for prompt in prompts]
    texts = [""] * (len(prompts) * settings.samples)
    with _start_engine(model, tokenizer, encoded, settings, decode_text=decodes_pieces, stream=decodes_pieces) as (
        engine,
        sequences,
    ):
        for event in engine.run():
            row, piece = event.row, event.text
            texts[row] += piece
            is_ended = bool(piece) and (yield row, piece) is True
            if is_ended and not sequences[row].stop_filter.has_stopped:
                sequences[row].stop("told")
                if not event.result and (piece := sequences[row].finish().text):  # what was held back
                    texts[row] += piece
                    yield row, piece
    generations: list[Generation] = []
    for index, sequence in enumerate(sequences):
        result, prompt_index = sequence.result(), index // settings.samples
        if not decodes_pieces:
            previous = encoded[prompt_index][-1:]  # it may call for a space
            text = tokenizer.decode([*previous, *result.tokens])[len(tokenizer.decode(previous)) :]
            texts[index] = strip_partial_character(tokenizer, text)
        speed = len(result.tokens) / result.seconds if result.seconds else 0.0
        prompt, text = prompts[prompt_index], texts[index]
        generations.append(Generation(prompt, text, result.tokens, result.loop, result.stopped, speed, result.logprobs))
    return generations


@contextmanager
def _start_engine(
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    prompts: Sequence[Sequence[int]],
    settings: Sampling,
    eos: int | None = None,
    decode_text: bool = False,
    stream: bool = True,
) -> Iterator[tuple[BatchEngine, list[TokenSequence]]]:
    """Yield a new engine with all prompts (token ids) queued, and their sequences; close the engine afterwards.

    Args:
        eos: id of the token that ends a sequence, if there is no tokenizer.
        decode_text: whether sequences decode their text.
        stream: whether there is an event for each piece, not only for the end.
    """
    count, same_length = settings.samples, len({len(prompt) or 1 for prompt in prompts}) == 1
    rows, device = max(1, count * len(prompts)), next(model.parameters()).device
    if device.type == "cuda":
        from lemma.generation.cuda_graphs import MIN_GRAPH_TOKENS  # needed on a GPU only

        same_length = same_length or settings.tokens < MIN_GRAPH_TOKENS
    dtype = settings.dtype(device)
    with evaluating(model):
        rows = rows if same_length else min(rows, MAX_ROWS)
        engine = BatchEngine(model, tokenizer, rows, MAX_PROMPT_LOGITS, dtype, eos, same_length)
        sequences: list[TokenSequence] = []
        for index, prompt in enumerate(prompts):
            request = TextRequest(tuple(prompt), settings, count * index, decode_text=decode_text, stream=stream)
            sequences += engine.add(request)
        try:
            yield engine, sequences
        finally:
            engine.close()
