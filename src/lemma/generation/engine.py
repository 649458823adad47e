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
from lemma.layers.cuda_graphs import capture, warming_up
from lemma.layers.decoding import (
    ACTIVATION_CODES,
    MOST_ROWS,
    attend_slots,
    covers,
    embed_next,
    product,
    rotations,
    take_highest,
)
from lemma.layers.fused import available
from lemma.layers.positions import LearnedPart, NoPart, RotaryPart, SinusoidalPart
from lemma.layers.state import State
from lemma.models.base import LanguageModel, hooked, weight_versions
from lemma.models.decoder import Cache, DecoderModel, DecoderSlots
from lemma.models.transformer import TransformerLayer

if TYPE_CHECKING:
    from lemma.generation.batching import Continuation
    from lemma.generation.decode import Sampling

WORTH_RECORDING = 16  # tokens: recording takes as long as a few dozen steps
WORTH_FUSING = 100  # tokens: the first time, Triton compiles its kernels for some seconds
MOST_ROOM = 0.5  # of a GPU's memory; a cache that may become larger grows with its texts
AHEAD = 16  # tokens of each text that are chosen before the host looks at them
NO_TOKEN = -1  # in the place of tokens that were chosen by logits that are no numbers
RECORDED = ("tokens", "temperature", "top_k", "top_p", "min_p", "looks_back", "logit_bias", "logprobs")
"""The settings that a graph depends on."""
Step = Callable[[Int[Tensor, "batch 1"], State], tuple[Tensor, State]]
"""Reads one token of each text: `logits, state = step(tokens, state)`."""


class CudnnSwitch:
    """State of `steady_attention`, which is one setting for all threads of the process."""

    lock = threading.Lock()
    users = 0  # contexts that are open
    before = True  # whether cuDNN's attention was enabled when the first of them was opened


@contextmanager
def steady_attention() -> Iterator[None]:
    """Leave cuDNN's attention out for a while: it makes a plan for every length, and so for every token.

    Contexts of several threads may overlap: the last to end restores the setting.
    """
    with CudnnSwitch.lock:
        if not CudnnSwitch.users:
            CudnnSwitch.before = torch.backends.cuda.cudnn_sdp_enabled()
            torch.backends.cuda.enable_cudnn_sdp(False)
        CudnnSwitch.users += 1
    try:
        yield
    finally:
        with CudnnSwitch.lock:
            CudnnSwitch.users -= 1
            if not CudnnSwitch.users:
                torch.backends.cuda.enable_cudnn_sdp(CudnnSwitch.before)


class FusedDecoder:
    """A decoder's step in five kernels a layer, in bfloat16: the same function as `DecoderModel.step`, rounded less."""

    def __init__(self, model: DecoderModel, room: int) -> None:
        self.model = model
        self.layers: list[Any] = list(model.layers)
        attention: Attention = self.layers[0].attention
        turns = attention.turns
        self.turns = rotations(turns, room, attention.head_width) if isinstance(turns, RotaryPart) else None
        self.added = getattr(model.positions, "weight", getattr(model.positions, "table", None))

    @staticmethod
    def covers(model: DecoderModel, rows: int) -> bool:
        """Whether the kernels do what a model does: plain matrices, known activations and norms."""
        parameter = next(model.parameters())
        return (
            rows <= MOST_ROWS
            and parameter.dtype == torch.bfloat16
            and available(parameter.device)
            and type(model.output) is nn.Linear
            and type(model.positions) in (NoPart, LearnedPart, SinusoidalPart)
            and all(
                type(layer) is TransformerLayer
                and covers(layer.attention)
                and layer.feed_forward.activation in ACTIVATION_CODES
                and all(type(part) is nn.Linear for part in layer.feed_forward.children())
                for layer in model.layers
            )
        )

    def step(
        self, tokens: Int[Tensor, "batch 1"], slots: DecoderSlots, takes: bool = False
    ) -> Float[Tensor, "batch 1 vocabulary"]:
        """Predict the token after the next one of each text, which is written into its slot; there must be room.

        If it `takes` the most likely tokens, they are left in `tokens` and noted in the slots.
        """
        model = self.model
        stream = embed_next(tokens, slots, model.embedding.weight, self.added, model.scale or 1.0)
        for layer, past in zip(self.layers, slots.layers, strict=True):
            attention, feed_forward = layer.attention, layer.feed_forward
            joined = product(stream, attention.query_key_value, layer.attention_norm)
            mixed = attend_slots(attention, joined, past, self.turns)
            added = product(mixed, attention.output, residual=stream)
            first = feed_forward.gate_widen if feed_forward.gated else feed_forward.widen
            read = stream if layer.parallel else added
            wide = product(read, first, layer.feed_forward_norm, feed_forward.activation, feed_forward.gated)
            stream = product(wide, feed_forward.narrow, residual=added)
        logits = product(stream, model.output, model.norm, dtype=torch.float32)
        if takes:  # a cap leaves their order
            take_highest(logits, tokens, slots)
        else:
            slots.places += 1
        return (logits if model.cap is None else model.cap * torch.tanh(logits / model.cap))[:, None]


