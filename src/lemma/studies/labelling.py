"""Which study of classifiers a spec asks for."""

from pathlib import Path

from lemma.spec import ClassifiersStudy, LabelStudySpec
from lemma.studies.classifiers import study_classifiers
from lemma.studies.label_result import LabelResult
from lemma.studies.pretraining import study_pretraining
from lemma.training import Observer, Silent


def run_label_study(spec: LabelStudySpec, out: Path, observer: Observer | None = None) -> LabelResult:
    """Train and measure what the spec asks for, save table and report in the folder `out`, and return all of it.

    A finished run is not repeated and an interrupted one goes on, so that a study that was stopped is finished by the
    same call. A run that fails becomes a row with its reason, and is tried again by the next call.
    """
    watcher = observer or Silent()
    if isinstance(spec, ClassifiersStudy):
        return study_classifiers(spec, out, watcher)
    return study_pretraining(spec, out, watcher)
