"""From what a person's table says of nodes to their features.

Words, and columns of noughts and ones, become shares: each node's sum to one. Other numbers are made comparable: each
column gets the mean 0 and the deviation 1. Where nothing is said, each node is its own feature.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float32

from lemma.data.graphs.compressed import Compressed, Features
from lemma.data.graphs.numbers import FINITE, as_single
from lemma.errors import DataError

Where = Callable[[int], str]
"""Names the place of a node, for an error."""
WORDS = "features"
"""The column that holds all features of a node, between spaces."""


def features_of(columns: Mapping[str, Sequence[str]], nodes: int, where: Where) -> tuple[Features, list[str]]:
    """The features of nodes, and how they were read, in words."""
    if WORDS in columns:
        return _listed(columns[WORDS], where)
    numeric = {name: cells for name, cells in columns.items() if any(map(_is_number, cells))}
    said = [f"the column '{name}' holds no numbers and was left out" for name in columns if name not in numeric]
    if not numeric:
        return Compressed.identity(nodes), [*said, "no features: each node is its own"]
    table = np.array([_numbers(name, cells, where) for name, cells in numeric.items()], dtype=np.float32).T
    features, how = _comparable(table)
    return features, [*said, how]


def _listed(cells: Sequence[str], where: Where) -> tuple[Features, list[str]]:
    """Of the column of all features: numbers, as many for each node, or else words."""
    rows = [cell.replace(",", " ").split() for cell in cells]
    first = next((row for row in rows if row), [])
    if first and all(map(_is_number, first)):
        return _vectors(rows, len(first), where)
    bag = _bag(rows)
    return bag, [f"{bag.width:,} different words are the features; those of a node sum to one"]


def _vectors(rows: Sequence[Sequence[str]], width: int, where: Where) -> tuple[Features, list[str]]:
    table = np.empty((len(rows), width), dtype=np.float32)
    for place, row in enumerate(rows):
        numbers = [number for word in row if (number := as_single(word)) is not None]
        if len(numbers) != width or len(row) != len(numbers):
            raise DataError(
                f"{where(place)}: {width} finite numbers (up to 3.4e38) are expected as features, as of the first node "
                f"that has any; got {len(row)} words, {len(numbers)} of them such numbers."
            )
        table[place] = numbers
    features, how = _comparable(table)
    return features, [how]


def _bag(rows: Sequence[Sequence[str]]) -> Compressed:
    """Which words each node has, in the order of the alphabet."""
    known = {word: place for place, word in enumerate(sorted({word for row in rows for word in row}))}
    columns, starts = array("q"), array("q", [0])
    for row in rows:
        columns.extend(sorted({known[word] for word in row}))
        starts.append(len(columns))
    values = np.ones(len(columns), dtype=np.float32)
    return Compressed(np.array(starts), np.array(columns), values, len(known)).scaled_rows()


def _comparable(table: Float32[np.ndarray, "nodes features"]) -> tuple[Features, str]:
    if np.isin(table, (0, 1)).all():
        rows, columns = np.nonzero(table)
        starts = np.searchsorted(rows, np.arange(len(table) + 1))
        bag = Compressed(starts, columns, np.ones(len(columns), dtype=np.float32), table.shape[1])
        return bag.scaled_rows(), f"{table.shape[1]:,} features of noughts and ones; those of a node sum to one"
    deviation = table.std(axis=0, dtype=np.float64)
    centred = (table - table.mean(axis=0, dtype=np.float64)) / np.where(deviation > 0, deviation, 1)
    return centred.astype(np.float32), f"{table.shape[1]:,} features, each brought to mean 0 and deviation 1"


def _numbers(name: str, cells: Sequence[str], where: Where) -> list[float]:
    numbers: list[float] = []
    for place, cell in enumerate(cells):
        number = as_single(cell)
        if number is None:
            raise DataError(f"{where(place)}: the feature '{name}' is {cell[:40]!r}; {FINITE}.")
        numbers.append(number)
    return numbers


def _is_number(cell: str) -> bool:
    """Whether a cell says a number, be it one that is too large."""
    try:
        return not np.isnan(float(cell))
    except ValueError:
        return False
