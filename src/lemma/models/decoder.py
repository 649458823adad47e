"""The decoder-only Transformer, pre-norm (Radford et al. 2019), with any kind of positions."""

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.kernels import support
from lemma.layers.attention import HiddenStates, KVCache, SlotCache, relative_distances
from lemma.layers.positions import RotaryEmbedding, build_positions
from lemma.layers.state import State, tensor_bytes
from lemma.models.base import LanguageModel, Tokens, pad_to_length, trim_padding
from lemma.models.transformer import build_layers, build_shared_biases, layer_shape
from lemma.spec.models import Decoder
from lemma.spec.positions import NewPositions

if TYPE_CHECKING:
    from lemma.models.decoder_numpy import NumpyDecoder

CACHE_ALIGNMENT = 64  # tokens: fused attention wants masks whose rows begin at multiples of 16 bytes
NARROW_ALIGNMENT = 16  # tokens: a view has a multiple of them as capacity
TOKENS_PER_CHUNK = 16_384  # read at once when many full windows are read again
Logits = Float[Tensor, "batch time vocabulary"]


class DecoderModel(LanguageModel):
    """Embedding and positions, layers, a last norm, and an output layer that may reuse the embedding.

    Attributes:
        window: the most tokens that are read at once; None if positions extrapolate.
    """

    def __init__(self, spec: Decoder, dropout: float = 0.0) -> None:
        super().__init__(spec)
        self.spec: Decoder = spec
        shape = layer_shape(spec)
        self.window = None if spec.positions.extrapolates else spec.context
        self.embedding = nn.Embedding(spec.vocabulary, spec.width)
        self.positions = build_positions(spec.positions, spec.context, spec.width)
        self.scale = math.sqrt(spec.width) if spec.has_scaled_embedding else None
        self.dropout = nn.Dropout(dropout)
        self.layers = build_layers(shape, spec.depth, dropout)
        self.biases = build_shared_biases(shape.attention)
        self.norm = shape.build_norm()
        self.output = nn.Linear(spec.width, spec.vocabulary, bias=False)
        if spec.tied:
            self.output.weight = self.embedding.weight
        self.logit_cap = spec.logit_cap

    def init_weights(self) -> None:
        """Draw GPT-2's initial weights: standard deviation 0.02, over √(2L) for matrices that add to the residual."""
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            adds_to_residual = name.endswith(("attention.output.weight", "narrow.weight"))
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * len(self.layers)) if adds_to_residual else 0.02)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)

    @property
    def receptive_field(self) -> int | None:
        """Number of latest tokens on which logits depend: the context T, or L(w−1)+1 for L sliding windows of w.

        None for all.
        """
        if self.window is not None or self.spec.window is None:
            return self.window
        return self.spec.depth * (self.spec.window - 1) + 1

    @property
    def vector_width(self) -> int:
        """Width d of the hidden states."""
        return self.embedding.embedding_dim

    def forward(self, tokens: Tokens, state: State | None = None) -> tuple[Logits, "DecoderCache"]:
        """Return the logits of the token after each of `tokens` (vocabulary last), and the cache to continue from.

        While the window is not full, keys and values are appended. Once it is full, every further token moves all
        absolute positions, so its whole window is read again. With rotary or ALiBi positions it is never full.
        """
        cache = state if isinstance(state, DecoderCache) else DecoderCache(tokens[:, :0], self.window)
        if self.window is None or (free := self.window - cache.tokens.shape[1]) >= tokens.shape[1]:
            return self._append(tokens, cache)
        appended, cache = self._append(tokens[:, :free], cache) if free else (None, cache)
        all_tokens = torch.cat([cache.tokens, tokens[:, free:]], dim=1)
        windows = all_tokens[:, 1:].unfold(1, self.window, 1)  # full ones, all but the first
        chunks = windows.flatten(0, 1).split(max(1, TOKENS_PER_CHUNK // self.window))
        last = torch.cat([self._read(chunk, DecoderCache(chunk[:, :0], self.window))[0][:, -1] for chunk in chunks])
        logits = self.logits_of(last).unflatten(0, windows.shape[:2])
        logits = logits if appended is None else torch.cat([appended, logits], dim=1)
        return logits, DecoderCache(all_tokens[:, -self.window :], self.window)

    def supports_slots(self) -> bool:
        """Return whether `step` can run: the position embedding must accept a different position for each sequence."""
        return not isinstance(self.spec.positions, NewPositions) and self.biases is None

    def ensure_rotary_length(self, length: int) -> None:
        """Extend the tables of rotary angles to at least `length` positions, for `step`."""
        for module in self.modules():
            if isinstance(module, RotaryEmbedding):
                module.ensure_length(length)

    def step(self, tokens: Int[Tensor, "batch 1"], slots: "DecoderSlotCache") -> Logits:
        """Append the next token of each sequence to its slot, which must have room; return the logits after it.

        All shapes are those of the full capacity, whatever the lengths: nothing here depends on numbers that the device
        holds, so a step can be captured in a CUDA graph.
        """
        hidden = self._embed(tokens, slots.lengths)
        columns = torch.arange(slots.capacity, device=tokens.device)
        is_visible = columns <= slots.lengths[:, None]
        if self.spec.window is not None:
            is_visible &= columns > slots.lengths[:, None] - self.spec.window
        slots.tokens.scatter_(1, slots.lengths[:, None], tokens)
        mask = torch.zeros_like(is_visible, dtype=hidden.dtype).masked_fill(~is_visible, -torch.inf)[:, None, None]
        for layer, cache in zip(self.layers, slots.layers, strict=True):
            hidden, _ = layer(hidden, (cache, None), mask=mask, start=slots.lengths)
        slots.lengths += 1
        return self.logits_of(self.norm(hidden))

    def vectors(self, tokens: Tokens) -> HiddenStates:
        """Return the hidden states of token ids, at most as many per row as the context; padding (−1) at the end."""
        trimmed = trim_padding(tokens, self.window, "decoder.context").clamp(min=0)
        return pad_to_length(self._read(trimmed, DecoderCache(trimmed[:, :0], self.window))[0], tokens.shape[1])

    def logits_of(self, vectors: HiddenStates) -> Logits:
        """Return the logits of hidden states; with a logit cap c, c·tanh(logit/c)."""
        logits = self.output(vectors)
        return logits if self.logit_cap is None else self.logit_cap * torch.tanh(logits / self.logit_cap)

    def _append(self, tokens: Tokens, cache: "DecoderCache") -> tuple[Logits, "DecoderCache"]:
        """Read new tokens after those of a cache; return their logits and the extended cache."""
        hidden, layers = self._read(tokens, cache)
        return self.logits_of(hidden), DecoderCache(torch.cat([cache.tokens, tokens], dim=1), self.window, layers)

    def _embed(self, tokens: Tokens, start: int | Tensor) -> HiddenStates:
        """Return the scaled embeddings of tokens at positions start, start + 1, …, position embeddings included."""
        embedded = self.embedding(tokens)
        embedded = embedded if self.scale is None else embedded * self.scale  # or sines of size 1 would drown it
        return self.positions(embedded, start=start)

    def _read(self, tokens: Tokens, cache: "DecoderCache") -> tuple[HiddenStates, tuple[KVCache, ...]]:
        """Read new tokens after those of a cache; return their hidden states and each layer's extended KV cache."""
        start, new = cache.tokens.shape[1], tokens.shape[1]
        hidden = self._embed(tokens, start)
        if self.training and (hidden.is_cuda or support.COST_RECORDER):
            hidden = hidden.to(support.autocast_dtype(hidden))  # the residual is as exact as what layers add to it
        hidden = self.dropout(hidden) if self.training else hidden
        position_bias = None
        if self.biases is not None:
            cached = cache.layers[0][0].shape[-2] if cache.layers else 0
            position_bias = self.biases(relative_distances(new, cached + new, tokens.device))
        caches: list[KVCache] = []
        for index, layer in enumerate(self.layers):
            earlier = (cache.layers[index] if cache.layers else None, None)
            hidden, (layer_cache, _) = layer(hidden, earlier, start=start, position_bias=position_bias)
            caches.append(layer_cache)
        return self.norm(hidden), tuple(caches)


class WindowedState(State):
    """Base class of the states of a decoder, which depend on its tokens only."""

    window: int | None  # the most tokens that count; None for all

    @property
    def can_recur(self) -> bool:
        """True if only a window of tokens counts, so that a later state may equal an earlier one."""
        return self.window is not None

    @property
    def about(self) -> str:
        """The state in words, such as "the window of the last 8 tokens"."""
        return f"the window of the last {self.window} tokens" if self.window else "all tokens so far"


@dataclass(frozen=True)
class DecoderCache(WindowedState):
    """State of a decoder: the tokens on which it depends, and every layer's KV cache until the window is full.

    With a sliding window in every layer, caches hold no more than what later tokens see; all tokens are there, since
    their number is the position of the next.
    """

    tokens: Int[Tensor, "batch cached"]
    window: int | None
    layers: tuple[KVCache, ...] = ()

    def tensors(self) -> dict[str, Tensor]:
        """Return the tokens as "seen", and the cached tensors of layer i as "layers.i.0", "layers.i.1"."""
        layers = enumerate(self.layers)
        caches = {f"layers.{index}.{part}": tensor for index, layer in layers for part, tensor in enumerate(layer)}
        return {"seen": self.tokens} | caches

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "DecoderCache":
        """Return a cache of the same window and number of layers that holds these tensors, named as by `tensors()`."""
        layers = tuple(
            tuple(tensors[f"layers.{index}.{part}"] for part in range(len(layer)))
            for index, layer in enumerate(self.layers)
        )
        return replace(self, tokens=tensors["seen"], layers=layers)

    def to(self, dtype: torch.dtype) -> "DecoderCache":
        """Return a copy of the cache with keys and values in another dtype."""
        return replace(self, layers=tuple(tuple(tensor.to(dtype) for tensor in layer) for layer in self.layers))

    def signature(self, row: int = 0) -> bytes:
        """Return a row's tokens as bytes; equal tokens mean equal states, since keys and values follow from them."""
        return tensor_bytes(self.tokens[row])


class DecoderSlotCache(WindowedState):
    """Preallocated caches of a decoder for a batch of sequences: `DecoderModel.step` reads and extends them in place.

    Attributes:
        max_length: the most tokens of a sequence.
        capacity: tokens allocated per sequence.
        tokens: of each sequence, with the one that comes after the last one read.
        lengths: tokens read of each sequence.
        length: the same on the host, where all sequences have one length.
        numpy_decoder: the NumPy view of this memory and of the model, if one was made.
    """

    def __init__(self, cache: DecoderCache, max_length: int) -> None:
        batch, self.max_length = len(cache.tokens), max_length
        self.capacity = _round_up(max_length, CACHE_ALIGNMENT)
        self.tokens = cache.tokens.new_zeros(batch, self.capacity + 1)
        self.row_index = torch.arange(batch, device=cache.tokens.device)
        self.lengths = torch.zeros_like(self.row_index)
        self.numpy_decoder: NumpyDecoder | None = None
        self.layers = [self._allocate(layer, batch) for layer in cache.layers]
        self.refill(cache)

    def _allocate(self, template: KVCache, batch: int) -> SlotCache:
        """Return an empty cache of one layer for `batch` sequences, with the heads and widths of `template`."""
        tensors = tuple(
            tensor.new_zeros(batch, *tensor.shape[1:-2], self.capacity, tensor.shape[-1]) for tensor in template
        )
        return SlotCache(tensors, self.row_index, self.lengths)

    def refill(self, cache: DecoderCache) -> None:
        """Overwrite all slots by the sequences of a cache of as many rows, all of one length."""
        self.length, self.window = cache.tokens.shape[1], cache.window
        self.write_rows(self.row_index, cache, self.row_index)

    @property
    def is_full(self) -> bool:
        """True if the longest sequence has as many tokens as the slots may hold."""
        return self.length == self.max_length

    def tokens_only(self) -> DecoderCache:
        """Return a cache with the token ids but no keys and values, as of a decoder whose window is full."""
        return DecoderCache(self.tokens[:, : self.length], self.window)

    def to_cache(self) -> DecoderCache:
        """Return the slots as a `DecoderCache` that shares their memory; all sequences must have one length."""
        layers = tuple(tuple(tensor.narrow(-2, 0, self.length) for tensor in slots.tensors) for slots in self.layers)
        return replace(self.tokens_only(), layers=layers)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tokens read so far as "seen", without keys and values."""
        return {"seen": self.tokens[:, : self.length]}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "DecoderSlotCache":
        """Raise NotImplementedError: slots can only be made from a `DecoderCache`, not from tensors."""
        raise NotImplementedError("make slots from a cache.")

    def select_rows(self, index: Tensor) -> "DecoderSlotCache":
        """Return new slots of the same capacity with copies of the sequences at the rows `index`."""
        selected = self.resize(index, len(index), self.max_length)
        selected.lengths.fill_(self.length)
        return selected

    def write_rows(self, rows: Sequence[int] | Tensor, cache: DecoderCache, cache_rows: Sequence[int] | Tensor) -> None:
        """Copy the sequences in the rows `cache_rows` of a cache into the slots `rows`."""
        length = cache.tokens.shape[1]
        into, source = (torch.as_tensor(index, device=self.tokens.device) for index in (rows, cache_rows))
        self.tokens[into, :length] = cache.tokens[source]
        self.lengths[into] = length
        for slots, layer in zip(self.layers, cache.layers, strict=True):
            for slot, entry in zip(slots.tensors, layer, strict=True):
                start = length - entry.shape[-2]  # a sliding window drops the oldest
                slot[into, ..., start:length, :] = entry[source]

    def narrow(self, length: int) -> "DecoderSlotCache":
        """Return a view of the slots with the least capacity for `length` tokens, since a step costs as much as it."""
        view = copy(self)
        view.capacity = min(self.capacity, _round_up(length, NARROW_ALIGNMENT))
        view.layers = [
            replace(slots, tensors=tuple(tensor.narrow(-2, 0, view.capacity) for tensor in slots.tensors))
            for slots in self.layers
        ]
        return view

    def resize(self, rows: Tensor, batch: int, max_length: int) -> "DecoderSlotCache":
        """Return new slots for `batch` sequences of up to `max_length` tokens.

        The first len(rows) slots are copies of the sequences at the indices `rows`; the others are empty.
        """
        resized = DecoderSlotCache(DecoderCache(self.tokens.new_zeros(batch, 0), self.window), max_length)
        resized.length = self.length
        shared = min(self.capacity, resized.capacity)
        resized.tokens[: len(rows), :shared] = self.tokens[rows, :shared]
        resized.lengths[: len(rows)] = self.lengths[rows]
        for layer in self.layers:
            slots = resized._allocate(layer.tensors, batch)
            for target, source in zip(slots.tensors, layer.tensors, strict=True):
                target[: len(rows), ..., :shared, :] = source[rows][..., :shared, :]
            resized.layers.append(slots)
        return resized

    def signature(self, row: int = 0) -> bytes:
        """Return a row's tokens as bytes; equal tokens mean equal states."""
        return tensor_bytes(self.tokens[row, : self.length])


def _round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `number`."""
    return -(-number // multiple) * multiple
