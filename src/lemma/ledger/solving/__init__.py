"""From a printed total back to the sizes: the whole numbers that give it."""

from lemma.ledger.solving.solutions import Solutions, Total
from lemma.ledger.solving.solve import solve, solve_for
from lemma.ledger.solving.words import read_range, read_total

__all__ = ["Solutions", "Total", "read_range", "read_total", "solve", "solve_for"]
