"""Output layer and cross-entropy in one operator for a GPU: the logits never exist all at once, nor in float32.

For a chunk of rows at a time, the logits are computed in bfloat16, and one pass over each row replaces them by their
gradient (softmax minus one-hot, over the number of rows), from which those of the vectors and of the matrix follow at
once. The backward pass only scales them.
"""

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lemma.kernels import support
from lemma.kernels.support import TRITON

ROWS_PER_CHUNK = 8192
MIN_CLASSES = 8192  # with fewer classes the operator is not faster
COLUMN_ALIGNMENT = 64  # columns: matrix products are slow where rows are not aligned


def output_loss(
    vectors: Float[Tensor, "rows width"], weight: Float[Tensor, "classes width"], targets: Int[Tensor, " rows"]
) -> Float[Tensor, ""]:
    """Return the mean cross-entropy in nats of the logits `weight`·x for vectors x, without storing all logits.

    For bfloat16, differentiable once.
    """
    operator = _output_loss if support.COST_RECORDER is None else _CostOnly.apply
    return operator(vectors.contiguous(), weight, targets)[0]


if TYPE_CHECKING or TRITON:
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as tl  # pyright: ignore[reportMissingImports]

    @triton.jit
    def _loss_kernel(LOGITS, TARGETS, LOSSES, classes, width, scale, N: tl.constexpr):
        """Compute the loss of one row, and replace its logits by their gradient."""
        row, offsets = tl.program_id(0).to(tl.int64), tl.arange(0, N)
        base, target = LOGITS + row * width, tl.load(TARGETS + row)
        target_logit = tl.load(base + target).to(tl.float32)
        best, total = target_logit, target_logit * 0.0
        for start in range(0, classes, N):
            mask = start + offsets < classes
            x = tl.load(base + start + offsets, mask=mask, other=-float("inf")).to(tl.float32)
            new_best = tl.maximum(best, tl.max(x, 0))
            total = total * tl.exp(best - new_best) + tl.sum(tl.exp(x - new_best), 0)
            best = new_best
        lse = best + tl.log(total)
        tl.store(LOSSES + row, lse - target_logit)
        for start in range(0, width, N):
            column = start + offsets
            x = tl.load(base + column, mask=column < classes, other=-float("inf")).to(tl.float32)
            gradient = (tl.exp(x - lse) - tl.where(column == target, 1.0, 0.0)) * scale
            tl.store(base + column, gradient.to(LOGITS.dtype.element_ty), mask=column < width)


@torch.library.custom_op("lemma::output_loss", mutates_args=())
def _output_loss(vectors: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean cross-entropy, and its gradients with respect to the vectors and to the weight."""
    classes, width = weight.shape
    rows, padded = len(vectors), -(-classes // COLUMN_ALIGNMENT) * COLUMN_ALIGNMENT
    matrix = torch.zeros(padded, width, dtype=vectors.dtype, device=weight.device)
    matrix[:classes] = weight
    losses = torch.empty(rows, dtype=torch.float32, device=vectors.device)
    vector_gradients, weight_gradient = torch.empty_like(vectors), None
    for start in range(0, rows, ROWS_PER_CHUNK):
        chunk = slice(start, start + ROWS_PER_CHUNK)
        logits = vectors[chunk] @ matrix.T
        _loss_kernel[(len(logits),)](  # pyright: ignore[reportIndexIssue]
            logits, targets[chunk], losses[chunk], classes, padded, 1 / rows, N=4096, num_warps=8
        )
        torch.mm(logits, matrix, out=vector_gradients[chunk])
        update = torch.mm(logits.T, vectors[chunk], out_dtype=torch.float32)
        weight_gradient = update if weight_gradient is None else weight_gradient.add_(update)
        del logits, update  # before the next ones are made
    assert weight_gradient is not None
    return losses.mean(), vector_gradients, weight_gradient[:classes].to(weight.dtype)


@_output_loss.register_fake
def _(vectors, weight, targets):
    """Return uninitialised outputs of the operator's shapes and dtypes, for tracing."""
    loss = vectors.new_empty((), dtype=torch.float32)
    return loss, torch.empty_like(vectors), torch.empty_like(weight)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Save in `ctx` the gradients that the forward pass has computed."""
    ctx.save_for_backward(output[1], output[2])


def _compute_gradients(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor, Tensor, None]:
    """Return the gradients of vectors and weight, scaled by the incoming gradient of the loss."""
    vectors, weight = ctx.saved_tensors
    return vectors * gradient.to(vectors.dtype), weight * gradient, None


_output_loss.register_autograd(_compute_gradients, setup_context=_save_for_backward)


class _CostOnly(torch.autograd.Function):
    """Stand-in for `_output_loss` while a CPU simulates a GPU: its memory, FLOPs and bytes, without its numbers."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return empty tensors of the operator's output shapes, with the same memory and FLOPs counted."""
        (classes, width), rows = weight.shape, len(vectors)
        padded = -(-classes // COLUMN_ALIGNMENT) * COLUMN_ALIGNMENT
        matrix, losses = vectors.new_empty(padded, width), vectors.new_empty(rows, dtype=torch.float32)
        vector_gradients = torch.empty_like(vectors)
        weight_gradient = weight.new_empty(padded, width, dtype=torch.float32)
        logits = vectors.new_empty(min(rows, ROWS_PER_CHUNK), padded)
        update = torch.empty_like(weight_gradient) if rows > ROWS_PER_CHUNK else weight_gradient
        if support.COST_RECORDER is not None:
            record, flops = support.COST_RECORDER, 2 * rows * classes * width  # padding columns are not counted
            chunks = -(-rows // ROWS_PER_CHUNK)
            logit_bytes = rows * padded * logits.element_size()
            record(0, weight.nbytes + matrix.nbytes)
            record(flops, vectors.nbytes + chunks * matrix.nbytes + logit_bytes)
            record(0, 3 * logit_bytes)
            record(flops, logit_bytes + chunks * matrix.nbytes + vector_gradients.nbytes)
            record(flops, logit_bytes + vectors.nbytes + chunks * weight_gradient.nbytes)
        del matrix, losses, logits, update
        weight_gradient = weight_gradient[:classes]
        ctx.save_for_backward(vector_gradients, weight_gradient)
        ctx.mark_non_differentiable(vector_gradients, weight_gradient)
        return vectors.new_zeros((), dtype=torch.float32), vector_gradients, weight_gradient

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the gradients of vectors and weight, scaled by the incoming gradient of the loss."""
        return _compute_gradients(ctx, gradient)
