"""The output layer and the cross-entropy in one operator for a GPU: logits never exist all at once, nor in float32.

A piece of rows at a time, the logits are computed in bfloat16, and one pass over each row turns them, in place, into
their own gradient (softmax minus one-hot, over the number of rows), from which those of the vectors and of the matrix
follow at once. The backward pass has nothing left to do but to scale them.
"""

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lemma.layers import fused
from lemma.layers.fused import TRITON

ROWS_PER_CHUNK = 8192
MIN_CLASSES = 8192  # from which on it is worth it
COLUMN_ALIGNMENT = 64  # columns: matrix products are slow where rows begin at odd places

if TYPE_CHECKING or TRITON:
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as tl  # pyright: ignore[reportMissingImports]

    @triton.jit
    def _loss_kernel(LOGITS, TARGETS, LOSSES, classes, width, share, N: tl.constexpr):
        """One row: its loss, and its gradient in place of its logits."""
        row, part = tl.program_id(0).to(tl.int64), tl.arange(0, N)
        begin, target = LOGITS + row * width, tl.load(TARGETS + row)
        wanted = tl.load(begin + target).to(tl.float32)
        best, total = wanted, wanted * 0.0
        for start in range(0, classes, N):
            here = start + part < classes
            x = tl.load(begin + start + part, mask=here, other=-float("inf")).to(tl.float32)
            highest = tl.maximum(best, tl.max(x, 0))
            total = total * tl.exp(best - highest) + tl.sum(tl.exp(x - highest), 0)
            best = highest
        lse = best + tl.log(total)
        tl.store(LOSSES + row, lse - wanted)
        for start in range(0, width, N):
            place = start + part
            x = tl.load(begin + place, mask=place < classes, other=-float("inf")).to(tl.float32)
            slope = (tl.exp(x - lse) - tl.where(place == target, 1.0, 0.0)) * share
            tl.store(begin + place, slope.to(LOGITS.dtype.element_ty), mask=place < width)


@torch.library.custom_op("lemma::output_loss", mutates_args=())
def _output_loss(vectors: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    classes, width = weight.shape
    rows, padded = len(vectors), -(-classes // COLUMN_ALIGNMENT) * COLUMN_ALIGNMENT
    matrix = torch.zeros(padded, width, dtype=vectors.dtype, device=weight.device)
    matrix[:classes] = weight
    losses = torch.empty(rows, dtype=torch.float32, device=vectors.device)
    slopes, total = torch.empty_like(vectors), None
    for start in range(0, rows, ROWS_PER_CHUNK):
        piece = slice(start, start + ROWS_PER_CHUNK)
        logits = vectors[piece] @ matrix.T
        _loss_kernel[(len(logits),)](  # pyright: ignore[reportIndexIssue]
            logits, targets[piece], losses[piece], classes, padded, 1 / rows, N=4096, num_warps=8
        )
        torch.mm(logits, matrix, out=slopes[piece])
        found = torch.mm(logits.T, vectors[piece], out_dtype=torch.float32)
        total = found if total is None else total.add_(found)
        del logits, found  # before the next ones are made
    assert total is not None
    return losses.mean(), slopes, total[:classes].to(weight.dtype)


@_output_loss.register_fake
def _(vectors, weight, targets):
    loss = vectors.new_empty((), dtype=torch.float32)
    return loss, torch.empty_like(vectors), torch.empty_like(weight)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(output[1], output[2])


def _compute_gradients(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor, Tensor, None]:
    vectors, weight = ctx.saved_tensors
    return vectors * gradient.to(vectors.dtype), weight * gradient, None


_output_loss.register_autograd(_compute_gradients, setup_context=_save_for_backward)


def output_loss(
    vectors: Float[Tensor, "rows width"], weight: Float[Tensor, "classes width"], targets: Int[Tensor, " rows"]
) -> Float[Tensor, ""]:
    """The mean cross-entropy of the classes W x, of vectors in bfloat16; differentiable once."""
    operator = _CostOnly.apply if fused.COST_RECORDER else _output_loss
    return operator(vectors.contiguous(), weight, targets)[0]


class _CostOnly(torch.autograd.Function):
    """Memory, FLOPs and bytes of the operator, without its numbers, where a CPU stands in for a GPU."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (classes, width), rows = weight.shape, len(vectors)
        padded = -(-classes // COLUMN_ALIGNMENT) * COLUMN_ALIGNMENT
        kept = [vectors.new_empty(padded, width), vectors.new_empty(rows, dtype=torch.float32)]
        slopes, total = torch.empty_like(vectors), weight.new_empty(padded, width, dtype=torch.float32)
        logits = vectors.new_empty(min(rows, ROWS_PER_CHUNK), padded)
        found = torch.empty_like(total) if rows > ROWS_PER_CHUNK else total
        if fused.COST_RECORDER is not None:
            record, product = fused.COST_RECORDER, 2 * rows * classes * width  # columns of padding are not counted
            pieces = -(-rows // ROWS_PER_CHUNK)
            passed = rows * padded * logits.element_size()  # bytes of all logits
            record(0, weight.nbytes + kept[0].nbytes)
            record(product, vectors.nbytes + pieces * kept[0].nbytes + passed)
            record(0, 3 * passed)
            record(product, passed + pieces * kept[0].nbytes + slopes.nbytes)
            record(product, passed + vectors.nbytes + pieces * total.nbytes)
        del kept, logits, found
        total = total[:classes]
        ctx.save_for_backward(slopes, total)
        ctx.mark_non_differentiable(slopes, total)
        return vectors.new_zeros((), dtype=torch.float32), slopes, total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return *_compute_gradients(ctx, gradient)[:2], None
