"""The decoder-only Transformer, pre-norm (Radford et al. 2019)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.models.language_model import LanguageModel
from lemma.parts import CausalAttention, FeedForwardPart, KeyValues, State, bytes_of, norm, positions
from lemma.spec import Decoder

WINDOWS_AT_ONCE = 16_384  # tokens read in one go when many full windows are read anew


@dataclass(frozen=True)
class Cache(State):
    """The tokens of the window, and the keys and values of every layer while the window is not full."""

    seen: Int[Tensor, "batch seen"]
    context: int
    layers: tuple[KeyValues, ...] = ()

    @property
    def about(self) -> str:
        """What it is, in words."""
        return f"the window of the last {self.context} tokens"

    def tensors(self) -> dict[str, Tensor]:
        """The tokens, and each layer's keys and values."""
        return {"seen": self.seen} | {f"layers.{index}": layer for index, layer in enumerate(self.layers)}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "Cache":
        """Return a cache of the same context that holds these tensors."""
        layers = tuple(tensors[f"layers.{index}"] for index in range(len(self.layers)))
        return replace(self, seen=tensors["seen"], layers=layers)

    def signature(self, row: int = 0) -> bytes:
        """The tokens say it all: while the window fills, no state comes again; once full, it is read anew."""
        return bytes_of(self.seen[row])


class Layer(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x))."""

    def __init__(self, spec: Decoder, dropout: float) -> None:
        super().__init__()
        self.attention_norm = norm(spec.norm, spec.width, spec.bias)
        self.attention = CausalAttention(spec.width, spec.heads, spec.attention, spec.bias, dropout)
        self.feed_forward_norm = norm(spec.norm, spec.width, spec.bias)
        self.feed_forward = FeedForwardPart(spec.width, spec.inner, spec.activation, spec.bias)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, stream: Float[Tensor, "batch time width"], past: KeyValues | None
    ) -> tuple[Float[Tensor, "batch time width"], KeyValues]:
        """Add what attention and the feed-forward part make of the stream."""
        mixed, memory = self.attention(self.attention_norm(stream), past)
        stream = stream + self._dropped(mixed)
        return stream + self._dropped(self.feed_forward(self.feed_forward_norm(stream))), memory

    def _dropped(self, update: Tensor) -> Tensor:
        return self.dropout(update) if self.training else update  # a call saved is time saved when decoding


class DecoderModel(LanguageModel):
    """Embedding and positions, layers, a last norm, and an output layer that may be the embedding again."""

    def __init__(self, spec: Decoder, dropout: float = 0.0) -> None:
        super().__init__(spec)
        self.context = spec.context
        self.embedding = nn.Embedding(spec.vocabulary, spec.width)
        self.positions = positions(spec.positions, spec.context, spec.width)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Layer(spec, dropout) for _ in range(spec.depth))
        self.norm = norm(spec.norm, spec.width, spec.bias)
        self.output = nn.Linear(spec.width, spec.vocabulary, bias=False)
        if spec.tied:
            self.output.weight = self.embedding.weight

    @property
    def reach(self) -> int:
        """The context T."""
        return self.context

    def forward(
        self, tokens: Int[Tensor, "batch time"], state: State | None = None
    ) -> tuple[Float[Tensor, "batch time vocabulary"], Cache]:
        """Predict the token after each of `tokens` from the last T tokens up to it.

        While the window has room, keys and values are appended. Once it is full, every further token moves all
        positions, so its whole window is read anew.
        """
        cache = state if isinstance(state, Cache) else Cache(tokens[:, :0], self.context)
        room = self.context - cache.seen.shape[1]
        if tokens.shape[1] <= room:
            return self._append(tokens, cache)
        begun, cache = self._append(tokens[:, :room], cache) if room else (None, cache)
        joined = torch.cat([cache.seen, tokens[:, room:]], dim=1)
        slid = self._slide(joined)
        logits = slid if begun is None else torch.cat([begun, slid], dim=1)
        return logits, Cache(joined[:, -self.context :], self.context)

    def _append(
        self, tokens: Int[Tensor, "batch time"], cache: Cache
    ) -> tuple[Float[Tensor, "batch time vocabulary"], Cache]:
        stream, layers = self._read(tokens, cache)
        return self.output(stream), Cache(torch.cat([cache.seen, tokens], dim=1), self.context, layers)

    def _slide(self, joined: Int[Tensor, "batch joined"]) -> Float[Tensor, "batch time vocabulary"]:
        """Return the logits after each full window of `joined` but the first."""
        windows = joined[:, 1:].unfold(1, self.context, 1)
        parts = windows.flatten(0, 1).split(max(1, WINDOWS_AT_ONCE // self.context))
        lasts = torch.cat([self._read(part, Cache(part[:, :0], self.context))[0][:, -1] for part in parts])
        return self.output(lasts).unflatten(0, windows.shape[:2])

    def _read(
        self, tokens: Int[Tensor, "batch time"], cache: Cache
    ) -> tuple[Float[Tensor, "batch time width"], tuple[KeyValues, ...]]:
        stream = self.positions(self.embedding(tokens), start=cache.seen.shape[1])
        stream = self.dropout(stream) if self.training else stream
        memories: list[KeyValues] = []
        for index, layer in enumerate(self.layers):
            stream, memory = layer(stream, cache.layers[index] if cache.layers else None)
            memories.append(memory)
        return self.norm(stream), tuple(memories)
