"""Fake outcomes of studies for tests of statistics and reports."""

from collections.abc import Mapping
from typing import Any

from lemma.spec.models import Rnn
from lemma.spec.recipe import Recipe
from lemma.studies.cells import CellOutcome, StudyCell
from lemma.studies.measures import CurvePoint, LanguageMeasures, SampleLoop, TextSample

GREEDY = TextSample(
    "", "to be to be to be", SampleLoop(onset=0, period=6, proved=True, state="the last 7 tokens", begin=0, end=6)
)


def measured(perplexity: float, **changes: Any) -> LanguageMeasures:
    values: dict[str, Any] = {
        "model": Rnn().to_dict(),
        "recipe": Recipe(steps=10).to_dict(),
        "parameters": 1234,
        "tokens": 5000,
        "seconds": 2.5,
        "tokens_per_second": 2000.0,
        "loss": 1.0,
        "perplexity": perplexity,
        "bits_per_byte": perplexity / 2,
        "protocol": {"context": 7, "stride": 1, "left_out": ["the first token"]},
        "curve": (CurvePoint(2000, 1.0, 3.0), CurvePoint(5000, 2.5, 2.5)),
        "sample": TextSample("", "O what a sample"),
        "greedy": GREEDY,
    }
    return LanguageMeasures(**{**values, **changes})


def make_outcomes(
    condition: str, perplexities: list[float | str | None], point: Mapping[str, Any] | None = None, **changes: Any
) -> list[CellOutcome[LanguageMeasures]]:
    """Return an outcome per seed from a perplexity, a reason for failure, or None for a pending run."""
    outcomes = []
    for seed, value in enumerate(perplexities, start=1):
        cell = StudyCell(condition, point or {}, seed, Rnn(), Recipe(seed=seed))
        measures = measured(value, **changes) if isinstance(value, float) else None
        outcomes.append(CellOutcome(cell, measures, value if isinstance(value, str) else None))
    return outcomes
