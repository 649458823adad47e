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
from lemma.layers.attention import Attention, Memory, Slots, distances_of
from lemma.layers.feed_forward import FeedForwardPart
from lemma.layers.positions import AlibiPart, LearnedPart, NoPart, RotaryPart, SinusoidalPart, positions
from lemma.layers.recording import LISTENERS
from lemma.layers.state import State, bytes_of
from lemma.models.base import LARGE, LanguageModel, map_by_threads, widened, within, worth_threads
from lemma.models.transformer import TransformerLayer, layer_shape, new_layers, shared_biases
from lemma.spec.models import Decoder
from lemma.spec.positions import NewPositions

ALIGNED = 64  # fused attention wants masks whose rows begin at multiples of 16 bytes
WINDOWS_AT_ONCE = 16_384  # tokens read at once when many full windows are read again
Tokens = Int[Tensor, "batch time"]
Stream = Float[Tensor, "batch time width"]
Logits = Float[Tensor, "batch time vocabulary"]


def about_tokens(window: int | None) -> str:
    """The tokens that count, in words."""
    return f"the window of the last {window} tokens" if window else "all tokens so far"


@dataclass(frozen=True)
class Cache(State):
    """The tokens that count, and what attention keeps of them in every layer while the window is not full.

    With a sliding window in every layer, attention keeps no more than what later tokens see; the tokens are all there,
    since their number is the position of the next.
    """

    seen: Int[Tensor, "batch seen"]
    window: int | None
    """The most tokens that count; None if all of them do."""
    layers: tuple[Memory, ...] = ()

    @property
    def comes_back(self) -> bool:
        """All tokens so far are never the same again."""
        return self.window is not None

    @property
    def about(self) -> str:
        """What it is, in words."""
        return about_tokens(self.window)

    def tensors(self) -> dict[str, Tensor]:
        """The tokens, and each layer's keys and values, or the inputs in their place."""
        kept = {f"layers.{index}.{part}": layer[part] for index, part, layer in self._parts()}
        return {"seen": self.seen} | kept

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "Cache":
        """Return a cache of the same window that holds these tensors."""
        layers: list[list[Tensor]] = [[] for _ in self.layers]
        for index, part, _ in self._parts():
            layers[index].append(tensors[f"layers.{index}.{part}"])
        return replace(self, seen=tensors["seen"], layers=tuple(map(tuple, layers)))

    def _parts(self) -> Iterator[tuple[int, int, Memory]]:
        return ((index, part, layer) for index, layer in enumerate(self.layers) for part in range(len(layer)))

    def signature(self, row: int = 0) -> bytes:
        """The tokens say it all: while the window fills, no state comes again; once full, it is read again."""
        return bytes_of(self.seen[row])


