"""Graph convolution (problem D4; Kipf & Welling 2017), and the sparse matrices that it multiplies by."""

import warnings
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

INT32_LIMIT = 2**31  # below it indices are stored in 32 bits, which the kernels of a CPU read without copying


class _SparseProduct(torch.autograd.Function):
    """A sparse matrix times a dense one; the gradient is multiplied by the transpose."""

    @staticmethod
    def forward(ctx: Any, matrix: "SparseMatrix", dense: Tensor) -> Tensor:
        """Return sparse matrix × dense matrix."""
        ctx.matrix, ctx.dtype = matrix, dense.dtype
        return _multiply(matrix.csr, dense)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[None, Tensor]:
        """Return the gradient of the dense matrix: transposed sparse matrix × incoming gradient."""
        return None, _multiply(ctx.matrix.transposed_csr, gradients[0]).to(ctx.dtype)


def _multiply(matrix: Tensor, dense: Tensor) -> Tensor:
    """Return `matrix` (sparse) × `dense` in the dtype of the matrix, since autocast does not support sparse ones."""
    with torch.autocast(dense.device.type, enabled=False):
        return matrix @ dense.to(matrix.dtype)


@dataclass(frozen=True)
class SparseMatrix:
    """A sparse matrix in compressed rows, with the indices of its transpose; `sparse @ dense` has a gradient."""

    shape: tuple[int, int]
    row_offsets: Int[Tensor, " rows_and_one"]
    columns: Int[Tensor, " entries"]
    values: Float[Tensor, " entries"]  # row after row
    transposed_offsets: Int[Tensor, " columns_and_one"]
    transposed_columns: Int[Tensor, " entries"]
    order: Int[Tensor, " entries"] | None  # of the transpose's entries among the values; None if symmetric

    @property
    def csr(self) -> Tensor:
        """The matrix as a torch tensor in compressed sparse rows."""
        return csr_tensor(self.row_offsets, self.columns, self.values, self.shape)

    @property
    def transposed_csr(self) -> Tensor:
        """The transposed matrix as a torch tensor in compressed sparse rows."""
        if self.order is None:
            return self.csr
        values = self.values[self.order]
        return csr_tensor(self.transposed_offsets, self.transposed_columns, values, self.shape[::-1])

    def __matmul__(self, dense: Float[Tensor, "columns width"]) -> Float[Tensor, "rows width"]:
        return _SparseProduct.apply(self, dense)  # pyright: ignore[reportReturnType]

    def to_dense(self) -> Float[Tensor, "rows columns"]:
        """Return all entries as a dense tensor, zeros included."""
        return self.csr.to_dense()

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Self:
        """Return a copy on another device, or in another dtype."""
        values = self.values.to(device, dtype or self.values.dtype)
        order = None if self.order is None else self.order.to(device)
        indices = (self.row_offsets, self.columns, self.transposed_offsets, self.transposed_columns)
        offsets, columns, transposed_offsets, transposed_columns = (tensor.to(device) for tensor in indices)
        return type(self)(self.shape, offsets, columns, values, transposed_offsets, transposed_columns, order)

    @classmethod
    def from_entries(
        cls,
        indices: Int[Tensor, "two entries"],
        values: Float[Tensor, " entries"],
        shape: tuple[int, int],
        symmetric: bool = False,
    ) -> Self:
        """Return a matrix from (row, column) indices, sorted by row, and the value of each entry.

        With `symmetric` the entries are trusted to be symmetric, and no transpose is stored.

        >>> indices, values = torch.tensor([[0, 1], [1, 0]]), torch.tensor([2.0, 3.0])
        >>> SparseMatrix.from_entries(indices, values, (2, 2)).to_dense().tolist()
        [[0.0, 2.0], [3.0, 0.0]]
        """
        dtype = torch.int32 if max(*shape, indices.shape[1]) < INT32_LIMIT else torch.int64
        offsets, columns = _row_offsets(indices[0], shape[0], dtype), indices[1].to(dtype)
        if symmetric:
            return cls(shape, offsets, columns, values, offsets, columns, None)
        order = indices[1].argsort(stable=True)
        transposed_offsets = _row_offsets(indices[1], shape[1], dtype)
        return cls(shape, offsets, columns, values, transposed_offsets, indices[0][order].to(dtype), order)


def _row_offsets(rows: Int[Tensor, " entries"], count: int, dtype: torch.dtype) -> Int[Tensor, " rows_and_one"]:
    """Return the offset of the first entry of each of `count` rows in compressed sparse rows, and the last one's end.

    Args:
        rows: row of each entry, sorted.
    """
    offsets = torch.zeros(count + 1, dtype=torch.int64, device=rows.device)
    offsets[1:] = torch.bincount(rows, minlength=count).cumsum(0)
    return offsets.to(dtype)


