"""Decoding on a GPU: preallocated caches, a few kernels per layer, and one CUDA graph per token.

At batch 1 a GPU waits for the next kernel to be launched, hundreds of them for each token. A step of fixed shapes is
captured once and replayed as one. It samples its token too, so that the next step can follow before the host has seen
it: the host asks for a few tokens at a time, and what comes after the end of a sequence is dropped.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.generation.sampling import Sampling, sample_tokens
from lemma.generation.sequences import TokenSequence
from lemma.kernels.cuda_graphs import capture, warmup_stream
from lemma.kernels.decoding import MAX_ROWS, RotaryTables, attend_slot_cache, embed_tokens, fused_linear, take_argmax
from lemma.kernels.support import is_available
from lemma.layers.attention import Attention
from lemma.layers.feed_forward import ACTIVATIONS
from lemma.layers.positions import AlibiBias, LearnedEmbedding, NoEmbedding, RotaryEmbedding, SinusoidalEmbedding
from lemma.layers.state import State
from lemma.models.base import LanguageModel, has_hooks, weight_versions
from lemma.models.decoder import DecoderCache, DecoderModel, DecoderSlotCache
from lemma.models.transformer import TransformerLayer

MIN_GRAPH_TOKENS = 16  # to generate: capturing takes as long as a few dozen steps
MIN_TRITON_TOKENS = 100  # to generate: the first time, Triton compiles its kernels for some seconds
MAX_CACHE_FRACTION = 0.5  # of a GPU's memory; a cache that may become larger grows with its sequences
TOKENS_AHEAD = 16  # of each sequence, sampled before the host looks at them
NO_TOKEN = -1  # in place of tokens that were sampled from NaN
GRAPH_SETTINGS = ("tokens", "temperature", "top_k", "top_p", "min_p", "depends_on_history", "logit_bias", "logprobs")
"""The settings that a graph depends on."""
ACTIVATION_NAMES = {function: name for name, function in ACTIVATIONS.items()}
Step = Callable[[Int[Tensor, "batch 1"], State], tuple[Tensor, State]]
"""Reads one token of each sequence: `logits, state = step(tokens, state)`."""


class FusedDecoder:
    """A decoder's step in five Triton kernels per layer, in bfloat16: `DecoderModel.step` with fewer roundings."""

    def __init__(self, model: DecoderModel, capacity: int) -> None:
        self.model = model
        self.layers: list[Any] = list(model.layers)
        attention: Attention = self.layers[0].attention
        self.rotary_tables = None
        if isinstance(attention.turns, RotaryEmbedding):
            self.rotary_tables = build_rotary_tables(attention.turns, capacity, attention.head_width)
        self.slopes = attention.biases.slopes if isinstance(attention.biases, AlibiBias) else None
        self.position_table = getattr(model.positions, "weight", getattr(model.positions, "table", None))

    @staticmethod
    def supports(model: DecoderModel, rows: int) -> bool:
        """Return whether the kernels can run a model on `rows` sequences: bfloat16, plain layers, known activations."""
        parameter = next(model.parameters())
        return (
            rows <= MAX_ROWS
            and parameter.dtype == torch.bfloat16
            and is_available(parameter.device)
            and type(model.output) is nn.Linear
            and type(model.positions) in (NoEmbedding, LearnedEmbedding, SinusoidalEmbedding)
            and all(
                type(layer) is TransformerLayer
                and supports_attention(layer.attention)
                and layer.feed_forward.activation in ACTIVATION_NAMES
                and all(type(child) is nn.Linear for child in layer.feed_forward.children())
                for layer in model.layers
            )
        )

    def step(
        self, tokens: Int[Tensor, "batch 1"], slots: DecoderSlotCache, take_most_likely: bool = False
    ) -> Float[Tensor, "batch 1 vocabulary"]:
        """Append `tokens`, one per sequence, to slots that have room; return the logits of the tokens after them.

        With `take_most_likely`, the most likely next tokens are written into `tokens` and into the slots.
        """
        model = self.model
        scale = model.scale or 1.0
        hidden = embed_tokens(tokens, slots.lengths, slots.tokens, model.embedding.weight, self.position_table, scale)
        for layer, cache in zip(self.layers, slots.layers, strict=True):
            attention, feed_forward = layer.attention, layer.feed_forward
            qkv = fused_linear(hidden, attention.query_key_value, layer.attention_norm)
            keys, values = cache.tensors
            mixed = attend_slot_cache(
                qkv,
                keys,
                values,
                cache.lengths,
                attention.scale,
                attention.window,
                attention.query_norm,
                attention.key_norm,
                self.rotary_tables,
                self.slopes,
            )
            attended = fused_linear(mixed, attention.output, residual=hidden)
            widen = feed_forward.gate_widen if feed_forward.gated else feed_forward.widen
            activation = ACTIVATION_NAMES[feed_forward.activation]
            inputs = hidden if layer.is_parallel else attended
            widened = fused_linear(inputs, widen, layer.feed_forward_norm, activation, feed_forward.gated)
            hidden = fused_linear(widened, feed_forward.narrow, residual=attended)
        logits = fused_linear(hidden, model.output, model.norm, dtype=torch.float32)
        if take_most_likely:  # a cap does not change the order of logits
            take_argmax(logits, tokens, slots.lengths, slots.tokens)
        else:
            slots.lengths += 1
        return (logits if model.logit_cap is None else model.logit_cap * torch.tanh(logits / model.logit_cap))[:, None]


