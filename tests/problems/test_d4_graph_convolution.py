"""Problem D4: Ã = A + I and Â = D̃^{-1/2} Ã D̃^{-1/2}, the claim that its rows are normalised, and what holds instead."""

import math

import numpy as np
import pytest
import torch

from lemma.checking.worked.graph import GraphSteps, work_graph
from lemma.layers.graph import build_adjacency


def star(leaves: int) -> list[list[int]]:
    return [[0, leaf] for leaf in range(1, leaves + 1)]


def cycle(size: int) -> list[list[int]]:
    return [[node, (node + 1) % size] for node in range(size)]


def worked_steps(edges: list[list[int]]) -> GraphSteps:
    return work_graph({"edges": edges}).steps


def layer_adjacency(edges: list[list[int]], kind: str = "symmetric") -> np.ndarray:
    ends = torch.tensor(edges).T
    return build_adjacency(ends, int(ends.max()) + 1, kind).to_dense().double().numpy()  # pyright: ignore


@pytest.mark.parametrize("leaves", [1, 2, 5, 40])
def test_star_row_sums_match_the_closed_form(leaves: int) -> None:
    """The hub has degree n + 1, a leaf 2: 1/(n+1) + n/√(2(n+1)) and 1/2 + 1/√(2(n+1))."""
    corner = 1 / math.sqrt(2 * (leaves + 1))
    expected = [1 / (leaves + 1) + leaves * corner, *[0.5 + corner] * leaves]
    for matrix, nearby in (
        (worked_steps(star(leaves)).matrices["symmetric"], 1e-12),
        (layer_adjacency(star(leaves)), 1e-6),
    ):
        np.testing.assert_allclose(matrix.sum(axis=1), expected, atol=nearby)
    assert worked_steps(star(leaves)).rows_sum_to_one == (leaves == 1)


@pytest.mark.parametrize("size", [3, 4, 7])
def test_cycle_rows_sum_to_one(size: int) -> None:
    steps = worked_steps(cycle(size))
    np.testing.assert_allclose(steps.matrices["symmetric"].sum(axis=1), 1, atol=1e-14)
    np.testing.assert_allclose(layer_adjacency(cycle(size)).sum(axis=1), 1, atol=1e-6)
    assert steps.rows_sum_to_one and steps.is_regular


@pytest.mark.parametrize("edges", [star(5), cycle(6), [*star(3), [3, 4], [4, 5]]])
def test_row_normalized_adjacency_sums_to_one_but_is_asymmetric(edges: list[list[int]]) -> None:
    for matrix in (worked_steps(edges).matrices["rows"], layer_adjacency(edges, "rows")):
        np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-6)
    assert worked_steps(edges).properties["rows"].symmetric == (edges == cycle(6))


@pytest.mark.parametrize("edges", [star(5), cycle(6), [*star(3), [3, 4], [4, 5]]])
def test_symmetric_normalization_has_spectral_norm_one(edges: list[list[int]]) -> None:
    traits = worked_steps(edges).properties["symmetric"]
    assert traits.symmetric and traits.spectral_norm == pytest.approx(1, abs=1e-12)
    assert np.linalg.norm(layer_adjacency(edges), 2) == pytest.approx(1, abs=1e-6)


def test_unnormalized_spectral_norms_match_closed_form() -> None:
    """A has ±√n, so Ã has 1 + √n; a cycle's A has 2, its Ã 3."""
    assert worked_steps(star(9)).properties["adjacency"].spectral_norm == pytest.approx(3)
    assert worked_steps(star(9)).properties["loops"].spectral_norm == pytest.approx(4)
    assert worked_steps(cycle(5)).properties["loops"].spectral_norm == pytest.approx(3)


def test_unnormalized_powers_grow_with_the_largest_eigenvalue() -> None:
    steps = work_graph({"edges": star(9), "powers": 40}).steps
    norms = steps.power_norms["loops"][:, 0]
    assert norms[-1] / norms[-2] == pytest.approx(4, rel=1e-6)
    assert norms[-1] > 1e20 * norms[0]
    assert steps.power_norms["symmetric"][:, 0].max() <= norms[0] * (1 + 1e-12)
    assert (np.diff(steps.power_norms["symmetric"][:, 0]) < 1e-12).all()


def test_normalized_layers_never_enlarge_features() -> None:
    ends = torch.tensor(star(9)).T
    features = torch.randn(10, 4, generator=torch.Generator().manual_seed(1))
    base, built = features, features
    for _ in range(8):
        built = build_adjacency(ends, 10) @ built
        base = build_adjacency(ends, 10, "none") @ base
    assert built.norm() <= features.norm() < 100 * features.norm() < base.norm()


def test_root_degrees_are_the_eigenvector_of_eigenvalue_one() -> None:
    """The eigenvector of Â with eigenvalue 1 is √d̃, and that of D̃⁻¹Ã is constant."""
    steps = worked_steps([*star(3), [3, 4], [4, 5]])
    roots = np.sqrt(steps.degrees)
    np.testing.assert_allclose(steps.matrices["symmetric"] @ roots, roots, atol=1e-14)
    np.testing.assert_allclose(steps.matrices["rows"] @ np.ones(6), 1, atol=1e-14)
