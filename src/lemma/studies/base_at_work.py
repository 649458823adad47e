"""The base of an adaptation at its own work, before and after: what each method has forgotten of it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lemma.errors import DataError
from lemma.runs import Run, load
from lemma.spec import Classifier
from lemma.studies.adapted import Adapted
from lemma.studies.adapting import Plan
from lemma.studies.forgetting import Forgetting, forgetting
from lemma.studies.lessons import AnyLesson, lesson_for_data
from lemma.studies.measuring import device_of
from lemma.training import Silent


@dataclass(frozen=True)
class Base:
    """The base at its own work: its lesson and its perplexity on what it held out; or why that cannot be had."""

    run: Run | None = None
    lesson: AnyLesson | None = None
    before: float = math.nan
    why_not: str = ""


def base_of(plan: Plan) -> Base:
    """Let the base do its own work once more, before anything is trained."""
    if isinstance(plan.base.spec, Classifier):
        return Base(why_not="The base is a classifier, of which no perplexity can be forgotten.")
    run = load(plan.base.path, device_of(plan.recipe))
    try:
        lesson = lesson_for_data(run.data, run.spec, run.recipe, Silent(), run.vocabulary)
    except DataError as error:
        return Base(why_not=f"What was forgotten is not known: the base's own data cannot be read ({error})")
    if lesson.dataset.hash != run.data_hash:
        return Base(why_not="What was forgotten is not known: the base's own data have changed since it was trained.")
    evaluate: Any = lesson.evaluate
    return Base(run, lesson, float(evaluate(run.module).perplexity))


def lost_by(base: Base, adapted: Mapping[str, Adapted], device: str) -> dict[str, Forgetting]:
    """How much of its base's data each method has forgotten, where that can be known."""
    if base.run is None or base.lesson is None:
        return {}
    return {
        name: forgetting(load(one.path, device), base.run, base.lesson, base.before) for name, one in adapted.items()
    }
