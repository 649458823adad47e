"""Attention with the entropy and the expected squared distance of every row, in one Triton kernel (problems B2, B3).

For scores s_ij = scale · q_i·k_j − slope · |i − j| and weights p = softmax(s), the forward pass of FlashAttention
(Dao 2023) keeps two more accumulators per row: Σ p s, which with the log-sum-exp gives the entropy
H_i = lse_i − Σ_j p_ij s_ij, and Δ_i = Σ_j p_ij (i − j)². Their gradients need no matrix product of their own:

    dS_ij = p_ij [dP_ij − g_H log p_ij + g_Δ (i − j)² − (dO_i·O_i + g_H H_i + g_Δ Δ_i)],   log p_ij = s_ij − lse_i.

The kernels are custom operators, so that `torch.compile` takes them into its graph. Triton comes with PyTorch for CUDA;
where it is missing, and for attention that the kernels do not cover, `layers/penalties.py` computes the same in blocks
of rows.
"""

import math
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lemma.kernels.support import TRITON

RowStatistics = Float[Tensor, "batch heads time"]


def attend_with_row_statistics(
    queries: Float[Tensor, "batch heads time width"],
    keys: Float[Tensor, "batch groups time width"],
    values: Float[Tensor, "batch groups time width"],
    scale: float,
    causal: bool = True,
    slopes: Float[Tensor, " heads"] | None = None,
    lengths: Int[Tensor, " batch"] | None = None,
) -> tuple[Float[Tensor, "batch heads time width"], RowStatistics, RowStatistics]:
    """Return the attention output, and each row's entropy in nats and expected squared distance, all differentiable.

    Args:
        scale: factor of q·k.
        slopes: slope of each head's ALiBi bias, if any.
        lengths: number of visible keys of each sequence, from the first; all if None.
    """
    mixed, _, entropy, distance = _forward(queries, keys, values, scale, causal, slopes, lengths)
    return mixed, entropy, distance


