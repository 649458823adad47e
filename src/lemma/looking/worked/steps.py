"""One pass of attention with every number on the way: the one mechanism behind self- and cross-attention."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from lemma.errors import InputError
from lemma.looking.worked.maps import Maps

LARGEST = 1e100
LARGE = 50.0
"""From a score of this size on, exponentials are taken of the distance to the row's largest score."""


@dataclass(frozen=True, eq=False)
class Steps:
    """softmax(q kᵀ / divisor) v, step by step, for `rows` that look at `columns`."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    maps: Maps
    inputs: Float[np.ndarray, "rows query_input"]
    source: Float[np.ndarray, "columns source_input"]
    allowed: Bool[np.ndarray, "rows columns"]

    @cached_property
    def queries(self) -> Float[np.ndarray, "rows key_width"]:
        """What each row asks."""
        return self.inputs @ self.maps.query

    @cached_property
    def keys(self) -> Float[np.ndarray, "columns key_width"]:
        """What each column answers to."""
        return self.source @ self.maps.key

    @cached_property
    def values(self) -> Float[np.ndarray, "columns value_width"]:
        """What each column gives."""
        return self.source @ self.maps.value

    @cached_property
    def products(self) -> Float[np.ndarray, "rows columns"]:
        """q·k."""
        return self.queries @ self.keys.T

    @cached_property
    def scores(self) -> Float[np.ndarray, "rows columns"]:
        """q·k over the divisor, −∞ where a row may not look."""
        return np.where(self.allowed, self.products / self.maps.divisor, -np.inf)

    @cached_property
    def shifted(self) -> bool:
        """Whether the row's largest score is taken off before exponentials, which leaves the weights as they are."""
        return bool(np.abs(self.scores[self.allowed]).max() > LARGE)

    @cached_property
    def exponentials(self) -> Float[np.ndarray, "rows columns"]:
        """exp(score), or exp(score − the row's largest) where scores are large."""
        shift = self.scores.max(axis=1, keepdims=True) if self.shifted else 0.0
        return np.exp(self.scores - shift)

    @cached_property
    def sums(self) -> Float[np.ndarray, "rows"]:
        """The sum of each row's exponentials."""
        return self.exponentials.sum(axis=1)

    @cached_property
    def weights(self) -> Float[np.ndarray, "rows columns"]:
        """α: each exponential over its row's sum."""
        return self.exponentials / self.sums[:, None]

    @cached_property
    def outputs(self) -> Float[np.ndarray, "rows value_width"]:
        """Σ α·v."""
        return self.weights @ self.values

    def contributions(self, row: int) -> Float[np.ndarray, "columns value_width"]:
        """α·v of one row, column by column."""
        return self.weights[row][:, None] * self.values

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; a score that is None belongs to what may not be looked at."""
        named = {
            "queries": self.queries,
            "keys": self.keys,
            "values": self.values,
            "products": self.products,
            "exponentials": self.exponentials,
            "sums": self.sums,
            "weights": self.weights,
            "outputs": self.outputs,
        }
        about = {"inputs": self.inputs.tolist(), "source": self.source.tolist(), "divisor": self.maps.divisor}
        shift = {"largest_score_subtracted": self.shifted}
        plain = {name: values.tolist() for name, values in named.items()}
        return about | shift | plain | {"scores": plain_rows(self.scores)}


def plain_rows(values: Float[np.ndarray, "rows columns"]) -> list[list[float | None]]:
    """The rows of a matrix; None for what is no finite number, since JSON has no word for it."""
    return [[value if np.isfinite(value) else None for value in row] for row in values.tolist()]


def attend(
    rows: tuple[str, ...],
    columns: tuple[str, ...],
    inputs: Float[np.ndarray, "rows query_input"],
    source: Float[np.ndarray, "columns source_input"],
    maps: Maps,
    *,
    causal: bool = False,
    where: str = "attention",
) -> Steps:
    """Let `inputs` look at `source`; causal hides the columns after a row's own place."""
    allowed = np.ones((len(rows), len(columns)), dtype=bool)
    steps = Steps(rows, columns, maps, inputs, source, np.tril(allowed) if causal else allowed)
    with np.errstate(over="ignore", invalid="ignore"):
        kept = [np.abs(made).max() <= LARGEST for made in (steps.queries, steps.keys, steps.values, steps.products)]
    if not all(kept):
        raise InputError(f"{where}: a number grows past {LARGEST:.0e}, too large to work with. Give smaller ones.")
    return steps
