"""Triton kernels for decoding: one new token per sequence, so that reading weights and keys takes nearly all the time.

A layer takes five of them: products of a few rows with a matrix, fused with the norm before and the activation or the
residual after (`fused_linear`), and attention of one query to the cached keys of its sequence (`attend_slot_cache`),
which rotates queries and keys and stores the new ones. Nothing in them depends on a number that the host knows: they
can be replayed as a CUDA graph while the sequences grow.
"""

import math
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.kernels.support import TRITON

MAX_ROWS = 64  # sequences of one batch
FEW_ROWS = 4  # at most this many rows are multiplied in turn, with a tile of the matrix held
HELD_ELEMENTS = 8192  # of that tile
MANY_OUTPUTS = 16_384  # of a vocabulary
KEY_TILE_ELEMENTS = 32_768  # of keys that a program holds at once
FEW_HEADS = 96  # of all sequences: fewer do not keep a GPU busy, so their keys are split among programs
LONG_CACHE = 512  # tokens
ACTIVATION_CODES = {"tanh": 1, "sigmoid": 2, "relu": 3, "gelu": 4, "gelu-exact": 5, "silu": 6}
RotaryTables = tuple[Float[Tensor, "capacity two width"], Int[Tensor, " width"]]
"""Signed sines and cosines of each position, and the coordinate with which each coordinate is rotated."""


def embed_tokens(
    tokens: Int[Tensor, "batch 1"],
    lengths: Int[Tensor, " batch"],
    history: Int[Tensor, "batch capacity_and_one"],
    table: Float[Tensor, "tokens width"],
    positions: Float[Tensor, "context width"] | None,
    scale: float,
) -> Float[Tensor, "batch width"]:
    """Return each sequence's next token as scale · table[token] + positions[length]; write it to history[length].

    Args:
        lengths: tokens of each sequence so far, the index of the next one.
    """
    batch, width = len(tokens), table.shape[1]
    out = torch.empty(batch, width, dtype=table.dtype, device=table.device)
    _embed_kernel[(batch,)](  # pyright: ignore[reportIndexIssue]
        tokens, lengths, table, positions, out, history, scale, width, history.shape[1],
        POSITIONS=positions is not None, K=max(16, triton.next_power_of_2(width)), num_warps=4,
    )  # fmt: skip
    return out


def take_argmax(
    logits: Float[Tensor, "batch classes"],
    tokens: Int[Tensor, "batch 1"],
    lengths: Int[Tensor, " batch"],
    history: Int[Tensor, "batch capacity_and_one"],
) -> None:
    """Write each sequence's most likely token to `tokens` and `history`, after adding one to `lengths`.

    Of equally likely tokens it is the first.
    """
    batch, classes = logits.shape
    _argmax_kernel[(batch,)](  # pyright: ignore[reportIndexIssue]
        logits, tokens, lengths, history, classes, history.shape[1], N=8192, num_warps=16
    )