if TYPE_CHECKING or TRITON:
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as tl  # pyright: ignore[reportMissingImports]

    @triton.jit
    def _block_and_row(time, SIZE: tl.constexpr):
        """Return the indices of the block and of the (sequence, head): one axis, since a second has only 16 bits."""
        blocks = tl.cdiv(time, SIZE)
        return tl.program_id(0) % blocks, tl.program_id(0) // blocks

    @triton.jit
    def _scores(q, k, rows, columns, slope, scale2, BIASED: tl.constexpr, PRECISION: tl.constexpr):
        """Return scores in units of log 2, and i − j."""
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale2
        distance = rows[:, None] - columns[None, :]
        if BIASED:
            scores -= slope * tl.abs(distance)
        return scores, distance

    @triton.jit
    def _forward_kernel(
        Q, K, V, OUT, LSE, ENTROPY, DISTANCE, SLOPES, LENGTHS,
        q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t,
        scale2, heads, group, time,
        WIDTH: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
        CAUSAL: tl.constexpr, BIASED: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        block, row = _block_and_row(time, M)
        b, h = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
        rows, width = block * M + tl.arange(0, M), tl.arange(0, D)
        in_head = width < WIDTH
        q = tl.load(
            Q + b * q_b + h * q_h + rows[:, None] * q_t + width[None, :],
            mask=(rows[:, None] < time) & in_head[None, :], other=0.0,
        )  # fmt: skip
        k_base, v_base = K + b * k_b + (h // group) * k_h, V + b * v_b + (h // group) * v_h
        slope = tl.load(SLOPES + h) * 1.4426950408889634 if BIASED else 0.0
        num_keys = tl.load(LENGTHS + b) if PADDED else time
        positions = rows.to(tl.float32)
        best = tl.full([M], -1e30, tl.float32)
        total = tl.zeros([M], tl.float32)
        logs = tl.zeros([M], tl.float32)
        squares = tl.zeros([M], tl.float32)
        mixed = tl.zeros([M, D], tl.float32)
        end = tl.minimum((block + 1) * M, num_keys) if CAUSAL else num_keys
        unmasked_end = tl.minimum(block * M, num_keys) // N * N if CAUSAL else num_keys // N * N
        for start in range(0, unmasked_end, N):  # blocks without a mask
            columns = start + tl.arange(0, N)
            k = tl.load(k_base + columns[:, None] * k_t + width[None, :], mask=in_head[None, :], other=0.0)
            scores, distance = _scores(q, k, positions, columns.to(tl.float32), slope, scale2, BIASED, PRECISION)
            new_best = tl.maximum(best, tl.max(scores, 1))
            scores -= new_best[:, None]
            weights = tl.exp2(scores)
            fade = tl.exp2(best - new_best)
            logs = fade * (logs + (best - new_best) * total) + tl.sum(weights * scores, 1)
            squares = fade * squares + tl.sum(weights * (distance * distance), 1)
            total = fade * total + tl.sum(weights, 1)
            v = tl.load(v_base + columns[:, None] * v_t + width[None, :], mask=in_head[None, :], other=0.0)
            mixed = tl.dot(weights.to(v.dtype), v, mixed * fade[:, None], input_precision=PRECISION)
            best = new_best
        for start in range(unmasked_end, end, N):
            columns = start + tl.arange(0, N)
            kv_mask = (columns[:, None] < num_keys) & in_head[None, :]
            k = tl.load(k_base + columns[:, None] * k_t + width[None, :], mask=kv_mask, other=0.0)
            scores, distance = _scores(q, k, positions, columns.to(tl.float32), slope, scale2, BIASED, PRECISION)
            allowed = columns[None, :] < num_keys
            if CAUSAL:
                allowed = allowed & (rows[:, None] >= columns[None, :])
            new_best = tl.maximum(best, tl.max(tl.where(allowed, scores, -1e30), 1))
            scores = tl.where(allowed, scores - new_best[:, None], 0.0)
            weights = tl.where(allowed, tl.exp2(scores), 0.0)
            fade = tl.exp2(best - new_best)
            logs = fade * (logs + (best - new_best) * total) + tl.sum(weights * scores, 1)
            squares = fade * squares + tl.sum(weights * (distance * distance), 1)
            total = fade * total + tl.sum(weights, 1)
            v = tl.load(v_base + columns[:, None] * v_t + width[None, :], mask=kv_mask, other=0.0)
            mixed = tl.dot(weights.to(v.dtype), v, mixed * fade[:, None], input_precision=PRECISION)
            best = new_best
        in_rows, has_keys = rows < time, total > 0
        total = tl.where(has_keys, total, 1.0)
        offset = row.to(tl.int64) * time + rows
        tl.store(LSE + offset, tl.where(has_keys, best + tl.log2(total), 0.0), mask=in_rows)
        tl.store(ENTROPY + offset, (tl.log2(total) - logs / total) * 0.6931471805599453, mask=in_rows)
        tl.store(DISTANCE + offset, squares / total, mask=in_rows)
        tl.store(
            OUT + b * o_b + h * o_h + rows[:, None] * o_t + width[None, :],
            (mixed / total[:, None]).to(OUT.dtype.element_ty), mask=in_rows[:, None] & in_head[None, :],
        )  # fmt: skip

    @triton.jit
    def _sums_kernel(
        OUT, D_OUT, ENTROPY, DISTANCE, G_ENTROPY, G_DISTANCE, SUMS,
        o_b, o_h, o_t, d_b, d_h, d_t, heads, time,
        WIDTH: tl.constexpr, D: tl.constexpr, M: tl.constexpr,
    ):  # fmt: skip
        """Compute dO·O + g_H H + g_Δ Δ of each row."""
        block, row = _block_and_row(time, M)
        b, h = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
        rows, width = block * M + tl.arange(0, M), tl.arange(0, D)
        in_rows = rows < time
        mask = in_rows[:, None] & (width < WIDTH)[None, :]
        out = tl.load(OUT + b * o_b + h * o_h + rows[:, None] * o_t + width[None, :], mask=mask, other=0.0)
        d_out = tl.load(D_OUT + b * d_b + h * d_h + rows[:, None] * d_t + width[None, :], mask=mask, other=0.0)
        offset = row.to(tl.int64) * time + rows
        sums = tl.sum(out.to(tl.float32) * d_out.to(tl.float32), 1)
        g_entropy = tl.load(G_ENTROPY + offset, mask=in_rows, other=0.0)
        g_distance = tl.load(G_DISTANCE + offset, mask=in_rows, other=0.0)
        sums += g_entropy * tl.load(ENTROPY + offset, mask=in_rows, other=0.0)
        sums += g_distance * tl.load(DISTANCE + offset, mask=in_rows, other=0.0)
        tl.store(SUMS + offset, sums, mask=in_rows)

    @triton.jit
    def _score_gradients(
        q, k, v, d_out, lse, sums, g_entropy, g_distance, rows, columns, num_keys, time, slope, scale2,
        CAUSAL: tl.constexpr, BIASED: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        """Return the weights and the gradient of the scores of one block."""
        scores, distance = _scores(q, k, rows.to(tl.float32), columns.to(tl.float32), slope, scale2, BIASED, PRECISION)
        scores -= lse[:, None]
        if MASKED:
            allowed = (columns[None, :] < num_keys) & (rows[:, None] < time)
            if CAUSAL:
                allowed = allowed & (rows[:, None] >= columns[None, :])
            scores = tl.where(allowed, scores, 0.0)
            weights = tl.where(allowed, tl.exp2(scores), 0.0)
        else:
            weights = tl.exp2(scores)
        d_scores = tl.dot(d_out, tl.trans(v), input_precision=PRECISION) - sums[:, None]
        d_scores += g_distance[:, None] * (distance * distance) - (g_entropy * 0.6931471805599453)[:, None] * scores
        return weights, weights * d_scores

    @triton.jit
    def _keys_kernel(
        Q, K, V, D_OUT, D_K, D_V, LSE, SUMS, G_ENTROPY, G_DISTANCE, SLOPES, LENGTHS,
        q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, d_b, d_h, d_t,
        scale, scale2, heads, group, time,
        WIDTH: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
        CAUSAL: tl.constexpr, BIASED: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        """Compute the gradients of a block of keys and values, for one query head."""
        block, row = _block_and_row(time, N)
        b, h = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
        columns, width = block * N + tl.arange(0, N), tl.arange(0, D)
        in_head, in_columns = width < WIDTH, (columns < time)
        mask = in_columns[:, None] & in_head[None, :]
        k = tl.load(K + b * k_b + (h // group) * k_h + columns[:, None] * k_t + width[None, :], mask=mask, other=0.0)
        v = tl.load(V + b * v_b + (h // group) * v_h + columns[:, None] * v_t + width[None, :], mask=mask, other=0.0)
        slope = tl.load(SLOPES + h) * 1.4426950408889634 if BIASED else 0.0
        num_keys = tl.load(LENGTHS + b) if PADDED else time
        d_k, d_v = tl.zeros([N, D], tl.float32), tl.zeros([N, D], tl.float32)
        q_base, d_base, base = Q + b * q_b + h * q_h, D_OUT + b * d_b + h * d_h, row.to(tl.int64) * time
        first_row = (block * N) // M * M if CAUSAL else 0
        # Rows at or after `unmasked_start` need no mask, up to the last full block.
        unmasked_start = tl.cdiv((block + 1) * N, M) * M if CAUSAL else 0
        unmasked_start = tl.where((block + 1) * N <= num_keys, tl.minimum(unmasked_start, time // M * M), time // M * M)
        for phase in tl.static_range(3):
            if phase == 0:
                low, high = first_row, tl.maximum(tl.minimum(unmasked_start, time // M * M), first_row)
            elif phase == 1:
                low, high = tl.maximum(unmasked_start, first_row), time // M * M
            else:
                low, high = tl.maximum(time // M * M, first_row), time
            for start in range(low, high, M):
                rows = start + tl.arange(0, M)
                in_rows = rows < time
                q_mask = in_rows[:, None] & in_head[None, :]
                q = tl.load(q_base + rows[:, None] * q_t + width[None, :], mask=q_mask, other=0.0)
                d_out = tl.load(d_base + rows[:, None] * d_t + width[None, :], mask=q_mask, other=0.0)
                lse = tl.load(LSE + base + rows, mask=in_rows, other=0.0)
                sums = tl.load(SUMS + base + rows, mask=in_rows, other=0.0)
                g_entropy = tl.load(G_ENTROPY + base + rows, mask=in_rows, other=0.0)
                g_distance = tl.load(G_DISTANCE + base + rows, mask=in_rows, other=0.0)
                weights, d_scores = _score_gradients(
                    q, k, v, d_out, lse, sums, g_entropy, g_distance, rows, columns, num_keys, time, slope, scale2,
                    CAUSAL, BIASED, phase != 1, PRECISION,
                )  # fmt: skip
                d_v = tl.dot(tl.trans(weights.to(q.dtype)), d_out, d_v, input_precision=PRECISION)
                d_k = tl.dot(tl.trans(d_scores.to(q.dtype)), q, d_k, input_precision=PRECISION)
        offset = (base + columns)[:, None] * WIDTH + width[None, :]
        tl.store(D_K + offset, (d_k * scale).to(D_K.dtype.element_ty), mask=mask)
        tl.store(D_V + offset, d_v.to(D_V.dtype.element_ty), mask=mask)

    @triton.jit
    def _queries_kernel(
        Q, K, V, D_OUT, D_Q, LSE, SUMS, G_ENTROPY, G_DISTANCE, SLOPES, LENGTHS,
        q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, d_b, d_h, d_t,
        scale, scale2, heads, group, time,
        WIDTH: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
        CAUSAL: tl.constexpr, BIASED: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        """Compute the gradients of a block of queries."""
        block, row = _block_and_row(time, M)
        b, h = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
        rows, width = block * M + tl.arange(0, M), tl.arange(0, D)
        in_head, in_rows = width < WIDTH, rows < time
        mask = in_rows[:, None] & in_head[None, :]
        q = tl.load(Q + b * q_b + h * q_h + rows[:, None] * q_t + width[None, :], mask=mask, other=0.0)
        d_out = tl.load(D_OUT + b * d_b + h * d_h + rows[:, None] * d_t + width[None, :], mask=mask, other=0.0)
        offset = row.to(tl.int64) * time + rows
        lse = tl.load(LSE + offset, mask=in_rows, other=0.0)
        sums = tl.load(SUMS + offset, mask=in_rows, other=0.0)
        g_entropy = tl.load(G_ENTROPY + offset, mask=in_rows, other=0.0)
        g_distance = tl.load(G_DISTANCE + offset, mask=in_rows, other=0.0)
        slope = tl.load(SLOPES + h) * 1.4426950408889634 if BIASED else 0.0
        num_keys = tl.load(LENGTHS + b) if PADDED else time
        k_base, v_base = K + b * k_b + (h // group) * k_h, V + b * v_b + (h // group) * v_h
        d_q = tl.zeros([M, D], tl.float32)
        end = tl.minimum((block + 1) * M, num_keys) if CAUSAL else num_keys
        unmasked_end = tl.minimum(block * M, num_keys) // N * N if CAUSAL else num_keys // N * N
        unmasked_end = tl.where((block + 1) * M <= time, unmasked_end, 0)
        for phase in tl.static_range(2):
            low = 0 if phase == 0 else unmasked_end
            high = unmasked_end if phase == 0 else end
            for start in range(low, high, N):
                columns = start + tl.arange(0, N)
                kv_mask = (columns[:, None] < num_keys) & in_head[None, :]
                k = tl.load(k_base + columns[:, None] * k_t + width[None, :], mask=kv_mask, other=0.0)
                v = tl.load(v_base + columns[:, None] * v_t + width[None, :], mask=kv_mask, other=0.0)
                _, d_scores = _score_gradients(
                    q, k, v, d_out, lse, sums, g_entropy, g_distance, rows, columns, num_keys, time, slope, scale2,
                    CAUSAL, BIASED, phase == 1, PRECISION,
                )  # fmt: skip
                d_q = tl.dot(d_scores.to(k.dtype), k, d_q, input_precision=PRECISION)
        out_offset = offset[:, None] * WIDTH + width[None, :]
        tl.store(D_Q + out_offset, (d_q * scale).to(D_Q.dtype.element_ty), mask=mask)


TILES = {
    "forward": {64: (64, 64, 4, 3), 128: (64, 64, 4, 3), 0: (64, 32, 4, 2)},
    "keys": {64: (64, 64, 4, 1), 128: (64, 64, 8, 2), 0: (32, 32, 4, 2)},
    "queries": {64: (64, 64, 4, 3), 128: (64, 64, 8, 2), 0: (32, 32, 4, 2)},
}
"""Rows, columns, warps and stages of each kernel, by the largest width of a head; 0 is float32. Measured on an H200."""


def _launch_settings(kernel: str, queries: Tensor) -> tuple[int, int, int, int]:
    """Return block sizes (queries, keys), warps and pipeline stages of a kernel, by dtype and width of the queries."""
    return TILES[kernel][0 if queries.dtype == torch.float32 else 64 if queries.shape[-1] <= 64 else 128]


def _kernel_options(queries: Tensor, causal: bool, slopes: Tensor | None, lengths: Tensor | None) -> dict[str, Any]:
    """Return the compile-time constants of the Triton kernels by name."""
    width = queries.shape[-1]
    return {
        "WIDTH": width,
        "D": max(16, 1 << (width - 1).bit_length()),
        "CAUSAL": causal,
        "BIASED": slopes is not None,
        "PADDED": lengths is not None,
        "PRECISION": "ieee" if queries.dtype == torch.float32 else "tf32",
    }


def _make_readable(tensor: Tensor) -> Tensor:
    """Return the tensor if the kernels can read it (contiguous last axis, 32-bit offsets), else a contiguous copy."""
    fits = tensor.stride(-1) == 1 and tensor.shape[2] * tensor.stride(2) < 2**31
    return tensor if fits else tensor.contiguous()


def _empty_output(queries: Tensor) -> Tensor:
    """Return an uninitialised attention output; in memory it is (batch, time, heads, width) if offsets fit 32 bits."""
    batch, heads, time, width = queries.shape
    if heads * time * width < 2**31:
        return queries.new_empty(batch, time, heads, width).transpose(1, 2)
    return queries.new_empty(batch, heads, time, width)


def _strides(*tensors: Tensor) -> list[int]:
    """Return the first three strides of each tensor, in one list."""
    return [stride for tensor in tensors for stride in tensor.stride()[:3]]


@torch.library.custom_op("lemma::attend_with_row_statistics", mutates_args=())
def _forward(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    causal: bool,
    slopes: Tensor | None,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the attention output, and each row's log-sum-exp, entropy and expected squared distance."""
    queries, keys, values = map(_make_readable, (queries, keys, values))
    batch, heads, time, _ = queries.shape
    mixed = _empty_output(queries)
    lse, entropy, distance = (queries.new_empty(batch, heads, time, dtype=torch.float32) for _ in range(3))
    M, N, warps, stages = _launch_settings("forward", queries)
    _forward_kernel[(triton.cdiv(time, M) * batch * heads,)](  # pyright: ignore[reportIndexIssue]
        queries, keys, values, mixed, lse, entropy, distance, slopes, lengths,
        *_strides(queries, keys, values, mixed), scale / math.log(2), heads, heads // keys.shape[1], time,
        M=M, N=N, num_warps=warps, num_stages=stages,
        **_kernel_options(queries, causal, slopes, lengths),
    )  # fmt: skip
    return mixed, lse, entropy, distance


@_forward.register_fake
def _(queries, keys, values, scale, causal, slopes, lengths):
    """Return uninitialised outputs of the operator's shapes and dtypes, for tracing."""
    return _empty_output(queries), *(queries.new_empty(queries.shape[:3], dtype=torch.float32) for _ in range(3))


@torch.library.custom_op("lemma::attend_with_row_statistics_backward", mutates_args=())
def _backward(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mixed: Tensor,
    lse: Tensor,
    entropy: Tensor,
    distance: Tensor,
    d_mixed: Tensor,
    d_entropy: Tensor,
    d_distance: Tensor,
    scale: float,
    causal: bool,
    slopes: Tensor | None,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values, from `d_…`, those of the output (`mixed`) and statistics."""
    queries, keys, values, d_mixed = map(_make_readable, (queries, keys, values, d_mixed))
    batch, heads, time, width = queries.shape
    groups, options = keys.shape[1], _kernel_options(queries, causal, slopes, lengths)
    d_entropy, d_distance = d_entropy.contiguous(), d_distance.contiguous()
    sums = torch.empty_like(entropy)
    grid = (triton.cdiv(time, 64) * batch * heads,)
    _sums_kernel[grid](  # pyright: ignore[reportIndexIssue]
        mixed, d_mixed, entropy, distance, d_entropy, d_distance, sums,
        *_strides(mixed, d_mixed), heads, time, WIDTH=width, D=options["D"], M=64,
    )  # fmt: skip
    d_queries = torch.empty(batch, heads, time, width, dtype=queries.dtype, device=queries.device)
    d_keys, d_values = torch.empty_like(d_queries), torch.empty_like(d_queries)
    shared = (*_strides(queries, keys, values, d_mixed), scale, scale / math.log(2), heads, heads // groups, time)
    rows = (lse, sums, d_entropy, d_distance, slopes, lengths)
    M, N, warps, stages = _launch_settings("keys", queries)
    _keys_kernel[(triton.cdiv(time, N) * batch * heads,)](  # pyright: ignore[reportIndexIssue]
        queries, keys, values, d_mixed, d_keys, d_values, *rows, *shared, M=M, N=N, **options,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    M, N, warps, stages = _launch_settings("queries", queries)
    _queries_kernel[(triton.cdiv(time, M) * batch * heads,)](  # pyright: ignore[reportIndexIssue]
        queries, keys, values, d_mixed, d_queries, *rows, *shared, M=M, N=N, **options,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    if groups != heads:
        d_keys, d_values = (t.unflatten(1, (groups, -1)).sum(2) for t in (d_keys, d_values))
    return d_queries, d_keys, d_values


@_backward.register_fake
def _(queries, keys, values, *others):
    """Return uninitialised gradients of the operator's shapes and dtypes, for tracing."""
    return tuple(torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (queries, keys, values))


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Save in `ctx` the inputs and outputs of the forward pass."""
    queries, keys, values, ctx.scale, ctx.causal, slopes, lengths = inputs
    ctx.save_for_backward(queries, keys, values, *output, slopes, lengths)


def _compute_gradients(
    ctx: Any, d_mixed: Tensor, _: Any, d_entropy: Tensor, d_distance: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients of queries, keys and values from those of output, entropy and distance."""
    *saved, slopes, lengths = ctx.saved_tensors
    gradients = _backward(*saved, d_mixed, d_entropy, d_distance, ctx.scale, ctx.causal, slopes, lengths)
    return *gradients, None, None, None, None


_forward.register_autograd(_compute_gradients, setup_context=_save_for_backward)
