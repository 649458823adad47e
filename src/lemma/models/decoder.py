"""The decoder-only Transformer, pre-norm (Radford et al. 2019), with any kind of positions."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeGuard

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.layers import fused
from lemma.layers.attention import Attention, KVCache, SlotCache, relative_distances
from lemma.layers.feed_forward import FeedForwardLayer
from lemma.layers.positions import (
    AlibiBias,
    LearnedEmbedding,
    NoEmbedding,
    RotaryEmbedding,
    SinusoidalEmbedding,
    build_positions,
)
from lemma.layers.recording import LISTENERS
from lemma.layers.state import State, tensor_bytes
from lemma.models.base import (
    LARGE_MATRIX,
    LanguageModel,
    benefits_from_threads,
    pad_to_length,
    threaded_linear,
    trim_padding,
)
from lemma.models.transformer import TransformerLayer, build_layers, build_shared_biases, layer_shape
from lemma.spec.models import Decoder
from lemma.spec.positions import NewPositions

CACHE_ALIGNMENT = 64  # fused attention wants masks whose rows begin at multiples of 16 bytes
TOKENS_PER_CHUNK = 16_384  # tokens read at once when many full windows are read again
Tokens = Int[Tensor, "batch time"]
HiddenStates = Float[Tensor, "batch time width"]
Logits = Float[Tensor, "batch time vocabulary"]


def describe_tokens(window: int | None) -> str:
    """The tokens that count, in words."""
    return f"the window of the last {window} tokens" if window else "all tokens so far"


@dataclass(frozen=True)
class DecoderCache(State):
    """The tokens that count, and what attention keeps of them in every layer while the window is not full.

    With a sliding window in every layer, attention keeps no more than what later tokens see; the tokens are all there,
    since their number is the position of the next.
    """

    seen: Int[Tensor, "batch seen"]
    window: int | None
    """The most tokens that count; None if all of them do."""
    layers: tuple[KVCache, ...] = ()

    @property
    def can_recur(self) -> bool:
        """All tokens so far are never the same again."""
        return self.window is not None

    @property
    def about(self) -> str:
        """What it is, in words."""
        return describe_tokens(self.window)

    def tensors(self) -> dict[str, Tensor]:
        """The tokens, and each layer's keys and values, or the inputs in their place."""
        kept = {f"layers.{index}.{part}": layer[part] for index, part, layer in self._parts()}
        return {"seen": self.seen} | kept

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "DecoderCache":
        """Return a cache of the same window that holds these tensors."""
        layers: list[list[Tensor]] = [[] for _ in self.layers]
        for index, part, _ in self._parts():
            layers[index].append(tensors[f"layers.{index}.{part}"])
        return replace(self, seen=tensors["seen"], layers=tuple(map(tuple, layers)))

    def _parts(self) -> Iterator[tuple[int, int, KVCache]]:
        return ((index, part, layer) for index, layer in enumerate(self.layers) for part in range(len(layer)))

    def signature(self, row: int = 0) -> bytes:
        """The tokens say it all: while the window fills, no state comes again; once full, it is read again."""
        return tensor_bytes(self.seen[row])


