"""The quantities of a graph worked by hand, and what usual slips make of them."""

from collections.abc import Iterator

import numpy as np

from lemma.looking.worked.graph_result import WorkedGraph
from lemma.looking.worked.graph_steps import SYMBOLS
from lemma.looking.worked.judging.quantity import AnyQuantity, Array, numbered, quantity

NAMES = {"adjacency": "A", "loops": "A_tilde", "symmetric": "A_hat", "rows": "A_rows"}
"""What each matrix is called where its sign is hard to type."""
OTHERS = {"loops": ("Ã", "A~"), "symmetric": ("Â", "A^"), "rows": ("D̃⁻¹Ã", "D^-1A", "D_inv_A")}


def of_graph(worked: WorkedGraph) -> list[AnyQuantity]:
    """The four matrices, degrees, row sums, norms, what powers do to features, and the layer."""
    steps, nodes = worked.steps, worked.given.names
    edges = steps.adjacency.sum(axis=1)
    without = {"the loop that Ã adds is not counted": edges}
    roots = {"the loop that Ã adds is not counted": _inverse(edges), "1/d̃ in place of 1/√d̃": 1 / steps.degrees}
    found: list[AnyQuantity] = [
        quantity("degrees", steps.degrees, (nodes,), "d̃, the row sums of Ã", ("d", "d̃", "d_tilde", "D"), without),
        quantity("roots", _inverse(steps.degrees), (nodes,), "1/√d̃", ("1/√d̃", "inverse_roots"), roots),
        *_matrices(worked),
        *_layer(worked),
    ]
    return found


def _matrices(worked: WorkedGraph) -> Iterator[AnyQuantity]:
    steps, nodes = worked.steps, worked.given.names
    for key, matrix in steps.matrices.items():
        name, sign = NAMES[key], SYMBOLS[key]
        others, slips = OTHERS.get(key, ()), _slips(key, steps.adjacency)
        traits, powers = steps.traits[key], tuple(map(str, range(steps.powers + 1)))
        yield quantity(name, matrix, (nodes, nodes), sign if sign != name else "adjacency", others, slips)
        sums = {said: made.sum(axis=1) for said, made in slips.items()}
        if key == "symmetric":
            sums["the rows of Â are not normalised; those of D̃⁻¹Ã are"] = np.ones(len(nodes))
        yield quantity(f"sum_{name}", matrix.sum(axis=1), (nodes,), f"row sums of {sign}", _also("sum", others), sums)
        yield quantity(f"norm_{name}", traits.norm, None, f"spectral norm of {sign}", _also("norm", others))
        yield quantity(
            f"radius_{name}", traits.radius, None, f"largest |eigenvalue| of {sign}", _also("radius", others)
        )
        scale = steps.scales[key]
        yield quantity(f"size_{name}", scale[:, 0], (powers,), f"‖MᵏX‖ for k = 0 …, M = {sign}", _also("size", others))
        yield quantity(f"largest_{name}", scale[:, 1], (powers,), "its largest entry", _also("largest", others))


def _also(kind: str, others: tuple[str, ...]) -> list[str]:
    return [f"{kind}_{other}" for other in others]


def _layer(worked: WorkedGraph) -> Iterator[AnyQuantity]:
    weights = worked.given.layer
    if weights is None:
        return
    steps, matrices = worked.steps, worked.steps.matrices
    through = steps.features @ weights
    slips = {
        "Ã in place of Â": matrices["loops"] @ through,
        "A in place of Â: no loops, not normalised": matrices["adjacency"] @ through,
        "D̃⁻¹Ã in place of Â": matrices["rows"] @ through,
        "X W alone: Â is left out": through,
    }
    labels = (worked.given.names, numbered(weights.shape[1]))
    yield quantity("layer", steps.layer(weights), labels, "Â X W", ("AXW", "ÂXW", "Y"), slips)


def _slips(key: str, adjacency: Array) -> dict[str, Array]:
    """Â and D̃⁻¹Ã made without loops, or with the degrees of A."""
    edges, loops = adjacency.sum(axis=1), adjacency + np.eye(len(adjacency))
    roots, shares = np.outer(_inverse(edges), _inverse(edges)), _inverse(edges)[:, None] ** 2
    if key == "symmetric":
        return {"A in place of Ã: no loops": adjacency * roots, "degrees of A in place of those of Ã": loops * roots}
    if key == "rows":
        return {"A in place of Ã: no loops": adjacency * shares, "degrees of A in place of those of Ã": loops * shares}
    return {}


def _inverse(degrees: Array) -> Array:
    """1/√d, and 0 for a node without neighbours."""
    return np.divide(1.0, np.sqrt(degrees), out=np.zeros_like(degrees), where=degrees > 0)