class GraphedStep:
    """A decoder's step, replayed from a CUDA graph while there is room; afterwards the model itself reads on.

    Where nothing but the logits decides about a token, the graph chooses it and goes on with it: `tokens` gives what it
    has chosen, and a call with these reads nothing, since they have been read. While the host looks at some tokens, the
    GPU is busy with the next ones.
    """

    warm: ClassVar[WeakKeyDictionary[DecoderModel, set[tuple[int, bool]]]] = WeakKeyDictionary()
    """The steps, by rows and whether they are fused, that have run: what they need is compiled and allocated."""

    def __init__(self, model: DecoderModel, slots: DecoderSlots, beyond: Step, settings: "Sampling") -> None:
        self.model = model
        self._begin(beyond, settings)
        self.idle = False
        fused = settings.tokens >= WORTH_FUSING and FusedDecoder.covers(model, len(slots.seen))
        self.fused = FusedDecoder(model, slots.room) if fused else None
        self._record(slots)

    def _begin(self, beyond: Step, settings: "Sampling") -> None:
        self.beyond, self.settings = beyond, settings
        self.chooses = not (settings.looks_back or settings.logit_bias or settings.logprobs is not None)
        self.chosen: deque[list[int]] = deque()
        self.flying: tuple[Tensor, torch.cuda.Event] | None = None

    def serves_again(self, cache: Cache, limit: int, beyond: Step, settings: "Sampling") -> bool:
        """Whether its graph and memory are free and fit other texts, which it then begins with."""
        alike = all(getattr(self.settings, name) == getattr(settings, name) for name in RECORDED)
        if not self.idle or not alike or self.slots.limit != limit or len(self.slots.seen) != len(cache.seen):
            return False
        self.slots.fill(cache)
        self._begin(beyond, settings)
        self.idle, self.launched = False, self.slots.count
        return True

    def _record(self, slots: DecoderSlots) -> None:
        batch, device = len(slots.seen), slots.seen.device
        self.slots, self.next = slots, slots.seen.new_zeros(batch, 1)
        self.launched = slots.count  # tokens of each text that the GPU has read, or will have
        self.chances = torch.zeros(AHEAD, batch, dtype=torch.float64, device=device)
        self.turn = torch.zeros(1, dtype=torch.long, device=device)
        begin, known = slots.places.clone(), self.warm.setdefault(self.model, set())
        if (batch, self.fused is not None) not in known:
            with warming_up():
                for _ in range(2):
                    self._step()
                    self._rewind(begin)  # there may be room for one token only
            known.add((batch, self.fused is not None))
        self.graph = torch.cuda.CUDAGraph()
        with capture(self.graph):
            self.logits = self._step()
        self._rewind(begin)

    def _step(self) -> Tensor:
        from lemma.generation.decode import choose

        takes = self.chooses and self.settings.greedy
        if takes and self.fused is not None:
            return self.fused.step(self.next, self.slots, takes)
        read = self.model.step if self.fused is None else self.fused.step
        logits = read(self.next, self.slots).float()
        if self.chooses:
            chances = () if takes else self.chances.index_select(0, self.turn)[0]
            chosen = choose(logits[:, -1], self.settings, chances)
            self.next.copy_(chosen.clamp_(max=logits.shape[-1] - 1)[:, None])  # NaN leads past the last token
            self.slots.seen.scatter_(1, self.slots.places[:, None], self.next)
            self.turn += 1
        return logits

    def _rewind(self, begin: Tensor) -> None:
        self.slots.places.copy_(begin)
        self.turn.zero_()

    def _launch(self, rows: "list[Continuation]") -> tuple[Tensor, torch.cuda.Event] | None:
        """Have the next tokens of all texts written, as many as there is room for; None if none are needed."""
        coming = self.launched - self.slots.count
        left = max(self.settings.tokens - len(row.tokens) for row in rows) - coming
        count = min(AHEAD, self.slots.limit - self.launched, left)
        if count < 1:
            return None
        self.turn.zero_()
        if not self.settings.greedy:
            drawn = [[row.random.random() for row in rows] for _ in range(count)]
            self.chances[:count] = torch.tensor(drawn, dtype=torch.float64).to(self.chances.device)
        for _ in range(count):
            self.graph.replay()
        host = torch.empty(len(rows), count, dtype=torch.long, pin_memory=True)
        chosen = self.slots.seen[:, self.launched + 1 : self.launched + 1 + count]
        wrong = self.logits[:, -1].isnan().any(-1, keepdim=True)  # what is no number stays in the cache
        host.copy_(chosen.masked_fill(wrong, NO_TOKEN), non_blocking=True)
        self.launched += count
        done = torch.cuda.Event()
        done.record()
        return host, done

    def tokens(self) -> Int[Tensor, " batch"] | None:
        """The tokens that the graph has chosen after those read last, or `NO_TOKEN`; None if the caller chooses."""
        return torch.tensor(self.chosen.popleft()) if self.chosen else None

    @property
    def busy(self) -> bool:
        """Whether tokens that were chosen ahead have not been taken."""
        return bool(self.chosen) or self.flying is not None

    def __call__(
        self, tokens: Int[Tensor, "batch 1"], state: State, rows: "list[Continuation]"
    ) -> tuple[Tensor, State]:
        """Read one token of each text; `rows` have the random numbers by which later tokens are chosen."""
        if not isinstance(state, DecoderSlots):
            return self.beyond(tokens, state)
        if not self.busy:
            if state.full:
                return self.beyond(tokens.to(state.seen.device), state.cache())
            if state is not self.slots:  # some texts have ended: fewer rows, other shapes
                self._record(state)
            self.next.copy_(tokens)
            if self.chooses:
                self.flying = self._launch(rows)
            else:
                self.graph.replay()
        if not self.chosen and self.flying is not None:
            host, done = self.flying
            self.flying = self._launch(rows)
            done.synchronize()
            self.chosen.extend(host.t().tolist())
        state.count += 1
        return self.logits, state


