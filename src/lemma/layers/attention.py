"""Attention: one function over PyTorch's fused kernel, and the modules around it."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from lemma.layers import fused
from lemma.layers.fused import attend_with_row_statistics
from lemma.layers.positions import AlibiBias, StartPosition, build_hook
from lemma.layers.recording import LISTENERS, AttentionRecord, expand_kv_heads, mask_to_bias, notify_listeners
from lemma.layers.state import sliding_windows, window_mask
from lemma.spec.positions import NoPositions, Positions

Queries = Float[Tensor, "batch heads new width"]
Keys = Float[Tensor, "batch key_heads known width"]
Values = Float[Tensor, "batch value_heads known value_width"]
PositionBias = Float[Tensor, "heads distances"]
"""What is added to the scores of each head at the distances 1 − new … known − 1, of new queries and known keys."""
AttentionOutput = Float[Tensor, "batch heads new value_width"]


def attend(
    queries: Queries,
    keys: Keys,
    values: Values,
    scale: float,
    causal: bool,
    mask: Bool[Tensor, "..."] | None = None,
    position_bias: PositionBias | None = None,
    dropout: float = 0.0,
    same_shape: bool = False,
) -> AttentionOutput:
    """Return Σ_j α_j v_j with α = softmax_j(scale · q·k_j + line[distance]) over the keys that may be seen.

    `causal`: the last query has the position of the last key, and each query sees the keys up to its own position.
    Fewer heads of keys or values than of queries are shared by groups of them. `line` is what positions add. `alike`
    promises that all three have the same heads and width, so that nothing has to be checked.
    """
    if queries.requires_grad and queries.dtype == torch.bfloat16 and not (queries.is_cuda or fused.COST_RECORDER):
        with torch.autocast("cpu", enabled=False):  # in bfloat16 the backward pass takes ten times as long on a CPU
            return attend(
                queries.float(), keys.float(), values.float(), scale, causal, mask, position_bias, dropout, same_shape
            )
    if LISTENERS.active:
        heads, bias = queries.shape[1], mask_to_bias(mask, queries)
        with notify_listeners(
            AttentionRecord(
                queries,
                expand_kv_heads(keys, heads),
                expand_kv_heads(values, heads),
                scale,
                bias,
                causal,
                position_bias,
            )
        ):
            return _fused(queries, keys, values, scale, causal, mask, position_bias, dropout)
    if same_shape and mask is None and position_bias is None:
        new = queries.shape[2]
        if new == 1 or new == keys.shape[2]:
            return functional.scaled_dot_product_attention(
                queries, keys, values, None, dropout, causal and new > 1, scale=scale
            )
    return _fused(queries, keys, values, scale, causal, mask, position_bias, dropout)


def _fused(
    queries: Queries,
    keys: Keys,
    values: Values,
    scale: float,
    causal: bool,
    mask: Tensor | None,
    line: PositionBias | None,
    dropout: float,
) -> AttentionOutput:
    """Call the kernel, which takes one bias, one width and one number of heads for keys and values."""
    new, known, width = queries.shape[-2], keys.shape[-2], values.shape[-1]
    bias: Tensor | None = mask
    if line is not None:
        keys, values = keys.flip(-2), values.flip(-2)
        bias = expand_position_bias(line, new, known, causal, mask, queries.dtype)
    elif causal and (mask is not None or 1 < new < known):
        order = torch.ones(new, known, dtype=torch.bool, device=keys.device).tril(known - new)
        bias = order if mask is None else mask & order
    heads, groups = queries.shape[1], keys.shape[1]
    if new == 1 and bias is None and groups < heads and groups == values.shape[1] and keys.shape[-1] == width:
        # one query for each head: those that share keys and values are attended as one head's queries
        grouped = queries.reshape(-1, groups, heads // groups, width)
        mixed = functional.scaled_dot_product_attention(grouped, keys, values, None, dropout, scale=scale)
        return mixed.reshape(-1, heads, 1, width)
    alone = causal and bias is None and new == known
    if keys.shape[-1] != width:  # zeros change neither a score nor a mean
        widest = max(keys.shape[-1], width)
        queries, keys, values = (functional.pad(t, (0, widest - t.shape[-1])) for t in (queries, keys, values))
    if keys.shape[1] != values.shape[1]:
        keys, values = (expand_kv_heads(tensor, queries.shape[1]) for tensor in (keys, values))
    mixed = functional.scaled_dot_product_attention(
        queries, keys, values, bias, dropout, alone, scale=scale, enable_gqa=keys.shape[1] != queries.shape[1]
    )
    return mixed if mixed.shape[-1] == width else mixed[..., :width]


def expand_position_bias(
    position_bias: PositionBias, num_queries: int, num_keys: int, causal: bool, mask: Tensor | None, dtype: torch.dtype
) -> Float[Tensor, "batch heads new known"]:
    """What a line adds to the scores of keys in reversed order, as a view of its new + known − 1 numbers a head.

    With the keys reversed, query i and key j lie i + j + 1 − new apart: all that depends on i + j alone, so the matrix
    needs no memory. (CUDA's kernel makes a copy of it.)

    >>> line = -0.5 * torch.tensor([[1.0, 0.0, 1.0]])  # ALiBi's, at the distances −1, 0 and 1
    >>> distance_bias(line, 2, 2, True, None, torch.float32).tolist()  # keys 1, 0
    [[[[-inf, -0.0], [-0.0, -0.5]]]]
    """
    position_bias = position_bias.to(dtype)
    if causal:
        position_bias = position_bias.masked_fill(
            relative_distances(num_queries, num_keys, position_bias.device) < 0, -torch.inf
        )
    bias = position_bias.contiguous().as_strided(
        (1, len(position_bias), num_queries, num_keys), (0, position_bias.shape[1], 1, 1)
    )
    return bias if mask is None else bias.masked_fill(~mask.flip(-1), -torch.inf)


def sliding_window_mask(
    num_queries: int, num_keys: int, window: int, device: torch.device, mask: Tensor | None
) -> Bool[Tensor, "... new known"]:
    """Which of the known keys each new query sees: the last `window` up to its own, of those that a mask allows.

    >>> within_window(2, 3, 2, torch.device("cpu"), None).tolist()  # what comes later is left to the causal mask
    [[True, True, True], [False, True, True]]
    """
    band = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).triu(num_keys - num_queries - window + 1)
    return band if mask is None else mask & band


def relative_distances(num_queries: int, num_keys: int, device: torch.device) -> Int[Tensor, " distances"]:
    """The distances of queries to keys, where the last of both have the same position: 1 − new … known − 1."""
    return torch.arange(1 - num_queries, num_keys, device=device)


NO_POSITIONS = NoPositions()
HiddenStates = Float[Tensor, "batch time width"]
KVCache = tuple[Float[Tensor, "..."], ...]
"""What attention keeps of the tokens read so far; time is the last but one dimension of each tensor.

Keys and values, stacked in one tensor where their shapes allow it; inputs instead of what is merged.
"""


@dataclass(frozen=True)
class SlotCache:
    """Room for what one attention keeps of several texts, each of its own length: given as `past` for one token a text.

    The new token of each text is written at its place, in memory that is there already, so that every step has the same
    shapes and can be replayed as a CUDA graph. A mask hides what lies past the place.
    """

    kept: KVCache
    rows: Int[Tensor, " batch"]
    """0, 1, …, to choose by."""
    lengths: Int[Tensor, " batch"]
    """Where the next token of each text goes: how many it has."""

    def append(self, entries: KVCache) -> KVCache:
        """Put each text's new token at its place; return all that there is room for."""
        for kept, one in zip(self.kept, entries, strict=True):
            kept.movedim(-2, 1)[self.rows, self.lengths] = one.squeeze(-2)
        return self.kept

    def position_bias(
        self, biases: nn.Module, mask: Float[Tensor, "batch 1 1 room"]
    ) -> Float[Tensor, "batch heads 1 room"]:
        """What positions add to the scores by distance, and −∞ for what is hidden."""
        distances = self.lengths[:, None] - torch.arange(mask.shape[-1], device=mask.device)
        return biases(distances.flatten()).unflatten(-1, distances.shape).movedim(0, 1)[:, :, None] + mask


@dataclass(frozen=True)
class AttentionShape:
    """The choices of an attention module.

    Merged, the key–query map of each head is one matrix W^QK = W_Qᵀ W_K (problem B6) that is applied to the inputs,
    and the value–output map one matrix W_V W_O (problem C8): the cache keeps inputs instead of keys or values.
    """

    width: int
    heads: int = 1
    attention_width: int | None = None
    """The width of all heads' queries together; the stream's if unset."""
    value_width: int | None = None
    """The width of all heads' values together; that of the queries if unset."""
    key_value_heads: int | None = None
    """Key–value heads, each shared by a group of query heads; one for each query head if unset."""
    causal: bool = True
    source_width: int | None = None
    """The width of the source, if keys and values come from another stream than the queries."""
    key_query: Literal["separate", "merged"] = "separate"
    value_output: Literal["separate", "merged", "none"] = "separate"
    """None: the output is the concatenated values of the heads, without an output map."""
    bias: bool = True
    output_bias: bool | None = None
    """Whether the output map has a bias; as the others if unset."""
    query_key_norm: bool = False
    """Whether queries and keys get a root-mean-square norm, each one for all heads (Henry et al. 2020)."""
    norm_epsilon: float = 1e-5
    scaled: bool = True
    """Whether scores are divided by √I."""
    window: int | None = None
    """The most tokens that are attended to, the query's own included; all if unset."""
    positions: Positions = NO_POSITIONS
    """What rotates queries and keys, or biases scores; what is added to the embedding is added elsewhere."""
    context: int = 0
    """The number of positions whose rotations are computed in advance."""

    def __post_init__(self) -> None:
        """Refuse choices that exclude each other: a programmer's error, since specs check the user's settings."""
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
            raise ValueError(f"{kind} needs an even head width (got {self.head_width}) and a single stream.")
        if self.source_width is not None and (self.causal or self.positions.biases):
            raise ValueError("attention to a source has no order: causal=False, and neither rotary nor alibi.")

    @property
    def head_width(self) -> int:
        """The width of one head's queries and keys before any merging: I in √I."""
        return (self.attention_width or self.width) // self.heads

    @property
    def head_value_width(self) -> int:
        """The width of one head's values before any merging."""
        return (self.value_width or self.attention_width or self.width) // self.heads

    @property
    def kv_heads(self) -> int:
        """The heads of keys and values."""
        return self.key_value_heads or self.heads

    @property
    def input_width(self) -> int:
        """The width of what is attended to."""
        return self.source_width or self.width

    @property
    def projection_widths(self) -> dict[str, int]:
        """The widths of the projections: queries, and keys and values unless they are merged."""
        merged = self.key_query == "merged"
        widths = {"query": self.heads * (self.input_width if merged else self.head_width)}
        if not merged:
            widths["key"] = self.kv_heads * self.head_width
        if self.value_output != "merged":
            widths["value"] = self.kv_heads * self.head_value_width
        return widths


class Attention(nn.Module):
    """Multi-head attention through PyTorch's fused kernel.

    Each head: softmax(Q Kᵀ/√I) V, over the tokens up to its own if causal. The scale is that of the unmerged head, so
    that merging changes nothing.
    """

    query_key_value: nn.Linear
    row_statistics: list[tuple[Tensor, Tensor]] | None = None
    """Where a fused kernel leaves the entropy and the squared distance of every row, while penalties need them."""

    def __init__(self, shape: AttentionShape, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape, self.dropout = shape, dropout
        self.heads, self.kv_heads, self.causal, self.window = shape.heads, shape.kv_heads, shape.causal, shape.window
        self.head_width, self.scale = shape.head_width, shape.head_width**-0.5 if shape.scaled else 1.0
        self.is_cross, self.merged = shape.source_width is not None, shape.key_query == "merged"
        kinds, widths = list(shape.projection_widths), shape.projection_widths
        alike = len(kinds) == 3 and set(widths.values()) == {shape.heads * shape.head_width}
        plain = not shape.positions.rotates and not shape.query_key_norm
        self.packed = alike and not self.is_cross and plain
        self.simple = self.packed and shape.window is None and not shape.positions.biases
        self.alike = alike and not self.is_cross
        # one view of queries, keys and values, so that what rotates acts on the first two at once
        self.joint = len(kinds) == 3 and not self.is_cross and widths["key"] == widths["value"]
        # the maps of the stream and of the source: "query_key_value", or "query" and "key_value"
        self.inward = "query" if self.is_cross else "_".join(kinds)
        self.inward_source = "_".join(kinds[1:]) if self.is_cross else ""
        for name, width in ((self.inward, shape.width), (self.inward_source, shape.input_width)):
            if name:
                joined = sum(widths[kind] for kind in name.split("_"))
                self.add_module(name, nn.Linear(width, joined, bias=shape.bias))
        self.query_norm = self.key_norm = None
        if shape.query_key_norm:
            self.query_norm = nn.RMSNorm(shape.head_width, eps=shape.norm_epsilon)
            self.key_norm = nn.RMSNorm(shape.head_width, eps=shape.norm_epsilon)
        self.maps_out = shape.value_output != "none"
        if self.maps_out:
            inner = shape.input_width if shape.value_output == "merged" else shape.head_value_width
            bias = shape.bias if shape.output_bias is None else shape.output_bias
            self.output = nn.Linear(shape.heads * inner, shape.width, bias=bias)
        # the names of these two are in the state_dicts of positions that learn
        self.turns = build_hook(shape.positions, "rotates", shape.context, shape.head_width)
        self.biases = None
        if not shape.positions.shared:
            self.biases = build_hook(shape.positions, "biases", shape.context, shape.heads)

    def forward(
        self,
        hidden: HiddenStates,
        cache: KVCache | SlotCache | None = None,
        source: Float[Tensor, "batch known source_width"] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        start: StartPosition | None = None,
        position_bias: PositionBias | None = None,
    ) -> tuple[HiddenStates, KVCache]:
        """Attend from every vector of the stream, to the past and itself or to the source; return what to keep.

        `mask` is true where a key may be seen, broadcast to (batch, heads, new, known). Attention to a source keeps
        that source: give it once, then only `past`. `start` is the position of the first vector, where a sliding window
        has left out some of the past; `line` what positions add to the scores that all layers share.
        """
        if isinstance(cache, SlotCache):
            return self._from_slots(hidden, cache, mask), cache.kept
        if self.simple and cache is not None and mask is None and hidden.shape[1] == 1 and not self.training:
            return self._append(hidden, cache)
        if self.packed:
            queries, keys, values, memory = self._packed(hidden, cache)
        elif self.is_cross:
            queries, keys, values, memory = self._across(hidden, cache, source)
        else:
            queries, keys, values, memory = self._within(hidden, cache, start)
        dropout = self.dropout if self.training else 0.0
        if self.biases is not None:
            position_bias = self.biases(relative_distances(queries.shape[2], keys.shape[2], keys.device))
        if self.window is not None and (new := queries.shape[2]) > 1 and keys.shape[2] >= self.window:
            mask = sliding_window_mask(
                new, keys.shape[2], self.window, keys.device, mask
            )  # one query sees all that is kept
        if self.row_statistics is not None and cache is None:
            slopes = self.biases.slopes if isinstance(self.biases, AlibiBias) else None
            mixed, entropy, distance = attend_with_row_statistics(
                queries, keys, values, self.scale, self.causal, slopes
            )
            self.row_statistics.append((entropy, distance))
        else:
            mixed = attend(queries, keys, values, self.scale, self.causal, mask, position_bias, dropout, self.alike)
        if self.window is not None and memory[0].shape[-2] >= self.window:  # the next token takes one place
            begin = memory[0].shape[-2] - self.window + 1
            memory = tuple(tensor.narrow(-2, begin, self.window - 1) for tensor in memory)
        joined = mixed.transpose(1, 2).flatten(2)
        if torch.compiler.is_compiling() and self.training:  # or the memory would get gradients of zeros
            memory = tuple(tensor.detach() for tensor in memory)
        return self.output(joined) if self.maps_out else joined, memory

    def _append(self, stream: Float[Tensor, "batch 1 width"], past: KVCache) -> tuple[HiddenStates, KVCache]:
        """Attend from one more token where only keys and values count, in as few calls as possible.

        A small model waits for the calls, not for the arithmetic.
        """
        batch = len(stream)
        joined = self.query_key_value(stream).view(batch, 3, self.heads, 1, -1)
        memory = torch.cat((past[0], joined.narrow(1, 1, 2)), 3)
        keys, values = memory.unbind(1)
        mixed = attend(joined.select(1, 0), keys, values, self.scale, True, same_shape=True).view(batch, 1, -1)
        return self.output(mixed) if self.maps_out else mixed, (memory,)

    def _from_slots(self, stream: HiddenStates, slots: SlotCache, mask: Tensor | None) -> HiddenStates:
        """Attend from one token of each text, to all of its tokens and itself."""
        if self.packed:
            joined = self.query_key_value(stream).view(len(stream), 1, 3, self.heads, -1).permute(0, 2, 3, 1, 4)
            queries, (keys, values) = joined.select(1, 0), slots.append((joined.narrow(1, 1, 2),))[0].unbind(1)
        else:
            queries, _, _, new = self._within(stream, None, slots.lengths)
            kept = slots.append(new)
            keys, values = kept[0], kept[-1]
        assert mask is not None  # 0 where a token is seen, −∞ where it is hidden
        bias = mask if self.biases is None else slots.position_bias(self.biases, mask).to(queries.dtype)
        mixed = attend(queries, keys, values, self.scale, False, bias)
        joined = mixed.transpose(1, 2).flatten(2)
        return self.output(joined) if self.maps_out else joined

    def supports_row_statistics(self) -> bool:
        """Whether the kernel of `layers/fused.py` covers this attention: its own past only, and no dropout."""
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

    def _packed(self, stream: HiddenStates, past: KVCache | None) -> tuple[Tensor, Tensor, Tensor, KVCache]:
        """Queries, keys and values of one shape; keys and values are kept in one tensor."""
        batch, time, _ = stream.shape
        joined = self.query_key_value(stream).view(batch, time, 3, self.heads, -1).permute(0, 2, 3, 1, 4)
        memory = joined.narrow(1, 1, 2)
        if past is None:
            queries, keys, values = joined.unbind(1)  # one backward for all three
        else:
            memory = torch.cat([past[0], memory], dim=3)
            queries, (keys, values) = joined.select(1, 0), memory.unbind(1)
        return queries, keys, values, (memory,)

    def _within(
        self, stream: HiddenStates, past: KVCache | None, start: StartPosition | None
    ) -> tuple[Tensor, Tensor, Tensor, KVCache]:
        start = (past[0].shape[-2] if past else 0) if start is None else start
        if self.joint and self.query_norm is None and self.turns is not None:
            joined = self.query_key_value(stream)
            joined = joined.view(*joined.shape[:2], -1, self.head_width).transpose(1, 2)
            turned, values = joined.split_with_sizes((self.heads + self.kv_heads, self.kv_heads), 1)
            queries, keys = self.turns(turned, start).split_with_sizes((self.heads, self.kv_heads), 1)
            made = {"query": queries, "key": keys, "value": values}
        else:
            made = self._made(self.inward, stream)
            if self.query_norm is not None and self.key_norm is not None:
                made |= {"query": self.query_norm(made["query"]), "key": self.key_norm(made["key"])}
            if self.turns is not None:
                made = {name: made[name] if name == "value" else self.turns(made[name], start) for name in made}
        memory = _cache_entry(made, stream)
        if past is not None:
            memory = tuple(torch.cat([old, new], dim=-2) for old, new in zip(past, memory, strict=True))
        return made["query"], memory[0], memory[-1], memory

    def _across(
        self, stream: HiddenStates, past: KVCache | None, source: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, KVCache]:
        if source is not None:
            past = _cache_entry(self._made(self.inward_source, source), source)
        if past is None:
            raise ValueError("attention to a source needs `source`, or `past` from an earlier call with it.")
        return self._made(self.inward, stream)["query"], past[0], past[-1], past

    def _made(self, name: str, vectors: Tensor) -> dict[str, Float[Tensor, "batch heads time head_width"]]:
        """Project vectors by the map of that name, and split the result into its parts and heads."""
        if not name:
            return {}
        kinds = name.split("_")
        parts = getattr(self, name)(vectors).split([self.shape.projection_widths[kind] for kind in kinds], dim=-1)
        heads = [self.heads if kind == "query" else self.kv_heads for kind in kinds]
        return {
            kind: part.unflatten(-1, (number, -1)).transpose(1, 2)
            for kind, part, number in zip(kinds, parts, heads, strict=True)
        }


def _cache_entry(projections: dict[str, Tensor], inputs: Tensor) -> KVCache:
    """Keys and values; the inputs instead of either, or once instead of both."""
    keys, values = projections.get("key"), projections.get("value")
    if keys is None and values is None:
        return (inputs[:, None],)
    return (inputs[:, None] if keys is None else keys, inputs[:, None] if values is None else values)


class WindowHead(nn.Module):
    """One attention head with a query for the last word of each window only (problem A2).

    a = Σ_i α_i W^v e_i with α = softmax_i((W^q e_last)·(W^k e_i)/√d_k).
    """

    def __init__(self, width: int, key_width: int, value_width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, key_width, bias=False)
        self.key = nn.Linear(width, key_width, bias=False)
        self.value = nn.Linear(width, value_width, bias=False)

    def forward(
        self, embedded: Float[Tensor, "batch joined width"], time: int, span: int
    ) -> Float[Tensor, "batch time value_width"]:
        """Attend within the windows that end at the last `time` words; each word's key and value is computed once."""
        queries, words = self.query(embedded[:, -time:]), self.key(embedded)
        contents = self.value(embedded)
        if LISTENERS.active:
            self._announce(queries, words, contents, span)
        keys = sliding_windows(words, time, span)
        scores = torch.einsum("btk,btsk->bts", queries, keys) * keys.shape[-1] ** -0.5
        there = window_mask(embedded.shape[1], time, span, embedded.device)
        if there is not None:
            scores = scores.masked_fill(~there, float("-inf"))
        return torch.einsum("bts,btsv->btv", scores.softmax(-1), sliding_windows(contents, time, span))

    def _announce(self, queries: Tensor, keys: Tensor, values: Tensor, span: int) -> None:
        """Tell the listeners of the same attention as one head over all words, each of which sees its window."""
        time, joined = queries.shape[1], keys.shape[1]
        ends = torch.arange(joined - time, joined, device=keys.device)[:, None]
        places = torch.arange(joined, device=keys.device)
        bias, scale = mask_to_bias((places <= ends) & (places > ends - span), keys), keys.shape[-1] ** -0.5
        record = AttentionRecord(queries[:, None], keys[:, None], values[:, None], scale, bias)
        for listener in LISTENERS.active:
            listener.on_attention(record)


RelationScores = Float[Tensor, "batch relations head_words dependents"]
NULL_SCORE = 4.0  # the null position's initial score: nearly all heads have nothing to attend to from nearly all words


class RelationHeads(nn.Module):
    """An attention layer with one attention head per relation (problem B1); head words are the root and all words.

    S_r[g, d] = q_r(g)·k_r(d)/√w for head word g, dependent d and relation r, where the queries and keys of each
    relation have some coordinates of their own and some that all relations share. Normalised over a head word's
    dependents, with a null position for "none", `dobj` attends from `prefer` to `flight` with weight 1. Normalised over
    all (head word, relation) of each dependent, the same scores are a parser (Dozat & Manning 2017 have the bilinear
    form with separate arcs and labels). "Head word" is the head of a dependency; "head" is an attention head.
    """

    def __init__(
        self, width: int, relations: int, hidden: int, relation_width: int, shared_width: int, dropout: float
    ) -> None:
        super().__init__()
        self.relations, self.relation_width, self.shared_width = relations, relation_width, shared_width
        self.governor, self.dependent = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.query = nn.Linear(hidden, relations * relation_width + shared_width)
        self.key = nn.Linear(hidden, relations * relation_width + shared_width)
        self.null = nn.Parameter(torch.full((relations,), NULL_SCORE))
        self.dropout = nn.Dropout(dropout)
        self.scale = (relation_width + shared_width) ** -0.5

    def forward(self, hidden: Float[Tensor, "batch places width"]) -> RelationScores:
        """Score all head words (position 0 is the root) for all dependents (positions 1 and on)."""
        queries = self.query(self._activate(self.governor, hidden))
        keys = self.key(self._activate(self.dependent, hidden[:, 1:]))
        own = torch.matmul(self._split_heads(queries), self._split_heads(keys).transpose(-1, -2))
        if not self.shared_width:
            return own * self.scale
        common = queries[..., -self.shared_width :] @ keys[..., -self.shared_width :].transpose(-1, -2)
        return (own + common[:, None]) * self.scale

    def _activate(self, layer: nn.Linear, stream: Tensor) -> Tensor:
        return self.dropout(nn.functional.leaky_relu(layer(stream), 0.1))

    def _split_heads(self, joined: Tensor) -> Float[Tensor, "batch relations places own"]:
        batch, places, _ = joined.shape
        return (
            joined[..., : self.relations * self.relation_width]
            .view(batch, places, self.relations, self.relation_width)
            .transpose(1, 2)
        )


def log_attention(
    scores: RelationScores, null: Float[Tensor, " relations"], mask: Bool[Tensor, "batch dependents"]
) -> Float[Tensor, "batch relations head_words null_and_dependents"]:
    """Log attention of each relation from each head word over the null position and the dependents (problem B1)."""
    masked = scores.masked_fill(~mask[:, None, None], float("-inf"))
    batch, relations, head_words, _ = scores.shape
    nothing = null[None, :, None, None].expand(batch, relations, head_words, 1).to(scores.dtype)
    return torch.cat([nothing, masked], dim=-1).log_softmax(-1)


def log_arc_probabilities(scores: RelationScores, mask: Bool[Tensor, "batch dependents"]) -> RelationScores:
    """Log probability of each (head word, relation) for each dependent: the parser. The root is always there."""
    governs = torch.cat([torch.ones_like(mask[:, :1]), mask], dim=1)
    itself = torch.eye(scores.shape[-1], dtype=torch.bool, device=scores.device)
    barred = ~governs[:, :, None] | torch.cat([torch.zeros_like(itself[:1]), itself])
    masked = scores.masked_fill(barred[:, None], float("-inf"))
    return masked.flatten(1, 2).log_softmax(1).view_as(scores)
