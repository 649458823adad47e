"""The end of a run: its result, its weights, its samples."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from lemma.models import count_parameters
from lemma.runs import RunFolder, put_weights, weights_of
from lemma.training.result import TrainingResult
from lemma.training.session import Session

Sample = Callable[[Any], list[str]]
Stopped = Literal["done", "early", "interrupted"]


def finish(
    session: Session, folder: RunFolder, sample: Sample, stopped: Stopped, setup_seconds: float
) -> TrainingResult:
    """Sum a run up; if it came to its end, have the leader write the weights that the recipe keeps, and samples."""
    result = sum_up(session, folder, stopped, setup_seconds)
    if stopped == "interrupted" or not session.team.leads:
        return result
    weights = session.best if session.best and folder.recipe.keep == "best" else weights_of(session.model)
    put_weights(session.model, weights, folder.path)
    with session.aside():
        result = replace(result, samples=tuple(sample(session.model)))
    folder.finish(weights, result.to_dict())
    if folder.adaptation:  # many tasks on one base are to be small on the disk
        shutil.rmtree(folder.checkpoints, ignore_errors=True)
    return result


def sum_up(session: Session, folder: RunFolder, stopped: Stopped, setup_seconds: float) -> TrainingResult:
    """Gather the figures of a run."""
    standing = session.standing
    return TrainingResult(
        path=folder.path,
        family=folder.spec.family,
        steps=standing.step,
        planned_steps=folder.recipe.steps,
        stopped=stopped,
        parameters=count_parameters(session.model),
        learned=sum(tensor.numel() for tensor in session.model.parameters() if tensor.requires_grad),
        tokens=standing.tokens,
        training_loss=standing.training_loss,
        validation_loss=standing.validation_loss,
        perplexity=standing.perplexity,
        best_loss=standing.best_loss,
        best_perplexity=standing.best_perplexity,
        best_step=standing.best_step,
        seconds=standing.seconds,
        setup_seconds=setup_seconds,
        tokens_per_second=standing.tokens / standing.seconds if standing.seconds else None,
        data_hash=folder.data_hash,
        warnings=tuple(standing.warnings.values()),
        figures=dict(standing.figures),
        best_figures=dict(standing.best_figures),
    )
