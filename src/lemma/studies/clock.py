"""From a budget of tokens or seconds to a number of steps."""

import math
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from lemma.data import Dataset
from lemma.errors import SpecError
from lemma.models import LanguageModel
from lemma.runs import RunFolder
from lemma.spec import Budget, DataSpec, ModelSpec, Recipe
from lemma.training import stretch_of, train

WARM_UP = 4
TRIAL = 12


@dataclass(frozen=True)
class NoScore:
    """Stands for a validation that a trial of speed does without."""

    loss: float = 0.0
    perplexity: float = 1.0


def tokens_a_step(model: ModelSpec, recipe: Recipe) -> int:
    """How many tokens a step predicts."""
    return recipe.batch * stretch_of(model, recipe)


def spread_validations(recipe: Recipe, validations: int | None) -> Recipe:
    """Let a run be validated so many times, at equal distances; a recipe that says when itself is left alone."""
    if validations is None or recipe.evaluate_every:
        return recipe
    return recipe.replace(evaluate_every=math.ceil(recipe.steps / validations))


def fit_steps(model: ModelSpec, recipe: Recipe, budget: Budget, speed: float | None = None) -> Recipe:
    """Give the recipe as many steps as the budget allows; `speed`, in tokens a second, turns seconds into tokens.

    >>> from lemma.spec import Lstm
    >>> fit_steps(Lstm(), Recipe(batch=10, stretch=20), Budget(tokens=10_100)).steps
    50
    """
    if budget.tokens is None and budget.seconds is None:
        return recipe
    tokens = budget.tokens if budget.tokens else (budget.seconds or 0.0) * (speed or 0.0)
    steps = math.floor(tokens / tokens_a_step(model, recipe))
    if steps < 1 and budget.tokens:
        raise SpecError(
            f"study.budget.tokens = {budget.tokens:,} is less than one step of {model.family}: batch {recipe.batch} × "
            f"stretch {stretch_of(model, recipe)} = {tokens_a_step(model, recipe):,}. Raise it, or lower words.batch."
        )
    return recipe.replace(steps=max(1, steps))


def measure_speed(model: ModelSpec, recipe: Recipe, data: DataSpec, dataset: Dataset) -> float:
    """Train for a few real steps and return the tokens a second of all but the first ones."""
    with TemporaryDirectory(prefix="lemma-trial-") as folder:
        path = Path(folder) / "trial"
        trial = recipe.replace(steps=TRIAL, evaluate_every=TRIAL, tensorboard=False)
        train(model, trial, data, dataset, path, evaluate=_unscored, sample=_silent)
        rows = RunFolder.open(path).metrics.rows()
    first, last = rows[WARM_UP - 1], rows[-1]
    return (last["tokens"] - first["tokens"]) / (last["seconds"] - first["seconds"])


def _unscored(model: LanguageModel) -> NoScore:
    return NoScore()


def _silent(model: LanguageModel) -> list[str]:
    return []