class DecoderSlots(State):
    """Texts of one length that are being written, up to `limit` tokens: what `DecoderModel.step` reads and fills.

    Unlike a cache it is not a value: a step changes it. It has the shapes of its end from the beginning.
    """

    def __init__(self, cache: Cache, limit: int) -> None:
        batch, self.limit = len(cache.seen), limit
        self.room = -(-limit // ALIGNED) * ALIGNED
        self.seen = cache.seen.new_zeros(batch, self.room + 1)  # with the token that comes after the last one read
        self.texts = torch.arange(batch, device=cache.seen.device)
        self.places = torch.zeros_like(self.texts)
        self.arrays: DecoderArrays | None = None
        """What `read_in_numpy` reads and fills."""
        self.layers: list[Slots] = []
        for layer in cache.layers:
            kept = tuple(one.new_zeros(*one.shape[:-2], self.room, one.shape[-1]) for one in layer)
            self.layers.append(Slots(kept, self.texts, self.places))
        self.fill(cache)

    def fill(self, cache: Cache) -> None:
        """Begin with other texts, of one length and as many, in the same memory."""
        self.count, self.window = cache.seen.shape[1], cache.window
        self.seen[:, : self.count] = cache.seen
        self.places.fill_(self.count)
        for slots, layer in zip(self.layers, cache.layers, strict=True):
            for wide, one in zip(slots.kept, layer, strict=True):
                wide[..., self.count - one.shape[-2] : self.count, :] = one  # a sliding window has left some out

    @property
    def comes_back(self) -> bool:
        """All tokens so far are never the same again."""
        return self.window is not None

    @property
    def full(self) -> bool:
        """Whether no more tokens can be written."""
        return self.count == self.limit

    @property
    def about(self) -> str:
        """What it is, in words."""
        return about_tokens(self.window)

    def cache(self) -> Cache:
        """The tokens alone, as a cache whose window is full."""
        return Cache(self.seen[:, : self.count], self.window)

    def whole(self) -> Cache:
        """A cache of the same memory, of texts of one length in layers without a sliding window."""
        layers = tuple(tuple(one.narrow(-2, 0, self.count) for one in slots.kept) for slots in self.layers)
        return replace(self.cache(), layers=layers)

    def tensors(self) -> dict[str, Tensor]:
        """The tokens."""
        return {"seen": self.seen[:, : self.count]}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "DecoderSlots":
        """Slots are not made of tensors: a cache is."""
        raise NotImplementedError("make slots of a cache.")

    def rows(self, index: Tensor) -> "DecoderSlots":
        """Return the slots of some texts, with the same room."""
        copy = DecoderSlots(Cache(self.seen[index, : self.count], self.window), self.limit)
        for layer in self.layers:
            copy.layers.append(Slots(tuple(one[index] for one in layer.kept), copy.texts, copy.places))
        return copy

    def put(self, rows: Sequence[int], cache: Cache, places: Sequence[int]) -> None:
        """Put the texts at some places of a cache into rows, whatever was there."""
        length = cache.seen.shape[1]
        into, taken = (torch.tensor(list(index), device=self.seen.device) for index in (rows, places))
        self.seen[into, :length] = cache.seen[taken]
        self.places[into] = length
        for slots, layer in zip(self.layers, cache.layers, strict=True):
            for wide, one in zip(slots.kept, layer, strict=True):
                wide[into, ..., length - one.shape[-2] : length, :] = one[taken]

    def up_to(self, length: int) -> "DecoderSlots":
        """The same memory with no more room than these tokens need: a step costs as much as its room."""
        part = copy(self)
        part.room = min(self.room, -(-length // 16) * 16)
        part.layers = [replace(one, kept=tuple(t.narrow(-2, 0, part.room) for t in one.kept)) for one in self.layers]
        return part

    def resized(self, rows: Tensor, batch: int, limit: int) -> "DecoderSlots":
        """Return slots for `batch` texts of up to `limit` tokens, of which the first are these rows."""
        other = DecoderSlots(Cache(self.seen.new_zeros(batch, 0), self.window), limit)
        other.count = self.count
        shared = min(self.room, other.room)
        other.seen[: len(rows), :shared] = self.seen[rows, :shared]
        other.places[: len(rows)] = self.places[rows]
        for layer in self.layers:
            kept = tuple(one.new_zeros(batch, *one.shape[1:-2], other.room, one.shape[-1]) for one in layer.kept)
            for wide, one in zip(kept, layer.kept, strict=True):
                wide[: len(rows), ..., :shared, :] = one[rows][..., :shared, :]
            other.layers.append(Slots(kept, other.texts, other.places))
        return other

    def signature(self, row: int = 0) -> bytes:
        """The tokens say it all."""
        return bytes_of(self.seen[row, : self.count])


class DecoderModel(LanguageModel):
    """Embedding and positions, layers, a last norm, and an output layer that may reuse the embedding."""

    def __init__(self, spec: Decoder, dropout: float = 0.0) -> None:
        super().__init__(spec)
        self.spec: Decoder = spec
        shape = layer_shape(spec)
        self.window = None if spec.positions.endless else spec.context
        self.embedding = nn.Embedding(spec.vocabulary, spec.width)
        self.positions = positions(spec.positions, spec.context, spec.width)
        scaled = spec.positions.scaled if spec.scaled_embedding is None else spec.scaled_embedding
        self.scale = math.sqrt(spec.width) if scaled else None
        self.dropout = nn.Dropout(dropout)
        self.layers = new_layers(shape, spec.depth, dropout)
        self.biases = shared_biases(shape.attention)
        self.norm = shape.new_norm()
        self.output = nn.Linear(spec.width, spec.vocabulary, bias=False)
        if spec.tied:
            self.output.weight = self.embedding.weight
        self.cap = spec.logit_cap
        self.reach = None if spec.window is None else spec.depth * (spec.window - 1) + 1

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
        return self.reach if self.window is None else self.window

    @property
    def vector_width(self) -> int:
        """The stream's width."""
        return self.embedding.embedding_dim

    def forward(self, tokens: Tokens, state: State | None = None) -> tuple[Logits, Cache]:
        """Predict the token after each of `tokens`, from the last T tokens up to it or from all of them.

        While the window has room, keys and values are appended. Once it is full, every further token moves all
        absolute positions, so its whole window is read again. With rotary or ALiBi positions there is always room.
        """
        cache = state if isinstance(state, Cache) else Cache(tokens[:, :0], self.window)
        if self.window is None or (room := self.window - cache.seen.shape[1]) >= tokens.shape[1]:
            return self._append(tokens, cache)
        begun, cache = self._append(tokens[:, :room], cache) if room else (None, cache)
        joined = torch.cat([cache.seen, tokens[:, room:]], dim=1)
        slid = self._slide(joined, self.window)
        logits = slid if begun is None else torch.cat([begun, slid], dim=1)
        return logits, Cache(joined[:, -self.window :], self.window)

    def has_slots(self) -> bool:
        """Whether `step` can run: positions must know how to take each text's own place."""
        return not isinstance(self.spec.positions, NewPositions) and self.biases is None

    def step(self, tokens: Int[Tensor, "batch 1"], slots: DecoderSlots) -> Logits:
        """Predict the token after the next one of each text, which is written into its slot; there must be room.

        All shapes are those of the whole room, whatever the texts' lengths: nothing here depends on numbers that the
        device holds, so that a step can be captured as a CUDA graph.
        """
        embedded = self.embedding(tokens)
        embedded = embedded if self.scale is None else embedded * self.scale
        stream = self.positions(embedded, start=slots.places)
        columns = torch.arange(slots.room, device=tokens.device)
        seen = columns <= slots.places[:, None]
        if self.spec.window is not None:
            seen &= columns > slots.places[:, None] - self.spec.window
        slots.seen.scatter_(1, slots.places[:, None], tokens)
        hidden = torch.zeros_like(seen, dtype=stream.dtype).masked_fill(~seen, -torch.inf)[:, None, None]
        for layer, past in zip(self.layers, slots.layers, strict=True):
            stream, _ = layer(stream, (past, None), mask=hidden, start=slots.places)
        slots.places += 1
        return self.logits_of(self.norm(stream))

    def vectors(self, tokens: Tokens) -> Stream:
        """Read one sequence, at most as long as the context; what comes before padding does not see it."""
        kept = within(tokens, self.window, "decoder.context").clamp(min=0)
        return widened(self._read(kept, Cache(kept[:, :0], self.window))[0], tokens.shape[1])

    def logits_of(self, vectors: Stream) -> Logits:
        """Return what the output layer makes of vectors; capped, c·tanh(logit/c)."""
        logits = self.output(vectors)
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)

    def _append(self, tokens: Tokens, cache: Cache) -> tuple[Logits, Cache]:
        stream, layers = self._read(tokens, cache)
        return self.logits_of(stream), Cache(torch.cat([cache.seen, tokens], dim=1), self.window, layers)

    def _slide(self, joined: Int[Tensor, "batch joined"], window: int) -> Logits:
        """Return the logits after each full window of `joined` but the first."""
        windows = joined[:, 1:].unfold(1, window, 1)
        parts = windows.flatten(0, 1).split(max(1, WINDOWS_AT_ONCE // window))
        lasts = torch.cat([self._read(part, Cache(part[:, :0], window))[0][:, -1] for part in parts])
        return self.logits_of(lasts).unflatten(0, windows.shape[:2])

    def _read(self, tokens: Tokens, cache: Cache) -> tuple[Stream, tuple[Memory, ...]]:
        embedded = self.embedding(tokens)
        embedded = embedded if self.scale is None else embedded * self.scale  # or sines of size 1 would drown it
        start, new = cache.seen.shape[1], tokens.shape[1]
        stream = self.positions(embedded, start=start)
        if self.training and (stream.is_cuda or fused.STANDING_IN):
            stream = stream.to(fused.lowered_to(stream))  # what layers add to is as exact as what they add
        stream = self.dropout(stream) if self.training else stream
        line = None
        if self.biases is not None:  # of the keys that are kept, and the new ones
            kept = cache.layers[0][0].shape[-2] if cache.layers else 0
            line = self.biases(distances_of(new, kept + new, tokens.device))
        memories: list[Memory] = []
        for index, layer in enumerate(self.layers):
            past = (cache.layers[index] if cache.layers else None, None)
            stream, (memory, _) = layer(stream, past, start=start, line=line)
            memories.append(memory)
        return self.norm(stream), tuple(memories)


# One more token of one text on a CPU, in NumPy.
#
# At batch 1 a small decoder waits for the calls of its operators, not for their arithmetic, and a call of NumPy takes a
# third of the time of PyTorch's. The step reads the model's own weights and writes into the memory of `DecoderSlots`,
# so that a text can pass from here to PyTorch and back between any two tokens. What is large is left to PyTorch: NumPy
# has threads of its own, which would be in the way of others.


PARTS = {
    *(DecoderModel, nn.ModuleList, TransformerLayer, Attention, FeedForwardPart, nn.Dropout),
    *(nn.Embedding, nn.Linear, nn.LayerNorm, nn.RMSNorm),
    *(NoPart, LearnedPart, SinusoidalPart, RotaryPart, AlibiPart),
}
"""The modules whose arithmetic is written out here."""
FIRST_ROOM = 256  # tokens, or twice those of the prompt; then it doubles
Vector = Float[np.ndarray, " width"]
Map = Callable[[Vector], Vector]


def reads_in_numpy(model: nn.Module) -> TypeGuard[DecoderModel]:
    """Whether `read_in_numpy` does what a model does: known parts, in float32 on a CPU, without sliding windows."""
    if type(model) is not DecoderModel or not all(type(part) in PARTS for part in model.modules()):
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


def read_in_numpy(
    model: DecoderModel,
    beyond: Callable[[Tensor, State], tuple[Tensor, State]],
    tokens: Int[Tensor, "1 1"],
    state: State,
) -> tuple[Float[Tensor, "1 1 vocabulary"], State]:
    """Read one token of one text; the state is its slots, or its cache before the first step and past its window.

    `beyond` is the model's own step, for texts whose window is full, and while attention is recorded or lowered.
    """
    aside = LISTENERS.active or torch.is_autocast_enabled("cpu")
    if isinstance(state, DecoderSlots) and aside:
        state = state.whole()
    window = math.inf if model.window is None else model.window
    if isinstance(state, Cache):
        length = state.seen.shape[1]
        if aside or not state.layers or state.layers[0][0].dtype != torch.float32 or length == window:
            return beyond(tokens, state)
        state = DecoderSlots(state, int(min(max(FIRST_ROOM, 2 * length), window)))
    assert isinstance(state, DecoderSlots)
    if state.full:
        state = state.resized(state.texts, 1, int(min(2 * state.limit, window)))
    if state.arrays is None:
        state.arrays = DecoderArrays(model, state)
    with np.errstate(all="ignore"):  # who reads the logits sees whether they are numbers
        logits = torch.from_numpy(state.arrays.read(int(tokens), state.count)).view(1, 1, -1)
    state.count += 1
    return logits, state.cache() if state.count == window else state


class DecoderArrays:
    """The weights of a decoder and the memory of one text's slots as arrays."""

    def __init__(self, model: DecoderModel, slots: DecoderSlots) -> None:
        self.embedding, self.scale, self.cap = numbers(model.embedding.weight), model.scale, model.cap
        added = getattr(model.positions, "weight", getattr(model.positions, "table", None))
        self.added = None if added is None else numbers(added)
        self.norm, self.output = norm_of(model.norm), map_of(model.output)
        first: Attention = model.get_submodule("layers.0.attention")  # pyright: ignore[reportAssignmentType]
        self.heads, self.groups, self.width, self.score_scale = first.heads, first.groups, first.head_width, first.scale
        self.layers, self.seen = [layer_of(layer) for layer in model.layers], slots.seen[0].numpy()
        self.kept: list[tuple[np.ndarray, np.ndarray]] = []
        for layer in slots.layers:
            keys, values = layer.kept[0][0] if len(layer.kept) == 1 else (one[0] for one in layer.kept)
            self.kept.append((keys.numpy(), values.numpy()))
        self.turns = self.line = None
        if isinstance(first.turns, RotaryPart):
            first.turns.reach(slots.room)
            self.turns, self.table = first.turns, numbers(first.turns.table)
        if isinstance(first.biases, AlibiPart):
            distances = np.arange(slots.room - 1, -1, -1, dtype=np.float32)
            self.line = -(numbers(first.biases.slopes)[:, None] * distances).reshape(self.groups, -1, slots.room)

    def read(self, token: int, place: int) -> Float[np.ndarray, " vocabulary"]:
        """Write a token into its place; return the logits of what comes after it."""
        groups, width, scale, known = self.groups, self.width, self.score_scale, place + 1
        rotated, queried = (self.heads + groups) * width, self.heads * width
        product = np.matmul if queried * known < LARGE * groups else matmul
        line = None if self.line is None else self.line[:, :, self.line.shape[2] - known :]
        self.seen[place] = token
        stream = self.embedding[token]
        stream = stream if self.scale is None else stream * self.scale
        stream = stream if self.added is None else stream + self.added[place]
        for (norm, inward, outward, other_norm, feed_forward, parallel), (keys, values) in zip(
            self.layers, self.kept, strict=True
        ):
            joined = inward(norm(stream))
            turned = joined[:rotated]
            if self.turns is not None:
                turned = rotated_by(self.turns, turned.reshape(-1, width), self.table[place]).reshape(-1)
            keys[:, place] = turned[queried:].reshape(groups, width)
            values[:, place] = joined[rotated:].reshape(groups, -1)
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


def numbers(tensor: Tensor) -> np.ndarray:
    """A tensor's own memory as an array."""
    return tensor.detach().numpy()


def matmul(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The products of stacks of matrices, by PyTorch's threads."""
    return torch.matmul(torch.from_numpy(left), torch.from_numpy(right)).numpy()


def layer_of(layer: Any) -> tuple[Map, Map, Map, Map, Map, bool]:
    """A layer's norms and maps as functions of arrays."""
    attention, part = layer.attention, layer.feed_forward
    activation, narrow = part.activation, map_of(part.narrow)

    def activated(vector: Vector) -> Vector:
        return activation(torch.from_numpy(vector)).numpy()

    if part.gated:
        widen, inner = map_of(part.gate_widen), part.narrow.in_features

        def feed_forward(vector: Vector) -> Vector:
            wide = widen(vector)
            return narrow(activated(wide[:inner]) * wide[inner:])
    else:
        widen = map_of(part.widen)

        def feed_forward(vector: Vector) -> Vector:
            return narrow(activated(widen(vector)))

    norm, other_norm = norm_of(layer.attention_norm), norm_of(layer.feed_forward_norm)
    inward, outward = map_of(attention.query_key_value), map_of(attention.output)
    return norm, inward, outward, other_norm, feed_forward, layer.parallel


def map_of(layer: nn.Linear) -> Map:
    """A linear map; that of a large matrix is left to PyTorch."""
    matrix, shift = layer.weight, layer.bias
    if matrix.numel() >= LARGE:
        large = partial(map_by_threads, matrix, shift) if worth_threads(matrix) else layer.forward
        return lambda vector: large(torch.from_numpy(vector)[None])[0].numpy()
    weight = numbers(matrix)
    if shift is None:
        return weight.dot
    bias = numbers(shift)

    def mapped(vector: Vector) -> Vector:
        made = weight.dot(vector)
        made += bias
        return made

    return mapped


def norm_of(norm: Any) -> Map:
    """A layer norm, or a root-mean-square norm."""
    weight, size, epsilon = numbers(norm.weight), norm.weight.numel(), float(norm.eps)
    if isinstance(norm, nn.RMSNorm):

        def root_mean_square(vector: Vector) -> Vector:
            scaled = vector * weight
            scaled *= 1 / math.sqrt(vector.dot(vector) / size + epsilon)
            return scaled

        return root_mean_square
    bias, share = None if norm.bias is None else numbers(norm.bias), np.full(size, 1 / size, dtype=np.float32)

    def layer_norm(vector: Vector) -> Vector:
        centred = vector - vector.dot(share)
        centred *= 1 / math.sqrt(centred.dot(centred) / size + epsilon)
        centred *= weight
        if bias is not None:
            centred += bias
        return centred

    return layer_norm


def rotated_by(
    turns: RotaryPart, vectors: Float[np.ndarray, "heads width"], row: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "heads width"]:
    """Rotate the queries and keys of one position, whose row of the table this is."""
    rotated = np.empty_like(vectors)
    whole, size = vectors[:, : turns.width], turns.width
    if turns.halves:
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
