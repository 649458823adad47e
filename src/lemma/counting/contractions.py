"""Matrix products that a module writes as multiplications and sums, recognized in the operators that run.

`(A * B).sum(-1)` multiplies and adds the same numbers as `torch.einsum("…i,…i->…", A, B)`, and the state of a linear
recurrence `S = a * S + k[:, None] * v[None]` is a sum of outer products. PyTorch's counter takes both as nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

SUMS = ("sum", "mean", "index_add", "scatter_add", "scatter_reduce", "index_reduce", "index_put", "segment_reduce")
ADDITIONS = ("add", "sub", "rsub", "cumsum")
COPIES = ("clone", "_to_copy", "copy", "cat", "stack", "constant_pad_nd", "flip", "roll", "repeat", "tril", "triu")
COPIES += ("index", "index_select", "gather", "_unsafe_view")
LINEAR = (*COPIES, "mul", "div", "neg", "masked_fill")  # multiplied by a number, a sum of products is still one


class StorageSet:
    """A set of tensors' storages: views of a tensor are in it, too. It keeps no storage alive."""

    def __init__(self, tensors: Iterable[Tensor] = ()) -> None:
        self._references: dict[int, StorageWeakRef] = {}  # while one exists, no other storage gets the same address
        for tensor in tensors:
            self.add(tensor)

    def __contains__(self, tensor: Tensor) -> bool:
        return storage_key(tensor) in self._references

    def add(self, tensor: Tensor) -> None:
        """Add the storage of a tensor; sparse tensors have none."""
        if tensor.layout is torch.strided:
            self._references[storage_key(tensor)] = StorageWeakRef(tensor.untyped_storage())

    def discard(self, tensor: Tensor) -> None:
        """Remove the storage of a tensor if it is in the set."""
        self._references.pop(storage_key(tensor), None)


def storage_key(tensor: Tensor) -> int:
    """Return a number that a tensor shares with its views only; 0 for sparse tensors."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else 0


class ConstantTracker:
    """Tells which tensors depend on neither the inputs nor the parameters of a module, such as tables of positions."""

    def __init__(self, buffers: Iterable[Tensor]) -> None:
        self._constants = StorageSet(buffers)

    def observe(self, func: Any, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> bool:
        """Return whether the results of an operator are constant, since all its arguments `tensors` are."""
        is_constant = all(tensor in self._constants for tensor in tensors)
        for tensor in results:
            if is_constant:
                self._constants.add(tensor)
            elif func._schema.is_mutable:
                self._constants.discard(tensor)
        return is_constant


@dataclass
class Multiplication:
    """An elementwise multiplication of two tensors, which may turn out to be part of a matrix product."""

    path: str  # of the module that multiplies
    flops: int
    node: int | None  # sequence number of its autograd node; None if no gradient is needed
    is_counted: bool = False


class ContractionFinder:
    """Finds the multiplications that are matrix products among the operators that it is shown, in their order.

    A multiplication of two tensors counts 2 FLOPs for each element of its result, forward and for each gradient, if its
    result is

    - summed over an axis, or added up by index; squares are left out, since they belong to norms;
    - an outer product (larger than both factors), perhaps multiplied by more, that is added to something;
    - added to such an outer product: the decay of a state that is a matrix.
    """

    def __init__(self) -> None:
        self._multiplications: dict[int, list[Multiplication]] = {}  # by the storage of what was made of their results
        self._results = StorageSet()
        self._outer = StorageSet()  # outer products, and what was made of them by multiplying and adding
        self._nodes: dict[int | None, int] = {}  # FLOPs of counted multiplications by the number of their autograd node

    def is_gradient(self, func: Any, node: Any, out: Any) -> bool:
        """Return whether an operator in the backward pass of `node` multiplies for the gradient of a counted one."""
        is_multiplication = func._overloadpacket is torch.ops.aten.mul
        return is_multiplication and self._nodes.get(node._sequence_nr()) == 2 * out.numel()

    def observe(self, func: Any, arguments: Sequence[Tensor], out: Any, path: str) -> Iterator[Multiplication]:
        """Yield the multiplications that count once this operator has run, each when it is recognized."""
        if not isinstance(out, Tensor) or not out.is_floating_point() or out.layout is not torch.strided:
            return
        name = func._overloadpacket.__name__
        operator = name.removesuffix("_")
        tensors = [tensor for tensor in arguments if tensor.numel() > 1]
        made_of = [self._multiplications[storage_key(tensor)] for tensor in tensors if tensor in self._results]
        operands = [multiplication for multiplications in made_of for multiplication in multiplications]
        is_outer = any(tensor in self._outer for tensor in tensors)
        result: list[Multiplication] = []
        if operator in ("mul", "addcmul") and len(tensors) > 1:
            left, right = tensors[-2:]
            size = torch.broadcast_shapes(left.shape, right.shape).numel()
            is_outer = is_outer or size > max(left.numel(), right.numel())
            multiplication = Multiplication(path, 2 * size, _node_number(tensors))
            if operator == "addcmul":  # it also adds
                yield from self._count([multiplication, *operands] if is_outer else [])
            elif left is not right:
                result = [multiplication]
        elif operator in SUMS:
            yield from self._count(operands)
        elif operator in ADDITIONS:
            yield from self._count(operands if is_outer else [])
        elif operator in LINEAR:
            result = operands
        if result:
            self._multiplications[storage_key(out)] = result
            self._results.add(out)
        elif name.endswith("_"):
            self._results.discard(out)
        if is_outer and operator in ("addcmul", *ADDITIONS, *LINEAR):
            self._outer.add(out)

    def _count(self, multiplications: Sequence[Multiplication]) -> Iterator[Multiplication]:
        """Yield those that are not counted yet, and remember their autograd nodes."""
        for multiplication in multiplications:
            if not multiplication.is_counted:
                multiplication.is_counted = True
                self._nodes[multiplication.node] = multiplication.flops
                yield multiplication


def _node_number(tensors: Sequence[Tensor]) -> int | None:
    """Return the number of the autograd node of the operator that runs, the last one made; None if it has none."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return torch.autograd._get_sequence_nr() - 1  # pyright: ignore[reportPrivateImportUsage]
    return None
