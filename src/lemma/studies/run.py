"""Which experiment a study's spec asks for; each is imported when it is used."""

from collections.abc import Collection
from pathlib import Path

from lemma.errors import SpecError
from lemma.report.progress import Observer, Silent
from lemma.spec.studies import ClassifiersStudy, CostStudy, GraphStudy, GridStudy, PretrainingStudy, StudySpec
from lemma.studies.experiment import Experiment, run_experiment
from lemma.studies.result import StudyResult


def run_study(
    spec: StudySpec, out: Path, observer: Observer | None = None, only: Collection[str] | None = None
) -> StudyResult:
    """Run a study in the folder `out`, save its table and report there, and return what it came to.

    A finished run is not repeated and an interrupted one goes on, so that a study that was stopped is finished by the
    same call. A run that fails becomes a row with its reason, and is tried again by the next call. `only` names the
    models or runs to train now; of the others what is there is shown.
    """
    return run_experiment(experiment_of(spec, out, observer or Silent()), only)


def experiment_of(spec: StudySpec, out: Path, observer: Observer) -> Experiment:
    """The experiment of a spec, its data loaded."""
    match spec:
        case GridStudy():
            from lemma.studies.grid import GridExperiment

            return GridExperiment(spec, out, observer)
        case ClassifiersStudy():
            from lemma.studies.classifiers import ClassifiersExperiment

            return ClassifiersExperiment(spec, out, observer)
        case PretrainingStudy():
            from lemma.studies.pretraining import PretrainingExperiment

            return PretrainingExperiment(spec, out, observer)
        case GraphStudy():
            from lemma.studies.graph import GraphExperiment

            return GraphExperiment(spec, out, observer)
        case CostStudy():
            from lemma.studies.costs import cost_experiment

            return cost_experiment(spec, out, observer)
    raise SpecError(f"study: there is no experiment for a {type(spec).__name__}.")
