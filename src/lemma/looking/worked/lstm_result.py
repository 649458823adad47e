"""What an LSTM step worked by hand holds, and how it is shown."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lemma.looking.words import counted
from lemma.looking.worked.blocks import Block, Blocks, Heading, Words
from lemma.looking.worked.lstm_case import LstmCase
from lemma.looking.worked.lstm_given import Values
from lemma.looking.worked.lstm_gradient_views import backward_blocks
from lemma.looking.worked.lstm_tables import MOST_COLUMNS, MOST_ROWS, Tables
from lemma.looking.worked.lstm_views import forward_blocks, result_blocks
from lemma.looking.worked.numerals import printable
from lemma.looking.worked.result import Worked

HINT = "--full prints the weights, and every product of the sums"


@dataclass(frozen=True, eq=False)
class WorkedLstm(Worked):
    """One LSTM step with every gate value. A large step is printed short unless `full`; files show it all."""

    case: LstmCase
    source: str
    """The case as it was written."""
    given: Values
    forward: Values
    """What the step makes, by name: gamma_u … c_t, a_t, y_hat, loss."""
    backward: Values | None
    """The gradients by name: da, dc, dgamma_u …, dW_u …; None if they were not asked for."""
    notes: tuple[str, ...] = ()
    full: bool = False
    decimals: int = 4

    @property
    def heading(self) -> str:
        """The title of the case."""
        return printable(self.case.title) or "One LSTM step by hand"

    def shown(self) -> Blocks:
        """Every step; the weights only with `full`, since the products of a small step show them."""
        return [*self._blocks(every_matrix=self.full), *([Heading(HINT)] if self._cut else [])]

    def drawn(self) -> Blocks:
        """The same with the weights."""
        return self._blocks(every_matrix=True)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, none of them rounded."""
        return {
            "case": self.case.to_dict(),
            "notes": list(self.notes),
            "forward": _plain(self.forward),
            "backward": None if self.backward is None else _plain(self.backward),
        }

    def writers(self) -> dict[str, Callable[[], str]]:
        """The usual files, and the case itself to start another from."""
        return super().writers() | {".toml": lambda: self.source}

    @property
    def _cut(self) -> bool:
        """Whether products were left out."""
        read = len(self.forward.get("stacked", ()))
        return not self.full and read > 0 and (len(self.case.c_prev) > MOST_ROWS or read > MOST_COLUMNS)

    def _blocks(self, every_matrix: bool) -> list[Block]:
        tables = Tables(
            {**self.given, **self.forward, **(self.backward or {})}, self.case.letter, self.decimals, self.full
        )
        rounding = f"Printed to {counted(self.decimals, 'decimal')}; nothing is rounded on the way."
        begin = [Heading(self.heading, 1), Words(f"∗ is element by element. {rounding}"), *map(Words, self.notes)]
        end = backward_blocks(tables) if self.backward is not None else []
        return [*begin, *forward_blocks(tables, every_matrix), *result_blocks(tables), *end]


def _plain(values: Values) -> dict[str, Any]:
    return {name: value.tolist() for name, value in values.items()}
