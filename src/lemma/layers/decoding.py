"""Triton kernels for decoding: one token of each text at a time, so that weights and keys are read and little computed.

A layer takes five of them: products of a few rows with a matrix, which take in the norm before and the activation or
the residual after (`product`), and attention of one query to each text's own keys (`attend_slots`), which rotates
queries and keys and stores the new ones. Nothing in them depends on a number that the host knows: they can be replayed
as a CUDA graph while the texts grow.
"""

import math
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.layers.attention import Attention, SlotCache
from lemma.layers.feed_forward import ACTIVATIONS
from lemma.layers.fused import TRITON
from lemma.layers.positions import AlibiBias, RotaryEmbedding

MAX_ROWS = 64  # texts of one batch
FEW_ROWS, HELD = 4, 8192  # at most this many rows pass one by one, with this many numbers of a matrix held
MANY_OUTPUTS = 16_384  # of a vocabulary
TILE = 32_768  # numbers of keys that a program holds at once
FEW_HEADS, LONG = 96, 512  # keys are split among programs where fewer heads of all texts would keep a GPU busy
ACTIVATION_CODES = {function: code for code, function in enumerate(ACTIVATIONS.values(), start=1)}

if TYPE_CHECKING or TRITON:
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as tl  # pyright: ignore[reportMissingImports]

    @triton.jit
    def _activated(x, CODE: tl.constexpr):
        """The activations, numbered as in `ACTIVATIONS`."""
        if CODE == 1:  # tanh
            return 2 * tl.sigmoid(2 * x) - 1
        if CODE == 2:  # sigmoid
            return tl.sigmoid(x)
        if CODE == 3:  # relu
            return tl.maximum(x, 0.0)
        if CODE == 4:  # gelu in its tanh form
            return x * tl.sigmoid(x * (1.5957691216057308 + 0.07135481282553494 * x * x))
        if CODE == 5:  # gelu
            return 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
        if CODE == 6:  # silu
            return x * tl.sigmoid(x)
        return x

    @triton.jit
    def _embed_kernel(
        TOKENS, PLACES, TABLE, ADDED, OUT, SEEN, scale, inputs, room, POSITIONS: tl.constexpr, K: tl.constexpr
    ):  # fmt: skip
        """The vector of one text's next token, with what its place adds; the token is noted."""
        row, part = tl.program_id(0), tl.arange(0, K)
        inside, token, place = part < inputs, tl.load(TOKENS + row), tl.load(PLACES + row)
        x = tl.load(TABLE + token * inputs + part, mask=inside, other=0.0).to(tl.float32) * scale
        if POSITIONS:
            x += tl.load(ADDED + place * inputs + part, mask=inside, other=0.0).to(tl.float32)
        tl.store(OUT + row * inputs + part, x.to(OUT.dtype.element_ty), mask=inside)
        tl.store(SEEN + row * room + place, token)

    @triton.jit
    def _highest_kernel(LOGITS, TOKENS, PLACES, SEEN, classes, room, N: tl.constexpr):
        """The first of the highest logits of one text: its next token, noted at its next place."""
        row, part = tl.program_id(0), tl.arange(0, N)
        best = tl.full([N], -float("inf"), tl.float32)
        where = tl.zeros([N], tl.int32)
        for start in range(0, classes, N):
            x = tl.load(LOGITS + row * classes + start + part, mask=start + part < classes, other=-float("inf"))
            where = tl.where(x > best, start + part, where)
            best = tl.maximum(best, x)
        highest = tl.max(best, 0)
        token = tl.min(tl.where(best == highest, where, classes), 0).to(tl.int64) % classes  # of NaN alone, token 0
        place = tl.load(PLACES + row) + 1
        tl.store(TOKENS + row, token)
        tl.store(SEEN + row * room + place, token)
        tl.store(PLACES + row, place)

    @triton.jit
    def _normed(x, NORM, SHIFT, part, inside, inputs, epsilon, LAYER: tl.constexpr, SHIFTED: tl.constexpr):
        """One row, its norm applied."""
        if LAYER:
            x = tl.where(inside, x - tl.sum(x, 0) / inputs, 0.0)
        x = x * tl.rsqrt(tl.sum(x * x, 0) / inputs + epsilon)
        x = x * tl.load(NORM + part, mask=inside, other=0.0).to(tl.float32)
        if SHIFTED:
            x += tl.load(SHIFT + part, mask=inside, other=0.0).to(tl.float32)
        return x

    @triton.jit
    def _norm_kernel(X, OUT, NORM, SHIFT, epsilon, inputs, LAYER: tl.constexpr, SHIFTED: tl.constexpr, K: tl.constexpr):
        """The norm of one row."""
        begin, part = tl.program_id(0) * inputs, tl.arange(0, K)
        inside = part < inputs
        x = tl.load(X + begin + part, mask=inside, other=0.0).to(tl.float32)
        x = _normed(x, NORM, SHIFT, part, inside, inputs, epsilon, LAYER, SHIFTED)
        tl.store(OUT + begin + part, x.to(OUT.dtype.element_ty), mask=inside)

    @triton.jit
    def _few_rows_kernel(
        X, W, BIAS, RESIDUAL, OUT, NORM, SHIFT, epsilon, rows, inputs, outputs,
        LAYER: tl.constexpr, NORMED: tl.constexpr, SHIFTED: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr,
        GATED: tl.constexpr, CODE: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    ):  # fmt: skip
        """Some columns of act(norm(X) Wᵀ + b) + R: a few rows of W, held while the rows of X pass."""
        columns, part = tl.program_id(0) * N + tl.arange(0, N), tl.arange(0, K)
        inside, wanted = part < inputs, columns < outputs
        known = wanted[:, None] & inside[None, :]
        place = W + columns[:, None].to(tl.int64) * inputs + part[None, :]
        first = tl.load(place, mask=known, other=0.0)
        second = first
        if GATED:
            second = tl.load(place + outputs.to(tl.int64) * inputs, mask=known, other=0.0)
        for row in range(rows):
            x = tl.load(X + row * inputs + part, mask=inside, other=0.0).to(tl.float32)
            if NORMED:
                x = _normed(x, NORM, SHIFT, part, inside, inputs, epsilon, LAYER, SHIFTED)
            total = tl.sum(first.to(tl.float32) * x[None, :], 1)
            if BIASED:
                total += tl.load(BIAS + columns, mask=wanted, other=0.0).to(tl.float32)
            total = _activated(total, CODE)
            if GATED:
                wide = tl.sum(second.to(tl.float32) * x[None, :], 1)
                if BIASED:
                    wide += tl.load(BIAS + outputs + columns, mask=wanted, other=0.0).to(tl.float32)
                total = total * wide
            if ADDED:
                total += tl.load(RESIDUAL + row * outputs + columns, mask=wanted, other=0.0).to(tl.float32)
            tl.store(OUT + row * outputs + columns, total.to(OUT.dtype.element_ty), mask=wanted)

    @triton.jit
    def _product_kernel(
        X, W, BIAS, RESIDUAL, OUT, rows, inputs, outputs,
        BIASED: tl.constexpr, ADDED: tl.constexpr, GATED: tl.constexpr, CODE: tl.constexpr, PRECISION: tl.constexpr,
        M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    ):  # fmt: skip
        """Some columns of act(X Wᵀ + b) + R, of all rows at once."""
        columns, row, part = tl.program_id(0) * N + tl.arange(0, N), tl.arange(0, M), tl.arange(0, K)
        here, wanted = row < rows, columns < outputs
        total = tl.zeros([M, N], tl.float32)
        wide = tl.zeros([M, N], tl.float32)
        for start in range(0, inputs, K):
            inside = start + part < inputs
            known, there = wanted[:, None] & inside[None, :], here[:, None] & inside[None, :]
            x = tl.load(X + row[:, None] * inputs + start + part[None, :], mask=there, other=0.0)
            place = columns[:, None].to(tl.int64) * inputs + start + part[None, :]
            total = tl.dot(x, tl.trans(tl.load(W + place, mask=known, other=0.0)), total, input_precision=PRECISION)
            if GATED:
                place += outputs.to(tl.int64) * inputs
                wide = tl.dot(x, tl.trans(tl.load(W + place, mask=known, other=0.0)), wide, input_precision=PRECISION)
        if BIASED:
            total += tl.load(BIAS + columns, mask=wanted, other=0.0).to(tl.float32)[None, :]
            if GATED:
                wide += tl.load(BIAS + outputs + columns, mask=wanted, other=0.0).to(tl.float32)[None, :]
        total = _activated(total, CODE)
        if GATED:
            total = total * wide
        spot, saved = row[:, None] * outputs + columns[None, :], here[:, None] & wanted[None, :]
        if ADDED:
            total += tl.load(RESIDUAL + spot, mask=saved, other=0.0).to(tl.float32)
        tl.store(OUT + spot, total.to(OUT.dtype.element_ty), mask=saved)

    @triton.jit
    def _vector(VECTORS, NORM, TABLE, PARTNER, spot, place, epsilon, width, inside, WIDTH: tl.constexpr,
                NORMED: tl.constexpr, TURNED: tl.constexpr):  # fmt: skip
        """A query or key, with its norm, rotated to its place."""
        x = tl.load(VECTORS + spot + width, mask=inside, other=0.0).to(tl.float32)
        scale = 1.0
        if NORMED:
            scale = tl.rsqrt(tl.sum(x * x, 0) / WIDTH + epsilon)
            x = x * scale * tl.load(NORM + width, mask=inside, other=0.0).to(tl.float32)
        if TURNED:
            partner = tl.load(PARTNER + width, mask=inside, other=0)
            y = tl.load(VECTORS + spot + partner, mask=inside, other=0.0).to(tl.float32)
            if NORMED:
                y = y * scale * tl.load(NORM + partner, mask=inside, other=0.0).to(tl.float32)
            turn = TABLE + place * (2 * WIDTH) + width
            x = x * tl.load(turn + WIDTH, mask=inside, other=0.0) + y * tl.load(turn, mask=inside, other=0.0)
        return x

    @triton.jit
    def _attend_kernel(
        JOINED, KEYS, VALUES, PLACES, OUT, PARTS, Q_NORM, K_NORM, TABLE, PARTNER, SLOPES,
        k_b, k_h, k_t, v_b, v_h, v_t, scale2, epsilon, heads, groups, window,
        WIDTH: tl.constexpr, D: tl.constexpr, N: tl.constexpr, SPLITS: tl.constexpr,
        NORMED: tl.constexpr, TURNED: tl.constexpr, BIASED: tl.constexpr, WINDOWED: tl.constexpr,
    ):  # fmt: skip
        """One head of one text, or a part of its keys."""
        b, h, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
        group = h // (heads // groups)
        width = tl.arange(0, D)
        inside = width < WIDTH
        place = tl.load(PLACES + b)
        begin = b * (heads + 2 * groups) * WIDTH
        q = _vector(
            JOINED, Q_NORM, TABLE, PARTNER, begin + h * WIDTH, place, epsilon, width, inside, WIDTH, NORMED, TURNED
        )
        q = q * scale2
        slope = tl.load(SLOPES + h).to(tl.float32) * 1.4426950408889634 if BIASED else 0.0
        k_base, v_base = KEYS + b * k_b + group * k_h, VALUES + b * v_b + group * v_h
        low = tl.maximum(place - window + 1, 0) if WINDOWED else place * 0
        part = tl.cdiv(place - low, SPLITS)
        low += split * part
        high = tl.minimum(low + part, place)
        # the new token itself belongs to the last part; the first head of each group stores it
        k = _vector(
            JOINED, K_NORM, TABLE, PARTNER, begin + (heads + group) * WIDTH, place, epsilon, width, inside, WIDTH,
            NORMED, TURNED,
        ).to(KEYS.dtype.element_ty)  # fmt: skip
        v = tl.load(JOINED + begin + (heads + groups + group) * WIDTH + width, mask=inside, other=0.0)
        last = split == SPLITS - 1
        stores = inside & last & (h % (heads // groups) == 0)
        tl.store(k_base + place * k_t + width, k, mask=stores)
        tl.store(v_base + place * v_t + width, v.to(VALUES.dtype.element_ty), mask=stores)
        best = tl.where(last, tl.sum(q * k.to(tl.float32), 0), -1e30)
        total = tl.where(last, 1.0, 0.0)
        mixed = v.to(tl.float32) * total
        for start in range(low, high, N):
            columns = start + tl.arange(0, N)
            seen = columns < high
            known = seen[:, None] & inside[None, :]
            keys = tl.load(k_base + columns[:, None] * k_t + width[None, :], mask=known, other=0.0)
            values = tl.load(v_base + columns[:, None] * v_t + width[None, :], mask=known, other=0.0)
            scores = tl.sum(keys.to(tl.float32) * q[None, :], 1)
            if BIASED:
                scores -= slope * (place - columns).to(tl.float32)
            scores = tl.where(seen, scores, -1e30)
            highest = tl.maximum(best, tl.max(scores, 0))
            weights, fade = tl.where(seen, tl.exp2(scores - highest), 0.0), tl.exp2(best - highest)
            mixed = mixed * fade + tl.sum(weights[:, None] * values.to(tl.float32), 0)
            total, best = total * fade + tl.sum(weights, 0), highest
        if SPLITS == 1:
            tl.store(OUT + (b * heads + h) * WIDTH + width, (mixed / total).to(OUT.dtype.element_ty), mask=inside)
        else:
            spot = PARTS + ((b * heads + h) * SPLITS + split) * (D + 2)
            tl.store(spot + width, mixed)
            tl.store(spot + D, best)
            tl.store(spot + D + 1, total)

    @triton.jit
    def _join_kernel(PARTS, OUT, WIDTH: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr, S: tl.constexpr):
        """Join the parts of one head's keys."""
        head, width, split = tl.program_id(0).to(tl.int64), tl.arange(0, D), tl.arange(0, S)
        there = split < SPLITS
        spot = PARTS + (head * SPLITS + split) * (D + 2)
        best = tl.load(spot + D, mask=there, other=-1e30)
        fade = tl.where(there, tl.exp2(best - tl.max(best, 0)), 0.0)
        total = tl.sum(fade * tl.load(spot + D + 1, mask=there, other=0.0), 0)
        mixed = tl.load(spot[:, None] + width[None, :], mask=there[:, None], other=0.0)
        mixed = tl.sum(fade[:, None] * mixed, 0) / total
        tl.store(OUT + head * WIDTH + width, mixed.to(OUT.dtype.element_ty), mask=width < WIDTH)


def embed_tokens(
    tokens: Int[Tensor, "batch 1"],
    slots: Any,
    table: Float[Tensor, "tokens width"],
    positions: Float[Tensor, "context width"] | None,
    scale: float,
) -> Float[Tensor, "batch width"]:
    """Embed each text's next token at its place, and note it in `slots.seen`."""
    batch, width = len(tokens), table.shape[1]
    out = torch.empty(batch, width, dtype=table.dtype, device=table.device)
    _embed_kernel[(batch,)](  # pyright: ignore[reportIndexIssue]
        tokens, slots.places, table, positions, out, slots.seen, scale, width, slots.seen.shape[1],
        POSITIONS=positions is not None, K=max(16, triton.next_power_of_2(width)), num_warps=4,
    )  # fmt: skip
    return out


def take_argmax(logits: Float[Tensor, "batch classes"], tokens: Int[Tensor, "batch 1"], slots: Any) -> None:
    """Choose each text's most likely token, of equals the first; note it at its next place, and move there."""
    batch, classes = logits.shape
    _highest_kernel[(batch,)](  # pyright: ignore[reportIndexIssue]
        logits, tokens, slots.places, slots.seen, classes, slots.seen.shape[1], N=8192, num_warps=16
    )


def fused_linear(
    vectors: Float[Tensor, "rows inputs"],
    linear: nn.Linear,
    norm: nn.Module | None = None,
    activation: Any = None,
    gated: bool = False,
    residual: Float[Tensor, "rows outputs"] | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "rows outputs"]:
    """Return act(norm(x) Wᵀ + b) + residual of a few rows; gated, act(first half) ⊙ second half of the outputs."""
    rows, inputs = vectors.shape
    outputs = len(linear.weight) // (2 if gated else 1)
    out = torch.empty(rows, outputs, dtype=dtype or vectors.dtype, device=vectors.device)
    K, shift = max(16, triton.next_power_of_2(inputs)), getattr(norm, "bias", None)
    of_norm: Any = (None, None, 0.0) if norm is None else (norm.weight, shift, norm.eps)
    kinds: Any = {"LAYER": isinstance(norm, nn.LayerNorm), "SHIFTED": shift is not None}
    choices: Any = {
        "BIASED": linear.bias is not None,
        "ADDED": residual is not None,
        "GATED": gated,
        "CODE": 0 if activation is None else ACTIVATION_CODES[activation],
    }
    if rows <= FEW_ROWS and K <= HELD:
        held = HELD if outputs >= MANY_OUTPUTS else HELD // 2
        N, warps = max(1, held // (K * (2 if gated else 1))), 8 if K >= 4096 else 4
        _few_rows_kernel[(triton.cdiv(outputs, N),)](  # pyright: ignore[reportIndexIssue]
            vectors, linear.weight, linear.bias, residual, out, *of_norm, rows, inputs, outputs,
            NORMED=norm is not None, N=N, K=K, num_warps=warps, **kinds, **choices,
        )  # fmt: skip
        return out
    if norm is not None:
        read, vectors = vectors, torch.empty_like(vectors)
        normed: Any = _norm_kernel
        normed[(rows,)](read, vectors, *of_norm, inputs, K=K, num_warps=4, **kinds)
    # measured on an H200
    N, most, stages = (64, 128, 4) if outputs >= MANY_OUTPUTS else (32, 128, 4) if outputs >= 2048 else (16, 256, 3)
    _product_kernel[(triton.cdiv(outputs, N),)](  # pyright: ignore[reportIndexIssue]
        vectors, linear.weight, linear.bias, residual, out, rows, inputs, outputs,
        PRECISION="ieee" if vectors.dtype == torch.float32 else "tf32",
        M=max(16, triton.next_power_of_2(rows)), N=N, K=min(K, most), num_warps=4, num_stages=stages, **choices,
    )  # fmt: skip
    return out


def attend_slot_cache(
    attention: Attention,
    qkv: Float[Tensor, "batch joined"],
    cache: SlotCache,
    rotary_tables: tuple[Float[Tensor, "room two width"], Int[Tensor, " width"]] | None,
) -> Float[Tensor, "batch mixed"]:
    """Attend from one token of each text to its tokens so far and itself; store its key and value at its place.

    Args:
        joined: Queries, keys and values of the new tokens, as `query_key_value` gives them.
        turns: What `rotations` returns, where positions rotate.
    """
    batch, heads, groups, width = len(qkv), attention.heads, attention.kv_heads, attention.head_width
    keys, values = cache.kept if len(cache.kept) == 2 else cache.kept[0].unbind(1)
    long = keys.shape[-2] > LONG
    few = batch * heads < FEW_HEADS
    splits, N, warps = (8, 128 if long else 64, 8 if long else 4) if few else (1, 128 if long else 256, 4)
    D = max(16, triton.next_power_of_2(width))
    N = min(N, TILE // D)
    out = torch.empty(batch, heads * width, dtype=qkv.dtype, device=qkv.device)
    parts = out if splits == 1 else torch.empty(batch * heads * splits * (D + 2), device=qkv.device)
    slopes = attention.biases.slopes if isinstance(attention.biases, AlibiBias) else None
    q_norm, k_norm = attention.query_norm, attention.key_norm
    _attend_kernel[(batch, heads, splits)](  # pyright: ignore[reportIndexIssue]
        qkv, keys, values, cache.lengths, out, parts,
        None if q_norm is None else q_norm.weight, None if k_norm is None else k_norm.weight,
        *(rotary_tables or (None, None)), slopes,
        *keys.stride()[:3], *values.stride()[:3], attention.scale / math.log(2),
        0.0 if q_norm is None else q_norm.eps, heads, groups, attention.window or 0,
        WIDTH=width, D=D, N=N, SPLITS=splits, NORMED=q_norm is not None, TURNED=rotary_tables is not None,
        BIASED=slopes is not None, WINDOWED=attention.window is not None, num_warps=warps,
    )  # fmt: skip
    if splits > 1:
        _join_kernel[(batch * heads,)](  # pyright: ignore[reportIndexIssue]
            parts, out, WIDTH=width, D=D, SPLITS=splits, S=triton.next_power_of_2(splits), num_warps=1
        )
    return out


def build_rotary_tables(
    rotary: RotaryEmbedding, capacity: int, width: int
) -> tuple[Float[Tensor, "room two width"], Int[Tensor, " width"]]:
    """Sines with their signs and cosines of each place, and which coordinate each is turned with; the rest stays."""
    turned, places = rotary.rotary_dim, torch.arange(width, device=rotary.table.device)
    rows, table = rotary.table[:capacity].float(), torch.zeros(capacity, 2, width, device=rotary.table.device)
    table[:, 1] = 1.0
    if rotary.halves:
        table[:, :, :turned] = rows
        partner = torch.where(places < turned // 2, places + turned // 2, places - turned // 2)
    else:
        sine, cosine = rows.unbind(-1)
        table[:, 0, :turned] = torch.stack([-sine, sine], -1).flatten(1)
        table[:, 1, :turned] = cosine.repeat_interleave(2, 1)
        partner = places ^ 1
    return table, torch.where(places < turned, partner, places).int()


def supports_attention(attention: Attention) -> bool:
    """Whether `attend_slots` does what an attention does: queries, keys and values of one width, of its own past."""
    shape = attention.shape
    return (
        not attention.is_cross
        and shape.key_query == shape.value_output == "separate"
        and shape.head_width == shape.head_value_width <= 256
        and (attention.turns is None or type(attention.turns) is RotaryEmbedding)
        and (attention.biases is None or type(attention.biases) is AlibiBias)
        and type(attention.query_key_value) is type(attention.output) is nn.Linear
    )
