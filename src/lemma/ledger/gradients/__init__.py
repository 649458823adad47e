"""The judge of gradients derived by hand, for five cells (problems C2 and D1)."""

from lemma.ledger.gradients.cells import CELLS as _CELLS
from lemma.ledger.gradients.describe import describe_cell
from lemma.ledger.gradients.judge import judge_gradients
from lemma.ledger.gradients.verdict import GradientReport, Verdict

CELLS = tuple(_CELLS)
"""The names of the cells."""

__all__ = ["CELLS", "GradientReport", "Verdict", "describe_cell", "judge_gradients"]
