"""What a study's `measures` ask of each trained model beside its score: one function a name, plain values back."""

from collections.abc import Callable, Mapping
from typing import Any

from lemma.data import Dataset
from lemma.runs import Run
from lemma.spec import StudySpec
from lemma.studies.attention import measure_attention
from lemma.studies.extrapolation import measure_positions
from lemma.studies.plan import Plan
from lemma.training import stretch_of

SPLIT = "validation"
Measure = Callable[[Run, Any, int, int], dict[str, Any]]
MEASURES: dict[str, Measure] = {"positions": measure_positions, "attention": measure_attention}


def measure_more(run: Run, plan: Plan, study: StudySpec, dataset: Dataset) -> dict[str, Any]:
    """Measure what the study asks for, on the validation text; `trained` is the length the model was trained at."""
    trained = stretch_of(plan.model, plan.recipe)
    tokens = dataset.tokens(SPLIT)
    return {name: MEASURES[name](run, tokens, trained, study.beyond) for name in study.measures}


def has_all(more: Mapping[str, Any], study: StudySpec) -> bool:
    """Whether all that the study asks for was measured, and as far as it asks."""
    return all(name in more and more[name].get("beyond", study.beyond) == study.beyond for name in study.measures)
