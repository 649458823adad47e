"""Decoding on a GPU: memory that is there from the beginning, a few kernels a layer, and one CUDA graph for each token.

At batch 1 a GPU waits for the next kernel to be launched, hundreds of them for each token. A step of fixed shapes is
recorded once and replayed as a whole. It chooses its token too, so that the next step can follow before the host has
seen it: the host asks for a few tokens at a time, and what comes after the end of a text is dropped.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.layers.attention import Attention
from lemma.layers.cuda_graphs import capture, warmup_stream
from lemma.layers.decoding import (
    ACTIVATION_CODES,
    MAX_ROWS,
    attend_slot_cache,
    build_rotary_tables,
    embed_tokens,
    fused_linear,
    supports_attention,
    take_argmax,
)
from lemma.layers.fused import is_available
from lemma.layers.positions import LearnedEmbedding, NoEmbedding, RotaryEmbedding, SinusoidalEmbedding
from lemma.layers.state import State
from lemma.models.base import LanguageModel, has_hooks, weight_versions
from lemma.models.decoder import DecoderCache, DecoderModel, DecoderSlotCache
from lemma.models.transformer import TransformerLayer

if TYPE_CHECKING:
    from lemma.generation.batching import TokenSequence
    from lemma.generation.decode import Sampling

MIN_GRAPH_TOKENS = 16  # tokens: recording takes as long as a few dozen steps
MIN_TRITON_TOKENS = 100  # tokens: the first time, Triton compiles its kernels for some seconds
MAX_CACHE_FRACTION = 0.5  # of a GPU's memory; a cache that may become larger grows with its texts
TOKENS_AHEAD = 16  # tokens of each text that are chosen before the host looks at them
NO_TOKEN = -1  # in the place of tokens that were chosen by logits that are no numbers
GRAPH_SETTINGS = ("tokens", "temperature", "top_k", "top_p", "min_p", "looks_back", "logit_bias", "logprobs")
"""The settings that a graph depends on."""
Step = Callable[[Int[Tensor, "batch 1"], State], tuple[Tensor, State]]
"""Reads one token of each text: `logits, state = step(tokens, state)`."""


class CudnnSwitch:
    """State of `steady_attention`, which is one setting for all threads of the process."""

    lock = threading.Lock()
    users = 0  # contexts that are open
    was_enabled = True  # whether cuDNN's attention was enabled when the first of them was opened


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Leave cuDNN's attention out for a while: it makes a plan for every length, and so for every token.

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


class FusedDecoder:
    """A decoder's step in five kernels a layer, in bfloat16: the same function as `DecoderModel.step`, rounded less."""

    def __init__(self, model: DecoderModel, capacity: int) -> None:
        self.model = model
        self.layers: list[Any] = list(model.layers)
        attention: Attention = self.layers[0].attention
        turns = attention.turns
        self.rotary_tables = (
            build_rotary_tables(turns, capacity, attention.head_width) if isinstance(turns, RotaryEmbedding) else None
        )
        self.position_table = getattr(model.positions, "weight", getattr(model.positions, "table", None))

    @staticmethod
    def supports(model: DecoderModel, rows: int) -> bool:
        """Whether the kernels do what a model does: plain matrices, known activations and norms."""
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
                and layer.feed_forward.activation in ACTIVATION_CODES
                and all(type(part) is nn.Linear for part in layer.feed_forward.children())
                for layer in model.layers
            )
        )

    def step(
        self, tokens: Int[Tensor, "batch 1"], slots: DecoderSlotCache, take_argmax_tokens: bool = False
    ) -> Float[Tensor, "batch 1 vocabulary"]:
        """Predict the token after the next one of each text, which is written into its slot; there must be room.

        If it `takes` the most likely tokens, they are left in `tokens` and noted in the slots.
        """
        model = self.model
        stream = embed_tokens(tokens, slots, model.embedding.weight, self.position_table, model.scale or 1.0)
        for layer, past in zip(self.layers, slots.layers, strict=True):
            attention, feed_forward = layer.attention, layer.feed_forward
            joined = fused_linear(stream, attention.query_key_value, layer.attention_norm)
            mixed = attend_slot_cache(attention, joined, past, self.rotary_tables)
            added = fused_linear(mixed, attention.output, residual=stream)
            first = feed_forward.gate_widen if feed_forward.gated else feed_forward.widen
            read = stream if layer.is_parallel else added
            wide = fused_linear(read, first, layer.feed_forward_norm, feed_forward.activation, feed_forward.gated)
            stream = fused_linear(wide, feed_forward.narrow, residual=added)
        logits = fused_linear(stream, model.output, model.norm, dtype=torch.float32)
        if take_argmax_tokens:  # a cap leaves their order
            take_argmax(logits, tokens, slots)
        else:
            slots.lengths += 1
        return (logits if model.logit_cap is None else model.logit_cap * torch.tanh(logits / model.logit_cap))[:, None]


