"""Studies: models compared on the same data at the same budget, over seeds, in one table and one page."""

from lemma.studies.budget import Fit, fit_parameters
from lemma.studies.costing import run_cost
from lemma.studies.costs import Cost, CostResult
from lemma.studies.graph_study import run_graph_study
from lemma.studies.grid import Cell, open_grid
from lemma.studies.label_result import LabelResult
from lemma.studies.labelling import run_label_study
from lemma.studies.result import StudyResult
from lemma.studies.row import Row
from lemma.studies.run import run_study
from lemma.studies.table import Table

__all__ = [
    "Cell",
    "Cost",
    "CostResult",
    "Fit",
    "LabelResult",
    "Row",
    "StudyResult",
    "Table",
    "fit_parameters",
    "open_grid",
    "run_cost",
    "run_graph_study",
    "run_label_study",
    "run_study",
]