def supports_attention(attention: Attention) -> bool:
    """Return whether `attend_slot_cache` can compute an attention module: self-attention with heads of one width."""
    shape = attention.shape
    return (
        not attention.is_cross
        and shape.key_query == shape.value_output == "separate"
        and shape.head_width == shape.head_value_width <= 256
        and (attention.turns is None or type(attention.turns) is RotaryEmbedding)
        and (attention.biases is None or type(attention.biases) is AlibiBias)
        and type(attention.query_key_value) is type(attention.output) is nn.Linear
    )


def build_rotary_tables(rotary: RotaryEmbedding, capacity: int, width: int) -> RotaryTables:
    """Return the signed sines and cosines of `capacity` positions, and each coordinate's partner in the rotation.

    Args:
        width: of a head; coordinates past the rotated ones have themselves as partner.
    """
    size, columns = rotary.rotary_dim, torch.arange(width, device=rotary.table.device)
    rows, table = rotary.table[:capacity].float(), torch.zeros(capacity, 2, width, device=rotary.table.device)
    table[:, 1] = 1.0
    if rotary.halves:
        table[:, :, :size] = rows
        partner = torch.where(columns < size // 2, columns + size // 2, columns - size // 2)
    else:
        sine, cosine = rows.unbind(-1)
        table[:, 0, :size] = torch.stack([-sine, sine], -1).flatten(1)
        table[:, 1, :size] = cosine.repeat_interleave(2, 1)
        partner = columns ^ 1
    return table, torch.where(columns < size, partner, columns).int()


class CudaGraphStep:
    """A decoder's step, replayed from a CUDA graph until its slots are full; then computed by the model itself.

    Where the next token depends on nothing but the logits, the graph samples it and continues with it: `pop_tokens`
    returns those tokens, and a call with them computes nothing, since they have been read. While the host looks at some
    tokens, the GPU is busy with the next ones.

    Attributes:
        warmed_up: by model, the (rows, is fused) of steps that have run: their kernels are compiled and allocated.
        is_idle: free for other sequences.
        samples_on_gpu: the graph samples the tokens.
        ready_tokens: sampled tokens on the host, a list per position, not popped yet.
        in_flight: tokens that are being sampled, and the event after which they can be read.
        num_launched: tokens of each sequence that the GPU has read, or will have.
    """

    warmed_up: ClassVar[WeakKeyDictionary[DecoderModel, set[tuple[int, bool]]]] = WeakKeyDictionary()

    def __init__(self, model: DecoderModel, slots: DecoderSlotCache, fallback: Step, settings: Sampling) -> None:
        self.model = model
        self._reset(fallback, settings)
        self.is_idle = False
        uses_triton = settings.tokens >= MIN_TRITON_TOKENS and FusedDecoder.supports(model, len(slots.tokens))
        self.fused = FusedDecoder(model, slots.capacity) if uses_triton else None
        self._capture(slots)

    def try_reuse(self, cache: DecoderCache, max_length: int, fallback: Step, settings: Sampling) -> bool:
        """Load the sequences of `cache` if the graph is idle and of the same settings and size; return whether it did.

        Args:
            fallback: the model's own step, for full slots.
        """
        is_same = all(getattr(self.settings, name) == getattr(settings, name) for name in GRAPH_SETTINGS)
        is_same = is_same and self.slots.max_length == max_length and len(self.slots.tokens) == len(cache.tokens)
        if not self.is_idle or not is_same:
            return False
        self.slots.refill(cache)
        self._reset(fallback, settings)
        self.is_idle, self.num_launched = False, self.slots.length
        return True

    def __call__(
        self, tokens: Int[Tensor, "batch 1"], state: State, sequences: list[TokenSequence]
    ) -> tuple[Tensor, State]:
        """Read one token of each sequence; `sequences` have the random numbers with which later tokens are sampled."""
        if not isinstance(state, DecoderSlotCache):
            return self.fallback(tokens, state)
        if not self.has_tokens_ahead:
            if state.is_full:
                return self.fallback(tokens.to(state.tokens.device), state.tokens_only())
            if state is not self.slots:  # some sequences have ended: fewer rows, other shapes
                self._capture(state)
            self.next_tokens.copy_(tokens)
            if self.samples_on_gpu:
                self.in_flight = self._launch(sequences)
            else:
                self.graph.replay()
        if not self.ready_tokens and self.in_flight is not None:
            host_tokens, is_done = self.in_flight
            self.in_flight = self._launch(sequences)
            is_done.synchronize()
            self.ready_tokens.extend(host_tokens.t().tolist())
        state.length += 1
        return self.logits, state

    def pop_tokens(self) -> Int[Tensor, " batch"] | None:
        """Return the tokens that the graph has sampled next (`NO_TOKEN` for NaN logits); None if the caller samples."""
        return torch.tensor(self.ready_tokens.popleft()) if self.ready_tokens else None

    @property
    def has_tokens_ahead(self) -> bool:
        """True if the graph has sampled tokens that the caller has not taken yet, or is sampling them."""
        return bool(self.ready_tokens) or self.in_flight is not None

    def _reset(self, fallback: Step, settings: Sampling) -> None:
        """Set the step for full slots (`fallback`) and the sampling settings; drop tokens of earlier sequences."""
        self.fallback, self.settings = fallback, settings
        self.samples_on_gpu = not (settings.depends_on_history or settings.logit_bias or settings.logprobs is not None)
        self.ready_tokens: deque[list[int]] = deque()
        self.in_flight: tuple[Tensor, torch.cuda.Event] | None = None

    def _capture(self, slots: DecoderSlotCache) -> None:
        """Warm up the kernels of a step on these slots, and record them as a CUDA graph."""
        batch, device = len(slots.tokens), slots.tokens.device
        self.slots, self.next_tokens = slots, slots.tokens.new_zeros(batch, 1)
        self.num_launched = slots.length
        self.uniforms = torch.zeros(TOKENS_AHEAD, batch, dtype=torch.float64, device=device)
        self.draw_index = torch.zeros(1, dtype=torch.long, device=device)
        lengths, warmed_up = slots.lengths.clone(), self.warmed_up.setdefault(self.model, set())
        if (batch, self.fused is not None) not in warmed_up:
            with warmup_stream():
                for _ in range(2):
                    self._step()
                    self._rewind(lengths)  # there may be space for one token only
            warmed_up.add((batch, self.fused is not None))
        self.graph = torch.cuda.CUDAGraph()
        with capture(self.graph):
            self.logits = self._step()
        self._rewind(lengths)

    def _step(self) -> Tensor:
        """Return the logits after `next_tokens`, and sample the tokens after them if sampling is in the graph."""
        takes_most_likely = self.samples_on_gpu and self.settings.is_greedy
        if takes_most_likely and self.fused is not None:
            return self.fused.step(self.next_tokens, self.slots, take_most_likely=True)
        step = self.model.step if self.fused is None else self.fused.step
        logits = step(self.next_tokens, self.slots).float()
        if self.samples_on_gpu:
            uniforms = () if takes_most_likely else self.uniforms.index_select(0, self.draw_index)[0]
            sampled = sample_tokens(logits[:, -1], self.settings, uniforms)
            self.next_tokens.copy_(sampled.clamp_(max=logits.shape[-1] - 1)[:, None])  # NaN leads past the last token
            self.slots.tokens.scatter_(1, self.slots.lengths[:, None], self.next_tokens)
            self.draw_index += 1
        return logits

    def _rewind(self, lengths: Tensor) -> None:
        """Set the slots back to these lengths after a trial step."""
        self.slots.lengths.copy_(lengths)
        self.draw_index.zero_()

    def _launch(self, sequences: list[TokenSequence]) -> tuple[Tensor, torch.cuda.Event] | None:
        """Start sampling the next tokens of all sequences; return None if no more are needed.

        Otherwise return their tensor on the host, (sequence, token), and the CUDA event after which it is filled.
        """
        unread = self.num_launched - self.slots.length
        needed = max(self.settings.tokens - len(sequence.tokens) for sequence in sequences) - unread
        count = min(TOKENS_AHEAD, self.slots.max_length - self.num_launched, needed)
        if count < 1:
            return None
        self.draw_index.zero_()
        if not self.settings.is_greedy:
            uniforms = [[sequence.random.random() for sequence in sequences] for _ in range(count)]
            self.uniforms[:count] = torch.tensor(uniforms, dtype=torch.float64).to(self.uniforms.device)
        for _ in range(count):
            self.graph.replay()
        host_tokens = torch.empty(len(sequences), count, dtype=torch.long, pin_memory=True)
        sampled = self.slots.tokens[:, self.num_launched + 1 : self.num_launched + 1 + count]
        is_nan = self.logits[:, -1].isnan().any(-1, keepdim=True)  # NaN stays in the cache, so the last logits show it
        host_tokens.copy_(sampled.masked_fill(is_nan, NO_TOKEN), non_blocking=True)
        self.num_launched += count
        is_done = torch.cuda.Event()
        is_done.record()
        return host_tokens, is_done


@dataclass
class CastCopy:
    """A copy of a model in another dtype, the versions of the weights it was made of, and its last step, for reuse."""

    versions: tuple[Any, ...]
    model: DecoderModel
    step: CudaGraphStep | None = None


COPIES: WeakKeyDictionary[DecoderModel, CastCopy] = WeakKeyDictionary()
REUSE_LOCK = threading.Lock()  # an idle step must not be taken by two threads


def cast_copy(model: DecoderModel, dtype: torch.dtype) -> CastCopy:
    """Return a model's copy in another dtype, reused as long as the model lives and its weights do not change."""
    versions = (dtype, *weight_versions(model))
    copy = COPIES.get(model)
    if copy is None or copy.versions != versions:
        copy = COPIES[model] = CastCopy(versions, deepcopy(model).to(dtype))
    return copy


def make_graph_step(
    model: LanguageModel, state: State, fallback: Step, settings: Sampling, dtype: torch.dtype | None = None
) -> tuple[CudaGraphStep | None, State]:
    """Return a step that replays a CUDA graph, and the state as slots; (None, state) where a graph would not be faster.

    Args:
        fallback: the model's own step, for full slots.
        dtype: bfloat16 to copy float32 weights and convert the cache; None to leave them.
    """
    if has_hooks(model) or not isinstance(model, DecoderModel) or not model.supports_slots():
        return None, state
    if not isinstance(state, DecoderCache) or not state.layers:
        return None, state
    max_length = state.tokens.shape[1] + settings.tokens
    max_length = max_length if model.window is None else min(max_length, model.window)
    if max_length - state.tokens.shape[1] < MIN_GRAPH_TOKENS:
        return None, state
    bytes_per_token = sum(
        tensor.shape[:-2].numel() * tensor.shape[-1] * (dtype or tensor.dtype).itemsize
        for layer in state.layers
        for tensor in layer
    )
    total_memory = torch.cuda.mem_get_info(state.tokens.device)[1]
    if max_length * bytes_per_token > MAX_CACHE_FRACTION * total_memory:  # most texts never need that much
        return None, state
    copy = None
    if dtype is not None and next(model.parameters()).dtype == torch.float32:
        copy = cast_copy(model, dtype)
        model = copy.model
        state = state.to(dtype)
        with REUSE_LOCK:
            if copy.step is not None and copy.step.try_reuse(state, max_length, fallback, settings):
                return copy.step, copy.step.slots
            copy.step = None  # its memory is free before more is taken
    slots = DecoderSlotCache(state, max_length)
    model.ensure_rotary_length(slots.capacity)
    step = CudaGraphStep(model, slots, fallback, settings)
    if copy is not None:
        copy.step = step
    return step, slots


class CudnnSwitch:
    """State of `without_cudnn_attention`, which is one setting for all threads of the process."""

    lock = threading.Lock()
    users = 0  # contexts that are open
    was_enabled = True  # whether cuDNN's attention was enabled when the first of them was opened


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Disable cuDNN's attention inside the context: it compiles a plan for every length, so for every token.

    Contexts of several threads may overlap: the last to end restores the setting.
    """
    with CudnnSwitch.lock:
        if not CudnnSwitch.users:
            CudnnSwitch.was_enabled = torch.backends.cuda.cudnn_sdp_enabled()
            torch.backends.cuda.enable_cudnn_sdp(False)
        CudnnSwitch.users += 1
    try:
        yield
    finally:
        with CudnnSwitch.lock:
            CudnnSwitch.users -= 1
            if not CudnnSwitch.users:
                torch.backends.cuda.enable_cudnn_sdp(CudnnSwitch.was_enabled)
