"""Multi-head attention over PyTorch's fused kernel, and its key–value cache."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from lemma.kernels import support
from lemma.kernels.row_statistics import attend_with_row_statistics
from lemma.layers.positions import AlibiBias, StartPosition, build_hook
from lemma.layers.recording import LISTENERS, AttentionRecord, expand_kv_heads, mask_to_bias, notify_listeners
from lemma.spec.positions import NoPositions, Positions

Queries = Float[Tensor, "batch heads new width"]
Keys = Float[Tensor, "batch key_heads known width"]
Values = Float[Tensor, "batch value_heads known value_width"]
HiddenStates = Float[Tensor, "batch time width"]
AttentionOutput = Float[Tensor, "batch heads new value_width"]
PositionBias = Float[Tensor, "heads distances"]
"""Added to the scores of each head, by distance: 1 − new … known − 1 for `new` queries and `known` keys."""
KVCache = tuple[Float[Tensor, "..."], ...]
"""Keys and values of all tokens so far, (batch, heads, time, width) each; inputs in place of a merged projection."""
NO_POSITIONS = NoPositions()


def attend(
    queries: Queries,
    keys: Keys,
    values: Values,
    scale: float,
    causal: bool,
    mask: Tensor | None = None,
    position_bias: PositionBias | None = None,
    dropout: float = 0.0,
) -> AttentionOutput:
    """Return Σ_j α_j v_j with α = softmax_j(scale · q·k_j + position_bias[distance]) over the visible keys.

    Args:
        causal: the last query has the position of the last key, and each query sees the keys up to its own position.
        mask: true where a key is visible, or a bias that is −∞ where it is not; (batch, heads, new, known).

    Fewer key or value heads than query heads are shared by groups of query heads.
    """
    on_cpu = not (queries.is_cuda or support.COST_RECORDER)
    if on_cpu and queries.requires_grad and queries.dtype == torch.bfloat16:
        with torch.autocast("cpu", enabled=False):  # in bfloat16 the backward pass takes ten times as long on a CPU
            queries, keys, values = queries.float(), keys.float(), values.float()
            return attend(queries, keys, values, scale, causal, mask, position_bias, dropout)
    (heads, new), (kv_heads, num_keys), width = queries.shape[1:3], keys.shape[1:3], values.shape[-1]
    if LISTENERS.active and not LISTENERS.active[0].is_announced:
        all_keys, all_values = expand_kv_heads(keys, heads), expand_kv_heads(values, heads)
        bias = mask_to_bias(mask, queries)
        with notify_listeners(AttentionRecord(queries, all_keys, all_values, scale, bias, causal, position_bias)):
            return attend(queries, keys, values, scale, causal, mask, position_bias, dropout)
    bias = mask
    if position_bias is not None:
        keys, values = keys.flip(-2), values.flip(-2)
        bias = expand_position_bias(position_bias, new, num_keys, causal, mask, queries.dtype)
    elif causal and (mask is not None or 1 < new < num_keys):
        order = torch.ones(new, num_keys, dtype=torch.bool, device=keys.device).tril(num_keys - new)
        bias = order if mask is None else mask & order
    if new == 1 and bias is None and kv_heads < heads and kv_heads == values.shape[1] and keys.shape[-1] == width:
        # With one query per head, the heads that share keys and values are attended as queries of one head.
        grouped = queries.reshape(-1, kv_heads, heads // kv_heads, width)
        mixed = functional.scaled_dot_product_attention(grouped, keys, values, None, dropout, scale=scale)
        return mixed.reshape(-1, heads, 1, width)
    if keys.shape[-1] != width:  # zeros change neither a score nor a mean
        widest = max(keys.shape[-1], width)
        queries, keys, values = (functional.pad(t, (0, widest - t.shape[-1])) for t in (queries, keys, values))
    if kv_heads != values.shape[1]:
        keys, values = expand_kv_heads(keys, heads), expand_kv_heads(values, heads)
    is_causal, is_grouped = causal and bias is None and new == num_keys, keys.shape[1] != heads
    mixed = functional.scaled_dot_product_attention(
        queries, keys, values, bias, dropout, bool(is_causal), scale=scale, enable_gqa=bool(is_grouped)
    )
    return mixed if mixed.shape[-1] == width else mixed[..., :width]


def expand_position_bias(
    position_bias: PositionBias,
    num_queries: int,
    num_keys: int,
    causal: bool,
    mask: Tensor | None,
    dtype: torch.dtype,
) -> Float[Tensor, "batch heads new known"]:
    """Return the bias of each score, with the keys in reversed order, from `position_bias`, that of each distance.

    It is −∞ where `mask` is False. With the keys reversed, query i and key j are i + j + 1 − new apart: the bias
    depends on i + j alone, so the matrix is a view of new + known − 1 numbers per head. (CUDA's kernel copies it.)

    >>> position_bias = -0.5 * torch.tensor([[1.0, 0.0, 1.0]])  # ALiBi's, at the distances −1, 0 and 1
    >>> expand_position_bias(position_bias, 2, 2, True, None, torch.float32).tolist()  # keys 1, 0
    [[[[-inf, -0.0], [-0.0, -0.5]]]]
    """
    position_bias = position_bias.to(dtype)
    if causal:
        distances = relative_distances(num_queries, num_keys, position_bias.device)
        position_bias = position_bias.masked_fill(distances < 0, -torch.inf)
    heads, row = position_bias.shape
    bias = position_bias.contiguous().as_strided((1, heads, num_queries, num_keys), (0, row, 1, 1))
    return bias if mask is None else bias.masked_fill(~mask.flip(-1), -torch.inf)


def relative_distances(num_queries: int, num_keys: int, device: torch.device) -> Int[Tensor, " distances"]:
    """Return all values that query position − key position can have, in order: 1 − num_queries … num_keys − 1."""
    return torch.arange(1 - num_queries, num_keys, device=device)


def sliding_window_mask(
    num_queries: int, num_keys: int, window: int, device: torch.device, mask: Tensor | None
) -> Bool[Tensor, "... new known"]:
    """Return a mask, True at visible keys: less than `window` positions before their query, and visible in `mask`.

    >>> sliding_window_mask(2, 3, 2, torch.device("cpu"), None).tolist()  # later keys are left to the causal mask
    [[True, True, True], [False, True, True]]
    """
    oldest = num_keys - num_queries - window + 1
    band = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).triu(oldest)
    return band if mask is None else mask & band


@dataclass(frozen=True)
class SlotCache:
    """Preallocated KV cache of one attention layer for sequences of different lengths.

    `append` writes one token per sequence in place, so every decoding step has the same shapes and can be captured in a
    CUDA graph. Entries past `lengths` must be masked.
    """

    tensors: KVCache  # time is `capacity` in each
    rows: Int[Tensor, " batch"]  # arange(batch), for advanced indexing
    lengths: Int[Tensor, " batch"]  # tokens cached so far: the index of the next one

    def append(self, entries: KVCache) -> KVCache:
        """Write the keys and values of one new token per sequence into the cache; return all of its tensors."""
        for cache, token in zip(self.tensors, entries, strict=True):
            cache.movedim(-2, 1)[self.rows, self.lengths] = token.squeeze(-2)
        return self.tensors

    def biased_mask(
        self, biases: nn.Module, mask: Float[Tensor, "batch 1 1 capacity"]
    ) -> Float[Tensor, "batch heads 1 capacity"]:
        """Return the mask (0 or −∞) plus the position bias of each sequence's next token.

        Args:
            biases: module from distances to biases of each head.
        """
        distances = self.lengths[:, None] - torch.arange(mask.shape[-1], device=mask.device)
        return biases(distances.flatten()).unflatten(-1, distances.shape).movedim(0, 1)[:, :, None] + mask


@dataclass(frozen=True)
class AttentionShape:
    """Settings of an attention module, with the widths that follow from them.

    With merged matrices, the key–query map of each head is one matrix W^QK = W_Qᵀ W_K (problem B6) that is applied to
    the inputs, and the value–output map one matrix W_V W_O (problem C8); the cache holds inputs instead.
    """

    width: int
    heads: int = 1
    attention_width: int | None = None  # of the queries of all heads together; `width` if unset
    value_width: int | None = None  # of the values of all heads together; that of the queries if unset
    key_value_heads: int | None = None  # each shared by a group of query heads; `heads` if unset
    causal: bool = True
    source_width: int | None = None  # of the keys' and values' source if it is not `hidden` itself: cross-attention
    key_query: Literal["separate", "merged"] = "separate"
    value_output: Literal["separate", "merged", "none"] = "separate"  # none: no output projection of the joined heads
    bias: bool = True
    output_bias: bool | None = None  # of the output projection; `bias` if unset
    query_key_norm: bool = False  # RMS norm of queries and of keys, one for all heads of each (Henry et al. 2020)
    norm_epsilon: float = 1e-5
    scaled: bool = True  # divide scores by √I
    window: int | None = None  # most tokens a query attends to, its own included; all if unset
    positions: Positions = NO_POSITIONS  # rotation of queries and keys, or bias of the scores
    context: int = 0  # positions whose rotations are computed in advance

    def __post_init__(self) -> None:
        """Refuse settings that exclude each other: a programmer's error, since specs check the user's settings."""
        total, values = self.attention_width or self.width, self.value_width or self.attention_width or self.width
        if total % self.heads or values % self.heads or self.heads % self.kv_heads:
            raise ValueError(
                f"{self.heads} heads must divide {total} and {values}, and {self.kv_heads} groups the heads."
            )
        if self.query_key_norm and self.key_query == "merged":
            raise ValueError("the norms of queries and keys act between their matrices, so key_query cannot be merged.")
        kind, rotates = self.positions.kind, self.positions.rotates
        if rotates and self.key_query == "merged":
            raise ValueError(f"{kind} rotates queries and keys, so key_query cannot be merged; use alibi or separate.")
        if (self.positions.paired and self.head_width % 2) or (rotates and self.source_width):
            raise ValueError(f"{kind} needs an even head width (got {self.head_width}) and self-attention.")
        if self.source_width is not None and (self.causal or self.positions.biases):
            raise ValueError("attention to a source has no order: causal=False, and neither rotary nor alibi.")

    @property
    def head_width(self) -> int:
        """Width of one head's queries and keys before any merging of matrices: I in √I."""
        return (self.attention_width or self.width) // self.heads

    @property
    def head_value_width(self) -> int:
        """Width of one head's values before any merging of matrices."""
        return (self.value_width or self.attention_width or self.width) // self.heads

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads; fewer than query heads if groups of these share them."""
        return self.key_value_heads or self.heads

    @property
    def input_width(self) -> int:
        """Width of the vectors from which keys and values are computed."""
        return self.source_width or self.width

    @property
    def projection_widths(self) -> dict[str, int]:
        """Output width of each projection by its name: "query", "key", "value"; merged ones are left out."""
        merged = self.key_query == "merged"
        widths = {"query": self.heads * (self.input_width if merged else self.head_width)}
        if not merged:
            widths["key"] = self.kv_heads * self.head_width
        if self.value_output != "merged":
            widths["value"] = self.kv_heads * self.head_value_width
        return widths


class Attention(nn.Module):
    """Multi-head attention: softmax(Q Kᵀ/√I) V in each head, over the tokens up to its own if causal.

    The scale is that of the unmerged head, so that merging changes nothing.

    Attributes:
        row_statistics: filled with the entropy and squared distance of every row, while penalties need them.
    """

    query_key_value: nn.Linear
    row_statistics: list[tuple[Tensor, Tensor]] | None = None

    def __init__(self, shape: AttentionShape, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape, self.dropout = shape, dropout
        self.heads, self.kv_heads, self.causal, self.window = shape.heads, shape.kv_heads, shape.causal, shape.window
        self.head_width, self.scale = shape.head_width, shape.head_width**-0.5 if shape.scaled else 1.0
        self.is_cross = shape.source_width is not None
        widths, kinds = shape.projection_widths, list(shape.projection_widths)
        # All heads have one width: one view gives queries, keys and values, and one call rotates queries and keys.
        self.has_uniform_heads = (
            len(kinds) == 3 and widths["key"] == widths["value"] and not (self.is_cross or shape.query_key_norm)
        )
        # Names of the projections, which are in state dicts: "query_key_value", or "query" and "key_value".
        self.projection = "query" if self.is_cross else "_".join(kinds)
        self.source_projection = "_".join(kinds[1:]) if self.is_cross else ""
        for name, width in ((self.projection, shape.width), (self.source_projection, shape.input_width)):
            if name:
                self.add_module(name, nn.Linear(width, sum(widths[kind] for kind in name.split("_")), bias=shape.bias))
        self.query_norm = self.key_norm = None
        if shape.query_key_norm:
            self.query_norm = nn.RMSNorm(shape.head_width, eps=shape.norm_epsilon)
            self.key_norm = nn.RMSNorm(shape.head_width, eps=shape.norm_epsilon)
        self.has_output = shape.value_output != "none"
        if self.has_output:
            inner = shape.input_width if shape.value_output == "merged" else shape.head_value_width
            bias = shape.bias if shape.output_bias is None else shape.output_bias
            self.output = nn.Linear(shape.heads * inner, shape.width, bias=bias)
        # The names of these two are in the state dicts of trainable positions.
        self.turns = build_hook(shape.positions, "rotates", shape.context, shape.head_width)
        self.biases = None
        if not shape.positions.shared:
            self.biases = build_hook(shape.positions, "biases", shape.context, shape.heads)

    def forward(
        self,
        hidden: HiddenStates,
        cache: KVCache | SlotCache | None = None,
        source: Float[Tensor, "batch known source_width"] | None = None,
        mask: Tensor | None = None,
        start: StartPosition | None = None,
        position_bias: PositionBias | None = None,
    ) -> tuple[HiddenStates, KVCache]:
        """Return the attention output of every vector, and the cache for the next call.

        A vector attends to the cache and to all vectors (if causal, those up to it), or to the source.

        Args:
            hidden: the new vectors; with a `SlotCache` one per sequence.
            cache: of earlier calls. Cross-attention caches its source: give it once, then only the cache.
            mask: true where a key is visible, broadcast to (batch, heads, new, known); with a `SlotCache` a bias.
            start: position of the first vector, where a sliding window has dropped some of the cache.
            position_bias: bias of the scores by head and distance, if all layers share it.
        """
        if self.is_cross:
            queries, tensors = self._project_cross(hidden, cache, source)
        else:
            if start is None:
                start = cache.lengths if isinstance(cache, SlotCache) else cache[0].shape[-2] if cache else 0
            queries, entry = self._project(hidden, start)
            tensors = _extend_cache(cache, entry)
        keys, values = tensors[0], tensors[-1]
        new, known, causal = queries.shape[2], keys.shape[2], self.causal
        if isinstance(cache, SlotCache):
            assert mask is not None
            causal = False  # the mask says how far each sequence has come
            mask = mask if self.biases is None else cache.biased_mask(self.biases, mask).to(queries.dtype)
        else:
            if self.biases is not None:
                position_bias = self.biases(relative_distances(new, known, keys.device))
            if self.window is not None and new > 1 and known >= self.window:  # one query sees all that is cached
                mask = sliding_window_mask(new, known, self.window, keys.device, mask)
            tensors = self._trim_cache(tensors)
        if self.row_statistics is not None and cache is None:
            slopes = self.biases.slopes if isinstance(self.biases, AlibiBias) else None
            mixed, entropy, distance = attend_with_row_statistics(queries, keys, values, self.scale, causal, slopes)
            self.row_statistics.append((entropy, distance))
        else:
            dropout = self.dropout if self.training else 0.0
            mixed = attend(queries, keys, values, self.scale, causal, mask, position_bias, dropout)
        joined = mixed.transpose(1, 2).flatten(2)
        return self.output(joined) if self.has_output else joined, tensors

    def supports_row_statistics(self) -> bool:
        """Return whether `kernels.row_statistics` can compute this module: plain self-attention without dropout."""
        shape, biased = self.shape, self.biases is not None or self.shape.positions.shared
        return (
            not self.is_cross
            and shape.key_query == "separate"
            and shape.value_output != "merged"
            and shape.window is None
            and shape.head_width == shape.head_value_width
            and 16 <= shape.head_width <= 128
            and (isinstance(self.biases, AlibiBias) or not biased)
            and not self.dropout
        )

    def _project(self, hidden: HiddenStates, start: StartPosition) -> tuple[Queries, KVCache]:
        """Return the queries of new tokens at positions start, start + 1, …, and their keys and values."""
        if not self.has_uniform_heads:
            parts = self._project_parts(self.projection, hidden)
            if self.query_norm is not None and self.key_norm is not None:
                parts |= {"query": self.query_norm(parts["query"]), "key": self.key_norm(parts["key"])}
            if self.turns is not None:
                parts |= {kind: self.turns(parts[kind], start) for kind in ("query", "key")}
            return parts["query"], _cache_entry(parts, hidden)
        projected = self.query_key_value(hidden)
        heads = projected.view(*projected.shape[:2], -1, self.head_width).transpose(1, 2)
        if self.turns is None:
            queries, keys, values = heads.split_with_sizes((self.heads, self.kv_heads, self.kv_heads), 1)
        else:
            rotated, values = heads.split_with_sizes((self.heads + self.kv_heads, self.kv_heads), 1)
            queries, keys = self.turns(rotated, start).split_with_sizes((self.heads, self.kv_heads), 1)
        return queries, (keys, values)

    def _project_cross(
        self, hidden: HiddenStates, cache: KVCache | SlotCache | None, source: Tensor | None
    ) -> tuple[Queries, KVCache]:
        """Return the queries of `hidden`, and the keys and values of `source`, or the cached ones without a source."""
        if source is not None:
            cache = _cache_entry(self._project_parts(self.source_projection, source), source)
        if not isinstance(cache, tuple):
            raise ValueError("attention to a source needs `source`, or `cache` from an earlier call with it.")
        return self._project_parts(self.projection, hidden)["query"], cache

    def _project_parts(self, name: str, vectors: Tensor) -> dict[str, Float[Tensor, "batch heads time head_width"]]:
        """Apply the projection `name`, such as "key_value"; return the heads of each part, here "key" and "value"."""
        if not name:
            return {}
        kinds, widths = name.split("_"), self.shape.projection_widths
        parts = getattr(self, name)(vectors).split([widths[kind] for kind in kinds], dim=-1)
        heads = [self.heads if kind == "query" else self.kv_heads for kind in kinds]
        return {
            kind: part.unflatten(-1, (count, -1)).transpose(1, 2)
            for kind, part, count in zip(kinds, parts, heads, strict=True)
        }

    def _trim_cache(self, tensors: KVCache) -> KVCache:
        """Return cached keys and values without those of tokens outside the sliding window of all later queries."""
        if self.window is not None and (length := tensors[0].shape[-2]) >= self.window:
            tensors = tuple(tensor.narrow(-2, length - self.window + 1, self.window - 1) for tensor in tensors)
        if torch.compiler.is_compiling() and self.training:  # or the cache would get gradients of zeros
            tensors = tuple(tensor.detach() for tensor in tensors)
        return tensors


def _cache_entry(parts: dict[str, Tensor], inputs: Tensor) -> KVCache:
    """Return the keys and values to cache; the layer's `inputs` replace merged ones, as one tensor if both are merged.

    Args:
        parts: heads of the layer's projections, "key" and "value" if they are not merged.
    """
    keys, values = parts.get("key"), parts.get("value")
    if keys is None and values is None:
        return (inputs[:, None],)
    return (inputs[:, None] if keys is None else keys, inputs[:, None] if values is None else values)


def _extend_cache(cache: KVCache | SlotCache | None, entry: KVCache) -> KVCache:
    """Return the cache with the keys and values of new tokens (`entry`) appended; only these if there is no cache."""
    if cache is None:
        return entry
    if isinstance(cache, SlotCache):
        return cache.append(entry)
    return tuple(torch.cat([old, new], dim=-2) for old, new in zip(cache, entry, strict=True))
