"""What graph convolution makes of a graph (problem D4): Ã, Â and D̃⁻¹Ã, what they are, and what they do to features."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

Square = Float[np.ndarray, "nodes nodes"]
SYMBOLS = {"adjacency": "A", "loops": "Ã", "symmetric": "Â", "rows": "D̃⁻¹Ã"}
"""How each matrix is written."""
NEAR = 1e-9
"""Sums and norms that differ by less are the same but for rounding."""


@dataclass(frozen=True)
class Traits:
    """What one matrix is: its row sums, its symmetry and its norms."""

    lowest_sum: float
    highest_sum: float
    symmetric: bool
    radius: float
    """The largest size of an eigenvalue."""
    norm: float
    """The spectral norm: the root of the largest eigenvalue of MᵀM, the radius itself where M is symmetric."""

    @property
    def sums_to_one(self) -> bool:
        """Whether every row sums to one."""
        return abs(self.lowest_sum - 1) < NEAR and abs(self.highest_sum - 1) < NEAR


@dataclass(frozen=True, eq=False)
class GraphSteps:
    """A graph's four matrices, and features multiplied by each of them again and again."""

    adjacency: Square
    features: Float[np.ndarray, "nodes features"]
    powers: int

    @property
    def loops(self) -> Square:
        """Ã = A + I."""
        return self.adjacency + np.eye(len(self.adjacency))

    @property
    def degrees(self) -> Float[np.ndarray, "nodes"]:
        """The diagonal of D̃: the row sums of Ã."""
        return self.loops.sum(axis=1)

    @cached_property
    def matrices(self) -> Mapping[str, Square]:
        """All four by name: Â has 1/√(d̃_i d̃_j) where Ã has 1, and D̃⁻¹Ã has 1/d̃_i."""
        loops, degrees = self.loops, self.degrees
        symmetric = loops / np.sqrt(np.outer(degrees, degrees))
        return {
            "adjacency": self.adjacency,
            "loops": loops,
            "symmetric": symmetric,
            "rows": loops / degrees[:, None],
        }

    @cached_property
    def traits(self) -> Mapping[str, Traits]:
        """What each matrix is."""
        return {name: _traits(matrix) for name, matrix in self.matrices.items()}

    @cached_property
    def scales(self) -> Mapping[str, Float[np.ndarray, "powers two"]]:
        """For each matrix M and k = 0, 1, …: the norm of MᵏX, the root of its sum of squares, and its largest entry."""
        return {name: self._scale(matrix) for name, matrix in self.matrices.items()}

    def _scale(self, matrix: Square) -> Float[np.ndarray, "powers two"]:
        features, found = self.features, []
        for _ in range(self.powers + 1):
            largest = np.abs(features).max()  # taken out first, so that squares do not overflow
            shrunk = features / largest if largest else features
            found.append((np.sqrt((shrunk**2).sum()) * (largest or 1.0), largest))
            features = matrix @ features
        return np.array(found)

    @property
    def normalised(self) -> bool:
        """Whether the rows of Â sum to one here: just where all neighbours have the same degree."""
        return self.traits["symmetric"].sums_to_one

    @property
    def regular(self) -> bool:
        """Whether all nodes have the same degree."""
        return len(set(self.degrees.tolist())) == 1

    def layer(self, weights: Float[np.ndarray, "features out"]) -> Float[np.ndarray, "nodes out"]:
        """Â X W."""
        return self.matrices["symmetric"] @ (self.features @ weights)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, none of them rounded."""
        return {
            "degrees": self.degrees.tolist(),
            "matrices": {name: matrix.tolist() for name, matrix in self.matrices.items()},
            "traits": {name: _plain(self.matrices[name], traits) for name, traits in self.traits.items()},
            "features": self.features.tolist(),
            "norms": {name: scale[:, 0].tolist() for name, scale in self.scales.items()},
            "largest": {name: scale[:, 1].tolist() for name, scale in self.scales.items()},
        }


def _traits(matrix: Square) -> Traits:
    sums = matrix.sum(axis=1)
    symmetric = bool(np.allclose(matrix, matrix.T, rtol=0, atol=1e-15))
    values = np.linalg.eigvalsh(matrix) if symmetric else np.linalg.eigvals(matrix)
    radius = float(np.abs(values).max())
    norm = radius if symmetric else float(np.sqrt(np.linalg.eigvalsh(matrix.T @ matrix).max()))
    return Traits(float(sums.min()), float(sums.max()), symmetric, radius, norm)


def _plain(matrix: Square, traits: Traits) -> dict[str, Any]:
    return {
        "row_sums": matrix.sum(axis=1).tolist(),
        "rows_sum_to_one": traits.sums_to_one,
        "symmetric": traits.symmetric,
        "largest_eigenvalue": traits.radius,
        "spectral_norm": traits.norm,
    }
