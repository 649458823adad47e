"""Sparse matrices whose product with a dense one has a gradient, and of which only the entries are stored."""

import warnings
from dataclasses import dataclass
from typing import Any, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

SMALL = 2**31
"""Below it places are stored in 32 bits, which is what the kernels of a CPU read without copying."""


class _Product(torch.autograd.Function):
    """A sparse matrix times a dense one; what goes back is multiplied by the transposed."""

    @staticmethod
    def forward(ctx: Any, matrix: "Sparse", dense: Tensor) -> Tensor:
        ctx.matrix, ctx.dtype = matrix, dense.dtype
        return _multiplied(matrix.rows, dense)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[None, Tensor]:
        return None, _multiplied(ctx.matrix.transposed_rows, gradients[0]).to(ctx.dtype)


def _multiplied(rows: Tensor, dense: Tensor) -> Tensor:
    """The product in the precision of the matrix: autocast knows no sparse ones."""
    with torch.autocast(dense.device.type, enabled=False):
        return rows @ dense.to(rows.dtype)


@dataclass(frozen=True)
class Sparse:
    """A matrix in compressed rows, beside the places of its transposed; `sparse @ dense` has a gradient."""

    shape: tuple[int, int]
    starts: Int[Tensor, "rows_and_one"]
    columns: Int[Tensor, "entries"]
    values: Float[Tensor, "entries"]
    """The entries, row after row."""
    transposed_starts: Int[Tensor, "columns_and_one"]
    transposed_columns: Int[Tensor, "entries"]
    order: Int[Tensor, "entries"] | None
    """Where the entries of the transposed stand among the values; None where the matrix is symmetric."""

    @property
    def rows(self) -> Tensor:
        """The matrix as torch's sparse rows."""
        return compressed(self.starts, self.columns, self.values, self.shape)

    @property
    def transposed_rows(self) -> Tensor:
        """Its transposed, likewise."""
        if self.order is None:
            return self.rows
        values = self.values[self.order]
        return compressed(self.transposed_starts, self.transposed_columns, values, self.shape[::-1])

    def __matmul__(self, dense: Float[Tensor, "columns width"]) -> Float[Tensor, "rows width"]:
        return _Product.apply(self, dense)  # pyright: ignore[reportReturnType]

    def to_dense(self) -> Float[Tensor, "rows columns"]:
        """The whole matrix, for a small one."""
        return self.rows.to_dense()

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Self:
        """The same elsewhere, or in other precision."""
        places = (self.starts, self.columns, self.transposed_starts, self.transposed_columns)
        starts, columns, back_starts, back_columns = (tensor.to(device) for tensor in places)
        order = None if self.order is None else self.order.to(device)
        values = self.values.to(device, dtype or self.values.dtype)
        return type(self)(self.shape, starts, columns, values, back_starts, back_columns, order)

    def with_values(self, values: Float[Tensor, "entries"]) -> Self:
        """The same places with other entries; those of a symmetric matrix must be so too."""
        places = (self.transposed_starts, self.transposed_columns, self.order)
        return type(self)(self.shape, self.starts, self.columns, values, *places)

    @classmethod
    def of(
        cls,
        places: Int[Tensor, "two entries"],
        values: Float[Tensor, "entries"],
        shape: tuple[int, int],
        symmetric: bool = False,
    ) -> Self:
        """A matrix by the row and column of every entry, in the order of the rows.

        >>> Sparse.of(torch.tensor([[0, 1], [1, 0]]), torch.tensor([2.0, 3.0]), (2, 2)).to_dense().tolist()
        [[0.0, 2.0], [3.0, 0.0]]
        """
        kind = torch.int32 if max(*shape, places.shape[1]) < SMALL else torch.int64
        starts, columns = _starts(places[0], shape[0], kind), places[1].to(kind)
        if symmetric:
            return cls(shape, starts, columns, values, starts, columns, None)
        order = places[1].argsort(stable=True)
        back = _starts(places[1], shape[1], kind)
        return cls(shape, starts, columns, values, back, places[0][order].to(kind), order)


def _starts(rows: Int[Tensor, "entries"], count: int, kind: torch.dtype) -> Int[Tensor, "rows_and_one"]:
    starts = torch.zeros(count + 1, dtype=torch.int64, device=rows.device)
    starts[1:] = torch.bincount(rows, minlength=count).cumsum(0)
    return starts.to(kind)


def compressed(starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Torch's sparse rows, without its warning that these are young."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        return torch.sparse_csr_tensor(starts, columns, values, tuple(shape), check_invariants=False)