class GraphedStep:
    """A decoder's step, replayed from a CUDA graph while there is room; afterwards the model itself reads on.

    Where nothing but the logits decides about a token, the graph chooses it and goes on with it: `tokens` gives what it
    has chosen, and a call with these reads nothing, since they have been read. While the host looks at some tokens, the
    GPU is busy with the next ones.
    """

    warmed_up: ClassVar[WeakKeyDictionary[DecoderModel, set[tuple[int, bool]]]] = WeakKeyDictionary()
    """The steps, by rows and whether they are fused, that have run: what they need is compiled and allocated."""

    def __init__(self, model: DecoderModel, slots: DecoderSlotCache, fallback: Step, settings: "Sampling") -> None:
        self.model = model
        self._reset(fallback, settings)
        self.is_idle = False
        fused = settings.tokens >= MIN_TRITON_TOKENS and FusedDecoder.supports(model, len(slots.tokens))
        self.fused = FusedDecoder(model, slots.capacity) if fused else None
        self._record(slots)

    def _reset(self, fallback: Step, settings: "Sampling") -> None:
        self.fallback, self.settings = fallback, settings
        self.samples_on_gpu = not (settings.depends_on_history or settings.logit_bias or settings.logprobs is not None)
        self.ready_tokens: deque[list[int]] = deque()
        self.in_flight: tuple[Tensor, torch.cuda.Event] | None = None

    def try_reuse(self, cache: DecoderCache, limit: int, fallback: Step, settings: "Sampling") -> bool:
        """Whether its graph and memory are free and fit other texts, which it then begins with."""
        alike = all(getattr(self.settings, name) == getattr(settings, name) for name in GRAPH_SETTINGS)
        if not self.is_idle or not alike or self.slots.max_length != limit or len(self.slots.tokens) != len(cache.seen):
            return False
        self.slots.refill(cache)
        self._reset(fallback, settings)
        self.is_idle, self.num_launched = False, self.slots.length
        return True

    def _record(self, slots: DecoderSlotCache) -> None:
        batch, device = len(slots.tokens), slots.tokens.device
        self.slots, self.next_tokens = slots, slots.tokens.new_zeros(batch, 1)
        self.num_launched = slots.length  # tokens of each text that the GPU has read, or will have
        self.uniforms = torch.zeros(TOKENS_AHEAD, batch, dtype=torch.float64, device=device)
        self.draw_index = torch.zeros(1, dtype=torch.long, device=device)
        begin, known = slots.lengths.clone(), self.warmed_up.setdefault(self.model, set())
        if (batch, self.fused is not None) not in known:
            with warmup_stream():
                for _ in range(2):
                    self._step()
                    self._rewind(begin)  # there may be room for one token only
            known.add((batch, self.fused is not None))
        self.graph = torch.cuda.CUDAGraph()
        with capture(self.graph):
            self.logits = self._step()
        self._rewind(begin)

    def _step(self) -> Tensor:
        from lemma.generation.decode import sample_tokens

        takes = self.samples_on_gpu and self.settings.is_greedy
        if takes and self.fused is not None:
            return self.fused.step(self.next_tokens, self.slots, takes)
        read = self.model.step if self.fused is None else self.fused.step
        logits = read(self.next_tokens, self.slots).float()
        if self.samples_on_gpu:
            chances = () if takes else self.uniforms.index_select(0, self.draw_index)[0]
            chosen = sample_tokens(logits[:, -1], self.settings, chances)
            self.next_tokens.copy_(chosen.clamp_(max=logits.shape[-1] - 1)[:, None])  # NaN leads past the last token
            self.slots.tokens.scatter_(1, self.slots.lengths[:, None], self.next_tokens)
            self.draw_index += 1
        return logits

    def _rewind(self, begin: Tensor) -> None:
        self.slots.lengths.copy_(begin)
        self.draw_index.zero_()

    def _launch(self, rows: "list[TokenSequence]") -> tuple[Tensor, torch.cuda.Event] | None:
        """Have the next tokens of all texts written, as many as there is room for; None if none are needed."""
        coming = self.num_launched - self.slots.length
        left = max(self.settings.tokens - len(row.tokens) for row in rows) - coming
        count = min(TOKENS_AHEAD, self.slots.max_length - self.num_launched, left)
        if count < 1:
            return None
        self.draw_index.zero_()
        if not self.settings.is_greedy:
            drawn = [[row.random.random() for row in rows] for _ in range(count)]
            self.uniforms[:count] = torch.tensor(drawn, dtype=torch.float64).to(self.uniforms.device)
        for _ in range(count):
            self.graph.replay()
        host = torch.empty(len(rows), count, dtype=torch.long, pin_memory=True)
        chosen = self.slots.tokens[:, self.num_launched + 1 : self.num_launched + 1 + count]
        wrong = self.logits[:, -1].isnan().any(-1, keepdim=True)  # what is no number stays in the cache
        host.copy_(chosen.masked_fill(wrong, NO_TOKEN), non_blocking=True)
        self.num_launched += count
        done = torch.cuda.Event()
        done.record()
        return host, done

    def pop_tokens(self) -> Int[Tensor, " batch"] | None:
        """The tokens that the graph has chosen after those read last, or `NO_TOKEN`; None if the caller chooses."""
        return torch.tensor(self.ready_tokens.popleft()) if self.ready_tokens else None

    @property
    def has_tokens_ahead(self) -> bool:
        """Whether tokens that were chosen ahead have not been taken."""
        return bool(self.ready_tokens) or self.in_flight is not None

    def __call__(
        self, tokens: Int[Tensor, "batch 1"], state: State, rows: "list[TokenSequence]"
    ) -> tuple[Tensor, State]:
        """Read one token of each text; `rows` have the random numbers by which later tokens are chosen."""
        if not isinstance(state, DecoderSlotCache):
            return self.fallback(tokens, state)
        if not self.has_tokens_ahead:
            if state.is_full:
                return self.fallback(tokens.to(state.tokens.device), state.tokens_only())
            if state is not self.slots:  # some texts have ended: fewer rows, other shapes
                self._record(state)
            self.next_tokens.copy_(tokens)
            if self.samples_on_gpu:
                self.in_flight = self._launch(rows)
            else:
                self.graph.replay()
        if not self.ready_tokens and self.in_flight is not None:
            host, done = self.in_flight
            self.in_flight = self._launch(rows)
            done.synchronize()
            self.ready_tokens.extend(host.t().tolist())
        state.length += 1
        return self.logits, state


