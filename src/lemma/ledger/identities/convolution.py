"""Problem D4: the rows of Â = D̃^(−1/2) Ã D̃^(−1/2) do *not* sum to one, unless every connected part is regular.

What holds on every graph: the spectral norm of Â is 1 (its eigenvector is √d̃), and the rows of D̃⁻¹Ã sum to one.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor

from lemma.ledger.identities.identity import Identity, drawn, in_float64
from lemma.ledger.identities.report import EXACT, Finding, IdentityReport, residual
from lemma.parts import adjacency_of
from lemma.parts.graph import Normalisation
from lemma.spec import Spec

Square = Float[Tensor, "nodes nodes"]
POWERS = 8
NORM = 1e-10  # what rounding leaves of an eigenvalue of a matrix of some hundred rows
FORMULAS = {"symmetric": "Â = D̃^(−1/2) Ã D̃^(−1/2)", "rows": "D̃⁻¹Ã"}
NAMES: dict[Normalisation, str] = {"none": "Ã", "symmetric": "Â", "rows": "D̃⁻¹Ã"}


class Sizes(Spec):
    """Of which graph."""

    graph: Literal["star", "path", "random", "cycle", "complete"] = "star"
    """Its kind; cycles and complete graphs are regular: all their nodes have the same degree."""
    matrix: Literal["symmetric", "rows"] = "symmetric"
    """Of which matrix the rows are claimed to sum to one: Â, or D̃⁻¹Ã."""
    nodes: int = Field(default=8, ge=2, le=500)
    """How many nodes."""
    edges: int = Field(default=12, ge=0)
    """How many edges a random graph has; the other kinds have theirs."""
    seed: int = Field(default=1, ge=0)
    """Fixes the random graph and the features."""

    @model_validator(mode="after")
    def _possible(self) -> "Sizes":
        most = self.nodes * (self.nodes - 1) // 2
        if self.graph == "random" and self.edges > most:
            raise ValueError(f"edges = {self.edges}: {self.nodes} nodes have at most {most} edges.")
        if self.graph == "cycle" and self.nodes < 3:
            raise ValueError("nodes = 2: a cycle needs 3 nodes at least.")
        return self


def edges_of(sizes: Sizes) -> Int[Tensor, "two edges"]:
    """The edges of the graph asked for."""
    nodes = torch.arange(sizes.nodes)
    if sizes.graph == "star":
        return torch.stack([torch.zeros_like(nodes[1:]), nodes[1:]])
    if sizes.graph == "path":
        return torch.stack([nodes[:-1], nodes[1:]])
    if sizes.graph == "cycle":
        return torch.stack([nodes, nodes.roll(-1)])
    pairs = torch.combinations(nodes).T
    if sizes.graph == "complete":
        return pairs
    order = torch.randperm(pairs.shape[1], generator=torch.Generator().manual_seed(sizes.seed))
    return pairs[:, order[: sizes.edges]]


def run(sizes: Sizes) -> IdentityReport:
    """Build Ã, Â and D̃⁻¹Ã by our own convolution, and measure their rows and norms."""
    edges = edges_of(sizes)
    with in_float64():
        made: dict[Normalisation, Square] = {kind: adjacency_of(edges, sizes.nodes, kind).to_dense() for kind in NAMES}
    return IdentityReport(
        "d4",
        IDENTITY.title,
        f"The rows of {FORMULAS[sizes.matrix]} are normalised: each sums to one.",
        {**sizes.to_dict(), "edges": edges.shape[1]},
        _findings(made, edges, sizes),
        ("matrix", "lowest row sum", "highest row sum", "spectral norm", f"‖M^{POWERS} X‖ / ‖X‖"),
        tuple(_row(NAMES[kind], matrix, sizes) for kind, matrix in made.items()),
        _remarks(made["symmetric"], sizes),
        "the rows of Â sum to one only where every connected part of the graph is regular; those of D̃⁻¹Ã do on every "
        "graph. What holds of Â: its spectral norm is 1, so that repeated layers do not blow features up.",
        claimed=(
            residual(
                f"claimed: every row of {NAMES[sizes.matrix]} sums to 1; furthest sum − 1", furthest(made[sizes.matrix])
            ),
        ),
    )


def furthest(matrix: Square) -> float:
    """How far the row sum that is furthest from one lies from it."""
    return float((matrix.sum(1) - 1).abs().max())


def norm(matrix: Square) -> float:
    """The spectral norm: the largest singular value."""
    return float(torch.linalg.matrix_norm(matrix, 2))


def is_regular_in_parts(edges: Int[Tensor, "two edges"], nodes: int) -> bool:
    """Whether the nodes of each connected part have all the same degree: the two ends of every edge do."""
    degrees = torch.bincount(edges.flatten(), minlength=nodes)
    return bool((degrees[edges[0]] == degrees[edges[1]]).all())


def _findings(made: Mapping[Normalisation, Square], edges: Tensor, sizes: Sizes) -> tuple[Finding, ...]:
    symmetric, regular = made["symmetric"], is_regular_in_parts(edges, sizes.nodes)
    sums_to_one = furthest(symmetric) <= EXACT
    return (
        Finding("spectral norm of Â", norm(symmetric), 1.0, NORM),
        residual("rows of D̃⁻¹Ã: furthest sum − 1", furthest(made["rows"])),
        Finding("rows of Â sum to one (1 = yes), beside: every part is regular", sums_to_one, regular, 0.0, "a count"),
        Finding("powers of Â up to 8 that make features longer", _longer(symmetric, sizes), 0, 0.0, "a count"),
    )


def _longer(matrix: Square, sizes: Sizes) -> int:
    features, count = drawn(sizes.nodes, 3, seed=sizes.seed), 0
    for _ in range(POWERS):
        after = matrix @ features
        count += bool(after.norm() > features.norm() * (1 + NORM))
        features = after
    return count


def _row(name: str, matrix: Square, sizes: Sizes) -> tuple[str | float, ...]:
    features, sums = drawn(sizes.nodes, 3, seed=sizes.seed), matrix.sum(1)
    after = torch.linalg.matrix_power(matrix, POWERS) @ features
    return name, float(sums.min()), float(sums.max()), norm(matrix), float(after.norm() / features.norm())


def _remarks(symmetric: Square, sizes: Sizes) -> tuple[str, ...]:
    if furthest(symmetric) > EXACT or sizes.matrix == "rows":
        return ()
    return (f"This {sizes.graph} graph is regular, so the claim holds here; graph=star shows that it is not general.",)


IDENTITY = Identity("d4", ("graph", "convolution"), "Are the rows of Â normalised?", Sizes, run)
