"""Studies: models compared on the same data at the same budget, over seeds, in one table and one page."""

from lemma.study.budget import Fit, fit_parameters
from lemma.study.grid import Cell, open_grid
from lemma.study.result import StudyResult
from lemma.study.row import Row
from lemma.study.run import run_study
from lemma.study.table import Table

__all__ = ["Cell", "Fit", "Row", "StudyResult", "Table", "fit_parameters", "open_grid", "run_study"]
