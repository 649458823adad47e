"""What one matrix of attention weights is like, in a few numbers."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float


@dataclass(frozen=True)
class Statistics:
    """Means over the rows that may see at least one key."""

    entropy: float
    """H(α_i) = −Σ_j α_ij ln α_ij, in nats."""
    uniform_entropy: float
    """The most it could be: ln of the number of keys the row may see."""
    distance: float | None
    """Σ_j α_ij |i − j|, in tokens; none across two texts."""
    first: float
    """The share of attention on the first key."""

    @property
    def breadth(self) -> float:
        """The entropy as a share of uniform attention's; 0 where no row has a choice."""
        return self.entropy / self.uniform_entropy if self.uniform_entropy else 0.0


def statistics(
    weights: Float[np.ndarray, "new known"],
    allowed: Bool[np.ndarray, "new known"],
    distances: Float[np.ndarray, "new known"] | None,
) -> Statistics:
    """Measure a head's weights; `distances` is |i − j|, or None where the two texts have no common order.

    >>> weights = np.array([[1.0, 0.0], [0.5, 0.5]])
    >>> print(statistics(weights, weights > 0, np.array([[0.0, 1.0], [1.0, 0.0]])))
    Statistics(entropy=0.346..., uniform_entropy=0.346..., distance=0.25, first=0.75)
    """
    rows = allowed.any(1)
    if not rows.any():
        return Statistics(0.0, 0.0, None if distances is None else 0.0, 0.0)
    weights = weights[rows].astype(np.float64)
    entropies = -(weights * np.log(np.where(weights > 0, weights, 1.0))).sum(1)
    return Statistics(
        entropy=float(entropies.mean()) + 0.0,  # no −0
        uniform_entropy=float(np.log(allowed[rows].sum(1)).mean()),
        distance=None if distances is None else float((weights * distances[rows]).sum(1).mean()),
        first=float(weights[:, 0].mean()),
    )