class DecoderSlotCache(State):
    """Texts of one length that are being written, up to `limit` tokens: what `DecoderModel.step` reads and fills.

    Unlike a cache it is not a value: a step changes it. It has the shapes of its end from the beginning.
    """

    def __init__(self, cache: DecoderCache, limit: int) -> None:
        batch, self.max_length = len(cache.seen), limit
        self.capacity = -(-limit // CACHE_ALIGNMENT) * CACHE_ALIGNMENT
        self.tokens = cache.seen.new_zeros(
            batch, self.capacity + 1
        )  # with the token that comes after the last one read
        self.row_index = torch.arange(batch, device=cache.seen.device)
        self.lengths = torch.zeros_like(self.row_index)
        self.arrays: NumpyDecoder | None = None
        """What `read_in_numpy` reads and fills."""
        self.layers: list[SlotCache] = []
        for layer in cache.layers:
            kept = tuple(one.new_zeros(*one.shape[:-2], self.capacity, one.shape[-1]) for one in layer)
            self.layers.append(SlotCache(kept, self.row_index, self.lengths))
        self.refill(cache)

    def refill(self, cache: DecoderCache) -> None:
        """Begin with other texts, of one length and as many, in the same memory."""
        self.length, self.window = cache.seen.shape[1], cache.window
        self.tokens[:, : self.length] = cache.seen
        self.lengths.fill_(self.length)
        for slots, layer in zip(self.layers, cache.layers, strict=True):
            for wide, one in zip(slots.kept, layer, strict=True):
                wide[..., self.length - one.shape[-2] : self.length, :] = one  # a sliding window has left some out

    @property
    def can_recur(self) -> bool:
        """All tokens so far are never the same again."""
        return self.window is not None

    @property
    def is_full(self) -> bool:
        """Whether no more tokens can be written."""
        return self.length == self.max_length

    @property
    def about(self) -> str:
        """What it is, in words."""
        return describe_tokens(self.window)

    def tokens_only(self) -> DecoderCache:
        """The tokens alone, as a cache whose window is full."""
        return DecoderCache(self.tokens[:, : self.length], self.window)

    def to_cache(self) -> DecoderCache:
        """A cache of the same memory, of texts of one length in layers without a sliding window."""
        layers = tuple(tuple(one.narrow(-2, 0, self.length) for one in slots.kept) for slots in self.layers)
        return replace(self.tokens_only(), layers=layers)

    def tensors(self) -> dict[str, Tensor]:
        """The tokens."""
        return {"seen": self.tokens[:, : self.length]}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "DecoderSlotCache":
        """Slots are not made of tensors: a cache is."""
        raise NotImplementedError("make slots of a cache.")

    def select_rows(self, index: Tensor) -> "DecoderSlotCache":
        """Return the slots of some texts, with the same room."""
        copy = DecoderSlotCache(DecoderCache(self.tokens[index, : self.length], self.window), self.max_length)
        for layer in self.layers:
            copy.layers.append(SlotCache(tuple(one[index] for one in layer.kept), copy.row_index, copy.lengths))
        return copy

    def write_rows(self, rows: Sequence[int], cache: DecoderCache, cache_rows: Sequence[int]) -> None:
        """Put the texts at some places of a cache into rows, whatever was there."""
        length = cache.seen.shape[1]
        into, taken = (torch.tensor(list(index), device=self.tokens.device) for index in (rows, cache_rows))
        self.tokens[into, :length] = cache.seen[taken]
        self.lengths[into] = length
        for slots, layer in zip(self.layers, cache.layers, strict=True):
            for wide, one in zip(slots.kept, layer, strict=True):
                wide[into, ..., length - one.shape[-2] : length, :] = one[taken]

    def narrow(self, length: int) -> "DecoderSlotCache":
        """The same memory with no more room than these tokens need: a step costs as much as its room."""
        part = copy(self)
        part.capacity = min(self.capacity, -(-length // 16) * 16)
        part.layers = [
            replace(one, kept=tuple(t.narrow(-2, 0, part.capacity) for t in one.kept)) for one in self.layers
        ]
        return part

    def resize(self, rows: Tensor, batch: int, limit: int) -> "DecoderSlotCache":
        """Return slots for `batch` texts of up to `limit` tokens, of which the first are these rows."""
        other = DecoderSlotCache(DecoderCache(self.tokens.new_zeros(batch, 0), self.window), limit)
        other.length = self.length
        shared = min(self.capacity, other.capacity)
        other.tokens[: len(rows), :shared] = self.tokens[rows, :shared]
        other.lengths[: len(rows)] = self.lengths[rows]
        for layer in self.layers:
            kept = tuple(one.new_zeros(batch, *one.shape[1:-2], other.capacity, one.shape[-1]) for one in layer.kept)
            for wide, one in zip(kept, layer.kept, strict=True):
                wide[: len(rows), ..., :shared, :] = one[rows][..., :shared, :]
            other.layers.append(SlotCache(kept, other.row_index, other.lengths))
        return other

    def signature(self, row: int = 0) -> bytes:
        """The tokens say it all."""
        return tensor_bytes(self.tokens[row, : self.length])


class DecoderModel(LanguageModel):
    """Embedding and positions, layers, a last norm, and an output layer that may reuse the embedding."""

    def __init__(self, spec: Decoder, dropout: float = 0.0) -> None:
        super().__init__(spec)
        self.spec: Decoder = spec
        shape = layer_shape(spec)
        self.window = None if spec.positions.extrapolates else spec.context
        self.embedding = nn.Embedding(spec.vocabulary, spec.width)
        self.positions = build_positions(spec.positions, spec.context, spec.width)
        scaled = spec.positions.scaled if spec.scaled_embedding is None else spec.scaled_embedding
        self.scale = math.sqrt(spec.width) if scaled else None
        self.dropout = nn.Dropout(dropout)
        self.layers = build_layers(shape, spec.depth, dropout)
        self.biases = build_shared_biases(shape.attention)
        self.norm = shape.build_norm()
        self.output = nn.Linear(spec.width, spec.vocabulary, bias=False)
        if spec.tied:
            self.output.weight = self.embedding.weight
        self.logit_cap = spec.logit_cap
        self.window_reach = None if spec.window is None else spec.depth * (spec.window - 1) + 1

    def init_weights(self) -> None:
        """Draw the initial weights of GPT-2: normal ones of 0.02, those that write to the stream smaller with depth."""
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            writes = name.endswith(("attention.output.weight", "narrow.weight"))
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * len(self.layers)) if writes else 0.02)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)

    @property
    def receptive_field(self) -> int | None:
        """The context T; with positions by distance only, None, or what L sliding windows reach: L(w−1)+1."""
        return self.window_reach if self.window is None else self.window

    @property
    def vector_width(self) -> int:
        """The stream's width."""
        return self.embedding.embedding_dim

    def forward(self, tokens: Tokens, state: State | None = None) -> tuple[Logits, DecoderCache]:
        """Predict the token after each of `tokens`, from the last T tokens up to it or from all of them.

        While the window has room, keys and values are appended. Once it is full, every further token moves all
        absolute positions, so its whole window is read again. With rotary or ALiBi positions there is always room.
        """
        cache = state if isinstance(state, DecoderCache) else DecoderCache(tokens[:, :0], self.window)
        if self.window is None or (room := self.window - cache.seen.shape[1]) >= tokens.shape[1]:
            return self._append(tokens, cache)
        begun, cache = self._append(tokens[:, :room], cache) if room else (None, cache)
        joined = torch.cat([cache.seen, tokens[:, room:]], dim=1)
        slid = self._slide(joined, self.window)
        logits = slid if begun is None else torch.cat([begun, slid], dim=1)
        return logits, DecoderCache(joined[:, -self.window :], self.window)

    def supports_slots(self) -> bool:
        """Whether `step` can run: positions must know how to take each text's own place."""
        return not isinstance(self.spec.positions, NewPositions) and self.biases is None

    def step(self, tokens: Int[Tensor, "batch 1"], slots: DecoderSlotCache) -> Logits:
        """Predict the token after the next one of each text, which is written into its slot; there must be room.

        All shapes are those of the whole room, whatever the texts' lengths: nothing here depends on numbers that the
        device holds, so that a step can be captured as a CUDA graph.
        """
        embedded = self.embedding(tokens)
        embedded = embedded if self.scale is None else embedded * self.scale
        stream = self.positions(embedded, start=slots.lengths)
        columns = torch.arange(slots.capacity, device=tokens.device)
        seen = columns <= slots.lengths[:, None]
        if self.spec.window is not None:
            seen &= columns > slots.lengths[:, None] - self.spec.window
        slots.tokens.scatter_(1, slots.lengths[:, None], tokens)
        hidden = torch.zeros_like(seen, dtype=stream.dtype).masked_fill(~seen, -torch.inf)[:, None, None]
        for layer, past in zip(self.layers, slots.layers, strict=True):
            stream, _ = layer(stream, (past, None), mask=hidden, start=slots.lengths)
        slots.lengths += 1
        return self.logits_of(self.norm(stream))

    def vectors(self, tokens: Tokens) -> HiddenStates:
        """Read one sequence, at most as long as the context; what comes before padding does not see it."""
        kept = trim_padding(tokens, self.window, "decoder.context").clamp(min=0)
        return pad_to_length(self._read(kept, DecoderCache(kept[:, :0], self.window))[0], tokens.shape[1])

    def logits_of(self, vectors: HiddenStates) -> Logits:
        """Return what the output layer makes of vectors; capped, c·tanh(logit/c)."""
        logits = self.output(vectors)
        return logits if self.logit_cap is None else self.logit_cap * torch.tanh(logits / self.logit_cap)

    def _append(self, tokens: Tokens, cache: DecoderCache) -> tuple[Logits, DecoderCache]:
        stream, layers = self._read(tokens, cache)
        return self.logits_of(stream), DecoderCache(torch.cat([cache.seen, tokens], dim=1), self.window, layers)

    def _slide(self, joined: Int[Tensor, "batch joined"], window: int) -> Logits:
        """Return the logits after each full window of `joined` but the first."""
        windows = joined[:, 1:].unfold(1, window, 1)
        parts = windows.flatten(0, 1).split(max(1, TOKENS_PER_CHUNK // window))
        lasts = torch.cat([self._read(part, DecoderCache(part[:, :0], window))[0][:, -1] for part in parts])
        return self.logits_of(lasts).unflatten(0, windows.shape[:2])

    def _read(self, tokens: Tokens, cache: DecoderCache) -> tuple[HiddenStates, tuple[KVCache, ...]]:
        embedded = self.embedding(tokens)
        embedded = embedded if self.scale is None else embedded * self.scale  # or sines of size 1 would drown it
        start, new = cache.seen.shape[1], tokens.shape[1]
        stream = self.positions(embedded, start=start)
        if self.training and (stream.is_cuda or fused.COST_RECORDER):
            stream = stream.to(fused.autocast_dtype(stream))  # what layers add to is as exact as what they add
        stream = self.dropout(stream) if self.training else stream
        line = None
        if self.biases is not None:  # of the keys that are kept, and the new ones
            kept = cache.layers[0][0].shape[-2] if cache.layers else 0
            line = self.biases(relative_distances(new, kept + new, tokens.device))
        memories: list[KVCache] = []
        for index, layer in enumerate(self.layers):
            past = (cache.layers[index] if cache.layers else None, None)
            stream, (memory, _) = layer(stream, past, start=start, position_bias=line)
            memories.append(memory)
        return self.norm(stream), tuple(memories)


# One more token of one text on a CPU, in NumPy.
#
# At batch 1 a small decoder waits for the calls of its operators, not for their arithmetic, and a call of NumPy takes a
# third of the time of PyTorch's. The step reads the model's own weights and writes into the memory of `DecoderSlots`,
# so that a text can pass from here to PyTorch and back between any two tokens. What is large is left to PyTorch: NumPy
# has threads of its own, which would be in the way of others.


NUMPY_MODULES = {
    *(DecoderModel, nn.ModuleList, TransformerLayer, Attention, FeedForwardLayer, nn.Dropout),
    *(nn.Embedding, nn.Linear, nn.LayerNorm, nn.RMSNorm),
    *(NoEmbedding, LearnedEmbedding, SinusoidalEmbedding, RotaryEmbedding, AlibiBias),
}
"""The modules whose arithmetic is written out here."""
INITIAL_CAPACITY = 256  # tokens, or twice those of the prompt; then it doubles
Vector = Float[np.ndarray, " width"]
Map = Callable[[Vector], Vector]


def supports_numpy(model: nn.Module) -> TypeGuard[DecoderModel]:
    """Whether `read_in_numpy` does what a model does: known parts, in float32 on a CPU, without sliding windows."""
    if type(model) is not DecoderModel or not all(type(part) in NUMPY_MODULES for part in model.modules()):
        return False
    attentions: list[Attention] = [layer.attention for layer in model.layers]  # pyright: ignore
    shape = attentions[0].shape
    return (
        shape.key_query == shape.value_output == "separate"
        and shape.window is None
        and not shape.query_key_norm
        and model.embedding.max_norm is None
        and all(attention.shape == shape for attention in attentions)
        and {(one.dtype, one.device.type) for one in model.parameters()} == {(torch.float32, "cpu")}
    )


def step_in_numpy(
    model: DecoderModel,
    fallback: Callable[[Tensor, State], tuple[Tensor, State]],
    tokens: Int[Tensor, "1 1"],
    state: State,
) -> tuple[Float[Tensor, "1 1 vocabulary"], State]:
    """Read one token of one text; the state is its slots, or its cache before the first step and past its window.

    `beyond` is the model's own step, for texts whose window is full, and while attention is recorded or lowered.
    """
    aside = LISTENERS.active or torch.is_autocast_enabled("cpu")
    if isinstance(state, DecoderSlotCache) and aside:
        state = state.to_cache()
    window = math.inf if model.window is None else model.window
    if isinstance(state, DecoderCache):
        length = state.seen.shape[1]
        if aside or not state.layers or state.layers[0][0].dtype != torch.float32 or length == window:
            return fallback(tokens, state)
        state = DecoderSlotCache(state, int(min(max(INITIAL_CAPACITY, 2 * length), window)))
    assert isinstance(state, DecoderSlotCache)
    if state.is_full:
        state = state.resize(state.row_index, 1, int(min(2 * state.max_length, window)))
    if state.arrays is None:
        state.arrays = NumpyDecoder(model, state)
    with np.errstate(all="ignore"):  # who reads the logits sees whether they are numbers
        logits = torch.from_numpy(state.arrays.step(int(tokens), state.length)).view(1, 1, -1)
    state.length += 1
    return logits, state.tokens_only() if state.length == window else state


class NumpyDecoder:
    """The weights of a decoder and the memory of one text's slots as arrays."""

    def __init__(self, model: DecoderModel, slots: DecoderSlotCache) -> None:
        self.embedding, self.scale, self.cap = to_array(model.embedding.weight), model.scale, model.logit_cap
        added = getattr(model.positions, "weight", getattr(model.positions, "table", None))
        self.position_table = None if added is None else to_array(added)
        self.norm, self.output = compile_norm(model.norm), compile_linear(model.output)
        first: Attention = model.get_submodule("layers.0.attention")  # pyright: ignore[reportAssignmentType]
        self.heads, self.kv_heads, self.width, self.score_scale = (
            first.heads,
            first.kv_heads,
            first.head_width,
            first.scale,
        )
        self.layers, self.tokens = [compile_layer(layer) for layer in model.layers], slots.tokens[0].numpy()
        self.caches: list[tuple[np.ndarray, np.ndarray]] = []
        for layer in slots.layers:
            keys, values = layer.kept[0][0] if len(layer.kept) == 1 else (one[0] for one in layer.kept)
            self.caches.append((keys.numpy(), values.numpy()))
        self.turns = self.position_bias = None
        if isinstance(first.turns, RotaryEmbedding):
            first.turns.ensure_length(slots.capacity)
            self.turns, self.table = first.turns, to_array(first.turns.table)
        if isinstance(first.biases, AlibiBias):
            distances = np.arange(slots.capacity - 1, -1, -1, dtype=np.float32)
            self.position_bias = -(to_array(first.biases.slopes)[:, None] * distances).reshape(
                self.kv_heads, -1, slots.capacity
            )

    def step(self, token: int, position: int) -> Float[np.ndarray, " vocabulary"]:
        """Write a token into its place; return the logits of what comes after it."""
        groups, width, scale, known = self.kv_heads, self.width, self.score_scale, position + 1
        rotated, queried = (self.heads + groups) * width, self.heads * width
        product = np.matmul if queried * known < LARGE_MATRIX * groups else matmul
        line = None if self.position_bias is None else self.position_bias[:, :, self.position_bias.shape[2] - known :]
        self.tokens[position] = token
        stream = self.embedding[token]
        stream = stream if self.scale is None else stream * self.scale
        stream = stream if self.position_table is None else stream + self.position_table[position]
        for (norm, inward, outward, other_norm, feed_forward, parallel), (keys, values) in zip(
            self.layers, self.caches, strict=True
        ):
            joined = inward(norm(stream))
            turned = joined[:rotated]
            if self.turns is not None:
                turned = rotate_heads(self.turns, turned.reshape(-1, width), self.table[position]).reshape(-1)
            keys[:, position] = turned[queried:].reshape(groups, width)
            values[:, position] = joined[rotated:].reshape(groups, -1)
            scores = product((turned[:queried] * scale).reshape(groups, -1, width), keys[:, :known].swapaxes(1, 2))
            if line is not None:
                scores += line
            scores -= np.maximum.reduce(scores, 2, keepdims=True)
            np.exp(scores, out=scores)
            mixed = product(scores, values[:, :known])
            mixed /= np.add.reduce(scores, 2, keepdims=True)
            added = stream + outward(mixed.reshape(-1))
            stream = feed_forward(other_norm(stream if parallel else added))
            stream += added
        logits = self.output(self.norm(stream))
        return logits if self.cap is None else self.cap * np.tanh(logits / self.cap)


def to_array(tensor: Tensor) -> np.ndarray:
    """A tensor's own memory as an array."""
    return tensor.detach().numpy()


def matmul(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The products of stacks of matrices, by PyTorch's threads."""
    return torch.matmul(torch.from_numpy(left), torch.from_numpy(right)).numpy()


def compile_layer(layer: Any) -> tuple[Map, Map, Map, Map, Map, bool]:
    """A layer's norms and maps as functions of arrays."""
    attention, part = layer.attention, layer.feed_forward
    activation, narrow = part.activation, compile_linear(part.narrow)

    def activated(vector: Vector) -> Vector:
        return activation(torch.from_numpy(vector)).numpy()

    if part.gated:
        widen, inner = compile_linear(part.gate_widen), part.narrow.in_features

        def feed_forward(vector: Vector) -> Vector:
            wide = widen(vector)
            return narrow(activated(wide[:inner]) * wide[inner:])
    else:
        widen = compile_linear(part.widen)

        def feed_forward(vector: Vector) -> Vector:
            return narrow(activated(widen(vector)))

    norm, other_norm = compile_norm(layer.attention_norm), compile_norm(layer.feed_forward_norm)
    inward, outward = compile_linear(attention.query_key_value), compile_linear(attention.output)
    return norm, inward, outward, other_norm, feed_forward, layer.is_parallel


def compile_linear(layer: nn.Linear) -> Map:
    """A linear map; that of a large matrix is left to PyTorch."""
    matrix, shift = layer.weight, layer.bias
    if matrix.numel() >= LARGE_MATRIX:
        large = partial(threaded_linear, matrix, shift) if benefits_from_threads(matrix) else layer.forward
        return lambda vector: large(torch.from_numpy(vector)[None])[0].numpy()
    weight = to_array(matrix)
    if shift is None:
        return weight.dot
    bias = to_array(shift)

    def mapped(vector: Vector) -> Vector:
        made = weight.dot(vector)
        made += bias
        return made

    return mapped


def compile_norm(norm: Any) -> Map:
    """A layer norm, or a root-mean-square norm."""
    weight, size, epsilon = to_array(norm.weight), norm.weight.numel(), float(norm.eps)
    if isinstance(norm, nn.RMSNorm):

        def root_mean_square(vector: Vector) -> Vector:
            scaled = vector * weight
            scaled *= 1 / math.sqrt(vector.dot(vector) / size + epsilon)
            return scaled

        return root_mean_square
    bias, share = None if norm.bias is None else to_array(norm.bias), np.full(size, 1 / size, dtype=np.float32)

    def layer_norm(vector: Vector) -> Vector:
        centred = vector - vector.dot(share)
        centred *= 1 / math.sqrt(centred.dot(centred) / size + epsilon)
        centred *= weight
        if bias is not None:
            centred += bias
        return centred

    return layer_norm


def rotate_heads(
    rotary: RotaryEmbedding, vectors: Float[np.ndarray, "heads width"], row: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "heads width"]:
    """Rotate the queries and keys of one position, whose row of the table this is."""
    rotated = np.empty_like(vectors)
    whole, size = vectors[:, : rotary.rotary_dim], rotary.rotary_dim
    if rotary.halves:
        half, (sine, cosine) = size // 2, row
        rotated[:, :half], rotated[:, half:size] = whole[:, half:], whole[:, :half]
        rotated[:, :size] *= sine
        rotated[:, :size] += whole * cosine
    else:
        sine, cosine = row[:, 0], row[:, 1]
        one, other = whole[:, ::2], whole[:, 1::2]
        rotated[:, :size:2] = one * cosine - other * sine
        rotated[:, 1:size:2] = one * sine + other * cosine
    rotated[:, size:] = vectors[:, size:]
    return rotated
