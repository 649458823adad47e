"""Tables of an LSTM step: a row for each unit or class, a column for each number of its arithmetic."""

from collections.abc import Iterable, Mapping

import numpy as np
from jaxtyping import Float

from lemma.looking.worked.blocks import Grid, Matrix, Words
from lemma.looking.worked.lstm_given import Values
from lemma.looking.worked.numerals import needed_decimals, numeral

SYMBOLS = {
    **{f"gamma_{letter}": f"Γ_{letter}" for letter in "ufo"},
    "candidate": "c̃",
    "tanh_c": "tanh(c_t)",
    "y_hat": "ŷ",
}
"""How a word of the case is written in a formula, where that differs."""
MOST_ROWS, MOST_COLUMNS = 4, 8
"""Of matrices up to this size every product is printed; of larger ones where all is asked for."""
GATES = {"u": "Update gate", "f": "Forget gate", "o": "Output gate", "c": "Candidate"}


class Tables:
    """Makes tables of the values of one step, with the case's own letter for the hidden state."""

    def __init__(self, values: Values, letter: str, decimals: int, full: bool) -> None:
        self.values, self.letter, self.decimals, self.full = values, letter, decimals, full

    def __getitem__(self, name: str) -> Float[np.ndarray, "..."]:
        return self.values[name]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    @property
    def stacked(self) -> str:
        """What the gates read, as a formula."""
        return f"[{self.letter}_prev; x]"

    def named(self, *names: str) -> dict[str, Float[np.ndarray, "units"]]:
        """Values under their symbols, as columns."""
        return {SYMBOLS.get(name, name): self.values[name] for name in names}

    def grid(self, columns: Mapping[str, Float[np.ndarray, "rows"]], row: str = "unit") -> Grid:
        """A row for each unit; each column with as many decimals as it needs."""
        written = [self.numbers(values) for values in columns.values()]
        count = len(written[0])
        names = [str(place) for place in range(1, count + 1)]
        return Grid("", (row, *columns), tuple(zip(names, *written, strict=True)))

    def matrix(self, title: str, values: Float[np.ndarray, "rows columns"], columns: Iterable[str] = ()) -> Matrix:
        """A matrix with numbered rows; columns are those of the stacked vector unless named otherwise."""
        rows = tuple(str(place) for place in range(1, len(values) + 1))
        return Matrix(title, rows, tuple(columns) or self.inputs(), values, decimals=self.decimals)

    def inputs(self) -> tuple[str, ...]:
        """The names of the numbers that the gates read."""
        sizes = {self.letter: len(self.values["a_prev"]), "x": len(self.values["x"])}
        return tuple(f"{name}_{place}" for name, size in sizes.items() for place in range(1, size + 1))

    def units(self, letter: str = "") -> tuple[str, ...]:
        """The names of the units."""
        return tuple(f"{letter}_{place}" for place in range(1, len(self.values["c_prev"]) + 1))

    def numbers(self, values: Float[np.ndarray, "rows"]) -> list[str]:
        """Numbers of one column, with no more decimals than one of them needs."""
        needed = needed_decimals(values.tolist(), self.decimals)
        return [numeral(value, needed) for value in values.tolist()]

    def number(self, value: float) -> str:
        """A number of its own."""
        return numeral(float(value), needed_decimals([float(value)], self.decimals))

    def products(
        self,
        row: str,
        weights: Float[np.ndarray, "rows columns"],
        read: Float[np.ndarray, "columns"],
        bias: Float[np.ndarray, "rows"] | None = None,
    ) -> list[Words]:
        """Every product behind W v + b, a line for each row; of a large matrix none."""
        if not self.full and (weights.shape[0] > MOST_ROWS or weights.shape[1] > MOST_COLUMNS):
            return []
        made = weights @ read + (0 if bias is None else bias)
        ends = [""] * len(made) if bias is None else [f" + {self._factor(one)}" for one in bias]
        lines = [
            f"{row} {place}: {self._sum(weights[place - 1], read)}{end} = {self.number(total)}"
            for place, (end, total) in enumerate(zip(ends, made, strict=True), 1)
        ]
        return [Words("\n".join(lines))]

    def _sum(self, weights: Float[np.ndarray, "columns"], read: Float[np.ndarray, "columns"]) -> str:
        pairs = zip(weights, read, strict=True)
        return " + ".join(f"{self._factor(weight)}·{self._factor(entry)}" for weight, entry in pairs)

    def _factor(self, value: float) -> str:
        text = self.number(value)
        return f"({text})" if text.startswith("−") else text