@dataclass
class Lowered:
    """A copy of a model in another type, the weights that it was made of, and its last step, to be used again."""

    weights: tuple[Any, ...]
    model: DecoderModel
    step: GraphedStep | None = None


COPIES: WeakKeyDictionary[DecoderModel, Lowered] = WeakKeyDictionary()
REUSING = threading.Lock()  # a step that is free must not be taken by two threads


def lowered(model: DecoderModel, dtype: torch.dtype) -> Lowered:
    """Copy a model into another type; the copy is kept as long as the model lives and its weights stay as they are."""
    weights = (dtype, *weight_versions(model))
    known = COPIES.get(model)
    if known is None or known.weights != weights:
        known = COPIES[model] = Lowered(weights, deepcopy(model).to(dtype))
    return known


def fast_step(
    model: LanguageModel, state: State, beyond: Step, settings: "Sampling", dtype: torch.dtype | None = None
) -> tuple[GraphedStep | None, State]:
    """Return a faster step for the tokens of these settings if there is one, and the state in the form that it reads.

    `beyond` is the model's own step. In bfloat16 the model's matrices are copied, and the cache is converted.
    """
    if hooked(model):
        return None, state
    if not isinstance(model, DecoderModel) or not isinstance(state, Cache) or not model.has_slots() or not state.layers:
        return None, state
    limit = state.seen.shape[1] + settings.tokens
    limit = limit if model.window is None else min(limit, model.window)
    if limit - state.seen.shape[1] < WORTH_RECORDING:
        return None, state
    kept = [one for layer in state.layers for one in layer]
    token = sum(one.shape[:-2].numel() * one.shape[-1] * (dtype or one.dtype).itemsize for one in kept)
    if limit * token > MOST_ROOM * torch.cuda.mem_get_info(state.seen.device)[1]:  # which most texts never come to need
        return None, state
    known = None
    if dtype is not None and next(model.parameters()).dtype == torch.float32:
        known = lowered(model, dtype)
        model = known.model
        layers = tuple(tuple(one.to(dtype) for one in layer) for layer in state.layers)
        state = Cache(state.seen, state.window, layers)
    if known is not None:
        with REUSING:
            if known.step is not None and known.step.serves_again(state, limit, beyond, settings):
                return known.step, known.step.slots
            known.step = None  # its memory is free before more is taken
    slots = DecoderSlots(state, limit)
    for part in model.modules():
        if isinstance(part, RotaryPart):
            part.reach(slots.room)
    step = GraphedStep(model, slots, beyond, settings)
    if known is not None:
        known.step = step
    return step, slots