@dataclass
class CastCopy:
    """A copy of a model in another type, the weights that it was made of, and its last step, to be used again."""

    weights: tuple[Any, ...]
    model: DecoderModel
    step: GraphedStep | None = None


COPIES: WeakKeyDictionary[DecoderModel, CastCopy] = WeakKeyDictionary()
REUSE_LOCK = threading.Lock()  # a step that is free must not be taken by two threads


def cast_copy(model: DecoderModel, dtype: torch.dtype) -> CastCopy:
    """Copy a model into another type; the copy is kept as long as the model lives and its weights stay as they are."""
    weights = (dtype, *weight_versions(model))
    known = COPIES.get(model)
    if known is None or known.weights != weights:
        known = COPIES[model] = CastCopy(weights, deepcopy(model).to(dtype))
    return known


def fast_step(
    model: LanguageModel, state: State, beyond: Step, settings: "Sampling", dtype: torch.dtype | None = None
) -> tuple[GraphedStep | None, State]:
    """Return a faster step for the tokens of these settings if there is one, and the state in the form that it reads.

    `beyond` is the model's own step. In bfloat16 the model's matrices are copied, and the cache is converted.
    """
    if has_hooks(model):
        return None, state
    if (
        not isinstance(model, DecoderModel)
        or not isinstance(state, DecoderCache)
        or not model.supports_slots()
        or not state.layers
    ):
        return None, state
    limit = state.seen.shape[1] + settings.tokens
    limit = limit if model.window is None else min(limit, model.window)
    if limit - state.seen.shape[1] < MIN_GRAPH_TOKENS:
        return None, state
    kept = [one for layer in state.layers for one in layer]
    token = sum(one.shape[:-2].numel() * one.shape[-1] * (dtype or one.dtype).itemsize for one in kept)
    if (
        limit * token > MAX_CACHE_FRACTION * torch.cuda.mem_get_info(state.seen.device)[1]
    ):  # which most texts never come to need
        return None, state
    known = None
    if dtype is not None and next(model.parameters()).dtype == torch.float32:
        known = cast_copy(model, dtype)
        model = known.model
        layers = tuple(tuple(one.to(dtype) for one in layer) for layer in state.layers)
        state = DecoderCache(state.seen, state.window, layers)
    if known is not None:
        with REUSE_LOCK:
            if known.step is not None and known.step.try_reuse(state, limit, beyond, settings):
                return known.step, known.step.slots
            known.step = None  # its memory is free before more is taken
    slots = DecoderSlotCache(state, limit)
    for part in model.modules():
        if isinstance(part, RotaryEmbedding):
            part.ensure_length(slots.capacity)
    step = GraphedStep(model, slots, beyond, settings)
    if known is not None:
        known.step = step
    return step, slots
