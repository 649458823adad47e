"""The identity of graph convolution."""

from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from lemma.checking.identities.base import (
    default_float64,
    identity,
    sample_normal,
    seed_setting,
    setting,
)
from lemma.checking.identity_report import (
    EXACT,
    Evidence,
    Finding,
    expect_count,
    expect_zero,
)
from lemma.errors import SpecError
from lemma.layers.graph import Normalisation, build_adjacency

# D4: the rows of Â = D̃^(−1/2) Ã D̃^(−1/2) do *not* sum to one, unless every connected part is regular.
# What holds on every graph: the spectral norm of Â is 1 (its eigenvector is √d̃), and the rows of D̃⁻¹Ã sum to one.

POWERS = 8
NORM_TOLERANCE = 1e-10  # what rounding leaves of an eigenvalue of a matrix of some hundred rows
MATRIX_FORMULAS = {"symmetric": "Â = D̃^(−1/2) Ã D̃^(−1/2)", "rows": "D̃⁻¹Ã"}
MATRIX_NAMES: dict[Normalisation, str] = {"none": "Ã", "symmetric": "Â", "rows": "D̃⁻¹Ã"}
Graph = Literal["star", "path", "random", "cycle", "complete"]


@identity("d4 graph convolution", title="Are the rows of Â normalised?", claim="")
def graph_convolution(
    graph: Graph = "star",  # cycles and complete graphs are regular: all their nodes have the same degree
    matrix: Literal["symmetric", "rows"] = "symmetric",  # of which matrix the rows are claimed to sum to one
    nodes: int = setting(8, 2, 500, "how many nodes"),
    edges: int = setting(12, 0, 500 * 499 // 2, "how many edges a random graph has; the other kinds have theirs"),
    seed: int = seed_setting("fixes the random graph and the features"),
) -> Evidence:
    """Build Ã, Â and D̃⁻¹Ã by our own convolution, and measure their rows and norms."""
    most = nodes * (nodes - 1) // 2
    if graph == "random" and edges > most:
        raise SpecError(f"edges = {edges}: {nodes} nodes have at most {most} edges.")
    if graph == "cycle" and nodes < 3:
        raise SpecError("nodes = 2: a cycle needs 3 nodes at least.")
    numbers = torch.arange(nodes)
    all_pairs = torch.combinations(numbers).T
    order = torch.randperm(all_pairs.shape[1], generator=torch.Generator().manual_seed(seed))
    pairs: Int[Tensor, "two edges"] = {
        "star": torch.stack([torch.zeros_like(numbers[1:]), numbers[1:]]),
        "path": torch.stack([numbers[:-1], numbers[1:]]),
        "cycle": torch.stack([numbers, numbers.roll(-1)]),
        "complete": all_pairs,
        "random": all_pairs[:, order[:edges]],
    }[graph]
    features = sample_normal(nodes, 3, seed=seed)
    with default_float64():
        matrices: dict[Normalisation, Tensor] = {
            kind: build_adjacency(pairs, nodes, kind).to_dense() for kind in MATRIX_NAMES
        }
    deviation = {kind: float((adjacency.sum(1) - 1).abs().max()) for kind, adjacency in matrices.items()}
    norms = {kind: float(torch.linalg.matrix_norm(adjacency, 2)) for kind, adjacency in matrices.items()}
    degrees = torch.bincount(pairs.flatten(), minlength=nodes)
    # the nodes of each connected part have all the same degree just if the two ends of every edge do
    regular = bool((degrees[pairs[0]] == degrees[pairs[1]]).all())
    num_longer, features_before = 0, features
    for _ in range(POWERS):
        features_after = matrices["symmetric"] @ features_before
        num_longer += bool(features_after.norm() > features_before.norm() * (1 + NORM_TOLERANCE))
        features_before = features_after
    rows = []
    for kind, adjacency in matrices.items():
        sums, features_after = adjacency.sum(1), torch.linalg.matrix_power(adjacency, POWERS) @ features
        growth = float(features_after.norm() / features.norm())
        rows.append((MATRIX_NAMES[kind], float(sums.min()), float(sums.max()), norms[kind], growth))
    is_normalized = deviation["symmetric"] <= EXACT
    note = f"This {graph} graph is regular, so the claim holds here; graph=star shows that it is not general."
    return Evidence(
        (
            Finding("spectral norm of Â", norms["symmetric"], 1.0, NORM_TOLERANCE),
            expect_zero("rows of D̃⁻¹Ã: furthest sum − 1", deviation["rows"]),
            expect_count("rows of Â sum to one (1 = yes), against: every part is regular", is_normalized, regular),
            expect_count("powers of Â up to 8 that make features longer", num_longer, 0),
        ),
        ("matrix", "lowest row sum", "highest row sum", "spectral norm", f"‖M^{POWERS} X‖ / ‖X‖"),
        tuple(rows),
        (note,) if is_normalized and matrix == "symmetric" else (),
        "the rows of Â sum to one only where every connected part of the graph is regular; those of D̃⁻¹Ã do on every "
        "graph. What holds of Â: its spectral norm is 1, so that repeated layers do not blow features up.",
        claimed=(
            expect_zero(f"claimed: every row of {MATRIX_NAMES[matrix]} sums to 1; furthest sum − 1", deviation[matrix]),
        ),
        claim=f"The rows of {MATRIX_FORMULAS[matrix]} are normalised: each sums to one.",
        sizes={"edges": pairs.shape[1]},
    )