def csr_tensor(row_offsets: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a sparse CSR tensor, without torch's warning that these are in beta."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        return torch.sparse_csr_tensor(row_offsets, columns, values, tuple(shape), check_invariants=False)


Normalisation = Literal["symmetric", "rows", "none", "alone"]


class Adjacency(SparseMatrix):
    """Adjacency matrix of a graph, nodes × nodes, as a sparse matrix of its edges.

    Ã = A + I; Â = D̃^{-1/2} Ã D̃^{-1/2} with D̃ the degrees of Ã. All of its rows sum to one exactly if every connected
    component of the graph is regular, but its spectral norm is always 1, so that repeated layers do not blow features
    up; D̃^{-1} Ã is the one whose rows always sum to one.
    """


def build_adjacency(
    edges: Int[Tensor, "two edges"],
    nodes: int,
    normalisation: Normalisation = "symmetric",
    weights: Float[Tensor, " edges"] | None = None,
) -> Adjacency:
    """Return the normalised adjacency matrix of a graph, with self-loops, from the pairs of nodes that edges connect.

    Edges count for both ends; doubles count once (of weighted ones the largest), loops as the one that every node gets.

    >>> build_adjacency(torch.tensor([[0], [1]]), 2).to_dense().tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    if normalisation == "alone":
        edges, weights = edges[:, :0], None if weights is None else weights[:0]
    indices, values = add_self_loops(edges, nodes, weights)
    values = normalise_entries(indices, values, nodes, normalisation)
    return Adjacency.from_entries(indices, values, (nodes, nodes), symmetric=normalisation != "rows")


def add_self_loops(
    edges: Int[Tensor, "two edges"], nodes: int, weights: Float[Tensor, " edges"] | None = None
) -> tuple[Int[Tensor, "two entries"], Float[Tensor, " entries"]]:
    """Return (row, column) indices and values of Ã = A + I, sorted by row, where A has each edge in both directions."""
    values = torch.ones(edges.shape[1], device=edges.device) if weights is None else weights
    is_edge = edges[0] != edges[1]
    edges, values = edges[:, is_edge], values[is_edge]
    loops = torch.arange(nodes, device=edges.device)
    keys = torch.cat([edges[0] * nodes + edges[1], edges[1] * nodes + edges[0], loops * nodes + loops])
    values = torch.cat([values, values, torch.ones_like(loops, dtype=values.dtype)])
    entries, entry_of = keys.unique(return_inverse=True)
    largest = torch.zeros(len(entries), dtype=values.dtype, device=edges.device)
    largest = largest.scatter_reduce(0, entry_of, values, "amax")
    return torch.stack([entries // nodes, entries % nodes]), largest


def normalise_entries(
    indices: Int[Tensor, "two entries"], values: Float[Tensor, " entries"], nodes: int, normalisation: Normalisation
) -> Float[Tensor, " entries"]:
    """Return the entries of Ã over √(degree of row · degree of column), the row's degree ("rows"), or 1 otherwise."""
    if normalisation not in ("symmetric", "rows"):
        return values
    doubles = values.double()  # in 32 bits the product of two degrees past 10¹⁹ would be infinite
    degrees = torch.zeros(nodes, dtype=doubles.dtype, device=doubles.device).index_add(0, indices[0], doubles)
    first, second = degrees[indices[0]], degrees[indices[1]]
    return (doubles / ((first * second).sqrt() if normalisation == "symmetric" else first)).to(values.dtype)


class GraphConvolution(nn.Module):
    """Â X W + b: every node becomes the weighted sum of its neighbours and itself, times W."""

    def __init__(self, input_width: int, output_width: int, bias: bool = True) -> None:
        super().__init__()
        self.map = nn.Linear(input_width, output_width, bias=False)
        self.bias = nn.Parameter(torch.zeros(output_width)) if bias else None

    def forward(self, features: Tensor | SparseMatrix, adjacency: Adjacency | Tensor) -> Tensor:
        """Return Â (X W) + b of node features X; `adjacency` is Â, sparse or dense."""
        if isinstance(features, SparseMatrix):
            sums = adjacency @ (features @ self.map.weight.T)
        elif isinstance(adjacency, SparseMatrix) and self.map.in_features < self.map.out_features:
            sums = self.map(adjacency @ features)  # (Â X) W = Â (X W): Â is multiplied by whichever is narrower
        else:
            sums = adjacency @ self.map(features)
        return sums if self.bias is None else sums + self.bias
