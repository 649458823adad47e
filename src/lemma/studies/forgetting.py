"""What a model has forgotten of its base's data by being adapted to something else."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import nn

from lemma.adaptation import merged
from lemma.models import ClassifierModel
from lemma.runs import Run
from lemma.studies.lessons import AnyLesson


@dataclass(frozen=True)
class Forgetting:
    """The perplexity of the base's held-out data, with the base's own weights and with the adapted ones."""

    before: float
    after: float

    @property
    def ratio(self) -> float:
        """How many times as perplexed it is; 1 if nothing is forgotten."""
        return self.after / self.before

    def to_dict(self) -> dict[str, float]:
        """Return plain values."""
        return {"before": self.before, "after": self.after, "ratio": self.ratio}


def forgetting(run: Run, base: Run, lesson: AnyLesson, before: float) -> Forgetting:
    """Let the adapted model do the base's work again, on the data that the base held out."""
    folds = run.adaptation is not None and run.adaptation.method.kind != "adapters"
    whole = merged(run.module) if folds else run.module
    return Forgetting(before, float(lesson.evaluate(as_base(whole, base.module)).perplexity))


def as_base(whole: nn.Module, base: nn.Module) -> Any:
    """The base's own kind of model with the adapted weights: a classifier's body gets back what it had left out."""
    if not isinstance(whole, ClassifierModel):
        return whole
    body: Any = whole.body
    for name in type(body).outward:
        setattr(body, name, deepcopy(getattr(base, name)))  # a copy: the base is to stay as it is
    if getattr(body.spec, "tied", False) and body.output is not None:
        body.output.weight = body.embedding.weight  # what was learned of the one holds for the other
    return body.eval()