def fused_linear(
    vectors: Float[Tensor, "rows inputs"],
    linear: nn.Linear,
    norm: nn.Module | None = None,
    activation: str | None = None,
    gated: bool = False,
    residual: Float[Tensor, "rows outputs"] | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "rows outputs"]:
    """Return act(norm(vectors) Wᵀ + b) + residual for a few rows, in one kernel.

    Args:
        linear: W and b.
        norm: norm of the inputs, if any.
        activation: name of the activation, if any.
        gated: the outputs are act(first half) ⊙ second half.
        dtype: dtype of the result.
    """
    rows, inputs = vectors.shape
    outputs = len(linear.weight) // (2 if gated else 1)
    out = torch.empty(rows, outputs, dtype=dtype or vectors.dtype, device=vectors.device)
    K, shift = max(16, triton.next_power_of_2(inputs)), getattr(norm, "bias", None)
    norm_args: Any = (None, None, 0.0) if norm is None else (norm.weight, shift, norm.eps)
    norm_options: Any = {"LAYER": isinstance(norm, nn.LayerNorm), "SHIFTED": shift is not None}
    options: Any = {
        "BIASED": linear.bias is not None,
        "ADDED": residual is not None,
        "GATED": gated,
        "CODE": 0 if activation is None else ACTIVATION_CODES[activation],
    }
    if rows <= FEW_ROWS and K <= HELD_ELEMENTS:
        held = HELD_ELEMENTS if outputs >= MANY_OUTPUTS else HELD_ELEMENTS // 2
        N, warps = max(1, held // (K * (2 if gated else 1))), 8 if K >= 4096 else 4
        _few_rows_kernel[(triton.cdiv(outputs, N),)](  # pyright: ignore[reportIndexIssue]
            vectors, linear.weight, linear.bias, residual, out, *norm_args, rows, inputs, outputs,
            NORMED=norm is not None, N=N, K=K, num_warps=warps, **norm_options, **options,
        )  # fmt: skip
        return out
    if norm is not None:
        unnormed, vectors = vectors, torch.empty_like(vectors)
        norm_kernel: Any = _norm_kernel
        norm_kernel[(rows,)](unnormed, vectors, *norm_args, inputs, K=K, num_warps=4, **norm_options)
    # Tile sizes measured on an H200.
    N, max_k, stages = (64, 128, 4) if outputs >= MANY_OUTPUTS else (32, 128, 4) if outputs >= 2048 else (16, 256, 3)
    _product_kernel[(triton.cdiv(outputs, N),)](  # pyright: ignore[reportIndexIssue]
        vectors, linear.weight, linear.bias, residual, out, rows, inputs, outputs,
        PRECISION="ieee" if vectors.dtype == torch.float32 else "tf32",
        M=max(16, triton.next_power_of_2(rows)), N=N, K=min(K, max_k), num_warps=4, num_stages=stages, **options,
    )  # fmt: skip
    return out


def attend_slot_cache(
    qkv: Float[Tensor, "batch projected"],
    keys: Float[Tensor, "batch kv_heads capacity width"],
    values: Float[Tensor, "batch kv_heads capacity width"],
    lengths: Int[Tensor, " batch"],
    scale: float,
    window: int | None = None,
    query_norm: nn.RMSNorm | None = None,
    key_norm: nn.RMSNorm | None = None,
    rotary_tables: RotaryTables | None = None,
    slopes: Float[Tensor, " heads"] | None = None,
) -> Float[Tensor, "batch heads_width"]:
    """Return the attention of each sequence's next token to its cached tokens and itself; cache its key and value.

    Args:
        qkv: joint projection of the new tokens: queries, keys and values side by side.
        keys: cached keys; like `values`, they get the new token's at index `lengths`.
        lengths: tokens of each sequence in the cache.
        scale: factor of q·k.
        window: most tokens attended to, the new one included; None for all.
        rotary_tables: as `build_rotary_tables` returns them.
        slopes: of ALiBi's biases.
    """
    batch, kv_heads, capacity, width = keys.shape
    heads = qkv.shape[1] // width - 2 * kv_heads
    is_long, is_few = capacity > LONG_CACHE, batch * heads < FEW_HEADS
    splits, N, warps = (8, 128 if is_long else 64, 8 if is_long else 4) if is_few else (1, 128 if is_long else 256, 4)
    D = max(16, triton.next_power_of_2(width))
    N = min(N, KEY_TILE_ELEMENTS // D)
    out = torch.empty(batch, heads * width, dtype=qkv.dtype, device=qkv.device)
    parts = out if splits == 1 else torch.empty(batch * heads * splits * (D + 2), device=qkv.device)
    _attend_kernel[(batch, heads, splits)](  # pyright: ignore[reportIndexIssue]
        qkv, keys, values, lengths, out, parts,
        None if query_norm is None else query_norm.weight, None if key_norm is None else key_norm.weight,
        *(rotary_tables or (None, None)), slopes,
        *keys.stride()[:3], *values.stride()[:3], scale / math.log(2),
        0.0 if query_norm is None else query_norm.eps, heads, kv_heads, window or 0,
        WIDTH=width, D=D, N=N, SPLITS=splits, NORMED=query_norm is not None, ROTATED=rotary_tables is not None,
        BIASED=slopes is not None, WINDOWED=window is not None, num_warps=warps,
    )  # fmt: skip
    if splits > 1:
        _join_kernel[(batch * heads,)](  # pyright: ignore[reportIndexIssue]
            parts, out, WIDTH=width, D=D, SPLITS=splits, S=triton.next_power_of_2(splits), num_warps=1
        )
    return out


if TYPE_CHECKING or TRITON:
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as tl  # pyright: ignore[reportMissingImports]

    @triton.jit
    def _activate(x, CODE: tl.constexpr):
        """Apply an activation of `ACTIVATION_CODES`."""
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
        TOKENS, LENGTHS, TABLE, POSITION_TABLE, OUT, HISTORY, scale, inputs, capacity,
        POSITIONS: tl.constexpr, K: tl.constexpr,
    ):  # fmt: skip
        """Embed the next token of one sequence, add its position, and write the token into the history."""
        row, column = tl.program_id(0), tl.arange(0, K)
        in_row, token, position = column < inputs, tl.load(TOKENS + row), tl.load(LENGTHS + row)
        x = tl.load(TABLE + token * inputs + column, mask=in_row, other=0.0).to(tl.float32) * scale
        if POSITIONS:
            x += tl.load(POSITION_TABLE + position * inputs + column, mask=in_row, other=0.0).to(tl.float32)
        tl.store(OUT + row * inputs + column, x.to(OUT.dtype.element_ty), mask=in_row)
        tl.store(HISTORY + row * capacity + position, token)

    @triton.jit
    def _argmax_kernel(LOGITS, TOKENS, LENGTHS, HISTORY, classes, capacity, N: tl.constexpr):
        """Take the first of the highest logits of one sequence as its next token."""
        row, offsets = tl.program_id(0), tl.arange(0, N)
        best = tl.full([N], -float("inf"), tl.float32)
        index = tl.zeros([N], tl.int32)
        for start in range(0, classes, N):
            x = tl.load(LOGITS + row * classes + start + offsets, mask=start + offsets < classes, other=-float("inf"))
            index = tl.where(x > best, start + offsets, index)
            best = tl.maximum(best, x)
        highest = tl.max(best, 0)
        token = tl.min(tl.where(best == highest, index, classes), 0).to(tl.int64) % classes  # of NaN alone, token 0
        position = tl.load(LENGTHS + row) + 1
        tl.store(TOKENS + row, token)
        tl.store(HISTORY + row * capacity + position, token)
        tl.store(LENGTHS + row, position)

    @triton.jit
    def _normalise(x, NORM, SHIFT, column, in_row, inputs, epsilon, LAYER: tl.constexpr, SHIFTED: tl.constexpr):
        """Apply a norm to one row."""
        if LAYER:
            x = tl.where(in_row, x - tl.sum(x, 0) / inputs, 0.0)
        x = x * tl.rsqrt(tl.sum(x * x, 0) / inputs + epsilon)
        x = x * tl.load(NORM + column, mask=in_row, other=0.0).to(tl.float32)
        if SHIFTED:
            x += tl.load(SHIFT + column, mask=in_row, other=0.0).to(tl.float32)
        return x

    @triton.jit
    def _norm_kernel(X, OUT, NORM, SHIFT, epsilon, inputs, LAYER: tl.constexpr, SHIFTED: tl.constexpr, K: tl.constexpr):
        """Apply a norm to one row, in memory."""
        base, column = tl.program_id(0) * inputs, tl.arange(0, K)
        in_row = column < inputs
        x = tl.load(X + base + column, mask=in_row, other=0.0).to(tl.float32)
        x = _normalise(x, NORM, SHIFT, column, in_row, inputs, epsilon, LAYER, SHIFTED)
        tl.store(OUT + base + column, x.to(OUT.dtype.element_ty), mask=in_row)

    @triton.jit
    def _few_rows_kernel(
        X, W, BIAS, RESIDUAL, OUT, NORM, SHIFT, epsilon, rows, inputs, outputs,
        LAYER: tl.constexpr, NORMED: tl.constexpr, SHIFTED: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr,
        GATED: tl.constexpr, CODE: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    ):  # fmt: skip
        """Compute some columns of act(norm(X) Wᵀ + b) + R: a few rows of W are held while the rows of X pass."""
        columns, inner = tl.program_id(0) * N + tl.arange(0, N), tl.arange(0, K)
        in_row, in_outputs = inner < inputs, columns < outputs
        valid = in_outputs[:, None] & in_row[None, :]
        weights = W + columns[:, None].to(tl.int64) * inputs + inner[None, :]
        first = tl.load(weights, mask=valid, other=0.0)
        second = first
        if GATED:
            second = tl.load(weights + outputs.to(tl.int64) * inputs, mask=valid, other=0.0)
        for row in range(rows):
            x = tl.load(X + row * inputs + inner, mask=in_row, other=0.0).to(tl.float32)
            if NORMED:
                x = _normalise(x, NORM, SHIFT, inner, in_row, inputs, epsilon, LAYER, SHIFTED)
            total = tl.sum(first.to(tl.float32) * x[None, :], 1)
            if BIASED:
                total += tl.load(BIAS + columns, mask=in_outputs, other=0.0).to(tl.float32)
            total = _activate(total, CODE)
            if GATED:
                widened = tl.sum(second.to(tl.float32) * x[None, :], 1)
                if BIASED:
                    widened += tl.load(BIAS + outputs + columns, mask=in_outputs, other=0.0).to(tl.float32)
                total = total * widened
            if ADDED:
                total += tl.load(RESIDUAL + row * outputs + columns, mask=in_outputs, other=0.0).to(tl.float32)
            tl.store(OUT + row * outputs + columns, total.to(OUT.dtype.element_ty), mask=in_outputs)

    @triton.jit
    def _product_kernel(
        X, W, BIAS, RESIDUAL, OUT, rows, inputs, outputs,
        BIASED: tl.constexpr, ADDED: tl.constexpr, GATED: tl.constexpr, CODE: tl.constexpr, PRECISION: tl.constexpr,
        M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    ):  # fmt: skip
        """Compute some columns of act(X Wᵀ + b) + R, for all rows at once."""
        columns, row, inner = tl.program_id(0) * N + tl.arange(0, N), tl.arange(0, M), tl.arange(0, K)
        in_rows, in_outputs = row < rows, columns < outputs
        total = tl.zeros([M, N], tl.float32)
        widened = tl.zeros([M, N], tl.float32)
        for start in range(0, inputs, K):
            in_row = start + inner < inputs
            w_mask, x_mask = in_outputs[:, None] & in_row[None, :], in_rows[:, None] & in_row[None, :]
            x = tl.load(X + row[:, None] * inputs + start + inner[None, :], mask=x_mask, other=0.0)
            w_offset = columns[:, None].to(tl.int64) * inputs + start + inner[None, :]
            total = tl.dot(x, tl.trans(tl.load(W + w_offset, mask=w_mask, other=0.0)), total, input_precision=PRECISION)
            if GATED:
                w_offset += outputs.to(tl.int64) * inputs
                w = tl.load(W + w_offset, mask=w_mask, other=0.0)
                widened = tl.dot(x, tl.trans(w), widened, input_precision=PRECISION)
        if BIASED:
            total += tl.load(BIAS + columns, mask=in_outputs, other=0.0).to(tl.float32)[None, :]
            if GATED:
                widened += tl.load(BIAS + outputs + columns, mask=in_outputs, other=0.0).to(tl.float32)[None, :]
        total = _activate(total, CODE)
        if GATED:
            total = total * widened
        out_offset, out_mask = row[:, None] * outputs + columns[None, :], in_rows[:, None] & in_outputs[None, :]
        if ADDED:
            total += tl.load(RESIDUAL + out_offset, mask=out_mask, other=0.0).to(tl.float32)
        tl.store(OUT + out_offset, total.to(OUT.dtype.element_ty), mask=out_mask)

    @triton.jit
    def _load_vector(
        VECTORS, NORM, TABLE, PARTNER, base, position, epsilon, width, in_head,
        WIDTH: tl.constexpr, NORMED: tl.constexpr, ROTATED: tl.constexpr,
    ):  # fmt: skip
        """Load a query or key, normalised and rotated to its position."""
        x = tl.load(VECTORS + base + width, mask=in_head, other=0.0).to(tl.float32)
        scale = 1.0
        if NORMED:
            scale = tl.rsqrt(tl.sum(x * x, 0) / WIDTH + epsilon)
            x = x * scale * tl.load(NORM + width, mask=in_head, other=0.0).to(tl.float32)
        if ROTATED:
            partner = tl.load(PARTNER + width, mask=in_head, other=0)
            y = tl.load(VECTORS + base + partner, mask=in_head, other=0.0).to(tl.float32)
            if NORMED:
                y = y * scale * tl.load(NORM + partner, mask=in_head, other=0.0).to(tl.float32)
            angle = TABLE + position * (2 * WIDTH) + width
            x = x * tl.load(angle + WIDTH, mask=in_head, other=0.0) + y * tl.load(angle, mask=in_head, other=0.0)
        return x

    @triton.jit
    def _attend_kernel(
        QKV, KEYS, VALUES, LENGTHS, OUT, PARTS, Q_NORM, K_NORM, TABLE, PARTNER, SLOPES,
        k_b, k_h, k_t, v_b, v_h, v_t, scale2, epsilon, heads, kv_heads, window,
        WIDTH: tl.constexpr, D: tl.constexpr, N: tl.constexpr, SPLITS: tl.constexpr,
        NORMED: tl.constexpr, ROTATED: tl.constexpr, BIASED: tl.constexpr, WINDOWED: tl.constexpr,
    ):  # fmt: skip
        """Attend from one head of one sequence, to all cached keys or to one split of them."""
        b, h, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
        group = h // (heads // kv_heads)
        width = tl.arange(0, D)
        in_head = width < WIDTH
        position = tl.load(LENGTHS + b)
        base = b * (heads + 2 * kv_heads) * WIDTH
        q = _load_vector(
            QKV, Q_NORM, TABLE, PARTNER, base + h * WIDTH, position, epsilon, width, in_head, WIDTH, NORMED, ROTATED
        )
        q = q * scale2
        slope = tl.load(SLOPES + h).to(tl.float32) * 1.4426950408889634 if BIASED else 0.0
        k_base, v_base = KEYS + b * k_b + group * k_h, VALUES + b * v_b + group * v_h
        low = tl.maximum(position - window + 1, 0) if WINDOWED else position * 0
        split_size = tl.cdiv(position - low, SPLITS)
        low += split * split_size
        high = tl.minimum(low + split_size, position)
        # The new token itself belongs to the last split; the first head of each group stores it.
        k = _load_vector(
            QKV, K_NORM, TABLE, PARTNER, base + (heads + group) * WIDTH, position, epsilon, width, in_head, WIDTH,
            NORMED, ROTATED,
        ).to(KEYS.dtype.element_ty)  # fmt: skip
        v = tl.load(QKV + base + (heads + kv_heads + group) * WIDTH + width, mask=in_head, other=0.0)
        is_last = split == SPLITS - 1
        store_mask = in_head & is_last & (h % (heads // kv_heads) == 0)
        tl.store(k_base + position * k_t + width, k, mask=store_mask)
        tl.store(v_base + position * v_t + width, v.to(VALUES.dtype.element_ty), mask=store_mask)
        best = tl.where(is_last, tl.sum(q * k.to(tl.float32), 0), -1e30)
        total = tl.where(is_last, 1.0, 0.0)
        mixed = v.to(tl.float32) * total
        for start in range(low, high, N):
            columns = start + tl.arange(0, N)
            is_cached = columns < high
            kv_mask = is_cached[:, None] & in_head[None, :]
            keys = tl.load(k_base + columns[:, None] * k_t + width[None, :], mask=kv_mask, other=0.0)
            values = tl.load(v_base + columns[:, None] * v_t + width[None, :], mask=kv_mask, other=0.0)
            scores = tl.sum(keys.to(tl.float32) * q[None, :], 1)
            if BIASED:
                scores -= slope * (position - columns).to(tl.float32)
            scores = tl.where(is_cached, scores, -1e30)
            new_best = tl.maximum(best, tl.max(scores, 0))
            weights, fade = tl.where(is_cached, tl.exp2(scores - new_best), 0.0), tl.exp2(best - new_best)
            mixed = mixed * fade + tl.sum(weights[:, None] * values.to(tl.float32), 0)
            total, best = total * fade + tl.sum(weights, 0), new_best
        if SPLITS == 1:
            tl.store(OUT + (b * heads + h) * WIDTH + width, (mixed / total).to(OUT.dtype.element_ty), mask=in_head)
        else:
            partial = PARTS + ((b * heads + h) * SPLITS + split) * (D + 2)
            tl.store(partial + width, mixed)
            tl.store(partial + D, best)
            tl.store(partial + D + 1, total)

    @triton.jit
    def _join_kernel(PARTS, OUT, WIDTH: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr, S: tl.constexpr):
        """Join the partial results of one head."""
        head, width, split = tl.program_id(0).to(tl.int64), tl.arange(0, D), tl.arange(0, S)
        is_split = split < SPLITS
        partial = PARTS + (head * SPLITS + split) * (D + 2)
        best = tl.load(partial + D, mask=is_split, other=-1e30)
        fade = tl.where(is_split, tl.exp2(best - tl.max(best, 0)), 0.0)
        total = tl.sum(fade * tl.load(partial + D + 1, mask=is_split, other=0.0), 0)
        mixed = tl.load(partial[:, None] + width[None, :], mask=is_split[:, None], other=0.0)
        mixed = tl.sum(fade[:, None] * mixed, 0) / total
        tl.store(OUT + head * WIDTH + width, mixed.to(OUT.dtype.element_ty), mask=width < WIDTH)
