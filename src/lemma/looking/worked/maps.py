"""The three matrices of attention, checked against the vectors that they act on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from lemma.errors import SpecError
from lemma.looking.words import counted
from lemma.looking.worked.cases import Attending

Columns = Float[np.ndarray, "rows columns"]


@dataclass(frozen=True, eq=False)
class Maps:
    """Query, key and value map, all turned so that they act on row vectors from the right: q = x W."""

    query: Float[np.ndarray, "query_input key_width"]
    key: Float[np.ndarray, "source_input key_width"]
    value: Float[np.ndarray, "source_input value_width"]
    apply: str
    scaled: bool

    @property
    def divisor(self) -> float:
        """What q·k is divided by: √(the key's length), or 1."""
        return float(np.sqrt(self.key.shape[1])) if self.scaled else 1.0

    def formula(self, letter: str) -> str:
        """How a vector is mapped, as it is written in the case: `q = W_Q x` or `q = x W_Q`."""
        name = f"W_{letter.upper()}"
        return f"{letter} = {name} x" if self.apply == "W x" else f"{letter} = x {name}"


def make_maps(case: Attending, query_width: int, source_width: int, where: str) -> Maps:
    """The maps of a case for vectors of these lengths."""
    query = _matrix(case, "W_Q", query_width, where)
    key = _matrix(case, "W_K", source_width, where)
    value = _matrix(case, "W_V", source_width, where)
    if query.shape[1] != key.shape[1]:
        raise SpecError(
            f"{where}: W_Q makes vectors of length {query.shape[1]}, W_K of length {key.shape[1]}; "
            "q·k needs equal lengths."
        )
    return Maps(query, key, value, case.apply, case.scaled)


def _matrix(case: Attending, name: str, width: int, where: str) -> Columns:
    written = rectangle(name, getattr(case, name), where)
    turned = written.T if case.apply == "W x" else written
    if turned.shape[0] == width:
        return turned
    side, other = ("columns", "x W") if case.apply == "W x" else ("rows", "W x")
    hint = f' It would fit with apply = "{other}".' if turned.shape[1] == width else ""
    raise SpecError(
        f'{where}: {name} is {written.shape[0]}×{written.shape[1]}; with apply = "{case.apply}" and vectors of length '
        f"{width} it needs {width} {side}.{hint}"
    )


def rectangle(name: str, rows: Sequence[Sequence[float]], where: str) -> Columns:
    """A matrix as it was written; its rows must be equally long."""
    odd = next((number for number, row in enumerate(rows, 1) if len(row) != len(rows[0])), None)
    if odd is not None:
        raise SpecError(
            f"{where}: {name}: row {odd} has {counted(len(rows[odd - 1]), 'number')}, row 1 has {len(rows[0])}; "
            "all rows of a matrix are equally long."
        )
    return np.array(rows, dtype=np.float64)


def stack(names: Sequence[str], vectors: Sequence[Sequence[float]], what: str, where: str) -> Columns:
    """Named vectors as the rows of a matrix; they must be equally long."""
    for name, vector in zip(names, vectors, strict=True):
        if len(vector) != len(vectors[0]):
            raise SpecError(
                f"{where}: {what}: '{name}' has {counted(len(vector), 'number')}, '{names[0]}' has {len(vectors[0])}; "
                "all vectors are equally long."
            )
    return np.array(vectors, dtype=np.float64)
